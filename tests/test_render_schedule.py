"""What one server is answered, now and through its next transitions."""

from __future__ import annotations

import json
from datetime import timedelta

from gitboot.errors import BmcBusy, InvalidRepository
from gitboot.plan import Record
from gitboot.problems.problem import Problem
from gitboot.render.answers import Answers
from gitboot.render.formats import shared_files
from gitboot.render.paths import is_immutable
from gitboot.render.schedule import AHEAD, ServerState, server_state
from gitboot.status import Condition, Status
from tests.fleets import SEED, at, decided, fleet, image, maintenance, policy, profile, server

NOON = at("20T12:00")
SEVERAL = [maintenance(f"m{day}", f"{day}T22:00 {day}T23:00") for day in (21, 22, 23, 24)]


def state(*documents: str, record: Record | None = None) -> ServerState:
    decisions = decided(*documents)
    return server_state(decisions, decisions.servers["web01"], record, NOON)


def answers(found: ServerState) -> Answers:
    return Answers(files=found.files, turns=found.turns, entries=found.entries)


ENTRY = next(path for path in state(*SEED).files if path.endswith("boot.ipxe"))


def test_as_many_transitions_are_known_as_are_looked_ahead() -> None:
    found = state(*SEED, *SEVERAL)
    assert [instant for instant, _ in found.later] == [at(f"{day}T{hour}:00") for day in (21, 22) for hour in (22, 23)]
    assert len(found.later) == AHEAD
    known = answers(found)
    assert known.entry_at(ENTRY, NOON) == found.entries[ENTRY]
    for day in (21, 22):
        inside, after = known.at(ENTRY, at(f"{day}T22:30")), known.at(ENTRY, at(f"{day}T23:00"))
        assert inside is not None
        assert b"memtest-7" in inside.content
        assert after == found.files[ENTRY]
        assert known.entry_at(ENTRY, at(f"{day}T22:30")) not in (None, found.entries[ENTRY])


def test_all_that_is_announced_is_there_before_its_instant() -> None:
    found = state(*SEED, *SEVERAL)
    document = json.loads(found.files["ops/next/web01.json"].content)
    assert [item["at"] for item in document["items"]] == sorted(item["at"] for item in document["items"])
    for item in document["items"]:
        for turn in item["files"].values():
            assert is_immutable(f"boot/{turn['content']}")
            assert f"boot/{turn['content']}" in found.files


def test_without_a_transition_nothing_is_announced() -> None:
    found = state(*SEED)
    assert (found.later, found.turns, found.transition) == ((), {}, None)
    assert "ops/next/web01.json" not in found.files


def test_a_path_that_a_later_plan_does_not_have_turns_to_404() -> None:
    restricted = (fleet("baseURL: 'http://boot.test', serving: {restrict: true}"), *SEED[1:-1])
    found = state(*restricted, policy("web", often="Never"), maintenance("m", "20T13:00 20T14:00"))
    known = answers(found)
    assert known.at(ENTRY, NOON) is None
    assert known.at(ENTRY, at("20T13:00")) is not None
    assert known.at(ENTRY, at("20T14:00")) is None


def test_a_parked_server_has_no_entry_that_proves_anything() -> None:
    found = state(SEED[0], server("web01", spec="lifecycle: Parked"), *SEED[2:])
    assert found.plan is None
    assert found.entries == {}


def test_a_state_holds_until_its_transition_and_for_its_record() -> None:
    decisions = decided(*SEED, *SEVERAL)
    decision = decisions.servers["web01"]
    found = server_state(decisions, decision, None, NOON)
    assert found.holds(decision, None, at("21T21:59"))
    assert not found.holds(decision, None, at("21T22:00"))
    assert not found.holds(decision, Record(), NOON)
    assert not found.holds(decided(*SEED).servers["web01"], None, NOON)


def test_each_output_has_its_shared_files() -> None:
    for output, expected in (
        ("ipxe", ["boot/boot.ipxe", "boot/unknown.ipxe"]),
        ("grub", ["boot/grub.cfg", "boot/unknown.grub.cfg"]),
    ):
        found = decided(fleet(f"baseURL: 'http://boot.test', outputs: [{output}]"), *SEED[1:])
        assert sorted(shared_files(found)) == [*expected, "ops/serve/Caddyfile", "ops/serve/nginx.conf"]
        entries = server_state(found, found.servers["web01"], None, NOON).files
        assert any(path.endswith("grub.cfg") for path in entries) == (output == "grub")


def test_unknown_machines_may_have_user_data() -> None:
    documents = (
        fleet("baseURL: 'http://boot.test', unknownServers: {profile: discover}"),
        *SEED[1:],
        image("discovery-1", "writesDisk: false, userData: CloudInit"),
        profile("discover", "discovery-1", "userData: {format: CloudInit, template: t}"),
    )
    found = decided(*documents, files={"t": "#cloud-config\n"}).unknown
    assert found is not None
    (boot,) = found.values()
    assert boot.user_data is not None
    assert boot.user_data.files == {"meta-data": "", "user-data": "#cloud-config\n"}


def test_an_argument_that_renders_to_nothing_is_none() -> None:
    conditional = profile("web", "flatcar-1", "kernelArguments: [\"{{ 'a' if vars.x is defined }}\", b]")
    found = state(*SEED[:4], conditional, *SEED[5:]).plan
    assert found is not None
    assert found.boot is not None
    assert found.boot.kernel_arguments == ("b",)


def test_a_status_says_which_conditions_hold() -> None:
    held = Condition(type="SourceReady", status=True, reason="Fetched", message="", since=NOON)
    problem = Problem(path="a", line=1, column=2, code="GB1001", message="m", hint="x")
    status = Status(conditions=(held,), problems=(problem,), next_transition=NOON + timedelta(hours=1))
    assert status.condition("SourceReady")
    assert not status.condition("Published")
    assert not status.ready
    facts = json.loads(json.dumps(status.facts()))
    assert facts["conditions"][0]["since"] == "2026-11-20T12:00:00Z"
    assert facts["attempted"]["problems"][0]["line"] == 1
    assert facts["nextTransition"] == "2026-11-20T13:00:00Z"


def test_problems_of_a_commit_are_sorted_by_place() -> None:
    first = Problem(path="a", line=1, column=9, code="GB1002", message="m")
    second = Problem(path="a", line=2, column=1, code="GB1001", message="m", hint="do")
    assert InvalidRepository([second, first]).problems == (first, second)
    assert str(second) == "a:2:1: GB1001: m (do)"
    assert BmcBusy("x", retry_after_s=3).retry_after_s == 3


def test_a_path_that_a_transition_leaves_as_it_is_takes_no_turn() -> None:
    first = maintenance("a", "20T13:00 20T15:00")
    over = maintenance("b", "20T14:00 20T15:00", "priority: 1, networkBoot: Once", boots="web")
    seed = (fleet("baseURL: 'http://boot.test', serving: {restrict: true}"), *SEED[1:-1], policy("web", often="Never"))
    found = state(*seed, first, over)
    assert [instant for instant, _ in found.later] == [at("20T13:00"), at("20T14:00"), at("20T15:00")]
    assert [turn.at for turn in found.turns[ENTRY]] == [at("20T13:00"), at("20T14:00")]  # 404 before and after 15:00


def test_a_document_that_two_boots_share_takes_no_turn() -> None:
    user_data = "userData: {format: Ignition/3.4, template: t}"
    documents = (
        *SEED[:2],
        image("flatcar-1", "userData: Ignition/3.4"),
        image("memtest-7", "userData: Ignition/3.4, writesDisk: false"),
        profile("web", "flatcar-1", user_data),
        profile("repair", "memtest-7", user_data),
        SEED[-1],
        maintenance("m", "20T13:00 20T14:00"),
    )
    decisions = decided(*documents, files={"t": '{"ignition": {"version": "3.4.0"}}'})
    found = server_state(decisions, decisions.servers["web01"], None, NOON)
    by_uuid = [path for path in found.files if path.startswith("boot/ignition/")]
    assert len(by_uuid) == 2
    assert not any(path in found.turns for path in by_uuid)
    assert ENTRY in found.turns
