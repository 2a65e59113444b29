"""Which host acts by a ledger: what is typed on one that stands by is refused, with where to type it."""

from __future__ import annotations

from pathlib import Path

from gitboot.errors import HeldByAnother
from gitboot.instance.directory import LEDGER
from gitboot.ledger.lease import Holder
from gitboot.ledger.opening import acting_instead


def check_acts(directory: Path) -> None:
    """Raise `HeldByAnother` where the instance of another host acts in place of this one, running or not."""
    if (place := acting_instead(directory / LEDGER, lambda: Holder.of(directory))) is not None:
        host, _, state = place.partition(":")
        raise HeldByAnother(
            f"{directory}: this host's instance stands by, and {place} acts: type it on {host}, with --state {state}"
        )
