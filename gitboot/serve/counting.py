"""Whose fetch of a boot counts: a machine's, not a person's, a monitor's or this host's own."""

from __future__ import annotations

import re
import socket
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

from gitboot.render.paths import Role
from gitboot.render.terms import Terms
from gitboot.serve.clients import LOOPBACK, membership
from gitboot.serve.tree import PublishedTree

# As they name themselves in User-Agent, from its beginning.
_LOADERS: Final = re.compile(r"(?:iPXE|gPXE|GRUB|UefiHttpBoot|Syslinux|PXELINUX|U-Boot|petitboot)\b", re.IGNORECASE)
_SYSTEMS: Final = re.compile("Ignition/|Cloud-Init/|Go-http-client/")  # the last is Talos
_TOOLS: Final = re.compile(
    r"(?:curl|Wget|aria2|HTTPie|xh|Mozilla|Opera|Lynx|Links|w3m|ELinks|Safari|python-|Python|aiohttp|okhttp|Java|"
    r"Go-http-client|libwww|lwp-|Ruby|Faraday|axios|node|undici|PostmanRuntime|insomnia|ApacheBench|hey|k6|wrk|"
    r"Prometheus|Blackbox|kube-probe|check_http|Nagios|Icinga|Zabbix|Datadog|UptimeRobot|Pingdom|StatusCake|"
    r"HAProxy|ELB-HealthChecker|GoogleHC|Consul|Telegraf|Monit|Amazon|Googlebot|bingbot|\S*(?:bot|crawler|spider))",
    re.IGNORECASE,
)


class Census:
    """Tells by the terms of a tree, as they are published at present, whose fetches count."""

    def __init__(self, tree: PublishedTree) -> None:
        self._tree = tree
        self._read(tree.terms)

    def _read(self, terms: Terms) -> None:
        self._terms, self._is_monitor, self._boots = terms, membership(terms.monitors), membership(terms.clients)

    def may_boot(self, client: str | None, agent: str) -> bool:
        """Return whether user data that is asked for by a UUID, before any boot, may be of the machine's own system."""
        return bool(_SYSTEMS.match(agent)) or self.why_not(client, agent, Role.ENTRY) is None

    def why_not(self, client: str | None, agent: str, role: Role) -> str | None:
        """Return why a fetch does not count; None: it counts."""
        if self._terms != self._tree.terms:
            self._read(self._tree.terms)
        if self._is_monitor(client):
            return f"{client} lies in provisioning.monitors"
        if self._terms.clients:
            return None if self._boots(client) else f"{client} does not lie in provisioning.clients"
        if role is not Role.ENTRY or _LOADERS.match(agent):
            return None
        if _TOOLS.match(agent):
            return f"{agent.split()[0][:40]} is no boot loader"
        if client is None or _is_own(client):
            return f"{client or 'who asks'} is this host itself, and no boot loader"
        return None


_is_loopback: Final = membership(LOOPBACK)


@lru_cache(maxsize=4096)
def _is_own(client: str) -> bool:
    """Whether an address is one of this host's: only those can be bound to."""
    if _is_loopback(client):
        return True
    address = ip_address(client)
    if address.is_unspecified:
        return False
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as tried:
        try:
            tried.bind((client, 0))
        except OSError:
            return False
    return True
