"""The cache of commands changes nothing that they print, and signatures are checked as in CI."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from gitboot.cli import evaluated_fleet
from gitboot.cli.evaluated_fleet import ComparedRange, compare_range
from gitboot.cli.options import current_second
from gitboot.controller.instance.settings import TrustSettings
from gitboot.errors import UsageError
from gitboot.evaluator.evaluation import Workers
from gitboot.fleet.revision import Revision, Verify
from gitboot.git import snapshots
from gitboot.git.signatures import TrustedKeys
from gitboot.resolve import fleet_decisions
from gitboot.resolve.boot_composition import Composer
from gitboot.resolve.decision_inputs import ServerInputs
from tests.helpers.evaluations import FLEET
from tests.helpers.fleets import SEED, image, make_mac, make_uuid, policy, server
from tests.helpers.git_repositories import ENVIRONMENT, Person, WorkTree, make_ssh_person, write_lines
from tests.helpers.instance_with_bmcs import run_command

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
    "an identity that is taken": {"web78.yaml": server("web78").replace(make_uuid("web78"), make_uuid("web01"))},
    "what is no YAML": {"broken.yaml": "{"},
    "a file that is left out": {".gitbootignore": "00.yaml\n"},
}


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder in which commands cache their results, even for a small fleet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(evaluated_fleet, "MIN_FILES_FOR_CACHE", 1)
    return tmp_path / "cache"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WorkTree:
    made = WorkTree(tmp_path / "work")
    made.commit(FILES, "Begin")
    monkeypatch.chdir(made.path)
    return made


def list_cache_files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("cache.sqlite"))


@pytest.mark.parametrize("edit", EDITS)
def test_a_command_prints_the_same_with_cached_results(edit: str, cache: Path, work: WorkTree) -> None:
    assert run_command("validate").code == 0
    assert list_cache_files(cache)
    work.write(EDITS[edit])
    for command in COMMANDS:
        expected = run_command(*command, "--no-cache")
        assert run_command(*command) == expected


def test_history_is_the_same_with_and_without_the_cache(cache: Path, work: WorkTree) -> None:
    for name in ("another server", "what is no YAML", "a server that is another"):
        work.commit(EDITS[name], name)
    work.commit({"broken.yaml": None}, "Mend")
    expected = run_command("history", "web01", "--no-cache")
    assert "invalid" in expected.out and not list_cache_files(cache)
    assert [run_command("history", "web01") for _ in range(2)] == [expected, expected]
    (file,) = list_cache_files(cache)
    file.write_bytes(file.read_bytes()[:-1])
    assert run_command("history", "web01").out == expected.out
    assert run_command("history", "web01") == expected


def test_only_servers_whose_keys_are_not_cached_are_decided(
    cache: Path, work: WorkTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided: list[str] = []
    decide_server = fleet_decisions.decide_server

    def noted(inputs: ServerInputs, composer: Composer) -> fleet_decisions.DecidedServer:
        decided.append(inputs.server.metadata.name)
        return decide_server(inputs, composer)

    monkeypatch.setattr(fleet_decisions, "decide_server", noted)
    monkeypatch.setattr(evaluated_fleet, "count_evaluation_workers", Workers)  # other processes record nothing here
    work.write({"web02.yaml": server("web02", "role: web")})
    run_command("validate")
    assert sorted(decided) == ["web01", "web02"]
    decided.clear()
    work.write(EDITS["a server that is another"])
    assert run_command("validate").code == 0
    assert "quiet" in run_command("explain", "web01").out
    assert decided == ["web01"]
    run_command("validate", "--no-cache")
    assert sorted(decided) == ["web01", "web01", "web02"]


def test_a_damaged_cache_is_reported_once_and_replaced(cache: Path, work: WorkTree) -> None:
    first = run_command("plan")
    (file,) = list_cache_files(cache)
    whole = file.read_bytes()
    file.write_bytes(whole[:100] + b"\xff" * (len(whole) - 100))
    damaged, again = run_command("plan"), run_command("plan")
    assert (damaged.out, again) == (first.out, first)
    assert f"the cache {file} is rebuilt: " in damaged.err


def test_a_small_fleet_is_not_cached(cache: Path, work: WorkTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluated_fleet, "MIN_FILES_FOR_CACHE", len(FILES) + 1)
    assert (run_command("validate").code, list_cache_files(cache)) == (0, [])
    monkeypatch.setattr(evaluated_fleet, "MIN_FILES_FOR_CACHE", len(FILES))
    assert run_command("validate").code == 0
    assert len(list_cache_files(cache)) == 1


def test_a_cache_that_cannot_be_written_does_no_harm(cache: Path, work: WorkTree) -> None:
    cache.touch()
    assert make_mac("web01") in run_command("plan", "-o", "json").out.replace("-", ":")


def test_only_files_of_the_fleet_are_read_and_they_are_read_each_time(
    cache: Path, work: WorkTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.write({".gitbootignore": "left-out/\n", "README.md": "", "left-out/a.yaml": "{", "a.png": ""})
    read: list[str] = []
    read_work_file = snapshots.read_worktree_file

    def noted(root: Path, path: str) -> bytes:
        read.append(path)
        return read_work_file(root, path)

    monkeypatch.setattr(snapshots, "read_worktree_file", noted)
    for _ in range(2):
        assert run_command("validate").code == 0
        assert sorted(read) == sorted([".gitbootignore", *FILES])
        read.clear()
    first = run_command("plan", "-o", "json", *AT)
    before = (work.path / WEB01).stat()
    work.write({WEB01: FILES[WEB01].replace(make_mac("web01"), make_mac("web02"))})
    os.utime(work.path / WEB01, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (work.path / WEB01).stat().st_size == before.st_size
    assert run_command("plan", "-o", "json", *AT) != first


ONE, TWO, THREE = ({f"images/{name}.yaml": image(name)} for name in ("new-1", "new-2", "new-3"))


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Person]:
    folder = tmp_path_factory.mktemp("ssh")
    return {name: make_ssh_person(folder, name) for name in ("ada", "eve")}


@pytest.fixture
def ada(people: dict[str, Person]) -> Person:
    return people["ada"]


@pytest.fixture
def repo(tmp_path: Path, ada: Person) -> WorkTree:
    repo = WorkTree(tmp_path / "git")
    ada.commit(repo, FLEET)
    return repo


@pytest.fixture
def signers(tmp_path: Path, ada: Person) -> Path:
    return write_lines(tmp_path / "signers", [f"ada@example.net {ada.key}"])


def compare_commits(
    path: Path,
    signers: Path,
    range: str,
    verify: Verify = Verify.RANGE,
    *,
    merge: bool = False,
    accepted: Revision | None = None,
) -> ComparedRange:
    trust = TrustSettings(verify=verify, keys=TrustedKeys(allowed_signers=signers))
    return compare_range(path, range, merge=merge, at=current_second(), accepted=accepted, trust=trust)


def list_faults(found: ComparedRange) -> list[str]:
    return [f"{problem.code}: {problem.message}" for problem in found.head.problems]


def list_signed(found: ComparedRange) -> list[str]:
    assert {signer.person for _, signer in found.signers} <= {"ada@example.net"}
    return [commit for commit, _ in found.signers]


# A merge that is only tried out


def test_a_trial_merge_needs_no_signature_of_its_own(repo: WorkTree, ada: Person, signers: Path) -> None:
    repo.git("checkout", "--quiet", "-b", "topic")
    repo.commit(ONE)  # by a branch's author, unsigned
    found = compare_commits(repo.path, signers, "main..topic", merge=True)
    assert (list_faults(found), list_signed(found)) == ([], [])
    repo.git("checkout", "--quiet", "main")
    merge = ada.merge(repo, "topic")
    found = compare_commits(repo.path, signers, f"{merge}~..{merge}")
    assert (list_faults(found), list_signed(found)) == ([], [merge])


def test_commits_below_a_trial_merge_must_be_signed(repo: WorkTree, ada: Person, signers: Path) -> None:
    accepted = repo.head
    repo.git("checkout", "--quiet", "-b", "topic")
    repo.commit(ONE)
    repo.git("checkout", "--quiet", "main")
    waiting = ada.commit(repo, TWO)
    found = compare_commits(repo.path, signers, "main..topic", merge=True, accepted=accepted)
    assert (list_faults(found), list_signed(found)) == ([], [waiting])
    unsigned = repo.commit(THREE)
    ada.commit(repo, message="On top")
    found = compare_commits(repo.path, signers, "main..topic", merge=True, accepted=accepted)
    assert list_faults(found) == [f"GB5020: {unsigned[:12]} is not signed"]
    assert (
        list_faults(compare_commits(repo.path, signers, "main..topic", Verify.HEAD, merge=True, accepted=accepted))
        == []
    )


def test_a_signed_acknowledgement_of_a_branch_still_counts_in_a_trial_merge(
    repo: WorkTree, people: dict[str, Person], signers: Path
) -> None:
    repo.git("checkout", "--quiet", "-b", "topic")
    for person in ("ada", "eve"):
        people[person].commit(repo, message=f"Fine\n\nGitboot-Ack: {'0' * 64} maxReinstalls of {person}")
    found = compare_commits(repo.path, signers, "main..topic", merge=True)
    by = {each.text.split()[-1]: each.signer for each in found.messages}
    assert (by["ada"] is not None, by["eve"]) == (True, None)


def test_a_fleet_in_a_folder_checks_signatures_and_acknowledgements_like_one_at_the_top(
    tmp_path: Path, people: dict[str, Person], signers: Path
) -> None:
    repo = WorkTree(tmp_path / "git")
    people["ada"].commit(repo, {f"infra/boot/{path}": text for path, text in FLEET.items()})
    base = repo.head
    line = f"Gitboot-Ack: {'0' * 64} maxReinstalls"
    new = {f"infra/boot/{path}": text for path, text in ONE.items()}
    good = people["ada"].commit(repo, new, message=f"New\n\n{line}")
    found = compare_commits(repo.path / "infra/boot", signers, f"{base}..HEAD")
    assert (list_faults(found), list_signed(found)) == ([], [good])
    assert [(each.text.strip(), each.signer is not None) for each in found.messages] == [(f"New\n\n{line}", True)]
    beside = repo.commit({"readme": "of another team, unsigned"})
    found = compare_commits(repo.path / "infra/boot", signers, f"{base}..HEAD")
    assert list_faults(found) == [f"GB5020: {beside[:12]} is not signed"]


# A clone that is shallow


def clone_shallow(repo: WorkTree, folder: Path, depth: int, *others: str) -> Path:
    """A clone of so many commits of main, as CI makes it, and the commits that it fetches besides."""
    source = f"file://{repo.path}"
    commands: Sequence[Sequence[str]] = (
        ("git", "clone", "--quiet", "--depth", str(depth), source, str(folder)),
        *(("git", "-C", str(folder), "fetch", "--quiet", "--depth=1", "origin", each) for each in others),
    )
    for command in commands:
        subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("depth", [1, 2])
def test_a_shallow_clone_that_lacks_commits_of_a_range_verifies_no_range(
    repo: WorkTree, people: dict[str, Person], signers: Path, tmp_path: Path, depth: int
) -> None:
    """Otherwise an unsigned commit that was not fetched would pass."""
    base = repo.head
    people["eve"].commit(repo, ONE)
    people["ada"].commit(repo, TWO)
    newest = people["ada"].commit(repo, THREE)
    clone = clone_shallow(repo, tmp_path / "clone", depth, base)
    with pytest.raises(
        UsageError, match=f"this shallow clone does not contain the commits before {newest[:12]}; fetch more"
    ):
        compare_commits(clone, signers, f"{base}..HEAD")
    assert list_faults(compare_commits(clone, signers, f"{base}..HEAD", Verify.HEAD)) == []
    with pytest.raises(UsageError, match=r"have no common ancestor in .*; fetch more of the history"):
        compare_commits(clone, signers, f"{base}..HEAD", merge=True)


def test_a_shallow_clone_that_reaches_the_base_is_sufficient(
    repo: WorkTree, people: dict[str, Person], signers: Path, tmp_path: Path
) -> None:
    base = repo.head
    good = people["ada"].commit(repo, ONE)
    found = compare_commits(clone_shallow(repo, tmp_path / "good", 2), signers, f"{base}..HEAD")
    assert (list_faults(found), list_signed(found)) == ([], [good])
    bad = people["eve"].commit(repo, TWO)
    people["ada"].commit(repo, THREE)
    for depth in (2, 3, 4):  # once that one is there, it is named
        found = compare_commits(clone_shallow(repo, tmp_path / f"bad-{depth}", depth, base), signers, f"{base}..HEAD")
        assert [each.partition(" by ")[0] for each in list_faults(found)] == [f"GB5020: {bad[:12]} is signed"]


# A branch that was rebased


def test_a_rebase_removes_signatures_and_adds_them_with_the_documented_option(
    repo: WorkTree, ada: Person, signers: Path
) -> None:
    """By the line that docs/how-to/sign-commits.md has for it."""
    repo.git("checkout", "--quiet", "-b", "topic")
    ada.commit(repo, ONE)
    ada.commit(repo, TWO)
    assert list_faults(compare_commits(repo.path, signers, "main..topic")) == []
    repo.git("checkout", "--quiet", "main")
    ada.commit(repo, THREE)
    repo.git("checkout", "--quiet", "topic")
    repo.git("rebase", "--quiet", "main")
    first = repo.git("rev-parse", "topic~1")
    assert list_faults(compare_commits(repo.path, signers, "main..topic")) == [f"GB5020: {first[:12]} is not signed"]
    for option, value in (each.split("=", 1) for each in ada.options if "=" in each):
        repo.git("config", option, value)
    repo.git("rebase", "--quiet", "--exec", "git commit --quiet --amend --no-edit -S", "main")
    found = compare_commits(repo.path, signers, "main..topic")
    assert (list_faults(found), len(list_signed(found))) == ([], 2)
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "sign-commits.md").read_text()
    assert "`git rebase --exec 'git commit --amend --no-edit -S'`" in page
