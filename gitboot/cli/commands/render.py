"""`gitboot render`: the whole tree of files into a directory."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

import click

from gitboot.cli.evaluator_process import evaluator_command
from gitboot.cli.options import at_option, fleet_argument, this_second
from gitboot.cli.planning import held_back, planned_fleet, records_option, tell_held_back
from gitboot.errors import UsageError
from gitboot.files import check_output_folder
from gitboot.text import some


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
@evaluator_command
def render_command(path: Path, rev: str | None, out: Path, at: datetime | None, records: str | None) -> None:
    """Write every boot file of the fleet at PATH into a directory, as `gitboot run` would publish it.

    OUT/boot is for machines: any HTTP server or CDN can serve it. OUT/ops is for operators. Tokens in paths are those
    that anybody computes: an instance publishes others, and hears no installer that reports by these.
    """
    from gitboot.publish.publisher import Directory
    from gitboot.render.formats import shared_files

    _check_own(out, path)
    fleet = planned_fleet(path, rev, at or this_second(), records)
    states = fleet.states()
    check_output_folder(out)
    target = Directory.open(out, ledger="render")
    try:
        published = target.publish(
            {name: state.files for name, state in states.items()},
            shared_files(fleet.decisions, fleet.repository.fleet.spec.provisioning.monitors),
            complete=True,
            commit=fleet.decisions.revision,
            at=fleet.at,
            parts=fleet.page(states),
        )
        target.update_list(None, fleet.at)
    finally:
        target.close(and_forget_lock=True)
    click.echo(
        f"{out}: {published.new} files written, {len(published.withdrawn)} withdrawn, {published.unchanged} unchanged",
        err=True,
    )
    tell_held_back(held_back({name: state.plan for name, state in states.items()}))


def _check_own(out: Path, fleet: Path) -> None:
    """Raise `UsageError` where files of somebody else lie: a fleet's, say, in which nobody finds the tree again."""
    from gitboot.publish.manifest import MANIFEST

    if not out.is_dir():
        return
    is_fleet = (out / ".git").exists() or out.samefile(fleet)
    others = sorted({each.name for each in out.iterdir() if not each.name.startswith(".")} - _TREE)
    if is_fleet or (others and not (out / MANIFEST).exists()):
        what = "is a fleet's work tree" if is_fleet else f"holds what is not gitboot's: {some(others, 3)}"
        raise UsageError(f"{out} {what}; give --out a directory that is new, empty, or was rendered into before")


_TREE: Final = frozenset({"boot", "ops"})
