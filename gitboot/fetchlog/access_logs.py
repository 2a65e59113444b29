"""Mirror access logs: parse the formats of nginx, Caddy, S3 and CloudFront, and read rotated log files."""

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
from typing import Any, Final, NamedTuple, Self
from urllib.parse import unquote

from gitboot.errors import UsageError
from gitboot.fetchlog.log_entries import (
    Observation,
    has_identity,
    is_from_machine,
    is_gitboot_check,
    is_tool_agent,
    may_be_system_agent,
    parse_log_instant,
    parse_query,
)
from gitboot.fetchlog.unknown_machines import UnknownMachine, parse_unknown_machine
from gitboot.files import hold_lock, write_atomically
from gitboot.jsonio import Digest, encode_canonical, parse_json
from gitboot.render.paths import build_evidence_expression, find_non_script_kind, find_token


class IgnoreReason(StrEnum):
    """The reason why a log line does not count as evidence.

    If several reasons apply, gitboot uses the first of these reasons.
    """

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


LineContent = Observation | UnknownMachine | IgnoreReason  # the result of parsing a line
# the path may have a prefix, because a mirror may serve the files below one
_EVIDENCE: Final = re.compile(rf"(?:.*/)?({build_evidence_expression()})")


class _Sender(Enum):
    """The kind of client that sent a request."""

    MACHINE = auto()
    TOOL = auto()
    # a machine or a monitor sent the request; the line is not evidence, but the fetch may have installed a server
    UNCLEAR = auto()


class LoggedRequest(NamedTuple):
    """A request in a line of an access log, in any of the formats."""

    at: str
    client: str
    method: str
    path: str
    status: int
    # the Last-Modified header of the response, or ""; None: the log does not contain this header
    last_modified: str | None
    is_complete: bool
    query: str = ""
    agent: str | None = None  # the User-Agent, or ""; None: the log does not contain this header
    is_signed: bool = False  # whether the client sent credentials, which machines do not have


def parse_line(line: bytes) -> LineContent:
    """Return the fetch in a log line, the unknown machine that sent the request, or the reason to ignore the line.

    The Last-Modified date shows which version of a file the mirror sent. If the log does not contain these dates, the
    token in the path identifies the version.

    If it is unclear whether a machine sent the request, the observation is an intent without an outcome (ADR 0010). The
    mirror has sent the boot, so a one-time boot counts as used up, but the line does not prove that a machine booted.
    The ID of the intent is a digest of the line, so that gitboot counts a line only once even if it reads the line
    twice.
    """
    request = _parse_request(line)
    if request is None:
        return IgnoreReason.FORMAT
    match = _EVIDENCE.fullmatch(request.path)
    if match is None:
        return IgnoreReason.PATH
    if request.method != "GET":
        return IgnoreReason.METHOD
    path = f"boot/{match[1]}"
    query = parse_query(request.query)
    if is_gitboot_check(request.agent or "", query):
        return IgnoreReason.CHECK
    sender = _classify_sender(path, request.agent, query)
    if request.status == 404 and (sender is _Sender.MACHINE or request.agent is None):
        return _parse_unknown_machine(match[1], request, query) or IgnoreReason.STATUS
    if request.status != 200:
        return IgnoreReason.STATUS
    if not request.is_complete:
        return IgnoreReason.PART
    token = find_token(path) if request.last_modified is None else None
    modified = _parse_last_modified(request.last_modified)
    if token is None and modified is None:
        return IgnoreReason.VERSION
    if sender is _Sender.TOOL:
        return IgnoreReason.AGENT
    if request.is_signed:
        return IgnoreReason.SIGNED
    client = _parse_client(request.client)
    if client is None and _has_token(path):
        return IgnoreReason.CLIENT
    try:
        at = parse_log_instant(request.at)
    except ValueError:
        return IgnoreReason.FORMAT
    is_intent = sender is _Sender.UNCLEAR or client is None
    try:
        return Observation(
            server="",
            path=path,
            client=client if client is not None else "unknown",
            at=at,
            digest=Digest(token) if token is not None else None,
            modified=modified,
            intent=sha256(line.rstrip(b"\r\n")).hexdigest()[:32] if is_intent else None,
        )
    except ValueError:
        return IgnoreReason.VERSION


def _parse_last_modified(header: str | None) -> int | None:
    # Python's parsers raise these errors for a malformed header
    with suppress(ValueError, OverflowError, IndexError, TypeError):
        return int(parsedate_to_datetime(header or "").timestamp())
    return None


def _parse_client(address: str) -> str | None:
    with suppress(ValueError):
        return str(ip_address(address.partition("%")[0]))
    return None


def _classify_sender(path: str, agent: str | None, query: Mapping[str, str]) -> _Sender:
    """Return the kind of client that sent a request. ``agent`` is None if the log does not contain the User-Agent.

    A token in the path proves that the client is a machine, because only the installation has the token. A path without
    a token is no proof, because a cache may turn a monitor's HEAD request into a GET request.
    """
    if _has_token(path):
        return _Sender.MACHINE
    is_script = find_non_script_kind(path) is None
    if agent is None:
        return _Sender.MACHINE if is_script and has_identity(query) else _Sender.UNCLEAR
    if is_from_machine(agent, query) if is_script else may_be_system_agent(agent):
        return _Sender.MACHINE
    return _Sender.TOOL if is_tool_agent(agent) else _Sender.UNCLEAR


def _has_token(path: str) -> bool:
    kind = find_non_script_kind(path)
    return kind is not None and "{token}" in kind.template


def _parse_unknown_machine(path: str, request: LoggedRequest, query: Mapping[str, str]) -> UnknownMachine | None:
    client = _parse_client(request.client)
    if client is None:
        return None
    values = {name: value for name, value in query.items() if value}
    try:
        return parse_unknown_machine(path, values, client, parse_log_instant(request.at))
    except ValueError:
        return None


# Formats


def _parse_request(line: bytes) -> LoggedRequest | None:
    text = line.decode(errors="replace").rstrip("\r\n")  # nginx logs bytes as the client sent them
    try:
        document = parse_json(text)
    except ValueError:
        return parse_s3_line(text) or parse_cloudfront_line(text)
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
            is_complete = complete == "OK" and length == str(sent)
            # log formats of earlier versions contain neither of these fields
            query, agent = more.get("query"), more.get("agent")
            return LoggedRequest(
                at,
                client,
                method,
                path,
                status,
                modified,
                is_complete,
                query=query if isinstance(query, str) else "",
                agent=agent if isinstance(agent, str) else None,
            )
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
            # Caddy 2.7 and later log the client address behind trusted proxies
            client = str(more.get("client_ip", peer))
            uri_path, _, query = uri.partition("?")
            # The path is the target of an alias, or the requested path (see gitboot.render.web_servers). Caddy logs
            # repeated slashes, and serves the file of the path with one slash.
            path = re.sub("/{2,}", "/", unquote(_read_single_header(headers, "Content-Location") or uri_path))
            request_headers = more.get("headers")
            return LoggedRequest(
                at,
                client,
                method,
                path,
                status,
                last_modified=_read_single_header(headers, "Last-Modified"),
                is_complete=_read_single_header(headers, "Content-Length") == str(sent),
                query=query,
                agent=_read_single_header(request_headers, "User-Agent") if isinstance(request_headers, dict) else None,
            )
    return None


def _read_single_header(headers: dict[str, Any], name: str) -> str:
    match headers.get(name):
        case [str(value)]:
            return value
    return ""


_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_S3: Final = re.compile(
    r"\S+ \S+ \[(?P<day>\d\d)/(?P<month>[A-Z][a-z]{2})/(?P<year>\d{4}):(?P<time>\d\d:\d\d:\d\d) (?P<offset>[+-]\d{4})\]"
    r" (?P<client>\S+) (?P<requester>\S+) \S+ (?:REST|WEBSITE)\.(?P<method>[A-Z]+)\.OBJECT (?P<key>\S+)"
    r' "(?P<request>(?:[^"\\]|\\.)*)" (?P<status>\d{3}) \S+ (?P<sent>\d{1,18}|-) (?P<size>\d{1,18}|-) (?P<rest>.*)',
)
_S3_AGENT: Final = re.compile(r'\S+ \S+ "(?:[^"\\]|\\.)*" "(?P<agent>(?:[^"\\]|\\.)*)"')  # in the rest of the line
_CLOUDFRONT: Final = "Amazon CloudFront"  # the User-Agent with which CloudFront reads a bucket


def parse_s3_line(line: str) -> LoggedRequest | None:
    """Parse a line of an S3 log, in which the object key is URL-encoded twice."""
    match = _S3.fullmatch(line)
    if match is None or match["month"] not in _MONTHS:
        return None
    month = _MONTHS.index(match["month"]) + 1
    offset = f"{match['offset'][:3]}:{match['offset'][3:]}"
    agent_match = _S3_AGENT.match(match["rest"])
    agent = _decode_field(agent_match["agent"]) if agent_match is not None else None
    return LoggedRequest(
        at=f"{match['year']}-{month:02}-{match['day']}T{match['time']}{offset}",
        client=match["client"],
        method=match["method"],
        path=f"/{unquote(unquote(match['key']))}",
        status=int(match["status"]),
        last_modified=None,
        is_complete=_parse_size(match["sent"]) == _parse_size(match["size"]),
        query=match["request"].partition("?")[2].partition(" ")[0],
        agent=agent,
        is_signed=match["requester"] != "-" and not (agent or "").startswith(_CLOUDFRONT),
    )


def _decode_field(text: str) -> str:
    """Decode a header or query field of an S3 log. A hyphen means an empty value."""
    return "" if text == "-" else unquote(text)


def _parse_size(text: str) -> int:
    return 0 if text == "-" else int(text)


# The columns of CloudFront's standard log, version 1. The JSON of version 2 uses the same names.
_FIELDS: Final = (
    *("date", "time", "x-edge-location", "sc-bytes", "c-ip", "cs-method", "cs(Host)", "cs-uri-stem", "sc-status"),
    *("cs(Referer)", "cs(User-Agent)", "cs-uri-query", "cs(Cookie)", "x-edge-result-type", "x-edge-request-id"),
    *("x-host-header", "cs-protocol", "cs-bytes", "time-taken", "x-forwarded-for", "ssl-protocol", "ssl-cipher"),
    *("x-edge-response-result-type", "cs-protocol-version", "fle-status", "fle-encrypted-fields", "c-port"),
    *("time-to-first-byte", "x-edge-detailed-result-type", "sc-content-type", "sc-content-len", "sc-range-start"),
    "sc-range-end",
)
# the results for complete responses, unlike Error and ClientCommError
_COMPLETE_RESULTS: Final = frozenset({"Hit", "RefreshHit", "Miss", "OriginShieldHit"})


def parse_cloudfront_line(line: str) -> LoggedRequest | None:
    """Parse a line of a CloudFront log, which has 33 tab-separated fields."""
    values = line.split("\t")
    if len(values) != len(_FIELDS):
        return None
    return parse_cloudfront_json(dict(zip(_FIELDS, values, strict=True)))


def parse_cloudfront_json(fields: Mapping[str, Any]) -> LoggedRequest | None:
    """Parse a JSON object from a CloudFront log. Return None if a required field is missing."""
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
            # The number of sent bytes includes the headers, so a complete response has more bytes than its body.
            is_within = re.fullmatch(r"\d{1,18}", length, re.ASCII) is not None and int(sent) > int(length)
            is_complete = {result, detail} <= _COMPLETE_RESULTS and start == "-" and is_within
            at = f"{date}T{time}+00:00"
            agent, query = more.get("cs(User-Agent)"), more.get("cs-uri-query")
            return LoggedRequest(
                at,
                client,
                method,
                unquote(path),
                int(status),
                None,
                is_complete,
                query=query if isinstance(query, str) else "",
                agent=_decode_field(agent) if isinstance(agent, str) else None,
            )
    return None


# Log files

_MAX_LINE_BYTES: Final = 256 * 1024  # gitboot reads a longer line in pieces, which count as separate lines
_HASH_BYTES: Final = 1024  # how many bytes before an offset identify a file
_MAX_POSITIONS: Final = 64  # the maximum number of files whose positions gitboot stores
_COMPRESSED: Final = (".gz", ".xz", ".bz2", ".zst")
_SAVE_EVERY: Final = 1000  # lines


class _Position(NamedTuple):
    """How far gitboot has read a file: an offset, and a digest of the bytes before the offset to identify the file."""

    offset: int
    digest: str  # sha256


class _OpenFile:
    """A log file that stays open, so that gitboot can read it to the end even after it is deleted."""

    def __init__(self, handle: FileIO) -> None:
        self.handle = handle
        self.offset = 0
        self._last_stat = (-1, -1)

    def has_changed(self) -> bool:
        """Return whether the size or the modification time has changed since the last call."""
        stat = self.stat
        before = self._last_stat
        self._last_stat = (stat.st_size, stat.st_mtime_ns)
        return self._last_stat != before

    def read_lines(self) -> Iterator[bytes]:
        """Yield the complete lines after the current offset.

        The offset advances when the caller requests the next line.
        """
        self.handle.seek(self.offset)
        reader = BufferedReader(self.handle)
        try:
            while line := reader.readline(_MAX_LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < _MAX_LINE_BYTES:
                    return  # the line is not complete yet
                yield line
                self.offset += len(line)
        finally:
            reader.detach()  # discard the buffer, which could contain bytes that are no longer in the file

    @property
    def stat(self) -> os.stat_result:
        return os.fstat(self.handle.fileno())

    @property
    def position(self) -> _Position:
        return _Position(self.offset, self._hash_before(self.offset))

    def matches(self, position: _Position) -> bool:
        return position.offset <= self.stat.st_size and position.digest == self._hash_before(position.offset)

    def _hash_before(self, offset: int) -> str:
        start = max(0, offset - _HASH_BYTES)
        return sha256(os.pread(self.handle.fileno(), offset - start, start)).hexdigest()


class LogFile:
    """The log at ``path`` with its rotated files. The folder ``state_dir`` contains how far gitboot has read each file.

    A rotated file must be in the same folder, must have a name that starts with the name of the log, and must not be
    compressed. Rotation may rename the log, or copy and truncate it. The first run does not read rotated files.

    Only one process at a time can read a log. Raises `LockedByAnother` if another process reads the log.
    """

    def __init__(self, path: Path, state_dir: Path) -> None:
        self._path = path.absolute()
        name = f"log-{sha256(os.fsencode(self._path)).hexdigest()[:16]}"
        self._state_file, self._lock = state_dir / f"{name}.json", state_dir / f"{name}.lock"
        # logrotate: gitboot.log.1, gitboot.log-20261121. Caddy: gitboot-2026-11-21T02-34-18.000.log
        stem, suffix = re.escape(self._path.stem), re.escape(self._path.suffix)
        self._rotated = re.compile(rf"{stem}{suffix}[.-].+|{stem}-[0-9].*{suffix}")
        self._stack = ExitStack()
        self._open_files: dict[int, _OpenFile] = {}  # by inode
        # the sizes of files at the previous call, by inode; None: this is the first call
        self._sizes: dict[int, int] | None = None
        self._positions: list[_Position] = []  # the positions in files under any name, the most recent last
        # gitboot has read all files that were modified before this time; None: gitboot has not read a file yet
        self._since_ns: int | None = None

    def __enter__(self) -> Self:
        message = f"another process is already reading {self._path} into {self._state_file.parent}"
        with ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(self._lock, message))
            except OSError as error:
                raise UsageError(f"{self._lock}: {error.strerror}") from error
            self._load_positions()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read_lines(self) -> Generator[bytes, None, None]:
        """Yield the lines that were added to the log since the last call or run, starting with the oldest file.

        A line counts as read when the caller requests the next line. If you stop before the last line, close the
        generator. Raises UsageError if gitboot cannot read a file.
        """
        try:
            since_ns = self._open_changed_files()
            for inode, file in sorted(self._open_files.items(), key=lambda item: item[1].stat.st_mtime_ns):
                if file.has_changed():
                    yield from self._read_new_lines(file)
                if file.stat.st_nlink == 0:
                    self._open_files.pop(inode).handle.close()
            if since_ns != self._since_ns:
                self._since_ns = since_ns
                self._write_positions()
        except OSError as error:
            raise UsageError(f"gitboot cannot read {self._path} to the end: {error}") from error

    def _read_new_lines(self, file: _OpenFile) -> Iterator[bytes]:
        # The file may be a truncated log or a rotated copy, so gitboot looks for its last known position.
        known = max((position for position in self._positions if file.matches(position)), default=None)
        file.offset = known.offset if known is not None else 0
        try:
            for number, line in enumerate(file.read_lines(), 1):
                yield line
                if number % _SAVE_EVERY == 0:
                    known = self._save_position(file, known)
        finally:
            self._save_position(file, known)

    def _open_changed_files(self) -> int | None:
        """Open the files that changed since the last call.

        Return a time. gitboot has opened or already read all files that were last modified before this time.
        """
        files = list(self._list_files())
        since_ns = max((stat.st_mtime_ns for _, stat in files), default=self._since_ns)
        for path, stat in files:
            is_log = path == self._path
            is_new = self._since_ns is not None and stat.st_mtime_ns >= self._since_ns
            if stat.st_ino in self._open_files or not (is_log or is_new):
                continue
            # gitboot can recognize a rotated copy only when the copy is complete.
            if not is_log and self._sizes is not None and self._sizes.get(stat.st_ino) != stat.st_size:
                since_ns = min(since_ns or 0, stat.st_mtime_ns)
                continue
            with suppress(FileNotFoundError):  # rotation has renamed the file meanwhile
                file = _OpenFile(self._stack.enter_context(path.open("rb", buffering=0)))
                self._open_files[file.stat.st_ino] = file
        self._sizes = {stat.st_ino: stat.st_size for _, stat in files}
        return since_ns

    def _list_files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Yield the log and its rotated files."""
        for path in self._path.parent.iterdir():
            if path == self._path or (self._rotated.fullmatch(path.name) and path.suffix not in _COMPRESSED):
                with suppress(FileNotFoundError):
                    stat = path.stat()
                    if S_ISREG(stat.st_mode):
                        yield path, stat

    def _save_position(self, file: _OpenFile, previous: _Position | None) -> _Position:
        """Store the position in a file instead of the ``previous`` position, and return it."""
        position = file.position
        if position.offset and position != previous:
            others = [other for other in self._positions if other != previous]
            self._positions = [*others, position][-_MAX_POSITIONS:]
            self._write_positions()
        return position

    def _load_positions(self) -> None:
        with suppress(FileNotFoundError):
            try:
                document = parse_json(self._state_file.read_bytes())
            except ValueError as error:
                raise UsageError(
                    f"{self._state_file}: {error}. If you delete this file, gitboot reads the log again from the start"
                ) from error
            self._since_ns = document["since"]
            self._positions = [_Position(offset, digest) for offset, digest in document["places"]]

    def _write_positions(self) -> None:
        document = {"log": str(self._path), "since": self._since_ns, "places": self._positions}
        write_atomically(self._state_file, json.dumps(document).encode())


class SentVersions:
    """Stores the newest version of each path that a mirror has sent, in a file in the folder ``state_dir``.

    If the file is lost, gitboot cannot warn about an outdated version of a path until the path is in the log again.
    """

    def __init__(self, log: Path, state_dir: Path) -> None:
        self._state_file = state_dir / f"sent-{sha256(os.fsencode(log.absolute())).hexdigest()[:16]}.json"
        self._newest: dict[str, int] = {}
        self._has_changed = False
        with suppress(OSError, ValueError):
            self._newest = {
                str(path): int(modified) for path, modified in parse_json(self._state_file.read_bytes()).items()
            }

    def is_older(self, observation: Observation) -> bool:
        """Return whether the mirror has already sent a newer version of the path in the observation."""
        modified, newest = observation.modified or 0, self._newest.get(observation.path, 0)
        if modified > newest:
            self._newest[observation.path] = modified
            self._has_changed = True
        return modified < newest

    def write(self) -> None:
        if self._has_changed:
            self._has_changed = False
            with suppress(OSError):
                write_atomically(self._state_file, encode_canonical(self._newest))
