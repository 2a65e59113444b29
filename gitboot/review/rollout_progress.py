"""Which images a fleet boots and was provisioned with, who stays behind and why, and who is next."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from gitboot.fleet.resources import FleetRepository, Id
from gitboot.model.scalars.machines import SystemUuid, version_key
from gitboot.model.selectors import selects
from gitboot.model.server import Server
from gitboot.resolve.policy_selection import Named, choose_image, joins_at, opt_outs
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import Decision, Decisions


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageUse:
    """How many servers boot an image."""

    name: str
    version: str
    streams: tuple[str, ...]  # that have it as their current image, their rollout's, or a hold's
    decided: int  # under their policies
    maintenances: int  # in a window that is open or to come
    provisioned: int | None  # by their records; None: no records were given


@dataclass(frozen=True, kw_only=True, slots=True)
class Joining:
    """Who joins a rollout once its percentage is as high as this."""

    percent: int
    servers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamUse:
    """Where the servers of a stream are."""

    name: str
    current: str
    rollout: str | None
    percent: int | None
    images: Mapping[str, int]  # how many of its servers boot which image
    joining: tuple[Joining, ...]  # by percentage: what raising it would touch


@dataclass(frozen=True, kw_only=True, slots=True)
class Behind:
    """A pin or a hold, and those whom it keeps where they are."""

    what: str  # as the opt-out says it
    image: str
    reason: str
    until: datetime | None
    overdue: bool
    servers: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class TooOld:
    """A server whose image is below the version that its stream wants at least."""

    server: str
    stream: str
    image: str
    version: str
    minimum_version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Images:
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
    return Images(
        items=tuple(_images(repository, decisions.servers.values(), records, at)),
        streams=tuple(_streams(repository, found)),
        behind=_behind(repository, found, at),
        too_old=tuple(_too_old(repository, found)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamFollower:
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
        maintained.update(_in_windows(decision, at))
        if records is not None and (record := records.get(decision.uuid)) is not None:
            provisioned[record.image] += 1
    streams = _streams_of(repository)
    for name, image in repository.images.items():
        yield ImageUse(
            name=name,
            version=image.spec.version,
            streams=streams.get(name, ()),
            decided=decided[name],
            maintenances=maintained[name],
            provisioned=None if records is None else provisioned[name],
        )


def _in_windows(decision: Decision, at: datetime) -> set[str]:
    """The images of a server's maintenances that are not over."""
    return {
        maintenance.boot.image
        for maintenance in decision.maintenances
        if maintenance.boot is not None and (maintenance.end is None or at < maintenance.end)
    }


def _streams_of(repository: FleetRepository) -> dict[str, tuple[str, ...]]:
    """The streams that name an image."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, stream in repository.streams.items():
        rollout = [stream.spec.rollout.image] if stream.spec.rollout else []
        for image in {stream.spec.current, *rollout, *(hold.image for hold in stream.spec.holds)}:
            found[image].append(name)
    return {image: tuple(names) for image, names in found.items()}


def _streams(repository: FleetRepository, followers: list[StreamFollower]) -> Iterator[StreamUse]:
    for name, stream in repository.streams.items():
        own = [follower for follower in followers if follower.stream == name]
        rollout = stream.spec.rollout
        yield StreamUse(
            name=name,
            current=stream.spec.current,
            rollout=rollout.image if rollout else None,
            percent=rollout.percent if rollout else None,
            images=dict(sorted(Counter(follower.named.image for follower in own).items())),
            joining=tuple(_joining(repository, name, own)),
        )


def _joining(repository: FleetRepository, stream: str, followers: list[StreamFollower]) -> Iterator[Joining]:
    """Who boots the current image only because the percentage has not reached it yet."""
    rollout = repository.streams[stream].spec.rollout
    if rollout is None:
        return
    waiting: defaultdict[int, list[str]] = defaultdict(list)
    for follower in followers:
        metadata = follower.server.metadata
        if follower.named.path == ("spec", "current") and selects(rollout.selector, metadata.name, metadata.labels):
            waiting[joins_at(stream, follower.server.uuid)].append(metadata.name)
    for percent, servers in sorted(waiting.items()):
        yield Joining(percent=percent, servers=tuple(servers))


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


def _too_old(repository: FleetRepository, followers: list[StreamFollower]) -> Iterator[TooOld]:
    for follower in followers:
        skew = repository.streams[follower.stream].spec.skew if follower.stream else None
        if skew is None:
            continue
        version = repository.images[follower.named.image].spec.version
        if version_key(version) < version_key(skew.minimum_version):
            yield TooOld(
                server=follower.server.metadata.name,
                stream=str(follower.stream),
                image=follower.named.image,
                version=version,
                minimum_version=skew.minimum_version,
            )
