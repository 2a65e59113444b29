"""JSON output for a review, and the JSON schemas for documents and reviews."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from gitboot.jsonio import to_json_value
from gitboot.model.fields import Field, structure
from gitboot.model.json_schema import _DIALECT, KINDS, build_any_document_schema, build_schema, build_structure_schema
from gitboot.review.acknowledgements import format_ack_line
from gitboot.review.change_groups import ChangeCause, Group
from gitboot.review.decision_changes import Changes
from gitboot.review.document_changes import ChangeKind, DocumentChange, FieldChange, Location
from gitboot.review.formats import phrases
from gitboot.review.guards import Verdict
from gitboot.review.images import FileClaim, ImageProvenance, StreamRuleChange
from gitboot.review.review import Review
from gitboot.review.risks import Risk

Outcome = Literal["unchanged", "fine", "held", "invalid"]


@structure
class SideFacts:
    """One of the two compared revisions."""

    named: str = Field(description="The revision on the command line, such as a branch, a commit or WORKTREE.")
    revision: str = Field(description="The commit of this revision, WORKTREE, or the merged commits.")


@structure
class CountFacts:
    """The numbers of changes."""

    changed: int = Field(description="Servers in both commits whose decision changes.")
    renamed: int = Field(description="Changed servers that have a new name.")
    added: int
    removed: int
    unchanged: int
    images: int = Field(description="BootImages that were added, removed or edited.")
    overrides: int = Field(description="Servers for which only the boot override changes.")


@structure
class AreaFacts:
    """The changes in the servers with a label, or in the whole fleet."""

    area: str = Field(description="The servers: all, site=VALUE or role=VALUE.")
    size: int = Field(description="Servers in the old commit, and changed servers that moved to this site or role.")
    changed: int = Field(description="Changed servers, without harmless changes.")
    less: int = Field(description="Servers with a harmless change, after which gitboot offers no new boot.")
    removed: int = Field(description="Servers that were removed or retired.")
    added: int
    reinstalled: int = Field(description="Servers that may be reinstalled.")


@structure
class TripFacts:
    """An exceeded limit."""

    guard: str
    what: str
    number: int
    limit: int
    of: int | None
    percent: bool = Field(description="Whether the limit is a percentage.")
    area: str
    acknowledged: bool
    by: str = Field(
        description="The person who acknowledged the change. Empty if the change is not acknowledged, "
        "or if the person is not recorded."
    )
    acknowledgement: str = Field(description="The acknowledgement line for a commit message.")


@structure
class SignerFacts:
    """A commit between BASE and HEAD, and the key that signed it."""

    commit: str
    person: str
    key: str
    forge: bool = Field(
        description="Whether the key belongs to a forge. gitboot accepts such a key only for merge commits."
    )


@structure
class StepFacts:
    """A held commit between BASE and HEAD."""

    commit: str
    acknowledgements: tuple[str, ...] = Field(description="The acknowledgement lines for a commit message.")


@structure
class UnheededFacts:
    """An acknowledgement line that gitboot ignores."""

    commit: str
    line: str
    why: str


@structure
class FieldFacts:
    """A field with its value before and after the change."""

    field: str
    old: Any
    new: Any


@structure
class CauseFacts:
    """A document or file that causes changes of servers."""

    cause: str = Field(description="The document as KIND/NAME, or the path of a file.")
    fate: Literal["added", "removed", "edited"]
    documents: int = Field(description="The number of documents. More than 1 if each server has its own document.")
    fields: tuple[str, ...]
    path: str | None
    line: int | None
    column: int | None


@structure
class EffectFacts:
    """The time from which a change takes effect."""

    when: str
    maintenance: str | None
    start: str | None
    end: str | None


@structure
class RenderedFacts:
    """A unified diff of a file that a machine fetches."""

    boot: str
    file: str
    lines: tuple[str, ...]


@structure
class OutlierFacts:
    """The diff lines in which a group differs from a larger group. Names replace the servers' own values."""

    than: str = Field(description="The first server of the larger group.")
    lines: tuple[str, ...] = Field(description="Lines that only the diff of this group contains.")
    missing: tuple[str, ...] = Field(description="Lines that only the diff of the larger group contains.")


@structure
class GroupFacts:
    """Servers with the same change and causes. Their rendered diffs differ only in the servers' own values."""

    causes: tuple[CauseFacts, ...]
    risks: tuple[str, ...]
    effects: tuple[EffectFacts, ...]
    reinstalls: tuple[str, ...]
    unknown: tuple[str, ...] = Field(
        description="Reasons why gitboot cannot determine whether the servers are provisioned."
    )
    servers: tuple[str, ...]
    example: str = Field(description="The server for which `fields` and `rendered` show the changes.")
    own: tuple[str, ...] = Field(
        description="Names of the values that differ between servers in the added and removed lines."
    )
    outlier: OutlierFacts | None = Field(
        description="The comparison with a larger group. null if no larger group has the same causes."
    )
    fields: tuple[FieldFacts, ...]
    rendered: tuple[RenderedFacts, ...] | None = Field(
        description="The rendered diffs. null if there are too many lines."
    )


@structure
class ServerFacts:
    """A changed server."""

    server: str
    before: str | None = Field(description="The name of the server in the old commit.")
    fate: Literal["added", "removed", "edited"]
    risks: tuple[str, ...]
    group: int = Field(description="The index of the server's group in `groups`, from 0.")
    old: str | None = Field(description="The digest of the server's old decision.")
    new: str | None


@structure
class FileClaimFacts:
    """A file of a new or edited image, and the origin of its digest that the image claims."""

    file: str = Field(description="The architecture and the field of the file, such as x86_64.kernel.")
    sha256: str
    claim: Literal["signed", "published", "firstSeen"] | None = Field(
        description="The origin of the digest that the image claims. null if the image does not state an origin."
    )
    key: str | None = Field(description="The key that signed the digest or the file, as the image claims.")
    url: str | None = Field(
        description="The URL of the list, index or signature that has the digest, as the image claims."
    )
    before: Literal["signed", "published", "firstSeen"] | None = Field(
        description="The claim in the old commit. For a new file, the value is the same as in `claim`."
    )
    names_signature: bool = Field(description="Whether the image has a signature for the file.")
    verified_by: str | None = Field(
        description="The trusted key that signed the file. null if gitboot has not verified the file."
    )
    signer: str | None = Field(description="The name of the trusted key.")
    fault: str | None = Field(
        description='The reason why a check of the signature failed. It continues a sentence after "it is".'
    )
    text: str = Field(description="The claim and the result of the check, as a text for people.")


@structure
class ProvenanceFacts:
    """A BootImage that was added, or whose files or provenance were edited."""

    image: str
    fate: Literal["added", "edited"]
    path: str
    line: int
    column: int
    files: tuple[FileClaimFacts, ...]


@structure
class ImageFacts:
    """A BootImage that was added, removed or edited."""

    image: str
    fate: Literal["added", "removed", "edited"]
    servers: int = Field(description="The number of servers that can boot the image in the old or the new commit.")


@structure
class StreamRuleFacts:
    """A changed field of a stream: `follow` or `requireProvenance`."""

    stream: str
    field: str
    old: Any
    new: Any
    lowers: bool = Field(description="Whether the stream no longer requires signed images.")


@structure
class SourceFacts:
    """An ImageSource that was added, removed or edited."""

    source: str
    fate: Literal["added", "removed", "edited"]
    replaces_built_in: bool = Field(description="Whether the source is new and replaces a source that gitboot ships.")
    fields: tuple[FieldFacts, ...] = Field(description="The changed fields of an edited source.")


@structure
class ProvenanceRiskFacts:
    """A way in which images may newly boot without the signatures that a stream requires."""

    stream: str
    reason: str
    path: str | None
    line: int | None
    column: int | None


@structure
class DocumentFacts:
    """A changed document or file."""

    document: str
    fate: Literal["added", "removed", "edited"]
    fields: tuple[str, ...]


@structure
class ProblemFacts:
    """A problem of a commit."""

    path: str
    line: int
    column: int
    code: str
    severity: Literal["error", "warning"]
    message: str
    hint: str


@structure
class CredentialFacts:
    """The name of a server's BMC credentials, the address of the BMC, and the check of its certificate."""

    server: str
    old: str | None
    new: str | None


@structure
class ClaimFacts:
    """An image with the new claim that it does not write disks (writesDisk: false)."""

    image: str
    path: str
    line: int
    column: int
    author: str | None = Field(description="The author and the commit of the line. null if the line is not committed.")


@structure
class AccessFacts:
    """A setting of the Fleet that controls which clients may fetch, before and after."""

    field: str
    old: tuple[str, ...] | bool | str
    new: tuple[str, ...] | bool | str
    widens: bool = Field(description="Whether more clients may fetch, or more fetches are evidence.")


@structure
class DiffFacts:
    """The output of `gitboot diff -o json`."""

    api_version: Literal["gitboot.dev/v1alpha1"]
    base: SideFacts
    head: SideFacts
    verdict: Outcome
    digest: str | None = Field(description="The digest that acknowledgements must contain. null if HEAD is invalid.")
    compared_with_nothing: bool = Field(description="Whether BASE has no valid fleet. In this case, everything is new.")
    counts: CountFacts | None
    areas: tuple[AreaFacts, ...]
    limits: dict[str, int | bool] | None
    trips: tuple[TripFacts, ...]
    steps: tuple[StepFacts, ...]
    unheeded: tuple[UnheededFacts, ...]
    unknown_servers: tuple[RenderedFacts, ...] | None
    shared: tuple[FieldFacts, ...] | None
    access: tuple[AccessFacts, ...] = Field(description="Changed settings that control which clients may fetch.")
    images: tuple[ImageFacts, ...]
    claims: tuple[ClaimFacts, ...] = Field(description="Images with the new claim that they do not write disks.")
    provenance: tuple[ProvenanceFacts, ...] = Field(
        description="New and edited images, with the origins of the digests that the images claim."
    )
    streams: tuple[StreamRuleFacts, ...] = Field(description="Changes of follow and requireProvenance.")
    sources: tuple[SourceFacts, ...] = Field(description="Changed sources of images.")
    provenance_risks: tuple[ProvenanceRiskFacts, ...] = Field(
        description="Ways in which images may newly boot without the signatures that a stream requires."
    )
    groups: tuple[GroupFacts, ...]
    servers: tuple[ServerFacts, ...]
    documents: tuple[DocumentFacts, ...] = Field(description="Changed documents that do not change decisions.")
    bmcs: tuple[str, ...] = Field(description="Servers whose BMC has another address or trust.")
    credentials: tuple[CredentialFacts, ...] = Field(
        description="The BMC credentials and their recipients, for the servers in `bmcs` and for new servers."
    )
    signers: tuple[SignerFacts, ...] = Field(
        description="The trusted keys that signed the commits. Only with --verify."
    )
    problems: tuple[ProblemFacts, ...]
    base_problems: tuple[ProblemFacts, ...]
    reproduce: str


# Review


def as_json(review: Review) -> str:
    """Return the output of `gitboot diff -o json`."""
    changes, verdict = review.changes, review.verdict
    facts = DiffFacts(
        api_version="gitboot.dev/v1alpha1",
        base=_copy_fields(SideFacts, review.base),
        head=_copy_fields(SideFacts, review.head),
        verdict=review.outcome.value,
        digest=verdict.digest if verdict else None,
        compared_with_nothing=changes is not None and changes.first,
        counts=_count_changes(changes) if changes else None,
        areas=tuple(_copy_fields(AreaFacts, each, area=str(each)) for each in changes.areas) if changes else (),
        limits=to_json_value(verdict.limits) if verdict else None,
        trips=_describe_trips(verdict) if verdict else (),
        steps=tuple(StepFacts(commit=each.commit, acknowledgements=each.lines) for each in review.steps),
        unheeded=_copy_all(UnheededFacts, review.ignored_lines),
        unknown_servers=_copy_all(RenderedFacts, review.unknown.rendered) if review.unknown else None,
        shared=_describe_fields(review.shared.fields) if review.shared else None,
        access=_copy_all(AccessFacts, changes.access) if changes else (),
        images=_describe_images(changes) if changes else (),
        claims=tuple(
            _copy_fields(ClaimFacts, claim, author=claim.writer, **_describe_place(claim.place))
            for claim in review.claims
        ),
        provenance=tuple(map(_describe_provenance, review.provenance.images)),
        streams=tuple(map(_describe_rule, review.provenance.rules)),
        sources=tuple(
            _copy_fields(SourceFacts, source, fields=_describe_fields(source.fields))
            for source in review.provenance.sources
        ),
        provenance_risks=tuple(
            ProvenanceRiskFacts(stream=risk.stream, reason=risk.reason, **_describe_place(risk.place))
            for risk in phrases.list_provenance_risks(review.provenance)
        ),
        groups=tuple(map(_describe_group, review.groups)),
        servers=_describe_servers(review.groups),
        documents=tuple(map(_describe_document, review.document_only_changes)),
        bmcs=changes.moved_bmcs if changes else (),
        credentials=_describe_credentials(changes) if changes and not changes.first else (),
        signers=tuple(
            _copy_fields(SignerFacts, signer, commit=commit, forge=signer.is_forge) for commit, signer in review.signers
        ),
        problems=_copy_all(ProblemFacts, review.head.problems),
        base_problems=_copy_all(ProblemFacts, review.base.problems) if review.base.decisions is None else (),
        reproduce=review.command,
    )
    return json.dumps(to_json_value(facts), indent=2, sort_keys=True)


Described = TypeVar("Described")


def _copy_fields(kind: type[Described], value: object, **others: Any) -> Described:
    """Build a ``kind`` from ``others``, and copy all other fields from ``value``."""
    names = (each.name for each in fields(cast(Any, kind)) if each.name not in others)
    return kind(**{name: getattr(value, name) for name in names}, **others)


def _copy_all(kind: type[Described], values: Iterable[object]) -> tuple[Described, ...]:
    return tuple(_copy_fields(kind, each) for each in values)


def _count_changes(changes: Changes) -> CountFacts:
    return CountFacts(
        changed=len(changes.filter_by_fate(ChangeKind.EDITED)),
        renamed=sum(change.renamed for change in changes.servers),
        added=len(changes.filter_by_fate(ChangeKind.ADDED)),
        removed=len(changes.filter_by_fate(ChangeKind.REMOVED)),
        unchanged=changes.unchanged,
        images=len(changes.images),
        overrides=len(changes.filter_by_risk(Risk.OVERRIDE_ONLY)),
    )


def _describe_trips(verdict: Verdict) -> tuple[TripFacts, ...]:
    return tuple(
        _copy_fields(TripFacts, trip, acknowledgement=format_ack_line(verdict.digest, trip.guard))
        for trip in verdict.trips
    )


def _describe_images(changes: Changes) -> tuple[ImageFacts, ...]:
    return tuple(_copy_fields(ImageFacts, image, image=image.name, servers=image.in_use) for image in changes.images)


def _describe_credentials(changes: Changes) -> tuple[CredentialFacts, ...]:
    return tuple(
        CredentialFacts(
            server=bmc.server, old=phrases.format_bmc_access(bmc.old), new=phrases.format_bmc_access(bmc.new)
        )
        for bmc in changes.bmcs
    )


def _describe_document(change: DocumentChange) -> DocumentFacts:
    return _copy_fields(
        DocumentFacts,
        change,
        document=change.id.name if change.id.kind == "file" else str(change.id),
        fields=tuple(field.dotted_path for field in change.fields),
    )


def _describe_rule(rule: StreamRuleChange) -> StreamRuleFacts:
    return StreamRuleFacts(
        stream=rule.stream,
        field=rule.change.dotted_path,
        old=rule.change.old,
        new=rule.change.new,
        lowers=rule.lowers,
    )


def _describe_provenance(image: ImageProvenance) -> ProvenanceFacts:
    files = tuple(map(_describe_file_claim, image.files))
    return _copy_fields(ProvenanceFacts, image, files=files, **_describe_place(image.place))


def _describe_file_claim(claim: FileClaim) -> FileClaimFacts:
    claimed = claim.claimed
    return _copy_fields(
        FileClaimFacts,
        claim,
        claim=claimed.digest.value if claimed is not None else None,
        key=claimed.key if claimed is not None else None,
        url=claimed.url if claimed is not None else None,
        before=claim.before.digest.value if claim.before is not None else None,
        verified_by=claim.verified_by.key if claim.verified_by is not None else None,
        signer=claim.verified_by.name if claim.verified_by is not None else None,
        fault=claim.result.fault if claim.result is not None else None,
        text=phrases.format_file_claim(claim),
    )


def _describe_group(group: Group) -> GroupFacts:
    return _copy_fields(
        GroupFacts,
        group,
        causes=tuple(map(_describe_cause, group.causes)),
        effects=_copy_all(EffectFacts, group.effects),
        reinstalls=tuple(map(phrases.format_reinstall, group.reinstalls)),
        unknown=tuple(map(phrases.format_unknown_reason, group.unknown)),
        servers=group.names,
        example=group.names[0],
        outlier=_copy_fields(OutlierFacts, group.outlier) if group.outlier is not None else None,
        fields=_describe_fields(group.fields),
        rendered=_copy_all(RenderedFacts, group.rendered) if group.rendered is not None else None,
    )


def _describe_cause(cause: ChangeCause) -> CauseFacts:
    return _copy_fields(
        CauseFacts,
        cause,
        cause=str(cause),
        documents=cause.number,
        fields=tuple(field.dotted_path for field in cause.fields),
        **_describe_place(cause.place),
    )


def _describe_place(place: Location | None) -> dict[str, Any]:
    return dict(zip(("path", "line", "column"), place or (None, None, None), strict=True))


def _describe_fields(changes: Iterable[FieldChange]) -> tuple[FieldFacts, ...]:
    return tuple(_copy_fields(FieldFacts, each, field=each.dotted_path) for each in changes)


def _describe_servers(groups: Iterable[Group]) -> tuple[ServerFacts, ...]:
    servers = (
        _copy_fields(
            ServerFacts,
            change,
            server=change.name,
            before=change.old.server if change.old else None,
            risks=tuple(risk for risk in Risk if risk in change.risks),
            group=number,
            old=change.old.digest if change.old else None,
            new=change.new.digest if change.new else None,
        )
        for number, group in enumerate(groups)
        for change in group.servers
    )
    return tuple(sorted(servers, key=lambda server: server.server))


# Schemas


@cache
def build_schemas() -> Mapping[str, str]:
    """Return a mapping from file names to the JSON schemas for all kinds and for `gitboot diff -o json`."""
    schemas = {f"{kind.__name__}.json": build_schema(kind) for kind in KINDS}
    schemas["any.json"] = build_any_document_schema()
    definitions: dict[str, Any] = {}
    diff_schema = _add_titles("DiffFacts", build_structure_schema(DiffFacts, definitions))
    titled = {name: _add_titles(name, definition) for name, definition in definitions.items()}
    schemas["diff.schema.json"] = {"$schema": _DIALECT, **diff_schema, "$defs": titled}
    return {name: json.dumps(schemas[name], indent=2, sort_keys=True) + "\n" for name in sorted(schemas)}


def _add_titles(name: str, structure: dict[str, Any]) -> dict[str, Any]:
    """Add titles to a JSON schema and to its fields, except fields that are structures themselves."""
    properties = {
        field: each
        if any("$ref" in branch for branch in (each, *each.get("anyOf", ())))
        else {"title": field.title(), **each}
        for field, each in structure["properties"].items()
    }
    return {**structure, "title": name, "properties": properties}


def main(arguments: list[str]) -> int:
    """Write the schemas to ``DIR``. With ``--check DIR``, print the names of the schema files that differ instead."""
    directory = Path(arguments[-1])
    if "--check" in arguments:
        existing = {path.name: path.read_text() for path in directory.glob("*.json")}
        differ = [name for name, text in build_schemas().items() if existing.get(name) != text]
        extra = sorted(existing.keys() - build_schemas().keys())
        for name in differ + extra:
            hint = f"python -m gitboot.review.formats.json {directory}"
            sys.stdout.write(f"{directory / name} is out of date: run {hint}\n")
        return 1 if differ or extra else 0
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in build_schemas().items():
        (directory / name).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
