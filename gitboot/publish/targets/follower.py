"""Target follower: parse the address of a target, and keep the target up to date in a thread."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from msgspec import Struct, structs

from gitboot.background_threads import BackgroundThread
from gitboot.errors import LockedByAnother, OperatorError, TemporaryError, UsageError
from gitboot.files import find_path_fault
from gitboot.publish.targets.followed_tree import FollowedTree, RaceError, TreeSummary
from gitboot.publish.targets.sync_steps import Shard, TargetContent, TargetHead, TargetStep, apply_step, plan_next_step
from gitboot.status.instance_status import TargetStatus
from gitboot.text import redact_url

_FIRST_RETRY_S: Final = 5.0
_LONGEST_RETRY_S: Final = 300.0
_SOON_S: Final = 0.5  # the first pause before gitboot repeats an interrupted read
# After this number of interrupted reads, the cause is probably not a publication. Their pauses add up to 4 minutes.
_MAX_RACES: Final = 10
# The time between two reads of the target. A former writer that was paused may have written to the target.
_PERIOD_S: Final = 600.0


class TargetStore(Protocol):
    """A target that a follower updates. Methods may raise TemporaryError or OperatorError."""

    @property
    def max_servers(self) -> int | None:
        """Return the maximum number of servers in one step, or None if a step always contains all servers."""

    def load(self) -> TargetContent:
        """Return the target's content, even after an interrupted change."""

    def shard(self, head: TargetHead, number: str) -> Shard:
        """Return the shard with this number, or an empty shard if the head does not list it."""

    def apply(self, step: TargetStep, content: TargetContent, tree: FollowedTree) -> None:
        """Write a step to the target.

        After a failure, the follower calls `load` to read the actual content of the target, and plans the next step
        from this content.
        """


class Follower:
    """Updates one target in a thread. `publish` never waits for the target.

    The follower starts after the first publication, because the output tree may be an outdated copy until then.
    """

    def __init__(
        self,
        target: TargetStore,
        tree: FollowedTree,
        *,
        target_status: TargetStatus,
        clock: Callable[[], datetime],
        wake: Callable[[], None],
        first_retry_s: float = _FIRST_RETRY_S,
    ) -> None:
        self._target = target
        self._tree = tree
        self._clock = clock
        self._wake = wake
        self._first_retry_s = first_retry_s
        self._target_status = target_status
        self._changed = threading.Condition()
        self._published_count = 0  # the number of publications
        # The time since which the target may serve a maintenance window that ended while no instance ran. None: there
        # is no such window.
        self._possibly_overdue_since: datetime | None = None
        self._is_ending = False
        self._retries_now = False  # whether the next attempt starts now, even after a failure
        self._race_count = 0  # the number of consecutive interrupted reads
        self._is_taken_over = False  # whether another process took over the target
        self._target_content: TargetContent | None = None  # None: the follower must read the content from the target
        self._next_read_s = 0.0  # the monotonic time at which the follower reads the content again
        self._thread = BackgroundThread(self._run, name=f"target {target_status.name}", on_death=self._report_death)

    @property
    def target_status(self) -> TargetStatus:
        return self._target_status

    def start(self) -> None:
        self._thread.start()

    def prioritize(self, servers: frozenset[str]) -> None:
        """Let the next steps update these servers before other servers, because their transitions are due."""
        with self._changed:
            is_current = self._target_status.behind_since is None
            self._tree.urgent_servers = servers if is_current else self._tree.urgent_servers | servers

    def end_windows(self, servers: frozenset[str], at: datetime) -> None:
        """Start to copy the files of servers whose windows ended in the output tree without a publication."""
        self.prioritize(servers)
        self.publish_transition(at, {**self._tree.ended_servers, **dict.fromkeys(servers, self._published_count)})

    def publish(self, ended_servers: Mapping[str, int] = MappingProxyType({})) -> None:
        """Start to update the target to the latest publication.

        ``ended_servers`` is the new value of `FollowedTree.ended_servers`.
        """
        with self._changed:
            self._tree.ended_servers = ended_servers
            if self._published_count == 0:
                self._possibly_overdue_since = self._clock()
            self._published_count += 1
            if self._target_status.behind_since is None:
                self._target_status = structs.replace(self._target_status, behind_since=self._clock())
            self._changed.notify_all()

    def publish_transition(self, at: datetime, ended_servers: Mapping[str, int] = MappingProxyType({})) -> None:
        """Start to update the target after gitboot published the transition at ``at``.

        The next attempt starts now, even if earlier attempts failed.
        """
        with self._changed:
            if self._target_status.overdue_since is None:
                self._target_status = structs.replace(self._target_status, overdue_since=at)
        self.publish(ended_servers)
        self.retry_now()

    def retry_now(self) -> None:
        """Start the next attempt now, and reset the pauses after failures.

        This has no effect on a target that another process took over.
        """
        with self._changed:
            self._retries_now = True
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> bool:
        """Wait until the target is up to date, or until the timeout. Return whether the target is up to date."""
        with self._changed:
            return self._changed.wait_for(lambda: self._target_status.behind_since is None, timeout_s)

    def end(self) -> None:
        """Stop the follower after its current request. If the request hangs, the request ends when the process ends."""
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        self._thread.join(timeout_s=1)

    def _run(self) -> None:
        failures = 0
        with self._changed:
            self._changed.wait_for(lambda: self._is_ending or self._published_count > 0)
        while not self._is_ending:
            published, self._retries_now = self._published_count, False
            wait_s, failures = self._try_once(published, failures)
            with self._changed:
                # After a failure, new publications do not shorten the wait.
                self._changed.wait_for(
                    lambda: (
                        self._is_ending
                        or (self._retries_now and not self._is_taken_over)
                        or (failures == 0 and self._published_count != published)  # noqa: B023 - called in this iteration
                    ),
                    wait_s,
                )
                failures = 0 if self._retries_now else failures

    def _report_death(self, message: str) -> None:
        self._target_content = None
        self._update_status(failure=("ThreadDied", f"{self._target_status.name}: {message}"))

    def _try_once(self, published_count: int, failures: int) -> tuple[float, int]:
        """Try to update the target.

        Return the number of seconds until the next attempt, and the number of consecutive failures.
        """
        try:
            summary = self._update_target()
        except RaceError as error:
            self._race_count += 1
            if self._race_count >= _MAX_RACES:
                hint = "If Published is true and another program changed the file, delete it and restart gitboot run"
                self._update_status(failure=("FileChanged", f"{self._target_status.name}: {error}. {hint}"))
            # The next publication shortens this wait.
            return min(_SOON_S * 2 ** (min(self._race_count, _MAX_RACES) - 1), _LONGEST_RETRY_S), 0
        except (TemporaryError, OperatorError) as error:
            self._target_content = None
            self._update_status(failure=(type(error).__name__, str(error)))
            if isinstance(error, LockedByAnother):  # another attempt would take the target back from the other process
                self._is_taken_over = True
                return threading.TIMEOUT_MAX, failures + 1
            return min(self._first_retry_s * 2 ** min(failures, 10), _LONGEST_RETRY_S), failures + 1
        self._race_count = 0
        self._update_status(commit=summary.commit if summary is not None else None, published_count=published_count)
        return max(self._next_read_s - time.monotonic(), 0) if summary is not None else _PERIOD_S, 0

    def _update_target(self) -> TreeSummary | None:
        """Carry out all steps, and return the summary of the tree.

        If the files of a server cannot be read, first update the other servers. Then raise `RaceError`.
        """
        race_error: RaceError | None = None
        self._tree.unreadable_states.clear()
        summary = self._tree.read_summary()
        while summary is not None and not self._is_ending:
            if self._target_content is None or time.monotonic() >= self._next_read_s:
                self._target_content = self._target.load()
                self._next_read_s = time.monotonic() + _PERIOD_S
                if not self._target_content.servers:  # a target without servers cannot serve an ended window
                    with self._changed:
                        self._possibly_overdue_since = None
                        self._target_status = structs.replace(self._target_status, overdue_since=None)
            known = dict(self._tree.unreadable_states)
            try:
                if not self._carry_out_next_step(summary, self._target_content):
                    break
            except RaceError as error:
                if self._tree.unreadable_states == known:
                    raise
                race_error = error
            summary = self._tree.read_summary()
        if race_error is not None:
            raise race_error
        return summary

    def _carry_out_next_step(self, summary: TreeSummary, target_content: TargetContent) -> bool:
        """Carry out one step. Return False if there is no step."""
        read_shard = partial(self._target.shard, target_content.head)
        step = plan_next_step(self._tree, summary, target_content, read_shard, self._target.max_servers)
        if step is None:
            return False
        self._target_content = None  # if `apply` fails, the next attempt reads the target again
        try:
            self._target.apply(step, target_content, self._tree)
        except RaceError:
            units = {server: unit for server, unit in step.units.items() if unit is not None}
            placed = {
                server: {path: digest for path, digest in unit.files.items() if path in step.placed}
                for server, unit in units.items()
            }
            self._tree.record_unreadable_servers(placed, summary.states)
            raise
        self._target_content = apply_step(target_content, step)
        self._race_count = 0
        return True

    def _update_status(
        self, *, failure: tuple[str, str] | None = None, commit: str | None = None, published_count: int | None = None
    ) -> None:
        with self._changed:
            before = self._target_status
            now = structs.replace(before, failure=failure, commit=commit or before.commit)
            if failure is not None:
                now = structs.replace(now, overdue_since=before.overdue_since or self._possibly_overdue_since)
            if self._target_content is not None:
                now = structs.replace(now, withheld=len(self._target_content.withheld))
            if published_count is not None and published_count == self._published_count and not self._is_ending:
                now = structs.replace(now, behind_since=None, overdue_since=None)
                self._possibly_overdue_since = None
            self._target_status = now
            self._changed.notify_all()
        if now != before:
            self._wake()


class Followers:
    """The followers of all targets of an instance."""

    def __init__(self, followers: Sequence[Follower] = ()) -> None:
        self._followers = tuple(followers)

    @property
    def target_status(self) -> tuple[TargetStatus, ...]:
        return tuple(follower.target_status for follower in self._followers)

    def publish(self) -> None:
        for follower in self._followers:
            follower.publish()

    def publish_transition(self, at: datetime) -> None:
        for follower in self._followers:
            follower.publish_transition(at)

    def prioritize(self, servers: frozenset[str]) -> None:
        for follower in self._followers:
            follower.prioritize(servers)

    def end_windows(self, servers: frozenset[str], at: datetime) -> None:
        for follower in self._followers:
            follower.end_windows(servers, at)

    def retry_now(self) -> None:
        for follower in self._followers:
            follower.retry_now()

    def wait(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        for follower in self._followers:
            follower.wait(max(until - time.monotonic(), 0))

    @contextmanager
    def running(self) -> Iterator[Followers]:
        """Run the followers until the block ends."""
        for follower in self._followers:
            follower.start()
        try:
            yield self
        finally:
            for follower in self._followers:
                follower.end()


# Addresses of targets


_GIT: Final = "git+"
_SETTINGS: Final = {  # by the kind of target
    _GIT: {"ca-bundle", "credentials", "known-hosts", "serves", "ssh-key"},
    "file": {"serves"},
    "rsync": {"credentials", "serves"},
    "s3": {"ca-bundle", "credentials", "endpoint", "region", "serves", "style"},
    "ssh": {"known-hosts", "serves", "ssh-key"},
}
# the settings whose values are files or folders
_PATH_SETTINGS: Final = ("ca-bundle", "credentials", "known-hosts", "ssh-key")

# a function that reads the credentials in a folder: a user and a password, or a key's ID and secret
ReadCredentials = Callable[[Path], tuple[str, str]]


class _Address(Struct, frozen=True, kw_only=True):
    """The settings in the URL of a target. Each kind of target uses only some of them."""

    # a directory with files username and password; for a bucket, they contain a key's ID and secret
    credentials: Path | None = None
    ssh_key: Path | None = None
    known_hosts: Path | None = None
    ca_bundle: Path | None = None
    base_url: str | None = None  # the base URL under which machines fetch from the target; None: unknown


class BranchAddress(_Address, frozen=True, kw_only=True):
    """A branch of a Git repository."""

    url: str
    branch: str

    @property
    def name(self) -> str:
        return f"{_GIT}{self.url}#{self.branch}"

    @property
    def ref(self) -> str:
        return f"refs/heads/{self.branch}"


class BucketAddress(_Address, frozen=True, kw_only=True):
    """A bucket of an S3-compatible store, and a prefix in the bucket.

    Without credentials, gitboot uses the key in the environment.
    """

    bucket: str
    prefix: str = ""  # without enclosing slashes
    endpoint: str | None = None  # None: the endpoint of AWS for the region
    region: str = "us-east-1"
    path_style: bool = False  # whether the bucket is in the path of URLs instead of the host name

    @property
    def name(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


class FolderAddress(_Address, frozen=True, kw_only=True):
    """A folder on this host."""

    folder: Path  # absolute

    @property
    def name(self) -> str:
        return str(self.folder)


class RsyncAddress(_Address, frozen=True, kw_only=True):
    """A folder on another host, which rsync reaches through ssh or an rsync daemon."""

    host: str
    path: str  # absolute, without a trailing slash; for a daemon, the module and a folder in it
    user: str | None = None
    port: int | None = None  # None: use the default port of the protocol
    is_daemon: bool = False  # True for rsync:// URLs, False for ssh:// URLs

    @property
    def destination(self) -> str:
        """The user and the host in the URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}" if self.user else host

    @property
    def name(self) -> str:
        port = f":{self.port}" if self.port is not None else ""
        return f"{'rsync' if self.is_daemon else 'ssh'}://{self.destination}{port}{self.path}"


TargetAddress = BranchAddress | BucketAddress | FolderAddress | RsyncAddress


def parse_target(text: str) -> TargetAddress:
    """Parse the URL of a target, such as ``/DIR``, ``git+https://HOST/PATH#BRANCH`` or ``s3://BUCKET/PREFIX``.

    The query of the URL contains settings. Raises `UsageError` if the URL is invalid, or if it contains credentials,
    because gitboot shows and logs the URL.
    """
    try:
        parts = urlsplit(text)
        _ = parts.port
        settings = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:  # the text of this error may contain a part of a password
        raise UsageError(f"--target {redact_url(text)}: the host, the port or a setting is not valid") from None
    is_folder = parts.scheme == "file" or (not parts.scheme and not parts.netloc and text.startswith("/"))
    if is_folder and not parts.netloc:
        display_url = parts.path
    else:
        display_url = redact_url(f"{parts.scheme}://{parts.netloc}{parts.path}")
    kind = "file" if is_folder else _GIT if parts.scheme.startswith(_GIT) else parts.scheme
    _check_settings(display_url, kind, parts, settings)
    paths = {name.replace("-", "_"): Path(settings[name]) for name in _PATH_SETTINGS if name in settings}
    for path in paths.values():
        _check_path(display_url, path)
    base_url = settings["serves"].rstrip("/") if "serves" in settings else None
    if kind == "file":
        return _parse_folder_address(display_url, parts, base_url)
    if kind == _GIT:
        return _parse_branch_address(display_url, text, paths, base_url)
    if kind in ("rsync", "ssh"):
        return _parse_rsync_address(display_url, parts, paths, base_url)
    return _parse_bucket_address(display_url, parts, settings, paths, base_url)


def _check_settings(display_url: str, kind: str, parts: SplitResult, settings: Mapping[str, str]) -> None:
    """Raise `UsageError` if there is no such kind of target or setting, or if the URL contains credentials."""
    if kind not in _SETTINGS:
        raise UsageError(
            f"--target {display_url}: expected a folder /DIR, ssh://USER@HOST/DIR, rsync://HOST/MODULE, "
            "git+https://…#BRANCH, git+ssh://…#BRANCH or s3://BUCKET/PREFIX"
        )
    if parts.password is not None or (parts.username is not None and parts.scheme not in ("git+ssh", "ssh")):
        raise UsageError(
            f"--target {display_url}: remove the credentials from the URL; pass their directory with "
            "?credentials=DIR instead"
        )
    unknown = sorted(settings.keys() - _SETTINGS[kind])
    if unknown:
        known = ", ".join(sorted(_SETTINGS[kind]))
        raise UsageError(f"--target {display_url}: there is no setting {unknown[0]!r}; the settings are {known}")


def _parse_folder_address(display_url: str, parts: SplitResult, base_url: str | None) -> FolderAddress:
    if parts.netloc or parts.fragment or not parts.path.startswith("/"):
        raise UsageError(f"--target {display_url}: expected the absolute path of a folder")
    folder = Path(unquote(parts.path) if parts.scheme else parts.path)
    _check_path(display_url, folder)
    return FolderAddress(folder=folder, base_url=base_url)


def _check_path(display_url: str, path: Path) -> None:
    """Raise `UsageError` if the system can never open a path in the URL of a target."""
    fault = find_path_fault(path)
    if fault is not None:
        raise UsageError(f"--target {display_url:.60}: {fault}")


def _parse_branch_address(
    display_url: str, text: str, paths: Mapping[str, Path], base_url: str | None
) -> BranchAddress:
    address, _, fragment = text.partition("#")
    branch = unquote(fragment).removeprefix("refs/heads/")
    if not branch or branch.startswith("refs/"):
        raise UsageError(f"--target {display_url}: add a branch that gitboot may overwrite: …#BRANCH")
    return BranchAddress(url=address.partition("?")[0].removeprefix(_GIT), branch=branch, base_url=base_url, **paths)


def _parse_rsync_address(
    display_url: str, parts: SplitResult, paths: Mapping[str, Path], base_url: str | None
) -> RsyncAddress:
    is_daemon = parts.scheme == "rsync"
    host, path, user = parts.hostname or "", unquote(parts.path).rstrip("/"), parts.username
    # the host and the user must not begin like an option of ssh
    if (
        re.fullmatch(r"[0-9A-Za-z_\[:][0-9A-Za-z_.:%-]*", host) is None
        or (user is not None and re.fullmatch(r"[0-9A-Za-z_][0-9A-Za-z_.-]*", user) is None)
        or parts.fragment
        or {"", ".", ".."}.intersection(path.split("/")[1:] or [""])
    ):
        raise UsageError(
            f"--target {display_url}: expected the URL of a folder, such as "
            f"{'rsync://HOST/MODULE' if is_daemon else 'ssh://USER@HOST/DIR'}"
        )
    if not is_daemon and not paths.keys() >= {"ssh_key", "known_hosts"}:
        raise UsageError(
            f"--target {display_url}: add the private key and the known-hosts file: ?ssh-key=…&known-hosts=…"
        )
    return RsyncAddress(
        host=host, path=path, user=user, port=parts.port, is_daemon=is_daemon, base_url=base_url, **paths
    )


def _parse_bucket_address(
    display_url: str, parts: SplitResult, settings: Mapping[str, str], paths: Mapping[str, Path], base_url: str | None
) -> BucketAddress:
    endpoint, style = settings.get("endpoint"), settings.get("style")
    prefix = unquote(parts.path).strip("/")
    if not parts.netloc or {"", ".", ".."}.intersection(prefix.split("/") if prefix else ()):
        raise UsageError(f"--target {display_url}: expected s3://BUCKET/PREFIX")
    if style not in (None, "path", "virtual"):
        raise UsageError(f"--target {display_url}: expected style=path or style=virtual, found {style!r}")
    if endpoint is not None and (urlsplit(endpoint).scheme not in ("http", "https") or "@" in endpoint):
        raise UsageError(f"--target {display_url}: expected endpoint=https://HOST without credentials")
    return BucketAddress(
        bucket=parts.netloc,
        prefix=prefix,
        endpoint=endpoint,
        region=settings.get("region", "us-east-1"),
        path_style=style == "path" or (style is None and endpoint is not None),
        base_url=base_url,
        **paths,
    )
