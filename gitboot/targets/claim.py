"""The head of a target, by which one process says that it writes there, and notices whoever else does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from gitboot import __version__
from gitboot.errors import ForeignTree, HostUnreachable, LockedByAnother, OperatorError, PublishError
from gitboot.publish.targets.sync_steps import HEAD, TargetHead, parse_head, render_head
from gitboot.targets.file_store import FileConflict, FileStore, StoredFile


class Claim:
    """The head as this process has written it last. Each replaces exactly that one."""

    def __init__(self, name: str, *, ledger: str, heir_of: Callable[[], str | None], writer: str) -> None:
        self._name, self._ledger, self._heir_of, self._writer = name, ledger, heir_of, writer
        self._stands: StoredFile | None = None

    def make(self, store: FileStore) -> TargetHead:
        """The head that lies there, with this process as its writer. Raises `ForeignTree` and `LockedByAnother`."""
        found = store.get(HEAD)
        if found is None:
            return self._begin(store)
        head = self._own(found.content, "choose another place, or take it over with gitboot records begin")
        if self._stands is not None and head.writer != self._writer:
            raise self._contended(head)
        self._stands = found
        return self.write(store, replace(head, ledger=self._ledger, writer=self._writer))

    def observe(self, store: FileStore, hint: str) -> TargetHead | None:
        """Return the head that a target has, and write nothing; None if it has none. Raises `ForeignTree`."""
        self._stands = store.get(HEAD)
        return self._own(self._stands.content, hint) if self._stands is not None else None

    def is_as_observed(self, found: StoredFile | None) -> bool:
        """Return whether a head that was read again is the one that this process has observed or written last."""
        return (found and found.content) == (self._stands and self._stands.content)

    def _begin(self, store: FileStore) -> TargetHead:
        head = TargetHead(ledger=self._ledger, commit="", gitboot=__version__, writer=self._writer)
        data = render_head(head)
        with suppress(FileConflict):  # of another, or of this one, whose first try was answered too late
            store.create(HEAD, data)
        self._stands = store.get(HEAD)
        if self._stands is None or self._stands.content != data:
            self._stands = None
            raise HostUnreachable(f"{self._name}: another has just begun to write there")
        return head

    def check(self, store: FileStore) -> None:
        """See that nobody else has written the head since."""
        found = store.get(HEAD)
        if found is None or not self.is_as_observed(found):
            raise self._contended(self._parse(found.content) if found is not None else None)

    def write(self, store: FileStore, head: TargetHead) -> TargetHead:
        """Replace the head. Where the answer to that was lost, what stands there says whether it was replaced."""
        data, stands = render_head(head), self._stands
        if stands is None or stands.content != data:
            with suppress(FileConflict):
                store.replace(HEAD, data, stands.version if stands is not None else None)
            found = store.get(HEAD)
            if found is None or found.content != data:
                raise self._contended(self._parse(found.content) if found is not None else None)
            self._stands = found
        return head

    def _own(self, content: bytes, hint: str) -> TargetHead:
        """Return a head of this ledger, or of the one that it goes on from. Raises `ForeignTree`."""
        head = self._parse(content)
        if head.ledger not in (self._ledger, self._heir_of()):
            raise ForeignTree(f"{self._name} belongs to the ledger {head.ledger}, not to {self._ledger} ({hint})")
        return head

    def _contended(self, head: TargetHead | None) -> OperatorError:
        if head is None:
            return PublishError(f"{self._name}: somebody has removed {HEAD}")
        if head.ledger != self._ledger:
            return ForeignTree(f"{self._name} belongs to the ledger {head.ledger} by now, not to {self._ledger}")
        return LockedByAnother(
            f"{self._name}: another process with this ledger writes there ({head.writer}; this is {self._writer}): end "
            "one of the two, then start this one anew"
        )

    def _parse(self, content: bytes) -> TargetHead:
        try:
            return parse_head(content)
        except ValueError as error:
            raise PublishError(f"{self._name}: {HEAD} is {error} (choose another place)") from error
