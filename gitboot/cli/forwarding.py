"""Where an endpoint records fetches: in a spool of this host alone, or in that of an instance elsewhere as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from gitboot.errors import UsageError

if TYPE_CHECKING:
    from gitboot.serve.forwarding import ForwardedRecording
    from gitboot.serve.recording import Recording

Command = TypeVar("Command", bound=Callable[..., Any])

_NAMES: Final = ("forward_to", "forward_token", "forward_ca")


@dataclass(frozen=True, kw_only=True, slots=True)
class ForwardSettings:
    """To which instance, and how."""

    url: str  # of an endpoint of it
    token: Path
    ca: Path | None


def forward_options(command: Command) -> Command:
    """--forward-to and what belongs to it."""
    url = click.option(
        "--forward-to",
        metavar="URL",
        help="An endpoint of the instance, on another host, that has --spool-tokens: what --spool records goes there, "
        "and what is made once is asked there before it is given. Default: --spool is the instance's own.",
    )
    token = click.option(
        "--forward-token",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The file with a token that it knows. It goes to that URL alone.",
    )
    authorities = click.option(
        "--forward-ca",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Authorities to trust for it, besides the machine's own.",
    )
    for option in (authorities, token, url):
        command = option(command)
    return command


def forwarding_of(given: dict[str, Any], spool: Path | None) -> ForwardSettings | None:
    """What was given for these options, taken out of the others; raises `UsageError` where it cannot be meant."""
    url, token, ca = (given.pop(name) for name in _NAMES)
    if url is None and token is None and ca is None:
        return None
    if url is None or token is None or spool is None:
        raise UsageError("--forward-to needs --forward-token, and a --spool of this host to record in")
    from gitboot.web import host_of

    host_of(url)
    try:
        token.read_bytes()
    except OSError as error:
        raise UsageError(f"--forward-token: {token} cannot be read: {error.strerror}") from None
    return ForwardSettings(url=url, token=token, ca=ca)


def arguments_of(forwarding: ForwardSettings | None) -> list[str]:
    """The same as arguments of a worker."""
    if forwarding is None:
        return []
    ca = ["--forward-ca", str(forwarding.ca.absolute())] if forwarding.ca is not None else []
    return ["--forward-to", forwarding.url, "--forward-token", str(forwarding.token.absolute()), *ca]


@contextmanager
def recording_in(
    spool: Path | None, forwarding: ForwardSettings | None
) -> Iterator[Recording | ForwardedRecording | None]:
    """What fetches are recorded by until the block ends; None: nothing is."""
    from gitboot.observe.spool import Spool
    from gitboot.serve.app import DEADLINE_S
    from gitboot.serve.recording import Recording

    if spool is None:
        yield None
        return
    spooled = Spool(spool)
    try:
        own = Recording(spooled, DEADLINE_S)
        if forwarding is None:
            yield own
            return
        from gitboot.serve.forwarding import ForwardedRecording, Forwarder, InstanceSpool

        instance = InstanceSpool(forwarding.url, forwarding.token, forwarding.ca)
        with Forwarder(spool, instance, DEADLINE_S):
            yield ForwardedRecording(own, instance, DEADLINE_S)
    finally:
        spooled.close()
