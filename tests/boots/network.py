"""A network of its own, without any other: a bridge that machines and servers are on, other hosts on it, TFTP."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.boots.programs import program, running
from tests.helpers.endpoints import eventually
from tests.helpers.fleets import make_mac

BRIDGE: Final = "br0"
INTERFACE: Final = "eth0"  # of a neighbour
TAPS: Final = ("tap0", "tap1")
HOST, NGINX, CADDY = "192.0.2.1", "192.0.2.2", "192.0.2.3"
HOST_V6, NGINX_V6, CADDY_V6 = "2001:db8::1", "2001:db8::2", "2001:db8::3"

PORT: Final = 8080  # of gitboot itself

# The servers of machines: gitboot, or a mirror, which is the site of its servers.
BASE_URLS: Final = {
    "gitboot": f"http://{HOST}:{PORT}",
    "nginx": f"http://{NGINX}",
    "Caddy": f"http://{CADDY}",
    "gitboot-IPv6": f"http://[{HOST_V6}]:{PORT}",
    "nginx-IPv6": f"http://[{NGINX_V6}]",
    "Caddy-IPv6": f"http://[{CADDY_V6}]",
}


_CLONE_NEWNET: Final = 0x40000000  # sched.h; os.unshare and os.setns come with Python 3.12
_LINKS: Final = (
    "link set lo up",
    f"link add {BRIDGE} type bridge",
    f"link set {BRIDGE} addrgenmode none up",
    "link add port0 type veth peer name port1",  # a cable, without which the bridge is down while all machines are off
    "link set port1 addrgenmode none up",
    f"link set port0 master {BRIDGE} addrgenmode none up",
    *(f"addr add {address}/24 dev {BRIDGE}" for address in (HOST, NGINX, CADDY)),
    *(f"addr add {address}/64 dev {BRIDGE} nodad" for address in (HOST_V6, NGINX_V6, CADDY_V6, "fe80::1")),
    *(f"tuntap add dev {tap} mode tap" for tap in TAPS),
    *(f"link set {tap} master {BRIDGE} addrgenmode none up" for tap in TAPS),
)


def uses_ipv6(by: str) -> bool:
    return by.endswith("-IPv6")


@contextmanager
def new_network() -> Iterator[None]:
    """Move this thread, and all that it starts, to a network namespace; and back."""
    if os.geteuid() != 0:
        pytest.fail("a network of its own needs root; `unshare --map-root-user make test-boot` will do")
    libc = ctypes.CDLL(None, use_errno=True)
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check_result(libc.unshare(_CLONE_NEWNET))
        for link in _LINKS:
            subprocess.run([program("ip"), *link.split()], check=True)
        yield
    finally:
        _check_result(libc.setns(before, _CLONE_NEWNET))
        os.close(before)


@dataclass(frozen=True, kw_only=True, slots=True)
class Neighbour:
    """Another host on the bridge, with a network namespace of its own."""

    process: int

    @property
    def namespace(self) -> str:
        return f"/proc/{self.process}/ns/net"

    def command(self, *command: str) -> list[str]:
        """Return the command that runs this command on the host."""
        return [program("nsenter"), f"--net={self.namespace}", "--", *command]

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Move this thread to the host. A socket stays where it was made."""
        with _enter_namespace(self.namespace):
            yield


@contextmanager
def neighbour(name: str, address: str) -> Iterator[Neighbour]:
    """Yield a host with this address on its only card, `INTERFACE`; ``name`` is the port of the bridge."""
    own = os.readlink("/proc/thread-self/ns/net")
    with running([program("unshare"), "--net", program("sleep"), "infinity"]) as process:
        host = Neighbour(process=process.pid)
        assert eventually(lambda: os.readlink(host.namespace) != own)
        try:
            for link in (
                # Always the same address, because the hosts of the network remember it for a while.
                f"link add {name} type veth peer name {INTERFACE} address {make_mac(name)} netns {process.pid}",
                f"link set {name} master {BRIDGE} addrgenmode none up",
            ):
                subprocess.run([program("ip"), *link.split()], check=True)
            for link in (
                "link set lo up",
                f"link set {INTERFACE} addrgenmode none up",
                f"addr add {address}/24 dev {INTERFACE}",
            ):
                subprocess.run(host.command(program("ip"), *link.split()), check=True)
            yield host
        finally:
            subprocess.run([program("ip"), "link", "delete", name], check=False)


@contextmanager
def _enter_namespace(namespace: str) -> Iterator[None]:
    libc = ctypes.CDLL(None, use_errno=True)
    before, there = (os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in ("/proc/thread-self/ns/net", namespace))
    try:
        _check_result(libc.setns(there, _CLONE_NEWNET))
        yield
    finally:
        _check_result(libc.setns(before, _CLONE_NEWNET))
        os.close(there)
        os.close(before)


def _check_result(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@contextmanager
def tftp(root: Path, address: str) -> Iterator[None]:
    """A TFTP server."""
    log = root / "tftp.log"
    options = (
        "port=0",
        "pid-file=",
        f"log-facility={log}",
        "enable-tftp",
        f"tftp-root={root}",
        f"listen-address={address}",
        "bind-interfaces",
    )
    command = ["--keep-in-foreground", "--conf-file=/dev/null", "--user=root", *(f"--{option}" for option in options)]
    with running([program("dnsmasq"), *command]):
        assert eventually(lambda: log.exists() and "started" in log.read_text())
        yield
