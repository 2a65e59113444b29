"""gitboot.jsonio_from_cli_inputs."""

from __future__ import annotations

import json
from typing import Any


def document(**items: Any) -> str:
    """What a command says, as JSON: with its version, sorted, to be read by people too."""
    from gitboot.jsonio import API_VERSION, facts

    return json.dumps({"apiVersion": API_VERSION, **facts(items)}, indent=2, sort_keys=True)
