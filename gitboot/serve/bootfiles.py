"""Boot files with the headers they are served with, prepared when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Final, NamedTuple

from gitboot.render.answers import Answers, EntryOf
from gitboot.render.paths import is_immutable, is_report
from gitboot.serve.lookups import Found, find
from gitboot.serve.reply import FOR_A_YEAR, HEARD, REVALIDATED, Header, Reply, names


class BootFile(NamedTuple):
    """A file as it is served."""

    path: str  # below the output directory
    content: bytes
    headers: list[Header]
    etag: bytes
    entry: EntryOf | None  # whose boot it is
    since: datetime | None  # from when on its path is answered so; None: from before all turns
    until: datetime | None  # when its path is answered otherwise; None: never by the clock

    def stands(self, at: datetime) -> bool:
        """Whether this is what its path is answered at ``at``."""
        return (self.since is None or self.since <= at) and (self.until is None or at < self.until)

    def reply(self, headers: Iterable[Header]) -> Reply:
        """The reply to a request with these headers; an installer that reports is only told that it was heard."""
        if is_report(self.path):
            return HEARD
        for name, value in headers:
            if name == b"if-none-match" and names(value, self.etag):
                return Reply(304, self.headers[_VALIDATORS:])
        return Reply(200, self.headers, self.content)


_VALIDATORS: Final = 2  # where those headers begin that a 304 has too


class BootFiles:
    """The boot files of the present answers."""

    def __init__(self) -> None:
        self._answers: Answers | None = None
        self._prepared: dict[str, BootFile] = {}  # by what is asked for

    def find(self, answers: Answers, path: str, client: Callable[[], str | None], at: datetime) -> BootFile | None:
        """What a request for ``path`` is answered at the instant ``at``, if there is such a file."""
        if answers is not self._answers:
            self._answers, self._prepared = answers, {}
        prepared = self._prepared.get(path)
        if prepared is not None and prepared.stands(at):
            return prepared
        found = find(answers, path, client, at)
        if found is None:
            return None
        prepared = _prepare(answers, found, at)
        if found.path == f"boot{path}":  # there are too many other spellings to keep each
            self._prepared[path] = prepared
        return prepared


def _prepare(answers: Answers, found: Found, at: datetime) -> BootFile:
    path, file = found
    etag = f'"{file.sha256}"'.encode()
    turn, until = answers.turn(path, at)
    return BootFile(
        path=path,
        content=file.content,
        headers=[
            (b"content-type", str(file.content_type).encode()),
            (b"content-length", str(len(file.content)).encode()),
            (b"etag", etag),
            (b"cache-control", FOR_A_YEAR if is_immutable(path) else REVALIDATED),
        ],
        etag=etag,
        entry=answers.entry_at(path, at),
        since=turn.at if turn is not None else None,
        until=until,
    )
