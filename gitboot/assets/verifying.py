"""Looking at artifacts, many at a time: that they are there, and what was promised."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from hashlib import sha256
from threading import Event

from gitboot.assets.fetching import LARGEST_ARTIFACT, Fetcher
from gitboot.assets.sighting import Presence, Sighting, judge, judge_content
from gitboot.errors import ArtifactMissing, HostUnreachable
from gitboot.plan import BootFile


def look_at(
    fetcher: Fetcher,
    file: BootFile,
    before: Sighting | None = None,
    *,
    read: bool,
    stopped: Callable[[], bool] = lambda: False,
) -> Sighting:
    """What is to be seen of an artifact now; ``before`` is what was, and is not read anew while that is the same.

    Without ``read`` only its server's word is taken: that it is there, and its size. Once it is ``stopped``, what was
    not read to its end is unknown.
    """
    try:
        found = judge(file, fetcher.head(file.url), before)
        return _read(fetcher, file, stopped) if read and found.presence is Presence.FOUND else found
    except ArtifactMissing as error:
        return Sighting(presence=Presence.MISSING, message=str(error))
    except HostUnreachable as error:
        return Sighting(presence=Presence.UNKNOWN, message=str(error))


def _read(fetcher: Fetcher, file: BootFile, stopped: Callable[[], bool]) -> Sighting:
    digest, size = sha256(), 0
    most = file.size if file.size is not None else LARGEST_ARTIFACT
    with fetcher.read(file.url) as content:
        for chunk in content.chunks:
            digest.update(chunk)
            size += len(chunk)
            if size > most:
                return Sighting(presence=Presence.WRONG, message=f"it goes on after {most} bytes", head=content.head)
            if stopped():
                raise HostUnreachable("it was not read to its end")
    return judge_content(file, content.head, digest.hexdigest(), size)


def look_at_all(
    fetcher: Fetcher,
    files: Collection[BootFile],
    known: Mapping[BootFile, Sighting],
    seen: Callable[[BootFile, Sighting], None],
    *,
    read: bool,
    parallel: int,
) -> None:
    """Look at each of ``files``, so many at a time; ``seen`` is called as each is done, by this thread.

    What ends it early, a signal or an error of ``seen``, ends what is under way, too.
    """
    stop = Event()
    pool = ThreadPoolExecutor(parallel, thread_name_prefix="artifact")
    try:
        jobs = {
            pool.submit(look_at, fetcher, file, known.get(file), read=read, stopped=stop.is_set): file for file in files
        }
        for job in as_completed(jobs):
            seen(jobs[job], job.result())
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)
