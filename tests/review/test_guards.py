"""Guards: what holds a commit, by which number in which group, and what acknowledges it."""

from __future__ import annotations

from dataclasses import fields

import pytest

from gitboot.fleet.revision import Message, ReinstallsNeed
from gitboot.jsonio import Digest
from gitboot.model.fields import read
from gitboot.model.fleet import Guards
from gitboot.resolve.fleet_decisions import decide
from gitboot.review.acknowledgements import AckRules, find_acknowledgements, format_ack_line
from gitboot.review.decision_changes import compare_decisions
from gitboot.review.guards import ONLY_APPROVED, Acknowledgements, Guard, InstanceFacts, Limits, judge
from tests.helpers.cases import MAX_GROWTH, for_each, measure_growth
from tests.helpers.evaluations import FLEET, Files, compare_files, review_files
from tests.helpers.fleets import SEED, document, fleet, image, maintenance, make_uuid, policy, repository, server

Tripped = set[tuple[str, str, int]]  # guard, group, number


def find_trips(new: Files, old: Files = FLEET, limits: Limits | None = None) -> Tripped:
    verdict = judge(compare_files(new, old).extent, limits or Limits())
    return {(trip.guard.value, trip.area, trip.number) for trip in verdict.trips}


def web(count: int, spec: str = "provision: 1", *, group: str = "", first: int = 0) -> Files:
    """Return so many web servers for a fleet that has none."""
    labels = "role: web" + (f", site: {group}" if group else "")
    return {f"servers/w{number}.yaml": server(f"w{number}", labels, spec) for number in range(first, first + count)}


BARE: Files = {path: text for path, text in FLEET.items() if not path.startswith("servers/")}
ARGUMENT = "provision: 1, kernelArguments: [debug]"


def make_site_ledgers(**ledgers: str) -> Files:
    sites = (
        f"{{name: {site}, select: {{matchLabels: {{site: {site}}}}}, baseURL: 'http://{site}.test', "
        f"ledger: {make_uuid(ledger)}}}"
        for site, ledger in ledgers.items()
    )
    servers = {f"servers/{site}.yaml": server(f"web-{site}", f"role: web, site: {site}") for site in ledgers}
    return {**servers, "fleet.yaml": fleet(f"baseURL: 'http://boot.test', sites: [{', '.join(sites)}]")}


@for_each(
    ("before", "after", "expected"),
    [
        ({}, {"a": "one"}, set()),
        ({"a": "one"}, {"a": "one", "b": "two"}, set()),
        ({"a": "one"}, {"a": "two"}, {("allowTakeover", "all", 1)}),
        ({"a": "one", "b": "two"}, {"b": "two"}, {("allowTakeover", "all", 1)}),
    ],
)
def test_servers_that_become_inactive_are_held_and_those_that_join_are_not(
    before: dict[str, str], after: dict[str, str], expected: Tripped
) -> None:
    gone = dict.fromkeys(make_site_ledgers(**before).keys() - make_site_ledgers(**after).keys())
    assert (
        find_trips({**BARE, **make_site_ledgers(**after), **gone}, {**BARE, **make_site_ledgers(**before)}) == expected
    )


def remove_servers(count: int) -> Files:
    return dict.fromkeys(web(count))


@for_each(
    ("what", "old", "new", "expected"),
    [
        ("30 % of 10", web(10), web(3, ARGUMENT), set()),
        ("40 % of 10", web(10), web(4, ARGUMENT), {("maxUpdatePercent", "all"), ("maxUpdatePercent", "role=web")}),
        (
            "4 of 13, which is 30.8 %",
            web(13),
            web(4, ARGUMENT),
            {("maxUpdatePercent", "all"), ("maxUpdatePercent", "role=web")},
        ),
        ("3 of 9", web(9), web(3, ARGUMENT), set()),
        ("4 of 9", web(9), web(4, ARGUMENT), {("maxSmallGroup", "all"), ("maxSmallGroup", "role=web")}),
        ("10 % of 10 removed", web(10), remove_servers(1), set()),
        (
            "20 % of 10 removed",
            web(10),
            remove_servers(2),
            {("maxDeletePercent", "all"), ("maxDeletePercent", "role=web")},
        ),
        ("3 of 9 removed", web(9), remove_servers(3), set()),
        ("4 of 9 removed", web(9), remove_servers(4), {("maxSmallGroup", "all"), ("maxSmallGroup", "role=web")}),
        ("25 of 300 removed", web(300), remove_servers(25), set()),
        ("26 of 300 removed", web(300), remove_servers(26), {("maxDeletes", "all")}),
        ("50 added", {}, web(50), set()),
        ("51 added", {}, web(51), {("maxInstalls", "all")}),
        ("51 added that are as found", {}, web(51, "provision: 0"), set()),
        (
            "a site in a large fleet",
            {**web(20, group="a"), **web(80, group="b", first=20)},
            web(7, ARGUMENT, group="a"),
            {("maxUpdatePercent", "site=a")},
        ),
        (
            "a small site in a large fleet",
            {**web(4, group="a"), **web(96, group="b", first=4)},
            web(4, ARGUMENT, group="a"),
            {("maxSmallGroup", "site=a")},
        ),
        (
            "a move from one small site to another",
            {**web(5, group="a"), **web(95, group="b", first=5)},
            {f"servers/w{n}.yaml": server(f"w{n}", "role: web, site: c", ARGUMENT) for n in range(4)},
            {("maxSmallGroup", "site=a"), ("maxSmallGroup", "site=c")},
        ),
        (
            "servers that are told to be at a small site, to make it look large",
            {**web(4, group="a"), **web(96, group="b", first=4)},
            {**web(4, ARGUMENT, group="a"), **web(96, group="a", first=4)},
            {("maxSmallGroup", "site=a")},
        ),
    ],
)
def test_percentages_count_in_the_fleet_and_in_each_group_and_numbers_in_small_ones(
    what: str, old: Files, new: Files, expected: set[tuple[str, str]]
) -> None:
    assert {(guard, area) for guard, area, _ in find_trips(new, {**BARE, **old})} == expected


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        ({"servers/fra1-web01.yaml": server("fra1-web01", "role: web, site: fra1", "provision: 2")}, "maxReinstalls"),
        ({"fleet.yaml": fleet("baseURL: 'http://boot.test', unknownServers: NotFound")}, "maxUnknownChanges"),
        ({"images/bios.yaml": image("bios-2", "kernelArguments: [debug]")}, None),  # no server boots it
        ({"images/1.yaml": image("flatcar-1", "userData: CloudInit, kernelArguments: [a]")}, "mutatedImages"),
        (dict.fromkeys(path for path in FLEET if path.startswith("servers/")), "allowEmpty"),
    ],
)
def test_a_change_that_always_needs_a_second_look_is_held(new: Files, expected: str | None) -> None:
    found = {guard for guard, _, _ in find_trips(new)}
    assert expected in found if expected else not found


def test_the_image_of_unknown_servers_counts_as_used() -> None:
    old = {**FLEET, "fleet.yaml": fleet("baseURL: 'http://boot.test', unknownServers: {profile: repair}")}
    new = {"images/memtest.yaml": image("memtest-7", "writesDisk: false, kernelArguments: [a]")}
    assert {guard for guard, _, _ in find_trips(new, old)} == {"maxReinstalls", "mutatedImages", "maxUnknownChanges"}


def test_a_fleet_that_stays_empty_is_not_held_again() -> None:
    assert find_trips({"images/3.yaml": image("new-3")}, BARE) == set()


def test_a_window_over_the_whole_fleet_is_judged_when_it_is_merged() -> None:
    assert ("maxUpdatePercent", "all", 22) in find_trips({"m.yaml": maintenance("m", "20T22:00 21T04:00")})
    assert find_trips({}, {**FLEET, "m.yaml": maintenance("m", "20T22:00 21T04:00")}) == set()


def test_a_rewound_branch_is_held_unless_it_is_allowed() -> None:
    changes = compare_files({})
    assert judge(changes.extent, Limits(), facts=InstanceFacts(is_rewind=True)).holding_guards == (Guard.ALLOW_REWIND,)
    assert not judge(changes.extent, Limits(allow_rewind=True), facts=InstanceFacts(is_rewind=True)).held
    assert not judge(changes.extent, Limits()).held


def test_a_first_commit_is_judged_only_by_its_pending_servers() -> None:
    found = repository(files={path: str(text) for path, text in {**BARE, **web(60)}.items()})
    changes = compare_decisions(None, decide(found), None, found)
    assert judge(changes.extent, Limits(), facts=InstanceFacts(pending=50)).trips == ()
    (trip,) = judge(changes.extent, Limits(), facts=InstanceFacts(pending=51)).trips
    assert (trip.guard, trip.number, trip.limit) == (Guard.MAX_INSTALLS, 51, 50)
    assert judge(changes.extent, Limits()).trips[0].number == 60


def test_returning_servers_that_would_be_installed_again_count_as_reinstalled() -> None:
    (trip,) = judge(compare_files({}).extent, Limits(), facts=InstanceFacts(returning=("a", "b"))).trips
    assert (trip.guard, trip.number) == (Guard.MAX_REINSTALLS, 2)
    found = repository(*SEED)
    first = compare_decisions(None, decide(found), None, found).extent
    assert judge(first, Limits(), facts=InstanceFacts(returning=("a",))).holding_guards == (
        Guard.MAX_REINSTALLS,
    )  # the one before cannot be read


def test_e24_a_first_commit_without_a_server_is_not_held() -> None:
    found = repository(*SEED[:1], *SEED[2:])
    assert judge(compare_decisions(None, decide(found), None, found).extent, Limits()).holding_guards == ()


# Limits


def test_a_fleet_can_tighten_limits_and_loosen_none() -> None:
    guards = read(Guards, {"maxUpdatePercent": "10", "maxDeletes": "99", "maxInstalls": "0"})
    limits = Limits().tighten(guards)
    assert (limits.max_update_percent, limits.max_deletes, limits.max_installs) == (10, 25, 0)
    assert Limits(max_update_percent=5).tighten(guards).max_update_percent == 5


def test_every_guard_of_a_fleet_is_a_limit() -> None:
    assert {each.name for each in fields(Guards)} <= set(Limits.__struct_fields__)


def test_a_commit_that_loosens_its_own_guards_is_judged_by_the_old_ones() -> None:
    def guarded(percent: int) -> Files:
        return {"fleet.yaml": fleet(f"baseURL: 'http://boot.test', guards: {{maxUpdatePercent: {percent}}}")}

    one = {"servers/fra1-web01.yaml": server("fra1-web01", "role: web, site: fra1", ARGUMENT)}
    assert not review_files(one).verdict.held  # type: ignore[union-attr]
    assert review_files({**one, **guarded(30)}, {**FLEET, **guarded(1)}).verdict.held  # type: ignore[union-attr]
    assert review_files({**one, **guarded(1)}).verdict.held  # type: ignore[union-attr]


# Acknowledgements

DIGEST = Digest("3f" * 32)
OTHER = Digest("00" * 32)
LINE = f"Gitboot-Ack: {DIGEST} maxReinstalls"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("a trailer", f"Bump\n\nSigned-off-by: Ada\n{LINE}\n"),
        ("in the middle, as a squash by GitHub leaves it", f"Bump (#7)\n\n* Bump\n\n{LINE}\n\n* Fix a comment\n"),
        ("indented, as by git merge --squash", f"Squashed commit:\n\n    Bump\n\n    {LINE}\n"),
        ("with the line ends of Windows", f"Bump\r\n\r\n{LINE}\r\n"),
    ],
)
def test_an_acknowledgement_counts_at_any_place_in_the_message(what: str, message: str) -> None:
    given, unheeded = find_acknowledgements([Message("c1", message)], DIGEST)
    assert (set(given), unheeded) == ({(DIGEST, "maxReinstalls")}, ())


def test_finding_r10_one_line_acknowledges_several_guards() -> None:
    line = f"Gitboot-Ack: {DIGEST} maxReinstalls  maxDeletes maxReinstalls"
    given, unheeded = find_acknowledgements([Message("c1", line)], DIGEST)
    assert (list(given), unheeded) == ([(DIGEST, "maxReinstalls"), (DIGEST, "maxDeletes")], ())
    given, unheeded = find_acknowledgements([Message("c1", line)], OTHER)
    assert (given, [each.line for each in unheeded]) == ({}, [line])  # told once


def test_finding_r10_a_guard_that_a_line_cannot_acknowledge_leaves_the_others() -> None:
    line = f"Gitboot-Ack: {DIGEST} maxReinstalls maxBmcChanges maxDeletes"
    given, unheeded = find_acknowledgements(
        [Message("c1", line)], DIGEST, AckRules(reinstalls_need=ReinstallsNeed.SIGNED)
    )
    assert list(given) == [(DIGEST, "maxDeletes")]
    assert [each.why.partition(" (")[0] for each in unheeded] == [
        "reinstallations need a commit that is signed with a listed key",
        "only gitboot approve can acknowledge maxBmcChanges, not a line in a commit message",
    ]


@for_each(
    ("line", "why"),
    [
        (f"Gitboot-Ack: {OTHER} maxReinstalls", "other changes"),
        (f"Gitboot-Ack: {DIGEST[:12]} maxReinstalls", "64 lower-case"),
        (f"Gitboot-Ack: {DIGEST.upper()} maxReinstalls", "64 lower-case"),
        (f"Gitboot-Ack: {DIGEST} maxReinstall", "did you mean maxReinstalls?"),
        (f"Gitboot-Ack: {DIGEST} all", "there is no guard all"),
        (f"Gitboot-Ack: {DIGEST}", "does not have the form"),
        ("Gitboot-Ack: maxReinstalls", "does not have the form"),
        ("Gitboot-Ack:", "does not have the form"),
        (f"Gitboot-Ack: {DIGEST} maxReinstalls please", "there is no guard please"),
        (f"Gitboot-Ack: {DIGEST} maxReinstalls, maxDeletes", "did you mean maxReinstalls?"),
        (f"Gitboot-Ack: {DIGEST} {DIGEST} maxReinstalls", "there is no guard"),
        (f"gitboot-ack: {DIGEST} maxReinstalls", "does not have the form"),
        (f"Gitboot-Ack {DIGEST} maxReinstalls", "does not have the form"),
    ],
)
def test_an_invalid_acknowledgement_does_not_count_and_is_reported(line: str, why: str) -> None:
    given, (unheeded,) = find_acknowledgements([Message("c1", f"Bump\n\n{line}\n")], DIGEST)
    assert (given, unheeded.commit, unheeded.line) == ({}, "c1", line)
    assert why in unheeded.why


def test_the_time_for_a_message_grows_linearly_with_its_empty_lines() -> None:
    def read(size: int) -> None:
        assert find_acknowledgements([Message("c1", LINE + "\n" * size)], DIGEST)[0]

    assert measure_growth(read, 10_000) < MAX_GROWTH


@for_each("message", ["", "Bump\n", f"> {LINE}\n", "Gitboot-Acked-by: Ada\n", f"see {LINE}\n"])
def test_a_text_that_is_not_an_acknowledgement_is_ignored(message: str) -> None:
    assert find_acknowledgements([Message("c1", message)], DIGEST) == ({}, ())


def test_an_acknowledgement_counts_only_for_its_guard_and_its_digest() -> None:
    new = {
        "servers/fra1-db01.yaml": server("fra1-db01", "site: fra1, role: db", "provision: 2"),
        "fleet.yaml": fleet("baseURL: 'http://boot.test', unknownServers: NotFound"),
    }
    changes = compare_files(new)
    both: dict[tuple[str, str], str] = {
        (changes.digest, guard.value): "Ada" for guard in (Guard.MAX_REINSTALLS, Guard.MAX_UNKNOWN_CHANGES)
    }
    assert judge(changes.extent, Limits()).holding_guards == (Guard.MAX_REINSTALLS, Guard.MAX_UNKNOWN_CHANGES)
    one: Acknowledgements = {(changes.digest, "maxReinstalls"): "Ada"}
    assert judge(changes.extent, Limits(), one).holding_guards == (Guard.MAX_UNKNOWN_CHANGES,)
    assert not judge(changes.extent, Limits(), both).held
    assert [(trip.acknowledged, trip.by) for trip in judge(changes.extent, Limits(), both).trips] == 2 * [(True, "Ada")]
    assert (
        judge(changes.extent, Limits(), {(str(OTHER), "maxReinstalls"): "Ada"}).holding_guards[0]
        is Guard.MAX_REINSTALLS
    )


def test_the_lines_that_a_review_prints_are_accepted_as_acknowledgements() -> None:
    new = {"stream.yaml": document("ImageStream", "stable", "current: flatcar-2")}
    held = review_files(new)
    lines = held.ack_lines
    assert lines == (format_ack_line(held.verdict.digest, *held.verdict.holding_guards),)  # type: ignore[union-attr]
    assert review_files(new, messages=(Message("c1", "Bump\n\n" + "\n".join(lines)),)).outcome == "fine"
    more = {**new, "policies/db.yaml": policy("db", "{matchLabels: {role: db}}", boots="db")}
    voided = review_files(more, messages=(Message("c1", "\n".join(lines)),))
    assert voided.outcome == "held"
    assert len(voided.ignored_lines) == len(lines)


@pytest.mark.parametrize("guard", sorted(ONLY_APPROVED))
def test_no_line_of_a_message_acknowledges_a_guard_that_needs_approve(guard: Guard) -> None:
    message = Message("c1", f"Gitboot-Ack: {DIGEST} {guard}")
    given, (ignored,) = find_acknowledgements([message], DIGEST)
    assert (given, ignored.why) == ({}, f"only gitboot approve can acknowledge {guard}, not a line in a commit message")
