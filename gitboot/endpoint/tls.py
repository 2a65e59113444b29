"""TLS for operators: a certificate that is reloaded when its files change, and a socket that limits handshakes."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, MutableSet
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from gitboot.endpoint.connections import HEAD_S, Connection, Limits
from gitboot.endpoint.served_files import Signature, read_signature
from gitboot.errors import UsageError
from gitboot.model.scalars import read_certificate_ends
from gitboot.status.conditions import Event

_MISMATCH: Final = "KEY_VALUES_MISMATCH"  # OpenSSL's reason


class Certificate:
    """A certificate and its key, in two files.

    New connections use the last certificate that could be loaded. A new certificate does not affect open connections.
    Until a certificate is loaded, the endpoint rejects all connections.
    """

    def __init__(self, file: Path, key: Path) -> None:
        self._file, self._key = file, key
        self._signatures: tuple[Signature | None, ...] = ()  # signatures of the files at the last load
        self._current: ssl.SSLContext | None = None
        self.failure: str | None = None  # why the current files cannot be used
        self.ends: datetime | None = None  # the first expiry date in the chain; None: no certificate
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.sni_callback = self._select_certificate

    def reload_if_changed(self, at: datetime) -> Event | None:
        """Load the files if they changed or the last load failed. Return an event if the result changed."""
        failure, is_first = self.failure, not self._signatures
        found = read_signature(str(self._file)), read_signature(str(self._key))
        if found == self._signatures and failure is None:
            return None
        self._signatures = found
        try:
            self.load()
            self.failure = None
        except UsageError as error:
            self.failure = str(error)
        if self.failure is None:
            message = f"the endpoint now uses the certificate in {self._file}"
            return None if is_first else Event(at=at, type="CertificateReadable", message=message)
        if self.failure == failure:
            return None
        effect = "the endpoint keeps the previous certificate"
        if self._current is None:
            effect = "the endpoint rejects connections"
        return Event(at=at, type="CertificateUnreadable", message=f"{self.failure}: {effect}", warning=True)

    def load(self) -> None:
        """Load the files, and use them for new connections. Raises `UsageError` if they cannot be used."""
        file, key = self._file, self._key
        for each in (file, key):
            try:
                each.read_bytes()
            except OSError as error:
                raise UsageError(f"{each} cannot be read: {error.strerror}") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(file)
        except ssl.SSLError:
            raise UsageError(f"{file} has no PEM certificate") from None
        except OSError as error:  # the file was removed in the meantime
            raise UsageError(f"{file} cannot be read: {error.strerror}") from None
        try:
            context.load_cert_chain(file, key, password=_refuse_passphrase)
        except _EncryptedKey:
            raise UsageError(f"{key} has a passphrase; remove it with `openssl pkey`") from None
        except ssl.SSLError as error:
            if error.reason is None:
                raise UsageError(f"{key} has no PEM private key") from None
            if error.reason == _MISMATCH:
                message = f"{key} does not match {file}; the server's own certificate must be the first in that file"
                raise UsageError(message) from None
            raise UsageError(f"{file} cannot be used: {error.reason.lower().replace('_', ' ')}") from None
        except OSError as error:
            raise UsageError(f"{file} or {key} cannot be read: {error.strerror}") from None
        self._current = context
        with suppress(OSError):  # the file was removed in the meantime; it will be loaded again
            self.ends = min(read_certificate_ends(file.read_bytes()), default=None)

    def _select_certificate(self, connection: ssl.SSLObject, *_: Any) -> None:
        if self._current is not None:
            connection.context = self._current


class _EncryptedKey(Exception):
    """A private key is encrypted with a passphrase."""


def _refuse_passphrase() -> str:
    """Raise `_EncryptedKey`, so that OpenSSL does not prompt for the passphrase at the terminal."""
    raise _EncryptedKey


# The socket

_PAUSE_S: Final = 0.1  # the pause after a failed accept
_SHUTDOWN_S: Final = 5  # for the client's close_notify


class TlsSocket:
    """Accepts TLS connections on a listening socket. Other processes may accept on the same socket.

    ``on_refusal`` is called for each client that aborts the handshake, takes too long, or does not use TLS.
    """

    def __init__(
        self, listening: socket.socket, context: ssl.SSLContext, limits: Limits, on_refusal: Callable[[], None]
    ) -> None:
        self._listening, self._context, self._limits, self._on_refusal = listening, context, limits, on_refusal

    async def accept_clients(self, make: Callable[[], Connection], connections: MutableSet[Any]) -> None:
        """Accept clients until the task is cancelled. ``connections`` also contains clients in the TLS handshake."""
        loop = asyncio.get_running_loop()
        self._listening.setblocking(False)
        while True:
            try:
                client, address = await loop.sock_accept(self._listening)
            except OSError:  # the client has gone, or the process has too many open files
                self._limits.all.make_room()
                await asyncio.sleep(_PAUSE_S)
                continue
            asyncio.create_task(self._do_handshake(client, address[0], make(), connections))  # noqa: RUF006 - _Handshake keeps it

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
                ssl_handshake_timeout=HEAD_S,
                ssl_shutdown_timeout=_SHUTDOWN_S,
            )
        except OSError:
            self._on_refusal()
        finally:
            connections.discard(handshake)
            handshake.end()


class _Handshake(asyncio.Protocol):
    """A client in the TLS handshake, which counts as an idle connection."""

    def __init__(self, connection: Connection, limits: Limits, task: asyncio.Task[None] | None) -> None:
        self._connection, self._limits, self._task = connection, limits, task

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's is
        """Hand the transport over to the connection after the handshake."""
        self.end()
        transport.set_protocol(self._connection)
        self._connection.connection_made(transport)

    def end(self) -> None:
        self._limits.idle.remove(self)
        self._limits.all.remove(self)

    def try_close(self, *, if_sending: bool = True) -> bool:  # noqa: ARG002 - nothing is sent yet
        return self._task is not None and self._task.cancel()

    def shutdown(self) -> None:
        self.try_close()
