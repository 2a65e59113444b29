"""JSON Schema of documents, for editors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import TypeAdapter

from gitboot.model.boot_image import BootImage, ImageStream
from gitboot.model.boot_policy import BootPolicy, BootProfile, Maintenance
from gitboot.model.fleet import Fleet
from gitboot.model.server import Server

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
KINDS: Final = (Fleet, Server, BootImage, ImageStream, BootProfile, BootPolicy, Maintenance)


def schema(kind: type) -> dict[str, Any]:
    """The JSON Schema of one kind's documents.

    Editors type plain scalars by YAML 1.2, gitboot by this schema: where gitboot reads text, a number
    is valid here too.
    """
    made = TypeAdapter(kind).json_schema()
    return {"$schema": _DIALECT, "title": kind.__name__, **_bare(made)}


def any_document() -> dict[str, Any]:
    """The JSON Schema of any document: chosen by its kind, so that an editor shows one kind's errors."""
    names = [kind.__name__ for kind in KINDS]
    return {
        "$schema": _DIALECT,
        "title": "A gitboot document",
        "type": "object",
        "required": ["apiVersion", "kind"],
        "properties": {
            "apiVersion": {"const": "gitboot.dev/v1alpha1"},
            "kind": {"enum": names, "description": "What the document says."},
        },
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind.__name__}}, "required": ["kind"]},
                "then": {key: value for key, value in _embedded(kind).items() if key != "$defs"},
            }
            for kind in KINDS
        ],
        "$defs": {name: value for kind in KINDS for name, value in sorted(_embedded(kind)["$defs"].items())},
    }


def _embedded(kind: type) -> dict[str, Any]:
    embedded: dict[str, Any] = _bare(TypeAdapter(kind).json_schema())
    return embedded


def _bare(node: Any) -> Any:
    """Without titles that only repeat a name, and without defaults, which stand in descriptions."""
    if isinstance(node, Mapping):
        return {
            key: _bare(value)
            for key, value in node.items()
            if not (key == "title" and isinstance(value, str)) and key != "default"
        }
    if isinstance(node, list):
        return [_bare(each) for each in node]
    return node


@dataclass(frozen=True, kw_only=True, slots=True)
class SchemaField:
    """A field of a kind, for people to read."""

    path: str  # spec.interfaces[].mac; [] is an item of a list, {} a value of a mapping
    type: str  # an enumeration is its words, each in backquotes
    is_required: bool
    description: str


def schema_fields(document: dict[str, Any]) -> Iterator[SchemaField]:
    """Every field of the schema of one kind, from `spec` on, each before the fields that are in it."""
    return _fields(document, document["properties"]["spec"], "spec", is_required=True)


def _fields(root: dict[str, Any], node: dict[str, Any], path: str, *, is_required: bool) -> Iterator[SchemaField]:
    description = str(node.get("description") or _resolved(root, node).get("description") or "")
    yield SchemaField(path=path, type=_type(root, node), is_required=is_required, description=description)
    for shape in _shapes(root, node):
        inner = [("", shape)]
        for mark, key in (("[]", "items"), ("{}", "additionalProperties")):
            if isinstance(shape.get(key), dict):
                inner.append((mark, _resolved(root, shape[key])))
        for mark, each in inner:
            required = each.get("required", [])
            for name, field in each.get("properties", {}).items():
                yield from _fields(root, field, f"{path}{mark}.{name}", is_required=name in required)


def _resolved(root: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    reference = node.get("$ref")
    found: dict[str, Any] = root["$defs"][reference.rpartition("/")[2]] if reference else node
    return found


def _shapes(root: dict[str, Any], node: dict[str, Any]) -> list[dict[str, Any]]:
    branches = [*node.get("anyOf", ()), *node.get("oneOf", ())]
    return [_resolved(root, each) for each in branches or [node]]


def _type(root: dict[str, Any], node: dict[str, Any]) -> str:
    names = []
    for shape in _shapes(root, node):
        if "enum" in shape:
            names.append(" · ".join(f"`{word}`" for word in shape["enum"]))
        elif "items" in shape:
            names.append("[]")
        elif "properties" in shape:
            names.append("mapping")
        elif "additionalProperties" in shape:
            names.append("{}")
        elif shape.get("type") != "null":
            kind = shape.get("type", "text")
            names.append("text" if isinstance(kind, list) or kind == "string" else kind)
    return " or ".join(dict.fromkeys(names))
