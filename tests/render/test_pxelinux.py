"""PXELINUX: what it boots, what it cannot, and where it goes then."""

from __future__ import annotations

import pytest

from gitboot.render.boot_files import server_files, shared_files
from gitboot.resolve.plan_at_time import plan
from tests.helpers.fleets import SEED, at, decided, fleet, image, mac_of, policy, profile, server

MAC = mac_of("web01").replace(":", "-")
OUTPUTS = "outputs: [pxelinux]"


def configuration(base: str = "http://boot.test", *, artifacts: str = "kernel, initrd", spec: str = "") -> list[str]:
    documents = (
        fleet(f"baseURL: '{base}', {OUTPUTS}"),
        server("web01", "role: web"),
        image("flatcar-1", "", artifacts),
        profile("web", "flatcar-1", spec),
        policy("web"),
    )
    decisions = decided(*documents)
    decision = decisions.servers["web01"]
    files = server_files(decisions, decision, plan(decision, at("20T12:00"), None))
    text = files[f"boot/pxelinux.cfg/01-{MAC}"].content.decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_a_kernel_is_booted_by_its_url_with_its_initrd_and_arguments() -> None:
    assert configuration(spec="kernelArguments: ['console=ttyS0,115200', 'note=two words']") == [
        "say gitboot: web01 boots flatcar-1 (Network)",
        "default gitboot",
        "prompt 0",
        "onerror disk",
        "label gitboot",
        "  linux http://boot.test/assets/flatcar-1/kernel",
        "  initrd http://boot.test/assets/flatcar-1/initrd",
        '  append console=ttyS0,115200 note="two words"',
        "label disk",
        "  localboot 0",
    ]


@pytest.mark.parametrize(
    ("base", "artifacts", "reason"),
    [
        ("https://boot.test", "kernel", "PXELINUX fetches by http only, not https"),
        ("http://boot.test/a,b", "kernel, initrd", "a comma in an initrd's URL would begin the next one"),
        ("http://boot.test", "uki", "flatcar-1 is booted directly by firmware, not by PXELINUX"),
    ],
)
def test_what_it_cannot_boot_it_says_and_goes_on_to_the_disk(base: str, artifacts: str, reason: str) -> None:
    _, said, *rest = configuration(base, artifacts=artifacts)
    assert said == f"say gitboot: {reason}"
    assert rest == ["default disk", "prompt 0", "label disk", "  localboot 0"]


def test_a_comma_in_the_url_of_a_kernel_alone_does_no_harm() -> None:
    assert "  linux http://boot.test/a,b/assets/flatcar-1/kernel" in configuration(
        "http://boot.test/a,b", artifacts="kernel"
    )


@pytest.mark.parametrize(
    ("unknown", "expected"),
    [("LocalDisk", "default disk"), ("{profile: repair}", "linux http://boot.test/assets/memtest-7/kernel")],
)
def test_the_default_is_what_unknown_machines_boot(unknown: str, expected: str) -> None:
    spec = f"baseURL: 'http://boot.test', {OUTPUTS}, unknownServers: {unknown}"
    files = shared_files(decided(fleet(spec), *SEED[1:]))
    assert expected in [line.strip() for line in files["boot/pxelinux.cfg/default"].content.decode().splitlines()]


def test_there_is_no_default_where_unknown_machines_are_answered_404() -> None:
    spec = f"baseURL: 'http://boot.test', {OUTPUTS}, unknownServers: NotFound"
    assert "boot/pxelinux.cfg/default" not in shared_files(decided(fleet(spec), *SEED[1:]))


def test_an_architecture_that_pxelinux_does_not_run_on_boots_nothing_by_its_default() -> None:
    arm = image("memtest-7", "writesDisk: false").replace("x86_64: {", "aarch64: {")
    spec = f"baseURL: 'http://boot.test', {OUTPUTS}, unknownServers: {{profile: repair}}"
    files = shared_files(decided(fleet(spec), *SEED[1:3], arm, *SEED[4:]))
    assert "linux" not in files["boot/pxelinux.cfg/default"].content.decode()
