"""Whether the resources of a revision hold together: one Fleet, no identity twice, no name of what is not there."""

from __future__ import annotations

from collections.abc import Iterator

from gitboot.document import Path
from gitboot.load.blobs import is_lfs_pointer, oversized
from gitboot.load.draft import Draft
from gitboot.load.identities import Identity, identities, place_of
from gitboot.load.problems import START, problem_at
from gitboot.load.references import references
from gitboot.load.resources import Id
from gitboot.load.snapshot import Oversized
from gitboot.model.fleet import Fleet
from gitboot.model.scalars import is_placeholder_uuid, shown
from gitboot.model.server import Server, is_placeholder_serial
from gitboot.phrases import did_you_mean
from gitboot.problems.codes import Code
from gitboot.problems.problem import Problem


def check(draft: Draft) -> Iterator[Problem]:
    """Everything that is wrong between resources; the files that they name are read into the draft."""
    yield from _missing_fleet(draft)
    yield from _duplicate_identities(draft)
    yield from _ambiguous_bmcs(draft)
    yield from _reports_of_nothing(draft)
    yield from _dangling_references(draft)


def _missing_fleet(draft: Draft) -> Iterator[Problem]:
    fleets = [key for key, _ in draft.of(Fleet)]
    if not fleets and not draft.nameless and not any(key.kind == "Fleet" for key in draft.known()):
        yield problem_at("fleet.yaml", START, Code.NO_FLEET, "the repository has no document of kind Fleet")
    for other in fleets[1:]:
        file, place = draft.place(fleets[0], ("metadata", "name"))
        yield draft.problem(
            Code.DUPLICATE_NAME,
            f"there is one Fleet a repository, and {fleets[0]} stands at {file}:{place.line}",
            "keep one of the two",
            other,
            ("metadata", "name"),
        )


def _duplicate_identities(draft: Draft) -> Iterator[Problem]:
    first: dict[tuple[str, str], tuple[Id, Identity]] = {}
    for key, server in draft.of(Server):
        for identity in identities(server):
            holder, held = first.setdefault((identity.what, identity.same), (key, identity))
            if held is not identity:
                file, place = draft.place(holder, held.path)
                spelt = f", as {held.value}" if held.value != identity.value else ""
                yield draft.problem(
                    Code.DUPLICATE_IDENTITY,
                    f"{identity.what} {identity.value} is {holder}'s at {file}:{place.line} already{spelt}",
                    "correct the one that is wrong, or remove the document of a machine that is gone",
                    key,
                    identity.path,
                )


def _ambiguous_bmcs(draft: Draft) -> Iterator[Problem]:
    """Servers that mean the only system of a BMC of which another server names one."""
    servers = [(key, server.spec.bmc) for key, server in draft.of(Server) if server.spec.bmc is not None]
    named = {place_of(bmc.address, None): key for key, bmc in reversed(servers) if bmc.system is not None}
    for key, bmc in servers:
        if bmc.system is None and (other := named.get(place_of(bmc.address, None))):
            message = f"the BMC {bmc.address} is {other}'s too, which names its system there"
            hint = "name the system of this server as well, or correct the address"
            yield draft.problem(Code.DUPLICATE_IDENTITY, message, hint, key, ("spec", "bmc", "address"))


def _reports_of_nothing(draft: Draft) -> Iterator[Problem]:
    for key, server in draft.of(Server):
        for at, message in reports_of_nothing(server):
            yield draft.problem(Code.COMBINATION, message, "leave it out: it is never compared", key, at)


def reports_of_nothing(server: Server) -> Iterator[tuple[Path, str]]:
    """What a BMC is said to show that tells its machine from no other: where it stands, and why it does not."""
    reports = server.spec.bmc.reports if server.spec.bmc is not None else None
    if reports is None:
        return
    at: Path = ("spec", "bmc", "reports")
    if reports.uuid is None and reports.serial is None:
        yield at, "bmc.reports says neither uuid nor serial"
    if reports.uuid is not None and is_placeholder_uuid(reports.uuid):
        yield (*at, "uuid"), f"{shown(reports.uuid)} is what boards show on which nobody has set one"
    if reports.serial is not None and is_placeholder_serial(reports.serial):
        yield (*at, "serial"), f"{shown(reports.serial)} is what boards show on which nobody has set one"


def _dangling_references(draft: Draft) -> Iterator[Problem]:
    known = draft.known()
    for key, resource in sorted(draft.resources.items()):
        for kind, name, at in references(resource):
            if kind == "file":
                yield from _missing_file(draft, key, name, at)
            elif Id(kind, name) not in known and not draft.nameless:
                names = (other.name for other in known if other.kind == kind)
                hint = did_you_mean(name, names, f"add a {kind} of this name, or correct the name")
                yield draft.problem(Code.UNKNOWN_REFERENCE, f'there is no {kind} named "{name}"', hint, key, at)


def _missing_file(draft: Draft, key: Id, name: str, at: Path) -> Iterator[Problem]:
    blobs = draft.snapshot.blobs
    if name not in blobs:
        if any(f"{name}/".startswith(f"{irregular}/") for irregular in draft.irregular):
            return
        hint = did_you_mean(name, blobs, "add the file; paths start at the fleet's root")
        yield draft.problem(Code.UNKNOWN_REFERENCE, f"there is no file {shown(name)}", hint, key, at)
        return
    try:
        data = draft.snapshot.read(blobs[name])
    except Oversized as error:
        yield oversized(*draft.place(key, at), error)
        return
    if is_lfs_pointer(data):
        message = f"{shown(name)} is a Git LFS pointer"
        yield draft.problem(Code.LFS_POINTER, message, Code.LFS_POINTER.hint, key, at)
    else:
        draft.files[name] = data
