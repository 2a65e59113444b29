"""Whether the resources of a revision hold together: one Fleet, no identity twice, no name of what is not there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from itertools import groupby
from typing import Final

from gitboot.fleet.documents import START, NotSealed, is_lfs_pointer, problem_at, sealed, too_large
from gitboot.fleet.identities import Identity, identities, place_of
from gitboot.fleet.resources import Id
from gitboot.fleet.revision import Oversized
from gitboot.load.draft import Draft
from gitboot.load.references import references
from gitboot.load.remarks import Remark
from gitboot.model.fleet import Fleet
from gitboot.model.scalar_from_document import Path
from gitboot.model.scalars.names import AGE
from gitboot.model.scalars.texts import shown
from gitboot.model.server import Server
from gitboot.problems.codes import Code
from gitboot.text import near


def check(draft: Draft) -> None:
    """Note everything that is wrong between resources; the files that they name are read into the draft."""
    if "Fleet" not in draft.unread.kinds and not any(key.kind == "Fleet" for key in draft.known()):
        message = "the repository has no document of kind Fleet"
        draft.problems.append(problem_at("fleet.yaml", START, Code.NO_FLEET, message))
    draft.remarks += _second_fleets(draft)
    draft.remarks += _duplicate_identities(draft)
    draft.remarks += _ambiguous_bmcs(draft)
    draft.remarks += _reports_of_nothing(draft)
    draft.remarks += _dangling_references(draft)


def _second_fleets(draft: Draft) -> Iterator[Remark]:
    fleets = [key for key, _ in draft.of(Fleet)]
    for other in fleets[1:]:
        yield Remark(
            spot=draft.spot(other, ("metadata", "name")),
            code=Code.DUPLICATE_NAME,
            message=lambda first: f"there is one Fleet a repository, and {fleets[0]} stands at {first}",
            hint="keep one of the two",
            other=draft.spot(fleets[0], ("metadata", "name")),
        )


def _duplicate_identities(draft: Draft) -> Iterator[Remark]:
    first: dict[tuple[str, str], tuple[Id, Identity]] = {}
    for key, server in draft.of(Server):
        for identity in identities(server):
            holder, held = first.setdefault((identity.what, identity.same), (key, identity))
            if held is not identity:
                yield Remark(
                    spot=draft.spot(key, identity.path),
                    code=Code.DUPLICATE_IDENTITY,
                    message=partial(_held, identity, holder, held),
                    hint="correct the one that is wrong, or remove the document of a machine that is gone",
                    other=draft.spot(holder, held.path),
                )


def _held(identity: Identity, holder: Id, held: Identity, place: str) -> str:
    spelt = f", as {held.value}" if held.value != identity.value else ""
    return f"{identity.what} {identity.value} is {holder}'s at {place} already{spelt}"


def _ambiguous_bmcs(draft: Draft) -> Iterator[Remark]:
    """Servers that mean the only system of a BMC of which another server names one."""
    servers = [(key, server.spec.bmc) for key, server in draft.of(Server) if server.spec.bmc is not None]
    named = {place_of(bmc.address, None): key for key, bmc in reversed(servers) if bmc.system is not None}
    for key, bmc in servers:
        if bmc.system is None and (other := named.get(place_of(bmc.address, None))):
            yield Remark(
                spot=draft.spot(key, ("spec", "bmc", "address")),
                code=Code.DUPLICATE_IDENTITY,
                message=f"the BMC {bmc.address} is {other}'s too, which names its system there",
                hint="name the system of this server as well, or correct the address",
            )


def _reports_of_nothing(draft: Draft) -> Iterator[Remark]:
    for key, server in draft.of(Server):
        for at, message in reports_of_nothing(server):
            yield Remark(
                spot=draft.spot(key, at),
                code=Code.COMBINATION,
                message=message,
                hint="leave it out: it is never compared",
            )


def reports_of_nothing(server: Server) -> Iterator[tuple[Path, str]]:
    """Yield bmc.reports without a value: where it stands, and what is wrong."""
    reports = server.spec.bmc.reports if server.spec.bmc is not None else None
    if reports is None:
        return
    at: Path = ("spec", "bmc", "reports")
    if reports.uuid is None and reports.serial is None:
        yield at, "bmc.reports says neither uuid nor serial"


def _dangling_references(draft: Draft) -> Iterator[Remark]:
    known = draft.known()
    names = _Names(known, draft.snapshot.blobs)
    for key, resource in sorted(draft.resources.items()):
        for kind, name, at in references(resource):
            if kind == "file":
                yield from _missing_file(draft, names, key, name, at)
            elif Id(kind, name) not in known and not draft.unread.may_hold(kind, name):
                yield Remark(
                    spot=draft.spot(key, at),
                    code=Code.UNKNOWN_REFERENCE,
                    message=f'there is no {kind} named "{name}"',
                    hint=partial(names.hint, kind, name, f"add a {kind} of this name, or correct the name"),
                )


def _missing_file(draft: Draft, names: _Names, key: Id, name: str, at: Path) -> Iterator[Remark]:
    blobs = draft.snapshot.blobs
    if name not in blobs:
        if not draft.could_hold(name):
            yield Remark(
                spot=draft.spot(key, at),
                code=Code.UNKNOWN_REFERENCE,
                message=f"there is no file {shown(name)}",
                hint=partial(names.hint, "file", name, "add the file; paths start at the fleet's root"),
            )
        return
    try:
        data = draft.snapshot.read(blobs[name])
    except Oversized as error:
        yield Remark(spot=draft.spot(key, at), code=Code.FILE_TOO_LARGE, message=too_large(error))
        return
    if is_lfs_pointer(data):
        message = f"{shown(name)} is a Git LFS pointer"
        yield Remark(spot=draft.spot(key, at), code=Code.LFS_POINTER, message=message)
    elif why_not := why_not_sealed(name, data):
        message = f"{shown(name)} is no secret that an endpoint could open: {why_not}"
        yield Remark(spot=draft.spot(key, at), code=Code.NOT_SEALED, message=message, hint=Code.NOT_SEALED.hint)
    else:
        draft.files[name] = data


def why_not_sealed(name: str, data: bytes) -> str | None:
    """Why a file that its name calls a secret is none; None: it is one, or is called something else."""
    if name.endswith(AGE):
        try:
            sealed(data)
        except NotSealed as error:
            return str(error)
    return None


class _Names:
    """What references may have meant."""

    def __init__(self, known: Iterable[Id], files: Collection[str]) -> None:
        self._names: defaultdict[str, Collection[str]] = defaultdict(list, file=files)
        for kind, each in groupby(sorted(known), key=lambda key: key.kind):
            self._names[kind] = [key.name for key in each]
        self._near: dict[tuple[str, str], str | None] = {}
        self._left = _COMPARISONS

    def hint(self, kind: str, name: str, otherwise: str) -> str:
        """The name that is nearest; ``otherwise`` where none is, or where too many were looked for already."""
        if (kind, name) not in self._near and self._left > 0:
            self._left -= len(self._names[kind])
            self._near[kind, name] = near(name, self._names[kind])
        meant = self._near.get((kind, name))
        return f"did you mean {meant}?" if meant else otherwise


_COMPARISONS: Final = 50_000  # each takes microseconds: limits what many wrong names cost
