"""`gitboot validate`: print all problems of a fleet."""

from __future__ import annotations

import sys
from datetime import datetime
from functools import partial
from pathlib import Path

import click

from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    OutputOption,
    at_option,
    current_second,
    fleet_argument,
    format_path_prefix,
    open_registries,
    output_option,
    registry_options,
    write_outputs,
)
from gitboot.cli.problem_formats import FORMATS, count_problems
from gitboot.errors import InvalidRepository
from gitboot.problems import Code, Problem, Severity
from gitboot.text import format_count


@click.command(
    cls=Command,
    example="gitboot validate fleet --format github",
    exit_codes={
        Exit.FINE: "the fleet has no errors, but may have warnings",
        Exit.INVALID: "the fleet has errors",
    },
)
@fleet_argument
@at_option
@registry_options
@output_option(*FORMATS)
@evaluator_command
def command(
    path: Path,
    rev: str | None,
    at: datetime | None,
    registries: tuple[str, ...],
    registry_credentials: Path | None,
    ca_bundle: Path | None,
    allow_token_over_http: bool,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Check a fleet and print each problem with a hint.

    PATH is a directory, a Git work tree or a bare repository. gitboot prints all problems at once, with file, line and
    column. `gitboot explain CODE` explains a problem.

    The results for overlapping maintenances, for the deadlines of pins and holds, and for certificates depend on the
    time, which --at sets. gitboot uses the network only if a document names an image by its tag. It then reads the
    digest of the image from a registry that --registries allows.
    """
    from gitboot.cli.evaluated_fleet import evaluate_fleet
    from gitboot.resolve.policy_selection import find_overdue_opt_outs

    now = at or current_second()
    problems: tuple[Problem, ...]
    summary = ""
    try:
        decided = evaluate_fleet(path, rev, now).decided
        repository = decided.repository
        problems = tuple(sorted((*decided.decisions.problems_at(now), *find_overdue_opt_outs(repository, now))))
        servers, images = len(repository.servers), len(repository.images)
        summary = f"{format_count(servers, 'server')}, {format_count(images, 'image')}, "
    except InvalidRepository as error:
        problems = error.problems
        if registries and any(problem.code == Code.OCI_TAG for problem in problems):
            from gitboot.artifacts.oci import with_digests

            problems = with_digests(
                problems,
                open_registries(
                    registries, registry_credentials, ca_bundle, allow_token_over_http=allow_token_over_http
                ),
            )
    write_outputs(
        outputs, **{name: partial(write, problems, format_path_prefix(path)) for name, write in FORMATS.items()}
    )
    if any(output.format == "text" for output in outputs):
        files = len({problem.path for problem in problems})
        where = f" in {format_count(files, 'file')}" if files else ""
        click.echo(f"{'' if path == Path() else f'{path}: '}{summary}{count_problems(problems)}{where}", err=True)
        if code := next((problem.code for problem in problems if problem.severity is Severity.ERROR), None):
            click.echo(f"`gitboot explain {code}` explains the first error", err=True)
    if any(problem.severity is Severity.ERROR for problem in problems):
        sys.exit(Exit.INVALID)
