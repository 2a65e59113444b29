"""A review as JSON: versioned, sorted, everything in it; `schemas/diff.schema.json` says what it has."""

from __future__ import annotations

import json
from collections.abc import Iterable

from gitboot.diff.effects import Effect
from gitboot.diff.extent import Area
from gitboot.jsonio import facts, format_instant
from gitboot.problems.codes import Problem
from gitboot.review.decision_changes import BmcChange, Changes, ServerChange
from gitboot.review.document_changes import AccessChange, DocumentChange, Fate, FieldChange, ImageChange
from gitboot.review.formats import phrases
from gitboot.review.formats.json import (
    AccessFacts,
    AreaFacts,
    CauseFacts,
    ClaimFacts,
    CountFacts,
    CredentialFacts,
    DiffFacts,
    DocumentFacts,
    EffectFacts,
    FieldFacts,
    GroupFacts,
    ImageFacts,
    OutlierFacts,
    ProblemFacts,
    RenderedFacts,
    ServerFacts,
    SideFacts,
    SignerFacts,
    StepFacts,
    TripFacts,
    UnheededFacts,
)
from gitboot.review.groups import ChangeCause, Group, Outlier
from gitboot.review.guards import Trip, Verdict, trailer
from gitboot.review.rendered_diffs import RenderedDiff
from gitboot.review.review import ImageClaim, Review
from gitboot.review.risks import Risk


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


def _trip(trip: Trip, verdict: Verdict) -> TripFacts:
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
