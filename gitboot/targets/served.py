"""What of a published server a plain file server may serve, and with which headers: pure."""

from __future__ import annotations

from typing import NamedTuple

from gitboot.render.paths import BOOT, REVALIDATED, ContentType, Role, content_type_of, delivery_of
from gitboot.render.state import PublishedServer, Turn


class Served(NamedTuple):
    """The files of one server as a target has them, by path below the output directory."""

    files: dict[str, str]  # their sha256
    instead: dict[str, bytes]  # what is served in the place of a boot that nobody could record
    left_out: frozenset[str]  # the paths of such boots


def served(state: PublishedServer) -> Served:
    """A server without the boots that are made once and stand in the tree as they are.

    Who serves a file cannot record that it was fetched, and a target's logs come late or never; so such a boot is not
    there, but what boots instead, as where a fetch cannot be recorded. Where the Fleet names an endpoint, the tree has
    what sends on to it, and nothing is left out.
    """
    files = {path: each.sha256 for path, each in state.files.items() if path.startswith(BOOT)}
    instead: dict[str, bytes] = {}
    left_out = set()
    for path, sha256 in [*files.items()]:
        turns = state.paths.get(path, ())
        if not turns or not _is_given_once(turns[0], sha256):
            continue
        left_out.add(path)
        del files[path]
        fallback = turns[0].writes.fallback if turns[0].writes is not None else None
        if fallback is not None and fallback in state.contents:
            files[path], instead[path] = fallback, state.contents[fallback].encode()
    return Served(files, instead, frozenset(left_out))


def _is_given_once(turn: Turn, sha256: str) -> bool:
    """Whether what lies in the tree is itself a boot that is given to whoever is the first to ask."""
    is_boot = turn.role in (Role.ENTRY, Role.OFFER) and turn.content == sha256
    return is_boot and turn.writes is not None and turn.writes.once


def headers_of(path: str) -> dict[str, str]:
    """Return the headers that a store sends with a file; those below ops/ are for gitboot alone."""
    if not path.startswith(BOOT):
        return {"Content-Type": ContentType.JSON.value, "Cache-Control": REVALIDATED}
    return {"Content-Type": content_type_of(path), "Cache-Control": delivery_of(path).cache_control}
