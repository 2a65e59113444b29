"""An instance over a real repository, ledger and tree, without a loop, for tests that reconcile one by one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from gitboot.controller.instance.assembly import running
from gitboot.controller.instance.settings import (
    ArtifactSettings,
    BmcSettings,
    CheckAssets,
    GitSettings,
    Settings,
    TrustSettings,
)
from gitboot.controller.operator_requests import BEGIN
from gitboot.controller.reconcile import Reconciler
from gitboot.evaluator.client import Evaluation
from gitboot.git.clone import Reader, Source
from gitboot.ledger import instance_tables
from gitboot.ledger.leader_lease import SECONDS
from gitboot.ledger.store import Store
from gitboot.review.guards import Limits
from gitboot.status.events import Event
from gitboot.system_clock import Uptime, uptime
from tests.helpers.evaluated_commits import Here, Slow
from tests.helpers.fleets import at
from tests.helpers.instance_doubles import UNGUARDED


@dataclass(frozen=True)
class Parts:
    source: Source
    ledger: Store
    reconciler: Reconciler
    events: list[Event]
    spool: Path


@contextmanager
def in_process(
    folder: Path,
    repository: Path,
    *,
    allow_rewind: bool = False,
    limits: Limits | None = None,
    initial: str | None = None,
    credentials: Path | None = None,
    evaluates: bool = True,
    apart: bool = False,
    unending: Collection[str] = (),
    wake: Callable[[], None] = lambda: None,
    trust: TrustSettings | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    uptime: Callable[[], Uptime] = uptime,
    site: str | None = None,
    lease_s: float = SECONDS,
    list_keys: Path | None = None,
) -> Iterator[Parts]:
    """The instance with OUTPUT and STATE in ``folder``; nothing is fetched yet.

    One that does not evaluate never comes to an end with more than the commit that was accepted before; one that does
    so ``apart`` has a process for it, and calls ``wake`` once it has answered. The evaluation of a commit in
    ``unending`` does not end in time.
    """
    settings = Settings(
        output=folder / "output",
        state=folder / "state",
        git=GitSettings(repository=str(repository)),
        trust=trust or TrustSettings(),
        bmc=BmcSettings(credentials=credentials, jitter=0),
        artifacts=ArtifactSettings(check=CheckAssets.OFF),  # they are nowhere
        limits=limits or Limits(allow_rewind=allow_rewind, **UNGUARDED),
        site=site,
        list_keys=list_keys,
        listen="by the test itself",
        spool=folder / "spool",
        lease_s=lease_s,
        accepted_filesystems=("tmpfs", "ramfs", "overlay"),  # where tests may lie, as in containers
    )
    events: list[Event] = []

    def evaluation(state: Path) -> Evaluation:
        if apart:
            return Evaluation(state, site=site)
        return Here(Reader(state), site, unending) if evaluates else Slow(Reader(state))

    with running(settings, tell=events.append, clock=clock, wake=wake, evaluation_of=evaluation, uptime=uptime) as (
        instance,
        source,
    ):
        if initial is not None:
            instance_tables.give(instance.store, clock(), "ada", BEGIN, {"how": initial})
        yield Parts(source, instance.store, instance.reconciler, events, folder / "spool")


NOON: Final = at("20T12:00")


def turn(parts: Parts, seconds: float = 0) -> None:
    """Fetch, and reconcile once, so long after noon."""
    parts.source.fetch()
    parts.reconciler.reconcile(NOON + timedelta(seconds=seconds))


def applied(parts: Parts) -> str | None:
    """Return the commit of the published files."""
    return parts.reconciler.status.applied
