from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.model.scalars import SystemUuid, swapped
from gitboot.serve.lookups import Found, find
from tests.serving import BEFORE, ENTRY, MAC, UUID, answers

ANSWERS = answers(addresses={"10.12.0.13": "web01"})
BOOT_PATHS = sorted(path for path in ANSWERS.files if path.startswith("boot/"))


def look(path: str, client: str | None = None) -> Found | None:
    return find(ANSWERS, path, lambda: client, BEFORE)


@given(st.text() | st.from_regex(r"/(v1/boot|ipxe|ignition|httpboot|ops|\.\.)/[^/]*(/[^/]*){0,3}"))
def test_only_files_of_boot_are_ever_found(path: str) -> None:
    found = look(path)
    assert found is None or found.path in {*BOOT_PATHS, "boot/ipxe/"}


def in_any_case(text: str) -> st.SearchStrategy[str]:
    return st.lists(st.booleans(), min_size=len(text), max_size=len(text)).map(
        lambda upper: "".join(c.upper() if up else c for c, up in zip(text, upper, strict=True))
    )


@given(in_any_case(MAC.replace("-", "")), st.sampled_from([("", 2), ("-", 2), (":", 2), (".", 4)]))
def test_a_mac_address_is_found_in_any_notation(digits: str, notation: tuple[str, int]) -> None:
    separator, width = notation
    mac = separator.join(digits[i : i + width] for i in range(0, 12, width))
    assert look(f"/v1/boot/{mac}/boot.ipxe") == look(ENTRY) == Found(f"boot{ENTRY}", ANSWERS.files[f"boot{ENTRY}"])


@given(st.sampled_from([UUID, swapped(SystemUuid(UUID))]).flatmap(in_any_case))
def test_a_uuid_is_found_in_any_case_and_both_byte_orders(uuid: str) -> None:
    for folder, suffix in (("ipxe", ""), ("ignition", ""), ("httpboot", ".json")):
        found = look(f"/{folder}/{uuid}{suffix}")
        assert found is not None
        assert found.file == ANSWERS.files[f"boot/{folder}/{UUID}{suffix}"]


@pytest.mark.parametrize("client", [None, "", "10.12.0.99", "web01", UUID])
def test_httpboot_knows_servers_by_address_only(client: str | None) -> None:
    assert look("/httpboot", client) is None
    assert look("/httpboot", "10.12.0.13") is not None
