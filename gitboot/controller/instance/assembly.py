"""Assembly of an instance for a run, a dry run, or a command that only reads its state."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct, field, structs

from gitboot.artifacts.availability import ArtifactWatch, ReadResults, Sighting, ThreadedArtifactWatch
from gitboot.bmc.access_file import is_covered
from gitboot.bmc.override_state import OverrideRecord
from gitboot.bmc.power_steps import PowerRecord
from gitboot.bmc.worker_pool import BmcPool
from gitboot.controller.bmcs.schedule import Schedule
from gitboot.controller.checkpoint import Checkpoint, DamageSearch
from gitboot.controller.commit_acceptance import NO_COMMIT_TRUST, CommitAcceptor, CommitTrust
from gitboot.controller.current_plans import WindowWatch
from gitboot.controller.forge import find_project
from gitboot.controller.instance import state_directory
from gitboot.controller.instance.git_source import (
    KEYS,
    LedgerBranchStore,
    build_commit_trust,
    build_source,
    check_repository,
    open_source,
)
from gitboot.controller.instance.settings import CheckAssets, Clock, Settings, Tell
from gitboot.controller.instance_state import AcceptanceState, InstanceState
from gitboot.controller.maintenance_hooks import HookClient, parse_hook_hosts
from gitboot.controller.operator_requests import REFUSED, BeginWithRecords
from gitboot.controller.publication import FollowedTarget, ListedTarget, build_followers
from gitboot.controller.reconcile import Reconciler
from gitboot.controller.reconcile_inputs import Components, Inbox, UnknownMachineFile, UnrecordedClearings
from gitboot.controller.records.ledger_changes import Batch, apply_batch
from gitboot.controller.records.ledger_snapshot import (
    LedgerSnapshot,
    choose_output_modes,
    read_ledger,
    record_instance_facts,
    write_events,
    write_updates,
)
from gitboot.disk_cache import DiskCache
from gitboot.errors import ArtifactMissing, CorruptClone, DamagedLedger, HostUnreachable, LedgerError, UsageError
from gitboot.evaluator.cache import Cache
from gitboot.evaluator.client import EvaluatorClient
from gitboot.evaluator.protocol import Commit, build_commit
from gitboot.fetchlog.one_time_boots import read_claims
from gitboot.fetchlog.spool import IDENTITY
from gitboot.files import check_fetch_log_folder, check_output_directory, check_state_directory
from gitboot.fleet.documents import FleetRepository
from gitboot.fleet.revision import FileChanges, Revision
from gitboot.git.clone import Source, load_accepted_snapshot
from gitboot.jsonio import encode_canonical, format_instant, parse_json, to_json_value
from gitboot.ledger import instance_tables
from gitboot.ledger.leader_lease import Holder, LeaseKeeper, describe_place
from gitboot.ledger.open_ledger import copy_ledger, open_copy, set_ledger_aside
from gitboot.ledger.postgresql_fetch_log import RecordedFetches
from gitboot.ledger.store import Store, has_address_file, read_address, read_mark, write_address, write_mark
from gitboot.model.scalars import SystemUuid
from gitboot.publish.durable_files import OPEN_MODES
from gitboot.publish.manifest import HISTORY, STATUS, UNKNOWN
from gitboot.publish.publisher import OutputDirectory, PublicationPreview
from gitboot.publish.targets.follower import Followers
from gitboot.publish.tree_reader import StopReader, list_stop_folders, read_tree_records
from gitboot.render.page import render_history
from gitboot.render.paths import ON_PAGE, PAGE_INDEX
from gitboot.render.token_keys import NO_KEYS, TokenKeys
from gitboot.resolve.provisioning_record import Record, find_newer_records
from gitboot.resolve.server_decision import BootFile
from gitboot.status.conditions import Condition, Event
from gitboot.status.instance_status import HeldCommit, Status
from gitboot.status.work_progress import Stage, StageTimes, Work, WorkListener, WorkProgress
from gitboot.system_clock import Uptime, read_uptime

# Raises an error if another instance may be active; called right before each change at a BMC.
Fence = Callable[[], None]
# Stores an action of a BMC task before the task carries it out.
WriteRecord = Callable[[SystemUuid, OverrideRecord | PowerRecord], None]


def ignore(*_: object) -> None:
    """Do nothing. Dry runs and tests use this function as a callback."""


class Dependencies(Struct, frozen=True, kw_only=True):
    """The collaborators that an instance does not create itself. Tests pass fakes."""

    store: Store  # the open ledger
    source: Source
    evaluation: EvaluatorClient
    target: ListedTarget
    clock: Clock
    make_bmcs: MakeBmcs | None = None  # None: tasks contact real BMCs
    dry_run: bool = False  # whether BMC tasks only read
    fence: Fence = ignore
    ending_fence: Fence | None = None  # the fence before changes that only clear overrides; None: use `fence`
    followers: Followers = field(default_factory=Followers)  # the targets that follow ``target``
    published: Revision | None = None  # the commit whose files an earlier process published in the target
    owner: str | None = None  # the ledger that published the files in the target
    records: Mapping[SystemUuid, Record] = field(default_factory=dict)  # the records published in the target
    observes: bool = True  # whether fetches reach the instance
    is_output_open: bool = False  # whether every user of this host may read OUTPUT
    keys: TokenKeys = NO_KEYS  # the keys of published tokens
    trust: CommitTrust = NO_COMMIT_TRUST
    artifacts: ArtifactWatch | None = None  # None: gitboot does not check artifacts
    hooks: HookClient | None = None  # None: gitboot requests no URLs before maintenances
    checkpoint: Checkpoint | None = None  # None: no checkpoint is read or written
    resumes: bool = False  # whether to continue from the checkpoint
    shared_fetches: RecordedFetches | None = None  # the fetch log in a shared ledger
    snapshot: LedgerSnapshot | None = None  # the ledger's content except its facts, if it was already read
    # Receivers of events
    tell: Tell = ignore
    wake: Callable[[], None] = ignore  # called from a BMC task's thread when the task has ended
    report: Callable[[Status, datetime], None] = ignore
    report_stalled: Callable[[Condition], None] = ignore
    uptime: Callable[[], Uptime] = read_uptime
    stage_times: StageTimes = field(default_factory=StageTimes)
    listener: WorkListener = field(default_factory=WorkListener)


MakeBmcs = Callable[[Settings, Dependencies, WriteRecord], BmcPool]


class Instance(Struct, frozen=True, kw_only=True):
    """An instance that is ready to reconcile."""

    reconciler: Reconciler
    inbox: Inbox
    store: Store


def build_bmc_pool(settings: Settings, dependencies: Dependencies, write: WriteRecord) -> BmcPool:
    """Return the pool that runs tasks at real BMCs."""
    return BmcPool(
        credentials=settings.bmc.credentials,
        write=write,
        clock=dependencies.clock,
        dry_run=dependencies.dry_run,
        max_parallel=settings.bmc.parallel,
        max_per_site=settings.bmc.per_site,
        on_finished=dependencies.wake,
        fence=dependencies.fence,
        ending_fence=dependencies.ending_fence,
    )


@contextmanager
def build_instance(settings: Settings, dependencies: Dependencies) -> Iterator[Instance]:
    """Build an instance from its dependencies. At the end of the block, wait for the BMC tasks."""
    store = dependencies.store
    inbox = Inbox(
        store,
        clock=dependencies.clock,
        clearings=UnrecordedClearings(
            None if dependencies.dry_run else settings.state / state_directory.WITHDRAWALS,
            instance_tables.read_facts(store).identity,
        ),
        spool=settings.spool,
        former_spool=settings.state / state_directory.SPOOL,
        shared_fetches=dependencies.shared_fetches,
        mark_file=settings.find_separate_mark(),
        stop_reader=StopReader(*list_stop_folders(settings.output, settings.spool)),
        uptime=dependencies.uptime,
        artifacts=dependencies.artifacts,
        hooks=dependencies.hooks,
    )
    bmcs = (dependencies.make_bmcs or build_bmc_pool)(settings, dependencies, inbox.record)
    initial_state = _build_start_state(settings, dependencies)
    target = FollowedTarget(dependencies.target, dependencies.followers, settings.list_keys)
    components = Components(
        acceptor=CommitAcceptor(
            dependencies.source,
            dependencies.evaluation,
            limits=settings.limits,
            is_covered=partial(is_covered, settings.bmc.credentials),
            published_commit=dependencies.published,
            commit_trust=dependencies.trust,
            checkpoint_commit=initial_state.plans.commit,
        ),
        inbox=inbox,
        store=store,
        target=target,
        windows=WindowWatch(target.end_windows),
        bmcs=bmcs,
        checkpoint=dependencies.checkpoint,
        tell=dependencies.tell,
        report=dependencies.report,
        report_stalled=dependencies.report_stalled,
        stage_times=dependencies.stage_times,
        listener=dependencies.listener,
        clock=dependencies.clock,
    )
    with closing(bmcs):
        yield Instance(reconciler=Reconciler(initial_state, components), inbox=inbox, store=store)


def _build_start_state(settings: Settings, dependencies: Dependencies) -> InstanceState:
    """Return the state from which an instance starts. Mark the ledger as unverified if the output tree is newer."""
    store, records = dependencies.store, dependencies.records
    record_instance_facts(
        store,
        observes=dependencies.observes,
        owner=dependencies.owner,
        output=settings.output,
        spool=settings.spool,
        site=settings.site,
    )
    snapshot = read_ledger(store) if dependencies.snapshot is None else dependencies.snapshot
    snapshot = structs.replace(snapshot, facts=instance_tables.read_facts(store))
    if dependencies.owner == snapshot.facts.identity and find_newer_records(
        records, snapshot.records, lambda uuid: snapshot.overrides.get(uuid, {}).keys()
    ):
        # The ledger is older than the output tree that was published with it.
        instance_tables.mark_unverified(store, "RestoredLedger")
        snapshot = structs.replace(snapshot, facts=instance_tables.read_facts(store))
    if not snapshot.is_trusted:
        snapshot = structs.replace(snapshot, published_records=records)
    initial_state = InstanceState(
        snapshot=snapshot,
        keys=dependencies.keys,
        acceptance=AcceptanceState(orders=snapshot.facts.orders, withheld=snapshot.facts.withheld),
        schedule=Schedule(max_failures=settings.bmc.failures, jitter=settings.bmc.jitter),
        longest_step=timedelta(minutes=settings.step_minutes),
        change_at_start=store.progress[1],
        was_unused=snapshot.facts.gap,
        is_output_open=dependencies.is_output_open,
        is_upgraded=snapshot.facts.left_output is None and snapshot.facts.accepted is not None,
    )
    if dependencies.checkpoint is not None and dependencies.resumes:
        return dependencies.checkpoint.resume(initial_state)
    return initial_state


# For a running instance


class _StatusReporter:
    """Writes the status of a running instance, the unknown machines and the history of the published page."""

    def __init__(
        self, settings: Settings, tell: Tell, clock: Clock, on_status: Callable[[Status, int], None] | None
    ) -> None:
        self._settings = settings
        self._tell = tell
        self._clock = clock
        self._on_status = on_status
        self.status_file = state_directory.StatusFile(settings.state, clock)
        self._unknown = UnknownMachineFile(settings.state, settings.spool, settings.output, clock)
        self._spool_mark = settings.spool_mark
        project = find_project(settings)
        self._links = project.links() if project is not None else None  # templates of links to the project at the forge
        self._history: dict[Revision, FileChanges] = {}  # the latest commits in the page's history
        self._history_of: str | None = None  # the newest commit in the published history
        self.stage_times = StageTimes()
        self.listener = WorkListener(self._tell_progress, on_progress=self.stage_times.note_progress)

    def _tell_progress(self, progress: WorkProgress | None) -> None:
        self.status_file.note_progress(progress)
        if progress is not None:
            facts = {name: value for name, value in progress.facts().items() if name != "message"}
            self._tell(Event(at=self._clock(), type="Progress", message=progress.message, facts=facts))

    def publish_status(self, store: Store, source: Source, tree: OutputDirectory, status: Status, at: datetime) -> None:
        """Write the status for `gitboot status` and for endpoints.

        Endpoints compare their clocks with the time in the status. The status also contains the ledger's change number.
        At its next start, the instance uses this number to detect an older copy of the ledger.
        """
        identity, changes = store.progress
        facts = {
            **status.facts(),
            "at": format_instant(at),
            "site": self._settings.site,
            "changes": changes,
            "links": self._links,
            "branch": source.reference,
        }
        tree.write_status(encode_canonical(self.status_file.write(facts)) + b"\n", at)
        self._publish_history(source, tree, status.applied, at)
        if self._spool_mark is not None and read_mark(self._spool_mark) != (identity, changes):
            with suppress(OSError):  # without a current mark, gitboot only trusts the ledger less
                write_mark(self._spool_mark, identity, changes)
        if (update := self._unknown.update(status.applied, at)) is not None:
            content, events = update
            tree.write_status(content, at, UNKNOWN)
            with suppress(LedgerError):  # the events are reported even if they cannot be stored
                write_events(store, events)
            for event in events:
                self._tell(event)
        if self._on_status is not None:
            _, change = store.mark or ("", 0)
            self._on_status(status, change)

    def _publish_history(self, source: Source, tree: OutputDirectory, applied: str | None, at: datetime) -> None:
        """Write the history for the published page: the latest commits and the files that these commits changed.

        This method writes the history only if the page is published and the applied commit has changed.
        """
        output = self._settings.output
        has_history = (output / ON_PAGE[HISTORY][1]).exists()
        if applied is None or not (output / PAGE_INDEX).exists():
            if has_history:  # the page is not published any more
                tree.write_status(render_history(()) + b"\n", at, HISTORY)
            return
        if has_history and applied == self._history_of:
            return
        with suppress(CorruptClone):  # the next reconcile repairs the clone
            changes = source.read_file_changes(Revision(applied), self._history)
            self._history = {change.commit.revision: change for change in changes}
            tree.write_status(render_history(changes) + b"\n", at, HISTORY)
            self._history_of = applied


@contextmanager
def run_instance(
    settings: Settings,
    *,
    tell: Tell,
    clock: Clock,
    wake: Callable[[], None] = ignore,
    wait: bool = False,
    on_status: Callable[[Status, int], None] | None = None,
    build_evaluation: Callable[[Path], EvaluatorClient] | None = None,
    uptime: Callable[[], Uptime] = read_uptime,
    on_lease_lost: Callable[[], None] = ignore,
) -> Iterator[tuple[Instance, Source]]:
    """Yield an instance and its Git source. Until the block ends, no other instance can use the state directory.

    - ``wake``: called from another thread when a BMC task or the evaluation of a commit ends
    - ``wait``: whether a reconcile waits until the evaluation of a commit ends
    - ``on_status``: called with each status and the ledger's change number
    - ``build_evaluation``: builds an evaluation client, for tests. None: use an evaluator process and a fetch process
    - ``on_lease_lost``: called from a thread if another instance may have taken the lease of a shared ledger
    """
    check_repository(settings)
    with ExitStack() as stack:
        stack.enter_context(state_directory.make_private(settings.state))
        if settings.spool is not None:
            state_directory.check_spool_rights(settings.spool)
        _check_storage(settings, tell, clock)
        stack.enter_context(state_directory.lock(settings.state))
        state_directory.remove_former_caches(settings.state)
        reports = _StatusReporter(settings, tell, clock, on_status)
        warn = state_directory.make_cache_warner(tell, clock)
        cache = stack.enter_context(state_directory.open_cache(settings.state, warn))
        store, snapshot = stack.enter_context(open_or_replace_ledger(find_ledger(settings), tell, clock))
        store.database.take_lease(Holder.load(settings.state, settings.lease_s))
        shared_fetches, fence, ending_fence = stack.enter_context(_hold_lease(store, tell, clock(), on_lease_lost))
        modes = choose_output_modes(store, settings.output, settings.output_group)
        tree = stack.enter_context(
            OutputDirectory.open(
                settings.output,
                ledger=instance_tables.read_facts(store).identity,
                heir_of=lambda: instance_tables.read_facts(store).heir_of,
                report_progress=reports.listener.make_reporter(Work.PUBLISH),
                modes=modes,
            )
        )
        owner = tree.origin.ledger if tree.origin is not None else None
        _mark_older_ledger(store, settings, owner)
        branch = LedgerBranchStore(store, tell, clock)
        if build_evaluation is None:
            evaluation = _build_evaluation(settings, cache, reports, waits=wait)
            source = stack.enter_context(open_source(settings, settings.state, branch))
        else:
            evaluation = build_evaluation(settings.state)
            source = build_source(settings, settings.state, record=branch)
        evaluation.on_answer = wake
        stack.callback(evaluation.close)
        damage_search = DamageSearch(settings.output, wake)
        stack.callback(damage_search.close)
        followers = stack.enter_context(build_followers(settings, store, source, clock, wake).running())
        records = read_tree_records(settings.output)
        keys = state_directory.load_token_keys(settings.state, store, tell, clock)
        trust = build_commit_trust(settings.trust, source, settings.state / KEYS)
        artifacts = stack.enter_context(watch_artifacts(settings, store, cache, wake))
        hooks = HookClient(
            parse_hook_hosts(settings.maintenance_hosts),
            clock,
            wake,
            ca_bundle=settings.git.ca_bundle,
            may_drain=not wait,
        )
        stack.enter_context(closing(hooks))
        dependencies = Dependencies(
            store=store,
            source=source,
            evaluation=evaluation,
            target=tree,
            clock=clock,
            fence=fence,
            ending_fence=ending_fence,
            followers=followers,
            published=Revision(tree.origin.commit) if tree.origin is not None else None,
            owner=owner,
            records=records,
            observes=settings.spool_folder is not None,
            is_output_open=modes is OPEN_MODES,
            keys=keys,
            trust=trust,
            artifacts=artifacts,
            hooks=hooks,
            checkpoint=Checkpoint(cache, tree, damage_search, warn, settings.site),
            resumes=not wait,
            shared_fetches=shared_fetches,
            snapshot=snapshot,
            tell=tell,
            wake=wake,
            report=partial(reports.publish_status, store, source, tree),
            report_stalled=reports.status_file.add_condition,
            uptime=uptime,
            stage_times=reports.stage_times,
            listener=reports.listener,
        )
        yield stack.enter_context(build_instance(settings, dependencies)), source


def _build_evaluation(
    settings: Settings, cache: DiskCache, reports: _StatusReporter, *, waits: bool
) -> EvaluatorClient:
    """Return the client of an evaluator process. ``waits`` means that a reconcile waits for each evaluation."""
    return EvaluatorClient(
        settings.state,
        limits=settings.allowance,
        waits_for_answer=waits,
        start_timer=partial(reports.stage_times.start_stage, Stage.EVALUATE),
        report_progress=reports.listener.make_reporter(Work.READ),
        site=settings.site,
        cache=cache,
    )


@contextmanager
def open_dry_run(
    settings: Settings, *, tell: Tell, clock: Clock
) -> Iterator[tuple[Instance, Source, PublicationPreview]]:
    """Yield an instance that works on a copy of the state, and that reads OUTPUT and BMCs but does not change them."""
    check_repository(settings)
    with ExitStack() as stack:
        copy = Path(stack.enter_context(TemporaryDirectory(prefix="gitboot-dry-run-")))
        if state_directory.has_ledger(settings.state):
            copy_ledger(
                settings.state / state_directory.LEDGER,
                copy / state_directory.LEDGER,
                in_use=state_directory.find_running_process(settings.state) is not None,
            )
        store, snapshot = stack.enter_context(open_or_replace_ledger(copy / state_directory.LEDGER, tell, clock))
        # Read the keys if the file exists, but never create keys here.
        has_keys = (settings.state / state_directory.TOKEN_KEYS).exists()
        keys = state_directory.load_token_keys(settings.state if has_keys else copy, store, tell, clock)
        with store.writing() as tx:
            instance_tables.mark_accepted_commit_missing(tx)  # the new clone may not contain the accepted commit
        facts = instance_tables.read_facts(store)
        cache = stack.enter_context(state_directory.open_cache(settings.state, ignore, writes=False))
        preview = PublicationPreview(settings.output, ledger=facts.identity, heir_of=facts.heir_of)
        source = stack.enter_context(open_source(settings, copy, LedgerBranchStore(store, tell, clock)))
        evaluation = EvaluatorClient(copy, limits=settings.allowance, waits_for_answer=True, site=settings.site)
        stack.callback(evaluation.close)
        dependencies = Dependencies(
            store=store,
            source=source,
            evaluation=evaluation,
            target=preview,
            clock=clock,
            dry_run=True,
            observes=settings.spool_folder is not None,
            keys=keys,
            trust=build_commit_trust(settings.trust, source, copy / KEYS),
            artifacts=stack.enter_context(watch_artifacts(settings, store, cache, ignore)),
            snapshot=snapshot,
            tell=tell,
        )
        spool = settings.spool_folder
        empty_spool: Path | None = None
        if spool is not None and (spool / IDENTITY).exists():
            # Use an empty fetch log with the identity of the real one, because the real instance has to process those
            # entries.
            empty_spool = copy / "spool"
            empty_spool.mkdir()
            shutil.copyfile(spool / IDENTITY, empty_spool / IDENTITY)
        settings = structs.replace(settings, spool=empty_spool)
        yield stack.enter_context(build_instance(settings, dependencies)), source, preview


@contextmanager
def _hold_lease(
    store: Store, tell: Tell, at: datetime, on_lease_lost: Callable[[], None]
) -> Iterator[tuple[RecordedFetches | None, Fence, Fence]]:
    """Keep the lease of a shared ledger until the block ends.

    Yields the shared fetch log (None for a SQLite ledger) and two fences. The second fence is for changes that only
    clear overrides. See `LeaseKeeper.check_ending`.
    """
    lease, address = store.database.lease, read_address(store.path)
    if lease is None or address is None:
        yield None, ignore, ignore
        return
    # Imported here, because psycopg is an optional dependency.
    from gitboot.ledger.postgresql import LeaseConnection

    if lease.previous_place is not None:
        number = lease.lease.epoch
        event = Event(
            at=at,
            type="TookOver",
            message=f"this instance took over {lease.name} from {lease.previous_place}, and is active with lease "
            f"{number}",
            facts={"lease": number, "before": lease.previous_place},
        )
        tell(event)
        write_events(store, [event])
    with (
        closing(RecordedFetches(address, lease.lease)) as shared_fetches,
        LeaseKeeper(lease, LeaseConnection(address), on_lease_lost) as keeper,
    ):
        yield shared_fetches, keeper.check, keeper.check_ending


def find_ledger(settings: Settings) -> Path:
    """Store the address of a configured database, and return the path of the ledger. Raises `UsageError`."""
    path, address = settings.state / state_directory.LEDGER, settings.ledger
    if address is not None and read_address(path) != address:
        if path.exists() and not has_address_file(path):
            raise UsageError(
                f"{path} is already a ledger; copy it to {address.name} first: gitboot ledger copy --state"
                f" {settings.state} --to URL"
            )
        write_address(path, address)
    return path


@contextmanager
def open_or_replace_ledger(path: Path, tell: Tell, clock: Clock) -> Iterator[tuple[Store, LedgerSnapshot | None]]:
    """Open the ledger at ``path``, and read its records. A damaged ledger is replaced with a new, unverified ledger.

    A shared ledger is never replaced. This instance reads a shared ledger later, when it holds the lease.
    """
    if read_address(path) is not None:
        store, snapshot = Store.open(path), None
    else:
        try:
            store, snapshot = _read_whole_ledger(path)
        except DamagedLedger as error:
            renamed = set_ledger_aside(path)
            message = f"{error}; gitboot renamed the file to {renamed.name}"
            tell(Event(at=clock(), type="LedgerDamaged", message=message, warning=True))
            store, snapshot = _read_whole_ledger(path)
            instance_tables.mark_unverified(store, "DamagedLedger")
    with store:
        if instance_tables.is_behind(store):
            instance_tables.mark_unverified(store, "RestoredLedger")
        if store.mark is None:
            store.write_mark(*store.progress)
        yield store, snapshot


def _read_whole_ledger(path: Path) -> tuple[Store, LedgerSnapshot]:
    """Open a ledger and read all of its tables. Raises `DamagedLedger`."""
    store = Store.open(path)
    try:
        instance_tables.read_requests(store)
        return store, read_ledger(store)
    except BaseException:
        store.close()
        raise


@contextmanager
def watch_artifacts(
    settings: Settings, store: Store, cache: DiskCache, wake: Callable[[], None]
) -> Iterator[ThreadedArtifactWatch | None]:
    """Check artifacts in the background until the block ends. Yields None if the settings turn checks off.

    The results of earlier checks come from the ledger, and the digests that were computed earlier come from the cache.
    """
    if settings.artifacts.check is CheckAssets.OFF:
        yield None
        return
    from gitboot.artifacts.availability import Fetcher
    from gitboot.artifacts.downloads import FallbackFetcher, FolderFetcher, PrefixFetcher, WebFetcher
    from gitboot.artifacts.signatures import BootFileVerifier

    web = WebFetcher()
    vendors = WebFetcher(uses_proxies=True)  # for signatures, which machines do not fetch

    def build_fetchers(base_urls: tuple[str, ...]) -> tuple[Fetcher, Callable[[str], bool]]:
        by_prefix, local_prefixes = list_fetchers(base_urls)
        is_read = settings.artifacts.check is CheckAssets.READ
        return PrefixFetcher(by_prefix), lambda url: is_read or url.startswith(tuple(local_prefixes))

    def build_signature_fetcher(base_urls: tuple[str, ...]) -> Fetcher:
        by_prefix, _ = list_fetchers(base_urls)
        return PrefixFetcher({**by_prefix, "http://": vendors, "https://": vendors})

    def list_fetchers(base_urls: tuple[str, ...]) -> tuple[dict[str, Fetcher], set[str]]:
        """Return a fetcher for each URL prefix, and the prefixes whose files are in a folder on this host."""
        own_prefix, *site_prefixes = (f"{base}/o/" for base in base_urls)
        tree = settings.output / "boot" / "o"
        local_prefixes = {own_prefix}
        by_prefix: dict[str, Fetcher] = {"http://": web, "https://": web}
        for prefix in site_prefixes:
            # Check each site's copy of the output tree. If it is unreachable, check the local tree, from which it is
            # copied.
            by_prefix[prefix] = FallbackFetcher(web, FolderFetcher(tree, prefix), fallback_on=HostUnreachable)
        by_prefix[own_prefix] = FallbackFetcher(FolderFetcher(tree, own_prefix), web, fallback_on=ArtifactMissing)
        if settings.assets is not None:
            assets_prefix = f"{base_urls[0]}/assets/"
            by_prefix[assets_prefix] = FolderFetcher(settings.assets, assets_prefix)
            local_prefixes.add(assets_prefix)
        return by_prefix, local_prefixes

    with (
        closing(BootFileVerifier(settings.artifacts.image_keys, build_signature_fetcher)) as verifier,
        closing(
            ThreadedArtifactWatch(
                build_fetchers,
                before=read_sightings(settings, store),
                results=ReadResults(cache),
                every_s=settings.artifacts.every_s,
                wake=wake,
                verify=verifier.verify,
            )
        ) as watch,
    ):
        yield watch


def read_sightings(settings: Settings, store: Store) -> dict[BootFile, Sighting]:
    """Read the results of the artifact checks that ran before the start.

    Earlier versions stored the results in a file, which is deleted once the ledger contains results.
    """
    old_file = settings.state / state_directory.FORMER_SIGHTINGS
    if before := instance_tables.read_sightings(store, describe_place(settings.state)):
        with suppress(OSError):
            old_file.unlink()
        return before
    with suppress(OSError, ValueError, KeyError, TypeError):
        return instance_tables.parse_sightings(parse_json(old_file.read_bytes())["items"])
    return {}


def _mark_older_ledger(store: Store, settings: Settings, owner: str | None) -> None:
    """Mark the ledger as unverified if its output tree is gone or a mark outside STATE has a later change number."""
    identity, changes = store.progress
    marks = [read_mark(settings.spool_mark) if settings.spool_mark is not None else None]
    with suppress(OSError, ValueError, TypeError, KeyError):
        # The status in the output tree also contains a change number.
        status = parse_json((settings.output / STATUS).read_bytes())
        marks.append((str(status["ledger"]), int(status["changes"])))
    known = max((number for ledger, number in filter(None, marks) if ledger == identity), default=0)
    is_tree_gone = store.database.is_local and instance_tables.read_facts(store).published and owner is None
    if known > changes or is_tree_gone:
        instance_tables.mark_unverified(store, "RestoredLedger", known)


def _check_storage(settings: Settings, tell: Tell, clock: Clock) -> None:
    """Raise an error or send a warning if a file system might lose the ledger, the fetch log or the output tree."""

    def warn(message: str) -> None:
        tell(Event(at=clock(), type="StateMayBeLost", message=message, warning=True))

    check_state_directory(settings.state, settings.accepted_filesystems, warn)
    if settings.spool is not None and settings.spool.exists():
        check_fetch_log_folder(settings.spool, settings.accepted_filesystems, warn, state=settings.state)
    if settings.output.exists():
        check_output_directory(settings.output, settings.accepted_filesystems, warn, state=settings.state)


# The state of an instance that may be stopped


class OfflineInstance(Struct, frozen=True, kw_only=True):
    """The state of an instance, which may be stopped: its accepted commit, its records, and its keys."""

    commit: Commit
    repository: FleetRepository  # the documents in the accepted commit
    snapshot: LedgerSnapshot
    keys: TokenKeys  # the keys of published tokens


@contextmanager
def open_offline(
    directory: Path, at: datetime, *, on_begin: Callable[[int], None] = lambda _: None, results: Cache | None = None
) -> Iterator[OfflineInstance]:
    """Read the state of the instance in ``directory`` without changing its files. The instance may be running.

    Before the files of the accepted commit are read, ``on_begin`` is called with the number of these files. ``results``
    is a cache of evaluation results.
    """
    # Imported here, because a running instance uses an evaluator process instead.
    from gitboot.evaluator.evaluation import Evaluator

    state_directory.require_ledger(directory)
    state_directory.require_active(directory)
    ledger, is_running = directory / state_directory.LEDGER, state_directory.find_running_process(directory) is not None
    with open_copy(ledger, in_use=is_running) as store:
        snapshot = load_accepted_snapshot(directory)
        evaluator = Evaluator(lambda _, __: snapshot, on_begin=on_begin, results=results)
        evaluated = evaluator.evaluate(snapshot.revision, None).head
        whole = build_commit(evaluated.loaded.repository, evaluated.decided.decisions)
        # Read the keys if the file exists, but never create keys here.
        has_keys = (directory / state_directory.TOKEN_KEYS).exists()
        keys = state_directory.read_or_create_token_keys(directory, at, was_keyless=False) if has_keys else NO_KEYS
        stored = _read_offline_ledger(store)
        commit = whole.select_site(stored.facts.site or None)
        batch = Batch(commit=commit, changed_servers=tuple(commit.decisions.servers))
        current = apply_batch(stored, batch, at).snapshot
        own_spool = directory / state_directory.SPOOL
        spool = Path(current.facts.spool) if current.facts.spool is not None else own_spool
        yield OfflineInstance(
            commit=commit,
            repository=evaluated.loaded.repository,
            snapshot=structs.replace(
                current,
                sightings=instance_tables.read_sightings(store, describe_place(directory)),
                claims=read_claims((own_spool, spool), spool),
            ),
            keys=keys,
        )


def carry_out_offline(store: Store, commit: Commit | None, at: datetime, held: HeldCommit | None = None) -> None:
    """Carry out operator requests on behalf of an instance that is not running.

    ``commit`` is the accepted commit. ``held`` is the commit that was held when the instance last ran.
    """
    batch = Batch(
        requests=instance_tables.read_requests(store),
        commit=commit,
        changed_servers=tuple(commit.decisions.servers) if commit else (),
        held=held,
    )
    write_updates(store, [apply_batch(_read_offline_ledger(store), batch, at).update])


def simulate_initialisation(instance: OfflineInstance, request: BeginWithRecords, at: datetime) -> LedgerSnapshot:
    """Return the `LedgerSnapshot` that would result if an operator requested to begin with records.

    This function does not store the result. Raises `UsageError`.
    """
    batch = Batch(
        requests=(instance_tables.Request(0, at, "", request.kind, to_json_value(request)),),
        commit=instance.commit,
        changed_servers=tuple(instance.commit.decisions.servers),
    )
    result = apply_batch(instance.snapshot, batch, at)
    ((_, outcome),) = result.update.request_outcomes
    if outcome.startswith(REFUSED):
        raise UsageError(outcome.removeprefix(REFUSED))
    return result.snapshot


def _read_offline_ledger(store: Store) -> LedgerSnapshot:
    """Read the ledger. While it is unverified, also read the records in the published tree."""
    snapshot = read_ledger(store)
    if snapshot.is_trusted or snapshot.facts.output is None:
        return snapshot
    return structs.replace(snapshot, published_records=read_tree_records(Path(snapshot.facts.output)))
