"""What images send of machines that nobody described: taken note of, within bounds; it decides nothing."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Final

from starlette.types import Receive

from gitboot.observe.components import MOST_BYTES, parse_sent
from gitboot.observe.undescribed import inventoried, network_of
from gitboot.render.paths import Role
from gitboot.serve.body import whole_of
from gitboot.serve.giving import Asking
from gitboot.serve.noticing import UnknownClients
from gitboot.serve.reply import HEARD, NOT_FOUND, NOT_NOW, TOO_OFTEN, Reply, refused

INVENTORY_PATH: Final = "/v1/inventory"
MOST_OF_ONE: Final = 60  # a minute, of one network address: a rack that is booted behind one
_MOST: Final = 600  # a minute, of all
_MINUTE: Final = timedelta(minutes=1)


class Inventories:
    """Takes them in, each once it is known that its sender may send one now."""

    def __init__(self, unknown: UnknownClients) -> None:
        self._unknown = unknown
        self._minute: int | None = None  # in which these were sent
        self._sent: Counter[str] = Counter()  # by the network address

    async def hear(self, receive: Receive, asking: Asking) -> Reply:
        """The reply to who sends one: the same whether a document has the machine or none."""
        if asking.client is None or not self._unknown.counts(asking, Role.DATA):
            return NOT_FOUND
        if not self._unknown.asked.is_left:
            return NOT_NOW  # it would be lost
        if not self._may_send(asking):
            return TOO_OFTEN
        if isinstance(content := await whole_of(receive, MOST_BYTES), Reply):
            return content
        try:
            machine = inventoried(parse_sent(content), INVENTORY_PATH.removeprefix("/"), asking.client, asking.at)
        except ValueError as error:
            return refused(str(error))
        self._unknown.note_machine(machine)
        return HEARD

    def _may_send(self, asking: Asking) -> bool:
        minute = int(asking.at.timestamp() // _MINUTE.total_seconds())
        if minute != self._minute:
            self._minute, self._sent = minute, Counter()
        network = network_of(asking.client or "")
        if self._sent[network] >= MOST_OF_ONE or self._sent.total() >= _MOST:
            return False
        self._sent[network] += 1
        return True
