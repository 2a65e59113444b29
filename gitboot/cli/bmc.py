"""`gitboot bmc`: boot overrides, looked at or seen to by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gitboot.cli.exit import Exit
from gitboot.cli.inputs import Output, now, output_option, state_option

if TYPE_CHECKING:
    from gitboot.inspecting import Inspection

_SETTINGS = {"auto_envvar_prefix": "GITBOOT"}

_credentials_option = click.option(
    "--credentials",
    type=click.Path(path_type=Path, file_okay=False),
    help="A directory with NAME/username and NAME/password for the BMCs, as `gitboot run` has it.",
)
_reason_option = click.option("--reason", required=True, help="Why, for those who find it later.")


@click.group(context_settings=_SETTINGS)
def command() -> None:
    """Look at boot overrides, or see to them by hand.

    All of it goes by the state directory of an instance, running or not: the commit that it accepted, and what its
    ledger knows.
    """


@command.command("get", context_settings=_SETTINGS)
@click.argument("servers", nargs=-1)
@state_option
@_credentials_option
@output_option("text", "json")
def get(servers: tuple[str, ...], state: Path, credentials: Path | None, outputs: tuple[Output, ...]) -> None:
    """Read the BMCs of SERVERS, or of all, and show what is wanted, seen, recorded and proven there.

    Those that need a person come first, then those that are not as they are wanted. Nothing is set.
    """
    found = _inspected(servers, state, credentials)
    for output in outputs:
        output.write(_as_text(found) if output.format == "text" else _as_json(found))


@command.command("diff", context_settings=_SETTINGS)
@click.argument("servers", nargs=-1)
@state_option
@_credentials_option
@click.option("--detailed-exitcode", is_flag=True, help="Exit with 2 where a BMC is not as it is wanted.")
@output_option("text", "json")
def diff(
    servers: tuple[str, ...],
    state: Path,
    credentials: Path | None,
    detailed_exitcode: bool,
    outputs: tuple[Output, ...],
) -> None:
    """Show each PATCH that would be sent now to the BMCs of SERVERS, or of all, and why; send none.

    Exit codes: 0, and with --detailed-exitcode 2 where a BMC is not as it is wanted.
    """
    found = [one for one in _inspected(servers, state, credentials) if not one.is_settled]
    for output in outputs:
        output.write(_as_diff(found) if output.format == "text" else _as_json(found))
    if found and detailed_exitcode:
        sys.exit(Exit.CHANGES)


@command.command("apply", context_settings=_SETTINGS)
@click.argument("servers", nargs=-1)
@state_option
def apply(servers: tuple[str, ...], state: Path) -> None:
    """Let the running instance see to the BMCs of SERVERS, or of all, now instead of when they are due.

    It ends the wait after a failure, and the rest after too many in a row. What a plan does not want is never set.
    """
    from gitboot.cli.instance import looked_at, order
    from gitboot.errors import UsageError
    from gitboot.orders import RETRY
    from gitboot.state import running

    if running(state) is None:
        raise UsageError(
            f"no gitboot runs with the state directory {state}: begin with `gitboot run`, or run it --once"
        )
    with looked_at(state, now()) as instance:
        decisions = [instance.decision(name) for name in servers] or list(instance.decisions.servers.values())
    click.echo(order(state, RETRY, {"uuids": [each.uuid for each in decisions]}))


@command.command("resolve", context_settings=_SETTINGS)
@click.argument("server")
@state_option
@click.option(
    "--armed/--not-armed",
    "armed",
    required=True,
    default=None,
    help="Whether the override was set and the machine booted it, or it was never set.",
)
@_reason_option
def resolve(server: str, state: Path, armed: bool, reason: str) -> None:
    """Say what became of the override of SERVER that only a person can know (condition NeedsOperator).

    --armed: it was set and consumed; it is not set again. --not-armed: it was never set; where the plan still wants
    it, it is set now. Look at the machine's console or boot log first: the wrong word installs it twice, or never.
    """
    from gitboot.cli.instance import looked_at, order
    from gitboot.orders import RESOLVE
    from gitboot.resolve import plan

    at = now()
    with looked_at(state, at) as instance:
        decision = instance.decision(server)
        planned = plan(decision, at, instance.provisioning.records.get(decision.uuid))
        bmc = instance.machines[decision.uuid].bmc
    override = planned.override if planned is not None else None
    facts = {
        "uuid": decision.uuid,
        "server": server,
        "armed": armed,
        "key": override.reason if override is not None else planned.key if planned is not None else None,
        "bmc": list(bmc.place) if bmc is not None else None,
        "reason": reason,
    }
    click.echo(order(state, RESOLVE, facts))


def _inspected(servers: tuple[str, ...], state: Path, credentials: Path | None) -> list[Inspection]:
    from gitboot.bmc.fleet import connections
    from gitboot.cli.instance import chosen, looked_at
    from gitboot.inspecting import inspect, subjects

    at = now()
    with looked_at(state, at) as instance, connections(credentials) as kept:
        names = chosen(servers, instance)
        found = subjects(instance.decisions, instance.machines, instance.provisioning, instance.ledger, at)
        asked = [subject for subject in found if names is None or subject.name in names]
        with click.progressbar(length=len(asked), label="BMCs", file=sys.stderr, hidden=not sys.stderr.isatty()) as bar:
            return inspect(asked, kept, at, each=lambda: bar.update(1))


def _as_json(found: list[Inspection]) -> str:
    document = {"apiVersion": "gitboot.dev/v1alpha1", "items": [one.facts() for one in found]}
    return json.dumps(document, indent=2, sort_keys=True)


def _as_text(found: list[Inspection]) -> str:
    from gitboot.cli.table import table
    from gitboot.inspecting import named, shown

    rows = []
    for one in found:
        subject, recorded = one.subject, [each for each in one.subject.armed if each.state.is_open]
        record = recorded[-1] if recorded else next(iter(reversed(subject.armed)), None)
        colour = "red" if one.needs_a_person or one.seen is None else None if one.is_settled else "yellow"
        rows.append(
            (
                subject.name,
                str(subject.plan.phase) if subject.plan else "no plan",
                shown(subject.wanted.override if subject.wanted else None),
                shown(one.seen.override if one.seen else None),
                f"{record.reason} {record.state}" if record else "-",
                subject.record.evidence or "not met" if subject.record else "unknown",
                click.style(named(one.step), fg=colour),
            )
        )
    header = ("SERVER", "PHASE", "WANTED", "SEEN", "RECORDED", "EVIDENCE", "NEXT")
    whys = [f"{one.subject.name}: {one.why}" for one in found if not one.is_settled]
    return "\n".join([table(header, rows), *(["", *whys] if whys else []), "", _summed_up(found)])


def _as_diff(found: list[Inspection]) -> str:
    from gitboot.inspecting import named

    lines: list[str] = []
    for one in found:
        lines.append(f"{click.style(one.subject.name, bold=True)}: {named(one.step)}: {one.why}")
        if one.patch is not None:
            lines.append(f"  PATCH {one.subject.bmc.address}{one.patch}")
    return "\n".join(lines or ["every BMC is as it is wanted"])


def _summed_up(found: list[Inspection]) -> str:
    counts: dict[str, Any] = {
        "need a person": sum(one.needs_a_person for one in found),
        "could not be read": sum(one.seen is None for one in found),
        "not as wanted yet": sum(
            one.seen is not None and not one.is_settled and not one.needs_a_person for one in found
        ),
        "as wanted": sum(one.is_settled for one in found),
    }
    total = f"{len(found)} BMC{'s' if len(found) != 1 else ''}"
    return f"{total}: {', '.join(f'{count} {what}' for what, count in counts.items() if count) or 'none'}"
