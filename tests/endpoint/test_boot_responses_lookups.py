from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.endpoint.boot_responses import Answer, Answers
from gitboot.endpoint.served_files import PublishedTree
from gitboot.model.scalars import SystemUuid, swapped
from tests.helpers.cases import for_each
from tests.helpers.endpoints import ADDRESS, BEFORE, ENTRY, FLEET, MAC, UUID, Site

_FOLDER = TemporaryDirectory()


@pytest.fixture(autouse=True, scope="module")
def tree() -> Iterator[None]:
    Site(ROOT).publish()
    yield
    _FOLDER.cleanup()


ROOT = Path(_FOLDER.name) / "output"


def look(path: str, client: str | None = None) -> Answer | None:
    return Answers(PublishedTree(ROOT, lambda: BEFORE)).find(path, lambda: client, BEFORE)


CONTENTS = {file.content for file in FLEET.boot_files.values()}


@given(st.text() | st.from_regex(r"/(v1/boot|ipxe|ignition|httpboot|ops|o|\.\.)/[^/]*(/[^/]*){0,3}"))
def test_only_files_of_boot_are_ever_found(path: str) -> None:
    found = look(path)
    assert found is None or bytes(found.reply.body) in CONTENTS


def in_any_case(text: str) -> st.SearchStrategy[str]:
    return st.lists(st.booleans(), min_size=len(text), max_size=len(text)).map(
        lambda upper: "".join(c.upper() if up else c for c, up in zip(text, upper, strict=True))
    )


def assert_is(path: str, other: str) -> None:
    found = look(path)
    assert found is not None
    assert bytes(found.reply.body) == FLEET.boot_files[other].content


@given(in_any_case(MAC.replace("-", "")), st.sampled_from([("", 2), ("-", 2), (":", 2), (".", 4)]))
def test_a_mac_address_is_found_in_any_notation(digits: str, notation: tuple[str, int]) -> None:
    separator, width = notation
    mac = separator.join(digits[i : i + width] for i in range(0, 12, width))
    assert_is(f"/v1/boot/{mac}/boot.ipxe", ENTRY)


@given(st.sampled_from([UUID, swapped(SystemUuid(UUID))]).flatmap(in_any_case))
def test_a_uuid_is_found_in_any_case_and_both_byte_orders(uuid: str) -> None:
    for folder, suffix in (("ipxe", ""), ("ignition", ""), ("httpboot", ".json")):
        assert_is(f"/{folder}/{uuid}{suffix}", f"/{folder}/{UUID}{suffix}")


@for_each("client", [None, "", "10.12.0.99", "web01", UUID])
def test_httpboot_knows_servers_by_address_only(client: str | None) -> None:
    assert look("/httpboot", client) is None
    assert look("/httpboot", ADDRESS) is not None
