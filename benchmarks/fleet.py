"""Realistic fleets of any size from a seed: sites, racks, pools that inherit, rollouts, pins, three NICs each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from benchmarks.gitboot_version import NOW

_EXAMPLE: Final = Path(__file__).resolve().parent.parent / "example-repo"
_OWN: Final = {"servers", "maintenances", "policies", "README.md", "fleet.yaml", ".github", ".gitlab-ci.yml"}

RACK: Final = 40  # servers
_SITE: Final = 2_000
_POOLS: Final = tuple(f"pool-{number:02}" for number in range(1, 15))
# Half of all servers have Ignition: workers, their pools, and the control plane.
_ROLES: Final = (("worker", 0.13), *((pool, 0.025) for pool in _POOLS), ("control-plane", 0.02))
_OTHERS: Final = (("storage", 0.1), ("batch", 0.2), ("appliance", 0.19), ("spare", 0.01))

_HEAD: Final = "apiVersion: gitboot.dev/v1alpha1\nkind: {kind}\nmetadata:\n  name: {name}\n"

_SERVER: Final = """\
apiVersion: gitboot.dev/v1alpha1
kind: Server
metadata:
  name: {name}
  labels: {{site: {site}, rack: {rack}, role: {role}, ring: {ring}{more}}}
spec:
  uuid: 4c4c4544-0034-5210-8044-{number:012x}
  serial: {serial}
  architecture: x86_64
  firmware: UEFI
  interfaces:
    - {{name: eno1, mac: "24:6e:96:{mac}", addresses: [10.{ip}/8, "2001:db8::{ipv6}/64"]}}
    - {{name: ens3f0, mac: "40:a6:b7:{mac}", addresses: [11.{ip}/8], boot: false}}
    - {{name: ens3f1, mac: "40:a6:b8:{mac}", boot: false}}
"""

# A serial number of digits alone may look like a placeholder, which gitboot rejects.
_AS_LETTERS: Final = str.maketrans("0123456789", "GQWRTZPLMX")

_BMC: Final = """\
  bmc:
    address: https://{name}.bmc.example.net
    system: /redfish/v1/Systems/System.Embedded.1
    credentials: bmc-{site}
    tls: {{ca: certs/bmc-ca.pem}}
"""

_PARKED: Final = "  lifecycle: Parked\n"
_PIN: Final = "  pin: {image: flatcar-4230.2.4, reason: DISK-113}\n"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """A fleet as files. The same seed gives the same fleet, and the first servers of a larger fleet."""

    servers: int
    seed: int = 1
    rack_files: bool = False  # a file for each rack, instead of one for each server
    bmcs: bool = True
    spec: str = NOW.fleet_spec  # lines of the Fleet document

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Yield all files: first the shared ones, then those of the servers, both in the order of their paths."""
        yield from sorted(self.shared().items())
        if not self.rack_files:
            yield from ((self.path(number), self.server(number)) for number in range(self.servers))
            return
        for first in range(0, self.servers, RACK):
            rack = range(first, min(first + RACK, self.servers))
            yield f"{_rack_path(first)}.yaml", b"---\n".join(map(self.server, rack))

    def shared(self) -> dict[str, bytes]:
        """Return the files without servers: images, profiles and templates of the example, and generated policies."""
        found = {
            path.relative_to(_EXAMPLE).as_posix(): path.read_bytes()
            for path in sorted(_EXAMPLE.rglob("*"))
            if path.is_file() and not _OWN & set(path.relative_to(_EXAMPLE).parts)
        }
        own = {**dict(_policies()), **dict(_maintenances()), "fleet.yaml": self._fleet(), "README.md": "# A fleet\n"}
        return found | {path: text.encode() for path, text in own.items()}

    def path(self, number: int) -> str:
        """Return the path of a server's file in a fleet without `rack_files`."""
        return f"{_rack_path(number)}/{name_of(number)}.yaml"

    def server(self, number: int) -> bytes:
        """Return the document of a server."""
        dice = Random(self.seed << 32 | number)
        (role,) = dice.choices([name for name, _ in (*_ROLES, *_OTHERS)], [share for _, share in (*_ROLES, *_OTHERS)])
        more = "".join(f", {label}" for label, share in _LABELS if dice.random() < share)
        text = _SERVER.format(
            name=name_of(number),
            number=number + 1,
            serial=f"K7{number + 1:07}".translate(_AS_LETTERS),
            site=site_of(number),
            rack=f"r{number % _SITE // RACK:02}",
            role=role,
            ring="canary" if dice.random() < 0.1 else "stable",
            more=more,
            mac=f"{number >> 16 & 255:02x}:{number >> 8 & 255:02x}:{number & 255:02x}",
            ip=f"{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
            ipv6=f"{number + 1 >> 16:x}:{number + 1 & 0xFFFF:x}" if number + 1 >> 16 else f"{number + 1:x}",
        )
        pinned = role == "worker" and dice.random() < 0.03
        bmc = _BMC.format(name=name_of(number), site=site_of(number)) if self.bmcs else ""
        return f"{text}{bmc}{_PIN if pinned else ''}{_PARKED if role == 'spare' else ''}".encode()

    def _fleet(self) -> str:
        sites = sorted({site_of(number) for number in range(0, self.servers, _SITE)} | {site_of(0)})
        lines = (
            f"    - {{name: {site}, select: {{matchLabels: {{site: {site}}}}}, baseURL: http://boot.{site}.example.net}}\n"
            for site in sites
        )
        spec = "spec:\n  baseURL: http://boot.example.net\n  unknownServers: {profile: discovery}\n"
        spec += self.spec
        spec += "  outputs: [ipxe, grub]\n  provisioning: {evidence: Fetched, monitors: [10.9.0.0/24]}\n  sites:\n"
        return _HEAD.format(kind="Fleet", name="bench") + spec + "".join(lines)


_LABELS: Final = (("accelerator: gpu", 0.05), ("health: memory-suspect", 0.002))


def mac_of(number: int) -> str:
    """Return the address of a server's first interface, as it is spelt in paths."""
    return f"24-6e-96-{number >> 16 & 255:02x}-{number >> 8 & 255:02x}-{number & 255:02x}"


def name_of(number: int) -> str:
    return f"{site_of(number)}-{number:06}"


def site_of(number: int) -> str:
    return f"s{number // _SITE:03}"


def _rack_path(number: int) -> str:
    return f"servers/{site_of(number)}/r{number % _SITE // RACK:02}"


def _policies() -> Iterator[tuple[str, str]]:
    """Yield twenty policies. Pools inherit from the worker policy, which inherits from the policy of all nodes."""
    node = "  select: None\n  profile: worker\n  networkBoot: OnImageChange\n  vars: {kubernetes: 1.34.1}\n"
    yield _policy("node", node + '  kernelArguments: ["mitigations=auto,nosmt"]\n')
    yield _policy("worker", "  inherits: node\n" + _format_selector("worker") + _format_labels("worker"))
    for number, pool in enumerate(_POOLS):
        own = f"  kernelArguments: [hugepages={64 * number}]\n"
        taint = "  nodeTaints: [{key: example.net/pool, value: " + f"{pool}, effect: NoSchedule}}]\n"
        yield _policy(pool, "  inherits: worker\n" + _format_selector(pool) + own + _format_labels(pool) + taint)
    yield _policy(
        "control-plane",
        "  inherits: node\n"
        + _format_selector("control-plane")
        + "  profile: control-plane\n  networkBoot: Once\n"
        + _format_labels("control-plane"),
    )
    yield _policy("storage", _format_selector("storage") + "  profile: storage\n  networkBoot: Once\n  diskBoot: Hdd\n")
    yield _policy("batch", _format_selector("batch") + "  profile: batch\n  networkBoot: Always\n")
    yield _policy("appliance", _format_selector("appliance") + "  profile: local-disk\n  networkBoot: Never\n")


def _format_selector(role: str) -> str:
    return f"  select: {{matchLabels: {{role: {role}}}}}\n"


def _format_labels(pool: str) -> str:
    return f"  nodeLabels: {{example.net/pool: {pool}}}\n"


def _policy(name: str, spec: str) -> tuple[str, str]:
    return f"policies/{name}.yaml", f"{_HEAD.format(kind='BootPolicy', name=name)}spec:\n{spec}"


def _maintenances() -> Iterator[tuple[str, str]]:
    suspect = "  select: {matchLabels: {health: memory-suspect}}\n  profile: memory-test\n  priority: 10\n"
    yield _maintenance("memory-test", suspect + "  reason: corrected memory errors\n")
    for year, site in ((2024, "s000"), (2090, "s000"), (2091, "s001")):
        window = f"  window: {{start: {year}-03-06T22:00:00Z, end: {year}-03-07T04:00:00Z}}\n"
        select = f"  select: {{matchLabels: {{site: {site}, role: control-plane}}}}\n"
        rest = "  profile: bios-update\n  networkBoot: Once\n  reason: a BIOS update\n"
        yield _maintenance(f"bios-{year}", select + window + rest)


def _maintenance(name: str, spec: str) -> tuple[str, str]:
    return f"maintenances/{name}.yaml", f"{_HEAD.format(kind='Maintenance', name=name)}spec:\n{spec}"
