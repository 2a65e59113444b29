"""What `validate` and `diff` say of copies of the boot files: one-time boots and ends of maintenances."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from gitboot.problems import Code, Severity
from tests.helpers.cases import for_each
from tests.helpers.fleets import SEED, decided, fleet, image, maintenance, policy, profile, server
from tests.helpers.instance_with_bmcs import typed
from tests.helpers.running_instance import Repository

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

NO_ENDPOINT: Final = "no copy of the boot files serves a one-time boot or records a fetch, and no endpoint is named"
NEXT_COPY: Final = "no endpoint is named, so a copy of the boot files ends it only with the next copy"
RESTRICT: Final = "unknownServers: NotFound, serving: {restrict: true}"
NO_SCRIPT: Final = "boot loaders that find no boot script for the disk (serving.restrict or localDisk: NotFound)"


def unable(loaders: str, endpoint: str = "https://gitboot.test") -> str:
    return f"{loaders} cannot ask {endpoint} for its end, so copies do not have it for them"


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
            [f"Maintenance/wipe: {NEXT_COPY} (web01)"],
        ),
        ("a boot each time", BASE, ALWAYS, []),
        ("a parked server", BASE, (server("web01", "role: web", "lifecycle: Parked"), *ONCE[1:]), []),
        ("a maintenance", BASE, (*ALWAYS, WINDOW), [f"Maintenance/repair: {NEXT_COPY} (web01)"]),
        ("a late end", f"{BASE}, serving: {{lateEnds: Accept}}", (*ALWAYS, WINDOW), []),
        ("a maintenance with an endpoint", HTTP, (*ALWAYS, WINDOW), []),
        ("by https", HTTPS, (*ALWAYS, WINDOW), [f"Maintenance/repair: {unable('GRUB and iPXE')} (web01)"]),
        (
            "by https, to an iPXE that has it",
            f"{HTTPS}, outputs: [ipxe, pxelinux], serving: {{ipxeHttps: true}}",
            (*ALWAYS, WINDOW),
            [f"Maintenance/repair: {unable('PXELINUX')} (web01)"],
        ),
        ("where it is all there is", f"{HTTPS}, outputs: [ipxe], serving: {{ipxeHttps: true}}", (*ALWAYS, WINDOW), []),
        ("late by https", f"{HTTPS}, serving: {{lateEnds: Accept}}", (*ALWAYS, WINDOW), []),
        (
            "firmware that fetches one file",
            HTTP,
            (*UKI, WINDOW),
            [f"Maintenance/repair: {unable('UEFI HTTP boot', 'http://gitboot.test')} (web01)"],
        ),
        ("the disk before and after", BASE, (*ALWAYS, *TO_DISK), []),
        (
            "the disk, and then no disk",
            BASE,
            (*SEED[1:-1], *LIVE, *TO_DISK),
            [f"Maintenance/park: {NEXT_COPY} (web01)"],
        ),
        ("the same with an endpoint", HTTP, (*SEED[1:-1], *LIVE, *TO_DISK), []),
        (
            "the same without a boot script for the disk",
            f"{HTTP}, {RESTRICT}",
            (*SEED[1:-1], *LIVE, *TO_DISK),
            [f"Maintenance/park: {unable(NO_SCRIPT, 'http://gitboot.test')} (web01)"],
        ),
        ("a boot, and then the disk", f"{HTTP}, {RESTRICT}", (*ALWAYS, WINDOW), []),
    ],
)
def test_finding_m1_m2_a_fleet_learns_what_its_copies_cannot_do(
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
    validated, compared = typed("validate", "."), typed("diff", "HEAD~..HEAD")
    assert validated.code == 0, validated
    for shown in (validated.out, compared.out):
        assert "GB2025" in shown and NO_ENDPOINT in shown, shown
        assert "GB2026" in shown and f"Maintenance/repair: {NEXT_COPY} (web01)" in shown, shown
    assert "GB2025" not in typed("diff", "HEAD..HEAD~").out
