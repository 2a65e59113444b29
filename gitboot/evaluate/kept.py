"""What was found out about one commit, as bytes that the next look at the fleet begins with instead of at nothing.

It is a base like any other: whatever is asked for next is evaluated against it. So it need not be of the same commit,
and what it says of a file counts only where the file's blob is the same. Servers, of which there are many, are decoded
one by one when they are looked at; all else is few, and kept as the text that it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeVar

import msgspec

from gitboot.evaluate import wire
from gitboot.evaluate.encoded import Encoded
from gitboot.evaluate.evaluator import Basis, Foundation
from gitboot.frames import decoder, encode
from gitboot.load import BlobId, FleetRepository, Id, Irregular, Origin, ParsedBlob, Revision, Snapshot
from gitboot.load.blobs import parse_blob
from gitboot.load.listing import looked_into
from gitboot.load.multimap import Multimap
from gitboot.load.register import Bmcs, Identities, Naming, Register, Registered
from gitboot.load.successor import Loaded
from gitboot.model.fleet import Fleet
from gitboot.model.image import BootImage, ImageStream
from gitboot.model.policy import BootPolicy, BootProfile, Maintenance
from gitboot.model.server import Architecture, Server
from gitboot.plan import Boot, Decision
from gitboot.problems.codes import Code
from gitboot.problems.problem import Problem, Severity
from gitboot.resolve.boot import Composer
from gitboot.resolve.choice import pools
from gitboot.resolve.decide import Decided, Made, MadeUnknown
from gitboot.resolve.decisions import Decisions
from gitboot.resolve.found import DecisionFinding, FindingPlace
from gitboot.resolve.optouts import OptOut

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


class _Made(msgspec.Struct, frozen=True, array_like=True):
    """A `Made`, but for its findings, which few have."""

    decision: Decision
    of: tuple[Id, ...]


class _Register(msgspec.Struct, frozen=True, array_like=True):
    """What a `Register` holds, each part by itself: most questions need few of them."""

    identities: bytes
    bmcs: bytes
    labels: dict[str, bytes]
    naming: bytes


class _KeptBasis(msgspec.Struct, frozen=True, array_like=True):
    """A foundation."""

    revision: Revision
    blobs: dict[str, BlobId]  # of the files that were looked into
    irregular: dict[str, Irregular]
    documents: dict[str, bytes]  # by path: its servers by their index; itself, where its text says it
    texts: dict[str, bytes]  # by path: of the files of documents that are not all servers
    files: dict[str, bytes]
    origins: list[tuple[Id, Origin]]
    made: dict[str, bytes]  # by server, in the order of their names: a _Made
    networks: dict[str, bytes]
    found: dict[str, list[_Finding]]  # by server
    placed: list[tuple[_Finding, FindingPlace]]
    unknown: dict[Architecture, Boot] | None
    unknown_findings: list[tuple[str, _Finding]]
    warnings: tuple[Problem, ...]
    register: _Register
    reach: bytes
    pinned: dict[str, OptOut]  # by server


def to_bytes(basis: Basis) -> bytes:
    """A basis, for `from_bytes`."""
    loaded, decided = basis.foundation.loaded, basis.foundation.decided
    repository, snapshot, unknown = loaded.repository, loaded.snapshot, decided.unknown
    few = {path for path, said in loaded.documents.items() if not _is_of_servers(said)}
    return encode(
        _KeptBasis(
            revision=snapshot.revision,
            blobs=looked_into(snapshot, loaded.documents, repository.files),
            irregular=dict(snapshot.irregular),
            documents={
                path: encode(path if path in few else said.resources) for path, said in loaded.documents.items()
            },
            texts={path: snapshot.read(snapshot.blobs[path]) for path in sorted(few)},
            files=dict(repository.files),
            origins=list(repository.origins.items()),
            made={name: encode(_Made(each.decision.digested(), each.of)) for name, each in decided.made.items()},
            networks={name: encode(each) for name, each in decided.decisions.networks.items()},
            found={name: [_kept(each) for each in found] for name, found in decided.flawed.items()},
            placed=[(_kept(finding), place) for finding, place in decided.placed.items()],
            unknown=dict(unknown.boots) if unknown.boots is not None else None,
            unknown_findings=[(which, _kept(finding)) for which, finding in unknown.findings],
            warnings=decided.decisions.warnings,
            register=_kept_register(basis.register.held()),
            reach=encode(basis.reach.held()),
            pinned=dict(basis.foundation.pinned),
        )
    )


def from_bytes(data: bytes, read: Callable[[BlobId], bytes]) -> Basis:
    """What `to_bytes` gave, of files that ``read`` can read; raises ValueError where it is nothing of the kind."""
    kept = _decode(data)
    snapshot = Snapshot(revision=kept.revision, blobs=kept.blobs, read=read, irregular=kept.irregular)
    documents = _documents(kept)
    repository = _repository(kept, documents, read)
    return Basis(
        foundation=Foundation(
            loaded=Loaded(snapshot=snapshot, documents=documents, repository=repository),
            decided=_decided(kept, repository),
            pinned=kept.pinned,
        ),
        register=Register.of(_registered(kept.register)),
        reach=Multimap(partial(_reached, kept.reach)),
    )


def _documents(kept: _KeptBasis) -> Encoded[ParsedBlob]:
    few = {path: parse_blob(text, path) for path, text in kept.texts.items()}

    def said(data: bytes) -> ParsedBlob:
        found = _said(data)
        return (
            few[found]
            if isinstance(found, str)
            else ParsedBlob(resources=tuple(found), problems=(), more=0, broken=(), unread=())
        )

    return _encoded(kept.documents, said)


def _repository(kept: _KeptBasis, documents: Encoded[ParsedBlob], read: Callable[[BlobId], bytes]) -> FleetRepository:
    few = [resource for path in kept.texts for _, resource in documents[path].resources]
    servers = sorted((key.name, origin.path) for key, origin in kept.origins if key.kind == "Server")

    def server(data: bytes) -> Server:
        path, _, name = data.decode().rpartition("\0")
        found = (each for _, each in documents[path].resources if isinstance(each, Server))
        return next(each for each in found if each.metadata.name == name)

    def named(kind: type[V]) -> dict[str, V]:
        found = {each.metadata.name: each for each in few if isinstance(each, kind)}
        return dict(sorted(found.items()))

    return FleetRepository(
        revision=kept.revision,
        fleet=next(each for each in few if isinstance(each, Fleet)),
        servers=_encoded({name: f"{path}\0{name}".encode() for name, path in servers}, server),
        images=named(BootImage),
        streams=named(ImageStream),
        profiles=named(BootProfile),
        policies=named(BootPolicy),
        maintenances=named(Maintenance),
        files=kept.files,
        origins=dict(kept.origins),
        read=read,
    )


def _decided(kept: _KeptBasis, repository: FleetRepository) -> Decided:
    fleet = repository.fleet.spec
    found = {name: tuple(map(_finding, findings)) for name, findings in kept.found.items()}

    def one(data: bytes) -> Made:
        said = _made(data)
        return Made(said.decision, found.get(said.decision.server, ()), said.of)

    made = _encoded(kept.made, one)
    unknown = MadeUnknown(kept.unknown, tuple((which, _finding(each)) for which, each in kept.unknown_findings))
    return Decided(
        repository=repository,
        decisions=Decisions(
            revision=kept.revision,
            base_url=fleet.base_url,
            outputs=frozenset(fleet.outputs),
            evidence=fleet.provisioning.evidence,
            servers=_encoded({name: name.encode() for name in kept.made}, lambda name: made[name.decode()].decision),
            networks=_encoded(kept.networks, wire.network),
            sites={site.name: site.base_url for site in fleet.sites},
            unknown=unknown.boots,
            unknown_not_found=fleet.unknown_servers == "NotFound",
            warnings=kept.warnings,
        ),
        made=made,
        flawed=found,
        unknown=unknown,
        pools=pools(repository)[0],
        composer=Composer(repository),
        placed={_finding(finding): place for finding, place in kept.placed},
    )


def _encoded(held: Mapping[str, bytes], decode: Callable[[bytes], V]) -> Encoded[V]:
    return Encoded.of(held, decode)


def _kept_register(held: Registered) -> _Register:
    return _Register(
        identities=encode(held.identities()),
        bmcs=encode(held.bmcs()),
        labels={label: encode(values()) for label, values in held.labels.items()},
        naming=encode(held.naming()),
    )


def _registered(kept: _Register) -> Registered:
    return Registered(
        identities=partial(_identities, kept.identities),
        bmcs=partial(_bmcs, kept.bmcs),
        labels={label: partial(_labelled, values) for label, values in kept.labels.items()},
        naming=partial(_naming, kept.naming),
    )


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
    return _Finding(
        finding.code, finding.message, finding.hint, resource, field, template, finding.severity, finding.is_shared
    )


def _finding(kept: _Finding) -> DecisionFinding:
    place = kept.template or (kept.resource or Id("", ""), kept.field)
    return DecisionFinding(kept.code, kept.message, kept.hint, place, kept.severity, kept.is_shared)


_decode: Final[Callable[[bytes], _KeptBasis]] = decoder(_KeptBasis)
_said: Final[Callable[[bytes], list[tuple[int, Server]] | str]] = decoder(list[tuple[int, Server]] | str)
_made: Final[Callable[[bytes], _Made]] = decoder(_Made)
_identities: Final[Callable[[bytes], Identities]] = decoder(Identities)
_bmcs: Final[Callable[[bytes], Bmcs]] = decoder(Bmcs)
_labelled: Final[Callable[[bytes], dict[str, list[str]]]] = decoder(dict[str, list[str]])
_naming: Final[Callable[[bytes], Naming]] = decoder(Naming)
_reached: Final[Callable[[bytes], dict[Id, list[str]]]] = decoder(dict[Id, list[str]])
