"""Metrics as Prometheus reads them: what an endpoint counted, and the status of its instance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gitboot.observe.refused import WhyNot
from gitboot.serve.certificate import Certificate
from gitboot.serve.crowd import Crowd
from gitboot.serve.metrics import Metrics
from gitboot.serve.readiness import Records
from gitboot.serve.tree import PublishedTree

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Exposition(Collector):
    """Everything is read when it is asked for."""

    def __init__(
        self,
        metrics: Metrics,
        refused: Mapping[WhyNot, int],
        tree: PublishedTree,
        records: Records | None,
        why_not_ready: str | None,
        crowd: Crowd,
        certificate: Certificate | None,
    ) -> None:
        self._crowd, self._certificate = crowd, certificate
        self._metrics, self._refused, self._tree = metrics, refused, tree
        self._records, self._why_not_ready = records, why_not_ready
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def page(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        return []  # so that registering does not collect

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("gitboot_http_requests", "Requests answered.", labels=["kind", "status"])
        for (kind, code), count in sorted(self._metrics.requests.items()):
            requests.add_metric([kind, str(code)], count)
        yield requests
        refused = CounterMetricFamily(
            "gitboot_boots_refused", "Boots that write a disk and were not given.", labels=["reason"]
        )
        for reason, count in sorted(self._refused.items()):
            refused.add_metric([reason], count)
        yield refused
        strangers = CounterMetricFamily(
            "gitboot_operators_refused", "Requests for operators' pages of who is taken for none.", labels=["reason"]
        )
        for why, count in sorted(self._metrics.strangers.items()):
            strangers.add_metric([why], count)
        yield strangers
        if self._certificate is not None:
            text = "Whether operators are shown the certificate that stands in its files now."
            yield GaugeMetricFamily("gitboot_operators_certificate_read", text, self._certificate.failure is None)
        text = "Connections that waited for their clients, and had to go for others."
        yield CounterMetricFamily("gitboot_idle_connections_closed", text, self._crowd.closed)
        if (off := self._tree.clock.off) is not None:
            text = "How far the clock is ahead of the instance's, where that is too far."
            yield GaugeMetricFamily("gitboot_clock_off_seconds", text, off.total_seconds())
        is_ready = self._why_not_ready is None
        yield GaugeMetricFamily("gitboot_ready", "Whether every boot is given that there is to give.", is_ready)
        if self._records is not None:
            can_record = self._records.failure is None
            yield GaugeMetricFamily("gitboot_recording", "Whether fetches can be recorded in the spool.", can_record)
        yield from _of_status(self._tree.status())


def _of_status(status: Mapping[str, Any]) -> Iterator[Metric]:
    commit = GaugeMetricFamily(
        "gitboot_commit_info", "The commit attempted last, and the one applied.", labels=["state", "commit"]
    )
    for state in ("applied", "attempted"):
        if (name := status[state]["commit"]) is not None:
            commit.add_metric([state, name], 1)
    yield commit
    problems = len(status["attempted"]["problems"])
    yield GaugeMetricFamily("gitboot_commit_problems", "Problems of the commit attempted last.", problems)
    counts = (
        ("servers", "Servers by what they boot now.", "phase", "phases"),
        ("records", "Servers by what is known of their provisioning.", "known", "records"),
        ("maintenance_runs", "Servers in a window by what was seen of their one boot.", "step", "runs"),
        ("drift", "Provisioned servers that are not as planned.", "type", "drift"),
        ("bmcs", "BMCs of which something is wanted, by what came of it last.", "outcome", "bmcs"),
    )
    for name, text, label, key in counts:
        family = GaugeMetricFamily(f"gitboot_{name}", text, labels=[label])
        for value, count in sorted(status.get(key, {}).items()):  # an older instance has not all of them
            family.add_metric([value], count)
        yield family
    conditions = GaugeMetricFamily("gitboot_condition", "Whether a condition holds.", labels=["type", "reason"])
    for condition in status["conditions"]:
        conditions.add_metric([condition["type"], condition["reason"]], condition["status"])
    yield conditions
    instants = (
        ("planned", "When the answers were last planned.", "plannedAt"),
        ("next_transition", "When they next change by the clock.", "nextTransition"),
    )
    for name, text, key in instants:
        if (at := status[key]) is not None:
            timestamp = datetime.fromisoformat(at).timestamp()
            yield GaugeMetricFamily(f"gitboot_{name}_timestamp_seconds", text, timestamp)
