"""Which images a fleet boots and was provisioned with, who stays behind and why, and who is next."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gitboot.load import FleetRepository, Id
from gitboot.model.scalars import SystemUuid, format_instant, version_key
from gitboot.model.selectors import selects
from gitboot.model.server import Server
from gitboot.plan import Decision, Record
from gitboot.resolve import Decisions
from gitboot.resolve.choice import Named, choose_image, joins_at
from gitboot.resolve.optouts import OptOut, opt_outs


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageUse:
    """How many servers boot an image."""

    name: str
    version: str
    streams: tuple[str, ...]  # that have it as their current image, their rollout's, or a hold's
    decided: int  # under their policies
    maintenances: int  # in a window that is open or to come
    provisioned: int | None  # by their records; None: no records were given

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "version": self.version,
            "streams": list(self.streams),
            "decided": self.decided,
            "maintenances": self.maintenances,
            "provisioned": self.provisioned,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Joining:
    """Who joins a rollout once its percentage is as high as this."""

    percent: int
    servers: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        return {"percent": self.percent, "servers": list(self.servers)}


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamUse:
    """Where the servers of a stream are."""

    name: str
    current: str
    rollout: str | None
    percent: int | None
    images: Mapping[str, int]  # how many of its servers boot which image
    joining: tuple[Joining, ...]  # by percentage: what raising it would touch

    def facts(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "current": self.current,
            "rollout": self.rollout,
            "percent": self.percent,
            "images": dict(self.images),
            "joining": [each.facts() for each in self.joining],
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Behind:
    """A pin or a hold, and those whom it keeps where they are."""

    opt_out: OptOut
    servers: tuple[str, ...]
    overdue: bool

    def facts(self) -> dict[str, Any]:
        until = self.opt_out.until
        return {
            "what": self.opt_out.what,
            "image": self.opt_out.image,
            "reason": self.opt_out.reason,
            "until": format_instant(until) if until else None,
            "overdue": self.overdue,
            "servers": list(self.servers),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class TooOld:
    """A server whose image is below the version that its stream wants at least."""

    server: str
    stream: str
    image: str
    version: str
    minimum: str

    def facts(self) -> dict[str, Any]:
        return {
            "server": self.server,
            "stream": self.stream,
            "image": self.image,
            "version": self.version,
            "minimumVersion": self.minimum,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Images:
    """All of it for one fleet at one instant."""

    images: tuple[ImageUse, ...]
    streams: tuple[StreamUse, ...]
    behind: tuple[Behind, ...]  # by deadline, so those that are overdue come first
    too_old: tuple[TooOld, ...]

    def facts(self) -> dict[str, Any]:
        return {
            "apiVersion": "gitboot.dev/v1alpha1",
            "items": [each.facts() for each in self.images],
            "streams": [each.facts() for each in self.streams],
            "behind": [each.facts() for each in self.behind],
            "tooOld": [each.facts() for each in self.too_old],
        }


def images(
    repository: FleetRepository, decisions: Decisions, records: Mapping[SystemUuid, Record] | None, at: datetime
) -> Images:
    """What ``decisions`` of ``repository`` and ``records`` (None: not given) come to at ``at``."""
    followers = list(_followers(repository, decisions))
    return Images(
        images=tuple(_images(repository, decisions.servers.values(), records, at)),
        streams=tuple(_streams(repository, followers)),
        behind=_behind(repository, followers, at),
        too_old=tuple(_too_old(repository, followers)),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Follower:
    """A server whose policy boots from the network, the image that was chosen for it, and by whom."""

    server: Server
    stream: str | None
    named: Named


def _followers(repository: FleetRepository, decisions: Decisions) -> Iterator[_Follower]:
    for name, decision in decisions.servers.items():
        if decision.policy is not None and decision.policy.boot is not None:
            profile, server = repository.profiles[decision.policy.boot.profile], repository.servers[name]
            chosen = choose_image(server, profile, repository.streams)
            yield _Follower(server=server, stream=profile.spec.stream, named=chosen.winner)


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


def _streams(repository: FleetRepository, followers: list[_Follower]) -> Iterator[StreamUse]:
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


def _joining(repository: FleetRepository, stream: str, followers: list[_Follower]) -> Iterator[Joining]:
    """Who boots the current image only because the percentage has not reached it yet."""
    rollout = repository.streams[stream].spec.rollout
    if rollout is None:
        return
    waiting: defaultdict[int, list[str]] = defaultdict(list)
    for follower in followers:
        metadata = follower.server.metadata
        if follower.named.path == ("spec", "current") and selects(rollout.selector, metadata.name, metadata.labels):
            waiting[joins_at(stream, follower.server.spec.uuid)].append(metadata.name)
    for percent, servers in sorted(waiting.items()):
        yield Joining(percent=percent, servers=tuple(servers))


def _behind(repository: FleetRepository, followers: list[_Follower], at: datetime) -> tuple[Behind, ...]:
    kept: defaultdict[tuple[Id, tuple[str | int, ...]], list[str]] = defaultdict(list)
    for follower in followers:
        kept[follower.named.said_by, follower.named.path].append(follower.server.metadata.name)
    found = [
        Behind(
            opt_out=opt_out,
            servers=tuple(kept.get((opt_out.resource, (*opt_out.path, "image")), ())),
            overdue=opt_out.until is not None and opt_out.until <= at,
        )
        for opt_out in opt_outs(repository)
    ]
    far = datetime.max.replace(tzinfo=UTC)
    return tuple(sorted(found, key=lambda each: (each.opt_out.until or far, each.opt_out.what)))


def _too_old(repository: FleetRepository, followers: list[_Follower]) -> Iterator[TooOld]:
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
                minimum=skew.minimum_version,
            )
