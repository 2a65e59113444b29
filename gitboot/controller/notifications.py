"""Notifications: select the events that each receiver wants, and deliver them as notices."""

from __future__ import annotations

import hmac
import json
import logging
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from gitboot import files
from gitboot.background_threads import FIRST_RETRY_S, RetryingSender
from gitboot.controller.instance.settings import Settings
from gitboot.controller.instance.state_directory import LEDGER, NOTIFIED
from gitboot.errors import HostUnreachable, PublishError, UsageError
from gitboot.files import read_private
from gitboot.http_client import HttpClient
from gitboot.jsonio import encode_canonical, parse_json
from gitboot.ledger import instance_tables
from gitboot.publish.tree_reader import read_state
from gitboot.text import format_count, format_names, format_omitted, format_suggestion, one_line, printable

_CHECK_S: Final = 30.0  # interval between reads of the ledger if nothing wakes the thread
MAX_EVENTS: Final = 20  # maximum number of events listed in one notice
_MAX_READ: Final = 500  # maximum number of events per read
_MAX_MESSAGE: Final = 500  # maximum length of one message in the text of a notice
_APPRISE_S: Final = 60.0  # deadline per notice, because apprise may send several requests, each with its own timeout
_KEYS: Final = ("webhook", "webhook-file", "secret-file", "apprise", "apprise-file", "level", "sites", "fold-minutes")
_SHORTEST_SECRET: Final = 16  # characters


# Events and notices


class Level(IntEnum):
    """The severity of an event."""

    INFO = 1
    WARNING = 2  # an operator should look into the event

    @property
    def word(self) -> str:
        return self.name.lower()


class StoredEvent(Struct, frozen=True, kw_only=True):
    """An event as stored in the ledger."""

    sequence: int  # the event's number in the ledger
    at: str
    type: str
    message: str
    level: Level
    servers: tuple[str, ...]
    site: str | None  # the server's site; None: the event is not about a single server
    commit: str | None

    def facts(self) -> dict[str, Any]:
        return {
            "sequence": self.sequence,
            "at": self.at,
            "type": self.type,
            "message": self.message,
            "level": self.level.word,
            "servers": list(self.servers),
            "site": self.site,
            "commit": self.commit,
        }


class Notice(Struct, frozen=True, kw_only=True):
    """A notice about events of one type. The oldest event comes first."""

    ledger: str  # the identity of the instance's ledger
    type: str
    events: tuple[StoredEvent, ...]  # the first events, at most `MAX_EVENTS`
    number: int  # the number of events that the notice is about
    level: Level  # the highest level of the events

    @property
    def id(self) -> str:
        """An identifier by which a receiver can recognize a notice that arrives twice."""
        return f"{self.ledger}-{self.events[0].sequence}-{self.number}"

    def facts(self) -> dict[str, Any]:
        return {
            "apiVersion": "gitboot.dev/v1alpha1",
            "kind": "Notice",
            "id": self.id,
            "ledger": self.ledger,
            "type": self.type,
            "level": self.level.word,
            "number": self.number,
            "events": [each.facts() for each in self.events],
        }

    @property
    def title(self) -> str:
        """One line with the type of the events, the first servers and the number of events."""
        servers = sorted({server for event in self.events for server in event.servers})
        names = f": {format_names(servers, 3)}" if servers else ""
        times = f" ({format_count(self.number, 'time')})" if self.number > 1 else ""
        return printable(f"gitboot: {self.type}{names}{times}")

    @property
    def text(self) -> str:
        """One line for each event, and the number of events that have no line."""
        lines = []
        for event in self.events:
            message = one_line(event.message)
            if len(message) > _MAX_MESSAGE:
                message = f"{message[: _MAX_MESSAGE - 1]}…"
            lines.append(f"{event.at} {message}")
        return "\n".join(filter(None, (*lines, format_omitted(self.number - len(self.events)))))


# Receivers


@dataclass(frozen=True, kw_only=True, slots=True)
class Receiver:
    """A receiver of notices, and the selection of events that the receiver wants."""

    name: str
    url: str = field(repr=False)
    secret: bytes | None = field(repr=False)  # key for signing requests to a webhook; None: the URL is for apprise
    level: Level = Level.WARNING  # the lowest level of events that the receiver wants
    sites: frozenset[str] = frozenset()  # send only events about servers at these sites; empty: all events
    fold: timedelta = timedelta(minutes=10)  # events of one type within this time are combined in one notice

    def wants(self, event: StoredEvent) -> bool:
        """Return whether the receiver gets a notice about an event."""
        return event.level >= self.level and (not self.sites or event.site in self.sites)


def read_receivers(file: Path) -> tuple[Receiver, ...]:
    """Return the receivers that a file configures, sorted by name.

    Raises `UsageError` with a message that contains no URLs or secrets.
    """
    try:
        content = tomllib.loads(read_private(file).decode())
    except (ValueError, RecursionError):
        raise UsageError(f"{file} is not valid TOML") from None  # the parser's message may contain a secret
    named = content.pop("receivers", {})
    if content or not isinstance(named, dict) or not all(isinstance(each, dict) for each in named.values()):
        raise UsageError(f"{file}: expected only [receivers.NAME] tables")
    return tuple(_ReceiverTable(file, name, table).build_receiver() for name, table in sorted(named.items()))


def read_receiver(file: Path, name: str) -> Receiver:
    """Read one receiver from a file. Raises `UsageError`."""
    for receiver in read_receivers(file):
        if receiver.name == name:
            return receiver
    raise UsageError(
        f"{file}: the file no longer contains receivers.{name}; restart gitboot to stop sending to this receiver"
    )


class _ReceiverTable(Struct, frozen=True):
    """The table of one receiver in the file of receivers."""

    file: Path
    name: str
    values: Mapping[str, Any]

    def build_receiver(self) -> Receiver:
        """Return the receiver that the table describes. Raises `UsageError`."""
        for key in sorted(self.values.keys() - set(_KEYS)):
            allowed = f"allowed keys: {', '.join(_KEYS)}"
            raise self._make_error(f"unknown key {key!r}; {format_suggestion(key, _KEYS, allowed)}")
        webhook, apprise = self._read_text("webhook"), self._read_text("apprise")
        if (webhook is None) == (apprise is None):
            raise self._make_error("expected exactly one of `webhook`, `webhook-file`, `apprise` or `apprise-file`")
        if apprise is not None and "secret-file" in self.values:
            raise self._make_error("`secret-file` is only for webhooks; an apprise URL contains its own secrets")
        secret = self._read_secret(webhook) if webhook is not None else None
        level = self.values.get("level", Level.WARNING.word)
        levels = {each.word: each for each in Level}
        if not isinstance(level, str) or level not in levels:
            raise self._make_error(f"level: expected {' or '.join(levels)}")
        sites = self.values.get("sites", [])
        if not isinstance(sites, list) or not all(isinstance(each, str) for each in sites):
            raise self._make_error("sites: expected a list of names")
        minutes = self.values.get("fold-minutes", 10)
        if isinstance(minutes, bool) or not isinstance(minutes, int | float) or not 0 <= minutes <= 1440:
            raise self._make_error("fold-minutes: expected a number from 0 to 1440")
        return Receiver(
            name=self.name,
            url=webhook or apprise or "",
            secret=secret,
            level=levels[level],
            sites=frozenset(sites),
            fold=timedelta(minutes=minutes),
        )

    def _read_text(self, key: str) -> str | None:
        """Return the value of a key in the table.

        If the table contains KEY-file instead, return the content of that file.
        """
        value, file_name = self.values.get(key), self.values.get(f"{key}-file")
        if value is not None and file_name is not None:
            raise self._make_error(f"expected {key} or {key}-file, not both")
        if file_name is not None:
            value = self._read_file(f"{key}-file").decode(errors="replace").strip()
        if value is not None and (not isinstance(value, str) or not value or not value.isprintable()):
            raise self._make_error(f"{key}: expected a URL on one line")
        return value

    def _read_file(self, key: str) -> bytes:
        name = self.values[key]
        if not isinstance(name, str) or "\0" in name:
            raise self._make_error(f"{key}: expected a file name")
        return read_private(self.file.parent / name)

    def _read_secret(self, url: str) -> bytes:
        """Return the secret of a webhook.

        First check that the secret is private and long enough, and that the URL is safe.
        """
        if "secret-file" not in self.values:
            raise self._make_error("a webhook requires `secret-file`, a file with the secret that signs the requests")
        secret = self._read_file("secret-file").strip()
        if len(secret) < _SHORTEST_SECRET:
            raise self._make_error(f"secret-file: expected at least {_SHORTEST_SECRET} characters")
        if not _is_safe_webhook(url):
            raise self._make_error(
                "webhook: expected an https URL without a user name (http is allowed only for localhost)"
            )
        return secret

    def _make_error(self, problem: str) -> UsageError:
        return UsageError(f"{self.file}: receivers.{self.name}: {problem}")


def _is_safe_webhook(url: str) -> bool:
    """Return whether a URL has no credentials, and either uses TLS or stays on this host."""
    try:
        parts = urlsplit(url)
        is_local = parts.hostname in ("127.0.0.1", "::1", "localhost")
        has_credentials = parts.username is not None or parts.password is not None
    except ValueError:
        return False
    is_private = parts.scheme == "https" or (parts.scheme == "http" and is_local)
    return is_private and bool(parts.hostname) and not has_credentials


# Senders


Send = Callable[[Notice, datetime], None]  # raises `HostUnreachable` if the notice was not delivered


def build_sender(receiver: Receiver, ca_bundle: Path | None) -> Send:
    """Return a function that sends notices to a receiver.

    Raises `UsageError` if the receiver's settings are unusable.
    """
    return _WebhookSender(receiver, ca_bundle) if receiver.secret is not None else _AppriseSender(receiver)


class RereadingSender:
    """A sender that reads the receiver's file before each notice, because the file may change.

    The file contains a URL and a secret.

    ``read`` raises `UsageError` if the file is unusable.
    """

    def __init__(self, read: Callable[[], Receiver], ca_bundle: Path | None) -> None:
        self._read, self._ca_bundle = read, ca_bundle
        self._receiver = read()
        self._send = build_sender(self._receiver, ca_bundle)

    def __call__(self, notice: Notice, at: datetime) -> None:
        receiver = self._read()
        if receiver != self._receiver:
            self._receiver, self._send = receiver, build_sender(receiver, self._ca_bundle)
        self._send(notice, at)


class _WebhookSender:
    """A sender that posts signed notices to a URL."""

    def __init__(self, receiver: Receiver, ca_bundle: Path | None) -> None:
        self._receiver, self._client = receiver, HttpClient(ca_bundle=ca_bundle)

    def __call__(self, notice: Notice, at: datetime) -> None:
        body, timestamp = encode_canonical(notice.facts()), str(int(at.timestamp()))
        signature = hmac.digest(self._receiver.secret or b"", timestamp.encode() + b"." + body, "sha256").hex()
        with self._client.stream(
            "POST",
            self._receiver.url,
            headers={
                "Content-Type": "application/json",
                "X-Gitboot-Delivery": notice.id,
                "X-Gitboot-Timestamp": timestamp,
                "X-Gitboot-Signature-256": f"sha256={signature}",
            },
            body=body,
        ) as answer:
            if not 200 <= answer.status < 300:
                raise HostUnreachable(f"the webhook returned HTTP status {answer.status}")


class _AppriseSender:
    """A sender that calls apprise in a thread.

    The thread is abandoned at a deadline, because apprise has no overall timeout.
    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._apprise: Any = None
        self._sending: threading.Thread | None = None  # the thread that sends the last notice
        if find_spec("apprise") is None:
            raise UsageError(f"receivers.{receiver.name}: apprise is missing; run `pip install 'gitboot[notify]'`")

    def __call__(self, notice: Notice, at: datetime) -> None:  # noqa: ARG002 - same signature as a webhook
        if self._sending is not None and self._sending.is_alive():
            raise HostUnreachable(f"apprise has been sending the previous notice for more than {_APPRISE_S:.0f} s")
        done = Future[None]()
        self._sending = threading.Thread(target=self._send, args=(notice, done), name="apprise", daemon=True)
        self._sending.start()
        try:
            done.result(_APPRISE_S)
        except TimeoutError:
            raise HostUnreachable(f"apprise did not deliver the notice within {_APPRISE_S:.0f} s") from None

    def _send(self, notice: Notice, done: Future[None]) -> None:
        try:
            if self._apprise is None:
                import apprise

                # Do not pass on apprise's messages: they contain URLs, which may contain secrets.
                logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)
                client = apprise.Apprise()
                if not client.add(self._receiver.url):
                    raise HostUnreachable("apprise does not support this kind of URL")
                self._apprise = client
            level = "warning" if notice.level is Level.WARNING else "info"
            if not self._apprise.notify(title=notice.title, body=notice.text, notify_type=level, body_format="text"):
                raise HostUnreachable("apprise could not deliver the notice")
        except BaseException as error:  # noqa: BLE001 - the waiting caller raises the error
            done.set_exception(error)
        else:
            done.set_result(None)


# Delivery in ledger order


class DeliveryPositions:
    """The last event delivered to each receiver, stored in a file that is updated after each delivery.

    A new receiver starts after the newest event in the ledger. If the stored position of a receiver is beyond the
    newest event, the ledger is an older copy, and the receiver starts there too.
    """

    def __init__(self, file: Path, ledger: str, last: int) -> None:
        self._file = file
        self._ledger = ledger
        self._last = last  # number of the newest event in the ledger at the start
        self._lock = threading.Lock()
        self._positions: dict[str, int] = {}
        with suppress(OSError, ValueError, AttributeError):
            known = parse_json(file.read_bytes())
            self._positions = dict(known["places"]) if known.get("ledger") == ledger else {}

    def get_position(self, receiver: str) -> int:
        """Return the number of the last event that was delivered to the receiver or that the receiver excludes."""
        with self._lock:
            position = self._positions.get(receiver)
            return position if isinstance(position, int) and 0 <= position <= self._last else self._last

    def store_position(self, receiver: str, position: int) -> None:
        """Store the number of the last event that was delivered to the receiver. Errors are ignored."""
        with self._lock:
            if self._positions.get(receiver) == position:
                return
            self._positions[receiver] = position
            content = {"ledger": self._ledger, "places": dict(sorted(self._positions.items()))}
            with suppress(OSError):  # the event is then delivered again after a restart
                files.write_atomically(self._file, json.dumps(content).encode() + b"\n")


class _PendingNotice(Struct):
    """The events of one type that are to be sent in the next notice."""

    due: float  # when to send the notice, in monotonic time
    first: int  # number of the first event in the ledger
    shown: list[StoredEvent] = msgspec.field(default_factory=list)  # the first events
    number: int = 0  # number of events, including those that are not shown

    def add(self, event: StoredEvent) -> None:
        self.number += 1
        if len(self.shown) < MAX_EVENTS:
            self.shown.append(event)

    def build_notice(self, ledger: str) -> Notice:
        return Notice(
            ledger=ledger,
            type=self.shown[0].type,
            events=tuple(self.shown),
            number=self.number,
            level=max(each.level for each in self.shown),
        )


class Messenger(RetryingSender):
    """A thread that sends events to one receiver, in ledger order, and retries until they are delivered.

    The first event of a type is sent immediately. Further events of that type within `Receiver.fold` are combined in
    one notice.
    """

    def __init__(
        self,
        receiver: Receiver,
        send: Send,
        positions: DeliveryPositions,
        *,
        ledger: str,
        read: Callable[[int], list[StoredEvent]],
        clock: Callable[[], datetime],
        wake: Callable[[], None],
    ) -> None:
        super().__init__(f"notify-{receiver.name}", wake, label=f"{receiver.name}: ", first_retry_s=FIRST_RETRY_S)
        self._receiver = receiver
        self._send = send
        self._positions = positions
        self._ledger = ledger
        self._read = read
        self._clock = clock
        self._position = positions.get_position(receiver.name)  # number of the last event that was read
        self._pending: dict[str, _PendingNotice] = {}
        self._quiet_until: dict[str, float] = {}  # in monotonic time, by event type
        self._has_new_events, self._idle = True, False

    @property
    def is_done(self) -> bool:
        return self._idle

    def check_events(self) -> None:
        """Read the new events in the ledger soon."""
        with self.changed:
            self._has_new_events, self._idle = True, False
            self.changed.notify_all()

    def send_next(self) -> None:
        """Wait for new events or a due notice, and send the due notices. Raises `HostUnreachable`."""
        due = min((each.due for each in self._pending.values()), default=float("inf"))
        with self.changed:
            if self.failure is None:
                self._idle = not self._has_new_events
                self.changed.notify_all()
                self.changed.wait_for(
                    lambda: self._has_new_events or self.is_ending, min(max(due - time.monotonic(), 0), _CHECK_S)
                )
            self._has_new_events = False
        if self.is_ending:
            return
        self._read_events()
        self._store_position()
        for type, pending in sorted(self._pending.items(), key=lambda each: each[1].first):
            if pending.due <= time.monotonic():
                self._send(pending.build_notice(self._ledger), self._clock())
                del self._pending[type]
                self._quiet_until[type] = time.monotonic() + self._receiver.fold.total_seconds()
                self._store_position()

    def _read_events(self) -> None:
        """Read all new events, and add those that the receiver wants to the pending notices."""
        while events := self._read(self._position):
            for event in events:
                self._position = event.sequence
                if not self._receiver.wants(event):
                    continue
                if event.type not in self._pending:
                    due = max(self._quiet_until.get(event.type, 0), time.monotonic())
                    self._pending[event.type] = _PendingNotice(due, event.sequence)
                self._pending[event.type].add(event)

    def _store_position(self) -> None:
        """Store the position at which a restart continues: just before the first undelivered event."""
        waiting = min((each.first for each in self._pending.values()), default=self._position + 1)
        self._positions.store_position(self._receiver.name, waiting - 1)


class Notices:
    """A sender of notices to the receivers of an instance. A slow receiver does not delay the instance."""

    def __init__(self, messengers: Sequence[Messenger]) -> None:
        self._messengers = messengers

    def check_events(self) -> None:
        """Read the new events in the ledger soon, for all receivers."""
        for messenger in self._messengers:
            messenger.check_events()

    @property
    def failure(self) -> tuple[str, str] | None:
        """The reason of the first failure and the messages of all failures, or None."""
        failures = [messenger.failure for messenger in self._messengers if messenger.failure is not None]
        if not failures:
            return None
        first_reason, _ = failures[0]
        return first_reason, "; ".join(message for _, message in failures)

    def close(self, *, timeout_s: float) -> None:
        """End the threads after waiting at most ``timeout_s`` seconds for the last notices to be sent."""
        until = time.monotonic() + timeout_s
        for messenger in self._messengers:
            messenger.check_events()
            messenger.close(timeout_s=max(until - time.monotonic(), 0))


@contextmanager
def send_notices(
    settings: Settings,
    ledger: str,
    clock: Callable[[], datetime],
    wake: Callable[[], None],
    *,
    timeout_s: float = 0,
) -> Iterator[Notices | None]:
    """Yield the sender of notices, or None if no receiver is configured.

    At the end of the block, wait at most ``timeout_s`` seconds for the last notices to be sent.
    """
    if settings.notify is None:
        yield None
        return
    file = settings.state / LEDGER
    positions = DeliveryPositions(settings.state / NOTIFIED, ledger, instance_tables.read_last_event_number(file))
    read = partial(_read_events, file, settings.output)
    messengers = []
    for receiver in read_receivers(settings.notify):
        send = RereadingSender(partial(read_receiver, settings.notify, receiver.name), settings.git.ca_bundle)
        messengers.append(Messenger(receiver, send, positions, ledger=ledger, read=read, clock=clock, wake=wake))
    for messenger in messengers:
        messenger.start()
    notices = Notices(messengers)
    try:
        yield notices
    finally:
        notices.close(timeout_s=timeout_s)


def _read_events(ledger: Path, output: Path, position: int) -> list[StoredEvent]:
    """Read the events after a position, at most `_MAX_READ`. OUTPUT names the sites of servers."""
    events = []
    for sequence, event in instance_tables.read_events_after(ledger, position, _MAX_READ):
        server, commit = event.get("server"), event.get("commit")
        servers = event.get("servers")
        site = None
        with suppress(PublishError, OSError):
            state = read_state(output, server) if isinstance(server, str) else None
            site = state.summary.get("site") if state is not None else None
        named = [server] if servers is None else servers
        events.append(
            StoredEvent(
                sequence=sequence,
                at=event["at"],
                type=event["type"],
                message=event["message"],
                level=Level.WARNING if event.get("level") == "warning" else Level.INFO,
                servers=tuple(name for name in named if isinstance(name, str)),
                site=site if isinstance(site, str) else None,
                commit=commit if isinstance(commit, str) else None,
            )
        )
    return events
