"""Inserted faults: each is found with its code at its place, and nothing else is found.

faults/*.yaml has the faults as edits of the valid fleet in faults/fleet/: FILE: {A: B} writes B for the one A in FILE,
FILE: TEXT writes the file again, FILE: null removes it. The new text marks what is found and where: ⟦GB1033⟧ is right
before the place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gitboot.errors import InvalidRepository
from gitboot.fleet.documents import ParseCache
from gitboot.fleet.revision import BlobId, Irregular, Revision, Snapshot
from gitboot.fleet.validation import load_revision
from gitboot.problems import Code, Problem
from gitboot.resolve.fleet_decisions import decide_revision
from tests.helpers.cases import count_examples, for_each

FOLDER: Final = Path(__file__).parents[1] / "data" / "faults"
FLEET: Final = {
    str(path.relative_to(FOLDER / "fleet")): path.read_text()
    for path in sorted((FOLDER / "fleet").rglob("*"))
    if path.is_file()
}
_MARK: Final = re.compile(r"⟦(GB\d{4})⟧")
START: Final = datetime.min.replace(tzinfo=UTC)  # before the end of any overlap
_parsed: ParseCache = {}  # what the cases have in common is parsed once


class ProblemPlace(NamedTuple):
    path: str
    line: int
    column: int
    code: str


@dataclass(frozen=True, slots=True)
class Fault:
    """The changes of one fault: texts with their marks, and None for a removed file."""

    name: str
    changed: Mapping[str, str | None]

    @property
    def expected(self) -> list[ProblemPlace]:
        texts = ((path, text) for path, text in self.changed.items() if text is not None)
        return sorted(found for path, text in texts for found in _find_marks(path, text))


def _find_marks(path: str, text: str) -> Iterator[ProblemPlace]:
    while mark := _MARK.search(text):
        before = text[: mark.start()]
        yield ProblemPlace(path, before.count("\n") + 1, len(before) - before.rfind("\n"), mark[1])
        text = before + text[mark.end() :]


def _apply_edit(path: str, edit: Any) -> str | None:
    if edit is None or isinstance(edit, str):
        return edit
    text = FLEET[path]
    for old, new in edit.items():
        assert text.count(old) == 1, f"{path} has {old!r} {text.count(old)} times"
        text = text.replace(old, new)
    return text


FAULTS: Final = {
    file.stem: [
        Fault(name, {path: _apply_edit(path, edit) for path, edit in edits.items()})
        for name, edits in yaml.load(file.read_text(), yaml.CSafeLoader).items()
    ]
    for file in sorted(FOLDER.glob("*.yaml"))
}
ALL_FAULTS: Final = [fault for faults in FAULTS.values() for fault in faults]


def plant_faults(*faults: Fault) -> Snapshot:
    texts = FLEET | {path: text for fault in faults for path, text in fault.changed.items()}
    return _snapshot({path: _MARK.sub("", text).encode() for path, text in texts.items() if text is not None})


def _snapshot(files: Mapping[str, bytes], irregular: Mapping[str, Irregular] | None = None) -> Snapshot:
    blobs = {path: BlobId(sha256(data).hexdigest()) for path, data in files.items()}
    data = {blobs[path]: data for path, data in files.items()}
    return Snapshot(revision=Revision("test"), blobs=blobs, read=data.__getitem__, irregular=irregular or {})


def find_problems(snapshot: Snapshot) -> list[ProblemPlace]:
    return [ProblemPlace(each.path, each.line, each.column, each.code) for each in _list_problems(snapshot)]


def _list_problems(snapshot: Snapshot) -> tuple[Problem, ...]:
    try:
        return decide_revision(load_revision(snapshot, _parsed)).decisions.find_problems(START)
    except InvalidRepository as error:
        return error.at(START).problems


def test_the_fleet_has_no_problem_before_a_fault_is_inserted() -> None:
    assert find_problems(plant_faults()) == []


@for_each("fault", ALL_FAULTS, ids=lambda fault: fault.name)
def test_each_fault_is_found_at_its_place_and_nothing_else(fault: Fault) -> None:
    assert fault.expected
    assert find_problems(plant_faults(fault)) == fault.expected


def test_each_fault_has_its_own_name() -> None:
    names = [line for file in FOLDER.glob("*.yaml") for line in file.read_text().splitlines() if line[:1] > "#"]
    assert sorted(names) == sorted(f"{fault.name}:" for fault in ALL_FAULTS)
    assert len(set(names)) == len(names) > 200


def _nest_lists(depth: int) -> bytes:
    return b"a: " + b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    ("case", "data", "expected"),
    [
        ("Latin-1", b"# caf\xe9\nkind: Server\n", ["1:6 GB1002"]),
        ("UTF-16", "kind: Server\n".encode("utf-16"), ["1:1 GB1002"]),
        ("over 16 MiB", b"a: b\n" * 4_000_000, ["1:1 GB1004"]),
        ("a document over 1 MiB", b"a: b\n---\nb: " + b"c" * 2_000_000, ["1:1 GB1023", "2:1 GB1005"]),
        ("lists in lists", _nest_lists(65), ["1:67 GB1006"]),
        ("lists in lists, and no deeper", _nest_lists(63), ["1:1 GB1023"]),
        ("over 100 problems", b"a:\n" + b"- *b\n" * 101, [f"{n}:3 GB1007" for n in range(2, 102)] + ["102:3 GB1015"]),
    ],
)
def test_faults_that_no_text_can_show_are_found_too(case: str, data: bytes, expected: list[str]) -> None:
    files = {path: text.encode() for path, text in FLEET.items()}
    told = [
        f"{each.line}:{each.column} {each.code}" for each in find_problems(_snapshot({**files, "other.yaml": data}))
    ]
    assert told == expected


@pytest.mark.parametrize(
    ("irregular", "code"),
    [(Irregular.SUBMODULE, "GB5001"), (Irregular.SYMLINK, "GB5002"), (Irregular.FILE_NAME, "GB5004")],
)
def test_an_irregular_entry_is_found_by_its_path(irregular: Irregular, code: str) -> None:
    files = {path: text.encode() for path, text in FLEET.items()}
    assert find_problems(_snapshot(files, {"servers/more": irregular})) == [("servers/more", 1, 1, code)]


DOCUMENTS: Final = [fault for name in ("yaml", "envelope", "scalars", "combinations") for fault in FAULTS[name]]


@settings(max_examples=count_examples(100))
@given(st.lists(st.sampled_from(DOCUMENTS), min_size=2, max_size=12))
def test_faults_of_several_documents_are_all_found_once_and_in_order(drawn: list[Fault]) -> None:
    faults: list[Fault] = []
    for fault in drawn:
        if not any(fault.changed.keys() & other.changed.keys() for other in faults):
            faults.append(fault)
    assert find_problems(plant_faults(*faults)) == sorted(place for fault in faults for place in fault.expected)


MESSAGES: Final = {
    "a kind that is misspelt": 'unknown kind "BootPolcy" (did you mean BootPolicy?)',
    "a field that is misspelt": 'spec has no field "serail" (did you mean serial?)',
    "a field of an interface that is unknown": (
        'spec.interfaces[0] has no field "speed" (use one of addresses, boot, mac, name)'
    ),
    "a server without a UUID": (
        "BootPolicy/edge boots BootImage/edge-os, an image that writes to disk, but the server has no uuid (edge01) "
        "(set `uuid`; until you know it, set `lifecycle: Parked`, or boot an image that does not write to disk)"
    ),
    "a document without a spec": "the document needs spec (add spec)",
    "a firmware in another case": 'expected one of UEFI, BIOS, found "uefi" (did you mean UEFI?)',
    "a word for unknown servers that there is not": (
        'expected one of LocalDisk, NotFound, or a mapping with profile, found "Reject" (use one of these values)'
    ),
    "text where a list belongs": ('spec.kernelArguments: expected a list, found "quiet" (write the list as [quiet])'),
    "an argument of two lines": (
        r'spec.kernelArguments[0]: expected one kernel argument on one line, found "quiet\nsplash" '
        "(write one argument in each item: name, name=value, or -name to remove an argument)"
    ),
    "two servers with one UUID in different byte orders": (
        "UUID 44454c4c-3400-104a-8056-b9c04f4d3732 is already used by Server/web01 at servers/web01.yaml:8, "
        "as 4c4c4544-0034-4a10-8056-b9c04f4d3732 "
        "(correct the wrong value, or remove the document of a machine that no longer exists)"
    ),
    "two servers with one serial": (
        "serial 4J8VM72 is already used by Server/web01 at servers/web01.yaml:9 "
        "(correct the wrong value, or remove the document of a machine that no longer exists)"
    ),
    "two servers of one name": (
        "Server/old01 is already at servers/edge01.yaml:4 (rename or remove one of the two documents)"
    ),
    "two Fleets": (
        "a repository can have only one Fleet, but Fleet/faultless is already at fleet.yaml:4 (remove one of the two "
        "documents)"
    ),
    "a server that names no policy of the repository": ('there is no BootPolicy named "legcay" (did you mean legacy?)'),
    "a profile that names no user data of the repository": (
        'there is no file "userdata/edge.ign" (did you mean userdata/edge.ign.j2?)'
    ),
}


@for_each("name", MESSAGES)
def test_a_message_has_the_wrong_value_and_the_intended_one(name: str) -> None:
    (fault,) = (each for each in ALL_FAULTS if each.name == name)
    (problem,) = _list_problems(plant_faults(fault))
    assert str(problem).partition(f"{problem.code}: ")[2] == MESSAGES[name]


def test_every_problem_has_a_hint_and_fits_on_one_line() -> None:
    for problem in (problem for fault in ALL_FAULTS for problem in _list_problems(plant_faults(fault))):
        assert problem.hint, problem
        assert (problem.message + problem.hint).isprintable(), problem  # one line, and nothing for a terminal
        assert not re.search(r"\w\.$", problem.message), problem
        assert not re.search(r"\w\.$", problem.hint), problem


def test_finding_r11_the_hint_of_an_invalid_template_names_the_raw_block() -> None:
    unread = [
        each
        for fault in ALL_FAULTS
        for each in _list_problems(plant_faults(fault))
        if each.code == Code.TEMPLATE_SYNTAX
    ]
    assert len(unread) >= 3
    for problem in unread:
        assert problem.hint.endswith("Put text that is not for Jinja2 between {% raw %} and {% endraw %}"), problem


@for_each("text", ["docker ps --format '{{.Names}}'", "echo ${#array[@]}", "awk '{%s}'"])
def test_finding_r11_inside_a_raw_block_any_text_is_valid(text: str) -> None:
    lines = f"# {text}\n", f"# {{% raw %}}{text}{{% endraw %}}\n"
    plain, raw = (_snapshot(_insert_text("templates/web.ipxe.j2", "boot\n", line)) for line in lines)
    assert ({each.code for each in _list_problems(plain)}, _list_problems(raw)) == ({Code.TEMPLATE_SYNTAX}, ())


def _insert_text(path: str, old: str, new: str) -> dict[str, bytes]:
    assert FLEET[path].count(old) == 1
    return {name: text.encode() for name, text in (FLEET | {path: FLEET[path].replace(old, new + old)}).items()}
