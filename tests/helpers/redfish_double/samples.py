"""Payloads as real BMCs send them: the samples that sushy's own tests read."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import sushy

Json: TypeAlias = dict[str, Any]

_FOLDER = Path(sushy.__file__).parent / "tests" / "unit" / "json_samples"
_SYSTEM = "/redfish/v1/Systems/437XR1138R2"  # as the samples have it


@cache
def _text(name: str) -> str:
    return (_FOLDER / f"{name}.json").read_text()


def sample(name: str, system: str = _SYSTEM) -> Json:
    """One sample, whose paths lie below ``system``."""
    document: Json = json.loads(_text(name).replace(_SYSTEM, system.rstrip("/")))
    document.pop("@Redfish.Copyright", None)
    return document
