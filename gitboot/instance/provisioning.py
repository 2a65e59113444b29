"""What is known of provisioning: first records, and the evidence that a boot was made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from gitboot.errors import UsageError
from gitboot.instance.journal import Journal
from gitboot.instance.offers import fetches, offers_of, provisioned, run_made
from gitboot.ledger import Ledger
from gitboot.load.machines import Machine, taken_over
from gitboot.model.fleet import Evidence
from gitboot.model.policy import NetworkBoot, OverrideMode
from gitboot.model.scalars import Digest, SystemUuid
from gitboot.phrases import some
from gitboot.plan import Boot, Decision, Offer, Phase, Record
from gitboot.render.schedule import ServerState
from gitboot.resolve import Decisions
from gitboot.resolve.instant import has_run, is_provisioned
from gitboot.resolve.records import adopted, first_records
from gitboot.status import Condition

Told = str | Mapping[SystemUuid, Record]  # fresh, adopt, or exported records

KEPT: Final = timedelta(days=90)  # how long it is remembered what was offered and fetched

_HINTS: Final = {
    "NewLedger": "start with --records fresh (none is), adopt (all are), or a file of exported records",
    "RestoredLedger": "start with --records adopt (all is as Git wants it) or with a newer file of exported records "
    "(ops/records.json of the published tree)",
    "ForeignLedger": "choose another --output, or start with --records adopt or ops/records.json of that tree",
    "DamagedLedger": "start with --records adopt (all is as Git wants it) or ops/records.json of the published tree",
}


class Provisioning:
    """The records of all servers, as the ledger has them, and what provisions them."""

    def __init__(
        self,
        ledger: Ledger,
        journal: Journal,
        *,
        told: Told | None,
        foreign: bool = False,
        observes: bool = True,
    ) -> None:
        self._ledger, self._journal = ledger, journal
        self._told = told  # what a ledger in doubt is told
        self._foreign = foreign  # whether another ledger's tree lies where this one is to publish
        ledger.observes, ledger.foreign = observes, foreign
        self._observes = observes  # whether fetches reach this instance at all
        self._records: Mapping[SystemUuid, Record] = ledger.records()
        self._usable: Mapping[SystemUuid, Record] | None = None
        self._known: Decisions | None = None  # whose servers have their records
        self._reported: Mapping[SystemUuid, Record] | None = None  # what the conditions were made of last
        self._machines: Mapping[SystemUuid, Machine] = {}  # of the accepted commit
        self._offers: dict[Digest, Offer] = {}  # that this process has made
        self._unwritten: dict[Digest, Offer] = {}  # of them, those that the ledger does not have yet

    @property
    def records(self) -> Mapping[SystemUuid, Record]:
        """What is known, by UUID; a UUID that is missing is unknown. Another mapping whenever more is known.

        Nothing is known of a server whose boot this instance could not see being made: it would be installed
        again and again.
        """
        if self._usable is None:
            self._usable = self._provable()
        return self._usable

    def left_to_install(self, decisions: Decisions) -> int:
        """How many servers a first commit would install, by what is known or told."""
        return sum(
            each.policy is not None
            and each.policy.boot is not None
            and each.policy.network_boot in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
            and (record := self._foretold(each)) is not None
            and not is_provisioned(each.policy, record)
            for each in decisions.servers.values()
        )

    def _foretold(self, decision: Decision) -> Record | None:
        """The record that a server will have."""
        if self._ledger.told:
            return self._records.get(decision.uuid, Record())
        if isinstance(self._told, str):
            fresh = self._told == "fresh" and decision.provision > 0
            return Record() if fresh else adopted(decision)
        return self._told.get(decision.uuid) if self._told is not None else None

    def recorded(self, uuid: SystemUuid) -> Record | None:
        """What the ledger has of a server, whether it is made use of or not."""
        return self._records.get(uuid)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What is not known, and why."""
        return self._journal.conditions

    # Which servers there are

    def know(self, decisions: Decisions, machines: Mapping[SystemUuid, Machine], at: datetime) -> None:
        """Give each server that the ledger sees for the first time its first record.

        A ledger that is new, or older than what it was, or another's, cannot know what is installed. Until it is
        told, nothing is known of any server.
        """
        if decisions is self._known:
            if self._records is not self._reported:  # an operator has said something, or a boot was proven
                self._tell_unknown(decisions, at)
            return
        if (doubt := self._doubt(decisions)) is not None and not self._tell(decisions, doubt, at):
            if self._records:
                self._records, self._usable = {}, None
            return
        seen = self._ledger.machines()
        fresh = [decision for decision in decisions.servers.values() if decision.uuid not in seen]
        others = taken_over([machines[decision.uuid] for decision in fresh], seen.values())
        self._write(
            first_records(
                [decision for decision in fresh if decision.uuid not in others], self._records, adopt_all=False
            )
        )
        for uuid, (what, value, other) in others.items():
            message = (
                f"{machines[uuid].name} ({uuid}) has the {what} {value} of {other.name} ({other.uuid}): a new "
                f"motherboard? Say what is on its disks with gitboot records set {machines[uuid].name}"
            )
            self._journal.event(at, "ServerUnknown", message, {"server": machines[uuid].name}, warning=True)
        self._note_machines(machines, seen)
        self._machines = machines
        self._adopt_late(decisions)
        self._declare(decisions, at)
        if self._known is None:
            self._ledger.prune(at - KEPT)
        self._known, self._usable = decisions, None
        self._tell_unknown(decisions, at)

    def _adopt_late(self, decisions: Decisions) -> None:
        """Adopt what no policy described when it was seen first, parked perhaps: as the first policy wants it."""
        late = [
            (
                each.uuid,
                each.server,
                replace(
                    adopted(each), provision=record.provision, provisioned_at=record.provisioned_at, runs=record.runs
                ),
            )
            for each in decisions.servers.values()
            if (record := self._records.get(each.uuid)) is not None
            and (record.evidence, record.pool) == ("Adopted", None)
            and each.policy is not None
            and each.provision <= (record.provision or 0)
        ]
        self._write(late)

    def _doubt(self, decisions: Decisions) -> str | None:
        """Why the ledger is not believed, if it is not."""
        if self._ledger.doubt is not None:
            return self._ledger.doubt
        if self._foreign:
            return "ForeignLedger"
        if self._ledger.told:
            return None
        wanting = any(decision.provision > 0 for decision in decisions.servers.values())
        if self._told is None and not wanting:
            return None  # nothing would be installed, whatever it is told
        return "NewLedger"

    def _tell(self, decisions: Decisions, doubt: str, at: datetime) -> bool:
        """Tell the ledger what its instance was told; say whether that answers the doubt."""
        told = self._told
        if told is None or (told == "fresh" and doubt != "NewLedger"):
            wanting = sum(decision.provision > 0 for decision in decisions.servers.values())
            message = f"{_doubted(doubt, wanting)}: {_HINTS.get(doubt, _HINTS['NewLedger'])}"
            if told == "fresh":
                message = f"--records fresh is for a new instance, and not obeyed here; {message}"
            if self._journal.condition("RecordsKnown", False, doubt, message, at):
                self._journal.event(at, "RecordsUnknown", message, warning=True)
            return False
        if doubt != "NewLedger":
            self._ledger.forget_records()
        self._records, self._usable = {}, None
        servers = decisions.servers.values()
        if told == "adopt":
            self._write([(each.uuid, each.server, adopted(each, at)) for each in servers])
        elif not isinstance(told, str):
            names = {each.uuid: each.server for each in servers}  # one that is not in the fleet now may come back
            self._write([(uuid, names.get(uuid, uuid), record) for uuid, record in told.items()])
            self._note_machines(self._unmarked(decisions), {})  # who is not in the file stays unknown
        self._ledger.tell(told if isinstance(told, str) else "records")
        self._foreign = self._ledger.foreign = False
        if doubt != "NewLedger":
            what = told if isinstance(told, str) else "a file of exported records"
            self._journal.event(at, "RecordsTold", f"{doubt}: the ledger was told {what}")
        return True

    def _unmarked(self, decisions: Decisions) -> dict[SystemUuid, Machine]:
        return {
            each.uuid: Machine(uuid=each.uuid, name=each.server, macs=(), serial=None, bmc=None)
            for each in decisions.servers.values()
        }

    def _note_machines(self, machines: Mapping[SystemUuid, Machine], seen: Mapping[SystemUuid, Machine]) -> None:
        standing = set(self._ledger.standing().values())
        changed = [each for uuid, each in machines.items() if seen.get(uuid) != each or uuid not in standing]
        gone = sorted(standing - machines.keys())
        if changed or gone:
            self._ledger.write_machines(changed, gone=gone)

    def _tell_unknown(self, decisions: Decisions, at: datetime) -> None:
        """Say of how many servers nothing is known, and why."""
        self._reported = self._records
        if not self._ledger.told:
            self._ledger.tell("adopt")
        unknown = [name for name, each in decisions.servers.items() if each.uuid not in self._records]
        if unknown:
            message = (
                f"not known whether {some(unknown, 3)} {'is' if len(unknown) == 1 else 'are'} provisioned: nothing is "
                "installed there; say it with gitboot records set"
            )
            self._journal.condition("RecordsKnown", False, "UnknownServers", message, at)
        else:
            self._journal.condition("RecordsKnown", True, "Known", "the ledger knows every server", at)
        unseen = [name for name, each in decisions.servers.items() if self._goes_unseen(each)]
        if unseen:
            message = (
                f"nothing that reaches this instance could prove that {some(unseen, 3)} booted (evidence "
                f"{decisions.evidence}): start with --listen or --spool, or give them a BMC; until then nothing is "
                "installed there"
            )
            self._journal.condition("Evidence", False, "NoEvidence", message, at)
        else:
            self._journal.condition("Evidence", True, "Evident", "every boot that is made once can be proven", at)

    # What this instance could not see

    def _provable(self) -> Mapping[SystemUuid, Record]:
        if self._known is None:
            return {}  # it is not settled yet whether the ledger is believed
        unseen = {each.uuid for each in self._known.servers.values() if self._goes_unseen(each)}
        return (
            {uuid: record for uuid, record in self._records.items() if uuid not in unseen}
            if unseen
            else (self._records)
        )

    def _goes_unseen(self, decision: Decision) -> bool:
        """Whether a boot that is still to be made once could be made without this instance noticing."""
        record = self._records.get(decision.uuid)
        if self._known is None or record is None:
            return False
        policy = decision.policy
        wants = (
            policy is not None
            and policy.boot is not None
            and policy.network_boot in (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
            and not is_provisioned(policy, record)
        )
        if wants and policy is not None and policy.boot is not None:
            evidence = self._known.evidence
            if not self._sees(decision, policy.boot, policy.override, evidence):
                return True
        return any(
            each.boot is not None
            and each.network_boot is NetworkBoot.ONCE
            and not has_run(each, record)
            and not self._sees(decision, each.boot, each.override, Evidence.FETCHED)
            for each in decision.maintenances
        )

    def _sees(self, decision: Decision, boot: Boot, override: OverrideMode, evidence: Evidence) -> bool:
        machine = self._machines.get(decision.uuid)
        has_bmc = machine is not None and machine.bmc is not None
        match evidence:
            case Evidence.DECLARED:
                return True
            case Evidence.REPORTED:
                return self._observes
        sets = has_bmc and override is not OverrideMode.NONE  # it is seen when its override is consumed
        # A loader fetches the entry of whatever it boots, a uki too.
        notices = self._observes and (fetches(boot) or boot.direct_uki is not None)
        if evidence is Evidence.PROGRESS:
            return has_bmc and (sets or notices)
        return notices or (sets and not fetches(boot))

    # What was published

    def offer(self, states: Iterable[ServerState], at: datetime) -> None:
        """Remember what is about to be published, now and next; on disk before a machine can fetch it."""
        found = {offer.plan: offer for state in states for offer in offers_of(state) if offer.plan not in self._offers}
        self._offers |= found
        self._unwritten |= found
        if self._unwritten:
            self._ledger.offer(self._unwritten.values(), at)
            self._unwritten.clear()

    @property
    def offers(self) -> Mapping[Digest, Offer]:
        """What this process has offered, by plan."""
        return self._offers

    def offered(self, digest: Digest) -> Offer | None:
        """The published boot of a plan, if its being made once is recorded."""
        return self._offers.get(digest) or self._ledger.offered(digest)

    # What counts as a boot that was made

    def record_boot(self, offer: Offer, made_at: datetime, evidence: str, at: datetime) -> None:
        """Record that a boot was made at ``made_at``, if it is one that is made only once. Twice is as once."""
        record = self._records.get(offer.uuid)
        if record is None:
            return
        made_at = min(made_at, at)  # a mirror's clock may be ahead, and would keep the boot served
        if offer.phase is Phase.MAINTENANCE:
            now, what = run_made(offer, record, made_at)
        else:
            now, what = provisioned(offer, record, made_at, evidence)
        if now is record:
            return
        self._write([(offer.uuid, offer.server, now)])
        self._journal.event(
            at,
            "MaintenanceBooted" if offer.phase is Phase.MAINTENANCE else "Provisioned",
            f"{offer.server}: {what} ({evidence})",
            {"server": offer.server, "evidence": evidence, "image": offer.image, "plan": offer.plan},
        )

    def consumed(self, uuid: SystemUuid, server: str, key: str, at: datetime) -> None:
        """Record that the override for a key was consumed, and that no evidence has followed yet."""
        record = self._records.get(uuid)
        if record is not None and record.consumed_key != key:
            self._write([(uuid, server, replace(record, consumed_at=at, consumed_key=key))])

    def set(self, records: Iterable[tuple[SystemUuid, str, Record]]) -> None:
        """Replace what is known of servers, as an operator says; raises `UsageError` where the ledger is in doubt."""
        if self._foreign or self._ledger.doubt is not None or not self._ledger.told:
            raise UsageError("nothing of what this ledger has is believed: it has to be told first, with run --records")
        self._write(records)

    def _declare(self, decisions: Decisions, at: datetime) -> None:
        """Take Git's word, where that is the evidence; each number is taken once."""
        if decisions.evidence is not Evidence.DECLARED:
            return
        declared_now = []
        for decision in decisions.servers.values():
            record, declared = self._records.get(decision.uuid), decision.declared
            if declared is None or declared < decision.provision:
                continue
            if record is not None and record.provision is not None and record.provision >= declared:
                continue
            now = replace(adopted(decision), provision=declared, evidence="Declared", provisioned_at=at)
            declared_now.append((decision.uuid, decision.server, replace(now, runs=record.runs if record else {})))
        self._write(declared_now)
        for _, server, now in declared_now:
            message = f"{server}: provision {now.provision} is installed (Declared)"
            self._journal.event(at, "Provisioned", message, {"server": server, "evidence": "Declared"})

    def _write(self, records: Iterable[tuple[SystemUuid, str, Record]]) -> None:
        written = list(records)
        if written:
            self._ledger.write_records(written)
            self._records = {**self._records, **{uuid: record for uuid, _, record in written}}
            self._usable = None


def _doubted(doubt: str, wanting: int) -> str:
    """What is wrong with the ledger, and what is not known because of it."""
    match doubt:
        case "RestoredLedger":
            return "this ledger is an older copy: what was installed since it was made is not known"
        case "ForeignLedger":
            return "this ledger is not the one that published this tree: what is installed there is not known"
        case "DamagedLedger":
            return "the ledger was damaged, and a new one cannot know what is installed"
    servers = "1 server wants" if wanting == 1 else f"{wanting} servers want"
    return f"{servers} provision 1 or more, and a new ledger cannot know whether that is installed"
