"""Who asks: the address of a client, also behind proxies, and whether it lies in a network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

from starlette.types import Scope

Network = IPv4Network | IPv6Network

LOOPBACK: Final[tuple[Network, ...]] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))


def membership(networks: Iterable[Network]) -> Callable[[str | None], bool]:
    """What tells whether an address lies in one of ``networks``; no address lies in none."""
    ranges = tuple(networks)

    @lru_cache(maxsize=4096)  # parsing an address costs as much as answering it
    def contains(address: str | None) -> bool:
        found = _parse(address) if address else None
        return found is not None and any(found in network for network in ranges)

    return contains


def client_address(scope: Scope, is_trusted: Callable[[str | None], bool]) -> str | None:
    """The address a request comes from, in its shortest spelling; None if it cannot be told.

    Each proxy appends to ``X-Forwarded-For`` the address that it was asked from. So it is read from its end,
    as far as proxies are trusted; what stands before that, anyone could have written.
    """
    peer = scope["client"]
    address = _shortest(peer[0]) if peer else None
    if not is_trusted(address):
        return address
    forwarded = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    if not forwarded:
        return address
    for hop in reversed(b",".join(forwarded).decode("latin-1").split(",")):
        address = _shortest(hop.strip())
        if not is_trusted(address):
            break
    return address


@lru_cache(maxsize=4096)
def _shortest(address: str) -> str | None:
    found = _parse(address)
    return None if found is None else str(found)


def _parse(address: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(address.partition("%")[0])  # fe80::1%eth0: which interface it came by
    except ValueError:
        return None
    # A socket for both families shows IPv4 clients as ::ffff:10.0.0.1.
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found
