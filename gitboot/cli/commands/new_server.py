"""`gitboot new server`: write the documents of new servers."""

from __future__ import annotations

from pathlib import Path

import click
from msgspec import structs

from gitboot.cli.completion import complete_servers
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.main import Exit, Group
from gitboot.cli.options import VARIABLES, credentials_option, path_option
from gitboot.errors import UsageError
from gitboot.files import create_output_file
from gitboot.importers.fleet_files import NewServer, render_server
from gitboot.model.scalars import Malformed, byte_orders, parse_lookup_mac, parse_lookup_uuid, parse_mac, parse_name
from gitboot.model.server import Architecture, Firmware
from gitboot.text import quote_words


@click.group(context_settings=VARIABLES, cls=Group, example="gitboot new server web02 --mac 52:54:00:12:34:56")
def new_command() -> None:
    """Write the document of a new server or image."""


@new_command.command(
    "server",
    context_settings=VARIABLES,
    example="gitboot new server web02 --seen 52:54:00:12:34:56 --state /var/lib/gitboot",
    exit_codes={
        Exit.FINE: "gitboot wrote the document",
        Exit.INVALID: "the fleet has errors",
        Exit.SOURCE: "the BMC did not respond",
        Exit.USAGE: "an option is wrong, or the server has a document already",
    },
)
@click.argument("name")
@path_option
@click.option(
    "--seen",
    metavar="MAC",
    help="Take the facts from the unknown machine with this MAC address. `gitboot unknown-machines` lists "
    "these machines.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    help="The state directory of the instance that lists the unknown machine of --seen.",
)
@click.option("--bmc", "address", metavar="ADDRESS", help="Read the facts from this BMC by Redfish.")
@click.option(
    "--as", "asked_as", metavar="NAME", help="The name of the credentials for --bmc, as in spec.bmc.credentials."
)
@credentials_option
@click.option(
    "--no-verify",
    is_flag=True,
    help="Accept any certificate of the BMC, and write this into the document. An access.toml must allow it.",
)
@click.option(
    "--like",
    metavar="SERVER",
    shell_complete=complete_servers,
    help="Copy labels, architecture, policy and variables from this server.",
)
@click.option(
    "--mac",
    "macs",
    multiple=True,
    metavar="MAC",
    help="A MAC address of the machine. Repeat the option for several addresses.",
)
@click.option("--uuid", metavar="UUID", help="The system UUID of the machine, if --seen and --bmc do not supply it.")
@evaluator_command
def server(
    name: str,
    path: Path,
    seen: str | None,
    state: Path | None,
    address: str | None,
    asked_as: str | None,
    credentials: Path | None,
    no_verify: bool,
    like: str | None,
    macs: tuple[str, ...],
    uuid: str | None,
) -> None:
    """Write the document of a new server.

    gitboot writes servers/NAME.yaml in the fleet, for a pull request. It takes the facts about the machine from --seen,
    --bmc, --mac and --uuid. You can combine some of these options.

    The new server is Parked. gitboot does not boot it, and does not set its BMC, until you change the document. gitboot
    does not overwrite a document, and does not write a second document for a machine.
    """
    from gitboot.cli.evaluated_fleet import load_fleet

    fleet = load_fleet(path, None)
    new, about = NewServer(macs={}), "A new server."
    try:
        if seen is not None:
            if state is None:
                raise UsageError("--seen needs --state: the state directory of the instance that lists the machine")
            new, about = _read_unknown_machine(seen, state)
        if address is not None:
            if asked_as is None:
                raise UsageError("--bmc needs --as NAME: the name of the credentials, as documents use it")
            behind, about = _read_bmc(address, asked_as, credentials, verify=not no_verify)
            if seen is not None and new.macs.keys().isdisjoint(behind.macs):
                raise UsageError(
                    f"the machine at {address} does not have the MAC address of --seen: check --bmc and --seen"
                )
            new = behind
        new = structs.replace(new, macs={**new.macs, **{parse_lookup_mac(mac): None for mac in macs}})
        new = structs.replace(new, uuid=parse_lookup_uuid(uuid)) if uuid is not None else new
        chosen = parse_name(name)
    except Malformed as error:
        raise UsageError(f"{error.message}; {error.hint}") from None
    if not new.macs:
        raise UsageError("there is no MAC address: add --seen, --bmc or --mac")
    own_uuids = {*byte_orders(new.uuid)} if new.uuid is not None else set()
    for other, each in fleet.servers.items():
        macs_of_both = {nic.mac for nic in each.spec.interfaces} & new.macs.keys()
        serial = each.spec.serial if each.spec.serial == new.serial else None
        if other == chosen:
            raise UsageError(f"Server/{chosen} exists already: choose another name")
        if found := sorted(filter(None, (*macs_of_both, *({*byte_orders(each.uuid)} & own_uuids), serial))):
            raise UsageError(f"Server/{other} already has {found[0]}: a machine needs only one document")
    example = next((each for other, each in fleet.servers.items() if other == like), None)
    if like is not None and example is None:
        raise UsageError(f"--like: there is no Server/{like} in the fleet")
    text = render_server(chosen, new, example, about)
    target = path / "servers" / f"{chosen}.yaml"
    if not create_output_file(target, text.encode(), make_folders=True):
        raise UsageError(f"{target} exists already: move the file, or choose another name")
    click.echo(f"wrote {target}; next step: gitboot validate {quote_words(path)}")


def _read_unknown_machine(name: str, state: Path) -> tuple[NewServer, str]:
    from gitboot.controller.reconcile_inputs import read_unknown

    mac = parse_mac(name)
    machine = next((each for each in read_unknown(state).machines if mac in each.macs), None)
    if machine is None:
        raise UsageError(
            f"no unknown machine with {name} has requested a boot; gitboot unknown-machines --state "
            f"{quote_words(state)} lists the machines"
        )
    about = f"It requested a boot from {machine.client} at {machine.last:%Y-%m-%d %H:%M} UTC, and sent these facts."
    new = NewServer(macs=dict.fromkeys(machine.macs), uuid=machine.uuid, serial=machine.serial)
    if (inventory := machine.inventory) is None:
        return new, about
    names = {each.mac: each.name for each in inventory.interfaces}
    macs = {mac: names.get(mac) for mac in machine.macs}
    architecture = Architecture(inventory.architecture) if inventory.architecture is not None else None
    firmware = Firmware(inventory.firmware) if inventory.firmware is not None else None
    new = structs.replace(new, macs=macs, architecture=architecture, firmware=firmware)
    return new, f"{about} Its inventory: {inventory}."


def _read_bmc(address: str, credentials_name: str, credentials: Path | None, *, verify: bool) -> tuple[NewServer, str]:
    from gitboot.bmc.scan import list_addresses
    from gitboot.cli.commands.bmc_scan import scan_places

    answers = scan_places(list_addresses([address], [443]), credentials, credentials_name, verify=verify, parallel=1)
    found = [each for answer in answers for each in answer.servers]
    if len(found) != 1:
        why = next((each.error for each in answers if each.error is not None), f"it shows {len(found)} machines")
        raise UsageError(f"{address}: {why}")
    [one] = found
    if one.missing_identity is not None:
        raise UsageError(f"{address}: {one.missing_identity}")
    bmc = {
        "address": one.address,
        **({} if one.is_only_system else {"system": one.system}),
        "credentials": credentials_name,
        **({} if verify else {"tls": {"verify": False}}),
    }
    new = NewServer(
        macs={nic.mac: nic.name or None for nic in one.nics},
        uuid=one.identity.uuid,
        serial=one.serial,
        architecture=one.architecture,
        firmware=one.firmware,
        bmc=bmc,
    )
    return new, f"{f'{one.maker} {one.model}'.strip() or 'A machine'}, found at {one.address}."
