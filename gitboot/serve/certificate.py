"""The certificate that operators are shown: read anew when its files change, kept where they cannot be used."""

from __future__ import annotations

import ssl
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from gitboot.errors import UsageError
from gitboot.serve.validity import first_end
from gitboot.status import Event

_MISMATCH: Final = "KEY_VALUES_MISMATCH"  # OpenSSL's word

Stamp = tuple[tuple[int, int, int], ...]


class Certificate:
    """A certificate and its key, in two files.

    Who connects is shown what could be used last; who is connected already notices nothing of a new one. Where nothing
    could be used yet, nobody is let in.
    """

    def __init__(self, file: Path, key: Path) -> None:
        self._file, self._key = file, key
        self._stamp: Stamp | None = None
        self._shown: ssl.SSLContext | None = None
        self.failure: str | None = None  # why the files, as they are now, cannot be used
        self.ends: datetime | None = None  # what is shown, or the first of what is sent with it; None: nothing is
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.sni_callback = self._show

    def check(self) -> None:
        """Raise `UsageError` where the files cannot be used."""
        self._take()

    def look(self, at: datetime) -> Event | None:
        """Read the files if they are others than before, or could not be used then; the event, if that is news."""
        failure, is_first = self.failure, self._stamp is None
        stamp = _stamp(self._file, self._key)
        if stamp == self._stamp and failure is None:
            return None
        self._stamp = stamp
        try:
            self._take()
            self.failure = None
        except UsageError as error:
            self.failure = str(error)
        if self.failure is None:
            message = f"operators are shown the certificate in {self._file}"
            return None if is_first else Event(at=at, type="CertificateRead", message=message)
        if self.failure == failure:
            return None
        goes_on = "the one before goes on" if self._shown is not None else "nobody is let in"
        return Event(at=at, type="CertificateKept", message=f"{self.failure}: {goes_on}", warning=True)

    def _take(self) -> None:
        self._shown = _pair(self._file, self._key)
        with suppress(OSError):  # it is gone since then, and looked at again
            self.ends = first_end(self._file.read_bytes())

    def _show(self, connection: ssl.SSLObject, *_: Any) -> None:
        if self._shown is not None:
            connection.context = self._shown


def _stamp(*files: Path) -> Stamp:
    """What differs once files are others; one that is not there has a stamp, too."""
    return tuple(map(_stamp_of, files))


def _stamp_of(file: Path) -> tuple[int, int, int]:
    try:
        found = file.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


def _pair(file: Path, key: Path) -> ssl.SSLContext:
    """What shows a certificate; raises `UsageError` where its files cannot be used."""
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
        context.load_cert_chain(file, key, password=_ask)
    except _LockedKey:
        message = f"{key} is locked with a passphrase, which nobody is there to give: `openssl pkey` writes it without"
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
    return context


class _LockedKey(Exception):
    """A passphrase is asked for."""


def _ask() -> str:
    """Called where OpenSSL would ask at the terminal."""
    raise _LockedKey
