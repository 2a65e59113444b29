"""One server through commits, boots, faults, crashes and restarts, and what must be true of it all along."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any, Final, cast

from msgspec import structs

from gitboot.controller.bmcs.desired_state import build_media_urls
from gitboot.controller.instance.assembly import Dependencies, build_instance
from gitboot.controller.instance.settings import BmcSettings, GitSettings, Settings
from gitboot.controller.operator_requests import BeginWithRecords
from gitboot.controller.reconcile import Reconciler
from gitboot.controller.reconcile_inputs import Inbox
from gitboot.errors import LedgerError
from gitboot.evaluator.client import EvaluatorClient
from gitboot.fetchlog.log_entries import Observation
from gitboot.fetchlog.spool import SpoolFile, encode_line
from gitboot.git.clone import Source
from gitboot.jsonio import Digest, format_instant
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.open_ledger import copy_ledger
from gitboot.ledger.store import Store, Transaction
from gitboot.publish.publisher import PublicationResult
from gitboot.render.endpoint_files import PublishedServer, find_version, parse_state, state_path
from gitboot.render.page import (
    NO_UPDATES,
    FileUpdates,
)
from gitboot.render.paths import RECORDS, Files
from gitboot.render.token_keys import NO_KEYS
from gitboot.resolve.provisioning_record import parse_exported_records
from gitboot.resolve.server_plan import BootPlan, Offer, Phase
from gitboot.status.conditions import Event
from tests.helpers import fleets
from tests.helpers.bmcs import DISCS, NETWORK, RESCUE, ActiveOverride, Key, ReadTracker, WatchedMachine
from tests.helpers.instance_in_process import UNLIMITED, Commits, Unsynced, WithoutFiles
from tests.helpers.redfish_double.machine import Boot
from tests.helpers.redfish_double.profiles import ENABLED, TARGET, Profile
from tests.helpers.redfish_double.server import RedfishServer

# The end of a process whose parts live in this one: at any of its writes, before or after they are durable.


class Crash(BaseException):
    """The end of the process, at this very instruction."""


@dataclass
class CrashPlan:
    """The time at which the process dies; after that it writes nothing."""

    dead: bool = False
    dies_in: tuple[int, str] | None = None  # writes from now, and how: "before", "unmarked", "after"; or "full"

    def die(self) -> None:
        self.dead = True
        raise Crash

    def next(self) -> str | None:
        """Return how the process dies with the next write, or None if it survives."""
        if self.dead:
            raise Crash
        if self.dies_in is None:
            return None
        left, how = self.dies_in
        self.dies_in = (left - 1, how) if left else None
        return None if left else how


class CrashingLedger(Unsynced):
    """A ledger whose process dies with one of its writes."""

    crash_plan = CrashPlan()
    _how: str | None = None

    @contextmanager
    def writing(self) -> Iterator[Transaction]:
        how = self.crash_plan.next()
        if how == "full":
            raise LedgerError("the disk is full")
        self._how = how
        with super().writing() as tx:
            yield tx
            if how == "before":
                tx.send()
                self.crash_plan.die()
        if how is not None:
            self.crash_plan.die()

    def write_mark(self, identity: str, changes: int) -> None:
        if self._how == "unmarked":
            self.crash_plan.die()
        super().write_mark(identity, changes)


# The commits about the one server of `tests.helpers.machine_lives`.

_FLEET = "baseURL: 'http://boot.test', provisioning: {monitors: [10.9.0.0/24]}"


class BootMethod(Enum):
    ENTRY = "entry"  # DHCP's loader requests it
    DIRECT = "direct"  # firmware fetches a uki
    MEDIUM = "medium"  # its BMC inserts an ISO
    MEDIA = "media"  # and its user data in another drive


_PROFILES: Final = {
    BootMethod.ENTRY: ("Pxe", ""),
    BootMethod.DIRECT: ("UefiHttp", "httpBoot: uki"),
    BootMethod.MEDIUM: ("VirtualMedia", ""),
    BootMethod.MEDIA: ("VirtualMedia", "userData: {format: CloudInit, template: t}"),
}
_IMAGES: Final = {
    BootMethod.ENTRY: ("", "kernel, initrd"),
    BootMethod.DIRECT: ("configFrom: None", "uki"),
    BootMethod.MEDIUM: ("configFrom: None", "iso"),
    BootMethod.MEDIA: ("configFrom: Medium, userData: CloudInit", "iso"),
}


@dataclass(frozen=True, kw_only=True)
class Repair:
    start: datetime
    end: datetime
    often: str = "Once"
    run: int = 1

    def document(self) -> str:
        window = f"window: {{start: '{format_instant(self.start)}', end: '{format_instant(self.end)}'}}"
        return fleets.maintenance("repair", "", f"{window}, networkBoot: {self.often}, run: {self.run}")


@dataclass(frozen=True, kw_only=True)
class Commit:
    often: str = "Once"
    provision: int = 1
    image: int = 1
    override: str | None = None  # None: it follows from `often`
    lifecycle: str = "Active"
    here: bool = True  # whether it has a document
    name: str = "web01"
    board: int = 0
    bmc: str | None = "a"
    repair: Repair | None = None

    @property
    def uuid(self) -> str:
        return fleets.make_uuid(f"board-{self.board}")

    def documents(self, addresses: Mapping[str, str], system: str, *, way: BootMethod) -> list[str]:
        spec = f"provision: {self.provision}, lifecycle: {self.lifecycle}"
        if self.bmc is not None:
            spec += f", bmc: {{address: '{addresses[self.bmc]}', system: {system}, credentials: rack}}"
        text = fleets.server(self.name, "role: web", spec).replace(fleets.make_uuid(self.name), self.uuid)
        text = text.replace(fleets.make_mac(self.name), fleets.make_mac("web01"))
        method, more = _PROFILES[way]
        override = f"override: {self.override}" if self.override is not None else ""
        return [
            fleets.fleet(_FLEET),
            *([text] if self.here else []),
            *(fleets.image(f"flatcar-{number}", *_IMAGES[way]) for number in (1, 2)),
            fleets.image("memtest-7", "writesDisk: false"),
            fleets.profile("web", f"flatcar-{self.image}", more, method=method),
            fleets.profile("repair", "memtest-7"),
            fleets.policy("web", "{matchLabels: {role: web}}", override, often=self.often),
            *([self.repair.document()] if self.repair is not None else []),
        ]

    def boots_once(self, at: datetime) -> str | None:
        """Return the key that a boot at a time would use up, or None."""
        if self.repair is not None and self.repair.start <= at < self.repair.end:
            return f"repair/{self.repair.run}" if self.repair.often == "Once" else None
        if self.often == "OnImageChange":
            return f"provision/{self.provision}/{self.image}"
        return f"provision/{self.provision}" if self.often == "Once" else None

    def boots_network(self, at: datetime) -> bool:
        """Return whether a network boot may be wanted at a time."""
        if not self.here or self.lifecycle != "Active":
            return False
        repairing = self.repair is not None and self.repair.start <= at < self.repair.end
        return repairing or self.often != "Never"


class Branch(Commits):
    """A branch on which commits come again and again."""

    def write(self, documents: list[str]) -> None:
        self.push(fleets.snapshot(*documents, files={"t": "#cloud-config\n"}))


# One server through commits, boots, faults, crashes and restarts, and what must be true of it all along.
#
# Judged by what its BMCs were really made to boot and by what its machine really booted, never by gitboot's ledger.

ENTRY = f"boot/v1/boot/{fleets.make_mac('web01').replace(':', '-')}/boot.ipxe"
MONITOR, STRANGER, ITSELF = "10.9.0.5", "10.0.0.99", "10.0.0.7"
_GRACE = timedelta(seconds=60)


@dataclass
class Process:
    """The memory of the process, which is lost when it dies."""

    ledger: Store
    inbox: Inbox
    reconciler: Reconciler
    opened: ExitStack

    def close(self) -> None:
        self.opened.close()


@dataclass
class Life(WithoutFiles):
    folder: Path
    bmcs: Mapping[str, RedfishServer]  # a and a2 lead to its own BMC, b to another machine's
    profile: Profile
    way: BootMethod = BootMethod.ENTRY
    commit: Commit = field(default_factory=Commit)
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    netboots: bool = False  # whether its firmware starts from the network by itself
    delays: bool = False  # whether fetches are delivered later
    is_unchanged: bool = True  # of what was published

    # What gitboot has after a crash
    branch: Branch = field(init=False)
    servers: dict[str, PublishedServer] = field(default_factory=dict)  # as they were published last
    shared: Files = field(default_factory=dict)
    parts: FileUpdates = NO_UPDATES
    backup: int | None = None  # how much had happened when it was made

    spool: SpoolFile = field(init=False)  # of its endpoints, which outlive it

    # The end
    crash_plan: CrashPlan = field(default_factory=CrashPlan)
    instance: Process | None = None

    # Facts
    unowned_media: set[str] = field(default_factory=set)  # media that a restored ledger may not have
    intruded_at: datetime | None = None
    unknown: bool = False  # an untrusted ledger
    unrecorded: set[str] = field(default_factory=set)  # motherboards without a record
    epochs: Counter[str] = field(default_factory=Counter)  # by UUID: an operator released everything
    requested: set[str] = field(default_factory=set)  # UUIDs for which a request waits
    images: dict[str, list[str]] = field(default_factory=dict)  # by UUID: provisioned one after the other
    consumed: set[tuple[Key, int]] = field(default_factory=set)
    delayed: list[Observation] = field(default_factory=list)
    unfinished: list[Observation] = field(default_factory=list)  # that no reconcile has ended with
    acknowledged: set[Observation] = field(default_factory=set)  # that a reconcile has ended with
    made: dict[tuple[Key, int], Observation] = field(default_factory=dict)  # boots by the machine itself
    known_boots: dict[tuple[Key, int], Observation] = field(
        default_factory=dict
    )  # those of them that gitboot must know
    offers: dict[str, Offer] = field(default_factory=dict)  # by the digest of a plan

    def __post_init__(self) -> None:
        self.own, self.other = (self._machine(name) for name in ("a", "b"))
        for name, server in self.bmcs.items():
            server.heal()
            server.service = ReadTracker(self.other if name == "b" else self.own, credentials={"root": "secret"})
        self.own.uuid = self.commit.uuid
        self.own.on_boot, self.other.on_boot = self._on_own_boot, self._on_other_boot
        (self.folder / "spool").mkdir()
        self.spool = SpoolFile(self.folder / "spool")
        self.branch = Branch()
        self.branch.write(self._documents())
        self.start(initial="fresh")

    def _machine(self, name: str) -> WatchedMachine:
        machine = WatchedMachine(name, uuid=fleets.make_uuid(name), profile=self.profile)
        machine.witness = self
        return machine

    def _documents(self) -> list[str]:
        addresses = {name: server.url for name, server in self.bmcs.items()}
        return self.commit.documents(addresses, self.own.path, way=self.way)

    @property
    def now(self) -> datetime:
        return self.own.now

    @property
    def machines(self) -> tuple[WatchedMachine, WatchedMachine]:
        return self.own, self.other

    @property
    def named(self) -> WatchedMachine | None:
        """The machine whose BMC the document names."""
        if self.commit.bmc is None:
            return None
        return self.other if self.commit.bmc == "b" else self.own

    # The process

    def start(self, initial: str | None = None) -> None:
        opened = ExitStack()

        class Ledger(CrashingLedger):
            crash_plan = self.crash_plan

        ledger = opened.enter_context(Ledger.open(self.folder / "ledger.sqlite"))
        if instance_tables.is_behind(ledger):
            instance_tables.mark_unverified(ledger, "RestoredLedger")
        dependencies = Dependencies(
            store=ledger,
            source=cast(Source, self.branch),
            evaluation=cast(EvaluatorClient, self.branch),
            target=self,
            clock=lambda: self.now,
            tell=self._on_event,
        )
        files = [each for path, each in self.parts.files.items() if path.startswith(RECORDS)]
        if self.shared:
            records = {
                uuid: known for each in files for uuid, known in parse_exported_records(each.content, RECORDS).items()
            }
            dependencies = structs.replace(
                dependencies, owner=instance_tables.read_facts(ledger).identity, records=records
            )
        settings = Settings(
            output=self.folder,
            state=self.folder,
            spool=self.folder / "spool",
            git=GitSettings(repository=""),
            bmc=BmcSettings(credentials=self.folder, parallel=1, jitter=0),
            limits=UNLIMITED,
        )
        made = opened.enter_context(build_instance(settings, dependencies))
        if initial is not None:
            instance_tables.add_request(ledger, self.now, "an operator", BeginWithRecords.kind, {"how": initial})
        self.instance = Process(ledger, made.inbox, made.reconciler, opened)

    def kill(self) -> None:
        """End the process, with everything that it had not written down."""
        if self.instance is not None:
            self.counts["killed"] += 1
            self.instance.close()
        self.instance, self.crash_plan.dead, self.crash_plan.dies_in = None, False, None
        for machine in self.machines:
            machine.dies_at_patch = None

    def reconcile(self) -> bool:
        """Reconcile; return whether the process survived."""
        if self.instance is None:
            death, self.crash_plan.dies_in = self.crash_plan.dies_in, None  # the process dies in a reconcile
            self.start()
            self.crash_plan.dies_in = death
        instance, ended = self.instance, False
        assert instance is not None
        with suppress(Crash):
            instance.reconciler.reconcile(self.now, wait=True)
            ended = not self.crash_plan.dead and instance.reconciler.state.ledger_error is None
        self.crash_plan.dies_in = None
        if self.crash_plan.dead:
            self.kill()
        elif ended:
            self.unknown = instance_tables.read_facts(instance.ledger).doubt is not None
            self.requested.clear()
            self.acknowledged.update(self.unfinished)
            self.unfinished.clear()
            self.counts["passes"] += 1
        return ended

    def publish(
        self,
        servers: Mapping[str, Files | None],
        shared: Files | None,
        *,
        complete: bool,
        commit: str,
        at: datetime,
        parts: FileUpdates,
    ) -> PublicationResult:
        if self.crash_plan.dead:
            raise Crash
        assert self.instance is not None
        if complete:
            self.servers.clear()
        for name, files in servers.items():
            self.servers.pop(name, None)
            if files is not None:
                self.servers[name] = parse_state(files[state_path(name)].content)
        self.shared = self.shared if shared is None else shared
        self.parts = self.parts.merge(parts)
        turns = (turn for each in self.servers.values() for path in each.paths.values() for turn in path)
        for digest in {Digest(turn.digest) for turn in turns if turn.digest is not None}:
            if (offer := server_tables.find_offer(self.instance.ledger, digest)) is not None:
                self.offers[digest] = offer
        return PublicationResult(written=(), withdrawn=(), expired=(), unchanged=0)

    def has_files(self, files: Files) -> bool:
        states = self.servers.items()
        return any(
            parse_state(files[path].content) == state for name, state in states if (path := state_path(name)) in files
        )

    def _on_event(self, event: Event) -> None:
        if event.type == "Provisioned":
            self.counts["provisioned"] += 1
            images = self.images.setdefault(self.commit.uuid, [])
            if not images or images[-1] != event.facts["image"]:
                images.append(event.facts["image"])
        elif event.type == "Requested":
            for uuid in self.requested:
                self._release_boots(uuid)
                self.unrecorded.discard(uuid)

    # Events

    def push(self, **changes: Any) -> None:
        before = self.commit
        self.commit = replace(self.commit, **changes)
        if self.commit.uuid != before.uuid and self.commit.uuid not in self.images:
            self.unrecorded.add(self.commit.uuid)
        self.images.setdefault(before.uuid, [])
        self.own.uuid = self.commit.uuid  # its board is replaced, as the document declares
        self.branch.write(self._documents())

    def wait(self, seconds: float) -> None:
        """Let time pass for all, event by event."""
        ends = self.now + timedelta(seconds=seconds)
        for machine in self.machines:
            machine.advance((ends - machine.now).total_seconds())

    def back_up(self) -> None:
        if self.instance is not None:
            self.backup = self.counts["set"] + self.counts["provisioned"]
            copy_ledger(self.folder / "ledger.sqlite", self.folder / "backup.sqlite", in_use=True)

    def restore_backup(self) -> None:
        """Put the backup in the ledger's place."""
        self.kill()
        path = self.folder / "ledger.sqlite"
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        shutil.copyfile(self.folder / "backup.sqlite", path)
        self.start()
        assert self.instance is not None
        self.unknown = instance_tables.read_facts(self.instance.ledger).doubt is not None
        if not self.unknown and self.backup != self.counts["set"] + self.counts["provisioned"]:
            self.violations.append("an older ledger was believed")
        self.made.clear()
        self.known_boots.clear()
        for machine in self.machines:
            machine.active_override = None  # its owner is unknown
            self.unowned_media |= set(machine.media)

    def adopt(self) -> None:
        """Say that all is installed as Git wants it."""
        self.kill()
        self.start(initial="adopt")
        if self.unknown:
            self._release_boots(self.commit.uuid)
            self.unrecorded |= {fleets.make_uuid(f"board-{board}") for board in range(3)}
            if self.commit.here:
                self.unrecorded.discard(self.commit.uuid)

    def request(self, what: str, **facts: Any) -> None:
        """Leave a request of an operator, which releases all one-time boots when it is executed."""
        if self.instance is not None:
            instance_tables.add_request(self.instance.ledger, self.now, "an operator", what, facts)
            self.requested.add(self.commit.uuid)

    def _release_boots(self, uuid: str) -> None:
        self.epochs[uuid] += 1

    def tell(self, observation: Observation) -> None:
        if self.delays:
            self.delayed.append(observation)
        else:
            self._write_fetch(observation)

    def _write_fetch(self, observation: Observation) -> None:
        self.spool.append(encode_line(observation))
        self.unfinished.append(observation)

    def deliver(self) -> None:
        delayed, self.delayed = self.delayed, []
        for observation in delayed:
            self._write_fetch(observation)

    def fetch(self, client: str, at: datetime | None = None) -> None:
        at = at or self.now
        found = [(name, each.paths[ENTRY]) for name, each in self.servers.items() if ENTRY in each.paths]
        if not found:
            return
        ((name, turns),) = found
        turn = find_version(turns, at)[0] if self.instance is not None else turns[0]  # a mirror does not turn
        if turn is None or turn.digest is None:
            return
        digest = Digest(turn.digest)
        observation = Observation(server=name, path=ENTRY, digest=digest, client=client, at=at)
        self.tell(observation)
        offer = self.offers.get(digest)
        if client == ITSELF and offer is not None:
            made = self._make_boot_key(offer.uuid, offer.key)
            self.made.setdefault(made, observation)
            if offer.phase is Phase.NETWORK:
                self.counts["installed"] += 1
                before = self.known_boots.get(made)
                if before is not None and at >= before.at + _GRACE:
                    self.violations.append(f"{at}: {made} was installed at {before.at}, and is installed again")

    def _make_boot_key(self, uuid: str, key: str) -> tuple[Key, int]:
        return Key(uuid, key), self.epochs[uuid]

    # Facts

    def key(self) -> Key | None:
        """Return the key of the boot that the commit wants once; it is set at most once."""
        reason = self.commit.boots_once(self.now)
        if reason is None:
            return None
        if self.commit.often == "OnImageChange" and reason.startswith("provision"):
            reason += f" after {len(self.images.get(self.commit.uuid, []))}"
        return Key(self.commit.uuid, reason)

    def on_intrusion(self, at: datetime) -> None:
        self.intruded_at = at

    def on_override_write(
        self,
        machine: WatchedMachine,
        before: Mapping[str, str | None],
        after: Mapping[str, str | None],
        *,
        overwrote_unseen: bool,
    ) -> None:
        def add_violation(what: str) -> None:
            self.violations.append(f"{self.now}: {what}: {dict(before)} -> {dict(after)} on {machine.name}")

        if overwrote_unseen:
            add_violation("somebody else's change was overwritten unnoticed")
        if after[ENABLED] == "Disabled":
            self.counts["withdrawn"] += 1
            if before[TARGET] not in NETWORK:  # gitboot never wants another here
                add_violation("somebody else's override was withdrawn")
            machine.active_override = None
            return
        self.counts["set"] += 1
        once, key = after[ENABLED] == "Once", self.key()
        if machine.in_post and (self.profile.boot_progress or self.profile.hpe_post_state):
            add_violation("an override was set during POST")
        if not self.commit.boots_network(self.now):
            add_violation("an override was set that nobody wants")
        if after[TARGET] in DISCS and not self._has_media(machine):
            add_violation("an override was set for a medium that is not inserted")
        if machine is not self.named:
            add_violation("an override was set on a BMC that no document names")
        if key is not None:
            if self.unknown or key.uuid in self.unrecorded:
                add_violation("an override was set for a server of which nothing is known")
            if (key, self.epochs[key.uuid]) in self.consumed:
                add_violation(f"{key} was set again after it was booted")
        machine.active_override = ActiveOverride(key, once, self.epochs[self.commit.uuid])

    def switched(self, machine: WatchedMachine, kind: str) -> None:
        """Record a violation: no commit of this life wants power."""
        self.violations.append(f"{self.now}: {kind} was asked for of {machine.name}")

    def _has_media(self, machine: WatchedMachine) -> bool:
        """Return whether its drives have the media of the boot, and the data that the boot reads."""
        return len(set(machine.media) - {RESCUE}) >= (2 if self.way is BootMethod.MEDIA else 1)

    def ejected(self, machine: WatchedMachine, image: str) -> None:
        self.counts["ejected"] += 1
        self.unowned_media.discard(image)
        if image == RESCUE:
            self.violations.append(f"{self.now}: {image} was ejected from {machine.name}, which somebody else inserted")
        once = machine.override[ENABLED] == "Once"
        if (
            machine.active_override is not None
            and machine.active_override.once is once
            and machine.override[TARGET] in DISCS
        ):
            self.violations.append(f"{self.now}: {image} was ejected from {machine.name} while {machine.format_boot()}")

    def _consume(self, machine: WatchedMachine, boot: Boot) -> None:
        active_override = machine.active_override
        if active_override is not None and active_override.once and boot.target in NETWORK:
            machine.active_override = None
            if active_override.key is not None:
                self.counts["consumed"] += 1
                self.consumed.add((active_override.key, active_override.epoch))

    def _on_other_boot(self, boot: Boot) -> None:
        self._consume(self.other, boot)

    def _on_own_boot(self, boot: Boot) -> None:
        was_set = self.own.active_override is not None
        self._consume(self.own, boot)
        if boot.target in DISCS:
            self.counts["booted a medium"] += 1
            if was_set and (boot.medium in (None, RESCUE) or not self._has_media(self.own)):
                self.violations.append(f"{boot.at}: an override was consumed without its medium: {boot}")
            return
        from_network = boot.target in NETWORK or (boot.target == "None" and self.netboots)
        if from_network and boot.uri is None:
            self.fetch(ITSELF, boot.at)

    def calm_down(self) -> None:
        """Let every BMC respond, deliver every fetch, and reconcile some times; then nothing may be left to do."""
        self.crash_plan.dies_in = None
        for server in self.bmcs.values():
            server.heal()
        for machine in self.machines:
            machine.dies_at_patch = None
        quiet_since = self.now
        self.wait(180)
        self.deliver()
        ended = [self._reconcile_after(601) for _ in range(5)]
        assert all(ended)
        if not self.unknown:
            self._add_known_boots(quiet_since)
        self._check_overrides_cleared()
        self._check_media_ejected()
        self._check_override_set()
        self._check_boot_withheld()

    def _reconcile_after(self, seconds: float) -> bool:
        self.wait(seconds)
        return self.reconcile()

    @property
    def plan(self) -> BootPlan | None:
        assert self.instance is not None
        state = self.instance.reconciler.state.plans.servers.get(self.commit.name)
        return state.plan if state is not None else None

    def _add_known_boots(self, quiet_since: datetime) -> None:
        """Check that gitboot knows every boot by its own override or without one."""
        if self.named is not self.other:
            self.known_boots |= {
                made: observation
                for made, observation in self.made.items()
                if made[0].uuid == self.commit.uuid
                and observation.at < quiet_since
                and (self.intruded_at is None or self.intruded_at < observation.at)
                and observation in self.acknowledged
            }

    def _check_overrides_cleared(self) -> None:
        for machine in self.machines:
            wanted = self.plan is not None and self.plan.override is not None and machine is self.named
            if machine.active_override is not None and machine.override[ENABLED] != "Disabled" and not wanted:
                self.violations.append(
                    f"{self.now}: {machine.format_boot()} still stands on {machine.name}: {machine.active_override}"
                )

    def _check_media_ejected(self) -> None:
        """But what is wanted, or may be read by the system that booted it."""
        plan = self.plan
        for machine in self.machines:
            kept = set(build_media_urls(plan, NO_KEYS)) if machine is self.named else set()
            for image in set(machine.media) - {RESCUE} - kept - self.unowned_media:
                self.violations.append(f"{self.now}: {image} still lies in a drive of {machine.name}")

    def _check_override_set(self) -> None:
        """Check that the wanted override is set, or that a condition explains why not."""
        plan, named = self.plan, self.named
        if plan is None or plan.override is None or named is None or plan.phase is Phase.MAINTENANCE:
            return
        assert self.instance is not None
        conditions = [each for each in self.instance.reconciler.status.conditions if not each.status]
        if named.override[ENABLED] == "Disabled" and not conditions:
            self.violations.append(f"{self.now}: {plan.override} is wanted, is not set, and nobody is told")

    def _check_boot_withheld(self) -> None:
        plan = self.plan
        if plan is None or plan.key is None or plan.boot is None:
            return
        if (made := self._make_boot_key(plan.uuid, plan.key)) in self.known_boots:
            self.violations.append(f"{self.now}: {made} was made, and is still served")

    def close(self) -> None:
        if self.instance is not None:
            self.instance.close()
        self.instance = None
