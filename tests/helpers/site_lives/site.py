"""A site: repository, instance, endpoints, a mirror, machines with BMCs, and clocks that may be wrong.

Git, ledger, tree, spool, endpoints and Redfish are the real ones; all of it lives in this process, and can die at any
of its system calls. What machines are answered goes into a book that knows nothing of gitboot.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch
from urllib.parse import urlsplit

from gitboot.controller.instance.state_directory import LEDGER
from gitboot.controller.operator_requests import APPROVE, BEGIN, CLOCK, RECORDS, START, STOP
from gitboot.endpoint.app import Endpoint
from gitboot.endpoint.recorder import ForwardedRecording, Forwarder, Recorder, Recording
from gitboot.endpoint.served_files import ComparedClock, PublishedTree
from gitboot.errors import GitbootError, PublishError
from gitboot.fetchlog.one_time_boots import NotTaken
from gitboot.fetchlog.spool import Spool, aside
from gitboot.ledger import instance_tables
from gitboot.ledger.postgresql_fetch_log import SharedFetches
from gitboot.model.scalars import SystemUuid
from gitboot.publish.durable_files import Disk
from gitboot.publish.publisher import Directory
from gitboot.publish.targets.folder import TargetFolder
from gitboot.publish.targets.sync_steps import FollowedTree, StoreTarget
from gitboot.publish.tree_reader import Words, folders, say, take_back
from gitboot.resolve.boot_limits import Stoppage
from gitboot.resolve.provisioning_record import Record, record_facts
from gitboot.review.guards import Guard, Limits, trailer
from gitboot.system_clock import Uptime
from tests.helpers.configuration import give_credentials
from tests.helpers.documentation import CopyScript
from tests.helpers.fleets import mac_of, uuid_of
from tests.helpers.instance_doubles import UNGUARDED
from tests.helpers.instance_in_process import Parts, in_process
from tests.helpers.instance_process import ledger_in
from tests.helpers.machine_lives.machines import NETWORK, Reading, Watched
from tests.helpers.redfish_double.double import Boot
from tests.helpers.redfish_double.profiles import ENABLED, GENERIC, TARGET
from tests.helpers.redfish_double.server import RedfishServer
from tests.helpers.site_lives.book import GRACE, Ask, Book, Window
from tests.helpers.site_lives.commits import BASE, Asked, Commit, Job, Origin, Spare, Ways, ask_of
from tests.helpers.site_lives.kills import Fate, HeldSyncs, Killed, full_ledger, holding, living
from tests.helpers.target_steps import TargetKilled, bring_up, killed_after

MAC: Final = mac_of("web01").replace(":", "-")
LOOKUPS: Final = (f"/v1/boot/{MAC}/boot.ipxe", f"/ipxe/{uuid_of('web01')}", f"/v1/boot/{MAC}/grub.cfg")
ITSELF, PROXY, MONITOR, CURL, HERE = "10.0.0.7", "10.0.0.3", "10.9.0.5", "10.0.0.99", "127.0.0.1"
IPXE: Final = "iPXE/1.21.1+ (g988d2)"
ASSETS: Final = tuple(f"{image}/kernel" for image in ("flatcar-1", "flatcar-2", "wiper-1", "memtest-7"))
OTHERS: Final = {  # whose fetches never count, by what they say they are
    "check_http/2.3": MONITOR,
    IPXE: MONITOR,
    "curl/8.5.0": CURL,
    "Mozilla/5.0 (X11)": CURL,
    "gitboot-looker": HERE,
}
_DEADLINE_S: Final = 600.0  # for a fetch to stand recorded: a busy machine is no slow disk
_LEASE_S: Final = 3600.0  # of a ledger that hosts share: longer than a life takes, so that no thread renews the lease
_ASKED_AFTER_S: Final = 31 * 60  # what came of an override that is gone is waited for, and then a person is asked
_BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_MOST_AT_ONCE: Final = 3  # times that an instance reconciles where something is due at once
_ANSWERED_S: Final = 0.2  # real seconds in which an endpoint whose deadline has passed answers, or is given more time
_MOST_DEADLINES: Final = 20  # one after the other, in one fetch
_WITHDRAWN_WITHIN_S: Final = 3 * 601  # an override that is over: as `tests.helpers.machine_lives.lives` allows


class PassingLoop(asyncio.SelectorEventLoop):
    """An event loop whose deadlines pass when a test wants them to."""

    def __init__(self) -> None:
        self.passed_s = 0.0
        super().__init__()

    def time(self) -> float:
        return super().time() + self.passed_s


class SlowSyncs(NamedTuple):
    """How an endpoint's fetch log syncs; the numbers count its syncs from the beginning of one fetch."""

    reads: tuple[int, ...] = ()  # syncs during which the instance reads the log
    fails: tuple[int, ...] = ()  # syncs that end with an error
    expires: int | None = None  # the sync during which the endpoint's deadline passes


class Given(NamedTuple):
    """What a client was answered."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def label(self) -> str | None:
        """What was asked for that it boots; None: the disk, or nothing."""
        found = re.search(r"\bask=([a-z]+-\d+)", self.body) if self.status == 200 else None
        return found[1] if found else None

    @property
    def why_not(self) -> str | None:
        """Why a boot is not given."""
        found = re.search(r"# gitboot: not given: .* \((\w+)\); look", self.body)
        return found[1] if found else None


class Boots(NamedTuple):
    """How a machine boots from the network, if it does."""

    path: str
    goes_on: bool = True  # to what its entry names
    ends: str | None = None  # how its installer does: "provisioned", "failed"; None: it is silent
    proxy: bool = False


class Installer(NamedTuple):
    """Who is at work on the machine, or was last, and has not said yet how it ended."""

    ask: Ask
    report: str  # the path that its user data names

    def said(self, end: str) -> str:
        """Where it says so."""
        return self.report.replace("/provisioned/", f"/{end}/")


class MortalSpool(Spool):
    """A spool whose thread ends with its process, which is told."""

    ended: Callable[[], None] = staticmethod(lambda: None)
    has_ended = False

    def _run(self) -> None:
        try:
            super()._run()
        except Killed:
            self.has_ended = True
            self.ended()


class Forwarding(NamedTuple):
    """How an endpoint records in the PostgreSQL ledger that several hosts share."""

    shared: SharedFetches
    forwarder: Forwarder  # sends when the test lets it, and not in a thread


@dataclass
class Serving:
    """One endpoint's process."""

    endpoint: Endpoint
    tree: PublishedTree
    compared: ComparedClock
    spool: MortalSpool
    recording: Recording
    forwarding: Forwarding | None = None
    fate: Fate = field(default_factory=Fate)
    is_behind: bool = False  # whether something waits in its fetch log for the PostgreSQL

    def look(self) -> None:
        """Do what the process does each second."""
        self.tree.look()
        self.compared.keep()
        if self.forwarding is not None:
            self.is_behind = True
            with living(self.fate), suppress(NotTaken, Killed):
                self.forwarding.forwarder.send()
                self.is_behind = False

    def close(self) -> None:
        """End the process, which may be dead."""
        with living(self.fate), suppress(Killed):
            self.spool.close()
        if self.forwarding is not None:
            self.forwarding.shared.close()


@dataclass
class Site:
    """Everything, and what the machine was given."""

    folder: Path
    bmcs: Mapping[str, RedfishServer] = field(default_factory=dict)  # a leads to its own BMC, b to another machine's
    ways: Ways = field(default_factory=Ways)
    netboots: bool = True  # whether its firmware starts from the network by itself
    is_strict: bool = False  # whether it checks the promises of `tests.helpers.site_lives.faults`, too
    book: Book = field(default_factory=Book)
    counts: Counter[str] = field(default_factory=Counter)

    # What is true
    skew: timedelta = timedelta(0)  # of the host's clock, which instance and endpoint go by
    commit: Commit = field(default_factory=Commit)
    asked: Asked = field(default_factory=Asked)
    trailers: list[str] = field(default_factory=list)  # of all messages that have acknowledged anything
    seen: set[str] = field(default_factory=set)  # commits that the instance may have accepted
    since: list[Commit] = field(default_factory=list)  # the commits one of which the instance goes by
    settled: Commit | None = None  # the one, where that is sure
    history: list[Commit] = field(default_factory=list)
    open_as_set: list[str] = field(default_factory=list)  # what the override that stands may be for
    reconciled_at: datetime | None = None
    stopped: bool = False  # an operator has stopped what writes disks, and the instance knows
    stop_asked: bool = False
    loses_assets: bool = False
    slow: SlowSyncs | None = None  # how the endpoint's fetch log syncs

    # Who lives
    instance: Parts | None = None
    instance_fate: Fate = field(default_factory=Fate)
    serving: Serving | None = None

    installer: Installer | None = None
    cached: dict[str, Given] = field(default_factory=dict)  # by a proxy, by path
    backups: list[Path] = field(default_factory=list)
    mirror: Path | None = None  # the copy of OUTPUT/boot that was written last
    copies: CopyScript | None = None

    def __post_init__(self) -> None:
        self._stack, self._loop, self._next = ExitStack(), PassingLoop(), Boots(LOOKUPS[0])
        self.own, self.other = (self._machine(name) for name in ("web01", "stranger"))
        for name, server in self.bmcs.items():
            server.heal()
            server.service = Reading(self.other if name == "b" else self.own, credentials={"root": "secret"})
        self.own.on_boot, self.other.on_boot = self._own_booted, self._other_booted
        for asset in ASSETS:
            (self.folder / "assets" / asset).parent.mkdir(parents=True)
        self.assets_are_there()
        give_credentials(self.folder, password="secret")
        self.origin, self.ledger = Origin(self.folder / "git"), self._make_ledger()
        self.commit = replace(self.commit, bmc="a" if self.bmcs else None)
        self.book.ask(self.commit.label, ask_of(self.ways))
        self.push()
        self.start_instance("fresh")
        self.start_endpoint()
        self.reconcile()

    def _make_ledger(self) -> str:
        """Make the ledger and the folders of fetch logs; return the identity of the ledger."""
        for name in ("spool", "spool-b"):
            (self.folder / name).mkdir()
        return ledger_in(self.folder / "state")

    @property
    def place(self) -> Path:
        """The folder with OUTPUT and STATE of the instance."""
        return self.folder

    @property
    def spool(self) -> Path:
        """The fetch log of the endpoint that machines ask."""
        return self.folder / "spool"

    def _machine(self, name: str) -> Watched:
        machine = Watched(name, uuid=uuid_of(name), profile=GENERIC)
        machine.witness = self
        return machine

    @property
    def now(self) -> datetime:
        return self.own.now

    @property
    def clock(self) -> datetime:
        """What the host takes for now."""
        return self.now + self.skew

    @property
    def up(self) -> Uptime:
        """How long the host runs: no clock of its has a say in it."""
        return Uptime("this", (self.now - _BEGAN).total_seconds())

    @property
    def fate(self) -> Fate:
        """The instance's, for machines at whose BMC it dies."""
        return self.instance_fate

    def wait(self, seconds: float) -> None:
        """Let time pass for all, event by event."""
        ends = self.now + timedelta(seconds=seconds)
        for machine in (self.own, self.other):
            machine.advance((ends - machine.now).total_seconds())
        if self.serving is not None and not self.serving.fate.dead:
            self.serving.look()

    # Git

    def push(self, message: str = "Change", **changes: Any) -> None:
        """One commit more."""
        self.commit, self.settled = replace(self.commit, **changes), None
        self.since.append(self.commit)
        self.history.append(self.commit)
        addresses = {name: server.url for name, server in self.bmcs.items()}
        self.origin.push(self.commit.files(self.ways, addresses, self.own.path, self.ledger), message)

    def ask_for_installation(self, message: str = "Install it again", *, acknowledged: bool = True) -> None:
        """A commit by which it is to be installed."""
        label = self.asked.install()
        ask = ask_of(self.ways)
        ask.acknowledged = acknowledged and not self.ways.is_guarded
        self.book.ask(label, ask)
        image = self.commit.image
        if self.ways.often == "OnImageChange":
            image = 3 - image
        self.push(message, label=label, image=image, provision=self.commit.provision + 1)

    def move_mac(self, *, waits: bool, commits: int) -> None:
        """Give web01's MAC address to spare01, which waits for its first installation.

        With ``waits``, spare01 is in Git before with an address of its own; with two commits, web01 loses the address
        in the first. The machine keeps the address, so that spare01's installation is one of this machine.
        """
        if self.commit.spare is not None:
            return
        label = self.asked.install()
        ask = ask_of(self.ways)
        ask.acknowledged = not (self.ways.is_guarded and self._is_installed)
        self.book.ask(label, ask)
        if waits:
            self.push(spare=Spare(label=label))
            self.reconcile()
        if commits > 1:
            self.push(mac=mac_of("web01-new"))
            self.reconcile()
        self.push(mac=mac_of("web01-new"), spare=Spare(label=label, mac=mac_of("web01")))
        self.reconcile()
        self.counts["moved a MAC address"] += 1

    def move_mac_back(self) -> None:
        """Remove spare01, and give web01 the MAC address of its machine again."""
        if self.commit.spare is not None:
            self.push(mac=mac_of("web01"), spare=None)

    @property
    def _is_installed(self) -> bool:
        """Whether the machine was installed, by the evidence that this fleet counts."""
        installs = [ask for ask in self.book.asks.values() if ask.writes and not ask.windows]
        if self.ways.evidence == "Reported":
            return any(ask.provisioned for ask in installs)
        return any(ask.provisioned or len(ask.given) >= ask.boots for ask in installs)

    def ask_for_repair(self, window: Window) -> None:
        label = self.asked.repair()
        ask = ask_of(self.ways)
        ask.writes, ask.windows = False, [window]
        self.book.ask(label, ask)
        self.push(job=Job(label=label, window=window))

    def ask_for_wipe(self, window: Window, power: str | None = None) -> None:
        label = self.asked.wipe()
        ask = ask_of(Ways())
        ask.windows, ask.acknowledged = [window], not self.ways.is_guarded
        self.book.ask(label, ask)
        self.push(job=Job(label=label, window=window, run=self.asked.wipes, power=power))

    def move_window(self, start: float, end: float) -> None:
        """Another window for what is in Git; it is the same job, unless it has run before its new start."""
        job = self.commit.job
        if job is None:
            return
        moved = Window(job.window.start + timedelta(seconds=start), job.window.end + timedelta(seconds=end))
        if moved.start < min(moved.end, job.window.end):
            self.book.asks[job.label].windows.append(moved)
            self.push(job=replace(job, window=moved))

    def rewind(self) -> None:
        """Somebody forces the branch to a commit beside the newest, with every old acknowledgement in its message."""
        newest = self.origin.line[-1]
        if self.origin.rewind():
            self.ask_for_installation("\n".join(["Another", "", *self.trailers]), acknowledged=newest not in self.seen)

    def approve(self) -> None:
        """An operator acknowledges what is held."""
        held = self.instance.reconciler.status.held if self.instance is not None else None
        if self.instance is None or held is None or held.commit != self.origin.line[-1]:
            return
        if self._request(APPROVE, {"digest": held.digest, "guards": list(held.guards), "reason": "looked at"}):
            self.book.acknowledge(self.commit.labels)
            self.counts["acknowledged with a shell"] += 1

    def acknowledge_in_message(self) -> None:
        """A commit more whose message acknowledges what is held, which means nothing where commits were taken back."""
        held = self.instance.reconciler.status.held if self.instance is not None else None
        if held is None or held.commit != self.origin.line[-1]:
            return
        lines = [trailer(held.digest, Guard(guard)) for guard in held.guards]
        self.trailers += lines
        if str(Guard.ALLOW_REWIND) not in map(str, held.guards):
            self.book.acknowledge(self.commit.labels)
            self.counts["acknowledged in a message"] += 1
        self.push("\n".join(["Acknowledge", "", *lines]))

    # The instance

    def start_instance(self, initial: str | None = None) -> None:
        self.instance_fate, stack = Fate(), ExitStack()
        self.instance = stack.enter_context(self._instance(initial))
        self._stack = stack

    def _instance(self, initial: str | None = None) -> AbstractContextManager[Parts]:
        limits = {**UNGUARDED, "max_bmc_changes": 10**6, "max_reinstalls": 0 if self.ways.is_guarded else 10**6}
        return in_process(
            self.place,
            self.origin.path,
            limits=Limits(**limits),
            clock=lambda: self.clock,
            initial=initial,
            credentials=self.folder,
            uptime=self._uptime_of(self.place),
            lease_s=_LEASE_S,
        )

    def _uptime_of(self, host: Path) -> Callable[[], Uptime]:
        """Return what tells how long a host runs; ``host`` is its folder."""
        return lambda: self.up

    def stop_instance(self) -> None:
        with living(self.instance_fate), suppress(Killed):
            self._stack.close()
        self._stack, self.instance = ExitStack(), None
        for machine in (self.own, self.other):
            machine.at_patch = None

    def reconcile(self) -> None:
        """Fetch and reconcile, as far as the instance lives."""
        if self.instance is None:
            return
        parts, fetched = self.instance, True
        with living(self.instance_fate), suppress(Killed):
            try:
                parts.source.fetch()
            except GitbootError:  # a restored clone is made anew by the next reconcile
                self.counts["fetches failed"] += 1
                fetched = False
            for _ in range(_MOST_AT_ONCE):
                due = parts.reconciler.reconcile(self.clock, wait=True)
                if due is None or due > self.clock:
                    break
        self.instance_fate.dies_in = None
        if self.is_strict and not self.instance_fate.dead:
            self._no_file_is_left_in_a_window()
        if self.serving is not None and not self.serving.fate.dead:
            self.serving.look()
        self.seen.add(self.origin.line[-1])
        if self.instance_fate.dead:
            self.counts["instance killed"] += 1
            self.stop_instance()
            return
        self.counts["reconciled"] += 1
        self.reconciled_at = self.now
        self.stopped = self.stop_asked
        newest, status = self.origin.line[-1], parts.reconciler.status
        if fetched and status.accepted == status.applied == newest:
            self.settled, self.since = self.commit, [self.commit]
            self._every_report_was_heard()

    # The endpoint

    def start_endpoint(self) -> None:
        self.stop_endpoint()
        self.serving = self._served(self.spool)

    def _served(self, folder: Path) -> Serving:
        output, up = self.place / "output", self._uptime_of(folder.parent)
        spool = MortalSpool(folder)
        compared = ComparedClock(lambda: self.clock, folder=aside(folder), uptime=up)
        tree = PublishedTree(output, lambda: self.clock, compared=compared, words=Words(*folders(output, folder)))
        recording, forwarding = Recording(spool, _DEADLINE_S), self._forwarding(folder)
        recorder: Recorder = recording
        if forwarding is not None:
            recorder = ForwardedRecording(recording, forwarding.shared, _DEADLINE_S)
        endpoint = Endpoint(output, tree, lambda: self.clock, recorder, assets=self.folder / "assets")
        return Serving(endpoint, tree, compared, spool, recording, forwarding)

    def _forwarding(self, folder: Path) -> Forwarding | None:
        """Return how an endpoint with this fetch log reaches the ledger that other hosts share."""
        return None

    def stop_endpoint(self) -> None:
        if self.serving is not None:
            self.serving.close()
        self.serving = None

    def fetch(self, path: str, client: str = ITSELF, agent: str = IPXE, **more: str) -> Given | None:
        """What the endpoint answers; None where none lives, or it died of it."""
        if (serving := self.serving) is None:
            return None
        answer = self._fetch_from(serving, path, client, agent, more)
        if serving.fate.dead:
            self.counts["endpoint killed"] += 1
            for each in self.since:  # what it had recorded it has given, for all that anybody knows
                self.book.asks[each.label].may_be_done = True
            self.stop_endpoint()
        return answer

    def fetch_elsewhere(self, path: str) -> Given | None:
        """What another endpoint of the same tree answers, which has a spool of its own."""
        other = self._served(self.folder / "spool-b")
        try:
            return self._fetch_from(other, path, ITSELF, IPXE, {})
        finally:
            other.close()

    def _fetch_from(
        self, serving: Serving, path: str, client: str, agent: str, more: Mapping[str, str]
    ) -> Given | None:
        headers = {"host": "boot.test", "user-agent": agent, **more}
        method, body = headers.pop("method", "GET"), headers.pop("body", "")
        with living(serving.fate):
            try:
                serving.look()
                asked = self._loop.create_task(
                    ask_endpoint(serving.endpoint, method, path, client, headers.items(), body)
                )
                serving.spool.ended = lambda: self._ended(asked)
                if serving.spool.has_ended:  # since the answer before: it writes the outcome after the answer
                    self._ended(asked)
                self._disturb(serving, asked)
                answer = self._loop.run_until_complete(asked)
                self._come_to_rest(serving)
            except (asyncio.CancelledError, Killed):
                return None
            if serving.fate.dies_in is not None:  # it dies before it has answered, with all written down
                serving.fate.dead = True
                return None
        if (why := answer.why_not) is not None:
            self.counts[f"refused: {why}"] += 1
        return answer

    def _disturb(self, serving: Serving, asked: asyncio.Task[Given]) -> None:
        """Let a fault befall a fetch while it is answered."""
        if self.slow is not None:
            self._answer_slowly(serving, asked, self.slow)

    def _come_to_rest(self, serving: Serving) -> None:
        """Wait for what an endpoint goes on with after an answer, if what follows depends on that."""

    def _answer_slowly(self, serving: Serving, asked: asyncio.Task[Given], slow: SlowSyncs) -> None:
        """Answer a fetch while the fetch log syncs slowly, and let the log come to rest."""
        syncs, number = HeldSyncs(), 0
        with holding(syncs):
            while not asked.done():
                self._loop.run_until_complete(_until_sync(asked, syncs))
                if not syncs.begun.empty() and (ends := syncs.begun.get()) is not None:
                    self._sync(ends, number, asked, slow)
                    number += 1
            serving.spool.call(lambda: None).add_done_callback(lambda _: syncs.begun.put(None))
            while (ends := syncs.begun.get()) is not None:  # what takes a line back is synced after the answer
                self._sync(ends, number, asked, slow)
                number += 1
        self._loop.run_until_complete(serving.recording.settle())  # it records again

    def _sync(self, ends: Future[None], number: int, asked: asyncio.Task[Given], slow: SlowSyncs) -> None:
        """Do what happens during one sync, and end the sync."""
        try:
            if number in slow.reads:
                self.counts["read during a sync"] += 1
                self.reconcile()
            if number == slow.expires:
                self.counts["the deadline passed during a sync"] += 1
                self._pass_deadlines(asked)
        finally:
            if number in slow.fails:
                self.counts["a sync failed"] += 1
                ends.set_exception(OSError(errno.EIO, os.strerror(errno.EIO)))
            else:
                ends.set_result(None)

    def _pass_deadlines(self, asked: asyncio.Task[Given]) -> None:
        """Let an endpoint's deadlines pass until it answers."""
        for _ in range(_MOST_DEADLINES):
            if asked.done():
                break
            self._loop.passed_s += _DEADLINE_S + 1
            self._loop.run_until_complete(asyncio.wait([asked], timeout=_ANSWERED_S))

    def _ended(self, asked: asyncio.Task[Given]) -> None:
        self._loop.call_soon_threadsafe(asked.cancel)

    # Boots

    def boot(self, path: str, *, goes_on: bool, ends: str | None = None, proxy: bool = False) -> None:
        """The machine boots, after its POST where it has a BMC."""
        self._next = Boots(path, goes_on, ends, proxy)
        if self.bmcs:
            self.own.reset()
            self.wait(self.own.post_s)
        else:
            self._boots_network(self._next)

    def _own_booted(self, boot: Boot) -> None:
        by_override = boot.target in NETWORK
        if by_override:
            self.counts["consumed"] += 1
            self.book.is_consumed(self.open_as_set, self.now)
            self.open_as_set = []
        if by_override or (boot.target == "None" and self.netboots):
            self._boots_network(self._next)

    def _other_booted(self, boot: Boot) -> None:
        if boot.target in NETWORK:
            self.book.wrong(self.now, "another machine boots from the network")

    def _boots_network(self, boots: Boots) -> None:
        """It fetches its entry; where it goes on, what the entry names, and what its installer has to say."""
        answer = self._through_proxy(boots.path) if boots.proxy else self.fetch(boots.path)
        self._judge(answer)
        self._has_entry()
        label = answer.label if answer is not None else None
        if answer is None or label is None or not boots.goes_on:
            return
        for url in re.findall(rf"{BASE}(/[^\s'\";]+)", answer.body):
            if "/assets/" in url or (data := self.fetch(url)) is None or data.status != 200:
                continue
            if data.label is None and "/data/" in url:
                ask = self.book.started(label)
                self.installer = self._installer(ask, data.body)
                if boots.ends is not None:
                    self.report(boots.ends)

    def _has_entry(self) -> None:
        """Let something happen after the machine has got its entry, before it fetches what the entry names."""

    def _installer(self, ask: Ask, data: str) -> Installer | None:
        """Who was given this user data; None: it has nothing to say."""
        url = str(json.loads(data)["x"])
        return Installer(ask, urlsplit(url).path) if url else None

    def report(self, end: str) -> bool:
        """The installer says how it ended, to where its user data had it, whatever has been decided since."""
        if (installer := self.installer) is None:
            return False
        more = {"method": "POST", "body": "no disk"} if end == "failed" else {}
        said = self.fetch(installer.said(end), **more)
        if said is None:
            return False
        self.installer = None
        if said.status not in (200, 204):
            self.counts[f"report not taken: {said.status}"] += 1
            if self.slow is not None and end == "failed":
                installer.ask.reported(failed=True)  # the log may have it all the same, and it is true
            return False
        installer.ask.reported(failed=end == "failed")
        self.counts[f"reported {end}"] += 1
        return True

    def _through_proxy(self, path: str) -> Given | None:
        """What a cache gives that asks whether what it has is still right."""
        held = self.cached.get(path)
        asked = {}
        if held is not None and "etag" in held.headers:
            asked["if-none-match"] = held.headers["etag"]
        if held is not None and "last-modified" in held.headers:
            asked["if-modified-since"] = held.headers["last-modified"]
        answer = self.fetch(path, PROXY, **asked)
        if answer is not None and answer.status == 304:
            return held
        if answer is not None and answer.status == 200 and "no-store" not in answer.headers.get("cache-control", ""):
            self.cached[path] = answer
        return answer

    def _judge(self, answer: Given | None) -> None:
        """Hold what a machine was given against the book."""
        if answer is None:
            return
        label = answer.label
        self.counts["booted its disk" if label is None else f"given: {label.partition('-')[0]}"] += 1
        if label is None:
            return
        self.book.given(label, self.now, self.clock)
        ask = self.book.asks[label]
        if self.settled is not None and label not in self.settled.labels:
            self.book.wrong(self.now, f"{label} is given, and Git does not want it any more")
        if not ask.writes:
            return
        if self.stopped:
            self.book.wrong(self.now, f"{label} is given, and an operator has stopped all that writes disks")
        if self.settled is not None and (self.settled.stopped or self.settled.lifecycle != "Active"):
            self.book.wrong(self.now, f"{label} is given, and Git has stopped it, or parked the server")
        if self.loses_assets:
            self.book.wrong(self.now, f"{label} is given, and its kernel is not there")

    def look(self, path: str, agent: str, method: str) -> None:
        """Somebody else asks for the entry."""
        answer = self.fetch(path, OTHERS[agent], agent, method=method)
        self.nobody_else_is_given(answer, f"{agent} from {OTHERS[agent]}")

    def nobody_else_is_given(self, answer: Given | None, who: str) -> None:
        label = answer.label if answer is not None else None
        if label is not None and self.book.asks[label].writes:
            self.book.wrong(self.now, f"{label} is given to {who}")

    def serve_static(self, path: str) -> None:
        """A mirror of the tree gives the machine what stands there."""
        with suppress(OSError):
            text = (self.place / "output" / "boot" / path.lstrip("/")).read_text()
            if self.ways.names_endpoint:
                self.nobody_else_is_given(Given(200, {}, text), "a mirror's client")

    def bring_up_mirror(self, replaced: int) -> None:
        """Bring a folder target up to the tree; ``replaced`` files later it is killed, unless that is 0."""
        (mirror := self.folder / "mirror").mkdir(exist_ok=True)
        self.mirror = mirror / "boot"
        with closing(TargetFolder(mirror)) as store:
            target = StoreTarget(
                "mirror", lambda: store, ledger="of the site", heir_of=lambda: None, writer="a process"
            )
            tree = FollowedTree(self.folder / "output")
            with suppress(TargetKilled), patch.object(Disk, "place", killed_after(replaced)):
                bring_up(target, tree)
                return
        self.counts["mirror copied halfway"] += 1

    def copy_to_mirror(self, call: int, meanwhile: Callable[[], None] | None) -> None:
        """Copy the tree by the documented script, and do something before a call of it, or kill it there if None."""
        self.copies = self.copies or CopyScript(self.folder / "copies", self.folder / "commands")
        self.mirror, source = self.copies.current, self.folder / "output/boot"
        if meanwhile is None:
            self.copies.run_killed(source, call)
        else:
            self.copies.run_halted(source, call, meanwhile)
        self.counts["mirror copied by the script"] += 1

    def boot_from_mirror(self, path: str) -> None:
        """Let the machine boot from the mirror, which must have all files that its boot scripts name."""
        if (boot := self.mirror) is None:
            return
        for script in (each for each in boot.rglob("*") if each.is_file() and "/data/" not in str(each)):
            for url in re.findall(rf"{BASE}(/[^\s'\";]+)", script.read_text()):
                if "/data/" in url and not (boot / url.lstrip("/")).exists():
                    self.book.wrong(self.now, f"the mirror's {script.name} names {url}, which the mirror does not have")
        try:
            text = (boot / path.lstrip("/")).read_text()
        except FileNotFoundError:
            return
        entry = Given(200, {}, text)
        if self.ways.names_endpoint:
            self.nobody_else_is_given(entry, "a mirror's client")
        self.counts["booted from a mirror"] += entry.label is not None

    def assets_are_there(self) -> None:
        for asset in ASSETS:
            (self.folder / "assets" / asset).write_bytes(b"kernel")
            (self.folder / "assets" / asset).with_name("initrd").write_bytes(b"initrd")
        self.loses_assets = False

    def assets_are_lost(self) -> None:
        for asset in ASSETS:
            (self.folder / "assets" / asset).unlink(missing_ok=True)
        self.loses_assets = True

    # BMCs

    def intruded(self, at: datetime) -> None:
        """Somebody else has written to a BMC; whose override stands is not asked then."""

    def ejected(self, machine: Watched, image: str) -> None:
        """None of its commits wants a medium: what lies in a drive is somebody else's."""
        raise AssertionError(f"{image} was ejected from {machine.name}")

    def written(
        self, machine: Watched, before: Mapping[str, str | None], after: Mapping[str, str | None], *, overwrote: bool
    ) -> None:
        """Judge what gitboot has written to a BMC."""
        if after[ENABLED] == "Disabled":
            self.counts["withdrawn"] += 1
            return
        self.counts["set"] += 1
        shown = f"{after[ENABLED]} {after[TARGET]}"
        if machine is not self.own:
            self.book.wrong(self.now, f"{shown} is set on another machine")
        wanted = set().union(*(each.own_labels for each in self.since))
        self.open_as_set = [label for label in sorted(wanted) if self.book.is_open(label, self.clock)]
        if not self.open_as_set:
            self.book.wrong(self.now, f"{shown} is set, and nothing that was asked for is open")
        if self.stopped and not any(not self.book.asks[label].writes for label in wanted):
            self.book.wrong(self.now, f"{shown} is set, and an operator has stopped all that writes disks")

    def switched(self, machine: Watched, kind: str) -> None:
        """Judge what gitboot does to a machine's power."""
        self.counts[f"power: {kind}"] += 1
        if machine is not self.own:
            self.book.wrong(self.now, f"{kind} is asked for of another machine")
        if (machine.power == "Off") is not (kind == "On"):
            self.book.wrong(self.now, f"{kind} is asked for of a machine that is {machine.power}")
        if self.stopped:
            self.book.wrong(self.now, f"{kind} is asked for, and an operator has stopped all that writes disks")
        jobs = (each.job for each in self.since if each.job is not None and each.job.power is not None)
        self.book.switched({job.label for job in jobs}, self.now, self.clock)

    # Disasters

    def back_up(self) -> None:
        """Copy STATE and OUTPUT while nobody writes."""
        alive = self.instance is not None
        self.stop_instance()
        backup = self.folder / f"backup-{len(self.backups)}"
        for name in ("state", "output"):
            if (self.folder / name).exists():
                shutil.copytree(self.folder / name, backup / name, symlinks=True)
        self.backups.append(backup)
        if alive:
            self.start_instance()

    def restore(self, backup: Path, names: Iterable[str]) -> None:
        """Put back what was copied; what the instance goes by then is not sure."""
        self.stop_instance()
        for name in names:
            shutil.rmtree(self.folder / name, ignore_errors=True)
            if (backup / name).exists():
                shutil.copytree(backup / name, self.folder / name, symlinks=True)
        self._is_unsure()

    def lose_output(self) -> None:
        self.stop_instance()
        self.stop_endpoint()
        shutil.rmtree(self.folder / "output", ignore_errors=True)
        self._is_unsure()

    @contextmanager
    def full(self) -> Iterator[None]:
        """A block in which nothing can be published."""
        self.counts["nothing could be published"] += 1
        with patch.object(Directory, "publish", side_effect=PublishError("No space left on device")):
            yield

    @contextmanager
    def unwritable(self, how: str) -> Iterator[None]:
        """A block in which the ledger is ``locked`` by another process, or its disk is ``full``."""
        self.counts[f"ledger {how}"] += 1
        if how == "full":
            with full_ledger():
                yield
            return
        if self.instance is not None:  # waits for no lock: whoever holds it keeps it
            self.instance.ledger.database.execute("PRAGMA busy_timeout = 0")
        with closing(sqlite3.connect(self.folder / "state" / LEDGER, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            try:
                yield
            finally:
                other.execute("ROLLBACK")
        if self.instance is not None:
            self.instance.ledger.database.execute("PRAGMA busy_timeout = 5000")  # as sqlite3.connect sets it

    def restart_bmc(self, clock: int | None, *, forgets: bool) -> None:
        """The BMC of its machine comes up anew, by how many hours off; 0: in 1970, None: with the time as it was."""
        off = {None: None, 0: datetime(1970, 1, 1, tzinfo=UTC)}
        self.own.restart_bmc(clock=off.get(clock, self.now + timedelta(hours=clock or 0)), forgets=forgets)
        self.counts["BMC restarted"] += 1

    def _is_unsure(self) -> None:
        """Nobody can say what of the orders an older copy knows."""
        self.settled, self.stopped, self.stop_asked = None, False, False
        self.since = list(self.history)
        self.seen.clear()
        if not self.ways.is_guarded:
            self.book.acknowledge(self.book.asks)

    # Operators

    def _request(self, what: str, facts: Mapping[str, Any]) -> bool:
        if self.instance is None:
            return False
        instance_tables.give(self.instance.ledger, self.clock, "ada", what, facts)
        return True

    def set_record(self, *, provisioned: bool) -> None:
        """An operator wants it installed once more, or says that it is installed."""
        if provisioned and self.settled is None:
            return  # nobody could say of which
        wanted = self.settled or self.commit
        record = Record()
        if provisioned:
            image = f"flatcar-{wanted.image}"
            record = Record(provision=wanted.provision, image=image, evidence="Operator", provisioned_at=self.clock)
        item = {"uuid": uuid_of("web01"), "server": "web01", **record_facts(record)}
        if self.instance is not None:
            known = self.instance.reconciler.standing.knowledge.recorded(SystemUuid(uuid_of("web01")))
            item["runs"] = record_facts(known or Record())["runs"]  # as `gitboot records set` keeps them
        if self._request(RECORDS, {"items": [item], "reason": "I was there"}):
            for label in {each.label for each in self.since}:
                if provisioned:
                    self.book.asks[label].may_be_done = True
                elif self.book.asks[label].acknowledged:
                    self.book.ask_again(label, since=self.reconciled_at)

    def stop(self, *, everything: bool) -> None:
        """Say it where endpoints look, who obey at once, and to the instance, if there is one."""
        for folder in self._looked_into:
            say(folder, Stoppage("ada", "smoke", everything), self.clock)
            self.stopped = self.stop_asked = True
        self.counts["stopped without an instance"] += self.instance is None
        if self._request(STOP, {"reason": "smoke", "everything": everything}):
            self.stop_asked = True
            self.reconcile()

    def start(self) -> None:
        for folder in self._looked_into:
            take_back(folder)
        self.stopped = self.stop_asked = False
        if self._request(START, {}):
            self.reconcile()

    @property
    def _looked_into(self) -> list[Path]:
        return [each for each in folders(self.place / "output", self.spool) if each.is_dir()]

    def adopt(self) -> None:
        """An operator says of a ledger in doubt that all is installed as Git wants it."""
        if self.instance is None:
            return
        before = len(self.instance.events)
        self._request(BEGIN, {"how": "adopt"})
        self.reconcile()
        if self.instance is None:
            return
        if any(each.type == "RecordsBegun" and "begins with" in each.message for each in self.instance.events[before:]):
            self.counts["adopted"] += 1
            if self.settled is not None:
                self.book.is_done(self.settled.label)

    def accept_clock(self) -> None:
        if self._request(CLOCK, {"reason": "it is right"}):
            self.reconcile()

    # The end

    def calm_down(self) -> None:
        """All live, the clock is right, and a while passes."""
        for machine in (self.own, self.other):
            machine.at_patch = None
        if self.instance is None:
            self.start_instance()
        self.skew = timedelta(0)
        self.assets_are_there()
        self.start_endpoint()
        self.slow = None
        if self.is_strict:
            self.reconcile()
            self._record_was_given()
        for path in LOOKUPS:
            self.wait(61)
            self.reconcile()
            self.boot(path, goes_on=False)
        self._every_report_was_heard()
        job = self.commit.job
        for path in LOOKUPS:
            answer = self.fetch(path, MONITOR, "monitor")
            label = answer.label if answer is not None else None
            if job is not None and label == job.label and job.window.end + GRACE <= self.now:
                self.book.wrong(self.now, f"{path} offers {label}, which is over")
        self.wait(_ASKED_AFTER_S)
        self.reconcile()
        self.boot(LOOKUPS[0], goes_on=False)
        self._nobody_is_stranded()

    def _is_over(self, label: str) -> bool:
        """Whether a boot is one of a maintenance of which no window is open any more."""
        windows = self.book.asks[label].windows
        return bool(windows) and all(each.end + GRACE <= self.now for each in windows)

    def _no_file_is_left_in_a_window(self) -> None:
        """A published file of a maintenance ends with its window, whatever the ledger takes."""
        if self.skew:
            return
        for path in LOOKUPS:
            with suppress(FileNotFoundError):
                text = (self.place / "output" / "boot" / path.lstrip("/")).read_text()
                label = Given(200, {}, text).label
                if label is not None and self._is_over(label):
                    self.book.wrong(self.now, f"the file of {path} still boots {label}, which is over")

    def no_override_is_left_in_a_window(self) -> None:
        """An override for a maintenance is withdrawn after its window, whatever the ledger takes."""
        if self.instance is None or self.own.override[ENABLED] == "Disabled" or not self.open_as_set:
            return
        if all(map(self._is_over, self.open_as_set)):
            self.book.wrong(self.now, f"{self.own.shows()} still stands for {', '.join(self.open_as_set)}: it is over")

    def outlast(self, window: Window, how: str, path: str) -> None:
        """Let a window end while the ledger cannot be written; then the machine boots."""
        with self.unwritable(how):
            self.wait((window.end + GRACE - self.now).total_seconds() + 1)
            self.reconcile()
            if self.bmcs:
                for _ in range(3):
                    self.wait(_WITHDRAWN_WITHIN_S / 3)
                    self.reconcile()
                self.no_override_is_left_in_a_window()
            self.boot(path, goes_on=True)
        self.reconcile()

    def _record_was_given(self) -> None:
        """What the ledger records as begun or installed was given to the machine, or a person has said so."""
        if self.instance is None or self.settled is None:
            return
        record = self.instance.reconciler.standing.knowledge.recorded(SystemUuid(uuid_of("web01")))
        ask = self.book.asks[self.settled.label]
        if record is None or ask.may_have_been_made:
            return
        key = ["provision", str(self.settled.provision)]  # OnImageChange adds the image
        if record.provision == self.settled.provision:
            self.book.wrong(self.now, f"{self.settled.label} was not given, and is recorded as installed: {record}")
        elif any(each.key.split("/")[:2] == key and each.boots for each in record.attempts):
            self.book.wrong(self.now, f"{self.settled.label} was not given, and is recorded as begun")

    def _nobody_is_stranded(self) -> None:
        """What was asked for was given by now, or a condition says why it is not."""
        assert self.instance is not None
        found, wanted = self.instance.reconciler.status, self.settled
        if wanted is None or not (self.netboots or wanted.bmc == "a"):
            return
        if wanted.stopped or wanted.lifecycle != "Active" or self.stopped:
            return
        ask = self.book.asks[wanted.label]
        if ask.may_have_been_made or not all(each.status for each in found.conditions):
            return
        if wanted.job is not None and self.book.asks[wanted.job.label].windows[-1].covers(self.now):
            return
        self.book.wrong(self.now, f"{wanted.label} was asked for, is not given, and no condition says why")

    def _every_report_was_heard(self) -> None:
        """What an installer has said to be installed is known as installed, or a condition says what is in doubt."""
        assert self.instance is not None
        wanted, conditions = self.settled, self.instance.reconciler.status.conditions
        if wanted is None or not self.book.asks[wanted.label].provisioned:
            return
        if not all(each.status for each in conditions):
            return
        record = self.instance.reconciler.standing.knowledge.recorded(SystemUuid(uuid_of("web01")))
        self.counts["known as provisioned"] += 1
        if record is None or record.provision is None or record.provision < wanted.provision:
            self.book.wrong(self.now, f"{wanted.label} was reported as provisioned, and is not known as that: {record}")

    def close(self) -> None:
        self.stop_instance()
        self.stop_endpoint()
        self._loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


async def _until_sync(asked: asyncio.Task[Given], syncs: HeldSyncs) -> None:
    """Wait until a fetch is answered, or a sync of its log begins."""
    begins, loop = asyncio.Event(), asyncio.get_running_loop()
    syncs.on_begin = lambda: loop.call_soon_threadsafe(begins.set)
    if syncs.begun.empty():
        waits = asyncio.create_task(begins.wait())
        await asyncio.wait([asked, waits], return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()


async def ask_endpoint(
    endpoint: Endpoint, method: str, path: str, client: str, headers: Iterable[tuple[str, str]], body: str
) -> Given:
    """Return the answer of an endpoint to one request, without a network."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": body.encode(), "more_body": False}

    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in headers],
        "client": (client, 40000),
        "server": ("boot.test", 80),
        "scheme": "http",
    }
    await endpoint(scope, receive, send)
    answered = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return Given(sent[0]["status"], answered, b"".join(each.get("body", b"") for each in sent[1:]).decode())
