"""What endpoints leave in the spool besides fetches: which boots they did not give, and which proxies are unnamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple

from gitboot.fetchlog.log_entries import KEPT, NotGiven, UnnamedProxy, WhyNot, instant_of
from gitboot.files import write_whole
from gitboot.jsonio import canonical

SUFFIX: Final = ".report"


class Report(NamedTuple):
    """What endpoints met within the last hour, sorted."""

    refused: tuple[NotGiven, ...] = ()
    proxies: tuple[UnnamedProxy, ...] = ()


def write_report(folder: Path, name: str, report: Report) -> None:
    """Leave the report of one endpoint in a spool; a disk that refuses it loses only that."""
    content = {key: [each.facts() for each in values] for key, values in report._asdict().items()}
    with suppress(OSError):
        write_whole(folder / f"{name}{SUFFIX}", canonical(content) + b"\n", mode=0o640)


def remove_report(folder: Path, name: str) -> None:
    """Take it away when the endpoint ends."""
    with suppress(OSError):
        (folder / f"{name}{SUFFIX}").unlink()


def read_reports(folder: Path, at: datetime) -> Report:
    """Return what the endpoints that write to a spool have left there."""
    found = [each for path in folder.glob(f"*{SUFFIX}") for each in _read(path) if each.at > at - KEPT]
    refused = [each for each in found if isinstance(each, NotGiven)]
    proxies = {each.address: each for each in found if isinstance(each, UnnamedProxy)}
    return Report(
        tuple(sorted(refused, key=lambda each: (each.reason, each.server, each.at))), tuple(sorted(proxies.values()))
    )


def _read(path: Path) -> Iterator[NotGiven | UnnamedProxy]:
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_bytes())
        lists = content if isinstance(content, dict) else {"refused": content}  # 2fefe59 writes a list
        for facts in _list(lists.get("proxies")):
            match facts:
                case {"address": str(address), "at": str(at)}:
                    yield UnnamedProxy(address=str(ip_address(address)), at=instant_of(at))
        for facts in _list(lists.get("refused")):
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
