"""Emulated APIs: matchbox, BSS, EC2 metadata and HTTP boot."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from gitboot.jsonio import canonical
from gitboot.model.scalars import Malformed, is_placeholder_serial, parse_lookup_mac, parse_lookup_uuid
from gitboot.quoting import ipxe_url
from gitboot.render import paths
from gitboot.render.boot_script_parts import WHO
from gitboot.render.paths import BOOT, ContentType, File, Kind, PathKind, Role

if TYPE_CHECKING:
    from gitboot.resolve.server_decision import Decision, Decisions
    from gitboot.resolve.server_plan import BootPlan

ALIASES: Final = "ops/aliases.json"
FORMAT: Final = 1


class Alias(NamedTuple):
    """One such path."""

    output: str  # of the Fleet, that asks for it
    path: str  # below boot/
    keys: Mapping[str, Kind]  # of its query, in the order in which they count
    kinds: tuple[PathKind, ...]  # what it means; the first that there is
    name: str = ""  # of a file among several


_MACHINE: Final = {"mac": Kind.MAC, "uuid": Kind.UUID, "serial": Kind.SERIAL}
_NODE: Final = {"mac": Kind.MAC, "name": Kind.NAME, "host": Kind.NAME, "nid": Kind.NID}
_TOKEN: Final = {"token": Kind.TOKEN}
_TOKEN_SPELT: Final = re.compile("[0-9a-f]{64}")
_IPXE: Final = (paths.IPXE_BY_MAC, paths.IPXE_BY_UUID, paths.IPXE_BY_SERIAL)
_GRUB: Final = (paths.GRUB_BY_MAC, paths.GRUB_BY_UUID)
TABLE: Final = (
    # matchbox: docs/api-http.md, matchbox/http/server.go; Omni and Sidero ask for /ipxe likewise.
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
# The scripts of unknown machines. The first script names the machine that asks: if its own boot script is there after
# all, the machine gets that, and if it cannot be read, an error. Neither makes it an unknown machine.
FOR_UNKNOWN: Final = {
    alias.path: alias
    for alias in (
        Alias("ipxe", "unknown.ipxe", {"mac": Kind.MAC, "uuid": Kind.UUID}, (paths.IPXE_BY_MAC, paths.IPXE_BY_UUID)),
        Alias("grub", "unknown.grub.cfg", {"mac": Kind.MAC}, (paths.GRUB_BY_MAC,)),
    )
}
METADATA: Final = Alias("matchbox", "metadata", _MACHINE, ())  # made of the query itself, by an endpoint
EC2: Final = "ec2"
EC2_VERSIONS: Final = ("2009-04-04", "latest")  # of EC2's metadata service, which knows a machine by its address
INVENTORY: Final = "inventory"  # an image's word on a machine that nobody described, which an endpoint takes
_BY_PATH: Final = {alias.path: alias for alias in (*TABLE, METADATA)}


def alias_of(path: str, outputs: Collection[str]) -> Alias | None:
    """Return the alias at ``path``, below boot/, in a fleet with these outputs."""
    alias = _BY_PATH.get(path)
    return alias if alias is not None and alias.output in outputs else None


class QueriedBy(NamedTuple):
    """A machine as a query names it."""

    kind: Kind
    value: str  # as the tree spells it


def named(alias: Alias, query: Mapping[str, str]) -> Iterator[QueriedBy]:
    """Yield the valid identities by which a query names a machine."""
    for key, kind in alias.keys.items():
        if (value := query.get(key)) is not None and (parsed := _parsed(kind, value)) is not None:
            yield QueriedBy(kind, parsed)


def _parsed(kind: Kind, value: str) -> str | None:
    try:
        match kind:
            case Kind.MAC:
                return parse_lookup_mac(value)
            case Kind.UUID:
                return parse_lookup_uuid(value)
            case Kind.SERIAL if is_placeholder_serial(value):
                return None
            case Kind.TOKEN:
                return value if _TOKEN_SPELT.fullmatch(value) else None
    except Malformed:
        return None
    return value


def meant(alias: Alias, by: QueriedBy, uuid: str, macs: Collection[str]) -> Iterator[str]:
    """Yield the paths that an alias means for the machine with this UUID and these interfaces, which ``by`` names.

    An entry is looked up by what was said, as at any path of ours: an interface that does not boot leads to none.
    """
    own = {Kind.UUID: uuid, Kind.MAC: next(iter(macs), None)}
    for kind in alias.kinds:
        says_it = by.kind is kind.kind
        if not says_it and kind.role is Role.ENTRY and by.kind in (Kind.MAC, Kind.UUID, Kind.SERIAL):
            continue
        if (value := by.value if says_it else own.get(kind.kind)) is not None:
            yield kind.of(value, by.value if by.kind is Kind.TOKEN else "", alias.name).removeprefix(BOOT)


def entry_by_query(path: str, query: Mapping[str, str]) -> str:
    """Return the entry that ``path``, below boot/, asks for by its query; without such a query, the path itself."""
    if (alias := _BY_PATH.get(path)) is None:
        return path
    entries = (
        kind.of(by.value).removeprefix(BOOT)
        for by in named(alias, query)
        for kind in alias.kinds
        if kind.role is Role.ENTRY and kind.kind is by.kind
    )
    return next(entries, path)


def shared(outputs: Collection[str]) -> Iterator[tuple[str, File]]:
    """Yield the file that tells an endpoint which outputs have aliases."""
    chosen = sorted({EC2, INVENTORY, *(alias.output for alias in _BY_PATH.values())}.intersection(outputs))
    if chosen:
        yield ALIASES, File(canonical({"format": FORMAT, "outputs": chosen}) + b"\n", ContentType.JSON)


def parse(data: bytes) -> frozenset[str]:
    """Return the outputs of a file of `shared`. Raises ValueError for anything else."""
    match json.loads(data):
        case {"format": 1, "outputs": list(outputs)}:
            return frozenset(map(str, outputs))
    raise ValueError(f"not the aliases of format {FORMAT}")


def render(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """``httpboot/<uuid>.json`` for a plan whose boot names a file for firmware to fetch."""
    if plan is None or plan.boot is None or (file := plan.boot.http_boot_file) is None:
        return
    answer = canonical({"SystemUUID": plan.uuid, "UKIURL": file.url})
    yield paths.HTTP_BOOT.of(plan.uuid), File(answer + b"\n", ContentType.JSON)


def shared_httpboot(decisions: Decisions) -> Iterator[tuple[str, File]]:
    """Yield the answer for firmware that asks from an address of no server, as boot-operator's default is.

    That is the image of unknown machines in a form that firmware can start: its uki, its own loader, its iso. The
    question does not say for which architecture: it is x86_64 where there is one for that.
    """
    from gitboot.model.server import Architecture  # only here: endpoints read this module, and start without the model

    boots = decisions.unknown or {}
    images = [boots[each].files for each in (Architecture.X86_64, Architecture.AARCH64) if each in boots]
    if (file := next(filter(None, (each.uki or each.loader or each.iso for each in images)), None)) is not None:
        yield paths.UNKNOWN_HTTP_BOOT, File(canonical({"UKIURL": file.url}) + b"\n", ContentType.JSON)


def pixiecore(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """Yield pixiecore's answer for a server that boots from the network: a script that asks for its entry.

    Pixiecore asks at each DISCOVER, on its own behalf; so it is given no boot, but where the machine gets its own
    (pixiecore: README.api.md; ``ipxe-script`` in booters.go).
    """
    if plan is None or plan.boot is None:
        return
    for mac in plan.macs:
        url = f"{plan.base_url}/{paths.IPXE_BY_MAC.of(mac).removeprefix(paths.BOOT)}"
        script = f"#!ipxe\nchain --autofree {ipxe_url(url)}{WHO}\n"
        yield paths.PIXIECORE.of(mac), File(canonical({"ipxe-script": script}) + b"\n")


def boot_parameters(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """Yield the boot parameters of BSS, for people and tools. They leave out a boot that writes a disk.

    One list of one, as BSS answers who asks for one machine (bss: api/swagger.yaml, BootParams).
    """
    shown: dict[str, object] = {"hosts": [decision.server], "macs": [mac.replace("-", ":") for mac in decision.macs]}
    boot = plan.boot if plan is not None and not plan.writes_disk else None
    if boot is not None and not boot.direct:
        initrds = [each.url for each in boot.files.initrds]
        shown |= {"kernel": boot.loaded_kernel.url, "params": " ".join(boot.kernel_arguments)}
        shown |= {"initrd": initrds[0]} if initrds else {}
    file = File(canonical([shown]) + b"\n", ContentType.JSON)
    yield from ((paths.BOOT_PARAMETERS.of(mac), file) for mac in decision.macs)
