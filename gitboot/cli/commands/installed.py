"""What pip installs on another machine to have this very gitboot: a file in CI says it."""

from __future__ import annotations

import json
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from gitboot import __version__
from gitboot.source.pushed import pushed_as

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
        pushed = pushed_as(Path(unquote(urlsplit(url).path))) if "dir_info" in noted else None
        return pushed and f"gitboot @ git+{pushed}"
    digest = noted.get("archive_info", {}).get("hashes", {}).get("sha256")
    return f"gitboot @ {url}" + (f"#sha256={digest}" if digest else "")
