"""A review as JSON: versioned, sorted, everything in it; `schemas/diff.schema.json` says what it has."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields

from pydantic.alias_generators import to_camel

from gitboot.diff.changes import Changes, ServerChange
from gitboot.diff.documents import DocumentChange, Fate
from gitboot.diff.effects import Effect
from gitboot.diff.fields import FieldChange
from gitboot.diff.guard import Limits, Trip, Verdict, trailer
from gitboot.diff.risks import Risk
from gitboot.model.review import (
    AreaFacts,
    CauseFacts,
    CountFacts,
    DiffFacts,
    DocumentFacts,
    EffectFacts,
    FieldFacts,
    GroupFacts,
    ImageFacts,
    ProblemFacts,
    RenderedFacts,
    ServerFacts,
    TripFacts,
)
from gitboot.model.scalars import format_instant
from gitboot.problems.problem import Problem
from gitboot.review import words
from gitboot.review.groups import Cause, Group
from gitboot.review.rendered import RenderedDiff
from gitboot.review.review import Review


def as_json(review: Review) -> str:
    return json.dumps(facts(review), indent=2, sort_keys=True, ensure_ascii=False)


def facts(review: Review) -> DiffFacts:
    """All of a review as JSON has it."""
    changes, verdict = review.changes, review.verdict
    return {
        "apiVersion": "gitboot.dev/v1alpha1",
        "base": {"named": review.base.named, "revision": review.base.revision},
        "head": {"named": review.head.named, "revision": review.head.revision},
        "verdict": review.outcome.value,
        "digest": verdict.digest if verdict else None,
        "comparedWithNothing": changes is not None and changes.first,
        "counts": _counts(changes) if changes else None,
        "areas": _areas(changes) if changes else [],
        "limits": _limits(verdict.limits) if verdict else None,
        "trips": [_trip(trip, verdict) for trip in verdict.trips] if verdict else [],
        "unheeded": [{"commit": each.commit, "line": each.line, "why": each.why} for each in review.unheeded],
        "unknownServers": _rendered(review.unknown.rendered) if review.unknown else None,
        "shared": list(map(_field, review.shared.fields)) if review.shared else None,
        "images": _images(changes) if changes else [],
        "groups": list(map(_group, review.groups)),
        "servers": _servers(review.groups),
        "documents": list(map(_document, review.documents_only)),
        "bmcs": list(changes.bmcs) if changes else [],
        "problems": list(map(_problem, review.head.problems)),
        "baseProblems": list(map(_problem, review.base.problems)) if review.base.decisions is None else [],
        "reproduce": review.command,
    }


def _counts(changes: Changes) -> CountFacts:
    return {
        "changed": len(changes.having(Fate.EDITED)),
        "renamed": sum(change.renamed for change in changes.servers),
        "added": len(changes.having(Fate.ADDED)),
        "removed": len(changes.having(Fate.REMOVED)),
        "unchanged": changes.unchanged,
        "images": len(changes.images),
        "overrides": len(changes.of(Risk.OVERRIDE_ONLY)),
    }


def _areas(changes: Changes) -> list[AreaFacts]:
    return [
        {
            "area": str(area),
            "size": area.size,
            "changed": area.changed,
            "removed": area.removed,
            "added": area.added,
            "reinstalled": area.reinstalled,
        }
        for area in changes.areas
    ]


def _limits(limits: Limits) -> dict[str, int | bool]:
    return {to_camel(each.name): getattr(limits, each.name) for each in fields(limits)}


def _trip(trip: Trip, verdict: Verdict) -> TripFacts:
    return {
        "guard": trip.guard,
        "what": trip.what,
        "number": trip.number,
        "limit": trip.limit,
        "of": trip.of,
        "percent": trip.percent,
        "area": trip.area,
        "acknowledged": trip.acknowledged,
        "acknowledgement": trailer(verdict.digest, trip.guard),
    }


def _images(changes: Changes) -> list[ImageFacts]:
    return [{"image": each.name, "fate": each.fate.value, "servers": each.in_use} for each in changes.images]


def _group(group: Group) -> GroupFacts:
    return {
        "causes": list(map(_cause, group.causes)),
        "risks": list(group.risks),
        "effects": list(map(_effect, group.effects)),
        "reinstalls": list(map(words.reason, group.reinstalls)),
        "servers": list(group.names),
        "example": group.names[0],
        "fields": list(map(_field, group.fields)),
        "rendered": _rendered(group.rendered) if group.rendered is not None else None,
    }


def _cause(cause: Cause) -> CauseFacts:
    path, line, column = cause.place or (None, None, None)
    return {
        "cause": str(cause),
        "fate": cause.fate.value,
        "documents": cause.number,
        "fields": [field.dotted for field in cause.fields],
        "path": path,
        "line": line,
        "column": column,
    }


def _effect(effect: Effect) -> EffectFacts:
    return {
        "when": effect.when,
        "maintenance": effect.maintenance,
        "start": format_instant(effect.start) if effect.start else None,
        "end": format_instant(effect.end) if effect.end else None,
    }


def _field(field: FieldChange) -> FieldFacts:
    return {"field": field.dotted, "old": field.old, "new": field.new}


def _rendered(diffs: Iterable[RenderedDiff]) -> list[RenderedFacts]:
    return [{"boot": each.boot, "file": each.file, "lines": list(each.lines)} for each in diffs]


def _servers(groups: Iterable[Group]) -> list[ServerFacts]:
    found = [_server(change, number) for number, group in enumerate(groups) for change in group.servers]
    return sorted(found, key=lambda each: each["server"])


def _server(change: ServerChange, group: int) -> ServerFacts:
    old, new = change.pair
    return {
        "server": change.name,
        "before": change.old.server if change.old else None,
        "fate": change.fate.value,
        "risks": [risk for risk in Risk if risk in change.risks],
        "group": group,
        "old": old,
        "new": new,
    }


def _document(change: DocumentChange) -> DocumentFacts:
    name = change.id.name if change.id.kind == "file" else str(change.id)
    return {"document": name, "fate": change.fate.value, "fields": [field.dotted for field in change.fields]}


def _problem(problem: Problem) -> ProblemFacts:
    return {
        "path": problem.path,
        "line": problem.line,
        "column": problem.column,
        "code": problem.code,
        "severity": problem.severity.value,
        "message": problem.message,
        "hint": problem.hint,
    }
