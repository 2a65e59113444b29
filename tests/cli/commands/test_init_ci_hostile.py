"""Attacks by a branch on the CI of fleets: every file except the workflow file may be hostile."""

from __future__ import annotations

import base64
import os
import re
import sys
import zipfile
from pathlib import Path
from socket import socket
from typing import Any

import pytest
import yaml

from gitboot.cli.commands.init import CI, PACKAGES, build_requirements_file, build_seed_file
from gitboot.review.formats.markdown import format_marker
from tests.helpers.forges import (
    BOT,
    HARMLESS,
    INVALID,
    JOBS,
    MALLORY,
    PIPELINE,
    CommentHost,
    Fleet,
    fill_hashes,
    recreate_folder,
    run_step,
    write_programs,
)

ROOT = Path(__file__).parents[3]
AGAIN = {"servers/web01.yaml": ("[debug]", "[verbose]")}

# Names that a workflow has written, in this version or an earlier one, and folders of such files.
WRITTEN = (
    "gitboot.md",
    "gitboot.sarif",
    "gitboot.xml",
    "gitboot.bundle",
    "problems.sarif",
    "review.md",
    "rollout.bundle",
)
FOLDERS = ("review", "rollout", "gitboot")


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs as a job has them: each gitboot is a new process, as its console script is."""
    command = f'exec {Path(sys.executable).parent}/gitboot "$@"'
    return write_programs(tmp_path_factory.mktemp("installed"), f"#!/bin/sh\n{command}\n")


def make_links(fleet: Fleet, target: Path, *names: str) -> None:
    for name in names:
        path = fleet.work.path / name
        path.unlink(missing_ok=True)
        path.symlink_to(target)


# S1: what the review writes


@pytest.mark.parametrize("job", JOBS)
def test_finding_s1_no_symlink_of_a_branch_redirects_the_output_of_the_review(
    job: Any, fleet: Fleet, host: CommentHost, installed: Path, tmp_path: Path
) -> None:
    """The branch leads each output to a ``.pth`` of the runner's Python; that would import its sitecustomize.py."""
    site, spied = tmp_path / "site-packages", tmp_path / "spied"
    (site / "folder").mkdir(parents=True)
    (site / "zz.pth").write_text("untouched")
    make_links(fleet, site / "zz.pth", *WRITTEN)
    make_links(fleet, site / "folder", *FOLDERS)
    (fleet.work.path / "sitecustomize.py").write_text(f"open({str(spied)!r}, 'w')\n")
    fleet.change(INVALID, f"{fleet.job}\n\nimport sitecustomize")
    job(fleet, host, installed)
    assert (site / "zz.pth").read_text() == "untouched"
    assert list((site / "folder").iterdir()) == []
    assert not spied.exists()


# S2: input of the job with the token


@pytest.mark.parametrize("job", JOBS)
def test_finding_s2_a_review_file_in_the_branch_is_not_posted(
    job: Any, fleet: Fleet, host: CommentHost, programs: Path
) -> None:
    planted = f"{format_marker('')}\n## gitboot diff: unchanged: planted\n"
    for name in WRITTEN:
        (fleet.work.path / name).write_text(planted)
    for folder in FOLDERS:
        (fleet.work.path / folder).mkdir()
        for name in (*WRITTEN, f"{PIPELINE}.md"):
            (fleet.work.path / folder / name).write_text(planted)
    fleet.change(INVALID)
    assert job(fleet, host, programs).failed
    (comment,) = host.comments
    assert "planted" not in comment["body"] and "invalid: 1 error" in comment["body"]


@pytest.mark.parametrize("job", JOBS)
def test_finding_s2_no_symlink_of_a_branch_keeps_an_earlier_comment(
    job: Any, fleet: Fleet, host: CommentHost, programs: Path
) -> None:
    fleet.change(HARMLESS)
    assert job(fleet, host, programs).failed == {}
    make_links(fleet, Path(os.devnull), *WRITTEN, *FOLDERS)
    fleet.change(AGAIN)
    job(fleet, host, programs)
    (comment,) = host.comments
    assert fleet.work.head in comment["body"] and "debug" not in comment["body"]


@pytest.mark.parametrize("job", JOBS)
def test_finding_s2_no_symlink_of_a_branch_is_followed_into_a_stored_artifact(
    job: Any, fleet: Fleet, host: CommentHost, programs: Path, tmp_path: Path
) -> None:
    key = tmp_path / "id_ed25519"
    key.write_text("PRIVATE KEY")
    (fleet.work.path / "review").mkdir()
    make_links(fleet, key, "gitboot.key", "gitboot.yaml.txt", *WRITTEN, "review/key.md", "review/key.xml")
    fleet.change(HARMLESS)
    ran = job(fleet, host, programs)
    found = [path for path in ran.artifacts.rglob("*") if path.is_file()]
    assert found
    assert not any(path.is_symlink() or b"PRIVATE KEY" in path.read_bytes() for path in found)
    assert "PRIVATE KEY" not in str(host.comments)


@pytest.mark.parametrize("has_comment", [True, False])
@pytest.mark.parametrize("job", JOBS)
def test_finding_s2_if_the_endpoint_does_not_respond_the_comment_of_the_failed_review_replaces_an_earlier_one(
    job: Any, fleet: Fleet, host: CommentHost, programs: Path, *, has_comment: bool
) -> None:
    fleet.change(HARMLESS)
    if has_comment:
        assert job(fleet, host, programs).failed == {}
        assert "debug" in host.comments[0]["body"]
        fleet.change(AGAIN)
    with socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ran = job(fleet, host, programs, accepted=f"http://127.0.0.1:{unused.getsockname()[1]}")
    assert list(ran.failed.values()) == [6, 64] and "Connection refused" in ran.out
    (comment,) = host.comments
    assert "the review failed" in comment["body"] and fleet.work.head in comment["body"]
    assert "debug" not in comment["body"] and PIPELINE in comment["body"]


@pytest.mark.parametrize("job", JOBS)
def test_finding_s2_a_rerun_job_of_an_earlier_commit_posts_nothing(
    job: Any, fleet: Fleet, host: CommentHost, programs: Path
) -> None:
    fleet.change(HARMLESS)
    assert (job(fleet, host, programs, head="f" * 40).failed, host.comments) == ({}, [])


@pytest.mark.parametrize("job", JOBS)
def test_finding_s2_a_tag_with_the_name_of_the_target_is_not_the_base_of_a_review(
    job: Any, fleet: Fleet, host: CommentHost, programs: Path
) -> None:
    """Git prefers a tag to a branch with the same name, unless the full ref is named."""
    fleet.change(HARMLESS)
    for name in ("main", "origin/main", "target"):
        fleet.work.git("tag", name)
        fleet.work.git("push", "--quiet", "origin", f"refs/tags/{name}")
    ran = job(fleet, host, programs)
    assert ran.failed == {}, ran.out
    assert "1 server changed" in host.comments[0]["body"]


# S9: whose comment it is


@pytest.mark.parametrize("job", JOBS)
def test_finding_s9_a_second_push_changes_the_comment_of_the_bot_and_no_other_with_the_marker(
    job: Any, fleet: Fleet, host: CommentHost, programs: Path
) -> None:
    theirs = f"{format_marker('')}\nall is fine"
    host.comments.append({"id": 0, "body": theirs, **MALLORY})
    host.comments.append({"id": 1, "body": theirs, "user": None, "author": None})  # an account that was deleted
    host.comments.append({"id": 2, "body": f"{format_marker('other')}\nours, of another fleet", **BOT})
    host.comments += [{"id": 3 + number, "body": "LGTM"} for number in range(120)]  # more than a page
    fleet.change(HARMLESS)
    assert job(fleet, host, programs).failed == {}
    before = [comment["body"] for comment in host.comments[:123]]
    assert before[:2] == [theirs, theirs] and "another fleet" in before[2] and set(before[3:]) == {"LGTM"}
    assert "debug" in host.comments[123]["body"]
    fleet.change(AGAIN)
    assert job(fleet, host, programs).failed == {}
    assert (len(host.comments), host.edited) == (124, [123])
    assert [comment["body"] for comment in host.comments[:123]] == before
    newest = host.comments[123]["body"]
    assert "verbose" in newest and "debug" not in newest.replace("gitboot diff", "")


@pytest.mark.parametrize("job", JOBS)
def test_finding_s9_a_comment_that_may_not_be_edited_among_large_ones_of_strangers_leads_to_a_new_one(
    job: Any, fleet: Fleet, host: CommentHost, programs: Path
) -> None:
    host.comments.append({"id": 0, "body": f"{format_marker('')}\nlocked", **BOT})
    host.comments += [{"id": 1 + number, "body": "\x01" * 65_536, **MALLORY} for number in range(30)]
    host.frozen = {0}
    fleet.change(HARMLESS)
    ran = job(fleet, host, programs)
    assert ran.failed == {}, ran.out
    assert host.comments[0]["body"].endswith("locked") and "debug" in host.comments[-1]["body"]


# S17: what the jobs run besides gitboot


def test_finding_s17_actions_and_images_are_named_by_digest() -> None:
    texts = {path: build_seed_file(path) for path in CI}
    texts |= {
        path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / ".github" / "workflows").iterdir()
    }
    texts["Containerfile"] = (ROOT / "Containerfile").read_text()
    found = 0
    for path, text in texts.items():
        for used in re.findall(r"^\s*(?:- )?uses: (.+)$", text, re.MULTILINE):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", used), f"{path}: {used}"
            found += 1
        for used in re.findall(r"^(?:\s*image: |\s*container: |ARG BASE=|FROM (?!\$))(.+)$", text, re.MULTILINE):
            assert re.fullmatch(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}", used), f"{path}: {used}"
            found += 1
    assert found > 20
    assert not any("pull_request_target" in text for text in texts.values())


@pytest.mark.parametrize("job", JOBS)
def test_finding_s17_the_job_with_the_token_installs_nothing_without_a_hash(
    job: Any, fleet: Fleet, host: CommentHost, programs: Path
) -> None:
    fleet.work.git("switch", "--quiet", "main")
    (fleet.work.path / PACKAGES).write_text(build_requirements_file())
    fleet.work.commit(message="No hash")
    fleet.work.git("branch", "--quiet", "--force", "change")
    fleet.work.git("switch", "--quiet", "change")
    fill_hashes(fleet.work.path / PACKAGES)  # by the branch: it does not count
    fleet.change(HARMLESS)
    ran = job(fleet, host, programs)
    assert list(ran.failed.values()) == [1] and host.comments == []
    assert "gitboot==0.2.0 --hash=sha256:MISSING" in ran.out


def build_wheel(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "gitboot-0.2.0-py3-none-any.whl"
    info = "gitboot-0.2.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("gitboot_as_packed.py", text)
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: gitboot\nVersion: 0.2.0\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/RECORD", f"gitboot_as_packed.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return path


def test_finding_s17_the_command_in_the_packages_file_adds_the_hash_that_pip_requires(tmp_path: Path) -> None:
    index, repository = tmp_path / "index", tmp_path / "repository"
    build_wheel(index, "first = True")
    (repository / ".gitboot").mkdir(parents=True)
    text = build_requirements_file()
    (command,) = re.findall(r"^#   (.+)$", text, re.MULTILINE)
    alone = "".join(f"{line}\n" for line in text.splitlines() if line.startswith(("#", "gitboot")))
    (repository / PACKAGES).write_text(alone)
    tools = recreate_folder(tmp_path / "tools")
    (tools / "pip").write_text(f'#!/bin/sh\nexec {sys.executable} -m pip --disable-pip-version-check "$@"\n')
    (tools / "pip").chmod(0o755)
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_FIND_LINKS": str(index),
        "PIP_NO_INDEX": "1",
        "PIP_TARGET": str(tmp_path / "target"),
        "PACKAGES": PACKAGES,
        "HOME": str(tmp_path),
    }
    steps = yaml.safe_load(build_seed_file(CI[0]))["jobs"]["comment"]["steps"]
    (install,) = (step["run"] for step in steps if step.get("name") == "Install")
    code, out = run_step(repository, install, environment)
    assert (code, "sha256:MISSING" in out) == (1, True)
    code, out = run_step(
        repository, command, {name: value for name, value in environment.items() if name != "PIP_TARGET"}
    )
    assert code == 0, out
    code, out = run_step(repository, install, environment)
    assert code == 0, out
    assert (tmp_path / "target" / "gitboot_as_packed.py").read_text() == "first = True"
    build_wheel(index, "second = True")
    code, out = run_step(repository, install, environment)
    assert code != 0 and "DO NOT MATCH THE HASHES" in out


def test_finding_s17_a_hash_recorded_by_pip_is_in_the_packages_file() -> None:
    digest = "1" * 64
    text = build_requirements_file(f"gitboot @ https://example.net/gitboot-0.2.0-py3-none-any.whl#sha256={digest}")
    assert f"\ngitboot @ https://example.net/gitboot-0.2.0-py3-none-any.whl --hash=sha256:{digest}\n" in text
    assert "MISSING" not in text and text.count("\n    --hash=sha256:") > 100
    assert "git+" in build_requirements_file("gitboot @ git+https://example.net/gitboot.git@c0ffee").split("MISSING")[0]


# A rollout's branch, by a job that was led astray


# By what is wrong: the branch, its files and the folder of the fleet.
WRONG_ROLLOUTS: dict[str, tuple[str, dict[str, str], str]] = {
    "workflow": ("gitboot/rollout-stable-1", {".github/workflows/evil.yml": "on: push"}, ""),
    "name that Git quotes": ("gitboot/rollout-stable-1", {".github/workflows/é.yml": "on: push"}, ""),
    "two files": ("gitboot/rollout-stable-1", {"a.yaml": "1", "b.yaml": "2"}, ""),
    "outside the fleet": ("gitboot/rollout-stable-1", {"fleets/a.yaml": "1"}, "fleet"),
    "another name": ("gitboot/other", {"a.yaml": "1"}, ""),
}


@pytest.mark.parametrize("forge", ["GitHub", "GitLab", "Gitea"])
def test_the_job_that_pushes_a_rollout_checks_its_input(forge: str, fleet: Fleet, tmp_path: Path) -> None:
    for what, wrong in WRONG_ROLLOUTS.items():
        code, out = push_rollout(forge, fleet, tmp_path, *wrong)
        assert code == 1, (what, out)
        assert fleet.work.git("ls-remote", str(fleet.remote), f"refs/heads/{wrong[0]}") == "", what


def push_rollout(
    forge: str, fleet: Fleet, tmp_path: Path, branch: str, changed: dict[str, str], subpath: str
) -> tuple[int, str]:
    """Run the job that has a token, with a bundle of this branch."""
    main = fleet.work.git("rev-parse", "main")
    fleet.work.git("switch", "--quiet", "--force-create", branch, "main")
    fleet.work.commit(changed)
    temporary = recreate_folder(tmp_path / "temporary")
    fleet.begin_job()
    if forge == "GitHub":
        fleet.checkout(merged=True)
        (step,) = (
            each
            for each in yaml.safe_load(build_seed_file(CI[3]))["jobs"]["propose"]["steps"]
            if each.get("name") == "Propose"
        )
        script, bundle = step["run"], temporary / "gitboot" / "rollout.bundle"
    elif forge == "Gitea":
        (step,) = yaml.safe_load(build_seed_file(CI[7]))["jobs"]["propose"]["steps"]
        script, bundle = step["run"], temporary / "made" / "rollout.bundle"
    else:
        script = "\n".join(yaml.safe_load(build_seed_file(CI[1]))["gitboot:propose"]["script"])
        bundle = fleet.job / "rollout" / f"{PIPELINE}.bundle"
    bundle.parent.mkdir()
    fleet.work.git("bundle", "create", "--quiet", str(bundle), f"main..{branch}")
    tools = recreate_folder(tmp_path / "tools")
    (tools / "gh").write_text("#!/bin/sh\n")
    (tools / "gh").chmod(0o755)
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(temporary),
        "GITBOOT_SUBPATH": subpath,
        "BRANCH": branch,
        "CI_PIPELINE_ID": PIPELINE,
        "CI_REPOSITORY_URL": str(fleet.remote),
        "CI_COMMIT_SHA": main,
        "CI_DEFAULT_BRANCH": "main",
        **dict.fromkeys(("CI_SERVER_PROTOCOL", "CI_SERVER_HOST", "CI_SERVER_PORT", "CI_PROJECT_PATH"), "x"),
        "GITBOOT_TOKEN": "secret",
        "TOKEN": "secret",
        "TMPDIR": str(temporary),
        "GITHUB_API_URL": "http://127.0.0.1:1",  # never called
        "GITHUB_REF": "refs/heads/main",
        "GITHUB_REF_NAME": "main",
        "GITHUB_REPOSITORY": fleet.remote.stem,
        "GITHUB_SERVER_URL": f"file://{fleet.remote.parent}",
        "GITHUB_SHA": main,
        "BUNDLE": base64.b64encode(bundle.read_bytes()).decode(),
    }
    return run_step(fleet.job, script, environment)


# S14 and S15: names


@pytest.mark.parametrize("job", JOBS)
def test_finding_s14_no_file_name_of_a_branch_is_a_command_of_the_ci_system(
    job: Any, fleet: Fleet, host: CommentHost, programs: Path
) -> None:
    """The annotations of the workflow are commands of gitboot: ``error``, ``warning`` and ``notice``."""
    names = ("::stop-commands::x.yaml", "::add-mask::debug.yaml", "##[error]y.yaml", "::set-output name=a::b/c.yaml")
    for name in names:
        (fleet.work.path / name).parent.mkdir(parents=True, exist_ok=True)
        (fleet.work.path / name).write_text("kind: Nothing\n")
    fleet.change(HARMLESS)
    ran = job(fleet, host, programs)
    assert "stop-commands" in ran.out and ran.failed
    begins = [line for line in ran.out.splitlines() if re.match(r"\s*(::|##)", line)]
    assert [line for line in begins if not re.match("::(error|warning|notice) file=[^:]+::", line)] == []


@pytest.mark.parametrize("job", JOBS)
def test_finding_s15_a_symlink_in_place_of_the_fleet_folder_is_rejected(
    job: Any, host: CommentHost, programs: Path, tmp_path: Path
) -> None:
    """The instance takes the folder from the commit, in which a symlink is not a folder."""
    fleet = Fleet(tmp_path, "infra/boot")
    folder = fleet.work.path / "infra" / "boot"
    folder.rename(fleet.work.path / "elsewhere")
    folder.symlink_to("../elsewhere")
    fleet.work.commit(message="Move the fleet")
    ran = job(fleet, host, programs)
    assert ran.failed
    assert not any("unchanged" in comment["body"] for comment in host.comments)
    assert "infra/boot" in ran.out
