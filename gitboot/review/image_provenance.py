"""Image provenance: the origins of the digests of images, and the rules of streams for provenance."""

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
from gitboot.resolve.server_decision import Boot
from gitboot.review.decision_changes import Changes, ServerChange
from gitboot.review.document_changes import ChangeKind, DocumentChange, FieldChange, compare_fields
from gitboot.review.rendered_diffs import hide_secret_lines
from gitboot.text import printable

Place = tuple[str, int, int]  # path, line, column


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
        found = _decode_results(content)
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{name} does not contain signature results: {printable(str(error))}; "
            "write the file with `gitboot artifacts signatures -o json=FILE`"
        ) from None
    results: dict[tuple[str, Digest], SignatureResult] = {}
    for each in found.files:
        key = each.image, Digest(each.sha256)
        # an image may contain a file twice, and only once with a signature
        if key not in results or each.signer is not None:
            fault = hide_secret_lines(each.fault) if each.fault is not None else None
            results[key] = structs.replace(each, fault=fault)
    return results


class FileClaim(Struct, frozen=True, kw_only=True):
    """A file of a new or edited image, and the origin of its digest that the image claims."""

    file: str  # such as x86_64.kernel or aarch64.initrds[0]
    sha256: Digest
    claimed: Provenance | None  # None: the image does not state the origin
    before: Provenance | None  # the claim in the old commit; the same as `claimed` if the file is new
    names_signature: bool  # whether the image has a signature that gitboot can check
    result: SignatureResult | None  # None: there is no result of a check

    @property
    def verified_by(self) -> FileSigner | None:
        """The trusted key that signed the file, or None if there is no result of a check or if the check failed."""
        return self.result.signer if self.result is not None and self.result.fault is None else None


class ImageProvenance(Struct, frozen=True, kw_only=True):
    """A new image, or an edited image whose files differ."""

    image: str
    fate: ChangeKind
    place: Place
    files: tuple[FileClaim, ...]


class StreamRuleChange(Struct, frozen=True, kw_only=True):
    """A changed field of `follow` or `requireProvenance` of a stream."""

    stream: str
    change: FieldChange
    place: Place | None  # None: the stream was removed
    lowers: bool  # whether machines may newly boot images of the stream that no trusted key has signed

    @property
    def is_requirement(self) -> bool:
        return self.change.path == ("spec", "requireProvenance")


class SourceChange(Struct, frozen=True, kw_only=True):
    """A changed ImageSource of the fleet. The change does not affect boots, but new images come from the source."""

    source: str
    fate: ChangeKind
    replaces_built_in: bool  # whether the commit adds the source, which replaces a source that gitboot ships
    fields: tuple[FieldChange, ...]  # the changed fields of an edited source
    place: Place | None  # None: the source was removed


class UncoveredBoot(Struct, frozen=True, kw_only=True):
    """A document that boots an image directly, although a stream that contains the image requires signed images."""

    document: Id  # a BootProfile that contains the image, or a Maintenance with such a profile
    profile: str
    image: str
    stream: str


class LeftStream(Struct, frozen=True, kw_only=True):
    """Servers that boot with the signatures of a stream in the old commit, and without signatures in the new commit."""

    stream: str
    servers: tuple[str, ...]
    profile: str  # the profile that the servers boot in the new commit
    place: Place


class ProvenanceChanges(Struct, frozen=True, kw_only=True):
    """The changes of a commit that concern the provenance of images."""

    images: tuple[ImageProvenance, ...] = ()
    rules: tuple[StreamRuleChange, ...] = ()
    sources: tuple[SourceChange, ...] = ()
    uncovered: tuple[tuple[UncoveredBoot, Place], ...] = ()  # boots that are new in this commit
    left: tuple[LeftStream, ...] = ()

    @property
    def lowered(self) -> tuple[StreamRuleChange, ...]:
        """The changes after which a stream no longer requires signed images."""
        return tuple(each for each in self.rules if each.lowers)

    @property
    def changes_requirement(self) -> bool:
        """Whether an instance may withhold boots that it offered before, or offer boots that it withheld before."""
        return any(each.is_requirement for each in self.rules)


def compare_provenance(
    changes: Changes, old: FleetRepository | None, new: FleetRepository, results: SignatureResults
) -> ProvenanceChanges:
    """Return the changes of a commit that concern the provenance of images.

    ``results`` are the results of signature checks.
    """
    known = set(find_uncovered_boots(old)) if old is not None else set()
    rules = tuple(_find_rule_changes(changes.documents, old, new))
    lowered = {each.stream for each in rules if each.lowers}
    return ProvenanceChanges(
        images=tuple(_find_images(changes.documents, old, new, results)),
        rules=rules,
        sources=tuple(
            SourceChange(
                source=key.name,
                fate=change.fate,
                replaces_built_in=change.fate is ChangeKind.ADDED and key.name in BUILT_IN_SOURCES,
                fields=tuple(each._replace(old=_hide(each.old), new=_hide(each.new)) for each in change.fields),
                place=None if change.fate is ChangeKind.REMOVED else _find_place(new, key, *_first_path(change)),
            )
            for key, change in changes.documents.items()
            if key.kind == "ImageSource"
        ),
        uncovered=tuple(
            (
                each,
                _find_place(new, each.document, "spec", "image" if each.document.kind == "BootProfile" else "profile"),
            )
            for each in find_uncovered_boots(new)
            if each not in known
        ),
        left=tuple(_find_left_streams(changes.servers, old, new, lowered)) if old is not None else (),
    )


def _find_place(repository: FleetRepository, document: Id, *path: str | int) -> Place:
    file, place = repository.find_place(document, *path)
    return file, place.line, place.column


def _hide(value: Any) -> Any:
    """Return a YAML value with HIDDEN instead of strings that look like secrets."""
    if isinstance(value, str):
        return f"{value.partition('=')[0]}=HIDDEN" if is_secret_argument(value) else hide_secret_lines(value)
    if isinstance(value, Mapping):
        return {name: _hide(each) for name, each in value.items()}
    return list(map(_hide, value)) if isinstance(value, list) else value


def _hide_url(provenance: Provenance | None) -> Provenance | None:
    if provenance is None or provenance.url is None:
        return provenance
    return dataclasses.replace(provenance, url=ArtifactUrl(hide_secret_lines(provenance.url)))


def _first_path(change: DocumentChange) -> tuple[str | int, ...]:
    return change.fields[0].path if change.fields else ("metadata", "name")


def _find_images(
    documents: Mapping[Id, DocumentChange], old: FleetRepository | None, new: FleetRepository, results: SignatureResults
) -> Iterator[ImageProvenance]:
    for key, change in documents.items():
        if key.kind != "BootImage" or change.fate is ChangeKind.REMOVED:
            continue
        before: Mapping[str, tuple[Artifact, bool]] = {}
        if change.fate is ChangeKind.EDITED:
            if old is None:
                continue
            old_files = list_image_files(old.images[key.name])
            before = {file: (artifact, names_signature) for file, artifact, names_signature in old_files}
        files = tuple(
            FileClaim(
                file=file,
                sha256=artifact.sha256,
                claimed=_hide_url(artifact.provenance),
                before=_hide_url(before[file][0].provenance if file in before else artifact.provenance),
                names_signature=names_signature,
                result=results.get((key.name, artifact.sha256)),
            )
            for file, artifact, names_signature in list_image_files(new.images[key.name])
            if (artifact, names_signature) != before.get(file)
        )
        if files:
            place = _find_place(new, key, "spec", "architectures")
            yield ImageProvenance(image=key.name, fate=change.fate, place=place, files=files)


def list_image_files(image: BootImage) -> Iterator[tuple[str, Artifact, bool]]:
    """Yield each file of an image with its name, such as x86_64.kernel, and whether the image has a signature for the
    file.
    """
    for architecture, artifacts in sorted(image.spec.architectures.items()):
        for path, artifact in artifacts.files():
            steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
            names_signature = artifact.signature is not None or artifacts.checksums is not None
            yield f"{architecture}{steps}", artifact, names_signature


def _find_rule_changes(
    documents: Mapping[Id, DocumentChange], old: FleetRepository | None, new: FleetRepository
) -> Iterator[StreamRuleChange]:
    for key in documents:
        if key.kind != "ImageStream":
            continue
        was, is_now = (each.streams.get(key.name) if each is not None else None for each in (old, new))
        for change in compare_fields(_list_rules(was), _list_rules(is_now), ("spec",)):
            place = _find_place(new, key, *change.path) if is_now is not None else None
            lowers = requires_signed(was) and not requires_signed(is_now)
            yield StreamRuleChange(
                stream=key.name,
                change=change,
                place=place,
                lowers=lowers and change.path == ("spec", "requireProvenance"),
            )


def _list_rules(stream: ImageStream | None) -> dict[str, Any]:
    """Return `follow` and `requireProvenance` of a stream as YAML values. A missing stream has no rules."""
    if stream is None:
        return {"requireProvenance": RequiredProvenance.ANY.value}
    return {
        name: value for name, value in to_yaml_value(stream.spec).items() if name in ("follow", "requireProvenance")
    }


def requires_signed(stream: ImageStream | None) -> bool:
    """Return whether machines may boot the images of a stream only after a trusted key has verified each file."""
    return stream is not None and stream.spec.require_provenance is RequiredProvenance.SIGNED


def find_uncovered_boots(repository: FleetRepository) -> Iterator[UncoveredBoot]:
    """Yield the boots that use an image directly, although a stream that contains the image requires signed images."""
    streams: defaultdict[str, list[str]] = defaultdict(list)  # streams by image
    for name, stream in repository.streams.items():
        if requires_signed(stream):
            for image in dict.fromkeys(list_stream_images(stream)):
                streams[image].append(name)
    if not streams:
        return
    direct = {name: profile.spec.image for name, profile in repository.profiles.items()}
    users = (
        *((Id("BootProfile", name), name) for name in repository.profiles),
        *((Id("Maintenance", name), each.spec.profile) for name, each in repository.maintenances.items()),
    )
    for document, profile in users:
        named = direct[profile]
        for stream_name in streams.get(named, ()) if named is not None else ():
            yield UncoveredBoot(document=document, profile=profile, image=str(named), stream=stream_name)


def _find_left_streams(
    servers: Iterable[ServerChange], old: FleetRepository, new: FleetRepository, lowered: Collection[str]
) -> Iterator[LeftStream]:
    """Yield the servers that no longer need signatures, except the servers of the streams in ``lowered``."""
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for change in servers:
        was, now = (
            each.policy.boot if each is not None and each.policy is not None else None
            for each in (change.old, change.new)
        )
        if was is None or now is None or not _needs_signatures(was) or _needs_signatures(now):
            continue
        stream = find_requiring_stream(old, old.profiles[was.profile], was.image)
        if stream not in lowered:
            found[stream, now.profile].append(change.name)
    for (stream, profile), names in sorted(found.items()):
        field = "stream" if new.profiles[profile].spec.stream is not None else "image"
        place = _find_place(new, Id("BootProfile", profile), "spec", field)
        yield LeftStream(stream=stream, servers=tuple(names), profile=profile, place=place)


def _needs_signatures(boot: Boot) -> bool:
    return any(file.proof is not None for file in boot.files.all())
