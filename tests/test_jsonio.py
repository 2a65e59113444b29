"""Values as JSON has them, canonical JSON, and decoders that several threads make at once."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import gitboot
from gitboot.jsonio import (
    OMITTED,
    compute_digest,
    encode_canonical,
    encode_indented,
    json_key,
    parse_json,
    to_json_value,
)
from tests.helpers.cases import for_each


class Colour(StrEnum):
    RED = "Red"


class Place(NamedTuple):
    file_path: str
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Inner:
    base_url: str = field(default="http://boot", metadata=json_key("baseURL"))
    secret: str = field(default="hidden", metadata=OMITTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outer:
    max_small_group: int
    inner: tuple[Inner, ...] = (Inner(),)


@for_each(
    ("value", "shown"),
    [
        pytest.param(None, None, id="nothing"),
        pytest.param(True, True, id="a truth"),
        pytest.param("text", "text", id="text"),
        pytest.param(Colour.RED, "Red", id="an enum by its value"),
        pytest.param(datetime(2026, 11, 20, 12, tzinfo=UTC), "2026-11-20T12:00:00Z", id="an instant"),
        pytest.param(
            datetime(2026, 11, 20, 12, tzinfo=timezone(timedelta(hours=1))), "2026-11-20T11:00:00Z", id="in UTC"
        ),
        pytest.param((1, (2,)), [1, [2]], id="tuples"),
        pytest.param({Colour.RED: Place("a.yaml", 3)}, {"Red": {"filePath": "a.yaml", "line": 3}}, id="a named tuple"),
        pytest.param(
            Outer(max_small_group=3),
            {"maxSmallGroup": 3, "inner": [{"baseURL": "http://boot"}]},
            id="dataclasses in camelCase, by other names, without omitted fields",
        ),
    ],
)
def test_a_value_is_converted_to_its_json_form(value: Any, shown: Any) -> None:
    assert to_json_value(value) == shown
    assert type(to_json_value(value)) is type(shown)
    assert json.loads(json.dumps(to_json_value(value))) == shown


@pytest.mark.parametrize("value", [object(), Outer, b"bytes", {1, 2}], ids=["an object", "a class", "bytes", "a set"])
def test_a_value_without_a_json_form_is_rejected(value: object) -> None:
    with pytest.raises(TypeError, match=r"gitboot cannot write the type .* as JSON"):
        to_json_value({"in": [value]})


_TEXTS = st.text(st.characters(codec="utf-8"))
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(_TEXTS, inner),
)


@given(_VALUES)
@example('\x00\x1f\x7f\u2028é😀/"\\\b\f\n\r\t')
@example({"😀": 10**30, "\uffff": -(2**64), "é": [], "": {}})
def test_canonical_json_equals_the_output_of_the_standard_library(value: Any) -> None:
    spelt = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    assert encode_canonical(value) == spelt
    assert compute_digest(value) == sha256(spelt).hexdigest()


def test_indented_json_has_the_same_value_on_several_lines() -> None:
    assert encode_indented({"b": [1, 2], "a": "é"}).decode() == '{\n  "a": "é",\n  "b": [\n    1,\n    2\n  ]\n}'


SOURCES = Path(gitboot.__file__).parent
OWN_CLASS = "render/endpoint_files.py"  # its decoder is of a class that no other decoder has
MAKERS = {"Decoder", "msgspec.convert", "msgspec.json.Decoder", "msgspec.msgpack.Decoder"}
DECODERS = {"decode", "msgspec.json.decode", "msgspec.msgpack.decode"}  # with a type

# `Middle` names a type by an expression, which msgspec evaluates while `Outer` is half known: then another thread makes
# a decoder of `Outer`, too.
AT_ONCE = """
import threading
from dataclasses import dataclass
from gitboot.jsonio import build_decoder
import msgspec

half_known, is_done = threading.Event(), threading.Event()

def pause():
    half_known.set()
    is_done.wait(1)  # comes to nothing if decoders are made one after the other
    return int

@dataclass
class Middle:
    number: "pause()"

@dataclass
class Outer:
    middle: Middle
    name: str

DATA = msgspec.msgpack.encode({"middle": {"number": 1}, "name": "a"})

def other():
    half_known.wait()
    build_decoder(Outer)(DATA)
    is_done.set()

thread = threading.Thread(target=other)
thread.start()
print(build_decoder(Outer)(DATA))
thread.join()
"""


def test_a_decoder_that_another_thread_builds_at_the_same_time_does_not_crash_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Outer(middle=Middle(number=1), name='a')\n"), done


def test_every_decoder_is_built_by_the_module_that_builds_them_one_after_another() -> None:
    found = {str(path.relative_to(SOURCES)): list(makers(path)) for path in sorted(SOURCES.rglob("*.py"))}
    assert {path for path, calls in found.items() if calls} == {"jsonio.py", OWN_CLASS}


def makers(path: Path) -> Iterator[str]:
    text = path.read_text()
    if "msgspec" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in MAKERS or (name in DECODERS and any(each.arg == "type" for each in node.keywords)):
                yield f"{name} in line {node.lineno}"


def test_json_that_is_nested_too_deeply_raises_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json(b"[" * 100_000)
