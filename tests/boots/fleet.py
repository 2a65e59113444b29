"""The fleet that the machines of a module are servers of, as files of its repository."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from tests.boots.architectures import X86_64, Architecture
from tests.boots.images import ARGUMENTS, DIRECT, Artifacts, Images, digest
from tests.boots.network import BASE_URLS, uses_ipv6
from tests.helpers.fleets import document, make_mac, make_uuid, policy, profile

# Profiles with a policy of their name, for the servers with it as the label `boots`.
PROFILES: Final = ("node", *(f"{kind}-{by.lower()}" for kind in ("uki", "iso") for by in DIRECT))


UNSIGNED: Final = "unsigned-1"  # an image that only the tests of Secure Boot have
NAMES_ITS_NIC: Final = "kernelArguments: ['BOOTIF={{ boot_nic.bootif }}']"  # for the document of a guest


@dataclass(frozen=True, kw_only=True, slots=True)
class Guest:
    """A server of the fleet and the machine that it describes: one for each server program."""

    name: str
    by: tuple[str, ...] = ("gitboot",)
    boots: str | None = "node"  # the profile and policy, with {by}; None: no Server document describes it
    installed: bool = False  # before gitboot came: it goes on to its disk
    architecture: Architecture = X86_64
    uefi: bool = True
    pxe: bool = False
    nics: int = 1  # it boots from the last
    secure_boot: Literal["vendor"] | None = None  # the keys of its firmware; None: Secure Boot is off
    spec: str = ""  # more fields of its document
    found_by: Literal["MAC", "UUID", "serial"] = "MAC"  # all that its document and the machine have in common

    def server_name(self, by: str) -> str:
        return f"{self.name}-{by.lower()}"

    def macs(self, by: str) -> tuple[str, ...]:
        name = self.server_name(by)
        macs = tuple(make_mac(name if number == 0 else f"{name}/{number}") for number in range(self.nics))
        # Like real cards: Kea derives no MAC address from other link-local addresses, and finds no reservation.
        return tuple(mac.replace("52:54:00", "00:16:3e") for mac in macs) if uses_ipv6(by) else macs

    def documented_macs(self, by: str) -> tuple[str, ...]:
        """Return the MAC addresses in the document of the server."""
        return self.macs(by) if self.found_by == "MAC" else (make_mac(f"{self.server_name(by)}/old"),)

    def uuid(self, by: str) -> str:
        """The machine's."""
        return make_uuid(f"{self.server_name(by)}/new" if self.found_by == "serial" else self.server_name(by))

    def serial(self, by: str) -> str:
        return f"4J8VM72.{self.server_name(by)}"

    def document(self, by: str, address: str) -> str:
        macs = self.documented_macs(by)
        idle = "".join(f"{{mac: '{mac}', boot: false}}, " for mac in macs[:-1])
        interfaces = f"{idle}{{mac: '{macs[-1]}', addresses: ['{address}']}}"
        firmware = "UEFI" if self.uefi else "BIOS"
        spec = f"uuid: {make_uuid(self.server_name(by))}, architecture: {self.architecture.name}, firmware: {firmware}"
        spec += f", serial: {self.serial(by)}" if self.found_by == "serial" else ""
        spec += f", interfaces: [{interfaces}], provision: {0 if self.installed else 1}"
        spec += f", {self.spec}" if self.spec else ""
        boots = (self.boots or "").format(by=by.lower())
        return document("Server", self.server_name(by), spec, f"boots: {boots}, by: {by}")


def files(guests: Iterable[Guest], images: Images, *, outputs: str, more: str = "") -> dict[str, str]:
    """The repository: each guest's servers, and what they boot."""
    servers = [(guest, by) for guest in guests if guest.boots is not None for by in guest.by]
    documents = [
        _fleet(outputs, more),
        *(guest.document(by, address(number, by)) for number, (guest, by) in enumerate(servers)),
        *(_image(name, found) for name, found in images.by_name.items()),
        profile("node", "node-1", _user_data("CloudInit", "node.j2")),
        profile("discovery", "discovery-1", NAMES_ITS_NIC),
        profile("repair", "repair-1"),
        profile(
            "inventory", "inventory-1", f"kernelArguments: ['discovery.report={BASE_URLS['gitboot']}/v1/inventory']"
        ),
        *(
            _make_uefi_http_profile(name, kind)
            for name in images.by_name
            for kind in ("uki", "iso")
            if name.startswith(kind)
        ),
        *(policy(name, f"{{matchLabels: {{boots: {name}}}}}", boots=name, often="Once") for name in PROFILES),
    ]
    if UNSIGNED in images.by_name:
        name = UNSIGNED.removesuffix("-1")
        documents += [profile(name, UNSIGNED), policy(name, f"{{matchLabels: {{boots: {name}}}}}", boots=name)]
    return {"fleet.yaml": "---\n".join(documents), **_TEMPLATES}


def address(number: int, by: str) -> str:
    """Return the address that DHCP assigns to the server at this position in the fleet."""
    return f"2001:db8::{10 + number}" if uses_ipv6(by) else f"192.0.2.{10 + number}"


def _user_data(format: str, template: str) -> str:
    return f"userData: {{format: {format}, template: {template}}}"


def _make_uefi_http_profile(image: str, kind: str) -> str:
    user_data = _user_data("Ignition/3.4", "direct.j2")
    return profile(image.removesuffix("-1"), image, f"httpBoot: {kind}, {user_data}", method="UefiHttp")


def _image(name: str, by_architecture: Mapping[Architecture, Artifacts]) -> str:
    files = ", ".join(f"{each.name}: {{{_files(name, artifacts)}}}" for each, artifacts in by_architecture.items())
    if any("kernel" in artifacts for artifacts in by_architecture.values()):
        more = f"kernelArguments: [{', '.join(ARGUMENTS.split())}, 'boot.image={{{{ image.name }}}}']"
        more += ", userData: CloudInit" if name == "node-1" else ", writesDisk: false"
    else:
        more = "userData: Ignition/3.4, configFrom: SystemUUID"
    return document("BootImage", name, f"version: '1', {more}, architectures: {{{files}}}")


def _files(name: str, artifacts: Artifacts) -> str:
    """An image's files for one architecture."""
    found = {kind: f"{{url: 'assets:{name}/{path.name}', sha256: {digest(path)}}}" for kind, path in artifacts.items()}
    if "initrd" in found:
        found["initrds"] = f"[{found.pop('initrd')}]"
    return ", ".join(f"{kind}: {file}" for kind, file in found.items())


_TEMPLATES: Final = {
    "node.j2": "#cloud-config\n"
    "hostname: {{ server.name }}\n"
    "write_files: [{path: /etc/image, content: {{ image.name }}}]\n"
    "runcmd: ['curl --fail {{ urls.provisioned }}']\n",
    "direct.j2": '{"ignition": {"version": "3.4.0"}, "storage": {"files": ['
    '{"path": "/etc/hostname", "contents": {"source": "data:,{{ server.name }}"}}, '
    '{"path": "/report", "contents": {"source": "{{ urls.provisioned }}"}}]}}\n',
}


def _fleet(outputs: str, more: str) -> str:
    sites = ", ".join(
        f"{{name: {by.lower()}, select: {{matchLabels: {{by: {by}}}}}, baseURL: '{url}'}}"
        for by, url in BASE_URLS.items()
        if by != "gitboot"
    )
    spec = f"baseURL: '{BASE_URLS['gitboot']}', sites: [{sites}], outputs: [{outputs}]"
    return document("Fleet", "boots", f"{spec}, provisioning: {{evidence: Reported}}{more}")
