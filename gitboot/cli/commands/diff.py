"""`gitboot diff`: what a range of commits changes, for whom, how dangerous it is, and whether a guard holds it."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gitboot.cli.evaluator_process import evaluator_command
from gitboot.cli.exit import Exit
from gitboot.cli.guards import limit_options, limits_of
from gitboot.cli.options import OutputOption, at_option, output_option, path_argument, this_second
from gitboot.cli.options_from_cli_problems import prefix_of
from gitboot.cli.problems import FORMATS
from gitboot.cli.trusting import TRUST, trust_of, trust_options
from gitboot.errors import UsageError
from gitboot.fleet.revision import Verify
from gitboot.text import shell_words

if TYPE_CHECKING:
    from gitboot.review.review import Review

_FORMATS = ("text", "json", "markdown", "github", "sarif", "junit")


@click.command()
@click.argument("range", metavar="BASE..HEAD", default="")
@path_argument
@click.option("--merge", is_flag=True, help="Compare BASE with HEAD merged into it, as the branch will be.")
@click.option(
    "--each-merge",
    is_flag=True,
    help="Judge each commit of HEAD's first-parent line by itself, as an instance does that has accepted BASE.",
)
@click.option(
    "--accepted",
    metavar="URL|DIR",
    help="Compare with what an instance has accepted, and judge each commit since by itself: the URL of its endpoint, "
    "or the directory that it publishes. HEAD is merged into BASE where --merge says so; else BASE may be left out.",
)
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 where something changes and nothing is wrong.")
@at_option
@trust_options
@limit_options
@output_option(*_FORMATS)
@evaluator_command
def command(
    range: str,
    path: Path,
    merge: bool,
    each_merge: bool,
    accepted: str | None,
    detailed_exitcode: bool,
    at: datetime | None,
    outputs: tuple[OutputOption, ...],
    **given: Any,
) -> None:
    """Show what BASE..HEAD changes in the fleet at PATH, and whether guards would hold it.

    BASE..HEAD compares two commits. BASE...HEAD compares HEAD with where it branched off; BASE alone, or
    BASE..WORKTREE, with what lies in the work tree. Nothing but these is looked at: no network and no instance, except
    what --accepted names. --at is the instant at which overlaps of maintenances and certificates of HEAD are judged.

    The exit code is 3 where HEAD is invalid, 4 where a guard holds it that no `Gitboot-Ack:` line of the commits
    acknowledges. Give the limits that the instance has, if they are not the defaults.
    """
    from gitboot.cli.accepted import accepted_by
    from gitboot.cli.ranges import compared
    from gitboot.jsonio import format_instant
    from gitboot.review import review
    from gitboot.review.review import ReviewOutcome

    trust, asked = trust_of(**{name: given[name] for name in TRUST}), _flags({name: given.pop(name) for name in TRUST})
    limits: dict[str, int | None] = given
    if trust.verify is Verify.TAG:
        raise UsageError("--verify tag is for gitboot run, which follows a tag; compare with --verify head or range")
    if not range and accepted is None:
        raise UsageError("compare with what? Give BASE..HEAD, or --accepted")
    since_commit = accepted_by(accepted) if accepted is not None else None
    found = compared(path, range, merge=merge, at=at or this_second(), accepted=since_commit, trust=trust)
    where = [str(path)] if path != Path() else []
    since = ["--accepted", accepted] if accepted is not None else []
    instant = ["--at", format_instant(at)] if at is not None else []
    options = [*(["--merge"] * merge), *(["--each-merge"] * each_merge), *since, *instant, *_flags(limits), *asked]
    again = shell_words("gitboot", "diff", *([range] if range or where else []), *where, *options)
    result = review(
        found.base,
        found.head,
        limits=limits_of(limits),
        messages=found.messages,
        line=found.line if each_merge or accepted is not None else (),
        command=again,
        need=trust.reinstalls_need,
        met=found.met,
        known=found.changes() if found.changes is not None else None,
        writer=found.writer,
    )
    result = dataclasses.replace(result, signers=found.signers)
    for output in outputs:
        output.write(_written(output.format, result, path, range))
    if result.outcome is ReviewOutcome.INVALID:
        sys.exit(Exit.INVALID)
    if result.outcome is ReviewOutcome.HELD:
        sys.exit(Exit.HELD)
    if detailed_exitcode and result.outcome is ReviewOutcome.FINE:
        sys.exit(Exit.CHANGES)


def _flags(given: Mapping[str, object]) -> list[str]:
    """Options as they were given."""
    found: list[str] = []
    for name, values in given.items():
        flag = f"--{name.replace('_', '-').removesuffix('s') if name == 'forge_keys' else name.replace('_', '-')}"
        for value in values if isinstance(values, tuple) else (values,):
            found += [flag, str(value)] if value is not None else []
    return found


def _written(format: str, result: Review, path: Path, range: str) -> str:
    """The review of ``range`` of the fleet at ``path`` in one format."""
    from gitboot.source.compare import head_commit
    from gitboot.source.snapshot import folder_around

    prefix = prefix_of(path)
    from gitboot.cli.commands.review_text import as_text
    from gitboot.review.annotations import as_problems
    from gitboot.review.as_json import as_json
    from gitboot.review.formats.markdown import as_markdown

    match format:
        case "text":
            return as_text(result, prefix)
        case "json":
            return as_json(result)
        case "markdown":
            return as_markdown(result, folder_around(path), head_commit(path, range))
    return FORMATS[format](as_problems(result), prefix)
