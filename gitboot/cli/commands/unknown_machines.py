"""`gitboot unknown-machines`: the machines that asked for a boot and that no document describes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gitboot.cli.options import OutputOption, output_option, state_option
from gitboot.cli.terminal import table, wrapped
from gitboot.text import count

if TYPE_CHECKING:
    from gitboot.fetchlog.unknown_machines import UnknownMachine, UnknownMachines


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@state_option
@click.option("--forget", is_flag=True, help="Begin the list anew, after a flood, say.")
@output_option("text", "json")
def unknown_machines_command(state: Path, forget: bool, outputs: tuple[OutputOption, ...]) -> None:
    """Show which machines asked for a boot and are described by no document, the last that asked first.

    All of it is their own word, and decides nothing; below a machine stands what an image has found in it and sent. An
    entry goes once a document has the machine, or 30 days after it asked last. There is room for 1,000, and for 64 of
    one network address; what is kept is never pushed out.
    """
    from gitboot.controller.instance.state_directory import has_ledger, never_ran
    from gitboot.endpoint.api import seen_facts
    from gitboot.instance.seen import forget_unknown, read_unknown

    if not has_ledger(state):
        raise never_ran(state)
    if forget:
        forget_unknown(state)
    found = read_unknown(state)
    for output in outputs:
        if output.format == "json":
            output.write(json.dumps(seen_facts(found), indent=2, sort_keys=True))
        else:
            output.write(_as_text(found))


def _as_text(found: UnknownMachines) -> str:
    if not found.machines and not found.unkept:
        return "every machine that asked for a boot is described by a document"
    header = ["MAC", "UUID", "SERIAL", "FROM", "LAST (UTC)", "TIMES", "SERVER"]
    rows = [_row(each) for each in found.machines]
    if not any(each.server for each in found.machines):  # most often none has a document
        header, rows = header[:-1], [row[:-1] for row in rows]
    found_in = [wrapped(str(each.inventory), "    ") if each.inventory else "" for each in found.machines]
    text = table(header, rows, shortened=(2,), below=found_in) if rows else ""
    if found.unkept:
        requests = count(found.unkept, "request")
        told = f"There was no room for the machines of {requests} more; gitboot unknown-machines --forget makes it."
        text += "\n" + wrapped(told)
    return text.strip("\n")


def _row(machine: UnknownMachine) -> tuple[str, ...]:
    mac = machine.macs[0].replace("-", ":") if machine.macs else "-"
    who = f"{mac} +{len(machine.macs) - 1}" if len(machine.macs) > 1 else mac
    last = f"{machine.last:%m-%d %H:%M}"
    words = (machine.uuid or "-", machine.serial or "-", machine.client)
    return (who, *words, last, str(machine.times), machine.server or "-")
