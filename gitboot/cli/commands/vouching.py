"""`gitboot artifacts signatures`: whether the files of images are signed by keys that count."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from gitboot.cli.evaluator_process import evaluator_command
from gitboot.cli.exit import Exit
from gitboot.cli.options import OutputOption, fleet_argument, output_option
from gitboot.cli.options_from_cli_problems import prefix_of
from gitboot.cli.problems import FORMATS, counted
from gitboot.cli.registries import opened_registries, registry_options
from gitboot.text import count

if TYPE_CHECKING:
    from gitboot.artifacts.availability import Fetcher
    from gitboot.artifacts.signatures import SignatureCheck
    from gitboot.jsonio import Digest
    from gitboot.load.repository import FleetRepository
    from gitboot.model.boot_image import BootImage
    from gitboot.problems.codes import Problem


@click.command()
@fleet_argument
@click.option(
    "--image-keys",
    required=True,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A directory with the keys that count: *.asc and *.gpg of OpenPGP, *.pub of minisign, *.toml of sigstore.",
)
@click.option("--required", is_flag=True, help="A file that nobody has signed is an error, not a warning.")
@click.option(
    "--since",
    metavar="REVISION",
    help="Only images that are new, or others, since this revision: those of a pull request. Default: all.",
)
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A directory that is served under the fleet's baseURL/assets/: its files are read there.",
)
@registry_options
@output_option(*FORMATS)
@evaluator_command
def signatures(
    path: Path,
    rev: str | None,
    image_keys: Path,
    required: bool,
    since: str | None,
    assets: Path | None,
    registries: tuple[str, ...],
    registry_credentials: Path | None,
    ca_bundle: Path | None,
    allow_token_over_http: bool,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Check the signatures of the files of images.

    An image names the signature of a file, or of a list of digests that contains the file.

    Only the keys in --image-keys count, and nothing in the repository says which those are. What cannot be fetched
    counts as not signed. The exit code is 3 where a file is not what a listed key has signed.
    """
    from gitboot.artifacts.signatures import ImageKeys, SignatureCheck
    from gitboot.cli.commands.looking import fetchers_of
    from gitboot.cli.evaluated_fleet import load_fleet
    from gitboot.problems.codes import Severity

    fleet = load_fleet(path, rev)
    images = _images(fleet, path, since)
    base_url = fleet.fleet.spec.base_url
    fetchers = fetchers_of(
        base_url,
        assets,
        opened_registries(registries, registry_credentials, ca_bundle, allow_token_over_http=allow_token_over_http),
    )
    with TemporaryDirectory(prefix="gitboot-") as scratch:
        check = SignatureCheck(fetchers, ImageKeys(image_keys, Path(scratch)), base_url)
        problems = tuple(sorted(_problems(fleet, images, check, required=required)))
    for output in outputs:
        output.write(FORMATS[output.format](problems, prefix_of(path)))
    if any(output.format == "text" for output in outputs):
        click.echo(f"{path}: {count(len(images), 'image')}, {counted(problems)}", err=True)
    if any(problem.severity is Severity.ERROR for problem in problems):
        sys.exit(Exit.INVALID)


def not_vouched_for(
    path: Path, rev: str | None, image_keys: Path, fetcher: Fetcher, digests: Collection[Digest]
) -> dict[Digest, str]:
    """Of the files with these digests, those that no listed key has signed in any image, and why."""
    from gitboot.artifacts.signatures import ImageKeys, SignatureCheck
    from gitboot.cli.evaluated_fleet import load_fleet

    fleet = load_fleet(path, rev)
    found: set[Digest] = set()
    faults: dict[Digest, str] = {}
    with TemporaryDirectory(prefix="gitboot-") as scratch:
        check = SignatureCheck(fetcher, ImageKeys(image_keys, Path(scratch)), fleet.fleet.spec.base_url)
        for _, image in sorted(fleet.images.items()):
            for each in check.files(image, digests):
                if each.by is not None:
                    found.add(each.sha256)
                else:
                    faults[each.sha256] = f"it is {each.fault}" if each.fault is not None else "it has no signature"
    return {digest: faults.get(digest, "it has no signature") for digest in digests if digest not in found}


def _images(fleet: FleetRepository, path: Path, since: str | None) -> list[BootImage]:
    """The images to look at, by name: all of them, or those that are others than they were."""
    from gitboot.cli.evaluated_fleet import load_fleet
    from gitboot.errors import InvalidRepository

    before = {}
    if since is not None:
        try:
            before = dict(load_fleet(path, since).images)
        except InvalidRepository:  # nothing is known of what was there
            before = {}
    return [image for name, image in sorted(fleet.images.items()) if before.get(name) != image]


def _problems(
    fleet: FleetRepository, images: list[BootImage], check: SignatureCheck, *, required: bool
) -> Iterator[Problem]:
    from gitboot.fleet.resources import Id
    from gitboot.problems.codes import Code, Severity

    hint = Code.NOT_VOUCHED_FOR.hint
    for image in images:
        name = Id("BootImage", image.metadata.name)
        for each in check.files(image):
            what = ".".join(map(str, each.at[2:]))
            if each.fault is not None:
                yield fleet.problem(
                    Code.NOT_VOUCHED_FOR, f"{what} of {name} is {each.fault}", name, *each.at, hint=hint
                )
            elif each.by is None:
                severity = Severity.ERROR if required else Severity.WARNING
                message = f"{what} of {name} has no signature"
                yield fleet.problem(Code.NOT_VOUCHED_FOR, message, name, *each.at, hint=hint, severity=severity)
