"""Connections that wait for their clients: few for each address, and the one that has waited longest goes first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Final, Protocol

MOST_IDLE: Final = 32
_IPV6_PREFIX: Final = 64  # whoever has one address of these has all of them


class Idle(Protocol):
    """A connection on which nothing is being answered."""

    def give_up(self) -> bool:
        """Close it at once; False: something is still on its way to the client."""


class Crowd:
    """The connections without a request in work, in the order in which they began to wait.

    ``is_exempt`` addresses may have as many as there is room for: proxies, and this machine itself.
    """

    def __init__(self, *, most: int = MOST_IDLE, is_exempt: Callable[[str | None], bool] = lambda _: False) -> None:
        self._most, self._is_exempt = most, is_exempt
        self._of: dict[str, dict[Idle, None]] = {}
        self._waiting: dict[Idle, str] = {}
        self.closed = 0  # connections that had to go

    def waits(self, connection: Idle, address: str | None) -> None:
        """Note that a connection waits for its client from now on; another of the same address may go for it."""
        whose = _whose(address)
        self.leaves(connection)
        self._waiting[connection] = whose
        others = self._of.setdefault(whose, {})
        others[connection] = None
        if len(others) > self._most and not self._is_exempt(address):
            self._close_oldest(others)

    def leaves(self, connection: Idle) -> None:
        """Note that it is gone, or that a request of it is in work."""
        if (whose := self._waiting.pop(connection, None)) is None:
            return
        others = self._of[whose]
        del others[connection]
        if not others:
            del self._of[whose]

    def make_room(self) -> bool:
        """Close the connection that has waited longest, of whichever address; False: none waits."""
        return self._close_oldest(self._waiting)

    def _close_oldest(self, waiting: Mapping[Idle, object]) -> bool:
        oldest = next((each for each in waiting if each.give_up()), None)
        if oldest is None:
            return False
        self.leaves(oldest)
        self.closed += 1
        return True


@lru_cache(maxsize=4096)
def _whose(address: str | None) -> str:
    """By what a client's connections are counted: its address, of IPv6 the network that it has for itself."""
    try:
        found = ip_address((address or "").partition("%")[0])
    except ValueError:
        return address or ""
    if isinstance(found, IPv6Address):
        return str(found.ipv4_mapped or ip_network((found, _IPV6_PREFIX), strict=False))
    return str(found)
