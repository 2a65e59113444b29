"""`gitboot secret`: create and check keys, encrypt secrets, and show which secrets were fetched."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import click

from gitboot.cli.completion import complete_servers
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.instance_client import open_offline, request_change, select_names, select_servers
from gitboot.cli.main import Exit, Group
from gitboot.cli.options import (
    VARIABLES,
    OutputOption,
    check_reason,
    current_time,
    fleet_argument,
    output_option,
    selector_option,
    state_option,
    write_outputs,
)
from gitboot.cli.terminal import echo_wrapped, format_table
from gitboot.controller.operator_requests import ConfirmSecretFetches, SeenSecretFetches
from gitboot.endpoint.age_encryption import AgeKeys, DecryptionError, encrypt, make_key
from gitboot.errors import UsageError
from gitboot.files import write_output_file
from gitboot.fleet.documents import NotEncrypted, parse_encrypted
from gitboot.jsonio import format_document
from gitboot.model.scalars import AGE_SUFFIX
from gitboot.text import format_count


@click.group(
    context_settings=VARIABLES,
    cls=Group,
    example=("gitboot secret encrypt password.txt --to-keys keys.txt \\\n    --file secrets/password.age"),
)
def command() -> None:
    """Create age keys, encrypt secrets, and check the keys.

    You can also read and write these files with the program `age`.
    """


@command.command(
    "keygen",
    context_settings=VARIABLES,
    example="gitboot secret keygen /etc/gitboot/age.keys",
    exit_codes={
        Exit.FINE: "gitboot wrote the key",
        Exit.USAGE: "FILE already exists, or an option is wrong",
    },
)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--signed-list",
    is_flag=True,
    help="Create or replace the keys that sign the list of published files. FILE is a folder.",
)
@click.option(
    "--root-key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --signed-list: the file of the root key. Default: root.key in the folder.",
)
@click.option(
    "--new-root-key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --signed-list: also replace the root key, and write the new root key to this file. Default: "
    "keep the root key.",
)
def keygen(file: Path, signed_list: bool, root_key: Path | None, new_root_key: Path | None) -> None:
    """Write a new age key to FILE, and print its recipient.

    Encrypt secrets to the recipient. `gitboot run --secret-keys` reads FILE to decrypt them. Only the owner can read
    FILE. Keep a copy where you keep the backup of the ledger.

    gitboot does not overwrite FILE. To replace a key, add the new key to the file with the old key, encrypt every
    secret again, and then delete the line of the old key.

    With --signed-list, FILE is a folder. The first run creates a root key and a publication key, and prints the public
    root key, which mirrors need. Each later run replaces the publication key and signs the new one with the root key.
    `gitboot run --list-keys` uses the folder (docs/how-to/publish-to-a-mirror.md).
    """
    if not signed_list:
        if root_key is not None or new_root_key is not None:
            raise UsageError("--root-key and --new-root-key are only for the keys of a signed list: add --signed-list")
        click.echo(make_key(file))
        return
    from gitboot.publish.list_root import has_root, make_list_keys, replace_list_keys

    if has_root(file):
        public_key = replace_list_keys(file, root_key, new_root_key, current_time())
    elif new_root_key is not None:
        raise UsageError(f"{file} has no root key to replace: remove --new-root-key")
    else:
        public_key = make_list_keys(file, root_key, current_time())
    click.echo(public_key.decode().strip())  # PEM


@command.command(
    "encrypt",
    context_settings=VARIABLES,
    example="gitboot secret encrypt password.txt --to age1… --file secrets/password.age",
    exit_codes={
        Exit.FINE: "gitboot wrote the secret",
        Exit.USAGE: "an option or a key is wrong",
    },
)
@click.argument("secret", type=click.File("rb"), default="-")
@click.option(
    "--to",
    "recipients",
    multiple=True,
    metavar="age1…",
    help="A recipient of the secret. Repeat the option for several recipients.",
)
@click.option(
    "--to-keys",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Encrypt to every key in this file. Default: only to the recipients of --to.",
)
@click.option(
    "--file",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write: NAME.age.",
)
def encrypt_secret(secret: BinaryIO, recipients: tuple[str, ...], to_keys: Path | None, file: Path) -> None:
    """Encrypt a secret for a fleet.

    gitboot reads SECRET, which is a file or standard input. It encrypts every byte, including a newline at the end.
    """
    if to_keys is not None:
        keys = AgeKeys(to_keys)
        keys.check()
        recipients += keys.list_recipients()
    if not recipients:
        raise UsageError("add --to or --to-keys: a secret needs a recipient")
    content = encrypt(secret.read(), recipients)
    try:
        parse_encrypted(content)
    except NotEncrypted as error:
        raise UsageError(f"an endpoint could not decrypt this secret: {error}") from None
    write_output_file(file, [content], sync=True)


@command.command(
    "check",
    context_settings=VARIABLES,
    example="gitboot secret check fleet --secret-keys /etc/gitboot/age.keys",
    exit_codes={
        Exit.FINE: "the keys can decrypt all secrets",
        Exit.INVALID: "the keys cannot decrypt every secret, or the fleet has errors",
    },
)
@fleet_argument
@click.option(
    "--secret-keys", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The file with the age keys."
)
@output_option("text", "json")
@evaluator_command
def check(path: Path, rev: str | None, secret_keys: Path, outputs: tuple[OutputOption, ...]) -> None:
    """Check that the keys decrypt each secret of a fleet.

    Run this check on a host that has the keys, before you merge a commit and after you replace a key. `gitboot diff` in
    CI cannot check this, because CI does not have the keys. gitboot does not print the secrets. PATH is the fleet.
    """
    from gitboot.cli.evaluated_fleet import load_fleet

    keys = AgeKeys(secret_keys)
    keys.check()
    failures: dict[str, str] = {}
    secrets = {name: data for name, data in load_fleet(path, rev).files.items() if name.endswith(AGE_SUFFIX)}
    for name, data in secrets.items():
        try:
            keys.decrypt(parse_encrypted(data))
        except DecryptionError as error:
            failures[name] = str(error)
    write_outputs(
        outputs,
        json=partial(format_document, items=[{"path": name, "closed": failures.get(name)} for name in secrets]),
        text=partial("".join, [f"{name}: {reason}\n" for name, reason in failures.items()]),
    )
    click.echo(
        f"{format_count(len(secrets), 'secret')} checked: {len(failures)} cannot be decrypted with these keys", err=True
    )
    if failures:
        sys.exit(Exit.INVALID)


@command.command(
    "fetches",
    context_settings=VARIABLES,
    example="gitboot secret fetches web01 --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "gitboot printed the fetches, or recorded the confirmation",
    },
)
@click.argument("servers", nargs=-1, shell_complete=complete_servers)
@selector_option
@state_option
@click.option(
    "--confirm",
    metavar="REASON",
    callback=check_reason,
    help="Instead of printing the fetches, confirm that the fetches of SERVERS are legitimate, and record why.",
)
@output_option("text", "json")
@evaluator_command
def fetches(
    servers: tuple[str, ...],
    selector: str | None,
    state: Path,
    confirm: str | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Show which clients fetched the secrets of servers.

    gitboot shows the fetches of secrets and of user data during the newest installation of SERVERS, or of all servers.
    For each secret, gitboot lists up to 16 addresses (or /64 networks for IPv6), and one total for all other addresses.

    If an unexpected client fetched a secret, replace the secret. If the fetches are legitimate, confirm them with
    --confirm. The condition SecretsPrivate is then true until a new address fetches a secret, or until more than ten
    new fetches follow.
    """
    if confirm is not None:
        _confirm_fetches(servers, selector, state, confirm)
        return
    with open_offline(state, current_time()) as instance:
        names = select_names(instance, servers, selector)
        machines = instance.commit.machines.values()
        fetches_by_server = {machine.name: instance.snapshot.secret_fetches.get(machine.uuid) for machine in machines}
    items: list[dict[str, Any]] = []
    for server, server_fetches in sorted(fetches_by_server.items(), key=lambda item: item[0]):
        if server_fetches is not None and (names is None or server in names):
            items += ({"server": server, **facts} for facts in server_fetches.facts())
    write_outputs(outputs, json=partial(format_document, items=items), text=partial(_format_fetches, items))


def _format_fetches(items: Sequence[dict[str, Any]]) -> str:
    rows = []
    for item in items:
        others = [item["others"]] if item["others"] is not None else []  # the total for all other addresses
        for total in (*item["addresses"], *others):
            address = total.get("address", "others")
            hint = "confirm" if item["unexpected"] else ""
            times = str(total["times"])
            rows.append((item["server"], item["secret"], address, times, total["first"], total["last"], hint))
    return format_table(("SERVER", "SECRET", "ADDRESS", "FETCHES", "FIRST", "LAST", ""), rows)


def _confirm_fetches(servers: tuple[str, ...], selector: str | None, state: Path, reason: str) -> None:
    """Confirm the fetches of these servers. Raises `UsageError` if one of ``servers`` fetched no secret."""
    items = []
    with open_offline(state, current_time()) as instance:
        for server, decision in select_servers(instance, servers, selector).items():
            server_fetches = instance.snapshot.secret_fetches.get(decision.uuid)
            if server_fetches is None and server in servers:
                raise UsageError(
                    f"gitboot has no record that {server} fetched a secret; `gitboot secret fetches` lists the "
                    "servers that did"
                )
            if server_fetches is not None:
                seen = {secret: fetches.totals for secret, fetches in server_fetches.secret_fetches.items()}
                items.append(SeenSecretFetches(uuid=decision.uuid, server=server, seen=seen))
    echo_wrapped(request_change(state, ConfirmSecretFetches(items=tuple(items), reason=reason)))
