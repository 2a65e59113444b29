"""On which terms an endpoint gives boots: whose fetches count, and who may give; ``ops/serving.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import TYPE_CHECKING, Final

from gitboot.jsonio import canonical
from gitboot.render.paths import ContentType
from gitboot.render.tree import File

if TYPE_CHECKING:
    from gitboot.model.fleet import Provisioning

TERMS: Final = "ops/serving.json"
FORMAT: Final = 1

Networks = tuple[IPv4Network | IPv6Network, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Terms:
    """What holds for every boot that an endpoint gives."""

    clients: Networks = ()  # from where machines boot; (): from anywhere
    monitors: Networks = ()  # whose fetches never count
    giver: str | None = None  # the spool by which what is made once may be given; None: nobody may
    forgotten: int = 0  # how often that spool had forgotten something, all of which this tree knows
    sends_on: bool = False  # whether who may not give it sends every machine on to who may
    prepared: bool = False  # for a host that is yet to act: nobody is answered from it


def terms_of(
    provisioning: Provisioning, giver: str | None, *, endpoint: str | None = None, forgotten: int = 0
) -> Terms:
    """The terms of a Fleet that names an ``endpoint``, whose instance takes in the spool of this identity."""
    return Terms(
        clients=tuple(map(ip_network, provisioning.clients)),
        monitors=tuple(map(ip_network, provisioning.monitors)),
        giver=giver,
        forgotten=forgotten,
        sends_on=endpoint is not None,
    )


def render(terms: Terms) -> dict[str, File]:
    """The file, by its path."""
    facts = {
        "format": FORMAT,
        "clients": list(map(str, terms.clients)),
        "monitors": list(map(str, terms.monitors)),
        "giver": terms.giver,
        "forgotten": terms.forgotten,
        "sendsOn": terms.sends_on,
        **({"prepared": True} if terms.prepared else {}),
    }
    return {TERMS: File(canonical(facts) + b"\n", ContentType.JSON)}


def parse(data: bytes) -> Terms:
    """What ``render`` wrote; ValueError for anything else, another format's included."""
    match json.loads(data):
        case {
            "format": 1,
            "clients": list(clients),
            "monitors": list(monitors),
            "giver": str() | None as giver,
            **more,
        }:
            return Terms(
                clients=tuple(map(ip_network, clients)),
                monitors=tuple(map(ip_network, monitors)),
                giver=giver,
                forgotten=forgotten if isinstance(forgotten := more.get("forgotten"), int) else 0,
                sends_on=more.get("sendsOn") is True,
                prepared=more.get("prepared") is True,
            )
    raise ValueError(f"not the terms of format {FORMAT} by which boots are given")
