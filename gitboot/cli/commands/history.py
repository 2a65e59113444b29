"""`gitboot history`: show the commits that changed a server or a document, and the installations of a server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
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
from gitboot.fleet.revision import CommitSummary
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
    commits that changed this document, with its changed fields. Other documents in a commit may be invalid.
    """
    context = click.get_current_context()
    if state is not None and not is_path_named(context):
        commit = "the accepted commit" if rev is None else f"revision {rev}"
        path = state / CLONE
        if not is_directory(path):
            raise make_no_instance_error(state)
        if rev is None:
            rev = ACCEPTED
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
    """Return the ID of a document such as BootPolicy/web. Raises `UsageError` for any other text."""
    kind, _, name = subject.partition("/")
    if kind not in KINDS or not name:
        known = ", ".join(sorted(KINDS))
        raise UsageError(f"{subject!r} is not the name of a document; use KIND/NAME, where KIND is one of {known}")
    return Id(kind, name)


def _show_document(
    document: Id, history: History, rev: str | None, max_commits: int | None, outputs: tuple[OutputOption, ...]
) -> None:
    entries: list[DocumentChange | InvalidCommit] = []
    change_count = 0
    with limit_evaluation():
        for entry in list_document_changes(history.steps, history.snapshot, document):
            entries.append(entry)
            change_count += isinstance(entry, DocumentChange)
            if change_count == max_commits:
                break
    if change_count == 0:
        names = [str(other) for other in _list_document_ids(history) if other.kind == document.kind]
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
    changing_commits: list[ChangingCommit] = []
    with limit_evaluation() as set_limits:
        decision_history = DecisionHistory(history.steps, get_results_cache(), HistoryEvaluator(history, set_limits))
        for entry in decision_history.list_changes(server):
            entries.append(entry)
            if isinstance(entry, ChangingCommit):
                changing_commits.append(entry)
            if len(changing_commits) == max_commits:
                break
    if not entries:
        servers = [document.name for document in _list_document_ids(history) if document.kind == "Server"]
        hint = format_suggestion(server, servers, "`gitboot plan` lists the servers")
        raise UsageError(f"no commit in the history of {_describe_revision(rev)} contains a server {server!r}; {hint}")
    installations = None
    if records is not None or state is not None:
        names = {server, *(commit.effect.server for commit in changing_commits)}
        uuid = changing_commits[0].uuid if changing_commits else None
        installations = _list_installations(names, uuid, records, state)
    items = [_build_server_item(entry) for entry in entries]
    as_json = partial(format_document, server=server, items=items, installations=installations)
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
    installations: list[Installation] = []
    record = None
    if state is not None:
        require_ledger(state)
        with open_copy(state / LEDGER, in_use=find_running_process(state) is not None) as ledger:
            events = [event for _, event in read_numbered_events(ledger) if event["type"] in _INSTALLED]
            records_by_uuid = read_records(ledger)
        installations = [
            Installation(
                at=parse_time(event["at"]), image=event.get("image"), version=None, evidence=event.get("evidence")
            )
            for event in events
            if (event["uuid"] == uuid if "uuid" in event else event.get("server") in names)
        ]
        record = records_by_uuid.get(uuid) if uuid is not None else None
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
        installations = [*_remove_last_event(installations, last), last]
    return tuple(sorted(installations, key=lambda installation: installation.at or _BEGINNING, reverse=True))


def _remove_last_event(installations: Sequence[Installation], last: Installation) -> list[Installation]:
    """Return the installations from events without the event of the installation in a record, ``last``.

    The event of an installation is a little later than the time in its record.
    """
    since = last.at or _BEGINNING
    events_of_last = [
        installation
        for installation in installations
        if (installation.image, installation.evidence) == (last.image, last.evidence)
        and installation.at is not None
        and since <= installation.at
    ]
    if not events_of_last:
        return list(installations)
    return [installation for installation in installations if installation != events_of_last[-1]]


def _format_server(
    entries: Sequence[ChangingCommit | InvalidCommit], installations: Sequence[Installation] | None
) -> str:
    if installations is None:
        return _format_text(entries)
    if not installations:
        return f"{_format_text(entries)}\n\nThe records contain no installations."
    rows = []
    for installation in installations:
        at = f"{installation.at:%Y-%m-%dT%H:%M:%SZ}" if installation.at is not None else "-"
        image = installation.image or (f"version {installation.version}" if installation.version else "-")
        overwritten_by = installation.overwritten_by
        note = f"{overwritten_by} later overwrote the disks" if overwritten_by else ""
        rows.append((at, image, installation.evidence or "-", note))
    return f"{_format_text(entries)}\n\n{format_table(('INSTALLED', 'IMAGE', 'EVIDENCE', ''), rows)}"


def _build_server_item(entry: ChangingCommit | InvalidCommit) -> dict[str, Any]:
    commit = to_json_value(entry.commit)
    if isinstance(entry, ChangingCommit):
        return {"commit": commit, **to_json_value(entry.effect), "problem": None}
    return {"commit": commit, "server": None, "kind": "Skipped", "changes": [], "problem": entry.problem}


def _format_text(
    entries: Sequence[ChangingCommit | DocumentChange | InvalidCommit], *, is_document: bool = False
) -> str:
    lines: list[str] = []
    invalid_commits: list[InvalidCommit] = []  # the invalid commits since the last line
    for entry in entries:
        if isinstance(entry, InvalidCommit):
            invalid_commits.append(entry)
            continue
        if invalid_commits:
            lines.append(_format_invalid_commits(invalid_commits, is_document=is_document))
            invalid_commits = []
        lines.append(_format_commit(entry.commit))
        rows = _format_document_rows(entry) if isinstance(entry, DocumentChange) else _format_effect_rows(entry.effect)
        lines.append(format_table(("", "", ""), rows, indent=4))
    if invalid_commits:
        lines.append(_format_invalid_commits(invalid_commits, is_document=is_document))
    return "\n".join(lines)


def _format_commit(commit: CommitSummary) -> str:
    revision = commit.revision[:9]
    author = commit.author.partition(" <")[0]
    line = wrap_text(f"{revision} {commit.date:%Y-%m-%d} {author}: {commit.subject}")
    return line.replace(revision, style(revision, fg="yellow"), 1)


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
    for field_change in change.changes:
        yield field_change.field, *_format_old_and_new(field_change, _format_value)


def _format_old_and_new(change: ValueChange, format_value: Callable[[Any], str]) -> tuple[str, str]:
    old, new = change.old, change.new
    if isinstance(old, list) and isinstance(new, list):
        removed = " ".join(f"-{_shorten_item(item)}" for item in old if item not in new)
        added = " ".join(f"+{_shorten_item(item)}" for item in new if item not in old)
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
