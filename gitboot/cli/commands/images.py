"""`gitboot images`: show each image and stream, the servers that boot it, and the next steps of rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from gitboot.cli.evaluated_fleet import (
    plan_fleet,
    print_unknown_instance,
    records_option,
)
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    OutputOption,
    at_option,
    current_second,
    fleet_argument,
    output_option,
    shown_state_option,
    write_outputs,
)
from gitboot.cli.terminal import format_table
from gitboot.jsonio import format_document, to_json_value
from gitboot.model.boot_image import Follow, Provenance, RequiredProvenance
from gitboot.resolve.explanation import describe_origin
from gitboot.standard_streams import style
from gitboot.text import format_count, format_names

if TYPE_CHECKING:
    from gitboot.review.rollout_progress import ImageReport, Joining, StreamUse

_PERCENTAGES: Final = (10, 25, 50, 75, 100)  # common percentages for rollout steps
_MAX_NAMES: Final = 3  # maximum number of servers in a cell
_MAX_REASON_LENGTH: Final = 34  # characters


@click.command(
    cls=Command,
    example="gitboot images fleet --records /srv/gitboot/ops/records",
    exit_codes={
        Exit.FINE: "gitboot printed the images",
        Exit.INVALID: "the fleet has errors",
    },
)
@fleet_argument
@at_option
@records_option
@shown_state_option
@output_option("text", "json")
@evaluator_command
def command(
    path: Path,
    rev: str | None,
    at: datetime | None,
    records: str | None,
    state: Path | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Show each image and the servers that boot it.

    PATH is the fleet. With --state, gitboot shows the commit that an instance has accepted, with the records of the
    instance.

    For each image and stream, gitboot counts the servers that boot it, and the servers that were installed with it. It
    then lists pins and holds with their reasons and deadlines, servers below the minimum version of their stream, and
    the servers that the next steps of a rollout reach. Deadlines and windows depend on --at.

    If images state their provenance, gitboot also lists the claims and the hosts of the files. `gitboot artifacts
    signatures` verifies the claims. For each stream, gitboot lists the source that the stream follows, and whether
    the stream requires signed images.
    """
    from gitboot.review.rollout_progress import report_images

    fleet = plan_fleet(path, rev, at or current_second(), records, state)
    known_records = fleet.records if fleet.knows_records else None
    found = report_images(fleet.repository, fleet.decisions, known_records, fleet.at)
    write_outputs(
        outputs,
        json=partial(format_document, **to_json_value(found), revision=fleet.decisions.revision),
        text=partial("\n\n".join, list(_format_tables(found))),
    )
    print_unknown_instance(records, state)


def _format_tables(found: ImageReport) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        (
            each.name,
            each.version,
            str(each.decided),
            "?" if each.provisioned is None else str(each.provisioned),
            str(each.maintenances),
            ", ".join(each.streams) or "-",
        )
        for each in found.items
    ]
    yield format_table(("IMAGE", "VERSION", "PLANNED", "INSTALLED", "MAINTENANCE", "STREAMS"), rows)
    if found.foreign:
        yield format_table(
            ("VERSION BY ANOTHER TOOL", "INSTALLED"), [(each, str(n)) for each, n in found.foreign.items()]
        )
    if any(provenance is not None for each in found.items for provenance in each.files.values()):
        rows = [(each.name, _count_origins(each.files.values()), ", ".join(each.hosts)) for each in found.items]
        yield format_table(("IMAGE", "CLAIMED PROVENANCE", "FILES FROM"), rows)
    if found.streams:
        yield format_table(("STREAM", "SERVERS", "CURRENT", "ROLLOUT"), map(_format_stream, found.streams))
    rows = [
        (each.name, _format_follow(each.follow) if each.follow is not None else "-", each.require_provenance)
        for each in found.streams
        if each.follow is not None or each.require_provenance is RequiredProvenance.SIGNED
    ]
    if rows:
        yield format_table(("STREAM", "FOLLOWS", "REQUIRED PROVENANCE"), rows)
    rows = [(str(each.document), each.image, each.stream) for each in found.uncovered]
    if rows:
        yield format_table(("BOOTS WITHOUT A STREAM", "IMAGE", "STREAM THAT REQUIRES SIGNED IMAGES"), rows)
    rows = [(stream.name, *row) for stream in found.streams for row in _format_next_servers(stream.joining)]
    if rows:
        yield format_table(("ROLLOUT", "PERCENT", "ADDED", "SERVERS"), rows)
    rows = [
        (
            each.what,
            each.image,
            style(f"{each.until:%Y-%m-%d} overdue", fg="red")
            if each.until and each.overdue
            else f"{each.until:%Y-%m-%d}"
            if each.until
            else "-",
            format_names(each.servers, _MAX_NAMES) or "none",
            each.reason if len(each.reason) <= _MAX_REASON_LENGTH else f"{each.reason[: _MAX_REASON_LENGTH - 1]}…",
        )
        for each in found.behind
    ]
    if rows:
        yield format_table(("PIN OR HOLD", "IMAGE", "DEADLINE", "SERVERS", "REASON"), rows)
    rows = [(each.server, each.image, each.version, each.minimum_version, each.stream) for each in found.too_old]
    if rows:
        yield format_table(("SERVER", "IMAGE", "VERSION", "MINIMUM VERSION", "STREAM"), rows)


def _count_origins(files: Iterable[Provenance | None]) -> str:
    """Return what an image claims about the digests of its files, the weakest claim first, each with its files."""
    counts = Counter(map(describe_origin, files))
    texts = sorted(counts, key=lambda text: (text.startswith("signed"), text != "not stated", text))
    return ", ".join(text if len(counts) == 1 else f"{text}: {format_count(counts[text], 'file')}" for text in texts)


def _format_follow(follow: Follow) -> str:
    """Return the source that a stream follows, and the rules for its releases."""
    parts = [follow.source, *([f"channel {follow.channel}"] if follow.channel is not None else [])]
    parts += [f"from {follow.minimum_version}"] if follow.minimum_version is not None else []
    parts += [f"below {follow.below_version}"] if follow.below_version is not None else []
    parts += [f"after {follow.minimum_age}"] if follow.minimum_age != "0s" else []
    return ", ".join((*parts, *follow.architectures, f"begins at {follow.percent} %"))


def _format_stream(stream: StreamUse) -> tuple[str, ...]:
    current = f"{stream.current} ({stream.images.get(stream.current, 0)})"
    rollout = "-"
    if stream.rollout is not None:
        rollout = f"{stream.rollout} at {stream.percent} % ({stream.images.get(stream.rollout, 0)})"
    return stream.name, str(sum(stream.images.values())), current, rollout


def _format_next_servers(joining: Sequence[Joining]) -> Iterator[tuple[str, str, str]]:
    if not joining:
        return
    nearest = joining[0].percent
    for percent in (nearest, *(step for step in _PERCENTAGES if step > nearest)):
        reached = [server for each in joining if each.percent <= percent for server in each.servers]
        yield f"{percent} %", str(len(reached)), format_names(reached, _MAX_NAMES) or "none"
