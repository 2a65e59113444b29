"""Which files of a revision are read as documents, and which say nothing that could be read."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from pathspec import GitIgnoreSpec

from gitboot.document import Place
from gitboot.load.blobs import oversized
from gitboot.load.problems import START, problem_at
from gitboot.load.snapshot import Irregular, Oversized, Snapshot
from gitboot.model.scalars import shown
from gitboot.problems.codes import Code
from gitboot.problems.problem import Problem


class Listing(NamedTuple):
    """The files of a fleet, by path, in order."""

    documents: tuple[str, ...]
    irregular: tuple[str, ...]  # paths at which, or below which, there may be anything
    problems: tuple[Problem, ...]


def listed(snapshot: Snapshot) -> Listing:
    """All but what is left out: dot-files, dot-folders, and what ``.gitbootignore`` names."""
    ignores, problems = _ignoring(snapshot)
    irregular = tuple(sorted(path for path in snapshot.irregular if not ignores(path)))
    problems += (_irregular_problem(path, snapshot.irregular[path]) for path in irregular)
    documents = sorted(path for path in snapshot.blobs if path.endswith((".yaml", ".yml")) and not ignores(path))
    return Listing(tuple(documents), irregular, tuple(problems))


def _ignoring(snapshot: Snapshot) -> tuple[Callable[[str], bool], list[Problem]]:
    """Whether a path is left out; and which lines of ``.gitbootignore`` name nothing."""
    blob = snapshot.blobs.get(_IGNORE)
    if blob is None:
        return _is_hidden, []
    patterns: list[str] = []
    problems: list[Problem] = []
    try:
        text = snapshot.read(blob).decode("utf-8-sig", "replace")
    except Oversized as error:
        return _is_hidden, [oversized(_IGNORE, START, error)]
    for number, line in enumerate(text.splitlines(), 1):
        try:
            GitIgnoreSpec.from_lines([line])
        except (ValueError, re.error):
            message = f"no pattern in Git's sense: {shown(line)}"
            problems.append(problem_at(_IGNORE, Place(number, 1), Code.IGNORE_PATTERN, message))
        else:
            patterns.append(line)
    named = GitIgnoreSpec.from_lines(patterns)
    return lambda path: _is_hidden(path) or named.match_file(path), problems


_IGNORE: Final = ".gitbootignore"


def _is_hidden(path: str) -> bool:
    return path.startswith(".") or "/." in path


def _irregular_problem(path: str, irregular: Irregular) -> Problem:
    code, message = _IRREGULAR[irregular]
    return problem_at(path, START, code, message)


_IRREGULAR: Final = {
    Irregular.SUBMODULE: (Code.SUBMODULE, "a submodule, whose content is not part of the commit"),
    Irregular.SYMLINK: (Code.SYMLINK, "a symbolic link, which leads out of what the commit says"),
    Irregular.FILE_NAME: (Code.FILE_NAME, "a file name that is not UTF-8"),
}
