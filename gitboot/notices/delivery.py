"""One notice sent to one receiver: as a signed webhook, or by apprise; nothing that is raised has a URL in it."""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from gitboot.errors import HostUnreachable, UsageError
from gitboot.http_client import HttpClient
from gitboot.jsonio import canonical
from gitboot.notices.notice import Level, Notice
from gitboot.notices.receivers import Receiver

_APPRISE_S: Final = 60.0  # for one notice: apprise asks a service several times, each with timeouts of its own

Send = Callable[[Notice, datetime], None]  # raises `HostUnreachable` where it did not arrive


def sender_of(receiver: Receiver, ca_bundle: Path | None) -> Send:
    """What sends to a receiver; raises `UsageError` where it cannot be used."""
    return _Webhook(receiver, ca_bundle) if receiver.secret is not None else _ByApprise(receiver)


class Rereading:
    """Sends each notice by what ``read`` returns of the receiver then: its URL and secret may be replaced.

    ``read`` raises `UsageError` if the file cannot be used.
    """

    def __init__(self, read: Callable[[], Receiver], ca_bundle: Path | None) -> None:
        self._read, self._ca_bundle = read, ca_bundle
        self._receiver = read()
        self._send = sender_of(self._receiver, ca_bundle)

    def __call__(self, notice: Notice, at: datetime) -> None:
        receiver = self._read()
        if receiver != self._receiver:
            self._receiver, self._send = receiver, sender_of(receiver, self._ca_bundle)
        self._send(notice, at)


def signature(secret: bytes, timestamp: str, body: bytes) -> str:
    """What a webhook is signed with: an HMAC over when it was sent, and what."""
    return "sha256=" + hmac.digest(secret, timestamp.encode() + b"." + body, "sha256").hex()


class _Webhook:
    def __init__(self, receiver: Receiver, ca_bundle: Path | None) -> None:
        self._receiver, self._client = receiver, HttpClient(ca_bundle=ca_bundle)

    def __call__(self, notice: Notice, at: datetime) -> None:
        body, timestamp = canonical(notice.facts()), str(int(at.timestamp()))
        headers = {
            "Content-Type": "application/json",
            "X-Gitboot-Delivery": notice.id,
            "X-Gitboot-Timestamp": timestamp,
            "X-Gitboot-Signature-256": signature(self._receiver.secret or b"", timestamp, body),
        }
        with self._client.stream("POST", self._receiver.url, headers=headers, body=body) as answer:
            if not 200 <= answer.status < 300:
                raise HostUnreachable(f"it answered {answer.status}")


class _ByApprise:
    """Sends in a thread that is left to itself at the deadline: apprise has a timeout only between two bytes."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._apprise: Any = None
        self._sending: threading.Thread | None = None  # the last one
        if find_spec("apprise") is None:
            raise UsageError(f"receivers.{receiver.name}: apprise is not installed: pip install 'gitboot[notify]'")

    def __call__(self, notice: Notice, at: datetime) -> None:  # noqa: ARG002 - as a webhook has it
        if self._sending is not None and self._sending.is_alive():
            raise HostUnreachable(f"apprise still sends a notice that it began more than {_APPRISE_S:.0f} s ago")
        done = Future[None]()
        self._sending = threading.Thread(target=self._send, args=(notice, done), name="apprise", daemon=True)
        self._sending.start()
        try:
            done.result(_APPRISE_S)
        except TimeoutError:
            raise HostUnreachable(f"apprise did not deliver it within {_APPRISE_S:.0f} s") from None

    def _send(self, notice: Notice, done: Future[None]) -> None:
        try:
            if self._apprise is None:
                self._apprise = _apprise(self._receiver)
            kind = "warning" if notice.level is Level.WARNING else "info"
            if not self._apprise.notify(title=notice.title, body=notice.text, notify_type=kind, body_format="text"):
                raise HostUnreachable("apprise could not deliver it")
        except BaseException as error:  # noqa: BLE001 - the caller raises the error
            done.set_exception(error)
        else:
            done.set_result(None)


def _apprise(receiver: Receiver) -> Any:
    import apprise

    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # it would tell of URLs
    found = apprise.Apprise()
    if not found.add(receiver.url):
        raise HostUnreachable("apprise does not know such a URL")
    return found
