"""Signatures as CI meets them: before a merge is made, in a clone that is shallow, on a branch that was rebased."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from gitboot.cli.evaluated_fleet import Compared, compared
from gitboot.cli.options import this_second
from gitboot.controller.instance.settings import TrustSettings
from gitboot.errors import UsageError
from gitboot.fleet.revision import Revision, Verify
from gitboot.git.signatures import TrustedKeys
from tests.helpers.evaluations import FLEET
from tests.helpers.fleets import image
from tests.helpers.git_repositories import ENVIRONMENT, Person, Work, allowed, ssh_person

ONE, TWO, THREE = ({f"images/{name}.yaml": image(name)} for name in ("new-1", "new-2", "new-3"))


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Person]:
    folder = tmp_path_factory.mktemp("ssh")
    return {name: ssh_person(folder, name) for name in ("ada", "eve")}


@pytest.fixture
def ada(people: dict[str, Person]) -> Person:
    return people["ada"]


@pytest.fixture
def work(tmp_path: Path, ada: Person) -> Work:
    work = Work(tmp_path / "git")
    ada.commit(work, FLEET)
    return work


@pytest.fixture
def signers(tmp_path: Path, ada: Person) -> Path:
    return allowed(tmp_path / "signers", [f"ada@example.net {ada.key}"])


def review(
    path: Path,
    signers: Path,
    range: str,
    verify: Verify = Verify.RANGE,
    *,
    merge: bool = False,
    accepted: Revision | None = None,
) -> Compared:
    trust = TrustSettings(verify=verify, keys=TrustedKeys(allowed_signers=signers))
    return compared(path, range, merge=merge, at=this_second(), accepted=accepted, trust=trust)


def faults(found: Compared) -> list[str]:
    return [f"{problem.code}: {problem.message}" for problem in found.head.problems]


def signed(found: Compared) -> list[str]:
    assert {signer.person for _, signer in found.signers} <= {"ada@example.net"}
    return [commit for commit, _ in found.signers]


# A merge that is only tried out


def test_a_merge_that_is_tried_out_needs_no_signature_of_its_own(work: Work, ada: Person, signers: Path) -> None:
    work.git("checkout", "--quiet", "-b", "topic")
    work.commit(ONE)  # by a branch's author, unsigned
    found = review(work.path, signers, "main..topic", merge=True)
    assert (faults(found), signed(found)) == ([], [])
    work.git("checkout", "--quiet", "main")
    merge = ada.merge(work, "topic")
    found = review(work.path, signers, f"{merge}~..{merge}")
    assert (faults(found), signed(found)) == ([], [merge])


def test_what_waits_below_a_merge_that_is_tried_out_has_to_be_signed(work: Work, ada: Person, signers: Path) -> None:
    accepted = work.head
    work.git("checkout", "--quiet", "-b", "topic")
    work.commit(ONE)
    work.git("checkout", "--quiet", "main")
    waiting = ada.commit(work, TWO)
    found = review(work.path, signers, "main..topic", merge=True, accepted=accepted)
    assert (faults(found), signed(found)) == ([], [waiting])
    unsigned = work.commit(THREE)
    ada.commit(work, message="On top")
    found = review(work.path, signers, "main..topic", merge=True, accepted=accepted)
    assert faults(found) == [f"GB5020: {unsigned[:12]} is not signed"]
    assert faults(review(work.path, signers, "main..topic", Verify.HEAD, merge=True, accepted=accepted)) == []


def test_a_signed_line_of_a_branch_still_counts_in_a_merge_that_is_tried_out(
    work: Work, people: dict[str, Person], signers: Path
) -> None:
    work.git("checkout", "--quiet", "-b", "topic")
    for person in ("ada", "eve"):
        people[person].commit(work, message=f"Fine\n\nGitboot-Ack: {'0' * 64} maxReinstalls of {person}")
    found = review(work.path, signers, "main..topic", merge=True)
    by = {each.text.split()[-1]: each.signer for each in found.messages}
    assert (by["ada"] is not None, by["eve"]) == (True, None)


def test_a_fleet_in_a_folder_counts_signatures_of_each_commit_and_lines_as_at_the_top(
    tmp_path: Path, people: dict[str, Person], signers: Path
) -> None:
    work = Work(tmp_path / "git")
    people["ada"].commit(work, {f"infra/boot/{path}": text for path, text in FLEET.items()})
    base = work.head
    line = f"Gitboot-Ack: {'0' * 64} maxReinstalls"
    new = {f"infra/boot/{path}": text for path, text in ONE.items()}
    good = people["ada"].commit(work, new, message=f"New\n\n{line}")
    found = review(work.path / "infra/boot", signers, f"{base}..HEAD")
    assert (faults(found), signed(found)) == ([], [good])
    assert [(each.text.strip(), each.signer is not None) for each in found.messages] == [(f"New\n\n{line}", True)]
    beside = work.commit({"readme": "of another team, unsigned"})
    found = review(work.path / "infra/boot", signers, f"{base}..HEAD")
    assert faults(found) == [f"GB5020: {beside[:12]} is not signed"]


# A clone that is shallow


def shallow(work: Work, folder: Path, depth: int, *others: str) -> Path:
    """A clone of so many commits of main, as CI makes it, and the commits that it fetches besides."""
    source = f"file://{work.path}"
    commands: Sequence[Sequence[str]] = (
        ("git", "clone", "--quiet", "--depth", str(depth), source, str(folder)),
        *(("git", "-C", str(folder), "fetch", "--quiet", "--depth=1", "origin", each) for each in others),
    )
    for command in commands:
        subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("depth", [1, 2])
def test_a_shallow_clone_that_lacks_what_lies_between_vouches_for_no_range(
    work: Work, people: dict[str, Person], signers: Path, tmp_path: Path, depth: int
) -> None:
    """An unsigned commit that was not fetched would pass."""
    base = work.head
    people["eve"].commit(work, ONE)
    people["ada"].commit(work, TWO)
    newest = people["ada"].commit(work, THREE)
    clone = shallow(work, tmp_path / "clone", depth, base)
    with pytest.raises(UsageError, match=f"shallow, and lacks what led to {newest[:12]}: fetch more"):
        review(clone, signers, f"{base}..HEAD")
    assert faults(review(clone, signers, f"{base}..HEAD", Verify.HEAD)) == []
    with pytest.raises(UsageError, match="no common ancestor here; fetch more of the history"):
        review(clone, signers, f"{base}..HEAD", merge=True)


def test_a_shallow_clone_that_reaches_the_base_is_as_good_as_any(
    work: Work, people: dict[str, Person], signers: Path, tmp_path: Path
) -> None:
    base = work.head
    good = people["ada"].commit(work, ONE)
    found = review(shallow(work, tmp_path / "good", 2), signers, f"{base}..HEAD")
    assert (faults(found), signed(found)) == ([], [good])
    bad = people["eve"].commit(work, TWO)
    people["ada"].commit(work, THREE)
    for depth in (2, 3, 4):  # once that one is there, it is named
        found = review(shallow(work, tmp_path / f"bad-{depth}", depth, base), signers, f"{base}..HEAD")
        assert [each.partition(" by ")[0] for each in faults(found)] == [f"GB5020: {bad[:12]} is signed"]


# A branch that was rebased


def test_a_rebase_takes_the_signatures_off_and_puts_them_on_where_it_is_told_to(
    work: Work, ada: Person, signers: Path
) -> None:
    """By the line that docs/signatures.md has for it."""
    work.git("checkout", "--quiet", "-b", "topic")
    ada.commit(work, ONE)
    ada.commit(work, TWO)
    assert faults(review(work.path, signers, "main..topic")) == []
    work.git("checkout", "--quiet", "main")
    ada.commit(work, THREE)
    work.git("checkout", "--quiet", "topic")
    work.git("rebase", "--quiet", "main")
    first = work.git("rev-parse", "topic~1")
    assert faults(review(work.path, signers, "main..topic")) == [f"GB5020: {first[:12]} is not signed"]
    for option, value in (each.split("=", 1) for each in ada.options if "=" in each):
        work.git("config", option, value)
    work.git("rebase", "--quiet", "--exec", "git commit --quiet --amend --no-edit -S", "main")
    found = review(work.path, signers, "main..topic")
    assert (faults(found), len(signed(found))) == ([], 2)
    page = (Path(__file__).parents[2] / "docs" / "signatures.md").read_text()
    assert "`git rebase --exec 'git commit --amend --no-edit -S'`" in page
