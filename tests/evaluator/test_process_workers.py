"""The result of a commit is the same, byte for byte, for any number of processes and any fault of them."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from benchmarks.fleet import Fleet
from gitboot.child_processes import ProcessUsage, deduct_processor_time, divide_limits, encode
from gitboot.errors import InvalidRepository
from gitboot.evaluator import cache
from gitboot.evaluator import evaluation as workers_module
from gitboot.evaluator.evaluation import Evaluator, Workers
from gitboot.evaluator.process import build_report
from gitboot.fleet.revision import BlobId, Revision, Snapshot
from tests.helpers.evaluations import StoredResults

ROOT: Final = Path(__file__).parents[2]
SERVERS: Final = 40
FILES: Final = dict(Fleet(servers=SERVERS).files())
# Servers that no policy selects: each has a warning.
WARNED: Final = {path: data.replace(b"role: appliance", b"role: nobody") for path, data in FILES.items()} | {
    "fleet.yaml": FILES["fleet.yaml"].replace(b"spec:\n", b"spec:\n  requirePolicy: false\n")
}
BROKEN: Final = {path: data.replace(b"role: batch", b"role: batch, role: worker") for path, data in FILES.items()} | {
    "more.yaml": b"kind: Nothing\n"
}


def snapshot(files: dict[str, bytes]) -> Snapshot:
    blobs = {path: BlobId(sha256(data).hexdigest()[:40]) for path, data in files.items()}
    contents = {blobs[path]: data for path, data in files.items()}
    return Snapshot(revision=Revision("c" * 40), blobs=blobs, read=contents.__getitem__)


def evaluate_files(files: dict[str, bytes], number: int) -> dict[str, Any]:
    """Evaluate a commit with so many workers; return the result, the cache rows, and the work done by others."""
    said: dict[str, Any]
    shared: list[bytes | None] = []

    class RecordingWorkers(Workers, frozen=True):
        def _compute_results(self, *how: Any) -> Any:
            found = super()._compute_results(*how)
            shared.extend(found)
            return found

    evaluator = Evaluator(lambda *_: snapshot(files), workers=RecordingWorkers(number=number))
    try:
        found, results = evaluator.evaluate(Revision("c" * 40), None), StoredResults()
        results.add(found.head)
        frames = b"".join(map(encode, build_report(found)))
        said = {"frames": sha256(frames).hexdigest(), "results": sha256(encode(results.rows)).hexdigest()}
    except InvalidRepository as error:
        said = {"problems": list(map(str, error.problems))}
    return {"said": said, "by others": sum(each is not None for each in shared)}


def act_in_worker(act: Callable[[int], object], after: int) -> Callable[[Any], bytes]:
    """The work of a worker for each server; after so many it does something else."""
    ours, numbers, encode_decided = os.getpid(), count(), cache.encode_decided_server

    def encode_or_act(said: Any) -> bytes:
        if os.getpid() != ours and next(numbers) >= after:
            act(os.getpid())
        return encode_decided(said)

    return encode_or_act


def out_of_memory(_: int) -> None:
    raise MemoryError


def evaluate_failing(files: dict[str, bytes], number: int, act: Callable[[int], object], after: int) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers_module, "encode_decided_server", act_in_worker(act, after))
        return evaluate_files(files, number)


def measure_limits() -> list[float]:
    """Return the limits of forks, and what is left after they used 2 s of the processor."""
    spent = ProcessUsage.measure()
    assert spent.memory_bytes is not None
    spent.limit(memory_bytes=300 * 2**20, processor_s=50)
    share = divide_limits(3)
    assert share.processor_s is not None
    assert share.memory_bytes is not None
    before = resource.getrlimit(resource.RLIMIT_CPU)[0]
    deduct_processor_time(2)
    after = resource.getrlimit(resource.RLIMIT_CPU)[0]
    resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return [share.processor_s, (share.memory_bytes - spent.memory_bytes) / 2**20, before - after]


def send_cpu_limit_signal(pid: int) -> None:
    os.kill(pid, signal.SIGXCPU)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def check_orphans(folder: Path) -> bool:
    if (evaluator := os.fork()) == 0:

        def wait(pid: int) -> None:
            (folder / str(pid)).touch()
            signal.pause()

        evaluate_failing(FILES, 2, wait, 0)
        os._exit(0)
    wait_until(lambda: len(list(folder.iterdir())) == 2)
    os.kill(evaluator, signal.SIGKILL)
    os.waitpid(evaluator, 0)
    wait_until(lambda: not any(map(is_alive, folder.iterdir())))
    return True


def is_alive(worker: Path) -> bool:
    try:
        return Path(f"/proc/{worker.name}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def main(folder: str) -> None:
    """All of it in one process, which has one thread: another would not be divided."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workers_module, "_MIN_ITEMS", 1)
        patch.setattr(workers_module, "BATCH", 4)
        found = {
            "same": [evaluate_files(WARNED, number) for number in (1, 2, 8)],
            "broken": [evaluate_files(BROKEN, number) for number in (1, 3)],
            "killed": [evaluate_failing(WARNED, 2, kill, after) for after in (0, 9)],
            "out of memory": [evaluate_failing(WARNED, 2, out_of_memory, after) for after in (0, 9)],
            "overrun": [evaluate_failing(WARNED, 2, send_cpu_limit_signal, after) for after in (0, 9)],
            "orphaned": check_orphans(Path(folder)),
            "limited": measure_limits(),
        }
    sys.stdout.write(json.dumps(found))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("workers")
    process = subprocess.run(
        [sys.executable, "-m", __name__, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    said: dict[str, Any] = json.loads(process.stdout)
    return said


def test_one_two_and_eight_processes_give_the_same_bytes(found: dict[str, Any]) -> None:
    alone, two, eight = found["same"]
    assert alone["by others"] == 0
    assert two["by others"] == eight["by others"] > SERVERS  # files and servers
    assert alone["said"] == two["said"] == eight["said"]
    assert "frames" in alone["said"]


def test_problems_of_a_commit_are_the_same_with_workers(found: dict[str, Any]) -> None:
    alone, three = found["broken"]
    assert three["by others"] > 0
    assert alone["said"] == three["said"]
    assert len(alone["said"]["problems"]) > 3


@pytest.mark.parametrize("how", ["killed", "out of memory", "overrun"])
def test_files_that_a_worker_does_not_finish_are_read_without_it(found: dict[str, Any], how: str) -> None:
    alone, two, _ = found["same"]
    at_once, later = found[how]
    assert at_once["said"] == later["said"] == alone["said"]
    assert at_once["by others"] < later["by others"] < two["by others"]


def test_t1_a_worker_ends_with_its_evaluator(found: dict[str, Any]) -> None:
    assert found["orphaned"]


def test_t1_workers_share_the_limits_of_the_evaluator(found: dict[str, Any]) -> None:
    processor_s, mebibytes, taken_off = found["limited"]
    assert 45 <= processor_s <= 51
    assert 90 < mebibytes <= 100
    assert taken_off == 2


if __name__ == "__main__":
    main(sys.argv[1])
