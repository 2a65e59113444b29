"""What the format has and this version does not carry out: refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Iterator

from gitboot.fleet.resources import FleetRepository, Id
from gitboot.model.fleet import UnknownProfile
from gitboot.problems.codes import Code, Problem


def not_yet(repository: FleetRepository) -> Iterator[Problem]:
    """A problem for each use of something that comes with a later version."""
    fleet = repository.fleet
    if isinstance(unknown := fleet.spec.unknown_servers, UnknownProfile):
        profile = repository.profiles.get(unknown.profile)  # None: of a commit that does not hold together
        if profile is not None and (profile.spec.templates.ipxe or profile.spec.templates.grub):
            what = "entries of one's own for unknown machines"
            key = Id("Fleet", fleet.metadata.name)
            yield _later(repository, what, key, "spec", "unknownServers", "profile")


def _later(repository: FleetRepository, what: str, resource: Id, *path: str | int) -> Problem:
    message = f"this version of gitboot does not carry out {what}"
    return repository.problem(Code.NOT_YET, message, resource, *path, hint="leave it out until a version has it")
