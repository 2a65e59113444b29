"""`gitboot schema`: JSON Schemas for editors and CI."""

from __future__ import annotations

from pathlib import Path

import click

_KINDS = ("Fleet", "Server", "BootImage", "ImageStream", "BootProfile", "BootPolicy", "Maintenance", "any")


@click.command()
@click.argument("kind", required=False, type=click.Choice(_KINDS, case_sensitive=False))
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write all of them into this directory instead.",
)
def command(kind: str | None, out: Path | None) -> None:
    """Print the JSON Schema of KIND, or of any document; --out writes one file for each.

    Editors with yaml-language-server check a document that begins with
    `# yaml-language-server: $schema=PATH/any.json`.
    """
    from gitboot.model.schema import main, schemas

    if out is not None:
        main([str(out)])
        click.echo(f"{out}: {len(schemas())} schemas", err=True)
        return
    click.echo(schemas()[f"{kind or 'any'}.json"], nl=False)
