"""A line of an access log, of a mirror as `gitboot.render.mirrors` configures it or of a CDN -> an observation."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from email.utils import parsedate_to_datetime
from enum import StrEnum
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from gitboot.model.scalars import Digest
from gitboot.observe.observation import Observation, instant_of
from gitboot.observe.storelog import LoggedRequest, of_cloudfront, of_cloudfront_json, of_s3
from gitboot.observe.undescribed import UnknownMachine, unknown_of
from gitboot.render.paths import evidence_expression, token_in


class Ignored(StrEnum):
    """Why a line is no evidence; of several reasons, the first."""

    FORMAT = "not in the published format"
    PATH = "of another path"
    METHOD = "not a GET"
    STATUS = "not answered 200"
    PART = "not sent whole"
    VERSION = "sent without a Last-Modified"
    CLIENT = "without the address of a client"


_EVIDENCE: Final = re.compile(rf"(?:.*/)?({evidence_expression()})")  # a mirror may lie below a path of its own


Told = Observation | UnknownMachine | Ignored  # what a line says


def read(line: bytes) -> Told:
    """The observation that a line is, who asked by it for an entry that is not there, or why it is neither.

    Which version of a path was sent is told by its date; of a log without dates, by the token in a path that has one.
    """
    request = _parse(line)
    if request is None:
        return Ignored.FORMAT
    path = _EVIDENCE.fullmatch(request.path)
    if path is None:
        return Ignored.PATH
    if request.method != "GET":
        return Ignored.METHOD
    if request.status == 404 and (unknown := _unknown(path[1], request)) is not None:
        return unknown
    if request.status != 200:
        return Ignored.STATUS
    if not request.whole:
        return Ignored.PART
    token, modified = None, None
    if request.modified is None:
        token = token_in(f"boot/{path[1]}")
    else:
        with suppress(ValueError, OverflowError, IndexError, TypeError):  # in as many ways as Python's parser can fail
            modified = int(parsedate_to_datetime(request.modified).timestamp())
    if token is None and modified is None:
        return Ignored.VERSION
    try:
        client = str(ip_address(request.client.partition("%")[0]))
    except ValueError:
        return Ignored.CLIENT
    try:
        at = instant_of(request.at)
    except ValueError:
        return Ignored.FORMAT
    try:
        digest = Digest(token) if token is not None else None
        return Observation(server="", path=f"boot/{path[1]}", client=client, at=at, digest=digest, modified=modified)
    except ValueError:
        return Ignored.VERSION


def _unknown(path: str, request: LoggedRequest) -> UnknownMachine | None:
    try:
        client, at = str(ip_address(request.client.partition("%")[0])), instant_of(request.at)
        return unknown_of(path, dict(parse_qsl(request.query)), client, at)
    except ValueError:
        return None


def _parse(line: bytes) -> LoggedRequest | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        text = line.decode(errors="replace").rstrip("\r\n")
        return of_s3(text) or of_cloudfront(text)
    if isinstance(document, dict):
        return _of_nginx(document) or _of_caddy(document) or of_cloudfront_json(document)
    return None


def _of_nginx(document: Any) -> LoggedRequest | None:
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
            query = more.get("query")  # logs of before have none
            text = query if isinstance(query, str) else ""
            return LoggedRequest(at, client, method, path, status, modified, is_whole, text)
    return None


def _of_caddy(document: Any) -> LoggedRequest | None:
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
            # What was asked for, or else what an alias stands for: see gitboot.render.queries.
            path = unquote(_only(headers, "Content-Location") or asked)
            modified, length = _only(headers, "Last-Modified"), _only(headers, "Content-Length")
            return LoggedRequest(at, client, method, path, status, modified, length == str(sent), query)
    return None


def _only(headers: dict[str, Any], name: str) -> str:
    match headers.get(name):
        case [str(value)]:
            return value
    return ""
