"""What a commit says, as far as an instance knows it: decisions, machines, and what guards judge it by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gitboot.diff import compare
from gitboot.diff.changes import Changes
from gitboot.load import BlobId, FleetRepository, ParseCache, Revision, Snapshot, load
from gitboot.load.machines import Machine, machines
from gitboot.model.fleet import FleetSpec
from gitboot.model.scalars import SystemUuid
from gitboot.resolve import Decisions, decide
from gitboot.resolve.decide import site_of
from gitboot.resolve.optouts import OptOut, opt_outs
from gitboot.source import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """A commit that holds together: all that an instance knows of it. Its files stay behind."""

    revision: Revision
    fleet: FleetSpec
    decisions: Decisions
    machines: Mapping[SystemUuid, Machine]
    sites: Mapping[str, str]  # by server, where a site selects it
    labels: Mapping[str, Mapping[str, str]]  # by server
    addresses: Mapping[str, str]  # IP address -> server
    opt_outs: tuple[OptOut, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluated:
    """A commit, and what it changes against the one that was adopted last."""

    commit: Commit
    changes: Changes


class Evaluation:
    """Evaluates commits of one source, each against the one that was adopted last."""

    def __init__(self, source: Source, parsed: ParseCache, keep_parsed: Callable[[ParseCache], None]) -> None:
        self._source, self._parsed, self._keep_parsed = source, parsed, keep_parsed
        self._snapshot: Snapshot | None = None  # that was read last: of the next only what differs is read
        self._base: tuple[Commit, FleetRepository] | None = None
        self._candidate: tuple[Commit, FleetRepository] | None = None

    def evaluate(self, revision: Revision, *, wait: bool = False) -> Evaluated | None:  # noqa: ARG002 - never unfinished
        """What ``revision`` says; None while it is still being evaluated: ask again.

        Raises `InvalidRepository` with all that speaks against it, and `SourceError` where it cannot be read.
        """
        repository = self._load(revision)
        decisions = decide(repository)
        repository = replace(repository, read=_closed)
        commit = commit_of(repository, decisions)
        base = self._base
        changes = compare(base[0].decisions if base else None, decisions, base[1] if base else None, repository)
        self._candidate = commit, repository
        return Evaluated(commit=commit, changes=changes)

    def adopt(self, commit: Commit) -> None:
        """Take the commit that was evaluated last as the one that the next are compared with."""
        if self._candidate is not None and self._candidate[0].revision == commit.revision:
            self._base = self._candidate

    def forget(self) -> None:
        """Read the next commit wholly: the clone is another one now."""
        self._snapshot = None

    def _load(self, revision: Revision) -> FleetRepository:
        known = dict(self._parsed)
        snapshot = self._source.snapshot(revision, previous=self._snapshot)
        repository = load(snapshot, known)
        # Whatever can read the clone holds its packs open, and libgit2 to them after `restore` has replaced them.
        self._snapshot = replace(snapshot, read=_closed)
        before = self._parsed
        self._parsed = {blob: known[blob] for blob in snapshot.blobs.values() if blob in known}
        if self._parsed.keys() != before.keys():
            self._keep_parsed(self._parsed)
        return repository


def commit_of(repository: FleetRepository, decisions: Decisions) -> Commit:
    """What an instance knows of a repository that was decided."""
    sites = {name: site_of(repository, server) for name, server in repository.servers.items()}
    return Commit(
        revision=repository.revision,
        fleet=repository.fleet.spec,
        decisions=decisions,
        machines=machines(repository),
        sites={name: site.name for name, site in sites.items() if site is not None},
        labels={name: server.metadata.labels for name, server in repository.servers.items()},
        addresses={
            address.partition("/")[0]: name
            for name, server in repository.servers.items()
            for interface in server.spec.interfaces
            for address in interface.addresses
        },
        opt_outs=tuple(opt_outs(repository)),
    )


def _closed(blob: BlobId) -> bytes:
    """Read nothing: of a commit that was loaded everything has been read."""
    raise KeyError(blob)
