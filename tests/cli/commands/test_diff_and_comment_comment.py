"""`gitboot comment`: which file it takes for the review of a commit, and what it posts otherwise."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gitboot.cli.main import cli
from gitboot.errors import UsageError
from gitboot.review.formats.markdown import commit_marker, marker
from tests.helpers.forges import CommentHost, comment_host

COMMIT = "c" * 40
REVIEW = f"{marker('')}\n{commit_marker(COMMIT)}\n## gitboot diff: fine\n"


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[CommentHost]:
    with comment_host() as host:
        host.head = COMMIT
        for name in ("GITLAB_CI", "GITBOOT_SUBPATH"):
            monkeypatch.delenv(name, raising=False)
        for name, value in {
            "GITHUB_REF": "refs/pull/7/merge",
            "GITHUB_REPOSITORY": "acme/fleet",
            "GITHUB_RUN_ID": "5",
            "GITHUB_API_URL": host.url,
            "GITHUB_GRAPHQL_URL": f"{host.url}/graphql",
            "GITHUB_SERVER_URL": "https://github.test",
            "GITHUB_TOKEN": "secret of a job",
        }.items():
            monkeypatch.setenv(name, value)
        yield host


def comment(*arguments: str | Path) -> None:
    cli.main(["comment", "--commit", COMMIT, *map(str, arguments)], prog_name="gitboot", standalone_mode=False)


def test_the_review_of_the_commit_is_posted_as_it_is(host: CommentHost, tmp_path: Path) -> None:
    (tmp_path / "review.md").write_text(REVIEW)
    comment(tmp_path / "review.md")
    assert [each["body"] for each in host.comments] == [REVIEW]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param("", "expected '<!-- gitboot diff -->' in line 1", id="empty"),
        pytest.param("## gitboot diff: unchanged\n", "in line 1", id="no marker"),
        pytest.param(f" {REVIEW}", "in line 1", id="marker elsewhere"),
        pytest.param(REVIEW.replace(marker(""), marker("lab")), "in line 1", id="another fleet"),
        pytest.param(f"{marker('')}\n## unchanged\n", "in line 2", id="no commit"),
        pytest.param(REVIEW.replace(COMMIT, "d" * 40), "in line 2", id="another commit"),
        pytest.param(REVIEW.replace("fine", "\udcff"), "decode", id="no UTF-8"),
        pytest.param(REVIEW + "x" * 65_536, "more than 65,536 bytes", id="too long"),
    ],
)
def test_finding_s2_a_file_that_is_not_the_review_of_the_commit_is_refused(
    content: str, reason: str, host: CommentHost, tmp_path: Path
) -> None:
    (tmp_path / "review.md").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=reason):
        comment(tmp_path / "review.md")
    (posted,) = host.comments
    assert posted["body"].startswith(f"{marker('')}\n{commit_marker(COMMIT)}\n## gitboot diff: the review failed\n")
    assert "https://github.test/acme/fleet/actions/runs/5" in posted["body"]


@pytest.mark.parametrize("kind", ["symlink", "folder that is a symlink", "FIFO", "folder", "device", "nothing"])
def test_finding_s2_only_a_regular_file_is_read(kind: str, host: CommentHost, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "review.md").write_text(REVIEW)
    file = tmp_path / "review.md"
    match kind:
        case "symlink":
            file.symlink_to(tmp_path / "real" / "review.md")
        case "folder that is a symlink":
            (tmp_path / "linked").symlink_to(tmp_path / "real")
            file = tmp_path / "linked" / "review.md"
        case "FIFO":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
        case "device":
            file = Path(os.devnull)
    with pytest.raises(UsageError, match=r"not a review|does not exist"):
        comment(file)
    assert ["the review failed" in each["body"] for each in host.comments] == [True]


def test_the_comment_of_a_fleet_in_a_folder_is_its_own(host: CommentHost, tmp_path: Path) -> None:
    review = f"{marker('infra/boot')}\n{commit_marker(COMMIT)}\n"
    (tmp_path / "review.md").write_text(review)
    comment("--subpath", "infra/boot", tmp_path / "review.md")
    with pytest.raises(UsageError, match="infra/lab"):
        comment("--subpath", "infra/lab", tmp_path / "review.md")
    assert [each["body"].partition("\n")[0] for each in host.comments] == [marker("infra/boot"), marker("infra/lab")]


def test_an_account_that_the_forge_does_not_name_edits_nothing(
    host: CommentHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_GRAPHQL_URL", "")
    (tmp_path / "review.md").write_text(REVIEW)
    comment(tmp_path / "review.md")
    comment(tmp_path / "review.md")
    assert (len(host.comments), host.edited) == (2, [])


@pytest.mark.parametrize("answer", [[], "x", {"head": None}, {"head": {"sha": 7}}])
def test_an_answer_of_another_form_posts_nothing(
    answer: object, host: CommentHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = host.answer
    monkeypatch.setattr(
        host, "answer", lambda method, path, body: (200, answer) if "/pulls/" in path else answered(method, path, body)
    )
    (tmp_path / "review.md").write_text(REVIEW)
    comment(tmp_path / "review.md")
    assert host.comments == []
