"""Who asks: the address of a client, also behind proxies, whether it lies in a network, and what it may do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final

from starlette.types import Scope

from gitboot.observe.asked import UnknownAsked
from gitboot.serve.limits import MOST_IDLE

if TYPE_CHECKING:
    from gitboot.serve.certificate import Certificate
    from gitboot.serve.operators import Tokens
    from gitboot.serve.pushes import Pushes

Network = IPv4Network | IPv6Network

LOOPBACK: Final[tuple[Network, ...]] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
FORWARDED: Final = frozenset({b"x-forwarded-for", b"forwarded"})  # RFC 7239, and the header that it replaces


@dataclass(frozen=True, kw_only=True, slots=True)
class Clients:
    """Who may do what: proxies may say for whom they ask, operators may see what is planned."""

    trusted_proxies: Iterable[Network] = ()  # whose X-Forwarded-For states who asks
    operators: Iterable[Network] = LOOPBACK
    names: tuple[str, ...] = ()  # by which operators may ask, besides addresses
    tokens: Tokens | None = None  # that let read what operators may, from anywhere
    operators_at: tuple[str, int] | None = None  # the socket at which they ask, and machines do not
    certificate: Certificate | None = None  # what they are shown there; None: nothing is encrypted
    most_idle: int = MOST_IDLE  # connections of one address that wait for their client
    pushes: Pushes | None = None  # who hears webhooks of forges
    asked: UnknownAsked = field(default_factory=UnknownAsked)  # where it is noted who is found by nothing


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
    as far as proxies are trusted; what stands before that, anyone could have written. An address that is not trusted,
    loopback too, is the client itself, whatever it sends.
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


def unnamed_proxy(scope: Scope, is_trusted: Callable[[str | None], bool]) -> str | None:
    """Return the address that states for whom it asks, and is no trusted proxy; None: there is none."""
    peer = scope["client"]
    address = _shortest(peer[0]) if peer and any(name in FORWARDED for name, _ in scope["headers"]) else None
    return None if is_trusted(address) else address


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
