"""The evaluator's process: it answers requests with the report of a commit."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from typing import IO, Final, NamedTuple

from msgspec import structs

from gitboot.child_processes import OUT_OF_MEMORY, Spent, as_child_of, lift, read_frame, write_frame
from gitboot.errors import CorruptClone, InvalidRepository, SourceError
from gitboot.evaluator import protocol
from gitboot.evaluator.cache import RemoteCache
from gitboot.evaluator.evaluation import BATCH, CommitPair, Evaluation, Evaluator, Forks, processors
from gitboot.evaluator.protocol import Allowance, Answer, CommitEnd, FleetPart, ServerPart, ServerParts, fleet_part
from gitboot.fleet.identities import NO_MOVES, Moves, machine
from gitboot.fleet.resources import Id
from gitboot.fleet.revision import BlobId, Revision, Snapshot
from gitboot.git.clone import Reader
from gitboot.git.repository import lacks_memory
from gitboot.jsonio import canonical
from gitboot.model.fleet import FleetSpec, Output
from gitboot.model.scalars import SystemUuid
from gitboot.model.server import Server
from gitboot.problems import Code, Problem
from gitboot.resolve.explanation import (
    DocumentLocation,
    Explanations,
    Places,
    ServerLocation,
    SourceTexts,
    fleet_facts,
    moved_documents,
)
from gitboot.resolve.fleet_decisions import sites
from gitboot.resolve.policy_selection import minimum_versions
from gitboot.text import did_you_mean


def main(state: str, parent: str) -> None:
    """Evaluate commits of the clone in ``state`` for the process ``parent``."""
    asked, answers = as_child_of(parent)
    reader = Reader(Path(state))
    answering = _Answering(answers)

    def counted(revision: Revision, previous: Snapshot | None) -> Snapshot:
        snapshot = reader.snapshot(revision, previous)
        return replace(snapshot, read=answering.counting(snapshot.read))

    evaluator = Evaluator(counted, begun=answering.begun, results=RemoteCache(asked, answers))
    while (frame := read_frame(asked)) is not None:
        gc.disable()  # nearly all new objects stay in memory
        question = protocol.question(frame)
        if _answer(evaluator, question, answering):
            lift()
        reader.close()
        gc.collect(_YOUNG)
        gc.freeze()  # later collections skip the objects that stay


def _answers(evaluator: Evaluator, pair: CommitPair, question: protocol.Question) -> Iterator[protocol.Answer]:
    """Yield the report of a commit. Before its end, yield the results that the cache lacks."""
    for answer in told(pair, question.site):
        if isinstance(answer, protocol.CommitEnd) and question.stores_results:
            for kind, values in evaluator.unstored(protocol.MAX_KEYS):
                yield protocol.NewResults(kind, values)
        yield answer


_FILES: Final = 1000  # between two progress reports
_YOUNG: Final = 1  # the youngest generations; older objects are frozen


class _Answering:
    """Sends the answers to each question, and sets the limits of each evaluation."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._spent = Spent.now()
        self._allowance = Allowance()

    def begin(self, allowance: Allowance) -> None:
        """Start the limits of a commit anew."""
        self._spent, self._allowance = Spent.now(), allowance
        self._allowance.bound(self._spent, 0)
        self.send(protocol.Begun(None))

    def begun(self, files: int) -> None:
        """Set the limits of a commit with so many files, and report the number."""
        self._allowance.bound(self._spent, files)
        self.send(protocol.Begun(files))

    def count(self, files: int) -> None:
        """Report progress, if workers have read another 1,000 files."""
        if files // _FILES > (files - BATCH) // _FILES:
            self.send(protocol.Counted(files))

    def counting(self, read: Callable[[BlobId], bytes]) -> Callable[[BlobId], bytes]:
        """Return a function that reads a file like ``read``, and reports progress every 1,000 files."""
        numbers, us = count(1), os.getpid()

        def reading(blob: BlobId) -> bytes:
            if (number := next(numbers)) % _FILES == 0 and os.getpid() == us:  # workers must not write here
                self.send(protocol.Counted(number))
            return read(blob)

        return reading

    def send(self, answer: protocol.Answer) -> None:
        write_frame(self._stream, answer)


def _answer(evaluator: Evaluator, question: protocol.Question, answering: _Answering) -> bool:
    """Answer one question, and return whether the commit is valid. End this process if it has too little memory."""
    base = Revision(question.base) if question.base is not None else None
    try:
        evaluator.workers = Forks(number=question.allowance.workers or processors(), seen=answering.count)
        if base is not None and not evaluator.holds(base):
            answering.begin(question.allowance)  # the base has limits of its own
            evaluator.evaluate(base, None)
        answering.begin(question.allowance)
        pair = evaluator.evaluate(Revision(question.revision), base)
        for answer in _answers(evaluator, pair, question):
            answering.send(answer)
        return True
    except InvalidRepository as error:
        fleet = error.fleet if isinstance(error.fleet, FleetSpec) else None
        answering.send(protocol.Refused(error.problems, error.dated, fleet))
    except SourceError as error:
        if lacks_memory(error):
            os._exit(OUT_OF_MEMORY)
        answering.send(protocol.Unreadable(str(error), isinstance(error, CorruptClone)))
    except (MemoryError, SystemError):  # some extension modules raise SystemError if they get no memory
        os._exit(OUT_OF_MEMORY)  # half-made values are not trusted
    except BrokenPipeError:
        os._exit(0)  # the instance has ended
    return False


_BATCH: Final = 256  # servers a frame


def told(difference: CommitPair, site: str | None = None) -> Iterator[Answer]:
    """Yield the frames that report a commit to an instance that has the base.

    With a ``site``, the frames are those of a fleet that has only the servers of the site. A server that comes from
    another site is not reported as new, because it may be installed already. An unknown site has no servers.
    """
    servers = _servers(difference, site)
    while batch := tuple(islice(servers, _BATCH)):
        yield ServerParts(batch)
    yield _result(difference, site)


def _no_site(commit: Evaluation, site: str) -> Problem | None:
    """Return a problem if the Fleet does not have this site."""
    repository = commit.decided.repository
    fleet = repository.fleet.spec
    names = [each.name for each in fleet.sites]
    if site in names:
        return None
    hint = did_you_mean(site, names, Code.NO_SUCH_SITE.hint)
    message = f"this instance is for the site {site}, which the Fleet does not have"
    key = Id("Fleet", repository.fleet.metadata.name)
    return repository.problem(Code.NO_SUCH_SITE, message, key, "spec", "sites", hint=hint)


def _here(commit: Evaluation, names: Iterable[str], site: str | None) -> Mapping[str, Server]:
    """Return the servers with these names that a commit has at a site. None: at any site."""
    repository = commit.decided.repository
    servers = {name: repository.servers[name] for name in names if name in repository.servers}
    if site is None:
        return servers
    selection = sites(repository)
    return {name: each for name, each in servers.items() if (found := selection.of(each)) and found[0].name == site}


def _servers(difference: CommitPair, site: str | None) -> Iterator[ServerPart]:
    base, head, names = difference.base, difference.head, difference.servers
    explained: Collection[str] = ()
    if (page := _explanations(head)) is not None:
        before = _explanations(base)
        explained = page.differing(before, names) if before is not None else head.decided.repository.servers.keys()
        names = {*names, *explained}
    here_before = _here(base, names, site) if base is not None else {}
    for name in sorted(_here(head, names, site)):
        said = _server(base if name in here_before else None, head, name)
        if page is not None and (name in explained or name not in here_before):
            said = structs.replace(said or _NOTHING, name=name, written=page.of(name))
        if said is not None:
            yield said


_NOTHING: Final = ServerPart(name="", decision=None, machine=None, network=None, labels=None)


def _explanations(commit: Evaluation | None) -> Explanations | None:
    """Return the explanations of a commit's servers; None: there is no commit, or it publishes no page."""
    if commit is None or not _has_page(commit):
        return None
    return Explanations(commit.decided.repository, commit.decided.decisions.servers)


def _has_page(commit: Evaluation) -> bool:
    return Output.PAGES in commit.decided.decisions.outputs


def _server(base: Evaluation | None, head: Evaluation, name: str) -> ServerPart | None:
    """Return the parts of a server that differ from the base, or None if all are equal."""
    server, row = head.repository.servers[name], head.rows[name]
    described, labels = machine(head.repository, server), server.metadata.labels
    if base is None:
        return ServerPart(name=name, decision=row.decision, machine=described, network=row.host, labels=labels)
    old_server, old = base.repository.servers[name], base.rows[name]
    said = ServerPart(
        name=name,
        decision=None if old.decision == row.decision else row.decision,
        machine=None if machine(base.repository, old_server) == described else described,
        network=None if old.host == row.host else row.host,
        labels=None if old_server.metadata.labels == labels else labels,
    )
    differs = (each is not None for each in (said.decision, said.machine, said.network, said.labels))
    return said if any(differs) else None


def _result(difference: CommitPair, site: str | None) -> CommitEnd:
    base, head, names = difference.base, difference.head, difference.servers
    new, old = _here(head, names, site), _here(base, names, site) if base is not None else {}
    uuids, uuids_before = {server.uuid: name for name, server in new.items()}, {each.uuid for each in old.values()}
    anywhere = _here(base, names, None).values() if base is not None else ()
    known = {each.uuid for each in anywhere}
    moves = _moves(difference, old, uuids.keys()) if base is not None and site is not None else NO_MOVES
    selected = _sites(head, new)
    selected_before = _sites(base, old) if base is not None else {}
    fleetwide = _fleetwide(difference, site)
    moved = _moved(difference, new.keys() - old.keys(), site)
    return CommitEnd(
        extent=difference.extent,
        fleetwide=fleetwide,
        come=tuple(sorted(name for uuid, name in uuids.items() if uuid not in known)),
        moves=moves,
        gone=tuple(sorted(old.keys() - new.keys())),
        gone_machines=tuple(sorted(uuids_before - uuids.keys())),
        sites={name: each for name, each in selected.items() if each != selected_before.get(name)},
        gone_sites=tuple(sorted(selected_before.keys() - selected.keys())),
        locations=moved.servers,
        documents=moved.shared,
        gone_documents=moved.gone,
        no_site=_no_site(head, site) if site is not None else None,
    )


class _Moved(NamedTuple):
    """The source locations that differ."""

    servers: dict[str, ServerLocation]
    shared: dict[str, DocumentLocation]
    gone: tuple[str, ...]  # documents that servers may share, and that the commit does not have any more


def _moved(difference: CommitPair, come: Collection[str], site: str | None) -> _Moved:
    """Return the source locations that differ. ``come`` are the servers that the base does not have at the site."""
    base, head = difference.base, difference.head
    repository, texts = head.decided.repository, SourceTexts(head.decided.repository)
    if not _has_page(head):
        return _Moved({}, {}, ())
    if base is None or not _has_page(base):
        documents = sorted(repository.origins)
    else:
        documents = moved_documents(base.decided.repository, repository)
    names = _here(head, {*come, *(each.name for each in documents if each.kind == "Server")}, site)
    by_file = sorted((repository.origins[Id("Server", name)], name) for name in names)
    shared = [each for each in documents if each.kind != "Server"]
    return _Moved(
        servers={name: texts.of_server(name) for _, name in by_file},
        shared={str(each): texts.of_shared(each) for each in shared if each in repository.origins},
        gone=tuple(str(each) for each in shared if each not in repository.origins),
    )


def _moves(difference: CommitPair, old: Mapping[str, Server], here: Collection[SystemUuid]) -> Moves:
    """Return the moves of machines that the base has at other sites. ``old`` are the base's servers at this site."""
    base, head = difference.base, difference.head
    assert base is not None  # noqa: S101 - without a base, the report has all servers and no moves
    before = _here(base, difference.servers, None)
    elsewhere = {each.uuid: each for name, each in before.items() if name not in old}
    after = _here(head, difference.servers, None)
    now = {each.uuid: each for each in after.values()}
    was_at, is_at = _sites(base, before), _sites(head, after)
    passed_on = (
        uuid
        for uuid in (elsewhere.keys() & now.keys()).difference(here)
        if was_at.get(elsewhere[uuid].metadata.name) != is_at.get(now[uuid].metadata.name)
    )
    return Moves(
        arrived=tuple(sorted(elsewhere.keys() & here)),
        departed=tuple(
            machine(base.decided.repository, elsewhere[uuid]) for uuid in sorted(elsewhere.keys() - now.keys())
        ),
        passed_on=tuple(sorted(passed_on)),
    )


def _sites(commit: Evaluation, servers: Mapping[str, Server]) -> dict[str, str]:
    selection = sites(commit.decided.repository)
    found = {name: selection.of(server) for name, server in servers.items()}
    return {name: selected[0].name for name, selected in found.items() if selected}


def _fleetwide(difference: CommitPair, site: str | None) -> FleetPart | None:
    """Return the part of the report that is not about servers, or None if the base has the same part."""
    said = _fleetwide_of(difference.head, site)
    if difference.base is None:
        return said
    before = _fleetwide_of(difference.base, site)
    return None if before == said else said


def _fleetwide_of(commit: Evaluation, site: str | None) -> FleetPart:
    repository, decisions = commit.decided.repository, commit.decided.decisions
    shown = None
    if _has_page(commit):
        shown = canonical(fleet_facts(Places(repository), commit.opt_outs))
    return fleet_part(repository.fleet.spec, decisions, commit.opt_outs, minimum_versions(repository), shown, site)
