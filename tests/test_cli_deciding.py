"""What commands keep of a large fleet makes them faster, and changes nothing that they say."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gitboot import sections
from gitboot.cli import deciding
from gitboot.errors import SourceError
from gitboot.evaluate import evaluator, shelf
from gitboot.source import fingerprints, open_snapshot, worktree
from gitboot.source.worktree import WorkFiles
from tests.fleets import SEED, mac_of, policy, server, uuid_of
from tests.kept import from_bytes, of_bytes, to_bytes
from tests.rack import Done, typed
from tests.repositories import Work

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
    "two policies of one priority": {"tie.yaml": TIE},
    "an identity that is taken": {"web78.yaml": server("web78").replace(uuid_of("web78"), uuid_of("web01"))},
    "what is no YAML": {"broken.yaml": "{"},
    "a file that is left out": {".gitbootignore": "00.yaml\n"},
}


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where commands keep what they find out, of a small fleet too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(deciding, "WORTH", 1)
    monkeypatch.setattr(shelf, "WORTH", 1)
    return tmp_path / "cache"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Work:
    made = Work(tmp_path / "work")
    made.commit(FILES, "Begin")
    monkeypatch.chdir(made.path)
    return made


def kept(cache: Path) -> list[Path]:
    """What was found out about fleets, without what their files are known by."""
    return sorted(path for path in cache.rglob("*.snapshot") if not path.name.endswith(".files.snapshot"))


def without_cache(command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> Done:
    with monkeypatch.context() as patched:
        patched.setattr(deciding, "WORTH", 1_000_000)
        return typed(*command)


@pytest.mark.parametrize("edit", EDITS)
def test_a_command_says_the_same_with_what_was_kept(
    edit: str, cache: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed("validate").code == 0
    assert kept(cache)
    work.write(EDITS[edit])
    for command in COMMANDS:
        expected = without_cache(command, monkeypatch)
        assert typed(*command) == expected


def test_history_is_the_same_with_what_was_kept_and_where_that_is_damaged(
    cache: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("another server", "what is no YAML", "a server that is another"):
        work.commit(EDITS[name], name)
    work.commit({"broken.yaml": None}, "Mend")
    with monkeypatch.context() as patched:
        patched.setattr(deciding, "WORTH", 1_000_000)
        expected = anew(cache)
    assert "invalid" in expected.out
    assert (anew(cache), anew(cache)) == (expected, expected)
    (file,) = kept(cache)
    file.write_bytes(file.read_bytes()[:-1])
    assert (anew(cache).out, anew(cache)) == (expected.out, expected)
    with monkeypatch.context() as patched:
        patched.setattr(evaluator, "read", lambda *_: pytest.fail("the whole fleet was read"))
        assert anew(cache, "--rev", "HEAD~3").code == 0  # all commits of that are valid


def anew(cache: Path, *options: str) -> Done:
    """The history of a server, of which no earlier look at it is known."""
    (cache / "gitboot" / "cache.sqlite").unlink(missing_ok=True)
    return typed("history", "web01", *options)


def test_what_was_kept_is_not_found_out_again(cache: Path, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    typed("validate")
    work.write(EDITS["a server that is another"])
    monkeypatch.setattr(evaluator, "read", lambda *_: pytest.fail("the whole fleet was read"))
    assert typed("validate").code == 0
    assert "quiet" in typed("explain", "web01").out


def test_damage_is_told_once_and_repaired(cache: Path, work: Work) -> None:
    first = typed("plan")
    (file,) = kept(cache)
    file.write_bytes(file.read_bytes()[:-1])
    damaged, again = typed("plan"), typed("plan")
    assert (damaged.out, again) == (first.out, first)
    assert damaged.err == f"gitboot: what is kept in {file} does not count, and is found out anew: it is damaged, " + (
        f"or not from here\n{first.err}"
    )


def test_what_a_stranger_kept_hides_no_problem(cache: Path, work: Work, tmp_path: Path) -> None:
    typed("validate")
    (file,) = kept(cache)
    forged = file.read_bytes()
    for each in (file, tmp_path / "state" / "gitboot" / "cache.key"):  # as on another machine, with another key
        each.unlink()
    work.write({"tie.yaml": TIE})
    found = typed("validate")
    assert found.code == 3
    file.write_bytes(forged)
    assert (typed("validate").code, typed("validate").out) == (3, found.out)


def test_without_a_key_of_ones_own_nothing_is_kept(cache: Path, work: Work, tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    assert (typed("validate").code, kept(cache)) == (0, [])


def test_of_a_small_fleet_nothing_is_kept(cache: Path, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "WORTH", len(FILES) + 1)
    assert (typed("validate").code, kept(cache)) == (0, [])
    monkeypatch.setattr(deciding, "WORTH", len(FILES))
    assert typed("validate").code == 0
    assert len(kept(cache)) == 1


def test_what_cannot_be_written_does_no_harm(cache: Path, work: Work) -> None:
    cache.touch()
    assert mac_of("web01") in typed("plan", "-o", "json").out.replace("-", ":")


def test_what_no_fleet_looks_into_is_not_read(cache: Path, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    work.write({".gitbootignore": "left-out/\n", "README.md": "", "left-out/a.yaml": "{", "a.png": ""})
    read: list[str] = []
    content = worktree._content

    def noted(root: Path, path: str) -> tuple[bytes, os.stat_result]:
        read.append(path)
        return content(root, path)

    monkeypatch.setattr(worktree, "_content", noted)
    for _ in range(2):
        assert typed("validate").code == 0
        assert sorted(set(read)) == sorted([".gitbootignore", *FILES])
    assert kept(cache)
    monkeypatch.setattr(fingerprints, "_GRANULE_NS", -(10**18))  # as if all had been written long ago
    assert typed("validate").code == 0
    (file,) = cache.rglob("*.files.snapshot")
    read.clear()
    first = typed("plan", "-o", "json", *AT)
    assert WEB01 not in read
    work.write({WEB01: FILES[WEB01].replace(mac_of("web01"), mac_of("web02"))})  # of the same size
    os.utime(work.path / WEB01, ns=(0, 0))
    second = typed("plan", "-o", "json", *AT)
    assert WEB01 in read and second != first
    file.write_bytes(file.read_bytes()[:-1])
    assert typed("plan", "-o", "json", *AT) == second


def test_a_file_that_is_written_while_it_is_read_is_told(work: Work) -> None:
    first = open_snapshot(work.path, None).blobs
    assert isinstance(first, WorkFiles)
    known = {path: first[path] for path in (WEB01, "00.yaml")}
    again = open_snapshot(work.path, None)
    assert isinstance(again.blobs, WorkFiles)
    again.blobs.recall(dict(first.marks()))
    assert {path: again.blobs[path] for path in known} == known
    assert again.read(known["00.yaml"]).decode() == FILES["00.yaml"]
    work.write({WEB01: "{}"})
    with pytest.raises(SourceError, match=f"{WEB01}: it was written while the fleet was read"):
        again.read(known[WEB01])


def test_a_deadline_of_what_was_kept_is_told_still(cache: Path, work: Work) -> None:
    work.write(EDITS["a pin whose deadline is past"])
    first = typed("validate", *AT)
    assert first.code == 0 and "GB2016" in first.out
    assert typed("validate", *AT) == first


def test_a_warning_of_what_was_kept_is_told_still(cache: Path, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    lenient = FILES["00.yaml"].replace("spec: {", "spec: {requirePolicy: false, ")
    work.write({"00.yaml": lenient, "lone.yaml": server("lone"), "other.yaml": server("other")})
    assert typed("validate").out.count("GB2010") == 2
    work.write({"other.yaml": server("other", "role: web"), "web02.yaml": server("web02", "role: web")})
    told = typed("validate")
    assert told == without_cache(("validate",), monkeypatch)
    assert told.out.count("GB2010") == 1 and told.out.startswith("lone.yaml")


def test_what_is_kept_is_all_that_was_found_out(work: Work) -> None:
    work.write({"00.yaml": FILES["00.yaml"].replace("spec: {", "spec: {requirePolicy: false, ")})
    work.write({"lone.yaml": server("lone")})
    snapshot = open_snapshot(work.path, None)
    found = evaluator.Evaluator(lambda *_: snapshot)
    before = found.evaluate(snapshot.revision, None).head
    after = from_bytes(to_bytes(found.basis()), snapshot.read).foundation
    assert before.decided.flawed.keys() == {"lone"}
    for name in ("decisions", "of", "flawed", "unknown", "pools", "placed"):
        assert getattr(after.decided, name) == getattr(before.decided, name), name
    assert (after.loaded.documents, after.pinned) == (before.loaded.documents, before.pinned)


def test_damage_in_any_part_of_what_was_kept_changes_nothing_that_is_said(
    cache: Path, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sections, "BLOCK", 1)  # each record lies by itself
    typed("validate")
    (file,) = kept(cache)
    whole = file.read_bytes()
    work.write(EDITS["a server that is another"])
    expected = [without_cache(command, monkeypatch) for command in COMMANDS]
    told = f"gitboot: what is kept in {file} does not count, and is found out anew: it is damaged, or not from here\n"
    noticed = 0
    found = of_bytes(whole, (cache.parent / "state" / "gitboot" / "cache.key").read_bytes())
    for number, at in enumerate(sorted(each.offset for each in found.pieces)):
        command, said = COMMANDS[number % len(COMMANDS)], expected[number % len(COMMANDS)]
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        done = typed(*command)
        assert (done.code, done.out, done.err.removeprefix(told)) == (said.code, said.out, said.err), at
        noticed += done.err.startswith(told)
    assert noticed > 10
