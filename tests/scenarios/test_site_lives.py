"""Lives of a site: clocks, restored backups, lost trees, proxies, kills, operators; nothing is installed twice.

They are the same each time. ``python -m tests.helpers.site_lives.lives --lives 10000 --seed 1`` searches for long.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.helpers.cases import USUAL
from tests.helpers.site_lives.lives import KINDS, folder_for_lives, life_of, world

_log = logging.getLogger(__name__)  # figures of a long run: --log-level=info -rP

SEED = 2027
SOME = (8, 10, 17, 22, 23, 24, 34, 35, 36)  # lives of which each does or sees what few do: together all there is
HAPPENS = (
    "given: install",
    "given: repair",
    "given: wipe",
    "set",
    "consumed",
    "withdrawn",
    "power: ForceRestart",
    "power: On",
    "refused: Given",
    "refused: ClockOff",
    "reported provisioned",
    "reported failed",
    "reported late",
    "known as provisioned",
    "acknowledged in a message",
    "endpoint killed",
    "instance killed",
)


def test_no_life_of_a_site_installs_a_machine_twice(lives: int) -> None:
    numbers = range(12 + lives * 12) if lives >= USUAL else SOME
    with folder_for_lives() as folder, world(Path(folder)) as lived:
        for number in numbers:
            life = life_of(SEED, number)
            if lived.live(life):
                shortest = lived.shortest(life)
                pytest.fail("\n".join([f"life {number} of seed {SEED}:", str(shortest), *lived.live(shortest)]))
        counts = lived.counts
    _log.info("%d lives: %s", len(numbers), dict(sorted(counts.items())))
    assert {name for name in KINDS if not counts[f"step: {name}"]} == set(), "never done"
    assert {name for name in HAPPENS if not counts[name]} == set(), "never seen"
