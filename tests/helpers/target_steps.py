"""Bring a target up to a published directory, as a follower does, and end that in the middle."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path

from gitboot.publish.durable_files import Disk
from gitboot.publish.targets.follower import FollowedBy
from gitboot.publish.targets.sync_steps import FileStore, FollowedTree, StoreTarget, after, next_step

_place = Disk.place


class TargetKilled(BaseException):
    """The process that writes a target is killed here."""


def bring_up(target: FollowedBy, tree: FollowedTree) -> int:
    """Make steps until the target holds what is published. Return how many."""
    held = target.load()
    for steps in count():
        if (glance := tree.look()) is None:
            return steps
        step = next_step(tree, glance, held, partial(target.shard, held.head), target.most)
        if step is None:
            return steps
        target.apply(step, held, tree)
        held = after(held, step)
    raise AssertionError


def followed(store: FileStore, root: Path, *, name: str = "target", ledger: str = "test") -> StoreTarget:
    """Have a new process bring a target in a store up to the directory at ``root``, and return its target."""
    target = StoreTarget(name, lambda: store, ledger=ledger, heir_of=lambda: None, writer=f"{ledger}-1")
    bring_up(target, FollowedTree(root))
    return target


def killed_after(replaced: int) -> Callable[[Disk, str], None]:
    """Return a `Disk.place` that raises `TargetKilled` after so many files, unless that is 0."""
    places = count(1)

    def place(disk: Disk, path: str) -> None:
        if next(places) == replaced:
            raise TargetKilled
        _place(disk, path)

    return place
