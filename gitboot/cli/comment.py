"""`gitboot comment`: a review as one comment of its pull request."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from gitboot.errors import ForgeRefused, UsageError


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True))
def command(file: Path) -> None:
    """Show FILE, Markdown of `gitboot diff`, as one comment of the pull request or merge request that CI runs for.

    It is made once, then kept up to date. Where it goes stands in the variables of GitHub Actions or of GitLab CI.
    GitHub needs GITHUB_TOKEN with the permission pull-requests: write. GitLab needs GITBOOT_TOKEN, a project access
    token with the scope api: a job's own token may not write notes. Run it in a job that runs no code of the branch.
    """
    body = file.read_text(encoding="utf-8")
    marker = body.partition("\n")[0]  # an HTML comment, by which the comment is found again
    url, headers, change = _place()
    if not any(headers.values()):
        click.echo("no GITBOOT_TOKEN: nothing is commented")
        return
    page, found = 1, None
    while found is None and (comments := _call("GET", f"{url}?per_page=100&page={page}", headers)):
        found = next((comment["id"] for comment in comments if comment["body"].startswith(marker)), None)
        page += 1
    if found is None:
        _call("POST", url, headers, body)
    else:
        one = url if change == "PUT" else f"{url.rpartition('/issues/')[0]}/issues/comments"
        _call(change, f"{one}/{found}", headers, body)
    click.echo("commented" if found is None else "the comment is up to date")


def _place() -> tuple[str, dict[str, str], str]:
    """Where the comments are, what authorizes, and how one is changed."""
    try:
        if os.environ.get("GITLAB_CI"):
            project, request = os.environ["CI_PROJECT_ID"], os.environ["CI_MERGE_REQUEST_IID"]
            url = f"{os.environ['CI_API_V4_URL']}/projects/{project}/merge_requests/{request}/notes"
            return url, {"PRIVATE-TOKEN": os.environ.get("GITBOOT_TOKEN", "")}, "PUT"
        number = os.environ["GITHUB_REF"].split("/")[2]  # refs/pull/NUMBER/merge
        url = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/issues/{number}/comments"
    except (KeyError, IndexError) as error:
        raise UsageError(f"this is no CI job of a pull request or a merge request: {error} is not set") from None
    token = os.environ.get("GITHUB_TOKEN", "")
    return url, {"Authorization": f"Bearer {token}"} if token else {}, "PATCH"


def _call(method: str, url: str, headers: dict[str, str], text: str | None = None) -> Any:
    from gitboot.web import ask, opener

    body = {"body": text} if text is not None else None
    answer = ask(opener(), url, headers=headers, body=body, timeout_s=30, method=method)
    if not 200 <= answer.status < 300 or answer.json is None:
        raise ForgeRefused(f"{method} {url}: {answer.status} {answer.detail}")
    return answer.json
