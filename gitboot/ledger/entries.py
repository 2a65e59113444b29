"""What stands in the ledger and nowhere else, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from gitboot.errors import Orders
from gitboot.model.scalars.machines import SystemUuid
from gitboot.resolve.server_decision_from_plan import WithheldBoot
from gitboot.stoppage import Stoppage
from gitboot.system_clock import Uptime


class Request(NamedTuple):
    """What an operator asked of the instance that has this ledger."""

    id: int
    at: datetime
    who: str
    what: str  # one word: records, resolve, retry …
    facts: Mapping[str, Any]  # JSON values


class Suspension(NamedTuple):
    """No commit is accepted, and nothing set, until an instant."""

    who: str
    reason: str
    until: datetime


class Approval(NamedTuple):
    """Changes with this digest may pass these guards."""

    digest: str
    guards: tuple[str, ...]
    at: datetime
    who: str
    reason: str

    @property
    def by(self) -> str:
        """Who approved, how and why, in words."""
        return f"{self.who}, with gitboot approve: {self.reason}"


class Heartbeat(NamedTuple):
    """When the instance was alive last, and how long it was between the last times before that."""

    at: datetime
    intervals: tuple[timedelta, ...] = ()
    up: Uptime | None = None  # how long the kernel ran then


class Withheld(NamedTuple):
    """The install boots that newer commits do not offer, and that gitboot withholds until one of them is accepted."""

    by: str  # the newest commit that was evaluated
    servers: Mapping[SystemUuid, tuple[WithheldBoot, ...]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a ledger says about itself."""

    identity: str
    accepted: str | None = None  # the commit that was accepted last
    branch: str | None = None  # the reference that its instance follows, as refs/heads/main or what --rev named
    is_default_branch: bool = False  # whether HEAD named that branch at the first start, and --rev did not
    searched: str | None = None  # the accepted commit whose history was searched for acknowledgements last
    lapsed: str | None = None  # the same in a copy that is to be tried out, where it is not known
    # How many decisions there were: commits accepted, and words by which boots were offered anew. Offers have the
    # number of the last one, so that evidence of what was offered before a decision is known from that of after it.
    sequence: int = 0
    initialised: str | None = None  # how it became known what was installed before: fresh, adopt, records
    begun: datetime | None = None  # when a person has said so
    doubt: str | None = None  # why it is not trusted: one word
    observes: bool = True  # whether fetches reach its instance
    foreign: str | None = None  # the ledger whose tree lies where its instance is to publish, if it is another
    heir_of: str | None = None  # the ledger whose tree it took over
    output: str | None = None  # where its instance publishes
    spool: str | None = None  # where its endpoints record fetches
    site: str | None = None  # for whose servers alone its instance acts; "": for all; None: none has run on it yet
    closes_output: bool = False  # whether what it publishes is for the owner and the group alone
    published: bool = False  # whether it has ever published there
    keyed: bool = False  # and with tokens by a key that only its instance has
    heartbeat: Heartbeat | None = None
    gap: bool = False  # whether it was not alive for long, and has not come up to the newest commit since
    clock: str | None = None  # kept: a time service was seen to keep it; accepted: a person has said that it is right
    suspension: Suspension | None = None
    stoppage: Stoppage | None = None
    orders: Orders | None = None  # of the newest Fleet, where its commit is not accepted
    withheld: Withheld | None = None  # None: every commit that was evaluated offers what the accepted one offers
    # Servers whose boot an accepted commit took back, because their records showed no fetch of it: the number of that
    # decision in the sequence. Later evidence of an older offer installs nothing.
    rolled_back: Mapping[SystemUuid, int] = field(default_factory=dict)
    # Servers whose one-time boot lay in OUTPUT until gitboot kept such boots out of copies. None: not looked for yet.
    left_output: frozenset[SystemUuid] | None = None
