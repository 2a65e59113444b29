"""What looks like a secret in something that will be published."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from gitboot.plan import Boot
from gitboot.problems.problem import Severity


class Leak(NamedTuple):
    """Something that looks like a secret, without it."""

    what: str  # a private key, a password
    where: str  # user data, line 7; kernel argument rd.luks.key
    severity: Severity


_HASHED: Final = r"(?!['\"]?\$(?:y|gy|7|2[aby]|5|6)\$)"  # crypt(5): a hash is made to be seen

_PASSWORDS: Final = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        # cloud-init and Autoinstall, in block or flow style; lists of name:password
        rf"(?:^\s*-?\s*|[{{,]\s*)['\"]?(?:plain_text_passwd|password|passwd)['\"]?\s*:\s*{_HASHED}['\"]?[^\s'\"#{{[]",
        rf"^\s*chpasswd:.*\n(?:.*\n){{0,12}}?\s*-?\s*[a-z_][\w-]*:(?!\s|R$|RANDOM$){_HASHED}\S",
        r"^rootpw\s+(?!--iscrypted|--lock)\S|^user\s.*--password=(?!.*--iscrypted)",  # kickstart
        r"passwd/(?:root|user)-password(?:-again)?\s+password\s+\S",  # preseed
    )
)

_HINTS: Final = ("passw", "rootpw", "PRIVATE KEY")  # one of which every pattern here holds
_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_SECRET_NAME: Final = re.compile(r"(?:^|[._-])(?:password|passwd|secret|token|apikey)$", re.IGNORECASE)


def leaks(boot: Boot) -> Iterator[Leak]:
    """What a boot's published files and arguments seem to give away."""
    for argument in boot.kernel_arguments:
        name, _, value = argument.partition("=")
        if value and _SECRET_NAME.search(name):
            yield Leak("a password or token", f"kernel argument {name}", Severity.WARNING)
    texts = dict(boot.user_data.files) if boot.user_data is not None else {}
    for name, text in {**texts, **boot.entries}.items():
        if not any(word in text for word in _HINTS):  # most texts: a plain search costs next to nothing
            continue
        if found := _PRIVATE_KEY.search(text):
            yield Leak("a private key", f"{name}, line {_line(text, found)}", Severity.ERROR)
        for pattern in _PASSWORDS:
            if found := pattern.search(text):
                yield Leak("a password", f"{name}, line {_line(text, found)}", Severity.WARNING)


def _line(text: str, found: re.Match[str]) -> int:
    start = found.start() + len(found[0]) - len(found[0].lstrip())
    return text.count("\n", 0, start) + 1
