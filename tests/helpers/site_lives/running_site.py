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
from gitboot.endpoint.recorder import Recorder, SharedRecorder, SpoolRecorder
from gitboot.endpoint.served_files import CheckedClock, PublishedTree
from gitboot.errors import GitbootError
from gitboot.fetchlog.spool import endpoint_folder
from gitboot.jsonio import format_instant
from gitboot.model.scalars import SystemUuid
from gitboot.publish.tree_reader import StopReader, list_stop_folders
from gitboot.review.guards import Limits
from gitboot.system_clock import Uptime
from tests.helpers import fleets
from tests.helpers.bmcs import NETWORK, Reading, Watched
from tests.helpers.fleets import give_credentials, mac_of, uuid_of
from tests.helpers.instance_in_process import UNGUARDED, Parts, in_process
from tests.helpers.redfish_double.machine import Boot
from tests.helpers.redfish_double.profiles import ENABLED, GENERIC, TARGET
from tests.helpers.redfish_double.server import RedfishServer
from tests.helpers.running_instance import ledger_in
from tests.helpers.site_lives.book import GRACE, Ask, Book, Window
from tests.helpers.site_lives.processes import (
    Fate,
    Forwarding,
    Given,
    HeldSyncs,
    Killed,
    MortalSpool,
    PassingLoop,
    Serving,
    SlowSyncs,
    ask_endpoint,
    holding,
    living,
    until_sync,
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
    mac: str = mac_of("spare01")

    def documents(self) -> list[str]:
        server = fleets.server("spare01", "role: spare", "provision: 1").replace(mac_of("spare01"), self.mac)
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
    mac: str = mac_of("web01")  # of web01's only interface
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
            fleets.server("web01", "role: web", server).replace(mac_of("web01"), self.mac),
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


def ask_of(ways: Ways) -> Ask:
    """Return the request for an installation with this provisioning."""
    return Ask(boots=ways.boots, attempts=ways.attempts if ways.evidence == "Reported" else 1)


# A site: repository, instance, endpoints, a mirror, machines with BMCs, and clocks that may be wrong.
#
# Git, ledger, tree, fetch log, endpoints and Redfish are real; all run in this process, and can die at any of their
# system calls. The boots of machines go into a book that does not use gitboot.

MAC: Final = mac_of("web01").replace(":", "-")
LOOKUPS: Final = (f"/v1/boot/{MAC}/boot.ipxe", f"/ipxe/{uuid_of('web01')}", f"/v1/boot/{MAC}/grub.cfg")
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

    ask: Ask
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
    settled: Commit | None = None  # the one, if that is certain
    history: list[Commit] = field(default_factory=list)
    open_as_set: list[str] = field(default_factory=list)  # the purpose of the present override
    reconciled_at: datetime | None = None
    stopped: bool = False  # an operator has stopped installs, and the instance knows
    stop_asked: bool = False
    loses_assets: bool = False
    slow: SlowSyncs | None = None  # how the endpoint's fetch log syncs

    # Processes
    instance: Parts | None = None
    instance_fate: Fate = field(default_factory=Fate)
    serving: Serving | None = None

    installer: Installer | None = None
    cached: dict[str, Given] = field(default_factory=dict)  # by a proxy, by path

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
        """Return the time of the host's clock."""
        return self.now + self.skew

    @property
    def up(self) -> Uptime:
        """Return the uptime of the host, which does not depend on its clock."""
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
        self.commit, self.settled = replace(self.commit, **changes), None
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
        ask = ask_of(self.ways)
        ask.acknowledged = acknowledged and not self.ways.is_guarded
        self.book.ask(label, ask)
        image = self.commit.image
        if self.ways.often == "OnImageChange":
            image = 3 - image
        self.push(message, label=label, image=image, provision=self.commit.provision + 1)

    def ask_for_repair(self, window: Window) -> None:
        label = self.new_label("repair")
        ask = ask_of(self.ways)
        ask.writes, ask.windows = False, [window]
        self.book.ask(label, ask)
        self.push(job=Job(label=label, window=window))

    def ask_for_wipe(self, window: Window, power: str | None = None) -> None:
        label = self.new_label("wipe")
        ask = ask_of(Ways())
        ask.windows, ask.acknowledged = [window], not self.ways.is_guarded
        self.book.ask(label, ask)
        self.push(job=Job(label=label, window=window, run=self.asked["wipe"], power=power))

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
        """Return the function that returns the uptime of a host; ``host`` is its folder."""
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
            except GitbootError:  # the next reconcile replaces a restored clone
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
        compared = CheckedClock(lambda: self.clock, folder=endpoint_folder(folder), uptime=up)
        tree = PublishedTree(
            output,
            lambda: self.clock,
            checked_clock=compared,
            stop_orders=StopReader(*list_stop_folders(output, folder)),
        )
        recording, forwarding = SpoolRecorder(spool, _DEADLINE_S), self._forwarding(folder)
        recorder: Recorder = recording
        if forwarding is not None:
            recorder = SharedRecorder(recording, forwarding.shared, _DEADLINE_S)
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
        """Return the response of the endpoint; None if there is no endpoint or it died."""
        if (serving := self.serving) is None:
            return None
        answer = self._fetch_from(serving, path, client, agent, more)
        if serving.fate.dead:
            self.counts["endpoint killed"] += 1
            for each in self.since:  # it may have served everything that it had recorded
                self.book.asks[each.label].may_be_done = True
            self.stop_endpoint()
        return answer

    def fetch_elsewhere(self, path: str) -> Given | None:
        """Return the response of another endpoint of the same tree with its own fetch log."""
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
            if serving.fate.dies_in is not None:  # it dies before its response, with everything recorded
                serving.fate.dead = True
                return None
        if (why := answer.why_not) is not None:
            self.counts[f"refused: {why}"] += 1
        return answer

    def _disturb(self, serving: Serving, asked: asyncio.Task[Given]) -> None:
        """Let a fault happen while a fetch is served."""
        if self.slow is not None:
            self._answer_slowly(serving, asked, self.slow)

    def _come_to_rest(self, serving: Serving) -> None:
        """Wait for what an endpoint goes on with after an answer, if what follows depends on that."""

    def _answer_slowly(self, serving: Serving, asked: asyncio.Task[Given], slow: SlowSyncs) -> None:
        """Answer a fetch while the fetch log syncs slowly, and let the log come to rest."""
        syncs, number = HeldSyncs(), 0
        with holding(syncs):
            while not asked.done():
                self._loop.run_until_complete(until_sync(asked, syncs))
                if not syncs.begun.empty() and (ends := syncs.begun.get()) is not None:
                    self._sync(ends, number, asked, slow)
                    number += 1
            serving.spool.run_in_writer(lambda: None).add_done_callback(lambda _: syncs.begun.put(None))
            while (ends := syncs.begun.get()) is not None:  # what takes a line back is synced after the answer
                self._sync(ends, number, asked, slow)
                number += 1
        self._loop.run_until_complete(serving.recording.wait_for_check())  # it records again

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
        """Let the deadlines of an endpoint pass until it responds."""
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
        """Let the machine fetch its boot script, the files that it names, and the report of its installer."""
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
        """Let something happen between the boot script and the files that it names."""

    def _installer(self, ask: Ask, data: str) -> Installer | None:
        """Return the installer with this user data, or None if it does not report."""
        url = str(json.loads(data)["x"])
        return Installer(ask, urlsplit(url).path) if url else None

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
                installer.ask.reported(failed=True)  # the log may have it all the same, and it is true
            return False
        installer.ask.reported(failed=end == "failed")
        self.counts[f"reported {end}"] += 1
        return True

    def _through_proxy(self, path: str) -> Given | None:
        """Return the response of a cache that revalidates what it has."""
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
        """Compare the boot that a machine got with the book."""
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
        """Fetch the boot script as another client."""
        answer = self.fetch(path, OTHERS[agent], agent, method=method)
        self.nobody_else_is_given(answer, f"{agent} from {OTHERS[agent]}")

    def nobody_else_is_given(self, answer: Given | None, who: str) -> None:
        label = answer.label if answer is not None else None
        if label is not None and self.book.asks[label].writes:
            self.book.wrong(self.now, f"{label} is given to {who}")

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
        """Do nothing: a write by another client to a BMC does not count here."""

    def ejected(self, machine: Watched, image: str) -> None:
        """Fail: no commit of this life wants a medium, so this medium belongs to somebody else."""
        raise AssertionError(f"{image} was ejected from {machine.name}")

    def written(
        self, machine: Watched, before: Mapping[str, str | None], after: Mapping[str, str | None], *, overwrote: bool
    ) -> None:
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

    def _is_over(self, label: str) -> bool:
        """Return whether a boot belongs to a maintenance without an open window."""
        windows = self.book.asks[label].windows
        return bool(windows) and all(each.end + GRACE <= self.now for each in windows)

    def _no_file_is_left_in_a_window(self) -> None:
        """Check that a published file of a maintenance ends with its window, whatever the ledger takes."""
        if self.skew:
            return
        for path in LOOKUPS:
            with suppress(FileNotFoundError):
                text = (self.place / "output" / "boot" / path.lstrip("/")).read_text()
                label = Given(200, {}, text).label
                if label is not None and self._is_over(label):
                    self.book.wrong(self.now, f"the file of {path} still boots {label}, which is over")

    def _every_report_was_heard(self) -> None:
        """Check that each reported installation is recorded, or that a condition explains why not."""
        assert self.instance is not None
        wanted, conditions = self.settled, self.instance.reconciler.status.conditions
        if wanted is None or not self.book.asks[wanted.label].provisioned:
            return
        if not all(each.status for each in conditions):
            return
        record = self.instance.reconciler.state.knowledge.stored_record(SystemUuid(uuid_of("web01")))
        self.counts["known as provisioned"] += 1
        if record is None or record.provision is None or record.provision < wanted.provision:
            self.book.wrong(self.now, f"{wanted.label} was reported as provisioned, and is not known as that: {record}")
