"""`gitboot diff --accepted`, and which file `gitboot comment` takes for the review of a commit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gitboot.cli.instance_client import fetch_accepted_commit
from gitboot.cli.main import cli
from gitboot.errors import HostUnreachable, UsageError
from gitboot.review.formats.markdown import format_commit_marker, format_marker
from tests.helpers.forges import CommentHost, comment_host
from tests.helpers.git_repositories import WorkTree
from tests.helpers.http_peers import WebResponse, file_server, web_server
from tests.helpers.instance_with_bmcs import Rack, run_command, wait_for_condition
from tests.helpers.running_instance import eventually


def test_diff_uses_the_accepted_commit_of_an_instance_that_holds_a_newer_one_for_uncommitted_changes_too(
    rack: Rack,
) -> None:
    web = rack.add("web01", provision=1)
    accepted = rack.push()
    with rack.running(records="adopt") as instance:
        web.provision = 2
        held = rack.push("Reinstall web01")
        wait_for_condition(instance, "CommitAccepted", status=False, reason="GuardTripped")
        found = instance.status()
        assert (found["attempted"]["commit"], found["accepted"]["commit"]) == (held, accepted)
        assert (
            fetch_accepted_commit(instance.url)
            == fetch_accepted_commit(f"{instance.url}/")
            == fetch_accepted_commit(str(rack.output))
            == accepted
        )
        done = run_command("diff", "--accepted", instance.url, "..main", rack.repository.work)
        assert (done.code, "Gitboot-Ack" in done.out, f"accepted ({accepted[:12]}) → main" in done.out) == (
            4,
            True,
            True,
        )
        assert f"gitboot diff ..main {rack.repository.work} --accepted {instance.url}" in done.out
        held_digest = found["attempted"]["held"]["digest"]
        assert f"Gitboot-Ack: {held_digest} maxReinstalls" in done.out  # the instance has the same digest
    assert fetch_accepted_commit(str(rack.output)) == accepted  # whether it runs or not
    done = run_command("diff", "--accepted", rack.output, "WORKTREE", rack.repository.work)
    assert done.code == 64  # it is no BASE
    (rack.repository.work / "more.txt").write_text("")
    done = run_command("diff", "--accepted", rack.output, "main", rack.repository.work)
    assert (done.code, "maxReinstalls" in done.out) == (4, True)


def test_a_mirror_provides_the_accepted_commit_which_the_clone_must_have(rack: Rack, tmp_path: Path) -> None:
    rack.add("web01")
    accepted = rack.push()
    rack.once(records="adopt")
    other = WorkTree(tmp_path / "other")
    other.commit({"fleet.yaml": "x"})
    done = run_command("diff", "main", other.path, "--accepted", rack.output)
    assert (done.code, f"has no commit {accepted}" in done.err) == (64, True)
    with file_server(rack.output) as url:
        assert fetch_accepted_commit(url) == accepted
        (rack.output / "ops" / "manifest.json").unlink()
        with pytest.raises(UsageError, match="has no accepted commit"):
            fetch_accepted_commit(url)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (WebResponse(503, b'{"message": "starting\\nup"}'), "returned 503 starting up"),
        (WebResponse(302, headers={"Location": "http://127.0.0.1:9/elsewhere"}), "returned 302"),
        (WebResponse(200, b"<html>"), "returned 200"),
        (WebResponse(200, b'"' + b"a" * (1 << 20) + b'"'), "sent more than 1,048,576 bytes"),
    ],
    ids=["busy", "leads elsewhere", "no JSON", "too much"],
)
def test_an_invalid_response_has_no_accepted_commit(answer: WebResponse, said: str) -> None:
    with web_server(lambda _: answer) as url, pytest.raises(HostUnreachable, match=said):
        fetch_accepted_commit(url)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("ftp://boot.test", "is not a web URL"),
        ("http://user:secret@boot.test", "must not contain a user name or password"),
        ("/nowhere", "has no accepted commit"),
    ],
)
def test_an_invalid_place_of_the_accepted_commit_is_rejected(where: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as raised:
        fetch_accepted_commit(where)
    assert "secret" not in str(raised.value)


def test_an_instance_without_an_accepted_commit_is_an_error(rack: Rack) -> None:
    rack.repository.push({"fleet.yaml": "nonsense"})
    with rack.running(ready=False) as instance:
        eventually(lambda: instance.status()["attempted"]["commit"])
        with pytest.raises(UsageError, match="has no accepted commit"):
            fetch_accepted_commit(instance.url)


COMMIT = "c" * 40
REVIEW = f"{format_marker('')}\n{format_commit_marker(COMMIT)}\n## gitboot diff: fine\n"


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


def test_the_review_of_the_commit_is_posted_unchanged(host: CommentHost, tmp_path: Path) -> None:
    (tmp_path / "review.md").write_text(REVIEW)
    comment(tmp_path / "review.md")
    assert [each["body"] for each in host.comments] == [REVIEW]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param("", "expected '<!-- gitboot diff -->' on line 1", id="empty"),
        pytest.param("## gitboot diff: unchanged\n", "on line 1", id="no marker"),
        pytest.param(f" {REVIEW}", "on line 1", id="marker elsewhere"),
        pytest.param(REVIEW.replace(format_marker(""), format_marker("lab")), "on line 1", id="another fleet"),
        pytest.param(f"{format_marker('')}\n## unchanged\n", "on line 2", id="no commit"),
        pytest.param(REVIEW.replace(COMMIT, "d" * 40), "on line 2", id="another commit"),
        pytest.param(REVIEW.replace("fine", "\udcff"), "decode", id="no UTF-8"),
        pytest.param(REVIEW + "x" * 65_536, "larger than 65,536 bytes", id="too long"),
    ],
)
def test_finding_s2_a_file_that_is_not_the_review_of_the_commit_is_rejected(
    content: str, reason: str, host: CommentHost, tmp_path: Path
) -> None:
    (tmp_path / "review.md").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UsageError, match=reason):
        comment(tmp_path / "review.md")
    (posted,) = host.comments
    assert posted["body"].startswith(
        f"{format_marker('')}\n{format_commit_marker(COMMIT)}\n## gitboot diff: the review failed\n"
    )
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


def test_each_fleet_in_a_folder_has_its_own_comment(host: CommentHost, tmp_path: Path) -> None:
    review = f"{format_marker('infra/boot')}\n{format_commit_marker(COMMIT)}\n"
    (tmp_path / "review.md").write_text(review)
    comment("--subpath", "infra/boot", tmp_path / "review.md")
    with pytest.raises(UsageError, match="infra/lab"):
        comment("--subpath", "infra/lab", tmp_path / "review.md")
    assert [each["body"].partition("\n")[0] for each in host.comments] == [
        format_marker("infra/boot"),
        format_marker("infra/lab"),
    ]


def test_an_account_that_the_forge_does_not_name_edits_no_comment(
    host: CommentHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_GRAPHQL_URL", "")
    (tmp_path / "review.md").write_text(REVIEW)
    comment(tmp_path / "review.md")
    comment(tmp_path / "review.md")
    assert (len(host.comments), host.edited) == (2, [])


@pytest.mark.parametrize("answer", [[], "x", {"head": None}, {"head": {"sha": 7}}])
def test_an_unexpected_response_of_the_forge_posts_nothing(
    answer: object, host: CommentHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = host.answer
    monkeypatch.setattr(
        host, "answer", lambda method, path, body: (200, answer) if "/pulls/" in path else answered(method, path, body)
    )
    (tmp_path / "review.md").write_text(REVIEW)
    comment(tmp_path / "review.md")
    assert host.comments == []
