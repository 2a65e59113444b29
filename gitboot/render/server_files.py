"""Server states: render all files of a server, for each transition, and the page's data about all servers."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from msgspec import Struct, field, structs

from gitboot.fleet.identities import Machine
from gitboot.fleet.overlay import find_differing_keys
from gitboot.jsonio import Digest, encode_canonical, format_instant
from gitboot.model.fleet import Output
from gitboot.model.scalars import MacAddress, is_placeholder_serial, lookup_uuids
from gitboot.render import endpoint_files
from gitboot.render.boot_files import (
    needs_endpoint_query,
    render_idle_files,
    render_query_scripts,
    render_server_files,
    select_copy_files,
)
from gitboot.render.boot_script_parts import ScriptLoader, find_loader
from gitboot.render.endpoint_files import (
    DiskWrite,
    ListedFile,
    Listing,
    NeededFile,
    PathVersion,
    PublishedServer,
    build_file_versions,
    build_window_end,
    listing_path,
    render_listing,
    state_path,
)
from gitboot.render.page import (
    FORMAT,
    PAGE_CONTENT_TYPES,
    SCRIPT,
    FileUpdates,
    build_plan_document,
    build_summary,
    list_plan_changes,
    page_shard,
    read_page_file,
    render_data_script,
    render_server_data,
)
from gitboot.render.paths import (
    BOOT,
    DATA,
    HTTP_BOOT,
    IGNITION,
    IPXE_BY_SERIAL,
    MEDIUM,
    NOCLOUD,
    PAGE,
    PAGE_DATA,
    REPORTS,
    SECRET,
    USER_DATA,
    ContentType,
    File,
    Files,
    IdentityKind,
    PathKind,
    Role,
    find_non_script_kind,
    find_path_kind,
    find_token,
    format_identity,
    is_content,
    is_immutable,
)
from gitboot.render.token_keys import NO_KEYS, PublishedNames, TokenKeys
from gitboot.resolve.explanation import SourceLocations
from gitboot.resolve.install_attempts import disk_boot_token, install_progress, install_step
from gitboot.resolve.plan_at_time import drop_ended_windows, find_next_transition, make_fallback_plan, make_plan
from gitboot.resolve.provisioning_record import Record, StopScope, find_drift, make_record_fields
from gitboot.resolve.server_decision import Boot, BootFile, Decision, Decisions, FieldSources
from gitboot.resolve.server_plan import BootPlan, Cause, InstallProgress, Phase


class ServerDetails(Struct, frozen=True, kw_only=True):
    """Facts from a Server document that help people and systems find the server. They do not affect the decision."""

    site: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    addresses: tuple[str, ...] = ()
    idle_macs: tuple[MacAddress, ...] = ()  # interfaces from which the server may not boot
    machine: Machine | None = None  # other identities and the BMC; None: the decision contains all identities
    source: FieldSources | None = None  # the source locations that the page shows


class ServerState(Struct, frozen=True, kw_only=True):
    """The latest plan of one server. `render_server` renders its files."""

    decision: Decision
    record: Record | None
    details: ServerDetails
    stop: StopScope
    absent: frozenset[BootFile]  # files that a boot of this server needs but that are missing
    at: datetime  # the time for which the plan was made
    plan: BootPlan | None
    later: tuple[tuple[datetime, BootPlan | None], ...]  # the next transitions, each with the plan that begins then
    # the time at which gitboot must render the server again, even without a transition
    refresh_at: datetime | None = None

    @property
    def transition(self) -> datetime | None:
        """The next instant at which the plan changes by itself or gitboot must render the server again."""
        return _find_earliest(self.later[0][0] if self.later else None, self.refresh_at)

    @property
    def installs_at(self) -> datetime | None:
        """The first instant, `at` or later, at which a planned boot may write the disk.

        The value is None if no planned boot writes the disk.
        """
        if self.plan is not None and self.plan.writes_disk:
            return self.at
        return next((since for since, plan in self.later if plan is not None and plan.writes_disk), None)

    @property
    def progress(self) -> InstallProgress | None:
        """The progress of the current installation, or None if no installation is in progress."""
        return install_progress(self.record, self.at)

    @property
    def tokens(self) -> frozenset[Digest]:
        """The tokens of the current and later plans, with which the machine fetches user data and sends reports."""
        plans = [plan for plan in (self.plan, *(later_plan for _, later_plan in self.later)) if plan is not None]
        tokens = (self.decision.token, *(plan.token for plan in plans), *(plan.data for plan in plans))
        return frozenset(token for token in tokens if token is not None)

    def is_current(
        self,
        decision: Decision,
        record: Record | None,
        at: datetime,
        details: ServerDetails = ServerDetails(),
        stop: StopScope = StopScope.NONE,
        absent: frozenset[BootFile] = frozenset(),
    ) -> bool:
        """Return whether the plan for ``at`` is the same as in this state.

        ``at`` must not be before the state's `at`.
        """
        return (
            self.decision.digest == decision.digest
            and self.decision.withheld == decision.withheld
            and self.record == record
            and self.details == details
            and self.stop is stop
            and self.absent == absent
            and (self.transition is None or at < self.transition)
        )


def _find_earliest(*times: datetime | None) -> datetime | None:
    return min((time for time in times if time is not None), default=None)


class RenderedState(ServerState, frozen=True, kw_only=True):
    """A server state and all files of the server."""

    files: Mapping[str, File]  # these files include the state file and the files that only later plans need
    published: PublishedServer  # the content of the state file

    @property
    def evidence_digests(self) -> dict[str, Digest]:
        """By path, the plan digest or the report token for which a completed GET is evidence."""
        digests: dict[str, Digest] = {}
        for path, versions in self.published.paths.items():
            current = versions[0]
            if current.since is not None or current.digest is None or current.role is Role.OFFER:
                continue
            # Some scripts in the tree only query an endpoint. A fetch of such a script is not evidence.
            if path in self.files and self.files[path].sha256 == current.content:
                digests[path] = Digest(current.digest)
        return digests


# The number of transitions that gitboot plans ahead. So an endpoint can begin and end the next windows even if the
# instance is slow or does not run.
TRANSITIONS_AHEAD: Final = 4
_HOUR: Final = timedelta(hours=1)
_QUARTER: Final = timedelta(minutes=15)


def build_server_state(
    decisions: Decisions,
    decision: Decision,
    record: Record | None,
    at: datetime,
    details: ServerDetails = ServerDetails(),
    stop: StopScope = StopScope.NONE,
    latest_clock: datetime | None = None,
    keys: TokenKeys = NO_KEYS,
    absent: frozenset[BootFile] = frozenset(),
) -> RenderedState:
    """Plan and render one server."""
    return render_server(plan_server(decision, record, at, details, stop, latest_clock, keys, absent), decisions, keys)


def plan_server(
    decision: Decision,
    record: Record | None,
    at: datetime,
    details: ServerDetails = ServerDetails(),
    stop: StopScope = StopScope.NONE,
    latest_clock: datetime | None = None,
    keys: TokenKeys = NO_KEYS,
    absent: frozenset[BootFile] = frozenset(),
) -> ServerState:
    """Plan one server for ``at`` and the following transitions. The last plan does not belong to a window with an end.

    ``latest_clock`` is a time after ``at`` that the clock has already reached. Windows that ended before that time stay
    closed. The plans do not offer boots that need one of the ``absent`` files.
    """
    remaining = drop_ended_windows(decision, latest_clock)
    current_plan = make_plan(remaining, at, record, stop=stop, absent_files=absent)
    later_plans: list[tuple[datetime, BootPlan | None]] = []
    last_plan, since = current_plan, at
    while len(later_plans) < TRANSITIONS_AHEAD or (last_plan is not None and last_plan.maintenance is not None):
        if last_plan is not None:
            next_transition = last_plan.next_transition
        else:
            next_transition = find_next_transition(remaining, since, record, stop=stop, absent_files=absent)
        if next_transition is None:
            break
        last_plan = make_plan(remaining, next_transition, record, stop=stop, absent_files=absent)
        since = next_transition
        later_plans.append((since, last_plan))
    later_plans, refresh_at = _limit_open_maintenance(remaining, current_plan, later_plans, at, stop, absent)
    progress = install_progress(record, at)
    state = ServerState(
        decision=decision,
        record=record,
        details=details,
        stop=stop,
        absent=absent,
        at=at,
        plan=current_plan,
        later=tuple(later_plans),
        refresh_at=_find_earliest(refresh_at, progress.until if progress is not None else None),
    )
    key_change_at = keys.find_next_change(at)
    if key_change_at is None or not state.tokens:
        return state
    return structs.replace(state, refresh_at=_find_earliest(state.refresh_at, key_change_at))


def _limit_open_maintenance(
    decision: Decision,
    current_plan: BootPlan | None,
    later_plans: list[tuple[datetime, BootPlan | None]],
    at: datetime,
    stop: StopScope,
    absent: frozenset[BootFile],
) -> tuple[list[tuple[datetime, BootPlan | None]], datetime | None]:
    """Limit a maintenance that has no end time to one hour.

    Return the later plans, and the time at which gitboot must render the server again. A running instance renders the
    server again before the hour ends. The hour begins at a multiple of 15 minutes, so that gitboot renders the same
    files if it renders the server twice.
    """
    last_start, last = later_plans[-1] if later_plans else (None, current_plan)
    if last is None or last.maintenance is None or last.boot is None:
        return later_plans, None
    until = at - (at - datetime.fromtimestamp(0, UTC)) % _QUARTER + _HOUR
    if last_start is not None and last_start >= until:  # an instance that runs at that time begins the window
        return later_plans[:-1], last_start - _HOUR + _QUARTER
    fallback = replace(make_fallback_plan(decision, last, stop, absent), cause=Cause.INSTANCE_SILENT)
    return [*later_plans, (until, fallback)], until - _HOUR + _QUARTER


def plan_stopped_server(state: ServerState, keys: TokenKeys) -> ServerState:
    """Return the server's state while all network boots are stopped. In this state, the server boots from its disk."""
    return plan_server(
        state.decision, state.record, state.at, state.details, StopScope.ALL, keys=keys, absent=state.absent
    )


def use_fallback_plans(
    state: ServerState, may_offer: Callable[[BootPlan], bool], tokens: Collection[Digest] = frozenset()
) -> ServerState:
    """Return the server's state. A fallback plan replaces each current or later plan that gitboot may not offer.

    If ``tokens`` contains the token of a replaced plan's user data, a running system can still fetch that user data.
    """

    def choose_plan(plan: BootPlan | None) -> BootPlan | None:
        if plan is None or plan.boot is None or may_offer(plan):
            return plan
        fallback = make_fallback_plan(state.decision, plan, state.stop, state.absent)
        if fallback.boot is None and plan.data in tokens:
            return replace(fallback, data=plan.data, user_data=plan.user_data)
        return fallback

    return structs.replace(
        state, plan=choose_plan(state.plan), later=tuple((since, choose_plan(plan)) for since, plan in state.later)
    )


def render_server(state: ServerState, decisions: Decisions, keys: TokenKeys) -> RenderedState:
    """Render all files of a planned server.

    The files include the files of later plans, so that all files exist at each transition. Plans contain the tokens
    from decisions. In the files for machines, published names made with ``keys`` replace these tokens.
    """
    decision, details = state.decision, state.details
    names = keys.build_names(state.tokens, state.at)
    plans = ((None, state.plan), *state.later)
    renderings = [_render_plan(decisions, state, since, plan, names) for since, plan in plans]
    idle_files = render_idle_files(decisions.outputs, decision, details.idle_macs)
    window_end = _find_window_end(decisions, state, renderings, names)
    stored_files = _collect_stored_files(renderings, window_end)
    listing = _build_listing(decision.server, renderings, window_end, {**stored_files, **idle_files})
    files = {**stored_files, **renderings[0].tree_files, **idle_files}
    files[listing_path(decision.server)] = File(render_listing(listing), ContentType.JSON)
    summary, plan_document = _build_state_summary(state), build_plan_document(decision, state.plan)
    if Output.PAGES in decisions.outputs:
        path, page_file = render_server_data(
            summary, plan_document, state.plan, state.later, details.machine, details.source
        )
        files[path] = page_file
    path_versions = _build_versions(renderings, idle_files)
    contents = _collect_contents(renderings, stored_files)
    contents |= {file.sha256: file.content.decode() for file in idle_files.values()}
    published = PublishedServer(
        server=decision.server,
        identities=tuple(sorted(set(_list_identities(decisions, decision, details, path_versions)))),
        shows=_list_firmware_identities(decision, details.machine),
        summary=summary,
        plan=plan_document,
        files={path: ListedFile(file.sha256, len(file.content)) for path, file in sorted(files.items())},
        contents=contents,
        paths=path_versions,
    )
    return RenderedState(
        **{name: getattr(state, name) for name in ServerState.__struct_fields__},
        files={**files, state_path(decision.server): File(endpoint_files.render_state(published), ContentType.JSON)},
        published=published,
    )


def _build_state_summary(state: ServerState) -> dict[str, Any]:
    """Return the plan in the form of the API, without files, and the facts about the server and its installation."""
    plan_summary = build_summary(state.decision, state.plan, {}, state.progress)
    del plan_summary["files"]
    return {
        **plan_summary,
        "site": state.details.site,
        "role": state.details.labels.get("role"),
        "labels": dict(state.details.labels),
        "step": install_step(state.decision, state.record),
        "provisioned": make_record_fields(state.record) if state.record is not None else None,
        "drift": find_drift(state.decision, state.record),
    }


class _Rendering(NamedTuple):
    """The files of one plan, with the values that the versions of these files need."""

    since: datetime | None  # None: the current plan
    files: Mapping[str, File]
    # for a boot that writes a disk: the files that an endpoint serves if it withholds the boot
    fallback_files: Mapping[str, File]
    plan: BootPlan | None
    tree_files: Mapping[str, File]  # the files in OUTPUT
    query_scripts: Mapping[str, File]  # for a one-time boot: the boot scripts that query the endpoint
    in_copies: bool  # whether OUTPUT and its copies serve one-time boots
    base_url: str | None  # an endpoint may store the assets of this base URL; None: a site's mirror stores them
    common_token: Digest | None  # the token with which the installer reports if the plan does not have a token
    names: PublishedNames
    # the evidence that a disk boot provides if gitboot expects the disk boot after a served installation
    disk_boot: Digest | None

    @property
    def maintenance(self) -> str | None:
        """The maintenance that selects the boot, even if it selects the disk boot."""
        return self.plan.maintenance if self.plan is not None else None

    @property
    def writes_disk(self) -> bool:
        return self.plan is not None and self.plan.writes_disk


def _render_plan(
    decisions: Decisions, server: ServerState, since: datetime | None, plan: BootPlan | None, names: PublishedNames
) -> _Rendering:
    decision, stop = server.decision, server.stop
    files = _render_named_files(decisions, decision, plan, names)
    policy_files: Mapping[str, File] = {}  # the files of the boot that the policy selects without maintenances
    writes_disk = plan is not None and plan.writes_disk
    if plan is not None and (writes_disk or needs_endpoint_query(decision, plan, stop)):
        # If an endpoint may withhold a boot, there must be a script that boots the disk, even for a restricted server.
        # The script that queries an endpoint ends with this script.
        unrestricted = replace(decision, restrict=False) if decision.restrict else decision
        fallback_plan = make_fallback_plan(decision, plan, stop, server.absent)
        if not writes_disk:
            fallback_plan = replace(fallback_plan, cause=Cause.POLICIES_ALONE)
        policy_files = _render_named_files(decisions, unrestricted, fallback_plan, names)
    is_once = plan is not None and plan.key is not None and writes_disk
    if plan is not None and is_once and _is_undetectable(server, plan):
        files.pop(HTTP_BOOT.build_path(decision.uuid), None)
    copy_files = select_copy_files(decision, plan, stop, files, policy_files)
    return _Rendering(
        since=since,
        files=files,
        fallback_files=policy_files if writes_disk else {},
        plan=plan,
        tree_files={path: file for path, file in copy_files.items() if find_non_script_kind(path) is not SECRET},
        query_scripts=render_query_scripts(decision, files, policy_files) if is_once else {},
        in_copies=decision.copies.one_time_boots,
        base_url=decisions.base_url if decision.base_url == decisions.base_url else None,
        common_token=decision.token,
        names=names,
        disk_boot=disk_boot_token(decision.uuid, install_progress(server.record, since or server.at)),
    )


def _is_undetectable(server: ServerState, plan: BootPlan) -> bool:
    """Return whether gitboot could not detect that the firmware has booted from the HTTP boot response of a plan.

    A DHCP server may fetch this response any number of times. Only a BMC, a boot script, or a system that fetches its
    user data shows that the firmware has booted.
    """
    machine, boot = server.details.machine, plan.boot
    has_bmc = machine is not None and machine.bmc is not None
    return not has_bmc and boot is not None and boot.is_direct and not boot.fetches_by_uuid


def _render_named_files(
    decisions: Decisions, decision: Decision, plan: BootPlan | None, names: PublishedNames
) -> dict[str, File]:
    """Return the boot files of a plan, with published names instead of tokens.

    If a system needs a token to fetch its user data, there are copies of the user data at paths without a token. These
    copies keep the tokens from decisions, because any client can fetch these paths, so they must not contain a
    published name.
    """
    files = render_server_files(decisions, decision, plan)
    user_data = plan.user_data if plan is not None else None
    if plan is None or user_data is None or plan.data is None:
        return names.rename_files(files)
    data_boots = (boot for boot in decision.boots if boot.user_data and boot.user_data.digest == user_data.digest)
    if any(boot.may_fetch_by_identity for boot in data_boots):
        return names.rename_files(files)
    paths_without_token = [path for path in files if find_non_script_kind(path) in (IGNITION, NOCLOUD, USER_DATA)]
    return names.rename_files(files, frozenset(paths_without_token))


class _WindowEnd(NamedTuple):
    """The end of the window that is open now."""

    since: datetime
    new_files: Files  # the files of the server from this instant on


def _find_window_end(
    decisions: Decisions, server: ServerState, renderings: list[_Rendering], names: PublishedNames
) -> _WindowEnd | None:
    """Return the end of the window that is open now.

    Return None if no window is open or if the window has no end. If another window follows immediately, use the files
    that apply without a maintenance, because a copy without a publisher can end windows, but cannot begin them. A
    one-time boot that writes the disk may end before its window.
    """
    current = renderings[0]
    if current.maintenance is None:
        return None
    for later in renderings[1:]:
        stops_writing = current.writes_disk and not later.writes_disk
        if later.since is None or (later.maintenance == current.maintenance and not stops_writing):
            continue
        if later.maintenance is None or later.plan is None:
            return _WindowEnd(later.since, later.tree_files)
        fallback = make_fallback_plan(server.decision, later.plan, server.stop, server.absent)
        return _WindowEnd(later.since, _render_named_files(decisions, server.decision, fallback, names))
    return None


def _collect_stored_files(renderings: list[_Rendering], window_end: _WindowEnd | None) -> dict[str, File]:
    """Return the files that the output tree stores although the current plan may not need them yet."""
    stored_files = {
        path: file for rendering in renderings for path, file in rendering.files.items() if _is_separate_file(path)
    }
    if window_end is not None:
        stored_files |= {path: file for path, file in window_end.new_files.items() if is_content(path)}
    return stored_files


def _build_listing(
    server: str, renderings: list[_Rendering], window_end: _WindowEnd | None, constant_files: Files
) -> Listing:
    """Return the listing of a server. ``constant_files`` are the files that do not depend on the time."""
    listed_files = build_file_versions([(rendering.since, rendering.tree_files) for rendering in renderings])
    listed_files |= build_file_versions([(None, constant_files)])
    end = None
    if window_end is not None:
        end = build_window_end(window_end.since, renderings[0].tree_files, window_end.new_files)
    return Listing(server=server, files=dict(sorted(listed_files.items())), end=end)


def _build_versions(renderings: list[_Rendering], idle_files: Mapping[str, File]) -> dict[str, tuple[PathVersion, ...]]:
    """Return the versions of each path whose content may change, sorted by path.

    ``idle_files`` are the same for every plan. A fetch of these files is not evidence.
    """
    path_versions: dict[str, tuple[PathVersion, ...]] = {}
    for path in {path for rendering in renderings for path in rendering.files if not is_immutable(path)}:
        kind = find_path_kind(path)
        assert kind is not None, path  # noqa: S101 - the table has all paths of a server
        versions: list[PathVersion] = []
        for rendering in renderings:
            version = _build_version(kind, path, rendering)
            if versions and version == versions[-1]._replace(since=version.since, in_window=version.in_window):
                versions[-1] = versions[-1]._replace(in_window=versions[-1].in_window and version.in_window)
            elif versions or version.content is not None:
                versions.append(version)
        path_versions[path] = tuple(versions)
    for path, file in idle_files.items():
        path_versions[path] = (
            PathVersion(since=None, content=file.sha256, content_type=str(file.content_type), role=Role.BOOT_SCRIPT),
        )
    return dict(sorted(path_versions.items()))


_WINDOW_ROLES: Final = (Role.BOOT_SCRIPT, Role.OFFER, Role.PREVIEW, Role.DATA)


def _build_version(kind: PathKind, path: str, rendering: _Rendering) -> PathVersion:
    file, plan = rendering.files.get(path), rendering.plan
    in_window = plan is not None and plan.phase is Phase.MAINTENANCE
    digest = _find_evidence(kind, path, rendering) if file is not None else None
    return PathVersion(
        since=rendering.since,
        content=file.sha256 if file is not None else None,
        content_type=str(file.content_type if file is not None else kind.content_type),
        role=kind.role,
        digest=digest,
        writes=_build_disk_write(kind, path, file, digest, rendering) if file is not None else None,
        # a path with a token belongs to one boot, whose system may still run after the window
        in_window=in_window and kind.role in _WINDOW_ROLES and kind is not DATA,
    )


def _find_evidence(kind: PathKind, path: str, rendering: _Rendering) -> Digest | None:
    """Return the plan digest or the installation token for which a completed GET is evidence.

    A fetch of a boot that is served every time is not evidence, unless the boot belongs to a maintenance and writes a
    disk. If the installer does not send a report, a fetch of the local-disk boot proves that a served installation has
    ended.
    """
    plan = rendering.plan
    if (name := find_token(path)) is not None:
        return rendering.names.find_token(name)
    if plan is None or plan.boot is None:
        return rendering.disk_boot if kind.role is Role.BOOT_SCRIPT else None
    if not plan.is_fetch_evidence:
        return None
    boot = plan.boot
    match kind.role:
        case Role.BOOT_SCRIPT if _is_withheld_script(kind, plan):
            return None
        case Role.BOOT_SCRIPT:
            goes_to_disk = boot.is_direct and (
                boot.direct_uki is None or (boot.fetches_by_uuid and kind is IPXE_BY_SERIAL)
            )
            return None if goes_to_disk else plan.digest
        case Role.DATA:
            return plan.digest if boot.fetches_by_uuid else None
        case Role.PREVIEW | Role.MEDIUM:
            return None
    return plan.digest


def _is_withheld_script(kind: PathKind, plan: BootPlan) -> bool:
    """Return whether this boot script boots from the local disk because iPXE would not find a signature."""
    is_script = kind.role is Role.BOOT_SCRIPT and find_loader(kind.template) is ScriptLoader.IPXE
    return is_script and plan.is_withheld_from_ipxe


def _build_disk_write(
    kind: PathKind, path: str, file: File, digest: Digest | None, rendering: _Rendering
) -> DiskWrite | None:
    plan = rendering.plan
    if plan is None or plan.boot is None or not plan.writes_disk or (plan.key is not None and not digest):
        return None
    is_once, is_data = plan.key is not None, kind.role is Role.DATA
    is_offer = kind is HTTP_BOOT and kind.role is Role.OFFER and plan.boot.is_direct
    is_script = kind.role is Role.BOOT_SCRIPT and not _is_withheld_script(kind, plan)
    if not (is_script or is_offer or (is_data and is_once and plan.boot.fetches_by_uuid)):
        return None
    report = None  # a one-time boot of a maintenance is not an installation
    if is_once and plan.phase is Phase.NETWORK:
        report = plan.token if plan.token is not None else rendering.common_token
    fallback_file, query_script = rendering.fallback_files.get(path), rendering.query_scripts.get(path)
    return DiskWrite(
        once=is_once,
        offer=plan.offer,
        hop=query_script.sha256 if query_script is not None else None,
        fallback=fallback_file.sha256 if fallback_file is not None and not is_data else None,
        needs=_list_needed_files(file, plan.boot, rendering.base_url) if not is_data else (),
        report=report,
        in_copies=is_once and rendering.in_copies,
    )


def _list_needed_files(file: File, boot: Boot, base_url: str | None) -> tuple[NeededFile, ...]:
    text, needed = file.content.decode(), set[NeededFile]()
    if base_url is not None:
        prefixes = (f"{base_url}/assets/", f"{base_url}/o/")
        sizes = [(file.url, file.size) for file in boot.files.all()]
        sizes += [(url, None) for url in boot.files.loader_signatures.values()]
        for url, size in sizes:
            path = url.removeprefix(f"{base_url}/")
            if url.startswith(prefixes) and f"/{path}" in text:
                needed.add(NeededFile(unquote(path.partition("?")[0]), size))
    if (data := boot.user_data) is not None and f"/{data.folder}/" in text:
        # cached, because the path of a file contains the digest of the file
        needed |= {NeededFile(f"{data.folder}/{name}", None) for name in data.files}
    return tuple(sorted(needed, key=lambda need: (need.path, need.size or 0)))


def _collect_contents(renderings: list[_Rendering], stored_files: Mapping[str, File]) -> dict[str, str]:
    stored_digests = {file.sha256 for file in stored_files.values()}
    return {
        file.sha256: file.content.decode()
        for rendering in renderings
        for files in (rendering.files, rendering.fallback_files, rendering.query_scripts)
        for path, file in files.items()
        if path.startswith(BOOT) and not _is_separate_file(path) and file.sha256 not in stored_digests
    }


@lru_cache(maxsize=1024)  # cached, because gitboot looks up each path of a server several times
def _is_separate_file(path: str) -> bool:
    """Return whether the output tree stores the content of a path as a separate file, and not in the server's state."""
    return is_immutable(path) or find_non_script_kind(path) is MEDIUM


def _list_firmware_identities(decision: Decision, machine: Machine | None) -> dict[str, tuple[str, ...]]:
    uuids, serials = [*lookup_uuids(decision.uuid)], {decision.serial}
    if machine is not None:
        serials.add(machine.serial)
        if machine.bmc is not None:
            serials.add(machine.bmc.reports_serial)
            if machine.bmc.reports_uuid is not None:
                uuids += lookup_uuids(machine.bmc.reports_uuid)
    known_serials = (serial for serial in serials if serial is not None and not is_placeholder_serial(serial))
    # the first UUID is the UUID in messages
    return {"serial": tuple(sorted(known_serials)), "uuid": tuple(dict.fromkeys(uuids))}


def _list_identities(
    decisions: Decisions, decision: Decision, details: ServerDetails, paths: Collection[str]
) -> Iterator[str]:
    """Yield the identities of a server with these ``paths``, including the identities that other systems use."""
    yield from (format_identity(IdentityKind.MAC, mac) for mac in (*decision.macs, *details.idle_macs))
    yield from (format_identity(IdentityKind.UUID, uuid) for uuid in lookup_uuids(decision.uuid))
    yield from (format_identity(IdentityKind.ADDRESS, address) for address in details.addresses)
    if decision.serial is not None:
        yield format_identity(IdentityKind.SERIAL, decision.serial)
    if Output.BSS in decisions.outputs:
        names = {decision.server, details.labels.get("xname", decision.server)}
        yield from (format_identity(IdentityKind.NAME, name) for name in names)
        if (nid := details.labels.get("nid")) is not None:
            yield format_identity(IdentityKind.NID, nid)
    if Output.FOREMAN in decisions.outputs:
        tokens = (find_token(path) for path in paths if find_non_script_kind(path) in REPORTS)
        yield from (format_identity(IdentityKind.TOKEN, token) for token in tokens if token is not None)


# The columns of a shard's rows on the page.
_COLUMNS: Final = (
    "name",
    "uuid",
    "macs",
    "site",
    "labels",
    "phase",
    "image",
    "version",
    "policy",
    "maintenance",
    "nextTransition",
    "step",
    "stream",
    "joins",
    "kept",
    "decided",
    "provisioned",
    "windows",
    "installs",
    "installing",
)


def render_page_files(
    servers: Mapping[str, ServerState],
    revision: str,
    fleet_json: bytes | None,
    locations: SourceLocations,
    changed: Collection[str] | None = None,
    published_locations: SourceLocations | None = None,
) -> FileUpdates:
    """Return the page's files that depend on the servers in ``changed``, or all of its files if ``changed`` is None.

    ``fleet_json`` contains the streams and the windows of the commit. ``published_locations`` are the source locations
    on the published page, or None if the page does not show source locations yet.
    """
    members: dict[str, list[str]] = {}  # server names by shard, in the order of the servers
    for name in servers:
        members.setdefault(page_shard(name), []).append(name)
    changed_shards = members.keys() if changed is None else {page_shard(name) for name in changed}
    moved_shards = changed_shards
    if changed is not None and published_locations is not None:
        moved_servers = find_differing_keys(published_locations.servers, locations.servers)
        moved_shards = {page_shard(name) for name in moved_servers}
    values: dict[str, object] = {  # the values in data scripts, by the name of the script
        "fleet": {
            "format": FORMAT,
            "commit": revision,
            "servers": len(servers),
            "shards": sorted(members),
            **(json.loads(fleet_json) if fleet_json is not None else {}),
        }
    }
    for shard in sorted(changed_shards & members.keys()):
        values[f"shard/{shard}"] = _build_shard([servers[name] for name in members[shard]])
    # For each server, the file of the Server document, and the number of lines above the document.
    for shard in sorted(moved_shards & members.keys()):
        values[f"location/{shard}"] = {name: list(locations.servers[name]) for name in members[shard]}
    if changed is None or published_locations is None or published_locations.shared != locations.shared:
        values["location/shared"] = {
            name: {"file": location.file, "lines": location.lines} for name, location in locations.shared.items()
        }
    files = {
        f"{PAGE}{name}": File(read_page_file(name), content_type) for name, content_type in PAGE_CONTENT_TYPES.items()
    }
    for name, value in values.items():
        files[f"{PAGE_DATA}{name}.js"] = File(render_data_script(name, encode_canonical(value)), SCRIPT)
    removed_names = [f"shard/{shard}" for shard in changed_shards if shard not in members]
    removed_names += [f"location/{shard}" for shard in moved_shards if shard not in members]
    return FileUpdates(
        files=files,
        removed=frozenset(f"{PAGE_DATA}{name}.js" for name in removed_names),
        is_whole=changed is None,
    )


def _build_shard(states: Iterable[ServerState]) -> dict[str, Any]:
    """Return a table with one row for each server."""
    rows = [_build_row(state) for state in states]
    return {"columns": _COLUMNS, "rows": [[row[column] for column in _COLUMNS] for row in rows]}


def _build_row(state: ServerState) -> dict[str, Any]:
    """Return the values of a server by column of the page."""
    decision, plan, details, source = state.decision, state.plan, state.details, state.details.source
    boot, policy = plan.boot if plan is not None else None, decision.policy
    transitions = (format_instant(since) for since, _ in list_plan_changes(plan, state.later))
    installs = None
    if (installs_at := state.installs_at) is not None:
        installs = "now" if installs_at == state.at else format_instant(installs_at)
    progress = state.progress
    return {
        "name": decision.server,
        "uuid": decision.uuid,
        "macs": list(decision.macs),
        "site": details.site,
        "labels": dict(details.labels),
        "phase": plan.phase if plan is not None else None,
        "image": boot.image if boot is not None else None,
        "version": boot.version if boot is not None else None,
        "policy": policy.policy if policy is not None else None,
        "maintenance": plan.maintenance if plan is not None else None,
        "nextTransition": next(transitions, None),
        "step": install_step(decision, state.record),
        "stream": source.stream if source is not None else None,
        "joins": source.joins if source is not None else None,
        "kept": source.kept if source is not None else None,
        "decided": policy.boot.image if policy is not None and policy.boot is not None else None,
        "provisioned": state.record.installed if state.record is not None else None,
        "windows": [maintenance.name for maintenance in decision.maintenances],
        "installs": installs,
        "installing": progress.facts() if progress is not None else None,
    }
