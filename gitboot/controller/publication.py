"""Publication: the files that plans offer, rendered and published in OUTPUT and at targets."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, ItemsView, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from msgspec import structs

from gitboot.artifacts.availability import is_withheld
from gitboot.bmc.credentials import read_credentials
from gitboot.controller.current_plans import Plans, find_changed_servers
from gitboot.controller.instance.settings import GitSettings, Settings
from gitboot.controller.instance_state import InstanceState, LimitedFiles, TargetState
from gitboot.controller.records.install_boots import build_offer, list_offers
from gitboot.errors import LedgerError, PublishError, UsageError
from gitboot.evaluator.protocol import Commit
from gitboot.fleet.overlay import apply_changes
from gitboot.git.branch_writer import OwnedBranch, read_authorship
from gitboot.git.clone import Source
from gitboot.git.remote import HEAD, Password, Remote, SshKey, get_local_path, parse_git_url
from gitboot.jsonio import Digest
from gitboot.ledger import instance_tables, server_tables
from gitboot.ledger.store import Store
from gitboot.model.fleet import Output
from gitboot.model.scalars import SystemUuid
from gitboot.model.server import Architecture
from gitboot.publish.manifest import compute_digest
from gitboot.publish.publisher import PublicationResult
from gitboot.publish.signed_list import ListKeys, read_list_keys
from gitboot.publish.targets.folder import MAX_SERVERS as MAX_RSYNC_SERVERS
from gitboot.publish.targets.folder import build_folder_opener, build_rsync_opener
from gitboot.publish.targets.followed_tree import FollowedTree
from gitboot.publish.targets.follower import (
    BranchAddress,
    FolderAddress,
    Follower,
    Followers,
    RsyncAddress,
    TargetAddress,
    TargetStore,
)
from gitboot.publish.targets.git_branch import BranchTarget
from gitboot.publish.targets.sync_steps import StoreTarget
from gitboot.publish.window_ends import EndedWindows, WindowEndError
from gitboot.render.boot_files import has_dhcp_output, render_fleet_files
from gitboot.render.endpoint_files import ServingTerms, render_terms
from gitboot.render.page import NO_UPDATES, FileUpdates, Members, group_by_shard, render_record_files, update_members
from gitboot.render.paths import File, Files
from gitboot.render.server_files import (
    RenderedState,
    ServerState,
    plan_stopped_server,
    render_page_files,
    render_server,
    use_fallback_plans,
)
from gitboot.render.token_keys import TokenKeys
from gitboot.resolve.provisioning_record import Record, StopScope
from gitboot.resolve.server_decision import Boot, Decisions
from gitboot.resolve.server_plan import BootPlan
from gitboot.status.conditions import Event
from gitboot.status.instance_status import SignedListState, TargetStatus

# Number of servers whose offers are recorded in one transaction, and whose files are in memory at the same time.
_BATCH: Final = 500


class Target(Protocol):
    """A location to which gitboot publishes files, such as OUTPUT."""

    def publish(
        self,
        servers: Mapping[str, Files | None],
        shared: Files | None,
        *,
        complete: bool,
        commit: str,
        at: datetime,
        parts: FileUpdates,
    ) -> PublicationResult:
        """Publish the files of ``servers`` and the shared files. For a server that left the fleet, the value is None.

        The items of ``servers`` are iterated once, but single servers may be looked up beforehand. If ``complete``, the
        files of all other servers are deleted. If ``shared`` is None, the shared files stay unchanged. Files that
        ``parts`` does not mention stay unchanged too. Raises `PublishError`.
        """

    def predict_mtime(self, path: str, file: File, at: datetime) -> int:
        """Return the modification time that ``path`` will have if ``file`` is published at ``at``.

        The modification time is in seconds since 1970.
        """

    def has_files(self, files: Files) -> bool:
        """Return whether the target contains exactly these files."""


class DatedPath(NamedTuple):
    """A published path, its modification time, and the plan that the path belongs to."""

    path: str
    modified: int  # seconds since 1970
    plan: Digest


class OfferRecorder(Protocol):
    """A recorder of the boots that gitboot offers. Offers are recorded before a machine can fetch the boots."""

    def record_offers(
        self, states: Mapping[str, ServerState], dates: Mapping[str, Sequence[DatedPath]]
    ) -> Collection[str]:
        """Record the offers of these servers. Return the servers to halt, which must boot from their disks.

        Raises `LedgerError`.
        """

    def record_publication(self) -> None:
        """Record that a tree was published. Raises `LedgerError`."""


class LedgerOfferRecorder:
    """A recorder that stores offers in the ledger, each with the number of the newest decision."""

    def __init__(
        self, store: Store, facts: instance_tables.Facts, at: datetime, ledger_error: str | None = None
    ) -> None:
        """Initialize the recorder. ``ledger_error`` is the reason why this reconcile could not write the ledger.

        If ``ledger_error`` is not None, recording offers fails.
        """
        self._store = store
        self._facts = facts
        self._at = at
        self._ledger_error = ledger_error

    def record_offers(
        self, states: Mapping[str, ServerState], dates: Mapping[str, Sequence[DatedPath]]
    ) -> Collection[str]:
        number = self._facts.sequence
        offers = [structs.replace(offer, number=number) for state in states.values() for offer in list_offers(state)]
        versions = list(chain.from_iterable(dates.values()))
        if offers or versions:
            if self._ledger_error is not None:
                raise LedgerError(self._ledger_error)
            with self._store.writing() as tx:
                server_tables.write_offers(tx, offers, self._at)
                server_tables.write_versions(tx, versions, number)
        return ()

    def record_publication(self) -> None:
        if self._ledger_error is None:
            with self._store.writing() as tx:
                instance_tables.write_facts(tx, published=True)
        elif not self._facts.keyed:  # the ledger does not record a publication with token keys yet
            raise LedgerError(self._ledger_error)


def publish_plans(
    state: InstanceState,
    commit: Commit,
    replanned: Collection[str],
    target: Target,
    recorder: OfferRecorder,
    at: datetime,
    terms: ServingTerms,
) -> TargetState:
    """Publish the plans, and return the new state of the target. ``replanned`` are the servers whose files may differ.

    Each offer is recorded in the ledger before its files are published, so that each fetch can be matched to an offer.
    While the ledger cannot be written, a server's published files stay until its plan ends or a stop begins. Then
    gitboot publishes the server without the boots that are not in the ledger, and keeps the server in
    `TargetState.limited` until these boots are recorded.

    Files are rendered during the publication, because the files of a large fleet do not fit in memory.
    """
    before, plans = state.publication, state.plans
    outdated_servers = frozenset(plans.servers)
    if before.complete:
        outdated_servers = before.outdated_servers.union(replanned)
    new_state = structs.replace(before, outdated_servers=outdated_servers, failure=None, ledger_error=None, at=at)
    offered = _OfferedFiles(
        names=sorted(outdated_servers),
        before=before,
        plans=plans,
        decisions=commit.decisions,
        token_keys=state.keys,
        target=target,
        recorder=recorder,
        at=at,
    )
    recorded, changed = _select_records(state, commit, outdated_servers)
    parts = _render_parts(state, commit, recorded, changed, outdated_servers)
    try:
        shared: Files | None = None
        if _have_shared_files_changed(before, plans, commit) or before.terms != terms:
            shared = render_shared_files(plans, commit, terms)
        result = target.publish(
            offered if not before.complete else dict(offered.items()),
            shared,
            complete=not before.complete,
            commit=commit.revision,
            at=at,
            parts=parts,
        )
        if before.applied is None:
            recorder.record_publication()
    except (PublishError, LedgerError) as error:
        offered.drop_sample()  # the target may keep the mapping until the next publication
        return _record_failure(new_state, error, replaces_records=parts.is_whole)
    limited, events = offered.limited, before.events
    if result.new or result.withdrawn:
        events = (*events, _build_published_event(result, commit, at))
    return structs.replace(
        new_state,
        applied=commit.revision,
        complete=True,
        plans=plans,
        terms=terms,
        has_old_records=state.snapshot.recorded_commit is None,
        recorded=recorded,
        outdated_servers=frozenset(limited),
        limited=dict(sorted(limited.items())),
        failure=("LedgerError", offered.ledger_error) if limited and offered.ledger_error is not None else None,
        ledger_error=offered.ledger_error,
        versions=apply_changes(before.versions, offered.versions, outdated_servers - offered.versions.keys()),
        events=events,
    )


def _record_failure(state: TargetState, error: PublishError | LedgerError, *, replaces_records: bool) -> TargetState:
    """Return the state after a failed publication of the outdated servers.

    The target may have published some of the files, so the next publication includes all of them.
    """
    return structs.replace(
        state,
        terms=None,
        has_old_records=state.has_old_records or replaces_records,
        recorded=None,
        versions=apply_changes(state.versions, {}, state.outdated_servers & state.versions.keys()),
        failure=(type(error).__name__, str(error)),
        ledger_error=str(error) if isinstance(error, LedgerError) else None,
    )


def _build_published_event(result: PublicationResult, commit: Commit, at: datetime) -> Event:
    removed = len(result.withdrawn)
    return Event(
        at=at,
        type="Published",
        message=f"{result.new} files written, {removed} removed, {result.unchanged} unchanged",
        facts={
            "commit": commit.revision,
            "written": result.new,
            "withdrawn": removed,
            "unchanged": result.unchanged,
        },
    )


def render_shared_files(plans: Plans, commit: Commit, terms: ServingTerms) -> Files:
    """Return the files that all servers share, except for the files that are published in parts."""
    return {
        **render_fleet_files(
            structs.replace(commit.decisions, unknown=_find_unknown_machine_boots(plans, commit.decisions)),
            terms.monitors,
        ),
        **render_terms(terms),
    }


def _select_records(
    state: InstanceState, commit: Commit, outdated_servers: Collection[str]
) -> tuple[Members, frozenset[SystemUuid] | None]:
    """Return the machines whose records are to be published, and the subset whose records changed.

    The second value is None if all records must be published. While the ledger is unverified, the published records
    stay unchanged.
    """
    before, plans, snapshot = state.publication, state.plans, state.snapshot
    if snapshot.recorded_commit is None:
        is_unchanged = before.complete and before.has_old_records and before.recorded is not None
        return group_by_shard(snapshot.published_records), frozenset() if is_unchanged else None

    def has_record(uuid: SystemUuid) -> bool:
        return uuid in commit.machines and snapshot.record(uuid) is not None

    if not before.complete or before.has_old_records:
        return group_by_shard(filter(has_record, commit.machines)), None
    changed = set[SystemUuid]()
    if before.recorded is None:  # the target may contain records that differ from the plans
        members = group_by_shard(filter(has_record, commit.machines))
        for name in outdated_servers:
            servers = before.plans.servers.get(name), plans.servers.get(name)
            if servers == (None, None):  # the machine of this server is not known
                return members, None
            changed.update(server.decision.uuid for server in servers if server is not None)
        return members, frozenset(changed)
    for name in outdated_servers:
        old = _find_machine_and_record(before.plans.servers.get(name))
        new = _find_machine_and_record(plans.servers.get(name))
        if old != new:
            changed.update(uuid for uuid, _ in filter(None, (old, new)))
    return update_members(before.recorded, changed, has_record), frozenset(changed)


def _render_parts(
    state: InstanceState,
    commit: Commit,
    recorded: Members,
    changed: Collection[SystemUuid] | None,
    outdated_servers: Collection[str],
) -> FileUpdates:
    """Render the changed files of the page and of the records. ``changed`` is None if all records are rendered."""
    before, snapshot = state.publication, state.snapshot
    old_commit = before.plans.commit if before.complete else None
    has_page = Output.PAGES in commit.decisions.outputs
    had_page = old_commit is not None and Output.PAGES in old_commit.decisions.outputs
    is_whole = old_commit is None or changed is None or has_page != had_page
    record = snapshot.record if snapshot.recorded_commit is not None else snapshot.published_records.get
    page = NO_UPDATES
    if has_page:
        page = render_page_files(
            state.plans.servers,
            commit.revision,
            commit.shown,
            commit.locations,
            None if is_whole else outdated_servers,
            published_locations=old_commit.locations if old_commit is not None else None,
        )
    records = render_record_files(recorded, record, None if is_whole else changed)
    return FileUpdates(files={**page.files, **records.files}, removed=page.removed | records.removed, is_whole=is_whole)


def _find_unknown_machine_boots(plans: Plans, decisions: Decisions) -> Mapping[Architecture, Boot] | None:
    """Return the boots offered to unknown machines, or None if unknown machines boot from their disks."""
    if decisions.unknown is None or plans.stop is StopScope.ALL:
        return None
    boots = decisions.unknown.items()
    absent = {file for _, boot in boots for file in boot.fetched_files if is_withheld(file, plans.sightings)}
    return {architecture: boot for architecture, boot in boots if not boot.lacks_files(absent)} or None


def _have_shared_files_changed(before: TargetState, plans: Plans, commit: Commit) -> bool:
    """Return whether the files that all servers share may differ from the published ones."""
    old_plans = before.plans
    if old_plans.commit is None or old_plans.stop is not plans.stop or not before.complete:
        return True
    old, new = old_plans.commit.decisions, commit.decisions
    return (
        _without_servers(old) != _without_servers(new)
        or _find_unknown_machine_boots(old_plans, old) != _find_unknown_machine_boots(plans, new)
        or (
            has_dhcp_output(new.outputs)
            and any(
                old.networks.get(name) != new.networks.get(name)
                for name in find_changed_servers(old_plans.commit, commit)
            )
        )
    )


def _without_servers(decisions: Decisions) -> Decisions:
    return structs.replace(decisions, revision="", servers={}, networks={}, warnings=(), dated=())


def _find_machine_and_record(state: ServerState | None) -> tuple[SystemUuid, Record] | None:
    return (state.decision.uuid, state.record) if state is not None and state.record is not None else None


def _list_offered_versions(state: RenderedState) -> dict[str, Digest]:
    """Return the plans of a server's files that are evidence of an offered boot, by path."""
    offers = {offer.plan for offer in list_offers(state)}
    if not offers:
        return {}
    return {path: digest for path, digest in state.evidence_digests.items() if digest in offers}


@dataclass(kw_only=True, slots=True, eq=False)
class _OfferedFiles(Mapping[str, Files | None]):
    """The files of the servers, by server name, rendered on demand.

    `items` records the offers of each batch before yielding its files. In a web server's access log, a file can be
    identified only by its modification time, so this time must be in the ledger before a machine can fetch the file.
    After a failed publication, the next publication records its own times.
    """

    names: Sequence[str]
    before: TargetState
    plans: Plans
    decisions: Decisions
    token_keys: TokenKeys
    target: Target
    recorder: OfferRecorder
    at: datetime
    # Plans of the rendered boot scripts, by server and path.
    versions: dict[str, Mapping[str, Digest]] = field(default_factory=dict)
    # Servers that are published without the boots that could not be recorded in the ledger.
    limited: dict[str, LimitedFiles] = field(default_factory=dict)
    ledger_error: str | None = None  # why offers could not be recorded; None: all offers are recorded
    # Servers that were rendered to estimate the space of a first publication, until their files are published or the
    # publication fails.
    _sampled: dict[str, RenderedState] = field(default_factory=dict, init=False)

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, name: str) -> Files | None:
        """Return the files of a server without recording its offers.

        Only the estimate of the space that a first publication needs may look up servers. The files that are rendered
        for the estimate stay in memory until `items` yields them.
        """
        state = self.plans.servers.get(name)
        if state is None:
            return None
        rendered = self._render(state)
        self._sampled[name] = rendered
        return rendered.files

    def items(self) -> ItemsView[str, Files | None]:
        return _BatchedItems(self)

    def drop_sample(self) -> None:
        """Free the files that were rendered for the estimate, because the publication failed."""
        self._sampled.clear()

    def render_batch(self, names: Iterable[str]) -> dict[str, Files | None]:
        """Record the offers of these servers, and return their files.

        For a server that left the fleet, the value is None.
        """
        planned = {name: self.plans.servers.get(name) for name in names}
        states = {
            name: self._sampled.pop(name) if name in self._sampled else self._render(state)
            for name, state in planned.items()
            if state is not None
        }
        versions: dict[str, Mapping[str, Digest]] = {
            name: _list_offered_versions(state) for name, state in states.items()
        }
        dates = {name: self._date_changed_paths(name, state.files, versions[name]) for name, state in states.items()}
        halted: Collection[str] = ()
        if self.ledger_error is None:  # do not try again after a failure
            try:
                halted = self.recorder.record_offers(states, dates)
            except LedgerError as error:
                self.ledger_error = str(error)
        for name in halted:
            states[name] = self._render(plan_stopped_server(states[name], self.token_keys))
        for name, state in tuple(states.items()) if self.ledger_error is not None else ():
            limited = self._limit_offers(name, state, is_dated=not dates[name])
            if limited is not None:
                states[name] = limited
                versions[name] = _list_offered_versions(limited)
            else:  # keep the published files
                del states[name]
                versions[name] = self.before.versions.get(name, {})
        self.versions.update(versions)
        return {
            name: states[name].files if name in states else None
            for name, planned_state in planned.items()
            if planned_state is None or name in states
        }

    def _limit_offers(self, name: str, state: RenderedState, *, is_dated: bool) -> RenderedState | None:
        """Return the files of a server without the boots that are not in the ledger, and add the server to `limited`.

        Return None if the published files can stay. If all offers are in the ledger, return ``state``. ``is_dated``
        means that the ledger contains the modification times of all files.
        """
        recorded_offers = self._find_recorded_offers(name, state.record)
        offers = frozenset(offer.plan for offer in list_offers(state))
        if is_dated and offers <= recorded_offers:
            return state
        if not self.before.complete and self.target.has_files(state.files):  # an earlier process recorded these offers
            self.limited[name] = LimitedFiles(offers, state.transition, self.plans.stop)
            return state
        published_files = self._find_published_files(name)
        if (
            published_files is not None
            and published_files.stop is self.plans.stop
            and (published_files.until is None or published_files.until > self.at)
        ):
            self.limited[name] = published_files._replace(recorded_offers=recorded_offers)
            return None
        limited = self._render_limited(state, recorded_offers)
        self.limited[name] = LimitedFiles(recorded_offers, limited.transition, self.plans.stop)
        return limited

    def _render(self, state: ServerState) -> RenderedState:
        return render_server(state, self.decisions, self.token_keys)

    def _find_published_files(self, name: str) -> LimitedFiles | None:
        """Return a description of a server's published files, or None if these files are unknown."""
        if not self.before.complete:
            return None
        if name in self.before.outdated_servers:
            return self.before.limited.get(name)
        old_state = self.before.plans.servers.get(name)
        return LimitedFiles(frozenset(), old_state.transition, old_state.stop) if old_state is not None else None

    def _find_recorded_offers(self, name: str, record: Record | None) -> frozenset[Digest]:
        """Return the offers that are certainly in the ledger, which are the offers in a server's published files.

        If the record has changed, the result is empty, because offers get new numbers with a new record.
        """
        old_state = self.before.plans.servers.get(name) if self.before.complete else None
        if old_state is None or old_state.record != record:
            return frozenset()
        if name in self.before.outdated_servers:
            return self.before.limited[name].recorded_offers if name in self.before.limited else frozenset()
        return frozenset(offer.plan for offer in list_offers(old_state))

    def _render_limited(self, state: ServerState, recorded_offers: Collection[Digest]) -> RenderedState:
        """Render the files of a server without the boots that are not in the ledger.

        If the ledger would still lack some modification times, halt the server.
        """

        def is_recorded(plan: BootPlan) -> bool:
            offer = build_offer(state.decision, plan, state.record)
            return offer is None or offer.plan in recorded_offers

        old_state = self.before.plans.servers.get(state.decision.server)
        tokens = old_state.tokens if old_state is not None else frozenset[Digest]()
        recorded = use_fallback_plans(state, is_recorded, tokens)
        without_current = use_fallback_plans(
            recorded, lambda plan: is_recorded(plan) and plan is not recorded.plan, tokens
        )
        for limited in (recorded, without_current):
            rendered = self._render(limited)
            if not self._date_changed_paths(state.decision.server, rendered.files, _list_offered_versions(rendered)):
                return rendered
        return self._render(plan_stopped_server(state, self.token_keys))

    def _date_changed_paths(self, name: str, files: Files, versions: Mapping[str, Digest]) -> tuple[DatedPath, ...]:
        """Return the paths whose plan differs from the published plan, each with its new modification time."""
        known = self.before.versions.get(name, {}) if self.before.complete else {}
        return tuple(
            DatedPath(path, self.target.predict_mtime(path, files[path], self.at), plan)
            for path, plan in versions.items()
            if known.get(path) != plan
        )


class _BatchedItems(ItemsView[str, Files | None]):
    """An items view that iterates over `_OfferedFiles` in batches, so that only one batch of files is in memory."""

    _mapping: _OfferedFiles

    def __iter__(self) -> Iterator[tuple[str, Files | None]]:
        names = iter(self._mapping)
        while batch := tuple(islice(names, _BATCH)):
            yield from self._mapping.render_batch(batch).items()


class ListedTarget(Target, Protocol):
    """A target that has a signed list of its files and that can end windows without a publication."""

    @property
    def is_unchanged(self) -> bool:
        """Return whether the tree in the target is still the one that gitboot published last."""

    def end_windows(self, at: datetime) -> EndedWindows:
        """Replace the files of windows that have ended. Raises `PublishError`."""

    def update_list(self, keys: ListKeys | None, at: datetime) -> datetime | None:
        """Update the signed list if the published files changed or a renewal is due. Return when the list expires.

        The result is None if there is no list yet. Raises `PublishError`.
        """


class FollowedTarget:
    """A target that other targets follow. `publish` starts to update the other targets, and does not wait for them."""

    def __init__(self, target: ListedTarget, followers: Followers, list_keys: Path | None = None) -> None:
        """Initialize the target.

        ``list_keys`` is the folder with the keys that sign the list, or None for an unsigned list.
        """
        self.followers = followers
        self._target = target
        self._list_keys = list_keys
        self._signed_list = SignedListState()
        self._has_published = False  # whether this process has published

    @property
    def is_unchanged(self) -> bool:
        return self._target.is_unchanged

    def publish(
        self,
        servers: Mapping[str, Files | None],
        shared: Files | None,
        *,
        complete: bool,
        commit: str,
        at: datetime,
        parts: FileUpdates,
    ) -> PublicationResult:
        """Publish like `Target.publish`, write the signed list, and then start to update the targets that follow."""
        result = self._target.publish(servers, shared, complete=complete, commit=commit, at=at, parts=parts)
        self._update_list(at)
        self._has_published = True
        self.followers.publish()
        return result

    def renew_list(self, at: datetime) -> SignedListState:
        """Renew the signed list if renewal is due or the keys have changed. Return the state of the list.

        Other targets are not updated until this process has published, because they may be newer than OUTPUT.
        """
        before = self._signed_list.expires
        self._update_list(at)
        if self._signed_list.expires != before and self._has_published:
            self.followers.publish()
        return self._signed_list

    def _update_list(self, at: datetime) -> None:
        """Update the signed list. If that fails, the previous list stays in place."""
        before = self._signed_list
        keys: ListKeys | None = None
        failure: tuple[str, str] | None = None
        try:
            keys = read_list_keys(self._list_keys) if self._list_keys is not None else None
            expires = self._target.update_list(keys, at)
        except (PublishError, UsageError) as error:
            expires = before.expires
            failure = type(error).__name__, str(error)
        self._signed_list = SignedListState(
            signed=self._list_keys is not None,
            expires=expires,
            root_expires=keys.root_expires if keys is not None else before.root_expires,
            failure=failure,
            key_folder=str(self._list_keys) if self._list_keys is not None else None,
        )

    def predict_mtime(self, path: str, file: File, at: datetime) -> int:
        return self._target.predict_mtime(path, file, at)

    def has_files(self, files: Files) -> bool:
        return self._target.has_files(files)

    def end_windows(self, at: datetime) -> EndedWindows:
        """Replace the files of windows that have ended.

        Before the first publication of this process, the targets that follow are not updated, because they may be newer
        than this target. The first publication then updates these servers first.
        """
        servers: tuple[str, ...] = ()
        try:
            ended = self._target.end_windows(at)
            servers = ended.servers
        except WindowEndError as error:
            servers = error.servers
            raise
        finally:
            self.copy_ended_windows(frozenset(servers), at)
        return ended

    def copy_ended_windows(self, servers: frozenset[str], at: datetime) -> None:
        """Start to copy the files of servers whose windows ended in this target to the targets that follow."""
        if servers and self._has_published:
            self.followers.end_windows(servers, at)
        elif servers:  # the first publication of this process may change all servers
            self.followers.prioritize(servers)


def build_followers(
    settings: Settings, store: Store, source: Source, clock: Callable[[], datetime], wake: Callable[[], None]
) -> Followers:
    """Build the targets that follow OUTPUT, as configured in the settings. Raises `UsageError`."""
    names = [address.name for address in settings.targets]
    if duplicates := {name for name in names if names.count(name) > 1}:
        raise UsageError(f"--target {min(duplicates)} appears twice; remove one")
    followers = []
    for address in settings.targets:
        follower = Follower(
            _build_target(address, settings, store, source, clock),
            FollowedTree(settings.output),
            target_status=TargetStatus(name=address.name, base_url=address.base_url, behind_since=clock()),
            clock=clock,
            wake=wake,
        )
        followers.append(follower)
    return Followers(followers)


def _build_target(
    target_address: TargetAddress,
    settings: Settings,
    store: Store,
    source: Source,
    clock: Callable[[], datetime],
) -> TargetStore:
    """Build one target. Raises `UsageError` if its settings are unusable."""
    if isinstance(target_address, BranchAddress):
        return _build_branch_target(target_address, settings, store, source, clock)
    target = partial(
        StoreTarget,
        target_address.name,
        ledger=instance_tables.read_facts(store).identity,
        heir_of=lambda: instance_tables.read_facts(store).heir_of,
        writer=secrets.token_hex(8),
    )
    if isinstance(target_address, FolderAddress):
        folder = target_address.folder.resolve()
        for name, other in (("OUTPUT", settings.output.resolve()), ("STATE", settings.state.resolve())):
            if folder.is_relative_to(other) or other.is_relative_to(folder):
                raise UsageError(
                    f"--target {target_address.name}: the folder overlaps {name} ({other}); choose a separate folder"
                )
        return target(build_folder_opener(target_address.folder))
    if isinstance(target_address, RsyncAddress):
        folder = settings.state / "targets" / compute_digest(target_address.name.encode())[:16]
        return target(build_rsync_opener(target_address, folder, _read_keys), max_servers=MAX_RSYNC_SERVERS)
    # Imported here, because obstore is an optional dependency.
    from gitboot.publish.targets.s3 import build_bucket_opener

    return target(build_bucket_opener(target_address, _read_keys))


def _build_branch_target(
    target_address: BranchAddress, settings: Settings, store: Store, source: Source, clock: Callable[[], datetime]
) -> BranchTarget:
    """Build a target that is a branch of a Git repository. Raises `UsageError`."""
    is_same_repository = _parse_location(target_address.url) == _parse_location(settings.git.repository)
    reference = source.reference
    if is_same_repository and reference in (target_address.branch, target_address.ref):
        raise UsageError(
            f"--target {target_address.name} is the branch that this instance follows; choose another branch"
        )
    make_remote = partial(_build_remote, target_address, settings.git)
    # Check the settings at startup, but not the credentials, because an unreadable file only delays the target.
    make_remote(read=lambda _: ("", ""))
    return BranchTarget(
        target_address.name,
        OwnedBranch(
            make_remote,
            target_address.ref,
            settings.state / "targets" / f"{compute_digest(target_address.name.encode())[:16]}.git",
            fetcher=source.fetcher,
        ),
        ledger=instance_tables.read_facts(store).identity,
        heir_of=lambda: instance_tables.read_facts(store).heir_of,
        follows_default=is_same_repository and reference in (None, HEAD),
        find_author=partial(read_authorship, source.clone),
        clock=clock,
    )


def _parse_location(url: str) -> tuple[str | None, str]:
    """Return the host and path of a repository, which are the same in all URLs of the repository."""
    if (path := get_local_path(url)) is not None:
        return None, str(path.resolve()).removesuffix("/.git")
    parts = parse_git_url(url)
    return parts.hostname, parts.path.strip("/").removesuffix(".git")


def _build_remote(
    target_address: BranchAddress, git: GitSettings, *, read: Callable[[Path], tuple[str, str]] | None = None
) -> Remote:
    """Return the remote of a branch target, with the credentials that ``read`` returns. Raises `UsageError`."""
    credentials: Password | SshKey | None = None
    if target_address.ssh_key is not None:
        if target_address.known_hosts is None:
            raise UsageError(
                f"--target {target_address.name}: ssh-key also needs known-hosts, so that gitboot can verify the host"
            )
        credentials = SshKey(private_key=target_address.ssh_key, known_hosts=target_address.known_hosts)
    elif target_address.credentials is not None:
        user, password = (read or _read_keys)(target_address.credentials)
        credentials = Password(user=user, password=password)
    return Remote(
        url=target_address.url,
        credentials=credentials,
        ca_bundle=target_address.ca_bundle,
        timeout_s=git.timeout_s,
        max_bytes=git.max_bytes,
    )


def _read_keys(folder: Path) -> tuple[str, str]:
    """Return the user name and the password in a folder. Raises `UsageError`."""
    credentials = read_credentials(folder.parent, folder.name)
    return credentials.username, credentials.password
