"""Rule R6: whether a boot can work: image, method and firmware agree, and what is asked for reaches the system."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from gitboot.fleet.resources import Id
from gitboot.model.boot_image import Artifact, Artifacts, ConfigFrom
from gitboot.model.boot_policy import HttpBoot, Method
from gitboot.model.server import Firmware
from gitboot.problems.codes import Code
from gitboot.quoting import Unquotable, grub_arguments, ipxe_arguments
from gitboot.resolve import user_data_formats
from gitboot.resolve.merging import ArgumentLists
from gitboot.resolve.server_decision_from_plan import Boot, UserDataFiles
from gitboot.resolve.source import BootSource, Unbootable


def artifacts_of(source: BootSource) -> Artifacts:
    """What the image has for the machine, if that suits the method and machines can fetch it; `Unbootable` if not."""
    image = source.image.metadata.name
    artifacts = source.image.spec.architectures.get(source.architecture)
    if artifacts is None:
        raise _wrong_machine(
            source,
            Code.NO_ARTIFACT,
            f"BootImage/{image} has nothing for {source.architecture}",
            "add the architecture to the image, or narrow who boots it",
        )
    _check_complete(source, artifacts)
    if not source.mirrors and any(
        artifact is not None and artifact.url.startswith("oci:") for artifact in _all(artifacts)
    ):
        raise Unbootable(
            Code.NOT_MIRRORED,
            f"BootImage/{image} has files in a registry, from which no machine fetches",
            Code.NOT_MIRRORED.hint,
            Id("BootImage", image),
            *("spec", "architectures", str(source.architecture)),
        )
    return artifacts


def _wrong_method(source: BootSource, code: Code, message: str, hint: str) -> Unbootable:
    return Unbootable(code, message, hint, source.profile_id, "spec", "method")


def _wrong_machine(source: BootSource, code: Code, message: str, hint: str) -> Unbootable:
    """The profile may suit others: what chose it for this machine is looked at first."""
    resource, path = source.chosen_by
    return Unbootable(code, f"{message}; it is booted by {source.profile_id}", hint, resource, *path)


def _check_complete(source: BootSource, artifacts: Artifacts) -> None:
    image, spec = source.image.metadata.name, source.profile.spec
    lacking = [need for need in _needs(source, artifacts) if getattr(artifacts, need) is None]
    if lacking:
        raise _wrong_method(
            source,
            Code.NO_ARTIFACT,
            f"BootImage/{image} has no {' and no '.join(lacking)} for {source.architecture}, which method "
            f"{spec.method} needs" + (f" with httpBoot {spec.http_boot}" if spec.http_boot else ""),
            "add the artifact to the image, or change the method",
        )


def _needs(source: BootSource, artifacts: Artifacts) -> tuple[str, ...]:
    """The artifacts that the method boots, on firmware that it works on."""
    spec, uefi = source.profile.spec, source.firmware is Firmware.UEFI
    if spec.method is Method.UEFI_HTTP:
        if not uefi:
            message = "method UefiHttp needs firmware UEFI, found BIOS"
            raise _wrong_machine(source, Code.FIRMWARE, message, Code.FIRMWARE.hint)
        return _HTTP_BOOT_NEEDS[spec.http_boot or HttpBoot.LOADER]
    if spec.method is Method.VIRTUAL_MEDIA:
        return ("iso",)
    if artifacts.kernel is None and artifacts.uki is not None and not uefi:
        raise _wrong_machine(
            source,
            Code.FIRMWARE,
            f"BootImage/{source.image.metadata.name} has a uki and no kernel for {source.architecture}, "
            "which BIOS cannot boot",
            Code.FIRMWARE.hint,
        )
    return ("kernel",) if artifacts.uki is None else ()


_HTTP_BOOT_NEEDS: Final[Mapping[HttpBoot, tuple[str, ...]]] = {
    HttpBoot.UKI: ("uki",),
    HttpBoot.ISO: ("iso",),
    HttpBoot.LOADER: ("loader", "kernel"),
}


def _all(artifacts: Artifacts) -> tuple[Artifact | None, ...]:
    single = (artifacts.kernel, artifacts.rootfs, artifacts.uki, artifacts.iso, artifacts.loader)
    return (*single, *artifacts.initrds)


def check_way_in(boot: Boot, source: BootSource, own: ArgumentLists, user_data: UserDataFiles | None) -> None:
    """Arguments, user data, labels and taints reach the system by this boot, or `Unbootable`."""
    if user_data is not None and boot.config_from is ConfigFrom.MEDIUM:
        _check_medium(boot, source, user_data)
    elif boot.direct:
        _check_direct_boot(boot, source, own, user_data)
    elif user_data is not None and boot.config_from is ConfigFrom.NONE:
        raise Unbootable(
            Code.NO_WAY_IN,
            f"BootImage/{boot.image} says configFrom: None, so user data does not reach it",
            "leave out userData, or correct the image's configFrom",
            source.profile_id,
            *("spec", "userData"),
        )


def _check_medium(boot: Boot, source: BootSource, user_data: UserDataFiles) -> None:
    """A second medium can be inserted, and the system looks for what is on it."""
    if boot.method is not Method.VIRTUAL_MEDIA:
        raise _wrong_method(
            source,
            Code.NO_WAY_IN,
            f"BootImage/{boot.image} says configFrom: Medium, and method {boot.method} inserts none",
            "boot it by method VirtualMedia, or correct the image's configFrom",
        )
    if user_data_formats.volume(user_data.format) is None:
        raise Unbootable(
            Code.NO_WAY_IN,
            f"BootImage/{boot.image} says configFrom: Medium, and no system looks for {user_data.format} on a medium",
            "build it into the image, or boot a kernel, which is told where it is",
            source.profile_id,
            *("spec", "userData", "format"),
        )


def _check_direct_boot(boot: Boot, source: BootSource, own: ArgumentLists, user_data: UserDataFiles | None) -> None:
    """What is booted without a loader is given nothing, but for what its system fetches itself."""
    asks_by_uuid = boot.config_from is ConfigFrom.SYSTEM_UUID
    if asks_by_uuid and user_data is not None and user_data_formats.family(user_data.format).value == "Ignition":
        return  # all of it can stand in the Ignition document that the system fetches
    giver = next((resource for resource, arguments in own if arguments), None)
    what, resource, path = None, source.profile_id, ("spec", "method")
    if user_data is not None:
        what, path = "user data", ("spec", "userData")
    elif giver is not None:
        what, resource, path = "kernel arguments", giver, ("spec", "kernelArguments")
    elif source.pool is not None and (boot.node_labels or boot.node_taints):
        what, resource, path = "node labels and taints", Id("BootPolicy", source.pool.name), ("spec", "profile")
    if what is not None:
        file = "iso" if boot.files.uki is None or boot.http_boot is HttpBoot.ISO else "uki"
        raise Unbootable(
            Code.NO_WAY_IN,
            f"{what} cannot reach BootImage/{boot.image}, which is booted directly as {file}",
            Code.NO_WAY_IN.hint,
            resource,
            *path,
        )


def check_command_line(
    merged: tuple[str, ...], source: BootSource, places: Callable[[], Mapping[str, tuple[Id, int]]]
) -> None:
    """Loaders and the kernel take the arguments as they are, or `Unbootable`; ``places``: where each is written."""
    try:
        _carried(merged)
    except Unquotable as error:
        resource, path = _to_look_at(merged, source, places())
        raise Unbootable(Code.UNQUOTABLE, error.message, Code.UNQUOTABLE.hint, resource, *path) from None


def _carried(arguments: tuple[str, ...]) -> None:
    ipxe_arguments(arguments)
    grub_arguments(arguments)


def _to_look_at(
    merged: tuple[str, ...], source: BootSource, places: Mapping[str, tuple[Id, int]]
) -> tuple[Id, tuple[str | int, ...]]:
    """The argument that cannot be carried; where each alone could be, the list that the longest part comes from."""
    lengths: Counter[Id] = Counter()
    for argument in (argument for argument in merged if argument in places):
        resource, number = places[argument]
        try:
            _carried((argument,))
        except Unquotable:
            return resource, ("spec", "kernelArguments", number)
        lengths[resource] += len(argument)
    longest = max(lengths, key=lambda resource: lengths[resource], default=source.profile_id)
    return longest, ("spec", "kernelArguments")
