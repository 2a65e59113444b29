"""The list of faults that the tests have to notice: `make test-mutations` puts them into the code."""

from __future__ import annotations

import ast
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests import mutations
from tests.mutations import ROOT, Mutation

PACKAGES = {
    "model", "fleet", "resolve", "render", "review", "git", "evaluator", "publish", "fetchlog", "ledger", "bmc",
    "artifacts", "endpoint", "status", "controller", "importers", "cli",
}  # fmt: skip
FAULTS = mutations.load()


def list_functions(file: str) -> set[str]:
    path = ROOT / file
    found = ast.parse(path.read_text()).body if path.is_file() else []
    return {each.name for each in found if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_list_has_forty_faults_and_at_least_two_in_each_package() -> None:
    counted = Counter(each.package for each in FAULTS)
    assert len(FAULTS) == 40
    assert set(counted) == PACKAGES
    assert min(counted.values()) >= 2


def test_each_fault_is_one_sentence_and_no_two_are_the_same() -> None:
    sentences = [each.fault for each in FAULTS]
    assert len(set(sentences)) == len(sentences)
    assert [each for each in sentences if not each.endswith(".")] == []


def test_the_old_text_of_each_fault_occurs_once_in_its_file(tmp_path: Path) -> None:
    lost = []
    for each in FAULTS:
        copy = tmp_path / each.file
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text((ROOT / each.file).read_text() if (ROOT / each.file).is_file() else "")
        try:
            each.apply(tmp_path, 0)
        except ValueError as error:
            lost.append(f"{each.fault} {error}")
    assert lost == [], "adjust file, old and new in tests/mutations.yaml to the code as it is now"


def test_each_fault_names_a_test_that_exists() -> None:
    named = [(each.fault, *each.test.split("::")) for each in FAULTS]
    missing = [f"{fault} {file}::{test}" for fault, file, test in named if test not in list_functions(file)]
    assert missing == [], "name in tests/mutations.yaml a test that notices the fault"


def test_a_fault_whose_text_is_missing_or_occurs_twice_is_not_applied(tmp_path: Path) -> None:
    path = tmp_path / "code.py"
    path.write_text("one = 1\ntwo = 2\nanother = 2\n")
    fault = Mutation(package="p", fault="F.", file="code.py", old="= 1", new="= 3", test="t")
    for wrong, number in (
        (replace(fault, old="= 4"), 0),
        (replace(fault, old="= 2"), 2),
        (replace(fault, file="x"), 0),
    ):
        with pytest.raises(ValueError, match=f"the old text occurs {number} times in {wrong.file}"):
            wrong.apply(tmp_path, 0)
    assert path.read_text() == "one = 1\ntwo = 2\nanother = 2\n"
    fault.apply(tmp_path, 0)
    assert path.read_text() == "one = 3\ntwo = 2\nanother = 2\n"


def test_a_fault_that_its_test_does_not_notice_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "counts.py").write_text("ONE = 1\nTWO = 2\n")
    (tmp_path / "test_counts.py").write_text("import counts\n\ndef test_one():\n    assert counts.ONE == 1\n")
    one = Mutation(
        package="p", fault="F.", file="counts.py", old="ONE = 1", new="ONE = 2", test="test_counts.py::test_one"
    )
    cases = {
        "noticed": one,
        "NOT NOTICED": replace(one, old="TWO = 2", new="TWO = 1"),  # in the file of the fault before
        "DOES NOT APPLY": replace(one, old="ONE = 3"),
        "TEST CANNOT RUN": replace(one, new="ONE = 1 +"),
    }
    assert not mutations.run(cases.values(), root=tmp_path)
    *lines, last = [line for line in capfd.readouterr().out.splitlines() if "F." in line or "faults" in line]
    assert [line.partition("  ")[0] for line in lines] == list(cases)
    assert last == "1 of 4 faults are noticed"
    assert not mutations.run([replace(one, test="test_counts.py::test_two")], root=tmp_path)
