"""Plans of a whole fleet for one command: load, decide, look up records, plan, render."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import click

from gitboot import text as phrases
from gitboot.cli.evaluated_fleet import evaluate_fleet
from gitboot.cli.terminal import wrapped
from gitboot.errors import UsageError
from gitboot.jsonio import canonical
from gitboot.load.machines import machines
from gitboot.load.repository import FleetRepository
from gitboot.model.fleet import Output
from gitboot.model.scalars.machines import SystemUuid
from gitboot.model.selectors import Selector
from gitboot.publish.recorded import read_records
from gitboot.render.formats import server_files
from gitboot.render.page_shards import page_files
from gitboot.render.parts import PartFiles
from gitboot.render.server_states import About, RenderedState, server_state
from gitboot.render.tree import File
from gitboot.resolve.install_attempts_from_resolve_records import first_records
from gitboot.resolve.optouts import opt_outs
from gitboot.resolve.places import Places
from gitboot.resolve.plan_at_time import plan
from gitboot.resolve.provisioning_record_from_plan import Record
from gitboot.resolve.server_decision import Decisions
from gitboot.resolve.server_decision_from_plan import Decision
from gitboot.resolve.server_plan import BootPlan, Cause
from gitboot.resolve.sites import sites_of
from gitboot.resolve.source_locations import source_locations
from gitboot.resolve.whereabouts import Explanations, fleet_facts
from gitboot.text import did_you_mean


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """A fleet at an instant."""

    repository: FleetRepository
    decisions: Decisions
    at: datetime
    records: Mapping[SystemUuid, Record]

    def decision(self, server: str) -> Decision:
        """The decision for a server; raises `UsageError` with a near name where there is none."""
        try:
            return self.decisions.servers[server]
        except KeyError:
            hint = did_you_mean(server, self.decisions.servers, "gitboot plan lists those that there are")
            raise UsageError(f"there is no server {server!r}; {hint}") from None

    def plan(self, server: str) -> tuple[Decision, BootPlan | None]:
        decision = self.decision(server)
        return decision, plan(decision, self.at, self.records.get(decision.uuid))

    def states(self) -> dict[str, RenderedState]:
        """Each server as it is published, its next transitions included."""
        about = about_all(self.repository, self.decisions)
        return {
            name: server_state(self.decisions, decision, self.records.get(decision.uuid), self.at, about[name])
            for name, decision in self.decisions.servers.items()
        }

    def page(self, states: Mapping[str, RenderedState]) -> PartFiles:
        """The page of all of them; nothing of one, where none is asked for."""
        if Output.PAGES not in self.decisions.outputs:
            return PartFiles(is_whole=True)
        shown = canonical(fleet_facts(Places(self.repository), opt_outs(self.repository)))
        return page_files(states, self.decisions.revision, shown, source_locations(self.repository))

    def files(self, decision: Decision, planned: BootPlan | None) -> dict[str, File]:
        return server_files(self.decisions, decision, planned)


def about_all(repository: FleetRepository, decisions: Decisions) -> dict[str, About]:
    """What a repository says of each server that decides nothing."""
    found = {}
    known = {machine.name: machine for machine in machines(repository).values()}
    has_page = Output.PAGES in repository.fleet.spec.outputs
    explanations = Explanations(repository, decisions.servers) if has_page else None
    sites = sites_of(repository)
    for name, server in repository.servers.items():
        site = sites.get(name)
        addresses = (address.partition("/")[0] for each in server.spec.interfaces for address in each.addresses)
        found[name] = About(
            site=site.name if site is not None else None,
            labels=server.metadata.labels,
            addresses=tuple(sorted(addresses)),
            idle=tuple(each.mac for each in server.spec.interfaces if not each.boot),
            machine=known[name],
            written=explanations.of(name) if explanations is not None else None,
        )
    return found


def planned_fleet(path: Path, rev: str | None, at: datetime, records: str | None) -> Planned:
    """The fleet at PATH, with what ``--records`` says of its servers; raises `InvalidRepository`."""
    decided = evaluate_fleet(path, rev, at).decided
    return Planned(
        repository=decided.repository,
        decisions=decided.decisions,
        at=at,
        records=known_records(decided.decisions, records),
    )


def known_records(decisions: Decisions, records: str | None) -> dict[SystemUuid, Record]:
    """What ``--records`` says: nothing without it; fresh, adopt, or exported records in a file."""
    if records is None:
        return {}
    if records not in ("fresh", "adopt"):
        try:
            return read_records(Path(records))  # who is not in it is unknown, as to `gitboot run`
        except OSError as error:
            raise UsageError(f"--records {records}: {error.strerror}; give fresh, adopt or a file") from None
    new = first_records(decisions.servers.values(), {}, adopt_all=records == "adopt")
    return {uuid: record for uuid, _, record in new}


def held_back(planned: Mapping[str, BootPlan | None]) -> int:
    """How many servers boot their disk only because nothing is known of them."""
    return sum(plan is not None and plan.cause is Cause.UNKNOWN for plan in planned.values())


def tell_already_made(made: Mapping[str, Mapping[str, str]]) -> None:
    """Say of each maintenance that it asks for nothing more, and what makes it ask again; by server, when."""
    servers: dict[tuple[str, str], list[str]] = {}
    for server, runs in made.items():
        for name, at in runs.items():
            servers.setdefault((name, at), []).append(server)
    for (name, at), names in sorted(servers.items()):
        click.echo(
            f"Maintenance/{name}: already made on {at} ({phrases.some(names, 3)}). Raise its run, or let its window "
            "start after the one in which it was made, and it is made again.",
            err=True,
        )


def tell_held_back(number: int) -> None:
    if number:
        of_whom = "it" if number == 1 else "them"
        said = (
            f"{phrases.count(number, 'server')} would perhaps be provisioned: nothing is known of {of_whom} here, and "
            "unknown never installs. Say what is known: --records fresh, adopt or FILE."
        )
        click.echo(wrapped(said), err=True)


records_option = click.option(
    "--records",
    metavar="fresh|adopt|FILE",
    help="What is known of provisioning: fresh (servers with provision 1 or more are not installed yet), adopt "
    "(all are), or exported records (ops/records of a published tree); servers that they lack are unknown. Default: "
    "nothing, and unknown never installs.",
)


def selected(text: str | None) -> Selector | None:
    """``-l key=value,key!=value,key,!key``, as kubectl selects."""
    if text is None:
        return None
    from pydantic import TypeAdapter, ValidationError

    expressions: list[dict[str, object]] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "!=" in part:
            key, _, value = part.partition("!=")
            expressions.append({"key": key.strip(), "operator": "NotIn", "values": [value.strip()]})
        elif "=" in part:
            key, _, value = part.replace("==", "=", 1).partition("=")
            expressions.append({"key": key.strip(), "operator": "In", "values": [value.strip()]})
        elif part.startswith("!"):
            expressions.append({"key": part[1:].strip(), "operator": "DoesNotExist"})
        else:
            expressions.append({"key": part, "operator": "Exists"})
    try:
        found: Selector = TypeAdapter(Selector).validate_python({"matchExpressions": expressions})
    except ValidationError as error:
        reason = error.errors()[0].get("ctx", {}).get("error", "an empty selector")
        raise UsageError(f"-l {text}: {reason}; write role=web,site!=fra1,rack,!gpu") from None
    return found
