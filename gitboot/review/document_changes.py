"""What is published for all machines, or for unknown ones, before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from gitboot.fleet.resources import FleetRepository
from gitboot.jsonio import Digest, digest
from gitboot.model.fleet import Output
from gitboot.resolve.server_decision import Decisions, Host


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedChange:
    """Something that is published for all machines, or for unknown ones."""

    old: Mapping[str, object] | None  # None: there was no commit before
    new: Mapping[str, object]

    @property
    def pair(self) -> tuple[Digest | None, Digest | None]:
        return digest(self.old) if self.old is not None else None, digest(self.new)


def shared_change(
    old: Decisions | None,
    new: Decisions,
    old_repository: FleetRepository | None,
    new_repository: FleetRepository,
    touched: frozenset[str] | None = None,
) -> SharedChange | None:
    """What all machines have in common; None: it is the same. Only ``touched`` servers can differ, where given."""
    return _change(_shared(old, old_repository, new, touched), _shared(new, new_repository, old, touched))


def unknown_change(old: Decisions | None, new: Decisions) -> SharedChange | None:
    """What unknown machines boot; None: the same."""
    return _change(_unknown(old), _unknown(new))


def changes_all_files(shared: SharedChange) -> bool:
    """Whether each server has other files by it; its base URL is part of its decision."""
    deciding = ("outputs", "evidence")
    return shared.old is not None and any(shared.old[name] != shared.new[name] for name in deciding)


def changes_ledger(shared: SharedChange) -> bool:
    """Whether one instance was named that is to act, for all or for a site, and is no more."""
    if (old := shared.old) is None:
        return False
    were, are = (_named(each) for each in (old, shared.new))
    return any(are.get(site) != ledger for site, ledger in were.items())


def _named(shared: Mapping[str, object]) -> dict[str | None, object]:
    """The ledgers that are named, by site; None: for all of them."""
    by_site, for_all = shared.get("ledgers"), shared["ledger"]
    return {**(by_site if isinstance(by_site, dict) else {}), **({None: for_all} if for_all is not None else {})}


def _shared(
    decisions: Decisions | None,
    repository: FleetRepository | None,
    other: Decisions | None,
    touched: frozenset[str] | None,
) -> dict[str, object] | None:
    if decisions is None or repository is None:
        return None
    provisioning = repository.fleet.spec.provisioning
    return {
        "baseURL": decisions.base_url,
        "outputs": sorted(decisions.outputs - {Output.PAGES}),  # which no machine reads
        "evidence": decisions.evidence,
        "monitors": list(map(str, provisioning.monitors)),  # whose fetches prove no installation
        **({"clients": list(map(str, provisioning.clients))} if provisioning.clients else {}),  # whose alone do
        "ledger": provisioning.ledger,  # of the instance that makes them
        **({"ledgers": by_site} if (by_site := _ledgers(repository)) else {}),  # of a site's own instance
        **(_network(decisions, other, touched) if other is not None and decisions.outputs & _OF_HOSTS else {}),
    }


def _ledgers(repository: FleetRepository) -> dict[str, str]:
    return {site.name: site.ledger for site in repository.fleet.spec.sites if site.ledger is not None}


_OF_HOSTS: Final = frozenset({Output.DHCP_DNSMASQ, Output.DHCP_KEA, Output.PXELINUX})  # made of more than decisions


def _network(decisions: Decisions, other: Decisions, touched: frozenset[str] | None) -> dict[str, object]:
    """What DHCP reads: of the servers in both commits only those that differ, so that a rebase changes nothing."""
    hosts, others = decisions.networks, other.networks
    both = sorted(name for name in (hosts if touched is None else touched) if name in hosts and name in others)
    facts = {server: _interfaces(hosts[server]) for server in both}
    return {
        "hosts": {server: facts[server] for server in both if facts[server] != _interfaces(others[server])},
        "sites": dict(decisions.sites),
    }


def _interfaces(host: Host) -> dict[str, object]:
    return {"site": host.site, "interfaces": [asdict(nic) for nic in host.nics]}


def _unknown(decisions: Decisions | None) -> dict[str, object] | None:
    if decisions is None:
        return None
    boots = decisions.unknown
    return {
        "notFound": decisions.unknown_not_found,
        "boots": {arch: boot.facts() for arch, boot in sorted(boots.items())} if boots is not None else None,
    }


def _change(old: dict[str, object] | None, new: dict[str, object] | None) -> SharedChange | None:
    return SharedChange(old=old, new=new) if old != new and new is not None else None
