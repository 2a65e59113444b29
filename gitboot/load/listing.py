"""Which files of a revision are read as documents, and which say nothing that could be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from gitboot.fleet.documents import START, oversized, problem_at
from gitboot.fleet.ignore import MAX_BYTES, Line, read_ignore
from gitboot.fleet.yaml import Place
from gitboot.load.snapshot import Irregular, Oversized, Snapshot
from gitboot.model.scalars.texts import shown
from gitboot.problems.codes import Code, Problem


class Listing(NamedTuple):
    """The files of a fleet, by path, in order."""

    documents: tuple[str, ...]
    irregular: tuple[str, ...]  # paths at which, or below which, there may be anything
    problems: tuple[Problem, ...]


def listed(snapshot: Snapshot) -> Listing:
    """All but what is left out: dot-files, dot-folders, and what ``.gitbootignore`` names."""
    named, problems = _named(snapshot)

    def left_out(path: str, *, is_folder: bool = False) -> bool:
        return _is_hidden(path) or named(f"{path}/" if is_folder else path)

    irregular = tuple(
        path
        for path, kind in sorted(snapshot.irregular.items())
        if not left_out(path, is_folder=kind is Irregular.SUBMODULE)
    )
    problems += (_irregular_problem(path, snapshot.irregular[path]) for path in irregular)
    documents = sorted(path for path in snapshot.blobs if path.endswith((".yaml", ".yml")) and not left_out(path))
    return Listing(tuple(documents), irregular, tuple(problems))


def _named(snapshot: Snapshot) -> tuple[Callable[[str], bool], list[Problem]]:
    """Whether ``.gitbootignore`` leaves out a path; and which of its lines match nothing."""
    blob = snapshot.blobs.get(IGNORE_FILE)
    if blob is None:
        return _nothing, []
    try:
        data = snapshot.read(blob)
    except Oversized as error:
        return _nothing, [oversized(IGNORE_FILE, START, error)]
    if len(data) > MAX_BYTES:
        message = f"the file has {len(data):,} bytes, over {MAX_BYTES:,}"
        hint = "name folders and patterns, not file by file"
        return _nothing, [problem_at(IGNORE_FILE, START, Code.FILE_TOO_LARGE, message, hint)]
    ignore, malformed = read_ignore(data)
    return ignore.leaves_out, [_no_pattern(line) for line in malformed]


def _nothing(_: str) -> bool:
    return False


def _no_pattern(line: Line) -> Problem:
    message = f"no pattern in Git's sense: {shown(line.text.decode('utf-8', 'replace'))}"
    return problem_at(IGNORE_FILE, Place(line.number, 1), Code.IGNORE_PATTERN, message)


IGNORE_FILE: Final = ".gitbootignore"


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
