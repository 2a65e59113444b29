"""People with keys, and what they sign: made by ssh-keygen, gpg, minisign and git themselves."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gitboot.fleet.revision import Revision
from tests.helpers.git_servers import program
from tests.helpers.repositories import ENVIRONMENT, Work


@dataclass(frozen=True)
class Person:
    """Somebody with a key, and the options by which git signs with it."""

    name: str
    public: Path
    options: tuple[str, ...]

    @property
    def key(self) -> str:
        return self.public.read_text().strip()

    def commit(self, work: Work, files: Mapping[str, str | None] | None = None, message: str = "Change") -> Revision:
        work.write(files or {})
        work.git("add", "--all")
        work.git(*self.options, "commit", "--quiet", "--allow-empty", "--gpg-sign", f"--message={message}")
        return work.head

    def merge(self, work: Work, branch: str) -> Revision:
        work.git(*self.options, "merge", "--quiet", "--no-ff", "--gpg-sign", f"--message=Merge {branch}", branch)
        return work.head

    def tag(self, work: Work, name: str) -> None:
        work.git(*self.options, "tag", "--sign", f"--message={name}", name)


def ssh_person(folder: Path, name: str) -> Person:
    folder.mkdir(parents=True, exist_ok=True)
    private = folder / name
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", private], check=True)
    return Person(name, private.with_suffix(".pub"), ("-c", "gpg.format=ssh", "-c", f"user.signingkey={private}"))


@contextmanager
def gpg_people(*names: str) -> Iterator[dict[str, Person]]:
    """People by name: "expired" has a key that was good in 2020 only, "revoked" one that was taken back since."""
    home = Path(tempfile.mkdtemp(prefix="gnupg-", dir="/tmp"))  # an agent's socket has a short path
    home.chmod(0o700)
    try:
        yield {name: _gpg_person(home, name) for name in names}
    finally:
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def _gpg_person(home: Path, name: str) -> Person:
    clock = ("--faked-system-time", "20200101T000000!") if name == "expired" else ()
    user = f"{name} <{name}@example.net>"
    _gpg(home, *clock, "--passphrase", "", "--quick-generate-key", user, "ed25519", "sign", "7d")
    public = home / f"{name}.asc"
    if name == "revoked":
        _gpg(home, "--armor", "--out", str(home / "before.asc"), "--export", user)
        (revocation,) = (home / "openpgp-revocs.d").glob(f"{_fingerprint(home, user)}.rev")
        certificate = revocation.read_text().replace(":-----BEGIN", "-----BEGIN")
        with tempfile.TemporaryDirectory(prefix="gnupg-", dir="/tmp") as aside:
            other = Path(aside)
            _gpg(other, "--import", str(home / "before.asc"))
            subprocess.run(
                ["gpg", "--homedir", other, "--batch", "--quiet", "--import"], input=certificate, text=True, check=True
            )
            _gpg(other, "--armor", "--out", str(public), "--export", user)
    else:
        _gpg(home, "--armor", "--out", str(public), "--export", user)
    program = home / f"gpg-of-{name}"
    program.write_text(f'#!/bin/sh\nexec gpg --homedir {home} --batch {" ".join(clock)} "$@"\n')
    program.chmod(0o700)
    return Person(name, public, ("-c", f"gpg.program={program}", "-c", f"user.signingkey={name}@example.net"))


def _fingerprint(home: Path, user: str) -> str:
    listed = _gpg(home, "--with-colons", "--list-keys", user)
    return next(line.split(":")[9] for line in listed.splitlines() if line.startswith("fpr:"))


def _gpg(home: Path, *arguments: str) -> str:
    command = ["gpg", "--homedir", str(home), "--batch", "--quiet", "--no-tty", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=ENVIRONMENT).stdout


def allowed(file: Path, lines: Sequence[str]) -> Path:
    """A file of allowed signers."""
    file.write_text("".join(f"{line}\n" for line in lines))
    return file


def rewritten(work: Work, commit: Revision, old: str, new: str) -> Revision:
    """The commit with something else in it, signature and all."""
    raw = subprocess.run(
        ["git", "cat-file", "commit", commit], cwd=work.path, env=ENVIRONMENT, capture_output=True, check=True
    ).stdout
    assert old.encode() in raw
    return stored(work, raw.replace(old.encode(), new.encode(), 1))


def stored(work: Work, raw: bytes) -> Revision:
    """A commit of these very bytes, which is checked out then."""
    made = subprocess.run(
        ["git", "hash-object", "-t", "commit", "-w", "--stdin", "--literally"],
        cwd=work.path,
        env=ENVIRONMENT,
        input=raw,
        capture_output=True,
        check=True,
    ).stdout.decode()
    work.git("reset", "--quiet", "--hard", made.strip())
    return work.head


def by_gpg(person: Person, file: Path, *how: str) -> bytes:
    """A person's signature of a file: detached and binary, unless told otherwise."""
    command = [person.options[1].removeprefix("gpg.program="), "--local-user", f"{person.name}@example.net"]
    done = subprocess.run([*command, *(how or ("--detach-sign",)), "-o", "-", file], capture_output=True, check=True)
    return done.stdout


class Minisign:
    """A key of minisign without a password, and what it signs."""

    def __init__(self, folder: Path, name: str) -> None:
        self.public, self._private = folder / f"{name}.pub", folder / f"{name}.key"
        self._minisign("-G", "-W", "-p", self.public, "-s", self._private)

    def sign(self, file: Path, *how: str) -> bytes:
        signature = self._private.with_suffix(".minisig")
        self._minisign("-S", "-s", self._private, "-m", file, "-x", signature, *how)
        return signature.read_bytes()

    def _minisign(self, *arguments: str | Path) -> None:
        subprocess.run([program("minisign", "minisign"), *arguments], check=True, capture_output=True, input=b"")
