"""Fields: declare, read and write a field of a document."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import Enum
from functools import cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from gitboot.jsonio import Digest, format_instant
from gitboot.model.scalars import (
    INSTANT,
    LABEL_NAME,
    LOCAL_DISK,
    NAME,
    SHA256,
    ArtifactUrl,
    MacAddress,
    Name,
    SystemUuid,
    nonempty,
    parse_artifact_url,
    parse_base_url,
    parse_bmc_address,
    parse_boolean,
    parse_count_or_percent,
    parse_digest,
    parse_file_path,
    parse_fingerprint,
    parse_instant,
    parse_integer,
    parse_interface_address,
    parse_kernel_argument,
    parse_label_key,
    parse_label_value,
    parse_ledger,
    parse_local_disk,
    parse_mac,
    parse_name,
    parse_network,
    parse_percent,
    parse_positive,
    parse_secret_path,
    parse_signed,
    parse_uuid,
    parse_variable,
    parse_variable_name,
    text,
)

# What editors read: they type plain scalars by YAML 1.2, where 3815.2 is a number and gitboot reads text.
_ANY_SCALAR = {"type": ["string", "number", "boolean"]}
_TEXT = {"type": ["string", "number"], "minLength": 1}


def _matching(pattern: re.Pattern[str], *types: str) -> dict[str, Any]:
    return {"type": [*types] if len(types) > 1 else types[0], "pattern": f"^(?:{pattern.pattern})$"}


class Scalar:
    """In `Annotated`: what a single value is parsed by, and its JSON Schema unless its type says all of it.

    What is ``common`` many documents have alike: it is parsed once, and kept once.
    """

    def __init__(self, parse: Read, schema: Mapping[str, Any] | None = None, *, common: bool = False) -> None:
        self.parse, self.schema = parse, schema
        self._known: dict[str, Any] | None = {} if common else None

    @property
    def reader(self) -> Read:
        return self.parse if self._known is None else self._read

    def _read(self, value: Any) -> Any:
        known = self._known
        if known is None or type(value) is not str:
            return self.parse(value)
        if (found := known.get(value)) is None:
            found = self.parse(value)
            if len(known) < _MOST_COMMON and len(value) <= _SHORT:
                known[value] = found
        return found

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core.core_schema import no_info_before_validator_function

        return no_info_before_validator_function(self.parse, handler(source))

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> Any:
        return dict(self.schema) if self.schema is not None else handler(core_schema)


Read = Callable[[Any], Any]
_MOST_COMMON: Final = 4096
_SHORT: Final = 64  # characters
Text = Annotated[str, Scalar(nonempty, _TEXT, common=True)]
NameField = Annotated[Name, Scalar(parse_name, {**_matching(NAME, "string", "number"), "maxLength": 253}, common=True)]
Integer = Annotated[int, Scalar(parse_integer, {"type": "integer", "minimum": 0})]
Positive = Annotated[int, Scalar(parse_positive, {"type": "integer", "minimum": 1})]
SignedInteger = Annotated[int, Scalar(parse_signed, {"type": "integer"})]
Percent = Annotated[int, Scalar(parse_percent, {"type": "integer", "minimum": 0, "maximum": 100})]
Boolean = Annotated[bool, Scalar(parse_boolean, {"type": "boolean"}, common=True)]
Mac = Annotated[
    MacAddress,
    Scalar(
        parse_mac,
        {
            "type": ["string", "number"],
            "pattern": r"^([0-9A-Fa-f]{2}([:-]?)(?:[0-9A-Fa-f]{2}\2){4}[0-9A-Fa-f]{2}|"
            r"([0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4})$",
        },
    ),
]
Uuid = Annotated[
    SystemUuid,
    Scalar(parse_uuid, {"type": "string", "pattern": "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"}),
]
Ledger = Annotated[
    str, Scalar(parse_ledger, {"type": "string", "pattern": "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"})
]
InterfaceAddress = Annotated[str, Scalar(parse_interface_address, {"type": "string"})]
Network = Annotated[str, Scalar(parse_network, {"type": "string"})]
Sha256 = Annotated[Digest, Scalar(parse_digest, _matching(SHA256, "string"))]
Fingerprint = Annotated[
    Digest, Scalar(parse_fingerprint, {"type": "string", "pattern": "^[0-9A-Fa-f]{2}(:?[0-9A-Fa-f]{2}){31}$"})
]
Url = Annotated[
    ArtifactUrl, Scalar(parse_artifact_url, {"type": "string", "pattern": "^(assets:|https?://|oci://)[!-~]+$"})
]
BaseUrl = Annotated[str, Scalar(parse_base_url, {"type": "string", "pattern": r"^https?://[^?#\s]+$"})]
BmcAddress = Annotated[str, Scalar(parse_bmc_address, {"type": "string", "pattern": r"^(https?|ipmi)://[^?#\s]+$"})]
Instant = Annotated[datetime, Scalar(parse_instant, _matching(INSTANT, "string"))]
CountOrPercent = Annotated[
    str, Scalar(parse_count_or_percent, {"type": ["string", "integer"], "pattern": "^[1-9][0-9]*%?$", "minimum": 1})
]
FilePath = Annotated[
    str, Scalar(parse_file_path, {"type": ["string", "number"], "pattern": r"^[^/\\][^\\]*$"}, common=True)
]
SecretPath = Annotated[str, Scalar(parse_secret_path, {"type": "string", "pattern": r"^[^/\\][^\\]*\.age$"})]
LocalDisk = Annotated[str, Scalar(parse_local_disk, _matching(LOCAL_DISK, "string"))]
KernelArgument = Annotated[str, Scalar(parse_kernel_argument, _TEXT, common=True)]
VariableName = Annotated[str, Scalar(parse_variable_name, common=True)]
Variable = Annotated[str | bool, Scalar(parse_variable, _ANY_SCALAR)]
LabelKey = Annotated[str, Scalar(parse_label_key, common=True)]
LabelValue = Annotated[
    str,
    Scalar(
        parse_label_value, _matching(re.compile(f"({LABEL_NAME.pattern})?"), "string", "number", "boolean"), common=True
    ),
]
AnyText = Annotated[str, Scalar(text, _ANY_SCALAR)]
T = TypeVar("T")
Write = Callable[[Any], Any]


class Unfit(ValueError):
    """A value that a structure does not take; what is wrong with it pydantic says."""


def to_camel(name: str) -> str:
    """A field's name as YAML has it."""
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))


def Field(  # noqa: N802 - it stands where a dataclass has its field()
    *,
    description: str,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
    alias: str | None = None,
    min_length: int | None = None,
) -> Any:
    """A field of a structure; one without a default is required."""
    more = {"description": description, "alias": alias, "min_length": min_length}
    metadata = {key: value for key, value in more.items() if value is not None}
    return dataclasses.field(default=default, default_factory=default_factory, metadata=metadata)


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def structure(kind: type[T]) -> type[T]:
    """A class as a structure."""
    return dataclasses.dataclass(frozen=True, kw_only=True, slots=True)(kind)


def check(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """A method that raises `Malformed` where fields of a structure do not go together."""
    _CHECKS.add(method)
    return method


_CHECKS: Final[set[Callable[[Any], None]]] = set()


class WordOr:
    """In `Annotated`: one of some words, or else a structure, which pydantic's paths call by a tag."""

    def __init__(self, tag: str) -> None:
        self._tag = tag

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import Discriminator, Tag

        words, kind = get_args(source)
        tagged: Any = Union.__getitem__((Annotated[words, Tag(WORD)], Annotated[kind, Tag(self._tag)]))
        return handler.generate_schema(Annotated[tagged, Discriminator(self._tag_of)])

    def _tag_of(self, value: Any) -> str:
        return WORD if isinstance(value, str) else self._tag


WORD: Final = "(word)"


class Struct:
    """The base of every structure: a field that is left empty is a field that is absent."""

    __slots__ = ()
    __pydantic_config__: ClassVar[Any] = {"extra": "forbid", "alias_generator": to_camel}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        schema = handler.resolve_ref_schema(handler(source))
        ref = schema.pop("ref")  # by which others know it: with all that is asked of it
        for method in _checks_of(cls):
            schema = core_schema.no_info_after_validator_function(_passing(method), schema)
        return core_schema.no_info_before_validator_function(_present, schema, ref=ref)

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> Any:
        schema = handler(core_schema)
        handler.resolve_ref_schema(schema)["description"] = cls.__doc__
        return schema


def _present(value: Any) -> Any:
    if isinstance(value, dict) and None in value.values():
        return {key: item for key, item in value.items() if item is not None}
    return value


def _passing(method: Callable[[Any], None]) -> Read:
    def passing(made: Any) -> Any:
        method(made)
        return made

    return passing


def _checks_of(kind: type) -> tuple[Callable[[Any], None], ...]:
    return tuple(each for each in vars(kind).values() if callable(each) and each in _CHECKS)


# Reading


def read(kind: type[T], value: Any) -> T:
    """A document, or a part of one, as what it says; raise `ValueError` where anything is wrong with it."""
    resource: Any = kind
    made: T = _reader(resource)(value)
    return made


@cache
def _reader(hint: Any) -> Read:
    """What reads a value of some type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _annotated(*arguments)
    if origin in (Union, UnionType):
        (one,) = (each for each in arguments if each is not type(None))
        return _reader(one)
    if origin is Literal:
        return _word({each.value if isinstance(each, Enum) else each: each for each in arguments})
    if origin is tuple:
        return _list(_reader(arguments[0]))
    if origin is dict:
        return _mapping(*map(_reader, arguments))
    return _word({each.value: each for each in hint}) if issubclass(hint, Enum) else _structure(hint)


def _annotated(hint: Any, mark: Any) -> Read:
    if isinstance(mark, Scalar):
        return mark.reader
    word, structure = map(_reader, get_args(hint))
    return lambda value: word(value) if isinstance(value, str) else structure(value)


def _word(words: Mapping[str, Any]) -> Read:
    def read_word(value: Any) -> Any:
        if not isinstance(value, str) or value not in words:
            raise Unfit
        return words[value]

    return read_word


def _list(read_item: Read) -> Read:
    def read_list(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise Unfit
        return tuple([read_item(item) for item in value])

    return read_list


def _mapping(read_key: Read, read_value: Read) -> Read:
    def read_mapping(value: Any) -> dict[Any, Any]:
        if not isinstance(value, dict):
            raise Unfit
        return {read_key(key): read_value(item) for key, item in value.items()}

    return read_mapping


def _not_short(read_items: Read, least: int) -> Read:
    def read_enough(value: Any) -> Any:
        items = read_items(value)
        if len(items) < least:
            raise Unfit
        return items

    return read_enough


def _structure(kind: Any) -> Read:
    hints, checks = get_type_hints(kind, include_extras=True), _checks_of(kind)
    takes: dict[str, tuple[str, Read]] = {}
    required: set[str] = set()
    for field in dataclasses.fields(kind):
        read_field, least = _reader(hints[field.name]), field.metadata.get("min_length")
        takes[alias_of(field)] = field.name, read_field if least is None else _not_short(read_field, least)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            required.add(field.name)

    def read_structure(value: Any) -> Any:
        if not isinstance(value, dict):
            raise Unfit
        made = {}
        for key, item in value.items():
            if item is not None:
                if key not in takes:
                    raise Unfit
                name, read_field = takes[key]
                made[name] = read_field(item)
        if not required <= made.keys():
            raise Unfit
        found = kind(**made)
        for method in checks:
            method(found)
        return found

    return read_structure


def alias_of(field: dataclasses.Field[Any]) -> str:
    """What YAML calls a field."""
    alias: str = field.metadata.get("alias") or to_camel(field.name)
    return alias


# Writing


def written(value: Struct) -> dict[str, Any]:
    """A structure as YAML would have it: text, numbers, booleans, lists and mappings; without what is absent."""
    kind: Any = type(value)
    made: dict[str, Any] = _structure_writer(kind)(value)
    return made


def _writer(hint: Any) -> Write | None:
    """What writes a value of some type; None: it is written as it is."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated and isinstance(arguments[1], WordOr):
        write_structure = _structure_writer(get_args(arguments[0])[1])
        return lambda value: value if isinstance(value, str) else write_structure(value)
    if origin is Annotated:
        return format_instant if arguments[0] is datetime else None
    if origin in (Union, UnionType):
        return _writer(arguments[0])
    if origin is Literal:
        return _value if isinstance(arguments[0], Enum) else None
    if origin is tuple:
        write_one = _writer(arguments[0])
        return list if write_one is None else lambda items: list(map(write_one, items))
    if origin is dict:
        write_key, write_item = (_writer(each) or _as_it_is for each in arguments)
        return lambda items: {write_key(key): write_item(item) for key, item in items.items()}
    return _value if issubclass(hint, Enum) else _structure_writer(hint)


def _value(word: Enum) -> Any:
    return word.value


def _as_it_is(value: Any) -> Any:
    return value


@cache
def _structure_writer(kind: Any) -> Write:
    hints = get_type_hints(kind, include_extras=True)
    fields = [(field.name, alias_of(field), _writer(hints[field.name])) for field in dataclasses.fields(kind)]

    def write_structure(value: Any) -> dict[str, Any]:
        made = {}
        for name, alias, write in fields:
            if (item := getattr(value, name)) is not None:
                made[alias] = item if write is None else write(item)
        return made

    return write_structure


@structure
class Metadata(Struct):
    """A resource's name, and what selectors and people find it by."""

    name: NameField = Field(description="The resource's name, unique among its kind.")
    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="What selectors match, in Kubernetes' syntax. Default: none."
    )
    annotations: dict[LabelKey, AnyText] = Field(
        default_factory=dict,
        description="Notes for people and tools; nothing selects by them. Default: none.",
    )
