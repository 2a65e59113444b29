"""`history`, `images`, `explain` with its commits, and the formats of `validate`, as their users type them."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gitboot import files
from gitboot.child_processes import encode
from gitboot.cli.main import Exit
from gitboot.disk_cache import DiskCache
from gitboot.model.scalars import SystemUuid
from gitboot.resolve.provisioning_record import Record, encode_records
from gitboot.text import format_names
from tests.helpers.fleets import (
    SEED,
    SHA,
    at,
    document,
    fleet,
    image,
    maintenance,
    make_mac,
    make_uuid,
    name_ledger,
    policy,
    profile,
    server,
    write_configuration,
)
from tests.helpers.git_repositories import WorkTree
from tests.helpers.instance_with_bmcs import run_command
from tests.helpers.running_instance import Instance, Repository, create_ledger, eventually, running

Typed = Callable[..., tuple[int, str, str]]

FILES = {f"{number:02}.yaml": text for number, text in enumerate(SEED)}
TIE = policy("tie", "{matchLabels: {role: web}}")


@pytest.fixture
def gitboot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Typed:
    """Run a command and return its exit code, output and errors."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return run_command


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    made = WorkTree(tmp_path / "work")
    made.commit(FILES, "Begin")
    return made


# validate


def test_validate_writes_several_formats_at_once(
    gitboot: Typed, work: WorkTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.write({"tie.yaml": TIE})
    monkeypatch.chdir(work.path.parent)
    formats = ("-o", "text", "-o", "json=v.json", "-o", "sarif=v.sarif", "-o", "junit=v.xml", "-o", "github=v.txt")
    code, out, _ = gitboot("validate", "work", *formats)
    (problem,) = json.loads(Path("v.json").read_text())["items"]
    (result,) = json.loads(Path("v.sarif").read_text())["runs"][0]["results"]
    (test,) = ElementTree.parse("v.xml").getroot().iter("testcase")
    assert code == 3
    assert out.startswith(f"work/06.yaml:{problem['line']}:{problem['column']}: GB2011")
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "work/06.yaml"
    assert (test.attrib["file"], test.attrib["classname"]) == ("work/06.yaml", "GB2011")
    assert Path("v.txt").read_text().startswith("::error file=work/06.yaml,")


@pytest.mark.parametrize(
    ("here", "path", "expected"),
    [("", "work", "work/"), ("", "{work}", "work/"), ("work", "{work}", ""), ("b", "{work}", "")],
)
def test_a_code_host_gets_paths_relative_to_its_checkout(
    gitboot: Typed, work: WorkTree, monkeypatch: pytest.MonkeyPatch, here: str, path: str, expected: str
) -> None:
    work.write({"tie.yaml": TIE})
    (work.path.parent / "b").mkdir()
    monkeypatch.chdir(work.path.parent / here)
    _, out, _ = gitboot("validate", path.format(work=work.path), "-o", "github")
    assert out.startswith(f"::error file={expected}06.yaml,")


# plan


# explain


def test_explain_shows_which_commit_wrote_each_field(gitboot: Typed, work: WorkTree) -> None:
    work.commit({"06.yaml": policy("web", "{matchLabels: {role: web}}", "kernelArguments: [quiet]")}, "Be quiet")
    (work.path / "01.yaml").write_text(server("web01", "role: web", "provision: 2"))
    code, out, _ = gitboot("explain", "web01", "--path", work.path)
    lines = out.splitlines()
    row = {line.split()[0]: number for number, line in enumerate(lines) if line and not line.startswith(" ")}
    assert code == 0
    assert lines[row["policy"] + 1] == f"    06.yaml:4:16  {work.head[:9]} 2026-11-20 Ada Lovelace"
    assert lines[row["provision"] + 1].endswith("  not committed yet")
    assert lines[row["phase"]].split("  ")[-1] == "the policy always boots from the network"
    assert not lines[row["phase"] + 1].startswith(" "), "written nowhere"
    reasons = json.loads(gitboot("explain", "web01", "--path", work.path, "-o", "json")[1])["reasons"]
    commits = {reason["field"]: reason["commit"] for reason in reasons}
    assert commits["policy"]["subject"] == "Be quiet"
    assert commits["image"]["subject"] == "Begin"
    assert commits["provision"] == {"revision": "WORKTREE", "author": None, "date": None, "subject": None}
    assert commits["phase"] is None


def test_explain_shows_no_commit_that_a_shallow_clone_may_lack(gitboot: Typed, work: WorkTree, tmp_path: Path) -> None:
    for often in ("Once", "Never"):
        work.commit({"06.yaml": policy("web", often=often)}, often)
    clone = tmp_path / "shallow"
    work.git("clone", "--quiet", "--depth=2", f"file://{work.path}", str(clone))
    (clone / "01.yaml").write_text(server("web01", "role: web", "provision: 2"))
    reasons = json.loads(gitboot("explain", "web01", "--path", clone, "-o", "json")[1])["reasons"]
    commits = {reason["field"]: reason["commit"] for reason in reasons}
    assert (commits["networkBoot"]["subject"], commits["image"]) == ("Never", None)
    assert commits["provision"]["revision"] == "WORKTREE"
    *_, place = gitboot("explain", "web01", "image", "--path", clone)[1].splitlines()
    assert re.fullmatch(r"    \S+.yaml:\d+:\d+", place)


def test_explain_shows_a_field_that_no_document_sets_and_lists_such_fields(gitboot: Typed, work: WorkTree) -> None:
    web = ("explain", "web01", "--path", work.path, "--records", "adopt")
    out = gitboot(*web)[1].splitlines()
    (first,) = (number for number, line in enumerate(out) if line.startswith("Other fields: "))
    named = " ".join(out[first:]).removeprefix("Other fields: ").replace(",", "").split()
    assert {"uuid", "power", "nodeLabels", "nodeTaints", "files", "waitFor"} <= set(named)
    assert {"policy", "image"}.isdisjoint(named)
    for field in named:
        assert gitboot("explain", "web01", field, *web[2:])[0] == 0, field
    assert gitboot("explain", "web01", "power", *web[2:])[1].splitlines() == [
        "FIELD  VALUE  RULE  REASON",
        "power  None   R3    the default",
    ]
    listed = json.loads(gitboot(*web, "-o", "json")[1])
    assert {each["field"] for each in listed["others"]} >= {"uuid", "power", "files.kernel"}
    (uuid,) = (each for each in listed["others"] if each["field"] == "uuid")
    assert (uuid["value"], uuid["path"], uuid["commit"]["subject"]) == (make_uuid("web01"), "01.yaml", "Begin")


# history


def test_history_shows_each_commit_and_its_changes(gitboot: Typed, work: WorkTree, tmp_path: Path) -> None:
    work.commit({"image.yaml": image("flatcar-2"), "04.yaml": profile("web", "flatcar-2")}, "Bump")
    work.commit({"06.yaml": policy("web", spec="kernelArguments: [quiet]", often="Once")}, "Be quiet")
    work.commit({"bad.yaml": "kind: Nonsense"}, "Break")
    work.commit({"bad.yaml": "kind: Nonesuch"}, "Break more")
    work.commit({"bad.yaml": None, "m.yaml": maintenance("repair", "20T22:00 21T04:00")}, "Plan a repair")
    code, out, _ = gitboot("history", "web01", "--path", work.path)
    head, more, broken, quiet, bump, begin = (work.git("rev-parse", f"HEAD~{n}")[:9] for n in (0, 1, 2, 3, 4, 5))
    day = "2026-11-20 Ada Lovelace"
    assert code == 0
    lines = out.splitlines()
    assert lines[:2] == [
        f"{head} {day}: Plan a repair",
        "    maintenances.repair  none  -> memtest-7, from 2026-11-20T22:00:00Z until 2026-11-21T04:00:00Z",
    ]
    assert lines[2].startswith(
        f"(2 commits, {broken} to {more}, are invalid, and did not change any decision: bad.yaml:1:7: GB1021"
    )
    assert lines[3:] == [
        f"{quiet} {day}: Be quiet",
        "    policy.boot.kernelArguments              +quiet",
        "    policy.networkBoot           Always      -> Once",
        "    policy.override              Continuous  -> Once",
        f"{bump} {day}: Bump",
        "    policy.boot.image  flatcar-1  -> flatcar-2",
        f"{begin} {day}: Begin",
        "    added         web01",
        "    policy  none  -> web: flatcar-1, Always",
    ]
    assert gitboot("history", "web01", "--path", work.path) == (code, out, "")
    assert (tmp_path / "cache" / "gitboot" / "cache.sqlite").exists()


STREAM = "current: flatcar-1, rollout: {image: flatcar-2, percent: %s}"


def test_the_history_of_a_document_shows_its_changed_fields(gitboot: Typed, work: WorkTree) -> None:
    """Comments, quotes and another file name change nothing. The rest of a commit may be invalid."""
    written = document("ImageStream", "flatcar", STREAM % "'10'")
    other = {"image.yaml": image("flatcar-2")}
    work.commit({**other, "s.yaml": document("ImageStream", "flatcar", STREAM % 10)}, "Roll out")
    work.commit({"s.yaml": f"# why\n{written}"}, "Comment")
    work.commit({"06.yaml": policy("web", spec="kernelArguments: [quiet]")}, "Be quiet")
    work.commit({"bad.yaml": "kind: Nonsense", "s.yaml": document("ImageStream", "flatcar", STREAM % 50)}, "Half")
    work.commit({"bad.yaml": None, "s.yaml": "kind: ImageStream\nmetadata: {name: flatcar\n"}, "Break it")
    work.commit({"s.yaml": None, "t.yaml": document("ImageStream", "flatcar", "current: flatcar-2")}, "Finish")
    work.commit({"t.yaml": None, "u.yaml": document("ImageStream", "flatcar", "current: flatcar-2")}, "Move")
    work.commit({"u.yaml": None}, "Remove")
    remove, _, finish, broken, half, _, _, roll = (work.git("rev-parse", f"HEAD~{n}")[:9] for n in range(8))
    day = "2026-11-20 Ada Lovelace"
    code, out, _ = gitboot("history", "ImageStream/flatcar", "--path", work.path)
    lines = out.splitlines()
    assert code == 0
    assert lines.pop(5).startswith(f"({broken} is invalid, so gitboot may have missed changes to the document: s.yaml:")
    assert lines == [
        f"{remove} {day}: Remove",
        "    removed    u.yaml",
        f"{finish} {day}: Finish",
        "    spec.current  flatcar-1                                -> flatcar-2",
        '    spec.rollout  {"image": "flatcar-2", "percent": "50"}  -> none',
        f"{half} {day}: Half",
        "    spec.rollout.percent  10  -> 50",
        f"{roll} {day}: Roll out",
        "    added    s.yaml",
    ]
    code, out, _ = gitboot("history", "ImageStream/flatcar", "--path", work.path, "-n", "2", "-o", "json")
    listed = json.loads(out)
    assert (code, listed["document"]) == (0, "ImageStream/flatcar")
    assert [(each["kind"], each["path"]) for each in listed["items"]] == [("Removed", "u.yaml"), ("Changed", "t.yaml")]
    assert listed["items"][1]["changes"][0] == {"field": "spec.current", "old": "flatcar-1", "new": "flatcar-2"}


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("specs: {networkBoot: Once}", "spec: {networkBoot: Once}", 'spec none -> {"networkBoot": "Once"}'),
        ("spec: [a]", "spec: [{name: b}]", "spec -a +{'name': 'b'}"),
        ("spec: {a: b}", "spec: [{name: b}]", 'spec {"a": "b"} -> [{"name": "b"}]'),
        ("spec: [{name: [a]}]", "spec: [{name: b}]", "spec -{'name': ['a']} +{'name': 'b'}"),
        ("spec: [{name: a}, {name: a, b: c}]", "spec: [{name: a}, {name: a}]", "spec -{'name': 'a', 'b': 'c'}"),
        ("spec: [{name: a, b: c}, {name: a}]", "spec: [{name: a}]", "spec -{'name': 'a', 'b': 'c'}"),
        ("spec: {a: b}", "spec: {a: b, c: [{name: d}]}", 'spec.c.d none -> {"name": "d"}'),
    ],
)
def test_the_history_of_a_document_shows_the_changes_of_an_invalid_document(
    gitboot: Typed, tmp_path: Path, old: str, new: str, expected: str
) -> None:
    work = WorkTree(tmp_path / "work")
    for text in (old, new):
        work.commit({"a.yaml": f"apiVersion: gitboot.dev/v1alpha1\nkind: Server\nmetadata: {{name: a}}\n{text}\n"})
    code, out, err = gitboot("history", "Server/a", "--path", work.path)
    assert (code, err) == (0, "")
    assert expected in " ".join(out.split())


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("ImageStream/flatcar", "no commit in the history of HEAD contains ImageStream/flatcar; check"),
        ("BootPolicy/wev", "contains BootPolicy/wev; did you mean BootPolicy/web?"),
        ("Stream/flatcar", "'Stream/flatcar' is not the name of a document; use KIND/NAME, where KIND is one of "),
        ("Server/", "'Server/' is not the name of a document"),
        ("web09", "no commit in the history of HEAD contains a server 'web09'; did you mean web01?"),
    ],
)
def test_a_subject_that_does_not_exist_is_a_usage_error(
    gitboot: Typed, work: WorkTree, subject: str, expected: str
) -> None:
    code, out, err = gitboot("history", subject, "--path", work.path)
    assert (code, out) == (64, "")
    assert expected in err


def test_history_shows_what_exported_records_name_as_the_last_installation(
    gitboot: Typed, work: WorkTree, tmp_path: Path
) -> None:
    uuid, web = SystemUuid(make_uuid("web01")), ("web01", "--path", work.path)
    record = Record(provision=1, image="flatcar-1", evidence="Reported", provisioned_at=at("19T10:00"))
    for known, expected in (
        (record, ["2026-11-19T10:00:00Z", "flatcar-1", "Reported"]),
        (replace(record, overwritten_by="repair"), ["2026-11-19T10:00:00Z", "flatcar-1", "Reported", "repair"]),
        (replace(record, image=None, version="7.9"), ["2026-11-19T10:00:00Z", "version", "7.9", "Reported"]),
        (Record(), ["The", "records", "contain", "no", "installations."]),
    ):
        (tmp_path / "records.json").write_bytes(encode_records({uuid: known}))
        code, out, _ = gitboot("history", *web, "--records", tmp_path / "records.json")
        *_, last = out.splitlines()
        assert (code, [each for each in last.split() if each in expected]) == (0, expected)
    listed = json.loads(gitboot("history", *web, "--records", tmp_path / "records.json", "-o", "json")[1])
    assert listed["installations"] == []
    assert json.loads(gitboot("history", *web, "-o", "json")[1])["installations"] is None
    code, _, err = gitboot("history", *web, "--records", tmp_path / "none.json")
    assert (code, "none.json cannot be read: No such file or directory" in err) == (Exit.USAGE, True), err


def test_history_lists_every_installation_of_a_machine_in_the_ledger(gitboot: Typed, tmp_path: Path) -> None:
    """Two installations from the network, and one by another tool. An event of version 0.1.0 names only the server."""
    repository, state = Repository.create(tmp_path / "git"), tmp_path / "state"

    def describe(image_name: str, provision: int) -> dict[str, str]:
        settings = name_ledger(create_ledger(state), fleet())
        web = server("web01", "role: web", f"provision: {provision}")
        rest = (image("flatcar-1"), image("flatcar-2"), profile("web", image_name), policy("web", often="Once"))
        return {"fleet.yaml": "---\n".join((settings, web, *rest))}

    def is_installed(instance: Instance, image_name: str) -> bool:
        instance.get(f"/v1/boot/{make_mac('web01').replace(':', '-')}/boot.ipxe")
        return any(each["type"] == "Provisioned" and each["image"] == image_name for each in instance.events)

    repository.push(describe("flatcar-1", 1))
    options = ("--poll", "1", "--spool", str(tmp_path), *map(str, write_configuration(max_reinstalls=9)))
    with running(repository.bare, tmp_path, *options, records="fresh") as instance:
        eventually(lambda: is_installed(instance, "flatcar-1"))
        repository.push(describe("flatcar-2", 2), "Install 2")
        eventually(lambda: is_installed(instance, "flatcar-2"))
    reason = ("--reason", "rescue", "--state", state)
    assert gitboot("records", "set", "web01", "provisioned", "--version", "Debian 12.5", *reason)[0] == 0
    with closing(sqlite3.connect(state / "ledger.sqlite")) as ledger, ledger:
        found = ledger.execute("SELECT id, facts FROM events WHERE type = 'Provisioned' ORDER BY id").fetchall()
        facts = {name: value for name, value in json.loads(found[0][1]).items() if name != "uuid"}
        ledger.execute("UPDATE events SET facts = ? WHERE id = ?", (json.dumps(facts), found[0][0]))
        other = {**facts, "uuid": make_uuid("another machine with this name")}
        ledger.execute(
            "INSERT INTO events (at, type, message, facts) VALUES ('2026-11-01T00:00:00Z', 'Provisioned', '', ?)",
            (json.dumps(other),),
        )
    code, out, _ = gitboot("history", "web01", "--state", state)
    assert code == 0
    assert [line.split()[2:] for line in out.splitlines() if "Install 2" in line] == [["A:", "Install", "2"]]
    assert [line.split()[1:] for line in out.splitlines()[-4:]] == [
        ["IMAGE", "EVIDENCE"],
        ["version", "Debian", "12.5", "Operator"],
        ["flatcar-2", "Fetched"],
        ["flatcar-1", "Fetched"],
    ]
    listed = json.loads(gitboot("history", "web01", "--state", state, "-o", "json")[1])["installations"]
    assert [each["image"] or each["version"] for each in listed] == ["Debian 12.5", "flatcar-2", "flatcar-1"]
    assert sorted((each["at"] for each in listed), reverse=True) == [each["at"] for each in listed]


def test_history_shows_the_removed_and_added_elements_of_a_list_or_its_new_order(
    gitboot: Typed, work: WorkTree
) -> None:
    for arguments in ("a, b", "b, a", "b, c"):
        work.commit({"06.yaml": policy("web", spec=f"kernelArguments: [{arguments}]")}, arguments)
    lines = [line.split() for line in gitboot("history", "web01", "--path", work.path)[1].splitlines()]
    told = [" ".join(line[1:]) for line in lines if line[0] == "policy.boot.kernelArguments"]
    assert told == ["-a +c", 'in another order ["b", "a"]', "+a +b"]


def test_history_is_cached_in_the_home_directory_by_default(
    gitboot: Typed, work: WorkTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification says to ignore it
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(work.path)
    assert gitboot("history", "web01")[0] == 0
    assert (tmp_path / "home" / ".cache" / "gitboot" / "cache.sqlite").exists()
    assert work.git("status", "--porcelain") == ""


def test_with_no_cache_everything_is_computed_again_and_nothing_is_stored(
    gitboot: Typed, work: WorkTree, tmp_path: Path
) -> None:
    cache = tmp_path / "cache" / "gitboot" / "cache.sqlite"
    expected = gitboot("history", "web01", "--path", work.path, "--no-cache")
    assert expected[0] == 0 and "added" in expected[1]
    assert not cache.exists()
    with DiskCache(cache, pytest.fail) as other:
        key = encode(work.git("rev-parse", "HEAD^{tree}"))
        other.insert_many("history-problem", {key: encode("a problem of the cache")})
    assert "no commit in the history of HEAD contains a server" in gitboot("history", "web01", "--path", work.path)[2]
    assert gitboot("history", "web01", "--path", work.path, "--no-cache") == expected


def test_if_its_cache_cannot_be_written_history_is_the_same_with_a_warning(
    gitboot: Typed, work: WorkTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.commit({"06.yaml": policy("web", often="Never")}, "Stop")
    code, out, _ = gitboot("history", "web01", "--path", work.path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    said = (
        f"gitboot: the cache {tmp_path}/file/gitboot/cache.sqlite is not used: Not a directory (to evaluate without "
        "a cache, use --no-cache)\n"
    )
    assert gitboot("history", "web01", "--path", work.path) == (code, out, said)


def test_history_stores_nothing_on_a_network_file_system(
    gitboot: Typed, work: WorkTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "find_filesystem", lambda path: "nfs4" if path == tmp_path else "ext4")
    assert gitboot("history", "web01", "--path", work.path)[::2] == (0, "")
    assert not (tmp_path / "cache").exists()


def test_history_shows_as_many_commits_as_requested(gitboot: Typed, work: WorkTree) -> None:
    work.commit({"06.yaml": policy("web", often="Never")}, "Stop")
    assert gitboot("history", "web01", "--path", work.path, "-n", "1")[1].splitlines()[0].endswith("Stop")
    assert "Begin" not in gitboot("history", "web01", "--path", work.path, "-n", "1")[1]
    assert "Stop" not in gitboot("history", "web01", "--path", work.path, "--rev", "HEAD~1")[1]


def test_history_as_json_has_every_field_and_the_invalid_commits(gitboot: Typed, work: WorkTree) -> None:
    work.commit({"bad.yaml": "kind: Nonsense"}, "Break")
    work.commit({"bad.yaml": None, "image.yaml": image("flatcar-2"), "04.yaml": profile("web", "flatcar-2")}, "Bump")
    found = json.loads(gitboot("history", "web01", "--path", work.path, "-o", "json")[1])
    assert (found["apiVersion"], found["server"]) == ("gitboot.dev/v1alpha1", "web01")
    bump, broken, begin = found["items"]
    assert (bump["kind"], broken["kind"], begin["kind"]) == ("Changed", "Skipped", "Added")
    assert bump["commit"] == {
        "revision": work.head,
        "author": "Ada Lovelace <ada@example.net>",
        "date": "2026-11-20T21:00:00Z",
        "subject": "Bump",
    }
    assert {"field": "policy.boot.image", "old": "flatcar-1", "new": "flatcar-2"} in bump["changes"]
    assert "policy.boot.files.kernel.url" in {change["field"] for change in bump["changes"]}
    assert "GB1021" in broken["problem"]


@pytest.mark.parametrize(
    ("command_line", "said"),
    [
        ("history web02 --path {work}", "no commit in the history of HEAD contains a server 'web02'"),
        ("history web01 --path {work} --rev WORKTREE", "WORKTREE has no history"),
        ("history web01 --path {work} --rev nonsense", "has no commit nonsense"),
        ("history web01 --rev HEAD~99", "gitboot: this repository has no commit HEAD~99"),
        ("history web01 --path {nothing}", "is not in a Git repository, so it has no history"),
        ("history web01 --path {work} -n 0", "0 is not in the range x>=1"),
        ("images {nothing} --rev HEAD", "is not in a Git repository"),
    ],
)
def test_a_wrong_input_ends_in_one_message(
    gitboot: Typed, work: WorkTree, monkeypatch: pytest.MonkeyPatch, command_line: str, said: str
) -> None:
    nothing = work.path.parent / "nothing"
    nothing.mkdir()
    monkeypatch.chdir(work.path)
    code, out, err = gitboot(*command_line.format(work=work.path, nothing=nothing).split())
    assert (code, out) == (64, "")
    assert said in " ".join(err.split())


def test_a_shallow_clone_is_reported(gitboot: Typed, work: WorkTree, tmp_path: Path) -> None:
    work.commit({"06.yaml": policy("web", often="Never")}, "Stop")
    work.git("clone", "--quiet", "--depth=1", f"file://{work.path}", str(tmp_path / "shallow"))
    for command in ("history", "explain"):
        assert "git fetch --unshallow" in gitboot(command, "web01", "--path", tmp_path / "shallow")[2]
        assert "shallow" not in gitboot(command, "web01", "--path", work.path)[2]


# images


def test_images_fit_in_100_columns_and_show_pins_rollouts_and_holds(gitboot: Typed, work: WorkTree) -> None:
    reason = "The NIC loses its VLAN tags under newer drivers of 2026"
    pin = f"pin: {{image: flatcar-0, reason: {reason}, until: '2026-11-01T00:00:00Z'}}"
    stream = document(
        "ImageStream",
        "stable",
        "current: flatcar-1, rollout: {image: flatcar-2, percent: 1}, skew: {mode: Warn, minimumVersion: '1'}",
    )
    work.commit(
        {
            "s.yaml": stream,
            "04.yaml": profile("web", "stream: stable"),
            **{f"i{number}.yaml": image(f"flatcar-{number}") for number in (0, 2)},
            **{
                f"web{number}.yaml": server(f"web{number}", "role: web", pin if number == 10 else "")
                for number in range(10, 24)
            },
        }
    )
    (work.path.parent / "records.json").write_bytes(encode_records({make_uuid("web01"): Record(image="flatcar-0")}))  # type: ignore[dict-item]
    code, out, _ = gitboot(
        "images", work.path, "--at", "2026-11-20T00:00:00Z", "--records", work.path.parent / "records.json"
    )
    assert code == 0
    assert max(map(len, out.splitlines())) <= 100
    tables = {table.split()[0]: table.splitlines() for table in out.split("\n\n")}
    assert tables["IMAGE"][1].split() == ["flatcar-0", "0", "1", "1", "0", "-"]  # the file has no record of web10
    assert tables["STREAM"][1].split() == ["stable", "15", "flatcar-1", "(14)", "flatcar-2", "at", "1", "%", "(0)"]
    assert tables["PIN"][1].split()[:7] == ["the", "pin", "of", "web10", "flatcar-0", "2026-11-01", "overdue"]
    assert tables["SERVER"][1].split() == ["web10", "flatcar-0", "0", "1", "stable"]
    facts = json.loads(gitboot("images", work.path, "-o", "json")[1])
    joining = facts["streams"][0]["joining"]
    assert len(joining) > 9  # the last row has all that join later
    rows = [(f"{each['percent']} %", each["servers"]) for each in joining[:8]]
    later = [name for each in joining[8:] for name in each["servers"]]
    rows.append((f"{joining[8]['percent']}–{joining[-1]['percent']} %", later))
    assert [re.split(r" {2,}", row)[1:] for row in tables["ROLLOUT"][1:]] == [
        [percent, str(len(names)), format_names(names, 3)] for percent, names in rows
    ]
    assert facts["items"][0]["provisioned"] is None and facts["revision"] == "WORKTREE"
    assert sorted(name for each in facts["streams"][0]["joining"] for name in each["servers"]) == [
        "web01",
        *(f"web{number}" for number in range(11, 24)),
    ]


def test_images_show_claims_followed_sources_and_boots_without_a_required_signature(
    gitboot: Typed, work: WorkTree
) -> None:
    key, url = "F" * 40, "https://vendor.test/kernel"
    claims = f"{{kernel: {{url: '{url}', sha256: {SHA}, provenance: {{digest: signed, key: {key}}}}}, "
    claims += f"initrds: [{{url: 'assets:a', sha256: {SHA}, provenance: {{digest: firstSeen}}}}, "
    claims += f"{{url: 'assets:b', sha256: {SHA}}}]}}"
    follow = (
        "follow: {source: flatcar, channel: lts, minimumVersion: '2', belowVersion: '4', minimumAge: 3d, percent: 5}"
    )
    work.commit(
        {
            "s.yaml": document("ImageStream", "stable", f"current: flatcar-2, requireProvenance: signed, {follow}"),
            "i.yaml": document("BootImage", "flatcar-2", f"version: '2', architectures: {{x86_64: {claims}}}"),
            "p.yaml": profile("direct", "flatcar-2"),
        }
    )
    _, out, _ = gitboot("images", work.path)
    tables = [table.splitlines() for table in out.split("\n\n")]
    (row,) = (line for line in tables[1] if line.startswith("flatcar-2"))
    assert row.split()[1:7] == ["not", "stated:", "1", "file,", "first", "seen:"]
    assert f"signed by {key}: 1 file" in " ".join(" ".join(tables[1]).split()).replace("assets, vendor.test ", "")
    assert "assets, vendor.test" in row
    assert " ".join(tables[3][1].split()) == (
        "stable flatcar, channel lts, from 2, below 4, after 3d, begins at 5 % signed"
    )
    assert tables[4][1].split() == ["BootProfile/direct", "flatcar-2", "stable"]
    facts = json.loads(gitboot("images", work.path, "-o", "json")[1])
    (files,) = (each["files"] for each in facts["items"] if each["name"] == "flatcar-2")
    assert files == {
        "x86_64.kernel": {"digest": "signed", "key": key, "url": None},
        "x86_64.initrds[0]": {"digest": "firstSeen", "key": None, "url": None},
        "x86_64.initrds[1]": None,
    }
    (stream,) = facts["streams"]
    assert (stream["follow"]["source"], stream["requireProvenance"]) == ("flatcar", "signed")
    assert facts["uncovered"] == [
        {
            "document": {"kind": "BootProfile", "name": "direct"},
            "profile": "direct",
            "image": "flatcar-2",
            "stream": "stable",
        }
    ]


def test_a_fleet_without_streams_has_one_table(gitboot: Typed, work: WorkTree) -> None:
    _, out, _ = gitboot("images", work.path)
    assert out.splitlines()[0].split()[0] == "IMAGE"
    assert out.splitlines()[1].split() == ["flatcar-1", "1", "1", "?", "0", "-"]
    assert "\n\n" not in out
