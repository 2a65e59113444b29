"""Record the modules and functions that gitboot calls in three flows, or compare them with what was recorded before.

A flow is `change` (a word changes in one Server document, until the server's boot files are written), `get` (a boot
loader fetches a boot script by MAC address, until it has the body) or `override` (somebody removes an override at a
BMC, until gitboot has set and confirmed it). `idle` is an instance without events.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.fleet import name_of
from benchmarks.flows.site import CHANGED, FETCHED, FIRST, OVERRIDDEN, FlowFailed, Site, make_argument
from benchmarks.flows.summary import differences, format_text, summarise

_IDLE_S: Final = 3
_ROOT: Final = Path(__file__).resolve().parents[2]


def main() -> int:
    asked = _arguments()
    try:
        if asked.command == "record":
            recorded = record(asked.flows, rounds=asked.rounds, mac=asked.mac)
            if asked.output is not None:
                asked.output.write_text(json.dumps(recorded, indent=1) + "\n")
            print("\n".join(format_text(recorded)))
            return 0
        before = _read(asked.recorded)
        flows = [name for name in FLOWS if name in before["flows"]]
        after = _read(asked.current) if asked.current is not None else record(flows, rounds=before["rounds"])
    except (FlowFailed, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print("\n".join(differences(before, after)))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.flows", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="run the flows, and print what they call")
    recording.add_argument("flows", nargs="*", metavar="FLOW", help=f"of {', '.join(FLOWS)}; default: all")
    recording.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it as JSON, too")
    recording.add_argument(
        "--rounds", type=int, default=3, choices=range(1, len(FETCHED) + 1), help="of each flow; default: 3"
    )
    recording.add_argument("--mac", help="the address that `get` fetches, as 24-6e-96-00-00-01; default: by round")
    comparing = commands.add_parser("compare", help="print what appeared and what went since a recorded file")
    comparing.add_argument("recorded", type=Path, metavar="RECORDED")
    comparing.add_argument("current", type=Path, nargs="?", metavar="CURRENT", help="default: run the flows now")
    asked = parser.parse_args()
    if asked.command == "record":
        if unknown := set(asked.flows) - FLOWS.keys():
            parser.error(f"no such flow: {', '.join(sorted(unknown))}")
        asked.flows = [name for name in FLOWS if name in asked.flows] or list(FLOWS)
    return asked


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FlowFailed(f"{path} cannot be read: {error}") from None
    if "flows" not in found:
        raise FlowFailed(f"{path} has no flows: write it with `python -m benchmarks.flows record -o {path}`")
    return found


def record(flows: Sequence[str], *, rounds: int = 3, mac: str | None = None) -> dict[str, Any]:
    """Run each flow some times on a site of its own; return what the rounds called, as JSON."""
    windows: dict[str, list[int]] = {name: [] for name in flows}
    with tempfile.TemporaryDirectory(prefix="gitboot-flows-") as scratch, Site(Path(scratch)) as site:
        for name in flows:
            for number in range(rounds):
                site.settle()
                windows[name].append(FLOWS[name][1](site, number, mac))
        calls = site.tracing.read()  # before the site ends: no window is open
    return {
        "gitboot": _revision(),
        "python": platform.python_version(),
        "rounds": rounds,
        "flows": {name: summarise(FLOWS[name][0], [calls[number] for number in windows[name]]) for name in flows},
    }


def _change(site: Site, number: int, _: str | None) -> int:
    before = site.find_files(FIRST if number == 0 else f"round{number - 1}")
    if not before:
        raise FlowFailed(f"no boot file of {name_of(CHANGED)} has the argument that its document gives")
    word = f"round{number}"
    wanted = make_argument(word).encode()
    with site.tracing.window() as window:
        site.change(word)
        site.wait_until(
            lambda: all(wanted in path.read_bytes() for path in before),
            f"gitboot writes the boot files of {name_of(CHANGED)} with the new word",
        )
    return window


def _get(site: Site, number: int, mac: str | None) -> int:
    server = FETCHED[number]
    with site.tracing.window() as window:
        body = site.fetch(mac or site.mac(server))
    if mac is None and f"{name_of(server)} boots" not in body.decode():
        raise FlowFailed(f"the boot script of {name_of(server)} does not boot it:\n{body.decode()}")
    return window


def _override(site: Site, number: int, _: str | None) -> int:
    server = OVERRIDDEN[number]
    before = site.override(server)

    def confirmed() -> int:
        return sum(each.get("server") == name_of(server) for each in site.events("OverrideConfirmed"))

    so_far = confirmed()
    with site.tracing.window() as window:
        site.remove_override(server)
        site.wait_until(
            lambda: confirmed() > so_far, f"gitboot sets the override of {name_of(server)} again and confirms it"
        )
    if (after := site.override(server)) != before:
        raise FlowFailed(f"the override of {name_of(server)} was {before}, and is {after}")
    return window


def _idle(site: Site, *_: object) -> int:
    with site.tracing.window() as window:
        time.sleep(_IDLE_S)
    return window


def _revision() -> str:
    """Return the last commit that changed gitboot, and whether files differ from it."""
    command = ("git", "-C", str(_ROOT), "log", "-1", "--format=%h", "--", "gitboot")
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    changed = ("git", "-C", str(_ROOT), "status", "--porcelain", "--", "gitboot")
    return f"{found}, changed" if subprocess.run(changed, capture_output=True, check=False).stdout else found


FLOWS: Final[dict[str, tuple[str, Callable[[Site, int, str | None], int]]]] = {
    "change": ("a word changes in one Server document, until the boot files are written", _change),
    "get": ("a boot loader fetches a boot script by MAC address, until it has the body", _get),
    "override": ("an override is removed at a BMC, until gitboot has set and confirmed it again", _override),
    "idle": (f"nothing happens for {_IDLE_S} s", _idle),
}


if __name__ == "__main__":
    sys.exit(main())
