"""Access logs of mirrors, as nginx, Caddy or a store writes them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, suppress
from email.utils import parsedate_to_datetime
from enum import Enum, StrEnum, auto
from hashlib import sha256
from io import BufferedReader, FileIO
from ipaddress import ip_address
from pathlib import Path
from stat import S_ISREG
from types import TracebackType
from typing import Any, Final, NamedTuple, Self
from urllib.parse import unquote

from gitboot.errors import UsageError
from gitboot.fetchlog.log_entries import (
    Observation,
    has_identity,
    is_check,
    is_machine,
    is_tool,
    may_be_system,
    parse_instant,
    parse_query,
)
from gitboot.fetchlog.unknown_machines import UnknownMachine, parse_unknown_machine
from gitboot.files import hold_lock, write_atomically
from gitboot.jsonio import Digest, encode_canonical
from gitboot.render.paths import evidence_expression, find_non_script_kind, find_token


class IgnoreReason(StrEnum):
    """Why a line is no evidence; of several reasons, the first."""

    FORMAT = "not in the published format"
    PATH = "of another path"
    METHOD = "not a GET"
    STATUS = "not answered 200"
    PART = "not sent whole"
    VERSION = "sent without a Last-Modified"
    CLIENT = "without the address of a client"
    CHECK = "a check by gitboot"
    AGENT = "by a tool or a monitor"
    SIGNED = "with credentials, which no machine has"


_EVIDENCE: Final = re.compile(rf"(?:.*/)?({evidence_expression()})")  # a mirror may lie below a path of its own


class _Sender(Enum):
    MACHINE = auto()
    TOOL = auto()
    UNCLEAR = auto()  # a machine, or a monitor: such a fetch proves nothing, and may have installed a server


LineContent = Observation | UnknownMachine | IgnoreReason  # what a line says


def parse_line(line: bytes) -> LineContent:
    """The observation that a line is, who asked by it for an entry that is not there, or why it is neither.

    Which version of a path was sent is told by its date; of a log without dates, by the token in a path that has one.

    If nothing shows whether a machine sent the request, the observation is an intent without an outcome (ADR 0071). The
    mirror has sent the boot, so a one-time boot is used up. However, it is no evidence that a machine has booted. The
    intent's id is a digest of the line, so that a line that is read twice is one intent.
    """
    request = _parse_request(line)
    if request is None:
        return IgnoreReason.FORMAT
    path = _EVIDENCE.fullmatch(request.path)
    if path is None:
        return IgnoreReason.PATH
    if request.method != "GET":
        return IgnoreReason.METHOD
    query = parse_query(request.query)
    if is_check(request.agent or "", query):
        return IgnoreReason.CHECK
    sender = _classify_sender(f"boot/{path[1]}", request.agent, query)
    if request.status == 404 and (sender is _Sender.MACHINE or request.agent is None):
        return _parse_unknown_machine(path[1], request, query) or IgnoreReason.STATUS
    if request.status != 200:
        return IgnoreReason.STATUS
    if not request.is_whole:
        return IgnoreReason.PART
    token, modified = None, None
    if request.last_modified is None:
        token = find_token(f"boot/{path[1]}")
    else:
        with suppress(ValueError, OverflowError, IndexError, TypeError):  # in as many ways as Python's parser can fail
            modified = int(parsedate_to_datetime(request.last_modified).timestamp())
    if token is None and modified is None:
        return IgnoreReason.VERSION
    if sender is _Sender.TOOL:
        return IgnoreReason.AGENT
    if request.is_signed:
        return IgnoreReason.SIGNED
    try:
        client = str(ip_address(request.client.partition("%")[0]))
    except ValueError:
        if _has_token(f"boot/{path[1]}"):
            return IgnoreReason.CLIENT
        client, sender = "unknown", _Sender.UNCLEAR
    try:
        at = parse_instant(request.at)
    except ValueError:
        return IgnoreReason.FORMAT
    try:
        digest = Digest(token) if token is not None else None
        return Observation(
            server="",
            path=f"boot/{path[1]}",
            client=client,
            at=at,
            digest=digest,
            modified=modified,
            intent=sha256(line.rstrip(b"\r\n")).hexdigest()[:32] if sender is _Sender.UNCLEAR else None,
        )
    except ValueError:
        return IgnoreReason.VERSION


def _classify_sender(path: str, agent: str | None, query: Mapping[str, str]) -> _Sender:
    """Return who sent a request. ``agent`` is None if the log has no User-Agent.

    Only the installation has the token in a path. A path without a token is not enough: a cache may send a GET for the
    HEAD of a monitor.
    """
    if _has_token(path):
        return _Sender.MACHINE
    is_script = find_non_script_kind(path) is None
    if agent is None:
        return _Sender.MACHINE if is_script and has_identity(query) else _Sender.UNCLEAR
    if is_machine(agent, query) if is_script else may_be_system(agent):
        return _Sender.MACHINE
    return _Sender.TOOL if is_tool(agent) else _Sender.UNCLEAR


def _has_token(path: str) -> bool:
    kind = find_non_script_kind(path)
    return kind is not None and "{token}" in kind.text


def _parse_unknown_machine(path: str, request: LoggedRequest, query: Mapping[str, str]) -> UnknownMachine | None:
    try:
        client, at = str(ip_address(request.client.partition("%")[0])), parse_instant(request.at)
        return parse_unknown_machine(path, {name: value for name, value in query.items() if value}, client, at)
    except ValueError:
        return None


def _parse_request(line: bytes) -> LoggedRequest | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        text = line.decode(errors="replace").rstrip("\r\n")
        return parse_s3(text) or parse_cloudfront(text)
    if isinstance(document, dict):
        return _parse_nginx(document) or _parse_caddy(document) or parse_cloudfront_json(document)
    return None


def _parse_nginx(document: Any) -> LoggedRequest | None:
    match document:
        case {
            "at": str(at),
            "client": str(client),
            "method": str(method),
            "path": str(path),
            "status": int(status),
            "modified": str(modified),
            "length": str(length),
            "bytes": int(sent),
            "complete": str(complete),
            **more,
        }:
            is_whole = complete == "OK" and length == str(sent)
            query, agent = more.get("query"), more.get("agent")  # logs of before have neither
            text, name = query if isinstance(query, str) else "", agent if isinstance(agent, str) else None
            return LoggedRequest(at, client, method, path, status, modified, is_whole, text, name)
    return None


def _parse_caddy(document: Any) -> LoggedRequest | None:
    match document:
        case {
            "ts": str(at),
            "request": {"remote_ip": str(peer), "method": str(method), "uri": str(uri), **more},
            "status": int(status),
            "size": int(sent),
            "resp_headers": dict(headers),
        }:
            client = str(more.get("client_ip", peer))  # since Caddy 2.7: behind proxies that it is told to trust
            asked, _, query = uri.partition("?")
            # What was asked for, or else what an alias stands for: see gitboot.render.web_servers.
            path = unquote(_read_single_header(headers, "Content-Location") or asked)
            modified, length = (
                _read_single_header(headers, "Last-Modified"),
                _read_single_header(headers, "Content-Length"),
            )
            sent_headers = more.get("headers")
            agent = _read_single_header(sent_headers, "User-Agent") if isinstance(sent_headers, dict) else None
            return LoggedRequest(at, client, method, path, status, modified, length == str(sent), query, agent)
    return None


def _read_single_header(headers: dict[str, Any], name: str) -> str:
    match headers.get(name):
        case [str(value)]:
            return value
    return ""


class LoggedRequest(NamedTuple):
    at: str
    client: str
    method: str
    path: str
    status: int
    last_modified: str | None  # the Last-Modified that was sent, "" if none was; None: such a log does not say it
    is_whole: bool
    query: str = ""
    agent: str | None = None  # the User-Agent, "" if none was sent; None: the log does not have it
    is_signed: bool = False  # whether the client has shown credentials, which no machine has


_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_S3: Final = re.compile(
    r"\S+ \S+ \[(?P<day>\d\d)/(?P<month>[A-Z][a-z]{2})/(?P<year>\d{4}):(?P<time>\d\d:\d\d:\d\d) (?P<offset>[+-]\d{4})\]"
    r" (?P<client>\S+) (?P<requester>\S+) \S+ (?:REST|WEBSITE)\.(?P<method>[A-Z]+)\.OBJECT (?P<key>\S+)"
    r' "(?P<request>(?:[^"\\]|\\.)*)" (?P<status>\d{3}) \S+ (?P<sent>\d{1,18}|-) (?P<size>\d{1,18}|-) (?P<rest>.*)',
)
_S3_AGENT: Final = re.compile(r'\S+ \S+ "(?:[^"\\]|\\.)*" "(?P<agent>(?:[^"\\]|\\.)*)"')  # of the rest
_CLOUDFRONT: Final = "Amazon CloudFront"  # its User-Agent at a bucket, whose files it may read with credentials


def parse_s3(line: str) -> LoggedRequest | None:
    """A request for an object; its key is URL-encoded twice."""
    found = _S3.fullmatch(line)
    if found is None or found["month"] not in _MONTHS:
        return None
    month = _MONTHS.index(found["month"]) + 1
    offset = f"{found['offset'][:3]}:{found['offset'][3:]}"
    named = _S3_AGENT.match(found["rest"])
    agent = _decode_field(named["agent"]) if named is not None else None
    return LoggedRequest(
        at=f"{found['year']}-{month:02}-{found['day']}T{found['time']}{offset}",
        client=found["client"],
        method=found["method"],
        path=f"/{unquote(unquote(found['key']))}",
        status=int(found["status"]),
        last_modified=None,
        is_whole=_parse_size(found["sent"]) == _parse_size(found["size"]),
        query=found["request"].partition("?")[2].partition(" ")[0],
        agent=agent,
        is_signed=found["requester"] != "-" and not (agent or "").startswith(_CLOUDFRONT),
    )


def _decode_field(text: str) -> str:
    """Return what these logs have of a header or a query; a hyphen stands for nothing."""
    return "" if text == "-" else unquote(text)


def _parse_size(text: str) -> int:
    return 0 if text == "-" else int(text)


# Of a log without its head; v2 of these logs can be JSON, which has the same names.
_FIELDS: Final = (
    *("date", "time", "x-edge-location", "sc-bytes", "c-ip", "cs-method", "cs(Host)", "cs-uri-stem", "sc-status"),
    *("cs(Referer)", "cs(User-Agent)", "cs-uri-query", "cs(Cookie)", "x-edge-result-type", "x-edge-request-id"),
    *("x-host-header", "cs-protocol", "cs-bytes", "time-taken", "x-forwarded-for", "ssl-protocol", "ssl-cipher"),
    *("x-edge-response-result-type", "cs-protocol-version", "fle-status", "fle-encrypted-fields", "c-port"),
    *("time-to-first-byte", "x-edge-detailed-result-type", "sc-content-type", "sc-content-len", "sc-range-start"),
    "sc-range-end",
)
_SENT: Final = frozenset({"Hit", "RefreshHit", "Miss", "OriginShieldHit"})  # and not: Error, ClientCommError …


def parse_cloudfront(line: str) -> LoggedRequest | None:
    """A request that CloudFront answered, of a line of 33 fields."""
    values = line.split("\t")
    return parse_cloudfront_json(dict(zip(_FIELDS, values, strict=True))) if len(values) == len(_FIELDS) else None


def parse_cloudfront_json(fields: Mapping[str, Any]) -> LoggedRequest | None:
    """The same of an object; None where a field is missing that says anything of it."""
    match fields:
        case {
            "date": str(date),
            "time": str(time),
            "c-ip": str(client),
            "cs-method": str(method),
            "cs-uri-stem": str(path),
            "sc-status": str(status),
            "sc-bytes": str(sent),
            "sc-content-len": str(length),
            "sc-range-start": str(start),
            "x-edge-result-type": str(result),
            "x-edge-detailed-result-type": str(detail),
            **more,
        } if all(re.fullmatch(r"\d{1,18}", number, re.ASCII) for number in (status, sent)):
            # All of a body is among the bytes that were sent, which have the head as well.
            is_within = re.fullmatch(r"\d{1,18}", length, re.ASCII) is not None and int(sent) > int(length)
            is_whole = {result, detail} <= _SENT and start == "-" and is_within
            at = f"{date}T{time}+00:00"
            agent, query = (more.get(name) for name in ("cs(User-Agent)", "cs-uri-query"))
            return LoggedRequest(
                at,
                client,
                method,
                unquote(path),
                int(status),
                None,
                is_whole,
                query=query if isinstance(query, str) else "",
                agent=_decode_field(agent) if isinstance(agent, str) else None,
            )
    return None


_LONGEST_LINE_BYTES: Final = 256 * 1024  # of what is longer, the pieces count as lines
_HASH_BYTES: Final = 1024
_MAX_POSITIONS: Final = 64  # rotated files that are known again
_SAVE_EVERY: Final = 1000  # lines, until it is remembered that they were read
_COMPRESSED: Final = (".gz", ".xz", ".bz2", ".zst")


class _Position(NamedTuple):
    """How far a file was read, and what stood right before: it tells a file from one that took its place."""

    offset: int
    digest: str  # sha256


class _OpenFile:
    """A file that is read; it stays open, so that it can be read to its end though it is deleted."""

    def __init__(self, handle: FileIO) -> None:
        self.handle = handle
        self.offset = 0
        self._last_stat = (-1, -1)

    def has_changed(self) -> bool:
        before, self._last_stat = self._last_stat, (self.stat.st_size, self.stat.st_mtime_ns)
        return self._last_stat != before

    def read_lines(self) -> Iterator[bytes]:
        """The whole lines from the offset on, which each moves as soon as the next is asked for."""
        self.handle.seek(self.offset)
        reader = BufferedReader(self.handle)
        try:
            while line := reader.readline(_LONGEST_LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < _LONGEST_LINE_BYTES:
                    return  # its end is still to be written
                yield line
                self.offset += len(line)
        finally:
            reader.detach()  # a buffer would outlive what is truncated

    @property
    def stat(self) -> os.stat_result:
        return os.fstat(self.handle.fileno())

    @property
    def position(self) -> _Position:
        return _Position(self.offset, self._hash_before(self.offset))

    def matches(self, place: _Position) -> bool:
        return place.offset <= self.stat.st_size and place.digest == self._hash_before(place.offset)

    def _hash_before(self, offset: int) -> str:
        start = max(0, offset - _HASH_BYTES)
        return sha256(os.pread(self.handle.fileno(), offset - start, start)).hexdigest()


class LogFile:
    """The log at ``path``, with what it was rotated to; the folder ``memory`` holds how far it was read.

    A rotated file lies beside the log, under a name made from the log's, and is not compressed. It may have been
    renamed, or copied and the log truncated. The first time, only the log itself is read. A log belongs to one
    process at a time: LockedByAnother.
    """

    def __init__(self, path: Path, memory: Path) -> None:
        self._path = path.absolute()
        name = f"log-{sha256(os.fsencode(self._path)).hexdigest()[:16]}"
        self._memory, self._lock = memory / f"{name}.json", memory / f"{name}.lock"
        # As logrotate names them: gitboot.log.1, gitboot.log-20261121; and Caddy: gitboot-2026-11-21T02-34-18.000.log
        stem, suffix = re.escape(self._path.stem), re.escape(self._path.suffix)
        self._rotated = re.compile(rf"{stem}{suffix}[.-].+|{stem}-[0-9].*{suffix}")
        self._stack = ExitStack()
        self._open_files: dict[int, _OpenFile] = {}  # by inode
        self._sizes: dict[int, int] | None = None  # by inode, at the last look; None: this is the first
        self._positions: list[
            _Position
        ] = []  # how far each file was read, whatever its name is now; the last at the end
        self._since_ns: int | None = None  # what was modified before it has been read; None: nothing was, ever

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(self._lock, f"{self._path} is read into {self._memory.parent}"))
            except OSError as error:
                raise UsageError(f"{self._lock}: {error.strerror}") from error
            self._load_positions()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def read_lines(self) -> Generator[bytes, None, None]:
        """The lines that were added since the last time, those of the oldest file first.

        A line counts as read when the next one is asked for; close what is not read to its end. Raises UsageError
        for what cannot be read.
        """
        try:
            since_ns = self._open_changed_files()
            for inode, file in sorted(self._open_files.items(), key=lambda each: each[1].stat.st_mtime_ns):
                if file.has_changed():
                    yield from self._read_new_lines(file)
                if file.stat.st_nlink == 0:
                    self._open_files.pop(inode).handle.close()
            if since_ns != self._since_ns:
                self._since_ns = since_ns
                self._write_memory()
        except OSError as error:
            raise UsageError(f"{self._path} cannot be read to its end: {error}") from error

    def _open_changed_files(self) -> int | None:
        """Open what was modified since the last time; return what time everything is read up to then."""
        found = list(self._list_files())
        since_ns = max((stat.st_mtime_ns for _, stat in found), default=self._since_ns)
        for path, stat in found:
            is_log = path == self._path
            is_new = self._since_ns is not None and stat.st_mtime_ns >= self._since_ns
            if stat.st_ino in self._open_files or not (is_log or is_new):
                continue
            # A copy that is being made cannot be known again before it is whole.
            if not is_log and self._sizes is not None and self._sizes.get(stat.st_ino) != stat.st_size:
                since_ns = min(since_ns or 0, stat.st_mtime_ns)
                continue
            with suppress(FileNotFoundError):  # it has another name by now
                file = _OpenFile(self._stack.enter_context(path.open("rb", buffering=0)))
                self._open_files[file.stat.st_ino] = file
        self._sizes = {stat.st_ino: stat.st_size for _, stat in found}
        return since_ns

    def _list_files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for path in self._path.parent.iterdir():
            if path == self._path or (self._rotated.fullmatch(path.name) and path.suffix not in _COMPRESSED):
                with suppress(FileNotFoundError):
                    stat = path.stat()
                    if S_ISREG(stat.st_mode):
                        yield path, stat

    def _read_new_lines(self, file: _OpenFile) -> Iterator[bytes]:
        """The lines beyond every place that is known in this file: it may have been truncated, or be a copy."""
        known = max((place for place in self._positions if file.matches(place)), default=None)
        file.offset = known.offset if known else 0
        try:
            for number, line in enumerate(file.read_lines(), 1):
                yield line
                if number % _SAVE_EVERY == 0:
                    known = self._save_position(file, known)
        finally:
            self._save_position(file, known)

    def _save_position(self, file: _OpenFile, instead_of: _Position | None) -> _Position:
        place = file.position
        if place.offset and place != instead_of:
            others = [each for each in self._positions if each != instead_of]
            self._positions = [*others, place][-_MAX_POSITIONS:]
            self._write_memory()
        return place

    def _load_positions(self) -> None:
        with suppress(FileNotFoundError):
            try:
                document = json.loads(self._memory.read_bytes())
            except ValueError as error:
                raise UsageError(f"{self._memory}: {error}; without it the log is read anew") from error
            self._since_ns = document["since"]
            self._positions = [_Position(offset, mark) for offset, mark in document["places"]]

    def _write_memory(self) -> None:
        document = {"log": str(self._path), "since": self._since_ns, "places": self._positions}
        write_atomically(self._memory, json.dumps(document).encode())


class SentVersions:
    """The newest version of each path in one mirror's log; the folder ``memory`` holds them from one run to the next.

    What is lost of it costs no more than a word: a path is known again from its next line on.
    """

    def __init__(self, log: Path, memory: Path) -> None:
        self._memory = memory / f"sent-{sha256(os.fsencode(log.absolute())).hexdigest()[:16]}.json"
        self._newest: dict[str, int] = {}
        self._has_changed = False
        with suppress(OSError, ValueError):
            self._newest = {
                str(path): int(modified) for path, modified in json.loads(self._memory.read_bytes()).items()
            }

    def is_older(self, observation: Observation) -> bool:
        """Whether a newer version of the same path was sent before."""
        modified, newest = observation.modified or 0, self._newest.get(observation.path, 0)
        if modified > newest:
            self._newest[observation.path] = modified
            self._has_changed = True
        return modified < newest

    def write(self) -> None:
        if self._has_changed:
            self._has_changed = False
            with suppress(OSError):
                write_atomically(self._memory, encode_canonical(self._newest))
