"""`gitboot start`: offer again what `gitboot stop` has stopped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from gitboot.cli.inputs import now, state_option


@click.command(context_settings={"auto_envvar_prefix": "GITBOOT"})
@state_option
def command(state: Path) -> None:
    """Let the instance on STATE offer boots again, and say which servers boot from the network by it."""
    from gitboot.cli.instance import looked_at, request
    from gitboot.instance.requests import START
    from gitboot.instance.stops import released, stop_of
    from gitboot.phrases import count, some

    at = now()
    with looked_at(state, at) as instance:
        commit, knowledge = instance.commit, instance.knowledge
        without = replace(knowledge, facts=replace(knowledge.facts, stoppage=None))
        before, after = (stop_of(each, commit, knowledge.facts.orders) for each in (knowledge, without))
        names = released(commit, knowledge, at, before, after)
    click.echo(request(state, START, {}))
    if names:
        click.echo(f"{count(len(names), 'server')} to boot from the network now: {some(names)}")
