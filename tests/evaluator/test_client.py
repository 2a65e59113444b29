"""The evaluator process: its limits, its failures, and its end with the process that started it."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from msgspec import structs

from gitboot.child_processes import Child, FrameBuffer, encode
from gitboot.errors import CorruptClone, InvalidRepository, NotEvaluated, SourceError
from gitboot.evaluator import protocol
from gitboot.evaluator.cache import DecidedRow, decode_row
from gitboot.evaluator.client import EvaluatorClient
from gitboot.evaluator.protocol import Commit, EvaluationLimits, EvaluationResult, ResultKind
from gitboot.fleet.revision import Revision
from gitboot.git.clone import Source
from gitboot.git.remote import Remote
from gitboot.model.scalars import SystemUuid
from gitboot.problems import Code
from gitboot.status.conditions import Condition
from tests.helpers.evaluations import StoredResults
from tests.helpers.fleets import SEED, make_mac, make_uuid, policy, server, write_configuration
from tests.helpers.forked_commands import Command, nursery, run_forked
from tests.helpers.instance_in_process import run_in_process
from tests.helpers.running_instance import Repository, eventually, is_alive, list_evaluators, running

MANY = 3000  # servers: more memory than the limit here
FEW = 300  # but an evaluator is at it a while


@cache
def make_servers(count: int = MANY) -> str:
    names = [f"w{number:05}" for number in range(count)]
    macs = [f"02:00:00:{number >> 16:02x}:{number >> 8 & 255:02x}:{number & 255:02x}" for number in range(count)]
    return "---\n".join(
        server(name, "role: web").replace(make_mac(name), mac) for name, mac in zip(names, macs, strict=True)
    )


def make_files(servers: int, most: int = 10_000) -> dict[str, str]:
    """So many servers, in files that each have no more documents than a file may have."""
    documents = make_servers(servers).split("---\n")
    parts = range(0, len(documents), most)
    return {f"many{part}.yaml": "---\n".join(documents[part : part + most]) for part in parts}


@cache
def make_slow_fleet() -> dict[str, str]:
    """Files with so many servers that evaluating them takes several seconds of processor time on this machine.

    The start of gitboot is part of what is measured, and at most half of it. Several processes share the work.
    """
    measured = 10_000
    with TemporaryDirectory() as folder:
        seed = {f"{number}.yaml": text for number, text in enumerate(SEED)}
        for name, text in {**make_files(measured), **seed}.items():
            (Path(folder) / name).write_text(text)
        before = os.times()
        subprocess.run([sys.executable, "-m", "gitboot", "validate", folder], check=True, capture_output=True)
        after = os.times()
    spent_s = after.children_user + after.children_system - before.children_user - before.children_system
    return make_files(int(12 / spent_s * measured))


@pytest.fixture(scope="module", autouse=True)
def forking_process() -> Iterator[None]:
    with nursery():
        yield


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "git")
    made.push({f"{number:02}.yaml": text for number, text in enumerate(SEED)})
    return made


@pytest.fixture
def state(tmp_path: Path) -> Path:
    made = tmp_path / "state"
    made.mkdir()
    return made


@pytest.fixture
def source(repository: Repository, state: Path) -> Source:
    made = Source(Remote(url=str(repository.bare)), state)
    made.fetch()
    return made


def fetch_newest(source: Source) -> Revision:
    source.fetch()
    latest = source.latest()
    assert latest is not None
    return latest


@pytest.fixture
def evaluation(state: Path) -> Iterator[EvaluatorClient]:
    made = EvaluatorClient(state, waits_for_answer=True)
    yield made
    made.close()


def list_codes(evaluation: EvaluatorClient, revision: Revision) -> list[str]:
    with pytest.raises(InvalidRepository) as raised:
        evaluation.evaluate(revision, None)
    return [problem.code for problem in raised.value.problems]


def evaluate(evaluation: EvaluatorClient, revision: Revision, base: Commit | None = None) -> EvaluationResult:
    found = evaluation.evaluate(revision, base)
    assert found is not None
    return found


def kill_evaluators() -> None:
    for process in list_evaluators(os.getpid()):
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(process, signal.SIGKILL)


@contextmanager
def run_child(child: Child) -> Iterator[Child]:
    try:
        yield child
    finally:
        child.kill()
        child.reap()


def find_child(process: subprocess.Popen[Any]) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    (child,) = eventually(lambda: children.read_text().split())
    return int(child)


# One commit after the other


def test_a_commit_is_sent_whole_and_the_next_by_its_changes_and_a_dropped_one_leaves_nothing(
    repository: Repository, source: Source, evaluation: EvaluatorClient
) -> None:
    first = evaluate(evaluation, fetch_newest(source))
    web01 = first.commit.decisions.servers["web01"]
    assert list(first.commit.decisions.servers) == ["web01"] and first.extent.is_first
    repository.push({"web02.yaml": server("web02", "role: web")})
    second = evaluate(evaluation, fetch_newest(source), first.commit)
    assert list(second.commit.decisions.servers) == ["web01", "web02"]
    assert (second.extent.before, second.extent.after, second.new_names) == (1, 2, ("web02",))
    assert second.commit.decisions.servers["web01"] is web01  # it was not sent again
    assert second.commit.fleet is first.commit.fleet
    repository.push({"web02.yaml": "", "web03.yaml": server("web03", "role: web")})
    third = evaluate(evaluation, fetch_newest(source), first.commit)  # the second was dropped
    assert list(third.commit.decisions.servers) == ["web01", "web03"]
    assert (third.extent.before, third.extent.after) == (1, 2)


def test_the_client_does_not_wait_for_an_answer_and_is_called_when_it_comes(source: Source, state: Path) -> None:
    called: list[None] = []
    with closing(EvaluatorClient(state)) as evaluation:
        evaluation.on_answer = lambda: called.append(None)
        assert evaluation.evaluate(fetch_newest(source), None) is None
        eventually(lambda: called)
        assert evaluate(evaluation, fetch_newest(source)).commit.revision == fetch_newest(source)


def test_after_a_dropped_commit_that_removed_a_server_its_address_is_still_known(
    repository: Repository, source: Source, evaluation: EvaluatorClient
) -> None:
    repository.push({"web02.yaml": server("web02", "role: web")})
    first = evaluate(evaluation, fetch_newest(source))
    repository.push({"web02.yaml": ""})
    evaluate(evaluation, fetch_newest(source), first.commit)
    taken = server("web03", "role: web").replace(make_mac("web03"), make_mac("web02"))
    repository.push({"web02.yaml": server("web02", "role: web"), "web03.yaml": taken})
    with pytest.raises(InvalidRepository) as raised:
        evaluation.evaluate(fetch_newest(source), first.commit)
    assert [problem.code for problem in raised.value.problems] == [Code.DUPLICATE_IDENTITY]


# Results of accepted commits are stored for the next process


@pytest.fixture
def cached(state: Path) -> Iterator[tuple[EvaluatorClient, StoredResults]]:
    cache = StoredResults()
    made = EvaluatorClient(state, waits_for_answer=True, cache=cache)
    yield made, cache
    made.close()


def store(evaluation: EvaluatorClient, cache: StoredResults, commit: Commit) -> None:
    """Accept a commit, and wait until both kinds of its results are stored."""
    before = len(cache.inserted)
    evaluation.store_results(commit.revision)
    eventually(lambda: len(cache.inserted) == before + 2)


def evaluate_with_cache(state: Path, revision: Revision, cache: StoredResults) -> Commit:
    with closing(EvaluatorClient(state, waits_for_answer=True, cache=cache)) as evaluation:
        return evaluate(evaluation, revision).commit


def test_the_next_process_looks_up_the_results_of_an_accepted_commit(
    repository: Repository, source: Source, state: Path, cached: tuple[EvaluatorClient, StoredResults]
) -> None:
    evaluation, cache = cached
    first = evaluate(evaluation, fetch_newest(source)).commit
    assert not cache.rows
    store(evaluation, cache, first)
    parsed, decided = cache.rows[ResultKind.PARSED], cache.rows[ResultKind.DECIDED]
    assert (len(parsed), len(decided)) == (1, 1)
    for key, value in decided.items():  # no evaluation comes to this, so it shows that the row was used
        decided[key] = with_decision(value, firmware="BIOS")
    assert evaluate_with_cache(state, first.revision, cache).decisions.servers["web01"].firmware == "BIOS"
    repository.push({"web02.yaml": server("web02", "role: web")})
    servers = evaluate_with_cache(state, fetch_newest(source), cache).decisions.servers
    assert [each.firmware for each in servers.values()] == ["BIOS", "UEFI"]


def with_decision(row: bytes, **fields: Any) -> bytes:
    found = decode_row(row)
    assert found is not None
    decision = replace(protocol.decode_decision(found.decision), **fields)
    return encode(DecidedRow(protocol.encode_decision(decision), found.host, found.findings))


@pytest.mark.parametrize("part", ["decision", "host", "both"])
def test_a_result_of_another_server_is_not_used(
    source: Source, state: Path, cached: tuple[EvaluatorClient, StoredResults], part: str
) -> None:
    evaluation, cache = cached
    first = evaluate(evaluation, fetch_newest(source)).commit
    store(evaluation, cache, first)
    rows = cache.rows[ResultKind.DECIDED]
    for key, value in rows.items():
        found, other = decode_row(value), decode_row(with_decision(value, server="web02"))
        assert found is not None and other is not None
        host = encode(structs.replace(protocol.decode_host(found.host), server="web02"))
        decision = found.decision if part == "host" else other.decision
        rows[key] = encode(DecidedRow(decision, found.host if part == "decision" else host, ()))
    assert evaluate_with_cache(state, first.revision, cache).decisions == first.decisions


def test_a_commit_with_an_invalid_answer_is_not_accepted(
    source: Source, state: Path, cached: tuple[EvaluatorClient, StoredResults]
) -> None:
    evaluation, cache = cached
    first = evaluate(evaluation, fetch_newest(source)).commit
    store(evaluation, cache, first)
    for key, value in cache.rows[ResultKind.DECIDED].items():
        cache.rows[ResultKind.DECIDED][key] = with_decision(value, uuid=SystemUuid(make_uuid("web02")))
    with pytest.raises(NotEvaluated, match="killed the evaluation twice"):
        evaluate_with_cache(state, first.revision, cache)


def test_only_results_that_the_cache_lacks_are_stored(
    repository: Repository, source: Source, cached: tuple[EvaluatorClient, StoredResults]
) -> None:
    evaluation, cache = cached
    first = evaluate(evaluation, fetch_newest(source)).commit
    store(evaluation, cache, first)
    repository.push({"web02.yaml": server("web02", "role: web"), "README.md": "Hello"})
    store(evaluation, cache, evaluate(evaluation, fetch_newest(source), first).commit)
    assert [(kind, len(values)) for each in cache.inserted for kind, values in each.items()] == 2 * [
        (ResultKind.PARSED, 1),
        (ResultKind.DECIDED, 1),
    ]


def test_the_process_of_an_unaccepted_commit_ends_and_nothing_is_stored(
    source: Source, cached: tuple[EvaluatorClient, StoredResults]
) -> None:
    evaluation, cache = cached
    revision = fetch_newest(source)
    evaluate(evaluation, revision)
    (process,) = list_evaluators(os.getpid())
    evaluation.end_process_unless_accepted(revision)  # it is about to be accepted
    assert is_alive(process)
    evaluation.end_process_unless_accepted(None)
    eventually(lambda: not is_alive(process))
    evaluation.close()
    assert not cache.rows


def test_a_process_that_follows_a_rejected_commit_stays(
    repository: Repository, source: Source, cached: tuple[EvaluatorClient, StoredResults]
) -> None:
    evaluation, _ = cached

    def accept(base: Commit | None) -> Commit:
        commit = evaluate(evaluation, fetch_newest(source), base).commit
        evaluation.end_process_unless_accepted(commit.revision)
        evaluation.store_results(commit.revision)
        return commit

    first = accept(None)
    repository.push({"broken.yaml": "kind: Nothing\n"})
    with pytest.raises(InvalidRepository):
        evaluation.evaluate(fetch_newest(source), first)
    evaluation.end_process_unless_accepted(first.revision)
    repository.push({"broken.yaml": ""})
    second = accept(first)
    process = list_evaluators(os.getpid())
    assert len(process) == 1
    repository.push({"README.md": "Hello"})
    accept(second)
    assert list_evaluators(os.getpid()) == process


def test_a_commit_that_is_approved_after_its_process_has_ended_is_stored(
    source: Source, cached: tuple[EvaluatorClient, StoredResults]
) -> None:
    evaluation, cache = cached
    commit = evaluate(evaluation, fetch_newest(source)).commit
    evaluation.end_process_unless_accepted(None)
    store(evaluation, cache, commit)


def test_results_after_a_rejected_commit_are_not_stored(
    repository: Repository, source: Source, cached: tuple[EvaluatorClient, StoredResults]
) -> None:
    evaluation, cache = cached
    first = evaluate(evaluation, fetch_newest(source)).commit
    store(evaluation, cache, first)
    repository.push({"web02.yaml": server("web02", "role: web")})
    evaluate(evaluation, fetch_newest(source), first)
    repository.push({"web02.yaml": server("web03", "role: web")})
    third = evaluate(evaluation, fetch_newest(source), first).commit
    before = len(cache.inserted)
    evaluation.store_results(third.revision)
    evaluation.wait_until_results_stored()
    assert len(cache.inserted) == before
    (process,) = list_evaluators(os.getpid())
    evaluation.end_process_unless_accepted(third.revision)
    eventually(lambda: not is_alive(process))


def test_a_process_that_does_not_read_is_killed(state: Path) -> None:
    with run_child(Child("tests.helpers.evaluations", "read nothing")) as child:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            child.send(protocol.CacheHits({bytes(16): bytes(2**20)}), lambda: began + 1 - time.monotonic())


def test_a_base_has_its_own_limits_if_the_process_does_not_hold_it(
    repository: Repository, source: Source, state: Path
) -> None:
    first = fetch_newest(source)
    repository.push({"web02.yaml": server("web02", "role: web")})
    second = fetch_newest(source)
    repository.push({"web03.yaml": server("web03", "role: web")})
    with run_child(Child("gitboot.evaluator", str(state))) as child:
        assert (
            count_begun_commits(child, first, second),
            count_begun_commits(child, second, fetch_newest(source)),
        ) == (2, 1)


def count_begun_commits(process: Child, base: Revision, revision: Revision) -> int:
    """Return for how many commits the process starts to count what they take."""
    process.send(protocol.Question(revision, base, EvaluationLimits()), lambda: 600)
    begun = 0
    for frame in process.read_answers(lambda: 600):
        found = protocol.decode_answer(frame)
        begun += found == protocol.EvaluationStart(None)
        if isinstance(found, protocol.CacheLookup):
            process.send(protocol.CacheHits({}), lambda: 600)
        if isinstance(found, protocol.CommitEnd):
            return begun
    raise AssertionError("it ended early")


def test_a_process_cannot_extend_its_time_by_beginning_repeatedly(
    source: Source, evaluation: EvaluatorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gitboot.evaluator.client.Child", lambda *_: Child("tests.helpers.evaluations", "begin"))
    with pytest.raises(NotEvaluated, match="killed the evaluation twice"):
        evaluate(evaluation, fetch_newest(source))


def test_a_frame_that_is_too_long_is_invalid() -> None:
    with pytest.raises(ValueError, match="bytes"):
        list(FrameBuffer().add(b"\xff\xff\xff\xff"))


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x93\xa0\xa0\x90", b"\x90"])
def test_a_stored_value_that_does_not_decode_is_evaluated_again(
    value: bytes, source: Source, state: Path, cached: tuple[EvaluatorClient, StoredResults]
) -> None:
    evaluation, cache = cached
    first = evaluate(evaluation, fetch_newest(source)).commit
    store(evaluation, cache, first)
    for rows in cache.rows.values():
        rows.update(dict.fromkeys(rows, value))
    assert evaluate_with_cache(state, first.revision, cache) == first


def test_all_problems_of_a_commit_are_transferred(
    repository: Repository, source: Source, evaluation: EvaluatorClient
) -> None:
    repository.push({"tie.yaml": policy("web2", "{matchLabels: {role: web}}"), "broken.yaml": "kind: Nothing\n"})
    assert list_codes(evaluation, fetch_newest(source)) == ["GB1021"]


def test_a_clone_that_cannot_be_read_is_reported_as_corrupt(
    source: Source, state: Path, evaluation: EvaluatorClient
) -> None:
    revision = fetch_newest(source)
    (state / "repository.git").rename(state / "away.git")
    with pytest.raises(CorruptClone):
        evaluation.evaluate(revision, None)
    (state / "away.git").rename(state / "repository.git")
    assert evaluate(evaluation, revision).commit.revision == revision


# Limits, and deaths


def test_a_commit_that_takes_too_much_time_is_rejected_and_the_next_is_not(
    repository: Repository, source: Source, state: Path
) -> None:
    with closing(EvaluatorClient(state, limits=EvaluationLimits(seconds=1), waits_for_answer=True)) as evaluation:
        repository.push(make_slow_fleet())
        assert list_codes(evaluation, fetch_newest(source)) == [Code.LIMITS]
        repository.push(dict.fromkeys(make_slow_fleet(), ""))
        revision = fetch_newest(source)

        def evaluate_patiently() -> EvaluationResult | None:
            with suppress(NotEvaluated):  # on a busy machine, one second of processor time may take longer than allowed
                return evaluate(evaluation, revision)
            return None

        assert len(eventually(evaluate_patiently).commit.decisions.servers) == 1


def test_a_commit_that_takes_too_much_memory_is_rejected_and_the_next_is_not(
    repository: Repository, source: Source, state: Path
) -> None:
    with closing(EvaluatorClient(state, limits=EvaluationLimits(mebibytes=8), waits_for_answer=True)) as evaluation:
        repository.push({"many.yaml": make_servers()})
        assert list_codes(evaluation, fetch_newest(source)) == [Code.LIMITS]
        repository.push({"many.yaml": ""})
        assert len(evaluate(evaluation, fetch_newest(source)).commit.decisions.servers) == 1


def test_the_wait_for_a_commit_ends(repository: Repository, source: Source, state: Path) -> None:
    with closing(EvaluatorClient(state, limits=EvaluationLimits(seconds=1), waits_for_answer=True)) as evaluation:
        evaluate(evaluation, fetch_newest(source))
        (process,) = list_evaluators(os.getpid())
        os.kill(process, signal.SIGSTOP)  # as a disk that hangs would
        repository.push({"web02.yaml": server("web02", "role: web")})
        assert list_codes(evaluation, fetch_newest(source)) == [Code.LIMITS]


def test_a_killed_evaluator_is_started_again(repository: Repository, source: Source, state: Path) -> None:
    with closing(EvaluatorClient(state)) as evaluation:
        repository.push({"many.yaml": make_servers(FEW)})
        revision = fetch_newest(source)
        assert evaluation.evaluate(revision, None) is None
        os.kill(eventually(lambda: list_evaluators(os.getpid()))[0], signal.SIGKILL)
        found = eventually(lambda: evaluation.evaluate(revision, None))
        assert len(found.commit.decisions.servers) == FEW + 1
        os.kill(list_evaluators(os.getpid())[0], signal.SIGKILL)  # while it is idle
        base = found.commit
        repository.push({"many.yaml": make_servers(2)})
        revision = fetch_newest(source)
        found = eventually(lambda: evaluation.evaluate(revision, base))
        assert (found.extent.before, found.extent.after) == (FEW + 1, 3)
    assert list_evaluators(os.getpid()) == []


def test_a_commit_that_repeatedly_kills_its_evaluator_is_rejected(
    repository: Repository, source: Source, state: Path
) -> None:
    with closing(EvaluatorClient(state)) as evaluation:
        repository.push({"many.yaml": make_servers()})
        revision = fetch_newest(source)

        def refused() -> tuple[str, ...] | None:
            kill_evaluators()
            try:
                evaluation.evaluate(revision, None)
            except InvalidRepository as error:
                return tuple(problem.code for problem in error.problems)
            return None

        assert eventually(refused) == (Code.LIMITS,)


def test_a_library_that_aborts_without_memory_counts_as_a_limit(
    repository: Repository, source: Source, state: Path
) -> None:
    with closing(EvaluatorClient(state)) as evaluation:
        repository.push({"many.yaml": make_servers()})
        revision = fetch_newest(source)
        assert evaluation.evaluate(revision, None) is None
        os.kill(eventually(lambda: list_evaluators(os.getpid()))[0], signal.SIGABRT)
        with pytest.raises(InvalidRepository, match="exceeds its memory limit"):
            eventually(lambda: evaluation.evaluate(revision, None))


# With an instance around it


def test_finding_c6_a_commit_whose_evaluation_does_not_end_is_evaluated_again(
    tmp_path: Path, repository: Repository
) -> None:
    start = datetime(2026, 11, 20, 12, tzinfo=UTC)
    with run_in_process(tmp_path, repository.bare, apart=True, clock=lambda: start) as parts:

        def commit_accepted(at: datetime) -> Condition:
            parts.reconciler.reconcile(at)
            return next(each for each in parts.reconciler.status.conditions if each.type == "CommitAccepted")

        def is_accepted(revision: str, at: datetime) -> bool:
            parts.reconciler.reconcile(at)
            return parts.reconciler.status.accepted == revision

        def not_evaluated(at: datetime, again: str) -> Condition | None:
            kill_evaluators()
            found = commit_accepted(at)
            return found if found.reason == "NotEvaluated" and f"retry at {again}" in found.message else None

        parts.source.fetch()
        first = fetch_newest(parts.source)
        eventually(lambda: is_accepted(first, start))
        repository.push({"many.yaml": make_servers()})
        parts.source.fetch()
        found = eventually(lambda: not_evaluated(start, "2026-11-20T12:01:00Z"))
        assert "killed the evaluation twice" in found.message
        assert parts.reconciler.reconcile(start) == start + timedelta(minutes=1)
        assert [each.type for each in parts.events].count("Rejected") == 1

        again = start + timedelta(minutes=1)
        eventually(lambda: not_evaluated(again, "2026-11-20T12:03:00Z"))
        assert parts.reconciler.reconcile(again) == again + timedelta(minutes=2), "each wait is twice as long"
        assert [each.type for each in parts.events].count("Rejected") == 1

        newest_commit = repository.push({"many.yaml": "", "web02.yaml": server("web02", "role: web")})
        parts.source.fetch()
        eventually(lambda: is_accepted(newest_commit, again))
        assert parts.reconciler.status.problems == ()

        repository.push({"many.yaml": make_servers(FEW)})
        parts.source.fetch()
        eventually(lambda: not_evaluated(again, "2026-11-20T12:02:00Z"))
        later = again + timedelta(minutes=1)
        eventually(lambda: commit_accepted(later).reason == "GuardTripped")  # valid, with many first boots


def test_an_instance_continues_while_it_rejects_commits_that_exceed_the_limits(
    tmp_path: Path, repository: Repository
) -> None:
    with running(repository.bare, tmp_path, *write_configuration(commit_seconds=1), "--poll", "0.3") as instance:
        assert instance.status()["conditions"]
        repository.push(make_slow_fleet())

        def refusals() -> list[dict[str, Any]]:
            assert instance.get("/readyz").status_code == 200
            return [event for event in instance.events if event["type"] == "Rejected"]

        (refused,) = eventually(refusals)  # an evaluator waits for processes with a higher priority
        assert Code.LIMITS in refused["message"]
        commit = repository.push({**dict.fromkeys(make_slow_fleet(), ""), "web02.yaml": server("web02", "role: web")})
        eventually(lambda: instance.status()["applied"]["commit"] == commit)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_an_instance_ends_in_any_state_of_its_evaluator(
    tmp_path: Path, repository: Repository, number: signal.Signals
) -> None:
    with running(repository.bare, tmp_path, "--poll", "0.3") as instance:
        (idle,) = list_evaluators(instance.process.pid)
        repository.push({"many.yaml": make_servers(6000)})
        eventually(lambda: Path(f"/proc/{idle}/stat").read_text().rpartition(")")[2].split()[0] == "R")
        os.kill(idle, signal.SIGSTOP)  # it comes to no end by itself
        instance.process.send_signal(number)
        assert instance.process.wait(120) == 0
        assert not is_alive(idle)


def test_a_killed_instance_leaves_no_evaluator(tmp_path: Path, repository: Repository) -> None:
    repository.push({"many.yaml": make_servers(6000)})
    places = ("--out", str(tmp_path / "output"), "--state", str(tmp_path / "state"))
    with open(os.devnull, "wb") as nobody:
        process = Command(("run", str(repository.bare), *places), os.environ, errors=nobody.fileno())
    try:
        (evaluator,) = eventually(lambda: list_evaluators(process.pid))
    finally:
        process.kill()
        process.wait()
    eventually(lambda: not is_alive(evaluator))


# Commands that read a commit


@pytest.mark.parametrize("command", ["plan", "images"])
def test_a_command_that_exceeds_its_memory_limit_reports_it(repository: Repository, command: str) -> None:
    repository.push({"many.yaml": make_servers()})
    check_refused(run_forked(command, str(repository.bare), "--commit-memory", "8"))


def test_finding_r14_a_command_that_exceeds_its_time_limit_reports_it_on_any_machine(repository: Repository) -> None:
    repository.push(make_slow_fleet())
    check_refused(run_forked("validate", str(repository.bare), "--commit-seconds", "1"))


def check_refused(done: subprocess.CompletedProcess[str]) -> None:
    assert (done.returncode, "Traceback" in done.stderr) == (3, False)
    assert Code.LIMITS in done.stdout + done.stderr


@pytest.mark.parametrize("seconds", ["0.1", "1.5", "0"])
def test_finding_r14_a_limit_that_the_kernel_cannot_enforce_is_rejected(
    repository: Repository, seconds: str, tmp_path: Path
) -> None:
    (file := tmp_path / "gitboot.toml").write_text(f"commit-seconds = {seconds}\n")
    places = ("--out", str(tmp_path / "output"), "--state", str(tmp_path / "state"))
    for refused in (
        run_forked("validate", str(repository.bare), "--commit-seconds", seconds),
        run_forked("run", str(repository.bare), *places, "--config", str(file), "--once"),
    ):
        assert (refused.returncode, "Traceback" in refused.stderr) == (64, False)
        assert "commit-seconds" in refused.stderr


def test_a_command_that_reads_the_accepted_commit_has_limits_too(tmp_path: Path, repository: Repository) -> None:
    repository.push({"many.yaml": make_servers(2 * FEW)})
    place = ("--out", str(tmp_path / "output"), "--state", str(tmp_path / "state"))
    assert run_forked("run", str(repository.bare), *place, "--once").returncode == 0
    for command in (("records", "show"), ("bmc", "get")):
        done = run_forked(*command, *place[2:])
        assert (done.returncode, done.stderr) == (0, ""), done
        done = run_forked(*command, *place[2:], "--commit-memory", "1")
        assert (done.returncode, Code.LIMITS in done.stderr) == (3, True), done


def test_a_command_within_its_limits_prints_the_same_as_without_limits(repository: Repository) -> None:
    done = run_forked("validate", str(repository.bare))
    assert (done.returncode, done.stderr) == (0, f"{repository.bare}: 1 server, 2 images, no errors\n")
    repository.push({"tie.yaml": policy("web2", "{matchLabels: {role: web}}")})
    assert run_forked("validate", str(repository.bare)).returncode == 3


def test_a_command_whose_child_aborts_without_memory_reports_it(repository: Repository) -> None:
    repository.push({"many.yaml": make_servers(6000)})
    command = [sys.executable, "-m", "gitboot", "validate", str(repository.bare)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        os.kill(find_child(process), signal.SIGABRT)
        _, said = process.communicate()
    assert (process.returncode, Code.LIMITS in said, "exceeds its memory limit" in said) == (3, True, True)


def test_a_terminated_command_ends_with_its_child(repository: Repository) -> None:
    repository.push({"many.yaml": make_servers(6000)})
    process = subprocess.Popen([sys.executable, "-m", "gitboot", "validate", str(repository.bare)])
    child = find_child(process)
    process.terminate()
    assert process.wait(120) == -signal.SIGTERM
    assert not is_alive(child)


def test_an_evaluator_that_cannot_be_started_is_a_fault_of_the_source_and_the_next_call_starts_one(
    source: Source, state: Path
) -> None:
    newest = fetch_newest(source)
    with closing(EvaluatorClient(state, waits_for_answer=True)) as client:
        files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, most))
        try:
            with pytest.raises(SourceError, match="Too many open files"):
                client.evaluate(newest, None)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, most))
        assert client.evaluate(newest, None) is not None
