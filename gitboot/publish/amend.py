"""The manifest as it is when some servers have changed: the parts of it that change with them."""

from __future__ import annotations

from collections.abc import Mapping

from gitboot.publish.manifest import (
    MANIFEST,
    SHARED,
    Head,
    Stamp,
    digest_of,
    leaf_path,
    node_path,
    part_of,
    place_of,
    render_digests,
    render_head,
    render_listing,
)
from gitboot.publish.tree_reader import Tree
from gitboot.render.endpoint_files import Listed

Parts = dict[str, bytes | None]  # by path, the head last; None: it lists nothing any more, and so has no file


def amended(
    tree: Tree, stamp: Stamp, digests: Mapping[str, str | None], shared: Mapping[str, Listed] | None
) -> tuple[Head, Parts]:
    """The head with these states and these shared files, and the files of the manifest that change with it.

    What a publication that was cut short may have replaced is written anew.
    """
    leaves: dict[tuple[str, str], dict[str, str | None]] = {}
    for server, digest in digests.items():
        leaves.setdefault(place_of(server), {})[server] = digest
    nodes: dict[str, dict[str, str | None]] = {}
    for node, leaf in map(part_of, tree.pending):
        if node is not None:
            nodes.setdefault(node, {})
            if leaf is not None:
                leaves.setdefault((node, leaf), {})
    before = {node: tree.node(node) for node in sorted({*nodes, *(node for node, _ in leaves)})}
    parts: Parts = {}
    for (node, leaf), changes in sorted(leaves.items()):
        was = tree.leaf(node, leaf, before[node].get(leaf))
        nodes.setdefault(node, {})[leaf] = _amend(parts, leaf_path(node, leaf), was, changes)
    top: dict[str, str | None] = {}
    for node, changes in sorted(nodes.items()):
        top[node] = _amend(parts, node_path(node), before[node], changes)
    head = Head(
        stamp=stamp,
        nodes=_changed(tree.head.nodes if tree.head else {}, top),
        shared=_amend_shared(parts, tree, shared),
    )
    return head, {**dict.fromkeys(tree.outdated), **parts, MANIFEST: render_head(head)}


def _amend(parts: Parts, path: str, before: Mapping[str, str], changes: Mapping[str, str | None]) -> str | None:
    """Add a part to those that are written, and return its digest; None where it lists nothing."""
    now = _changed(before, changes)
    parts[path] = data = render_digests(now) if now else None
    return digest_of(data) if data is not None else None


def _amend_shared(parts: Parts, tree: Tree, shared: Mapping[str, Listed] | None) -> str | None:
    if shared is None and SHARED in tree.pending:
        shared = tree.shared()
    if shared is None:
        return tree.head.shared if tree.head else None
    parts[SHARED] = data = render_listing(shared) if shared else None
    return digest_of(data) if data is not None else None


def _changed(before: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    now = {**before, **changes}
    return {name: digest for name, digest in now.items() if digest is not None}
