"""Receivers are told what the ledger notes: in its order, folded, again after a restart, and holding nobody up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gitboot.controller.instance.settings import GitSettings, Settings
from gitboot.controller.instance.state_directory import LEDGER, NOTIFIED
from gitboot.controller.notifications import Notices, notifying
from gitboot.ledger import instance_tables
from gitboot.ledger.open_ledger import open_ledger
from gitboot.ledger.store import Store
from gitboot.status.conditions import Event
from tests.helpers.fleets import SEED, at, configured, fleet, server
from tests.helpers.http_peers import Hook, hook, notify_file
from tests.helpers.instance_with_bmcs import typed
from tests.helpers.running_instance import Repository, eventually, running

NOON = at("20T12:00")


@dataclass
class Book:
    """A ledger that is written to, and the instance's settings beside it."""

    folder: Path
    store: Store

    def note(self, *noted: Event) -> None:
        with self.store.writing() as tx:
            instance_tables.write(tx, noted)

    @contextmanager
    def told(self, *, patience_s: float = 60) -> Iterator[Notices]:
        settings = Settings(
            output=self.folder / "output",
            state=self.folder,
            git=GitSettings(repository="nowhere"),
            notify=self.folder / "notify.toml",
        )
        identity = self.store.progress[0]
        with notifying(settings, identity, lambda: datetime.now(UTC), lambda: None, patience_s=patience_s) as notices:
            assert notices is not None
            yield notices


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Book]:
    with closing(open_ledger(tmp_path / LEDGER)) as store:
        yield Book(tmp_path, store)


def event(type: str = "Held", message: str = "m", *, warning: bool = True, **facts: Any) -> Event:
    return Event(at=NOON, type=type, message=message, facts=facts, warning=warning)


def messages(taken: Hook) -> list[list[str]]:
    return [[each["message"] for each in notice["events"]] for notice in taken.got]


def test_each_is_told_what_it_wants(book: Book) -> None:
    (book.folder / "git").mkdir()
    sites = "sites: [{name: fra1, select: {servers: [web01]}, baseURL: 'http://fra1.test'}]"
    documents = (fleet(f"baseURL: 'http://boot.test', {sites}"), *SEED[1:], server("web02", "role: web"))
    (book.folder / "git" / "fleet.yaml").write_text("---\n".join(documents))
    assert typed("render", book.folder / "git", "--out", book.folder / "output").code == 0
    with hook() as every, hook() as warned, hook() as fra1:
        notify_file(
            book.folder,
            every=f'webhook = "{every.url}"\nlevel = "info"',
            warned=f'webhook = "{warned.url}"',
            fra1=f'webhook = "{fra1.url}"\nsites = ["fra1"]',
        )
        book.note(event("Before", "nobody is told what was before"))
        with book.told() as notices:
            book.note(event("Fetched", "quiet", warning=False), event("Held", "loud"))
            book.note(event("OverrideFailed", "here", server="web01"), event("Failed", "there", server="web02"))
            notices.ring()
        assert messages(every) == [["quiet"], ["loud"], ["here"], ["there"]]
        assert messages(warned) == [["loud"], ["here"], ["there"]]
        assert messages(fra1) == [["here"]]
        assert fra1.got[0]["events"][0]["site"] == "fra1"


def test_what_repeats_is_folded_into_one(book: Book, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead_s = [0.0]
    moved = SimpleNamespace(monotonic=lambda: time.monotonic() + ahead_s[0])
    monkeypatch.setattr("gitboot.controller.notifications.time", moved)
    with hook() as taken:
        notify_file(book.folder, one=f'webhook = "{taken.url}"\nfold-minutes = 60')
        with book.told() as notices:
            book.note(event(message="first"))
            notices.ring()
            eventually(lambda: taken.got)
            book.note(*(event(message=f"again {number}") for number in range(40)), event("Other", "at once"))
            notices.ring()
            eventually(lambda: len(taken.got) == 2)
            ahead_s[0] = 3601
            notices.ring()
            eventually(lambda: len(taken.got) == 3)
        assert [(each["type"], each["number"], len(each["events"])) for each in taken.got] == [
            *(("Held", 1, 1), ("Other", 1, 1), ("Held", 40, 20)),
        ]


def test_what_did_not_arrive_is_told_again_after_a_restart(book: Book) -> None:
    with hook() as taken:
        notify_file(book.folder, one=f'webhook = "{taken.url}"')
        taken.status = 500
        with book.told(patience_s=0.2) as notices:
            book.note(event(message="lost at first"))
            notices.ring()
            assert eventually(lambda: notices.failure) == ("HostUnreachable", "one: it answered 500")
        assert (taken.got, taken.tried >= 1) == ([], True)
        taken.status = 204
        with book.told():
            pass
        assert messages(taken) == [["lost at first"]]
        with book.told():
            pass
        assert messages(taken) == [["lost at first"]]  # once it has arrived, no more


def test_what_waits_to_be_folded_survives_a_restart(book: Book) -> None:
    with hook() as taken:
        notify_file(book.folder, one=f'webhook = "{taken.url}"\nfold-minutes = 60')
        with book.told() as notices:
            book.note(event(message="told"))
            notices.ring()
            eventually(lambda: taken.got)
            book.note(event(message="folded"))
        assert messages(taken) == [["told"]]
        with book.told():
            pass
        assert messages(taken) == [["told"], ["folded"]]


@pytest.mark.parametrize("place", [{"ledger": "another", "places": {"one": 0}}, {"places": {"one": 99}}, "{"])
def test_a_place_that_is_not_in_this_ledger_is_its_end(book: Book, place: Any) -> None:
    known = {"ledger": book.store.progress[0], **place} if isinstance(place, dict) else None
    (book.folder / NOTIFIED).write_text(json.dumps(known) if known else str(place))
    book.note(event(message="old"))
    with hook() as taken:
        notify_file(book.folder, one=f'webhook = "{taken.url}"')
        with book.told() as notices:
            book.note(event(message="new"))
            notices.ring()
        assert messages(taken) == [["new"]]


def test_a_receiver_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    """Neither other receivers, nor what machines are answered, nor the end."""
    repository = Repository.create(tmp_path / "git")
    repository.push({"fleet.yaml": "---\n".join(SEED)})
    with hook() as dead, hook() as alive:
        dead.hangs = True
        file = notify_file(
            tmp_path, dead=f'webhook = "{dead.url}"\nlevel = "info"', alive=f'webhook = "{alive.url}"\nlevel = "info"'
        )
        options = ("--poll", "3600", "--check-assets", "off", "--notify", str(file), *configured(max_small_group=9))
        with running(repository.bare, tmp_path, *options, records="fresh") as instance:
            eventually(lambda: dead.tried)
            commit = repository.push({"two.yaml": server("web02", "role: web")})
            eventually(lambda: instance.status()["applied"]["commit"] == commit)
            eventually(lambda: any(each["type"] == "Accepted" for each in alive.got))
        assert dead.got == []
        assert "very-secret" not in json.dumps(instance.events)
