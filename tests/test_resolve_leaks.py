"""What looks like a secret is reported before it is published, and never shown."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gitboot.errors import InvalidRepository
from gitboot.problems.problem import Problem, Severity
from gitboot.resolve.leaks import secrets
from tests.fleets import decided, fleet, image, policy, profile, server
from tests.linear import AT_MOST, TIMES, growth

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
        ("one in the line below its name", "CloudInit", "#cloud-config\npassword:\n\n  hunter2\n", "", "line 2"),
        ("one of a list", "CloudInit", "#cloud-config\nchpasswd:\n  list: |\n    root:hunter2\n", "", "line 2"),
        (
            "one behind blank lines",
            "CloudInit",
            "#cloud-config\nchpasswd:\n" + "\n" * 20 + "- root:hunter2",
            "",
            "line 2",
        ),
        ("a root password in kickstart", "Kickstart", "text\nrootpw hunter2\n", "", "ks.cfg, line 2"),
        ("a user's", "Kickstart", "text\nuser --name=a --password=hunter2\n", "", "ks.cfg, line 2"),
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
        ("options in another order", "Kickstart", "rootpw --allow-ssh --iscrypted $6$a$b\n", ""),
        ("those of a user", "Kickstart", "user --name=a --iscrypted --password=$6$a$b\n", ""),
        ("a command alone in its line", "Kickstart", "rootpw \ntext\n", ""),
    ],
)
def test_what_is_no_secret_is_not_reported(case: str, format: str, text: str, arguments: str) -> None:
    assert problems(format, text, arguments) == (), case


PLAIN = {
    "a private key without an end": "-----BEGIN PRIVATE KEY-----\nhunter2\nhunter2",
    "two keys": 2 * "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n",
    "a key below another key": "password:\n  passwd:\n\n    hunter2\n",
    "two in one line": "a: [{password: hunter2}, {passwd: hunter2}]\n",
    "a list": "chpasswd:\n  list: |\n    root:hunter2\n    core:hunter2\n",
    "two lists": 2 * "chpasswd:\n- root:hunter2\n",
    "kickstart": "rootpw hunter2\nuser --password=hunter2\n",
    "preseed": "d-i passwd/user-password password hunter2\n",
    "several rules in one line": "rootpw hunter2 {password: hunter2} -----BEGIN PRIVATE KEY-----\nhunter2\n",
}


@pytest.mark.parametrize("case", PLAIN)
def test_every_secret_is_found_with_all_of_its_lines(case: str) -> None:
    text = f"before\n{PLAIN[case]}"
    lines = text.split("\n")
    found = secrets(text)
    within = {number for secret in found for number in range(secret.first, secret.last + 1)}
    assert {number for number, line in enumerate(lines, 1) if "hunter2" in line} <= within, case
    assert 1 not in within
    assert [secret.first for secret in found] == sorted(secret.first for secret in found)
    assert all("hunter2" not in str(secret) for secret in found)


HOSTILE: dict[str, Callable[[int], str]] = {
    "blank lines": lambda size: "# passw" + "\n" * size,
    "spaces": lambda size: "# passw\n" + " " * size,
    "spaces in flow style": lambda size: "# passw\n" + "{" + " " * size + ", " * size,
    "spaces before a colon": lambda size: ("password" + " " * 50) * (size // 50),
    "blank lines behind a key": lambda size: "password:" + "\n" * size + "#",
    "keys without a value": lambda size: "password:\n" * size,
    "keys in flow style": lambda size: "{password: " * size,
    "hashes": lambda size: "password: $6$\n" * size,
    "passwords": lambda size: "password: hunter2\n" * size,
    "lists": lambda size: "chpasswd:\n\n" * size,
    "a list of spaces": lambda size: "chpasswd:\n" + " " * size,
    "a list in one line": lambda size: "chpasswd:\n" + "root:" * size + "\n" + "-" * size + "\n" + "a" * size,
    "a list of passwords": lambda size: "chpasswd:\n" + "root:hunter2\n" * size,
    "a user's passwords": lambda size: "user " + "--password=" * size + " --iscrypted",
    "commands": lambda size: "rootpw " * size + "\nrootpw --lock" * size,
    "spaces in a command": lambda size: "rootpw" + " " * size,
    "preseed's spaces": lambda size: "passwd/root-password" + " " * size + "password" + "\n" * size,
    "preseed's questions": lambda size: "passwd/root-password password " * size,
    "keys that do not begin": lambda size: "PRIVATE KEY" + "-----BEGIN " * size,
    "a key that does not begin": lambda size: "-----BEGIN " + "PRIVATE KEY" * size,
    "keys that do not end": lambda size: "-----BEGIN PRIVATE KEY-----\n" * size,
    "keys": lambda size: "-----BEGIN PRIVATE KEY-----\n-----END" * size,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_text_takes_as_long_as_it_is_long(case: str) -> None:
    texts = {size: HOSTILE[case](size) for size in (5000, 5000 * TIMES)}
    assert growth(lambda size: secrets(texts[size]), 5000) < AT_MOST, case
