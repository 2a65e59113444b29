"""`gitboot ledger`: show, copy and reclaim the ledger."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import click

from gitboot.cli.help_pages import Group
from gitboot.cli.main import Exit
from gitboot.cli.options import VARIABLES, state_option
from gitboot.controller.instance.state_directory import LEDGER, has_ledger, lock, make_private, no_instance_error
from gitboot.errors import UsageError
from gitboot.ledger.location import PostgresAddress
from gitboot.ledger.move_ledger import move_ledger, plan_reclaim, reclaim
from gitboot.ledger.open_ledger import summarize_ledger
from gitboot.text import format_count


@click.group(context_settings=VARIABLES, cls=Group, example="gitboot ledger show --state /var/lib/gitboot")
def command() -> None:
    """Show, copy or reclaim the instance's ledger."""


@command.command(
    context_settings=VARIABLES,
    example="gitboot ledger show --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "gitboot printed the facts",
        Exit.FAULT: "gitboot cannot read the ledger",
        Exit.USAGE: "no instance has run with this state directory",
    },
)
@state_option
def show(state: Path) -> None:
    """Show the location, identity and size of the ledger."""
    if not has_ledger(state):
        raise no_instance_error(state)
    found = summarize_ledger(state / LEDGER)
    rows = [format_count(number, "row") + f" in {table}" for table, number in found.rows.items() if number]
    click.echo(f"place     {found.name}")
    if found.moved_to is not None:
        click.echo(f"moved to  {found.moved_to}; gitboot does not use this place any more")
    click.echo(f"identity  {found.identity}")
    click.echo(f"changes   {found.changes}")
    if found.lease is not None:
        held = f"valid until {found.lease.until}, held by" if found.lease.is_current else "free, last held by"
        click.echo(f"lease     {found.lease.number}, {held} {found.lease.place}")
    click.echo(f"content   {', '.join(rows) or 'no rows'}")


@command.command(
    context_settings=VARIABLES,
    example=("gitboot ledger copy --to postgresql://gitboot@db.example.net/gitboot \\\n    --state /var/lib/gitboot"),
    exit_codes={
        Exit.FINE: "STATE uses the new location",
        Exit.FAULT: "gitboot cannot read or write a ledger",
        Exit.USAGE: "the instance runs, the new location has data, or an option is wrong",
    },
)
@state_option
@click.option(
    "--to",
    required=True,
    metavar="URL|file",
    help="The new location: postgresql://USER@HOST/DATABASE, or `file` for STATE/ledger.sqlite.",
)
@click.option(
    "--ledger-password",
    "password",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file with the password of the database. Default: libpq uses its own methods, for example a "
    "client certificate.",
)
def copy(state: Path, to: str, password: Path | None) -> None:
    """Copy the ledger to another location, and use it there.

    Stop the instance first. The new location must be empty. gitboot copies the ledger and compares both copies. It
    renames an old ledger file, and leaves an old database where it is. After that, gitboot does not use the old
    location. Each access to it fails with an error that names the new location.

    If several hosts share the ledger, run the same command on each of them, to record the new location in its STATE. If
    a copy was interrupted, the same command completes it.
    """
    if to == "file" and password is not None:
        raise UsageError("--ledger-password is only for a PostgreSQL database: remove it, or name a database with --to")
    address = None if to == "file" else PostgresAddress.parse(to, password)
    if not has_ledger(state):
        raise no_instance_error(state)
    with ExitStack() as stack:
        stack.enter_context(make_private(state))
        stack.enter_context(lock(state))
        done = move_ledger(state / LEDGER, address)
    total = sum(done.rows.values())
    if done.was_copied:
        click.echo(
            f"An earlier command copied the ledger: {done.old} -> {done.new}. This state directory uses the copy now."
        )
    else:
        click.echo(f"Copied and compared {format_count(total, 'row')}: {done.old} -> {done.new}")
        click.echo("If other hosts use this ledger, run the same `gitboot ledger copy` command on each of them.")
    if done.old_file is not None:
        click.echo(f"The old ledger is now {done.old_file}. Delete it after you have backed up the new ledger.")


@command.command(
    "reclaim",
    context_settings=VARIABLES,
    example=("gitboot ledger reclaim /var/lib/gitboot/ledger.sqlite.copied-1 \\\n    --state /var/lib/gitboot"),
    exit_codes={
        Exit.FINE: "STATE uses the old location",
        Exit.FAULT: "gitboot cannot read or write a ledger",
        Exit.USAGE: "the ledger is in use, or an option is wrong",
        Exit.INTERRUPTED: "you did not confirm",
    },
)
@click.argument("place", metavar="URL|FILE")
@state_option
@click.option(
    "--ledger-password",
    "password",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file with the password of the database. Default: libpq uses its own methods, for example a "
    "client certificate.",
)
@click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation. Without a terminal, the command needs this option."
)
def reclaim_ledger(place: str, state: Path, password: Path | None, yes: bool) -> None:
    """Use an earlier location of the ledger again.

    Do this if the new location of a copied ledger is permanently lost. URL is the old database, and FILE is the old
    file, such as STATE/ledger.sqlite.copied-1. Stop the instances on all hosts first.

    The old ledger has no record of later installations and overrides, so every server is unknown until you run
    `gitboot records begin`. The command asks for confirmation, and fails if it finds that the ledger is in use
    elsewhere. If several hosts share the database, run the same command on each of them.
    """
    from gitboot.cli.instance_client import confirm_or_abort

    where = PostgresAddress.parse(place, password) if "://" in place else Path(place)
    if isinstance(where, Path) and password is not None:
        raise UsageError(
            "--ledger-password is only for a PostgreSQL database: remove it, or name the URL of the database"
        )
    if not state.is_dir():
        raise UsageError(f"{state} is not a directory: name the state directory of `gitboot run`")
    with ExitStack() as stack:
        stack.enter_context(make_private(state))
        stack.enter_context(lock(state))
        found = plan_reclaim(state / LEDGER, where)
        if found.moved_to is not None:
            changes = format_count(found.changes, "change")
            click.echo(f"gitboot moved the ledger from {found.name} to {found.moved_to} after {changes}.")
            click.echo("The old place has no record of later overrides and installations.")
            click.echo("If an instance still uses the new place, two instances would act for the same servers.")
            confirm_or_abort(yes=yes)
        reclaim(state / LEDGER, where)
    if found.moved_to is None:
        click.echo(f"The ledger is already at {found.name}. This state directory uses it now.")
        return
    click.echo(
        f"The ledger is at {found.name} again, and every server is unknown. Start the instance, then run "
        "`gitboot records begin`."
    )
    click.echo(
        "If other hosts use this ledger, run the same command on each of them, and correct --ledger of their instances."
    )
