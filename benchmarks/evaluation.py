"""What it costs to evaluate a commit, by what it changes: the evaluator's CPU and the instance's.

    python benchmarks/evaluation.py [SERVERS]

Each figure stands beside its share of a cold evaluation, which says the same on any machine.
"""

from __future__ import annotations

import gc
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import process_time

sys.path.insert(0, str(Path(__file__).resolve().parent))
from diff import Files, commit, edited, git, one_server
from validate import fleet

from gitboot.evaluate import wire
from gitboot.evaluate.difference import told
from gitboot.evaluate.evaluator import Evaluator
from gitboot.instance.commit import Commit
from gitboot.instance.evaluation import assembled
from gitboot.load import Revision
from gitboot.source import Reader, Remote, Source

ROUNDS = 3  # of which the quickest counts


def read_me(files: Files) -> Files:
    return files | {"README.md": b"# Another\n"}


def rollout(files: Files) -> Files:
    """About one server in twenty gets another image."""
    return edited(files, "streams/flatcar-stable.yaml", b"percent: 50 ", b"percent: 100 ")


def policy(files: Files) -> Files:
    """Most servers get another label."""
    return edited(files, "policies/worker.yaml", b"nodeLabels: {", b"nodeLabels: {example.net/more: yes-please, ")


class Followed:
    """A repository, a clone of it, and an evaluator of what is committed."""

    def __init__(self, folder: Path) -> None:
        self.work, state = folder / "work", folder / "state"
        self.work.mkdir()
        state.mkdir()
        git(self.work, "init", "--quiet", "--initial-branch=main")
        self._source = Source(Remote(url=str(self.work)), state)
        self._reader = Reader(state)
        self._evaluator = Evaluator(self._reader.snapshot)

    def commit(self, files: Files, before: Files) -> Revision:
        commit(self.work, files, before)
        return self._source.fetch()

    def evaluate(self, revision: Revision, base: Commit | None) -> tuple[Commit, float, float, int]:
        """The commit, the seconds of either side, and the bytes between them."""
        gc.disable()  # as the evaluator's process does
        began = process_time()
        difference = self._evaluator.evaluate(revision, base.revision if base else None)
        frames = [wire.encode(answer) for answer in told(difference)]
        self._reader.close()
        gc.collect(1)
        gc.freeze()
        heard = process_time()
        found = assembled(base, revision, map(wire.answer, frames)).commit
        return found, heard - began, process_time() - heard, sum(map(len, frames))


def rows(count: int, folder: Path) -> Iterator[tuple[str, float, float, int]]:
    followed = Followed(folder)
    files = fleet(count)
    first = followed.commit(files, {})
    base, evaluator, instance, size = followed.evaluate(first, None)
    yield "cold", evaluator, instance, size
    for change in (read_me, one_server, rollout, policy):
        changed = change(files)
        revision = followed.commit(changed, files)
        followed.evaluate(revision, base)
        rounds = []
        for _ in range(ROUNDS):
            followed.evaluate(first, base)  # and back
            rounds.append(followed.evaluate(revision, base)[1:])
        yield (change.__name__.replace("_", " "), *min(rounds))
        followed.commit(files, changed)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    print(f"{count:,} servers          evaluator      of cold    instance        bytes")
    whole = None
    with tempfile.TemporaryDirectory() as folder:
        for name, evaluator, instance, size in rows(count, Path(folder)):
            whole = whole or evaluator
            share = evaluator / whole
            print(f"{name:<20} {evaluator * 1000:9.1f} ms {share:11.5f} {instance * 1000:9.1f} ms {size:12,}")


if __name__ == "__main__":
    main()
