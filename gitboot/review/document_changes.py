"""Document changes: compare documents, files and what all machines share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import Any, Final, NamedTuple

from gitboot.fleet.resources import FleetRepository, Id, Resource
from gitboot.jsonio import Digest, digest
from gitboot.model.fields import written
from gitboot.model.fleet import FleetSpec, OneTimeBoots, Output
from gitboot.resolve.server_decision import Boot, Decision, Decisions, Host


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


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageChange:
    """A BootImage that was added, removed or edited."""

    name: str
    fate: Fate
    in_use: int  # servers of either commit that can boot it; unknown machines count as one
    pair: tuple[Digest | None, Digest | None]  # of what it is, before and after

    @property
    def mutated(self) -> bool:
        return self.fate is Fate.EDITED and self.in_use > 0


def is_mutated(change: DocumentChange) -> bool:
    """Whether what an image is was edited, not only what it is called by labels."""
    return change.fate is Fate.EDITED and any(field.path[0] == "spec" for field in change.fields)


def image_changes(
    documents: Mapping[Id, DocumentChange],
    both: tuple[Decisions | None, Decisions],
    repositories: tuple[FleetRepository | None, FleetRepository],
    touched: frozenset[str],
) -> Iterator[ImageChange]:
    """Every BootImage that is another, by name, and how many servers boot it: all of them are ``touched``."""
    changed = [change for key, change in documents.items() if key.kind == "BootImage"]
    if not changed:
        return
    uses: dict[str, set[str]] = {}
    for decisions in filter(None, both):
        for name in touched:
            for image in booted(decisions.servers.get(name)):
                uses.setdefault(image, set()).add(name)
        for boot in (decisions.unknown or {}).values():
            uses.setdefault(boot.image, set()).add("")
    for change in changed:
        if change.fate is not Fate.EDITED or is_mutated(change):
            name = change.id.name
            pair = tuple(_digest(repository, name) for repository in repositories)
            yield ImageChange(name=name, fate=change.fate, in_use=len(uses.get(name, ())), pair=(pair[0], pair[1]))


def _digest(repository: FleetRepository | None, image: str) -> Digest | None:
    """The digest of what an image is; None where there is none."""
    if repository is None or image not in repository.images:
        return None
    return digest(plain(repository.images[image])["spec"])


def booted(decision: Decision | None) -> Iterator[str]:
    """The images that a server can boot."""
    return (boot.image for boot in _boots(decision))


def _boots(decision: Decision | None) -> Iterator[Boot]:
    """Every boot from the network that a decision has."""
    if decision is None:
        return
    if decision.policy is not None and decision.policy.boot is not None:
        yield decision.policy.boot
    yield from (maintenance.boot for maintenance in decision.maintenances if maintenance.boot is not None)


class Fate(StrEnum):
    """What became of something."""

    ADDED = "added"
    REMOVED = "removed"
    EDITED = "edited"


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentChange:
    """A document, or a file that documents name (kind "file"), which is not what it was."""

    id: Id
    fate: Fate
    fields: tuple[FieldChange, ...]  # of one that was edited


def changed_documents(
    old: FleetRepository | None, new: FleetRepository, touched: frozenset[Id] | None = None
) -> dict[Id, DocumentChange]:
    """Every document and file that differs, or of the ``touched`` ones, by kind and name."""
    before, after = _resources(old, touched) if old else {}, _resources(new, touched)
    found = {}
    for key in sorted(before.keys() | after.keys()):
        was, is_now = before.get(key), after.get(key)
        if was is is_now or was == is_now:
            continue
        if was is None or is_now is None:
            fate = Fate.ADDED if was is None else Fate.REMOVED
            found[key] = DocumentChange(id=key, fate=fate, fields=())
        else:
            found[key] = DocumentChange(id=key, fate=Fate.EDITED, fields=_fields(was, is_now))
    return found


def _resources(repository: FleetRepository, touched: frozenset[Id] | None) -> dict[Id, Resource | bytes]:
    fleet = repository.fleet
    named: tuple[tuple[str, Mapping[str, Resource | bytes]], ...] = (
        ("Fleet", {fleet.metadata.name: fleet}),
        ("Server", repository.servers),
        ("BootImage", repository.images),
        ("ImageStream", repository.streams),
        ("BootProfile", repository.profiles),
        ("BootPolicy", repository.policies),
        ("Maintenance", repository.maintenances),
        ("file", repository.files),
    )
    if touched is None:
        return {Id(kind, name): resource for kind, found in named for name, resource in found.items()}
    by_kind = dict(named)
    return {key: by_kind[key.kind][key.name] for key in touched if key.name in by_kind[key.kind]}


def _fields(old: Resource | bytes, new: Resource | bytes) -> tuple[FieldChange, ...]:
    if isinstance(old, bytes) or isinstance(new, bytes):
        return ()
    return tuple(changed_fields(plain(old), plain(new)))


def plain(resource: Resource) -> Any:
    """A resource as it is written in YAML."""
    return written(resource)


Path = tuple[str | int, ...]


class FieldChange(NamedTuple):
    """One field before and after; None: it was not there."""

    path: Path
    old: Any
    new: Any

    @property
    def dotted(self) -> str:
        """The path as people write it: spec.holds[0].image."""
        steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path)
        return "".join(steps).removeprefix(".")


def changed_fields(old: Any, new: Any, path: Path = ()) -> Iterator[FieldChange]:
    """The deepest fields that differ, in the order of their names; lists of another length as a whole."""
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            yield from changed_fields(old.get(key), new.get(key), (*path, key))
    elif _are_alike(old, new):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from changed_fields(before, after, (*path, number))
    else:
        yield FieldChange(path, old, new)


def _are_alike(old: Any, new: Any) -> bool:
    """Whether two lists have as many items, and mappings in them."""
    if not isinstance(old, list) or not isinstance(new, list) or len(old) != len(new):
        return False
    return all(isinstance(each, Mapping) for each in (*old, *new))


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
