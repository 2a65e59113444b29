"""`gitboot assets`: what machines fetch besides the boot files."""

from __future__ import annotations

from pathlib import Path

import click

from gitboot.cli.bounded import bounded, evaluating
from gitboot.cli.exit import Exit
from gitboot.cli.inputs import fleet_options
from gitboot.errors import UsageError


@click.group()
def command() -> None:
    """Place what machines fetch besides the boot files."""


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
@bounded
def loaders(
    context: click.Context,
    path: Path,
    rev: str | None,
    out: Path,
    tftp: Path | None,
    base_url: str | None,
    systems: tuple[Path, ...],
) -> None:
    """Place iPXE, GRUB and PXELINUX from the distribution's packages, as the DHCP configuration names them.

    GRUB is built so that it begins with grub.cfg under the base URL. What is missing is named with its package.
    Doing it twice writes nothing.
    """
    from gitboot.assets import Placed, Placement, place

    url = _base_url_of(path, rev) if base_url is None else _parsed(base_url)

    def report(placed: Placed) -> None:
        colour = {Placement.PLACED: "green", Placement.MISSING: "yellow"}.get(placed.outcome)
        outcome = click.style(f"{placed.outcome:<9}", fg=colour)
        click.echo(f"{outcome}  {placed.path:<27}  {placed.message}")

    placed = place(out, tftp, url, report, systems=systems)
    if all(each.outcome is Placement.MISSING for each in placed):
        context.exit(Exit.PARTIAL)


def _base_url_of(path: Path, rev: str | None) -> str:
    """The base URL of the fleet at PATH; raises `InvalidRepository`."""
    from gitboot.load import load
    from gitboot.source import open_snapshot

    with evaluating() as begun:
        snapshot = open_snapshot(path, rev)
        begun(len(snapshot.blobs))
        return load(snapshot).fleet.spec.base_url


def _parsed(url: str) -> str:
    from gitboot.model.scalars import Malformed, parse_base_url

    try:
        return parse_base_url(url)
    except Malformed as error:
        raise UsageError(f"--base-url {url}: {error.message}; {error.hint}") from None
