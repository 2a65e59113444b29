"""`gitboot boot-script`: print the boot scripts of a server without consuming a boot."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gitboot.cli.options import OutputOption, at_option, now, output_option
from gitboot.errors import UsageError
from gitboot.jsonio import document

if TYPE_CHECKING:
    from gitboot.render.endpoint_files import PublishedServer, Turn


@click.command()
@click.argument("name")
@click.option(
    "--tree",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The published tree: what `gitboot run` or `gitboot render` wrote.",
)
@at_option
@output_option("text", "json")
def boot_script_command(name: str, tree: Path, at: datetime | None, outputs: tuple[OutputOption, ...]) -> None:
    """Print what each loader of the server NAME finds at its lookups, as it is published.

    It reads the tree, so nothing is spent: a boot that is made once is still there for the machine. Whether an
    endpoint has given it already, its own answer says, to whoever asks: a comment in the second line.
    """
    from gitboot.publish.tree_reader import read_state

    state = read_state(tree, name)
    if state is None:
        raise UsageError(_missing(name, tree))
    found = _entries(state, tree, at or now())
    for output in outputs:
        output.write(_as_text(found) if output.format == "text" else document(items=found))


def _missing(name: str, tree: Path) -> str:
    from gitboot.publish.manifest import MANIFEST
    from gitboot.text import did_you_mean

    if not (tree / MANIFEST).is_file():
        return f"{tree} is no published tree; give what `gitboot run` or `gitboot render` has written with --out"
    servers = tree / "ops" / "servers"
    hint = did_you_mean(
        name, sorted(each.stem for each in servers.glob("*.json")), f"{servers} has those that there are"
    )
    return f"there is no server {name!r} in {tree}; {hint}"


def _entries(state: PublishedServer, tree: Path, at: datetime) -> list[dict[str, Any]]:
    """Each entry with all paths that it stands at, the first ones first."""
    from gitboot.render.endpoint_files import turn_of
    from gitboot.render.paths import BOOT, Role

    by_content: dict[tuple[str, str], list[str]] = {}
    for path, turns in sorted(state.paths.items(), key=lambda each: (each[0].count("/") < 2, each[0])):
        turn = turn_of(turns, at)[0]
        if turn is not None and turn.content is not None and turn.role is Role.ENTRY:
            by_content.setdefault((turn.content, _how(turn)), []).append(path.removeprefix(BOOT))
    return [
        {"paths": paths, "given": how, "entry": _text(state, tree, content)}
        for (content, how), paths in by_content.items()
    ]


def _how(turn: Turn) -> str:
    """How often it is given, and to whom."""
    if turn.writes is None:
        return "to whoever asks"
    return "once, to the machine" if turn.writes.once else "to the machine, at each boot"


def _text(state: PublishedServer, tree: Path, content: str) -> str:
    text = state.contents.get(content)
    return text if text is not None else (tree / state.stored[content]).read_text()


def _as_text(found: list[dict[str, Any]]) -> str:
    return "\n".join(f"# given {each['given']}: {', '.join(each['paths'])}\n{each['entry']}" for each in found)
