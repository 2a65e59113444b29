"""GRUB's lookups: what a known machine finds wherever it looks, and what only an unknown one does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings

from gitboot.model.scalars import byte_orders
from gitboot.render.boot_files import server_files, shared_files, tombstones
from gitboot.render.boot_script_parts import EFI_LOADERS
from gitboot.render.grub import first_configuration
from gitboot.render.paths import File
from gitboot.resolve.plan_at_time import plan
from gitboot.resolve.server_decision import Decisions, idle
from tests.helpers import hypothesis_strategies
from tests.helpers.cases import examples
from tests.helpers.fleets import SEED, at, decided, document, fleet, image, mac_of, policy, profile, server, uuid_of
from tests.helpers.hypothesis_strategies import GeneratedFleet

NOON = at("20T12:00")
ALL = "baseURL: 'http://boot.test', outputs: [ipxe, grub, pxelinux, uuid], unknownServers: {profile: repair}"


def tree(decisions: Decisions) -> dict[str, File]:
    files = shared_files(decisions)
    for decision in decisions.servers.values():
        files |= server_files(decisions, decision, plan(decision, NOON, None))
        files |= tombstones(decisions.outputs, decision, idle(decisions.networks[decision.server]))
    return files


@settings(max_examples=examples(40))
@given(made=hypothesis_strategies.fleets())
def test_every_interface_and_uuid_of_a_document_is_found_by_each_loader(made: GeneratedFleet) -> None:
    spec = made.of("Fleet")[0]["spec"] | {"outputs": ["ipxe", "grub", "pxelinux", "uuid", "serial"]}
    decisions = hypothesis_strategies.decided(
        made.having(hypothesis_strategies.document("Fleet", "test", spec)).documents
    )
    files = hypothesis_strategies.tree(decisions, made.records, made.at)
    for host in decisions.hosts:
        decision = decisions.servers[host.server]
        macs = decision.macs if decision.restrict else tuple(nic.mac for nic in host.nics)
        lookups = [f"boot/{lookup}-{mac}" for lookup in ("grub.cfg-01", "pxelinux.cfg/01") for mac in macs]
        for uuid in byte_orders(decision.uuid):
            lookups += [f"boot/grub.cfg-{uuid}", f"boot/ipxe/{uuid}"]
        if decision.serial is not None:
            lookups.append(f"boot/ipxe/serial/{decision.serial}")
        found = {lookup in files for lookup in lookups}
        assert found == {True} or (decision.restrict and found == {False}), host.server


@pytest.mark.parametrize("lifecycle", ["Parked", "Retired"])
def test_a_machine_without_a_plan_has_a_tombstone_by_each_lookup(lifecycle: str) -> None:
    files = tree(decided(fleet(ALL), server("web01", "role: web", f"lifecycle: {lifecycle}"), *SEED[2:]))
    mac = mac_of("web01").replace(":", "-")
    for path in (f"v1/boot/{mac}/grub.cfg", f"grub.cfg-01-{mac}", f"grub.cfg-{uuid_of('web01')}"):
        text = files[f"boot/{path}"].content.decode()
        assert "on to the local disk" in text and "memtest" not in text and "\nexit" not in text.partition("if [")[0]


def test_an_interface_that_may_not_boot_has_a_tombstone_only() -> None:
    nics = "interfaces: [{mac: '52:54:00:00:00:01'}, {mac: '52:54:00:00:00:02', boot: false}]"
    described = f"uuid: {uuid_of('web01')}, architecture: x86_64, firmware: UEFI, {nics}"
    files = tree(decided(fleet(ALL), document("Server", "web01", described, "role: web"), *SEED[2:]))
    assert "boots flatcar-1" in files["boot/grub.cfg-01-52-54-00-00-00-01"].content.decode()
    for path in ("boot/grub.cfg-01-52-54-00-00-00-02", "boot/pxelinux.cfg/01-52-54-00-00-00-02"):
        assert files[path].content.decode().startswith("# web01: may not boot from this interface")
    assert "boot/v1/boot/52-54-00-00-00-02/grub.cfg" not in files


def test_unknown_machines_boot_the_profile_by_the_architecture_that_grub_runs_on() -> None:
    arm = image("memtest-7", "writesDisk: false").replace("x86_64: {", "aarch64: {")
    seed = (SEED[0], SEED[1], SEED[2], arm, *SEED[4:])
    text = shared_files(decided(fleet(ALL), *seed[1:]))["boot/unknown.grub.cfg"].content.decode()
    condition, _, body = text.partition("\n")[2].partition("\n")
    assert condition == 'if [ "$grub_cpu" = arm64 ]; then'
    assert "linux$efi '(http,boot.test)/assets/memtest-7/kernel'" in body
    assert "x86_64" not in text


def test_without_a_profile_an_unknown_machine_boots_its_disk_and_nothing_else() -> None:
    assert "linux$efi" not in shared_files(decided(*SEED))["boot/unknown.grub.cfg"].content.decode()
    hidden = shared_files(decided(fleet("baseURL: 'http://boot.test', unknownServers: NotFound"), *SEED[1:]))
    assert "boot/unknown.grub.cfg" not in hidden


def test_the_shared_configuration_asks_for_unknown_only_after_every_lookup_of_a_known_machine() -> None:
    lines = [line.strip() for line in first_configuration(by_uuid=True).splitlines()]
    asked = [line for line in lines if line.startswith("configfile")]
    assert [each.partition("$tree/")[2].rstrip('"') for each in asked] == [
        "v1/boot/$m1-$m2-$m3-$m4-$m5-$m6/grub.cfg",
        "grub.cfg-01-$m1-$m2-$m3-$m4-$m5-$m6",
        "grub.cfg-$uuid",
        "unknown.grub.cfg$who",
    ]
    assert lines.index("done", lines.index(asked[2])) < lines.index(asked[3])


def test_a_uki_is_chained_to_and_needs_no_dialect() -> None:
    documents = (fleet(), SEED[1], image("flatcar-1", "", "uki"), profile("web", "flatcar-1"), policy("web"))
    text = tree(decided(*documents))[f"boot/grub.cfg-01-{mac_of('web01').replace(':', '-')}"].content.decode()
    assert "chainloader '(http,boot.test)/assets/flatcar-1/uki'" in text
    assert "$efi" not in text


def test_the_local_disk_is_tried_by_each_shim_before_any_grub_and_by_the_fallback_path_last() -> None:
    kinds = [path.rpartition("/")[2].partition("{")[0] for path in EFI_LOADERS]
    assert kinds == ["shim"] * kinds.count("shim") + ["grub"] * kinds.count("grub") + ["systemd-boot", "BOOT"]


@pytest.mark.skipif(
    shutil.which("grub-emu") is None and not os.environ.get("CI"), reason="grub-emu is missing (Debian: grub-emu)"
)
def test_grub_itself_tries_both_dialects_and_goes_on_where_it_has_neither(tmp_path: Path) -> None:
    # grub-emu has no Linux loader: each dialect fails at once, and the script runs to its end.
    text = tree(decided(*SEED))[f"boot/grub.cfg-01-{mac_of('web01').replace(':', '-')}"].content.decode()
    script = text.replace("sleep 5", "true").partition('if [ "$grub_platform"')[0] + "exit\n"
    folder = tmp_path / "grub"
    folder.mkdir()
    (folder / "grub.cfg").write_text(script)
    ran = subprocess.run(
        ["script", "--quiet", "--command", f"grub-emu -d {folder}", "/dev/null"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.stdout.count("can't find command `linux'") == 5
    assert ran.stdout.count("can't find command `linuxefi'") == 5
    assert "no attempt succeeded, on to the local disk" in ran.stdout
