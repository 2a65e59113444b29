"""Notifications: their receivers, their delivery, and the settings of a receiver."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope
from msgspec import structs

from gitboot.controller import notifications
from gitboot.controller.instance.settings import GitSettings, Settings
from gitboot.controller.instance.state_directory import LEDGER, NOTIFIED
from gitboot.controller.notifications import (
    Level,
    Notice,
    Notices,
    Receiver,
    StoredEvent,
    build_sender,
    read_receivers,
    send_notices,
)
from gitboot.errors import HostUnreachable, UsageError
from gitboot.ledger import instance_tables
from gitboot.ledger.open_ledger import open_ledger
from gitboot.ledger.store import Store
from gitboot.status.conditions import Event
from tests.helpers import endpoints
from tests.helpers.cases import for_each
from tests.helpers.fleets import SEED, at, fleet, server, write_configuration
from tests.helpers.git_repositories import free_port
from tests.helpers.http_peers import Hook, StrangeClient, hook, notify_file, strange_server, write_private
from tests.helpers.instance_with_bmcs import run_command
from tests.helpers.running_instance import Repository, eventually, running

NOON = at("20T12:00")


@dataclass
class EventLedger:
    """A ledger that is written to, and the instance's settings beside it."""

    folder: Path
    store: Store

    def record_event(self, *noted: Event) -> None:
        with self.store.writing() as tx:
            instance_tables.write_events(tx, noted)

    @contextmanager
    def run_notices(self, *, timeout_s: float = 60) -> Iterator[Notices]:
        settings = Settings(
            output=self.folder / "output",
            state=self.folder,
            git=GitSettings(repository="nowhere"),
            notify=self.folder / "notify.toml",
        )
        identity = self.store.progress[0]
        with send_notices(settings, identity, lambda: datetime.now(UTC), lambda: None, timeout_s=timeout_s) as notices:
            assert notices is not None
            yield notices


@pytest.fixture
def event_ledger(tmp_path: Path) -> Iterator[EventLedger]:
    with closing(open_ledger(tmp_path / LEDGER)) as store:
        yield EventLedger(tmp_path, store)


def event(type: str = "Held", message: str = "m", *, warning: bool = True, **facts: Any) -> Event:
    return Event(at=NOON, type=type, message=message, facts=facts, warning=warning)


def list_messages(taken: Hook) -> list[list[str]]:
    return [[each["message"] for each in notice["events"]] for notice in taken.received]


def test_each_receiver_gets_the_events_that_it_wants(event_ledger: EventLedger) -> None:
    (event_ledger.folder / "git").mkdir()
    sites = "sites: [{name: fra1, select: {servers: [web01]}, baseURL: 'http://fra1.test'}]"
    documents = (fleet(f"baseURL: 'http://boot.test', {sites}"), *SEED[1:], server("web02", "role: web"))
    (event_ledger.folder / "git" / "fleet.yaml").write_text("---\n".join(documents))
    assert run_command("render", event_ledger.folder / "git", "--out", event_ledger.folder / "output").code == 0
    with hook() as every, hook() as warned, hook() as fra1:
        notify_file(
            event_ledger.folder,
            every=f'webhook = "{every.url}"\nlevel = "info"',
            warned=f'webhook = "{warned.url}"',
            fra1=f'webhook = "{fra1.url}"\nsites = ["fra1"]',
        )
        event_ledger.record_event(event("Before", "nobody is told what was before"))
        with event_ledger.run_notices() as notices:
            event_ledger.record_event(event("Fetched", "quiet", warning=False), event("Held", "loud"))
            event_ledger.record_event(
                event("OverrideFailed", "here", server="web01"), event("Failed", "there", server="web02")
            )
            notices.check_events()
        assert list_messages(every) == [["quiet"], ["loud"], ["here"], ["there"]]
        assert list_messages(warned) == [["loud"], ["here"], ["there"]]
        assert list_messages(fra1) == [["here"]]
        assert fra1.received[0]["events"][0]["site"] == "fra1"


def test_repeated_events_are_sent_as_one_message(event_ledger: EventLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_s = [0.0]
    moved = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s[0])
    monkeypatch.setattr("gitboot.controller.notifications.time", moved)
    with hook() as taken:
        notify_file(event_ledger.folder, one=f'webhook = "{taken.url}"\nfold-minutes = 60')
        with event_ledger.run_notices() as notices:
            event_ledger.record_event(event(message="first"))
            notices.check_events()
            eventually(lambda: taken.received)
            event_ledger.record_event(
                *(event(message=f"again {number}") for number in range(40)), event("Other", "at once")
            )
            notices.check_events()
            eventually(lambda: len(taken.received) == 2)
            ahead_s[0] = 3601
            notices.check_events()
            eventually(lambda: len(taken.received) == 3)
        assert [(each["type"], each["number"], len(each["events"])) for each in taken.received] == [
            *(("Held", 1, 1), ("Other", 1, 1), ("Held", 40, 20)),
        ]


def test_an_undelivered_message_is_sent_again_after_a_restart(event_ledger: EventLedger) -> None:
    with hook() as taken:
        notify_file(event_ledger.folder, one=f'webhook = "{taken.url}"')
        taken.status = 500
        with event_ledger.run_notices(timeout_s=0.2) as notices:
            event_ledger.record_event(event(message="lost at first"))
            notices.check_events()
            assert eventually(lambda: notices.failure) == (
                "HostUnreachable",
                "one: the webhook returned HTTP status 500",
            )
        assert (taken.received, taken.attempts >= 1) == ([], True)
        taken.status = 204
        with event_ledger.run_notices():
            pass
        assert list_messages(taken) == [["lost at first"]]
        with event_ledger.run_notices():
            pass
        assert list_messages(taken) == [["lost at first"]]  # once it has arrived, no more


def test_events_that_wait_to_be_combined_survive_a_restart(event_ledger: EventLedger) -> None:
    with hook() as taken:
        notify_file(event_ledger.folder, one=f'webhook = "{taken.url}"\nfold-minutes = 60')
        with event_ledger.run_notices() as notices:
            event_ledger.record_event(event(message="told"))
            notices.check_events()
            eventually(lambda: taken.received)
            event_ledger.record_event(event(message="folded"))
        assert list_messages(taken) == [["told"]]
        with event_ledger.run_notices():
            pass
        assert list_messages(taken) == [["told"], ["folded"]]


@pytest.mark.parametrize("place", [{"ledger": "another", "places": {"one": 0}}, {"places": {"one": 99}}, "{"])
def test_messages_start_at_the_end_of_the_ledger_if_the_stored_position_is_not_of_this_ledger(
    event_ledger: EventLedger, place: Any
) -> None:
    known = {"ledger": event_ledger.store.progress[0], **place} if isinstance(place, dict) else None
    (event_ledger.folder / NOTIFIED).write_text(json.dumps(known) if known else str(place))
    event_ledger.record_event(event(message="old"))
    with hook() as taken:
        notify_file(event_ledger.folder, one=f'webhook = "{taken.url}"')
        with event_ledger.run_notices() as notices:
            event_ledger.record_event(event(message="new"))
            notices.check_events()
        assert list_messages(taken) == [["new"]]


def test_a_receiver_that_hangs_delays_nothing_else(tmp_path: Path) -> None:
    """It delays neither other receivers, nor responses to machines, nor the end."""
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "---\n".join(SEED)})
    with hook() as dead, hook() as alive:
        dead.hangs = True
        file = notify_file(
            tmp_path, dead=f'webhook = "{dead.url}"\nlevel = "info"', alive=f'webhook = "{alive.url}"\nlevel = "info"'
        )
        options = (
            "--poll",
            "3600",
            "--check-assets",
            "off",
            "--notify",
            str(file),
            *write_configuration(max_small_group=9),
        )
        with running(repository.bare, tmp_path, *options, records="fresh") as instance:
            eventually(lambda: dead.attempts)
            commit = repository.push({"two.yaml": server("web02", "role: web")})
            eventually(lambda: instance.status()["applied"]["commit"] == commit)
            eventually(lambda: any(each["type"] == "Accepted" for each in alive.received))
        assert dead.received == []
        assert "very-secret" not in json.dumps(instance.events)


# A notice sent: by a signed webhook, and by apprise to a real mail server


EVENT = StoredEvent(
    sequence=7,
    at="2026-11-20T12:00:00Z",
    type="Held",
    message="maxReinstalls: 3 servers,\nmore than 0",
    level=Level.WARNING,
    servers=("web01", "web02"),
    site=None,
    commit="c" * 40,
)
NOTICE = Notice(ledger="abc", type="Held", events=(EVENT,), number=31, level=Level.WARNING)


def receiver(folder: Path, said: str) -> Receiver:
    (found,) = read_receivers(notify_file(folder, one=said))
    return found


def test_a_webhook_is_signed_and_has_the_whole_message(tmp_path: Path) -> None:
    with hook() as taken:
        build_sender(receiver(tmp_path, f'webhook = "{taken.url}"'), None)(NOTICE, NOON)
        build_sender(receiver(tmp_path, f'webhook = "{taken.url}"'), None)(NOTICE, NOON)
    (received, again) = taken.received
    assert endpoints.find_openapi_problems("NoticeItem", received) == []
    assert received == again == NOTICE.facts()
    assert (received["kind"], received["number"], received["events"][0]["servers"]) == (
        "Notice",
        31,
        ["web01", "web02"],
    )
    assert taken.deliveries == ["abc-7-31"] * 2


def test_a_message_that_is_not_accepted_is_an_error_without_the_url(tmp_path: Path) -> None:
    with hook() as taken:
        send = build_sender(receiver(tmp_path, f'webhook = "{taken.url}"'), None)
        for taken.status in (301, 401, 404, 500):
            with pytest.raises(HostUnreachable, match=f"returned HTTP status {taken.status}") as raised:
                send(NOTICE, NOON)
            assert "very-secret" not in str(raised.value)
    with pytest.raises(HostUnreachable) as raised:
        send(NOTICE, NOON)
    assert "very-secret" not in str(raised.value)


class Mail:
    def __init__(self) -> None:
        self.received: list[str] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:  # noqa: N802
        self.received.append((envelope.original_content or b"").decode())
        return "250 Message accepted for delivery"


@pytest.fixture
def mail() -> Iterator[tuple[Mail, int]]:
    taken = Mail()
    port = free_port()
    controller = Controller(taken, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield taken, port
    finally:
        controller.stop()


def test_apprise_sends_mail(tmp_path: Path, mail: tuple[Mail, int]) -> None:
    taken, port = mail
    url = f"mailto://127.0.0.1:{port}?from=gitboot@boot.test&to=ops@boot.test&mode=insecure"
    build_sender(receiver(tmp_path, f'apprise = "{url}"'), None)(NOTICE, NOON)
    (text,) = taken.received
    assert "Subject: gitboot: Held: web01, web02 (31 times)" in text
    assert "To: ops@boot.test" in text and "maxReinstalls: 3 servers, more than 0" in text and "30 more" in text


def test_an_error_of_apprise_does_not_show_its_url(
    tmp_path: Path, mail: tuple[Mail, int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for url in ("mailto://u:very-secret@127.0.0.1:1?mode=insecure&from=a@b.test&to=c@d.test", "nope://very-secret"):
        with pytest.raises(HostUnreachable) as raised:
            build_sender(receiver(tmp_path, f'apprise = "{url}"'), None)(NOTICE, NOON)
        assert "very-secret" not in str(raised.value)
    assert "very-secret" not in caplog.text


def test_a_slow_apprise_receiver_ends_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "_APPRISE_S", 0.3)

    def answer(client: StrangeClient) -> None:
        client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        client.drip(b"a")

    with strange_server(answer) as server:
        send = build_sender(receiver(tmp_path, f'apprise = "json://127.0.0.1:{server.port}"'), None)
        for said in ("did not deliver the notice within", "has been sending the previous notice"):
            with pytest.raises(HostUnreachable, match=said):
                send(NOTICE, NOON)
        eventually(lambda: server.requests)
    assert len(server.requests) == 1


def test_a_long_message_is_cut() -> None:
    long = structs.replace(NOTICE, events=(structs.replace(EVENT, message="x" * 5000),) * 20)
    assert len(long.text) < 12_000 and long.text.endswith("11 more")


# The file of receivers: its settings, and that no error contains its secrets


URL = "https://hooks.test/very-secret"


def test_the_receivers_file_names_receivers_and_their_events(tmp_path: Path) -> None:
    write_private(tmp_path / "slack.url", "slack://very/secret\n")
    file = notify_file(
        tmp_path,
        oncall=f'webhook = "{URL}"\nlevel = "info"\nsites = ["fra1"]\nfold-minutes = 0.5',
        chat='apprise-file = "slack.url"',
    )
    chat, oncall = read_receivers(file)
    assert (chat.name, chat.url, chat.secret, chat.level) == ("chat", "slack://very/secret", None, Level.WARNING)
    assert (oncall.url, oncall.level, oncall.sites) == (URL, Level.INFO, frozenset({"fra1"}))
    assert (oncall.fold, chat.fold) == (timedelta(seconds=30), timedelta(minutes=10))
    assert "secret" not in repr(chat).replace("secret=", "") and "correct" not in repr(oncall)


@for_each(
    ("said", "error"),
    [
        (f'webhok = "{URL}"', "did you mean webhook"),
        ("level = 'info'", "expected exactly one of `webhook`"),
        (f'webhook = "{URL}"\napprise = "x://y"', "expected exactly one of `webhook`"),
        (f'webhook = "{URL}"\nwebhook-file = "hook.secret"', "expected webhook or webhook-file, not both"),
        ('webhook = "http://hooks.test/very-secret"', "expected an https URL"),
        ('webhook = "https://user:very-secret@hooks.test/"', "expected an https URL"),
        ('webhook = "https://[very-secret"', "expected an https URL"),
        ("webhook = 7", "webhook: expected a URL"),
        (f'webhook = "{URL}"\nlevel = "loud"', "level: expected info or warning"),
        (f'webhook = "{URL}"\nsites = "fra1"', "sites: expected a list"),
        (f'webhook = "{URL}"\nfold-minutes = true', "fold-minutes: expected a number"),
        ('webhook-file = "nowhere"', "nowhere cannot be read"),
        (r'webhook-file = "\u0000"', "webhook-file: expected a file name"),
        ('apprise = "slack://very-secret"\nsecret-file = "hook.secret"', "`secret-file` is only for webhooks"),
        ('webhook = "very-secret', "is not valid TOML"),
        (f"fold-minutes = {'9' * 5000}", "is not valid TOML"),
        (f"sites = {'[' * 5000}{']' * 5000}", "is not valid TOML"),
    ],
)
def test_an_error_in_the_receivers_file_is_shown_without_a_secret(tmp_path: Path, said: str, error: str) -> None:
    with pytest.raises(UsageError, match=error) as raised:
        read_receivers(notify_file(tmp_path, oncall=said))
    assert "very-secret" not in str(raised.value) and raised.value.__cause__ is None


def test_files_with_secrets_must_not_be_readable_by_others_or_guessable(tmp_path: Path) -> None:
    file = notify_file(tmp_path, oncall=f'webhook = "{URL}"')
    for name in ("notify.toml", "hook.secret"):
        (tmp_path / name).chmod(0o644)
        with pytest.raises(UsageError, match=f"chmod 600 {tmp_path / name}"):
            read_receivers(file)
        (tmp_path / name).chmod(0o600)
    write_private(tmp_path / "hook.secret", "short")
    with pytest.raises(UsageError, match="16 characters"):
        read_receivers(file)
    write_private(file, f'[receivers.oncall]\nwebhook = "{URL}"')
    with pytest.raises(UsageError, match="requires `secret-file`"):
        read_receivers(file)
