"""Documents by Hypothesis: any that the models can express, made from the models themselves, in any layout.

A document is a mapping in the YAML's own spelling. Its scalars are in the form that gitboot normalises them to, so
that what is loaded from it can be compared with it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from enum import Enum
from ipaddress import ip_network
from typing import Annotated, Any, Final, Literal, TypeAlias, Union, get_args, get_origin

import yaml
from hypothesis import strategies as st

from gitboot.fleet.resources import KINDS
from gitboot.jsonio import format_instant
from gitboot.model import scalars
from gitboot.model.boot_image import Artifact, Artifacts, Signature
from gitboot.model.boot_policy import BootProfileSpec, Window
from gitboot.model.fields import Scalar, declared_fields
from gitboot.model.fleet import FleetSpec, Provisioning
from gitboot.model.selectors import MatchExpression, Selector
from gitboot.model.server import Bmc, ServerSpec

Document: TypeAlias = dict[str, Any]
Strategy: TypeAlias = st.SearchStrategy[Any]

# What YAML 1.1 or 1.2 would take for something else than text, or cannot say without quotes.
AWKWARD: Final = (
    *("", " ", "null", "~", "true", "no", "0755", "1_000", "1234E56", "12:30", "52:54:00:12:34:56", "2027-01-31"),
    *(
        "(a",
        "[key]",
        "a: b",
        "- a",
        "#a",
        "a #b",
        "&a",
        "*a",
        "!a",
        "%a",
        "@a",
        "<<",
        "---",
        "...",
        "{{ a }}",
        "[a",
        "\\",
        "'",
        '"',
    ),
    *("a\nb", "\n", "\t", "\x00", "\x1b[1m", "é", "😀", "\u2028", "\ufeff", "word " * 30),
)
_TEXTS: Final = st.sampled_from(AWKWARD) | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def _matching(pattern: str) -> Strategy:
    return st.from_regex(pattern, fullmatch=True)


_INTEGERS: Final = st.integers(0, 3) | st.integers(0, 10**18 - 1)
_NAMES: Final = _matching(r"[a-z0-9]([-a-z0-9]{0,6}[a-z0-9])?(\.[a-z0-9]{1,4})?")
_LABEL_VALUES: Final = _matching(r"[A-Za-z0-9]([-_.A-Za-z0-9]{0,6}[A-Za-z0-9])?")
_URLS: Final = _matching(r"https?://(boot|10\.1\.2\.3|\[fd00::1\])(:[1-9][0-9]{0,3})?(/[a-zA-Z0-9%+.,=~-]{1,6}){0,2}")
_PATHS: Final = _matching(r"[a-z0-9_][a-z0-9_. -]{0,6}(/[a-z0-9_][a-z0-9_. é-]{0,6})?")
_ADDRESSES: Final = st.ip_addresses().filter(lambda address: not getattr(address, "scope_id", None))
_INTERFACES: Final = st.builds("{}/{}".format, _ADDRESSES, st.integers(0, 32))


def _mac(digits: bytes) -> str:
    return bytes([digits[0] & 0xFE, *digits[1:-1], digits[-1] | 1]).hex("-")


# By parser, in normal form.
_SCALARS: Final[Mapping[Callable[..., Any], Strategy]] = {
    scalars.text: _TEXTS,
    scalars.nonempty: _TEXTS.filter(bool),
    scalars.parse_name: _NAMES,
    scalars.parse_integer: _INTEGERS,
    scalars.parse_signed: _INTEGERS | _INTEGERS.map(lambda number: -number),
    scalars.parse_boolean: st.booleans(),
    scalars.parse_mac: st.binary(min_size=6, max_size=6).map(_mac),
    scalars.parse_uuid: st.uuids(version=4).map(str),
    scalars.parse_ledger: st.uuids(version=4).map(str),
    scalars.parse_interface_address: _ADDRESSES.map(str) | _INTERFACES,
    scalars.parse_network: _INTERFACES.map(lambda interface: str(ip_network(interface, strict=False))),
    scalars.parse_digest: st.binary(min_size=32, max_size=32).map(bytes.hex),
    scalars.parse_fingerprint: st.binary(min_size=32, max_size=32).map(bytes.hex),
    scalars.parse_artifact_url: _URLS
    | _matching(r"assets:[a-z0-9]{1,6}(/[A-Za-z0-9_%+~-]{1,6}){0,2}")
    | _matching(r"oci://registry\.test(/[a-z]{1,4}){1,2}@sha256:[0-9a-f]{64}"),
    scalars.parse_base_url: _URLS,
    scalars.parse_bmc_address: _URLS | _matching(r"ipmi://[a-z]{1,6}(\.[a-z]{1,6})?(:6[0-9]{3})?"),
    scalars.parse_instant: st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)).map(  # noqa: DTZ001
        lambda instant: format_instant(instant.replace(microsecond=0))
    ),
    scalars.parse_count_or_percent: st.integers(1, 999).map(str) | st.integers(1, 100).map("{}%".format),
    scalars.parse_percent: st.integers(0, 100),
    scalars.parse_positive: st.integers(1, 10**6),
    scalars.parse_file_path: _PATHS,
    scalars.parse_secret_path: _PATHS.map("{}.age".format),
    scalars.parse_kernel_argument: _matching(r"-?[a-z.]{1,6}(=[!-~é]([ -~é]{0,6}[!-~])?)?"),
    scalars.parse_variable_name: _matching(r"[A-Za-z_][A-Za-z0-9_]{0,6}"),
    scalars.parse_variable: _TEXTS | st.booleans(),
    scalars.parse_label_key: _LABEL_VALUES | st.tuples(_NAMES, _LABEL_VALUES).map("/".join),
    scalars.parse_label_value: st.just("") | _LABEL_VALUES,
    scalars.parse_local_disk: st.sampled_from(["Exit", "Sanboot", "NotFound", "/EFI/debian/shimx64.efi"])
    | _matching(r"(/EFI)(/[A-Za-z0-9_-]{1,6}){1,2}\.efi"),
}


def documents() -> st.SearchStrategy[Document]:
    """Any document of any kind."""
    return st.one_of([_struct(kind) for kind in KINDS.values()])


def _of(hint: Any, at_least: int = 0) -> Strategy:
    """Any value of a type, with ``at_least`` so many items."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        found = _scalar(arguments[1:])
        return _of(arguments[0], at_least) if found is None else found
    if origin in (Union, types.UnionType):
        return st.one_of([_of(each) for each in arguments if each is not type(None)])
    if origin is Literal:
        return st.sampled_from([str(each) for each in arguments])
    if origin is tuple:
        return st.lists(_of(arguments[0]), min_size=at_least, max_size=2)
    if origin is dict:
        return st.dictionaries(_of(arguments[0]), _of(arguments[1]), min_size=at_least, max_size=2)
    if issubclass(hint, Enum):
        return st.sampled_from([str(each) for each in hint])
    return _struct(hint)


def fields(hint: Any, path: str = "") -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every field below a type that is a scalar with a parser of its own: ("spec.sites[].name", parse_name)."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        parsers = [each.parse for each in arguments[1:] if isinstance(each, Scalar)]
        yield from ((path, parser) for parser in parsers)
        yield from () if parsers else fields(arguments[0], path)
    elif origin is tuple:
        yield from fields(arguments[0], f"{path}[]")
    elif origin is dict:
        yield from fields(arguments[1], f"{path}{{}}")
    elif origin in (Union, types.UnionType):
        for each in arguments:
            yield from fields(each, path)
    elif hasattr(hint, "__dataclass_fields__"):
        for field in declared_fields(hint):
            yield from fields(field.type, f"{path}.{field.alias}".removeprefix("."))


def _scalar(metadata: tuple[Any, ...]) -> Strategy | None:
    for each in metadata:
        if isinstance(each, Scalar) and each.parse in _SCALARS:
            return _SCALARS[each.parse]
        if isinstance(each, Scalar) and "enum" in each.schema:
            return st.sampled_from(each.schema["enum"])
    return None


def _struct(struct: Any) -> Strategy:
    """Any mapping of a structure's fields; those that are optional are there or not."""
    declared = [(field, _of(field.type, field.min_length)) for field in declared_fields(struct)]
    strategy = st.fixed_dictionaries(
        {field.alias: each for field, each in declared if field.is_required},
        optional={field.alias: each for field, each in declared if not field.is_required},
    )
    return strategy.map(_FITTING[struct]) if struct in _FITTING else strategy


# What fields ask of each other: each function makes of a mapping one that its structure takes.


def _bmc(drawn: Document) -> Document:
    if drawn["address"].startswith("ipmi:"):  # which has neither paths nor certificates
        return {name: value for name, value in drawn.items() if name not in ("system", "tls")}
    return drawn | ({"system": f"/{drawn['system']}"} if "system" in drawn else {})


def _fleet(drawn: Document) -> Document:
    if any("ledger" in site for site in drawn.get("sites", ())):  # each acts for its own, and none for all
        for_all = drawn.get("provisioning", {})
        return drawn | {"provisioning": {name: value for name, value in for_all.items() if name != "ledger"}}
    return drawn


def _server(drawn: Document) -> Document:
    first, *others = drawn["interfaces"]
    if "uuid" not in drawn:  # which these need
        drawn = {
            name: value for name, value in drawn.items() if name not in ("provision", "replaces", "bmc", "secrets")
        }
    return drawn | {"interfaces": [first | {"boot": True}, *others]}


def _provisioning(drawn: Document) -> Document:
    return drawn | ({"evidence": "Reported"} if "attempts" in drawn else {})


def _expression(drawn: Document) -> Document:
    if drawn["operator"] in ("In", "NotIn"):
        return drawn | {"values": drawn.get("values") or ["web"]}
    return {key: value for key, value in drawn.items() if key != "values"}


def _selector(drawn: Document) -> Document:
    by_label = {key: value for key, value in drawn.items() if value and key != "servers"}
    return by_label or {"servers": drawn.get("servers") or ["web01"]}


def _signature(drawn: Document) -> Document:
    return dict([*drawn.items(), ("minisign", "assets:minisig")][:1])


def _artifact(drawn: Document) -> Document:
    digest = str(drawn["url"]).partition("@sha256:")[2] if str(drawn["url"]).startswith("oci:") else ""
    return drawn | {"sha256": digest or drawn["sha256"]}


def _artifacts(drawn: Document) -> Document:
    if "kernel" in drawn:
        return drawn
    bootable = {key: value for key, value in drawn.items() if key in ("uki", "iso")}
    return bootable or {"uki": {"url": "assets:uki", "sha256": "a" * 64}}


def _profile(drawn: Document) -> Document:
    kept = {key: value for key, value in drawn.items() if key not in ("image", "stream", "httpBoot")}
    if drawn["method"] != "Disk":
        kept |= {"stream": drawn["stream"]} if "stream" in drawn else {"image": drawn.get("image", "flatcar")}
    return kept | ({"httpBoot": drawn.get("httpBoot", "uki")} if drawn["method"] == "UefiHttp" else {})


def _window(drawn: Document) -> Document:
    ends = sorted(set(drawn.values()))
    return dict(zip(("start", "end"), ends, strict=True)) if len(ends) == 2 else drawn if len(drawn) == 1 else {}


_FITTING: Final[Mapping[type, Callable[[Document], Document]]] = {
    Signature: _signature,
    Artifact: _artifact,
    Artifacts: _artifacts,
    Bmc: _bmc,
    BootProfileSpec: _profile,
    FleetSpec: _fleet,
    MatchExpression: _expression,
    Provisioning: _provisioning,
    Selector: _selector,
    ServerSpec: _server,
    Window: _window,
}


# Back to YAML


LAYOUTS: Final = st.fixed_dictionaries(
    {
        "flow": st.sampled_from([True, False, None]),
        "quotes": st.sampled_from([None, '"', "'"]),
        "width": st.integers(40, 120),
        "indent": st.integers(2, 6),
        "allow_unicode": st.booleans(),
        "line_break": st.sampled_from(["\n", "\r\n"]),
    }
)


def written(document: Document, *, flow: bool | None = False, quotes: str | None = None, **layout: Any) -> str:
    """A document's text: plain wherever gitboot takes that for the same, whatever it is to YAML.

    ``flow`` is for all of it, for none, or (None) for what has only scalars in it.
    """
    events = (
        yaml.StreamStartEvent(),
        yaml.DocumentStartEvent(explicit=False),
        *_events(document, flow, quotes),
        yaml.DocumentEndEvent(explicit=False),
        yaml.StreamEndEvent(),
    )
    return str(yaml.emit(events, Dumper=yaml.CSafeDumper, **layout))


def _events(value: Any, flow: bool | None, quotes: str | None) -> Iterator[yaml.Event]:
    match value:
        case dict() | list():
            inner = value.values() if isinstance(value, dict) else value
            in_flow = not any(isinstance(each, dict | list) for each in inner) if flow is None else flow
            if isinstance(value, list):
                yield yaml.SequenceStartEvent(None, None, implicit=True, flow_style=in_flow)
                for item in value:
                    yield from _events(item, flow, quotes)
                yield yaml.SequenceEndEvent()
            else:
                yield yaml.MappingStartEvent(None, None, implicit=True, flow_style=in_flow)
                for key, item in value.items():
                    yield from _events(key, flow, quotes)
                    yield from _events(item, flow, quotes)
                yield yaml.MappingEndEvent()
        case str():
            style = quotes or ("'" if value in _NEVER_PLAIN else None)
            yield yaml.ScalarEvent(None, None, (True, True), value, style=style)
        case _:
            text = {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))
            yield yaml.ScalarEvent(None, None, (True, True), text)


_NEVER_PLAIN: Final = frozenset({"", "null", "~", "true", "false", "<<"})
