"""An instance's parts in this process: its ledger and its BMC jobs are real, its clock is set by the test."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from gitboot.bmc.pool import BmcPool
from gitboot.instance.evidence import Evidence
from gitboot.instance.journal import Journal
from gitboot.instance.overrides import Fleetwide, Overriding
from gitboot.instance.provisioning import Provisioning, Told
from gitboot.instance.requests import Requests
from gitboot.ledger import Ledger
from gitboot.load import FleetRepository
from gitboot.load.machines import Machine, machines
from gitboot.model.scalars import SystemUuid
from gitboot.observe.observation import Observation
from gitboot.plan import BootPlan, Record
from gitboot.render.schedule import ServerState, server_state
from gitboot.resolve import Decisions, decide
from gitboot.status import Event
from tests.evaluated import commit_of
from tests.fleets import at, repository

NOON = at("20T12:00")


class Bench:
    """A ledger, what is built on it, and the passes that a test asks for, without Git and without files."""

    def __init__(
        self,
        folder: Path,
        *,
        told: Told | None = "fresh",
        credentials: Path | None = None,
        observes: bool = True,
        foreign: bool = False,
        most_failures: int = 20,
        parallel: int = 32,
        per_site: int = 16,
    ) -> None:
        self.now = NOON
        self.events: list[Event] = []
        self.ledger = Ledger.open(folder / "ledger.sqlite")
        self.ledger._store._connection.execute("PRAGMA synchronous = OFF")  # no power cut is tested with it
        self.journal = Journal(self.ledger, self.events.append)
        self.provisioning = Provisioning(self.ledger, self.journal, told=told, foreign=foreign, observes=observes)
        self.evidence = Evidence(self.ledger, self.provisioning, self.journal)
        self.bmcs = BmcPool(
            credentials=credentials,
            write=self.ledger.write_override,
            clock=lambda: self.now,
            parallel=parallel,
            per_site=per_site,
        )
        self.overriding = Overriding(
            self.bmcs,
            self.ledger,
            self.evidence,
            self.journal,
            most_failures=most_failures,
            jitter=lambda: 1,
        )
        self.requests = Requests(self.ledger, self.provisioning, self.overriding, self.journal)
        self.servers: dict[str, ServerState] = {}
        self.repository: FleetRepository
        self.machines: dict[SystemUuid, Machine] = {}
        self.decisions: Decisions

    def close(self) -> None:
        self.bmcs.close()
        self.ledger.close()

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def decide(self, *documents: str) -> None:
        """Accept a commit with these documents."""
        self.repository = repository(*documents)
        self.decisions, self.machines = decide(self.repository), machines(self.repository)

    @property
    def fleet(self) -> Fleetwide:
        return Fleetwide(commit_of(self.repository, self.decisions), self.servers)

    def wait(self, **given: float) -> None:
        """Let time pass."""
        self.now += timedelta(**given)

    def plan(self) -> BootPlan | None:
        """Plan and publish anew; what web01 boots now."""
        self.provisioning.know(self.decisions, self.machines, self.now)
        self.servers = {}
        for name, decision in self.decisions.servers.items():
            record = self.provisioning.records.get(decision.uuid)
            self.servers[name] = server_state(self.decisions, decision, record, self.now)
        self.provisioning.offer(self.servers.values(), self.now)
        web01 = self.servers.get("web01")
        return web01.plan if web01 is not None else None

    def reconcile(self) -> BootPlan | None:
        """One pass, to the end of the BMC jobs that it begins; what web01 boots in it."""
        self.overriding.collect(self.fleet, self.now)
        self.requests.carry_out(self.now)
        planned = self.plan()
        self.overriding.ask(self.fleet, self.now)
        self.overriding.collect(self.fleet, self.now, wait=True)
        return planned

    def fetch(self, plan: BootPlan | None, client: str = "10.0.0.7", path: str = "boot/v1/boot/m/boot.ipxe") -> None:
        """A client fetches the entry of a plan, whole, or another of its paths."""
        assert plan is not None
        self.evidence.observations.put(
            Observation(server=plan.server, path=path, digest=plan.digest, client=client, at=self.now)
        )

    def request(self, what: str, **facts: object) -> int:
        """Leave a request, as the command line does; it is carried out by the next pass."""
        return self.ledger.give(self.now, "ada", what, facts)

    @property
    def record(self) -> Record | None:
        """What is known of web01."""
        return self.provisioning.records.get(self.decisions.servers["web01"].uuid)

    def told(self, *types: str) -> list[str]:
        """The types of the events that happened, of those named, or of all."""
        return [event.type for event in self.events if not types or event.type in types]

    def condition(self, type: str) -> tuple[bool, str, str] | None:
        """Status, reason and message of a condition."""
        found = {each.type: (each.status, each.reason, each.message) for each in self.journal.conditions}
        return found.get(type)
