"""Lives of a site under faults keep every promise; those that a known finding breaks are expected to fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.searching import USUAL
from tests.site import LOOKUPS
from tests.site_commits import Ways
from tests.site_faults import TABLES, search
from tests.site_lives import Life, Step, folder_for_lives, world

SEED: Final = 2028
BY_MAC, BY_UUID, BY_GRUB = LOOKUPS


def broken(row: str) -> pytest.MarkDecorator:
    """Expect a test to fail until a row of the findings on 2fefe59 is fixed; the fix must remove the mark."""
    return pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"finding {row} is not fixed yet")


@pytest.mark.parametrize(
    ("table", "first"),  # the first life of a search is one that finds the fault on 2fefe59
    [
        ("recording", 8),
        ("windows", 1),
        ("identities", 0),
        pytest.param("mirrors", 7, marks=broken("M4")),
    ],
)
def test_no_life_under_faults_breaks_a_promise(table: str, first: int, lives: int) -> None:
    found = search(table, SEED, range(first, first + 2 + lives), shortens=lives >= USUAL)
    assert found is None, found


def slow(**facts: Any) -> Step:
    """Return a boot of the machine while its fetch is recorded slowly."""
    syncs = {"reads": (), "fails": (), "expires": None}
    return Step(
        "the_machine_boots_while_the_log_is_slow",
        {"is_new": False, "path": BY_MAC, **syncs, "ends": None, "passes": 1} | facts,
    )


def ending(what: str, how: str, **facts: Any) -> Step:
    """Return the end of a maintenance while the ledger cannot be written."""
    return Step(f"a_{what}_ends_while_the_ledger_cannot_be_written", {"lasts": 301, "how": how, "path": BY_MAC} | facts)


INSTALLED: Final = (
    Step("the_machine_boots", {"path": BY_MAC, "goes_on": True, "ends": "provisioned"}),
    Step("it_reconciles", {}),
)


def moving(*, waits: bool, commits: int, path: str) -> Step:
    """Return the move of an installed machine's MAC address to a server that waits for its first installation."""
    facts = {"waits": waits, "commits": commits, "path": path, "ends": None}
    return Step("the_mac_address_moves_to_a_waiting_server", facts)


# Short stories, by what happens in them: the table of their steps, whether there is a BMC, and the steps.
STORIES: Final[dict[str, tuple[str, bool, tuple[Step, ...]]]] = {
    "the instance reads a line, and the deadline passes": ("recording", False, (slow(reads=(0,), expires=0),)),
    "the instance reads a line, and the sync fails": ("recording", False, (slow(reads=(0,), fails=(0,)),)),
    "the deadline passes, and the sync ends": ("recording", False, (slow(expires=0),)),
    "the deadline passes, and what takes the line back fails": (
        "recording",
        False,
        (slow(expires=0, fails=(1,)),),
    ),
    "the deadline passes, and the sync fails": ("recording", False, (slow(expires=0, fails=(0,)),)),
    "a repair ends while the disk is full": ("windows", False, (ending("repair", "full"),)),
    "a repair ends while the ledger is locked": ("windows", False, (ending("repair", "locked"),)),
    "a wipe ends while the disk is full": ("windows", True, (*INSTALLED, ending("wipe", "full", boots=False))),
    "a wipe ends while the ledger is locked": ("windows", True, (*INSTALLED, ending("wipe", "locked", boots=False))),
    "a server that waits gets the address in the second commit": (
        "identities",
        False,
        (*INSTALLED, moving(waits=True, commits=2, path=BY_MAC)),
    ),
    "a new server gets the address in the second commit": (
        "identities",
        False,
        (*INSTALLED, moving(waits=False, commits=2, path=BY_GRUB)),
    ),
    "a server that waits gets the address in one commit": (
        "identities",
        False,
        (*INSTALLED, moving(waits=True, commits=1, path=BY_MAC)),
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_a_story_of_a_fault_keeps_every_promise(story: str) -> None:
    table, has_bmc, steps = STORIES[story]
    life = Life(Ways(is_guarded=table == "identities"), has_bmc, netboots=True, steps=steps)
    with folder_for_lives() as folder, world(Path(folder), TABLES[table], is_strict=True) as lived:
        violations = lived.live(life)
    assert violations == [], "\n".join(violations)
