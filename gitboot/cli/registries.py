"""Options that say which OCI registries are asked, and as whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gitboot.oci.registry import Registries

Command = TypeVar("Command", bound=Callable[..., Any])

_registries = click.option(
    "--registries",
    multiple=True,
    metavar="HOST[/NAME]",
    envvar="GITBOOT_REGISTRIES",
    help="An OCI registry that may be asked, or a part of one: * and ? stand for any characters. http:// before it "
    "asks it unencrypted. May be given often. Default: none may be asked.",
)
_credentials = click.option(
    "--registry-credentials",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="GITBOOT_REGISTRY_CREDENTIALS",
    help="A file as `podman login --authfile` writes it, with credentials for registries. Default: none.",
)
_ca_bundle = click.option(
    "--ca-bundle",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="GITBOOT_CA_BUNDLE",
    help="Certificates of authorities that are trusted besides the machine's own, as PEM. Default: none.",
)


def registry_options(command: Command) -> Command:
    """--registries, --registry-credentials and --ca-bundle."""
    return _registries(_credentials(_ca_bundle(command)))


def opened_registries(
    registries: tuple[str, ...], registry_credentials: Path | None, ca_bundle: Path | None
) -> Registries:
    """What those options say; raises `UsageError`."""
    from gitboot.oci.credentials import RegistryCredentials
    from gitboot.oci.reference import AllowedRegistry
    from gitboot.oci.registry import Registries
    from gitboot.web import opener

    allowed = [AllowedRegistry.parse(each) for each in registries]
    credentials = RegistryCredentials(registry_credentials) if registry_credentials is not None else None
    if credentials is not None:
        credentials.check()
    return Registries(allowed, opener(ca_bundle), credentials)
