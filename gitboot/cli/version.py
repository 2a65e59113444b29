"""`gitboot version`: its version, and that of the libraries that matter."""

from __future__ import annotations

import platform

import click


@click.command(help="Show gitboot's version, Python's, and that of libgit2.")
def command() -> None:
    from gitboot import __version__
    from gitboot.source import LIBGIT2_VERSION

    click.echo(f"gitboot {__version__} (Python {platform.python_version()}, libgit2 {LIBGIT2_VERSION})")
