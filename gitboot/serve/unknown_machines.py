"""Machines that no document describes: what they ask for, and what their images send; noted, and never decisive."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Final

from gitboot.endpoint.boot_gate import Asking, Census
from gitboot.endpoint.served_files import PublishedTree, without_document
from gitboot.fetchlog.unknown_machines import UnknownMachine, inventoried, network_of, unknown_of
from gitboot.observe.asked import UnknownAsked
from gitboot.observe.components import MOST_BYTES, parse_sent
from gitboot.render.paths import Role
from gitboot.serve.limits import ReadBody
from gitboot.serve.reply import HEARD, NOT_FOUND, NOT_NOW, TOO_OFTEN, Reply, refused

INVENTORY_PATH: Final = "/v1/inventory"
MOST_OF_ONE: Final = 60  # a minute, of one network address: a rack that is booted behind one
_MOST: Final = 600  # a minute, of all
_MINUTE: Final = timedelta(minutes=1)


class UnknownMachines:
    """Notes what machines ask for and send, as far as their fetches would count: not people, not monitors.

    A machine that a document describes after all is not noted.
    """

    def __init__(self, tree: PublishedTree, asked: UnknownAsked) -> None:
        self._tree, self.asked, self._census = tree, asked, Census(tree)
        self._minute: int | None = None  # in which these inventories were sent
        self._sent: Counter[str] = Counter()  # by the network address

    def note_request(self, path: str, asking: Asking) -> None:
        """Take note of a request that was answered 404, or what unknown machines boot."""
        if asking.only_looks or asking.client is None or not self._counts(asking, Role.ENTRY):
            return
        self._note(unknown_of(path, asking.query, asking.client, asking.at))

    async def note_inventory(self, read: ReadBody, asking: Asking) -> Reply:
        """Return the reply to the sender of an inventory: the same whether a document describes the machine or not."""
        if asking.client is None or not self._counts(asking, Role.DATA):
            return NOT_FOUND
        if not self.asked.is_left:
            return NOT_NOW  # it would be lost
        if not self._may_send(asking):
            return TOO_OFTEN
        content = bytearray()
        if (refusal := await read(MOST_BYTES, content.extend)) is not None:
            return refusal
        path = INVENTORY_PATH.removeprefix("/")
        try:
            self._note(inventoried(parse_sent(bytes(content)), path, asking.client, asking.at))
        except ValueError as error:
            return refused(str(error))
        return HEARD

    def _counts(self, asking: Asking, role: Role) -> bool:
        return self._census.why_not(asking.client, asking.agent, asking.query, role) is None

    def _note(self, machine: UnknownMachine | None) -> None:
        if machine is not None and (found := without_document(self._tree, machine)) is not None:
            self.asked.note(found)

    def _may_send(self, asking: Asking) -> bool:
        minute = int(asking.at.timestamp() // _MINUTE.total_seconds())
        if minute != self._minute:
            self._minute, self._sent = minute, Counter()
        network = network_of(asking.client)
        if self._sent[network] >= MOST_OF_ONE or self._sent.total() >= _MOST:
            return False
        self._sent[network] += 1
        return True
