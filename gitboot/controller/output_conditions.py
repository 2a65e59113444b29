"""Output conditions: the state of the output tree, its targets, the signed list and the files that boots need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from gitboot.artifacts.availability import Presence, Sighting, is_withheld
from gitboot.controller.current_plans import ImageFile
from gitboot.controller.instance_state import InstanceState
from gitboot.jsonio import format_instant
from gitboot.resolve.server_decision import BootFile
from gitboot.status.instance_status import SignedListState
from gitboot.text import format_count, format_names

Finding = tuple[str, bool, str, str]  # type, status, reason and message of a condition

NO_RETRY: Final = ("ForeignTree", "LockedByAnother")  # errors of a target after which gitboot does not try again
_LATE: Final = timedelta(minutes=5)  # a target whose files are older than this is behind
_OVERDUE: Final = timedelta(minutes=2)  # after a transition, verify-mirror accepts the previous version for this long
_ROOT_WARNING: Final = timedelta(days=60)  # enough time for an operator to get the root key from its safe
_MAX_NAMED: Final = 20  # servers that a message names
_NOT_CHECKED: Final = "Machines do not check this list, so they boot as before"


def find_target_conditions(state: InstanceState, at: datetime) -> Iterator[Finding]:
    """Yield the condition about the targets if the instance has any targets."""
    targets = state.target_status
    if not targets:
        return
    failing = [target for target in targets if target.failure is not None]
    overdue = [target for target in targets if target.overdue_since and target.overdue_since + _OVERDUE <= at]
    late = [target for target in targets if target.behind_since and target.behind_since + _LATE <= at]
    if overdue:
        first = min(overdue, key=lambda target: (target.overdue_since or at, target.name))
        cause = f". Error: {_strip_target(first.failure[1], first.name)}" if first.failure is not None else ""
        others = f" and {format_count(len(overdue) - 1, 'other target')}" if len(overdue) > 1 else ""
        due = format_instant(first.overdue_since or at)
        message = (
            f"gitboot could not update the target {first.name}{others} for a change that was due at {due}, such as the "
            f"end of a maintenance window. Machines that boot from there may still boot the maintenance image{cause}"
        )
        yield "TargetsCurrent", False, "TransitionOverdue", message
    elif failing:
        first = failing[0]
        reason, error = first.failure or ("", "")
        name, behind = first.name, first.behind_since
        others = f" and {format_count(len(failing) - 1, 'other target')}" if len(failing) > 1 else ""
        since = f". Its boot files have been out of date since {format_instant(behind)}" if behind is not None else ""
        retry = "" if reason in NO_RETRY else ". gitboot will retry automatically"
        message = f"gitboot cannot update the target {name}{others}: {_strip_target(error, name)}{since}{retry}"
        yield "TargetsCurrent", False, reason, message
    elif late:
        names = " and ".join(
            f"the boot files of {target.name} have been out of date since {format_instant(target.behind_since or at)}"
            for target in late
        )
        message = f"{names}. Machines that boot from there get older boot files. gitboot will retry automatically"
        yield "TargetsCurrent", False, "Behind", message
    else:
        are = "is" if len(targets) == 1 else "are"
        message = f"{format_count(len(targets), 'target')} {are} up to date or being updated now"
        yield "TargetsCurrent", True, "Current", message


def _strip_target(error: str, name: str) -> str:
    return error.removeprefix(f"{name}: ").rstrip(".")


def find_output_conditions(state: InstanceState, at: datetime) -> Iterator[Finding]:
    """Yield the conditions about the output tree, the signed list and the one-time boots."""
    signed_list = state.signed_list
    if state.is_output_open:
        message = (
            "every user on this host can read OUTPUT and the installation tokens in it, because an earlier version of "
            "gitboot made this ledger. Name the group that may read OUTPUT, for example the group of the web server"
        )
        yield "OutputPrivate", False, "ReadableByAll", message
    if signed_list is not None and (signed_list.expires is not None or signed_list.failure is not None):
        yield _build_signed_list_condition(signed_list, at)
    left_machines = state.snapshot.facts.left_output or frozenset()
    names = sorted(state.commit.select_server_names(left_machines)) if state.commit is not None else []
    limited = [target for target in state.target_status if target.withheld]
    if names:
        boots = "this server boots" if len(names) == 1 else "these servers boot"
        message = (
            f"{format_names(names, _MAX_NAMED)}: {boots} from disk until you set an endpoint in the Fleet. Since the "
            "upgrade, gitboot does not write one-time boots to OUTPUT, because a mirror of OUTPUT does not record who "
            "fetched a file"
        )
        yield "OneTimeBootsServed", False, "OutputWithoutEndpoint", message
    elif limited:
        count = limited[0].withheld
        boots, their = ("This server boots", "its") if count == 1 else ("These servers boot", "their")
        message = (
            f"{format_count(count, 'server')} cannot get {their} one-time boots. The target {limited[0].name} cannot "
            "serve them, because it does not record who fetched a file. The Fleet does not name an endpoint. "
            f"{boots} from disk until you set one"
        )
        yield "OneTimeBootsServed", False, "NoEndpoint", message
    elif state.target_status:
        yield "OneTimeBootsServed", True, "Served", "an endpoint or the targets serve all one-time boots"


def _build_signed_list_condition(signed_list: SignedListState, at: datetime) -> Finding:
    """Return the condition about the list of boot files, its signature and its expiration."""
    expires, root_expires = signed_list.expires, signed_list.root_expires
    until = f" until {format_instant(expires)}" if expires is not None else ""
    if signed_list.failure is not None:
        reason, error = signed_list.failure
        valid = ""
        if expires is not None:
            valid = f". The current list is valid{until}. After that, readers such as gitboot verify-mirror reject it"
        message = f"gitboot could not renew the signed list: {error.rstrip('.')}{valid}. {_NOT_CHECKED}"
        return "SignedListCurrent", False, reason, message
    if expires is not None and expires <= at:
        message = (
            f"the signed list expired at {format_instant(expires)}, so readers such as gitboot verify-mirror reject "
            f"it. {_NOT_CHECKED}"
        )
        return "SignedListCurrent", False, "Expired", message
    if root_expires is not None and root_expires - at <= _ROOT_WARNING:
        message = (
            f"the signed list's root metadata expires at {format_instant(root_expires)}. Until then, the signed list "
            f"is valid. After that, readers such as gitboot verify-mirror reject the list. {_NOT_CHECKED}"
        )
        return "SignedListCurrent", False, "RootExpires", message
    if signed_list.signed:
        return "SignedListCurrent", True, "Signed", f"the signed list of boot files is valid{until}"
    return "SignedListCurrent", True, "Unsigned", f"the list of boot files is valid{until}, but not signed"


def find_artifact_conditions(state: InstanceState) -> Iterator[Finding]:
    """Yield the condition about the files that boots need, if gitboot checks these files or withholds a boot."""
    sightings = state.snapshot.sightings
    withheld, from_ipxe = find_withheld_files(state), state.plans.withheld_from_ipxe
    if withheld or from_ipxe:
        message = ""
        if withheld:
            boots = format_names(_describe_withheld_boots(withheld, sightings), 3)
            message += f"gitboot withholds these boots until their files are available: {boots}. "
        if from_ipxe:
            boots = format_names(_describe_withheld_boots(from_ipxe, sightings), 3)
            message += f"gitboot withholds the iPXE boot scripts for {boots}. GRUB still boots these servers. "
        yield "ArtifactsPresent", False, "Missing", f"{message}gitboot checks the files again automatically"
    elif sightings is not None:
        unknown_count = sum(sighting.presence is Presence.UNKNOWN for sighting in sightings.values())
        unchecked = ""
        if unknown_count:
            unchecked = f"; for {format_count(unknown_count, 'artifact')}, the server did not respond"
        yield "ArtifactsPresent", True, "Present", f"no artifact is missing{unchecked}"


def _describe_withheld_boots(
    files: Mapping[ImageFile, int], sightings: Mapping[BootFile, Sighting] | None
) -> list[str]:
    """Describe the boots that lack these files, sorted. The values of ``files`` are numbers of servers."""
    texts = []
    for (image, file), count in files.items():
        if sightings is None:
            fault = "the stream requires a signature, which gitboot does not check because of --check-assets off"
        elif file in sightings:
            fault = sightings[file].message
        else:
            fault = "gitboot has not checked this file yet"
        servers = format_count(count, "server") if count else "unknown machines"
        texts.append(f"BootImage/{image} for {servers} ({file.url}: {fault})")
    return sorted(texts)


def find_withheld_files(state: InstanceState) -> dict[ImageFile, int]:
    """Return the missing files that cause boots to be withheld, each with the number of servers that need the file."""
    commit, sightings = state.commit, state.snapshot.sightings
    boots = (commit.decisions.unknown or {}).values() if commit is not None else ()
    return {
        ImageFile(boot.image, file): 0 for boot in boots for file in boot.fetched_files if is_withheld(file, sightings)
    } | state.plans.withheld
