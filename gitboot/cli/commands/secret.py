"""`gitboot secret`: keys, secrets that are encrypted to them, and whether they open what a fleet has."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import BinaryIO

import click

from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.instance_client import open_offline, request_change, select_names, select_servers
from gitboot.cli.main import Exit
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
from gitboot.controller.operator_requests import SECRET_FETCHES
from gitboot.endpoint.age_encryption import AgeKeys, DecryptionError, encrypt, make_key
from gitboot.errors import UsageError
from gitboot.files import write_output_file
from gitboot.fleet.documents import NotEncrypted, parse_encrypted
from gitboot.jsonio import format_document
from gitboot.model.scalars import AGE_SUFFIX
from gitboot.text import format_count


@click.group(context_settings=VARIABLES)
def command() -> None:
    """Create age keys, encrypt secrets, and check the keys.

    The files are age's: the program `age` reads and writes them too.
    """


@command.command("keygen", context_settings=VARIABLES)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--signed-list",
    is_flag=True,
    help="Make or replace the keys that sign the list of published files. FILE is then a folder.",
)
@click.option(
    "--root-key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --signed-list: the file of the root key. Default: root.key in the folder.",
)
@click.option(
    "--new-root-key",
    type=click.Path(path_type=Path, dir_okay=False),
    help="With --signed-list: replace the root key too, and write the new one here. Default: keep the root key.",
)
def keygen(file: Path, signed_list: bool, root_key: Path | None, new_root_key: Path | None) -> None:
    """Write a new key to FILE, and print its recipient.

    `gitboot run --secret-keys` reads FILE. Secrets are encrypted to the recipient.

    FILE is its owner's alone; keep a copy where you keep the ledger's. One that is there already is not touched: to
    change a key, append the new one to the old, encrypt every secret anew, and then delete the old line.

    With --signed-list, the first run makes a root key and a publication key in the folder FILE, and prints the public
    root key, which mirrors need. Each later run replaces the publication key, and is signed by the root key.
    `gitboot run` reads the folder by its setting list-keys: docs/mirrors.md.
    """
    if not signed_list:
        if root_key is not None or new_root_key is not None:
            raise UsageError("--root-key and --new-root-key need --signed-list, whose keys they are")
        click.echo(make_key(file))
        return
    from gitboot.publish.list_root import has_root, make_list_keys, replace_list_keys

    if has_root(file):
        public_key = replace_list_keys(file, root_key, new_root_key, current_time())
    elif new_root_key is not None:
        raise UsageError(f"{file} has no root key to replace: leave out --new-root-key")
    else:
        public_key = make_list_keys(file, root_key, current_time())
    click.echo(public_key.decode().strip())  # PEM


@command.command("encrypt", context_settings=VARIABLES)
@click.argument("secret", type=click.File("rb"), default="-")
@click.option("--to", "recipients", multiple=True, metavar="age1…", help="What to encrypt to; may be given often.")
@click.option(
    "--to-keys",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Encrypt to every key of this file. Default: to those of --to alone.",
)
@click.option(
    "--file",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file to write: NAME.age.",
)
def encrypt_secret(secret: BinaryIO, recipients: tuple[str, ...], to_keys: Path | None, file: Path) -> None:
    """Encrypt SECRET, a file or standard input, for a fleet.

    All of its bytes count, a line end at its end too.
    """
    if to_keys is not None:
        keys = AgeKeys(to_keys)
        keys.check()
        recipients += keys.list_recipients()
    if not recipients:
        raise UsageError("give --to or --to-keys: a secret is encrypted to somebody")
    content = encrypt(secret.read(), recipients)
    try:
        parse_encrypted(content)
    except NotEncrypted as error:
        raise UsageError(f"encrypted so, no endpoint would give it: {error}") from None
    write_output_file(file, [content], sync=True)


@command.command("check", context_settings=VARIABLES)
@fleet_argument
@click.option(
    "--secret-keys", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The keys to look with."
)
@output_option("text", "json")
@evaluator_command
def check(path: Path, rev: str | None, secret_keys: Path, outputs: tuple[OutputOption, ...]) -> None:
    """Check that these keys decrypt each secret of the fleet at PATH.

    The exit code is 3 if the keys cannot decrypt a secret.

    Nothing of what they hold is shown. Run it before a commit is merged, and after keys have changed, where the keys
    are: neither a review nor an instance can tell without them.
    """
    from gitboot.cli.evaluated_fleet import load_fleet

    keys = AgeKeys(secret_keys)
    keys.check()
    closed: dict[str, str] = {}
    files = {name: data for name, data in load_fleet(path, rev).files.items() if name.endswith(AGE_SUFFIX)}
    for name, data in files.items():
        try:
            keys.decrypt(parse_encrypted(data))
        except DecryptionError as error:
            closed[name] = str(error)
    write_outputs(
        outputs,
        json=partial(format_document, items=[{"path": name, "closed": closed.get(name)} for name in files]),
        text=partial("".join, [f"{name}: {why}\n" for name, why in closed.items()]),
    )
    click.echo(f"{format_count(len(files), 'secret')}, {len(closed)} closed to these keys", err=True)
    if closed:
        sys.exit(Exit.INVALID)


@command.command("fetches", context_settings=VARIABLES)
@click.argument("servers", nargs=-1)
@selector_option
@state_option
@click.option(
    "--confirm", metavar="REASON", callback=check_reason, help="Confirm that the fetches of SERVERS are right, and why."
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
    """Show who fetched the secrets of SERVERS, or of all.

    The command shows the newest installation of each server, user data included. It names up to 16 addresses for each
    secret, or /64 networks of IPv6, and counts the fetches of all others together.

    If a stranger fetched a secret, change the secret. --confirm shows nothing: the condition SecretsPrivate holds again
    until another address fetches a secret, or until ten more fetches.
    """
    from gitboot.cli.terminal import format_table

    if confirm is not None:
        _confirm_fetches(servers, selector, state, confirm)
        return
    with open_offline(state, current_time()) as look:
        names = select_names(servers, look, selector)
        known = {
            machine.name: look.knowledge.secret_fetches.get(uuid) for uuid, machine in look.commit.machines.items()
        }
    items = [
        {"server": name, **facts}
        for name, each in sorted(known.items(), key=lambda item: item[0])
        if each is not None and (names is None or name in names)
        for facts in each.facts()
    ]
    rows = [
        (
            item["server"],
            item["secret"],
            each.get("address", "others"),
            str(each["times"]),
            each["first"],
            each["last"],
            "confirm" if item["unexpected"] else "",
        )
        for item in items
        for each in (*item["addresses"], *([item["others"]] if item["others"] is not None else []))
    ]
    text = partial(format_table, ("SERVER", "SECRET", "ADDRESS", "FETCHES", "FIRST", "LAST", ""), rows)
    write_outputs(outputs, json=partial(format_document, items=items), text=text)


def _confirm_fetches(servers: tuple[str, ...], selector: str | None, state: Path, reason: str) -> None:
    with open_offline(state, current_time()) as look:
        known = {
            name: (decision.uuid, look.knowledge.secret_fetches.get(decision.uuid))
            for name, decision in select_servers(look, servers, selector).items()
        }
    if lacking := [name for name, (_, each) in known.items() if each is None and name in servers]:
        raise UsageError(f"no fetch of a secret of {lacking[0]} is recorded; gitboot secret fetches lists the servers")
    items = [
        {
            "uuid": uuid,
            "server": name,
            "seen": {secret: list(found.totals) for secret, found in each.secret_fetches.items()},
        }
        for name, (uuid, each) in known.items()
        if each is not None
    ]
    click.echo(request_change(state, SECRET_FETCHES, {"items": items, "reason": reason}))
