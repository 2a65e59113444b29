"""Servers that are planned again: those that a commit, a record or a transition affects, and no others."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gitboot.artifacts.availability import Presence, Sighting
from gitboot.controller.current_plans import DueQueue, Plans, find_changed_servers, find_released_servers, replan
from gitboot.controller.operator_requests import BeginWithRecords
from gitboot.controller.records.ledger_changes import Batch, apply_batch
from gitboot.controller.records.ledger_snapshot import LedgerSnapshot
from gitboot.evaluator.protocol import Commit
from gitboot.ledger.instance_tables import Facts, Heartbeat, Request
from gitboot.render.server_files import render_server
from gitboot.render.token_keys import NO_KEYS
from gitboot.resolve.provisioning_record import StopScope
from gitboot.resolve.server_decision import WithheldBoot
from tests.helpers.cases import for_each
from tests.helpers.fleets import at, document, fleet, image, maintenance, make_uuid, policy, profile, server, snapshot
from tests.helpers.instance_in_process import Commits

NOON = at("20T12:00")
NAMES = ("web01", "web02", "web03")
WITHHELD = WithheldBoot(maintenance=None, start=None, end=None, takes_image_back=False, by="f" * 40)
BMC = "bmc: {address: 'https://10.0.0.9', credentials: c}"
SITES = "baseURL: 'http://boot.test', sites: [{name: a, baseURL: 'http://boot.test', select: {servers: [web02]}}]"


def documents(settings: str = "baseURL: 'http://boot.test'", **specs: str) -> list[str]:
    named = [server(name, "role: web", spec) for name in NAMES if (spec := specs.get(name, "")) != "gone"]
    boots = (image("flatcar-1"), profile("web", "flatcar-1"), policy("web"))
    return [fleet(settings), *named, *boots]


def make_commits(first: list[str], then: list[str]) -> tuple[Commit, Commit]:
    commits = Commits()
    found: list[Commit] = []
    for each in (first, then):
        commits.push(snapshot(*each))
        assert commits.newest is not None
        found.append(commits.evaluate(commits.newest.revision, found[-1] if found else None).commit)
    return found[0], found[1]


@pytest.mark.parametrize(
    ("case", "then", "expected"),
    [
        ("nothing", documents(), set()),
        ("one server", documents(web02="kernelArguments: [quiet]"), {"web02"}),
        ("the address of a BMC", documents(web02=BMC), {"web02"}),
        ("one is gone", documents(web02="gone"), {"web02"}),
        ("which site a server is of", documents(SITES), {"web02"}),
        ("all", [*documents()[:-1], policy("web", often="Never")], set(NAMES)),
    ],
)
def test_a_commit_names_the_servers_that_it_changes(case: str, then: list[str], expected: set[str]) -> None:
    before, now = make_commits(documents(), then)
    assert find_changed_servers(before, now) == expected, case
    assert find_changed_servers(before, replace(now, base=None)) == expected, "compared with all"
    assert find_changed_servers(None, now) == set(now.decisions.servers)
    assert find_changed_servers(now, now) == set()


def make_knowledge(commit: Commit) -> LedgerSnapshot:
    empty, everyone = LedgerSnapshot(facts=Facts(identity="mine")), tuple(commit.decisions.servers)
    said = Request(1, NOON, "ada", BeginWithRecords.kind, {"how": "adopt"})
    return apply_batch(empty, Batch(requests=(said,), commit=commit, changed_servers=everyone), NOON).snapshot


def test_an_unchanged_server_keeps_its_plan() -> None:
    before, now = make_commits(documents(), documents(web02="kernelArguments: [quiet]", web03="gone"))
    plans, different = replan(Plans(), before, make_knowledge(before), (), NOON)
    assert different == set(NAMES)
    again, different = replan(plans, now, make_knowledge(now), find_changed_servers(before, now), NOON)
    assert different == {"web02", "web03"}
    assert again.servers.keys() == {"web01", "web02"}
    assert again.servers["web01"] == plans.servers["web01"]
    assert (plans.count_servers("phases"), again.count_servers("phases")) == ({"Network": 3}, {"Network": 2})


def test_servers_below_the_minimum_version_are_counted_until_the_stream_or_server_changes() -> None:
    pinned = "pin: {image: flatcar-1, reason: GPU}"

    def said(minimum: str, mode: str = "Warn", **pins: str) -> list[str]:
        skew = f"current: flatcar-2, skew: {{mode: '{mode}', minimumVersion: '{minimum}'}}"
        return [
            *documents(**pins)[:-2],
            image("flatcar-2"),
            document("ImageStream", "flatcar", skew),
            profile("web", "stream: flatcar"),
            policy("web"),
        ]

    commits, plans = Commits(), Plans()
    for documents_of, expected in (
        (said("2"), {"flatcar": 0}),
        (said("2", web01=pinned, web03=pinned), {"flatcar": 2}),
        (said("1", web01=pinned, web03=pinned), {"flatcar": 0}),
        (said("2", web01=pinned, web03=pinned), {"flatcar": 2}),
        (said("2", web01=pinned, web03="gone"), {"flatcar": 1}),
        (said("2", "None", web01=pinned, web03="gone"), {}),
    ):
        commits.push(snapshot(*documents_of))
        assert commits.newest is not None
        now = commits.evaluate(commits.newest.revision, plans.commit).commit
        plans, _ = replan(plans, now, make_knowledge(now), find_changed_servers(plans.commit, now), NOON)
        assert plans.count_below_minimum() == expected


def test_a_new_output_changes_all_servers() -> None:
    before, now = make_commits(documents(), documents("baseURL: 'http://boot.test', outputs: [ipxe]"))
    plans, _ = replan(Plans(), before, make_knowledge(before), (), NOON)
    _, different = replan(plans, now, make_knowledge(now), find_changed_servers(before, now), NOON)
    assert different == set(NAMES)


def test_a_new_base_url_also_changes_the_servers_of_a_site_that_had_it() -> None:
    """Their decisions are the same, but the artifacts that they fetch are the endpoint's own from then on."""
    sites = "sites: [{name: a, baseURL: 'http://a.test', select: {servers: [web02]}}]"
    before, now = make_commits(
        documents(f"baseURL: 'http://boot.test', {sites}"), documents(f"baseURL: 'http://a.test', {sites}")
    )
    plans, _ = replan(Plans(), before, make_knowledge(before), (), NOON)
    _, different = replan(plans, now, make_knowledge(now), find_changed_servers(before, now), NOON)
    assert before.decisions.servers["web02"].digest == now.decisions.servers["web02"].digest
    assert different == set(NAMES)


def test_the_plan_of_a_server_holds_none_of_its_files_in_memory() -> None:
    names = [f"web{number:02}" for number in range(50)]
    commit, _ = make_commits([fleet(), *(server(name, "role: web") for name in names), *documents()[-3:]], documents())
    snapshot = make_knowledge(commit)
    tracemalloc.start()
    try:
        plans, _ = replan(Plans(), commit, snapshot, (), NOON)
        held = tracemalloc.get_traced_memory()[0] / len(names)
    finally:
        tracemalloc.stop()
    files = render_server(plans.servers["web07"], commit.decisions, NO_KEYS).files
    assert held < 2 * 1024 < sum(len(file.content) for file in files.values())


def test_the_state_of_a_server_has_the_decision_of_its_commit() -> None:
    commits = Commits()
    commits.push(snapshot(*documents()))
    assert commits.newest is not None
    before = commits.evaluate(commits.newest.revision, None).commit
    plans, _ = replan(Plans(), before, make_knowledge(before), (), NOON)
    again = commits.evaluate(commits.newest.revision, None).commit  # the same, as other objects
    edited = replace(again.decisions.servers["web02"], withheld=(WITHHELD,))
    withholding = replace(
        again, decisions=structs.replace(again.decisions, servers={**again.decisions.servers, "web02": edited})
    )
    for commit, expected in ((before, set()), (again, set()), (withholding, {"web02"}), (before, {"web02"})):
        plans, different = replan(plans, commit, make_knowledge(commit), (), NOON)
        assert different == expected
        for name, state in plans.servers.items():
            assert state.decision is commit.decisions.servers[name]


def test_a_transition_plans_only_its_servers_and_a_clock_that_is_set_back_plans_all() -> None:
    window = maintenance("repair", "20T13:00 20T14:00", select="{servers: [web02]}")
    more = (image("memtest-7", "writesDisk: false"), profile("repair", "memtest-7"), window)
    commit, _ = make_commits([*documents(), *more], documents())
    plans, _ = replan(Plans(), commit, make_knowledge(commit), (), NOON)
    assert plans.transitions.next_due == at("20T13:00")
    opened, different = replan(plans, commit, make_knowledge(commit), (), at("20T13:00"))
    assert different == {"web02"}
    assert opened.count_servers("phases") == {"Network": 2, "Maintenance": 1}
    _, different = replan(opened, commit, make_knowledge(commit), (), NOON)
    assert different == set(NAMES)


MISSING = Sighting(presence=Presence.MISSING)


@for_each(
    ("case", "released"),
    [
        ("each boot can start", ("web01", "web02")),
        ("a file of web01 is missing, so web01 boots as soon as the file appears", ("web01", "web02")),
        ("the clock was set back after the window of web02 had ended", ("web01",)),
    ],
)
def test_the_end_of_a_stop_releases_each_server_that_gitboot_then_boots_from_the_network(
    case: str, released: tuple[str, ...]
) -> None:
    commit, _ = make_commits(
        [
            *documents(web01="provision: 1", web03="gone")[:-1],
            image("other-1"),
            profile("repair", "other-1"),
            policy("web", often="Once"),
            maintenance("repair", "20T11:00 20T13:00", select="{servers: [web02]}"),
        ],
        documents(),
    )
    said = Request(1, NOON, "ada", BeginWithRecords.kind, {"how": "fresh"})
    snapshot = apply_batch(
        LedgerSnapshot(facts=Facts(identity="mine")),
        Batch(requests=(said,), commit=commit, changed_servers=NAMES[:2]),
        NOON,
    ).snapshot
    if "missing" in case:
        (boot,) = commit.decisions.servers["web01"].boots
        snapshot = structs.replace(snapshot, sightings=dict.fromkeys(boot.fetched_files, MISSING))
    if "set back" in case:
        beat = Heartbeat(at("20T14:00"))
        snapshot = structs.replace(snapshot, facts=structs.replace(snapshot.facts, heartbeat=beat))
    assert find_released_servers(commit, snapshot, NOON, StopScope.WRITING) == released
    snapshot = structs.replace(snapshot, sightings=None)  # the file appears
    plans = replan(Plans(), commit, snapshot, (), NOON)[0].servers
    assert tuple(name for name in NAMES[:2] if (plan := plans[name].plan) is not None and plan.boot) == released


def test_servers_without_a_verified_record_are_counted_until_they_have_one() -> None:
    commit, _ = make_commits(documents(web02="provision: 1"), documents())
    doubtful = LedgerSnapshot(facts=Facts(identity="mine", initialised="adopt", doubt="RestoredLedger"))
    plans, _ = replan(Plans(), commit, doubtful, (), NOON)
    assert plans.unknown == set(NAMES)
    plans, _ = replan(plans, commit, make_knowledge(commit), ("web02",), NOON)
    assert plans.unknown == {"web01", "web03"}
    assert make_knowledge(commit).stored_record(commit.decisions.servers["web02"].uuid) is not None
    assert make_uuid("web02") in commit.machines


# Due times: an agenda compared with a plain dictionary


MOVES = st.lists(
    st.dictionaries(
        st.sampled_from("abcdef"), st.none() | st.integers(0, 9).map(lambda s: NOON + timedelta(seconds=s)), max_size=4
    ),
    max_size=40,
)


@given(MOVES, st.integers(-1, 9))
def test_due_keys_are_found_after_any_number_of_moves(moves: list[dict[str, datetime | None]], second: int) -> None:
    agenda: DueQueue[str] = DueQueue()
    plain: dict[str, datetime] = {}
    for each in moves:
        agenda = agenda.reschedule(each)
        plain = {key: instant for key, instant in {**plain, **each}.items() if instant is not None}
    now = NOON + timedelta(seconds=second)
    assert agenda.find_due_keys(now) == {key for key, instant in plain.items() if instant <= now}
    assert agenda.next_due == min(plain.values(), default=None)
    assert agenda.instants == plain


def test_moving_a_key_leaves_the_earlier_agenda_unchanged() -> None:
    empty: DueQueue[str] = DueQueue()
    before = empty.reschedule({"a": NOON})
    after = before.reschedule({"a": None, "b": NOON})
    assert before.find_due_keys(NOON) == {"a"}
    assert after.find_due_keys(NOON) == {"b"}
    assert before.reschedule({"a": NOON}) is before
