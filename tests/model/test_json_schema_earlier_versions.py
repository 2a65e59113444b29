"""Fields of documents in earlier versions: they are still there, and none that was optional is required now."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from gitboot.review.formats.json import build_schemas

FIELDS: Final = Path(__file__).parents[1] / "data" / "fields"  # one file for each earlier version
REQUIRED: Final = " (required)"


def list_fields(root: dict[str, Any], node: dict[str, Any], path: str, above: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the fields and the named values of a JSON Schema, such as BootPolicy.spec.power = On."""
    while "$ref" in node:
        name = node["$ref"].rpartition("/")[2]
        if name in above:
            return
        above, node = (*above, name), root["$defs"][name]
    for each in (*node.get("anyOf", ()), *node.get("oneOf", ()), *node.get("allOf", ())):
        yield from list_fields(root, each, path, above)
    values = node.get("enum") or ([node["const"]] if "const" in node else [])
    yield from (f"{path} = {value}" for value in values)
    for name, field in node.get("properties", {}).items():
        yield f"{path}.{name}{REQUIRED if name in node.get('required', ()) else ''}"
        yield from list_fields(root, field, f"{path}.{name}", above)
    for key, sign in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(node.get(key), dict):
            yield from list_fields(root, node[key], f"{path}{sign}", above)


def list_all_fields() -> set[str]:
    schemas = {name.removesuffix(".json"): json.loads(text) for name, text in build_schemas().items()}
    kinds = {name: schema for name, schema in schemas.items() if name[0].isupper()}
    return {field for name, schema in kinds.items() for field in list_fields(schema, schema, name)}


@pytest.mark.parametrize("version", sorted(each.stem for each in FIELDS.glob("*.txt")))
def test_a_document_of_an_earlier_version_has_no_field_that_is_gone_and_lacks_no_required_field(version: str) -> None:
    """`docs/reference/stability.md` promises this for every field and every named value of v1alpha1."""
    before, now = set((FIELDS / f"{version}.txt").read_text().splitlines()), list_all_fields()
    assert len(before) > 300
    assert {each.removesuffix(REQUIRED) for each in before} - {each.removesuffix(REQUIRED) for each in now} == set()
    newly_required = {
        each for each in now - before if each.endswith(REQUIRED) and each.removesuffix(REQUIRED) in before
    }
    assert newly_required == set()
