"""One request to a web server, for JSON or for a stream of bytes: bounded in time, and led nowhere else."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, HTTPSHandler, OpenerDirector, Request, build_opener
from urllib.response import addinfourl

from gitboot import __version__
from gitboot.errors import HostUnreachable, UsageError

_MOST_BYTES: Final = 1 << 20
_LONGEST_DETAIL: Final = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class WebAnswer:
    """What a server answered, whatever it thinks of the request."""

    status: int
    json: Any  # None: it was no JSON
    retry_after_s: int | None = None

    @property
    def detail(self) -> str:
        """What it said besides, on one line."""
        said = self.json.get("message") or self.json.get("error") if isinstance(self.json, dict) else self.json
        return " ".join(str(said or "").split())[:_LONGEST_DETAIL]


class _NoRedirects(HTTPRedirectHandler):
    """What carries a token must not be led to another host; the answer is the redirect itself."""

    def redirect_request(self, *_: object, **__: object) -> None:
        """Make no request of it."""


def host_of(url: str) -> str:
    """The host of a URL of a web server, as people are told it; raises `UsageError` for anything else."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"{url!r} is no URL of a web server: it begins with https:// or http:// and a host")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"the URL of {parts.hostname} must not hold a user or a password")
    return parts.netloc


def trusting(ca_bundle: Path | None) -> ssl.SSLContext:
    """What the machine trusts, and ``ca_bundle`` besides; raises `UsageError`."""
    trusted = ssl.create_default_context()
    if ca_bundle is not None:
        try:
            trusted.load_verify_locations(cafile=ca_bundle)
        except OSError as error:
            raise UsageError(f"{ca_bundle} cannot be read as certificates: {error.strerror}") from error
    return trusted


def opener(ca_bundle: Path | None = None) -> OpenerDirector:
    """What requests are sent by; raises `UsageError`."""
    return build_opener(HTTPSHandler(context=trusting(ca_bundle)), _NoRedirects)


def ask(
    opener: OpenerDirector,
    url: str,
    *,
    headers: Mapping[str, str] | None = None,
    body: Mapping[str, Any] | None = None,
    timeout_s: float = 10,
    method: str | None = None,
    most_bytes: int = _MOST_BYTES,
) -> WebAnswer:
    """GET ``url``, or POST ``body`` as JSON to it, or by another method; of the answer ``most_bytes`` are read.

    Raises `HostUnreachable` where no answer comes that can be used.
    """
    sent = {"Accept": "application/json", **(headers or {})}
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        sent["Content-Type"] = "application/json"
    with opened(opener, url, headers=sent, data=data, method=method, timeout_s=timeout_s) as answer:
        return _reply(answer.status, answer.headers, answer.read(most_bytes + 1), most_bytes)


class WebStream:
    """An answer whose body is read as it comes; raises `HostUnreachable` where that ends too early."""

    def __init__(self, answer: addinfourl, host: str) -> None:
        self._answer, self._host = answer, host
        self.status: int = answer.status or 0
        self.headers: Message = answer.headers

    def read(self, most_bytes: int) -> bytes:
        """At most so many bytes; none at the end."""
        try:
            return self._answer.read(most_bytes)
        except (OSError, HTTPException) as error:
            raise _unreachable(self._host, error) from error


@contextmanager
def opened(
    opener: OpenerDirector,
    url: str,
    *,
    headers: Mapping[str, str],
    data: bytes | None = None,
    method: str | None = None,
    timeout_s: float = 10,
) -> Iterator[WebStream]:
    """The answer to one request, whatever its status; raises `HostUnreachable` where none comes."""
    host, sent = host_of(url), {"User-Agent": f"gitboot/{__version__}", **headers}
    try:
        answer = opener.open(Request(url, data, sent, method=method), timeout=timeout_s)  # noqa: S310 - host_of looked at it
    except HTTPError as error:
        answer = error
    except (OSError, HTTPException) as error:
        raise _unreachable(host, error) from error
    with answer:
        yield WebStream(answer, host)


def _unreachable(host: str, error: OSError | HTTPException) -> HostUnreachable:
    reason = error.reason if isinstance(error, URLError) else str(error) or type(error).__name__
    return HostUnreachable(f"{host}: {reason}")


def _reply(status: int, headers: Message, content: bytes, most_bytes: int) -> WebAnswer:
    try:
        found = json.loads(content) if len(content) <= most_bytes else None
    except (ValueError, RecursionError):
        found = None
    after = headers.get("Retry-After") or ""
    return WebAnswer(status=status, json=found, retry_after_s=int(after[:6]) if after.isdecimal() else None)
