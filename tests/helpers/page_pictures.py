"""The pictures of the page for docs/, of a fleet at night: `python -m tests.helpers.page_pictures [FOLDER]`."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from gitboot.fetchlog.unknown_machines import UnknownMachines, inventoried, render_unknown
from gitboot.jsonio import format_instant
from gitboot.publish.manifest import UNKNOWN
from gitboot.publish.publisher import Directory
from gitboot.render.paths import PAGE
from gitboot.render.server_files import RenderedState
from gitboot.resolve.provisioning_record import Record
from tests.fetchlog.test_unknown_machines_components import SENT
from tests.helpers.browser import Browser, browser
from tests.helpers.fleet_of_page import STATUS, area
from tests.helpers.fleets import at, document, fleet, image, maintenance, policy, profile, server
from tests.helpers.served_tree import Fleet, planned, site

NOW: Final = at("20T23:04")
IMAGES: Final = Path(__file__).parents[2] / "docs/images"
ACCEPTED: Final = "b7d20e41c6a95f3386d17a02e4cc90b15f8e6d24"
RACKS: Final = {"ams1": 5, "fra1": 4, "lon1": 3}
EACH: Final = 10  # servers a rack
SHOWN: Final = "ams1-r1n4"

_VIEWS: Final = {
    "page": "",
    "page-tonight": "?ahead=reinstall&order=site",
    "page-server": f"servers/{SHOWN}",
    "page-timeline": "timeline",
    "page-images": "images",
    "page-changes": "changes",
    "page-unknown": "unknown",
}
_IN_DARK: Final = {"page": "", "page-changes": "changes"}


def night_fleet() -> Fleet:
    """120 workers and stores at three sites: a rollout at 58 %, a pin that is overdue, windows now and to come."""
    sites = ", ".join(
        f"{{name: {name}, select: {{matchLabels: {{site: {name}}}}}, baseURL: 'http://boot.{name}.example.net'}}"
        for name in RACKS
    )
    files = {
        "fleet.yaml": fleet(f"baseURL: 'http://boot.example.net', outputs: [ipxe, grub, pages], sites: [{sites}]"),
        "images/flatcar.yaml": "---\n".join(image(f"flatcar-{each}") for each in ("4152.2.3", "4230.2.4", "4459.2.0")),
        "images/memtest.yaml": image("memtest-7.20", "writesDisk: false"),
        "images/firmware.yaml": image("firmware-2026.11", "writesDisk: false"),
        "images/ubuntu.yaml": image("ubuntu-24.04.3"),
        "streams/flatcar-stable.yaml": document(
            "ImageStream",
            "flatcar-stable",
            "\n  current: flatcar-4230.2.4,\n  rollout: {image: flatcar-4459.2.0, percent: 58, selector: All},\n"
            "  holds: [{select: {matchLabels: {rack: fra1-r2}}, image: flatcar-4152.2.3, "
            "reason: GPU driver of old cards, until: '2026-12-24T00:00:00Z'}]",
        ),
        "profiles/worker.yaml": profile("worker", "stream: flatcar-stable", "\n  kernelArguments: [console=ttyS0]"),
        "profiles/storage.yaml": profile("storage", "ubuntu-24.04.3"),
        "profiles/repair.yaml": profile("repair", "memtest-7.20"),
        "profiles/firmware.yaml": profile("firmware", "firmware-2026.11"),
        "policies/workers.yaml": policy(
            "workers",
            "{matchLabels: {role: worker}}",
            "\n  kernelArguments: [quiet]",
            boots="worker",
            often="OnImageChange",
        ),
        "policies/storage.yaml": policy("storage", "{matchLabels: {role: storage}}", boots="storage", often="Once"),
        "maintenances/fra1-memory.yaml": _window("fra1-memory", "20T22:00 21T04:00", "fra1-r4"),
        "maintenances/ams1-memory.yaml": _window("ams1-memory", "22T22:00 23T04:00", "ams1-r1"),
        "maintenances/lon1-firmware.yaml": _window("lon1-firmware", "24T22:00 25T02:00", "lon1-r1", "firmware"),
        "maintenances/lon1-firmware-2.yaml": _window("lon1-firmware-2", "25T22:00 26T02:00", "lon1-r2", "firmware"),
    }
    names = [
        (f"{name}-r{rack}n{number}", name, f"{name}-r{rack}")
        for name, racks in RACKS.items()
        for rack in range(1, racks + 1)
        for number in range(1, EACH + 1)
    ]
    for place, (name, where, rack) in enumerate(names):
        role = "storage" if place % 5 == 4 else "worker"
        files[f"servers/{where}/{name}.yaml"] = server(name, f"role: {role}, site: {where}, rack: {rack}", _more(name))
    decided = {name: _image(state) for name, state in planned(now=NOW, templates=files).servers.items()}
    records = {name: _record(place, name, image) for place, (name, image) in enumerate(decided.items())}
    return planned(now=NOW, records=records, templates=files, revision=ACCEPTED)


def _image(state: RenderedState) -> str:
    policy = state.decision.policy
    assert policy is not None and policy.boot is not None
    return policy.boot.image


def _record(place: int, name: str, decided: str) -> Record:
    """What was installed: of the workers that the rollout has reached most have the new image already."""
    waits = decided == "flatcar-4459.2.0" and (name == SHOWN or place % 4 == 0)
    installed = "flatcar-4230.2.4" if waits else decided
    return Record(provision=0, image=installed, evidence="Reported", provisioned_at=at("18T13:20"))


def _window(name: str, window: str, rack: str, boots: str = "repair") -> str:
    return maintenance(name, window, select=f"{{matchLabels: {{rack: {rack}}}}}", boots=boots)


def _more(name: str) -> str:
    bmc = f"\n  bmc: {{address: 'https://{name}.bmc.example.net', credentials: bmc}}"
    if name == "lon1-r3n2":
        return f"{bmc},\n  pin: {{image: flatcar-4152.2.3, reason: waits for its owner, until: '2026-11-01T00:00:00Z'}}"
    return f"{bmc},\n  kernelArguments: [mitigations=auto]" if name == SHOWN else bmc


def night_status() -> dict[str, Any]:
    """What its instance says: a commit is held, two BMCs are silent."""
    bmcs = [
        {
            "type": f"Bmc/{name}",
            "status": False,
            "reason": "Unreachable",
            "message": "no answer within 10 s",
            "remedy": f"gitboot bmc get {name}",
        }
        for name in ("fra1-r4n7", "lon1-r2n1")
    ]
    accepted = {
        "commit": ACCEPTED,
        "changed": [
            {**area("", 120, changed=31, reinstalled=12, added=2, removed=1), "commit": ACCEPTED},
            {**area("site=ams1", 50, changed=17, reinstalled=7, added=2), "commit": ACCEPTED},
            {**area("site=fra1", 40, changed=9, reinstalled=3, removed=1), "commit": ACCEPTED},
            {**area("site=lon1", 30, changed=5, reinstalled=2), "commit": ACCEPTED},
            {**area("role=worker", 96, changed=31, reinstalled=12, added=2), "commit": ACCEPTED},
            {**area("role=storage", 24, removed=1), "commit": ACCEPTED},
        ],
        "lately": [
            _lately(ACCEPTED, "20T21:40", changed=31, reinstalled=12, added=2, removed=1),
            _lately("09ac4be77d12f0a86b3e", "20T16:02", changed=3),
            _lately("e61f20775bb4c9d0fa31", "20T09:15", changed=10),
            _lately("41d7c0a95e20b8f36c42", "19T14:27", added=10),
        ],
    }
    return {
        **STATUS,
        "at": "2026-11-20T23:03:20Z",
        "accepted": accepted,
        "applied": {"commit": ACCEPTED},
        "conditions": bmcs,
    }


def _lately(commit: str, when: str, **kinds: int) -> dict[str, Any]:
    return {**area("", 120, **kinds), "commit": commit, "at": format_instant(at(when))}


def pictures(chromium: Browser, folder: Path, published: Path) -> None:
    """Each view as high as it is; some in dark as well."""
    until = f"const now = Date.now, began = now(); Date.now = () => now() - began + {NOW.timestamp() * 1000};"
    chromium.call("Page.addScriptToEvaluateOnNewDocument", source=f"{{ {until} }}")
    for dark in (False, True):
        chromium.looks(dark=dark)
        for name, view in _VIEWS.items() if not dark else _IN_DARK.items():
            chromium.sized(1440, 900)
            chromium.open(f"file://{published}/{PAGE}index.html#/{view}")
            is_table = not view or view.startswith("?")
            high = 900 if is_table else chromium.run("document.documentElement.scrollHeight")
            chromium.sized(1440, high)
            chromium.painted()
            chromium.picture(folder / f"{name}{'-dark' if dark else ''}.png")
    assert chromium.faults == []


def main() -> None:
    folder = Path(sys.argv[1]) if sys.argv[1:] else IMAGES
    with tempfile.TemporaryDirectory() as profile_folder, site(night_fleet()) as found:
        found.say(night_status())
        machines = UnknownMachines([inventoried(SENT, "v1/inventory", "10.20.3.41", at("20T22:51"))])
        with Directory.open(found.root, ledger="test") as directory:
            directory.write_status(render_unknown(machines), NOW, UNKNOWN)
        with browser(Path(profile_folder)) as chromium:
            pictures(chromium, folder, found.root)


if __name__ == "__main__":
    main()
