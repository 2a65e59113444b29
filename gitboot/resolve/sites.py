"""At which site a server is, and whose endpoint and mirror that makes near."""

from __future__ import annotations

from gitboot.fleet.resources import FleetRepository
from gitboot.model.fleet import Site
from gitboot.model.server import Server
from gitboot.resolve.selection import Selecting


def site_of(repository: FleetRepository, server: Server) -> Site | None:
    """The first site that selects ``server``."""
    return next(iter(sites(repository).of(server)), None)


def sites_of(repository: FleetRepository) -> dict[str, Site]:
    """The site of each server that is at one."""
    selection = sites(repository)
    found = {name: selection.of(server) for name, server in repository.servers.items()}
    return {name: selected[0] for name, selected in found.items() if selected}


def sites(repository: FleetRepository) -> Selecting[Site]:
    """The sites that select servers, the first of which is a server's own."""
    return Selecting((site, site.select) for site in repository.fleet.spec.sites)
