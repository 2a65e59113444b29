"""What lets a maintenance reset a machine once more: a table, and what a guard and a review make of it."""

from __future__ import annotations

from typing import Any

from gitboot.fleet.validation import load
from gitboot.resolve.fleet_decisions import decide
from gitboot.review.decision_changes import Changes, compare
from gitboot.review.formats import phrases
from gitboot.review.guards import Guard, Limits, judge
from gitboot.review.risks import Risk
from tests.helpers.cases import for_each
from tests.helpers.fleets import SEED, maintenance, policy, server, snapshot

WINDOW = "20T22:00 21T04:00"
RESTART = "networkBoot: Once, power: Restart"


def check(spec: str = RESTART, window: str = WINDOW, **more: Any) -> str:
    return maintenance("check", window, spec, **more)


def changed(old: tuple[str, ...] | None, new: tuple[str, ...], *, servers: int = 0) -> Changes:
    others = [server(f"db{number:02}", "role: web") for number in range(servers)]

    def made(documents: tuple[str, ...]) -> Any:
        repository = load(snapshot(*SEED, *others, *documents))
        return decide(repository), repository

    after = made(new)
    before = made(old) if old is not None else (None, None)
    return compare(before[0], after[0], before[1], after[1])


@for_each(
    ("case", "old", "new", "counts"),
    [
        ("it comes", (), (check(),), True),
        ("it comes, gracefully", (), (check("power: GracefulRestart"),), True),
        ("it comes, and switches on", (), (check("networkBoot: Once, power: On"),), False),
        ("it comes, and switches nothing", (), (check("networkBoot: Once"),), False),
        ("it is told to", (check("networkBoot: Once"),), (check(),), True),
        ("it did switch on", (check("networkBoot: Once, power: On"),), (check(),), True),
        ("it asks first now", (check(),), (check("networkBoot: Once, power: GracefulRestart"),), False),
        ("its run is raised", (check(),), (check(f"{RESTART}, run: 2"),), True),
        ("its run is lowered", (check(f"{RESTART}, run: 2"),), (check(),), False),
        ("it lasts longer", (check(),), (check(window="20T22:00 21T09:00"),), False),
        ("it begins earlier", (check(),), (check(window="20T09:00 21T04:00"),), False),
        ("it is a window later", (check(),), (check(window="21T04:00 21T09:00"),), True),
        ("more at a time", (check(),), (check(f"{RESTART}, maxUnavailable: 9"),), False),
        ("it goes", (check(),), (), False),
    ],
)
def test_what_is_counted(case: str, old: tuple[str, ...], new: tuple[str, ...], counts: bool) -> None:
    changes = changed(old, new)
    assert (changes.extent.resets == 1, bool(changes.of(Risk.RESET))) == (counts, counts), case


def test_a_raised_run_is_not_less_where_nothing_else_is_asked_for() -> None:
    """A rolling restart boots the disk: that boot alone is none that was not offered before."""
    rolling = maintenance("roll", WINDOW, "networkBoot: Always, power: Restart, run: 1", boots="restart")
    disk = "apiVersion: gitboot.dev/v1alpha1\nkind: BootProfile\nmetadata: {name: restart}\nspec: {method: Disk}\n"
    (change,) = changed((disk, rolling), (disk, rolling.replace("run: 1", "run: 2"))).servers
    assert Risk.RESET in change.risks and Risk.LESS not in change.risks


def test_too_many_are_held_and_the_review_says_of_which_maintenance() -> None:
    changes = changed((), (check(f"{RESTART}, maxUnavailable: 5%, maxUnavailablePer: rack"),), servers=50)
    limits = Limits(max_update_percent=100)
    (trip,) = judge(changes.extent, limits).trips
    assert (trip.guard, trip.number, trip.limit) == (Guard.MAX_RESETS, 51, 50)
    assert not judge(changes.extent, Limits(max_update_percent=100, max_resets=51)).held


def test_a_new_server_is_counted_too() -> None:
    changes = changed(None, (check(),), servers=50)
    assert changes.extent.resets == 51


def test_who_waits_no_longer_may_be_installed_while_it_runs() -> None:
    bmc = "bmc: {address: 'https://bmc.test', credentials: rack}"
    waits = tuple(
        policy("web", often="Once", spec="waitFor: PowerOff")
        if each == SEED[-1]
        else server("web01", "role: web", bmc)
        if each == server("web01", "role: web")
        else each
        for each in SEED
    )
    does_not = tuple(each.replace("waitFor: PowerOff", "waitFor: None") for each in waits)

    def between(old: tuple[str, ...], new: tuple[str, ...]) -> frozenset[Risk]:
        before, after = (load(snapshot(*documents)) for documents in (old, new))
        (change,) = compare(decide(before), decide(after), before, after).servers
        return change.risks

    assert Risk.REINSTALL in between(waits, does_not)
    assert between(does_not, waits) == {Risk.BOOT, Risk.LESS}


def test_other_changes_are_none() -> None:
    changes = changed((check(), policy("more", "None")), (check(), policy("more", "None", "priority: 9")))
    assert changes.extent.resets == 0


def test_a_review_says_which_maintenance_resets_how_many_at_a_time() -> None:
    changes = changed((), (check(f"{RESTART}, maxUnavailable: 5%, maxUnavailablePer: rack"),))
    lines = [line for change in changes.servers for line in phrases.switched(change)]
    assert lines == ["Maintenance/check: Restart, 5% at a time of each rack"]
