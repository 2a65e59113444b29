"""Who boots what: rules R1 to R10, a table each."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from gitboot.errors import InvalidRepository
from gitboot.evaluator.evaluation import Evaluator
from gitboot.fleet.validation import load, load_revision
from gitboot.jsonio import facts
from gitboot.resolve.fleet_decisions import decide, decide_all, decide_loaded
from gitboot.resolve.plan_at_time import plan, transition
from gitboot.resolve.policy_selection import in_rollout
from gitboot.resolve.provisioning_record import InstallAttempt, Record, Run, Seen
from gitboot.resolve.server_decision import UserDataFiles
from gitboot.resolve.server_plan import Cause, Phase
from tests.helpers.cases import for_each
from tests.helpers.fleets import (
    SEED,
    SHA,
    at,
    decided,
    decision,
    document,
    fleet,
    image,
    maintenance,
    planned,
    policy,
    profile,
    repository,
    server,
    snapshot,
    uuid_of,
)
from tests.helpers.redfish_double.certificates import authority_until

NOON = at("20T12:00")
INSTALLED = Record(provision=1, image="flatcar-1", pool="web")
PENDING = Record()


def codes(*documents: str, files: dict[str, str] | None = None) -> list[str]:
    """The codes of the problems that speak against a fleet; none: it is valid."""
    try:
        return [str(problem.code) for problem in decided(*documents, files=files).warnings]
    except InvalidRepository as error:
        return [str(problem.code) for problem in error.problems]


def boots(instant: datetime, *documents: str, record: Record | None = None) -> str:
    """The image that web01 boots, "disk", or "no plan"."""
    found = planned(instant, *documents, record=record)
    if found is None:
        return "no plan"
    return found.boot.image if found.boot else "disk"


# R1


@pytest.mark.parametrize(
    ("lifecycle", "expected"), [("Active", "flatcar-1"), ("Parked", "no plan"), ("Retired", "no plan")]
)
def test_r1_only_active_servers_have_a_plan(lifecycle: str, expected: str) -> None:
    seed = (*SEED[:1], server("web01", "role: web", f"lifecycle: {lifecycle}"), *SEED[2:])
    assert boots(NOON, *seed, maintenance("repair")) == ("memtest-7" if expected == "flatcar-1" else expected)
    assert boots(NOON, *seed) == expected


# R2

WINDOW = maintenance("repair", "20T22:00 21T04:00")


@pytest.mark.parametrize(
    ("instant", "expected"),
    [
        ("20T21:59:59", "flatcar-1"),
        ("20T22:00:00", "memtest-7"),  # from the very instant that it opens
        ("21T03:59:59", "memtest-7"),
        ("21T04:00:00", "flatcar-1"),  # its end is exclusive, with the document still in Git
    ],
)
def test_r2_a_window_is_half_open(instant: str, expected: str) -> None:
    assert boots(at(instant), *SEED, WINDOW) == expected


@for_each(
    ("window", "expected"),
    [
        ("", "memtest-7"),
        ("19T00:00 -", "memtest-7"),
        ("- 21T00:00", "memtest-7"),
        ("21T00:00 -", "flatcar-1"),
        ("- 20T00:00", "flatcar-1"),
    ],
)
def test_r2_either_end_of_a_window_is_optional(window: str, expected: str) -> None:
    assert boots(NOON, *SEED, maintenance("repair", window)) == expected


def test_r2_a_maintenance_beats_a_policy_of_any_priority() -> None:
    seed = (*SEED[:-1], policy("web", "All", "priority: 999999"))
    assert boots(NOON, *seed, maintenance("repair", spec="priority: -5")) == "memtest-7"


def test_r2_of_several_maintenances_the_highest_priority_wins() -> None:
    other = (image("bios-2", "writesDisk: false"), profile("bios", "bios-2"))
    low, high = maintenance("a", spec="priority: 1"), maintenance("b", spec="priority: 2", boots="bios")
    assert boots(NOON, *SEED, *other, low, high) == "bios-2"
    assert boots(NOON, *SEED, *other, high, low) == "bios-2"


@for_each(
    ("case", "second", "expected"),
    [
        ("they overlap", maintenance("b", "21T03:00 22T00:00"), ["GB2012"]),
        ("they overlap in the past", maintenance("b", "- 20T22:00:01"), ["GB2012"]),
        ("they touch", maintenance("b", "21T04:00 22T00:00"), []),
        ("one has a higher priority", maintenance("b", "21T03:00 22T00:00", "priority: 1"), []),
        ("they share no server", maintenance("b", select="{servers: [web02]}"), []),
    ],
)
def test_r2_overlapping_maintenances_of_one_priority_are_an_error(case: str, second: str, expected: list[str]) -> None:
    web02 = server("web02", "role: web")
    first = maintenance("a", "20T22:00 21T04:00", select="{servers: [web01]}")
    assert codes(*SEED, web02, first, second) == expected, case


@for_each(
    ("first", "second", "overlap", "is_over_at"),
    [
        ("20T22:00 21T04:00", "21T03:00 22T00:00", "from 2026-11-21T03:00:00Z until 2026-11-21T04:00:00Z", "21T04:00"),
        ("20T22:00 21T04:00", "20T10:00 21T05:00", "from 2026-11-20T22:00:00Z until 2026-11-21T04:00:00Z", "21T04:00"),
        ("- 21T04:00", "- 21T05:00", "until 2026-11-21T04:00:00Z", "21T04:00"),
        ("20T22:00 -", "21T03:00 -", "from 2026-11-21T03:00:00Z", None),
        ("", "", "at all times", None),
    ],
)
def test_finding_r11_an_overlap_is_named_and_counts_until_it_is_over(
    first: str, second: str, overlap: str, is_over_at: str | None
) -> None:
    files = {"windows/b.yaml": maintenance("b", second), "windows/a.yaml": maintenance("a", first)}
    found = repository(*SEED, files=files)
    ahead, last = at("2020-01-01T00:00:00"), at("2090-01-01T00:00:00")
    if is_over_at is not None:
        assert decide(found, at(is_over_at)).warnings == decide(found, last).warnings == ()
        last = at(is_over_at) - timedelta(seconds=1)
    for instant in (ahead, last):
        with pytest.raises(InvalidRepository) as raised:
            decide(found, instant)
        (problem,) = raised.value.problems
        assert (problem.code, problem.path) == ("GB2012", "windows/b.yaml")
        message = f"have one priority, and overlap {overlap}; Maintenance/a is in windows/a.yaml (web01)"
        assert problem.message == f"Maintenance/a and Maintenance/b {message}"


def test_finding_r11_an_overlap_is_told_beside_what_else_is_wrong() -> None:
    windows = (maintenance("a", "20T22:00 21T04:00"), maintenance("b", "21T03:00 22T00:00"))
    for other, code in ((policy("other", "All"), "GB2011"), ("kind: Nothing\n", "GB1021")):
        with pytest.raises(InvalidRepository) as raised:
            decide_loaded(load_revision(snapshot(*SEED, *windows, other)))
        for instant, expected in (("21T03:59", {code, "GB2012"}), ("21T04:00", {code})):
            assert {each.code for each in raised.value.at(at(instant)).problems} == expected


def test_r2_no_policy_field_applies_under_a_maintenance() -> None:
    seed = (
        *SEED[:-2],
        profile("repair", "memtest-7", "kernelArguments: ['c={{ vars.console }}', 'p={{ vars.pool is defined }}']"),
        policy("web", "All", "kernelArguments: [from-policy], vars: {pool: web}, nodeLabels: {a: b}"),
    )
    seed = (
        seed[0],
        server("web01", "role: web", "vars: {console: ttyS1}, kernelArguments: [from-server]"),
        *seed[2:],
    )
    found = planned(NOON, *seed, maintenance("repair"))
    assert found is not None and found.boot is not None
    assert found.boot.kernel_arguments == ("c=ttyS1", "p=false")
    assert found.boot.node_labels == {}


# R3

POOLS = {
    "low": policy("low", "All", "priority: 1"),
    "high": policy("high", "All", "priority: 2"),
    "tie": policy("tie", "All", "priority: 2"),
    "child": policy("child", "All", "inherits: high"),
    "grandchild": policy("grandchild", "All", "inherits: child"),
    "none": policy("none", "None", "priority: 9"),
    "others": policy("others", "{matchLabels: {role: db}}", "priority: 9"),
}


@for_each(
    ("pools", "expected"),
    [
        ("low high", "high"),
        ("high low", "high"),
        ("high child", "child"),  # a custom pool beats its parent with the parent's own priority
        ("high child grandchild", "grandchild"),
        ("low others none", "low"),
        ("high tie", ["GB2011"]),
        ("high child tie", ["GB2011"]),  # an ancestor that is dropped does not settle a tie
        ("none", ["GB2010"]),
        ("", ["GB2010"]),
    ],
)
def test_r3_the_policy_of_a_server(pools: str, expected: str | list[str]) -> None:
    documents = (*SEED[:-1], *(POOLS[name] for name in pools.split()))
    if isinstance(expected, list):
        assert codes(*documents) == expected
    else:
        found = decision("web01", *documents).policy
        assert found is not None and found.policy == expected


def test_r3_a_server_may_name_its_policy() -> None:
    seed = (SEED[0], server("web01", "role: web", "policy: none"), *SEED[2:-1])
    found = decision("web01", *seed, POOLS["none"], POOLS["high"], POOLS["tie"]).policy
    assert found is not None and found.policy == "none"


def test_r3_without_a_required_policy_it_is_a_warning_and_no_plan() -> None:
    seed = (fleet("baseURL: 'http://boot.test', requirePolicy: false"), *SEED[1:-1])
    assert codes(*seed) == ["GB2010"]
    assert boots(NOON, *seed) == "no plan"


def test_r3_a_maintenance_reaches_a_server_without_a_policy() -> None:
    seed = (fleet("baseURL: 'http://boot.test', requirePolicy: false"), *SEED[1:-1])
    assert boots(at("20T23:00"), *seed, WINDOW) == "memtest-7"
    assert boots(NOON, *seed, WINDOW) == "no plan"


# Inheritance


def test_a_child_takes_its_parents_fields_merges_maps_and_appends_lists() -> None:
    parent = policy(
        "parent",
        "None",
        "priority: 7, kernelArguments: [a], nodeLabels: {l: parent, p: x}, vars: {v: parent, w: x}, "
        "nodeTaints: [{key: t, effect: NoSchedule}]",
    )
    child = policy(
        "child",
        "All",
        "inherits: parent, kernelArguments: [b], nodeLabels: {l: child}, vars: {v: child}, "
        "nodeTaints: [{key: u, effect: NoExecute}]",
    )
    arguments = profile("web", "flatcar-1", "kernelArguments: ['{{ vars.v }}{{ vars.w }}']")
    found = planned(NOON, *SEED[:4], arguments, SEED[5], parent, child)
    assert found is not None and found.boot is not None
    assert found.boot.kernel_arguments == ("a", "b", "childx")
    assert found.boot.node_labels == {"l": "child", "p": "x"}
    assert [str(taint) for taint in found.boot.node_taints] == ["t=:NoSchedule", "u=:NoExecute"]


@pytest.mark.parametrize(
    ("case", "documents", "expected"),
    [
        ("itself", [policy("a", "All", "inherits: a")], ["GB2005"]),
        (
            "in a circle",
            [policy("a", "All", "inherits: b"), policy("b", "All", "inherits: a")],
            ["GB2005"] * 2,
        ),
        ("nothing to inherit", [document("BootPolicy", "a", "select: All")], ["GB2006"]),
        (
            "a parent without either",
            [document("BootPolicy", "a", "select: None"), policy("b", "All", "inherits: a")],
            ["GB2006"],
        ),
    ],
)
def test_inheritance_that_leads_nowhere(case: str, documents: list[str], expected: list[str]) -> None:
    assert codes(*SEED[:-1], *documents) == expected, case


# R4

STREAM = "current: flatcar-1, rollout: {{image: flatcar-2, {rollout}}}"
HOLD = "holds: [{select: {matchLabels: {role: web}}, image: flatcar-0, reason: held}]"
PIN = "pin: {image: flatcar-9, reason: pinned}"


@for_each(
    ("case", "stream", "server_spec", "expected"),
    [
        ("the stream's current image", "current: flatcar-1", "", "flatcar-1"),
        ("the rollout, with all", STREAM.format(rollout="percent: 100"), "", "flatcar-2"),
        ("the rollout, with none", STREAM.format(rollout="percent: 0"), "", "flatcar-1"),
        ("the rollout, elsewhere", STREAM.format(rollout="selector: {matchLabels: {a: b}}"), "", "flatcar-1"),
        ("a hold before the rollout", f"{STREAM.format(rollout='percent: 100')}, {HOLD}", "", "flatcar-0"),
        ("a pin before all", f"{STREAM.format(rollout='percent: 100')}, {HOLD}", PIN, "flatcar-9"),
    ],
)
def test_r4_the_image_under_a_policy(case: str, stream: str, server_spec: str, expected: str) -> None:
    documents = (
        fleet(),
        server("web01", "role: web", server_spec),
        *(image(f"flatcar-{number}") for number in (0, 1, 2, 9)),
        document("ImageStream", "flatcar", stream),
        profile("web", "stream: flatcar"),
        policy("web"),
    )
    assert boots(NOON, *documents) == expected, case
    # Under a maintenance only the profile's image or the stream's current one count.
    assert boots(NOON, *documents, maintenance("repair", "- 30T00:00", boots="web")) == "flatcar-1", case


def test_r4_a_pin_beats_the_profiles_own_image_too() -> None:
    seed = (SEED[0], server("web01", "role: web", PIN), *SEED[2:], image("flatcar-9"))
    assert boots(NOON, *seed) == "flatcar-9"


def test_r4_raising_a_percentage_only_adds() -> None:
    uuids = [uuid_of(f"server{number}") for number in range(500)]
    reached: set[str] = set()
    for percent in range(101):
        now = {uuid for uuid in uuids if in_rollout("flatcar", uuid, percent)}  # type: ignore[arg-type]
        assert reached <= now
        reached = now
    assert reached == set(uuids)


def test_r4_a_percentage_places_servers_by_the_published_hash() -> None:
    # sha256("flatcar-stable\0" + uuid) begins 0x8a2f9c…: worked out with sha256sum, not with gitboot.
    import hashlib

    uuid = "4c4c4544-0034-4a10-8056-b9c04f4d3732"
    first = hashlib.sha256(b"flatcar-stable\0" + uuid.encode()).digest()[:8]
    place = int.from_bytes(first) / 2**64 * 100
    assert not in_rollout("flatcar-stable", uuid, int(place))  # type: ignore[arg-type]
    assert in_rollout("flatcar-stable", uuid, int(place) + 1)  # type: ignore[arg-type]


@for_each(
    ("mode", "minimum", "expected"),
    [
        ("Enforce", "1", []),
        ("Enforce", "1.0.1", ["GB2013"]),
        ("Warn", "1.0.1", ["GB2013"]),
        ("None", "1.0.1", []),
        ("Enforce", "0.9.99", []),
    ],
)
def test_r4_skew_looks_at_what_really_boots(mode: str, minimum: str, expected: list[str]) -> None:
    hold = HOLD.replace("flatcar-0", "flatcar-1")
    skew = f"current: flatcar-2, {hold}, skew: {{mode: {mode}, minimumVersion: '{minimum}'}}"
    documents = (*SEED[:4], image("flatcar-2"), document("ImageStream", "flatcar", skew))
    assert codes(*documents, profile("web", "stream: flatcar"), policy("web")) == expected


# R5

ONCE = "Once"
CHANGE = "OnImageChange"


@for_each(
    ("often", "provision", "record", "phase", "cause"),
    [
        ("Always", 0, None, Phase.NETWORK, Cause.ALWAYS),  # unknown stops no diskless machine
        ("Never", 1, PENDING, Phase.DISK, Cause.NEVER),
        (ONCE, 1, PENDING, Phase.NETWORK, Cause.PENDING),
        (ONCE, 1, INSTALLED, Phase.DISK, Cause.PROVISIONED),
        (ONCE, 2, INSTALLED, Phase.NETWORK, Cause.PENDING),
        (ONCE, 0, INSTALLED, Phase.DISK, Cause.PROVISIONED),  # lowering it never installs
        (ONCE, 1, None, Phase.DISK, Cause.UNKNOWN),  # unknown never installs
        (CHANGE, 1, INSTALLED, Phase.DISK, Cause.PROVISIONED),
        (CHANGE, 1, Record(provision=1, image="flatcar-0"), Phase.NETWORK, Cause.PENDING),
        (CHANGE, 1, None, Phase.DISK, Cause.UNKNOWN),
        (ONCE, 1, Record(provision=1, image="flatcar-0"), Phase.DISK, Cause.PROVISIONED),
    ],
)
def test_r5_the_phase_under_a_policy(
    often: str, provision: int, record: Record | None, phase: Phase, cause: Cause
) -> None:
    seed = (
        SEED[0],
        server("web01", "role: web", f"provision: {provision}"),
        *SEED[2:-1],
        policy("web", often=often),
    )
    found = planned(NOON, *seed, record=record)
    assert found is not None
    assert (found.phase, found.cause) == (phase, cause)
    assert (found.boot is not None) == (phase is Phase.NETWORK)


def test_r5_a_profile_of_method_disk_boots_the_disk() -> None:
    found = planned(NOON, *SEED[:4], profile("web", "", method="Disk"), SEED[5], policy("web"))
    assert found is not None and (found.phase, found.cause) == (Phase.DISK, Cause.DISK)


MADE = Record(provision=1, image="flatcar-1", runs={"repair": Run(1, at("20T23:00"))})


@for_each(
    ("instant", "run", "record", "expected"),
    [
        ("20T22:30", 1, INSTALLED, "memtest-7"),
        ("20T23:00:30", 1, MADE, "memtest-7"),  # a loader's own retry still finds the boot
        ("20T23:01", 1, MADE, "disk"),  # to the end of the window
        ("21T03:59", 1, MADE, "disk"),
        ("21T04:00", 1, MADE, "flatcar-1"),
        ("20T23:30", 2, MADE, "memtest-7"),  # run 2 is another boot
        ("20T22:30", 1, None, "disk"),  # unknown never installs
    ],
)
def test_r5_a_maintenances_once_is_one_boot(instant: str, run: int, record: Record | None, expected: str) -> None:
    once = maintenance("repair", "20T22:00 21T04:00", f"networkBoot: Once, run: {run}")
    assert boots(at(instant), *SEED, once, record=record) == expected


def test_r5_the_boot_that_was_made_stays_for_the_grace_of_a_fetch() -> None:
    fetched = at("20T12:00")
    record = Record(
        provision=1,
        image="flatcar-1",
        evidence="Fetched",
        provisioned_at=fetched,
        grace_until=fetched + timedelta(seconds=60),
    )
    seed = (SEED[0], server("web01", "role: web", "provision: 1"), *SEED[2:-1], policy("web", often=ONCE))
    assert boots(fetched + timedelta(seconds=59), *seed, record=record) == "flatcar-1"
    assert boots(fetched + timedelta(seconds=60), *seed, record=record) == "disk"
    within = planned(fetched, *seed, record=record)
    assert within is not None and within.override is None  # nothing is set any more


@pytest.mark.parametrize(("often", "key"), [(ONCE, "provision/1"), (CHANGE, "provision/1/flatcar-1")])
def test_r5_within_the_grace_of_a_fetch_the_plan_has_the_key_of_the_boot_that_was_made(often: str, key: str) -> None:
    """An endpoint refuses this boot, and none with another key, after the machine has fetched its data."""
    first, last = (Seen(at(f"20T{time}"), "boot/v1/boot/web01/boot.ipxe", "10.0.0.7") for time in ("11:00", "12:00"))
    record = Record(
        provision=1,
        image="flatcar-1",
        evidence="Fetched",
        provisioned_at=last.at,
        grace_until=last.at + timedelta(seconds=60),
        attempts=(InstallAttempt(key=key, number=1, boots=(first, last), started=first, started_boot=1),),
    )
    seed = (SEED[0], server("web01", "role: web", "provision: 1"), *SEED[2:-1], policy("web", often=often))
    within = planned(last.at + timedelta(seconds=5), *seed, record=record)
    assert within is not None and within.key == f"{key}/boot/2"


def test_r5_an_override_consumed_without_evidence_turns_to_the_disk_after_30_minutes() -> None:
    record = Record(consumed_at=NOON, consumed_key="provision/1")
    seed = (SEED[0], server("web01", "role: web", "provision: 1"), *SEED[2:-1], policy("web", often=ONCE))
    within = planned(NOON + timedelta(minutes=29), *seed, record=record)
    assert within is not None and within.boot is not None and within.override is None
    after = planned(NOON + timedelta(minutes=30), *seed, record=record)
    assert after is not None and (after.phase, after.cause) == (Phase.DISK, Cause.CONSUMED)


# R6

IGNITION = '{"ignition": {"version": "3.4.0"}}'
UKI = "httpBoot: uki"


@for_each(
    ("case", "artifacts", "method", "profile_spec", "firmware", "image_spec", "expected"),
    [
        ("a kernel by PXE", "kernel", "Pxe", "", "BIOS", "", []),
        ("a uki by PXE under UEFI", "uki", "Pxe", "", "UEFI", "", []),
        ("a uki by PXE under BIOS", "uki", "Pxe", "", "BIOS", "", ["GB4002"]),
        ("an iso by PXE", "iso", "Pxe", "", "UEFI", "", ["GB4001"]),
        ("a uki over HTTP", "uki", "UefiHttp", UKI, "UEFI", "", []),
        ("a uki over HTTP under BIOS", "uki", "UefiHttp", UKI, "BIOS", "", ["GB4002"]),
        ("no uki over HTTP", "kernel", "UefiHttp", UKI, "UEFI", "", ["GB4001"]),
        ("an iso over HTTP", "iso", "UefiHttp", "httpBoot: iso", "UEFI", "", []),
        ("a loader over HTTP", "kernel, loader", "UefiHttp", "httpBoot: loader", "UEFI", "", []),
        ("no loader over HTTP", "kernel", "UefiHttp", "httpBoot: loader", "UEFI", "", ["GB4001"]),
        ("arguments to a uki", "uki", "UefiHttp", f"{UKI}, kernelArguments: [a]", "UEFI", "", ["GB4003"]),
        (
            "an image's own arguments, built into its uki",
            "uki",
            "UefiHttp",
            UKI,
            "UEFI",
            "kernelArguments: [a]",
            [],
        ),
        ("user data to a uki", "uki", "UefiHttp", f"{UKI}, @", "UEFI", "userData: Ignition/3.4", ["GB4003"]),
        (
            "user data to a uki that asks for it",
            "uki",
            "UefiHttp",
            f"{UKI}, @, kernelArguments: [a]",
            "UEFI",
            "userData: Ignition/3.4, configFrom: SystemUUID",
            [],
        ),
        (
            "arguments to a uki that asks, and nothing to ask for",
            "uki",
            "UefiHttp",
            f"{UKI}, kernelArguments: [a]",
            "UEFI",
            "configFrom: SystemUUID",
            ["GB4003"],
        ),
        ("user data that the image understands", "kernel", "Pxe", "@", "UEFI", "userData: Ignition/3.5", []),
        ("user data that is too new", "kernel", "Pxe", "@", "UEFI", "userData: Ignition/3.3", ["GB4004"]),
        ("user data of another kind", "kernel", "Pxe", "@", "UEFI", "userData: CloudInit", ["GB4004"]),
        ("user data for none", "kernel", "Pxe", "@", "UEFI", "", ["GB4004"]),
    ],
)
def test_r6_image_and_method_agree(
    case: str,
    artifacts: str,
    method: str,
    profile_spec: str,
    firmware: str,
    image_spec: str,
    expected: list[str],
) -> None:
    user_data = "userData: {format: Ignition/3.4, template: web.ign}"
    documents = (
        fleet(),
        server("web01", firmware=firmware),
        image("a-1", image_spec, artifacts),
        profile("web", "a-1", profile_spec.replace("@", user_data), method=method),
        policy("web"),
    )
    files = {"web.ign": IGNITION} if "@" in profile_spec else None
    assert codes(*documents, files=files) == expected, case


def test_r6_checks_the_boots_of_every_phase() -> None:
    next_year = maintenance("repair", "2027-01-01T00:00 2027-01-02T00:00", boots="broken")
    documents = (*SEED, image("iso-1", "", "iso"), profile("broken", "iso-1"), next_year)
    assert codes(*documents) == ["GB4001"]


@for_each(
    ("format", "text", "expected"),
    [
        ("Ignition/3.4", IGNITION, []),
        ("Ignition/3.4", "{", ["GB4005"]),
        ("Ignition/3.4", "{}", ["GB4005"]),
        ("Ignition/3.4", '{"ignition": {"version": "2.3.0"}}', ["GB4005"]),
        ("Ignition/3.4", '{"ignition": {"version": "3.3.0"}}', ["GB4005"]),
        ("CloudInit", "#cloud-config\n", []),
        ("CloudInit", "cloud-config\n", ["GB4005"]),
        ("Autoinstall", "#cloud-config\nautoinstall:\n  version: 1\n", []),
        ("Autoinstall", "#cloud-config\n", ["GB4005"]),
        ("Kickstart", "lang en_US\n%post\necho $x\n%end\n", []),
        ("Kickstart", "%post\n", ["GB4005"]),
        ("Kickstart", "{}\n", ["GB4005"]),
        ("Preseed", "# c\nd-i clock-setup/utc boolean \\\n true\n", []),
        ("Preseed", "d-i x\n", ["GB4005"]),
        ("Talos", "version: v1alpha1\nmachine:\n  type: worker\n", []),
        ("Talos", "apiVersion: v1alpha1\nkind: HostnameConfig\nhostname: a\n", []),
        ("Talos", "#cloud-config\nversion: v1alpha1\n", ["GB4008"]),
        ("Talos", "version: v1alpha1\nmachine:\n  install: {}\n", ["GB4008"]),
        ("AutoYaST", '<?xml version="1.0"?>\n<profile xmlns="http://www.suse.com/1.0/yast2ns"/>', []),
        ("AutoYaST", '<!DOCTYPE profile [<!ENTITY a "b">]>\n<profile/>', ["GB4009"]),
        ("AutoYaST", "<profile/>", ["GB4009"]),
        ("AutoYaST", '<profile xmlns="http://www.suse.com/1.0/yast2ns">', ["GB4009"]),
        ("AutoYaST", "", ["GB4009"]),
        ("Combustion", "#!/bin/bash\n# combustion: network\n", []),
        ("Combustion", "echo\n", ["GB4010"]),
        ("Generic", "anything at all\n", []),
    ],
)
def test_r6_rendered_user_data_is_what_its_format_says(format: str, text: str, expected: list[str]) -> None:
    documents = (
        fleet(),
        server("web01"),
        image("a-1", f"userData: {format}"),
        profile("web", "a-1", f"userData: {{format: {format}, template: t}}"),
        policy("web"),
    )
    assert codes(*documents, files={"t": text}) == expected


@pytest.mark.parametrize(
    ("format", "arguments"),
    [
        ("Talos", ("talos.platform=metal", "talos.config=http://boot.test/o/{digest}/talos.yaml")),
        ("AutoYaST", ("autoyast=http://boot.test/o/{digest}/autoinst.xml",)),
        ("Combustion", ("combustion.url=http://boot.test/o/{digest}/script",)),
        ("Generic", ()),
    ],
)
def test_r7_each_format_is_found_by_its_arguments(format: str, arguments: tuple[str, ...]) -> None:
    texts = {
        "Talos": "version: v1alpha1\n",
        "AutoYaST": '<profile xmlns="http://www.suse.com/1.0/yast2ns"/>',
        "Combustion": "#!/bin/sh\n",
        "Generic": "x",
    }
    documents = (
        fleet(),
        server("web01"),
        image("a-1", f"userData: {format}, writesDisk: false"),
        profile("web", "a-1", f"userData: {{format: {format}, template: t}}"),
        policy("web"),
    )
    decision = decided(*documents, files={"t": texts[format]}).servers["web01"]
    [boot] = decision.boots
    assert boot.user_data is not None
    wanted = tuple(each.format(digest=boot.user_data.digest) for each in arguments)
    assert boot.kernel_arguments == wanted


@for_each(
    ("format", "field", "text", "expected"),
    [
        ("CloudInit", "networkConfig", "version: 2\nethernets: {}\n", []),
        ("CloudInit", "networkConfig", "network:\n  version: 1\n", []),
        ("CloudInit", "networkConfig", "ethernets: {}\n", ["GB4011"]),
        ("CloudInit", "vendorData", "#cloud-config\n", []),
        ("CloudInit", "vendorData", "x: y\n", ["GB4011"]),
        ("Preseed", "vendorData", "#cloud-config\n", ["GB4011"]),
    ],
)
def test_r6_what_lies_beside_user_data_is_nocloud(format: str, field: str, text: str, expected: list[str]) -> None:
    documents = (
        fleet(),
        server("web01"),
        image("a-1", f"userData: {format}"),
        profile("web", "a-1", f"userData: {{format: {format}, template: t, {field}: b}}"),
        policy("web"),
    )
    user_data = "#cloud-config\n" if format == "CloudInit" else "d-i a string b\n"
    assert codes(*documents, files={"t": user_data, "b": text}) == expected


@pytest.mark.parametrize(
    ("case", "policy_spec", "profile_spec", "method", "expected"),
    [
        ("Continuous with a loader", "override: Continuous", "httpBoot: loader", "UefiHttp", []),
        ("Continuous with a uki", "override: Continuous", UKI, "UefiHttp", ["GB2014"]),
        ("Continuous with PXE", "override: Continuous", "", "Pxe", []),
    ],
)
def test_r6_only_an_entry_can_end_continuous(
    case: str, policy_spec: str, profile_spec: str, method: str, expected: list[str]
) -> None:
    documents = (
        fleet(),
        server("web01"),
        image("a-1", "", "kernel, loader, uki"),
        profile("web", "a-1", profile_spec, method=method),
        policy("web", "All", policy_spec),
    )
    assert codes(*documents) == expected, case


# What a BMC is told


@for_each(
    ("often", "method", "policy_spec", "expected"),
    [
        (ONCE, "Pxe", "", ("Once", "Pxe", None, "provision/1", False)),
        (CHANGE, "Pxe", "", ("Once", "Pxe", None, "provision/1/a-1", False)),
        ("Always", "Pxe", "", ("Continuous", "Pxe", None, "policy/web/always", False)),
        ("Always", "Pxe", "override: Once", ("Once", "Pxe", None, "policy/web/always", True)),
        ("Always", "Pxe", "override: None", None),
        (ONCE, UKI, "", ("Once", "UefiHttp", "http://boot.test/assets/a-1/uki", "provision/1", False)),
        (
            "Always",
            UKI,
            "",
            ("Once", "UefiHttp", "http://boot.test/assets/a-1/uki", "policy/web/always", True),
        ),
        (
            "Always",
            "httpBoot: loader",
            "",
            ("Continuous", "UefiHttp", "http://boot.test/assets/a-1/loader", "policy/web/always", False),
        ),
        ("Never", "Pxe", "", None),
        ("Never", "Pxe", "diskBoot: Hdd", ("Continuous", "Hdd", None, "disk", False)),
    ],
)
def test_the_override_that_a_plan_wants(
    often: str, method: str, policy_spec: str, expected: tuple[object, ...] | None
) -> None:
    http = method.startswith("httpBoot")
    documents = (
        fleet(),
        server("web01", spec="provision: 1"),
        image("a-1", "", "kernel, loader, uki"),
        profile("web", "a-1", method if http else "", method="UefiHttp" if http else method),
        policy("web", "All", policy_spec, often=often),
    )
    found = planned(NOON, *documents, record=PENDING)
    assert found is not None
    wanted = found.override
    shown = (wanted.enabled, wanted.target, wanted.http_boot_uri, wanted.reason, wanted.set_again) if wanted else None
    assert shown == expected


# R10


@pytest.mark.parametrize(
    ("instant", "record", "expected"),
    [
        ("20T12:00", None, "20T22:00"),
        ("20T22:00", None, "21T04:00"),
        ("21T04:00", None, None),
    ],
)
def test_r10_the_next_transition(instant: str, record: Record | None, expected: str | None) -> None:
    found = decision("web01", *SEED, WINDOW)
    assert transition(found, at(instant), record) == (at(expected) if expected else None)


def test_r10_an_instant_that_changes_nothing_is_no_transition() -> None:
    over = maintenance("over", "20T23:00 21T01:00", "priority: -1")
    found = decision("web01", *SEED, WINDOW, over)
    assert transition(found, at("20T22:00"), None) == at("21T04:00")


# R7, R8


def test_r8_a_comment_a_moved_line_and_a_renamed_file_change_no_digest() -> None:
    before = decision("web01", *SEED, WINDOW)
    after = decision("web01", *(f"\n# a comment\n{text}" for text in reversed((*SEED, WINDOW))))
    assert before.digest == after.digest
    one, other = plan(before, NOON, None), plan(after, NOON, None)
    assert one == other


def test_r8_a_maintenance_of_next_week_changes_no_plan_but_the_decision() -> None:
    without, having = decision("web01", *SEED), decision("web01", *SEED, WINDOW)
    assert without.digest != having.digest
    before, after = plan(without, NOON, None), plan(having, NOON, None)
    assert before is not None and after is not None
    assert before.digest == after.digest


# Machines without a document


@for_each(
    ("unknown", "expected"),
    [
        ("LocalDisk", []),
        ("NotFound", []),
        ("{profile: repair}", []),
        ("{profile: web}", ["GB2015"]),
        ("{profile: disk}", ["GB1044"]),
        ("{profile: nobody}", ["GB2004"]),
    ],
)
def test_unknown_servers_never_boot_what_writes_disks(unknown: str, expected: list[str]) -> None:
    seed = (fleet(f"baseURL: 'http://boot.test', unknownServers: {unknown}"), *SEED[1:])
    assert codes(*seed, profile("disk", "", method="Disk")) == expected


MIRRORS = fleet("baseURL: 'http://boot.test', outputs: [ipxe, mirror]")
IN_REGISTRY = image("flatcar-1").replace("assets:flatcar-1/kernel", f"oci://registry.test/os/linux@sha256:{SHA}")


def test_what_is_mirrored_is_fetched_below_its_digest_whatever_it_was_called() -> None:
    elsewhere = image("flatcar-1").replace("assets:flatcar-1/kernel", "https://vendor.test/a/vmlinuz?b=c")
    for text, url in [
        (IN_REGISTRY, f"oci://registry.test/os/linux@sha256:{SHA}"),
        (elsewhere, "https://vendor.test/a/vmlinuz?b=c"),
    ]:
        found = decided(MIRRORS, *(text if each == image("flatcar-1") else each for each in SEED[1:]))
        (boot,) = found.servers["web01"].boots
        assert {file.url: file.source for file in boot.files.all()} == {
            f"http://boot.test/o/{SHA}/kernel": url,
            "http://boot.test/assets/flatcar-1/initrd": None,
        }


def test_what_lies_in_a_registry_has_to_be_mirrored() -> None:
    documents = [IN_REGISTRY if each == image("flatcar-1") else each for each in SEED[1:]]
    assert codes(fleet(), *documents) == ["GB4007"]
    assert codes(MIRRORS, *documents) == []


def test_only_who_can_be_seen_off_waits_for_that() -> None:
    waits = (*SEED[:-1], policy("web", spec="waitFor: PowerOff", often="Once"))
    assert codes(*waits) == ["GB1044"]
    bmc = "bmc: {address: 'https://bmc.test', credentials: rack}"
    has_bmc = [server("web01", "role: web", bmc) if each == server("web01", "role: web") else each for each in waits]
    assert len(has_bmc) == len(waits) and has_bmc != list(waits)
    assert codes(*has_bmc) == []
    found = decided(*has_bmc).servers["web01"].policy
    assert found is not None and str(found.wait_for) == "PowerOff" and facts(found)["waitFor"] == "PowerOff"


@for_each("power", ["On", "Restart", "GracefulRestart"])
@for_each("per", [None, "Site", "rack"])
def test_a_maintenances_power_is_decided_as_it_is_written(power: str, per: str | None) -> None:
    more = f", maxUnavailablePer: {per}" if per else ""
    (found,) = (
        decided(*SEED, maintenance("repair", spec=f"power: {power}, maxUnavailable: 10%{more}"))
        .servers["web01"]
        .maintenances
    )
    assert (found.power, found.max_unavailable, found.max_unavailable_per) == (power, "10%", per)
    assert ("maxUnavailablePer" in facts(found)) is (per is not None)


@pytest.mark.parametrize(
    ("often", "expected"), [("Once", []), ("OnImageChange", []), ("Always", ["GB1044"]), ("Never", ["GB1044"])]
)
def test_a_policy_switches_on_for_a_boot_that_is_made_once(often: str, expected: list[str]) -> None:
    assert codes(*SEED[:-1], policy("web", spec="power: On", often=often)) == expected


SELECTED = {
    "{matchExpressions: [{key: role, operator: In, values: [db, web]}]}": True,
    "{matchExpressions: [{key: role, operator: In, values: [db]}]}": False,
    "{matchExpressions: [{key: role, operator: NotIn, values: [db]}]}": True,
    "{matchExpressions: [{key: role, operator: NotIn, values: [web]}]}": False,
    "{matchExpressions: [{key: gpu, operator: NotIn, values: [a]}]}": True,  # as Kubernetes: without it is NotIn
    "{matchExpressions: [{key: role, operator: Exists}]}": True,
    "{matchExpressions: [{key: gpu, operator: Exists}]}": False,
    "{matchExpressions: [{key: gpu, operator: DoesNotExist}]}": True,
    "{matchExpressions: [{key: role, operator: DoesNotExist}]}": False,
    "{matchLabels: {role: web}, matchExpressions: [{key: gpu, operator: Exists}]}": False,
    "{matchLabels: {role: web, site: fra1}}": False,
    "{servers: [web01]}": True,
    "All": True,
    "None": False,
}


@for_each(("select", "expected"), SELECTED.items())
def test_whom_a_selector_selects(select: str, expected: bool) -> None:
    seed = (fleet("baseURL: 'http://boot.test', requirePolicy: false"), *SEED[1:-1], policy("web", select))
    assert (decision("web01", *seed).policy is not None) == expected


def test_user_data_is_refused_where_the_image_takes_none_by_any_way() -> None:
    documents = (
        fleet(),
        server("web01"),
        image("a-1", "userData: CloudInit, configFrom: None"),
        profile("web", "a-1", "userData: {format: CloudInit, template: t}"),
        policy("web"),
    )
    assert codes(*documents, files={"t": "#cloud-config\n"}) == ["GB4003"]


def test_node_labels_need_a_way_into_a_uki() -> None:
    documents = (
        fleet(),
        server("web01"),
        image("a-1", "", "uki"),
        profile("web", "a-1", UKI, method="UefiHttp"),
        policy("web", "All", "nodeLabels: {a: b}"),
    )
    assert codes(*documents) == ["GB4003"]


def test_user_data_may_show_the_arguments_and_arguments_its_url() -> None:
    documents = (
        fleet(),
        server("web01"),
        image("a-1", "userData: CloudInit", "kernel"),
        profile("web", "a-1", "userData: {format: CloudInit, template: t}, kernelArguments: [a=b]"),
        policy("web"),
    )
    found = planned_with(documents, "#cloud-config\n# {{ kernel_arguments | join(' ') }} {{ urls.base }}\n")
    assert found.files["user-data"] == "#cloud-config\n# a=b http://boot.test\n"
    own = profile(
        "web", "a-1", "userData: {format: CloudInit, template: t}, kernelArguments: ['ds=x;s={{ urls.user_data }}']"
    )
    own_documents = (*documents[:3], own, documents[4])
    decided_boot = decision("web01", *own_documents, files={"t": "#cloud-config\n"}).policy
    assert decided_boot is not None and decided_boot.boot is not None
    assert len(decided_boot.boot.kernel_arguments) == 1  # the author has set it
    assert decided_boot.boot.user_data is not None
    assert decided_boot.boot.kernel_arguments[0] == f"ds=x;s={decided_boot.boot.user_data.url}"


def planned_with(documents: tuple[str, ...], template: str) -> UserDataFiles:
    found = decision("web01", *documents, files={"t": template}).policy
    assert found is not None and found.boot is not None and found.boot.user_data is not None
    return found.boot.user_data


@pytest.mark.parametrize(
    ("template", "line", "message"),
    [
        ("#cloud-config\n{{ nothing }}\n", 2, "nothing"),
        ("#cloud-config\n\n{% if %}\n", 3, ""),
    ],
)
def test_a_fault_of_a_template_is_shown_in_the_template(template: str, line: int, message: str) -> None:
    documents = (
        fleet(),
        server("web01"),
        image("a-1", "userData: CloudInit"),
        profile("web", "a-1", "userData: {format: CloudInit, template: t.j2}"),
        policy("web"),
    )
    with pytest.raises(InvalidRepository) as raised:
        decided(*documents, files={"t.j2": template})
    (problem,) = raised.value.problems
    assert (problem.path, problem.line) == ("t.j2", line)
    assert message in problem.message


def test_a_fault_in_a_templated_argument_is_shown_at_the_argument() -> None:
    seed = (*SEED[:4], profile("web", "flatcar-1", "kernelArguments: [a, '{{ nothing }}']"), *SEED[5:])
    with pytest.raises(InvalidRepository) as raised:
        decided(*seed)
    (problem,) = raised.value.problems
    assert (problem.path, problem.line) == ("004.yaml", 4)
    assert seed[4].splitlines()[3][problem.column - 1 :].startswith("'{{ nothing }}'")


def test_a_fault_of_a_template_that_two_profiles_use_is_told_once() -> None:
    user_data = "userData: {format: CloudInit, template: t.j2}"
    documents = (
        fleet(),
        server("web01", "role: web"),
        server("db01", "role: db"),
        image("a-1", "userData: CloudInit"),
        profile("web", "a-1", user_data),
        profile("db", "a-1", user_data),
        policy("web", "{matchLabels: {role: web}}"),
        policy("db", "{matchLabels: {role: db}}", boots="db"),
    )
    with pytest.raises(InvalidRepository) as raised:
        decided(*documents, files={"t.j2": "{{ nothing }}"})
    (problem,) = raised.value.problems
    assert "db01, web01" in problem.message


def test_r5_what_was_consumed_for_one_number_holds_back_no_other() -> None:
    record = Record(consumed_at=NOON, consumed_key="provision/1")
    seed = (SEED[0], server("web01", "role: web", "provision: 2"), *SEED[2:-1], policy("web", often=ONCE))
    found = planned(NOON + timedelta(hours=1), *seed, record=record)
    assert found is not None and found.override is not None
    assert (found.phase, found.override.reason) == (Phase.NETWORK, "provision/2")


def test_an_image_that_is_wanted_again_is_another_key() -> None:
    seed = (SEED[0], server("web01", "role: web", "provision: 1"), *SEED[2:-1], policy("web", often=CHANGE))
    first = planned(NOON, *seed, record=PENDING)
    again = planned(NOON, *seed, record=Record(provision=1, image="flatcar-0", provisioned_at=NOON))
    assert first is not None and again is not None
    assert (first.key, again.key) == ("provision/1/flatcar-1", "provision/1/flatcar-1/after/2026-11-20T12:00:00Z")


# What a commit declares as provisioned


@for_each(
    ("number", "expected"),
    [("1", []), ("007", []), ("9" * 18, []), ("1" * 5000, ["GB1030"]), ("-1", ["GB1030"]), ("one", ["GB1030"])],
)
def test_a_declared_number_is_a_whole_one(number: str, expected: list[str]) -> None:
    declared = server("web01", "role: web").replace(
        "labels:", f"annotations: {{gitboot.dev/provisioned: '{number}'}}, labels:"
    )
    declares = fleet("baseURL: 'http://boot.test', provisioning: {evidence: Declared}")
    assert codes(declares, declared, *SEED[2:]) == expected


def test_a_hundred_servers_of_a_file_that_lack_a_policy_are_reported() -> None:
    servers = "---\n".join(server(f"b{number:03}") for number in range(150))
    assert codes(*SEED, files={"b.yaml": servers}) == ["GB2010"] * 100 + ["GB1015"]


# Certificates of authorities for BMCs


def with_bmc(name: str, tls: str) -> str:
    return server(name, "role: web", f"bmc: {{address: 'https://{name}.test', credentials: a, tls: {{{tls}}}}}")


@for_each(
    ("case", "tls", "ends", "since"),
    [
        ("it expires", "ca: ca.pem", ["20T12:00"], "20T12:00"),
        ("a new one is beside it", "ca: ca.pem", ["20T12:00", "21T12:00"], "21T12:00"),
        ("wherever that stands", "ca: ca.pem", ["21T12:00", "20T12:00"], "21T12:00"),
        ("nothing is verified", "ca: ca.pem, verify: false", ["20T12:00"], None),
        ("it is no certificate", "ca: ca.pem", [], None),
    ],
)
def test_finding_r15_an_authority_for_bmcs_that_has_expired_is_a_warning(
    case: str, tls: str, ends: list[str], since: str | None
) -> None:
    pem = "".join(authority_until(at(end)) for end in ends)
    found = decided(*SEED, *(with_bmc(f"db{number}", tls) for number in range(3)), files={"ca.pem": pem})
    assert found.warnings == ()
    if since is None:
        assert found.dated == (), case
        return
    assert found.problems_at(at(since) - timedelta(seconds=1)) == ()
    (problem,) = found.problems_at(at(since))
    assert (problem.code, problem.path, problem.line) == ("GB2027", "ca.pem", 1)
    assert problem.message == (
        f"the authority for BMCs expired at {at(since):%Y-%m-%dT%H:%M:%SZ}: gitboot rejects "
        "what it signed (db0, db1 and 1 more)"
    )


def test_finding_r15_a_new_certificate_in_the_file_of_an_authority_ends_the_warning() -> None:
    trees = [
        snapshot(*SEED, with_bmc("db0", "ca: ca.pem"), files={"ca.pem": authority_until(at(end))}, revision=end)
        for end in ("20T12:00", "21T12:00")
    ]
    evaluator = Evaluator(lambda revision, previous: next(each for each in trees if each.revision == revision))
    old, new = (evaluator.evaluate(trees[i].revision, trees[0].revision if i else None).head for i in range(2))
    assert len(old.decided.decisions.problems_at(at("21T00:00"))) == 1
    assert new.decided.decisions.problems_at(at("21T00:00")) == ()
    assert new.decided.decisions.dated == decide_all(load(trees[1])).decisions.dated
