"""Vendors' web sites on this machine: the documents of built-in sources, with local URLs and keys of the test."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from gitboot.artifacts.signatures import VendorKeys
from gitboot.fleet.yaml import parse
from gitboot.image_sources.find_releases import read_vendor_document
from gitboot.model.fields import read
from gitboot.model.image_source import ImageSource
from tests.helpers.artifact_servers import ArtifactServer
from tests.helpers.git_repositories import Person, sign_with_gpg

_KEY = re.compile(r"^    - [0-9A-F]{40}.*$", re.MULTILINE)


class VendorSite:
    """A local copy of the servers that a built-in source names: https://HOST/PATH is at /HOST/PATH."""

    def __init__(self, server: ArtifactServer, folder: Path, vendor: Person) -> None:
        self.server, self._folder, self.vendor, self.fingerprint = server, folder, vendor, read_fingerprint(vendor)
        keys, scratch = folder / "keys", folder / "scratch"
        for each in (keys, scratch):
            each.mkdir()
        (keys / "vendor.asc").write_bytes(vendor.public.read_bytes())
        self.trust = VendorKeys(keys, scratch, shipped=None)

    def localise(self, text: str) -> str:
        """Return a text in which the URLs of vendors lead to this site."""
        return text.replace("https://", f"{self.server.url}/")

    def source(self, name: str) -> ImageSource:
        """Return a built-in source that reads from this site, and trusts the test's key instead of the vendor's."""
        text = self.localise(read_vendor_document(name).decode())
        return read_source(_KEY.sub(f"    - {self.fingerprint}", text, count=1))

    def put(self, url: str, content: str | bytes) -> bytes:
        """Serve the content of a vendor's URL. URLs in a text lead to this site."""
        data = self.localise(content).encode() if isinstance(content, str) else content
        self.server.put(self.localise(url).removeprefix(self.server.url), data)
        return data

    def put_signed(self, url: str, content: str | bytes, by: Person | None = None) -> None:
        """Serve a clear-signed text."""
        self.put(url, self._sign(self.put(url, content), by, "--clearsign"))

    def put_detached(self, url: str, content: str | bytes, suffix: str, by: Person | None = None) -> None:
        """Serve a file and its detached signature at the URL with this suffix."""
        self.put(f"{url}{suffix}", self._sign(self.put(url, content), by, "--detach-sign"))

    def _sign(self, content: bytes, by: Person | None, how: str) -> bytes:
        file = self._folder / "content"
        file.write_bytes(content)
        return sign_with_gpg(by or self.vendor, file, how)


def read_fingerprint(person: Person) -> str:
    """Return the fingerprint of a person's OpenPGP key."""
    command = ["gpg", "--homedir", str(person.public.parent), "--batch", "--with-colons", "--show-keys"]
    listed = subprocess.run([*command, str(person.public)], check=True, capture_output=True, text=True).stdout
    return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))


def read_source(text: str) -> ImageSource:
    """Return the ImageSource in a document."""
    (document,) = parse(text.encode(), "source.yaml").documents
    return read(ImageSource, document.value)
