"""A site of two hosts with one ledger in a PostgreSQL: one host acts, the other stands by, and both serve.

The PostgreSQL is a real one. Time passes for leases as the steps of a life want, and never by a clock. A host that was
replaced may go on for a while, as one does that was suspended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import psycopg

from gitboot.endpoint.recorder import Forwarder
from gitboot.errors import GitbootError, HeldByAnother
from gitboot.fetchlog.one_time_boots import Unrecordable
from gitboot.ledger.postgresql_fetch_log import SharedFetches
from gitboot.model.scalars import SystemUuid
from gitboot.system_clock import Uptime
from tests.helpers.fleets import uuid_of
from tests.helpers.instance_in_process import Parts
from tests.helpers.instance_process import ledger_in
from tests.helpers.machine_lives.machines import Watched
from tests.helpers.postgresql import PostgresServer
from tests.helpers.site_lives.book import GRACE
from tests.helpers.site_lives.kills import Fate, Hang, HeldCall, Killed, full_ledger, living
from tests.helpers.site_lives.site import IPXE, ITSELF, Boots, Forwarding, Given, Serving, Site

_HOSTS: Final = ("one", "two")


class LateCall(NamedTuple):
    """A call to the PostgreSQL that hangs while an endpoint answers a fetch."""

    number: int  # calls of that fetch that are answered before
    meanwhile: str | None = None  # what happens while the call hangs and holds no lock: "reconcile" or "take over"
    expires: bool = True  # whether the endpoint's deadline passes
    is_lost: bool = False  # whether the call never reaches the PostgreSQL


class Replaced(NamedTuple):
    """An instance whose lease another has taken, and an endpoint of the tree that it published."""

    instance: Parts
    fate: Fate
    stack: ExitStack
    serving: Serving


@dataclass
class SharedSite(Site):
    """Both hosts. `Site.instance` is the instance that acts, `Site.serving` the endpoint that machines ask."""

    server: PostgresServer = field(kw_only=True)
    acting: int = 0  # the number of the host whose instance acts
    asked_host: int = 0  # the number of the host whose endpoint machines ask
    beside: Serving | None = None  # the endpoint of the other host; both serve the tree of the host that acts
    replaced: Replaced | None = None
    reconciles_in_boots: bool = False  # whether the instance reconciles after the machine has got its entry
    late: LateCall | None = None  # what hangs the next time that an endpoint calls the PostgreSQL
    _is_answering: bool = False  # whether an endpoint has not answered a fetch yet
    _is_calm: bool = False
    _is_replaced_at_work: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.beside = self._served(self._spools[1])

    def _make_ledger(self) -> str:
        self._schema = self.server.new_schema()
        self._address = self.server.address(self._schema)
        self._admin = psycopg.connect(self._address.url, autocommit=True)
        identity = ""
        for host in self._hosts:
            (host / "spool").mkdir(parents=True)
            identity = ledger_in(host / "state", self._address)
        return identity

    @property
    def _hosts(self) -> list[Path]:
        return [self.folder / name for name in _HOSTS]

    @property
    def _spools(self) -> list[Path]:
        return [host / "spool" for host in self._hosts]

    @property
    def place(self) -> Path:
        return self._hosts[self.acting]

    @property
    def spool(self) -> Path:
        return self._spools[self.asked_host]

    def _uptime_of(self, host: Path) -> Callable[[], Uptime]:
        return lambda: Uptime(host.name, self.up.seconds)

    def _forwarding(self, folder: Path) -> Forwarding:
        shared = SharedFetches(self._address)
        return Forwarding(shared, Forwarder(folder, shared))

    # Endpoints

    def ask_other_host(self) -> None:
        """Let machines ask the endpoint of the other host from now on."""
        self.serving, self.beside = self.beside, self.serving
        self.asked_host = 1 - self.asked_host

    def start_endpoints(self) -> None:
        """Start both endpoints anew, on the tree of the instance that acts."""
        for _ in range(2):
            self.start_endpoint()
            self.ask_other_host()

    def _look(self) -> None:
        """Let the endpoint of the other host do what it does each second."""
        if self.beside is not None and not self.beside.fate.dead:
            self.beside.look()

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        self._look()

    def _boots_network(self, boots: Boots) -> None:
        """Boot, and let the endpoint send what it has recorded, as it does twice a second.

        What it cannot send, the other host does not learn: for a minute after a boot, that host serves the boot again.
        """
        super()._boots_network(boots)
        if self.serving is not None:
            self.serving.look()
        if self.serving is None or self.serving.is_behind:
            for ask in self.book.asks.values():
                if ask.given and self.now - ask.given[-1] < GRACE:
                    ask.is_over = False

    def _has_entry(self) -> None:
        if self.reconciles_in_boots and not self.bmcs:
            self.counts["reconcile within a boot"] += 1
            if self.serving is not None:
                self.serving.look()
            self.reconcile()

    def _disturb(self, serving: Serving, asked: asyncio.Task[Given]) -> None:
        super()._disturb(serving, asked)
        if self.late is not None:
            self._answer_late(serving, asked, self.late)

    def _answer_late(self, serving: Serving, asked: asyncio.Task[Given], late: LateCall) -> None:
        """Answer a fetch while one call to the PostgreSQL hangs, and let that call come to its end."""
        call = serving.fate.held = HeldCall(late.number)
        self._loop.run_until_complete(_until_held(asked, call))
        if call.connection is None:
            serving.fate.held = None
            return
        self.counts["a call hung while a fetch was answered"] += 1
        self.late, self._is_answering = None, True
        try:
            if late.meanwhile is not None and call.is_between_transactions and not self.bmcs:
                self._meanwhile(late.meanwhile)
            if late.expires:
                self._pass_deadlines(asked)
        finally:
            serving.fate.held, self._is_answering = None, False
            call.end(is_lost=late.is_lost)
        self._loop.run_until_complete(asyncio.wait([asked]))
        assert serving.forwarding is not None
        with suppress(Unrecordable, Killed):
            serving.forwarding.shared.reported("", "")  # waits for the thread that went on after the deadline

    def _meanwhile(self, what: str) -> None:
        self.counts[f"{what} while a call hung"] += 1
        if what == "reconcile":
            self.reconcile()
        else:  # the endpoint has the tree of the instance before, by which it must not serve any more
            self.take_over("ends", None)
            self.ask_for_installation()
            self.reconcile()

    def _come_to_rest(self, serving: Serving) -> None:
        """Wait until the outcomes of the intents of a fetch are in the endpoint's own fetch log."""
        done = asyncio.Event()

        def end() -> None:
            self._loop.call_soon_threadsafe(done.set)

        serving.spool.ended = end
        if not serving.spool.has_ended:
            serving.spool.call(lambda: None).add_done_callback(lambda _: end())
            self._loop.run_until_complete(done.wait())

    # Instances

    def reconcile(self) -> None:
        for each in (self.serving, self.beside):
            if each is not None and not each.fate.dead:
                each.look()
        super().reconcile()
        self._look()
        self._record_was_given()
        self._every_outcome_is_known()

    def take_over(self, how: str, calls: int | None) -> None:
        """Let the instance of the other host act; it is killed after so many ``calls`` unless that is None.

        The instance that acts ends by itself (``ends``), is ``killed``, or is ``paused`` until its lease has run out.
        """
        self.counts[f"take-over: {how}"] += 1
        self.end_replaced()
        if how == "paused" and self.instance is not None:
            self._leave_behind(self.instance)
        elif how == "killed":
            self.instance_fate.dead = True
        self.stop_instance()
        self._run_out()
        self.acting, self.settled = 1 - self.acting, None
        fate, stack = Fate(), ExitStack()
        fate.dies_in = calls
        self.instance_fate, self._stack = fate, stack
        with living(fate), suppress(Killed):
            self.instance = stack.enter_context(self._instance())
        if fate.dead:
            self.counts["standby killed"] += 1
            self.stop_instance()
            self.start_instance()

    def _run_out(self) -> None:
        """Let the lease run out, whoever has it."""
        self._admin.execute("UPDATE lease SET until = clock_timestamp()")

    def _leave_behind(self, instance: Parts) -> None:
        """Pause an instance and its endpoint until its lease has run out."""
        lease = instance.ledger.database.lease
        assert lease is not None
        lease.until_s = 0.0  # by its own clock
        serving = self._served(self._spools[self.acting])
        self.replaced = Replaced(instance, self.instance_fate, self._stack, serving)
        self.instance, self.instance_fate, self._stack = None, Fate(), ExitStack()

    def end_replaced(self) -> None:
        """End the instance that was replaced, and its endpoint."""
        if (replaced := self.replaced) is not None:
            self.replaced = None
            with living(replaced.fate), suppress(Killed):
                replaced.stack.close()
            replaced.serving.close()

    def let_replaced_go_on(self, path: str) -> None:
        """Let a replaced instance reconcile, and its endpoint be asked: both do what ends something, and no more."""
        if (replaced := self.replaced) is None:
            return
        self.counts["a replaced host went on"] += 1
        self._is_replaced_at_work = True
        with living(replaced.fate), suppress(Killed):
            with suppress(GitbootError):
                replaced.instance.source.fetch()
            replaced.instance.reconciler.reconcile(self.clock, wait=True)
        self._is_replaced_at_work = False
        answer = self._fetch_from(replaced.serving, path, ITSELF, IPXE, {})
        self.nobody_else_is_given(answer, "a machine that asks a host that was replaced")

    def try_too_early(self) -> None:
        """Let the standby start while the lease runs."""
        if self.instance is None or self.replaced is not None:
            return
        before = self.acting
        self.acting = 1 - before
        try:
            with self._instance():
                self.book.wrong(self.now, "two instances act by one ledger")
        except HeldByAnother:
            self.counts["a standby tried too early"] += 1
        finally:
            self.acting = before

    def written(
        self, machine: Watched, before: Mapping[str, str | None], after: Mapping[str, str | None], *, overwrote: bool
    ) -> None:
        if self._is_replaced_at_work:
            self.book.wrong(self.now, "an instance whose lease another has writes to a BMC")
        super().written(machine, before, after, overwrote=overwrote)

    def switched(self, machine: Watched, kind: str) -> None:
        if self._is_replaced_at_work:
            self.book.wrong(self.now, "an instance whose lease another has switches a machine")
        super().switched(machine, kind)

    # The PostgreSQL

    @contextmanager
    def unanswered(self, *fates: Fate, hang: Hang) -> Iterator[None]:
        """A block in which calls of these processes to the PostgreSQL hang."""
        for fate in fates:
            fate.hang = hang
        try:
            yield
        finally:
            for fate in fates:
                fate.hang = None

    @contextmanager
    def unwritable(self, how: str) -> Iterator[None]:
        """A block in which the PostgreSQL has ``hung``, or its disk is ``full``."""
        self.counts[f"ledger {how}"] += 1
        if how == "full":
            with full_ledger():
                yield
            return
        fates = [each.fate for each in (self.serving, self.beside) if each is not None]
        with self.unanswered(self.instance_fate, *fates, hang=Hang()):
            yield

    # The end

    def calm_down(self) -> None:
        self.end_replaced()
        self.late = self.instance_fate.dies_in = None
        self.reconciles_in_boots = False
        if self.instance is None:
            self._run_out()
            self.start_instance()
        self.start_endpoints()
        self.wait(0)
        self._is_calm = True
        super().calm_down()

    def _every_outcome_is_known(self) -> None:
        """Check that a boot which was withheld is given back, unless an endpoint was killed."""
        if self.instance is None or self._is_answering or self.counts["endpoint killed"]:
            return
        standing = self.instance.reconciler.standing
        record = standing.knowledge.recorded(SystemUuid(uuid_of("web01")))
        is_behind = any(each is None or each.is_behind for each in (self.serving, self.beside))
        if record is None or is_behind or standing.unwritable is not None or standing.unread is not None:
            return
        if any(not each.is_withheld for each in record.unknown_serves):
            self.book.wrong(
                self.now, f"no endpoint died, and what came of a boot is not known: {record.unknown_serves}"
            )

    def _every_report_was_heard(self) -> None:
        """Check at the end of a life: until then a report may wait on a host that cannot reach the PostgreSQL."""
        if self._is_calm:
            super()._every_report_was_heard()

    def close(self) -> None:
        self.end_replaced()
        if self.beside is not None:
            self.beside.close()
        super().close()
        self._admin.execute("SET lock_timeout = '30s'")
        self._admin.execute(f"DROP SCHEMA {self._schema} CASCADE")  # waits if a connection was left with a lock
        self._admin.close()


async def _until_held(asked: asyncio.Task[Given], call: HeldCall) -> None:
    """Wait until a fetch is answered, or its call to the PostgreSQL hangs."""
    begins, loop = asyncio.Event(), asyncio.get_running_loop()
    call.on_begin = lambda: loop.call_soon_threadsafe(begins.set)
    if call.connection is None:
        waits = asyncio.create_task(begins.wait())
        await asyncio.wait([asked, waits], return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
