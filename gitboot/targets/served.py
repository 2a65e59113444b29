"""What of a published server a plain file server may serve, and with which headers: pure."""

from __future__ import annotations

from typing import NamedTuple

from gitboot.render.endpoint_files import PublishedServer, Turn
from gitboot.render.paths import BOOT, REVALIDATED, ContentType, Role, content_type_of, delivery_of


class Served(NamedTuple):
    """The files of one server as a target has them, by path below the output directory."""

    files: dict[str, str]  # their sha256
    instead: dict[str, bytes]  # the content of files that lie otherwise in the tree
    left_out: frozenset[str]  # the paths of one-time boots that lie in a tree of gitboot 0.1.0
    lacks_boots: bool = False  # whether a one-time boot is due, and no endpoint is named that would serve it


def served(state: PublishedServer) -> Served:
    """Return the files of a server at a target.

    They are those of the tree: `render.copies` has left one-time boots out of it, unless the Fleet accepts them in
    copies. A tree that gitboot 0.1.0 published has them; the target then gets what boots instead.
    """
    files = {path: each.sha256 for path, each in state.files.items() if path.startswith(BOOT)}
    instead: dict[str, bytes] = {}
    boots = {path: turns[0].writes for path, turns in state.paths.items() if turns and _is_one_time_boot(turns[0])}
    left_out = {path for path in boots if files.get(path) == state.paths[path][0].content}
    for path in sorted(left_out):
        writes = boots[path]
        del files[path]
        if writes is not None and writes.fallback is not None and writes.fallback in state.contents:
            files[path], instead[path] = writes.fallback, state.contents[writes.fallback].encode()
    asks = any(writes is not None and writes.hop is not None for writes in boots.values())
    return Served(files, instead, frozenset(left_out), lacks_boots=bool(boots) and not asks)


def _is_one_time_boot(turn: Turn) -> bool:
    """Return whether a version is a one-time boot that no copy may serve."""
    is_boot = turn.role in (Role.ENTRY, Role.OFFER) and turn.content is not None
    return is_boot and turn.writes is not None and turn.writes.once and not turn.writes.in_copies


def headers_of(path: str) -> dict[str, str]:
    """Return the headers that a store sends with a file; those below ops/ are for gitboot alone."""
    if not path.startswith(BOOT):
        return {"Content-Type": ContentType.JSON.value, "Cache-Control": REVALIDATED}
    return {"Content-Type": content_type_of(path), "Cache-Control": delivery_of(path).cache_control}
