"""Access control: determine the addresses of clients behind proxies, and check operator networks and tokens."""

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
from gitboot.files import convert_os_errors
from gitboot.status.conditions import Event

Network = IPv4Network | IPv6Network
LOOPBACK: Final[tuple[Network, ...]] = (ip_network("127.0.0.0/8"), ip_network("::1/128"))
# The header that RFC 7239 defines, and the older header that it replaces.
FORWARDED_HEADERS: Final = frozenset({b"x-forwarded-for", b"forwarded"})


def build_network_matcher(networks: Iterable[Network]) -> Callable[[str | None], bool]:
    """Return a function that checks whether an address is in one of ``networks``.

    The function returns False for None.
    """
    ranges = tuple(networks)

    @lru_cache(maxsize=4096)  # a cache, because parsing an address takes as long as preparing a response
    def contains(address: str | None) -> bool:
        parsed = _parse_address(address) if address else None
        return parsed is not None and any(parsed in network for network in ranges)

    return contains


def find_client_address(scope: Scope, is_trusted: Callable[[str | None], bool]) -> str | None:
    """Return the client address of a request in its shortest form, or None if the address is unknown.

    Each proxy appends the address from which it received the request to ``X-Forwarded-For``. gitboot reads the header
    from the end, and skips trusted proxies. The first address that does not belong to a trusted proxy is the client
    address, even if it is a loopback address. gitboot ignores the part of the header before the client address, because
    the client could have written that part.
    """
    address = _get_peer_address(scope)
    if not is_trusted(address):
        return address
    forwarded = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
    for hop in reversed(b",".join(forwarded).decode("latin-1").split(",")) if forwarded else ():
        address = _normalize_address(hop.strip())
        if not is_trusted(address):
            break
    return address


def find_untrusted_proxy(scope: Scope, is_trusted: Callable[[str | None], bool]) -> str | None:
    """Return a client's address if the client sends a forwarding header but is not a trusted proxy.

    Return None if the client sends no such header, is a trusted proxy, or has no address.
    """
    if not any(name in FORWARDED_HEADERS for name, _ in scope["headers"]):
        return None
    address = _get_peer_address(scope)
    return None if is_trusted(address) else address


def _get_peer_address(scope: Scope) -> str | None:
    peer = scope["client"]
    return _normalize_address(peer[0]) if peer else None


@lru_cache(maxsize=4096)
def _normalize_address(address: str) -> str | None:
    parsed = _parse_address(address)
    return str(parsed) if parsed is not None else None


def _parse_address(address: str) -> IPv4Address | IPv6Address | None:
    try:
        parsed = ip_address(address.partition("%")[0])  # fe80::1%eth0 names an interface of this host
    except ValueError:
        return None
    # A dual-stack socket reports IPv4 clients with addresses such as ::ffff:10.0.0.1.
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        return parsed.ipv4_mapped
    return parsed


# Operators

_MIN_TOKEN_LENGTH: Final = 16  # in characters
_PROXY_HEADERS: Final = FORWARDED_HEADERS | {b"via", b"x-real-ip", b"x-forwarded-host", b"x-forwarded-proto"}


class OperatorDenial(StrEnum):
    """The reason why gitboot does not treat a request as coming from an operator."""

    NETWORK = "Network"  # the client address is not in a network of operators
    PROXY = "Proxy"  # the proxy is not trusted, or does not send the client address
    # the Host header names another host, perhaps because a web page in an operator's browser sent the request
    HOST = "Host"
    TOKEN = "Token"  # noqa: S105 - the token of the request is not in the token file
    SOCKET = "Socket"  # the client connected to the socket for machines
    HANDSHAKE = "Handshake"  # the TLS handshake failed


class Tokens:
    """The tokens of programs that may read the same pages as operators.

    The token file contains one token per line.

    gitboot reads the token file again for each request.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def check(self) -> None:
        """Raise `UsageError` if gitboot cannot read the token file, or if a token is short enough to guess."""
        with convert_os_errors(self._file, "read"):
            tokens = self._read()
        if not tokens or min(map(len, tokens)) < _MIN_TOKEN_LENGTH:
            raise UsageError(
                f"{self._file} must contain one token per line, each with at least {_MIN_TOKEN_LENGTH} characters"
            )

    def contains(self, token: bytes) -> bool:
        """Return whether a token is in the file. The time that this takes does not depend on which token matches."""
        with suppress(OSError):
            known_tokens = [known for known in self._read() if len(known) >= _MIN_TOKEN_LENGTH]
            return any([hmac.compare_digest(token, known) for known in known_tokens])  # noqa: C419 - compare all tokens
        return False

    def _read(self) -> list[bytes]:
        lines = map(bytes.strip, self._file.read_bytes().splitlines())
        return [line for line in lines if line and not line.startswith(b"#")]


class OperatorAccess:
    """Decides whether a request comes from an operator."""

    def __init__(
        self,
        *,
        is_operator: Callable[[str | None], bool],
        is_proxy: Callable[[str | None], bool],
        names: Iterable[str],
        tokens: Tokens | None,
        operators_socket: tuple[str, int] | None,  # the address of the socket that only operators use
        machines_tls_socket: tuple[str, int] | None = None,  # the address of the TLS socket that only machines use
    ) -> None:
        self._is_operator, self._is_proxy = is_operator, is_proxy
        self._names, self._tokens = frozenset(name.lower() for name in names), tokens
        self._operators_socket, self._machines_tls_socket = operators_socket, machines_tls_socket

    def is_operators_socket(self, server: tuple[str, int | None] | None) -> bool:
        """Return whether only operators may use the socket with the local address ``server``."""
        return _is_bound_to(self._operators_socket, server)

    def is_machines_socket(self, server: tuple[str, int | None] | None) -> bool:
        """Return whether only machines may use the socket with the local address ``server``.

        This is true for the TLS socket for machines. If operators have their own socket, it is true for all other
        sockets.
        """
        if _is_bound_to(self._machines_tls_socket, server):
            return True
        return self._operators_socket is not None and not self.is_operators_socket(server)

    def find_denial(self, scope: Scope, client: str | None) -> OperatorDenial | None:
        """Return why gitboot does not treat a request as an operator's request, or None if it does.

        ``client`` is the address of the client that sent the request.
        """
        if self.is_machines_socket(scope.get("server")):
            return OperatorDenial.SOCKET
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        if (authorization := next((value for name, value in headers if name == b"authorization"), None)) is not None:
            return None if self._is_known_token(authorization) else OperatorDenial.TOKEN
        if self._is_hidden_by_proxy(scope):
            return OperatorDenial.PROXY
        if not self._is_operator(client):
            return OperatorDenial.NETWORK
        hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
        return None if len(hosts) == 1 and self._is_own_name(hosts[0]) else OperatorDenial.HOST

    def _is_known_token(self, authorization: bytes) -> bool:
        scheme, _, token = authorization.partition(b" ")
        return scheme.lower() == b"bearer" and self._tokens is not None and self._tokens.contains(token.strip())

    def _is_hidden_by_proxy(self, scope: Scope) -> bool:
        """Return whether the client may be a proxy that does not send the address of its own client."""
        names = {name for name, _ in scope["headers"]}
        if self._is_proxy(scope["client"][0] if scope["client"] else None):
            return b"x-forwarded-for" not in names
        # HTTP/1.0 requests may lack a Host header; nginx before 1.29.7 sends HTTP/1.0 by default (proxy_http_version)
        return not names.isdisjoint(_PROXY_HEADERS) or scope.get("http_version") == "1.0"

    def _is_own_name(self, host: str) -> bool:
        """Return whether a Host header contains one of this endpoint's names or an IP address.

        An IP address is safe, because an attacker's DNS server can redirect only names.
        """
        name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
        name = name.lower().removesuffix(".")
        with suppress(ValueError):
            ip_address(name)
            return True
        return name == "localhost" or name in self._names


def _is_bound_to(address: tuple[str, int] | None, server: tuple[str, int | None] | None) -> bool:
    """Return whether the socket that listens at ``address`` accepted a connection whose local address is ``server``."""
    if address is None or server is None or address[1] != server[1]:
        return False
    # A socket at 0.0.0.0 accepts only IPv4 connections. A socket at :: reports their addresses as ::ffff:10.0.0.1.
    wildcard = "::" if ":" in server[0] else "0.0.0.0"  # noqa: S104 - gitboot only compares this address
    return address[0] in (server[0], wildcard)


# Credential files


class CredentialFiles:
    """The credential files that an endpoint reads again for each request.

    ``checks`` maps each option to a function that raises `UsageError` if the option's file cannot be used.
    """

    def __init__(self, checks: Mapping[str, Callable[[], object]]) -> None:
        self._checks = checks
        self._failures: tuple[str, ...] = ()  # the failures that the last check found

    def find_failures(self) -> tuple[str, ...]:
        """Return a message for each unusable file. The message contains the option, the path and the cause."""
        failures = []
        for option, check in sorted(self._checks.items()):
            try:
                check()
            except UsageError as error:
                failures.append(f"{option}: {str(error).removeprefix(f'{option}: ')}")
        return tuple(failures)

    def report_changes(self, at: datetime) -> Event | None:
        """Return an event if a file has become usable or unusable since the last call."""
        before, self._failures = self._failures, self.find_failures()
        if self._failures == before:
            return None
        if self._failures:
            return Event(
                at=at,
                type="CredentialsUnreadable",
                message=f"{'; '.join(self._failures)}: the endpoint rejects requests that need these files",
                warning=True,
            )
        return Event(at=at, type="CredentialsReadable", message="the endpoint can read all credential files again")
