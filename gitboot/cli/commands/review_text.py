"""A review as text for a terminal: readable at 100 columns, and without colours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gitboot.cli.problems import as_text as problems_as_text
from gitboot.cli.terminal import columns, table, wrapped
from gitboot.review.formats import phrases
from gitboot.review.groups import ChangeCause, Group
from gitboot.review.rendered_diffs import RenderedDiff
from gitboot.review.review import Review, ReviewOutcome
from gitboot.terminal import style
from gitboot.text import count, more, printable, some

_GROUPS: Final = 50  # that are shown
_DIFF: Final = 400  # lines of one rendered diff that are shown
_LIMITS: Final = 20  # that are shown; more are of ever more sites
_COLOURS: Final = {
    ReviewOutcome.HELD: "red",
    ReviewOutcome.INVALID: "red",
    ReviewOutcome.FINE: "green",
    ReviewOutcome.UNCHANGED: "green",
}
_SIGNS: Final = {"+": "green", "-": "red", "@": "cyan"}


def as_text(review: Review, prefix: str) -> str:
    """The whole review, in the order of its weight; ``prefix`` leads from here to the fleet's files."""
    sections = (
        _verdict(review),
        _blast_radius(review),
        _guards(review),
        _dangers(review),
        _groups(review),
        _when(review),
        _documents(review),
        _problems(review, prefix),
        _next(review),
    )
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section)))


def _heading(text: str) -> str:
    return style(text.upper(), bold=True)


def _wrapped(text: str, indent: str = "  ") -> str:
    return wrapped(text, indent, then=f"{indent}  ")


def _verdict(review: Review) -> Iterator[str]:
    headline = review.headline
    yield style(headline[0].upper() + headline[1:], fg=_COLOURS[review.outcome], bold=True)
    sides = (f"{side.named}{f' ({side.short})' if side.short else ''}" for side in (review.base, review.head))
    yield printable(f" {phrases.ARROW} ".join(sides))
    if review.verdict is not None and review.outcome is not ReviewOutcome.UNCHANGED:
        yield f"digest {review.verdict.digest}"
    if review.changes is not None:
        yield phrases.counts(review.changes)
        yield from (_wrapped(f"{commit[:12]} is signed by {signer}", "") for commit, signer in review.signers)
        if review.base.decisions is None:
            yield "The base is no valid fleet, so everything is new here."


def _blast_radius(review: Review) -> Iterator[str]:
    if review.outcome in (ReviewOutcome.INVALID, ReviewOutcome.UNCHANGED) or not review.changes or not review.verdict:
        return
    limits = review.verdict.limits
    yield _heading("Blast radius")
    yield table(
        phrases.area_header(limits),
        [phrases.area_cells(area, limits) for area in phrases.touched(review.changes.areas)],
    )


def _guards(review: Review) -> Iterator[str]:
    note_on_identities = review.note_on_identities
    if review.verdict is None or not (review.verdict.trips or review.unheeded or note_on_identities):
        return
    yield _heading("Guards")
    for trip in review.verdict.trips[:_LIMITS]:
        state, colour = ("acknowledged", None) if trip.acknowledged else ("held", "red")
        yield _wrapped(f"{state}: {trip.guard}: {phrases.trip(trip)}").replace(state, style(state, fg=colour), 1)
        if trip.by:
            yield _wrapped(f"by {trip.by}", "    ")
    if left := more(len(review.verdict.trips) - _LIMITS, "limit"):
        yield f"  {left}"
    if (note := review.note_on_records) is not None:
        yield _wrapped(note)
    if note_on_identities is not None:
        yield _wrapped(note_on_identities)
    for each in review.unheeded:
        yield _wrapped(f"not heeded: {each.line!r} in {each.commit[:12]}: {each.why}")


def _dangers(review: Review) -> Iterator[str]:
    found = list(review.dangers())
    if not found:
        return
    yield _heading("Look at this first")
    known = {change.name for change in review.changes.servers} if review.changes else set()
    for danger in found:
        number = f"{count(len(danger.names), 'server')}: " if danger.names[0] in known else ""
        yield _wrapped(f"{danger.risk}: {number}{some(danger.names)}")
        yield from (_wrapped(reason, "    ") for reason in danger.reasons[:5])
        if left := more(len(danger.reasons) - 5, "reason"):
            yield f"    {left}"


def _groups(review: Review) -> Iterator[str]:
    blocks = [*_shared(review), *(_group(group) for group in review.groups)]
    if not blocks:
        return
    yield _heading("Cause and effect")
    for block in blocks[:_GROUPS]:
        yield from block
    if left := more(len(blocks) - _GROUPS, "group"):
        yield f"{left}: -o json has them all"


def _shared(review: Review) -> Iterator[list[str]]:
    for shared in (review.unknown, review.shared):
        if shared is not None:
            title = phrases.shared_title(shared.causes, shared.title)
            fields = (_wrapped(phrases.change(field)) for field in shared.fields)
            yield [style(title, bold=True), *map(_cause, shared.causes), *fields, *_rendered(shared.rendered)]


def _group(group: Group) -> list[str]:
    title, risks = _wrapped(phrases.title(group), ""), ", ".join(group.risks)
    on_one_line = len(title) + len(risks) + 2 <= columns()
    lines = [style(title, bold=True) + (f": {risks}" if on_one_line else f"\n  {risks}")]
    lines.append(_wrapped(f"servers: {some(group.names, 10)}"))
    lines += map(_cause, group.causes)
    lines += (_wrapped(f"takes effect {phrases.when(effect)}") for effect in group.effects)
    lines += (_wrapped(f"{what}: {why}") for what, why in phrases.reasons(group))
    lines += (_wrapped(phrases.change(field)) for field in group.fields)
    if (outlier := group.outlier) is not None:
        lines.append(_wrapped(f"rendered otherwise than {outlier.than}, which changes by the same causes:"))
        lines += (f"    {printable(line.expandtabs(4))}" for line in phrases.outlier(outlier))
    if group.rendered is None:
        lines.append("  not rendered: there are too many lines")
    elif group.rendered:
        lines.append(_wrapped(f"{phrases.rendered_for(group)}:"))
        lines += _rendered(group.rendered)
    return lines


def _cause(cause: ChangeCause) -> str:
    at = f"{cause.at} {':'.join(map(str, cause.place))}" if cause.place else ""
    return _wrapped(f"{cause}{at}: {phrases.cause(cause)}")


def _rendered(diffs: Iterable[RenderedDiff]) -> Iterator[str]:
    for each in diffs:
        yield f"    {each.boot}, {each.file}"
        lines = each.lines[2:]  # the names of the files stand above
        for line in lines[:_DIFF]:
            yield style(f"    {printable(line.expandtabs(4))}", fg=_SIGNS.get(line[:1]))
        if left := more(len(lines) - _DIFF, "line"):
            yield f"    {left}: -o json has them all"


def _when(review: Review) -> Iterator[str]:
    found = phrases.effects(review.groups)
    if found:
        yield _heading("When")
        yield from (_wrapped(f"{when}: {count(number, 'server')}") for when, number in found)


def _documents(review: Review) -> Iterator[str]:
    found = review.documents_only
    if found:
        yield _heading(f"Presentation only: {count(len(found), 'document')}, no decision follows")
        for each in found[:20]:
            fields = some([field.dotted for field in each.fields], 3)
            yield _wrapped(f"{each.id} {each.fate}{f': {fields}' if fields else ''}")
        if left := more(len(found) - 20, "document"):
            yield f"  {left}"
    if review.changes is not None and not review.changes.first:
        if bmcs := review.changes.moved_bmcs:
            yield _wrapped(f"BMC: overrides go to another BMC, or trust it otherwise: {some(bmcs)}", "")
        if moved := phrases.credentials(review.changes.bmcs):
            yield "Credentials go where they did not go before; an instance sends them only where it is told:"
            yield from (_wrapped(line) for line in moved[:_LIMITS])
            if left := more(len(moved) - _LIMITS, "BMC"):
                yield f"  {left}"


def _problems(review: Review, prefix: str) -> Iterator[str]:
    if review.head.problems:
        yield _heading("Problems")
        yield problems_as_text(review.head.problems, prefix)
    if review.base.problems and review.base.decisions is None:
        yield _heading("Problems of the base")
        yield problems_as_text(review.base.problems, prefix)


def _next(review: Review) -> Iterator[str]:
    yield _heading("Next steps")
    yield f"  see it again: {review.command}"
    acknowledging = list(review.acknowledging())
    if acknowledging:
        yield "  to accept it anyway, put into the last commit's message:"
        yield from (f"    {line}" for _, line in acknowledging)
        if review.steps:
            yield "  or each commit by itself, in any commit's message behind it:"
            yield from (f"    {line}  # {step.commit[:12]}" for step in review.steps for line in step.lines)
        yield "  or, where the instance runs:"
        yield f"    {review.approval}"
