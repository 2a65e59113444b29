"""The list of codes is complete: each that can be told is in it, explained, and found by some test."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from gitboot.problems.codes import Code

ROOT = Path(__file__).parent.parent
SOURCE = {path: path.read_text() for path in sorted((ROOT / "gitboot").rglob("*.py"))}
TESTS = "\n".join(
    path.read_text()
    for path in sorted((ROOT / "tests").rglob("*"))
    if path.suffix in (".py", ".yaml") and path != Path(__file__)
)
CODES = ROOT / "gitboot" / "problems" / "codes.py"


def test_every_code_in_the_source_is_in_the_list() -> None:
    written = {(path, code) for path, text in SOURCE.items() for code in re.findall(r"GB\d{4}", text)}
    assert {code for _, code in written} - {code.value for code in Code} == set()
    assert len(written) > len(Code)


@pytest.mark.parametrize("code", list(Code), ids=str)
def test_a_code_is_told_by_some_module_and_found_by_some_test(code: Code) -> None:
    modules = "\n".join(text for path, text in SOURCE.items() if path != CODES)
    is_told = re.search(rf"\bCode\.{code.name}\b|\b{code.value}\b", modules) is not None
    is_found = re.search(rf"\b\w+\.{code.name}\b|\b{code.value}\b", TESTS) is not None
    assert (is_told, is_found) == (True, True)


def test_codes_are_sorted_and_none_is_another() -> None:
    values = [code.value for code in Code]
    assert values == sorted(values)
    assert len(values) == CODES.read_text().count('"GB') == len({code.headline for code in Code})
    assert all(re.fullmatch(r"GB[1-7]\d{3}", value) for value in values)


@pytest.mark.parametrize("code", list(Code), ids=str)
def test_a_code_has_a_headline_a_reason_and_a_fix(code: Code) -> None:
    assert re.fullmatch(r"[A-Z%][^\n]{5,80}[^.\n]", code.headline)
    for sentences in (code.why, code.fix):
        assert re.fullmatch(r"[A-Z0-9%][^\n]{10,250}\.", sentences), sentences
        assert "  " not in sentences
    assert code.fix.split()[0] not in ("Please", "You", "The"), "a fix says what to do"


@pytest.mark.parametrize("code", list(Code), ids=str)
def test_a_hint_is_the_fix_as_it_stands_behind_a_message(code: Code) -> None:
    assert code.hint == code.fix[0].lower() + code.fix[1:-1]


def test_a_code_is_its_number_wherever_it_is_written() -> None:
    assert f"{Code.MAC}" == str(Code.MAC) == "GB1033"
    assert pickle.loads(pickle.dumps(Code.MAC)) is Code.MAC
