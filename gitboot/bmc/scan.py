"""Looking for Redfish services in networks: who answers, and what machines are behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from ipaddress import ip_network
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from gitboot.bmc.inventory import FoundServer, found_server
from gitboot.bmc.redfish.resources import manager_path
from gitboot.errors import BmcRejected, BmcUnreachable, OperatorError, TryAgain, UsageError

if TYPE_CHECKING:
    from gitboot.bmc.redfish.client import BmcConnection
    from gitboot.bmc.redfish.resources import Resource

MOST_ADDRESSES: Final = 4096
_ROOT: Final = "/redfish/v1/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """What came of one address; neither machines nor why not: no Redfish service answers there."""

    address: str
    found: tuple[FoundServer, ...] = ()
    why_not: str | None = None  # why what answers could not be read


def addresses(places: Sequence[str], ports: Sequence[int]) -> tuple[str, ...]:
    """The base URLs that networks, addresses, host names and URLs mean, each once, in their order.

    Raises `UsageError` for what is none of these, and for more than ``MOST_ADDRESSES``.
    """
    found: dict[str, None] = {}
    for place in places:
        for host in _hosts(place):
            if "://" in host:
                found[host.rstrip("/")] = None
                continue
            for port in ports:
                found[f"https://{host}" if port == 443 else f"https://{host}:{port}"] = None
        if len(found) > MOST_ADDRESSES:
            raise _too_many(place, len(found))
    return tuple(found)


def _hosts(place: str) -> Iterable[str]:
    if "://" in place:
        parts = urlsplit(place)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
            raise UsageError(f"{place!r} is no address of a BMC: write https://10.112.0.13 or https://10.112.0.13:8443")
        return [place]
    try:
        network = ip_network(place, strict=False)
    except ValueError:
        if not all(part and part.replace("-", "").isalnum() for part in place.rstrip(".").split(".")) or "/" in place:
            raise UsageError(
                f"{place!r} is no network, address or host name: write 10.112.0.0/24, 10.112.0.13 or bmc7.example.net"
            ) from None
        return [place]
    if network.num_addresses > 2 * MOST_ADDRESSES:
        raise _too_many(place, network.num_addresses)
    return (str(each) if network.version == 4 else f"[{each}]" for each in network.hosts())


def _too_many(place: str, number: int) -> UsageError:
    return UsageError(
        f"{place} makes {number:,} addresses; at most {MOST_ADDRESSES:,} at a time: name smaller networks"
    )


def scan(
    places: Sequence[str], connect: Callable[[str], BmcConnection], *, parallel: int, each: Callable[[], None]
) -> Iterator[Probe]:
    """Look at all addresses, so many at a time, and tell of each as it is known; ``each`` is called after each."""
    with ThreadPoolExecutor(parallel, thread_name_prefix="scan") as pool:
        for future in as_completed([pool.submit(_look, address, connect) for address in places]):
            each()
            yield future.result()


def _look(address: str, connect: Callable[[str], BmcConnection]) -> Probe:
    try:
        with connect(address) as bmc, bmc.reach.watched():
            if not _answers(bmc):
                return Probe(address=address)
            return Probe(address=address, found=tuple(_machines(address, bmc)))
    except (OperatorError, TryAgain) as error:
        return Probe(address=address, why_not=str(error))


def _answers(bmc: BmcConnection) -> bool:
    from gitboot.bmc.redfish.client import is_redfish

    try:
        return is_redfish(bmc)
    except BmcUnreachable:  # nobody is there, or somebody who speaks another language
        return False


def _machines(address: str, bmc: BmcConnection) -> Iterator[FoundServer]:
    systems = bmc.read(bmc.read(_ROOT).link("Systems") or f"{_ROOT}Systems").members
    for path in systems:
        system = bmc.read(path)
        yield found_server(
            address,
            system,
            alone=len(systems) == 1,
            nics=_all(bmc, system.link("EthernetInterfaces")),
            manager=_perhaps(bmc, manager_path(system.body)),
            processor=next(_all(bmc, system.link("Processors")), None),
        )


def _all(bmc: BmcConnection, collection: str | None) -> Iterator[Resource]:
    found = _perhaps(bmc, collection)
    for path in found.members if found is not None else ():
        if (member := _perhaps(bmc, path)) is not None:
            yield member


def _perhaps(bmc: BmcConnection, path: str | None) -> Resource | None:
    """A resource that not every BMC has, or shows to every role."""
    if path is None:
        return None
    try:
        return bmc.read(path)
    except BmcRejected:
        return None
