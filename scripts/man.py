"""Write a manual page for each command from its help, for the Debian package: scripts/man.py OUT."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from click_man.core import write_man_pages

from gitboot import __version__
from gitboot.cli.main import cli


def main(out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    _load(cli)
    write_man_pages("gitboot", cli, version=f"gitboot {__version__}", target_dir=str(out))


def _load(group: click.Group) -> None:
    """Import all commands of a group, and prepare their help for roff."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        group.commands[name] = command
        if isinstance(command, click.Group):
            _load(command)
        command.help = (command.help or "").replace("\b\n", "").replace("\\", "\\e")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
