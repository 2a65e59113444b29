"""User data: immutable files by their digest, and where the system that was booted asks for them by its own name."""

from __future__ import annotations

from collections.abc import Iterator

from gitboot.model.boot_image import UserDataFormat
from gitboot.model.scalars.machines import lookup_uuids
from gitboot.render import paths
from gitboot.render.paths import ContentType, File
from gitboot.render.user_data_files import disc
from gitboot.resolve.server_decision_from_plan import Decision, UserDataFiles
from gitboot.resolve.server_plan import BootPlan
from gitboot.resolve.user_data_formats import family, meta_data, volume


def render(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """What the plan's boot configures itself by, under ``o/``; also by UUID, and by what is installed once.

    Secrets are for endpoints alone; `schedule` keeps them out of what machines and mirrors find in the tree.
    """
    if plan is None:
        return
    if plan.boot is not None and plan.boot.user_data is not None:
        yield from immutable(plan.boot.user_data)
    if plan.user_data is None:
        return
    yield from immutable(plan.user_data)
    if family(plan.user_data.format) is UserDataFormat.IGNITION:
        text = told_by("".join(plan.user_data.files.values()), decision, plan)
        document = File(text.encode(), ContentType.IGNITION)
        yield from ((paths.IGNITION.of(uuid), document) for uuid in lookup_uuids(plan.uuid))
    if plan.data_medium is not None:
        path = paths.MEDIUM.of(plan.uuid, plan.data_medium)
        yield path, File(_medium(plan.user_data, decision, plan), paths.MEDIUM.content_type)
    if plan.data is not None:
        for name, text in _waited_for(plan.user_data):
            file = File(told_by(text, decision, plan).encode(), paths.artifact_type(name))
            yield from ((paths.DATA.of(mac, plan.data, name), file) for mac in decision.macs)
        named = [each for each in (decision.token, plan.token) if each is not None]
        for name, text in plan.user_data.secrets.items():
            file = File(text.encode(), ContentType.OCTETS)
            yield from ((paths.SECRET.of(mac, token, name), file) for token in named for mac in decision.macs)


def _medium(user_data: UserDataFiles, decision: Decision, plan: BootPlan) -> bytes:
    """The volume on which the system looks for its user data."""
    found = volume(user_data.format)
    assert found is not None  # noqa: S101 - rule R6 refuses a format without one
    label, folder = found
    files = {name: told_by(text, decision, plan) for name, text in _waited_for(user_data)}
    if family(user_data.format) is UserDataFormat.TALOS:  # on NoCloud, whose files have names of their own
        instance = {"instance-id": plan.uuid, "local-hostname": plan.server}
        files = {"user-data": "".join(files.values()), "meta-data": meta_data(instance)}
    return disc(label, {f"{folder}{name}": text.encode() for name, text in files.items()})


def _waited_for(user_data: UserDataFiles) -> Iterator[tuple[str, str]]:
    """Its files, and an empty vendor-data: cloud-init asks for that ten times, a second apart, where there is none."""
    yield from user_data.files.items()
    if "meta-data" in user_data.files and "vendor-data" not in user_data.files:
        yield "vendor-data", ""


def told_by(text: str, decision: Decision, plan: BootPlan) -> str:
    """User data whose installer reports by the name of the attempt that it is of, if it is not the first."""
    if plan.token is None or decision.token is None:
        return text
    return text.replace(decision.token, plan.token)


def immutable(user_data: UserDataFiles) -> Iterator[tuple[str, File]]:
    """User data's own files, below their digest."""
    for name, text in user_data.files.items():
        yield f"boot/{user_data.folder}/{name}", File(text.encode(), paths.artifact_type(name))
