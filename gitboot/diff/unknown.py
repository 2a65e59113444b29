"""By which changes of a commit it becomes unknown whether a server is provisioned: it then boots its disk."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from gitboot.model.boot_policy import NetworkBoot
from gitboot.resolve.install_attempts import NEW_UP_TO
from gitboot.resolve.server_decision import Decision


class Since(StrEnum):
    """Since when nothing is known of a server."""

    CAME = "came"  # with a provision number that it may have been installed with elsewhere
    REPLACES = "replaces"  # a board that no document has any more: what stands in a ledger of it only that knows
    BOARD = "board"  # another UUID, and its document does not say which one it replaces
    NOT_RAISED = "not raised"  # the document says so, and asks for no installation
    MOVED = "moved"  # another instance acts for it, which knows nothing of it
    OVERWRITTEN = "overwritten"  # a maintenance writes its disks


class BecomesUnknown(NamedTuple):
    """One way in which it becomes unknown whether a server is provisioned."""

    since: Since
    what: str  # the provision number, the UUID before, the site that it comes to, or the maintenance


def becomes_unknown(
    old: Decision | None, new: Decision | None, moved_to: str | None = None
) -> tuple[BecomesUnknown, ...]:
    """Every way, as far as two decisions say it; a raised provision number is pending whatever was before.

    ``moved_to`` is a site with an instance of its own, to which the server comes from another such site.
    """
    return tuple(_ways(old, new, moved_to)) if new is not None else ()


def _ways(old: Decision | None, new: Decision, moved_to: str | None) -> Iterator[BecomesUnknown]:
    if moved_to is not None:
        yield BecomesUnknown(Since.MOVED, moved_to)
    if old is None:
        if new.replaces is not None:
            yield BecomesUnknown(Since.REPLACES, new.replaces)
        elif new.provision > NEW_UP_TO:
            yield BecomesUnknown(Since.CAME, str(new.provision))
    elif old.uuid != new.uuid:
        if new.replaces != old.uuid:
            yield BecomesUnknown(Since.BOARD, old.uuid)
        elif new.provision <= old.provision:
            yield BecomesUnknown(Since.NOT_RAISED, str(new.provision))
    if new.stopped or (new.policy is not None and new.policy.network_boot is NetworkBoot.ALWAYS):
        return  # nothing is written, or nothing is asked of records
    before = {each.name: each for each in old.maintenances} if old is not None else {}
    for each in new.maintenances:
        if each.boot is not None and each.boot.writes_disk and before.get(each.name) != each:
            yield BecomesUnknown(Since.OVERWRITTEN, each.name)
