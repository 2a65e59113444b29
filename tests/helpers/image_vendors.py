"""A vendor of images: releases with signed files on a local web server, an index, and its ImageSource document."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.helpers.artifact_servers import ArtifactServer, artifact_server
from tests.helpers.git_repositories import Person, sign_with_gpg

_DOCUMENT = """\
apiVersion: gitboot.dev/v1alpha1
kind: ImageSource
metadata: {{name: someos}}
spec:
  description: An operating system of the tests
  channels: [stable, beta]
  architectures: {{x86_64: amd64, aarch64: arm64}}
  releases: {{format: JSONList, url: '{url}/{{channel}}.json'}}
  files:
    kernel: {{url: '{url}/{{version}}/{{arch}}/vmlinuz'{signature}}}
    initrds: [{{url: '{url}/{{version}}/{{arch}}/initrd'{signature}}}]
  keys: [{keys}]
  image:
    userData: Ignition/3.4
    kernelArguments: [someos.first_boot=1, 'someos.release={{version}}']
"""
_SIGNATURE = ", signature: {openpgp: '{url}.sig'}"


@dataclass
class ImageVendor:
    """A vendor that signs its files with one OpenPGP key, but not its index."""

    web: ArtifactServer
    folder: Path
    person: Person
    index: dict[str, list[dict[str, str]]] = field(default_factory=lambda: {"stable": [], "beta": []})

    @property
    def url(self) -> str:
        return self.web.url

    @property
    def keys(self) -> Path:
        """A directory with the vendor's key, for --image-keys."""
        folder = self.folder / "image-keys"
        folder.mkdir(exist_ok=True)
        (folder / "vendor.asc").write_bytes(self.person.public.read_bytes())
        return folder

    @property
    def fingerprint(self) -> str:
        command = ["gpg", "--homedir", str(self.folder), "--with-colons", "--show-keys", str(self.person.public)]
        listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))

    def document(self, *, signs: bool = True) -> str:
        keys = self.fingerprint if signs else ""
        return _DOCUMENT.format(url=self.url, keys=keys, signature=_SIGNATURE if signs else "")

    def publish(self, version: str, date: str | None = None, *, channel: str = "stable") -> None:
        """Publish a release, and list it in the index with its date, if any."""
        for architecture in ("amd64", "arm64"):
            for name in ("vmlinuz", "initrd"):
                self.put(f"/{version}/{architecture}/{name}", f"{name} {version} {architecture}\n".encode() * 1000)
        self.index[channel].append({"version": version} | ({"date": date} if date is not None else {}))
        self.write_index(channel)

    def put(self, path: str, content: bytes) -> None:
        """Serve a file with its signature."""
        file = self.folder / "signed"
        file.write_bytes(content)
        self.web.put(path, content)
        self.web.put(f"{path}.sig", sign_with_gpg(self.person, file))

    def write_index(self, channel: str = "stable") -> None:
        self.web.put(f"/{channel}.json", json.dumps(self.index[channel]).encode())


@contextmanager
def image_vendor(folder: Path, person: Person) -> Iterator[ImageVendor]:
    folder.mkdir(parents=True, exist_ok=True)
    with artifact_server() as web:
        yield ImageVendor(web, folder, person)
