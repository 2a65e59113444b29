"""Boot checks: find boots that cannot work or are unsafe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache
from itertools import combinations
from typing import Final
from urllib.parse import urlsplit

from gitboot.fleet.documents import Id
from gitboot.fleet.identities import Identity, list_identities
from gitboot.jsonio import format_instant
from gitboot.model.boot_image import Artifact, Artifacts, ConfigFrom, SkewMode
from gitboot.model.boot_policy import (
    BootProfile,
    HttpBoot,
    Method,
    NetworkBoot,
    OverrideMode,
    PolicyPower,
    PolicyWait,
    ReinstallMode,
)
from gitboot.model.certificates import read_certificate_expiries
from gitboot.model.fleet import Output
from gitboot.model.scalars import Path, quote_value, split_member_url
from gitboot.model.server import PROVISIONED, Architecture, Firmware, Loader, Server
from gitboot.problems import Code, Severity
from gitboot.quoting import QuotingError, quote_grub_arguments, quote_ipxe_arguments
from gitboot.resolve import user_data_formats
from gitboot.resolve.decision_inputs import (
    FILE,
    IPXE_OUTPUTS,
    LOADER_OUTPUTS,
    OUTPUTS_WITHOUT_HTTPS,
    BootInputs,
    DecisionFinding,
    FleetSettings,
    MaintenanceInputs,
    ServerInputs,
    list_templates,
)
from gitboot.resolve.kernel_arguments import ArgumentLists
from gitboot.resolve.plan_at_time import find_harmless_boot
from gitboot.resolve.policy_selection import BootSource, Pool, Unbootable
from gitboot.resolve.secret_scan import find_leaks, find_secrets_in_file
from gitboot.resolve.server_decision import (
    INSTALL_MODES,
    Boot,
    Decision,
    MaintenanceDecision,
    UserDataFiles,
    report_token,
)
from gitboot.text import format_names, version_key

Place = tuple[Id, Path]  # a document and a field
_MAX_SECRETS_PER_FILE: Final = 50  # gitboot reports at most this many secrets for one file
_MAX_NAMED: Final = 20  # a message contains the names of at most this many servers, and the number of the others
_IDENTITY_HINTS: Final = {
    "UUID": "set a UUID in the machine's firmware and write it here; until then, remove uuid",
    "serial": "set a serial number in the machine's firmware and write it here, or remove serial",
    "MAC address": "copy the MAC address from the network interface",
}
_OUTPUT_BY_LOADER: Final = {Loader.IPXE: Output.IPXE, Loader.GRUB: Output.GRUB, Loader.SHIM: Output.GRUB}
_HTTP_BOOT_FILES: Final[Mapping[HttpBoot, tuple[str, ...]]] = {
    HttpBoot.UKI: ("uki",),
    HttpBoot.ISO: ("iso",),
    HttpBoot.LOADER: ("loader", "kernel"),
}


def check_leaks(boot: Boot, inputs: BootInputs, server: Server | None) -> Iterator[DecisionFinding]:
    """Yield each possible secret that gitboot would publish.

    A finding points to a line of a template, or to the profile if the line is unknown.
    """
    known = set[str]()
    for path in list_templates(inputs.profile):
        secrets = sorted(find_secrets_in_file(inputs.files[path]), key=lambda each: each.severity)  # errors first
        for secret in secrets[:_MAX_SECRETS_PER_FILE]:
            known.add(secret.digest)
            yield _make_leak_finding(
                f"this looks like {secret.kind}, and gitboot would publish it",
                (Id(FILE, path), (secret.line,)),
                secret.severity,
                secret.allowance,
            )
    server_values: list[str] = [boot.user_data.digest] if boot.user_data is not None else []
    if server is not None:
        server_values += (report_token(server.uuid, server.spec.provision, boot.image), server.boot_macs[0])
    for leak in find_leaks(boot, frozenset(known), server_values):
        field = "kernelArguments" if leak.is_argument else "userData"
        yield _make_leak_finding(
            f"{leak.location} looks like {leak.kind}, and gitboot would publish it",
            (Id("BootProfile", inputs.profile.metadata.name), ("spec", field)),
            leak.severity,
            inputs.allowances.get(field),
        )


def check_first_boot(boot: Boot, inputs: BootInputs) -> Iterator[DecisionFinding]:
    """Yield a warning if no kernel argument makes Ignition run. Skip UKIs and ISOs, which have built-in arguments."""
    if (
        boot.user_data is not None
        and not boot.is_direct
        and user_data_formats.lacks_ignition_argument(boot.user_data.format, boot.kernel_arguments)
    ):
        yield DecisionFinding(
            Code.NO_FIRST_BOOT,
            f"BootImage/{boot.image} boots with Ignition user data, but no kernel argument makes Ignition run",
            Code.NO_FIRST_BOOT.hint,
            (Id("BootProfile", inputs.profile.metadata.name), ("spec", "userData")),
            Severity.WARNING,
        )


def _make_leak_finding(message: str, place: Place, severity: Severity, allowance: str | None) -> DecisionFinding:
    """Return the finding for a possible secret. ``allowance`` is the author's reason to publish the secret."""
    if allowance is not None:
        return DecisionFinding(Code.ALLOWED_SECRET, f"{message}; allowed: {allowance}", "", place, Severity.WARNING)
    return DecisionFinding(Code.SECRET, message, Code.SECRET.hint, place, severity)


def check_policy_selection(inputs: ServerInputs) -> Iterator[DecisionFinding]:
    """Yield a finding if several policies with the same priority select a server, or if no policy selects the server
    (rule R3).
    """
    shared, name = inputs.shared, inputs.server.metadata.name
    if shared.tie_names:
        yield DecisionFinding(
            Code.POLICY_TIE,
            f"{' and '.join(f'BootPolicy/{each}' for each in shared.tie_names)} select the server at the same priority",
            "raise the priority of one policy, make one inherit from the other, or narrow a selector",
            (Id("BootPolicy", shared.tie_names[-1]), ("spec", "select")),
        )
    elif shared.is_unselected:
        yield DecisionFinding(
            Code.NO_POLICY,
            f"no BootPolicy selects {name}",
            "select the server in a policy, set `policy` in the Server document, or park the server",
            (Id("Server", name), ("metadata", "name")),
            Severity.ERROR if shared.fleet.requires_policy else Severity.WARNING,
            is_shared=False,
        )


def check_server(inputs: ServerInputs) -> Iterator[DecisionFinding]:
    """Yield the problems with a server's identities, BMC, boot loader and site.

    An instance does not accept a new commit with a placeholder identity. If it has already accepted the commit, it
    keeps the commit, because earlier versions did not check for placeholders.
    """
    server, fleet, sites = inputs.server, inputs.shared.fleet, inputs.shared.sites
    server_id = Id("Server", server.metadata.name)
    for identity in list_identities(server):
        if identity.is_placeholder:
            yield _make_placeholder_finding(server_id, identity)
    yield from _check_bmc_authority(inputs)
    loader = inputs.loader
    if loader is not None and _OUTPUT_BY_LOADER[loader] not in fleet.outputs:
        output, is_set_by_server = _OUTPUT_BY_LOADER[loader], server.spec.loader is not None
        yield DecisionFinding(
            Code.COMBINATION,
            f"DHCP would offer the loader {loader}, but the Fleet's outputs do not include {output}",
            f"add {output} to the Fleet's outputs, or choose another loader",
            (server_id, ("spec", "loader")) if is_set_by_server else (Id("Fleet", fleet.name), ("spec", "hardware")),
        )
    if inputs.secure_boot:
        for message, hint, place in _check_secure_boot(inputs):
            yield DecisionFinding(Code.SECURE_BOOT, message, hint, place, Severity.WARNING)
    if fleet.has_instances_by_site and len(sites) != 1:
        selection = f"the sites {format_names(sites)} select the server" if sites else "no site selects the server"
        yield DecisionFinding(
            Code.ONE_SITE,
            f"each server must belong to exactly one site, but {selection}",
            Code.ONE_SITE.hint,
            (server_id, ("metadata",)),
            is_shared=False,
        )


def _make_placeholder_finding(server_id: Id, identity: Identity) -> DecisionFinding:
    message = f"the {identity.kind} {identity.value} does not identify a machine, because many machines share it"
    is_compared = "reports" in identity.path or identity.path == ("spec", "replaces")
    hint = "remove the value" if is_compared else _IDENTITY_HINTS[identity.kind]
    return DecisionFinding(Code.PLACEHOLDER_IDENTITY, message, hint, (server_id, identity.path), is_shared=False)


def _check_bmc_authority(inputs: ServerInputs) -> Iterator[DecisionFinding]:
    """Yield a warning if a CA certificate for a server's BMC is malformed, or from the time at which all expire."""
    bmc, code = inputs.server.spec.bmc, Code.EXPIRED_AUTHORITY
    if bmc is None or bmc.tls.ca is None or not bmc.tls.verify:
        return
    expiries = _read_authority_expiries(inputs.files[bmc.tls.ca])
    expiry = max(expiries or (), default=None)
    if expiries is None:
        message = "the CA file for BMCs contains a malformed certificate, so gitboot cannot use the file"
    elif expiry is not None:
        message = (
            f"the CA certificate for BMCs expired at {format_instant(expiry)}, so gitboot rejects certificates "
            "signed by this CA"
        )
    else:
        return
    yield DecisionFinding(code, message, code.hint, (Id(FILE, bmc.tls.ca), (1,)), Severity.WARNING, since=expiry)


@lru_cache(maxsize=1024)  # cached, because many servers share the same certificates
def _read_authority_expiries(certificates: bytes) -> tuple[datetime, ...] | None:
    return read_certificate_expiries(certificates)


def _check_secure_boot(inputs: ServerInputs) -> Iterator[tuple[str, str, Place]]:
    """Yield a message, a hint and a place for each setting that prevents a planned boot when Secure Boot is on.

    Only `gitboot doctor` and `gitboot bmc diff` can check whether the files have signatures.
    """
    server, shared = inputs.server, inputs.shared
    server_id, hardware = Id("Server", server.metadata.name), (Id("Fleet", shared.fleet.name), ("spec", "hardware"))
    if server.spec.firmware is not Firmware.UEFI:
        hint = f"remove secureBoot from {server_id}"
        if server.spec.secure_boot is None:
            hint = (
                f"a `hardware` entry in Fleet/{shared.fleet.name} sets secureBoot; write secureBoot: false in "
                f"{server_id}, or change the entry's selector"
            )
        message = "secureBoot is true, but the firmware is BIOS, which does not support Secure Boot"
        yield message, hint, (server_id, ("spec", "firmware"))
        return
    place: Place = (server_id, ("spec", "loader")) if server.spec.loader is not None else hardware
    if inputs.loader is Loader.GRUB:
        yield (
            "Secure Boot is on, but DHCP names the unsigned GRUB that gitboot builds",
            "write loader: Shim, or remove the field `loader`",
            place,
        )
    if server.spec.secure_boot is not None:
        place = server_id, ("spec", "secureBoot")
    boots = [shared.boot, *(maintenance.boot for maintenance in shared.maintenances)]
    pxe_profiles = [boot.profile for boot in boots if boot is not None and boot.profile.spec.method is Method.PXE]
    if pxe_profiles and inputs.loader is None:
        yield (
            "Secure Boot is on, but the Fleet's outputs do not include grub, so DHCP names an unsigned iPXE",
            "add grub to the Fleet's outputs, or write loader: iPXE if your iPXE is signed",
            place,
        )
    elif pxe_profiles and inputs.loader is Loader.SHIM:
        yield from _check_signed_grub(shared.base_url, pxe_profiles, place)


def _check_signed_grub(
    base_url: str, pxe_profiles: Iterable[BootProfile], place: Place
) -> Iterator[tuple[str, str, Place]]:
    """Yield a message, a hint and a place for each setting that does not work with the signed GRUB."""
    if base_url.startswith("https:"):
        yield (
            f"Secure Boot is on, so GRUB boots the server, but GRUB cannot fetch from {base_url}",
            "use an http base URL, boot a signed uki with method: UefiHttp, or use a signed iPXE (loader: iPXE)",
            place,
        )
    for profile in pxe_profiles:
        templates, name = profile.spec.templates, profile.metadata.name
        if templates.ipxe is not None and templates.grub is None:
            yield (
                f"Secure Boot is on, so GRUB boots the server, but BootProfile/{name} has only an iPXE template",
                "add templates.grub to the profile, or write loader: iPXE if your iPXE is signed",
                (Id("BootProfile", name), ("spec", "templates")),
            )


def check_loader_signatures(inputs: ServerInputs, decision: Decision) -> Iterator[DecisionFinding]:
    """Yield a warning for each boot whose `loaderSignature` is ignored by the program that boots the server."""
    pairs = [(decision.policy.boot, inputs.shared.boot)] if decision.policy is not None else []
    maintenances = zip(decision.maintenances, inputs.shared.maintenances, strict=True)
    pairs += [(maintenance.boot, maintenance_inputs.boot) for maintenance, maintenance_inputs in maintenances]
    for boot, boot_inputs in pairs:
        if boot is not None and boot_inputs is not None:
            loader, architecture = find_lax_loader(inputs, boot_inputs.profile), decision.architecture
            yield from check_loader_signature(boot, boot_inputs, loader, architecture, secure_boot=inputs.secure_boot)


def check_loader_signature(
    boot: Boot, inputs: BootInputs, loader: tuple[str, Place] | None, architecture: Architecture, *, secure_boot: bool
) -> Iterator[DecisionFinding]:
    """Yield a warning if a boot has a `loaderSignature`, but the program that boots the machine ignores the signature.

    ``loader`` is a loader that does not verify files, with the field that sets the loader, or None if iPXE may boot
    the machine. With ``secure_boot``, the firmware verifies the signature in the UKI.
    """
    artifacts = inputs.image.spec.architectures.get(architecture) if inputs.image is not None else None
    if artifacts is None or not any(each.loader_signature for _, each in artifacts.files()):
        return
    name, template = inputs.profile.metadata.name, boot.entries.get("ipxe")
    hint = "let iPXE boot the image (loader: iPXE), or remove loaderSignature from the image"
    place: Place
    if boot.is_direct and boot.method is not Method.PXE:
        kind = "uki" if boot.http_boot is HttpBoot.UKI else "iso"
        if kind == "uki" and secure_boot:
            return
        program, place = f"the firmware that boots the {kind}", (Id("BootProfile", name), ("spec", "method"))
        hint = "boot the image with iPXE (method: Pxe), or remove loaderSignature and sign the uki for Secure Boot"
    elif loader is not None:
        program, place = loader
    elif template is not None and "imgverify" not in template:
        program, place = "the iPXE template", (Id("BootProfile", name), ("spec", "templates", "ipxe"))
        hint = "run imgtrust and imgverify in the template, or remove loaderSignature from the image"
    else:
        return
    message = f"BootImage/{boot.image} has a loaderSignature, but {program} does not verify it"
    yield DecisionFinding(Code.LOADER_SIGNATURE, message, hint, place, Severity.WARNING)


def find_lax_loader(inputs: ServerInputs, profile: BootProfile) -> tuple[str, Place] | None:
    """Return the loader that boots a server without verifying a `loaderSignature`, and the field that sets the loader.

    Return None if iPXE may boot the server. With `httpBoot: loader`, the firmware does not start the loader that DHCP
    names. It starts the image's loader, which may be iPXE.
    """
    server, fleet = inputs.server, inputs.shared.fleet
    server_id, hardware = Id("Server", server.metadata.name), (Id("Fleet", fleet.name), ("spec", "hardware"))
    is_named_by_dhcp = server.spec.firmware is Firmware.UEFI and profile.spec.method is not Method.UEFI_HTTP
    if is_named_by_dhcp and inputs.loader in (Loader.GRUB, Loader.SHIM) and Output.GRUB in fleet.outputs:
        if server.spec.loader is not None:
            return "GRUB", (server_id, ("spec", "loader"))
        is_set_by_server = inputs.shared.loader is None and server.spec.secure_boot is not None
        return "GRUB", (server_id, ("spec", "secureBoot")) if is_set_by_server else hardware
    return find_output_ignoring_signatures(fleet.name, fleet.outputs, server.spec.firmware)


def find_output_ignoring_signatures(
    fleet: str, outputs: Iterable[Output], firmware: Firmware = Firmware.UEFI
) -> tuple[str, Place] | None:
    """Return the loader for a Fleet's boot scripts and the field ``outputs``, or None if a boot script is for iPXE."""
    loader_outputs = LOADER_OUTPUTS.intersection(outputs)
    if not loader_outputs or loader_outputs & IPXE_OUTPUTS:
        return None
    is_grub = Output.PXELINUX not in loader_outputs or (firmware is Firmware.UEFI and Output.GRUB in loader_outputs)
    return "GRUB" if is_grub else "PXELINUX", (Id("Fleet", fleet), ("spec", "outputs"))


def check_policy(
    inputs: ServerInputs, pool: Pool, boot_inputs: BootInputs, boot: Boot | None, override: OverrideMode
) -> Iterator[DecisionFinding]:
    """Yield the problems that a server would have with its policy's boot. ``inputs`` are the inputs of the server."""
    fleet, server, policy = inputs.shared.fleet, inputs.server, Id("BootPolicy", pool.name)
    yield from _check_boot(server, policy, boot_inputs, boot, override, pool.network_boot, pool.reinstall)
    counts_fetches = fleet.accepts_fetches and pool.network_boot in INSTALL_MODES
    has_ipxe = not IPXE_OUTPUTS.isdisjoint(fleet.outputs) and find_lax_loader(inputs, boot_inputs.profile) is None
    verifies = has_ipxe and boot is not None and boot.signature_files
    if counts_fetches and boot is not None and verifies and not boot.proves_start:
        yield DecisionFinding(
            Code.COMBINATION,
            "with `evidence: Fetched`, an installation counts as complete once iPXE fetches the boot script, even if "
            f"iPXE then rejects a file from BootImage/{boot.image}",
            "set `provisioning.evidence: Reported` in the Fleet and let the installer report completion, or let the "
            "system fetch user data",
            (Id("BootImage", boot.image), ("spec", "architectures")),
            Severity.WARNING,
        )
    waits = pool.wait_for is PolicyWait.POWER_OFF and pool.network_boot is NetworkBoot.ALWAYS
    switches_on = pool.power is PolicyPower.ON and pool.network_boot not in INSTALL_MODES
    for is_useless, field, value in ((switches_on, "power", "On"), (waits, "waitFor", "PowerOff")):
        if is_useless:
            yield DecisionFinding(
                Code.COMBINATION,
                f"`{field}: {value}` applies only to one-time boots, but `networkBoot` is {pool.network_boot}",
                f"set `{field}: None`, or set `networkBoot` to Once or OnImageChange",
                (policy, ("spec", field)),
                Severity.WARNING if field == "waitFor" else Severity.ERROR,
            )
    # without a BMC, gitboot would never offer the boot
    if pool.wait_for is PolicyWait.POWER_OFF and server.spec.bmc is None:
        yield DecisionFinding(
            Code.COMBINATION,
            f"waitFor: PowerOff needs a BMC, but Server/{server.metadata.name} has no bmc",
            "set bmc, or let another policy select the server",
            (policy, ("spec", "waitFor")),
        )


def check_maintenance(
    server: Server, inputs: MaintenanceInputs, boot: Boot | None, override: OverrideMode
) -> Iterator[DecisionFinding]:
    """Yield the problems that a server would have with the boot of a maintenance."""
    spec, key = inputs.maintenance.spec, Id("Maintenance", inputs.maintenance.metadata.name)
    yield from _check_boot(server, key, inputs.boot, boot, override, spec.network_boot, spec.reinstall)
    if spec.before is not None and spec.before.approval is not None and spec.before.approval.file is not None:
        for line in inputs.malformed_lines:
            yield DecisionFinding(
                Code.DIGEST,
                "the line does not contain an approval",
                "write the Maintenance's name and the digest that `gitboot plan` shows, or begin a comment with '#'",
                (Id(FILE, spec.before.approval.file), (line,)),
                is_shared=False,
            )
    if spec.before is not None and spec.before.drain is not None and server.spec.bmc is None:
        yield DecisionFinding(
            Code.COMBINATION,
            f"`drain` requires a BMC, but Server/{server.metadata.name} does not set `bmc`",
            "set `bmc` in the Server document, or exclude the server from the selector",
            (key, ("spec", "before", "drain")),
        )
    if boot is not None and boot.writes_disk and spec.window.end is None:
        yield DecisionFinding(
            Code.ENDLESS,
            f"{key} boots BootImage/{boot.image}, which writes to disk, but the maintenance window has no end",
            Code.ENDLESS.hint,
            (key, ("spec", "window")),
        )


def _check_boot(
    server: Server,
    resource: Id,
    inputs: BootInputs,
    boot: Boot | None,
    override: OverrideMode,
    network_boot: NetworkBoot,
    reinstall: ReinstallMode,
) -> Iterator[DecisionFinding]:
    server_id = Id("Server", server.metadata.name)
    yield from _check_skew(inputs, server_id)
    if boot is None:
        return
    # A direct boot does not run a boot script, which could end a Continuous override.
    if boot.is_direct and override is OverrideMode.CONTINUOUS:
        yield DecisionFinding(
            Code.OVERRIDE_MODE,
            f"override is Continuous, but BootImage/{boot.image} boots directly, without a boot loader",
            Code.OVERRIDE_MODE.hint,
            (resource, ("spec", "override")),
        )
    is_always = network_boot is NetworkBoot.ALWAYS
    if boot.writes_disk and is_always and reinstall is not ReinstallMode.EVERY_BOOT:
        yield DecisionFinding(
            Code.EVERY_BOOT,
            f"{resource} boots BootImage/{boot.image}, which writes to disk, each time the server starts",
            Code.EVERY_BOOT.hint,
            (resource, ("spec", "networkBoot")),
        )
    is_uuid_needed = (boot.writes_disk or boot.fetches_by_uuid) and network_boot is not NetworkBoot.NEVER
    if is_uuid_needed and server.spec.uuid is None:
        reason = "an image that writes to disk" if boot.writes_disk else "an image that fetches its user data by UUID"
        yield DecisionFinding(
            Code.UUID_NEEDED,
            f"{resource} boots BootImage/{boot.image}, {reason}, but the server has no uuid",
            "set `uuid`; until you know it, set `lifecycle: Parked`, or boot an image that does not write to disk",
            (server_id, ("spec",)),
        )


def _check_skew(inputs: BootInputs, server_id: Id) -> Iterator[DecisionFinding]:
    """Yield a finding if an image is older than its stream allows."""
    image, skew = inputs.image, inputs.skew
    if image is None or skew is None or skew.mode is SkewMode.NONE:
        return
    version = image.spec.version
    if version_key(version) < version_key(skew.minimum_version):
        stream = f"ImageStream/{inputs.profile.spec.stream} requires at least version {skew.minimum_version}"
        yield DecisionFinding(
            Code.SKEW,
            f"BootImage/{image.metadata.name} is version {version}, but {stream}",
            Code.SKEW.hint,
            (inputs.chosen_by or server_id, inputs.chosen_at),
            Severity.ERROR if skew.mode is SkewMode.ENFORCE else Severity.WARNING,
        )


def check_overlaps(maintenances: Iterable[MaintenanceDecision]) -> Iterator[DecisionFinding]:
    """Yield a finding for each pair of maintenances that have the same priority and overlapping windows.

    The finding ends when the overlap ends.
    """
    for first, second in combinations(maintenances, 2):
        if first.priority == second.priority and (overlap := first.find_overlap(second)) is not None:
            bounds = zip(("from", "until"), overlap, strict=True)
            times = " ".join(f"{word} {format_instant(bound)}" for word, bound in bounds if bound is not None)
            yield DecisionFinding(
                Code.MAINTENANCE_TIE,
                f"Maintenance/{first.name} and Maintenance/{second.name} have the same priority and overlap "
                f"{times or 'at all times'}",
                Code.MAINTENANCE_TIE.hint,
                (Id("Maintenance", second.name), ("spec", "window")),
                other_id=Id("Maintenance", first.name),
                until=overlap[1],
            )


def parse_declared_provision(fleet: FleetSettings, server: Server) -> int | DecisionFinding | None:
    """Return the provision number that, according to an annotation, is already installed on a server.

    Return a finding if the annotation is invalid, or None if there is no annotation.
    """
    text = server.metadata.annotations.get(PROVISIONED)
    if not fleet.is_declared or text is None:
        return None
    if text.isascii() and text.isdecimal() and len(text) < 19:  # in documents, an integer has at most 18 digits
        return int(text)
    return DecisionFinding(
        Code.INTEGER,
        f"expected a whole number, found {quote_value(text)}",
        f'write the installed provision number, for example {PROVISIONED}: "1"',
        (Id("Server", server.metadata.name), ("metadata", "annotations", PROVISIONED)),
        is_shared=False,
    )


def select_artifacts(source: BootSource) -> Artifacts:
    """Return the artifacts that an image has for the architecture of a machine.

    Raises `Unbootable` if the image lacks an artifact that the boot method or the machine needs.
    """
    image, spec = source.image.metadata.name, source.profile.spec
    artifacts = source.image.spec.architectures.get(source.architecture)
    if artifacts is None:
        raise _make_machine_error(
            source,
            Code.NO_ARTIFACT,
            f"BootImage/{image} has no artifacts for {source.architecture}",
            "add the architecture to the image, or select fewer servers",
        )
    missing = [name for name in _list_needed_artifacts(source, artifacts) if getattr(artifacts, name) is None]
    if missing:
        raise Unbootable(
            Code.NO_ARTIFACT,
            f"BootImage/{image} has no {' and no '.join(missing)} for {source.architecture}, but method {spec.method}"
            f"{f' with httpBoot: {spec.http_boot}' if spec.http_boot else ''} needs "
            f"{'this file' if len(missing) == 1 else 'these files'}",
            "add the artifact to the image, or change the method",
            source.profile_id,
            *("spec", "method"),
        )
    urls = [artifact.url for _, artifact in artifacts.files()]
    kind = "a registry" if any(url.startswith("oci:") for url in urls) else "an archive"
    if not source.mirrors and any(url.startswith("oci:") or split_member_url(url) for url in urls):
        raise Unbootable(
            Code.NOT_MIRRORED,
            f"BootImage/{image} has files in {kind}, but machines cannot fetch from {kind}",
            Code.NOT_MIRRORED.hint,
            Id("BootImage", image),
            *("spec", "architectures", str(source.architecture)),
        )
    for path, artifact in _list_verified_artifacts(source, artifacts) if source.mirrors else ():
        if artifact.loader_signature is not None and not artifact.loader_signature.startswith("assets:"):
            raise Unbootable(
                Code.COMBINATION,
                f"the mirror cannot copy the loaderSignature {artifact.loader_signature}, because BootImage/{image} "
                "does not specify the signature's digest",
                "store the signature under baseURL/assets/ on the web server, and refer to it as `assets:PATH`",
                Id("BootImage", image),
                *("spec", "architectures", str(source.architecture), *path, "loaderSignature"),
            )
    return artifacts


def _list_verified_artifacts(source: BootSource, artifacts: Artifacts) -> Iterator[tuple[Path, Artifact]]:
    """Yield each artifact that iPXE starts or a template may name, with its path. iPXE may verify these artifacts."""
    spec = source.profile.spec
    uses_loader = spec.method is Method.PXE or (
        spec.method is Method.UEFI_HTTP and spec.http_boot in (None, HttpBoot.LOADER)
    )
    if not (source.has_ipxe_scripts and source.boots_by_ipxe and uses_loader):
        return
    started = ("kernel", "initrds") if artifacts.kernel is not None else ("uki",)
    for path, artifact in artifacts.files():
        if path[0] in started or spec.templates.ipxe is not None:
            yield path, artifact


def _make_machine_error(source: BootSource, code: Code, message: str, hint: str) -> Unbootable:
    """Return an error that points to the document that set the profile, because the profile may be correct for other
    machines.
    """
    resource, path = source.chosen_by
    return Unbootable(code, f"{message}; the profile is {source.profile_id}", hint, resource, *path)


def _list_needed_artifacts(source: BootSource, artifacts: Artifacts) -> tuple[str, ...]:
    spec, uefi = source.profile.spec, source.firmware is Firmware.UEFI
    if spec.method is Method.UEFI_HTTP:
        if not uefi:
            raise _make_machine_error(
                source, Code.FIRMWARE, "`method: UefiHttp` requires UEFI, but the firmware is BIOS", Code.FIRMWARE.hint
            )
        return _HTTP_BOOT_FILES[spec.http_boot or HttpBoot.LOADER]
    if spec.method is Method.VIRTUAL_MEDIA:
        return ("iso",)
    if artifacts.kernel is None and artifacts.uki is not None and not uefi:
        image = source.image.metadata.name
        raise _make_machine_error(
            source,
            Code.FIRMWARE,
            f"BIOS cannot boot BootImage/{image}, which has a uki but no kernel for {source.architecture}",
            Code.FIRMWARE.hint,
        )
    return ("kernel",) if artifacts.uki is None else ()


def check_config_delivery(boot: Boot, source: BootSource, own: ArgumentLists, user_data: UserDataFiles | None) -> None:
    """Raise `Unbootable` if the booted system cannot get the kernel arguments, user data, labels or taints."""
    if user_data is not None and boot.config_from is ConfigFrom.MEDIUM:
        if boot.method is not Method.VIRTUAL_MEDIA:
            raise Unbootable(
                Code.NO_WAY_IN,
                f"BootImage/{boot.image} has configFrom: Medium, but method {boot.method} does not insert a medium",
                "use `method: VirtualMedia`, or correct the image's configFrom",
                source.profile_id,
                *("spec", "method"),
            )
        if user_data_formats.find_volume(user_data.format) is None:
            raise Unbootable(
                Code.NO_WAY_IN,
                f"BootImage/{boot.image} has configFrom: Medium, but operating systems do not look for "
                f"{user_data.format} user data on a medium",
                "build the user data into the image, or boot a kernel with the user data URL in its arguments",
                source.profile_id,
                *("spec", "userData", "format"),
            )
    elif boot.is_direct:
        _check_direct_boot(boot, source, own, user_data)
    elif user_data is not None and boot.config_from is ConfigFrom.NONE:
        raise Unbootable(
            Code.NO_WAY_IN,
            f"BootImage/{boot.image} sets `configFrom: None`, so the user data cannot reach the system",
            "remove `userData`, or correct `configFrom` in the image",
            source.profile_id,
            "spec",
            "userData",
        )


def _check_direct_boot(boot: Boot, source: BootSource, own: ArgumentLists, user_data: UserDataFiles | None) -> None:
    by_uuid = boot.config_from is ConfigFrom.SYSTEM_UUID
    if by_uuid and user_data is not None and user_data_formats.parse_family(user_data.format).value == "Ignition":
        return  # the system finds its Ignition document by UUID, and this document can contain all of these values
    first_document = next((resource for resource, arguments in own if arguments), None)
    if user_data is not None:
        config, resource, path = "user data", source.profile_id, ("spec", "userData")
    elif first_document is not None:
        config, resource, path = "kernel arguments", first_document, ("spec", "kernelArguments")
    elif source.pool is not None and (boot.node_labels or boot.node_taints):
        config, resource, path = "node labels and taints", Id("BootPolicy", source.pool.name), ("spec", "profile")
    else:
        return
    file = "iso" if boot.files.uki is None or boot.http_boot is HttpBoot.ISO else "uki"
    raise Unbootable(
        Code.NO_WAY_IN,
        f"{config} cannot reach BootImage/{boot.image}, because the firmware boots the image's {file} directly",
        Code.NO_WAY_IN.hint,
        resource,
        *path,
    )


def check_command_line(
    arguments: tuple[str, ...], source: BootSource, find_places: Callable[[], Mapping[str, tuple[Id, int]]]
) -> None:
    """Raise `Unbootable` if a boot loader or the kernel cannot accept the kernel command line.

    The error points to the first unacceptable argument. If the only fault is the length of the command line, the error
    points to the document that contributes the longest part. ``find_places`` returns the document and the list index of
    each argument.
    """
    try:
        _check_quoting(arguments)
        return
    except QuotingError as error:
        message = error.message
    places = find_places()
    lengths: Counter[Id] = Counter()
    for argument in (argument for argument in arguments if argument in places):
        resource, number = places[argument]
        lengths[resource] += len(argument)
        try:
            _check_quoting((argument,))
        except QuotingError:
            at = ("spec", "kernelArguments", number)
            raise Unbootable(Code.UNQUOTABLE, message, Code.UNQUOTABLE.hint, resource, *at) from None
    longest = max(lengths, key=lambda resource: lengths[resource], default=source.profile_id)
    raise Unbootable(Code.UNQUOTABLE, message, Code.UNQUOTABLE.hint, longest, "spec", "kernelArguments")


def _check_quoting(arguments: tuple[str, ...]) -> None:
    quote_ipxe_arguments(arguments)
    quote_grub_arguments(arguments)


def check_copy_support(fleet: FleetSettings, decision: Decision) -> Iterator[DecisionFinding]:
    """Yield a warning for each of a server's boots that copies of the boot files cannot serve correctly."""
    endpoint, copies = decision.endpoint, decision.copies
    if endpoint is None and not copies.one_time_boots and _has_one_time_boot(decision):
        yield DecisionFinding(
            Code.NO_ENDPOINT,
            "the Fleet does not set an endpoint, and copies of the boot files cannot serve one-time boots or record "
            "fetches",
            Code.NO_ENDPOINT.hint,
            (Id("Fleet", fleet.name), ("spec", "endpoint")),
            Severity.WARNING,
            max_named=_MAX_NAMED,
        )
    if fleet.serving.late_ends is not None:
        return
    later_boot = find_harmless_boot(decision.policy)
    for maintenance in decision.maintenances:
        boot = maintenance.boot
        if boot is None and later_boot is None:
            continue  # the server boots its disk during the maintenance and afterwards
        is_once = boot is not None and boot.writes_disk and maintenance.network_boot in INSTALL_MODES
        if is_once and not copies.one_time_boots:
            continue  # copies do not contain this boot
        clients = " and ".join(sorted(_find_loaders_without_end_query(fleet, decision, boot, later_boot)))
        if endpoint is None:
            why = "the Fleet does not set an endpoint, so copies of the boot files end the maintenance late"
        elif clients:
            why = (
                f"{clients} cannot ask {endpoint} whether the maintenance has ended, so copies of the boot files "
                "do not serve the maintenance to these clients"
            )
        else:
            continue
        place = (Id("Maintenance", maintenance.name), ("spec", "window"))
        message, code = f"Maintenance/{maintenance.name}: {why}", Code.LATE_END
        yield DecisionFinding(code, message, code.hint, place, Severity.WARNING, max_named=_MAX_NAMED)


def _has_one_time_boot(decision: Decision) -> bool:
    sources = [source for source in (decision.policy, *decision.maintenances) if source is not None]
    return any(source.boot and source.boot.writes_disk and source.network_boot in INSTALL_MODES for source in sources)


def _find_loaders_without_end_query(
    fleet: FleetSettings, decision: Decision, boot: Boot | None, later_boot: Boot | None
) -> Iterator[str]:
    """Yield the names of boot loaders and methods that cannot query the endpoint for the end of a maintenance."""
    outputs = frozenset(fleet.outputs)
    if boot is None and decision.restrict:
        yield "boot loaders that get no local disk boot script (because of serving.restrict or localDisk: NotFound)"
        return
    if urlsplit(decision.endpoint or "").scheme == "https":
        if not decision.copies.ipxe_https and outputs & IPXE_OUTPUTS:
            yield "iPXE"
        yield from (name for name, loader_outputs in OUTPUTS_WITHOUT_HTTPS if outputs & loader_outputs)
    if any(each is not None and each.is_direct and each.http_boot is not None for each in (boot, later_boot)):
        yield "UEFI HTTP boot"
    if boot is not None and later_boot is not None and boot.fetches_by_uuid and later_boot.fetches_by_uuid:
        yield "a system that fetches its user data by UUID"
