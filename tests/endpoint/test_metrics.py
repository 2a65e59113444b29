"""Metrics of an endpoint and its instance, in the Prometheus format and in OpenMetrics."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import Metric, parser
from prometheus_client.openmetrics import parser as openmetrics

from gitboot import __version__
from gitboot.endpoint.metrics import FAMILIES
from gitboot.status.instance_status import Status
from gitboot.status.work_progress import BOUNDS_S, Stage, StageTimes
from tests.helpers import http_peers
from tests.helpers.endpoints import (
    BEFORE,
    COMMITTED,
    ENTRY,
    FULL_STATUS,
    ONCE,
    START,
    get,
    monitored_endpoint,
    plan_fleet,
    site,
)
from tests.helpers.git_repositories import program

# The Accept header of Prometheus.
ACCEPT = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,*/*;q=0.1"

Samples = dict[str, dict[tuple[str, ...], float]]


def samples(url: str) -> Samples:
    """Values by metric and by the values of its labels, in the order of their names."""
    response = get(f"{url}/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    return _group_samples(parser.text_string_to_metric_families(response.text))


def parse_openmetrics(text: str) -> list[Metric]:
    return list(openmetrics.text_string_to_metric_families(text))  # type: ignore[no-untyped-call]


def _group_samples(found: Iterable[Metric]) -> Samples:
    read: Samples = {}
    for family in found:
        for sample in family.samples:
            read.setdefault(sample.name, {})[tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return read


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with monitored_endpoint(tmp_path_factory.mktemp("certificates")) as url:
        get(url + ENTRY)
        yield url


def test_requests_are_counted_by_their_kind() -> None:
    with site(plan_fleet(*ONCE)) as made, made.serve() as url:
        for path in (ENTRY, ENTRY, "/boot.ipxe", "/healthz", "/nothing", "/also/nothing"):
            get(url + path)
        http_peers.post(f"{url}/nothing")
        counted = samples(url)["gitboot_http_requests_total"]
    assert counted == {
        ("boot_script", "200"): 2,
        ("file", "200"): 1,
        ("page", "200"): 1,
        ("not_found", "404"): 2,
        ("not_found", "405"): 1,
        **{(kind, "500"): 0 for kind in ("artifact", "boot_script", "file", "inventory", "not_found", "page")},
    }


def test_promtool_finds_no_problem(url: str) -> None:
    page = get(f"{url}/metrics").content
    promtool = program("promtool", "prometheus")
    checked = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


def test_openmetrics_has_the_same_values(url: str) -> None:
    answer = get(f"{url}/metrics", headers={"accept": ACCEPT})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")
    found, plain_ones = _group_samples(parse_openmetrics(answer.text)), samples(url)
    assert found.keys() == plain_ones.keys()
    assert {name: found[name] for name in found if name != "gitboot_http_requests_total"} == {
        name: plain_ones[name]
        for name in plain_ones
        if name != "gitboot_http_requests_total"  # this counter counts these two requests
    }


def test_each_metric_is_in_the_table_and_each_row_of_the_table_is_served(url: str) -> None:
    page = get(f"{url}/metrics", headers={"accept": ACCEPT}).text
    shown = {each.name: each for each in parse_openmetrics(page)}
    assert {(each.name, each.type, each.documentation) for each in shown.values()} == {
        (each.name, each.kind, each.help_text) for each in FAMILIES
    }
    for family in FAMILIES:
        assert shown[family.name].samples, f"{family.name} has no value to look at"
        for sample in shown[family.name].samples:
            assert sample.labels.keys() - {"le"} == set(family.labels)


def test_no_metric_has_a_label_for_each_server(url: str) -> None:
    assert "web01" not in get(f"{url}/metrics").text
    conditions = samples(url)["gitboot_bmc_conditions"]
    assert [conditions[each,] for each in ("Stalled", "ForeignOverride", "Waiting")] == [2, 1, 0]


def test_the_metrics_have_the_values_of_the_status(url: str) -> None:
    expected: Samples = {
        "gitboot_build_info": {(__version__,): 1},
        "gitboot_ready": {(): 1},
        "gitboot_commit_info": {
            ("acce97ed", "accepted"): 1,
            ("bad", "attempted"): 1,
            ("c0ffee", "applied"): 1,
        },
        "gitboot_accepted_commit_timestamp_seconds": {(): COMMITTED.timestamp()},
        "gitboot_commit_problems": {("GB2013", "warning"): 2, ("GB2017", "error"): 1},
        "gitboot_servers": {("Network",): 3, ("Disk",): 2},
        "gitboot_servers_installing": {("Installing", "Started"): 1},
        "gitboot_installing_last_step_timestamp_seconds": {(): (BEFORE - timedelta(minutes=7)).timestamp()},
        "gitboot_servers_below_minimum_version": {("web",): 2, ("db",): 0},
        "gitboot_condition": {
            ("false", "Published"): 0,
            ("true", "Published"): 1,
            ("false", "SourceReady"): 1,
            ("true", "SourceReady"): 0,
            ("false", "OutputTreeReadable"): 0,
            ("true", "OutputTreeReadable"): 1,
        },
        "gitboot_condition_reason": {
            ("Published", "Published"): 1,
            ("SourceError", "SourceReady"): 1,
            ("Read", "OutputTreeReadable"): 1,
        },
        "gitboot_planned_timestamp_seconds": {(): BEFORE.timestamp()},
        "gitboot_next_transition_timestamp_seconds": {(): START.timestamp()},
        "gitboot_status_timestamp_seconds": {(): (BEFORE - timedelta(minutes=1)).timestamp()},
    }
    found = samples(url)
    assert {name: found[name] for name in expected} == expected


@pytest.mark.parametrize("users", ["operators", "machines"])
def test_the_metric_of_a_certificate_is_its_end(url: str, users: str) -> None:
    (ends,) = samples(url)[f"gitboot_{users}_certificate_expiration_timestamp_seconds"].values()
    assert timedelta(days=29) < datetime.fromtimestamp(ends, UTC) - datetime.now(UTC) <= timedelta(days=30)


def test_durations_are_counted_in_each_bucket() -> None:
    laps = StageTimes()
    for seconds in (0.1, 0.1001, 1000):  # equal to a bound, above it, above all bounds
        laps.add(Stage.PUBLISH, seconds)
    laps.add(Stage.RECONCILE, 2)
    with site() as made:
        made.say(Status(stages=laps.facts()).facts())
        with made.serve() as url:
            found = samples(url)
    below = {bound: (0 if bound < 0.1 else 1 if bound < 0.5 else 2) for bound in BOUNDS_S}
    buckets = {(str(bound), "publish"): count for bound, count in below.items()}
    expected = {
        "gitboot_stage_duration_seconds_bucket": {**buckets, ("+Inf", "publish"): 3},
        "gitboot_stage_duration_seconds_count": {("publish",): 3},
        "gitboot_stage_duration_seconds_sum": {("publish",): pytest.approx(1000.2001)},
        "gitboot_reconcile_duration_seconds_count": {(): 1},
    }
    assert {name: found[name] for name in expected} == expected


def test_values_that_an_earlier_instance_does_not_write_are_omitted() -> None:
    said = FULL_STATUS.facts()
    for newer in ("stages", "belowMinimumVersion", "runs", "installing", "installations"):
        del said[newer]
    with site() as made:
        made.say(said)
        with made.serve() as url:
            found = samples(url)
    assert found["gitboot_servers"] == {("Network",): 3, ("Disk",): 2}
    assert not {name for name in found if "stage" in name or "below" in name}


def test_values_that_are_not_known_yet_are_omitted() -> None:
    with site(None) as made, made.serve() as url:
        found = samples(url)
    assert found["gitboot_ready"] == {(): 0}
    assert "gitboot_planned_timestamp_seconds" not in found
    assert "gitboot_commit_info" not in found
