"""`gitboot images`, `update-images` and `rollout`: show uses of images, propose releases, and widen rollouts."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import click
from msgspec import Struct, structs

from gitboot.child_processes import lift_processor_limit
from gitboot.cli.commands.artifacts import build_fetcher
from gitboot.cli.commands.new import image_keys_option, open_image_keys
from gitboot.cli.completion import complete_streams
from gitboot.cli.evaluated_fleet import FleetEvaluator, plan_fleet, print_missing_instance, records_option
from gitboot.cli.evaluator_child import SetLimits, evaluator_command, limit_evaluation
from gitboot.cli.instance_client import InstanceReader, StateReader, open_instance, read_rollout_evidence
from gitboot.cli.main import Command, Exit, Group, find_exit_code
from gitboot.cli.options import (
    VARIABLES,
    OutputOption,
    at_option,
    current_second,
    current_time,
    fleet_argument,
    open_registries,
    output_option,
    path_option,
    registry_options,
    shown_state_option,
    token_over_http_option,
    write_outputs,
)
from gitboot.cli.terminal import format_table, show_downloads, wrap_text
from gitboot.errors import UsageError
from gitboot.files import is_directory, write_output_file
from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.revision import Revision, Snapshot
from gitboot.fleet.yaml import replace_scalar
from gitboot.git.branch_writer import (
    branch_contains_files,
    build_branch_prefix,
    check_branch,
    propose_commit,
    write_bundle,
)
from gitboot.git.snapshots import WORKTREE, open_snapshot
from gitboot.image_sources.find_releases import ReleaseFinder, find_source
from gitboot.image_sources.image_builder import format_origin
from gitboot.image_sources.stream_updates import StreamUpdate, StreamUpdater, list_followed_streams
from gitboot.jsonio import format_document, to_json_value
from gitboot.model.boot_image import Follow, Provenance, RequiredProvenance, Rollout
from gitboot.model.fleet import Evidence
from gitboot.resolve.explanation import describe_origin
from gitboot.resolve.fleet_decisions import FleetDecisions
from gitboot.review.formats.markdown import format_code_block
from gitboot.review.images import (
    AppliedRollout,
    ImageReport,
    JoiningServers,
    OptOutUse,
    RolloutProgress,
    StepOutcome,
    StreamUse,
    decide_next_step,
    find_applied_rollout,
    report_images,
)
from gitboot.standard_streams import style
from gitboot.text import format_count, format_names, format_suggestion


@click.command(
    cls=Command,
    example="gitboot images fleet --records /srv/gitboot/ops/records",
    exit_codes={
        Exit.FINE: "gitboot printed the images",
        Exit.INVALID: "the fleet has errors",
    },
)
@fleet_argument
@at_option
@records_option
@shown_state_option
@output_option("text", "json")
@evaluator_command
def command(
    path: Path,
    rev: str | None,
    at: datetime | None,
    records: str | None,
    state: Path | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Show each image and the servers that boot it.

    PATH is the fleet. With --state, gitboot shows the commit that an instance has accepted, with the records of the
    instance.

    For each image and stream, gitboot counts the servers that boot it, and the servers that were installed with it. It
    then lists pins and holds with their reasons and deadlines, servers below the minimum version of their stream, and
    the servers that the next steps of a rollout reach. Deadlines and windows depend on --at.

    If images state their provenance, gitboot also lists the claims and the hosts of the files. `gitboot artifacts
    signatures` verifies the claims. For each stream, gitboot lists the source that the stream follows, and whether
    the stream requires signed images.
    """
    fleet = plan_fleet(path, rev, at or current_second(), records, state)
    known_records = fleet.records if fleet.has_all_records else None
    report = report_images(fleet.repository, fleet.drop_ended_windows(), known_records, fleet.at)
    write_outputs(
        outputs,
        json=partial(format_document, **to_json_value(report), revision=fleet.decisions.revision),
        text=partial("\n\n".join, list(_format_tables(report))),
    )
    print_missing_instance(records, state)


def _format_tables(report: ImageReport) -> Iterator[str]:
    """Yield the table of images, and each other table that has rows."""
    image_rows = [
        (
            image.name,
            image.version,
            str(image.decided),
            "?" if image.provisioned is None else str(image.provisioned),
            str(image.maintenances),
            ", ".join(image.streams) or "-",
        )
        for image in report.items
    ]
    yield format_table(("IMAGE", "VERSION", "PLANNED", "INSTALLED", "MAINTENANCE", "STREAMS"), image_rows, optional=1)
    provenance_rows: list[tuple[str, ...]] = []
    if any(provenance is not None for image in report.items for provenance in image.files.values()):
        provenance_rows = [
            (image.name, _format_origins(image.files.values()), ", ".join(image.hosts)) for image in report.items
        ]
    more_tables: dict[tuple[str, ...], list[tuple[str, ...]]] = {  # the rows by header
        ("VERSION FROM ANOTHER TOOL", "INSTALLED"): [
            (version, str(number)) for version, number in report.foreign.items()
        ],
        ("IMAGE", "CLAIMED PROVENANCE", "FILES FROM"): provenance_rows,
        ("STREAM", "SERVERS", "CURRENT", "ROLLOUT"): list(map(_format_stream, report.streams)),
        ("STREAM", "FOLLOWS", "REQUIRED PROVENANCE"): [
            (stream.name, _format_follow(stream.follow), stream.require_provenance)
            for stream in report.streams
            if stream.follow is not None or stream.require_provenance is RequiredProvenance.SIGNED
        ],
        ("BOOTS WITHOUT A STREAM", "IMAGE", "STREAM THAT REQUIRES SIGNED IMAGES"): [
            (str(boot.document), boot.image, boot.stream) for boot in report.uncovered
        ],
        ("ROLLOUT", "PERCENT", "ADDED", "SERVERS"): [
            (stream.name, *row) for stream in report.streams for row in _format_next_servers(stream.joining)
        ],
        ("PIN OR HOLD", "IMAGE", "DEADLINE", "SERVERS"): list(map(_format_opt_out, report.behind)),
        ("SERVER", "IMAGE", "VERSION", "MINIMUM VERSION", "STREAM"): [
            (server.server, server.image, server.version, server.minimum_version, server.stream)
            for server in report.too_old
        ],
    }
    reasons = {"PIN OR HOLD": [wrap_text(opt_out.reason, "    ") for opt_out in report.behind]}
    for header, rows in more_tables.items():
        if rows:
            yield format_table(header, rows, below=reasons.get(header[0], ()))


def _format_origins(files: Iterable[Provenance | None]) -> str:
    """Return where the digests of an image's files come from.

    If the origins differ, add the number of files for each origin. The weakest origin comes first.
    """
    counts = Counter(map(describe_origin, files))
    texts = sorted(counts, key=lambda text: (text.startswith("signed"), text != "not stated", text))
    return ", ".join(text if len(counts) == 1 else f"{text}: {format_count(counts[text], 'file')}" for text in texts)


def _format_follow(follow: Follow | None) -> str:
    """Format the source that a stream follows, and the rules for choosing releases."""
    if follow is None:
        return "-"
    parts: list[str] = [follow.source]
    if follow.channel is not None:
        parts.append(f"channel {follow.channel}")
    if follow.minimum_version is not None:
        parts.append(f"from {follow.minimum_version}")
    if follow.below_version is not None:
        parts.append(f"below {follow.below_version}")
    if follow.minimum_age != "0s":
        parts.append(f"after {follow.minimum_age}")
    return ", ".join((*parts, *follow.architectures, f"begins at {follow.percent} %"))


def _format_stream(stream: StreamUse) -> tuple[str, ...]:
    current = f"{stream.current} ({stream.images.get(stream.current, 0)})"
    rollout = "-"
    if stream.rollout is not None:
        rollout = f"{stream.rollout} at {stream.percent} % ({stream.images.get(stream.rollout, 0)})"
    return stream.name, str(sum(stream.images.values())), current, rollout


_MAX_NAMES: Final = 3  # maximum number of servers in a cell


def _format_opt_out(opt_out: OptOutUse) -> tuple[str, ...]:
    deadline = f"{opt_out.until:%Y-%m-%d}" if opt_out.until is not None else "-"
    if opt_out.overdue:
        deadline = style(f"{deadline} overdue", fg="red")
    return opt_out.what, opt_out.image, deadline, format_names(opt_out.servers, _MAX_NAMES) or "none"


_MAX_STEPS: Final = 8  # rows for the percentages at which servers join, as in page.js


def _format_next_servers(joining: Sequence[JoiningServers]) -> Iterator[tuple[str, str, str]]:
    """Yield a row for each of the next steps of a rollout, and one row for all later steps."""
    rows = [(f"{step.percent} %", step.servers) for step in joining[:_MAX_STEPS]]
    later_steps = joining[_MAX_STEPS:]
    if later_steps:
        last = f"–{later_steps[-1].percent}" if len(later_steps) > 1 else ""
        servers = tuple(server for step in later_steps for server in step.servers)
        rows.append((f"{later_steps[0].percent}{last} %", servers))
    for percent, servers in rows:
        yield percent, str(len(servers)), format_names(servers, _MAX_NAMES)


# gitboot update-images


_PREFIX: Final = "gitboot/update-"


class CommittedFleet:
    """The fleet in a commit on which new commits are based."""

    def __init__(self, path: Path, base: str | None, evaluator: FleetEvaluator) -> None:
        self.path, self._evaluator = path, evaluator
        with limit_evaluation() as set_limits:
            self.snapshot = open_snapshot(path, base or "HEAD")
            if self.snapshot.revision == WORKTREE:
                raise UsageError("--base WORKTREE is not a commit: choose a commit or a branch")
            self.repository = self._evaluate(self.snapshot, set_limits)
        lift_processor_limit()  # lift the limit on processor time, which downloads need too

    def validate(self, snapshot: Snapshot) -> FleetRepository:
        """Return a changed fleet. Raises `InvalidRepository` if the changed fleet has errors."""
        with limit_evaluation() as set_limits:
            repository = self._evaluate(snapshot, set_limits)
        lift_processor_limit()
        return repository

    def _evaluate(self, snapshot: Snapshot, set_limits: SetLimits) -> FleetRepository:
        return self._evaluator.evaluate(snapshot, set_limits).head.decided.repository


@click.command(
    cls=Command,
    context_settings=VARIABLES,
    example="gitboot update-images --bundle updates.bundle",
    exit_codes={
        Exit.FINE: "gitboot checked all streams; the output lists the proposals and the waiting streams",
        Exit.INVALID: "the fleet has errors, or would have errors with a new image",
        Exit.SOURCE: "a source did not respond, or sent an invalid file; other streams may still have proposals",
    },
)
@click.argument("stream", nargs=-1, shell_complete=complete_streams)
@path_option
@click.option("--base", metavar="REVISION", help="The parent of the new commits. Default: HEAD.")
@click.option(
    "--branch-prefix",
    default=_PREFIX,
    show_default=True,
    metavar="TEXT",
    help="The prefix of the names of new branches. The stream and the image follow.",
)
@click.option(
    "--bundle",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Also write the new branches to this Git bundle, and the results to FILE.json, for a job that pushes the "
    "branches. Without new branches, gitboot writes only FILE.json. Default: none.",
)
@image_keys_option
@click.option("--dry-run", is_flag=True, help="Print the new documents. Write nothing.")
@registry_options
@output_option("text", "json")
@evaluator_command
def update_images_command(
    stream: tuple[str, ...],
    path: Path,
    base: str | None,
    branch_prefix: str,
    bundle: Path | None,
    image_keys: Path | None,
    dry_run: bool,
    outputs: tuple[OutputOption, ...],
    **registry_arguments: Any,
) -> None:
    """Propose new image releases for streams.

    For each STREAM with spec.follow, gitboot looks for a release that is newer than the images of the stream, and
    downloads and verifies all files of the release. It then makes one commit on a new branch, for a pull request. The
    commit adds the BootImage and begins the rollout. Default: all streams with spec.follow.

    gitboot does not change the work tree or an existing BootImage, and does not move the current image. A stream with
    an unfinished rollout waits. If the index of the source has no dates, gitboot uses the age of the commit as the age
    of the release. gitboot then makes the commit before the release has the minimum age.
    """
    if dry_run and bundle is not None:
        raise UsageError("--dry-run makes no branches: remove --bundle")
    if bundle is not None and not is_directory(bundle.parent):
        raise UsageError(f"{bundle.parent} is not a directory: create it, or correct --bundle")
    check_branch(f"{branch_prefix}stream")
    now = current_second()
    registry = open_registries(**registry_arguments)
    fleet = CommittedFleet(path, base, FleetEvaluator(now))
    sources = fleet.repository.image_sources
    followed = list_followed_streams(fleet.repository, stream, lambda name: find_source(name, sources))
    fetcher = build_fetcher(fleet.repository.fleet.spec.base_url, None, registry)
    with open_image_keys(image_keys) as keys, show_downloads() as progress:
        reader = ReleaseFinder(fetcher, keys, registry)
        updater = StreamUpdater(fleet, reader, progress, branch_prefix=branch_prefix, now=now, dry_run=dry_run)
        results = [updater.update(followed_stream) for followed_stream in followed]
    updates = [update for update, _ in results]
    errors = [error for _, error in results if error is not None]
    as_json = partial(_format_json, fleet.snapshot.revision, updates)
    if bundle is not None:
        new_branches = [update.branch for update in updates if update.branch is not None and update.new]
        if new_branches:
            write_bundle(path, bundle, new_branches)
        write_output_file(bundle.with_name(f"{bundle.name}.json"), [f"{as_json()}\n".encode()])
    write_outputs(outputs, json=as_json, text=lambda: "\n".join(_format_text(updates)))
    sys.exit(find_exit_code(errors[0]) if errors else Exit.FINE)


def _format_json(base: Revision, updates: Sequence[StreamUpdate]) -> str:
    """Return the results as JSON.

    ``body`` is the text for a pull request. Vendor text in it is in code blocks, so that forges do not interpret the
    text.
    """
    items = [
        {
            **to_json_value(update),
            "body": format_code_block(update.message.splitlines()) if update.message else "",
        }
        for update in updates
    ]
    return format_document(base=base, streams=items)


def _format_text(updates: Sequence[StreamUpdate]) -> Iterator[str]:
    if not updates:
        yield wrap_text("no stream in the commit has spec.follow; if you added this field, commit the change first")
    for update in updates:
        yield wrap_text(f"{update.stream}: {update.outcome.lower()}: {update.why}")
        for file in update.files:
            yield wrap_text(f"{'.'.join(map(str, file.at))}: {format_origin(file)}", "    ", continuation="        ")
        if update.branch is not None:
            if update.new:
                commit_text = f"gitboot committed this proposal to the branch {update.branch}"
            elif update.commit is not None:
                commit_text = f"this proposal is already on the branch {update.branch}"
            else:
                commit_text = f"gitboot would commit this proposal to the branch {update.branch}"
            yield wrap_text(commit_text, "    ")
        for superseded_branch in update.supersedes:
            yield wrap_text(f"this proposal supersedes the branch {superseded_branch}", "    ")
        if update.commit is None and update.document:
            yield ""
            yield update.document


# gitboot rollout


class PercentListType(click.ParamType[tuple[int, ...]]):
    """A list of percentages in increasing order, with or without percent signs."""

    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip().removesuffix("%").rstrip() for part in value.split(",")]
        steps = tuple(int(part) for part in parts if part.isdecimal() and len(part) <= 3)
        if len(steps) != len(parts) or list(steps) != sorted(set(steps)) or steps[-1] > 100:
            self.fail(f"{value!r}: expected percentages in ascending order, for example 1,10,50,100", param, context)
        return steps


class PercentType(click.ParamType[int]):
    """A percentage, with or without a percent sign."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        text = str(value).removesuffix("%").strip()
        if not text.isdecimal() or len(text) > 3 or not 0 < int(text) <= 100:
            self.fail(f"{value!r}: expected a percentage from 1% to 100%", param, context)
        return int(text)


@click.group(
    context_settings=VARIABLES,
    cls=Group,
    example=("gitboot rollout advance flatcar --steps 1,10,50,100 \\\n    --records https://boot.example.net"),
)
def rollout_command() -> None:
    """Raise a rollout's percentage after a step succeeds."""


@rollout_command.command(
    "advance",
    context_settings=VARIABLES,
    example=("gitboot rollout advance flatcar --steps 1,10,50,100 \\\n    --records https://boot.example.net"),
    exit_codes={
        Exit.FINE: "gitboot committed the next step, or the rollout is complete",
        Exit.INVALID: "the fleet has errors",
        Exit.HELD: "the rollout stopped because an installation failed",
        Exit.SOURCE: "the instance did not respond, or its response is not valid",
        Exit.WAITS: "the step is not complete yet, or --steps has no higher step",
    },
)
@click.argument("stream", shell_complete=complete_streams)
@path_option
@click.option(
    "--steps",
    type=PercentListType(),
    required=True,
    metavar="PERCENT,…",
    help="The percentages of the steps, for example 1,10,50,100.",
)
@click.option(
    "--after",
    type=PercentType(),
    default="100%",
    show_default=True,
    metavar="PERCENT",
    help="The percentage of the servers of the current step that must be installed with the new image.",
)
@click.option(
    "--records",
    multiple=True,
    metavar="URL|OUTPUT",
    help="The source of the records: the URL of the instance's API, its output tree, or ops/records in the "
    "output tree. Repeat the option if sites have their own instances. Default: the ledger in --state.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="The state directory of the instance, on its host. gitboot reads the status and the ledger there. "
    "Default: the variable GITBOOT_STATE.",
)
@click.option(
    "--api-token",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file with a token for the API. Default: none.",
)
@click.option(
    "--ca-bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A PEM file with certificate authorities for the API, in addition to those of this machine. Default: none.",
)
@token_over_http_option
@click.option(
    "--accept-fetched",
    is_flag=True,
    help="Count a server as installed once it has fetched its boot, even if no installer reported completion. You "
    "need this option if the Fleet has `evidence: Fetched`.",
)
@click.option("--branch", metavar="NAME", help="The name of the new branch. Default: gitboot/rollout-STREAM-PERCENT.")
@click.option("--rev", metavar="REVISION", help="The parent of the new commit. Default: HEAD.")
@click.option(
    "--no-commit", is_flag=True, help="Only change the file in the work tree. Do not create a branch or a commit."
)
@click.option("--dry-run", is_flag=True, help="Print what gitboot would do. Write nothing.")
@output_option("text", "json")
@evaluator_command
def advance_stream(
    stream: str,
    path: Path,
    steps: tuple[int, ...],
    after: int,
    records: tuple[str, ...],
    state: Path | None,
    api_token: Path | None,
    ca_bundle: Path | None,
    allow_token_over_http: bool,
    accept_fetched: bool,
    branch: str | None,
    rev: str | None,
    no_commit: bool,
    dry_run: bool,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Commit the next percentage after a step succeeded.

    A step of STREAM has succeeded if the instance has applied the step, and --after percent of the servers in the step
    are installed with the new image. gitboot then commits the next percentage on a new branch, for a pull request. It
    does not change the work tree. If the branch already exists, gitboot does not commit.

    gitboot waits if too few servers are installed, if a server is unknown, or if the status of the instance is old. It
    stops if an installation failed.

    A fetch does not prove that an image is on a disk. If the Fleet has `evidence: Fetched`, gitboot therefore advances
    only with --accept-fetched.
    """
    if branch is not None:
        check_branch(branch)
    if rev is not None and no_commit:
        raise UsageError("--no-commit changes the file in the work tree: remove --rev")
    evaluator = FleetEvaluator(current_time())
    proposal: _Proposal | None = None
    with limit_evaluation() as set_limits:
        instances: list[InstanceReader] = [
            open_instance(place, api_token, ca_bundle, allow_token_over_http=allow_token_over_http) for place in records
        ]
        if not instances and state is not None:
            instances = [StateReader(state, current_time(), set_limits)]
        if not instances:
            raise UsageError("specify --records or --state, because only records show which servers are installed")

        def decide(snapshot: Snapshot) -> FleetDecisions:
            return evaluator.evaluate(snapshot, set_limits).head.decided

        def find_applied_commit(commit: Revision) -> AppliedRollout:
            try:
                applied_snapshot = open_snapshot(path, commit)
            except UsageError as error:
                raise UsageError(f"{error}. The instance has applied this commit: run `git fetch`") from None
            applied = decide(applied_snapshot)
            return find_applied_rollout(stream, applied.repository, applied.decisions)

        snapshot = open_snapshot(path, WORKTREE if no_commit else rev or "HEAD")
        repository = decide(snapshot).repository
        rollout = _find_rollout(stream, repository, accept_fetched=accept_fetched)
        if rollout is None:
            progress = RolloutProgress(stream=stream, outcome=StepOutcome.COMPLETE, why="the stream has no rollout")
        else:
            evidence = [read_rollout_evidence(instance, find_applied_commit) for instance in instances]
            known_records = {uuid: record for _, report in evidence for uuid, record in report.records.items()}
            judgements = [
                decide_next_step(
                    stream,
                    rollout,
                    applied_rollout,
                    structs.replace(report, records=known_records),
                    steps=steps,
                    after=after,
                    at=current_time(),
                    accept_fetched=accept_fetched,
                )
                for applied_rollout, report in evidence
            ]
            progress = max(judgements, key=lambda each: list(StepOutcome).index(each.outcome))
        if progress.next is not None:
            file, content, changed_snapshot = _build_change(progress, snapshot, repository)
            decide(changed_snapshot)  # this raises `InvalidRepository` if the changed fleet is invalid
            default_branch = f"{build_branch_prefix('gitboot/rollout-', path)}{stream}-{progress.next}"
            branch = None if no_commit else branch or default_branch
            proposal = _Proposal(made="Nothing", file=file, message=_format_commit_message(progress), branch=branch)
    if proposal is not None:
        proposal = _write_proposal(path, snapshot.revision, proposal, content, dry_run=dry_run)
    as_json = partial(format_document, **to_json_value(progress), proposal=to_json_value(proposal))
    write_outputs(outputs, json=as_json, text=partial(_format_rollout, progress, proposal))
    exit_codes = {StepOutcome.WAITS: Exit.WAITS, StepOutcome.STOPPED: Exit.HELD}
    sys.exit(exit_codes.get(progress.outcome, Exit.FINE))


class _Proposal(Struct, frozen=True, kw_only=True):
    """A change to the percentage of a rollout."""

    made: Literal["Written", "Proposed", "Nothing"]  # Proposed: the branch already existed; Nothing: this is a dry run
    file: str  # the path of the changed file in the fleet
    message: str  # the commit message
    branch: str | None  # None: the change is only in the work tree
    commit: Revision | None = None


def _find_rollout(stream: str, repository: FleetRepository, *, accept_fetched: bool) -> Rollout | None:
    """Return a stream's rollout, or None if the stream has no rollout.

    Raises `UsageError` if the Fleet's evidence is Fetched and ``accept_fetched`` is not set.
    """
    if stream not in repository.streams:
        hint = format_suggestion(stream, repository.streams, "`gitboot images` lists the streams")
        raise UsageError(f"there is no ImageStream {stream!r}; {hint}")
    rollout = repository.streams[stream].spec.rollout
    fleet = repository.fleet
    if rollout is not None and fleet.spec.provisioning.evidence is Evidence.FETCHED and not accept_fetched:
        name = fleet.metadata.name
        raise UsageError(
            f"{repository.origins[Id('Fleet', name)].path}: Fleet {name}: spec.provisioning.evidence is "
            "Fetched, but a fetch does not prove that the image is on a disk. Set `evidence: Reported` and let the "
            "installers report their completion. To advance without proof, add --accept-fetched"
        )
    return rollout


_PERCENT_FIELD: Final = ("spec", "rollout", "percent")


def _build_change(
    step: RolloutProgress, snapshot: Snapshot, repository: FleetRepository
) -> tuple[str, bytes, Snapshot]:
    """Return the file that the next step changes, its new content, and the fleet after this change."""
    origin = repository.origins[Id("ImageStream", step.stream)]
    content = replace_scalar(snapshot.read(origin.blob), origin.document, _PERCENT_FIELD, str(step.next))
    return origin.path, content, snapshot.replace_files({origin.path: content}, f"step {step.next} of {step.stream}")


def _format_commit_message(step: RolloutProgress) -> str:
    begun = ""
    if step.begun:
        servers = format_count(len(step.begun), "server")
        begun = f"In addition, {servers} fetched the boot but did not report completion.\n"
    return (
        f"Roll {step.image} out to {step.next} % of {step.stream}\n\n"
        f"Provisioned with this image at {step.percent} %: {step.proven} of {format_count(step.reached, 'server')}.\n"
        f"{begun}"
    )


def _write_proposal(path: Path, base: Revision, proposal: _Proposal, content: bytes, *, dry_run: bool) -> _Proposal:
    """Write a proposal into the work tree or commit it on its branch. Return what was made.

    Raises `UsageError` if the branch exists and has another content of the file.
    """
    branch = proposal.branch
    files = {proposal.file: content}
    has_content = branch_contains_files(path, branch, files) if branch is not None else None  # None: no such branch
    if has_content is False:
        raise UsageError(
            f"the branch {branch} already exists and contains a different {proposal.file}, perhaps from an earlier "
            "rollout: delete the branch, or choose another branch with --branch"
        )
    if has_content:
        return structs.replace(proposal, made="Proposed")
    if dry_run:
        return proposal
    if branch is None:
        write_output_file(path / proposal.file, [content])
        return structs.replace(proposal, made="Written")
    commit = propose_commit(path, base, branch, files, proposal.message, current_time())
    return structs.replace(proposal, made="Written", commit=commit)


_OUTCOME_TEXTS: Final = {
    "Written": "gitboot committed the change to the branch {}",
    "Proposed": "the change is already on the branch {}, so gitboot did not commit it again",
    "Nothing": "gitboot would commit the change to the branch {}",
}


def _format_rollout(step: RolloutProgress, proposal: _Proposal | None) -> str:
    at = f" at {step.percent} %" if step.percent is not None else ""
    lines = [f"{step.stream}{at}: {step.outcome.lower()}: {step.why}"]
    if proposal is not None:
        lines.append(f"{proposal.file}: percent: {step.next}")
        if proposal.branch is not None:
            lines.append(_OUTCOME_TEXTS[proposal.made].format(proposal.branch))
    return "\n".join(lines)
