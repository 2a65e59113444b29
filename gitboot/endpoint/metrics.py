"""Prometheus metrics of an endpoint and of its instance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import accumulate
from math import inf
from typing import Any, Final, TypeVar

from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gitboot import __version__
from gitboot.endpoint.access_control import Stranger
from gitboot.endpoint.boot_responses import Answered, Metrics
from gitboot.endpoint.connections import Limits
from gitboot.endpoint.recorder import Recorder
from gitboot.endpoint.served_files import PublishedTree, shown_unknown
from gitboot.endpoint.tls import Certificate
from gitboot.fetchlog.log_entries import WhyNot
from gitboot.status.conditions import BMC, REMEDIES


class MetricKind(StrEnum):
    """What a metric is, as Prometheus and OpenMetrics call it."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Family:
    """One metric. No label has as many values as there are servers."""

    name: str  # without the suffix of its kind
    kind: MetricKind
    says: str
    labels: tuple[str, ...] = ()
    values: str = ""  # of the labels, where they are not clear

    @property
    def sample(self) -> str:
        """The name by which it is asked for."""
        return f"{self.name}{_SUFFIXES.get(self.kind, '')}"


_SUFFIXES: Final = {MetricKind.COUNTER: "_total", MetricKind.INFO: "_info", MetricKind.HISTOGRAM: "_bucket"}
_COUNTER, _GAUGE, _HISTOGRAM, _INFO = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM, MetricKind.INFO
# Of the endpoint that is asked

BUILD: Final = Family("gitboot_build", _INFO, "The version of gitboot that answers.", ("version",))
READY: Final = Family("gitboot_ready", _GAUGE, "Whether every boot is given that there is to give.")
RECORDING: Final = Family(
    "gitboot_recording", _GAUGE, "Whether fetches can be recorded in the spool; absent without one."
)
CLOCK_OFF: Final = Family(
    "gitboot_clock_off_seconds", _GAUGE, "How far the clock is ahead of the instance's; 0 while that is in bounds."
)
REQUESTS: Final = Family(
    "gitboot_http_requests",
    _COUNTER,
    "Requests answered.",
    ("kind", "status"),
    "kind: entry (what boots a machine, or reports), file, page, artifact, inventory (what unknown machines send), "
    "nothing; status: of HTTP",
)
BOOTS_REFUSED: Final = Family(
    "gitboot_boots_refused",
    _COUNTER,
    "Boots that write a disk, and secrets, that were not given.",
    ("reason",),
    "as in events and in the condition BootsGiven",
)
OPERATORS_REFUSED: Final = Family(
    "gitboot_operators_refused",
    _COUNTER,
    "Requests for operators' pages by whoever is not taken for an operator.",
    ("reason",),
)
IDLE_CLOSED: Final = Family(
    "gitboot_idle_connections_closed", _COUNTER, "Idle connections closed to make room for others."
)
UNKNOWN_REQUESTS: Final = Family(
    "gitboot_unknown_requests", _COUNTER, "Requests for a boot by machines that no document describes."
)
CERTIFICATE_READ: Final = Family(
    "gitboot_operators_certificate_read",
    _GAUGE,
    "Whether operators are shown the certificate that stands in its files now; absent without TLS.",
)
CERTIFICATE_ENDS: Final = Family(
    "gitboot_operators_certificate_expiration_timestamp_seconds",
    _GAUGE,
    "When the certificate that operators are shown ends; absent without TLS.",
)
# Of the instance, as the tree has its status

STATUS_AT: Final = Family(
    "gitboot_status_timestamp_seconds",
    _GAUGE,
    "When the instance said last how it fares, which it does at each reconcile.",
)
COMMIT: Final = Family(
    "gitboot_commit", _INFO, "Commits.", ("state", "commit"), "state: attempted (last), accepted, applied"
)
ACCEPTED_COMMIT_AT: Final = Family(
    "gitboot_accepted_commit_timestamp_seconds",
    _GAUGE,
    "The committer time of the accepted commit; absent until a commit is accepted.",
)
PROBLEMS: Final = Family(
    "gitboot_commit_problems",
    _GAUGE,
    "Problems of the commit attempted last, warnings too.",
    ("severity", "code"),
    "code: of problems.md",
)
SERVERS: Final = Family("gitboot_servers", _GAUGE, "Servers by what they boot now.", ("phase",))
RECORDS: Final = Family("gitboot_records", _GAUGE, "Servers by what is known of their provisioning.", ("known",))
INSTALLS: Final = Family(
    "gitboot_installs",
    _GAUGE,
    "Servers that are offered a boot that may write their disks, or will be as far as is planned.",
    ("when",),
    "when: Now, Later",
)
RUNS: Final = Family(
    "gitboot_maintenance_runs", _GAUGE, "Servers in an open window by what was seen of their one boot.", ("step",)
)
INSTALLING: Final = Family(
    "gitboot_servers_installing",
    _GAUGE,
    "Servers from the first fetch of an install boot until there is evidence of completion.",
    ("state", "step"),
    "state: Installing, or Served if nothing reports completion; step: the last one",
)
INSTALLING_STEP_AT: Final = Family(
    "gitboot_installing_last_step_timestamp_seconds",
    _GAUGE,
    "The time of the oldest last step of all servers at an installation; absent if there are none.",
)
DRIFT: Final = Family("gitboot_drift", _GAUGE, "Provisioned servers that are not as planned.", ("type",))
BMCS: Final = Family(
    "gitboot_bmcs", _GAUGE, "BMCs of which something is wanted, by what came of it last.", ("outcome",)
)
BELOW: Final = Family(
    "gitboot_servers_below_minimum_version",
    _GAUGE,
    "Servers whose policy boots a version below their stream's minimum, of each stream that has one.",
    ("stream",),
)
CONDITION: Final = Family(
    "gitboot_condition",
    _GAUGE,
    "Whether a condition has this status: 1 for the one that it has, 0 for the other.",
    ("type", "status"),
    "status: true, false",
)
CONDITION_REASON: Final = Family(
    "gitboot_condition_reason", _GAUGE, "1 for the reason that a condition has.", ("type", "reason")
)
BMC_CONDITIONS: Final = Family(
    "gitboot_bmc_conditions",
    _GAUGE,
    "BMCs whose condition does not hold, by its reason.",
    ("reason",),
    "as of the condition Bmc/SERVER",
)
PLANNED_AT: Final = Family("gitboot_planned_timestamp_seconds", _GAUGE, "When the answers were last planned.")
NEXT_TRANSITION: Final = Family(
    "gitboot_next_transition_timestamp_seconds", _GAUGE, "When they next change by the clock; absent if they never do."
)
UNKNOWN_MACHINES: Final = Family(
    "gitboot_unknown_machines",
    _GAUGE,
    "Machines that asked for a boot within 30 days, and that no document describes; at most 1,000.",
)
RECONCILE: Final = Family(
    "gitboot_reconcile_duration_seconds", _HISTOGRAM, "How long reconciles take, since the instance's start."
)
STAGE: Final = Family(
    "gitboot_stage_duration_seconds",
    _HISTOGRAM,
    "How long each part of the work takes, since the instance's start.",
    ("stage",),
    "of a reconcile: take_in, accept, learn, write, plan, publish, ask, report; beside them: fetch, evaluate (one "
    "commit), bmc (one job)",
)


def families() -> Iterator[Family]:
    """All of them, in the order in which they are explained and shown."""
    yield from (each for each in globals().values() if isinstance(each, Family))


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
        yield _one(BUILD, 1, __version__)
        yield _one(READY, self._why_not_ready is None)
        if self._records is not None:
            yield _one(RECORDING, self._records.failure is None)
        off = self._tree.clock.off
        yield _one(CLOCK_OFF, off.total_seconds() if off is not None else 0)
        faults = {(kind, "500"): 0 for kind in Answered}  # so that the first is an increase
        requests = {(kind, str(code)): count for (kind, code), count in self._metrics.requests.items()}
        yield _metric(REQUESTS, faults | requests)
        yield _metric(BOOTS_REFUSED, {(each,): self._refused.get(each, 0) for each in WhyNot})
        yield _metric(OPERATORS_REFUSED, {(each,): self._metrics.strangers[each] for each in Stranger})
        yield _one(IDLE_CLOSED, self._limits.closed)
        yield _one(UNKNOWN_REQUESTS, self._unknown_requests)
        seen = shown_unknown(self._tree)
        yield _one(UNKNOWN_MACHINES, len(seen.machines) if seen is not None else 0)
        if self._certificate is not None:
            yield _one(CERTIFICATE_READ, self._certificate.failure is None)
            if (ends := self._certificate.ends) is not None:
                yield _one(CERTIFICATE_ENDS, ends.timestamp())
        yield from of_status(self._tree.status())


def of_status(status: Mapping[str, Any]) -> Iterator[Metric]:
    """How an instance fares by its status."""
    commits = {state: status[state]["commit"] for state in ("attempted", "accepted", "applied")}
    yield _metric(COMMIT, {(state, name): 1 for state, name in commits.items() if name is not None})
    if (committed := status["accepted"].get("committedAt")) is not None:
        yield _one(ACCEPTED_COMMIT_AT, datetime.fromisoformat(committed).timestamp())
    problems = Counter((each["severity"], each["code"]) for each in status["attempted"]["problems"])
    yield _metric(PROBLEMS, problems)
    for family, key in _COUNTED.items():
        yield _metric(family, {(each,): count for each, count in status.get(key, {}).items()})
    yield _metric(INSTALLING, {tuple(each.split("/")): count for each, count in status.get("installing", {}).items()})
    if instants := [datetime.fromisoformat(each["at"]) for each in status.get("installations", ())]:
        yield _one(INSTALLING_STEP_AT, min(instants).timestamp())
    stages = dict(status.get("stages", {}))
    whole = stages.pop("reconcile", None)
    yield _histogram(RECONCILE, {(): whole} if whole is not None else {})
    yield _histogram(STAGE, {(name,): each for name, each in stages.items()})
    own = [each for each in status["conditions"] if "/" not in each["type"]]
    holds = {(each["type"], str(word).lower()): each["status"] is word for each in own for word in (True, False)}
    yield _metric(CONDITION, holds)
    yield _metric(CONDITION_REASON, {(each["type"], each["reason"]): 1 for each in own})
    of_bmcs = (each for each in status["conditions"] if "/" in each["type"] and not each["status"])
    none = {(reason,): 0 for reason in REMEDIES[BMC]}
    yield _metric(BMC_CONDITIONS, {**none, **Counter((each["reason"],) for each in of_bmcs)})
    for family, key in _INSTANTS.items():
        if (at := status.get(key)) is not None:
            yield _one(family, datetime.fromisoformat(at).timestamp())


# By the word for it in the status; an older instance has not all of them.
_COUNTED: Final = {
    SERVERS: "phases",
    RECORDS: "records",
    INSTALLS: "installs",
    RUNS: "runs",
    DRIFT: "drift",
    BMCS: "bmcs",
    BELOW: "belowMinimumVersion",
}
_INSTANTS: Final = {
    STATUS_AT: "at",
    PLANNED_AT: "plannedAt",
    NEXT_TRANSITION: "nextTransition",
}


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
