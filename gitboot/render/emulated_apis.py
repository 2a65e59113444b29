"""Emulated APIs of other systems: matchbox, BSS, EC2 metadata and HTTP boot."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from gitboot.jsonio import encode_canonical, parse_json
from gitboot.model.scalars import Malformed, is_placeholder_serial, parse_lookup_mac, parse_lookup_uuid
from gitboot.quoting import build_command_line, check_ipxe_url, fill_boot_nic, has_boot_nic_placeholder
from gitboot.render import paths
from gitboot.render.boot_script_parts import IDENTITY_QUERY
from gitboot.render.paths import BOOT, ContentType, File, IdentityKind, PathKind, Role

if TYPE_CHECKING:
    from gitboot.resolve.server_decision import Decision, Decisions
    from gitboot.resolve.server_plan import BootPlan

ALIASES: Final = "ops/aliases.json"
FORMAT: Final = 1


class Alias(NamedTuple):
    """A path of another system's API. The query of the request identifies the machine."""

    output: str  # the output of the Fleet that enables the alias
    path: str  # path below boot/
    keys: Mapping[str, IdentityKind]  # query keys, in order of precedence
    kinds: tuple[PathKind, ...]  # the kinds of paths that the alias refers to; the first existing path is served
    name: str = ""  # the file name, if these paths contain a file name


_MACHINE: Final = {"mac": IdentityKind.MAC, "uuid": IdentityKind.UUID, "serial": IdentityKind.SERIAL}
_NODE: Final = {"mac": IdentityKind.MAC, "name": IdentityKind.NAME, "host": IdentityKind.NAME, "nid": IdentityKind.NID}
_TOKEN: Final = {"token": IdentityKind.TOKEN}
_TOKEN_PATTERN: Final = re.compile("[0-9a-f]{64}")
_IPXE: Final = (paths.IPXE_BY_MAC, paths.IPXE_BY_UUID, paths.IPXE_BY_SERIAL)
_GRUB: Final = (paths.GRUB_BY_MAC, paths.GRUB_BY_UUID)
TABLE: Final = (
    # matchbox: docs/api-http.md, matchbox/http/server.go. Omni and Sidero fetch /ipxe too.
    Alias("matchbox", "ipxe", _MACHINE, _IPXE),
    Alias("matchbox", "grub", _MACHINE, _GRUB),
    Alias("matchbox", "ignition", _MACHINE, (paths.USER_DATA,), "ignition"),
    Alias("matchbox", "cloud", _MACHINE, (paths.USER_DATA,), "cloud"),
    Alias("matchbox", "generic", _MACHINE, (paths.USER_DATA,), "generic"),
    # BSS: api/swagger.yaml; boot-service: pkg/handlers/boot/handlers.go.
    Alias("bss", "boot/v1/bootscript", _NODE, _IPXE),
    Alias("bss", "bootscript", _NODE, _IPXE),
    Alias("bss", "boot/v1/bootparameters", _NODE, (paths.BOOT_PARAMETERS,)),
    # Foreman: app/controllers/unattended_controller.rb.
    Alias("foreman", "unattended/built", _TOKEN, (paths.PROVISIONED,)),
    Alias("foreman", "unattended/failed", _TOKEN, (paths.FAILED,)),
)
# The scripts for unknown machines. The first script sends the identity of the machine in the query. If the machine has
# a boot script, the endpoint returns the boot script, or an error if it cannot read the boot script. So a known machine
# never boots as an unknown machine.
FOR_UNKNOWN: Final = {
    alias.path: alias
    for alias in (
        Alias(
            "ipxe",
            "unknown.ipxe",
            {"mac": IdentityKind.MAC, "uuid": IdentityKind.UUID},
            (paths.IPXE_BY_MAC, paths.IPXE_BY_UUID),
        ),
        Alias("grub", "unknown.grub.cfg", {"mac": IdentityKind.MAC}, (paths.GRUB_BY_MAC,)),
    )
}
METADATA: Final = Alias("matchbox", "metadata", _MACHINE, ())  # an endpoint builds the response from the query
EC2: Final = "ec2"
# A path of the EC2 metadata service, which identifies a machine by its IP address.
EC2_VERSIONS: Final = ("2009-04-04", "latest")
INVENTORY: Final = "inventory"  # endpoints accept the inventory that an image sends from an unknown machine
_BY_PATH: Final = {alias.path: alias for alias in (*TABLE, METADATA)}


def find_alias(path: str, outputs: Collection[str]) -> Alias | None:
    """Return the alias at ``path``, or None if none of the fleet's ``outputs`` enables an alias there.

    ``path`` is relative to boot/.
    """
    alias = _BY_PATH.get(path)
    return alias if alias is not None and alias.output in outputs else None


class QueryIdentity(NamedTuple):
    """A machine identity from the query of a request."""

    kind: IdentityKind
    value: str  # the identity in the output tree's spelling


def parse_query_identities(alias: Alias, query: Mapping[str, str]) -> Iterator[QueryIdentity]:
    """Yield the valid machine identities in a query."""
    for key, kind in alias.keys.items():
        if (value := query.get(key)) is not None and (parsed := _parse_value(kind, value)) is not None:
            yield QueryIdentity(kind, parsed)


def _parse_value(kind: IdentityKind, text: str) -> str | None:
    try:
        match kind:
            case IdentityKind.MAC:
                return parse_lookup_mac(text)
            case IdentityKind.UUID:
                return parse_lookup_uuid(text)
            case IdentityKind.SERIAL if is_placeholder_serial(text):
                return None
            case IdentityKind.TOKEN:
                return text if _TOKEN_PATTERN.fullmatch(text) else None
    except Malformed:
        return None
    return text


def list_alias_paths(alias: Alias, identity: QueryIdentity, uuid: str, macs: Collection[str]) -> Iterator[str]:
    """Yield the paths of an alias for a machine with ``uuid`` and ``macs``.

    ``identity`` is the identity in the query. Only this identity selects a boot script. Therefore, a query with the MAC
    address of an interface that may not boot does not select a boot script.
    """
    machine_identities = {IdentityKind.UUID: uuid, IdentityKind.MAC: next(iter(macs), None)}
    identifies_machine = identity.kind in (IdentityKind.MAC, IdentityKind.UUID, IdentityKind.SERIAL)
    token = identity.value if identity.kind is IdentityKind.TOKEN else ""
    for kind in alias.kinds:
        if kind.identity_kind is identity.kind:
            value: str | None = identity.value
        elif kind.role is Role.BOOT_SCRIPT and identifies_machine:
            continue
        else:
            value = machine_identities.get(kind.identity_kind)
        if value is not None:
            yield kind.build_path(value, token, alias.name).removeprefix(BOOT)


def find_boot_script_path(path: str, query: Mapping[str, str]) -> str:
    """Return the path of the boot script that an alias and its query select.

    If they do not select a boot script, return ``path``. All paths are relative to boot/.
    """
    if (alias := _BY_PATH.get(path)) is None:
        return path
    script_paths = (
        kind.build_path(identity.value).removeprefix(BOOT)
        for identity in parse_query_identities(alias, query)
        for kind in alias.kinds
        if kind.role is Role.BOOT_SCRIPT and kind.identity_kind is identity.kind
    )
    return next(script_paths, path)


def render_alias_list(outputs: Collection[str]) -> Iterator[tuple[str, File]]:
    """Yield the file that lists the outputs with aliases that the fleet enables. Endpoints read this file."""
    chosen = sorted({EC2, INVENTORY, *(alias.output for alias in _BY_PATH.values())}.intersection(outputs))
    if chosen:
        yield ALIASES, File(encode_canonical({"format": FORMAT, "outputs": chosen}) + b"\n", ContentType.JSON)


def parse_alias_list(data: bytes) -> frozenset[str]:
    """Return the outputs that a file from `render_alias_list` contains. Raises `ValueError` for other content."""
    match parse_json(data):
        case {"format": 1, "outputs": list(outputs)}:
            return frozenset(map(str, outputs))
    raise ValueError(f"the file is not a list of aliases in format {FORMAT}")


def render_http_boot(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """Yield ``httpboot/<uuid>.json`` if the planned boot has a file that firmware can fetch."""
    if plan is None or plan.boot is None or (file := plan.boot.http_boot_file) is None:
        return
    answer = encode_canonical({"SystemUUID": plan.uuid, "UKIURL": file.url})
    yield paths.HTTP_BOOT.build_path(plan.uuid), File(answer + b"\n", ContentType.JSON)


def render_unknown_http_boot(decisions: Decisions) -> Iterator[tuple[str, File]]:
    """Yield the HTTP boot response for an address that does not belong to a server.

    The response corresponds to the default response of boot-operator. It contains the URL of a file that firmware can
    start: a UKI, a loader or an ISO of the image for unknown machines. The request does not contain an architecture, so
    an image for x86_64 takes precedence.
    """
    from gitboot.model.server import Architecture  # imported here, because endpoints start without the model

    boots = decisions.unknown or {}
    for architecture in (Architecture.X86_64, Architecture.AARCH64):
        if architecture not in boots:
            continue
        files = boots[architecture].files
        if (file := files.uki or files.loader or files.iso) is not None:
            yield paths.UNKNOWN_HTTP_BOOT, File(encode_canonical({"UKIURL": file.url}) + b"\n", ContentType.JSON)
            return


def render_pixiecore(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """Yield the Pixiecore response for a server that boots from the network: a script that fetches the boot script.

    Pixiecore sends a request for each DHCPDISCOVER, even if the machine does not boot. So the response does not contain
    the boot itself (pixiecore: README.api.md; ``ipxe-script`` in booters.go).
    """
    if plan is None or plan.boot is None:
        return
    for mac in plan.macs:
        url = f"{plan.base_url}/{paths.IPXE_BY_MAC.build_path(mac).removeprefix(paths.BOOT)}"
        script = f"#!ipxe\nchain --autofree {check_ipxe_url(url)}{IDENTITY_QUERY}\n"
        yield paths.PIXIECORE.build_path(mac), File(encode_canonical({"ipxe-script": script}) + b"\n")


def render_boot_parameters(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """Yield BSS boot parameters for people and tools.

    The parameters do not include boots that write a disk. The response is a list with one item, like the BSS response
    for a single machine (bss: api/swagger.yaml, BootParams).
    """
    parameters: dict[str, object] = {
        "hosts": [decision.server],
        "macs": [mac.replace("-", ":") for mac in decision.macs],
    }
    arguments = ""
    boot = plan.boot if plan is not None and not plan.writes_disk else None
    if boot is not None and not boot.is_direct:
        arguments = build_command_line(boot.kernel_arguments)
        parameters |= {"kernel": boot.loaded_kernel.url, "params": arguments}
        if boot.files.initrds:
            parameters["initrd"] = boot.files.initrds[0].url
    for mac in decision.macs:
        if has_boot_nic_placeholder(arguments):
            parameters["params"] = fill_boot_nic(arguments, mac)
        content = encode_canonical([parameters]) + b"\n"
        yield paths.BOOT_PARAMETERS.build_path(mac), File(content, ContentType.JSON)
