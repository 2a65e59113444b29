"""Local copies: download artifacts into the output tree, and verify their digests."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from threading import Event
from typing import Final

from msgspec import Struct

from gitboot.artifacts.availability import LARGEST_ARTIFACT, Fetcher
from gitboot.artifacts.fetchers import CHUNK
from gitboot.errors import ArtifactMissing, HostUnreachable, UsageError
from gitboot.files import check_output_folder, lock_file, open_output_folder, sync_folder
from gitboot.resolve.boot_composition import MIRRORED_NAMES
from gitboot.resolve.server_decision import BootFile

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_PART: Final = ".part"  # suffix of incomplete downloads, which are hidden files and thus not served
_FOLDER: Final = re.compile(r"[0-9a-f]{64}")


class Mirroring(StrEnum):
    FETCHED = "fetched"
    THERE = "there"
    FAILED = "failed"


class MirroredArtifact(Struct, frozen=True, kw_only=True):
    """The result of mirroring one artifact."""

    path: str  # relative to boot/
    source: str
    outcome: Mirroring
    message: str = ""  # why the download failed


def mirror_path(file: BootFile) -> str:
    """Return the path of a file's local copy, relative to boot/."""
    return f"o/{file.sha256}/{file.url.rpartition('/')[2]}"


def mirror_all(
    fetcher: Fetcher,
    files: Iterable[BootFile],
    root: Path,
    report: Callable[[MirroredArtifact], None],
    *,
    parallel: int,
) -> None:
    """Download every mirrored file to ``root``, up to ``parallel`` at a time, and call ``report`` for each file.

    Interrupted downloads are resumed. Existing copies are complete: a download gets its final name only after its
    digest was verified and its content was synced to the disk. A signal or an exception from ``report`` also stops the
    downloads that are in progress.
    """
    by_path = {mirror_path(file): file for file in files if file.source is not None}
    stop = Event()
    pool = ThreadPoolExecutor(parallel, thread_name_prefix="mirror")
    try:
        jobs = [pool.submit(_mirror, fetcher, file, path, root, stop.is_set) for path, file in sorted(by_path.items())]
        for job in as_completed(jobs):
            report(job.result())
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _mirror(
    fetcher: Fetcher, file: BootFile, path: str, root: Path, is_stopped: Callable[[], bool]
) -> MirroredArtifact:
    source = file.source or ""
    target = root / path
    part, is_there = f".{target.name}{_PART}", False
    try:
        with open_output_folder(target.parent, make=True) as folder:
            with suppress(FileNotFoundError):
                is_there = stat.S_ISREG(os.lstat(target.name, dir_fd=folder).st_mode)
            if is_there:
                os.utime(target.name, dir_fd=folder)  # for `prune`, which deletes copies that were not used recently
                return MirroredArtifact(path=path, source=source, outcome=Mirroring.THERE)
            try:
                _fetch(fetcher, file, source, part, folder, is_stopped)
                os.rename(part, target.name, src_dir_fd=folder, dst_dir_fd=folder)
                sync_folder(".", folder)
            except OSError as error:
                if error.errno in _FULL:  # the disk is full, but gitboot must still be able to write boot files
                    with suppress(FileNotFoundError):
                        os.unlink(part, dir_fd=folder)
                raise
    except (ArtifactMissing, HostUnreachable, UsageError, _ContentMismatch) as error:
        return MirroredArtifact(path=path, source=source, outcome=Mirroring.FAILED, message=str(error))
    except OSError as error:
        message = f"{target}: {error.strerror}"
        return MirroredArtifact(path=path, source=source, outcome=Mirroring.FAILED, message=message)
    return MirroredArtifact(path=path, source=source, outcome=Mirroring.FETCHED)


class _ContentMismatch(Exception):
    """The downloaded content does not have the digest that the image states."""


def _fetch(
    fetcher: Fetcher, file: BootFile, source: str, part: str, folder: int, is_stopped: Callable[[], bool]
) -> None:
    """Download a file to ``part``, resuming an interrupted download. Delete the file if its digest is wrong."""
    fd = os.open(part, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
    with open(fd, "ab+") as written:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "expected a regular file")
        if not lock_file(fd):
            raise HostUnreachable("another process is downloading the file")
        written.seek(0)
        digest, size, most_bytes = sha256(), 0, file.size if file.size is not None else LARGEST_ARTIFACT
        while chunk := written.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
        if not (size and digest.hexdigest() == file.sha256):
            with fetcher.read(source, size) as content:
                if content.offset != size:
                    written.truncate(0)
                    digest, size = sha256(), 0
                for chunk in content.chunks:
                    written.write(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                    if is_stopped():
                        raise HostUnreachable("the download was stopped")
                    if size > most_bytes:
                        break
        written.flush()
        os.fchmod(written.fileno(), 0o644)
        os.fsync(written.fileno())
    if digest.hexdigest() != file.sha256:
        os.unlink(part, dir_fd=folder)
        raise _ContentMismatch(
            f"the file ({size} bytes) has the sha256 {digest.hexdigest()}, and the image states {file.sha256}"
        )


def prune(root: Path, needed_paths: Collection[str], before_s: float) -> list[str]:
    """Delete copies that are not in ``needed_paths`` and were last used before ``before_s``. Return their sorted paths.

    User data in the same folder has other file names and is not deleted. Raises OSError, and `UsageError` as
    `open_output_folder` does.
    """
    check_output_folder(root / "o")
    pruned = []
    for folder in sorted((root / "o").iterdir()) if (root / "o").is_dir() else ():
        is_ours = _FOLDER.fullmatch(folder.name) and folder.is_dir() and not folder.is_symlink()
        for file in sorted(folder.iterdir()) if is_ours else ():
            path = f"o/{folder.name}/{file.name}"
            name = file.name.removeprefix(".").removesuffix(_PART)
            if name in MIRRORED_NAMES and path not in needed_paths and file.stat().st_mtime < before_s:
                file.unlink()
                pruned.append(path)
        with suppress(OSError):  # the folder is not empty
            folder.rmdir()
    return pruned
