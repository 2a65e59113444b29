"""Kernel arguments and variables: merge the values from several documents (rule R7)."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

from gitboot.fleet.documents import Id
from gitboot.resolve import user_data_formats
from gitboot.resolve.policy_selection import BootSource
from gitboot.resolve.server_decision import Boot, UserDataFiles

# Arguments for which a program reads every occurrence. For all other arguments, programs use only the last occurrence.
REPEATED: Final = frozenset(
    {
        # Linux: see kernel-parameters.txt.
        "acpi_osi", "amd_iommu", "cgroup_disable", "cgroup_no_v1", "console", "crashkernel", "dyndbg", "earlycon",
        "hugepages", "hugepagesz", "initcall_blacklist", "intel_iommu", "iommu", "ivrs_acpihid", "ivrs_hpet",
        "ivrs_ioapic", "memmap", "module_blacklist", "pci", "reserve_mem", "video", "virtio_mmio.device",
        # kmod and systemd: see modprobe(8), kernel-command-line(7), systemd-cryptsetup-generator(8) and
        # systemd-network-generator(8).
        "luks.data", "luks.key", "luks.name", "luks.options", "luks.uuid", "modprobe.blacklist", "modules_load",
        "net.ifname-policy", "rd.luks.data", "rd.luks.key", "rd.luks.name", "rd.luks.options", "rd.luks.uuid",
        "rd.modules_load", "rd.systemd.mask", "rd.systemd.mount-extra", "rd.systemd.pull", "rd.systemd.swap-extra",
        "rd.systemd.wants", "systemd.mask", "systemd.mount-extra", "systemd.pull", "systemd.set_credential",
        "systemd.set_credential_binary", "systemd.setenv", "systemd.swap-extra", "systemd.wants",
        # dracut and NetworkManager: see dracut.cmdline(7) and nm-initrd-generator(8).
        "bond", "bridge", "fcoe", "ifname", "ip", "nameserver", "netroot", "rd.break", "rd.dasd", "rd.dm.uuid",
        "rd.driver.blacklist", "rd.driver.post", "rd.driver.pre", "rd.ethtool", "rd.iscsi.param",
        "rd.luks.allow-discards", "rd.luks.partuuid", "rd.luks.serial", "rd.lunmask", "rd.lvm.lv", "rd.lvm.vg",
        "rd.md.uuid", "rd.net.dns", "rd.nvmf.discover", "rd.route", "rd.zfcp", "rd.znet", "rd.znet_ifname",
        "rootfallback", "team", "vlan",
        # Anaconda, SUSE linuxrc and Talos: see their lists of boot options.
        "addon", "dud", "ifcfg", "insmod", "inst.addrepo", "inst.dd", "inst.sshd_key", "talos.environment",
    }
)  # fmt: skip


@lru_cache(maxsize=4096)  # cached, because servers share most arguments
def argument_name(argument: str) -> str:
    """Return the name of an argument.

    Replace ``-`` with ``_``, because the kernel does not distinguish the two characters.
    """
    return argument.partition("=")[0].replace("-", "_")


_REPEATED_NAMES: Final = frozenset(argument_name(name) for name in REPEATED)
# The order of these arguments is important: hugepages= applies to the size before it. Source: kernel-parameters.txt.
ORDERED: Final = frozenset({"hugepages", "hugepagesz"})
_ORDERED_NAMES: Final = frozenset(argument_name(name) for name in ORDERED)


class DroppedArgument(NamedTuple):
    """A kernel argument that was dropped when several lists were merged."""

    argument: str
    list: int  # the index of the list that contains the argument
    dropped_by: int  # the index of the list that replaces, repeats or removes the argument


class MergedArguments(NamedTuple):
    """The result of a merge: the remaining kernel arguments, and the dropped arguments."""

    arguments: tuple[str, ...]
    dropped: tuple[DroppedArgument, ...]
    # items such as -quiet that did not remove an argument, each with the index of its list
    ineffective_items: tuple[tuple[int, str], ...]


@lru_cache(maxsize=1024)  # cached, because servers share most lists
def merge_arguments(lists: tuple[tuple[str, ...], ...]) -> MergedArguments:
    """Merge lists of kernel arguments, so that later lists override earlier ones.

    - Arguments within one list keep their order, and duplicates are kept.
    - ``name=value`` replaces all arguments with this name in earlier lists. If the name is in `REPEATED`, it replaces
      only equal arguments. If the name is in `ORDERED`, it replaces no arguments.
    - ``-name`` removes all earlier arguments with this name.
    - ``-name=value`` removes only this argument.
    - ``--`` and Debian's ``---`` are arguments. After them, ``-name`` is an argument and does not remove other
      arguments.
    """
    result: list[tuple[str, int]] = []  # pairs of an argument and the index of its list
    dropped: list[DroppedArgument] = []
    ineffective_items: list[tuple[int, str]] = []

    def drop(number: int, is_dropped: Callable[[str], bool], kept: list[tuple[str, int]]) -> list[tuple[str, int]]:
        dropped.extend(DroppedArgument(text, origin, number) for text, origin in kept if is_dropped(text))
        return [(text, origin) for text, origin in kept if not is_dropped(text)]

    for number, arguments in enumerate(lists):
        current: list[tuple[str, int]] = []
        has_separator = False
        for argument in arguments:
            if has_separator or not argument.startswith("-") or is_separator(argument):
                has_separator = has_separator or is_separator(argument)
                current.append((argument, number))
                continue
            removed = argument[1:]
            before = len(dropped)
            is_removed = removed.__eq__ if "=" in removed else _make_name_matcher(removed)
            result = drop(number, is_removed, result)
            current = drop(number, is_removed, current)
            if len(dropped) == before:
                ineffective_items.append((number, argument))
        for argument, _ in current:
            name = argument_name(argument)
            if is_separator(argument) or name in _ORDERED_NAMES:
                continue
            is_replaced = argument.__eq__ if name in _REPEATED_NAMES else _make_name_matcher(argument)
            result = drop(number, is_replaced, result)
        result += current
    return MergedArguments(tuple(text for text, _ in result), tuple(dropped), tuple(ineffective_items))


def is_separator(argument: str) -> bool:
    """Return whether the argument is ``--`` or ``---``.

    The kernel passes the arguments after ``--`` to init. The installers of Debian and Ubuntu add the arguments after
    ``---`` to the boot loader configuration of the installed system.
    """
    return argument.startswith("-") and not argument.strip("-")


def _make_name_matcher(argument: str) -> Callable[[str], bool]:
    name = argument_name(argument)
    return lambda other: argument_name(other) == name and not is_separator(other)


# lists of arguments, each with the document that contains the list
ArgumentLists = tuple[tuple[Id, tuple[str, ...]], ...]


def collect_argument_lists(boot: Boot, source: BootSource) -> ArgumentLists:
    """Return the lists of arguments from all documents that apply to a boot, in the order of rule R7."""
    if boot.is_direct:  # the kernel arguments of the image are part of its UKI or ISO
        return collect_own_arguments(source)
    image = (Id("BootImage", source.image.metadata.name), source.image.spec.kernel_arguments)
    return (image, *collect_own_arguments(source))


def collect_own_arguments(source: BootSource) -> ArgumentLists:
    """Return the lists of arguments from all documents except the image, in the order of rule R7.

    During a maintenance, the arguments of the policy and of the server do not apply (rule R2).
    """
    lists: list[tuple[Id, tuple[str, ...]]] = []
    if source.pool is not None:
        lists += (
            (Id("BootPolicy", name), arguments)
            for name, arguments in zip(source.pool.chain, source.pool.kernel_arguments, strict=True)
        )
    lists.append((source.profile_id, source.profile.spec.kernel_arguments))
    if source.server is not None and source.maintenance is None:
        lists.append((Id("Server", source.server.metadata.name), source.server.spec.kernel_arguments))
    return tuple(lists)


def add_user_data_arguments(arguments: tuple[str, ...], user_data: UserDataFiles) -> tuple[str, ...]:
    """Add the arguments that contain the URL of the user data, unless the author has set these arguments.

    Insert them before the first separator, because installers copy the arguments after ``---`` to the installed system.
    """
    names = {argument_name(argument) for argument in arguments}
    user_data_arguments = user_data_formats.user_data_arguments(user_data)
    added = (argument for argument in user_data_arguments if argument_name(argument) not in names)
    end = next((number for number, argument in enumerate(arguments) if is_separator(argument)), len(arguments))
    return (*arguments[:end], *added, *arguments[end:])


def merge_vars(source: BootSource) -> dict[str, str | bool]:
    """Merge the variables of the policies (starting at the root), the profile and the server. Sort them by name."""
    merged = {
        **(source.pool.vars if source.pool else {}),
        **source.profile.spec.vars,
        **(source.server.spec.vars if source.server else {}),
    }
    return dict(sorted(merged.items()))
