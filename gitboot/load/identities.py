"""What distinguishes a server from every other: its UUID, serial, addresses and BMC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from gitboot.document import Path
from gitboot.model.scalars import swapped
from gitboot.model.server import Bmc, Server


class Identity(NamedTuple):
    """Something that no two servers share."""

    what: str
    value: str
    same: str  # equal where it is the same thing in another spelling
    path: Path


def identities(server: Server) -> Iterator[Identity]:
    spec = server.spec
    # Loaders ask by UUID in either byte order, so a UUID and its swapped form are one identity.
    yield Identity("UUID", spec.uuid, min(spec.uuid, swapped(spec.uuid)), ("spec", "uuid"))
    if spec.serial is not None:
        # A mirror's file system may not distinguish capitals from small letters.
        yield Identity("serial", spec.serial, spec.serial.upper(), ("spec", "serial"))
    for number, interface in enumerate(spec.interfaces):
        at: Path = ("spec", "interfaces", number)
        yield Identity("MAC address", interface.mac.replace("-", ":"), interface.mac, (*at, "mac"))
        for index, address in enumerate(interface.addresses):
            ip = address.partition("/")[0]
            yield Identity("address", ip, ip, (*at, "addresses", index))
    if spec.bmc is not None:
        address, system = spec.bmc.address, f" {spec.bmc.system}" if spec.bmc.system else ""
        yield Identity("BMC", address + system, endpoint(spec.bmc) + system, ("spec", "bmc", "address"))


def endpoint(bmc: Bmc) -> str:
    """A BMC's address in lower case, with its port."""
    parts = urlsplit(bmc.address.lower())
    return f"{parts.scheme}://{parts.hostname}:{parts.port or _PORTS[parts.scheme]}{parts.path}"


_PORTS: Final = {"http": 80, "https": 443}
