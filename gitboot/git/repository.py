"""Git repositories: open a repository without the user's Git configuration, and store the fleet's folder in a clone."""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

import msgspec
import pygit2
from pygit2.enums import ConfigLevel, Feature, RepositoryOpenFlag

from gitboot.errors import LedgerError, SourceError, UsageError
from gitboot.files import convert_os_errors
from gitboot.fleet.revision import Revision
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
