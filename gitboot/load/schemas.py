"""The schema of each kind: what pydantic checks a document against, and what stands where in it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from gitboot.fleet.resources import KINDS
from gitboot.model.scalar_from_document import Path

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@cache
def adapter(kind: str) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # only here: nothing is wrong with most fleets

    return TypeAdapter(KINDS[kind])


@cache
def _schema(kind: str) -> dict[str, Any]:
    return adapter(kind).json_schema()


def schema_at(kind: str, path: Path) -> dict[str, Any]:
    """The JSON Schema of what ``path`` leads to in a document of ``kind``."""
    root = _schema(kind)

    def resolved(node: dict[str, Any]) -> dict[str, Any]:
        if "$ref" in node:
            return resolved(root["$defs"][node["$ref"].rpartition("/")[2]])
        branches = [resolved(branch) for branch in (*node.get("anyOf", ()), *node.get("oneOf", ()))]
        return next(
            (branch for branch in branches if branch.keys() & {"properties", "enum", "items"}),
            branches[0] if branches else node,
        )

    def inside(node: dict[str, Any], step: str | int) -> dict[str, Any]:
        candidates: list[Any] = []
        for branch in (*node.get("anyOf", ()), *node.get("oneOf", ()), node):
            found = resolved(branch)
            candidates.append(found.get("items") if isinstance(step, int) else found.get("properties", {}).get(step))
            candidates.append(found.get("additionalProperties"))
        return next(each for each in candidates if isinstance(each, dict))

    node = root
    for step in path:
        node = inside(node, step)
    structures = [resolved(branch) for branch in (*node.get("anyOf", ()), *node.get("oneOf", ()))]
    with_fields = [branch for branch in structures if "properties" in branch]
    return with_fields[0] if with_fields else resolved(node)
