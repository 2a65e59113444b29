"""`gitboot run`: the main job."""

from __future__ import annotations

import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gitboot.cli.exit import Exit

if TYPE_CHECKING:
    from gitboot.loop import Loop
    from gitboot.reconcile import Reconciler
    from gitboot.settings import Settings


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@click.argument("repository", envvar="GITBOOT_REPOSITORY")
@click.option("--reference", metavar="REF", help="Branch, tag or commit to follow. Default: the remote's HEAD.")
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The directory that is published: OUTPUT/boot for machines, OUTPUT/ops for operators.",
)
@click.option(
    "--state",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the ledger and gitboot's own clone live. Back up STATE/ledger.sqlite: it cannot be rebuilt.",
)
@click.option("--listen", metavar="HOST:PORT", help="Serve the same files and the API here. Default: do not serve.")
@click.option(
    "--records",
    type=click.Choice(["fresh", "adopt"]),
    help="What a new ledger is told: fresh (no server with provision 1 or more is installed), adopt (all are).",
)
@click.option(
    "--credentials",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory with NAME/username and NAME/password for the BMCs. Default: none.",
)
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory that is served under /assets/, for kernels and images. Default: none.",
)
@click.option("--poll", "poll_s", type=float, default=60, show_default=True, help="Seconds between two fetches.")
@click.option("--once", is_flag=True, help="One pass, then exit: 3 where the commit is invalid, 8 where it is partial.")
def command(
    repository: str,
    reference: str | None,
    output: Path,
    state: Path,
    listen: str | None,
    records: str | None,
    credentials: Path | None,
    assets: Path | None,
    poll_s: float,
    once: bool,
) -> None:
    """Watch REPOSITORY and do what its newest valid commit says, until interrupted.

    REPOSITORY is a path or URL of a Git repository. Each pass resolves what every server boots, publishes it
    as files, serves them, and sets boot overrides at BMCs. Every valid commit is accepted: guards against
    dangerous ones come with a later version. A commit that is invalid changes nothing: the last accepted one
    goes on. Each option has a GITBOOT_ variable: GITBOOT_OUTPUT, GITBOOT_STATE, GITBOOT_LISTEN …
    """
    from gitboot.settings import Settings

    sys.exit(
        _run(
            Settings(
                repository=repository,
                reference=reference,
                output=output,
                state=state,
                listen=listen,
                records=records,
                credentials=credentials,
                assets=assets,
                poll_s=poll_s,
            ),
            once=once,
        )
    )


def _clock() -> datetime:
    return datetime.now(UTC)
