"""gitboot.cli.options_from_cli_choosing."""

from __future__ import annotations

import click

selector_option = click.option(
    "-l", "--selector", metavar="SELECTOR", help="Only servers with these labels: role=web,site!=fra1."
)
