"""JSON schemas: they accept the documents that gitboot accepts, and reject faults that an editor can find."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
import yaml
from hypothesis import given, settings
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from gitboot.fleet.documents import KINDS, parse_blob
from gitboot.fleet.yaml import parse
from gitboot.review.formats.json import main
from tests.helpers.cases import count_examples, for_each
from tests.helpers.fleets import document
from tests.helpers.hypothesis_strategies import Document, documents

ROOT: Final = Path(__file__).parents[2]
SCHEMAS: Final = {
    path.stem: json.loads(path.read_text())
    for path in sorted((ROOT / "schemas").glob("*.json"))
    if not path.name.endswith(".schema.json")  # of what gitboot writes
}
VALIDATORS: Final = {name: Draft202012Validator(schema) for name, schema in SCHEMAS.items()}
EXAMPLE: Final = sorted(path for path in (ROOT / "example-repo").rglob("*.yaml") if not path.name.startswith("."))
PAGES: Final = (
    sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md")) + sorted(ROOT.glob("example-repo/*.md"))
)


class Core(yaml.SafeLoader):
    """Types plain scalars by YAML 1.2's core schema, as editors do; PyYAML has YAML 1.1."""

    yaml_implicit_resolvers: Final = {}  # type: ignore[misc]


Core.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""])
Core.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(?:[Tt]rue|TRUE|[Ff]alse|FALSE)$"), [*"tTfF"])
Core.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"^[-+]?[0-9]+$"), [*"-+0123456789"])
Core.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"),
    [*"-+.0123456789"],
)
Core.add_constructor("tag:yaml.org,2002:int", lambda _, node: int(node.value))
Core.add_constructor("tag:yaml.org,2002:float", lambda _, node: float(node.value))


def faults(text: str, name: str = "any") -> list[str]:
    return [
        ".".join(map(str, error.absolute_path))
        for each in yaml.load_all(text, Core)
        for error in VALIDATORS[name].iter_errors(each)
    ]


def test_there_is_a_schema_for_each_kind_and_one_for_any() -> None:
    assert set(SCHEMAS) == {*KINDS, "any"}
    for schema in SCHEMAS.values():
        Draft202012Validator.check_schema(schema)


@for_each("path", EXAMPLE, ids=lambda path: path.stem)
def test_the_example_is_valid_by_its_schemas(path: Path) -> None:
    kind = str(yaml.load(path.read_text(), Core)["kind"])
    assert (faults(path.read_text()), faults(path.read_text(), kind)) == ([], [])


def test_the_example_passes_the_checker_that_users_run() -> None:
    check = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(ROOT / "schemas" / "any.json")]
    checked = subprocess.run([*check, *map(str, EXAMPLE)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def _list_documents() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for block in re.findall(r"^```ya?ml\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            for text in re.split(r"^---$", block, flags=re.MULTILINE):
                values = [each.value for each in parse(text.encode(), "")[0]]
                if values and values[0].get("kind") in KINDS and "spec" in values[0]:
                    whole = text if "apiVersion" in values[0] else f"apiVersion: gitboot.dev/v1alpha1\n{text.lstrip()}"
                    found.append((page.relative_to(ROOT).as_posix(), whole))
    return found


SHOWN: Final = _list_documents()


def test_pages_contain_documents() -> None:
    assert "README.md" in {page for page, _ in SHOWN}


@for_each(("page", "text"), SHOWN, ids=[f"{page} {number}" for number, (page, _) in enumerate(SHOWN)])
def test_documents_on_pages_are_valid(page: str, text: str) -> None:
    assert (parse_blob(text.encode(), page).problems, faults(text)) == ((), [])


@settings(max_examples=count_examples(60))
@given(documents())
def test_a_document_that_gitboot_accepts_is_valid_by_the_schemas(drawn: Document) -> None:
    for name in ("any", drawn["kind"]):
        assert [error.message for error in VALIDATORS[name].iter_errors(drawn)] == []


SERVER: Final = "uuid: 4c4c4544-0034-4a10-8056-b9c04f4d3732, architecture: x86_64, firmware: UEFI"
NIC: Final = 'interfaces: [{mac: "52:54:00:12:34:56"}]'
IMAGE: Final = f"kernel: {{url: 'assets:a', sha256: {'a' * 64}}}"


@for_each(
    ("case", "text"),
    [
        ("a name of digits", document("Server", "42", f"{SERVER}, {NIC}")),
        ("a name like a version", document("Server", "1.10", f"{SERVER}, {NIC}")),
        ("a serial like a number", document("Server", "a", f"{SERVER}, {NIC}, serial: 1234E56")),
        ("a MAC address like a number", document("Server", "a", f"{SERVER}, interfaces: [{{mac: 525400123456}}]")),
        ("labels like a number and a word", document("Server", "a", f"{SERVER}, {NIC}", "rack: 012, gpu: true")),
        ("variables of all sorts", document("Server", "a", f"{SERVER}, {NIC}, vars: {{a: 1, b: 1.0, c: true, d: no}}")),
        ("an argument of digits", document("Server", "a", f"{SERVER}, {NIC}, kernelArguments: [3]")),
        (
            "a version like a number",
            document("BootImage", "a", f"version: 3815.2, architectures: {{x86_64: {{{IMAGE}}}}}"),
        ),
        ("a number that may be down", document("Maintenance", "a", "select: All, profile: a, maxUnavailable: 5")),
        (
            "an instant without seconds",
            document("Maintenance", "a", "select: All, profile: a, window: {end: 2027-01-01T00:00Z}"),
        ),
    ],
)
def test_a_value_that_yaml_types_differently_is_valid_for_both(case: str, text: str) -> None:
    assert (parse_blob(text.encode(), "").problems, faults(text)) == ((), [])


@for_each(
    ("case", "text", "expected"),
    [
        ("a kind", document("Sever", "a", SERVER), "kind"),
        (
            "another apiVersion",
            document("BootProfile", "a", "method: Disk").replace("v1alpha1", "v1"),
            "apiVersion",
        ),
        ("no spec", "apiVersion: gitboot.dev/v1alpha1\nkind: Server\nmetadata: {name: a}\n", ""),
        ("a field of the document", document("BootProfile", "a", "method: Disk") + "status: {}\n", ""),
        ("a field that is unknown", document("BootProfile", "a", "method: Disk, networkBoot: Once"), "spec"),
        ("a field that is missing", document("Server", "a", SERVER), "spec"),
        ("a field that is empty", document("Server", "a", f"{SERVER}, {NIC}, serial: ''"), "spec.serial"),
        ("a name in capitals", document("BootProfile", "A", "method: Disk"), "metadata.name"),
        ("a label's value", document("BootProfile", "a", "method: Disk", "a: b c"), "metadata.labels.a"),
        (
            "a list that is text",
            document("Server", "a", f"{SERVER}, {NIC}, kernelArguments: a"),
            "spec.kernelArguments",
        ),
        ("a list that is empty", document("Server", "a", f"{SERVER}, interfaces: []"), "spec.interfaces"),
        ("a word in another case", document("BootProfile", "a", "method: disk"), "spec.method"),
        ("a number that is a word", document("Server", "a", f"{SERVER}, {NIC}, provision: true"), "spec.provision"),
        ("a number below 0", document("Server", "a", f"{SERVER}, {NIC}, provision: -1"), "spec.provision"),
        (
            "a MAC address",
            document("Server", "a", f"{SERVER}, interfaces: [{{mac: '52:54'}}]"),
            "spec.interfaces.0.mac",
        ),
        ("a UUID", document("Server", "a", f"{SERVER}, {NIC}").replace("-0034", ""), "spec.uuid"),
        (
            "a sha256",
            document("BootImage", "a", f"version: 1, architectures: {{x86_64: {{{IMAGE}}}}}").replace("aaa", "A"),
            "spec.architectures.x86_64",
        ),
        ("a base URL", document("Fleet", "a", "baseURL: boot.test"), "spec.baseURL"),
        (
            "an instant without an offset",
            document("Maintenance", "a", "select: All, profile: a, window: {end: 2027-01-01T00:00:00}"),
            "spec.window",
        ),
        (
            "a percentage over 100",
            document("Fleet", "a", "baseURL: 'http://a', guards: {maxUpdatePercent: 101}"),
            "spec.guards.maxUpdatePercent",
        ),
        (
            "a path from the root",
            document("BootProfile", "a", "method: Disk, templates: {ipxe: /etc/a}"),
            "spec.templates.ipxe",
        ),
    ],
)
def test_a_mistake_is_rejected_by_both(case: str, text: str, expected: str) -> None:
    assert parse_blob(text.encode(), "").problems
    found = faults(text)
    assert found
    assert [place for place in found if not place.startswith(expected)] == []


def test_a_schema_that_differs_from_the_models_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(ROOT / "schemas")]) == 0
    assert main([str(tmp_path)]) == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        path.name: path.read_text() for path in (ROOT / "schemas").iterdir()
    }
    (tmp_path / "Server.json").write_text((tmp_path / "Server.json").read_text().replace("firmware", "fimware"))
    (tmp_path / "Rack.json").write_text("{}")
    (tmp_path / "any.json").unlink()
    capsys.readouterr()
    assert main(["--check", str(tmp_path)]) == 1
    told = capsys.readouterr().out.splitlines()
    assert [line.split(" ")[0] for line in told] == [
        str(tmp_path / f"{name}.json") for name in ("Server", "any", "Rack")
    ]
