"""`gitboot images` and `gitboot update-images`: images, streams and rollouts, and new releases that streams follow."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gitboot.child_processes import lift_processor_limit
from gitboot.cli.commands.artifacts import build_fetchers
from gitboot.cli.commands.new import image_keys_option, open_image_keys
from gitboot.cli.completion import complete_streams
from gitboot.cli.evaluated_fleet import (
    FleetEvaluator,
    plan_fleet,
    print_unknown_instance,
    records_option,
)
from gitboot.cli.evaluator_child import evaluator_command, limit_evaluation
from gitboot.cli.main import Command, Exit, find_exit_code
from gitboot.cli.options import (
    VARIABLES,
    OutputOption,
    at_option,
    current_second,
    fleet_argument,
    open_registries,
    output_option,
    path_option,
    registry_options,
    shown_state_option,
    write_outputs,
)
from gitboot.cli.terminal import format_table, show_downloads, wrap_text
from gitboot.errors import UsageError
from gitboot.files import write_output_file
from gitboot.fleet.documents import FleetRepository
from gitboot.fleet.revision import Revision, Snapshot
from gitboot.git.branch_writer import check_branch, write_bundle
from gitboot.git.snapshots import WORKTREE, open_snapshot
from gitboot.image_sources.find_releases import find_source
from gitboot.image_sources.image_builder import ReleaseFinder, format_origin
from gitboot.image_sources.stream_updates import StreamUpdate, StreamUpdater, list_followed_streams
from gitboot.jsonio import format_document, to_json_value
from gitboot.model.boot_image import Follow, Provenance, RequiredProvenance
from gitboot.resolve.explanation import describe_origin
from gitboot.review.formats.markdown import format_code_block
from gitboot.standard_streams import style
from gitboot.text import format_count, format_names

if TYPE_CHECKING:
    from gitboot.review.rollout_progress import ImageReport, Joining, StreamUse

_MAX_STEPS: Final = 8  # rows for the percentages at which servers join, as in page.js
_MAX_NAMES: Final = 3  # maximum number of servers in a cell


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
    from gitboot.review.rollout_progress import report_images

    fleet = plan_fleet(path, rev, at or current_second(), records, state)
    known_records = fleet.records if fleet.knows_records else None
    found = report_images(fleet.repository, fleet.decisions, known_records, fleet.at)
    write_outputs(
        outputs,
        json=partial(format_document, **to_json_value(found), revision=fleet.decisions.revision),
        text=partial("\n\n".join, list(_format_tables(found))),
    )
    print_unknown_instance(records, state)


def _format_tables(found: ImageReport) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        (
            each.name,
            each.version,
            str(each.decided),
            "?" if each.provisioned is None else str(each.provisioned),
            str(each.maintenances),
            ", ".join(each.streams) or "-",
        )
        for each in found.items
    ]
    yield format_table(("IMAGE", "VERSION", "PLANNED", "INSTALLED", "MAINTENANCE", "STREAMS"), rows, optional=1)
    if found.foreign:
        yield format_table(
            ("VERSION BY ANOTHER TOOL", "INSTALLED"), [(each, str(n)) for each, n in found.foreign.items()]
        )
    if any(provenance is not None for each in found.items for provenance in each.files.values()):
        rows = [(each.name, _count_origins(each.files.values()), ", ".join(each.hosts)) for each in found.items]
        yield format_table(("IMAGE", "CLAIMED PROVENANCE", "FILES FROM"), rows)
    if found.streams:
        yield format_table(("STREAM", "SERVERS", "CURRENT", "ROLLOUT"), map(_format_stream, found.streams))
    rows = [
        (each.name, _format_follow(each.follow) if each.follow is not None else "-", each.require_provenance)
        for each in found.streams
        if each.follow is not None or each.require_provenance is RequiredProvenance.SIGNED
    ]
    if rows:
        yield format_table(("STREAM", "FOLLOWS", "REQUIRED PROVENANCE"), rows)
    rows = [(str(each.document), each.image, each.stream) for each in found.uncovered]
    if rows:
        yield format_table(("BOOTS WITHOUT A STREAM", "IMAGE", "STREAM THAT REQUIRES SIGNED IMAGES"), rows)
    rows = [(stream.name, *row) for stream in found.streams for row in _format_next_servers(stream.joining)]
    if rows:
        yield format_table(("ROLLOUT", "PERCENT", "ADDED", "SERVERS"), rows)
    rows = [
        (
            each.what,
            each.image,
            style(f"{each.until:%Y-%m-%d} overdue", fg="red")
            if each.until and each.overdue
            else f"{each.until:%Y-%m-%d}"
            if each.until
            else "-",
            format_names(each.servers, _MAX_NAMES) or "none",
        )
        for each in found.behind
    ]
    if rows:
        reasons = [wrap_text(each.reason, "    ") for each in found.behind]
        yield format_table(("PIN OR HOLD", "IMAGE", "DEADLINE", "SERVERS"), rows, below=reasons)
    rows = [(each.server, each.image, each.version, each.minimum_version, each.stream) for each in found.too_old]
    if rows:
        yield format_table(("SERVER", "IMAGE", "VERSION", "MINIMUM VERSION", "STREAM"), rows)


def _count_origins(files: Iterable[Provenance | None]) -> str:
    """Return the claims of an image about the digests of its files, each with its files.

    The weakest claim comes first.
    """
    counts = Counter(map(describe_origin, files))
    texts = sorted(counts, key=lambda text: (text.startswith("signed"), text != "not stated", text))
    return ", ".join(text if len(counts) == 1 else f"{text}: {format_count(counts[text], 'file')}" for text in texts)


def _format_follow(follow: Follow) -> str:
    """Return the source that a stream follows, and the rules for its releases."""
    parts = [follow.source, *([f"channel {follow.channel}"] if follow.channel is not None else [])]
    parts += [f"from {follow.minimum_version}"] if follow.minimum_version is not None else []
    parts += [f"below {follow.below_version}"] if follow.below_version is not None else []
    parts += [f"after {follow.minimum_age}"] if follow.minimum_age != "0s" else []
    return ", ".join((*parts, *follow.architectures, f"begins at {follow.percent} %"))


def _format_stream(stream: StreamUse) -> tuple[str, ...]:
    current = f"{stream.current} ({stream.images.get(stream.current, 0)})"
    rollout = "-"
    if stream.rollout is not None:
        rollout = f"{stream.rollout} at {stream.percent} % ({stream.images.get(stream.rollout, 0)})"
    return stream.name, str(sum(stream.images.values())), current, rollout


def _format_next_servers(joining: Sequence[Joining]) -> Iterator[tuple[str, str, str]]:
    rows = [(f"{each.percent} %", each.servers) for each in joining[:_MAX_STEPS]]
    if later := joining[_MAX_STEPS:]:
        last = f"–{later[-1].percent}" if len(later) > 1 else ""
        rows.append((f"{later[0].percent}{last} %", tuple(server for each in later for server in each.servers)))
    for percent, servers in rows:
        yield percent, str(len(servers)), format_names(servers, _MAX_NAMES)


_PREFIX: Final = "gitboot/update-"


class CommittedFleet:
    """The fleet of a commit, which is the parent of new commits."""

    def __init__(self, path: Path, base: str | None, evaluator: FleetEvaluator) -> None:
        self.path, self._evaluator = path, evaluator
        with limit_evaluation() as set_limits:
            self.snapshot = open_snapshot(path, base or "HEAD")
            if self.snapshot.revision == WORKTREE:
                raise UsageError("--base WORKTREE is not a commit: choose a commit or a branch")
            self.repository = self._evaluate(self.snapshot, set_limits)
        lift_processor_limit()  # lift the limit on processor time, which downloads need too

    def validate(self, changed: Snapshot) -> FleetRepository:
        """Return a changed fleet. Raises `InvalidRepository` if the changed fleet has errors."""
        with limit_evaluation() as set_limits:
            found = self._evaluate(changed, set_limits)
        lift_processor_limit()
        return found

    def _evaluate(self, snapshot: Snapshot, set_limits: Any) -> FleetRepository:
        return self._evaluator.evaluate(snapshot, set_limits).head.decided.repository


@click.command(
    cls=Command,
    context_settings=VARIABLES,
    example="gitboot update-images --bundle updates.bundle",
    exit_codes={
        Exit.FINE: "gitboot checked all streams; the output lists the proposals, and the streams that wait",
        Exit.INVALID: "the fleet has errors, or would have errors with a new image",
        Exit.SOURCE: "a source did not respond, or its index or a file is wrong; other streams may have proposals",
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
    registries: tuple[str, ...],
    registry_credentials: Path | None,
    ca_bundle: Path | None,
    allow_token_over_http: bool,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Propose new releases that streams follow.

    For each STREAM with spec.follow, gitboot looks for a release that is newer than the images of the stream, and
    downloads and verifies all files of the release. It then makes one commit on a new branch, for a pull request. The
    commit adds the BootImage and begins the rollout. Default: all streams with spec.follow.

    gitboot does not change the work tree or an existing BootImage, and does not move the current image. A stream with
    an unfinished rollout waits. If the index of the source has no dates, the age of a release is the age of its commit:
    gitboot then makes the commit before the release has the minimum age.
    """
    if dry_run and bundle is not None:
        raise UsageError("--dry-run makes no branches: remove --bundle")
    if bundle is not None and not bundle.parent.is_dir():
        raise UsageError(f"{bundle.parent} is not a directory: create it, or correct --bundle")
    check_branch(f"{branch_prefix}stream")
    now = current_second()
    registry = open_registries(registries, registry_credentials, ca_bundle, allow_token_over_http=allow_token_over_http)
    fleet = CommittedFleet(path, base, FleetEvaluator(now))
    sources = fleet.repository.image_sources
    followed = list_followed_streams(fleet.repository, stream, lambda name: find_source(name, sources))
    fetcher = build_fetchers(fleet.repository.fleet.spec.base_url, None, registry)
    with open_image_keys(image_keys) as keys, show_downloads() as progress:
        reader = ReleaseFinder(fetcher, keys, registry)
        updater = StreamUpdater(fleet, reader, progress, branch_prefix=branch_prefix, now=now, dry_run=dry_run)
        done = [updater.update(each) for each in followed]
    updates = [update for update, _ in done]
    as_json = partial(_format_json, fleet.snapshot.revision, updates)
    if bundle is not None:
        if new := [each.branch for each in updates if each.branch is not None and each.new]:
            write_bundle(path, bundle, new)
        write_output_file(bundle.with_name(f"{bundle.name}.json"), [f"{as_json()}\n".encode()])
    write_outputs(outputs, json=as_json, text=lambda: "\n".join(_format_text(updates)))
    sys.exit(next((find_exit_code(error) for _, error in done if error is not None), Exit.FINE))


def _format_json(base: Revision, updates: Sequence[StreamUpdate]) -> str:
    """Return the results. ``body`` is the text of a pull request, in which forges interpret no text of a vendor."""
    bodies = [format_code_block(each.message.splitlines()) if each.message else "" for each in updates]
    items = [{**to_json_value(each), "body": body} for each, body in zip(updates, bodies, strict=True)]
    return format_document(base=base, streams=items)


def _format_text(updates: Sequence[StreamUpdate]) -> Iterator[str]:
    if not updates:
        yield wrap_text("no stream of the commit has spec.follow; commit your streams first")
    for each in updates:
        yield wrap_text(f"{each.stream}: {each.outcome.lower()}: {each.why}")
        for file in each.files:
            yield wrap_text(f"{'.'.join(map(str, file.at))}: {format_origin(file)}", "    ", continuation="        ")
        if each.branch is not None:
            made = (
                "committed on" if each.new else "already on" if each.commit is not None else "gitboot would commit on"
            )
            yield wrap_text(f"{made} the branch {each.branch}", "    ")
        for superseded in each.supersedes:
            yield wrap_text(f"it supersedes the branch {superseded}", "    ")
        if each.commit is None and each.document:
            yield from ("", each.document)
