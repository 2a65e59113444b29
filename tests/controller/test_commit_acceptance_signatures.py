"""Signatures of commits: which commits an instance accepts, and whose acknowledgements count for reinstallations."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gitboot.controller.forge import list_verdicts
from gitboot.controller.instance.settings import TrustSettings
from gitboot.errors import UsageError
from gitboot.fleet.revision import ReinstallsNeed, Verify
from gitboot.git.signatures import TrustedKeys
from gitboot.ledger import instance_tables
from gitboot.problems import Code
from gitboot.review.guards import Limits
from tests.helpers.fleets import fleet, image, policy, profile, server
from tests.helpers.git_repositories import Person, WorkTree, make_ssh_person, write_lines
from tests.helpers.instance_in_process import NOON, Parts, applied, reconcile_once, run_in_process


def documents(image_name: str = "flatcar-1", said: str = "baseURL: 'http://boot.test'") -> dict[str, str | None]:
    servers = (server(f"web{number:02}") for number in range(12))
    images = (image(name) for name in ("flatcar-1", "flatcar-2"))
    parts = (fleet(said), *servers, *images, profile("web", image_name), policy("web", often="OnImageChange"))
    return {"fleet.yaml": "---\n".join(parts)}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Person]:
    folder = tmp_path_factory.mktemp("ssh")
    return {name: make_ssh_person(folder, name) for name in ("ada", "eve", "forge")}


@pytest.fixture
def work(tmp_path: Path, people: dict[str, Person]) -> WorkTree:
    work = WorkTree(tmp_path / "git")
    people["ada"].commit(work, documents())
    return work


@pytest.fixture
def signers(tmp_path: Path, people: dict[str, Person]) -> Path:
    return write_lines(tmp_path / "signers", [f"ada@example.net {people['ada'].key}"])


@contextmanager
def instance(
    work: WorkTree,
    signers: Path,
    verify: Verify | None,
    need: ReinstallsNeed | None = None,
    limits: Limits | None = None,
    forge: Person | None = None,
) -> Iterator[Parts]:
    forges = (("GitHub", forge.public),) if forge is not None else ()
    keys = TrustedKeys(allowed_signers=signers, forge_keys=forges)
    trust = TrustSettings(verify=verify, keys=keys, reinstalls_need=need)
    with run_in_process(work.path.parent, work.path, limits=limits, trust=trust) as parts:
        reconcile_once(parts)
        yield parts


def get_refusal(parts: Parts) -> str:
    status = parts.reconciler.status
    (problem,) = status.problems
    (condition,) = (each for each in status.conditions if each.type == "CommitAccepted")
    assert (problem.code, condition.status, condition.reason) == (Code.UNTRUSTED, False, "Untrusted")
    assert condition.remedy is not None
    words = shlex.split(condition.remedy, comments=True)
    assert words[:-1] == ["git", "log", "--show-signature", "-1"] and words[-1][:12] in problem.message
    return problem.message


# Accepted commits


@pytest.mark.parametrize("verify", [Verify.HEAD, Verify.RANGE])
def test_a_commit_without_a_trusted_signature_is_rejected_and_the_accepted_one_stays(
    work: WorkTree, people: dict[str, Person], signers: Path, verify: Verify
) -> None:
    with instance(work, signers, verify) as parts:
        good = work.head
        assert applied(parts) == good
        for number in range(2):
            bad = work.commit({"x": "unsigned"}) if number == 0 else people["eve"].commit(work, {"x": "eve's"})
            reconcile_once(parts, number)
            assert applied(parts) == good
            first = bad if verify is Verify.HEAD or number == 0 else work.git("rev-parse", "HEAD^")
            assert first[:12] in get_refusal(parts)
        said = [event.message for event in parts.events if event.type == "Rejected"]
        assert len(said) == 2 and all("GB5020" in each for each in said)
        verdict = list_verdicts(parts.reconciler.status, 1)[-1]
        assert verdict.says == "invalid: not signed by a trusted key"


def test_the_signer_of_the_accepted_commit_is_named(work: WorkTree, people: dict[str, Person], signers: Path) -> None:
    with instance(work, signers, Verify.HEAD) as parts:
        found = parts.reconciler.status.facts()["accepted"]
        assert found["signer"]["person"] == "ada@example.net" and found["signer"]["key"].startswith("SHA256:")
        (event,) = (event for event in parts.events if event.type == "Accepted")
        assert "signed by ada@example.net (SHA256:" in event.message
        (stored,) = (
            each for _, each in instance_tables.read_numbered_events(parts.ledger) if each["type"] == "Accepted"
        )
        assert stored["signer"]["person"] == "ada@example.net"
    with instance(work, signers, Verify.HEAD) as again:
        assert again.reconciler.status.signer is not None


def test_verify_head_accepts_a_signed_commit_on_unsigned_ones_and_verify_range_does_not(
    work: WorkTree, people: dict[str, Person], signers: Path, tmp_path: Path
) -> None:
    other = WorkTree(tmp_path / "other" / "git")
    other.git("pull", "--quiet", str(work.path), "main")
    with instance(work, signers, Verify.HEAD) as head, instance(other, signers, Verify.RANGE) as range_:
        unsigned = work.commit({"x": "unsigned"})
        newest = people["ada"].commit(work, {"x": "signed"})
        other.git("pull", "--quiet", str(work.path), "main")
        for parts in (head, range_):
            reconcile_once(parts, 1)
        assert applied(head) == newest
        assert unsigned[:12] in get_refusal(range_)


def test_commits_before_an_unsigned_commit_are_accepted(
    work: WorkTree, people: dict[str, Person], signers: Path
) -> None:
    with instance(work, signers, Verify.RANGE) as parts:
        good = people["ada"].commit(work, {"x": "signed"})
        bad = work.commit({"x": "unsigned"})
        people["ada"].commit(work, {"x": "on top of it"})
        reconcile_once(parts, 1)
        assert applied(parts) == good
        assert bad[:12] in get_refusal(parts)


def test_an_unsigned_commit_is_never_accepted_on_the_way_to_a_signed_one(
    work: WorkTree, people: dict[str, Person], signers: Path
) -> None:
    """A guard holds the newest commit; the unsigned one before it changes nothing that a guard would hold."""
    with instance(work, signers, Verify.HEAD, limits=Limits()) as parts:
        before = work.head
        work.commit({"x": "unsigned"})
        people["ada"].commit(work, documents("flatcar-2"))
        reconcile_once(parts, 1)
        assert parts.reconciler.status.held is not None
        assert applied(parts) == before


def test_settings_of_an_unsigned_commit_have_no_effect(
    work: WorkTree, people: dict[str, Person], signers: Path
) -> None:
    with instance(work, signers, Verify.HEAD) as parts:
        ledger = "provisioning: {ledger: 6a8ec2b2-4d14-4b2f-8a9c-4d3a3a3f0b11}"
        for field in ("stopped: everything is on fire", ledger):
            work.commit(documents("flatcar-1", f"baseURL: 'http://boot.test', {field}"))
            reconcile_once(parts, 1)
            assert parts.reconciler.state.acceptance.orders is None
            assert parts.reconciler.state.may_act
        people["ada"].commit(work, documents("flatcar-1", "baseURL: 'http://boot.test', stopped: fire"))
        reconcile_once(parts, 2)
        assert not parts.reconciler.status.condition("InstallsAllowed")


def test_an_unsigned_commit_is_not_evaluated(work: WorkTree, people: dict[str, Person], signers: Path) -> None:
    with instance(work, signers, Verify.HEAD) as parts:
        work.commit({"fleet.yaml": "no: yaml: at all"})
        reconcile_once(parts, 1)
        assert "is not signed" in get_refusal(parts)


def test_a_rewound_branch_is_verified_and_then_held(work: WorkTree, people: dict[str, Person], signers: Path) -> None:
    with instance(work, signers, Verify.RANGE, limits=Limits()) as parts:
        accepted = people["ada"].commit(work, {"x": "1"})
        reconcile_once(parts, 1)
        assert applied(parts) == accepted
        work.git("reset", "--quiet", "--hard", "HEAD^")
        unsigned = work.commit({"x": "2"})
        people["ada"].commit(work, {"x": "3"})
        reconcile_once(parts, 2)
        assert unsigned[:12] in get_refusal(parts)
        work.git("reset", "--quiet", "--hard", "HEAD^^")
        signed = people["ada"].commit(work, {"x": "4"})
        reconcile_once(parts, 3)
        held = parts.reconciler.status.held
        assert held is not None and (held.commit, "allowRewind" in held.guards) == (signed, True)


def test_a_merge_commit_of_the_forge_is_accepted_and_a_squash_is_not(
    work: WorkTree, people: dict[str, Person], signers: Path
) -> None:
    with instance(work, signers, Verify.RANGE, forge=people["forge"]) as parts:
        work.git("switch", "--quiet", "--create", "side")
        work.commit({"x": "by whoever"})
        work.git("switch", "--quiet", "main")
        merged = people["forge"].merge(work, "side")
        reconcile_once(parts, 1)
        assert applied(parts) == merged
        assert parts.reconciler.status.signer is not None and parts.reconciler.status.signer.is_forge
        people["forge"].commit(work, {"x": "squashed"})
        reconcile_once(parts, 2)
        assert applied(parts) == merged
        assert "signed by the forge GitHub, whose key is trusted only for merge commits" in get_refusal(parts)


def test_a_commit_counts_as_soon_as_its_key_is_listed(work: WorkTree, people: dict[str, Person], signers: Path) -> None:
    with instance(work, signers, Verify.RANGE) as parts:
        commit = people["eve"].commit(work, {"x": "1"})
        reconcile_once(parts, 1)
        assert applied(parts) != commit
        write_lines(signers, [f"{name}@example.net {people[name].key}" for name in ("ada", "eve")])
        reconcile_once(parts, 2)
        assert applied(parts) == commit
        signers.unlink()  # no keys are known now: the accepted commit stays, and the next is not accepted
        people["ada"].commit(work, {"x": "2"})
        reconcile_once(parts, 3)
        assert applied(parts) == commit
        assert not parts.reconciler.status.condition("SourceReady")


def test_keys_are_read_when_an_instance_starts(work: WorkTree, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="signers"), instance(work, tmp_path / "signers", Verify.HEAD):
        pass


# T9: whose acknowledgement counts for reinstallations


def list_acknowledged(parts: Parts) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = parts.reconciler.status.facts()["accepted"]["acknowledged"]
    return found


def hold(parts: Parts, work: WorkTree, person: Person) -> str:
    """Push what installs servers again; the lines that would acknowledge it."""
    person.commit(work, documents("flatcar-2"))
    reconcile_once(parts, 1)
    held = parts.reconciler.status.held
    assert held is not None and held.guards == ("maxReinstalls", "maxUpdatePercent")
    return "\n".join(f"Gitboot-Ack: {held.digest} {guard}" for guard in held.guards)


def test_t9_a_copied_acknowledgement_counts_for_no_reinstallation_if_it_must_be_signed(
    work: WorkTree, people: dict[str, Person], signers: Path
) -> None:
    with instance(work, signers, None, ReinstallsNeed.SIGNED, Limits(), people["forge"]) as parts:
        before = applied(parts)
        lines = hold(parts, work, people["eve"])
        work.commit(message=f"Fine\n\n{lines}")
        people["eve"].commit(work, message=f"Fine\n\n{lines}")
        people["forge"].commit(work, message=f"Fine\n\n{lines}")
        reconcile_once(parts, 2)
        assert applied(parts) == before
        (event,) = (event for event in parts.events if event.type == "Held" and "does not count" in event.message)
        assert "to the message of a signed commit" in event.message
        signed = people["ada"].commit(work, message=f"Fine\n\n{lines}")
        reconcile_once(parts, 3)
        assert applied(parts) == signed
        assert [each["guard"] for each in list_acknowledged(parts)] == ["maxReinstalls", "maxUpdatePercent"]
        assert list_acknowledged(parts)[0]["by"].startswith("ada@example.net (SHA256:")
        said = [event for event in parts.events if event.type == "Acknowledged"]
        assert "by ada@example.net (SHA256:" in said[0].message
        verdicts = [each.says for each in list_verdicts(parts.reconciler.status, 1)]
        assert any(says.startswith("accepted, acknowledged by ada@example.net (SHA256:") for says in verdicts)


def test_t9_a_merge_of_the_forge_acknowledges_nothing_with_the_text_of_a_pull_request(
    work: WorkTree, people: dict[str, Person], signers: Path
) -> None:
    with instance(work, signers, Verify.RANGE, ReinstallsNeed.SIGNED, Limits(), people["forge"]) as parts:
        before = applied(parts)
        lines = hold(parts, work, people["ada"])
        work.git("switch", "--quiet", "--create", "side")
        work.commit({"x": "1"}, message=lines)
        work.git("switch", "--quiet", "main")
        options = (*people["forge"].options, "merge", "--quiet", "--no-ff", "--gpg-sign", f"--message={lines}", "side")
        work.git(*options)
        reconcile_once(parts, 2)
        assert applied(parts) == before


def test_t9_only_an_approval_counts_if_approvals_are_required(
    work: WorkTree, people: dict[str, Person], signers: Path
) -> None:
    with instance(work, signers, None, ReinstallsNeed.APPROVE, Limits()) as parts:
        before = applied(parts)
        lines = hold(parts, work, people["ada"])
        newest = people["ada"].commit(work, message=f"Fine\n\n{lines}")
        reconcile_once(parts, 2)
        held = parts.reconciler.status.held
        assert applied(parts) == before
        assert held is not None and held.guards == ("maxReinstalls",)
        (event,) = (event for event in parts.events if event.type == "Held" and "does not count" in event.message)
        assert "To let the commit through, run gitboot approve" in event.message
        given = {"digest": held.digest, "guards": ["maxReinstalls"], "reason": "planned"}
        instance_tables.add_request(parts.ledger, NOON, "grace", "approve", given)
        reconcile_once(parts, 3)
        assert applied(parts) == newest
        assert list_acknowledged(parts)[0]["by"] == "grace, with gitboot approve: planned"


def test_t9_without_a_requirement_an_acknowledgement_counts_and_its_author_is_named(
    work: WorkTree, people: dict[str, Person], signers: Path
) -> None:
    with instance(work, signers, None, None, Limits()) as parts:
        lines = hold(parts, work, people["eve"])
        commit = work.commit(message=f"Fine\n\n{lines}")
        reconcile_once(parts, 2)
        assert applied(parts) == commit
        by = list_acknowledged(parts)[0]["by"]
        assert by.startswith("Ada Lovelace <ada@example.net>, committed by Merge Bot") and "not signed" in by
        assert json.dumps(parts.reconciler.status.facts())
