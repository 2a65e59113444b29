"""Mirror comparison: compare the files on a mirror with the output tree."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final, TypeVar

from msgspec import Struct

from gitboot.errors import PublishError
from gitboot.publish.manifest import MANIFEST
from gitboot.publish.mirror_answers import CheckedFile, MirrorFile, MirrorFinding, check_answer
from gitboot.publish.mirrors import FolderMirror, WebMirror
from gitboot.publish.signed_list_reader import SIGNED, FileVersion, SignedList
from gitboot.publish.tree_reader import read_manifest
from gitboot.render.paths import BOOT

T = TypeVar("T")
_BATCH: Final = 4096  # the number of files that gitboot submits to the threads at a time


class MirrorReport(Struct, frozen=True, kw_only=True):
    """The result of comparing a mirror with a published tree, or with its signed list."""

    findings: tuple[MirrorFinding, ...]  # sorted by path; findings about the signed list come first
    files: int  # number of published files, including those that were not read
    unread: tuple[str, ...]  # sorted paths that gitboot did not read, because only machines may fetch them
    in_transition: tuple[str, ...]  # sorted paths that have the version before or after a transition
    hidden_files: int = 0  # number of files whose paths the list contains only as digests
    signed_list: SignedList | None = None  # None: the list was not read, or is not readable


def read_expected_files(root: Path, *, as_target: bool = False) -> dict[str, MirrorFile]:
    """Return the files that a mirror of the tree at ``root`` must contain, sorted by their path below boot/.

    With ``as_target``, gitboot does not compare modification times, because a target does not keep the modification
    times of the tree. Raises `PublishError` if the tree cannot be read.
    """
    manifest = read_manifest(root)
    if manifest is None:
        raise PublishError(f"{root}: expected an output tree, found no {MANIFEST}")
    files = {}
    for tree_path, listed in manifest.files.items():
        if not tree_path.startswith(BOOT):
            continue
        try:
            modified = int((root / tree_path).stat().st_mtime)
        except FileNotFoundError:  # a publication in progress has removed the file
            continue
        except OSError as error:
            raise PublishError(f"{root / tree_path} cannot be read: {error.strerror}") from error
        path = tree_path.removeprefix(BOOT)
        version = FileVersion(None, listed.sha256, listed.size)
        files[path] = MirrorFile(
            path=path, expected=(version,), versions=(version,), modified=modified, keeps_time=not as_target
        )
    return files


def compare_mirror(
    read: Callable[[], dict[str, MirrorFile]],
    mirror: FolderMirror | WebMirror,
    *,
    parallel: int,
    on_start: Callable[[int], None],
    on_progress: Callable[[int], None],
) -> MirrorReport:
    """Compare a mirror with the files that ``read`` returns. Files published during the comparison are compared again.

    ``on_start`` is called with the number of files to compare, and ``on_progress`` with the number of files compared
    since its last call.
    """
    with open_thread_pool(parallel) as pool:
        return compare_files(mirror, read(), lambda _: read(), pool, on_start, on_progress)


@contextmanager
def open_thread_pool(number: int) -> Iterator[ThreadPoolExecutor]:
    """Yield a thread pool. Tasks that have not started when the block ends are cancelled."""
    pool = ThreadPoolExecutor(number, thread_name_prefix="mirror")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def compare_files(
    mirror: FolderMirror | WebMirror,
    files: Mapping[str, MirrorFile],
    reread: Callable[[bool], Mapping[str, MirrorFile] | None],
    pool: ThreadPoolExecutor,
    on_start: Callable[[int], None],
    on_progress: Callable[[int], None],
) -> MirrorReport:
    """Compare a mirror with these files. Files published during the comparison are compared again.

    ``reread`` returns the current files, or None if the files have not changed. gitboot calls ``reread(True)``
    if there are findings, and ``reread(False)`` otherwise.
    """
    files_to_read = {path: file for path, file in files.items() if _may_read(mirror, file)}
    on_start(len(files_to_read))
    findings = list(mirror.find_extra_files(files))
    in_transition: set[str] = set()
    for file, checked in _check_files(mirror, files_to_read.values(), pool, on_progress):
        if checked.finding is not None:
            findings.append(checked.finding)
        if checked.is_in_transition:
            in_transition.add(file.path)
    current_files = reread(bool(findings))
    if current_files is not None:
        changed = {finding.path for finding in findings if current_files.get(finding.path) != files.get(finding.path)}
        findings = [finding for finding in findings if finding.path not in changed]
        new_paths = current_files.keys() - files.keys()
        newer_files = [current_files[path] for path in sorted(changed | new_paths) if path in current_files]
        files_to_recheck = [file for file in newer_files if _may_read(mirror, file)]
        for _, checked in _check_files(mirror, files_to_recheck, pool, lambda _: None):
            if checked.finding is not None:
                findings.append(checked.finding)
    return MirrorReport(
        findings=sort_findings(findings),
        files=len(files),
        unread=tuple(sorted(files.keys() - files_to_read.keys())),
        in_transition=tuple(sorted(in_transition)),
    )


def _may_read(mirror: FolderMirror | WebMirror, file: MirrorFile) -> bool:
    """Return whether gitboot may read a file. Its request must not count as evidence of a boot."""
    return not file.is_evidence or mirror.may_read(file.path)


def _check_files(
    mirror: FolderMirror | WebMirror,
    files: Iterable[MirrorFile],
    pool: ThreadPoolExecutor,
    on_progress: Callable[[int], None],
) -> Iterator[tuple[MirrorFile, CheckedFile]]:
    def check_file(file: MirrorFile) -> CheckedFile:
        sizes = {version.size_bytes for version in file.versions}
        return check_answer(file, mirror.read(file.path, sizes or {0}))

    for batch in iterate_batches(files, _BATCH):
        for file, checked in zip(batch, pool.map(check_file, batch), strict=True):
            on_progress(1)
            yield file, checked


def iterate_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    remaining = iter(items)
    while batch := list(islice(remaining, size)):
        yield batch


def sort_findings(findings: Iterable[MirrorFinding]) -> tuple[MirrorFinding, ...]:
    """Return findings sorted by path, with findings about the signed list first.

    A wrong clock or an outdated list often explains the findings about other files.
    """
    return tuple(sorted(set(findings), key=lambda each: (not each.path.startswith(SIGNED), each.path, each.fault)))
