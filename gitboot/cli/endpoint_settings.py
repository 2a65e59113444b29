"""Endpoint settings: the options of `gitboot serve` that `gitboot run` also has, and their values."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct

from gitboot.cli.options import Setting, combine_options
from gitboot.errors import UsageError
from gitboot.ledger.store import PostgresAddress

if TYPE_CHECKING:
    from gitboot.endpoint.access_control import CredentialFiles
    from gitboot.endpoint.age_encryption import AgeKeys
    from gitboot.endpoint.app import ClientRules
    from gitboot.endpoint.tls import Certificate


class AccessSettings(Struct, frozen=True, kw_only=True):
    """Settings that control which clients may read from an endpoint."""

    operators: tuple[str, ...]  # networks from which operators may read; (): only this machine
    operators_hosts: tuple[str, ...]
    operators_tokens: Path | None
    operators_listen: str | None  # HOST:PORT for operators; None: the same address as for machines
    operators_tls: tuple[Path, Path] | None  # certificate and key for operators; None: the connection is not encrypted
    # HOST:PORT, certificate and key for machines; None: machines do not use TLS
    machines_tls: tuple[str, Path, Path] | None
    firmware_ciphers: bool  # whether the address for machines offers the cipher suites that firmware needs
    trusted_proxies: tuple[str, ...]  # networks
    idle_connections: int  # the maximum number of idle connections from one address


machines_tls_option = combine_options(
    click.option(
        "--machines-tls",
        metavar="HOST:PORT CERT KEY",
        type=(str, click.Path(path_type=Path, dir_okay=False), click.Path(path_type=Path, dir_okay=False)),
        help="Also serve machines by HTTPS at this address, in addition to --listen. CERT is a file with the "
        "certificate and its chain. KEY is a file with an RSA key without a passphrase. Use this key for no "
        "other socket. Both are PEM files. gitboot reads them again when they change. Default: no HTTPS for machines.",
    ),
    click.option(
        "--firmware-ciphers/--no-firmware-ciphers",
        cls=Setting,
        default=True,
        show_default=True,
        help="Whether the address of --machines-tls also offers cipher suites with RSA key exchange, after those with "
        "forward secrecy. UEFI HTTPS boot of many machines needs these cipher suites. If somebody steals the key, they "
        "can decrypt recorded connections that use these suites.",
    ),
)
# The options that control which clients may send which requests to an endpoint.
access_options = combine_options(
    click.option(
        "--operators",
        multiple=True,
        metavar="CIDR",
        help="A network whose clients may read /api and /metrics. Repeat the option for several networks. Default: "
        "only this machine.",
    ),
    click.option(
        "--operators-host",
        "operators_hosts",
        cls=Setting,
        envvar="GITBOOT_OPERATORS_HOST",
        multiple=True,
        metavar="NAME",
        help="A name that operators use in URLs of /api and /metrics. gitboot always accepts IP addresses and "
        "localhost, and rejects all other names. Default: none.",
    ),
    click.option(
        "--operators-tokens",
        type=click.Path(path_type=Path, dir_okay=False),
        help="A file with a token on each line. A client that sends one of these tokens (Authorization: Bearer "
        "TOKEN) may read "
        "/api and /metrics from any address. Default: none.",
    ),
    click.option(
        "--operators-tls",
        nargs=2,
        metavar="CERT KEY",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Encrypt the socket of --operators-listen. CERT is a file with the certificate and its chain. KEY is "
        "a file with the private key, without a passphrase. Both are PEM files. gitboot reads them again when "
        "they change. Default: no encryption.",
    ),
    click.option(
        "--trusted-proxies",
        cls=Setting,
        multiple=True,
        metavar="CIDR",
        help="A network of proxies. gitboot takes the client's address from the X-Forwarded-For header of these "
        "proxies, and ignores the header from any other address, including this machine. Default: none.",
    ),
    click.option(
        "--operators-listen",
        metavar="HOST:PORT",
        help="Serve /api and /metrics only at this address, and not at --listen. Default: at --listen.",
    ),
    machines_tls_option,
    click.option(
        "--idle-connections",
        cls=Setting,
        type=click.IntRange(min=1),
        default=32,
        show_default=True,
        help="The number of connections without a request that one client address may keep open. If the address opens "
        "another connection, the endpoint closes the oldest idle connection. The limit does not apply to trusted "
        "proxies.",
    ),
)


def take_access_settings(options: dict[str, Any]) -> AccessSettings:
    """Remove the access options from ``options``, and return them as settings."""
    return AccessSettings(**{name: options.pop(name) for name in AccessSettings.__struct_fields__})


def check_access_settings(access: AccessSettings) -> None:
    """Check that the settings do not contradict each other and that their files are usable. Raises `UsageError`."""
    if access.operators_tls is not None and access.operators_listen is None:
        raise UsageError("--operators-tls needs --operators-listen; for machines, use --machines-tls")
    _parse_networks("--operators", access.operators)
    _parse_networks("trusted-proxies", access.trusted_proxies)
    if access.operators_tokens is not None:
        from gitboot.endpoint.access_control import Tokens

        Tokens(access.operators_tokens).check()
    for certificate in build_certificates(access):
        if certificate is not None:
            certificate.load()


def build_client_rules(
    access: AccessSettings, operators: socket.socket | None, machines_tls: socket.socket | None
) -> ClientRules:
    """Convert the access settings to the form that an endpoint uses.

    The result includes the sockets for operators and for TLS.
    """
    from gitboot.endpoint.access_control import LOOPBACK, Tokens
    from gitboot.endpoint.app import ClientRules

    certificate, machines_certificate = build_certificates(access)
    return ClientRules(
        operators=_parse_networks("--operators", access.operators) or LOOPBACK,
        trusted_proxies=_parse_networks("trusted-proxies", access.trusted_proxies),
        names=access.operators_hosts,
        tokens=Tokens(access.operators_tokens) if access.operators_tokens is not None else None,
        operators_socket=operators.getsockname()[:2] if operators is not None else None,
        certificate=certificate,
        machines_tls_socket=machines_tls.getsockname()[:2] if machines_tls is not None else None,
        machines_certificate=machines_certificate,
        max_idle=access.idle_connections,
    )


def build_credential_files(access: AccessSettings, keys: AgeKeys | None, push_secret: Path | None) -> CredentialFiles:
    """Return the credential files that an endpoint reads for each request."""
    from gitboot.endpoint.access_control import CredentialFiles, Tokens
    from gitboot.endpoint.api import PushSecret

    tokens = access.operators_tokens
    checks: dict[str, Callable[[], object] | None] = {
        "--operators-tokens": Tokens(tokens).check if tokens is not None else None,
        "--secret-keys": keys.check if keys is not None else None,
        "--push-secret": PushSecret(push_secret).read if push_secret is not None else None,
    }
    return CredentialFiles({option: check for option, check in checks.items() if check is not None})


def build_certificates(access: AccessSettings) -> tuple[Certificate | None, Certificate | None]:
    """Return the certificates for the operators' socket and for the machines' TLS socket. None means no TLS."""
    if access.operators_tls is None and access.machines_tls is None:
        return None, None
    from gitboot.endpoint.tls import Certificate, CipherSuites

    operators = Certificate(*access.operators_tls) if access.operators_tls is not None else None
    if access.machines_tls is None:
        return operators, None
    suites = CipherSuites.FIRMWARE if access.firmware_ciphers else CipherSuites.MACHINES
    return operators, Certificate(*access.machines_tls[1:], suites, operators)


def _parse_networks(option: str, values: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    try:
        return tuple(map(ip_network, values))
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def format_access_arguments(access: AccessSettings) -> list[str]:
    """Return the access settings as command line arguments for a worker process.

    The worker process inherits the sockets.
    """
    names = ("firmware_ciphers", "idle_connections", "operators_hosts", "trusted_proxies")
    arguments = ["--settings", json.dumps({name: getattr(access, name) for name in names})]
    for network in access.operators:
        arguments += ["--operators", network]
    if access.operators_tokens is not None:
        arguments += ["--operators-tokens", str(access.operators_tokens.absolute())]
    if access.operators_tls is not None:
        arguments += ["--operators-tls", *(str(file.absolute()) for file in access.operators_tls)]
    if access.machines_tls is not None:
        address, *files = access.machines_tls
        arguments += ["--machines-tls", address, *(str(file.absolute()) for file in files)]
    return arguments


def load_secret_keys(file: Path | None, *, skip_check: bool = False) -> AgeKeys | None:
    """Return the age keys in a file, or None if no file is set.

    Raises `UsageError` if the file contains no keys, unless ``skip_check`` is set.
    """
    if file is None:
        return None
    from gitboot.endpoint.age_encryption import AgeKeys  # imported here, because few users have keys

    keys = AgeKeys(file)
    if not skip_check:
        keys.check()
    return keys


# --ledger and --ledger-password, for commands that serve boots on a host without the instance.
shared_ledger_options = combine_options(
    click.option(
        "--ledger",
        metavar="URL",
        help="The PostgreSQL database with the ledger of the instance, as in `gitboot run --ledger`. The endpoint "
        "sends the fetches in --spool to this database, and records each one-time boot there before it serves "
        "the boot. Default: none. An instance on this host then reads --spool.",
    ),
    click.option(
        "--ledger-password",
        type=click.Path(path_type=Path, dir_okay=False),
        help="The file with the database password. Default: libpq uses its own methods, for example a "
        "client certificate.",
    ),
)


def parse_shared_ledger(ledger: str | None, password: Path | None, spool: Path | None) -> PostgresAddress | None:
    """Return the address of the shared database, or None if --ledger is not set.

    Raises `UsageError` if the options contradict each other.
    """
    if ledger is None:
        if password is not None:
            raise UsageError("--ledger-password needs --ledger, the URL of the database")
        return None
    if spool is None:
        raise UsageError("--ledger needs --spool: a directory of this host for fetches until the database has them")
    return PostgresAddress.parse(ledger, password)


def format_ledger_arguments(shared_ledger: PostgresAddress | None) -> list[str]:
    """Return the address of the shared database as command line arguments for a worker process."""
    if shared_ledger is None:
        return []
    password = ["--ledger-password", str(shared_ledger.password)] if shared_ledger.password is not None else []
    return ["--ledger", shared_ledger.url, *password]
