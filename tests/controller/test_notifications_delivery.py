"""A notice sent: by a signed webhook, and by apprise to a real mail server."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from socket import socket
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import Envelope

from gitboot.controller import notifications
from gitboot.controller.notifications import Level, NotedEvent, Notice, Receiver, read_receivers, sender_of
from gitboot.errors import HostUnreachable
from tests.helpers import endpoints
from tests.helpers.fleets import at
from tests.helpers.http_peers import StrangeClient, hook, notify_file, strange_server
from tests.helpers.running_instance import eventually

NOON = at("20T12:00")
EVENT = NotedEvent(
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


def test_a_webhook_is_signed_and_says_all_of_it(tmp_path: Path) -> None:
    with hook() as taken:
        sender_of(receiver(tmp_path, f'webhook = "{taken.url}"'), None)(NOTICE, NOON)
        sender_of(receiver(tmp_path, f'webhook = "{taken.url}"'), None)(NOTICE, NOON)
    (got, again) = taken.got
    assert endpoints.openapi_problems("NoticeItem", got) == []
    assert got == again == NOTICE.facts()
    assert (got["kind"], got["number"], got["events"][0]["servers"]) == ("Notice", 31, ["web01", "web02"])
    assert taken.deliveries == ["abc-7-31"] * 2


@pytest.mark.parametrize("status", [301, 401, 404, 500])
def test_what_is_not_taken_is_an_error_without_the_url(tmp_path: Path, status: int) -> None:
    with hook() as taken:
        taken.status = status
        with pytest.raises(HostUnreachable, match=f"answered {status}") as raised:
            sender_of(receiver(tmp_path, f'webhook = "{taken.url}"'), None)(NOTICE, NOON)
    assert "very-secret" not in str(raised.value)
    with pytest.raises(HostUnreachable) as raised:
        sender_of(receiver(tmp_path, f'webhook = "{taken.url}"'), None)(NOTICE, NOON)
    assert "very-secret" not in str(raised.value)


class Mail:
    def __init__(self) -> None:
        self.got: list[str] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Envelope) -> str:  # noqa: N802
        self.got.append((envelope.original_content or b"").decode())
        return "250 Message accepted for delivery"


@pytest.fixture
def mail() -> Iterator[tuple[Mail, int]]:
    taken = Mail()
    with socket() as free:  # a Controller cannot be told to take one
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    controller = Controller(taken, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield taken, port
    finally:
        controller.stop()


def test_apprise_sends_mail(tmp_path: Path, mail: tuple[Mail, int]) -> None:
    taken, port = mail
    url = f"mailto://127.0.0.1:{port}?from=gitboot@boot.test&to=ops@boot.test&mode=insecure"
    sender_of(receiver(tmp_path, f'apprise = "{url}"'), None)(NOTICE, NOON)
    (text,) = taken.got
    assert "Subject: gitboot: Held: web01, web02 (31 times)" in text
    assert "To: ops@boot.test" in text and "maxReinstalls: 3 servers, more than 0" in text and "30 more" in text


def test_apprise_that_cannot_says_nothing_of_its_url(
    tmp_path: Path, mail: tuple[Mail, int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for url in ("mailto://u:very-secret@127.0.0.1:1?mode=insecure&from=a@b.test&to=c@d.test", "nope://very-secret"):
        with pytest.raises(HostUnreachable) as raised:
            sender_of(receiver(tmp_path, f'apprise = "{url}"'), None)(NOTICE, NOON)
        assert "very-secret" not in str(raised.value)
    assert "very-secret" not in caplog.text


def test_apprise_that_drips_ends_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notifications, "_APPRISE_S", 0.3)

    def answer(client: StrangeClient) -> None:
        client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
        client.drip(b"a")

    with strange_server(answer) as server:
        send = sender_of(receiver(tmp_path, f'apprise = "json://127.0.0.1:{server.port}"'), None)
        for said in ("did not deliver it within", "still sends a notice"):
            with pytest.raises(HostUnreachable, match=said):
                send(NOTICE, NOON)
        eventually(lambda: server.requests)
    assert len(server.requests) == 1


def test_what_is_shown_has_an_end() -> None:
    long = replace(NOTICE, events=(replace(EVENT, message="x" * 5000),) * 20)
    assert len(long.text) < 12_000 and long.text.endswith("11 more")
