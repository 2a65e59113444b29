"""JSON Schema of documents, for editors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from gitboot.model.boot_image import BootImage, ImageStream
from gitboot.model.boot_policy import BootPolicy, BootProfile, Maintenance
from gitboot.model.fields import declared_fields, words_of
from gitboot.model.fleet import Fleet
from gitboot.model.server import Server

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
KINDS: Final = (Fleet, Server, BootImage, ImageStream, BootProfile, BootPolicy, Maintenance)


def schema(kind: type) -> dict[str, Any]:
    """Return the JSON Schema of one kind's documents.

    Editors type plain scalars by YAML 1.2, gitboot by this schema. If gitboot reads text, a number is valid here too.
    """
    definitions: dict[str, Any] = {}
    found = _structure(kind, definitions)
    return {"$schema": _DIALECT, "title": kind.__name__, **found, "$defs": definitions}


def any_document() -> dict[str, Any]:
    """Return the JSON Schema of any document. It chooses by kind, so that an editor shows the errors of one kind."""
    definitions: dict[str, Any] = {}
    return {
        "$schema": _DIALECT,
        "title": "A gitboot document",
        "type": "object",
        "required": ["apiVersion", "kind"],
        "properties": {
            "apiVersion": {"const": "gitboot.dev/v1alpha1"},
            "kind": {"enum": [kind.__name__ for kind in KINDS], "description": "What the document says."},
        },
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind.__name__}}, "required": ["kind"]},
                "then": _structure(kind, definitions),
            }
            for kind in KINDS
        ],
        "$defs": definitions,
    }


def _structure(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a structure, and add the definitions that the schema refers to."""
    properties = {}
    for field in declared_fields(kind):
        found = {**_value(field.type, definitions), "description": field.description}
        if field.min_length:
            found["minItems" if found["type"] == "array" else "minProperties"] = field.min_length
        properties[field.alias] = found
    required = [field.alias for field in declared_fields(kind) if field.is_required]
    return {
        "type": "object",
        "description": kind.__doc__,
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def _value(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a value of a type, as a field declares it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return dict(arguments[1].schema)
    if origin in (Union, UnionType):
        if arguments[1] is NoneType:
            return {"anyOf": [_value(arguments[0], definitions), {"type": "null"}]}
        return {"oneOf": [_value(each, definitions) for each in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _value(arguments[0], definitions)}
    if origin is dict:
        keys, items = (_value(each, definitions) for each in arguments)
        names = {} if keys == {"type": "string"} else {"propertyNames": keys}
        return {"type": "object", "additionalProperties": items, **names}
    if origin is Literal:
        words = list(words_of(kind))
        return {"type": "string", **({"const": words[0]} if len(words) == 1 else {"enum": words})}
    if kind.__name__ not in definitions:
        if issubclass(kind, Enum):
            documented = {"description": kind.__doc__} if kind.__doc__ else {}
            definitions[kind.__name__] = {"type": "string", "enum": list(words_of(kind)), **documented}
        else:
            definitions[kind.__name__] = _structure(kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}


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
