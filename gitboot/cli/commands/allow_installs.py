"""`gitboot allow-installs`: end `gitboot stop-installs`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from gitboot.cli.evaluator_process import evaluator_command
from gitboot.cli.exit import Exit
from gitboot.cli.options import now, state_option


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@state_option
@evaluator_command
def allow_installs_command(state: Path) -> None:
    """Serve install boots again, after `gitboot stop-installs`, and print which servers boot from the network."""
    from gitboot.cli.instance import request
    from gitboot.cli.words import done_in, folders_of, told_to
    from gitboot.controller.operator_requests import START
    from gitboot.errors import HeldByAnother, LedgerLeft
    from gitboot.observe.stopped import take_back
    from gitboot.text import count, some

    found = folders_of(state := told_to(state))
    try:
        names = _released(state)
    except (HeldByAnother, LedgerLeft) as error:  # what endpoints here were told is taken back here
        for each in (*done_in(found, take_back), f"the instance was not told, only endpoints here: {error}"):
            click.echo(f"gitboot: {each}", err=True)
        raise SystemExit(Exit.PARTIAL) from None
    missed = list(done_in(found, take_back))  # first: the instance would take it over once more
    click.echo(request(state, START, {}))
    if names:
        click.echo(f"{count(len(names), 'server')} to boot from the network now: {some(names)}")
    for each in missed:
        click.echo(f"gitboot: {each}: boots stay stopped there, and at the instance", err=True)
    if missed:
        raise SystemExit(Exit.PARTIAL)


def _released(state: Path) -> tuple[str, ...]:
    """Servers that boot from the network again, as the instance on ``state`` sees it."""
    from gitboot.cli.instance import looked_at
    from gitboot.instance.stops import released, stop_of

    at = now()
    with looked_at(state, at) as instance:
        commit, knowledge = instance.commit, instance.knowledge
        without = replace(knowledge, facts=replace(knowledge.facts, stoppage=None))
        before, after = (stop_of(each, commit, knowledge.facts.orders) for each in (knowledge, without))
        return released(commit, knowledge, at, before, after)
