"""The way from the accepted commit to the newest, as a table of commits and of what was acknowledged in them."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from gitboot.fleet.revision import Message
from gitboot.jsonio import compute_digest
from gitboot.review.acknowledgements import format_ack_line
from gitboot.review.commit_path import MAX_STEPS, CommitPath, PathCommit, find_commit_path, find_first_provisions
from gitboot.review.guards import Area, Extent, Guard, InstanceFacts, Limits, Verdict, judge
from tests.helpers.cases import for_each

SIZE = 100
State = dict[int, int]  # the provision numbers of servers that were raised
START: State = {}


class Commit(NamedTuple):
    """A commit: what every server's provision number is, and whose changes its message acknowledges."""

    state: State
    acks: tuple[tuple[State, State], ...] = ()  # (before, after), for maxReinstalls
    valid: bool = True


def extent(old: State, new: State) -> Extent:
    pairs = [(server, old.get(server, 0), new.get(server, 0)) for server in sorted(old.keys() | new.keys())]
    changed = [pair for pair in pairs if pair[1] != pair[2]]
    raised = sum(before < after for _, before, after in changed)
    area = Area(label=None, size=SIZE, changed=len(changed), less=0, removed=0, added=0, reinstalled=raised)
    return Extent(
        digest=compute_digest(changed),
        is_first=False,
        before=SIZE,
        after=SIZE,
        installs=0,
        reinstalls=raised,
        changes_unknown_boots=False,
        resets=0,
        mutated_images=0,
        disk_claims=0,
        access=0,
        takeover=False,
        areas=(area,),
    )


def line(old: State, new: State) -> str:
    return format_ack_line(extent(old, new).digest, Guard.MAX_REINSTALLS)


def make_commit_path(
    *commits: Commit, limits: Limits | None = None, approved: tuple[tuple[State, State], ...] = ()
) -> CommitPath:
    states = [START, *(commit.state for commit in commits)]

    def judged(old: int, new: int) -> Verdict:
        assert old == 0 or commits[old - 1].valid
        assert commits[new - 1].valid
        return judge(extent(states[old], states[new]), limits or Limits())

    legs = [
        PathCommit(
            revision=f"c{number}",
            valid=commit.valid,
            messages=(Message(f"c{number}", "\n".join(["Bump", *(line(*each) for each in commit.acks)])),),
        )
        for number, commit in enumerate(commits, 1)
    ]
    return find_commit_path(legs, judged, {(extent(*each).digest, "maxReinstalls"): "op" for each in approved})


A: State = {1: 1}
AB: State = {1: 1, 2: 1}
ABC: State = {1: 1, 2: 1, 3: 1}
B: State = {2: 1}


@for_each(
    ("what", "commits", "reached"),
    [
        ("one that nobody acknowledged", [Commit(A)], 0),
        ("one that is acknowledged", [Commit(A, ((START, A),))], 1),
        ("two merges, each acknowledged", [Commit(A, ((START, A),)), Commit(AB, ((A, AB),))], 2),
        ("two merges, the second not acknowledged", [Commit(A, ((START, A),)), Commit(AB)], 1),
        ("two merges, the first not acknowledged", [Commit(A), Commit(AB, ((A, AB),))], 0),
        ("the same, and the first later", [Commit(A), Commit(AB, ((A, AB),)), Commit(AB, ((START, A),))], 3),
        ("both later, in one message", [Commit(A), Commit(AB), Commit(AB, ((START, A), (A, AB)))], 3),
        ("both later, as one", [Commit(A), Commit(AB), Commit(AB, ((START, AB),))], 3),
        (
            "a branch put on top, its last commit acknowledges all",
            [Commit(A), Commit(AB), Commit(ABC, ((START, ABC),))],
            3,
        ),
        ("a branch put on top, its first does", [Commit(A, ((START, ABC),)), Commit(AB), Commit(ABC)], 3),
        ("after another merge", [Commit(A, ((START, A),)), Commit(AB), Commit(ABC, ((A, ABC),))], 3),
        ("after one that trips nothing", [Commit(START), Commit(A), Commit(AB, ((START, AB),))], 3),
        ("and one more that nobody acknowledged", [Commit(A), Commit(AB, ((START, AB),)), Commit(ABC)], 2),
        ("taken back before anybody looked", [Commit(A), Commit(START)], 2),
        ("another is taken back, the acknowledged one stays", [Commit(A), Commit(AB, ((A, AB),)), Commit(B)], 3),
        ("an invalid one joins the next", [Commit(A, (), False), Commit(AB, ((START, AB),))], 2),
        ("an invalid one with the acknowledgement", [Commit(A, ((START, AB),), False), Commit(AB)], 2),
        ("an invalid one, and only the second's", [Commit(A, (), False), Commit(AB, ((A, AB),))], 0),
        ("made again after it was taken back", [Commit(A, ((START, A),)), Commit(START), Commit(A)], 2),
        ("made again, and acknowledged again", [Commit(A, ((START, A),)), Commit(START), Commit(A, ((START, A),))], 3),
        ("one line for two of one kind", [Commit(A), Commit(START), Commit(A, ((START, A),))], 3),
        ("an old line behind an empty commit", [Commit(START, ((START, A),)), Commit(A)], 2),
        ("one line, and another merge between two", [Commit(A), Commit(B, ((A, B),)), Commit(AB, ((START, A),))], 2),
    ],
)
def test_e19_each_merge_is_acknowledged_by_its_own_line(what: str, commits: list[Commit], reached: int) -> None:
    found = make_commit_path(*commits)
    assert found.reached == reached
    assert (found.held_step is None) == (reached == len(commits))


def test_e19_a_held_path_lists_each_step_and_all_of_them_as_one() -> None:
    found = make_commit_path(Commit(A), Commit(AB), Commit(ABC))
    assert [(hop.old, hop.new) for hop in found.unacknowledged_steps] == [(0, 1), (1, 2), (2, 3)]
    assert found.held_step is not None
    assert found.held_step.verdict.digest == extent(START, ABC).digest
    by_steps = Commit(ABC, ((START, A), (A, AB), (AB, ABC)))
    for last in (by_steps, Commit(ABC, ((START, ABC),))):
        assert make_commit_path(Commit(A), Commit(AB), Commit(ABC), last).held_step is None


def test_an_approval_counts_like_an_acknowledgement_and_once() -> None:
    assert make_commit_path(Commit(A), Commit(AB, ((A, AB),)), approved=((START, A),)).held_step is None
    again = (Commit(A), Commit(START), Commit(A))
    assert make_commit_path(*again, approved=((START, A),)).held_step is None  # what comes of it is what was approved
    more = (Commit(A), Commit(START), Commit(B, ((START, B),)), Commit(AB))
    assert make_commit_path(*more, approved=((START, A),)).reached == 3


def test_percentages_are_judged_step_by_step() -> None:
    limits = Limits(max_reinstalls=SIZE)
    states = [dict.fromkeys(range(25 * number), 1) for number in (1, 2, 3)]
    assert make_commit_path(*map(Commit, states), limits=limits).held_step is None
    assert make_commit_path(Commit(states[2]), limits=limits).held_step is not None
    assert make_commit_path(Commit(states[0], (), False), Commit(states[1]), limits=limits).held_step is not None


def test_a_line_that_acknowledges_no_change_is_reported() -> None:
    found = make_commit_path(Commit(A, ((START, A), (START, ABC))))
    assert found.held_step is None
    (stale,) = found.ignored_lines
    assert (stale.commit, stale.line) == ("c1", line(START, ABC))
    assert "other changes" in stale.why


def test_more_than_200_commits_are_judged_as_one_step() -> None:
    many = [Commit(START)] * MAX_STEPS
    assert make_commit_path(*many[:-1], Commit(A, ((START, A),))).held_step is None
    far = make_commit_path(Commit(A, ((START, AB),)), *[Commit(A)] * MAX_STEPS, Commit(AB))
    assert [(hop.old, hop.new) for hop in far.accepted_steps] == [(0, MAX_STEPS + 2)]
    two = make_commit_path(Commit(A, ((START, A),)), *[Commit(A)] * MAX_STEPS, Commit(AB, ((A, AB),)))
    assert two.held_step is not None
    assert two.held_step.verdict.digest == extent(START, AB).digest


def test_a_commit_that_is_held_for_long_is_judged_once_for_each_later_commit() -> None:
    asked = []

    def judged(old: int, new: int) -> Verdict:
        asked.append((old, new))
        return judge(extent(START, A), Limits())

    find_commit_path([PathCommit(revision=str(number), valid=True, messages=()) for number in range(MAX_STEPS)], judged)
    assert len(asked) <= 2 * MAX_STEPS + 1


def test_e22_the_acknowledgement_of_a_rewind_is_bound_to_its_two_commits() -> None:
    nothing = extent(A, A)
    rewinds = {nothing.with_rewind(*pair).digest for pair in (("a", "b"), ("a", "c"), ("b", "a"))}
    assert len(rewinds | {nothing.digest}) == 4
    back = nothing.with_rewind("a", "b")
    rewind = InstanceFacts(is_rewind=True)
    assert judge(back, Limits(), {(back.digest, "allowRewind"): "op"}, rewind).held is False
    other = nothing.with_rewind("a", "c")
    assert judge(other, Limits(), {(back.digest, "allowRewind"): "op"}, rewind).held


@given(
    numbers=st.lists(st.integers(0, 3), min_size=1, max_size=5),
    acks=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(0, 5)), max_size=4),
    invalid=st.sets(st.integers(0, 3)),
)
def test_steps_follow_each_other_and_none_is_held(
    numbers: list[int], acks: list[tuple[int, int, int]], invalid: set[int]
) -> None:
    states = [START, *({1: number & 1, 2: number >> 1} for number in numbers)]
    commits = [
        Commit(state, (), number not in invalid or number == len(numbers) - 1)
        for number, state in enumerate(states[1:])
    ]
    for at, old, new in acks:
        at, old, new = (each % size for each, size in ((at, len(commits)), (old, len(states)), (new, len(states))))
        commits[at] = commits[at]._replace(acks=(*commits[at].acks, (states[old], states[new])))
    found = make_commit_path(*commits)
    assert [hop.old for hop in found.accepted_steps] == [0, *(hop.new for hop in found.accepted_steps)][
        : len(found.accepted_steps)
    ]
    lines = 0
    for hop in found.accepted_steps:
        assert not hop.verdict.held
        lines += bool(hop.verdict.trips)
    assert lines <= sum(len(commit.acks) for commit in commits)
    assert (found.held_step is None) == (found.reached == len(commits))


def test_the_first_provision_of_a_machine_is_the_one_of_its_first_commit() -> None:
    commits = [[("old", 5), ("one", 1)], [("old", 6), ("one", 2), ("three", 3)], [("three", 1)]]
    assert find_first_provisions(["old"], commits) == {"one": 1, "three": 3}
    assert find_first_provisions([], [[("old", 7)]]) == {"old": 7}
