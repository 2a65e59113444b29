"""Fleet decisions: compute the decisions for all servers of a commit, or report the problems."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from ipaddress import ip_network
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct, structs

from gitboot.errors import InvalidRepository
from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.validation import InvalidRevision, LoadedRevision
from gitboot.fleet.yaml import MAX_SHOWN, select_first
from gitboot.jsonio import compute_digest, to_json_value
from gitboot.model.boot_policy import Maintenance, Method, NetworkBoot, OverrideMode
from gitboot.model.fields import to_yaml_value
from gitboot.model.fleet import UNKNOWN_NOT_FOUND, Fleet, OneTimeBoots, Output, Site, UnknownProfile
from gitboot.model.server import Architecture, Firmware
from gitboot.problems import Code, DatedProblem, Problem, Severity
from gitboot.resolve.boot_checks import (
    check_copy_support,
    check_first_boot,
    check_leaks,
    check_loader_signature,
    check_loader_signatures,
    check_maintenance,
    check_overlaps,
    check_policy,
    check_policy_selection,
    check_server,
    find_lax_loader,
    find_output_ignoring_signatures,
    parse_declared_provision,
)
from gitboot.resolve.decision_inputs import (
    IPXE_OUTPUTS,
    BootInputs,
    DecisionFinding,
    FindingPlace,
    FleetView,
    MaintenanceInputs,
    ServerInputs,
    locate_findings,
)
from gitboot.resolve.policy_selection import BootSource, Pool, SelectorIndex, Unbootable, find_unmatched_selectors
from gitboot.resolve.server_decision import (
    Boot,
    CopySettings,
    Decision,
    Decisions,
    Host,
    MaintenanceDecision,
    PolicyDecision,
    Preconditions,
    make_host,
    require_no_errors,
)
from gitboot.resolve.server_plan import Phase
from gitboot.text import format_count

if TYPE_CHECKING:
    from gitboot.resolve.boot_composition import Composer


# Checks of documents


# A file system accepts names of at most 255 bytes, and the mirror program writes the file .NAME.json.gitboot.
_MAX_SERVER_NAME: Final = 255 - len("..json.gitboot")
# The node labels that kubelet accepts. Sources: kubernetes/staging/src/k8s.io/kubelet/pkg/apis/well_known_labels.go
# (KubeletLabels, KubeletLabelNamespaces) and kubernetes/cmd/kubelet/app/options/options.go (isKubernetesLabel).
_KUBERNETES_DOMAINS: Final = ("kubernetes.io", "k8s.io")
_ACCEPTED_NAMESPACES: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")
_ACCEPTED_LABELS: Final = frozenset(
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
# Digests that authors use as placeholders. `gitboot init` writes the third one.
_PLACEHOLDER_DIGESTS: Final = frozenset({"0" * 64, "f" * 64, "feedc0de" * 8, "deadbeef" * 8})


def find_long_server_names(repository: FleetRepository) -> Iterator[Problem]:
    """Yield a problem for each server whose name is too long for the names of its published files."""
    for name in repository.servers:
        if len(name) > _MAX_SERVER_NAME:
            yield repository.build_problem(
                Code.NAME,
                f"the name of this server has {len(name)} characters, which is too long for the names of its files",
                Id("Server", name),
                *("metadata", "name"),
                hint=f"use at most {_MAX_SERVER_NAME} characters",
            )


def find_unsupported_settings(repository: FleetRepository) -> Iterator[Problem]:
    """Yield a problem for each of the fleet's settings that this version of gitboot does not support."""
    fleet = repository.fleet
    if isinstance(unknown := fleet.spec.unknown_servers, UnknownProfile):
        # None if the Fleet is missing, which makes the commit invalid
        profile = repository.profiles.get(unknown.profile)
        if profile is not None and (profile.spec.templates.ipxe or profile.spec.templates.grub):
            yield repository.build_problem(
                Code.NOT_YET,
                "this version of gitboot does not support boot script templates for unknown machines",
                Id("Fleet", fleet.metadata.name),
                *("spec", "unknownServers", "profile"),
                hint="choose a profile without templates.ipxe and templates.grub",
            )


def find_missing_ipv6_clients(repository: FleetRepository) -> Iterator[Problem]:
    """Yield a warning if machines would fetch from an IPv6 address, but no network in `clients` is an IPv6 network.

    The function does not resolve host names, because the result must depend only on the commit.
    """
    spec = repository.fleet.spec
    clients = spec.provisioning.clients
    if not clients or any(ip_network(network).version == 6 for network in clients):
        return
    urls = [spec.base_url, spec.endpoint]
    for site in spec.sites:
        urls += [site.base_url, site.endpoint]
    ipv6_url = next((url for url in urls if url is not None and ":" in (urlsplit(url).hostname or "")), None)
    if ipv6_url is not None:
        yield repository.build_problem(
            Code.NO_IPV6_CLIENTS,
            f"machines fetch from {ipv6_url}, but `clients` contains no IPv6 networks, so machines that use IPv6 boot "
            "from their disks",
            Id("Fleet", repository.fleet.metadata.name),
            *("spec", "provisioning", "clients"),
            severity=Severity.WARNING,
        )


def find_rejected_labels(repository: FleetRepository) -> Iterator[Problem]:
    """Yield a warning for each node label in a policy that kubelet would reject."""
    for name, policy in repository.policies.items():
        for key in policy.spec.node_labels:
            if not is_accepted_by_kubelet(key):
                yield repository.build_problem(
                    Code.KUBELET_LABEL,
                    f"the kubelet rejects the node label {key} and does not start",
                    Id("BootPolicy", name),
                    *("spec", "nodeLabels", key),
                    hint=Code.KUBELET_LABEL.hint,
                    severity=Severity.WARNING,
                )


def is_accepted_by_kubelet(key: str) -> bool:
    """Return whether kubelet accepts a label with this key in `--node-labels`."""
    namespace, slash, _ = key.partition("/")
    if not slash or not _is_in_domain(namespace, _KUBERNETES_DOMAINS):
        return True
    return key in _ACCEPTED_LABELS or _is_in_domain(namespace, _ACCEPTED_NAMESPACES)


def _is_in_domain(namespace: str, domains: tuple[str, ...]) -> bool:
    return any(namespace == domain or namespace.endswith(f".{domain}") for domain in domains)


def find_placeholder_digests(repository: FleetRepository) -> Iterator[Problem]:
    """Yield a warning for each image with placeholder digests. The warning points to the first placeholder."""
    for name, image in repository.images.items():
        placeholders = [
            ("spec", "architectures", architecture, *path, "sha256")
            for architecture, artifacts in image.spec.architectures.items()
            for path, artifact in artifacts.files()
            if artifact.sha256 in _PLACEHOLDER_DIGESTS
        ]
        if placeholders:
            yield repository.build_problem(
                Code.PLACEHOLDER_DIGEST,
                f"BootImage/{name} has {format_count(len(placeholders), 'placeholder digest')}",
                Id("BootImage", name),
                *placeholders[0],
                hint=Code.PLACEHOLDER_DIGEST.hint,
                severity=Severity.WARNING,
            )


# Decisions


class DecidedServer(NamedTuple):
    """The decision for a server, with the server's network interfaces and findings."""

    decision: Decision
    host: Host
    findings: tuple[DecisionFinding, ...]


class DecidedServers(NamedTuple):
    """The decisions for several servers, by server name. The mappings may decode their values lazily."""

    decisions: Mapping[str, Decision]
    hosts: Mapping[str, Host]
    findings: Mapping[str, tuple[DecisionFinding, ...]]  # findings by server, only for servers with findings


# A function that calls another function for each of the named servers, in one or more processes.
DecideServers = Callable[[Callable[[str], DecidedServer], Sequence[str]], DecidedServers]


def decide_one_by_one(decide_one: Callable[[str], DecidedServer], names: Sequence[str]) -> DecidedServers:
    """Call ``decide_one`` in this process for each of the named servers."""
    decided = {name: decide_one(name) for name in names}
    return DecidedServers(
        decisions={name: server.decision for name, server in decided.items()},
        hosts={name: server.host for name, server in decided.items()},
        findings={name: server.findings for name, server in decided.items() if server.findings},
    )


class FleetDecisions(Struct, frozen=True, kw_only=True):
    """The decisions for a commit, with its repository and the locations of its findings."""

    repository: FleetRepository
    decisions: Decisions
    finding_places: Mapping[DecisionFinding, FindingPlace]


# gitboot rejects a new commit with one of these errors. If an instance has already accepted a commit with such an
# error, it keeps the commit, because earlier versions did not check for these errors.
TOLERATED_CODES: Final = frozenset({Code.PLACEHOLDER_IDENTITY, Code.NAME})
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)
_END: Final = datetime.max.replace(tzinfo=UTC)
NOT_FOUND: Final = "NotFound"  # the machine does not get a boot script, so it boots its local disk
# fields of a maintenance that do not change what gitboot does to a server
_FIELDS_WITHOUT_EFFECT: Final = frozenset({"before", "reason"})


def decide(repository: FleetRepository, now: datetime = _BEGINNING) -> Decisions:
    """Return the decisions for all servers. Raises `InvalidRepository` with all problems of the commit.

    With ``now``, an overlap between maintenance windows is not an error if the overlap ended before this time. Without
    ``now``, such an overlap is an error too.
    """
    try:
        decisions = decide_all(repository).decisions
    except InvalidRepository as error:
        raise error.at(now) from None
    require_no_errors(decisions, repository.fleet.spec, now)
    return decisions


def decide_all(
    repository: FleetRepository,
    decide_servers: DecideServers = decide_one_by_one,
    known_places: Mapping[DecisionFinding, FindingPlace] | None = None,
) -> FleetDecisions:
    """Return the decisions for a commit that an instance may already have accepted.

    ``known_places`` are the locations of findings in another commit. With these locations, gitboot does not have to
    read unchanged documents. Raises `InvalidRepository` for errors that do not depend on the time, except errors with
    `TOLERATED_CODES`.
    """
    # gitboot imports this module here, because the import is slow and an instance does not need it
    from gitboot.resolve.boot_composition import Composer

    view, composer = FleetView(repository), Composer()

    def decide_one(name: str) -> DecidedServer:
        return decide_server(view.server_inputs(repository.servers[name]), composer)

    decided = decide_servers(decide_one, list(repository.servers))
    unknown, unknown_findings = decide_unknown_machines(repository.fleet, view.unknown_boot_inputs(), composer)
    findings = [(name, finding) for name, of_server in decided.findings.items() for finding in of_server]
    located_problems, places = locate_findings(repository, (*findings, *unknown_findings), known_places or {})
    permanent = [dated.problem for dated in located_problems if dated.since is None and dated.until is None]
    dated_problems = select_longest_problems(
        dated for dated in located_problems if dated.since is not None or dated.until is not None
    )
    document_problems = (
        *find_long_server_names(repository),
        *find_unsupported_settings(repository),
        *find_missing_ipv6_clients(repository),
        *find_rejected_labels(repository),
        *find_unmatched_selectors(repository),
        *find_placeholder_digests(repository),
    )
    problems = select_first([*view.problems, *document_problems, *permanent])
    if any(problem.severity is Severity.ERROR and problem.code not in TOLERATED_CODES for problem in problems):
        raise InvalidRepository(problems, dated=dated_problems)
    fleet = repository.fleet.spec
    decisions = Decisions(
        revision=repository.revision,
        base_url=fleet.base_url,
        outputs=frozenset(fleet.outputs),
        evidence=fleet.provisioning.evidence,
        servers=decided.decisions,
        networks=decided.hosts,
        sites={site.name: site.base_url for site in fleet.sites},
        unknown=unknown,
        unknown_not_found=fleet.unknown_servers == UNKNOWN_NOT_FOUND,
        warnings=problems,
        dated=dated_problems,
    )
    return FleetDecisions(repository=repository, decisions=decisions, finding_places=places)


def decide_server(inputs: ServerInputs, composer: Composer) -> DecidedServer:
    """Return the decision for a server, with its network interfaces and findings.

    The result depends only on the inputs.
    """
    server, shared, fleet = inputs.server, inputs.shared, inputs.shared.fleet
    findings = [*check_policy_selection(inputs), *check_server(inputs)]
    policy = None
    if shared.pool is not None and shared.boot is not None:
        policy = _decide_policy(inputs, shared.pool, shared.boot, composer, findings)
    maintenances = tuple(
        _decide_maintenance(inputs, maintenance, composer, findings) for maintenance in shared.maintenances
    )
    findings += check_overlaps(maintenances)
    declared = parse_declared_provision(fleet, server)
    if isinstance(declared, DecisionFinding):
        findings.append(declared)
        declared = None
    local_disk, serving = inputs.local_disk, fleet.serving
    is_https = (shared.endpoint or "").startswith("https:")
    decision = Decision(
        server=server.metadata.name,
        uuid=server.uuid,
        macs=server.lookup_macs,
        serial=server.boot_serial,
        architecture=server.spec.architecture,
        firmware=server.spec.firmware,
        lifecycle=server.spec.lifecycle,
        # If a known machine gets a 404, it requests the script for unknown machines. So it gets a 404 only if unknown
        # machines get one too.
        restrict=(serving.restrict or local_disk == NOT_FOUND) and fleet.unknown_not_found,
        base_url=shared.base_url,
        provision=server.spec.provision,
        policy=policy,
        maintenances=maintenances,
        declared=declared,
        replaces=server.spec.replaces,
        stopped=fleet.is_stopped,
        endpoint=shared.endpoint,
        local_disk=local_disk if local_disk != NOT_FOUND else None,
        copies=CopySettings(
            one_time_boots=serving.one_time_boots is OneTimeBoots.COPIES,
            late_ends=serving.late_ends is not None and shared.endpoint is not None,
            ipxe_https=serving.ipxe_https and is_https,
        ),
    )
    findings += check_loader_signatures(inputs, decision)
    if fleet.is_written:
        findings += check_copy_support(fleet, decision)
    host = make_host(server, shared.site, inputs.loader, secure_boot=inputs.secure_boot)
    return DecidedServer(decision, host, tuple(findings))


def _decide_policy(
    inputs: ServerInputs, pool: Pool, boot_inputs: BootInputs, composer: Composer, findings: list[DecisionFinding]
) -> PolicyDecision:
    """Return the boot of a policy (rules R4 and R6), and add any problems to ``findings``."""
    boot = None
    if boot_inputs.image is not None:
        boot = _compose_boot(composer, build_boot_source(inputs, boot_inputs, pool=pool), boot_inputs, findings)
    override = pool.override or _choose_default_override(pool.network_boot, boot)
    findings += check_policy(inputs, pool, boot_inputs, boot, override)
    return PolicyDecision(
        policy=pool.name,
        network_boot=pool.network_boot,
        boot=boot,
        override=override,
        disk_boot=pool.disk_boot,
        power=pool.power,
        provision=inputs.server.spec.provision,
        attempts=inputs.shared.fleet.attempts,
        wait_for=pool.wait_for,
    )


def _decide_maintenance(
    inputs: ServerInputs, maintenance_inputs: MaintenanceInputs, composer: Composer, findings: list[DecisionFinding]
) -> MaintenanceDecision:
    """Return the boot of a maintenance (rule R2), and add any problems to ``findings``."""
    maintenance, boot_inputs, boot = maintenance_inputs.maintenance, maintenance_inputs.boot, None
    spec = maintenance.spec
    if boot_inputs.image is not None:
        source = build_boot_source(inputs, boot_inputs, maintenance=maintenance)
        boot = _compose_boot(composer, source, boot_inputs, findings)
    override = spec.override or _choose_default_override(spec.network_boot, boot)
    findings += check_maintenance(inputs.server, maintenance_inputs, boot, override)
    return MaintenanceDecision(
        name=maintenance.metadata.name,
        start=spec.window.start,
        end=spec.window.end,
        priority=spec.priority,
        network_boot=spec.network_boot,
        boot=boot,
        override=override,
        run=spec.run,
        power=spec.power,
        max_unavailable=spec.max_unavailable,
        max_unavailable_per=spec.max_unavailable_per,
        before=_find_preconditions(maintenance_inputs, boot),
    )


def _find_preconditions(maintenance_inputs: MaintenanceInputs, boot: Boot | None) -> Preconditions | None:
    """Return the conditions that must be true before a server gets this boot, or None if there are none.

    The digest of the conditions changes if anything that the server boots changes, or if the maintenance's servers,
    window or run changes. The digest depends only on the fields that the document sets, so that a new version of
    gitboot computes the same digest.
    """
    spec = maintenance_inputs.maintenance.spec
    if (before := spec.before) is None:
        return None
    spec_values: dict[str, Any] = {}
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if field.name not in _FIELDS_WITHOUT_EFFECT and value != _get_default_value(field):
            spec_values[field.name] = to_yaml_value(value)
    digest = compute_digest(
        {
            "maintenance": maintenance_inputs.maintenance.metadata.name,
            "spec": spec_values,
            "boot": to_json_value(boot) if boot is not None else None,
        }
    )
    approval = before.approval
    return Preconditions(
        digest=digest,
        approval_file=approval.file if approval is not None else None,
        approval_url=approval.url if approval is not None else None,
        is_approved=digest in maintenance_inputs.approved,
        drain_url=before.drain.url if before.drain is not None else None,
    )


def _get_default_value(field: dataclasses.Field[Any]) -> object:
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default


def _choose_default_override(network_boot: NetworkBoot, boot: Boot | None) -> OverrideMode:
    """Return Continuous if networkBoot is Always and a boot script can end the override.

    Return Once in all other cases.
    """
    if network_boot is NetworkBoot.ALWAYS and boot is not None and not boot.is_direct:
        return OverrideMode.CONTINUOUS
    return OverrideMode.ONCE


def build_boot_source(
    inputs: ServerInputs, boot: BootInputs, *, pool: Pool | None = None, maintenance: Maintenance | None = None
) -> BootSource:
    """Collect the documents and values from which gitboot composes a server's boot for a policy or a maintenance."""
    server, shared = inputs.server, inputs.shared
    assert boot.image is not None  # noqa: S101 - the profile's method is not Disk
    return BootSource(
        image=boot.image,
        profile=boot.profile,
        architecture=server.spec.architecture,
        firmware=server.spec.firmware,
        base_url=shared.base_url,
        endpoint=shared.endpoint or shared.base_url,
        phase=Phase.NETWORK if maintenance is None else Phase.MAINTENANCE,
        mirrors=shared.fleet.mirrors,
        requires_signature=boot.requires_signature,
        has_ipxe_scripts=not IPXE_OUTPUTS.isdisjoint(shared.fleet.outputs),
        boots_by_ipxe=find_lax_loader(inputs, boot.profile) is None,
        files={**boot.files, **inputs.files} if inputs.files else boot.files,
        server=server,
        pool=pool,
        maintenance=maintenance,
        site=shared.site,
    )


def _compose_boot(
    composer: Composer, source: BootSource, inputs: BootInputs, findings: list[DecisionFinding]
) -> Boot | None:
    """Compose a boot, and add any problems to ``findings``. Return None if the boot cannot work."""
    try:
        boot = composer.compose(source)
    except Unbootable as error:
        findings.append(DecisionFinding(error.code, error.message, error.hint, (error.resource, error.path)))
        return None
    findings += check_first_boot(boot, inputs)
    findings += check_leaks(boot, inputs, source.server)
    return boot


def decide_unknown_machines(
    fleet: Fleet, inputs: BootInputs | None, composer: Composer
) -> tuple[Mapping[Architecture, Boot] | None, list[tuple[str, DecisionFinding]]]:
    """Return the boots for unknown machines by architecture, and the findings.

    Each finding comes with a description of the machines that it concerns. The boots are None if the Fleet does not set
    a profile for unknown machines, or if the profile is unsuitable.
    """
    if inputs is None:
        return None, []
    profile, image = inputs.profile, inputs.image
    place = (Id("Fleet", fleet.metadata.name), ("spec", "unknownServers", "profile"))
    if image is None or profile.spec.method is not Method.PXE:
        finding = DecisionFinding(
            Code.COMBINATION,
            f"a profile for unknown machines must set `method: Pxe`, found {profile.spec.method}",
            "choose a profile with `method: Pxe`, or set `unknownServers: LocalDisk`",
            place,
            is_shared=False,
        )
        return None, [("", finding)]
    if image.spec.writes_disk:
        message = f"unknown machines would boot BootImage/{image.metadata.name}, which writes to disk"
        code = Code.UNKNOWN_WRITES_DISK
        return None, [("", DecisionFinding(code, message, code.hint, place, is_shared=False))]
    boots: dict[Architecture, Boot] = {}
    all_findings: list[tuple[str, DecisionFinding]] = []
    ignoring_loader = find_output_ignoring_signatures(fleet.metadata.name, fleet.spec.outputs)
    for architecture in sorted(image.spec.architectures):
        source = BootSource(
            image=image,
            profile=profile,
            architecture=architecture,
            firmware=Firmware.UEFI,
            base_url=fleet.spec.base_url,
            endpoint=fleet.spec.endpoint or fleet.spec.base_url,
            phase=Phase.NETWORK,
            mirrors=Output.MIRROR in fleet.spec.outputs,
            requires_signature=inputs.requires_signature,
            has_ipxe_scripts=not IPXE_OUTPUTS.isdisjoint(fleet.spec.outputs),
            boots_by_ipxe=ignoring_loader is None,
            files=inputs.files,
        )
        findings: list[DecisionFinding] = []
        if (boot := _compose_boot(composer, source, inputs, findings)) is not None:
            boots[architecture] = boot
            findings += check_loader_signature(boot, inputs, ignoring_loader, architecture, secure_boot=False)
        all_findings += ((f"unknown {architecture} machines", finding) for finding in findings)
    return boots, all_findings


def decide_revision(
    loaded: LoadedRevision | InvalidRevision, decide: Callable[[FleetRepository], FleetDecisions] = decide_all
) -> FleetDecisions:
    """Return the decisions for a revision. Raises `InvalidRepository` with all problems of the revision.

    If some documents are invalid, gitboot also reports the problems of the valid documents, except problems that may
    only be a consequence of the invalid documents.
    """
    if not isinstance(loaded, InvalidRevision):
        try:
            return decide(loaded.repository)
        except InvalidRepository as error:
            raise InvalidRepository(error.problems, fleet=loaded.repository.fleet.spec, dated=error.dated) from None
    problems: Sequence[Problem]
    dated: tuple[DatedProblem, ...]
    try:
        decisions = decide(loaded.complete).decisions
        problems, dated = decisions.warnings, decisions.dated
    except InvalidRepository as error:
        problems, dated = error.problems, error.dated
    # without one of these documents, gitboot cannot choose policies reliably
    unreliable_codes = {Code.NO_POLICY, Code.POLICY_TIE} if loaded.incomplete_kinds & {"BootPolicy", "Fleet"} else set()
    if "Server" in loaded.incomplete_kinds:  # a selector may match a server whose document is invalid
        unreliable_codes |= {Code.SELECTS_NO_SERVER}
    other_problems = (
        *(each for each in problems if each.code not in unreliable_codes),
        *find_unsupported_settings(loaded.well_formed),
    )
    spec = loaded.well_formed.fleet.spec if any(key.kind == "Fleet" for key in loaded.well_formed.origins) else None
    raise InvalidRepository(dict.fromkeys((*loaded.problems, *other_problems)), fleet=spec, dated=dated)


def find_server_sites(repository: FleetRepository) -> dict[str, Site]:
    """Return the site of each server, by server name. Omit servers without a site."""
    index = build_site_index(repository)
    sites = {name: index.find(server) for name, server in repository.servers.items()}
    return {name: selecting_sites[0] for name, selecting_sites in sites.items() if selecting_sites}


def build_site_index(repository: FleetRepository) -> SelectorIndex[Site]:
    """Return an index of sites by selector.

    A server belongs to the first site that the index returns for the server.
    """
    return SelectorIndex((site, site.select) for site in repository.fleet.spec.sites)


def select_longest_problems(dated_problems: Iterable[DatedProblem]) -> tuple[DatedProblem, ...]:
    """Return, for each file, the hundred errors and the hundred warnings that end last, sorted by location.

    Whenever a file has a problem, it also has at least one of the returned problems. An additional problem states how
    many problems were omitted, and ends when the last of the omitted problems ends.
    """
    groups: defaultdict[tuple[str, Severity], list[DatedProblem]] = defaultdict(list)
    for dated in dated_problems:
        groups[dated.problem.path, dated.problem.severity].append(dated)
    selected: list[DatedProblem] = []
    for group in groups.values():
        # later sorts take precedence over earlier ones
        group.sort(key=lambda dated: dated.problem)
        group.sort(key=lambda dated: dated.since or _BEGINNING)
        group.sort(key=lambda dated: dated.until or _END, reverse=True)
        selected += group[:MAX_SHOWN]
        if omitted := group[MAX_SHOWN:]:
            code = Code.TOO_MANY_PROBLEMS
            message = f"up to {len(omitted):,} more time-dependent problems are not shown"
            problem = structs.replace(omitted[0].problem, code=code, message=message, hint=code.hint)
            selected.append(structs.replace(omitted[0], problem=problem))
    return tuple(sorted(selected, key=lambda dated: dated.problem))
