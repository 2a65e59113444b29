"""age: keys, files that are encrypted to them, and opening those with the keys of a file that may change."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyrage
from pyrage import x25519

from gitboot.errors import UsageError
from gitboot.files import create_output_file

_COMMENT = "#"


class DecryptionError(Exception):
    """Why a file could not be opened; nothing of what it holds."""


class AgeKeys:
    """The keys of a file, each on a line as `age-keygen` writes them; read for each use."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def decrypt(self, encrypted: bytes) -> bytes:
        """What was encrypted to one of the keys; raises `Unopened`."""
        try:
            return pyrage.decrypt(encrypted, self._read_keys())
        except (OSError, ValueError) as error:
            raise DecryptionError(f"the file of keys cannot be read: {getattr(error, 'strerror', error)}") from None
        except pyrage.DecryptError:  # whatever it says more is of no use: no key fits, or the file is damaged
            raise DecryptionError("none of the keys opens it") from None

    def check(self) -> None:
        """Raise `UsageError` where there is no key to read."""
        try:
            self._read_keys()
        except OSError as error:
            raise UsageError(f"{self._file} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"{self._file}: {error}; make one with `gitboot secret keygen`") from None

    def list_recipients(self) -> tuple[str, ...]:
        """What files are encrypted to, so that these keys open them."""
        return tuple(str(key.to_public()) for key in self._read_keys())

    def _read_keys(self) -> tuple[x25519.Identity, ...]:
        """Return the keys. Raises OSError, and ValueError if there are none or a line is no key."""
        keys: list[x25519.Identity] = []
        lines = self._file.read_bytes().decode("ascii", errors="replace").splitlines()
        for number, line in enumerate(map(str.strip, lines), 1):
            if line and not line.startswith(_COMMENT):
                try:
                    keys.append(x25519.Identity.from_str(line))
                except pyrage.IdentityError:
                    raise ValueError(f"line {number} is no key of age: AGE-SECRET-KEY-1…") from None
        if not keys:
            raise ValueError("it has no key")
        return tuple(keys)


def make_key(file: Path) -> str:
    """Write a new key where nothing stands yet, for its owner alone; return what files are encrypted to."""
    key = x25519.Identity.generate()
    public = str(key.to_public())
    if not create_output_file(file, f"# public key: {public}\n{key}\n".encode(), mode=0o600):
        raise UsageError(f"{file} exists already: name a file that does not exist yet")
    return public


def encrypt(content: bytes, recipients: Iterable[str]) -> bytes:
    """A file that any of these opens, as text; raises `UsageError` for what is no recipient."""
    try:
        parsed = [x25519.Recipient.from_str(each) for each in recipients]
    except pyrage.RecipientError:  # it may be a key itself, which is not shown
        raise UsageError("what files are encrypted to begins with age1, and is whole") from None
    return pyrage.encrypt(content, parsed, armored=True)
