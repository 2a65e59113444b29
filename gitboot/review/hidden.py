"""Boots without what looks like a secret in them, fit to be shown."""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from gitboot.resolve.secret_scan import leaks, secrets
from gitboot.resolve.server_decision import Boot, Decision

_ARGUMENT: Final = "kernel argument "


def laid_out(boot: Boot) -> Boot:
    """Return the boot with user data laid out in lines."""
    return _with_files(boot, lambda text: _lines(text, str))


def fit_to_show(boot: Boot) -> Boot:
    """The boot with user data laid out in lines, and HIDDEN wherever something looks like a secret."""
    boot = _with_files(boot, lambda text: _without_secrets(_lines(text, _without_secrets)))
    boot = replace(boot, entries={name: _without_secrets(text) for name, text in boot.entries.items()})
    names = {leak.where.removeprefix(_ARGUMENT) for leak in leaks(boot)}
    return replace(boot, kernel_arguments=tuple(_argument(each, names) for each in boot.kernel_arguments))


def _with_files(boot: Boot, changed: Callable[[str], str]) -> Boot:
    if (user_data := boot.user_data) is None:
        return boot
    files = {name: changed(text) for name, text in user_data.files.items()}
    return replace(boot, user_data=replace(user_data, files=files))


def decision_to_show(decision: Decision) -> Decision:
    """A decision with all its boots fit to be shown."""
    policy = decision.policy
    if policy is not None and policy.boot is not None:
        policy = replace(policy, boot=fit_to_show(policy.boot))
    maintenances = tuple(
        replace(each, boot=fit_to_show(each.boot)) if each.boot else each for each in decision.maintenances
    )
    return replace(decision, policy=policy, maintenances=maintenances)


def _lines(text: str, shown: Callable[[str], str]) -> str:
    """JSON on many lines, and the texts in it too, so that a difference is a line; anything else as it is.

    Files in data URLs are decoded. They and all other texts in JSON become what ``shown`` returns for them. If that is
    what it was given, two different texts are different after this, but for white space in JSON.
    """
    try:
        value = _from_json(text)
        laid_out = json.dumps(value if _DECODED in text else _decoded(value, shown), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
    return _LINE_END.sub(r"\g<0>" + "\n", laid_out) + "\n"


def _from_json(text: str) -> Any:
    """Raises: ValueError for what is no JSON, or has a key twice: readers differ in which of the two counts."""
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a key stands twice in an object")
    return found


_DECODED: Final = "decoded from base64"
_DATA_URL: Final = "data:;base64,"  # as the filter data_url writes them


def _decoded(value: Any, shown: Callable[[str], str]) -> Any:
    """Return a JSON value with its texts as they are ``shown``, and with each data URL as an object.

    The object has what was decoded, and that can have data URLs, too. Text with such an object is not decoded.
    """
    if isinstance(value, dict):
        return {key: _decoded(each, shown) for key, each in value.items()}
    if isinstance(value, list):
        return [_decoded(each, shown) for each in value]
    if not isinstance(value, str):
        return value
    if not value.startswith(_DATA_URL):
        return shown(value)
    encoded = value.removeprefix(_DATA_URL)
    try:
        text = b64decode(encoded, validate=True).decode()
    except ValueError:
        return value
    if b64encode(text.encode()).decode() != encoded or _DECODED in text:
        return value
    if text.startswith("{"):
        with suppress(ValueError):
            return {_DECODED: _decoded(_from_json(text), shown)}
    return {_DECODED: shown(text)}


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
