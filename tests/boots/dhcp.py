"""DHCP servers: what an operator configures of their own, with what gitboot generated included."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from tests.boots.network import BRIDGE, HOST
from tests.boots.programs import program, running
from tests.helpers.endpoints import eventually

PAGE: Final = Path(__file__).parents[2] / "docs" / "dhcp.md"

NOBODY: Final[Mapping[str, str]] = MappingProxyType({})
_NO_IPV6: Final = "AdvDefaultLifetime 0;"  # for a router without IPv6


class Dhcp(Protocol):
    """A DHCP server with the files in ``generated``; ``strangers`` maps MAC addresses of unknown machines to sites."""

    def __call__(
        self, generated: Path, folder: Path, strangers: Mapping[str, str] = NOBODY
    ) -> AbstractContextManager[None]: ...


@contextmanager
def _router(folder: Path, advertises: str) -> Iterator[None]:
    """Answer router solicitations. Without an answer, iPXE waits 16 s at each start."""
    configuration = folder / "radvd.conf"
    configuration.write_text(f"interface {BRIDGE} {{ AdvSendAdvert on; {advertises} }};\n")
    command = [program("radvd"), "--nodaemon", f"--config={configuration}", f"--pidfile={folder}/radvd.pid"]
    with running(command):
        yield


# dnsmasq

_RANGES: Final = {
    4: ("dhcp-range=192.0.2.100,192.0.2.199,1h",),
    6: ("dhcp-range=2001:db8::100,2001:db8::1ff,slaac,64,1h", "enable-ra"),
}


@contextmanager
def _dnsmasq(version: int, generated: Path, folder: Path, strangers: Mapping[str, str] = NOBODY) -> Iterator[None]:
    configuration, log = folder / "dhcp.conf", folder / "dhcp.log"
    lines = (
        *(f"interface={BRIDGE}", "except-interface=lo", "bind-dynamic", "port=0", "no-ping", "user=root", "log-dhcp"),
        "pid-file=",  # else all of them share one
        *(f"dhcp-leasefile={folder}/leases", f"log-facility={log}", "dhcp-authoritative"),
        *_RANGES[version],
        *(f"dhcp-host={mac},set:gitboot_site,set:gitboot_site_{site}" for mac, site in strangers.items()),
        f"conf-file={generated}/dnsmasq.conf",
    )
    configuration.write_text("\n".join(lines) + "\n")
    command = [program("dnsmasq"), "--keep-in-foreground", f"--conf-file={configuration}"]
    with running(command):
        assert eventually(lambda: log.exists() and "started" in log.read_text())
        yield


@contextmanager
def _dnsmasq4(generated: Path, folder: Path, strangers: Mapping[str, str] = NOBODY) -> Iterator[None]:
    with _dnsmasq(4, generated, folder, strangers), _router(folder, _NO_IPV6):
        yield


dnsmasq: Final[Dhcp] = _dnsmasq4
dnsmasq6: Final[Dhcp] = partial(_dnsmasq, 6)


# Kea

_BLOCK: Final = re.compile(r'^    \{"Dhcp4": \{\n.*?^    \}\}\n', re.MULTILINE | re.DOTALL)
_OWN: Final = {
    4: f'"match-client-id": false, "interfaces-config": {{"interfaces": ["{BRIDGE}/{HOST}"]}},'
    '"subnet4": [{"subnet": "192.0.2.0/24", "pools": [{"pool": "192.0.2.100 - 192.0.2.199"}]}]',
    6: f'"interfaces-config": {{"interfaces": ["{BRIDGE}"]}}, "subnet6": [{{"subnet": "2001:db8::/64",'
    f'"interface": "{BRIDGE}", "pools": [{{"pool": "2001:db8::100 - 2001:db8::1ff"}}]}}]',
}


@contextmanager
def _kea(version: int, generated: Path, folder: Path, strangers: Mapping[str, str] = NOBODY) -> Iterator[None]:
    configuration, log = folder / "kea.json", folder / "kea.log"
    logger = f'{{"name": "kea-dhcp{version}", "severity": "INFO", "output_options": [{{"output": "{log}"}}]}}'
    identity = f'"data-directory": "{folder}", ' if version == 6 else ""  # it keeps its DUID there
    own = f'{identity}{_OWN[version]}, "lease-database": {{"type": "memfile", "persist": false}}, "loggers": [{logger}]'
    known = "".join(
        f'{{"hw-address": "{mac}", "client-classes": ["gitboot_site_{site}"]}}, ' for mac, site in strangers.items()
    )
    configuration.write_text(
        _documented(version, generated, {"…": own, '"reservations": [': f'"reservations": [{known}'})
    )
    command = [program(f"kea-dhcp{version}"), "-c", str(configuration)]
    with running(command, {"KEA_PIDFILE_DIR": str(folder), "KEA_LOCKFILE_DIR": str(folder)}):
        assert eventually(lambda: log.exists() and f"DHCP{version}_STARTED" in log.read_text())
        yield


def _documented(version: int, generated: Path, own: Mapping[str, str]) -> str:
    """The page's block, for this version, with what is an operator's own in it."""
    [block] = _BLOCK.findall(PAGE.read_text())
    for shown, ours in {"/srv/gitboot/ops/dhcp": str(generated), **own}.items():
        assert shown in block
        block = block.replace(shown, ours)
    return re.sub(r"(?i)(?<=dhcp)4", str(version), block)


@contextmanager
def _kea4(generated: Path, folder: Path, strangers: Mapping[str, str] = NOBODY) -> Iterator[None]:
    with _kea(4, generated, folder, strangers), _router(folder, _NO_IPV6):
        yield


@contextmanager
def _kea6(generated: Path, folder: Path, strangers: Mapping[str, str] = NOBODY) -> Iterator[None]:
    """Kea, and a router that sends the network's machines to it."""
    prefix = "AdvManagedFlag on; prefix 2001:db8::/64 { };"
    with _kea(6, generated, folder, strangers), _router(folder, prefix):
        yield


kea: Final[Dhcp] = _kea4
kea6: Final[Dhcp] = _kea6


# IPv4 that leads nowhere

_NOWHERE: Final = f"http://{HOST}:9/"  # discard; no server listens


def reject_ipv4(dhcp: Dhcp) -> Dhcp:
    """Return this IPv6 server beside an IPv4 that has an address and a URL for UEFI HTTP boot, but none for iPXE.

    The URL is rejected, and firmware continues with IPv6. Without an IPv4 response firmware waits a minute and uses a
    whole processor.
    """

    @contextmanager
    def both(generated: Path, folder: Path, strangers: Mapping[str, str] = NOBODY) -> Iterator[None]:
        with dhcp(generated, folder, strangers), _leading_nowhere(folder):
            yield

    return both


@contextmanager
def _leading_nowhere(folder: Path) -> Iterator[None]:
    configuration, log = folder / "nowhere.conf", folder / "nowhere.log"
    lines = (
        *(f"interface={BRIDGE}", "except-interface=lo", "bind-dynamic", "port=0", "no-ping", "user=root", "pid-file="),
        *(f"dhcp-leasefile={folder}/nowhere.leases", f"log-facility={log}"),
        *("dhcp-vendorclass=set:firmware,HTTPClient", "dhcp-range=tag:firmware,192.0.2.200,192.0.2.209,1h"),
        *("dhcp-option-force=tag:firmware,60,HTTPClient", f"dhcp-boot=tag:firmware,{_NOWHERE}"),
    )
    configuration.write_text("\n".join(lines) + "\n")
    with running([program("dnsmasq"), "--keep-in-foreground", f"--conf-file={configuration}"]):
        assert eventually(lambda: log.exists() and "started" in log.read_text())
        yield
