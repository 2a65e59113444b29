from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from gitboot.status import Condition, Status
from tests import plain
from tests.serving import BEFORE, ENTRY, ONCE, START, get, planned, site


def samples(url: str) -> dict[str, dict[tuple[str, ...], float]]:
    """Values by metric and by the values of its labels, in the order of their names."""
    response = get(f"{url}/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(response.text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


def test_requests_are_counted_by_what_they_were_for() -> None:
    with site(planned(*ONCE)) as made, made.serve() as url:
        for path in (ENTRY, ENTRY, "/boot.ipxe", "/healthz", "/nothing", "/also/nothing"):
            get(url + path)
        plain.post(f"{url}/nothing")
        counted = samples(url)["gitboot_http_requests_total"]
    assert counted == {
        ("entry", "200"): 2,
        ("file", "200"): 1,
        ("page", "200"): 1,
        ("nothing", "404"): 2,
        ("nothing", "405"): 1,
    }


def test_what_the_status_says_is_there() -> None:
    status = Status(
        attempted="bad",
        applied="c0ffee",
        planned_at=BEFORE,
        next_transition=START,
        phases={"Network": 3, "Disk": 2},
        conditions=(Condition(type="SourceReady", status=False, reason="SourceError", message="", since=BEFORE),),
    )
    with site() as made:
        made.say(status.facts())
        with made.serve() as url:
            found = samples(url)
    assert found["gitboot_ready"] == {(): 1}
    assert found["gitboot_commit_info"] == {("c0ffee", "applied"): 1, ("bad", "attempted"): 1}
    assert found["gitboot_servers"] == {("Network",): 3, ("Disk",): 2}
    assert found["gitboot_condition"] == {("SourceError", "SourceReady"): 0, ("Read", "TreeRead"): 1}
    assert found["gitboot_planned_timestamp_seconds"] == {(): BEFORE.timestamp()}
    assert found["gitboot_next_transition_timestamp_seconds"] == {(): START.timestamp()}


def test_what_is_not_known_yet_is_left_out() -> None:
    with site(None) as made, made.serve() as url:
        found = samples(url)
    assert found["gitboot_ready"] == {(): 0}
    assert "gitboot_planned_timestamp_seconds" not in found
    assert "gitboot_commit_info" not in found
