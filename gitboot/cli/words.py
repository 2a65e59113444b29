"""A person's word to endpoints, which they obey whether the instance can or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import click

from gitboot.controller.instance.state_directory import LEDGER, SPOOL, has_ledger
from gitboot.errors import LedgerError
from gitboot.instance.acting import told_here
from gitboot.ledger.open_ledger import places
from gitboot.observe.stopped import folders


def folders_of(state: Path) -> tuple[Path, ...]:
    """Where endpoints of the instance on ``state`` look: beside its tree and in its spool, as far as they are there.

    Where its ledger cannot be read, only the spool that an instance has by itself is known.
    """
    found = {state / SPOOL}
    with suppress(LedgerError):
        output, spool = places(state / LEDGER) if has_ledger(state) else (None, None)
        found.update(folders(output, spool) if output is not None else ())
    return tuple(folder for folder in sorted(found) if folder.is_dir())


def output_of(state: Path) -> Path | None:
    """Where the instance on ``state`` publishes, as far as its ledger can be read."""
    with suppress(LedgerError):
        return places(state / LEDGER)[0] if has_ledger(state) else None
    return None


def told_to(state: Path) -> Path:
    """The STATE of the instance that is told: that of who acts, where this one stands by on the same host."""
    if (acting := told_here(state)) != state:
        told = f"{state}: this instance stands by; the one that acts is told, with --state {acting}"
        click.echo(f"gitboot: {told}", err=True)
    return acting


def done_in(found: tuple[Path, ...], do: Callable[[Path], None]) -> Iterator[str]:
    """Do something in each folder; why it could not be done, of those where it could not."""
    for folder in found:
        try:
            do(folder)
        except OSError as error:
            yield f"{folder} cannot be written: {error.strerror}"
