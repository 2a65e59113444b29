"""Lives of a site under faults keep every promise."""

from __future__ import annotations

import logging
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest

from tests.helpers.cases import USUAL_LIVES
from tests.helpers.postgresql import PostgresServer
from tests.helpers.site_lives.faults import open_world, search
from tests.helpers.site_lives.lives import KINDS, Life, Step, draw_life, folder_for_lives, world
from tests.helpers.site_lives.running_site import LOOKUPS, Ways

SEED: Final = 2028
BY_MAC, BY_UUID, BY_GRUB = LOOKUPS


@pytest.mark.parametrize(
    ("table", "first"),  # the first life of a search is one that finds the fault on 2fefe59
    [
        ("recording", 8),
        ("windows", 1),
        ("identities", 0),
        ("mirrors", 7),
    ],
)
def test_no_random_life_with_faults_breaks_a_promise(table: str, first: int, lives: int) -> None:
    found = search(table, SEED, range(first, first + 2 + lives), shortens=lives >= USUAL_LIVES)
    assert found is None, found


def test_no_random_life_of_two_hosts_with_one_ledger_breaks_a_promise(
    postgres_server: PostgresServer, lives: int
) -> None:
    found = search("hosts", SEED, range(1 + lives), shortens=lives >= USUAL_LIVES, server=postgres_server)
    assert found is None, found


def test_a_life_of_two_hosts_is_reproducible(postgres_server: PostgresServer) -> None:
    happened = Counter[str](), Counter[str]()
    for counts in happened:
        assert search("hosts", SEED, range(1), shortens=False, server=postgres_server, counts=counts) is None
    assert happened[0] == happened[1]


def make_slow_boot(**facts: Any) -> Step:
    """Return a boot of the machine while its fetch is recorded slowly."""
    syncs = {"reads": (), "fails": (), "expires": None}
    return Step(
        "the_machine_boots_while_the_log_is_slow",
        {"is_new": False, "path": BY_MAC, **syncs, "ends": None, "passes": 1} | facts,
    )


def make_end(what: str, how: str, **facts: Any) -> Step:
    """Return the end of a maintenance while the ledger cannot be written."""
    return Step(f"a_{what}_ends_while_the_ledger_cannot_be_written", {"lasts": 301, "how": how, "path": BY_MAC} | facts)


INSTALLED: Final = (
    Step("the_machine_boots", {"path": BY_MAC, "goes_on": True, "ends": "provisioned"}),
    Step("it_reconciles", {}),
)


def make_move(*, waits: bool, commits: int, path: str) -> Step:
    """Return the move of an installed machine's MAC address to a server that waits for its first installation."""
    facts = {"waits": waits, "commits": commits, "path": path, "ends": None}
    return Step("the_mac_address_moves_to_a_waiting_server", facts)


# Short stories, by what happens in them: the table of their steps, whether there is a BMC, and the steps.
STORIES: Final[dict[str, tuple[str, bool, tuple[Step, ...]]]] = {
    "the instance reads a line, and the deadline passes": (
        "recording",
        False,
        (make_slow_boot(reads=(0,), expires=0),),
    ),
    "the instance reads a line, and the sync fails": ("recording", False, (make_slow_boot(reads=(0,), fails=(0,)),)),
    "the deadline passes, and the sync ends": ("recording", False, (make_slow_boot(expires=0),)),
    "the deadline passes, and what takes the line back fails": (
        "recording",
        False,
        (make_slow_boot(expires=0, fails=(1,)),),
    ),
    "the deadline passes, and the sync fails": ("recording", False, (make_slow_boot(expires=0, fails=(0,)),)),
    "a repair ends while the disk is full": ("windows", False, (make_end("repair", "full"),)),
    "a repair ends while the ledger is locked": ("windows", False, (make_end("repair", "locked"),)),
    "a wipe ends while the disk is full": ("windows", True, (*INSTALLED, make_end("wipe", "full", boots=False))),
    "a wipe ends while the ledger is locked": ("windows", True, (*INSTALLED, make_end("wipe", "locked", boots=False))),
    "a server that waits gets the address in the second commit": (
        "identities",
        False,
        (*INSTALLED, make_move(waits=True, commits=2, path=BY_MAC)),
    ),
    "a new server gets the address in the second commit": (
        "identities",
        False,
        (*INSTALLED, make_move(waits=False, commits=2, path=BY_GRUB)),
    ),
    "a server that waits gets the address in one commit": (
        "identities",
        False,
        (*INSTALLED, make_move(waits=True, commits=1, path=BY_MAC)),
    ),
}


@pytest.mark.parametrize("story", STORIES)
def test_a_story_of_a_fault_keeps_every_promise(story: str) -> None:
    table, has_bmc, steps = STORIES[story]
    life = Life(Ways(is_guarded=table == "identities"), has_bmc, netboots=True, steps=steps)
    with open_world(table) as lived:
        violations = lived.live(life)
    assert violations == [], "\n".join(violations)


def make_late_call(number: int, **facts: Any) -> Step:
    """Return an installation of which one call to the PostgreSQL hangs while an endpoint serves the boot."""
    return Step(
        "the_machine_boots_while_a_call_hangs",
        {"is_new": True, "path": BY_MAC, "number": number, "meanwhile": None, "expires": True, "is_lost": False}
        | {"ends": None, "passes": 1}
        | facts,
    )


CALLS_OF_A_FETCH: Final = range(9)  # to the PostgreSQL, from a new connection on


def make_takeover(how: str, *, calls: int | None = None) -> Step:
    """Return a take-over by the standby, which is killed after so many ``calls`` unless that is None."""
    return Step("the_standby_takes_over", {"how": how, "dies_in": None, "calls": calls, "passes": 1})


FIRST_BOOT: Final = (Step("the_machine_boots", {"path": BY_UUID, "goes_on": True, "ends": None}), INSTALLED[1])
GOES_ON: Final = Step("the_replaced_host_goes_on", {"path": BY_MAC})
OTHER_HOST: Final = Step("machines_ask_the_other_host", {})
ASKED: Final = Step("an_installation_is_asked_for", {"passes": 1})


def make_reconcile(path: str, **facts: Any) -> Step:
    """Return a boot during which the instance reads the fetch of the boot script, and a reset after it."""
    return Step(
        "the_instance_reconciles_while_the_machine_boots",
        {"is_new": False, "path": path, "again": path, "seconds": 5, "ends": None} | facts,
    )


# Short stories of two hosts, by what happens in them: whether there is a BMC, and the steps.
STORIES_OF_HOSTS: Final[dict[str, tuple[bool, tuple[Step, ...]]]] = {
    "the deadline passes, and PostgreSQL does each call of a fetch later": (
        False,
        tuple(make_late_call(number) for number in CALLS_OF_A_FETCH),
    ),
    "the deadline passes, and each call of a fetch is lost": (
        False,
        tuple(make_late_call(number, is_lost=True) for number in CALLS_OF_A_FETCH),
    ),
    "another instance takes over between two transactions of a fetch": (
        False,
        tuple(make_late_call(number, meanwhile="take over", expires=False) for number in CALLS_OF_A_FETCH),
    ),
    "a host that was suspended goes on after another has replaced it": (
        True,
        (ASKED, make_takeover("paused"), GOES_ON, *INSTALLED, GOES_ON, make_takeover("paused"), GOES_ON),
    ),
    "a machine asks the other host after it has fetched its boot": (
        False,
        (ASKED, FIRST_BOOT[0], OTHER_HOST, FIRST_BOOT[0], OTHER_HOST, FIRST_BOOT[0]),
    ),
    "a boot is served by one host, and its instance is killed": (
        False,
        (*INSTALLED, ASKED, OTHER_HOST, INSTALLED[0], make_takeover("killed", calls=30), INSTALLED[0], OTHER_HOST),
    ),
    "the instance reads an entry before the user data is fetched": (
        False,
        (*FIRST_BOOT, make_reconcile(BY_MAC), ASKED, *FIRST_BOOT, make_reconcile(BY_GRUB)),
    ),
    "a repair ends while PostgreSQL hangs": (False, (make_end("repair", "hung"),)),
    "a wipe ends while PostgreSQL hangs": (True, (*INSTALLED, make_end("wipe", "hung", boots=False))),
}


@pytest.mark.parametrize("story", STORIES_OF_HOSTS)
def test_a_story_of_two_hosts_keeps_every_promise(story: str, postgres_server: PostgresServer) -> None:
    has_bmc, steps = STORIES_OF_HOSTS[story]
    ways = Ways(often="OnImageChange", boots=2)  # of which each boot has a key of its own
    with open_world("hosts", postgres_server) as lived:
        violations = lived.live(Life(ways, has_bmc, netboots=True, steps=steps))
    assert violations == [], "\n".join(violations)


# Lives of a site: clocks, restored backups, lost trees, proxies, kills, operators; nothing is installed twice


_log = logging.getLogger(__name__)  # figures of a long run: --log-level=info -rP

OTHER_SEED = 2027
SOME = (8, 10, 17, 22, 23, 24, 34, 35, 36)  # lives of which each does or sees what few do: together all there is
EVENT_KINDS = (
    "given: install",
    "given: repair",
    "given: wipe",
    "set",
    "consumed",
    "withdrawn",
    "power: ForceRestart",
    "power: On",
    "refused: AlreadyServed",
    "refused: ClockOff",
    "reported provisioned",
    "reported failed",
    "reported late",
    "known as provisioned",
    "acknowledged in a message",
    "endpoint killed",
    "instance killed",
)


def test_no_random_life_of_a_site_installs_a_machine_twice(lives: int) -> None:
    numbers = range(12 + lives * 12) if lives >= USUAL_LIVES else SOME
    with folder_for_lives() as folder, world(Path(folder)) as lived:
        for number in numbers:
            life = draw_life(OTHER_SEED, number)
            if lived.live(life):
                shortest = lived.shortest(life)
                pytest.fail("\n".join([f"life {number} of seed {OTHER_SEED}:", str(shortest), *lived.live(shortest)]))
        counts = lived.counts
    _log.info("%d lives: %s", len(numbers), dict(sorted(counts.items())))
    assert {name for name in KINDS if not counts[f"step: {name}"]} == set(), "never done"
    assert {name for name in EVENT_KINDS if not counts[name]} == set(), "never seen"
