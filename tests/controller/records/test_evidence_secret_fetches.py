"""Fetches of secrets: events, counts for each installation, and the confirmation of an operator."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gitboot.controller.records.evidence import confirm_secret_fetches, count_fetch, forget_earlier_fetches
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot, LedgerUpdate
from gitboot.fetchlog.log_entries import Observation
from gitboot.jsonio import Digest
from gitboot.ledger.instance_tables import Facts
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.server_plan import Offer, Phase
from gitboot.status.conditions import Event
from tests.helpers.fleets import make_uuid

AT = datetime(2026, 11, 20, 22, tzinfo=UTC)
TOKEN = "ab" * 32
MAC = "52-54-00-12-34-56"
JOIN = f"boot/s/{TOKEN}/{MAC}/join"
DATA = f"boot/v1/boot/{MAC}/data/{TOKEN}"
WEB01 = SystemUuid(make_uuid("web01"))


def offer(key: str = "provision/1", attempt: int = 1, number: int = 1, phase: Phase = Phase.NETWORK) -> Offer:
    return Offer(
        plan=Digest(TOKEN),
        server="web01",
        uuid=WEB01,
        decision=Digest("cd" * 32),
        phase=phase,
        key=key,
        base=key,
        attempt=attempt,
        policy="web",
        image="debian-13",
        provision=1,
        on_image_change=False,
        maintenance=None,
        run=None,
        number=number,
    )


class Learner:
    """Knowledge that goes from one batch to the next."""

    def __init__(self) -> None:
        self.snapshot = LedgerSnapshot(facts=Facts(identity="test"))
        self.events: list[Event] = []

    def fetch(self, client: str, path: str = JOIN, times: int = 1, **of_offer: Any) -> None:
        learning = LedgerUpdate(self.snapshot, AT)
        seen = Observation(server="web01", path=path, client=client, at=AT, digest=Digest(TOKEN), times=times)
        count_fetch(learning, offer(**of_offer), seen)
        self._finish(learning)

    def serve(self, **of_offer: Any) -> None:
        learning = LedgerUpdate(self.snapshot, AT)
        forget_earlier_fetches(learning, offer(**of_offer))
        self._finish(learning)

    def confirm(self, **seen: tuple[int, int]) -> None:
        learning = LedgerUpdate(self.snapshot, AT)
        found = {name.replace("_", "/"): each for name, each in seen.items()}
        confirm_secret_fetches(learning, WEB01, found)
        self._finish(learning)

    def _finish(self, learning: LedgerUpdate) -> None:
        self.snapshot = learning.build_snapshot()
        self.events += learning.events

    @property
    def counts(self) -> dict[str, int]:
        found = self.snapshot.secret_fetches[WEB01].secrets["secrets/join"]
        others = {"others": found.others.times} if found.others is not None else {}
        return {address: each.times for address, each in found.addresses.items()} | others

    @property
    def is_unexpected(self) -> bool:
        found = self.snapshot.secret_fetches.get(WEB01)
        return found is not None and found.is_unexpected


@pytest.fixture
def learner() -> Learner:
    return Learner()


def test_the_first_fetch_by_each_address_is_an_event_and_repeats_are_counted(learner: Learner) -> None:
    for client in ("10.0.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.1"):
        learner.fetch(client)
    assert [(each.facts["client"], each.warning) for each in learner.events] == [
        ("10.0.0.1", False),
        ("10.0.0.2", True),
    ]
    assert learner.events[0].message == "web01: 10.0.0.1 fetched the secret join for provision/1"
    assert learner.counts == {"10.0.0.1": 3, "10.0.0.2": 1}


@pytest.mark.parametrize("names", [("root-key", "root"), ("root", "root-key")])
def test_a_secret_whose_name_begins_with_the_name_of_another_has_its_own_event(
    names: tuple[str, str], learner: Learner
) -> None:
    for name in names:
        learner.fetch("10.0.0.1", f"{JOIN.rpartition('/')[0]}/{name}")
    assert [each.message for each in learner.events] == [
        f"web01: 10.0.0.1 fetched the secret {name} for provision/1" for name in names
    ]


def test_beyond_sixteen_addresses_there_is_one_event_and_a_count(learner: Learner) -> None:
    for number in range(40):
        learner.fetch(f"10.0.0.{number}")
    assert len(learner.events) == 17
    assert "For further addresses, gitboot only counts the fetches" in learner.events[-1].message
    assert learner.counts["others"] == 24


def test_the_files_of_user_data_are_one_event_for_an_address(learner: Learner) -> None:
    for name in ("meta-data", "user-data", "vendor-data"):
        learner.fetch("10.0.0.1", f"{DATA}/{name}")
    assert [each.message for each in learner.events] == [
        "web01: 10.0.0.1 fetched the user data meta-data for provision/1"
    ]
    assert not learner.is_unexpected
    learner.fetch("10.0.0.2", f"{DATA}/user-data")
    assert learner.is_unexpected and len(learner.events) == 2


def test_the_count_of_an_endpoint_is_added(learner: Learner) -> None:
    learner.fetch("10.0.0.1", times=7)
    assert not learner.is_unexpected
    learner.fetch("10.0.0.1", times=4)
    assert learner.is_unexpected and len(learner.events) == 1


def test_the_confirmation_of_an_operator_holds_until_another_address_or_ten_more_fetches(learner: Learner) -> None:
    learner.fetch("10.0.0.1", times=14)
    learner.fetch("10.0.0.2")
    learner.confirm(secrets_join=(2, 15))
    assert not learner.is_unexpected
    learner.fetch("10.0.0.2", times=10)
    assert not learner.is_unexpected
    learner.fetch("10.0.0.2")
    assert learner.is_unexpected
    learner.confirm(secrets_join=(2, 26))
    learner.fetch("10.0.0.3")
    assert learner.is_unexpected


def test_a_confirmation_covers_only_what_the_operator_saw(learner: Learner) -> None:
    learner.fetch("10.0.0.1")
    learner.fetch("10.0.0.2")
    learner.fetch("10.0.0.3")  # after the person has looked
    learner.confirm(secrets_join=(2, 2))
    assert learner.is_unexpected


def test_reports_are_counted_and_are_neither_an_event_nor_a_condition(learner: Learner) -> None:
    for _ in range(6):
        learner.fetch("10.0.0.1", f"boot/v1/boot/{MAC}/failed/{TOKEN}")
        learner.fetch("10.0.0.2", f"boot/v1/boot/{MAC}/failed/{TOKEN}")
    assert learner.events == [] and not learner.is_unexpected
    found = learner.snapshot.secret_fetches[WEB01]
    assert found.facts() == []
    assert found.secrets["reports/failed"].totals == (2, 12)


NEXT = [{"attempt": 2}, {"key": "provision/2", "number": 2}]


@pytest.mark.parametrize("following", NEXT, ids=["attempt", "provision"])
def test_the_next_installation_begins_with_no_fetches(learner: Learner, following: dict[str, Any]) -> None:
    for client in ("10.0.0.1", "10.0.0.2"):
        learner.fetch(client)
    learner.serve()
    assert learner.is_unexpected, "it is the same installation"
    learner.serve(**following)
    assert not learner.is_unexpected
    learner.fetch("10.0.0.1", **following)
    assert learner.counts == {"10.0.0.1": 1} and len(learner.events) == 3


@pytest.mark.parametrize("following", NEXT, ids=["attempt", "provision"])
def test_a_fetch_by_an_earlier_token_counts_in_the_newest_installation(
    learner: Learner, following: dict[str, Any]
) -> None:
    """Otherwise a stranger with both tokens could begin each count again, with new events each time."""
    for _ in range(5):
        learner.fetch("10.0.0.1", **following)
        learner.fetch("10.0.0.66")
        learner.fetch("10.0.0.67", attempt=0)
    assert learner.counts == {"10.0.0.1": 5, "10.0.0.66": 5, "10.0.0.67": 5}
    assert len(learner.events) == 3


def test_a_later_commit_begins_no_other_installation(learner: Learner) -> None:
    learner.fetch("10.0.0.1")
    learner.fetch("10.0.0.1", number=9)
    assert learner.counts == {"10.0.0.1": 2}


def test_a_maintenance_has_no_secrets(learner: Learner) -> None:
    learner.fetch("10.0.0.1", f"{DATA}/user-data", phase=Phase.MAINTENANCE)
    assert learner.events == [] and learner.snapshot.secret_fetches == {}


def test_unchanged_counts_are_not_written(learner: Learner) -> None:
    learning = LedgerUpdate(learner.snapshot, AT)
    forget_earlier_fetches(learning, offer())
    assert learning.is_empty
    count_fetch(learning, offer(), replace(_fetch(), path="boot/ipxe/x"))
    assert learning.is_empty


def _fetch() -> Observation:
    return Observation(server="web01", path=JOIN, client="10.0.0.1", at=AT, digest=Digest(TOKEN))
