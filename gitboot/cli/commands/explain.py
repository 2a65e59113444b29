"""`gitboot explain`: the reasons for a server's boot, the fields of a kind, or the meaning of a problem code."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import click
from msgspec import structs

from gitboot.cli.completion import complete_subjects
from gitboot.cli.evaluated_fleet import plan_fleet, print_unknown_instance, records_option
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
from gitboot.errors import UsageError
from gitboot.files import write_output_file
from gitboot.git.history import Blame, open_blame
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
_WIDTH: Final = 40
_COMMENT_COLOUR: Final = "bright_black"


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
    can be every field of the decision, even if it has its default. With --state, gitboot
    explains the boot in the commit that an instance has accepted, with the records of the instance.

    With KIND (Server, BootImage, Any and so on), gitboot lists the fields of the kind with their types and
    descriptions. FIELD, such as bmc.tls, lists the fields below this field. -o json prints the JSON Schema. The schema
    of Any accepts documents of every kind. An editor with yaml-language-server checks a document that begins with
    `# yaml-language-server: $schema=FILE`.

    With CODE, such as GB2011, gitboot explains what the problem means and how to fix it.
    """
    if schemas is not None or subject in _KINDS:
        from gitboot.review.formats.json import build_schemas as texts_of_schemas

        texts = texts_of_schemas()
    if schemas is not None:
        for name, text in texts.items():
            write_output_file(schemas / name, [text.encode()], make_folders=True)
        click.echo(f"{schemas}: {len(texts)} schemas", err=True)
        return
    if subject is None:
        raise click.UsageError("Missing argument 'SERVER|KIND|CODE'.")
    if re.fullmatch(r"GB\d{4}", subject, re.IGNORECASE):
        code = next((each for each in Code if each.value == subject.upper()), None)
        if code is None:
            raise UsageError(f"there is no problem code {subject.upper()}; the first code is GB1001")
        text = wrap_on_terminal(f"{code.value}: {code.headline}\n\n{code.why}\n\n{code.fix}\n", sys.stdout)
        text = text.replace(code.value, style(code.value, bold=True), 1)
        listed = partial(format_document, code=code, headline=code.headline, why=code.why, hint=code.fix)
        write_outputs(outputs, json=listed, text=partial(str, text))
        return
    if subject in _KINDS:
        schema_text = texts["any.json" if subject == "Any" else f"{subject}.json"]
        write_outputs(outputs, json=partial(str, schema_text), text=partial(_format_fields, subject, field))
        return

    kind = next((each for each in _KINDS if each.lower() == subject.lower()), None)
    fleet = plan_fleet(path, rev, at or current_second(), records, state, (subject,) if kind is None else ())
    if kind is not None and subject not in fleet.decisions.servers:
        raise UsageError(f"there is no server {subject!r}; `gitboot explain {kind}` lists the fields of {kind}")
    decision, plan = fleet.plan_server(subject)
    found = explain(fleet.repository, decision, plan, fleet.records.get(decision.uuid))
    if field is not None:
        found = _filter_field(found, field)
    blame = open_blame(*fleet.place)
    write_outputs(outputs, json=partial(_format_json, found, blame), text=partial(_format_text, found, blame))
    print_unknown_instance(records, state)


def _format_json(explanation: Explanation, blame: Blame | None) -> str:
    def with_commits(reasons: tuple[Reason, ...]) -> list[dict[str, object]]:
        return [{**to_json_value(each), "commit": _find_commit(each, blame)} for each in reasons]

    reasons, others = with_commits(explanation.reasons), with_commits(explanation.others)
    return format_document(**{**to_json_value(explanation), "reasons": reasons, "others": others})


def _find_commit(reason: Reason, blame: Blame | None) -> dict[str, str | None] | None:
    """Return the commit that last changed a field. Return None if there is no source location or no Git repository."""
    if blame is None or reason.path is None or reason.line is None:
        return None

    if (commit := blame.line(reason.path, reason.line)) is None:
        return {"revision": WORKTREE, "author": None, "date": None, "subject": None}
    return {**to_json_value(commit)}


def _format_fields(kind: str, field: str | None) -> str:
    from gitboot.model.json_schema import KINDS, list_schema_fields

    known_kinds = {each.__name__: each for each in KINDS}
    if kind == "Any":
        return format_table(("KIND", "DESCRIPTION"), [(name, str(each.__doc__)) for name, each in known_kinds.items()])
    fields = list(list_schema_fields(known_kinds[kind]))
    path = f"spec.{_strip_items(field).removeprefix('spec.')}" if field not in (None, "spec") else "spec"
    below = [each for each in fields if f"{_strip_items(each.path)}.".startswith(f"{path}.")]
    found = [each for each in below if each.path.count(".") <= path.count(".") + 1]
    if not found:
        known = ", ".join(each.path.removeprefix("spec.") for each in fields if each.path.count(".") == 1)
        raise UsageError(f"{kind} has no field {field!r}; it has {known}")
    lines = [wrap_text(str(known_kinds[kind].__doc__), continuation=""), ""] if field is None else []
    for each in found:
        required = ", required" if each.is_required else ""
        text = wrap_text(f"{each.path}  {each.type.replace('`', '')}{required}", continuation="      ")
        lines += [text.replace(each.path, style(each.path, bold=True), 1), wrap_text(each.description, "    ")]
    parents = {_strip_items(each.path).rpartition(".")[0] for each in below}
    deeper = [name for each in found if (name := _strip_items(each.path)) in parents and name != path]
    if deeper:
        names = [name.removeprefix("spec.") for name in deeper]
        lines += [
            "",
            wrap_text(f"More fields are below {', '.join(names)}. To see them, run:", continuation=""),
            f"    gitboot explain {kind} {names[0]}",
        ]
    return "\n".join(lines)


def _strip_items(path: str) -> str:
    """Return the path of a field without the marks for items of lists and of mappings."""
    return path.replace("[]", "").replace("{}", "")


def _filter_field(explanation: Explanation, field: str) -> Explanation:
    explained = (*explanation.reasons, *explanation.others)
    reasons = tuple(
        each
        for each in explained
        if each.field == field or each.field.startswith((f"{field}[", f"{field}.", f"{field}{{"))
    )
    if not reasons:
        known = ", ".join(_list_names(explained))
        hint = f"to set the path of the fleet, use --path {field}" if Path(field).is_dir() else f"it has {known}"
        raise UsageError(f"{explanation.server} has no field {field!r} now; {hint}")
    rules = {each.rule for each in reasons}
    if field.partition("[")[0] != "kernelArguments":
        rules.discard("R7")  # rule R7 has rejected candidates only for kernel arguments
    return structs.replace(
        explanation, reasons=reasons, lost=tuple(each for each in explanation.lost if each.rule in rules), others=()
    )


def _list_names(reasons: Iterable[Reason]) -> list[str]:
    """Return the names of fields without the keys and the indexes of their items."""
    return list(dict.fromkeys(re.split(r"[.\[]", each.field, maxsplit=1)[0] for each in reasons))


def _format_text(explanation: Explanation, blame: Blame | None) -> str:
    rows, written = [], []
    for each in explanation.reasons:
        value = each.value
        if len(explanation.reasons) > 1 and len(value) > _WIDTH:  # `explain SERVER FIELD` shows the full value
            value = f"{value[: _WIDTH - 13]}…{value[-12:]}"
        rows.append((each.field, value, each.rule, each.why))
        commit, by = _find_commit(each, blame), ""
        if commit is not None:
            revision, author, date = (commit[key] or "" for key in ("revision", "author", "date"))
            by = f"{revision[:9]} {date[:10]} {author.partition(' <')[0]}"
            by = "not committed yet" if revision == WORKTREE else by
        place = wrap_text(f"{each.path}:{each.line}:{each.column}  {by}", "    ") if each.path else ""
        written.append(style(place, fg=_COMMENT_COLOUR) if place else "")
    text = format_table(("FIELD", "VALUE", "RULE", "REASON"), rows, below=written)
    rules = {each.rule for each in explanation.reasons}
    if lost := [(each.candidate, each.rule, each.why) for each in explanation.lost if each.rule in rules]:
        text = f"{text}\n\n{format_table(('NOT CHOSEN', 'RULE', 'REASON'), lost)}"
    if names := [each for each in _list_names(explanation.others) if each not in _list_names(explanation.reasons)]:
        text = f"{text}\n\n" + wrap_text(f"Other fields: {', '.join(names)}")
    return text
