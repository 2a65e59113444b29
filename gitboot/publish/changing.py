"""A tree that changes: what is written is staged beside what stands, then put in its place file by file."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from types import MappingProxyType

from gitboot.errors import PublishError
from gitboot.jsonio import canonical
from gitboot.publish.amend import Parts
from gitboot.publish.durable_files import Disk, staged
from gitboot.publish.first_publication import rendered
from gitboot.publish.tree_changes import TreeChanges
from gitboot.publish.tree_reader import PENDING, Tree, batch_path
from gitboot.render.paths import Stage, is_content, publication_stage
from gitboot.status.progress import Told, counted, unheard


def change(
    disk: Disk,
    tree: Tree,
    changes: TreeChanges,
    content: Mapping[str, bytes],
    alike: Mapping[str, tuple[str, ...]],
    manifest: Parts,
    told: Told,
) -> None:
    """Replace file after file: content before what names it, the first scripts after it, the manifest last.

    ``content`` is what is written, by path, and ``alike`` the paths that are to be one file, by the first of them.
    Raises PublishError; what it leaves then is between two versions, and ``tree`` knows of what.
    """
    batch = _batch(tree, changes)
    joined, parted = rendered(changes.joined), rendered(changes.parted)
    # By the states, whoever goes on from what is cut short finds whose all these are. PENDING among them says so.
    tree.begin({*changes.paths, *changes.beside, *batch, *manifest, PENDING})
    try:
        _stage(disk, {PENDING: canonical(sorted(tree.pending))}, changes.at)
        disk.sync()
        disk.place(PENDING)
        disk.sync()
        _stage(disk, {**content, **batch, **joined, **manifest}, changes.at, alike, _half(told, 0))
        disk.sync()
        _place(disk, (path for path in content if is_content(path)))
        disk.sync()
        _place(disk, joined)
        states = set(changes.states)
        others = [path for path in (*content, *batch) if not is_content(path) and path not in states]
        scripts = [path for path in others if publication_stage(path) is Stage.FIRST_SCRIPTS]
        _place(disk, counted([*changes.states, *(each for each in others if each not in scripts)], _half(told, 1)))
        if scripts:
            disk.sync()
            _place(disk, scripts)
        if parted:
            _stage(disk, parted, changes.at)
            disk.sync()
            _replace(disk, parted)
        _remove(disk, (*changes.withdrawn, *changes.expired))
        _remove(disk, (batch_path(since) for since in changes.batches))
        _replace(disk, manifest)
        disk.sync()
        disk.remove(PENDING)
    except PublishError:
        with suppress(PublishError):
            discard(disk, {*tree.pending, PENDING})
        raise


def discard(disk: Disk, paths: Collection[str]) -> None:
    """Remove what was staged for these paths."""
    for path in sorted(paths):
        disk.remove(staged(path))


def _replace(disk: Disk, contents: Mapping[str, bytes | None]) -> None:
    """Put what was staged in its place, after what goes."""
    _remove(disk, (path for path, content in contents.items() if content is None))
    _place(disk, (path for path, content in contents.items() if content is not None))


def _place(disk: Disk, paths: Iterable[str]) -> None:
    for path in paths:
        disk.place(path)


def _remove(disk: Disk, paths: Iterable[str]) -> None:
    for path in paths:
        disk.remove(path)


def _stage(
    disk: Disk,
    contents: Mapping[str, bytes | None],
    at: datetime,
    alike: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    told: Told = unheard,
) -> None:
    """``alike`` are paths, by the first of them, that are to be one file."""
    others = {path for paths in alike.values() for path in paths}
    for path, content in counted(contents.items(), told):
        if content is None or path in others:
            continue
        disk.stage(path, content, at)
        for other in alike.get(path, ()):
            disk.stage(other, content, at, like=path)


def _half(told: Told, half: int) -> Told:
    """Who is told of one of the two times that each file costs something."""
    return lambda done, total: told(half * total + done, 2 * total)


def _batch(tree: Tree, changes: TreeChanges) -> dict[str, bytes]:
    """The list of what is retired now, with what was in the same second; and one that was between two versions."""
    since = {changes.at} if changes.retired else set[datetime]()
    if tree.pending:
        since |= {each for each in tree.batches.difference(changes.batches) if batch_path(each) in tree.pending}
    if not since:
        return {}
    retired = {**tree.retired, **dict.fromkeys(changes.retired, changes.at)}
    return {
        batch_path(at): canonical(sorted(path for path, each in retired.items() if each == at)) for at in sorted(since)
    }
