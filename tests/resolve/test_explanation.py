"""Rule R9: each field with its resource and location, the values that were not chosen, and the lines of values."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Final

from gitboot.fleet.documents import Id
from gitboot.fleet.yaml import list_value_lines, locate, parse
from gitboot.jsonio import to_camel, to_json_value
from gitboot.model.scalars import Path
from gitboot.resolve.explanation import (
    Explanation,
    SourceTexts,
    explain,
    find_moved_documents,
    find_source_locations,
    json_pointer,
)
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.plan_at_time import make_plan
from gitboot.resolve.policy_selection import RejectedCandidate
from gitboot.resolve.provisioning_record import Record, Run, StopScope
from gitboot.resolve.server_decision import (
    Boot,
    BootFiles,
    CopySettings,
    Decision,
    MaintenanceDecision,
    PolicyDecision,
    UserDataFiles,
    WithheldBoot,
)
from gitboot.resolve.server_plan import Cause
from tests.helpers.cases import for_each
from tests.helpers.fleets import (
    SEED,
    at,
    document,
    fleet,
    image,
    maintenance,
    make_mac,
    make_uuid,
    policy,
    profile,
    repository,
    server,
)

AGE: Final = f"age-encryption.org/v1\n-> X25519 {'A' * 43}\n{'A' * 43}\n--- {'A' * 43}\nsecret"
NOON, NIGHT = at("20T12:00"), at("20T23:00")

STREAM = document(
    "ImageStream",
    "flatcar",
    "current: flatcar-1, rollout: {image: flatcar-2, percent: 0}, "
    "holds: [{select: {matchLabels: {role: db}}, image: flatcar-0, reason: held}]",
)
RICH_FLEET = (
    fleet("baseURL: 'http://boot.test', sites: [{name: fra1, select: All, baseURL: 'http://fra1.test'}]"),
    server("web01", "role: web", "kernelArguments: [from-server], vars: {console: ttyS1}, provision: 2"),
    server("db01", "role: db"),
    *(image(f"flatcar-{number}", "userData: CloudInit, kernelArguments: [from-image]") for number in (0, 1, 2)),
    STREAM,
    profile(
        "web",
        "stream: flatcar",
        "kernelArguments: ['console={{ vars.console }}'], vars: {console: ttyS0}, "
        "userData: {format: CloudInit, template: t.j2}",
    ),
    policy("worker", "All", "priority: 1, vars: {pool: worker}", often="Once"),
    policy("edge", "{matchLabels: {role: web}}", "inherits: worker, kernelArguments: [from-edge]"),
    policy("low", "All", "priority: 0"),
    image("memtest-7", "writesDisk: false"),
    profile("repair", "memtest-7"),
    maintenance("tonight", "20T22:00 21T04:00"),
    maintenance("lesser", "20T22:00 21T04:00", "priority: -1"),
)


def explain_server(
    name: str = "web01",
    instant: datetime = NOON,
    documents: tuple[str, ...] = RICH_FLEET,
    record: Record | None = None,
) -> Explanation:
    found = repository(*documents, files={"t.j2": "#cloud-config\n", "t.age": AGE})
    decision = decide(found).servers[name]
    return explain(found, decision, make_plan(decision, instant, record), instant, record)


def table(found: Explanation) -> dict[str, tuple[str, str, str | None]]:
    return {reason.field: (reason.value, reason.rule, reason.resource) for reason in found.reasons}


def test_each_field_names_the_resource_that_set_it() -> None:
    rows = table(explain_server())
    added, rule, resource = rows.pop("kernelArguments[4]")
    assert added.startswith("ds=nocloud;s=http://fra1.test/o/")
    assert (rule, resource) == ("R7", None)  # gitboot adds it
    assert rows == {
        "site": ("fra1", "-", "Fleet/test"),
        "phase": ("Disk", "R5", None),
        "policy": ("edge", "R3", "BootPolicy/edge"),
        "networkBoot": ("Once", "R3", "BootPolicy/worker"),
        "profile": ("web", "R3", "BootPolicy/worker"),
        "provision": ("2", "R5", "Server/web01"),
        "image": ("flatcar-1", "R4", "ImageStream/flatcar"),
        "method": ("Pxe", "R6", "BootProfile/web"),
        "kernelArguments[0]": ("from-image", "R7", "BootImage/flatcar-1"),
        "kernelArguments[1]": ("from-edge", "R7", "BootPolicy/edge"),
        "kernelArguments[2]": ("console=ttyS1", "R7", "BootProfile/web"),
        "kernelArguments[3]": ("from-server", "R7", "Server/web01"),
        "userData": ("t.j2", "R6", "BootProfile/web"),
        "vars.console": ("ttyS1", "R7", "Server/web01"),
        "vars.pool": ("worker", "R7", "BootPolicy/worker"),
    }


def test_claims_of_the_image_and_the_requirement_of_its_stream_are_shown() -> None:
    """Only if the documents state them. The requirement applies to a pinned server of the stream too."""
    kernel = f"{{url: 'assets:k', sha256: {'a' * 64}, provenance: {{digest: signed, key: AB12}}}}"
    claims = f"kernel: {kernel}, initrds: [{{url: 'assets:i', sha256: {'b' * 64}}}]"
    signed = document("BootImage", "flatcar-1", f"version: '1', architectures: {{x86_64: {{{claims}}}}}")
    requiring = document("ImageStream", "flatcar", "current: flatcar-1, requireProvenance: signed")
    pinned = server("web02", "", "provision: 1, pin: {image: flatcar-1, reason: GPU}")
    documents = (
        fleet(),
        server("web01", "", "provision: 1"),
        pinned,
        signed,
        requiring,
        profile("web", "stream: flatcar"),
        policy("worker", "All", often="Once"),
    )
    rows = table(explain_server(documents=documents))
    assert rows["provenance"] == ("not stated, signed by AB12", "-", "BootImage/flatcar-1")
    assert rows["requireProvenance"] == ("signed", "-", "ImageStream/flatcar")
    rows = table(explain_server("web02", documents=documents))
    assert rows["provenance"] == ("not stated, signed by AB12", "-", "BootImage/flatcar-1")
    assert rows["requireProvenance"] == ("signed", "-", "ImageStream/flatcar")
    assert "requireProvenance" not in table(explain_server())


def test_each_field_has_its_file_line_and_column() -> None:
    places = {reason.field: (reason.path, reason.line, reason.column) for reason in explain_server().reasons}
    text = RICH_FLEET[1].splitlines()
    assert places["provision"] == ("001.yaml", 4, text[3].index("provision: 2") + len("provision: ") + 1)
    assert places["vars.console"] == ("001.yaml", 4, text[3].index("ttyS1") + 1)
    assert places["kernelArguments[4]"] == (None, None, None)


def test_values_that_were_not_chosen_are_named_with_the_rule() -> None:
    assert [(lost.candidate, lost.rule) for lost in explain_server().lost] == [
        ("BootPolicy/low", "R3"),
        ("BootPolicy/worker", "R3"),
        ("Maintenance/lesser", "R2"),
        ("Maintenance/tonight", "R2"),
        ("BootImage/flatcar-2", "R4"),
    ]


def test_during_a_maintenance_the_policy_is_not_chosen_and_the_reasons_are_those_of_the_maintenance() -> None:
    found = explain_server(instant=NIGHT)
    rows = table(found)
    assert rows["maintenance"] == ("tonight", "R2", "Maintenance/tonight")
    assert rows["window.start"][2] == "Maintenance/tonight"
    assert rows["image"] == ("memtest-7", "R2", "BootProfile/repair")
    assert not any(field.startswith("kernelArguments") for field in rows)
    (arguments,) = (each for each in found.others if each.field == "kernelArguments")
    assert (arguments.value, arguments.why) == ("none", "the documents that apply leave no kernel arguments")
    lost = {each.candidate: each.why for each in found.lost}
    assert lost["BootPolicy/edge"] == "an active maintenance replaces the policy"
    assert "below 0" in lost["Maintenance/lesser"]


def test_a_maintenance_whose_one_time_boot_was_used_is_still_explained() -> None:
    once = (*RICH_FLEET[:-2], maintenance("tonight", "20T22:00 21T04:00", "networkBoot: Once"))
    rows = table(explain_server(instant=NIGHT, documents=once, record=Record(runs={"tonight": Run(1, at("20T22:10"))})))
    assert (rows["phase"][0], rows["image"][0]) == ("Disk", "memtest-7")


@for_each(
    ("case", "has_policy", "stopped", "stop", "is_withheld", "lacks_file", "why"),
    [
        (f"{case}, {'with' if has_policy else 'without'} a policy", has_policy, *values)
        for has_policy in (True, False)
        for case, *values in (
            ("stopped", ", stopped: INC-1", StopScope.NONE, False, False, Cause.STOPPED),
            ("stopped by an order", "", StopScope.WRITING, False, False, Cause.STOPPED),
            ("all stopped", "", StopScope.ALL, False, False, Cause.ALL_STOPPED),
            ("withheld", "", StopScope.NONE, True, False, Cause.WITHHELD),
            ("without a file", "", StopScope.NONE, False, True, Cause.FILE_MISSING),
        )
    ],
)
def test_an_active_maintenance_whose_boot_is_not_offered_is_explained_with_the_cause(
    case: str, has_policy: bool, stopped: str, stop: StopScope, is_withheld: bool, lacks_file: bool, why: Cause
) -> None:
    found = repository(
        fleet(f"baseURL: 'http://boot.test', requirePolicy: false{stopped}"),
        *SEED[1 : None if has_policy else -1],
        maintenance("reflash", "20T11:00 20T13:00", "networkBoot: Once", boots="web"),
        maintenance("lesser", "20T11:00 20T13:00", "networkBoot: Once, priority: -1", boots="web"),
        maintenance("later", "20T22:00 21T04:00", "networkBoot: Once", boots="web"),
    )
    decision = decide(found).servers["web01"]
    boot = next(each.boot for each in decision.maintenances if each.name == "reflash")
    assert boot is not None and boot.files.kernel is not None
    if is_withheld:
        decision = replace(decision, withheld=(WithheldBoot("reflash", None, None, True, "f" * 40),))
    absent = (boot.files.kernel,) if lacks_file else ()
    plan = make_plan(decision, NOON, Record(), stop=stop, absent_files=absent)
    explanation = explain(found, decision, plan, NOON, Record())
    (phase,) = (each for each in explanation.reasons if each.field == "phase")
    assert (phase.value, phase.why) == ("Disk", why)
    assert [each for each in explanation.lost if each.candidate.startswith("Maintenance/")] == [
        RejectedCandidate("Maintenance/later", "R2", "the maintenance is not currently active"),
        RejectedCandidate("Maintenance/lesser", "R2", "its priority (-1) is below 0"),
        RejectedCandidate("Maintenance/reflash", "R2", why),
    ], case


@for_each(
    ("case", "documents", "field", "expected"),
    [
        (
            "parked",
            (*SEED[:1], server("web01", spec="lifecycle: Parked"), *SEED[2:]),
            "lifecycle",
            ("Parked", "R1", "Server/web01"),
        ),
        (
            "no policy",
            (fleet("baseURL: 'http://boot.test', requirePolicy: false"), *SEED[1:-1]),
            "phase",
            ("no plan", "R3", None),
        ),
        (
            "its policy by name",
            (SEED[0], server("web01", spec="policy: web"), *SEED[2:]),
            "policy",
            ("web", "R3", "Server/web01"),
        ),
        (
            "the local disk",
            (*SEED[:4], profile("web", "", method="Disk"), *SEED[5:]),
            "method",
            ("Disk", "R5", "BootProfile/web"),
        ),
        (
            "a maintenance of the local disk",
            (*SEED, profile("disk", "", method="Disk"), maintenance("freeze", boots="disk")),
            "maintenance",
            ("freeze", "R2", "Maintenance/freeze"),
        ),
        (
            "a maintenance that follows a stream",
            (
                *SEED,
                document("ImageStream", "s", "current: memtest-7"),
                profile("streamed", "stream: s"),
                maintenance("m", boots="streamed"),
            ),
            "image",
            ("memtest-7", "R2", "ImageStream/s"),
        ),
        (
            "over HTTP",
            (
                *SEED[:2],
                image("flatcar-1", "", "uki"),
                SEED[3],
                profile("web", "flatcar-1", "httpBoot: uki", method="UefiHttp"),
                *SEED[5:],
            ),
            "httpBoot",
            ("uki", "R6", "BootProfile/web"),
        ),
    ],
)
def test_each_field_is_explained_with_its_reason(
    case: str, documents: tuple[str, ...], field: str, expected: tuple[str, str, str | None]
) -> None:
    assert table(explain_server(documents=documents))[field] == expected, case


def test_facts_are_json_values() -> None:
    import json

    said = json.loads(json.dumps(to_json_value(explain_server())))
    assert (said["server"], said["reasons"][0]["field"]) == ("web01", "site")
    assert said["lost"][0] == {
        "candidate": "BootPolicy/low",
        "rule": "R3",
        "why": "priority 0 is below 1",
    }


EXPLAINED_AS: Final = {  # fields whose name differs from the key in JSON
    (MaintenanceDecision, "name"): "maintenance",
    (MaintenanceDecision, "start"): "window.start",
    (MaintenanceDecision, "end"): "window.end",
    (Decision, "base_url"): "baseURL",
    (UserDataFiles, "digest"): "userData.sha256",
}
PREFIXES: Final = {BootFiles: "files.", UserDataFiles: "userData.", CopySettings: "copies."}
NOT_EXPLAINED: Final = {  # nested objects, whose own fields are explained, and the digest
    *((Decision, name) for name in ("copies", "_digest")),
    *((kind, "boot") for kind in (PolicyDecision, MaintenanceDecision)),
    (UserDataFiles, "files"),
}


def list_fields(*kinds: type) -> set[str]:
    """Return the names by which `gitboot explain SERVER FIELD` finds all fields of these types."""
    names = {(kind, name): PREFIXES.get(kind, "") + to_camel(name) for kind in kinds for name in kind.__annotations__}
    return {EXPLAINED_AS.get(key, name) for key, name in names.items() if key not in NOT_EXPLAINED}


EVERYTHING: Final = (
    fleet(
        "baseURL: 'http://boot.test', endpoint: 'http://live.test', stopped: moving, "
        "serving: {oneTimeBoots: Copies}, provisioning: {evidence: Reported, attempts: 3}, "
        "sites: [{name: fra1, select: All, baseURL: 'http://fra1.test'}]"
    ),
    server("web01", "role: web", "provision: 1, serial: AB1234, secrets: {token: t.age}"),
    *RICH_FLEET[2:8],
    policy(
        "worker",
        "All",
        "priority: 1, override: Continuous, nodeLabels: {a/pool: web, a/zone: one}, "
        "nodeTaints: [{key: dedicated, effect: NoSchedule}]",
        often="Once",
    ),
    policy(
        "edge",
        "{matchLabels: {role: web}}",
        "inherits: worker, power: On, nodeLabels: {a/zone: two}, "
        "nodeTaints: [{key: edge, value: x, effect: NoExecute}]",
    ),
    image("memtest-7", "writesDisk: false"),
    profile("repair", "memtest-7"),
    maintenance("tonight", "20T22:00 21T04:00", "maxUnavailable: 10%, maxUnavailablePer: Site, power: On, run: 3"),
)


@for_each(
    ("case", "documents", "instant", "kinds"),
    [
        ("a policy", EVERYTHING, NOON, (PolicyDecision, BootFiles, UserDataFiles)),
        ("a policy with defaults", SEED, NOON, (PolicyDecision, BootFiles)),
        ("a maintenance", EVERYTHING, NIGHT, (MaintenanceDecision, BootFiles)),
        ("the local disk", (*SEED[:4], profile("web", "", method="Disk"), *SEED[5:]), NOON, (PolicyDecision,)),
        ("no policy", (fleet("baseURL: 'http://boot.test', requirePolicy: false"), *SEED[1:-1]), NOON, ()),
        ("parked", (*SEED[:1], server("web01", spec="lifecycle: Parked"), *SEED[2:]), NOON, ()),
    ],
)
def test_every_field_of_a_decision_is_explained(
    case: str, documents: tuple[str, ...], instant: datetime, kinds: tuple[type, ...]
) -> None:
    """The names come from the types, so a new field fails here until it is explained."""
    found = explain_server(instant=instant, documents=documents)
    every = (*found.reasons, *found.others)
    names = {each.field for each in every}
    parts = {each.field[:end] for each in every for end, sign in enumerate(each.field) if sign in ".["}
    assert list_fields(Decision, CopySettings, Boot, *kinds) - names - parts == set(), case
    assert len(names) == len(every), case  # each field has one reason
    for each in every:
        assert (each.resource is None) == (each.line is None), each


@for_each(
    ("field", "value", "resource", "source"),
    [
        ("uuid", make_uuid("web01"), "Server/web01", "uuid: "),
        ("macs[0]", make_mac("web01").replace(":", "-"), "Server/web01", "mac: "),
        ("architecture", "x86_64", "Server/web01", "architecture: "),
        ("serial", "AB1234", "Server/web01", "serial: "),
        ("override", "Continuous", "BootPolicy/worker", "override: "),
        ("power", "On", "BootPolicy/edge", "power: "),
        ("diskBoot", "FirmwareOrder", None, None),
        ("attempts", "3", "Fleet/test", "attempts: "),
        ("stopped", "true", "Fleet/test", "stopped: "),
        ("copies.oneTimeBoots", "true", "Fleet/test", "oneTimeBoots: "),
        ("nodeLabels.a/pool", "web", "BootPolicy/worker", "a/pool: "),
        ("nodeLabels.a/zone", "two", "BootPolicy/edge", "a/zone: "),
        ("nodeTaints[0]", "dedicated=:NoSchedule", "BootPolicy/worker", "nodeTaints: ["),
        ("nodeTaints[1]", "edge=x:NoExecute", "BootPolicy/edge", "nodeTaints: ["),
        ("version", "1", "BootImage/flatcar-1", "version: "),
        ("entries.ipxe", "built in", None, None),
        ("userData.format", "CloudInit", "BootProfile/web", "format: "),
    ],
)
def test_each_further_field_has_its_value_and_the_document_that_sets_it(
    field: str, value: str, resource: str | None, source: str | None
) -> None:
    found = explain_server(documents=EVERYTHING)
    reason = next(each for each in (*found.reasons, *found.others) if each.field == field)
    assert (reason.value, reason.resource) == (value, resource)
    if source is not None:
        assert reason.path is not None and reason.line is not None and reason.column is not None
        line = EVERYTHING[int(reason.path.removesuffix(".yaml"))].splitlines()[reason.line - 1]
        assert line[: reason.column - 1].endswith(source)


def test_an_explanation_of_the_server_shows_settings_only_if_a_document_sets_them() -> None:
    shown = {each.field for each in explain_server(documents=EVERYTHING).reasons}
    assert {"override", "power", "nodeLabels.a/zone", "nodeTaints[1]"} <= shown
    assert shown.isdisjoint({"diskBoot", "waitFor", "uuid"})
    assert {"run", "maxUnavailable", "maxUnavailablePer"} <= {
        each.field for each in explain_server(instant=NIGHT, documents=EVERYTHING).reasons
    }
    assert "nodeLabels" not in table(explain_server(documents=SEED))


TOGETHER: Final = f"# the first line\n{SEED[1]}---\n{server('web02', 'role: web')}---\n{policy('rest', 'None')}"
NESTED: Final = b"""\
# a comment
apiVersion: gitboot.dev/v1alpha1
---
spec:
  vars:
    a/b: one
    c~d:

  kernelArguments:
    - quiet
    - debug
"""


@for_each(
    ("path", "expected"),
    [
        ((), ""),
        (("spec", "vars", "console"), "/spec/vars/console"),
        (("spec", "kernelArguments", 1), "/spec/kernelArguments/1"),
        (("spec", "nodeLabels", "example.net/pool"), "/spec/nodeLabels/example.net~1pool"),
        (("~1",), "/~01"),
    ],
)
def test_a_value_has_the_pointer_of_rfc_6901(path: Path, expected: str) -> None:
    assert json_pointer(path) == expected


def test_each_value_has_the_line_at_which_it_is_located() -> None:
    (_, document) = parse(NESTED, "x.yaml").documents
    found = list_value_lines(NESTED, document.index)
    assert found == {path: locate(NESTED, document.index, path).line for path in found}
    assert found[("spec", "kernelArguments", 1)] == 11
    assert found[("spec", "vars", "c~d")] == 7  # it is not written: its key is


def test_documents_in_one_file_have_the_lines_above_them() -> None:
    found = repository(*SEED[:1], *SEED[2:], files={"all.yaml": TOGETHER})
    locations = find_source_locations(found)
    lines = TOGETHER.splitlines()
    begins = [number for number, line in enumerate(lines) if line == "---"]
    assert {name: tuple(each) for name, each in locations.servers.items()} == {
        "web01": ("all.yaml", 0),
        "web02": ("all.yaml", begins[0]),
    }
    file, rest = locations.shared["BootPolicy/rest"]
    assert (file, lines[rest["/spec"] - 1], lines[rest["/kind"] - 1]) == (
        "all.yaml",
        lines[begins[1] + 4],
        "kind: BootPolicy",
    )
    texts = SourceTexts(found)
    for name, (_, above) in locations.servers.items():
        assert f"name: {name}" in lines[above + texts.find_line(Id("Server", name), ("metadata", "name")) - 1]


def test_documents_move_if_their_file_changes_appears_or_disappears() -> None:
    before = repository(*SEED, files={"more.yaml": server("web02", "role: web")})
    same = repository(*SEED, files={"more.yaml": server("web02", "role: web"), "README.md": "more"})
    assert find_moved_documents(before, same) == []
    other = repository(*SEED[:-1], f"# moved\n{SEED[-1]}", files={"new.yaml": server("web03", "role: web")})
    key = [str(each) for each in find_moved_documents(before, other)]
    assert key == ["BootPolicy/web", "Server/web02", "Server/web03"]
