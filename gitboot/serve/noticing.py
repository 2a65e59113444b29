"""Who asks an endpoint for a boot and is found by nothing: noted, unless a document has the machine after all."""

from __future__ import annotations

from gitboot.observe.asked import UnknownAsked
from gitboot.observe.undescribed import UnknownMachine, unknown_of
from gitboot.render.paths import Role
from gitboot.serve.counting import Census
from gitboot.serve.described import without_document
from gitboot.serve.giving import Asking
from gitboot.serve.tree import PublishedTree


class UnknownClients:
    """Notes what is asked for by machines, as far as their fetches would count: not by people, not by monitors."""

    def __init__(self, tree: PublishedTree, asked: UnknownAsked) -> None:
        self._tree, self.asked = tree, asked
        self._census = Census(tree)

    def note(self, path: str, asking: Asking) -> None:
        """Take note of a request that was answered 404, or what unknown machines boot."""
        if asking.only_looks or asking.client is None or not self.counts(asking, Role.ENTRY):
            return
        machine = unknown_of(path, asking.query, asking.client, asking.at)
        if machine is not None:
            self.note_machine(machine)

    def counts(self, asking: Asking, role: Role) -> bool:
        """Whether who asks is taken for a machine."""
        return self._census.why_not(asking.client, asking.agent, role) is None

    def note_machine(self, machine: UnknownMachine) -> None:
        """Take note of it, unless a document has it."""
        if (found := without_document(self._tree, machine)) is not None:
            self.asked.note(found)
