"""A site with operators, mirrors and disasters, and the same on two hosts with one ledger in a PostgreSQL."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from unittest.mock import patch

import psycopg

from gitboot.controller.operator_requests import (
    AllowInstalls,
    ApproveCommit,
    BeginWithRecords,
    ConfirmClock,
    SetRecords,
    StopInstalls,
)
from gitboot.endpoint.recorder import Forwarder
from gitboot.errors import GitbootError, HeldByAnother, PublishError
from gitboot.fetchlog.one_time_boots import FetchLogUnavailable
from gitboot.ledger import instance_tables
from gitboot.ledger.postgresql_fetch_log import SharedFetchLog
from gitboot.model.scalars import SystemUuid
from gitboot.publish.durable_files import DurableDirectory
from gitboot.publish.publisher import OutputDirectory
from gitboot.publish.targets.folder import TargetFolder
from gitboot.publish.targets.followed_tree import FollowedTree
from gitboot.publish.targets.sync_steps import StoreTarget
from gitboot.publish.tree_reader import list_stop_folders, remove_stop_file, write_stop_file
from gitboot.resolve.provisioning_record import Record, StopOrder, make_record_fields
from gitboot.review.acknowledgements import format_ack_line
from gitboot.review.guards import Guard
from gitboot.system_clock import Uptime
from tests.helpers.bmcs import WatchedMachine
from tests.helpers.documentation import CopyScript
from tests.helpers.fleets import make_mac, make_uuid
from tests.helpers.instance_in_process import Parts
from tests.helpers.postgresql import PostgresServer
from tests.helpers.published_trees import TargetKilled, bring_up, kill_after
from tests.helpers.redfish_double.profiles import ENABLED
from tests.helpers.running_instance import create_ledger, locked_ledger
from tests.helpers.site_lives.book import GRACE, Window
from tests.helpers.site_lives.processes import (
    BootResponse,
    CrashPlan,
    FetchForwarding,
    Hang,
    HeldCall,
    Killed,
    RunningEndpoint,
    full_ledger,
    run_as,
)
from tests.helpers.site_lives.running_site import (
    BASE,
    IPXE,
    ITSELF,
    LOOKUPS,
    MONITOR,
    Boots,
    RunningSite,
    Spare,
    make_request,
)

_ASKED_AFTER_S: Final = 31 * 60  # the fate of an override that is gone is awaited, and then an operator is asked
_WITHDRAWN_WITHIN_S: Final = 3 * 601  # an override that is over: as `tests.helpers.machine_lives` allows


@dataclass
class Site(RunningSite):
    """The whole site, and the boots that the machine got."""

    backups: list[Path] = field(default_factory=list)
    mirror: Path | None = None  # the copy of OUTPUT/boot that was written last
    copies: CopyScript | None = None

    def move_mac(self, *, waits: bool, commits: int) -> None:
        """Give web01's MAC address to spare01, which waits for its first installation.

        With ``waits``, spare01 is in Git before with an address of its own; with two commits, web01 loses the address
        in the first. The machine keeps the address, so that spare01's installation is one of this machine.
        """
        if self.commit.spare is not None:
            return
        label = self.new_label("install")
        request = make_request(self.ways)
        request.acknowledged = not (self.ways.is_guarded and self._is_installed)
        self.book.request(label, request)
        if waits:
            self.push(spare=Spare(label=label))
            self.reconcile()
        if commits > 1:
            self.push(mac=make_mac("web01-new"))
            self.reconcile()
        self.push(mac=make_mac("web01-new"), spare=Spare(label=label, mac=make_mac("web01")))
        self.reconcile()
        self.counts["moved a MAC address"] += 1

    def move_mac_back(self) -> None:
        """Remove spare01, and give web01 the MAC address of its machine again."""
        if self.commit.spare is not None:
            self.push(mac=make_mac("web01"), spare=None)

    @property
    def _is_installed(self) -> bool:
        """Return whether the machine was installed, by the evidence that this fleet accepts."""
        installs = [request for request in self.book.requests.values() if request.writes and not request.windows]
        if self.ways.evidence == "Reported":
            return any(request.provisioned for request in installs)
        return any(request.provisioned or len(request.given) >= request.boots for request in installs)

    def move_window(self, start: float, end: float) -> None:
        """Another window for what is in Git; it is the same job, unless it has run before its new start."""
        job = self.commit.job
        if job is None:
            return
        moved = Window(job.window.start + timedelta(seconds=start), job.window.end + timedelta(seconds=end))
        if moved.start < min(moved.end, job.window.end):
            self.book.requests[job.label].windows.append(moved)
            self.push(job=replace(job, window=moved))

    def rewind(self) -> None:
        """Somebody forces the branch to a commit beside the newest, with every old acknowledgement in its message."""
        newest = self.origin.line[-1]
        if self.origin.rewind():
            self.ask_for_installation("\n".join(["Another", "", *self.trailers]), acknowledged=newest not in self.seen)

    def approve(self) -> None:
        held = self.instance.reconciler.status.held if self.instance is not None else None
        if self.instance is None or held is None or held.commit != self.origin.line[-1]:
            return
        approval = {"digest": held.digest, "guards": list(held.guards), "reason": "looked at"}
        if self._request(ApproveCommit.kind, approval):
            self.book.acknowledge(self.commit.labels)
            self.counts["acknowledged with a shell"] += 1

    def acknowledge_in_message(self) -> None:
        """Commit a message that acknowledges what is held, which has no effect if commits were rewound."""
        held = self.instance.reconciler.status.held if self.instance is not None else None
        if held is None or held.commit != self.origin.line[-1]:
            return
        lines = [format_ack_line(held.digest, Guard(guard)) for guard in held.guards]
        self.trailers += lines
        if str(Guard.ALLOW_REWIND) not in map(str, held.guards):
            self.book.acknowledge(self.commit.labels)
            self.counts["acknowledged in a message"] += 1
        self.push("\n".join(["Acknowledge", "", *lines]))

    def serve_static(self, path: str) -> None:
        """Serve the machine from a mirror of the tree."""
        with suppress(OSError):
            text = (self.place / "output" / "boot" / path.lstrip("/")).read_text()
            if self.ways.names_endpoint:
                self.check_not_served(BootResponse(200, {}, text), "a mirror's client")

    def bring_up_mirror(self, replaced: int) -> None:
        """Bring a folder target up to the tree; ``replaced`` files later it is killed, unless that is 0."""
        (mirror := self.folder / "mirror").mkdir(exist_ok=True)
        self.mirror = mirror / "boot"
        with closing(TargetFolder(mirror)) as store:
            target = StoreTarget(
                "mirror", lambda: store, ledger="of the site", heir_of=lambda: None, writer="a process"
            )
            tree = FollowedTree(self.folder / "output")
            with suppress(TargetKilled), patch.object(DurableDirectory, "place", kill_after(replaced)):
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
                    self.book.add_violation(
                        self.now, f"the mirror's {script.name} names {url}, which the mirror does not have"
                    )
        try:
            text = (boot / path.lstrip("/")).read_text()
        except FileNotFoundError:
            return
        entry = BootResponse(200, {}, text)
        if self.ways.names_endpoint:
            self.check_not_served(entry, "a mirror's client")
        self.counts["booted from a mirror"] += entry.label is not None

    # Disasters

    def back_up(self) -> None:
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
        self._forget_state()

    def lose_output(self) -> None:
        self.stop_instance()
        self.stop_endpoint()
        shutil.rmtree(self.folder / "output", ignore_errors=True)
        self._forget_state()

    @contextmanager
    def full(self) -> Iterator[None]:
        """Let no publication succeed in the block."""
        self.counts["nothing could be published"] += 1
        with patch.object(OutputDirectory, "publish", side_effect=PublishError("No space left on device")):
            yield

    @contextmanager
    def unwritable(self, how: str) -> Iterator[None]:
        """A block in which the ledger is ``locked`` by another process, or its disk is ``full``."""
        self.counts[f"ledger {how}"] += 1
        if how == "full":
            with full_ledger():
                yield
            return
        if self.instance is not None:  # waits for no lock: its holder keeps it
            self.instance.ledger.database.execute("PRAGMA busy_timeout = 0")
        with locked_ledger(self.folder / "state"):
            yield
        if self.instance is not None:
            self.instance.ledger.database.execute("PRAGMA busy_timeout = 5000")  # as sqlite3.connect sets it

    def restart_bmc(self, clock: int | None, *, forgets: bool) -> None:
        """Restart the BMC with a clock that is so many hours off; 0: in 1970, None: with the right time."""
        off = {None: None, 0: datetime(1970, 1, 1, tzinfo=UTC)}
        self.own.restart_bmc(clock=off.get(clock, self.now + timedelta(hours=clock or 0)), forgets=forgets)
        self.counts["BMC restarted"] += 1

    def _forget_state(self) -> None:
        """Forget the expected state: an older copy may lack any request."""
        self.known_commit, self.stopped, self.stop_requested = None, False, False
        self.since = list(self.history)
        self.seen.clear()
        if not self.ways.is_guarded:
            self.book.acknowledge(self.book.requests)

    # Operators

    def _request(self, what: str, facts: Mapping[str, Any]) -> bool:
        if self.instance is None:
            return False
        instance_tables.add_request(self.instance.ledger, self.clock, "ada", what, facts)
        return True

    def set_record(self, *, provisioned: bool) -> None:
        """Set the record as an operator: pending, or installed."""
        if provisioned and self.known_commit is None:
            return  # nobody could know of which
        wanted = self.known_commit or self.commit
        record = Record()
        if provisioned:
            image = f"flatcar-{wanted.image}"
            record = Record(provision=wanted.provision, image=image, evidence="Operator", provisioned_at=self.clock)
        item = {"uuid": make_uuid("web01"), "server": "web01", **make_record_fields(record)}
        if self.instance is not None:
            known = self.instance.reconciler.state.snapshot.stored_record(SystemUuid(make_uuid("web01")))
            item["runs"] = make_record_fields(known or Record())["runs"]  # as `gitboot records set` keeps them
        if self._request(SetRecords.kind, {"items": [item], "reason": "I was there"}):
            for label in {each.label for each in self.since}:
                if provisioned:
                    self.book.requests[label].may_be_done = True
                elif self.book.requests[label].acknowledged:
                    self.book.request_again(label, since=self.reconciled_at)

    def stop(self, *, everything: bool) -> None:
        """Stop installs: for endpoints at once, and for the instance, if there is one."""
        for folder in self._stop_folders:
            write_stop_file(folder, StopOrder("ada", "smoke", everything), self.clock)
            self.stopped = self.stop_requested = True
        self.counts["stopped without an instance"] += self.instance is None
        if self._request(StopInstalls.kind, {"reason": "smoke", "everything": everything}):
            self.stop_requested = True
            self.reconcile()

    def start(self) -> None:
        for folder in self._stop_folders:
            remove_stop_file(folder)
        self.stopped = self.stop_requested = False
        if self._request(AllowInstalls.kind, {}):
            self.reconcile()

    @property
    def _stop_folders(self) -> list[Path]:
        return [each for each in list_stop_folders(self.place / "output", self.spool) if each.is_dir()]

    def adopt(self) -> None:
        """Adopt an unverified ledger: all servers are installed as Git wants it."""
        if self.instance is None:
            return
        before = len(self.instance.events)
        self._request(BeginWithRecords.kind, {"how": "adopt"})
        self.reconcile()
        if self.instance is None:
            return
        if any(each.type == "RecordsBegun" and "begins with" in each.message for each in self.instance.events[before:]):
            self.counts["adopted"] += 1
            if self.known_commit is not None:
                self.book.mark_done(self.known_commit.label)

    def accept_clock(self) -> None:
        if self._request(ConfirmClock.kind, {"reason": "it is right"}):
            self.reconcile()

    # The end

    def calm_down(self) -> None:
        """Let all processes run with the right clock for a while."""
        for machine in (self.own, self.other):
            machine.dies_at_patch = None
        if self.instance is None:
            self.start_instance()
        self.skew = timedelta(0)
        self.write_assets()
        self.start_endpoint()
        self.slow = None
        if self.is_strict:
            self.reconcile()
            self._check_record()
        for path in LOOKUPS:
            self.wait(61)
            self.reconcile()
            self.boot(path, goes_on=False)
        self._check_reports()
        job = self.commit.job
        for path in LOOKUPS:
            answer = self.fetch(path, MONITOR, "monitor")
            label = answer.label if answer is not None else None
            if job is not None and label == job.label and job.window.end + GRACE <= self.now:
                self.book.add_violation(self.now, f"{path} offers {label}, which is over")
        self.wait(_ASKED_AFTER_S)
        self.reconcile()
        self.boot(LOOKUPS[0], goes_on=False)
        self._check_request_served()

    def check_override_cleared(self) -> None:
        """Check that an override of a maintenance is cleared after its window, whatever the ledger takes."""
        if self.instance is None or self.own.override[ENABLED] == "Disabled" or not self.open_requests:
            return
        if all(map(self._is_over, self.open_requests)):
            self.book.add_violation(
                self.now, f"{self.own.format_boot()} still stands for {', '.join(self.open_requests)}: it is over"
            )

    def outlast(self, window: Window, how: str, path: str) -> None:
        """Let a window end while the ledger cannot be written; then the machine boots."""
        with self.unwritable(how):
            self.wait((window.end + GRACE - self.now).total_seconds() + 1)
            self.reconcile()
            if self.bmcs:
                for _ in range(3):
                    self.wait(_WITHDRAWN_WITHIN_S / 3)
                    self.reconcile()
                self.check_override_cleared()
            self.boot(path, goes_on=True)
        self.reconcile()

    def _check_record(self) -> None:
        """Check that each begun or installed record was served to the machine or set by an operator."""
        if self.instance is None or self.known_commit is None:
            return
        record = self.instance.reconciler.state.snapshot.stored_record(SystemUuid(make_uuid("web01")))
        request = self.book.requests[self.known_commit.label]
        if record is None or request.may_be_fulfilled:
            return
        key = ["provision", str(self.known_commit.provision)]  # OnImageChange adds the image
        if record.provision == self.known_commit.provision:
            self.book.add_violation(
                self.now, f"{self.known_commit.label} was not given, and is recorded as installed: {record}"
            )
        elif any(each.key.split("/")[:2] == key and each.boots for each in record.attempts):
            self.book.add_violation(self.now, f"{self.known_commit.label} was not given, and is recorded as begun")

    def _check_request_served(self) -> None:
        """Check that each request was served by now, or that a condition explains why not."""
        assert self.instance is not None
        found, wanted = self.instance.reconciler.status, self.known_commit
        if wanted is None or not (self.netboots or wanted.bmc == "a"):
            return
        if wanted.stopped or wanted.lifecycle != "Active" or self.stopped:
            return
        request = self.book.requests[wanted.label]
        if request.may_be_fulfilled or not all(each.status for each in found.conditions):
            return
        if wanted.job is not None and self.book.requests[wanted.job.label].windows[-1].covers(self.now):
            return
        self.book.add_violation(self.now, f"{wanted.label} was asked for, is not given, and no condition says why")

    def close(self) -> None:
        self.stop_instance()
        self.stop_endpoint()
        self._loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)


# A site of two hosts with one ledger in a PostgreSQL: one host is active, the other a standby, and both serve.
#
# The PostgreSQL is a real one. The time of leases passes by the steps of a life, and never by a clock. A host that
# was replaced may continue for a while, as one does that was suspended.

_HOSTS: Final = ("one", "two")


class LateCall(NamedTuple):
    """A call to the PostgreSQL that hangs while an endpoint serves a fetch."""

    number: int  # earlier calls of that fetch that get a response
    meanwhile: str | None = None  # what happens while the call hangs and holds no lock: "reconcile" or "take over"
    expires: bool = True  # whether the endpoint's deadline passes
    is_lost: bool = False  # whether the call never reaches the PostgreSQL


class Replaced(NamedTuple):
    """An instance whose lease another has taken, and an endpoint of the tree that it published."""

    instance: Parts
    crash_plan: CrashPlan
    stack: ExitStack
    serving: RunningEndpoint


@dataclass
class SharedSite(Site):
    """Both hosts. `Site.instance` is the active instance, `Site.serving` the endpoint of machines."""

    server: PostgresServer = field(kw_only=True)
    acting: int = 0  # the number of the host whose instance acts
    asked_host: int = 0  # the number of the host whose endpoint machines use
    beside: RunningEndpoint | None = None  # the endpoint of the other host; both serve the tree of the host that acts
    replaced: Replaced | None = None
    reconciles_in_boots: bool = False  # whether the instance reconciles after the machine has got its boot script
    late: LateCall | None = None  # what hangs the next time that an endpoint calls the PostgreSQL
    _is_answering: bool = False  # whether an endpoint has not answered a fetch yet
    _is_calm: bool = False
    _is_replaced_at_work: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.beside = self._open_endpoint(self._spools[1])

    def _make_ledger(self) -> str:
        self._schema = self.server.new_schema()
        self._address = self.server.address(self._schema)
        self._admin = psycopg.connect(self._address.url, autocommit=True)
        identity = ""
        for host in self._hosts:
            (host / "spool").mkdir(parents=True)
            identity = create_ledger(host / "state", self._address)
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

    def _forwarding(self, folder: Path) -> FetchForwarding:
        shared = SharedFetchLog(self._address)
        return FetchForwarding(shared, Forwarder(folder, shared))

    # Endpoints

    def ask_other_host(self) -> None:
        """Let machines fetch from the endpoint of the other host from now on."""
        self.serving, self.beside = self.beside, self.serving
        self.asked_host = 1 - self.asked_host

    def start_endpoints(self) -> None:
        for _ in range(2):
            self.start_endpoint()
            self.ask_other_host()

    def _look(self) -> None:
        """Let the endpoint of the other host do what it does each second."""
        if self.beside is not None and not self.beside.crash_plan.dead:
            self.beside.look()

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        self._look()

    def _boot_network(self, boots: Boots) -> None:
        """Boot, and let the endpoint forward its records, as it does twice a second.

        The other host does not learn records that cannot be forwarded: for a minute after a boot, it serves the boot
        again.
        """
        super()._boot_network(boots)
        if self.serving is not None:
            self.serving.look()
        if self.serving is None or self.serving.is_behind:
            for request in self.book.requests.values():
                if request.given and self.now - request.given[-1] < GRACE:
                    request.is_over = False

    def _after_boot_script(self) -> None:
        if self.reconciles_in_boots and not self.bmcs:
            self.counts["reconcile within a boot"] += 1
            if self.serving is not None:
                self.serving.look()
            self.reconcile()

    def _disturb(self, serving: RunningEndpoint, task: asyncio.Task[BootResponse]) -> None:
        super()._disturb(serving, task)
        if self.late is not None:
            self._answer_late(serving, task, self.late)

    def _answer_late(self, serving: RunningEndpoint, task: asyncio.Task[BootResponse], late: LateCall) -> None:
        """Answer a fetch while one call to the PostgreSQL hangs, and let that call come to its end."""
        call = serving.crash_plan.held = HeldCall(late.number)
        self._loop.run_until_complete(_wait_for_call(task, call))
        if call.connection is None:
            serving.crash_plan.held = None
            call.end(is_lost=False)  # a thread may begin the call now
            return
        self.counts["a call hung while a fetch was answered"] += 1
        self.late, self._is_answering = None, True
        try:
            if late.meanwhile is not None and call.is_between_transactions and not self.bmcs:
                self._run_meanwhile(late.meanwhile)
            if late.expires:
                self._pass_deadlines(task)
        finally:
            serving.crash_plan.held, self._is_answering = None, False
            call.end(is_lost=late.is_lost)
        self._loop.run_until_complete(asyncio.wait([task]))
        assert serving.forwarding is not None
        with suppress(FetchLogUnavailable, Killed):
            serving.forwarding.shared.has_installer_reported(
                "", ""
            )  # waits for the thread that went on after the deadline

    def _run_meanwhile(self, what: str) -> None:
        self.counts[f"{what} while a call hung"] += 1
        if what == "reconcile":
            self.reconcile()
        else:  # the endpoint has the tree of the instance before, by which it must not serve any more
            self.take_over("ends", None)
            self.ask_for_installation()
            self.reconcile()

    def _wait_for_outcomes(self, serving: RunningEndpoint) -> None:
        """Wait until the outcomes of the intents of a fetch are in the endpoint's own fetch log."""
        done = asyncio.Event()

        def end() -> None:
            self._loop.call_soon_threadsafe(done.set)

        serving.spool.ended = end
        if not serving.spool.has_ended:
            serving.spool.run_in_writer(lambda: None).add_done_callback(lambda _: end())
            self._loop.run_until_complete(done.wait())

    # Instances

    def reconcile(self) -> None:
        for each in (self.serving, self.beside):
            if each is not None and not each.crash_plan.dead:
                each.look()
        super().reconcile()
        self._look()
        self._check_record()
        self._check_outcomes()

    def take_over(self, how: str, calls: int | None) -> None:
        """Let the instance of the other host act; it is killed after so many ``calls`` unless that is None.

        The instance that acts ends by itself (``ends``), is ``killed``, or is ``paused`` until its lease has run out.
        """
        self.counts[f"take-over: {how}"] += 1
        self.end_replaced()
        if how == "paused" and self.instance is not None:
            self._pause_instance(self.instance)
        elif how == "killed":
            self.instance_crash_plan.dead = True
        self.stop_instance()
        self._end_lease()
        self.acting, self.known_commit = 1 - self.acting, None
        crash_plan, stack = CrashPlan(), ExitStack()
        crash_plan.dies_in = calls
        self.instance_crash_plan, self._stack = crash_plan, stack
        with run_as(crash_plan), suppress(Killed):
            self.instance = stack.enter_context(self._instance())
        if crash_plan.dead:
            self.counts["standby killed"] += 1
            self.stop_instance()
            self.start_instance()

    def _end_lease(self) -> None:
        self._admin.execute("UPDATE lease SET until = clock_timestamp()")

    def _pause_instance(self, instance: Parts) -> None:
        """Pause an instance and its endpoint until its lease has run out."""
        lease = instance.ledger.database.lease
        assert lease is not None
        lease.until_s = 0.0  # by its own clock
        serving = self._open_endpoint(self._spools[self.acting])
        self.replaced = Replaced(instance, self.instance_crash_plan, self._stack, serving)
        self.instance, self.instance_crash_plan, self._stack = None, CrashPlan(), ExitStack()

    def end_replaced(self) -> None:
        if (replaced := self.replaced) is not None:
            self.replaced = None
            with run_as(replaced.crash_plan), suppress(Killed):
                replaced.stack.close()
            replaced.serving.close()

    def run_replaced(self, path: str) -> None:
        """Let a replaced instance reconcile and its endpoint serve: both may only end boots."""
        if (replaced := self.replaced) is None:
            return
        self.counts["a replaced host went on"] += 1
        self._is_replaced_at_work = True
        with run_as(replaced.crash_plan), suppress(Killed):
            with suppress(GitbootError):
                replaced.instance.source.fetch()
            replaced.instance.reconciler.reconcile(self.clock, wait=True)
        self._is_replaced_at_work = False
        answer = self._fetch_from(replaced.serving, path, ITSELF, IPXE, {})
        self.check_not_served(answer, "a machine that asks a host that was replaced")

    def start_too_early(self) -> None:
        """Let the standby start while the lease runs."""
        if self.instance is None or self.replaced is not None:
            return
        before = self.acting
        self.acting = 1 - before
        try:
            with self._instance():
                self.book.add_violation(self.now, "two instances act by one ledger")
        except HeldByAnother:
            self.counts["a standby tried too early"] += 1
        finally:
            self.acting = before

    def on_override_write(
        self,
        machine: WatchedMachine,
        before: Mapping[str, str | None],
        after: Mapping[str, str | None],
        *,
        overwrote_unseen: bool,
    ) -> None:
        if self._is_replaced_at_work:
            self.book.add_violation(self.now, "an instance whose lease another has writes to a BMC")
        super().on_override_write(machine, before, after, overwrote_unseen=overwrote_unseen)

    def switched(self, machine: WatchedMachine, kind: str) -> None:
        if self._is_replaced_at_work:
            self.book.add_violation(self.now, "an instance whose lease another has switches a machine")
        super().switched(machine, kind)

    # The PostgreSQL

    @contextmanager
    def hang_calls(self, *crash_plans: CrashPlan, hang: Hang) -> Iterator[None]:
        """A block in which calls of these processes to the PostgreSQL hang."""
        for crash_plan in crash_plans:
            crash_plan.hang = hang
        try:
            yield
        finally:
            for crash_plan in crash_plans:
                crash_plan.hang = None

    @contextmanager
    def unwritable(self, how: str) -> Iterator[None]:
        """A block in which the PostgreSQL has ``hung``, or its disk is ``full``."""
        self.counts[f"ledger {how}"] += 1
        if how == "full":
            with full_ledger():
                yield
            return
        crash_plans = [each.crash_plan for each in (self.serving, self.beside) if each is not None]
        with self.hang_calls(self.instance_crash_plan, *crash_plans, hang=Hang()):
            yield

    # The end

    def calm_down(self) -> None:
        self.end_replaced()
        self.late = self.instance_crash_plan.dies_in = None
        self.reconciles_in_boots = False
        if self.instance is None:
            self._end_lease()
            self.start_instance()
        self.start_endpoints()
        self.wait(0)
        self._is_calm = True
        super().calm_down()

    def _check_outcomes(self) -> None:
        """Check that a withheld boot is offered again, unless an endpoint was killed."""
        if self.instance is None or self._is_answering or self.counts["endpoint killed"]:
            return
        state = self.instance.reconciler.state
        record = state.snapshot.stored_record(SystemUuid(make_uuid("web01")))
        is_behind = any(each is None or each.is_behind for each in (self.serving, self.beside))
        if record is None or is_behind or state.ledger_error is not None or state.fetch_log_error is not None:
            return
        if any(not each.is_withheld for each in record.unknown_serves):
            self.book.add_violation(
                self.now, f"no endpoint died, and what came of a boot is not known: {record.unknown_serves}"
            )

    def _check_reports(self) -> None:
        """Check at the end of a life: until then a report may wait on a host that cannot reach the PostgreSQL."""
        if self._is_calm:
            super()._check_reports()

    def close(self) -> None:
        self.end_replaced()
        if self.beside is not None:
            self.beside.close()
        super().close()
        self._admin.execute("SET lock_timeout = '30s'")
        self._admin.execute(f"DROP SCHEMA {self._schema} CASCADE")  # waits if a connection was left with a lock
        self._admin.close()


async def _wait_for_call(task: asyncio.Task[BootResponse], call: HeldCall) -> None:
    """Wait until a fetch gets a response, or its call to the PostgreSQL hangs."""
    begins, loop = asyncio.Event(), asyncio.get_running_loop()
    call.on_begin = lambda: loop.call_soon_threadsafe(begins.set)
    if call.connection is None:
        waits = asyncio.create_task(begins.wait())
        await asyncio.wait([task, waits], return_when=asyncio.FIRST_COMPLETED)
        waits.cancel()
