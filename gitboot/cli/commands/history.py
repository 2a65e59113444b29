"""`gitboot history`: the commits that changed the decision for a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import click

from gitboot.cli.completion import complete_servers
from gitboot.cli.evaluator_child import evaluator_command, get_results_cache, limit_evaluation
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import OutputOption, output_option, path_option, write_outputs
from gitboot.errors import UsageError
from gitboot.evaluator.decision_history import ChangingCommit, DecisionHistory, InvalidCommit
from gitboot.git.history import open_history
from gitboot.jsonio import format_document, to_json_value
from gitboot.review.decision_changes import Change, EffectKind, ServerEffect
from gitboot.standard_streams import style

_DERIVED_FIELDS: Final = ("version", "files")  # fields that follow from the image, shown only in JSON


@click.command(
    cls=Command,
    example="gitboot history web01 --number 10",
    exit_codes={
        Exit.FINE: "gitboot printed the commits",
        Exit.SOURCE: "gitboot could not read the repository",
        Exit.USAGE: "no commit describes the server, or an option is wrong",
    },
)
@click.argument("server", shell_complete=complete_servers)
@path_option
@click.option("--rev", metavar="REVISION", help="The Git revision at which to start. Default: HEAD.")
@click.option(
    "-n",
    "--number",
    metavar="NUMBER",
    type=click.IntRange(min=1),
    help="Show at most this number of commits. Default: all.",
)
@output_option("text", "json")
@evaluator_command
def command(server: str, path: Path, rev: str | None, number: int | None, outputs: tuple[OutputOption, ...]) -> None:
    """Show the commits that changed a server's boot.

    gitboot lists the commits that changed the decision for SERVER, the newest first. It follows first parents from
    --rev. If a commit renamed the server, gitboot recognizes it by its UUID.
    """
    from gitboot.cli.evaluated_fleet import HistoryEvaluator

    history = open_history(path, rev)
    entries: list[ChangingCommit | InvalidCommit] = []
    with limit_evaluation() as begun:
        for entry in DecisionHistory(history.steps, get_results_cache(), HistoryEvaluator(history, begun)).list_changes(
            server
        ):
            entries.append(entry)
            if sum(isinstance(each, ChangingCommit) for each in entries) == number:
                break
    if not entries:
        raise UsageError(f"the history of {rev or 'HEAD'} does not contain a server {server!r}")
    listed = partial(format_document, server=server, items=list(map(_build_item, entries)))
    write_outputs(outputs, json=listed, text=partial(_format_text, entries))
    if history.shallow:
        click.echo("this is a shallow clone without older commits; run git fetch --unshallow to fetch them", err=True)


def _build_item(entry: ChangingCommit | InvalidCommit) -> dict[str, Any]:
    commit = to_json_value(entry.commit)
    if isinstance(entry, ChangingCommit):
        return {"commit": commit, **to_json_value(entry.effect), "problem": None}
    return {"commit": commit, "server": None, "kind": "Skipped", "changes": [], "problem": entry.problem}


def _format_text(entries: Sequence[ChangingCommit | InvalidCommit]) -> str:
    from gitboot.cli.terminal import format_table, wrap_text

    lines: list[str] = []
    for _, group in groupby(entries, key=lambda each: isinstance(each, ChangingCommit)):
        alike = list(group)
        if skipped := [each for each in alike if isinstance(each, InvalidCommit)]:
            lines.append(_format_skipped(skipped))
        for entry in alike:
            if isinstance(entry, ChangingCommit):
                commit = entry.commit
                author, revision = commit.author.partition(" <")[0], commit.revision[:9]
                line = wrap_text(f"{revision} {commit.date:%Y-%m-%d} {author}: {commit.subject}")
                lines.append(line.replace(revision, style(revision, fg="yellow"), 1))
                lines.append(format_table(("", "", ""), _format_rows(entry.effect), indent=4))
    return "\n".join(lines)


def _format_skipped(entries: Sequence[InvalidCommit]) -> str:
    newest = entries[0]
    commits = f"{newest.commit.revision[:9]} is"
    if len(entries) > 1:
        commits = f"{len(entries)} commits, {entries[-1].commit.revision[:9]} to {newest.commit.revision[:9]}, are"
    return style(f"({commits} invalid and changed no decision: {newest.problem})", fg="bright_black")


def _format_rows(effect: ServerEffect) -> Iterator[tuple[str, str, str]]:
    if effect.kind is not EffectKind.CHANGED:
        yield effect.kind.lower(), "", effect.server
    images = {change.field.removesuffix("image") for change in effect.changes if change.field.endswith(".boot.image")}
    for change in effect.changes:
        is_boot = change.field.partition(".")[0] in ("policy", "maintenances") and bool(change.old or change.new)
        if effect.kind is not EffectKind.CHANGED and not is_boot:
            continue
        if any(change.field.startswith(f"{boot}{name}") for boot in images for name in _DERIVED_FIELDS):
            continue
        yield change.field, *_format_sides(change)


def _format_sides(change: Change) -> tuple[str, str]:
    old, new = change.old, change.new
    if isinstance(old, list) and isinstance(new, list):
        gone = " ".join(f"-{_to_item(each)}" for each in old if each not in new)
        come = " ".join(f"+{_to_item(each)}" for each in new if each not in old)
        return (gone, come) if gone or come else ("in another order", _format_value(new))
    return _format_value(old), f"-> {_format_value(new)}"


def _to_item(value: Any) -> Any:
    return value.get("url", value) if isinstance(value, dict) else value


def _format_value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict) and "networkBoot" in value:
        boots = value["boot"]["image"] if value["boot"] else "local disk"
        window = value.get("window")
        if window:
            return f"{boots}, from {window['start'] or 'any time'} until {window['end'] or 'removed'}"
        return f"{value['policy']}: {boots}, {value['networkBoot']}"
    if isinstance(value, (dict, list)):
        return json.dumps(value, sort_keys=True)
    return f"{value[:9]}…" if isinstance(value, str) and len(value) == 64 else str(value)
