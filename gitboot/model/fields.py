"""Document fields: declare, read and write the fields of documents.

The module also contains selectors and metadata, which all kinds of documents use.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from enum import Enum, StrEnum
from functools import cache, lru_cache, partial
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from gitboot.jsonio import Digest, format_instant, to_camel
from gitboot.model.scalars import (
    INSTANT,
    LABEL_VALUE,
    LOCAL_DISK,
    NAME,
    SHA256,
    ArtifactUrl,
    MacAddress,
    Malformed,
    Name,
    Path,
    Step,
    SystemUuid,
    parse_artifact_url,
    parse_base_url,
    parse_bmc_address,
    parse_boolean,
    parse_count_or_percent,
    parse_digest,
    parse_duration_text,
    parse_file_path,
    parse_fingerprint,
    parse_hook_url,
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
    parse_nonempty,
    parse_percent,
    parse_positive,
    parse_secret_path,
    parse_signed,
    parse_uuid,
    parse_variable,
    parse_variable_name,
    quote_value,
    text,
)
from gitboot.problems import Code
from gitboot.text import find_similar, format_suggestion, printable

# JSON Schema types. Editors use YAML 1.2 for plain scalars, so 3815.2 is a number for them. gitboot reads it as text.
_ANY_SCALAR = {"type": ["string", "number", "boolean"]}
_TEXT = {"type": ["string", "number"], "minLength": 1}


def _pattern_schema(pattern: re.Pattern[str], *types: str) -> dict[str, Any]:
    return {"type": [*types] if len(types) > 1 else types[0], "pattern": f"^(?:{pattern.pattern})$"}


class Scalar:
    """The parser for a single value, and the JSON Schema of the values that it accepts.

    Use a `Scalar` in `Annotated`. Set ``cached`` if the same values occur in many documents. gitboot then parses each
    distinct value only once.
    """

    def __init__(self, parse: Reader, schema: Mapping[str, Any], *, cached: bool = False) -> None:
        self.parse, self.schema = parse, schema
        self.read = _cache_parser(parse) if cached else parse


def _cache_parser(parse: Reader) -> Reader:
    parse_once = lru_cache(maxsize=4096)(parse)

    def read_common(value: Any) -> Any:
        return parse_once(value) if isinstance(value, str) and len(value) <= _MAX_CACHED_LENGTH else parse(value)

    return read_common


Reader = Callable[[Any], Any]
_MAX_CACHED_LENGTH: Final = 64  # characters
Text = Annotated[str, Scalar(parse_nonempty, _TEXT, cached=True)]
NameField = Annotated[
    Name, Scalar(parse_name, {**_pattern_schema(NAME, "string", "number"), "maxLength": 253}, cached=True)
]
Integer = Annotated[int, Scalar(parse_integer, {"type": "integer", "minimum": 0})]
Positive = Annotated[int, Scalar(parse_positive, {"type": "integer", "minimum": 1})]
SignedInteger = Annotated[int, Scalar(parse_signed, {"type": "integer"})]
Percent = Annotated[int, Scalar(parse_percent, {"type": "integer", "minimum": 0, "maximum": 100})]
Boolean = Annotated[bool, Scalar(parse_boolean, {"type": "boolean"}, cached=True)]
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
Sha256 = Annotated[Digest, Scalar(parse_digest, _pattern_schema(SHA256, "string"))]
Fingerprint = Annotated[
    Digest, Scalar(parse_fingerprint, {"type": "string", "pattern": "^[0-9A-Fa-f]{2}(:?[0-9A-Fa-f]{2}){31}$"})
]
Url = Annotated[
    ArtifactUrl, Scalar(parse_artifact_url, {"type": "string", "pattern": "^(assets:|https?://|oci://)[!-~]+$"})
]
BaseUrl = Annotated[str, Scalar(parse_base_url, {"type": "string", "pattern": r"^https?://[^?#\s]+$"})]
HookUrl = Annotated[str, Scalar(parse_hook_url, {"type": "string", "pattern": r"^https?://[^#\s]+$"})]
BmcAddress = Annotated[str, Scalar(parse_bmc_address, {"type": "string", "pattern": r"^(https?|ipmi)://[^?#\s]+$"})]
Instant = Annotated[datetime, Scalar(parse_instant, _pattern_schema(INSTANT, "string"))]
Duration = Annotated[
    str, Scalar(parse_duration_text, {"type": "string", "pattern": r"^([0-9]+[wdhms] ?)+$"})
]  # `gitboot.text.parse_duration` returns the timedelta
CountOrPercent = Annotated[
    str, Scalar(parse_count_or_percent, {"type": ["string", "integer"], "pattern": "^[1-9][0-9]*%?$", "minimum": 1})
]
FilePath = Annotated[
    str, Scalar(parse_file_path, {"type": ["string", "number"], "pattern": r"^[^/\\][^\\]*$"}, cached=True)
]
SecretPath = Annotated[str, Scalar(parse_secret_path, {"type": "string", "pattern": r"^[^/\\][^\\]*\.age$"})]
LocalDisk = Annotated[str, Scalar(parse_local_disk, _pattern_schema(LOCAL_DISK, "string"))]
KernelArgument = Annotated[str, Scalar(parse_kernel_argument, _TEXT, cached=True)]
VariableName = Annotated[str, Scalar(parse_variable_name, {"type": "string"}, cached=True)]
Variable = Annotated[str | bool, Scalar(parse_variable, _ANY_SCALAR)]
LabelKey = Annotated[str, Scalar(parse_label_key, {"type": "string"}, cached=True)]
LabelValue = Annotated[
    str,
    Scalar(parse_label_value, _pattern_schema(LABEL_VALUE, "string", "number", "boolean"), cached=True),
]
AnyText = Annotated[str, Scalar(text, _ANY_SCALAR)]
T = TypeVar("T")


def Field(  # noqa: N802 - used like a dataclass field()
    *,
    description: str,
    default: Any = dataclasses.MISSING,
    default_factory: Any = dataclasses.MISSING,
    alias: str | None = None,
    min_length: int = 0,
) -> Any:
    """Declare a field of a structure. A field without a default value is required."""
    return dataclasses.field(
        default=default,
        default_factory=default_factory,
        metadata={"description": description, "alias": alias, "min_length": min_length},
    )


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field,))
def structure(kind: type[T]) -> type[T]:
    """Declare a class as a structure.

    A structure represents a mapping in a document, and has a value for each field.
    """
    return dataclasses.dataclass(frozen=True, kw_only=True, slots=True)(kind)


_CHECKS: Final[set[Callable[[Any], None]]] = set()


def check(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """Mark a method as a structure's check.

    The method raises `Malformed` if the structure's fields contradict each other.
    """
    _CHECKS.add(method)
    return method


class DeclaredField(NamedTuple):
    """The declaration of one field of a structure."""

    name: str
    alias: str  # the name in YAML
    type: Any
    description: str
    min_length: int  # the minimum length of a list or a mapping
    is_required: bool


@cache
def list_fields(kind: Any) -> tuple[DeclaredField, ...]:
    """Return the fields of a structure in the order in which they are declared."""
    types = get_type_hints(kind, include_extras=True)
    return tuple(
        DeclaredField(
            name=field.name,
            alias=field.metadata.get("alias") or to_camel(field.name),
            type=types[field.name],
            description=field.metadata.get("description", ""),
            min_length=field.metadata.get("min_length", 0),
            is_required=field.default is field.default_factory is dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    )


def map_words(kind: Any) -> dict[str, Any]:
    """Return the allowed words of an enumeration or a Literal, each with its value."""
    return {each.value if isinstance(each, Enum) else each: each for each in get_args(kind) or kind}


# Reading


class InvalidField(Malformed):
    """Raised if a field has a value that the field's declaration does not allow.

    The message may begin with the value's path.
    """

    def __init__(
        self,
        code: Code,
        message: str,
        hint: str = "",
        at: Path = (),
        *,
        # Computes a hint for which gitboot needs much time. gitboot calls this only for problems that it shows.
        find_hint: Callable[[], str] | None = None,
        follows_place: bool = False,  # whether `describe` puts the path of the value before the message
    ) -> None:
        super().__init__(code, message, hint, at)
        self._find_hint, self._follows_place = find_hint, follows_place

    def describe(self, place: str) -> tuple[str, str]:
        message = f"{place} {self.message}" if self._follows_place else self.message
        return message, self._find_hint() if self._find_hint is not None else self.hint


class Fault(NamedTuple):
    """A problem in a document."""

    path: Path  # the path of the value in the document
    error: Malformed
    is_key: bool = False  # whether the key is wrong, and not the value


class InvalidDocument(ValueError):
    """Raised if a document, or a part of a document, is invalid. The exception contains all faults."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(str(faults[0].error))
        self.faults = faults


def read(kind: type[T], value: Any) -> T:
    """Convert a document, or a part of a document, to a structure.

    Raises `InvalidDocument`, which contains all faults.
    """
    declared: Any = kind
    try:
        result: T = _build_reader(declared)(value)
    except Malformed as error:
        raise InvalidDocument([Fault((), error)]) from None
    return result


@cache
def _build_reader(kind: Any) -> Reader:
    """Return a function that reads a value of a type, and that raises `Malformed` or `InvalidDocument`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        read_scalar: Reader = arguments[1].read
        return read_scalar
    if origin in (Union, UnionType):
        return _build_reader(arguments[0]) if arguments[1] is NoneType else _build_word_or_structure_reader(*arguments)
    if origin is tuple:
        return _build_list_reader(arguments[0])
    if origin is dict:
        return _build_mapping_reader(*arguments)
    return _build_word_reader(kind) if origin is Literal or issubclass(kind, Enum) else _build_structure_reader(kind)


def _build_word_reader(kind: Any, fields: Iterable[str] = ()) -> Reader:
    words = map_words(kind)
    mapping = f", or a mapping with {', '.join(sorted(fields))}" if fields else ""
    expected = f"one of {', '.join(words)}{mapping}"

    def read_word(value: Any) -> Any:
        if not isinstance(value, str) or value not in words:
            raise InvalidField(
                Code.CHOICE,
                f"expected {expected}, found {quote_value(value)}",
                find_hint=partial(format_suggestion, value, words, "use one of these values"),
            )
        return words[value]

    return read_word


def _build_word_or_structure_reader(words: Any, kind: Any) -> Reader:
    read_word = _build_word_reader(words, [field.alias for field in list_fields(kind)])
    read_structure = _build_reader(kind)
    return lambda value: read_word(value) if isinstance(value, str) else read_structure(value)


def _build_list_reader(kind: Any) -> Reader:
    read_item = _build_reader(kind)

    def read_list(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            hint = f"write the list as [{printable(value)}]" if isinstance(value, str) and len(value) <= 60 else ""
            raise Malformed(Code.SHAPE, f"expected a list, found {quote_value(value)}", hint)
        items: list[Any] = []
        faults: list[Fault] = []
        for index, item in enumerate(value):
            try:
                items.append(read_item(item))
            except (Malformed, InvalidDocument) as error:
                faults += _locate_faults(index, error)
        if faults:
            raise InvalidDocument(faults)
        return tuple(items)

    return read_list


def _build_mapping_reader(key_kind: Any, kind: Any) -> Reader:
    read_key, read_item = _build_reader(key_kind), _build_reader(kind)

    def read_mapping(value: Any) -> dict[Any, Any]:
        entries: dict[Any, Any] = {}
        faults: list[Fault] = []
        for key, item in _require_mapping(value).items():
            name = None
            try:
                name = read_key(key)
            except Malformed as error:
                faults.append(Fault((key,), error, is_key=True))
            try:
                entries[name] = read_item(item)
            except (Malformed, InvalidDocument) as error:
                faults += _locate_faults(key, error)
        if faults:
            raise InvalidDocument(faults)
        return entries

    return read_mapping


_MAX_MISSPELT: Final = 20  # unknown fields that gitboot compares with the missing fields


def _build_structure_reader(kind: Any) -> Reader:
    fields = {field.alias: (field.name, _build_field_reader(field)) for field in list_fields(kind)}
    required = {field.name: field.alias for field in list_fields(kind) if field.is_required}
    checks = [each for each in vars(kind).values() if callable(each) and each in _CHECKS]

    def read_structure(value: Any) -> Any:
        arguments: dict[str, Any] = {}
        faults: list[Fault] = []
        for key, item in _require_mapping(value).items():
            if item is None:
                continue  # gitboot treats a field without a value as absent
            if key not in fields:
                faults.append(Fault((), _make_unknown_field(key, fields), is_key=True))
                continue
            name, read_field = fields[key]
            try:
                arguments[name] = read_field(item)
            except (Malformed, InvalidDocument) as error:
                faults += _locate_faults(key, error)
                arguments[name] = None
        if not required.keys() <= arguments.keys():
            unknown = [key for key, item in value.items() if key not in fields and item is not None]
            misspelt = {find_similar(key, fields) for key in unknown[:_MAX_MISSPELT]}
            faults += [
                Fault((), _make_missing_field(alias), is_key=True)
                for name, alias in required.items()
                if name not in arguments and alias not in misspelt
            ]
        if faults:
            raise InvalidDocument(faults)
        found = kind(**arguments)
        for run_check in checks:
            run_check(found)
        return found

    return read_structure


def _build_field_reader(field: DeclaredField) -> Reader:
    read_value = _build_reader(field.type)
    if not field.min_length:
        return read_value

    def read_items(value: Any) -> Any:
        items = read_value(value)
        if len(items) < field.min_length:
            raise Malformed(Code.EMPTY, "expected at least one item", "add an item")
        return items

    return read_items


def _make_unknown_field(name: str, fields: Iterable[str]) -> InvalidField:
    return InvalidField(
        Code.UNKNOWN_FIELD,
        f"has no field {quote_value(name)}",
        at=(name,),
        find_hint=partial(format_suggestion, name, fields, f"use one of {', '.join(sorted(fields))}"),
        follows_place=True,
    )


def _make_missing_field(name: str) -> InvalidField:
    return InvalidField(Code.MISSING_FIELD, f"needs {name}", f"add {name}", follows_place=True)


def _require_mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        hint = "write the mapping as {key: value}" if isinstance(value, str) else ""
        raise Malformed(Code.SHAPE, f"expected a mapping, found {quote_value(value)}", hint)
    return value


def _locate_faults(step: Step, error: Malformed | InvalidDocument) -> list[Fault]:
    if isinstance(error, Malformed):
        return [Fault((step,), error)]
    return [fault._replace(path=(step, *fault.path)) for fault in error.faults]


# Writing


_PLAIN: Final = frozenset({str, int, bool})


def to_yaml_value(value: Any) -> Any:
    """Convert a structure, or a value in a structure, to YAML scalars, lists and mappings. Omit nulls."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple:
        return [to_yaml_value(item) for item in value]
    if kind is dict:
        return {to_yaml_value(key): to_yaml_value(item) for key, item in value.items()}
    if kind is datetime:
        return format_instant(value)
    if isinstance(value, Enum):
        return value.value
    items = ((field.alias, getattr(value, field.name)) for field in list_fields(kind))
    return {alias: to_yaml_value(item) for alias, item in items if item is not None}


@structure
class Metadata:
    """The name, labels and annotations of a resource."""

    name: NameField = Field(description="The name of the resource, unique for its kind.")
    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="Labels for selectors, in the syntax of Kubernetes. Default: none."
    )
    annotations: dict[LabelKey, AnyText] = Field(
        default_factory=dict,
        description="Notes for people and tools. Selectors ignore them. Default: none.",
    )


@structure
class Document:
    """The fields of documents of all kinds. Each kind adds its spec."""

    api_version: Literal["gitboot.dev/v1alpha1"] = Field(description="The version of this format.")
    kind: str = Field(description="The kind of this document.")
    metadata: Metadata = Field(description="Name, labels, annotations.")


# Selectors


class Operator(StrEnum):
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


@structure
class MatchExpression:
    """A condition on a label (Kubernetes: LabelSelectorRequirement)."""

    key: LabelKey = Field(description="The key of the label.")
    operator: Operator = Field(description="In and NotIn need values, Exists and DoesNotExist allow no values.")
    values: tuple[LabelValue, ...] = Field(
        default=(),
        description="The values for In and NotIn. A server without the label matches NotIn. Default: none.",
    )

    @check
    def _check_values(self) -> None:
        needs_values = self.operator in (Operator.IN, Operator.NOT_IN)
        if needs_values != bool(self.values):
            message = (
                f"the operator {self.operator} requires at least one value"
                if needs_values
                else f"the operator {self.operator} does not allow values"
            )
            hint = "add a value" if needs_values else "remove `values`"
            raise Malformed(Code.SELECTOR, message, hint, ("operator",))

    def matches(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return labels.get(self.key) not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case _:
                return self.key not in labels


@structure
class Selector:
    """A selection of servers by their labels or by their names. A server must meet all conditions."""

    match_labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, description="Labels that a server must have, with these values. Default: none."
    )
    match_expressions: tuple[MatchExpression, ...] = Field(
        default=(), description="More conditions, which must all be true. Default: none."
    )
    servers: tuple[NameField, ...] = Field(
        default=(), description="The names of servers, instead of labels. Default: none."
    )

    @check
    def _check_conditions(self) -> None:
        uses_labels = bool(self.match_labels or self.match_expressions)
        if not uses_labels and not self.servers:
            raise Malformed(
                Code.SELECTOR,
                "an empty selector could mean either all servers or none",
                "use `All`, `None`, `matchLabels`, `matchExpressions` or `servers`",
            )
        if uses_labels and self.servers:
            raise Malformed(
                Code.SELECTOR,
                "a selector must use labels or names, not both",
                "remove `servers`, or remove `matchLabels` and `matchExpressions`",
                ("servers",),
            )

    @property
    def keys(self) -> frozenset[str]:
        return frozenset((*self.match_labels, *(expression.key for expression in self.match_expressions)))

    def matches(self, name: Name, labels: Mapping[str, str]) -> bool:
        if self.servers:
            return name in self.servers
        return all(labels.get(key) == value for key, value in self.match_labels.items()) and all(
            expression.matches(labels) for expression in self.match_expressions
        )


Select = Literal["All", "None"] | Selector


def selects_server(select: Literal["All", "None"] | Selector, name: Name, labels: Mapping[str, str]) -> bool:
    """Return whether ``select`` matches the server with this name and these labels."""
    return select == "All" if isinstance(select, str) else select.matches(name, labels)
