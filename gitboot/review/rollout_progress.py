"""Rollout progress: which servers have which image, and the next step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Literal

from msgspec import Struct

from gitboot.fleet.resources import FleetRepository, Id
from gitboot.fleet.revision import Revision
from gitboot.jsonio import format_instant
from gitboot.model.boot_image import Rollout
from gitboot.model.scalars import SystemUuid, version_key
from gitboot.model.selectors import selects
from gitboot.model.server import Server
from gitboot.resolve.install_attempts import step_of
from gitboot.resolve.policy_selection import Named, choose_image, joins_at, opt_outs
from gitboot.resolve.provisioning_record import InstallStep, Record
from gitboot.resolve.server_decision import Decision, Decisions
from gitboot.text import count, some


class ImageUse(Struct, frozen=True, kw_only=True):
    """How many servers boot an image."""

    name: str
    version: str
    streams: tuple[str, ...]  # that have it as their current image, their rollout's, or a hold's
    decided: int  # under their policies
    maintenances: int  # in a window that is open or to come
    provisioned: int | None  # by their records; None: no records were given


class Joining(Struct, frozen=True, kw_only=True):
    """Who joins a rollout once its percentage is as high as this."""

    percent: int
    servers: tuple[str, ...]


class StreamUse(Struct, frozen=True, kw_only=True):
    """Where the servers of a stream are."""

    name: str
    current: str
    rollout: str | None
    percent: int | None
    images: Mapping[str, int]  # how many of its servers boot which image
    joining: tuple[Joining, ...]  # by percentage: what raising it would touch


class Behind(Struct, frozen=True, kw_only=True):
    """A pin or a hold, and those whom it keeps where they are."""

    what: str  # as the opt-out says it
    image: str
    reason: str
    until: datetime | None
    overdue: bool
    servers: tuple[str, ...]


class TooOld(Struct, frozen=True, kw_only=True):
    """A server whose image is below the version that its stream wants at least."""

    server: str
    stream: str
    image: str
    version: str
    minimum_version: str


class Images(Struct, frozen=True, kw_only=True):
    """All of it for one fleet at one instant."""

    items: tuple[ImageUse, ...]
    streams: tuple[StreamUse, ...]
    behind: tuple[Behind, ...]  # by deadline, so those that are overdue come first
    too_old: tuple[TooOld, ...]


def images(
    repository: FleetRepository, decisions: Decisions, records: Mapping[SystemUuid, Record] | None, at: datetime
) -> Images:
    """What ``decisions`` of ``repository`` and ``records`` (None: not given) come to at ``at``."""
    found = list(followers(repository, decisions))
    too_old = []
    for each in found:
        skew = repository.streams[each.stream].spec.skew if each.stream else None
        version = repository.images[each.named.image].spec.version
        if skew is not None and version_key(version) < version_key(skew.minimum_version):
            too_old.append(
                TooOld(
                    server=each.server.metadata.name,
                    stream=str(each.stream),
                    image=each.named.image,
                    version=version,
                    minimum_version=skew.minimum_version,
                )
            )
    return Images(
        items=tuple(_images(repository, decisions.servers.values(), records, at)),
        streams=tuple(_stream(repository, name, found) for name in repository.streams),
        behind=_behind(repository, found, at),
        too_old=tuple(too_old),
    )


class StreamFollower(Struct, frozen=True, kw_only=True):
    """A server whose policy boots from the network, the image that was chosen for it, and by whom."""

    server: Server
    stream: str | None
    named: Named


def followers(repository: FleetRepository, decisions: Decisions) -> Iterator[StreamFollower]:
    """Each server whose policy boots from the network, in the order of their names."""
    for name, decision in decisions.servers.items():
        if decision.policy is not None and decision.policy.boot is not None:
            profile, server = repository.profiles[decision.policy.boot.profile], repository.servers[name]
            chosen = choose_image(server, profile, repository.streams)
            yield StreamFollower(server=server, stream=profile.spec.stream, named=chosen.winner)


def _images(
    repository: FleetRepository,
    decisions: Iterable[Decision],
    records: Mapping[SystemUuid, Record] | None,
    at: datetime,
) -> Iterator[ImageUse]:
    decided: Counter[str] = Counter()
    maintained: Counter[str] = Counter()
    provisioned: Counter[str | None] = Counter()
    for decision in decisions:
        if decision.policy is not None and decision.policy.boot is not None:
            decided[decision.policy.boot.image] += 1
        windows = [each for each in decision.maintenances if each.end is None or at < each.end]
        maintained.update({each.boot.image for each in windows if each.boot is not None})
        if records is not None and (record := records.get(decision.uuid)) is not None:
            provisioned[record.image] += 1
    streams: defaultdict[str, list[str]] = defaultdict(list)
    for name, stream in repository.streams.items():
        rollout = [stream.spec.rollout.image] if stream.spec.rollout else []
        for image in {stream.spec.current, *rollout, *(hold.image for hold in stream.spec.holds)}:
            streams[image].append(name)
    for name, boot_image in repository.images.items():
        yield ImageUse(
            name=name,
            version=boot_image.spec.version,
            streams=tuple(streams[name]),
            decided=decided[name],
            maintenances=maintained[name],
            provisioned=None if records is None else provisioned[name],
        )


def _stream(repository: FleetRepository, name: str, followers: list[StreamFollower]) -> StreamUse:
    spec = repository.streams[name].spec
    rollout = spec.rollout
    own = [each for each in followers if each.stream == name]
    waiting: defaultdict[int, list[str]] = defaultdict(list)
    for each in own:
        metadata, is_current = each.server.metadata, each.named.path == ("spec", "current")
        if rollout and is_current and selects(rollout.selector, metadata.name, metadata.labels):
            waiting[joins_at(name, each.server.uuid)].append(metadata.name)
    return StreamUse(
        name=name,
        current=spec.current,
        rollout=rollout.image if rollout else None,
        percent=rollout.percent if rollout else None,
        images=dict(sorted(Counter(each.named.image for each in own).items())),
        joining=tuple(Joining(percent=percent, servers=tuple(servers)) for percent, servers in sorted(waiting.items())),
    )


def _behind(repository: FleetRepository, followers: list[StreamFollower], at: datetime) -> tuple[Behind, ...]:
    kept: defaultdict[tuple[Id, tuple[str | int, ...]], list[str]] = defaultdict(list)
    for follower in followers:
        kept[follower.named.said_by, follower.named.path].append(follower.server.metadata.name)
    found = [
        Behind(
            what=each.what,
            image=each.image,
            reason=each.reason,
            until=each.until,
            overdue=each.until is not None and each.until <= at,
            servers=tuple(kept.get((each.resource, (*each.path, "image")), ())),
        )
        for each in opt_outs(repository)
    ]
    far = datetime.max.replace(tzinfo=UTC)
    return tuple(sorted(found, key=lambda each: (each.until or far, each.what)))


OLDEST: Final = timedelta(hours=1)  # of what an instance said last, to count as how it is now
# The evidence in a record that an installation ended. "Adopted" is missing: no machine has shown it.
_COMPLETION: Final = frozenset({"Reported", "Progress", "Declared", "Operator"})
# The evidence that an installation began: a file was fetched, or a boot override was consumed.
_BEGINNING: Final = frozenset({"Fetched", "Consumed"})


class Proof(Struct, frozen=True, kw_only=True):
    """What an instance knows of its machines, and how far that counts."""

    commit: Revision  # that it had applied
    at: datetime | None  # when it said so last
    doubt: str | None  # why it does not go by its records itself, or offers no boots
    records: Mapping[SystemUuid, Record]


class StepOutcome(StrEnum):
    """What comes of looking at a rollout."""

    NEXT = "Next"  # it may take its next step
    COMPLETE = "Complete"  # there is none
    WAITS = "Waits"  # not yet; it goes on by itself
    STOPPED = "Stopped"  # a person has to look


class Headway(Struct, frozen=True, kw_only=True):
    """What comes of it, why, and by which machines."""

    stream: str
    outcome: StepOutcome
    why: str
    image: str | None = None  # that is rolled out
    percent: int | None = None  # at present
    next: int | None = None  # the step that may be taken
    reached: int = 0  # servers that boot the image by the rollout
    proven: int = 0  # of them provisioned with it
    begun: tuple[str, ...] = ()  # whose record shows a fetch or a consumed override of it, and no completion
    failed: tuple[str, ...] = ()  # whose installer said so
    unknown: tuple[str, ...] = ()  # of whose disks nothing is known
    unproven: tuple[str, ...] = ()  # all others that are not proven


class AppliedRollout(Struct, frozen=True, kw_only=True):
    """A rollout in the commit that an instance has applied."""

    rollout: Rollout | None
    machines: tuple[Decision, ...]  # that boot its image by it, by name


def applied_in(stream: str, repository: FleetRepository, decisions: Decisions) -> AppliedRollout:
    """The rollout of a stream in a commit, and whom it gives its image."""
    found = repository.streams.get(stream)
    by = (Id("ImageStream", stream), ("spec", "rollout", "image"))
    machines = (
        decisions.servers[each.server.metadata.name]
        for each in followers(repository, decisions)
        if (each.named.said_by, each.named.path) == by
    )
    return AppliedRollout(rollout=found.spec.rollout if found is not None else None, machines=tuple(machines))


_Standing = Literal["proven", "begun", "failed", "unknown", "unproven"]


def _standing(image: str, decision: Decision, record: Record | None) -> _Standing:
    step = step_of(decision, record)
    if step is InstallStep.UNKNOWN or record is None:
        return "unknown"
    if step is InstallStep.FAILED:
        return "failed"
    if step is not InstallStep.PROVISIONED or record.image != image:
        return "unproven"
    if record.evidence in _COMPLETION:
        return "proven"
    return "begun" if record.evidence in _BEGINNING else "unproven"


def advance(
    stream: str,
    here: Rollout,
    applied: AppliedRollout,
    proof: Proof,
    *,
    steps: Sequence[int],
    after: int,
    at: datetime,
    accept_fetched: bool = False,
) -> Headway:
    """Whether ``here``, the rollout as Git has it now, takes its next step at ``at``.

    ``after``: of how many in a hundred of the servers that it reaches it has to be proven that they have the image.
    ``accept_fetched``: count the servers whose record shows only the beginning of an installation, too.
    """
    known: defaultdict[_Standing, tuple[str, ...]] = defaultdict(tuple)  # servers, by name
    for decision in applied.machines:
        known[_standing(here.image, decision, proof.records.get(decision.uuid))] += (decision.server,)
    following = min((step for step in steps if step > here.percent), default=None)
    outcome, why = _judged(
        here, applied.rollout, known, proof, following, after=after, at=at, accept_fetched=accept_fetched
    )
    if outcome is StepOutcome.NEXT and following is None:
        outcome, why = StepOutcome.COMPLETE, f"{why}: make {here.image} the stream's current image"
    return Headway(
        stream=stream,
        outcome=outcome,
        why=why,
        image=here.image,
        percent=here.percent,
        next=following if outcome is StepOutcome.NEXT else None,
        reached=len(applied.machines),
        proven=len(known["proven"]),
        begun=known["begun"],
        failed=known["failed"],
        unknown=known["unknown"],
        unproven=known["unproven"],
    )


def _judged(
    here: Rollout,
    there: Rollout | None,
    known: Mapping[_Standing, tuple[str, ...]],
    proof: Proof,
    following: int | None,
    *,
    after: int,
    at: datetime,
    accept_fetched: bool,
) -> tuple[StepOutcome, str]:
    if here != there:
        told = f"the instance has applied {proof.commit[:12]}, in which the rollout is another one"
        return StepOutcome.WAITS, f"{told} ({_shown(there)}, here {_shown(here)})"
    if proof.at is None or not -OLDEST <= at - proof.at <= OLDEST:
        said = f"at {format_instant(proof.at)}" if proof.at is not None else "at no time that it names"
        return StepOutcome.WAITS, f"the instance said last how it fares {said}: that is not now"
    if proof.doubt is not None:
        return StepOutcome.WAITS, proof.doubt
    if failed := known["failed"]:
        return StepOutcome.STOPPED, f"installing has failed on {some(failed)}"
    if unknown := known["unknown"]:
        return StepOutcome.WAITS, f"it is not known what is on the disks of {some(unknown)}"
    begun, number = known["begun"], sum(map(len, known.values()))
    counted = len(known["proven"]) + (len(begun) if accept_fetched else 0)
    has = "has" if number == 1 else "have"
    share = f"{counted} of {count(number, 'server')} {has} {here.image} at {here.percent} %"
    if begun and accept_fetched:
        share += f" (no completion was reported by {some(begun)})"
    if not number and following is None:
        return StepOutcome.WAITS, f"{share}: it reaches nobody, and no step follows that does"
    if counted * 100 < after * number:
        unproven = f"; not yet {some(known['unproven'])}" if known["unproven"] else ""
        if begun and not accept_fetched:
            unproven += f"; {some(begun)} fetched the boot, and no completion was reported"
        return StepOutcome.WAITS, f"{share}, fewer than {after} %{unproven}"
    return StepOutcome.NEXT, share


def _shown(rollout: Rollout | None) -> str:
    return f"{rollout.image} at {rollout.percent} %" if rollout is not None else "none"
