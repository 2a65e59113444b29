"""A site that runs: commits, an instance, endpoints, machines with BMCs, and clocks that may be wrong."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import pygit2

from gitboot.endpoint.app import Endpoint
from gitboot.endpoint.checked_clock import CheckedClock
from gitboot.endpoint.recorder import Recorder, SharedRecorder, SpoolRecorder
from gitboot.endpoint.served_files import PublishedTree
from gitboot.errors import GitbootError
from gitboot.fetchlog.spool import get_endpoint_folder
from gitboot.jsonio import format_instant
from gitboot.model.scalars import SystemUuid
from gitboot.publish.tree_reader import StopReader, list_stop_folders
from gitboot.review.guards import Limits
from gitboot.system_clock import Uptime
from tests.helpers import fleets
from tests.helpers.bmcs import NETWORK, ReadTracker, WatchedMachine
from tests.helpers.fleets import make_mac, make_uuid, store_credentials
from tests.helpers.instance_in_process import UNGUARDED, Parts, run_in_process
from tests.helpers.redfish_double.machine import Boot
from tests.helpers.redfish_double.profiles import ENABLED, GENERIC, TARGET
from tests.helpers.redfish_double.server import RedfishServer
from tests.helpers.running_instance import create_ledger
from tests.helpers.site_lives.book import GRACE, Book, BootRequest, Window
from tests.helpers.site_lives.processes import (
    BootResponse,
    CrashPlan,
    FetchForwarding,
    HeldSyncs,
    Killed,
    MortalSpool,
    PassingLoop,
    RunningEndpoint,
    SlowSyncs,
    ask_endpoint,
    hold_syncs,
    run_as,
    wait_for_sync,
)

# The commits about the one server of a life, and a repository in which commits cost nothing.

_WHO: Final = pygit2.Signature("A", "a@example.net", 0, 0)
BASE: Final = "http://boot.test"


@dataclass(frozen=True, kw_only=True)
class Ways:
    """The provisioning of a fleet during its whole life."""

    often: str = "Once"
    evidence: str = "Fetched"
    attempts: int = 1
    boots: int = 1
    names_endpoint: bool = True  # the endpoint that serves one-time boots, if mirrors serve files too
    is_guarded: bool = False  # whether each reinstallation has to be acknowledged


@dataclass(frozen=True, kw_only=True)
class Job:
    """A maintenance: a repair, which writes no disk, or a wipe, which is made once a run."""

    label: str
    window: Window
    run: int | None = None  # None: a repair
    power: str | None = None  # what a wipe does to its machine

    def documents(self) -> list[str]:
        window = f"window: {{start: '{format_instant(self.window.start)}', end: '{format_instant(self.window.end)}'}}"
        arguments = f"kernelArguments: ['ask={self.label}']"
        if self.run is None:
            return [
                fleets.profile("repair", "memtest-7", arguments),
                fleets.maintenance("repair", "", window),
            ]
        once = f"{window}, networkBoot: Once, run: {self.run}"
        once += f", power: '{self.power}'" if self.power is not None else ""
        return [fleets.profile("wipe", "wiper-1", arguments), fleets.maintenance("wipe", "", once, boots="wipe")]


@dataclass(frozen=True, kw_only=True)
class Spare:
    """Another server in Git, spare01, which waits for its first installation."""

    label: str
    mac: str = make_mac("spare01")

    def documents(self) -> list[str]:
        server = fleets.server("spare01", "role: spare", "provision: 1").replace(make_mac("spare01"), self.mac)
        arguments = f"userData: {{format: Ignition/3.4, template: t}}, kernelArguments: ['ask={self.label}']"
        return [
            server,
            fleets.profile("spare", "flatcar-1", arguments),
            fleets.policy("spare", "{matchLabels: {role: spare}}", boots="spare", often="Once"),
        ]


@dataclass(frozen=True, kw_only=True)
class Commit:
    """The commit about the server."""

    label: str = "install-1"
    provision: int = 1
    image: int = 1
    lifecycle: str = "Active"
    stopped: bool = False
    bmc: str | None = None
    job: Job | None = None
    mac: str = make_mac("web01")  # of web01's only interface
    spare: Spare | None = None

    @property
    def own_labels(self) -> set[str]:
        return {self.label} | ({self.job.label} if self.job is not None else set())

    @property
    def labels(self) -> set[str]:
        """Return the labels of all boots that Git wants."""
        return self.own_labels | ({self.spare.label} if self.spare is not None else set())

    def files(self, ways: Ways, bmcs: Mapping[str, str], system: str, ledger: str) -> dict[str, str]:
        attempts = f", attempts: {ways.attempts}" if ways.evidence == "Reported" else ""
        spec = f"baseURL: '{BASE}', outputs: [ipxe, grub, uuid]"
        spec += f", provisioning: {{ledger: {ledger}, evidence: {ways.evidence}, monitors: [10.9.0.0/24]{attempts}}}"
        spec += f", endpoint: '{BASE}'" if ways.names_endpoint else ""
        spec += ", stopped: 'smoke in rack 4'" if self.stopped else ""
        bmc = self.bmc and f", bmc: {{address: '{bmcs[self.bmc]}', system: {system}, credentials: rack}}"
        server = f"provision: {self.provision}, lifecycle: {self.lifecycle}{bmc or ''}"
        documents = [
            fleets.fleet(spec),
            fleets.server("web01", "role: web", server).replace(make_mac("web01"), self.mac),
            *(fleets.image(f"flatcar-{each}", f"userData: Ignition/3.4, boots: {ways.boots}") for each in (1, 2)),
            fleets.image("wiper-1"),
            fleets.image("memtest-7", "writesDisk: false"),
            fleets.profile(
                "web",
                f"flatcar-{self.image}",
                f"userData: {{format: Ignition/3.4, template: t}}, kernelArguments: ['ask={self.label}']",
            ),
            fleets.policy("web", "{matchLabels: {role: web}}", often=ways.often),
            *(self.spare.documents() if self.spare is not None else ()),
            *(self.job.documents() if self.job is not None else ()),
        ]
        report = '"x": "{{ urls.provisioned }}"' if ways.evidence == "Reported" else '"x": ""'
        template = f'{{"ignition": {{"version": "3.4.0"}}, {report}}}'
        return {f"{number:02}.yaml": text for number, text in enumerate(documents)} | {"t": template}


class Origin:
    """A bare repository that is written without Git's programs, with the same commits."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._repository = pygit2.init_repository(folder, bare=True, initial_head="main")
        self.line: list[str] = []  # of commits, that lead to the newest

    def push(self, files: Mapping[str, str], message: str = "Change") -> None:
        """One commit more on the branch."""
        builder = self._repository.TreeBuilder()
        for name, text in files.items():
            builder.insert(name, self._repository.create_blob(text.encode()), pygit2.enums.FileMode.BLOB)
        parents = [pygit2.Oid(hex=self.line[-1])] if self.line else []
        commit = self._repository.create_commit(None, _WHO, _WHO, message, builder.write(), parents)
        self._repository.references.create("refs/heads/main", commit, force=True)
        self.line.append(str(commit))

    def rewind(self) -> bool:
        """Go back by one commit; the next one is a sibling of the dropped one."""
        if len(self.line) < 2:
            return False
        self.line.pop()
        return True


def make_request(ways: Ways) -> BootRequest:
    """Return the request for an installation with this provisioning."""
    return BootRequest(boots=ways.boots, attempts=ways.attempts if ways.evidence == "Reported" else 1)


# A site: repository, instance, endpoints, a mirror, machines with BMCs, and clocks that may be wrong.
#
# Git, ledger, tree, fetch log, endpoints and Redfish are real; all run in this process, and can die at any of their
# system calls. The boots of machines go into a book that does not use gitboot.

MAC: Final = make_mac("web01").replace(":", "-")
LOOKUPS: Final = (f"/v1/boot/{MAC}/boot.ipxe", f"/ipxe/{make_uuid('web01')}", f"/v1/boot/{MAC}/grub.cfg")
ITSELF, PROXY, MONITOR, CURL, HERE = "10.0.0.7", "10.0.0.3", "10.9.0.5", "10.0.0.99", "127.0.0.1"
IPXE: Final = "iPXE/1.21.1+ (g988d2)"
ASSETS: Final = tuple(f"{image}/kernel" for image in ("flatcar-1", "flatcar-2", "wiper-1", "memtest-7"))
OTHERS: Final = {  # user agents whose fetches never count
    "check_http/2.3": MONITOR,
    IPXE: MONITOR,
    "curl/8.5.0": CURL,
    "Mozilla/5.0 (X11)": CURL,
    "gitboot-looker": HERE,
}
_DEADLINE_S: Final = 600.0  # for a fetch to be recorded: a busy machine is not a slow disk
_LEASE_S: Final = 3600.0  # of a ledger that hosts share: longer than a life takes, so that no thread renews the lease
_BEGAN: Final = datetime(2026, 1, 1, tzinfo=UTC)
_MOST_AT_ONCE: Final = 3  # times that an instance reconciles where something is due at once
_ANSWERED_S: Final = 0.2  # real seconds in which an endpoint responds after its deadline, or gets more time
_MOST_DEADLINES: Final = 20  # one after the other, in one fetch


class Boots(NamedTuple):
    path: str
    goes_on: bool = True  # to the file that its boot script names
    ends: str | None = None  # how its installer does: "provisioned", "failed"; None: it is silent
    proxy: bool = False


class Installer(NamedTuple):
    """The installer that runs on the machine, or ran last, and has not reported yet."""

    request: BootRequest
    report: str  # the path that its user data names

    def said(self, end: str) -> str:
        """Return the path of its report."""
        return self.report.replace("/provisioned/", f"/{end}/")


@dataclass
class RunningSite:
    """Repository, instance, endpoints and machines of a site, and the boots that a machine got."""

    folder: Path
    bmcs: Mapping[str, RedfishServer] = field(default_factory=dict)  # a leads to its own BMC, b to another machine's
    ways: Ways = field(default_factory=Ways)
    netboots: bool = True  # whether its firmware starts from the network by itself
    is_strict: bool = False  # whether it checks the promises of `tests.helpers.site_lives.faults`, too
    book: Book = field(default_factory=Book)
    counts: Counter[str] = field(default_factory=Counter)

    # Facts
    skew: timedelta = timedelta(0)  # of the host's clock, which instance and endpoint go by
    commit: Commit = field(default_factory=Commit)
    asked: Counter[str] = field(default_factory=lambda: Counter(install=1))  # by kind, how many boots of it
    trailers: list[str] = field(default_factory=list)  # of all messages that have acknowledged anything
    seen: set[str] = field(default_factory=set)  # commits that the instance may have accepted
    since: list[Commit] = field(default_factory=list)  # the commits one of which the instance goes by
    known_commit: Commit | None = None  # the one, if that is certain
    history: list[Commit] = field(default_factory=list)
    open_requests: list[str] = field(default_factory=list)  # the purpose of the present override
    reconciled_at: datetime | None = None
    stopped: bool = False  # an operator has stopped installs, and the instance knows
    stop_requested: bool = False
    loses_assets: bool = False
    slow: SlowSyncs | None = None  # how the endpoint's fetch log syncs

    # Processes
    instance: Parts | None = None
    instance_crash_plan: CrashPlan = field(default_factory=CrashPlan)
    serving: RunningEndpoint | None = None

    installer: Installer | None = None
    cached: dict[str, BootResponse] = field(default_factory=dict)  # by a proxy, by path

    def __post_init__(self) -> None:
        self._stack, self._loop, self._next = ExitStack(), PassingLoop(), Boots(LOOKUPS[0])
        self.own, self.other = (self._machine(name) for name in ("web01", "stranger"))
        for name, server in self.bmcs.items():
            server.heal()
            server.service = ReadTracker(self.other if name == "b" else self.own, credentials={"root": "secret"})
        self.own.on_boot, self.other.on_boot = self._on_own_boot, self._on_other_boot
        for asset in ASSETS:
            (self.folder / "assets" / asset).parent.mkdir(parents=True)
        self.write_assets()
        store_credentials(self.folder, password="secret")
        self.origin, self.ledger = Origin(self.folder / "git"), self._make_ledger()
        self.commit = replace(self.commit, bmc="a" if self.bmcs else None)
        self.book.request(self.commit.label, make_request(self.ways))
        self.push()
        self.start_instance("fresh")
        self.start_endpoint()
        self.reconcile()

    def _make_ledger(self) -> str:
        """Make the ledger and the folders of fetch logs; return the identity of the ledger."""
        for name in ("spool", "spool-b"):
            (self.folder / name).mkdir()
        return create_ledger(self.folder / "state")

    @property
    def place(self) -> Path:
        """The folder with OUTPUT and STATE of the instance."""
        return self.folder

    @property
    def spool(self) -> Path:
        return self.folder / "spool"

    def _machine(self, name: str) -> WatchedMachine:
        machine = WatchedMachine(name, uuid=make_uuid(name), profile=GENERIC)
        machine.witness = self
        return machine

    @property
    def now(self) -> datetime:
        return self.own.now

    @property
    def clock(self) -> datetime:
        """Return the time of the host's clock."""
        return self.now + self.skew

    @property
    def up(self) -> Uptime:
        """Return the uptime of the host, which does not depend on its clock."""
        return Uptime("this", (self.now - _BEGAN).total_seconds())

    @property
    def crash_plan(self) -> CrashPlan:
        """The instance's, for machines at whose BMC it dies."""
        return self.instance_crash_plan

    def wait(self, seconds: float) -> None:
        """Let time pass for all, event by event."""
        ends = self.now + timedelta(seconds=seconds)
        for machine in (self.own, self.other):
            machine.advance((ends - machine.now).total_seconds())
        if self.serving is not None and not self.serving.crash_plan.dead:
            self.serving.look()

    # Git

    def push(self, message: str = "Change", **changes: Any) -> None:
        self.commit, self.known_commit = replace(self.commit, **changes), None
        self.since.append(self.commit)
        self.history.append(self.commit)
        addresses = {name: server.url for name, server in self.bmcs.items()}
        self.origin.push(self.commit.files(self.ways, addresses, self.own.path, self.ledger), message)

    def new_label(self, kind: str) -> str:
        self.asked[kind] += 1
        return f"{kind}-{self.asked[kind]}"

    def ask_for_installation(self, message: str = "Install it again", *, acknowledged: bool = True) -> None:
        """A commit by which it is to be installed."""
        label = self.new_label("install")
        request = make_request(self.ways)
        request.acknowledged = acknowledged and not self.ways.is_guarded
        self.book.request(label, request)
        image = self.commit.image
        if self.ways.often == "OnImageChange":
            image = 3 - image
        self.push(message, label=label, image=image, provision=self.commit.provision + 1)

    def ask_for_repair(self, window: Window) -> None:
        label = self.new_label("repair")
        request = make_request(self.ways)
        request.writes, request.windows = False, [window]
        self.book.request(label, request)
        self.push(job=Job(label=label, window=window))

    def ask_for_wipe(self, window: Window, power: str | None = None) -> None:
        label = self.new_label("wipe")
        request = make_request(Ways())
        request.windows, request.acknowledged = [window], not self.ways.is_guarded
        self.book.request(label, request)
        self.push(job=Job(label=label, window=window, run=self.asked["wipe"], power=power))

    # The instance

    def start_instance(self, initial: str | None = None) -> None:
        self.instance_crash_plan, stack = CrashPlan(), ExitStack()
        self.instance = stack.enter_context(self._instance(initial))
        self._stack = stack

    def _instance(self, initial: str | None = None) -> AbstractContextManager[Parts]:
        limits = {**UNGUARDED, "max_bmc_changes": 10**6, "max_reinstalls": 0 if self.ways.is_guarded else 10**6}
        return run_in_process(
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
        """Return the function that returns the uptime of a host; ``host`` is its folder."""
        return lambda: self.up

    def stop_instance(self) -> None:
        with run_as(self.instance_crash_plan), suppress(Killed):
            self._stack.close()
        self._stack, self.instance = ExitStack(), None
        for machine in (self.own, self.other):
            machine.dies_at_patch = None

    def reconcile(self) -> None:
        """Fetch and reconcile, as far as the instance lives."""
        if self.instance is None:
            return
        parts, fetched = self.instance, True
        with run_as(self.instance_crash_plan), suppress(Killed):
            try:
                parts.source.fetch()
            except GitbootError:  # the next reconcile replaces a restored clone
                self.counts["fetches failed"] += 1
                fetched = False
            for _ in range(_MOST_AT_ONCE):
                due = parts.reconciler.reconcile(self.clock, wait=True)
                if due is None or due > self.clock:
                    break
        self.instance_crash_plan.dies_in = None
        if self.is_strict and not self.instance_crash_plan.dead:
            self._check_files_ended()
        if self.serving is not None and not self.serving.crash_plan.dead:
            self.serving.look()
        self.seen.add(self.origin.line[-1])
        if self.instance_crash_plan.dead:
            self.counts["instance killed"] += 1
            self.stop_instance()
            return
        self.counts["reconciled"] += 1
        self.reconciled_at = self.now
        self.stopped = self.stop_requested
        newest, status = self.origin.line[-1], parts.reconciler.status
        if fetched and status.accepted == status.applied == newest:
            self.known_commit, self.since = self.commit, [self.commit]
            self._check_reports()

    # The endpoint

    def start_endpoint(self) -> None:
        self.stop_endpoint()
        self.serving = self._open_endpoint(self.spool)

    def _open_endpoint(self, folder: Path) -> RunningEndpoint:
        output, up = self.place / "output", self._uptime_of(folder.parent)
        spool = MortalSpool(folder)
        checked_clock = CheckedClock(lambda: self.clock, folder=get_endpoint_folder(folder), uptime=up)
        tree = PublishedTree(
            output,
            lambda: self.clock,
            checked_clock=checked_clock,
            stop_orders=StopReader(*list_stop_folders(output, folder)),
        )
        recording, forwarding = SpoolRecorder(spool, _DEADLINE_S), self._forwarding(folder)
        recorder: Recorder = recording
        if forwarding is not None:
            recorder = SharedRecorder(recording, forwarding.shared, _DEADLINE_S)
        endpoint = Endpoint(tree, lambda: self.clock, recorder, assets=self.folder / "assets")
        return RunningEndpoint(endpoint, tree, checked_clock, spool, recording, forwarding)

    def _forwarding(self, folder: Path) -> FetchForwarding | None:
        """Return how an endpoint with this fetch log reaches the ledger that other hosts share."""
        return None

    def stop_endpoint(self) -> None:
        if self.serving is not None:
            self.serving.close()
        self.serving = None

    def fetch(self, path: str, client: str = ITSELF, agent: str = IPXE, **more: str) -> BootResponse | None:
        """Return the response of the endpoint; None if there is no endpoint or it died."""
        if (serving := self.serving) is None:
            return None
        answer = self._fetch_from(serving, path, client, agent, more)
        if serving.crash_plan.dead:
            self.counts["endpoint killed"] += 1
            for each in self.since:  # it may have served everything that it had recorded
                self.book.requests[each.label].may_be_done = True
            self.stop_endpoint()
        return answer

    def fetch_elsewhere(self, path: str) -> BootResponse | None:
        """Return the response of another endpoint of the same tree with its own fetch log."""
        other = self._open_endpoint(self.folder / "spool-b")
        try:
            return self._fetch_from(other, path, ITSELF, IPXE, {})
        finally:
            other.close()

    def _fetch_from(
        self, serving: RunningEndpoint, path: str, client: str, agent: str, more: Mapping[str, str]
    ) -> BootResponse | None:
        headers = {"host": "boot.test", "user-agent": agent, **more}
        method, body = headers.pop("method", "GET"), headers.pop("body", "")
        with run_as(serving.crash_plan):
            try:
                serving.look()
                task = self._loop.create_task(
                    ask_endpoint(serving.endpoint, method, path, client, headers.items(), body)
                )
                serving.spool.ended = lambda: self._cancel_fetch(task)
                if serving.spool.has_ended:  # since the answer before: it writes the outcome after the answer
                    self._cancel_fetch(task)
                self._disturb(serving, task)
                answer = self._loop.run_until_complete(task)
                self._wait_for_outcomes(serving)
            except (asyncio.CancelledError, Killed):
                return None
            if serving.crash_plan.dies_in is not None:  # it dies before its response, with everything recorded
                serving.crash_plan.dead = True
                return None
        if (why := answer.denial_reason) is not None:
            self.counts[f"refused: {why}"] += 1
        return answer

    def _disturb(self, serving: RunningEndpoint, task: asyncio.Task[BootResponse]) -> None:
        """Let a fault happen while a fetch is served."""
        if self.slow is not None:
            self._answer_slowly(serving, task, self.slow)

    def _wait_for_outcomes(self, serving: RunningEndpoint) -> None:
        """Wait for what an endpoint goes on with after an answer, if what follows depends on that."""

    def _answer_slowly(self, serving: RunningEndpoint, task: asyncio.Task[BootResponse], slow: SlowSyncs) -> None:
        """Answer a fetch while the fetch log syncs slowly, and let the log come to rest."""
        syncs, number = HeldSyncs(), 0
        with hold_syncs(syncs):
            while not task.done():
                self._loop.run_until_complete(wait_for_sync(task, syncs))
                if not syncs.begun.empty() and (ends := syncs.begun.get()) is not None:
                    self._sync(ends, number, task, slow)
                    number += 1
            serving.spool.run_in_writer(lambda: None).add_done_callback(lambda _: syncs.begun.put(None))
            while (ends := syncs.begun.get()) is not None:  # what takes a line back is synced after the answer
                self._sync(ends, number, task, slow)
                number += 1
        self._loop.run_until_complete(serving.recording.wait_for_check())  # it records again

    def _sync(self, ends: Future[None], number: int, task: asyncio.Task[BootResponse], slow: SlowSyncs) -> None:
        """Do what happens during one sync, and end the sync."""
        try:
            if number in slow.reads:
                self.counts["read during a sync"] += 1
                self.reconcile()
            if number == slow.expires:
                self.counts["the deadline passed during a sync"] += 1
                self._pass_deadlines(task)
        finally:
            if number in slow.fails:
                self.counts["a sync failed"] += 1
                ends.set_exception(OSError(errno.EIO, os.strerror(errno.EIO)))
            else:
                ends.set_result(None)

    def _pass_deadlines(self, task: asyncio.Task[BootResponse]) -> None:
        """Let the deadlines of an endpoint pass until it responds."""
        for _ in range(_MOST_DEADLINES):
            if task.done():
                break
            self._loop.passed_s += _DEADLINE_S + 1
            self._loop.run_until_complete(asyncio.wait([task], timeout=_ANSWERED_S))

    def _cancel_fetch(self, task: asyncio.Task[BootResponse]) -> None:
        self._loop.call_soon_threadsafe(task.cancel)

    # Boots

    def boot(self, path: str, *, goes_on: bool, ends: str | None = None, proxy: bool = False) -> None:
        """The machine boots, after its POST where it has a BMC."""
        self._next = Boots(path, goes_on, ends, proxy)
        if self.bmcs:
            self.own.reset()
            self.wait(self.own.post_s)
        else:
            self._boot_network(self._next)

    def _on_own_boot(self, boot: Boot) -> None:
        by_override = boot.target in NETWORK
        if by_override:
            self.counts["consumed"] += 1
            self.book.mark_consumed(self.open_requests, self.now)
            self.open_requests = []
        if by_override or (boot.target == "None" and self.netboots):
            self._boot_network(self._next)

    def _on_other_boot(self, boot: Boot) -> None:
        if boot.target in NETWORK:
            self.book.add_violation(self.now, "another machine boots from the network")

    def _boot_network(self, boots: Boots) -> None:
        """Let the machine fetch its boot script, the files that it names, and the report of its installer."""
        answer = self._fetch_through_proxy(boots.path) if boots.proxy else self.fetch(boots.path)
        self._check_boot(answer)
        self._after_boot_script()
        label = answer.label if answer is not None else None
        if answer is None or label is None or not boots.goes_on:
            return
        for url in re.findall(rf"{BASE}(/[^\s'\";]+)", answer.body):
            if "/assets/" in url or (data := self.fetch(url)) is None or data.status != 200:
                continue
            if data.label is None and "/data/" in url:
                request = self.book.record_start(label)
                self.installer = self._installer(request, data.body)
                if boots.ends is not None:
                    self.report(boots.ends)

    def _after_boot_script(self) -> None:
        """Let something happen between the boot script and the files that it names."""

    def _installer(self, request: BootRequest, data: str) -> Installer | None:
        """Return the installer with this user data, or None if it does not report."""
        url = str(json.loads(data)["x"])
        return Installer(request, urlsplit(url).path) if url else None

    def report(self, end: str) -> bool:
        """Let the installer report its end to the path in its user data, after any decision since."""
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
                installer.request.record_report(failed=True)  # the log may have it all the same, and it is true
            return False
        installer.request.record_report(failed=end == "failed")
        self.counts[f"reported {end}"] += 1
        return True

    def _fetch_through_proxy(self, path: str) -> BootResponse | None:
        """Return the response of a cache that revalidates what it has."""
        held = self.cached.get(path)
        headers = {}
        if held is not None and "etag" in held.headers:
            headers["if-none-match"] = held.headers["etag"]
        if held is not None and "last-modified" in held.headers:
            headers["if-modified-since"] = held.headers["last-modified"]
        answer = self.fetch(path, PROXY, **headers)
        if answer is not None and answer.status == 304:
            return held
        if answer is not None and answer.status == 200 and "no-store" not in answer.headers.get("cache-control", ""):
            self.cached[path] = answer
        return answer

    def _check_boot(self, answer: BootResponse | None) -> None:
        """Compare the boot that a machine got with the book."""
        if answer is None:
            return
        label = answer.label
        self.counts["booted its disk" if label is None else f"given: {label.partition('-')[0]}"] += 1
        if label is None:
            return
        self.book.given(label, self.now, self.clock)
        request = self.book.requests[label]
        if self.known_commit is not None and label not in self.known_commit.labels:
            self.book.add_violation(self.now, f"{label} is given, and Git does not want it any more")
        if not request.writes:
            return
        if self.stopped:
            self.book.add_violation(self.now, f"{label} is given, and an operator has stopped all that writes disks")
        if self.known_commit is not None and (self.known_commit.stopped or self.known_commit.lifecycle != "Active"):
            self.book.add_violation(self.now, f"{label} is given, and Git has stopped it, or parked the server")
        if self.loses_assets:
            self.book.add_violation(self.now, f"{label} is given, and its kernel is not there")

    def look(self, path: str, agent: str, method: str) -> None:
        """Fetch the boot script as another client."""
        answer = self.fetch(path, OTHERS[agent], agent, method=method)
        self.check_not_served(answer, f"{agent} from {OTHERS[agent]}")

    def check_not_served(self, answer: BootResponse | None, who: str) -> None:
        label = answer.label if answer is not None else None
        if label is not None and self.book.requests[label].writes:
            self.book.add_violation(self.now, f"{label} is given to {who}")

    def write_assets(self) -> None:
        for asset in ASSETS:
            (self.folder / "assets" / asset).write_bytes(b"kernel")
            (self.folder / "assets" / asset).with_name("initrd").write_bytes(b"initrd")
        self.loses_assets = False

    def delete_assets(self) -> None:
        for asset in ASSETS:
            (self.folder / "assets" / asset).unlink(missing_ok=True)
        self.loses_assets = True

    # BMCs

    def on_intrusion(self, at: datetime) -> None:
        """Do nothing: a write by another client to a BMC does not count here."""

    def ejected(self, machine: WatchedMachine, image: str) -> None:
        """Fail: no commit of this life wants a medium, so this medium belongs to somebody else."""
        raise AssertionError(f"{image} was ejected from {machine.name}")

    def on_override_write(
        self,
        machine: WatchedMachine,
        before: Mapping[str, str | None],
        after: Mapping[str, str | None],
        *,
        overwrote_unseen: bool,
    ) -> None:
        if after[ENABLED] == "Disabled":
            self.counts["withdrawn"] += 1
            return
        self.counts["set"] += 1
        shown = f"{after[ENABLED]} {after[TARGET]}"
        if machine is not self.own:
            self.book.add_violation(self.now, f"{shown} is set on another machine")
        wanted = set().union(*(each.own_labels for each in self.since))
        self.open_requests = [label for label in sorted(wanted) if self.book.is_open(label, self.clock)]
        if not self.open_requests:
            self.book.add_violation(self.now, f"{shown} is set, and nothing that was asked for is open")
        if self.stopped and not any(not self.book.requests[label].writes for label in wanted):
            self.book.add_violation(self.now, f"{shown} is set, and an operator has stopped all that writes disks")

    def switched(self, machine: WatchedMachine, kind: str) -> None:
        """Judge what gitboot does to a machine's power."""
        self.counts[f"power: {kind}"] += 1
        if machine is not self.own:
            self.book.add_violation(self.now, f"{kind} is asked for of another machine")
        if (machine.power == "Off") is not (kind == "On"):
            self.book.add_violation(self.now, f"{kind} is asked for of a machine that is {machine.power}")
        if self.stopped:
            self.book.add_violation(self.now, f"{kind} is asked for, and an operator has stopped all that writes disks")
        jobs = (each.job for each in self.since if each.job is not None and each.job.power is not None)
        self.book.switched({job.label for job in jobs}, self.now, self.clock)

    def _is_over(self, label: str) -> bool:
        """Return whether a boot belongs to a maintenance without an open window."""
        windows = self.book.requests[label].windows
        return bool(windows) and all(each.end + GRACE <= self.now for each in windows)

    def _check_files_ended(self) -> None:
        """Check that a published file of a maintenance ends with its window, whatever the ledger takes."""
        if self.skew:
            return
        for path in LOOKUPS:
            with suppress(FileNotFoundError):
                text = (self.place / "output" / "boot" / path.lstrip("/")).read_text()
                label = BootResponse(200, {}, text).label
                if label is not None and self._is_over(label):
                    self.book.add_violation(self.now, f"the file of {path} still boots {label}, which is over")

    def _check_reports(self) -> None:
        """Check that each reported installation is recorded, or that a condition explains why not."""
        assert self.instance is not None
        wanted, conditions = self.known_commit, self.instance.reconciler.status.conditions
        if wanted is None or not self.book.requests[wanted.label].provisioned:
            return
        if not all(each.status for each in conditions):
            return
        record = self.instance.reconciler.state.snapshot.stored_record(SystemUuid(make_uuid("web01")))
        self.counts["known as provisioned"] += 1
        if record is None or record.provision is None or record.provision < wanted.provision:
            self.book.add_violation(
                self.now, f"{wanted.label} was reported as provisioned, and is not known as that: {record}"
            )
