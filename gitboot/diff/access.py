"""Changes of who may fetch: networks whose fetches count, servers with a boot script, one-time boots in copies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import Final, NamedTuple

from gitboot.model.fleet import FleetSpec, OneTimeBoots

ONE_TIME_BOOTS: Final = "spec.serving.oneTimeBoots"


class AccessChange(NamedTuple):
    """A setting of the Fleet that says who may fetch, before and after."""

    field: str  # spec.provisioning.clients
    old: list[str] | bool | str
    new: list[str] | bool | str
    widens: bool  # whether somebody may fetch who could not, or a fetch counts that did not


def access_changes(old: FleetSpec, new: FleetSpec) -> tuple[AccessChange, ...]:
    """Return each setting of who may fetch that differs between two Fleets, by its field."""
    return tuple(_changes(old, new))


def _changes(old: FleetSpec, new: FleetSpec) -> Iterator[AccessChange]:
    before, after = old.provisioning, new.provisioning
    if sorted(map(str, before.clients)) != sorted(map(str, after.clients)):
        # No network means every client.
        widens = bool(before.clients) and (not after.clients or not _covers(before.clients, after.clients))
        yield _networks("clients", before.clients, after.clients, widens=widens)
    if sorted(map(str, before.monitors)) != sorted(map(str, after.monitors)):
        # The fetches of a network that leaves this list begin to count.
        widens = not _covers(after.monitors, before.monitors)
        yield _networks("monitors", before.monitors, after.monitors, widens=widens)
    if old.serving.restrict is not new.serving.restrict:
        yield AccessChange("spec.serving.restrict", old.serving.restrict, new.serving.restrict, old.serving.restrict)
    if (boots := new.serving.one_time_boots) is not old.serving.one_time_boots:
        # Every client can fetch an install boot from a copy, again and again.
        widens = boots is OneTimeBoots.COPIES
        yield AccessChange(ONE_TIME_BOOTS, str(old.serving.one_time_boots), str(boots), widens)


def _networks(name: str, old: Iterable[object], new: Iterable[object], *, widens: bool) -> AccessChange:
    return AccessChange(f"spec.provisioning.{name}", sorted(map(str, old)), sorted(map(str, new)), widens)


def _covers(networks: Iterable[object], others: Iterable[object]) -> bool:
    """Whether every address of ``others`` lies in one of ``networks``."""
    whole = _collapsed(networks)
    return all(any(_contains(one, other) for one in whole) for other in _collapsed(others))


def _collapsed(networks: Iterable[object]) -> list[IPv4Network | IPv6Network]:
    found = [ip_network(str(each)) for each in networks]
    ipv4 = collapse_addresses([each for each in found if isinstance(each, IPv4Network)])
    ipv6 = collapse_addresses([each for each in found if isinstance(each, IPv6Network)])
    return [*ipv4, *ipv6]


def _contains(one: IPv4Network | IPv6Network, other: IPv4Network | IPv6Network) -> bool:
    if isinstance(one, IPv4Network):
        return isinstance(other, IPv4Network) and other.subnet_of(one)
    return isinstance(other, IPv6Network) and other.subnet_of(one)
