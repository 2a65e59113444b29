"""An instance put together in this process, without a loop, for tests that make passes one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from gitboot.bmc.pool import BmcPool
from gitboot.diff.guard import Limits
from gitboot.instance.accept import Accepting
from gitboot.instance.evidence import Evidence
from gitboot.instance.journal import Journal
from gitboot.instance.overrides import Overriding
from gitboot.instance.provisioning import Provisioning
from gitboot.instance.reconcile import Reconciler
from gitboot.instance.requests import Requests
from gitboot.ledger import Ledger
from gitboot.load import Revision
from gitboot.publish.directory import Directory
from gitboot.source import Reader, Remote, Source
from gitboot.status import Event
from tests.evaluated import Here

UNGUARDED: Final[dict[str, Any]] = {"max_reinstalls": 10**6, "max_small_group": 10**6, "mutated_images": 10**6}


@dataclass
class Parts:
    source: Source
    ledger: Ledger
    reconciler: Reconciler
    events: list[Event] = field(default_factory=list)


@contextmanager
def in_process(
    folder: Path,
    repository: Path,
    *,
    allow_rewind: bool = False,
    limits: Limits | None = None,
    told: str | None = None,
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> Iterator[Parts]:
    """All the parts of an instance with OUTPUT and STATE in ``folder``; nothing is fetched yet."""
    state = folder / "state"
    state.mkdir(parents=True, exist_ok=True)
    events: list[Event] = []
    with ExitStack() as stack:
        ledger = stack.enter_context(Ledger.open(state / "ledger.sqlite"))
        target = stack.enter_context(
            Directory.open(folder / "output", ledger=ledger.identity, may_take_over=told == "adopt")
        )
        source = Source(Remote(url=str(repository)), state)
        journal = Journal(ledger, events.append)
        provisioning = Provisioning(ledger, journal, told=told)
        bmcs = BmcPool(credentials=None, write=ledger.write_override, clock=clock)
        stack.callback(bmcs.close)
        evidence = Evidence(ledger, provisioning, journal)
        overriding = Overriding(bmcs, ledger, evidence, journal)
        accepting = Accepting(
            source,
            Here(Reader(state)),
            ledger,
            provisioning,
            journal,
            published=Revision(target.stamp.commit) if target.stamp is not None else None,
            limits=limits or Limits(allow_rewind=allow_rewind, **UNGUARDED),
        )
        reconciler = Reconciler(
            accepting=accepting,
            target=target,
            ledger=ledger,
            provisioning=provisioning,
            evidence=evidence,
            overriding=overriding,
            requests=Requests(ledger, provisioning, overriding, journal),
            journal=journal,
        )
        yield Parts(source=source, ledger=ledger, reconciler=reconciler, events=events)
