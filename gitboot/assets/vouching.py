"""Whether the files of images are signed by keys that the settings name: each signature is fetched and checked."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gitboot.artifacts.availability import LARGEST_ARTIFACT, Fetcher
from gitboot.artifacts.signatures import ImageKeys, SignatureKind
from gitboot.errors import ArtifactMissing, HostUnreachable
from gitboot.jsonio import Digest
from gitboot.model.boot_image import Artifact, Artifacts, BootImage, Checksums, Signature
from gitboot.model.scalar_from_document import Path as Field
from gitboot.openpgp import Distrusted
from gitboot.resolve.bootfiles import fetched_from


@dataclass(frozen=True, kw_only=True, slots=True)
class VouchedFile:
    """One file of an image, and who vouches for it."""

    at: Field  # in the BootImage's document
    sha256: Digest
    by: str | None  # whose key; None: nobody's that counts
    fault: str | None  # why not, as it follows "it is"; None: no signature is named


class SignatureCheck:
    """Checks what images name as signatures; a list of digests is fetched and checked once."""

    def __init__(self, fetcher: Fetcher, keys: ImageKeys, base_url: str) -> None:
        self._fetcher, self._keys, self._base_url = fetcher, keys, base_url
        self._lists: dict[Checksums, tuple[frozenset[str], str] | Distrusted] = {}

    def files(self, image: BootImage, only: Collection[Digest] | None = None) -> Iterator[VouchedFile]:
        """Each file of an image, by architecture; ``only`` those with these digests, where that is given."""
        for architecture, artifacts in sorted(image.spec.architectures.items()):
            for at, artifact in _each(artifacts):
                if only is not None and artifact.sha256 not in only:
                    continue
                by, fault = None, None
                try:
                    by = self._signer(artifact, artifacts.checksums)
                except Distrusted as error:
                    fault = str(error)
                where = ("spec", "architectures", str(architecture), *at)
                yield VouchedFile(at=where, sha256=artifact.sha256, by=by, fault=fault)

    def _signer(self, artifact: Artifact, checksums: Checksums | None) -> str | None:
        if artifact.signature is not None:
            return self._signer_of(artifact, artifact.signature)
        if checksums is None:
            return None
        digests, by = self._listed(checksums)
        if artifact.sha256 not in digests:
            raise Distrusted(f"not in the list at {checksums.url}, which is signed by {by}")
        return by

    def _signer_of(self, artifact: Artifact, signature: Signature) -> str:
        kind, url = _where(signature)
        detached = self._small(url, _LARGEST_SIGNATURE)
        with TemporaryDirectory(prefix="gitboot-") as folder:
            file = Path(folder, "file")
            if kind is not SignatureKind.SIGSTORE:  # whose signature is of the digest
                self._fetch(artifact, file)
            return self._keys.signer(kind, detached, file, artifact.sha256)

    def _listed(self, checksums: Checksums) -> tuple[frozenset[str], str]:
        """The digests in a signed list, and who has signed it; raises `Distrusted`."""
        if checksums not in self._lists:
            try:
                self._lists[checksums] = self._list(checksums)
            except Distrusted as error:
                self._lists[checksums] = error
        found = self._lists[checksums]
        if isinstance(found, Distrusted):
            raise found
        return found

    def _list(self, checksums: Checksums) -> tuple[frozenset[str], str]:
        kind, url = _where(checksums.signature)
        content, detached = self._small(checksums.url, _LARGEST_LIST), self._small(url, _LARGEST_SIGNATURE)
        with TemporaryDirectory(prefix="gitboot-") as folder:
            file = Path(folder, "list")
            file.write_bytes(content)
            by = self._keys.signer(kind, detached, file, Digest(sha256(content).hexdigest()))
        return frozenset(match[1] or match[2] for match in _LINE.finditer(content.decode(errors="replace"))), by

    def _small(self, url: str, most_bytes: int) -> bytes:
        content = bytearray()
        for chunk in self._chunks(url):
            content += chunk
            if len(content) > most_bytes:
                raise Distrusted(f"not known to be signed: {url} has more than {most_bytes:,} bytes")
        return bytes(content)

    def _fetch(self, artifact: Artifact, file: Path) -> None:
        """Write an artifact to a file. Raises `Distrusted` if its content is not what the image says, or has no end."""
        digest, most_bytes = sha256(), artifact.size or LARGEST_ARTIFACT
        with file.open("wb") as written:
            for chunk in self._chunks(artifact.url):
                digest.update(chunk)
                written.write(chunk)
                if written.tell() > most_bytes:
                    raise Distrusted(f"not what lies at {artifact.url}: that has more than {most_bytes:,} bytes")
        if digest.hexdigest() != artifact.sha256:
            raise Distrusted(f"not what lies at {artifact.url}: that has the sha256 {digest.hexdigest()}")

    def _chunks(self, url: str) -> Iterator[bytes]:
        try:
            with self._fetcher.read(fetched_from(url, self._base_url)) as content:
                yield from content.chunks
        except (ArtifactMissing, HostUnreachable) as error:
            raise Distrusted(f"not known to be signed, for {url} is unavailable: {error}") from error


_LARGEST_SIGNATURE: Final = 1 << 20
_LARGEST_LIST: Final = 16 << 20

# As sha256sum prints it, and as it does with --tag, which is how BSD's sha256 does.
_LINE: Final = re.compile(r"^\\?(?:([0-9a-f]{64}) [ *].+|SHA256 \(.+\) = ([0-9a-f]{64}))$", re.MULTILINE)


def _where(signature: Signature) -> tuple[SignatureKind, str]:
    found = ((kind, getattr(signature, kind)) for kind in SignatureKind)
    return next((kind, url) for kind, url in found if url is not None)


def _each(artifacts: Artifacts) -> Iterator[tuple[Field, Artifact]]:
    for name in ("kernel", "rootfs", "uki", "iso", "loader"):
        if (artifact := getattr(artifacts, name)) is not None:
            yield (name,), artifact
    for number, initrd in enumerate(artifacts.initrds):
        yield ("initrds", number), initrd
