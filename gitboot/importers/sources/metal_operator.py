"""metal-operator and boot-operator: read servers, and the boot configuration of the workload of each server.

boot-operator finds the boot configurations of a machine by UUID or IP address. It serves the boot configuration whose
owner is named in the Server (server/helper.go). The import never uses the boot of a maintenance as the policy of a
server.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from msgspec import Struct

from gitboot.importers.inventory import (
    ImportedBmc,
    ImportedBoot,
    ImportedInventory,
    ImportedMachine,
    ImportedNic,
    ImportRemark,
    NicCollector,
    Texts,
    as_list,
    as_mapping,
    as_mappings,
    as_text,
    format_host,
    get_nested,
    list_address,
    parse_address,
    parse_architecture,
    parse_bmc,
    parse_uuid_or_none,
    read_mac,
    read_uuid,
    remark_guessed,
    remark_if,
    remark_kept,
    remark_lost,
    remark_missing,
)
from gitboot.importers.sources.kubernetes import (
    Key,
    Object,
    Objects,
    is_same_key,
    load_objects,
    read_labels,
    remark_other_kinds,
)
from gitboot.model.scalars import SystemUuid

_IPXE_KIND: Final = "IPXEBootConfig"
_BOOT_KINDS: Final = (_IPXE_KIND, "HTTPBootConfig")  # if a machine has both kinds, the first kind applies
_KINDS: Final = ("Server", "BMC", "Endpoint", "ServerBootConfiguration", "ServerClaim", "ServerMaintenance")


class _BootConfig(Struct, frozen=True, kw_only=True):
    kind: str
    key: Key
    spec: Object
    owner: Key | None  # the key of the ServerBootConfiguration that owns the object
    boot: str | None  # the name of the `ImportedBoot`; None: the configuration names neither a kernel nor a UKI
    uuid: SystemUuid | None

    def __str__(self) -> str:
        return f"{self.kind} {_format(self.key)}"


def read_inventory(files: Texts) -> ImportedInventory:
    """Read servers with their BMCs, boot configurations, claims and maintenances, but no Secrets."""
    objects = load_objects(files)
    configs = _list_boot_configs(objects)
    boots = tuple(filter(None, map(_read_boot, configs)))
    servers = {key[1]: server for key, server in objects.list_kind("Server")}
    machines = [_read_server(name, server, configs, objects) for name, server in sorted(servers.items())]
    known_uuids = {machine.uuid for machine in machines if machine.uuid}
    unlisted = [
        config
        for config in configs
        if config.uuid not in known_uuids and _find_server_name(config.owner, objects) not in servers
    ]
    return ImportedInventory(
        machines=(*machines, *_read_unlisted_machines(unlisted, objects)),
        boots=tuple(sorted(boots, key=lambda boot: boot.name)),
        remarks=(
            *_list_remarks_on_source(objects, servers),
            *remark_other_kinds(objects, (*_BOOT_KINDS, *_KINDS)),
        ),
    )


def _format(key: Key) -> str:
    return "/".join(filter(None, key))


def _read_ref(value: object) -> Key | None:
    name = as_text(get_nested(value, "name"))
    return (as_text(get_nested(value, "namespace")) or "", name) if name else None


# Boot configurations


def _list_boot_configs(objects: Objects) -> list[_BootConfig]:
    items = [(kind, key, item) for kind in _BOOT_KINDS for key, item in objects.list_kind(kind)]
    ipxe_keys = {key for kind, key, _ in items if kind == _IPXE_KIND}
    namespaces: defaultdict[str, set[str]] = defaultdict(set)  # by name
    for _, (namespace, name), _ in items:
        namespaces[name].add(namespace)
    configs = []
    for kind, key, item in items:
        spec = as_mapping(item.get("spec"))
        name = key[1] if len(namespaces[key[1]]) == 1 else "-".join(filter(None, key))
        suffix = "-http" if kind != _IPXE_KIND and key in ipxe_keys else ""
        configs.append(
            _BootConfig(
                kind=kind,
                key=key,
                spec=spec,
                owner=_find_owner(key[0], item),
                boot=f"{name}{suffix}" if as_text(spec.get("kernelURL")) or as_text(spec.get("ukiURL")) else None,
                uuid=parse_uuid_or_none(spec.get("systemUUID")),
            )
        )
    return configs


def _find_owner(namespace: str, item: Object) -> Key | None:
    """Return the key of the ServerBootConfiguration that owns an object. Both are in the same namespace."""
    for owner in as_mappings(get_nested(item, "metadata", "ownerReferences")):
        is_group = (as_text(owner.get("apiVersion")) or "").startswith("metal.ironcore.dev/")
        if is_group and owner.get("kind") == "ServerBootConfiguration" and (name := as_text(owner.get("name"))):
            return namespace, name
    return None


def _read_boot(config: _BootConfig) -> ImportedBoot | None:
    if config.boot is None:
        return None
    spec = config.spec
    image = as_text(spec.get("image"))
    kernel, initrd, squashfs, uki = (
        _complete_url(spec.get(key)) for key in ("kernelURL", "initrdURL", "squashfsURL", "ukiURL")
    )
    return ImportedBoot(
        name=config.boot,
        kernel=kernel,
        initrds=(initrd,) if initrd else (),
        rootfs=squashfs if kernel else None,
        uki=None if kernel else uki,
        remarks=(
            remark_kept(str(config)),
            *remark_if(
                spec.get("ignitionSecretRef"),
                remark_lost("the Ignition configuration is in a Secret: write it as user data, without secrets"),
            ),
            *remark_if(
                spec.get("ipxeScriptSecretRef"),
                remark_lost(
                    "the iPXE script that boot-operator serves instead of the kernel and the initrd is in a Secret"
                ),
            ),
            *remark_if(
                kernel,
                remark_lost(
                    "the arguments in boot-operator's template were left out: `gitboot compare-old-system` shows them"
                ),
            ),
            *remark_if(image, remark_lost(f"image {image} was left out: `gitboot artifacts resolve` prints its files")),
        ),
    )


def _complete_url(value: object) -> str | None:
    """Add http:// to a URL without a scheme, because boot-operator accepts such URLs."""
    text = as_text(value)
    return text if text is None or "://" in text else f"http://{text}"


# Servers


def _read_server(name: str, server: Object, configs: Sequence[_BootConfig], objects: Objects) -> ImportedMachine:
    spec, status = as_mapping(get_nested(server, "spec")), as_mapping(get_nested(server, "status"))
    uuid, uuid_remarks = read_uuid(as_text(spec.get("systemUUID")) or as_text(spec.get("uuid")))
    controller = objects.get_spec("BMC", as_text(get_nested(spec, "bmcRef", "name"))) or as_mapping(spec.get("bmc"))
    bmc, bmc_remarks = _read_bmc(controller, objects, as_text(spec.get("systemURI")))
    nics, nic_remarks = _read_nics(status)
    boot, boot_remarks = _choose_boot(name, uuid, spec, configs, objects)
    state = as_text(status.get("state"))
    return ImportedMachine(
        name=name,
        uuid=uuid,
        serial=as_text(status.get("serialNumber")),
        architecture=_read_architecture(spec, status),
        nics=nics,
        bmc=bmc,
        labels=read_labels(server),
        boot=boot,
        remarks=(
            remark_kept(f"Server {name}{f' in state {state}' if state else ''}"),
            *uuid_remarks,
            *bmc_remarks,
            *nic_remarks,
            *boot_remarks,
            *_list_claims_and_maintenances(name, spec, objects),
            *(
                remark_lost(f"`{key}` was left out, because gitboot does not support claims")
                for key in ("taints", "unclaimable")
                if spec.get(key) and str(spec[key]) != "false"
            ),
        ),
    )


_ARCHITECTURES: Final = {"x86": "x86_64", "arm": "aarch64"}  # values of Processor.ProcessorArchitecture in Redfish


def _read_architecture(spec: Object, status: Object) -> str | None:
    for processor in (spec, *as_mappings(status.get("processors"))):
        if text := as_text(processor.get("instructionSet")) or as_text(processor.get("architecture")):
            return parse_architecture(_ARCHITECTURES.get(text.lower(), text))
    return None


def _read_nics(status: Object) -> tuple[tuple[ImportedNic, ...], list[ImportRemark]]:
    nics, remarks = dict[str, ImportedNic](), list[ImportRemark]()
    for nic in as_mappings(status.get("networkInterfaces")):
        name = as_text(nic.get("name"))
        values = (nic.get("ip"), *as_list(nic.get("ips")))
        addresses = tuple(dict.fromkeys(address for value in values for address in list_address(value)))
        mac, mac_remarks = read_mac(as_text(nic.get("macAddress")), f"interface {name}:", addresses)
        remarks += mac_remarks
        if mac:
            known = nics[mac].addresses if mac in nics else ()
            nics[mac] = ImportedNic(mac=mac, name=name, addresses=tuple(dict.fromkeys((*known, *addresses))))
    return tuple(nic for _, nic in sorted(nics.items())), remarks


def _choose_boot(
    name: str, uuid: SystemUuid | None, spec: Object, configs: Sequence[_BootConfig], objects: Objects
) -> tuple[str | None, list[ImportRemark]]:
    """Return the boot of a server's workload, if there is exactly one, and remarks on all configurations."""
    workload = _read_ref(spec.get("bootConfigurationRef"))
    maintenance = _read_ref(spec.get("maintenanceBootConfigurationRef"))
    maintenance = None if is_same_key(maintenance, workload) else maintenance
    candidates = [
        config
        for config in configs
        if (uuid is not None and config.uuid == uuid)
        or is_same_key(config.owner, workload)
        or is_same_key(config.owner, maintenance)
        or _find_server_name(config.owner, objects) == name
    ]
    remarks = list[ImportRemark]()
    chosen = [config for config in candidates if is_same_key(config.owner, workload)]
    if not chosen:
        # boot-operator names a configuration after its owner. Without references, it serves only the single match.
        has_no_ref = workload is None and maintenance is None
        counts = Counter(config.kind for config in candidates)
        chosen = [
            config
            for config in candidates
            if config.owner is None and (is_same_key(config.key, workload) or (has_no_ref and counts[config.kind] == 1))
        ]
        remarks += (
            remark_guessed(f"the import took the boot from {config}, which has the server's UUID and no owner")
            for config in chosen
        )
    boot: str | None = None
    obstacle = _find_workload_obstacle(name, uuid, workload, chosen, objects)
    if obstacle is not None:
        remarks.append(obstacle)
    else:
        boot, config_remarks = _pick_config(chosen)
        remarks += config_remarks
        if workload and not chosen:
            remarks.append(_explain_missing_config("the boot", workload, objects))
    remarks += _list_remarks_on_unused_configs(candidates, chosen, maintenance, objects)
    if boot is not None and workload is not None and not objects.list_kind("ServerBootConfiguration"):
        remarks.append(
            remark_guessed(
                "the import found the boot only by its name, because the source has no ServerBootConfiguration"
            )
        )
    if boot is None and workload is None and not chosen:
        remarks.append(
            remark_lost(
                "the boot was not imported, because the Server does not refer to a workload's boot configuration"
            )
        )
    return boot, remarks


def _list_remarks_on_unused_configs(
    candidates: Sequence[_BootConfig], chosen: Sequence[_BootConfig], maintenance: Key | None, objects: Objects
) -> Iterator[ImportRemark]:
    """Yield remarks on a server's configurations for maintenances and on all others that the import did not choose."""
    for config in candidates:
        if is_same_key(config.owner, maintenance):
            profile = f" with the profile {config.boot}" if config.boot else ""
            yield remark_lost(f"{config} is a maintenance boot{profile}: write a Maintenance with a window")
        elif config not in chosen:
            owner = f"owner {_format(config.owner)}" if config.owner else "no owner"
            yield remark_lost(f"{config} with {owner} was left out, because the Server does not refer to it")
    if maintenance and not any(is_same_key(config.owner, maintenance) for config in candidates):
        yield _explain_missing_config("the server's maintenance boot", maintenance, objects)


def _find_workload_obstacle(
    name: str, uuid: SystemUuid | None, workload: Key | None, chosen: Sequence[_BootConfig], objects: Objects
) -> ImportRemark | None:
    """Return a remark if the configurations of a server's workload are missing or belong to another server."""
    if workload is not None and objects.list_kind("ServerBootConfiguration"):
        config_name = f"ServerBootConfiguration {_format(workload)}"
        if objects.find("ServerBootConfiguration", workload) is None:
            return remark_missing(f"the boot was not imported, because {config_name} is not in the source")
        server = _find_server_name(workload, objects)
        if server != name:
            return remark_missing(f"the boot was not imported, because {config_name} belongs to Server {server}")
    mismatched = [config for config in chosen if uuid is not None and config.uuid not in (uuid, None)]
    if mismatched:
        return remark_missing(
            f"the boot was not imported, because the systemUUID in {mismatched[0]} is not the Server's UUID"
        )
    return None


def _explain_missing_config(subject: str, owner: Key, objects: Objects) -> ImportRemark:
    image = as_text(objects.get_spec("ServerBootConfiguration", owner[1], owner[0]).get("image"))
    image_hint = f"; `gitboot artifacts resolve` prints the files for its image {image}" if image else ""
    return remark_missing(
        f"{subject} was not imported, because ServerBootConfiguration {_format(owner)} has no "
        f"{' or '.join(_BOOT_KINDS)} in the source{image_hint}"
    )


def _pick_config(configs: Sequence[_BootConfig]) -> tuple[str | None, list[ImportRemark]]:
    """Return the boot in the configurations of one owner. An owner may have one configuration of each kind."""
    for kind in _BOOT_KINDS:
        duplicates = [str(config) for config in configs if config.kind == kind]
        if len(duplicates) > 1:
            return None, [
                remark_missing(
                    f"the boot was not imported, because {' and '.join(duplicates)} have the same owner, "
                    "and it is not clear which one boots"
                )
            ]
    first = next((config for config in configs if config.boot), None)
    remarks = [
        remark_missing(f"the boot from {config} was not imported, because it has neither a kernel nor a UKI")
        for config in configs
        if not config.boot
    ]
    remarks += (
        remark_lost(f"{config} is another way to boot the same system: to use it, select the profile {config.boot}")
        for config in configs
        if config.boot and config is not first
    )
    return first.boot if first else None, remarks


def _list_claims_and_maintenances(name: str, spec: Object, objects: Objects) -> Iterator[ImportRemark]:
    claim_ref = _read_ref(spec.get("serverClaimRef"))
    for key, claim in objects.list_kind("ServerClaim"):
        if is_same_key(key, claim_ref) or get_nested(claim, "spec", "serverRef", "name") == name:
            image = as_text(get_nested(claim, "spec", "image"))
            yield remark_lost(
                f"ServerClaim {_format(key)} with image {image} was not imported, because gitboot does not support "
                "claims"
            )
    for key, maintenance in objects.list_kind("ServerMaintenance"):
        if get_nested(maintenance, "spec", "serverRef", "name") == name:
            yield _describe_maintenance(key, maintenance)
    maintenance_ref = _read_ref(spec.get("serverMaintenanceRef"))
    if maintenance_ref and objects.find("ServerMaintenance", maintenance_ref) is None:
        yield remark_lost(
            f"ServerMaintenance {_format(maintenance_ref)} is not in the source: write a Maintenance with a window"
        )


def _describe_maintenance(key: Key, maintenance: Object) -> ImportRemark:
    spec = as_mapping(get_nested(maintenance, "spec"))
    values = {
        **{field: spec.get(field) for field in ("policy", "priority", "serverPower")},
        "state": get_nested(maintenance, "status", "state"),
        "image": get_nested(spec, "serverBootConfigurationTemplate", "spec", "image"),
    }
    facts = [f"{field} {text}" for field, value in values.items() if (text := as_text(value))]
    details = f" ({', '.join(facts)})" if facts else ""
    return remark_lost(f"ServerMaintenance {_format(key)}{details} was left out: write a Maintenance with a window")


# BMCs


def _read_bmc(
    controller: Object, objects: Objects, system: str | None
) -> tuple[ImportedBmc | None, tuple[ImportRemark, ...]]:
    """Read the BMC of a server. A BMC without an address may refer to an Endpoint with the address."""
    endpoint = objects.get_spec(
        "Endpoint", get_nested(controller, "endpointRef", "name") or get_nested(controller, "endpoint", "name")
    )
    _, rejected = read_mac(
        as_text(get_nested(controller, "access", "macAddress") or endpoint.get("macAddress")), "the BMC:"
    )
    host = as_text(get_nested(controller, "access", "ip") or controller.get("address") or endpoint.get("ip"))
    protocol = as_mapping(get_nested(controller, "protocol"))
    if host is None:
        return None, rejected
    port = as_text(protocol.get("port"))
    place = f"{format_host(host)}:{port}" if port else host
    name = as_text(protocol.get("name")) or "Redfish"
    # the names of metal-operator's variants, such as RedfishLocal, begin with Redfish
    scheme = f"redfish+{as_text(protocol.get('scheme')) or 'https'}" if name.startswith("Redfish") else name.lower()
    bmc, remarks = parse_bmc(
        f"{scheme}://{place}",
        as_text(get_nested(controller, "bmcSecretRef", "name")),
        system=system,
    )
    return bmc, (*rejected, *remarks)


# Other objects


def _find_server_name(owner: Key | None, objects: Objects) -> str | None:
    return as_text(get_nested(objects.find("ServerBootConfiguration", owner), "spec", "serverRef", "name"))


def _read_unlisted_machines(configs: Iterable[_BootConfig], objects: Objects) -> Iterator[ImportedMachine]:
    """Yield the machines that no Server describes. Boot configurations with the same UUID belong to one machine."""

    def get_machine_key(config: _BootConfig) -> str:
        return config.uuid or _format(config.owner or config.key)

    in_order = sorted(configs, key=lambda config: (get_machine_key(config), config.key, config.kind))
    for _, group in groupby(in_order, get_machine_key):
        machine_configs = list(group)
        first = next((config for config in machine_configs if config.kind == _IPXE_KIND), machine_configs[0])
        owners = {config.owner or config.key for config in machine_configs}
        boot: str | None = None
        if len(owners) == 1:
            boot, remarks = _pick_config(machine_configs)
        else:
            remarks = [_remark_several_configs(machine_configs)]
        uuid, uuid_remarks = read_uuid(as_text(first.spec.get("systemUUID")))
        nics, nic_remarks = _read_network_identifiers(machine_configs)
        yield ImportedMachine(
            name=_find_server_name(first.owner, objects) or first.key[1],
            uuid=uuid,
            nics=nics,
            boot=boot,
            remarks=(
                *(remark_kept(str(each)) for each in machine_configs),
                remark_missing("the Server is not in the source: export it"),
                *remarks,
                *uuid_remarks,
                *nic_remarks,
            ),
        )


def _remark_several_configs(configs: Sequence[_BootConfig]) -> ImportRemark:
    names = " and ".join(map(str, configs))
    return remark_missing(
        f"the boot was not imported, because {names} belong to the same machine, and only its Server shows which of "
        "them is for the workload"
    )


def _read_network_identifiers(configs: Iterable[_BootConfig]) -> tuple[tuple[ImportedNic, ...], list[ImportRemark]]:
    """Return the interfaces of a machine.

    The configurations contain IP and MAC addresses, but do not show which address belongs to which interface. The first
    interface gets all IP addresses.
    """
    identifiers = dict[str, None]()  # without duplicates
    for config in configs:
        for key in ("networkIdentifiers", "systemIPs", "systemIP"):
            value = config.spec.get(key)
            identifiers |= dict.fromkeys(map(str, [value] if as_text(value) else as_list(value)))
    ip_addresses = set[str]()
    reader = NicCollector()
    for identifier in identifiers:
        address = parse_address(identifier)
        if address is None:
            reader.add(identifier)
        else:
            ip_addresses.add(address)
    addresses = tuple(sorted(ip_addresses))
    macs = sorted({nic.mac for nic in reader.nics})
    if not macs and addresses:
        reader.remarks.append(
            remark_lost(
                f"the addresses {', '.join(addresses)} were left out, because no interface with a MAC address is known"
            )
        )
    nics = (ImportedNic(mac=mac, addresses=addresses if mac == macs[0] else ()) for mac in macs)
    return tuple(nics), reader.remarks


def _list_remarks_on_source(objects: Objects, servers: Mapping[str, Any]) -> Iterator[ImportRemark]:
    for kind in ("ServerBootConfiguration", "ServerMaintenance", "ServerClaim"):
        for key, item in objects.list_kind(kind):
            server = as_text(get_nested(item, "spec", "serverRef", "name"))
            if server is not None and server not in servers:
                yield remark_lost(
                    f"{kind} {_format(key)} was left out, because its Server {server} is not in the source"
                )
            elif server is None and not any(
                is_same_key(_read_ref(get_nested(server_object, "spec", "serverClaimRef")), key)
                for server_object in servers.values()
            ):
                yield remark_lost(f"{kind} {_format(key)} was left out, because it does not belong to a Server")
    used_bmcs = {as_text(get_nested(server, "spec", "bmcRef", "name")) for server in servers.values()}
    used_endpoints = set()
    for key, bmc in objects.list_kind("BMC"):
        used_endpoints.add(as_text(get_nested(bmc, "spec", "endpointRef", "name")))
        if key[1] not in used_bmcs:
            yield remark_lost(f"BMC {_format(key)} was left out, because no Server in the source refers to it")
    for key, endpoint in objects.list_kind("Endpoint"):
        if key[1] not in used_endpoints:
            _, rejected = read_mac(as_text(get_nested(endpoint, "spec", "macAddress")), f"Endpoint {_format(key)}:")
            unused = f"Endpoint {_format(key)} was left out, because no BMC in the source refers to it"
            yield from (*rejected, remark_lost(unused))
