"""The list of codes is complete: each code in the code is listed, explained, and found by a test."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

from gitboot.problems import Code

ROOT = Path(__file__).parents[1]
CODES = ROOT / "gitboot" / "problems.py"


def source() -> dict[Path, str]:
    return {path: path.read_text() for path in sorted((ROOT / "gitboot").rglob("*.py"))}


def test_every_code_in_the_source_is_in_the_list() -> None:
    written = {(path, code) for path, text in source().items() for code in re.findall(r"GB\d{4}", text)}
    assert {code for _, code in written} - {code.value for code in Code} == set()
    assert len(written) > len(Code)


def test_each_code_is_reported_by_a_module_and_found_by_a_test() -> None:
    definitions = re.compile(r"^class Code\b.*?^(?=\S)", re.MULTILINE | re.DOTALL)
    modules = "\n".join(definitions.sub("", text) if path == CODES else text for path, text in source().items())
    told = {*re.findall(r"\bCode\.\w+|\bGB\d{4}\b", modules)}
    tests = (path for path in (ROOT / "tests").rglob("*") if path.suffix in (".py", ".yaml") and path != Path(__file__))
    found: set[str] = set()
    for path in tests:
        found.update(re.findall(r"(?<=\w\.)[A-Z]\w+|\bGB\d{4}\b", path.read_text()))
    assert [code for code in Code if not {f"Code.{code.name}", code.value} & told] == []
    assert [code for code in Code if not {code.name, code.value} & found] == []


def test_codes_are_sorted_and_unique() -> None:
    values = [code.value for code in Code]
    assert values == sorted(values)
    assert len(values) == CODES.read_text().count('\n        "GB') == len({code.headline for code in Code})
    assert all(re.fullmatch(r"GB[1-7]\d{3}", value) for value in values)


def test_a_code_has_a_headline_a_reason_and_a_fix_that_is_the_hint_of_a_message() -> None:
    for code in Code:
        assert re.fullmatch(r"[A-Z%][^\n]{5,80}[^.\n]", code.headline), code
        for sentences in (code.why, code.fix):
            assert re.fullmatch(r"[A-Z0-9%][^\n]{10,250}\.", sentences), (code, sentences)
            assert "  " not in sentences, code
        assert code.fix.split()[0] not in ("Please", "You", "The"), (code, "a fix says what to do")
        assert code.hint == code.fix[0].lower() + code.fix[1:-1], code


def test_a_code_is_formatted_as_its_number() -> None:
    assert f"{Code.MAC}" == str(Code.MAC) == "GB1033"
    assert pickle.loads(pickle.dumps(Code.MAC)) is Code.MAC
