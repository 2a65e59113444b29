"""What the documents below ``ops/`` say of a server: its plan in short, its entries, its next transition."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from gitboot.model.image import ConfigFrom
from gitboot.model.policy import HttpBoot, Method
from gitboot.model.scalars import Digest, SystemUuid, swapped
from gitboot.plan import provisioned_token
from gitboot.render.answers import EntryOf, Turn
from gitboot.render.paths import IPXE_BY_SERIAL, PROVISIONED, is_report
from gitboot.render.tree import File, Files

PLANS: Final = "ops/plans/"
NEXT: Final = "ops/next/"


class Planned(NamedTuple):
    """What answers need to know of one server's plan."""

    file: File  # that says it
    summary: Mapping[str, Any]
    entries: Mapping[str, EntryOf]


def read_plan(path: str, files: Files) -> Planned | None:
    """What ``ops/plans/<server>.json`` says; None if it is withdrawn by now."""
    if (file := files.get(path)) is None:
        return None
    document = json.loads(file.content)
    paths = [each for each in _paths(document) if each in files]
    return Planned(file, _summary(document), dict(_entries(document, paths)))


def read_next(path: str, files: Files) -> dict[str, tuple[Turn, ...]]:
    """The turns that ``ops/next/<server>.json`` announces, by path."""
    turns: dict[str, tuple[Turn, ...]] = {}
    document = json.loads(file.content) if (file := files.get(path)) is not None else {"items": []}
    for item in document["items"]:
        at = datetime.fromisoformat(item["at"])
        for name, turn in item["files"].items():
            stored, digest = turn["content"], turn["digest"]
            content = None if stored is None else files.get(f"boot/{stored}")
            if stored is None or content is not None:
                entry = EntryOf(document["server"], Digest(digest)) if digest is not None else None
                turns[f"boot/{name}"] = (*turns.get(f"boot/{name}", ()), Turn(at, content, entry))
    return turns


def _paths(document: Mapping[str, Any]) -> Iterator[str]:
    """Where those files of a server may stand that change in place."""
    decision = document["decision"]
    boot = (decision["policy"] or {}).get("boot")
    for mac in decision["macs"]:
        yield from (f"boot/v1/boot/{mac}/{name}" for name in ("boot.ipxe", "grub.cfg"))
        yield from (f"boot/grub.cfg-01-{mac}", f"boot/pxelinux.cfg/01-{mac}")
        if boot is not None:
            yield PROVISIONED.of(mac, provisioned_token(decision["uuid"], decision["provision"], boot["image"]))
    for uuid in sorted({decision["uuid"], swapped(SystemUuid(decision["uuid"]))}):
        yield from (f"boot/ipxe/{uuid}", f"boot/ignition/{uuid}", f"boot/grub.cfg-{uuid}")
    if (serial := decision.get("serial")) is not None:
        yield IPXE_BY_SERIAL.of(serial)


def _entries(document: Mapping[str, Any], paths: list[str]) -> Iterator[tuple[str, EntryOf]]:
    """The paths whose completed GET is evidence, as ``gitboot.render.schedule`` has them."""
    server, plan = document["decision"]["server"], document["plan"]
    yield from ((path, EntryOf(server, Digest(path.rpartition("/")[2]))) for path in paths if is_report(path))
    if plan is None or (boot := plan["boot"]) is None:
        return
    by_uuid = _is_direct(boot) and boot["configFrom"] == ConfigFrom.SYSTEM_UUID
    if _is_direct(boot) and not by_uuid and not _has_uki(boot):
        return
    for path in paths:
        if not is_report(path) and path.startswith("boot/ignition/") == by_uuid:
            yield path, EntryOf(server, Digest(document["digest"]))


def _has_uki(boot: Mapping[str, Any]) -> bool:
    """As ``Boot.direct_uki`` is there."""
    return "uki" in boot["files"] if boot["method"] == Method.PXE else bool(boot["httpBoot"] == HttpBoot.UKI)


def _is_direct(boot: Mapping[str, Any]) -> bool:
    """As ``Boot.direct``."""
    if boot["method"] == Method.PXE:
        return "kernel" not in boot["files"]
    return bool(boot["httpBoot"] != HttpBoot.LOADER)


def _summary(document: Mapping[str, Any]) -> dict[str, Any]:
    """As an instance tells it, but for the list of files and for what is known, which no document of a server holds."""
    decision, plan = document["decision"], document["plan"] or {}
    boot = plan.get("boot") or {}
    return {
        "server": decision["server"],
        "uuid": decision["uuid"],
        "macs": decision["macs"],
        "policy": decision["policy"] and decision["policy"]["policy"],
        "profile": boot.get("profile"),
        "image": boot.get("image"),
        "version": boot.get("version"),
        "method": boot.get("method"),
        "kernelArguments": boot.get("kernelArguments", []),
        "files": {},
        "provisioned": None,
        "drift": {},
        **{name: plan.get(name) for name in ("phase", "cause", "maintenance", "override")},
        **{name: document[name] for name in ("digest", "decisionDigest", "nextTransition")},
    }
