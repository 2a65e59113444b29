"""Rule R7: kernel arguments from several places become one list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gitboot.resolve.kernel_arguments import REPEATED, argument_name, merge_arguments
from tests.helpers.cases import for_each


@for_each(
    ("case", "lists", "expected"),
    [
        ("in the written order", ["a b", "c"], "a b c"),
        ("a later value replaces", ["root=a quiet", "root=b"], "quiet root=b"),
        ("a later flag replaces a value", ["x=1", "x"], "x"),
        ("- and _ are one in a name", ["foo-bar=1", "foo_bar=2"], "foo_bar=2"),
        ("consoles add up", ["console=tty0", "console=ttyS0,115200"], "console=tty0 console=ttyS0,115200"),
        (
            "the same console occurs once, last",
            ["console=ttyS0 console=tty0", "console=ttyS0"],
            "console=tty0 console=ttyS0",
        ),
        ("addresses add up", ["ip=dhcp", "ip=10.0.0.1::10.0.0.254"], "ip=dhcp ip=10.0.0.1::10.0.0.254"),
        ("-name removes", ["quiet a", "-quiet"], "a"),
        ("-name removes with any value", ["root=a", "-root"], ""),
        ("-name removes each that adds up", ["console=a console=b", "-console"], ""),
        ("-name=value removes just that", ["console=a console=b", "-console=a"], "console=b"),
        ("a removed argument may be added again", ["quiet", "-quiet", "quiet"], "quiet"),
        ("removing no argument changes nothing", ["a", "-b"], "a"),
        ("dashes alone are an argument", ["a --", "--- b"], "a -- --- b"),
    ],
)
def test_arguments_merge(case: str, lists: list[str], expected: str) -> None:
    assert " ".join(merge_arguments(tuple(tuple(each.split()) for each in lists))) == expected, case


arguments = st.from_regex(r"-?[a-c]{1,2}(=[a-c]{0,2})?", fullmatch=True) | st.sampled_from(sorted(REPEATED))


@given(st.lists(st.lists(arguments).map(tuple)).map(tuple))
def test_a_name_that_must_be_unique_occurs_once(lists: tuple[tuple[str, ...], ...]) -> None:
    names = [argument_name(argument) for argument in merge_arguments(lists)]
    repeated = {argument_name(name) for name in REPEATED}
    single = [name for name in names if name not in repeated]
    assert len(single) == len(set(single))


@given(st.lists(arguments.filter(lambda argument: not argument.startswith("-"))).map(tuple))
def test_merging_twice_changes_nothing(given: tuple[str, ...]) -> None:
    once = merge_arguments((given,))
    assert merge_arguments((once,)) == once
