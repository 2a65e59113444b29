"""A machine behind pyghmi's IPMI server: its boot flags, its power, and what its firmware boots."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from pyghmi.ipmi.bmc import Bmc
from pyghmi.ipmi.private.session import Session

_DEVICES = {0: "None", 1: "Pxe", 2: "Hdd", 5: "Cd"}


class IpmiMachine(Bmc):  # type: ignore[misc]  # pyghmi has no types
    """Flags as they lie there, byte by byte; a boot consumes them unless they are persistent."""

    def __init__(self, guid: bytes, password: str, *, user: str = "root") -> None:
        super().__init__({user: password}, port=0, address="127.0.0.1")
        self.port = self.serversocket.getsockname()[1]
        self.guid = guid
        self.flags = bytearray(5)
        self.keeps_valid = 0  # parameter 3
        self.power = "on"
        self.boots: list[str] = []
        self.requests: list[tuple[int, int]] = []
        self.controls: list[int] = []  # Chassis Control
        self.fails: list[int] = []  # completion codes of the next requests to set flags

    def boot(self) -> None:
        """Reset it: its firmware reads the flags and clears what was for one boot."""
        valid, persistent = self.flags[0] & 0x80, self.flags[0] & 0x40
        self.boots.append(_DEVICES[self.flags[1] >> 2 & 0b1111] if valid else "None")
        if not persistent:
            self.flags[0] &= 0x7F

    def get_power_state(self) -> str:
        return self.power

    def handle_raw_request(self, request: Any, session: Any) -> Any:
        netfn, command, data = request["netfn"], request["command"], bytes(request["data"])
        self.requests.append((netfn, command))
        match netfn, command:
            case 6, 0x37:
                return session.send_ipmi_response(data=list(self.guid))
            case 0, 2:
                self.controls.append(data[0])
                return session.send_ipmi_response()
            case 0, 9 if data[0] == 5:
                return session.send_ipmi_response(data=[1, 5, *self.flags])
            case 0, 8 if self.fails:
                return session.send_ipmi_response(code=self.fails.pop(0))
            case 0, 8 if data[0] == 3:
                self.keeps_valid = data[1]
                return session.send_ipmi_response()
            case 0, 8 if data[0] == 5:
                self.flags[:] = data[1:6]
                return session.send_ipmi_response()
        return super().handle_raw_request(request, session)


@contextmanager
def ipmi_machine(uuid: str, password: str) -> Iterator[IpmiMachine]:
    """A machine whose BMC answers on a port of its own, and shows its UUID as SMBIOS has it."""
    machine = IpmiMachine(UUID(uuid).bytes_le, password)
    ended = threading.Event()

    def answer() -> None:
        while not ended.is_set():
            Session.wait_for_rsp(0.1)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        yield machine
    finally:
        ended.set()
        thread.join()
