"""Images of a fleet: their sources, the servers that use them, and the next step of a rollout."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, structs

from gitboot.errors import UsageError
from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.revision import Revision
from gitboot.jsonio import Digest, build_json_decoder, format_instant
from gitboot.model.boot_image import Artifact, BootImage, Follow, ImageStream, Provenance, RequiredProvenance, Rollout
from gitboot.model.fields import selects_server, to_yaml_value
from gitboot.model.image_source import BUILT_IN_SOURCES
from gitboot.model.scalars import ArtifactUrl, SystemUuid
from gitboot.model.server import Server
from gitboot.resolve.decision_inputs import list_stream_images
from gitboot.resolve.explanation import find_requiring_stream
from gitboot.resolve.fleet_decisions import find_server_sites
from gitboot.resolve.install_attempts import install_step
from gitboot.resolve.policy_selection import NamedImage, choose_image, compute_rollout_percentage, list_opt_outs
from gitboot.resolve.provisioning_record import (
    COMPLETION_EVIDENCE,
    START_EVIDENCE,
    InstallStep,
    Record,
)
from gitboot.resolve.secret_scan import is_secret_argument
from gitboot.resolve.server_decision import Boot, Decision, Decisions
from gitboot.review.decision_changes import Changes, ServerChange
from gitboot.review.document_changes import (
    ChangeKind,
    DocumentChange,
    FieldChange,
    Location,
    compare_fields,
    locate_field,
    map_texts,
)
from gitboot.review.rendered_diffs import hide_secret_lines
from gitboot.text import format_count, format_names, printable, version_key

# Sources of images


class FileSigner(Struct, frozen=True, kw_only=True):
    """The trusted key that signed a file."""

    key: str  # the fingerprint or the identity of the key
    name: str  # the name of the key, for people

    def __str__(self) -> str:
        return f"{self.name} ({self.key})"


class SignatureResult(Struct, frozen=True, kw_only=True):
    """The result of `gitboot artifacts signatures` for a file of an image."""

    image: str
    sha256: str
    signer: FileSigner | None = None  # None: no trusted key signed the file
    # continues the sentence "it is …"; None: the signature is valid, or the image has no signature
    fault: str | None = None


class _SignatureResults(Struct, frozen=True):
    files: tuple[SignatureResult, ...]


SignatureResults = Mapping[tuple[str, Digest], SignatureResult]  # results by image and digest

_decode_results: Final = build_json_decoder(_SignatureResults)


def parse_signature_results(content: bytes, name: str) -> SignatureResults:
    """Read the output of `gitboot artifacts signatures -o json`.

    Raises `UsageError` if the content is not this output. Error messages contain ``name`` as the name of the file.
    """
    try:
        files = _decode_results(content).files
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{name} does not contain signature results: {printable(str(error))}; "
            "write the file with `gitboot artifacts signatures -o json=FILE`"
        ) from None
    results: dict[tuple[str, Digest], SignatureResult] = {}
    for file in files:
        key = file.image, Digest(file.sha256)
        # an image may contain a file twice, and only once with a signature
        if key not in results or file.signer is not None:
            fault = hide_secret_lines(file.fault) if file.fault is not None else None
            results[key] = structs.replace(file, fault=fault)
    return results


class FileClaim(Struct, frozen=True, kw_only=True):
    """A file of a new or edited image, and where its digest comes from according to the image."""

    file: str  # such as x86_64.kernel or aarch64.initrds[0]
    sha256: Digest
    claimed: Provenance | None  # None: the image does not state the origin
    before: Provenance | None  # the claim in the old commit; the same as `claimed` if the file is new
    names_signature: bool  # whether the image has a signature that gitboot can check
    result: SignatureResult | None  # None: there is no result of a check

    @property
    def verified_by(self) -> FileSigner | None:
        """The trusted key that signed the file, or None if the signature was not checked or the check failed."""
        return self.result.signer if self.result is not None and self.result.fault is None else None


class ImageProvenance(Struct, frozen=True, kw_only=True):
    """A new image, or an edited image whose files or provenance changed."""

    image: str
    fate: ChangeKind
    place: Location
    files: tuple[FileClaim, ...]


class StreamRuleChange(Struct, frozen=True, kw_only=True):
    """A changed `follow` or `requireProvenance` field of a stream."""

    stream: str
    change: FieldChange
    place: Location | None  # None: the stream was removed
    lowers: bool  # whether machines may newly boot images of the stream that no trusted key has signed

    @property
    def is_requirement(self) -> bool:
        return self.change.path == ("spec", "requireProvenance")


class SourceChange(Struct, frozen=True, kw_only=True):
    """A changed ImageSource in the fleet. The change does not affect current boots, but future images."""

    source: str
    fate: ChangeKind
    replaces_built_in: bool  # whether the commit adds the source, which replaces a source that gitboot ships
    fields: tuple[FieldChange, ...]  # the changed fields of an edited source
    place: Location | None  # None: the source was removed


class UncoveredBoot(Struct, frozen=True, kw_only=True):
    """A document that uses an image directly, although a stream with this image requires signed images."""

    document: Id  # a BootProfile that contains the image, or a Maintenance with such a profile
    profile: str
    image: str
    stream: str


class LeftStream(Struct, frozen=True, kw_only=True):
    """Servers that boot signed images of a stream in the old commit, but need no signatures in the new commit."""

    stream: str
    servers: tuple[str, ...]
    profile: str  # the profile that the servers boot in the new commit
    place: Location


class ProvenanceChanges(Struct, frozen=True, kw_only=True):
    """The changes in a commit that concern the provenance of images."""

    images: tuple[ImageProvenance, ...] = ()
    rules: tuple[StreamRuleChange, ...] = ()
    sources: tuple[SourceChange, ...] = ()
    uncovered: tuple[tuple[UncoveredBoot, Location], ...] = ()  # boots that are new in this commit
    left: tuple[LeftStream, ...] = ()

    @property
    def lowered(self) -> tuple[StreamRuleChange, ...]:
        """The rule changes that stop a stream from requiring signed images."""
        return tuple(each for each in self.rules if each.lowers)

    @property
    def changes_requirement(self) -> bool:
        """Whether an instance may now withhold boots that it offered before, or offer boots that it withheld before."""
        return any(each.is_requirement for each in self.rules)


def compare_provenance(
    changes: Changes, old: FleetRepository | None, new: FleetRepository, results: SignatureResults
) -> ProvenanceChanges:
    """Return the changes in a commit that concern the provenance of images.

    ``results`` are the results of signature checks.
    """
    rules = tuple(_find_rule_changes(changes.documents, old, new))
    lowered = {each.stream for each in rules if each.lowers}
    return ProvenanceChanges(
        images=tuple(_find_image_provenance(changes.documents, old, new, results)),
        rules=rules,
        sources=tuple(_find_source_changes(changes.documents, new)),
        uncovered=tuple(_find_new_uncovered_boots(old, new)),
        left=tuple(_find_left_streams(changes.servers, old, new, lowered)) if old is not None else (),
    )


# Files


def _hide_url_secrets(provenance: Provenance | None) -> Provenance | None:
    if provenance is None or provenance.url is None:
        return provenance
    return dataclasses.replace(provenance, url=ArtifactUrl(hide_secret_lines(provenance.url)))


def _find_image_provenance(
    documents: Mapping[Id, DocumentChange], old: FleetRepository | None, new: FleetRepository, results: SignatureResults
) -> Iterator[ImageProvenance]:
    for key, change in documents.items():
        if key.kind != "BootImage" or change.fate is ChangeKind.REMOVED:
            continue
        before: Mapping[str, tuple[Artifact, bool]] = {}
        if old is not None and change.fate is ChangeKind.EDITED:
            old_files = list_image_files(old.images[key.name])
            before = {file: (artifact, names_signature) for file, artifact, names_signature in old_files}
        files = tuple(
            FileClaim(
                file=file,
                sha256=artifact.sha256,
                claimed=_hide_url_secrets(artifact.provenance),
                before=_hide_url_secrets(before[file][0].provenance if file in before else artifact.provenance),
                names_signature=names_signature,
                result=results.get((key.name, artifact.sha256)),
            )
            for file, artifact, names_signature in list_image_files(new.images[key.name])
            if (artifact, names_signature) != before.get(file)
        )
        if files:
            place = locate_field(new, key, "spec", "architectures")
            yield ImageProvenance(image=key.name, fate=change.fate, place=place, files=files)


def list_image_files(image: BootImage) -> Iterator[tuple[str, Artifact, bool]]:
    """Yield each file of an image with its name, such as x86_64.kernel, and whether the file has a signature."""
    for architecture, artifacts in sorted(image.spec.architectures.items()):
        for path, artifact in artifacts.files():
            steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
            names_signature = artifact.signature is not None or artifacts.checksums is not None
            yield f"{architecture}{steps}", artifact, names_signature


# Rules of streams, and sources


def _find_rule_changes(
    documents: Mapping[Id, DocumentChange], old: FleetRepository | None, new: FleetRepository
) -> Iterator[StreamRuleChange]:
    for key in documents:
        if key.kind != "ImageStream":
            continue
        old_stream, new_stream = old.streams.get(key.name) if old is not None else None, new.streams.get(key.name)
        lowers = _requires_signed(old_stream) and not _requires_signed(new_stream)
        for change in compare_fields(_list_rules(old_stream), _list_rules(new_stream), ("spec",)):
            yield StreamRuleChange(
                stream=key.name,
                change=change,
                place=locate_field(new, key, *change.path) if new_stream is not None else None,
                lowers=lowers and change.path == ("spec", "requireProvenance"),
            )


def _list_rules(stream: ImageStream | None) -> dict[str, Any]:
    """Return a stream's `follow` and `requireProvenance` fields as YAML values. A missing stream has no rules."""
    if stream is None:
        return {"requireProvenance": RequiredProvenance.ANY.value}
    return {
        name: value for name, value in to_yaml_value(stream.spec).items() if name in ("follow", "requireProvenance")
    }


def _requires_signed(stream: ImageStream | None) -> bool:
    """Return whether machines may boot a stream's images only if a trusted key has signed each file."""
    return stream is not None and stream.spec.require_provenance is RequiredProvenance.SIGNED


def _find_source_changes(documents: Mapping[Id, DocumentChange], new: FleetRepository) -> Iterator[SourceChange]:
    for key, change in documents.items():
        if key.kind == "ImageSource":
            yield SourceChange(
                source=key.name,
                fate=change.fate,
                replaces_built_in=change.fate is ChangeKind.ADDED and key.name in BUILT_IN_SOURCES,
                fields=tuple(
                    field._replace(old=map_texts(field.old, _hide_secret), new=map_texts(field.new, _hide_secret))
                    for field in change.fields
                ),
                place=locate_field(new, key, *change.first_path) if change.fate is not ChangeKind.REMOVED else None,
            )


def _hide_secret(text: str) -> str:
    return f"{text.partition('=')[0]}=HIDDEN" if is_secret_argument(text) else hide_secret_lines(text)


# Boots that avoid the rules of a stream


def find_uncovered_boots(repository: FleetRepository) -> Iterator[UncoveredBoot]:
    """Yield the boots that use an image directly, although a stream with this image requires signed images."""
    strict_streams = {name: stream for name, stream in repository.streams.items() if _requires_signed(stream)}
    if not strict_streams:
        return
    streams_by_image = group_streams_by_image(strict_streams)
    users = (
        *((Id("BootProfile", name), name) for name in repository.profiles),
        *((Id("Maintenance", name), each.spec.profile) for name, each in repository.maintenances.items()),
    )
    for document, profile in users:
        image = repository.profiles[profile].spec.image
        for stream in streams_by_image.get(image, ()) if image is not None else ():
            yield UncoveredBoot(document=document, profile=profile, image=str(image), stream=stream)


def group_streams_by_image(streams: Mapping[str, ImageStream]) -> Mapping[str, list[str]]:
    """Return the names of the streams that contain each image, in the order of ``streams``."""
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name, stream in streams.items():
        for image in dict.fromkeys(list_stream_images(stream)):
            names[image].append(name)
    return names


def _find_new_uncovered_boots(
    old: FleetRepository | None, new: FleetRepository
) -> Iterator[tuple[UncoveredBoot, Location]]:
    known = set(find_uncovered_boots(old)) if old is not None else set()
    for boot in find_uncovered_boots(new):
        if boot not in known:
            field = "image" if boot.document.kind == "BootProfile" else "profile"
            yield boot, locate_field(new, boot.document, "spec", field)


def _find_left_streams(
    servers: Iterable[ServerChange], old: FleetRepository, new: FleetRepository, lowered: Collection[str]
) -> Iterator[LeftStream]:
    """Yield the servers whose images no longer need signatures, except those that left a stream in ``lowered``."""
    left: defaultdict[tuple[str, str], list[str]] = defaultdict(list)  # servers by stream and new profile
    for change in servers:
        old_boot, new_boot = _get_policy_boot(change.old), _get_policy_boot(change.new)
        if old_boot is None or new_boot is None or not _needs_signatures(old_boot) or _needs_signatures(new_boot):
            continue
        stream = find_requiring_stream(old, old.profiles[old_boot.profile], old_boot.image)
        if stream not in lowered:
            left[stream, new_boot.profile].append(change.name)
    for (stream, profile), names in sorted(left.items()):
        field = "stream" if new.profiles[profile].spec.stream is not None else "image"
        place = locate_field(new, Id("BootProfile", profile), "spec", field)
        yield LeftStream(stream=stream, servers=tuple(names), profile=profile, place=place)


def _get_policy_boot(decision: Decision | None) -> Boot | None:
    return decision.policy.boot if decision is not None and decision.policy is not None else None


def _needs_signatures(boot: Boot) -> bool:
    return any(file.proof is not None for file in boot.files.all())


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


class InstanceReport(Struct, frozen=True, kw_only=True):
    """The records of an instance, and the reason why the records are not reliable, if there is one."""

    commit: Revision  # the commit that the instance applied
    at: datetime | None  # when the instance last wrote its status
    # why the instance does not trust its records or does not offer boots; None: there is no such reason
    wait_reason: str | None
    records: Mapping[SystemUuid, Record]


class StepOutcome(StrEnum):
    """The result of checking whether a rollout may take its next step, from the best result to the worst."""

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
    # The ledger with the record of each server, by server name. Empty: one ledger contains all records.
    ledgers: Mapping[str, str | None] = {}


def find_applied_rollout(stream: str, repository: FleetRepository, decisions: Decisions) -> AppliedRollout:
    """Return a stream's rollout in a commit, and the servers that boot the new image because of the rollout."""
    document = repository.streams.get(stream)
    rollout_field = (Id("ImageStream", stream), ("spec", "rollout", "image"))
    machines = (
        decisions.servers[follower.server.metadata.name]
        for follower in find_followers(repository, decisions)
        if (follower.image.document, follower.image.path) == rollout_field
    )
    has_instances_by_site = repository.fleet.spec.has_instances_by_site
    sites = find_server_sites(repository) if has_instances_by_site else {}
    return AppliedRollout(
        rollout=document.spec.rollout if document is not None else None,
        machines=tuple(machines),
        ledgers={name: site.ledger for name, site in sites.items()},
    )


_ImageState = Literal["proven", "begun", "failed", "unknown", "unproven"]


def _find_image_state(image: str, decision: Decision, record: Record | None) -> _ImageState:
    step = install_step(decision, record)
    if step is InstallStep.UNKNOWN or record is None:
        return "unknown"
    if step is InstallStep.FAILED:
        return "failed"
    if step is not InstallStep.PROVISIONED or record.image != image:
        return "unproven"
    if record.evidence in COMPLETION_EVIDENCE:
        return "proven"
    return "begun" if record.evidence in START_EVIDENCE else "unproven"


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
        outcome, why = _judge_proof(rollout, servers_by_state, after=after, accept_fetched=accept_fetched)
    if outcome is StepOutcome.NEXT and next_percent is None:
        outcome, why = _judge_last_step(rollout, why, has_servers=bool(applied.machines))
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
    if counted * 100 < after * number:
        reasons = [f"{share}, fewer than {after} %"]
        if unproven := servers_by_state["unproven"]:
            reasons.append(f"not installed yet: {format_names(unproven)}")
        if begun and not accept_fetched:
            reasons.append(f"{format_names(begun)} fetched the boot but did not report completion")
        return StepOutcome.WAITS, "; ".join(reasons)
    return StepOutcome.NEXT, share


def _judge_last_step(rollout: Rollout, share: str, *, has_servers: bool) -> tuple[StepOutcome, str]:
    """Judge whether a rollout without a higher step is complete. Return the outcome and the reason."""
    if rollout.percent < 100:
        return StepOutcome.WAITS, f"{share}; --steps has no step above {rollout.percent} %: add 100"
    if not has_servers:
        return StepOutcome.WAITS, f"{share}; the rollout does not reach any servers"
    widen = "" if rollout.selector == "All" else "widen spec.rollout.selector, or "
    return StepOutcome.COMPLETE, f"{share}: {widen}make {rollout.image} the stream's current image"


def _format_rollout(rollout: Rollout | None) -> str:
    return f"{rollout.image} at {rollout.percent} %" if rollout is not None else "none"
