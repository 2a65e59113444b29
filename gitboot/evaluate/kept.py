"""What was found out about one commit, as bytes that the next look at the fleet begins with instead of at nothing.

It is a base like any other: whatever is asked for next is evaluated against it. So it need not be of the same commit,
and what it says of a file counts only where the file's blob is the same. Servers, of which there are many, are decoded
one by one when they are looked at, and read then, too; all else is few, and kept as the text that it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from operator import itemgetter
from typing import Final, TypeVar, cast

import msgspec

from gitboot.evaluate import wire
from gitboot.evaluate.encoded import RECENT, Derived, Encoded, Keyed, encoded
from gitboot.evaluate.evaluator import Basis, Foundation
from gitboot.frames import decoder, encode
from gitboot.load import BlobId, FleetRepository, Id, Irregular, Origin, ParsedBlob, Revision, Snapshot
from gitboot.load.blobs import parse_blob
from gitboot.load.listing import looked_into
from gitboot.load.multimap import Multimap
from gitboot.load.register import Register, Registered
from gitboot.load.successor import Loaded
from gitboot.model.fleet import UNKNOWN_NOT_FOUND, Fleet
from gitboot.model.image import BootImage, ImageStream
from gitboot.model.policy import BootPolicy, BootProfile, Maintenance
from gitboot.model.server import Architecture, Server
from gitboot.plan import Boot, Decision
from gitboot.problems.codes import Code
from gitboot.problems.dated import DatedProblem
from gitboot.problems.problem import Problem, Severity
from gitboot.resolve.boot import Composer
from gitboot.resolve.choice import pools
from gitboot.resolve.decide import Decided, MadeUnknown
from gitboot.resolve.decisions import Decisions
from gitboot.resolve.found import DecisionFinding, FindingPlace
from gitboot.resolve.optouts import OptOut
from gitboot.sections import Sections, Tables

K = TypeVar("K")
V = TypeVar("V")


class _Finding(msgspec.Struct, frozen=True, array_like=True):
    """A `DecisionFinding`, with both kinds of place in fields of their own."""

    code: Code
    message: str
    hint: str
    resource: Id | None  # None: it stands in a template
    field: tuple[str | int, ...]
    template: tuple[str, int] | None
    severity: Severity
    is_shared: bool
    most_named: int
    beside: Id | None
    since: datetime | None
    until: datetime | None


class _Made(msgspec.Struct, frozen=True, array_like=True):
    """What was decided for a server, and of what; findings few have."""

    decision: Decision
    of: tuple[Id, ...]


class _Few(msgspec.Struct, frozen=True, array_like=True):
    """What of a foundation is no server's, or few servers'."""

    revision: Revision
    irregular: dict[str, Irregular]
    texts: dict[str, bytes]  # by path: of the files of documents that are not all servers
    files: dict[str, bytes]
    found: dict[str, list[_Finding]]  # by server
    placed: list[tuple[_Finding, FindingPlace]]
    unknown: dict[Architecture, Boot] | None
    unknown_findings: list[tuple[str, _Finding]]
    warnings: tuple[Problem, ...]
    dated: tuple[DatedProblem, ...]
    labels: tuple[str, ...]  # of servers
    pinned: dict[str, OptOut]  # by server


def sections_of(basis: Basis) -> tuple[dict[str, bytes], Tables]:
    """The values and the tables of a basis, for `from_sections`."""
    loaded, decided = basis.foundation.loaded, basis.foundation.decided
    repository, snapshot, unknown = loaded.repository, loaded.snapshot, decided.unknown
    documents, decisions, register = loaded.documents, decided.decisions, basis.register.held
    few = {path for path, said in documents.items() if not _is_of_servers(said)}
    values = {
        "few": encode(
            _Few(
                revision=snapshot.revision,
                irregular=dict(snapshot.irregular),
                texts={path: snapshot.read(snapshot.blobs[path]) for path in sorted(few)},
                files=dict(repository.files),
                found={name: [_kept(each) for each in found] for name, found in decided.flawed.items()},
                placed=[(_kept(finding), place) for finding, place in decided.placed.items()],
                unknown=dict(unknown.boots) if unknown.boots is not None else None,
                unknown_findings=[(which, _kept(finding)) for which, finding in unknown.findings],
                warnings=decisions.warnings,
                dated=decisions.dated,
                labels=tuple(sorted(register.labels)),
                pinned=dict(basis.foundation.pinned),
            )
        ),
        "blobs": encode(looked_into(snapshot, documents, repository.files)),  # of the files that were looked into
    }

    def text(path: str) -> bytes:
        """What a file says: its servers by their index; itself, where its text says it."""
        return encode(path if path in few else documents[path].resources)

    def record(name: str) -> bytes:
        """A `_Made`, whose decision is not decoded for it."""
        return encode((msgspec.Raw(encoded(decisions.servers, name, wire.bytes_of)), decided.of[name]))

    tables = {
        "documents": ((path, text(path)) for path in sorted(documents)),
        "origins": _records(repository.origins.items(), _id_name),
        "made": ((name, record(name)) for name in sorted(decided.of)),
        "networks": ((name, encoded(decisions.networks, name, encode)) for name in sorted(decisions.networks)),
        "identities": _records(register.identities.held(), _pair_name),
        "bmcs": _records(register.bmcs.held(), _bmc_name),
        "naming": _records(register.naming.held(), _id_name),
        "reach": _records(basis.reach.held(), _id_name),
        **{_label(label): _records(values.held(), str) for label, values in register.labels.items()},
    }
    return values, tables


def _records(items: Iterable[tuple[K, object]], name: Callable[[K], str]) -> Iterator[tuple[str, bytes]]:
    """Values by their names, in the order of these."""
    for found, value in sorted(((name(key), value) for key, value in items), key=itemgetter(0)):
        yield found, encode(value)


def from_sections(kept: Sections, read: Callable[[BlobId], bytes]) -> Basis:
    """What `sections_of` gave, of files that ``read`` can read.

    Nearly all is read when it is first looked at, which raises `Spoilt` where it is damaged, until it is relied on.
    """
    few = _few(kept.value("few"))
    snapshot = Snapshot(revision=few.revision, blobs=_blobs(kept.value("blobs")), read=read, irregular=few.irregular)
    documents = _documents(kept, few)
    made = Encoded.of(kept.table("made"), _made)
    repository = _repository(kept, few, documents, made, read)
    return Basis(
        foundation=Foundation(
            loaded=Loaded(snapshot=snapshot, documents=documents, repository=repository),
            decided=_decided(kept, few, repository, made),
            pinned=few.pinned,
        ),
        register=Register(
            Registered(
                identities=Multimap(Keyed(kept.table("identities"), _pair_name, _pair, _names)),
                bmcs=Multimap(Keyed(kept.table("bmcs"), _bmc_name, _bmc, _names)),
                labels={label: Multimap(Keyed(kept.table(_label(label)), str, str, _names)) for label in few.labels},
                naming=Multimap(Keyed(kept.table("naming"), _id_name, _id, _ids)),
            )
        ),
        reach=Multimap(Keyed(kept.table("reach"), _id_name, _id, _names)),
        relied_on=lambda anew: kept.make_good_by(lambda: sections_of(anew())[1]),
    )


def _documents(kept: Sections, few: _Few) -> Encoded[ParsedBlob]:
    parsed = {path: parse_blob(text, path) for path, text in few.texts.items()}

    def said(data: bytes) -> ParsedBlob:
        found = _said(data)
        return (
            parsed[found]
            if isinstance(found, str)
            else ParsedBlob(resources=tuple(found), problems=(), more=0, broken=(), unread=())
        )

    return Encoded.of(kept.table("documents"), said)


def _repository(
    kept: Sections,
    few: _Few,
    documents: Encoded[ParsedBlob],
    made: Encoded[_Made],
    read: Callable[[BlobId], bytes],
) -> FleetRepository:
    origins = Keyed(kept.table("origins"), _id_name, _id, _origin)
    resources = [resource for path in few.texts for _, resource in documents[path].resources]

    @lru_cache(RECENT)  # a commit asks twenty times for each that it reaches
    def server(name: str) -> Server:
        origin = origins[Id("Server", name)]
        found = (each for index, each in documents[origin.path].resources if index == origin.document)
        return cast(Server, next(found))

    def named(kind: type[V]) -> dict[str, V]:
        found = {each.metadata.name: each for each in resources if isinstance(each, kind)}
        return dict(sorted(found.items()))

    return FleetRepository(
        revision=few.revision,
        fleet=next(each for each in resources if isinstance(each, Fleet)),
        servers=Derived(made, server),
        images=named(BootImage),
        streams=named(ImageStream),
        profiles=named(BootProfile),
        policies=named(BootPolicy),
        maintenances=named(Maintenance),
        files=few.files,
        origins=origins,
        read=read,
    )


def _decided(kept: Sections, few: _Few, repository: FleetRepository, made: Encoded[_Made]) -> Decided:
    fleet = repository.fleet.spec
    unknown = MadeUnknown(few.unknown, tuple((which, _finding(each)) for which, each in few.unknown_findings))
    return Decided(
        repository=repository,
        decisions=Decisions(
            revision=few.revision,
            base_url=fleet.base_url,
            outputs=frozenset(fleet.outputs),
            evidence=fleet.provisioning.evidence,
            servers=Derived(made, lambda name: made[name].decision),
            networks=Encoded.of(kept.table("networks"), wire.network),
            sites={site.name: site.base_url for site in fleet.sites},
            unknown=unknown.boots,
            unknown_not_found=fleet.unknown_servers == UNKNOWN_NOT_FOUND,
            warnings=few.warnings,
            dated=few.dated,
        ),
        of=Derived(made, lambda name: made[name].of),
        flawed={name: tuple(map(_finding, findings)) for name, findings in few.found.items()},
        unknown=unknown,
        pools=pools(repository)[0],
        composer=Composer(repository),
        placed={_finding(finding): place for finding, place in few.placed},
    )


# Keys, as the names of records


def _label(label: str) -> str:
    return f"labels/{label}"


def _id_name(key: Id) -> str:
    return f"{key.kind}\0{key.name}"


def _id(name: str) -> Id:
    kind, _, name = name.partition("\0")
    return Id(kind, name)


def _pair_name(key: tuple[str, str]) -> str:
    return f"{key[0]}\0{key[1]}"


def _pair(name: str) -> tuple[str, str]:
    first, _, second = name.partition("\0")
    return first, second


def _bmc_name(key: tuple[str, bool]) -> str:
    return f"{key[0]}\0{'named' * key[1]}"


def _bmc(name: str) -> tuple[str, bool]:
    address, _, is_named = name.rpartition("\0")
    return address, bool(is_named)


def _is_of_servers(said: ParsedBlob) -> bool:
    return all(isinstance(resource, Server) for _, resource in said.resources)


def _kept(finding: DecisionFinding) -> _Finding:
    resource: Id | None = None
    field: tuple[str | int, ...] = ()
    template: tuple[str, int] | None = None
    match finding.place:
        case (str() as path, int() as line):
            template = path, line
        case (Id() as resource, tuple() as field):  # pragma: no branch - there are two kinds of place
            pass
    rest = finding.severity, finding.is_shared, finding.most_named, finding.beside, finding.since, finding.until
    return _Finding(finding.code, finding.message, finding.hint, resource, field, template, *rest)


def _finding(kept: _Finding) -> DecisionFinding:
    place = kept.template or (kept.resource or Id("", ""), kept.field)
    rest = kept.severity, kept.is_shared, kept.most_named, kept.beside, kept.since, kept.until
    return DecisionFinding(kept.code, kept.message, kept.hint, place, *rest)


_few: Final[Callable[[bytes], _Few]] = decoder(_Few)
_blobs: Final[Callable[[bytes], dict[str, BlobId]]] = decoder(dict[str, BlobId])
_said: Final[Callable[[bytes], list[tuple[int, Server]] | str]] = decoder(list[tuple[int, Server]] | str)
_origin: Final[Callable[[bytes], Origin]] = decoder(Origin)
_made: Final[Callable[[bytes], _Made]] = decoder(_Made)
_names: Final[Callable[[bytes], list[str]]] = decoder(list[str])
_ids: Final[Callable[[bytes], list[Id]]] = decoder(list[Id])
