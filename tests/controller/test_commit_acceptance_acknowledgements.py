"""Signed acknowledgements count once, even if a stranger rewrites one in another form."""

from __future__ import annotations

import base64
import re
import shutil
import sqlite3
import subprocess
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from gitboot.controller.instance.settings import TrustSettings
from gitboot.controller.instance.state_directory import LEDGER
from gitboot.errors import SourceError
from gitboot.fleet.revision import ReinstallsNeed, Revision
from gitboot.git.repository import CommitReader, StoredRepository, split_signatures
from gitboot.git.signatures import SignatureChecker, SignatureKeys, TrustedKeys, parse_commit_signature
from gitboot.ledger import instance_tables
from gitboot.review.guards import Limits
from tests.helpers.fleets import fleet, image, policy, profile, server
from tests.helpers.git_repositories import (
    ENVIRONMENT,
    Person,
    WorkTree,
    commit_by_git,
    gpg_people,
    make_ssh_person,
    store_commit,
    write_lines,
)
from tests.helpers.instance_in_process import Parts, applied, reconcile_once, run_in_process
from tests.helpers.instance_with_bmcs import run_command
from tests.helpers.running_instance import eventually, running


def documents(image_name: str) -> dict[str, str | None]:
    servers = (server(f"web{number:02}") for number in range(12))
    images = (image(name) for name in ("flatcar-1", "flatcar-2"))
    parts = (fleet("baseURL: 'http://boot.test'"), *servers, *images, profile("web", image_name))
    return {"fleet.yaml": "---\n".join((*parts, policy("web", often="OnImageChange")))}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Person]]:
    """Two people whom the instance trusts, each with another kind of key."""
    with gpg_people("grace") as found:
        yield {"ssh": make_ssh_person(tmp_path_factory.mktemp("ssh"), "ada"), "openpgp": found["grace"]}


@pytest.fixture
def trust(tmp_path: Path, people: dict[str, Person]) -> TrustSettings:
    signers = write_lines(tmp_path / "signers", [f"ada@example.net {people['ssh'].key}"])
    keys = TrustedKeys(allowed_signers=signers, openpgp_keys=people["openpgp"].public)
    return TrustSettings(keys=keys, reinstalls_need=ReinstallsNeed.SIGNED)


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    work = WorkTree(tmp_path / "git")
    work.commit(documents("flatcar-1"))
    return work


@contextmanager
def instance(work: WorkTree, trust: TrustSettings) -> Iterator[Parts]:
    with run_in_process(work.path.parent, work.path, limits=Limits(), trust=trust) as parts:
        reconcile_once(parts)
        yield parts


def reconcile_all(parts: Parts, seconds: float) -> None:
    """Fetch, publish without the withheld boots, read all fetches, and judge by the records."""
    for _ in range(3):
        reconcile_once(parts, seconds)


def lines(parts: Parts) -> str:
    candidate = parts.reconciler.state.acceptance.candidate
    assert candidate is not None
    verdict = candidate.verdict
    return "\n".join(f"Gitboot-Ack: {verdict.digest} {guard}" for guard in verdict.holding_guards)


def find_ignored_acknowledgements(parts: Parts) -> str:
    """Return the ignored acknowledgements of the newest event."""
    return next(event.message for event in reversed(parts.events) if event.type == "Held")


def switch_image(parts: Parts, work: WorkTree, person: Person, name: str) -> tuple[Revision, str]:
    """Change the image with a signed acknowledgement; return the signed commit and its lines."""
    commit_by_git(work, documents(name))
    reconcile_once(parts, 1)
    said = lines(parts)
    signed = person.commit(work, message=f"Agreed\n\n{said}")
    reconcile_all(parts, 2)
    assert applied(parts) == signed
    return signed, said


# In another form


def _match_signature(raw: bytes) -> re.Match[bytes]:
    """The header with a commit's signature; its first group is the signature."""
    found = re.search(rb"^gpgsig (.*(?:\n .*)*)\n", raw, re.MULTILINE)
    assert found is not None
    return found


def _read_lines(raw: bytes) -> list[bytes]:
    return [line.removeprefix(b" ") for line in _match_signature(raw)[1].split(b"\n")]


def _decode_armour(lines: list[bytes]) -> bytes:
    """The signature itself, without armour."""
    body = lines[1:-1]
    body = body[body.index(b"") + 1 :] if b"" in body else body
    return base64.b64decode(b"".join(line for line in body if line and not line.startswith(b"=")))


def _crc24(data: bytes) -> bytes:
    """The checksum of an OpenPGP armour: RFC 4880, 6.1."""
    crc = 0xB704CE
    for byte in data:
        crc ^= byte << 16
        for _ in range(8):
            crc = (crc << 1) ^ (0x1864CFB if crc & 0x800000 else 0)
    return crc.to_bytes(3)


def _encode_armour(lines: list[bytes], data: bytes, width: int = 64, headers: Sequence[bytes] = ()) -> list[bytes]:
    encoded = base64.b64encode(data)
    body = [encoded[start : start + width] for start in range(0, len(encoded), width)]
    if not lines[0].startswith(b"-----BEGIN PGP"):
        return [lines[0], *body, lines[-1]]
    return [lines[0], *headers, b"", *body, b"=" + base64.b64encode(_crc24(data)), lines[-1]]


def _read_packet(data: bytes) -> bytes:
    """The content of an OpenPGP packet: RFC 4880, 4.2."""
    assert data[0] & 0xC3 == 0x80, "an old packet header with a length of one byte"
    return data[2:]


def _add_subpacket(data: bytes) -> bytes:
    """An OpenPGP signature with one more subpacket that it does not cover: RFC 4880, 5.2.3."""
    body = _read_packet(data)
    at = 6 + int.from_bytes(body[4:6])
    more = b"\x06\x64extra"  # length, a type for private use, content
    size = int.from_bytes(body[at : at + 2]) + len(more)
    body = body[:at] + size.to_bytes(2) + more + body[at + 2 :]
    return bytes((data[0], len(body))) + body


def _move_signature(raw: bytes) -> bytes:
    """The commit with its signature before its author."""
    header = _match_signature(raw)
    rest = raw[: header.start()] + raw[header.end() :]
    return rest.replace(b"author ", header[0] + b"author ", 1)


def _add_header(name: bytes, raw: bytes) -> bytes:
    """The commit with its signature in one more header."""
    header = _match_signature(raw)
    return raw[: header.start()] + name + b" " + header[1] + b"\n" + raw[header.start() :]


@dataclass(frozen=True, kw_only=True)
class Form:
    """A way to write a signed commit with other bytes, so that its id differs."""

    change: Callable[[bytes], bytes]  # of the bytes of a commit
    by_git: bool = True  # whether `git verify-commit` accepts it
    by_gitboot: bool = True  # whether gitboot takes it as signed


def _rewrite_lines(change: Callable[[list[bytes]], list[bytes]], *, verifies: bool = True) -> Form:
    """A form with other lines of the signature."""

    def changed(raw: bytes) -> bytes:
        header = _match_signature(raw)
        return raw[: header.start(1)] + b"\n ".join(change(_read_lines(raw))) + raw[header.end(1) :]

    return Form(change=changed, by_git=verifies, by_gitboot=verifies)


def _compress_signature(raw: bytes) -> bytes:
    """The commit with its OpenPGP signature in a compressed packet: RFC 4880, 5.6."""
    packet = b"\xa3\x02" + zlib.compress(_decode_armour(_read_lines(raw)))
    return _rewrite_lines(lambda lines: _encode_armour(lines, packet)).change(raw)


NARROW: Final = _rewrite_lines(lambda lines: _encode_armour(lines, _decode_armour(lines), 20))
FORMS: Final[Mapping[str, Form]] = {
    "a width of 20": NARROW,
    "one line": _rewrite_lines(lambda lines: _encode_armour(lines, _decode_armour(lines), 4096)),
    "a line behind it": _rewrite_lines(lambda lines: [*lines, b"and more"]),
    "spaces before its lines": _rewrite_lines(
        lambda lines: [lines[0], *(b" " + line for line in lines[1:-1]), lines[-1]]
    ),
    "spaces behind its lines": _rewrite_lines(
        lambda lines: [lines[0], *(line + b" " for line in lines[1:-1]), lines[-1]]
    ),
    "empty lines": _rewrite_lines(lambda lines: [lines[0], b"", *lines[1:-1], b"", lines[-1], b""]),
    "before the author": Form(change=_move_signature),
    "data behind it": _rewrite_lines(
        lambda lines: _encode_armour(lines, _decode_armour(lines) + b"more"), verifies=False
    ),
    "a line before it": _rewrite_lines(lambda lines: [b"and more", *lines], verifies=False),
    "a header for SHA-256": Form(change=partial(_add_header, b"gpgsig-sha256"), by_gitboot=False),
}
SSH_FORMS: Final[Mapping[str, Form]] = {
    "twice": _rewrite_lines(lambda lines: [*lines, *lines]),
    "CRLF": _rewrite_lines(lambda lines: [line + b"\r" for line in lines], verifies=False),
    "two headers": Form(change=partial(_add_header, b"gpgsig"), by_gitboot=False),
}
OPENPGP_FORMS: Final[Mapping[str, Form]] = {
    "CRLF": _rewrite_lines(lambda lines: [line + b"\r" for line in lines]),
    "a comment": _rewrite_lines(
        lambda lines: _encode_armour(lines, _decode_armour(lines), headers=[b"Comment: again", b"Version: 7"])
    ),
    "one more unhashed subpacket": _rewrite_lines(
        lambda lines: _encode_armour(lines, _add_subpacket(_decode_armour(lines)))
    ),
    "a new packet header": _rewrite_lines(
        lambda lines: _encode_armour(
            lines, bytes((0xC2, len(_read_packet(_decode_armour(lines))))) + _read_packet(_decode_armour(lines))
        )
    ),
    "a length of two bytes": _rewrite_lines(
        lambda lines: _encode_armour(
            lines, b"\x89" + len(_read_packet(_decode_armour(lines))).to_bytes(2) + _read_packet(_decode_armour(lines))
        )
    ),
    "a marker packet": _rewrite_lines(
        lambda lines: _encode_armour(lines, b"\xca\x03PGP" + _decode_armour(lines))
    ),  # RFC 4880, 5.8
    "twice": _rewrite_lines(lambda lines: [*lines, *lines], verifies=False),
    "its packet twice": _rewrite_lines(lambda lines: _encode_armour(lines, _decode_armour(lines) * 2), verifies=False),
    "compressed": Form(change=_compress_signature, by_gitboot=False),
    "two headers": Form(change=partial(_add_header, b"gpgsig"), by_git=False, by_gitboot=False),
}
FORMS_OF: Final = {"ssh": {**FORMS, **SSH_FORMS}, "openpgp": {**FORMS, **OPENPGP_FORMS}}


def rewrite_commit(work: WorkTree, commit: Revision, form: Form) -> Revision:
    """A commit with the same content as a signed one, which is checked out then, and another id."""
    raw = read_raw(work, commit)
    changed = form.change(raw)
    assert split_signatures(changed)[0] == split_signatures(raw)[0]
    made = store_commit(work, changed)
    assert made != commit
    return made


def read_raw(work: WorkTree, commit: Revision) -> bytes:
    import pygit2

    return CommitReader(pygit2.Repository(str(work.path))).read(commit).raw


def merge_with(work: WorkTree, main: Revision, other: Revision, name: str, message: str) -> Revision:
    """Merge two commits on main that install an image; the merge is unsigned."""
    work.git("reset", "--quiet", "--hard", main)
    work.git("merge", "--quiet", "--strategy=ours", "--no-commit", "--no-ff", "--allow-unrelated-histories", other)
    work.write(documents(name))
    work.git("add", "--all")
    work.git("commit", "--quiet", f"--message={message}")
    return work.head


@pytest.mark.parametrize("kind", ["ssh", "openpgp"])
def test_each_form_of_a_signature_verifies_as_its_row_states(
    work: WorkTree, people: dict[str, Person], trust: TrustSettings, tmp_path: Path, kind: str
) -> None:
    """A form that does not verify proves nothing about single use, so no other test uses it."""
    person, forms = people[kind], FORMS_OF[kind]
    signed, keys = person.commit(work), SignatureKeys(trust.keys, tmp_path / "keys")
    options = (*person.options, "-c", f"gpg.ssh.allowedSignersFile={trust.keys.allowed_signers}")
    found = {}
    for name, form in forms.items():
        made = rewrite_commit(work, signed, form)
        command = ["git", *options, "verify-commit", made]
        by_git = subprocess.run(command, cwd=work.path, env=ENVIRONMENT, check=False, capture_output=True)
        by_gitboot = SignatureChecker(StoredRepository(work.path / ".git", SourceError), keys).find_signer(made)
        found[name] = (by_git.returncode == 0, by_gitboot is not None)
    assert found == {name: (form.by_git, form.by_gitboot) for name, form in forms.items()}


@pytest.mark.parametrize("kind", ["ssh", "openpgp"])
def test_a_used_acknowledgement_in_another_form_counts_for_nothing(
    work: WorkTree, people: dict[str, Person], trust: TrustSettings, kind: str
) -> None:
    """Each form is merged on its own into what was accepted before."""
    forms = {name: form for name, form in FORMS_OF[kind].items() if form.by_gitboot}
    with instance(work, trust) as parts:
        signed, said = switch_image(parts, work, people[kind], "flatcar-2")
        back, _ = switch_image(parts, work, people[kind], "flatcar-1")
        for seconds, (name, form) in enumerate(forms.items(), 3):
            replayed = rewrite_commit(work, signed, form)
            newest = merge_with(work, back, replayed, "flatcar-2", f"Fine: {name}\n\n{said}")
            reconcile_once(parts, seconds)
            held = parts.reconciler.status.held
            assert (applied(parts), held is not None and held.commit == newest) == (back, True), name
            assert held is not None and held.guards == ("maxReinstalls",), name
            assert "counts only once" in find_ignored_acknowledgements(parts), name  # its signature is right
        # A person with a key signs the same change once more.
        again = people[kind].commit(work, message=f"Agreed again\n\n{said}")
        reconcile_once(parts, 3 + len(forms))
        assert applied(parts) == again


def test_several_commits_in_one_poll_end_in_the_same_state(
    work: WorkTree, people: dict[str, Person], trust: TrustSettings
) -> None:
    ada = people["ssh"]
    with instance(work, trust) as parts:
        first = work.head
        commit_by_git(work, documents("flatcar-2"))
        reconcile_once(parts, 1)
        there = lines(parts)
        work.git("reset", "--quiet", "--hard", first)
        signed = ada.commit(work, documents("flatcar-2"), message=f"Agreed\n\n{there}")
        replayed = rewrite_commit(work, signed, NARROW)
        work.git("reset", "--quiet", "--hard", signed)
        reconcile_once(parts, 2)
        assert applied(parts) == signed
        commit_by_git(work, documents("flatcar-1"))
        reconcile_once(parts, 2)
        back = ada.commit(work, message=f"Back\n\n{lines(parts)}")
        newest = merge_with(work, back, replayed, "flatcar-2", f"Fine\n\n{there}")
        reconcile_all(parts, 3)
        assert applied(parts) == back
        assert parts.reconciler.status.held is not None
    fresh = WorkTree(work.path.parent / "elsewhere" / "git")
    fresh.git("fetch", "--quiet", str(work.path), f"{newest}:refs/heads/all")
    fresh.git("reset", "--quiet", "--hard", first)
    with instance(fresh, trust) as parts:
        assert applied(parts) == first
        fresh.git("reset", "--quiet", "--hard", newest)
        reconcile_all(parts, 1)
        assert applied(parts) == back
        assert parts.reconciler.status.held is not None


def test_an_acknowledgement_is_used_up_when_its_commit_is_accepted_even_if_it_did_not_count(
    work: WorkTree, people: dict[str, Person], trust: TrustSettings
) -> None:
    """A copy with a broken signature comes first; then no signature of this content counts any more."""
    with instance(work, trust) as parts:
        before = work.head
        commit_by_git(work, documents("flatcar-2"))
        reconcile_once(parts, 1)
        said = lines(parts)
        work.git("reset", "--quiet", "--hard", before)
        signed = people["ssh"].commit(work, message=f"Agreed\n\n{said}")
        broken = rewrite_commit(work, signed, _rewrite_lines(lambda lines: [lines[0], b"AAAA", lines[-1]]))
        reconcile_once(parts, 2)
        assert applied(parts) == broken  # without an effect
        newest = merge_with(work, broken, signed, "flatcar-2", f"Fine\n\n{said}")
        reconcile_once(parts, 3)
        assert applied(parts) == broken != newest
        assert "counts only once" in find_ignored_acknowledgements(parts)


def test_a_merge_keeps_an_acknowledgement_and_a_merge_of_something_else_does_not_void_it(
    work: WorkTree, people: dict[str, Person], trust: TrustSettings
) -> None:
    with instance(work, trust) as parts:
        main = work.head
        work.git("switch", "--quiet", "--create", "side")
        changed = commit_by_git(work, documents("flatcar-2"))
        work.git("switch", "--quiet", "main")
        work.git("reset", "--quiet", "--hard", changed)
        reconcile_once(parts, 1)
        said = lines(parts)
        work.git("reset", "--quiet", "--hard", main)
        work.git("switch", "--quiet", "side")
        people["ssh"].commit(work, message=f"Agreed\n\n{said}")
        work.git("switch", "--quiet", "main")
        commit_by_git(work, {"images/other.yaml": image("other-1")}, "Something else")
        work.git("merge", "--quiet", "--no-ff", "--message=Merge", "side")
        reconcile_once(parts, 2)
        assert applied(parts) == work.head


@pytest.mark.parametrize("how", ["cherry-pick", "squash", "rebase"])
@pytest.mark.parametrize("is_signed", [False, True], ids=["unsigned", "signed"])
def test_a_rewritten_commit_counts_only_if_a_trusted_key_signs_it(
    work: WorkTree, people: dict[str, Person], trust: TrustSettings, how: str, is_signed: bool
) -> None:
    ada = people["ssh"]
    with instance(work, trust) as parts:
        main = work.head
        commit_by_git(work, documents("flatcar-2"))
        reconcile_once(parts, 1)
        ada.commit(work, message=f"Agreed\n\n{lines(parts)}")
        work.git("branch", "side")
        work.git("reset", "--quiet", "--hard", main)
        other = commit_by_git(work, {"images/other.yaml": image("other-1")}, "Something else")
        reconcile_once(parts, 2)
        assert applied(parts) == other
        options = (*ada.options, "-c", "commit.gpgsign=true") if is_signed else ("-c", "commit.gpgsign=false")
        match how:
            case "cherry-pick":
                work.git(*options, "cherry-pick", "--allow-empty", f"{main}..side")
            case "squash":
                message = work.git("log", "--format=%B", f"{main}..side")
                work.git("merge", "--quiet", "--squash", "side")
                work.git(*options, "commit", "--quiet", f"--message={message}")
            case "rebase":
                work.git(*options, "rebase", "--quiet", "--onto", "main", main, "side")
                work.git("switch", "--quiet", "main")
                work.git("reset", "--quiet", "--hard", "side")
        reconcile_once(parts, 3)
        assert (applied(parts) == work.head) is is_signed


def test_a_rewind_does_not_make_an_acknowledgement_count_again(
    work: WorkTree, people: dict[str, Person], trust: TrustSettings
) -> None:
    first = work.head
    with instance(work, trust) as parts:
        signed, _ = switch_image(parts, work, people["ssh"], "flatcar-2")
        work.git("reset", "--quiet", "--hard", first)
    limits = Limits(allow_rewind=True, max_reinstalls=99, max_update_percent=100)
    with run_in_process(work.path.parent, work.path, limits=limits, trust=trust) as parts:
        reconcile_all(parts, 3)
        assert applied(parts) == first
    with instance(work, trust) as parts:
        work.git("reset", "--quiet", "--hard", signed)
        reconcile_once(parts, 4)
        assert applied(parts) == first
        assert "counts only once" in find_ignored_acknowledgements(parts)


def _sign_with(algorithm: str, person: Person, raw: bytes) -> bytes:
    """A commit with another SSH signature by the same key."""
    private = person.public.with_suffix("")
    command = ["ssh-keygen", "-q", "-Y", "sign", "-n", "git", "-O", f"hashalg={algorithm}", "-f", str(private)]
    signature = subprocess.run(command, input=split_signatures(raw)[0], capture_output=True, check=True).stdout
    header = _match_signature(raw)
    return raw[: header.start(1)] + signature.strip().replace(b"\n", b"\n ") + raw[header.end(1) :]


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_a_used_acknowledgement_with_another_signature_counts_for_nothing(
    work: WorkTree, people: dict[str, Person], trust: TrustSettings, algorithm: str
) -> None:
    """Ed25519 signatures are the same each time, so one of both is in another form only."""
    ada = people["ssh"]
    with instance(work, trust) as parts:
        signed, said = switch_image(parts, work, ada, "flatcar-2")
        back, _ = switch_image(parts, work, ada, "flatcar-1")
        form = Form(change=lambda raw: _sign_with(algorithm, ada, _move_signature(raw)))
        replayed = rewrite_commit(work, signed, form)
        merge_with(work, back, replayed, "flatcar-2", f"Fine\n\n{said}")
        reconcile_once(parts, 3)
        assert applied(parts) == back
        assert "counts only once" in find_ignored_acknowledgements(parts)


@pytest.mark.parametrize("kind", ["ssh", "openpgp"])
def test_an_acknowledgement_with_other_line_endings_and_another_encoding_counts_once(
    work: WorkTree, people: dict[str, Person], trust: TrustSettings, kind: str
) -> None:
    options = ("-c", "i18n.commitEncoding=ISO-8859-1", "-c", "commit.cleanup=verbatim")
    person = replace(people[kind], options=(*people[kind].options, *options))
    with instance(work, trust) as parts:
        commit_by_git(work, documents("flatcar-2"))
        reconcile_once(parts, 1)
        said = lines(parts)
        signed = person.commit(work, message=f"Agreed: Caf\u00e9\r\n\r\n{said}\r\n")
        raw = read_raw(work, signed)
        assert b"\nencoding ISO-8859-1\n" in raw and f"{said}\r\n".encode() in raw
        reconcile_once(parts, 2)
        assert applied(parts) == signed
        back, _ = switch_image(parts, work, person, "flatcar-1")
        replayed = rewrite_commit(work, signed, NARROW)
        merge_with(work, back, replayed, "flatcar-2", "Fine")
        reconcile_once(parts, 3)
        assert applied(parts) == back
        assert "counts only once" in find_ignored_acknowledgements(parts)


def test_a_signed_tag_acknowledges_nothing_even_if_a_merge_keeps_its_text(
    work: WorkTree, people: dict[str, Person], trust: TrustSettings
) -> None:
    """Git writes a merged tag into the header mergetag of the merge, and its text into the message."""
    ada = people["ssh"]
    with instance(work, trust) as parts:
        main = work.head
        changed = commit_by_git(work, documents("flatcar-2"))
        reconcile_once(parts, 1)
        said = lines(parts)
        work.git(*ada.options, "tag", "--sign", f"--message=Agreed\n\n{said}", "agreed", changed)
        work.git("reset", "--quiet", "--hard", main)
        work.git("merge", "--quiet", "--no-ff", "--no-edit", "agreed")
        raw = read_raw(work, work.head)
        assert b"\nmergetag object " in raw and said.encode() in raw.partition(b"\n\n")[2]
        reconcile_once(parts, 2)
        assert applied(parts) == main


# After an upgrade, or a restore


def remove_acknowledgements(folder: Path) -> None:
    """Let a ledger be as a gitboot left it that did not note them."""
    with closing(sqlite3.connect(folder / "state" / LEDGER, isolation_level=None)) as ledger:
        ledger.executescript("DELETE FROM acknowledgements; DELETE FROM facts WHERE name = 'searched'")


@pytest.mark.parametrize("fails", [False, True])  # whether the ledger cannot be written at first
@pytest.mark.parametrize("rewound", [False, True])
def test_the_ledger_is_filled_from_the_history_after_an_upgrade(
    work: WorkTree, people: dict[str, Person], trust: TrustSettings, rewound: bool, fails: bool
) -> None:
    """Commits that were accepted before a rewind count, too: the ledger's events name them."""
    first, folder = work.head, work.path.parent
    with instance(work, trust) as parts:
        signed, said = switch_image(parts, work, people["ssh"], "flatcar-2")
        back = signed if rewound else switch_image(parts, work, people["ssh"], "flatcar-1")[0]
    if rewound:
        back = first
        work.git("reset", "--quiet", "--hard", first)
        limits = Limits(allow_rewind=True, max_reinstalls=99, max_update_percent=100)
        with run_in_process(folder, work.path, limits=limits, trust=trust) as parts:
            reconcile_all(parts, 3)
            assert applied(parts) == first
    remove_acknowledgements(folder)
    replayed = rewrite_commit(work, signed, NARROW)
    merge_with(work, back, replayed, "flatcar-2", f"Fine\n\n{said}")
    with run_in_process(folder, work.path, limits=Limits(), trust=trust) as parts:
        if fails:
            trigger = (
                "TEMP TRIGGER full BEFORE INSERT ON main.acknowledgements BEGIN SELECT RAISE(ABORT, 'no room'); END"
            )
            parts.ledger.database.execute(f"CREATE {trigger}")
            reconcile_once(parts)
            parts.ledger.database.execute("DROP TRIGGER temp.full")
        reconcile_once(parts, 1)
        assert applied(parts) == back
        assert len(instance_tables.read_acknowledgements(parts.ledger)) >= (1 if rewound else 2)
        assert instance_tables.read_facts(parts.ledger).searched == back
        assert "counts only once" in find_ignored_acknowledgements(parts)


def test_an_older_ledger_does_not_let_an_acknowledgement_count_again(
    work: WorkTree, people: dict[str, Person], trust: TrustSettings
) -> None:
    """The ledger alone is put back; the clone beside it names what was accepted since."""
    folder = work.path.parent
    with instance(work, trust) as parts:
        reconcile_once(parts, 1)
    shutil.copytree(folder / "state", folder / "backup")
    with instance(work, trust) as parts:
        switch_image(parts, work, people["ssh"], "flatcar-2")
        content = {each for each in instance_tables.read_acknowledgements(parts.ledger) if " " not in each}
        assert content
    for file in (folder / "backup").glob(f"{LEDGER}*"):
        shutil.copy(file, folder / "state" / file.name)
    with instance(work, trust) as parts:
        assert content <= instance_tables.read_acknowledgements(parts.ledger)


# With real processes


def test_finding_s3_a_used_acknowledgement_is_not_replayed_by_a_stranger(
    tmp_path: Path, work: WorkTree, people: dict[str, Person], trust: TrustSettings
) -> None:
    options = ("--allowed-signers", str(tmp_path / "signers"), "--reinstalls-need", "signed", "--poll", "1")
    with running(work.path, tmp_path, *options, records="adopt") as instance:

        def held() -> str:
            attempted = instance.status()["attempted"]
            is_held = attempted["commit"] == work.head and attempted["held"] is not None
            return "\n".join(attempted["held"]["lines"]) if is_held else ""

        def install(name: str) -> tuple[Revision, str]:
            commit_by_git(work, documents(name))
            said = eventually(held)
            signed = people["ssh"].commit(work, message=f"Agreed\n\n{said}")
            eventually(lambda: instance.status()["applied"]["commit"] == signed)
            return signed, said

        signed, said = install("flatcar-2")
        back, _ = install("flatcar-1")
        replayed = rewrite_commit(work, signed, NARROW)
        merge_with(work, back, replayed, "flatcar-2", f"Fine\n\n{said}")
        eventually(lambda: instance.status()["attempted"]["commit"] == work.head)
        status = instance.status()
        assert status["applied"]["commit"] == back
        assert status["attempted"]["held"]["guards"] == ["maxReinstalls"]
        review = run_command(
            *("diff", f"{back}..HEAD", "--path", work.path, "--reinstalls-need", "signed"),
            *("--allowed-signers", tmp_path / "signers"),
        )
        assert (review.code, "counts only once" in review.out) == (4, True)


# The signed text


def test_the_counted_text_is_the_text_that_the_signature_covers(work: WorkTree, people: dict[str, Person]) -> None:
    for person in people.values():
        raw = read_raw(work, person.commit(work))
        signed = parse_commit_signature(raw)
        assert split_signatures(raw)[0] == signed.payload
        assert split_signatures(raw.replace(b"gpgsig ", b"gpgsig-sha256 "))[0] == signed.payload
    assert split_signatures(b"tree x\n\ngpgsig a\n b\n")[0] == b"tree x\n\ngpgsig a\n b\n"
