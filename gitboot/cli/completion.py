"""`gitboot completion`: what a shell reads to complete commands and options."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print what lets SHELL complete commands and options; the Debian package has it already.

    For bash, in ~/.bashrc: eval "$(gitboot completion bash)"; for zsh the same in ~/.zshrc, after compinit; for fish:
    gitboot completion fish > ~/.config/fish/completions/gitboot.fish
    """
    from click.shell_completion import get_completion_class

    from gitboot.cli.main import cli

    kind = get_completion_class(shell)
    if kind is not None:  # as each of the choices is
        click.echo(kind(cli, {}, "gitboot", "_GITBOOT_COMPLETE").source())
