"""What holds of every run of an instance: what it learned and planned of what changed is what it would have of all."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from gitboot.controller.current_plans import Plans, changed_by, left_by, replanned
from gitboot.controller.operator_requests import BEGIN
from gitboot.controller.records.ledger_changes import Batch, Learnt, learn
from gitboot.controller.records.ledger_snapshot import Knowledge
from gitboot.evaluator.client import assembled
from gitboot.evaluator.evaluation import CommitPair, Evaluator
from gitboot.evaluator.evaluation_result import Commit
from gitboot.evaluator.process import report
from gitboot.ledger.instance_tables import Facts, Request
from gitboot.model.scalars import SystemUuid
from gitboot.render.server_files import ServerState, rendered
from gitboot.render.token_keys import NO_KEYS
from gitboot.resolve.boot_limits import Halt
from gitboot.resolve.install_attempts import attempt_of, provision_reason
from gitboot.resolve.provisioning_record import InstallAttempt, Record, Seen
from gitboot.resolve.server_decision import Decision
from tests.evaluator.test_evaluation_properties import EDITS, LAWS, History, evaluated, sent, tree_of
from tests.helpers.cases import examples, present
from tests.helpers.hypothesis_strategies import GeneratedFleet, fleets

RUNS = settings(LAWS, max_examples=examples(30))
STEPS = (0, 0, 1, 30, 24 * 60, 7 * 24 * 60)  # minutes: windows open and end in between


@RUNS
@given(first=fleets(), others=st.lists(fleets(), min_size=2, max_size=3), seed=st.integers(0, 2**32))
def test_what_is_learned_and_planned_is_the_same_however_it_was_come_to(
    first: GeneratedFleet, others: list[GeneratedFleet], seed: int
) -> None:
    draw, history = random.Random(seed), History({})
    evaluator = Evaluator(history.snapshot)
    run, tree, base = Run(first.at), tree_of(first), None
    for number, other in enumerate((first, *others * 2)):
        edited = draw.choice(EDITS)(tree, other, draw) if number else tree
        revision = history.commit(edited)
        found = evaluated(evaluator, revision, base.revision if base is not None else None)
        if isinstance(found, CommitPair):
            base, tree = assembled(base, revision, map(sent, report(found))).commit, edited
        assert base is not None
        run.reconcile(base)
        run.happen(base, other, draw)
        run.at += timedelta(minutes=draw.choice(STEPS))
        run.stop = draw.choice((Halt.NONE, Halt.NONE, Halt.NONE, Halt.WRITING, Halt.ALL))
        run.reconcile(base)


class Run:
    """An instance's knowledge and plans, each brought up to date by what changed, and compared with the whole."""

    def __init__(self, at: datetime) -> None:
        self.at, self.stop = at, Halt.NONE
        self._knowledge, self._plans = Knowledge(facts=Facts(identity="mine")), Plans()
        self._unplanned: set[SystemUuid] = set()  # of whom something was learned since

    def reconcile(self, commit: Commit) -> None:
        learnt = self._learnt(commit)
        self._knowledge = learnt.knowledge
        unplanned = {*self._unplanned, *learnt.changed}
        changed = self._names(unplanned, commit) | changed_by(self._plans.commit, commit)
        self._plans, _ = replanned(self._plans, commit, self._knowledge, changed, self.at, self.stop)
        whole, _ = replanned(Plans(), commit, self._knowledge, (), self.at, self.stop)
        assert in_full(self._plans) == in_full(whole)
        self._unplanned.clear()

    def _learnt(self, commit: Commit) -> Learnt:
        settled = self._plans.commit if self._knowledge.settled is not None else None
        adopt = Request(1, self.at, "ada", BEGIN, {"how": "adopt"})
        batch = Batch(
            commit=commit,
            requests=(adopt,) if self._knowledge.settled is None else (),
            changed=changed_by(settled, commit),
            left=left_by(settled, commit),
            begun=self._plans.begun.keys() | self._names(self._unplanned, commit),
        )
        learnt = learn(self._knowledge, batch, self.at)
        servers, records = commit.decisions.servers, self._knowledge.records
        at_one = {name for name, each in servers.items() if attempt_of(each, records.get(each.uuid)) is not None}
        wider = replace(batch, changed={*batch.changed, *at_one}, left=None, begun=())
        assert all_of(learnt) == all_of(learn(self._knowledge, wider, self.at))
        return learnt

    def happen(self, commit: Commit, other: GeneratedFleet, draw: random.Random) -> None:
        """Another record is come to for some machines: of another fleet, or of an installation that has begun."""
        servers = list(commit.decisions.servers.values())
        for decision in draw.sample(servers, draw.randint(0, min(2, len(servers)))):
            drawn = draw.choice([record for record in other.records.values() if record is not None] or [Record()])
            record = begun(decision, drawn, self.at) if draw.random() < 0.8 else drawn
            self._knowledge = replace(self._knowledge, records={**self._knowledge.records, decision.uuid: record})
            self._unplanned.add(decision.uuid)

    def _names(self, machines: set[SystemUuid], commit: Commit) -> frozenset[str]:
        return frozenset(commit.machines[uuid].name for uuid in machines if uuid in commit.machines)


def all_of(learnt: Learnt) -> tuple[object, ...]:
    """What was learnt, and what of it is new."""
    news = {name: value for name, value in vars(learnt.news).items() if name not in ("overrides", "switches")}
    records = [(each.new, each.unstored) for each in (learnt.news.overrides, learnt.news.switches)]
    return learnt.knowledge, learnt.changed, learnt.hurried, learnt.judged, news, records


def begun(decision: Decision, record: Record, at: datetime) -> Record:
    """At an installation of which all that fetches can show was seen."""
    if decision.policy is None or decision.policy.boot is None:
        return record
    record, seen = Record(), Seen(at, "boot/v1/boot/m/boot.ipxe", "10.0.0.7")
    attempt = InstallAttempt(
        key=provision_reason(decision.policy, record),
        boots=(seen,) * decision.policy.boot.boots,
        started=seen,
        started_boot=decision.policy.boot.boots,
    )
    return replace(record, attempts=(attempt,))


def in_full(plans: Plans) -> tuple[object, ...]:
    """All that plans say, but for when files were rendered."""
    commit = present(plans.commit)

    def files(state: ServerState) -> dict[str, bytes]:
        return {path: file.content for path, file in rendered(state, commit.decisions, NO_KEYS).files.items()}

    return (
        [
            (name, state.decision, state.record, state.about, state.stop, state.plan, state.later, files(state))
            for name, state in plans.servers.items()
        ],
        (plans.commit, plans.stop, plans.left, plans.transitions.instants, plans.transitions.next),
        (plans.counts, plans.versions, plans.needs),
        (plans.unknown, plans.unseen, plans.consumed, plans.lost),
        (list(plans.begun.items()), list(plans.given.items())),
    )
