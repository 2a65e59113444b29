"""`gitboot diff` and `gitboot comment`: show what commits change, and post the review."""

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

from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Exit
from gitboot.cli.options import (
    TRUST,
    OutputOption,
    at_option,
    limit_options,
    limits_of,
    output_option,
    path_argument,
    prefix_of,
    this_second,
    token_over_http_option,
    trust_of,
    trust_options,
)
from gitboot.cli.problem_formats import FORMATS
from gitboot.cli.problem_formats import as_text as problems_as_text
from gitboot.cli.terminal import columns, table, wrapped
from gitboot.errors import ForgeRefused, UsageError
from gitboot.fleet.revision import Verify
from gitboot.jsonio import format_instant
from gitboot.review.change_groups import ChangeCause, Group
from gitboot.review.formats import phrases
from gitboot.review.formats.markdown import as_markdown, as_problems, commit_marker, failed_review, marker
from gitboot.review.rendered_diffs import RenderedDiff
from gitboot.review.review import Review, ReviewOutcome, review
from gitboot.standard_streams import style
from gitboot.text import count, more, printable, shell_words, some

if TYPE_CHECKING:
    from gitboot.http_client import HttpClient


_FORMATS = ("text", "json", "markdown", "github", "sarif", "junit")


@click.command()
@click.argument("range", metavar="BASE..HEAD", default="")
@path_argument
@click.option("--merge", is_flag=True, help="Compare BASE with HEAD merged into it, as the branch will be.")
@click.option(
    "--each-merge",
    is_flag=True,
    help="Judge each commit of HEAD's first-parent line by itself, as an instance does that has accepted BASE.",
)
@click.option(
    "--accepted",
    metavar="URL|DIR",
    help="Compare with what an instance has accepted, and judge each commit since by itself: the URL of its endpoint, "
    "or the directory that it publishes. HEAD is merged into BASE where --merge says so; else BASE may be left out.",
)
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 where something changes and nothing is wrong.")
@at_option
@trust_options
@limit_options
@output_option(*_FORMATS)
@evaluator_command
def command(
    range: str,
    path: Path,
    merge: bool,
    each_merge: bool,
    accepted: str | None,
    detailed_exitcode: bool,
    at: datetime | None,
    outputs: tuple[OutputOption, ...],
    **given: Any,
) -> None:
    """Show what BASE..HEAD changes in the fleet at PATH, and whether guards would hold it.

    BASE..HEAD compares two commits. BASE...HEAD compares HEAD with where it branched off; BASE alone, or
    BASE..WORKTREE, with what lies in the work tree. Nothing but these is looked at: no network and no instance, except
    what --accepted names. --at is the instant at which overlaps of maintenances and certificates of HEAD are judged.

    The exit code is 3 where HEAD is invalid, 4 where a guard holds it that no `Gitboot-Ack:` line of the commits
    acknowledges. Give the limits that the instance has, if they are not the defaults.
    """
    from gitboot.cli.evaluated_fleet import compared
    from gitboot.cli.instance_client import accepted_by

    trust, asked = trust_of(**{name: given[name] for name in TRUST}), _flags({name: given.pop(name) for name in TRUST})
    limits: dict[str, int | None] = given
    if trust.verify is Verify.TAG:
        raise UsageError("--verify tag is for gitboot run, which follows a tag; compare with --verify head or range")
    if not range and accepted is None:
        raise UsageError("compare with what? Give BASE..HEAD, or --accepted")
    since_commit = accepted_by(accepted) if accepted is not None else None
    found = compared(path, range, merge=merge, at=at or this_second(), accepted=since_commit, trust=trust)
    where = [str(path)] if path != Path() else []
    since = ["--accepted", accepted] if accepted is not None else []
    instant = ["--at", format_instant(at)] if at is not None else []
    options = [*(["--merge"] * merge), *(["--each-merge"] * each_merge), *since, *instant, *_flags(limits), *asked]
    again = shell_words("gitboot", "diff", *([range] if range or where else []), *where, *options)
    result = review(
        found.base,
        found.head,
        limits=limits_of(limits),
        messages=found.messages,
        line=found.line if each_merge or accepted is not None else (),
        command=again,
        need=trust.reinstalls_need,
        met=found.met,
        known=found.changes() if found.changes is not None else None,
        writer=found.writer,
    )
    result = structs.replace(result, signers=found.signers)
    for output in outputs:
        output.write(_written(output.format, result, path, range))
    codes = {ReviewOutcome.INVALID: Exit.INVALID, ReviewOutcome.HELD: Exit.HELD}
    if detailed_exitcode:
        codes[ReviewOutcome.FINE] = Exit.CHANGES
    sys.exit(codes.get(result.outcome, Exit.FINE))


def _flags(given: Mapping[str, object]) -> list[str]:
    found: list[str] = []
    for name, values in given.items():
        flag = f"--{name.replace('_', '-').removesuffix('s') if name == 'forge_keys' else name.replace('_', '-')}"
        for value in values if isinstance(values, tuple) else (values,):
            found += [flag, str(value)] if value is not None else []
    return found


def _written(format: str, result: Review, path: Path, range: str) -> str:
    from gitboot.git.history import head_commit
    from gitboot.git.snapshots import folder_around
    from gitboot.review.formats.json import as_json

    prefix = prefix_of(path)
    match format:
        case "text":
            return as_text(result, prefix)
        case "json":
            return as_json(result)
        case "markdown":
            return as_markdown(result, folder_around(path), head_commit(path, range))
    return FORMATS[format](as_problems(result), prefix)


_MAX_REVIEW_BYTES: Final = 65_536  # GitHub takes as many characters; `gitboot diff` writes at most 60,000 bytes
# A note of GitLab has up to 1,000,000 characters (its "Instance limits"), and JSON may need six bytes for each.
_COMMENTS_PER_PAGE: Final = 10
_MAX_ANSWER_BYTES: Final = 64 << 20
_MAX_PAGES: Final = 1000  # GitLab takes 5000 notes, GitHub 2500 comments
_NOT_OURS: Final = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})


def _folder(_: click.Context, __: click.Parameter, text: str | None) -> str:
    from gitboot.git.repository import parse_subpath

    return parse_subpath(text) if text else ""


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--commit", required=True, metavar="COMMIT", help="The commit that the CI job is for: 40 hex digits.")
@click.option(
    "--subpath",
    envvar="GITBOOT_SUBPATH",
    metavar="FOLDER",
    callback=_folder,
    help="The fleet's folder in the repository, as of `gitboot diff`. Default: the top.",
)
@token_over_http_option
def comment_command(file: Path, commit: str, subpath: str, allow_token_over_http: bool) -> None:
    """Post FILE, Markdown of `gitboot diff`, as one comment of the pull request or merge request that CI runs for.

    gitboot makes the comment once, and replaces its text after that. It finds the comment by the first line of FILE,
    and edits only a comment of its own account. FILE has to be a regular file whose first two lines name the fleet's
    folder and COMMIT. If FILE is missing or another file, the comment says that the review failed, and the exit code is
    64. If the pull request has a newer commit than COMMIT, gitboot posts nothing: the job of that commit does.

    The variables of GitHub Actions or of GitLab CI name the pull request. GitHub needs GITHUB_TOKEN with the permission
    pull-requests: write. GitLab needs GITBOOT_TOKEN, a project access token with the scope api: a job's own token may
    not write notes. Run it in a job that runs no code of the branch.
    """
    from gitboot.http_client import HttpClient

    client = HttpClient(allow_token_over_http=allow_token_over_http)
    try:
        thread = (_gitlab_thread if os.environ.get("GITLAB_CI") else _github_thread)(client, os.environ)
    except (KeyError, IndexError, ValueError) as error:
        raise UsageError(f"this is no CI job of a pull request or a merge request: {error}") from None
    if not thread.token:
        click.echo("no GITBOOT_TOKEN: nothing is commented")
        return
    if (newest := thread.newest_commit()) != commit:
        click.echo(f"nothing is commented: the newest commit is {newest[:12]!r} by now, not {commit[:12]!r}")
        return
    fault = None
    try:
        body = _read_review(file, subpath, commit)
    except UsageError as error:
        fault, body = error, failed_review(subpath, commit, thread.log)
    click.echo(thread.post(marker(subpath), body))
    if fault is not None:
        raise fault


def _read_review(file: Path, subpath: str, commit: str) -> str:
    """Return a review that `gitboot diff` wrote for this folder and commit; raise `UsageError` for any other file.

    gitboot follows no symlink, be it the file or its folder, and reads only a regular file.
    """
    try:
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # O_NONBLOCK: a FIFO opens at once
            fd = os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        finally:
            os.close(folder)
        with os.fdopen(fd, "rb") as opened:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError("it is not a regular file")
            if len(content := opened.read(_MAX_REVIEW_BYTES + 1)) > _MAX_REVIEW_BYTES:
                raise OSError(f"it has more than {_MAX_REVIEW_BYTES:,} bytes")
        text = content.decode()
    except FileNotFoundError:
        raise UsageError(f"{file} does not exist: the review failed; see the log of the job that reviews") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is not a review: {error}") from None
    lines = text.split("\n", 2)
    for number, expected in enumerate((marker(subpath), commit_marker(commit))):
        if lines[number : number + 1] != [expected]:
            raise UsageError(
                f"{file} is not the review of {commit[:12]}: expected {expected!r} in line {number + 1}; "
                "write the file with `gitboot diff -o markdown=FILE`"
            )
    return text


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Thread:
    """The comments of the pull request or merge request that a CI job is for."""

    client: HttpClient
    token: str
    credentials: Mapping[str, str]
    log: str  # URL of the job's log, for people
    request: str  # URL
    comments: str  # URL
    comment: str  # URL of one comment, without its number
    user: str  # URL of the token's account
    graphql: str | None = None  # URL where the token's account may be asked for instead; "": it may stay unknown
    edits_by: str  # HTTP method
    # Names of nested fields: of the newest commit in a request, of an account's id in the account and in a comment.
    commit: tuple[str, ...]
    account: tuple[str, ...]
    author: tuple[str, ...]

    def newest_commit(self) -> str:
        """Return the commit that the pull request has now, as the forge says."""
        return str(_field(self._answer("GET", self.request), *self.commit))

    def post(self, marker: str, body: str) -> str:
        """Replace the text of this account's newest comment with the marker, or make one; say which."""
        # A job's own token of GitHub is that of an app, for which GET /user is forbidden; GraphQL names its bot.
        status, detail, own = self._ask("GET", self.user)
        if self.graphql is None and (status != HTTPStatus.OK or own is None):
            raise ForgeRefused(f"GET {self.user}: {status} {detail}")
        if self.graphql and status != HTTPStatus.OK:
            own = _field(self._ask("POST", self.graphql, {"query": "{viewer{login}}"})[2], "data", "viewer")
        account = _field(own, *self.account)
        written = (each for each in self._every_comment() if account and _field(each, *self.author) == account)
        # GitLab notes changes of a request as comments of their author.
        ours = [each for each in written if not each.get("system")]
        marked = [each for each in ours if str(each.get("body")).partition("\n")[0].rstrip() == marker]
        if marked:
            newest = max(int(each["id"]) for each in marked)
            status, detail, _ = self._ask(self.edits_by, f"{self.comment}/{newest}", {"body": body})
            if 200 <= status < 300:
                return "the comment is up to date"
            if status not in _NOT_OURS:
                raise ForgeRefused(f"{self.edits_by} of a comment: {status} {detail}")
        self._answer("POST", self.comments, {"body": body})
        return "commented"

    def _every_comment(self) -> Iterator[Mapping[str, Any]]:
        for page in range(1, _MAX_PAGES + 1):
            found = self._answer("GET", f"{self.comments}?per_page={_COMMENTS_PER_PAGE}&page={page}")
            if not isinstance(found, list) or not found:
                return
            yield from (each for each in found if isinstance(each, dict))
        raise ForgeRefused(f"{self.comments}: more than {_MAX_PAGES * _COMMENTS_PER_PAGE} comments")

    def _answer(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return what the forge answers; raises `ForgeRefused` if it refuses or answers no JSON."""
        status, detail, answer = self._ask(method, url, body)
        if not 200 <= status < 300 or answer is None:
            raise ForgeRefused(f"{method} {url}: {status} {detail}")
        return answer

    def _ask(self, method: str, url: str, body: Mapping[str, Any] | None = None) -> tuple[int, str, Any]:
        answer = self.client.ask(
            url, credentials=self.credentials, body=body, method=method, max_bytes=_MAX_ANSWER_BYTES
        )
        return answer.status, answer.detail, answer.json


def _github_thread(client: HttpClient, variables: Mapping[str, str]) -> _Thread:
    api, repository = variables["GITHUB_API_URL"], variables["GITHUB_REPOSITORY"]
    number = int(variables["GITHUB_REF"].split("/")[2])  # refs/pull/NUMBER/merge
    token = variables.get("GITHUB_TOKEN", "")
    return _Thread(
        client=client,
        token=token,
        credentials={"Authorization": f"Bearer {token}"},
        log=f"{variables['GITHUB_SERVER_URL']}/{repository}/actions/runs/{variables['GITHUB_RUN_ID']}",
        request=f"{api}/repos/{repository}/pulls/{number}",
        comments=f"{api}/repos/{repository}/issues/{number}/comments",
        comment=f"{api}/repos/{repository}/issues/comments",
        user=f"{api}/user",
        graphql=variables.get("GITHUB_GRAPHQL_URL", ""),
        edits_by="PATCH",
        commit=("head", "sha"),
        account=("login",),
        author=("user", "login"),  # null: an account that was deleted
    )


def _gitlab_thread(client: HttpClient, variables: Mapping[str, str]) -> _Thread:
    project, number = int(variables["CI_PROJECT_ID"]), int(variables["CI_MERGE_REQUEST_IID"])
    request = f"{variables['CI_API_V4_URL']}/projects/{project}/merge_requests/{number}"
    token = variables.get("GITBOOT_TOKEN", "")
    return _Thread(
        client=client,
        token=token,
        credentials={"PRIVATE-TOKEN": token},
        log=variables["CI_PIPELINE_URL"],
        request=request,
        comments=f"{request}/notes",
        comment=f"{request}/notes",
        user=f"{variables['CI_API_V4_URL']}/user",
        edits_by="PUT",
        commit=("sha",),
        account=("id",),
        author=("author", "id"),
    )


def _field(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


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
    if found := review.areas:
        yield _heading("Blast radius")
        yield table(found[0], found[1:])


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
    for index, danger in enumerate(review.dangers()):
        if index == 0:
            yield _heading("Look at this first")
        yield _wrapped(f"{danger.risk}: {danger.number}{some(danger.names)}")
        yield from (_wrapped(reason, "    ") for reason in danger.reasons[:5])
        if left := more(len(danger.reasons) - 5, "reason"):
            yield f"    {left}"


def _groups(review: Review) -> Iterator[str]:
    blocks = []
    for shared in (review.unknown, review.shared):
        if shared is not None:
            title = style(phrases.shared_title(shared.causes, shared.title), bold=True)
            fields = (_wrapped(phrases.change(field)) for field in shared.fields)
            blocks.append([title, *map(_cause, shared.causes), *fields, *_rendered(shared.rendered)])
    blocks += map(_group, review.groups)
    if blocks:
        yield _heading("Cause and effect")
    for block in blocks[:_GROUPS]:
        yield from block
    if left := more(len(blocks) - _GROUPS, "group"):
        yield f"{left}: -o json has them all"


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
    for heading, problems in review.problems():
        yield _heading(heading)
        yield problems_as_text(problems, prefix)


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
