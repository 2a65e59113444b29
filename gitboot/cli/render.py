"""`gitboot render`: the whole tree of files into a directory."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from gitboot.cli.bounded import bounded
from gitboot.cli.inputs import at_option, fleet_argument, this_second
from gitboot.cli.planning import held_back, planned_fleet, records_option, tell_held_back


@click.command()
@fleet_argument
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="Where to; made where it does not exist, else empty or rendered into before.",
)
@at_option
@records_option
@bounded
def command(path: Path, rev: str | None, out: Path, at: datetime | None, records: str | None) -> None:
    """Write every boot file of the fleet at PATH into a directory, as `gitboot run` would publish it.

    OUT/boot is for machines: any HTTP server or CDN can serve it. OUT/ops is for operators. Tokens in paths are those
    that anybody computes: an instance publishes others, and hears no installer that reports by these.
    """
    from gitboot.publish.directory import Directory
    from gitboot.render.formats import shared_files

    fleet = planned_fleet(path, rev, at or this_second(), records)
    states = fleet.states()
    target = Directory.open(out, ledger="render")
    try:
        published = target.publish(
            {name: state.files for name, state in states.items()},
            shared_files(fleet.decisions),
            complete=True,
            commit=fleet.decisions.revision,
            at=fleet.at,
            page=fleet.page(states),
        )
    finally:
        target.close(and_forget_lock=True)
    click.echo(
        f"{out}: {len(published.written)} files written, {len(published.withdrawn)} withdrawn, "
        f"{published.unchanged} unchanged",
        err=True,
    )
    tell_held_back(held_back({name: state.plan for name, state in states.items()}))
