"""Provenance of images in reviews: signed files, stream rules and image sources that a commit changes."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from gitboot.errors import UsageError
from gitboot.fleet.documents import FleetRepository, Id
from gitboot.jsonio import Digest, build_json_decoder
from gitboot.model.boot_image import Artifact, BootImage, ImageStream, Provenance, RequiredProvenance
from gitboot.model.fields import to_yaml_value
from gitboot.model.image_source import BUILT_IN_SOURCES
from gitboot.model.scalars import ArtifactUrl
from gitboot.resolve.decision_inputs import list_stream_images
from gitboot.resolve.explanation import find_requiring_stream
from gitboot.resolve.secret_scan import is_secret_argument
from gitboot.resolve.server_decision import Boot, Decision
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
from gitboot.text import printable


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
