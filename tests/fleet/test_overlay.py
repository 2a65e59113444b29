"""Layered dictionary: after many changes it equals a plain dictionary with the same changes."""

import random
from collections.abc import Mapping

import pytest

from gitboot.fleet.overlay import Overlay, apply_changes, apply_differences, find_differing_keys
from tests.helpers.cases import for_each


def test_the_same_object_is_returned_if_nothing_changed() -> None:
    before = {"a": 1, "b": 2}

    assert apply_differences(before, {"a": 1}, ["c"]) is before
    assert (apply_differences(before, {"a": 2}), before) == ({"a": 2, "b": 2}, {"a": 1, "b": 2})


def test_a_key_with_the_value_none_differs_from_a_missing_key() -> None:
    before: dict[str, int | None] = {"a": 1}

    after = apply_differences(before, {"b": None})

    assert after == {"a": 1, "b": None}
    assert find_differing_keys(before, after) == {"b"}


def test_a_small_change_does_not_copy_the_dictionary() -> None:
    before = {number: number for number in range(10_000)}

    after = apply_changes(before, {7: 8, 10_001: 0}, [3])

    assert isinstance(after, Overlay)
    assert after.base is before
    assert isinstance(apply_changes(before, dict.fromkeys(range(1000), 0)), dict)


@for_each("seed", range(20))
def test_many_changes_give_one_dictionary_in_order(seed: int) -> None:
    draw = random.Random(seed)
    keys = range(draw.choice((4, 30, 300)))
    model = {key: 0 for key in keys if draw.random() < 0.6}
    found: Mapping[int, int] = dict(model)
    for number in range(60):
        changed = {draw.choice(keys): draw.randint(0, 3) for _ in range(draw.randint(0, 3))}
        gone = [draw.choice(keys) for _ in range(draw.randint(0, 2))]
        before, kept = found, dict(found)
        found = (apply_differences if number % 2 else apply_changes)(found, changed, gone)
        model = {key: each for key, each in {**model, **changed}.items() if key not in gone}

        assert list(found.items()) == sorted(model.items())
        assert (len(found), found.keys(), found == model) == (len(model), model.keys(), True)
        for key in keys:
            looked_up = (found.get(key), found.get(key, "nothing"), key in found)
            assert looked_up == (model.get(key), model.get(key, "nothing"), key in model)
        assert dict(before) == kept
        for key in gone:
            with pytest.raises(KeyError):
                found[key]
