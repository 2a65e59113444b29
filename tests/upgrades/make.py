"""Make an archive of what an instance of another version leaves: its fleet, STATE, OUTPUT and fetch log.

    git worktree add --detach /tmp/checkout 2fefe59
    python -m tests.upgrades.make /tmp/checkout bmcs tests/upgrades/2fefe59.tar.xz
    python -m tests.upgrades.make /tmp/checkout reports tests/upgrades/2fefe59-reports.tar.xz

0.1.0 is commit dec10da. Its archives are `0.1.0-bmcs.tar.xz`, `0.1.0-reports.tar.xz` and `0.1.0-installing.tar.xz`.

The script runs the commands of that version in processes of their own, with the packages of the present environment.
The BMCs are the Redfish double of these tests. An archive of `bmcs` contains three servers:

- web03 was installed, and the ledger has recorded it;
- web01 consumed its override and fetched its install boot; the instance has not read that fetch;
- web02 has an override that its BMC has not consumed.

The fleet also has an image that writes no disk, and a profile for it. No server boots them.

An archive of `reports` contains servers without BMCs, whose installers report:

- new01 has fetched nothing;
- boot01 fetched its install boot;
- start01 fetched its install boot, and its installer fetched the user data;
- done01 fetched both, and its installer reported its completion;
- fail01 fetched both, and its installer reported a failure (0.1.0 has no such report);
- once01 fetched the one-time boot of a maintenance;
- old01 was installed, and the ledger has recorded it.

The instance has not read the last fetch or report of each server, except for old01. The instance has not read the two
newest commits either. Both install old01 again, and their messages have the acknowledgement that this version computes:
`main`, and the branch `void`, whose digest the present version computes in another way.

An archive of `installing` contains servers with BMCs, whose installers report:

- done01 was installed, and the ledger has recorded it;
- start01 consumed its override, fetched its install boot, and its installer fetched the user data;
- kept01's BMC has not consumed the override, although a client fetched its install boot;
- set01 has an override that its BMC has not consumed, and it has fetched nothing.

The instance has not read the fetches of start01 and kept01.

Two archives differ in identities and times only. All files in an archive have the same owner and time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import httpx

from tests.helpers.endpoints import LOADER
from tests.helpers.fleets import make_mac, make_uuid, store_credentials
from tests.helpers.redfish_double.machine import Machine
from tests.helpers.redfish_double.profiles import ENABLED
from tests.helpers.redfish_double.server import RedfishServer, Service
from tests.helpers.running_instance import Repository, git

NAMES: Final = ("web01", "web02", "web03")
HOST, PORT = "127.59.0.1", 8443  # of the BMCs: the ledger has recorded the address, so a test needs the same one
_PATIENCE_S: Final = 120
USER, PASSWORD = "root", "correct-horse-staple"
OVERRIDES: Final = {"web01": "Disabled", "web02": "Once", "web03": "Disabled"}  # that the BMCs are left with
INSTALLING: Final = {"done01": "Disabled", "kept01": "Once", "set01": "Once", "start01": "Disabled"}  # with overrides
REPORTING: Final = ("boot01", "done01", "fail01", "new01", "old01", "once01", "start01")
PARTS: Final = ("fleet.git", "output", "spool", "state")

_FLEET: Final = """\
apiVersion: gitboot.dev/v1alpha1
kind: Fleet
metadata: {{name: test}}
spec: {{baseURL: "http://boot.test"{more}}}
---
apiVersion: gitboot.dev/v1alpha1
kind: BootImage
metadata: {{name: flatcar-1}}
spec:
  version: "1"{image}
  architectures:
    x86_64:
      kernel: {{url: "assets:flatcar-1/kernel", sha256: {digest}}}
      initrds: [{{url: "assets:flatcar-1/initrd", sha256: {digest}}}]
---
apiVersion: gitboot.dev/v1alpha1
kind: BootProfile
metadata: {{name: web}}
spec: {{method: Pxe, image: flatcar-1{profile}}}
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

_MAINTENANCE: Final = """\
apiVersion: gitboot.dev/v1alpha1
kind: Maintenance
metadata: {name: memory}
spec:
  select: {servers: [once01]}
  profile: repair
  priority: 5
  networkBoot: Once
  run: 1
  window: {start: "2026-01-01T00:00:00Z", end: "2100-01-01T00:00:00Z"}
"""

_USER_DATA_URL: Final = r"http://boot\.test(/\S+\.ign)"
_USER_DATA: Final = """\
{"ignition": {"version": "3.4.0"}, "report": "{{ urls.provisioned }}"}
"""

_REPORTING_SERVER: Final = """\
apiVersion: gitboot.dev/v1alpha1
kind: Server
metadata: {{name: {name}}}
spec:
  uuid: {uuid}
  architecture: x86_64
  firmware: UEFI
  interfaces: [{{mac: "{mac}"}}]
  provision: {provision}
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


def machines(names: Iterable[str] = NAMES) -> dict[str, Machine]:
    """Return the machines as they were before gitboot first read their BMCs."""
    return {name: Machine(name, uuid=make_uuid(name), system=name, post_s=1) for name in names}


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
    system = machines([name])[name].path
    return _SERVER.format(name=name, uuid=make_uuid(name), mac=make_mac(name), host=HOST, port=PORT, system=system)


def _fleet(*, more: str = "", image: str = "", profile: str = "") -> str:
    return _FLEET.format(digest="a" * 64, more=more, image=image, profile=profile)


def _reporting_fleet(more: str = "") -> str:
    return _fleet(
        more=f", provisioning: {{evidence: Reported{more}}}",
        image="\n  userData: Ignition/3.4",
        profile=", userData: {format: Ignition/3.4, template: web.ign.j2}",
    )


def _reporting_server(name: str, provision: int) -> str:
    return _REPORTING_SERVER.format(name=name, uuid=make_uuid(name), mac=make_mac(name), provision=provision)


def format_script_path(name: str) -> str:
    """Return the path of a server's boot script, as a loader requests it."""
    return f"/v1/boot/{make_mac(name).replace(':', '-')}/boot.ipxe"


def installs(script: str) -> bool:
    """Return whether a boot script boots the image that writes the disk."""
    return "flatcar-1" in script


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.upgrades.make")
    parser.add_argument("checkout", type=Path, help="the version that writes")
    parser.add_argument("scene", choices=("bmcs", "reports", "installing"))
    parser.add_argument("archive", type=Path, help="the file to write: NAME.tar.xz")
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="upgrade-") as folder, ExitStack() as stack:
        scenes: dict[str, Callable[[_Version, ExitStack], None]] = {
            "bmcs": _leave_bmcs,
            "reports": _leave_reports,
            "installing": _leave_installing,
        }
        leave = scenes[arguments.scene]
        leave(_Version(arguments.checkout.resolve(), Path(folder)), stack)
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
        self.is_first = "--reference" in self.run("run", "--help")  # 0.1.0
        self._output = "--output" if self.is_first else "--out"

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
        places = ("--state", "state", self._output, "output", "--spool", "spool", "--credentials", "credentials")
        fresh = ("--records", "fresh") if self.is_first else ()
        self.run("run", "fleet.git", *places, *fresh, "--once", expected=(0, 8))

    def begin(self) -> None:
        """Reconcile the first commit. No server is installed yet."""
        self.once()
        if not self.is_first:
            self.run("records", "begin", "fresh", "--state", "state", "--yes")
            self.once()

    def acknowledgement(self, old: str, new: str) -> str:
        """The line that lets a reinstallation through."""
        found = json.loads(self.run("diff", f"{old}..{new}", "fleet.git", "-o", "json", expected=(4,)))
        return f"Gitboot-Ack: {found['digest']} maxReinstalls"

    @contextmanager
    def endpoint(self) -> Iterator[str]:
        """The URL of `gitboot serve` over the tree, with its fetch log."""
        command = ["serve", self._output, "output", "--spool", "spool", "--listen", "127.0.0.1:0"]
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


def _leave_bmcs(version: _Version, stack: ExitStack) -> None:
    folder, rack = version.folder, machines()
    repository = Repository.create(folder)
    store_credentials(folder / "credentials", user=USER, password=PASSWORD)
    (folder / "spool").mkdir()
    stack.enter_context(bmcs(rack))
    documents = {f"{name}.yaml": server(name) for name in NAMES}
    repository.push({**documents, "fleet.yaml": _fleet()})
    version.begin()
    repository.push({"fleet.yaml": _fleet(more=f", provisioning: {{ledger: {_ledger(folder)}}}")})
    version.once()
    with version.endpoint() as url:
        for name in ("web03", "web01"):
            rack[name].run_through()
            assert installs(_fetch(url, format_script_path(name)))
            if name == "web03":
                version.once()
    assert {name: each.override[ENABLED] for name, each in rack.items()} == OVERRIDES


def _leave_installing(version: _Version, stack: ExitStack) -> None:
    folder, rack = version.folder, machines(INSTALLING)
    repository = Repository.create(folder)
    store_credentials(folder / "credentials", user=USER, password=PASSWORD)
    (folder / "spool").mkdir()
    stack.enter_context(bmcs(rack))
    documents = {f"{name}.yaml": server(name) for name in INSTALLING}
    repository.push({**documents, "fleet.yaml": _reporting_fleet(), "web.ign.j2": _USER_DATA})
    version.begin()
    repository.push({"fleet.yaml": _reporting_fleet(f", ledger: {_ledger(folder)}")})
    version.once()
    with version.endpoint() as url:
        for name in ("done01", "start01", "kept01"):
            if INSTALLING[name] == "Disabled":
                rack[name].run_through()
            script = _fetch(url, format_script_path(name))
            assert installs(script)
            if name != "kept01":
                (data,) = re.findall(_USER_DATA_URL, script)
                report = _report(_fetch(url, data))
            if name == "done01":
                _fetch(url, report)
                version.once()
    assert {name: each.override[ENABLED] for name, each in rack.items()} == INSTALLING


def _ledger(folder: Path) -> str:
    return str(json.loads((folder / "output/ops/manifest.json").read_bytes())["ledger"])


def _fetch(url: str, path: str) -> str:
    return httpx.get(f"{url}{path}", headers=LOADER, timeout=60).raise_for_status().text


def _leave_reports(version: _Version, stack: ExitStack) -> None:
    folder = version.folder
    repository = Repository.create(folder)
    store_credentials(folder / "credentials", user=USER, password=PASSWORD)
    (folder / "spool").mkdir()
    documents = {f"{name}.yaml": _reporting_server(name, int(name != "once01")) for name in REPORTING}
    more = {"fleet.yaml": _reporting_fleet(), "memory.yaml": _MAINTENANCE, "web.ign.j2": _USER_DATA}
    base = repository.push({**documents, **more})
    version.begin()
    reports = {}
    with version.endpoint() as url:
        for name in ("done01", "fail01", "old01", "start01"):
            script = _fetch(url, format_script_path(name))
            assert installs(script)
            (data,) = re.findall(_USER_DATA_URL, script)
            if name != "start01":
                reports[name] = _report(_fetch(url, data))
        _fetch(url, reports["old01"])
    version.once()
    with version.endpoint() as url:
        assert installs(_fetch(url, format_script_path("boot01")))
        _fetch(url, data)  # of start01
        _fetch(url, reports["done01"])
        assert "memtest-7" in _fetch(url, format_script_path("once01"))
        if not version.is_first:
            failed = reports["fail01"].replace("/provisioned/", "/failed/")
            httpx.post(f"{url}{failed}", content=b"no disk\n", timeout=60).raise_for_status()
    again = {"old01.yaml": _reporting_server("old01", 2)}
    monitors = {"fleet.yaml": _reporting_fleet(", monitors: [192.0.2.0/24]")}
    for branch, changes in (("void", {**again, **monitors}), ("main", {**again, "fleet.yaml": _reporting_fleet()})):
        _acknowledge(version, repository, base, branch, changes)


def _report(user_data: str) -> str:
    return str(json.loads(user_data)["report"]).removeprefix("http://boot.test")


def _acknowledge(version: _Version, repository: Repository, base: str, branch: str, changes: dict[str, str]) -> None:
    """Commit changes on a branch from ``base``, with the line that acknowledges them for this version."""
    fleet = str(repository.bare)
    for subject in ("Change", ""):
        git(repository.work, "checkout", "--quiet", "-B", branch, base)
        line = "" if subject else version.acknowledgement(base, git(repository.bare, "rev-parse", branch))
        for path, text in changes.items():
            (repository.work / path).write_text(text)
        git(repository.work, "commit", "--quiet", "--all", "--message", subject or f"Install old01 again\n\n{line}")
        git(repository.work, "push", "--quiet", "--force", fleet, branch)


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
