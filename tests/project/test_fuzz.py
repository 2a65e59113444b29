"""Bytes that strangers choose, some in each run: never a traceback, no path out of the tree, no secret in an error."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.cases import for_each
from tests.project.fuzz_targets import TARGETS, WORDS, seeds

# Those that use a socket are slower.
_EXAMPLES = {"redfish": 15, "head": 30, "document": 30, "fleet": 20, "ignored": 20}

ALL = [pytest.param(name, seed, id=f"{name}-{seed.name}") for name in TARGETS for seed in seeds(name)]


@for_each(("target", "seed"), ALL)
def test_no_former_defect_is_found_again(target: str, seed: Path) -> None:
    TARGETS[target](seed.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_no_input_of_a_stranger_finds_a_defect(target: str) -> None:
    begun = [seed.read_bytes() for seed in seeds(target)]
    places = st.integers(0, max(map(len, begun)))
    edits = st.lists(st.tuples(places, st.integers(0, 12), st.sampled_from(WORDS) | st.binary(max_size=6)), max_size=4)

    @settings(
        derandomize=True,
        database=None,
        deadline=None,
        max_examples=_EXAMPLES.get(target, 40),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(begun), edits)
    def look(data: bytes, edits: list[tuple[int, int, bytes]]) -> None:
        for place, taken, put in edits:
            data = data[:place] + put + data[place + taken :]
        TARGETS[target](data)

    look()
