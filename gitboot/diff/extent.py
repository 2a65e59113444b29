"""How much a commit changes: the counts that guards look at, whatever it is that changes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from gitboot.diff.identities import GainedIdentity, Inheritance
from gitboot.fleet.identities import LostIdentity
from gitboot.jsonio import Digest, digest

Label = tuple[str, str]  # site, fra1


@dataclass(frozen=True, kw_only=True, slots=True)
class Area:
    """How much of a group of servers is touched."""

    label: Label | None  # None: the whole fleet
    size: int  # servers of the old commit, and who moved here and changes
    changed: int  # but for those that only offer less
    less: int  # servers that offer nothing that they did not offer before: no guard counts them
    removed: int  # or retired
    added: int
    reinstalled: int

    def __str__(self) -> str:
        return "=".join(self.label) if self.label else "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class Extent:
    """All that guards judge a commit by."""

    digest: Digest  # of all that changes: an acknowledgement is bound to it
    first: bool  # there is no commit before
    before: int  # how many servers the old commit has
    after: int
    installs: int  # new servers that want a first boot
    reinstalls: int  # servers that can ask for a boot that writes disks, and could not before
    resets: int  # servers that a maintenance can reset while they run, and could not before
    unknown: bool  # whether unknown machines boot something else
    mutated_images: int  # in use, and edited
    disk_claims: int  # images that claim for the first time to write no disk
    access: int  # settings that let more clients fetch
    takeover: bool  # whether another instance may act for the fleet by it
    areas: tuple[Area, ...]  # the whole fleet first
    unknown_claims: tuple[str, ...] = ()  # new servers that boot what claims to write no disk, and none did before
    by_policy: tuple[str, ...] = ()  # of `reinstalls`, servers whose records may show that nothing is installed again
    lost: tuple[LostIdentity, ...] = ()  # identities that machines had, sorted
    gained: tuple[GainedIdentity, ...] = ()  # identities by which machines newly get install boots, sorted
    reinstalled: tuple[str, ...] = ()  # the servers that `reinstalls` counts, if there are gained identities

    def without_reinstalls(self, servers: Collection[str]) -> Extent:
        """Return the same extent without the reinstallations of some servers that it counts."""
        if not servers:
            return self
        left = tuple(each for each in self.reinstalled if each not in servers)
        return replace(self, reinstalls=self.reinstalls - len(servers), reinstalled=left)

    def inheriting(self, found: Collection[Inheritance]) -> Extent:
        """Return the same extent with a digest that covers the identities that servers inherit, if there are any.

        An acknowledgement of the changes alone does not acknowledge that other machines are installed by them.
        """
        if not found:
            return self
        inherited = sorted([each.server, str(each.kind), each.value, each.uuid] for each in found)
        return replace(self, digest=digest(["inherited", inherited, self.digest]))

    def taking_back(self, accepted: str, revision: str) -> Extent:
        """The same of a commit that does not descend from the accepted one: what acknowledges it is bound to both.

        A rewind may change no decision; what acknowledged one says nothing of the next.
        """
        return replace(self, digest=digest(["rewind", accepted, revision, self.digest]))
