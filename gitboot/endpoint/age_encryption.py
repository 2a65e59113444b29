"""age encryption: key files, encryption and decryption."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyrage
from pyrage import x25519

from gitboot.errors import UsageError
from gitboot.files import create_output_file

_COMMENT = "#"


class DecryptionError(Exception):
    """A file could not be decrypted. The message does not contain its content."""


class AgeKeys:
    """A file of age keys, one per line, as `age-keygen` writes it. gitboot reads the file for each use."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def decrypt(self, encrypted: bytes) -> bytes:
        """Return the decrypted content. Raises `DecryptionError`."""
        try:
            return pyrage.decrypt(encrypted, self._read_keys())
        except (OSError, ValueError) as error:
            raise DecryptionError(f"the key file cannot be read: {getattr(error, 'strerror', error)}") from None
        except pyrage.DecryptError:  # the text of the error adds no information: no key fits, or the file is damaged
            raise DecryptionError("no key in the key file decrypts it") from None

    def check(self) -> None:
        """Raise `UsageError` if the file cannot be read, contains no key, or contains a malformed line."""
        try:
            self._read_keys()
        except OSError as error:
            raise UsageError(f"{self._file} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"{self._file}: {error}; create a key with `gitboot secret keygen`") from None

    def list_recipients(self) -> tuple[str, ...]:
        """Return the public keys (age1…) for which this file contains the secret keys."""
        return tuple(str(key.to_public()) for key in self._read_keys())

    def _read_keys(self) -> tuple[x25519.Identity, ...]:
        """Return the keys. Raises OSError, and ValueError if the file contains no key or a line that is not a key."""
        keys: list[x25519.Identity] = []
        lines = self._file.read_bytes().decode("ascii", errors="replace").splitlines()
        for number, line in enumerate(map(str.strip, lines), 1):
            if line and not line.startswith(_COMMENT):
                try:
                    keys.append(x25519.Identity.from_str(line))
                except pyrage.IdentityError:
                    raise ValueError(f"line {number} is not an age key (AGE-SECRET-KEY-1…)") from None
        if not keys:
            raise ValueError("the file has no key")
        return tuple(keys)


def make_key(file: Path) -> str:
    """Write a new key to a file that only its owner can read. Return the public key.

    Raises `UsageError` if the file already exists.
    """
    key = x25519.Identity.generate()
    public = str(key.to_public())
    if not create_output_file(file, f"# public key: {public}\n{key}\n".encode(), mode=0o600):
        raise UsageError(f"{file} exists already; name a new file")
    return public


def encrypt(content: bytes, recipients: Iterable[str]) -> bytes:
    """Return an armored age file that each recipient can decrypt. Raises `UsageError` for a malformed recipient."""
    try:
        parsed = [x25519.Recipient.from_str(each) for each in recipients]
    except pyrage.RecipientError:  # the message does not quote the value: it may be a secret key
        raise UsageError("expected a complete public key, which begins with age1") from None
    return pyrage.encrypt(content, parsed, armored=True)
