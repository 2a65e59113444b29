"""What is known of provisioning: first records, and the evidence that a boot was made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from gitboot.answers import ServerState
from gitboot.journal import Journal
from gitboot.ledger import Ledger
from gitboot.model.policy import NetworkBoot
from gitboot.model.scalars import Digest, SystemUuid
from gitboot.plan import FETCH_GRACE, BootPlan, Decision, Phase, Record
from gitboot.records import first_records
from gitboot.resolve import Decisions
from gitboot.resolve.instant import is_met


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A boot that was published: what its being made would prove."""

    decision: Decision
    plan: BootPlan


class Provisioning:
    """The records of all servers, as the ledger has them, and what meets their keys."""

    def __init__(self, ledger: Ledger, journal: Journal, *, told: str | None) -> None:
        self._ledger, self._journal = ledger, journal
        self._told = told  # fresh or adopt: what a ledger that was never told is told
        self._records = ledger.records()
        self._known: Decisions | None = None  # whose servers have their records
        self._offers: dict[Digest, Offer] = {}  # by plan, of all that this process has published

    @property
    def records(self) -> Mapping[SystemUuid, Record]:
        """What is known, by UUID; a UUID that is missing is unknown. Another mapping whenever more is known."""
        return self._records

    def know(self, decisions: Decisions, at: datetime) -> None:
        """Give each server that the ledger sees for the first time its first record.

        A new ledger cannot know whether servers with provision 1 or more are installed. Until it is told,
        nothing is known of any server.
        """
        if decisions is self._known:
            return
        servers = decisions.servers.values()
        if not self._ledger.told:
            wanting = sum(decision.provision > 0 for decision in servers)
            if self._told is None and wanting:
                message = (
                    f"{wanting} servers want provision 1 or more, and a new ledger cannot know whether they are "
                    "installed: start with --records fresh (none is) or --records adopt (all are)"
                )
                if self._journal.condition("RecordsKnown", False, "NewLedger", message, at):
                    self._journal.event(at, "RecordsUnknown", message, warning=True)
                return
            adopt_all = self._told != "fresh"
            self._write(first_records(servers, self._records, adopt_all=adopt_all))
            self._ledger.tell("adopt" if adopt_all else "fresh")
        # A name that another record has: a new motherboard, or a mended UUID. Nothing is known of it.
        names = self._ledger.names()
        fresh = [decision for decision in servers if names.get(decision.server, decision.uuid) == decision.uuid]
        self._write(first_records(fresh, self._records, adopt_all=False))
        self._known = decisions
        self._journal.condition("RecordsKnown", True, "Known", "the ledger knows every server", at)

    def offer(self, state: ServerState) -> None:
        """Remember what was published for a server, now and next."""
        for plan in (state.plan, *(plan for _, plan in state.later)):
            if plan is not None and plan.boot is not None:
                self._offers[plan.digest] = Offer(decision=state.decision, plan=plan)

    def offered(self, digest: Digest) -> Offer | None:
        """The published boot of a plan."""
        return self._offers.get(digest)

    def meet(self, offer: Offer, made_at: datetime, evidence: str, at: datetime) -> None:
        """Record that a boot was made at ``made_at``, if it is one that is made only once. Twice is as once."""
        decision, plan = offer.decision, offer.plan
        record = self._records.get(decision.uuid)
        if record is None or plan.boot is None:
            return
        if plan.phase is Phase.MAINTENANCE:
            met, what = self._run_made(offer, record, made_at)
        else:
            met, what = self._key_met(offer, record, made_at, evidence)
        if met is record:
            return
        self._write([(decision.uuid, decision.server, met)])
        self._journal.event(
            at,
            "Provisioned" if plan.phase is Phase.NETWORK else "MaintenanceBooted",
            f"{decision.server}: {what} ({evidence})",
            {"server": decision.server, "evidence": evidence, "image": plan.boot.image, "plan": plan.digest},
        )

    def spent(self, decision: Decision, key: str, at: datetime) -> None:
        """Record that the override for a key was consumed, and that no evidence has followed yet."""
        record = self._records.get(decision.uuid)
        if record is not None and record.spent_key != key:
            self._write([(decision.uuid, decision.server, replace(record, spent_at=at, spent_key=key))])

    @staticmethod
    def _run_made(offer: Offer, record: Record, made_at: datetime) -> tuple[Record, str]:
        maintenance = next(each for each in offer.decision.maintenances if each.name == offer.plan.maintenance)
        made, _ = record.runs.get(maintenance.name, (-1, made_at))
        if maintenance.network_boot is not NetworkBoot.ONCE or made >= maintenance.run:
            return record, ""
        runs = {**record.runs, maintenance.name: (maintenance.run, made_at)}
        return replace(record, runs=runs), f"run {maintenance.run} of Maintenance/{maintenance.name} was booted"

    @staticmethod
    def _key_met(offer: Offer, record: Record, made_at: datetime, evidence: str) -> tuple[Record, str]:
        policy, boot = offer.decision.policy, offer.plan.boot
        if policy is None or boot is None or policy.network_boot not in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE):
            return record, ""
        if is_met(policy, record):
            return record, ""
        met = replace(
            record,
            provision=max(policy.provision, record.provision or 0),
            image=boot.image,
            pool=policy.policy,
            decision=offer.decision.digest,
            evidence=evidence,
            met_at=made_at,
            grace_until=made_at + FETCH_GRACE if evidence == "Fetched" else None,
            spent_at=None,
            spent_key=None,
        )
        return met, f"provision {policy.provision} is met with BootImage/{boot.image}"

    def _write(self, records: Iterable[tuple[SystemUuid, str, Record]]) -> None:
        written = list(records)
        if written:
            self._ledger.write_records(written)
            self._records = {**self._records, **{uuid: record for uuid, _, record in written}}
