"""Image signatures: verify the files of images with the signatures that the images name."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from gitboot.artifacts.availability import LARGEST_ARTIFACT, Fetcher
from gitboot.artifacts.image_keys import ImageSigner, SignatureKind, VendorKeys
from gitboot.errors import ArtifactMissing, HostUnreachable
from gitboot.git.signatures import UntrustedSignature
from gitboot.jsonio import Digest
from gitboot.model.boot_image import Artifact, BootImage, Checksums, Signature
from gitboot.model.scalars import Path as Field
from gitboot.resolve.boot_composition import choose_download_url

if TYPE_CHECKING:
    pass


class VouchedFile(Struct, frozen=True, kw_only=True):
    """A file of an image, and its signer."""

    at: Field  # the path of the field in the BootImage
    sha256: Digest
    by: ImageSigner | None  # the trusted signer; None: there is no trusted signature
    # Why the signature is not trusted, as a text that continues "it is". None: the image names no signature.
    fault: str | None


class SignatureCheck:
    """Checks the signatures that images name. A list of digests is fetched and checked once."""

    def __init__(self, fetcher: Fetcher, keys: VendorKeys, base_url: str) -> None:
        self._fetcher, self._keys, self._base_url = fetcher, keys, base_url
        self._lists: dict[Checksums, tuple[frozenset[str], ImageSigner] | UntrustedSignature] = {}

    def files(self, image: BootImage, only: Collection[Digest] | None = None) -> Iterator[VouchedFile]:
        """Check each file of an image, by architecture. With ``only``, check only files with these digests."""
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

    def _signer(self, artifact: Artifact, checksums: Checksums | None) -> ImageSigner | None:
        if artifact.signature is not None:
            kind, url = _find_signature(artifact.signature)
            detached = self._read_small(url, _LARGEST_SIGNATURE)
            with TemporaryDirectory(prefix="gitboot-") as folder:
                file = Path(folder, "file")
                if kind is not SignatureKind.SIGSTORE:  # sigstore signs the digest, not the file
                    self._fetch(artifact, file)
                return self._keys.find_signer(kind, detached, file, artifact.sha256)
        if checksums is None:
            return None
        digests, by = self._read_checksums(checksums)
        if artifact.sha256 not in digests:
            raise UntrustedSignature(f"not in the list at {checksums.url}, which {by} signed")
        return by

    def _read_checksums(self, checksums: Checksums) -> tuple[frozenset[str], ImageSigner]:
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
                    by = self._keys.find_signer(kind, detached, file, Digest(sha256(content).hexdigest()))
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
# A line of sha256sum, or of sha256sum --tag, which is also the format of BSD's sha256.
_LINE: Final = re.compile(r"^\\?(?:([0-9a-f]{64}) [ *].+|SHA256 \(.+\) = ([0-9a-f]{64}))$", re.MULTILINE)


def _find_signature(signature: Signature) -> tuple[SignatureKind, str]:
    found = ((kind, getattr(signature, kind)) for kind in SignatureKind)
    return next((kind, url) for kind, url in found if url is not None)
