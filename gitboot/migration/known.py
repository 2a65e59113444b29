"""What people know and the old system does not: the UUIDs of machines, the digests of files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gitboot.errors import UsageError
from gitboot.importers.inventory import ImportedMachine
from gitboot.model.scalars.artifacts import parse_digest
from gitboot.model.scalars.machines import SystemUuid, parse_lookup_uuid, parse_mac
from gitboot.model.scalars.texts import Malformed


@dataclass(frozen=True, kw_only=True, slots=True)
class Supplement:
    """UUIDs by MAC address or name, digests by the path of a file."""

    uuids: Mapping[str, SystemUuid] = field(default_factory=dict)
    sums: Mapping[str, str] = field(default_factory=dict)

    def uuid(self, machine: ImportedMachine) -> SystemUuid | None:
        """The source's own word first, then what is known of one of its MAC addresses, then of its name."""
        found = (self.uuids.get(key) for key in (*(str(nic.mac) for nic in machine.nics), machine.name))
        return machine.uuid or next(filter(None, found), None)

    def digest(self, url: str) -> str | None:
        """The digest of the file whose path ends as the URL does, the longest such path; None: nobody knows it."""
        path = url.partition("assets:")[2] if url.startswith("assets:") else urlsplit(url).path
        parts = path.strip("/").split("/")
        endings = ("/".join(parts[first:]) for first in range(len(parts)))
        return next((self.sums[each] for each in endings if each in self.sums), None)


def uuids_of(text: str, path: str) -> dict[str, SystemUuid]:
    """Lines ``MAC UUID`` or ``NAME UUID``; raises `UsageError` with the line that is neither."""
    found = {}
    for number, (key, value) in _pairs(text, path):
        try:
            found[_mac_or_name(key)] = parse_lookup_uuid(value)
        except Malformed as error:
            raise UsageError(f"{path}:{number}: {error.message}; {error.hint}") from None
    return found


def sums_of(text: str, path: str) -> dict[str, str]:
    """What ``sha256sum`` prints; raises `UsageError` with the line that it does not."""
    found: dict[str, str] = {}
    for number, (digest, name) in _pairs(text, path):
        try:
            found[name.removeprefix("*").removeprefix("./").strip("/")] = parse_digest(digest)
        except Malformed as error:
            raise UsageError(f"{path}:{number}: {error.message}; {error.hint}") from None
    return found


def _pairs(text: str, path: str) -> Iterable[tuple[int, tuple[str, str]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        first, _, second = line.strip().partition(" ")
        if not second.strip():
            raise UsageError(f"{path}:{number}: expected two words, found one")
        yield number, (first, second.strip())


def _mac_or_name(key: str) -> str:
    try:
        return str(parse_mac(key))
    except Malformed:
        return key
