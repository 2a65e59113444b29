"""Reviews of a dozen commits, in tests/golden_review/, which are reviewed like code.

`GOLDEN=write pytest tests/review/test_review_golden.py` writes them again: read the diff.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import click
import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from gitboot.cli.commands.diff import format_review_text
from gitboot.fleet.revision import Message
from gitboot.review.formats.json import as_json
from gitboot.review.formats.markdown import as_markdown
from gitboot.review.review import Review, ReviewOutcome
from tests.helpers.cases import for_each
from tests.helpers.evaluations import FLEET, SERVERS, USER_DATA, Files, review_files
from tests.helpers.fleets import SHA, document, fleet, image, maintenance, make_mac, make_uuid, policy, profile, server

ROOT: Final = Path(__file__).parents[2]
GOLDEN: Final = Path(__file__).parents[1] / "golden_review"
SCHEMA: Final = Draft202012Validator(json.loads((ROOT / "schemas" / "diff.schema.json").read_text()))
FORMATS: Final[Mapping[str, Callable[[Review], str]]] = {
    "txt": lambda review: click.unstyle(format_review_text(review, "")) + "\n",
    "md": as_markdown,
    "json": lambda review: as_json(review) + "\n",
}


def stream(spec: str) -> Files:
    return {"stream.yaml": document("ImageStream", "stable", spec)}


def canary(percent: int) -> Files:
    return stream(f"current: flatcar-1, rollout: {{image: flatcar-2, percent: {percent}}}")


def everyone(spec: str) -> Files:
    return {path: server(path[8:-5], f"site: {path[8:12]}, role: web", spec) for path in SERVERS if "web" in path}


def source(name: str, url: str) -> str:
    return document(
        "ImageSource",
        name,
        f"architectures: {{x86_64: amd64}}, releases: {{format: JSONList, url: '{url}/versions'}}, "
        f"files: {{kernel: {{url: '{url}/{{version}}/kernel'}}}}",
    )


NEXT_WEEK: Final = maintenance(
    "bios-2026-11", "27T22:00 28T04:00", "networkBoot: Once, reason: 'BIOS 2.1, CHG-1'", boots="bios"
)
RENAMED: Final = server("fra1-web01", "site: fra1, role: web", "provision: 1").replace(
    "name: fra1-web01,", "name: fra1-front01,"
)


def board(number: str, bmc: str) -> str:
    spec = f"provision: 1, serial: 4J8VM72, bmc: {{address: 'https://{bmc}.test', credentials: a}}"
    text = server("fra1-db01", "site: fra1, role: db", spec)
    return text.replace(make_uuid("fra1-db01"), make_uuid(number)).replace(make_mac("fra1-db01"), make_mac(number))


KEY: Final = "F88CFEDEFF29A5B4D9523864E25D9AED0593B34A"
VENDOR: Final = "https://stable.vendor.test/3"
CLAIMING: Final = document(
    "BootImage",
    "flatcar-3",
    f"""version: '3', userData: CloudInit, architectures: {{
    x86_64: {{
      kernel: {{
        url: '{VENDOR}/vmlinuz', sha256: {"3b" * 32}, signature: {{openpgp: '{VENDOR}/vmlinuz.sig'}},
        provenance: {{digest: signed, key: {KEY}, url: '{VENDOR}/vmlinuz.sig'}}}},
      initrds: [{{url: '{VENDOR}/initrd', sha256: {"3c" * 32}, provenance: {{digest: signed, key: {KEY}}}}}],
      rootfs: {{
        url: '{VENDOR}/rootfs', sha256: {"3d" * 32}, provenance: {{digest: published, url: '{VENDOR}/SHA256SUMS'}}}}}},
    aarch64: {{
      kernel: {{url: '{VENDOR}/vmlinuz-arm', sha256: {"3e" * 32}, provenance: {{digest: firstSeen}}}},
      initrds: [{{url: '{VENDOR}/initrd-arm', sha256: {"3f" * 32}}}]}}}}
    """,
)
MEMTEST: Final = image("memtest-7", "writesDisk: false").replace(
    f"sha256: {SHA}}}]", f"sha256: {SHA}, provenance: {{digest: published}}}}]"
)


# The change of the commit, the fleet that it changes, and the outcome.
SCENARIOS: Final[Mapping[str, tuple[Files, Files, ReviewOutcome]]] = {
    "image-bump": (stream("current: flatcar-2"), FLEET, ReviewOutcome.HELD),
    "canary-10-to-50": (canary(50), {**FLEET, **canary(10)}, ReviewOutcome.FINE),
    "maintenance-next-week": ({"bios.yaml": NEXT_WEEK}, FLEET, ReviewOutcome.HELD),
    "pool-split": (
        {
            "policies/front.yaml": policy(
                "front", "{matchLabels: {role: web, site: ams2}}", "inherits: web, nodeLabels: {tier: front}"
            )
        },
        FLEET,
        ReviewOutcome.HELD,
    ),
    "mass-delete": ({path: None for path in SERVERS if "fra1-web" in path}, FLEET, ReviewOutcome.HELD),
    "rename": ({"servers/fra1-web01.yaml": RENAMED}, FLEET, ReviewOutcome.FINE),
    "secret": (
        {
            "userdata/web.j2": USER_DATA + "password: hunter2\n",
            "profiles/web.yaml": profile(
                "web",
                "stream: stable",
                "kernelArguments: [quiet, api.token=hunter2], userData: {format: CloudInit, template: userdata/web.j2}",
            ),
        },
        FLEET,
        ReviewOutcome.HELD,
    ),
    "bad-yaml": ({"stream.yaml": "kind: [ImageStream\n", "oops.yaml": "a: b\n"}, FLEET, ReviewOutcome.INVALID),
    "empty-fleet": (dict.fromkeys(SERVERS), FLEET, ReviewOutcome.HELD),
    "unknown-servers": (
        {"fleet.yaml": fleet("baseURL: 'http://boot.test', unknownServers: {profile: repair}")},
        FLEET,
        ReviewOutcome.HELD,
    ),
    "reinstall": (
        {"servers/fra1-db01.yaml": server("fra1-db01", "site: fra1, role: db", "provision: 2")},
        FLEET,
        ReviewOutcome.HELD,
    ),
    "no-op": (
        {"stream.yaml": f"# The stream of all web servers.\n{FLEET['stream.yaml']}", "images/3.yaml": image("new-3")},
        FLEET,
        ReviewOutcome.UNCHANGED,
    ),
    "mutated-image": (
        {"images/1.yaml": str(FLEET["images/1.yaml"]).replace("a" * 64, "b" * 64)},
        FLEET,
        ReviewOutcome.HELD,
    ),
    "outputs-and-unknown-servers": (
        {
            "fleet.yaml": fleet(
                "baseURL: 'http://boot.test/v2', outputs: [grub], unknownServers: NotFound, serving: {restrict: true}"
            )
        },
        FLEET,
        ReviewOutcome.HELD,
    ),
    "motherboard-and-bmc": (
        {"servers/fra1-db01.yaml": board("2", "bmc2"), "servers/fra1-db02.yaml": server("fra1-db02", "role: db")},
        {**FLEET, "servers/fra1-db01.yaml": board("1", "bmc1")},
        ReviewOutcome.FINE,
    ),
    "entries-of-ones-own": (
        {
            "profiles/db.yaml": profile("db", "flatcar-1", "templates: {grub: own.cfg, ipxe: own.ipxe}"),
            "own.cfg": "echo {{ server.name }}\n",
            "own.ipxe": "#!ipxe\necho {{ server.name }}\npassword: hunter2\n",
            "m.yaml": maintenance("disk", "20T22:00", boots="disk", select="{servers: [fra1-db01]}"),
            "disk.yaml": profile("disk", "", method="Disk"),
        },
        FLEET,
        ReviewOutcome.HELD,
    ),
    "pool-with-what-it-inherits": (
        {
            "policies/web.yaml": policy(
                "web", "{matchLabels: {role: web}}", "kernelArguments: [debug], override: None", often="Once"
            ),
            "policies/front.yaml": policy("front", "{matchLabels: {site: ams2}}", "inherits: web, diskBoot: Hdd"),
            "servers/fra1-db01.yaml": server(
                "fra1-db01", "site: fra1, role: db", "provision: 1, pin: {image: flatcar-2, reason: 'GPU, CHG-2'}"
            ),
        },
        {
            **FLEET,
            "policies/front.yaml": policy("front", "{matchLabels: {site: ams2}}", "inherits: web"),
        },
        ReviewOutcome.HELD,
    ),
    "interfaces-that-change-places": (
        {
            f"servers/{name}.yaml": server(name, "site: fra1, role: web", "provision: 1").replace(
                make_mac(name), make_mac(other)
            )
            for name, other in (("fra1-web01", "fra1-web02"), ("fra1-web02", "fra1-web01"))
        },
        FLEET,
        ReviewOutcome.HELD,
    ),
    "provenance": (
        {
            "images/3.yaml": CLAIMING,
            "images/memtest.yaml": MEMTEST.replace("digest: published", f"digest: signed, key: {KEY}"),
            "stream.yaml": document(
                "ImageStream",
                "stable",
                "current: flatcar-1, rollout: {image: flatcar-3, percent: 1}, "
                "follow: {source: flatcar, channel: stable, minimumAge: 3d}",
            ),
            "databases.yaml": document(
                "ImageStream", "databases", "current: flatcar-1, requireProvenance: signed, follow: {source: mirror}"
            ),
            "mirror.yaml": source("mirror", "https://mirror2.test"),
            "sources/flatcar.yaml": source("flatcar", "https://mirror.test/flatcar"),
            "profiles/db.yaml": profile("db", "flatcar-1"),
            "m.yaml": maintenance("memory-test", "27T22:00 28T04:00", "networkBoot: Once"),
        },
        {
            **FLEET,
            "images/memtest.yaml": MEMTEST,
            "stream.yaml": document("ImageStream", "stable", "current: flatcar-1, requireProvenance: signed"),
            "databases.yaml": document(
                "ImageStream",
                "databases",
                "current: flatcar-1, requireProvenance: signed, follow: {source: flatcar, channel: lts}",
            ),
            "tools.yaml": document("ImageStream", "tools", "current: memtest-7, requireProvenance: signed"),
            "mirror.yaml": source("mirror", "https://mirror.test"),
            "profiles/db.yaml": profile("db", "stream: databases"),
        },
        ReviewOutcome.HELD,
    ),
    "base-is-no-fleet": ({"fleet.yaml": fleet()}, {**FLEET, "fleet.yaml": None}, ReviewOutcome.FINE),
}


@for_each("name", SCENARIOS)
def test_the_review_is_exactly_this(name: str) -> None:
    new, old, outcome = SCENARIOS[name]
    review = review_files(new, old)
    assert review.outcome is outcome
    for extension, write in FORMATS.items():
        path, text = GOLDEN / f"{name}.{extension}", write(review)
        if os.environ.get("GOLDEN") == "write":
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        assert path.read_text() == text


@for_each("name", SCENARIOS)
def test_the_json_is_valid_by_its_schema(name: str) -> None:
    found = json.loads((GOLDEN / f"{name}.json").read_text())
    assert [error.message for error in SCHEMA.iter_errors(found)] == []


def test_an_ignored_acknowledgement_is_reported_in_each_format() -> None:
    line = f"Gitboot-Ack: {'0' * 64} maxReinstalls"
    review = review_files(SCENARIOS["reinstall"][0], messages=(Message("c" * 40, line),))
    for write in FORMATS.values():
        shown = " ".join(write(review).split())
        assert line in shown
        assert "the line acknowledges other changes" in shown


def test_people_see_how_many_more_reasons_a_group_has_and_machines_see_each() -> None:
    """Twelve maintenances that write disks."""
    names = [f"m{day}" for day in range(10, 22)]
    review = review_files(
        {f"{name}.yaml": maintenance(name, f"{name[1:]}T22:00 {name[1:]}T23:00", boots="bios") for name in names}
    )
    (group,) = review.groups
    for extension in ("txt", "md"):
        lines = [
            line for line in FORMATS[extension](review).splitlines() if re.match(r"[ -]+may be reinstalled: ", line)
        ]
        assert (len(lines), "and 2 more reasons" in lines[-1]) == (11, True)
    (found,) = json.loads(FORMATS["json"](review))["groups"]
    assert len(group.reinstalls) == len(found["reinstalls"]) == 12


def test_the_text_states_what_it_omits(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"w{number:03}" for number in range(120)]
    old = {f"{name}.yaml": server(name, f"role: web, site: {name}") for name in names}
    new = {
        f"{name}.yaml": server(
            name, f"role: web, site: {name}", f"provision: {number + 2}, kernelArguments: [a{number}]"
        )
        for number, name in enumerate(names)
    }
    review = review_files(new, {**FLEET, **old})
    shown = click.unstyle(format_review_text(review, ""))
    assert "\nand 70 more groups: use -o json to see all\n" in shown
    assert "    and 115 more reasons\n" in shown
    assert "  no diff: too many lines\n" not in shown
    assert shown.count("\nServer/w") == 50
    assert '"rendered": null' not in as_json(review)
    monkeypatch.setattr("gitboot.review.change_groups.RENDERED_LINES", 1)
    assert as_json(review_files(new, {**FLEET, **old})).count('"rendered": null') == 119


def test_no_golden_file_is_without_a_scenario() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {f"{name}.{end}" for name in SCENARIOS for end in FORMATS}


@for_each("path", sorted(GOLDEN.glob("*")), ids=lambda path: path.name)
def test_no_format_shows_a_secret(path: Path) -> None:
    assert "hunter2" not in path.read_text()


@for_each("path", sorted(GOLDEN.glob("*.txt")), ids=lambda path: path.name)
def test_the_text_fits_in_100_columns_except_lines_to_copy(path: Path) -> None:
    read, _, rest = path.read_text().partition("PROBLEMS\n")  # which are one a line, as `validate` has them
    wide = [line for line in (read + rest.partition("HOW TO")[2]).splitlines() if len(line) > 100]
    copied = ("    Gitboot-Ack: ", "    gitboot approve ", "    +", "    -", "     ")
    assert [line for line in wide if not line.startswith(copied)] == []
