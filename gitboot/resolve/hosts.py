"""Servers as the network knows them: addresses of each interface, and the site they are at."""

from __future__ import annotations

from dataclasses import dataclass

from gitboot.model.scalars.machines import MacAddress
from gitboot.model.server import Lifecycle, Loader, Server


@dataclass(frozen=True, kw_only=True, slots=True)
class Nic:
    """One interface: its MAC address and what IP addresses it is given."""

    mac: MacAddress
    addresses: tuple[str, ...]  # without prefix lengths
    boots: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """One server's interfaces, and whose mirror is near."""

    server: str
    lifecycle: Lifecycle
    site: str | None
    nics: tuple[Nic, ...]  # in the document's order
    loader: Loader | None = None  # that DHCP names; None: as for most machines


def host(server: Server, site: str | None, loader: Loader | None) -> Host:
    """What the network is told of ``server``."""
    return Host(
        server=server.metadata.name,
        lifecycle=server.spec.lifecycle,
        site=site,
        loader=loader,
        nics=tuple(
            Nic(
                mac=interface.mac,
                addresses=tuple(address.partition("/")[0] for address in interface.addresses),
                boots=interface.boot,
            )
            for interface in server.spec.interfaces
        ),
    )


def idle(host: Host) -> tuple[MacAddress, ...]:
    """The interfaces that the machine may not boot from, which its decision does not list."""
    return tuple(nic.mac for nic in host.nics if not nic.boots)
