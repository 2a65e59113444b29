"""A cache of results in memory, in place of the one on disk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from gitboot.disk_cache import DiskCache
from gitboot.evaluator.cache import encode_result
from gitboot.evaluator.evaluation import Evaluation
from gitboot.evaluator.protocol import EVALUATED, ResultKind


class StoredResults(DiskCache):
    """The results that were added, by kind and content key."""

    def __init__(self) -> None:
        super().__init__(None, lambda _: None)
        self.rows: defaultdict[ResultKind, dict[bytes, bytes]] = defaultdict(dict)
        self.inserted: list[dict[ResultKind, dict[bytes, bytes]]] = []  # by each call

    def add(self, evaluation: Evaluation) -> None:
        """Add all results of an evaluation."""
        for kind in EVALUATED:
            self.rows[kind].update((key, encode_result(each)) for key, each in evaluation.results(kind).items())

    def get_many(self, kind: str, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        known = self.rows.get(ResultKind(kind), {})
        return {key: known[key] for key in keys if key in known}

    def insert_many(self, kind: str, rows: Mapping[bytes, bytes]) -> None:
        self.inserted.append({ResultKind(kind): dict(rows)})
        self.rows[ResultKind(kind)] = {**rows, **self.rows[ResultKind(kind)]}
