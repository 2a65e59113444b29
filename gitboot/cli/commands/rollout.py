"""`gitboot rollout`: commit the next step of a rollout after the current step succeeded."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import click
from msgspec import Struct, structs

from gitboot.cli.completion import complete_streams
from gitboot.cli.evaluator_child import evaluator_command, limit_evaluation
from gitboot.cli.instance_client import InstanceReader, StateReader, open_instance, read_proof
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
from gitboot.git.branch_writer import check_branch, is_proposed, propose
from gitboot.git.snapshots import WORKTREE, find_fleet_folder, open_snapshot
from gitboot.jsonio import format_document, to_json_value
from gitboot.model.boot_image import Rollout
from gitboot.model.fleet import Evidence
from gitboot.resolve.fleet_decisions import FleetDecisions
from gitboot.review.rollout_progress import AppliedRollout, RolloutProgress, StepOutcome, advance, find_applied_rollout
from gitboot.text import did_you_mean, format_count

_PERCENT_FIELD: Final = ("spec", "rollout", "percent")


class StepsType(click.ParamType[tuple[int, ...]]):
    """A list of percentages in increasing order."""

    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = [each.strip() for each in value.split(",")]
        steps = tuple(int(each) for each in parts if each.isdecimal() and int(each) <= 100)
        if len(steps) != len(parts) or list(steps) != sorted(set(steps)):
            self.fail(f"{value!r}: expected percentages in rising order, for example 1,10,50,100", param, context)
        return steps


class ShareType(click.ParamType[int]):
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
    """Raise a rollout's percentage after its step succeeded."""


@command.command(
    "advance",
    context_settings=VARIABLES,
    example=("gitboot rollout advance flatcar --steps 1,10,50,100 \\\n    --records https://boot.example.net"),
    exit_codes={
        Exit.FINE: "gitboot committed the next step, or the rollout is complete",
        Exit.INVALID: "the fleet has errors",
        Exit.HELD: "the rollout stops because an installation failed",
        Exit.SOURCE: "the instance did not respond",
        Exit.WAITS: "the step is not complete yet; try again later",
    },
)
@click.argument("stream", shell_complete=complete_streams)
@path_option
@click.option(
    "--steps",
    type=StepsType(),
    required=True,
    metavar="PERCENT,…",
    help="The percentages of the steps, for example 1,10,50,100.",
)
@click.option(
    "--after",
    type=ShareType(),
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
    help="The state directory of the instance, on its host. gitboot reads the status and the ledger there.",
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
    from gitboot.cli.evaluated_fleet import FleetEvaluator

    if branch is not None:
        check_branch(branch)
    if rev is not None and no_commit:
        raise UsageError("--no-commit changes the file in the work tree: remove --rev")
    evaluator, done = FleetEvaluator(current_time()), None
    with limit_evaluation() as begun:
        instance: InstanceReader
        if records is not None:
            instance = open_instance(records, api_token, ca_bundle, allow_token_over_http=allow_token_over_http)
        elif state is not None:
            instance = StateReader(state, current_time(), begun)
        else:
            raise UsageError("add --records or --state: only records show which servers are installed")

        def decide(snapshot: Snapshot) -> FleetDecisions:
            return evaluator.evaluate(snapshot, begun).head.decided

        snapshot = open_snapshot(path, WORKTREE if no_commit else rev or "HEAD")
        decided = decide(snapshot)

        def find_applied_commit(commit: Revision) -> AppliedRollout:
            there = decide(open_snapshot(path, commit))
            return find_applied_rollout(stream, there.repository, there.decisions)

        here = _find_rollout(stream, decided.repository, accept_fetched=accept_fetched)
        if here is None:
            found = RolloutProgress(stream=stream, outcome=StepOutcome.COMPLETE, why="the stream has no rollout")
        else:
            proof = read_proof(instance, find_applied_commit)
            found = advance(
                stream, here, *proof, steps=steps, after=after, at=current_time(), accept_fetched=accept_fetched
            )
        if found.next is not None:
            file, content, changed = _build_change(found, snapshot, decided.repository)
            decide(changed)  # this raises `InvalidRepository` if the changed fleet is invalid
            where = "-".join(filter(None, (*find_fleet_folder(path).split("/"), stream, str(found.next))))
            name = None if no_commit else branch or f"gitboot/rollout-{where}"
            done = _Proposal(made="Nothing", file=file, message=_format_message(found), branch=name)
    if done is not None:
        done = _commit_change(path, snapshot.revision, done, content, dry_run=dry_run)
    listed = partial(format_document, **to_json_value(found), proposal=to_json_value(done))
    write_outputs(outputs, json=listed, text=partial(_format_text, found, done))
    sys.exit({StepOutcome.WAITS: Exit.WAITS, StepOutcome.STOPPED: Exit.HELD}.get(found.outcome, Exit.FINE))


class _Proposal(Struct, frozen=True, kw_only=True):
    made: Literal["Written", "Proposed", "Nothing"]  # Proposed: the branch already existed; Nothing: this is a dry run
    file: str
    message: str
    branch: str | None  # None: the change is only in the work tree
    commit: Revision | None = None


def _find_rollout(stream: str, repository: FleetRepository, *, accept_fetched: bool) -> Rollout | None:
    """Return a stream's rollout, or None if the stream has no rollout.

    Without ``accept_fetched``, raises `UsageError` if the Fleet's evidence is Fetched.
    """
    if stream not in repository.streams:
        hint = did_you_mean(stream, repository.streams, "`gitboot images` lists the streams")
        raise UsageError(f"there is no ImageStream {stream!r}; {hint}")
    found, fleet = repository.streams[stream].spec.rollout, repository.fleet
    if found is not None and fleet.spec.provisioning.evidence is Evidence.FETCHED and not accept_fetched:
        name = fleet.metadata.name
        raise UsageError(
            f"{repository.origins[Id('Fleet', name)].path}: Fleet {name}: spec.provisioning.evidence is "
            "Fetched, and a fetch does not prove that the image is on a disk. Write evidence: Reported and let the "
            "installers report their completion. To advance without proof, add --accept-fetched"
        )
    return found


def _build_change(
    step: RolloutProgress, snapshot: Snapshot, repository: FleetRepository
) -> tuple[str, bytes, Snapshot]:
    """Return the file that the next step changes, its new content, and the fleet after this change."""
    origin = repository.origins[Id("ImageStream", step.stream)]
    content = replace_scalar(snapshot.read(origin.blob), origin.document, _PERCENT_FIELD, str(step.next))
    return origin.path, content, snapshot.replace_files({origin.path: content}, f"step {step.next} of {step.stream}")


def _format_message(step: RolloutProgress) -> str:
    begun = ""
    if step.begun:
        begun = f"{format_count(len(step.begun), 'server')} more fetched the boot and reported no completion.\n"
    return (
        f"Roll {step.image} out to {step.next} % of {step.stream}\n\n"
        f"{step.proven} of {format_count(step.reached, 'server')} that it reaches at {step.percent} % are provisioned "
        f"with it.\n{begun}"
    )


def _commit_change(path: Path, base: Revision, message: _Proposal, content: bytes, *, dry_run: bool) -> _Proposal:
    branch, files = message.branch, {message.file: content}
    if branch is not None and (is_there := is_proposed(path, branch, files)) is not None:
        if not is_there:
            raise UsageError(
                f"the branch {branch} already exists with another {message.file}, perhaps from an earlier rollout: "
                "delete the branch, or name another branch with --branch"
            )
        return structs.replace(message, made="Proposed")
    if dry_run:
        return message
    if branch is None:
        write_output_file(path / message.file, [content])
        return structs.replace(message, made="Written")
    return structs.replace(
        message, made="Written", commit=propose(path, base, branch, files, message.message, current_time())
    )


_OUTCOME_TEXTS: Final = {
    "Written": "committed on the branch {}",
    "Proposed": "already on the branch {}; gitboot wrote no commit",
    "Nothing": "gitboot would commit this on the branch {}",
}


def _format_text(step: RolloutProgress, proposal: _Proposal | None) -> str:
    at = f" at {step.percent} %" if step.percent is not None else ""
    lines = [f"{step.stream}{at}: {step.outcome.lower()}: {step.why}"]
    if proposal is not None:
        lines.append(f"{proposal.file}: percent: {step.next}")
        if proposal.branch is not None:
            lines.append(_OUTCOME_TEXTS[proposal.made].format(proposal.branch))
    return "\n".join(lines)
