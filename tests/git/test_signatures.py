"""Signatures of commits and tags: real signatures by Git, checked only with the keys of the instance."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gitboot.errors import SourceError, UsageError
from gitboot.fleet.revision import Message, Revision, Signer, Verify
from gitboot.git.clone import Source
from gitboot.git.remote import Remote
from gitboot.git.repository import StoredRepository
from gitboot.git.signatures import SignatureChecker, SignatureKeys, TrustedKeys
from gitboot.problems import Code
from tests.helpers.git_repositories import (
    ENVIRONMENT,
    Person,
    WorkTree,
    gpg_people,
    make_ssh_person,
    rewrite_commit,
    sign_with_gpg,
    store_commit,
    write_lines,
)

RIGHT = "right"


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Person]:
    folder = tmp_path_factory.mktemp("ssh")
    return {name: make_ssh_person(folder, name) for name in ("ada", "bob", "eve", "old", "new", "mail", "forge")}


@pytest.fixture(scope="module")
def gpg() -> Iterator[dict[str, Person]]:
    with gpg_people("ada", "eve", "expired", "revoked", "forge") as people:
        yield people


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    work = WorkTree(tmp_path / "fleet")
    work.commit({"fleet.yaml": "first"})
    return work


@pytest.fixture
def signers(tmp_path: Path, ssh: dict[str, Person]) -> Path:
    """Keys of ada (trusted), old (expired), new (not valid yet) and mail (for another use), but not of eve and bob."""
    return write_lines(
        tmp_path / "allowed",
        [
            "# people",
            f'ada@example.net namespaces="git" {ssh["ada"].key}',
            f'old@example.net valid-before="20200101" {ssh["old"].key}',
            f'new@example.net valid-after="29990101" {ssh["new"].key}',
            f'mail@example.net namespaces="email" {ssh["mail"].key}',
        ],
    )


@pytest.fixture
def keyring(tmp_path: Path, gpg: dict[str, Person]) -> Path:
    folder = tmp_path / "openpgp"
    folder.mkdir()
    for name in ("ada", "expired", "revoked"):
        (folder / f"{name}.asc").write_bytes(gpg[name].public.read_bytes())
    return folder


def make_checker(work: WorkTree, trusted: TrustedKeys, verify: Verify | None = Verify.HEAD) -> SignatureChecker:
    folder = work.path.parent / "state" / "keys"
    return SignatureChecker(StoredRepository(work.path / ".git"), SignatureKeys(trusted, folder), verify)


def find_fault(signatures: SignatureChecker, commit: Revision) -> str:
    """Return the problem of a commit, or RIGHT if its signature is trusted."""
    found = signatures.find_faults(None, [commit])
    if not found:
        assert signatures.find_signer(commit) is not None
        return RIGHT
    assert (found[commit].code, signatures.find_signer(commit)) == (Code.UNTRUSTED, None)
    assert commit[:12] in found[commit].message
    return found[commit].message


def read_commit(work: WorkTree) -> bytes:
    command = ["git", "cat-file", "commit", "HEAD"]
    return subprocess.run(command, cwd=work.path, env=ENVIRONMENT, capture_output=True, check=True).stdout


def add_signature(raw: bytes, signature: bytes) -> bytes:
    header = b"\ngpgsig " + signature.strip().replace(b"\n", b"\n ")
    return raw.replace(b"\n\n", header + b"\n\n", 1)


# One commit, each kind of signature


@pytest.mark.parametrize(
    ("kind", "who", "expected"),
    [
        ("ssh", "ada", RIGHT),
        ("ssh", "eve", "which is not listed"),
        ("ssh", "old", "which has expired"),
        ("ssh", "new", "which is not yet valid"),
        ("ssh", "mail", "whose allowed-signers entry does not allow Git signatures"),
        ("gpg", "ada", RIGHT),
        ("gpg", "eve", "which is not listed"),
        ("gpg", "expired", "has expired"),
        ("gpg", "revoked", "was revoked"),
    ],
)
def test_a_signature_counts_if_its_key_counts(
    work: WorkTree,
    ssh: dict[str, Person],
    gpg: dict[str, Person],
    signers: Path,
    keyring: Path,
    kind: str,
    who: str,
    expected: str,
) -> None:
    commit = {"ssh": ssh, "gpg": gpg}[kind][who].commit(work, {"fleet.yaml": who})
    trusted = TrustedKeys(allowed_signers=signers) if kind == "ssh" else TrustedKeys(openpgp_keys=keyring)
    assert expected in find_fault(make_checker(work, trusted), commit)


def test_an_openpgp_signature_of_a_text_does_not_count(work: WorkTree, gpg: dict[str, Person], keyring: Path) -> None:
    """It is of every commit that differs only in the ends of its lines, each with another digest of its content."""
    raw = read_commit(work)
    payload = work.path.parent / "payload"
    payload.write_bytes(raw)
    for how, expected in (("--no-textmode", RIGHT), ("--textmode", "signed in text mode")):
        signature = sign_with_gpg(gpg["ada"], payload, "--armor", how, "--detach-sign")
        commit = store_commit(work, add_signature(raw, signature))
        assert expected in find_fault(make_checker(work, TrustedKeys(openpgp_keys=keyring)), commit)


@pytest.mark.parametrize(("namespace", "expected"), [("git", RIGHT), ("file", "changed after it was signed")])
def test_an_ssh_signature_counts_only_in_the_namespace_of_git(
    work: WorkTree, ssh: dict[str, Person], tmp_path: Path, namespace: str, expected: str
) -> None:
    """A key that is listed for all namespaces also signs files. Such a signature must not count for a commit."""
    raw = read_commit(work)
    command = ["ssh-keygen", "-q", "-Y", "sign", "-n", namespace, "-f", str(ssh["ada"].public.with_suffix(""))]
    signature = subprocess.run(command, input=raw, capture_output=True, check=True).stdout
    commit = store_commit(work, add_signature(raw, signature))
    everywhere = write_lines(tmp_path / "everywhere", [f"ada@example.net {ssh['ada'].key}"])
    assert expected in find_fault(make_checker(work, TrustedKeys(allowed_signers=everywhere)), commit)


def test_openpgp_signatures_of_two_people_in_one_header_do_not_count(
    work: WorkTree, gpg: dict[str, Person], keyring: Path
) -> None:
    raw = read_commit(work)
    payload = work.path.parent / "payload"
    payload.write_bytes(raw)
    by_ada, by_eve = (sign_with_gpg(gpg[name], payload) for name in ("ada", "eve"))
    for packets, expected in ((by_ada, RIGHT), (by_ada * 2, "cannot read"), (by_eve + by_ada, "cannot read")):
        command = ["gpg", "--batch", "--no-options", "--homedir", str(work.path.parent), "--enarmor"]
        armour = subprocess.run(command, input=packets, capture_output=True, check=True).stdout
        armour = armour.replace(b"PGP ARMORED FILE", b"PGP SIGNATURE")
        commit = store_commit(work, add_signature(raw, armour))
        assert expected in find_fault(make_checker(work, TrustedKeys(openpgp_keys=keyring)), commit)


def test_a_commit_that_is_not_signed_does_not_count(work: WorkTree, signers: Path, keyring: Path) -> None:
    trusted = TrustedKeys(allowed_signers=signers, openpgp_keys=keyring)
    assert find_fault(make_checker(work, trusted), work.head).endswith("is not signed")


def test_an_expired_key_does_not_count_even_for_an_old_commit_date(
    work: WorkTree, ssh: dict[str, Person], signers: Path
) -> None:
    """Git uses the date of the commit, which the owner of the key can choose."""
    work.write({"fleet.yaml": "backdated"})
    work.git("add", "--all")
    options = ("-c", "core.pager=cat", *ssh["old"].options)
    subprocess.run(
        ["git", *options, "commit", "--quiet", "--gpg-sign", "--message=Old"],
        cwd=work.path,
        env={**ENVIRONMENT, "GIT_COMMITTER_DATE": "2019-06-01T00:00:00Z"},
        check=True,
    )
    assert git_verifies(work, work.head, signers)
    assert "which has expired" in find_fault(make_checker(work, TrustedKeys(allowed_signers=signers)), work.head)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Change", "Changf"),
        ("ada@example.net", "eve@example.net"),
        ("\n\nChange", "\nx-more: header\n\nChange"),
        ("\n\nChange", "\n\nChange\0 and more"),
        ("Change\n", "Change\n\nGitboot-Ack: more\n"),
    ],
)
@pytest.mark.parametrize("kind", ["ssh", "gpg"])
def test_a_commit_that_was_changed_after_it_was_signed_does_not_count(
    work: WorkTree,
    ssh: dict[str, Person],
    gpg: dict[str, Person],
    signers: Path,
    keyring: Path,
    kind: str,
    old: str,
    new: str,
) -> None:
    commit = {"ssh": ssh, "gpg": gpg}[kind]["ada"].commit(work)
    signatures = make_checker(work, TrustedKeys(allowed_signers=signers, openpgp_keys=keyring))
    assert find_fault(signatures, commit) == RIGHT
    assert "changed after it was signed" in find_fault(signatures, rewrite_commit(work, commit, old, new))


def test_a_signature_on_another_tree_does_not_count(work: WorkTree, ssh: dict[str, Person], signers: Path) -> None:
    first, evil = (work.git("rev-parse", f"{work.commit({'fleet.yaml': text})}^{{tree}}") for text in ("a", "evil"))
    work.git("reset", "--quiet", "--hard", "HEAD^")
    changed = rewrite_commit(work, ssh["ada"].commit(work), first, evil)
    assert "changed after it" in find_fault(make_checker(work, TrustedKeys(allowed_signers=signers)), changed)


@pytest.mark.parametrize("header", ["gpgsig", "gpgsig-sha256"])
def test_a_commit_with_two_signatures_does_not_count(
    work: WorkTree, ssh: dict[str, Person], signers: Path, header: str
) -> None:
    """Programs differ in which of the two they look at."""
    commit = ssh["ada"].commit(work)
    twice = rewrite_commit(work, commit, "\n\nChange", f"\n{header} -----BEGIN SSH SIGNATURE-----\n x\n\nChange")
    assert "signed in a way that gitboot does not support" in find_fault(
        make_checker(work, TrustedKeys(allowed_signers=signers)), twice
    )


@pytest.mark.parametrize("signature", ["x", "-----BEGIN SSH SIGNATURE-----", "-----BEGIN PGP SIGNATURE-----", ""])
def test_an_invalid_signature_does_not_count(work: WorkTree, signers: Path, keyring: Path, signature: str) -> None:
    commit = store_commit(work, read_commit(work).replace(b"\n\n", f"\ngpgsig {signature}\n ====\n\n".encode(), 1))
    trusted = TrustedKeys(allowed_signers=signers, openpgp_keys=keyring)
    assert find_fault(make_checker(work, trusted), commit) != RIGHT


# Beside git


def git_verifies(work: WorkTree, commit: Revision, signers: Path) -> bool:
    command = ["git", "-c", f"gpg.ssh.allowedSignersFile={signers}", "verify-commit", commit]
    return subprocess.run(command, cwd=work.path, env=ENVIRONMENT, capture_output=True, check=False).returncode == 0


def test_a_signature_counts_if_git_accepts_it(work: WorkTree, ssh: dict[str, Person], signers: Path) -> None:
    signatures = make_checker(work, TrustedKeys(allowed_signers=signers))
    good = ssh["ada"].commit(work, message="Umlauts äöü\n\n-----BEGIN SSH SIGNATURE-----\n gpgsig x\n")
    merged = WorkTree(work.path)
    merged.git("switch", "--quiet", "--create", "side", "HEAD^")
    ssh["bob"].commit(merged, {"side": "x"})
    merged.git("switch", "--quiet", "main")
    commits = [
        good,
        ssh["ada"].merge(work, "side"),
        ssh["eve"].commit(work),
        work.commit(),
        rewrite_commit(work, ssh["ada"].commit(work), "Change", "Chance"),
    ]
    assert [find_fault(signatures, each) == RIGHT for each in commits] == [
        git_verifies(work, each, signers) for each in commits
    ]
    assert [find_fault(signatures, each) == RIGHT for each in commits] == [True, True, False, False, False]


def test_no_configuration_of_a_repository_or_user_makes_a_key_count(
    work: WorkTree, ssh: dict[str, Person], signers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Configuration, programs, replaced objects, an own keyring: of the repository and of the user."""
    eves = write_lines(tmp_path / "eves", [f"eve@example.net {ssh['eve'].key}"])
    commit = ssh["eve"].commit(work)
    good = ssh["ada"].commit(work)
    (tmp_path / "yes").write_text("#!/bin/sh\necho 'Good \"git\" signature for x with ED25519 key SHA256:x'\n")
    (tmp_path / "yes").chmod(0o755)
    for name, value in (
        ("gpg.ssh.allowedSignersFile", eves),
        ("gpg.ssh.program", tmp_path / "yes"),
        ("gpg.program", tmp_path / "yes"),
    ):
        work.git("config", name, str(value))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(work.path / ".git" / "config"))
    monkeypatch.setenv("GNUPGHOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    work.git("replace", commit, good)
    assert find_fault(make_checker(work, TrustedKeys(allowed_signers=signers)), commit) != RIGHT


def test_no_git_program_is_needed(
    work: WorkTree, ssh: dict[str, Person], signers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = ssh["ada"].commit(work)
    (tmp_path / "bin").mkdir()
    keygen = subprocess.run(["which", "ssh-keygen"], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "bin" / "ssh-keygen").symlink_to(keygen)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert find_fault(make_checker(work, TrustedKeys(allowed_signers=signers)), commit) == RIGHT
    os.unlink(tmp_path / "bin" / "ssh-keygen")
    signatures = make_checker(work, TrustedKeys(allowed_signers=signers))
    with pytest.raises((UsageError, SourceError), match="ssh-keygen is not installed"):
        signatures.find_signer(commit)


# SignatureKeys


def test_the_signer_has_the_name_from_the_list_of_keys(
    work: WorkTree, ssh: dict[str, Person], gpg: dict[str, Person], signers: Path, keyring: Path
) -> None:
    signatures = make_checker(work, TrustedKeys(allowed_signers=signers, openpgp_keys=keyring))
    from_ssh, from_gpg = (signatures.find_signer(each["ada"].commit(work)) for each in (ssh, gpg))
    assert from_ssh is not None and (from_ssh.person, from_ssh.key[:7]) == ("ada@example.net", "SHA256:")
    assert from_gpg is not None and from_gpg.person == "ada <ada@example.net>" and len(from_gpg.key) == 40
    message = Message(ssh["ada"].commit(work), "Bump", "Merge Bot <bot@example.net>", "Merge Bot <bot@example.net>")
    assert signatures.add_signer(message).by.startswith("ada@example.net (SHA256:")
    assert message.by.endswith("not signed by a trusted key")


@pytest.mark.parametrize("kind", ["ssh", "gpg"])
def test_the_key_of_a_forge_counts_for_merges_only(
    work: WorkTree, ssh: dict[str, Person], gpg: dict[str, Person], signers: Path, tmp_path: Path, kind: str
) -> None:
    forge = {"ssh": ssh, "gpg": gpg}[kind]["forge"]
    trusted = TrustedKeys(allowed_signers=signers, forge_keys=(("GitHub", forge.public),))
    work.git("branch", "side")
    work.commit({"main": "x"})
    edited = forge.commit(work, {"edited": "in the browser"})
    work.git("switch", "--quiet", "side")
    work.commit({"side": "x"})
    work.git("switch", "--quiet", "main")
    merged = forge.merge(work, "side")
    signatures = make_checker(work, trusted)
    assert find_fault(signatures, merged) == RIGHT
    found = signatures.find_signer(merged)
    assert found is not None and found == Signer("GitHub", found.key, is_forge=True)
    assert "signed by the forge GitHub, whose key is trusted only for merge commits" in find_fault(signatures, edited)


def test_a_key_counts_as_long_as_its_line_exists(work: WorkTree, ssh: dict[str, Person], signers: Path) -> None:
    signatures = make_checker(work, TrustedKeys(allowed_signers=signers))
    by_ada, by_eve = ssh["ada"].commit(work), ssh["eve"].commit(work)
    before = signatures.fingerprint(by_eve)
    assert (find_fault(signatures, by_ada) == RIGHT, find_fault(signatures, by_eve) == RIGHT) == (True, False)
    write_lines(signers, [f"eve@example.net {ssh['eve'].key}"])
    assert signatures.fingerprint(by_eve) != before
    assert (find_fault(signatures, by_ada) == RIGHT, find_fault(signatures, by_eve) == RIGHT) == (False, True)


@pytest.mark.parametrize("kind", ["missing", "no key", "empty folder"])
def test_unreadable_keys_are_reported_at_the_start_and_later(
    work: WorkTree, gpg: dict[str, Person], tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "keys.asc"
    path.write_bytes(gpg["ada"].public.read_bytes())
    signatures = make_checker(work, TrustedKeys(openpgp_keys=path))
    commit = gpg["ada"].commit(work)
    assert find_fault(signatures, commit) == RIGHT
    path.unlink()
    if kind == "no key":
        path.write_text("no key")
    elif kind == "empty folder":
        path.mkdir()
    with pytest.raises(SourceError, match=r"keys\.asc"):
        signatures.find_faults(None, [commit])
    with pytest.raises(UsageError, match=r"keys\.asc"):
        SignatureKeys(TrustedKeys(openpgp_keys=path), tmp_path / "other").fingerprint()


# Several commits


def test_verify_head_checks_each_commit_alone_and_verify_range_all_before_it(
    work: WorkTree, ssh: dict[str, Person], signers: Path
) -> None:
    accepted = work.head
    line = [ssh["ada"].commit(work), work.commit(), ssh["ada"].commit(work)]
    trusted = TrustedKeys(allowed_signers=signers)
    assert list(make_checker(work, trusted).find_faults(accepted, line)) == [line[1]]
    faults = make_checker(work, trusted, Verify.RANGE).find_faults(accepted, line)
    assert list(faults) == line[1:]
    assert all(line[1][:12] in fault.message for fault in faults.values())
    assert make_checker(work, trusted, Verify.RANGE).find_faults(line[1], line[2:]) == {}
    assert make_checker(work, trusted, Verify.RANGE).find_faults(None, line[2:]) == {}
    assert make_checker(work, trusted, None).find_faults(accepted, line) == {}


def test_a_range_is_the_first_parent_line_so_the_branch_of_a_signed_merge_need_not_be_signed(
    work: WorkTree, ssh: dict[str, Person], signers: Path
) -> None:
    accepted = work.head
    work.git("switch", "--quiet", "--create", "side")
    side = work.commit({"side": "x"})
    work.git("switch", "--quiet", "main")
    merged = ssh["ada"].merge(work, "side")
    signatures = make_checker(work, TrustedKeys(allowed_signers=signers), Verify.RANGE)
    assert (signatures.find_faults(accepted, [merged]), list(signatures.find_faults(accepted, [side]))) == ({}, [side])
    assert list(signatures.find_faults(merged, [side])) == [side]  # back to what a merge brought in


def test_a_rewritten_branch_is_verified_from_where_it_left_the_accepted_line(
    work: WorkTree, ssh: dict[str, Person], signers: Path
) -> None:
    ssh["ada"].commit(work)
    root = work.head
    accepted = ssh["ada"].commit(work, {"fleet.yaml": "accepted"})
    work.git("reset", "--quiet", "--hard", root)
    unsigned = work.commit({"fleet.yaml": "unsigned"})
    newest = ssh["ada"].commit(work, {"fleet.yaml": "newest"})
    signatures = make_checker(work, TrustedKeys(allowed_signers=signers), Verify.RANGE)
    assert unsigned[:12] in signatures.find_faults(accepted, [newest])[newest].message
    assert signatures.find_faults(accepted, [root]) == {}  # rewound to what was accepted before: a guard holds that
    work.git("reset", "--quiet", "--hard", root)
    assert signatures.find_faults(accepted, [ssh["ada"].commit(work)]) == {}


def test_a_range_that_is_too_long_is_not_verified(work: WorkTree, ssh: dict[str, Person], signers: Path) -> None:
    accepted = work.head
    commits = "".join(
        f"commit refs/heads/main\ncommitter A <a@example.net> {1_700_000_000 + number} +0000\ndata 1\nx\n"
        + (f"from {accepted}\n" if number == 0 else "")
        for number in range(201)
    )
    work.git("fast-import", "--quiet", "--force", text=commits)
    newest = ssh["ada"].commit(work)
    signatures = make_checker(work, TrustedKeys(allowed_signers=signers), Verify.RANGE)
    assert "start gitboot once with `--verify head`" in signatures.find_faults(accepted, [newest])[newest].message
    assert find_fault(make_checker(work, TrustedKeys(allowed_signers=signers)), newest) == RIGHT


# Tags


def fetch_commit(
    work: WorkTree, state: Path, reference: str, trusted: TrustedKeys
) -> tuple[SignatureChecker, Revision]:
    source = Source(Remote(url=str(work.path), reference=reference), state)
    commit = source.fetch()
    return SignatureChecker(
        source.clone, SignatureKeys(trusted, state / "keys"), Verify.TAG, source.read_tag_on
    ), commit


@pytest.mark.parametrize("kind", ["ssh", "gpg"])
@pytest.mark.parametrize("reference", ["v1.1.0", ">=1.0.0 <2.0.0", "refs/tags/v1.1.0"])
def test_a_followed_tag_must_be_signed(
    work: WorkTree,
    ssh: dict[str, Person],
    gpg: dict[str, Person],
    signers: Path,
    keyring: Path,
    tmp_path: Path,
    kind: str,
    reference: str,
) -> None:
    {"ssh": ssh, "gpg": gpg}[kind]["ada"].tag(work, "v1.1.0")
    signatures, commit = fetch_commit(
        work, tmp_path / "state", reference, TrustedKeys(allowed_signers=signers, openpgp_keys=keyring)
    )
    assert find_fault(signatures, commit) == RIGHT
    found = signatures.find_signer(commit)
    assert found is not None and "ada" in found.person


@pytest.mark.parametrize("how", ["not annotated", "not signed", "by eve", "a branch", "an older one, renamed"])
def test_a_tag_that_does_not_sign_the_commit_does_not_count(
    work: WorkTree, ssh: dict[str, Person], signers: Path, tmp_path: Path, how: str
) -> None:
    ssh["ada"].tag(work, "v1.0.0")
    ssh["ada"].commit(work)
    match how:
        case "not annotated":
            work.git("tag", "v2.0.0")
        case "not signed":
            work.git("tag", "--annotate", "--message=x", "v2.0.0")
        case "by eve":
            ssh["eve"].tag(work, "v2.0.0")
        case "a branch":
            work.git("branch", "v2.0.0")
        case _:
            work.git("update-ref", "refs/tags/v2.0.0", "refs/tags/v1.0.0")
    signatures, commit = fetch_commit(work, tmp_path / "state", "v2.0.0", TrustedKeys(allowed_signers=signers))
    assert find_fault(signatures, commit) != RIGHT
