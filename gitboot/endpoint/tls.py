"""TLS for operators: a certificate that is read again when its files change, and a socket that limits handshakes."""

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

_MISMATCH: Final = "KEY_VALUES_MISMATCH"  # OpenSSL's word


class Certificate:
    """A certificate and its key, in two files.

    Who connects is shown what could be used last; who is connected already notices nothing of a new one. Where nothing
    could be used yet, nobody is let in.
    """

    def __init__(self, file: Path, key: Path) -> None:
        self._file, self._key = file, key
        self._signatures: tuple[Signature | None, ...] = ()  # of the files as they were read last
        self._current: ssl.SSLContext | None = None
        self.failure: str | None = None  # why the files, as they are now, cannot be used
        self.ends: datetime | None = None  # what is shown, or the first of what is sent with it; None: nothing is
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.sni_callback = self._select_certificate

    def reload_if_changed(self, at: datetime) -> Event | None:
        """Read the files if they are others than before, or could not be used then; the event, if that is news."""
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
            message = f"operators are shown the certificate in {self._file}"
            return None if is_first else Event(at=at, type="CertificateRead", message=message)
        if self.failure == failure:
            return None
        goes_on = "the one before goes on" if self._current is not None else "nobody is let in"
        return Event(at=at, type="CertificateUnreadable", message=f"{self.failure}: {goes_on}", warning=True)

    def load(self) -> None:
        """Read the files, and show what they have from now on. Raises `UsageError` if they cannot be used."""
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
            raise UsageError(f"{file} holds no certificate in PEM") from None
        except OSError as error:  # it has gone since then
            raise UsageError(f"{file} cannot be read: {error.strerror}") from None
        try:
            context.load_cert_chain(file, key, password=_refuse_passphrase)
        except _EncryptedKey:
            message = (
                f"{key} is locked with a passphrase, which nobody is there to give: `openssl pkey` writes it without"
            )
            raise UsageError(message) from None
        except ssl.SSLError as error:
            if error.reason is None:
                raise UsageError(f"{key} holds no private key in PEM") from None
            if error.reason == _MISMATCH:
                message = f"{key} is not the key of {file}, in which the server's own certificate has to come first"
                raise UsageError(message) from None
            raise UsageError(f"{file} cannot be used: {error.reason.lower().replace('_', ' ')}") from None
        except OSError as error:
            raise UsageError(f"{file} or {key} cannot be read: {error.strerror}") from None
        self._current = context
        with suppress(OSError):  # it is gone since then, and looked at again
            self.ends = min(read_certificate_ends(file.read_bytes()), default=None)

    def _select_certificate(self, connection: ssl.SSLObject, *_: Any) -> None:
        if self._current is not None:
            connection.context = self._current


class _EncryptedKey(Exception):
    """A passphrase is asked for."""


def _refuse_passphrase() -> str:
    """Called where OpenSSL would ask at the terminal."""
    raise _EncryptedKey


# The socket

_PAUSE_S: Final = 0.1  # where the system lets nobody in
_SHUTDOWN_S: Final = 5  # for a client to agree that it ends


class TlsSocket:
    """Lets clients in at a socket that listens, by a context that shows them a certificate; others may do so as well.

    ``refuse`` is called for each client that breaks off, takes too long, or speaks another language.
    """

    def __init__(
        self, listening: socket.socket, context: ssl.SSLContext, limits: Limits, on_refusal: Callable[[], None]
    ) -> None:
        self._listening, self._context, self._limits, self._on_refusal = listening, context, limits, on_refusal

    async def accept_clients(self, make: Callable[[], Connection], connections: MutableSet[Any]) -> None:
        """Let clients in until this is cancelled; those that are on their way in are among ``connections``, too."""
        loop = asyncio.get_running_loop()
        self._listening.setblocking(False)
        while True:
            try:
                client, address = await loop.sock_accept(self._listening)
            except OSError:  # it has left again, or all files are in use
                self._limits.all.make_room()
                await asyncio.sleep(_PAUSE_S)
                continue
            asyncio.create_task(self._do_handshake(client, address[0], make(), connections))  # noqa: RUF006 - _Greeting has it

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
    """A client that has connected, and no more: it waits as one does that asks for nothing."""

    def __init__(self, connection: Connection, limits: Limits, task: asyncio.Task[None] | None) -> None:
        self._connection, self._limits, self._task = connection, limits, task

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's is
        """Let the connection take its place, now that both have agreed."""
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
