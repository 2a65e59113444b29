"""The how-to about Butane: its files, its check, and its CI. A result of the real `butane` is user data for gitboot."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.helpers.documentation import ROOT
from tests.helpers.fleets import SEED, decision, image, profile

PAGE: Final = (ROOT / "docs" / "how-to" / "butane.md").read_text()
BLOCKS: Final = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SCRIPT: Final = next(text for language, text in BLOCKS if language == "sh")
SOURCE: Final = next(text for language, text in BLOCKS if language == "butane")
CI: Final = [text for language, text in BLOCKS if language == "yaml"][1:]
RESULT: Final = ROOT / "tests" / "data" / "butane" / "node.ign.j2"  # by butane 0.29.0
# No package has butane. This program prints what butane 0.29.0 printed for the source, and rejects another source.
RECORDED: Final = """\
#!/bin/sh
[ "$*" = "--strict --pretty --files-dir . ./userdata/node.bu" ] || exit 2
cmp -s userdata/node.bu "$RECORDED_SOURCE" || { echo "Error translating config" >&2; exit 1; }
cat "$RECORDED_RESULT"
"""


@pytest.fixture
def fleet_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "fleet"
    (folder / "userdata").mkdir(parents=True)
    (folder / "userdata" / "node.bu").write_text(SOURCE)
    (folder / "butane.sh").write_text(SCRIPT)
    return folder


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return the environment of a host with `butane`: the real program, if the host has it."""
    if shutil.which("butane") is not None:
        return dict(os.environ)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "butane").write_text(RECORDED)
    (programs / "butane").chmod(0o755)
    (tmp_path / "recorded.bu").write_text(SOURCE)
    recorded = {"RECORDED_SOURCE": str(tmp_path / "recorded.bu"), "RECORDED_RESULT": str(RESULT)}
    return {**os.environ, **recorded, "PATH": f"{programs}:{os.environ['PATH']}"}


def run(folder: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "butane.sh", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_the_check_fails_if_the_result_is_missing_differs_or_cannot_be_made(
    fleet_folder: Path, environment: dict[str, str]
) -> None:
    result = fleet_folder / "userdata" / "node.ign.j2"
    missing = run(fleet_folder, environment, "--check")
    assert missing.returncode != 0 and not result.exists()
    made = run(fleet_folder, environment)
    assert (made.returncode, made.stderr, result.read_text()) == (0, "", RESULT.read_text())
    assert run(fleet_folder, environment, "--check").returncode == 0
    result.write_text(result.read_text().replace("core", "admin"))
    differs = run(fleet_folder, environment, "--check")
    assert differs.returncode != 0 and '"name": "admin"' in differs.stdout
    assert differs.stderr.strip() in PAGE
    run(fleet_folder, environment)
    (fleet_folder / "userdata" / "node.bu").write_text(SOURCE.replace("version: 1.1.0", "version: 9.9.9"))
    invalid = run(fleet_folder, environment, "--check")
    assert invalid.returncode != 0 and "Error translating config" in invalid.stderr


def test_a_result_of_butane_is_user_data_with_the_values_of_each_server() -> None:
    documents = (
        *SEED[:2],
        image("flatcar-1", "userData: Ignition/3.4"),
        SEED[3],
        profile("web", "flatcar-1", "userData: {format: Ignition/3.4, template: userdata/node.ign.j2}"),
        *SEED[5:],
    )
    found = decision("web01", *documents, files={"userdata/node.ign.j2": RESULT.read_text()})
    assert found.policy is not None and found.policy.boot is not None and found.policy.boot.user_data is not None
    (text,) = found.policy.boot.user_data.files.values()
    units = {each["name"]: each["contents"] for each in json.loads(text)["systemd"]["units"]}
    assert "set-hostname web01\n" in units["hostname.service"]


def test_each_ci_runs_the_same_check_with_the_same_commit_of_butane() -> None:
    github, gitlab, gitea = (yaml.safe_load(text) for text in CI)

    def steps(workflow: dict[str, Any]) -> str:
        text: str = workflow["jobs"]["butane"]["steps"][-1]["run"]
        return text.removeprefix("cd /tmp/fleet\n")

    assert steps(github) == steps(gitea) == gitlab["butane"]["script"][0]
    commits = {github["env"]["BUTANE"], gitea["env"]["BUTANE"], gitlab["butane"]["variables"]["BUTANE"]}
    assert len(commits) == 1 and re.fullmatch("[0-9a-f]{40}", commits.pop())
    assert steps(github).endswith("sh .gitboot/butane.sh --check\n")
    checked = subprocess.run(["sh", "-n"], input=steps(github), text=True, check=False)
    assert checked.returncode == 0
    pinned = re.search(r"actions/checkout@\S+", (ROOT / "example-repo/.github/workflows/gitboot.yml").read_text())
    assert pinned is not None and pinned[0] in CI[0]
