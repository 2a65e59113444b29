"""What Prometheus reads: requests answered, and the instance's status."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import StrEnum

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from gitboot.status import Status


class Kind(StrEnum):
    """What a request was for."""

    ENTRY = "entry"  # what boots a machine from the network
    FILE = "file"  # another file of boot/
    PAGE = "page"  # API, metrics, health
    ARTIFACT = "artifact"  # a file read from the disk
    NOTHING = "nothing"  # no file, no page


class Metrics(Collector):
    """Counts requests; all else is read from the status when it is asked for."""

    def __init__(self, status: Callable[[], Status]) -> None:
        self._status = status
        self._requests: Counter[tuple[Kind, int]] = Counter()
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def count(self, kind: Kind, status: int) -> None:
        self._requests[kind, status] += 1

    async def page(self, _: Request) -> Response:
        return Response(
            generate_latest(self._registry),
            headers={"content-type": CONTENT_TYPE_LATEST, "cache-control": "no-store"},
        )

    def describe(self) -> list[Metric]:
        return []  # so that registering does not collect

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("gitboot_http_requests", "Requests answered.", labels=["kind", "status"])
        for (kind, code), count in sorted(self._requests.items()):
            requests.add_metric([kind, str(code)], count)
        yield requests
        yield from _of_status(self._status())


def _of_status(status: Status) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "gitboot_ready", "Whether this instance has planned and published since its start.", status.ready
    )
    commit = GaugeMetricFamily(
        "gitboot_commit_info", "The commit attempted last, and the one applied.", labels=["state", "commit"]
    )
    for state, name in (("applied", status.applied), ("attempted", status.attempted)):
        if name is not None:
            commit.add_metric([state, name], 1)
    yield commit
    yield GaugeMetricFamily("gitboot_commit_problems", "Problems of the commit attempted last.", len(status.problems))
    counts = (
        ("gitboot_servers", "Servers by what they boot now.", "phase", status.phases),
        ("gitboot_records", "Servers by what is known of their provisioning.", "known", status.records),
        ("gitboot_drift", "Provisioned servers that are not as planned.", "type", status.drift),
        ("gitboot_bmcs", "BMCs of which something is wanted, by what came of it last.", "outcome", status.bmcs),
    )
    for name, text, label, by_label in counts:
        family = GaugeMetricFamily(name, text, labels=[label])
        for value, count in sorted(by_label.items()):
            family.add_metric([value], count)
        yield family
    conditions = GaugeMetricFamily("gitboot_condition", "Whether a condition holds.", labels=["type", "reason"])
    for condition in status.conditions:
        conditions.add_metric([condition.type, condition.reason], condition.status)
    yield conditions
    instants = (
        ("planned", "When the answers were last planned.", status.planned_at),
        ("next_transition", "When they next change by the clock.", status.next_transition),
    )
    for name, text, at in instants:
        if at is not None:
            yield GaugeMetricFamily(f"gitboot_{name}_timestamp_seconds", text, at.timestamp())
