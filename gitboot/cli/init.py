"""`gitboot init`: a small fleet repository to begin with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from gitboot import __version__
from gitboot.errors import UsageError

SEED: Final = Path(__file__).with_name("seed")  # what is written, but for the schemas
CI: Final = (  # dot-files, so that they are no part of the fleet
    ".github/workflows/gitboot.yml",
    ".gitlab-ci.yml",
    ".pre-commit-config.yaml",
    ".github/workflows/gitboot-rollout.yml",
)
THIS_VERSION: Final = f"gitboot=={__version__}"
SCHEMAS: Final = ".gitboot/schemas"  # a dot-folder, so that it is no part of the fleet


@click.command()
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--gitboot",
    "wanted",
    metavar="REQUIREMENT",
    help="What pip installs in CI: gitboot==1.2.3, or 'gitboot @ URL'. Default: what this gitboot was installed from.",
)
def command(directory: Path, wanted: str | None) -> None:
    """Write a small fleet repository into DIR, ready to be changed into yours.

    One server, what it boots, a maintenance; for GitHub and for GitLab a CI job that validates every change and shows
    what it would do, and one that takes rollouts on; a hook for pre-commit; the schemas that editors check documents
    by. DIR is new or empty; it may be a Git repository without a file.
    """
    from gitboot.cli.installed import requirement

    known = wanted or requirement()
    try:
        if directory.exists() and any(path.name != ".git" for path in directory.iterdir()):
            raise UsageError(f"{directory} is not empty: choose an empty directory, or one that does not exist yet")
        for name, text in _files(known or THIS_VERSION):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_text(text)
    except OSError as error:
        raise UsageError(f"{directory} cannot be written: {error.strerror}") from error
    click.echo(_NEXT.format(directory=directory))
    if known is None:
        click.echo(_UNKNOWN, err=True)


def _files(gitboot: str) -> Iterator[tuple[str, str]]:
    """The path and the text of each file."""
    from gitboot.model.schema import schemas

    for path in sorted(SEED.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            name = path.relative_to(SEED).as_posix()
            yield name, seed(name, gitboot)
    for name, text in schemas().items():
        yield f"{SCHEMAS}/{name}", text


def seed(name: str, gitboot: str = THIS_VERSION) -> str:
    """A file as it is written, for CI that installs ``gitboot``."""
    return (SEED / name).read_text().replace("@GITBOOT@", json.dumps(gitboot)[1:-1])


_NEXT: Final = """\
{directory} is a fleet of one server now. Next:

  cd {directory}
  gitboot validate                 # every problem, with its place and its hint: none yet
  gitboot plan --records fresh     # what web01 boots
  $EDITOR fleet.yaml servers/*     # your URL, your machines

Then commit, and see README.md; what pip installs in CI stands in .github/ and .gitlab-ci.yml.\
"""

_UNKNOWN: Final = f"""
Warning: nothing says from where pip can install this gitboot on another machine: CI is to install {THIS_VERSION}.
Where your index does not have it, say what it is to install: GITBOOT in these files, or `gitboot init --gitboot`.\
"""
