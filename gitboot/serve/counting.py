"""Whose fetch of a boot counts: a machine's, not a person's, a monitor's or this host's own."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Final

from gitboot.observe.agents import has_identity, is_check, is_loader, is_system, is_tool
from gitboot.render.paths import Role
from gitboot.render.terms import Terms
from gitboot.serve.clients import LOOPBACK, membership
from gitboot.serve.tree import PublishedTree


class Census:
    """Tells by the terms of a tree, as they are published at present, whose fetches count."""

    def __init__(self, tree: PublishedTree) -> None:
        self._tree = tree
        self._read(tree.terms)

    def _read(self, terms: Terms) -> None:
        self._terms, self._is_monitor, self._boots = terms, membership(terms.monitors), membership(terms.clients)

    def may_boot(self, client: str | None, agent: str, query: Mapping[str, str]) -> bool:
        """Return whether user data that is asked for by a UUID, before any boot, may be of the machine's own system."""
        if is_check(agent, query):
            return False
        return is_system(agent) or (self._why_not(client) or self._why_not_a_machine(client, agent)) is None

    def why_not(self, client: str | None, agent: str, query: Mapping[str, str], role: Role) -> str | None:
        """Return why a fetch does not count; None: it counts."""
        if is_check(agent, query):
            return "it is a check by gitboot"
        if (why := self._why_not(client)) is not None or role is not Role.ENTRY:
            return why
        if self._terms.clients or is_loader(agent):
            return None
        if (why := self._why_not_a_machine(client, agent)) is not None or has_identity(query):
            return why
        return f"{agent[:40] or 'who asks'} does not say that it is a boot loader, and sends no UUID and serial number"

    def _why_not(self, client: str | None) -> str | None:
        """Return why no fetch by this address counts."""
        if self._terms != self._tree.terms:
            self._read(self._tree.terms)
        if self._is_monitor(client):
            return f"{client} lies in provisioning.monitors"
        if self._terms.clients and not self._boots(client):
            return f"{client} does not lie in provisioning.clients"
        return None

    def _why_not_a_machine(self, client: str | None, agent: str) -> str | None:
        """Return why a request is no machine's. Each client counts as a machine if the Fleet names clients."""
        if self._terms.clients:
            return None
        if is_tool(agent):
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
