"""Canonical JSON is what the standard library spells, only sooner: digests that were published stay what they were."""

import json
from hashlib import sha256
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from gitboot.jsonio import canonical, digest, laid_out

_TEXTS = st.text(st.characters(codec="utf-8"))
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXTS,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(_TEXTS, inner),
)


@given(_VALUES)
@example('\x00\x1f\x7f\u2028é😀/"\\\b\f\n\r\t')
@example({"😀": 10**30, "\uffff": -(2**64), "é": [], "": {}})
def test_canonical_json_is_spelt_as_by_the_standard_library(value: Any) -> None:
    spelt = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()

    assert canonical(value) == spelt
    assert digest(value) == sha256(spelt).hexdigest()


def test_what_is_laid_out_says_the_same_on_several_lines() -> None:
    assert laid_out({"b": [1, 2], "a": "é"}).decode() == '{\n  "a": "é",\n  "b": [\n    1,\n    2\n  ]\n}'
