"""`gitboot verify-mirror`: compare a mirror with the published tree."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gitboot.cli.bar import growing
from gitboot.cli.exit import Exit
from gitboot.cli.inputs import OutputOption, document, output_option
from gitboot.terminal import style

if TYPE_CHECKING:
    from gitboot.targets.mirror import PublishedMirror
    from gitboot.targets.mirrored import MirrorFinding


@click.command()
@click.option(
    "--tree",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The published tree that counts: what `gitboot run` wrote.",
)
@click.option(
    "--mirror",
    required=True,
    metavar="URL|DIR",
    help="The copy of its boot/: http:// or https:// as machines ask it, or a folder on this machine.",
)
@click.option(
    "--ca-bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="GITBOOT_CA_BUNDLE",
    help="Certificates of authorities that are trusted besides the machine's own, as PEM. Default: none.",
)
@click.option(
    "--read-entries",
    is_flag=True,
    help="Read what only machines fetch, too. The mirror logs that as a machine's fetch: only where no instance takes "
    "its log as evidence. Default: such files are asked for by HEAD, and judged by size, time and ETag.",
)
@click.option(
    "--target",
    "as_target",
    is_flag=True,
    help="The mirror is a target of `gitboot run --target`, or stands before one: without boots that are made once.",
)
@click.option("--parallel", type=click.IntRange(min=1), default=16, show_default=True, help="Files at a time.")
@output_option("text", "json")
@click.pass_context
def command(
    context: click.Context,
    tree: Path,
    mirror: str,
    ca_bundle: Path | None,
    read_entries: bool,
    as_target: bool,
    parallel: int,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Compare a mirror with the published tree: what it lacks, has of before, has otherwise, or has besides.

    Of a web server, also whether firmware and loaders can take what it says: type, size, no redirect, nothing that a
    proxy may keep. What was published anew meanwhile is looked at again. What a web server has of servers that are gone
    cannot be asked for: look at its folder. The exit code is 8 where something is wrong, and 6 where something could
    not be looked at.
    """
    from gitboot.targets.mirror import FolderMirror, WebMirror, compared, expected
    from gitboot.targets.mirrored import MirrorFault

    look = partial(expected, tree, as_target=as_target)
    looked: PublishedMirror
    if "://" in mirror and not mirror.startswith("file://"):
        looked = WebMirror(mirror, tree, ca_bundle, parallel=parallel, reads_entries=read_entries)
    else:
        looked = FolderMirror(_folder(mirror), tree)
    with growing("files") as (begun, done):
        found, files = compared(look, looked, parallel=parallel, begun=begun, done=done)
    for output in outputs:
        items = [{"path": each.path, "fault": each.fault, "message": each.message} for each in found]
        is_json = output.format == "json"
        output.write(document(files=files, items=items) if is_json else _as_text(found, files))
    if found:
        context.exit(Exit.SOURCE if all(each.fault is MirrorFault.UNKNOWN for each in found) else Exit.PARTIAL)


def _folder(mirror: str) -> Path:
    from gitboot.errors import UsageError

    folder = Path(mirror.removeprefix("file://"))
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder: --mirror takes a URL of a web server, or a folder on this machine")
    return folder


def _as_text(found: tuple[MirrorFinding, ...], files: int) -> str:
    from gitboot.cli.table import table
    from gitboot.phrases import count

    rows = [(style(str(each.fault), fg="red"), f"/{each.path}", each.message) for each in found]
    counts = Counter(str(each.fault).lower() for each in found)
    told = ", ".join(f"{number} {word}" for word, number in sorted(counts.items())) or "all as published"
    listed = [table(("FOUND", "PATH", "WHY"), rows), ""] if rows else []
    return "\n".join((*listed, f"{count(files, 'file')}: {told}"))
