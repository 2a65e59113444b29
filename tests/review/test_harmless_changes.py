"""Harmless changes offer nothing new, and every change that can write a disk counts as a reinstallation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gitboot.jsonio import Digest
from gitboot.model.boot_image import ConfigFrom
from gitboot.model.boot_policy import (
    DiskBoot,
    MaintenancePower,
    Method,
    NetworkBoot,
    OverrideMode,
    PolicyPower,
    PolicyWait,
)
from gitboot.model.scalars import MacAddress, SystemUuid
from gitboot.model.server import Architecture, Firmware, Lifecycle
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.plan_at_time import extend_consumed_runs, is_current_run_consumed, make_plan, release_key
from gitboot.resolve.provisioning_record import (
    FETCH_GRACE,
    Clearance,
    Record,
    Run,
)
from gitboot.resolve.server_decision import (
    Boot,
    BootFile,
    BootFiles,
    Decision,
    MaintenanceDecision,
    OverrideTarget,
    PolicyDecision,
    Preconditions,
)
from gitboot.resolve.server_plan import BootPlan
from gitboot.review.guards import Guard, Limits, judge
from gitboot.review.harmless_changes import is_harmless
from gitboot.review.reinstalls import Reinstall, ReinstallReason, find_reinstalls
from gitboot.review.risks import Risk
from tests.helpers.cases import count_examples, for_each
from tests.helpers.evaluations import FLEET, SERVERS, Files, compare_files, merge_files, review_files
from tests.helpers.fleets import SHA, at, document, fleet, image, maintenance, make_uuid, policy, repository

NOON = at("20T12:00")


def boot(name: str, *, writes: bool, pool: str = "a") -> Boot:
    kernel = BootFile(url=f"http://boot.test/{name}", sha256=Digest(SHA), size=None)
    return Boot(
        profile=name,
        image=name,
        version="1",
        method=Method.PXE,
        http_boot=None,
        writes_disk=writes,
        config_from=ConfigFrom.KERNEL_ARGUMENTS,
        files=BootFiles(kernel=kernel, initrds=(), rootfs=None, uki=None, iso=None, loader=None),
        kernel_arguments=(),
        user_data=None,
        node_labels={"pool": pool},
        node_taints=(),
        entries={},
        templates={},
    )


BOOTS = (boot("os-1", writes=True), boot("os-1", writes=True, pool="b"), boot("os-2", writes=True))
TOOLS = (boot("memtest", writes=False), boot("diskless", writes=False))
HOURS = st.integers(0, 6).map(lambda hours: NOON + timedelta(hours=hours))

policies = st.none() | st.builds(
    PolicyDecision,
    policy=st.sampled_from("ab"),
    network_boot=st.sampled_from(NetworkBoot),
    boot=st.sampled_from([None, *BOOTS, *TOOLS]),
    override=st.sampled_from(OverrideMode),
    disk_boot=st.sampled_from(DiskBoot),
    power=st.just(PolicyPower.NONE),
    provision=st.integers(0, 2),
    wait_for=st.sampled_from([PolicyWait.NONE, PolicyWait.NONE, PolicyWait.POWER_OFF]),
)


preconditions = st.sampled_from([None, None]) | st.builds(
    Preconditions,
    digest=st.sampled_from([Digest("a" * 64), Digest("b" * 64)]),
    approval_file=st.sampled_from([None, "approvals.txt"]),
    is_approved=st.booleans(),
    approval_url=st.sampled_from([None, "http://approve.test"]),
    drain_url=st.sampled_from([None, "http://drain.test", "http://drain2.test"]),
)


@st.composite
def maintenances(draw: st.DrawFn, name: str, priority: int) -> MaintenanceDecision:
    ends = sorted({draw(HOURS), draw(HOURS)})
    open_at_end = len(ends) == 1 or draw(st.integers(0, 3)) == 0
    return MaintenanceDecision(
        name=name,
        start=draw(st.sampled_from([None, ends[0]])),
        end=None if open_at_end else ends[1],
        priority=priority,
        network_boot=draw(st.sampled_from([NetworkBoot.ALWAYS, NetworkBoot.ONCE, NetworkBoot.ONCE])),
        boot=draw(st.sampled_from([None, *BOOTS, *TOOLS])),
        override=draw(st.sampled_from(OverrideMode)),
        run=draw(st.integers(1, 2)),
        power=MaintenancePower.NONE,
        max_unavailable="1",
        before=draw(preconditions),
    )


@st.composite
def decisions(draw: st.DrawFn) -> Decision:
    decided = draw(policies)
    lifecycle = draw(st.sampled_from([*[Lifecycle.ACTIVE] * 8, Lifecycle.PARKED, Lifecycle.RETIRED]))
    active = lifecycle is Lifecycle.ACTIVE
    priorities = draw(st.permutations([1, 2]))
    found = [draw(maintenances(name, priority)) for name, priority in zip("mn", priorities, strict=True)]
    return Decision(
        server="web01",
        uuid=SystemUuid(make_uuid("web01")),
        macs=(),
        architecture=Architecture.X86_64,
        firmware=Firmware.UEFI,
        lifecycle=lifecycle,
        restrict=False,
        base_url="http://boot.test",
        provision=decided.provision if decided is not None else 0,
        policy=decided if active else None,
        maintenances=tuple(each for each in found if draw(st.booleans())) if active else (),
        stopped=draw(st.integers(0, 9)) == 0,
    )


AT_REST = Decision(
    server="web01",
    uuid=SystemUuid(make_uuid("web01")),
    macs=(),
    architecture=Architecture.X86_64,
    firmware=Firmware.UEFI,
    lifecycle=Lifecycle.ACTIVE,
    restrict=False,
    base_url="http://boot.test",
    provision=0,
    policy=None,
    maintenances=(),
)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Decision, Decision]:
    """A decision, and one that a commit makes of it: mostly by one of the changes that people make."""
    old, other = draw(decisions()), draw(decisions())
    new = old
    if old.lifecycle is Lifecycle.ACTIVE:
        for change in draw(st.lists(st.sampled_from(_CHANGES), min_size=1, max_size=2)):
            new = draw(change(new, other))
    else:
        new = other
    provision = new.policy.provision if new.policy is not None else new.provision
    return old, replace(new, provision=provision)


def _change_policy(old: Decision, other: Decision) -> st.SearchStrategy[Decision]:
    if old.policy is None:
        return st.just(old)
    policy = old.policy
    policies = st.one_of(
        st.sampled_from(NetworkBoot).map(lambda often: replace(policy, network_boot=often)),
        st.sampled_from(OverrideMode).map(lambda mode: replace(policy, override=mode)),
        st.integers(0, 2).map(lambda number: replace(policy, provision=number)),
        st.sampled_from([None, *BOOTS, *TOOLS]).map(lambda boots: replace(policy, boot=boots)),
        st.just(replace(policy, policy="b")),
        st.sampled_from(PolicyWait).map(lambda wait: replace(policy, wait_for=wait)),
    )
    return policies.map(lambda policy: replace(old, policy=policy))


def _change_windows(old: Decision, other: Decision) -> st.SearchStrategy[Decision]:
    def moved(start: datetime | None, end: datetime | None, override: OverrideMode) -> Decision:
        return replace(
            old,
            maintenances=tuple(
                replace(each, start=start, end=end, override=override)
                if each.name == old.maintenances[0].name and (start is None or end is None or start < end)
                else each
                for each in old.maintenances
            ),
        )

    modes = st.sampled_from(OverrideMode)
    return st.builds(moved, st.none() | HOURS, st.none() | HOURS, modes) if old.maintenances else st.just(old)


def _change_preconditions(old: Decision, other: Decision) -> st.SearchStrategy[Decision]:
    def change(before: Preconditions | None) -> Decision:
        return replace(old, maintenances=tuple(replace(each, before=before) for each in old.maintenances))

    return preconditions.map(change)


_CHANGES = (
    lambda old, other: st.just(replace(old, maintenances=old.maintenances[1:])),
    lambda old, other: st.just(replace(old, maintenances=other.maintenances)),
    lambda old, other: st.just(replace(old, policy=other.policy)),
    lambda old, other: st.just(replace(old, stopped=not old.stopped)),
    lambda old, other: st.just(replace(old, lifecycle=Lifecycle.PARKED, policy=None, maintenances=())),
    lambda old, other: st.just(replace(old, lifecycle=Lifecycle.RETIRED, policy=None, maintenances=())),
    lambda old, other: st.just(other),
    _change_policy,
    _change_policy,
    _change_windows,
    _change_windows,
    _change_preconditions,
)


@st.composite
def records(draw: st.DrawFn, old: Decision) -> Record | None:
    """Return possible records while ``old`` is accepted."""
    if draw(st.integers(0, 4)) == 0:
        return None
    record = Record()
    if draw(st.booleans()):
        provisioned_at = draw(HOURS)
        record = Record(
            provision=draw(st.integers(0, 2)),
            image=draw(st.sampled_from(["os-1", "os-2"])),
            provisioned_at=provisioned_at,
            grace_until=provisioned_at + FETCH_GRACE,
            overwritten_by=draw(st.sampled_from([None, None, "m"])),
        )
    if draw(st.integers(0, 3)) == 0:
        after = (record.provisioned_at or draw(HOURS)) + timedelta(minutes=draw(st.integers(2, 90)))
        rest = "" if draw(st.booleans()) else f"/{draw(st.sampled_from(['os-1', 'os-2']))}"
        record = replace(record, consumed_at=after, consumed_key=f"provision/{draw(st.integers(0, 2))}{rest}")
    runs = {}
    for name in draw(st.lists(st.sampled_from("mn"), unique=True)):
        runs[name] = Run(draw(st.integers(0, 2)), draw(HOURS), draw(st.none() | HOURS))
    released = draw(st.sampled_from([None, *(f"provision/{number}/0" for number in range(3))]))
    keys = [each.drain_key for each in old.maintenances]
    approvals = [each.before.approval_key for each in old.maintenances if each.before is not None]
    cleared = st.builds(
        Clearance,
        approved=st.sampled_from([None, *approvals]),
        drain=st.sampled_from([None, *keys]),
        drained_at=st.none() | HOURS,
    )
    clearances = draw(st.dictionaries(st.sampled_from("mn"), cleared))
    return extend_consumed_runs(replace(record, runs=runs, released=released, clearances=clearances), old)


def adds_approval(old: Decision, new: Decision) -> bool:
    """Return whether a commit adds an approval. The guard counted the install boot when its maintenance appeared."""
    before, now = (
        {each.name: each.before for each in decision.maintenances if each.before is not None} for decision in (old, new)
    )
    return any(not before[name].is_approved and now[name].is_approved for name in before.keys() & now.keys())


def list_instants(old: Decision, new: Decision, record: Record | None) -> list[datetime]:
    """Instants of every span of windows and of a record's terms."""
    found = {NOON - timedelta(hours=1), NOON + timedelta(days=2)}
    for each in (*old.maintenances, *new.maintenances):
        found |= {instant for instant in (each.start, each.end) if instant is not None}
    if record is not None:
        for instant in (record.provisioned_at, record.consumed_at, *(run.at for run in record.runs.values())):
            found |= {instant, instant + timedelta(seconds=30), instant + timedelta(hours=1)} if instant else set()
    return sorted(found)


def _end_windows(old: Decision) -> Iterator[Decision]:
    """``old`` as it is once some of its windows have ended."""
    for number in range(len(old.maintenances) + 1):
        for left in combinations(old.maintenances, number):
            yield replace(old, maintenances=left)


def _plan_by_policy(old: Decision, instant: datetime, record: Record | None) -> BootPlan | None:
    return make_plan(replace(old, maintenances=()), instant, record)


def _is_policy_boot_offered(old: Decision, instants: list[datetime]) -> bool:
    """Return whether the boot of the policy is offered at one of these times to a pending server."""
    seen_off = release_key(old.policy, Record()) if old.policy is not None else None
    return any(
        planned is not None and planned.maintenance is None and planned.boot is not None
        for planned in (make_plan(old, instant, Record(released=seen_off)) for instant in instants)
    )


LAWS = settings(max_examples=count_examples(400), deadline=None)


@LAWS
@given(data=st.data(), pair=pairs())
def test_a_harmless_change_offers_nothing_new_at_any_time_for_any_record(
    data: st.DataObject, pair: tuple[Decision, Decision]
) -> None:
    old, new = pair
    if not is_harmless(old, new):
        return
    record = data.draw(records(old))
    instants = list_instants(old, new, record)
    for number, instant in enumerate(instants):
        planned = make_plan(new, instant, record)
        offered = planned.boot if planned is not None else None
        here = [make_plan(each, instant, record) for each in _end_windows(old)]
        boots = [each.boot if each is not None else None for each in here]
        assert boots[-1] == (was.boot if (was := make_plan(old, instant, record)) is not None else None)
        if offered is None:
            assert any(each is None or each.writes_disk for each in boots), instant
        elif not offered.writes_disk:
            assert offered in boots, instant
        elif offered != boots[-1]:
            assert planned is not None and planned.maintenance is None and planned.key is not None
            by_policy = _plan_by_policy(old, instant, record)
            assert by_policy is not None and by_policy.boot == offered
            assert _is_policy_boot_offered(old, instants[number:])
        if planned is not None and planned.override is not None and planned.override.target is not OverrideTarget.HDD:
            assert any(each is not None and each.override is not None for each in here)


@LAWS
@given(data=st.data(), pair=pairs())
def test_every_newly_written_disk_is_counted(data: st.DataObject, pair: tuple[Decision, Decision]) -> None:
    old, new = pair
    if find_reinstalls(old, new) or adds_approval(old, new):
        return
    record = data.draw(records(old))
    instants = list_instants(old, new, record)
    for number, instant in enumerate(instants):
        planned = make_plan(new, instant, record)
        if planned is None or planned.boot is None or not planned.boot.writes_disk:
            continue
        was = make_plan(old, instant, record)
        if was is not None and was.boot is not None and was.boot.writes_disk and was.boot.image == planned.boot.image:
            continue
        assert planned.maintenance is None and planned.key is not None  # made once, for a provision key
        by_policy = _plan_by_policy(old, instant, record)
        assert by_policy is not None and by_policy.boot is not None and by_policy.boot.writes_disk
        assert _is_policy_boot_offered(old, instants[number:])


@LAWS
@given(pair=pairs())
def test_a_harmless_change_is_no_reinstallation(pair: tuple[Decision, Decision]) -> None:
    old, new = pair
    assert not (is_harmless(old, new) and find_reinstalls(old, new))


@given(decision=decisions())
def test_a_decision_without_a_change_is_harmless(decision: Decision) -> None:
    assert is_harmless(decision, decision)


@for_each(
    "other",
    [
        {"server": "other"},
        {"uuid": SystemUuid(make_uuid("other"))},
        {"macs": (MacAddress("52-54-00-00-00-01"),)},
        {"serial": "OTHER"},
        {"replaces": SystemUuid(make_uuid("other"))},
        {"architecture": Architecture.AARCH64},
        {"firmware": Firmware.BIOS},
        {"restrict": True},
        {"base_url": "http://other.test"},
        {"declared": 1},
        {"provision": 1},
        {"lifecycle": Lifecycle.RETIRED},
    ],
    ids=str,
)
def test_another_server_and_other_places_of_files_are_not_harmless(other: dict[str, Any]) -> None:
    assert not is_harmless(AT_REST, replace(AT_REST, **other))
    assert is_harmless(AT_REST, AT_REST)


@LAWS
@given(data=st.data(), pair=pairs())
def test_a_window_that_is_shortened_after_a_run_requests_no_second_run(
    data: st.DataObject, pair: tuple[Decision, Decision]
) -> None:
    old, new = pair
    record = data.draw(records(old))
    if record is None or find_reinstalls(old, new):
        return
    before = {each.name: each for each in old.maintenances}
    for each in new.maintenances:
        was = before.get(each.name)
        writes = each.boot is not None and each.boot.writes_disk
        if (
            writes
            and was is not None
            and was.run == each.run
            and is_current_run_consumed(was, record)
            and not new.stopped
        ):
            hidden = any(other.priority > each.priority for other in new.maintenances)
            assert is_current_run_consumed(each, record) or hidden or each.network_boot is NetworkBoot.ALWAYS


# Rows of the edges, as commits


def find_trips(new: Files, old: Files) -> dict[str, int]:
    return {trip.guard.value: trip.number for trip in judge(compare_files(new, old).extent, Limits()).trips}


ALL = "20T22:00 21T04:00"
WIPE = maintenance("m", ALL, "networkBoot: Once", boots="bios")  # writes disks, on all 22 servers
RESCUE = maintenance("m", ALL)  # it writes none
ALWAYS = policy("web", "{matchLabels: {role: web}}")  # installs at each boot
ONCE = policy("web", "{matchLabels: {role: web}}", often="Once")
NEVER = policy("web", "{matchLabels: {role: web}}", often="Never")
PARKED: Files = {
    path: str(FLEET[path]).replace("provision: 1", "provision: 1, lifecycle: Parked") for path in SERVERS[:13]
}


@for_each(
    ("what", "old", "new"),
    [
        ("a window that ends early", {"m": WIPE}, {"m": WIPE.replace("21T04", "20T23")}),
        (
            "a window that ends early, of an image that writes no disk",
            {"m": RESCUE},
            {"m": RESCUE.replace("21T04", "20T23")},
        ),
        ("a window that begins later", {"m": WIPE}, {"m": WIPE.replace("20T22", "20T23")}),
        ("Always to Once", {"p": ALWAYS}, {"p": ONCE}),
        ("a maintenance deleted", {"m": WIPE}, {"m": None}),
        ("a maintenance deleted that wrote no disk", {"m": RESCUE}, {"m": None}),
        (
            "a maintenance narrowed",
            {"m": WIPE},
            {"m": WIPE.replace("select: All", "select: {matchLabels: {role: db}}")},
        ),
        ("override None", {}, {"p": ONCE.replace("networkBoot", "override: None, networkBoot")}),
        ("override None of a maintenance", {"m": WIPE}, {"m": WIPE.replace("profile", "override: None, profile")}),
        ("policy to Never", {}, {"p": NEVER}),
        ("policy to Never while it always installs", {"p": ALWAYS}, {"p": NEVER}),
        ("profile to Disk", {}, {"profiles/web.yaml": document("BootProfile", "web", "method: Disk")}),
        ("13 of 22 parked", {}, PARKED),
        (
            "stopped",
            {"m": WIPE},
            {"fleet.yaml": fleet("baseURL: 'http://boot.test', stopped: fire")},
        ),
    ],
)
def test_e16_a_harmless_change_is_never_held(what: str, old: Files, new: Files) -> None:
    base = {**FLEET, **_rename_paths(old)}
    changes = compare_files(_rename_paths(new), base)
    assert changes.servers
    assert {frozenset(each.risks & {Risk.HARMLESS}) for each in changes.servers} == {frozenset({Risk.HARMLESS})}
    assert find_trips(_rename_paths(new), base) == {}


def _rename_paths(files: Files) -> Files:
    places = {"m": "m.yaml", "p": "policies/web.yaml"}
    return {places.get(path, path): text for path, text in files.items()}


def test_e16_the_removal_of_a_boot_that_writes_no_disk_counts_as_an_update() -> None:
    diskless = {**FLEET, "policies/web.yaml": policy("web", "{matchLabels: {role: web}}", boots="repair")}
    for new in (NEVER, policy("web", "{matchLabels: {role: web}}", boots="repair", often="Once")):
        assert set(find_trips({"policies/web.yaml": new}, diskless)) >= {"maxUpdatePercent"}


def test_e16_retired_and_deleted_servers_count_as_removed() -> None:
    retired = {path: str(text).replace("Parked", "Retired") for path, text in PARKED.items()}
    assert "maxDeletePercent" in find_trips(retired, FLEET)
    assert "maxUpdatePercent" not in find_trips(retired, FLEET)
    assert find_trips(retired, FLEET) == find_trips(dict.fromkeys(SERVERS[:13]), FLEET)


def test_e17_a_run_in_a_later_window_counts_and_one_in_a_longer_window_does_too() -> None:
    old = {**FLEET, "m.yaml": WIPE}
    later = maintenance("m", "27T22:00 28T04:00", "networkBoot: Once", boots="bios")
    raised = maintenance("m", ALL, "networkBoot: Once, run: 2", boots="bios")
    longer = maintenance("m", "20T22:00 21T08:00", "networkBoot: Once", boots="bios")
    for new in (later, raised, longer):
        assert find_trips({"m.yaml": new}, old)["maxReinstalls"] == 22
    assert "maxReinstalls" not in find_trips(
        {"m.yaml": maintenance("m", "27T22:00 28T04:00")}, {**FLEET, "m.yaml": RESCUE}
    )


def test_a_removed_precondition_counts_as_a_reinstallation() -> None:
    def guarded(before: str) -> Files:
        return {"m.yaml": maintenance("m", ALL, f"networkBoot: Once, power: Restart{before}", boots="bios")}

    files: Files = {"approvals.txt": "\n", "other.txt": "\n"}
    approved, other = (f", before: {{approval: {{file: {name}.txt}}}}" for name in ("approvals", "other"))
    base = {**FLEET, **files, **guarded(approved)}
    for new in (guarded(""), guarded(other)):
        assert find_trips(new, base)["maxReinstalls"] == 22
    assert "maxReinstalls" not in find_trips(guarded(approved), {**FLEET, **files, **guarded("")})


def test_an_approval_is_a_change_of_its_file_and_no_reinstallation() -> None:
    text = maintenance("m", ALL, "networkBoot: Once, before: {approval: {file: approvals.txt}}", boots="bios")
    base = {**FLEET, "approvals.txt": "\n", "m.yaml": text}
    digests = {
        each.before.digest
        for decision in decide(repository(files=merge_files({}, base))).servers.values()
        for each in decision.maintenances
        if each.before is not None
    }
    lines = "".join(f"m {digest}\n" for digest in digests)
    trips = find_trips({"approvals.txt": lines}, base)  # the maintenance itself had the same and maxReinstalls
    assert set(trips) == {"maxUpdatePercent", "maxSmallGroup"}
    (group,) = review_files({"approvals.txt": lines}, base).groups
    assert ([str(each.id) for each in group.causes], len(group.servers), group.reinstalls) == (
        ["file/approvals.txt"],
        22,
        (),
    )


def test_e21_a_boot_uncovered_by_a_removed_window_is_not_harmless() -> None:
    covered = {**FLEET, "m.yaml": maintenance("m", ALL), "policies/web.yaml": ALWAYS}
    changes = compare_files({"m.yaml": None}, covered)
    assert {each.why for change in changes.filter_by_risk(Risk.REINSTALL) for each in change.reinstalls} == {
        ReinstallReason.UNCOVERED
    }
    assert find_trips({"m.yaml": None}, covered)["maxReinstalls"] == 18


def test_e21_the_end_of_a_window_uncovers_no_one_time_boot() -> None:
    assert find_trips({"m.yaml": None}, {**FLEET, "m.yaml": maintenance("m", ALL)}) == {}


def test_e21_a_removed_maintenance_without_an_end_uncovers_the_boots_below_it() -> None:
    covered = {**FLEET, "m.yaml": maintenance("m", "20T22:00 -")}
    assert find_trips({"m.yaml": None}, covered)["maxReinstalls"] == 22


def test_e23_a_move_to_another_pool_with_the_same_key_is_no_reinstallation() -> None:
    moved = {
        "policies/other.yaml": policy("other", "{servers: [fra1-web01]}", "priority: 9", often="Once"),
        "policies/label.yaml": policy(
            "label", "{servers: [fra1-web02]}", "priority: 9, nodeLabels: {a: b}", often="Once"
        ),
    }
    changes = compare_files(moved)
    assert [each.name for each in changes.servers] == ["fra1-web01", "fra1-web02"]
    assert not changes.filter_by_risk(Risk.REINSTALL)
    assert find_trips(moved, FLEET) == {}


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("networkBoot: OnImageChange", ReinstallReason.NETWORK_BOOT),
        ("networkBoot: Always, reinstall: EveryBoot", ReinstallReason.NETWORK_BOOT),
    ],
)
def test_e23_a_move_to_another_pool_with_another_condition_is_a_reinstallation(spec: str, why: ReinstallReason) -> None:
    other = document("BootPolicy", "other", f"select: {{servers: [fra1-web01]}}, priority: 9, profile: web, {spec}")
    (change,) = compare_files({"policies/other.yaml": other}).servers
    assert [each.why for each in change.reinstalls] == [why]


def test_e24_a_fleet_without_servers_is_not_held_and_one_that_lost_its_servers_is() -> None:
    bare = dict.fromkeys(SERVERS)
    assert find_trips({"images/new.yaml": image("new-9")}, {**FLEET, **bare}) == {}
    assert "allowEmpty" in find_trips(bare, FLEET)


def test_ending_a_stop_is_held_and_names_every_server_that_would_boot() -> None:
    stopped = {**FLEET, "fleet.yaml": fleet("baseURL: 'http://boot.test', stopped: fire")}
    changes = compare_files({"fleet.yaml": FLEET["fleet.yaml"]}, stopped)
    assert {each.reinstalls for each in changes.servers} == {(Reinstall(ReinstallReason.STOPPED, None, None),)}
    assert judge(changes.extent, Limits()).holding_guards == (
        Guard.MAX_REINSTALLS,
        Guard.MAX_UPDATE_PERCENT,
        Guard.MAX_SMALL_GROUP,
    )


def test_a_stop_changes_nothing_for_a_diskless_fleet() -> None:
    diskless = {**FLEET, "policies/web.yaml": policy("web", "{matchLabels: {role: web}}", boots="repair")}
    stop = {"fleet.yaml": fleet("baseURL: 'http://boot.test', stopped: fire")}
    for each in compare_files(stop, diskless).servers:
        assert each.new is not None
        planned = make_plan(each.new, NOON, Record())
        assert planned is not None
        assert (planned.boot is not None) == ("web" in each.name)
