"""`gitboot ledger`: show, copy and reclaim the ledger."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

import click

from gitboot.cli.main import Exit, Group
from gitboot.cli.options import VARIABLES, state_option
from gitboot.controller.instance.state_directory import LEDGER, lock, make_private, require_ledger
from gitboot.errors import LedgerError, UsageError
from gitboot.files import is_directory, is_file
from gitboot.ledger import instance_tables
from gitboot.ledger.leader_lease import Holder
from gitboot.ledger.open_ledger import (
    COPY,
    CopyNotes,
    checkpoint_log,
    copy_in_transaction,
    count_rows,
    end_lease,
    free_lease,
    record_move,
    set_ledger_aside,
    summarize_ledger,
)
from gitboot.ledger.postgresql_fetch_log import FETCHES
from gitboot.ledger.schema import LEFT, UNFINISHED, Database, build_moved_error
from gitboot.ledger.sqlite import ReadOnlySqlite, SqliteDatabase
from gitboot.ledger.store import (
    PostgresAddress,
    Store,
    get_address_file,
    get_mark_path,
    open_database,
    read_address,
    read_mark,
    write_address,
)
from gitboot.text import format_count


@click.group(context_settings=VARIABLES, cls=Group, example="gitboot ledger show --state /var/lib/gitboot")
def command() -> None:
    """Show, copy or reclaim the instance's ledger."""


@command.command(
    context_settings=VARIABLES,
    example="gitboot ledger show --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "gitboot printed information about the ledger",
        Exit.FAULT: "gitboot cannot read the ledger",
        Exit.USAGE: "no instance has run with this state directory",
    },
)
@state_option
def show(state: Path) -> None:
    """Show the location, identity and size of the ledger."""
    require_ledger(state)
    summary = summarize_ledger(state / LEDGER)
    click.echo(f"place     {summary.name}")
    if summary.moved_to is not None:
        click.echo(f"moved to  {summary.moved_to}; gitboot no longer uses this ledger")
    click.echo(f"identity  {summary.identity}")
    click.echo(f"changes   {summary.changes}")
    lease = summary.lease
    if lease is not None:
        holder = f"free, last held by {lease.place}"
        if lease.is_current:
            holder = f"held by {lease.place}, valid until {lease.until}"
        click.echo(f"lease     {lease.number}, {holder}")
    rows = [f"{format_count(number, 'row')} in {table}" for table, number in summary.rows.items() if number]
    click.echo(f"content   {', '.join(rows) or 'no rows'}")


_password_option = click.option(
    "--ledger-password",
    "password",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file with the database password. Default: libpq uses its own methods, for example a client certificate.",
)


@command.command(
    context_settings=VARIABLES,
    example=("gitboot ledger copy --to postgresql://gitboot@db.example.net/gitboot \\\n    --state /var/lib/gitboot"),
    exit_codes={
        Exit.FINE: "STATE uses the ledger at the new location",
        Exit.FAULT: "gitboot cannot read or write a ledger",
        Exit.USAGE: "the instance is running, the new location has data, or an option is wrong",
    },
)
@state_option
@click.option(
    "--to",
    required=True,
    metavar="URL|file",
    help="The new location: postgresql://USER@HOST/DATABASE, or `file` for STATE/ledger.sqlite.",
)
@_password_option
def copy(state: Path, to: str, password: Path | None) -> None:
    """Copy the ledger to another location, and use it there.

    Stop the instance first. The new location must be empty. gitboot copies the ledger and compares both copies. It
    renames an old ledger file, and keeps an old database. After that, gitboot does not use the old location. Each
    access to it fails with an error that names the new location.

    If several hosts share the ledger, run the same command on each of them, to record the new location in its STATE. If
    a copy was interrupted, the same command completes it.
    """
    if to == "file" and password is not None:
        raise UsageError("--ledger-password is only for a PostgreSQL database: remove it, or name a database with --to")
    address = None if to == "file" else PostgresAddress.parse(to, password)
    require_ledger(state)
    with ExitStack() as stack:
        stack.enter_context(make_private(state))
        stack.enter_context(lock(state))
        move = move_ledger(state / LEDGER, address)
    if move.was_copied:
        click.echo(
            f"An earlier command copied the ledger: {move.old} -> {move.new}. This state directory now uses the copy."
        )
    else:
        click.echo(f"Copied and compared {format_count(sum(move.rows.values()), 'row')}: {move.old} -> {move.new}")
        click.echo("If other hosts use this ledger, run the same `gitboot ledger copy` command on each of them.")
    if move.old_file is not None:
        click.echo(f"The old ledger is now {move.old_file}. Delete it after you have backed up the new ledger.")


@command.command(
    "reclaim",
    context_settings=VARIABLES,
    example=("gitboot ledger reclaim /var/lib/gitboot/ledger.sqlite.copied-1 \\\n    --state /var/lib/gitboot"),
    exit_codes={
        Exit.FINE: "STATE uses the ledger at the old location",
        Exit.FAULT: "gitboot cannot read or write a ledger",
        Exit.USAGE: "the ledger is in use, or an option is wrong",
        Exit.INTERRUPTED: "you pressed Ctrl-C, or answered no",
    },
)
@click.argument("place", metavar="URL|FILE")
@state_option
@_password_option
@click.option(
    "--yes", is_flag=True, help="Do not ask for confirmation. Without a terminal, the command needs this option."
)
def reclaim_ledger(place: str, state: Path, password: Path | None, yes: bool) -> None:
    """Use an earlier location of the ledger again.

    Do this if the new location of a copied ledger is permanently lost. URL is the old database, and FILE is the old
    file, such as STATE/ledger.sqlite.copied-1. Stop the instances on all hosts first.

    The old ledger has no record of later installations and overrides, so every server is unknown until you run `gitboot
    records begin`. The command asks for confirmation. If another location of the ledger is in use, the command fails.
    If several hosts share the database, run the same command on each of them.
    """
    from gitboot.cli.instance_client import confirm_or_abort

    location = PostgresAddress.parse(place, password) if "://" in place else Path(place)
    if isinstance(location, Path) and password is not None:
        raise UsageError("--ledger-password is only for a PostgreSQL database: remove it, or pass the database URL")
    if not is_directory(state):
        raise UsageError(f"{state} is not a directory: specify the state directory of `gitboot run`")
    with ExitStack() as stack:
        stack.enter_context(make_private(state))
        stack.enter_context(lock(state))
        plan = plan_reclaim(state / LEDGER, location)
        if plan.moved_to is not None:
            changes = format_count(plan.changes, "change")
            click.echo(f"gitboot moved the ledger from {plan.name} to {plan.moved_to} when it had {changes}.")
            click.echo("The old ledger does not contain any overrides or installations since the move.")
            click.echo("If an instance is still using the new ledger, two instances will manage the same servers.")
            confirm_or_abort(yes=yes)
        reclaim(state / LEDGER, location)
    if plan.moved_to is None:
        click.echo(f"The ledger is already at {plan.name}. This state directory now uses this ledger.")
        return
    click.echo(
        f"The ledger is at {plan.name} again, and every server is unknown. Start the instance, then run "
        "`gitboot records begin`."
    )
    click.echo(
        "If other hosts use this ledger, run the same command on each of them, and correct their instances' --ledger "
        "option."
    )


class MoveResult(NamedTuple):
    """The result of moving a ledger."""

    old: str  # names of the two locations, for people
    new: str
    rows: Mapping[str, int]  # number of rows by table
    old_file: Path | None  # the new path of the old file, if the ledger was a file
    was_copied: bool  # whether an earlier call copied the ledger, so that this call did only the remaining steps


def move_ledger(path: Path, address: PostgresAddress | None) -> MoveResult:
    """Move the ledger of ``path`` to a database, or back to the file ``path`` if ``address`` is None.

    From then on, gitboot uses the new location. The caller must hold the lock on the state directory. If an earlier
    call has already copied the ledger, only the remaining steps run. Raises `UsageError` if the new location is the
    current location or is not empty. Raises `HeldByAnother` if an instance on another host uses either location. Raises
    `LedgerLeft` if the ledger was already moved elsewhere. Raises `LedgerError` if the copy differs from the ledger.
    """
    if read_address(path) == address:
        raise UsageError("the ledger is already at the new location")
    with ExitStack() as stack:
        old = stack.enter_context(closing(open_database(path, open_moved=True)))
        notes = CopyNotes.read(old)
        if notes.moved_to is not None:
            if address is None and not path.exists():
                raise build_moved_error(old.name, notes.moved_to)
            new = stack.enter_context(closing(open_location(path, address)))
            new_notes = CopyNotes.read(new)
            if new_notes.copy != notes.copy or new_notes.moved_to is not None:
                raise build_moved_error(old.name, notes.moved_to)
            rows = count_rows(new)
        else:
            old.check_usable()
            holder = Holder.load(path.parent)
            old.take_lease(holder)
            _require_no_unread_fetches(old)
            if address is None:
                stack.enter_context(_guard_new_file(path, notes))
            new = stack.enter_context(closing(open_location(path, address)))
            _require_unused_location(new, notes)
            free_lease(new)
            new.take_lease(holder)
            place = f"{socket.gethostname()}:{path.absolute()}" if address is None else new.name
            rows = _copy_ledger(old, new, place)
        _finish_copy(new)
    old_file = _switch_address(path, address)
    return MoveResult(old.name, new.name, rows, old_file, was_copied=notes.moved_to is not None)


def _copy_ledger(old_ledger: Database, new_ledger: Database, place: str) -> dict[str, int]:
    """Copy the ledger, and in the same transaction mark the old ledger as moved to ``place``.

    Return the number of rows by table. The copy stays marked as unfinished until `_finish_copy` removes the mark.
    """
    copy = str(uuid4())
    try:
        old_ledger.begin(is_long=True)
        _require_no_unread_fetches(old_ledger)
        rows = copy_in_transaction(old_ledger, new_ledger, {COPY: copy, UNFINISHED: old_ledger.name})
        end_lease(old_ledger, place)
        _require_no_unread_fetches(old_ledger)  # after this, endpoints cannot record fetches in the old ledger
        record_move(old_ledger, place, copy)
        old_ledger.commit()
        checkpoint_log(old_ledger)
    except BaseException as error:
        with suppress(*old_ledger.errors):
            old_ledger.rollback()
        if isinstance(error, old_ledger.errors):
            raise old_ledger.to_ledger_error(error) from error
        raise
    return rows


def _finish_copy(new_ledger: Database) -> None:
    """Remove the mark of an unfinished copy, so that gitboot can use the new ledger."""
    with new_ledger.reading():
        new_ledger.begin()
        new_ledger.execute("DELETE FROM facts WHERE name = ?", (UNFINISHED,))
        new_ledger.commit()


def _switch_address(path: Path, address: PostgresAddress | None) -> Path | None:
    """Store the new address. If the ledger was a file, rename the file and return its new path."""
    if address is None:
        get_address_file(path).unlink()
        return None
    write_address(path, address)
    if not path.exists():
        return None
    old_file = set_ledger_aside(path, "copied")
    if not old_file.exists():
        raise LedgerError(f"{path} is missing")
    return old_file


def _require_no_unread_fetches(old_ledger: Database) -> None:
    """Raise `UsageError` if the old ledger contains unread fetches.

    Without these fetches, gitboot could serve the same one-time boots a second time.
    """
    if not old_ledger.is_local:
        ((unread,),) = old_ledger.execute(
            "SELECT count(*) FROM fetches WHERE id > coalesce((SELECT taken FROM spool WHERE file = ?), 0)", (FETCHES,)
        )
        if unread:
            raise UsageError(
                f"no instance has processed {unread} of the requests in {old_ledger.name} yet; first run "
                "`gitboot run --once`"
            )


@contextmanager
def _guard_new_file(path: Path, notes: CopyNotes) -> Iterator[None]:
    """Check that there is no file at ``path``, or only an unfinished copy.

    If the block fails, remove the incomplete file.
    """
    if path.exists():
        with closing(SqliteDatabase(path)) as existing:
            if not _is_unfinished_copy(CopyNotes.read(existing), notes):
                raise UsageError(f"{path} already exists; move or rename the file")
    try:
        yield
    except BaseException:
        with closing(SqliteDatabase(path)) as new_file:
            is_copy = CopyNotes.read(new_file).copy is not None
        if not is_copy:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
        raise


def open_location(path: Path, address: PostgresAddress | None) -> Database:
    """Open the database at an address, or the file if ``address`` is None.

    This works even if the database is marked as moved or contains an unfinished copy.
    """
    database: Database
    if address is None:
        database = SqliteDatabase(path)
    else:
        from gitboot.ledger.postgresql import PostgresDatabase

        database = PostgresDatabase(address)
    database.open_moved = True
    return database


def _require_unused_location(new: Database, notes: CopyNotes) -> None:
    """Raise `UsageError` if the new location contains data other than an unfinished copy of this ledger."""
    new_notes = CopyNotes.read(new)
    if _is_unfinished_copy(new_notes, notes):
        return
    if any(number for table, number in count_rows(new).items() if table != "facts"):
        content = "a moved ledger" if new_notes.moved_to is not None else "a ledger"
        raise UsageError(f"{new.name} already contains {content}; choose an empty database or schema")
    if new_notes.moved_to is None and new_notes.identity == notes.identity:
        raise UsageError("the ledger is already at the new location")
    is_other = new_notes.identity != notes.identity or new_notes.changes > notes.changes
    if new_notes.moved_to is not None and is_other:
        raise UsageError(
            f"{new.name} contains a different ledger, or a newer version of this ledger; choose an empty database or "
            "schema"
        )


def _is_unfinished_copy(copy_notes: CopyNotes, notes: CopyNotes) -> bool:
    """Return whether a database contains an unfinished copy of the ledger with these notes."""
    return (
        copy_notes.copied_from is not None
        and copy_notes.identity == notes.identity
        and copy_notes.changes <= notes.changes
    )


_UNVERIFIED_REASON: Final = "RestoredLedger"


class ReclaimPlan(NamedTuple):
    """Facts about the old ledger that an operator wants to use again."""

    name: str  # the location of the old ledger, for people
    moved_to: str | None  # the place to which the ledger was moved; None: another host has already reclaimed the ledger
    changes: int


def plan_reclaim(path: Path, location: PostgresAddress | Path) -> ReclaimPlan:
    """Check whether the old ledger that a move left at ``location`` can become the ledger of ``path`` again.

    Return facts about the old ledger. Raises `UsageError` if the ledger was not moved, if ``path`` contains another
    ledger, or if the ledger is still usable at its new location. In the last case, the operator must copy the ledger
    back instead.
    """
    if isinstance(location, Path) and not is_file(location):
        raise UsageError(f"{location} is not a file")
    # A file that is opened for writing gets the tables of a ledger, even if it is another program's database.
    database = ReadOnlySqlite(location) if isinstance(location, Path) else _open_old_ledger(location)
    with closing(database):
        notes = CopyNotes.read(database)
        name = database.name
    mark = read_mark(get_mark_path(path))
    if notes.moved_to is None and (database.is_local or mark is None or mark[0] != notes.identity):
        raise UsageError(f"the ledger {name} was not moved, so it cannot be reclaimed")
    _require_no_live_ledger(path, notes)
    if location != path and path.exists():
        raise UsageError(f"{path} already exists; move or rename the file")
    return ReclaimPlan(name, notes.moved_to, notes.changes)


def reclaim(path: Path, location: PostgresAddress | Path) -> None:
    """Make the old ledger that a move left at ``location`` the ledger of ``path`` again.

    The caller must hold the lock on the state directory. The function marks the ledger as unverified before the ledger
    can be used. After a crash, the caller can call the function again.
    """
    with closing(_open_old_ledger(location)) as database:
        if CopyNotes.read(database).moved_to is not None:
            instance_tables.mark_unverified(Store(database, path), _UNVERIFIED_REASON)
            with database.reading():
                database.begin()
                database.execute("DELETE FROM facts WHERE name IN (?, ?)", (LEFT, COPY))
                free_lease(database)
                database.commit()
            checkpoint_log(database)
    if isinstance(location, PostgresAddress):
        write_address(path, location)
        return
    if location != path:
        location.rename(path)
    get_address_file(path).unlink(missing_ok=True)


def _require_no_live_ledger(path: Path, notes: CopyNotes) -> None:
    """Raise `UsageError` if the ledger is usable at its new location, as far as this host can determine."""
    host, _, file = (notes.moved_to or "").partition(":")
    address = read_address(path)
    if address is not None and address.name == notes.moved_to:
        new_place = path
    elif host == socket.gethostname() and Path(file).is_file():
        new_place = Path(file)
    else:
        return
    try:
        database = open_database(new_place, read_only=True)
    except (LedgerError, UsageError):  # the new location is not usable, for example because the schema was removed
        return
    with closing(database):
        if CopyNotes.read(database).identity == notes.identity:
            raise UsageError(
                f"the ledger is in use at {notes.moved_to}; to move it back, empty the old location, then run "
                "`gitboot ledger copy`"
            )


def _open_old_ledger(location: PostgresAddress | Path) -> Database:
    return open_location(location, None) if isinstance(location, Path) else open_location(Path(), location)
