"""Where others have the commit of a checkout."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pygit2


def pushed_as(checkout: Path) -> str | None:
    """``https://HOST/PATH@COMMIT`` of its origin, where that had the commit when it was last looked at, or None.

    It does not name who fetches from there.
    """
    try:
        repository = pygit2.Repository(str(checkout))
        head = repository.head.target
        origin = urlsplit(repository.remotes["origin"].url or "")
        there = [*repository.branches.remote.with_commit(head)]
    except (pygit2.GitError, KeyError, ValueError):
        return None
    if origin.scheme != "https" or not origin.hostname or not there:
        return None
    port = f":{origin.port}" if origin.port else ""
    return f"https://{origin.hostname}{port}{origin.path}@{head}"
