"""Which BootImages a commit adds, removes or edits, and who boots them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gitboot.diff.documents import DocumentChange, Fate, plain
from gitboot.fleet.resources import FleetRepository, Id
from gitboot.jsonio import Digest, digest
from gitboot.resolve.server_decision import Boot, Decision, Decisions


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageChange:
    """A BootImage that was added, removed or edited."""

    name: str
    fate: Fate
    in_use: int  # servers of either commit that can boot it; unknown machines count as one
    pair: tuple[Digest | None, Digest | None]  # of what it is, before and after

    @property
    def mutated(self) -> bool:
        return self.fate is Fate.EDITED and self.in_use > 0


def is_mutated(change: DocumentChange) -> bool:
    """Whether what an image is was edited, not only what it is called by labels."""
    return change.fate is Fate.EDITED and any(field.path[0] == "spec" for field in change.fields)


def image_changes(
    documents: Mapping[Id, DocumentChange],
    both: tuple[Decisions | None, Decisions],
    repositories: tuple[FleetRepository | None, FleetRepository],
    touched: frozenset[str],
) -> Iterator[ImageChange]:
    """Every BootImage that is another, by name, and how many servers boot it: all of them are ``touched``."""
    changed = [change for key, change in documents.items() if key.kind == "BootImage"]
    if not changed:
        return
    uses: dict[str, set[str]] = {}
    for decisions in filter(None, both):
        for name in touched:
            for image in booted(decisions.servers.get(name)):
                uses.setdefault(image, set()).add(name)
        for boot in (decisions.unknown or {}).values():
            uses.setdefault(boot.image, set()).add("")
    for change in changed:
        if change.fate is not Fate.EDITED or is_mutated(change):
            name = change.id.name
            pair = tuple(_digest(repository, name) for repository in repositories)
            yield ImageChange(name=name, fate=change.fate, in_use=len(uses.get(name, ())), pair=(pair[0], pair[1]))


def _digest(repository: FleetRepository | None, image: str) -> Digest | None:
    """The digest of what an image is; None where there is none."""
    if repository is None or image not in repository.images:
        return None
    return digest(plain(repository.images[image])["spec"])


def booted(decision: Decision | None) -> Iterator[str]:
    """The images that a server can boot."""
    return (boot.image for boot in _boots(decision))


def _boots(decision: Decision | None) -> Iterator[Boot]:
    """Every boot from the network that a decision has."""
    if decision is None:
        return
    if decision.policy is not None and decision.policy.boot is not None:
        yield decision.policy.boot
    yield from (maintenance.boot for maintenance in decision.maintenances if maintenance.boot is not None)
