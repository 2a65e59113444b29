"""Boots without what looks like a secret in them, fit to be shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Final

from gitboot.plan import Boot, Decision
from gitboot.resolve.leaks import Leak, leaks

_ARGUMENT: Final = "kernel argument "


def fit_to_show(boot: Boot) -> Boot:
    """The boot with user data laid out in lines, and HIDDEN wherever `leaks` finds something."""
    user_data = boot.user_data
    if user_data is not None:
        files = {name: _laid_out(text) for name, text in user_data.files.items()}
        boot = replace(boot, user_data=replace(user_data, files=files))
    while found := [leak for leak in leaks(boot) if not leak.where.startswith(_ARGUMENT)]:
        boot = _without(boot, found[0])
    names = {leak.where.removeprefix(_ARGUMENT) for leak in leaks(boot)}
    return replace(boot, kernel_arguments=tuple(_argument(each, names) for each in boot.kernel_arguments))


def decision_to_show(decision: Decision) -> Decision:
    """A decision with all its boots fit to be shown."""
    policy = decision.policy
    if policy is not None and policy.boot is not None:
        policy = replace(policy, boot=fit_to_show(policy.boot))
    maintenances = tuple(
        replace(each, boot=fit_to_show(each.boot)) if each.boot else each for each in decision.maintenances
    )
    return replace(decision, policy=policy, maintenances=maintenances)


def _laid_out(text: str) -> str:
    """JSON on many lines, and the texts in it too, so that a difference is a line; anything else as it is."""
    try:
        laid_out = json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
    return _LINE_END.sub(r"\g<0>" + "\n", laid_out) + "\n"


_LINE_END: Final = re.compile(r'(?<!\\)(?:\\\\)*\\n(?!")')  # an escaped one within a string, but for its last


def _argument(argument: str, names: set[str]) -> str:
    name = argument.partition("=")[0]
    return f"{name}=HIDDEN" if name in names else argument


def _without(boot: Boot, leak: Leak) -> Boot:
    """The boot without the lines that a leak is about."""
    name, _, number = leak.where.rpartition(", line ")
    user_data = boot.user_data
    if name in boot.entries:
        return replace(boot, entries={**boot.entries, name: _hiding(boot.entries[name], int(number), leak)})
    assert user_data is not None  # noqa: S101 - a leak is in an entry or in user data
    files = {**user_data.files, name: _hiding(user_data.files[name], int(number), leak)}
    return replace(boot, user_data=replace(user_data, files=files))


def _hiding(text: str, number: int, leak: Leak) -> str:
    """A text without its line ``number``, and without what belongs to a key that begins there."""
    lines = text.split("\n")
    end = number
    if "key" in leak.what and "-----END" not in lines[number - 1]:
        ends = (each for each in range(number, len(lines)) if "-----END" in lines[each])
        end = next(ends, len(lines) - 1) + 1
    return "\n".join([*lines[: number - 1], f"HIDDEN: looks like {leak.what}", *lines[end:]])
