"""The evaluator process, which evaluates commits and reports the results to the instance that started it."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import IO, Final

from msgspec import structs

from gitboot.child_processes import (
    OUT_OF_MEMORY,
    ProcessUsage,
    become_child,
    lift_memory_limit,
    read_frame,
    write_frame,
)
from gitboot.errors import CorruptClone, InvalidRepository, SourceError
from gitboot.evaluator import protocol
from gitboot.evaluator.cache import RemoteCache
from gitboot.evaluator.evaluation import BATCH, CommitPair, Evaluation, Evaluator, Workers, choose_worker_count
from gitboot.evaluator.protocol import Answer, Commit, CommitEnd, EvaluationLimits, ServerPart, ServerParts
from gitboot.fleet.documents import Id
from gitboot.fleet.identities import NO_MOVES, Moves, build_machine
from gitboot.fleet.revision import BlobId, Revision, Snapshot
from gitboot.git.clone import CloneReader
from gitboot.git.repository import is_out_of_memory
from gitboot.jsonio import encode_canonical
from gitboot.model.fleet import FleetSpec, Output
from gitboot.model.scalars import SystemUuid
from gitboot.model.server import Server
from gitboot.problems import Code
from gitboot.resolve.explanation import (
    DocumentLocation,
    Explanations,
    ServerLocation,
    SourceTexts,
    find_moved_documents,
    make_fleet_fields,
)
from gitboot.resolve.fleet_decisions import build_site_index
from gitboot.resolve.policy_selection import find_minimum_versions
from gitboot.text import format_suggestion

_FILES: Final = 1000  # the number of files between two progress reports
_YOUNG: Final = 1  # the oldest generation that gitboot collects; older objects are frozen


def main(state_folder: str, parent_pid: str) -> None:
    """Evaluate commits of the clone in the folder ``state_folder`` for the process with the id ``parent_pid``."""
    questions, answers = become_child(parent_pid)
    reader = CloneReader(Path(state_folder))
    answer_stream = _AnswerStream(answers)

    def read_snapshot(revision: Revision, previous: Snapshot | None) -> Snapshot:
        snapshot = reader.snapshot(revision, previous)
        return structs.replace(snapshot, read=answer_stream.count_reads(snapshot.read))

    evaluator = Evaluator(
        read_snapshot, on_begin=answer_stream.report_file_count, results=RemoteCache(questions, answers)
    )
    while (frame := read_frame(questions)) is not None:
        gc.disable()  # nearly all new objects stay in memory for long
        question = protocol.decode_question(frame)
        if _answer_question(evaluator, question, answer_stream):
            lift_memory_limit()
        reader.close()
        gc.collect(_YOUNG)
        gc.freeze()  # later collections skip the objects that exist now


class _AnswerStream:
    """A stream that sends the answers to each question, and sets the resource limits of each evaluation."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._spent = ProcessUsage.measure()
        self._limits = EvaluationLimits()

    def begin_evaluation(self, limits: EvaluationLimits) -> None:
        self._spent, self._limits = ProcessUsage.measure(), limits
        self._limits.set_limits(self._spent, 0)
        self.send(protocol.EvaluationStart(None))

    def report_file_count(self, file_count: int) -> None:
        self._limits.set_limits(self._spent, file_count)
        self.send(protocol.EvaluationStart(file_count))

    def report_files_read(self, file_count: int) -> None:
        """Report progress each time the workers have read another 1,000 files."""
        if file_count // _FILES > (file_count - BATCH) // _FILES:
            self.send(protocol.FilesRead(file_count))

    def count_reads(self, read_blob: Callable[[BlobId], bytes]) -> Callable[[BlobId], bytes]:
        """Return a function that calls ``read_blob`` and reports progress after every 1,000 files."""
        numbers, own_pid = count(1), os.getpid()

        def read_and_count(blob: BlobId) -> bytes:
            # a forked worker must not write to this stream
            if (number := next(numbers)) % _FILES == 0 and os.getpid() == own_pid:
                self.send(protocol.FilesRead(number))
            return read_blob(blob)

        return read_and_count

    def send(self, answer: protocol.Answer) -> None:
        write_frame(self._stream, answer)


def _answer_question(evaluator: Evaluator, question: protocol.Question, answer_stream: _AnswerStream) -> bool:
    """Answer one question, and return whether the commit is valid. If there is not enough memory, end this process."""
    base = Revision(question.base) if question.base is not None else None
    try:
        evaluator.workers = Workers(
            number=question.limits.workers or choose_worker_count(), on_read=answer_stream.report_files_read
        )
        if base is not None and not evaluator.is_in_memory(base):
            answer_stream.begin_evaluation(question.limits)  # the base has its own limits
            evaluator.evaluate(base, None)
        answer_stream.begin_evaluation(question.limits)
        for answer in build_report(evaluator.evaluate(Revision(question.revision), base), question.site):
            if isinstance(answer, CommitEnd) and question.stores_results:
                # results that are not in the cache yet
                for kind, values in evaluator.take_unstored_results(protocol.MAX_KEYS):
                    answer_stream.send(protocol.NewResults(kind, values))
            answer_stream.send(answer)
        return True
    except InvalidRepository as error:
        fleet = error.fleet if isinstance(error.fleet, FleetSpec) else None
        answer_stream.send(protocol.RejectedCommit(error.problems, error.dated, fleet))
    except SourceError as error:
        if is_out_of_memory(error):
            os._exit(OUT_OF_MEMORY)
        answer_stream.send(protocol.UnreadableClone(str(error), isinstance(error, CorruptClone)))
    except BrokenPipeError:
        os._exit(0)  # the instance has ended
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        os._exit(OUT_OF_MEMORY)  # the values in memory may be incomplete, so the process must not continue
    return False


_BATCH: Final = 256  # the number of servers in one frame


def build_report(pair: CommitPair, site: str | None = None) -> Iterator[Answer]:
    """Yield the frames that describe a commit to an instance that already has the base commit.

    With a ``site``, the frames contain only the servers of that site. A server that moved from another site is not
    reported as new, because the server may already be installed. An unknown site has no servers.
    """
    servers = _build_server_parts(pair, site)
    while batch := tuple(islice(servers, _BATCH)):
        yield ServerParts(batch)
    yield _build_commit_end(pair, site)


def _select_servers(commit: Evaluation, names: Iterable[str], site: str | None) -> Mapping[str, Server]:
    """Return the named servers that the commit contains at ``site``, or at any site if ``site`` is None."""
    repository = commit.repository
    servers = {name: repository.servers[name] for name in names if name in repository.servers}
    if site is None:
        return servers
    selection = build_site_index(repository)
    return {name: each for name, each in servers.items() if (found := selection.find(each)) and found[0].name == site}


def _build_server_parts(pair: CommitPair, site: str | None) -> Iterator[ServerPart]:
    base, head, names = pair.base, pair.head, pair.servers
    explained: Collection[str] = ()
    if (explanations := _build_explanations(head)) is not None:
        before = _build_explanations(base)
        explained = (
            explanations.find_changed_servers(before, names) if before is not None else head.repository.servers.keys()
        )
        names = {*names, *explained}
    old_servers = _select_servers(base, names, site) if base is not None else {}
    for name, server in sorted(_select_servers(head, names, site).items()):
        row, machine, labels = head.rows[name], build_machine(head.repository, server), server.metadata.labels
        written = (
            explanations.explain_server(name)
            if explanations is not None and (name in explained or name not in old_servers)
            else None
        )
        if base is not None and name in old_servers:
            old_server, old_row = base.repository.servers[name], base.rows[name]
            part = ServerPart(
                name=name,
                decision=None if old_row.decision == row.decision else row.decision,
                machine=None if build_machine(base.repository, old_server) == machine else machine,
                network=None if old_row.host == row.host else row.host,
                labels=None if old_server.metadata.labels == labels else labels,
                written=written,
            )
        else:
            part = ServerPart(
                name=name, decision=row.decision, machine=machine, network=row.host, labels=labels, written=written
            )
        if any(each is not None for each in (part.decision, part.machine, part.network, part.labels, part.written)):
            yield part


def _build_explanations(commit: Evaluation | None) -> Explanations | None:
    if commit is None or not _publishes_pages(commit):
        return None
    return Explanations(commit.repository, commit.decided.decisions.servers)


def _publishes_pages(commit: Evaluation) -> bool:
    return Output.PAGES in commit.decided.decisions.outputs


def _build_commit_end(pair: CommitPair, site: str | None) -> CommitEnd:
    """Return the last frame of the report on a commit.

    The frame contains values that concern the whole fleet, and the removed servers and documents.
    """
    base, head, names = pair.base, pair.head, pair.servers
    new, old = _select_servers(head, names, site), _select_servers(base, names, site) if base is not None else {}
    uuids = {server.uuid: name for name, server in new.items()}
    uuids_before = {each.uuid for each in old.values()}
    known_uuids = {each.uuid for each in _select_servers(base, names, None).values()} if base is not None else set()
    selected = _select_sites(head, new)
    selected_before = _select_sites(base, old) if base is not None else {}
    fleetwide: Commit | None = _build_fleetwide_part(head, head.revision, site)
    if base is not None and fleetwide == _build_fleetwide_part(base, head.revision, site):
        fleetwide = None
    locations, documents, gone_documents = _find_changed_locations(pair, new.keys() - old.keys(), site)
    no_site = None
    fleet = head.repository.fleet
    if site is not None and site not in (known_sites := [each.name for each in fleet.spec.sites]):
        hint = format_suggestion(site, known_sites, Code.NO_SUCH_SITE.hint)
        place = (Id("Fleet", fleet.metadata.name), "spec", "sites")
        no_site = head.repository.build_problem(
            Code.NO_SUCH_SITE, f"this instance is for site {site}, but the Fleet has no such site", *place, hint=hint
        )
    return CommitEnd(
        extent=pair.extent,
        fleetwide=fleetwide,
        new_servers=tuple(sorted(name for uuid, name in uuids.items() if uuid not in known_uuids)),
        moves=_find_moves(base, head, names, old, uuids.keys()) if base is not None and site is not None else NO_MOVES,
        removed_servers=tuple(sorted(old.keys() - new.keys())),
        removed_machines=tuple(sorted(uuids_before - uuids.keys())),
        sites={name: each for name, each in selected.items() if each != selected_before.get(name)},
        removed_sites=tuple(sorted(selected_before.keys() - selected.keys())),
        locations=locations,
        documents=documents,
        removed_documents=gone_documents,
        no_site=no_site,
    )


def _find_changed_locations(
    pair: CommitPair, new_names: Collection[str], site: str | None
) -> tuple[dict[str, ServerLocation], dict[str, DocumentLocation], tuple[str, ...]]:
    """Return the changed locations of servers, those of other documents, and the other documents that were removed.

    ``new_names`` are the names of the servers that are new at the site.
    """
    base, head = pair.base, pair.head
    if not _publishes_pages(head):
        return {}, {}, ()
    repository, texts = head.repository, SourceTexts(head.repository)
    if base is None or not _publishes_pages(base):
        documents = sorted(repository.origins)
    else:
        documents = find_moved_documents(base.repository, repository)
    names = _select_servers(head, {*new_names, *(each.name for each in documents if each.kind == "Server")}, site)
    by_file = sorted((repository.origins[Id("Server", name)], name) for name in names)
    shared = [each for each in documents if each.kind != "Server"]
    return (
        {name: texts.locate_server(name) for _, name in by_file},
        {str(each): texts.locate_document(each) for each in shared if each in repository.origins},
        tuple(str(each) for each in shared if each not in repository.origins),
    )


def _find_moves(
    base: Evaluation,
    head: Evaluation,
    names: Collection[str],
    old: Mapping[str, Server],
    present: Collection[SystemUuid],
) -> Moves:
    """Return the machines that have moved to, from, or between other sites since the base commit.

    ``old`` are the servers that the base contains at this site, and ``present`` the machines that are at this site now.
    """
    before, after = _select_servers(base, names, None), _select_servers(head, names, None)
    old_elsewhere = {each.uuid: each for name, each in before.items() if name not in old}
    new_machines = {each.uuid: each for each in after.values()}
    old_sites, new_sites = _select_sites(base, before), _select_sites(head, after)
    passed_on = (
        uuid
        for uuid in (old_elsewhere.keys() & new_machines.keys()).difference(present)
        if old_sites.get(old_elsewhere[uuid].metadata.name) != new_sites.get(new_machines[uuid].metadata.name)
    )
    return Moves(
        arrived=tuple(sorted(old_elsewhere.keys() & present)),
        departed=tuple(
            build_machine(base.repository, old_elsewhere[uuid])
            for uuid in sorted(old_elsewhere.keys() - new_machines.keys())
        ),
        passed_on=tuple(sorted(passed_on)),
    )


def _select_sites(commit: Evaluation, servers: Mapping[str, Server]) -> dict[str, str]:
    selection = build_site_index(commit.repository)
    found = {name: selection.find(server) for name, server in servers.items()}
    return {name: selected[0].name for name, selected in found.items() if selected}


def _build_fleetwide_part(commit: Evaluation, revision: Revision, site: str | None) -> Commit:
    repository, decisions = commit.repository, commit.decided.decisions
    return Commit(
        revision=revision,
        fleet=repository.fleet.spec,
        decisions=structs.replace(decisions, revision=revision, servers={}, networks={}),
        machines={},
        sites={},
        labels={},
        opt_outs=commit.summary.opt_outs,
        minimum_versions=find_minimum_versions(repository),
        site=site,
        shown=encode_canonical(make_fleet_fields(repository, commit.summary.opt_outs))
        if _publishes_pages(commit)
        else None,
    )
