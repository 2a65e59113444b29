"""BMC credentials: read credential files, and run password commands."""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct

from gitboot.bmc.access_file import AUTHORITY, FILE, Trust, read_trust
from gitboot.child_processes import run_for_output
from gitboot.errors import UsageError
from gitboot.fleet.identities import BmcAccess, normalize_bmc_address

_SHARE_USERNAME, _SHARE_PASSWORD = "media-username", "media-password"  # the login for file shares with images
# random for each process, so that nobody can use a fingerprint to guess a password
_FINGERPRINT_KEY: Final = secrets.token_bytes(32)
# in seconds: gitboot reads files again after this time, because a changed file can keep its coarse modification time
_CACHE_S: Final = 1.0
_RETRY_AFTER_FAILURE_S: Final = 60.0  # the pause after a command failed, or after a BMC rejected its password
_PASSWORD_CACHE_S: Final = 300.0  # how long gitboot uses a password that a command printed
_COMMAND_TIMEOUT_S: Final = 10.0
_MAX_OUTPUT_BYTES: Final = 4096  # the maximum size of a password command's output
_MAX_READS: Final = 10  # the number of attempts to read files that change at the same time
_FileVersion = tuple[int, int, int, int] | None
CredentialUse = tuple[str, str]  # the normalized origin of a BMC, and the name of the credentials for this BMC


def normalize_origin(address: str) -> str:
    """Return the normalized scheme, host and port of an address, without the path."""
    parts = urlsplit(address)
    return normalize_bmc_address(f"{parts.scheme}://{parts.netloc}", None)[0]


def get_credential_use(bmc: BmcAccess) -> CredentialUse:
    """Return the origin of a BMC's address, and the name of the credentials that gitboot sends to this BMC."""
    return normalize_origin(bmc.address), bmc.credentials


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """A user name and a password."""

    username: str
    password: str = field(repr=False)
    name: str = ""  # the name of the credentials in documents


def read_credentials(directory: Path, name: str) -> Credentials:
    """Read the files ``username`` and ``password`` in ``directory/name``.

    gitboot returns the same version of both files, even if another program replaces them meanwhile.
    """
    username, password = _read_files(directory / name, name, ("username", "password"))
    return Credentials(username=username, password=password, name=name)


class TrustedCredentials(Struct, frozen=True, kw_only=True):
    """Credentials with their `Trust`, and a fingerprint of both that does not reveal the password."""

    credentials: Credentials
    trust: Trust
    fingerprint: str
    share_login: Credentials | None = None  # the login for the shares in `Trust.media`


class _CachedCredentials(Struct):
    credentials: TrustedCredentials
    versions: dict[Path, _FileVersion]  # the versions of the files from which gitboot read the credentials
    read_s: float  # when gitboot read them, on the monotonic clock


class _CommandResult(Struct):
    """The result of a password command."""

    command: tuple[str, ...]
    password: str | None  # None: the command failed
    error: str  # why the command failed
    valid_until_s: float  # when gitboot runs the command again, on the monotonic clock


class CredentialDirectory:
    """All credentials of an instance. Several threads may use the same object."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._cached: dict[str, _CachedCredentials] = {}
        self._command_results: dict[str, _CommandResult] = {}
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def read(self, name: str) -> TrustedCredentials:
        """Return the current credentials with this name. Raises `UsageError` if these credentials do not exist."""
        if self._root is None:
            raise UsageError(f"gitboot needs the credentials {name}: pass their directory with --credentials")
        with self._locks[name]:  # run a password command only once, even if several threads need the password
            return self._read_current_credentials(self._root, name, may_run_command=True)

    def fingerprint(self, name: str) -> str | None:
        """Return a string that changes whenever credentials or their `Trust` change.

        Return None if the credentials do not exist. This method does not run password commands. If a password command
        starts to print a new password, the fingerprint changes only after a task has used the new password.
        """
        if self._root is None:
            return None
        try:
            return self._read_current_credentials(self._root, name, may_run_command=False).fingerprint
        except UsageError:
            return None

    def report_failure(self, name: str) -> None:
        """Record that a BMC rejected the credentials. gitboot uses a command's password for at most one more minute."""
        if (result := self._command_results.get(name)) is not None:
            result.valid_until_s = min(result.valid_until_s, time.monotonic() + _RETRY_AFTER_FAILURE_S)

    def _read_current_credentials(self, root: Path, name: str, *, may_run_command: bool) -> TrustedCredentials:
        folder = root / name
        own_files = ("username", "password", FILE, AUTHORITY, _SHARE_USERNAME, _SHARE_PASSWORD)
        files = (*(folder / file for file in own_files), root / FILE, root / AUTHORITY)
        versions = {file: _read_file_version(file) for file in files}
        cached, result = self._cached.get(name), self._command_results.get(name)
        must_run_command = may_run_command and result is not None and time.monotonic() >= result.valid_until_s
        is_fresh = cached is not None and time.monotonic() - cached.read_s < _CACHE_S
        if cached is not None and is_fresh and cached.versions == versions and not must_run_command:
            return cached.credentials
        trust = read_trust(root, name)
        if trust.password_command and versions[folder / "password"] is None:
            (username,) = _read_files(folder, name, ("username",))
            password = self._get_command_password(name, trust, may_run_command=may_run_command)
        else:
            username, password = _read_files(folder, name, ("username", "password"))
        fingerprinted = [username, password, repr(trust)]
        share_login: Credentials | None = None
        share_versions = (versions[folder / _SHARE_USERNAME], versions[folder / _SHARE_PASSWORD])
        if trust.media and any(version is not None for version in share_versions):
            share_username, share_password = _read_files(folder, name, (_SHARE_USERNAME, _SHARE_PASSWORD))
            share_login = Credentials(username=share_username, password=share_password, name=name)
            fingerprinted += [share_username, share_password]
        text = "\0".join(fingerprinted).encode()
        credentials = TrustedCredentials(
            credentials=Credentials(username=username, password=password, name=name),
            trust=trust,
            fingerprint=hashlib.blake2b(text, key=_FINGERPRINT_KEY, digest_size=16).hexdigest(),
            share_login=share_login,
        )
        self._cached[name] = _CachedCredentials(credentials, versions, time.monotonic())
        return credentials

    def _get_command_password(self, name: str, trust: Trust, *, may_run_command: bool) -> str:
        command = tuple(part.replace("{name}", name) for part in trust.password_command)
        result = self._command_results.get(name)
        is_valid = result is not None and result.command == command and time.monotonic() < result.valid_until_s
        if may_run_command and not is_valid:
            result = _run_password_command(command)
            self._command_results[name] = result
        if result is None or result.password is None:
            reason = result.error if result is not None else "gitboot has not run the command yet"
            raise UsageError(
                f"gitboot cannot get the password for the credentials {name} from password-command in {trust.file}: "
                f"{reason}"
            )
        return result.password


def _run_password_command(command: tuple[str, ...]) -> _CommandResult:
    """Run a command that prints a password on one line. No error message contains the output."""
    password: str | None = None
    error = ""  # why there is no password
    try:
        status, output = run_for_output(command, patience_s=_COMMAND_TIMEOUT_S, max_bytes=_MAX_OUTPUT_BYTES)
        lines = output.decode().removesuffix("\n").removesuffix("\r").split("\n")
    except (OSError, UnicodeDecodeError) as problem:
        error = "the command's output is not text" if isinstance(problem, UnicodeDecodeError) else str(problem)
    else:
        if status != 0:
            error = f"{command[0]} ended with status {status}"
        elif lines == [""] or len(lines) > 1:
            printed = "nothing" if lines == [""] else "several lines"
            error = f"{command[0]} printed {printed}, but gitboot expects the password on one line"
        else:
            password = lines[0]
    valid_s = _RETRY_AFTER_FAILURE_S if error else _PASSWORD_CACHE_S
    return _CommandResult(command, password, error, valid_until_s=time.monotonic() + valid_s)


def _read_files(folder: Path, name: str, parts: tuple[str, ...]) -> list[str]:
    """Read several files in a folder, so that all contents are from the same version of the folder.

    Kubernetes replaces a mounted secret by moving a symlink.
    """
    files = [folder / part for part in parts]
    try:
        for _ in range(_MAX_READS):
            before = list(map(_read_file_version, files))
            contents = [file.read_bytes() for file in files]
            if before == list(map(_read_file_version, files)):
                return [_decode_line(file, content) for file, content in zip(files, contents, strict=True)]
    except OSError as error:
        raise UsageError(
            f"gitboot cannot read the credentials {name}: {folder} must contain the files {' and '.join(parts)} "
            f"({error})"
        ) from None
    raise UsageError(f"the files in {folder} kept changing while gitboot was reading them ({_MAX_READS} attempts)")


def _decode_line(file: Path, content: bytes) -> str:
    """Return the only line of a file. Raises `UsageError` if the file has more than one line.

    The message does not quote the content.
    """
    try:
        text = content.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not UTF-8 text: write only the value, on one line") from None
    if not text:
        raise UsageError(f"{file} is empty: write only the value, on one line")
    if any(character in text for character in "\r\n\0"):
        raise UsageError(f"{file} has several lines: write only the value, on one line")
    return text


def _read_file_version(file: Path) -> _FileVersion:
    """Return a value that changes if the file changes or is replaced, or if a symlink in its path changes."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size
