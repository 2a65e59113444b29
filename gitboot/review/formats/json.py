"""Review as JSON, and the schemas of documents and reviews."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from gitboot.jsonio import facts, format_instant
from gitboot.model.fields import Field, structure
from gitboot.model.json_schema import _DIALECT, KINDS, any_document, schema, structure_schema
from gitboot.problems import Problem
from gitboot.review.change_groups import ChangeCause, Group, Outlier
from gitboot.review.decision_changes import BmcChange, Changes, ServerChange
from gitboot.review.document_changes import AccessChange, DocumentChange, Fate, FieldChange, ImageChange
from gitboot.review.formats import phrases
from gitboot.review.guards import Area, Trip, trailer
from gitboot.review.guards import Verdict as GuardsVerdict
from gitboot.review.rendered_diffs import RenderedDiff
from gitboot.review.review import ImageClaim, Review
from gitboot.review.risks import Effect, Risk

Verdict = Literal["unchanged", "fine", "held", "invalid"]


@structure
class SideFacts:
    """One of the two revisions."""

    named: str = Field(description="As it was asked for: a branch, a commit, WORKTREE.")
    revision: str = Field(description="The commit, WORKTREE, or of what it is the merge.")


@structure
class CountFacts:
    """How much changes."""

    changed: int = Field(description="Servers in both commits whose decision is another.")
    renamed: int = Field(description="Of these, those with another name.")
    added: int
    removed: int
    unchanged: int
    images: int = Field(description="BootImages that were added, removed or edited.")
    overrides: int = Field(description="Servers of which nothing but the override changes.")


@structure
class AreaFacts:
    """A group of servers by a label, or the whole fleet."""

    area: str = Field(description="all, site=VALUE or role=VALUE.")
    size: int = Field(description="Servers of the old commit, and who moved here.")
    changed: int = Field(description="But for those that only offer less.")
    less: int = Field(description="Servers that offer nothing that they did not offer before.")
    removed: int = Field(description="Removed or retired.")
    added: int
    reinstalled: int = Field(description="Servers that may be reinstalled.")


@structure
class TripFacts:
    """A limit that is exceeded."""

    guard: str
    what: str
    number: int
    limit: int
    of: int | None
    percent: bool = Field(description="Whether the limit is a percentage.")
    area: str
    acknowledged: bool
    by: str = Field(description="Who has acknowledged it; empty: nobody.")
    acknowledgement: str = Field(description="The line for a commit's message.")


@structure
class SignerFacts:
    """A commit between BASE and HEAD, and whose key has signed it."""

    commit: str
    person: str
    key: str
    forge: bool = Field(description="Whether it is a forge's own key, which counts for merge commits alone.")


@structure
class StepFacts:
    """A commit between BASE and HEAD that somebody has to acknowledge."""

    commit: str
    acknowledgements: tuple[str, ...] = Field(description="The lines for a commit's message.")


@structure
class UnheededFacts:
    """A line that was to acknowledge something, and does not."""

    commit: str
    line: str
    why: str


@structure
class FieldFacts:
    """A field before and after."""

    field: str
    old: Any
    new: Any


@structure
class CauseFacts:
    """A document or file that servers change by."""

    cause: str = Field(description="KIND/NAME, or a file's path.")
    fate: Literal["added", "removed", "edited"]
    documents: int = Field(description="How many: more than 1 where each server has its own.")
    fields: tuple[str, ...]
    path: str | None
    line: int | None
    column: int | None


@structure
class EffectFacts:
    """When a change takes effect."""

    when: str
    maintenance: str | None
    start: str | None
    end: str | None


@structure
class RenderedFacts:
    """A unified diff of what a machine fetches."""

    boot: str
    file: str
    lines: tuple[str, ...]


@structure
class OutlierFacts:
    """In what a group renders otherwise than a larger one; each server's own values are replaced by their names."""

    than: str = Field(description="The first server of the larger group.")
    lines: tuple[str, ...] = Field(description="Lines that only this group's difference has.")
    missing: tuple[str, ...] = Field(description="Lines that only the larger group's difference has.")


@structure
class GroupFacts:
    """Servers that change alike, by the same causes, with rendered differences that are equal but for own values."""

    causes: tuple[CauseFacts, ...]
    risks: tuple[str, ...]
    effects: tuple[EffectFacts, ...]
    reinstalls: tuple[str, ...]
    unknown: tuple[str, ...] = Field(description="Why it becomes unknown whether they are provisioned.")
    servers: tuple[str, ...]
    example: str = Field(description="The server that fields and rendered are of.")
    own: tuple[str, ...] = Field(description="What of each server's own stands in the rendered lines that come and go.")
    outlier: OutlierFacts | None = Field(description="null: no larger group changes by the same causes.")
    fields: tuple[FieldFacts, ...]
    rendered: tuple[RenderedFacts, ...] | None = Field(description="null: there are too many lines.")


@structure
class ServerFacts:
    """One server that changes."""

    server: str
    before: str | None = Field(description="Its name in the old commit.")
    fate: Literal["added", "removed", "edited"]
    risks: tuple[str, ...]
    group: int = Field(description="Which of groups, from 0.")
    old: str | None = Field(description="The digest of its old decision.")
    new: str | None


@structure
class ImageFacts:
    """A BootImage that was added, removed or edited."""

    image: str
    fate: Literal["added", "removed", "edited"]
    servers: int = Field(description="How many can boot it, before or after.")


@structure
class DocumentFacts:
    """A document or file that differs, whether a decision follows from it or not."""

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
    """Whom a server's BMC credentials are for: their name, the address, and how that is trusted."""

    server: str
    old: str | None
    new: str | None


@structure
class ClaimFacts:
    """An image that claims for the first time to write no disk (writesDisk: false)."""

    image: str
    path: str
    line: int
    column: int
    author: str | None = Field(description="Author and commit of the line; null: not committed.")


@structure
class AccessFacts:
    """A setting of the Fleet that says who may fetch, before and after."""

    field: str
    old: tuple[str, ...] | bool | str
    new: tuple[str, ...] | bool | str
    widens: bool = Field(description="Whether more clients can fetch, or fetches count that did not.")


@structure
class DiffFacts:
    """What `gitboot diff -o json` prints."""

    api_version: Literal["gitboot.dev/v1alpha1"]
    base: SideFacts
    head: SideFacts
    verdict: Verdict
    digest: str | None = Field(description="What acknowledgements are bound to; null: HEAD is invalid.")
    compared_with_nothing: bool = Field(description="Whether BASE holds no fleet, so that all is new.")
    counts: CountFacts | None
    areas: tuple[AreaFacts, ...]
    limits: dict[str, int | bool] | None
    trips: tuple[TripFacts, ...]
    steps: tuple[StepFacts, ...]
    unheeded: tuple[UnheededFacts, ...]
    unknown_servers: tuple[RenderedFacts, ...] | None
    shared: tuple[FieldFacts, ...] | None
    access: tuple[AccessFacts, ...] = Field(description="Who may fetch, where that changes.")
    images: tuple[ImageFacts, ...]
    claims: tuple[ClaimFacts, ...] = Field(description="Images that newly claim to write no disk.")
    groups: tuple[GroupFacts, ...]
    servers: tuple[ServerFacts, ...]
    documents: tuple[DocumentFacts, ...] = Field(description="Those from which no decision follows.")
    bmcs: tuple[str, ...] = Field(description="Servers whose BMC is another, or is trusted otherwise.")
    credentials: tuple[CredentialFacts, ...] = Field(
        description="The same and new servers: where credentials go by it."
    )
    signers: tuple[SignerFacts, ...] = Field(
        description="Whose trusted keys have signed the commits, where --verify is given."
    )
    problems: tuple[ProblemFacts, ...]
    base_problems: tuple[ProblemFacts, ...]
    reproduce: str


def as_json(review: Review) -> str:
    return json.dumps(facts(diff_facts(review)), indent=2, sort_keys=True)


def diff_facts(review: Review) -> DiffFacts:
    """All of a review as JSON has it."""
    changes, verdict = review.changes, review.verdict
    return DiffFacts(
        api_version="gitboot.dev/v1alpha1",
        base=SideFacts(named=review.base.named, revision=review.base.revision),
        head=SideFacts(named=review.head.named, revision=review.head.revision),
        verdict=review.outcome.value,
        digest=verdict.digest if verdict else None,
        compared_with_nothing=changes is not None and changes.first,
        counts=_counts(changes) if changes else None,
        areas=tuple(map(_area, changes.areas)) if changes else (),
        limits=facts(verdict.limits) if verdict else None,
        trips=tuple(_trip(trip, verdict) for trip in verdict.trips) if verdict else (),
        steps=tuple(StepFacts(commit=each.commit, acknowledgements=each.lines) for each in review.steps),
        unheeded=tuple(UnheededFacts(commit=each.commit, line=each.line, why=each.why) for each in review.unheeded),
        unknown_servers=_rendered(review.unknown.rendered) if review.unknown else None,
        shared=tuple(map(_field, review.shared.fields)) if review.shared else None,
        access=tuple(map(_access, changes.access)) if changes else (),
        images=tuple(map(_image, changes.images)) if changes else (),
        claims=tuple(map(_claim, review.claims)),
        groups=tuple(map(_group, review.groups)),
        servers=_servers(review.groups),
        documents=tuple(map(_document, review.documents_only)),
        bmcs=changes.moved_bmcs if changes else (),
        credentials=tuple(map(_credentials, changes.bmcs)) if changes and not changes.first else (),
        signers=tuple(
            SignerFacts(commit=commit, person=signer.person, key=signer.key, forge=signer.is_forge)
            for commit, signer in review.signers
        ),
        problems=tuple(map(_problem, review.head.problems)),
        base_problems=tuple(map(_problem, review.base.problems)) if review.base.decisions is None else (),
        reproduce=review.command,
    )


def _access(change: AccessChange) -> AccessFacts:
    old, new = (tuple(each) if isinstance(each, list) else each for each in (change.old, change.new))
    return AccessFacts(field=change.field, old=old, new=new, widens=change.widens)


def _claim(claim: ImageClaim) -> ClaimFacts:
    path, line, column = claim.place
    return ClaimFacts(image=claim.image, path=path, line=line, column=column, author=claim.writer)


def _credentials(change: BmcChange) -> CredentialFacts:
    return CredentialFacts(server=change.server, old=phrases.access(change.old), new=phrases.access(change.new))


def _counts(changes: Changes) -> CountFacts:
    return CountFacts(
        changed=len(changes.having(Fate.EDITED)),
        renamed=sum(change.renamed for change in changes.servers),
        added=len(changes.having(Fate.ADDED)),
        removed=len(changes.having(Fate.REMOVED)),
        unchanged=changes.unchanged,
        images=len(changes.images),
        overrides=len(changes.of(Risk.OVERRIDE_ONLY)),
    )


def _area(area: Area) -> AreaFacts:
    return AreaFacts(
        area=str(area),
        size=area.size,
        changed=area.changed,
        less=area.less,
        removed=area.removed,
        added=area.added,
        reinstalled=area.reinstalled,
    )


def _trip(trip: Trip, verdict: GuardsVerdict) -> TripFacts:
    return TripFacts(
        guard=trip.guard,
        what=trip.what,
        number=trip.number,
        limit=trip.limit,
        of=trip.of,
        percent=trip.percent,
        area=trip.area,
        acknowledged=trip.acknowledged,
        by=trip.by,
        acknowledgement=trailer(verdict.digest, trip.guard),
    )


def _image(change: ImageChange) -> ImageFacts:
    return ImageFacts(image=change.name, fate=change.fate.value, servers=change.in_use)


def _group(group: Group) -> GroupFacts:
    return GroupFacts(
        causes=tuple(map(_cause, group.causes)),
        risks=tuple(group.risks),
        effects=tuple(map(_effect, group.effects)),
        reinstalls=tuple(map(phrases.reason, group.reinstalls)),
        unknown=tuple(map(phrases.unknown, group.unknown)),
        servers=group.names,
        example=group.names[0],
        own=group.own,
        outlier=_outlier(group.outlier) if group.outlier is not None else None,
        fields=tuple(map(_field, group.fields)),
        rendered=_rendered(group.rendered) if group.rendered is not None else None,
    )


def _outlier(found: Outlier) -> OutlierFacts:
    return OutlierFacts(than=found.than, lines=found.lines, missing=found.missing)


def _cause(cause: ChangeCause) -> CauseFacts:
    path, line, column = cause.place or (None, None, None)
    return CauseFacts(
        cause=str(cause),
        fate=cause.fate.value,
        documents=cause.number,
        fields=tuple(field.dotted for field in cause.fields),
        path=path,
        line=line,
        column=column,
    )


def _effect(effect: Effect) -> EffectFacts:
    return EffectFacts(
        when=effect.when,
        maintenance=effect.maintenance,
        start=format_instant(effect.start) if effect.start else None,
        end=format_instant(effect.end) if effect.end else None,
    )


def _field(field: FieldChange) -> FieldFacts:
    return FieldFacts(field=field.dotted, old=field.old, new=field.new)


def _rendered(diffs: Iterable[RenderedDiff]) -> tuple[RenderedFacts, ...]:
    return tuple(RenderedFacts(boot=each.boot, file=each.file, lines=tuple(each.lines)) for each in diffs)


def _servers(groups: Iterable[Group]) -> tuple[ServerFacts, ...]:
    found = (_server(change, number) for number, group in enumerate(groups) for change in group.servers)
    return tuple(sorted(found, key=lambda each: each.server))


def _server(change: ServerChange, group: int) -> ServerFacts:
    old, new = change.pair
    return ServerFacts(
        server=change.name,
        before=change.old.server if change.old else None,
        fate=change.fate.value,
        risks=tuple(risk for risk in Risk if risk in change.risks),
        group=group,
        old=old,
        new=new,
    )


def _document(change: DocumentChange) -> DocumentFacts:
    name = change.id.name if change.id.kind == "file" else str(change.id)
    return DocumentFacts(document=name, fate=change.fate.value, fields=tuple(field.dotted for field in change.fields))


def _problem(problem: Problem) -> ProblemFacts:
    return ProblemFacts(
        path=problem.path,
        line=problem.line,
        column=problem.column,
        code=problem.code,
        severity=problem.severity.value,
        message=problem.message,
        hint=problem.hint,
    )


@cache
def schemas() -> Mapping[str, str]:
    """Every schema as the text of its file, by file name: of what is written, and of what `gitboot diff` says."""
    made = {f"{kind.__name__}.json": schema(kind) for kind in KINDS}
    made["any.json"] = any_document()
    definitions: dict[str, Any] = {}
    found = _with_titles("DiffFacts", structure_schema(DiffFacts, definitions))
    titled = {name: _with_titles(name, each) for name, each in definitions.items()}
    made["diff.schema.json"] = {"$schema": _DIALECT, **found, "$defs": titled}
    return {name: json.dumps(made[name], indent=2, sort_keys=True) + "\n" for name in sorted(made)}


def _with_titles(name: str, structure: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a structure with titles: its name, and those of its fields that hold no structure."""
    properties = {
        field: each
        if any("$ref" in branch for branch in (each, *each.get("anyOf", ())))
        else {"title": field.title(), **each}
        for field, each in structure["properties"].items()
    }
    return {**structure, "title": name, "properties": properties}


def main(arguments: list[str]) -> int:
    """``DIR`` writes the schemas there; ``--check DIR`` says which differ."""
    directory = Path(arguments[-1])
    if "--check" in arguments:
        differ = [name for name, text in schemas().items() if _read(directory / name) != text]
        extra = sorted({path.name for path in directory.glob("*.json")} - schemas().keys())
        for name in differ + extra:
            hint = f"python -m gitboot.review.formats.json {directory}"
            sys.stdout.write(f"{directory / name} is not what the models say: {hint}\n")
        return 1 if differ or extra else 0
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in schemas().items():
        (directory / name).write_text(text)
    return 0


def _read(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
