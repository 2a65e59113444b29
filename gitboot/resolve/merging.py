"""Rule R7: kernel arguments and variables of a boot, from the resources that give them, the later over the earlier."""

from __future__ import annotations

from gitboot.fleet.resources import Id
from gitboot.resolve import kernel_arguments, user_data_formats
from gitboot.resolve.server_decision_from_plan import Boot, UserDataFiles
from gitboot.resolve.source import BootSource

ArgumentLists = tuple[tuple[Id, tuple[str, ...]], ...]  # by the resource that they are written in


def argument_lists(boot: Boot, source: BootSource) -> ArgumentLists:
    if boot.direct:  # the image's own arguments are built into its uki or iso
        return own_arguments(source)
    image = (Id("BootImage", source.image.metadata.name), source.image.spec.kernel_arguments)
    return (image, *own_arguments(source))


def own_arguments(source: BootSource) -> ArgumentLists:
    """The arguments that are asked for besides the image's own, in the order of R7.

    Under a maintenance they are the maintenance's: neither the policy's nor the server's apply (R2).
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


def with_user_data_arguments(merged: tuple[str, ...], user_data: UserDataFiles) -> tuple[str, ...]:
    """Adds what leads a first boot to its user data, unless the author has set it."""
    names = {kernel_arguments.name_of(argument) for argument in merged}
    added = (
        argument
        for argument in user_data_formats.arguments(user_data)
        if kernel_arguments.name_of(argument) not in names
    )
    return (*merged, *added)


def merged_vars(source: BootSource) -> dict[str, str | bool]:
    """R7 for variables: policy chain from the root down, profile, server; by name."""
    merged = {
        **(source.pool.vars if source.pool else {}),
        **source.profile.spec.vars,
        **(source.server.spec.vars if source.server else {}),
    }
    return dict(sorted(merged.items()))
