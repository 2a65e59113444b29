"""Write the digests of changes that another version computes. An acknowledgement is bound to such a digest.

    git worktree add --detach /tmp/checkout 2fefe59
    python -m tests.upgrades.acknowledgements /tmp/checkout tests/upgrades/2fefe59-acknowledgements.json

0.1.0 is commit dec10da. The script runs `gitboot diff` of that version, with the packages of the present environment.
The file has no digest for a change that is invalid in that version.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from tests.helpers.fleets import document, image, maintenance, make_mac, policy, profile, server
from tests.helpers.running_instance import Repository

_BMC: Final = "bmc: {address: 'http://192.0.2.1', credentials: rack}"
_SPEC: Final = "baseURL: 'http://boot.test'"


class Change(NamedTuple):
    """The documents of two commits."""

    before: tuple[str, ...]
    after: tuple[str, ...]


def _fleet(
    *servers: str, spec: str = "", also: tuple[str, ...] = (), image_1: str = "", often: str = "Once"
) -> tuple[str, ...]:
    return (
        document("Fleet", "test", f"{_SPEC}{spec}"),
        image("flatcar-1", image_1),
        image("flatcar-2"),
        image("memtest-7", "writesDisk: false", "kernel"),
        profile("web", "flatcar-1"),
        profile("web-2", "flatcar-2"),
        profile("repair", "memtest-7"),
        policy("web", often=often),
        *also,
        *(servers or (_WEB01, _WEB02)),
    )


def _server(name: str, spec: str = "provision: 1") -> str:
    return server(name, "role: web", spec)


_WEB01, _WEB02 = _server("web01"), _server("web02")
_BASE: Final = _fleet()
_RESTRICTED: Final = ", serving: {restrict: true}"
_WINDOW: Final = "20T22:00 21T04:00"

CHANGES: Final = {
    "a server is removed": Change(_BASE, _fleet(_WEB01)),
    "a server is added": Change(_BASE, _fleet(_WEB01, _WEB02, _server("web03"))),
    "a server is installed again": Change(_BASE, _fleet(_server("web01", "provision: 2"), _WEB02)),
    "a server is parked": Change(_BASE, _fleet(_server("web01", "provision: 1, lifecycle: Parked"), _WEB02)),
    "a server takes over a MAC address": Change(_BASE, _fleet(_WEB01.replace(make_mac("web01"), make_mac("web02")))),
    "a server gets a BMC": Change(_BASE, _fleet(_server("web01", f"provision: 1, {_BMC}"), _WEB02)),
    "a policy installs whenever the image changes": Change(_BASE, _fleet(often="OnImageChange")),
    "an image is edited": Change(_BASE, _fleet(image_1="kernelArguments: [quiet]")),
    "a maintenance boots a memory test": Change(
        _BASE, _fleet(also=(maintenance("memory", _WINDOW, "networkBoot: Once"),))
    ),
    "a maintenance writes disks": Change(
        _BASE, _fleet(also=(maintenance("again", _WINDOW, "networkBoot: Once", boots="web-2"),))
    ),
    "unknown machines boot the memory test": Change(_BASE, _fleet(spec=", unknownServers: {profile: repair}")),
    "unknown machines are not found": Change(_BASE, _fleet(spec=", unknownServers: NotFound")),
    "the base URL changes": Change(_BASE, tuple(each.replace("boot.test", "boot2.test") for each in _BASE)),
    "the outputs change": Change(_BASE, _fleet(spec=", outputs: [ipxe]")),
    "the evidence changes": Change(_BASE, _fleet(spec=", provisioning: {evidence: Reported}")),
    "the ledger is named": Change(_BASE, _fleet(spec=", provisioning: {ledger: 08bdf60b-4f9a-4254-ab4f-51d4b6cba3d7}")),
    "an endpoint is named": Change(_BASE, _fleet(spec=", endpoint: 'http://gives.test'")),
    "monitors are named": Change(_BASE, _fleet(spec=", provisioning: {monitors: [192.0.2.0/24]}")),
    "clients are named": Change(_BASE, _fleet(spec=", provisioning: {clients: [192.0.2.0/24]}")),
    "lookups become restricted": Change(_BASE, _fleet(spec=_RESTRICTED)),
    "a server with restricted lookups is installed again": Change(
        _fleet(spec=_RESTRICTED), _fleet(_server("web01", "provision: 2"), _WEB02, spec=_RESTRICTED)
    ),
    "an image that newly claims to write no disk is booted": Change(
        _BASE,
        _fleet(
            also=(
                image("memtest-8", "writesDisk: false", "kernel"),
                profile("repair-8", "memtest-8"),
                maintenance("memory", _WINDOW, "networkBoot: Once", boots="repair-8"),
            )
        ),
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.upgrades.acknowledgements")
    parser.add_argument("checkout", type=Path, help="the version that computes")
    parser.add_argument("file", type=Path, help="the file to write: NAME-acknowledgements.json")
    arguments = parser.parse_args()
    with TemporaryDirectory(prefix="acknowledgements-") as folder:
        found = {
            name: _compute(arguments.checkout.resolve(), Path(folder) / str(number), change)
            for number, (name, change) in enumerate(CHANGES.items())
        }
    known = {name: digest for name, digest in found.items() if digest is not None}
    arguments.file.write_text(json.dumps(known, indent=1) + "\n")


def _compute(checkout: Path, folder: Path, change: Change) -> str | None:
    repository = Repository.create(folder)
    before, after = (repository.push({"fleet.yaml": "---\n".join(each)}) for each in change)
    cache = {name: str(folder) for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")}
    done = subprocess.run(
        [sys.executable, "-m", "gitboot", "diff", f"{before}..{after}", "fleet.git", "-o", "json"],
        cwd=folder,
        env={**os.environ, **cache, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    digest: str | None = json.loads(done.stdout).get("digest")
    return digest


if __name__ == "__main__":
    main()
