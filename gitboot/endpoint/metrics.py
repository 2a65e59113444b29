"""Prometheus metrics of an endpoint and of its instance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeVar

from msgspec import Struct
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from gitboot import __version__
from gitboot.endpoint.access_control import OperatorDenial
from gitboot.endpoint.boot_responses import RequestKind
from gitboot.endpoint.served_files import read_unknown_machines
from gitboot.endpoint.tls import HandshakeFailure
from gitboot.fetchlog.log_entries import DenialReason
from gitboot.status.conditions import BMC, CONDITIONS

if TYPE_CHECKING:
    from gitboot.endpoint.app import Endpoint


class MetricKind(StrEnum):
    """The type of a metric in Prometheus and OpenMetrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


_SUFFIXES: Final = {MetricKind.COUNTER: "_total", MetricKind.INFO: "_info", MetricKind.HISTOGRAM: "_bucket"}


class Family(Struct, frozen=True):
    """A metric family. The number of label values must not grow with the number of servers."""

    name: str  # the name without the suffix that the metric's kind requires
    kind: MetricKind
    help_text: str
    labels: tuple[str, ...] = ()
    values: str = ""  # a description of the label values, if they are not obvious

    @property
    def sample_name(self) -> str:
        """The name of the metric in Prometheus queries."""
        return f"{self.name}{_SUFFIXES.get(self.kind, '')}"


_COUNTER, _GAUGE, _HISTOGRAM, _INFO = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM, MetricKind.INFO
FAMILIES: Final = (
    # Metrics of this endpoint
    Family("gitboot_build", _INFO, "The version of gitboot that serves this page.", ("version",)),
    Family(
        "gitboot_ready",
        _GAUGE,
        "1 if the endpoint is ready, which means that it serves every boot that machines may get.",
    ),
    Family(
        "gitboot_fetch_log_writable",
        _GAUGE,
        "1 if the endpoint can record fetches in the spool; absent if the endpoint has no spool.",
    ),
    Family(
        "gitboot_clock_offset_seconds",
        _GAUGE,
        "Seconds by which the endpoint's clock is ahead of the instance's clock; 0 if the difference is within the "
        "limit.",
    ),
    Family(
        "gitboot_http_requests",
        _COUNTER,
        "Responses to requests.",
        ("kind", "status"),
        "kind: boot_script (boot scripts and reports), file, page, artifact, inventory (from unknown machines), "
        "not_found; status: the HTTP status",
    ),
    Family(
        "gitboot_boots_withheld",
        _COUNTER,
        "Install boots and secrets that the endpoint withheld.",
        ("reason",),
        "the same reasons as in events and in the condition BootsServed",
    ),
    Family(
        "gitboot_operator_requests_rejected",
        _COUNTER,
        "Rejected requests for operator pages.",
        ("reason",),
    ),
    Family(
        "gitboot_idle_connections_closed",
        _COUNTER,
        "Idle connections that the endpoint closed to make room for others.",
    ),
    Family("gitboot_unknown_machine_requests", _COUNTER, "Boot requests from unknown machines."),
    Family(
        "gitboot_operators_certificate_readable",
        _GAUGE,
        "1 if the endpoint uses the current certificate files, 0 if it uses an older certificate; absent if TLS is not "
        "configured.",
    ),
    Family(
        "gitboot_operators_certificate_expiration_timestamp_seconds",
        _GAUGE,
        "The time at which the certificate for operators expires; absent if TLS is not configured.",
    ),
    Family(
        "gitboot_machines_certificate_readable",
        _GAUGE,
        "1 if the endpoint uses the current certificate files for machines, 0 if it uses an older certificate; absent "
        "without machines-tls.",
    ),
    Family(
        "gitboot_machines_certificate_expiration_timestamp_seconds",
        _GAUGE,
        "The time at which the certificate for machines expires; absent if machines-tls is not set.",
    ),
    Family(
        "gitboot_machine_handshakes_failed",
        _COUNTER,
        "Failed TLS handshakes with machines; absent if machines-tls is not set.",
        ("reason",),
        "NoSharedCipher: the machine does not support any of the endpoint's cipher suites; CertificateRejected: the "
        "machine does not accept the certificate; Closed: the machine closed the connection, as firmware does if it "
        "does not accept the certificate; Other: for example, the machine does not use TLS",
    ),
    # Metrics of the instance, from its status in the tree
    Family(
        "gitboot_status_timestamp_seconds",
        _GAUGE,
        "The time at which the instance last wrote its status. The instance writes its status at each reconcile.",
    ),
    Family(
        "gitboot_commit",
        _INFO,
        "The newest commit in each state.",
        ("state", "commit"),
        "state: attempted (the newest), accepted, applied",
    ),
    Family(
        "gitboot_accepted_commit_timestamp_seconds",
        _GAUGE,
        "The committer time of the accepted commit; absent until a commit is accepted.",
    ),
    Family(
        "gitboot_commit_problems",
        _GAUGE,
        "Problems and warnings in the newest commit.",
        ("severity", "code"),
        "code: see problems.md",
    ),
    Family("gitboot_servers", _GAUGE, "Servers by phase. The phase shows what a server boots now.", ("phase",)),
    Family("gitboot_records", _GAUGE, "Servers by the state of their provisioning record.", ("known",)),
    Family(
        "gitboot_installs",
        _GAUGE,
        "Servers that may fetch an install boot now, or whose plan contains an install boot for later.",
        ("when",),
        "when: Now, Later",
    ),
    Family(
        "gitboot_maintenance_runs",
        _GAUGE,
        "Servers in an open maintenance window, by the last step of their one-time boot.",
        ("step",),
    ),
    Family(
        "gitboot_servers_installing",
        _GAUGE,
        "The number of servers that have fetched an install boot and have no evidence of completion yet.",
        ("state", "step"),
        "state: Installing, or Served if no evidence of completion is configured; step: the last step",
    ),
    Family(
        "gitboot_installing_last_step_timestamp_seconds",
        _GAUGE,
        "The time of the last step in the installation that has waited longest for its next step; absent if no "
        "installation is running.",
    ),
    Family("gitboot_drifted_servers", _GAUGE, "Provisioned servers that differ from their plan.", ("type",)),
    Family("gitboot_bmcs", _GAUGE, "BMCs with a task, by the result of their last task.", ("outcome",)),
    Family(
        "gitboot_servers_below_minimum_version",
        _GAUGE,
        "Servers whose policy boots a version below their stream's minimum, for each stream with a minimum.",
        ("stream",),
    ),
    Family(
        "gitboot_condition",
        _GAUGE,
        "1 for the current status of each condition, 0 for the other status.",
        ("type", "status"),
        "status: true, false",
    ),
    Family("gitboot_condition_reason", _GAUGE, "1 for the current reason of each condition.", ("type", "reason")),
    Family(
        "gitboot_bmc_conditions",
        _GAUGE,
        "BMCs whose condition is false, by reason.",
        ("reason",),
        "the same reasons as in the condition Bmc/SERVER",
    ),
    Family("gitboot_planned_timestamp_seconds", _GAUGE, "The time at which the instance last planned all boots."),
    Family(
        "gitboot_next_transition_timestamp_seconds",
        _GAUGE,
        "The time of the next transition, when a plan changes without a commit; absent if no plan will change.",
    ),
    Family(
        "gitboot_unknown_machines",
        _GAUGE,
        "Unknown machines that requested a boot in the last 30 days; at most 1,000.",
    ),
    Family("gitboot_reconcile_duration_seconds", _HISTOGRAM, "Duration of reconciles since the instance started."),
    Family(
        "gitboot_stage_duration_seconds",
        _HISTOGRAM,
        "Duration of each stage since the instance started.",
        ("stage",),
        "stages of a reconcile: take_in, accept, learn, write_ledger, plan, publish, start_bmc_tasks, report; in "
        "parallel: fetch, evaluate (one commit), bmc (one task)",
    ),
)


_BY_NAME: Final = {family.name: family for family in FAMILIES}
_OPENMETRICS: Final = "application/openmetrics-text"
L = TypeVar("L", bound=tuple[str, ...])  # label values


class Exposition(Collector):
    """Collects all metrics for one request for the metrics page."""

    def __init__(self, endpoint: Endpoint, unready_reason: str | None) -> None:
        self._endpoint, self._unready_reason = endpoint, unready_reason

    def render(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics page and its content type.

        The format is OpenMetrics if the client accepts OpenMetrics, and otherwise the Prometheus text format.
        """
        encode, content_type = choose_encoder(_OPENMETRICS if _OPENMETRICS in accept.lower() else "")
        return encode(self), content_type

    def collect(self) -> Iterator[Metric]:
        endpoint = self._endpoint
        yield _build_single_metric("gitboot_build", 1, __version__)
        yield _build_single_metric("gitboot_ready", self._unready_reason is None)
        if endpoint.recorder is not None:
            yield _build_single_metric("gitboot_fetch_log_writable", endpoint.recorder.failure is None)
        offset = endpoint.tree.clock.offset
        yield _build_single_metric("gitboot_clock_offset_seconds", offset.total_seconds() if offset is not None else 0)
        # The series start at 0, so that Prometheus sees the first error as an increase.
        initial_counts = {(kind, "500"): 0 for kind in RequestKind}
        requests = {(kind, str(code)): count for (kind, code), count in endpoint.requests.items()}
        yield _build_metric("gitboot_http_requests", initial_counts | requests)
        yield _build_metric(
            "gitboot_boots_withheld", {(reason,): endpoint.denials.counts[reason] for reason in DenialReason}
        )
        yield _build_metric(
            "gitboot_operator_requests_rejected",
            {(reason,): endpoint.operator_denials[reason] for reason in OperatorDenial},
        )
        yield _build_single_metric("gitboot_idle_connections_closed", endpoint.limits.closed_count)
        yield _build_single_metric("gitboot_unknown_machine_requests", endpoint.unknown_machines.recorder.requests)
        unknown_machines = read_unknown_machines(endpoint.tree)
        yield _build_single_metric(
            "gitboot_unknown_machines", len(unknown_machines.machines) if unknown_machines is not None else 0
        )
        for users, certificate in (("operators", endpoint.certificate), ("machines", endpoint.machines_certificate)):
            if certificate is not None:
                name = f"gitboot_{users}_certificate"
                yield _build_single_metric(f"{name}_readable", certificate.failure is None)
                if (ends := certificate.ends) is not None:
                    yield _build_single_metric(f"{name}_expiration_timestamp_seconds", ends.timestamp())
        if endpoint.machines_certificate is not None:
            yield _build_metric(
                "gitboot_machine_handshakes_failed",
                {(reason,): endpoint.failed_handshakes[reason] for reason in HandshakeFailure},
            )
        yield from collect_status(endpoint.tree.read_status())


# The key in the instance's status for each metric. The status of an older version may lack some keys.
_COUNT_KEYS: Final = {
    "gitboot_servers": "phases",
    "gitboot_records": "records",
    "gitboot_installs": "installs",
    "gitboot_maintenance_runs": "runs",
    "gitboot_drifted_servers": "drift",
    "gitboot_bmcs": "bmcs",
    "gitboot_servers_below_minimum_version": "belowMinimumVersion",
}
_TIME_KEYS: Final = {
    "gitboot_status_timestamp_seconds": "at",
    "gitboot_planned_timestamp_seconds": "plannedAt",
    "gitboot_next_transition_timestamp_seconds": "nextTransition",
}


def collect_status(status: Mapping[str, Any]) -> Iterator[Metric]:
    """Yield the metrics that gitboot computes from an instance's status."""
    commits = {state: status[state]["commit"] for state in ("attempted", "accepted", "applied")}
    yield _build_metric(
        "gitboot_commit", {(state, commit): 1 for state, commit in commits.items() if commit is not None}
    )
    if (committed := status["accepted"].get("committedAt")) is not None:
        yield _build_single_metric(
            "gitboot_accepted_commit_timestamp_seconds", datetime.fromisoformat(committed).timestamp()
        )
    problems = status["attempted"]["problems"]
    yield _build_metric(
        "gitboot_commit_problems", Counter((problem["severity"], problem["code"]) for problem in problems)
    )
    for name, key in _COUNT_KEYS.items():
        yield _build_metric(name, {(label,): count for label, count in status.get(key, {}).items()})
    yield _build_metric(
        "gitboot_servers_installing",
        {tuple(state_and_step.split("/")): count for state_and_step, count in status.get("installing", {}).items()},
    )
    if instants := [datetime.fromisoformat(step["at"]) for step in status.get("installations", ())]:
        yield _build_single_metric("gitboot_installing_last_step_timestamp_seconds", min(instants).timestamp())
    stages = dict(status.get("stages", {}))
    reconciles = stages.pop("reconcile", None)
    yield _build_histogram("gitboot_reconcile_duration_seconds", {(): reconciles} if reconciles is not None else {})
    yield _build_histogram("gitboot_stage_duration_seconds", {(name,): stage for name, stage in stages.items()})
    instance_conditions = [condition for condition in status["conditions"] if "/" not in condition["type"]]
    yield _build_metric(
        "gitboot_condition",
        {
            (condition["type"], str(value).lower()): condition["status"] is value
            for condition in instance_conditions
            for value in (True, False)
        },
    )
    yield _build_metric(
        "gitboot_condition_reason",
        {(condition["type"], condition["reason"]): 1 for condition in instance_conditions},
    )
    bmc_counts = {(reason,): 0 for reason in CONDITIONS[BMC].remedies}
    bmc_counts |= Counter(
        (condition["reason"],)
        for condition in status["conditions"]
        if "/" in condition["type"] and not condition["status"]
    )
    yield _build_metric("gitboot_bmc_conditions", bmc_counts)
    for name, key in _TIME_KEYS.items():
        if (at := status.get(key)) is not None:
            yield _build_single_metric(name, datetime.fromisoformat(at).timestamp())


def _build_histogram(name: str, values: Mapping[L, Mapping[str, Any]]) -> Metric:
    family = _BY_NAME[name]
    metric = Metric(name, family.help_text, family.kind)
    for labels, histogram in sorted(values.items()):
        label_values = dict(zip(family.labels, labels, strict=True))
        totals = list(accumulate(histogram["counts"]))
        for bound, total in zip((*histogram["boundsS"], inf), totals, strict=True):
            metric.add_sample(family.sample_name, {**label_values, "le": str(bound) if bound < inf else "+Inf"}, total)
        metric.add_sample(f"{name}_count", label_values, totals[-1])
        metric.add_sample(f"{name}_sum", label_values, histogram["seconds"])
    return metric


def _build_single_metric(name: str, value: float, *labels: str) -> Metric:
    return _build_metric(name, {labels: value})


def _build_metric(name: str, values: Mapping[L, float]) -> Metric:
    family = _BY_NAME[name]
    metric = Metric(name, family.help_text, family.kind)
    for labels, value in sorted(values.items()):
        metric.add_sample(family.sample_name, dict(zip(family.labels, labels, strict=True)), value)
    return metric
