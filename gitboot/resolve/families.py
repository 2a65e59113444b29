"""Whether machines that boot by IPv6 would count, where only the fetches of some networks do."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network
from urllib.parse import urlsplit

from gitboot.fleet.resources import FleetRepository, Id
from gitboot.problems.codes import Code, Problem, Severity


def left_out(repository: FleetRepository) -> Iterator[Problem]:
    """A warning where a URL that machines ask is one of IPv6, and no client of IPv6 is named.

    What a name leads to is not part of a commit.
    """
    spec = repository.fleet.spec
    clients = spec.provisioning.clients
    if not clients or any(ip_network(network).version == 6 for network in clients):
        return
    urls = [spec.base_url, spec.endpoint, *(url for site in spec.sites for url in (site.base_url, site.endpoint))]
    if asked := next((url for url in urls if url is not None and ":" in (urlsplit(url).hostname or "")), None):
        yield repository.problem(
            Code.NO_IPV6_CLIENTS,
            f"machines ask {asked}, and no network of IPv6 is among the clients: they would boot their disks",
            Id("Fleet", repository.fleet.metadata.name),
            *("spec", "provisioning", "clients"),
            severity=Severity.WARNING,
        )
