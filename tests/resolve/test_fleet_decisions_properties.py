"""Properties of every fleet: order, time, isolation, and installations that never happen."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import Phase as Step
from hypothesis import strategies as st

from gitboot.fleet.validation import load
from gitboot.model.boot_policy import NetworkBoot
from gitboot.model.server import Lifecycle
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.install_attempts import make_first_records
from gitboot.resolve.plan_at_time import find_next_transition, make_plan
from gitboot.resolve.provisioning_record import Record, Run
from gitboot.resolve.server_decision import Decision, Decisions, OverrideTarget
from gitboot.resolve.server_plan import BootPlan, Phase
from tests.helpers.cases import count_examples
from tests.helpers.fleets import SEED, image, maintenance, planned, policy, profile, snapshot
from tests.helpers.hypothesis_strategies import (
    FILES,
    IMAGES,
    SPARE,
    START,
    Document,
    GeneratedFleet,
    bounds,
    decide_texts,
    decided,
    document,
    fleets,
    format_blocks,
    format_json,
    get_name,
    installed_record,
    is_selected,
    list_digests,
    make_plans,
    server_documents,
    shuffle_keys,
    tree,
)

# Whole fleets take a while to draw, which does not matter for a property, and much longer to explain.
LAWS = settings(
    max_examples=count_examples(25),
    suppress_health_check=[HealthCheck.too_slow],
    phases=[step for step in Step if step is not Step.explain],
)
PROCESSES = settings(LAWS, max_examples=2)


# Order: the content of a fleet counts, not its layout


@LAWS
@given(fleet=fleets(), order=st.integers(0, 999).map(random.Random))
def test_the_order_of_files_documents_and_keys_changes_no_byte(fleet: GeneratedFleet, order: random.Random) -> None:
    before = decided(fleet.documents)
    after = decide_texts(files=_shuffle_files(fleet.documents, order))
    assert (list_digests(after), list(after.servers)) == (list_digests(before), list(before.servers))
    assert tree(after, fleet.records, fleet.at) == tree(before, fleet.records, fleet.at)
    assert _list_messages(after) == _list_messages(before)


def _shuffle_files(documents: Iterable[Document], order: random.Random) -> dict[str, str]:
    files: defaultdict[str, str] = defaultdict(str)
    for each in order.sample(list(documents), len(list(documents))):
        files[order.choice(["a.yaml", "b/c.yml", "b/a.yaml", "z.yaml"])] += (
            f"---\n{format_json(shuffle_keys(each, order))}"
        )
    return files


def _list_messages(decisions: Decisions) -> list[tuple[str, str]]:
    return sorted((problem.code, problem.message) for problem in decisions.warnings)


def test_the_order_of_keys_changes_nothing_that_a_template_prints() -> None:
    written = []
    for variables in ("a: x, b: y", "b: y, a: x"):
        loop = "kernelArguments: ['of={% for name in vars %}{{ name }}{% endfor %}']"
        boots = (image("os-1"), profile("os", "os-1", f"{loop}, vars: {{{variables}}}"))
        found = planned(START, *SEED, *boots, policy("os", spec="priority: 1", boots="os"))
        assert found is not None and found.boot is not None
        written.append(found.boot.kernel_arguments)
    assert written[0] == written[1]


@LAWS
@given(fleet=fleets(), spaces=st.integers(1, 5))
def test_r8_comments_moved_lines_and_other_spellings_change_no_byte(fleet: GeneratedFleet, spaces: int) -> None:
    def write(each: Document) -> str:
        lines = format_blocks(each).splitlines()
        return "\n" * spaces + "".join(f"# {number}\n{line}  # {spaces}\n" for number, line in enumerate(lines))

    before, after = decided(fleet.documents), decided(fleet.documents, write)
    assert list_digests(after) == list_digests(before)
    assert tree(after, fleet.records, fleet.at) == tree(before, fleet.records, fleet.at)


# The same in, the same out


@LAWS
@given(fleet=fleets())
def test_deciding_planning_and_rendering_twice_gives_the_same_as_once(fleet: GeneratedFleet) -> None:
    first, second = (decide(load(snapshot(*map(format_json, fleet.documents), files=FILES))) for _ in range(2))
    assert first == second
    for decisions in (first, first, second):
        assert make_plans(decisions, fleet.records, fleet.at) == make_plans(first, fleet.records, fleet.at)
        assert tree(decisions, fleet.records, fleet.at) == tree(first, fleet.records, fleet.at)


@PROCESSES
@given(several=st.lists(fleets(), min_size=4, max_size=8))
def test_another_process_with_another_environment_makes_the_same_bytes(several: list[GeneratedFleet]) -> None:
    asked = json.dumps([[list(map(format_json, fleet.documents)), fleet.at.isoformat()] for fleet in several])
    answer = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from tests.resolve.test_fleet_decisions_properties import render_requested; "
            "sys.stdout.write(render_requested(sys.stdin.read()))",
        ],
        input=asked,
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONHASHSEED": "4242", "TZ": "Pacific/Chatham", "LC_ALL": "tr_TR.UTF-8"},
        text=True,
    )
    assert answer.stdout == render_requested(asked)


def render_requested(asked: str) -> str:
    made = []
    for texts, instant in json.loads(asked):
        decisions = decide_texts(*texts)
        files = tree(decisions, dict.fromkeys(decisions.servers, Record()), datetime.fromisoformat(instant))
        made.append({path: [file.content.decode(), file.content_type] for path, file in files.items()})
    return json.dumps(made)


@LAWS
@given(fleet=fleets())
def test_r8_plans_with_one_digest_are_equal(fleet: GeneratedFleet) -> None:
    known: dict[str, BootPlan] = {}
    for name, decision in decided(fleet.documents).servers.items():
        for record in (None, Record(), fleet.records[name]):
            for instant in fleet.instants(record):
                if (found := make_plan(decision, instant, record)) is not None:
                    timeless = replace(found, next_transition=None)
                    assert known.setdefault(found.digest, timeless) == timeless


def test_r8_plans_that_want_different_overrides_have_different_digests() -> None:
    # Always sets an override again after each reset that consumed it; Once does not.
    always, once = (
        planned(START, *SEED, maintenance("repair", spec=f"networkBoot: {often}, override: Once"), record=Record())
        for often in ("Always", "Once")
    )
    assert always is not None and once is not None and always.override != once.override
    assert always.digest != once.digest


@LAWS
@given(fleet=fleets())
def test_r8_a_future_maintenance_changes_no_plan_and_no_file(fleet: GeneratedFleet) -> None:
    spec = {"select": "All", "profile": "plain", "priority": -9, "reinstall": "EveryBoot"}
    spec["window"] = {"start": "2090-01-01T00:00:00Z", "end": "2091-01-01T00:00:00Z"}
    before, after = (
        decided(fleet.documents),
        decided(fleet.replace_documents(document("Maintenance", "later", spec)).documents),
    )
    found = tree(before, fleet.records, fleet.at), tree(after, fleet.records, fleet.at)
    boot_files = [{path: file for path, file in files.items() if path.startswith("boot/")} for files in found]
    assert boot_files[0] == boot_files[1]
    for name, decision in after.servers.items():
        assert (decision.digest != before.servers[name].digest) == (decision.lifecycle is Lifecycle.ACTIVE)


# Time


@LAWS
@given(fleet=fleets())
def test_r10_a_plan_is_valid_until_its_next_transition_and_changes_at_it(fleet: GeneratedFleet) -> None:
    for name, decision in decided(fleet.documents).servers.items():
        for record in (fleet.records[name], installed_record(decision, fleet.at)):
            for instant, later in pairwise(fleet.instants(record)):
                _check_transition(decision, record, instant, later)


def _check_transition(decision: Decision, record: Record | None, instant: datetime, later: datetime) -> None:
    def shown(at: datetime) -> str | None:
        planned = make_plan(decision, at, record)
        assert planned is None or planned.next_transition == find_next_transition(decision, at, record)
        return planned.digest if planned is not None else None

    until = find_next_transition(decision, instant, record)
    assert until is None or until > instant
    if until is None or later < until:
        assert (shown(later), find_next_transition(decision, later, record)) == (shown(instant), until)
    else:
        assert shown(until) != shown(instant)
        assert shown(until - timedelta(microseconds=1)) == shown(instant)


@LAWS
@given(fleet=fleets())
def test_r2_an_active_maintenance_always_wins_and_an_inactive_one_never_does(fleet: GeneratedFleet) -> None:
    decisions = decided(fleet.documents)
    for server in fleet.of("Server"):
        name = get_name(server)
        for instant in fleet.instants(fleet.records[name]):
            planned = make_plan(decisions.servers[name], instant, fleet.records[name])
            active = _list_active(fleet, server, instant)
            if server["spec"]["lifecycle"] != "Active":
                assert planned is None
            elif not active:
                assert planned is None or (planned.maintenance is None and planned.phase is not Phase.MAINTENANCE)
            else:
                assert planned is not None
                _check_maintained(planned, active[-1], fleet.records[name], instant)


def _list_active(fleet: GeneratedFleet, server: Document, instant: datetime) -> list[Document]:
    active = []
    for each in fleet.of("Maintenance"):
        start, end = bounds(each["spec"])
        if start <= instant < end and is_selected(each["spec"]["select"], server):
            active.append(each)
    return sorted(active, key=lambda each: int(each["spec"]["priority"]))


def _check_maintained(planned: BootPlan, winner: Document, record: Record | None, instant: datetime) -> None:
    spec, name = winner["spec"], get_name(winner)
    assert planned.maintenance == name
    goes_on = spec["profile"] != "local"
    if spec.get("networkBoot") == "Once":
        made = record.runs.get(name, Run(0, instant)) if record is not None else Run(0, instant)
        graced = made.at <= instant < made.at + timedelta(minutes=1)
        over = made.run >= spec.get("run", 1) and not graced
        over &= made.end is None or bounds(spec)[0] < made.end or "start" not in spec.get("window", {})
        goes_on &= record is not None and not over
    assert planned.phase == (Phase.MAINTENANCE if goes_on else Phase.DISK)
    assert (planned.boot.profile if planned.boot else None) == (spec["profile"] if goes_on else None)


# Installations that never happen


def _network_boot(decisions: Decisions, planned: BootPlan) -> NetworkBoot:
    decision = decisions.servers[planned.server]
    if planned.maintenance is None:
        assert decision.policy is not None
        return decision.policy.network_boot
    return next(each.network_boot for each in decision.maintenances if each.name == planned.maintenance)


def _needs_network(planned: BootPlan) -> bool:
    override = planned.override
    return bool(planned.boot or planned.user_data or (override and override.target is not OverrideTarget.HDD))


@LAWS
@given(fleet=fleets())
def test_an_unverified_server_never_boots_once_or_on_image_change(fleet: GeneratedFleet) -> None:
    decisions = decided(fleet.documents)
    for decision in decisions.servers.values():
        for instant in fleet.instants(None):
            planned = make_plan(decision, instant, None)
            if planned is not None and _needs_network(planned):
                assert _network_boot(decisions, planned) is NetworkBoot.ALWAYS


def _rate_installation(decision: Decision, instant: datetime, record: Record | None) -> int:
    """0: not at all; 1: a first boot is offered under the policy; 2: it is set, too."""
    planned = make_plan(decision, instant, record)
    if planned is None or planned.phase is not Phase.NETWORK:
        return 0
    assert decision.policy is not None
    if decision.policy.network_boot is NetworkBoot.ALWAYS:
        return 0
    return 1 if planned.override is None else 2


@LAWS
@given(fleet=fleets(), data=st.data())
def test_a_lower_provision_never_requests_an_installation(fleet: GeneratedFleet, data: st.DataObject) -> None:
    lowered = deepcopy(fleet.of("Server"))
    for server in lowered:
        server["spec"]["provision"] = data.draw(st.integers(0, server["spec"]["provision"]))
    before, after = decided(fleet.documents), decided(fleet.replace_documents(*lowered).documents)
    for name, decision in before.servers.items():
        for record in (fleet.records[name], installed_record(decision, fleet.at)):
            for instant in fleet.instants(record):
                was = _rate_installation(decision, instant, record)
                assert _rate_installation(after.servers[name], instant, record) <= was


@LAWS
@given(fleet=fleets(), adopt_all=st.booleans())
def test_adopting_a_running_fleet_installs_nothing(fleet: GeneratedFleet, adopt_all: bool) -> None:
    decisions = decided(fleet.documents)
    for _, name, record in make_first_records(decisions.servers.values(), {}, adopt_all=adopt_all):
        decision = decisions.servers[name]
        if adopt_all or (decision.policy and decision.policy.provision == 0):
            for instant in fleet.instants(record):
                assert _rate_installation(decision, instant, record) == 0


# Isolation


@LAWS
@given(fleet=fleets(), data=st.data())
def test_r11_a_change_to_the_document_of_one_server_changes_no_other_server(
    fleet: GeneratedFleet, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(fleet.names("Server")))
    changed = data.draw(server_documents(name, policies=fleet.names("BootPolicy"), bios=fleet.bios))
    assert _exclude(decided(fleet.replace_documents(changed).documents), name) == _exclude(
        decided(fleet.documents), name
    )


def _exclude(decisions: Decisions, *names: str) -> dict[str, Decision]:
    return {name: decision for name, decision in decisions.servers.items() if name not in names}


@LAWS
@given(fleet=fleets(), data=st.data())
def test_r11_a_document_that_selects_and_names_nothing_else_changes_nothing(
    fleet: GeneratedFleet, data: st.DataObject
) -> None:
    boots = {"profile": "aside", "select": "None", "priority": data.draw(st.integers(-3, 9))}
    aside = [
        document("ImageStream", "aside", {"current": SPARE, "rollout": {"image": SPARE}}),
        document("BootProfile", "aside", {"method": "Pxe", "stream": "aside"}),
        document("BootPolicy", "aside", boots | {"networkBoot": "Always"}),
        document("Maintenance", "aside", boots),
    ]
    before, after = (
        decided(fleet.documents),
        decided(fleet.replace_documents(*data.draw(st.permutations(aside))).documents),
    )
    assert after.servers == before.servers
    assert tree(after, fleet.records, fleet.at) == tree(before, fleet.records, fleet.at)


@LAWS
@given(fleet=fleets(), data=st.data())
def test_r11_unrelated_servers_and_their_resources_change_nothing(fleet: GeneratedFleet, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(["db01", "db02", "db03"]), min_size=1, unique=True))
    boots = {"profile": "plain", "select": {"servers": names}, "priority": 99}
    policies = (*fleet.names("BootPolicy"), "theirs")
    added = fleet.replace_documents(
        document("BootPolicy", "theirs", boots | {"networkBoot": "Always", "reinstall": "EveryBoot"}),
        document(
            "Maintenance", "theirs", boots | {"reinstall": "EveryBoot", "window": {"end": "2091-01-01T00:00:00Z"}}
        ),
        *(data.draw(server_documents(name, policies=policies, bios=fleet.bios)) for name in names),
    )
    before, after = decided(fleet.documents), decided(added.documents)
    assert _exclude(after, *names) == before.servers
    files = tree(after, fleet.records, fleet.at)
    assert {path: files.get(path) for path in tree(before, fleet.records, fleet.at)} == tree(
        before, fleet.records, fleet.at
    )


@LAWS
@given(fleet=fleets(), image=st.sampled_from(IMAGES), percents=st.lists(st.integers(0, 100), min_size=2, max_size=2))
def test_r4_a_higher_percentage_of_a_rollout_only_adds_servers(
    fleet: GeneratedFleet, image: str, percents: list[int]
) -> None:
    def rolled_out(percent: int) -> dict[str, Decision]:
        (stream,) = deepcopy(fleet.of("ImageStream"))
        stream["spec"]["rollout"] = {"image": image, "percent": percent}
        return dict(decided(fleet.replace_documents(stream).documents).servers)

    before, after = map(rolled_out, sorted(percents))
    for name, decision in after.items():
        if decision != before[name]:
            assert decision.maintenances == before[name].maintenances
            assert decision.policy is not None and decision.policy.boot is not None
            assert decision.policy.boot.image == image
