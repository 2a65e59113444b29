"""How many BMCs of a site are asked at a time: more while they answer as fast as ever, half as many else."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from gitboot.bmc.redfish.transport import Sign

FIRST: Final = 16  # nothing is known of the site yet
LEAST: Final = 4
_STEP: Final = 8  # by how much it grows once it is known what was too much
_SLOWER: Final = 2  # than it was: the way there is full, or this machine
_UNNOTICED_S: Final = 0.1  # a BMC that answers at once may take so much longer
_LOST: Final = 0.1  # of those that answered the last time
_FORGETTING: Final = 1.1  # how fast it was is believed less with each round: a way may become longer for good


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """A value: each answer gives another one. A round is as many answers as may be awaited at a time.

    BMCs that have never answered say nothing of the way: a rack that is switched off does not slow the others.
    """

    most: int
    limit: int
    is_probing: bool = True  # it was never too much yet: it doubles
    best_s: float = math.inf  # what an answer of the fastest round took, half of them less
    waited_s: tuple[float, ...] = ()  # of this round
    lost: int = 0  # likewise

    @classmethod
    def upto(cls, most: int) -> Pace:
        return cls(most=most, limit=min(FIRST, most))

    def after(self, sign: Sign) -> Pace:
        """What one BMC's sign makes of it."""
        if sign.waited_s is None and not sign.is_lost:
            return self
        waited_s = self.waited_s if sign.waited_s is None else (*self.waited_s, sign.waited_s)
        lost = self.lost + sign.is_lost
        if len(waited_s) + lost < self.limit:
            return replace(self, waited_s=waited_s, lost=lost)
        typical_s = sorted(waited_s)[len(waited_s) // 2] if waited_s else math.inf
        is_slow = typical_s > self.best_s * _SLOWER + _UNNOTICED_S
        is_too_much = is_slow or lost > _LOST * (len(waited_s) + lost)
        grown = self.limit * 2 if self.is_probing else self.limit + _STEP
        return Pace(
            most=self.most,
            limit=min(max(self.limit // 2, LEAST) if is_too_much else grown, self.most),
            is_probing=self.is_probing and not is_too_much,
            best_s=min(typical_s, self.best_s * _FORGETTING),
        )
