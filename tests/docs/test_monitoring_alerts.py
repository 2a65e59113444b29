"""The alerts in docs/monitoring/alerts.yml: each rule by promtool, with the real metrics of an endpoint."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations, groupby
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from msgspec import structs
from prometheus_client import parser

from gitboot.endpoint.metrics import FAMILIES
from gitboot.status.conditions import ANY, BMC, CONDITIONS, Alert, Condition
from tests.helpers import http_peers
from tests.helpers.cases import for_each
from tests.helpers.endpoints import BEFORE, COMMITTED, ENTRY, FULL_STATUS, get, monitored_endpoint
from tests.helpers.git_repositories import free_port, program, run_daemon
from tests.helpers.running_instance import eventually

DOCS: Final = Path(__file__).parents[2] / "docs"
RULES_FILE: Final = DOCS / "monitoring" / "alerts.yml"
RULES: Final[dict[str, dict[str, Any]]] = {
    rule["alert"]: rule for group in yaml.safe_load(RULES_FILE.read_text())["groups"] for rule in group["rules"]
}

# States of conditions without an alert, and why.
SILENT: Final = {
    ("LedgerNamed", "AnotherLedger"): "an instance that stands by says so for as long as it does",
    ("MaintenancesCleared", "WaitingForApproval"): "a maintenance waits for a person, as its author wanted",
    ("MaintenancesCleared", "WaitingForDrain"): "a drain takes as long as the services of the server need",
    (BMC, "Waiting"): "a BMC that cannot be asked just now is asked again; where it goes on, it says Overdue",
}

Series = dict[str, str]  # by metric and labels: a value, a first value and what each minute adds, or _ for no value

ENDS: Final = "gitboot_operators_certificate_expiration_timestamp_seconds{}"
ENDS_FOR_MACHINES: Final = "gitboot_machines_certificate_expiration_timestamp_seconds{}"
TRANSITION: Final = "gitboot_next_transition_timestamp_seconds{}"
AT: Final = "gitboot_status_timestamp_seconds{}"
LATER: Final = "100000000"


@dataclass(frozen=True)
class Case:
    """A bad state from the beginning on, and the alert that fires after some minutes, and not before."""

    says: str
    alert: str
    series: Series
    minutes: int


def condition(type: str, reason: str, *, status: bool = False) -> Series:
    return {
        f'gitboot_condition{{status="false",type="{type}"}}': str(int(not status)),
        f'gitboot_condition{{status="true",type="{type}"}}': str(int(status)),
        f'gitboot_condition_reason{{reason="{reason}",type="{type}"}}': "1",
    }


def _minutes(alert: str) -> int:
    amount, unit = int(RULES[alert]["for"][:-1]), RULES[alert]["for"][-1]
    return amount * {"m": 1, "h": 60}[unit]


def _fires_for(alert: Alert, reason: str) -> bool:
    matcher = re.fullmatch(r'(=~|!=|=)"(.*)"', alert.reasons or '=~".*"')
    assert matcher is not None
    operator, pattern = matcher.groups()
    return (re.fullmatch(pattern, reason) is not None) is (operator != "!=")


def _list_state_cases() -> Iterator[Case]:
    """Each state of a condition that does not hold, and that is not silent. A reason's own alert comes first."""
    for declared in CONDITIONS.values():
        alerts = sorted(declared.alerts, key=lambda each: not each.reasons)
        for reason in declared.remedies:
            if (declared.name, reason) not in SILENT:
                named = "SomeError" if reason == ANY else reason
                alert = next(each.name for each in alerts if _fires_for(each, named))
                of_bmcs = {f'gitboot_bmc_conditions{{reason="{named}"}}': "1"}
                series = of_bmcs if declared.name == BMC else condition(declared.name, named)
                yield Case(f"{declared.name} {named}", alert, series, _minutes(alert))


OF_STATES: Final = tuple(_list_state_cases())
OTHERS: Final = (
    Case("no instance has left a status", "GitbootStatusAbsent", {AT: "_"}, 10),
    Case("a transition is past", "GitbootTransitionLate", {TRANSITION: "0"}, 6 + 5),
    Case(
        "reconciles take two minutes",
        "GitbootReconcileSlow",
        {
            **{f'gitboot_reconcile_duration_seconds_bucket{{le="{le}"}}': "0" for le in ("30.0", "60.0")},
            **{f'gitboot_reconcile_duration_seconds_bucket{{le="{le}"}}': "0+1" for le in ("120.0", "+Inf")},
        },
        1 + 30,
    ),
    Case(
        "servers are below their minimum",
        "GitbootServersBelowMinimum",
        {'gitboot_servers_below_minimum_version{stream="web"}': "2"},
        6 * 60,
    ),
    Case("it is not there", "GitbootDown", {"up{}": "0"}, 5),
    Case("it is not ready", "GitbootNotReady", {"gitboot_ready{}": "0"}, 5),
    Case("nothing can be recorded", "GitbootNotRecording", {"gitboot_fetch_log_writable{}": "0"}, 2),
    Case("its clock is behind", "GitbootEndpointClockOff", {"gitboot_clock_offset_seconds{}": "-31"}, 5),
    Case("its clock is ahead", "GitbootEndpointClockOff", {"gitboot_clock_offset_seconds{}": "31"}, 5),
    Case("its files", "GitbootCertificateUnreadable", {"gitboot_operators_certificate_readable{}": "0"}, 15),
    Case("machines' files", "GitbootCertificateUnreadable", {"gitboot_machines_certificate_readable{}": "0"}, 15),
    # The clock begins at 0: what ends in 10 days is within 14 at once, and within one after nine.
    Case("it ends in days", "GitbootCertificateEndsSoon", {ENDS: str(10 * 86400)}, 60),
    Case("machines' one ends in days", "GitbootCertificateEndsSoon", {ENDS_FOR_MACHINES: str(10 * 86400)}, 60),
    Case(
        "a fault",
        "GitbootFaults",
        {'gitboot_http_requests_total{kind="nothing",status="500"}': "0+1"},
        1,
    ),
    Case("tokens", "GitbootTokensGuessed", {'gitboot_operator_requests_rejected_total{reason="Token"}': "0+10"}, 3),
)


_READ: Final = frozenset(re.findall(r"gitboot_\w+", RULES_FILE.read_text()))  # the metrics that any of them looks at


def _list_series(page: str) -> Iterator[tuple[str, str]]:
    for family in parser.text_string_to_metric_families(page):
        for each in family.samples:
            labels = ",".join(f"{key}={json.dumps(value)}" for key, value in sorted(each.labels.items()))
            if each.name in _READ and "_duration_seconds" not in each.name:
                yield f"{each.name}{{{labels}}}", f"{each.value:.0f}"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Series:
    """Return the metrics of an endpoint without a fault, from the beginning of time on."""
    types = sorted(CONDITIONS.keys() - {BMC, "OutputTreeReadable"})
    fine = tuple(
        Condition(type=each, status=True, reason="Fine", message="", last_transition_time=BEFORE) for each in types
    )
    status = structs.replace(FULL_STATUS, conditions=fine, problems=(), below_minimum_version={"web": 0})
    with monitored_endpoint(tmp_path_factory.mktemp("certificates"), status) as url:
        found = dict(_list_series(get(f"{url}/metrics").text))
    assert found.keys() >= {ENDS, ENDS_FOR_MACHINES, TRANSITION, AT}
    return {**found, ENDS: LATER, ENDS_FOR_MACHINES: LATER, TRANSITION: LATER, AT: "0+60", "up{}": "1"}


def _with_series(healthy: Series, series: Series) -> Series:
    """Return all series with some bad ones; a condition has one of its reasons."""
    types = {found[1] for each in series if (found := re.search('_reason{.*(type="[^"]+")', each))}
    kept = {each: value for each, value in healthy.items() if not any(t in each and "_reason{" in each for t in types)}
    return {**kept, **series}


HERE: Final = "boot:8080"


def _make_input_series(series: Series, minutes: int, instance: str) -> Iterator[dict[str, str]]:
    for name, value in series.items():
        target = f'{{instance="{instance}",job="gitboot",'
        yield {
            "series": name.replace("{", target, 1),
            "values": f"{value if '+' in value or value == '_' else f'{value}+0'}x{minutes}",
        }


def _make_test(series: Series, minutes: int, **asserted: object) -> dict[str, object]:
    return {"interval": "1m", "input_series": list(_make_input_series(series, minutes, HERE)), **asserted}


def _expect_firing(minutes: int, *alerts: str, instance: str = HERE) -> dict[str, object]:
    samples = [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in alerts]
    expr = f'count by (alertname) (ALERTS{{alertstate="firing",instance="{instance}"}})'
    return {"expr": expr, "eval_time": f"{minutes}m", "exp_samples": samples}


def promtool(folder: Path, tests: list[dict[str, object]]) -> None:
    """Have all of them tested at once."""
    file = folder / "alerts.test.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES_FILE)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(
        [program("promtool", "prometheus"), "test", "rules", file], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_accepts_the_rules() -> None:
    tool = program("promtool", "prometheus")
    done = subprocess.run([tool, "check", "rules", "--lint-fatal", RULES_FILE], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_no_alert_fires_if_nothing_is_wrong(healthy: Series, tmp_path: Path) -> None:
    none: dict[str, object] = {"expr": "ALERTS", "eval_time": "20m", "exp_samples": []}  # not even one that waits
    promtool(tmp_path, [_make_test(healthy, 20, promql_expr_test=[none])])


def test_each_bad_state_fires_its_alert_in_time_and_no_other(healthy: Series, tmp_path: Path) -> None:
    """Each state has its own endpoint, and one Prometheus scrapes those that take the same time."""
    tests: list[dict[str, object]] = []
    minutes = attrgetter("minutes")
    for _, cases in groupby(sorted((*OF_STATES, *OTHERS), key=minutes), minutes):
        given: list[dict[str, str]] = []
        asserted: list[dict[str, object]] = []
        for number, case in enumerate(cases):
            instance = f"{number} {case.says}"
            given += _make_input_series(_with_series(healthy, case.series), case.minutes, instance)
            asserted += [_expect_firing(case.minutes - 1, instance=instance)] if case.minutes > 1 else []
            asserted.append(_expect_firing(case.minutes, case.alert, instance=instance))
        tests.append({"interval": "1m", "input_series": given, "promql_expr_test": asserted})
    promtool(tmp_path, tests)


def test_a_certificate_that_expires_tomorrow_fires_the_more_severe_alert(healthy: Series, tmp_path: Path) -> None:
    series = {**healthy, ENDS: str(86400)}
    asserted = [
        _expect_firing(6, "GitbootCertificateEnds"),
        _expect_firing(60, "GitbootCertificateEnds", "GitbootCertificateEndsSoon"),
    ]
    promtool(tmp_path, [_make_test(series, 60, promql_expr_test=asserted)])


def _make_site_series(healthy: Series, site: str, commit: str, committed: int) -> Series:
    """Return the series of a healthy site that has accepted this commit."""
    kept = {name: value for name, value in healthy.items() if "accepted" not in name}
    shown = {
        **kept,
        f'gitboot_commit_info{{commit="{commit}",state="accepted"}}': "1",
        "gitboot_accepted_commit_timestamp_seconds{}": str(committed),
    }
    return {name.replace("}", f',site="{site}"}}').replace("{,", "{"): value for name, value in shown.items()}


DIFFER: Final = "GitbootSitesOnDifferentCommits"
Accepted = dict[str, tuple[str, int]]  # the commit that a site has accepted, and its committer time, by site


def _make_sites_series(healthy: Series, accepted: Accepted, job: str = "gitboot") -> list[dict[str, str]]:
    found = [
        each
        for site, of in accepted.items()
        for each in _make_input_series(_make_site_series(healthy, site, *of), 70, f"{site}:8080")
    ]
    return [{**each, "series": each["series"].replace('job="gitboot"', f'job="{job}"')} for each in found]


@for_each(
    ("accepted", "fires"),
    [
        ({"ams2": ("aaaa", 200), "fra1": ("bbbb", 100)}, 1),
        ({"ams2": ("aaaa", 100), "fra1": ("bbbb", 100)}, 1),
        ({"ams2": ("aaaa", 100), "fra1": ("aaaa", 100)}, 0),
    ],
)
def test_sites_that_are_on_different_commits_for_an_hour_fire_one_alert(
    healthy: Series, tmp_path: Path, accepted: Accepted, fires: int
) -> None:
    asserted = [
        {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{minutes}m",
            "exp_samples": [{"labels": f'{{alertname="{DIFFER}"}}', "value": 1}] * expected,
        }
        for minutes, expected in ((59, 0), (60, fires))
    ]
    given = _make_sites_series(healthy, accepted)
    promtool(tmp_path, [{"interval": "1m", "input_series": given, "promql_expr_test": asserted}])


def test_the_alert_for_different_commits_names_the_sites_with_the_oldest_commit_first(
    healthy: Series, tmp_path: Path
) -> None:
    rule = RULES[DIFFER]
    annotations = {
        **rule["annotations"],
        "summary": "Sites of gitboot have accepted 2 different commits for an hour",
        "oldest": "fra1 bbbb ams2 aaaa ",
    }
    fires = {
        "eval_time": "60m",
        "alertname": DIFFER,
        "exp_alerts": [{"exp_labels": {**rule["labels"], "job": "gitboot"}, "exp_annotations": annotations}],
    }
    given = _make_sites_series(healthy, {"ams2": ("aaaa", 200), "fra1": ("bbbb", 100)})
    promtool(tmp_path, [{"interval": "1m", "input_series": given, "alert_rule_test": [fires]}])


def test_two_jobs_may_have_different_commits(healthy: Series, tmp_path: Path) -> None:
    given = _make_sites_series(healthy, {"ams2": ("aaaa", 200)}) + _make_sites_series(
        healthy, {"ams2": ("bbbb", 100)}, "gitboot-lab"
    )
    none: dict[str, object] = {"eval_time": "70m", "alertname": DIFFER, "exp_alerts": []}
    promtool(tmp_path, [{"interval": "1m", "input_series": given, "alert_rule_test": [none]}])


def test_an_unreadable_tree_fires_one_alert_and_not_a_second_for_its_status(healthy: Series, tmp_path: Path) -> None:
    series = {**_with_series(healthy, condition("OutputTreeReadable", "Absent")), AT: "_"}
    promtool(tmp_path, [_make_test(series, 30, promql_expr_test=[_expect_firing(30, "GitbootOutputTreeUnreadable")])])


def test_every_alert_is_tested() -> None:
    alone = {"GitbootCertificateEnds", DIFFER}
    assert {case.alert for case in (*OF_STATES, *OTHERS)} | alone == RULES.keys()


def test_every_condition_has_alerts_or_a_reason_for_none() -> None:
    labelled = {rule["labels"]["condition"] for rule in RULES.values() if "condition" in rule["labels"]}
    assert labelled == {each.name for each in CONDITIONS.values() if each.alerts} == CONDITIONS.keys()
    assert all(reason in CONDITIONS[type].remedies for type, reason in SILENT)


def test_a_standby_fires_no_alert(healthy: Series, tmp_path: Path) -> None:
    waiting = {'gitboot_bmc_conditions{reason="Waiting"}': "3"}
    series = {**_with_series(healthy, condition("LedgerNamed", "AnotherLedger")), **waiting}
    promtool(tmp_path, [_make_test(series, 120, promql_expr_test=[_expect_firing(120)])])


def test_an_alert_describes_what_to_do_and_why_it_fires(healthy: Series, tmp_path: Path) -> None:
    rule = RULES["GitbootNotPublished"]
    target = {"instance": "boot:8080", "job": "gitboot", "type": "Published", "status": "false"}
    fires = {
        "eval_time": "5m",
        "alertname": "GitbootNotPublished",
        "exp_alerts": [
            {
                "exp_labels": {**rule["labels"], **target},
                "exp_annotations": {**rule["annotations"], "reason": "PublishError"},
            }
        ],
    }
    series = _with_series(healthy, condition("Published", "PublishError"))
    promtool(tmp_path, [_make_test(series, 10, alert_rule_test=[fires])])


@for_each("alert", sorted(RULES))
def test_each_rule_is_complete(alert: str) -> None:
    rule = RULES[alert]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert {"summary", "description", "runbook"} <= rule["annotations"].keys()
    file, _, anchor = rule["annotations"]["runbook"].partition("#")
    headings = re.findall("^#+ (.+)$", (DOCS / file).read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}
    assert anchor in anchors


# The dashboard in docs/monitoring: each of its panels has something to show, by a Prometheus that really scrapes


FILE: Final = Path(__file__).parents[2] / "docs" / "monitoring" / "dashboard.json"
BOARD: Final[dict[str, Any]] = json.loads(FILE.read_text())
PANELS: Final[list[dict[str, Any]]] = BOARD["panels"]
SHOWN: Final = [each for each in PANELS if each["type"] != "row"]
EXPRESSIONS: Final = [(each["title"], target["expr"]) for each in SHOWN for target in each["targets"]]


def fill_in(expression: str) -> str:
    """Return the expression as Grafana sends it."""
    for name, value in (("$__rate_interval", "1m"), ("$job", ".*"), ("$instance", ".*")):
        expression = expression.replace(name, value)
    assert "$" not in expression
    return expression


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a Prometheus that scrapes an endpoint with a value of each metric."""
    folder = tmp_path_factory.mktemp("prometheus")
    port = free_port()
    address = f"127.0.0.1:{port}"
    with monitored_endpoint(folder) as url:
        get(url + ENTRY)
        sites = (("fra1", url.removeprefix("http://")), ("ams2", f"127.0.0.1:{free_port()}"))  # ams2 does not answer
        targets = [{"targets": [target], "labels": {"site": site}} for site, target in sites]
        scrapes = [{"job_name": "gitboot", "scrape_interval": "1s", "static_configs": targets}]
        (folder / "prometheus.yml").write_text(json.dumps({"scrape_configs": scrapes}))
        command = [
            *(program("prometheus", "prometheus"), f"--config.file={folder}/prometheus.yml"),
            *(f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"),
        ]
        with run_daemon(command, port, os.environ):
            eventually(lambda: _is_ready(f"http://{address}"))
            yield f"http://{address}"


def _is_ready(url: str) -> bool:
    try:
        return http_peers.get(f"{url}/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def query_prometheus(prometheus: str, expression: str) -> list[Any]:
    answer = http_peers.get(f"{prometheus}/api/v1/query", params={"query": fill_in(expression)}).json()
    assert answer["status"] == "success", answer
    return list(answer["data"]["result"])


def test_every_panel_has_data(prometheus: str) -> None:
    for _, expression in EXPRESSIONS:
        eventually(partial(query_prometheus, prometheus, expression))


def test_the_table_of_sites_has_each_site_with_its_commit_and_marks_one_that_does_not_respond(prometheus: str) -> None:
    answers, commits, _ = (expression for title, expression in EXPRESSIONS if title == "Sites")

    def by_site() -> bool:
        return {each["metric"]["site"]: float(each["value"][1]) for each in query_prometheus(prometheus, answers)} == {
            "fra1": 1,
            "ams2": 0,
        }

    eventually(by_site)
    (fra1,) = eventually(partial(query_prometheus, prometheus, commits))
    assert (fra1["metric"]["site"], fra1["metric"]["commit"]) == ("fra1", "acce97ed")
    assert float(fra1["value"][1]) == 1000 * COMMITTED.timestamp()


def test_each_metric_has_a_panel() -> None:
    asked = {name for _, each in EXPRESSIONS for name in re.findall(r"gitboot_\w+", each)}
    left_out = {
        "gitboot_planned_timestamp_seconds",
        "gitboot_operators_certificate_readable",
        "gitboot_machines_certificate_readable",
    }
    for family in FAMILIES:
        names = {family.sample_name, family.name, f"{family.name}_sum"}
        assert bool(names & asked) is (family.name not in left_out), family.name


def test_panels_do_not_overlap() -> None:
    assert len({each["id"] for each in PANELS}) == len(PANELS)
    for each in PANELS:
        assert each["gridPos"]["x"] + each["gridPos"]["w"] <= 24
    for one, other in combinations([each["gridPos"] for each in PANELS], 2):
        apart = (
            one["x"] + one["w"] <= other["x"]
            or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"]
            or other["y"] + other["h"] <= one["y"]
        )
        assert apart


def test_the_variables_select_the_data_of_each_panel() -> None:
    names = {each["name"] for each in BOARD["templating"]["list"]}
    assert names == {"datasource", "job", "instance"}
    for each in SHOWN:
        for target in each["targets"]:
            assert target["datasource"]["uid"] == "${datasource}"
            assert '{job=~"$job",instance=~"$instance"' in target["expr"]
        assert len({target["refId"] for target in each["targets"]}) == len(each["targets"])
