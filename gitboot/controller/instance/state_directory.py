"""State directory of an instance: its lock, access rights, token keys and status file."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final, NamedTuple

from gitboot import files
from gitboot.disk_cache import DiskCache
from gitboot.errors import HeldByAnother, LedgerError, UsageError
from gitboot.files import convert_os_errors, write_atomically
from gitboot.jsonio import encode_indented, format_instant, parse_json, to_json_value
from gitboot.ledger import instance_tables
from gitboot.ledger.leader_lease import Holder, Lease, LeaseState
from gitboot.ledger.open_ledger import read_lease, read_places
from gitboot.ledger.store import Store, has_address_file
from gitboot.render.endpoint_files import TERMS, parse_terms
from gitboot.render.token_keys import EarlierKey, TokenKeys
from gitboot.status.conditions import Condition, Event
from gitboot.status.instance_status import Status
from gitboot.status.work_progress import WorkProgress
from gitboot.text import quote_words

LEDGER: Final = "ledger.sqlite"
CACHE: Final = "cache.sqlite"  # evaluation results and the checkpoint; operators may delete this file
# Maximum size of the cache: 100,000 servers need 0.5 GiB per commit, and as much again for the checkpoint
CACHE_BYTES: Final = 2**32
PREPARING: Final = "preparing"  # folder for temporary files while a standby prepares its tree
LOCK: Final = "lock"
STATUS: Final = "status.json"
WITHDRAWALS: Final = "withdrawals.json"  # cleared overrides, and a time of the clock, that are not in the ledger yet
NOTIFIED: Final = "notified.json"  # the last event that each receiver of notices has received
SPOOL: Final = "spool"  # default folder of the fetch log
TOKEN_KEYS: Final = "token-keys"  # noqa: S105 - the name of a file
FORMER_SIGHTINGS: Final = "artifacts.json"  # file in which earlier versions stored the results of artifact checks
# The files of an instance whose access rights `make_private` restricts
_NAMES: Final = (
    LEDGER,
    f"{LEDGER}-wal",
    f"{LEDGER}-shm",
    "ledger.mark",
    "ledger.toml",
    LOCK,
    STATUS,
    TOKEN_KEYS,
    NOTIFIED,
    "repository.git",
    "repository.new",
    "repository.broken",
    "home",
)

_MAX_RECENT_COMMITS: Final = 50  # maximum number of accepted commits in the status
EARLIER_KEY_LIFETIME: Final = timedelta(hours=24)  # how long reports with tokens from an earlier key are accepted
_KEY_BYTES: Final = 32  # length of a token key
_NO_KEY: Final = "none"  # instead of a key in the file
_KEY_FILE_HINT: Final = (
    "restore or remove the file (without this file, gitboot ignores reports from running installers)"
)
_KEY_LINE: Final = re.compile(rf"(\S+) ({_NO_KEY}|[0-9a-f]{{{2 * _KEY_BYTES}}})")


# Cache


def open_cache(directory: Path, warn: Callable[[str], None], *, writes: bool = True) -> DiskCache:
    """Open the cache of an instance. ``warn`` is called with a message if the file is unusable or is replaced."""
    return DiskCache(directory / CACHE, warn, max_bytes=CACHE_BYTES, writes=writes)


def make_cache_warner(tell: Callable[[Event], None], clock: Callable[[], datetime]) -> Callable[[str], None]:
    """Return a function that reports a problem with the cache as an event."""
    return lambda message: tell(Event(at=clock(), type="CacheUnusable", message=message, warning=True))


def remove_former_caches(directory: Path) -> None:
    """Delete the cache files of earlier versions."""
    for name in ("planned.snapshot", "evaluated.snapshot"):
        with suppress(OSError):
            (directory / name).unlink()


def has_ledger(directory: Path) -> bool:
    """Return whether an instance has used this directory. Raises `UsageError` if the directory cannot be read."""
    with convert_os_errors(directory, "read"):
        try:
            return has_address_file(directory / LEDGER) or S_ISREG((directory / LEDGER).stat().st_mode)
        except FileNotFoundError:
            return False


def require_ledger(directory: Path) -> None:
    """Raise `UsageError` if no instance has used this directory."""
    if not has_ledger(directory):
        raise make_no_instance_error(directory)


def make_no_instance_error(directory: Path) -> UsageError:
    """Build the error for a directory that no instance has used."""
    return UsageError(
        f"no instance has run with the state directory {directory}; use the directory that `gitboot run --state` uses"
    )


# Lock


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Hold the lock on ``directory`` and ignore the signals that wake an instance, until the block ends.

    By default, these signals would end the process. Raises `LockedByAnother`, which names the process that holds the
    lock, or `UsageError` if the directory is not writable.
    """
    with ExitStack() as stack:
        stack.enter_context(_ignore_wake_signals())
        try:
            stack.enter_context(files.hold_lock(directory / LOCK, f"{directory} is in use"))
        except OSError as error:
            raise UsageError(f"{directory} cannot be written: {error.strerror}") from None
        yield


@contextmanager
def _ignore_wake_signals() -> Iterator[None]:
    """Ignore the signals that wake an instance, until the block ends or a handler is installed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ignored = [number for number in (signal.SIGHUP, signal.SIGUSR1) if signal.getsignal(number) is signal.SIG_DFL]
    for number in ignored:
        signal.signal(number, _ignore_signal)
    try:
        yield
    finally:
        for number in ignored:
            if signal.getsignal(number) is _ignore_signal:
                signal.signal(number, signal.SIG_DFL)


def _ignore_signal(*_: object) -> None:
    """Ignore a signal."""


def find_running_process(directory: Path) -> int | None:
    """Return the id of the process on this machine that holds the lock on ``directory``, or None."""
    with convert_os_errors(directory, "read"):
        return files.find_lock_holder(directory / LOCK)


# Status


class StatusFile:
    """The status file for `gitboot status`. Thread-safe. Write errors do not stop gitboot."""

    def __init__(self, directory: Path, clock: Callable[[], datetime]) -> None:
        self._directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._facts: Mapping[str, Any] = Status().facts()
        with suppress(UsageError):
            self._facts = read_status(directory)  # the previous status stays valid until the first new one

    def write(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Write a new status. Return the status, including the time at which it was written."""
        with self._lock:
            at = self._clock()
            self._facts = _merge_changes(self._facts, facts, at)
            return self._write(None, at)

    def note_progress(self, progress: WorkProgress | None) -> None:
        """Write the last status again, with the progress of a long operation."""
        with self._lock:
            self._write(progress, self._clock())

    def add_condition(self, condition: Condition) -> None:
        """Write the last status again with an additional condition, which disappears with the next status."""
        with self._lock:
            conditions = [each for each in self._facts["conditions"] if each["type"] != condition.type]
            conditions += to_json_value([condition])
            conditions.sort(key=lambda each: str(each["type"]))
            self._facts = {**self._facts, "conditions": conditions}
            self._write(None, self._clock())

    def _write(self, progress: WorkProgress | None, at: datetime) -> dict[str, Any]:
        facts = {
            **self._facts,
            "clock": format_instant(at),
            "progress": progress.facts() if progress is not None else None,
        }
        with suppress(OSError):
            files.write_atomically(self._directory / STATUS, encode_indented(facts) + b"\n")
        return facts


def _merge_changes(before: Mapping[str, Any], now: Mapping[str, Any], at: datetime) -> dict[str, Any]:
    """Carry over the changes of accepted commits from the last status.

    gitboot does not compute these changes again after a restart.
    """
    last, accepted = before.get("accepted", {}), now["accepted"]
    has_new_changes = accepted["changed"] or last.get("commit") != accepted["commit"]
    changed = accepted["changed"] if has_new_changes else last.get("changed", [])
    earlier = last.get("lately", [])
    known = {area["commit"] for area in earlier}
    by_commit: dict[str, list[dict[str, str]]] = {area["commit"]: [] for area in changed}
    for acknowledgement in accepted["acknowledged"]:
        if acknowledgement["commit"] in by_commit:
            shown = {"guard": acknowledgement["guard"], "by": acknowledgement["by"]}
            by_commit[acknowledgement["commit"]].append(shown)
    new = (
        {**area, "at": format_instant(at), "acknowledged": by_commit[area["commit"]]}
        for area in reversed(changed)
        if not area["label"] and area["commit"] not in known
    )
    return {**now, "accepted": {**accepted, "changed": changed, "lately": [*new, *earlier][:_MAX_RECENT_COMMITS]}}


def read_status(directory: Path) -> dict[str, Any]:
    """Read the status file. Raises `UsageError` if no instance has used this directory."""
    path = directory / STATUS
    try:
        status = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise make_no_instance_error(directory) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        status = None
    if not isinstance(status, dict) or "attempted" not in status:
        raise UsageError(f"{path} is not a valid status file; `gitboot run` replaces the file at the next reconcile")
    return status


# Active instance


def read_own_lease(directory: Path) -> LeaseState | None:
    """Return the lease if the instance with this directory holds it.

    Return None if another instance holds the lease, or if the ledger is in SQLite.
    """
    lease = read_lease(directory / LEDGER)
    if lease is None or not lease.is_current or lease.holder != Holder.load(directory).id:
        return None
    return lease


def find_active_directory(directory: Path) -> Path:
    """Return the active instance's state directory if that instance is on this host, otherwise ``directory``.

    Raises `HeldByAnother` if the active instance is on another host and publishes to a disk that both hosts share. That
    instance would obey a stop that this host writes to OUTPUT, but only the other host could end the stop.
    """
    if not has_ledger(directory):
        return directory
    with suppress(LedgerError, OSError):
        lease = read_lease(directory / LEDGER)
        if lease is None or not lease.is_current or lease.holder == Holder.load(directory).id:
            return directory
        host, _, state = lease.place.partition(":")
        other = Path(state)
        if host == socket.gethostname() and has_ledger(other) and Holder.load(other).id == lease.holder:
            return other
        output, _ = read_places(directory / LEDGER)
        if output is None or not is_published_under(output, lease):
            return directory
    require_active(directory)
    return directory


def is_published_under(output: Path, lease: LeaseState) -> bool:
    """Return whether ``output`` was published under this lease."""
    with suppress(OSError, ValueError):
        return parse_terms((output / TERMS).read_bytes()).fetch_log_id == str(Lease(lease.holder, lease.number))
    return False


def require_active(directory: Path) -> None:
    """Raise `HeldByAnother` if the active instance is on another host.

    The instance on this host need not be running.
    """
    lease = read_lease(directory / LEDGER)
    if lease is not None and lease.is_current and lease.holder != Holder.load(directory).id:
        host, _, state = lease.place.partition(":")
        raise HeldByAnother(
            f"{directory}: the instance on this host is a standby, and the active instance is {lease.place}; run the "
            f"command on {host} with --state {state}"
        )


# Access rights

_OTHERS_MASK: Final = 0o007  # the rights of others; the group keeps its rights


@contextmanager
def make_private(directory: Path) -> Iterator[None]:
    """Create ``directory`` if it is missing, and make its files private.

    Files created until the block ends are private too. Other users lose access to existing files of this user. A
    directory with the setgid bit is deliberately shared with its group, as in Kubernetes and OpenShift, where the user
    of a container can change.

    Raises `UsageError` if only other programs have files in the directory, if a file is a symlink, or if others or a
    group to which this process does not belong may write to the file. Such users could have changed the ledger.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Others have no access. A group that shares the directory has full access.
        mask = _OTHERS_MASK if _is_shared(directory.stat()) else 0o077
        _check_has_only_own_files(directory, mask)
        _restrict_access(directory, directory.stat(), mask)
        for path in (directory / name for name in _NAMES):
            with suppress(FileNotFoundError):
                status = path.lstat()
                if stat.S_ISLNK(status.st_mode):
                    raise UsageError(
                        f"{path} is a symlink that gitboot did not create: check its target, then remove the symlink"
                    )
                _restrict_access(path, status, mask)
    except OSError as error:
        raise UsageError(f"{directory} cannot be created: {error.strerror}") from error
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def _check_has_only_own_files(directory: Path, mask: int) -> None:
    """Raise `UsageError` if other users have access to a directory that contains only files of other programs.

    Without this check, a wrong path such as /var/lib would become inaccessible to all other programs.
    """
    names = set(os.listdir(directory)) - {"lost+found"}  # a new file system contains this folder
    is_foreign = names and names.isdisjoint((*_NAMES, CACHE, SPOOL, WITHDRAWALS))
    if is_foreign and stat.S_IMODE(directory.stat().st_mode) & mask:
        raise UsageError(
            f"{directory} contains {quote_words(min(names))}, which gitboot did not create: use a directory that "
            f"contains only the state of this instance. If no other program uses {directory}, run "
            f"{quote_words('chmod', 'o=' if mask == _OTHERS_MASK else '700', directory)}"
        )


def choose_file_mode(directory: Path) -> int:
    """Return the mode for a file that only this user may write.

    If the directory is shared with its group, the group may read the file.
    """
    return 0o640 if _is_shared(directory.stat()) else 0o600


def check_spool_rights(folder: Path) -> None:
    """Check that other users cannot write to the fetch log, because entries in the log can mark servers as installed.

    If this user owns the folder, remove the rights of others, except from a folder that all users share, such as /tmp.
    Raises `UsageError`.
    """
    with convert_os_errors(folder, "read"), suppress(FileNotFoundError):
        status = folder.stat()
        if not stat.S_ISDIR(status.st_mode):
            raise UsageError(f"{folder} is not a directory: use a directory for the fetch log")
        if not status.st_mode & stat.S_IWOTH:
            return
        risk = f"every user can write to {folder}, and can therefore mark servers as installed"
        if status.st_mode & stat.S_ISVTX:
            raise UsageError(f"{risk}: use a directory of its own for the fetch log")
        if status.st_uid != os.geteuid():
            raise UsageError(f"{risk}: run chmod o-w {quote_words(folder)}")
        folder.chmod(stat.S_IMODE(status.st_mode) & ~stat.S_IWOTH)


def _is_shared(status: os.stat_result) -> bool:
    return bool(status.st_mode & stat.S_ISGID) and _is_own_group(status.st_gid)


def _is_own_group(group: int) -> bool:
    return group in (os.getegid(), *os.getgroups())


def _restrict_access(path: Path, status: os.stat_result, mask: int) -> None:
    """Remove other users' access to a file of this user.

    Raise `UsageError` if another user owns the file and others may write to it.
    """
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid == os.geteuid():
        if mode & mask:
            path.chmod(mode & ~mask)
        return
    if mode & stat.S_IWOTH:
        raise UsageError(f"every user can write to {path}: run chmod o-w {quote_words(path)}")
    if mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
        raise UsageError(
            f"group {status.st_gid}, to which this process does not belong, can write to {path}: run chmod g-w "
            f"{quote_words(path)}"
        )


# Token keys


class _KeyLine(NamedTuple):
    """A token key, and the time of its first use.

    If the key is None, tokens are computed without a key, so anyone can compute them.
    """

    since: datetime
    key: bytes | None

    def __str__(self) -> str:
        return f"{format_instant(self.since)} {self.key.hex() if self.key is not None else _NO_KEY}\n"


def read_or_create_token_keys(directory: Path, at: datetime, *, was_keyless: bool) -> TokenKeys:
    """Read the token keys of an instance. If there is no key file, create a file with a new key.

    The last line of the file contains the current key. ``was_keyless`` means that tokens were published without a key
    until ``at``. Raises `UsageError` if the file is damaged.
    """
    path = directory / TOKEN_KEYS
    try:
        if (lines := _read_key_lines(path)) is None:
            key = _KeyLine(at, secrets.token_bytes(_KEY_BYTES))
            lines = [_KeyLine(at, None), key] if was_keyless else [key]
            write_atomically(path, "".join(map(str, lines)).encode(), mode=choose_file_mode(directory))
    except OSError as error:
        raise UsageError(f"{path}: gitboot cannot read or create the token keys: {error.strerror}") from error
    return TokenKeys(
        lines[-1].key,
        tuple(EarlierKey(old.key, new.since, new.since + EARLIER_KEY_LIFETIME) for old, new in pairwise(lines)),
    )


def load_token_keys(
    directory: Path, store: Store, tell: Callable[[Event], None], clock: Callable[[], datetime]
) -> TokenKeys:
    """Return the keys of published tokens. Hosts that share a ledger copy the lines of the key file through the ledger.

    If the keys were lost, create a new key. gitboot then ignores reports with older tokens.
    """
    facts, at = instance_tables.read_facts(store), clock()
    is_shared = store.database.lease is not None
    if is_shared and (shared_lines := instance_tables.read_token_keys(store)):
        write_key_lines(directory, shared_lines)
    if facts.keyed and not (directory / TOKEN_KEYS).exists():
        tell(
            Event(
                at=at,
                type="TokenKeysLost",
                message=f"the file {TOKEN_KEYS} is missing from STATE, so running installers cannot report or get "
                "secrets. When they have ended, record the results with gitboot records set",
                warning=True,
            )
        )
    keys = read_or_create_token_keys(directory, at, was_keyless=facts.accepted is not None and not facts.keyed)
    if is_shared:
        lines = tuple((directory / TOKEN_KEYS).read_text("ascii").splitlines())
        if instance_tables.read_token_keys(store) != lines:
            with store.writing() as tx:
                instance_tables.write_token_keys(tx, lines)
    return keys


def write_key_lines(directory: Path, lines: Sequence[str]) -> None:
    """Write these lines to the token key file, unless it already consists of these lines."""
    path = directory / TOKEN_KEYS
    content = "".join(f"{line}\n" for line in lines).encode()
    if not path.exists() or path.read_bytes() != content:
        write_atomically(path, content, mode=choose_file_mode(directory))


def _parse_key_line(line: str) -> _KeyLine | None:
    """Parse one line of a token key file, or return None if the line is not valid."""
    match = _KEY_LINE.fullmatch(line)
    if match is None:
        return None
    try:
        since = datetime.fromisoformat(match[1])
        if since.tzinfo is None:
            return None
        return _KeyLine(since.astimezone(UTC), bytes.fromhex(match[2]) if match[2] != _NO_KEY else None)
    except (ValueError, OverflowError):
        return None


def _read_key_lines(path: Path) -> list[_KeyLine] | None:
    """Parse a token key file, or return None if the file does not exist. Error messages never contain keys."""
    try:
        text = path.read_text("ascii", errors="replace")
    except FileNotFoundError:
        return None
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        key_line = _parse_key_line(line)
        if key_line is None:
            raise UsageError(
                f"{path}:{number}: expected a time and a key with {2 * _KEY_BYTES} hexadecimal digits; {_KEY_FILE_HINT}"
            )
        lines.append(key_line)
    if not lines or lines[-1].key is None:
        raise UsageError(f"{path}: the last line does not contain a key; {_KEY_FILE_HINT}")
    return lines
