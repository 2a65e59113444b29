"""Events that say the same of many servers are told as one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from gitboot.status.conditions import Event, folded

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
LACKS = "no directory of credentials is given, and bmc-ams2 is needed (--credentials)"


def stalled(server: str, message: str = LACKS, *, at: datetime = NOON, **facts: str) -> Event:
    facts = {"server": server, **facts}
    return Event(at=at, type="OverrideStalled", message=f"{server}: {message}", facts=facts, warning=True)


def test_what_differs_by_the_server_alone_is_one_event_with_all_of_them() -> None:
    published = Event(at=NOON, type="Published", message="3 written")
    names = [f"w{number:02}" for number in range(11)]
    (first, one) = folded([*map(stalled, reversed(names)), published])
    assert first.message == f"11 servers (w00, w01, w02 and 8 more): {LACKS}"
    assert (first.facts, first.type, first.warning, one) == ({"servers": names}, "OverrideStalled", True, published)


def test_what_says_anything_else_stays_by_itself_and_in_its_order() -> None:
    events = (
        stalled("web01"),
        stalled("web02", "401 by its BMC"),
        stalled("web03", plan="sha256:2"),
        stalled("web04", at=NOON + timedelta(seconds=1)),
        Event(at=NOON, type="OverrideStalled", message=f"web05: {LACKS}", facts={"server": "web05"}),
        Event(at=NOON, type="OverrideStalled", message="two of a kind", facts={"server": "web06"}),
        Event(at=NOON, type="OverrideStalled", message="two of a kind", facts={"server": "web07"}),
    )
    assert folded(events) == events
