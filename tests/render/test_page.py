"""The page as files: what a commit rewrites, the source locations of fields, and what is left out without the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import structs

from gitboot.cli.main import cli
from gitboot.controller.instance.state_directory import StatusFile
from gitboot.fleet.revision import CommitSummary, FileChanges, Revision
from gitboot.render.page import MAX_HISTORY_PATHS, list_plan_changes, render_history
from gitboot.render.paths import PAGE, PAGE_DATA
from gitboot.resolve.server_plan import Cause
from gitboot.status.instance_status import Acknowledgement, ChangedArea, Status
from tests.controller.test_reconcile import REPAIR, Instance, fleet_files
from tests.helpers.endpoints import ALWAYS, plan_fleet
from tests.helpers.fleets import at, document, fleet, image, maintenance, policy, profile, server
from tests.helpers.instance_in_process import UNLIMITED, reconcile_once, run_in_process
from tests.helpers.published_trees import verify_tree
from tests.helpers.running_instance import Repository, git

BEFORE, AFTER = at("20T21:00"), at("21T21:00")
SHOWN = fleet("baseURL: 'http://boot.test', outputs: [ipxe, pages]")
QUIET = "kernelArguments: [quiet]"
MORE = {f"servers/web{number:02}.yaml": server(f"web{number:02}", "role: web") for number in range(2, 12)}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    made = Repository.create(tmp_path / "git")
    made.push({**fleet_files(REPAIR), "00.yaml": SHOWN, "04.yaml": profile("web", "flatcar-1", QUIET), **MORE})
    return made


@pytest.fixture
def instance(tmp_path: Path, repository: Repository) -> Iterator[Instance]:
    with Instance(tmp_path) as instance:
        instance.reconcile(BEFORE)
        yield instance


Push = Callable[[dict[str, str]], object]


@pytest.fixture
def push(repository: Repository, instance: Instance) -> Push:
    def push_and_reconcile(files: dict[str, str]) -> None:
        repository.push(files)
        instance.reconcile(BEFORE)

    return push_and_reconcile


def read_page_data(output: Path, name: str) -> Any:
    called, value = json.loads(
        "[" + (output / PAGE_DATA / f"{name}.js").read_text()[len("gitboot(") : -len(");\n")] + "]"
    )
    assert called == name
    return value


def read_mtimes(output: Path) -> dict[str, int]:
    folder = output / PAGE
    return {str(each.relative_to(folder)): each.stat().st_mtime_ns for each in folder.rglob("*") if each.is_file()}


def find_rewritten(output: Path, before: dict[str, int]) -> set[str]:
    now = read_mtimes(output)
    return {path for path in before.keys() | now.keys() if before.get(path) != now.get(path)}


def rows(output: Path) -> dict[str, dict[str, Any]]:
    shards = [read_page_data(output, f"shard/{each}") for each in read_page_data(output, "fleet")["shards"]]
    found = [dict(zip(shard["columns"], row, strict=True)) for shard in shards for row in shard["rows"]]
    return {row["name"]: row for row in found}


def read_lines(output: Path, name: str) -> dict[str, tuple[str, int]]:
    server, shared = read_page_data(output, f"server/{name}"), read_page_data(output, "location/shared")
    file, above = read_page_data(output, f"location/{server['shard']}")[name]

    def place(resource: str, at: int | str) -> tuple[str, int]:
        if isinstance(at, int):
            return file, above + at
        document = shared[resource]
        while at not in document["lines"]:
            at = at.rpartition("/")[0]
        return document["file"], document["lines"][at]

    return {
        f"{under + ' ' if under else ''}{field}": place(resource, at)
        for field, _, _, _, under, resource, at in server["lines"]
        if resource is not None
    }


def run_explain(work: Path, name: str) -> dict[str, tuple[str, int]]:
    done = CliRunner().invoke(cli, ["explain", name, "--path", str(work), "--records", "fresh", "-o", "json"])
    assert done.exit_code == 0, done.output
    reasons = json.loads(done.stdout)["reasons"]
    return {each["field"]: (each["path"], each["line"]) for each in reasons if each["path"] is not None}


def test_a_commit_of_one_server_only_rewrites_its_own_files_of_the_page(push: Push, instance: Instance) -> None:
    before, shards = read_mtimes(instance.output), read_page_data(instance.output, "fleet")["shards"]
    assert (len(rows(instance.output)), len(shards) > 5) == (11, True)
    push({"servers/web07.yaml": server("web07", "role: web, rack: r1", "kernelArguments: [debug]")})
    others = find_rewritten(instance.output, before)
    (shard,) = (path for path in others if path.startswith("data/shard/"))
    assert others - {f"data/location/{Path(shard).name}"} == {"data/server/web07.js", "data/fleet.js", shard}
    assert "web07" in (instance.output / PAGE / shard).read_text()
    assert read_lines(instance.output, "web07")["kernelArguments[1]"] == ("servers/web07.yaml", 4)
    assert verify_tree(instance.output) == ()


def test_moved_lines_of_a_shared_document_rewrite_one_file(
    repository: Repository, push: Push, instance: Instance
) -> None:
    policy = (repository.work / "06.yaml").read_text()
    before = read_mtimes(instance.output)
    push({"06.yaml": f"# moved\n{policy}"})
    assert find_rewritten(instance.output, before) == {"data/fleet.js", "data/location/shared.js"}
    assert read_lines(instance.output, "web01")["policy"] == ("06.yaml", 5)
    assert verify_tree(instance.output) == ()


def test_a_new_line_in_a_file_of_many_servers_rewrites_no_other_server(
    repository: Repository, push: Push, instance: Instance
) -> None:
    names = [f"web{number:02}" for number in range(2, 12)]
    together = {name: MORE[f"servers/{name}.yaml"] for name in names}
    git(repository.work, "rm", "-q", "-r", "servers")
    push({"servers.yaml": "---\n".join(together.values())})
    before, line = read_mtimes(instance.output), read_lines(instance.output, "web11")["provision"]
    together["web05"] = f"# another line\n{together['web05']}"
    push({"servers.yaml": "---\n".join(together.values())})
    others = find_rewritten(instance.output, before)
    assert {path for path in others if not path.startswith("data/location/")} == {
        "data/fleet.js",
        "data/server/web05.js",
    }
    assert read_lines(instance.output, "web11")["provision"] == (line[0], line[1] + 1)
    for name in (*names, "web01"):
        assert read_lines(instance.output, name).items() >= run_explain(repository.work, name).items(), name
    assert verify_tree(instance.output) == ()


def test_the_page_has_the_lines_of_explain(repository: Repository, push: Push, instance: Instance) -> None:
    # Also of values that are not written, and of documents that share a file.
    more = "vars: {console: ttyS1}, kernelArguments: [debug, 'console=ttyS0'], pin: {image: flatcar-1, reason: GPU}"
    together = "---\n".join((MORE["servers/web02.yaml"], server("web03", "role: web", more), policy("rest", "None")))
    git(repository.work, "rm", "-q", "servers/web02.yaml", "servers/web03.yaml")
    push({"all.yaml": f"# two servers and a policy\n{together}"})
    for name in ("web01", "web02", "web03", "web07"):
        found = run_explain(repository.work, name)
        assert found and read_lines(instance.output, name).items() >= found.items(), name


ROLLOUT = "rollout: {image: flatcar-2, percent: 0, selector: %s}"


def test_finding_r6_the_table_shows_who_waits_for_a_rollout_even_if_no_boot_changes(
    push: Push, instance: Instance
) -> None:
    def waiting(more: str) -> set[str]:
        stream = document("ImageStream", "flatcar", f"current: flatcar-1, {more}")
        boots = profile("web", "stream: flatcar", QUIET)
        push({"stream.yaml": stream, "image.yaml": image("flatcar-2"), "04.yaml": boots})
        assert verify_tree(instance.output) == ()
        return {name for name, row in rows(instance.output).items() if row["joins"] is not None}

    assert waiting("holds: []") == set()
    plans = {path: path.read_bytes() for path in (instance.output / "boot").rglob("*.ipxe")}
    assert len(waiting(ROLLOUT % "All")) == 11
    assert waiting(ROLLOUT % "{servers: [web03, web07]}") == {"web03", "web07"}
    assert (waiting(ROLLOUT % "{servers: [web03]}"), waiting("holds: []")) == ({"web03"}, set())
    assert {path: path.read_bytes() for path in (instance.output / "boot").rglob("*.ipxe")} == plans


def test_a_changed_field_of_another_document_is_shown_even_if_nothing_else_changes(
    push: Push, instance: Instance
) -> None:
    assert read_lines(instance.output, "web01")["kernelArguments[0]"] == ("04.yaml", 4)
    before = (instance.output / "ops/servers/web01.json").read_bytes()
    push({"01.yaml": server("web01", "role: web", QUIET)})
    assert read_lines(instance.output, "web01")["kernelArguments[0]"] == ("01.yaml", 4)
    assert json.loads(before)["plan"] == json.loads((instance.output / "ops/servers/web01.json").read_bytes())["plan"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("06.yaml", policy("web", "{matchLabels: {role: web}}", "vars: {unused: a}")),
        ("04.yaml", profile("web", "flatcar-1", f"{QUIET}, vars: {{unused: a}}")),
    ],
    ids=["a policy", "a profile"],
)
def test_a_changed_shared_document_changes_the_explanation_even_if_no_decision_changes(
    push: Push, instance: Instance, file: str, text: str
) -> None:
    plans = {path: path.read_bytes() for path in (instance.output / "boot").rglob("*.ipxe")}
    push({file: text})
    assert {read_lines(instance.output, name)["vars.unused"] for name in rows(instance.output)} == {(file, 4)}
    assert {path: path.read_bytes() for path in (instance.output / "boot").rglob("*.ipxe")} == plans


def test_the_page_has_the_values_of_both_a_policy_and_a_maintenance(instance: Instance) -> None:
    found = read_lines(instance.output, "web01")
    assert (found["policy"], found["repair profile"]) == (("06.yaml", 4), ("07.yaml", 4))
    row = rows(instance.output)["web01"]
    assert (row["windows"], row["installs"]) == (["repair"], "now")
    (window,) = read_page_data(instance.output, "fleet")["maintenances"]
    assert (window["name"], window["start"], window["end"]) == (
        "repair",
        "2026-11-20T22:00:00Z",
        "2026-11-21T04:00:00Z",
    )
    assert [each["by"] for each in read_page_data(instance.output, "server/web01")["later"]] == ["repair", "web"]


def test_a_change_that_comes_only_if_no_instance_runs_is_not_shown() -> None:
    state = plan_fleet(*ALWAYS, maintenance("repair")).servers["web01"]
    (_, unheard), *_ = state.later
    assert unheard is not None and unheard.cause is Cause.INSTANCE_SILENT
    assert list(list_plan_changes(state.plan, state.later)) == []


def test_the_changes_of_a_commit_are_shown_after_acceptance_and_its_acknowledgements_before(
    repository: Repository, push: Push, instance: Instance
) -> None:
    push({"servers/web07.yaml": server("web07", "role: web", "kernelArguments: [debug]")})
    told = instance.reconciler.status.changed
    assert [(each.label, each.changed, each.size) for each in told] == [("", 1, 11), ("role=web", 1, 11)]
    push({"04.yaml": profile("web", "flatcar-1")})
    status = instance.reconciler.status
    assert status.held is not None and status.changed == told
    assert status.held.lines == (f"Gitboot-Ack: {status.held.digest} maxUpdatePercent",)
    git(repository.work, "commit", "-q", "--allow-empty", "-m", f"Go\n\n{status.held.lines[0]}")
    push({"note.txt": ""})
    assert {each.changed for each in instance.reconciler.status.changed} == {0, 11}
    assert {each.subject for each in instance.reconciler.status.changed} == {"Go", "Change"}


def test_the_changes_of_the_accepted_commit_are_shown_after_a_start_too(tmp_path: Path) -> None:
    changed = ChangedArea(commit="c0ffee", label="", size=3, changed=2, less=0, removed=0, added=0, reinstalled=1)
    StatusFile(tmp_path, lambda: BEFORE).write(Status(accepted="c0ffee", changed=(changed,)).facts())
    again = StatusFile(tmp_path, lambda: AFTER)
    assert [each["changed"] for each in again.write(Status(accepted="c0ffee").facts())["accepted"]["changed"]] == [2]
    assert again.write(Status(accepted="deadbeef").facts())["accepted"]["changed"] == []
    later = structs.replace(changed, commit="beef", changed=3)
    told = again.write(Status(accepted="beef", changed=(later,)).facts())["accepted"]["lately"]
    assert [(each["commit"], each["at"], each["changed"]) for each in told] == [
        ("beef", "2026-11-21T21:00:00Z", 3),
        ("c0ffee", "2026-11-20T21:00:00Z", 2),
    ]


def test_the_approver_of_a_commit_stays_with_it_when_the_next_is_accepted(tmp_path: Path) -> None:
    changed = ChangedArea(commit="c0ffee", label="", size=3, changed=2, less=0, removed=0, added=0, reinstalled=2)
    by = Acknowledgement(commit="c0ffee", guard="maxReinstalls", by="ada, with gitboot approve: planned")
    left = StatusFile(tmp_path, lambda: BEFORE)
    left.write(
        Status(accepted="c0ffee", changed=(structs.replace(changed, subject="Install"),), acknowledged=(by,)).facts()
    )
    later = Status(accepted="beef", changed=(structs.replace(changed, commit="beef"),))
    told = StatusFile(tmp_path, lambda: AFTER).write(later.facts())["accepted"]["lately"]
    assert [(each["commit"], each["subject"], each["acknowledged"]) for each in told] == [
        ("beef", "", []),
        ("c0ffee", "Install", [{"guard": by.guard, "by": by.by}]),
    ]


def test_a_removed_server_leaves_nothing_on_the_page(repository: Repository, push: Push, instance: Instance) -> None:
    git(repository.work, "rm", "-q", "servers/web07.yaml")
    push({"note.txt": ""})
    assert "web07" not in rows(instance.output)
    assert not (instance.output / PAGE_DATA / "server/web07.js").exists()
    assert verify_tree(instance.output) == ()


def test_the_page_is_added_and_removed_by_the_outputs_of_the_fleet(push: Push, instance: Instance) -> None:
    whole = {path.relative_to(instance.output) for path in (instance.output / PAGE).rglob("*.js")}
    instance.directory.write_status(b'{"at": null}', BEFORE)
    assert read_page_data(instance.output, "status") == {"at": None}
    push({"00.yaml": fleet("baseURL: 'http://boot.test', outputs: [ipxe]")})
    instance.directory.write_status(b'{"at": null}', BEFORE)
    assert [*(instance.output / PAGE).rglob("*")] == []
    push({"00.yaml": SHOWN})
    assert {path.relative_to(instance.output) for path in (instance.output / PAGE).rglob("*.js")} == whole
    assert read_lines(instance.output, "web11")["policy"] == ("06.yaml", 4)
    assert verify_tree(instance.output) == ()


# The history


def test_finding_r12_an_instance_publishes_the_last_commits_and_their_files(
    tmp_path: Path, repository: Repository
) -> None:
    with run_in_process(tmp_path, repository.bare, initial="fresh", limits=UNLIMITED) as parts:
        for number in range(2):
            reconcile_once(parts, number)
        pushed = repository.push({"04.yaml": profile("web", "flatcar-1", "kernelArguments: [debug]")}, "Debug web")
        for number in range(2, 4):
            reconcile_once(parts, number)
        found = read_page_data(tmp_path / "output", "history")
        newest, first = found["commits"]
        assert (newest["commit"], newest["subject"], newest["author"]) == (pushed, "Debug web", "A")
        assert (newest["files"], found["files"]["04.yaml"]) == (1, [0, 1])
        assert first["files"] == len(found["files"]) > 10
        assert verify_tree(tmp_path / "output") == ()
        repository.push({"00.yaml": fleet("baseURL: 'http://boot.test', outputs: [ipxe]")})
        for number in range(4, 6):
            reconcile_once(parts, number)
        assert not (tmp_path / "output" / PAGE_DATA / "history.js").exists()


def test_finding_r12_the_history_has_a_bounded_size() -> None:
    """A commit that changes too many files, or has long texts, has only their number and the beginning."""

    def commit(number: int, files: int) -> FileChanges:
        summary = CommitSummary(
            revision=Revision(f"{number:040}"), author=f"{'A' * 999} <a@test>", date=BEFORE, subject="S" * 999
        )
        return FileChanges(commit=summary, files=tuple(f"{number}/{each}.yaml" for each in range(files)))

    found = json.loads(render_history([commit(1, 2), commit(2, MAX_HISTORY_PATHS), commit(3, 0), commit(4, 1)]))
    assert [(each["files"], each["listed"]) for each in found["commits"]] == [
        (2, True),
        (MAX_HISTORY_PATHS, False),
        (1, True),
    ]
    assert found["files"] == {"1/0.yaml": [0], "1/1.yaml": [0], "4/0.yaml": [2]}
    assert {(len(each["author"]), len(each["subject"])) for each in found["commits"]} == {(120, 120)}
