"""`gitboot explain`: explain a server's boot, a kind of documents or a problem code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import click
from msgspec import structs

from gitboot.cli.completion import complete_subjects
from gitboot.cli.evaluated_fleet import load_fleet, plan_fleet, print_missing_instance, records_option
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    OutputOption,
    at_option,
    current_second,
    fleet_options,
    output_option,
    shown_state_option,
    write_outputs,
)
from gitboot.cli.terminal import format_table, wrap_on_terminal, wrap_text
from gitboot.errors import InvalidRepository, UsageError
from gitboot.files import write_output_file
from gitboot.git.history import SHALLOW_CLONE, Blame, open_blame
from gitboot.git.snapshots import WORKTREE
from gitboot.jsonio import format_document, to_json_value
from gitboot.problems import Code
from gitboot.resolve.decision_fields import Reason
from gitboot.resolve.explanation import Explanation, explain
from gitboot.standard_streams import style

_KINDS: Final = (
    "Fleet",
    "Server",
    "BootImage",
    "ImageStream",
    "ImageSource",
    "BootProfile",
    "BootPolicy",
    "Maintenance",
    "Any",
)


@click.command(
    cls=Command,
    example="gitboot explain web01 kernelArguments",
    exit_codes={
        Exit.FINE: "gitboot printed the explanation",
        Exit.INVALID: "the fleet has errors",
        Exit.USAGE: "the server, kind, field or code does not exist",
    },
)
@click.argument("subject", metavar="SERVER|KIND|CODE", required=False, shell_complete=complete_subjects)
@click.argument("field", required=False)
@click.option(
    "--schemas",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Instead, write the JSON Schemas of all kinds into this directory, for use in editors.",
)
@fleet_options
@at_option
@records_option
@shown_state_option
@output_option("text", "json")
@evaluator_command
def command(
    subject: str | None,
    field: str | None,
    schemas: Path | None,
    path: Path,
    rev: str | None,
    at: datetime | None,
    records: str | None,
    state: Path | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Explain a server's boot, a kind or a problem code.

    With SERVER, gitboot shows the fields that documents set for the boot, with the rule that set the field, the source
    location and the commit. FIELD shows one field, such as image, kernelArguments, nodeLabels or vars.console. FIELD
    can be every field of the decision, even if it has its default. With --state, gitboot uses the accepted commit and
    the records of an instance.

    With KIND (Server, BootImage, Any and so on), gitboot lists the fields of the kind with their types and
    descriptions. FIELD, such as bmc.tls, lists the fields below this field. -o json prints the JSON Schema. The schema
    of Any accepts documents of every kind. An editor with yaml-language-server checks a document that begins with
    `# yaml-language-server: $schema=FILE`.

    With CODE, such as GB2011, gitboot explains what the problem means and how to fix it.
    """
    if schemas is not None:
        _write_schemas(schemas)
        return
    if subject is None:
        raise click.UsageError("Missing argument 'SERVER|KIND|CODE'.")
    if _is_code(subject) and (subject.isupper() or not _has_server(path, rev, subject)):
        _explain_code(subject.upper(), outputs)
        return
    if subject in _KINDS:
        write_outputs(outputs, json=partial(_get_schema, subject), text=partial(_format_fields, subject, field))
        return

    misspelt_kind = next((kind for kind in _KINDS if kind.lower() == subject.lower()), None)
    servers = (subject,) if misspelt_kind is None else ()
    fleet = plan_fleet(path, rev, at or current_second(), records, state, servers)
    if misspelt_kind is not None and subject not in fleet.decisions.servers:
        raise UsageError(
            f"there is no server {subject!r}; `gitboot explain {misspelt_kind}` lists the fields of {misspelt_kind}"
        )
    decision, plan = fleet.plan_server(subject)
    record = fleet.records.get(decision.uuid)
    explanation = explain(fleet.repository, decision, plan, fleet.at, record, latest_clock=fleet.latest_clock)
    if field is not None:
        explanation = _filter_field(explanation, field)
    blame = open_blame(*fleet.place)
    write_outputs(
        outputs, json=partial(_format_json, explanation, blame), text=partial(_format_text, explanation, blame)
    )
    if blame is not None and blame.shallow:
        click.echo(SHALLOW_CLONE, err=True)
    print_missing_instance(records, state)


def _write_schemas(folder: Path) -> None:
    from gitboot.review.formats.json import build_schemas

    schemas = build_schemas()
    for name, text in schemas.items():
        write_output_file(folder / name, [text.encode()], make_folders=True)
    click.echo(f"{folder}: {len(schemas)} schemas", err=True)


def _get_schema(kind: str) -> str:
    """Return the JSON Schema of a kind, as text."""
    from gitboot.review.formats.json import build_schemas

    return build_schemas()["any.json" if kind == "Any" else f"{kind}.json"]


def _is_code(subject: str) -> bool:
    return re.fullmatch(r"GB\d{4}", subject, re.IGNORECASE) is not None


def _has_server(path: Path, rev: str | None, name: str) -> bool:
    """Return whether a fleet contains a server whose name could also be a problem code, such as gb2011."""
    try:
        return name in load_fleet(path, rev).servers
    except (InvalidRepository, UsageError):
        return False


def _explain_code(value: str, outputs: Sequence[OutputOption]) -> None:
    """Print what a problem code means. Raises `UsageError` if there is no such code."""
    code = next((code for code in Code if code.value == value), None)
    if code is None:
        raise UsageError(f"there is no problem code {value}; the first code is GB1001")
    text = wrap_on_terminal(f"{code.value}: {code.headline}\n\n{code.why}\n\n{code.fix}\n", sys.stdout)
    styled_text = text.replace(code.value, style(code.value, bold=True), 1)
    as_json = partial(format_document, code=code, headline=code.headline, why=code.why, hint=code.fix)
    write_outputs(outputs, json=as_json, text=lambda: styled_text)


def _format_json(explanation: Explanation, blame: Blame | None) -> str:
    def add_commits(reasons: tuple[Reason, ...]) -> list[dict[str, object]]:
        return [{**to_json_value(reason), "commit": _find_commit(reason, blame)} for reason in reasons]

    reasons = add_commits(explanation.reasons)
    others = add_commits(explanation.others)
    return format_document(**{**to_json_value(explanation), "reasons": reasons, "others": others})


def _find_commit(reason: Reason, blame: Blame | None) -> dict[str, str | None] | None:
    """Return the commit that last changed a field.

    Return None if there is no source location or no Git repository, or if a shallow clone may lack the commit.
    """
    if blame is None or reason.path is None or reason.line is None:
        return None
    commit = blame.line(reason.path, reason.line)
    if commit is not None:
        return {**to_json_value(commit)}
    if blame.is_committed(reason.path, reason.line):
        return None
    return {"revision": WORKTREE, "author": None, "date": None, "subject": None}


def _format_fields(kind: str, field: str | None) -> str:
    """Format the fields of a kind, or the fields below one of its fields. Raises `UsageError` for an unknown field."""
    from gitboot.model.json_schema import KINDS, list_schema_fields

    documents = {document.__name__: document for document in KINDS}
    if kind == "Any":
        rows = [(name, str(document.__doc__)) for name, document in documents.items()]
        return format_table(("KIND", "DESCRIPTION"), rows)
    schema_fields = list(list_schema_fields(documents[kind]))
    path = f"spec.{_strip_items(field).removeprefix('spec.')}" if field not in (None, "spec") else "spec"
    nested_fields = [each for each in schema_fields if f"{_strip_items(each.path)}.".startswith(f"{path}.")]
    shown_fields = [each for each in nested_fields if each.path.count(".") <= path.count(".") + 1]
    if not shown_fields:
        known = ", ".join(each.path.removeprefix("spec.") for each in schema_fields if each.path.count(".") == 1)
        raise UsageError(f"{kind} has no field {field!r}; its fields are {known}")
    lines = [wrap_text(str(documents[kind].__doc__), continuation=""), ""] if field is None else []
    for shown in shown_fields:
        required = ", required" if shown.is_required else ""
        text = wrap_text(f"{shown.path}  {shown.type.replace('`', '')}{required}", continuation="      ")
        lines.append(text.replace(shown.path, style(shown.path, bold=True), 1))
        lines.append(wrap_text(shown.description, "    "))
    parents = {_strip_items(each.path).rpartition(".")[0] for each in nested_fields} - {path}
    shown_parents = [each for each in shown_fields if _strip_items(each.path) in parents]
    if shown_parents:
        names = [_strip_items(each.path).removeprefix("spec.") for each in shown_parents]
        lines += [
            "",
            wrap_text(f"There are more fields in {', '.join(names)}. To see them, run:", continuation=""),
            f"    gitboot explain {kind} {names[0]}",
        ]
    return "\n".join(lines)


def _strip_items(path: str) -> str:
    """Return the path of a field without ``[]`` and ``{}``, which mark the items of lists and of mappings."""
    return path.replace("[]", "").replace("{}", "")


def _filter_field(explanation: Explanation, field: str) -> Explanation:
    """Return the explanation of one field and the fields below it. Raises `UsageError` for an unknown field."""
    all_reasons = (*explanation.reasons, *explanation.others)
    prefixes = (f"{field}[", f"{field}.", f"{field}{{")
    reasons = tuple(reason for reason in all_reasons if reason.field == field or reason.field.startswith(prefixes))
    if not reasons:
        known = ", ".join(_list_field_names(all_reasons))
        hint = f"to set the fleet's path, use --path {field}" if os.path.isdir(field) else f"its fields are {known}"
        raise UsageError(f"{explanation.server} currently has no field {field!r}; {hint}")
    rules = {reason.rule for reason in reasons}
    if field.partition("[")[0] != "kernelArguments":
        rules.discard("R7")  # rule R7 has rejected candidates only for kernel arguments
    lost = tuple(candidate for candidate in explanation.lost if candidate.rule in rules)
    return structs.replace(explanation, reasons=reasons, lost=lost, others=())


def _list_field_names(reasons: Iterable[Reason]) -> list[str]:
    """Return the names of the top-level fields, without keys and indexes."""
    return list(dict.fromkeys(re.split(r"[.\[]", each.field, maxsplit=1)[0] for each in reasons))


_MAX_VALUE: Final = 40  # columns of a value, if the table has several fields


def _format_text(explanation: Explanation, blame: Blame | None) -> str:
    rows: list[tuple[str, ...]] = []
    locations: list[str] = []
    for reason in explanation.reasons:
        value = reason.value
        if len(explanation.reasons) > 1 and len(value) > _MAX_VALUE:  # `explain SERVER FIELD` shows the full value
            value = f"{value[: _MAX_VALUE - 13]}…{value[-12:]}"
        rows.append((reason.field, value, reason.rule, reason.why))
        locations.append(_format_location(reason, blame))
    parts = [format_table(("FIELD", "VALUE", "RULE", "REASON"), rows, below=locations)]
    rules = {reason.rule for reason in explanation.reasons}
    lost = [(each.candidate, each.rule, each.why) for each in explanation.lost if each.rule in rules]
    if lost:
        parts.append(format_table(("NOT CHOSEN", "RULE", "REASON"), lost))
    shown_names = _list_field_names(explanation.reasons)
    other_names = [name for name in _list_field_names(explanation.others) if name not in shown_names]
    if other_names:
        parts.append(wrap_text(f"Other fields: {', '.join(other_names)}"))
    return "\n\n".join(parts)


def _format_location(reason: Reason, blame: Blame | None) -> str:
    """Return the place of a field in the fleet and the commit that last changed the field, or "" without a place."""
    if not reason.path:
        return ""
    commit = _find_commit(reason, blame)
    commit_text = ""
    if commit is not None and commit["revision"] == WORKTREE:
        commit_text = "not committed yet"
    elif commit is not None:
        revision, author, date = (commit[key] or "" for key in ("revision", "author", "date"))
        commit_text = f"{revision[:9]} {date[:10]} {author.partition(' <')[0]}"
    place = wrap_text(f"{reason.path}:{reason.line}:{reason.column}  {commit_text}", "    ")
    return style(place, fg="bright_black")
