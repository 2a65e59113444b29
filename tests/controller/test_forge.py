"""Statuses of commits at a forge, written and read over HTTP: the same for each kind."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gitboot.controller.forge import CommitVerdict, Forge, Judgement, KnownChanges, Project
from gitboot.errors import ForgeRefused, HostUnreachable, UsageError
from tests.helpers.cases import for_each
from tests.helpers.forges import TOKEN, ForgeHost, forge_host

ONE, TWO = (digit * 40 for digit in "12")
LEDGER = "9f0c7e1c-4a6e-4b0e-8d3b-0d8f6c1f6f0a"
ACCEPTED = CommitVerdict(commit=ONE, judgement=Judgement.ACCEPTED, says="accepted", ledger=LEDGER, change=7)
HELD = replace(ACCEPTED, judgement=Judgement.HELD, says="held by maxReinstalls", change=8)
INVALID = replace(ACCEPTED, judgement=Judgement.INVALID, says="invalid: 3 errors", change=9)


@pytest.fixture(params=["github", "gitlab", "gitea"])
def host(request: pytest.FixtureRequest) -> Iterator[ForgeHost]:
    with forge_host(request.param) as host:
        yield host


@pytest.fixture
def token(tmp_path: Path) -> Path:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    return tmp_path / "token"


def forge(host: ForgeHost, token: Path, name: str = "gitboot", link: str | None = None) -> Forge:
    return Forge(Project.parse(host.project), token, name=name, link=link)


def test_each_judgement_is_the_status_of_its_commit_has_a_color_and_can_be_read_back(
    host: ForgeHost, token: Path
) -> None:
    told = forge(host, token, link="https://boards.test/boot")
    for verdict in (ACCEPTED, HELD, INVALID):
        told.write(verdict)
        status = host.statuses[-1]
        assert (status["sha"], status["context"], status["target_url"]) == (ONE, "gitboot", "https://boards.test/boot")
        assert status["description"] == f"{verdict.says} (ledger {LEDGER}, change {verdict.change})"
        assert (status["state"] == "success", status["state"] == "pending") == (verdict is ACCEPTED, False)
        assert told.find_latest(ONE, LEDGER) == verdict


def test_the_newest_judgement_of_a_commit_by_a_ledger_counts(host: ForgeHost, token: Path) -> None:
    told = forge(host, token)
    assert told.find_latest(TWO, LEDGER) is None
    for verdict in (
        *(replace(ACCEPTED, change=3), replace(HELD, commit=TWO), replace(ACCEPTED, commit=TWO, change=9)),
        replace(HELD, commit=TWO, ledger="another"),
    ):
        told.write(verdict)
    assert told.find_latest(TWO, LEDGER) == replace(ACCEPTED, commit=TWO, change=9)
    assert told.find_latest(ONE, LEDGER) == replace(ACCEPTED, change=3)


def test_statuses_that_others_write_are_not_judgements(host: ForgeHost, token: Path) -> None:
    forge(host, token, name="gitboot/fra1").write(ACCEPTED)
    for description in ("accepted", "accepted (ledger x, change 1) by hand", "fine (ledger x, change 1)", None):
        host.statuses.append(
            {"id": 50, "sha": ONE, "context": "gitboot", "state": "success", "description": description}
        )
    assert all(forge(host, token).find_latest(ONE, each) is None for each in (LEDGER, "x"))
    assert forge(host, token, name="gitboot/fra1").find_latest(ONE, LEDGER) == ACCEPTED


KEY = b"of the ledger"


def post_verdict(host: ForgeHost, token: Path, *verdicts: CommitVerdict) -> Forge:
    found = forge(host, token)
    for verdict in verdicts:
        found.write(verdict)
    return found


def test_only_the_key_of_the_ledger_proves_the_change_in_a_status(host: ForgeHost, token: Path) -> None:
    told = post_verdict(host, token, ACCEPTED.with_proof(KEY), replace(HELD, change=999_999_999))
    assert told.find_known_changes([TWO, ONE], LEDGER, KEY) == KnownChanges(proven=7, claimed=999_999_999)
    assert told.find_known_changes([TWO, ONE], LEDGER, b"another") == KnownChanges(proven=None, claimed=999_999_999)
    assert told.find_known_changes([ONE], "another", KEY) == KnownChanges()


@for_each(
    "other", [{"commit": TWO}, {"change": 8}, {"ledger": "another"}, {"judgement": Judgement.HELD, "says": "held"}]
)
def test_a_proof_is_valid_for_one_status_only(host: ForgeHost, token: Path, other: dict[str, Any]) -> None:
    """An attacker who may write statuses copies the proof of another one."""
    copied = replace(replace(ACCEPTED, **other), proof=ACCEPTED.with_proof(KEY).proof)
    told = post_verdict(host, token, copied)
    assert told.find_known_changes([copied.commit], copied.ledger, KEY).proven is None


def test_a_repeated_old_status_hides_no_newer_one(host: ForgeHost, token: Path) -> None:
    old, new = replace(ACCEPTED, change=3).with_proof(KEY), replace(ACCEPTED, change=9).with_proof(KEY)
    told = post_verdict(host, token, new, *[old] * 30)
    assert told.find_known_changes([ONE], LEDGER, KEY).proven == 9


def test_a_proof_counts_beside_any_number_of_statuses(host: ForgeHost, token: Path) -> None:
    told = post_verdict(host, token, ACCEPTED.with_proof(KEY))
    host.statuses *= 1100
    assert told.find_known_changes([ONE], LEDGER, KEY).proven == ACCEPTED.change


def test_many_statuses_without_proof_do_not_hide_the_proof_of_an_earlier_commit(host: ForgeHost, token: Path) -> None:
    told = post_verdict(host, token, ACCEPTED.with_proof(KEY), replace(HELD, commit=TWO, change=999))
    host.statuses += [{**host.statuses[-1], "id": 10_000 + number} for number in range(1100)]
    assert told.find_known_changes([TWO, ONE], LEDGER, KEY) == KnownChanges(proven=ACCEPTED.change, claimed=999)


def test_a_long_judgement_is_cut_before_its_ledger_and_change(host: ForgeHost, token: Path) -> None:
    forge(host, token).write(replace(HELD, says="held by " + ", ".join(["maxUpdatePercent"] * 9)))
    assert len(host.statuses[0]["description"]) == 140
    found = forge(host, token).find_latest(ONE, LEDGER)
    assert found is not None and (found.judgement, found.ledger, found.change) == (Judgement.HELD, LEDGER, 8)
    assert found.says.endswith("…")


def test_a_rejection_needs_an_operator_and_reveals_no_secret(host: ForgeHost, token: Path) -> None:
    token.write_text("ghp-wrong")
    with pytest.raises(ForgeRefused, match=r"127\.0\.0\.1:\d+ returned 401 ") as refused:
        forge(host, token).write(ACCEPTED)
    assert "ghp-wrong" not in str(refused.value)
    token.write_text(TOKEN)
    host.commits = set()
    with pytest.raises(ForgeRefused, match="No commit found"):
        forge(host, token).write(ACCEPTED)


@for_each(
    ("text", "line", "history"),
    [
        ("github=https://github.com/o/n", "https://github.com/o/n/blob/{0}#L3", "https://github.com/o/n/commits/{0}"),
        ("gitlab=https://g.test/a/o/n", "https://g.test/a/o/n/-/blob/{0}#L3", "https://g.test/a/o/n/-/commits/{0}"),
        ("gitea=https://g.test/o/n", "https://g.test/o/n/src/commit/{0}#L3", "https://g.test/o/n/commits/commit/{0}"),
    ],
)
def test_the_line_of_a_commit_has_a_link(text: str, line: str, history: str) -> None:
    links, facts = Project.parse(text).links(), {"commit": ONE, "path": "web.yaml", "line": 3}
    assert links["line"].format(**facts) == line.format(f"{ONE}/web.yaml")
    assert links["history"].format(**facts) == history.format(f"{ONE}/web.yaml")
    assert links["blame"].format(**facts).count("/blame/") == 1


@for_each(
    ("status", "headers", "wait"),
    [(503, {}, None), (502, {}, None), (429, {"Retry-After": "61"}, 61), (403, {"Retry-After": "5"}, 5)],
)
def test_a_temporary_error_is_not_a_rejection(
    host: ForgeHost, token: Path, status: int, headers: dict[str, str], wait: int | None
) -> None:
    host.faults.append((status, headers))
    with pytest.raises(HostUnreachable, match=f"returned {status} not now") as unreachable:
        forge(host, token).write(ACCEPTED)
    assert unreachable.value.retry_after_s == wait


@for_each(
    "message",
    [
        "API rate limit exceeded for installation ID 1234.",
        "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.",
    ],
)
def test_a_rate_limit_of_github_without_a_time_is_not_a_rejection(host: ForgeHost, token: Path, message: str) -> None:
    host.faults.append((403, {}))
    host.fault_message = message
    with pytest.raises(HostUnreachable, match=message):
        forge(host, token).write(ACCEPTED)


def test_the_token_is_sent_to_no_other_host_and_an_unreachable_forge_is_reported(host: ForgeHost, token: Path) -> None:
    with forge_host(host.kind) as other:
        for status in (301, 302, 307, 308):
            host.faults.append((status, {"Location": f"{other.url}/api/v1/repos/acme/fleet/statuses/{ONE}"}))
            with pytest.raises(ForgeRefused, match=f"returned {status}"):
                forge(host, token).write(ACCEPTED)
        assert (len(host.requests), other.requests) == (4, [])
    with pytest.raises(HostUnreachable, match=r"127\.0\.0\.1:9: .*refused"):
        forge(ForgeHost(host.kind, url="http://127.0.0.1:9"), token).write(ACCEPTED)


@for_each(
    ("content", "said"),
    [
        (None, "cannot read the token"),
        ("", "on one line"),
        ("a\r\nX-Evil: 1", "on one line"),
        ("ключ", "cannot read the token"),
    ],
)
def test_an_invalid_token_is_not_sent(host: ForgeHost, token: Path, content: str | None, said: str) -> None:
    if content is None:
        token.unlink()
    else:
        token.write_text(content, newline="")
    with pytest.raises(ForgeRefused, match=said):
        forge(host, token).write(ACCEPTED)
    assert host.requests == []


@for_each(
    ("text", "api", "path"),
    [
        ("github=https://github.com/acme/fleet.git", "https://api.github.com", "acme/fleet"),
        ("github=https://GitHub.com/acme/fleet", "https://api.github.com", "acme/fleet"),
        ("github=https://octocorp.ghe.com/acme/fleet", "https://api.octocorp.ghe.com", "acme/fleet"),
        ("github=https://ghe.acme.test/acme/fleet/", "https://ghe.acme.test/api/v3", "acme/fleet"),
        ("gitlab=https://gitlab.com/acme/metal/fleet", "https://gitlab.com/api/v4", "acme/metal/fleet"),
        ("gitea=https://codeberg.org/acme/fleet", "https://codeberg.org/api/v1", "acme/fleet"),
    ],
)
def test_the_api_url_of_a_project_follows_from_its_url(text: str, api: str, path: str) -> None:
    project = Project.parse(text)
    assert (project.api, project.path) == (api, path)


@for_each(
    ("text", "api", "path", "commit"),
    [
        (
            *("gitlab=https://acme.test/git/metal/fleet", "https://acme.test/git/api/v4/", "metal/fleet"),
            "https://acme.test/git/metal/fleet/-/commit/c0ffee",
        ),
        (
            *("gitea=https://acme.test/code/forge/acme/fleet", "https://acme.test/code/forge/api/v1", "acme/fleet"),
            "https://acme.test/code/forge/acme/fleet/commit/c0ffee",
        ),
        (
            *("gitlab=https://Acme.test/metal/fleet", "https://acme.test/api/v4", "metal/fleet"),
            "https://acme.test/metal/fleet/-/commit/c0ffee",
        ),
    ],
)
def test_a_forge_below_a_path_of_its_host_is_found(text: str, api: str, path: str, commit: str) -> None:
    project = Project.parse(text, api)
    assert (project.api, project.path) == (api.rstrip("/"), path)
    assert project.links()["commit"].format(commit="c0ffee") == commit
    with pytest.raises(UsageError, match=r"the URL must begin with https://acme\.test"):
        Project.parse(text, "https://evil.test/api/v4")


@for_each(
    ("text", "said"),
    [
        ("https://github.com/acme/fleet", "KIND is one of github, gitlab, gitea"),
        ("bitbucket=https://bitbucket.org/acme/fleet", "KIND is one of github, gitlab, gitea"),
        ("bitbucket=https://me:secret@bitbucket.org/acme/fleet", "KIND is one of github, gitlab, gitea"),
        ("github=https://me:secret/more@github.com/acme/fleet", "is not a web URL"),
        ("github=github.com/acme/fleet", "is not a web URL"),
        ("github=secret@github.com/acme/fleet", "'github.com/acme/fleet' is not a web URL"),
        ("gitub=secret@github.com/acme/fleet", "--forge github.com/acme/fleet: expected KIND=URL"),
        ("github=http://ghe.acme.test/acme/fleet", "unencrypted"),
        ("github=https://me:secret@github.com/acme/fleet", "must not contain"),
        ("github=https://github.com/acme", "OWNER/NAME"),
        ("gitea=https://gitea.test/sub/acme/fleet", "OWNER/NAME"),
    ],
)
def test_an_invalid_project_is_rejected(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)) as raised:
        Project.parse(text)
    assert "secret" not in str(raised.value)


def test_finding_s16_the_token_of_a_forge_is_sent_by_http_only_if_that_is_allowed() -> None:
    text = "gitea=http://git.acme.test/acme/fleet"
    with pytest.raises(
        UsageError, match=r"the --forge token to http://.* unencrypted; use https, or add --allow-token-over-http"
    ):
        Project.parse(text)
    assert Project.parse(text, allow_token_over_http=True).api == "http://git.acme.test/api/v1"
