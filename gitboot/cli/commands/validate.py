"""`gitboot validate`, and the formats of problems: text, JSON, SARIF, JUnit and GitHub annotations."""

from __future__ import annotations

import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote
from xml.etree.ElementTree import Element, SubElement, indent, tostring

import click
from msgspec import structs

from gitboot import __version__
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
from gitboot.cli.terminal import wrap_on_terminal
from gitboot.errors import InvalidRepository
from gitboot.jsonio import format_document
from gitboot.problems import Code, Problem, Severity
from gitboot.standard_streams import style
from gitboot.text import format_count, printable

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_LEVELS: Final = {Severity.ERROR: "error", Severity.WARNING: "warning"}
_LINES: Final = re.compile(r"(\.ya?ml)(?::\d+)+")  # a source location such as fleet.yaml:12 in a message


def _sort_by_severity(problems: Iterable[Problem]) -> list[Problem]:
    """Return problems sorted by severity, with errors first, and then by location."""
    return sorted(problems, key=lambda problem: (list(Severity).index(problem.severity), problem))


def _format_with_hint(problem: Problem) -> str:
    """Format a problem's message, with its hint in parentheses."""
    return printable(f"{problem.message} ({problem.hint})" if problem.hint else problem.message)


def format_sarif(problems: Sequence[Problem]) -> str:
    """Format problems as a SARIF log that contains a single run with rules and results.

    Paths are relative to the root of the repository. The fingerprint of a result does not contain the line number, so
    the fingerprint stays the same if lines move.
    """
    ordered = _sort_by_severity(problems)
    numbers = {code: number for number, code in enumerate(sorted({problem.code for problem in ordered}))}
    rules = [
        {
            "id": code.value,
            "name": code.name.title().replace("_", ""),
            "shortDescription": {"text": code.headline},
            "fullDescription": {"text": code.why},
            "help": {"text": f"{code.why} {code.fix}", "markdown": f"{code.why}\n\n**Fix:** {code.fix}"},
        }
        for code in sorted(Code)  # the same texts as in `gitboot explain CODE`
        if code in numbers
    ]
    seen: Counter[str] = Counter()
    results = [
        {
            "ruleId": str(problem.code),
            "ruleIndex": numbers[problem.code],
            "level": _LEVELS[problem.severity],
            "message": {"text": _format_with_hint(problem)},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {
                            "uri": quote(problem.path, errors="surrogateescape"),
                            "uriBaseId": "%SRCROOT%",
                        },
                        "region": {"startLine": problem.line, "startColumn": problem.column},
                    }
                }
            ],
            "partialFingerprints": {"primaryLocationLineHash": _fingerprint_problem(problem, seen)},
        }
        for problem in ordered
    ]
    run = {
        "tool": {"driver": {"name": "gitboot", "semanticVersion": __version__, "rules": rules}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, sort_keys=True) + "\n"


def _fingerprint_problem(problem: Problem, counts: Counter[str]) -> str:
    """Return a text that identifies a problem even if the line of the problem moves.

    ``counts`` counts the problems with the same text. GitHub reads the returned text as primaryLocationLineHash (GitHub
    docs, "SARIF support for code scanning").
    """
    message = _LINES.sub(r"\1", printable(problem.message))
    name = sha256(f"{problem.code}\0{problem.path}\0{message}".encode(errors="surrogateescape")).hexdigest()[:16]
    counts[name] += 1
    return f"{name}:{counts[name]}"


def format_junit(problems: Sequence[Problem]) -> str:
    """Format problems as a JUnit report with one suite. Without problems, the suite contains a single passing test."""
    errors = sum(problem.severity is Severity.ERROR for problem in problems)
    counts = {
        "tests": str(len(problems) or 1),
        "failures": str(errors),
        "errors": "0",
        "skipped": str(len(problems) - errors),
    }
    root = Element("testsuites", counts)
    tests = SubElement(root, "testsuite", {"name": "gitboot", **counts})
    used: Counter[tuple[str, str]] = Counter()
    for problem in _sort_by_severity(problems):
        name = printable(f"{problem.path}: {problem.message}")
        used[problem.code, name] += 1
        number = used[problem.code, name]
        if number > 1:  # names must be unique
            name = f"{name} ({number})"
        attributes = {"classname": problem.code, "name": name, "file": printable(problem.path)}
        test = SubElement(tests, "testcase", attributes)
        text = printable(str(problem))
        if problem.severity is Severity.ERROR:
            SubElement(test, "failure", {"type": problem.code, "message": printable(problem.message)}).text = text
        else:
            SubElement(test, "skipped", {"message": f"warning: {text}"})
    if not problems:
        SubElement(tests, "testcase", {"classname": "gitboot", "name": "no problems"})
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


# the number of annotations of one level that GitHub shows for a step; GitHub omits the rest without a message
MAX_ANNOTATIONS: Final = 10


def format_github(problems: Sequence[Problem]) -> str:
    """Format problems as GitHub Actions commands, one per line.

    If GitHub would not show all of the problems, a notice states how many it would omit.
    """
    ordered = _sort_by_severity(problems)
    lines: list[str] = []
    left_out: list[str] = []
    for severity, level in _LEVELS.items():
        of_severity = [problem for problem in ordered if problem.severity is severity]
        lines += (_format_github_command(level, problem) for problem in of_severity[:MAX_ANNOTATIONS])
        if len(of_severity) > MAX_ANNOTATIONS:
            left_out.append(format_count(len(of_severity) - MAX_ANNOTATIONS, f"more {level}"))
    if left_out:
        lines.append(f"::notice title=gitboot::{' and '.join(left_out)} not shown here: see this step's log")
    return "\n".join(lines)


_TEXT_ESCAPES: Final = str.maketrans({"%": "%25", "\r": "%0D", "\n": "%0A"})
_PROPERTY_ESCAPES: Final = _TEXT_ESCAPES | str.maketrans({":": "%3A", ",": "%2C"})


def _format_github_command(level: str, problem: Problem) -> str:
    properties = {
        "file": printable(problem.path),
        "line": str(problem.line),
        "col": str(problem.column),
        "title": str(problem.code),
    }
    joined = ",".join(f"{name}={value.translate(_PROPERTY_ESCAPES)}" for name, value in properties.items())
    return f"::{level} {joined}::{_format_with_hint(problem).translate(_TEXT_ESCAPES)}"


def format_problem_counts(problems: Sequence[Problem]) -> str:
    """Format the numbers of errors and warnings."""
    errors = sum(problem.severity is Severity.ERROR for problem in problems)
    warnings = len(problems) - errors
    parts = [format_count(number, noun) for number, noun in ((errors, "error"), (warnings, "warning")) if number]
    return " and ".join(parts) or "no errors"


def format_problems(problems: Sequence[Problem], prefix: str) -> str:
    """Format each problem as ``path:line:column: CODE: message``, with its hint on the next line."""
    lines = []
    for problem in problems:
        is_error = problem.severity is Severity.ERROR
        place = f"{printable(prefix + problem.path)}:{problem.line}:{problem.column}:"
        code = f"{problem.code}:"
        text = f"{place} {code} {'' if is_error else 'warning: '}{printable(problem.message)}"
        text = wrap_on_terminal(text, sys.stdout, hanging_indent="    ")
        text = text.replace(place, style(place, bold=True), 1)
        lines.append(text.replace(code, style(code, fg="red" if is_error else "yellow"), 1))
        if problem.hint:
            lines.append(wrap_on_terminal(f"    {printable(problem.hint)}", sys.stdout))
    return "\n".join(lines)


def add_path_prefix(problems: Sequence[Problem], prefix: str) -> list[Problem]:
    """Return problems whose paths begin with ``prefix``."""
    return [structs.replace(problem, path=f"{prefix}{problem.path}") for problem in problems]


def format_json(problems: Sequence[Problem], prefix: str) -> str:
    """Format problems as the items of a JSON document."""
    return format_document(items=add_path_prefix(problems, prefix))


def _use_relative_paths(
    write: Callable[[Sequence[Problem]], str],
) -> Callable[[Sequence[Problem], str], str]:
    """Return a formatter that makes paths relative to the current directory, as code hosts and CI systems require."""

    def write_relative(problems: Sequence[Problem], prefix: str) -> str:
        folder = os.path.relpath(prefix or ".")
        root = "" if folder == "." or folder.split(os.sep)[0] == ".." else f"{folder}/"
        return write(add_path_prefix(problems, root))

    return write_relative


FORMATS: Final[Mapping[str, Callable[[Sequence[Problem], str], str]]] = {
    "text": format_problems,
    "json": format_json,
    "github": _use_relative_paths(format_github),
    "sarif": _use_relative_paths(format_sarif),
    "junit": _use_relative_paths(format_junit),
}


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
        problems = tuple(sorted((*decided.decisions.find_problems(now), *find_overdue_opt_outs(repository, now))))
        servers, images = len(repository.servers), len(repository.images)
        summary = f"{format_count(servers, 'server')}, {format_count(images, 'image')}, "
    except InvalidRepository as error:
        problems = error.problems
        if registries and any(problem.code == Code.OCI_TAG for problem in problems):
            from gitboot.artifacts.oci import add_digest_hints

            problems = add_digest_hints(
                problems,
                open_registries(
                    registries, registry_credentials, ca_bundle, allow_token_over_http=allow_token_over_http
                ),
            )
    write_outputs(
        outputs, **{name: partial(write, problems, format_path_prefix(path)) for name, write in FORMATS.items()}
    )
    errors = [problem for problem in problems if problem.severity is Severity.ERROR]
    if any(output.format == "text" for output in outputs):
        fleet_path = "" if path == Path() else f"{path}: "
        files = len({problem.path for problem in problems})
        place = f" in {format_count(files, 'file')}" if files else ""
        click.echo(f"{fleet_path}{summary}{format_problem_counts(problems)}{place}", err=True)
        if errors:
            click.echo(f"`gitboot explain {errors[0].code}` explains the first error", err=True)
    if errors:
        sys.exit(Exit.INVALID)
