"""`gitboot images`: show each image, and the servers, streams and rollouts that use the image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import click

from gitboot.cli.evaluated_fleet import plan_fleet, print_missing_instance, records_option
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
from gitboot.cli.terminal import format_table, wrap_text
from gitboot.jsonio import format_document, to_json_value
from gitboot.model.boot_image import Follow, Provenance, RequiredProvenance
from gitboot.resolve.explanation import describe_origin
from gitboot.review.images import (
    ImageReport,
    JoiningServers,
    OptOutUse,
    StreamUse,
    report_images,
)
from gitboot.standard_streams import style
from gitboot.text import format_count, format_names


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
    fleet = plan_fleet(path, rev, at or current_second(), records, state)
    known_records = fleet.records if fleet.has_all_records else None
    report = report_images(fleet.repository, fleet.drop_ended_windows(), known_records, fleet.at)
    write_outputs(
        outputs,
        json=partial(format_document, **to_json_value(report), revision=fleet.decisions.revision),
        text=partial("\n\n".join, list(_format_tables(report))),
    )
    print_missing_instance(records, state)


def _format_tables(report: ImageReport) -> Iterator[str]:
    """Yield the table of images, and each other table that has rows."""
    image_rows = [
        (
            image.name,
            image.version,
            str(image.decided),
            "?" if image.provisioned is None else str(image.provisioned),
            str(image.maintenances),
            ", ".join(image.streams) or "-",
        )
        for image in report.items
    ]
    yield format_table(("IMAGE", "VERSION", "PLANNED", "INSTALLED", "MAINTENANCE", "STREAMS"), image_rows, optional=1)
    provenance_rows: list[tuple[str, ...]] = []
    if any(provenance is not None for image in report.items for provenance in image.files.values()):
        provenance_rows = [
            (image.name, _format_origins(image.files.values()), ", ".join(image.hosts)) for image in report.items
        ]
    more_tables: dict[tuple[str, ...], list[tuple[str, ...]]] = {  # the rows by header
        ("VERSION FROM ANOTHER TOOL", "INSTALLED"): [
            (version, str(number)) for version, number in report.foreign.items()
        ],
        ("IMAGE", "CLAIMED PROVENANCE", "FILES FROM"): provenance_rows,
        ("STREAM", "SERVERS", "CURRENT", "ROLLOUT"): list(map(_format_stream, report.streams)),
        ("STREAM", "FOLLOWS", "REQUIRED PROVENANCE"): [
            (stream.name, _format_follow(stream.follow), stream.require_provenance)
            for stream in report.streams
            if stream.follow is not None or stream.require_provenance is RequiredProvenance.SIGNED
        ],
        ("BOOTS WITHOUT A STREAM", "IMAGE", "STREAM THAT REQUIRES SIGNED IMAGES"): [
            (str(boot.document), boot.image, boot.stream) for boot in report.uncovered
        ],
        ("ROLLOUT", "PERCENT", "ADDED", "SERVERS"): [
            (stream.name, *row) for stream in report.streams for row in _format_next_servers(stream.joining)
        ],
        ("PIN OR HOLD", "IMAGE", "DEADLINE", "SERVERS"): list(map(_format_opt_out, report.behind)),
        ("SERVER", "IMAGE", "VERSION", "MINIMUM VERSION", "STREAM"): [
            (server.server, server.image, server.version, server.minimum_version, server.stream)
            for server in report.too_old
        ],
    }
    reasons = {"PIN OR HOLD": [wrap_text(opt_out.reason, "    ") for opt_out in report.behind]}
    for header, rows in more_tables.items():
        if rows:
            yield format_table(header, rows, below=reasons.get(header[0], ()))


def _format_origins(files: Iterable[Provenance | None]) -> str:
    """Return where the digests of an image's files come from.

    If the origins differ, add the number of files for each origin. The weakest origin comes first.
    """
    counts = Counter(map(describe_origin, files))
    texts = sorted(counts, key=lambda text: (text.startswith("signed"), text != "not stated", text))
    return ", ".join(text if len(counts) == 1 else f"{text}: {format_count(counts[text], 'file')}" for text in texts)


def _format_follow(follow: Follow | None) -> str:
    """Format the source that a stream follows, and the rules for choosing releases."""
    if follow is None:
        return "-"
    parts: list[str] = [follow.source]
    if follow.channel is not None:
        parts.append(f"channel {follow.channel}")
    if follow.minimum_version is not None:
        parts.append(f"from {follow.minimum_version}")
    if follow.below_version is not None:
        parts.append(f"below {follow.below_version}")
    if follow.minimum_age != "0s":
        parts.append(f"after {follow.minimum_age}")
    return ", ".join((*parts, *follow.architectures, f"begins at {follow.percent} %"))


def _format_stream(stream: StreamUse) -> tuple[str, ...]:
    current = f"{stream.current} ({stream.images.get(stream.current, 0)})"
    rollout = "-"
    if stream.rollout is not None:
        rollout = f"{stream.rollout} at {stream.percent} % ({stream.images.get(stream.rollout, 0)})"
    return stream.name, str(sum(stream.images.values())), current, rollout


_MAX_NAMES: Final = 3  # maximum number of servers in a cell


def _format_opt_out(opt_out: OptOutUse) -> tuple[str, ...]:
    deadline = f"{opt_out.until:%Y-%m-%d}" if opt_out.until is not None else "-"
    if opt_out.overdue:
        deadline = style(f"{deadline} overdue", fg="red")
    return opt_out.what, opt_out.image, deadline, format_names(opt_out.servers, _MAX_NAMES) or "none"


_MAX_STEPS: Final = 8  # rows for the percentages at which servers join, as in page.js


def _format_next_servers(joining: Sequence[JoiningServers]) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each of the next steps of a rollout, and one row for all later steps."""
    rows = [(f"{step.percent} %", step.servers) for step in joining[:_MAX_STEPS]]
    later_steps = joining[_MAX_STEPS:]
    if later_steps:
        last = f"–{later_steps[-1].percent}" if len(later_steps) > 1 else ""
        servers = tuple(server for step in later_steps for server in step.servers)
        rows.append((f"{later_steps[0].percent}{last} %", servers))
    for percent, servers in rows:
        yield percent, str(len(servers)), format_names(servers, _MAX_NAMES)
