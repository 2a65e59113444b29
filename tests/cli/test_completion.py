"""Shell completion: which words are proposed, and that a fault proposes none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from click.shell_completion import ShellComplete

from gitboot.cli.completion import read_document_names
from gitboot.cli.main import cli
from tests.helpers.cases import for_each
from tests.helpers.instance_with_bmcs import Rack

FILES: Final = {
    "servers/web.yaml": (
        "apiVersion: gitboot.dev/v1alpha1\nkind: Server\nmetadata: {name: web01, labels: {role: web}}\n"
        '---\napiVersion: x\nkind: Server\nmetadata:\n  labels:\n    name: no\n  name: "web02"\nspec: {}\n'
    ),
    "db.yml": "{kind: Server, metadata: {labels: {a: b}, name: db01}}\n",
    "stream.yaml": "kind: ImageStream\nmetadata:\n  name: stable\n",
    "broken.yaml": "kind: Server\nmetadata: [\n",
    ".git/x.yaml": "kind: Server\nmetadata: {name: hidden}\n",
    "notes.txt": "kind: Server\nmetadata: {name: text}\n",
}


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def complete_words(*words: str) -> list[str]:
    """The words for the last of these words."""
    complete = ShellComplete(cli, {}, "gitboot", "_GITBOOT_COMPLETE")
    return [each.value for each in complete.get_completions(list(words[:-1]), words[-1])]


SERVERS: Final = ["db01", "web01", "web02"]


def test_finding_r13_names_of_documents_are_found_without_parsing(fleet: Path) -> None:
    assert sorted(read_document_names(fleet, "Server")) == SERVERS
    assert sorted(read_document_names(fleet, "ImageStream")) == ["stable"]


@for_each(
    "words",
    [
        *("boot-script", "history", "records show", "records hand-over", "bmc get", "bmc resolve", "bmc power reset"),
        *("secret fetches", "plan --server", "plan --timeline", "events --server", "new server x --like"),
        *("compare-old-system --server", "bmc get db01"),
    ],
)
def test_finding_r13_completion_knows_server_names(fleet: Path, words: str) -> None:
    assert complete_words(*words.split(), "web") == ["web01", "web02"], words


def test_finding_r13_completion_knows_streams_kinds_and_guards(fleet: Path) -> None:
    assert complete_words("rollout", "advance", "") == ["stable"]
    assert complete_words("new", "image", "talo") == ["talos", "talos-factory"]
    assert complete_words("explain", "Boot") == ["BootImage", "BootPolicy", "BootProfile"]
    assert complete_words("explain", "web01") == ["web01"]
    assert complete_words("history", "web01") == ["web01"]
    assert complete_words("history", "ImageStream/") == ["ImageStream/stable"]
    assert complete_words("records", "set", "pr") == ["provisioned"]
    assert complete_words("approve", "01234567", "--guard", "maxRe") == ["maxReinstalls", "maxResets"]


def test_finding_r13_completion_reads_the_fleet_of_path(
    fleet: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert complete_words("history", "web") == []
    assert complete_words("history", "--path", str(fleet), "web") == ["web01", "web02"]


def test_finding_r13_completion_with_a_state_directory_knows_its_machines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Rack(tmp_path) as rack:
        rack.add("web07", provision=1)
        rack.push()
        rack.once(records="adopt")
        assert complete_words("records", "show", "--state", str(rack.state), "w") == ["web07"]
        monkeypatch.setenv("GITBOOT_STATE", str(rack.state))
        assert complete_words("events", "--server", "") == ["web07"]
        assert complete_words("approve", "") == []
        rack.blades["web07"].provision += 1
        rack.push()
        rack.once()
        (digest,) = complete_words("approve", "")
        assert rack.said("approve", digest, "--all-guards", "--reason", "INC-1").startswith("approved maxReinstalls")


@pytest.mark.parametrize("state", ["absent", "empty", "damaged"])
def test_finding_r13_a_fault_proposes_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "state"
    if state != "absent":
        folder.mkdir()
    if state == "damaged":
        (folder / "ledger.sqlite").write_bytes(b"no ledger" * 99)
    assert complete_words("records", "show", "--state", str(folder), "") == []
    assert complete_words("approve", "--state", str(folder), "") == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("shell", "words"), [("bash", "gitboot history we"), ("zsh", "gitboot history we")])
def test_finding_r13_a_shell_gets_the_words(fleet: Path, shell: str, words: str) -> None:
    asked = {"_GITBOOT_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "gitboot"], cwd=fleet, env={**os.environ, **asked}, capture_output=True, text=True
    )
    assert ("web01" in done.stdout, "web02" in done.stdout, done.stderr) == (True, True, "")
