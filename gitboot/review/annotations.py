"""A review as problems at their places, for code hosts and CI: what holds it, what is dangerous, what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from gitboot.fleet.resources import Id
from gitboot.problems.codes import Code, Problem, Severity
from gitboot.review.document_changes import AccessChange
from gitboot.review.formats import phrases
from gitboot.review.groups import ChangeCause
from gitboot.review.guards import Guard
from gitboot.review.review import Review
from gitboot.review.risks import DANGEROUS, Risk
from gitboot.text import some

# The changes that a guard looks at; the others look at all of them.
_RISKS = {
    Guard.MAX_REINSTALLS: Risk.REINSTALL,
    Guard.MAX_ACCESS_CHANGES: Risk.ACCESS,
    Guard.MAX_INSTALLS: Risk.INSTALL,
    Guard.MAX_RESETS: Risk.RESET,
    Guard.MUTATED_IMAGES: Risk.MUTATED_IMAGE,
    Guard.MAX_DELETES: Risk.WITHDRAWN,
    Guard.MAX_DELETE_PERCENT: Risk.WITHDRAWN,
    Guard.ALLOW_EMPTY: Risk.WITHDRAWN,
}


def as_problems(review: Review) -> tuple[Problem, ...]:
    """Every limit that holds the commit, every dangerous group, every line not heeded, every problem of HEAD."""
    return (*_trips(review), *_dangers(review), *_unheeded(review), *review.head.problems)


def _trips(review: Review) -> Iterator[Problem]:
    if review.verdict is None:
        return
    lines = dict(review.acknowledging())
    for trip in review.verdict.trips:
        risk = _RISKS.get(trip.guard)
        causing = [cause for group in review.groups if risk in (None, *group.risks) for cause in group.causes]
        if trip.guard is Guard.MAX_UNKNOWN_CHANGES and review.unknown is not None:
            causing = list(review.unknown.causes)
        if trip.guard is Guard.MAX_ACCESS_CHANGES and review.shared is not None:
            causing = list(review.shared.causes)
        claimed = [claim.place for claim in review.claims] if trip.guard is Guard.MAX_REINSTALLS else []
        yield _placed(
            review,
            [*claimed, *_places(causing)],
            Code.HELD,
            f"{trip.guard}: {phrases.trip(trip)}" + (f", acknowledged by {trip.by}" if trip.acknowledged else ""),
            "" if trip.acknowledged else f"look at it, then acknowledge it: {lines.get(trip.guard, review.approval)}",
            Severity.WARNING if trip.acknowledged else Severity.ERROR,
        )


def _dangers(review: Review) -> Iterator[Problem]:
    for group in review.groups:
        risks = [risk for risk in group.risks if risk in DANGEROUS]
        if risks:
            message = f"{phrases.title(group)} ({some(group.names, 3)}): {', '.join(risks)}"
            yield _placed(review, _places(group.causes), Code.DANGEROUS, message, Code.DANGEROUS.hint, Severity.WARNING)

    if review.changes is not None:
        for change in review.changes.access:
            message = f"{Risk.ACCESS}: {phrases.who_may_fetch(change)}"
            yield _placed(
                review, _at_fleet(review, change), Code.DANGEROUS, message, Code.DANGEROUS.hint, Severity.WARNING
            )


def _unheeded(review: Review) -> Iterator[Problem]:
    for each in review.unheeded:
        message = f"{each.line!r} in {each.commit[:12]}: {each.why}"
        yield _placed(review, [], Code.UNHEEDED, message, Code.UNHEEDED.hint, Severity.WARNING)


Place = tuple[str, int, int]  # path, line, column


def _places(causes: Iterable[ChangeCause]) -> list[Place]:
    return [cause.place for cause in causes if cause.place is not None]


def _placed(
    review: Review, places: Iterable[Place], code: Code, message: str, hint: str, severity: Severity
) -> Problem:
    """Return a problem at the first of these places; without one at the Fleet."""
    path, line, column = next(iter(places), None) or _fleet(review)
    return Problem(path=path, line=line, column=column, code=code, message=message, hint=hint, severity=severity)


def _at_fleet(review: Review, change: AccessChange) -> Iterator[Place]:
    """Where the new Fleet has a setting of who may fetch, or what is left around it."""
    if (repository := review.head.repository) is not None:
        key = Id("Fleet", repository.fleet.metadata.name)
        path, place = repository.place(key, *change.field.split("."))
        yield path, place.line, place.column


def _fleet(review: Review) -> Place:
    assert review.head.repository is not None  # noqa: S101 - it was judged
    repository = review.head.repository
    path, place = repository.place(Id("Fleet", repository.fleet.metadata.name), "metadata", "name")
    return path, place.line, place.column
