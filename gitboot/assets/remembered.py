"""What was seen of artifacts, kept in a file that can be deleted: what was read is not read again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gitboot.assets.sighting import ArtifactHead, Presence, Sighting
from gitboot.canonical import canonical
from gitboot.facts import facts
from gitboot.files import write_whole
from gitboot.model.scalars import Digest
from gitboot.plan import BootFile

_VERSION: Final = 1


def read_sightings(path: Path) -> dict[BootFile, Sighting]:
    """What the file at ``path`` has; nothing where there is none, or none that can be used."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        found = json.loads(path.read_bytes())
        if found["version"] == _VERSION:
            return dict(map(_read, found["items"]))
    return {}


def write_sightings(path: Path, sightings: Mapping[BootFile, Sighting]) -> None:
    """Replace the file as a whole; what nobody knows is left out. Raises OSError."""
    known = {file: each for file, each in sightings.items() if each.presence is not Presence.UNKNOWN}
    items = [{**file.facts(), **facts(each)} for file, each in sorted(known.items(), key=_order)]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, canonical({"version": _VERSION, "items": items}) + b"\n")


def _order(each: tuple[BootFile, Sighting]) -> tuple[str, str, int]:
    file = each[0]
    return file.url, file.sha256, file.size or 0


def _read(item: Mapping[str, Any]) -> tuple[BootFile, Sighting]:
    said = item["head"]
    head = ArtifactHead(
        size=said["size"], content_type=said["contentType"], version=said["version"], led_to=said["ledTo"]
    )
    file = BootFile(url=item["url"], sha256=Digest(item["sha256"]), size=item["size"])
    return file, Sighting(presence=Presence(item["presence"]), message=item["message"], head=head)
