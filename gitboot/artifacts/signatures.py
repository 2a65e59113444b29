"""Image signatures: trusted keys, and verification with gpg, minisign and sigstore."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from gitboot.artifacts.availability import LARGEST_ARTIFACT, Fetcher
from gitboot.errors import ArtifactMissing, HostUnreachable, UsageError
from gitboot.git.signatures import Keyring, UnlistedKey, UntrustedSignature, run_isolated
from gitboot.jsonio import Digest
from gitboot.model.boot_image import Artifact, BootImage, Checksums, Signature
from gitboot.model.scalars import Path as Field
from gitboot.resolve.boot_composition import choose_download_url
from gitboot.text import printable

if TYPE_CHECKING:
    from sigstore.verify import Verifier
    from sigstore.verify.policy import Identity


class SignatureKind(StrEnum):
    OPENPGP = "openpgp"
    MINISIGN = "minisign"
    SIGSTORE = "sigstore"


class ImageKeys:
    """The trusted keys in a directory. Each key may sign any image.

    ``*.asc`` and ``*.gpg`` files are OpenPGP keys, and ``*.pub`` files are minisign keys. ``*.toml`` files name the
    identities that may sign with sigstore, and ``trusted_root.json`` is the trusted root of sigstore. ``scratch`` is a
    folder for temporary files.
    """

    def __init__(self, directory: Path, scratch: Path) -> None:
        self._scratch = scratch
        self._root = directory / "trusted_root.json"
        self._openpgp = _list_key_files(directory, ".asc", ".gpg")
        self._minisign = _list_key_files(directory, ".pub")
        self._identities = _list_key_files(directory, ".toml")
        if not (self._openpgp or self._minisign or self._identities):
            raise UsageError(f"{directory} has no keys of images: expected *.asc, *.gpg, *.pub, or *.toml for sigstore")
        self._keyring = Keyring.create(self._openpgp, scratch / "openpgp") if self._openpgp else None
        self._verifier: tuple[Verifier, tuple[tuple[str, Identity], ...]] | None = None

    def signer(self, kind: SignatureKind, signature: bytes, file: Path, digest: Digest) -> str:
        """Return the signer of a file with this SHA-256 digest.

        Raises `UntrustedSignature`, whose message completes a sentence that starts with "it is".
        """
        match kind:
            case SignatureKind.OPENPGP:
                if self._keyring is None:
                    raise UnlistedKey("signed by an OpenPGP key, and no OpenPGP keys are listed")
                return printable(str(self._keyring.find_signer(signature, file)))
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
            done = run_isolated(command, b"", self._scratch)
            said = f"{done.output}{done.errors}"
            if done.status == 0:
                return f"minisign key {key.stem}"
            if "the public key file" in said:
                raise UsageError(f"{key} is not a public key of minisign")
            if "the key id in the public key is" not in said:
                raise UntrustedSignature("not the file of its minisign signature, or the signature is malformed")
        raise UnlistedKey("signed by a minisign key that is not listed")

    def _by_sigstore(self, bundle: bytes, digest: Digest) -> str:
        if not self._identities:
            raise UnlistedKey("signed with sigstore, and no sigstore identities are listed")
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
        raise UntrustedSignature(f"not signed by a listed sigstore identity: {reason}")

    def _sigstore(self) -> tuple[Verifier, tuple[tuple[str, Identity], ...]]:
        # The trusted root in the directory makes it possible to verify offline.
        if self._verifier is None:
            try:
                from sigstore.models import TrustedRoot
                from sigstore.verify import Verifier
            except ImportError:
                raise UsageError("sigstore is not installed: run pip install 'gitboot[sigstore]'") from None
            try:
                root = TrustedRoot.from_file(str(self._root))
            except (OSError, ValueError) as error:
                raise UsageError(f"{self._root} is not a trusted root for sigstore: {printable(str(error))}") from None
            self._verifier = Verifier(trusted_root=root), tuple(map(_identity, self._identities))
        return self._verifier


_LONGEST_REASON: Final = 200


def _list_key_files(directory: Path, *suffixes: str) -> Sequence[Path]:
    try:
        found = sorted(each for each in directory.iterdir() if each.suffix in suffixes and each.is_file())
    except OSError as error:
        raise UsageError(f"{directory} cannot be read: {error.strerror}") from None
    return [each for each in found if not each.name.startswith(".")]


def _identity(file: Path) -> tuple[str, Identity]:
    """Read the ``identity`` and the ``issuer`` that a signing certificate must contain."""
    from sigstore.verify.policy import Identity

    try:
        given = tomllib.loads(file.read_text())
        identity, issuer = given.pop("identity"), given.pop("issuer")
        if given or not isinstance(identity, str) or not isinstance(issuer, str):
            raise KeyError
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError):
        raise UsageError(f'{file}: expected identity = "…" and issuer = "…", and nothing else') from None
    return file.stem, Identity(identity=identity, issuer=issuer)


class VouchedFile(Struct, frozen=True, kw_only=True):
    """A file of an image, with its trusted signer or the reason why the signature is not trusted."""

    at: Field  # the field of the BootImage that describes the file
    sha256: Digest
    by: str | None  # the trusted signer; None if there is no trusted signature
    # Why the signature is not trusted, to complete "it is". None if trusted, or if the image names no signature.
    fault: str | None


class SignatureCheck:
    """Verifies the signatures that images name. Each list of digests is fetched and verified only once."""

    def __init__(self, fetcher: Fetcher, keys: ImageKeys, base_url: str) -> None:
        self._fetcher, self._keys, self._base_url = fetcher, keys, base_url
        self._lists: dict[Checksums, tuple[frozenset[str], str] | UntrustedSignature] = {}

    def files(self, image: BootImage, only: Collection[Digest] | None = None) -> Iterator[VouchedFile]:
        """Verify the files of an image in the order of architectures. ``only`` selects files by digest."""
        for architecture, artifacts in sorted(image.spec.architectures.items()):
            for at, artifact in artifacts.files():
                if only is not None and artifact.sha256 not in only:
                    continue
                by, fault = None, None
                try:
                    by = self._signer(artifact, artifacts.checksums)
                except UntrustedSignature as error:
                    fault = str(error)
                yield VouchedFile(
                    at=("spec", "architectures", str(architecture), *at), sha256=artifact.sha256, by=by, fault=fault
                )

    def _signer(self, artifact: Artifact, checksums: Checksums | None) -> str | None:
        if artifact.signature is not None:
            kind, url = _find_signature(artifact.signature)
            detached = self._read_small(url, _LARGEST_SIGNATURE)
            with TemporaryDirectory(prefix="gitboot-") as folder:
                file = Path(folder, "file")
                if kind is not SignatureKind.SIGSTORE:  # sigstore signs the digest, not the file
                    self._fetch(artifact, file)
                return self._keys.signer(kind, detached, file, artifact.sha256)
        if checksums is None:
            return None
        digests, by = self._read_checksums(checksums)
        if artifact.sha256 not in digests:
            raise UntrustedSignature(f"not in the list at {checksums.url}, which {by} signed")
        return by

    def _read_checksums(self, checksums: Checksums) -> tuple[frozenset[str], str]:
        if checksums not in self._lists:
            kind, url = _find_signature(checksums.signature)
            try:
                content, detached = (
                    self._read_small(checksums.url, _LARGEST_LIST),
                    self._read_small(url, _LARGEST_SIGNATURE),
                )
                with TemporaryDirectory(prefix="gitboot-") as folder:
                    file = Path(folder, "list")
                    file.write_bytes(content)
                    by = self._keys.signer(kind, detached, file, Digest(sha256(content).hexdigest()))
                lines = _LINE.finditer(content.decode(errors="replace"))
                self._lists[checksums] = frozenset(match[1] or match[2] for match in lines), by
            except UntrustedSignature as error:
                self._lists[checksums] = error
        found = self._lists[checksums]
        if isinstance(found, UntrustedSignature):
            raise found
        return found

    def _read_small(self, url: str, most_bytes: int) -> bytes:
        content = bytearray()
        for chunk in self._chunks(url):
            content += chunk
            if len(content) > most_bytes:
                raise UntrustedSignature(f"not verified: {url} has more than {most_bytes:,} bytes")
        return bytes(content)

    def _fetch(self, artifact: Artifact, file: Path) -> None:
        digest, most_bytes = sha256(), artifact.size or LARGEST_ARTIFACT
        with file.open("wb") as written:
            for chunk in self._chunks(artifact.url):
                digest.update(chunk)
                written.write(chunk)
                if written.tell() > most_bytes:
                    raise UntrustedSignature(
                        f"not the file at {artifact.url}, which has more than {most_bytes:,} bytes"
                    )
        if digest.hexdigest() != artifact.sha256:
            raise UntrustedSignature(f"not the file at {artifact.url}, which has the sha256 {digest.hexdigest()}")

    def _chunks(self, url: str) -> Iterator[bytes]:
        try:
            with self._fetcher.read(choose_download_url(url, self._base_url)) as content:
                yield from content.chunks
        except (ArtifactMissing, HostUnreachable) as error:
            raise UntrustedSignature(f"not verified, because {url} is unavailable: {error}") from error


_LARGEST_SIGNATURE: Final = 1 << 20
_LARGEST_LIST: Final = 16 << 20
# A line that sha256sum writes, or sha256sum --tag, which uses the format of BSD's sha256.
_LINE: Final = re.compile(r"^\\?(?:([0-9a-f]{64}) [ *].+|SHA256 \(.+\) = ([0-9a-f]{64}))$", re.MULTILINE)


def _find_signature(signature: Signature) -> tuple[SignatureKind, str]:
    found = ((kind, getattr(signature, kind)) for kind in SignatureKind)
    return next((kind, url) for kind, url in found if url is not None)
