"""DHCP configuration for dnsmasq and Kea, and for dnsmasq as a proxyDHCP server."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct, structs

from gitboot.model.fleet import Output
from gitboot.model.server import Lifecycle, Loader
from gitboot.render.paths import ContentType, File
from gitboot.resolve.server_decision import Decisions, Host

Element = Mapping[str, Any]


class Platform(StrEnum):
    """The firmware or architecture for which a loader is built."""

    BIOS = "bios"
    X86_64 = "x86_64"
    AARCH64 = "aarch64"


class Client(Struct, frozen=True, kw_only=True):
    """A kind of DHCP client: a group of firmware types that get the same loader."""

    name: str
    platform: Platform
    types: tuple[int, ...]  # option 93, in DHCPv6 option 61 (IANA: Processor Architecture Types, RFC 5970)
    http: bool = False  # True: the client sends HTTPClient and needs a URL; False: it sends PXEClient and uses TFTP

    @property
    def ipv6(self) -> bool:
        return self.platform is not Platform.BIOS


# IANA assigns 9 to EFI byte code. Firmware that follows RFC 4578 without its erratum uses 9 for x64.
CLIENTS: Final = (
    Client(name="bios", platform=Platform.BIOS, types=(0,)),
    Client(name="uefi_x86_64", platform=Platform.X86_64, types=(7, 9)),
    Client(name="uefi_aarch64", platform=Platform.AARCH64, types=(11,)),
    Client(name="http_x86_64", platform=Platform.X86_64, types=(16,), http=True),
    Client(name="http_aarch64", platform=Platform.AARCH64, types=(19,), http=True),
    Client(name="http_bios", platform=Platform.BIOS, types=(20,), http=True),
)
# For each platform, the loaders in order of preference. The Fleet's outputs decide which loaders are available. If a
# package contains an iPXE build that uses the firmware's network driver, the list names that build, because Debian 12's
# iPXE with its own drivers hangs when it returns to the firmware.
LOADERS: Final = (
    (Output.IPXE, Platform.BIOS, "loaders/undionly.kpxe"),
    (Output.IPXE, Platform.X86_64, "loaders/snponly-x86_64.efi"),
    (Output.IPXE, Platform.AARCH64, "loaders/ipxe-aarch64.efi"),
    (Output.GRUB, Platform.X86_64, "loaders/grub-x86_64.efi"),
    (Output.GRUB, Platform.AARCH64, "loaders/grub-aarch64.efi"),
    (Output.PXELINUX, Platform.BIOS, "loaders/lpxelinux.0"),
)
# The distribution's shim, which starts the signed GRUB of the distribution
_SHIMS: Final = {Platform.X86_64: "loaders/shimx64.efi", Platform.AARCH64: "loaders/shimaa64.efi"}


class Mirror(Struct, frozen=True, kw_only=True):
    """The base URL, of the Fleet or of a site, from which machines fetch their files."""

    site: str | None  # None: the base URL is for machines without a site
    base_url: str

    def url(self, path: str) -> str:
        return f"{self.base_url}/{path}"

    def loader_url(self, path: str) -> str:
        return self.url(f"assets/{path}")

    @property
    def ipv4(self) -> IPv4Address | None:
        """The IPv4 address in the base URL. The host with this address also serves TFTP.

        The value is None if the host in the base URL is not an IPv4 address. dnsmasq then sends its own address as the
        TFTP server.
        """
        try:
            return IPv4Address(urlsplit(self.base_url).hostname or "")
        except ValueError:
            return None

    def tftp_url(self, path: str) -> str:
        host = urlsplit(self.base_url).hostname or ""
        return f"tftp://[{host}]/{path}" if ":" in host else f"tftp://{host}/{path}"


def list_mirrors(decisions: Decisions) -> tuple[Mirror, ...]:
    """Return the Fleet's mirror, followed by the mirror of each site."""
    sites = (Mirror(site=name, base_url=url) for name, url in sorted(decisions.sites.items()))
    return (Mirror(site=None, base_url=decisions.base_url), *sites)


class LoaderOffer(Struct, frozen=True, kw_only=True):
    """The loader for one kind of DHCP client."""

    client: Client
    path: str
    loader: Output


def list_loader_offers(decisions: Decisions, preferred: Loader | None = None) -> Iterator[LoaderOffer]:
    """Yield one loader for each kind of client.

    The loader is ``preferred`` if the client can load it, and otherwise the first available loader.
    """
    for client in CLIENTS:
        offers = [
            LoaderOffer(client=client, path=path, loader=loader)
            for loader, platform, path in LOADERS
            if loader in decisions.outputs and platform is client.platform
        ]
        if preferred is Loader.SHIM and Output.GRUB in decisions.outputs and client.platform in _SHIMS:
            yield LoaderOffer(client=client, path=_SHIMS[client.platform], loader=Output.GRUB)
        elif offers:
            name = preferred.lower() if preferred is not None else None
            yield next((offer for offer in offers if offer.loader == name), offers[0])


def list_requested_loaders(decisions: Decisions) -> tuple[Loader, ...]:
    """Return the loaders that Server documents or the Fleet's hardware entries set, sorted."""
    return tuple(sorted({host.loader for host in decisions.hosts if host.loader is not None}))


class Reservation(Struct, frozen=True, kw_only=True):
    """The DHCP reservation of one interface."""

    mac: str  # a MAC address with colons
    ipv4: str | None  # at most one address, because a DHCPv4 lease contains only one address
    ipv6: tuple[str, ...]
    hostname: str | None
    site: str | None
    loader: Loader | None


def list_reservations(hosts: Iterable[Host]) -> Iterator[Reservation]:
    """Yield the reservations of all boot interfaces, grouped by server. Omit retired servers."""
    for host in hosts:
        if host.lifecycle is Lifecycle.RETIRED:
            continue
        for nic in host.nics:
            if nic.boots:
                yield Reservation(
                    mac=nic.mac.replace("-", ":"),
                    ipv4=next((address for address in nic.addresses if ":" not in address), None),
                    ipv6=tuple(address for address in nic.addresses if ":" in address),
                    hostname=_as_hostname(host.server),
                    site=host.site,
                    loader=host.loader,
                )


# Server names that a DHCP server would not read as a host name: lease times, addresses, and keywords of the option
# dhcp-host in dnsmasq.
_NOT_A_HOSTNAME: Final = re.compile(r"[0-9.]+[smhdw]?|infinite|ignore")


def _as_hostname(server: str) -> str | None:
    """Return the name of a server if it is a valid host name. Otherwise return None.

    Each label of a host name has at most 63 characters (RFC 1035, 2.3.4).
    """
    fits = all(len(label) <= 63 for label in server.split("."))
    return server if fits and not _NOT_A_HOSTNAME.fullmatch(server) else None


# Kea


def render_kea(decisions: Decisions) -> Iterator[tuple[str, File]]:
    """Yield ``ops/dhcp/kea-dhcp{4,6}-{classes,reservations}.json``."""
    for name, content in (
        ("dhcp4-classes", _format_elements(_build_kea_classes(decisions, _KeaV4))),
        ("dhcp4-reservations", _render_kea_reservations(decisions.hosts, _KeaV4)),
        ("dhcp6-classes", _format_elements(_build_kea_classes(decisions, _KeaV6))),
        ("dhcp6-reservations", _render_kea_reservations(decisions.hosts, _KeaV6)),
    ):
        yield f"ops/dhcp/kea-{name}.json", File(content, ContentType.TEXT)


def _format_elements(elements: Iterable[Element]) -> bytes:
    return "".join([",\n".join(map(json.dumps, elements)), "\n"]).encode()


class _KeaV4:
    """Expressions and options for kea-dhcp4."""

    # iPXE sends its user class without the length byte that RFC 3004 requires.
    ipxe = "option[175].exists or option[77].hex == 'iPXE' or substring(option[77].hex, 1, 4) == 'iPXE'"
    architecture = "option[93].hex"

    @staticmethod
    def build_addresses(reservation: Reservation) -> Element:
        return {"ip-address": reservation.ipv4} if reservation.ipv4 else {}

    @staticmethod
    def build_script_options(mirror: Mirror) -> Element:
        return _build_boot_file_options(mirror.url("boot.ipxe"))

    @staticmethod
    def build_loader_options(offer: LoaderOffer, mirror: Mirror) -> Element | None:
        if offer.client.http:
            return _build_boot_file_options(
                mirror.loader_url(offer.path),
                {"name": "vendor-class-identifier", "data": "HTTPClient", "always-send": True},
            )
        options: dict[str, Any] = {"boot-file-name": offer.path}
        if mirror.ipv4 is not None:
            options["next-server"] = str(mirror.ipv4)
        if offer.loader is Output.PXELINUX:
            options["option-data"] = [
                {"code": 210, "csv-format": False, "data": mirror.url("").encode().hex(), "always-send": True}
            ]
        return options


def _build_boot_file_options(url: str, *options: Element) -> Element:
    """Return the options that contain a boot file URL.

    These are option 67, and the 128-byte header field if the URL is short enough.
    """
    field = {"boot-file-name": url} if len(url) < 128 else {}
    return {**field, "option-data": [{"name": "boot-file-name", "data": _escape_commas(url)}, *options]}


# RFC 8415, 21.16: an enterprise number, the length of the text HTTPClient, and the text. EDK II sends the number 343 of
# Intel.
_VENDOR_CLASS6: Final[Element] = {
    "code": 16,
    "csv-format": False,
    "data": ((343).to_bytes(4) + (10).to_bytes(2) + b"HTTPClient").hex(),
    "always-send": True,
}


class _KeaV6:
    """Expressions and options for kea-dhcp6."""

    ipxe = "substring(option[15].hex, 2, 4) == 'iPXE'"  # RFC 8415, 21.15: the value begins with two length bytes
    architecture = "option[61].hex"

    @staticmethod
    def build_addresses(reservation: Reservation) -> Element:
        return {"ip-addresses": list(reservation.ipv6)} if reservation.ipv6 else {}

    @staticmethod
    def build_script_options(mirror: Mirror) -> Element:
        return {"option-data": [_build_bootfile_url_option(mirror.url("boot.ipxe"))]}

    @staticmethod
    def build_loader_options(offer: LoaderOffer, mirror: Mirror) -> Element | None:
        if not offer.client.ipv6:
            return None
        if not offer.client.http:
            return {"option-data": [_build_bootfile_url_option(mirror.tftp_url(offer.path))]}
        return {"option-data": [_build_bootfile_url_option(mirror.loader_url(offer.path)), _VENDOR_CLASS6]}


def _build_bootfile_url_option(url: str) -> Element:
    return {"name": "bootfile-url", "data": _escape_commas(url)}


def _escape_commas(text: str) -> str:
    """Escape commas with backslashes, because Kea splits option data at commas."""
    return text.replace(",", r"\,")


def _build_kea_classes(decisions: Decisions, version: type[_KeaV4] | type[_KeaV6]) -> Iterator[Element]:
    """Yield the Kea client classes.

    The test of a class may refer to other classes. These other classes come first. A machine matches at most one of the
    classes that set options.
    """
    yield {"name": "gitboot_ipxe", "test": version.ipxe}
    requested = list_requested_loaders(decisions)
    yield from _build_group_classes("site", sorted(decisions.sites))
    yield from _build_group_classes("loader", [loader.lower() for loader in requested])
    has_ipxe = Output.IPXE in decisions.outputs
    firmware_test = "not member('gitboot_ipxe') and " if has_ipxe else ""
    for mirror in list_mirrors(decisions):
        name, site_test = "gitboot_", "not member('gitboot_site') and " if decisions.sites else ""
        if mirror.site is not None:
            name = f"gitboot_site_{mirror.site}_"
            site_test = f"member('gitboot_site') and member('gitboot_site_{mirror.site}') and "
        if has_ipxe:
            yield {
                "name": f"{name}script",
                "test": f"{site_test}member('gitboot_ipxe')",
                **version.build_script_options(mirror),
            }
        for loader in (None, *requested):
            loader_name, loader_test = "", "not member('gitboot_loader') and " if requested else ""
            if loader is not None:
                loader_name = f"{loader.lower()}_"
                loader_test = f"member('gitboot_loader') and member('gitboot_loader_{loader.lower()}') and "
            for offer in list_loader_offers(decisions, loader):
                if (options := version.build_loader_options(offer, mirror)) is not None:
                    numbers = offer.client.types
                    types = (f"substring({version.architecture}, 0, 2) == 0x{number:04x}" for number in numbers)
                    test = f"{site_test}{loader_test}{firmware_test}({' or '.join(types)})"
                    yield {"name": name + loader_name + offer.client.name, "test": test, **options}


def _build_group_classes(group: str, values: list[str]) -> Iterator[Element]:
    """Yield a class for each site or loader, and the class of the servers that belong to any of these classes."""
    for value in values:
        yield {"name": f"gitboot_{group}_{value}"}
    if values:
        members = " or ".join(f"member('gitboot_{group}_{value}')" for value in values)
        # The test contains KNOWN, so Kea evaluates this class, and the classes that refer to it, after the
        # reservation lookup.
        yield {"name": f"gitboot_{group}", "test": f"member('KNOWN') and ({members})"}


@lru_cache(maxsize=2)  # one entry each for DHCPv4 and DHCPv6; most commits do not change interfaces
def _render_kea_reservations(hosts: tuple[Host, ...], version: type[_KeaV4] | type[_KeaV6]) -> bytes:
    elements = []
    for reservation in list_reservations(hosts):
        classes = []
        if reservation.site is not None:
            classes.append(f"gitboot_site_{reservation.site}")
        if reservation.loader is not None:
            classes.append(f"gitboot_loader_{reservation.loader.lower()}")
        addresses = version.build_addresses(reservation)
        fields = {**addresses, "hostname": reservation.hostname, "client-classes": classes}
        set_fields = {key: value for key, value in fields.items() if value}
        if set_fields:  # Kea rejects an empty reservation
            elements.append({"hw-address": reservation.mac, **set_fields})
    return _format_elements(elements)


# dnsmasq


_HEADER: Final = """\
# gitboot: the reservations and boot loaders of the fleet. Include this file in the configuration of dnsmasq:
# conf-file=THIS-FILE
# Configure the address ranges, the interfaces and the TFTP root there. All tags of this file begin with gitboot_.
"""
_DETECT_IPXE: Final = """
# Detect iPXE, however it was started. Otherwise iPXE would load iPXE again and again.
dhcp-match=set:gitboot_ipxe,175
dhcp-userclass=set:gitboot_ipxe,iPXE
"""


def render_dnsmasq(decisions: Decisions) -> Iterator[tuple[str, File]]:
    """Yield ``ops/dhcp/dnsmasq.conf``."""
    lines = ["\n# Detect the architecture of the firmware: option 93 of DHCPv4, option 61 of DHCPv6"]
    for client in CLIENTS:
        for number in client.types:
            lines.append(f"dhcp-match=set:gitboot_{client.name},option:client-arch,{number}")
            if client.ipv6:
                lines.append(f"dhcp-match=set:gitboot_{client.name},option6:61,{number >> 8:02x}:{number & 255:02x}")
    lines += _render_dnsmasq_loaders(decisions)
    lines += ["", "# Reservations", _render_dnsmasq_reservations(decisions.hosts)]
    text = _HEADER + _DETECT_IPXE + "\n".join(lines)
    yield "ops/dhcp/dnsmasq.conf", File(text.encode(), ContentType.TEXT)


def _list_site_tags(decisions: Decisions) -> Iterator[tuple[Mirror, str, str]]:
    """Yield each mirror with the comment for its section, and with the tags of the machines that use the mirror."""
    for mirror in list_mirrors(decisions):
        if mirror.site is not None:
            yield mirror, f"\n# Machines of the site {mirror.site}", f"tag:gitboot_site_{mirror.site},"
        else:
            yield mirror, "\n# Machines without a site", "tag:!gitboot_site," if decisions.sites else ""


def _list_loader_tags(requested: Collection[Loader]) -> Iterator[tuple[Loader | None, str]]:
    """Yield None and then each requested loader, with the tag of the servers that get this loader."""
    yield None, "tag:!gitboot_loader," if requested else ""
    yield from ((loader, f"tag:gitboot_loader_{loader.lower()},") for loader in requested)


# dnsmasq cannot send an enterprise number in the vendor class of DHCPv6 (RFC 8415, 21.16). It sends strings, and puts
# two length bytes before each string. The first string and its length have four bytes, in the place of the enterprise
# number, which firmware ignores.
_VENDOR_CLASS: Final = "ed,HTTPClient"


def _render_dnsmasq_loaders(decisions: Decisions) -> Iterator[str]:
    ipxe = Output.IPXE in decisions.outputs
    firmware = "tag:!gitboot_ipxe," if ipxe else ""
    requested = list_requested_loaders(decisions)
    if Loader.SHIM in requested:
        yield from ("", "# Over TFTP, shim reads its own path from the DHCP header field that this option protects")
        yield "dhcp-no-override"
    yield from ("", "# UEFI HTTP boot accepts only DHCP replies that contain the vendor class HTTPClient")
    for offer in list_loader_offers(decisions):
        if offer.client.http:
            tags = f"{firmware}tag:gitboot_{offer.client.name}"
            yield f"dhcp-option-force={tags},60,HTTPClient"
            if offer.client.ipv6:
                yield f"dhcp-option-force={tags},option6:16,{_VENDOR_CLASS}"
    for mirror, comment, site_tag in _list_site_tags(decisions):
        yield comment
        if ipxe:
            script = mirror.url("boot.ipxe")
            yield _render_url_option(f"dhcp-boot={site_tag}tag:gitboot_ipxe", script)
            yield f"dhcp-option={site_tag}tag:gitboot_ipxe,option6:bootfile-url,{_quote_url(script)}"
        for loader, tag in _list_loader_tags(requested):
            for offer in list_loader_offers(decisions, loader):
                tags = f"{site_tag}{firmware}{tag}tag:gitboot_{offer.client.name}"
                yield from _render_loader_lines(offer, mirror, tags)


def _render_loader_lines(offer: LoaderOffer, mirror: Mirror, tags: str) -> Iterator[str]:
    client, path = offer.client, offer.path
    tftp_server = f",,{mirror.ipv4}" if mirror.ipv4 else ""
    if client.http:
        yield _render_url_option(f"dhcp-boot={tags}", mirror.loader_url(path))
    else:
        yield f"dhcp-boot={tags},{path}{tftp_server}"
    if client.ipv6:
        url = mirror.loader_url(path) if client.http else mirror.tftp_url(path)
        yield f"dhcp-option={tags},option6:bootfile-url,{_quote_url(url)}"
    if offer.loader is Output.PXELINUX:
        yield _render_url_option(f"dhcp-option-force={tags},210", mirror.url(""))


LONGEST_OPTION: Final = 255  # dnsmasq does not split options of DHCPv4 (RFC 2132, 2)


def _render_url_option(setting: str, url: str) -> str:
    if len(url) > LONGEST_OPTION:
        return f"# Omitted, because dnsmasq can send at most {LONGEST_OPTION} characters in a DHCPv4 option: {url}"
    return f"{setting},{_quote_url(url)}"


@lru_cache(maxsize=1)  # cached, because most commits do not change interfaces
def _render_dnsmasq_reservations(hosts: tuple[Host, ...]) -> str:
    lines = []
    for host in hosts:
        for macs, reservation in _join_bonds(list_reservations([host])):
            words = [*macs, *_list_group_tags(reservation.site, reservation.loader)]
            if reservation.ipv4 is not None:
                words.append(reservation.ipv4)
            words += (f"[{address}]" for address in reservation.ipv6)
            if reservation.hostname is not None:
                words.append(reservation.hostname)
            lines.append(f"dhcp-host={','.join(words)}\n")
    return "".join(lines)


def _list_group_tags(site: str | None, loader: Loader | None) -> list[str]:
    """Return the words that assign the tags of a site and of a loader to a machine."""
    tags = []
    if site is not None:
        tags.append(f"set:gitboot_site,set:gitboot_site_{site}")
    if loader is not None:
        tags.append(f"set:gitboot_loader,set:gitboot_loader_{loader.lower()}")
    return tags


def _join_bonds(reservations: Iterable[Reservation]) -> list[tuple[tuple[str, ...], Reservation]]:
    """Return the reservations of one server, each with its MAC addresses.

    Merge interfaces that share an IP address, because dnsmasq rejects an IP address that occurs in two reservations. A
    reservation may contain several MAC addresses (dnsmasq(8), ``dhcp-host``), but only one IPv4 address.
    """
    joined: list[tuple[tuple[str, ...], Reservation]] = []
    for reservation in reservations:
        known_addresses = {address for _, other in joined for address in other.ipv6}
        new_addresses = tuple(address for address in reservation.ipv6 if address not in known_addresses)
        for index, (macs, other) in enumerate(joined):
            if _shares_address(reservation, other):
                ipv4, ipv6 = other.ipv4 or reservation.ipv4, (*other.ipv6, *new_addresses)
                joined[index] = (*macs, reservation.mac), structs.replace(other, ipv4=ipv4, ipv6=ipv6)
                break
        else:
            joined.append(((reservation.mac,), structs.replace(reservation, ipv6=new_addresses)))
    return joined


def _shares_address(one: Reservation, other: Reservation) -> bool:
    """Return whether two reservations share an IP address and do not need two IPv4 addresses."""
    if one.ipv4 is not None and other.ipv4 is not None:
        return one.ipv4 == other.ipv4
    return not set(one.ipv6).isdisjoint(other.ipv6)


def _quote_url(url: str) -> str:
    """Quote a URL so that a comma does not end the value. The URL must not contain quotes or backslashes."""
    return f'"{url}"'


# proxyDHCP (Preboot Execution Environment 2.1, 2.2.3): the DHCP server assigns the address, and the proxy sends the
# name of the loader.

_PROXY_HEADER: Final = """\
# gitboot: the boot loaders of the fleet, for a network whose DHCP server stays as it is. dnsmasq answers beside that
# server and assigns no address. Include this file in the configuration of dnsmasq, and no other file of gitboot:
# conf-file=THIS-FILE
# Configure the network (dhcp-range=NETWORK,proxy,NETMASK), the interface and the TFTP root there.
# All tags of this file begin with gitboot_.

# Answer UEFI HTTP boot too. Without this line, dnsmasq 2.83 and later answer only PXE as a proxy.
dhcp-pxe-vendor=PXEClient,HTTPClient
"""
# A proxy sends the boot file only in a header field. The field has 128 bytes, including a final zero (RFC 2131, 2).
LONGEST_PROXY_URL: Final = 127


def render_proxy(decisions: Decisions) -> Iterator[tuple[str, File]]:
    """Yield ``ops/dhcp/dnsmasq-proxy.conf``."""
    architectures = (
        f"dhcp-match=set:gitboot_{client.name},option:client-arch,{number}"
        for client in CLIENTS
        if client.http
        for number in client.types
    )
    comment = "\n# Detect the architecture of firmware that boots by HTTP"
    lines = "\n".join([comment, *architectures, *_render_proxy_loaders(decisions)])
    text = f"{_PROXY_HEADER}{_DETECT_IPXE}{lines}\n{_render_proxy_servers(decisions.hosts)}"
    yield "ops/dhcp/dnsmasq-proxy.conf", File(text.encode(), ContentType.TEXT)


def _render_proxy_loaders(decisions: Decisions) -> Iterator[str]:
    ipxe = Output.IPXE in decisions.outputs
    firmware = "tag:!gitboot_ipxe," if ipxe else ""
    requested = list_requested_loaders(decisions)
    for mirror, comment, site_tag in _list_site_tags(decisions):
        yield comment
        server = f",{mirror.ipv4}" if mirror.ipv4 else ""
        if ipxe:
            yield from _render_proxy_script(f"{site_tag}tag:gitboot_ipxe", mirror.url("boot.ipxe"), server)
        for loader, tag in _list_loader_tags(requested):
            for offer in list_proxy_offers(decisions, loader):
                tags = f"{site_tag}{firmware}{tag}"
                if offer.client.http:
                    yield _render_proxy_boot(f"{tags}tag:gitboot_{offer.client.name}", mirror.loader_url(offer.path))
                else:
                    # The files that firmware loads by TFTP, by the number of the architecture
                    for number in offer.client.types:
                        yield f"pxe-service={tags}{number},gitboot,{offer.path}{server}"


def list_proxy_offers(decisions: Decisions, preferred: Loader | None = None) -> Iterator[LoaderOffer]:
    """Yield the loaders that a proxy can offer. PXELINUX needs option 210, which a proxy does not send."""
    return (offer for offer in list_loader_offers(decisions, preferred) if offer.loader is not Output.PXELINUX)


def list_omitted_proxy_urls(decisions: Decisions) -> list[str]:
    """Return the sorted URLs that are too long for a proxy's response."""
    scripts = {mirror.url("boot.ipxe") for mirror in list_mirrors(decisions) if Output.IPXE in decisions.outputs}
    loaders = {
        mirror.loader_url(offer.path)
        for mirror in list_mirrors(decisions)
        for loader in (None, *list_requested_loaders(decisions))
        for offer in list_proxy_offers(decisions, loader)
        if offer.client.http
    }
    return sorted(url for url in scripts | loaders if len(url) > LONGEST_PROXY_URL)


def _render_proxy_script(tags: str, url: str, server: str) -> Iterator[str]:
    """Yield the lines that name the first script for iPXE.

    iPXE ignores a boot file if the response does not contain a server address (`dhcp_has_pxeopts` in iPXE's
    net/udp/dhcp.c). dnsmasq sends its own address to UEFI clients, but to BIOS clients only if there is a
    ``pxe-service``.
    """
    yield _render_proxy_boot(tags, url, f",{server}" if server else "")
    if not server and len(url) <= LONGEST_PROXY_URL:
        yield f"pxe-service={tags},0,gitboot,{_quote_url(url)}"


def _render_proxy_boot(tags: str, url: str, server: str = "") -> str:
    if len(url) > LONGEST_PROXY_URL:
        return f"# Omitted, because a DHCP proxy can send at most {LONGEST_PROXY_URL} characters: {url}"
    return f"dhcp-boot={tags},{_quote_url(url)}{server}"


@lru_cache(maxsize=1)  # most commits change no interface
def _render_proxy_servers(hosts: tuple[Host, ...]) -> str:
    """Return, for each server, a line that assigns tags to the interfaces of the server.

    dnsmasq also sets the tag ``known`` for these interfaces.
    """
    lines = ["\n# The servers of the fleet. To answer only them, add dhcp-ignore=tag:!known to your configuration\n"]
    for host in hosts:
        if macs := [reservation.mac for reservation in list_reservations([host])]:
            words = [*macs, "set:gitboot_server", *_list_group_tags(host.site, host.loader)]
            lines.append(f"dhcp-host={','.join(words)}\n")
    return "".join(lines)
