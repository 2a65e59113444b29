"""The keys that signatures of images count of, and what gpg, minisign and sigstore say of such signatures."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gitboot.errors import UsageError
from gitboot.jsonio import Digest
from gitboot.openpgp import Distrusted, Keyring, Unlisted, ask_alone
from gitboot.text import printable

if TYPE_CHECKING:
    from sigstore.verify import Verifier
    from sigstore.verify.policy import Identity


class SignatureKind(StrEnum):
    OPENPGP = "openpgp"
    MINISIGN = "minisign"
    SIGSTORE = "sigstore"


class ImageKeys:
    """The keys in one directory: each of them may vouch for any image.

    ``*.asc`` and ``*.gpg`` are OpenPGP keys, ``*.pub`` minisign's, and ``*.toml`` say who may sign by sigstore, whose
    ``trusted_root.json`` lies beside them. What the programs need besides is made in ``scratch``.
    """

    def __init__(self, directory: Path, scratch: Path) -> None:
        self._scratch = scratch
        self._root = directory / "trusted_root.json"
        self._openpgp = _named(directory, ".asc", ".gpg")
        self._minisign = _named(directory, ".pub")
        self._identities = _named(directory, ".toml")
        if not (self._openpgp or self._minisign or self._identities):
            raise UsageError(f"{directory} has no key of images: *.asc or *.gpg, *.pub, or *.toml for sigstore")
        self._keyring = Keyring.made(self._openpgp, scratch / "openpgp") if self._openpgp else None
        self._verifier: tuple[Verifier, tuple[tuple[str, Identity], ...]] | None = None

    def signer(self, kind: SignatureKind, signature: bytes, file: Path, digest: Digest) -> str:
        """Who has signed a file that has this sha256; raises `Distrusted`, in words that follow "it is"."""
        match kind:
            case SignatureKind.OPENPGP:
                if self._keyring is None:
                    raise Unlisted("signed by an OpenPGP key, and none is listed")
                return printable(str(self._keyring.signer(signature, file)))
            case SignatureKind.MINISIGN:
                return self._by_minisign(signature, file)
            case SignatureKind.SIGSTORE:
                return self._by_sigstore(signature, digest)

    def _by_minisign(self, signature: bytes, file: Path) -> str:
        detached = self._scratch / "minisig"
        detached.write_bytes(signature)
        for key in self._minisign:
            command = [
                "minisign",
                "-V",
                "-q",
                "-p",
                str(key.absolute()),
                "-x",
                str(detached),
                "-m",
                str(file.absolute()),
            ]
            done = ask_alone(command, b"", self._scratch)
            said = f"{done.output}{done.errors}"
            if done.status == 0:
                return f"minisign key {key.stem}"
            if "the public key file" in said:
                raise UsageError(f"{key} is not a public key of minisign")
            if "the key id in the public key is" not in said:
                raise Distrusted("not what its minisign signature is of, or that is none")
        raise Unlisted("signed by a minisign key that is not listed")

    def _by_sigstore(self, bundle: bytes, digest: Digest) -> str:
        if not self._identities:
            raise Unlisted("signed by sigstore, and nobody is listed for it")
        verifier, identities = self._sigstore()
        from sigstore.errors import Error
        from sigstore.hashes import Hashed
        from sigstore.models import Bundle
        from sigstore_models.common.v1 import HashAlgorithm

        hashed = Hashed(algorithm=HashAlgorithm.SHA2_256, digest=bytes.fromhex(digest))
        reason = ""
        for name, identity in identities:
            try:
                verifier.verify_artifact(hashed, Bundle.from_json(bundle), identity)
            except (Error, ValueError) as error:
                reason = printable(str(error))[:_LONGEST_REASON]
            else:
                return f"sigstore identity {name}"
        raise Distrusted(f"not signed by anybody who is listed for sigstore: {reason}")

    def _sigstore(self) -> tuple[Verifier, tuple[tuple[str, Identity], ...]]:
        """What checks bundles, without asking anybody: whom to believe is in the files alone."""
        if self._verifier is None:
            try:
                from sigstore.models import TrustedRoot
                from sigstore.verify import Verifier
            except ImportError:
                raise UsageError("sigstore is not installed: pip install gitboot[sigstore]") from None
            try:
                root = TrustedRoot.from_file(str(self._root))
            except (OSError, ValueError) as error:
                raise UsageError(f"{self._root} is not a trusted root of sigstore: {printable(str(error))}") from None
            self._verifier = Verifier(trusted_root=root), tuple(map(_identity, self._identities))
        return self._verifier


_LONGEST_REASON: Final = 200


def _named(directory: Path, *suffixes: str) -> Sequence[Path]:
    try:
        found = sorted(each for each in directory.iterdir() if each.suffix in suffixes and each.is_file())
    except OSError as error:
        raise UsageError(f"{directory} cannot be read: {error.strerror}") from None
    return [each for each in found if not each.name.startswith(".")]


def _identity(file: Path) -> tuple[str, Identity]:
    """``identity`` and ``issuer``, as the certificate that signs has them."""
    from sigstore.verify.policy import Identity

    try:
        given = tomllib.loads(file.read_text())
        identity, issuer = given.pop("identity"), given.pop("issuer")
        if given or not isinstance(identity, str) or not isinstance(issuer, str):
            raise KeyError
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError):
        raise UsageError(f'{file}: expected identity = "…" and issuer = "…", and nothing else') from None
    return file.stem, Identity(identity=identity, issuer=issuer)
