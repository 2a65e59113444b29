"""Options that say which OCI registries are asked, and as whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gitboot.artifacts.oci import Registries

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


# For commands that send a token, each under this one name.
token_over_http_option = click.option(
    "--allow-token-over-http",
    is_flag=True,
    envvar="GITBOOT_ALLOW_TOKEN_OVER_HTTP",
    help="Send tokens and passwords to http:// URLs of other machines too, where anyone on the way can read them. "
    "Default: only to https:// URLs and to this machine.",
)


def registry_options(command: Command) -> Command:
    """--registries, --registry-credentials, --ca-bundle and --allow-token-over-http."""
    return _registries(_credentials(_ca_bundle(token_over_http_option(command))))


def opened_registries(
    registries: tuple[str, ...],
    registry_credentials: Path | None,
    ca_bundle: Path | None,
    *,
    allow_token_over_http: bool,
) -> Registries:
    """What those options say; raises `UsageError`."""
    from gitboot.artifacts.oci import AllowedRegistry, Registries, RegistryCredentials
    from gitboot.http_client import HttpClient

    allowed = [AllowedRegistry.parse(each) for each in registries]
    credentials = RegistryCredentials(registry_credentials) if registry_credentials is not None else None
    if credentials is not None:
        credentials.check()
    client = HttpClient(ca_bundle=ca_bundle, allow_token_over_http=allow_token_over_http)
    return Registries(allowed, client, credentials)
