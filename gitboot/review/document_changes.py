"""Document changes: compare the documents of two commits, and the files that gitboot publishes for all machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import Any, Final, NamedTuple

from msgspec import Struct, structs

from gitboot.fleet.documents import FleetRepository, Id, Resource
from gitboot.jsonio import Digest, compute_digest, to_json_value
from gitboot.model.fields import to_yaml_value
from gitboot.model.fleet import FleetSpec, OneTimeBoots, Output
from gitboot.resolve.server_decision import Decision, Decisions, Host

Path = tuple[str | int, ...]  # the path of a field in a document
Location = tuple[str, int, int]  # path, line, column


# Documents


class ChangeKind(StrEnum):
    """The way in which a document or a server changed."""

    ADDED = "added"
    REMOVED = "removed"
    EDITED = "edited"


class DocumentChange(Struct, frozen=True, kw_only=True):
    """A changed document, or a changed file that documents refer to (kind "file")."""

    id: Id
    fate: ChangeKind
    fields: tuple[FieldChange, ...]  # the changed fields if the document was edited

    @property
    def first_path(self) -> Path:
        """The path of the first changed field, or of the name if the document was added or removed."""
        return self.fields[0].path if self.fields else ("metadata", "name")


def locate_field(repository: FleetRepository, document: Id, *path: str | int) -> Location:
    """Return the location of a field, or of the nearest parent if the document does not contain the field."""
    file, place = repository.find_place(document, *path)
    return file, place.line, place.column


def compare_documents(
    old: FleetRepository | None, new: FleetRepository, touched: frozenset[Id] | None = None
) -> dict[Id, DocumentChange]:
    """Return a mapping from kind and name to each document or file that differs. ``touched`` limits the comparison."""
    before = _collect_resources(old, touched) if old else {}
    after = _collect_resources(new, touched)
    changes = {}
    for key in sorted(before.keys() | after.keys()):
        old_resource, new_resource = before.get(key), after.get(key)
        if old_resource is new_resource or old_resource == new_resource:
            continue
        fate = ChangeKind.EDITED
        fields: tuple[FieldChange, ...] = ()
        if old_resource is None or new_resource is None:
            fate = ChangeKind.ADDED if old_resource is None else ChangeKind.REMOVED
        elif key.kind != "file":
            fields = tuple(compare_fields(to_yaml_value(old_resource), to_yaml_value(new_resource)))
        changes[key] = DocumentChange(id=key, fate=fate, fields=fields)
    return changes


def _collect_resources(repository: FleetRepository, touched: frozenset[Id] | None) -> dict[Id, Resource | bytes]:
    fleet = repository.fleet
    kinds: tuple[tuple[str, Mapping[str, Resource | bytes]], ...] = (
        ("Fleet", {fleet.metadata.name: fleet}),
        ("Server", repository.servers),
        ("BootImage", repository.images),
        ("ImageStream", repository.streams),
        ("ImageSource", repository.image_sources),
        ("BootProfile", repository.profiles),
        ("BootPolicy", repository.policies),
        ("Maintenance", repository.maintenances),
        ("file", repository.files),
    )
    if touched is None:
        return {Id(kind, name): resource for kind, resources in kinds for name, resource in resources.items()}
    by_kind = dict(kinds)
    return {key: by_kind[key.kind][key.name] for key in touched if key.name in by_kind[key.kind]}


class FieldChange(NamedTuple):
    """The old and the new value of a changed field. None means that the value is absent."""

    path: Path
    old: Any
    new: Any

    @property
    def dotted_path(self) -> str:
        """The path in dotted notation, such as spec.holds[0].image."""
        return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.path).removeprefix(".")


def compare_fields(old: Any, new: Any, path: Path = ()) -> Iterator[FieldChange]:
    """Yield the innermost fields that differ, sorted by name. A list whose length changed is one field."""
    if old == new:
        return
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted(old.keys() | new.keys()):
            yield from compare_fields(old.get(key), new.get(key), (*path, key))
    elif (
        isinstance(old, list)
        and isinstance(new, list)
        and len(old) == len(new)
        and all(isinstance(each, Mapping) for each in (*old, *new))
    ):
        for number, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from compare_fields(before, after, (*path, number))
    else:
        yield FieldChange(path, old, new)


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Return a YAML value with each text in it replaced by the result of ``change``."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {name: map_texts(each, change) for name, each in value.items()}
    return [map_texts(each, change) for each in value] if isinstance(value, list) else value


# Images


class ImageChange(Struct, frozen=True, kw_only=True):
    """A BootImage that was added, removed or edited."""

    name: str
    fate: ChangeKind
    # the number of servers that can boot the image in one of the commits; unknown machines are counted as one server
    in_use: int
    pair: tuple[Digest | None, Digest | None]  # the digests of the old and the new spec

    @property
    def mutated(self) -> bool:
        return self.fate is ChangeKind.EDITED and self.in_use > 0


def is_mutated(change: DocumentChange) -> bool:
    """Return whether the spec of an image was edited.

    The function ignores labels, annotations and provenance, because they do not affect boots.
    """
    return change.fate is ChangeKind.EDITED and any(
        field.path[0] == "spec" and "provenance" not in field.path for field in change.fields
    )


def find_image_changes(
    documents: Mapping[Id, DocumentChange],
    both_decisions: tuple[Decisions | None, Decisions],
    repositories: tuple[FleetRepository | None, FleetRepository],
    touched: frozenset[str],
) -> Iterator[ImageChange]:
    """Yield the changed BootImages, sorted by name. ``touched`` must contain all servers that boot a changed image."""
    changed = [change for key, change in documents.items() if key.kind == "BootImage"]
    if not changed:
        return
    uses: dict[str, set[str]] = {}
    for decisions in filter(None, both_decisions):
        for name in touched:
            for image in list_images(decisions.servers.get(name)):
                uses.setdefault(image, set()).add(name)
        for boot in (decisions.unknown or {}).values():
            uses.setdefault(boot.image, set()).add("")
    for change in changed:
        if change.fate is not ChangeKind.EDITED or is_mutated(change):
            name = change.id.name
            old_repository, new_repository = repositories
            pair = _digest_image(old_repository, name), _digest_image(new_repository, name)
            yield ImageChange(name=name, fate=change.fate, in_use=len(uses.get(name, ())), pair=pair)


def _digest_image(repository: FleetRepository | None, name: str) -> Digest | None:
    image = repository.images.get(name) if repository is not None else None
    return compute_digest(to_yaml_value(image)["spec"]) if image is not None else None


def list_images(decision: Decision | None) -> Iterator[str]:
    """Yield the images that a server can boot from the network."""
    return (boot.image for boot in (decision.boots if decision is not None else ()))


# Files for all machines, and boots of unknown machines


class SharedChange(Struct, frozen=True, kw_only=True):
    """A change in the files that gitboot publishes for all machines, or in the boots of unknown machines."""

    old: Mapping[str, Any] | None  # the old value; None: there is no old commit
    new: Mapping[str, Any]

    @property
    def pair(self) -> tuple[Digest | None, Digest | None]:
        return compute_digest(self.old) if self.old is not None else None, compute_digest(self.new)


def compare_shared_files(
    old: Decisions | None,
    new: Decisions,
    old_repository: FleetRepository | None,
    new_repository: FleetRepository,
    touched: frozenset[str] | None = None,
) -> SharedChange | None:
    """Compare the files that gitboot publishes for all machines. Return None if nothing changed.

    ``touched`` limits the comparison to servers that can differ. None means all servers.
    """
    return _make_change(
        _get_shared_fields(old, old_repository, new, touched), _get_shared_fields(new, new_repository, old, touched)
    )


def compare_unknown_boots(old: Decisions | None, new: Decisions) -> SharedChange | None:
    """Compare the boots of unknown machines. Return None if nothing changed."""
    return _make_change(_get_unknown_boot_fields(old), _get_unknown_boot_fields(new))


# A change of these outputs does not change files that machines boot. `mirror` changes URLs, but decisions contain the
# URLs.
_WITHOUT_BOOT_FILES: Final = frozenset(
    {Output.DHCP_DNSMASQ, Output.DHCP_KEA, Output.DHCP_PROXY, Output.INVENTORY, Output.MIRROR, Output.PAGES}
)


def affects_all_files(change: SharedChange) -> bool:
    """Return whether a change affects the boot files of every server.

    A changed base URL does not count here, because base URLs are part of the decisions.
    """
    if change.old is None:
        return False
    old, new = ({*each["outputs"]} - _WITHOUT_BOOT_FILES for each in (change.old, change.new))
    return old != new or change.old["evidence"] != change.new["evidence"]


def affects_ledger(change: SharedChange) -> bool:
    """Return whether a ledger was removed or replaced in the Fleet or in a site."""
    if change.old is None:
        return False
    old_ledgers, new_ledgers = (each.get("ledgers", {}) for each in (change.old, change.new))
    is_replaced = change.old["ledger"] is not None and change.old["ledger"] != change.new["ledger"]
    return is_replaced or any(new_ledgers.get(site) != ledger for site, ledger in old_ledgers.items())


# gitboot does not render these outputs from decisions alone.
_HOST_OUTPUTS: Final = frozenset({Output.DHCP_DNSMASQ, Output.DHCP_KEA, Output.DHCP_PROXY, Output.PXELINUX})


def _get_shared_fields(
    decisions: Decisions | None,
    repository: FleetRepository | None,
    other_decisions: Decisions | None,
    touched: frozenset[str] | None,
) -> dict[str, object] | None:
    if decisions is None or repository is None:
        return None
    spec = repository.fleet.spec
    shared_fields: dict[str, object] = {
        "baseURL": decisions.base_url,
        "outputs": sorted(decisions.outputs - {Output.PAGES}),  # machines do not read the files of the web page
        "evidence": decisions.evidence,
        "monitors": list(map(str, spec.provisioning.monitors)),  # a fetch by a monitor does not prove an installation
        "ledger": spec.provisioning.ledger,  # the ledger of the instance that serves one-time boots
    }
    if spec.provisioning.clients:  # only fetches by these clients prove an installation
        shared_fields["clients"] = list(map(str, spec.provisioning.clients))
    ledgers = {site.name: site.ledger for site in spec.sites if site.ledger is not None}
    if ledgers:  # the ledgers of the instances of sites
        shared_fields["ledgers"] = ledgers
    if other_decisions is not None and decisions.outputs & other_decisions.outputs & _HOST_OUTPUTS:
        shared_fields |= _get_network_fields(decisions, other_decisions, touched)
    return shared_fields


def _get_network_fields(
    decisions: Decisions, other_decisions: Decisions, touched: frozenset[str] | None
) -> dict[str, object]:
    """Return the input from which gitboot renders DHCP files.

    The input contains only servers that are in both commits and differ between them. Therefore a rebase does not change
    the digest.
    """
    hosts, others = decisions.networks, other_decisions.networks
    names = sorted(name for name in (hosts if touched is None else touched) if name in hosts and name in others)
    fields = {server: _get_interface_fields(hosts[server]) for server in names}
    return {
        "hosts": {
            server: fields[server] for server in names if fields[server] != _get_interface_fields(others[server])
        },
        "sites": dict(decisions.sites),
    }


def _get_interface_fields(host: Host) -> dict[str, object]:
    return {"site": host.site, "interfaces": [structs.asdict(nic) for nic in host.nics]}


def _get_unknown_boot_fields(decisions: Decisions | None) -> dict[str, object] | None:
    if decisions is None:
        return None
    boots = decisions.unknown
    return {
        "notFound": decisions.unknown_not_found,
        "boots": to_json_value(dict(sorted(boots.items()))) if boots is not None else None,
    }


def _make_change(old: dict[str, object] | None, new: dict[str, object] | None) -> SharedChange | None:
    return SharedChange(old=old, new=new) if old != new and new is not None else None


# Clients that may fetch


ONE_TIME_BOOTS: Final = "spec.serving.oneTimeBoots"


class AccessChange(NamedTuple):
    """The old and the new value of a Fleet setting that controls which clients may fetch files."""

    field: str  # such as spec.provisioning.clients
    old: list[str] | bool | str
    new: list[str] | bool | str
    widens: bool  # whether more clients may fetch, or more fetches count as evidence


def compare_access(old: FleetSpec, new: FleetSpec) -> tuple[AccessChange, ...]:
    """Return the changed Fleet settings that control which clients may fetch files."""
    clients, new_clients = (sorted(map(str, spec.provisioning.clients)) for spec in (old, new))
    monitors, new_monitors = (sorted(map(str, spec.provisioning.monitors)) for spec in (old, new))
    boots, new_boots = old.serving.one_time_boots, new.serving.one_time_boots
    # an empty list of networks allows every client
    widens_clients = bool(clients) and (not new_clients or not _contains_networks(clients, new_clients))
    # if a network is removed from this list, its fetches can be evidence again
    widens_monitors = not _contains_networks(new_monitors, monitors)
    settings = (
        AccessChange("spec.provisioning.clients", clients, new_clients, widens_clients),
        AccessChange("spec.provisioning.monitors", monitors, new_monitors, widens_monitors),
        AccessChange("spec.serving.restrict", old.serving.restrict, new.serving.restrict, old.serving.restrict),
        # from a copy, any client can fetch an install boot several times
        AccessChange(ONE_TIME_BOOTS, str(boots), str(new_boots), new_boots is OneTimeBoots.COPIES),
    )
    return tuple(setting for setting in settings if setting.old != setting.new)


def _contains_networks(networks: list[str], other_networks: list[str]) -> bool:
    return _collapse_networks([*networks, *other_networks]) == _collapse_networks(networks)


def _collapse_networks(networks: list[str]) -> list[IPv4Network | IPv6Network]:
    parsed = list(map(ip_network, networks))
    ipv4 = collapse_addresses([each for each in parsed if isinstance(each, IPv4Network)])
    ipv6 = collapse_addresses([each for each in parsed if isinstance(each, IPv6Network)])
    return [*ipv4, *ipv6]
