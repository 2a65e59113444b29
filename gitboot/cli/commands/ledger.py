"""`gitboot ledger`: where the ledger is, and how it gets from there to somewhere else."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from gitboot.cli.options import VARIABLES, state_option
from gitboot.controller.instance.state_directory import LEDGER, has_ledger, lock, make_private, no_instance_error
from gitboot.errors import UsageError
from gitboot.ledger.location import PostgresAddress
from gitboot.ledger.move_ledger import move_ledger, plan_reclaim, reclaim
from gitboot.ledger.open_ledger import summarize_ledger
from gitboot.text import format_count


@click.group(context_settings=VARIABLES)
def command() -> None:
    """Show, copy or reclaim the instance's ledger."""


@command.command(context_settings=VARIABLES)
@state_option
def show(state: Path) -> None:
    """Show where the ledger is, its identity, and its size."""
    if not has_ledger(state):
        raise no_instance_error(state)
    found = summarize_ledger(state / LEDGER)
    rows = [format_count(number, "row") + f" in {table}" for table, number in found.rows.items() if number]
    click.echo(f"place     {found.name}")
    if found.moved_to is not None:
        click.echo(f"left      for {found.moved_to}: it goes on there, and is not used here any more")
    click.echo(f"identity  {found.identity}")
    click.echo(f"changes   {found.changes}")
    if found.lease is not None:
        held = f"held until {found.lease.until} by" if found.lease.is_current else "free, last held by"
        click.echo(f"lease     {found.lease.number}, {held} {found.lease.place}")
    click.echo(f"holds     {', '.join(rows) or 'nothing'}")


@command.command(context_settings=VARIABLES)
@state_option
@click.option(
    "--to",
    required=True,
    metavar="URL|file",
    help="The database of a PostgreSQL (postgresql://USER@HOST/DATABASE), or `file` for STATE/ledger.sqlite.",
)
@click.option(
    "--ledger-password",
    "password",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file with the password of that PostgreSQL. Default: libpq's own ways, as a client certificate.",
)
def copy(state: Path, to: str, password: Path | None) -> None:
    """Copy the ledger to another place, and use it there.

    gitboot compares both.

    The instance must not run meanwhile, and nothing may have been written at the other place yet. The file that was
    the ledger is kept beside it, under another name; a database stays where it is. Neither is used again: whoever opens
    it is told the new place. On another host with the same ledger the same line names the new place to its STATE, too,
    and where a copy was killed before its end, it ends it.
    """
    if to == "file" and password is not None:
        raise UsageError("--ledger-password is for a PostgreSQL")
    address = None if to == "file" else PostgresAddress.parse(to, password)
    if not has_ledger(state):
        raise no_instance_error(state)
    with ExitStack() as stack:
        stack.enter_context(make_private(state))
        stack.enter_context(lock(state))
        done = move_ledger(state / LEDGER, address)
    total = sum(done.rows.values())
    if done.was_copied:
        click.echo(f"it was copied before: {done.old} -> {done.new}; this STATE names the new place now")
    else:
        click.echo(f"{format_count(total, 'row')} copied and compared: {done.old} -> {done.new}")
        click.echo("tell every other host's STATE so, which refuses the old place now: `gitboot ledger copy`, as here")
    if done.old_file is not None:
        click.echo(f"what was the ledger is kept as {done.old_file}; delete it when the new one is backed up")


@command.command("reclaim", context_settings=VARIABLES)
@click.argument("place", metavar="URL|FILE")
@state_option
@click.option(
    "--ledger-password",
    "password",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file with the password of that PostgreSQL. Default: libpq's own ways, as a client certificate.",
)
@click.option("--yes", is_flag=True, help="Do not ask; needed where there is no terminal.")
def reclaim_ledger(place: str, state: Path, password: Path | None, yes: bool) -> None:
    """Use a place again that the ledger was copied from.

    Do this if the place that it was copied to is lost for good. The place to use again is a database, or the file that
    was kept (STATE/ledger.sqlite.copied-1). It knows nothing of what was set and installed since: everything is unknown
    until `gitboot records begin` says what is installed. The instances of all hosts must have ended. It asks, and
    refuses where it sees that the ledger goes on elsewhere. On another host with the same database the same line names
    that to its STATE.
    """
    from gitboot.cli.instance_client import confirm_or_abort

    where = PostgresAddress.parse(place, password) if "://" in place else Path(place)
    if isinstance(where, Path) and password is not None:
        raise UsageError("--ledger-password is for a PostgreSQL")
    if not state.is_dir():
        raise UsageError(f"{state} is no directory")
    with ExitStack() as stack:
        stack.enter_context(make_private(state))
        stack.enter_context(lock(state))
        found = plan_reclaim(state / LEDGER, where)
        if found.moved_to is not None:
            click.echo(f"{found.name} was left for {found.moved_to} after {format_count(found.changes, 'change')}")
            click.echo("what was set and installed since is not known there; if the ledger goes on, two would act")
            confirm_or_abort(yes=yes)
        reclaim(state / LEDGER, where)
    if found.moved_to is None:
        click.echo(f"{found.name} is used already; this STATE names it now")
        return
    click.echo(
        f"{found.name} is the ledger again; everything is unknown: `gitboot records begin`, once an instance runs"
    )
    click.echo("name it to every other host's STATE by the same line, and in --ledger of what starts them")
