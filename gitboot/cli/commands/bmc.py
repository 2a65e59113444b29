"""`gitboot bmc`: boot overrides, looked at or seen to by hand."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import click

from gitboot.bmc.credentials import FILE, as_file, pair_of
from gitboot.bmc.worker_pool import connections
from gitboot.child_processes import raise_limits
from gitboot.cli.commands.bmc_power import power
from gitboot.cli.commands.bmc_scan import scan_network
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.instance_client import chosen, looked_at, machines_of, meant_by, request
from gitboot.cli.main import Exit
from gitboot.cli.options import (
    OutputOption,
    credentials_option,
    now,
    output_option,
    reason_option,
    selector_option,
    state_option,
    write_outputs,
)
from gitboot.cli.terminal import progress, table, wrapped
from gitboot.controller.bmcs.manual_tasks import Inspection, inspect, shown, subjects
from gitboot.controller.instance.assembly import Look
from gitboot.controller.instance.state_directory import running
from gitboot.controller.operator_requests import ACCEPT, BACK, CERTIFICATE, REPLACE, RESOLVE, RETRY, stop_of
from gitboot.errors import UsageError
from gitboot.files import file_below
from gitboot.fleet.identities import Machine
from gitboot.jsonio import document
from gitboot.model.scalars import Malformed, SystemUuid, parse_fingerprint
from gitboot.resolve.plan_at_time import plan
from gitboot.standard_streams import style
from gitboot.status.conditions import with_state
from gitboot.text import count, printable, shell_words, some

_SETTINGS = {"auto_envvar_prefix": "GITBOOT"}
_STANDINGS: Final = ("waiting for a person", "not read", "not as wanted yet", "as wanted")
_MOST_NAMES: Final = 5


@click.group(context_settings=_SETTINGS)
def command() -> None:
    """Find, read and set BMCs; switch machines on or off.

    The commands read the state directory of an instance: the accepted commit and the ledger. The instance may be
    running or not.
    """


command.add_command(power)
command.add_command(scan_network)


@command.command("get", context_settings=_SETTINGS)
@click.argument("servers", nargs=-1)
@selector_option
@state_option
@credentials_option
@output_option("text", "json")
@evaluator_command
def get(
    servers: tuple[str, ...],
    selector: str | None,
    state: Path,
    credentials: Path | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Read the BMCs of SERVERS, or of all, and show their state.

    The table has what is wanted, seen, recorded and proven.

    Those that need a person come first, then those that are not as they are wanted. Of SERVERS that are named, the boot
    order is shown, and whether Secure Boot is on. Nothing is set.

    Exit codes: 0 where all have answered, else 8.
    """
    found = _inspected(servers, selector, state, credentials)
    text = partial(_as_text, found, state, in_full=bool(servers))
    write_outputs(outputs, text=text, json=partial(_as_json, found))
    if any(one.seen is None for one in found):
        sys.exit(Exit.PARTIAL)


@command.command("diff", context_settings=_SETTINGS)
@click.argument("servers", nargs=-1)
@selector_option
@state_option
@credentials_option
@click.option(
    "--assets",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A directory that is served under the fleet's baseURL/assets/: programs without a signature are found there.",
)
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 where a BMC is not as it is wanted.")
@output_option("text", "json")
@evaluator_command
def diff(
    servers: tuple[str, ...],
    selector: str | None,
    state: Path,
    credentials: Path | None,
    assets: Path | None,
    detailed_exitcode: bool,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Show what would be sent now to the BMCs of SERVERS, or all.

    gitboot sends nothing. The output has each PATCH or POST, and why.

    So it is with the resets to come where a policy or a maintenance has `power`: which, why, and what they wait for.

    With --assets it warns where Secure Boot is on, and what the plan boots has no signature. Whose signature firmware
    trusts is not known here, nor what lies in an ISO.

    Exit codes: 0 where all have answered, with --detailed-exitcode 2 where one of them is not as it is wanted; else 8.
    """
    found = [
        one for one in _inspected(servers, selector, state, credentials, assets) if not one.is_settled or one.warnings
    ]
    write_outputs(outputs, text=partial(_as_diff, found, state), json=partial(_as_json, found))
    if any(one.seen is None for one in found):
        sys.exit(Exit.PARTIAL)
    if detailed_exitcode and not all(one.is_settled for one in found):
        sys.exit(Exit.CHANGES)


@command.command("apply", context_settings=_SETTINGS)
@click.argument("servers", nargs=-1)
@selector_option
@state_option
@evaluator_command
def apply(servers: tuple[str, ...], selector: str | None, state: Path) -> None:
    """Set the BMCs of SERVERS, or of all, now.

    The running instance does that, instead of when they are due.

    It ends the wait after a failure, and the rest after too many in a row. What a plan does not want is never set.
    """
    if running(state) is None:
        raise UsageError(
            f"no gitboot runs with the state directory {state}: begin with `gitboot run`, or run it --once"
        )
    with looked_at(state, now()) as instance:
        with_bmc = {uuid for uuid, machine in instance.commit.machines.items() if machine.bmc is not None}
        all_of_them = with_bmc | instance.knowledge.overrides.keys()
        names = sorted(meant_by(instance, servers, selector)) if selector is not None else servers
        uuids = [uuid for name in names for uuid in machines_of(instance, name)] or sorted(all_of_them)
        is_named = instance.commit.ledger is not None
    click.echo(request(state, RETRY, {"uuids": uuids}))
    _warn_of_no_name(is_named)


@command.command("access-files", context_settings=_SETTINGS)
@state_option
@credentials_option
@evaluator_command
def access_files(state: Path, credentials: Path | None) -> None:
    """Print the files that let credentials be sent to BMCs.

    There is an access.toml for each name of credentials. It permits the BMCs of the accepted commit.

    DIR/NAME/access.toml says where gitboot may send the credentials in DIR/NAME: without one only to BMCs that it
    knows already. What the repository says is what you are about to trust: read it before you put it there.
    """
    with looked_at(state, now()) as instance:
        machines = sorted(instance.commit.machines.values(), key=lambda each: each.name)
        known = instance.knowledge.known_pairs
    names: dict[str, list[Machine]] = {}
    for machine in machines:
        if machine.bmc is not None:
            names.setdefault(machine.bmc.credentials, []).append(machine)
    for name, its in sorted(names.items()):
        new = [each.name for each in its if each.bmc is not None and pair_of(each.bmc) not in known]
        click.echo(f"# {(credentials or Path('DIR')) / name / FILE}: {count(len(its), 'BMC')}")
        if new:
            click.echo(f"# Not known yet, look at them first: {some(new)}")
        click.echo(as_file(each.bmc for each in its if each.bmc is not None))


@command.command("resolve", context_settings=_SETTINGS)
@click.argument("server")
@state_option
@click.option("--consumed", "word", flag_value="consumed", help="The override was set, and the machine booted it.")
@click.option("--not-set", "word", flag_value="not-set", help="The override was never set.")
@click.option("--same", "word", flag_value="same", help="What the BMC shows now is SERVER all the same.")
@click.option("--replace", "word", flag_value="replace", help="What somebody else has set there may be replaced.")
@click.option("--back", "word", flag_value="back", help="SERVER, which gitboot has switched, is in service again.")
@click.option("--certificate", metavar="SHA256", help="The certificate with this fingerprint is the BMC's new one.")
@reason_option
@evaluator_command
def resolve(server: str, state: Path, word: str | None, certificate: str | None, reason: str) -> None:
    """Tell gitboot what only a person can see at SERVER's BMC.

    --consumed: the override was set and consumed; it is not set again. --not-set: it was never set; where the plan
    still wants it, it is set now (condition NeedsOperator). Look at the machine's console or boot log first: the wrong
    word installs it twice, or never. --same: the machine that the BMC shows is SERVER (condition AnotherMachine).
    --replace: somebody else's override gives way to what the plan wants (condition ForeignOverride). --certificate:
    what it shows instead of the one that was pinned; look there that it is the BMC which shows it. --back: the machine,
    which gitboot has switched and whose BMC does not show it, is in service again (condition PowerWaves).
    """
    if word is None and certificate is None:
        raise click.UsageError(
            "Missing option '--consumed', '--not-set', '--same', '--replace', '--back' or '--certificate'."
        )
    fingerprint = None
    if certificate is not None:
        try:
            fingerprint = parse_fingerprint(certificate)
        except Malformed:
            raise click.UsageError(
                "--certificate takes a SHA-256 in 64 hexadecimal digits, as gitboot bmc get shows it"
            ) from None
    at = now()
    asked: list[tuple[str, dict[str, object]]] = []
    with looked_at(state, at) as instance:
        if fingerprint is not None:
            pinned = [uuid for uuid in machines_of(instance, server) if uuid in instance.knowledge.pins]
            asked = [(CERTIFICATE, {"uuid": uuid, "certificate": fingerprint}) for uuid in pinned]
        elif word is not None:
            meant = (_resolved(instance, uuid, server, word, at) for uuid in machines_of(instance, server))
            asked = [each for each in meant if each is not None]
        is_named = instance.commit.ledger is not None
    if not asked:
        raise UsageError(f"what the BMC of {server} shows is not known yet: gitboot bmc apply {shell_words(server)}")
    for kind, facts in asked:
        click.echo(request(state, kind, facts | {"server": server, "reason": reason}))
    if word in ("not-set", "replace"):
        _warn_of_no_name(is_named)


def _warn_of_no_name(is_named: bool) -> None:
    if not is_named:
        click.echo("nothing new is set there before the Fleet names a ledger: gitboot status", err=True)


def _resolved(
    look: Look, uuid: SystemUuid, server: str, word: str, at: datetime
) -> tuple[str, dict[str, object]] | None:
    """What is asked of the instance for one machine; None: nothing is known of what its BMC shows."""
    machine, pinned = look.commit.machines.get(uuid), look.knowledge.pins.get(uuid)
    decision = look.commit.decisions.servers[server] if machine is not None else None
    stop = stop_of(look.knowledge, look.commit, look.knowledge.facts.orders)
    planned = plan(decision, at, look.knowledge.record(uuid), stop=stop) if decision is not None else None
    override = planned.override if planned is not None else None
    key = override.reason if override is not None else planned.key if planned is not None else None
    match word:
        case "same":
            if pinned is None:
                return None
            return ACCEPT, {"uuid": uuid, "shown": [pinned.seen.uuid, pinned.seen.serial]}
        case "back":
            return BACK, {"uuid": uuid}
        case "replace":
            return REPLACE, {"uuid": uuid, "key": key}
    place = list(machine.bmc.place) if machine is not None and machine.bmc is not None else None
    return RESOLVE, {"uuid": uuid, "consumed": word == "consumed", "key": key, "bmc": place}


def _inspected(
    servers: tuple[str, ...],
    selector: str | None,
    state: Path,
    credentials: Path | None,
    assets: Path | None = None,
) -> list[Inspection]:
    def signed(url: str, base_url: str) -> bool | None:
        """Whether what is served has a signature; None: it is not here, or no EFI program."""
        from gitboot.artifacts.boot_loaders import HEAD, is_signed

        served = f"{base_url}/assets/"
        if assets is None or not url.startswith(served):
            return None
        with suppress(OSError):
            if (file := file_below(assets.resolve(), url.removeprefix(served))) is not None:
                with file.open("rb") as content:
                    return is_signed(content.read(HEAD))
        return None

    raise_limits()  # each BMC has a connection
    at = now()
    with looked_at(state, at) as instance, connections(credentials) as kept:
        names = chosen(servers, instance, selector)
        found = subjects(instance.commit, instance.knowledge, instance.keys, at)
        asked = [subject for subject in found if names is None or subject.server in names]
        if without := sorted(frozenset(servers) - {subject.server for subject in asked}):
            raise UsageError(f"{', '.join(without)}: no BMC is known; a Server document names it in spec.bmc")
        with progress("BMCs", len(asked)) as advance:
            return inspect(asked, kept, at, read=advance, signed=signed)


def _as_json(found: list[Inspection]) -> str:
    return document(items=[one.facts() for one in found])


def _as_text(found: list[Inspection], state: Path, *, in_full: bool) -> str:
    rows = []
    counts: Counter[str] = Counter()
    for one in found:
        subject = one.subject
        colour = "red" if one.needs_a_person else None if one.is_settled else "yellow"
        person, unread, pending, fine = _STANDINGS
        standing = unread if one.seen is None else fine if one.is_settled else pending
        counts[person if one.needs_a_person else standing] += 1
        # What may stand on the BMC, or what was set last; the instant that a reason may end in says little here.
        last = max(subject.records, key=lambda each: (each.state.is_open, each.at), default=None)
        rows.append(
            (
                subject.server,
                str(subject.plan.phase) if subject.plan else "no plan",
                shown(subject.wanted.override if subject.wanted else None),
                shown(one.seen.override) if one.seen else style(one.next, fg="red"),
                f"{last.state} {last.reason.partition('/after/')[0]}" if last is not None else "-",
                subject.evidence,
                style("ask a person" if one.needs_a_person else one.next if one.seen else "-", fg=colour),
            )
        )
    header = ("SERVER", "PHASE", "WANTED", "SEEN", "RECORDED", "EVIDENCE", "NEXT")
    lines = [table(header, rows, shortened=(4, 3, 2)), *_whys(found, state), ""]
    for one in found if in_full else ():
        if one.seen is not None:
            secure = {None: "is not shown", True: "is on", False: "is off"}[one.seen.secure_boot]
            order = ", ".join(one.seen.boot_order) or "is not shown"
            lines.append(wrapped(f"{one.subject.server}: Secure Boot {secure}; boot order: {order}"))
    summary = ", ".join(f"{counts[what]} {what}" for what in _STANDINGS if counts[what])
    return "\n".join([*lines, f"{count(len(found), 'BMC')}: {summary or 'none'}"])


def _whys(found: list[Inspection], state: Path) -> Iterator[str]:
    alike: dict[tuple[str, str | None], list[str]] = {}
    for one in found:
        if one.needs_a_person or not one.is_settled:
            alike.setdefault((one.why, one.hint), []).append(one.subject.server)
    if alike:
        yield ""
    for (why, hint), names in alike.items():
        yield wrapped(f"{some(names, _MOST_NAMES)}: {why}")
        if hint is not None:
            yield f"    {with_state(hint, str(state))}"


def _as_diff(found: list[Inspection], state: Path) -> str:
    # Those of whom the same is to be said, and to which nothing is to be sent, are shown as one.
    groups: dict[object, list[Inspection]] = {}
    for number, one in enumerate(found):
        is_alone = one.request or one.warnings or one.subject.server in (one.hint or "")
        groups.setdefault(number if is_alone else (one.next, one.why, one.hint), []).append(one)
    lines: list[str] = []
    for alike in groups.values():
        one = alike[0]
        who = some([each.subject.server for each in alike], 3)
        lines.append(f"{style(who, bold=True)}: {one.next}: {printable(one.why)}")
        if one.request:
            address, method = one.subject.bmc.address, " ".join(one.request[:-1])
            lines.append(f"  {method} {address}{one.request[-1]}" if method else f"  {address}: {one.request[-1]}")
            if one.reset_to_come is not None:
                lines.append(f"  then {printable(one.reset_to_come)}")
        lines += [style(f"  warning: {printable(each)}", fg="yellow") for each in one.warnings]
        if one.hint is not None:
            lines.append(f"  {with_state(one.hint, str(state))}")
    return "\n".join(lines or ["every BMC is as it is wanted"])
