"""`gitboot timeline`: what a server boots when, without another commit."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import click

from gitboot.cli.bounded import bounded
from gitboot.cli.inputs import InstantType, OutputOption, at_option, document, fleet_options, output_option, this_second
from gitboot.cli.planning import planned_fleet, records_option
from gitboot.errors import UsageError


@click.command()
@click.argument("server")
@fleet_options
@at_option
@click.option("--until", type=InstantType(), metavar="INSTANT", help="How far to look. Default: a year after --at.")
@records_option
@output_option("text", "json")
@bounded
def command(
    server: str,
    path: Path,
    rev: str | None,
    at: datetime | None,
    until: datetime | None,
    records: str | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Show what SERVER boots from now on: every change that needs no commit and no observation."""
    from gitboot.cli.table import source, table
    from gitboot.model.scalars import format_instant
    from gitboot.resolve import plan, transition

    fleet = planned_fleet(path, rev, at or this_second(), records)
    decision = fleet.decision(server)
    record = fleet.records.get(decision.uuid)
    items = []
    instant: datetime | None = fleet.at
    until = until or fleet.at + timedelta(days=365)
    if until < fleet.at:
        raise UsageError(
            f"--until {format_instant(until)} is before {format_instant(fleet.at)}, where it begins: see --at"
        )
    while instant is not None and instant <= until:
        found = plan(decision, instant, record)
        items.append(
            {
                "from": format_instant(instant),
                "phase": found.phase if found else None,
                "image": found.boot.image if found and found.boot else None,
                "maintenance": found.maintenance if found else None,
                "policy": found.policy if found else None,
                "why": found.cause if found else "no policy selects the server, and no maintenance is active",
            }
        )
        instant = transition(decision, instant, record)
    for output in outputs:
        if output.format == "json":
            output.write(document(server=server, items=items))
            continue
        rows = [
            (
                str(item["from"]),
                str(item["phase"] or "no plan"),
                str(item["image"] or ("local disk" if item["phase"] else "-")),
                source(item),
                str(item["why"]),
            )
            for item in items
        ]
        output.write(table(("FROM", "PHASE", "BOOTS", "BY", "WHY"), rows))
