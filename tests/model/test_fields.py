"""gitboot.model.fields: reads what pydantic would take, as it would, and nothing else."""

from __future__ import annotations

import json
from ipaddress import IPv6Address
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from gitboot.fleet.resources import KINDS
from gitboot.fleet.yaml import Quoted, parse
from gitboot.model.fields import read, written
from gitboot.model.scalars import Malformed, parse_interface_address
from tests.helpers.document_strategies import AWKWARD, Document, documents
from tests.helpers.document_strategies import written as as_yaml

_ADAPTERS: Final = {name: TypeAdapter[Any](kind) for name, kind in KINDS.items()}
_WORDS: Final = ("a", "web01", "true", "1", "All", "None", "Always", "52:54:00:00:00:01", "10.0.0.1/8", *AWKWARD)
_ANY: Final = st.recursive(
    st.none() | st.sampled_from(_WORDS) | st.sampled_from(_WORDS).map(Quoted),
    lambda inside: (
        st.lists(inside, max_size=2) | st.dictionaries(st.sampled_from(("a", "name", "mac")), inside, max_size=2)
    ),
    max_leaves=3,
)


def _examined(kind: str, document: Any) -> Any:
    try:
        return _ADAPTERS[kind].validate_python(document)
    except ValidationError:
        return None


def _read(kind: str, document: Any) -> Any:
    try:
        return read(KINDS[kind], document)
    except ValueError:
        return None


def _parsed(document: Document) -> Any:
    (found,) = parse(as_yaml(document).encode(), "a.yaml").documents
    return found.value


@given(documents())
def test_what_pydantic_takes_is_read_as_it_reads_it(document: Document) -> None:
    kind, value = document["kind"], _parsed(document)
    found = read(KINDS[kind], value)
    examined = _examined(kind, value)
    assert repr(found) == repr(examined)
    assert found == examined
    assert json.dumps(written(found)) == json.dumps(
        _ADAPTERS[kind].dump_python(examined, mode="json", by_alias=True, exclude_none=True)
    )


@given(documents(), st.data())
def test_what_pydantic_refuses_is_not_read_and_the_other_way_round(document: Document, data: st.DataObject) -> None:
    kind, value = document["kind"], _parsed(document)
    _spoil(value, data)
    assert repr(_read(kind, value)) == repr(_examined(kind, value))


def _spoil(node: Any, data: st.DataObject) -> None:
    """Change one thing somewhere below."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for step in node if isinstance(node, dict) else range(len(node)):
            places.append((node, step))
            if isinstance(node[step], dict | list):
                walk(node[step])

    walk(node)
    holder, step = data.draw(st.sampled_from(places))
    match data.draw(st.sampled_from(("other", "gone", "more"))):
        case "other":
            holder[step] = data.draw(_ANY)
        case "gone":
            del holder[step]
        case _ if isinstance(holder, dict):
            holder[data.draw(st.sampled_from(_WORDS))] = data.draw(_ANY)
        case _:
            holder.append(data.draw(_ANY))


_GROUPS: Final = st.lists(st.sampled_from(("0", "1", "a", "db8", "ffff", "00", "0db8", "fe80")), max_size=8)


@given(_GROUPS, st.sampled_from(("::", ":", "")), _GROUPS)
def test_ipv6_addresses_are_read_as_ipaddress_reads_them(before: list[str], between: str, after: list[str]) -> None:
    text = ":".join(before) + between + ":".join(after)
    try:
        expected = str(IPv6Address(text))
    except ValueError:
        expected = ""
    try:
        assert parse_interface_address(text) == expected
    except Malformed:
        assert not expected
