"""Every script of the example and of generated fleets is one that a real iPXE understands, to its last word."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from hypothesis import HealthCheck, Phase, given, settings

from gitboot.fleet.validation import load
from gitboot.git.snapshots import open_snapshot
from gitboot.render.paths import File
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import Decisions
from tests.boots.interpreter import Run, run
from tests.helpers import hypothesis_strategies
from tests.helpers.fleets import SEED, at, decided, fleet, make_mac, make_uuid, policy, profile
from tests.helpers.hypothesis_strategies import GeneratedFleet, fleets, installed_record, tree
from tests.render.test_boot_script_parts import make_signed_image

EXAMPLE: Final = Path(__file__).parents[2] / "example-repo"
NOON: Final = at("20T12:00")
SERVERS: Final = 300  # of the larger example

_NAMED: Final = re.compile(r"^(?:kernel|initrd|chain)(?: --\w+(?: \w+)?)* https?://(\S+)", re.MULTILINE)

_OTHERS: Final = re.compile(r"^:aarch64$.*?^goto local_disk$", re.MULTILINE | re.DOTALL)  # this iPXE is for x86


def _select_scripts(files: Mapping[str, File]) -> Iterator[bytes]:
    yield from (file.content for _, file in sorted(files.items()) if file.content.startswith(b"#!ipxe"))


def find_wrong_scripts(scripts: Mapping[str, bytes], folder: Path) -> dict[str, str]:
    """Return the scripts that did not do everything that they should, with the output of iPXE."""
    runs = run(scripts, folder)
    return {name: runs[name].output for name, script in scripts.items() if not _is_right(script.decode(), runs[name])}


def _is_right(script: str, run: Run) -> bool:
    """Return whether all named files were fetched, and all loaded programs started, at the first attempt."""
    script = _OTHERS.sub("", script)
    loads = "imgexec" in script or _NAMED.search(script) is not None
    started = "LOADED" in run.output and "tries again" not in run.output
    return run.ended and set(_NAMED.findall(script)) <= run.fetched and started == loads


def _number_scripts(scripts: set[bytes]) -> dict[str, bytes]:
    return {str(number): script for number, script in enumerate(sorted(scripts))}


def _render_example() -> set[bytes]:
    decisions = decide(load(open_snapshot(EXAMPLE, "WORKTREE")))
    installed = {name: installed_record(decision, NOON) for name, decision in decisions.servers.items()}
    return {*_render_first_boots(decisions), *_select_scripts(tree(decisions, installed, NOON))}


def _render_first_boots(decisions: Decisions) -> set[bytes]:
    """Return the files that are published while all servers are to be installed."""
    return set(_select_scripts(tree(decisions, {name: Record() for name in decisions.servers}, NOON)))


def _render_larger_example() -> set[bytes]:
    """The example with each of its servers ten times."""
    files = {str(path.relative_to(EXAMPLE)): path.read_text() for path in sorted(EXAMPLE.rglob("*")) if path.is_file()}
    servers = [yaml.load(text, yaml.BaseLoader) for path, text in files.items() if path.startswith("servers/")]
    copies = [json.dumps(_copy_server(server, number)) for server in servers for number in range(1, 10)]
    decisions = decided(*copies, files={path: text for path, text in files.items() if not path.startswith(".")})
    assert len(decisions.servers) == SERVERS
    return _render_first_boots(decisions)


def _copy_server(server: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Another machine that boots what this one boots."""
    name, spec = f"{server['metadata']['name']}-{number}", server["spec"]
    own = {
        "uuid": make_uuid(name),
        "serial": f"4J8VM72-{name}",
        "interfaces": [
            {**each, "mac": make_mac(f"{name} {each['mac']}"), "addresses": []} for each in spec["interfaces"]
        ],
    }
    others = {key: value for key, value in spec.items() if key != "bmc"}  # no two have one in common
    return {**server, "metadata": {**server["metadata"], "name": name}, "spec": {**others, **own}}


def _render_generated_fleets() -> set[bytes]:
    """Scripts of any fleets."""
    found: set[bytes] = set()

    @settings(max_examples=100, derandomize=True, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(fleets())
    def collect(fleet: GeneratedFleet) -> None:
        found.update(_select_scripts(tree(hypothesis_strategies.decided(fleet.documents), fleet.records, fleet.at)))

    collect()
    return found


def test_ipxe_runs_every_script_of_the_example(tmp_path: Path) -> None:
    scripts = _render_example()
    assert len(scripts) > 20
    assert find_wrong_scripts(_number_scripts(scripts), tmp_path) == {}


def test_ipxe_runs_every_script_of_a_fleet_of_300(tmp_path: Path) -> None:
    scripts = _render_larger_example()
    assert len(scripts) >= SERVERS
    assert find_wrong_scripts(_number_scripts(scripts), tmp_path) == {}


def test_ipxe_runs_the_scripts_of_generated_fleets_and_finds_the_broken_one(tmp_path: Path) -> None:
    scripts = _number_scripts(_render_generated_fleets())
    assert len(scripts) > 80
    broken = next(name for name, script in scripts.items() if b"\ninitrd --name" in script)
    scripts[broken] = scripts[broken].replace(b"\ninitrd --name", b"\ninitrd --nom", 1)
    assert list(find_wrong_scripts(scripts, tmp_path)) == [broken]


def test_ipxe_without_imgverify_boots_an_image_with_signatures(tmp_path: Path) -> None:
    """Debian's iPXE has neither imgtrust nor imgverify. An iPXE that has them was tried by hand."""
    documents = (fleet(), SEED[1], make_signed_image("kernel, initrd"), profile("web", "flatcar-1"), policy("web"))
    path = f"boot/v1/boot/{make_mac('web01').replace(':', '-')}/boot.ipxe"
    script = tree(decided(*documents), {}, NOON)[path].content
    found = run({"signed": script}, tmp_path)["signed"]
    assert _is_right(script.decode(), found), found.output
    assert "gitboot: this iPXE has no imgverify. It boots the files unverified." in found.output
    assert sorted(each.rpartition("/")[2] for each in found.fetched) == ["initrd", "kernel"]
