"""TLS sockets: reload changed certificates, support the cipher suites of firmware, and limit handshakes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, MutableSet
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from gitboot.endpoint.connections import HEAD_TIMEOUT_S, Connection, ConnectionLimits
from gitboot.endpoint.served_files import Signature, read_signature
from gitboot.errors import UsageError
from gitboot.files import convert_os_errors
from gitboot.model.certificates import is_rsa_key, read_certificate_expiries, read_public_key
from gitboot.status.conditions import Event

_MISMATCH: Final = "KEY_VALUES_MISMATCH"  # OpenSSL's error reason if a key does not belong to a certificate


class CipherSuites(StrEnum):
    """A socket's cipher suites for TLS 1.2 and older, by their OpenSSL names and in order of preference."""

    # gitboot sets a list, because the default of Debian's Python contains suites without forward secrecy.
    OPERATORS = "@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM"
    MACHINES = "@SECLEVEL=2:ECDHE+AESGCM"
    # OVMF in Debian 12 and 13 does not support ECDHE, so it needs suites in which RSA encrypts the session key.
    FIRMWARE = "@SECLEVEL=2:ECDHE+AESGCM:AES128-GCM-SHA256:AES256-GCM-SHA384"


class Certificate:
    """A certificate and a key in two files, and the cipher suites of a TLS socket.

    New connections use the last certificate that gitboot could load. A new certificate does not affect open
    connections. Until gitboot has loaded a certificate, the endpoint rejects all connections. With the suites for
    firmware, the key must be an RSA key, and must differ from the key of ``other``, which is another socket's
    certificate. The suites for firmware have no forward secrecy, so anyone who steals the key can decrypt recorded
    connections.
    """

    def __init__(
        self,
        file: Path,
        key: Path,
        suites: CipherSuites = CipherSuites.OPERATORS,
        other_certificate: Certificate | None = None,
    ) -> None:
        self._file, self._key, self._suites, self._other = file, key, suites, other_certificate
        self._public_key: bytes | None = None  # the public key of the certificate that is in use
        if other_certificate is not None:
            other_certificate._other = self
        self._signatures: tuple[Signature | None, ...] = ()  # the signatures of the two files at the last load
        self._current: ssl.SSLContext | None = None
        self.failure: str | None = None  # why the current files cannot be used
        # the first expiry date in the chain; None: gitboot has not loaded a certificate, or cannot read the dates
        self.ends: datetime | None = None
        self.context = _build_context(suites)
        self.context.sni_callback = self._select_certificate

    def reload_if_changed(self, at: datetime) -> Event | None:
        """Load the two files if they have changed or if gitboot could not load them the last time.

        Return an event if the result differs from the last result.
        """
        previous_failure = self.failure
        is_first_load = not self._signatures
        signatures = read_signature(str(self._file)), read_signature(str(self._key))
        if signatures == self._signatures and previous_failure is None:
            return None
        self._signatures = signatures
        try:
            self.load()
            self.failure = None
        except UsageError as error:
            self.failure = str(error)
        if self.failure is None:
            message = f"the endpoint now uses the certificate in {self._file}"
            return None if is_first_load else Event(at=at, type="CertificateReadable", message=message)
        if self.failure == previous_failure:
            return None
        keeps_previous = self._current is not None
        effect = "the endpoint keeps the previous certificate" if keeps_previous else "the endpoint rejects connections"
        return Event(at=at, type="CertificateUnreadable", message=f"{self.failure}: {effect}", warning=True)

    def load(self) -> None:
        """Load the two files, and use them for new connections. Raises `UsageError` if gitboot cannot use them."""
        with convert_os_errors(self._key, "read"):
            self._key.read_bytes()
        with convert_os_errors(self._file, "read"):
            content = self._file.read_bytes()
        context = self._load_chain()
        try:
            is_same = self._file.read_bytes() == content
        except OSError:
            is_same = False
        if not is_same:  # the file changed between the two reads, so OpenSSL has loaded a different certificate
            raise UsageError(f"{self._file} changed while gitboot was reading it")
        public_key = read_public_key(content)
        self._check_key(public_key)
        self._current, self._public_key = context, public_key
        self.ends = min(read_certificate_expiries(content) or (), default=None)

    def _load_chain(self) -> ssl.SSLContext:
        """Return a context that uses the two files. Raises `UsageError` if OpenSSL rejects a file."""
        file, key = self._file, self._key
        context = _build_context(self._suites)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
        except ssl.SSLError:
            raise UsageError(f"{file} does not contain a PEM certificate") from None
        except OSError as error:  # another program removed the file meanwhile
            raise UsageError(f"{file} cannot be read: {error.strerror}") from None
        try:
            context.load_cert_chain(file, key, password=_reject_passphrase)
        except _EncryptedKey:
            raise UsageError(f"{key} has a passphrase; remove the passphrase with `openssl pkey`") from None
        except ssl.SSLError as error:
            if error.reason is None:
                raise UsageError(f"{key} does not contain a PEM private key") from None
            if error.reason == _MISMATCH:
                raise UsageError(
                    f"{key} does not match {file}; the server's own certificate must come first in that file"
                ) from None
            raise UsageError(f"{file} cannot be used: {error.reason.lower().replace('_', ' ')}") from None
        except OSError as error:
            raise UsageError(f"{file} or {key} cannot be read: {error.strerror}") from None
        return context

    def _check_key(self, public_key: bytes | None) -> None:
        if public_key is None:
            if self._suites is CipherSuites.FIRMWARE:
                raise UsageError(f"gitboot cannot read the public key in the certificate {self._file}")
            return
        if self._suites is CipherSuites.FIRMWARE and not is_rsa_key(public_key):
            raise UsageError(
                f"{self._key} is not an RSA key, so firmware cannot use {self._file}. Get a certificate for an RSA "
                "key. If no machine uses UEFI HTTPS boot, you can set `firmware-ciphers = false` instead"
            )
        other = self._other
        if (
            other is not None
            and public_key == other._public_key
            and CipherSuites.FIRMWARE in (self._suites, other._suites)
        ):
            raise UsageError(
                f"{self._file} has the same key as {other._file}, so anyone who steals this key can decrypt recorded "
                "connections (create a different key for one of the certificates, or set `firmware-ciphers = false`)"
            )

    def _select_certificate(self, connection: ssl.SSLObject, *_: Any) -> None:
        if self._current is not None:
            connection.context = self._current


def _build_context(suites: CipherSuites) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(suites)
    return context


class _EncryptedKey(Exception):
    """The error for a private key that is encrypted with a passphrase."""


def _reject_passphrase() -> str:
    """Raise `_EncryptedKey`, so that OpenSSL does not prompt for the passphrase at the terminal."""
    raise _EncryptedKey


# The socket

_PAUSE_S: Final = 0.1  # how long the endpoint waits after it failed to accept a client
_SHUTDOWN_S: Final = 5  # how long the endpoint waits for the close_notify of a client


class HandshakeFailure(StrEnum):
    """The reason why a TLS handshake failed."""

    NO_SHARED_CIPHER = "NoSharedCipher"  # the client does not support any cipher suite of this socket
    # the client does not trust the certificate, or the certificate is for another name
    CERTIFICATE = "CertificateRejected"
    CLOSED = "Closed"  # the client closed the connection; firmware does so if it rejects the certificate
    OTHER = "Other"  # for example, the client does not use TLS


def classify_failure(error: OSError) -> HandshakeFailure:
    """Convert an OpenSSL error to the reason why a handshake failed."""
    if isinstance(error, ConnectionResetError):
        return HandshakeFailure.CLOSED
    reason = str(getattr(error, "reason", None) or "")
    if reason == "NO_SHARED_CIPHER":
        return HandshakeFailure.NO_SHARED_CIPHER
    is_alert = "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason)
    return HandshakeFailure.CERTIFICATE if is_alert else HandshakeFailure.OTHER


class TlsSocket:
    """Accepts TLS connections on a listening socket. Other processes may accept connections on the same socket.

    gitboot calls ``on_failure`` for each client that aborts the handshake, takes too long, or does not use TLS.
    """

    def __init__(
        self,
        listening_socket: socket.socket,
        context: ssl.SSLContext,
        limits: ConnectionLimits,
        on_failure: Callable[[OSError], None],
    ) -> None:
        self._listening_socket, self._context = listening_socket, context
        self._limits, self._on_failure = limits, on_failure

    async def accept_clients(self, make_connection: Callable[[], Connection], connections: MutableSet[Any]) -> None:
        """Accept clients until the asyncio task is cancelled.

        ``connections`` limits the clients, including those in a handshake.
        """
        loop = asyncio.get_running_loop()
        self._listening_socket.setblocking(False)
        while True:
            try:
                client, address = await loop.sock_accept(self._listening_socket)
            except OSError:  # the client has closed the connection, or the process has too many open files
                self._limits.all.make_room()
                await asyncio.sleep(_PAUSE_S)
                continue
            asyncio.create_task(self._do_handshake(client, address[0], make_connection(), connections))  # noqa: RUF006 - _Handshake keeps it

    async def _do_handshake(
        self, client: socket.socket, address: str, connection: Connection, connections: MutableSet[Any]
    ) -> None:
        handshake = _Handshake(connection, self._limits, asyncio.current_task())
        connections.add(handshake)
        self._limits.idle.add(handshake, address)
        self._limits.all.add(handshake, address)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: handshake,
                client,
                ssl=self._context,
                ssl_handshake_timeout=HEAD_TIMEOUT_S,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except OSError as error:
            self._on_failure(error)
        finally:
            connections.discard(handshake)
            handshake.end()


class _Handshake(asyncio.Protocol):
    """A client in the TLS handshake. The client counts as an idle connection."""

    def __init__(self, connection: Connection, limits: ConnectionLimits, task: asyncio.Task[None] | None) -> None:
        self._connection, self._limits, self._task = connection, limits, task

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's is
        """Create an HTTP connection for the transport when the handshake is complete."""
        self.end()
        transport.set_protocol(self._connection)
        self._connection.connection_made(transport)

    def end(self) -> None:
        self._limits.idle.remove(self)
        self._limits.all.remove(self)

    def try_close(self, *, even_if_sending: bool = True) -> bool:  # noqa: ARG002 - no response is sent in a handshake
        return self._task is not None and self._task.cancel()

    def shutdown(self) -> None:
        self.try_close()


# Checks of what firmware can use

# The cipher suites that both OVMF of Debian 12 and 13 and the endpoint support.
_FIRMWARE_SUITES: Final = "AES128-GCM-SHA256:AES256-GCM-SHA384:AES128-SHA256:AES256-SHA256"
_MAX_FLIGHTS: Final = 10  # the maximum number of exchanges in a handshake between two TLS objects in memory


def find_certificate_problem(
    certificate: Path, key: Path, suites: CipherSuites, *, host: str | None = None, authority: Path | None = None
) -> str | None:
    """Try a TLS handshake in memory.

    Return why a machine cannot use the certificate, or None if the handshake succeeds.

    If ``authority`` is None, gitboot does not verify the chain. If ``host`` is None, gitboot does not verify the names
    in the certificate. Raises `UsageError` if a file is not a PEM certificate or key.
    """
    Certificate(certificate, key, suites).load()
    server = _build_context(suites)
    server.load_cert_chain(certificate, key)
    client = _build_firmware_client(suites, authority)
    if authority is None:  # trust the certificate itself, because there is no authority
        client.load_verify_locations(certificate)
        client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.check_hostname = host is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    peers = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(_MAX_FLIGHTS):
        waiting_count = 0
        for peer in peers:
            try:
                peer.do_handshake()
            except ssl.SSLWantReadError:
                waiting_count += 1
            except ssl.SSLCertVerificationError as error:
                return str(error.verify_message).rstrip(".")
            except ssl.SSLError as error:
                return (error.reason or "the handshake failed").lower().replace("_", " ")
        if not waiting_count:
            break
    return None


def has_firmware_suites(host: str, port: int, timeout_s: float) -> bool:
    """Return whether a server accepts the cipher suites of firmware. Raises `OSError` if the connection fails."""
    context = _build_firmware_client(CipherSuites.FIRMWARE, None)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((host, port), timeout_s) as connection:
        try:
            with context.wrap_socket(connection):
                return True
        except (ssl.SSLError, ConnectionResetError):
            return False


def _build_firmware_client(suites: CipherSuites, authority: Path | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(_FIRMWARE_SUITES if suites is CipherSuites.FIRMWARE else str(suites))
    if authority is not None:
        try:
            context.load_verify_locations(authority)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"{authority} cannot be read as a PEM certificate: {error.strerror or error}") from None
    return context
