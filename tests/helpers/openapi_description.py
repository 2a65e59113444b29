"""What the operators' API and webhooks send, compared with the OpenAPI document of the endpoint."""

from __future__ import annotations

import json
from datetime import datetime
from functools import cache
from typing import Any

from jsonschema import Draft202012Validator, FormatChecker  # type: ignore[import-untyped]

from gitboot.endpoint.api import description


def _is_instant(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


_FORMATS = FormatChecker(formats=())
_FORMATS.checks("date-time", raises=ValueError)(_is_instant)


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI document that the endpoint sends."""
    found: dict[str, Any] = json.loads(description())
    return found


def problems(schema: str, value: object) -> list[str]:
    """Return how a value of JSON differs from a schema of the document, which is named."""
    wanted = {"$ref": f"#/components/schemas/{schema}", "components": document()["components"]}
    return sorted(each.message for each in Draft202012Validator(wanted, format_checker=_FORMATS).iter_errors(value))
