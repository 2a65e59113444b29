"""The path by which an installer says that it is done: a file, so that any mirror answers it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gitboot.model.policy import NetworkBoot
from gitboot.model.scalars import Digest
from gitboot.plan import BootPlan, Decision, provisioned_token
from gitboot.render import paths
from gitboot.render.tree import File

_INSTALLING: Final = (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
_EMPTY: Final = File(b"")


def render(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """``v1/boot/<mac>/provisioned/<token>``, whatever the server boots now.

    An installation may outlast the time that its evidence may take, or run into a maintenance's window; it is
    heard all the same.
    """
    token = report_token(decision)
    if token is not None:
        yield from ((paths.PROVISIONED.of(mac, token), _EMPTY) for mac in decision.macs)


def report_token(decision: Decision) -> Digest | None:
    """What the installer of the boot that is wanted now names; None where nothing is installed once."""
    policy = decision.policy
    if policy is None or policy.boot is None or policy.network_boot not in _INSTALLING:
        return None
    return Digest(provisioned_token(decision.uuid, decision.provision, policy.boot.image))
