"""Boot checks: find boots that cannot work or are not safe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import combinations
from typing import Final
from urllib.parse import urlsplit

from gitboot.fleet.identities import identities
from gitboot.fleet.resources import FleetRepository, Id
from gitboot.jsonio import format_instant
from gitboot.model.boot_image import Artifact, Artifacts, BootImage, ConfigFrom, SkewMode
from gitboot.model.boot_policy import (
    HttpBoot,
    Method,
    NetworkBoot,
    OverrideMode,
    PolicyPower,
    PolicyWait,
    ReinstallMode,
    Window,
)
from gitboot.model.scalars import shown, version_key
from gitboot.model.server import PROVISIONED, Firmware, Server
from gitboot.problems import Code, Problem, Severity
from gitboot.quoting import Unquotable, grub_arguments, ipxe_arguments
from gitboot.resolve import user_data_formats
from gitboot.resolve.decision_inputs import (
    _OF_IPXE,
    _WITHOUT_HTTPS,
    BootInputs,
    DecisionFinding,
    Field,
    FleetTerms,
    templates_of,
)
from gitboot.resolve.kernel_arguments import ArgumentLists
from gitboot.resolve.plan_at_time import harmless_boot
from gitboot.resolve.policy_selection import BootSource, Unbootable
from gitboot.resolve.secret_scan import Secret, leaks, secrets_of_file
from gitboot.resolve.server_decision import Boot, Decision, MaintenanceDecision, UserDataFiles, provisioned_token
from gitboot.text import count, some


def check_leaks(boot: Boot, inputs: BootInputs, server: Server | None) -> Iterator[DecisionFinding]:
    """Whatever looks like a secret, in what is published: where it stands in a template, or else at the profile."""
    known: set[str] = set()
    for path in templates_of(inputs.profile):
        for secret in secrets_of_file(inputs.files[path])[:_MOST_IN_A_FILE]:
            known.add(secret.digest)
            yield _of_file(path, secret)
    own: list[str] = [boot.user_data.digest] if boot.user_data is not None else []
    if server is not None:
        own += (provisioned_token(server.uuid, server.spec.provision, boot.image), server.boot_macs[0])
    for leak in leaks(boot, frozenset(known), own):
        field = "kernelArguments" if leak.is_argument else "userData"
        place = (Id("BootProfile", inputs.profile.metadata.name), ("spec", field))
        why = inputs.allowances.get(field)
        message = f"what looks like {leak.what} would be published: {leak.where}"
        if why is not None:
            yield DecisionFinding(Code.ALLOWED_SECRET, f"{message}; allowed: {why}", "", place, Severity.WARNING)
        else:
            yield DecisionFinding(Code.SECRET, message, Code.SECRET.hint, place, leak.severity)


_MOST_IN_A_FILE: Final = 50


def _of_file(path: str, secret: Secret) -> DecisionFinding:
    message = f"what looks like {secret.what} would be published"
    if secret.allowed is not None:
        message = f"{message}; allowed: {secret.allowed}"
        return DecisionFinding(Code.ALLOWED_SECRET, message, "", (path, secret.line), Severity.WARNING)
    return DecisionFinding(Code.SECRET, message, Code.SECRET.hint, (path, secret.line), secret.severity)


def check_skew(server: Server, inputs: BootInputs) -> Iterator[DecisionFinding]:
    """Yield that an image is older than its stream wants, at the field that chose the image."""
    image, skew = inputs.image, inputs.skew
    if image is None or skew is None or skew.mode is SkewMode.NONE:
        return
    version = image.spec.version
    if version_key(version) < version_key(skew.minimum_version):
        stream = f"ImageStream/{inputs.profile.spec.stream} wants at least {skew.minimum_version}"
        message = f"BootImage/{image.metadata.name} is version {version}, and {stream}"
        severity = Severity.ERROR if skew.mode is SkewMode.ENFORCE else Severity.WARNING
        place = (inputs.chosen_by or Id("Server", server.metadata.name), inputs.chosen_at)
        yield DecisionFinding(Code.SKEW, message, Code.SKEW.hint, place, severity)


def check_override(boot: Boot | None, override: OverrideMode, resource: Id) -> Iterator[DecisionFinding]:
    """An override that stands on, with a boot that no entry can end."""
    if boot is not None and boot.direct and override is OverrideMode.CONTINUOUS:
        message = f"override Continuous with BootImage/{boot.image}, which is booted directly"
        place = (resource, ("spec", "override"))
        yield DecisionFinding(Code.OVERRIDE_MODE, message, Code.OVERRIDE_MODE.hint, place)


def check_power(power: PolicyPower, network_boot: NetworkBoot, policy: Id) -> Iterator[DecisionFinding]:
    """A policy that switches on for a boot that is made once, and has none."""
    if power is PolicyPower.ON and network_boot in (NetworkBoot.ALWAYS, NetworkBoot.NEVER):
        message = f"power On switches a machine on for a boot that is made once, and networkBoot is {network_boot}"
        hint = "leave out power, or write networkBoot Once or OnImageChange"
        yield DecisionFinding(Code.COMBINATION, message, hint, (policy, ("spec", "power")))


def check_wait(wait_for: PolicyWait, server: Server, policy: Id) -> Iterator[DecisionFinding]:
    """A server that would wait for ever: nothing shows when it is off."""
    if wait_for is PolicyWait.POWER_OFF and server.spec.bmc is None:
        message = f"waitFor PowerOff, and Server/{server.metadata.name} has no bmc that could show it"
        hint = "give it a bmc, or let another policy select it"
        yield DecisionFinding(Code.COMBINATION, message, hint, (policy, ("spec", "waitFor")))


def check_identities(server: Server) -> Iterator[DecisionFinding]:
    """Yield each identity of a server that identifies no machine.

    The commit that an instance accepted may have one, if an earlier version accepted it: see `is_accepted_before`.
    """
    for each in identities(server):
        if each.is_placeholder:
            message = f"the {each.what} {each.value} identifies no machine: many machines show it"
            is_compared = "reports" in each.path or each.path == ("spec", "replaces")
            hint = "leave it out" if is_compared else _HOW_TO_IDENTIFY[each.what]
            place = (Id("Server", server.metadata.name), each.path)
            yield DecisionFinding(Code.PLACEHOLDER_IDENTITY, message, hint, place, is_shared=False)


_HOW_TO_IDENTIFY: Final = {
    "UUID": "set a UUID in the machine's firmware and write that; until then, leave uuid out",
    "serial": "set a serial number in the machine's firmware and write that, or leave serial out",
    "MAC address": "copy the address from the interface itself",
}


def check_uuid(server: Server, boot: Boot | None, resource: Id) -> Iterator[DecisionFinding]:
    """A boot that needs to know which machine it is, of a server whose UUID is not known."""
    if server.spec.uuid is not None or boot is None:
        return
    if boot.writes_disk or boot.asks_by_uuid:
        what = "writes disks" if boot.writes_disk else "asks for its user data by UUID"
        message = f"{resource} boots BootImage/{boot.image}, which {what}, and the UUID of the server is not known"
        hint = "write its uuid; until it is known lifecycle: Parked, or what writes no disk"
        place = (Id("Server", server.metadata.name), ("spec",))
        yield DecisionFinding(Code.UUID_NEEDED, message, hint, place)


def check_authority(server: Server, ends: datetime | None) -> Iterator[DecisionFinding]:
    """Yield that the authority by which gitboot verifies the BMC of a server has expired, from its end on."""
    bmc, code = server.spec.bmc, Code.EXPIRED_AUTHORITY
    if bmc is not None and bmc.tls.ca is not None and bmc.tls.verify and ends is not None:
        message = f"the authority for BMCs expired at {format_instant(ends)}: gitboot rejects what it signed"
        yield DecisionFinding(code, message, code.hint, (bmc.tls.ca, 1), Severity.WARNING, since=ends)


def check_site(fleet: FleetTerms, server: Server, sites: Sequence[str]) -> Iterator[DecisionFinding]:
    """A server of no site, or of several, where each has an instance of its own."""
    if not fleet.has_instances_by_site or len(sites) == 1:
        return
    found = f"the sites {some(sites)} select it" if sites else "no site selects it"
    message = f"each site has its own instance, and {found}"
    place = (Id("Server", server.metadata.name), ("metadata",))
    yield DecisionFinding(Code.ONE_SITE, message, Code.ONE_SITE.hint, place, is_shared=False)


def check_every_boot(
    boot: Boot | None, network_boot: NetworkBoot, reinstall: ReinstallMode, resource: Id
) -> Iterator[DecisionFinding]:
    """Disks that would be written at every boot, where no word says that this is meant."""
    if boot is None or not boot.writes_disk or network_boot is not NetworkBoot.ALWAYS:
        return
    if reinstall is not ReinstallMode.EVERY_BOOT:
        message = f"{resource} boots BootImage/{boot.image}, which writes disks, at every boot"
        yield DecisionFinding(Code.EVERY_BOOT, message, Code.EVERY_BOOT.hint, (resource, ("spec", "networkBoot")))


def check_end(boot: Boot | None, window: Window, maintenance: Id) -> Iterator[DecisionFinding]:
    """A window without an end in which disks are written."""
    if boot is not None and boot.writes_disk and window.end is None:
        message = f"{maintenance} boots BootImage/{boot.image}, which writes disks, and its window has no end"
        yield DecisionFinding(Code.ENDLESS, message, Code.ENDLESS.hint, (maintenance, ("spec", "window")))


def check_overlaps(maintenances: Iterable[MaintenanceDecision]) -> Iterator[DecisionFinding]:
    """Yield each tie of two maintenances, which holds until their overlap is over, also if that lies ahead."""
    for one, other in combinations(maintenances, 2):
        if one.priority == other.priority and (both := one.overlap(other)) is not None:
            yield DecisionFinding(
                Code.MAINTENANCE_TIE,
                f"Maintenance/{one.name} and Maintenance/{other.name} have one priority, and overlap {_when(*both)}",
                Code.MAINTENANCE_TIE.hint,
                (Id("Maintenance", other.name), ("spec", "window")),
                beside=Id("Maintenance", one.name),
                until=both[1],
            )


def _when(start: datetime | None, end: datetime | None) -> str:
    bounds = (("from", start), ("until", end))
    return " ".join(f"{word} {format_instant(bound)}" for word, bound in bounds if bound is not None) or "at all times"


def declared(fleet: FleetTerms, server: Server) -> int | DecisionFinding | None:
    """The number that Git says is provisioned, where that is the evidence; or what is wrong with it."""
    if not fleet.is_declared:
        return None
    text = server.metadata.annotations.get(PROVISIONED)
    if text is None or (text.isascii() and text.isdecimal() and len(text) < 19):  # as in any whole number
        return None if text is None else int(text)
    return DecisionFinding(
        Code.INTEGER,
        f"expected a whole number, found {shown(text)}",
        f'write the provision number that is installed: {PROVISIONED}: "1"',
        (Id("Server", server.metadata.name), ("metadata", "annotations", PROVISIONED)),
        is_shared=False,
    )


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


def check_copies(fleet: FleetTerms, decision: Decision) -> Iterator[DecisionFinding]:
    """Yield a warning for each thing that copies of the boot files cannot do for a server, as its commit has it."""
    if decision.endpoint is None and not decision.copies.one_time_boots and any(_one_time_boots(decision)):
        message = "no copy of the boot files serves a one-time boot or records a fetch, and no endpoint is named"
        place = (Id("Fleet", fleet.name), ("spec", "endpoint"))
        yield _warning(Code.NO_ENDPOINT, message, place)
    if fleet.serving.late_ends is not None:
        return
    for maintenance in decision.maintenances:
        if (why := _late_end(fleet, decision, maintenance)) is not None:
            message = f"Maintenance/{maintenance.name}: {why}"
            place = (Id("Maintenance", maintenance.name), ("spec", "window"))
            yield _warning(Code.LATE_END, message, place)


def _warning(code: Code, message: str, place: tuple[Id, Field]) -> DecisionFinding:
    return DecisionFinding(code, message, code.hint, place, Severity.WARNING, most_named=_MOST_NAMED)


_MOST_NAMED: Final = 20  # servers in one line


def _one_time_boots(decision: Decision) -> Iterator[Boot]:
    """Yield the boots of a server that write its disk and are served once."""
    for each in (decision.policy, *decision.maintenances):
        if each is not None and (boot := each.boot) is not None and boot.writes_disk and each.network_boot in _ONCE:
            yield boot


_ONCE: Final = (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)


def _late_end(fleet: FleetTerms, decision: Decision, maintenance: MaintenanceDecision) -> str | None:
    """Return why copies cannot end a maintenance on time; None: they can, or have nothing to end."""
    boot, alone = maintenance.boot, harmless_boot(decision.policy)
    if boot is None and alone is None:
        return None  # the disk, before and after the end
    is_once = boot is not None and boot.writes_disk and maintenance.network_boot in _ONCE
    if is_once and not decision.copies.one_time_boots:
        return None  # no copy has the boot
    if decision.endpoint is None:
        return "no endpoint is named, so a copy of the boot files ends it only with the next copy"
    unable = sorted(_unable(fleet, decision, boot, alone))
    if not unable:
        return None
    return f"{' and '.join(unable)} cannot ask {decision.endpoint} for its end, so copies do not have it for them"


def _unable(fleet: FleetTerms, decision: Decision, boot: Boot | None, alone: Boot | None) -> Iterator[str]:
    """Yield the loaders, and other ways to boot, that cannot ask the endpoint whether a maintenance has ended."""
    outputs = frozenset(fleet.outputs)
    if boot is None and decision.restrict:
        yield "boot loaders that find no boot script for the disk (serving.restrict or localDisk: NotFound)"
        return
    if urlsplit(decision.endpoint or "").scheme == "https":
        if not decision.copies.ipxe_https and outputs & _OF_IPXE:
            yield "iPXE"
        yield from (name for name, its in _WITHOUT_HTTPS if outputs & its)
    if any(each is not None and each.direct and each.http_boot is not None for each in (boot, alone)):
        yield "UEFI HTTP boot"
    if boot is not None and alone is not None and boot.asks_by_uuid and alone.asks_by_uuid:
        yield "a system that asks for its user data by UUID"


# Which labels kubelet accepts: kubernetes/staging/src/k8s.io/kubelet/pkg/apis/well_known_labels.go (KubeletLabels,
# KubeletLabelNamespaces) and kubernetes/cmd/kubelet/app/options/options.go (isKubernetesLabel).
_KUBERNETES: Final = ("kubernetes.io", "k8s.io")
_ACCEPTED_NAMESPACES: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")
_ACCEPTED: Final = frozenset(
    {
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/instance-type",
        "beta.kubernetes.io/os",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "kubernetes.io/arch",
        "kubernetes.io/hostname",
        "kubernetes.io/os",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    }
)
# What people write until they have a digest; the third is that of `gitboot init`.
_PLACEHOLDERS: Final = frozenset({"0" * 64, "f" * 64, "feedc0de" * 8, "deadbeef" * 8})


def rejected_labels(repository: FleetRepository) -> Iterator[Problem]:
    """Yield a warning for each node label of a policy that kubelet rejects."""
    for name, policy in repository.policies.items():
        for key in policy.spec.node_labels:
            if not is_accepted_by_kubelet(key):
                yield repository.problem(
                    Code.KUBELET_LABEL,
                    f"kubelet does not start with the node label {key}",
                    Id("BootPolicy", name),
                    *("spec", "nodeLabels", key),
                    hint=Code.KUBELET_LABEL.hint,
                    severity=Severity.WARNING,
                )


def is_accepted_by_kubelet(key: str) -> bool:
    """Return whether kubelet accepts a label's key in `--node-labels`."""
    namespace, slash, _ = key.partition("/")
    if not slash or not _is_in(namespace, _KUBERNETES):
        return True
    return key in _ACCEPTED or _is_in(namespace, _ACCEPTED_NAMESPACES)


def _is_in(namespace: str, domains: tuple[str, ...]) -> bool:
    return any(namespace == each or namespace.endswith(f".{each}") for each in domains)


def placeholder_digests(repository: FleetRepository) -> Iterator[Problem]:
    """Yield a warning for each image with placeholders in place of digests, at the first one."""
    for name, image in repository.images.items():
        if found := [path for path, digest in _digests(image) if digest in _PLACEHOLDERS]:
            yield repository.problem(
                Code.PLACEHOLDER_DIGEST,
                f"BootImage/{name} has {count(len(found), 'placeholder digest')}",
                Id("BootImage", name),
                *found[0],
                hint=Code.PLACEHOLDER_DIGEST.hint,
                severity=Severity.WARNING,
            )


def _digests(image: BootImage) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield where the digest of each file of an image is written, and the digest."""
    for architecture, artifacts in image.spec.architectures.items():
        of_architecture: tuple[str | int, ...] = ("spec", "architectures", architecture)
        for field in ("kernel", "rootfs", "uki", "iso", "loader"):
            if (artifact := getattr(artifacts, field)) is not None:
                yield (*of_architecture, field, "sha256"), artifact.sha256
        for number, initrd in enumerate(artifacts.initrds):
            yield (*of_architecture, "initrds", number, "sha256"), initrd.sha256
