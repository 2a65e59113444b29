"""The path by which an installer says that it is done: a file, so that any mirror answers it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gitboot.model.policy import NetworkBoot
from gitboot.model.scalars import Digest, MacAddress
from gitboot.plan import BootPlan, Decision, provisioned_token
from gitboot.render.tree import File

_INSTALLING: Final = (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)
_EMPTY: Final = File(b"")
_REPORT: Final = re.compile(r"boot/v1/boot/[^/]+/provisioned/[^/]+")


def render(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """``v1/boot/<mac>/provisioned/<token>``, whatever the server boots now.

    An installation may outlast the time that its evidence may take, or run into a maintenance's window; it is
    heard all the same.
    """
    token = report_token(decision)
    if token is not None:
        yield from ((report_path(mac, token), _EMPTY) for mac in decision.macs)


def report_token(decision: Decision) -> Digest | None:
    """What the installer of the boot that is wanted now names; None where nothing is installed once."""
    policy = decision.policy
    if policy is None or policy.boot is None or policy.network_boot not in _INSTALLING:
        return None
    return Digest(provisioned_token(decision.uuid, decision.provision, policy.boot.image))


def report_path(mac: MacAddress, token: str) -> str:
    return f"boot/v1/boot/{mac}/provisioned/{token}"


def is_report(path: str) -> bool:
    """Whether a GET of ``path`` is an installer's last word, not the fetch of a boot."""
    return _REPORT.fullmatch(path) is not None
