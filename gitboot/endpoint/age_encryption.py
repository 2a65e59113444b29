"""age encryption: read key files, and encrypt and decrypt secrets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyrage
from pyrage import x25519

from gitboot.errors import UsageError
from gitboot.files import create_output_file

_COMMENT = "#"


class DecryptionError(Exception):
    """The error for a file that gitboot could not decrypt. The message does not contain the content of the file."""


class AgeKeys:
    """A file with age keys, one per line, in the format of `age-keygen`. gitboot reads the file again for each use."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def decrypt(self, encrypted: bytes) -> bytes:
        """Return the decrypted content of a file.

        Raises `DecryptionError` if no key in the key file can decrypt the file.
        """
        try:
            return pyrage.decrypt(encrypted, self._read_keys())
        except (OSError, ValueError) as error:
            raise DecryptionError(f"the key file cannot be read: {getattr(error, 'strerror', error)}") from None
        # the message of pyrage does not show whether the keys are wrong or the file is damaged
        except pyrage.DecryptError:
            raise DecryptionError("no key in the key file can decrypt the file") from None

    def check(self) -> None:
        """Raise `UsageError` if the key file is not readable, or if the file contains no key or a malformed line."""
        try:
            self._read_keys()
        except OSError as error:
            raise UsageError(f"{self._file} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"{self._file}: {error}; create a key with `gitboot secret keygen`") from None

    def list_recipients(self) -> tuple[str, ...]:
        """Return the public keys (age1…) that belong to the secret keys in the file."""
        return tuple(str(key.to_public()) for key in self._read_keys())

    def _read_keys(self) -> tuple[x25519.Identity, ...]:
        keys: list[x25519.Identity] = []
        lines = self._file.read_bytes().decode("ascii", errors="replace").splitlines()
        for number, line in enumerate(map(str.strip, lines), 1):
            if line and not line.startswith(_COMMENT):
                try:
                    keys.append(x25519.Identity.from_str(line))
                except pyrage.IdentityError:
                    raise ValueError(f"line {number} is not an age key (AGE-SECRET-KEY-1…)") from None
        if not keys:
            raise ValueError("the file does not contain an age key")
        return tuple(keys)


def make_key(file: Path) -> str:
    """Write a new secret key to a file that only the owner can read, and return the public key.

    Raises `UsageError` if the file already exists.
    """
    key = x25519.Identity.generate()
    public_key = str(key.to_public())
    if not create_output_file(file, f"# public key: {public_key}\n{key}\n".encode(), mode=0o600):
        raise UsageError(f"{file} already exists; choose another file")
    return public_key


def encrypt(content: bytes, recipients: Iterable[str]) -> bytes:
    """Return the content as an armored age file that each recipient can decrypt.

    Raises `UsageError` for a malformed recipient.
    """
    try:
        parsed = [x25519.Recipient.from_str(each) for each in recipients]
    except (
        pyrage.RecipientError,
        UnicodeEncodeError,
    ):  # the message does not contain the value, because the value may be a secret key
        raise UsageError("expected a complete age public key (age1…)") from None
    return pyrage.encrypt(content, parsed, armored=True)
