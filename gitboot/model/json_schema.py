"""JSON Schema: build the schemas with which editors check documents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from msgspec import Struct

from gitboot.model.boot_image import BootImage, ImageStream
from gitboot.model.boot_policy import BootPolicy, BootProfile, Maintenance
from gitboot.model.fields import DeclaredField, list_fields, map_words
from gitboot.model.fleet import Fleet
from gitboot.model.image_source import ImageSource
from gitboot.model.server import Server

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
KINDS: Final = (Fleet, Server, BootImage, ImageStream, ImageSource, BootProfile, BootPolicy, Maintenance)


def build_schema(kind: type) -> dict[str, Any]:
    """Return the JSON Schema for documents of a kind.

    Editors determine the type of a plain scalar by the rules of YAML 1.2, but gitboot determines the type from the
    field. Therefore, the schema also allows numbers in fields that gitboot reads as text.
    """
    definitions: dict[str, Any] = {}
    schema = build_structure_schema(kind, definitions)
    return {"$schema": _DIALECT, "title": kind.__name__, **schema, "$defs": definitions}


def build_any_document_schema() -> dict[str, Any]:
    """Return the JSON Schema for documents of any kind.

    The schema first checks the kind, so that errors refer only to that kind.
    """
    definitions: dict[str, Any] = {}
    return {
        "$schema": _DIALECT,
        "title": "A gitboot document",
        "type": "object",
        "required": ["apiVersion", "kind"],
        "properties": {
            "apiVersion": {"const": "gitboot.dev/v1alpha1"},
            "kind": {"enum": [kind.__name__ for kind in KINDS], "description": "The kind of the document."},
        },
        "allOf": [
            {
                "if": {"properties": {"kind": {"const": kind.__name__}}, "required": ["kind"]},
                "then": build_structure_schema(kind, definitions),
            }
            for kind in KINDS
        ],
        "$defs": definitions,
    }


def build_structure_schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of a structure. Extend ``definitions`` with the definitions that the schema refers to."""
    properties = {}
    for field in list_fields(kind):
        schema = _build_value_schema(field.type, definitions)
        definition = definitions.get(schema.get("$ref", "").rpartition("/")[2], {})
        if field.description and field.description != definition.get("description"):
            schema["description"] = field.description
        if field.min_length:
            schema["minItems" if schema["type"] == "array" else "minProperties"] = field.min_length
        properties[field.alias] = schema
    required = [field.alias for field in list_fields(kind) if field.is_required]
    return {
        "type": "object",
        "description": kind.__doc__,
        "properties": properties,
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


_PLAIN: Final[Mapping[Any, Mapping[str, str]]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
    Any: {},
}


def _build_value_schema(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return dict(_PLAIN[kind])
    if origin is Annotated:
        return dict(arguments[1].schema)
    if origin in (Union, UnionType):
        # a value cannot be both a word and a structure
        keyword = "oneOf" if get_origin(arguments[0]) is Literal else "anyOf"
        return {keyword: [_build_value_schema(argument, definitions) for argument in arguments]}
    if origin is tuple:
        return {"type": "array", "items": _build_value_schema(arguments[0], definitions)}
    if origin is dict:
        keys, items = (_build_value_schema(each, definitions) for each in arguments)
        names = {} if keys == {"type": "string"} else {"propertyNames": keys}
        return {"type": "object", "additionalProperties": items, **names}
    if origin is Literal:
        words = list(map_words(kind))
        return {"type": "string", **({"const": words[0]} if len(words) == 1 else {"enum": words})}
    if kind.__name__ not in definitions:
        if issubclass(kind, Enum):
            documented = {"description": kind.__doc__} if kind.__doc__ else {}
            definitions[kind.__name__] = {"type": "string", "enum": list(map_words(kind)), **documented}
        else:
            definitions[kind.__name__] = build_structure_schema(kind, definitions)
    return {"$ref": f"#/$defs/{kind.__name__}"}


class SchemaField(Struct, frozen=True, kw_only=True):
    """A field of one kind of document, in the form that the documentation shows."""

    path: str  # such as spec.interfaces[].mac; [] is an item of a list, and {} is a value of a mapping
    type: str  # for an enumeration, the allowed words in backquotes
    is_required: bool
    description: str


def list_schema_fields(kind: type) -> Iterator[SchemaField]:
    """Yield the field `spec` of a kind and all fields below `spec`. Each field precedes the fields that it contains."""
    (spec,) = (field for field in list_fields(kind) if field.alias == "spec")
    return _list_field(spec, "spec")


def _list_field(field: DeclaredField, path: str) -> Iterator[SchemaField]:
    yield SchemaField(
        path=path, type=_describe_type(field.type), is_required=field.is_required, description=field.description
    )
    yield from _list_nested_fields(field.type, path)


def _list_nested_fields(kind: Any, path: str) -> Iterator[SchemaField]:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        yield from _list_nested_fields(arguments[0], f"{path}[]")
    elif origin is dict:
        yield from _list_nested_fields(arguments[1], f"{path}{{}}")
    elif origin in (Union, UnionType):
        for each in arguments:
            yield from _list_nested_fields(each, path)
    elif hasattr(kind, "__dataclass_fields__"):
        for field in list_fields(kind):
            yield from _list_field(field, f"{path}.{field.alias}")


def _describe_type(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    schema = arguments[1].schema if origin is Annotated else {}
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_describe_type(each) for each in arguments if each is not NoneType))
    if origin is tuple or origin is dict:
        return "[]" if origin is tuple else "{}"
    if hasattr(kind, "__dataclass_fields__"):
        return "mapping"
    if origin is not Annotated or "enum" in schema:
        return " · ".join(f"`{word}`" for word in schema.get("enum") or map_words(kind))
    return "text" if isinstance(schema["type"], list) or schema["type"] == "string" else str(schema["type"])
