"""What looks like a secret in something that will be published.

Every rule takes time linear in the text: its repetitions are possessive, or what they repeat cannot begin what follows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from gitboot.plan import Boot
from gitboot.problems.problem import Severity


class Leak(NamedTuple):
    """Something that looks like a secret, without it."""

    what: str  # a private key, a password
    where: str  # user data, line 7; kernel argument rd.luks.key
    severity: Severity


class Secret(NamedTuple):
    """Where a text gives something away; lines are 1-based."""

    what: str
    line: int  # which says what it is
    first: int  # of the lines that must not be shown
    last: int
    severity: Severity


def leaks(boot: Boot) -> Iterator[Leak]:
    """What a boot's published files and arguments seem to give away: the first of each kind."""
    for argument in boot.kernel_arguments:
        name, _, value = argument.partition("=")
        if value and _SECRET_NAME.search(name):
            yield Leak("a password or token", f"kernel argument {name}", Severity.WARNING)
    texts = dict(boot.user_data.files) if boot.user_data is not None else {}
    for name, text in {**texts, **boot.entries}.items():
        for found in _by_rule(text):
            if secret := next(found, None):
                yield Leak(secret.what, f"{name}, line {secret.line}", secret.severity)


def secrets(text: str) -> list[Secret]:
    """Everything that a text seems to give away, by its lines."""
    return sorted((each for found in _by_rule(text) for each in found), key=lambda secret: secret.first)


_SECRET_NAME: Final = re.compile(r"(?:^|[._-])(?:password|passwd|secret|token|apikey)$", re.IGNORECASE)


class _SecretSpan(NamedTuple):
    """Where in a text something stands: what names it, and what is secret."""

    at: int
    start: int
    end: int


def _by_rule(text: str) -> Iterator[Iterator[Secret]]:
    if not any(word in text for word in _HINTS):  # most texts: a plain search costs next to nothing
        return
    for what, severity, rule in _RULES:
        yield _placed(text, what, severity, rule(text))


def _placed(text: str, what: str, severity: Severity, spans: Iterable[_SecretSpan]) -> Iterator[Secret]:
    lines = _Lines(text)
    for at, start, end in spans:
        yield Secret(what, lines.of(at), lines.of(start), lines.of(end), severity)


class _Lines:
    """The lines of offsets that come nearly in order: only what lies between two of them is counted."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._offset, self._line = 0, 1

    def of(self, offset: int) -> int:
        if offset < self._offset:
            self._line -= self._text.count("\n", offset, self._offset)
        else:
            self._line += self._text.count("\n", self._offset, offset)
        self._offset = offset
        return self._line


# Rules: where a text gives something away, in order

_BLANKS: Final = r"[^\S\n]*+"  # within a line
_HASHED: Final = r"(?!['\"]?\$(?:y|gy|7|2[aby]|5|6)\$)"  # crypt(5): a hash is made to be seen


def _private_keys(text: str) -> Iterator[_SecretSpan]:
    position = 0
    while found := _PRIVATE_KEY.search(text, position):
        end = text.find("-----END", found.end())
        position = end if end >= 0 else len(text)
        yield _SecretSpan(found.start(), found.start(), position)


_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")


def _password_keys(text: str) -> Iterator[_SecretSpan]:
    """Of cloud-init and Autoinstall, in block or flow style."""
    for found in _PASSWORD_KEY.finditer(text):
        yield _SecretSpan(found.start(), found.start(), found.start(1))


_PASSWORD_KEY: Final = re.compile(
    rf"(?:^{_BLANKS}(?:-{_BLANKS})?|[{{,]{_BLANKS})['\"]?(?:plain_text_passwd|password|passwd)['\"]?\s*+:"
    rf"(?=\s*+{_HASHED}['\"]?([^\s'\"#{{[]))",
    re.MULTILINE,
)


def _password_lists(text: str) -> Iterator[_SecretSpan]:
    """Of cloud-init: name:password in the lines that follow ``chpasswd:``, which names them."""
    if "chpasswd:" not in text:
        return
    offset = begins = left = 0
    for line in text.split("\n"):
        if left and _NAME_AND_PASSWORD.match(line):
            yield _SecretSpan(begins, offset, offset)
        if _PASSWORD_LIST.match(line):
            begins, left = offset, _LIST_LINES
        elif left and line.strip():
            left -= 1
        offset += len(line) + 1


_LIST_LINES: Final = 13
_PASSWORD_LIST: Final = re.compile(rf"{_BLANKS}chpasswd:")
_NAME_AND_PASSWORD: Final = re.compile(rf"{_BLANKS}(?:-{_BLANKS})?[a-z_][\w-]*+:(?!\s|R$|RANDOM$){_HASHED}\S")


def _kickstart(text: str) -> Iterator[_SecretSpan]:
    for found in _KICKSTART.finditer(text):
        command, *options = found[0].split()
        if command == "rootpw":
            is_plain = options and not any(option.startswith(("--iscrypted", "--lock")) for option in options)
        else:
            is_plain = "--password=" in found[0] and "--iscrypted" not in options
        if is_plain:
            yield _SecretSpan(found.start(), found.start(), found.start())


_KICKSTART: Final = re.compile(r"^(?:rootpw|user)[^\S\n].*", re.MULTILINE)


def _preseed(text: str) -> Iterator[_SecretSpan]:
    for found in _PRESEED.finditer(text):
        yield _SecretSpan(found.start(), found.start(), found.end())


_PRESEED: Final = re.compile(r"passwd/(?:root|user)-password(?:-again)?\s++password\s++\S")

_HINTS: Final = ("passw", "rootpw", "PRIVATE KEY")  # one of which stands in whatever a rule finds

_RULES: Final[tuple[tuple[str, Severity, Callable[[str], Iterator[_SecretSpan]]], ...]] = (
    ("a private key", Severity.ERROR, _private_keys),
    ("a password", Severity.WARNING, _password_keys),
    ("a password", Severity.WARNING, _password_lists),
    ("a password", Severity.WARNING, _kickstart),
    ("a password", Severity.WARNING, _preseed),
)
