"""Which host acts by a ledger: what is typed on one that stands by is refused, with where to type it."""

from __future__ import annotations

from pathlib import Path

from gitboot.errors import HeldByAnother
from gitboot.instance.directory import LEDGER
from gitboot.ledger.lease import Holder, Leased
from gitboot.ledger.opening import acting_instead, lease_of


def acting_here(directory: Path) -> Leased | None:
    """The lease by which this host's instance acts; None: it has none, or its ledger is a file."""
    lease = lease_of(directory / LEDGER)
    return lease if lease is not None and lease.stands and lease.holder == Holder.of(directory).id else None


def check_acts(directory: Path) -> None:
    """Raise `HeldByAnother` where the instance of another host acts in place of this one, running or not."""
    if (place := acting_instead(directory / LEDGER, lambda: Holder.of(directory))) is not None:
        host, _, state = place.partition(":")
        raise HeldByAnother(
            f"{directory}: this host's instance stands by, and {place} acts: type it on {host}, with --state {state}"
        )
