"""Which commit an instance has accepted: its endpoint is asked, or the directory that it publishes is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gitboot.errors import HostUnreachable, UsageError

_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def accepted_by(where: str, *, deadline_s: float = 30) -> str:
    """The commit that the instance behind ``where`` has accepted last: a URL, or a directory.

    Raises `HostUnreachable` where nothing answers, `UsageError` where there is no such commit.
    """
    for said in _answers(where.rstrip("/"), deadline_s) if "://" in where else _files(Path(where)):
        for each in (said.get("accepted"), said.get("applied"), said):
            found = each.get("commit") if isinstance(each, dict) else None
            if isinstance(found, str) and _COMMIT.fullmatch(found):
                return found
    raise UsageError(
        f"--accepted: {where} names no commit that was accepted; give the URL of an endpoint, or the OUTPUT of "
        "`gitboot run`, and see `gitboot status` there"
    )


def _answers(url: str, deadline_s: float) -> Iterator[dict[str, Any]]:
    """The status of an endpoint; of a mirror, what the tree says that it serves."""
    from gitboot.http_client import HttpClient
    from gitboot.publish.manifest import MANIFEST

    client = HttpClient()
    for path in ("api/v1/status", MANIFEST):
        reply = client.ask(f"{url}/{path}", deadline_s=deadline_s)
        if reply.status == 200 and isinstance(reply.json, dict):
            yield reply.json
            return
        if reply.status != 404:
            raise HostUnreachable(f"{url}/{path} answered {reply.status} {reply.detail}".rstrip())


def _files(directory: Path) -> Iterator[dict[str, Any]]:
    from gitboot.publish.manifest import MANIFEST, STATUS

    for name in (STATUS, MANIFEST):
        try:
            found = json.loads((directory / name).read_bytes())
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise UsageError(f"--accepted: {directory / name} cannot be read: {error}") from error
        if isinstance(found, dict):
            yield found
