"""Whose word counts: keys, and what has to be signed with them, as options of the commands that judge commits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from gitboot.errors import UsageError
from gitboot.fleet.revision import ReinstallsNeed, Verify

if TYPE_CHECKING:
    from gitboot.controller.instance.settings import TrustSettings

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS: Final = (
    click.option(
        "--verify",
        metavar="WHAT",
        type=click.Choice([str(each) for each in Verify]),
        help="Accept only what a trusted key has signed: head, the newest commit; range, each on the "
        "branch since the accepted one; tag, the tag that --rev names. Default: whatever is pushed.",
    ),
    click.option(
        "--allowed-signers",
        type=click.Path(path_type=Path),
        help="SSH keys of people, as ssh-keygen reads them: a line PRINCIPAL KEYTYPE KEY each. Read anew when it is "
        "changed.",
    ),
    click.option(
        "--openpgp-keys",
        type=click.Path(path_type=Path),
        help="OpenPGP public keys of people: a file, or a directory of files. Read anew when they are changed.",
    ),
    click.option(
        "--forge-key",
        "forge_keys",
        envvar="GITBOOT_FORGE_KEY",
        metavar="NAME=FILE",
        multiple=True,
        help="A forge's own public key, OpenPGP or SSH, with which it signs merges. It counts for merge commits alone.",
    ),
    click.option(
        "--reinstalls-need",
        metavar="WHOM",
        type=click.Choice([str(each) for each in ReinstallsNeed]),
        help="What acknowledges reinstallations: approve, `gitboot approve` alone; signed, that or a Gitboot-Ack line "
        "in a commit that a person's trusted key has signed. Default: such a line in any commit.",
    ),
)
TRUST: Final = ("verify", "allowed_signers", "openpgp_keys", "forge_keys", "reinstalls_need")


def trust_options(command: Command) -> Command:
    """Whose commits and acknowledgements count, by these options alone."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def trust_of(
    *,
    verify: str | None,
    allowed_signers: Path | None,
    openpgp_keys: Path | None,
    forge_keys: tuple[str, ...],
    reinstalls_need: str | None,
) -> TrustSettings:
    """What was given; raises `UsageError` where it cannot be meant."""
    from gitboot.controller.instance.settings import TrustSettings
    from gitboot.source.keys import TrustedKeys

    keys = TrustedKeys(
        allowed_signers=allowed_signers,
        openpgp_keys=openpgp_keys,
        forge_keys=tuple(map(_forge_key, forge_keys)),
    )
    need = ReinstallsNeed(reinstalls_need) if reinstalls_need is not None else None
    if verify is not None and not keys.any:
        raise UsageError(f"--verify {verify} needs keys: --allowed-signers, --openpgp-keys or --forge-key")
    if need is ReinstallsNeed.SIGNED and not keys.of_people:
        raise UsageError("--reinstalls-need signed needs keys of people: --allowed-signers or --openpgp-keys")
    return TrustSettings(verify=Verify(verify) if verify is not None else None, keys=keys, reinstalls_need=need)


def _forge_key(text: str) -> tuple[str, Path]:
    name, found, path = text.partition("=")
    if not (name and found and path):
        raise UsageError(f"--forge-key {text}: expected NAME=FILE, as in GitHub=/etc/gitboot/web-flow.gpg")
    return name, Path(path)
