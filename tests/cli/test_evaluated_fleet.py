"""What commands keep of a large fleet makes them faster, and changes nothing that they say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gitboot.cli import evaluated_fleet
from gitboot.evaluator.evaluation import Forks
from gitboot.git import snapshots
from gitboot.resolve import fleet_decisions
from gitboot.resolve.boot_composition import Composer
from gitboot.resolve.decision_inputs import ServerInputs
from tests.helpers.fleets import SEED, mac_of, policy, server, uuid_of
from tests.helpers.git_repositories import Work
from tests.helpers.instance_with_bmcs import typed

FILES = {f"{number:02}.yaml": text for number, text in enumerate(SEED)}
WEB01 = next(path for path, text in FILES.items() if "kind: Server" in text)
TIE = policy("tie", "{matchLabels: {role: web}}")
AT = ("--at", "2026-11-22T00:00:00Z")
COMMANDS = (
    ("validate", *AT),
    ("plan", "-o", "json", "--records", "fresh", *AT),
    ("plan", "--server", "web01", *AT),
    ("explain", "web01", "-o", "json", *AT),
    ("diff", "HEAD..WORKTREE", "-o", "json"),
    ("validate", *AT),  # by what the first of these commands stored
)
EDITS = {
    "nothing": {},
    "another server": {"web77.yaml": server("web77", "role: web")},
    "a server that is another": {WEB01: server("web01", "role: web", spec="kernelArguments: [quiet]")},
    "a pin whose deadline is past": {
        "web79.yaml": server(
            "web79", "role: web", spec="pin: {image: flatcar-1, reason: CHG-1, until: '2026-11-01T00:00:00Z'}"
        )
    },
    "servers without a policy, which is a warning": {
        "00.yaml": FILES["00.yaml"].replace("spec: {", "spec: {requirePolicy: false, "),
        "lone.yaml": server("lone"),
    },
    "two policies of one priority": {"tie.yaml": TIE},
    "an identity that is taken": {"web78.yaml": server("web78").replace(uuid_of("web78"), uuid_of("web01"))},
    "what is no YAML": {"broken.yaml": "{"},
    "a file that is left out": {".gitbootignore": "00.yaml\n"},
}


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where commands keep what they find out, of a small fleet too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(evaluated_fleet, "WORTH", 1)
    return tmp_path / "cache"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    made = Work(tmp_path / "work")
    made.commit(FILES, "Begin")
    monkeypatch.chdir(made.path)
    return made


def kept(cache: Path) -> list[Path]:
    """The cache of results, if a command has made it."""
    return sorted(cache.rglob("cache.sqlite"))


@pytest.mark.parametrize("edit", EDITS)
def test_a_command_says_the_same_with_what_was_kept(edit: str, cache: Path, work: Work) -> None:
    assert typed("validate").code == 0
    assert kept(cache)
    work.write(EDITS[edit])
    for command in COMMANDS:
        expected = typed(*command, "--no-cache")
        assert typed(*command) == expected


def test_history_is_the_same_with_and_without_the_cache(cache: Path, work: Work) -> None:
    for name in ("another server", "what is no YAML", "a server that is another"):
        work.commit(EDITS[name], name)
    work.commit({"broken.yaml": None}, "Mend")
    expected = typed("history", "web01", "--no-cache")
    assert "invalid" in expected.out and not kept(cache)
    assert [typed("history", "web01") for _ in range(2)] == [expected, expected]
    (file,) = kept(cache)
    file.write_bytes(file.read_bytes()[:-1])
    assert typed("history", "web01").out == expected.out
    assert typed("history", "web01") == expected


def test_only_servers_whose_keys_are_not_cached_are_decided(
    cache: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[str] = []
    decide_server = fleet_decisions.decide_server

    def noted(inputs: ServerInputs, composer: Composer) -> fleet_decisions.DecidedServer:
        decided.append(inputs.server.metadata.name)
        return decide_server(inputs, composer)

    monkeypatch.setattr(fleet_decisions, "decide_server", noted)
    monkeypatch.setattr(evaluated_fleet, "evaluation_workers", Forks)  # other processes would note nothing here
    work.write({"web02.yaml": server("web02", "role: web")})
    typed("validate")
    assert sorted(decided) == ["web01", "web02"]
    decided.clear()
    work.write(EDITS["a server that is another"])
    assert typed("validate").code == 0
    assert "quiet" in typed("explain", "web01").out
    assert decided == ["web01"]
    typed("validate", "--no-cache")
    assert sorted(decided) == ["web01", "web01", "web02"]


def test_a_damaged_cache_is_reported_once_and_replaced(cache: Path, work: Work) -> None:
    first = typed("plan")
    (file,) = kept(cache)
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
    damaged, again = typed("plan"), typed("plan")
    assert (damaged.out, again) == (first.out, first)
    assert f"the cache {file} is made anew: " in damaged.err


def test_a_small_fleet_is_not_cached(cache: Path, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluated_fleet, "WORTH", len(FILES) + 1)
    assert (typed("validate").code, kept(cache)) == (0, [])
    monkeypatch.setattr(evaluated_fleet, "WORTH", len(FILES))
    assert typed("validate").code == 0
    assert len(kept(cache)) == 1


def test_what_cannot_be_written_does_no_harm(cache: Path, work: Work) -> None:
    cache.touch()
    assert mac_of("web01") in typed("plan", "-o", "json").out.replace("-", ":")


def test_only_files_of_the_fleet_are_read_and_each_time_anew(
    cache: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.write({".gitbootignore": "left-out/\n", "README.md": "", "left-out/a.yaml": "{", "a.png": ""})
    read: list[str] = []
    read_work_file = snapshots.read_work_file

    def noted(root: Path, path: str) -> bytes:
        read.append(path)
        return read_work_file(root, path)

    monkeypatch.setattr(snapshots, "read_work_file", noted)
    for _ in range(2):
        assert typed("validate").code == 0
        assert sorted(read) == sorted([".gitbootignore", *FILES])
        read.clear()
    first = typed("plan", "-o", "json", *AT)
    before = (work.path / WEB01).stat()
    work.write({WEB01: FILES[WEB01].replace(mac_of("web01"), mac_of("web02"))})
    os.utime(work.path / WEB01, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (work.path / WEB01).stat().st_size == before.st_size
    assert typed("plan", "-o", "json", *AT) != first
