"""The evaluator process, which reads questions from standard input and writes answers to standard output."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import IO, Final

from gitboot.child_processes import OUT_OF_MEMORY, Spent, as_child_of, lift, read_frame, write_frame
from gitboot.errors import CorruptClone, InvalidRepository, SourceError
from gitboot.evaluator import protocol
from gitboot.evaluator.cache import RemoteCache
from gitboot.evaluator.commit_report import told
from gitboot.evaluator.evaluation import BATCH, CommitPair, Evaluator, Forks, processors
from gitboot.evaluator.protocol import Allowance
from gitboot.git.clone import Reader
from gitboot.git.repository import lacks_memory
from gitboot.load.snapshot import BlobId, Revision, Snapshot
from gitboot.model.fleet import FleetSpec


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
