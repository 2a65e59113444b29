"""JSON: encode values as canonical JSON, compute digests, format instants, and build decoders."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from threading import RLock
from typing import Any, Final, NamedTuple, NewType, TypeVar

import msgspec

# types that JSON supports; most values have one of these types
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})
_KEY: Final = "facts"
_UNLESS_DEFAULT: Final = "unless default"
_WRITE: Final = "write"
API_VERSION: Final = "gitboot.dev/v1alpha1"
OMITTED: Final[Mapping[str, Any]] = {_KEY: None}  # Metadata of a private field, which JSON omits.
# Metadata of a field that JSON omits if it has its default.
UNLESS_DEFAULT: Final[Mapping[str, Any]] = {_UNLESS_DEFAULT: True}
Digest = NewType("Digest", str)  # a SHA-256 as 64 lower-case hexadecimal digits
T = TypeVar("T")
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_lock: Final = RLock()  # held while msgspec inspects a type


def json_key(key: str) -> Mapping[str, Any]:
    """Return the metadata of a field whose JSON key differs from the field name."""
    return {_KEY: key}


def json_writer(write: Callable[[Any], Any], *, unless_default: bool = False) -> Mapping[str, Any]:
    """Return the metadata of a field whose value ``write`` converts to JSON.

    gitboot does not call ``write`` for text, numbers and null.
    """
    return {_WRITE: write, _UNLESS_DEFAULT: unless_default}


_WRITERS: Final[dict[type, Callable[[Any], Any]]] = {}  # encoders by type, for the types that were encoded so far


def to_json_value(value: Any) -> Any:
    """Convert a value to types that JSON supports. Raises TypeError if that is not possible."""
    kind = type(value)
    return value if kind in _PLAIN else (_WRITERS.get(kind) or _find_writer(kind))(value)


def _find_writer(kind: type) -> Callable[[Any], Any]:
    if issubclass(kind, Enum):
        write: Callable[[Any], Any] = attrgetter("_value_")
    elif issubclass(kind, str | int | float):
        write = _return_unchanged
    elif issubclass(kind, datetime):
        write = format_instant
    elif issubclass(kind, Mapping):
        write = _write_mapping
    elif (names := getattr(kind, "__struct_fields__", getattr(kind, "_fields", None))) is not None:
        write = _build_fields_writer([_Key(name, to_camel(name), MISSING, to_json_value) for name in names])
    elif issubclass(kind, list | tuple):
        write = _write_items
    elif is_dataclass(kind):
        write = _build_fields_writer(_list_keys(kind))
    else:
        raise TypeError(f"gitboot cannot write the type {kind.__name__} as JSON")
    _WRITERS[kind] = write
    return write


def _return_unchanged(value: Any) -> Any:
    return value


def _write_mapping(value: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(key): item if type(item) in _PLAIN else to_json_value(item) for key, item in value.items()}


def _write_items(value: Sequence[Any]) -> list[Any]:
    return [item if type(item) in _PLAIN else to_json_value(item) for item in value]


class _Key(NamedTuple):
    """How JSON contains one field of a class."""

    name: str
    key: str
    default: Any  # JSON omits the field if it has this value; `MISSING`: JSON always contains the field
    write: Callable[[Any], Any]


def _build_fields_writer(keys: Sequence[_Key]) -> Callable[[Any], dict[str, Any]]:
    def write_fields(value: Any) -> dict[str, Any]:
        items = {}
        for name, key, default, write in keys:
            item = getattr(value, name)
            if default is MISSING or item != default:
                items[key] = item if type(item) in _PLAIN else write(item)
        return items

    return write_fields


def to_camel(name: str) -> str:
    """Return the camelCase JSON key for a field name."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def _list_keys(kind: type) -> list[_Key]:
    keys = []
    for field in fields(kind):
        default = field.default if field.default_factory is MISSING else field.default_factory()
        omitted_value = default if field.metadata.get(_UNLESS_DEFAULT) else MISSING
        key = field.metadata.get(_KEY, to_camel(field.name))
        if key is not None:
            keys.append(_Key(field.name, key, omitted_value, field.metadata.get(_WRITE, to_json_value)))
    return keys


def format_instant(at: datetime) -> str:
    """Format an instant as RFC 3339 in UTC, with fractions of a second only if they are not 0."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def encode_canonical(value: object) -> bytes:
    """Encode a value as RFC 8785 JSON. The value must not contain floats."""
    return _ENCODER.encode(value)


def encode_indented(value: object) -> bytes:
    """Encode a value as indented JSON with sorted keys, for people to read."""
    return msgspec.json.format(encode_canonical(value), indent=2)


def compute_digest(value: object) -> Digest:
    """Return the SHA-256 of a value's canonical JSON."""
    return Digest(sha256(encode_canonical(value)).hexdigest())


# Decoders


def build_decoder(kind: Any) -> Callable[[bytes], Any]:
    """Return a function that decodes msgpack data into a value of this type.

    The first call of the returned function takes longer, because this call inspects the type.
    """
    return _decode_lazily(lambda: msgspec.msgpack.Decoder(kind, dec_hook=_decode_path).decode)


def _decode_path(kind: type, text: object) -> Path:
    """Decode a path, which `gitboot.child_processes.encode` writes as text."""
    if kind is not Path or not isinstance(text, str):
        raise NotImplementedError(f"a message cannot contain a value of type {kind.__name__}")
    return Path(text)


def parse_json(data: bytes | str) -> Any:
    """Parse JSON. Raises ValueError, also if the values are nested too deeply."""
    try:
        return json.loads(data)
    except RecursionError as error:
        raise ValueError("the values are nested too deeply") from error


def build_json_decoder(kind: type[T]) -> Callable[[bytes | str], T]:
    """Return a function that decodes JSON into a value of this type.

    The first call of the returned function takes longer, because this call inspects the type.
    """
    return _decode_lazily(lambda: msgspec.json.Decoder(kind).decode)


def convert(value: object, kind: type[T]) -> T:
    """Convert a JSON value to a type. Raises `msgspec.ValidationError` if the value does not match the type."""
    with _lock:
        return msgspec.convert(value, kind)


def _decode_lazily(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    @cache
    def build_once() -> Callable[..., Any]:
        with _lock:
            return make()

    return lambda data: build_once()(data)


def format_document(**items: Any) -> str:
    """Format the output of a command as indented JSON with a version and sorted keys."""

    return json.dumps({"apiVersion": API_VERSION, **to_json_value(items)}, indent=2, sort_keys=True)
