"""The how-to about Butane: its files, its check, and its CI. A result of the real `butane` is user data for gitboot."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.helpers.documentation import ROOT
from tests.helpers.fleets import SEED, decision, image, profile
from tests.helpers.git_repositories import ENVIRONMENT, WorkTree

PAGE: Final = (ROOT / "docs" / "how-to" / "butane.md").read_text()
BLOCKS: Final = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SCRIPT, BUILD = (text for language, text in BLOCKS if language == "sh")
SOURCE: Final = next(text for language, text in BLOCKS if language == "butane")
CI: Final = [text for language, text in BLOCKS if language == "yaml"][1:]
RESULT: Final = ROOT / "tests" / "data" / "butane" / "node.ign.j2"  # by butane 0.29.0
# A compiler: the page calls it with these words.
COPY: Final = """\
#!/bin/sh
[ "$CGO_ENABLED $*" = "0 build -mod=vendor -trimpath -o bin/butane internal/main.go" ] || exit 2
mkdir -p bin && cp internal/main.go bin/butane && chmod +x bin/butane
"""
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
    assert differs.stderr == (
        "./userdata/node.ign.j2 does not match ./userdata/node.bu. Run sh .gitboot/butane.sh, then commit it.\n"
    )
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


def test_each_ci_runs_the_same_check_with_butane_of_one_commit() -> None:
    github, gitlab = (yaml.safe_load(text) for text in CI)
    commands = github["jobs"]["butane"]["steps"][-1]["run"]
    assert gitlab["butane"]["script"] == [commands]
    assert commands.splitlines() == [
        "sh .gitboot/build-butane.sh /tmp/butane",
        'PATH="/tmp/butane/bin:$PATH" sh .gitboot/butane.sh --check',
    ]
    assert {"`.gitboot/butane.sh`", "`.gitboot/build-butane.sh`"} <= set(
        re.findall(r"Save this script as (`.+?`)", PAGE)
    )
    pinned = re.search(r"actions/checkout@\S+", (ROOT / "example-repo/.github/workflows/gitboot.yml").read_text())
    assert pinned is not None and pinned[0] in CI[0]


def test_the_build_checks_out_one_commit_and_leaves_the_program_where_the_jobs_look_for_it(tmp_path: Path) -> None:
    """A repository of the same layout takes the place of the original, and a copy takes the place of the compiler."""
    (commit,) = re.findall(r"\b[0-9a-f]{40}\b", BUILD)
    assert "https://github.com/coreos/butane" in BUILD
    work = WorkTree(tmp_path / "butane")
    old = work.commit({"internal/main.go": "#!/bin/sh\necho old\n"}, message="Begin")
    work.commit({"internal/main.go": "#!/bin/sh\necho new\n"}, message="Change")
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs" / "go").write_text(COPY)
    (tmp_path / "programs" / "go").chmod(0o755)
    script = BUILD.replace(commit, old).replace("https://github.com/coreos/butane", f"file://{work.path}")
    (tmp_path / "build-butane.sh").write_text(script)
    environment = {**os.environ, **ENVIRONMENT, "PATH": f"{tmp_path / 'programs'}:{os.environ['PATH']}"}
    command = ["sh", "build-butane.sh", str(tmp_path / "built")]
    for _ in range(2):  # also if the folder exists
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
        built = subprocess.run([tmp_path / "built" / "bin" / "butane"], capture_output=True, text=True, check=True)
        assert built.stdout == "old\n"
    (tmp_path / "programs" / "go").write_text("#!/bin/sh\nexit 1\n")
    assert subprocess.run(command, cwd=tmp_path, env=environment, check=False).returncode != 0
