"""Every script of the example and of generated fleets is one that a real iPXE understands, to its last word."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, Phase, given, settings

from gitboot.load import load
from gitboot.plan import Record
from gitboot.render.tree import File
from gitboot.resolve import Decisions, decide
from gitboot.source import open_snapshot
from tests.boots.interpreter import Run, run
from tests.fleets import at
from tests.generated import GeneratedFleet, decided, fleets, met, tree

EXAMPLE: Final = Path(__file__).parents[2] / "example-repo"
NOON: Final = at("20T12:00")
MOST: Final = 300  # scripts of generated fleets

_NAMED: Final = re.compile(r"^(?:kernel|initrd|chain)(?: --\w+(?: \w+)?)* https?://(\S+)", re.MULTILINE)

_OTHERS: Final = re.compile(r"^:aarch64$.*?^goto local_disk$", re.MULTILINE | re.DOTALL)  # this iPXE is for x86


def _scripts(files: Mapping[str, File]) -> Iterator[bytes]:
    yield from (file.content for _, file in sorted(files.items()) if file.content.startswith(b"#!ipxe"))


def wrong(scripts: Mapping[str, bytes], folder: Path) -> dict[str, str]:
    """The scripts that did not do all that they say, with what iPXE said."""
    runs = run(scripts, folder)
    return {name: runs[name].said for name, script in scripts.items() if not _right(script.decode(), runs[name])}


def _right(script: str, run: Run) -> bool:
    """Whether all that it names was fetched, and all that it loads started, at the first attempt."""
    script = _OTHERS.sub("", script)
    loads = "imgexec" in script or _NAMED.search(script) is not None
    started = "LOADED" in run.said and "trying again" not in run.said
    return run.ended and set(_NAMED.findall(script)) <= run.fetched and started == loads


def _numbered(scripts: set[bytes]) -> dict[str, bytes]:
    return {str(number): script for number, script in enumerate(sorted(scripts))}


def _of_example() -> set[bytes]:
    decisions: Decisions = decide(load(open_snapshot(EXAMPLE, "WORKTREE")))
    installed = {name: met(decision, NOON) for name, decision in decisions.servers.items()}
    first_boots = {name: Record() for name in decisions.servers}
    return {script for records in (installed, first_boots) for script in _scripts(tree(decisions, records, NOON))}


def _of_generated() -> set[bytes]:
    found: set[bytes] = set()

    @settings(max_examples=600, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(fleets())
    def draw(fleet: GeneratedFleet) -> None:
        if len(found) < MOST:
            found.update(_scripts(tree(decided(fleet.documents), fleet.records, fleet.at)))

    draw()
    return set(sorted(found)[:MOST])


def test_ipxe_runs_every_script_of_the_example(tmp_path: Path) -> None:
    scripts = _of_example()
    assert len(scripts) > 20
    assert wrong(_numbered(scripts), tmp_path) == {}


def test_ipxe_runs_the_scripts_of_generated_fleets_and_finds_the_one_that_is_broken(tmp_path: Path) -> None:
    scripts = _numbered(_of_generated())
    assert len(scripts) == MOST
    broken = next(name for name, script in scripts.items() if b"\ninitrd --name" in script)
    scripts[broken] = scripts[broken].replace(b"\ninitrd --name", b"\ninitrd --nom", 1)
    assert list(wrong(scripts, tmp_path)) == [broken]
