"""Warnings: node labels that kubelet rejects, placeholder digests, and what copies of the boot files cannot do."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Final

import pytest

from gitboot.errors import InvalidRepository
from gitboot.evaluator.evaluation import Evaluator
from gitboot.problems import Code, Problem, Severity
from gitboot.resolve.decision_inputs import parse_approvals
from gitboot.resolve.fleet_decisions import is_accepted_by_kubelet
from tests.helpers.cases import for_each
from tests.helpers.fleets import SEED, SHA, decided, fleet, image, maintenance, policy, profile, server, snapshot
from tests.helpers.instance_with_bmcs import run_command
from tests.helpers.running_instance import Repository


@for_each(
    ("key", "accepted"),
    [
        ("pool", True),
        ("example.net/pool", True),
        ("mykubernetes.io/pool", True),  # another domain
        ("node-role.kubernetes.io/worker", False),
        ("node-role.kubernetes.io/control-plane", False),
        ("node-restriction.kubernetes.io/pool", False),
        ("kubernetes.io/role", False),
        ("kubernetes.io/hostname", True),
        ("topology.kubernetes.io/zone", True),
        ("topology.kubernetes.io/rack", False),
        ("node.kubernetes.io/pool", True),
        ("gpu.node.kubernetes.io/model", True),
        ("kubelet.kubernetes.io/pool", True),
        ("k8s.io/pool", False),
        ("cluster.k8s.io/pool", False),
    ],
)
def test_finding_r15_a_node_label_that_kubelet_rejects_is_a_warning(key: str, accepted: bool) -> None:
    assert is_accepted_by_kubelet(key) is accepted
    found = decided(*SEED[:-1], files={"pool.yaml": policy("web", "All", f"nodeLabels: {{a: b, {key}: ''}}")})
    said = [(each.code, each.path, each.severity) for each in found.warnings]
    assert said == ([] if accepted else [("GB2028", "pool.yaml", Severity.WARNING)])
    message = f"the kubelet rejects the node label {key} and does not start"
    assert all(each.message == message for each in found.warnings)


def _find_image_problems(digest: str, artifacts: str = "kernel, initrd, rootfs") -> tuple[Problem, ...]:
    return decided(*SEED, files={"image.yaml": image("rescue-1", artifacts=artifacts).replace(SHA, digest)}).warnings


@for_each(
    ("digest", "is_placeholder"),
    [
        ("feedc0de" * 8, True),
        ("0" * 64, True),
        ("f" * 64, True),
        ("deadbeef" * 8, True),
        (sha256(b"a kernel").hexdigest(), False),
        (sha256(b"").hexdigest(), False),
    ],
)
def test_finding_r11_a_placeholder_in_place_of_a_digest_is_a_warning(digest: str, is_placeholder: bool) -> None:
    found = [(each.code, each.message, each.line) for each in _find_image_problems(digest)]
    assert found == ([("GB2029", "BootImage/rescue-1 has 3 placeholder digests", 4)] if is_placeholder else [])


def test_the_warnings_stay_if_only_servers_change() -> None:
    pool = policy("web", "All", "nodeLabels: {node-role.kubernetes.io/web: ''}")
    trees = [
        snapshot(*SEED[:-1], pool, server("db0", spec=f"provision: {each}"), revision=f"{each}") for each in (1, 2)
    ]
    evaluator = Evaluator(lambda revision, previous: next(each for each in trees if each.revision == revision))
    for number, base in ((0, None), (1, trees[0].revision)):
        found = evaluator.evaluate(trees[number].revision, base)
        assert [each.code for each in found.head.decided.decisions.warnings] == ["GB2028"]
    assert found.servers == {"db0"}


BASE: Final = "baseURL: 'http://boot.test'"
HTTP: Final = f"{BASE}, endpoint: 'http://gitboot.test'"
HTTPS: Final = f"{BASE}, endpoint: 'https://gitboot.test'"
SITES: Final = "sites: [{name: a, baseURL: 'http://a.test', endpoint: 'http://a.test', select: {servers: [web01]}}]"
ONCE: Final = (*SEED[1:-1], policy("web", "{matchLabels: {role: web}}", often="Once"))
ALWAYS: Final = SEED[1:]
WINDOW: Final = maintenance("repair", "20T22:00 21T04:00")
RUN: Final = maintenance("wipe", "20T22:00 21T04:00", "networkBoot: Once", boots="web")
TO_DISK: Final = (profile("disk", "", method="Disk"), maintenance("park", "20T22:00 21T04:00", boots="disk"))
LIVE: Final = (image("live-1", "writesDisk: false"), profile("live", "live-1"), policy("web", boots="live"))
UKI: Final = (
    server("web01", "role: web"),
    image("live-1", "writesDisk: false", "uki"),
    profile("live", "live-1", "httpBoot: uki", method="UefiHttp"),
    policy("live", boots="live"),
    *SEED[3:4],
    *SEED[5:6],
)

NO_ENDPOINT: Final = (
    "the Fleet does not set an endpoint, and copies of the boot files cannot serve one-time boots or record fetches"
)
LATE_END: Final = "the Fleet does not set an endpoint, so copies of the boot files end the maintenance late"
RESTRICT: Final = "unknownServers: NotFound, serving: {restrict: true}"
NO_SCRIPT: Final = (
    "boot loaders that get no local disk boot script (because of serving.restrict or localDisk: NotFound)"
)


def format_unable_warning(loaders: str, endpoint: str = "https://gitboot.test") -> str:
    return (
        f"{loaders} cannot ask {endpoint} whether the maintenance has ended, so copies of the boot files do not "
        "serve the maintenance to these clients"
    )


@for_each(
    ("case", "settings", "documents", "expected"),
    [
        ("a policy that installs once", BASE, ONCE, [f"{NO_ENDPOINT} (web01)"]),
        ("at its image", BASE, (*ONCE[:-1], policy("web", often="OnImageChange")), [f"{NO_ENDPOINT} (web01)"]),
        ("a run that writes a disk", BASE, (*ALWAYS, RUN), [f"{NO_ENDPOINT} (web01)"]),
        (
            "the same of three servers",
            BASE,
            (*ONCE, server("web02", "role: web"), server("web03", "role: web")),
            [f"{NO_ENDPOINT} (web01, web02, web03)"],
        ),
        ("an endpoint", HTTP, (*ONCE, RUN), []),
        ("an endpoint of its site", f"{BASE}, {SITES}", ONCE, []),
        ("of one site", f"{BASE}, {SITES}", (*ONCE, server("web02", "role: web")), [f"{NO_ENDPOINT} (web02)"]),
        ("copies that may serve them", f"{BASE}, serving: {{oneTimeBoots: Copies}}", ONCE, []),
        (
            "a run that copies may serve",
            f"{BASE}, serving: {{oneTimeBoots: Copies}}",
            (*ONCE, RUN),
            [f"Maintenance/wipe: {LATE_END} (web01)"],
        ),
        ("a boot each time", BASE, ALWAYS, []),
        ("a parked server", BASE, (server("web01", "role: web", "lifecycle: Parked"), *ONCE[1:]), []),
        ("a maintenance", BASE, (*ALWAYS, WINDOW), [f"Maintenance/repair: {LATE_END} (web01)"]),
        ("a late end", f"{BASE}, serving: {{lateEnds: Accept}}", (*ALWAYS, WINDOW), []),
        ("a maintenance with an endpoint", HTTP, (*ALWAYS, WINDOW), []),
        (
            "by https",
            HTTPS,
            (*ALWAYS, WINDOW),
            [f"Maintenance/repair: {format_unable_warning('GRUB and iPXE')} (web01)"],
        ),
        (
            "by https, to an iPXE that has it",
            f"{HTTPS}, outputs: [ipxe, pxelinux], serving: {{ipxeHttps: true}}",
            (*ALWAYS, WINDOW),
            [f"Maintenance/repair: {format_unable_warning('PXELINUX')} (web01)"],
        ),
        ("if there is no other", f"{HTTPS}, outputs: [ipxe], serving: {{ipxeHttps: true}}", (*ALWAYS, WINDOW), []),
        ("late by https", f"{HTTPS}, serving: {{lateEnds: Accept}}", (*ALWAYS, WINDOW), []),
        (
            "firmware that fetches one file",
            HTTP,
            (*UKI, WINDOW),
            [f"Maintenance/repair: {format_unable_warning('UEFI HTTP boot', 'http://gitboot.test')} (web01)"],
        ),
        ("the disk before and after", BASE, (*ALWAYS, *TO_DISK), []),
        (
            "the disk, and then no disk",
            BASE,
            (*SEED[1:-1], *LIVE, *TO_DISK),
            [f"Maintenance/park: {LATE_END} (web01)"],
        ),
        ("the same with an endpoint", HTTP, (*SEED[1:-1], *LIVE, *TO_DISK), []),
        (
            "the same without a boot script for the disk",
            f"{HTTP}, {RESTRICT}",
            (*SEED[1:-1], *LIVE, *TO_DISK),
            [f"Maintenance/park: {format_unable_warning(NO_SCRIPT, 'http://gitboot.test')} (web01)"],
        ),
        ("a boot, and then the disk", f"{HTTP}, {RESTRICT}", (*ALWAYS, WINDOW), []),
    ],
)
def test_finding_m1_m2_a_fleet_is_warned_of_what_its_copies_cannot_do(
    case: str, settings: str, documents: tuple[str, ...], expected: list[str]
) -> None:
    codes = (Code.NO_ENDPOINT, Code.LATE_END)
    found = [each for each in decided(fleet(settings, copies=False), *documents).warnings if each.code in codes]
    assert [each.message for each in found] == expected, case
    assert {each.severity for each in found} <= {Severity.WARNING}


def test_finding_m1_m2_validate_and_diff_warn_of_what_copies_cannot_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository.create(tmp_path)
    for settings in (HTTP, BASE):
        repository.push({"fleet.yaml": "---\n".join((fleet(settings, copies=False), *ONCE, WINDOW))})
    monkeypatch.chdir(repository.work)
    validated, compared = run_command("validate", "."), run_command("diff", "HEAD~..HEAD")
    assert validated.code == 0, validated
    for shown in (validated.out, compared.out):
        assert "GB2025" in shown and NO_ENDPOINT in shown, shown
        assert "GB2026" in shown and f"Maintenance/repair: {LATE_END} (web01)" in shown, shown
    assert "GB2025" not in run_command("diff", "HEAD..HEAD~").out


ONLY_IPXE_OUTPUT = "baseURL: 'http://boot.test', outputs: [ipxe]"
SECURE = "baseURL: 'http://boot.test', hardware: [{{select: All, secureBoot: true{}}}]"
ONLY_IPXE = "templates: {ipxe: web.ipxe}"
BIOS = "secureBoot is true, but the firmware is BIOS, which does not support Secure Boot (web01)"
BUILT = "Secure Boot is on, but DHCP names the unsigned GRUB that gitboot builds (web01)"
NO_OUTPUT = "Secure Boot is on, but the Fleet's outputs do not include grub, so DHCP names an unsigned iPXE (web01)"
BY_HTTPS = "Secure Boot is on, so GRUB boots the server, but GRUB cannot fetch from https://boot.test (web01)"
NO_GRUB = "Secure Boot is on, so GRUB boots the server, but BootProfile/web has only an iPXE template (web01)"


@for_each(
    ("case", "settings", "spec", "firmware", "templates", "expected"),
    [
        ("the shim", SECURE.format(""), "", "UEFI", "", []),
        ("the shim by name", SECURE.format(", loader: Shim"), "", "UEFI", "", []),
        ("iPXE, which can be signed", SECURE.format(""), "loader: iPXE", "UEFI", ONLY_IPXE, []),
        ("not this server", SECURE.format(""), "secureBoot: false, loader: GRUB", "UEFI", ONLY_IPXE, []),
        ("not stated", "baseURL: 'http://boot.test'", "loader: GRUB", "UEFI", ONLY_IPXE, []),
        ("BIOS", SECURE.format(""), "", "BIOS", "", [("server.yaml", BIOS)]),
        ("gitboot's GRUB for one", SECURE.format(""), "loader: GRUB", "UEFI", "", [("server.yaml", BUILT)]),
        ("gitboot's GRUB for all", SECURE.format(", loader: GRUB"), "", "UEFI", "", [("fleet.yaml", BUILT)]),
        ("no output grub", SECURE.format("") + ", outputs: [ipxe]", "", "UEFI", "", [("fleet.yaml", NO_OUTPUT)]),
        (
            "a server of no output",
            ONLY_IPXE_OUTPUT,
            "secureBoot: true",
            "UEFI",
            "",
            [("server.yaml", NO_OUTPUT)],
        ),
        ("https", SECURE.format("").replace("http:", "https:"), "", "UEFI", "", [("fleet.yaml", BY_HTTPS)]),
        ("a profile for iPXE", SECURE.format(""), "", "UEFI", ONLY_IPXE, [("profile.yaml", NO_GRUB)]),
    ],
)
def test_p4_a_server_that_cannot_boot_under_secure_boot_is_a_warning(
    case: str, settings: str, spec: str, firmware: str, templates: str, expected: list[tuple[str, str]]
) -> None:
    files = {
        "fleet.yaml": fleet(settings),
        "server.yaml": server("web01", "role: web", spec, firmware=firmware),
        "profile.yaml": profile("web", "flatcar-1", templates),
        "web.ipxe": "boot\n",
    }
    found = decided(image("flatcar-1"), policy("web"), files=files).warnings
    assert [(each.path, each.message) for each in found if each.code == Code.SECURE_BOOT] == expected, case
    assert {each.severity for each in found} <= {Severity.WARNING}


@for_each(
    ("case", "settings", "spec", "hint"),
    [
        ("the Server", "baseURL: 'http://boot.test'", "secureBoot: true", "remove secureBoot from Server/web01"),
        (
            "the Fleet",
            SECURE.format(""),
            "",
            "a `hardware` entry in Fleet/test sets secureBoot; write secureBoot: false in Server/web01, or change the "
            "entry's selector",
        ),
        ("both", SECURE.format(""), "secureBoot: true", "remove secureBoot from Server/web01"),
    ],
)
def test_the_hint_for_bios_names_the_document_that_sets_secure_boot(
    case: str, settings: str, spec: str, hint: str
) -> None:
    documents = (fleet(settings), server("web01", "role: web", spec, firmware="BIOS"), *SEED[2:])
    [found] = [each for each in decided(*documents).warnings if each.code == Code.SECURE_BOOT]
    assert found.hint == hint, case


ROOT_URL = "baseURL: 'http://boot.test'"
BY_GRUB = "BootImage/live-1 has a loaderSignature, but GRUB does not verify it (web01)"
BY_PXELINUX = BY_GRUB.replace("GRUB", "PXELINUX")
BY_TEMPLATE = BY_GRUB.replace("GRUB", "the iPXE template")
BY_FIRMWARE = BY_GRUB.replace("GRUB", "the firmware that boots the uki")
BY_ISO = BY_GRUB.replace("GRUB", "the firmware that boots the iso")
VERIFIES = "kernel http://boot.test/k\nimgverify vmlinuz http://boot.test/k.sig\nboot\n"


@for_each(
    ("case", "settings", "spec", "firmware", "how", "template", "expected"),
    [
        ("iPXE", ROOT_URL, "", "UEFI", "Pxe", "", []),
        ("iPXE for BIOS, for which gitboot has no GRUB", ROOT_URL, "loader: GRUB", "BIOS", "Pxe", "", []),
        ("GRUB of the Server", ROOT_URL, "loader: GRUB", "UEFI", "Pxe", "", [("server.yaml", BY_GRUB)]),
        ("Shim of the Server", ROOT_URL, "loader: Shim", "UEFI", "Pxe", "", [("server.yaml", BY_GRUB)]),
        ("Secure Boot of the Server", ROOT_URL, "secureBoot: true", "UEFI", "Pxe", "", [("server.yaml", BY_GRUB)]),
        ("Secure Boot of the hardware", SECURE.format(""), "", "UEFI", "Pxe", "", [("fleet.yaml", BY_GRUB)]),
        ("Secure Boot and a signed iPXE", SECURE.format(""), "loader: iPXE", "UEFI", "Pxe", "", []),
        ("only GRUB", f"{ROOT_URL}, outputs: [grub]", "", "UEFI", "Pxe", "", [("fleet.yaml", BY_GRUB)]),
        ("only PXELINUX", f"{ROOT_URL}, outputs: [pxelinux]", "", "BIOS", "Pxe", "", [("fleet.yaml", BY_PXELINUX)]),
        ("a template", ROOT_URL, "", "UEFI", "Pxe", "boot\n", [("profile.yaml", BY_TEMPLATE)]),
        ("a template that verifies", ROOT_URL, "", "UEFI", "Pxe", VERIFIES, []),
        ("a UKI by firmware", ROOT_URL, "", "UEFI", "uki", "", [("profile.yaml", BY_FIRMWARE)]),
        ("a UKI by firmware with Secure Boot", SECURE.format(""), "", "UEFI", "uki", "", []),
        ("an ISO by firmware", ROOT_URL, "", "UEFI", "iso", "", [("profile.yaml", BY_ISO)]),
        ("the image's loader", ROOT_URL, "loader: GRUB", "UEFI", "loader", "", []),
        ("the image's loader with Secure Boot", SECURE.format(""), "", "UEFI", "loader", "", []),
        (
            "the image's loader, for which there is no script of iPXE",
            *(f"{ROOT_URL}, outputs: [grub]", "", "UEFI", "loader", "", [("fleet.yaml", BY_GRUB)]),
        ),
    ],
)
def test_a_loader_signature_that_the_booting_program_ignores_is_a_warning(
    case: str, settings: str, spec: str, firmware: str, how: str, template: str, expected: list[tuple[str, str]]
) -> None:
    written = profile("live", "live-1", "templates: {ipxe: live.ipxe}" if template else "")
    if how != "Pxe":
        written = profile("live", "live-1", f"httpBoot: {how}", method="UefiHttp")
    files = {
        "fleet.yaml": fleet(settings),
        "server.yaml": server("web01", "role: web", spec, firmware=firmware),
        "image.yaml": _signed(image("live-1", "writesDisk: false", "kernel, uki, iso, loader")),
        "profile.yaml": written,
        "live.ipxe": template,
    }
    warnings = decided(policy("live", boots="live"), files=files).warnings
    found = [each for each in warnings if each.code == Code.LOADER_SIGNATURE]
    assert [(each.path, each.message) for each in found] == expected, case
    assert all(each.severity is Severity.WARNING and "remove loaderSignature" in each.hint for each in found)
    files["image.yaml"] = image("live-1", "writesDisk: false", "kernel, uki, iso, loader")
    warnings = decided(policy("live", boots="live"), files=files).warnings
    assert not [each for each in warnings if each.code == Code.LOADER_SIGNATURE], f"{case}, without a signature"


def test_unknown_machines_that_boot_by_grub_ignore_a_loader_signature() -> None:
    boots = (_signed(image("live-1", "writesDisk: false", "kernel")), profile("live", "live-1"))
    for outputs in ("grub", "ipxe"):
        settings = f"{ROOT_URL}, outputs: [{outputs}], unknownServers: {{profile: live}}"
        warnings = decided(fleet(settings), *boots).warnings
        found = [each.message for each in warnings if each.code == Code.LOADER_SIGNATURE]
        assert found == ([BY_GRUB.replace("web01", "unknown x86_64 machines")] if outputs == "grub" else [])


def _signed(image: str) -> str:
    """Add a loaderSignature to the kernel and the uki of an image."""
    for name in ("kernel", "uki"):
        image = image.replace(
            f'{name}", sha256: {SHA}', f'{name}", sha256: {SHA}, loaderSignature: "assets:{name}.sig"'
        )
    return image


def test_p4_validate_and_diff_warn_of_a_server_that_cannot_boot_under_secure_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository.create(tmp_path)
    for spec in ("loader: GRUB", "loader: GRUB, secureBoot: true"):
        documents = (fleet(), server("web01", "role: web", spec), *SEED[2:])
        repository.push({"fleet.yaml": "---\n".join(documents)})
    monkeypatch.chdir(repository.work)
    for done in (run_command("validate", "."), run_command("diff", "HEAD~..HEAD")):
        assert done.code == 0, done
        assert "GB2031" in done.out and BUILT in " ".join(done.out.split()), done.out
    assert "GB2031" not in run_command("diff", "HEAD..HEAD~").out


REPAIR: Final = (
    fleet(),
    server("web01"),
    image("memtest-7", "writesDisk: false"),
    profile("repair", "memtest-7"),
    policy("web", boots="repair"),
)
FILE: Final = "approval: {file: approvals.txt}"
DRAIN: Final = "drain: {url: 'https://drain.test'}"


@for_each(
    ("window", "spec", "approvals", "problem"),
    [
        ("- 20T12:00", f"before: {{{FILE}}}", "", ""),
        ("- 20T12:00", f"before: {{{FILE}}}", f"# a comment\n\nrepair {SHA} # ada\r\nother {SHA}\n", ""),
        ("- 20T12:00", f"before: {{{FILE}}}", f"\nrepair {SHA[:12]}", "approvals.txt:2 GB1036 the line does not"),
        ("- 20T12:00", f"before: {{{FILE}}}", f"repair {SHA} ada", "approvals.txt:1 GB1036 the line does not"),
        ("", f"before: {{{FILE}}}", "", "005.yaml:4 GB1044 spec: `before` requires a window with an end"),
        ("- 20T12:00", "before: {}", "", "005.yaml:4 GB1044 spec.before: `before` requires `approval` or `drain`"),
        ("- 20T12:00", "before: {approval: {}}", "", "of `file` or `url`, found neither"),
        ("- 20T12:00", "before: {approval: {file: a, url: 'https://a.test'}}", "", "of `file` or `url`, found both"),
        (
            "- 20T12:00",
            f"before: {{{DRAIN}}}",
            "",
            "005.yaml:4 GB1044 spec: `drain` requires a server reset, but the maintenance sets `power: None`",
        ),
        (
            "- 20T12:00",
            f"power: Restart, before: {{{DRAIN}}}",
            "",
            "`drain` requires a BMC, but Server/web01 does not set `bmc`",
        ),
        ("- 20T12:00", "before: {approval: {url: 'ftp://a.test'}}", "", "GB1037 spec.before.approval.url: expected an"),
        ("- 20T12:00", "before: {approval: {url: 'https://ada:word@a.test'}}", "", "005.yaml:4 GB1037"),
    ],
)
def test_the_preconditions_of_a_maintenance_are_checked(window: str, spec: str, approvals: str, problem: str) -> None:
    documents = (*REPAIR, maintenance("repair", window, spec))
    try:
        decided(*documents, files={"approvals.txt": approvals})
        found = ""
    except InvalidRepository as error:
        (first,) = error.problems
        found = f"{first.path}:{first.line} {first.code} {first.message}"
        assert first.hint
    assert problem in found
    assert bool(problem) is bool(found)


@for_each("separator", ["\f", "\r", "\v", "\x1c", "\x85", "\u2028", "\u2029"])
def test_a_comment_in_a_file_of_approvals_ends_where_git_ends_the_line(separator: str) -> None:
    line = f"# not yet:{separator}repair {SHA}"
    assert parse_approvals(f"{line}\n".encode(), "repair") == ((), ())
    assert parse_approvals(f"{line}\nrepair {SHA}\r\nrepair\n".encode(), "repair") == ((SHA,), (3,))
