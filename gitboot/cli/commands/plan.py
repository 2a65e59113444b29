"""`gitboot plan`, `render` and `boot-script`: show what servers boot, or write their boot files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click

from gitboot.cli.completion import complete_servers
from gitboot.cli.evaluated_fleet import (
    PlannedFleet,
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
    output_option,
    selector_option,
    shown_state_option,
    write_outputs,
)
from gitboot.cli.terminal import format_plan_source, format_table, format_time, wrap_text
from gitboot.controller.instance.state_directory import require_ledger
from gitboot.errors import UsageError
from gitboot.files import check_output_folder, convert_os_errors, is_directory, is_file
from gitboot.jsonio import format_document, format_instant, to_json_value
from gitboot.publish.manifest import MANIFEST
from gitboot.publish.tree_reader import read_state
from gitboot.render.boot_files import render_fleet_files, render_server_files
from gitboot.render.endpoint_files import PublishedServer, find_version
from gitboot.render.page import build_summary
from gitboot.render.paths import BOOT, Role
from gitboot.resolve.install_attempts import install_progress
from gitboot.resolve.plan_at_time import find_consumed_runs, find_missing_precondition
from gitboot.resolve.server_decision import Decision
from gitboot.resolve.server_plan import BootPlan, Cause
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
