"""Git repositories: open a repository without the user's Git configuration, and store the fleet's folder in a clone."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from sys import intern
from threading import Lock
from typing import Final, NamedTuple, TypeVar

import msgspec
import pygit2
from pygit2.enums import ConfigLevel, Feature, ObjectType, RepositoryOpenFlag

from gitboot.errors import LedgerError, SourceError, UsageError
from gitboot.files import convert_os_errors
from gitboot.fleet.revision import MAX_FILE_BYTES, Revision
from gitboot.text import one_line

for _level in (ConfigLevel.PROGRAMDATA, ConfigLevel.SYSTEM, ConfigLevel.XDG, ConfigLevel.GLOBAL):
    pygit2.settings.search_path[_level] = ""
# In a container, a repository often belongs to another user. Git refuses such a repository, because its configuration
# can contain commands. gitboot accepts it, because libgit2 does not run hooks, filters or commands.
pygit2.settings.owner_validation = False
pygit2.settings.enable_fsync_gitdir(True)

LIBGIT2_VERSION: Final = pygit2.LIBGIT2_VERSION
ACCEPTED: Final = "refs/gitboot/accepted"  # the reference to the accepted commit
_FOLDER: Final = "gitboot.folder"  # the name of the Git setting with the fleet's folder in fetched commits
_ACCEPTED_FOLDER: Final = "gitboot.acceptedfolder"  # the name of the setting with the folder in the accepted commit
_NO_MEMORY: Final = re.compile(r"out of memory|cannot allocate memory|failed to m?map|error code=7\b", re.IGNORECASE)
_RETRIES: Final = 2
_T = TypeVar("_T")


# Errors


@contextmanager
def convert_errors(subject: object, error_type: type[SourceError] = SourceError) -> Iterator[None]:
    """Convert errors from pygit2 and from the operating system to ``error_type`` in a `with` block.

    The messages of the converted errors begin with ``subject``.
    """
    try:
        yield
    except (pygit2.GitError, KeyError, OSError) as error:
        raise error_type(f"{subject}: {format_error(error)}") from error


def format_error(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return one_line(f"{error.filename}: {error.strerror}")
    message = one_line(str(error).strip("'\""))  # remove the quotes that a KeyError adds
    if "object format 'sha256" in message:
        return (
            "the repository uses SHA-256 object IDs (extensions.objectFormat), which gitboot does not support; "
            "use a repository with SHA-1 object IDs (`git init` creates such a repository by default)"
        )
    # libgit2 supports few of the extensions in gitrepository-layout(5). For example, it cannot read a reftable.
    if extension := re.search(r"unsupported extension name extensions\.(\w+)", message):
        return (
            f"the repository uses the Git extension {extension[1]}, which gitboot does not support; follow a copy "
            "without this extension (`git clone` creates such a copy by default)"
        )
    return f"object {message} is missing" if re.fullmatch("[0-9a-f]{40}", message) else message


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error or one of its causes states that memory ran out.

    libgit2 has no error code for this case. Some extension modules raise SystemError. An import that cannot compile a
    module raises SyntaxError.
    """
    while error is not None:
        if isinstance(error, MemoryError | SystemError | SyntaxError):
            return True
        if isinstance(error, OSError) and error.errno == errno.ENOMEM:
            return True
        # pygit2 raises OSError without a number
        if isinstance(error, pygit2.GitError | LedgerError | OSError | ImportError) and _NO_MEMORY.search(str(error)):
            return True
        error = error.__cause__
    return False


def list_features() -> dict[str, bool]:
    """Return whether the installed libgit2 has each optional feature, by name."""
    features = {"https": Feature.HTTPS, "ssh": Feature.SSH, "threads": Feature.THREADS}
    return {name: bool(pygit2.features & feature) for name, feature in features.items()}


# Repositories


@contextmanager
def open_repository(path: Path) -> Iterator[pygit2.Repository]:
    """Open the repository at ``path`` for a `with` block. Parent directories are not searched."""
    repository = pygit2.Repository(path, RepositoryOpenFlag.NO_SEARCH)
    try:
        yield repository
    finally:
        # The repository object is part of a reference cycle, so its files would stay open until the next garbage
        # collection.
        repository.free()


@contextmanager
def open_containing_repository(folder: Path) -> Iterator[pygit2.Repository | None]:
    """Open the repository whose work tree or Git directory contains ``folder``. ``folder`` need not exist.

    Raises `UsageError` if the repository's own files are committed into another repository.
    """
    existing = next((parent for parent in (folder, *folder.parents) if parent.is_dir()), folder)
    git_directory = pygit2.discover_repository(str(existing))
    if git_directory is None:
        yield None
        return
    _check_not_committed(Path(git_directory))
    with open_repository(Path(git_directory)) as repository:
        yield repository


def _check_not_committed(git_directory: Path) -> None:
    """Raise `UsageError` if a Git directory is tracked in the work tree of another repository.

    Git never checks out a folder named .git, but it does check out a folder that contains the files of a bare
    repository. If a branch replaces the fleet's folder with such a folder, a review could see different commits than an
    instance (git-config(1), safe.bareRepository).
    """
    if ".git" in git_directory.parts:  # it is not from a commit, because Git does not check out a path with .git
        return
    for folder in git_directory.parents:
        if (folder / ".git").exists():
            # If .git is not a repository, it does not track files.
            with suppress(pygit2.GitError), open_repository(folder) as outer_repository:
                if f"{git_directory.relative_to(folder).as_posix()}/HEAD" in outer_repository.index:
                    raise UsageError(
                        f"{folder} contains committed files of {git_directory}, which is a nested Git repository. "
                        "gitboot does not read nested repositories; remove these files from the commit"
                    )


def has_repository(folder: Path) -> bool:
    return folder.is_dir() and pygit2.discover_repository(str(folder)) is not None


def get_git_directory(repository: pygit2.Repository) -> Path:
    """Return the Git directory of a repository, which is ``.git`` or the bare repository itself."""
    return Path(str(repository.path))


def get_common_directory(repository: pygit2.Repository) -> Path:
    """Return the directory with the objects and refs.

    Linked work trees share this directory (gitrepository-layout(5)).
    """
    git_directory = get_git_directory(repository)
    common = git_directory / "commondir"
    return (git_directory / common.read_text().strip()).resolve() if common.exists() else git_directory


def get_objects_directory(repository: pygit2.Repository) -> Path:
    return get_common_directory(repository) / "objects"


class StoredRepository:
    """A repository at a path, with the type of error that is raised if the repository cannot be read."""

    def __init__(self, path: Path, error_type: type[SourceError] = SourceError) -> None:
        self.path = path
        self._error_type = error_type
        self.replacement_lock = Lock()  # gitboot holds this lock while another repository replaces this repository

    @contextmanager
    def open(self) -> Iterator[pygit2.Repository]:
        with self.convert_errors(), ExitStack() as stack:
            with self.replacement_lock:
                repository = stack.enter_context(open_repository(self.path))
            yield repository

    def retry(self, read: Callable[[], _T]) -> _T:
        """Call ``read``, and retry up to twice after an error, because a fetch may replace packs during the call."""
        for _ in range(_RETRIES):
            with suppress(self._error_type):
                return read()
        return read()

    def convert_errors(self) -> AbstractContextManager[None]:
        return convert_errors(self.path, self._error_type)


# The fleet's folder


def parse_subpath(text: str) -> str:
    """Return a folder in Git's notation, without leading and trailing slashes.

    Raises `UsageError` for an invalid folder.
    """
    folder = text.strip("/")
    parts = folder.split("/")
    if text.startswith("/") or not all(parts) or not text.isprintable():
        raise UsageError(f"--subpath {text!r}: expected a folder in the repository, for example infra/boot")
    if hidden := next((part for part in parts if part.startswith(".")), None):
        raise UsageError(f"--subpath {text!r}: {hidden!r} begins with a dot, and gitboot ignores such folders")
    return folder


def check_subpath(path: Path, folder: str) -> None:
    """Raise `UsageError` if the --subpath folder below ``path`` is behind a symlink or in another repository.

    An instance reads the folder from a commit. In these cases, the commit would contain a symlink or a submodule
    instead of the folder.
    """
    parts = folder.split("/")
    for number in range(len(parts)):
        place = path.joinpath(*parts[: number + 1])
        with convert_os_errors(place, "read"):
            is_symlink = place.is_symlink()
        if is_symlink:
            raise UsageError(
                f"--subpath {folder}: {place} is a symlink, but gitboot does not follow symlinks in a repository; "
                "commit a folder instead, or pass the symlink's target"
            )
    inner = path / folder
    if not inner.is_dir():
        return
    outer_repository = pygit2.discover_repository(str(path))
    inner_repository = pygit2.discover_repository(str(inner))
    if outer_repository is None or inner_repository is None:
        return
    if Path(inner_repository) != Path(outer_repository):
        raise UsageError(
            f"--subpath {folder}: {inner} belongs to the Git repository {inner_repository}, not to {path}: name the "
            "fleet's repository with --path"
        )


def read_fleet_folder(ours: pygit2.Repository) -> str:
    return _read_setting(ours, _FOLDER) or ""


def read_fleet_folder_at(ours: pygit2.Repository, revision: Revision) -> str:
    """Return the path of the fleet's folder in a commit.

    For the accepted commit, this is the folder that was configured when gitboot accepted the commit. Therefore, if the
    operator configures another folder, gitboot compares the next commit with the fleet in the old folder.
    """
    accepted = ours.references.get(ACCEPTED)
    folder = _read_setting(ours, _ACCEPTED_FOLDER)
    if folder is None or accepted is None or str(accepted.target) != revision:
        return read_fleet_folder(ours)
    return folder


def store_fleet_folder(ours: pygit2.Repository, folder: str) -> None:
    """Store the path of the fleet's folder, which applies to all commits that gitboot fetches from now on."""
    # An earlier version did not store the folder of the accepted commit.
    if _read_setting(ours, _ACCEPTED_FOLDER) is None and ACCEPTED in ours.references:
        store_accepted_folder(ours, read_fleet_folder(ours))
    ours.config[_FOLDER] = folder


def store_accepted_folder(ours: pygit2.Repository, folder: str) -> None:
    if _read_setting(ours, _ACCEPTED_FOLDER) != folder:
        ours.config[_ACCEPTED_FOLDER] = folder


def copy_accepted_folder(ours: pygit2.Repository, old_clone: pygit2.Repository) -> None:
    if (folder := _read_setting(old_clone, _ACCEPTED_FOLDER)) is not None:
        store_accepted_folder(ours, folder)


def _read_setting(ours: pygit2.Repository, name: str) -> str | None:
    return str(ours.config[name]) if name in ours.config else None


# Steps of a fetch


# The maximum time without progress, which equals the limit for a stage of a reconcile (docs/reference/limits.md).
WORK_TIMEOUT_S: Final = 120.0
MIN_RATE: Final = 1 << 10  # in bytes per second; the value is from curl's manual for --speed-limit
_WORK_REPORT_INTERVAL_S: Final = 1.0  # the time between two reports of the same work


class FetchStep(msgspec.Struct, frozen=True, tag=True):
    """A report that a fetch is about to start a step."""

    timeout_s: float  # the time limit for this step, until the next step begins
    timeout_message: str  # the message of the error if the next step does not begin in time


ReportStep = Callable[[FetchStep], None]


class Transfer:
    """A transfer to or from a server.

    In each period of ``period_s`` seconds, the average transfer rate must be at least 1 KiB/s.
    """

    def __init__(self, report: ReportStep, period_s: float, verb: str, *, work_s: float = 0) -> None:
        """Create a transfer. ``work_s`` is the time limit for work on this machine before the transfer begins."""
        self._report = report
        self._min_bytes = max(1, round(MIN_RATE * period_s))  # the bytes that must arrive in each period
        message = (
            f"the remote {verb} less than {self._min_bytes} bytes in {period_s:g} s "
            "(see git-timeout in the --config file)"
        )
        self._step = FetchStep(period_s, message)
        self._counted_bytes = 0  # the size of the transfer at the last report
        report(FetchStep(work_s + period_s, message))

    def report_size(self, size_bytes: int) -> None:
        """Report a step if enough data has arrived since the last step. ``size_bytes`` is the size up to now."""
        if size_bytes - self._counted_bytes >= self._min_bytes:
            self._counted_bytes = size_bytes
            self._report(self._step)


class StepReporter:
    """Reports the steps of one fetch to the process that waits for the fetch."""

    def __init__(self, report: ReportStep, now_s: Callable[[], float] = time.monotonic) -> None:
        self._report, self._now_s = report, now_s
        # The time of the last report about work, or None if the last report was about another kind of step.
        self._work_reported_s: float | None = None

    def begin_answer(self, timeout_s: float) -> None:
        self._work_reported_s = None
        message = f"the response was not complete after {timeout_s:g} s (see git-timeout in the --config file)"
        self._report(FetchStep(timeout_s, message))

    def begin_download(self, period_s: float) -> Transfer:
        self._work_reported_s = None
        return Transfer(self._report, period_s, "sent")

    def begin_upload(self, period_s: float) -> Transfer:
        self._work_reported_s = None
        return Transfer(self._report, period_s, "received", work_s=WORK_TIMEOUT_S)

    def report_work(self) -> None:
        now_s = self._now_s()
        if self._work_reported_s is None or now_s - self._work_reported_s >= _WORK_REPORT_INTERVAL_S:
            self._work_reported_s = now_s
            self._report(FetchStep(WORK_TIMEOUT_S, f"the fetch made no progress for {WORK_TIMEOUT_S:g} s"))


_steps: ContextVar[StepReporter | None] = ContextVar("fetch steps of this thread", default=None)


def get_step_reporter() -> StepReporter:
    """Return the step reporter for the fetch in this thread.

    Outside of `report_steps_to`, the result is a reporter that discards all reports.
    """
    return _steps.get() or StepReporter(lambda _: None)


def report_work() -> None:
    """Report that the fetch in this thread does work on this machine. Outside of a fetch, do nothing."""
    if (reporter := _steps.get()) is not None:
        reporter.report_work()


@contextmanager
def report_steps_to(report: ReportStep) -> Iterator[None]:
    """Pass the steps of the fetch in this thread to ``report`` until the end of the `with` block."""
    token = _steps.set(StepReporter(report))
    try:
        yield
    finally:
        _steps.reset(token)


# Objects


MAX_TREE_BYTES: Final = 64 * 1024 * 1024  # the maximum size of a tree object, which gitboot reads into memory
_ENTRY: Final = re.compile(rb"([1-7][0-7]{4,5}) ([^\0]+)\0(.{20})", re.DOTALL)
_TREE: Final = re.compile(rb"tree ([0-9a-f]{40})\n")
_PARENTS: Final = re.compile(rb"(?:parent [0-9a-f]{40}\n)*")
_TIME: Final = re.compile(rb"[ \t]*(-?[0-9]+)(?:[ \t]+([+-][0-9]{4})(?![0-9]))?")
_TIME_AT_END: Final = re.compile(rb"(?:^|[ \t])-?[0-9]+(?:[ \t]+[+-][0-9]{4})?[ \t]*$")
_MAX_DIGITS: Final = 19  # the maximum number of digits, because longer numbers may exceed 63 bits
# libgit2 removes these bytes at both ends of names (signature.c, is_crud)
_TRIMMED_BYTES: Final = bytes(range(33)) + b".,:;<>\"\\'"
_SIGNATURE: Final = re.compile(rb"^gpgsig[ -][^\n]*\n(?: [^\n]*\n)*", re.MULTILINE)
_TAG: Final = re.compile(rb"object ([0-9a-f]{40})\n(?:type [a-z]+\n)?(?:tag ([^\n]*)\n)?")
# the modes of entries in a tree
TREE: Final = b"40000"
SYMLINK: Final = b"120000"
SUBMODULE: Final = b"160000"
Entry = tuple[bytes, bytes, bytes]  # the mode, the name and the ID of an entry in a tree


class MalformedTree(pygit2.GitError):
    """The error for a Git tree that is malformed or too large."""


def parse_tree(objects: pygit2.Odb, tree: bytes) -> list[Entry]:
    """Return the entries of a tree. This is several times faster than with pygit2. Raises `MalformedTree`."""
    oid = pygit2.Oid(raw=tree)
    _, size_bytes = objects.read_header(oid)
    if size_bytes > MAX_TREE_BYTES:  # a few bytes in a pack can expand to gigabytes
        raise MalformedTree(f"tree {tree.hex()} is {size_bytes:,} bytes long, but the limit is {MAX_TREE_BYTES:,}")
    _, data = objects.read(oid)
    entries: list[Entry] = _ENTRY.findall(data)
    # each entry has a space, a NUL character and an ID of 20 bytes in addition to its mode and name
    if sum(len(mode) + len(name) + 22 for mode, name, _ in entries) != len(data):
        raise MalformedTree(f"tree {tree.hex()} is malformed")
    return entries


class Person(NamedTuple):
    """The author or the committer of a commit. A field that gitboot cannot parse is empty or 0."""

    name: bytes
    email: bytes
    time: int  # seconds since 1970
    offset: int  # minutes east of UTC


class CommitObject:
    """A commit object, whose fields are parsed when they are needed."""

    def __init__(self, id: pygit2.Oid, raw: bytes) -> None:
        self.id, self.raw = id, raw
        tree = _TREE.match(raw)
        # None: the commit has no tree.
        self.tree: Final = pygit2.Oid(hex=tree[1].decode()) if tree is not None else None
        # Git accepts a parent only directly after the tree or after another parent (commit.c, parse_commit_buffer).
        parents = _PARENTS.match(raw, tree.end() if tree is not None else 0)
        lines = parents[0].splitlines() if parents is not None else []
        self.parents = tuple(pygit2.Oid(hex=line.removeprefix(b"parent ").decode()) for line in lines)

    @property
    def revision(self) -> Revision:
        return Revision(str(self.id))

    @cached_property
    def _parts(self) -> tuple[bytes, bytes]:
        header, _, message = self.raw.partition(b"\n\n")
        return header, message

    @property
    def message(self) -> bytes:
        """The message as ``git log`` shows it: the text before the first NUL character."""
        _, message = self._parts
        return message.partition(b"\0")[0].lstrip(b"\n")

    @property
    def author(self) -> Person:
        return self._person(b"author ")

    @property
    def committer(self) -> Person:
        return self._person(b"committer ")

    @property
    def content_digest(self) -> str:
        """The SHA-256 of the commit without its signatures, in hexadecimal.

        A signature covers exactly these bytes. If a program rewrites the signature in another form, the commit ID
        changes, but this digest stays the same.
        """
        content, _ = split_signatures(self.raw)
        return sha256(content).hexdigest()

    def _person(self, prefix: bytes) -> Person:
        header, _ = self._parts
        lines = (line.removeprefix(prefix) for line in header.split(b"\n") if line.startswith(prefix))
        return parse_person(next(lines, b""))


class TagObject(NamedTuple):
    """An annotated tag, with the name that the tag object contains."""

    target: pygit2.Oid
    name: bytes


def parse_person(text: bytes) -> Person:
    """Parse ``Name <address> seconds +hhmm``. Parts may be missing.

    The address begins at the last ``<`` and ends at the last ``>``, as in libgit2 (signature.c).
    """
    person, mark, time = text.rpartition(b">")
    if not mark:
        person, time = text, b""
    name, mark, email = person.rpartition(b"<")
    if not mark:
        name, email = person, b""
    # if the commit contains no address, the time follows the name
    if not time and (match := _TIME_AT_END.search(name)) is not None:
        name, time = name[: match.start()], match[0]
    seconds = offset = 0
    if (match := _TIME.match(time)) is not None:
        seconds = int(match[1]) if len(match[1]) < _MAX_DIGITS else 0
        offset = _parse_offset(match[2]) if match[2] else 0
    return Person(name.strip(_TRIMMED_BYTES), email.strip(_TRIMMED_BYTES), seconds, offset)


def _parse_offset(text: bytes) -> int:
    """Convert ``+hhmm`` or ``-hhmm`` to minutes. libgit2 reads impossible offsets as 0 (signature.c)."""
    hours, minutes = int(text[1:3]), int(text[3:5])
    if hours > 14 or minutes > 59:
        return 0
    offset = hours * 60 + minutes
    return -offset if text.startswith(b"-") else offset


def split_signatures(raw: bytes) -> tuple[bytes, list[bytes]]:
    """Split a commit into its signature headers, which begin with ``gpgsig``, and the content without these headers."""
    header, blank, message = raw.partition(b"\n\n")
    lines = header + b"\n"
    return _SIGNATURE.sub(b"", lines)[:-1] + blank + message, _SIGNATURE.findall(lines)


class CommitReader:
    """Reads commits from an open repository. In a shallow clone, the oldest commits appear to have no parents."""

    def __init__(self, git: pygit2.Repository) -> None:
        self._git = git
        shallow = get_common_directory(git) / "shallow"
        self._cut = frozenset(shallow.read_bytes().split()) if git.is_shallow and shallow.exists() else frozenset()

    def read(self, id: pygit2.Oid | str) -> CommitObject:
        """Return the commit with this ID.

        Raises `KeyError` if the object is missing. Raises `pygit2.GitError` if the object is not a commit.
        """
        oid = id if isinstance(id, pygit2.Oid) else pygit2.Oid(hex=id)
        kind, raw = self._git.odb.read(oid)
        if kind != ObjectType.COMMIT:
            raise pygit2.GitError(f"{oid} is not a commit")
        commit = CommitObject(oid, raw)
        if self.is_cut(oid):
            commit.parents = ()
        return commit

    def is_cut(self, id: pygit2.Oid) -> bool:
        """Return whether a shallow clone lacks the parents of this commit."""
        return bool(self._cut) and str(id).encode() in self._cut

    def peel(self, id: pygit2.Oid | str) -> CommitObject:
        """Return the commit with this ID or, if the ID belongs to a tag, the commit that the tag points to."""
        oid = id if isinstance(id, pygit2.Oid) else pygit2.Oid(hex=id)
        while (tag := read_tag(self._git, oid)) is not None:
            oid = tag.target
        return self.read(oid)

    def first_parents(self, tip: pygit2.Oid | str) -> Iterator[CommitObject]:
        """Yield a commit, then its first parent, then the first parent of that parent, and so on."""
        commit = self.peel(tip)
        yield commit
        while commit.parents:
            commit = self.read(commit.parents[0])
            yield commit


def read_tree(git: pygit2.Repository, commit: CommitObject) -> pygit2.Tree | None:
    """Return the tree of a commit, or None if the commit object does not name a tree.

    Raises `KeyError` if the tree object is missing.
    """
    tree = git[commit.tree] if commit.tree is not None else None
    return tree if isinstance(tree, pygit2.Tree) else None


def read_tag(git: pygit2.Repository, id: pygit2.Oid) -> TagObject | None:
    """Return an annotated tag, or None if the object is not a tag. Raises `KeyError` if the object is missing."""
    kind, raw = git.odb.read(id)
    if kind != ObjectType.TAG:
        return None
    match = _TAG.match(raw)
    if match is None:
        raise pygit2.GitError(f"tag {id} does not point to an object")
    return TagObject(pygit2.Oid(hex=match[1].decode()), match[2] or b"")


def peel_reference(git: pygit2.Repository, reference: pygit2.Reference) -> CommitObject:
    """Return the commit that a reference points to.

    Raises `KeyError` if the commit is missing. Raises `pygit2.GitError` if the object is not a commit.
    """
    target = reference.resolve().target
    assert isinstance(target, pygit2.Oid)  # noqa: S101 - a resolved reference names an object
    return CommitReader(git).peel(target)


_OVERSIZED_LIST: Final = "left-out"
_OVERSIZED_LINE: Final = re.compile(r"^([0-9a-f]{40}) ([0-9]+)$", re.MULTILINE)
# libgit2 does not compute deltas for larger objects. It reads the limit from the configuration of the builder's
# repository, under the name of another setting (pack-objects.c, packbuilder_config).
_DELTA_LIMIT: Final = {"core.bigFileThreshold": "64k", "pack.deltaCacheSize": "64k"}
_PIECE_BYTES: Final = 1 << 20
_IDS_AT: Final = 8 + 4 * 256  # the position of the IDs in a pack index, after a header of 8 bytes and the fan-out table


def copy_objects(theirs: pygit2.Repository, ours: pygit2.Repository, tip: pygit2.Oid) -> None:
    """Copy ``tip`` and all objects reachable from it into ``ours`` as one pack, except objects that ``ours`` has.

    A fetch with libgit2 has the same result, but reads all trees of the last commit for each new commit. With 100,000
    files, a fetch with libgit2 takes 100 ms instead of 10 ms. gitboot only lists blobs above the size limit, and does
    not copy them. Copying a blob needs memory for the whole blob, and a few bytes in a pack can expand to gigabytes.
    """
    present: pygit2.Odb | Collection[pygit2.Oid] = ours.odb
    if not any(_get_pack_directory(ours).iterdir()):
        _copy_packs(theirs, ours)
        present = ()  # the packs of the source may contain a commit whose parents are loose objects
    oversized: dict[str, int] = {}
    known_oversized = read_oversized_blobs(get_git_directory(theirs))  # the source may also be a clone of gitboot
    with open_repository(get_git_directory(ours)) as combined:
        # intern, because pygit2 never frees the path
        combined.odb.add_disk_alternate(intern(str(get_objects_directory(theirs))))
        builder = _create_pack_builder(combined)
        for oid in list_reachable_objects(theirs, tip, present):
            report_work()
            if oid in ours.odb:
                continue
            size = known_oversized.get(str(oid)) or _read_blob_size(theirs, oid)
            if is_oversized(size):
                oversized[str(oid)] = size
            else:
                builder.add(oid)
        if oversized:
            add_oversized_blobs(get_git_directory(ours), oversized)
        if len(builder):
            builder.write(_get_pack_directory(ours))


def _create_pack_builder(ours: pygit2.Repository) -> pygit2.PackBuilder:
    """Return a pack builder that does not compute deltas for large objects, because such deltas would take minutes."""
    for name, value in _DELTA_LIMIT.items():
        if name not in ours.config:
            ours.config[name] = value
    return pygit2.PackBuilder(ours)


def _copy_packs(theirs: pygit2.Repository, ours: pygit2.Repository) -> None:
    for index in _get_pack_directory(theirs).glob("pack-*.idx"):
        for file in (index.with_suffix(".pack"), index):
            with open(_get_pack_directory(ours) / file.name, "xb") as copied, open(file, "rb") as original:
                while piece := original.read(_PIECE_BYTES):
                    copied.write(piece)
                    report_work()
                copied.flush()
                os.fsync(copied.fileno())


def check_objects(repository: pygit2.Repository, tip: pygit2.Oid) -> None:
    """Read all objects that are reachable from ``tip``. Raises `pygit2.GitError` if an object is damaged or missing."""
    for oid in list_reachable_objects(repository, tip, ()):
        report_work()
        if not is_oversized(_read_blob_size(repository, oid)):
            repository.odb.read(oid)


def list_reachable_objects(
    repository: pygit2.Repository,
    tip: pygit2.Oid,
    excluded: pygit2.Odb | Collection[pygit2.Oid],
    *,
    with_files: bool = True,
) -> set[pygit2.Oid]:
    """Return all objects that are reachable from ``tip``. References from ``excluded`` objects are not followed.

    Without ``with_files``, return only commits and tags. Raises `pygit2.GitError` if a commit, a tag or a tree exceeds
    the size limit. gitboot reads whole commits, and a few bytes in a pack can expand to gigabytes.
    """
    reachable: set[pygit2.Oid] = set()
    pending = [tip]
    reader = CommitReader(repository)
    while pending:
        oid = pending.pop()
        if oid in reachable or oid in excluded:
            continue
        report_work()
        reachable.add(oid)
        kind, size = repository.odb.read_header(oid)
        if size > MAX_TREE_BYTES:
            raise pygit2.GitError(f"object {oid} is {size:,} bytes long, but the limit is {MAX_TREE_BYTES:,}")
        match kind:
            case ObjectType.TAG if (tag := read_tag(repository, oid)) is not None:
                pending.append(tag.target)
            case ObjectType.COMMIT:
                commit = reader.read(oid)
                pending += commit.parents
                if with_files and commit.tree is not None:
                    pending.append(commit.tree)
            case ObjectType.TREE:
                for mode, _, raw in parse_tree(repository.odb, oid.raw):
                    if mode == TREE:
                        pending.append(pygit2.Oid(raw=raw))
                    elif mode != SUBMODULE and (blob := pygit2.Oid(raw=raw)) not in excluded:
                        reachable.add(blob)
    return reachable


def _read_blob_size(repository: pygit2.Repository, oid: pygit2.Oid) -> int:
    kind, size = repository.odb.read_header(oid)
    return size if kind == ObjectType.BLOB else 0


def merge_packs(repository: pygit2.Repository, limit: int) -> None:
    """If there are more than ``limit`` packs, merge all packs except the largest into one pack.

    A pack that contains an object too large for memory stays unchanged. If the process is killed during a merge, some
    objects are stored twice until the next call.
    """
    folder = _get_pack_directory(repository)
    packs = sorted(folder.glob("pack-*.pack"), key=lambda pack: pack.stat().st_size)
    if len(packs) <= limit:
        return
    merged_packs = [pack for pack in packs[:-1] if not _has_oversized_blob(repository, pack)]
    if len(merged_packs) < 2:
        return
    builder = _create_pack_builder(repository)
    for pack in merged_packs:
        for oid in _list_pack_objects(pack):
            builder.add(oid)
    builder.write(folder)
    if set(folder.glob("pack-*.pack")) - set(packs):
        for pack in merged_packs:
            # gitboot deletes the index first, because Git finds packs by their indexes
            pack.with_suffix(".idx").unlink()
            pack.unlink()


def _has_oversized_blob(repository: pygit2.Repository, pack: Path) -> bool:
    return any(is_oversized(_read_blob_size(repository, oid)) for oid in _list_pack_objects(pack))


def _get_pack_directory(repository: pygit2.Repository) -> Path:
    return get_git_directory(repository) / "objects" / "pack"


def _list_pack_objects(pack: Path) -> Iterator[pygit2.Oid]:
    """Yield the object IDs in a pack's index (gitformat-pack(5), "Version 2 pack-*.idx files")."""
    data = pack.with_suffix(".idx").read_bytes()
    count = int.from_bytes(data[_IDS_AT - 4 : _IDS_AT])
    return (pygit2.Oid(raw=data[at : at + 20]) for at in range(_IDS_AT, _IDS_AT + 20 * count, 20))


# Blobs that are too large to copy


def is_oversized(size: int) -> bool:
    """Return whether a blob is too large to copy.

    When gitboot reads a commit that contains such a blob, gitboot reports a problem.
    """
    return size > MAX_FILE_BYTES


def read_oversized_blobs(repository: Path) -> dict[str, int]:
    """Return a mapping from the IDs to the sizes of the blobs that were too large to copy into a clone.

    For repositories that are not such clones, the result is {}.
    """
    with suppress(FileNotFoundError):
        return {blob: int(size) for blob, size in _OVERSIZED_LINE.findall((repository / _OVERSIZED_LIST).read_text())}
    return {}


def add_oversized_blobs(repository: Path, sizes: Mapping[str, int]) -> None:
    """Add the IDs and sizes of oversized blobs to the stored list.

    If a crash truncates a line, gitboot treats the clone as damaged and creates it again.
    """
    known = read_oversized_blobs(repository)
    with (repository / _OVERSIZED_LIST).open("a") as file:
        file.writelines(f"{blob} {size}\n" for blob, size in sorted(sizes.items()) if blob not in known)
