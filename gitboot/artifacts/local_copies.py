"""Bringing artifacts into the published tree: each below its digest, compared while it comes, and there only whole."""

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
_PART: Final = ".part"  # of hidden files, which no endpoint serves
_FOLDER: Final = re.compile(r"[0-9a-f]{64}")


class Mirroring(StrEnum):
    FETCHED = "fetched"
    THERE = "there"
    FAILED = "failed"


class MirroredArtifact(Struct, frozen=True, kw_only=True):
    """What became of one artifact."""

    path: str  # below the tree that machines see
    source: str
    outcome: Mirroring
    message: str = ""  # why it failed


def mirror_path(file: BootFile) -> str:
    """Where a file that is mirrored lies, below the tree that machines see."""
    return f"o/{file.sha256}/{file.url.rpartition('/')[2]}"


def mirror_all(
    fetcher: Fetcher,
    files: Iterable[BootFile],
    root: Path,
    report: Callable[[MirroredArtifact], None],
    *,
    parallel: int,
) -> None:
    """Bring every file that has a source below ``root``, so many at a time; ``report`` each as it is done.

    What was begun before is gone on with. What is there is whole: it got its name after it was read to its end,
    compared, and on the disk. A signal, or an error of ``report``, ends what is under way.
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
                os.utime(target.name, dir_fd=folder)  # `prune` goes by when it was last named
                return MirroredArtifact(path=path, source=source, outcome=Mirroring.THERE)
            try:
                _fetch(fetcher, file, source, part, folder, is_stopped)
                os.rename(part, target.name, src_dir_fd=folder, dst_dir_fd=folder)
                sync_folder(".", folder)
            except OSError as error:
                if error.errno in _FULL:  # boot files have to be written there, too
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
    """What a source has is not what the image names."""


def _fetch(
    fetcher: Fetcher, file: BootFile, source: str, part: str, folder: int, is_stopped: Callable[[], bool]
) -> None:
    """Bring a file to its end at ``part``, from where it was left; what is not the file is deleted."""
    fd = os.open(part, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=folder)
    with open(fd, "ab+") as written:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "expected a regular file")
        if not lock_file(fd):
            raise HostUnreachable("another process brings it")
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
                        raise HostUnreachable("it was not read to its end")
                    if size > most_bytes:
                        break
        written.flush()
        os.fchmod(written.fileno(), 0o644)
        os.fsync(written.fileno())
    if digest.hexdigest() != file.sha256:
        os.unlink(part, dir_fd=folder)
        raise _ContentMismatch(
            f"its {size} bytes have the sha256 {digest.hexdigest()}, and the image says {file.sha256}"
        )


def prune(root: Path, needed_paths: Collection[str], before_s: float) -> list[str]:
    """Delete mirrored files that are not ``needed``, and were not since then; return their paths, sorted.

    User data, which lies below o/ as well, has other names. Raises OSError, and `UsageError` as `output_folder` does.
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
        with suppress(OSError):  # something else is in it
            folder.rmdir()
    return pruned
