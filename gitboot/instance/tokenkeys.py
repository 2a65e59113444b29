"""The file in STATE with the keys by which tokens are published: made at the first start, read at each."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from gitboot.controller.instance import state_directory as state
from gitboot.controller.instance.state_directory import mode_in
from gitboot.errors import UsageError
from gitboot.files import write_whole
from gitboot.jsonio import format_instant
from gitboot.render.token_keys import EarlierKey, TokenKeys

HEARD: Final = timedelta(hours=24)  # how long what was told tokens by an earlier key is
_BYTES: Final = 32
_NONE: Final = "none"
_WAYS: Final = "restore the file, or remove it: installers that are at work now are not heard then"
_LINE: Final = re.compile(rf"(\S+) ({_NONE}|[0-9a-f]{{{2 * _BYTES}}})")


class _Keyed(NamedTuple):
    """Since when tokens are published by which key; None: as anybody knows them."""

    since: datetime
    key: bytes | None

    def __str__(self) -> str:
        return f"{format_instant(self.since)} {self.key.hex() if self.key is not None else _NONE}\n"


def token_keys(directory: Path, at: datetime, *, follows_none: bool) -> TokenKeys:
    """The keys of the instance on ``directory``, whose newest is the last line of a file; one is made if there is none.

    ``follows_none``: tokens were published without a key until ``at``. Raises `UsageError` where the file is not what
    gitboot has written there.
    """
    path = directory / state.TOKEN_KEYS
    try:
        lines = _read(path)
        if lines is None:
            key = _Keyed(at, secrets.token_bytes(_BYTES))
            lines = [_Keyed(at, None), key] if follows_none else [key]
            write_whole(path, "".join(map(str, lines)).encode(), mode=mode_in(directory))
    except OSError as error:
        raise UsageError(f"{path}: the keys of tokens cannot be read or made: {error.strerror}") from error
    return TokenKeys(
        lines[-1].key,
        tuple(EarlierKey(old.key, new.since, new.since + HEARD) for old, new in pairwise(lines)),
    )


def lines_of(directory: Path) -> tuple[str, ...]:
    """The lines of that file, as another host can have them."""
    return tuple((directory / state.TOKEN_KEYS).read_text("ascii").splitlines())


def restored(directory: Path, lines: Sequence[str]) -> None:
    """Have the file hold these lines."""
    path, content = directory / state.TOKEN_KEYS, "".join(f"{line}\n" for line in lines).encode()
    if not path.exists() or path.read_bytes() != content:
        write_whole(path, content, mode=mode_in(directory))


def _read(path: Path) -> list[_Keyed] | None:
    try:
        text = path.read_text("ascii", errors="replace")
    except FileNotFoundError:
        return None
    lines = [_parsed(path, number, line) for number, line in enumerate(text.splitlines(), 1)]
    if not lines or lines[-1].key is None:
        raise UsageError(
            f"{path} ends without a key; restore it, or remove it: what is being installed is not heard then"
        )
    return lines


def _parsed(path: Path, number: int, line: str) -> _Keyed:
    """A line, which no message shows."""
    found = _LINE.fullmatch(line)
    try:
        if found is not None and (since := datetime.fromisoformat(found[1])).tzinfo is not None:
            return _Keyed(since.astimezone(UTC), bytes.fromhex(found[2]) if found[2] != _NONE else None)
    except (ValueError, OverflowError):
        pass
    raise UsageError(f"{path}:{number}: expected an instant and a key of {2 * _BYTES} hexadecimal digits; {_WAYS}")
