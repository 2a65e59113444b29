"""What the endpoint of this process answers from, as it was planned."""

from __future__ import annotations

from gitboot.instance.commit import Commit
from gitboot.instance.plans import Plans
from gitboot.instance.publishing import shared
from gitboot.render.answers import Answers


def answers_of(plans: Plans, commit: Commit) -> Answers:
    """All files of all servers, with their turns."""
    states = plans.servers.values()
    return Answers(
        files={path: file for state in states for path, file in state.files.items()} | dict(shared(plans, commit)),
        turns={path: each for state in states for path, each in state.turns.items()},
        entries={path: each for state in states for path, each in state.entries.items()},
        servers={name: state.summary for name, state in plans.servers.items()},
        addresses=commit.addresses,
    )
