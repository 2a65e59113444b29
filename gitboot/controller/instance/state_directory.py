"""State directory of an instance: locks, rights, token keys and the status that it left."""

from __future__ import annotations

import json
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
from gitboot.files import write_atomically
from gitboot.jsonio import encode_indented, format_instant, to_json_value
from gitboot.ledger.leader_lease import Holder, Lease, LeaseState
from gitboot.ledger.location import has_address_file
from gitboot.ledger.open_ledger import find_other_acting_instance, read_lease, read_places
from gitboot.render.endpoint_files import TERMS, parse_terms
from gitboot.render.token_keys import EarlierKey, TokenKeys
from gitboot.status.conditions import Condition
from gitboot.status.instance_status import Status
from gitboot.status.work_progress import WorkProgress
from gitboot.text import quote_words

LEDGER: Final = "ledger.sqlite"
CACHE: Final = "cache.sqlite"  # results of evaluations, and the checkpoint; you can delete it
CACHE_BYTES: Final = 2**32  # at most: 100,000 servers take 0.5 GiB for each commit, and as much for the checkpoint
PREPARING: Final = "preparing"  # what is needed while the tree of a standby is made
LOCK: Final = "lock"
STATUS: Final = "status.json"
WITHDRAWALS: Final = "withdrawals.json"  # overrides that were withdrawn while the ledger could not be written
NOTIFIED: Final = "notified.json"  # how far receivers of notices have been told
_LATELY: Final = 50  # accepted commits whose extent is kept
SPOOL: Final = "spool"  # where the endpoints of this instance record fetches, unless it is told another folder
TOKEN_KEYS: Final = "token-keys"  # noqa: S105 - the name of a file
FORMER_SIGHTINGS: Final = "artifacts.json"  # of artifacts, which earlier versions stored in a file
_FORMER: Final = ("planned.snapshot", "evaluated.snapshot")  # caches of earlier versions


def open_cache(directory: Path, warn: Callable[[str], None], *, writes: bool = True) -> DiskCache:
    """Return the cache of an instance. ``warn`` gets the reason if gitboot cannot use the file, or replaces it."""
    return DiskCache(directory / CACHE, warn, max_bytes=CACHE_BYTES, writes=writes)


def remove_former_caches(directory: Path) -> None:
    """Delete caches that an earlier version left."""
    for name in _FORMER:
        with suppress(OSError):
            (directory / name).unlink()


def has_ledger(directory: Path) -> bool:
    """Whether an instance has run here, wherever its ledger is; raises `UsageError` where that cannot be told."""
    try:
        return has_address_file(directory / LEDGER) or S_ISREG((directory / LEDGER).stat().st_mode)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UsageError(f"{directory} cannot be read: {error.strerror}") from None


def no_instance_error(directory: Path) -> UsageError:
    """What a person is told who names a directory on which no instance has run."""
    return UsageError(
        f"no gitboot has run with the state directory {directory}; name the one that `gitboot run --state` has"
    )


@contextmanager
def lock(directory: Path) -> Iterator[None]:
    """Hold ``directory`` until the block ends; raises `LockedByAnother` naming the process that has it.

    Raises `UsageError` where it cannot be written. What others send to an instance here, to wake it, ends nobody who
    has the directory for something else.
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
    """Let signals by which an instance is woken do nothing, until the block ends or something listens for them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    deaf = [each for each in (signal.SIGHUP, signal.SIGUSR1) if signal.getsignal(each) is signal.SIG_DFL]
    for each in deaf:
        signal.signal(each, _ignore_signal)
    try:
        yield
    finally:
        for each in deaf:
            if signal.getsignal(each) is _ignore_signal:
                signal.signal(each, signal.SIG_DFL)


def _ignore_signal(*_: object) -> None:
    """Nothing is done."""


def find_running_process(directory: Path) -> int | None:
    """The process that holds ``directory`` on this machine; None where none does."""
    try:
        return files.find_lock_holder(directory / LOCK)
    except OSError as error:
        raise UsageError(f"{directory} cannot be read: {error.strerror}") from None


class StatusFile:
    """What is left for `gitboot status`, from any thread; a disk that refuses it loses only that."""

    def __init__(self, directory: Path, clock: Callable[[], datetime]) -> None:
        self._directory, self._clock, self._lock = directory, clock, threading.Lock()
        self._facts: Mapping[str, Any] = Status().facts()
        with suppress(UsageError):
            self._facts = read_status(directory)  # it stands until there is another

    def write(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Leave a new status, and return it with the time by the clock."""
        with self._lock:
            at = self._clock()
            self._facts = _merge_changes(self._facts, facts, at)
            return self._write(None, at)

    def note_progress(self, underway: WorkProgress | None) -> None:
        """Leave how far long work has come since, with the status that there was."""
        with self._lock:
            self._write(underway, self._clock())

    def add_condition(self, condition: Condition) -> None:
        """Leave the status that there was with another condition, until there is a new status."""
        with self._lock:
            found = [each for each in self._facts["conditions"] if each["type"] != condition.type]
            found = sorted([*found, to_json_value([condition])[0]], key=lambda each: str(each["type"]))
            self._facts = {**self._facts, "conditions": found}
            self._write(None, self._clock())

    def _write(self, underway: WorkProgress | None, at: datetime) -> dict[str, Any]:
        progress = underway.facts() if underway is not None else None
        facts = {**self._facts, "clock": format_instant(at), "progress": progress}
        with suppress(OSError):
            files.write_atomically(self._directory / STATUS, encode_indented(facts) + b"\n")
        return facts


def _merge_changes(before: Mapping[str, Any], now: Mapping[str, Any], at: datetime) -> dict[str, Any]:
    """What accepted commits have changed, which an instance that starts over them does not find out again."""
    then, accepted = before.get("accepted", {}), now["accepted"]
    is_told = accepted["changed"] or then.get("commit") != accepted["commit"]
    changed = accepted["changed"] if is_told else then.get("changed", [])
    earlier = then.get("lately", [])
    known = {each["commit"] for each in earlier}
    by_commit: dict[str, list[dict[str, str]]] = {each["commit"]: [] for each in changed}
    for each in accepted["acknowledged"]:
        by_commit.get(each["commit"], []).append({"guard": each["guard"], "by": each["by"]})
    whole = [
        {**area, "at": format_instant(at), "acknowledged": by_commit[area["commit"]]}
        for area in reversed(changed)
        if not area["label"]
    ]
    lately = [*(each for each in whole if each["commit"] not in known), *earlier][:_LATELY]
    return {**now, "accepted": {**accepted, "changed": changed, "lately": lately}}


def read_status(directory: Path) -> dict[str, Any]:
    """What the instance said of itself last; raises `UsageError` where none has run here."""
    path = directory / STATUS
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise no_instance_error(directory) from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        found = None
    if not isinstance(found, dict) or "attempted" not in found:
        raise UsageError(f"{path} is not a status file; the next pass of `gitboot run` writes it anew")
    return found


def read_own_lease(directory: Path) -> LeaseState | None:
    """The lease by which this host's instance acts; None: it has none, or its ledger is a file."""
    lease = read_lease(directory / LEDGER)
    return lease if lease is not None and lease.is_current and lease.holder == Holder.load(directory).id else None


def find_acting_directory(directory: Path) -> Path:
    """The state directory of the instance that acts, where it is on this host, too; else this one.

    Raises `HeldByAnother` where who acts is on another host, and publishes to a disk that both have: it would obey what
    is left there, and only who looks into its ledger could take that back.
    """
    if not has_ledger(directory):
        return directory
    with suppress(LedgerError, OSError):
        lease = read_lease(directory / LEDGER)
        if lease is None or not lease.is_current or lease.holder == Holder.load(directory).id:
            return directory
        host, _, state = lease.place.partition(":")
        if host == socket.gethostname() and has_ledger(there := Path(state)) and Holder.load(there).id == lease.holder:
            return there
        output, _ = read_places(directory / LEDGER)
        if output is None or not is_published_under(output, lease):
            return directory
    check_acts(directory)
    return directory


def is_published_under(output: Path, lease: LeaseState) -> bool:
    """Whether what stands there was published under a lease."""
    with suppress(OSError, ValueError):
        return parse_terms((output / TERMS).read_bytes()).fetch_log_id == str(Lease(lease.holder, lease.number))
    return False


def check_acts(directory: Path) -> None:
    """Raise `HeldByAnother` where the instance of another host acts in place of this one, running or not."""
    if (place := find_other_acting_instance(directory / LEDGER, lambda: Holder.load(directory))) is not None:
        host, _, state = place.partition(":")
        raise HeldByAnother(
            f"{directory}: this host's instance stands by, and {place} acts: type it on {host}, with --state {state}"
        )


_OWN: Final = 0o077  # a umask: nothing for anybody else
_SHARED: Final = 0o007  # a umask: the same for the group that the directory is shared with


@contextmanager
def make_private(directory: Path) -> Iterator[None]:
    """Make ``directory`` where it is missing; what is made until the block ends is for this instance alone.

    What belongs to this user and is open to others is closed to them. Raises `UsageError` where others, or a group that
    this process is not in, may write, or where a symlink stands in place of a file: whoever put it there could have put
    a ledger there as well. A directory that hands its group on (setgid) is shared with that group on purpose, as
    Kubernetes and OpenShift do, whose users change.
    """
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        mask = _SHARED if _is_shared(directory.stat()) else _OWN
        _restrict_access(directory, directory.stat(), mask)
        for path in (directory / name for name in _NAMES):
            with suppress(FileNotFoundError):
                found = path.lstat()
                if stat.S_ISLNK(found.st_mode):
                    raise UsageError(
                        f"{path} is a symlink, which gitboot has not made: look where it leads, and remove it"
                    )
                _restrict_access(path, found, mask)
    except OSError as error:
        raise UsageError(f"{directory} cannot be made: {error.strerror}") from error
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode_in(directory: Path) -> int:
    """The rights of a file that only this instance may write, and others who share its directory may read."""
    return 0o640 if _is_shared(directory.stat()) else 0o600


def check_spool_rights(folder: Path) -> None:
    """Raise `UsageError` where everybody may write a spool: who writes there says which servers are installed."""
    with suppress(FileNotFoundError):
        found = folder.stat()
        if found.st_mode & stat.S_IWOTH and found.st_uid == os.geteuid():
            folder.chmod(stat.S_IMODE(found.st_mode) & ~stat.S_IWOTH)
        elif found.st_mode & stat.S_IWOTH:
            raise UsageError(
                f"everybody may write {folder}, and so say what is installed: chmod o-w {quote_words(folder)}"
            )


_NAMES: Final = (
    *(
        LEDGER,
        f"{LEDGER}-wal",
        f"{LEDGER}-shm",
        "ledger.mark",
        "ledger.toml",
        LOCK,
        STATUS,
    ),
    *(TOKEN_KEYS, NOTIFIED),
    *("repository.git", "repository.new", "repository.broken", "home"),
)


def _is_shared(status: os.stat_result) -> bool:
    return bool(status.st_mode & stat.S_ISGID) and _is_ours(status.st_gid)


def _is_ours(group: int) -> bool:
    return group in (os.getegid(), *os.getgroups())


def _restrict_access(path: Path, status: os.stat_result, mask: int) -> None:
    """Leave others no right to something that is ours; refuse what somebody else lets them write."""
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid == os.geteuid():
        if mode & mask:
            path.chmod(mode & ~mask)
        return
    others = mode & stat.S_IWOTH
    if others or (mode & stat.S_IWGRP and not _is_ours(status.st_gid)):
        who = "everybody" if others else f"group {status.st_gid}, which this process is not in,"
        raise UsageError(f"{who} may write {path}: chmod {'o' if others else 'g'}-w {quote_words(path)}")


EARLIER_KEY_LIFETIME: Final = timedelta(hours=24)  # how long what was told tokens by an earlier key is
_BYTES: Final = 32
_NONE: Final = "none"
_KEY_FILE_HINT: Final = "restore the file, or remove it: installers that are at work now are not heard then"
_LINE: Final = re.compile(rf"(\S+) ({_NONE}|[0-9a-f]{{{2 * _BYTES}}})")


class _KeyLine(NamedTuple):
    """Since when tokens are published by which key; None: as anybody knows them."""

    since: datetime
    key: bytes | None

    def __str__(self) -> str:
        return f"{format_instant(self.since)} {self.key.hex() if self.key is not None else _NONE}\n"


def token_keys(directory: Path, at: datetime, *, follows_none: bool) -> TokenKeys:
    """The keys of the instance on ``directory``, whose newest is the last line of a file; one is made if there is none.

    ``follows_none``: tokens were published without a key until ``at``. Raises `UsageError` where the file is not what
    gitboot has written there.
    """
    path = directory / TOKEN_KEYS
    try:
        lines = _read_key_lines(path)
        if lines is None:
            key = _KeyLine(at, secrets.token_bytes(_BYTES))
            lines = [_KeyLine(at, None), key] if follows_none else [key]
            write_atomically(path, "".join(map(str, lines)).encode(), mode=mode_in(directory))
    except OSError as error:
        raise UsageError(f"{path}: the keys of tokens cannot be read or made: {error.strerror}") from error
    return TokenKeys(
        lines[-1].key,
        tuple(EarlierKey(old.key, new.since, new.since + EARLIER_KEY_LIFETIME) for old, new in pairwise(lines)),
    )


def read_key_lines(directory: Path) -> tuple[str, ...]:
    """The lines of that file, as another host can have them."""
    return tuple((directory / TOKEN_KEYS).read_text("ascii").splitlines())


def write_key_lines(directory: Path, lines: Sequence[str]) -> None:
    """Have the file hold these lines."""
    path, content = directory / TOKEN_KEYS, "".join(f"{line}\n" for line in lines).encode()
    if not path.exists() or path.read_bytes() != content:
        write_atomically(path, content, mode=mode_in(directory))


def _read_key_lines(path: Path) -> list[_KeyLine] | None:
    """Return the lines of the file; None if there is no file. No message shows a line."""
    try:
        text = path.read_text("ascii", errors="replace")
    except FileNotFoundError:
        return None
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        found, since = _LINE.fullmatch(line), None
        with suppress(ValueError, OverflowError):
            since = datetime.fromisoformat(found[1]) if found is not None else None
            since = since.astimezone(UTC) if since is not None and since.tzinfo is not None else None
        if found is None or since is None:
            raise UsageError(
                f"{path}:{number}: expected an instant and a key of {2 * _BYTES} hexadecimal digits; {_KEY_FILE_HINT}"
            )
        lines.append(_KeyLine(since, bytes.fromhex(found[2]) if found[2] != _NONE else None))
    if not lines or lines[-1].key is None:
        raise UsageError(
            f"{path} ends without a key; restore it, or remove it: what is being installed is not heard then"
        )
    return lines
