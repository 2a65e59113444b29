"""A tree where there was none, server after server: none of their files is held, and nothing is compared."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from gitboot.progress import Told, counted
from gitboot.publish.amend import amended
from gitboot.publish.changes import SHARED, Publication
from gitboot.publish.changing import rendered
from gitboot.publish.disk import Disk
from gitboot.publish.fresh import begun
from gitboot.publish.index import index_of
from gitboot.publish.manifest import Head, Stamp
from gitboot.publish.signed_list import Listings, listing_in
from gitboot.publish.tree import Tree
from gitboot.render.listing import ListedFile
from gitboot.render.paths import is_content
from gitboot.render.state import outline, state_path


class Filled(NamedTuple):
    """What a tree holds."""

    head: Head
    content: Mapping[str, tuple[str, ...]]  # what the entries of each server name
    written: int  # files
    listings: Listings


def fill(disk: Disk, tree: Tree, wanted: Publication, stamp: Stamp, at: datetime, told: Told) -> Filled | None:
    """Bring a bare tree to what is wanted; None, and nothing is done, where it cannot be moved to its place.

    Raises PublishError.
    """
    written = 0
    digests: dict[str, str | None] = {}
    identities: dict[str, tuple[str, ...]] = {}
    listings: dict[str, ListedFile | None] = {}
    content = {SHARED: tuple(filter(is_content, wanted.no_servers))}
    with begun(disk, at) as fresh:
        if fresh is None:
            return None
        for server, files in counted(wanted.servers.items(), _but_the_last(told)):
            if files is not None:
                state = files[state_path(server)]
                digests[server], identities[server] = state.sha256, outline(state.content).identities
                written += fresh.add(files)
                content[server] = tuple(filter(is_content, files))
                listings[server] = listing_in(files, server)
        written += fresh.add(wanted.no_servers)
        head, manifest = amended(tree, stamp, digests, wanted.shares({}) or None)
        fresh.write({**rendered(index_of(identities)), **manifest})
    return Filled(head, content, written, listings)


def _but_the_last(told: Told) -> Told:
    """Who is told of one step more, which is to bring all to its place."""
    return lambda done, total: told(done, total + 1)
