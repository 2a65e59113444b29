"""`gitboot artifacts`: kernels, initrds, images and loaders, which machines fetch besides the boot files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gitboot.cli.commands.artifacts_download import download
from gitboot.cli.commands.vouching import signatures
from gitboot.cli.evaluator_process import evaluator_command, results_cache
from gitboot.cli.exit import Exit
from gitboot.cli.options import OutputOption, fleet_argument, fleet_options, output_option
from gitboot.cli.registries import opened_registries, registry_options
from gitboot.errors import UsageError
from gitboot.jsonio import document
from gitboot.terminal import style

if TYPE_CHECKING:
    from gitboot.artifacts.oci import Resolved


@click.group()
def command() -> None:
    """Place boot loaders; download, verify and resolve kernels, initrds and images."""


command.add_command(download)
command.add_command(signatures)


@command.command()
@click.option(
    "--out",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="What machines see under the base URL: OUTPUT/boot, or a mirror of it. Loaders go below its assets/.",
)
@click.option(
    "--tftp",
    type=click.Path(path_type=Path, file_okay=False),
    help="The root of a TFTP server, where loaders go as well. Default: none.",
)
@click.option(
    "--base-url",
    metavar="URL",
    help="What OUT is reached under, where it is a site's mirror. Default: the fleet's own baseURL.",
)
@click.option(
    "--system",
    "systems",
    multiple=True,
    default=[Path("/")],
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Where packages are installed, or only unpacked: those for another architecture. Several are looked through "
    "in their order. Default: /.",
)
@fleet_options
@click.pass_context
@evaluator_command
def loaders(
    context: click.Context,
    path: Path,
    rev: str | None,
    out: Path,
    tftp: Path | None,
    base_url: str | None,
    systems: tuple[Path, ...],
) -> None:
    """Place iPXE, GRUB and PXELINUX under the names that DHCP sends.

    The loaders come from the packages of the distribution.

    GRUB is built so that it begins with grub.cfg under the base URL. What is missing is named with its package.
    Doing it twice writes nothing.
    """
    from gitboot.artifacts.boot_loaders import Placed, Placement, place

    url = _base_url_of(path, rev) if base_url is None else _parsed(base_url)

    def report(placed: Placed) -> None:
        colour = {Placement.PLACED: "green", Placement.MISSING: "yellow"}.get(placed.outcome)
        outcome = style(f"{placed.outcome:<9}", fg=colour)
        click.echo(f"{outcome}  {placed.path:<27}  {placed.message}")

    placed = place(out, tftp, url, report, systems=systems)
    if all(each.outcome is Placement.MISSING for each in placed):
        context.exit(Exit.PARTIAL)


@command.command()
@click.argument("image", metavar="oci://HOST/NAME:TAG")
@click.option(
    "--cname",
    default="",
    metavar="PREFIX",
    help="Of an index with several images for one architecture, the one whose annotation cname begins so: metal_pxe. "
    "Default: any.",
)
@click.option(
    "--architecture",
    type=click.Choice(["x86_64", "aarch64"]),
    help="The only one to print; for an image without an index, the one that it is for. Default: all there are.",
)
@registry_options
@output_option("yaml", "json")
def resolve(
    image: str,
    cname: str,
    architecture: str | None,
    registries: tuple[str, ...],
    registry_credentials: Path | None,
    ca_bundle: Path | None,
    allow_token_over_http: bool,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Print the spec of a BootImage for an image in a registry.

    The spec names each file of the image by its digest.

    The image is one as boot-operator takes it: its layers' media types say which is the kernel, the initrd, the
    squashfs, the uki or the iso. Nothing but the registry is asked, and nothing is written.
    """
    from gitboot.artifacts.oci import OciReference
    from gitboot.artifacts.oci import resolve as resolved
    from gitboot.model.server import Architecture

    found = resolved(
        OciReference.parse(image),
        opened_registries(registries, registry_credentials, ca_bundle, allow_token_over_http=allow_token_over_http),
        cname=cname,
        architecture=Architecture(architecture) if architecture is not None else None,
    )
    for output in outputs:
        said = document(image=str(found.image), architectures=found.architectures)
        output.write(said if output.format == "json" else _as_yaml(found))


def _as_yaml(found: Resolved) -> str:
    import yaml

    said = yaml.safe_dump({"architectures": found.architectures}, sort_keys=False, width=1000)
    return f"# {found.image}\n{said}"


def _base_url_of(path: Path, rev: str | None) -> str:
    """The base URL of the fleet at PATH; raises `InvalidRepository`."""
    from gitboot.cli.evaluated_fleet import load_fleet

    return load_fleet(path, rev).fleet.spec.base_url


def _parsed(url: str) -> str:
    from gitboot.model.scalars.artifacts import parse_base_url
    from gitboot.model.scalars.texts import Malformed

    try:
        return parse_base_url(url)
    except Malformed as error:
        raise UsageError(f"--base-url {url}: {error.message}; {error.hint}") from None


@command.command()
@fleet_argument
@click.option("--site", "sites", multiple=True, metavar="NAME", help="Only what this site needs. Default: all.")
@click.option("--head", is_flag=True, help="Take the servers' word: ask by HEAD, read nothing.")
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A directory that is served under the fleet's baseURL/assets/: its files are looked at there.",
)
@click.option("--parallel", type=click.IntRange(min=1), default=16, show_default=True, help="Artifacts at a time.")
@click.option(
    "--sources",
    is_flag=True,
    help="Look where `download` fetches artifacts from, and not where machines fetch them: before a merge.",
)
@registry_options
@output_option("text", "json")
@click.pass_context
@evaluator_command
def verify(
    context: click.Context,
    path: Path,
    rev: str | None,
    sites: tuple[str, ...],
    head: bool,
    assets: Path | None,
    parallel: int,
    sources: bool,
    registries: tuple[str, ...],
    registry_credentials: Path | None,
    ca_bundle: Path | None,
    allow_token_over_http: bool,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Check that each artifact exists, with its size and sha256.

    The fleet at PATH names the artifacts.

    Each is read once, and again when its server says that it is another; what firmware fetches itself must have a
    content type and a size that it takes, too. Where this is ended, it goes on from there the next time. The exit code
    is 8 where an artifact is missing, wrong, or would not boot, and 6 where one could not be looked at.
    """
    from gitboot.artifacts.availability import ReadResults, at_sources
    from gitboot.cli.commands.looking import as_json, as_text, exit_of_look, fetchers_of, looked_at, named_in

    decisions, found = named_in(path, rev, sites)
    found = at_sources(found) if sources else found
    asked = opened_registries(registries, registry_credentials, ca_bundle, allow_token_over_http=allow_token_over_http)
    fetchers, results = fetchers_of(decisions.base_url, assets, asked), ReadResults(results_cache())
    seen = looked_at(fetchers, found, results, read=not head, parallel=parallel)
    for output in outputs:
        output.write(as_json(found, seen) if output.format == "json" else as_text(found, seen))
    context.exit(exit_of_look(found, seen))
