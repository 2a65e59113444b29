"""Validation: documents, references, names and identities across the files of a commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from gitboot.errors import InvalidRepository
from gitboot.fleet import validation
from gitboot.fleet.documents import KINDS, Id, ParseCache, parse_blob
from gitboot.fleet.revision import BlobId, Irregular, Oversized, Snapshot
from gitboot.fleet.validation import InvalidRevision, LoadedRevision, list_references, load, load_revision
from gitboot.model.fields import to_yaml_value as plain
from gitboot.model.scalars import Path, parse_file_path, parse_name
from gitboot.problems import Problem
from tests.helpers.cases import MAX_GROWTH, TIMES, count_examples, for_each, measure_growth
from tests.helpers.fleets import SEED, document, fleet, image, maintenance, make_uuid, policy, profile, server, snapshot
from tests.helpers.hypothesis_strategies import AWKWARD, LAYOUTS, Document, documents, fields, format_yaml

LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"


def problems(given: Snapshot, cache: ParseCache | None = None) -> tuple[Problem, ...]:
    try:
        load(given, cache)
    except InvalidRepository as error:
        return error.problems
    return ()


def list_problems(given: Snapshot, cache: ParseCache | None = None) -> list[str]:
    return [f"{each.path}:{each.line} {each.code}" for each in problems(given, cache)]


def validate(
    *documents: str, files: Mapping[str, str] | None = None, irregular: Mapping[str, Irregular] | None = None
) -> list[str]:
    return list_problems(structs.replace(snapshot(*SEED, *documents, files=files), irregular=irregular or {}))


# Files


@for_each(
    ("path", "counts"),
    [
        ("a.yaml", True),
        ("a.yml", True),
        ("deep/er/a.yaml", True),
        ("with space/ä.yaml", True),
        ("a.yaml.j2", False),
        ("a.YAML", False),
        ("yaml", False),
        (".a.yaml", False),
        (".github/workflows/ci.yaml", False),
        ("deep/.hidden/a.yaml", False),
        ("deep/.a.yaml", False),
    ],
)
def test_yaml_files_count_in_any_folder_except_below_a_dot(path: str, counts: bool) -> None:
    assert validate(files={path: "kind: Other\n"}) == ([f"{path}:1 GB1021"] if counts else [])


def test_gitbootignore_counts_only_at_the_root() -> None:
    files = {"charts/values.yaml": "kind: Other\n", "charts/.gitbootignore": "*"}
    assert validate(files=files) == ["charts/values.yaml:1 GB1021"]


def test_an_ignored_file_can_be_a_template() -> None:
    files = {"t/user-data.yaml": "#cloud-config\n", ".gitbootignore": "t/"}
    web = profile("web", "flatcar-1", "userData: {format: CloudInit, template: t/user-data.yaml}")
    loaded = load(snapshot(*SEED[:4], web, *SEED[5:], files=files))
    assert loaded.files == {"t/user-data.yaml": b"#cloud-config\n"}


@for_each("text", ["#cloud-config\npackages: [git]\n", "#cloud-config\n{% if a %}\n  - [\n{% endif %}\n", "- a list\n"])
def test_finding_p14_a_yaml_file_that_a_profile_names_is_a_template(text: str) -> None:
    web = profile("web", "flatcar-1", "userData: {format: CloudInit, template: t/user-data.yaml}")
    named = snapshot(*SEED[:4], web, *SEED[5:], files={"t/user-data.yaml": text})
    assert load(named).files == {"t/user-data.yaml": text.encode()}
    assert list_problems(snapshot(*SEED, files={"t/user-data.yaml": text})) != []


def test_a_document_that_a_profile_names_as_its_template_stays_a_document() -> None:
    web = profile("web", "flatcar-1", "userData: {format: CloudInit, template: servers/new.yaml}")
    broken = "apiVersion: gitboot.dev/v1alpha1\nkind: Server\n"
    found = list_problems(snapshot(*SEED[:4], web, *SEED[5:], files={"servers/new.yaml": broken}))
    assert [each for each in found if each.startswith("servers/new.yaml:")] != []


@for_each("line", ["!", "a\\", "[z-a]", "\\", "[a", "a/[[:word:]]"])
def test_an_invalid_line_of_gitbootignore_is_a_problem(line: str) -> None:
    assert validate(files={".gitbootignore": f"a/\n{line}\nb/\n"}) == [".gitbootignore:2 GB5007"]


@pytest.mark.parametrize("irregular", list(Irregular))
def test_an_irregular_entry_is_a_problem_unless_it_is_ignored(irregular: Irregular) -> None:
    codes = {Irregular.SUBMODULE: "GB5001", Irregular.SYMLINK: "GB5002", Irregular.FILE_NAME: "GB5004"}
    assert validate(irregular={"sub": irregular}) == [f"sub:1 {codes[irregular]}"]
    assert validate(irregular={".sub": irregular}) == []
    assert validate(files={".gitbootignore": "/sub"}, irregular={"sub": irregular}) == []


def test_a_submodule_is_a_folder_that_can_be_ignored() -> None:
    assert validate(files={".gitbootignore": "sub/"}, irregular={"sub": Irregular.SUBMODULE}) == []
    assert validate(files={".gitbootignore": "sub/"}, irregular={"sub": Irregular.SYMLINK}) == ["sub:1 GB5002"]


def test_a_gitbootignore_of_more_than_64_kib_is_a_problem_and_ignores_nothing() -> None:
    ignored = "charts/\n" + "#" * 64 * 1024
    files = {"charts/values.yaml": "kind: Other\n", ".gitbootignore": ignored}
    assert validate(files=files) == [".gitbootignore:1 GB1004", "charts/values.yaml:1 GB1021"]
    assert validate(files={**files, ".gitbootignore": ignored[: 64 * 1024]}) == []


# Documents


def test_a_file_that_is_too_large_is_a_problem_at_its_path_and_where_it_is_named() -> None:
    named = profile("web", "flatcar-1", "userData: {format: Ignition/3.4, template: huge.ign}")
    given = snapshot(*SEED[:4], named, *SEED[5:], files={"huge.ign": "", "huge.yaml": "# huge"})

    def read(blob: BlobId) -> bytes:
        if blob in (given.blobs["huge.ign"], given.blobs["huge.yaml"]):
            raise Oversized(2**30)
        return given.read(blob)

    assert list_problems(structs.replace(given, read=read)) == ["004.yaml:4 GB1004", "huge.yaml:1 GB1004"]


def test_a_file_has_several_documents_and_empty_ones_between_them() -> None:
    text = "---\n# all of them\n---\n" + "\n---\n".join(SEED) + "---\n"
    loaded = load(snapshot(files={"all.yaml": text}))
    assert [str(key) for key in sorted(loaded.origins)] == [
        *("BootImage/flatcar-1", "BootImage/memtest-7", "BootPolicy/web", "BootProfile/repair", "BootProfile/web"),
        *("Fleet/test", "Server/web01"),
    ]
    assert loaded.find_place(Id("Server", "web01"), "metadata", "name")[1].line == 12


@pytest.mark.parametrize(
    ("case", "change"),
    [
        ("CRLF", lambda text: text.replace("\n", "\r\n")),
        ("a byte order mark", lambda text: "\ufeff" + text),
        ("no newline at its end", lambda text: text.rstrip("\n")),
        ("comments", lambda text: "# a\n" + text.replace("\n", " # b\n", 1)),
        ("a document's end", lambda text: text + "...\n"),
        ("another order", lambda text: "".join(sorted(text.splitlines(keepends=True)))),
    ],
)
def test_the_spelling_of_a_document_changes_nothing(case: str, change: Any) -> None:
    one, other = load(snapshot(*SEED)), load(snapshot(*map(change, SEED)))
    assert (one.fleet, one.servers, one.images) == (other.fleet, other.servers, other.images), case
    assert (one.profiles, one.policies) == (other.profiles, other.policies), case


def test_resources_are_sorted_by_name_for_any_order_of_files() -> None:
    loaded = load(snapshot(*[server(f"web{number:02}", "role: web") for number in range(20, 1, -1)], *reversed(SEED)))
    assert list(loaded.servers) == sorted(loaded.servers)
    assert list(loaded.images) == ["flatcar-1", "memtest-7"]


# Names, identities, references


def test_resources_of_different_kinds_may_have_the_same_name() -> None:
    assert validate(policy("flatcar-1", "None"), profile("flatcar-1", "flatcar-1")) == []


@pytest.mark.parametrize("kind", [document("Server", "web01", ""), server("web01"), SEED[1]])
def test_the_second_of_two_documents_with_one_name_is_a_problem(kind: str) -> None:
    expected = ["007.yaml:3 GB2002"] if "uuid" in kind else ["007.yaml:4 GB1023"] * 3
    assert validate(kind) == expected


def test_there_must_be_exactly_one_fleet() -> None:
    assert list_problems(snapshot(*SEED[1:])) == ["fleet.yaml:1 GB2001"]
    assert list_problems(snapshot()) == ["fleet.yaml:1 GB2001"]
    assert validate(document("Fleet", "other", "baseURL: 'http://boot.test'")) == ["000.yaml:3 GB2002"]


BMC = "bmc: {address: 'https://10.1.0.1', credentials: a"
ONE = f"serial: S1A, {BMC}, system: /redfish/v1/Systems/1}}"


@for_each(
    ("case", "spec", "shared"),
    [
        ("nothing", "serial: S2B", 0),
        ("the serial", "serial: S1A", 1),
        ("a serial in another case", "serial: s1a", 1),
        ("the BMC and its system", f"{BMC}, system: /redfish/v1/Systems/1}}", 1),
        ("the BMC, but not the system", f"{BMC}, system: /redfish/v1/Systems/2}}", 0),
        ("the BMC, one of them without a system", f"{BMC}}}", 1),
        (
            "the BMC in capitals, with its port",
            ONE.replace("serial: S1A, ", "").replace("https://10.1.0.1", "HTTPS://10.1.0.1:443"),
            1,
        ),
        ("the address, but another port", ONE.replace("serial: S1A, ", "").replace("10.1.0.1", "10.1.0.1:8443"), 0),
        ("serial, BMC and system", ONE, 2),
    ],
)
def test_two_servers_cannot_share_a_serial_number_or_a_bmc(case: str, spec: str, shared: int) -> None:
    assert validate(server("a", "", ONE), server("b", "", spec)) == ["008.yaml:4 GB2003"] * shared, case


ADDRESSES = (
    "https://bmc.example.net",
    "https://bmc.example.net/",
    "https://BMC.Example.NET:443",
    "https://bmc.example.net.",
)
SYSTEMS = ("/redfish/v1/Systems/1", "/redfish/v1/Systems/1/", "/redfish//v1/Systems/1", "/redfish/v1/Systems/%31")


@for_each("system", SYSTEMS)
@for_each("address", ADDRESSES)
def test_e26_two_spellings_of_one_bmc_are_detected(address: str, system: str) -> None:
    servers = (
        server(name, "", f"bmc: {{address: '{at}', credentials: a, system: '{path}'}}")
        for name, at, path in (("a", ADDRESSES[0], SYSTEMS[0]), ("b", address, system))
    )
    assert validate(*servers) == ["008.yaml:4 GB2003"]


@for_each(
    ("case", "reports", "expected"),
    [
        ("a UUID", "uuid: 4C4C4544-0058-3610-8044-C2C04F503933", []),
        ("a serial number", "serial: X6DCP93", []),
        ("nothing", "", ["GB1044"]),
        ("a UUID of zeros", "uuid: 00000000-0000-0000-0000-000000000000", ["GB1034"]),
        ("another server's UUID", f"uuid: {make_uuid('web01')}", ["GB2003"]),
        ("its own UUID", f"uuid: {make_uuid('a')}", []),
    ],
)
def test_a_reported_identity_must_differ_from_those_of_other_servers(
    case: str, reports: str, expected: list[str]
) -> None:
    found = validate(server("a", "", f"bmc: {{address: 'https://10.1.0.1', credentials: a, reports: {{{reports}}}}}"))
    assert [each.split()[1] for each in found] == expected, case


def test_servers_of_one_chassis_each_name_their_system() -> None:
    chassis = [server(f"n{number}", "", f"{BMC}, system: /redfish/v1/Systems/{number}}}") for number in range(4)]
    assert validate(*chassis) == []
    assert validate(*chassis[:2], server("n2", "", f"{BMC}}}"), *chassis[3:]) == ["009.yaml:4 GB2003"]


def _make_server(name: str, uuid: str, *interfaces: str) -> str:
    return document(
        "Server", name, f"uuid: {uuid}, architecture: x86_64, firmware: UEFI, interfaces: [{', '.join(interfaces)}]"
    )


WEB01 = '{mac: "52:54:00:00:00:01", addresses: [10.1.0.1/24, "fd00::1"]}'


@for_each(
    ("case", "uuid", "interfaces", "shared"),
    [
        ("nothing", "11223344-5566-7788-99aa-bbccddeeff01", ['{mac: "52:54:00:00:00:02"}'], 0),
        ("the UUID", "11223344-5566-7788-99AA-BBCCDDEEFF00", ['{mac: "52:54:00:00:00:02"}'], 1),
        ("the UUID in the other byte order", "44332211-6655-8877-99aa-bbccddeeff00", ['{mac: "52:54:00:00:00:02"}'], 1),
        ("the MAC address", make_uuid("b"), ["{mac: 5254.0000.0001}"], 1),
        (
            "one of two MAC addresses",
            make_uuid("b"),
            ["{mac: 52-54-00-00-00-02}", "{mac: 52-54-00-00-00-01, boot: false}"],
            1,
        ),
        ("the IPv4 address", make_uuid("b"), ["{mac: 52-54-00-00-00-02, addresses: [10.1.0.1]}"], 1),
        ("the network, but not the address", make_uuid("b"), ["{mac: 52-54-00-00-00-02, addresses: [10.1.0.2/24]}"], 0),
        ("the IPv6 address", make_uuid("b"), ['{mac: 52-54-00-00-00-02, addresses: ["FD00:0::0:1/64"]}'], 1),
        ("its own MAC address", make_uuid("b"), ["{mac: 52-54-00-00-00-02}", "{mac: 52-54-00-00-00-02}"], 1),
        ("its own address", make_uuid("b"), ["{mac: 52-54-00-00-00-02, addresses: [10.1.0.2, 10.1.0.2/8]}"], 1),
    ],
)
def test_two_servers_cannot_share_a_uuid_or_a_mac_address(
    case: str, uuid: str, interfaces: list[str], shared: int
) -> None:
    first = _make_server("a", "11223344-5566-7788-99aa-bbccddeeff00", WEB01)
    assert validate(first, _make_server("b", uuid, *interfaces)) == ["008.yaml:4 GB2003"] * shared, case


# The fault that each names, with its remedy. {} is the place of the other value.
GONE = "correct the wrong value, or remove the document of a machine that no longer exists"
OWN_MAC = (
    "write the interface's permanent address, which `ethtool -P INTERFACE` prints even for a bond member; "
    "interfaces may share only IP addresses"
)
TWICE = "remove one of the two addresses; only different interfaces may share an address, for example in a bond"
BOND = (
    '{mac: "52:54:00:00:00:11", addresses: [10.1.0.9/24, "fd00::9"]}',
    '{mac: "52:54:00:00:00:12", addresses: ["FD00:0::9/64", 10.1.0.9]}',
)


@for_each(
    ("case", "interfaces", "faults"),
    [
        ("both NICs of a bond", [*BOND], []),
        (
            "three NICs, one of which does not boot",
            [*BOND, "{mac: 52-54-00-00-00-13, boot: false, addresses: [10.1.0.9]}"],
            [],
        ),
        (
            "an address twice on one NIC of a bond",
            [BOND[0], "{mac: 52-54-00-00-00-12, addresses: [10.1.0.8, 10.1.0.9, 10.1.0.8/16]}"],
            [("address 10.1.0.8 is already used by this server", TWICE)],
        ),
        (
            "an address twice on the first NIC of a bond",
            ["{mac: 52-54-00-00-00-12, addresses: [10.1.0.9, 10.1.0.9]}", BOND[0]],
            [("address 10.1.0.9 is already used by this server", TWICE)],
        ),
        (
            "one MAC address on both NICs, as a running bond shows it",
            [BOND[0], BOND[1].replace("52:54:00:00:00:12", "5254.0000.0011")],
            [("MAC address 52:54:00:00:00:11 is already used by this server", OWN_MAC)],
        ),
        (
            "another server's address on both NICs",
            [each.replace("10.1.0.9", "10.1.0.1") for each in BOND],
            [("address 10.1.0.1 is already used by Server/a", GONE)],
        ),
        (
            "another server's MAC address and address",
            [BOND[0], '{mac: "52:54:00:00:00:01", addresses: [10.1.0.1]}'],
            [
                ("MAC address 52:54:00:00:00:01 is already used by Server/a", GONE),
                ("address 10.1.0.1 is already used by Server/a", GONE),
            ],
        ),
    ],
)
def test_finding_p12_interfaces_of_one_server_share_addresses_and_a_message_names_the_right_document(
    case: str, interfaces: list[str], faults: list[tuple[str, str]]
) -> None:
    found = problems(
        snapshot(*SEED, _make_server("a", make_uuid("a"), WEB01), _make_server("b", make_uuid("b"), *interfaces))
    )
    assert [(each.message.partition(" at ")[0], each.hint) for each in found] == faults, case
    assert {each.path for each in found} <= {"008.yaml"}
    places = [each.message.partition(" at ")[2] for each in found]
    assert places == ["008.yaml:4" if "this server" in message else "007.yaml:4" for message, _ in faults]


def test_finding_p12_an_infiniband_address_is_refused_at_its_place() -> None:
    address = "80:00:02:08:fe:80:00:00:00:00:00:00:7c:fe:90:03:00:29:26:52"
    [found] = problems(snapshot(*SEED, _make_server("b", make_uuid("b"), WEB01, f"{{mac: '{address}'}}")))
    assert (found.path, found.code) == ("007.yaml", "GB1033")
    assert found.message == (
        f'spec.interfaces[1].mac: expected a 6-byte MAC address, found an InfiniBand address (20 bytes), "{address}"'
    )
    assert found.hint.endswith("iPXE shows as ${net0/mac} for this interface: 7c:fe:90:29:26:52")


def test_finding_p12_a_uuid_that_replaces_itself_is_a_fault_of_one_document() -> None:
    [found] = problems(snapshot(*SEED, server("b", "", f"replaces: {make_uuid('b')}")))
    assert found.message == f"UUID {make_uuid('b')} is already used by this server at 007.yaml:4"
    assert found.hint == "correct or remove one of the two values"


def test_two_sites_cannot_share_a_name() -> None:
    def make_fleet(*names: str) -> str:
        sites = "".join(f"\n    - {{name: {name}, select: All, baseURL: 'http://{name}.test'}}" for name in names)
        return f"{fleet().partition('spec:')[0]}spec:\n  baseURL: http://boot.test\n  sites:{sites}\n"

    assert list_problems(snapshot(make_fleet("ams", "fra"), *SEED[1:])) == []
    [found] = problems(snapshot(make_fleet("ams", "fra", "ams"), *SEED[1:]))
    assert (found.path, found.line, found.code) == ("000.yaml", 9, "GB2002")
    assert found.message == "spec: two sites are named ams"
    assert found.hint == "rename or remove one of the two sites"


# A fleet in which every reference is dangling.
LOST = (
    fleet(
        "baseURL: 'http://boot.test', unknownServers: {profile: lost}, "
        "sites: [{name: a, select: {servers: [lost]}, baseURL: 'http://a.test'}], "
        "hardware: [{select: {servers: [lost]}}]"
    ),
    server("web01", "", "policy: lost, pin: {image: lost, reason: r}, " + BMC + ", tls: {ca: lost.pem}}"),
    document(
        "ImageStream",
        "stream",
        "current: lost, rollout: {image: lost, selector: {servers: [lost]}}, "
        "holds: [{select: {servers: [web01, lost]}, image: lost, reason: r}], follow: {source: lost}",
    ),
    profile(
        "by-image",
        "lost",
        "userData: {format: CloudInit, template: a, vendorData: d, networkConfig: e}, templates: {ipxe: b, grub: c}",
    ),
    profile("by-stream", "stream: lost"),
    policy("web", "{servers: [lost]}", "inherits: lost, profile: lost"),
    maintenance("repair", "- 20T12:00", "before: {approval: {file: lost}}", select="{servers: [lost]}", boots="lost"),
)


def test_every_name_of_a_missing_document_is_a_problem() -> None:
    counts = {"000": 3, "001": 3, "002": 6, "003": 6, "004": 1, "005": 3, "006": 3}
    expected = [f"{number}.yaml:4 GB2004" for number, count in counts.items() for _ in range(count)]
    assert list_problems(snapshot(*LOST)) == expected


def test_every_field_that_names_a_document_is_checked() -> None:
    looked_up = {
        f"{type(resource).__name__}.{_dotted(path)}"
        for text in LOST
        for _, resource in parse_blob(text.encode(), "").resources
        for _, _, path in list_references(resource)
    }
    naming = {
        f"{name}.{path}"
        for name, kind in KINDS.items()
        for path, parser in fields(kind)
        if parser in (parse_name, parse_file_path) and path != "metadata.name"
    }
    assert naming - looked_up == {"Fleet.spec.sites[].name", "Server.spec.bmc.credentials"}
    assert looked_up <= naming


SOURCE = "architectures: {x86_64: amd64}, releases: {format: JSONList, url: 'https://images.test/versions'}, " + (
    "files: {kernel: {url: 'https://images.test/{version}/kernel'}}"
)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("flatcar", None),  # built-in
        ("edge-os", None),  # of this fleet
        ("flatcr", "did you mean flatcar?"),
        ("edgeos", "did you mean edge-os?"),
        ("windows-server", "add the ImageSource, or correct the name"),
    ],
)
def test_a_stream_follows_a_built_in_source_or_one_of_the_fleet(name: str, hint: str | None) -> None:
    stream = document("ImageStream", "stable", f"current: flatcar-1, follow: {{source: {name}}}")
    found = problems(snapshot(*SEED, document("ImageSource", "edge-os", SOURCE), stream))
    assert [(each.code, each.message, each.hint) for each in found] == (
        [("GB2004", f'there is no ImageSource named "{name}"', hint)] if hint else []
    )


def test_a_minimum_age_is_a_duration() -> None:
    for age, code in [
        ("3d", []),
        ("1d12h", []),
        ("soon", ["GB1048"]),
        ("-3d", ["GB1048"]),
        ("9" * 30 + "w", ["GB1048"]),
    ]:
        stream = document(
            "ImageStream", "stable", f"current: flatcar-1, follow: {{source: flatcar, minimumAge: {age}}}"
        )
        assert [each.code for each in problems(snapshot(*SEED, stream))] == code, age


def _dotted(path: Path) -> str:
    return "".join("[]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


# One problem for one cause


@for_each(
    ("case", "broken", "expected"),
    [
        ("a broken image", image("flatcar-1").replace("version", "versoin"), ["GB1022"]),
        ("an image with another field", image("flatcar-1").replace("version: '1'", "colour: a"), ["GB1022", "GB1023"]),
        ("an empty field", image("flatcar-1").replace("version: '1'", "versoin: "), ["GB1023"]),
        ("an image that is no YAML", image("flatcar-1").replace("spec: {", "spec: {{"), ["GB1012", "GB1001"]),
        ("an image without a name", image("flatcar-1").replace("flatcar-1, labels", "'', labels"), ["GB1025"]),
        ("an image of a kind that is misspelt", image("flatcar-1").replace("BootImage", "BotImage"), ["GB1021"]),
        ("an image of another version", image("flatcar-1").replace("v1alpha1", "v2"), ["GB1020"]),
        ("an image that is a pointer", LFS, ["GB5003"]),
    ],
)
def test_a_reference_to_a_broken_document_is_not_a_problem(case: str, broken: str, expected: list[str]) -> None:
    found = list_problems(snapshot(*SEED[:2], broken, *SEED[3:]))
    assert sorted(each.split()[1] for each in found) == sorted(expected), case
    assert {each.split(":")[0] for each in found} == {"002.yaml"}


def test_a_broken_fleet_does_not_count_as_missing() -> None:
    assert list_problems(snapshot(fleet("baseURL: boot.test"), *SEED[1:])) == ["000.yaml:4 GB1037"]
    assert list_problems(snapshot(SEED[0].replace("Fleet", "Fleed"), *SEED[1:])) == ["000.yaml:2 GB1021"]


def test_a_broken_server_does_not_count_as_a_duplicate() -> None:
    assert validate(server("web02", "", "serail: a").replace(make_uuid("web02"), make_uuid("web01"))) == [
        "007.yaml:4 GB1022"
    ]


def test_an_unknown_name_is_a_problem_beside_a_named_broken_document() -> None:
    broken = server("web02", "", "serail: a")
    assert validate(broken, policy("other", "None", boots="lost")) == ["007.yaml:4 GB1022", "008.yaml:4 GB2004"]


@pytest.mark.parametrize(
    ("hidden", "template", "expected"),
    [
        ("sub", "sub/deep/t.j2", ["sub:1 GB5002"]),
        ("sub", "sub", ["sub:1 GB5002"]),
        ("sub", "submerged/t.j2", ["007.yaml:4 GB2004", "sub:1 GB5002"]),
    ],
)
def test_a_document_behind_a_symlink_does_not_count_as_missing(hidden: str, template: str, expected: list[str]) -> None:
    lost = profile("other", "lost-behind-the-link", f"userData: {{format: CloudInit, template: {template}}}")
    assert validate(lost, irregular={hidden: Irregular.SYMLINK}) == expected


def test_a_template_that_is_a_git_lfs_pointer_is_a_problem_where_it_is_named() -> None:
    named = profile("other", "flatcar-1", "userData: {format: CloudInit, template: t}")
    assert validate(named, files={"t": LFS, "unused": LFS}) == ["007.yaml:4 GB5003"]


# Reads


def _count_reads(given: Snapshot, reads: list[BlobId]) -> Snapshot:
    def read(blob: BlobId) -> bytes:
        reads.append(blob)
        return given.read(blob)

    return structs.replace(given, read=read)


@pytest.mark.parametrize("files_a_batch", [1, 2, 128])
@for_each(
    ("case", "first", "second"),
    [
        ("one name", policy("spare", "None"), policy("spare", "None")),
        ("one serial", server("a", "", "serial: S1A"), server("b", "", "serial: S1A")),
        ("one BMC, of which one names no system", server("a", "", ONE), server("b", "", f"{BMC}}}")),
        ("two fleets", server("a"), document("Fleet", "other", "baseURL: 'http://boot.test'")),
        ("a name that leads nowhere", server("a"), server("b", "", "pin: {image: gone, reason: a test}")),
    ],
)
def test_files_are_compared_across_batches(
    monkeypatch: pytest.MonkeyPatch, files_a_batch: int, case: str, first: str, second: str
) -> None:
    monkeypatch.setattr(validation, "_BATCH", files_a_batch)
    valid = load_revision(snapshot(*SEED, first, server("c"), server("d")))
    assert isinstance(valid, LoadedRevision), case
    invalid = snapshot(*SEED, first, server("c"), second)
    expected = problems(invalid)
    assert len(expected) == 1, case
    for before in (None, valid):
        found = load_revision(invalid, before=before)
        assert isinstance(found, InvalidRevision), case
        assert found.problems == expected, case


def test_a_batch_is_used_again_only_while_its_files_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "_BATCH", 2)
    names = [f"n{number}" for number in range(8)]
    before = load_revision(snapshot(*SEED, *map(server, names)))
    assert isinstance(before, LoadedRevision)
    for changed in (range(8), [3], [0, 7]):
        files = [server(name, "role: db" if number in changed else "") for number, name in enumerate(names)]
        after, alone = (load_revision(snapshot(*SEED, *files), before=each) for each in (before, None))
        assert isinstance(after, LoadedRevision)
        assert isinstance(alone, LoadedRevision)
        same = [old is new for old, new in zip(before.batches, after.batches, strict=True)]
        assert same == [old.files == new.files for old, new in zip(before.batches, alone.batches, strict=True)]
        assert after.repository.servers == alone.repository.servers
        assert after.repository.origins == alone.repository.origins
        assert [each.label_counts for each in after.batches] == [each.label_counts for each in alone.batches]


def test_only_blobs_that_the_cache_lacks_are_read() -> None:
    cache: ParseCache = {}
    reads: list[BlobId] = []
    first = load(_count_reads(snapshot(*SEED), reads), cache)
    assert len(reads) == len(SEED)
    second = load(_count_reads(snapshot(*SEED, server("web02", "role: web")), reads), cache)
    assert len(reads) == len(SEED) + 1
    assert second.servers["web01"] is first.servers["web01"]


def test_a_blob_at_two_paths_is_read_once_and_reported_at_each_path() -> None:
    reads: list[BlobId] = []
    found = list_problems(_count_reads(snapshot(files={"a.yaml": "kind: Other\n", "b.yaml": "kind: Other\n"}), reads))
    assert (found, len(reads)) == (["a.yaml:1 GB1021", "b.yaml:1 GB1021"], 1)


def test_files_without_a_reference_are_not_read() -> None:
    reads: list[BlobId] = []
    given = snapshot(*SEED, files={"README.md": "# A fleet\n", "image.iso": "0" * 100})
    load(_count_reads(given, reads))
    assert not {given.blobs["README.md"], given.blobs["image.iso"]} & set(reads)


def test_a_file_is_read_once_for_any_number_of_problems() -> None:
    reads: list[BlobId] = []
    servers = [server(f"web{number}", "", "policy: lost") for number in range(2, 50)]
    given = snapshot(*SEED, files={"all.yaml": "---\n".join(servers)})
    assert (len(list_problems(_count_reads(given, reads))), reads.count(given.blobs["all.yaml"])) == (len(servers), 1)


# Many problems


def repeat(count: int, text: Callable[[int], str]) -> str:
    return "".join(map(text, range(count)))


def make_server_with_macs(name: str, count: int) -> str:
    interfaces = repeat(count, lambda n: f"{{mac: 02-00-00-00-{n >> 8:02x}-{n & 255:02x}}}, ")
    return server(name).replace("interfaces: [", f"interfaces: [{interfaces}")


TOO_MANY: dict[str, Callable[[int], str]] = {
    "fields that there are not": lambda count: server("web02") + repeat(count, lambda n: f"f{n}: x\n"),
    "labels": lambda count: server("web02", repeat(count, lambda n: f"l{n}: '-', ")),
    "one key": lambda count: server("web02") + "kind: Server\n" * count,
    "aliases": lambda count: repeat(count, lambda n: f"a{n}: *a\n"),
    "faulty documents": lambda count: "- a\n---\n" * count,
    "documents of no kind": lambda count: "kind: Other\n---\n" * count,
    "documents of one name": lambda count: (
        (policy("b", "{matchLabels: {role: b}}", "priority: 9") + "---\n") * (count + 1)
    ),
    "names of nothing": lambda count: repeat(count, lambda n: server(f"b{n}", "", f"policy: b{n}") + "---\n"),
    "addresses of another": lambda count: (
        make_server_with_macs("web02", count) + "---\n" + make_server_with_macs("web03", count)
    ),
}


@for_each("case", TOO_MANY)
def test_a_hundred_problems_of_a_file_are_shown_and_the_rest_is_counted(case: str) -> None:
    found = problems(snapshot(*SEED, files={"x.yaml": TOO_MANY[case](250)}))
    assert {each.path for each in found} == {"x.yaml"}
    assert [each.code for each in found].index("GB1015") == len(found) - 1 == 100
    assert found[-1].message == "150 more problems in the rest of this file are not shown"


def test_problems_of_every_kind_in_one_file_are_counted_together() -> None:
    texts = [
        text(70) for case, text in TOO_MANY.items() if case != "names of nothing"
    ]  # an unreadable document may have the name
    found = problems(snapshot(*SEED, files={"x.yaml": "\n---\n".join(texts)}))
    assert len(found) == 101
    assert found[-1].message == f"{70 * len(texts) - 100} more problems in the rest of this file are not shown"


def test_invalid_lines_of_gitbootignore_are_counted_too() -> None:
    found = problems(snapshot(*SEED, files={".gitbootignore": "[\n" * 250}))
    assert [each.line for each in found] == list(range(1, 102))
    assert found[-1].message == "150 more problems in the rest of this file are not shown"


@for_each("case", TOO_MANY)
def test_the_time_for_problems_of_a_file_grows_linearly_with_their_number(case: str) -> None:
    fleets = {size: snapshot(*SEED, files={"x.yaml": TOO_MANY[case](size)}) for size in (200, 200 * TIMES)}
    assert measure_growth(lambda size: problems(fleets[size]), 200) < MAX_GROWTH


def test_the_number_of_comparisons_for_unknown_names_is_limited() -> None:
    policies = repeat(1000, lambda n: policy(f"policy-{n:04}", "{matchLabels: {role: b}}", "priority: 9") + "---\n")
    servers = repeat(90, lambda n: server(f"b{n}", "", f"policy: polici-{n:04}") + "---\n")
    hints = [each.hint for each in problems(snapshot(*SEED, files={"p.yaml": policies, "s.yaml": servers}))]
    assert [hint.startswith("did you mean") for hint in hints] == [True] * 50 + [False] * 40


# Any document


@settings(max_examples=count_examples(60))
@given(documents(), LAYOUTS)
def test_any_document_is_read_back_from_any_layout(drawn: Document, layout: dict[str, Any]) -> None:
    parsed = parse_blob(format_yaml(drawn, **layout).encode(), "a.yaml")
    assert parsed.problems == ()
    ((_, resource),) = parsed.resources
    assert _keep_common_fields(plain(resource), drawn) == drawn
    assert parse_blob(format_yaml(plain(resource)).encode(), "a.yaml").resources == ((0, resource),)


def _keep_common_fields(value: Any, like: Any) -> Any:
    """``value`` with only those fields that ``like`` has too; True is no 1 here."""
    if isinstance(value, dict):
        return {key: _keep_common_fields(value[key], like[key]) for key in like}
    if isinstance(value, list):
        return [_keep_common_fields(*both) for both in zip(value, like, strict=True)]
    return value if type(value) is type(like) else repr(value)


JUNK: Final[st.SearchStrategy[Any]] = st.sampled_from(
    [*AWKWARD, None, [], {}, ["a"], {"a": "b"}, [[]], [None], {"a": {"a": []}}, "All", 0, True]
)


def _list_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for step, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _list_paths(each, (*path, step))


@settings(max_examples=count_examples(120))
@given(documents(), st.data())
def test_any_value_at_any_path_gives_a_resource_or_problems(drawn: Document, data: st.DataObject) -> None:
    *way, last = data.draw(st.sampled_from([path for path in _list_paths(drawn) if path]))
    parent: Any = drawn
    for step in way:
        parent = parent[step]
    if isinstance(parent, dict) and data.draw(st.booleans()):
        last = data.draw(st.sampled_from(AWKWARD[1:]))
    parent[last] = data.draw(JUNK)
    text = format_yaml(drawn)
    parsed = parse_blob(text.encode(), "a.yaml")
    assert bool(parsed.resources) != bool(parsed.problems)
    for problem in parsed.problems:
        assert 1 <= problem.line <= text.count("\n") + 1
        assert problem.hint
        assert (problem.message + problem.hint).isprintable()


@settings(max_examples=count_examples(60))
@given(
    st.dictionaries(
        st.sampled_from(["a.yaml", "b.yml", ".gitbootignore"]),
        st.binary(max_size=60)
        | st.sampled_from([each.encode() for each in SEED])
        | st.text("ab: -[]{}\n!*/\\").map(str.encode),
        min_size=1,
    )
)
def test_any_bytes_give_a_fleet_or_problems(files: dict[str, bytes]) -> None:
    given = structs.replace(
        snapshot(*SEED[:2]), blobs={path: BlobId(path) for path in files}, read=lambda blob: files[blob]
    )
    found = problems(given)
    assert list(found) == sorted(set(found))
    assert {each.path for each in found} <= {*files, "fleet.yaml"}
