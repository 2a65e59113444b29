"""`gitboot comment`: post a review as a comment on its pull request."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    token_over_http_option,
)
from gitboot.errors import ForgeRefused, UsageError
from gitboot.review.formats.markdown import (
    format_commit_marker,
    format_marker,
    render_failed_review,
)

if TYPE_CHECKING:
    from gitboot.http_client import HttpClient, WebAnswer


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
def command(file: Path, commit: str, subpath: str, allow_token_over_http: bool) -> None:
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
