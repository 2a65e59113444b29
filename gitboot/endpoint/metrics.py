"""Every metric that an endpoint shows: its name, what it says, and the labels that tell its values apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


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
