"""Keys of the signed list: a root key that may lie elsewhere, and the publication key on the host that publishes.

A folder of list keys has:

- ``publication.key``: the private key that signs each publication (PEM, PKCS8);
- ``<n>.root.json``: every version of the TUF root metadata, from 1 on;
- ``<n>.targets.json``: the TUF metadata by which the root key delegates to the publication key; the newest counts;
- ``root.pub``: the public root key (PEM), which mirrors and monitors need.

The private root key is in ``root.key`` of this folder unless a person keeps it elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gitboot.errors import UsageError
from gitboot.files import read_private
from gitboot.jsonio import canonical

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PUBLICATION_KEY: Final = "publication.key"

ROOTS: Final = re.compile(r"([1-9][0-9]*)\.root\.json")
TARGETS: Final = re.compile(r"([1-9][0-9]*)\.targets\.json")
INSTALL: Final = "a signed list needs python-tuf and cryptography: pip install 'gitboot[signing]'"


class KeyUnreadable(UsageError):
    """The publication key or the metadata beside it cannot be read."""


class KeyNotInRoot(UsageError):
    """The newest root metadata does not name the publication key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListKeys:
    """The publication key, and the metadata by which readers trust it."""

    keyid: str
    root_expires: datetime  # of the newest root metadata
    targets_version: int
    metadata: Mapping[str, bytes]  # root and targets metadata by file name, as readers need them
    _key: Ed25519PrivateKey

    def sign(self, content: bytes) -> str:
        """Return the Ed25519 signature of ``content``, in hexadecimal digits."""
        return self._key.sign(content).hex()

    def has_signed(self, content: bytes, signature: str) -> bool:
        """Return whether the publication key made a signature of ``content``."""
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.public_key().verify(bytes.fromhex(signature), content)
        except (InvalidSignature, ValueError):
            return False
        return True


def read_list_keys(folder: Path) -> ListKeys:
    """Read a folder of list keys.

    Raises:
        KeyUnreadable: A file is missing, is not what it should be, or others may read the key.
        KeyNotInRoot: The newest metadata of the root key does not name the publication key.
    """
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise KeyUnreadable(INSTALL) from None
    file = folder / PUBLICATION_KEY
    try:
        key = load_pem_private_key(read_private(file), password=None)
    except UsageError as error:
        raise KeyUnreadable(str(error)) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyUnreadable(
            f"{file} is not a PEM file with a private key; copy it again from the host of the root key"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyUnreadable(f"{file} is not an Ed25519 key; make one with gitboot secret keygen --signed-list")
    keyid = _keyid(key.public_key().public_bytes_raw())
    roots, targets = numbered(folder, ROOTS), numbered(folder, TARGETS)
    if not roots or not targets or max(roots) != len(roots):
        raise KeyUnreadable(
            f"{folder} lacks root.json or targets.json files; copy all of them from the host of the root key"
        )
    newest, delegation = max(roots), max(targets)
    root, delegating = roots[newest], targets[delegation]
    try:
        for number, data in [*roots.items(), (delegation, delegating)]:
            if json.loads(data)["signed"]["version"] != number:
                raise ValueError("a name that has another version")
        signed = json.loads(root)["signed"]
        trusted = [set(signed["roles"][role]["keyids"]) for role in ("snapshot", "timestamp")]
        trusted.append(set(json.loads(delegating)["signed"]["delegations"]["succinct_roles"]["keyids"]))
        expires = datetime.fromisoformat(signed["expires"])
        if expires.tzinfo is None:
            raise ValueError("a time without a zone")
    except (ValueError, KeyError, TypeError, RecursionError):
        raise KeyUnreadable(
            f"{folder} has root.json or targets.json files that are no TUF metadata; copy them again"
        ) from None
    if not all(keyid in each for each in trusted):
        raise KeyNotInRoot(
            f"{newest}.root.json and {delegation}.targets.json in {folder} do not both name {PUBLICATION_KEY}; copy "
            "the key and all .json files from the host of the root key"
        )
    return ListKeys(
        keyid=keyid,
        root_expires=expires,
        targets_version=delegation,
        metadata={
            f"{delegation}.targets.json": delegating,
            **{f"{number}.root.json": data for number, data in sorted(roots.items())},
        },
        _key=key,
    )


def numbered(folder: Path, name: re.Pattern[str]) -> dict[int, bytes]:
    """Return the content of the files of a folder that have such a name, by number."""
    try:
        found = {int(match[1]): path for path in folder.iterdir() if (match := name.fullmatch(path.name))}
        return {number: path.read_bytes() for number, path in found.items()}
    except OSError as error:
        raise KeyUnreadable(f"{folder} cannot be read: {error.strerror}") from None


def _keyid(public: bytes) -> str:
    """Return the identifier of an Ed25519 key as python-tuf makes it: the sha256 of the key's canonical JSON."""
    key = {"keytype": "ed25519", "keyval": {"public": public.hex()}, "scheme": "ed25519"}
    return sha256(canonical(key)).hexdigest()
