"""Make an archive of what an instance of another version leaves: its fleet, STATE, OUTPUT and fetch log.

    git worktree add --detach /tmp/checkout 2fefe59
    python -m tests.upgrades.make /tmp/checkout tests/upgrades/2fefe59.tar.xz

The script runs the commands of that version in processes of their own, with the packages of the present environment.
The BMCs are the Redfish double of these tests. The archive contains three servers:

- web03 was installed, and the ledger has recorded it;
- web01 consumed its override and fetched its install boot; the instance has not read that fetch;
- web02 has an override that its BMC has not consumed.

The fleet also has an image that writes no disk, and a profile for it. No server boots them.

Wait a minute after the script has ended before you run `tests/scenarios/test_upgrade.py`. Until then web01 may fetch
its install boot again. Two archives differ in identities and times only. All files in an archive have the same owner
and time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx

from tests.helpers.endpoints import LOADER
from tests.helpers.fleets import give_credentials, mac_of, uuid_of
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.profiles import ENABLED
from tests.helpers.redfish_double.server import RedfishServer, Service
from tests.helpers.running_instance import Repository

NAMES: Final = ("web01", "web02", "web03")
HOST, PORT = "127.59.0.1", 8443  # of the BMCs: the ledger has recorded the address, so a test needs the same one
_PATIENCE_S: Final = 120
USER, PASSWORD = "root", "correct-horse-staple"
OVERRIDES: Final = {"web01": "Disabled", "web02": "Once", "web03": "Disabled"}  # that the BMCs are left with
PARTS: Final = ("fleet.git", "output", "spool", "state")

_FLEET: Final = """\
apiVersion: gitboot.dev/v1alpha1
kind: Fleet
metadata: {{name: test}}
spec: {{baseURL: "http://boot.test"{provisioning}}}
---
apiVersion: gitboot.dev/v1alpha1
kind: BootImage
metadata: {{name: flatcar-1}}
spec:
  version: "1"
  architectures:
    x86_64:
      kernel: {{url: "assets:flatcar-1/kernel", sha256: {digest}}}
      initrds: [{{url: "assets:flatcar-1/initrd", sha256: {digest}}}]
---
apiVersion: gitboot.dev/v1alpha1
kind: BootProfile
metadata: {{name: web}}
spec: {{method: Pxe, image: flatcar-1}}
---
apiVersion: gitboot.dev/v1alpha1
kind: BootImage
metadata: {{name: memtest-7}}
spec:
  version: "7"
  writesDisk: false
  architectures:
    x86_64: {{kernel: {{url: "assets:memtest-7/kernel", sha256: {digest}}}}}
---
apiVersion: gitboot.dev/v1alpha1
kind: BootProfile
metadata: {{name: repair}}
spec: {{method: Pxe, image: memtest-7}}
---
apiVersion: gitboot.dev/v1alpha1
kind: BootPolicy
metadata: {{name: web}}
spec: {{select: All, profile: web, networkBoot: Once}}
"""

_SERVER: Final = """\
apiVersion: gitboot.dev/v1alpha1
kind: Server
metadata: {{name: {name}}}
spec:
  uuid: {uuid}
  architecture: x86_64
  firmware: UEFI
  interfaces: [{{mac: "{mac}"}}]
  provision: 1
  bmc: {{address: "http://{host}:{port}", system: {system}, credentials: rack}}
"""


def machines() -> dict[str, Machine]:
    """Return the machines as they were before gitboot first read their BMCs."""
    return {name: Machine(name, uuid=uuid_of(name), system=name, post_s=1) for name in NAMES}


def bmcs(machines: dict[str, Machine]) -> RedfishServer:
    """Return one Redfish service for all machines, at the address in their documents, once that is free.

    A process that was forked while another test had its service there may still hold the address.
    """
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return RedfishServer(Service(*machines.values(), credentials={USER: PASSWORD}), host=HOST, port=PORT)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.1)


def server(name: str) -> str:
    """Return the document of a server."""
    system = machines()[name].path
    return _SERVER.format(name=name, uuid=uuid_of(name), mac=mac_of(name), host=HOST, port=PORT, system=system)


def format_script_path(name: str) -> str:
    """Return the path of a server's boot script, as a loader requests it."""
    return f"/v1/boot/{mac_of(name).replace(':', '-')}/boot.ipxe"


def installs(script: str) -> bool:
    """Return whether a boot script boots the image that writes the disk."""
    return "flatcar-1" in script


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.upgrades.make")
    parser.add_argument("checkout", type=Path, help="the version that writes")
    parser.add_argument("archive", type=Path, help="the file to write: NAME.tar.xz")
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="upgrade-") as folder, ExitStack() as stack:
        _leave(_Version(arguments.checkout.resolve(), Path(folder)), stack)
        _pack(Path(folder), arguments.archive)


class _Version:
    """The commands of a checkout, run in one folder."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.folder = folder
        cache = {name: str(folder / "user") for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")}
        self._environment = {**os.environ, **cache, "PYTHONPATH": str(checkout)}
        where = subprocess.run(
            [sys.executable, "-c", "import gitboot; print(gitboot.__file__)"],
            cwd=folder,
            env=self._environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        if not where.startswith(f"{checkout}/"):
            raise SystemExit(f"gitboot is imported from {where.strip()}, not from {checkout}")

    def run(self, *command: str, expected: tuple[int, ...] = (0,)) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "gitboot", *command],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in expected:
            raise SystemExit(f"gitboot {' '.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        return done.stdout

    def once(self) -> None:
        """Reconcile once; 8 means that a condition is not met yet."""
        places = ("--state", "state", "--out", "output", "--spool", "spool", "--credentials", "credentials")
        self.run("run", "fleet.git", *places, "--once", expected=(0, 8))

    @contextmanager
    def endpoint(self) -> Iterator[str]:
        """The URL of `gitboot serve` over the tree, with its fetch log."""
        command = ["serve", "--out", "output", "--spool", "spool", "--listen", "127.0.0.1:0"]
        process = subprocess.Popen(
            [sys.executable, "-m", "gitboot", *command],
            cwd=self.folder,
            env=self._environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        try:
            for line in process.stderr:
                event = json.loads(line)
                if event["type"] == "Listening":
                    yield event["url"]
                    return
            raise SystemExit(f"gitboot serve ended with {process.wait()}")
        finally:
            process.terminate()
            process.wait()


def _leave(version: _Version, stack: ExitStack) -> None:
    folder, rack = version.folder, machines()
    repository = Repository.create(folder)
    give_credentials(folder / "credentials", user=USER, password=PASSWORD)
    (folder / "spool").mkdir()
    stack.enter_context(bmcs(rack))
    documents = {f"{name}.yaml": server(name) for name in NAMES}
    repository.push({**documents, "fleet.yaml": _FLEET.format(digest="a" * 64, provisioning="")})
    version.once()
    version.run("records", "begin", "fresh", "--state", "state", "--yes")
    version.once()
    ledger = json.loads((folder / "output/ops/manifest.json").read_bytes())["ledger"]
    named = f", provisioning: {{ledger: {ledger}}}"
    repository.push({"fleet.yaml": _FLEET.format(digest="a" * 64, provisioning=named)})
    version.once()
    with version.endpoint() as url:
        for name in ("web03", "web01"):
            rack[name].run_through()
            assert installs(
                httpx.get(f"{url}{format_script_path(name)}", headers=LOADER, timeout=60).raise_for_status().text
            )
            if name == "web03":
                version.once()
    assert {name: each.override[ENABLED] for name, each in rack.items()} == OVERRIDES


def _pack(folder: Path, archive: Path) -> None:
    at = int(time.time())

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = at
        return entry

    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for part in PARTS:
            packed.add(folder / part, part, filter=plain)  # in the order of their names


if __name__ == "__main__":
    main()
