"""`gitboot init`: what it writes is a valid fleet; and the CI of fleets, on a repository with a base and a branch."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import PathDistribution
from pathlib import Path
from typing import Any

import pytest
import yaml

from gitboot import __version__
from gitboot.cli.commands.init import (
    CI,
    PACKAGES,
    THIS_VERSION,
    build_ci_file_path,
    build_seed_file,
    find_installed_requirement,
    find_requirement,
)
from gitboot.cli.main import cli
from gitboot.errors import UsageError
from gitboot.fleet.validation import load
from gitboot.git.snapshots import open_snapshot
from gitboot.model.fleet import Evidence
from gitboot.problems import Code, Severity
from gitboot.publish.manifest import Head, TreeOrigin, render_head
from gitboot.resolve.fleet_decisions import decide
from gitboot.resolve.provisioning_record import encode_records
from tests.helpers.artifact_servers import artifact_server
from tests.helpers.fleets import at, server
from tests.helpers.forges import (
    HARMLESS,
    INVALID,
    JOBS,
    PIPELINE,
    CommentHost,
    Fleet,
    fill_hashes,
    recreate_folder,
    run_on_github,
    run_on_gitlab,
    run_step,
    write_programs,
)
from tests.helpers.git_repositories import Minisign, WorkTree, find_fingerprint, gpg_people, sign_with_gpg

ROOT = Path(__file__).parents[3]


def gitboot(*arguments: str | Path) -> None:
    cli.main([str(each) for each in arguments], prog_name="gitboot", standalone_mode=False)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("init") / "new" / "fleet"
    gitboot("init", directory)
    return directory


def test_init_writes_a_fleet_without_an_error(written: Path) -> None:
    repository = load(open_snapshot(written, None))
    assert {each.code for each in decide(repository).warnings} == {Code.PLACEHOLDER_DIGEST}
    assert repository.fleet.spec.provisioning.evidence is Evidence.REPORTED
    assert sorted(map(str, repository.origins)) == [
        *("BootImage/flatcar-4459.2.4", "BootImage/memtest86plus-7.20", "BootPolicy/web"),
        *("BootProfile/memory-test", "BootProfile/web", "Fleet/example", "Maintenance/memory-test", "Server/web01"),
    ]


def test_finding_r11_placeholder_digests_of_the_new_fleet_are_warned_about(written: Path) -> None:
    warnings = decide(load(open_snapshot(written, None))).warnings
    assert [(each.path, each.message, each.severity) for each in warnings] == [
        ("images/flatcar-4459.2.4.yaml", "BootImage/flatcar-4459.2.4 has 2 placeholder digests", Severity.WARNING),
        ("images/memtest86plus-7.20.yaml", "BootImage/memtest86plus-7.20 has 1 placeholder digest", Severity.WARNING),
    ]
    for each in warnings:
        line = (written / each.path).read_text().splitlines()[each.line - 1]
        assert line[each.column - 1 :].startswith("feedc0de")


def test_finding_r3_the_server_of_the_new_fleet_reports_the_end_of_its_installation(
    written: Path, tmp_path: Path
) -> None:
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


def test_the_server_of_the_new_fleet_is_installed_once_and_repaired_in_its_window(written: Path) -> None:
    decision = decide(load(open_snapshot(written, None))).servers["web01"]
    assert decision.policy is not None and decision.policy.boot is not None
    assert (decision.policy.boot.image, str(decision.policy.network_boot)) == ("flatcar-4459.2.4", "Once")
    (maintenance,) = decision.maintenances
    assert maintenance.is_active(at("2027-03-06T22:00")) and not maintenance.is_active(at("2027-03-07T03:00"))


def test_each_document_names_the_schema_of_its_kind(written: Path) -> None:
    documents = sorted(written.rglob("*.yaml"))
    documents = [path for path in documents if not path.relative_to(written).as_posix().startswith(".")]
    assert len(documents) == 8
    for path in documents:
        text = path.read_text()
        (schema,) = re.findall(r"^# yaml-language-server: \$schema=(\S+)$", text, re.MULTILINE)
        assert json.loads((path.parent / schema).read_text())["title"] == yaml.safe_load(text)["kind"]


def test_the_new_fleet_has_the_schemas_of_this_version(written: Path) -> None:
    schemas = {path.name: path.read_text() for path in (written / ".gitboot" / "schemas").iterdir()}
    assert schemas == {path.name: path.read_text() for path in (ROOT / "schemas").iterdir()}


@pytest.mark.parametrize("path", CI)
def test_the_new_fleet_has_the_ci_of_this_version(written: Path, path: str) -> None:
    assert (written / path).read_text() == build_seed_file(path, find_installed_requirement() or THIS_VERSION)
    assert "@GITBOOT@" not in (written / path).read_text()


def test_ci_installs_the_requested_gitboot(tmp_path: Path) -> None:
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
def test_the_requirement_for_ci_is_what_was_installed(
    tmp_path: Path, installer: str, direct: dict[str, object] | None, expected: str | None
) -> None:
    assert find_requirement(write_dist_info(tmp_path, installer, direct)) == expected


def test_a_checkout_is_installed_from_the_remote_that_has_its_commit(tmp_path: Path) -> None:
    work = WorkTree(tmp_path / "gitboot here")
    head = work.commit({"a": "1"})
    made = write_dist_info(
        tmp_path, "pip", {"url": f"file://{tmp_path}/gitboot%20here", "dir_info": {"editable": True}}
    )
    assert find_requirement(made) is None
    work.git("remote", "add", "origin", "https://ada:secret@example.net/gitboot.git")
    assert find_requirement(made) is None
    work.git("update-ref", "refs/remotes/origin/main", "HEAD")
    assert find_requirement(made) == f"gitboot @ git+https://example.net/gitboot.git@{head}"
    work.commit({"a": "2"})
    assert find_requirement(made) is None


def test_each_fleet_of_a_repository_has_its_own_ci(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "app.py").write_text("ours")
    for folder in ("infra/boot", "lab"):
        gitboot("init", tmp_path, "--subpath", folder)
    err = capsys.readouterr().err
    assert ".gitlab-ci.yml already exists and was not changed: add `include: [{local: .gitlab/gitboot-lab" in err
    assert "add a hook that runs `gitboot validate lab`" in err
    assert yaml.safe_load((tmp_path / CI[1]).read_text()) == {"include": [{"local": ".gitlab/gitboot-infra-boot.yml"}]}
    jobs = [
        yaml.safe_load((tmp_path / build_ci_file_path(CI[1], folder)).read_text()) for folder in ("infra/boot", "lab")
    ]
    assert jobs[0].keys() & jobs[1].keys() == {"variables"}
    for folder, own in (("infra/boot", "INFRA_BOOT"), ("lab", "LAB")):
        names = [name for name in CI if "workflows" in name]
        workflows = [(tmp_path / build_ci_file_path(name, folder)).read_text() for name in names]
        assert [yaml.safe_load(each)["env"]["GITBOOT_SUBPATH"] for each in workflows] == [folder] * len(names)
        assert {each.removeprefix("vars.") for each in re.findall(r"vars\.\w+", "".join(workflows))} == {
            *(f"GITBOOT_ACCEPTED_{own}", f"GITBOOT_IMAGE_KEYS_{own}", f"GITBOOT_ROLLOUT_{own}"),
            f"GITBOOT_SIGNATURES_{own}",
            *(f"GITBOOT_ROLLOUT_STEPS_{own}", f"GITBOOT_ROLLOUT_AFTER_{own}", f"GITBOOT_UPDATE_IMAGES_{own}"),
        }
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("GITBOOT_SUBPATH", folder)
        gitboot("validate")
    monkeypatch.delenv("GITBOOT_SUBPATH")
    with pytest.raises(UsageError, match="lab is not empty"):
        gitboot("init", tmp_path, "--subpath", "lab")


def write_dist_info(folder: Path, installer: str, direct: dict[str, object] | None) -> PathDistribution:
    place = folder / "gitboot.dist-info"
    place.mkdir()
    (place / "INSTALLER").write_text(f"{installer}\n")
    if direct is not None:
        (place / "direct_url.json").write_text(json.dumps(direct))
    return PathDistribution(place)


def test_every_command_in_the_readme_works_there(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(written)
    told = re.findall(r"^\$ gitboot ([^#\n]+)", (written / "README.md").read_text(), re.MULTILINE)
    assert len(told) == 3
    for command in told:
        gitboot(*command.split())
    told = re.findall(r"`gitboot ([^`]+)`", (written / "README.md").read_text())
    assert told == ["explain --schemas .gitboot/schemas"]


def test_links_in_the_readme_exist(written: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", (written / "README.md").read_text())
    assert len(links) == 7
    assert [link for link in links if not (written / link).exists()] == []


def test_init_prints_the_next_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_an_empty_git_repository_is_accepted(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    gitboot("init", tmp_path)
    assert decide(load(open_snapshot(tmp_path, None))).servers.keys() == {"web01"}


def test_a_file_is_rejected_as_a_directory(tmp_path: Path) -> None:
    (tmp_path / "fleet").write_text("mine")
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        gitboot("init", tmp_path / "fleet")
    with pytest.raises(UsageError, match="cannot be written"):
        gitboot("init", tmp_path / "fleet" / "below")


@pytest.mark.parametrize("shell_name", ["bash", "zsh", "fish"])
def test_init_prints_how_to_complete_commands_in_a_shell(shell_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    gitboot("completion", shell_name)
    assert f"_GITBOOT_COMPLETE={shell_name}_complete" in capsys.readouterr().out


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


def test_the_printed_commands_can_be_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gitboot("init", tmp_path / "my fleet's")
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  cd ")]
    done = subprocess.run(["sh", "-c", f"{line} && cat fleet.yaml"], capture_output=True, text=True, check=False)
    assert "kind: Fleet" in done.stdout


REINSTALLS = {"servers/web01.yaml": ("provision: 1", "provision: 2")}


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs as a job has them: each gitboot is a new process, and imports nothing from its working directory."""
    command = f'PYTHONPATH={ROOT} exec {sys.executable} -P -m gitboot "$@"'
    return write_programs(tmp_path_factory.mktemp("installed"), f"#!/bin/sh\n{command}\n")


# The CI of a pull request


@pytest.mark.parametrize("job", JOBS)
def test_a_valid_change_passes_and_gets_a_comment_about_the_changes_of_its_merge(
    job: Any, fleet: Fleet, host: CommentHost, programs: Path
) -> None:
    fleet.change(HARMLESS)
    fleet.work.git("switch", "--quiet", "main")
    fleet.work.commit({"servers/web02.yaml": server("web02", "role: web")}, "Meanwhile")
    fleet.work.git("switch", "--quiet", "change")
    ran = job(fleet, host, programs)
    assert ran.failed == {}, ran.out
    (comment,) = host.comments
    assert comment["body"].startswith("<!-- gitboot diff -->")
    assert "1 server changed · 0 added · 0 removed · 1 unchanged" in comment["body"] and "debug" in comment["body"]
    assert host.tokens in ({"Bearer secret"}, {"secret"})
    assert (ran.artifacts / ("review.md" if job is run_on_github else f"{PIPELINE}.md")).read_text() == comment["body"]
    if job is run_on_github:  # which shows the comment as the summary, too
        assert (fleet.job.parent / "summary.md").read_text() == comment["body"]


@pytest.mark.parametrize(
    ("job", "step"), [(run_on_github, "Diff"), (run_on_gitlab, "script")], ids=["GitHub", "GitLab"]
)
def test_a_held_change_fails_until_the_printed_line_is_in_the_commit(
    job: Any, step: str, fleet: Fleet, host: CommentHost, programs: Path
) -> None:
    fleet.change(REINSTALLS)
    ran = job(fleet, host, programs)
    assert ran.failed == {step: 4}
    acknowledgements = re.findall(r"Gitboot-Ack: \S+ \w+", host.comments[0]["body"])
    assert acknowledgements and acknowledgements[0] in ran.out
    fleet.work.git("commit", "--quiet", "--amend", f"--message=Reinstall web01\n\n{acknowledgements[0]}")
    assert job(fleet, host, programs).failed == {}


@pytest.mark.parametrize(
    ("job", "steps"),
    [
        pytest.param(run_on_github, ("Validate", "Diff"), id="GitHub"),
        pytest.param(run_on_gitlab, ("script",), id="GitLab"),
    ],
)
def test_an_invalid_change_fails_at_its_line(
    job: Any, steps: tuple[str, ...], fleet: Fleet, host: CommentHost, programs: Path
) -> None:
    fleet.change(INVALID)
    ran = job(fleet, host, programs)
    assert ran.failed == dict.fromkeys(steps, 3)
    assert re.search(r"^servers/web01\.yaml:\d+:3: GB1022: ", ran.out, re.MULTILINE)
    (comment,) = host.comments
    assert "invalid: 1 error" in comment["body"] and "GB1022" in comment["body"]
    if job is run_on_github:
        assert re.search(r"^::error file=servers/web01\.yaml,line=\d+,col=3,title=GB1022::", ran.out, re.MULTILINE)
        assert '"GB1022"' in (ran.artifacts / "problems.sarif").read_text()
    else:
        assert 'classname="GB1022"' in (ran.artifacts / f"{PIPELINE}.xml").read_text()


@pytest.mark.parametrize(
    ("job", "step"), [(run_on_github, "Diff"), (run_on_gitlab, "script")], ids=["GitHub", "GitLab"]
)
def test_e19_ci_also_judges_commits_that_the_instance_has_not_accepted_yet(
    job: Any, step: str, fleet: Fleet, host: CommentHost, programs: Path, tmp_path: Path
) -> None:
    (tmp_path / "output" / "ops").mkdir(parents=True)
    origin = TreeOrigin(commit=fleet.work.head, gitboot=__version__, ledger="0" * 32)
    (tmp_path / "output" / "ops" / "manifest.json").write_bytes(render_head(Head(origin=origin, nodes={}, shared=None)))
    fleet.work.git("switch", "--quiet", "main")
    fleet.change(REINSTALLS, "Reinstall web01")  # merged, and without an acknowledgement
    waiting = fleet.work.head
    fleet.work.git("switch", "--quiet", "change")
    fleet.change(HARMLESS)
    assert job(fleet, host, programs).failed == {}
    accepted = str(tmp_path / "output")
    ran = job(fleet, host, programs, accepted=accepted)
    assert ran.failed == {step: 4}
    (line,) = re.findall(rf"Gitboot-Ack: [0-9a-f]{{64}} maxReinstalls(?=  # {waiting[:12]})", ran.out)
    fleet.work.git("commit", "--quiet", "--amend", f"--message=Change\n\n{line}")
    assert job(fleet, host, programs, accepted=accepted).failed == {}


@pytest.mark.parametrize(
    ("job", "step"), [(run_on_github, "Signatures"), (run_on_gitlab, "script")], ids=["GitHub", "GitLab"]
)
def test_an_unsigned_image_fails_if_the_runner_has_keys(
    job: Any, step: str, fleet: Fleet, host: CommentHost, programs: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "vendor.pub").write_bytes(Minisign(tmp_path, "vendor").public.read_bytes())
    path = "images/memtest86plus-7.20.yaml"
    fleet.change({**HARMLESS, path: ("kind: BootImage", "kind: BootImage  # anew")})
    assert job(fleet, host, programs, keys=str(keys)).failed == {}  # the images are those that were there
    fleet.change({path: ("version: ", "version: 1")})
    ran = job(fleet, host, programs, keys=str(keys))
    assert ran.failed[step] == 3, ran.out
    assert "GB4006" in ran.out


@pytest.mark.parametrize("job", JOBS)
def test_the_comment_shows_which_claims_about_signatures_are_verified(
    job: Any, fleet: Fleet, host: CommentHost, programs: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    with artifact_server() as server, gpg_people("vendor") as people:
        key = find_fingerprint(people["vendor"])
        kernel = tmp_path / "vmlinuz"
        kernel.write_bytes(b"kernel")
        file: dict[str, Any] = {"url": f"{server.url}/vmlinuz", "sha256": server.put("/vmlinuz", b"kernel").sha256}
        server.put("/vmlinuz.sig", sign_with_gpg(people["vendor"], kernel))
        file |= {"signature": {"openpgp": f"{server.url}/vmlinuz.sig"}, "provenance": {"digest": "signed", "key": key}}
        image: dict[str, Any] = {
            "apiVersion": "gitboot.dev/v1alpha1",
            "kind": "BootImage",
            "metadata": {"name": "metalos-1"},
        }
        image["spec"] = {"version": "1", "architectures": {"x86_64": {"kernel": file}}}
        fleet.work.commit({"images/metalos-1.yaml": yaml.safe_dump(image)})
        assert job(fleet, host, programs).failed == {}
        assert f"claims: signed by {key}" in host.comments[0]["body"]
        (keys / "vendor.asc").write_bytes(people["vendor"].public.read_bytes())
        ran = job(fleet, host, programs, keys=str(keys))
        assert ran.failed == {}, ran.out
        assert f"claims: signed by {key}" not in host.comments[0]["body"]
        assert re.search(rf"verified: signed by .*{key}", host.comments[0]["body"])
        (keys / "vendor.asc").unlink()
        ran = job(fleet, host, programs, signatures="true")  # the key is not one that gitboot ships
        assert set(ran.failed.values()) == {3}
        assert f"claims: signed by {key}" in host.comments[0]["body"]


def test_gitlab_without_a_token_comments_nothing(fleet: Fleet, host: CommentHost, programs: Path) -> None:
    fleet.change(HARMLESS)
    assert (run_on_gitlab(fleet, host, programs, GITBOOT_TOKEN="").failed, host.comments) == ({}, [])
    assert yaml.safe_load(build_seed_file(CI[1]))["gitboot:note"]["rules"][0]["if"].endswith("&& $GITBOOT_TOKEN")


@pytest.mark.parametrize("job", JOBS)
def test_each_fleet_of_a_repository_has_its_own_comment(
    job: Any, tmp_path: Path, host: CommentHost, programs: Path
) -> None:
    fleet = Fleet(tmp_path, "infra/boot")
    fleet.work.git("switch", "--quiet", "main")
    cli.main(["init", str(fleet.work.path), "--subpath", "other"], prog_name="gitboot", standalone_mode=False)
    fill_hashes(fleet.work.path / "other" / PACKAGES)
    fleet.work.commit(message="Another fleet")
    fleet.work.git("branch", "--quiet", "--force", "change")
    fleet.work.git("switch", "--quiet", "change")
    fleet.change(HARMLESS)
    assert job(fleet, host, programs).failed == {}
    fleet.subpath = "other"
    ran = job(fleet, host, programs)
    assert ran.failed == {}, ran.out
    first, second = (comment["body"] for comment in host.comments)
    assert first.startswith("<!-- gitboot diff infra/boot -->\n") and "debug" in first
    assert second.startswith("<!-- gitboot diff other -->\n") and "debug" not in second
    fleet.subpath = "infra/boot"
    fleet.change(INVALID)
    ran = job(fleet, host, programs)
    assert set(ran.failed.values()) == {3}
    assert re.search(r"^infra/boot/servers/web01\.yaml:\d+:3: GB1022: ", ran.out, re.MULTILINE)


# Rollouts

STABLE = """\
apiVersion: gitboot.dev/v1alpha1
kind: ImageStream
metadata: {name: stable}
spec:
  current: flatcar-4459.2.4
  rollout: {image: flatcar-4459.2.4, percent: 0}  # by the bot
"""


def rollout_jobs(fleet: Fleet, environment: dict[str, str], *, is_github: bool) -> Iterator[tuple[int, str]]:
    """The first job, then the second in a fresh folder, with what the first has left."""
    temporary = recreate_folder(fleet.job.parent / "temporary")
    environment = {**environment, "RUNNER_TEMP": str(temporary), "CI_COMMIT_SHA": fleet.work.git("rev-parse", "main")}
    fleet.begin_job()
    if is_github:
        jobs = yaml.safe_load((fleet.work.path / CI[3]).read_text())["jobs"]
        first, second = ([each["run"] for each in jobs[name]["steps"] if "run" in each] for name in jobs)
        scripts = ["\n".join(each for each in first if "pip" not in each), *second]
        fleet.checkout(merged=True)
        bundle = temporary / "gitboot" / "rollout.bundle"
    else:
        jobs = yaml.safe_load((fleet.work.path / CI[1]).read_text())
        scripts = ["\n".join(jobs[name]["script"]) for name in ("gitboot:rollout", "gitboot:propose")]
        bundle = fleet.job / "rollout" / f"{PIPELINE}.bundle"
    yield run_step(fleet.job, scripts[0], environment)
    artifacts = bundle.read_bytes() if bundle.exists() else None
    if artifacts is not None:
        fleet.begin_job()
        if is_github:
            fleet.checkout(merged=True)
        recreate_folder(bundle.parent)
        bundle.write_bytes(artifacts)
        yield run_step(fleet.job, scripts[1], environment)


@pytest.mark.parametrize("is_github", [True, False], ids=["GitHub", "GitLab"])
def test_a_job_without_gitboot_proposes_the_next_rollout_step_in_a_pull_request(
    is_github: bool, fleet: Fleet, programs: Path, tmp_path: Path
) -> None:
    fleet.work.git("switch", "--quiet", "main")
    applied = fleet.work.commit({"streams/stable.yaml": STABLE}, "Roll out")
    fleet.work.git("branch", "--force", "change")
    ops = tmp_path / "output" / "ops"
    ops.mkdir(parents=True)
    status = {"applied": {"commit": "f" * 40}, "at": datetime.now(UTC).isoformat(), "conditions": []}
    (ops / "status.json").write_text(json.dumps(status))
    (ops / "records").mkdir()
    (ops / "records" / "00.json").write_bytes(encode_records({}))
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "gh").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')  # what GitHub's runners have
    (tools / "gh").chmod(0o755)
    fleet.work.git("--git-dir", str(fleet.remote), "config", "receive.advertisePushOptions", "true")
    environment = {
        "PATH": f"{programs}:{tools}:{os.environ['PATH']}",
        "STREAM": "stable",
        "GITBOOT_ROLLOUT": "stable",
        "RECORDS": str(tmp_path / "output"),
        "GITBOOT_ACCEPTED": str(tmp_path / "output"),
        "STEPS": "1,100",
        "AFTER": "95%",
        "GITHUB_OUTPUT": str(tmp_path / "outputs"),
        "BRANCH": "gitboot/rollout-stable-1",
        **dict(
            zip(("CI_SERVER_PROTOCOL", "CI_SERVER_HOST", "CI_SERVER_PORT"), ("https", "x.test", "443"), strict=True)
        ),
        "CI_PROJECT_PATH": "acme/fleet",
        "CI_PIPELINE_ID": PIPELINE,
        "CI_REPOSITORY_URL": str(fleet.remote),
        "GITBOOT_TOKEN": "secret",
        "CI_DEFAULT_BRANCH": "main",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{fleet.remote}.insteadOf",
        "GIT_CONFIG_VALUE_0": "https://gitboot:secret@x.test:443/acme/fleet.git",
    }
    ((code, told),) = rollout_jobs(fleet, environment, is_github=is_github)
    assert (code, "f" * 12 in told) == (64, True), told  # an unknown commit
    (ops / "status.json").write_text(json.dumps({**status, "applied": {"commit": applied}}))
    ran = list(rollout_jobs(fleet, environment, is_github=is_github))
    assert [code for code, _ in ran] == [0, 0], ran
    branch = "gitboot/rollout-stable-1"
    assert fleet.work.git("--git-dir", str(fleet.remote), "log", "-1", "--format=%P %s", branch) == (
        f"{applied} Roll flatcar-4459.2.4 out to 1 % of stable"
    )
    if is_github:
        assert (tmp_path / "outputs").read_text() == f"branch={branch}\n"
        assert (tmp_path / "asked").read_text() == f"pr create --head {branch} --fill\n"
    ((code, told),) = rollout_jobs(fleet, environment, is_github=is_github)
    assert (code, "already" in told) == (0, True)  # it is proposed


def test_t13_only_the_job_that_does_not_run_gitboot_may_push_a_rollout() -> None:
    jobs = yaml.safe_load(build_seed_file(CI[3]))["jobs"]
    (checkout,) = (each for each in jobs["advance"]["steps"] if "actions/checkout" in str(each.get("uses")))
    assert (jobs["advance"]["permissions"], checkout["with"]["persist-credentials"]) == ({"contents": "read"}, False)
    assert "token" not in str(jobs["advance"]).lower()
    assert not any("pip" in str(step) or "gitboot rollout" in str(step) for step in jobs["propose"]["steps"])
    of_gitlab = yaml.safe_load(build_seed_file(CI[1]))
    assert "unset GITBOOT_TOKEN" in of_gitlab["gitboot:rollout"]["before_script"]
    assert "pip" not in str(of_gitlab["gitboot:propose"])


# Code in the job with the token


@pytest.mark.parametrize("job", JOBS)
def test_t13_no_code_of_the_branch_runs_in_the_job_with_the_token(
    job: Any, fleet: Fleet, host: CommentHost, installed: Path, tmp_path: Path
) -> None:
    """The branch brings programs under every name that a job might call by its folder, and modules to be imported."""
    found = tmp_path / "found"
    spy = f"import os\nopen({str(found)!r}, 'a').write(repr(dict(os.environ)))\n"
    names = ("comment", "sitecustomize", "usercustomize", "gitboot", "json", "ssl", "click", "yaml", "jinja2")
    for name in names:
        for folder in ("", ".gitboot/"):
            path = fleet.work.path / f"{folder}{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(spy)
    for name in ("gitboot", "python", "pip", "git", "conftest.py"):
        path = fleet.work.path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\nenv >> {found}\n")
        path.chmod(0o755)
    fleet.change(HARMLESS)
    ran = job(fleet, host, installed)
    assert (ran.failed, len(host.comments)) == ({}, 1), ran.out
    assert not found.exists()


def test_t13_only_the_job_without_the_branch_may_write() -> None:
    workflow = yaml.safe_load(build_seed_file(CI[0]))
    review, comment = workflow["jobs"]["review"], workflow["jobs"]["comment"]
    assert (workflow["permissions"], review["permissions"]) == ({}, {"contents": "read"})
    assert not any("token" in str(step).lower() for step in review["steps"])
    (checkout,) = (step for step in review["steps"] if "actions/checkout" in str(step.get("uses")))
    assert checkout["with"]["persist-credentials"] is False
    (checkout,) = (step for step in comment["steps"] if "actions/checkout" in str(step.get("uses")))
    assert (checkout["with"]["ref"], checkout["with"]["sparse-checkout"], checkout["with"]["persist-credentials"]) == (
        "${{ github.event.repository.default_branch }}",
        PACKAGES,
        False,
    )
    assert comment["permissions"]["contents"] == "read"
    jobs = yaml.safe_load(build_seed_file(CI[1]))
    assert jobs["gitboot"]["before_script"][0] == "unset GITBOOT_TOKEN"
    assert {job["variables"]["GIT_STRATEGY"] for job in jobs.values() if "script" in job} == {"empty"}


def test_main_is_validated_and_not_compared(fleet: Fleet, host: CommentHost, programs: Path) -> None:
    ran = run_on_gitlab(fleet, host, programs, CI_MERGE_REQUEST_IID="")
    assert ran.failed == {}, ran.out
    assert [path.name for path in ran.artifacts.iterdir()] == [f"{PIPELINE}.xml"]


# pre-commit


@pytest.mark.parametrize("path", [".pre-commit-hooks.yaml", "example-repo/.pre-commit-config.yaml"])
def test_the_hook_prevents_an_invalid_commit(path: str, fleet: Fleet, programs: Path) -> None:
    read = yaml.safe_load((ROOT / path).read_text())
    (hook,) = read if isinstance(read, list) else read["repos"][0]["hooks"]
    assert (hook["id"], hook["pass_filenames"], hook["always_run"]) == ("gitboot-validate", False, True)
    git_hook = fleet.work.path / ".git" / "hooks" / "pre-commit"
    git_hook.parent.mkdir(exist_ok=True)
    git_hook.write_text(f"#!/bin/sh\nPATH={programs}:$PATH exec {hook['entry']}\n")
    git_hook.chmod(0o755)
    before = fleet.work.head
    fleet.edit(INVALID)
    with pytest.raises(subprocess.CalledProcessError) as refused:
        fleet.work.git("commit", "--quiet", "--all", "--message=Change")
    assert "GB1022" in refused.value.stdout + refused.value.stderr
    assert fleet.work.head == before
    fleet.edit({"servers/web01.yaml": ("kernelArgument:", "kernelArguments:")})
    fleet.work.git("commit", "--quiet", "--all", "--message=Change")
    assert fleet.work.head != before


# Written files


def test_the_example_has_the_same_ci_which_installs_the_gitboot_version_that_wrote_it_and_has_short_lines() -> None:
    for path in CI:
        assert (text := (ROOT / "example-repo" / path).read_text()) == build_seed_file(path)
        assert [line for line in text.splitlines() if len(line) > 120 and not line.lstrip().startswith("image: ")] == []
    for path in CI[:2]:
        text = build_seed_file(path)
        assert f'GITBOOT: "gitboot=={__version__}" ' in text and 'pip install --quiet "$GITBOOT"' in text
    lines = (ROOT / "Containerfile").read_text().splitlines()
    assert [line for line in lines if len(line) > 120 and not line.startswith("ARG BASE=")] == []


@pytest.mark.parametrize(
    ("schema", "paths"), [("gitlab-ci", CI[1:2]), ("github-workflows", [path for path in CI if "workflows" in path])]
)
def test_the_ci_files_are_valid_for_their_host(schema: str, paths: Sequence[str]) -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    files = [str(ROOT / "example-repo" / path) for path in paths]
    checked = subprocess.run([*check, *files], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_every_step_of_the_workflow_that_is_not_an_action_runs_in_these_tests() -> None:
    jobs = yaml.safe_load(build_seed_file(CI[0]))["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"] if "run" in step]
    assert [step.get("name") for step in steps] == [
        *("Folder", "Install", "Validate", "Signatures", "Diff", "Summary"),
        *("Install", "Comment"),
    ]
    assert max(len(step.get("run", "").splitlines()) for step in steps) <= 5  # none is a program in itself


def test_dot_files_are_not_part_of_a_fleet() -> None:
    snapshot = open_snapshot(ROOT / "example-repo", None)
    assert {".gitlab-ci.yml", ".pre-commit-config.yaml"} <= set(snapshot.blobs)
    assert not any(origin.path.startswith(".") for origin in load(snapshot).origins.values())
