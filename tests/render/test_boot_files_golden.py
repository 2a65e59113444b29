"""The exact files of some twenty scenarios, in tests/golden/, which are reviewed like code.

`GOLDEN=write pytest tests/render/test_boot_files_golden.py` writes them again: read the diff.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from hashlib import sha256
from pathlib import Path

import pytest

from gitboot.fleet.validation import load
from gitboot.git.snapshots import open_snapshot
from gitboot.render.boot_files import render_fleet_files, render_idle_files, render_server_files, select_copy_files
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.plan_at_time import make_fallback_plan, make_plan
from gitboot.resolve.provisioning_record import Record, StopScope
from gitboot.resolve.server_decision import Decisions, list_idle_macs
from tests.helpers.cases import for_each
from tests.helpers.fleets import (
    SEED,
    at,
    decided,
    document,
    fleet,
    image,
    maintenance,
    make_uuid,
    policy,
    profile,
    server,
)

GOLDEN = Path(__file__).parents[1] / "golden"
WITHOUT_TEXTS = GOLDEN.with_name("data") / "golden_without_texts.sha256"
EXAMPLE = Path(__file__).parents[2] / "example-repo"

NOON = at("20T12:00")
PENDING = Record()


@cache
def example() -> Decisions:
    return decide(load(open_snapshot(EXAMPLE, "WORKTREE")))


@dataclass(frozen=True, kw_only=True)
class Scenario:
    name: str
    server: str = "web01"
    documents: tuple[str, ...] | None = None  # None: the example
    files: tuple[tuple[str, str], ...] = ()
    instant: datetime = NOON
    record: Record | None = None
    lies: bool = False  # as its files are in the tree, if an endpoint for one-time boots is named

    def decisions(self) -> Decisions:
        return example() if self.documents is None else decided(*self.documents, files=dict(self.files))


def seed(*, server_spec: str = "", image_spec: str = "", profile_spec: str = "", **more: str) -> tuple[str, ...]:
    method = more.get("method", "Pxe")
    return (
        fleet(more.get("fleet_spec", "baseURL: 'http://boot.test'")),
        server("web01", "role: web", server_spec, firmware=more.get("firmware", "UEFI")),
        image("flatcar-1", image_spec, more.get("artifacts", "kernel, initrd")),
        profile("web", "flatcar-1", profile_spec, method=method),
        policy("web", "All", more.get("policy_spec", ""), often=more.get("often", "Always")),
    )


USER_DATA = "userData: {{format: {format}, template: t.j2}}"

EVERY_LOOKUP = "baseURL: 'http://boot.test', outputs: [ipxe, grub, pxelinux, uuid]"
DHCP = (
    "baseURL: 'http://192.0.2.1', outputs: [ipxe, grub, pxelinux, dhcp-dnsmasq, dhcp-kea, dhcp-proxy], "
    "sites: [{name: fra1, select: {matchLabels: {role: db}}, baseURL: 'http://[2001:db8::1]:8080/boot'}]"
)
DATABASE = document(
    "Server",
    "db01",
    f"uuid: {make_uuid('db01')}, architecture: aarch64, firmware: UEFI, lifecycle: Parked, interfaces: ["
    "{mac: '52:54:00:00:00:01', addresses: [192.0.2.11/24, 2001:db8::11/64]}, "
    "{mac: '52:54:00:00:00:02', addresses: [198.51.100.11/24], boot: false}]",
    "role: db",
)

SCENARIOS = [
    Scenario(name="example-control-plane-first-boot", server="fra1-cp01", record=PENDING),
    Scenario(name="example-control-plane-provisioned", server="fra1-cp01", record=Record(provision=9)),
    Scenario(name="example-worker-unknown", server="fra1-w01"),
    Scenario(name="example-worker-canary", server="ams2-w01", record=PENDING),
    Scenario(name="example-edge-uki", server="ams2-edge01", record=PENDING),
    Scenario(name="example-storage-autoinstall", server="fra1-st02", record=PENDING),
    Scenario(name="example-batch-diskless", server="ams2-b01"),
    Scenario(
        name="pxe-with-two-initrds-and-arguments",
        documents=(
            *seed()[:2],
            document(
                "BootImage",
                "flatcar-1",
                "version: 1, kernelArguments: [flatcar.first_boot=1, quiet], architectures: {x86_64: {"
                f'kernel: {{url: "assets:k", sha256: {"a" * 64}}}, initrds: [{{url: "assets:i1", sha256: {"b" * 64}}}, '
                f'{{url: "http://far.test/i2?x=1&y=2", sha256: {"c" * 64}}}]}}}}',
            ),
            *seed(profile_spec="kernelArguments: ['console=ttyS0,115200', 'msg=a b', -quiet]")[3:],
        ),
    ),
    Scenario(name="uefi-http-uki", documents=seed(artifacts="uki", method="UefiHttp", profile_spec="httpBoot: uki")),
    Scenario(name="uefi-http-iso", documents=seed(artifacts="iso", method="UefiHttp", profile_spec="httpBoot: iso")),
    Scenario(
        name="uefi-http-loader",
        documents=seed(artifacts="kernel, initrd, loader", method="UefiHttp", profile_spec="httpBoot: loader"),
    ),
    Scenario(name="pxe-of-a-uki", documents=seed(artifacts="uki")),
    Scenario(name="bios", documents=seed(firmware="BIOS")),
    Scenario(
        name="ignition-by-argument",
        documents=seed(image_spec="userData: Ignition/3.4", profile_spec=USER_DATA.format(format="Ignition/3.4")),
        files=(("t.j2", '{"ignition": {"version": "3.4.0"}, "x": {{ server.name | tojson }}}\n'),),
    ),
    Scenario(
        name="ignition-by-uuid",
        documents=seed(
            artifacts="uki",
            method="UefiHttp",
            image_spec="userData: Ignition/3.4, configFrom: SystemUUID",
            profile_spec="httpBoot: uki, " + USER_DATA.format(format="Ignition/3.4"),
        ),
        files=(("t.j2", '{"ignition": {"version": "3.4.0"}}\n'),),
    ),
    Scenario(
        name="cloud-init-as-nocloud-bundle",
        documents=seed(image_spec="userData: CloudInit", profile_spec=USER_DATA.format(format="CloudInit")),
        files=(("t.j2", "#cloud-config\nhostname: {{ server.name }}\n"),),
    ),
    Scenario(
        name="kickstart",
        documents=seed(image_spec="userData: Kickstart", profile_spec=USER_DATA.format(format="Kickstart")),
        files=(("t.j2", "text\nreboot\n"),),
    ),
    Scenario(
        name="preseed",
        documents=seed(image_spec="userData: Preseed", profile_spec=USER_DATA.format(format="Preseed")),
        files=(("t.j2", "d-i netcfg/get_hostname string {{ server.name }}\n"),),
    ),
    Scenario(
        name="entries-of-ones-own",
        documents=seed(profile_spec="templates: {ipxe: e.ipxe.j2, grub: e.cfg.j2}, kernelArguments: [a=b]"),
        files=(
            ("e.ipxe.j2", "#!ipxe\nkernel {{ image.artifacts.kernel.url }} {{ kernel_arguments | join(' ') }}\nboot\n"),
            ("e.cfg.j2", "echo {{ server.name | grub }}\n"),
        ),
    ),
    Scenario(name="kernel-without-initrd", documents=seed(artifacts="kernel")),
    Scenario(
        name="ipxe-alone",
        documents=seed(fleet_spec="baseURL: 'http://boot.test', outputs: [ipxe]"),
    ),
    Scenario(name="maintenance", documents=(*SEED, maintenance("repair", "20T10:00 20T14:00"))),
    Scenario(name="parked", documents=seed(server_spec="lifecycle: Parked")),
    Scenario(
        name="restricted-disk",
        documents=seed(fleet_spec="baseURL: 'http://boot.test', serving: {restrict: true}", often="Never"),
    ),
    Scenario(name="every-lookup", documents=seed(fleet_spec=EVERY_LOOKUP, profile_spec="kernelArguments: ['msg=a b']")),
    Scenario(name="every-lookup-of-a-uki", documents=seed(fleet_spec=EVERY_LOOKUP, artifacts="uki")),
    Scenario(name="every-lookup-parked", documents=seed(fleet_spec=EVERY_LOOKUP, server_spec="lifecycle: Parked")),
    Scenario(
        name="every-lookup-to-a-restricted-disk",
        documents=seed(fleet_spec=f"{EVERY_LOOKUP}, serving: {{restrict: true}}", often="Never"),
    ),
    Scenario(
        name="https-mirror-below-a-path",
        documents=seed(fleet_spec="baseURL: 'https://cdn.test:8443/boot/fleet'"),
    ),
    Scenario(
        name="sent-on-to-who-gives-it",
        documents=seed(fleet_spec=f"{EVERY_LOOKUP}, endpoint: 'http://gives.test:8080/boot'", often="Once"),
        record=PENDING,
        lies=True,
    ),
    Scenario(
        name="sent-on-to-who-gives-it-by-https",
        documents=seed(fleet_spec=f"{EVERY_LOOKUP}, endpoint: 'https://gives.test'", often="Once"),
        record=PENDING,
        lies=True,
    ),
    Scenario(
        name="sent-on-from-a-diskless-boot",
        documents=(
            *seed(fleet_spec=f"{EVERY_LOOKUP}, endpoint: 'http://gives.test:8080'", image_spec="writesDisk: false"),
            image("bios-1", "", "kernel, initrd"),
            profile("bios", "bios-1"),
            maintenance("update", "20T10:00 20T14:00", "networkBoot: Once", boots="bios"),
        ),
        record=PENDING,
        lies=True,
    ),
]


@for_each("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_the_files_of_a_server_are_exactly_these(scenario: Scenario) -> None:
    decisions = scenario.decisions()
    decision = decisions.servers[scenario.server]
    planned = make_plan(decision, scenario.instant, scenario.record)
    files = render_server_files(decisions, decision, planned)
    if scenario.lies:
        assert planned is not None
        alone = render_server_files(decisions, decision, make_fallback_plan(decision, planned, StopScope.NONE))
        files = select_copy_files(decision, planned, StopScope.NONE, files, alone)
    folder = GOLDEN / scenario.name
    boot_files = {path.removeprefix("boot/"): file.content for path, file in files.items() if path.startswith("boot/")}
    _compare(folder, boot_files)


@for_each(
    ("name", "spec", "more"),
    [
        ("shared-local-disk", "baseURL: 'http://boot.test'", ()),
        ("shared-not-found-below-a-path", "baseURL: 'http://boot.test/a/b', unknownServers: NotFound", ()),
        ("shared-discovery", "baseURL: 'http://boot.test', unknownServers: {profile: repair}", ()),
        ("shared-every-lookup", f"{EVERY_LOOKUP}, unknownServers: {{profile: repair}}", (DATABASE,)),
        ("shared-dhcp", DHCP, (DATABASE,)),
    ],
)
def test_the_files_with_which_every_machine_begins_are_exactly_these(
    name: str, spec: str, more: tuple[str, ...]
) -> None:
    decisions = decided(fleet(spec), *SEED[1:], *more)
    files = render_fleet_files(decisions)
    for host in decisions.hosts:
        files |= render_idle_files(decisions.outputs, decisions.servers[host.server], list_idle_macs(host))
    machines = {path: file.content for path, file in files.items() if not path.startswith("ops/serve/")}
    _compare(GOLDEN / name, {path.removeprefix("boot/"): content for path, content in machines.items()})


def test_finding_r3_each_installer_of_the_example_reports_its_end_and_ignores_no_failed_report() -> None:
    boots = {name: each.policy.boot for name, each in example().servers.items() if each.policy is not None}
    data = {name: boot.user_data for name, boot in boots.items() if boot is not None and boot.writes_disk}
    texts = {name: "".join(each.files.values()) if each is not None else "" for name, each in data.items()}
    assert texts
    assert [name for name, text in texts.items() if "/provisioned/" not in text] == []
    assert [name for name, text in texts.items() if "=-/usr/bin/curl" in text or "|| true" in text] == []


def _compare(folder: Path, files: dict[str, bytes]) -> None:
    if os.environ.get("GOLDEN") == "write":
        shutil.rmtree(folder, ignore_errors=True)
        for path, content in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content)
    golden = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert sorted(golden) == sorted(files)
    for path, content in files.items():
        assert golden[path].decode() == content.decode(), path


SCRIPT = re.compile(r"\.ipxe$|(^|/)ipxe/|grub\.cfg|pxelinux\.cfg/|dnsmasq(-proxy)?\.conf$")
TEXT_LINE = re.compile(rb"#(?!!)|(echo|say) ")  # a comment, which has the plan digest too, or a text for a person


def strip_texts(path: str, content: bytes) -> bytes:
    """Return a golden file without comments and without texts that a loader shows. Other files stay as they are."""
    if SCRIPT.search(path.partition("/")[2]) is None:
        return content
    return b"".join(line for line in content.splitlines(keepends=True) if not TEXT_LINE.match(line.lstrip()))


def test_only_texts_of_the_golden_files_have_changed_since_the_boot_scripts_were_written() -> None:
    """`golden_without_texts.sha256` is of commit 868f419a. Change a line only if machines must boot differently."""
    listed = dict(line.split("  ")[::-1] for line in WITHOUT_TEXTS.read_text().splitlines())
    found = {}
    for path in sorted(each for each in GOLDEN.rglob("*") if each.is_file()):
        name = str(path.relative_to(GOLDEN))
        found[name] = sha256(strip_texts(name, path.read_bytes())).hexdigest()
    assert found == listed


def test_no_golden_file_is_without_a_scenario() -> None:
    names = {scenario.name for scenario in SCENARIOS} | {path.name for path in GOLDEN.glob("shared-*")}
    assert {path.name for path in GOLDEN.iterdir()} == names


@pytest.mark.skipif(
    shutil.which("grub-script-check") is None and not os.environ.get("CI"),
    reason="grub-script-check is missing (Debian: grub-common)",
)
def test_every_golden_grub_file_is_a_script() -> None:
    files = sorted(path for path in GOLDEN.rglob("*grub.cfg*") if path.is_file())
    assert len(files) > 50
    for path in files:
        checked = subprocess.run(["grub-script-check", str(path)], capture_output=True, text=True, check=False)
        assert checked.returncode == 0, f"{path}: {checked.stderr}"
