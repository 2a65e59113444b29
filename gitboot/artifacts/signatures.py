"""Signatures of artifacts: verify them with trusted keys."""

from __future__ import annotations

import re
import tomllib
from base64 import b64decode, b64encode
from binascii import Error as InvalidBase64
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, suppress
from enum import StrEnum
from functools import cached_property
from hashlib import sha256, sha512
from itertools import dropwhile, takewhile
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory, mkdtemp
from threading import Lock
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from gitboot.artifacts.archives import read_archive_member
from gitboot.artifacts.availability import CHUNK, LARGEST_ARTIFACT, Fetcher, FileSigner, UnverifiedFile
from gitboot.errors import ArtifactMissing, GitbootError, HostUnreachable, UsageError
from gitboot.files import convert_os_errors
from gitboot.git.signatures import Keyring, UnlistedKey, UntrustedSignature, run_isolated, split_openpgp_signatures
from gitboot.jsonio import Digest
from gitboot.model.boot_image import Artifact, BootImage, Checksums, DigestOrigin, Provenance, Signature
from gitboot.model.scalars import ArtifactUrl, split_member_url
from gitboot.model.scalars import Path as Field
from gitboot.resolve.boot_composition import choose_download_url
from gitboot.resolve.server_decision import BootFile
from gitboot.text import printable

if TYPE_CHECKING:
    from sigstore.verify import Verifier
    from sigstore.verify.policy import Identity

    from gitboot.fleet.revision import Signer

SHIPPED_KEYS: Final = Path(__file__).parent / "keys"  # the README.md in this folder names the origin of each key


class SignatureKind(StrEnum):
    OPENPGP = "openpgp"
    MINISIGN = "minisign"
    SIGSTORE = "sigstore"


class ImageSigner(NamedTuple):
    """The key that signed an image."""

    key: str  # the fingerprint of the OpenPGP primary key, the public key of minisign, or the identity of sigstore
    name: str  # the name to show to people: the user ID of the key, or the name of its file

    def __str__(self) -> str:
        return f"{self.name} ({self.key})"


_MOST_SIGNATURES: Final = 8  # Debian signs with three keys


class VendorKeys:
    """The keys that may sign images: vendor keys that gitboot ships, and keys in a directory of the operator.

    The directory contains ``*.asc`` and ``*.gpg`` files with OpenPGP keys, ``*.pub`` files with minisign keys,
    ``*.toml`` files with the identities that may sign with sigstore, and the trusted root of sigstore in
    ``trusted_root.json``. Documents of a fleet cannot add keys. ``scratch`` is a folder for temporary files.

    Each key may sign any image, unless the parameter ``only`` of a method limits the keys. ``only`` is a collection of
    `ImageSigner.key` values. An empty collection allows no keys, and None allows all keys.

    The methods raise `UntrustedSignature` if no allowed key verifies a signature. The text of this error completes a
    sentence that begins with "it is". The methods raise `UsageError` if a key cannot be read.
    """

    def __init__(self, directory: Path | None, scratch: Path, *, shipped: Path | None = SHIPPED_KEYS) -> None:
        self.scratch = scratch
        self._digests: dict[str, Digest | None] = {}  # the digests of keys, by key
        own_openpgp = _list_key_files(directory, ".asc", ".gpg")
        self._minisign = _list_key_files(directory, ".pub")
        self._identities = _list_key_files(directory, ".toml")
        self._trusted_root = (directory or Path()) / "trusted_root.json"
        if directory is not None and not (own_openpgp or self._minisign or self._identities):
            raise UsageError(
                f"{directory} does not contain image keys: expected *.asc, *.gpg, *.pub, or *.toml for sigstore"
            )
        self._keyring: Keyring | None = None
        if openpgp := [*_list_key_files(shipped, ".asc"), *own_openpgp]:
            self._keyring = Keyring.create(openpgp, Path(mkdtemp(prefix="keys-", dir=scratch), "openpgp"))

    def compute_key_digest(self, key: str) -> Digest | None:
        """Return the digest of a trusted key, or None if the key is not trusted.

        ``key`` is an `ImageSigner.key`. The digest changes if the key is revoked or its validity is extended.
        """
        if key not in self._digests:
            content: str | None = None
            if any(key == _read_minisign_key(path) for path in self._minisign):
                content = key
            elif self._identities and any(key == signer.key for signer, _ in self._sigstore[1]):
                content = "".join(path.read_text() for path in (*self._identities, self._trusted_root))
            elif self._keyring is not None and re.fullmatch("[0-9A-F]{40}|[0-9A-F]{64}", key):
                content = self._keyring.export_key(key)
            self._digests[key] = Digest(sha256(content.encode()).hexdigest()) if content else None
        return self._digests[key]

    def find_signer(
        self,
        kind: SignatureKind,
        signature: bytes,
        file: Path,
        digest: Digest,
        *,
        only: Collection[str] | None = None,
    ) -> ImageSigner:
        """Verify a detached signature of the file with this SHA-256 digest, and return the signer.

        If the file has several OpenPGP signatures, one valid signature by an allowed key is enough.
        """
        match kind:
            case SignatureKind.OPENPGP:
                return self._find_openpgp_signer(signature, only, lambda keys, packet: keys.find_signer(packet, file))
            case SignatureKind.MINISIGN:
                return self._find_minisign_signer(signature, file, only)
            case SignatureKind.SIGSTORE:
                return self._find_sigstore_signer(signature, digest, only)

    def read_clear_signed(self, content: bytes, *, only: Collection[str] | None = None) -> tuple[bytes, ImageSigner]:
        """Verify a clear-signed OpenPGP message, and return the signed text and the signer.

        Text outside the signed part is ignored.
        """
        signed_part, signatures = _split_clear_signed(content)
        texts: list[bytes] = []

        def verify(keys: Keyring, packet: bytes) -> Signer:
            text, signer = keys.read_clear_text(signed_part + _format_armour(packet))
            texts.append(text)
            return signer

        signer = self._find_openpgp_signer(signatures, only, verify)
        return texts[-1], signer

    def _find_openpgp_signer(
        self, signatures: bytes, only: Collection[str] | None, verify: Callable[[Keyring, bytes], Signer]
    ) -> ImageSigner:
        if self._keyring is None:
            raise UnlistedKey("signed by an OpenPGP key, but gitboot has no trusted OpenPGP keys")
        packets = split_openpgp_signatures(signatures)
        if len(packets) > _MOST_SIGNATURES:
            raise UntrustedSignature(f"not verified, because there are more than {_MOST_SIGNATURES} OpenPGP signatures")
        faults: list[UntrustedSignature] = []
        for packet in packets:
            try:
                signer = verify(self._keyring, packet)
            except UntrustedSignature as error:
                faults.append(error)
            else:
                if only is None or signer.key in only:
                    return ImageSigner(signer.key, printable(signer.person))
                faults.append(UnlistedKey(f"signed by the key {signer.key}, which is not allowed"))
        if not faults:
            raise UntrustedSignature("not signed: the OpenPGP signature is empty")
        raise next((fault for fault in faults if not isinstance(fault, UnlistedKey)), faults[0])

    def _find_minisign_signer(self, signature: bytes, file: Path, only: Collection[str] | None) -> ImageSigner:
        with TemporaryDirectory(dir=self.scratch) as folder:
            detached = Path(folder, "minisig")
            detached.write_bytes(signature)
            for path in self._minisign:
                key = _read_minisign_key(path)
                if only is not None and key not in only:
                    continue
                command = ["minisign", "-V", "-q", "-P", key, "-x", str(detached), "-m", str(file.absolute())]
                result = run_isolated(command, b"", self.scratch)
                if result.status == 0:
                    return ImageSigner(key, f"minisign key {path.stem}")
                if "the key id in the public key is" not in f"{result.output}{result.errors}":
                    raise UntrustedSignature(
                        "not signed: the minisign signature is malformed or belongs to a different file"
                    )
        raise UnlistedKey("signed by a minisign key that is not listed as trusted")

    def _find_sigstore_signer(self, bundle: bytes, digest: Digest, only: Collection[str] | None) -> ImageSigner:
        if not self._identities:
            raise UnlistedKey("signed with sigstore, but gitboot has no trusted sigstore identities")
        verifier, identities = self._sigstore
        from sigstore.errors import Error
        from sigstore.hashes import Hashed
        from sigstore.models import Bundle
        from sigstore_models.common.v1 import HashAlgorithm

        hashed = Hashed(algorithm=HashAlgorithm.SHA2_256, digest=bytes.fromhex(digest))
        reason = ""
        for signer, identity in identities:
            if only is not None and signer.key not in only:
                continue
            try:
                verifier.verify_artifact(hashed, Bundle.from_json(bundle), identity)
            except (Error, ValueError) as error:
                reason = printable(str(error))[:200]
            else:
                return signer
        raise UntrustedSignature(f"not signed by a listed sigstore identity: {reason}")

    @cached_property
    def _sigstore(self) -> tuple[Verifier, tuple[tuple[ImageSigner, Identity], ...]]:
        # The verification works offline, with the trusted root in the directory.
        try:
            from sigstore.models import TrustedRoot
            from sigstore.verify import Verifier
        except ImportError:
            raise UsageError("sigstore is not installed: run pip install 'gitboot[sigstore]'") from None
        path = self._trusted_root
        try:
            root = TrustedRoot.from_file(str(path))
        except (OSError, ValueError) as error:
            raise UsageError(f"{path} is not a trusted root for sigstore: {printable(str(error))}") from None
        return Verifier(trusted_root=root), tuple(map(_read_identity, self._identities))


def _list_key_files(directory: Path | None, *suffixes: str) -> Sequence[Path]:
    if directory is None:
        return ()
    with convert_os_errors(directory, "read"):
        files = sorted(path for path in directory.iterdir() if path.suffix in suffixes and path.is_file())
    return [file for file in files if not file.name.startswith(".")]


def _read_minisign_key(file: Path) -> str:
    key = ""
    try:
        words = file.read_text().split()  # the key is last, and may follow a comment
        key = words[-1] if words else ""
        decoded = b64decode(key, validate=True)
    except (OSError, UnicodeDecodeError, InvalidBase64):
        decoded = b""
    # minisign(1), "PUBLIC KEY FORMAT": algorithm, key id and key
    if len(decoded) != 42 or not decoded.startswith(b"Ed"):
        raise UsageError(f"{file} is not a minisign public key")
    return key


def _read_identity(file: Path) -> tuple[ImageSigner, Identity]:
    """Read a file with the ``identity`` and the ``issuer`` that a sigstore signing certificate must contain."""
    from sigstore.verify.policy import Identity

    try:
        fields = tomllib.loads(file.read_text())
        identity, issuer = fields.pop("identity"), fields.pop("issuer")
        if fields or not isinstance(identity, str) or not isinstance(issuer, str):
            raise KeyError
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError):
        raise UsageError(f'{file}: expected exactly two keys, identity = "…" and issuer = "…"') from None
    return ImageSigner(identity, f"sigstore identity {file.stem}"), Identity(identity=identity, issuer=issuer)


# Clear-signed messages


_BEGIN_MESSAGE: Final = b"-----BEGIN PGP SIGNED MESSAGE-----"
_BEGIN_SIGNATURE: Final = b"-----BEGIN PGP SIGNATURE-----"
_END_SIGNATURE: Final = b"-----END PGP SIGNATURE-----"


def _split_clear_signed(content: bytes) -> tuple[bytes, bytes]:
    """Split the first clear-signed message in a text into the signed part and the ASCII-armoured signature.

    RFC 4880, section 7, defines the format. No line of the signed text begins with five dashes, because such lines are
    dash-escaped.
    """
    lines = content.split(b"\n")
    markers = [(at, line.rstrip()) for at, line in enumerate(lines) if line.startswith(b"-----")]
    from_message = list(dropwhile(lambda marker: marker[1] != _BEGIN_MESSAGE, markers))[:3]
    if [marker for _, marker in from_message] != [_BEGIN_MESSAGE, _BEGIN_SIGNATURE, _END_SIGNATURE]:
        raise UntrustedSignature("not a complete clear-signed OpenPGP message")
    begin, middle, end = (at for at, _ in from_message)
    headers = takewhile(lambda line: line.strip(), lines[begin + 1 : middle])
    if not all(header.startswith(b"Hash: ") for header in headers):
        raise UntrustedSignature("clear-signed with headers that gitboot does not support")
    return b"\n".join(lines[begin:middle]) + b"\n", b"\n".join(lines[middle : end + 1]) + b"\n"


def _format_armour(packet: bytes) -> bytes:
    """Return an OpenPGP signature packet as ASCII armour with a checksum (RFC 4880, section 6)."""
    encoded = b64encode(packet)
    checksum = 0xB704CE
    for byte in packet:
        checksum ^= byte << 16
        for _ in range(8):
            checksum = (checksum << 1) ^ (0x1864CFB if checksum & 0x800000 else 0)
    lines = [encoded[at : at + 64] for at in range(0, len(encoded), 64)]
    return b"\n".join([_BEGIN_SIGNATURE, b"", *lines, b"=" + b64encode(checksum.to_bytes(3)), _END_SIGNATURE, b""])


# Signatures of images


class FileCheck(Struct, frozen=True, kw_only=True):
    """A file of an image, its verified signer, and what the image states about the origin of the file's digest."""

    at: Field  # the path of the field in the BootImage
    url: str
    sha256: Digest
    signer: ImageSigner | None  # the trusted signer; None: there is no trusted signature
    # Why gitboot does not trust the signature, as the end of a sentence that begins with "it is". None: the image names
    # no signature.
    fault: str | None
    claim: Provenance | None  # the origin of the digest according to the image

    @property
    def false_claim(self) -> str | None:
        """The reason why the image's statement about the digest is false, or None if gitboot finds no fault.

        gitboot can check only statements about signatures, because it cannot determine when a vendor published a
        digest.
        """
        if self.claim is None or self.claim.digest is not DigestOrigin.SIGNED:
            return None
        claim = f"the image claims that the key {self.claim.key} signed the file"
        if self.signer is None:
            return f"{claim}, but {f'the file is {self.fault}' if self.fault else 'the file does not have a signature'}"
        if _normalize_key(self.claim.key or "") != _normalize_key(self.signer.key):
            return f"{claim}, but {self.signer} signed the file"
        return None


def _normalize_key(key: str) -> str:
    """Return an OpenPGP fingerprint in the form that gpg prints. Return other keys unchanged."""
    digits = key.replace(" ", "").upper().removeprefix("0X")
    return digits if len(digits) in (40, 64) and not digits.strip("0123456789ABCDEF") else key


_LARGEST_SIGNATURE: Final = 1 << 20
_LARGEST_LIST: Final = 16 << 20


class SignatureCheck:
    """Checks the signatures that images refer to. gitboot downloads and checks each digest list only once.

    ``only`` contains the keys that are allowed to sign. If ``only`` is None, all keys are allowed.
    """

    def __init__(
        self, fetcher: Fetcher, keys: VendorKeys, base_url: str, *, only: Collection[str] | None = None
    ) -> None:
        self._fetcher, self._keys, self._base_url, self._only = fetcher, keys, base_url, only
        self._lists: dict[Checksums, tuple[tuple[ListedFile, ...], ImageSigner] | UntrustedSignature] = {}
        self._folder = Path(mkdtemp(prefix="files-", dir=keys.scratch))
        self._copy: _DownloadedCopy | None = None

    def files(self, image: BootImage, digests: Collection[Digest] | None = None) -> Iterator[FileCheck]:
        """Verify the files of an image, one architecture at a time, and yield the result for each file.

        ``digests`` contains the digests of the files to verify. If ``digests`` is None, verify all files.
        """
        for architecture, artifacts in sorted(image.spec.architectures.items()):
            for at, artifact in artifacts.files():
                if digests is not None and artifact.sha256 not in digests:
                    continue
                signer, fault = None, None
                try:
                    signer = self.find_signer(artifact, artifacts.checksums)
                except UntrustedSignature as error:
                    fault = str(error)
                yield FileCheck(
                    at=("spec", "architectures", str(architecture), *at),
                    url=artifact.url,
                    sha256=artifact.sha256,
                    signer=signer,
                    fault=fault,
                    claim=artifact.provenance,
                )
        self._drop_copy()

    def find_signer(self, artifact: Artifact, checksums: Checksums | None = None) -> ImageSigner | None:
        """Return the trusted signer of a file, or None if no signature covers the file.

        If the file is in an archive, the signature belongs to the archive, and the archive must contain the file with
        the expected digest. Raises `UntrustedSignature` if the verification fails. The text of this error completes a
        sentence that begins with "it is".
        """
        signer = None
        if artifact.signature is not None:
            signer = self._check_signature(artifact, artifact.signature)
        elif checksums is not None:
            signer = self._check_digest_list(artifact, checksums)
        if signer is not None and (member := split_member_url(artifact.url)) is not None:
            self._check_archive_member(artifact, *member)
        return signer

    def _check_signature(self, artifact: Artifact, signature: Signature) -> ImageSigner:
        kind, url = _find_signature(signature)
        detached = self._read_limited(url, _LARGEST_SIGNATURE)
        # a sigstore signature covers the digest, so gitboot need not download the file
        if kind is SignatureKind.SIGSTORE and split_member_url(artifact.url) is None:
            return self._keys.find_signer(kind, detached, Path(), artifact.sha256, only=self._only)
        copy = self._fetch_copy(artifact)
        return self._keys.find_signer(kind, detached, copy.path, copy.sha256, only=self._only)

    def _check_digest_list(self, artifact: Artifact, checksums: Checksums) -> ImageSigner | None:
        """Return the signer of the list that contains a file, or None if the image states that the file is unsigned."""
        listed, signer = self._read_checksums(checksums)
        digests = {(file.algorithm, file.digest) for file in listed}
        is_member = split_member_url(artifact.url) is not None
        is_listed = not is_member and ("sha256", artifact.sha256) in digests
        # the digest of the archive or a SHA-512 digest is known only after the download
        if not is_listed and (is_member or any(algorithm == "sha512" for algorithm, _ in digests)):
            copy = self._fetch_copy(artifact)
            is_listed = not digests.isdisjoint({("sha256", copy.sha256), ("sha512", copy.sha512)})
        if not is_listed:
            if artifact.provenance is not None and artifact.provenance.digest is not DigestOrigin.SIGNED:
                return None
            raise UntrustedSignature(f"not in the list at {checksums.url}, which {signer.name} signed")
        return signer

    def _check_archive_member(self, artifact: Artifact, archive: str, path: str) -> None:
        digest = sha256()
        try:
            with self._fetch_copy(artifact).path.open("rb") as file:
                for chunk in read_archive_member(iter(lambda: file.read(CHUNK), b""), archive, path):
                    digest.update(chunk)
        except (ArtifactMissing, HostUnreachable) as error:
            raise UntrustedSignature(f"not verified: {error}") from error
        if digest.hexdigest() != artifact.sha256:
            raise UntrustedSignature(
                f"different from the file {path} in {archive}, which has the SHA-256 digest {digest.hexdigest()}"
            )

    def _read_checksums(self, checksums: Checksums) -> tuple[tuple[ListedFile, ...], ImageSigner]:
        if checksums not in self._lists:
            try:
                self._lists[checksums] = self._verify_checksums(checksums)
            except UntrustedSignature as error:
                self._lists[checksums] = error
        result = self._lists[checksums]
        if isinstance(result, UntrustedSignature):
            raise result
        return result

    def _verify_checksums(self, checksums: Checksums) -> tuple[tuple[ListedFile, ...], ImageSigner]:
        if checksums.listed_in is None:
            content, signer = self._read_signed_list(checksums.url, checksums.signature)
            return read_checksum_list(content), signer
        outer_list, signer = self._read_signed_list(checksums.listed_in.url, checksums.listed_in.signature)
        content = self._read_limited(checksums.url, _LARGEST_LIST)
        digests = {("sha256", sha256(content).hexdigest()), ("sha512", sha512(content).hexdigest())}
        if not any(
            (file.algorithm, file.digest) in digests and file.size in (None, len(content))
            for file in read_checksum_list(outer_list)
        ):
            raise UntrustedSignature(
                f"not verified, because {checksums.url} is not in the list at {checksums.listed_in.url}"
            )
        return read_checksum_list(content), signer

    def _read_signed_list(self, url: str, signature: Signature | None) -> tuple[bytes, ImageSigner]:
        """Return the signed content of a digest list and the signer.

        A list without a detached signature must be clear-signed.
        """
        content = self._read_limited(url, _LARGEST_LIST)
        if signature is None:
            return self._keys.read_clear_signed(content, only=self._only)
        kind, signature_url = _find_signature(signature)
        detached = self._read_limited(signature_url, _LARGEST_SIGNATURE)
        file = self._folder / "list"
        file.write_bytes(content)
        digest = Digest(sha256(content).hexdigest())
        return content, self._keys.find_signer(kind, detached, file, digest, only=self._only)

    def _read_limited(self, url: str, max_bytes: int) -> bytes:
        content = bytearray()
        for chunk in self._read_chunks(url):
            content += chunk
            if len(content) > max_bytes:
                raise UntrustedSignature(f"not verified, because {url} is larger than {max_bytes:,} bytes")
        return bytes(content)

    def _fetch_copy(self, artifact: Artifact) -> _DownloadedCopy:
        """Download a file, or the archive that contains the file, and return the copy.

        The most recent copy is kept, so that later calls with the same URL do not download the file again.
        """
        member = split_member_url(artifact.url)
        url = member[0] if member is not None else artifact.url
        max_bytes = LARGEST_ARTIFACT if member is not None else artifact.size or LARGEST_ARTIFACT
        if self._copy is None or self._copy.url != url:
            self._drop_copy()
            path = self._folder / "file"
            digest_256, digest_512 = sha256(), sha512()
            with path.open("wb") as written:
                for chunk in self._read_chunks(url):
                    digest_256.update(chunk)
                    digest_512.update(chunk)
                    written.write(chunk)
                    if written.tell() > max_bytes:
                        raise UntrustedSignature(
                            f"not compared with {url}, because that file is larger than {max_bytes:,} bytes"
                        )
            self._copy = _DownloadedCopy(url, path, Digest(digest_256.hexdigest()), digest_512.hexdigest())
        if member is None and self._copy.sha256 != artifact.sha256:
            raise UntrustedSignature(
                f"different from the file at {url}, which has the SHA-256 digest {self._copy.sha256}"
            )
        return self._copy

    def _drop_copy(self) -> None:
        if self._copy is not None:
            with suppress(FileNotFoundError):
                self._copy.path.unlink()
            self._copy = None

    def close(self) -> None:
        """Delete the downloaded copies of files."""
        rmtree(self._folder, ignore_errors=True)

    def _read_chunks(self, url: str) -> Iterator[bytes]:
        try:
            with self._fetcher.read(choose_download_url(url, self._base_url)) as content:
                yield from content.chunks
        except (ArtifactMissing, HostUnreachable) as error:
            raise UntrustedSignature(f"not verified, because {url} is unavailable: {error}") from error


class _DownloadedCopy(NamedTuple):
    url: str
    path: Path
    sha256: Digest
    sha512: str


def _find_signature(signature: Signature) -> tuple[SignatureKind, str]:
    """Return the kind and the URL of a detached signature."""
    urls = ((kind, getattr(signature, kind)) for kind in SignatureKind)
    return next((kind, url) for kind, url in urls if url is not None)


# Boot files


class BootFileVerifier:
    """Verifies the signatures of boot files that the fleet requires to be signed. The verifier is thread-safe.

    The verifier runs gpg, loads the keys and creates a folder for copies only when an image names a signature for a
    file.
    """

    def __init__(self, image_keys: Path | None, build_fetcher: Callable[[tuple[str, ...]], Fetcher]) -> None:
        """Create a verifier. ``image_keys`` is a directory with additional keys.

        ``build_fetcher`` returns a fetcher for the given base URLs.
        """
        self._directory, self._build_fetcher = image_keys, build_fetcher
        self._keys: VendorKeys | None = None
        self._scratch: TemporaryDirectory[str] | None = None
        self._lock = Lock()

    def verify(self, file: BootFile, known: FileSigner | None, base_urls: tuple[str, ...]) -> FileSigner:
        """Return the trusted signer of a file.

        ``known`` is the signer that an earlier verification found, or None. If the key of this signer has not changed,
        gitboot does not read the file again. Raises `UnverifiedFile` if no trusted key has verified the file.
        """
        try:
            signer = self._find_signer(file, known, base_urls)
        except UntrustedSignature as error:
            raise UnverifiedFile(f"the stream requires a signature, but the file is {error}") from error
        except (GitbootError, OSError) as error:
            raise UnverifiedFile(f"the stream requires a signature, but gitboot cannot check it: {error}") from error
        if signer is None:
            raise UnverifiedFile("the stream requires a signature, but the image does not have one")
        return signer

    def _find_signer(self, file: BootFile, known: FileSigner | None, base_urls: tuple[str, ...]) -> FileSigner | None:
        """Return the trusted signer of a file, or None if the image does not have a signature for the file."""
        proof = file.proof
        if proof is None or file.sha256 is None:
            return None
        keys = self._load_keys()
        if known is not None and keys.compute_key_digest(known.key) == known.key_digest:
            return known
        # If the file is mirrored, machines download it from the mirror, so gitboot verifies the copy on the mirror.
        url = proof.url if split_member_url(proof.url) is not None else file.url
        artifact = Artifact(url=ArtifactUrl(url), sha256=file.sha256, size=file.size, signature=proof.signature)
        with closing(SignatureCheck(self._build_fetcher(base_urls), keys, base_urls[0])) as check:
            signer = check.find_signer(artifact, proof.checksums)
        key_digest = keys.compute_key_digest(signer.key) if signer is not None else None
        if signer is None or key_digest is None:
            return None
        return FileSigner(key=signer.key, name=signer.name, key_digest=key_digest)

    def _load_keys(self) -> VendorKeys:
        with self._lock:
            if self._keys is None:
                self._scratch = self._scratch or TemporaryDirectory(prefix="gitboot-")
                self._keys = VendorKeys(self._directory, Path(self._scratch.name))
            return self._keys

    def close(self) -> None:
        with self._lock:
            if self._scratch is not None:
                self._scratch.cleanup()


# Checksum lists


class ListedFile(NamedTuple):
    """A file in a checksum list."""

    algorithm: str  # sha256 or sha512
    digest: str  # lower-case hexadecimal digits
    name: str  # the name of the file in the list; "" if the list consists of one digest without a name
    size: int | None = None  # in bytes; None: the list does not state the size


_ALGORITHMS: Final = {64: "sha256", 128: "sha512"}  # the algorithm for each length of a digest
_SECTION: Final = re.compile(r"# ([A-Za-z0-9-]{1,20}) HASH")
_FIELD: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]{0,40}): ?.*")  # a field of a Debian Release file, deb822(5)
_DIGEST: Final = "[0-9A-Fa-f]{32,128}"
_TAGGED: Final = re.compile(rf"\\?SHA(?:2-)?(256|512) ?\((.+)\) ?= ({_DIGEST})")
_PLAIN: Final = re.compile(rf"\\?({_DIGEST})(?:[ \t][ *]?(.+))?\s*")
_IN_JSON: Final = re.compile(r'"(sha256|sha512)"\s{0,9}:\s{0,9}"([0-9a-f]{64,128})"')
_RELEASED: Final = re.compile(rf" ({_DIGEST}) +([0-9]{{1,18}}) (\S+)")


def read_checksum_list(content: bytes) -> tuple[ListedFile, ...]:
    """Return the files in a checksum list, in the order of the list. Lines in unknown formats are ignored.

    gitboot reads the following formats:

    - The output of sha256sum and sha512sum, with and without --tag, and of `openssl dgst`.
    - The fields SHA256 and SHA512 of a Debian Release file.
    - The values of sha256 and sha512 in JSON documents, such as those of simplestreams.
    - Flatcar's .DIGESTS files, in which a line such as ``# SHA512 HASH`` begins each section.
    """
    if content.lstrip().startswith(b"{"):
        matches = _IN_JSON.finditer(content.decode(errors="replace"))
        listed = (ListedFile(match[1], match[2], "") for match in matches)
        return tuple(file for file in listed if _ALGORITHMS.get(len(file.digest)) == file.algorithm)
    files: list[ListedFile] = []
    section = field = ""  # of the current line
    for line in content.decode(errors="replace").splitlines():
        if heading := _SECTION.fullmatch(line):
            section = heading[1].lower()
        elif heading := _FIELD.fullmatch(line):
            field = heading[1].lower()
        elif tagged := _TAGGED.fullmatch(line):
            files.append(ListedFile(f"sha{tagged[1]}", tagged[3].lower(), tagged[2]))
        elif plain := _PLAIN.fullmatch(line):
            files.append(ListedFile(section or _ALGORITHMS.get(len(plain[1]), ""), plain[1].lower(), plain[2] or ""))
        elif released := _RELEASED.fullmatch(line):
            files.append(ListedFile(field, released[1].lower(), released[3], int(released[2])))
    return tuple(file for file in files if _ALGORITHMS.get(len(file.digest)) == file.algorithm)
