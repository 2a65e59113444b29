"""User names and passwords as an instance finds them: in files that may be swapped at any moment, or by a command."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gitboot.bmc.credentials import AUTHORITY, FILE, Credentials, Trust, read_trust
from gitboot.child_processes import output_of
from gitboot.errors import UsageError
from gitboot.load.machines import BmcAccess

_FINGERPRINT_KEY: Final = secrets.token_bytes(32)  # this process's own: a fingerprint is of no use outside
_READ_AGAIN_S: Final = 1.0  # also where a file is another and does not show it: times of files are coarse
_ASK_AGAIN_S: Final = 300.0  # a command
_DOUBTED_S: Final = 60.0  # one whose password was refused, or that has failed
_PATIENCE_S: Final = 10.0
_LONGEST: Final = 4096  # bytes, of what a command says
_TRIES: Final = 10

_Version = tuple[int, int, int, int] | None


def read_credentials(directory: Path, name: str) -> Credentials:
    """``directory/name/username`` and ``…/password``, of one moment, as Kubernetes mounts them; read anew each time."""
    username, password = _read(directory / name, name, ("username", "password"))
    return Credentials(username=username, password=password, name=name)


def is_covered(directory: Path | None, bmc: BmcAccess) -> bool:
    """Whether the instance itself says that a BMC may be sent its credentials, or has none that it could be sent."""
    if directory is None or not (directory / bmc.credentials).is_dir():
        return True
    try:
        return read_trust(directory, bmc.credentials).covers(bmc)
    except UsageError:
        return False


@dataclass(frozen=True, kw_only=True, slots=True)
class Entrusted:
    """Credentials, what the instance says of them, and what tells both from others without telling either."""

    credentials: Credentials
    trust: Trust
    fingerprint: str


@dataclass(slots=True)
class _Kept:
    found: Entrusted
    versions: tuple[_Version, ...]
    read_s: float


@dataclass(slots=True)
class _Said:
    """What a command has said, or why it has not."""

    command: tuple[str, ...]
    password: str | None
    error: str
    until_s: float


class CredentialDirectory:
    """All credentials of an instance; for many threads at a time."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._kept: dict[str, _Kept] = {}
        self._said: dict[str, _Said] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def of(self, name: str) -> Entrusted:
        """The credentials of that name, as they are now; raises `UsageError` where there are none."""
        if self._root is None:
            raise UsageError(f"no directory of credentials is given, and {name} is needed (--credentials)")
        with self._locks[name]:  # a command is asked once, however many wait for it
            return self._now(self._root, name, asks=True)

    def fingerprint(self, name: str) -> str | None:
        """What changes when credentials do, or what is said of them; None: there are none, as far as is known.

        It asks no command: what one says may have changed, and is another fingerprint once somebody needs it.
        """
        if self._root is None:
            return None
        try:
            return self._now(self._root, name, asks=False).fingerprint
        except UsageError:
            return None

    def doubt(self, name: str) -> None:
        """Say that a BMC has refused them: a command is asked again for the next, but not at once for each."""
        if (said := self._said.get(name)) is not None:
            said.until_s = min(said.until_s, time.monotonic() + _DOUBTED_S)

    def _now(self, root: Path, name: str, *, asks: bool) -> Entrusted:
        folder = root / name
        files = (folder / "username", folder / "password", folder / FILE, root / FILE, *_authorities(root, name))
        versions, kept = tuple(map(_version, files)), self._kept.get(name)
        if kept is not None and kept.versions == versions and time.monotonic() - kept.read_s < _READ_AGAIN_S:
            return kept.found
        trust = read_trust(root, name)
        if trust.password_command and versions[1] is None:
            (username,) = _read(folder, name, ("username",))
            password = self._of_command(name, trust, asks=asks)
        else:
            username, password = _read(folder, name, ("username", "password"))
        credentials = Credentials(username=username, password=password, name=name)
        found = Entrusted(credentials=credentials, trust=trust, fingerprint=_fingerprint(credentials, trust))
        self._kept[name] = _Kept(found, versions, time.monotonic())
        return found

    def _of_command(self, name: str, trust: Trust, *, asks: bool) -> str:
        command = tuple(part.replace("{name}", name) for part in trust.password_command)
        said = self._said.get(name)
        if asks and (said is None or said.command != command or time.monotonic() >= said.until_s):
            said = self._said[name] = _ask(command)
        if said is None or said.password is None:
            why = said.error if said is not None else "it was not asked yet"
            raise UsageError(f"no password for credentials {name}: password-command of {trust.file}: {why}")
        return said.password


def _ask(command: tuple[str, ...]) -> _Said:
    """Let a command say the password, in one line; what it writes is shown to nobody, whatever it is."""
    password, error = None, ""
    try:
        status, output = output_of(command, patience_s=_PATIENCE_S, most_bytes=_LONGEST)
        lines = output.decode().removesuffix("\n").split("\n")
    except (OSError, UnicodeDecodeError) as problem:
        error = "what it wrote is no text" if isinstance(problem, UnicodeDecodeError) else str(problem)
    else:
        if status != 0:
            error = f"{command[0]} ended with status {status}"
        elif lines == [""] or len(lines) > 1:
            error = f"{command[0]} wrote {'nothing' if lines == [''] else 'several lines'}, not the password alone"
        else:
            password = lines[0]
    return _Said(command, password, error, time.monotonic() + (_DOUBTED_S if error else _ASK_AGAIN_S))


def _read(folder: Path, name: str, parts: tuple[str, ...]) -> list[str]:
    """Some files of a folder, all of the same moment: a link may be led to other files between two of them."""
    files = [folder / part for part in parts]
    try:
        for _ in range(_TRIES):
            before = list(map(_version, files))
            contents = [file.read_bytes() for file in files]
            if before == list(map(_version, files)):
                return [_one_line(file, content) for file, content in zip(files, contents, strict=True)]
    except OSError as error:
        raise UsageError(
            f"no credentials named {name}: {folder} needs the files {' and '.join(parts)} ({error})"
        ) from None
    raise UsageError(f"the files of {folder} change all the time")


def _one_line(file: Path, content: bytes) -> str:
    """Return the one line of a file. Raises `UsageError`, which shows nothing of the content."""
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not text in UTF-8: write the value alone, on one line") from None
    if not text:
        raise UsageError(f"{file} is empty: write the value alone, on one line")
    if any(character in text for character in "\r\n\0"):
        raise UsageError(f"{file} has several lines: write the value alone, on one line")
    return text


def _version(file: Path) -> _Version:
    """What is another once a file was written or replaced, or a link on the way to it leads elsewhere."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _authorities(root: Path, name: str) -> tuple[Path, Path]:
    return root / name / AUTHORITY, root / AUTHORITY


def _fingerprint(credentials: Credentials, trust: Trust) -> str:
    said = f"{credentials.username}\0{credentials.password}\0{trust!r}"
    return hashlib.blake2b(said.encode(), key=_FINGERPRINT_KEY, digest_size=16).hexdigest()
