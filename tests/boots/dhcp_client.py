"""A DHCP client that sends the requests of firmware and of iPXE, and shows what each server answers."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.boots.network import CARD, Neighbour, neighbour
from tests.helpers.fleets import mac_of

ADDRESS: Final = "192.0.2.250"
PATIENCE_S: Final = 60

# RFC 2132, and RFC 4578 for 93, 94 and 97
_TYPE, _SERVER, _REQUESTS, _VENDOR, _USER_CLASS, _FILE = 53, 54, 55, 60, 77, 67
_ARCHITECTURE, _UNDI, _UUID, _IPXE = 93, 94, 97, 175
_DISCOVER, _REQUEST = 1, 3
_COOKIE: Final = bytes.fromhex("63825363")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of client, as DHCP servers distinguish them."""

    architecture: int
    http: bool = False
    ipxe: bool = False

    @property
    def vendor(self) -> str:
        return f"{'HTTPClient' if self.http else 'PXEClient'}:Arch:{self.architecture:05}:UNDI:003001"


KINDS: Final = {
    "BIOS": Kind(architecture=0),
    "UEFI x64": Kind(architecture=7),
    "UEFI x64 of older firmware": Kind(architecture=9),
    "UEFI arm64": Kind(architecture=11),
    "HTTP x64": Kind(architecture=16, http=True),
    "HTTP arm64": Kind(architecture=19, http=True),
    "iPXE on BIOS": Kind(architecture=0, ipxe=True),
    "iPXE on UEFI": Kind(architecture=7, ipxe=True),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """An offer or an acknowledgement."""

    server: str  # option 54
    address: str  # that the client gets; 0.0.0.0: none
    next_server: str
    file: str  # option 67, else the field of the header
    vendor: str  # option 60
    options: dict[int, bytes] = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """A client on a host of its own, so that servers answer it as they answer machines."""

    firmware: socket.socket  # port 68
    transactions: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def discover(self, kind: Kind, servers: Collection[str], mac: str = mac_of("asks")) -> dict[str, Answer]:
        """Broadcast a DISCOVER. Return the offers by server, as soon as each of ``servers`` has sent one."""
        transaction = next(self.transactions)
        self.firmware.sendto(_message(kind, mac, transaction, _DISCOVER), ("255.255.255.255", 67))
        return self._receive(transaction, servers)

    def request_boot_file(self, kind: Kind, server: str, mac: str = mac_of("asks")) -> Answer:
        """Request the boot file from port 4011, as firmware does that got an offer without a boot file."""
        transaction = next(self.transactions)
        self.firmware.sendto(_message(kind, mac, transaction, _REQUEST, address=ADDRESS), (server, 4011))
        return self._receive(transaction, {server})[server]

    def _receive(self, transaction: int, servers: Collection[str]) -> dict[str, Answer]:
        found: dict[str, Answer] = {}
        while not found.keys() >= {*servers}:
            message = self.firmware.recv(4096)
            if struct.unpack_from("!BxxxI", message) == (2, transaction):
                answer = _parse(message)
                found[answer.server] = answer
        return found


@contextmanager
def client() -> Iterator[Client]:
    """Yield a client on a new host of the network."""
    with neighbour("asks", ADDRESS) as host, _socket(host) as firmware:
        yield Client(firmware=firmware)


@contextmanager
def _socket(host: Neighbour) -> Iterator[socket.socket]:
    with host.entered():
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, CARD.encode())
        made.bind(("", 68))
        made.settimeout(PATIENCE_S)
        yield made


def _message(kind: Kind, mac: str, transaction: int, message: int, *, address: str = "0.0.0.0") -> bytes:
    options: dict[int, bytes] = {
        _TYPE: bytes([message]),
        _REQUESTS: bytes([1, 3, 6, 43, 54, 60, 66, 67, 97]),
        _VENDOR: kind.vendor.encode(),
        _ARCHITECTURE: kind.architecture.to_bytes(2),
        _UNDI: bytes([1, 3, 1]),
        _UUID: bytes(17),
    }
    if kind.ipxe:
        options |= {_USER_CLASS: b"iPXE", _IPXE: bytes.fromhex("b105018086100e")}
    hardware = bytes.fromhex(mac.replace(":", "")).ljust(16, b"\0")
    broadcast = 0x8000 if address == "0.0.0.0" else 0
    header = struct.pack("!4BIHH", 1, 1, 6, 0, transaction, 0, broadcast) + socket.inet_aton(address) + bytes(12)
    encoded = b"".join(bytes([code, len(value)]) + value for code, value in options.items())
    return header + hardware + bytes(192) + _COOKIE + encoded + b"\xff"


def _parse(message: bytes) -> Answer:
    options: dict[int, bytes] = {}
    rest = message[240:]
    while rest and rest[0] != 255:
        if rest[0] == 0:
            rest = rest[1:]
            continue
        options[rest[0]], rest = rest[2 : 2 + rest[1]], rest[2 + rest[1] :]
    field_of_header = message[108:236].partition(b"\0")[0]
    return Answer(
        server=socket.inet_ntoa(options[_SERVER]),
        address=socket.inet_ntoa(message[16:20]),
        next_server=socket.inet_ntoa(message[20:24]),
        file=options.get(_FILE, field_of_header).rstrip(b"\0").decode(),
        vendor=options.get(_VENDOR, b"").decode(),
        options=options,
    )
