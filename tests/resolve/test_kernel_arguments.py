"""Rule R7: kernel arguments from several places become one list."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gitboot.jsonio import Digest
from gitboot.resolve.kernel_arguments import REPEATED, add_user_data_arguments, argument_name, merge_arguments
from gitboot.resolve.server_decision import UserDataFiles
from tests.helpers.cases import for_each

KERNEL_ARGUMENTS_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "kernel-arguments.md"


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
        ("one list keeps what its author wrote", ["root=a quiet root=b quiet"], "root=a quiet root=b quiet"),
        (
            "huge pages of two sizes keep their order",
            ["hugepagesz=1G hugepages=16 hugepagesz=2M hugepages=16"],
            "hugepagesz=1G hugepages=16 hugepagesz=2M hugepages=16",
        ),
        (
            "huge pages of a later list do not change those of an earlier one",
            ["hugepagesz=1G hugepages=16", "hugepagesz=2M hugepages=16"],
            "hugepagesz=1G hugepages=16 hugepagesz=2M hugepages=16",
        ),
        ("a later list replaces each repetition", ["a=1 a=2", "a=3"], "a=3"),
        (
            "memory below 4 GiB is a second crashkernel",
            ["crashkernel=1G,high", "crashkernel=256M,low"],
            "crashkernel=1G,high crashkernel=256M,low",
        ),
        ("ACPI interfaces add up", ["acpi_osi=!", "acpi_osi=Linux"], "acpi_osi=! acpi_osi=Linux"),
        (
            "modules to load add up",
            ["modules_load=nvme", "modules_load=mlx5"],
            "modules_load=nvme modules_load=mlx5",
        ),
        (
            "iSCSI values add up",
            ["rd.iscsi.param=a=1", "rd.iscsi.param=b=2"],
            "rd.iscsi.param=a=1 rd.iscsi.param=b=2",
        ),
        ("LUKS data devices add up", ["rd.luks.data=a=/b", "rd.luks.data=c=/d"], "rd.luks.data=a=/b rd.luks.data=c=/d"),
        ("rules of dynamic debug add up", ["dyndbg=+p", "dyndbg=-p"], "dyndbg=+p dyndbg=-p"),
        (
            "reserved memory adds up",
            ["reserve_mem=1M:4K:a", "reserve_mem=1M:4K:b"],
            "reserve_mem=1M:4K:a reserve_mem=1M:4K:b",
        ),
        (
            "cgroup controllers add up",
            ["cgroup_no_v1=memory", "cgroup_no_v1=cpu"],
            "cgroup_no_v1=memory cgroup_no_v1=cpu",
        ),
        ("IOAPICs add up", ["ivrs_ioapic=1@0:14.0", "ivrs_ioapic=2@0:0.1"], "ivrs_ioapic=1@0:14.0 ivrs_ioapic=2@0:0.1"),
        ("images to pull add up", ["systemd.pull=a:b", "systemd.pull=c:d"], "systemd.pull=a:b systemd.pull=c:d"),
        (
            "policies for names of NICs add up",
            ["net.ifname-policy=mac,A", "net.ifname_policy=path,B"],
            "net.ifname-policy=mac,A net.ifname_policy=path,B",
        ),
        ("LUKS serial numbers add up", ["rd.luks.serial=a", "rd.luks.serial=b"], "rd.luks.serial=a rd.luks.serial=b"),
        ("DNS servers of the initramfs add up", ["rd.net.dns=a", "rd.net.dns=b"], "rd.net.dns=a rd.net.dns=b"),
        ("behind -- a dash is an argument of init", ["c -- -c"], "c -- -c"),
        ("a removal reaches behind the separator of an earlier list", ["a --- quiet", "-quiet"], "a ---"),
        ("a separator of an earlier list does not hide a removal", ["quiet ---", "-quiet b"], "--- b"),
    ],
)
def test_arguments_merge(case: str, lists: list[str], expected: str) -> None:
    assert " ".join(merge_arguments(tuple(tuple(each.split()) for each in lists)).arguments) == expected, case


arguments = st.from_regex(r"-?[a-c]{1,2}(=[a-c]{0,2})?", fullmatch=True) | st.sampled_from(sorted(REPEATED))


@for_each(
    ("lists", "dropped"),
    [
        (["root=a quiet", "root=b"], [("root=a", 0, 1)]),
        (["console=a console=b", "console=a"], [("console=a", 0, 1)]),
        (["a=1 b", "-a", "-b"], [("a=1", 0, 1), ("b", 0, 2)]),
        (["a -a"], [("a", 0, 0)]),
        (["root=a root=b"], []),
    ],
)
def test_the_merge_lists_each_argument_that_it_drops(lists: list[str], dropped: list[tuple[str, int, int]]) -> None:
    assert list(merge_arguments(tuple(tuple(each.split()) for each in lists)).dropped) == dropped


def test_the_merge_lists_each_removal_without_effect() -> None:
    assert merge_arguments((("a", "-b"), ("-a", "-a"))).ineffective_items == ((0, "-b"), (1, "-a"))


@given(st.lists(st.lists(arguments).map(tuple)).map(tuple))
def test_no_argument_disappears_without_being_listed(lists: tuple[tuple[str, ...], ...]) -> None:
    merged = merge_arguments(lists)
    written = Counter(each for arguments in lists for each in arguments if not each.startswith("-"))
    assert Counter(merged.arguments) + Counter(each.argument for each in merged.dropped) == written


@given(st.lists(arguments.filter(lambda argument: not argument.startswith("-"))).map(tuple))
def test_finding_p8_one_list_stays_as_its_author_wrote_it(arguments: tuple[str, ...]) -> None:
    assert merge_arguments((arguments,)).arguments == arguments


@given(st.lists(st.lists(arguments).map(tuple)).map(tuple))
def test_two_lists_do_not_both_set_a_name_that_counts_once(lists: tuple[tuple[str, ...], ...]) -> None:
    repeated = {argument_name(name) for name in REPEATED}
    last = {
        argument_name(each): number for number, arguments in enumerate(lists) for each in arguments if each[:1] != "-"
    }
    for argument in merge_arguments(lists).arguments:
        name = argument_name(argument)
        assert name in repeated or argument in lists[last[name]]


@for_each(
    ("arguments", "expected"),
    [
        (("quiet",), "quiet inst.ks=URL"),
        (("quiet", "---", "console=ttyS0"), "quiet inst.ks=URL --- console=ttyS0"),
        (("--", "single", "---"), "inst.ks=URL -- single ---"),
        (("inst.ks=mine", "---"), "inst.ks=mine ---"),
    ],
)
def test_finding_p9_arguments_for_the_user_data_stand_before_the_first_separator(
    arguments: tuple[str, ...], expected: str
) -> None:
    user_data = UserDataFiles(format="Kickstart", files={}, digest=Digest("0" * 64), url="URL")
    assert " ".join(add_user_data_arguments(arguments, user_data)) == expected


def test_the_documentation_lists_the_arguments_that_may_repeat() -> None:
    text = KERNEL_ARGUMENTS_PAGE.read_text().partition("These arguments may occur several times: ")[2]
    listed = re.findall(r"`([a-z][\w.-]*)`", text)
    assert sorted(listed) == sorted(REPEATED)
