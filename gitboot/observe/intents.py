"""Intents to serve a boot, and their outcomes: how lines of a fetch log with the same id are read together.

An endpoint writes an intent durably before the first byte of an answer, and `served` or `withheld` with the intent's
id after it. The endpoint and the instance read both by `with_outcomes`, so that they come to the same conclusion. ADR
0071 has the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from gitboot.observe.observation import Observation, Outcome

_T = TypeVar("_T")


def with_outcomes(items: Iterable[_T], observation_of: Callable[[_T], Observation]) -> list[_T]:
    """Return the items without the intents whose outcome is among them, in their order.

    `served` outweighs `withheld`. What remains of an intent is `served`, which is a fetch; or `withheld`, which means
    that nothing was served; or the intent, which uses the boot up and proves nothing.
    """
    found = [(each, observation_of(each)) for each in items]
    served = {each.intent for _, each in found if each.outcome is Outcome.SERVED}
    known = served | {each.intent for _, each in found if each.outcome is Outcome.WITHHELD}
    return [item for item, each in found if not _is_overtaken(each, served, known)]


def that_use_up(observations: Iterable[Observation]) -> list[Observation]:
    """Return the observations that use a boot up: fetches, and intents whose outcome is not known."""
    return [each for each in with_outcomes(observations, lambda each: each) if each.outcome is not Outcome.WITHHELD]


def _is_overtaken(observation: Observation, served: set[str | None], known: set[str | None]) -> bool:
    if observation.intent is None or observation.outcome is Outcome.SERVED:
        return False
    return observation.intent in (known if observation.outcome is None else served)
