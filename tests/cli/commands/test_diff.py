"""`gitboot diff` as it is typed, over real repositories: ranges, merges, acknowledgements, formats and exit codes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

from gitboot.publish.manifest import MANIFEST
from tests.helpers.artifact_servers import artifact_server, compute_digest
from tests.helpers.evaluations import FLEET
from tests.helpers.fleets import SHA, document, image, maintenance, policy, server
from tests.helpers.git_repositories import Person, WorkTree, gpg_people, make_ssh_person, sign_with_gpg, write_lines
from tests.helpers.instance_with_bmcs import CommandResult, run_command

BUMP = {"stream.yaml": document("ImageStream", "stable", "current: flatcar-2")}
ONE = {
    "servers/fra1-web01.yaml": server("fra1-web01", "site: fra1, role: web", "provision: 1, kernelArguments: [debug]")
}
TWO = {
    "servers/fra1-web02.yaml": server("fra1-web02", "site: fra1, role: web", "provision: 1, kernelArguments: [debug]")
}
RAISED = {"servers/fra1-db01.yaml": server("fra1-db01", "site: fra1, role: db", "provision: 2")}
OTHER = {"images/3.yaml": image("new-3")}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "fleet"
    WorkTree(path).commit(FLEET)
    return path


@pytest.fixture
def work(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkTree:
    shutil.copytree(template, tmp_path / "fleet")
    monkeypatch.chdir(tmp_path / "fleet")
    found = WorkTree(Path.cwd())
    found.git("checkout", "--quiet", "-b", "topic")
    return found


def run_diff(*arguments: str | Path) -> CommandResult:
    return run_command("diff", *arguments)


def diff_facts(*arguments: str | Path) -> Any:
    return run_diff(*arguments, "-o", "json").json


def list_changed(*arguments: str | Path) -> list[str]:
    return [each["server"] for each in diff_facts(*arguments)["servers"]]


# Signatures of images


def test_verified_signatures_are_shown_beside_the_claims(work: WorkTree, tmp_path: Path) -> None:
    claim = f"sha256: {SHA}, provenance: {{digest: signed, key: {'F' * 40}}}"
    work.commit({"images/3.yaml": image("new-3", artifacts="kernel").replace(f"sha256: {SHA}", claim)})
    (kernel,) = diff_facts("main..topic")["provenance"][0]["files"]
    assert (kernel["claim"], kernel["verifiedBy"]) == ("signed", None)
    file = tmp_path / "signatures.json"
    signer = {"key": "F" * 40, "name": "Vendor"}
    file.write_text(json.dumps({"files": [{"image": "new-3", "sha256": SHA, "signer": signer, "fault": None}]}))
    found = run_diff("main..topic", "--verified", file)
    assert f"x86_64.kernel: verified: signed by Vendor ({'F' * 40})" in found.out
    assert f"--verified {file}" in found.out  # the command that shows the review again
    (kernel,) = diff_facts("main..topic", "--verified", file)["provenance"][0]["files"]
    assert (kernel["claim"], kernel["verifiedBy"]) == ("signed", "F" * 40)


def test_the_check_of_signatures_feeds_the_review(work: WorkTree, tmp_path: Path) -> None:
    """A real signature, first of the file that the server has, then of another file."""
    keys, kernel, results = tmp_path / "keys", tmp_path / "kernel", tmp_path / "signatures.json"
    keys.mkdir()
    kernel.write_bytes(b"kernel" * 1000)
    with gpg_people("vendor") as people, artifact_server() as web:
        (keys / "vendor.asc").write_bytes(people["vendor"].public.read_bytes())
        web.put("/kernel", kernel.read_bytes())
        web.put("/kernel.sig", sign_with_gpg(people["vendor"], kernel))
        signature = f"signature: {{openpgp: '{web.url}/kernel.sig'}}"
        file = f"url: '{web.url}/kernel', sha256: {compute_digest(kernel.read_bytes())}, {signature}"

        def review(claim: str, code: int) -> str:
            text = f"version: '3', architectures: {{x86_64: {{kernel: {{{file}, provenance: {claim}}}}}}}"
            work.commit({"images/3.yaml": document("BootImage", "new-3", text)})
            options = ("--image-keys", keys, "--since", "main", "-o", f"json={results}")
            assert run_command("artifacts", "signatures", work.path, *options).code == code
            (files,) = (each["files"] for each in diff_facts("main..topic", "--verified", results)["provenance"])
            return str(files[0]["text"])

        found = review("{digest: published}", 0)
        key = found.partition("(")[2].partition(")")[0]
        assert found == f"verified: signed by vendor <vendor@example.net> ({key}); claims: published"
        true = f"{{digest: signed, key: {key}}}"
        assert review(true, 0) == f"verified: signed by vendor <vendor@example.net> ({key})"
        web.put("/kernel.sig", sign_with_gpg(people["vendor"], keys / "vendor.asc"))
        found = review(true, 3)
        assert re.fullmatch(
            rf"not verified: the file is .*changed after it was signed.*; claims: signed by {key}", found
        )


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("{", "does not contain signature results"),
        (" " * (64 << 20) + "{}", "is larger than 67,108,864 bytes"),
        (None, "No such"),
    ],
    ids=["malformed", "too large", "missing"],
)
def test_a_file_without_results_of_signatures_is_a_usage_error(
    work: WorkTree, tmp_path: Path, content: str | None, fault: str
) -> None:
    file = tmp_path / "signatures.json"
    if content is not None:
        file.write_text(content)
    found = run_diff("main", "--verified", file)
    assert (found.code, found.out) == (64, "")
    assert fault in found.err and str(file) in found.err


# Ranges


def test_two_revisions_are_compared_regardless_of_the_work_tree(work: WorkTree) -> None:
    work.commit(ONE)
    work.write(RAISED)
    assert list_changed("main..topic") == list_changed("main..") == list_changed("HEAD^..HEAD") == ["fra1-web01"]


def test_one_revision_is_compared_with_the_work_tree(work: WorkTree) -> None:
    work.commit(ONE)
    work.write(RAISED)
    assert list_changed("HEAD") == list_changed("HEAD..WORKTREE") == ["fra1-db01"]
    assert list_changed("main") == ["fra1-db01", "fra1-web01"]


def test_finding_r11_an_overlap_of_maintenances_counts_until_it_is_over(work: WorkTree) -> None:
    one = "{servers: [fra1-web01]}"
    windows = {f"{name}.yaml": maintenance(name, "20T22:00 21T04:00", select=one) for name in ("a", "b")}
    work.commit(windows)
    ahead, over = (run_diff("main..topic", "--at", each) for each in ("2026-11-21T03:59:59Z", "2026-11-21T04:00:00Z"))
    assert (ahead.code, over.code) == (3, 0)
    assert "overlap from 2026-11-20T22:00:00Z until 2026-11-21T04:00:00Z. Both apply to" in ahead.out
    assert "GB2012" not in over.out
    again = diff_facts("main..topic", "--at", "2026-11-21T04:00:00Z")["reproduce"]
    assert "--at 2026-11-21T04:00:00Z" in str(again)
    work.commit({"README.md": "more"})  # the base is not judged: an instance may have accepted it before
    assert run_diff("HEAD^..HEAD", "--at", "2026-11-21T03:59:59Z").code == 3
    assert diff_facts("HEAD^..HEAD", "--at", "2026-11-21T03:59:59Z")["baseProblems"] == []


def test_three_dots_ignore_newer_commits_of_main(work: WorkTree) -> None:
    work.commit(ONE)
    work.git("checkout", "--quiet", "main")
    work.commit(RAISED)
    assert list_changed("main...topic") == ["fra1-web01"]
    assert list_changed("main..topic") == ["fra1-db01", "fra1-web01"]


def test_a_merge_shows_the_changes_to_main_and_writes_nothing(work: WorkTree) -> None:
    edited = str(FLEET["userdata/web.j2"])
    work.git("checkout", "--quiet", "main")
    long = {"userdata/web.j2": edited + "# 1\n# 2\n# 3\n# 4\n"}
    work.commit(long)
    work.git("checkout", "--quiet", "-B", "topic")
    work.commit({**ONE, "userdata/web.j2": long["userdata/web.j2"] + "# the branch's\n"})
    work.git("checkout", "--quiet", "main")
    work.commit({**RAISED, "userdata/web.j2": "#cloud-config\n# main's\n" + long["userdata/web.j2"].partition("\n")[2]})
    before = sorted(path for path in (work.path / ".git").rglob("*") if path.is_file())
    found = diff_facts("main..topic", "--merge")
    assert "fra1-db01" not in {each["server"] for each in found["servers"]}
    shown = json.dumps(found["groups"])
    assert "+# the branch's" in shown
    assert "main's" not in shown.replace(" # main's", "")
    assert sorted(path for path in (work.path / ".git").rglob("*") if path.is_file()) == before


def test_branches_with_a_merge_conflict_are_invalid_at_the_conflicting_file(work: WorkTree) -> None:
    work.commit(BUMP)
    work.git("checkout", "--quiet", "main")
    work.commit({"stream.yaml": document("ImageStream", "stable", "current: flatcar-1, holds: []")})
    done = run_diff("main..topic", "--merge")
    assert (done.code, "stream.yaml:1:1: GB5008:" in done.out) == (3, True), done


def test_a_merge_is_invalid_if_a_file_name_is_not_utf8(work: WorkTree) -> None:
    for name in (b"caf\xe9.yaml", b"d\xffr/sub/x.yaml", b"d\xffr/.dot/x.yaml", b".d\xff/x.yaml"):
        path = Path(os.fsdecode(os.fsencode(work.path) + b"/" + name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    work.commit(ONE)
    merged = run_diff("main..topic", "--merge")
    assert (merged.code, merged.out.count("GB5004")) == (3, 2), merged
    assert re.findall(".*GB5004", merged.out) == re.findall(".*GB5004", run_diff("main..topic").out)


def test_a_merge_conflict_in_a_file_whose_name_is_not_utf8_is_shown(work: WorkTree) -> None:
    path = Path(os.fsdecode(os.fsencode(work.path) + b"/caf\xe9"))
    for branch in ("topic", "main"):
        work.git("checkout", "--quiet", branch)
        path.write_text(branch)
        work.commit()
    done = run_diff("main..topic", "--merge", "-o", "sarif")
    assert (done.code, "GB5008" in done.out) == (3, True), done


def test_a_fleet_may_be_a_folder_of_its_repository_and_the_repository_may_be_bare(
    work: WorkTree, tmp_path: Path
) -> None:
    for name in FLEET:
        (work.path / "fleets" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(work.path / name, work.path / "fleets" / name)
    work.commit()
    work.commit({f"fleets/{path}": text for path, text in ONE.items()})
    assert list_changed("HEAD^..HEAD", "fleets") == ["fra1-web01"]
    assert list_changed("HEAD^..HEAD", "fleets", "--merge") == ["fra1-web01"]
    assert run_diff("main..main", work.bare(tmp_path / "bare.git")).code == 0


def test_a_linked_work_tree_is_read_with_its_shared_objects(work: WorkTree, tmp_path: Path) -> None:
    work.commit(ONE)
    work.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "linked"), "topic")
    assert list_changed("main..HEAD", tmp_path / "linked", "--merge") == ["fra1-web01"]


def test_a_merge_conflict_outside_the_fleet_does_not_count(work: WorkTree) -> None:
    work.commit({f"fleets/{path}": text for path, text in FLEET.items()})
    work.git("branch", "--force", "main")
    work.commit({"notes.txt": "topic", **{f"fleets/{path}": text for path, text in BUMP.items()}})
    work.git("checkout", "--quiet", "main")
    work.commit({"notes.txt": "main"})
    assert run_diff("main..topic", "--merge").code == 3
    assert run_diff("main..topic", "fleets", "--merge").code == 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("nowhere..HEAD",), "has no commit nowhere"),
        (("main..nowhere",), "has no commit nowhere"),
        (("..HEAD",), "is not a range"),
        (("WORKTREE..HEAD",), "is not a range"),
        (("main..WORKTREE", "--merge"), "the work tree has no merge base"),
        (("main...WORKTREE",), "the work tree has no merge base"),
        (("main..HEAD", "nowhere"), "not a directory"),
        (("main..HEAD", "/"), "is not in a Git repository"),
    ],
)
def test_an_argument_that_is_not_a_range_is_a_usage_error(
    work: WorkTree, arguments: tuple[str, ...], told: str
) -> None:
    done = run_diff(*arguments)
    assert (done.code, told in done.err) == (64, True), done


def test_a_shallow_clone_gets_a_hint_to_fetch_more(work: WorkTree, tmp_path: Path) -> None:
    work.commit(ONE)
    clone = tmp_path / "shallow"
    url = f"file://{work.path}"
    subprocess.run(["git", "clone", "-q", "--depth=1", "-b", "topic", url, str(clone)], check=True)
    done = run_diff("HEAD^..HEAD", clone)
    assert (done.code, "shallow; fetch more" in done.err) == (64, True), done


# Exit codes and acknowledgements


def test_the_exit_code_shows_whether_a_commit_changes_boots_is_held_or_is_invalid(work: WorkTree) -> None:
    assert run_diff("main..topic", "--detailed-exitcode").code == 0
    work.commit({"servers/fra1-web01.yaml": server("fra1-web01", "site: fra1, role: web", "provision: 0")})
    assert run_diff("main..topic").code == 0
    assert run_diff("main..topic", "--detailed-exitcode").code == 2
    work.commit(BUMP)
    assert run_diff("main..topic", "--detailed-exitcode").code == 4
    work.commit({"stream.yaml": "a: [\n"})
    assert run_diff("main..topic", "--detailed-exitcode").code == 3


def list_acks(work: WorkTree) -> str:
    lines = [each["acknowledgement"] for each in diff_facts("main..topic")["trips"]]
    return "\n".join(dict.fromkeys(lines))


def test_an_acknowledgement_survives_a_squash_and_a_rebase_but_no_other_change(work: WorkTree) -> None:
    work.commit(RAISED, "Reinstall db01")
    work.commit(BUMP, "Bump")
    assert run_diff("main..topic").code == 4
    work.commit(message=f"Accept it\n\n{list_acks(work)}")
    assert run_diff("main..topic").code == 0

    work.git("checkout", "--quiet", "-b", "squashed", "main")
    work.git("merge", "--quiet", "--squash", "topic")
    work.git("commit", "--quiet", "--no-edit")
    assert run_diff("main..squashed").code == 0

    work.git("checkout", "--quiet", "main")
    work.commit(OTHER, "Something else")
    work.git("rebase", "--quiet", "main", "topic")
    assert run_diff("main..topic").code == 0
    assert run_diff("main..topic", "--merge").code == 0

    work.commit({"policies/db.yaml": policy("db", "{matchLabels: {role: db}}", boots="db")}, "One more")
    done = run_diff("main..topic")
    assert done.code == 4
    assert "the line acknowledges other changes" in done.out.replace("\n    ", " ")


# Formats


def test_several_formats_are_written_at_once(work: WorkTree) -> None:
    work.commit(BUMP)
    done = run_diff(
        "main..topic",
        "-o",
        "markdown=c.md",
        "-o",
        "sarif=s.json",
        "-o",
        "junit=j.xml",
        "-o",
        "github",
        "-o",
        "json=d.json",
    )
    assert done.code == 4
    assert Path("c.md").read_text().startswith("<!-- gitboot diff -->\n")
    digest = json.loads(Path("d.json").read_text())["digest"]
    (run,) = json.loads(Path("s.json").read_text())["runs"]
    held = [each for each in run["results"] if each["ruleId"] == "GB6001"]
    place = held[0]["locations"][0]["physicalLocation"]
    assert (place["artifactLocation"]["uri"], place["region"]["startLine"]) == ("stream.yaml", 4)
    assert f"Gitboot-Ack: {digest} maxUpdatePercent" in json.dumps(held)
    assert fromstring(Path("j.xml").read_text()).get("failures") == str(len(held))
    assert done.out.splitlines()[0].startswith("::error file=stream.yaml,line=4,col=17,title=GB6001::")


# Several merges in one range


AGAIN = {"servers/fra1-db02.yaml": server("fra1-db02", "site: fra1, role: db", "provision: 2")}


def lines(*arguments: str) -> list[str]:
    return [word.strip() for word in run_diff(*arguments).out.splitlines() if word.startswith("    Gitboot-Ack:")]


def merge_files(work: WorkTree, files: dict[str, str], *acks: str) -> None:
    work.git("checkout", "--quiet", "-B", "topic", "main")
    work.commit(files, "\n".join(["Bump", "", *acks]))
    work.git("checkout", "--quiet", "main")
    work.git("merge", "--quiet", "--no-ff", "-m", "Merge", "topic")


def test_e19_each_of_several_merges_lists_its_held_findings(work: WorkTree) -> None:
    work.git("branch", "--force", "accepted", "main")
    merge_files(work, RAISED)
    merge_files(work, AGAIN)
    assert run_diff("accepted..main", "--each-merge").code == 4
    steps = diff_facts("accepted..main", "--each-merge")["steps"]
    assert [each["commit"] for each in steps] == work.git(
        "rev-list", "--first-parent", "--reverse", "accepted..main"
    ).split()
    each = [line for step in steps for line in step["acknowledgements"]]
    assert [line.split("  # ")[0] for line in lines("accepted..main", "--each-merge")[1:]] == each
    assert "acknowledge each commit" in run_diff("accepted..main", "--each-merge", "-o", "markdown").out
    work.git("commit", "--quiet", "--allow-empty", "-m", "\n".join(["Look at it", "", *each]))
    assert run_diff("accepted..main", "--each-merge").code == 0


def test_e19_an_earlier_merge_does_not_hide_one_that_an_instance_would_hold(work: WorkTree) -> None:
    """Parked and taken back, a server is what it was; an instance that looks in between sees it come back."""
    path = "servers/fra1-db02.yaml"
    before = work.git("show", f"main:{path}")
    work.git("branch", "--force", "accepted", "main")
    merge_files(work, {path: before.replace("spec: {", "spec: {lifecycle: Parked, ")})
    merge_files(work, {path: before})
    assert run_diff("accepted..main").code == 0
    assert run_diff("accepted..main", "--each-merge").code == 4
    acks = [line.split("  # ")[0] for line in lines("accepted..main", "--each-merge")]
    work.git("commit", "--quiet", "--allow-empty", "-m", "\n".join(["Look at it", "", *acks]))
    assert run_diff("accepted..main", "--each-merge").code == 0


def test_an_invalid_commit_in_between_is_not_a_step(work: WorkTree) -> None:
    work.git("branch", "--force", "accepted", "main")
    work.commit({"servers/fra1-db01.yaml": "kind: Nonsense\n"})
    work.commit({**RAISED, **AGAIN})
    (step,) = diff_facts("accepted..topic", "--each-merge")["steps"]
    assert step["commit"] == work.git("rev-parse", "HEAD").strip()


def test_a_branch_is_judged_as_a_whole_for_every_way_to_merge_it(work: WorkTree) -> None:
    work.commit(RAISED)
    (first,) = lines("main..topic")
    work.git("commit", "--quiet", "--amend", "-m", f"Bump\n\n{first}")
    before = work.head
    work.commit(AGAIN)
    (second,) = lines(f"{before}..topic")
    work.git("commit", "--quiet", "--amend", "-m", f"Bump\n\n{second}")
    assert run_diff("main..topic", "--each-merge").code == 0
    assert run_diff("main..topic").code == 4  # a merge or a squash makes one step of it


# Whose acknowledgement counts


@pytest.fixture
def people(tmp_path: Path) -> dict[str, Person]:
    return {name: make_ssh_person(tmp_path / "keys", name) for name in ("ada", "eve")}


@pytest.fixture
def trust(tmp_path: Path, people: dict[str, Person]) -> str:
    file = write_lines(tmp_path / "signers", [f"ada@example.net {people['ada'].key}"])
    return f"--allowed-signers={file}"


def test_the_signer_of_a_commit_is_named_and_an_unlisted_signer_makes_it_invalid(
    work: WorkTree, people: dict[str, Person], trust: str
) -> None:
    commit = people["ada"].commit(work, ONE)
    done = run_diff("main..topic", "--verify=range", trust)
    assert (done.code, f"{commit[:12]} is signed by ada@example.net (SHA256:" in done.out) == (0, True), done
    (signer,) = diff_facts("main..topic", "--verify=range", trust)["signers"]
    assert (signer["commit"], signer["person"], signer["forge"]) == (commit, "ada@example.net", False)
    assert "ada@example.net (SHA256:" in run_diff("main..topic", "--verify=head", trust, "-o", "markdown").out
    bad = people["eve"].commit(work, OTHER)
    newest = people["ada"].commit(work, BUMP)
    done = run_diff("main..topic", "--verify=range", trust)
    assert (done.code, f"GB5020: {bad[:12]} is signed by the key" in done.out) == (3, True), done
    assert run_diff("main..topic", "--verify=head", trust).code == 4
    assert newest[:12] in run_diff("main..topic", "--verify=head", trust).out
    assert run_diff("main..topic", "--merge", "--verify=range", trust).code == 4  # there is no merge commit yet


def test_an_unsigned_commit_is_judged_with_the_next_signed_one_as_in_an_instance(
    work: WorkTree, people: dict[str, Person], trust: str
) -> None:
    options = ("main..topic", "--each-merge", "--max-update-percent=10")
    work.commit(ONE)
    signed = people["ada"].commit(work, TWO)
    assert run_diff(*options).code == 0
    done = run_diff(*options, "--verify=head", trust)
    assert (done.code, "maxUpdatePercent" in done.out) == (4, True), done
    (step,) = diff_facts(*options, "--verify=head", trust)["steps"]
    assert step["commit"] == signed


def test_a_trial_merge_into_an_unsigned_commit_is_valid_if_only_the_newest_commit_must_be_signed(
    work: WorkTree, trust: str, tmp_path: Path
) -> None:
    (tmp_path / "ops").mkdir()
    write_lines(tmp_path / MANIFEST, [json.dumps({"commit": work.head})])
    work.commit(OTHER)
    work.git("checkout", "--quiet", "main")
    work.commit(ONE)
    options = ("main..topic", "--merge", "--accepted", tmp_path, trust)
    assert run_diff(*options, "--verify=range").code == 3
    assert run_diff(*options, "--verify=head").code == 0


def test_t9_the_review_names_the_author_of_an_acknowledgement(
    work: WorkTree, people: dict[str, Person], trust: str
) -> None:
    work.commit(RAISED)
    (line,) = lines("main..topic")
    work.commit(message=f"Fine\n\n{line}")
    done = run_diff("main..topic")
    assert done.code == 0
    assert "by Ada Lovelace <ada@example.net>, committed by Merge Bot <bot@example.net>" in done.out
    (trip,) = diff_facts("main..topic")["trips"]
    assert trip["by"].endswith("not signed by a trusted key")
    assert "ada@example.net (SHA256:" not in run_diff("main..topic", trust).out
    people["ada"].commit(work, message=f"Fine\n\n{line}")
    assert "by `ada@example.net (SHA256:" in run_diff("main..topic", trust, "-o", "markdown").out


@pytest.mark.parametrize("each", [(), ("--each-merge",)])
def test_t9_an_instance_may_require_a_signature_or_an_approval_for_reinstallations(
    work: WorkTree, people: dict[str, Person], trust: str, each: tuple[str, ...]
) -> None:
    work.commit(RAISED)
    (line,) = lines("main..topic")
    work.commit(message=f"Fine\n\n{line}")
    signed, approved = ("--reinstalls-need=signed", trust, *each), ("--reinstalls-need=approve", *each)
    done = run_diff("main..topic", *signed)
    assert done.code == 4
    assert "ignored" in done.out and "that is signed with a listed key" in done.out
    people["ada"].commit(work, message=f"Fine\n\n{line}")
    assert run_diff("main..topic", *signed).code == 0
    done = run_diff("main..topic", *approved)
    assert (done.code, "only gitboot approve can acknowledge reinstallations" in done.out) == (4, True)
    assert "\n    Gitboot-Ack:" not in done.out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--verify=head"], "needs keys"),
        (["--reinstalls-need=signed"], "needs keys of people"),
        (["--forge-key=GitHub"], "NAME=FILE"),
        (["--allowed-signers=missing", "--verify=head"], "missing: No such file"),
        (["--verify=tag", "--forge-key=GitHub=missing"], "which follows a tag"),
    ],
)
def test_invalid_options_for_keys_are_rejected(work: WorkTree, arguments: list[str], why: str) -> None:
    done = run_diff("main..topic", *arguments)
    assert (done.code, why in done.err) == (64, True)
