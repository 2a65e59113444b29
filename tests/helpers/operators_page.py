"""The operators' page: a real Chromium, a fleet for each part of the page, and the pictures of it for docs/."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from gitboot.fetchlog.unknown_machines import UnknownMachines, build_from_inventory, render_unknown_machines
from gitboot.fleet.revision import CommitSummary, FileChanges, Revision
from gitboot.jsonio import format_instant
from gitboot.publish.manifest import HISTORY, UNKNOWN
from gitboot.publish.publisher import OutputDirectory
from gitboot.render.page import render_history
from gitboot.render.paths import PAGE
from gitboot.render.server_files import RenderedState
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import WithheldBoot
from gitboot.resolve.server_plan import Cause
from tests.helpers.endpoints import ONCE, Fleet, plan_fleet, site
from tests.helpers.fleets import SHA, at, document, fleet, image, maintenance, policy, profile, server

# A real Chromium without a window, controlled by pipes: one process for any number of pages.

browsers = pytest.mark.skipif(
    shutil.which("chromium") is None and "CI" not in os.environ, reason="needs chromium: scripts/install-packages"
)
_OPTIONS: Final = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe")
_PATIENCE_S: Final = 300.0


class Browser:
    """A page of a Chromium that runs; see the Chrome DevTools Protocol."""

    def __init__(self, send: int, receive: int) -> None:
        self._send, self._receive, self._left, self._number = send, receive, b"", 0
        self.faults: list[str] = []  # what scripts threw, and what the page's policy refused
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    _session: str | None = None

    def call(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == self._number:
                assert "error" not in reply, reply["error"]
                return reply["result"]
            self._handle_event(reply)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            more = os.read(self._receive, 1 << 20)
            assert more, "the browser has ended"
            self._left += more
        message, _, self._left = self._left.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _handle_event(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Runtime.exceptionThrown":
            self.faults.append(str(event["params"]["exceptionDetails"]))
        elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["source"] == "security":
            self.faults.append(event["params"]["entry"]["text"])

    def run(self, script: str) -> Any:
        """Return the value of an expression after its promise has settled."""
        found = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, condition: str) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not self.run(condition):
            assert time.monotonic() < deadline, (condition, self.text, self.faults)
            time.sleep(0.02)

    def open(self, address: str, ready: str = "document.documentElement?.dataset.read === ''") -> None:
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=address)
        self.until(ready)

    @property
    def text(self) -> str:
        found: str = self.run("document.body.innerText")
        return found

    def press(self, key: str) -> None:
        text = {"Enter": "\r"}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=_KEYS[key], text=text
            )

    def looks(self, *, dark: bool = False, media: str = "screen") -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])

    def sized(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def take_screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def type(self, text: str) -> None:
        """One key, as a person types it."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=text, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=text)

    def wait_until_painted(self) -> None:
        """Wait until the present content is painted on the screen."""
        self.run("new Promise((painted) => requestAnimationFrame(() => setTimeout(painted)))")

    def printed(self) -> bytes:
        return base64.b64decode(self.call("Page.printToPDF")["data"])


_KEYS: Final = {"Tab": 9, "Enter": 13, "/": 191}


_STARTS: Final = 3  # a browser on a busy machine may end while it starts, which is not what the tests are about


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    with ExitStack() as stack:
        for number in range(1, _STARTS + 1):
            pipes = stack.enter_context(_start_browser(folder / f"start-{number}"))
            try:
                found = Browser(*pipes)
                break
            except (AssertionError, BrokenPipeError):
                if number == _STARTS:
                    raise
        yield found


@contextmanager
def _start_browser(folder: Path) -> Iterator[tuple[int, int]]:
    """Yield the descriptors to which commands are written and from which responses are read."""
    folder.mkdir()
    asked, send = os.pipe()
    receive, answered = os.pipe()
    command = ("chromium", *_OPTIONS, f"--user-data-dir={folder}", "about:blank")

    def arrange_descriptors() -> None:
        """Arrange descriptors: Chromium reads commands from 3 and writes responses to 4."""
        above = [os.dup2(fd, 64 + number) for number, fd in enumerate((asked, answered))]
        os.dup2(above[0], 3)
        os.dup2(above[1], 4)

    with (folder / "stderr").open("wb") as errors:
        process = subprocess.Popen(
            command, preexec_fn=arrange_descriptors, pass_fds=(3, 4), stdout=errors, stderr=errors
        )
    for fd in (asked, answered):
        os.close(fd)
    try:
        yield send, receive
    finally:
        process.kill()
        process.wait()
        for fd in (send, receive):
            os.close(fd)


# A fleet with something for each part of the page: sites, a rollout at 58 %, a pin that is overdue, windows, a BMC.

NOW: Final = at("20T23:00")
HOSTILE: Final = "<img src=x onerror=\"document.title='run'\">"
SITES: Final = ("ams1", "fra1", "lon1")


def make_shown_fleet(servers: int = 60, **more: Any) -> Fleet:
    """Its servers are web000 and so on, at one site after the other."""
    sites = ", ".join(
        f"{{name: {site}, select: {{matchLabels: {{site: {site}}}}}, baseURL: 'http://{site}.test'}}" for site in SITES
    )
    made = [
        server(f"web{number:03}", f"role: web, site: {SITES[number % 3]}, rack: r{number % 7}", _make_spec(number))
        for number in range(servers)
    ]
    return plan_fleet(
        fleet(f"baseURL: 'http://boot.test', outputs: [ipxe, grub, pages], sites: [{sites}]"),
        *made,
        *(_signed_image(f"flatcar-{number}", HOSTILE) for number in (1, 2, 3)),
        image("memtest-7", "writesDisk: false"),
        document(
            "ImageStream",
            "flatcar-stable",
            "current: flatcar-2, rollout: {image: flatcar-3, percent: 58, selector: All}, "
            "holds: [{select: {servers: [web005]}, image: flatcar-1, reason: GPU driver, "
            "until: '2026-12-24T00:00:00Z'}], follow: {source: flatcar}",
        ),
        profile("web", "stream: flatcar-stable", "kernelArguments: [console=ttyS0]"),
        profile("repair", "memtest-7"),
        policy("web", "{matchLabels: {role: web}}", "kernelArguments: [quiet]"),
        maintenance("ams1-repair", "20T22:00 21T04:00", select="{matchLabels: {site: ams1}}"),
        maintenance("fra1-repair", "22T22:00 23T04:00", select="{matchLabels: {site: fra1}}"),
        maintenance("lon1-firmware", "25T01:00 -", select="{matchLabels: {site: lon1}}"),
        now=NOW,
        **more,
    )


def _signed_image(name: str, key: str) -> str:
    """An image that claims that a key has signed its files."""
    claim = f"provenance: {{digest: signed, key: {json.dumps(key)}}}"
    return image(name).replace(f"sha256: {SHA}", f"sha256: {SHA}, {claim}")


def _make_spec(number: int) -> str:
    if number == 4:
        return "pin: {image: flatcar-1, reason: waits for its owner, until: '2026-11-01T00:00:00Z'}"
    if number == 1:
        return "bmc: {address: 'https://bmc001.test', credentials: rack}, kernelArguments: [debug]"
    return ""


def area(label: str, size: int, **kinds: int) -> dict[str, Any]:
    none = dict.fromkeys(("changed", "less", "removed", "added", "reinstalled"), 0)
    return {"commit": "c0ffee00c0ffee00", "label": label, "size": size, **none, **kinds}


APPROVED: Final = [
    {"guard": guard, "by": f"ada, with gitboot approve: {HOSTILE}"} for guard in ("maxReinstalls", "maxUpdatePercent")
]
STATUS: Final = {
    "at": "2026-11-20T22:59:00Z",
    "branch": "refs/heads/main",
    "attempted": {
        "commit": "4f2ab9917c03d5e1",
        "problems": [],
        "held": {
            "digest": "8c1f27ab",
            "guards": ["maxReinstalls"],
            "lines": ["Gitboot-Ack: 8c1f27ab maxReinstalls"],
        },
    },
    "accepted": {
        "commit": "c0ffee00c0ffee00",
        "changed": [
            area("", 60, changed=27, reinstalled=12, added=2, removed=1, less=4),
            area("site=ams1", 20, changed=12, reinstalled=12),
            area("site=fra1", 20, changed=15, less=4),
            area("site=lon1", 20, added=2, removed=1),
        ],
        "lately": [
            {**area("", 60), "at": "2026-11-20T22:50:00Z", "subject": "Boot flatcar-3", "acknowledged": APPROVED},
            {**area("", 60, changed=3), "commit": "beef00beef00", "at": "2026-11-20T16:02:00Z", "subject": HOSTILE},
        ],
    },
    "applied": {"commit": "c0ffee00c0ffee00"},
    "links": {
        "commit": "https://git.test/ops/fleet/commit/{commit}",
        "line": "https://git.test/ops/fleet/blob/{commit}/{path}#L{line}",
        "blame": "https://git.test/ops/fleet/blame/{commit}/{path}#L{line}",
        "history": "https://git.test/ops/fleet/commits/{commit}/{path}",
    },
    "conditions": [
        *(
            {"type": f"Bmc/{name}", "status": False, "reason": "Stalled", "message": "none", "remedy": "do"}
            for name in ("web001", "web002")
        ),
        {"type": "BmcReached", "status": False, "reason": "Silent", "message": HOSTILE, "remedy": "look"},
    ],
}


def changes(*commits: tuple[str, str, str, str, tuple[str, ...]]) -> bytes:
    """The history of the page, as an instance writes it: commit, time, author, subject and files of each commit."""
    return render_history(
        FileChanges(
            commit=CommitSummary(
                revision=Revision(revision), author=f"{author} <{author}@test>", date=at(when), subject=subject
            ),
            files=files,
        )
        for revision, when, author, subject, files in commits
    )


def write_history(root: Path, content: bytes) -> None:
    with OutputDirectory.open(root, ledger="test") as directory:
        directory.write_status(content, NOW, HISTORY)


# A fleet under a hold: web01 and web02 lost their install boot, and web03 had none. parked01 has no plan.

LOST: Final = ("web01", "web02")
HELD_BY: Final = "4f2ab9917c03d5e1"


def make_held_fleet() -> Fleet:
    """web04 is to be installed. web05 has a maintenance in the future, and web06 one without a window."""
    installed = Record(provision=0, image="flatcar-1", evidence="Reported", provisioned_at=at("18T13:20"))
    boot = WithheldBoot(None, None, None, takes_image_back=True, by=HELD_BY)
    return plan_fleet(
        fleet("baseURL: 'http://boot.test', outputs: [ipxe, pages]"),
        *ONCE[1:],
        *(server(f"web0{number}", "role: web") for number in range(2, 7)),
        server("parked01", "role: web", "lifecycle: Parked"),
        maintenance("later", "25T22:00 26T04:00", select="{servers: [web05]}"),
        maintenance("bench", select="{servers: [web06]}"),
        now=NOW,
        records={"web03": installed, "web05": installed, "web06": installed},
        withheld=dict.fromkeys(LOST, boot),
    )


def make_held_status() -> dict[str, Any]:
    lost = [{"server": name, "by": [HELD_BY], "boots": None, "why": Cause.WITHHELD} for name in LOST]
    attempted: Any = STATUS["attempted"]
    return {**STATUS, "attempted": {**attempted, "withheld": lost}}


# The pictures of the page for docs/, of a fleet at night: `python -m tests.helpers.operators_page [FOLDER]`.

AT_NIGHT: Final = at("20T23:04")
IMAGES: Final = Path(__file__).parents[2] / "docs/images"
ACCEPTED: Final = "b7d20e41c6a95f3386d17a02e4cc90b15f8e6d24"
RACKS: Final = {"ams1": 5, "fra1": 4, "lon1": 3}
EACH: Final = 10  # servers a rack
SHOWN: Final = "ams1-r1n4"
FLATCAR_KEY: Final = "F88CFEDEFF29A5B4D9523864E25D9AED0593B34A"

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


def make_night_fleet() -> Fleet:
    """120 workers and stores at three sites: a rollout at 58 %, a pin that is overdue, windows now and to come."""
    sites = ", ".join(
        f"{{name: {name}, select: {{matchLabels: {{site: {name}}}}}, baseURL: 'http://boot.{name}.example.net'}}"
        for name in RACKS
    )
    files = {
        "fleet.yaml": fleet(f"baseURL: 'http://boot.example.net', outputs: [ipxe, grub, pages], sites: [{sites}]"),
        "images/flatcar.yaml": "---\n".join(
            _signed_image(f"flatcar-{each}", FLATCAR_KEY) for each in ("4152.2.3", "4230.2.4", "4459.2.0")
        ),
        "images/memtest.yaml": image("memtest-7.20", "writesDisk: false"),
        "images/firmware.yaml": image("firmware-2026.11", "writesDisk: false"),
        "images/ubuntu.yaml": image("ubuntu-24.04.3"),
        "streams/flatcar-stable.yaml": document(
            "ImageStream",
            "flatcar-stable",
            "\n  current: flatcar-4230.2.4,\n  rollout: {image: flatcar-4459.2.0, percent: 58, selector: All},\n"
            "  holds: [{select: {matchLabels: {rack: fra1-r2}}, image: flatcar-4152.2.3, "
            "reason: GPU driver of old cards, until: '2026-12-24T00:00:00Z'}],\n"
            "  follow: {source: flatcar, minimumAge: 3d}",
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
        files[f"servers/{where}/{name}.yaml"] = server(
            name, f"role: {role}, site: {where}, rack: {rack}", _make_night_spec(name)
        )
    decided = {name: _image(state) for name, state in plan_fleet(now=AT_NIGHT, templates=files).servers.items()}
    records = {name: _record(place, name, image) for place, (name, image) in enumerate(decided.items())}
    return plan_fleet(now=AT_NIGHT, records=records, templates=files, revision=ACCEPTED)


def _image(state: RenderedState) -> str:
    policy = state.decision.policy
    assert policy is not None and policy.boot is not None
    return policy.boot.image


def _record(place: int, name: str, decided: str) -> Record:
    """Return a record: most workers that the rollout has reached have the new image already."""
    waits = decided == "flatcar-4459.2.0" and (name == SHOWN or place % 4 == 0)
    installed = "flatcar-4230.2.4" if waits else decided
    return Record(provision=0, image=installed, evidence="Reported", provisioned_at=at("18T13:20"))


def _window(name: str, window: str, rack: str, boots: str = "repair") -> str:
    return maintenance(name, window, select=f"{{matchLabels: {{rack: {rack}}}}}", boots=boots)


def _make_night_spec(name: str) -> str:
    bmc = f"\n  bmc: {{address: 'https://{name}.bmc.example.net', credentials: bmc}}"
    if name == "lon1-r3n2":
        return f"{bmc},\n  pin: {{image: flatcar-4152.2.3, reason: waits for its owner, until: '2026-11-01T00:00:00Z'}}"
    return f"{bmc},\n  kernelArguments: [mitigations=auto]" if name == SHOWN else bmc


def make_night_status() -> dict[str, Any]:
    """Return a status in which a commit is held and two BMCs do not respond."""
    bmcs = [
        {
            "type": f"Bmc/{name}",
            "status": False,
            "reason": "Waiting",
            "message": "no answer within 10 s",
            "remedy": f"gitboot bmc apply {name} --state STATE",
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
            _make_recent_change(ACCEPTED, "20T21:40", changed=31, reinstalled=12, added=2, removed=1),
            _make_recent_change("09ac4be77d12f0a86b3e", "20T16:02", changed=3),
            _make_recent_change("e61f20775bb4c9d0fa31", "20T09:15", changed=10),
            _make_recent_change("41d7c0a95e20b8f36c42", "19T14:27", added=10),
        ],
    }
    return {
        **STATUS,
        "at": "2026-11-20T23:03:20Z",
        "accepted": accepted,
        "applied": {"commit": ACCEPTED},
        "conditions": bmcs,
    }


def _make_recent_change(commit: str, when: str, **kinds: int) -> dict[str, Any]:
    return {**area("", 120, **kinds), "commit": commit, "at": format_instant(at(when))}


def make_night_history() -> bytes:
    return changes(
        (ACCEPTED, "20T21:38", "Ada Moreau", "Roll flatcar-4459.2.0 out to 58 %", ("streams/flatcar-stable.yaml",)),
        (
            "09ac4be77d12f0a86b3e",
            "20T16:00",
            "Jonas Weber",
            "Mitigations for ams1-r1n4",
            (f"servers/ams1/{SHOWN}.yaml",),
        ),
        (
            "e61f20775bb4c9d0fa31",
            "20T09:12",
            "Ada Moreau",
            "Memory test of rack ams1-r1",
            ("maintenances/ams1-memory.yaml",),
        ),
        ("41d7c0a95e20b8f36c42", "19T14:25", "Jonas Weber", "Quiet kernels for workers", ("policies/workers.yaml",)),
    )


def take_pictures(chromium: Browser, folder: Path, published: Path) -> None:
    """Each view as high as it is; some in dark as well."""
    clock_script = (
        f"const now = Date.now, began = now(); Date.now = () => now() - began + {AT_NIGHT.timestamp() * 1000};"
    )
    chromium.call("Page.addScriptToEvaluateOnNewDocument", source=f"{{ {clock_script} }}")
    for dark in (False, True):
        chromium.looks(dark=dark)
        for name, view in _VIEWS.items() if not dark else _IN_DARK.items():
            chromium.sized(1440, 900)
            chromium.open(f"file://{published}/{PAGE}index.html#/{view}")
            is_table = not view or view.startswith("?")
            height = 900 if is_table else chromium.run("document.documentElement.scrollHeight")
            chromium.sized(1440, height)
            chromium.wait_until_painted()
            chromium.take_screenshot(folder / f"{name}{'-dark' if dark else ''}.png")
    assert chromium.faults == []


def main() -> None:
    from tests.fetchlog.test_unknown_machines import SENT

    folder = Path(sys.argv[1]) if sys.argv[1:] else IMAGES
    with tempfile.TemporaryDirectory() as profile_folder, site(make_night_fleet()) as found:
        found.say(make_night_status())
        machines = UnknownMachines([build_from_inventory(SENT, "v1/inventory", "10.20.3.41", at("20T22:51"))])
        with OutputDirectory.open(found.root, ledger="test") as directory:
            directory.write_status(render_unknown_machines(machines), AT_NIGHT, UNKNOWN)
            directory.write_status(make_night_history(), AT_NIGHT, HISTORY)
        with browser(Path(profile_folder)) as chromium:
            take_pictures(chromium, folder, found.root)


if __name__ == "__main__":
    main()
