"""`gitboot serve`: the endpoint alone, over a published tree."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click

from gitboot.cli.inputs import config_option
from gitboot.cli.stopping import stopped_by_signal
from gitboot.cli.telling import tell
from gitboot.errors import UsageError
from gitboot.status import Event


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@config_option
@click.option(
    "--output",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="The published tree: what `gitboot run --output` or `gitboot render --out` wrote, or a mirror with its ops/.",
)
@click.option("--listen", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="Where to listen.")
@click.option(
    "--spool",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write fetches of entries here, for `gitboot run --spool`. Default: they are not recorded.",
)
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory that is served under /assets/. Default: none.",
)
def command(output: Path, listen: str, spool: Path | None, assets: Path | None) -> None:
    """Serve a published tree, and the API over it; as many processes as wanted.

    It follows the tree as it changes, and turns entries at the instant that the tree names.
    """
    from gitboot.observe import spool as spooled
    from gitboot.serve.app import Endpoint
    from gitboot.serve.server import Server
    from gitboot.serve.tree import PublishedTree

    if not output.is_dir():
        raise UsageError(f"{output} is not a directory; give what was published with --output or --out")
    if spool is not None:
        spool.mkdir(parents=True, exist_ok=True)
    tree = PublishedTree(output, _clock)
    tree.refresh()
    endpoint = Endpoint(
        answers=lambda: tree.answers,
        status=lambda: tree.status,
        clock=_clock,
        observe=partial(spooled.write, spool) if spool is not None else None,
        assets=assets,
        artifacts=output / "boot" / "o",
    )
    with ExitStack() as stack:
        server = stack.enter_context(Server(endpoint, listen))
        tell(Event(at=_clock(), type="Listening", message=server.url, facts={"url": server.url}))
        tree.follow(stopped_by_signal().wait)
    tell(Event(at=_clock(), type="Stopped", message="the tree stays as it is"))


def _clock() -> datetime:
    return datetime.now(UTC)
