"""`gitboot plan`, `explain`, `render` and `boot-script`: show, explain or write what servers boot."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
from msgspec import structs

from gitboot.cli.completion import complete_servers, complete_subjects
from gitboot.cli.evaluated_fleet import (
    PlannedFleet,
    load_fleet,
    parse_selector,
    plan_fleet,
    print_finished_maintenances,
    print_missing_instance,
    print_unknown_servers,
    records_option,
)
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    InstantType,
    OutputOption,
    StateDirectory,
    at_option,
    current_second,
    current_time,
    fleet_argument,
    fleet_options,
    output_option,
    selector_option,
    shown_state_option,
    write_outputs,
)
from gitboot.cli.terminal import format_plan_source, format_table, format_time, wrap_on_terminal, wrap_text
from gitboot.controller.instance.state_directory import require_ledger
from gitboot.errors import InvalidRepository, UsageError
from gitboot.files import check_output_folder, convert_os_errors, is_directory, is_file, write_output_file
from gitboot.git.history import SHALLOW_CLONE, Blame, open_blame
from gitboot.git.snapshots import WORKTREE
from gitboot.jsonio import format_document, format_instant, to_json_value
from gitboot.problems import Code
from gitboot.publish.manifest import MANIFEST
from gitboot.publish.tree_reader import read_state
from gitboot.render.boot_files import render_fleet_files, render_server_files
from gitboot.render.endpoint_files import PublishedServer, find_version
from gitboot.render.page import build_summary
from gitboot.render.paths import BOOT, Role
from gitboot.resolve.decision_fields import Reason
from gitboot.resolve.explanation import Explanation, explain
from gitboot.resolve.install_attempts import install_progress
from gitboot.resolve.plan_at_time import find_consumed_runs, find_missing_precondition
from gitboot.resolve.server_decision import Decision
from gitboot.resolve.server_plan import BootPlan, Cause
from gitboot.standard_streams import style
from gitboot.text import format_count, format_names, format_suggestion, printable_lines, quote_words


@click.command(
    cls=Command,
    example="gitboot plan fleet --records fresh --selector role=web",
    exit_codes={
        Exit.FINE: "gitboot printed the plans",
        Exit.INVALID: "the fleet has errors",
    },
)
@fleet_argument
@at_option
@records_option
@shown_state_option
@click.option(
    "--server",
    "names",
    multiple=True,
    metavar="NAME",
    shell_complete=complete_servers,
    help="Show only this server. Repeat the option for several servers.",
)
@selector_option
@click.option(
    "--timeline",
    metavar="SERVER",
    shell_complete=complete_servers,
    help="Instead, list the transitions of this server: each time at which its plan changes by itself, with the plan.",
)
@click.option(
    "--until",
    type=InstantType(),
    metavar="TIME",
    help="With --timeline: the end of the timeline. Default: one year after --at.",
)
@output_option("text", "json", "yaml")
@evaluator_command
def command(
    path: Path,
    rev: str | None,
    at: datetime | None,
    records: str | None,
    state: Path | None,
    names: tuple[str, ...],
    selector: str | None,
    timeline: str | None,
    until: datetime | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Show what each server boots, now or later.

    PATH is the fleet. With --state, gitboot shows the commit that an instance has accepted, with the records of the
    instance. Without --state and --records, gitboot has no records, and shows no installations.
    """
    if timeline is not None and (names or selector is not None):
        raise UsageError("--timeline shows one server: remove --server and --selector")
    if timeline is None and until is not None:
        raise UsageError("--until is the end of a timeline: add --timeline SERVER, or remove --until")
    try:
        servers = names if timeline is None else (timeline,)
        fleet = plan_fleet(path, rev, at or current_second(), records, state, servers)
    except UsageError as error:
        if len(path.parts) != 1 or path.exists():
            raise
        server = quote_words(path.name)
        hint = f"for a server, run `gitboot plan --server {server}` or `gitboot explain {server}`"
        raise UsageError(f"{error}; {hint}") from None
    if timeline is None:
        _write_plans(fleet, names, selector, outputs, state)
    else:
        year = min(timedelta(days=365), datetime.max.replace(tzinfo=UTC) - fleet.at)
        _write_timeline(fleet, timeline, until or fleet.at + year, outputs)
    print_missing_instance(records, state)


def _write_plans(
    fleet: PlannedFleet,
    names: tuple[str, ...],
    selector: str | None,
    outputs: tuple[OutputOption, ...],
    state: Path | None,
) -> None:
    label_selector = parse_selector(selector)
    servers = sorted({fleet.find_decision(name).server for name in names}) or fleet.decisions.servers
    items: list[dict[str, Any]] = []
    plans: list[BootPlan | None] = []
    for server in servers:
        metadata = fleet.repository.servers[server].metadata
        if label_selector is not None and not label_selector.matches(metadata.name, metadata.labels):
            continue
        decision, plan = fleet.plan_server(server)
        plans.append(plan)
        items.append(_build_plan_item(fleet, decision, plan))
    if not items and label_selector is not None:
        among = f" among {', '.join(names)}" if names else ""
        total = format_count(len(fleet.decisions.servers), "server")
        raise UsageError(f"no server{among} has the labels {selector}; the fleet has {total}")
    as_json = partial(format_document, revision=fleet.decisions.revision, items=items)
    write_outputs(outputs, text=partial(_format_plans, items), json=as_json, yaml=partial(_format_yaml, as_json))
    if not items:
        click.echo("the fleet has no servers", err=True)
    print_finished_maintenances({item["server"]: item["alreadyMade"] for item in items})
    print_unknown_servers(plans, state)


def _build_plan_item(fleet: PlannedFleet, decision: Decision, plan: BootPlan | None) -> dict[str, Any]:
    """Return the plan of a server as an item of the JSON document."""
    files = render_server_files(fleet.decisions, decision, plan)
    boot_files = {path: file.sha256 for path, file in files.items() if path.startswith("boot/")}
    record = fleet.records.get(decision.uuid)
    item = {**build_summary(decision, plan, boot_files, install_progress(record, fleet.at))}
    if preconditions := _list_preconditions(fleet, decision):
        item["preconditions"] = preconditions
    consumed_runs = find_consumed_runs(decision, fleet.at, record)
    item["alreadyMade"] = {name: format_instant(run.at) for name, run in consumed_runs.items()}
    return item


def _format_plans(items: Sequence[dict[str, Any]]) -> str:
    if not items:
        return ""
    rows: list[tuple[str, ...]] = []
    notes: list[str] = []
    for item in items:
        boots = "no plan"
        if item["phase"]:
            boots = item["image"] or "local disk"
        next_change = format_time(item["nextTransition"]) if item["nextTransition"] else "-"
        source = format_plan_source(item)
        rows.append((item["server"], item["phase"] or "-", boots, item["method"] or "-", source, next_change))
        notes.append("\n".join(filter(None, (_format_installation(item), *_format_preconditions(item)))))
    header = ("SERVER", "PHASE", "BOOTS", "METHOD", "SOURCE", "NEXT CHANGE")
    return format_table(header, rows, optional=3, below=notes)


def _write_timeline(fleet: PlannedFleet, server: str, until: datetime, outputs: tuple[OutputOption, ...]) -> None:
    decision = fleet.find_decision(server)
    if until < fleet.at:
        raise UsageError(
            f"--until {format_instant(until)} is before the start of the timeline, {format_instant(fleet.at)}: see --at"
        )
    items = list(_build_timeline_items(fleet, decision, until))
    as_json = partial(format_document, server=server, items=items)
    write_outputs(outputs, text=partial(_format_timeline, items), json=as_json, yaml=partial(_format_yaml, as_json))


def _build_timeline_items(fleet: PlannedFleet, decision: Decision, until: datetime) -> Iterator[dict[str, Any]]:
    """Yield the plan of a server at the fleet's time, and at each later transition up to ``until``."""
    record = fleet.records.get(decision.uuid)
    instant: datetime | None = fleet.at
    while instant is not None and instant <= until:
        plan = fleet.make_plan(decision, instant)
        progress = install_progress(record, instant)
        yield {
            "from": format_instant(instant),
            "phase": plan.phase if plan else None,
            "image": plan.boot.image if plan and plan.boot else None,
            "maintenance": plan.maintenance if plan else None,
            "policy": plan.policy if plan else None,
            "why": plan.cause if plan else "no policy selects the server, and no maintenance is active",
            "installing": progress.facts() if progress is not None else None,
        }
        # The end of the progress is a transition too: the next item shows the plan without the installation.
        progress_ends = progress.until if progress is not None else None
        next_transition = fleet.find_next_transition(decision, instant)
        instant = min(filter(None, (next_transition, progress_ends)), default=None)


def _format_timeline(items: Sequence[dict[str, Any]]) -> str:
    rows = [
        (
            format_time(item["from"]),
            str(item["phase"] or "no plan"),
            str(item["image"] or ("local disk" if item["phase"] else "-")),
            format_plan_source(item),
            str(item["why"]),
        )
        for item in items
    ]
    header = ("FROM", "PHASE", "BOOTS", "SOURCE", "REASON")
    return format_table(header, rows, below=[_format_installation(item) for item in items])


def _list_preconditions(fleet: PlannedFleet, decision: Decision) -> list[dict[str, Any]]:
    """Return the approvals and drains that the server's maintenances need before a boot.

    Each item contains the digest to approve, and states which approval or drain is still missing.
    """
    record = fleet.records.get(decision.uuid)
    return [
        {
            "maintenance": maintenance.name,
            "waits": find_missing_precondition(maintenance, record),
            **to_json_value(maintenance.before),
        }
        for maintenance in decision.maintenances
        if maintenance.before is not None and maintenance.end is not None and fleet.at < maintenance.end
    ]


def _format_preconditions(item: Mapping[str, Any]) -> Iterator[str]:
    """Yield the approvals and drains that a server still needs, with the line to add to the list of approvals."""
    for precondition in item.get("preconditions", ()):
        name = precondition["maintenance"]
        if precondition["waits"] is Cause.WAITING_FOR_APPROVAL:
            location = (
                f"the file {precondition['approvalFile']}"
                if "approvalFile" in precondition
                else precondition["approvalURL"]
            )
            yield wrap_text(f"Maintenance/{name} needs this approval in {location}:", "    ")
            yield f"    {name} {precondition['digest']}"
        elif precondition["waits"] is Cause.WAITING_FOR_DRAIN:
            yield wrap_text(f"Maintenance/{name} is waiting for {precondition['drainURL']} to drain the server", "    ")


def _format_installation(item: Mapping[str, Any]) -> str:
    return wrap_text(item["installing"]["message"], "    ") if item["installing"] else ""


def _format_yaml(format_json: Callable[[], str]) -> str:
    """Convert JSON to YAML. If the YAML would not be printable, return the JSON, which is also valid YAML."""
    import yaml

    json_text = format_json()
    yaml_text = str(yaml.safe_dump(json.loads(json_text), sort_keys=True, allow_unicode=True, width=100))
    return yaml_text if printable_lines(yaml_text) == yaml_text else json_text


@click.command(
    cls=Command,
    example="gitboot boot-script web01 --tree /srv/gitboot",
    exit_codes={
        Exit.FINE: "gitboot printed the scripts",
        Exit.PARTIAL: "a file in the output tree is damaged",
        Exit.USAGE: "the server or the output tree does not exist",
    },
)
@click.argument("name", shell_complete=complete_servers)
@click.option(
    "--tree",
    type=click.Path(path_type=Path, file_okay=False),
    help="The output tree, which `gitboot run` or `gitboot render` wrote. Default: the output tree of --state.",
)
@click.option(
    "--state",
    envvar="GITBOOT_STATE",
    type=StateDirectory(),
    help="The state directory of the instance that wrote the output tree. Default: the variable GITBOOT_STATE.",
)
@at_option
@output_option("text", "json")
def boot_script_command(
    name: str, tree: Path | None, state: Path | None, at: datetime | None, outputs: tuple[OutputOption, ...]
) -> None:
    """Print a server's boot script without consuming it.

    gitboot reads the output tree, and prints what each boot loader of the server NAME finds at its paths. A one-time
    boot stays available to the machine. To see if an endpoint served it already, fetch the script from the endpoint
    with curl, and read the comment in its second line.
    """
    if tree is None:
        tree = _find_output_tree(state)
    with convert_os_errors(tree, "read"):
        published_server = read_state(tree, name)
    if published_server is None:
        if not is_file(tree / MANIFEST):
            raise UsageError(
                f"{tree} is not an output tree; pass the --out directory of `gitboot run` or `gitboot render`"
            )
        folder = tree / "ops" / "servers"
        names = sorted(file.stem for file in folder.glob("*.json"))
        hint = format_suggestion(name, names, f"{folder} lists the servers")
        raise UsageError(f"there is no server {name!r} in {tree}; {hint}")
    with convert_os_errors(tree, "read"):
        items = _build_script_items(published_server, tree, at or current_time())
    write_outputs(outputs, text=partial(_format_scripts, items), json=partial(format_document, items=items))


def _find_output_tree(state: Path | None) -> Path:
    """Return the output tree of an instance. Raises `UsageError` if there is no instance or no output tree."""
    from gitboot.cli.instance_client import find_output_tree

    if state is None:
        raise UsageError(
            "specify the output tree with --tree, or its instance with --state or the variable GITBOOT_STATE"
        )
    tree = find_output_tree(state)
    if tree is None:
        require_ledger(state)
        raise UsageError(f"the ledger in {state} does not record an output tree; pass the tree with --tree")
    return tree


def _build_script_items(server: PublishedServer, tree: Path, at: datetime) -> list[dict[str, Any]]:
    """Return each boot script, with its paths and the way in which an endpoint serves it.

    The scripts that machines load first come first.
    """
    paths_by_script: dict[tuple[str, str], list[str]] = {}  # by the digest of the script, and how it is served
    for path in sorted(server.paths, key=lambda path: (path.count("/") < 2, path)):
        version = find_version(server.paths[path], at)[0]
        if version is not None and version.content is not None and version.role is Role.BOOT_SCRIPT:
            served = "to every client"
            if version.writes is not None:
                served = "once, to the machine" if version.writes.once else "to the machine, at each boot"
            paths_by_script.setdefault((version.content, served), []).append(path.removeprefix(BOOT))
    items = []
    for (digest, served), paths in paths_by_script.items():
        script = server.contents.get(digest)
        if script is None:
            script = (tree / server.stored_paths[digest]).read_text()
        items.append({"paths": paths, "served": served, "script": script})
    return items


def _format_scripts(items: Sequence[dict[str, Any]]) -> str:
    return "\n".join(f"# served {item['served']}: {', '.join(item['paths'])}\n{item['script']}" for item in items)


@click.command(
    cls=Command,
    example="gitboot render fleet --out /tmp/tree --records adopt",
    exit_codes={
        Exit.FINE: "gitboot wrote the files",
        Exit.INVALID: "the fleet has errors",
        Exit.PARTIAL: "gitboot could not write all files",
        Exit.USAGE: "the directory contains other files, or an option is wrong",
    },
)
@fleet_argument
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path),
    help="The directory to write to. It must be new, empty, or the output of an earlier run.",
)
@at_option
@records_option
@evaluator_command
def render_command(path: Path, rev: str | None, out: Path, at: datetime | None, records: str | None) -> None:
    """Write a fleet's boot files to a directory.

    PATH is the fleet. gitboot writes the files that `gitboot run` would publish. OUT/boot contains the files for
    machines. Any HTTP server or CDN can serve it. OUT/ops contains the files for operators.

    The tokens in the paths are not secret, because anyone can compute them. A running instance uses different tokens,
    and ignores reports with the tokens of this command.
    """
    from gitboot.publish.publisher import OutputDirectory

    _check_output_directory(out, path)
    fleet = plan_fleet(path, rev, at or current_second(), records)
    states = fleet.render_states()
    check_output_folder(out)
    target = OutputDirectory.open(out, ledger="render")
    try:
        published = target.publish(
            {name: state.files for name, state in states.items()},
            render_fleet_files(fleet.decisions, fleet.repository.fleet.spec.provisioning.monitors),
            complete=True,
            commit=fleet.decisions.revision,
            at=fleet.at,
            parts=fleet.render_pages(states),
        )
        target.update_list(None, fleet.at)
    finally:
        target.close(remove_lock=True)
    click.echo(
        f"{out}: {published.new} files written, {len(published.withdrawn)} removed, {published.unchanged} unchanged",
        err=True,
    )
    print_unknown_servers(state.plan for state in states.values())


def _check_output_directory(out: Path, fleet: Path) -> None:
    """Raise `UsageError` if the directory is a fleet or contains files that gitboot did not write."""
    if not is_directory(out):
        return
    with convert_os_errors(out, "read"):
        is_fleet = (out / ".git").exists() or (is_directory(fleet) and out.samefile(fleet))
        others = sorted({path.name for path in out.iterdir() if not path.name.startswith(".")} - {"boot", "ops"})
    hint = "set --out to a new or empty directory, or to a directory that `gitboot render` wrote"
    if is_fleet:
        raise UsageError(f"{out} is a fleet's work tree; {hint}")
    if others and not (out / MANIFEST).exists():
        raise UsageError(f"{out} contains files that gitboot did not write: {format_names(others, 3)}; {hint}")


# gitboot explain


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
def explain_command(
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
    can be any field of the decision, even if the field has its default value. With --state, gitboot uses the accepted
    commit and the records of an instance.

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
