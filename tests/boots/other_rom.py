"""A network card of a maker whose ROM is not iPXE.

Debian has no such ROM. This one is QEMU's iPXE, and the options by which iPXE identifies itself are removed from its
DHCP requests on their way out of the machine, until it loads a file by TFTP.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from tests.boots.machine import Machine

_IDENTIFY_IPXE: Final = frozenset({77, 175})  # DHCP options: the user class, and iPXE's own
_UDP, _OPTIONS = 14 + 20, 14 + 20 + 8 + 240  # offsets in a frame: Ethernet, IPv4, UDP and the header of DHCP
_SERVERS, _TFTP = (67, 4011), 69  # ports


@contextmanager
def replace_rom(machine: Machine) -> Iterator[Machine]:
    """Yield the machine with such a network card."""
    sent, passed = (socket.socket(socket.AF_UNIX) for _ in range(2))
    paths = [str(machine.folder / name) for name in ("sent", "passed")]
    for listening, path in zip((sent, passed), paths, strict=True):
        listening.bind(path)
        listening.listen()
    chardevs = [("-chardev", f"socket,id=c{number},path={path}") for number, path in enumerate(paths)]
    # QEMU's rx queue of the network backend has what the machine sends. A frame passes the last filter of it first.
    queue = "filter-redirector,netdev=n0,queue=rx,vnet_hdr_support=on"
    filters = (("-object", f"{queue},id=f1,indev=c1"), ("-object", f"{queue},id=f0,outdev=c0"))
    thread = threading.Thread(target=_relay_frames, args=(sent, passed), daemon=True)
    thread.start()
    try:
        yield replace(machine, more=tuple(each for pair in (*chardevs, *filters) for each in pair))
    finally:
        for listening in (sent, passed):
            listening.close()


def _relay_frames(sent: socket.socket, passed: socket.socket) -> None:
    """Pass on each frame until the machine is off."""
    with sent.accept()[0] as source, passed.accept()[0] as target, source.makefile("rb") as frames:
        rom = _Rom()
        while lengths := frames.read(8):
            size, header_size = struct.unpack("!II", lengths)  # net/filter-mirror.c, filter_send
            content = frames.read(size)
            target.sendall(lengths + content[:header_size] + rom.rewrite(content[header_size:]))


@dataclass
class _Rom:
    has_loaded: bool = False

    def rewrite(self, frame: bytes) -> bytes:
        is_udp = frame[12:14] == b"\x08\x00" and frame[14] == 0x45 and frame[23] == socket.IPPROTO_UDP
        if self.has_loaded or not is_udp:
            return frame
        [port] = struct.unpack_from("!H", frame, _UDP + 2)
        self.has_loaded = port == _TFTP
        return _strip_identity(frame) if port in _SERVERS else frame


def _strip_identity(frame: bytes) -> bytes:
    made = bytearray(frame)
    made[_UDP + 6 : _UDP + 8] = bytes(2)  # no checksum (RFC 768)
    at = _OPTIONS
    while at < len(made) and made[at] != 255:
        size = 1 if made[at] == 0 else 2 + made[at + 1]
        if made[at] in _IDENTIFY_IPXE:
            made[at : at + size] = bytes(size)  # padding
        at += size
    return bytes(made)
