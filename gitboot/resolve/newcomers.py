"""What is known of a server that has no record yet: new, pending, or unknown, and why."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from gitboot.model.scalars.machines import SystemUuid
from gitboot.resolve.install_attempts import adopted, last_given
from gitboot.resolve.provisioning_record_from_plan import Record, Run
from gitboot.resolve.server_decision_from_plan import Decision

NEW_UP_TO = 1  # the provision number with which a machine comes that was never installed


class Known(StrEnum):
    """What a ledger makes of a server that it has no record of."""

    NEW = "new"  # adopted as it stands at provision 0, else to be installed
    PENDING = "pending"
    UNKNOWN = "unknown"  # never installed


@dataclass(frozen=True, kw_only=True, slots=True)
class Newcomer:
    """What is known of a server without a record, and why."""

    known: Known
    why: str
    runs: Mapping[str, Run] = field(default_factory=dict)  # of maintenances, that were made on the board before it

    def record(self, decision: Decision) -> Record | None:
        """The record that it begins with; None: it has none, and boots its disk."""
        match self.known:
            case Known.NEW:
                return adopted(decision) if decision.provision == 0 else Record()
            case Known.PENDING:
                return Record(runs=self.runs)
        return None


def newcomer(
    decision: Decision,
    *,
    records: Mapping[SystemUuid, Record],
    seen: Collection[SystemUuid],
    introduced: int | None,
    carries: str | None = None,
) -> Newcomer:
    """What is known of the server of ``decision``, of which ``records`` say nothing.

    ``seen`` are all machines that the ledger ever saw. ``introduced`` is the provision number with which the server
    came since the accepted commit, by the first-parent line (`gitboot.review.commit_path.introduced`); None: it stood there
    already. ``carries`` says which mark of another machine it has: a new board in the same chassis brings one.
    """
    if decision.replaces is not None:
        return _replacing(decision, decision.replaces, records)
    why = None
    if carries is not None:
        why = f"it has {carries}: for a new motherboard, name the UUID of the old one in replaces"
    elif decision.uuid in seen:
        why = "the ledger saw this machine before, and nothing is recorded of it"
    elif introduced is None:
        why = "it stood in the accepted commit, and nothing is recorded of it"
    elif introduced > NEW_UP_TO:
        why = f"it came with provision {introduced}, so it may have been installed elsewhere"
    if why is not None:
        return Newcomer(known=Known.UNKNOWN, why=why)
    return Newcomer(known=Known.NEW, why=f"it came with provision {introduced}")


def _replacing(decision: Decision, replaced: SystemUuid, records: Mapping[SystemUuid, Record]) -> Newcomer:
    before = records.get(replaced)
    if before is None:
        return Newcomer(known=Known.UNKNOWN, why=f"it replaces {replaced}, of which nothing is recorded")
    given = last_given(before)
    if before.provision is None and given is None:
        why = f"it replaces {replaced}, which was not provisioned yet"
        return Newcomer(known=Known.PENDING, why=why, runs=before.runs)
    number = max(each for each in (before.provision, given) if each is not None)
    done = "provisioned" if before.provision == number else "given its boot"
    why = f"it replaces {replaced}, which was {done} with {number}"
    if decision.provision > number:
        return Newcomer(known=Known.PENDING, why=why, runs=before.runs)
    return Newcomer(known=Known.UNKNOWN, why=f"{why}: provision is not above that")
