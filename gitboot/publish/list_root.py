"""Root key of a signed list: create and replace the keys that sign the list."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from gitboot.errors import UsageError
from gitboot.files import create_output_file, read_private, write_output_file
from gitboot.publish.signed_list import INSTALL, PUBLICATION_KEY, ROOTS, TARGETS, read_versions

try:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key
    from securesystemslib.signer import CryptoSigner
    from tuf.api.metadata import Delegations, Metadata, Root, SuccinctRoles, Targets
    from tuf.api.serialization import DeserializationError
except ImportError:
    raise UsageError(INSTALL) from None

ROOT_KEY: Final = "root.key"
ROOT_PUBLIC_KEY: Final = "root.pub"
ROOT_VALID: Final = timedelta(days=3 * 365)  # how long the root metadata and the targets metadata are valid


def has_root(folder: Path) -> bool:
    """Return whether a folder contains the root metadata of a signed list."""
    return folder.is_dir() and bool(read_versions(folder, ROOTS))


def make_list_keys(folder: Path, root_key: Path | None, now: datetime) -> bytes:
    """Create a root key, a publication key and their metadata in a folder. Return the public root key as PEM.

    ``root_key`` is the file for the private root key, by default `ROOT_KEY` in the folder. Raises `UsageError` if a key
    file already exists.
    """
    signer = CryptoSigner.generate_ed25519()
    publication_signer = CryptoSigner.generate_ed25519()
    root = Metadata(Root())
    targets = Metadata(Targets())
    for role in ("root", "targets"):
        root.signed.add_key(signer.public_key, role)
    _create_key(root_key or folder / ROOT_KEY, signer)
    _create_key(folder / PUBLICATION_KEY, publication_signer)
    return _write_list_root(folder, root, targets, publication_signer, (signer,), now)


def replace_list_keys(folder: Path, root_key: Path | None, new_root_key: Path | None, now: datetime) -> bytes:
    """Replace the publication key, and also the root key if ``new_root_key`` is set. Return the public root key as PEM.

    The new metadata is valid for `ROOT_VALID` from now. Readers that trust the earlier root key also accept the new
    one, because both keys sign the new root metadata. Raises `UsageError` if a file cannot be read, if ``root_key`` is
    not the root key, or if ``new_root_key`` already exists.
    """
    signer = _read_key(root_key or folder / ROOT_KEY)
    roots = read_versions(folder, ROOTS)
    delegations = read_versions(folder, TARGETS)
    try:
        root = Metadata[Root].from_bytes(roots[max(roots)])
        targets = Metadata[Targets].from_bytes(delegations[max(delegations)])
    except (ValueError, DeserializationError) as error:
        raise UsageError(
            f"{folder} lacks metadata of the signed list, or its metadata is damaged ({error}): restore the folder "
            "from a backup"
        ) from None
    if signer.public_key.keyid not in root.signed.roles["root"].keyids:
        raise UsageError(f"{root_key or folder / ROOT_KEY} is not a root key that {max(roots)}.root.json lists")
    signers = [signer]
    if new_root_key is not None:
        new_signer = CryptoSigner.generate_ed25519()
        _create_key(new_root_key, new_signer)
        for role in ("root", "targets"):
            root.signed.revoke_key(signer.public_key.keyid, role)
            root.signed.add_key(new_signer.public_key, role)
        signers.append(new_signer)
    for role in ("snapshot", "timestamp"):
        for keyid in tuple(root.signed.roles[role].keyids):
            root.signed.revoke_key(keyid, role)
    root.signed.version += 1
    targets.signed.version += 1
    publication_signer = CryptoSigner.generate_ed25519()
    write_output_file(folder / PUBLICATION_KEY, [publication_signer.private_bytes], mode=0o600, sync=True)
    return _write_list_root(folder, root, targets, publication_signer, tuple(signers), now)


def _write_list_root(
    folder: Path,
    root: Metadata[Root],
    targets: Metadata[Targets],
    publication_signer: CryptoSigner,
    signers: tuple[CryptoSigner, ...],
    now: datetime,
) -> bytes:
    """Write the public root key and the metadata that authorizes the publication key. Return the root key as PEM."""
    for role in ("snapshot", "timestamp"):
        root.signed.add_key(publication_signer.public_key, role)
    key = publication_signer.public_key
    # 8 bits select one of 256 bins; docs/adr/0031-targets-and-signed-list.md compares other numbers
    bins = SuccinctRoles([key.keyid], 1, 8, "servers")
    targets.signed.delegations = Delegations({key.keyid: key}, succinct_roles=bins)
    root.signed.expires = targets.signed.expires = now.replace(microsecond=0) + ROOT_VALID
    root.signatures.clear()
    for signer in signers:
        root.sign(signer, append=True)
    targets.sign(signers[-1])
    write_output_file(folder / f"{targets.signed.version}.targets.json", [targets.to_bytes()], mode=0o644, sync=True)
    write_output_file(folder / f"{root.signed.version}.root.json", [root.to_bytes()], mode=0o644, sync=True)
    raw = bytes.fromhex(signers[-1].public_key.keyval["public"])
    public_pem = Ed25519PublicKey.from_public_bytes(raw).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    write_output_file(folder / ROOT_PUBLIC_KEY, [public_pem], mode=0o644, sync=True)
    return public_pem


def _create_key(file: Path, signer: CryptoSigner) -> None:
    if not create_output_file(file, signer.private_bytes, mode=0o600, make_folders=True):
        raise UsageError(f"{file} already exists: move it away, or choose another file")


def _read_key(file: Path) -> CryptoSigner:
    try:
        key = load_pem_private_key(read_private(file), password=None)
    except (ValueError, TypeError):
        raise UsageError(f"{file} is not a PEM file with a private key: give the path of the root key") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{file} is not an Ed25519 key: give the path of the root key")
    return CryptoSigner(key)
