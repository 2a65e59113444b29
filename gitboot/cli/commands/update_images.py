"""`gitboot update-images`: propose new image releases for streams."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from gitboot.child_processes import lift_processor_limit
from gitboot.cli.commands.artifacts import build_fetcher
from gitboot.cli.commands.new import image_keys_option, open_image_keys
from gitboot.cli.completion import complete_streams
from gitboot.cli.evaluated_fleet import FleetEvaluator
from gitboot.cli.evaluator_child import SetLimits, evaluator_command, limit_evaluation
from gitboot.cli.main import Command, Exit, find_exit_code
from gitboot.cli.options import (
    VARIABLES,
    OutputOption,
    current_second,
    open_registries,
    output_option,
    path_option,
    registry_options,
    write_outputs,
)
from gitboot.cli.terminal import show_downloads, wrap_text
from gitboot.errors import UsageError
from gitboot.files import is_directory, write_output_file
from gitboot.fleet.documents import FleetRepository
from gitboot.fleet.revision import Revision, Snapshot
from gitboot.git.branch_writer import check_branch, write_bundle
from gitboot.git.snapshots import WORKTREE, open_snapshot
from gitboot.image_sources.find_releases import ReleaseFinder, find_source
from gitboot.image_sources.image_builder import format_origin
from gitboot.image_sources.stream_updates import StreamUpdate, StreamUpdater, list_followed_streams
from gitboot.jsonio import format_document, to_json_value
from gitboot.review.formats.markdown import format_code_block

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
def command(
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
    an unfinished rollout waits. If the index of the source has no dates, the age of a release is the age of its commit:
    gitboot then makes the commit before the release has the minimum age.
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
