"""Rules for what looks like a secret: keys, and passwords as formats of user data spell them; tokens of others.

Every rule takes time linear in the text: its repetitions are possessive or bounded, or what they repeat cannot begin
what follows, and a search that fails begins anew behind what it has read.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Final, NamedTuple

from gitboot.problems.codes import Severity
from gitboot.resolve.betterleaks_patterns import TOKENS


class SecretSpan(NamedTuple):
    """Where in a text something stands: what names it, and what is secret."""

    at: int
    start: int
    end: int


Find = Callable[[str], Iterable[SecretSpan]]


class LeakRule(NamedTuple):
    """One kind of secret."""

    what: str
    severity: Severity
    words: tuple[str, ...]  # one of which stands in any text that has one, in lower case
    find: Find
    in_line: bool = False  # whether it finds in each line by itself what it finds in all of them


# What stands where a secret could, and is none

_HARMLESS: Final = re.compile(
    r"""
    [!*.?_~-]*+ | [xX]{3,}+ | \$                         # locked, hidden, left out
    | [!*]{0,2}\$(?:y|gy|7|2[abxy]|5|6)\$\S*+           # crypt(5): a hash is made to be seen
    | [*]LK[*] | NP | R | RANDOM
    | .*?(?:\{\{|\{%|\$[{(]).*+                         # something is filled in
    | \$\w++ | %\w++% | @\w++@ | <[^>]*+>
    | (?i:change[_-]?me|placeholder|redacted|hidden|none|null|true|false|yes|no|todo|your[_-].*+)
    | /(?:dev|etc|home|mnt|opt|proc|root|run|srv|sys|tmp|usr|var)/\S*+
    """,
    re.VERBOSE | re.DOTALL,
)
_FEW: Final = 8  # different characters: a token has more, a placeholder has fewer
# In the documentation of AWS, of kubeadm, and of JWT.
_EXAMPLES: Final = ("EXAMPLE", "abcdef.0123456789abcdef", "eyJzdWIiOiIxMjM0NTY3ODkwIi")


def _is_harmless(value: str) -> bool:
    return _HARMLESS.fullmatch(value) is not None or any(example in value for example in _EXAMPLES)


def _looks_made(value: str) -> bool:
    """Whether something was made by a machine: a name or a word is no token."""
    return len(value) >= 8 and any(each.isdigit() for each in value) and any(each.isalpha() for each in value)


# Kinds of rules

_compiled: Final = cache(re.compile)  # when a text first has a word of the rule: most commits have those of few

_BLANKS: Final = r"[^\S\n]*+"  # within a line
_VALUE: Final = r"""(?:"(?P<double>[^"\n]*+)"|'(?P<single>[^'\n]*+)'|(?P<plain>[^\s'"#,{}\[\];]++))"""


def _values(pattern: str, *groups: str, flags: re.RegexFlag = re.MULTILINE, only: Callable[[str], bool] = bool) -> Find:
    """What a pattern finds in one of its groups, but for what is harmless there."""

    def find(text: str) -> Iterator[SecretSpan]:
        for found in _compiled(pattern, flags).finditer(text):
            group = next((each for each in groups if found[each] is not None), 0)
            if not _is_harmless(found[group]) and only(found[group]):
                yield SecretSpan(found.start(), found.start(group), found.end(group))

    return find


_IN_VALUE: Final = ("double", "single", "plain")


def _between(begins: str, end: str) -> Find:
    """From what a pattern finds to where something ends, or to the end of the text."""
    compiled = re.compile(begins)

    def find(text: str) -> Iterator[SecretSpan]:
        position = 0
        while found := compiled.search(text, position):
            last = text.find(end, found.end())
            position = last if last >= 0 else len(text)
            yield SecretSpan(found.start(), found.start(), position)

    return find


def _in_lines(word: str, pattern: str) -> Find:
    """The first that a pattern finds in each line that has a word."""
    compiled = re.compile(pattern)

    def find(text: str) -> Iterator[SecretSpan]:
        offset = 0
        for line in text.split("\n"):
            found = compiled.search(line) if word in line else None
            if found is not None and not _is_harmless(found["v"]) and not found["v"].isdigit():
                yield SecretSpan(offset + found.start(), offset + found.start("v"), offset + found.end("v"))
            offset += len(line) + 1

    return find


# Rules that are more than a pattern


def _password_lists(text: str) -> Iterator[SecretSpan]:
    """Of cloud-init: name:password in the lines that follow ``chpasswd:``, which names them."""
    if "chpasswd:" not in text:
        return
    offset = begins = left = 0
    for line in text.split("\n"):
        found = _NAME_AND_PASSWORD.match(line) if left else None
        if found is not None and not _is_harmless(found["v"]):
            yield SecretSpan(begins, offset + found.start("v"), offset + found.end("v"))
        if _PASSWORD_LIST.match(line):
            begins, left = offset, _LIST_LINES
        elif left and line.strip():
            left -= 1
        offset += len(line) + 1


_LIST_LINES: Final = 13
_PASSWORD_LIST: Final = re.compile(rf"{_BLANKS}chpasswd:")
_NAME_AND_PASSWORD: Final = re.compile(rf"{_BLANKS}(?:-{_BLANKS})?[a-z_][\w-]*+:(?P<v>\S++)")


def _kickstart(text: str) -> Iterator[SecretSpan]:
    for found in _KICKSTART.finditer(text):
        command, *options = found[0].split()
        if command == "rootpw":
            is_plain = options and not any(option.startswith(("--iscrypted", "--lock")) for option in options)
            is_plain = is_plain and not _is_harmless(options[-1])
        else:
            is_plain = "--password=" in found[0] and "--iscrypted" not in options
        if is_plain:
            yield SecretSpan(found.start(), found.start(), found.end())


_KICKSTART: Final = re.compile(rf"^{_BLANKS}(?:rootpw|user)[^\S\n].*", re.MULTILINE)


def _assignments(text: str) -> Iterator[SecretSpan]:
    """Of a shell and of files of environment: NAME=value, where the name says what it is."""
    for found in _ASSIGNMENT.finditer(text):
        value = next(found[each] for each in _IN_VALUE if found[each] is not None)
        if _SAYS_SECRET.search(found["name"]) and not _is_harmless(value):
            yield SecretSpan(found.start(), found.start("value"), found.end("value"))


_ASSIGNMENT: Final = re.compile(
    rf"^{_BLANKS}(?:-{_BLANKS})?(?:export[^\S\n]++)?['\"]?(?P<name>[A-Z][A-Z0-9_]*+)=(?P<value>{_VALUE})", re.MULTILINE
)
_SAYS_SECRET: Final = re.compile(r"(?:PASSWORD|PASSWD|PASSPHRASE|SECRET|TOKEN|API_?KEY|ACCESS_?KEY)$")


def _registries(text: str) -> Iterator[SecretSpan]:
    """Of a ``.dockerconfigjson``: user:password in base64."""
    for found in _REGISTRY.finditer(text):
        try:
            is_pair = b":" in b64decode(found["v"], validate=True)
        except Error:
            continue
        if is_pair:
            yield SecretSpan(found.start(), found.start("v"), found.end("v"))


_REGISTRY: Final = re.compile(r"\"auth\"\s*+:\s*+\"(?P<v>[A-Za-z0-9+/]{8,}+={0,2})\"")


def _is_token(value: str) -> bool:
    return len(set(value)) >= _FEW


_BEFORE_KEY: Final = rf"(?:^{_BLANKS}(?:-{_BLANKS})?|[{{,]{_BLANKS})['\"]?"
_KEY: Final = r"(?:{names})['\"]?\s*+:(?=\s*+{value})"


def _keys(*names: str, only: Callable[[str], bool] = bool) -> Find:
    """What stands below keys of YAML or JSON, in block or flow style."""
    key = _KEY.format(names="|".join(names), value=_VALUE)
    in_its_place = _values(_BEFORE_KEY + key, *_IN_VALUE, only=only)

    def find(text: str) -> Iterable[SecretSpan]:
        # To look for the names alone takes a tenth of the time, and most texts have none of them.
        return in_its_place(text) if _compiled(key).search(text) else ()

    return find


_OPTIONS: Final = r"(?<![\w-])--(?:password|passwd|passphrase|token|secret|secret-key|api-key|auth-key|authkey)"

RULES: Final = (
    LeakRule(
        "a private key",
        Severity.ERROR,
        ("private key",),
        _between(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----", "-----END"),
    ),
    LeakRule("a private key", Severity.ERROR, ("putty-",), _between(r"PuTTY-User-Key-File-\d", "Private-MAC")),
    LeakRule(
        "a private key",
        Severity.ERROR,
        ("privatekey", "presharedkey"),
        _values(rf"(?:PrivateKey|PresharedKey){_BLANKS}={_BLANKS}(?P<v>[A-Za-z0-9+/]{{43}}=)", "v"),
    ),
    LeakRule("a password", Severity.WARNING, ("passw",), _keys("plain_text_passwd", "password", "passwd")),
    LeakRule("a password", Severity.WARNING, ("passphrase", "psk"), _keys("passphrase", "psk", "wpa-psk")),
    LeakRule(
        "a token",
        Severity.WARNING,
        ("token", "secret", "apikey", "api-key", "api_key"),
        _keys(
            *("token", "agent-token", "auth[_-]?token", "access[_-]?token", "client[_-]?secret"),
            *("secret[_-]?key", "api[_-]?key", "apikey"),
            only=_looks_made,
        ),
    ),
    LeakRule("a password", Severity.WARNING, ("chpasswd",), _password_lists),
    LeakRule("a password", Severity.WARNING, ("rootpw", "user"), _kickstart, in_line=True),
    LeakRule(
        "a password",
        Severity.WARNING,
        ("-password",),
        _values(r"passwd/(?:root|user)-password(?:-again)?\s++password\s++(?P<v>\S++)", "v"),
    ),
    LeakRule(
        "a password",
        Severity.WARNING,
        ("psk",),
        _values(rf"^{_BLANKS}(?:wpa-)?psk(?:{_BLANKS}={_BLANKS}|[^\S\n]++){_VALUE}", *_IN_VALUE),
    ),
    LeakRule(
        "a password",
        Severity.WARNING,
        ("--pass", "--token", "--secret", "--api-key", "--auth"),
        _values(rf"{_OPTIONS}(?:=|[^\S\n]++)(?!-){_VALUE}", *_IN_VALUE),
    ),
    LeakRule(
        "a password",
        Severity.WARNING,
        ("curl",),
        _in_lines("curl", r"\s(?:-u|--user)(?:=|\s{0,4})['\"]?[\w.@-]{1,64}+:(?P<v>[^\s'\"]{1,256}+)"),
        in_line=True,
    ),
    LeakRule(
        "a password",
        Severity.WARNING,
        ("://",),
        _values(r"://[^\s/:@'\"]{1,64}+:(?P<v>[^\s/@'\"]{1,256}+)@", "v"),
        in_line=True,
    ),
    LeakRule(
        "a password",
        Severity.WARNING,
        ("authorization",),
        _values(
            r"(?i:authorization)['\"]?\s{0,4}+[:=]\s{0,4}+['\"]?(?i:basic|bearer|token)\s{1,4}+(?P<v>[\w.~+/=-]{8,}+)",
            "v",
        ),
    ),
    LeakRule(
        "a weakly hashed password",
        Severity.WARNING,
        ("$apr1$", "$1$", "{sha}", "{ssha}"),
        _values(rf"^{_BLANKS}(?:-{_BLANKS})?[\w.@-]{{1,64}}+:(?P<v>(?:\$apr1\$|\$1\$|\{{SHA\}}|\{{SSHA\}})\S++)", "v"),
    ),
    LeakRule("a password or token", Severity.WARNING, ("pass", "secret", "token", "key"), _assignments, in_line=True),
    LeakRule("a registry's password", Severity.ERROR, ('"auth"',), _registries),
    LeakRule(
        "a kubeadm token",
        Severity.WARNING,
        ("kubeadm", "bootstrap", "token"),
        _values(r"(?<![\w.-])(?P<v>[a-z0-9]{6}\.[a-z0-9]{16})(?![\w.-])", "v", only=_looks_made),
        in_line=True,
    ),
    LeakRule("a k3s token", Severity.ERROR, ("k10",), _values(r"\bK10[0-9a-f]{48,}+::\S++", flags=re.NOFLAG)),
    LeakRule(
        "an AWS secret key",
        Severity.ERROR,
        ("secret",),
        _values(
            rf"(?i:aws.?secret.?access.?key)['\"]?{_BLANKS}[:=]{_BLANKS}['\"]?"
            r"(?P<v>[A-Za-z0-9/+]{40})(?![A-Za-z0-9/+])",
            "v",
        ),
        in_line=True,
    ),
    LeakRule(
        "an Azure storage key",
        Severity.ERROR,
        ("accountkey",),
        _values(r"AccountKey=(?P<v>[A-Za-z0-9+/]{86}==)", "v"),
    ),
    LeakRule(
        "a JSON Web Token",
        Severity.ERROR,
        ("eyj",),
        _values(r"eyJ(?<![\w-]eyJ)[\w-]{10,}+\.eyJ[\w-]{10,}+\.[\w-]{20,}+", flags=re.NOFLAG),
        in_line=True,
    ),
    *(
        LeakRule(
            each.what, Severity.ERROR, each.words, _values(each.pattern, flags=re.NOFLAG, only=_is_token), in_line=True
        )
        for each in TOKENS
    ),
)
