"""Unknown machines: limit and record the boot requests and the inventories that they send to an endpoint."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import Final

from gitboot.endpoint.boot_gate import ClientRequest, FetchFilter
from gitboot.endpoint.connections import ReadBody
from gitboot.endpoint.replies import (
    NO_CONTENT,
    NOT_FOUND,
    RETRY_LATER,
    TOO_MANY_REQUESTS,
    UNCACHED,
    Reply,
    build_file_reply,
)
from gitboot.endpoint.served_files import PublishedTree, match_documents
from gitboot.fetchlog.log_entries import get_client_network
from gitboot.fetchlog.unknown_machines import (
    MAX_INVENTORY_BYTES,
    UnknownMachine,
    UnknownMachineRecorder,
    build_from_inventory,
    parse_inventory,
    parse_unknown_machine,
)
from gitboot.render.paths import ContentType, Role

INVENTORY_PATH: Final = "/v1/inventory"
MAX_INVENTORIES_PER_ADDRESS: Final = 60  # the limit per minute for one address; a whole rack may share an address
_MAX_INVENTORIES: Final = 600  # the limit per minute for all addresses together
_MINUTE: Final = timedelta(minutes=1)


class UnknownMachineHandler:
    """Records the requests and inventories of unknown machines.

    gitboot ignores requests from people, from monitors, and from machines that have a document.
    """

    def __init__(self, tree: PublishedTree, recorder: UnknownMachineRecorder) -> None:
        self._tree, self.recorder, self._fetch_filter = tree, recorder, FetchFilter(tree)
        self._minute: int | None = None  # the minute in which the counted inventories were sent
        self._sent_inventories: Counter[str] = Counter()  # the number of inventories in that minute for each network

    def record_request(self, path: str, request: ClientRequest) -> None:
        """Record a request to which the response was 404 or the boot script for unknown machines."""
        if not request.is_head and request.client is not None and self._is_from_machine(request, Role.BOOT_SCRIPT):
            self._record(parse_unknown_machine(path, request.query, request.client, request.at))

    async def record_inventory(self, read_body: ReadBody, request: ClientRequest) -> Reply:
        """Record an inventory and return the response.

        The response does not reveal whether the machine has a document.
        """
        if request.client is None or not self._is_from_machine(request, Role.DATA):
            return NOT_FOUND
        if not self.recorder.is_forwarded:
            return RETRY_LATER  # the machine sends the inventory again later
        if not self._count_inventory(request.client, request.at):
            return TOO_MANY_REQUESTS
        content = bytearray()
        if (refusal := await read_body(MAX_INVENTORY_BYTES, content.extend)) is not None:
            return refusal
        path = INVENTORY_PATH.removeprefix("/")
        try:
            self._record(build_from_inventory(parse_inventory(bytes(content)), path, request.client, request.at))
        except ValueError as error:
            return build_file_reply(f"{error}\n".encode(), ContentType.TEXT, UNCACHED, status=400)
        return NO_CONTENT

    def _count_inventory(self, client: str, at: datetime) -> bool:
        """Count an inventory from an address. Return False if the inventory exceeds a limit of the current minute."""
        minute = int(at.timestamp() // _MINUTE.total_seconds())
        if minute != self._minute:
            self._minute, self._sent_inventories = minute, Counter()
        network = get_client_network(client)
        if self._sent_inventories[network] >= MAX_INVENTORIES_PER_ADDRESS:
            return False
        if self._sent_inventories.total() >= _MAX_INVENTORIES:
            return False
        self._sent_inventories[network] += 1
        return True

    def _is_from_machine(self, request: ClientRequest, role: Role) -> bool:
        return self._fetch_filter.find_reason_to_ignore(request.client, request.agent, request.query, role) is None

    def _record(self, machine: UnknownMachine | None) -> None:
        if machine is not None and (unknown_machine := match_documents(self._tree, machine)) is not None:
            self.recorder.add(unknown_machine)
