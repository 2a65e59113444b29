"""What endpoints leave in the spool besides fetches: which boots they did not give, and why."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from gitboot.canonical import canonical
from gitboot.files import write_whole
from gitboot.observe.observation import instant_of
from gitboot.observe.refused import KEPT, NotGiven, WhyNot

SUFFIX: Final = ".report"


def write_report(folder: Path, name: str, refused: Iterable[NotGiven]) -> None:
    """Leave the report of one endpoint in a spool; a disk that refuses it loses only that."""
    with suppress(OSError):
        write_whole(folder / f"{name}{SUFFIX}", canonical([each.facts() for each in refused]) + b"\n", mode=0o640)


def remove_report(folder: Path, name: str) -> None:
    """Take it away when the endpoint ends."""
    with suppress(OSError):
        (folder / f"{name}{SUFFIX}").unlink()


def read_reports(folder: Path, at: datetime) -> tuple[NotGiven, ...]:
    """What the endpoints that write to a spool have not given within the last hour, sorted."""
    found = [each for path in folder.glob(f"*{SUFFIX}") for each in _read(path) if each.at > at - KEPT]
    return tuple(sorted(found, key=lambda each: (each.reason, each.server, each.at)))


def _read(path: Path) -> Iterator[NotGiven]:
    with suppress(OSError, ValueError, RecursionError):
        for facts in _list(json.loads(path.read_bytes())):
            match facts:
                case {
                    "reason": str(reason),
                    "server": str(server),
                    "words": str(words),
                    "client": str(client),
                    "at": str(at),
                    "times": int(times),
                }:
                    for text in (server, words, client):
                        text.encode()
                    yield NotGiven(
                        reason=WhyNot(reason),
                        server=server,
                        words=words,
                        client=client,
                        at=instant_of(at),
                        times=times,
                    )


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
