"""Shell completion: complete the names of servers, streams, image sources and held changes, without error messages."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import wraps
from pathlib import Path
from typing import Any, Final

import click

_MAX_SECONDS: Final = 1.0  # the time limit, because a person waits for the names
_KIND: Final = re.compile(r"^(?:\{\s*)?kind:\s*[\"']?(\w+)", re.MULTILINE)
_METADATA: Final = re.compile(
    r"^(?:\{.*?\b)?metadata:[ \t]*(?:(?P<flow>\{.*)|(?:#.*)?\n(?P<block>(?:[ \t]+.*\n?|\n)+))", re.MULTILINE
)
_NAME: Final = re.compile(r"(?:^|[{,\s])name:\s*[\"']?([A-Za-z0-9][\w.-]*)")
_INNER: Final = re.compile(r"\{[^{}]*\}")
_DOCUMENT_START: Final = re.compile(r"^---.*$", re.MULTILINE)

Completer = Callable[[click.Context, click.Parameter, str], list[str]]


def _as_completer(find_names: Callable[[click.Context], Iterator[str]]) -> Completer:
    """Return a completer that lists the names that begin with the incomplete word.

    After an error, it lists no names.
    """

    @wraps(find_names)
    def complete(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        try:
            return sorted({name for name in find_names(context) if name.startswith(incomplete)})
        except Exception:  # noqa: BLE001 - the shell would print the error between the words of the command
            return []

    return complete


def _find_state_directory(context: click.Context) -> Path | None:
    state: Any = context.params.get("state") or os.environ.get("GITBOOT_STATE")
    return Path(state) if state else None


def _find_servers(context: click.Context) -> Iterator[str]:
    state = _find_state_directory(context)
    if state is not None:
        yield from _read_ledger_names(state)
    else:
        yield from read_document_names(_find_fleet_path(context), "Server")


def _find_fleet_path(context: click.Context) -> Path:
    return Path(context.params.get("path") or ".")


def _read_ledger_names(state: Path) -> Iterator[str]:
    """Yield the names of the machines in a ledger."""
    from gitboot.controller.instance.state_directory import LEDGER, has_ledger
    from gitboot.ledger.store import open_database

    if has_ledger(state):
        with closing(open_database(state / LEDGER, read_only=True)) as database, database.reading():
            yield from (str(name) for (name,) in database.execute("SELECT name FROM machines"))


def read_document_names(folder: Path, kind: str) -> Iterator[str]:
    """Yield the names of the documents of one kind that a folder contains, without parsing YAML.

    Stops after `_MAX_SECONDS`.
    """
    until = time.monotonic() + _MAX_SECONDS
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for file in files:
            if time.monotonic() > until:
                return
            if file.endswith((".yaml", ".yml")) and not file.startswith("."):
                yield from _find_document_names(Path(parent, file).read_text(errors="replace"), kind)


def _find_document_names(text: str, kind: str) -> Iterator[str]:
    """Yield the names of the documents of one kind in a YAML file."""
    for document in _DOCUMENT_START.split(text):
        document_kind, metadata = _KIND.search(document), _METADATA.search(document)
        if document_kind is None or document_kind[1] != kind or metadata is None:
            continue
        flow = metadata["flow"]
        if flow:
            # Remove the mappings in the metadata, such as the labels, and the rest of the document.
            fields = [flow[0] + _INNER.sub("", flow[1:].partition("}, spec:")[0])]
        else:
            lines = [line for line in metadata["block"].splitlines() if line.strip()]
            depth = len(lines[0]) - len(lines[0].lstrip())
            fields = [line for line in lines if len(line) - len(line.lstrip()) == depth]  # this skips the labels
        for field in fields:
            name = _NAME.search(field)
            if name is not None:
                yield name[1]


complete_servers: Final = _as_completer(_find_servers)
complete_streams: Final = _as_completer(lambda context: read_document_names(_find_fleet_path(context), "ImageStream"))


@_as_completer
def complete_subjects(context: click.Context) -> Iterator[str]:
    """Complete the arguments of `gitboot explain`."""
    from gitboot.model.json_schema import KINDS

    yield from (kind.__name__ for kind in KINDS)
    yield from _find_servers(context)


@_as_completer
def complete_history(context: click.Context) -> Iterator[str]:
    """Complete the arguments of `gitboot history`."""
    yield from _find_servers(context)
    for kind in ("ImageStream", "BootPolicy", "BootImage", "BootProfile", "Maintenance"):
        yield from (f"{kind}/{name}" for name in read_document_names(_find_fleet_path(context), kind))


@_as_completer
def complete_sources(context: click.Context) -> Iterator[str]:
    """Complete the arguments of `gitboot new image`."""
    from gitboot.model.image_source import BUILT_IN_SOURCES

    yield from BUILT_IN_SOURCES
    yield from read_document_names(_find_fleet_path(context), "ImageSource")


@_as_completer
def complete_record_arguments(context: click.Context) -> Iterator[str]:
    """Complete the arguments of `gitboot records set`."""
    yield from ("provisioned", "pending")
    yield from _find_servers(context)


@_as_completer
def complete_held_digest(context: click.Context) -> Iterator[str]:
    """Complete the digest of the commit that a guard holds."""
    from gitboot.controller.instance.state_directory import read_status

    state = _find_state_directory(context)
    held = read_status(state)["attempted"].get("held") if state is not None else None
    if held is not None:
        yield held["digest"][:16]
