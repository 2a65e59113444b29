"""Fields of a decision: the value of each field, with the rule and the document that set the value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Final

from msgspec import Struct

from gitboot.fleet.documents import FleetRepository, Id
from gitboot.jsonio import to_camel
from gitboot.model.boot_policy import Maintenance, MaintenancePower
from gitboot.model.fleet import LateEnds, OneTimeBoots
from gitboot.model.server import PROVISIONED, Architecture, Lifecycle
from gitboot.resolve.decision_inputs import BootInputs, ServerInputs
from gitboot.resolve.policy_selection import Pool
from gitboot.resolve.server_decision import Boot, BootFile, Decision
from gitboot.resolve.server_plan import BootPlan

Step = str | int
# Fields with a default. An explanation of a complete server shows these fields only if a document sets them.
SETTINGS: Final = (
    "override",
    "diskBoot",
    "power",
    "waitFor",
    "run",
    "priority",
    "maxUnavailable",
    "maxUnavailablePer",
    "nodeLabels",
    "nodeTaints",
)
# The settings of a maintenance, with their defaults. A document may also state the default.
_MAINTENANCE_DEFAULTS: Final[Mapping[str, object]] = {
    "run": 1,
    "power": MaintenancePower.NONE,
    "max_unavailable": "1",
    "max_unavailable_per": None,
    "priority": 0,
}
_MULTI_FILE_FIELDS: Final = frozenset({"initrds", "loader_signatures"})  # fields of `BootFiles` with several files
# Reasons that several fields have.
_DEFAULT: Final = "the default"
_SET_BY_SERVER: Final = "the Server document sets this field"
_SET_BY_FLEET: Final = "the Fleet sets this field"
_SET_BY_POLICY: Final = "the policy sets this field"
_INHERITED: Final = "the policy inherits this field"


class Reason(Struct, frozen=True, kw_only=True):
    """The value of a field in a server's boot configuration, with the reason and the document that sets the value."""

    field: str  # the field, such as image, kernelArguments[0] or vars.console
    value: str
    rule: str
    why: str
    resource: str | None = None  # the document, such as BootPolicy/web; None: a rule sets the value
    path: str | None = None
    line: int | None = None
    column: int | None = None
    under: str | None = None  # the maintenance to which the reason applies, if all maintenances are explained
    steps: tuple[Step, ...] = ()  # the path of the value in its document


def make_reason(field: str, value: object, rule: str, why: str, resource: Id | None = None, *path: Step) -> Reason:
    """Return a reason without a source location. Format booleans as in YAML, and a missing value as "none"."""
    value_text = str(value) if value is not None else "none"
    if isinstance(value, bool):
        value_text = value_text.lower()
    document = str(resource) if resource is not None else None
    return Reason(field=field, value=value_text, rule=rule, why=why, resource=document, steps=path)


def list_field_reasons(
    repository: FleetRepository, inputs: ServerInputs, decision: Decision, plan: BootPlan | None
) -> Iterator[Reason]:
    """Yield the reasons for all fields of a decision.

    The fields are those of the server, of its policy or maintenance, and of the boot in its plan.
    """
    yield from _explain_server(inputs, decision)
    yield from _explain_provisioning(inputs, decision, _find_fleet(repository))
    yield from _explain_selection(inputs, decision)
    yield from _explain_serving(repository, inputs, decision)
    shared, active, boot_inputs = inputs.shared, None, inputs.shared.boot
    boot = decision.policy.boot if decision.policy is not None else None
    if plan is not None and plan.maintenance is not None:
        name = plan.maintenance
        active = next(candidate for candidate in shared.maintenances if candidate.maintenance.metadata.name == name)
        boot_inputs = active.boot
        boot = next(maintenance.boot for maintenance in decision.maintenances if maintenance.name == name)
        yield from _explain_maintenance(active.maintenance, decision)
    elif decision.policy is not None and shared.pool is not None:
        yield from _explain_policy(repository, shared.pool, decision)
    if boot is None or boot_inputs is None or boot_inputs.image is None:
        why = "the profile's method is Disk"
        if active is None and decision.policy is None:
            why = "no policy applies to the server"
        yield from (make_reason(to_camel(field.name), None, "-", why) for field in fields(Boot))
        return
    if plan is not None and plan.boot is not None:
        boot = plan.boot
    yield from _explain_boot(boot, boot_inputs, decision)
    yield from _explain_node(repository, boot, shared.pool if active is None else None)


def _explain_server(inputs: ServerInputs, decision: Decision) -> Iterator[Reason]:
    """Explain the fields that the Server document sets."""
    spec, server_id = inputs.server.spec, Id("Server", decision.server)
    yield make_reason("server", decision.server, "-", "the document's name", server_id, "metadata", "name")
    if spec.uuid is not None:
        yield make_reason("uuid", decision.uuid, "-", _SET_BY_SERVER, server_id, "spec", "uuid")
    else:
        why = "gitboot derives the UUID from the first MAC address, because the server has no uuid"
        yield make_reason("uuid", decision.uuid, "-", why, server_id, "spec", "interfaces", 0, "mac")
    indexes = {interface.mac: index for index, interface in enumerate(spec.interfaces)}
    for number, mac in enumerate(decision.macs):
        path = ("spec", "interfaces", indexes[mac], "mac")
        yield make_reason(f"macs[{number}]", mac, "-", "the machine may boot from this interface", server_id, *path)
    if not decision.macs:
        why = "many machines share the MAC addresses of the server's boot interfaces"
        yield make_reason("macs", None, "-", why, server_id, "spec", "interfaces")
    yield make_reason("architecture", decision.architecture, "-", _SET_BY_SERVER, server_id, "spec", "architecture")
    yield make_reason("firmware", decision.firmware, "-", _SET_BY_SERVER, server_id, "spec", "firmware")
    why = _DEFAULT if decision.lifecycle is Lifecycle.ACTIVE else "only Active servers have a plan"
    yield make_reason("lifecycle", decision.lifecycle, "R1", why, server_id, "spec", "lifecycle")
    yield make_reason("provision", decision.provision, "R5", _SET_BY_SERVER, server_id, "spec", "provision")
    if spec.serial is not None and decision.serial is None:
        why = "boot loaders cannot find the server by this serial number"
        yield make_reason("serial", None, "-", why, server_id, "spec", "serial")
    else:
        yield _explain_server_field("serial", decision.serial, server_id, "serial")
    yield _explain_server_field("replaces", decision.replaces, server_id, "replaces")


def _explain_server_field(field: str, value: object, server_id: Id, *path: Step) -> Reason:
    if value is None:
        return make_reason(field, None, "-", "the Server document does not set this field")
    return make_reason(field, value, "-", _SET_BY_SERVER, server_id, "spec", *path)


def _explain_provisioning(inputs: ServerInputs, decision: Decision, fleet: Id | None) -> Iterator[Reason]:
    """Explain the fields that determine whether gitboot may install the server."""
    server_id = Id("Server", decision.server)
    why = "the Fleet does not set evidence: Declared"
    if inputs.shared.fleet.is_declared:
        why = f"the annotation {PROVISIONED} sets this field"
        if decision.declared is None:
            why = f"the Server document has no annotation {PROVISIONED}"
    owner = server_id if decision.declared is not None else None
    yield make_reason("declared", decision.declared, "R5", why, owner, "metadata", "annotations", PROVISIONED)
    if decision.stopped:
        yield make_reason("stopped", True, "R5", _SET_BY_FLEET, fleet, "spec", "stopped")
    else:
        yield make_reason("stopped", False, "R5", _DEFAULT, None, "spec", "stopped")
    for boot in decision.withheld:
        boot_name = f"Maintenance/{boot.maintenance}" if boot.maintenance is not None else "the policy"
        why = f"the newer commit {boot.by[:12]} does not offer this install boot"
        yield make_reason("withheld", boot_name, "R5", why)
    if not decision.withheld:
        yield make_reason("withheld", None, "R5", "no newer commit withdraws an install boot")


def _explain_selection(inputs: ServerInputs, decision: Decision) -> Iterator[Reason]:
    """Explain which maintenances and which policy apply to the server."""
    for maintenance in decision.maintenances:
        start = maintenance.start.isoformat() if maintenance.start is not None else "any time"
        end = maintenance.end.isoformat() if maintenance.end is not None else "removed"
        key = Id("Maintenance", maintenance.name)
        why = "the maintenance selects the server"
        yield make_reason(f"maintenances.{key.name}", f"{start} until {end}", "R2", why, key, "spec", "select")
    if not decision.maintenances:
        yield make_reason("maintenances", None, "R2", "no maintenance selects the server")
    policy = decision.policy
    if policy is not None and inputs.server.spec.policy:
        why, server_id = "the Server document names the policy", Id("Server", decision.server)
        yield make_reason("policy", policy.policy, "R3", why, server_id, "spec", "policy")
    elif policy is not None:
        why, policy_id = "the policy selects the server", Id("BootPolicy", policy.policy)
        yield make_reason("policy", policy.policy, "R3", why, policy_id, "spec", "select")
    elif decision.lifecycle is Lifecycle.ACTIVE:
        yield make_reason("policy", None, "R3", "no policy selects the server")
    else:
        yield make_reason("policy", None, "R1", "only Active servers have a policy")


def _find_fleet(repository: FleetRepository) -> Id | None:
    fleet = Id("Fleet", repository.fleet.metadata.name)
    return fleet if fleet in repository.origins else None


def _explain_serving(repository: FleetRepository, inputs: ServerInputs, decision: Decision) -> Iterator[Reason]:
    """Explain the fields that the Fleet sets: the URLs, the script that boots from the local disk, and the boots that
    copies of the output tree serve.
    """
    fleet, spec, serving = _find_fleet(repository), repository.fleet.spec, repository.fleet.spec.serving
    own_site = None
    site_path: tuple[Step, ...] = ("spec",)
    for number, site in enumerate(spec.sites):
        if site.name == inputs.shared.site:
            own_site, site_path = site, ("spec", "sites", number)
    set_by_site = "the server's site sets this field"
    why = set_by_site if own_site is not None else "no site selects the server"
    yield make_reason("baseURL", decision.base_url, "-", why, fleet, *site_path, "baseURL")
    if decision.endpoint is None:
        yield make_reason("endpoint", None, "-", "the Fleet does not set an endpoint")
    elif own_site is not None and own_site.endpoint is not None:
        yield make_reason("endpoint", decision.endpoint, "-", set_by_site, fleet, *site_path, "endpoint")
    else:
        yield make_reason("endpoint", decision.endpoint, "-", _SET_BY_FLEET, fleet, "spec", "endpoint")
    if inputs.local_disk is None:
        yield make_reason("localDisk", None, "-", "the boot loader uses the method that works on most machines")
    elif inputs.server.spec.local_disk is not None:
        server_id = Id("Server", decision.server)
        yield make_reason("localDisk", inputs.local_disk, "-", _SET_BY_SERVER, server_id, "spec", "localDisk")
    else:
        why = "the Fleet sets this field for the hardware"
        yield make_reason("localDisk", inputs.local_disk, "-", why, fleet, "spec", "hardware")
    why = "serving.restrict is false"
    if serving.restrict or inputs.local_disk == "NotFound":
        why = "serving.restrict is true" if serving.restrict else "localDisk is NotFound"
        if not inputs.shared.fleet.unknown_not_found:
            why = f"{why}, but unknownServers is not NotFound"
    yield make_reason("restrict", decision.restrict, "-", why, fleet if serving.restrict else None, "spec", "serving")
    copies = decision.copies
    for field, value, is_set in (
        ("oneTimeBoots", copies.one_time_boots, serving.one_time_boots is OneTimeBoots.COPIES),
        ("lateEnds", copies.late_ends, serving.late_ends is LateEnds.ACCEPT),
        ("ipxeHttps", copies.ipxe_https, serving.ipxe_https),
    ):
        why = _SET_BY_FLEET if is_set else _DEFAULT
        if is_set and not value:
            why = "the Fleet sets this field, but the field has no effect without an endpoint"
        yield make_reason(f"copies.{field}", value, "-", why, fleet if is_set else None, "spec", "serving", field)


def _explain_policy(repository: FleetRepository, pool: Pool, decision: Decision) -> Iterator[Reason]:
    policy = decision.policy
    assert policy is not None  # noqa: S101 - the caller checks it
    for name in ("override", "disk_boot", "power", "wait_for"):
        field, value = to_camel(name), getattr(policy, name)
        if (owner := _find_setting_policy(repository, pool, name)) is None:
            why = f"the default for networkBoot: {policy.network_boot}" if name == "override" else _DEFAULT
            yield make_reason(field, value, "R3", why)
        else:
            why = _SET_BY_POLICY if owner == pool.name else _INHERITED
            yield make_reason(field, value, "R3", why, Id("BootPolicy", owner), "spec", field)
    is_set = policy.attempts != 1
    why, setter = _SET_BY_FLEET if is_set else _DEFAULT, _find_fleet(repository) if is_set else None
    yield make_reason("attempts", policy.attempts, "R5", why, setter, "spec", "provisioning", "attempts")


def _find_setting_policy(repository: FleetRepository, pool: Pool, name: str) -> str | None:
    """Return the policy that sets a field of a pool, or None if the field has its default value.

    The policy is the pool's policy or one of its ancestors.
    """
    for policy in reversed(pool.chain):
        if getattr(repository.policies[policy].spec, name) is not None:
            return policy
    return None


def _explain_maintenance(maintenance: Maintenance, decision: Decision) -> Iterator[Reason]:
    spec, key = maintenance.spec, Id("Maintenance", maintenance.metadata.name)
    decided = next(candidate for candidate in decision.maintenances if candidate.name == key.name)
    set_why = "the maintenance sets this field"
    for edge, bound in (("start", decided.start), ("end", decided.end)):
        if bound is None:
            yield make_reason(f"window.{edge}", None, "R2", f"the window has no {edge}", key, "spec", "window")
    if spec.override is not None:
        yield make_reason("override", decided.override, "R2", set_why, key, "spec", "override")
    else:
        yield make_reason("override", decided.override, "R2", f"the default for networkBoot: {spec.network_boot}")
    if decided.before is None:
        yield make_reason("before", None, "R2", "the maintenance needs neither an approval nor a drain")
    for name, default in _MAINTENANCE_DEFAULTS.items():
        field, value = to_camel(name), getattr(decided, name)
        is_set = value != default
        yield make_reason(field, value, "R2", set_why if is_set else _DEFAULT, key if is_set else None, "spec", field)


def _explain_boot(boot: Boot, inputs: BootInputs, decision: Decision) -> Iterator[Reason]:
    image_id, profile = Id("BootImage", boot.image), Id("BootProfile", boot.profile)
    for name in ("version", "writes_disk", "config_from", "boots"):
        field = to_camel(name)
        yield make_reason(field, getattr(boot, name), "R4", "the image sets this field", image_id, "spec", field)
    if boot.http_boot is None:
        yield make_reason("httpBoot", None, "R6", f"the method {boot.method} does not use httpBoot")
    yield from _explain_files(boot, decision.architecture)
    why = "the boot loader verifies signatures, or the image has no signatures"
    if boot.ignores_signatures:
        why = "GRUB boots the server, so gitboot withholds only the iPXE boot scripts if a signature is missing"
    yield make_reason("ignoresSignatures", boot.ignores_signatures, "R6", why)
    if not boot.files.loader_signatures:
        yield make_reason("files.loaderSignatures", None, "R6", "no boot loader verifies signatures for the image")
    if not boot.kernel_arguments:
        yield make_reason("kernelArguments", None, "R7", "the documents that apply leave no kernel arguments")
    yield from _explain_user_data(boot, inputs, decision, profile)
    for loader in ("ipxe", "grub"):
        if loader in boot.entries:
            path, why = getattr(inputs.profile.spec.templates, loader), "the profile names this template"
            yield make_reason(f"entries.{loader}", path, "R6", why, profile, "spec", "templates", loader)
        else:
            yield make_reason(f"entries.{loader}", "built in", "R6", _DEFAULT)
    for template, digest in boot.templates.items():
        yield make_reason(f"templates.{template}", f"sha256:{digest}", "R6", "the profile names this file", profile)
    if not boot.templates:
        yield make_reason("templates", None, "R6", "the profile does not name a template")


def _explain_files(boot: Boot, architecture: Architecture) -> Iterator[Reason]:
    image_id, files = Id("BootImage", boot.image), boot.files
    named_files: list[tuple[str, BootFile | None, tuple[Step, ...]]] = [
        (f"initrds[{number}]", initrd, ("initrds", number)) for number, initrd in enumerate(files.initrds)
    ]
    for field in fields(files):
        if field.name not in _MULTI_FILE_FIELDS:
            named_files.append((field.name, getattr(files, field.name), (field.name,)))
    if not files.initrds:
        named_files.append(("initrds", None, ()))
    for name, file, steps in named_files:
        path = ("spec", "architectures", architecture, *steps)
        if file is None:
            yield make_reason(f"files.{name}", None, "R6", f"the image has no {name} for {architecture}")
            continue
        why = "the image names this file" if file.source is None else f"the mirror serves a copy of {file.source}"
        yield make_reason(f"files.{name}", f"{file.url} sha256:{file.sha256}", "R6", why, image_id, *path)
        if (signature := files.loader_signatures.get(file.url)) is not None:
            why = "the image names this signature"
            yield make_reason(
                f"files.loaderSignatures.{name}", signature, "R6", why, image_id, *path, "loaderSignature"
            )


def _explain_user_data(boot: Boot, inputs: BootInputs, decision: Decision, profile: Id) -> Iterator[Reason]:
    data, spec = boot.user_data, inputs.profile.spec.user_data
    if data is None or spec is None:
        yield make_reason("userData", None, "R6", "the profile does not set user data")
        return
    at = ("spec", "userData")
    yield make_reason("userData.format", data.format, "R6", "the profile sets this field", profile, *at, "format")
    yield make_reason("userData.sha256", data.digest, "R6", "the digest of the rendered user data")
    yield make_reason("userData.url", data.url, "R6", "the machine fetches its user data from this URL")
    if not data.secrets:
        yield make_reason("userData.secrets", None, "R6", "neither the profile nor the server names a secret")
    for name in data.secrets:
        field = f"userData.secrets.{name}"
        if name in spec.secrets:
            why = "the profile refers to this secret, and the server may override it"
            yield make_reason(field, "encrypted", "R6", why, profile, *at, "secrets", name)
        else:
            why, server_id = "the server refers to this secret", Id("Server", decision.server)
            yield make_reason(field, "encrypted", "R6", why, server_id, "spec", "secrets", name)


def _explain_node(repository: FleetRepository, boot: Boot, pool: Pool | None) -> Iterator[Reason]:
    """Explain the labels and taints of a node, which only policies set."""
    policies = [(name, repository.policies[name].spec) for name in pool.chain] if pool is not None else []
    for key, value in sorted(boot.node_labels.items()):
        owner = [name for name, spec in policies if key in spec.node_labels][-1]
        why = "the last policy that sets this label wins"
        yield make_reason(f"nodeLabels.{key}", value, "R3", why, Id("BootPolicy", owner), "spec", "nodeLabels", key)
    taints = [(name, number) for name, spec in policies for number in range(len(spec.node_taints))]
    for number, (taint, (owner, index)) in enumerate(zip(boot.node_taints, taints, strict=True)):
        why = _SET_BY_POLICY if pool is not None and owner == pool.name else _INHERITED
        policy_id = Id("BootPolicy", owner)
        yield make_reason(f"nodeTaints[{number}]", taint, "R3", why, policy_id, "spec", "nodeTaints", index)
    why = "neither the policy nor its parents set this field"
    if pool is None:
        why = "only policies set node labels and taints"
    if not boot.node_labels:
        yield make_reason("nodeLabels", None, "R3", why)
    if not boot.node_taints:
        yield make_reason("nodeTaints", None, "R3", why)
