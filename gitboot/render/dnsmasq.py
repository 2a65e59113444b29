"""dnsmasq: reservations of the whole fleet, and the loader of each kind of machine, by DHCPv4 and DHCPv6.

One file, read by ``conf-file=`` beside an existing configuration, which keeps ranges, interfaces and TFTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Final

from gitboot.model.fleet import Output
from gitboot.model.server import Loader
from gitboot.render.loaders import CLIENTS, LoaderOffer, Mirror, mirrors, offers, wanted
from gitboot.render.paths import ContentType
from gitboot.render.reservations import Reservation, reservations
from gitboot.render.tree import File
from gitboot.resolve.hosts import Host
from gitboot.resolve.server_decision import Decisions

_HEADER: Final = """\
# gitboot: the fleet's reservations and loaders. Read it from dnsmasq's own configuration: conf-file=THIS-FILE
# It names no range, no interface and no TFTP root; the tags that it sets begin with gitboot_.
"""


def shared(decisions: Decisions) -> Iterator[tuple[str, File]]:
    """``ops/dhcp/dnsmasq.conf``."""
    lines = "\n".join([*_kinds(), *_loaders(decisions), "", "# Reservations"])
    text = f"{_HEADER}{lines}\n{_all_reserved(decisions.hosts)}"
    yield "ops/dhcp/dnsmasq.conf", File(text.encode(), ContentType.TEXT)


def _kinds() -> Iterator[str]:
    """Who asks, as tags."""
    yield "\n# iPXE, whichever way it was started: without this it would be given itself again and again"
    yield "dhcp-match=set:gitboot_ipxe,175"
    yield "dhcp-userclass=set:gitboot_ipxe,iPXE"
    yield "\n# Firmware by its architecture: option 93, of DHCPv6 61"
    for client in CLIENTS:
        for number in client.types:
            yield f"dhcp-match=set:gitboot_{client.name},option:client-arch,{number}"
            if client.ipv6:
                yield f"dhcp-match=set:gitboot_{client.name},option6:61,{number >> 8:02x}:{number & 255:02x}"


def _loaders(decisions: Decisions) -> Iterator[str]:
    offered = list(offers(decisions))
    ipxe = Output.IPXE in decisions.outputs
    firmware = "tag:!gitboot_ipxe," if ipxe else ""
    yield from ("", "# UEFI HTTP boot takes an answer only if that says HTTPClient as well")
    for offer in offered:
        if offer.client.http:
            tags = f"{firmware}tag:gitboot_{offer.client.name}"
            yield f"dhcp-option-force={tags},60,HTTPClient"
            if offer.client.ipv6:
                yield f"dhcp-option-force={tags},option6:16,{_VENDOR_CLASS}"
    for mirror in mirrors(decisions):
        yield f"\n# Machines at the site {mirror.site}" if mirror.site else "\n# Machines at no site of their own"
        at = f"tag:gitboot_site_{mirror.site}," if mirror.site else "tag:!gitboot_site," if decisions.sites else ""
        if ipxe:
            script = _quoted(mirror.url("boot.ipxe"))
            yield f"dhcp-boot={at}tag:gitboot_ipxe,{script}"
            yield f"dhcp-option={at}tag:gitboot_ipxe,option6:bootfile-url,{script}"
        for loader, tag in _by_loader(decisions):
            for offer in offers(decisions, loader):
                yield from _offered(offer, mirror, f"{at}{firmware}{tag}tag:gitboot_{offer.client.name}")


def _by_loader(decisions: Decisions) -> Iterator[tuple[Loader | None, str]]:
    """Those who want no loader by name, then those who want each, by their tags."""
    yield None, "tag:!gitboot_loader," if wanted(decisions) else ""
    yield from ((each, f"tag:gitboot_loader_{each.lower()},") for each in wanted(decisions))


# dnsmasq knows no enterprise number in DHCPv6's vendor class (RFC 8415, 21.16): it writes strings, each behind two
# bytes of its length. The first of these two stands where the number is expected, which firmware does not look at.
_VENDOR_CLASS: Final = "ed,HTTPClient"


def _offered(offer: LoaderOffer, mirror: Mirror, tags: str) -> Iterator[str]:
    client, path = offer.client, offer.path
    if client.http:
        yield f"dhcp-boot={tags},{_quoted(mirror.loader_url(path))}"
    else:
        # Where only the host's name is known, dnsmasq names itself as the TFTP server.
        address = mirror.address
        server = f",,{address}" if address is not None and address.version == 4 else ""
        yield f"dhcp-boot={tags},{path}{server}"
    if client.ipv6:
        url = mirror.loader_url(path) if client.http else mirror.tftp_url(path)
        yield f"dhcp-option={tags},option6:bootfile-url,{_quoted(url)}"
    if offer.loader is Output.PXELINUX:
        yield f"dhcp-option-force={tags},210,{_quoted(mirror.url(''))}"


@lru_cache(maxsize=1)  # most commits change no interface
def _all_reserved(hosts: tuple[Host, ...]) -> str:
    return "".join(f"{_reserved(each)}\n" for each in reservations(hosts))


def _reserved(reservation: Reservation) -> str:
    site, loader = reservation.site, reservation.loader
    words = (
        reservation.mac,
        f"set:gitboot_site,set:gitboot_site_{site}" if site else None,
        f"set:gitboot_loader,set:gitboot_loader_{loader.lower()}" if loader else None,
        reservation.ipv4,
        *(f"[{address}]" for address in reservation.ipv6),
        reservation.hostname,
    )
    return "dhcp-host=" + ",".join(word for word in words if word is not None)


def _quoted(url: str) -> str:
    """In double quotes, in which a comma does not end the value; a URL here holds no quote and no backslash."""
    return f'"{url}"'
