"""Keys of images: the keys that gitboot ships and those of the settings, and verification of single signatures."""

from __future__ import annotations

import re
import tomllib
from base64 import b64decode, b64encode
from binascii import Error as InvalidBase64
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from functools import cached_property
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import TYPE_CHECKING, Final, NamedTuple

from gitboot.errors import UsageError
from gitboot.files import convert_os_errors
from gitboot.git.signatures import Keyring, UnlistedKey, UntrustedSignature, run_isolated, split_openpgp_signatures
from gitboot.jsonio import Digest
from gitboot.text import printable

if TYPE_CHECKING:
    from sigstore.verify import Verifier
    from sigstore.verify.policy import Identity

    from gitboot.fleet.revision import Signer

SHIPPED_KEYS: Final = Path(__file__).parent / "keys"  # README.md there names the origin of each key


class SignatureKind(StrEnum):
    OPENPGP = "openpgp"
    MINISIGN = "minisign"
    SIGSTORE = "sigstore"


class ImageSigner(NamedTuple):
    """The key that signed an image."""

    key: str  # the fingerprint of the OpenPGP primary key, the public key of minisign, or the identity of sigstore
    name: str  # for people: the user ID of the key, or the name of its file

    def __str__(self) -> str:
        return f"{self.name} ({self.key})"


class VendorKeys:
    """The keys that may sign images: the keys that gitboot ships, and the keys in a directory.

    A directory has ``*.asc`` and ``*.gpg`` files with OpenPGP keys, ``*.pub`` files with minisign keys, ``*.toml``
    files with the identities that may sign with sigstore, and ``trusted_root.json``, the trusted root of sigstore. A
    fleet never adds a key. ``scratch`` is a folder for temporary files.

    Each key may sign any image. The parameter ``only`` of the methods restricts the signers to these `ImageSigner.key`
    values; an empty collection allows no key, and None allows all keys. The methods raise `UntrustedSignature` with a
    text that continues "it is", and `UsageError` if a key cannot be read.
    """

    def __init__(self, directory: Path | None, scratch: Path, *, shipped: Path | None = SHIPPED_KEYS) -> None:
        self.scratch = scratch
        self._digests: dict[str, Digest | None] = {}  # of keys
        self._openpgp = list(_list_key_files(shipped, ".asc")) if shipped is not None else []
        self._minisign: Sequence[Path] = ()
        self._identities: Sequence[Path] = ()
        self._trusted_root = Path("trusted_root.json")
        if directory is not None:
            own = _list_key_files(directory, ".asc", ".gpg")
            self._openpgp += own
            self._minisign = _list_key_files(directory, ".pub")
            self._identities = _list_key_files(directory, ".toml")
            self._trusted_root = directory / self._trusted_root
            if not (own or self._minisign or self._identities):
                raise UsageError(
                    f"{directory} does not contain image keys: expected *.asc, *.gpg, *.pub, or *.toml for sigstore"
                )
        self._keyring: Keyring | None = None
        if self._openpgp:
            self._keyring = Keyring.create(self._openpgp, Path(mkdtemp(prefix="keys-", dir=scratch), "openpgp"))

    def compute_key_digest(self, key: str) -> Digest | None:
        """Return the digest of a trusted key, or None if the key is not trusted.

        ``key`` is an `ImageSigner.key`. The digest changes if the key is revoked or extended.
        """
        if key not in self._digests:
            self._digests[key] = self._digest_key(key)
        return self._digests[key]

    def _digest_key(self, key: str) -> Digest | None:
        content: str | None = None
        if any(key == _read_minisign_key(path) for path in self._minisign):
            content = key
        elif self._identities and any(key == signer.key for signer, _ in self._sigstore[1]):
            content = "".join(path.read_text() for path in (*self._identities, self._trusted_root))
        elif self._keyring is not None and _FINGERPRINT.fullmatch(key):
            content = self._keyring.export_key(key)
        return Digest(sha256(content.encode()).hexdigest()) if content else None

    def find_signer(
        self,
        kind: SignatureKind,
        signature: bytes,
        file: Path,
        digest: Digest,
        *,
        only: Collection[str] | None = None,
    ) -> ImageSigner:
        """Return the signer of a file with this SHA-256, from a detached signature.

        If the file has several OpenPGP signatures, one signature by an allowed key is enough. The others do not matter.
        """
        match kind:
            case SignatureKind.OPENPGP:
                return self._find_openpgp_signer(signature, only, lambda keys, packet: keys.find_signer(packet, file))
            case SignatureKind.MINISIGN:
                return self._find_minisign_signer(signature, file, only)
            case SignatureKind.SIGSTORE:
                return self._find_sigstore_signer(signature, digest, only)

    def read_clear_signed(self, content: bytes, *, only: Collection[str] | None = None) -> tuple[bytes, ImageSigner]:
        """Return the signed text of a clear-signed OpenPGP message, and its signer. Text outside of it is ignored."""
        framed, signatures = _split_clear_signed(content)
        texts: list[bytes] = []

        def verify(keys: Keyring, packet: bytes) -> Signer:
            text, signer = keys.read_clear_text(framed + _armour(packet))
            texts.append(text)
            return signer

        signer = self._find_openpgp_signer(signatures, only, verify)
        return texts[-1], signer

    def _find_openpgp_signer(
        self, signatures: bytes, only: Collection[str] | None, verify: Callable[[Keyring, bytes], Signer]
    ) -> ImageSigner:
        if self._keyring is None:
            raise UnlistedKey("signed by an OpenPGP key, but no OpenPGP keys are listed")
        packets = split_openpgp_signatures(signatures)
        if len(packets) > _MOST_SIGNATURES:
            raise UntrustedSignature(f"not verified: it has more than {_MOST_SIGNATURES} OpenPGP signatures")
        faults: list[UntrustedSignature] = []
        for packet in packets:
            try:
                found = verify(self._keyring, packet)
            except UntrustedSignature as error:
                faults.append(error)
            else:
                if only is None or found.key in only:
                    return ImageSigner(found.key, printable(found.person))
                faults.append(UnlistedKey(f"signed by the key {found.key}, which is not allowed to sign it"))
        faults = faults or [UntrustedSignature("not signed: the OpenPGP signature is empty")]
        raise next((each for each in faults if not isinstance(each, UnlistedKey)), faults[0])

    def _find_minisign_signer(self, signature: bytes, file: Path, only: Collection[str] | None) -> ImageSigner:
        with TemporaryDirectory(dir=self.scratch) as folder:
            detached = Path(folder, "minisig")
            detached.write_bytes(signature)
            for path in self._minisign:
                key = _read_minisign_key(path)
                if only is not None and key not in only:
                    continue
                command = ["minisign", "-V", "-q", "-P", key, "-x", str(detached), "-m", str(file.absolute())]
                done = run_isolated(command, b"", self.scratch)
                if done.status == 0:
                    return ImageSigner(key, f"minisign key {path.stem}")
                if "the key id in the public key is" not in f"{done.output}{done.errors}":
                    raise UntrustedSignature(
                        "not the file for which its minisign signature was made, or the signature is malformed"
                    )
        raise UnlistedKey("signed by a minisign key that is not listed")

    def _find_sigstore_signer(self, bundle: bytes, digest: Digest, only: Collection[str] | None) -> ImageSigner:
        if not self._identities:
            raise UnlistedKey("signed with sigstore, but no sigstore identities are listed")
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
                reason = printable(str(error))[:_LONGEST_REASON]
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


_LONGEST_REASON: Final = 200
_FINGERPRINT: Final = re.compile("[0-9A-F]{40}|[0-9A-F]{64}")
_MOST_SIGNATURES: Final = 8  # Debian signs with three keys


def _list_key_files(directory: Path, *suffixes: str) -> Sequence[Path]:
    with convert_os_errors(directory, "read"):
        found = sorted(each for each in directory.iterdir() if each.suffix in suffixes and each.is_file())
    return [each for each in found if not each.name.startswith(".")]


_MINISIGN_KEY_BYTES: Final = 42  # minisign(1), "PUBLIC KEY FORMAT": algorithm, key id and key
_MINISIGN_ALGORITHM: Final = b"Ed"


def _read_minisign_key(file: Path) -> str:
    """Return the public key of minisign in a file, as base64."""
    try:
        *_, key = file.read_text().split("\n", 1)[-1].split() or [""]
        decoded = b64decode(key, validate=True)
    except (OSError, UnicodeDecodeError, InvalidBase64):
        decoded = b""
    if len(decoded) != _MINISIGN_KEY_BYTES or not decoded.startswith(_MINISIGN_ALGORITHM):
        raise UsageError(f"{file} is not a minisign public key")
    return key


def _read_identity(file: Path) -> tuple[ImageSigner, Identity]:
    """Read ``identity`` and ``issuer``, as they are in the signing certificate."""
    from sigstore.verify.policy import Identity

    try:
        given = tomllib.loads(file.read_text())
        identity, issuer = given.pop("identity"), given.pop("issuer")
        if given or not isinstance(identity, str) or not isinstance(issuer, str):
            raise KeyError
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError):
        raise UsageError(f'{file}: expected identity = "…" and issuer = "…", and nothing else') from None
    return ImageSigner(identity, f"sigstore identity {file.stem}"), Identity(identity=identity, issuer=issuer)


_BEGIN_MESSAGE: Final = b"-----BEGIN PGP SIGNED MESSAGE-----"
_BEGIN_SIGNATURE: Final = b"-----BEGIN PGP SIGNATURE-----"
_END_SIGNATURE: Final = b"-----END PGP SIGNATURE-----"


def _split_clear_signed(content: bytes) -> tuple[bytes, bytes]:
    """Return the frame of the first clear-signed message up to its signature, and the armoured signature.

    RFC 4880, 7. A line of the signed text never begins with five dashes, because such a line is dash-escaped.
    """
    lines = content.split(b"\n")
    marked = [at for at, line in enumerate(lines) if line.startswith(b"-----")]
    starts = (number for number, at in enumerate(marked) if lines[at].rstrip() == _BEGIN_MESSAGE)
    frame = marked[(first := next(starts, len(marked))) : first + 3]
    if [lines[at].rstrip() for at in frame] != [_BEGIN_MESSAGE, _BEGIN_SIGNATURE, _END_SIGNATURE]:
        raise UntrustedSignature("not a complete clear-signed OpenPGP message")
    begin, middle, end = frame
    headers = takewhile(lambda line: line.strip(), lines[begin + 1 : middle])
    if not all(line.startswith(b"Hash: ") for line in headers):
        raise UntrustedSignature("clear-signed with headers that gitboot does not support")
    return b"\n".join(lines[begin:middle]) + b"\n", b"\n".join(lines[middle : end + 1]) + b"\n"


def _armour(packet: bytes) -> bytes:
    """Return a signature packet with ASCII armour and its checksum (RFC 4880, 6)."""
    encoded, checksum = b64encode(packet), 0xB704CE
    for byte in packet:
        checksum ^= byte << 16
        for _ in range(8):
            checksum = (checksum << 1) ^ (0x1864CFB if checksum & 0x800000 else 0)
    lines = [encoded[at : at + 64] for at in range(0, len(encoded), 64)]
    ending = [b"=" + b64encode(checksum.to_bytes(3)), _END_SIGNATURE, b""]
    return b"\n".join([_BEGIN_SIGNATURE, b"", *lines, *ending])
