"""Current plans: plan a server again when its decision, record or time asks for it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Generic, NamedTuple, TypeVar

from gitboot.artifacts.availability import Sighting, is_withheld
from gitboot.bmc.override_state import State
from gitboot.controller.records.ledger_snapshot import Knowledge
from gitboot.controller.records.ledger_trust import left_since
from gitboot.errors import PublishError
from gitboot.evaluator.evaluation_result import Commit
from gitboot.fleet.layered_dict import differing, replaced
from gitboot.model.scalars import SystemUuid, version_key
from gitboot.publish.tree_changes import EndedWindows, WindowsNotEnded
from gitboot.render.server_files import About, ServerState, planned
from gitboot.render.token_keys import NO_KEYS, TokenKeys
from gitboot.resolve.boot_limits import Halt
from gitboot.resolve.install_attempts import attempt_of, begun_run, is_overwritten, step_of
from gitboot.resolve.provisioning_record import InstallAttempt, Run, drift
from gitboot.resolve.server_decision import BootFile, Decisions, idle
from gitboot.resolve.server_plan import (
    UNKNOWN_OUTCOMES,
    Cause,
    InstallProgress,
    Phase,
)
from gitboot.status.conditions import Event
from gitboot.status.work_progress import Told, counted, unheard
from gitboot.text import count


class ImageFile(NamedTuple):
    """A file that the boots of an image need."""

    image: str
    file: BootFile


Key = TypeVar("Key", bound=str)


@dataclass(frozen=True, slots=True)
class Agenda(Generic[Key]):
    """The instants at which keys are due. It is a value: `moved` returns another one."""

    instants: Mapping[Key, datetime] = field(default_factory=dict)
    _queue: list[tuple[datetime, Key]] = field(default_factory=list)  # sorted

    def moved(self, to: Mapping[Key, datetime | None]) -> Agenda[Key]:
        """Return the agenda with these keys due at other instants. None: not due any more."""
        changed = {key: at for key, at in to.items() if self.instants.get(key) != at}
        if not changed:
            return self
        due = {key: at for key, at in changed.items() if at is not None}
        instants = replaced(self.instants, due, changed.keys() - due.keys())
        if len(changed) * _FEW > len(instants):
            return Agenda(instants, sorted((at, key) for key, at in instants.items()))
        queue = list(self._queue)
        for key in changed:
            if (before := self.instants.get(key)) is not None:
                del queue[bisect_left(queue, (before, key))]
        for key, at in due.items():
            insort(queue, (at, key))
        return Agenda(instants, queue)

    def due(self, at: datetime) -> frozenset[Key]:
        """Return the keys that are due by ``at``."""
        end = bisect_right(self._queue, at, key=lambda each: each[0])
        return frozenset(key for _, key in self._queue[:end])

    @property
    def next(self) -> datetime | None:
        """The instant at which the first key is due."""
        return self._queue[0][0] if self._queue else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Plans:
    """The current plans of all servers, with counts and lists of servers."""

    commit: Commit | None = None  # of the plans
    stop: Halt = Halt.NONE  # the boots that are stopped
    left: datetime | None = None  # the newest instant that the ledger has seen, if the clock was set back
    servers: Mapping[str, ServerState] = field(default_factory=dict)
    transitions: Agenda[str] = field(default_factory=Agenda)  # when the plan of a server changes by itself
    planned_at: datetime | None = None
    counts: Mapping[tuple[str, str], int] = field(default_factory=dict)  # servers by kind and value
    versions: Mapping[tuple[str, str], int] = field(default_factory=dict)  # servers by profile and version
    unknown: frozenset[str] = frozenset()  # servers whose installation is unknown
    unseen: frozenset[str] = frozenset()  # servers whose boot nothing could prove
    consumed: frozenset[str] = frozenset()  # servers whose override was consumed without evidence
    lost: frozenset[str] = frozenset()  # servers whose override is lost
    unknown_outcomes: frozenset[str] = frozenset()  # servers whose boot was perhaps served
    begun: Mapping[str, InstallAttempt] = field(default_factory=dict)  # servers with an installation that has not ended
    sightings: Mapping[BootFile, Sighting] | None = None  # of the artifacts; None: gitboot does not check artifacts
    needs: Mapping[ImageFile, int] = field(default_factory=dict)  # servers by the file that their boots need
    installing: Mapping[str, InstallProgress] = field(default_factory=dict)  # servers during an installation
    given: Mapping[str, tuple[str, Run]] = field(
        default_factory=dict
    )  # servers whose maintenance was served and has not started

    def is_due(self, at: datetime) -> bool:
        """Return whether the clock alone changes a plan, or nothing was planned yet."""
        due = self.transitions.next
        return self.planned_at is None or (due is not None and due <= at)

    def counted(self, of: str) -> dict[str, int]:
        """Return how many servers there are of a kind, such as phases, records, drift."""
        return {which: count for (kind, which), count in self.counts.items() if kind == of}

    def below_minimum(self) -> dict[str, int]:
        """Return how many servers boot a version below the minimum of their stream, by stream."""
        minimum = self.commit.minimum_versions if self.commit is not None else {}
        found = dict.fromkeys((each.stream for each in minimum.values()), 0)
        for (profile, version), servers in self.versions.items():
            wanted = minimum.get(profile)
            if wanted is not None and version_key(version) < version_key(wanted.version):
                found[wanted.stream] += servers
        return found

    @property
    def withheld(self) -> dict[ImageFile, int]:
        """The missing files that withhold boots, sorted, each with the number of its servers."""
        found = {each: count for each, count in self.needs.items() if is_withheld(each.file, self.sightings)}
        return dict(sorted(found.items(), key=lambda item: (item[0].image, item[0].file.url)))


def replanned(
    before: Plans,
    commit: Commit,
    knowledge: Knowledge,
    changed: Collection[str],
    at: datetime,
    stop: Halt = Halt.NONE,
    keys: TokenKeys = NO_KEYS,
    told: Told = unheard,
) -> tuple[Plans, frozenset[str]]:
    """Return the plans at ``at``, and the servers whose files may differ from before.

    ``changed`` are the servers whose commit or records changed since they were planned. If the clock is behind what the
    ledger has seen, no window opens that had ended by then.
    """
    names, left = {*changed, *before.transitions.due(at)}, left_since(knowledge.facts, at)
    old, new = before.commit.decisions if before.commit is not None else None, commit.decisions
    if old is not None:
        names |= _seen_otherwise(before, old, knowledge.sightings) | differing(old.servers, new.servers)
    set_back = before.planned_at is not None and at < before.planned_at  # what was planned for later is void
    anew = (
        set_back
        or left != before.left
        or stop is not before.stop
        or old is None
        or (old.base_url, old.outputs, old.evidence) != (new.base_url, new.outputs, new.evidence)
    )
    if anew:
        names = {*before.servers, *new.servers}
    different = frozenset(
        names if anew else (each for each in names if not _holds(before, commit, knowledge, each, at))
    )
    if not names:
        return replace(before, commit=commit, stop=stop, sightings=knowledge.sightings), different
    tally = _Tally(before, knowledge, names)
    for name in counted(names, told):
        was = before.servers.get(name)
        if was is None or name in different:
            now = _state(commit, knowledge, name, at, stop, left, keys)
        else:
            decision = new.servers[name]  # an equal one; the older one is not held any longer
            now = was if was.decision is decision else replace(was, decision=decision)
        tally.take(name, was, now)
    return replace(
        tally.plans(), commit=commit, stop=stop, left=left, planned_at=at, sightings=knowledge.sightings
    ), different


class _Tally:
    """Plans while some servers are planned anew: `take` each of them, then read `plans`."""

    def __init__(self, before: Plans, knowledge: Knowledge, names: Set[str]) -> None:
        self._before, self._knowledge = before, knowledge
        self._changed: dict[str, ServerState] = {}
        self._gone: list[str] = []
        self._due: dict[str, datetime | None] = {}
        self._counts, self._versions = Counter(before.counts), Counter(before.versions)
        self._needs = Counter(before.needs)
        self._unknown, self._unseen = set(before.unknown - names), set(before.unseen - names)
        self._consumed, self._lost = set(before.consumed - names), set(before.lost - names)
        self._unknown_outcomes = set(before.unknown_outcomes - names)
        self._begun = {name: each for name, each in before.begun.items() if name not in names}
        self._given = {name: each for name, each in before.given.items() if name not in names}
        self._installing = {name: each for name, each in before.installing.items() if name not in names}

    def take(self, name: str, was: ServerState | None, now: ServerState | None) -> None:
        """Count a server by its plan, and no longer by the plan before. None: there is, or was, no such server."""
        if was is not None:
            self._count(was, -1)
        if now is None:
            self._gone.append(name)
            self._due[name] = None
            return
        self._count(now, 1)
        if now is not was:
            self._changed[name] = now
        self._due[name] = now.transition
        self._list(name, now)

    def _count(self, state: ServerState, by: int) -> None:
        for kind in _kinds(state):
            self._counts[kind] += by
        policy = state.decision.policy
        if policy is not None and policy.boot is not None:
            self._versions[policy.boot.profile, policy.boot.version] += by
        for file in {ImageFile(boot.image, file) for boot in state.decision.boots for file in boot.fetched}:
            self._needs[file] += by

    def _list(self, name: str, now: ServerState) -> None:
        """Put a server into the lists that it belongs to."""
        uuid, plan = now.decision.uuid, now.plan
        recorded = self._knowledge.recorded(uuid)
        if recorded is None or is_overwritten(recorded, now.decision.provision):  # nobody knows what is installed
            self._unknown.add(name)
        if uuid in self._knowledge.unseen:
            self._unseen.add(name)
        if plan is not None and plan.cause is Cause.CONSUMED:
            self._consumed.add(name)
        if plan is not None and plan.cause in UNKNOWN_OUTCOMES:
            self._unknown_outcomes.add(name)
        if (attempt := attempt_of(now.decision, now.record)) is not None:
            self._begun[name] = attempt
        elif plan is not None and plan.phase is Phase.NETWORK:
            overrides = self._knowledge.overrides_of(uuid)
            if any(each.reason == plan.key and each.state is State.LOST for each in overrides):
                self._lost.add(name)
        if (progress := now.progress) is not None:
            self._installing[name] = progress
        maintenance = plan.maintenance if plan is not None else None
        run = begun_run(now.decision, maintenance, now.record)
        if maintenance is not None and run is not None:
            self._given[name] = maintenance, run

    def plans(self) -> Plans:
        return Plans(
            servers=replaced(self._before.servers, self._changed, self._gone),
            transitions=self._before.transitions.moved(self._due),
            counts=_positive(self._counts),
            versions=_positive(self._versions),
            unknown=frozenset(self._unknown),
            unseen=frozenset(self._unseen),
            consumed=frozenset(self._consumed),
            lost=frozenset(self._lost),
            unknown_outcomes=frozenset(self._unknown_outcomes),
            begun=dict(sorted(self._begun.items())),
            needs=_positive(self._needs),
            given=dict(sorted(self._given.items())),
            installing=dict(sorted(self._installing.items())),
        )


def _seen_otherwise(
    before: Plans, decisions: Decisions, sightings: Mapping[BootFile, Sighting] | None
) -> frozenset[str]:
    """Return the servers with a boot that needs a file which is withheld now and was not, or was and is not."""
    if sightings is before.sightings:
        return frozenset()
    needed = {each.file for each in before.needs}  # with their sources, which a sighting has not
    files = {file for file in needed if is_withheld(file, before.sightings) != is_withheld(file, sightings)}
    servers = decisions.servers
    return (
        frozenset(name for name in before.servers if servers[name].absent(files.__contains__)) if files else frozenset()
    )


def changed_by(before: Commit | None, now: Commit) -> frozenset[str]:
    """Return the servers that a commit describes otherwise than the one before, or does not have.

    A server of which other boots are withheld is one of them.
    """
    servers, here = now.decisions.servers, now.machines
    if before is None:
        return frozenset(servers)
    were, there = before.decisions.servers, before.machines
    if before.revision == now.revision:
        found = frozenset[str]()
    elif before.revision == now.base:
        found = now.touched
    else:
        found = frozenset(
            name
            for name in were.keys() | servers.keys()
            if (old := were.get(name)) is None
            or (new := servers.get(name)) is None
            or old.digest != new.digest
            or there[old.uuid] != here[new.uuid]
            or before.sites.get(name) != now.sites.get(name)
            or before.labels[name] != now.labels[name]
            or before.written.get(name) != now.written.get(name)
            or before.decisions.networks[name] != now.decisions.networks[name]
        )
    uuids = before.withheld.keys() | now.withheld.keys()
    others = [uuid for uuid in uuids if before.withheld.get(uuid) != now.withheld.get(uuid)]
    return found | before.called(others) | now.called(others) if others else found


def left_by(before: Commit | None, now: Commit) -> frozenset[SystemUuid] | None:
    """Return the machines that a commit does not have any more. None: the commit before is not known."""
    if before is None:
        return None
    were = (machine.uuid for machine in before.named(changed_by(before, now)))
    return frozenset(uuid for uuid in were if uuid not in now.machines)


def _holds(before: Plans, commit: Commit, knowledge: Knowledge, name: str, at: datetime) -> bool:
    """Return whether a server's plan is still the same."""
    state, decision = before.servers.get(name), commit.decisions.servers.get(name)
    if state is None or decision is None:
        return False
    absent = knowledge.absent(decision)
    return state.holds(decision, knowledge.record(decision.uuid), at, about(commit, name), absent=absent)


def about(commit: Commit, name: str) -> About:
    """Return what a commit says of a server besides its decision."""
    host = commit.decisions.networks[name]
    return About(
        site=commit.sites.get(name),
        labels=commit.labels[name],
        addresses=tuple(sorted(address for nic in host.nics for address in nic.addresses)),
        idle=idle(host),
        machine=commit.machines.get(commit.decisions.servers[name].uuid),
        written=commit.written.get(name),
    )


def _state(
    commit: Commit,
    knowledge: Knowledge,
    name: str,
    at: datetime,
    stop: Halt,
    left: datetime | None,
    keys: TokenKeys,
) -> ServerState | None:
    if (decision := commit.decisions.servers.get(name)) is None:
        return None
    record, absent = knowledge.record(decision.uuid), knowledge.absent(decision)
    return planned(decision, record, at, about(commit, name), stop, left, keys, absent)


_Kind = TypeVar("_Kind", bound=tuple[object, ...])


def _positive(counts: Mapping[_Kind, int]) -> dict[_Kind, int]:
    return {kind: count for kind, count in counts.items() if count}


_RUN_STEPS: Final = {
    Cause.MAINTENANCE_GIVEN: "Attempted",
    Cause.MAINTENANCE_OUTCOME: "OutcomeUnknown",
    Cause.MAINTENANCE_STARTED: "Started",
    Cause.MAINTENANCE_DONE: "Made",
}


def _kinds(state: ServerState) -> Iterator[tuple[str, str]]:
    """Yield the counts that a server belongs to, by what it boots and by what is known of it."""
    yield "phases", str(state.plan.phase) if state.plan else "NoPlan"
    yield "records", step_of(state.decision, state.record)
    if (since := state.installs_at) is not None:
        yield "installs", "Now" if since == state.at else "Later"
    if state.plan is not None and (step := _RUN_STEPS.get(state.plan.cause)) is not None:
        yield "runs", step
    if (progress := state.progress) is not None:
        yield "installing", f"{progress.state}/{progress.step}"
    yield from (("drift", each) for each in drift(state.decision, state.record))


_FEW: Final = 16  # if more than one key in so many has moved, all are sorted again
_RETRY: Final = timedelta(seconds=5)


class WindowWatch:
    """The ends of windows in OUTPUT, on a standby and on an instance that has not published its first plan."""

    def __init__(self, end_windows: Callable[[datetime], EndedWindows]) -> None:
        self._end_windows = end_windows
        self._failure = ""
        self.next_end: datetime | None = None  # when to call `end` next; None: no window is known to end

    def end(self, at: datetime) -> tuple[frozenset[str], tuple[Event, ...]]:
        """End the windows that are over at ``at``. Return the servers whose files changed, and events to report.

        If ending windows fails, call again at `next_end`. A failure that repeats is reported once.
        """
        try:
            servers, self.next_end = self._end_windows(at)
        except PublishError as error:
            self.next_end = at + _RETRY
            is_known, self._failure = str(error) == self._failure, str(error)
            event = Event(at=at, type="WindowsNotEnded", message=str(error), warning=True)
            changed = frozenset(error.servers if isinstance(error, WindowsNotEnded) else ())
            return changed, () if is_known else (event,)
        self._failure = ""
        if not servers:
            return frozenset(), ()
        message = f"ended the maintenance of {count(len(servers), 'server')} in OUTPUT, whose windows are over"
        return frozenset(servers), (Event(at=at, type="WindowsEnded", message=message, facts={"servers": [*servers]}),)


class WindowsMeanwhile:
    """The ends of windows during work that writes no files, such as planning a large fleet.

    ``due`` is the time at which windows end first. None: never. ``told`` gets each progress report, too.
    """

    def __init__(self, watch: WindowWatch, due: datetime | None, now: Callable[[], datetime], told: Told) -> None:
        self._watch, self._now, self._told = watch, now, told
        self.due = due
        self.servers: frozenset[str] = frozenset()  # whose files changed
        self.events: tuple[Event, ...] = ()
        self.ended_at: datetime | None = None  # the time of the last change of files

    def report(self, done: int, total: int) -> None:
        """Forward a progress report, and end the windows that are over now."""
        self._told(done, total)
        if self.due is None or (now := self._now()) < self.due:
            return
        servers, events = self._watch.end(now)
        self.due = self._watch.next_end
        self.servers, self.events = self.servers | servers, (*self.events, *events)
        if servers:
            self.ended_at = now
