"""An instance in this process, without Git and without files: its ledger and its jobs at BMCs are real."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from gitboot.artifacts.availability import ArtifactWatch
from gitboot.bmc.override_state import OverrideRecord
from gitboot.bmc.power_steps import SwitchRecord
from gitboot.bmc.worker_pool import MOST, MOST_OF_SITE
from gitboot.controller.bmcs.schedule import Schedule
from gitboot.controller.instance.assembly import Dependencies, WriteRecord, build, pool_of
from gitboot.controller.instance.settings import BmcSettings, GitSettings, Settings
from gitboot.controller.operator_requests import BEGIN
from gitboot.controller.reconcile_inputs import Bmcs
from gitboot.controller.records.ledger_snapshot import Knowledge
from gitboot.controller.target_followers import ListedTarget
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.spool import SpoolFile, line_of
from gitboot.ledger import instance_tables
from gitboot.ledger.open_ledger import check
from gitboot.model.scalars import SystemUuid
from gitboot.render.server_files import RenderedState
from gitboot.render.token_keys import NO_KEYS, TokenKeys
from gitboot.resolve.provisioning_record import Record, record_facts
from gitboot.resolve.server_decision import Decisions
from gitboot.resolve.server_plan import BootPlan
from gitboot.status.events import Event
from gitboot.system_clock import Uptime
from tests.helpers.fleets import at, snapshot
from tests.helpers.instance_doubles import UNLIMITED, Commits, Gate, Taking, Unsynced
from tests.helpers.served_tree import rendered_states

NOON = at("20T12:00")
Said = str | Mapping[SystemUuid, Record]  # what a ledger is told to begin with: a word, or the records of a file


def beginning(said: Said) -> dict[str, Any]:
    """What `gitboot records begin` asks for: a word, or the records of a file."""
    if isinstance(said, str):
        return {"how": said}
    return {"how": "records", "items": [{"uuid": uuid, **record_facts(record)} for uuid, record in said.items()]}


class Bench:
    """An instance whose commits, fetches and requests a test makes, and whom it tells when to reconcile."""

    def __init__(
        self,
        folder: Path,
        *,
        initial: Said | None = "fresh",
        credentials: Path | None = None,
        observes: bool = True,
        owner: str | None = None,
        doubt: str | None = None,
        store: type[Unsynced] = Unsynced,
        failures: int = 20,
        parallel: int = MOST,
        per_site: int = MOST_OF_SITE,
        keys: TokenKeys = NO_KEYS,
        artifacts: ArtifactWatch | None = None,
        named: bool = True,
        target: ListedTarget | None = None,  # None: files are not written
    ) -> None:
        self.now, self.ahead = NOON, timedelta(0)  # the clock, and by how much it is ahead of what is true
        self.events: list[Event] = []
        self.commits, self.target = Commits(), Taking()
        self._opened = ExitStack()
        self.ledger = self._opened.enter_context(store.open(folder / "ledger.sqlite"))
        check(self.ledger)
        if named:  # as by a Fleet that says that this instance acts
            self.commits.ledger = self.ledger.progress[0]
        if doubt is not None:
            instance_tables.doubt(self.ledger, doubt)
        bmc = BmcSettings(credentials=credentials, failures=failures, parallel=parallel, per_site=per_site, jitter=0)
        spool = folder / "spool"
        spool.mkdir(exist_ok=True)
        self._spool = SpoolFile(spool)
        git = GitSettings(repository="")
        settings = Settings(output=folder, state=folder, git=git, bmc=bmc, limits=UNLIMITED, spool=spool)
        dependencies = Dependencies(
            store=self.ledger,
            source=self.commits,
            evaluation=self.commits,
            target=target if target is not None else self.target,
            clock=lambda: self.job_clock or self.now,
            make_bmcs=self._gate,
            owner=owner,
            observes=observes,
            keys=keys,
            artifacts=artifacts,
            tell=self.events.append,
            uptime=lambda: Uptime("this", (self.now - self.ahead).timestamp()),
        )
        self.instance = self._opened.enter_context(build(settings, dependencies))
        if initial is not None:
            self.request(BEGIN, **beginning(initial))
        self.job_clock: datetime | None = None  # that jobs at BMCs go by, where it is not the instance's
        self.before_recording: Callable[[OverrideRecord], None] = lambda _: None
        self.after_recording: Callable[[OverrideRecord], None] = lambda _: None

    def _gate(self, settings: Settings, dependencies: Dependencies, write: WriteRecord) -> Bmcs:
        def recording(uuid: SystemUuid, record: OverrideRecord | SwitchRecord) -> None:
            if isinstance(record, SwitchRecord):
                write(uuid, record)
                return
            self.before_recording(record)
            write(uuid, record)
            self.after_recording(record)

        self.bmcs = Gate(pool_of(settings, dependencies, recording))
        return self.bmcs

    def close(self) -> None:
        self._spool.close()
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def decide(self, *documents: str, files: Mapping[str, str] | None = None) -> Self:
        """Push a commit with these documents."""
        self.commits.push(snapshot(*documents, files=files))
        return self

    def wait(self, **given: float) -> Self:
        """Let time pass."""
        self.now += timedelta(**given)
        return self

    def reconcile(self, *, wait: bool = True) -> BootPlan | None:
        """Reconcile, to the end of the BMC jobs that it begins; what web01 boots then."""
        self.due = self.instance.reconciler.reconcile(self.now, wait=wait)
        web01 = self.servers.get("web01")
        return web01.plan if web01 is not None else None

    def plan(self) -> BootPlan | None:
        """Reconcile while no BMC can be asked; what web01 boots then."""
        self.bmcs.gives = False
        try:
            return self.collect()
        finally:
            self.bmcs.gives = True

    def collect(self) -> BootPlan | None:
        """Reconcile once the jobs under way have ended, and begin none."""
        self.bmcs.takes = False
        try:
            return self.reconcile()
        finally:
            self.bmcs.takes = True

    def fetch(
        self,
        plan: BootPlan | None,
        client: str = "10.0.0.7",
        path: str = "boot/v1/boot/m/boot.ipxe",
        at: datetime | None = None,
    ) -> None:
        """A client fetches the entry of a plan, whole, or another of its paths."""
        assert plan is not None
        self.observe(Observation(server=plan.server, path=path, digest=plan.digest, client=client, at=at or self.now))

    def observe(self, observation: Observation) -> None:
        self._spool.append(line_of(observation))

    def request(self, what: str, **facts: object) -> int:
        """Leave a request, as the command line does; it is carried out by the next reconcile."""
        return instance_tables.give(self.ledger, self.now, "ada", what, facts)

    def outcome(self, number: int) -> str:
        """What came of a request; empty while it waits."""
        return instance_tables.outcome(self.ledger, number) or ""

    @property
    def commit(self) -> Commit:
        return self.commits.commit

    @property
    def decisions(self) -> Decisions:
        return self.commit.decisions

    @property
    def knowledge(self) -> Knowledge:
        return self.instance.reconciler.standing.knowledge

    @property
    def schedule(self) -> Schedule:
        return self.instance.reconciler.standing.schedule

    @property
    def servers(self) -> dict[str, RenderedState]:
        """As they were planned last."""
        return rendered_states(self.instance.reconciler.standing)

    @property
    def record(self) -> Record | None:
        """What is known of web01."""
        return self.knowledge.record(self.decisions.servers["web01"].uuid)

    def told(self, *types: str) -> list[str]:
        """The types of the events that happened, of those named, or of all but those that each commit brings."""
        given = types or tuple({event.type for event in self.events} - {"Accepted", "Acknowledged", "RecordsBegun"})
        return [event.type for event in self.events if event.type in given]

    def condition(self, type: str) -> tuple[bool, str, str] | None:
        """Status, reason and message of a condition."""
        found = {
            each.type: (each.status, each.reason, each.message) for each in self.instance.reconciler.status.conditions
        }
        return found.get(type)
