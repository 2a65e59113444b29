"""Standby: waits for the lease of a shared ledger, and prepares the output tree meanwhile."""

from __future__ import annotations

import math
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from msgspec import Struct, structs

from gitboot.background_threads import BackgroundThread
from gitboot.child_processes import spawn
from gitboot.controller.checkpoint import MIN_SERVERS, Checkpoint
from gitboot.controller.current_plans import WindowWatch, find_changed_servers, find_stop_scope, replan
from gitboot.controller.instance import state_directory
from gitboot.controller.instance.assembly import find_ledger
from gitboot.controller.instance.git_source import build_source, check_repository
from gitboot.controller.instance.settings import CheckAssets, Settings
from gitboot.controller.instance_state import AcceptanceState, InstanceState, can_plan
from gitboot.controller.publication import DatedPath, publish_plans
from gitboot.controller.records.install_boots import list_offers
from gitboot.controller.records.ledger_changes import Batch, apply_batch
from gitboot.controller.records.ledger_snapshot import choose_output_modes, read_ledger, record_instance_facts
from gitboot.disk_cache import DiskCache, compute_program_digest
from gitboot.errors import GitbootError, LedgerError, LedgerLeft, LedgerUnfinished, NotYetDone, SourceError
from gitboot.evaluator.client import EvaluatorClient
from gitboot.evaluator.protocol import Commit
from gitboot.fleet.revision import Revision
from gitboot.git.clone import Source
from gitboot.git.fetch import FetchProcess
from gitboot.jsonio import build_decoder, format_instant
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.leader_lease import Holder
from gitboot.ledger.open_ledger import copy_ledger, read_lease, read_shared_token_keys
from gitboot.ledger.store import Store, get_mark_path, read_address, read_mark, write_mark
from gitboot.publish.publisher import OutputDirectory, PublicationResult
from gitboot.publish.tree_reader import Inventory
from gitboot.publish.window_ends import WindowEnds, end_windows
from gitboot.render.endpoint_files import ServingTerms
from gitboot.render.page import FileUpdates
from gitboot.render.paths import File, Files, find_token
from gitboot.render.server_files import ServerState
from gitboot.resolve.server_plan import Offer
from gitboot.status.conditions import Condition, Event
from gitboot.status.instance_status import Status

if TYPE_CHECKING:
    from gitboot.ledger.postgresql import LeaseConnection

CHECK_S: Final = 2.0  # interval between checks of the lease
_PREPARE_S: Final = 3600.0  # interval between preparations of the tree
_FIRST_PAUSE_S: Final = 60.0  # pause after a failed preparation; doubled after each further failure
_PREPARED: Final = "this standby's output tree has the state of"
_STANDBY_STARTED: Final = "StandbyStarted"  # the reason if another instance is active
_decode_event: Final = build_decoder(Event)


class EndRequest(Protocol):
    """A request to end the process."""

    def wait(self, timeout_s: float) -> bool:
        """Wait at most ``timeout_s`` seconds for the request. Return whether the request was made."""


class Standby:
    """An instance that waits for the lease of its ledger. A SQLite ledger has no lease, so the instance does not wait.

    If the ledger is unreachable at the start, `wait` raises an error, because the address may be wrong. If the ledger
    becomes unreachable later, the standby keeps waiting.
    """

    def __init__(
        self,
        settings: Settings,
        tell: Callable[[Event], None],
        clock: Callable[[], datetime],
        prepare_command: Sequence[str] = (),  # command that prepares the tree; (): do not prepare it
    ) -> None:
        self._settings = settings
        self._tell = tell
        self._clock = clock
        self._prepare_command = prepare_command
        check_repository(settings)  # before any file is created
        with state_directory.make_private(settings.state):
            self.address = read_address(find_ledger(settings))
        if self.address is not None:
            compute_program_digest()  # read the program now, because an upgrade may replace it on the disk
        self._is_patient = False  # whether to keep waiting if the ledger is unreachable
        # The branch to fetch: the value of --rev, or the active instance's branch.
        self._reference = settings.git.reference
        self._accepted: str | None = None  # the commit that the active instance has accepted last
        self._wake_event = threading.Event()  # set when there may be a new commit to fetch or to evaluate
        self._has_failed = False
        self._last_message = ""
        self._windows = WindowWatch(partial(end_windows, settings.output, WindowEnds()))

    def wait(self, ending: Callable[[], AbstractContextManager[EndRequest]]) -> bool:
        """Wait until no other instance holds the lease. Return False if the process is asked to end first.

        The caller then tries to take the lease. Other standbys may try at the same time. During the wait, gitboot
        fetches, evaluates the commit that the active instance has accepted, and prepares the output tree.
        """
        if self.address is None:
            return True
        from gitboot.ledger.postgresql import LeaseConnection

        with ExitStack() as stack:
            stack.enter_context(state_directory.lock(self._settings.state))
            end = stack.enter_context(ending())
            is_large = stack.enter_context(
                _follow_active(
                    self._settings,
                    self._tell,
                    self._clock,
                    self._wake_event,
                    lambda: (self._reference, self._accepted),
                )
            )
            preparation = _Preparation(self._prepare_command, self._settings.state, self._tell)
            stack.enter_context(closing(preparation))
            connection = stack.enter_context(closing(LeaseConnection(self.address)))
            since = self._clock()
            if self._has_failed:
                end.wait(CHECK_S)
                self._has_failed = False
            while not end.wait(0):
                cause = self._find_wait_reason(connection)
                if cause is None:
                    return True
                reason, message = cause
                wait_s = min(CHECK_S, self._settings.lease_s / 5)
                if preparation.is_running and self._windows.is_due(self._clock()):
                    preparation.interrupt()
                if not preparation.is_running:
                    wait_s = min(wait_s, self._end_windows())
                if reason == _STANDBY_STARTED and is_large():
                    preparation.start_if_due()
                self._report(reason, message, since, preparation.tree_message)
                end.wait(wait_s)
            return False

    def _find_wait_reason(self, connection: LeaseConnection) -> tuple[str, str] | None:
        """Return the reason for waiting and a message, or None if the lease is free.

        Raises `LedgerError` if the ledger was never reachable.
        """
        try:
            other = connection.find_other_holder(Holder.load(self._settings.state))
        except LedgerError as error:
            if not self._is_patient:
                self._end_windows()  # the service manager restarts gitboot until the ledger responds
                raise
            return _classify_error(error), str(error)
        self._is_patient = True
        if other is None:
            return None
        facts = connection.read_followed_facts()
        self._store_progress(facts)
        self._reference = self._settings.git.reference or facts.get("branch") or self._reference
        if (accepted := facts.get("accepted")) not in (None, self._accepted):
            self._accepted = accepted
            self._wake_event.set()
        return _STANDBY_STARTED, f"the instance {other} is active with the ledger {connection.name}"

    def _end_windows(self) -> float:
        """Remove from OUTPUT the boots whose windows have ended. Return the seconds until the next window ends."""
        _, events = self._windows.end_windows(self._clock())
        for event in events:
            self._tell(event)
        next_end = self._windows.next_end
        return math.inf if next_end is None else max((next_end - self._clock()).total_seconds(), 0)

    def _store_progress(self, facts: Mapping[str, str]) -> None:
        """Store the ledger's change number.

        At a take-over, this instance uses the number to detect whether a backup has replaced the ledger.
        """
        path = get_mark_path(self._settings.state / state_directory.LEDGER)
        before = read_mark(path)
        identity = facts.get("identity")
        with suppress(OSError, ValueError):
            changes = int(facts.get("changes", 0))
            if identity is not None and (before is None or (before[0] == identity and before[1] < changes)):
                write_mark(path, identity, changes)

    def report_failure(self, error: LedgerError) -> None:
        """Report that gitboot took the lease but then could not read the ledger.

        The next `wait` begins with a pause.
        """
        self._has_failed = True
        self._report(_classify_error(error), str(error), self._clock())

    def _report(self, reason: str, message: str, since: datetime, tree_message: str = "") -> None:
        """Report a new message as an event, and write a status that includes the state of the tree."""
        at = self._clock()
        if message != self._last_message:
            self._tell(Event(at=at, type=reason, message=message, warning=reason != _STANDBY_STARTED))
            self._last_message = message
        condition = Condition(
            type="Active",
            status=False,
            reason=reason,
            message="; ".join(filter(None, (message, tree_message))),
            last_transition_time=since,
        )
        state_directory.StatusFile(self._settings.state, self._clock).write(
            {**Status(conditions=(condition,)).facts(), "at": format_instant(at)}
        )


def _classify_error(error: LedgerError) -> str:
    return type(error).__name__ if isinstance(error, (LedgerLeft, LedgerUnfinished)) else "LedgerFailed"


class _Preparation:
    """A runner that periodically starts a process to prepare the tree. The process may be killed at any time."""

    def __init__(self, command: Sequence[str], directory: Path, tell: Callable[[Event], None]) -> None:
        self._command = command
        self._directory = directory
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._due_s = time.monotonic()
        self._pause_s = _FIRST_PAUSE_S
        self._last: Event | None = None  # the last reported event
        self.tree_message = ""  # text for the status about the state of the tree

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start_if_due(self) -> None:
        """Report the result of a process that has ended, and start the next process if one is due.

        Call this and `close` from the same thread.
        """
        if self._process is not None and (status := self._process.poll()) is not None:
            self._end(self._process, status)
        if self._command and self._process is None and time.monotonic() >= self._due_s:
            with suppress(OSError):  # if the process cannot be started now, try again at the next check
                self._process = spawn(self._command, stdout=subprocess.PIPE)
                self.tree_message = self.tree_message or "this standby is preparing its output tree"

    def interrupt(self) -> None:
        """Kill the process, so that the standby can write to the tree. `start_if_due` starts the process again."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
            self._due_s = time.monotonic()

    def close(self) -> None:
        """Kill the process, because only the active instance may write to the tree."""
        self.interrupt()
        shutil.rmtree(self._directory / state_directory.PREPARING, ignore_errors=True)

    def _end(self, process: subprocess.Popen[bytes], status: int) -> None:
        """Schedule the next process, and report the event that a process has written to its standard output."""
        self._process = None
        if status == 0:
            self._due_s = time.monotonic() + _PREPARE_S
            self._pause_s = _FIRST_PAUSE_S
        else:
            self._due_s = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, _PREPARE_S)
        output, _ = process.communicate()
        try:
            event: Event = _decode_event(output)
        except msgspec.DecodeError:  # the process was killed, or it wrote an error to standard error
            return
        if status == 0:
            self.tree_message = f"{_PREPARED} {event.facts['asOf']}"
        elif not self.tree_message.startswith(_PREPARED):
            self.tree_message = f"this standby could not prepare its output tree: {event.message}"
        if self._last is None or (event.type, event.message) != (self._last.type, self._last.message):
            self._tell(event)
        self._last = event


@contextmanager
def _follow_active(
    settings: Settings,
    tell: Callable[[Event], None],
    clock: Callable[[], datetime],
    wake_event: threading.Event,
    read_followed: Callable[[], tuple[str | None, str | None]],
) -> Iterator[Callable[[], bool]]:
    """Fetch the active instance's branch and evaluate that instance's accepted commit until the block ends.

    ``read_followed`` returns the branch and the accepted commit. The standby starts fetching when it knows the branch.
    It stores the evaluation results in the cache, which the instance uses after a take-over. Failed work is retried,
    and failures are not reported before a take-over. Yields a function that returns whether the fleet is so large that
    a prepared tree is needed.
    """
    cache = state_directory.open_cache(settings.state, state_directory.make_cache_warner(tell, clock))
    evaluation = EvaluatorClient(settings.state, limits=settings.allowance, site=settings.site, cache=cache)
    evaluation.on_answer = wake_event.set
    with closing(evaluation):
        with closing(FetchProcess(settings.git.fetch_mebibytes)) as fetcher:
            follower = _Follower(settings, evaluation, fetcher, wake_event, read_followed)
            thread = BackgroundThread(follower.run, name="follow")
            thread.start()
            try:
                yield lambda: follower.is_fleet_large
            finally:
                follower.end()
        thread.join()  # the thread's fetch process has ended


class _Follower:
    """Fetches a branch and evaluates the accepted commit, again and again. `run` is called in a thread."""

    def __init__(
        self,
        settings: Settings,
        evaluation: EvaluatorClient,
        fetcher: FetchProcess,
        wake_event: threading.Event,
        read_followed: Callable[[], tuple[str | None, str | None]],
    ) -> None:
        self._settings = settings
        self._evaluation = evaluation
        self._fetcher = fetcher
        self._wake_event = wake_event
        self._read_followed = read_followed
        self._ended = threading.Event()
        self._source: Source | None = None  # None: the branch is unknown, or its clone could not be opened
        self._commit: Commit | None = None  # the last evaluated commit
        # Whether the fleet is so large that a prepared tree is needed. This stays true if the fleet shrinks, so that
        # the standby handles the end of a preparation that has begun.
        self.is_fleet_large = False

    def run(self) -> None:
        """Follow until `end` is called. Errors are ignored, and the work is repeated."""
        while True:
            self._wake_event.clear()
            if self._ended.is_set():  # check after `clear`, which also clears the wake-up at the end
                return
            reference, accepted = self._read_followed()
            if reference is None:
                self._wake_event.wait(CHECK_S)
                continue
            with suppress(GitbootError):  # the Git server may be unreachable
                self._fetch(reference)
            with suppress(GitbootError):
                if accepted is not None:
                    self._evaluate(Revision(accepted))
            if self._commit is not None and len(self._commit.decisions.servers) >= MIN_SERVERS:
                self.is_fleet_large = True
            self._wake_event.wait(self._settings.poll_s)

    def end(self) -> None:
        """End the thread soon."""
        self._ended.set()
        self._wake_event.set()

    def _fetch(self, reference: str) -> None:
        if self._source is None or self._source.reference != reference:
            git = structs.replace(self._settings.git, reference=reference)
            followed = structs.replace(self._settings, git=git)
            self._source = build_source(followed, self._settings.state, self._fetcher)
        self._source.fetch()

    def _evaluate(self, revision: Revision) -> None:
        """Evaluate a commit that is in the clone, and store the results in the cache."""
        if self._source is None or (self._commit is not None and revision == self._commit.revision):
            return
        if not self._source.has(revision):
            return
        evaluated = self._evaluation.evaluate(revision, self._commit)
        if evaluated is not None:
            self._commit = evaluated.commit
            self._evaluation.store_results(revision)


# The tree


class PreparedTree(Struct, frozen=True, kw_only=True):
    """The prepared tree of a standby."""

    commit: Revision
    servers: int
    halted: int  # number of servers that boot from their disks until the standby becomes active
    at: datetime  # time for which the tree was prepared


def prepare(settings: Settings, *, clock: Callable[[], datetime], warn: Callable[[str], None]) -> PreparedTree:
    """Publish the active instance's files to this host's OUTPUT, except for halted servers, and store a checkpoint.

    A take-over is then as fast as a restart. gitboot plans with a copy of the ledger, and does not write to the ledger.
    Because a one-time boot must be in the ledger before its files are published, boots that are not in the ledger are
    not published. Servers with such a boot, and servers with a planned boot that may write to the disk, are halted,
    which means that they boot from their disks.

    This runs in a separate process while the standby holds the lock on STATE. The process may be killed at any time. A
    second call publishes only changes. Raises `NotYetDone` if the ledger is not ready, or if the fleet is small.
    """
    lease = read_lease(settings.state / state_directory.LEDGER)
    if lease is None or not lease.is_current:
        raise NotYetDone("no instance is active")
    if state_directory.is_published_under(settings.output, lease):
        raise NotYetDone(f"the active instance, {lease.place}, already publishes to {settings.output}")
    with ExitStack() as stack:
        copy = settings.state / state_directory.PREPARING
        shutil.rmtree(copy, ignore_errors=True)  # an earlier process may have left this folder behind
        copy.mkdir(mode=0o700)
        stack.callback(shutil.rmtree, copy, ignore_errors=True)
        copy_ledger(settings.state / state_directory.LEDGER, copy / state_directory.LEDGER, in_use=True)
        store = stack.enter_context(Store.open(copy / state_directory.LEDGER))
        facts = instance_tables.read_facts(store)
        if facts.accepted is None or not facts.published or instance_tables.is_behind(store):
            raise NotYetDone("the active instance has not published an output tree from this ledger yet")
        accepted = Revision(facts.accepted)
        lines = read_shared_token_keys(settings.state / state_directory.LEDGER)
        if not lines:
            raise NotYetDone("the ledger has no token keys yet")
        state_directory.write_key_lines(copy, lines)
        at = clock()
        if facts.heartbeat is not None:
            at = max(at, facts.heartbeat.at)
        directory = stack.enter_context(
            OutputDirectory.open(
                settings.output,
                ledger=facts.identity,
                modes=choose_output_modes(store, settings.output, settings.output_group),
            )
        )
        tree = _StandbyTree(directory, store, _find_unused_date(store, at, facts))
        # The standby itself reports problems with the cache.
        cache = stack.enter_context(state_directory.open_cache(settings.state, lambda _: None))
        checkpoint = Checkpoint(cache, tree, None, warn, settings.site)
        record_instance_facts(
            store,
            observes=settings.spool is not None,
            owner=directory.origin.ledger if directory.origin is not None else None,
            output=settings.output,
            spool=settings.spool,
            site=settings.site,
        )
        # Ignore the ledger's results of artifact checks, because they come from the other host.
        checks_artifacts = settings.artifacts.check is not CheckAssets.OFF
        snapshot = structs.replace(read_ledger(store), sightings={} if checks_artifacts else None)
        keys = state_directory.read_or_create_token_keys(copy, at, was_keyless=False)
        state = checkpoint.resume(InstanceState(snapshot=snapshot, keys=keys))
        commit = _evaluate_accepted(settings, accepted, state.plans.commit, cache)
        state = _publish_without_halted(state, commit, tree, at)
        checkpoint.store(state, len(state.plans.servers), at)
    return PreparedTree(commit=accepted, servers=len(state.plans.servers), halted=len(tree.halted), at=at)


def _find_unused_date(store: Store, at: datetime, facts: instance_tables.Facts) -> datetime:
    """Return a modification time that no boot script on any host has now or will have later.

    gitboot identifies a served boot by the file's modification time, which access logs contain. The active instance
    never uses a time before its last heartbeat.
    """
    second = int((facts.heartbeat.at if facts.heartbeat is not None else at).timestamp()) - 1
    while server_tables.has_version_modified_at(store, second):
        second -= 1
    return datetime.fromtimestamp(second, UTC)


def _evaluate_accepted(settings: Settings, revision: Revision, base: Commit | None, cache: DiskCache) -> Commit:
    """Evaluate the accepted commit, and store the results in the cache. Raises `NotYetDone`."""
    evaluation = EvaluatorClient(
        settings.state, limits=settings.allowance, waits_for_answer=True, site=settings.site, cache=cache
    )
    with closing(evaluation):
        try:
            evaluated = evaluation.evaluate(revision, base)
        except SourceError as error:
            raise NotYetDone(
                f"this standby has not fetched the accepted commit {revision[:12]} yet ({error})"
            ) from None
        evaluation.store_results(revision)
        evaluation.wait_until_results_stored()
    assert evaluated is not None  # noqa: S101 - a client that waits always returns a result
    return evaluated.commit


def _publish_without_halted(before: InstanceState, commit: Commit, tree: _StandbyTree, at: datetime) -> InstanceState:
    """Plan all servers, publish the tree, and return the new state. Raises `NotYetDone`."""
    if len(commit.decisions.servers) < MIN_SERVERS:
        raise NotYetDone(f"preparing the output tree does not save time with fewer than {MIN_SERVERS} servers")
    batch = Batch(commit=commit, changed_servers=tuple(commit.decisions.servers))
    current = apply_batch(before.snapshot, batch, at).snapshot
    if current.recorded_commit is None or not current.is_trusted or not can_plan(current, commit):
        raise NotYetDone(
            "the ledger is unverified, or the Fleet refers to a different ledger, so gitboot does not plan boots"
        )
    # Plan with the stored records, because new records are not in the ledger yet.
    snapshot = structs.replace(current, records=before.snapshot.records)
    stop = find_stop_scope(snapshot, commit, snapshot.facts.orders)
    changed = find_changed_servers(before.plans.commit, commit) | commit.select_server_names(before.unplanned)
    plans, replanned_servers = replan(before.plans, commit, snapshot, changed, at, stop, before.keys)
    planned = structs.replace(
        before, snapshot=snapshot, acceptance=AcceptanceState(accepted=commit), plans=plans, unplanned=frozenset()
    )
    terms = ServingTerms(is_prepared=True)
    publication = publish_plans(planned, commit, replanned_servers, tree, tree, at, terms)
    if publication.failure is not None:
        _, message = publication.failure
        raise NotYetDone(message)
    return structs.replace(planned, publication=publication)


class _StandbyTree:
    """The output tree of a standby, in which some servers are halted.

    A server is halted if one of its planned boots may write to the disk, or if a boot is not in the ledger.

    The checkpoint does not contain the states of halted servers, so a standby publishes them when it becomes active.
    """

    def __init__(self, tree: OutputDirectory, store: Store, file_date: datetime) -> None:
        self._tree = tree
        self._store = store
        self._file_date = file_date  # the modification time of all published files
        self.halted = set[str]()  # names of servers

    # Methods for publishing

    def publish(
        self,
        servers: Mapping[str, Files | None],
        shared: Files | None,
        *,
        complete: bool,
        commit: str,
        at: datetime,  # noqa: ARG002 - a boot script on another host may have this modification time
        parts: FileUpdates,
    ) -> PublicationResult:
        """Publish like `OutputDirectory.publish`, but use a modification time that no boot script has."""
        return self._tree.publish(servers, shared, complete=complete, commit=commit, at=self._file_date, parts=parts)

    def predict_mtime(self, path: str, file: File, at: datetime) -> int:  # noqa: ARG002 - see `publish`
        return self._tree.predict_mtime(path, file, self._file_date)

    def has_files(self, files: Files) -> bool:
        return self._tree.has_files(files)

    # Methods for recording offers

    def record_offers(
        self, states: Mapping[str, ServerState], dates: Mapping[str, Sequence[DatedPath]]
    ) -> Collection[str]:
        """Return the servers to halt, without recording any offers."""
        halted = set()
        for name, server in states.items():
            has_offers = all(self._is_recorded(offer) for offer in list_offers(server))
            # A path with a token needs no modification time in the ledger, because the token identifies the boot.
            has_dates = all(
                find_token(dated.path) is not None and server_tables.find_token(self._store, dated.path) == dated.plan
                for dated in dates[name]
            )
            if server.installs_at is not None or not (has_offers and has_dates):
                halted.add(name)
        self.halted |= halted
        return halted

    def _is_recorded(self, offer: Offer) -> bool:
        """Return whether the ledger contains an equal offer, apart from the number."""
        recorded = server_tables.find_offer(self._store, offer.plan)
        return recorded is not None and structs.replace(offer, number=recorded.number) == recorded

    def record_publication(self) -> None:
        """Do nothing, because the active instance records the publication."""

    # Methods for the checkpoint

    def inventory(self) -> Inventory:
        """Return the inventory of the tree. Halted servers have states that never match a state in a checkpoint."""
        inventory = self._tree.inventory()
        return structs.replace(inventory, states={**inventory.states, **dict.fromkeys(self.halted, "")})

    def resume(self, before: Inventory) -> frozenset[str] | None:
        return self._tree.resume(before)
