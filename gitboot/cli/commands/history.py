"""`gitboot history`: the commits that changed what is decided for a server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import click

from gitboot.cli.evaluator_child import evaluation_limits, evaluator_command, results_cache
from gitboot.cli.options import OutputOption, output_option, path_option, write_outputs
from gitboot.errors import UsageError
from gitboot.evaluator.decision_history import Changed, Lineage, Skipped
from gitboot.git.history import open_history
from gitboot.jsonio import document, facts
from gitboot.review.decision_changes import Change, EffectKind, ServerEffect
from gitboot.standard_streams import style

_IMPLIED: Final = ("version", "files")  # by the image: shown as JSON only


@click.command()
@click.argument("server")
@path_option
@click.option("--rev", metavar="REVISION", help="The Git revision to look back from. Default: HEAD.")
@click.option("-n", "--number", type=click.IntRange(min=1), help="How many commits at most. Default: all.")
@output_option("text", "json")
@evaluator_command
def command(server: str, path: Path, rev: str | None, number: int | None, outputs: tuple[OutputOption, ...]) -> None:
    """Show the commits that changed what SERVER boots, or may boot: its decision, not its file.

    First parents only, the newest first, from --rev or HEAD. A server that was renamed is followed by its UUID. The
    results are cached in $XDG_CACHE_HOME/gitboot/cache.sqlite, which you can delete.
    """
    from gitboot.cli.evaluated_fleet import HistoryEvaluator

    history = open_history(path, rev)
    entries: list[Changed | Skipped] = []
    with evaluation_limits() as begun:
        for entry in Lineage(history.steps, results_cache(), HistoryEvaluator(history, begun)).of(server):
            entries.append(entry)
            if sum(isinstance(each, Changed) for each in entries) == number:
                break
    if not entries:
        raise UsageError(f"no commit that led to {rev or 'HEAD'} decided anything for a server {server!r}")
    listed = partial(document, server=server, items=list(map(_entry, entries)))
    write_outputs(outputs, json=listed, text=partial(_as_text, entries))
    if history.shallow:
        click.echo("a shallow clone: what came before is not known; git fetch --unshallow brings it", err=True)


def _entry(entry: Changed | Skipped) -> dict[str, Any]:
    commit = facts(entry.commit)
    if isinstance(entry, Changed):
        return {"commit": commit, **facts(entry.effect), "problem": None}
    return {"commit": commit, "server": None, "kind": "Skipped", "changes": [], "problem": entry.problem}


def _as_text(entries: Sequence[Changed | Skipped]) -> str:
    from gitboot.cli.terminal import table, wrapped

    lines: list[str] = []
    for _, group in groupby(entries, key=lambda each: isinstance(each, Changed)):
        alike = list(group)
        if skipped := [each for each in alike if isinstance(each, Skipped)]:
            lines.append(_skipped(skipped))
        for entry in alike:
            if isinstance(entry, Changed):
                commit = entry.commit
                author, revision = commit.author.partition(" <")[0], commit.revision[:9]
                line = wrapped(f"{revision} {commit.date:%Y-%m-%d} {author}: {commit.subject}")
                lines.append(line.replace(revision, style(revision, fg="yellow"), 1))
                lines.append(table(("", "", ""), _rows(entry.effect), indent=4))
    return "\n".join(lines)


def _skipped(entries: Sequence[Skipped]) -> str:
    newest = entries[0]
    commits = f"{newest.commit.revision[:9]} is"
    if len(entries) > 1:
        commits = f"{len(entries)} commits, {entries[-1].commit.revision[:9]} to {newest.commit.revision[:9]}, are"
    return style(f"({commits} invalid and decided nothing: {newest.problem})", fg="bright_black")


def _rows(effect: ServerEffect) -> Iterator[tuple[str, str, str]]:
    if effect.kind is not EffectKind.CHANGED:
        yield effect.kind.lower(), "", effect.server
    images = {change.field.removesuffix("image") for change in effect.changes if change.field.endswith(".boot.image")}
    for change in effect.changes:
        is_boot = change.field.partition(".")[0] in ("policy", "maintenances") and bool(change.old or change.new)
        if effect.kind is not EffectKind.CHANGED and not is_boot:
            continue
        if any(change.field.startswith(f"{boot}{name}") for boot in images for name in _IMPLIED):
            continue
        yield change.field, *_sides(change)


def _sides(change: Change) -> tuple[str, str]:
    old, new = change.old, change.new
    if isinstance(old, list) and isinstance(new, list):
        gone = " ".join(f"-{_item(each)}" for each in old if each not in new)
        come = " ".join(f"+{_item(each)}" for each in new if each not in old)
        return (gone, come) if gone or come else ("in another order", _shown(new))
    return _shown(old), f"-> {_shown(new)}"


def _item(value: Any) -> Any:
    return value.get("url", value) if isinstance(value, dict) else value


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, dict) and "networkBoot" in value:
        boots = value["boot"]["image"] if value["boot"] else "local disk"
        window = value.get("window")
        if window:
            return f"{boots}, from {window['start'] or 'ever'} to {window['end'] or 'ever'}"
        return f"{value['policy']}: {boots}, {value['networkBoot']}"
    if isinstance(value, (dict, list)):
        return json.dumps(value, sort_keys=True)
    return f"{value[:9]}…" if isinstance(value, str) and len(value) == 64 else str(value)
