"""Bounds on what clients hold: connections and request bodies, of one address and of all, and bytes and seconds."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from heapq import nlargest
from math import inf
from typing import Final, Generic, Protocol, TypeVar

from starlette.types import Receive, Scope

from gitboot.fetchlog.unknown_machines import network_of
from gitboot.serve.reply import TIMED_OUT, TOO_LARGE, TOO_MANY, Reply

MOST_IDLE: Final = 32
_TRIED: Final = 8  # clients that may have to make room
BODY_S: Final = 20  # for a whole body, from the end of its head
MOST_BODIES: Final = 128
MOST_BODIES_OF_ONE: Final = 16  # of one address

# Passes a body part by part to the second argument. Returns the refusal of a body that has more bytes than the first
# argument, or breaks another bound; None: the body ended.
ReadBody = Callable[[int, Callable[[bytes], object]], Awaitable[Reply | None]]

T = TypeVar("T")


class Crowd(Generic[T]):
    """What clients hold, by address and in the order in which they came to hold it.

    One address holds at most ``most_of_one``: if it takes one more, its oldest goes. All hold at most ``most``: if one
    more comes, the oldest goes of the address that holds most. So a client that holds little always finds room.
    ``close`` returns False for what cannot go yet. ``is_exempt`` addresses, such as proxies, may hold more than
    ``most_of_one``.
    """

    def __init__(
        self,
        close: Callable[[T], bool],
        *,
        most: Callable[[], float] = lambda: inf,
        most_of_one: float = inf,
        is_exempt: Callable[[str | None], bool] = lambda _: False,
    ) -> None:
        self._close, self._most, self._most_of_one, self._is_exempt = close, most, most_of_one, is_exempt
        self._of: dict[str, dict[T, None]] = {}
        self._whose: dict[T, str] = {}
        self.closed = 0  # that had to go

    def enter(self, held: T, address: str | None) -> None:
        """Count something that a client holds from now on; it is the newest. Something else may go for it."""
        self.leave(held)
        self._whose[held] = whose = network_of(address)
        own = self._of.setdefault(whose, {})
        own[held] = None
        if len(own) > self._most_of_one and not self._is_exempt(address):
            self._close_oldest(own)
        elif len(self._whose) > self._most() and not self.make_room():
            self._close_oldest((held,))

    def leave(self, held: T) -> None:
        """Stop counting it; a second call changes nothing."""
        if (whose := self._whose.pop(held, None)) is not None:
            del self._of[whose][held]
            if not self._of[whose]:
                del self._of[whose]

    def make_room(self) -> bool:
        """Close the oldest of the address that holds most; False: none can go."""
        return any(map(self._close_oldest, nlargest(_TRIED, self._of.values(), key=len)))

    def _close_oldest(self, held: Iterable[T]) -> bool:
        oldest = next(filter(self._close, held), None)
        if oldest is None:
            return False
        self.leave(oldest)
        self.closed += 1
        return True


class Client(Protocol):
    """A connection."""

    def give_up(self, *, if_sending: bool) -> bool:
        """Close it at once. False: the endpoint prepares an answer, or sends one and ``if_sending`` is not set."""


class Limits:
    """How many connections the clients of one endpoint may hold.

    Behind a trusted proxy a connection counts for the client for which the proxy asks by it.
    """

    def __init__(
        self,
        most_idle: float = inf,
        is_proxy: Callable[[str | None], bool] = lambda _: False,
        client: Callable[[Scope], str | None] = lambda _: None,
    ) -> None:
        self.is_proxy, self.client = is_proxy, client
        self.idle: Crowd[Client] = Crowd(
            lambda each: each.give_up(if_sending=False), most_of_one=most_idle, is_exempt=is_proxy
        )
        self.all: Crowd[Client] = Crowd(lambda each: each.give_up(if_sending=True), most=lambda: most_connections())

    @property
    def closed(self) -> int:
        """How many connections had to go."""
        return self.idle.closed + self.all.closed


class Bodies:
    """The bodies that are on their way to one endpoint. Every route that takes a body reads it here.

    If one address sends too many at once, gitboot refuses its oldest one. If all addresses do, gitboot refuses the
    oldest one of the address that sends most.
    """

    def __init__(self) -> None:
        self._coming: Crowd[asyncio.Timeout] = Crowd(_end, most=lambda: MOST_BODIES, most_of_one=MOST_BODIES_OF_ONE)

    async def read(
        self, receive: Receive, address: str | None, most_bytes: int, take: Callable[[bytes], object]
    ) -> Reply | None:
        """Read the body of a request that comes from an address, as `ReadBody` says."""
        deadline = asyncio.timeout(BODY_S)
        try:
            async with deadline:
                self._coming.enter(deadline, address)
                return await _read(receive, most_bytes, take)
        except TimeoutError:
            return TIMED_OUT if deadline.when() else TOO_MANY
        finally:
            self._coming.leave(deadline)


async def _read(receive: Receive, most_bytes: int, take: Callable[[bytes], object]) -> Reply | None:
    size, more = 0, True
    while more:
        message = await receive()
        body, more = message.get("body", b""), message.get("more_body", False)
        size += len(body)
        if message["type"] == "http.disconnect" or size > most_bytes:
            return TOO_LARGE
        take(body)
    return None


def _end(deadline: asyncio.Timeout) -> bool:
    """End the time of a body now: its deadline is 0 then. False: it has ended."""
    if deadline.expired():
        return False
    deadline.reschedule(0)
    return True


@cache
def most_connections() -> int:
    """Return a third of the files that this process may open.

    A client that downloads an asset uses two: its connection and the asset. All clients leave a third to all else.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft // 3 if soft != resource.RLIM_INFINITY else 100_000
