"""Whether a document has a machine that says who it is: by the index of a published tree."""

from __future__ import annotations

from dataclasses import replace

from gitboot.observe.undescribed import UnknownMachine, UnknownMachines, parse_unknown
from gitboot.publish.manifest import UNKNOWN
from gitboot.render.paths import Kind, identity_of
from gitboot.serve.tree import Moving, PublishedTree


def without_document(tree: PublishedTree, machine: UnknownMachine) -> UnknownMachine | None:
    """The machine, with whose document has it as far as one does; None: a document has its UUID, or all that it says.

    What cannot be told just now counts as known.
    """
    try:
        found = {each: tree.find(each) for each in machine.identities}
    except (Moving, ValueError):
        return None
    by_uuid = machine.uuid is not None and found[identity_of(Kind.UUID, machine.uuid)] is not None
    server = next((each.state.server for each in found.values() if each is not None), None)
    if by_uuid or (server is not None and machine.uuid is None):
        return None
    return replace(machine, server=server)


def shown_unknown(tree: PublishedTree) -> UnknownMachines | None:
    """The machines that no document describes, as the instance has left them; None: it has left nothing."""
    found = tree.read(UNKNOWN)
    return parse_unknown(found.content) if found is not None else None
