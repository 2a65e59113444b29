"""`gitboot artifacts download`: fetch the files of images into the published tree."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gitboot.cli.bar import progress
from gitboot.cli.commands.vouching import not_vouched_for
from gitboot.cli.evaluator_process import evaluator_command
from gitboot.cli.exit import Exit
from gitboot.cli.options import OutputOption, fleet_argument, now, output_option
from gitboot.cli.registries import opened_registries, registry_options
from gitboot.errors import AssetError, UsageError
from gitboot.jsonio import document

if TYPE_CHECKING:
    from gitboot.artifacts.availability import Fetcher
    from gitboot.artifacts.local_copies import MirroredArtifact
    from gitboot.jsonio import Digest
    from gitboot.resolve.server_decision_from_plan import BootFile


@click.command()
@fleet_argument
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="What machines see under the base URL: OUTPUT/boot, or a site's mirror of it. Artifacts go below its o/.",
)
@click.option("--site", "sites", multiple=True, metavar="NAME", help="Only what this site needs. Default: all.")
@click.option("--parallel", type=click.IntRange(min=1), default=4, show_default=True, help="Artifacts at a time.")
@click.option(
    "--keep-days",
    type=click.IntRange(min=0),
    default=7,
    show_default=True,
    help="How long what no decision names any more is kept, so that boots that have begun end well.",
)
@click.option(
    "--image-keys",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Bring only what a key in this directory has signed, as `artifacts signatures` checks it. Default: all.",
)
@registry_options
@output_option("text", "json")
@click.pass_context
@evaluator_command
def download(
    context: click.Context,
    path: Path,
    rev: str | None,
    out: Path,
    sites: tuple[str, ...],
    parallel: int,
    keep_days: int,
    image_keys: Path | None,
    registries: tuple[str, ...],
    registry_credentials: Path | None,
    ca_bundle: Path | None,
    allow_token_over_http: bool,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Fetch the files of images into OUT, each under its digest.

    The files are those that the images of the fleet name at web servers and in registries.

    For fleets with `mirror` among their outputs, whose machines are told to fetch it there. What is there is whole:
    where this is ended, it goes on from there the next time, and doing it twice fetches nothing. Files below assets/
    are left alone. The exit code is 8 where something could not be brought, or is not what the image says.
    """
    from gitboot.artifacts.local_copies import Mirroring, mirrored_path, prune
    from gitboot.cli.commands.looking import fetchers_of, named_in
    from gitboot.model.fleet import Output

    decisions, found = named_in(path, rev, sites)
    if Output.MIRROR not in decisions.outputs:
        raise UsageError("the Fleet's outputs do not have mirror: machines fetch each artifact where it is")
    files = [each.file for each in found if each.file.source is not None]
    fetchers = fetchers_of(
        decisions.base_url,
        None,
        opened_registries(registries, registry_credentials, ca_bundle, allow_token_over_http=allow_token_over_http),
    )
    refused = {}
    if image_keys is not None:
        new = {file.sha256 for file in files if not (out / mirrored_path(file)).is_file()}
        refused = not_vouched_for(path, rev, image_keys, fetchers, new)
    done = _brought(fetchers, files, refused, out, parallel)
    pruned = []
    if not sites:  # else it is not known what the others need
        before = (now() - timedelta(days=keep_days)).timestamp()
        try:
            pruned = prune(out, {mirrored_path(file) for file in files}, before)
        except OSError as error:
            raise AssetError(f"{error.filename}: {error.strerror}") from error
    for output in outputs:
        output.write(document(items=done, pruned=pruned) if output.format == "json" else _as_table(done, pruned))
    if any(each.outcome is Mirroring.FAILED for each in done):
        context.exit(Exit.PARTIAL)


def _brought(
    fetcher: Fetcher, files: Iterable[BootFile], refused: Mapping[Digest, str], out: Path, parallel: int
) -> list[MirroredArtifact]:
    """What became of each, by path; those that are refused are left where they are."""
    from gitboot.artifacts.local_copies import MirroredArtifact, Mirroring, mirror_all, mirrored_path

    by_path = {mirrored_path(file): file for file in files}
    done = [
        MirroredArtifact(path=at, source=file.source or "", outcome=Mirroring.FAILED, message=refused[file.sha256])
        for at, file in by_path.items()
        if file.sha256 in refused
    ]
    signed = [file for file in by_path.values() if file.sha256 not in refused]
    with progress("artifacts", len(signed)) as advance:

        def note(each: MirroredArtifact) -> None:
            done.append(each)
            advance(1)

        mirror_all(fetcher, signed, out, note, parallel=parallel)
    return sorted(done, key=lambda each: each.path)


def _as_table(done: list[MirroredArtifact], pruned: list[str]) -> str:
    from gitboot.cli.terminal import table

    rows = [(str(each.outcome), each.path, each.source, each.message or "-") for each in done]
    rows += [("pruned", path, "-", "-") for path in pruned]
    return table(("OUTCOME", "PATH", "FROM", "WHY"), rows) if rows else ""
