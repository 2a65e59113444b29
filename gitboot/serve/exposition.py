"""Metrics as Prometheus reads them: what an endpoint counted, and the status of its instance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import accumulate
from math import inf
from typing import Any, Final, TypeVar

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gitboot import __version__
from gitboot.endpoint import metrics as catalogue
from gitboot.endpoint.access_control import Stranger
from gitboot.endpoint.boot_responses import Answered, Metrics
from gitboot.endpoint.connections import Limits
from gitboot.endpoint.metrics import Family
from gitboot.endpoint.recorder import Recorder
from gitboot.endpoint.served_files import PublishedTree, shown_unknown
from gitboot.endpoint.tls import Certificate
from gitboot.fetchlog.log_entries import WhyNot
from gitboot.status.conditions import BMC, REMEDIES

L = TypeVar("L", bound=tuple[str, ...])  # the values of labels

_OPENMETRICS: Final = "application/openmetrics-text"


class Exposition(Collector):
    """Everything is read when it is asked for."""

    def __init__(
        self,
        metrics: Metrics,
        refused: Mapping[WhyNot, int],
        tree: PublishedTree,
        records: Recorder | None,
        why_not_ready: str | None,
        limits: Limits,
        certificate: Certificate | None,
        unknown_requests: int = 0,
    ) -> None:
        self._unknown_requests = unknown_requests
        self._limits, self._certificate = limits, certificate
        self._metrics, self._refused, self._tree = metrics, refused, tree
        self._records, self._why_not_ready = records, why_not_ready

    def page(self, accept: str) -> tuple[bytes, str]:
        """All of it, and its content type: OpenMetrics for who accepts that, else Prometheus' own format."""
        encode, content_type = choose_encoder(_OPENMETRICS if _OPENMETRICS in accept.lower() else "")
        return encode(self), content_type

    def collect(self) -> Iterator[Metric]:
        yield _one(catalogue.BUILD, 1, __version__)
        yield _one(catalogue.READY, self._why_not_ready is None)
        if self._records is not None:
            yield _one(catalogue.RECORDING, self._records.failure is None)
        off = self._tree.clock.off
        yield _one(catalogue.CLOCK_OFF, off.total_seconds() if off is not None else 0)
        faults = {(kind, "500"): 0 for kind in Answered}  # so that the first is an increase
        requests = {(kind, str(code)): count for (kind, code), count in self._metrics.requests.items()}
        yield _metric(catalogue.REQUESTS, faults | requests)
        yield _metric(catalogue.BOOTS_REFUSED, {(each,): self._refused.get(each, 0) for each in WhyNot})
        yield _metric(catalogue.OPERATORS_REFUSED, {(each,): self._metrics.strangers[each] for each in Stranger})
        yield _one(catalogue.IDLE_CLOSED, self._limits.closed)
        yield _one(catalogue.UNKNOWN_REQUESTS, self._unknown_requests)
        seen = shown_unknown(self._tree)
        yield _one(catalogue.UNKNOWN_MACHINES, len(seen.machines) if seen is not None else 0)
        if self._certificate is not None:
            yield _one(catalogue.CERTIFICATE_READ, self._certificate.failure is None)
            if (ends := self._certificate.ends) is not None:
                yield _one(catalogue.CERTIFICATE_ENDS, ends.timestamp())
        yield from of_status(self._tree.status())


def of_status(status: Mapping[str, Any]) -> Iterator[Metric]:
    """How an instance fares by its status."""
    commits = {state: status[state]["commit"] for state in ("attempted", "accepted", "applied")}
    yield _metric(catalogue.COMMIT, {(state, name): 1 for state, name in commits.items() if name is not None})
    if (committed := status["accepted"].get("committedAt")) is not None:
        yield _one(catalogue.ACCEPTED_COMMIT_AT, datetime.fromisoformat(committed).timestamp())
    problems = Counter((each["severity"], each["code"]) for each in status["attempted"]["problems"])
    yield _metric(catalogue.PROBLEMS, problems)
    for family, key in _COUNTED.items():
        yield _metric(family, {(each,): count for each, count in status.get(key, {}).items()})
    yield from _of_installations(status)
    yield from _of_stages(status.get("stages", {}))
    yield from _of_conditions(status["conditions"])
    for family, key in _INSTANTS.items():
        if (at := status.get(key)) is not None:
            yield _one(family, datetime.fromisoformat(at).timestamp())


# By the word for it in the status; an older instance has not all of them.
_COUNTED: Final = {
    catalogue.SERVERS: "phases",
    catalogue.RECORDS: "records",
    catalogue.INSTALLS: "installs",
    catalogue.RUNS: "runs",
    catalogue.DRIFT: "drift",
    catalogue.BMCS: "bmcs",
    catalogue.BELOW: "belowMinimumVersion",
}
_INSTANTS: Final = {
    catalogue.STATUS_AT: "at",
    catalogue.PLANNED_AT: "plannedAt",
    catalogue.NEXT_TRANSITION: "nextTransition",
}


def _of_installations(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield how many servers are at an installation, and since when nothing new was seen of the oldest one."""
    counts = {tuple(each.split("/")): count for each, count in status.get("installing", {}).items()}
    yield _metric(catalogue.INSTALLING, counts)
    if instants := [datetime.fromisoformat(each["at"]) for each in status.get("installations", ())]:
        yield _one(catalogue.INSTALLING_STEP_AT, min(instants).timestamp())


def _of_conditions(conditions: list[dict[str, Any]]) -> Iterator[Metric]:
    """The instance's own conditions, and how many BMCs have which: of those there is one for each server."""
    own = [each for each in conditions if "/" not in each["type"]]
    of_bmcs = Counter((each["reason"],) for each in conditions if "/" in each["type"] and not each["status"])
    holds = {(each["type"], str(word).lower()): each["status"] is word for each in own for word in (True, False)}
    yield _metric(catalogue.CONDITION, holds)
    yield _metric(catalogue.CONDITION_REASON, {(each["type"], each["reason"]): 1 for each in own})
    yield _metric(catalogue.BMC_CONDITIONS, {**{(reason,): 0 for reason in REMEDIES[BMC]}, **of_bmcs})


def _of_stages(stages: Mapping[str, Any]) -> Iterator[Metric]:
    whole = stages.get("reconcile")
    yield _histogram(catalogue.RECONCILE, {(): whole} if whole is not None else {})
    yield _histogram(catalogue.STAGE, {(name,): each for name, each in stages.items() if name != "reconcile"})


def _histogram(family: Family, values: Mapping[L, Mapping[str, Any]]) -> Metric:
    metric = Metric(family.name, family.says, family.kind)
    for labels, each in sorted(values.items()):
        named = dict(zip(family.labels, labels, strict=True))
        totals = list(accumulate(each["counts"]))
        for bound, total in zip((*each["boundsS"], inf), totals, strict=True):
            metric.add_sample(family.sample, {**named, "le": str(bound) if bound < inf else "+Inf"}, total)
        metric.add_sample(f"{family.name}_count", named, totals[-1])
        metric.add_sample(f"{family.name}_sum", named, each["seconds"])
    return metric


def _one(family: Family, value: float, *labels: str) -> Metric:
    return _metric(family, {labels: value})


def _metric(family: Family, values: Mapping[L, float]) -> Metric:
    metric = Metric(family.name, family.says, family.kind)
    for labels, value in sorted(values.items()):
        metric.add_sample(family.sample, dict(zip(family.labels, labels, strict=True)), value)
    return metric
