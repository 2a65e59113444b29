"""The keys that an instance trusts, and what ssh-keygen and gpg say of signatures made with them.

Both programs get what they need as arguments and files of gitboot's own: no configuration, keyring or agent of a user,
and no repository.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from gitboot.child_processes import Ended
from gitboot.errors import UsageError
from gitboot.fleet.revision import Signer
from gitboot.openpgp import Distrusted, Keyring, Unlisted, ask_alone
from gitboot.source.signed import Signed
from gitboot.text import one_line


@dataclass(frozen=True, kw_only=True, slots=True)
class TrustedKeys:
    """Where the public keys are that signatures count of."""

    allowed_signers: Path | None = None  # of people, as ssh-keygen(1) reads it
    openpgp_keys: Path | None = None  # of people: a file of public keys, or a directory of such
    forge_keys: tuple[tuple[str, Path], ...] = ()  # (name, file) of forges: OpenPGP or SSH public keys

    @property
    def of_people(self) -> bool:
        return self.allowed_signers is not None or self.openpgp_keys is not None

    @property
    def any(self) -> bool:
        return self.of_people or bool(self.forge_keys)


class SignatureKeys:
    """The trusted keys, as their files have them now; what gpg needs of them lies below ``folder``."""

    def __init__(self, trusted: TrustedKeys, folder: Path) -> None:
        self._trusted, self._folder = trusted, folder
        self._mark = ""
        self._of_people: tuple[_AllowedSigners | Keyring, ...] = ()
        self._of_forges: dict[str, _AllowedSigners | Keyring] = {}

    def mark(self) -> str:
        """What is another as soon as a key comes or goes; raises `UsageError` where they cannot be read."""
        mark = sha256()
        for path in _files(self._trusted):
            try:
                mark.update(sha256(path.read_bytes()).digest())
            except OSError as error:
                raise UsageError(f"{path}: {error.strerror}") from None
        if self._mark != mark.hexdigest():
            self._take_up()
            self._mark = mark.hexdigest()
        return self._mark

    def signer(self, signed: Signed, *, is_merge: bool) -> Signer:
        """Whose trusted key has signed; raises `Distrusted`. A forge's counts for merges alone.

        A key has to be valid now: when a commit was made only says who has made it.
        """
        self.mark()
        unlisted = Unlisted("signed by a key that is not listed")
        for keys in self._of_people:
            try:
                return _signer(keys, signed)
            except Unlisted as error:
                unlisted = error
        for name, keys in self._of_forges.items():
            try:
                found = _signer(keys, signed)
            except Unlisted:
                continue
            if not is_merge:
                raise Distrusted(f"signed by the forge {name} and no merge, which is all that a forge's key counts for")
            return Signer(name, found.key, is_forge=True)
        raise unlisted

    def _take_up(self) -> None:
        """Make anew what the programs read."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(mode=0o700, parents=True)
        people: list[_AllowedSigners | Keyring] = []
        if (path := self._trusted.allowed_signers) is not None:
            people.append(_AllowedSigners(path, self._folder))
        if (path := self._trusted.openpgp_keys) is not None:
            people.append(Keyring.made(_key_files(path), self._folder / "people"))
        self._of_people = tuple(people)
        self._of_forges = {
            name: self._of_forge(path, number) for number, (name, path) in enumerate(self._trusted.forge_keys)
        }

    def _of_forge(self, path: Path, number: int) -> _AllowedSigners | Keyring:
        folder = self._folder / f"forge-{number}"
        lines = path.read_bytes().split(b"\n")
        if not any(_SSH_KEY.match(line) for line in lines):
            return Keyring.made([path], folder)
        folder.with_suffix(".signers").write_bytes(
            b"".join(b'forge namespaces="git" %b\n' % line for line in lines if _SSH_KEY.match(line))
        )
        return _AllowedSigners(folder.with_suffix(".signers"), self._folder)


_SSH_KEY: Final = re.compile(rb"(?:sk-)?(?:ssh|ecdsa)-[a-z0-9@.-]+ [A-Za-z0-9+/=]+")


def _files(trusted: TrustedKeys) -> Iterator[Path]:
    if trusted.allowed_signers is not None:
        yield trusted.allowed_signers
    if trusted.openpgp_keys is not None:
        yield from _key_files(trusted.openpgp_keys)
    yield from (path for _, path in trusted.forge_keys)


def _key_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if not each.name.startswith(".") and each.is_file())
    if not found:
        raise UsageError(f"{path}: no file with a public key lies in this directory")
    return found


class _AllowedSigners:
    """SSH keys, in a file as ssh-keygen(1) describes it below ALLOWED SIGNERS."""

    def __init__(self, path: Path, scratch: Path) -> None:
        self._path, self._scratch = path.absolute(), scratch

    def signer(self, signed: Signed) -> Signer:
        if not signed.signature.startswith(b"-----BEGIN SSH SIGNATURE-----"):
            raise Unlisted("signed by an OpenPGP key, and none is listed")
        with TemporaryDirectory(dir=self._scratch) as folder:
            signature = Path(folder, "signature")
            signature.write_bytes(signed.signature)
            whole = self._keygen("check-novalidate", "-n", "git", "-s", signature, given=signed.payload)
            key = _FINGERPRINT.search(whole.output)
            if whole.status != 0 or key is None:
                raise Distrusted("not what its signature is of: it was changed after it was signed")
            known = self._keygen("find-principals", "-f", self._path, "-s", signature)
            for principal in known.output.splitlines():
                arguments = ("-n", "git", "-f", self._path, "-I", principal, "-s", signature)
                found = self._keygen("verify", *arguments, given=signed.payload)
                if found.status == 0 and found.output.startswith(f'Good "git" signature for {principal} with '):
                    return Signer(one_line(principal), key[1])
        if "key has expired" in known.errors:
            raise Distrusted(f"signed by the key {key[1]}, which has expired")
        if known.status == 0:
            raise Distrusted(f"signed by the key {key[1]}, which is listed for other things than Git")
        raise Unlisted(f"signed by the key {key[1]}, which is not listed")

    def _keygen(self, what: str, *arguments: str | Path, given: bytes = b"") -> Ended:
        return ask_alone(["ssh-keygen", "-Y", what, *map(str, arguments)], given, self._scratch)


_FINGERPRINT: Final = re.compile(r" key (SHA256:\S+)")


def _signer(keys: _AllowedSigners | Keyring, signed: Signed) -> Signer:
    if isinstance(keys, _AllowedSigners):
        return keys.signer(signed)
    if not signed.signature.startswith(b"-----BEGIN PGP SIGNATURE-----"):
        raise Unlisted("signed by an SSH key, and no file of allowed signers is given")
    found = keys.signer(signed.signature, signed.payload, takes_text=False)
    return found._replace(person=one_line(found.person))
