"""Which host acts by a ledger: what is typed on one that stands by is refused, with where to type it."""

from __future__ import annotations

import socket
from contextlib import suppress
from pathlib import Path

from gitboot.controller.instance.state_directory import LEDGER, has_ledger
from gitboot.errors import HeldByAnother, LedgerError
from gitboot.ledger.leader_lease import Holder, Lease, Leased
from gitboot.ledger.open_ledger import acting_instead, lease_of, places
from gitboot.render.terms import TERMS, parse


def acting_here(directory: Path) -> Leased | None:
    """The lease by which this host's instance acts; None: it has none, or its ledger is a file."""
    lease = lease_of(directory / LEDGER)
    return lease if lease is not None and lease.stands and lease.holder == Holder.of(directory).id else None


def told_here(directory: Path) -> Path:
    """The state directory of the instance that acts, where it is on this host, too; else this one.

    Raises `HeldByAnother` where who acts is on another host, and publishes to a disk that both have: it would obey what
    is left there, and only who looks into its ledger could take that back.
    """
    if not has_ledger(directory):
        return directory
    with suppress(LedgerError, OSError):
        lease = lease_of(directory / LEDGER)
        if lease is None or not lease.stands or lease.holder == Holder.of(directory).id:
            return directory
        host, _, state = lease.place.partition(":")
        if host == socket.gethostname() and has_ledger(there := Path(state)) and Holder.of(there).id == lease.holder:
            return there
        output, _ = places(directory / LEDGER)
        if output is None or not is_of(output, lease):
            return directory
    check_acts(directory)
    return directory


def is_of(output: Path, lease: Leased) -> bool:
    """Whether what stands there was published under a lease."""
    with suppress(OSError, ValueError):
        return parse((output / TERMS).read_bytes()).giver == str(Lease(lease.holder, lease.number))
    return False


def check_acts(directory: Path) -> None:
    """Raise `HeldByAnother` where the instance of another host acts in place of this one, running or not."""
    if (place := acting_instead(directory / LEDGER, lambda: Holder.of(directory))) is not None:
        host, _, state = place.partition(":")
        raise HeldByAnother(
            f"{directory}: this host's instance stands by, and {place} acts: type it on {host}, with --state {state}"
        )
