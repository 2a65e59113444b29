"""Commits fetched and evaluated in this process: for tests that reconcile one by one, and type commands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from gitboot.child_processes import encode
from gitboot.controller.instance import assembly, git_source
from gitboot.disk_cache import DiskCache
from gitboot.errors import NotEvaluated
from gitboot.evaluator import protocol
from gitboot.evaluator.client import Evaluation, assembled
from gitboot.evaluator.evaluation import Evaluator
from gitboot.evaluator.evaluation_result import Commit, Evaluated
from gitboot.evaluator.process import report
from gitboot.evaluator.protocol import Allowance, exceeded
from gitboot.fleet.revision import Revision
from gitboot.git.clone import Reader
from gitboot.git.fetch import InThisProcess
from gitboot.status.work_progress import Told, unheard


class Here(Evaluation):
    """An evaluation without a process of its own. The evaluation of a commit in ``unending`` does not end in time."""

    def __init__(self, reader: Reader, site: str | None = None, unending: Collection[str] = ()) -> None:
        super().__init__(Path(), site=site)
        self._unending = unending
        self._reader = reader
        self._evaluator = Evaluator(reader.snapshot)

    def evaluate(self, revision: Revision, base: Commit | None) -> Evaluated | None:
        if revision in self._unending:
            raise NotEvaluated([exceeded("it is not evaluated in time")])
        try:
            difference = self._evaluator.evaluate(revision, base.revision if base is not None else None)
        finally:
            self._reader.close()
        return assembled(base, revision, (protocol.answer(encode(each)) for each in report(difference, self._site)))


class Slow(Here):
    """One that never comes to an end with a commit that is compared with another."""

    def evaluate(self, revision: Revision, base: Commit | None) -> Evaluated | None:
        return super().evaluate(revision, base) if base is None else None


@contextmanager
def evaluated_here() -> Iterator[None]:
    """What a command that is typed in this process fetches and evaluates is so in it as well."""

    def here(
        state: Path,
        *,
        allowance: Allowance,
        waits: bool,
        timed: Callable[[], Callable[[], None]] = lambda: lambda: None,
        read: Told = unheard,
        site: str | None = None,
        cache: DiskCache | None = None,
    ) -> Here:
        return Here(Reader(state), site)

    with patch.object(assembly, "Evaluation", here), patch.object(git_source, "FetchProcess", _FetchesHere):
        yield


class _FetchesHere(InThisProcess):
    """A fetcher without a process of its own."""

    def __init__(self, mebibytes: int | None) -> None:
        self.mebibytes = mebibytes

    def close(self) -> None:
        pass
