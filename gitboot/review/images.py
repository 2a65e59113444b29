"""Images of a fleet: which servers use them, and whether a rollout may take its next step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.revision import Revision
from gitboot.jsonio import format_instant
from gitboot.model.boot_image import Follow, Provenance, RequiredProvenance, Rollout
from gitboot.model.fields import selects_server
from gitboot.model.scalars import SystemUuid
from gitboot.model.server import Server
from gitboot.resolve.install_attempts import install_step
from gitboot.resolve.policy_selection import NamedImage, choose_image, compute_rollout_percentage, list_opt_outs
from gitboot.resolve.provisioning_record import InstallStep, Record
from gitboot.resolve.server_decision import Decision, Decisions
from gitboot.review.image_provenance import (
    UncoveredBoot,
    find_uncovered_boots,
    group_streams_by_image,
    list_image_files,
)
from gitboot.text import format_count, format_names, version_key

# Use of images


class ImageUse(Struct, frozen=True, kw_only=True):
    """The number of servers that boot an image."""

    name: str
    version: str
    streams: tuple[str, ...]  # streams that contain this image as the current image, in a rollout or in a hold
    decided: int  # servers that boot the image because of their policy
    maintenances: int  # servers that boot the image in the current or a later window of a maintenance
    provisioned: int | None  # servers with this image according to their records; None: there are no records
    hosts: tuple[str, ...]  # the hosts of the files' URLs, or "assets" for files below the base URL
    # the origin of the digest of each file that the image claims; None: the image does not state it
    files: Mapping[str, Provenance | None]


class JoiningServers(Struct, frozen=True, kw_only=True):
    """The servers that join a rollout when it reaches a percentage."""

    percent: int
    servers: tuple[str, ...]


class StreamUse(Struct, frozen=True, kw_only=True):
    """The images that servers boot from a stream."""

    name: str
    current: str
    rollout: str | None
    percent: int | None
    images: Mapping[str, int]  # the number of servers by image
    joining: tuple[JoiningServers, ...]  # servers that the rollout has not reached, by percentage
    follow: Follow | None
    require_provenance: RequiredProvenance


class OptOutUse(Struct, frozen=True, kw_only=True):
    """A pin or a hold, and the servers to which it applies."""

    what: str  # such as "the pin of web01" or "a hold of flatcar-stable"
    image: str
    reason: str
    until: datetime | None
    overdue: bool
    servers: tuple[str, ...]


class OutdatedServer(Struct, frozen=True, kw_only=True):
    """A server whose image is older than the minimum version of its stream."""

    server: str
    stream: str
    image: str
    version: str
    minimum_version: str


class ImageReport(Struct, frozen=True, kw_only=True):
    """The images that a fleet uses at a point in time, and the servers with an outdated image."""

    items: tuple[ImageUse, ...]
    streams: tuple[StreamUse, ...]
    behind: tuple[OptOutUse, ...]  # sorted by deadline, so that overdue pins and holds come first
    too_old: tuple[OutdatedServer, ...]
    # The number of servers by the version that another tool installed, as `gitboot records set --version` stated it.
    foreign: Mapping[str, int]
    # boots that use an image directly, although a stream that contains the image requires signed images
    uncovered: tuple[UncoveredBoot, ...]


def report_images(
    repository: FleetRepository, decisions: Decisions, records: Mapping[SystemUuid, Record] | None, at: datetime
) -> ImageReport:
    """Report the images that a fleet uses at a point in time.

    Without records, the report does not contain the number of provisioned servers.
    """
    followers = list(find_followers(repository, decisions))
    return ImageReport(
        items=tuple(_list_image_uses(repository, decisions.servers.values(), records, at)),
        streams=tuple(_summarize_stream(repository, name, followers) for name in repository.streams),
        behind=_list_opt_out_uses(repository, followers, at),
        too_old=tuple(_find_outdated_servers(repository, followers)),
        foreign=_count_foreign_versions(decisions, records or {}),
        uncovered=tuple(find_uncovered_boots(repository)),
    )


def _count_foreign_versions(decisions: Decisions, records: Mapping[SystemUuid, Record]) -> dict[str, int]:
    known_records = (records.get(decision.uuid) for decision in decisions.servers.values())
    versions = (
        record.version
        for record in known_records
        if record is not None and record.image is None and record.version is not None
    )
    return dict(sorted(Counter(versions).items()))


class StreamFollower(Struct, frozen=True, kw_only=True):
    """A server whose policy boots it from the network, its image, and the document that names the image."""

    server: Server
    stream: str | None
    image: NamedImage


def find_followers(repository: FleetRepository, decisions: Decisions) -> Iterator[StreamFollower]:
    """Yield each server whose policy boots it from the network, sorted by server name."""
    for name, decision in decisions.servers.items():
        if decision.policy is not None and decision.policy.boot is not None:
            server = repository.servers[name]
            profile = repository.profiles[decision.policy.boot.profile]
            image = choose_image(server, profile, repository.streams).winner
            yield StreamFollower(server=server, stream=profile.spec.stream, image=image)


def _find_outdated_servers(
    repository: FleetRepository, followers: Iterable[StreamFollower]
) -> Iterator[OutdatedServer]:
    for follower in followers:
        skew = repository.streams[follower.stream].spec.skew if follower.stream else None
        version = repository.images[follower.image.image].spec.version
        if skew is not None and version_key(version) < version_key(skew.minimum_version):
            yield OutdatedServer(
                server=follower.server.metadata.name,
                stream=str(follower.stream),
                image=follower.image.image,
                version=version,
                minimum_version=skew.minimum_version,
            )


def _list_image_uses(
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
    streams = group_streams_by_image(repository.streams)
    for name, boot_image in repository.images.items():
        files = list(list_image_files(boot_image))
        yield ImageUse(
            name=name,
            version=boot_image.spec.version,
            streams=tuple(streams.get(name, ())),
            decided=decided[name],
            maintenances=maintained[name],
            provisioned=None if records is None else provisioned[name],
            hosts=tuple(sorted({urlsplit(artifact.url).hostname or "assets" for _, artifact, _ in files})),
            files={file: artifact.provenance for file, artifact, _ in files},
        )


def _summarize_stream(repository: FleetRepository, name: str, followers: list[StreamFollower]) -> StreamUse:
    spec = repository.streams[name].spec
    rollout = spec.rollout
    stream_followers = [each for each in followers if each.stream == name]
    waiting: defaultdict[int, list[str]] = defaultdict(list)  # names of servers by the percentage at which they join
    for follower in stream_followers:
        metadata = follower.server.metadata
        is_current = follower.image.path == ("spec", "current")
        if rollout and is_current and selects_server(rollout.selector, metadata.name, metadata.labels):
            waiting[compute_rollout_percentage(name, follower.server.uuid)].append(metadata.name)
    return StreamUse(
        name=name,
        current=spec.current,
        rollout=rollout.image if rollout else None,
        percent=rollout.percent if rollout else None,
        images=dict(sorted(Counter(each.image.image for each in stream_followers).items())),
        joining=tuple(
            JoiningServers(percent=percent, servers=tuple(servers)) for percent, servers in sorted(waiting.items())
        ),
        follow=spec.follow,
        require_provenance=spec.require_provenance,
    )


def _list_opt_out_uses(
    repository: FleetRepository, followers: list[StreamFollower], at: datetime
) -> tuple[OptOutUse, ...]:
    servers_by_field: defaultdict[tuple[Id, tuple[str | int, ...]], list[str]] = defaultdict(list)
    for follower in followers:
        servers_by_field[follower.image.document, follower.image.path].append(follower.server.metadata.name)
    uses = [
        OptOutUse(
            what=opt_out.what,
            image=opt_out.image,
            reason=opt_out.reason,
            until=opt_out.until,
            overdue=opt_out.until is not None and opt_out.until <= at,
            servers=tuple(servers_by_field.get((opt_out.resource, (*opt_out.path, "image")), ())),
        )
        for opt_out in list_opt_outs(repository)
    ]
    no_deadline = datetime.max.replace(tzinfo=UTC)
    return tuple(sorted(uses, key=lambda use: (use.until or no_deadline, use.what)))


# Rollouts


MAX_REPORT_AGE: Final = timedelta(hours=1)  # the maximum age of the status of an instance
# Evidence in a record that an installation was completed. "Adopted" is not evidence from a machine.
_COMPLETION_EVIDENCE: Final = frozenset({"Reported", "Progress", "Declared", "Operator"})
# Evidence that an installation started: a file was fetched, or a boot override was consumed.
_START_EVIDENCE: Final = frozenset({"Fetched", "Consumed"})


class InstanceReport(Struct, frozen=True, kw_only=True):
    """The records of an instance, and the reason why the records are not reliable, if there is one."""

    commit: Revision  # the commit that the instance applied
    at: datetime | None  # when the instance last wrote its status
    # why the instance does not trust its records or does not offer boots; None: there is no such reason
    wait_reason: str | None
    records: Mapping[SystemUuid, Record]


class StepOutcome(StrEnum):
    """The result of checking whether a rollout may take its next step."""

    NEXT = "Next"  # the rollout may take its next step
    COMPLETE = "Complete"  # there is no next step
    WAITS = "Waits"  # the rollout must wait, but will continue by itself
    STOPPED = "Stopped"  # a person must act


class RolloutProgress(Struct, frozen=True, kw_only=True):
    """The progress of a rollout, with the servers in each state."""

    stream: str
    outcome: StepOutcome
    why: str
    image: str | None = None  # the image that is rolled out
    percent: int | None = None  # the current percentage in Git
    next: int | None = None  # the percentage of the next step
    reached: int = 0  # number of servers that boot the image because of the rollout
    proven: int = 0  # number of these servers that are provisioned with the image
    begun: tuple[str, ...] = ()  # servers with a fetch or a consumed override, but without a completion
    failed: tuple[str, ...] = ()  # servers whose installer reported a failure
    unknown: tuple[str, ...] = ()  # servers whose disk content is unknown
    unproven: tuple[str, ...] = ()  # all other servers that the rollout reached


class AppliedRollout(Struct, frozen=True, kw_only=True):
    """A stream's rollout in the commit that an instance applied, and the servers that the rollout reached."""

    rollout: Rollout | None
    machines: tuple[Decision, ...]  # the servers that boot the image because of the rollout, sorted by name


def find_applied_rollout(stream: str, repository: FleetRepository, decisions: Decisions) -> AppliedRollout:
    """Return a stream's rollout in a commit, and the servers that boot the new image because of the rollout."""
    document = repository.streams.get(stream)
    rollout_field = (Id("ImageStream", stream), ("spec", "rollout", "image"))
    machines = (
        decisions.servers[follower.server.metadata.name]
        for follower in find_followers(repository, decisions)
        if (follower.image.document, follower.image.path) == rollout_field
    )
    return AppliedRollout(rollout=document.spec.rollout if document is not None else None, machines=tuple(machines))


_ImageState = Literal["proven", "begun", "failed", "unknown", "unproven"]


def _find_image_state(image: str, decision: Decision, record: Record | None) -> _ImageState:
    step = install_step(decision, record)
    if step is InstallStep.UNKNOWN or record is None:
        return "unknown"
    if step is InstallStep.FAILED:
        return "failed"
    if step is not InstallStep.PROVISIONED or record.image != image:
        return "unproven"
    if record.evidence in _COMPLETION_EVIDENCE:
        return "proven"
    return "begun" if record.evidence in _START_EVIDENCE else "unproven"


def decide_next_step(
    stream: str,
    rollout: Rollout,
    applied: AppliedRollout,
    report: InstanceReport,
    *,
    steps: Sequence[int],
    after: int,
    at: datetime,
    accept_fetched: bool = False,
) -> RolloutProgress:
    """Decide whether a rollout may take its next step in Git now.

    ``after`` is the percentage of the reached servers for which there must be proof that they have the image. With
    ``accept_fetched``, a server also counts if its record only shows that an installation started.
    """
    servers_by_state: defaultdict[_ImageState, tuple[str, ...]] = defaultdict(tuple)  # names of servers, sorted
    for decision in applied.machines:
        record = report.records.get(decision.uuid)
        servers_by_state[_find_image_state(rollout.image, decision, record)] += (decision.server,)
    next_percent = min((step for step in steps if step > rollout.percent), default=None)
    obstacle = _find_report_obstacle(rollout, applied.rollout, report, at)
    if obstacle is not None:
        outcome, why = StepOutcome.WAITS, obstacle
    else:
        outcome, why = _judge_proof(rollout, servers_by_state, next_percent, after=after, accept_fetched=accept_fetched)
    if outcome is StepOutcome.NEXT and next_percent is None:
        outcome, why = StepOutcome.COMPLETE, f"{why}: make {rollout.image} the stream's current image"
    return RolloutProgress(
        stream=stream,
        outcome=outcome,
        why=why,
        image=rollout.image,
        percent=rollout.percent,
        next=next_percent if outcome is StepOutcome.NEXT else None,
        reached=len(applied.machines),
        proven=len(servers_by_state["proven"]),
        begun=servers_by_state["begun"],
        failed=servers_by_state["failed"],
        unknown=servers_by_state["unknown"],
        unproven=servers_by_state["unproven"],
    )


def _find_report_obstacle(
    rollout: Rollout, applied_rollout: Rollout | None, report: InstanceReport, at: datetime
) -> str | None:
    """Return why the records of an instance cannot prove the progress of a rollout, or None."""
    if rollout != applied_rollout:
        applied, here = _format_rollout(applied_rollout), _format_rollout(rollout)
        return (
            f"the instance applied {report.commit[:12]}, whose rollout ({applied}) differs from the one here ({here})"
        )
    if report.at is None:
        return "the instance's last status does not contain a time, so it is not current"
    if not -MAX_REPORT_AGE <= at - report.at <= MAX_REPORT_AGE:
        return f"the instance's last status is from {format_instant(report.at)}, so it is not current"
    return report.wait_reason


def _judge_proof(
    rollout: Rollout,
    servers_by_state: Mapping[_ImageState, tuple[str, ...]],
    next_percent: int | None,
    *,
    after: int,
    accept_fetched: bool,
) -> tuple[StepOutcome, str]:
    """Judge whether enough of the reached servers have the image. Return the outcome and the reason."""
    if failed := servers_by_state["failed"]:
        return StepOutcome.STOPPED, f"the installation failed on {format_names(failed)}"
    if unknown := servers_by_state["unknown"]:
        return StepOutcome.WAITS, f"gitboot cannot tell what is on the disks of {format_names(unknown)}"
    begun = servers_by_state["begun"]
    number = sum(map(len, servers_by_state.values()))
    counted = len(servers_by_state["proven"]) + (len(begun) if accept_fetched else 0)
    has = "has" if number == 1 else "have"
    share = f"{counted} of {format_count(number, 'server')} {has} {rollout.image} at {rollout.percent} %"
    if begun and accept_fetched:
        share += f" ({format_names(begun)} did not report completion)"
    if not number and next_percent is None:
        return StepOutcome.WAITS, f"{share}; the rollout does not reach any servers, and there is no higher step"
    if counted * 100 < after * number:
        reasons = [f"{share}, fewer than {after} %"]
        if unproven := servers_by_state["unproven"]:
            reasons.append(f"not installed yet: {format_names(unproven)}")
        if begun and not accept_fetched:
            reasons.append(f"{format_names(begun)} fetched the boot but did not report completion")
        return StepOutcome.WAITS, "; ".join(reasons)
    return StepOutcome.NEXT, share


def _format_rollout(rollout: Rollout | None) -> str:
    return f"{rollout.image} at {rollout.percent} %" if rollout is not None else "none"
