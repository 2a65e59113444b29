"""A real S3 server, whose requests can be counted, refused, dropped, or cut off for good."""

from __future__ import annotations

import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import boto3
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import create_backend_app
from moto.s3.models import s3_backends
from werkzeug.serving import make_server

KEY: Final = {"aws_access_key_id": "AKIDTESTS", "aws_secret_access_key": "not-to-be-seen"}
_PAGE: Final = Path(__file__).parents[2] / "docs" / "mirrors.md"
_POLICY: Final = re.compile(r'^    (\{"Version".*)$', re.MULTILINE)
_WRITING: Final = ("PUT", "DELETE", "POST")


@cache
def _s3_application() -> Any:
    """Return moto's S3 application. moto's dispatcher lists all of its services at each request."""
    return create_backend_app("s3")


class Stored(NamedTuple):
    content: bytes
    content_type: str
    cache_control: str


class Store:
    """moto's server, over HTTP: it honours conditional requests. What is between it and its clients is up to tests.

    ``fails(number, method, path)`` says of each request that writes what becomes of it. ``None``: it passes;
    ``before``: it is dropped, and ``after``: it passes, and its answer is dropped; a number is the status that is
    answered in its place. ``cut``: it and all after it never get there. ``seen`` is called when a write has passed, and
    before the next one does.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        self._app = _s3_application()
        self._lock = threading.RLock()  # one write at a time; what is read past it is of no write in work
        self.reset()
        self._server = make_server(address, 0, self._answer, threaded=True)
        self.url = f"http://{address}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **KEY)

    def reset(self) -> None:
        """Let everything pass."""
        self.writes: list[str] = []
        self.log: list[str] = []  # of what was read, as S3 logs it
        self.fails: Callable[[int, str, str], str | int | None] = lambda *_: None
        self.seen: Callable[[], None] = lambda: None
        self.wrong: list[Exception] = []  # that ``seen`` has raised
        self.is_cut = False
        self.hides_absence = False  # whether a reader without credentials gets 403 for an absent object, as by AWS

    def __enter__(self) -> Store:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].reset()  # which all servers in this process have in common

    # As others see it, past what is between

    def make(self, bucket: str) -> None:
        self._client.create_bucket(Bucket=bucket)

    def let_anyone_read(self, bucket: str) -> None:
        actions = ["s3:GetObject", "s3:HeadObject"]  # which only moto knows
        said = {"Effect": "Allow", "Principal": "*", "Action": actions, "Resource": f"arn:aws:s3:::{bucket}/*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [said]})
        self._client.put_bucket_policy(Bucket=bucket, Policy=policy)

    def let_all_read(self, bucket: str, folder: str) -> None:
        """By the policy that docs/mirrors.md shows."""
        text = _POLICY.findall(_PAGE.read_text())[0].replace("BUCKET/PREFIX", f"{bucket}/{folder}".rstrip("/"))
        self._client.put_bucket_policy(Bucket=bucket, Policy=text)

    def put(self, bucket: str, path: str, content: bytes) -> None:
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, path, content)

    def get(self, bucket: str, path: str) -> Stored:
        with self._lock:
            found = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].get_object(bucket, path)
            assert found is not None, path
            headers = {name.lower(): value for name, value in found.metadata.items()}
            return Stored(found.value, headers.get("content-type", ""), headers.get("cache-control", ""))

    def paths(self, bucket: str, prefix: str = "") -> list[str]:
        with self._lock:
            keys = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets[bucket].keys
            return sorted(path for path in keys if path.startswith(prefix))

    def contents(self, bucket: str, prefix: str = "") -> dict[str, bytes]:
        """All of them, as they are between two writes."""
        with self._lock:
            return {path: self.get(bucket, path).content for path in self.paths(bucket, prefix)}

    # What is between

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if method not in _WRITING:
            return self._dropped(environ) if self.is_cut else self._read(environ, start)
        with self._lock:
            decided = self._decided(method, path)
            if decided == "before":
                return self._dropped(environ)
            if isinstance(decided, int):
                start(f"{decided} Refused", [("Content-Type", "application/xml")])
                return [b"<Error><Code>SlowDown</Code></Error>"]
            answered = list(self._app(environ, start))
            try:
                self.seen()
            except Exception as error:  # noqa: BLE001 - the server would only log it
                self.wrong.append(error)
        return self._dropped(environ) if decided == "after" else answered

    def _read(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        statuses: list[str] = []

        def started(status: str, headers: Any, *more: Any) -> Any:
            if self.hides_absence and status.startswith("404") and "HTTP_AUTHORIZATION" not in environ:
                status = "403 Forbidden"
            statuses.append(status[:3])
            return start(status, headers, *more)

        content = list(self._app(environ, started))
        method, path, client = (environ[name] for name in ("REQUEST_METHOD", "PATH_INFO", "REMOTE_ADDR"))
        bucket, _, key = path.lstrip("/").partition("/")
        size = sum(map(len, content)) or "-"
        request = f"{method} {'?'.join(filter(None, (path, environ['QUERY_STRING'])))} HTTP/1.1"
        agent = environ.get("HTTP_USER_AGENT") or "-"
        self.log.append(
            f"0a {bucket} [{datetime.now(UTC):%d/%b/%Y:%H:%M:%S +0000}] {client} - 3E57 REST.{method}.OBJECT "
            f'{quote(quote(key)) or "-"} "{request}" {statuses[0]} - {size} {size} 7 6 "-" "{agent}" - '
            "h= - - - boots.test - - -\n"
        )
        return content

    def _decided(self, method: str, path: str) -> str | int | None:
        self.writes.append(f"{method} {path}")
        decided = self.fails(len(self.writes), method, path) if not self.is_cut else None
        self.is_cut |= decided == "cut"
        return "before" if self.is_cut else decided

    def _dropped(self, environ: dict[str, Any]) -> Iterable[bytes]:
        with suppress(OSError):
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return []


@contextmanager
def s3_server(address: str = "127.0.0.1") -> Iterator[Store]:
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    with Store(address) as store:
        yield store
