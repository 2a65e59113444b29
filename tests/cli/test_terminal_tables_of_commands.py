"""Every table that a command prints, of a fleet whose names are as long as names may be."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from rich.cells import cell_len

import gitboot.cli.commands
from tests.helpers.fleets import document, image, policy, profile
from tests.helpers.instance_with_bmcs import Rack, typed

SERVERS: Final = tuple(f"{'s' * 61}-{number}" for number in range(2))  # 63 letters each
IMAGE, OTHER = (f"flatcar-{'i' * 53}-{number}" for number in (1, 2))
STREAM, PROFILE, POLICY = ("t" * 63, "p" * 63, "b" * 63)

POOL: Final = (
    image(IMAGE),
    image(OTHER),
    document("ImageStream", STREAM, f"current: {IMAGE}, rollout: {{image: {OTHER}, percent: 50}}"),
    profile(PROFILE, f"stream: {STREAM}", f"vars: {{console: '{'机架' * 60}', path: {'a/long/one/' * 20}}}"),
    policy(POLICY, boots=PROFILE, often="Once"),
)


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """Servers of which one is installed with what is no longer wanted, and machines that nobody knows."""
    with Rack(tmp_path_factory.mktemp("rack"), pool=POOL) as made:
        for name in SERVERS:
            made.add(name, provision=1)
        made.push()
        made.once(*made.spooling, records="fresh")
        made.blades[SERVERS[0]].provision = 2
        made.push("A subject that says at length why this server is to be installed once more " * 2)
        made.once(*made.spooling)
        yield made


COMMANDS: Final = {  # by the module that prints it, and a word where it prints several tables
    "plan": "plan {work} --records fresh",
    "plan --timeline": "plan {work} --timeline {server}",
    "explain": "explain {server} --path {work}",
    "explain KIND": "explain Server",
    "plan IMAGES": "images {work} --records fresh",
    "history": "history {server} --path {work}",
    "diff_and_comment": "diff --path {work} HEAD~1..HEAD",
    "artifacts": "artifacts verify {work} --assets {folder}",
    "status": "status --state {state}",
    "provisioning_records": "records show --state {state}",
    "bmc": "bmc get --state {state} --credentials {folder}/credentials",
    "bmc POWER": "bmc power get --state {state} --credentials {folder}/credentials",
    "verify_mirror": "verify-mirror --tree {folder}/output {folder}/empty",
}
ELSEWHERE: Final = {  # their rows need other systems: the same function with the same bounds, tested where those are
    "compare_old_system": "another provisioning system",
    "secret": "an endpoint that gives secrets",
}


IMPORTED: Final = r"from gitboot\.cli\.terminal import (\([^)]*|[^\n]*)\btable\b"


def test_each_module_that_prints_a_table_is_among_them() -> None:
    folder = Path(gitboot.cli.commands.__path__[0])
    printing = {file.stem for file in folder.glob("*.py") if re.search(IMPORTED, file.read_text())}
    assert printing == {each.partition(" ")[0] for each in COMMANDS} | ELSEWHERE.keys()


@pytest.mark.parametrize("columns", [100, 60])
@pytest.mark.parametrize("printer", COMMANDS)
def test_no_table_is_wider_than_what_it_is_read_on(
    rack: Rack, printer: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    (rack.folder / "empty").mkdir(exist_ok=True)
    words = {"work": rack.repository.work, "server": SERVERS[0], "state": rack.state, "folder": rack.folder}
    done = typed(*(word.format(**words) for word in COMMANDS[printer].split()))
    lines = [click.unstyle(line) for line in done.out.splitlines()]
    assert len(lines) > 1, done
    wide = [line for line in lines if cell_len(line) > columns and not _COPIED.fullmatch(line)]
    assert not wide, "\n".join(wide)


_COPIED: Final = re.compile(
    r"\s*((see it again: )?gitboot .*|(Gitboot-Ack:|digest) .*|\S+)"
)  # what helps when it is copied whole
