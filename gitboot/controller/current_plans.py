"""Current plans of all servers, updated when a decision, a record or the time changes, and stops of boots."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from datetime import datetime, timedelta
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec import Struct, field, structs

from gitboot.artifacts.availability import Sighting, is_withheld
from gitboot.bmc.override_state import OverrideState
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot, LedgerUpdate
from gitboot.errors import FleetOrders, PublishError
from gitboot.evaluator.protocol import Commit
from gitboot.fleet.overlay import apply_changes, find_differing_keys
from gitboot.model.scalars import SystemUuid
from gitboot.publish.window_ends import EndedWindows, WindowEndError
from gitboot.render.server_files import ServerDetails, ServerState, plan_server
from gitboot.render.token_keys import NO_KEYS, TokenKeys
from gitboot.resolve.install_attempts import find_open_attempt, find_unstarted_run, install_step, is_overwritten
from gitboot.resolve.plan_at_time import drop_ended_windows, make_plan
from gitboot.resolve.provisioning_record import InstallAttempt, Run, StopOrder, StopScope, find_drift
from gitboot.resolve.server_decision import Boot, BootFile, Decision, Decisions, list_idle_macs
from gitboot.resolve.server_plan import UNKNOWN_OUTCOMES, Cause, InstallProgress, Phase
from gitboot.status.conditions import Event
from gitboot.status.work_progress import ReportProgress, ignore_progress, iterate_with_progress
from gitboot.text import format_count, version_key

_RESORT_SHARE: Final = 16  # re-sort the whole queue if more than one in this many keys moved
_RETRY: Final = timedelta(seconds=5)


class ImageFile(NamedTuple):
    """A file that an image needs for booting."""

    image: str
    file: BootFile


Key = TypeVar("Key", bound=str)
Value = TypeVar("Value")


class DueQueue(Struct, Generic[Key], frozen=True):
    """An immutable set of keys with due times. `reschedule` returns a new queue."""

    instants: Mapping[Key, datetime] = field(default_factory=dict)
    _queue: list[tuple[datetime, Key]] = field(default_factory=list)  # sorted

    def reschedule(self, due_times: Mapping[Key, datetime | None]) -> DueQueue[Key]:
        """Return the queue with new due times for these keys. A due time of None removes the key."""
        changed = {key: at for key, at in due_times.items() if self.instants.get(key) != at}
        if not changed:
            return self
        due = {key: at for key, at in changed.items() if at is not None}
        instants = apply_changes(self.instants, due, changed.keys() - due.keys())
        if len(changed) * _RESORT_SHARE > len(instants):
            return DueQueue(instants, sorted((at, key) for key, at in instants.items()))
        queue = list(self._queue)
        for key in changed:
            if (before := self.instants.get(key)) is not None:
                del queue[bisect_left(queue, (before, key))]
        for key, at in due.items():
            insort(queue, (at, key))
        return DueQueue(instants, queue)

    def find_due_keys(self, at: datetime) -> frozenset[Key]:
        """Return the keys that are due by ``at``."""
        return frozenset(key for _, key in self._queue[: bisect_right(self._queue, at, key=lambda each: each[0])])

    @property
    def next_due(self) -> datetime | None:
        """The earliest due time, or None if the queue is empty."""
        return self._queue[0][0] if self._queue else None


class Plans(Struct, frozen=True, kw_only=True):
    """The current plans of all servers, and summaries of them."""

    commit: Commit | None = None  # the commit from which the plans were made
    stop: StopScope = StopScope.NONE  # which boots are stopped
    left: datetime | None = None  # the last heartbeat, if the clock is behind it
    servers: Mapping[str, ServerState] = field(default_factory=dict)
    transitions: DueQueue[str] = field(default_factory=DueQueue)  # when the plan of each server changes by itself
    planned_at: datetime | None = None
    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)  # number of servers by kind and value
    versions: Mapping[tuple[str, str], int] = field(default_factory=dict)  # number of servers by profile and version
    unknown: frozenset[str] = frozenset()  # servers for which it is unknown what is installed
    unseen: frozenset[str] = frozenset()  # servers whose next boot gitboot could not observe
    consumed: frozenset[str] = frozenset()  # servers whose override was consumed without evidence of a boot
    lost: frozenset[str] = frozenset()  # servers whose override was lost
    unknown_outcomes: frozenset[str] = frozenset()  # servers to which an endpoint may have served a boot
    # Installations that have begun and not ended, by server.
    begun: Mapping[str, InstallAttempt] = field(default_factory=dict)
    # The results of artifact checks; None: gitboot does not check artifacts.
    sightings: Mapping[BootFile, Sighting] | None = None
    needs: Mapping[ImageFile, int] = field(default_factory=dict)  # number of servers whose boots need each file
    # Of these, the number of servers that a loader other than iPXE boots without the file, which is a signature.
    needs_for_ipxe: Mapping[ImageFile, int] = field(default_factory=dict)
    # Progress of current installations, by server.
    installing: Mapping[str, InstallProgress] = field(default_factory=dict)
    # Maintenance runs that were served but have not started, by server.
    given: Mapping[str, tuple[str, Run]] = field(default_factory=dict)

    # The maintenance for whose approval or drain a server waits, by server.
    waiting: Mapping[str, str] = field(default_factory=dict)
    # Servers for which a drain has begun. The drains of some of them may have ended.
    drained: frozenset[str] = frozenset()

    def is_due(self, at: datetime) -> bool:
        """Return whether a plan is due to change by ``at``, or no plans exist yet."""
        due = self.transitions.next_due
        return self.planned_at is None or (due is not None and due <= at)

    def count_servers(self, wanted_kind: str) -> dict[str, int]:
        """Return how many servers have each value of a kind, such as ``phases``, ``records`` or ``drift``."""
        return {value: count for (kind, value), count in self.counts.items() if kind == wanted_kind}

    def count_below_minimum(self) -> dict[str, int]:
        """Return, by stream, the number of servers that boot a version below the stream's minimum."""
        minimum = self.commit.minimum_versions if self.commit is not None else {}
        by_stream = dict.fromkeys((each.stream for each in minimum.values()), 0)
        for (profile, version), servers in self.versions.items():
            wanted = minimum.get(profile)
            if wanted is not None and version_key(version) < version_key(wanted.version):
                by_stream[wanted.stream] += servers
        return by_stream

    @property
    def withheld(self) -> dict[ImageFile, int]:
        """The missing files that cause boots to be withheld, sorted, each with the number of affected servers."""
        return self._select_withheld_files(
            {each: count - self.needs_for_ipxe.get(each, 0) for each, count in self.needs.items()}
        )

    @property
    def withheld_from_ipxe(self) -> dict[ImageFile, int]:
        """The missing signatures that withhold only iPXE scripts, sorted, each with the number of affected servers."""
        return self._select_withheld_files(self.needs_for_ipxe)

    def _select_withheld_files(self, needs: Mapping[ImageFile, int]) -> dict[ImageFile, int]:
        withheld = {each: count for each, count in needs.items() if count and is_withheld(each.file, self.sightings)}
        return dict(sorted(withheld.items(), key=lambda item: (item[0].image, item[0].file.url)))


def replan(
    before: Plans,
    commit: Commit,
    snapshot: LedgerSnapshot,
    changed: Collection[str],
    at: datetime,
    stop: StopScope = StopScope.NONE,
    keys: TokenKeys = NO_KEYS,
    report_progress: ReportProgress = ignore_progress,
) -> tuple[Plans, frozenset[str]]:
    """Return the plans at ``at``, and the servers whose files may differ from the previous plans.

    ``changed`` are the servers whose decision or record changed since the previous plans. If the clock is behind the
    last heartbeat, windows that had ended by the heartbeat do not open again.
    """
    names = {*changed, *before.transitions.find_due_keys(at)}
    left = snapshot.find_later_clock(at)
    old, new = before.commit.decisions if before.commit is not None else None, commit.decisions
    if old is not None:
        names |= _find_artifact_changes(before, old, snapshot.sightings) | find_differing_keys(old.servers, new.servers)
    replans_all = (
        (before.planned_at is not None and at < before.planned_at)  # the previous plans are for a later time
        or left != before.left
        or stop is not before.stop
        or old is None
        or (old.base_url, old.outputs, old.evidence) != (new.base_url, new.outputs, new.evidence)
    )
    if replans_all:
        names = {*before.servers, *new.servers}
    if not names:
        return structs.replace(before, commit=commit, stop=stop, sightings=snapshot.sightings), frozenset()
    states: dict[str, ServerState] = {}
    replanned_servers = set[str]()
    for name in iterate_with_progress(names, report_progress):
        old_state, decision = before.servers.get(name), new.servers.get(name)
        if decision is None:
            replanned_servers.add(name)
            continue
        record = snapshot.record(decision.uuid)
        absent = snapshot.find_missing_files(decision)
        details = build_server_details(commit, name)
        if (
            not replans_all
            and old_state is not None
            and old_state.is_current(decision, record, at, details, absent=absent)
        ):
            if old_state.decision is not decision:
                # The decisions are equal. Keep the newer object, so that the older one can be freed.
                old_state = structs.replace(old_state, decision=decision)
            states[name] = old_state
        else:
            replanned_servers.add(name)
            states[name] = plan_server(decision, record, at, details, stop, left, keys, absent)
    plans = _with_states(before, snapshot, names, states)
    plans = structs.replace(plans, commit=commit, stop=stop, left=left, planned_at=at, sightings=snapshot.sightings)
    return plans, frozenset(replanned_servers)


def _with_states(before: Plans, snapshot: LedgerSnapshot, names: Set[str], states: Mapping[str, ServerState]) -> Plans:
    """Return the plans with new states for the servers ``names``. A server without a new state has left the fleet."""
    counters = _Counters(
        Counter(before.counts), Counter(before.versions), Counter(before.needs), Counter(before.needs_for_ipxe)
    )
    for name in names:
        if (old_state := before.servers.get(name)) is not None:
            counters.add(old_state, -1)
        if (new_state := states.get(name)) is not None:
            counters.add(new_state, 1)
    records = {name: snapshot.stored_record(state.decision.uuid) for name, state in states.items()}
    planned = {name: (state, state.plan) for name, state in states.items() if state.plan is not None}
    unknown = {  # no record shows what is installed
        name
        for name, record in records.items()
        if record is None or is_overwritten(record, states[name].decision.provision)
    }
    unseen = {name for name, state in states.items() if state.decision.uuid in snapshot.unobservable}
    consumed = {name for name, (_, plan) in planned.items() if plan.cause is Cause.CONSUMED}
    unknown_outcomes = {name for name, (_, plan) in planned.items() if plan.cause in UNKNOWN_OUTCOMES}
    drained = {
        name
        for name, record in records.items()
        if record is not None and any(clearance.drain is not None for clearance in record.clearances.values())
    }
    begun = {
        name: attempt
        for name, state in states.items()
        if (attempt := find_open_attempt(state.decision, state.record)) is not None
    }
    lost = {
        name
        for name, (state, plan) in planned.items()
        if name not in begun
        and plan.phase is Phase.NETWORK
        and any(
            override.reason == plan.key and override.state is OverrideState.LOST
            for override in snapshot.list_overrides(state.decision.uuid)
        )
    }
    given = {
        name: (plan.maintenance, run)
        for name, (state, plan) in planned.items()
        if plan.maintenance is not None
        and (run := find_unstarted_run(state.decision, plan.maintenance, state.record)) is not None
    }
    installing = {name: state.progress for name, state in states.items() if state.progress is not None}
    waiting = {
        name: plan.waiting_maintenance for name, (_, plan) in planned.items() if plan.waiting_maintenance is not None
    }
    changed = {name: state for name, state in states.items() if state is not before.servers.get(name)}
    return Plans(
        servers=apply_changes(before.servers, changed, names - states.keys()),
        transitions=before.transitions.reschedule(
            {name: states[name].transition if name in states else None for name in names}
        ),
        counts=dict(+counters.counts),
        versions=dict(+counters.versions),
        unknown=(before.unknown - names) | unknown,
        unseen=(before.unseen - names) | unseen,
        consumed=(before.consumed - names) | consumed,
        lost=(before.lost - names) | lost,
        unknown_outcomes=(before.unknown_outcomes - names) | unknown_outcomes,
        begun=_replace_values(before.begun, begun, names),
        needs=dict(+counters.needs),
        needs_for_ipxe=dict(+counters.needs_for_ipxe),
        given=_replace_values(before.given, given, names),
        installing=_replace_values(before.installing, installing, names),
        waiting=_replace_values(before.waiting, waiting, names),
        drained=(before.drained - names) | drained,
    )


def _replace_values(old: Mapping[str, Value], new: Mapping[str, Value], names: Set[str]) -> dict[str, Value]:
    """Return the values of all servers, sorted by name. The servers ``names`` have only their new values, if any."""
    kept = {name: value for name, value in old.items() if name not in names}
    return dict(sorted({**kept, **new}.items()))


class _Counters(NamedTuple):
    """The counts of servers in `Plans`."""

    counts: Counter[tuple[str, str]]
    versions: Counter[tuple[str, str]]
    needs: Counter[ImageFile]
    needs_for_ipxe: Counter[ImageFile]

    def add(self, state: ServerState, delta: int) -> None:
        """Count a server (1), or no longer count it (-1)."""
        for kind in _list_counted_values(state):
            self.counts[kind] += delta
        policy, boots = state.decision.policy, state.decision.boots
        if policy is not None and policy.boot is not None:
            self.versions[policy.boot.profile, policy.boot.version] += delta
        files = {ImageFile(boot.image, file) for boot in boots for file in boot.fetched_files}
        for file in files:
            self.needs[file] += delta
        if any(boot.ignores_signatures for boot in boots):
            required = {ImageFile(boot.image, file) for boot in boots for file in boot.required_files}
            for file in files - required:
                self.needs_for_ipxe[file] += delta


def _find_artifact_changes(
    before: Plans, decisions: Decisions, sightings: Mapping[BootFile, Sighting] | None
) -> frozenset[str]:
    """Return the servers for which gitboot has begun or ceased to withhold a boot because of a missing file."""
    if sightings is before.sightings:
        return frozenset()
    needed = {each.file for each in before.needs}  # files with their sources, which `sightings` does not contain
    files = {file for file in needed if is_withheld(file, before.sightings) != is_withheld(file, sightings)}
    names = before.servers if files else ()
    return frozenset(name for name in names if decisions.servers[name].find_withheld_files(files.__contains__))


def find_changed_servers(before: Commit | None, now: Commit) -> frozenset[str]:
    """Return the servers that differ between two commits, including servers that exist in only one of them.

    A server also differs if its withheld boots differ.
    """
    servers = now.decisions.servers
    if before is None:
        return frozenset(servers)
    if before.revision == now.revision:
        changed = frozenset[str]()
    elif before.revision == now.base:
        changed = now.touched
    else:
        names = before.decisions.servers.keys() | servers.keys()
        changed = frozenset(name for name in names if _has_server_changed(before, now, name))
    differently_withheld = [
        uuid
        for uuid in before.withheld.keys() | now.withheld.keys()
        if before.withheld.get(uuid) != now.withheld.get(uuid)
    ]
    if not differently_withheld:
        return changed
    return changed | before.select_server_names(differently_withheld) | now.select_server_names(differently_withheld)


def _has_server_changed(before: Commit, now: Commit, name: str) -> bool:
    old, new = before.decisions.servers.get(name), now.decisions.servers.get(name)
    return (
        old is None
        or new is None
        or old.digest != new.digest
        or old.proofs != new.proofs
        or before.machines[old.uuid] != now.machines[new.uuid]
        or before.sites.get(name) != now.sites.get(name)
        or before.labels[name] != now.labels[name]
        or before.written.get(name) != now.written.get(name)
        or before.decisions.networks[name] != now.decisions.networks[name]
    )


def find_departed_machines(before: Commit | None, now: Commit) -> frozenset[SystemUuid] | None:
    """Return the machines that were removed since an earlier commit, or None if that commit is unknown."""
    if before is None:
        return None
    changed = before.select_machines(find_changed_servers(before, now))
    return frozenset(machine.uuid for machine in changed if machine.uuid not in now.machines)


def build_server_details(commit: Commit, name: str) -> ServerDetails:
    """Return the details of a server that the commit contains but the server's decision does not."""
    host = commit.decisions.networks[name]
    return ServerDetails(
        site=commit.sites.get(name),
        labels=commit.labels[name],
        addresses=tuple(sorted(host.addresses)),
        idle_macs=list_idle_macs(host),
        machine=commit.machines.get(commit.decisions.servers[name].uuid),
        source=commit.written.get(name),
    )


_RUN_STEPS: Final = {
    Cause.MAINTENANCE_SERVED: "Attempted",
    Cause.MAINTENANCE_OUTCOME: "OutcomeUnknown",
    Cause.MAINTENANCE_STARTED: "Started",
    Cause.MAINTENANCE_DONE: "Made",
    Cause.WAITING_FOR_APPROVAL: "WaitingForApproval",
    Cause.WAITING_FOR_DRAIN: "WaitingForDrain",
}
_STOPPED_BOOTS: Final = {Cause.STOPPED: "Installs", Cause.ALL_STOPPED: "All"}


def _list_counted_values(state: ServerState) -> Iterator[tuple[str, str]]:
    yield "phases", str(state.plan.phase) if state.plan else "NoPlan"
    yield "records", install_step(state.decision, state.record)
    if (since := state.installs_at) is not None:
        yield "installs", "Now" if since == state.at else "Later"
    if state.plan is not None and (step := _RUN_STEPS.get(state.plan.cause)) is not None:
        yield "runs", step
    if state.plan is not None and (stopped := _STOPPED_BOOTS.get(state.plan.cause)) is not None:
        yield "stopped", stopped
    if (progress := state.progress) is not None:
        yield "installing", f"{progress.state}/{progress.step}"
    yield from (("drift", field_name) for field_name in find_drift(state.decision, state.record))


class WindowWatch:
    """A watch that ends windows in OUTPUT on a standby, or on an instance that cannot publish its plans."""

    def __init__(self, end_windows: Callable[[datetime], EndedWindows]) -> None:
        self._end_windows = end_windows
        self._failure = ""
        self._unreported: set[str] = set()  # servers with files that a failed call has replaced
        self.next_end: datetime | None = None  # when to call `end_windows` next; None: no window is left to end

    def is_due(self, at: datetime) -> bool:
        """Return whether a known window has ended by ``at``. After a failure, return False until a call succeeds."""
        return not self._failure and self.next_end is not None and self.next_end <= at

    def end_windows(self, at: datetime) -> tuple[frozenset[str], tuple[Event, ...]]:
        """Replace the files of windows that have ended by ``at``.

        Return the servers with new files, and the events to report. After a failure, call this method again at
        `next_end`. Repeated equal failures yield only one event.
        """
        try:
            servers, self.next_end = self._end_windows(at)
        except PublishError as error:
            self.next_end = at + _RETRY
            is_known = str(error) == self._failure
            self._failure = str(error)
            event = Event(at=at, type="WindowsNotEnded", message=str(error), warning=True)
            changed = frozenset(error.servers if isinstance(error, WindowEndError) else ())
            self._unreported |= changed
            return changed, () if is_known else (event,)
        self._failure = ""
        ended = sorted(self._unreported.union(servers))
        if not ended:
            return frozenset(), ()
        self._unreported.clear()
        message = f"ended the maintenance windows for {format_count(len(ended), 'server')} in OUTPUT"
        return frozenset(servers), (Event(at=at, type="WindowsEnded", message=message, facts={"servers": ended}),)


# Stops of boots


def apply_stop_order(update: LedgerUpdate, stop_order: StopOrder) -> None:
    """Record a stop from the files that endpoints read, unless the ledger already has this stop or a wider stop."""
    known = update.facts.stop_order
    if known is None or stop_order.everything > known.everything:
        update.set_facts(stop_order=stop_order)


def find_stop_scope(snapshot: LedgerSnapshot, accepted: Commit | None, orders: FleetOrders | None) -> StopScope:
    """Return which boots are stopped.

    ``orders`` are the stop orders in the newest Fleet if gitboot has not accepted the commit that contains this Fleet.
    """
    operator_stop = snapshot.facts.stop_order
    if operator_stop is not None and operator_stop.everything:
        return StopScope.ALL
    is_stopped = operator_stop is not None or find_fleet_stop(accepted, orders) is not None or bool(snapshot.claims)
    return StopScope.WRITING if is_stopped or not may_instance_act(snapshot, accepted, orders) else StopScope.NONE


def find_fleet_stop(accepted: Commit | None, orders: FleetOrders | None) -> str | None:
    """Return the reason for a stop in the newest or the accepted Fleet, or None if neither Fleet stops boots."""
    return next((each.stopped for each in _list_orders(accepted, orders) if each.stopped is not None), None)


def may_instance_act(snapshot: LedgerSnapshot, accepted: Commit | None, orders: FleetOrders | None) -> bool:
    """Return whether this instance may be active.

    The instance must not be active if the newest or the accepted Fleet names another ledger.
    """
    return all(each.ledger in (None, snapshot.facts.identity) for each in _list_orders(accepted, orders))


def _list_orders(accepted: Commit | None, orders: FleetOrders | None) -> list[FleetOrders]:
    """Return the orders in the newest Fleet, if any, and then those in the accepted Fleet, if any."""
    return [each for each in (orders, accepted.orders if accepted is not None else None) if each is not None]


def find_released_servers(
    commit: Commit, snapshot: LedgerSnapshot, at: datetime, before: StopScope, after: StopScope = StopScope.NONE
) -> tuple[str, ...]:
    """Return the servers that can boot from the network again when the stop changes from ``before`` to ``after``.

    The result only informs operators. It includes the servers that wait for a missing file, because these servers boot
    as soon as the file appears, without further action by an operator.
    """
    released = []
    for decision in commit.decisions.servers.values():
        boot = _find_planned_boot(decision, snapshot, at, after)
        if boot is not None and boot != _find_planned_boot(decision, snapshot, at, before):
            released.append(decision.server)
    return tuple(released)


def _find_planned_boot(decision: Decision, snapshot: LedgerSnapshot, at: datetime, stop: StopScope) -> Boot | None:
    """Return the boot that a server gets from the network at ``at`` with a stop, or None."""
    remaining = drop_ended_windows(decision, snapshot.find_later_clock(at))
    planned = make_plan(remaining, at, snapshot.record(decision.uuid), stop=stop)
    return planned.boot if planned is not None else None
