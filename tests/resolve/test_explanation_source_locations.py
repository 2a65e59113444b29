"""Source locations: the lines of documents that share a file, and of values that are not written."""

from __future__ import annotations

from typing import Final

from gitboot.fleet.resources import Id
from gitboot.fleet.yaml import locate, parse, value_lines
from gitboot.model.scalars import Path
from gitboot.resolve.explanation import SourceTexts, moved_documents, pointer, source_locations
from tests.helpers.cases import for_each
from tests.helpers.fleets import SEED, policy, repository, server

TOGETHER: Final = f"# the first line\n{SEED[1]}---\n{server('web02', 'role: web')}---\n{policy('rest', 'None')}"
NESTED: Final = b"""\
# a comment
apiVersion: gitboot.dev/v1alpha1
---
spec:
  vars:
    a/b: one
    c~d:

  kernelArguments:
    - quiet
    - debug
"""


@for_each(
    ("path", "expected"),
    [
        ((), ""),
        (("spec", "vars", "console"), "/spec/vars/console"),
        (("spec", "kernelArguments", 1), "/spec/kernelArguments/1"),
        (("spec", "nodeLabels", "example.net/pool"), "/spec/nodeLabels/example.net~1pool"),
        (("~1",), "/~01"),
    ],
)
def test_a_value_has_the_pointer_of_rfc_6901(path: Path, expected: str) -> None:
    assert pointer(path) == expected


def test_each_value_has_the_line_at_which_it_is_located() -> None:
    (_, document) = parse(NESTED, "x.yaml").documents
    found = value_lines(NESTED, document.index)
    assert found == {path: locate(NESTED, document.index, path).line for path in found}
    assert found[("spec", "kernelArguments", 1)] == 11
    assert found[("spec", "vars", "c~d")] == 7  # it is not written: its key is


def test_documents_that_share_a_file_have_the_lines_above_them() -> None:
    found = repository(*SEED[:1], *SEED[2:], files={"all.yaml": TOGETHER})
    locations = source_locations(found)
    lines = TOGETHER.splitlines()
    begins = [number for number, line in enumerate(lines) if line == "---"]
    assert {name: tuple(each) for name, each in locations.servers.items()} == {
        "web01": ("all.yaml", 0),
        "web02": ("all.yaml", begins[0]),
    }
    file, rest = locations.shared["BootPolicy/rest"]
    assert (file, lines[rest["/spec"] - 1], lines[rest["/kind"] - 1]) == (
        "all.yaml",
        lines[begins[1] + 4],
        "kind: BootPolicy",
    )
    texts = SourceTexts(found)
    for name, (_, above) in locations.servers.items():
        assert f"name: {name}" in lines[above + texts.line_within(Id("Server", name), ("metadata", "name")) - 1]


def test_documents_move_if_their_file_differs_comes_or_goes() -> None:
    before = repository(*SEED, files={"more.yaml": server("web02", "role: web")})
    same = repository(*SEED, files={"more.yaml": server("web02", "role: web"), "README.md": "more"})
    assert moved_documents(before, same) == []
    other = repository(*SEED[:-1], f"# moved\n{SEED[-1]}", files={"new.yaml": server("web03", "role: web")})
    key = [str(each) for each in moved_documents(before, other)]
    assert key == ["BootPolicy/web", "Server/web02", "Server/web03"]
