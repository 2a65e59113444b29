"""`gitboot diff` and `gitboot comment`: show what commits change, and post the review to a pull request."""

from __future__ import annotations

import dataclasses
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from msgspec import structs

from gitboot.cli.commands.validate import FORMATS, format_problems
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    TRUST_PARAMETERS,
    OutputOption,
    at_option,
    build_limits,
    current_second,
    format_path_prefix,
    limit_options,
    output_option,
    parse_trust_settings,
    path_argument,
    token_over_http_option,
    trust_options,
)
from gitboot.cli.terminal import format_table, terminal_width, wrap_text
from gitboot.errors import ForgeRefused, UsageError
from gitboot.files import convert_os_errors
from gitboot.fleet.revision import Verify
from gitboot.jsonio import format_instant
from gitboot.review.acknowledgements import AckRules
from gitboot.review.change_groups import ChangeCause, Group
from gitboot.review.formats import phrases
from gitboot.review.formats.markdown import (
    as_markdown,
    as_problems,
    format_commit_marker,
    format_marker,
    render_failed_review,
)
from gitboot.review.images import SignatureResults, parse_signature_results
from gitboot.review.rendered_diffs import RenderedDiff
from gitboot.review.review import Review, ReviewOutcome, review_commits
from gitboot.standard_streams import style
from gitboot.text import format_count, format_names, format_omitted, printable, quote_words

if TYPE_CHECKING:
    from gitboot.http_client import HttpClient, WebAnswer


@click.command(
    cls=Command,
    example="gitboot diff origin/main...HEAD -o markdown=review.md",
    exit_codes={
        Exit.FINE: "the fleet is valid, and the guards allow the change",
        Exit.CHANGES: "with --detailed-exitcode: the guards allow the change, and at least one boot changes",
        Exit.INVALID: "HEAD has errors",
        Exit.HELD: "a guard holds the change, and no Gitboot-Ack line acknowledges it",
        Exit.SOURCE: "gitboot could not read the repository or the instance",
    },
)
@click.argument("range", metavar="BASE..HEAD", default="")
@path_argument
@click.option("--merge", is_flag=True, help="Merge HEAD into BASE, and compare the result with BASE.")
@click.option(
    "--each-merge",
    is_flag=True,
    help="Check each commit on the first-parent path to HEAD separately, as an instance that has accepted BASE does.",
)
@click.option(
    "--accepted",
    metavar="URL|DIR",
    help="Compare with the commit that an instance has accepted, and check each later commit separately. URL is an "
    "endpoint of the instance, and DIR is its output tree. You can then omit BASE, except with --merge.",
)
@click.option(
    "--detailed-exitcode", is_flag=True, help="Exit with 2 if the guards accept the commit and a boot changes."
)
@click.option(
    "--verified",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The output of `gitboot artifacts signatures -o json=FILE`. The review then shows which claims about "
    "signatures are verified. Write FILE in the same job. Never use a FILE from the branch.",
)
@at_option
@trust_options
@limit_options
@output_option("text", "json", "markdown", "github", "sarif", "junit")
@evaluator_command
def command(
    range: str,
    path: Path,
    merge: bool,
    each_merge: bool,
    accepted: str | None,
    detailed_exitcode: bool,
    verified: Path | None,
    at: datetime | None,
    outputs: tuple[OutputOption, ...],
    **review_options: Any,
) -> None:
    """Show what commits change, and the guards' verdict.

    BASE..HEAD compares two commits. BASE...HEAD compares HEAD with the commit from which its branch started. BASE
    alone, or BASE..WORKTREE, compares BASE with the files in the work tree. PATH is the fleet. If your instance has
    limits or --verify, pass the same limits, --verify and keys here.

    gitboot reads only the repository, and the instance that --accepted names. The results for overlapping maintenances
    and for certificates depend on the time, which --at sets.
    """
    from gitboot.cli.evaluated_fleet import compare_range
    from gitboot.cli.instance_client import fetch_accepted_commit

    trust_values = {name: review_options.pop(name) for name in TRUST_PARAMETERS}
    limits: dict[str, int | None] = review_options
    trust = parse_trust_settings(**trust_values)
    signature_results = _read_signature_results(verified) if verified is not None else None
    if trust.verify is Verify.TAG:
        raise UsageError("--verify tag is for gitboot run, which follows a tag; compare with --verify head or range")
    if not range and accepted is None:
        raise UsageError("there is no base to compare with: pass BASE..HEAD, or --accepted")
    since_commit = fetch_accepted_commit(accepted) if accepted is not None else None
    compared = compare_range(path, range, merge=merge, at=at or current_second(), accepted=since_commit, trust=trust)
    options = {
        "merge": merge,
        "each_merge": each_merge,
        "accepted": accepted,
        "at": format_instant(at) if at is not None else None,
        "verified": verified,
        **limits,
        **trust_values,
    }
    review = review_commits(
        compared.base,
        compared.head,
        limits=build_limits(limits),
        messages=compared.messages,
        commits=compared.commits if each_merge or accepted is not None else (),
        command=_format_command(range, path, options),
        ack_rules=AckRules(reinstalls_need=trust.reinstalls_need, used_ids=compared.base_acknowledgements),
        known_changes=compared.changes() if compared.changes is not None else None,
        writer=compared.writer,
        signature_results=signature_results,
    )
    review = structs.replace(review, signers=compared.signers)
    for output in outputs:
        output.write(_format_review(output.format, review, path, range))
    exit_codes = {
        ReviewOutcome.INVALID: Exit.INVALID,
        ReviewOutcome.HELD: Exit.HELD,
        ReviewOutcome.FINE: Exit.CHANGES if detailed_exitcode else Exit.FINE,
    }
    sys.exit(exit_codes.get(review.outcome, Exit.FINE))


_MAX_RESULTS_BYTES: Final = 64 << 20


def _read_signature_results(file: Path) -> SignatureResults:
    """Read the output of `gitboot artifacts signatures`. Raises `UsageError` if the file is too large or damaged."""
    with convert_os_errors(file, "read"), file.open("rb") as opened:
        content = opened.read(_MAX_RESULTS_BYTES + 1)
    if len(content) > _MAX_RESULTS_BYTES:
        raise UsageError(f"{file} is larger than {_MAX_RESULTS_BYTES:,} bytes")
    return parse_signature_results(content, str(file))


def _format_command(range: str, path: Path, options: Mapping[str, object]) -> str:
    """Return the command line that repeats this review. ``options`` contains the values by parameter name."""
    words = ["gitboot", "diff"]
    if path != Path():
        words += [range, str(path)]
    elif range:
        words.append(range)
    for name, values in options.items():
        option = "--forge-key" if name == "forge_keys" else f"--{name.replace('_', '-')}"
        for value in values if isinstance(values, tuple) else (values,):
            if value is True:
                words.append(option)
            elif value is not None and value is not False:
                words += [option, str(value)]
    return quote_words(*words)


def _format_review(format: str, review: Review, path: Path, range: str) -> str:
    from gitboot.git.history import find_head_commit
    from gitboot.git.snapshots import find_fleet_folder
    from gitboot.review.formats.json import as_json

    prefix = format_path_prefix(path)
    match format:
        case "text":
            return format_review_text(review, prefix)
        case "json":
            return as_json(review)
        case "markdown":
            return as_markdown(review, find_fleet_folder(path), find_head_commit(path, range))
    return FORMATS[format](as_problems(review), prefix)


def format_review_text(review: Review, prefix: str) -> str:
    """Format the review as text, with the most important parts first. ``prefix`` is the path of the fleet folder."""
    sections = (
        _format_verdict(review),
        _format_blast_radius(review),
        _format_guards(review),
        _format_dangers(review),
        _format_next_steps(review) if review.approval is not None else (),
        _format_provenance(review),
        _format_groups(review),
        _format_effect_times(review),
        _format_documents(review),
        _format_problems(review, prefix),
        _format_next_steps(review) if review.approval is None else (),
    )
    return "\n\n".join("\n".join(lines) for section in sections if (lines := list(section)))


def _format_heading(text: str) -> str:
    return style(text.upper(), bold=True)


def _wrap_lines(text: str, indent: str = "  ") -> str:
    return wrap_text(text, indent, continuation=f"{indent}  ")


# The maximum numbers of items in the text output.
_MAX_LIMITS: Final = 20
_MAX_REASONS: Final = 5  # for each danger
_MAX_IMAGES: Final = 20
_MAX_GROUPS: Final = 50
_MAX_DIFF_LINES: Final = 400  # of each rendered diff
_MAX_DOCUMENTS: Final = 20
_COLOURS: Final = {
    ReviewOutcome.HELD: "red",
    ReviewOutcome.INVALID: "red",
    ReviewOutcome.FINE: "green",
    ReviewOutcome.UNCHANGED: "green",
}


def _format_verdict(review: Review) -> Iterator[str]:
    headline = review.headline
    yield style(headline[0].upper() + headline[1:], fg=_COLOURS[review.outcome], bold=True)
    sides = (f"{side.named} ({side.short})" if side.short else side.named for side in (review.base, review.head))
    yield printable(f" {phrases.ARROW} ".join(sides))
    if review.shown_digest is not None:
        yield f"digest {review.shown_digest}"
    if review.changes is not None:
        yield phrases.format_counts(review.changes)
        for commit, signer in review.signers:
            yield _wrap_lines(f"{commit[:12]} is signed by {signer}", "")
        if review.base.decisions is None:
            yield "The base is not a valid fleet, so this review shows everything as new."


def _format_blast_radius(review: Review) -> Iterator[str]:
    areas = review.areas  # the header and the rows of a table
    if not areas:
        return
    yield _format_heading("Blast radius")
    yield format_table(areas[0], areas[1:])
    if (note := review.note_on_harmless_changes) is not None:
        yield _wrap_lines(note)


def _format_guards(review: Review) -> Iterator[str]:
    note_on_identities = review.note_on_identities
    if review.verdict is None or not (review.verdict.trips or review.ignored_lines or note_on_identities):
        return
    yield _format_heading("Guards")
    for trip in review.verdict.trips[:_MAX_LIMITS]:
        state, colour = ("acknowledged", None) if trip.acknowledged else ("held", "red")
        yield _wrap_lines(f"{state}: {trip.guard}: {phrases.format_excess(trip)}").replace(
            state, style(state, fg=colour), 1
        )
        if trip.by:
            yield _wrap_lines(f"by {trip.by}", "    ")
    if left := format_omitted(len(review.verdict.trips) - _MAX_LIMITS, "limit"):
        yield f"  {left}"
    if (note := review.note_on_records) is not None:
        yield _wrap_lines(note)
    if note_on_identities is not None:
        yield _wrap_lines(note_on_identities)
    for ignored in review.ignored_lines:
        yield _wrap_lines(f"ignored: {ignored.line!r} in {ignored.commit[:12]}: {ignored.why}")


def _format_dangers(review: Review) -> Iterator[str]:
    for index, danger in enumerate(review.find_dangers()):
        if index == 0:
            yield _format_heading("Look at this first")
        yield _wrap_lines(f"{danger.risk}: {danger.number}{format_names(danger.names)}")
        yield from (_wrap_lines(reason, "    ") for reason in danger.reasons[:_MAX_REASONS])
        if left := format_omitted(len(danger.reasons) - _MAX_REASONS, "reason"):
            yield f"    {left}"


def _format_provenance(review: Review) -> Iterator[str]:
    provenance = review.provenance
    if provenance.images or provenance.rules or provenance.sources:
        yield _format_heading("Provenance")
    for image in provenance.images[:_MAX_IMAGES]:
        yield _wrap_lines(f"BootImage/{image.image} {image.fate} at {':'.join(map(str, image.place))}")
        yield from (_wrap_lines(f"{files}: {text}", "    ") for files, text in phrases.list_image_claims(image))
    if left := format_omitted(len(provenance.images) - _MAX_IMAGES, "image"):
        yield f"  {left}: use -o json to see all"
    for document, place, text in phrases.list_provenance_changes(provenance):
        at = f" at {':'.join(map(str, place))}" if place is not None else ""
        yield _wrap_lines(f"{document}{at}: {text}")
    if any(map(phrases.has_unverified_claims, provenance.images)):
        yield _wrap_lines(phrases.CLAIMS_NOTE)


def _format_groups(review: Review) -> Iterator[str]:
    blocks = []
    for shared in (review.unknown, review.shared):
        if shared is not None:
            title = style(phrases.format_shared_title(shared.causes, shared.title), bold=True)
            fields = (_wrap_lines(phrases.format_change(field)) for field in shared.fields)
            blocks.append(
                [title, *map(_format_cause, shared.causes), *fields, *_format_rendered_diffs(shared.rendered)]
            )
    blocks += map(_format_group, review.groups)
    if blocks:
        yield _format_heading("Cause and effect")
    for block in blocks[:_MAX_GROUPS]:
        yield from block
    if left := format_omitted(len(blocks) - _MAX_GROUPS, "group"):
        yield f"{left}: use -o json to see all"


def _format_group(group: Group) -> list[str]:
    title = _wrap_lines(phrases.format_title(group), "")
    risks = ", ".join(group.risks)
    fits_one_line = len(title) + len(risks) + 2 <= terminal_width()
    lines = [style(title, bold=True) + (f": {risks}" if fits_one_line else f"\n  {risks}")]
    lines.append(_wrap_lines(f"servers: {format_names(group.names, 10)}"))
    lines += map(_format_cause, group.causes)
    lines += (_wrap_lines(f"takes effect {phrases.format_effect(effect)}") for effect in group.effects)
    lines += (_wrap_lines(f"{subject}: {reason}") for subject, reason in phrases.list_reasons(group))
    lines += (_wrap_lines(phrases.format_change(field)) for field in group.fields)
    if (outlier := group.outlier) is not None:
        lines.append(
            _wrap_lines(f"these lines differ from the diff for {outlier.than}, although the causes are the same:")
        )
        lines += (f"    {printable(line.expandtabs(4))}" for line in phrases.format_outlier(outlier))
    if group.rendered is None:
        lines.append("  no diff: too many lines")
    elif group.rendered:
        lines.append(_wrap_lines(f"{phrases.describe_diff(group)}:"))
        lines += _format_rendered_diffs(group.rendered)
    return lines


def _format_cause(cause: ChangeCause) -> str:
    at = f"{cause.place_prefix} {':'.join(map(str, cause.place))}" if cause.place else ""
    return _wrap_lines(f"{cause}{at}: {phrases.format_cause(cause)}")


_SIGN_COLOURS: Final = {"+": "green", "-": "red", "@": "cyan"}


def _format_rendered_diffs(diffs: Iterable[RenderedDiff]) -> Iterator[str]:
    for diff in diffs:
        yield f"    {diff.boot}, {diff.file}"
        lines = diff.lines[2:]  # without the names of the two files
        for line in lines[:_MAX_DIFF_LINES]:
            yield style(f"    {printable(line.expandtabs(4))}", fg=_SIGN_COLOURS.get(line[:1]))
        if left := format_omitted(len(lines) - _MAX_DIFF_LINES, "line"):
            yield f"    {left}: use -o json to see all"


def _format_effect_times(review: Review) -> Iterator[str]:
    counts = phrases.count_effects(review.groups)
    if counts:
        yield _format_heading("When")
    for effect_time, number in counts:
        yield _wrap_lines(f"{effect_time}: {format_count(number, 'server')}")


def _format_documents(review: Review) -> Iterator[str]:
    """Yield the documents whose changes do not change a decision, and the changed BMCs and credentials."""
    documents = review.document_only_changes
    if documents:
        yield _format_heading(f"Presentation only: {format_count(len(documents), 'document')}, no decision changes")
    for document in documents[:_MAX_DOCUMENTS]:
        fields = format_names([field.dotted_path for field in document.fields], 3)
        yield _wrap_lines(f"{document.id} {document.fate}{f': {fields}' if fields else ''}")
    if left := format_omitted(len(documents) - _MAX_DOCUMENTS, "document"):
        yield f"  {left}"
    if review.changes is not None and not review.changes.first:
        if bmcs := review.changes.moved_bmcs:
            yield _wrap_lines(f"BMC: the BMC's address or trust settings change: {format_names(bmcs)}", "")
        if moved := phrases.list_credentials(review.changes.bmcs):
            yield "Credentials go to new destinations. An instance sends them only to BMCs that its operator allows:"
            yield from (_wrap_lines(line) for line in moved[:_MAX_LIMITS])
            if left := format_omitted(len(moved) - _MAX_LIMITS, "BMC"):
                yield f"  {left}"


def _format_problems(review: Review, prefix: str) -> Iterator[str]:
    for heading, problems in review.problems():
        yield _format_heading(heading)
        yield format_problems(problems, prefix)


def _format_next_steps(review: Review) -> Iterator[str]:
    yield _format_heading("Next steps")
    yield f"  to see this review again, run: {review.command}"
    if review.approval is None:
        return
    if lines := review.ack_lines:
        yield "  to accept it, add to the message of the last commit:"
        yield from (f"    {line}" for line in lines)
        if review.steps:
            yield "  or acknowledge each commit in a later message:"
            yield from (f"    {line}  # {step.commit[:12]}" for step in review.steps for line in step.lines)
    yield _wrap_lines(f"{review.approval_note[0].lower()}{review.approval_note[1:]}:")
    yield f"    {review.approval}"


# gitboot comment


def _parse_folder(_: click.Context, __: click.Parameter, text: str | None) -> str:
    from gitboot.git.repository import parse_subpath

    return parse_subpath(text) if text else ""


@click.command(
    cls=Command,
    example="gitboot comment review.md --commit 4f2c…",
    exit_codes={
        Exit.FINE: "the comment is up to date, or the job is not for the newest commit",
        Exit.SOURCE: "the forge did not respond, or rejected the request",
        Exit.USAGE: "FILE is not the review of COMMIT, or the job is not for a pull request",
    },
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--commit", required=True, metavar="COMMIT", help="The commit that FILE reviews: 40 hexadecimal digits.")
@click.option(
    "--subpath",
    envvar="GITBOOT_SUBPATH",
    metavar="FOLDER",
    callback=_parse_folder,
    help="The folder of the fleet in the repository, as in `gitboot diff`. Default: the root of the repository.",
)
@token_over_http_option
def comment_command(file: Path, commit: str, subpath: str, allow_token_over_http: bool) -> None:
    """Post a review as a comment on its pull request.

    FILE is the output of `gitboot diff -o markdown=FILE`. gitboot posts one comment, and edits this comment after later
    changes. It never edits comments of other accounts. If FILE is missing or is not the review of COMMIT, the comment
    states that the review failed. If the pull request has a newer commit than COMMIT, gitboot does not post a comment.

    gitboot finds the pull request or merge request from the environment variables of GitHub Actions or GitLab CI.
    GitHub needs GITHUB_TOKEN with the permission pull-requests: write. GitLab needs GITBOOT_TOKEN, a project access
    token with the scope api, because the token of a CI job cannot write notes. Run this command in a job that runs no
    code from the branch.
    """
    from gitboot.http_client import HttpClient

    client = HttpClient(allow_token_over_http=allow_token_over_http)
    open_thread = _open_gitlab_thread if os.environ.get("GITLAB_CI") else _open_github_thread
    try:
        thread = open_thread(client, os.environ)
    except (KeyError, IndexError, ValueError) as error:
        raise UsageError(f"this is not a CI job for a pull request or merge request: {error}") from None
    if not thread.token:
        click.echo("gitboot did not comment: the variable GITBOOT_TOKEN is empty")
        return
    newest = thread.fetch_newest_commit()
    if newest != commit:
        click.echo(f"gitboot did not comment: the newest commit is now {newest[:12]!r}, not {commit[:12]!r}")
        return
    fault = None
    try:
        body = _read_review(file, subpath, commit)
    except UsageError as error:
        fault, body = error, render_failed_review(subpath, commit, thread.log)
    click.echo(thread.post(format_marker(subpath), body))
    if fault is not None:
        raise fault


# GitHub accepts this number of characters; `gitboot diff` writes at most 60,000 bytes.
_MAX_REVIEW_BYTES: Final = 65_536


def _read_review(file: Path, subpath: str, commit: str) -> str:
    """Return the review that `gitboot diff` wrote for this folder and commit. Raises `UsageError` for any other file.

    The file must be a regular file. Neither the file nor its folder may be a symlink.
    """
    try:
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # O_NONBLOCK, so that open(2) does not block for a FIFO.
            fd = os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(fd, "rb") as opened:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError("the path is not a regular file")
            content = opened.read(_MAX_REVIEW_BYTES + 1)
            if len(content) > _MAX_REVIEW_BYTES:
                raise OSError(f"the file is larger than {_MAX_REVIEW_BYTES:,} bytes")
        text = content.decode()
    except FileNotFoundError:
        raise UsageError(f"{file} does not exist because the review failed; see the review job's log") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not a review: {error}") from None
    lines = text.split("\n", 2)
    for number, expected in enumerate((format_marker(subpath), format_commit_marker(commit))):
        if lines[number : number + 1] != [expected]:
            raise UsageError(
                f"{file} is not the review of {commit[:12]}: expected {expected!r} on line {number + 1}; "
                "write the file with `gitboot diff -o markdown=FILE`"
            )
    return text


# A GitLab note may have 1,000,000 characters ("Instance limits" of GitLab), and each character may need six bytes in
# JSON.
_COMMENTS_PER_PAGE: Final = 10
_MAX_RESPONSE_BYTES: Final = 64 << 20
_MAX_PAGES: Final = 1000  # GitLab allows 5000 notes, GitHub 2500 comments


@dataclasses.dataclass(frozen=True, kw_only=True)
class _CommentThread:
    """The comments on the pull request or merge request for which a CI job runs."""

    client: HttpClient
    token: str
    credentials: Mapping[str, str]
    log: str  # URL of the job's log, for people
    request: str  # URL
    comments: str  # URL
    comment: str  # URL of a comment, without its number
    user: str  # URL of the account to which the token belongs
    # A URL that returns the account of the token if `user` does not return it; "": the account may stay unknown.
    graphql: str | None = None
    edit_method: str  # HTTP method
    # Names of nested fields: the newest commit in a pull request, and the ID of an account in the account and in a
    # comment.
    commit: tuple[str, ...]
    account: tuple[str, ...]
    author: tuple[str, ...]

    def fetch_newest_commit(self) -> str:
        """Return the newest commit of the pull request. Raises `ForgeRefused` if the forge does not return it."""
        return str(_read_field(self._request_json("GET", self.request), *self.commit))

    def post(self, marker: str, body: str) -> str:
        """Edit the newest comment by this account that contains the marker, or add a comment if there is none.

        Return a text that states whether the comment was edited or added. Raises `ForgeRefused` if the forge rejects a
        request.
        """
        account = self._fetch_account()
        marked_ids = []
        for comment in self._fetch_comments():
            is_own = account and _read_field(comment, *self.author) == account
            # GitLab records changes to a merge request as comments by their author.
            if is_own and not comment.get("system") and _read_first_line(comment) == marker:
                marked_ids.append(int(comment["id"]))
        if marked_ids:
            response = self._send_request(self.edit_method, f"{self.comment}/{max(marked_ids)}", {"body": body})
            if 200 <= response.status < 300:
                return "updated the comment"
            if response.status not in (HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND):
                raise ForgeRefused(f"{self.edit_method} of a comment: {response.status} {response.detail}")
        self._request_json("POST", self.comments, {"body": body})
        return "added a comment"

    def _fetch_account(self) -> Any:
        """Return the account to which the token belongs, or None if the forge hides an account that may be unknown."""
        response = self._send_request("GET", self.user)
        account_facts = response.json
        if self.graphql is None and (response.status != HTTPStatus.OK or account_facts is None):
            raise ForgeRefused(f"GET {self.user}: {response.status} {response.detail}")
        if self.graphql and response.status != HTTPStatus.OK:
            # The token of a GitHub job belongs to an app, and an app may not GET /user. GraphQL returns the bot account
            # of the app.
            response = self._send_request("POST", self.graphql, {"query": "{viewer{login}}"})
            account_facts = _read_field(response.json, "data", "viewer")
        return _read_field(account_facts, *self.account)

    def _fetch_comments(self) -> Iterator[Mapping[str, Any]]:
        """Yield all comments of the pull request, page by page."""
        for page in range(1, _MAX_PAGES + 1):
            comments = self._request_json("GET", f"{self.comments}?per_page={_COMMENTS_PER_PAGE}&page={page}")
            if not isinstance(comments, list) or not comments:
                return
            yield from (comment for comment in comments if isinstance(comment, dict))
        raise ForgeRefused(f"{self.comments}: more than {_MAX_PAGES * _COMMENTS_PER_PAGE} comments")

    def _request_json(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the forge's JSON response.

        Raises `ForgeRefused` if the forge returns an error or a response that is not JSON.
        """
        response = self._send_request(method, url, body)
        if not 200 <= response.status < 300 or response.json is None:
            raise ForgeRefused(f"{method} {url}: {response.status} {response.detail}")
        return response.json

    def _send_request(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> WebAnswer:
        return self.client.request_json(
            url, credentials=self.credentials, body=body, method=method, max_bytes=_MAX_RESPONSE_BYTES
        )


def _open_github_thread(client: HttpClient, variables: Mapping[str, str]) -> _CommentThread:
    api, repository = variables["GITHUB_API_URL"], variables["GITHUB_REPOSITORY"]
    number = int(variables["GITHUB_REF"].split("/")[2])  # refs/pull/NUMBER/merge
    token = variables.get("GITHUB_TOKEN", "")
    return _CommentThread(
        client=client,
        token=token,
        credentials={"Authorization": f"Bearer {token}"},
        log=f"{variables['GITHUB_SERVER_URL']}/{repository}/actions/runs/{variables['GITHUB_RUN_ID']}",
        request=f"{api}/repos/{repository}/pulls/{number}",
        comments=f"{api}/repos/{repository}/issues/{number}/comments",
        comment=f"{api}/repos/{repository}/issues/comments",
        user=f"{api}/user",
        graphql=variables.get("GITHUB_GRAPHQL_URL", ""),
        edit_method="PATCH",
        commit=("head", "sha"),
        account=("login",),
        author=("user", "login"),  # the author is null for a deleted account
    )


def _open_gitlab_thread(client: HttpClient, variables: Mapping[str, str]) -> _CommentThread:
    project, number = int(variables["CI_PROJECT_ID"]), int(variables["CI_MERGE_REQUEST_IID"])
    request = f"{variables['CI_API_V4_URL']}/projects/{project}/merge_requests/{number}"
    token = variables.get("GITBOOT_TOKEN", "")
    return _CommentThread(
        client=client,
        token=token,
        credentials={"PRIVATE-TOKEN": token},
        log=variables["CI_PIPELINE_URL"],
        request=request,
        comments=f"{request}/notes",
        comment=f"{request}/notes",
        user=f"{variables['CI_API_V4_URL']}/user",
        edit_method="PUT",
        commit=("sha",),
        account=("id",),
        author=("author", "id"),
    )


def _read_field(value: Any, *names: str) -> Any:
    """Return the value of nested fields in a JSON value, or None if one of the fields is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _read_first_line(comment: Mapping[str, Any]) -> str:
    return str(comment.get("body")).partition("\n")[0].rstrip()
