#!/usr/bin/env python3
"""Mirror program: copy a published tree to a host without gitboot, verify its signed list, and end maintenance windows.

`mirror_repair.join_program` builds the file for a mirror by replacing the import of the signed list reader with its
source. The program must run on Python 3.6, so both modules import only the standard library. It copies with rsync.
"""

import argparse
import errno
import fcntl
import fnmatch
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from gitboot.publish.signed_list_reader import (
    MAX_TARGETS_BYTES,
    MISSING,
    OLDER,
    SIGNED,
    TIMESTAMP,
    UNSIGNED,
    AcceptedList,
    Listing,
    ListProblem,
    SignedList,
    check_count,
    check_path,
    find_versions_around,
    hash_path,
    is_path_digest,
    parse_keys,
    parse_list_instant,
    parse_listing,
    read_list,
)

# This folder is in the mirror's folder, so that hard links work. Web servers may serve hidden files, so only the owner
# may open the folder: the program has not verified the files in it.
STAGING = ".staging"
_STAGING_MODE = 0o700
KEPT = ("assets/*",)  # Files that are copied and kept although no list contains them.
_RSYNC_IDLE_S = 60
# The errors of link(2) after which the program copies the file instead.
_NO_LINK_ERRORS = (errno.EMLINK, errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS)
_LIST_TRIES = 3  # attempts to copy a tree that changes during the copy
_CONTENT = re.compile(r"(?:o|media|assets)/|(?:v1/boot|nocloud)/[^/]+/data/")  # files that boot scripts refer to
_LIST_FILE = re.compile(
    SIGNED
    + r"(?:timestamp|shared|[0-9]+\.(?:root|snapshot|targets|servers-[0-9a-f]{2})|servers/[a-z0-9][a-z0-9.-]*)\.json\Z"
)
# Files that `gitboot artifacts` downloads to the tree. No list names these files; their digests are in their paths.
_ARTIFACT = re.compile(r"o/([0-9a-f]{64})/(?:kernel|initrd|rootfs|uki\.efi|image\.iso|loader\.efi)\Z")


class CopyError(Exception):
    """The tree cannot be copied or verified.

    The mirror continues to serve the last verified tree, and still ends maintenance windows.
    """


class Ending(NamedTuple):
    """The content that a path gets at the end of a maintenance window."""

    since: datetime
    text: Optional[str]  # None: the file is removed


# The files that the program saves between runs


class State:
    """The state that the program saves between runs."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.latest_time = datetime(1970, 1, 1, tzinfo=timezone.utc)  # the latest time that the clock has shown
        self.accepted: Optional[AcceptedList] = None
        self._keys: List[str] = []  # the root keys that verified the accepted list
        self.published_at: Optional[datetime] = None  # the time of the accepted list
        self.endings: Dict[str, Ending] = {}
        try:
            self._load()
        except FileNotFoundError:
            pass
        except (AttributeError, IndexError, KeyError, OSError, RecursionError, TypeError, ValueError) as error:
            self.published_at = None  # the program then reads the list that the mirror serves
            fault = "cannot be read" if isinstance(error, OSError) else "is damaged"
            warn(f"{path} {fault}, so the program replaces the file: {error}")

    def _load(self) -> None:
        """Load the saved state. If the file is damaged, the values before the damage count.

        The names in the file differ from the attributes, because earlier versions of the program wrote the same file.
        """
        saved = _read_json(self._path)
        self.latest_time, accepted = parse_list_instant(saved["latest"]), saved["seen"]
        self.published_at = parse_list_instant(saved["made"]) if saved["made"] else None
        if accepted:
            root, timestamp, snapshot = (check_count(version, 0) for version in accepted[:3])
            self.accepted = AcceptedList(root, timestamp, snapshot, frozenset(map(str, accepted[3])))
        self._keys = [str(key) for key in saved["keys"]]
        self.endings = {
            check_path(name): Ending(parse_list_instant(since), _parse_optional_text(text))
            for name, (since, text) in saved["ends"].items()
        }

    def save(self) -> None:
        saved = {
            "keys": self._keys,
            "latest": _format_time(self.latest_time),
            "made": _format_time(self.published_at) if self.published_at is not None else None,
            "seen": [*self.accepted[:3], sorted(self.accepted.keys)] if self.accepted is not None else None,
            "ends": {path: [_format_time(end.since), end.text] for path, end in sorted(self.endings.items())},
        }
        _write(self._path, json.dumps(saved, sort_keys=True).encode("utf-8"), 0o600)

    def trust(self, keys: Iterable[bytes]) -> None:
        """Set the trusted root keys.

        If the keys changed, discard the accepted list, so that the program accepts any verified list again.
        """
        hex_keys = sorted(key.hex() for key in keys)
        if self._keys != hex_keys:
            self.accepted, self._keys = None, hex_keys

    def now(self, clock: datetime) -> datetime:
        """Return the current time, or the latest time seen so far if the clock was set back."""
        self.latest_time = max(clock, self.latest_time)
        return self.latest_time


def _parse_optional_text(value: Any) -> Optional[str]:
    if not isinstance(value, (str, type(None))):
        raise ValueError("expected a string")
    return value


def _format_time(at: datetime) -> str:
    return at.replace(tzinfo=None).isoformat() + "Z"


class DigestCache:
    """The digests of files from the previous run, so that the program reads only changed files."""

    def __init__(self, path: str) -> None:
        self._path = path
        # Each value contains a file's size, mtime, ctime and digest. The key contains the file's device and inode.
        self._known: Dict[str, List[Any]] = {}
        self._used: Dict[str, List[Any]] = {}
        with suppress(OSError, RecursionError, ValueError):
            known = _read_json(path)
            if isinstance(known, dict) and all(isinstance(each, list) and len(each) == 4 for each in known.values()):
                self._known = known

    def save(self) -> None:
        """Save the digests that this run used, if they have changed."""
        if self._used != self._known:
            _write(self._path, json.dumps(self._used).encode("utf-8"), 0o600)
            self._known = self._used

    def digest(self, path: str) -> Optional[str]:
        """Return the sha256 of a regular file, or None for anything else. Unchanged files are not read again."""
        try:
            file_stat = os.lstat(path)
            if not stat.S_ISREG(file_stat.st_mode):
                return None
            name = f"{file_stat.st_dev}:{file_stat.st_ino}"
            file_stamp = [file_stat.st_size, file_stat.st_mtime_ns, file_stat.st_ctime_ns]
            known = self._used.get(name) or self._known.get(name)
            if known is None or known[:-1] != file_stamp:
                digest = hashlib.sha256()
                with open(path, "rb") as file:
                    for block in iter(lambda: file.read(1 << 20), b""):
                        digest.update(block)
                known = [*file_stamp, digest.hexdigest()]
            self._used[name] = known
            return str(known[-1])
        except (FileNotFoundError, NotADirectoryError):
            return None


# The tree of the publisher


class Tree:
    """A tree in a folder, with its verified signed list."""

    def __init__(self, root: str, signed_list: SignedList, listings: Sequence[Listing]) -> None:
        self._root = root
        self.signed_list = signed_list
        self._listings = listings
        self._shared = {path for listing in listings if listing.server is None for path in listing.files}
        self.endings: Dict[str, Ending] = {}  # the content that files get when their open maintenance windows end
        for listing in listings:
            if listing.end is not None:
                for path, file in listing.end.files.items():
                    text = listing.contents[file.sha256] if file.sha256 is not None else None
                    self.endings[path] = Ending(listing.end.since, text)

    def find_files(self, digest: Callable[[str], Optional[str]], now: datetime) -> Tuple[FrozenSet[str], List[str]]:
        """Return the paths of the published files and of the list, and the paths that do not match their digests."""
        present_paths = list(iterate_paths(self._root))
        path_by_digest = {hash_path(path): path for path in present_paths}
        published, wrong = [], []
        for listing in self._listings:
            for name, versions in listing.files.items():
                path = path_by_digest.get(name, name)
                around = find_versions_around(versions, now)
                expected = {version.sha256 if version is not None else None for version in around}
                expected.add(versions[0].sha256 if versions and versions[0].since is None else None)
                actual = digest(os.path.join(self._root, path)) if not is_path_digest(path) else None
                if actual not in expected:
                    wrong.append(path)
                elif actual is not None:
                    published.append(path)
        for path in present_paths:
            expected_digest = find_artifact_digest(path)
            if expected_digest is not None and digest(os.path.join(self._root, path)) not in (expected_digest, None):
                wrong.append(path)
        return frozenset([*published, *filter(_LIST_FILE.match, present_paths)]), wrong

    def sort_key(self, path: str) -> Tuple[int, str]:
        """Return a sort key for replacing files: content, then the scripts that refer to content, then the list."""
        if path.startswith(SIGNED):
            return (4 if path == SIGNED + TIMESTAMP else 3), path
        if _CONTENT.match(path) is not None:
            return 0, path
        return (2 if path in self._shared else 1), path


def find_artifact_digest(path: str) -> Optional[str]:
    """Return the sha256 in an artifact's path, or None for any other path below boot/."""
    found = _ARTIFACT.match(path)
    return found.group(1) if found is not None else None


def iterate_paths(root: str) -> Iterator[str]:
    """Yield the paths of all files and symlinks below a mirror's folder, sorted by folder. Omit staged files."""
    for folder, folders, names in os.walk(root):
        names += [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = sorted(name for name in folders if name not in names and (folder != root or name != STAGING))
        for name in sorted(names):
            yield os.path.join(folder, name)[len(root) + 1 :]


# The folder of the mirror


class Mirror:
    """The folder that a web server serves, with its staging folder."""

    def __init__(
        self,
        folder: str,
        state: State,
        digests: DigestCache,
        clock: Callable[[], datetime],
        kept_patterns: Sequence[str],
    ) -> None:
        self._folder = folder
        self.staging = os.path.join(folder, STAGING)
        self._state = state
        self._digests = digests
        self._clock = clock
        self._kept_patterns = (*KEPT, *kept_patterns)
        folder_stat = os.stat(folder)
        self._folder_mode = folder_stat.st_mode & 0o777
        self._file_mode = folder_stat.st_mode & 0o666
        self._group = folder_stat.st_gid

    # Windows that end

    def end_windows(self) -> None:
        """Replace the files of all maintenance windows that have ended. Raises OSError."""
        now = self._state.now(self._clock())
        failures = []
        for path, ending in sorted(self._state.endings.items()):
            if ending.since <= now:
                try:
                    self._end_window(path, ending)
                except OSError as error:  # the other windows must still end
                    failures.append(error)
        if failures:
            raise failures[0]

    def _end_window(self, path: str, ending: Ending) -> None:
        self._make_folders(path)
        full_path = os.path.join(self._folder, path)
        if os.path.isdir(full_path) and not os.path.islink(full_path):
            shutil.rmtree(full_path)
        if ending.text is None:
            if os.path.lexists(full_path):
                os.unlink(full_path)
            return
        content = ending.text.encode("utf-8")
        if self._digests.digest(full_path) != hashlib.sha256(content).hexdigest():
            _write(full_path, content, self._file_mode, ending.since.timestamp())
            self._set_group(full_path)

    def _make_folders(self, path: str) -> None:
        """Create the parent folders of a path, removing any symlink or file that is in the way."""
        full_path = self._folder
        for name in path.split("/")[:-1]:
            full_path = os.path.join(full_path, name)
            if os.path.islink(full_path) or (os.path.lexists(full_path) and not os.path.isdir(full_path)):
                os.unlink(full_path)
            if not os.path.isdir(full_path):
                os.mkdir(full_path)
                os.chmod(full_path, self._folder_mode)
                self._set_group(full_path)

    def _set_group(self, full_path: str) -> None:
        if os.lstat(full_path).st_gid != self._group:
            os.chown(full_path, -1, self._group)

    # A new tree

    def copy(self, source: str) -> None:
        """Copy the tree to the staging folder with rsync. Raises `CopyError`.

        The method continues to end maintenance windows during the copy.
        """
        os.makedirs(self.staging, mode=_STAGING_MODE, exist_ok=True)
        os.chmod(self.staging, _STAGING_MODE)
        self.discard_staged_file(SIGNED + TIMESTAMP)
        # rsync also sets the permissions of the staging folder itself, at the start of the copy.
        modes = f"--chmod=D{_STAGING_MODE:o},F{self._file_mode:o}"
        options = ["--recursive", "--times", "--perms", modes, "--delete", f"--timeout={_RSYNC_IDLE_S}"]
        command = ["rsync", *options, f"--exclude=/{STAGING}/", source.rstrip("/") + "/", self.staging + "/"]
        try:
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        except OSError as error:
            raise CopyError(f"cannot start rsync: {error.strerror}") from error
        try:
            while True:
                try:
                    _, error_output = process.communicate(timeout=1)
                    break
                except subprocess.TimeoutExpired:
                    self.end_windows()
        except BaseException:
            process.kill()
            process.communicate()
            raise
        if process.returncode != 0:
            lines = error_output.decode("utf-8", "replace").strip().splitlines()
            raise CopyError(
                f"rsync failed with exit code {process.returncode}: {lines[0] if lines else 'no error message'}"
            )

    def discard_staged_file(self, path: str) -> None:
        """Remove a staged file, so that the next copy fetches the file again.

        Otherwise, rsync would skip the file if its size and modification time are unchanged.
        """
        full_path = os.path.join(self.staging, path)
        if os.path.lexists(full_path):
            os.unlink(full_path)

    def load_served_list(self, keys: Sequence[bytes]) -> None:
        """Load the end times of maintenance windows from the list that the mirror serves.

        The program does this if there is no saved state.
        """
        try:
            self._update_state(self.read_tree(self._folder, keys))
        except (CopyError, ListProblem, OSError) as error:
            warn(f"there is no saved state, and {self._folder} does not contain a usable list: {error}")

    def find_foreign_file(self) -> Optional[str]:
        """Return a file that the first copy would delete.

        Return None if there is no such file, or if a tree was copied before.
        """
        if os.path.lexists(os.path.join(self._folder, SIGNED, TIMESTAMP)):
            return None
        return next((path for path in iterate_paths(self._folder) if not self._matches_kept_pattern(path)), None)

    def read_tree(self, root: str, keys: Sequence[bytes]) -> Tree:
        """Read the tree in a folder, and verify its list. Raises `ListProblem`."""

        def fetch(name: str, max_bytes: int) -> Optional[bytes]:
            try:
                with open(os.path.join(root, SIGNED, name), "rb") as file:
                    return file.read(max_bytes + 1)
            except (FileNotFoundError, NotADirectoryError):
                return None

        signed = read_list(fetch, keys, self._state.accepted)
        listings = []
        for name, target in sorted(signed.targets.items()):
            data = fetch(name, MAX_TARGETS_BYTES)
            if data is None:
                raise ListProblem(MISSING, name, "the file does not exist")
            listings.append(parse_listing(name, data, target))
        return Tree(root, signed, listings)

    def _update_state(self, tree: Tree) -> None:
        """Store a list and the end times of its windows in the state.

        The method sets the saved latest time back only if that time is not before the expiry of a newer list. A
        publisher renews its list long before the expiry. Therefore, in that case, either the clock of this host was
        ahead, or the copy took so long that the list is old. The saved time never moves back to before the end of a
        past window, so that the window stays closed. The method keeps future end times until `replace` has replaced the
        files.
        """
        state, signed = self._state, tree.signed_list
        future_ends = {path: ending for path, ending in state.endings.items() if ending.since > state.latest_time}
        past_ends = [ending.since for path, ending in state.endings.items() if path not in future_ends]
        is_newer = state.accepted is None or signed.accepted != state.accepted
        was_clock_ahead = is_newer and signed.expires <= state.latest_time
        state.latest_time = max([signed.made, *past_ends] if was_clock_ahead else [signed.made, state.latest_time])
        state.accepted, state.published_at = signed.accepted, signed.made
        state.endings = {**future_ends, **tree.endings}

    def replace(self, tree: Tree) -> None:
        """Replace the served files with those of a verified tree, and remove all other files.

        The order is: content, boot scripts, scripts for all machines, signed list. If staged files do not match their
        digests, the method discards these files, so that the next copy fetches them again, and raises `CopyError`.
        """
        files, wrong = tree.find_files(self._digests.digest, self._state.now(self._clock()))
        if wrong:
            for path in wrong:
                self.discard_staged_file(path)
            more = f" ({len(wrong) - 1} more differ)" if len(wrong) > 1 else ""
            raise CopyError(f"{wrong[0]} does not match its digest in the list or in its path{more}")
        self._update_state(tree)
        self._state.save()
        now = self._state.now(self._clock())
        ended = {path for path, ending in tree.endings.items() if ending.since <= now}
        kept = [path for path in iterate_paths(self.staging) if self._is_served_unlisted(path) and path not in files]
        folders: Set[str] = set()
        for path in [*kept, *sorted(files, key=tree.sort_key)]:
            if path not in ended:
                self._link(path, folders)
        self._state.endings = tree.endings
        self.end_windows()
        self._remove_other_files({*files, *kept, *ended})
        self._state.save()
        self._digests.save()

    def _remove_other_files(self, present: Set[str]) -> None:
        """Remove the files that are not in ``present`` and match no pattern, and empty folders."""
        for path in list(iterate_paths(self._folder)):
            if path not in present and not self._matches_kept_pattern(path):
                os.unlink(os.path.join(self._folder, path))
        for folder, _, _ in os.walk(self._folder, topdown=False):
            is_staged = (folder + os.sep).startswith(self.staging + os.sep)
            if folder != self._folder and not is_staged and not os.listdir(folder):
                os.rmdir(folder)

    def _is_served_unlisted(self, path: str) -> bool:
        """Return whether the mirror serves a staged file at this path even if the list does not name the file."""
        return _CONTENT.match(path) is not None or self._matches_kept_pattern(path)

    def _matches_kept_pattern(self, path: str) -> bool:
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in self._kept_patterns)

    def _link(self, path: str, folders: Set[str]) -> None:
        """Hard-link a staged file into the served folder, or copy the file if it cannot be linked.

        ``folders`` contains the folders that are known to exist. The method adds the file's folder to this set. The
        method needs only two system calls for an unchanged file.
        """
        source, full_path = os.path.join(self.staging, path), os.path.join(self._folder, path)
        folder = os.path.dirname(path)
        if folder not in folders:
            self._make_folders(path)
            folders.add(folder)
        wanted = os.lstat(source)
        served: Optional[os.stat_result] = None
        with suppress(FileNotFoundError):
            served = os.lstat(full_path)
        if wanted.st_gid != self._group:
            os.chown(source, -1, self._group)
        if served is not None and stat.S_ISDIR(served.st_mode):
            shutil.rmtree(full_path)
        elif served is not None:
            if os.path.samestat(served, wanted):
                return
            is_same = (served.st_size, int(served.st_mtime)) == (wanted.st_size, int(wanted.st_mtime))
            if is_same and self._digests.digest(full_path) == self._digests.digest(source):
                return
        temporary = _prepare_temporary_path(full_path)
        try:
            os.link(source, temporary, follow_symlinks=False)
        except OSError as error:
            if error.errno not in _NO_LINK_ERRORS:
                raise
            with open(source, "rb") as file:
                _write(full_path, file.read(), self._file_mode, wanted.st_mtime)
            self._set_group(full_path)
            return
        os.replace(temporary, full_path)
        if os.path.lexists(temporary):  # rename(2) does nothing if both paths are hard links to one file
            os.unlink(temporary)


# One run


def main(
    arguments: Optional[Sequence[str]] = None, clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc)
) -> int:
    """Run the program once.

    Return 0 on success, or 1 if no tree could be copied and verified. In both cases, the program replaces the files of
    maintenance windows that have ended.
    """
    options = _parse_arguments(arguments)
    try:
        with open(options.state + ".lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            state = State(options.state)
            mirror = Mirror(options.to, state, DigestCache(options.state + ".digests"), clock, options.keep)
            try:
                keys = _read_keys(options.key)
            except (OSError, ValueError):  # an earlier run verified the saved ends of windows
                _end_windows(mirror, state)
                raise
            state.trust(keys)
            return _run_update(mirror, state, options.source, keys)
    except BlockingIOError:
        warn(f"another process uses {options.state}")
    except (OSError, ValueError) as error:
        warn(str(error))
    return 1


def _parse_arguments(arguments: Optional[Sequence[str]]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gitboot-mirror",
        description="Copy a published tree to a mirror, verify its signed list, and end maintenance windows on time.",
    )
    parser.add_argument("--from", dest="source", required=True, help="OUTPUT/boot: a folder, HOST:PATH, or rsync://…")
    parser.add_argument("--to", required=True, metavar="DIR", help="the folder that the web server serves")
    parser.add_argument("--key", required=True, action="append", help="a file with the public key of the list's root")
    parser.add_argument("--state", required=True, metavar="FILE", help="the file for the saved state, outside DIR")
    parser.add_argument(
        "--keep", default=[], action="append", metavar="PATTERN", help="files that no list names, besides assets/*"
    )
    options = parser.parse_args(arguments)
    options.to = os.path.abspath(options.to)
    places = [("--state", options.state), *(("--key", name) for name in options.key), ("this program", __file__)]
    for label, path in places:
        if os.path.realpath(path).startswith(os.path.realpath(options.to) + os.sep):
            parser.error(
                f"{label}: choose a file outside DIR, because the program replaces the files in DIR, and a web server "
                "serves them"
            )
    return options


def _read_keys(names: Iterable[str]) -> List[bytes]:
    keys: List[bytes] = []
    for name in names:
        with open(name) as file:
            try:
                keys += parse_keys(file.read())
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
    return keys


def _end_windows(mirror: Mirror, state: State) -> None:
    """Replace the files of windows that have ended, and save the state even after an error. Raises OSError."""
    try:
        mirror.end_windows()
    finally:
        state.save()


def _run_update(mirror: Mirror, state: State, source: str, keys: Sequence[bytes]) -> int:
    if state.published_at is None:
        mirror.load_served_list(keys)
        foreign = mirror.find_foreign_file()
        if foreign is not None:
            warn(f"--to: the folder contains {foreign}, but no tree was copied there before (choose an empty folder)")
            return 1
    _end_windows(mirror, state)
    try:
        run(mirror, source, keys)
    except (CopyError, ListProblem, OSError) as error:
        _end_windows(mirror, state)
        warn(f"the tree was not copied: {error} (the mirror keeps its files, and still ends maintenance windows)")
        return 1
    if state.published_at is not None and state.latest_time - state.published_at > timedelta(days=1):
        warn(f"the list is from {_format_time(state.published_at)}, so the publisher is down or unreachable")
    return 0


def run(mirror: Mirror, source: str, keys: Sequence[bytes]) -> None:
    """Copy, verify and serve the tree at ``source``. Raises `CopyError`, `ListProblem` and OSError."""
    for tries_left in reversed(range(_LIST_TRIES)):
        mirror.copy(source)
        try:
            mirror.replace(mirror.read_tree(mirror.staging, keys))
            return
        except (CopyError, ListProblem) as error:
            if isinstance(error, ListProblem):
                mirror.discard_staged_file(error.path)
            if not tries_left or (isinstance(error, ListProblem) and error.fault in (UNSIGNED, OLDER)):
                raise


# Files and messages


def _read_json(path: str) -> Any:
    with open(path, "rb") as file:
        return json.loads(file.read().decode("utf-8"))


def _write(path: str, content: bytes, mode: int, mtime_s: Optional[float] = None) -> None:
    """Write a file atomically: sync its content to disk, and then rename it into place."""
    temporary = _prepare_temporary_path(path)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fchmod(file.fileno(), mode)
        if mtime_s is not None:
            os.utime(file.fileno(), (mtime_s, mtime_s))
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _prepare_temporary_path(path: str) -> str:
    """Return the path of the temporary file for the next version of a file, and remove any leftover file there."""
    folder, name = os.path.split(path)
    temporary = os.path.join(folder, f".{name}.gitboot")
    if os.path.lexists(temporary):
        os.unlink(temporary)
    return temporary


def warn(message: str) -> None:
    sys.stderr.write(f"gitboot-mirror: {message}\n")


if __name__ == "__main__":
    sys.exit(main())
