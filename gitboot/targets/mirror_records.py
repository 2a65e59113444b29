"""Read the records beside the files of a mirror, which name the ledger that publishes there, and claim nothing."""

from __future__ import annotations

from typing import Final

from gitboot.errors import ForeignTree, PublishError
from gitboot.publish.manifest import Head, parse_head
from gitboot.publish.targets.store_target import StoreTarget
from gitboot.publish.targets.sync_steps import HEAD
from gitboot.targets.claim import Claim
from gitboot.targets.file_store import FileStore
from gitboot.targets.published import FollowedTree, Overtaken
from gitboot.targets.step import outdated

_HINT: Final = "with --tree, name the OUTPUT of the instance that publishes there"


class MirrorRecords:
    """The records of a mirror: those of a target, those of OUTPUT if all of it was copied, or none."""

    def __init__(self, name: str, store: FileStore | None, ledger: str) -> None:
        """``store`` has the records; None: the mirror has no place for records. ``ledger`` is that of the tree."""
        self._name, self._store, self._ledger = name, store, ledger
        self._copied: bytes | None = None  # the head of a copied OUTPUT
        self._target: StoreTarget | None = None
        if store is not None:
            claim = Claim(name, ledger=ledger, heir_of=lambda: None, writer="")
            self._target = StoreTarget(name, claim, lambda: store)

    def observe(self, tree: FollowedTree) -> bool:
        """Return whether the mirror is a target of the tree's instance, and remember the records.

        Raises `ForeignTree` if another ledger publishes there, `Overtaken` if the target does not hold what the tree
        has, `PublishError` and `HostUnreachable`.
        """
        if self._store is None or self._target is None:
            return False
        found = self._store.get(HEAD)
        copied = _tree_head(found.content) if found is not None else None
        self._copied = found.content if found is not None and copied is not None else None
        if copied is not None:
            if copied.stamp.ledger != self._ledger:
                belongs = f"{self._name} belongs to the ledger {copied.stamp.ledger}, not to {self._ledger}"
                raise ForeignTree(f"{belongs} ({_HINT})")
            return False
        if (held := self._target.observe(_HINT)) is None:
            return False
        glance = tree.look()
        if glance is None or outdated(glance, held):
            raise Overtaken(
                f"{self._name}: an instance is writing there, or the target has another publication than the tree "
                f"(let the instance bring it up, or name its OUTPUT with --tree)"
            )
        return True

    def is_as_observed(self) -> bool:
        """Return whether no process has begun or ended to write since `observe`."""
        if self._store is None or self._target is None:
            return True
        if self._copied is not None:
            found = self._store.get(HEAD)
            return found is not None and found.content == self._copied
        return self._target.is_as_observed()


def tree_head(data: bytes | None, place: str) -> Head:
    """Return the head of a published tree. Raises `PublishError`."""
    if data is None:
        raise PublishError(f"{place}: expected a tree that gitboot published, found no {HEAD}")
    if (head := _tree_head(data)) is None:
        raise PublishError(f"{place}: {HEAD} is not one of this version of gitboot (let gitboot publish again)")
    return head


def _tree_head(data: bytes) -> Head | None:
    try:
        return parse_head(data)
    except ValueError:
        return None
