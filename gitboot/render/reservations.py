"""What DHCP reserves for each boot interface: addresses, a host name, a site."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gitboot.model.server import Lifecycle, Loader
from gitboot.resolve.hosts import Host


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """One interface."""

    mac: str  # with colons
    ipv4: str | None  # a lease has one
    ipv6: tuple[str, ...]
    hostname: str | None
    site: str | None
    loader: Loader | None


def reservations(hosts: Iterable[Host]) -> Iterator[Reservation]:
    """Of every boot interface, by server; retired servers have given their addresses back."""
    for host in hosts:
        if host.lifecycle is Lifecycle.RETIRED:
            continue
        for nic in host.nics:
            if nic.boots:
                yield Reservation(
                    mac=nic.mac.replace("-", ":"),
                    ipv4=next((address for address in nic.addresses if ":" not in address), None),
                    ipv6=tuple(address for address in nic.addresses if ":" in address),
                    hostname=_hostname(host.server),
                    site=host.site,
                    loader=host.loader,
                )


# Names of servers that DHCP servers take for something else: lease times, addresses, keywords of dnsmasq's dhcp-host.
_NOT_A_HOSTNAME: Final = re.compile(r"[0-9.]+[smhdw]?|infinite|ignore")


def _hostname(server: str) -> str | None:
    """A server's name where it can be a host name: labels of at most 63 characters (RFC 1035, 2.3.4)."""
    fits = all(len(label) <= 63 for label in server.split("."))
    return server if fits and not _NOT_A_HOSTNAME.fullmatch(server) else None
