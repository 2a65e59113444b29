"""Markdown comments and annotations for pull requests."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from html import escape
from itertools import accumulate, groupby, takewhile
from typing import Final

from msgspec import structs

from gitboot.fleet.documents import Id
from gitboot.problems import Code, Problem, Severity
from gitboot.review.change_groups import ChangeCause, Group
from gitboot.review.document_changes import Location, locate_field
from gitboot.review.formats import phrases
from gitboot.review.guards import Guard
from gitboot.review.rendered_diffs import RenderedDiff
from gitboot.review.review import CommonChange, Review
from gitboot.review.risks import DANGEROUS, Risk
from gitboot.text import format_count, format_names, format_omitted, printable

LIMIT: Final = 60_000  # the maximum size of a comment in bytes; GitHub accepts 65,536 characters
_MAX_LIST_BYTES: Final = 6_000  # the maximum size of each list that could have any length
_MAX_DIFFS_BYTES: Final = 12_000  # the maximum size of all rendered diffs of a group
_MAX_DIFF_LINES: Final = 60  # the maximum number of lines in each rendered diff
_MAX_LINE_CHARS: Final = 300  # the maximum length of each line
# the maximum length of a line of a diff that replaces another line, or that another line replaces
_MAX_CHANGE_CHARS: Final = 600
_SHORT_CHANGE_CHARS: Final = 150  # the same if the rendered diffs of a group would be too large
# in lines with more words, all words between the first and the last changed word count as changed
_MAX_COMPARED_WORDS: Final = 200
_WORD_CONTEXT_CHARS: Final = 20  # the characters to show before the first difference in a word


def format_marker(folder: str) -> str:
    """Return the first line of a comment.

    gitboot uses this line later to find and replace the comment for this fleet.
    """
    plain = re.sub("-{2,}|[<>]", "_", printable(folder))  # these characters would end the HTML comment
    return f"<!-- gitboot diff {plain} -->" if folder else "<!-- gitboot diff -->"


def format_commit_marker(commit: str) -> str:
    """Return the second line of a comment, which contains the reviewed commit."""
    return f"<!-- gitboot commit {commit} -->"


def render_failed_review(folder: str, commit: str, log: str) -> str:
    """Return the comment for a commit whose review failed. ``log`` is the URL of the CI job's log."""
    return "\n".join(
        (
            format_marker(folder),
            format_commit_marker(commit),
            f"## gitboot diff{f' of {format_code(folder)}' if folder else ''}: the review failed",
            "",
            f"gitboot could not review {format_code(commit[:12])}, so the effect of this change is unknown. Log: {log}",
            "",
        )
    )


def as_markdown(review: Review, folder: str = "", commit: str | None = None) -> str:
    """Format a review as a comment, with the most important parts first.

    If the comment would be too long, some groups are omitted. ``folder`` is the folder of the fleet. ``commit`` is the
    reviewed commit, which `gitboot comment` needs, or None for a work tree.
    """
    markers = (format_marker(folder), format_commit_marker(commit)) if commit is not None else (format_marker(folder),)
    head = (*markers, *_render_verdict(review, folder))
    summary = (*_render_areas(review), *_render_guards(review), *_render_dangers(review), *_render_provenance(review))
    begin = "\n".join((*head, *summary))
    end = "\n".join(
        (*_render_effects(review), *_render_documents(review), *_render_problems(review), *_render_next_steps(review))
    )
    room = LIMIT - len(begin.encode()) - len(end.encode()) - len(review.command.encode()) - 400
    lines, omitted = _render_groups(review, room)
    if omitted:
        number = format_count(omitted, "group")
        notice = f"\n**{number} of changes not shown.** To see all, run {format_code(review.command)}"
        begin = "\n".join((*head, notice, *summary))
    return "\n".join(part for part in (begin, "\n".join(lines), end) if part) + "\n"


def _render_verdict(review: Review, folder: str) -> Iterator[str]:
    yield f"## gitboot diff{f' of {format_code(folder)}' if folder else ''}: {review.headline}"
    yield ""
    sides = (
        format_code(side.named) + (f" ({format_code(side.short)})" if side.short else "")
        for side in (review.base, review.head)
    )
    yield " → ".join(sides)
    if (digest := review.shown_digest) is not None:
        yield ""
        yield f"digest {format_code(digest)}"
    if review.changes is not None:
        yield ""
        yield phrases.format_counts(review.changes)
    for commit, signer in review.signers:
        yield ""
        yield f"{format_code(commit[:12])} is signed by {format_code(str(signer))}"
    if review.base.decisions is None and review.changes is not None:
        yield ""
        yield "**The base is not a valid fleet, so this review shows everything as new.**"


def _render_areas(review: Review) -> Iterator[str]:
    if not (table := review.areas):
        return
    header, *areas = table
    lines = []
    for name, *cells in areas:
        shown = (format_code(name, in_table=True), *(f"**{cell}**" if "!" in cell else cell for cell in cells))
        lines.append(f"| {' | '.join(shown)} |")
    yield "\n### Blast radius\n"
    yield f"| {' | '.join(each.capitalize() for each in header)} |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    yield from _limit_lines(lines, "server group")
    if (note := review.note_on_harmless_changes) is not None:
        yield f"\n{note}"


def _render_guards(review: Review) -> Iterator[str]:
    note_on_identities = review.note_on_identities
    if review.verdict is None or not (review.verdict.trips or review.ignored_lines or note_on_identities):
        return
    yield "\n### Guards\n"
    lines = []
    for trip in review.verdict.trips:
        # The sentence may contain the value of a label. A forge must not interpret this value as Markdown.
        excess = phrases.format_excess(trip)
        shown = excess if _is_plain(excess) else format_code(excess)
        by = f"; by {format_code(trip.by)}" if trip.by else ""
        lines.append(f"- {'acknowledged' if trip.acknowledged else '**held**'}: `{trip.guard}`: {shown}{by}")
    yield from _limit_lines(lines, "limit")
    if (note := review.note_on_records) is not None:
        yield f"- {note}"
    if note_on_identities is not None:
        yield f"- {note_on_identities}"
    ignored = [
        f"- ignored: {format_code(line.line)} in {format_code(line.commit[:12])}: {format_code(line.why)}"
        for line in review.ignored_lines
    ]
    yield from _limit_lines(ignored, "acknowledgement")


_PLAIN: Final = re.compile("[A-Za-z0-9 ,.:;/()%=-]+")
_LINKS: Final = ("www.", "://")  # GFM 6.9


def _is_plain(text: str) -> bool:
    """Return whether the text contains no characters that Markdown, HTML or a forge would interpret."""
    return _PLAIN.fullmatch(text) is not None and not any(begin in text for begin in _LINKS)


def _render_dangers(review: Review) -> Iterator[str]:
    dangers = list(review.find_dangers())
    if dangers:
        yield "\n### Look at this first\n"
    for danger in dangers:
        yield f"- **{danger.risk}**: {danger.number}{format_names(list(map(format_code, danger.names)))}"
        yield from (f"  - {format_code(reason)}" for reason in danger.reasons[:5])
        if rest := format_omitted(len(danger.reasons) - 5, "reason"):
            yield f"  - {rest}"


def _render_provenance(review: Review) -> Iterator[str]:
    lines = []
    for image in review.provenance.images:
        at = ":".join(map(str, image.place))
        lines.append(f"- {format_code(f'BootImage/{image.image}')} {image.fate} at {format_code(at)}")
        lines += (f"  - {format_code(files)}: {format_code(text)}" for files, text in phrases.list_image_claims(image))
    for document, place, text in phrases.list_provenance_changes(review.provenance):
        at = f" at {format_code(':'.join(map(str, place)))}" if place is not None else ""
        lines.append(f"- {format_code(document)}{at}: {format_code(text)}")
    if not lines:
        return
    yield "\n### Provenance\n"
    yield from _limit_lines(lines, "line")
    if any(map(phrases.has_unverified_claims, review.provenance.images)):
        yield f"\n{phrases.CLAIMS_NOTE}"


# Groups


def _render_groups(review: Review, remaining_bytes: int) -> tuple[list[str], int]:
    """Return the lines that show the groups, and the number of groups that these lines do not show completely."""
    blocks = [_render_common_change(change) for change in (review.unknown, review.shared) if change is not None]
    blocks += map(_render_group, review.groups)
    if not blocks:
        return [], 0
    heading = "\n### Cause and effect\n"
    shown = [heading]
    shortened = 0
    remaining_bytes -= len(heading.encode()) + 200
    for number, (full, short) in enumerate(blocks):
        block = next((each for each in (full, short) if len(each.encode()) < remaining_bytes), None)
        if block is None:
            omitted = len(blocks) - number
            shown.append(f"\n{format_omitted(omitted, 'group')}: see the command below")
            return shown, omitted + shortened
        shortened += block is not full
        remaining_bytes -= len(block.encode()) + 1
        shown.append(block)
    return shown, shortened


def _render_common_change(change: CommonChange) -> tuple[str, str]:
    lines = [
        *map(_render_cause, change.causes),
        *(f"- {format_code(phrases.format_change(field))}" for field in change.fields),
    ]
    text = "\n".join([*lines, "", _render_diffs(change.rendered)])
    return _render_details(phrases.format_shared_title(change.causes, change.title), text)


def _render_group(group: Group) -> tuple[str, str]:
    lines = [f"- servers: {format_names(list(map(format_code, group.names)), 20)}"]
    lines += map(_render_cause, group.causes)
    lines += (f"- takes effect {format_code(phrases.format_effect(effect))}" for effect in group.effects)
    lines += (f"- {what}: {format_code(why)}" for what, why in phrases.list_reasons(group))
    lines += (f"- {format_code(phrases.format_change(field))}" for field in group.fields[:20])
    if (outlier := group.outlier) is not None:
        lines.append(
            f"- **the diff differs from the diff for {format_code(outlier.than)}**, although both have the same causes:"
        )
        lines += (f"  - {format_code(line)}" for line in phrases.format_outlier(outlier))
    if group.rendered is None:
        lines.append("- no diff: too many lines")
    elif group.rendered:
        lines.append(f"\n{format_code(phrases.describe_diff(group))}:\n\n{_render_diffs(group.rendered)}")
    risks = ", ".join(group.risks)
    return _render_details(f"{phrases.format_title(group)}: {risks}", "\n".join(lines))


def _render_cause(cause: ChangeCause) -> str:
    at = f"{cause.place_prefix} {format_code(':'.join(map(str, cause.place)))}" if cause.place else ""
    return f"- {format_code(str(cause))}{at}: {format_code(phrases.format_cause(cause))}"


def _render_details(summary: str, text: str) -> tuple[str, str]:
    """Return a folded block, and the line that replaces the block if there is no room."""
    # Markdown does not apply inside HTML, so use <code>, in which forges ignore mentions and references (#1, !1).
    shown = escape(printable(summary))
    shown = shown if _is_plain(summary) else f"<code>{shown}</code>"
    return f"<details><summary>{shown}</summary>\n\n{text}\n\n</details>", f"- {format_code(summary)}"


def _render_diffs(diffs: Iterable[RenderedDiff]) -> str:
    parts = []
    remaining_bytes = _MAX_DIFFS_BYTES
    boots = [
        (boot, [line for diff in boot_diffs for line in diff.lines])
        for boot, boot_diffs in groupby(diffs, key=lambda diff: diff.boot)
    ]
    for number, (boot, lines) in enumerate(boots):
        printable_lines = [printable(line.expandtabs(4)) for line in lines[:_MAX_DIFF_LINES]]
        shown = _fit_diff(printable_lines, remaining_bytes // (len(boots) - number))
        remaining_bytes -= sum(map(_measure_line, shown))
        if rest := format_omitted(len(lines) - len(shown), "line"):
            shown.append(f"… {rest}")
        fence = _make_fence("\n".join(shown), 3)
        parts.append("\n".join([format_code(boot), f"{fence}diff", *shown, fence]))
    return "\n\n".join(parts)


# Short diffs


def _fit_diff(lines: Sequence[str], max_bytes: int) -> list[str]:
    """Shorten the lines of a diff so that they fit in ``max_bytes`` bytes. If necessary, omit lines at the end."""
    fitting: list[str] = []
    for max_length in (_MAX_CHANGE_CHARS, _SHORT_CHANGE_CHARS):
        shown = list(_shorten_diff(lines, max_length))
        sizes = accumulate(map(_measure_line, shown))
        fitting = [line for line, size in zip(shown, sizes, strict=True) if size <= max_bytes]
        if len(fitting) == len(lines):
            break
    return fitting


def _measure_line(line: str) -> int:
    """Return the size of a line in bytes, including its line ending."""
    return len(line.encode()) + 1


def _shorten_diff(lines: Sequence[str], max_length: int) -> Iterator[str]:
    """Yield the lines of a diff. A changed line that is too long is reduced to the words that its counterpart lacks.

    In a shortened line, "…" stands for text that the counterpart also contains, unless a number of words or characters
    follows the "…".
    """
    for is_change, run in groupby(lines, key=lambda line: line[:1] in ("-", "+")):
        block = list(run)
        for line in block:
            others = [other[1:] for other in block if other[:1] != line[:1]] if is_change else []
            if not others:
                limit = min(max_length, _MAX_LINE_CHARS)
                yield _cut_changed(line, limit) if is_change else _cut_text(line, limit)
            elif len(line) <= max_length:
                yield line
            else:
                counterpart = max(others, key=lambda other: _count_common_prefix(other[:_MAX_CHANGE_CHARS], line[1:]))
                yield line[:1] + _show_changed_words(line[1:], counterpart, max_length)


_WORD: Final = re.compile(r"\s*\S+|\s+$")


def _show_changed_words(text: str, counterpart: str, remaining_chars: int) -> str:
    """Return the first word of a line, and the words that differ from the line's counterpart.

    If there is room left, add as many other words as fit. If some differing words do not fit, add the number of these
    words. "…" stands for the omitted words.
    """
    words = _WORD.findall(text)
    counterparts = _find_changed_words(words, _WORD.findall(counterpart))
    changed = [index for index, other in counterparts.items() if words[index] != other]
    neighbors = [neighbor for index in counterparts for neighbor in (index - 1, index + 1)]
    shown: dict[int, str] = {}
    longest_word = remaining_chars // 3
    for indexes in ((0, *changed), (*counterparts, *neighbors, *range(len(words)))):
        for index in indexes:
            if 0 <= index < len(words) and index not in shown:
                word = _cut_word(words[index], counterparts.get(index, words[index]), longest_word)
                if len(word) <= remaining_chars:
                    shown[index] = word
                    remaining_chars -= len(word)
        if any(index not in shown for index in changed):
            break
    parts = [shown.get(index, " …") for index in range(len(words))]
    cut = "".join(part for part, before in zip(parts, ("", *parts), strict=False) if part != " …" or part != before)
    omitted = sum(index not in shown for index in changed)
    return f"{cut} ({format_count(omitted, 'more changed word')})" if omitted else cut


def _find_changed_words(words: Sequence[str], others: Sequence[str]) -> Mapping[int, str]:
    """Map the indexes of words that differ, and of words next to a missing word, to the counterparts of these words.

    If a word does not differ but is next to a missing word, its counterpart is the word itself.
    """
    first = _count_common_prefix(words, others)
    last = _count_common_prefix(words[first:][::-1], others[first:][::-1])
    middle, other_middle = words[first : len(words) - last], others[first : len(others) - last]
    blocks: Sequence[tuple[str, int, int, int, int]] = [("replace", 0, len(middle), 0, len(other_middle))]
    if max(len(middle), len(other_middle)) <= _MAX_COMPARED_WORDS:
        blocks = SequenceMatcher(None, middle, other_middle, autojunk=False).get_opcodes()
    counterparts: dict[int, str] = {}
    for operation, start, end, other_start, other_end in blocks:
        if operation == "equal":
            continue
        counterparts |= {first + index: "" for index in range(start, end)}
        if start == end:
            neighbors = (index for index in (first + start - 1, first + start) if 0 <= index < len(words))
            counterparts |= {index: words[index] for index in neighbors if index not in counterparts}
        if end - start == other_end - other_start:
            counterparts |= zip(range(first + start, first + end), other_middle[other_start:other_end], strict=True)
    return counterparts


def _cut_word(word: str, counterpart: str, max_length: int) -> str:
    if len(word) <= max_length:
        return word
    if word == counterpart:
        return _cut_text(word, max_length)
    equal = _count_common_prefix(word, counterpart)
    start = equal - _WORD_CONTEXT_CHARS
    begin = f"{word[:_WORD_CONTEXT_CHARS]}…" if start > _WORD_CONTEXT_CHARS else word[: max(start, 0)]
    end = word[max(start, 0) :]
    is_rest_equal = counterpart[equal:].endswith(end[max_length - 1 :])
    return begin + (_cut_text(end, max_length) if is_rest_equal else _cut_changed(end, max_length))


def _count_common_prefix(first: Sequence[object], second: Sequence[object]) -> int:
    """Return how many items at the start of two sequences are equal."""
    equal = (left == right for left, right in zip(first, second, strict=False))
    return sum(1 for _ in takewhile(bool, equal))


def _cut_text(text: str, limit: int = _MAX_LINE_CHARS) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _cut_changed(text: str, limit: int) -> str:
    omitted = len(text) - limit + 1
    return text if len(text) <= limit else f"{_cut_text(text, limit)} ({format_count(omitted, 'more character')})"


# After the groups


def _render_effects(review: Review) -> Iterator[str]:
    if numbers := phrases.count_effects(review.groups):
        yield "\n### When\n"
        lines = [f"- {format_code(when)}: {format_count(number, 'server')}" for when, number in numbers]
        yield from _limit_lines(lines, "time")


def _render_documents(review: Review) -> Iterator[str]:
    if documents := review.document_only_changes:
        yield f"\n### Presentation only: {format_count(len(documents), 'document')}, no decision changes\n"
        lines = []
        for document in documents:
            names = format_names([field.dotted_path for field in document.fields], 3)
            fields = f": {format_code(names)}" if document.fields else ""
            lines.append(f"- {format_code(str(document.id))} {document.fate}{fields}")
        yield from _limit_lines(lines, "document")
    if review.changes is not None and not review.changes.first:
        if bmcs := review.changes.moved_bmcs:
            shown = format_names(list(map(format_code, bmcs)), 10)
            number = format_count(len(bmcs), "server")
            yield f"\n**BMC**: the address or the trust of the BMC changes for {number}: {shown}"
        if moved := phrases.list_credentials(review.changes.bmcs):
            yield (
                "\n**Credentials** go to new destinations. "
                "An instance sends them only to BMCs that its operator allows:\n"
            )
            yield from _limit_lines([f"- {format_code(line)}" for line in moved], "BMC")


def _render_problems(review: Review) -> Iterator[str]:
    for heading, problems in review.problems():
        errors = sum(problem.severity is Severity.ERROR for problem in problems)
        numbers = f"{format_count(errors, 'error')}, {format_count(len(problems) - errors, 'warning')}"
        yield f"\n### {heading}: {numbers}\n"
        lines = []
        for problem in problems:
            place = format_code(f"{problem.path}:{problem.line}:{problem.column}")
            hint = f"<br>{format_code(problem.hint)}" if problem.hint else ""
            lines.append(f"- {place} {problem.severity} {problem.code}: {format_code(problem.message)}{hint}")
        yield from _limit_lines(lines, "problem", 2 * _MAX_LIST_BYTES)


def _render_next_steps(review: Review) -> Iterator[str]:
    yield f"\n### Next steps\n\nTo see this review again, run {format_code(review.command)}"
    if review.approval is None:
        return
    if lines := review.ack_lines:
        yield "\nTo accept it after you have checked it, add to the message of the last commit:\n"
        yield format_code_block(list(lines))
        if review.steps:
            yield "\nOr acknowledge each commit in a later message:\n"
            for step in review.steps:
                yield f"{format_code(step.commit[:12])}\n"
                yield format_code_block(list(step.lines))
    yield f"\n{review.approval_note}:\n"
    yield format_code_block([review.approval])


def format_code_block(lines: list[str]) -> str:
    """Return lines as a Markdown code block. Text in these lines cannot end the block early."""
    fence = _make_fence("\n".join(lines), 3)
    return "\n".join([f"{fence}text", *lines, fence])


# Escaping


def format_code(text: str, *, in_table: bool = False) -> str:
    """Return a text as a Markdown code span. Backticks in the text cannot end the span early."""
    text = _cut_text(printable(text))
    fence = _make_fence(text, 1)
    padding = " " if "`" in text else ""
    # a backslash before "\|" would escape the backslash, and the "|" would then end the cell: GFM 4.10, 6.1
    if in_table:
        text = re.sub(r"(?<!\\)\|", r"\\|", text.replace("\\|", r"\\u007c"))
    return f"{fence}{padding}{text or ' '}{padding}{fence}"


def _make_fence(text: str, min_length: int) -> str:
    runs = re.findall("`+", text)
    return "`" * max(min_length, *(len(run) + 1 for run in runs), min_length)


def _limit_lines(lines: list[str], noun: str, remaining_bytes: int = _MAX_LIST_BYTES) -> Iterator[str]:
    for number, line in enumerate(lines):
        remaining_bytes -= len(line.encode()) + 1
        if remaining_bytes < 0:
            yield f"\n{format_omitted(len(lines) - number, noun)}"
            return
        yield line


# Annotations


# The risk whose changes each guard counts. All other guards count all changes.
_RISK_BY_GUARD = {
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
    """Return the problems in HEAD, and one more problem for each exceeded limit, dangerous group and ignored line."""
    ignored = (
        _make_annotation(review, [], Code.UNHEEDED, f"{line.line!r} in {line.commit[:12]}: {line.why}")
        for line in review.ignored_lines
    )
    claims = (
        _make_annotation(
            review,
            [image.place],
            Code.UNVERIFIED_PROVENANCE,
            f"BootImage/{image.image}: " + "; ".join(map(": ".join, phrases.list_image_claims(image))),
        )
        for image in review.provenance.images
        if any(file.claimed is not None and file.verified_by is None for file in image.files)
    )
    return (*_list_limit_problems(review), *_list_danger_problems(review), *claims, *ignored, *review.head.problems)


def _list_limit_problems(review: Review) -> Iterator[Problem]:
    if review.verdict is None:
        return
    line = next(iter(review.ack_lines), "")
    ack_guards = review.ack_guards
    first: Guard | None = None  # the guard of the first limit that is not acknowledged
    shared = {Guard.MAX_UNKNOWN_CHANGES: review.unknown, Guard.MAX_ACCESS_CHANGES: review.shared}
    for trip in review.verdict.trips:
        common_change, risk = shared.get(trip.guard), _RISK_BY_GUARD.get(trip.guard)
        if common_change is not None:
            causes = list(common_change.causes)
        else:
            causes = [cause for group in review.groups if risk in (None, *group.risks) for cause in group.causes]
        places = [claim.place for claim in review.claims] if trip.guard is Guard.MAX_REINSTALLS else []
        places += _list_places(causes)
        message = f"{trip.guard}: {phrases.format_excess(trip)}"
        if trip.acknowledged:
            yield _make_annotation(review, places, Code.HELD, f"{message}, acknowledged by {trip.by}", "")
        else:
            hint = f"check the change, then acknowledge it: {line if trip.guard in ack_guards else review.approval}"
            # show a line only once, because each line has a long digest
            if first is not None and (trip.guard in ack_guards) == (first in ack_guards):
                hint = f"check the change. The line for {first} also acknowledges this limit"
            first = first or trip.guard
            yield structs.replace(_make_annotation(review, places, Code.HELD, message, hint), severity=Severity.ERROR)


def _list_danger_problems(review: Review) -> Iterator[Problem]:
    for group in review.groups:
        if risks := [risk for risk in group.risks if risk in DANGEROUS]:
            message = f"{phrases.format_title(group)} ({format_names(group.names, 3)}): {', '.join(risks)}"
            yield _make_annotation(review, _list_places(group.causes), Code.DANGEROUS, message)
    for change in review.changes.access if review.changes is not None else ():
        message = f"{Risk.ACCESS}: {phrases.format_access_change(change)}"
        yield _make_annotation(review, [_locate_in_fleet(review, *change.field.split("."))], Code.DANGEROUS, message)
    for risk in phrases.list_provenance_risks(review.provenance):
        places = [risk.place] if risk.place is not None else []
        yield _make_annotation(review, places, Code.DANGEROUS, f"{Risk.PROVENANCE}: {risk.reason}")


def _list_places(causes: Iterable[ChangeCause]) -> list[Location]:
    return [cause.place for cause in causes if cause.place is not None]


def _make_annotation(
    review: Review, places: Iterable[Location], code: Code, message: str, hint: str | None = None
) -> Problem:
    """Return a warning at the first of these locations, or at the Fleet document if there are no locations.

    Without ``hint``, the warning contains the default hint for its code.
    """
    path, line, column = next(iter(places), None) or _locate_in_fleet(review, "metadata", "name")
    return Problem(
        path=path,
        line=line,
        column=column,
        code=code,
        message=message,
        hint=code.hint if hint is None else hint,
        severity=Severity.WARNING,
    )


def _locate_in_fleet(review: Review, *field: str) -> Location:
    assert review.head.repository is not None  # noqa: S101 - a judged commit is valid
    repository = review.head.repository
    return locate_field(repository, Id("Fleet", repository.fleet.metadata.name), *field)
