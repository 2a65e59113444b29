"""Required signatures: verify the files that a stream requires to be signed, for an instance."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Final

from gitboot.artifacts.availability import Fetcher, FileSigner
from gitboot.artifacts.image_keys import VendorKeys
from gitboot.artifacts.signatures import SignatureCheck
from gitboot.errors import GitbootError
from gitboot.git.signatures import UntrustedSignature
from gitboot.model.boot_image import Artifact
from gitboot.model.scalars import ArtifactUrl, split_member_url
from gitboot.resolve.server_decision import BootFile

_NO_SIGNATURE: Final = "the stream requires a signature, and the image names no signature"


class BootFileVerifier:
    """Verifies the files that a fleet requires to be signed, for an instance. Several threads may use it.

    gpg, the keys and the folder for copies are used only when a file has a proof.
    """

    def __init__(self, image_keys: Path | None, build_fetcher: Callable[[tuple[str, ...]], Fetcher]) -> None:
        """``image_keys`` is a directory with keys beside those that gitboot ships. ``build_fetcher`` maps base URLs."""
        self._directory, self._build_fetcher = image_keys, build_fetcher
        self._keys: VendorKeys | None = None
        self._scratch: TemporaryDirectory[str] | None = None
        self._lock = Lock()

    def verify(self, file: BootFile, known: FileSigner | None, bases: tuple[str, ...]) -> FileSigner | str:
        """Return the trusted signer of a file, or a sentence that states why no trusted key has verified the file.

        A ``known`` signer stays valid until its key is removed or changes, so the file is read only once.
        """
        if (proof := file.proof) is None:
            return _NO_SIGNATURE
        try:
            keys = self._load_keys()
            if known is not None and keys.compute_key_digest(known.key) == known.key_digest:
                return known
            # Machines fetch the file at another URL than the vendor's if it is mirrored. gitboot reads that copy.
            url = proof.url if split_member_url(proof.url) is not None else file.url
            artifact = Artifact(url=ArtifactUrl(url), sha256=file.sha256, size=file.size, signature=proof.signature)
            check = SignatureCheck(self._build_fetcher(bases), keys, bases[0])
            try:
                by = check.find_signer(artifact, proof.checksums)
            finally:
                check.close()
            if by is None or (digest := keys.compute_key_digest(by.key)) is None:
                return _NO_SIGNATURE
            return FileSigner(key=by.key, name=by.name, key_digest=digest)
        except UntrustedSignature as error:
            return f"the stream requires a signature, and the file is {error}"
        except (GitbootError, OSError) as error:
            return f"the stream requires a signature, and gitboot cannot check it: {error}"

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
