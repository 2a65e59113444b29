"""Signed acknowledgements, each of which counts once, and strangers who write one in another form."""

from __future__ import annotations

import base64
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from gitboot.authorship import ReinstallsNeed
from gitboot.diff.guard import Limits
from gitboot.instance.directory import LEDGER
from gitboot.instance.settings import TrustSettings
from gitboot.ledger import acknowledgements, facts
from gitboot.load import Revision
from gitboot.source.commit_objects import CommitReader, content_of
from gitboot.source.keys import TrustedKeys
from gitboot.source.signed import of_commit
from tests.fleets import at, fleet, image, policy, profile, server
from tests.inprocess import Parts, in_process
from tests.instance import eventually, running
from tests.malformed import commit_by_git
from tests.rack import typed
from tests.repositories import Work
from tests.signers import Person, allowed, gpg_people, ssh_person, stored

NOON = at("20T12:00")


def documents(image_name: str) -> dict[str, str | None]:
    """Twelve web servers that are installed again whenever their image changes."""
    servers = (server(f"web{number:02}") for number in range(12))
    images = (image(name) for name in ("flatcar-1", "flatcar-2"))
    parts = (fleet("baseURL: 'http://boot.test'"), *servers, *images, profile("web", image_name))
    return {"fleet.yaml": "---\n".join((*parts, policy("web", often="OnImageChange")))}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Person]]:
    """Two people whom the instance trusts, one with each kind of key."""
    with gpg_people("grace") as found:
        yield {"ssh": ssh_person(tmp_path_factory.mktemp("ssh"), "ada"), "openpgp": found["grace"]}


@pytest.fixture
def trust(tmp_path: Path, people: dict[str, Person]) -> TrustSettings:
    signers = allowed(tmp_path / "signers", [f"ada@example.net {people['ssh'].key}"])
    keys = TrustedKeys(allowed_signers=signers, openpgp_keys=people["openpgp"].public)
    return TrustSettings(keys=keys, reinstalls_need=ReinstallsNeed.SIGNED)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    work = Work(tmp_path / "git")
    work.commit(documents("flatcar-1"))
    return work


@contextmanager
def instance(work: Work, trust: TrustSettings) -> Iterator[Parts]:
    with in_process(work.path.parent, work.path, limits=Limits(), trust=trust) as parts:
        turn(parts)
        yield parts


def turn(parts: Parts, seconds: float = 0) -> None:
    parts.source.fetch()
    parts.reconciler.reconcile(NOON + timedelta(seconds=seconds))


def applied(parts: Parts) -> str | None:
    return parts.reconciler.status.applied


def lines(parts: Parts) -> str:
    """The lines that acknowledge what is held."""
    held = parts.reconciler.status.held
    assert held is not None
    return "\n".join(f"Gitboot-Ack: {held.digest} {guard}" for guard in held.guards)


def unheeded(parts: Parts) -> str:
    """What the newest event says of lines that do not count."""
    return next(event.message for event in reversed(parts.events) if event.type == "Held")


def switch(parts: Parts, work: Work, person: Person, name: str) -> tuple[Revision, str]:
    """Change the image with a signed acknowledgement; return the signed commit and its lines."""
    commit_by_git(work, documents(name))
    turn(parts, 1)
    said = lines(parts)
    signed = person.commit(work, message=f"Agreed\n\n{said}")
    turn(parts, 2)
    assert applied(parts) == signed
    return signed, said


# In another form


def _signature(raw: bytes) -> tuple[list[bytes], bytes]:
    """The lines of a commit's signature, and the rest with SIGNATURE in their place."""
    found = re.search(rb"^gpgsig (.*(?:\n .*)*)\n", raw, re.MULTILINE)
    assert found is not None
    kept = raw[: found.start(1)] + b"SIGNATURE" + raw[found.end(1) :]
    return [line.removeprefix(b" ") for line in found[1].split(b"\n")], kept


def _put(kept: bytes, lines: list[bytes]) -> bytes:
    return kept.replace(b"SIGNATURE", b"\n ".join(lines), 1)


def _data(lines: list[bytes]) -> bytes:
    """The signature itself, without armour."""
    body = lines[1:-1]
    body = body[body.index(b"") + 1 :] if b"" in body else body
    return base64.b64decode(b"".join(line for line in body if line and not line.startswith(b"=")))


def _armour(lines: list[bytes], data: bytes, width: int, headers: list[bytes]) -> list[bytes]:
    encoded = base64.b64encode(data)
    body = [encoded[start : start + width] for start in range(0, len(encoded), width)]
    return [lines[0], *headers, *body, lines[-1]]


def _with_unhashed(data: bytes) -> bytes:
    """An OpenPGP signature with one more subpacket that it does not cover: RFC 4880, 5.2.3."""
    assert data[0] & 0xC3 == 0x80, "an old packet header with a length of one byte"
    body = data[2:]
    at = 6 + int.from_bytes(body[4:6])
    more = b"\x06\x64extra"  # length, a type for private use, content
    size = int.from_bytes(body[at : at + 2]) + len(more)
    body = body[:at] + size.to_bytes(2) + more + body[at + 2 :]
    return bytes((data[0], len(body))) + body


def _blank(lines: list[bytes]) -> list[bytes]:
    return [b""] if lines[0].startswith(b"-----BEGIN PGP") else []


Form = Callable[[list[bytes]], list[bytes]]
FORMS: dict[str, Form] = {
    "a width of 20": lambda lines: _armour(lines, _data(lines), 20, _blank(lines)),
    "one line": lambda lines: _armour(lines, _data(lines), 4096, _blank(lines)),
    "CRLF": lambda lines: [line + b"\r" for line in lines],
    "a line behind it": lambda lines: [*lines, b"and more"],
    "twice": lambda lines: [*lines, *lines],
    "data behind it": lambda lines: _armour(lines, _data(lines) + b"more", 64, _blank(lines)),
}
OPENPGP_FORMS: dict[str, Form] = {
    "a comment": lambda lines: _armour(lines, _data(lines), 64, [b"Comment: again", b"Version: 7", b""]),
    "no checksum": lambda lines: _armour(lines, _data(lines), 64, [b""]),
    "its packet twice": lambda lines: _armour(lines, _data(lines) * 2, 64, [b""]),
    "one more unhashed subpacket": lambda lines: _armour(lines, _with_unhashed(_data(lines)), 64, [b""]),
}
CASES = [
    *(("ssh", name, form) for name, form in FORMS.items()),
    *(("openpgp", name, form) for name, form in (FORMS | OPENPGP_FORMS).items()),
]


def in_another_form(work: Work, commit: Revision, form: Form) -> Revision:
    """A commit with the same content as a signed one, which is checked out then, and another id."""
    import pygit2

    raw = CommitReader(pygit2.Repository(str(work.path))).read(commit).raw
    found, kept = _signature(raw)
    changed = _put(kept, form(found))
    assert content_of(changed) == content_of(raw)
    made = stored(work, changed)
    assert made != commit
    return made


def merge_with(work: Work, main: Revision, other: Revision, name: str, message: str) -> Revision:
    """A merge of two commits on main that installs an image, signed by nobody."""
    work.git("reset", "--quiet", "--hard", main)
    work.git("merge", "--quiet", "--strategy=ours", "--no-commit", "--no-ff", "--allow-unrelated-histories", other)
    work.write(documents(name))
    work.git("add", "--all")
    work.git("commit", "--quiet", f"--message={message}")
    return work.head


@pytest.mark.parametrize(("kind", "name", "form"), CASES, ids=[f"{kind}-{name}" for kind, name, _ in CASES])
def test_a_used_acknowledgement_in_another_form_counts_for_nothing(
    work: Work, people: dict[str, Person], trust: TrustSettings, kind: str, name: str, form: Form
) -> None:
    with instance(work, trust) as parts:
        signed, said = switch(parts, work, people[kind], "flatcar-2")
        back, _ = switch(parts, work, people[kind], "flatcar-1")
        replayed = in_another_form(work, signed, form)
        newest = merge_with(work, back, replayed, "flatcar-2", f"Fine\n\n{said}")
        turn(parts, 3)
        held = parts.reconciler.status.held
        assert (applied(parts), held is not None and held.commit == newest) == (back, True)
        assert held is not None and held.guards == ("maxReinstalls",)
        # A person with a key signs the same change once more.
        again = people[kind].commit(work, message=f"Agreed again\n\n{said}")
        turn(parts, 4)
        assert applied(parts) == again


def test_all_of_it_in_one_poll_comes_to_the_same(work: Work, people: dict[str, Person], trust: TrustSettings) -> None:
    ada = people["ssh"]
    with instance(work, trust) as parts:
        first = work.head
        commit_by_git(work, documents("flatcar-2"))
        turn(parts, 1)
        there = lines(parts)
        work.git("reset", "--quiet", "--hard", first)
        signed = ada.commit(work, documents("flatcar-2"), message=f"Agreed\n\n{there}")
        replayed = in_another_form(work, signed, FORMS["a width of 20"])
        work.git("reset", "--quiet", "--hard", signed)
        turn(parts, 2)
        assert applied(parts) == signed
        commit_by_git(work, documents("flatcar-1"))
        turn(parts, 2)
        back = ada.commit(work, message=f"Back\n\n{lines(parts)}")
        newest = merge_with(work, back, replayed, "flatcar-2", f"Fine\n\n{there}")
        turn(parts, 3)
        assert applied(parts) == back
        assert parts.reconciler.status.held is not None
    fresh = Work(work.path.parent / "elsewhere" / "git")
    fresh.git("fetch", "--quiet", str(work.path), f"{newest}:refs/heads/all")
    fresh.git("reset", "--quiet", "--hard", first)
    with instance(fresh, trust) as parts:
        assert applied(parts) == first
        fresh.git("reset", "--quiet", "--hard", newest)
        turn(parts, 1)
        assert applied(parts) == back
        assert parts.reconciler.status.held is not None


def test_an_acknowledgement_is_used_up_by_being_accepted_even_if_it_did_not_count(
    work: Work, people: dict[str, Person], trust: TrustSettings
) -> None:
    """A copy whose signature is broken comes first; then nobody's signature of this content counts any more."""
    with instance(work, trust) as parts:
        before = work.head
        commit_by_git(work, documents("flatcar-2"))
        turn(parts, 1)
        said = lines(parts)
        work.git("reset", "--quiet", "--hard", before)
        signed = people["ssh"].commit(work, message=f"Agreed\n\n{said}")
        broken = in_another_form(work, signed, lambda found: [found[0], b"AAAA", found[-1]])
        turn(parts, 2)
        assert applied(parts) == broken  # it changes nothing
        newest = merge_with(work, broken, signed, "flatcar-2", f"Fine\n\n{said}")
        turn(parts, 3)
        assert applied(parts) == broken != newest
        assert "counts once" in unheeded(parts)


def test_a_merge_keeps_an_acknowledgement_and_a_merge_of_something_else_does_not_void_it(
    work: Work, people: dict[str, Person], trust: TrustSettings
) -> None:
    with instance(work, trust) as parts:
        main = work.head
        work.git("switch", "--quiet", "--create", "side")
        changed = commit_by_git(work, documents("flatcar-2"))
        work.git("switch", "--quiet", "main")
        work.git("reset", "--quiet", "--hard", changed)
        turn(parts, 1)
        said = lines(parts)
        work.git("reset", "--quiet", "--hard", main)
        work.git("switch", "--quiet", "side")
        people["ssh"].commit(work, message=f"Agreed\n\n{said}")
        work.git("switch", "--quiet", "main")
        commit_by_git(work, {"images/other.yaml": image("other-1")}, "Something else")
        work.git("merge", "--quiet", "--no-ff", "--message=Merge", "side")
        turn(parts, 2)
        assert applied(parts) == work.head


@pytest.mark.parametrize("how", ["cherry-pick", "squash", "rebase"])
@pytest.mark.parametrize("is_signed", [False, True], ids=["unsigned", "signed"])
def test_a_commit_that_was_written_anew_counts_only_if_a_trusted_key_signs_it(
    work: Work, people: dict[str, Person], trust: TrustSettings, how: str, is_signed: bool
) -> None:
    ada = people["ssh"]
    with instance(work, trust) as parts:
        main = work.head
        commit_by_git(work, documents("flatcar-2"))
        turn(parts, 1)
        ada.commit(work, message=f"Agreed\n\n{lines(parts)}")
        work.git("branch", "side")
        work.git("reset", "--quiet", "--hard", main)
        other = commit_by_git(work, {"images/other.yaml": image("other-1")}, "Something else")
        turn(parts, 2)
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
        turn(parts, 3)
        assert (applied(parts) == work.head) is is_signed


def test_a_rewind_does_not_make_an_acknowledgement_count_again(
    work: Work, people: dict[str, Person], trust: TrustSettings
) -> None:
    first = work.head
    with instance(work, trust) as parts:
        signed, _ = switch(parts, work, people["ssh"], "flatcar-2")
        work.git("reset", "--quiet", "--hard", first)
    limits = Limits(allow_rewind=True, max_reinstalls=99, max_update_percent=100)
    with in_process(work.path.parent, work.path, limits=limits, trust=trust) as parts:
        turn(parts, 3)
        assert applied(parts) == first
    with instance(work, trust) as parts:
        work.git("reset", "--quiet", "--hard", signed)
        turn(parts, 4)
        assert applied(parts) == first
        assert "counts once" in unheeded(parts)


# After an upgrade, or a restore


def without_acknowledgements(folder: Path) -> None:
    """Let a ledger be as a gitboot left it that did not note them."""
    with closing(sqlite3.connect(folder / "state" / LEDGER, isolation_level=None)) as ledger:
        ledger.executescript("DELETE FROM acknowledgements; DELETE FROM facts WHERE name = 'searched'")


@pytest.mark.parametrize("rewound", [False, True])
def test_the_ledger_is_filled_from_the_history_after_an_upgrade(
    work: Work, people: dict[str, Person], trust: TrustSettings, rewound: bool
) -> None:
    """Commits that were accepted before a rewind count, too: the ledger's events name them."""
    first, folder = work.head, work.path.parent
    with instance(work, trust) as parts:
        signed, said = switch(parts, work, people["ssh"], "flatcar-2")
        back = signed if rewound else switch(parts, work, people["ssh"], "flatcar-1")[0]
    if rewound:
        back = first
        work.git("reset", "--quiet", "--hard", first)
        limits = Limits(allow_rewind=True, max_reinstalls=99, max_update_percent=100)
        with in_process(folder, work.path, limits=limits, trust=trust) as parts:
            turn(parts, 3)
            assert applied(parts) == first
    without_acknowledgements(folder)
    replayed = in_another_form(work, signed, FORMS["a width of 20"])
    merge_with(work, back, replayed, "flatcar-2", f"Fine\n\n{said}")
    with instance(work, trust) as parts:
        assert applied(parts) == back
        assert len(acknowledgements.read(parts.ledger)) >= (1 if rewound else 2)
        assert facts.read(parts.ledger).searched == back
        assert "counts once" in unheeded(parts)


def test_an_older_ledger_does_not_let_an_acknowledgement_count_again(
    work: Work, people: dict[str, Person], trust: TrustSettings
) -> None:
    """The ledger alone is put back; the clone beside it names what was accepted since."""
    folder = work.path.parent
    with instance(work, trust) as parts:
        turn(parts, 1)
    shutil.copytree(folder / "state", folder / "backup")
    with instance(work, trust) as parts:
        switch(parts, work, people["ssh"], "flatcar-2")
        content = {each for each in acknowledgements.read(parts.ledger) if " " not in each}
        assert content
    for file in (folder / "backup").glob(f"{LEDGER}*"):
        shutil.copy(file, folder / "state" / file.name)
    with instance(work, trust) as parts:
        assert content <= acknowledgements.read(parts.ledger)


# With real processes


def test_finding_s3_a_used_acknowledgement_is_not_replayed_by_a_stranger(
    tmp_path: Path, work: Work, people: dict[str, Person], trust: TrustSettings
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
        replayed = in_another_form(work, signed, FORMS["a width of 20"])
        merge_with(work, back, replayed, "flatcar-2", f"Fine\n\n{said}")
        eventually(lambda: instance.status()["attempted"]["commit"] == work.head)
        status = instance.status()
        assert status["applied"]["commit"] == back
        assert status["attempted"]["held"]["guards"] == ["maxReinstalls"]
        review = typed(
            *("diff", f"{back}..HEAD", "--path", work.path, "--reinstalls-need", "signed"),
            *("--allowed-signers", tmp_path / "signers"),
        )
        assert (review.code, "counts once" in review.out) == (4, True)


# What a signature covers


def test_what_is_counted_is_what_the_signature_covers(work: Work, people: dict[str, Person]) -> None:
    import pygit2

    git = pygit2.Repository(str(work.path))
    for person in people.values():
        raw = CommitReader(git).read(person.commit(work)).raw
        signed = of_commit(raw)
        assert signed is not None
        assert content_of(raw) == signed.payload
        assert content_of(raw.replace(b"gpgsig ", b"gpgsig-sha256 ")) == signed.payload
    assert content_of(b"tree x\n\ngpgsig a\n b\n") == b"tree x\n\ngpgsig a\n b\n"
