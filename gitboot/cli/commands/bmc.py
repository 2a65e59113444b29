"""`gitboot bmc`: boot overrides and power, looked at or seen to by hand, and BMCs found in a network."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from gitboot.bmc.credentials import FILE, CredentialDirectory, as_file, pair_of
from gitboot.bmc.power_steps import PowerAction
from gitboot.bmc.scan import Comparison, FoundServer, Probe, addresses, compare, document_for, name_for, scan
from gitboot.bmc.worker_pool import connections
from gitboot.child_processes import raise_limits
from gitboot.cli.evaluator_child import evaluator_command
from gitboot.cli.instance_client import chosen, go_on, looked_at, machines_of, meant_by, request, yes_option
from gitboot.cli.main import Exit
from gitboot.cli.options import (
    VARIABLES,
    OutputOption,
    credentials_option,
    now,
    output_option,
    reason_option,
    rev_option,
    selector_option,
    state_option,
    write_outputs,
)
from gitboot.cli.terminal import progress, table, wrapped
from gitboot.controller.bmcs.manual_tasks import Inspection, Powered, Subject, inspect, shown, subjects, switch
from gitboot.controller.instance.assembly import Look
from gitboot.controller.instance.state_directory import running
from gitboot.controller.operator_requests import (
    ACCEPT,
    BACK,
    CERTIFICATE,
    POWER,
    POWERED,
    REPLACE,
    RESOLVE,
    RETRY,
    stop_of,
)
from gitboot.errors import UsageError
from gitboot.files import file_below, write_output_file
from gitboot.fleet.identities import BmcAccess, Machine
from gitboot.fleet.identities import machines as described_machines
from gitboot.jsonio import document, facts
from gitboot.model.scalars import Malformed, SystemUuid, parse_fingerprint
from gitboot.resolve.plan_at_time import plan
from gitboot.standard_streams import style
from gitboot.status.conditions import with_state
from gitboot.text import count, printable, shell_words, some

_STANDINGS: Final = ("waiting for a person", "not read", "not as wanted yet", "as wanted")
_MOST_NAMES: Final = 5


@click.group(context_settings=VARIABLES)
def command() -> None:
    """Find, read and set BMCs; switch machines on or off.

    The commands read the state directory of an instance: the accepted commit and the ledger. The instance may be
    running or not.
    """


@command.command("get", context_settings=VARIABLES)
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


@command.command("diff", context_settings=VARIABLES)
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


@command.command("apply", context_settings=VARIABLES)
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


@command.command("access-files", context_settings=VARIABLES)
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


@command.command("resolve", context_settings=VARIABLES)
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
    for kind, details in asked:
        click.echo(request(state, kind, details | {"server": server, "reason": reason}))
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


_dry_run_option = click.option("--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
_force_option = click.option("--force", is_flag=True, help="At once, without asking the operating system.")


@command.group("power", context_settings=VARIABLES)
def power() -> None:
    """Show which machines are on; switch or reset them.

    What a machine boots then is what its plan says: the table shows it before anything is sent. Nothing is switched
    during POST, where the BMC shows that, nor where it shows another machine than the document's. A suspended instance
    does not keep a person from it.
    """


@power.command("get", context_settings=VARIABLES)
@click.argument("servers", nargs=-1)
@selector_option
@state_option
@credentials_option
@output_option("text", "json")
@evaluator_command
def power_get(
    servers: tuple[str, ...],
    selector: str | None,
    state: Path,
    credentials: Path | None,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Show whether SERVERS, or all, are on, and how far they booted.

    Exit codes: 0 where all have answered, else 8.
    """
    at = now()
    subjects = _subjects(servers, selector, state)
    with connections(credentials) as kept, progress("BMCs", len(subjects)) as read:
        found = sorted(inspect(subjects, kept, at, read=read), key=lambda one: one.subject.server)
    items = [
        {
            "server": one.subject.server,
            "uuid": one.subject.uuid,
            "bmc": one.subject.bmc.address,
            "responded": one.seen is not None,
            "power": one.seen.power if one.seen is not None else None,
            "inPost": one.seen.in_post if one.seen is not None else None,
            "runsOs": one.seen.runs_os if one.seen is not None else None,
            "resetTypes": sorted(one.seen.reset_types) if one.seen is not None else [],
            "why": one.why if one.seen is None else None,
        }
        for one in found
    ]
    write_outputs(outputs, text=partial(_power_as_text, found), json=partial(document, items=items))
    if any(one.seen is None for one in found):
        sys.exit(Exit.PARTIAL)


@power.command("on", context_settings=VARIABLES)
@click.argument("servers", nargs=-1)
@selector_option
@state_option
@credentials_option
@reason_option
@_dry_run_option
@yes_option
@output_option("text", "json")
@evaluator_command
def power_on(servers: tuple[str, ...], **options: Any) -> None:
    """Switch SERVERS on. One that is on stays as it is.

    Exit codes: 0 where each is on or was told so, else 8.
    """
    _switch("on", servers, force=False, **options)


@power.command("off", context_settings=VARIABLES)
@click.argument("servers", nargs=-1)
@selector_option
@state_option
@credentials_option
@reason_option
@_force_option
@_dry_run_option
@yes_option
@output_option("text", "json")
@evaluator_command
def power_off(servers: tuple[str, ...], **options: Any) -> None:
    """Shut SERVERS down; with --force, switch them off at once.

    Exit codes: 0 where each is off or was told so, else 8.
    """
    _switch("off", servers, **options)


@power.command("reset", context_settings=VARIABLES)
@click.argument("servers", nargs=-1)
@selector_option
@state_option
@credentials_option
@reason_option
@_force_option
@_dry_run_option
@yes_option
@output_option("text", "json")
@evaluator_command
def power_reset(servers: tuple[str, ...], **options: Any) -> None:
    """Restart SERVERS; with --force, reset them at once.

    Exit codes: 0 where each was told so, else 8.
    """
    _switch("reset", servers, **options)


def _switch(
    what: str,
    servers: tuple[str, ...],
    *,
    selector: str | None,
    state: Path,
    credentials: Path | None,
    reason: str,
    force: bool,
    dry_run: bool,
    yes: bool,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Look, show, ask, leave word in the ledger, and only then send; each machine is looked at once more before."""
    if not servers and selector is None:
        raise UsageError("name servers, or select them by their labels: -l role=web")
    action = PowerAction(what)
    subjects = _subjects(servers, selector, state)
    with connections(credentials) as kept:
        switching = partial(switch, action=action, connections=kept, force=force)
        with progress("BMCs", len(subjects)) as read:
            found = switching(subjects, send=False, each=read)
        meant = [one.subject for one in found if one.would_send]
        if meant and not dry_run:
            if len(subjects) > 1 or selector is not None:
                click.echo(_as_table(found), err=True)
                installs = sum(each.plan is not None and each.plan.writes_disk for each in meant)
                installing = f", of which {installs} would boot what writes disks" if installs and what != "off" else ""
                click.echo(f"{what} for {count(len(meant), 'server')}{installing}: {reason}", err=True)
                go_on(yes=yes)
            request(state, POWER, {"action": what, "servers": [each.server for each in meant], "reason": reason})
            with progress("BMCs", len(meant)) as read:
                sent = {one.subject.uuid: one for one in switching(meant, send=True, each=read)}
            recorded = ("server", "resetType", "sent", "why")
            items = [{name: one.facts()[name] for name in recorded} for one in sent.values()]
            request(state, POWERED, {"action": what, "items": items, "reason": reason})
            found = [sent.get(one.subject.uuid, one) for one in found]
    listed = partial(document, items=[one.facts() for one in found])
    write_outputs(outputs, text=partial(_as_table, found), json=listed)
    if any(one.failed for one in found):
        sys.exit(Exit.PARTIAL)


def _subjects(servers: tuple[str, ...], selector: str | None, state: Path) -> list[Subject]:
    at = now()
    with looked_at(state, at) as instance:
        found_there = subjects(instance.commit, instance.knowledge, instance.keys, at)
        described = (each for each in found_there if each.decision is not None)
        if not servers and selector is None:
            return list(described)
        meant = meant_by(instance, servers, selector)
        found = [each for each in described if each.server in meant]
    if without := sorted(meant.keys() - {each.server for each in found}):
        raise UsageError(f"{some(without)}: no BMC is known; a Server document names it in spec.bmc")
    return found


def _power_as_text(found: list[Inspection]) -> str:
    rows = []
    counts: Counter[str] = Counter()
    for one in found:
        seen = one.seen
        if seen is None:
            rows.append((one.subject.server, style(one.next, fg="red"), one.why))
        else:
            at = "in POST" if seen.in_post else "its operating system runs" if seen.runs_os else "-"
            rows.append((one.subject.server, seen.power or "not shown", at))
        counts[seen.power or "not shown" if seen is not None else "not read"] += 1
    numbers = ", ".join(f"{number} {printable(what).lower()}" for what, number in sorted(counts.items()))
    return f"{table(('SERVER', 'POWER', 'STATE'), rows, shortened=(2,))}\n\n{count(len(found), 'BMC')}: {numbers}"


def _as_table(found: list[Powered]) -> str:
    rows = []
    for one in found:
        plan, seen = one.subject.plan, one.seen
        boots = "no plan" if plan is None else f"{plan.phase}, writes disks" if plan.writes_disk else str(plan.phase)
        rows.append(
            (
                one.subject.server,
                seen.power or "not shown" if seen is not None else "not read",
                boots,
                f"{'sent ' if one.sent else ''}{one.words}",
            )
        )
    return table(("SERVER", "POWER", "BOOTS", "WHAT IS SENT"), rows, shortened=(3,))


@command.command("scan", context_settings=VARIABLES)
@click.argument("places", nargs=-1, required=True, metavar="NETWORK|ADDRESS|FILE...")
@credentials_option
@click.option(
    "--as", "name", required=True, metavar="NAME", help="The credentials to ask with, as documents name them."
)
@click.option(
    "--path",
    type=click.Path(path_type=Path),
    help="The fleet to compare with: a directory, a Git work tree or a bare repository. Default: none, and every "
    "machine is unknown.",
)
@rev_option
@click.option("--port", "ports", multiple=True, default=[443], type=click.IntRange(1, 65535), help="Default: 443.")
@click.option(
    "--no-verify", is_flag=True, help="Trust any certificate, and say so in documents; access.toml must allow it."
)
@click.option(
    "--out", type=click.Path(path_type=Path, file_okay=False), help="Write documents to OUT/servers. Default: none."
)
@click.option("--parallel", default=64, type=click.IntRange(1, 256), help="Addresses at a time. Default: 64.")
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 where anything is not as documents say.")
@output_option("text", "json")
@evaluator_command
def scan_network(
    places: tuple[str, ...],
    credentials: Path | None,
    name: str,
    path: Path | None,
    rev: str | None,
    ports: tuple[int, ...],
    no_verify: bool,
    out: Path | None,
    parallel: int,
    detailed_exitcode: bool,
    outputs: tuple[OutputOption, ...],
) -> None:
    """Find Redfish services, and compare them with the fleet.

    A FILE has a network, an address or a URL on each line. Who answers as Redfish is asked with the credentials in
    DIR/NAME, where access.toml there lets them go, and is only read. With --out each machine that no document describes
    gets one, for a pull request: it is Parked, so nothing boots or is set by it.

    Exit codes: 0; 8 where something answered and could not be read; with --detailed-exitcode 2 where a machine is
    swapped, moved, missing, unknown, or has other network cards than its document says.
    """
    machines: list[Machine] = []
    if path is not None:
        from gitboot.cli.evaluated_fleet import load_fleet

        machines = list(described_machines(load_fleet(path, rev)).values())
    asked = addresses(list(_listed(places)), ports)
    answers = scanned(asked, credentials, name, verify=not no_verify, parallel=parallel)
    found = [each for answer in answers for each in answer.found]
    failed = [each for each in answers if each.why_not is not None]
    compared = compare(found, machines, asked, [each.address for each in failed])
    written = _write(out, found, compared, {each.name for each in machines}, name, verify=not no_verify)
    files = {each: str(file) for each, file in written.items()}
    items = [{**facts(each), "server": compared.servers.get(each), "document": files.get(each)} for each in found]
    unread = [{"address": each.address, "why": each.why_not} for each in failed]
    write_outputs(
        outputs,
        text=partial(_scan_as_text, answers, compared, written, len(asked)),
        json=partial(document, items=items, unread=unread, differences=compared.differences),
    )
    if failed:
        sys.exit(Exit.PARTIAL)
    if compared.differences and detailed_exitcode:
        sys.exit(Exit.CHANGES)


def _listed(places: Sequence[str]) -> Iterator[str]:
    for place in places:
        if not Path(place).is_file():
            yield place
            continue
        try:
            lines = Path(place).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{place} cannot be read: {error}") from None
        yield from filter(None, (line.partition("#")[0].strip() for line in lines))


def scanned(asked: Sequence[str], credentials: Path | None, name: str, *, verify: bool, parallel: int) -> list[Probe]:
    """What answers, in the order of addresses."""
    from gitboot.bmc.redfish.client import BmcConnection

    if credentials is None:
        raise UsageError("--credentials is needed: the directory that has NAME/username and NAME/password")
    CredentialDirectory(credentials).of(name)  # says at once, and not of each address, what is missing
    order = {address: number for number, address in enumerate(asked)}
    with connections(credentials) as kept:

        def connect(address: str) -> BmcConnection:
            access = BmcAccess(address=address, system=None, credentials=name, verify=verify, ca=None)
            driver = kept.to(SystemUuid(address), address, access, known=True)  # named by whoever typed the command
            assert isinstance(driver, BmcConnection)  # noqa: S101 - `addresses` makes no other
            return driver

        with progress("addresses", len(asked)) as advance:
            answers = list(scan(asked, connect, parallel=parallel, each=lambda: advance(1)))
    return sorted((each for each in answers if each.found or each.why_not), key=lambda each: order[each.address])


def _write(
    out: Path | None,
    found: Sequence[FoundServer],
    compared: Comparison,
    taken: Collection[str],
    credentials: str,
    *,
    verify: bool,
) -> dict[FoundServer, Path]:
    written: dict[FoundServer, Path] = {}
    names = set(taken)
    for each in found:
        if out is None or each in compared.servers or each.lacks is not None:
            continue
        name = name_for(each, names)
        names.add(name)
        written[each] = out / "servers" / f"{name}.yaml"
        text = document_for(each, name, credentials, verify=verify)
        write_output_file(written[each], [text.encode()], make_folders=True)
    return written


def _scan_as_text(answers: Sequence[Probe], compared: Comparison, written: dict[FoundServer, Path], asked: int) -> str:
    found = [each for answer in answers for each in answer.found]
    rows = [
        (
            each.address.removeprefix("https://"),
            compared.servers.get(each, "-")[:20],
            (f"{each.maker} {each.model}".strip() or "-")[:26],
            (each.serial or "-")[:16],
            (each.bmc or "-")[:12],
            str(len(each.nics)),
        )
        for each in found
    ]
    lines = [table(("ADDRESS", "SERVER", "MODEL", "SERIAL", "BMC", "NICS"), rows), ""] if rows else []
    for difference in compared.differences:
        who = f"{difference.server} at {difference.address}" if difference.server else difference.address
        lines.append(wrapped(f"{difference.what}: {who}: {difference.message}"))
    lines += [wrapped(f"not read: {each.address}: {each.why_not}") for each in answers if each.why_not is not None]
    lines += [f"wrote {path}" for path in written.values()]
    lacking = [each for each in found if each not in compared.servers and each.lacks is not None]
    lines += [wrapped(f"no document for {each.address}: {each.lacks}") for each in lacking]
    if lines and lines[-1]:
        lines.append("")
    unread = sum(each.why_not is not None for each in answers)
    ends = [count(len(found), "machine"), count(len(compared.differences), "difference")]
    if unread:
        ends.append(f"{unread} not read")
    return "\n".join([*lines, f"{asked:,} {'address' if asked == 1 else 'addresses'} asked: {', '.join(ends)}"])
