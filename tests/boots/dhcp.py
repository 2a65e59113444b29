"""DHCP servers: what an operator configures, with what gitboot generated included, or as the pages show it.

A proxy runs beside one of `OTHER_SERVERS`, which knows nothing of boots.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from gitboot.render.boot_files import render_fleet_files
from tests.boots.network import BASE_URLS, BRIDGE, HOST, INTERFACE, PORT, Neighbour, neighbour
from tests.boots.programs import program, running
from tests.helpers.documentation import find_code_block, require_inline_code
from tests.helpers.endpoints import eventually
from tests.helpers.fleets import decided, fleet, image, policy, profile, server

PAGE: Final = "docs/how-to/dhcp.md"
_GENERATED: Final = "/srv/gitboot/ops/dhcp"  # where the page expects what gitboot generates

NO_MACS: Final[Mapping[str, str]] = MappingProxyType({})
_NO_IPV6: Final = "AdvDefaultLifetime 0;"  # for a router without IPv6


class Dhcp(Protocol):
    """A DHCP server with the files in ``generated``; ``unknown`` maps MAC addresses of unknown machines to sites."""

    def __call__(
        self, generated: Path, folder: Path, unknown: Mapping[str, str] = NO_MACS
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
def _dnsmasq(version: int, generated: Path, folder: Path, unknown: Mapping[str, str] = NO_MACS) -> Iterator[None]:
    lines = (
        *(f"interface={BRIDGE}", "bind-dynamic", "port=0", "no-ping", "dhcp-authoritative"),
        *_RANGES[version],
        *_sites(unknown),
        find_code_block(PAGE, "conf-file=").strip().replace(_GENERATED, str(generated)),
    )
    with _running_dnsmasq("dhcp", folder, lines):
        yield


def _sites(unknown: Mapping[str, str], *, kea: bool = False) -> list[str]:
    """Return the page's line for each machine: of dnsmasq, or of the reservations of Kea."""
    of_dnsmasq, of_kea = find_code_block(PAGE, "dhcp-host=").splitlines()
    shown = of_kea if kea else of_dnsmasq
    assert "52:54:00:aa:bb:cc" in shown and "fra1" in shown
    return [shown.replace("52:54:00:aa:bb:cc", mac).replace("fra1", site) for mac, site in unknown.items()]


@contextmanager
def _running_dnsmasq(name: str, folder: Path, lines: Iterable[str], on: Neighbour | None = None) -> Iterator[None]:
    configuration, log = folder / f"{name}.conf", folder / f"{name}.log"
    own = ("except-interface=lo", "user=root", "pid-file=", "log-dhcp", f"log-facility={log}")
    configuration.write_text("\n".join((*own, f"dhcp-leasefile={folder}/{name}.leases", *lines)) + "\n")
    command = [program("dnsmasq"), "--keep-in-foreground", f"--conf-file={configuration}"]
    with running(command if on is None else on.command(*command)):
        assert eventually(lambda: log.exists() and "started" in log.read_text())
        yield


@contextmanager
def _dnsmasq4(generated: Path, folder: Path, unknown: Mapping[str, str] = NO_MACS) -> Iterator[None]:
    with _dnsmasq(4, generated, folder, unknown), _router(folder, _NO_IPV6):
        yield


dnsmasq: Final[Dhcp] = _dnsmasq4
dnsmasq6: Final[Dhcp] = partial(_dnsmasq, 6)


# Kea

_MATCHING: Final = require_inline_code(PAGE, '"match-client-id": false')
_OWN: Final = {
    4: f'{_MATCHING}, "interfaces-config": {{"interfaces": ["{BRIDGE}/{HOST}"]}},'
    '"subnet4": [{"subnet": "192.0.2.0/24", "pools": [{"pool": "192.0.2.100 - 192.0.2.199"}]}]',
    6: f'"interfaces-config": {{"interfaces": ["{BRIDGE}"]}}, "subnet6": [{{"subnet": "2001:db8::/64",'
    f'"interface": "{BRIDGE}", "pools": [{{"pool": "2001:db8::100 - 2001:db8::1ff"}}]}}]',
}


@contextmanager
def _kea(version: int, generated: Path, folder: Path, unknown: Mapping[str, str] = NO_MACS) -> Iterator[None]:
    configuration, log = folder / "kea.json", folder / "kea.log"
    logger = f'{{"name": "kea-dhcp{version}", "severity": "INFO", "output_options": [{{"output": "{log}"}}]}}'
    identity = f'"data-directory": "{folder}", ' if version == 6 else ""  # it keeps its DUID there
    own = f'{identity}{_OWN[version]}, "lease-database": {{"type": "memfile", "persist": false}}, "loggers": [{logger}]'
    known = "".join(_sites(unknown, kea=True))
    configuration.write_text(
        _fill_in_page_block(version, generated, {"…": own, '"reservations": [': f'"reservations": [{known}'})
    )
    command = [program(f"kea-dhcp{version}"), "-c", str(configuration)]
    with running(command, {"KEA_PIDFILE_DIR": str(folder), "KEA_LOCKFILE_DIR": str(folder)}):
        assert eventually(lambda: log.exists() and f"DHCP{version}_STARTED" in log.read_text())
        yield


def _fill_in_page_block(version: int, generated: Path, own: Mapping[str, str]) -> str:
    """The page's block, for this version, with what is an operator's own in it."""
    block = find_code_block(PAGE, '{"Dhcp4": {\n    "client-classes"')
    for shown, ours in {_GENERATED: str(generated), **own}.items():
        assert shown in block
        block = block.replace(shown, ours)
    return re.sub(r"(?i)(?<=dhcp)4", str(version), block)


@contextmanager
def _kea4(generated: Path, folder: Path, unknown: Mapping[str, str] = NO_MACS) -> Iterator[None]:
    with _kea(4, generated, folder, unknown), _router(folder, _NO_IPV6):
        yield


@contextmanager
def _kea6(generated: Path, folder: Path, unknown: Mapping[str, str] = NO_MACS) -> Iterator[None]:
    """Kea, and a router that sends the network's machines to it."""
    prefix = f"{require_inline_code(PAGE, 'AdvManagedFlag on')}; prefix 2001:db8::/64 {{ }};"
    with _kea(6, generated, folder, unknown), _router(folder, prefix):
        yield


kea: Final[Dhcp] = _kea4
kea6: Final[Dhcp] = _kea6


# dnsmasq as a proxy, beside a DHCP server that knows nothing of boots

OTHER_ADDRESS: Final = "192.0.2.9"  # the address of that server


def proxy_beside(other: str, *more: str) -> Dhcp:
    """Return the documented proxy, with ``more`` lines, beside one of `OTHER_SERVERS`."""

    @contextmanager
    def both(generated: Path, folder: Path, unknown: Mapping[str, str] = NO_MACS) -> Iterator[None]:
        with (
            neighbour("other", OTHER_ADDRESS) as host,
            OTHER_SERVERS[other](host, folder),
            _router(folder, _NO_IPV6),
            _run_proxy(generated, folder, unknown, more),
        ):
            yield

    return both


@contextmanager
def _run_proxy(generated: Path, folder: Path, unknown: Mapping[str, str], more: tuple[str, ...]) -> Iterator[None]:
    block = find_code_block(PAGE, "# /etc/dnsmasq.d/gitboot.conf")
    own = {"interface=eth0": f"interface={BRIDGE}", "/srv/tftp": f"{folder}/tftp", _GENERATED: str(generated)}
    for shown, ours in own.items():
        assert shown in block
        block = block.replace(shown, ours)
    lines = (*block.splitlines(), *_sites(unknown), *more)
    with _running_dnsmasq("proxy", folder, lines):
        yield


@contextmanager
def _plain_dnsmasq(host: Neighbour, folder: Path) -> Iterator[None]:
    # It also answers DNS: hosts may be named in a base URL.
    lines = (f"interface={INTERFACE}", "dhcp-authoritative", "no-ping", "no-resolv", "no-hosts", *_RANGES[4])
    with _running_dnsmasq("other", folder, (*lines, f"address=/{HOST_NAME}/{HOST}"), host):
        yield


HOST_NAME: Final = "boot.test"  # the name of `HOST` to clients of the plain dnsmasq


def write_generated(folder: Path, output: str = "dhcp-proxy", base_url: str = BASE_URLS["gitboot"]) -> Path:
    """Write the configuration of DHCP servers for a fleet with one server at a site, which has another loader."""
    sites = f"[{{name: nginx, select: {{matchLabels: {{role: far}}}}, baseURL: '{BASE_URLS['nginx']}'}}]"
    spec = f"baseURL: '{base_url}', sites: {sites}, outputs: [ipxe, grub, {output}]"
    servers = (server("known", "role: near"), server("far", "role: far", "loader: GRUB"))
    decisions = decided(fleet(spec), image("web-1"), profile("web", "web-1"), policy("web", "All"), *servers)
    for path, file in render_fleet_files(decisions).items():
        if path.startswith("ops/dhcp/"):
            (folder / Path(path).name).write_bytes(file.content)
    return folder


@contextmanager
def _run_proxy_with_host_name(generated: Path, folder: Path, unknown: Mapping[str, str] = NO_MACS) -> Iterator[None]:
    own = folder / "named"
    own.mkdir()
    write_generated(own, base_url=f"http://{HOST_NAME}:{PORT}")
    with proxy_beside("dnsmasq")(own, folder, unknown):
        yield


proxy_at_a_name: Final[Dhcp] = _run_proxy_with_host_name


@contextmanager
def _plain_kea(host: Neighbour, folder: Path) -> Iterator[None]:
    subnet = '{"subnet": "192.0.2.0/24", "pools": [{"pool": "192.0.2.100 - 192.0.2.199"}]}'
    own = f'"interfaces-config": {{"interfaces": ["{INTERFACE}"]}}, "subnet4": [{subnet}]'
    with _running_kea(f'{{"Dhcp4": {{{own}, {_FOR_TESTS}}}}}', folder, host):
        yield


_FOR_TESTS: Final = '"lease-database": {"type": "memfile", "persist": false}'


@contextmanager
def _running_kea(text: str, folder: Path, on: Neighbour | None = None) -> Iterator[None]:
    """Run kea-dhcp4, which writes its log to the standard output."""
    configuration, log = folder / "kea.json", folder / "kea.log"
    logger = f'{{"name": "kea-dhcp4", "severity": "INFO", "output_options": [{{"output": "{log}"}}]}}'
    configuration.write_text(text.replace(_FOR_TESTS, f'{_FOR_TESTS}, "loggers": [{logger}]'))
    command = [program("kea-dhcp4"), "-c", str(configuration)]
    environment = {"KEA_PIDFILE_DIR": str(folder), "KEA_LOCKFILE_DIR": str(folder)}
    with running(command if on is None else on.command(*command), environment):
        assert eventually(lambda: log.exists() and "DHCP4_STARTED" in log.read_text())
        yield


@contextmanager
def _plain_dhcpd(host: Neighbour, folder: Path) -> Iterator[None]:
    with _running_dhcpd("subnet 192.0.2.0 netmask 255.255.255.0 { range 192.0.2.100 192.0.2.199; }", folder, host):
        yield


@contextmanager
def _running_dhcpd(text: str, folder: Path, on: Neighbour | None = None) -> Iterator[None]:
    configuration, leases, log = folder / "dhcpd.conf", folder / "dhcpd.leases", folder / "dhcpd.log"
    configuration.write_text(f"authoritative;\n{text}\n")
    leases.touch()
    files = ("-cf", str(configuration), "-lf", str(leases), "--no-pid")
    command = [program("dhcpd"), "-4", "-d", *files, BRIDGE if on is None else INTERFACE]
    command = ["sh", "-c", f'exec "$@" 2>{log}', "dhcpd", *command]
    with running(command if on is None else on.command(*command)):
        assert eventually(lambda: log.exists() and "Server starting service." in log.read_text())
        yield


OTHER_SERVERS: Final[Mapping[str, Callable[[Neighbour, Path], AbstractContextManager[None]]]] = {
    "dnsmasq": _plain_dnsmasq,
    "Kea": _plain_kea,
    "ISC-dhcpd": _plain_dhcpd,
}


# The snippets of docs/how-to/dhcp.md, without anything that gitboot generated


@contextmanager
def _run_documented_dhcpd(generated: Path, folder: Path, unknown: Mapping[str, str] = NO_MACS) -> Iterator[None]:
    with _running_dhcpd(find_code_block(PAGE, "# /etc/dhcp/dhcpd.conf"), folder), _router(folder, _NO_IPV6):
        yield


@contextmanager
def _run_documented_kea(generated: Path, folder: Path, unknown: Mapping[str, str] = NO_MACS) -> Iterator[None]:
    text = find_code_block(PAGE, '{"Dhcp4": {\n    "interfaces-config"')
    own = {
        '"interfaces": ["eth0"]': f'"interfaces": ["{BRIDGE}/{HOST}"]',
        '"lease-database": {"type": "memfile"}': _FOR_TESTS,
    }
    for shown, ours in own.items():
        assert shown in text
        text = text.replace(shown, ours)
    with _running_kea(text, folder), _router(folder, _NO_IPV6):
        yield


@contextmanager
def _one_boot_file(generated: Path, folder: Path, unknown: Mapping[str, str] = NO_MACS) -> Iterator[None]:
    """Send the boot file that the page names for a server with only one."""
    lines = (f"interface={BRIDGE}", "bind-dynamic", "port=0", "no-ping", "dhcp-authoritative", *_RANGES[4])
    file = require_inline_code(PAGE, "loaders/grub-x86_64.efi")
    with _running_dnsmasq("dhcp", folder, (*lines, f"dhcp-boot={file},,{HOST}")):
        yield


DOCUMENTED_SERVERS: Final[Mapping[str, Dhcp]] = {"ISC-dhcpd": _run_documented_dhcpd, "Kea": _run_documented_kea}
one_boot_file: Final[Dhcp] = _one_boot_file


# IPv4 that leads nowhere

_UNREACHABLE_URL: Final = f"http://{HOST}:9/"  # discard; no server listens


def reject_ipv4(dhcp: Dhcp) -> Dhcp:
    """Return this IPv6 server beside an IPv4 that has an address and a URL for UEFI HTTP boot, but none for iPXE.

    The URL is rejected, and firmware continues with IPv6. Without an IPv4 response firmware waits a minute and uses a
    whole processor.
    """

    @contextmanager
    def both(generated: Path, folder: Path, unknown: Mapping[str, str] = NO_MACS) -> Iterator[None]:
        with dhcp(generated, folder, unknown), _run_unreachable_boot(folder):
            yield

    return both


@contextmanager
def _run_unreachable_boot(folder: Path) -> Iterator[None]:
    lines = (
        *(f"interface={BRIDGE}", "bind-dynamic", "port=0", "no-ping"),
        *("dhcp-vendorclass=set:firmware,HTTPClient", "dhcp-range=tag:firmware,192.0.2.200,192.0.2.209,1h"),
        *("dhcp-option-force=tag:firmware,60,HTTPClient", f"dhcp-boot=tag:firmware,{_UNREACHABLE_URL}"),
    )
    with _running_dnsmasq("nowhere", folder, lines):
        yield
