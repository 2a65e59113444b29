"""The report of an import: what was kept, guessed and lost of each machine, and what a person has to supply."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gitboot.importers.fleet_files import PENDING, Imported, ImportedFleet
from gitboot.migration.estate import ImportFate, ImportRemark
from gitboot.text import count, printable


def summary(fleet: ImportedFleet) -> str:
    """How much there is, and how much of it waits for a person."""
    parts = []
    for kind, noun in (("Server", "server"), ("BootProfile", "boot")):
        found = [item for item in fleet.items if item.kind == kind]
        waiting = sum(item.pending for item in found)
        parts.append(count(len(found), noun) + (f" ({waiting:,} pending)" if waiting else ""))
    return ", ".join(parts)


def report(system: str, fleet: ImportedFleet, left: Collection[str] = ()) -> str:
    """import-report.md: the same source gives the same report; ``left`` are files that people have changed."""
    return "\n".join(_lines(system, fleet, left)) + "\n"


def _lines(system: str, fleet: ImportedFleet, left: Collection[str]) -> Iterator[str]:
    yield from (f"# Imported from {system}", "", f"{summary(fleet)}.", "")
    yield "Every server is Parked and has no `provision`: nothing here installs, and gitboot keeps off their BMCs."
    yield f"What lacks something lies below `{PENDING}/`, which the fleet ignores: supply it and import again, or"
    yield "complete the document and move it out."
    if left:
        yield from ("", "## Left as people have changed them", "", *(f"- `{path}`" for path in sorted(left)))
    if fleet.remarks:
        yield from ("", "## The source as a whole", "", *map(_line, fleet.remarks))
    for kind, title in (("Server", "Servers"), ("BootProfile", "What they boot")):
        found = [item for item in fleet.items if item.kind == kind]
        if found:
            yield from ("", f"## {title}")
        for item in found:
            yield from _item(item)


def _item(item: Imported) -> Iterator[str]:
    yield from ("", f"### {item.name}{' (pending)' if item.pending else ''}", "")
    for fate in ImportFate:
        yield from (_line(each) for each in item.remarks if each.fate is fate)


def _line(remark: ImportRemark) -> str:
    return f"- **{remark.fate}**: {printable(remark.text)}"
