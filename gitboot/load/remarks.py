"""What is wrong between resources; put into words and looked up only as far as it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby

from gitboot.fleet.documents import problem_at
from gitboot.fleet.resources import Origin
from gitboot.fleet.revision import BlobId
from gitboot.fleet.yaml import Place, locate
from gitboot.model.scalar_from_document import Path
from gitboot.problems.codes import MAX_KEPT, Code, Problem

Spot = tuple[Origin, Path]


@dataclass(frozen=True, kw_only=True, slots=True)
class Remark:
    """Something that is wrong with a resource, before anybody has looked where it stands."""

    spot: Spot
    code: Code
    message: str | Callable[[str], str]  # the latter is given where ``other`` stands: fleet.yaml:12
    hint: str | Callable[[], str] = ""  # the latter where it takes long to find; "": the code's own
    other: Spot | None = None  # what the message names

    @property
    def path(self) -> str:
        return self.spot[0].path


def problems_of(remarks: Iterable[Remark], read: Callable[[BlobId], bytes]) -> tuple[list[Problem], Counter[str]]:
    """The first remarks of each file as problems; and by path, how many lie behind them."""
    remarks = list(remarks)
    places = _places((remark.spot for remark in remarks), read)
    remarks.sort(key=lambda remark: (remark.path, places[remark.spot]))
    shown: list[Remark] = []
    more: Counter[str] = Counter()
    for path, group in groupby(remarks, key=lambda remark: remark.path):
        of_file = list(group)
        shown += of_file[:MAX_KEPT]
        more[path] = len(of_file[MAX_KEPT:])
    others = _places((remark.other for remark in shown if remark.other), read)
    return [_problem(remark, places, others) for remark in shown], more


def _problem(remark: Remark, places: dict[Spot, Place], others: dict[Spot, Place]) -> Problem:
    message, hint = remark.message, remark.hint
    if not isinstance(message, str):
        message = message(f"{remark.other[0].path}:{others[remark.other].line}" if remark.other else "")
    hint = hint if isinstance(hint, str) else hint()
    return problem_at(remark.path, places[remark.spot], remark.code, message, hint)


def _places(spots: Iterable[Spot], read: Callable[[BlobId], bytes]) -> dict[Spot, Place]:
    """Where they are, looked up document by document: each is read once."""
    in_order = sorted(set(spots), key=lambda spot: spot[0])
    return {(origin, at): locate(read(origin.blob), origin.document, at) for origin, at in in_order}
