"""Fleet files: render the documents and the report of an import, and documents for new servers."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_interface
from typing import Any, Final

from msgspec import Struct, structs

from gitboot.fleet.documents import render_document
from gitboot.importers.inventory import (
    ExtraData,
    ImportedBoot,
    ImportedInventory,
    ImportedMachine,
    ImportedNic,
    ImportRemark,
    RemarkKind,
    escape_template,
    is_secret,
    parse_address,
    remark_guessed,
    remark_if,
    remark_lost,
    remark_missing,
    remark_rejected,
)
from gitboot.model.scalars import (
    MacAddress,
    Malformed,
    SystemUuid,
    build_document_name,
    is_placeholder_serial,
    parse_artifact_url,
    parse_bmc_address,
    parse_kernel_argument,
    parse_label_key,
    parse_label_value,
)
from gitboot.model.server import Architecture, Firmware, Server
from gitboot.problems import Code
from gitboot.quoting import QuotingError, quote_ipxe_arguments
from gitboot.text import format_count, printable

PENDING: Final = "pending"  # the folder for documents that a person must complete
IGNORE: Final = f"# Documents from `gitboot import` that a person must complete (see import-report.md)\n/{PENDING}/\n"


class ImportedDocument(Struct, frozen=True, kw_only=True):
    """A document that the import created for a machine or a boot, with remarks for the import report."""

    kind: str
    name: str
    pending: bool
    remarks: tuple[ImportRemark, ...]


class ImportedFleet(Struct, frozen=True, kw_only=True):
    """The files of an imported fleet, mapped by path, and the content of the import report."""

    files: Mapping[str, str]
    items: tuple[ImportedDocument, ...]
    remarks: tuple[ImportRemark, ...]


def render_fleet(inventory: ImportedInventory, extra_data: ExtraData) -> ImportedFleet:
    """Convert an inventory to documents. The result does not depend on the order of the machines and boots.

    Each server is Parked and has no provision number, so gitboot does not install the server.
    """
    files: dict[str, str] = {}
    items: list[ImportedDocument] = []
    # the policy for each boot whose documents are complete, by the name of the boot
    ready_policies: dict[str, str] = {}
    for name, boot in _assign_names((boot.name, boot) for boot in inventory.boots).items():
        item, texts = _render_boot(name, boot, extra_data)
        files |= texts
        items.append(item)
        if not item.pending:
            ready_policies[boot.name] = name
    named_machines = _assign_names((machine.name, machine) for machine in _complete_architectures(inventory))
    for name, machine in _resolve_conflicts(named_machines, extra_data).items():
        item, texts = _render_server(name, machine, ready_policies)
        files |= texts
        items.append(item)
    return ImportedFleet(files=files, items=tuple(items), remarks=inventory.remarks)


def _assign_names(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Give each value a unique document name. If two values have the same name, the second one is renamed to NAME-2.

    If names collide, a value that already has a valid document name keeps this name.
    """
    named: dict[str, Any] = {}
    for source_name, value in sorted(pairs, key=lambda pair: (build_document_name(pair[0]) != pair[0], pair[0])):
        valid_name = build_document_name(source_name)
        name, number = valid_name, 1
        while name in named:
            number += 1
            name = f"{valid_name}-{number}"
        remarks = value.remarks
        if name != source_name:
            fault = "unique" if valid_name == source_name else "a valid document name"
            remarks += (remark_guessed(f"the import changed the name, because {source_name} is not {fault}"),)
        named[name] = structs.replace(value, remarks=remarks)
    return named


# Servers


def _complete_architectures(inventory: ImportedInventory) -> Iterator[ImportedMachine]:
    architectures = {boot.name: boot.architecture for boot in inventory.boots}
    for machine in inventory.machines:
        architecture = architectures.get(machine.boot or "")
        if machine.architecture is None and architecture is not None:
            remark = remark_guessed(
                f"the import took the architecture {architecture} from the boot {machine.boot}: check this value"
            )
            yield structs.replace(machine, architecture=architecture, remarks=(*machine.remarks, remark))
        else:
            yield machine


def _resolve_conflicts(machines: Mapping[str, ImportedMachine], extra_data: ExtraData) -> dict[str, ImportedMachine]:
    """Leave out each identity that an earlier machine has, add UUIDs from ``extra_data``, and merge interfaces."""
    owners: dict[str, str] = {}
    return {name: _resolve_machine(name, machine, extra_data, owners) for name, machine in machines.items()}


def _resolve_machine(
    name: str, machine: ImportedMachine, extra_data: ExtraData, owners: dict[str, str]
) -> ImportedMachine:
    remarks = list(machine.remarks)

    def is_duplicate(identity: str) -> bool:
        return _is_duplicate_identity(identity, name, owners, remarks)

    listed = extra_data.list_uuids(machine)
    uuid = machine.uuid or (listed[0] if len(listed) == 1 else None)
    if machine.uuid is None and uuid is not None:
        remarks.append(remark_guessed(f"the import took the UUID {uuid} from the --uuids file"))
    elif set(listed) - {uuid}:
        text = f"the --uuids file contains {' and '.join(listed)} for this machine"
        kept = f", and the import kept {uuid} from the source" if uuid else ""
        remarks.append(remark_missing(f"{text}{kept}: check which machine has these interfaces"))
    nics = []
    for nic in _merge_nics(machine.nics, remarks):
        if not is_duplicate(f"MAC address {nic.mac}"):
            addresses = (each for each in nic.addresses if not is_duplicate(f"address {ip_interface(each).ip}"))
            nics.append(structs.replace(nic, addresses=tuple(addresses)))
    if uuid is not None and is_duplicate(f"UUID {uuid}"):
        uuid = None
    serial = machine.serial
    if serial is not None and is_placeholder_serial(serial):
        remarks.append(remark_lost(f"the serial number {serial} was left out, because it does not identify a machine"))
        serial = None
    elif serial is not None and is_duplicate(f"serial number {serial}"):
        serial = None
    bmc = machine.bmc
    if bmc is not None and is_duplicate(f"BMC {bmc.address}{bmc.system or ''}"):
        bmc = None
    if bmc is not None and bmc.credentials == f"{build_document_name(machine.name)}-bmc":
        # add the name of the machine, because two machines would otherwise share the credentials
        bmc = structs.replace(bmc, credentials=f"{name}-bmc")
    return structs.replace(machine, uuid=uuid, serial=serial, bmc=bmc, nics=tuple(nics), remarks=tuple(remarks))


def _merge_nics(nics: Iterable[ImportedNic], remarks: list[ImportRemark]) -> list[ImportedNic]:
    """Merge interfaces that have the same MAC address. Many sources list an interface once for each VLAN.

    Each interface of a bond keeps the IP addresses of the bond.
    """
    merged: dict[MacAddress, ImportedNic] = {}
    for nic in nics:
        first = merged.setdefault(nic.mac, structs.replace(nic, addresses=()))
        addresses = list(first.addresses)
        for text in nic.addresses:
            if parse_address(text) is None:
                remarks.append(
                    remark_rejected(f"the address {text[:80]} was left out, because it is not an IP address")
                )
                continue
            address = ip_interface(text).ip
            if address.is_link_local or address.is_loopback or address.is_multicast or address.is_unspecified:
                remarks.append(
                    remark_rejected(f"the address {text} was left out, because it does not identify a machine")
                )
            elif not any(ip_interface(known).ip == address for known in addresses):
                addresses.append(text)
        merged[nic.mac] = structs.replace(first, addresses=tuple(addresses), boot=first.boot or nic.boot)
    return list(merged.values())


def _is_duplicate_identity(identity: str, name: str, owners: dict[str, str], remarks: list[ImportRemark]) -> bool:
    """Return whether another machine has an identity, and add a remark. Otherwise, ``name`` becomes the owner."""
    owner = owners.setdefault(identity, name)
    if owner != name:
        remarks.append(
            remark_lost(f"the {identity} was left out, because {owner} also has it: correct one of the two machines")
        )
    return owner != name


_NO_UUID: Final = remark_missing(
    "the source does not contain the UUID: add the UUID that `dmidecode -s system-uuid` or the BMC shows"
)
_GUESSED_ARCHITECTURE: Final = remark_guessed(
    "the source does not contain the architecture, so the import wrote x86_64: check this value"
)
_GUESSED_FIRMWARE: Final = remark_guessed(
    "the source does not contain the firmware, so the import wrote UEFI: check this value"
)


def _render_server(
    name: str, machine: ImportedMachine, ready_policies: Mapping[str, str]
) -> tuple[ImportedDocument, dict[str, str]]:
    policy = ready_policies.get(machine.boot or "")
    arguments, argument_remarks = _filter_arguments(machine.arguments)
    bmc, bmc_remarks = _render_bmc(machine)
    labels, label_remarks = _filter_labels(machine.labels)
    unsupported = _list_unsupported(machine.architecture)
    remarks = (
        *machine.remarks,
        *_list_missing_facts(machine, policy),
        *unsupported,
        *argument_remarks,
        *bmc_remarks,
        *label_remarks,
    )
    boots_from_any = not any(nic.boot for nic in machine.nics)
    spec: dict[str, Any] = {
        "uuid": machine.uuid,
        "serial": machine.serial,
        "architecture": str(machine.architecture or Architecture.X86_64),
        "firmware": str(machine.firmware or Firmware.UEFI),
        "secureBoot": machine.secure_boot,
        "interfaces": [
            _drop_empty(
                {
                    "name": nic.name,
                    "mac": str(nic.mac).replace("-", ":"),
                    "addresses": list(nic.addresses),
                    "boot": None if nic.boot or boots_from_any else False,
                }
            )
            for nic in machine.nics
        ],
        "bmc": bmc,
        "lifecycle": "Parked",
        "policy": policy,
        "kernelArguments": [*(f"-{each}" for each in machine.removed_arguments), *arguments],
        "vars": dict(sorted(machine.vars.items())),
    }
    pending = machine.uuid is None or not machine.nics or bool(unsupported)
    item = ImportedDocument(kind="Server", name=name, pending=pending, remarks=_sort_remarks(remarks))
    comment = (
        "The old system manages this server. To let gitboot manage it, remove `lifecycle`. To install it, set "
        "`provision: 1`."
    )
    return item, {_build_path("servers", name, pending): _render_document(item, comment, spec, labels)}


def _list_missing_facts(machine: ImportedMachine, policy: str | None) -> Iterator[ImportRemark]:
    """Yield remarks on the facts that a source does not contain about a machine."""
    if machine.uuid is None:
        yield _NO_UUID
    has_reason = any(
        "MAC address" in remark.text and remark.kind in (RemarkKind.REJECTED, RemarkKind.MISSING)
        for remark in machine.remarks
    )
    if not machine.nics and not has_reason:
        yield remark_missing("the source does not contain a MAC address: add an interface")
    if machine.architecture is None:
        yield _GUESSED_ARCHITECTURE
    if machine.firmware is None:
        yield _GUESSED_FIRMWARE
    if machine.boot is not None and policy is None:
        yield remark_missing(
            f"the boot {machine.boot} is incomplete or missing: add the missing data, or select another boot"
        )


def _filter_labels(labels: Mapping[str, str]) -> tuple[dict[str, str], list[ImportRemark]]:
    """Return the labels that documents may contain, sorted by key, and a remark for each other label."""
    accepted, remarks = dict[str, str](), list[ImportRemark]()
    for key, value in sorted(labels.items()):
        try:
            accepted[parse_label_key(key)] = parse_label_value(value)
        except Malformed as error:
            remarks.append(remark_lost(f"the label {key} was left out: {error.message}"))
    return accepted, remarks


def _list_unsupported(architecture: str | None) -> list[ImportRemark]:
    if architecture is None or architecture in tuple(Architecture):
        return []
    return [
        remark_missing(
            f"gitboot supports only {' and '.join(Architecture)}, not the architecture {architecture}: leave the "
            "machine out of the fleet"
        )
    ]


def _render_bmc(machine: ImportedMachine) -> tuple[dict[str, Any] | None, list[ImportRemark]]:
    bmc = machine.bmc
    if bmc is None:
        return None, []
    try:
        parse_bmc_address(bmc.address)
    except Malformed:
        return None, [
            remark_lost(
                f"the BMC's address {bmc.address} was left out, because it is not a Redfish or IPMI address: add the "
                "BMC by hand"
            )
        ]
    system = bmc.system if bmc.system and bmc.system.startswith("/") else None
    tls = {} if bmc.verify else {"verify": False}
    return _drop_empty({"address": bmc.address, "system": system, "credentials": bmc.credentials, "tls": tls}), [
        remark_missing(f"store the BMC's user name and password as {bmc.credentials} in the credentials directory"),
        *remark_if(
            bmc.system and not system,
            remark_lost(f"the BMC's system {bmc.system} was left out, because it is not a Redfish path"),
        ),
    ]


# Boots


def _render_boot(name: str, boot: ImportedBoot, extra_data: ExtraData) -> tuple[ImportedDocument, dict[str, str]]:
    artifacts, missing_parts = _render_artifacts(boot, extra_data)
    missing_parts += _list_unsupported(boot.architecture)
    arguments, argument_remarks = _filter_arguments(boot.arguments)
    uki = boot.kernel is None
    pending = bool(missing_parts)
    remarks = (
        *boot.remarks,
        *missing_parts,
        *argument_remarks,
        remark_guessed(
            "the import assumed an installer, and wrote `writesDisk: true` and `networkBoot: Once` (for a diskless "
            "system, write `false` and `Always`)"
        ),
        *remark_if(boot.architecture is None, _GUESSED_ARCHITECTURE),
        *remark_if(
            uki and arguments,
            remark_lost(
                "these arguments were left out, because firmware does not pass arguments to a UKI: "
                f"{' '.join(arguments)}"
            ),
        ),
    )
    item = ImportedDocument(kind="BootProfile", name=name, pending=pending, remarks=_sort_remarks(remarks))
    return item, _render_boot_files(item, boot, artifacts, () if uki else arguments)


def _render_boot_files(
    item: ImportedDocument, boot: ImportedBoot, artifacts: Mapping[str, Any], arguments: Sequence[str]
) -> dict[str, str]:
    """Return the image, the profile, the policy and the user data of a boot, by path."""
    name, data = item.name, boot.data
    template = f"userdata/{name}.j2"
    image = {
        "version": _guess_version(boot),
        "userData": data.format if data else None,
        "writesDisk": True,
        "architectures": {str(boot.architecture or Architecture.X86_64): artifacts},
    }
    is_uki = boot.kernel is None
    profile = {
        "image": name,
        "method": "UefiHttp" if is_uki else "Pxe",
        "httpBoot": "uki" if is_uki else None,
        "kernelArguments": list(arguments),
        "userData": {"format": data.format, "template": template} if data else None,
    }
    policy = {"select": "None", "profile": name, "networkBoot": "Once"}
    documents = (
        ("images", "BootImage", "The digests belong to the files that the old system serves.", image),
        ("profiles", "BootProfile", "This profile defines how a machine boots the image.", profile),
        (
            "policies",
            "BootPolicy",
            "Servers name this policy in their `policy` field. The policy itself does not select servers.",
            policy,
        ),
    )
    files = {}
    for folder, kind, comment, spec in documents:
        document = structs.replace(item, kind=kind)
        files[_build_path(folder, name, item.pending)] = _render_document(document, comment, spec, {})
    if data is not None:
        files[f"{PENDING}/{template}" if item.pending else template] = escape_template(data.text)
    return files


def _render_artifacts(boot: ImportedBoot, extra_data: ExtraData) -> tuple[dict[str, Any], list[ImportRemark]]:
    missing_parts: list[ImportRemark] = []
    if not boot.kernel and not boot.uki:
        missing_parts.append(remark_missing("the boot has no kernel that machines can fetch: add the kernel's URL"))

    def render_artifact(url: str | None) -> dict[str, Any] | None:
        if url is None:
            return None
        if is_secret(url):
            missing_parts.append(
                remark_missing(
                    "a URL contains a user name, a password or a token: store the file at a URL without these secrets"
                )
            )
            return None
        try:
            parse_artifact_url(url)
        except Malformed as error:
            missing_parts.append(remark_missing(f"gitboot does not accept the URL {url}: {error.message}"))
        digest = extra_data.digest(url)
        if digest is None:
            missing_parts.append(
                remark_missing(
                    f"the source does not contain the sha256 of {url}: pass the output of `sha256sum` with --sums"
                )
            )
        return _drop_empty({"url": url, "sha256": digest})

    artifacts = {
        "kernel": render_artifact(boot.kernel),
        "initrds": [each for each in map(render_artifact, boot.initrds) if each],
        "rootfs": render_artifact(boot.rootfs),
        "uki": render_artifact(boot.uki),
    }
    return _drop_empty(artifacts), missing_parts


def _guess_version(boot: ImportedBoot) -> str:
    """Guess the version of a boot from its URLs.

    Return the first dotted number, or the name of the boot if the URLs contain no dotted number.
    """
    for url in boot.urls:
        path = url.partition("://")[2].partition("/")[2] or url
        if version := re.search(r"\d+(?:\.\d+)+", path):
            return version[0]
    return boot.name


def _filter_arguments(arguments: Sequence[str]) -> tuple[tuple[str, ...], list[ImportRemark]]:
    """Return the arguments that documents may contain, and a remark for each other argument."""
    accepted, remarks = list[str](), list[ImportRemark]()
    for argument in arguments:
        try:
            parse_kernel_argument(argument)
            if argument.startswith("-") and argument.strip("-"):
                raise Malformed(Code.SHAPE, "gitboot would interpret -NAME as a request to remove the argument NAME")
            if "{{" not in argument:
                quote_ipxe_arguments([argument])
        except (Malformed, QuotingError) as error:
            remarks.append(remark_lost(f"the kernel argument {argument} was left out: {error.message}"))
        else:
            accepted.append(argument)
    return tuple(accepted), remarks


# Documents


def _build_path(folder: str, name: str, pending: bool) -> str:
    return f"{PENDING}/{folder}/{name}.yaml" if pending else f"{folder}/{name}.yaml"


def _drop_empty(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None and value != [] and value != {}}


def _sort_remarks(remarks: Iterable[ImportRemark]) -> tuple[ImportRemark, ...]:
    order = list(RemarkKind)
    return tuple(sorted(set(remarks), key=lambda each: (order.index(each.kind), each.text)))


def _render_document(item: ImportedDocument, comment: str, spec: Mapping[str, Any], labels: Mapping[str, str]) -> str:
    head = [
        comment,
        f"yaml-language-server: $schema={'../..' if item.pending else '..'}/.gitboot/schemas/{item.kind}.json",
        *(
            f"{each.kind}: {printable(each.text)}"
            for each in item.remarks
            if each.kind in (RemarkKind.GUESSED, RemarkKind.REJECTED, RemarkKind.MISSING)
        ),
    ]
    return render_document(head, item.kind, item.name, _drop_empty(spec), labels=labels)


# Documents for new servers


class NewServer(Struct, frozen=True, kw_only=True):
    """The known facts about a machine that has no document yet."""

    macs: Mapping[MacAddress, str | None]  # the interface names by MAC address; None: the name is unknown
    uuid: SystemUuid | None = None
    serial: str | None = None
    architecture: Architecture | None = None
    firmware: Firmware | None = None
    bmc: Mapping[str, Any] | None = None  # the value of spec.bmc in a Server document


def render_server(name: str, new_server: NewServer, example: Server | None, comment: str) -> str:
    """Return a document for a new server. The server is Parked, so gitboot does not boot the machine.

    The function copies the policy, loader, local disk, Secure Boot setting, kernel arguments, variables and labels from
    ``example``.
    """
    spec: dict[str, Any] = {
        "uuid": new_server.uuid,
        "serial": new_server.serial,
        "architecture": str(new_server.architecture or (example.spec.architecture if example else Architecture.X86_64)),
        "firmware": str(new_server.firmware or (example.spec.firmware if example else Firmware.UEFI)),
        "interfaces": [
            {**({"name": nic_name} if nic_name else {}), "mac": mac.replace("-", ":")}
            for mac, nic_name in new_server.macs.items()
        ],
        "bmc": dict(new_server.bmc) if new_server.bmc is not None else None,
        "lifecycle": "Parked",
    }
    if example is not None:  # copy the fields that similar machines share
        spec |= {
            "policy": example.spec.policy,
            "localDisk": example.spec.local_disk,
            "loader": str(example.spec.loader) if example.spec.loader is not None else None,
            "secureBoot": example.spec.secure_boot,
            "kernelArguments": list(example.spec.kernel_arguments),
            "vars": dict(sorted(example.spec.vars.items())),
        }
    head = [
        comment,
        "yaml-language-server: $schema=../.gitboot/schemas/Server.json",
        "The server is Parked until you decide what it is for. Then remove `lifecycle`. To allow its installation, set "
        "`provision: 1`.",
    ]
    if new_server.uuid is None:
        head.append("The UUID is missing. Until you add it, gitboot does not install the server or contact its BMC.")
    return render_document(
        head, "Server", name, _drop_empty(spec), labels=example.metadata.labels if example is not None else {}
    )


# Report


def summarize_import(fleet: ImportedFleet) -> str:
    """Return a text that states how many servers and boots the import created, and how many of each are pending."""
    parts = []
    for kind, noun in (("Server", "server"), ("BootProfile", "boot")):
        items = [item for item in fleet.items if item.kind == kind]
        pending_count = sum(item.pending for item in items)
        pending = f" ({pending_count:,} pending)" if pending_count else ""
        parts.append(f"{format_count(len(items), noun)}{pending}")
    return ", ".join(parts)


def render_report(system: str, fleet: ImportedFleet, edited_files: Collection[str] = ()) -> str:
    """Return the text of import-report.md.

    ``edited_files`` are the files that the import did not replace because a person had changed them.
    """
    lines = [
        f"# Imported from {system}",
        "",
        f"{summarize_import(fleet)}.",
        "",
        "Each server is Parked and has no `provision`, so gitboot does not install it or use its BMC.",
        f"Incomplete documents are in `{PENDING}/`, which the fleet ignores.",
        "Add the missing data and import again, or complete a document and move it out of the folder.",
    ]
    if without_uuid := sum(_NO_UUID in item.remarks for item in fleet.items):
        lines += (
            "",
            f"{format_count(without_uuid, 'server')} {'has' if without_uuid == 1 else 'have'} no UUID. Two commands "
            "print UUIDs with MAC addresses:",
            "",
            "- `gitboot bmc scan NETWORK` reads the UUIDs from the BMCs.",
            "- `gitboot unknown-machines --state STATE` lists the machines that requested a boot from gitboot.",
            "",
            "Save the output of a command with `-o json=FILE`, or write a `MAC UUID` line for each machine to FILE.",
            "Then import again with `--uuids FILE`.",
        )
    if edited_files:
        lines += ("", "## Changed files that the import did not replace", "")
        lines += (f"- `{path}`" for path in sorted(edited_files))
    if fleet.remarks:
        lines += ("", "## The source as a whole", "", *map(_render_remark, fleet.remarks))
    for kind, title in (("Server", "Servers"), ("BootProfile", "What they boot")):
        items = [item for item in fleet.items if item.kind == kind]
        if items:
            lines += ("", f"## {title}")
        for item in items:
            pending = " (pending)" if item.pending else ""
            lines += ("", f"### {item.name}{pending}", "", *map(_render_remark, item.remarks))
    return "\n".join(lines) + "\n"


def _render_remark(remark: ImportRemark) -> str:
    return f"- **{remark.kind}**: {printable(remark.text)}"
