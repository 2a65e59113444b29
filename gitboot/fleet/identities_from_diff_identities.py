"""gitboot.fleet.identities_from_diff_identities."""

from __future__ import annotations

from typing import NamedTuple

from gitboot.model.scalars.machines import SystemUuid

Mark = tuple[str, str]  # an identity: what it is, as in `Why`, and its value


class LostIdentity(NamedTuple):
    """An identity that a machine had in one commit, and that its document lacks in the next."""

    kind: str
    value: str
    uuid: SystemUuid  # of the machine
    netboots: bool = False  # whether it booted a system without installing it: its record does not show such a system

    @property
    def mark(self) -> Mark:
        return self.kind, self.value
