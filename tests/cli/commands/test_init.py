"""`gitboot init`: what it writes is a valid fleet that editors and CI can check; and shell completion."""

from __future__ import annotations

import json
import re
import subprocess
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest
import yaml

from gitboot.cli.commands.init import CI, THIS_VERSION, ci_path, requirement, requirement_of, seed
from gitboot.cli.main import cli
from gitboot.errors import UsageError
from gitboot.fleet.validation import load
from gitboot.git.snapshots import open_snapshot
from gitboot.model.fleet import Evidence
from gitboot.problems import Code, Severity
from gitboot.resolve.fleet_decisions import decide
from tests.helpers.fleets import at
from tests.helpers.git_repositories import Work

ROOT = Path(__file__).parents[3]


def gitboot(*arguments: str | Path) -> None:
    cli.main([str(each) for each in arguments], prog_name="gitboot", standalone_mode=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("init") / "new" / "fleet"
    gitboot("init", directory)
    return directory


def test_it_writes_a_fleet_without_an_error(written: Path) -> None:
    repository = load(open_snapshot(written, None))
    assert {each.code for each in decide(repository).warnings} == {Code.PLACEHOLDER_DIGEST}
    assert repository.fleet.spec.provisioning.evidence is Evidence.REPORTED
    assert sorted(map(str, repository.origins)) == [
        *("BootImage/flatcar-4459.2.4", "BootImage/memtest86plus-7.20", "BootPolicy/web"),
        *("BootProfile/memory-test", "BootProfile/web", "Fleet/example", "Maintenance/memory-test", "Server/web01"),
    ]


def test_finding_r11_the_digests_that_it_writes_are_warned_about(written: Path) -> None:
    warnings = decide(load(open_snapshot(written, None))).warnings
    assert [(each.path, each.message, each.severity) for each in warnings] == [
        ("images/flatcar-4459.2.4.yaml", "BootImage/flatcar-4459.2.4 has 2 placeholder digests", Severity.WARNING),
        ("images/memtest86plus-7.20.yaml", "BootImage/memtest86plus-7.20 has 1 placeholder digest", Severity.WARNING),
    ]
    for each in warnings:
        line = (written / each.path).read_text().splitlines()[each.line - 1]
        assert line[each.column - 1 :].startswith("feedc0de")


def test_finding_r3_its_server_reports_the_end_of_its_installation(written: Path, tmp_path: Path) -> None:
    gitboot("render", written, "--records", "fresh", "--at", "2026-12-01T12:00:00Z", "--out", tmp_path / "output")
    (content, *_) = {path.read_bytes() for path in (tmp_path / "output").rglob("config.ign")}
    units = {each["name"]: each["contents"] for each in json.loads(content)["systemd"]["units"]}
    steps = re.findall("^ExecStart=(.*)$", units["install.service"], re.MULTILINE)
    assert [step.split()[0] for step in steps] == [
        f"/usr/bin/{name}" for name in ("flatcar-install", "curl", "systemctl")
    ]
    assert "/provisioned/" in steps[1]
    assert "OnFailure=report-failure.service" in units["install.service"]
    assert "/failed/" in units["report-failure.service"]


def test_its_server_is_installed_once_and_repaired_in_its_window(written: Path) -> None:
    decision = decide(load(open_snapshot(written, None))).servers["web01"]
    assert decision.policy is not None and decision.policy.boot is not None
    assert (decision.policy.boot.image, str(decision.policy.network_boot)) == ("flatcar-4459.2.4", "Once")
    (maintenance,) = decision.maintenances
    assert maintenance.active(at("2027-03-06T22:00")) and not maintenance.active(at("2027-03-07T03:00"))


def test_each_document_names_the_schema_of_its_kind(written: Path) -> None:
    documents = sorted(written.rglob("*.yaml"))
    documents = [path for path in documents if not path.relative_to(written).as_posix().startswith(".")]
    assert len(documents) == 8
    for path in documents:
        text = path.read_text()
        (schema,) = re.findall(r"^# yaml-language-server: \$schema=(\S+)$", text, re.MULTILINE)
        assert json.loads((path.parent / schema).read_text())["title"] == yaml.safe_load(text)["kind"]


def test_the_schemas_are_those_of_this_version(written: Path) -> None:
    schemas = {path.name: path.read_text() for path in (written / ".gitboot" / "schemas").iterdir()}
    assert schemas == {path.name: path.read_text() for path in (ROOT / "schemas").iterdir()}


@pytest.mark.parametrize("path", CI)
def test_ci_is_for_this_version(written: Path, path: str) -> None:
    assert (written / path).read_text() == seed(path, requirement() or THIS_VERSION)
    assert "@GITBOOT@" not in (written / path).read_text()


def test_ci_installs_what_is_asked_for(tmp_path: Path) -> None:
    wanted = 'gitboot @ https://example.net/a"b.whl#sha256=12'
    gitboot("init", tmp_path, "--gitboot", wanted)
    assert yaml.safe_load((tmp_path / CI[0]).read_text())["env"]["GITBOOT"] == wanted
    assert yaml.safe_load((tmp_path / CI[1]).read_text())["variables"]["GITBOOT"] == wanted


@pytest.mark.parametrize(
    ("installer", "direct", "expected"),
    [
        pytest.param("pip", None, THIS_VERSION, id="from an index"),
        pytest.param("dpkg", None, None, id="from a package"),
        pytest.param(
            "pip",
            {"url": "https://example.net/gitboot.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            "gitboot @ git+https://example.net/gitboot.git@c0ffee",
            id="from Git",
        ),
        pytest.param(
            "uv",
            {"url": "https://example.net/gitboot.whl", "archive_info": {"hashes": {"sha256": "12"}}},
            "gitboot @ https://example.net/gitboot.whl#sha256=12",
            id="from a file elsewhere",
        ),
        pytest.param("pip", {"url": "file:///srv/gitboot.whl", "archive_info": {}}, None, id="from a file here"),
        pytest.param("pip", {"url": "file:///nowhere/gitboot", "dir_info": {}}, None, id="from a folder"),
    ],
)
def test_what_can_be_installed_is_what_was(
    tmp_path: Path, installer: str, direct: dict[str, object] | None, expected: str | None
) -> None:
    assert requirement_of(noted(tmp_path, installer, direct)) == expected


def test_a_checkout_is_installed_from_where_its_commit_was_pushed(tmp_path: Path) -> None:
    work = Work(tmp_path / "gitboot here")
    head = work.commit({"a": "1"})
    made = noted(tmp_path, "pip", {"url": f"file://{tmp_path}/gitboot%20here", "dir_info": {"editable": True}})
    assert requirement_of(made) is None
    work.git("remote", "add", "origin", "https://ada:secret@example.net/gitboot.git")
    assert requirement_of(made) is None
    work.git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert requirement_of(made) == f"gitboot @ git+https://example.net/gitboot.git@{head}"
    work.commit({"a": "2"})
    assert requirement_of(made) is None


def test_fleets_of_one_repository_have_ci_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "app.py").write_text("ours")
    for folder in ("infra/boot", "lab"):
        gitboot("init", tmp_path, "--subpath", folder)
    err = capsys.readouterr().err
    assert (
        ".gitlab-ci.yml is there already, and left as it is: let it have `include: [{local: .gitlab/gitboot-lab" in err
    )
    assert "let it have a hook that runs `gitboot validate lab`" in err
    assert yaml.safe_load((tmp_path / CI[1]).read_text()) == {"include": [{"local": ".gitlab/gitboot-infra-boot.yml"}]}
    jobs = [yaml.safe_load((tmp_path / ci_path(CI[1], folder)).read_text()) for folder in ("infra/boot", "lab")]
    assert jobs[0].keys() & jobs[1].keys() == {"variables"}
    for folder, own in (("infra/boot", "INFRA_BOOT"), ("lab", "LAB")):
        workflows = [(tmp_path / ci_path(name, folder)).read_text() for name in (CI[0], CI[3])]
        assert [yaml.safe_load(each)["env"]["GITBOOT_SUBPATH"] for each in workflows] == [folder] * 2
        assert {each.removeprefix("vars.") for each in re.findall(r"vars\.\w+", "".join(workflows))} == {
            *(f"GITBOOT_ACCEPTED_{own}", f"GITBOOT_IMAGE_KEYS_{own}", f"GITBOOT_ROLLOUT_{own}"),
            *(f"GITBOOT_ROLLOUT_STEPS_{own}", f"GITBOOT_ROLLOUT_AFTER_{own}"),
        }
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("GITBOOT_SUBPATH", folder)
        gitboot("validate")
    monkeypatch.delenv("GITBOOT_SUBPATH")
    with pytest.raises(UsageError, match="lab is not empty"):
        gitboot("init", tmp_path, "--subpath", "lab")


def noted(folder: Path, installer: str, direct: dict[str, object] | None) -> PathDistribution:
    place = folder / "gitboot.dist-info"
    place.mkdir()
    (place / "INSTALLER").write_text(f"{installer}\n")
    if direct is not None:
        (place / "direct_url.json").write_text(json.dumps(direct))
    return PathDistribution(place)


def test_every_command_that_it_tells_of_works_there(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written)
    told = re.findall(r"^\$ gitboot ([^#\n]+)", (written / "README.md").read_text(), re.MULTILINE)
    assert len(told) == 3
    for command in told:
        gitboot(*command.split())
    told = re.findall(r"`gitboot ([^`]+)`", (written / "README.md").read_text())
    assert told == ["explain --schemas .gitboot/schemas"]


def test_links_in_its_readme_lead_somewhere(written: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", (written / "README.md").read_text())
    assert len(links) == 7
    assert [link for link in links if not (written / link).exists()] == []


def test_it_says_what_to_do_next(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gitboot("init", tmp_path / "fleet")
    out = capsys.readouterr().out
    for command in (f"cd {tmp_path}/fleet", "gitboot validate", "gitboot plan --records fresh"):
        assert f"\n  {command}" in out


@pytest.mark.parametrize("there", ["README.md", ".gitignore", "empty/"])
def test_a_directory_that_is_not_empty_is_left_alone(tmp_path: Path, there: str) -> None:
    (tmp_path / there).mkdir() if there.endswith("/") else (tmp_path / there).write_text("mine")
    with pytest.raises(UsageError, match=f"{tmp_path} is not empty"):
        gitboot("init", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [there.rstrip("/")]


def test_a_git_repository_without_a_file_is_taken(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    gitboot("init", tmp_path)
    assert decide(load(open_snapshot(tmp_path, None))).servers.keys() == {"web01"}


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "fleet").write_text("mine")
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        gitboot("init", tmp_path / "fleet")
    with pytest.raises(UsageError, match="cannot be written"):
        gitboot("init", tmp_path / "fleet" / "below")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    gitboot("completion", shell)
    assert f"_GITBOOT_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_commands_and_options_are_completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, expected in (("gitboot val", "plain,validate"), ("gitboot validate --fo", "plain,--format")):
        monkeypatch.setenv("_GITBOOT_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        with pytest.raises(SystemExit):
            gitboot()
        assert capsys.readouterr().out.split() == [expected]


def test_what_it_says_to_type_can_be_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gitboot("init", tmp_path / "my fleet's")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  cd ")]
    done = subprocess.run(["sh", "-c", f"{line} && cat fleet.yaml"], capture_output=True, text=True, check=False)
    assert "kind: Fleet" in done.stdout
