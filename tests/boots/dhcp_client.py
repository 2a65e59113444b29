"""A DHCP client that sends the requests of firmware and of iPXE, and shows what each server answers."""

from __future__ import annotations

import itertools
import socket
import struct
import subprocess
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from tests.boots.network import INTERFACE, Neighbour, neighbour
from tests.boots.programs import program
from tests.helpers.fleets import make_mac

ADDRESS: Final = "192.0.2.250"
RELAYED, RELAY = "198.51.100.0", "198.51.100.1"  # another network, and the address of the host in it
PATIENCE_S: Final = 120
RESEND_S: Final = 4  # RFC 2131, 4.1: a client sends its message again

# RFC 2132, and RFC 4578 for 93, 94 and 97
_VENDOR_OPTIONS, _TYPE, _SERVER, _REQUESTS, _VENDOR, _FILE, _USER_CLASS = 43, 53, 54, 55, 60, 67, 77
_ARCHITECTURE, _UNDI, _UUID, _IPXE = 93, 94, 97, 175
_DISCOVER, _REQUEST = 1, 3
_MENU, _ITEM = 9, 71  # in option 43
_COOKIE: Final = bytes.fromhex("63825363")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of client, as DHCP servers distinguish them."""

    architecture: int | None = None  # None: it does not boot from the network
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
    relay: socket.socket  # port 67
    transactions: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def discover(self, kind: Kind, servers: Collection[str], mac: str = make_mac("asks")) -> dict[str, Answer]:
        """Broadcast a DISCOVER. Return the offers by server, as soon as each of ``servers`` has sent one."""
        message = _Message(kind=kind, mac=mac, transaction=next(self.transactions), type=_DISCOVER)
        return _exchange(self.firmware, message, ("255.255.255.255", 67), servers)

    def request_boot_file(self, kind: Kind, offer: Answer, mac: str = make_mac("asks")) -> Answer:
        """Request the boot file from port 4011 of the proxy, as firmware does that got an offer without a boot file.

        BIOS selects the first item of the offered menu (Preboot Execution Environment 2.1, table 2-1).
        """
        menu = _parse_options(offer.options[_VENDOR_OPTIONS]).get(_MENU) if kind.architecture == 0 else None
        item = b"" if menu is None else bytes([_ITEM, 4, *menu[:2], 0, 0, 255])
        message = _Message(
            kind=kind, mac=mac, transaction=next(self.transactions), type=_REQUEST, client=ADDRESS, item=item
        )
        return _exchange(self.firmware, message, (offer.server, 4011), {offer.server})[offer.server]

    def discover_through_relay(self, kind: Kind, server: str, mac: str = make_mac("asks")) -> Answer:
        """Send a DISCOVER as a relay does that has the address `RELAY` in the network of the client."""
        message = _Message(kind=kind, mac=mac, transaction=next(self.transactions), type=_DISCOVER, relay=RELAY)
        return _exchange(self.relay, message, (server, 67), {server})[server]


def _exchange(
    at: socket.socket, message: _Message, to: tuple[str, int], servers: Collection[str], within_s: float = PATIENCE_S
) -> dict[str, Answer]:
    found: dict[str, Answer] = {}
    until = time.monotonic() + within_s
    again = 0.0
    while not found.keys() >= {*servers}:
        if (now := time.monotonic()) >= again:
            assert now < until, f"no answer of {', '.join({*servers} - found.keys())} to {message}"
            at.sendto(message.encode(), to)
            again = now + RESEND_S
        try:
            received = at.recv(4096)
        except TimeoutError:
            continue
        if struct.unpack_from("!BxxxI", received) == (2, message.transaction):
            answer = _parse(received)
            found[answer.server] = answer
    return found


@contextmanager
def client() -> Iterator[Client]:
    """Yield a client on a new host of the network. The host is also the relay of another network."""
    with neighbour("asks", ADDRESS) as host:
        _ip(host.command(program("ip"), "addr", "add", f"{RELAY}/24", "dev", INTERFACE))
        _ip([program("ip"), "route", "replace", f"{RELAYED}/24", "via", ADDRESS])
        with _open_socket(host, ("", 68)) as firmware, _open_socket(host, (RELAY, 67)) as relay:
            yield Client(firmware=firmware, relay=relay)


def _ip(command: list[str]) -> None:
    subprocess.run(command, check=True)


@contextmanager
def _open_socket(host: Neighbour, address: tuple[str, int]) -> Iterator[socket.socket]:
    with host.enter():
        made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, INTERFACE.encode())
        made.bind(address)
        made.settimeout(1)
        yield made


@dataclass(frozen=True, kw_only=True, slots=True)
class _Message:
    kind: Kind
    mac: str
    transaction: int
    type: int
    client: str = ""  # the address that the client has
    relay: str = ""
    item: bytes = b""  # option 43

    def encode(self) -> bytes:
        options: dict[int, bytes] = {
            _TYPE: bytes([self.type]),
            _REQUESTS: bytes([1, 3, 6, _VENDOR_OPTIONS, _SERVER, _VENDOR, 66, _FILE, _UUID]),
        }
        if self.kind.architecture is not None:
            options |= {_VENDOR: self.kind.vendor.encode(), _ARCHITECTURE: self.kind.architecture.to_bytes(2)}
            options |= {_UNDI: bytes([1, 3, 1]), _UUID: bytes(17)}
        if self.kind.ipxe:
            options |= {_USER_CLASS: b"iPXE", _IPXE: bytes.fromhex("b105018086100e")}  # the PCI IDs of a card
        if self.item:
            options[_VENDOR_OPTIONS] = self.item
        broadcast = 0 if self.client else 0x8000
        addresses = b"".join(map(_pack_address, (self.client, "", "", self.relay)))
        hops = 1 if self.relay else 0
        header = struct.pack("!4BIHH", 1, 1, 6, hops, self.transaction, 0, broadcast) + addresses
        hardware = bytes.fromhex(self.mac.replace(":", "")).ljust(16, b"\0")
        encoded = b"".join(bytes([code, len(value)]) + value for code, value in options.items())
        return header + hardware + bytes(192) + _COOKIE + encoded + b"\xff"


def _pack_address(address: str) -> bytes:
    return socket.inet_aton(address) if address else bytes(4)


def _parse(message: bytes) -> Answer:
    options = _parse_options(message[240:])
    field_of_header = message[108:236].partition(b"\0")[0]
    return Answer(
        server=socket.inet_ntoa(options[_SERVER]),
        address=socket.inet_ntoa(message[16:20]),
        next_server=socket.inet_ntoa(message[20:24]),
        file=options.get(_FILE, field_of_header).rstrip(b"\0").decode(),
        vendor=options.get(_VENDOR, b"").decode(),
        options=options,
    )


def _parse_options(rest: bytes) -> dict[int, bytes]:
    options: dict[int, bytes] = {}
    while rest and rest[0] != 255:
        if rest[0] == 0:
            rest = rest[1:]
        else:
            options[rest[0]], rest = rest[2 : 2 + rest[1]], rest[2 + rest[1] :]
    return options
