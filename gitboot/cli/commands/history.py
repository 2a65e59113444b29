"""`gitboot history`: show the commits that changed a server or a document, and the installations of a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import click
from msgspec import Struct

from gitboot.cli.completion import complete_history
from gitboot.cli.evaluator_child import evaluator_command, get_results_cache, limit_evaluation
from gitboot.cli.main import Command, Exit
from gitboot.cli.options import (
    OutputOption,
    describe_state_variable,
    is_path_named,
    output_option,
    path_option,
    write_outputs,
)
from gitboot.cli.terminal import format_table, wrap_text
from gitboot.controller.instance.state_directory import (
    LEDGER,
    find_running_process,
    make_no_instance_error,
    require_ledger,
)
from gitboot.errors import InvalidRepository, UsageError
from gitboot.evaluator.decision_history import (
    ChangingCommit,
    DecisionHistory,
    DocumentChange,
    InvalidCommit,
    list_document_changes,
)
from gitboot.files import convert_os_errors, is_directory
from gitboot.fleet.documents import KINDS, Id
from gitboot.fleet.validation import load
from gitboot.git.fetch import CLONE
from gitboot.git.history import SHALLOW_CLONE, History, open_history
from gitboot.git.repository import ACCEPTED
from gitboot.jsonio import format_document, to_json_value
from gitboot.ledger.instance_tables import read_numbered_events
from gitboot.ledger.open_ledger import open_copy
from gitboot.ledger.server_tables import parse_time, read_records
from gitboot.model.scalars import SystemUuid
from gitboot.publish.tree_reader import read_records as read_exported_records
from gitboot.review.decision_changes import EffectKind, ServerEffect, ValueChange
from gitboot.standard_streams import style
from gitboot.text import format_suggestion


@click.command(
    cls=Command,
    example="gitboot history web01 --number 10\ngitboot history ImageStream/flatcar-stable",
    exit_codes={
        Exit.FINE: "gitboot printed the commits",
        Exit.SOURCE: "gitboot could not read the repository",
        Exit.USAGE: "no commit describes the server or the document, or an option is wrong",
    },
)
@click.argument("subject", metavar="SERVER|KIND/NAME", shell_complete=complete_history)
@path_option
@click.option("--rev", metavar="REVISION", help="The Git revision at which to start. Default: HEAD.")
@click.option(
    "-n",
    "--number",
    metavar="NUMBER",
    type=click.IntRange(min=1),
    help="Show at most this number of commits. Default: all.",
)
@click.option(
    "--records",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Exported records, such as ops/records of an output tree. gitboot then also shows what SERVER was last "
    "installed with. Default: do not show it.",
)
@click.option(
    "--state",
    envvar="GITBOOT_STATE",
    type=click.Path(path_type=Path, file_okay=False),
    help="The state directory of an instance. gitboot then also lists every installation of SERVER in the ledger. "
    "Without --path, it reads the instance's repository, by default from the accepted commit. Default: the variable "
    "GITBOOT_STATE. If neither is set, gitboot does not list installations.",
)
@output_option("text", "json")
@evaluator_command
def command(
    subject: str,
    path: Path,
    rev: str | None,
    number: int | None,
    records: Path | None,
    state: Path | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Show the commits that changed a boot or a document.

    gitboot lists the commits that changed the decision for SERVER, the newest first. It follows first parents from
    --rev. If a commit renamed the server, gitboot recognizes it by its UUID. With --state or --records, gitboot then
    lists the images that the machine was really installed with, the newest first, with the time and the evidence.

    With KIND/NAME, such as ImageStream/flatcar-stable, BootPolicy/web or BootImage/flatcar-4459.2.4, gitboot lists the
    commits that changed this document, with its changed fields. The rest of a commit may be invalid.
    """
    if state is not None and not is_path_named(context := click.get_current_context()):
        commit = "the accepted commit" if rev is None else f"revision {rev}"
        if not is_directory(path := state / CLONE):
            raise make_no_instance_error(state)
        rev = ACCEPTED if rev is None else rev
        if hint := describe_state_variable(context):
            click.echo(
                wrap_text(f"the history ends at {commit} of the instance with the state directory {state}{hint}"),
                err=True,
            )
    history = open_history(path, rev)
    if "/" in subject:
        _show_document(_parse_document(subject), history, rev, number, outputs)
    else:
        _show_server(subject, history, rev, number, records, state, outputs)
    if history.shallow:
        click.echo(SHALLOW_CLONE, err=True)


def _parse_document(subject: str) -> Id:
    kind, _, name = subject.partition("/")
    if kind not in KINDS or not name:
        known = ", ".join(sorted(KINDS))
        raise UsageError(f"{subject!r} is not the name of a document; use KIND/NAME, where KIND is one of {known}")
    return Id(kind, name)


def _show_document(
    document: Id, history: History, rev: str | None, max_commits: int | None, outputs: tuple[OutputOption, ...]
) -> None:
    entries: list[DocumentChange | InvalidCommit] = []
    with limit_evaluation():
        for entry in list_document_changes(history.steps, history.snapshot, document):
            entries.append(entry)
            if sum(isinstance(each, DocumentChange) for each in entries) == max_commits:
                break
    if not any(isinstance(each, DocumentChange) for each in entries):
        names = [str(each) for each in _list_document_ids(history) if each.kind == document.kind]
        hint = format_suggestion(document, names, "check the kind and the name")
        raise UsageError(f"no commit in the history of {_describe_revision(rev)} contains {document}; {hint}")
    as_json = partial(format_document, document=str(document), items=list(map(_build_document_item, entries)))
    write_outputs(outputs, json=as_json, text=partial(_format_text, entries, is_document=True))


def _build_document_item(entry: DocumentChange | InvalidCommit) -> dict[str, Any]:
    if isinstance(entry, DocumentChange):
        return {**to_json_value(entry), "problem": None}
    return {
        "commit": to_json_value(entry.commit),
        "kind": "Skipped",
        "path": None,
        "changes": [],
        "problem": entry.problem,
    }


def _list_document_ids(history: History) -> Iterator[Id]:
    """Yield the documents of the newest commit, if the commit is valid."""
    with suppress(InvalidRepository), limit_evaluation() as set_limits:
        snapshot = history.snapshot(history.steps[0].commit.revision, None)
        set_limits(len(snapshot.blobs))
        yield from load(snapshot).origins


def _describe_revision(rev: str | None) -> str:
    return "the accepted commit" if rev == ACCEPTED else rev or "HEAD"


def _show_server(
    server: str,
    history: History,
    rev: str | None,
    max_commits: int | None,
    records: Path | None,
    state: Path | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    from gitboot.cli.evaluated_fleet import HistoryEvaluator

    entries: list[ChangingCommit | InvalidCommit] = []
    with limit_evaluation() as set_limits:
        for entry in DecisionHistory(
            history.steps, get_results_cache(), HistoryEvaluator(history, set_limits)
        ).list_changes(server):
            entries.append(entry)
            if sum(isinstance(each, ChangingCommit) for each in entries) == max_commits:
                break
    if not entries:
        servers = [each.name for each in _list_document_ids(history) if each.kind == "Server"]
        hint = format_suggestion(server, servers, "`gitboot plan` lists the servers")
        raise UsageError(f"no commit in the history of {_describe_revision(rev)} contains a server {server!r}; {hint}")
    effects = [each for each in entries if isinstance(each, ChangingCommit)]
    installations = None
    if records is not None or state is not None:
        names = {server, *(each.effect.server for each in effects)}
        installations = _list_installations(names, next((each.uuid for each in effects), None), records, state)
    as_json = partial(
        format_document, server=server, items=list(map(_build_server_item, entries)), installations=installations
    )
    write_outputs(outputs, json=as_json, text=partial(_format_server, entries, installations))


class Installation(Struct, frozen=True, kw_only=True):
    """An installation of a machine, from a ledger or from exported records."""

    at: datetime | None  # None: the provision number is not known
    image: str | None  # the BootImage; None: not known, or another tool installed the machine
    version: str | None  # the version that another tool installed
    evidence: str | None  # the evidence as in a record: Fetched, Reported, Adopted, Operator and so on
    overwritten_by: str | None = None  # the maintenance that wrote the disks afterwards


_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
_INSTALLED: Final = ("Provisioned", "WithdrawnBootInstalled")


def _list_installations(
    names: Set[str], uuid: SystemUuid | None, records: Path | None, state: Path | None
) -> tuple[Installation, ...]:
    """Return the installations of a machine, newest first.

    Events from version 0.1.0 contain only the name of the server. The result includes these events if the name is in
    ``names``.
    """
    events: list[Installation] = []
    record = None
    if state is not None:
        require_ledger(state)
        with open_copy(state / LEDGER, in_use=find_running_process(state) is not None) as ledger:
            found = [each for _, each in read_numbered_events(ledger) if each["type"] in _INSTALLED]
            known = read_records(ledger)
        events = [
            Installation(
                at=parse_time(each["at"]), image=each.get("image"), version=None, evidence=each.get("evidence")
            )
            for each in found
            if (each["uuid"] == uuid if "uuid" in each else each.get("server") in names)
        ]
        record = known.get(uuid) if uuid is not None else None
    if records is not None:
        with convert_os_errors(records, "read"):
            record = read_exported_records(records).get(uuid) if uuid is not None else None
    if record is not None and record.provision is not None:
        last = Installation(
            at=record.provisioned_at,
            image=record.image,
            version=record.version,
            evidence=record.evidence,
            overwritten_by=record.overwritten_by,
        )
        # The event of an installation is a little later than the time in its record.
        since = last.at or _BEGINNING
        candidates = [each for each in events if (each.image, each.evidence) == (last.image, last.evidence)]
        duplicates = [each for each in candidates if each.at is not None and since <= each.at][-1:]
        events = [*(each for each in events if each not in duplicates), last]
    return tuple(sorted(events, key=lambda each: each.at or _BEGINNING, reverse=True))


def _format_server(
    entries: Sequence[ChangingCommit | InvalidCommit], installations: Sequence[Installation] | None
) -> str:
    if installations is None:
        return _format_text(entries)
    rows = [
        (
            f"{each.at:%Y-%m-%dT%H:%M:%SZ}" if each.at is not None else "-",
            each.image or (f"version {each.version}" if each.version else "-"),
            each.evidence or "-",
            f"{each.overwritten_by} later overwrote the disks" if each.overwritten_by else "",
        )
        for each in installations
    ]
    table = format_table(("INSTALLED", "IMAGE", "EVIDENCE", ""), rows)
    return "\n\n".join((_format_text(entries), table if rows else "The records contain no installations."))


def _build_server_item(entry: ChangingCommit | InvalidCommit) -> dict[str, Any]:
    commit = to_json_value(entry.commit)
    if isinstance(entry, ChangingCommit):
        return {"commit": commit, **to_json_value(entry.effect), "problem": None}
    return {"commit": commit, "server": None, "kind": "Skipped", "changes": [], "problem": entry.problem}


def _format_text(
    entries: Sequence[ChangingCommit | DocumentChange | InvalidCommit], *, is_document: bool = False
) -> str:
    lines: list[str] = []
    for _, group in groupby(entries, key=lambda each: isinstance(each, InvalidCommit)):
        members = list(group)
        if skipped := [each for each in members if isinstance(each, InvalidCommit)]:
            lines.append(_format_invalid_commits(skipped, is_document=is_document))
        for entry in members:
            if not isinstance(entry, InvalidCommit):
                commit = entry.commit
                author, revision = commit.author.partition(" <")[0], commit.revision[:9]
                line = wrap_text(f"{revision} {commit.date:%Y-%m-%d} {author}: {commit.subject}")
                lines.append(line.replace(revision, style(revision, fg="yellow"), 1))
                rows = (
                    _format_document_rows(entry)
                    if isinstance(entry, DocumentChange)
                    else _format_effect_rows(entry.effect)
                )
                lines.append(format_table(("", "", ""), rows, indent=4))
    return "\n".join(lines)


def _format_invalid_commits(entries: Sequence[InvalidCommit], *, is_document: bool) -> str:
    newest = entries[0]
    commits = f"{newest.commit.revision[:9]} is"
    if len(entries) > 1:
        commits = f"{len(entries)} commits, {entries[-1].commit.revision[:9]} to {newest.commit.revision[:9]}, are"
    if is_document:
        text = f"({commits} invalid, so gitboot may have missed changes to the document: {newest.problem})"
    else:
        text = f"({commits} invalid, and did not change any decision: {newest.problem})"
    return style(text, fg="bright_black")


_DERIVED_FIELDS: Final = ("version", "files")  # fields that follow from the image; only the JSON output shows them


def _format_effect_rows(effect: ServerEffect) -> Iterator[tuple[str, str, str]]:
    if effect.kind is not EffectKind.CHANGED:
        yield effect.kind.lower(), "", effect.server
    images = {change.field.removesuffix("image") for change in effect.changes if change.field.endswith(".boot.image")}
    for change in effect.changes:
        is_boot = change.field.partition(".")[0] in ("policy", "maintenances") and bool(change.old or change.new)
        if effect.kind is not EffectKind.CHANGED and not is_boot:
            continue
        if any(change.field.startswith(f"{boot}{name}") for boot in images for name in _DERIVED_FIELDS):
            continue
        yield change.field, *_format_old_and_new(change, _format_decision_value)


def _format_document_rows(change: DocumentChange) -> Iterator[tuple[str, str, str]]:
    if change.kind is not EffectKind.CHANGED:
        yield change.kind.lower(), "", change.path
    for each in change.changes:
        yield each.field, *_format_old_and_new(each, _format_value)


def _format_old_and_new(change: ValueChange, format_value: Callable[[Any], str]) -> tuple[str, str]:
    old, new = change.old, change.new
    if isinstance(old, list) and isinstance(new, list):
        removed = " ".join(f"-{_shorten_item(each)}" for each in old if each not in new)
        added = " ".join(f"+{_shorten_item(each)}" for each in new if each not in old)
        return (removed, added) if removed or added else ("in another order", format_value(new))
    return format_value(old), f"-> {format_value(new)}"


def _shorten_item(value: Any) -> Any:
    return value.get("url", value) if isinstance(value, dict) else value


def _format_decision_value(value: Any) -> str:
    if isinstance(value, dict) and "networkBoot" in value:
        boots = value["boot"]["image"] if value["boot"] else "local disk"
        window = value.get("window")
        if window:
            return f"{boots}, from {window['start'] or 'any time'} until {window['end'] or 'removed'}"
        return f"{value['policy']}: {boots}, {value['networkBoot']}"
    return _format_value(value)


def _format_value(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, (dict, list)):
        return json.dumps(value, sort_keys=True)
    return f"{value[:9]}…" if isinstance(value, str) and len(value) == 64 else str(value)
