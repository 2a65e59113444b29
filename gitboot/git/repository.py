"""Repositories, opened so that nothing of the machine's or the user's Git configuration counts.

What is set here is libgit2's, for the whole process.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

import pygit2
from pygit2.enums import ConfigLevel, Feature, RepositoryOpenFlag

from gitboot.errors import LedgerError, SourceError, UsageError
from gitboot.text import one_line

for _level in (ConfigLevel.PROGRAMDATA, ConfigLevel.SYSTEM, ConfigLevel.XDG, ConfigLevel.GLOBAL):
    pygit2.settings.search_path[_level] = ""
# In a container a repository often belongs to another user. Git refuses it then, because it would run what
# its configuration names; libgit2 runs no hook, no filter and no command.
pygit2.settings.owner_validation = False
pygit2.settings.enable_fsync_gitdir(True)

_T = TypeVar("_T")
_MORE_TRIES: Final = 2

MAX_TREE_BYTES: Final = 64 * 1024 * 1024  # of one folder, which is held in memory whole

TREE: Final = b"40000"
SYMLINK: Final = b"120000"
SUBMODULE: Final = b"160000"

Entry = tuple[bytes, bytes, bytes]  # mode, name, id

_ENTRY: Final = re.compile(rb"([1-7][0-7]{4,5}) ([^\0]+)\0(.{20})", re.DOTALL)


@contextmanager
def blaming(what: object, wrong: type[SourceError] = SourceError) -> Iterator[None]:
    """What pygit2 or the operating system raises within becomes ``wrong``, and ``what`` is named."""
    try:
        yield
    except (pygit2.GitError, KeyError, OSError) as error:
        raise wrong(f"{what}: {words(error)}") from error


def words(error: BaseException) -> str:
    """An error's message on one line."""
    message = one_line(str(error).strip("'\""))  # the quotes of a KeyError
    return f"object {message} is missing" if re.fullmatch("[0-9a-f]{40}", message) else message


def lacks_memory(error: BaseException | None) -> bool:
    """Whether it comes of memory that could not be had; libgit2 and SQLite say so by words alone."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return True
        if isinstance(error, pygit2.GitError | LedgerError) and _NO_MEMORY.search(str(error)):
            return True
        error = error.__cause__
    return False


_NO_MEMORY: Final = re.compile(r"out of memory|cannot allocate memory|failed to mmap|error code=7\b", re.IGNORECASE)


def features() -> dict[str, bool]:
    """What this machine's libgit2 can be asked for, by name."""
    wanted = {"https": Feature.HTTPS, "ssh": Feature.SSH, "threads": Feature.THREADS}
    return {name: bool(pygit2.features & feature) for name, feature in wanted.items()}


@contextmanager
def opened(path: Path) -> Iterator[pygit2.Repository]:
    """The repository at ``path`` itself, not one around it; closed at the end."""
    repository = pygit2.Repository(path, RepositoryOpenFlag.NO_SEARCH)
    try:
        yield repository
    finally:
        repository.free()  # it refers to itself, so its descriptors would wait for a garbage collection


@contextmanager
def containing(folder: Path) -> Iterator[pygit2.Repository | None]:
    """The repository whose work tree or whose own files ``folder`` is part of, or would be.

    Raises `UsageError` for a repository that is committed into another.
    """
    there = next((each for each in (folder, *folder.parents) if each.is_dir()), folder)
    found = pygit2.discover_repository(str(there))
    if found is None:
        yield None
    else:
        _check_not_committed(Path(found))
        with opened(Path(found)) as repository:
            yield repository


def _check_not_committed(files: Path) -> None:
    """Raise `UsageError` if a repository's own files are tracked in the work tree of another repository.

    Git checks out no .git, but does check out a folder with the files of a bare repository. A branch could have such a
    folder in the place of the fleet's, and show a review other commits than an instance reads (git-config(1),
    safe.bareRepository).
    """
    if ".git" in files.parts:  # Git writes no such path out of a commit
        return
    for folder in files.parents:
        if (folder / ".git").exists():
            with suppress(pygit2.GitError), opened(folder) as around:  # a .git that is no repository tracks no files
                if f"{files.relative_to(folder).as_posix()}/HEAD" in around.index:
                    raise UsageError(
                        f"{files} is a Git repository that is committed into the repository {folder}, and gitboot does "
                        "not read it: remove its files from the commit"
                    )


def has_repository(folder: Path) -> bool:
    """Whether a folder that is there is a repository, or a part of a work tree."""
    return folder.is_dir() and pygit2.discover_repository(str(folder)) is not None


def files_of(repository: pygit2.Repository) -> Path:
    """Where Git keeps its own files, ``.git`` or the bare repository itself."""
    return Path(str(repository.path))


def objects_of(repository: pygit2.Repository) -> Path:
    """Where a repository keeps its objects; a linked work tree has them elsewhere (gitrepository-layout(5))."""
    files = files_of(repository)
    common = files / "commondir"
    return (files / common.read_text().strip() if common.exists() else files) / "objects"


class Stored:
    """A repository at a path, and what is raised where it cannot be read."""

    def __init__(self, path: Path, wrong: type[SourceError] = SourceError) -> None:
        self.path = path
        self._wrong = wrong
        self.replacing = Lock()  # held while another repository takes its place

    @contextmanager
    def reading(self) -> Iterator[pygit2.Repository]:
        with self.blamed(), ExitStack() as stack:
            with self.replacing:
                repository = stack.enter_context(opened(self.path))
            yield repository

    def steadily(self, read: Callable[[], _T]) -> _T:
        """Read again what cannot be read, twice: a fetch beside it merges packs, and what was open then is gone."""
        for _ in range(_MORE_TRIES):
            with suppress(self._wrong):
                return read()
        return read()

    def blamed(self) -> AbstractContextManager[None]:
        return blaming(self.path, self._wrong)


class MalformedTree(Exception):
    """A tree that Git would not have written."""


def entries(objects: pygit2.Odb, tree: bytes) -> list[Entry]:
    """A tree's entries, several times as fast as from pygit2; raise `MalformedTree`."""
    size = objects.read_header(pygit2.Oid(raw=tree))[1]
    if size > MAX_TREE_BYTES:  # a few bytes of a pack can be gigabytes
        raise MalformedTree(f"tree {tree.hex()} has {size:,} bytes, more than {MAX_TREE_BYTES:,}")
    data = objects.read(pygit2.Oid(raw=tree))[1]
    found: list[Entry] = _ENTRY.findall(data)
    if sum(len(mode) + len(name) + 22 for mode, name, _ in found) != len(data):
        raise MalformedTree(f"tree {tree.hex()} is malformed")
    return found
