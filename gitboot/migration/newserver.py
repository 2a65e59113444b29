"""A new server as the document that `gitboot init` would have written: of what was seen, or of another server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gitboot.jsonio import API_VERSION
from gitboot.model.scalars.machines import MacAddress, SystemUuid
from gitboot.model.server import Architecture, Firmware, Server


@dataclass(frozen=True, kw_only=True, slots=True)
class NewServer:
    """What is known of a machine before anybody has described it."""

    macs: Mapping[MacAddress, str | None]  # with the names of the interfaces, as far as they are known
    uuid: SystemUuid | None = None
    serial: str | None = None
    architecture: Architecture | None = None
    firmware: Firmware | None = None
    bmc: Mapping[str, Any] | None = None  # as a document has it


def new_document(name: str, new: NewServer, like: Server | None, about: str) -> str:
    """The document, Parked so that nothing is booted or set by it; of ``like`` it has what is no one machine's own."""
    spec: dict[str, Any] = {
        "uuid": new.uuid,
        "serial": new.serial,
        "architecture": str(new.architecture or (like.spec.architecture if like else Architecture.X86_64)),
        "firmware": str(new.firmware or (like.spec.firmware if like else Firmware.UEFI)),
        "interfaces": [
            {**({"name": its} if its else {}), "mac": mac.replace("-", ":")} for mac, its in new.macs.items()
        ],
        "bmc": dict(new.bmc) if new.bmc is not None else None,
        "lifecycle": "Parked",
        **(_shared(like) if like is not None else {}),
    }
    labels = dict(like.metadata.labels) if like is not None else {}
    metadata = {"name": name, **({"labels": labels} if labels else {})}
    present = {key: value for key, value in spec.items() if value not in (None, [], {})}
    body = {"apiVersion": API_VERSION, "kind": "Server", "metadata": metadata, "spec": present}
    text = yaml.dump(body, Dumper=_PlainDumper, sort_keys=False, allow_unicode=True, width=1 << 20)
    head = (
        about,
        "yaml-language-server: $schema=../.gitboot/schemas/Server.json",
        *_HINTS,
        *(_UUID if new.uuid is None else ()),
    )
    return "".join(f"# {line}\n" for line in head) + text


_HINTS = ("Parked until somebody knows what it is to be: take that line out then; provision: 1 lets it be installed.",)

_UUID = ("Its UUID is not known: nothing is installed, and no BMC asked, until it stands here.",)


def _shared(like: Server) -> dict[str, Any]:
    """What machines of one kind have in common, as their documents say it."""
    spec = like.spec
    return {
        "policy": spec.policy,
        "localDisk": spec.local_disk,
        "loader": str(spec.loader) if spec.loader is not None else None,
        "kernelArguments": list(spec.kernel_arguments),
        "vars": dict(sorted(spec.vars.items())),
    }


class _PlainDumper(yaml.SafeDumper):
    """YAML without anchors, which documents must not have."""

    def ignore_aliases(self, _: Any) -> bool:
        return True
