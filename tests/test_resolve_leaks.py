"""What looks like a secret is reported before it is published, and never shown."""

from __future__ import annotations

import pytest

from gitboot.errors import InvalidRepository
from gitboot.problems.problem import Problem, Severity
from tests.fleets import decided, fleet, image, policy, profile, server

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\\nb3BlbnNzaC1rZXk\\n-----END OPENSSH PRIVATE KEY-----"


def problems(format: str, text: str, arguments: str = "") -> tuple[Problem, ...]:
    documents = (
        fleet(),
        server("web01"),
        image("a-1", f"userData: {format}"),
        profile("web", "a-1", f"userData: {{format: {format}, template: t}}, kernelArguments: [{arguments}]"),
        policy("web"),
    )
    try:
        return decided(*documents, files={"t": text}).warnings
    except InvalidRepository as error:
        return error.problems


@pytest.mark.parametrize(
    ("case", "format", "text", "arguments", "where"),
    [
        (
            "a private key",
            "Ignition/3.4",
            f'{{"ignition": {{"version": "3.4.0"}}, "k": "{KEY}"}}',
            "",
            "config.ign, line 1",
        ),
        ("a password in cloud-config", "CloudInit", "#cloud-config\npassword: hunter2\n", "", "user-data, line 2"),
        ("a plain password of a user", "CloudInit", "#cloud-config\nusers:\n- plain_text_passwd: 'x'\n", "", "line 3"),
        ("one in flow style", "CloudInit", "#cloud-config\nu: [{name: a, plain_text_passwd: hunter2}]\n", "", "line 2"),
        ("one of a list", "CloudInit", "#cloud-config\nchpasswd:\n  list: |\n    root:hunter2\n", "", "line 2"),
        ("a root password in kickstart", "Kickstart", "text\nrootpw hunter2\n", "", "ks.cfg, line 2"),
        ("one in preseed", "Preseed", "d-i passwd/root-password password hunter2\n", "", "preseed.cfg, line 1"),
        (
            "one among the arguments",
            "CloudInit",
            "#cloud-config\n",
            "'sshd.password=x'",
            "kernel argument sshd.password",
        ),
        ("a token among the arguments", "CloudInit", "#cloud-config\n", "'api-token=x'", "kernel argument api-token"),
    ],
)
def test_what_looks_like_a_secret_is_reported(case: str, format: str, text: str, arguments: str, where: str) -> None:
    (problem,) = problems(format, text, arguments)
    assert problem.code == "GB3002", case
    assert where in problem.message
    assert "hunter2" not in str(problem)
    assert problem.severity is (Severity.ERROR if "key" in case else Severity.WARNING)


@pytest.mark.parametrize(
    ("case", "format", "text", "arguments"),
    [
        ("a hash", "CloudInit", "#cloud-config\npassword: $6$salt$hash\n", ""),
        ("a hash in quotes", "CloudInit", "#cloud-config\npasswd: '$y$j9T$salt$hash'\n", ""),
        ("a hashed root password", "Kickstart", "rootpw --iscrypted $6$salt$hash\n", ""),
        ("a locked root", "Kickstart", "rootpw --lock\n", ""),
        ("an empty argument", "CloudInit", "#cloud-config\n", "'token='"),
        ("a name that only begins so", "CloudInit", "#cloud-config\n", "'tokenize=1'"),
        ("a public key", "CloudInit", "#cloud-config\nkey: ssh-ed25519 AAAA\n", ""),
        ("a hash in a list", "CloudInit", "#cloud-config\nchpasswd:\n  list: |\n    root:$6$a$b\n", ""),
        ("users of Ignition", "Ignition/3.4", '{"ignition": {"version": "3.4.0"}, "passwd": {"users": []}}', ""),
        ("a random one", "CloudInit", "#cloud-config\nchpasswd:\n  expire: false\n  list: ['root:RANDOM']\n", ""),
        ("an empty password", "CloudInit", "#cloud-config\npassword:\n", ""),
    ],
)
def test_what_is_no_secret_is_not_reported(case: str, format: str, text: str, arguments: str) -> None:
    assert problems(format, text, arguments) == (), case
