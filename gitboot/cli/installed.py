"""What pip installs on another machine to have this very gitboot: a file in CI says it."""

from __future__ import annotations

import json
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from gitboot import __version__

_FROM_INDEX: Final = ("pip", "uv")  # who installs from one where nothing else is noted


def requirement() -> str | None:
    """As the installer noted it (PEP 610); None where that is found nowhere but here."""
    try:
        found = distribution("gitboot")
    except PackageNotFoundError:
        return None
    return requirement_of(found)


def requirement_of(found: Distribution) -> str | None:
    text = found.read_text("direct_url.json")
    if text is None:
        installer = (found.read_text("INSTALLER") or "").strip()
        return f"gitboot=={__version__}" if installer in _FROM_INDEX else None
    noted: dict[str, Any] = json.loads(text)
    url = noted["url"]
    if "vcs_info" in noted:
        return f"gitboot @ git+{url}@{noted['vcs_info']['commit_id']}"
    if urlsplit(url).scheme == "file":
        return _pushed(unquote(urlsplit(url).path)) if "dir_info" in noted else None
    digest = noted.get("archive_info", {}).get("hashes", {}).get("sha256")
    return f"gitboot @ {url}" + (f"#sha256={digest}" if digest else "")


def _pushed(checkout: str) -> str | None:
    """A checkout's commit at its origin, where that has it and others reach it."""
    import pygit2

    try:
        repository = pygit2.Repository(checkout)
        head = repository.head.target
        origin = urlsplit(repository.remotes["origin"].url or "")
        there = [*repository.branches.remote.with_commit(head)]
    except (pygit2.GitError, KeyError, ValueError):
        return None
    if origin.scheme != "https" or not origin.hostname or not there:
        return None
    port = f":{origin.port}" if origin.port else ""
    return f"gitboot @ git+https://{origin.hostname}{port}{origin.path}@{head}"  # whoever fetches is not named
