"""`gitboot rollout`: raise the percentage of a rollout after a step succeeded."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import click
from msgspec import Struct, structs

from gitboot.cli.completion import complete_streams
from gitboot.cli.evaluated_fleet import FleetEvaluator
from gitboot.cli.evaluator_child import evaluator_command, limit_evaluation
from gitboot.cli.instance_client import InstanceReader, StateReader, open_instance, read_rollout_evidence
from gitboot.cli.main import Exit, Group
from gitboot.cli.options import (
    VARIABLES,
    OutputOption,
    current_time,
    output_option,
    path_option,
    token_over_http_option,
    write_outputs,
)
from gitboot.errors import UsageError
from gitboot.files import write_output_file
from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.revision import Revision, Snapshot
from gitboot.fleet.yaml import replace_scalar
from gitboot.git.branch_writer import branch_contains_files, check_branch, propose_commit
from gitboot.git.snapshots import WORKTREE, find_fleet_folder, open_snapshot
from gitboot.jsonio import format_document, to_json_value
from gitboot.model.boot_image import Rollout
from gitboot.model.fleet import Evidence
from gitboot.resolve.fleet_decisions import FleetDecisions
from gitboot.review.images import (
    AppliedRollout,
    RolloutProgress,
    StepOutcome,
    decide_next_step,
    find_applied_rollout,
)
from gitboot.text import format_count, format_suggestion


class PercentListType(click.ParamType[tuple[int, ...]]):
    """A list of percentages in increasing order."""

    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in value.split(",")]
        steps = tuple(int(part) for part in parts if part.isdecimal() and int(part) <= 100)
        if len(steps) != len(parts) or list(steps) != sorted(set(steps)):
            self.fail(f"{value!r}: expected percentages in ascending order, for example 1,10,50,100", param, context)
        return steps


class PercentType(click.ParamType[int]):
    """A percentage, with or without a percent sign."""

    name = "share"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> int:
        text = str(value).removesuffix("%").strip()
        if not text.isdecimal() or not 0 < int(text) <= 100:
            self.fail(f"{value!r}: expected a percentage from 1% to 100%", param, context)
        return int(text)


@click.group(
    context_settings=VARIABLES,
    cls=Group,
    example=("gitboot rollout advance flatcar --steps 1,10,50,100 \\\n    --records https://boot.example.net"),
)
def command() -> None:
    """Raise a rollout's percentage after a step succeeds."""


@command.command(
    "advance",
    context_settings=VARIABLES,
    example=("gitboot rollout advance flatcar --steps 1,10,50,100 \\\n    --records https://boot.example.net"),
    exit_codes={
        Exit.FINE: "gitboot committed the next step, or the rollout is complete",
        Exit.INVALID: "the fleet has errors",
        Exit.HELD: "the rollout stopped because an installation failed",
        Exit.SOURCE: "the instance did not respond",
        Exit.WAITS: "the step is not complete yet; try again later",
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
    metavar="URL|OUTPUT|FILE",
    help="The source of the records: the URL of the instance's API, its output tree, or ops/records in the "
    "output tree. Default: the ledger in --state.",
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
    records: str | None,
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

    A step of STREAM has succeeded if the instance applied it, and --after percent of the servers that it reaches are
    installed with the new image. gitboot then commits the next percentage on a new branch, for a pull request. It does
    not change the work tree. If the branch already exists, gitboot does not commit.

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
        instance: InstanceReader
        if records is not None:
            instance = open_instance(records, api_token, ca_bundle, allow_token_over_http=allow_token_over_http)
        elif state is not None:
            instance = StateReader(state, current_time(), set_limits)
        else:
            raise UsageError("specify --records or --state, because only records show which servers are installed")

        def decide(snapshot: Snapshot) -> FleetDecisions:
            return evaluator.evaluate(snapshot, set_limits).head.decided

        def find_applied_commit(commit: Revision) -> AppliedRollout:
            applied = decide(open_snapshot(path, commit))
            return find_applied_rollout(stream, applied.repository, applied.decisions)

        snapshot = open_snapshot(path, WORKTREE if no_commit else rev or "HEAD")
        repository = decide(snapshot).repository
        rollout = _find_rollout(stream, repository, accept_fetched=accept_fetched)
        if rollout is None:
            progress = RolloutProgress(stream=stream, outcome=StepOutcome.COMPLETE, why="the stream has no rollout")
        else:
            applied_rollout, report = read_rollout_evidence(instance, find_applied_commit)
            progress = decide_next_step(
                stream,
                rollout,
                applied_rollout,
                report,
                steps=steps,
                after=after,
                at=current_time(),
                accept_fetched=accept_fetched,
            )
        if progress.next is not None:
            file, content, changed_snapshot = _build_change(progress, snapshot, repository)
            decide(changed_snapshot)  # this raises `InvalidRepository` if the changed fleet is invalid
            suffix = "-".join(filter(None, (*find_fleet_folder(path).split("/"), stream, str(progress.next))))
            branch = None if no_commit else branch or f"gitboot/rollout-{suffix}"
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
