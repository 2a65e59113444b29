"""Show a Markdown file as one comment of a pull request or merge request: made once, then kept up to date.

GitHub Actions needs GITHUB_TOKEN with the permission pull-requests: write. GitLab needs GITBOOT_TOKEN, a project
access token with the scope api, as a masked CI variable: a job's own token may not write notes.
"""

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any


def place() -> tuple[str, dict[str, str], str]:
    """Where the comments are, what authorizes, and how one is changed."""
    if os.environ.get("GITLAB_CI"):
        project, request = os.environ["CI_PROJECT_ID"], os.environ["CI_MERGE_REQUEST_IID"]
        url = f"{os.environ['CI_API_V4_URL']}/projects/{project}/merge_requests/{request}/notes"
        return url, {"PRIVATE-TOKEN": os.environ.get("GITBOOT_TOKEN", "")}, "PUT"
    number = os.environ["GITHUB_REF"].split("/")[2]  # refs/pull/NUMBER/merge
    url = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/issues/{number}/comments"
    return url, {"Authorization": f"Bearer {os.environ.get('GITHUB_TOKEN', '')}"}, "PATCH"


def call(method: str, url: str, headers: dict[str, str], body: str | None = None) -> Any:
    data = None if body is None else json.dumps({"body": body}).encode()
    request = urllib.request.Request(url, data, {**headers, "Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def main() -> None:
    body = Path(sys.argv[1]).read_text(encoding="utf-8")
    marker = body.partition("\n")[0]  # an HTML comment, by which the comment is found again
    url, headers, change = place()
    if not any(headers.values()):
        print("no GITBOOT_TOKEN: nothing is commented")
        return
    page, found = 1, None
    while found is None and (comments := call("GET", f"{url}?per_page=100&page={page}", headers)):
        found = next((comment["id"] for comment in comments if comment["body"].startswith(marker)), None)
        page += 1
    if found is None:
        call("POST", url, headers, body)
    else:
        one = url if change == "PUT" else url.rpartition("/issues/")[0] + "/issues/comments"
        call(change, f"{one}/{found}", headers, body)
    print("commented" if found is None else "the comment is up to date")


if __name__ == "__main__":
    main()
