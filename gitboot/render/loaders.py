"""Which loader a machine is given by DHCP, and where it lies: below the TFTP root, and below ``assets/`` by HTTP.

`gitboot artifacts loaders` places them. What boots is never decided here: each of these asks for its entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import urlsplit

from gitboot.model.fleet import Output
from gitboot.model.server import Loader
from gitboot.resolve.server_decision import Decisions


class Platform(StrEnum):
    """What a loader is built for."""

    BIOS = "bios"
    X86_64 = "x86_64"
    AARCH64 = "aarch64"


@dataclass(frozen=True, kw_only=True, slots=True)
class Client:
    """How a machine asks by DHCP: option 93, of DHCPv6 61 (IANA: Processor Architecture Types, RFC 5970)."""

    name: str
    platform: Platform
    types: tuple[int, ...]
    http: bool = False  # it says HTTPClient and wants a URL; else PXEClient, and TFTP

    @property
    def ipv6(self) -> bool:
        """Whether such firmware boots by IPv6, too."""
        return self.platform is not Platform.BIOS


# 9 is EFI byte code to IANA, but x64 to the firmware that was written by RFC 4578 as it stood before its erratum.
CLIENTS: Final = (
    Client(name="bios", platform=Platform.BIOS, types=(0,)),
    Client(name="uefi_x86_64", platform=Platform.X86_64, types=(7, 9)),
    Client(name="uefi_aarch64", platform=Platform.AARCH64, types=(11,)),
    Client(name="http_x86_64", platform=Platform.X86_64, types=(16,), http=True),
    Client(name="http_aarch64", platform=Platform.AARCH64, types=(19,), http=True),
    Client(name="http_bios", platform=Platform.BIOS, types=(20,), http=True),
)

# Of the loaders that the Fleet's outputs have entries for, the first that there is for the platform. Where a package
# has it, iPXE with the firmware's own driver: Debian 12's, with its own drivers, hangs when it goes back to firmware.
LOADERS: Final = (
    (Output.IPXE, Platform.BIOS, "loaders/undionly.kpxe"),
    (Output.IPXE, Platform.X86_64, "loaders/snponly-x86_64.efi"),
    (Output.IPXE, Platform.AARCH64, "loaders/ipxe-aarch64.efi"),
    (Output.GRUB, Platform.X86_64, "loaders/grub-x86_64.efi"),
    (Output.GRUB, Platform.AARCH64, "loaders/grub-aarch64.efi"),
    (Output.PXELINUX, Platform.BIOS, "loaders/lpxelinux.0"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mirror:
    """Where machines fetch from: the fleet's base URL, or a site's own."""

    site: str | None  # None: for machines at no site
    base_url: str

    def url(self, path: str) -> str:
        return f"{self.base_url}/{path}"

    def loader_url(self, path: str) -> str:
        return self.url(f"assets/{path}")

    @property
    def address(self) -> IPv4Address | IPv6Address | None:
        """The address of the host, which serves TFTP as well; None where only its name is known."""
        try:
            return ip_address(urlsplit(self.base_url).hostname or "")
        except ValueError:
            return None

    def tftp_url(self, path: str) -> str:
        host = urlsplit(self.base_url).hostname or ""
        return f"tftp://[{host}]/{path}" if ":" in host else f"tftp://{host}/{path}"


def mirrors(decisions: Decisions) -> tuple[Mirror, ...]:
    """The fleet's own, then each site's."""
    sites = (Mirror(site=name, base_url=url) for name, url in sorted(decisions.sites.items()))
    return (Mirror(site=None, base_url=decisions.base_url), *sites)


@dataclass(frozen=True, kw_only=True, slots=True)
class LoaderOffer:
    """What a client's machines are given."""

    client: Client
    path: str
    loader: Output


def offers(decisions: Decisions, wanted: Loader | None = None) -> Iterator[LoaderOffer]:
    """The loader of each client that there is one for: where there is one, the ``wanted``."""
    for client in CLIENTS:
        found = [
            LoaderOffer(client=client, path=path, loader=loader)
            for loader, platform, path in LOADERS
            if loader in decisions.outputs and platform is client.platform
        ]
        yield from [*(each for each in found if wanted is not None and each.loader == wanted.lower()), *found][:1]


def wanted(decisions: Decisions) -> tuple[Loader, ...]:
    """The loaders that any server wants by name, sorted."""
    return tuple(sorted({each.loader for each in decisions.hosts if each.loader is not None}))
