"""Boots without what looks like a secret in them, fit to be shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Final

from gitboot.plan import Boot, Decision
from gitboot.resolve.leaks import leaks, secrets

_ARGUMENT: Final = "kernel argument "


def laid_out(boot: Boot) -> Boot:
    """Return the boot with user data laid out in lines."""
    user_data = boot.user_data
    if user_data is None:
        return boot
    return replace(
        boot, user_data=replace(user_data, files={name: _lines(each) for name, each in user_data.files.items()})
    )


def fit_to_show(boot: Boot) -> Boot:
    """The boot with user data laid out in lines, and HIDDEN wherever something looks like a secret."""
    boot = laid_out(boot)
    if (user_data := boot.user_data) is not None:
        files = {name: _without_secrets(text) for name, text in user_data.files.items()}
        boot = replace(boot, user_data=replace(user_data, files=files))
    boot = replace(boot, entries={name: _without_secrets(text) for name, text in boot.entries.items()})
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


def _lines(text: str) -> str:
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


def _without_secrets(text: str) -> str:
    """A text in which a line says what stood there, in place of each secret's lines."""
    lines = text.split("\n")
    shown: list[str] = []
    done = 0
    for secret in secrets(text):
        if secret.first > done:
            shown += [*lines[done : secret.first - 1], f"HIDDEN: looks like {secret.what}"]
        done = max(done, secret.last)
    return "\n".join([*shown, *lines[done:]])
