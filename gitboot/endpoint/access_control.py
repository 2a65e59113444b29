"""Access control: client addresses behind proxies, networks, operators and tokens."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Final

from starlette.types import Scope

from gitboot.errors import UsageError
from gitboot.status.conditions import Event

Network = IPv4Network | IPv6Network
LOOPBACK: Final[tuple[Network, ...]] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
FORWARDED_HEADERS: Final = frozenset({b"x-forwarded-for", b"forwarded"})  # RFC 7239, and the header that it replaces


def build_network_matcher(networks: Iterable[Network]) -> Callable[[str | None], bool]:
    """What tells whether an address lies in one of ``networks``; no address lies in none."""
    ranges = tuple(networks)

    @lru_cache(maxsize=4096)  # parsing an address costs as much as answering it
    def contains(address: str | None) -> bool:
        found = _parse_address(address) if address else None
        return found is not None and any(found in network for network in ranges)

    return contains


def find_client_address(scope: Scope, is_trusted: Callable[[str | None], bool]) -> str | None:
    """The address a request comes from, in its shortest spelling; None if it cannot be told.

    Each proxy appends to ``X-Forwarded-For`` the address that it was asked from. So it is read from its end,
    as far as proxies are trusted; what stands before that, anyone could have written. An address that is not trusted,
    loopback too, is the client itself, whatever it sends.
    """
    peer = scope["client"]
    address = _normalize_address(peer[0]) if peer else None
    if not is_trusted(address):
        return address
    forwarded = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    if not forwarded:
        return address
    for hop in reversed(b",".join(forwarded).decode("latin-1").split(",")):
        address = _normalize_address(hop.strip())
        if not is_trusted(address):
            break
    return address


def find_untrusted_proxy(scope: Scope, is_trusted: Callable[[str | None], bool]) -> str | None:
    """Return the address that states for whom it asks, and is no trusted proxy; None: there is none."""
    peer = scope["client"]
    address = (
        _normalize_address(peer[0]) if peer and any(name in FORWARDED_HEADERS for name, _ in scope["headers"]) else None
    )
    return None if is_trusted(address) else address


@lru_cache(maxsize=4096)
def _normalize_address(address: str) -> str | None:
    found = _parse_address(address)
    return None if found is None else str(found)


def _parse_address(address: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(address.partition("%")[0])  # fe80::1%eth0: which interface it came by
    except ValueError:
        return None
    # A socket for both families shows IPv4 clients as ::ffff:10.0.0.1.
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found


# Operators

_MIN_TOKEN_LENGTH: Final = 16  # characters
_PROXY_HEADERS: Final = FORWARDED_HEADERS | {b"via", b"x-real-ip", b"x-forwarded-host", b"x-forwarded-proto"}


class OperatorDenial(StrEnum):
    """Why somebody is taken for no operator."""

    NETWORK = "Network"  # asks from elsewhere
    PROXY = "Proxy"  # came through a proxy that is not trusted, or that does not state for whom it asks
    HOST = "Host"  # asks for a name that is not this endpoint's: a page in an operator's browser, perhaps
    TOKEN = "Token"  # noqa: S105 - shows one that is none
    SOCKET = "Socket"  # asks where machines ask
    HANDSHAKE = "Handshake"  # has not agreed with the endpoint on how to encrypt what it wants to ask


class Tokens:
    """The tokens in a file, a line each, by which programs may read what operators may; read for each request."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def check(self) -> None:
        """Raise `UsageError` where they cannot be read, or one is too short to be guessed by nobody."""
        try:
            tokens = self._read()
        except OSError as error:
            raise UsageError(f"{self._file} cannot be read: {error.strerror}") from None
        if not tokens or min(map(len, tokens)) < _MIN_TOKEN_LENGTH:
            raise UsageError(f"{self._file} needs a token on each line, of {_MIN_TOKEN_LENGTH} characters or more")

    def has(self, token: bytes) -> bool:
        with suppress(OSError):
            found = [hmac.compare_digest(token, each) for each in self._read() if len(each) >= _MIN_TOKEN_LENGTH]
            return any(found)
        return False

    def _read(self) -> list[bytes]:
        lines = map(bytes.strip, self._file.read_bytes().splitlines())
        return [line for line in lines if line and not line.startswith(b"#")]


class OperatorAccess:
    """Says of each request whether it is an operator's."""

    def __init__(
        self,
        *,
        is_operator: Callable[[str | None], bool],
        is_proxy: Callable[[str | None], bool],
        names: Iterable[str],
        tokens: Tokens | None,
        operators_socket: tuple[str, int] | None,  # the socket that is for operators alone
    ) -> None:
        self._is_operator, self._is_proxy = is_operator, is_proxy
        self._names, self._tokens, self._operators_socket = (
            frozenset(name.lower() for name in names),
            tokens,
            operators_socket,
        )

    def is_operators_only(self, server: tuple[str, int | None] | None) -> bool:
        """Whether a socket is the one that is for operators alone."""
        everywhere = ("0.0.0.0", "::")  # noqa: S104 - it is asked whether it is
        at = self._operators_socket
        return at is not None and server is not None and at[1] == server[1] and at[0] in (server[0], *everywhere)

    def is_machines_only(self, server: tuple[str, int | None] | None) -> bool:
        """Whether operators ask at another socket than this one."""
        return self._operators_socket is not None and not self.is_operators_only(server)

    def find_denial(self, scope: Scope, client: str | None) -> OperatorDenial | None:
        """Why a request, of a client as proxies say, is no operator's; None: it is."""
        if self.is_machines_only(scope.get("server")):
            return OperatorDenial.SOCKET
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if (authorization := next((value for name, value in headers if name == b"authorization"), None)) is not None:
            scheme, _, token = authorization.partition(b" ")
            is_known = scheme.lower() == b"bearer" and self._tokens is not None and self._tokens.has(token.strip())
            return None if is_known else OperatorDenial.TOKEN
        names = {name for name, _ in headers}
        if self._is_proxy(scope["client"][0] if scope["client"] else None):
            is_hidden = b"x-forwarded-for" not in names
        else:  # a proxy that is not configured for this sends HTTP/1.0 (nginx before 1.29.7, proxy_http_version)
            is_hidden = not names.isdisjoint(_PROXY_HEADERS) or scope.get("http_version") == "1.0"
        if is_hidden:
            return OperatorDenial.PROXY
        if not self._is_operator(client):
            return OperatorDenial.NETWORK
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        return None if len(hosts) == 1 and self._is_own_name(hosts[0]) else OperatorDenial.HOST

    def _is_own_name(self, host: str) -> bool:
        """Return whether a Host header has a name of this endpoint, or an address.

        No name server of a stranger can lead an address elsewhere.
        """
        name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
        name = name.lower().removesuffix(".")
        with suppress(ValueError):
            ip_address(name)
            return True
        return name == "localhost" or name in self._names


class CredentialFiles:
    """The files that an endpoint reads for each request. ``checks`` has what raises `UsageError`, by option."""

    def __init__(self, checks: Mapping[str, Callable[[], object]]) -> None:
        self._checks = checks
        self._failures: tuple[str, ...] = ()  # at the last look

    def find_failures(self) -> tuple[str, ...]:
        """Return why files cannot be used now, each with its option, file and cause."""
        found = []
        for option, check in sorted(self._checks.items()):
            try:
                check()
            except UsageError as error:
                found.append(f"{option}: {str(error).removeprefix(f'{option}: ')}")
        return tuple(found)

    def report_changes(self, at: datetime) -> Event | None:
        """Return the event if other files than at the last look cannot be used. A second call returns None."""
        before, self._failures = self._failures, self.find_failures()
        if self._failures == before:
            return None
        if self._failures:
            message = f"{'; '.join(self._failures)}: what needs them is refused until they can be read"
            return Event(at=at, type="CredentialsUnreadable", message=message, warning=True)
        return Event(at=at, type="CredentialsRead", message="all credential files can be read again")
