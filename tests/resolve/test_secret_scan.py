"""Secrets in documents are reported before they are published, and never shown."""

from __future__ import annotations

import json
import re
import textwrap
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from random import Random
from string import ascii_letters, digits
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gitboot.errors import InvalidRepository
from gitboot.problems import Code, Problem, Severity
from gitboot.resolve import secret_scan
from gitboot.resolve.betterleaks_patterns import TOKENS, TokenRule
from gitboot.resolve.secret_scan import RULES, Secret, SecretSpan, find_secrets
from tests.helpers.cases import MAX_GROWTH, TIMES, count_examples, for_each, measure_growth
from tests.helpers.fleets import decided, fleet, image, policy, profile, server

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\\nb3BlbnNzaC1rZXk\\n-----END OPENSSH PRIVATE KEY-----"


def make(length: int, alphabet: str = ascii_letters + digits) -> str:
    """Return a secret as a machine would make it, so that secret scanners find none in the tests."""
    return "".join(Random(length).choices(alphabet, k=length))


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


PEM = f"-----BEGIN {'PRIVATE'} KEY-----\n{make(64)}\n{make(48)}\n-----END {'PRIVATE'} KEY-----\n"
JWT = ".".join(
    (
        *(encoded(json.dumps(each)).rstrip("=") for each in ({"alg": "HS256"}, {"sub": "node", "aud": "x"})),
        make(43),
    )
)

# Secrets of each kind as a person or a tool writes them, and their place.
KINDS: Final = {
    "a TLS key": PEM,
    "an OpenSSH key": PEM.replace("PRIVATE", "OPENSSH PRIVATE"),
    "an OpenPGP key": PEM.replace("PRIVATE KEY", "PGP PRIVATE KEY BLOCK"),
    "a PuTTY key": f"PuTTY-User-Key-File-{3}: ssh-ed25519\nPrivate-Lines: 1\n{make(48)}\nPrivate-MAC: {make(64)}",
    "a TLS key in base64": f"write_files:\n- path: /etc/tls.key\n  encoding: b64\n  content: {encoded(PEM)}",
    "a WireGuard key": f"[Interface]\nPrivateKey = {make(43)}=",
    "an age key": f"AGE-SECRET-KEY-1{make(58, 'QPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L')}",
    "AWS keys": f"aws_access_key_id = AKIA{make(16, 'ABCDEFGHJKLMNPQR2345')}\naws_secret_access_key = {make(40)}",
    "a Google service account": json.dumps({"type": "service_account", "private_key": PEM}),
    "an Azure storage key": f"AccountName=site;AccountKey={make(86)}==",
    "a GitHub token": f"ghp_{make(36)}",
    "a GitLab token": f"glpat-{make(20)}",
    "a Slack token": f"xoxb-{make(12, digits)}-{make(12, digits)}-{make(24)}",
    "a Stripe key": f"sk_live_{make(24)}",
    "an npm token": f"//registry.npmjs.org/:_authToken=npm_{make(36)}",
    "a PyPI token": f"password = pypi-AgEIcHlwaS5vcmc{make(80)}",
    "a JSON Web Token": JWT,
    "a Vault token": f"VAULT={'hvs'}.{make(95)}",
    "a kubeadm token": f"kubeadm join 192.0.2.1:6443 --token {make(6, digits + 'abc')}.{make(16, digits + 'abc')}",
    "registries' passwords": json.dumps({"auths": {"registry.test": {"auth": encoded("ci:hunter22")}}}),
    "a plain password of Subiquity": "autoinstall:\n  identity: {username: admin, password: hunter22}",
    "a plain password of cloud-init": "chpasswd:\n  users:\n  - {name: root, password: hunter22, type: text}",
    "a plain password of kickstart": "rootpw --plaintext hunter22",
    "a plain password of preseed": "d-i passwd/root-password password hunter22",
    "htpasswd": "admin:{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=",
    "a password of a wireless network": 'network={\n  ssid="site"\n  psk="hunter22"\n}',
    "a password as an option": "mysqladmin -u root --password=hunter22 ping",
    "a password in a URL": "curl -fsSL https://ci:hunter22@artifacts.test/agent.tar.gz",
    "a password for curl": "curl -fsSL -u ci:hunter22 https://artifacts.test/agent.tar.gz",
    "a header": f"Authorization: Basic {encoded('ci:hunter22')}",
    "a variable": f"export K3S_TOKEN={make(32)}",
    "a token of k3s": f"token: K10{make(64, '0123456789abcdef')}::server:{make(32, '0123456789abcdef')}",
}

# Text at the place of a password that is none.
HARMLESS: Final = (
    *("'!'", "'!!'", "'*'", "'!*'", "xxxx", "'*LK*'", "''", "null", "$6$salt$hash", "'!$6$salt$hash'", "'$2y$10$abc'"),
    *(
        "'${PASSWORD}'",
        "'$PASSWORD'",
        "'{% raw %}{{ password }}{% endraw %}'",
        "'<password>'",
        "CHANGEME",
        "'********'",
    ),
    *("/run/secrets/password", "REDACTED", "'%PASSWORD%'", "'********'"),
)


def problems(format: str, text: str, arguments: str = "") -> tuple[Problem, ...]:
    documents = (
        fleet(),
        server("web01"),
        image("a-1", f"userData: {format}"),
        profile("web", "a-1", f"userData: {{format: {format}, template: t}}, kernelArguments: [{arguments}]"),
        policy("web"),
    )
    try:
        found = decided(*documents, files={"t": text}).warnings
    except InvalidRepository as error:
        found = error.problems
    return tuple(each for each in found if each.code is not Code.NO_FIRST_BOOT)


@for_each(
    ("case", "format", "text", "arguments", "where"),
    [
        (
            "a private key",
            "Ignition/3.4",
            f'{{"ignition": {{"version": "3.4.0"}}, "k": "{KEY}"}}',
            "",
            "line 1",
        ),
        ("a password in cloud-config", "CloudInit", "#cloud-config\npassword: hunter2\n", "", "line 2"),
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
        ("a root password in kickstart", "Kickstart", "text\nrootpw hunter2\n", "", "line 2"),
        ("a user's", "Kickstart", "text\nuser --name=a --password=hunter2\n", "", "line 2"),
        ("one in preseed", "Preseed", "d-i passwd/root-password password hunter2\n", "", "line 1"),
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
def test_text_that_looks_like_a_secret_is_reported(
    case: str, format: str, text: str, arguments: str, where: str
) -> None:
    (problem,) = problems(format, text, arguments)
    assert problem.code == "GB3002", case
    assert where in problem.message if "argument" in where else (problem.path, f"line {problem.line}") == ("t", where)
    assert "hunter2" not in str(problem)
    assert problem.severity is (Severity.ERROR if "key" in case else Severity.WARNING)


@for_each(
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
        ("a locked user", "Kickstart", "user --name=a --password=!\n", ""),
        ("a command alone in its line", "Kickstart", "%pre\nrootpw \ntext\n%end\n", ""),
        *((f"{value} for a password", "CloudInit", f"#cloud-config\npassword: {value}\n", "") for value in HARMLESS),
        ("a hash below a list", "CloudInit", "#cloud-config\nchpasswd:\n  list: |\n    root:$y$j9T$a$b\n", ""),
        ("a hashed argument", "CloudInit", "#cloud-config\n", "'inst.password=$6$a$b'"),
    ],
)
def test_text_that_is_not_a_secret_is_not_reported(case: str, format: str, text: str, arguments: str) -> None:
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


@for_each("case", PLAIN)
def test_every_secret_is_found_with_all_of_its_lines(case: str) -> None:
    text = f"before\n{PLAIN[case]}"
    lines = text.split("\n")
    found = find_secrets(text)
    within = {number for secret in found for number in range(secret.first, secret.last + 1)}
    assert {number for number, line in enumerate(lines, 1) if "hunter2" in line} <= within, case
    assert 1 not in within
    assert [secret.first for secret in found] == sorted(secret.first for secret in found)
    assert all("hunter2" not in str(secret) for secret in found)


@for_each("kind", KINDS)
@for_each("where", ["as it is", "indented", "in base64", "in lines of base64", "in JSON"])
def test_t8_each_kind_of_secret_is_found_anywhere(kind: str, where: str) -> None:
    secret = KINDS[kind]
    text = {
        "as it is": secret,
        "indented": "".join(f"    {line}\n" for line in secret.split("\n")),
        "in base64": f"content: {encoded(secret)}",
        "in lines of base64": "content: |\n"
        + "".join(f"  {line}\n" for line in textwrap.wrap(encoded(secret * 2), 76)),
        "in JSON": json.dumps({"contents": {"source": f"data:;base64,{encoded(secret)}"}}),
    }[where]
    found = find_secrets(f"#cloud-config\nhostname: web01\n{text}\nruncmd: [reboot]\n")
    assert found, kind
    assert all(secret.first > 2 for secret in found)
    assert "hunter22" not in str(found) and make(24) not in str(found)


@for_each(
    "text",
    [
        "password: {{ vars.password }}",
        f"ssh_authorized_keys: [ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{make(43)} ada@example.net]",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        f"-----BEGIN PUBLIC KEY-----\n{make(64)}\n-----END PUBLIC KEY-----",
        "-----BEGIN AGE ENCRYPTED FILE-----\nYWdl\n-----END AGE ENCRYPTED FILE-----",
        f"sha256: {make(64, '0123456789abcdef')}",
        f"content: {encoded('#!/bin/sh' + chr(10) + 'echo the machine is called web01 and has no secrets at all')}",
        f"uuid: 4c4c4544-0042-3510-8051-{make(12, '0123456789abcdef')}",
        "kubeadm join 192.0.2.1:6443 --token abcdef.0123456789abcdef",
        "kubeadm join 192.0.2.1:6443 --token {{ vars.token }}",
        f"aws_access_key_id = {'AKIA'}IOSFODNN7EXAMPLE",
        f"aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCY{'EXAMPLE'}KEY",
        f"ghp_{'x' * 36}",
        f"glpat-{'x' * 20}",
        "export VAULT_TOKEN=${VAULT_TOKEN}",
        "export K3S_TOKEN=$(cat /run/token)",
        "K3S_TOKEN_FILE=/etc/rancher/token",
        "token: {{ vars.token }}",
        "tokens: [one, two]",
        "token: latest",
        "https://artifacts.test:8443/agent@1.2.3.tar.gz",
        "git clone ssh://git@git.example.net/fleet.git",
        "docker run -u 1000:1000 alpine",
        "curl -u 1000:1000 https://artifacts.test",
        "--password-file /run/password --token-file /run/token",
        "psk: {{ vars.psk }}",
        'network={\n  ssid="open"\n  key_mgmt=NONE\n}',
        "Authorization: Bearer ${TOKEN}",
        "admin:$2y$10$abcdefghijklmnopqrstuv",
        "passwd: {users: []}",
        '"auth": "none"',
        "rootpw --iscrypted $6$salt$hash",
        "rootpw --lock",
        "d-i passwd/root-password-crypted password $6$salt$hash",
        "user --name=admin --iscrypted --password=$6$salt$hash",
        "lock_passwd: true",
        "ssh_pwauth: false",
        "chage -d 0 root  # the password has to be changed",
    ],
)
def test_t8_text_that_only_looks_similar_is_accepted(text: str) -> None:
    assert [secret.kind for secret in find_secrets(f"#cloud-config\n{text}\n")] == []


@pytest.mark.parametrize("rule", TOKENS, ids=lambda rule: f"{rule.kind} {rule.words[0]}")
@settings(max_examples=count_examples(10), deadline=None, derandomize=True)
@given(data=st.data())
def test_t8_every_match_of_a_rule_contains_one_of_its_words(rule: TokenRule, data: st.DataObject) -> None:
    found = data.draw(st.from_regex(re.compile(rule.pattern, re.ASCII), fullmatch=True))
    assert any(word in found.lower() for word in rule.words)


def test_t8_a_token_has_the_same_digest_whatever_follows_it() -> None:
    token = f"sha256~{make(43)}"
    found = [find_secrets(f"token {token}{end}") for end in ("", "\n", ",", "; reboot", "&x=1", " y", ")")]
    assert {(secret.kind, secret.digest) for secrets in found for secret in secrets} == {
        ("an OpenShift token", sha256(token.encode()).hexdigest())
    }
    assert all(found)
    assert not find_secrets(f"token {token}-x")


# File and line, and accepted findings


def test_t8_a_finding_has_its_file_and_line_once_for_all_servers() -> None:
    documents = (
        fleet(),
        *(server(f"web{number:02}") for number in range(3)),
        image("a-1", "userData: CloudInit"),
        profile("web", "a-1", "userData: {format: CloudInit, template: t}"),
        policy("web"),
    )
    text = "#cloud-config\nhostname: {{ server.name }}\nrun: 1\npassword: hunter22\n"
    (problem,) = decided(*documents, files={"t": text}).warnings
    assert (problem.path, problem.line, problem.code) == ("t", 4, "GB3002")
    assert "web00, web01 and 1 more" in problem.message


@for_each(
    ("line", "reason"),
    [
        ("password: hunter22  # gitboot:allow-secret a rig in a cellar", "a rig in a cellar"),
        ("password: hunter22 {# gitboot:allow-secret everybody knows it #}", "everybody knows it"),
        ("password: hunter22  # gitboot:allow-secret", None),
        ("password: hunter22  # gitboot:allow-secrets all of them", None),
        ("# gitboot:allow-secret in the line before\npassword: hunter22", None),
    ],
)
def test_t8_a_line_with_a_reason_is_accepted_and_listed(line: str, reason: str | None) -> None:
    (problem,) = problems("CloudInit", f"#cloud-config\n{line}\n")
    assert problem.severity is Severity.WARNING
    assert problem.code == ("GB3002" if reason is None else "GB3020")
    assert reason is None or f"allowed: {reason}" in problem.message
    assert "hunter22" not in problem.message


def test_t8_an_allowed_key_does_not_make_the_commit_invalid() -> None:
    allowed = PEM.replace("\n", "  # gitboot:allow-secret a key for tests\n", 1)
    (problem,) = problems("CloudInit", f"#!/bin/sh\n{allowed}")
    assert (problem.code, problem.severity) == ("GB3020", Severity.WARNING)
    (problem,) = problems("CloudInit", f"#!/bin/sh\n{PEM}")
    assert (problem.code, problem.severity) == ("GB3002", Severity.ERROR)


def test_warnings_do_not_displace_an_error_in_a_file_with_many_secrets() -> None:
    text = "".join(f"curl -u admin:{make(20)}{number} http://a.test/\n" for number in range(60))
    found = problems("CloudInit", f"#!/bin/sh\n{text}{PEM}")
    (error,) = (each for each in found if each.severity is Severity.ERROR)
    assert (error.path, error.line) == ("t", 62)


def test_t8_a_secret_from_a_variable_is_found_where_it_is_rendered() -> None:
    documents = (
        fleet(),
        server("web01", spec="vars: {pw: hunter22}"),
        image("a-1", "userData: CloudInit"),
        profile("web", "a-1", "userData: {format: CloudInit, template: t}"),
        policy("web"),
    )
    (problem,) = decided(*documents, files={"t": "#cloud-config\npassword: {{ vars.pw }}\n"}).warnings
    assert "user-data, line 2" in problem.message and problem.code == "GB3002"


def test_t8_an_argument_is_accepted_by_the_line_that_contains_it() -> None:
    arguments = "kernelArguments: ['inst.password=hunter22']"
    documents = [fleet(), server("web01"), image("a-1"), policy("web")]
    plain, allowed = (
        profile("web", "a-1", arguments),
        profile("web", "a-1", arguments).rstrip() + "  # gitboot:allow-secret a rig\n",
    )
    (problem,) = decided(*documents, plain).warnings
    assert (problem.code, "kernel argument inst.password" in problem.message) == ("GB3002", True)
    for each in (allowed, f"\r{allowed}"):
        (problem,) = decided(*documents, each).warnings
        assert (problem.code, "allowed: a rig" in problem.message) == ("GB3020", True)


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
    "base64": lambda size: "A" * size * 8,
    "lines of base64": lambda size: ("A" * 76 + "\n") * size,
    "base64 of passwords": lambda size: encoded("password: hunter22\n" * size),
    "URLs": lambda size: "://a:" * size,
    "users of curl": lambda size: "curl -u a:" * size,
    "names of variables": lambda size: "SECRET_TOKEN_" * size,
    "lines of variables": lambda size: "SECRET_TOKEN\n" * size,
    "headers": lambda size: "authorization: " * size + "authorization" + " " * size,
    "options": lambda size: "--password " * size + "--password" + " " * size,
    "web tokens": lambda size: "eyJ" * size,
    "halves of web tokens": lambda size: ("eyJ" + "a" * 20 + ".") * size,
    "psk": lambda size: "psk" + " " * size + "\npsk=" * size,
    "registries": lambda size: '"auth": "' * size + '"auth":' + " " * size,
    "lines that are allowed": lambda size: "password: hunter2 # gitboot:allow-secret x\n" * size,
}


def scan_again(text: str) -> list[Secret]:
    secret_scan._scan_line.cache_clear()
    secret_scan._find_rules.cache_clear()
    return find_secrets(text)


@for_each("case", HOSTILE)
def test_the_time_for_a_text_grows_linearly_with_its_length(case: str) -> None:
    texts = {size: HOSTILE[case](size) for size in (1500, 1500 * TIMES)}
    assert measure_growth(lambda size: scan_again(texts[size]), 1500) < MAX_GROWTH, case


DIGEST, MAC = sha256(b"web01").hexdigest(), "24-6e-96-00-0d-4e"


@for_each(
    "text",
    [
        *(f"# {MAC}\n{text}\nreport: http://boot.example.net/v1/boot/{MAC}/failed/{DIGEST}" for text in KINDS.values()),
        *(
            f"{name}: {value}"
            for name in ("password", "token", "psk")
            for value in (DIGEST, MAC, f"{MAC}-{DIGEST[:8]}")
        ),
        *(f"curl https://node:{value}@boot.example.net" for value in (DIGEST, MAC)),
        f"kubeadm join --token {DIGEST} {MAC}",
        f"report: http://boot.example.net/v1/boot/{MAC}/failed/{DIGEST}",
    ],
)
def test_replacing_the_own_values_of_a_server_hides_no_secret(text: str) -> None:
    alike = secret_scan._replace_own_values(text, [(DIGEST, secret_scan._ANY_DIGEST), (MAC, secret_scan._ANY_MAC)])
    assert alike != text
    assert [each.kind for each in find_secrets(alike)] == [each.kind for each in find_secrets(text)]


@for_each("rule", TOKENS, ids=lambda rule: f"{rule.kind} {rule.words[0]}")
def test_t8_the_time_for_a_text_of_token_like_words_grows_linearly(rule: TokenRule) -> None:
    # Their words again and again, with letters and with parts that never become a token.
    words = dict.fromkeys(each for word in rule.words for each in (word, word.upper(), word.capitalize()))

    def text(size: int) -> str:
        return "\n".join(f"{word * size}{'a1' * size}\n{word}{'a1.-_' * size}{word * size}" for word in words)

    texts = {size: text(size) for size in (300, 300 * TIMES)}
    assert measure_growth(lambda size: scan_again(texts[size]), 300) < MAX_GROWTH, rule.kind


@for_each("kind", KINDS)
def test_a_rule_for_lines_finds_the_same_in_each_line_as_in_the_whole_text(kind: str) -> None:
    # Wherever a line is broken.
    secret = f"password: a\n{KINDS[kind]} {KINDS[kind]}\nuser: b"
    texts = [secret, *(f"{secret[:at]}\n{secret[at:]}" for at in range(0, len(secret), 3 + len(secret) // 50))]
    for rule in (rule for rule in RULES if rule.in_line):
        for text in texts:
            found, offset = list[SecretSpan](), 0
            for line in text.split("\n"):
                found += [SecretSpan(*(each + offset for each in span)) for span in rule.find(line)]
                offset += len(line) + 1
            assert found == list(rule.find(text)), (rule.kind, text)


def test_findings_do_not_depend_on_earlier_texts() -> None:
    texts = [f"#cloud-config\n{one}\n{other}\n" for one in KINDS.values() for other in PLAIN.values()]
    known = [find_secrets(text) for text in texts]
    assert known == [scan_again(text) for text in texts]
    assert any(len({secret.kind for secret in found}) > 1 for found in known)
