"""Credential files that are replaced while an instance runs, and those that are missing or malformed for a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.git_servers import HttpsServer
from tests.instance import Instance, Repository, eventually, running
from tests.test_instance_reconcile import fleet_files


def write_pair(folder: Path, password: str, user: str = "git") -> None:
    folder.mkdir(exist_ok=True)
    for name, text in (("username", user), ("password", password)):
        (folder / f"{name}.new").write_text(f"{text}\n")
        (folder / f"{name}.new").rename(folder / name)


def until(instance: Instance, type: str, *, status: bool) -> dict[str, Any]:
    """Return a condition once it has a status."""

    def look() -> dict[str, Any] | None:
        found = {each["type"]: each for each in instance.status()["conditions"]}.get(type)
        return found if found is not None and found["status"] is status else None

    found: dict[str, Any] = eventually(look)
    return found


# The fleet's repository


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "git")
    made.push(fleet_files())
    return made


@pytest.fixture
def forge(repository: Repository, tmp_path: Path) -> Iterator[HttpsServer]:
    with HttpsServer(repository.bare.parent, tmp_path) as server:
        yield server


def following(forge: HttpsServer, token: Path) -> tuple[str, ...]:
    return ("--git-credentials", str(token), "--ca-bundle", str(forge.certificate), "--poll", "1")


def test_finding_p1_a_rotated_git_token_is_used_at_the_next_fetch(
    repository: Repository, forge: HttpsServer, tmp_path: Path
) -> None:
    token, url = tmp_path / "token", f"{forge.url}/private/fleet.git"
    write_pair(token, HttpsServer.PASSWORD)
    with running(url, tmp_path, *following(forge, token), records="fresh") as instance:
        forge.password = "the next token"
        found = until(instance, "SourceReady", status=False)
        assert found["reason"] == "SourceRefused" and "refuses the credentials" in found["message"]
        commit = repository.push({"README.md": "A later commit.\n"})
        write_pair(token, "the next token")
        until(instance, "SourceReady", status=True)
        eventually(lambda: instance.status()["accepted"]["commit"] == commit)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(None, "No such file or directory", id="missing"),
        pytest.param(b"", "password is empty", id="empty"),
        pytest.param(b"one\ntwo\n", "password has several lines", id="several lines"),
        pytest.param(b"\xff\xfe\n", "password is not text in UTF-8", id="no text"),
    ],
)
def test_finding_p1_a_git_token_that_cannot_be_read_is_a_condition_and_the_old_one_is_not_sent(
    repository: Repository, forge: HttpsServer, tmp_path: Path, content: bytes | None, message: str
) -> None:
    token, url = tmp_path / "token", f"{forge.url}/private/fleet.git"
    write_pair(token, HttpsServer.PASSWORD)
    with running(url, tmp_path, *following(forge, token), records="fresh") as instance:
        (token / "password").unlink()
        if content is not None:
            (token / "password").write_bytes(content)
        found = until(instance, "SourceReady", status=False)
        assert found["reason"] == "UsageError" and "--git-credentials: " in found["message"]
        assert str(token) in found["message"] and message in found["message"]
        requests = len(forge.requests)
        instance.process.send_signal(1)  # SIGHUP: fetch now
        write_pair(token, HttpsServer.PASSWORD)
        until(instance, "SourceReady", status=True)
        assert len(forge.requests) > requests


def test_finding_p1_an_instance_starts_again_without_its_git_token_and_goes_on_with_the_accepted_commit(
    forge: HttpsServer, tmp_path: Path
) -> None:
    token, url = tmp_path / "token", f"{forge.url}/private/fleet.git"
    write_pair(token, HttpsServer.PASSWORD)
    with running(url, tmp_path, *following(forge, token), records="fresh"):
        pass
    (token / "password").unlink()
    with running(url, tmp_path, *following(forge, token)) as instance:
        found = until(instance, "SourceReady", status=False)
        assert str(token) in found["message"]
        assert instance.status()["applied"]["commit"] is not None
