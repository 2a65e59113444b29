"""Kernel arguments and variables: merge the lists of documents (rule R7)."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from gitboot.fleet.resources import Id
from gitboot.resolve import user_data_formats
from gitboot.resolve.policy_selection import BootSource
from gitboot.resolve.server_decision import Boot, UserDataFiles

# Arguments of which the kernel, dracut, systemd and installers read every value. Of other arguments, only the last
# value counts. Sources: Linux kernel-parameters.txt; dracut.cmdline(7); systemd(1), kernel-command-line(7); Anaconda
# boot options.
REPEATED: Final = frozenset(
    {
        "bond", "bridge", "console", "earlycon", "hugepages", "hugepagesz", "ifname",
        "inst.addrepo", "inst.dd", "inst.sshd_key", "ip", "memmap", "modprobe.blacklist", "module_blacklist",
        "nameserver", "rd.break", "rd.driver.blacklist", "rd.driver.post", "rd.driver.pre", "rd.luks.key",
        "rd.luks.name", "rd.luks.options", "rd.luks.uuid", "rd.lvm.lv", "rd.lvm.vg", "rd.md.uuid", "rd.route",
        "rd.znet", "systemd.mask", "systemd.setenv", "systemd.wants", "team", "vlan",
    }
)  # fmt: skip


@lru_cache(maxsize=4096)  # servers share most arguments
def argument_name(argument: str) -> str:
    """Return the name that an argument sets, with ``-`` and ``_`` unified, because the kernel treats them as equal."""
    return argument.partition("=")[0].replace("-", "_")


_REPEATED_NAMES: Final = frozenset(argument_name(name) for name in REPEATED)


@lru_cache(maxsize=1024)  # servers share most lists
def merge_arguments(lists: tuple[tuple[str, ...], ...]) -> tuple[str, ...]:
    """Merge lists of kernel arguments. Later lists override earlier lists.

    - ``name=value`` replaces earlier arguments with this name, except for the names in `REPEATED`.
    - ``-name`` removes all earlier arguments with this name.
    - ``-name=value`` removes only this argument.
    - An argument of only dashes (``--``, Debian's ``---``) is an ordinary argument.
    """
    result: list[str] = []
    for argument in (argument for each in lists for argument in each):
        if argument.startswith("-") and argument.strip("-"):
            removed = argument[1:]
            result = [
                kept
                for kept in result
                if (kept != removed if "=" in removed else argument_name(kept) != argument_name(removed))
            ]
            continue
        if argument_name(argument) not in _REPEATED_NAMES:
            result = [kept for kept in result if argument_name(kept) != argument_name(argument)]
        elif argument in result:
            result.remove(argument)
        result.append(argument)
    return tuple(result)


ArgumentLists = tuple[tuple[Id, tuple[str, ...]], ...]  # each list with its document


def collect_argument_lists(boot: Boot, source: BootSource) -> ArgumentLists:
    if boot.direct:  # the arguments of the image are built into its uki or iso
        return collect_own_arguments(source)
    image = (Id("BootImage", source.image.metadata.name), source.image.spec.kernel_arguments)
    return (image, *collect_own_arguments(source))


def collect_own_arguments(source: BootSource) -> ArgumentLists:
    """Return all arguments except those of the image, in the order of rule R7.

    Under a maintenance, the arguments of the policy and of the server do not apply (R2).
    """
    lists: list[tuple[Id, tuple[str, ...]]] = []
    if source.pool is not None:
        lists += (
            (Id("BootPolicy", name), given)
            for name, given in zip(source.pool.chain, source.pool.kernel_arguments, strict=True)
        )
    lists.append((source.profile_id, source.profile.spec.kernel_arguments))
    if source.server is not None and source.maintenance is None:
        lists.append((Id("Server", source.server.metadata.name), source.server.spec.kernel_arguments))
    return tuple(lists)


def add_user_data_arguments(arguments: tuple[str, ...], user_data: UserDataFiles) -> tuple[str, ...]:
    """Add the arguments with the URL of the user data, unless the author set them."""
    names = {argument_name(argument) for argument in arguments}
    added = (
        argument
        for argument in user_data_formats.user_data_arguments(user_data)
        if argument_name(argument) not in names
    )
    return (*arguments, *added)


def merge_vars(source: BootSource) -> dict[str, str | bool]:
    """Merge the variables of policies (from the root), profile and server, sorted by name (rule R7)."""
    merged = {
        **(source.pool.vars if source.pool else {}),
        **source.profile.spec.vars,
        **(source.server.spec.vars if source.server else {}),
    }
    return dict(sorted(merged.items()))
