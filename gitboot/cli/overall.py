"""Several instances at a glance, each read where it is: `gitboot status --all`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from gitboot.cli.exit import Exit
from gitboot.cli.inputs import OutputOption, document, now
from gitboot.cli.table import table, wrapped
from gitboot.hub.members import read_members
from gitboot.hub.overview import Freshness, overview
from gitboot.hub.watching import look_at_all
from gitboot.phrases import count

_MOST_CONDITIONS: Final = 5
_TONES: Final = {Freshness.CURRENT: "green"}
_HEADER: Final = ("SITE", "INSTANCE", "STATE", "COMMIT", "BEHIND", "SERVERS", "INSTALLS", "LAST SEEN")


def show_all(file: Path, outputs: Iterable[OutputOption]) -> Exit:
    """Show the instances that a file names, and say whether all of them could be read."""
    items = overview(look_at_all(read_members(file), now), now())
    for output in outputs:
        output.write(document(items=items) if output.format == "json" else _as_text(items))
    return Exit.FINE if all(each["state"] in (Freshness.CURRENT, Freshness.SILENT) for each in items) else Exit.PARTIAL


def _as_text(items: list[dict[str, Any]]) -> str:
    rows = [
        (
            each["site"],
            each["instance"],
            click.style(each["state"], fg=_TONES.get(each["state"], "red")),
            (each["commit"] or "-")[:12],
            "?" if each["behind"] is None else str(each["behind"]),
            str(each["servers"]) if each["commit"] else "-",
            _installs(each["installs"]),
            _to_the_second(each["said"] or each["seen"]),
        )
        for each in items
    ]
    below = ["\n".join(wrapped(line, "    ") for line in _what_is_wrong(each)) for each in items]
    of_sites = [
        [each["servers"] for each in items if each["site"] == site] for site in {each["site"] for each in items}
    ]
    servers = sum(map(max, of_sites))  # instances of one site, such as a standby or a copy, have the same ones
    return "\n".join(
        [
            table(_HEADER, rows, below=below),
            "",
            f"{count(len(items), 'instance')}, {count(servers, 'server')}",
        ]
    )


def _what_is_wrong(item: Mapping[str, Any]) -> Iterator[str]:
    if item["failure"]:
        yield f"unreachable at {_to_the_second(item['failingSince'])}: {item['failure']}"
    elif item["state"] == Freshness.SILENT:
        yield f"it has said nothing since {_to_the_second(item['said'])}: look whether it runs"
    if item["held"]:
        yield f"a commit is held by {', '.join(item['held'])}"
    if item["problems"]:
        yield f"the newest commit has {count(item['problems'], 'problem')}"
    for each in item["conditions"][:_MOST_CONDITIONS]:
        yield f"{each['type']}, {each['reason']}: {each['message']}"
    if (left := len(item["conditions"]) - _MOST_CONDITIONS) > 0:
        yield f"and {left} more conditions do not hold"


def _installs(installs: Mapping[str, int]) -> str:
    now, later = installs["now"], installs["later"]
    return ", ".join([*([f"{now} now"] if now else []), *([f"{later} later"] if later else [])]) or "-"


def _to_the_second(instant: str | None) -> str:
    return f"{instant[:19]}Z" if instant else "-"
