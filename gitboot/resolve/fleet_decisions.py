"""Fleet decisions: decide for all servers of a commit, or report what prevents it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import ip_network
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from gitboot.errors import InvalidRepository
from gitboot.fleet.resources import FleetRepository, Id
from gitboot.fleet.validation import Flawed, Loaded
from gitboot.model.boot_policy import Maintenance, Method, NetworkBoot, OverrideMode
from gitboot.model.fleet import UNKNOWN_NOT_FOUND, OneTimeBoots, Output, Site, UnknownProfile
from gitboot.model.scalars import certificate_ends
from gitboot.model.server import Architecture, Firmware, Loader, Server
from gitboot.problems import Code, DatedProblem, Problem, Severity, first, longest
from gitboot.resolve.boot_checks import (
    check_authority,
    check_copies,
    check_end,
    check_every_boot,
    check_identities,
    check_leaks,
    check_overlaps,
    check_override,
    check_power,
    check_site,
    check_skew,
    check_uuid,
    check_wait,
    declared,
    placeholder_digests,
    rejected_labels,
)
from gitboot.resolve.boot_composition import Composer
from gitboot.resolve.decision_inputs import (
    BootInputs,
    DecisionFinding,
    FindingPlace,
    FleetTerms,
    FleetView,
    MaintenanceInputs,
    ServerInputs,
    UnknownInputs,
    located,
    of_unbootable,
)
from gitboot.resolve.policy_selection import BootSource, Pool, Selecting, Unbootable
from gitboot.resolve.server_decision import (
    Boot,
    CopyTerms,
    Decision,
    Decisions,
    Host,
    MaintenanceDecision,
    PolicyDecision,
    check_acceptable,
    host,
)
from gitboot.resolve.server_plan import Phase


class Made(NamedTuple):
    """A decision, and the problems that gitboot found on the way to it."""

    decision: Decision
    findings: tuple[DecisionFinding, ...]


class DecidedServer(NamedTuple):
    """What is decided for a server, and the server as the network knows it."""

    made: Made
    host: Host


class DecidedServers(NamedTuple):
    """What is decided for some servers, by their names; it may be made of bytes where it is looked at."""

    decisions: Mapping[str, Decision]
    hosts: Mapping[str, Host]
    flawed: Mapping[str, tuple[DecisionFinding, ...]]  # of those of which something was found


# Gives what a function finds for each of some servers; how many processes find it is for who gives it to say.
Apply = Callable[[Callable[[str], DecidedServer], Sequence[str]], DecidedServers]


def one_by_one(one: Callable[[str], DecidedServer], names: Sequence[str]) -> DecidedServers:
    """All of it found here and now."""
    found = {name: one(name) for name in names}
    return DecidedServers(
        decisions={name: each.made.decision for name, each in found.items()},
        hosts={name: each.host for name, each in found.items()},
        flawed={name: each.made.findings for name, each in found.items() if each.made.findings},
    )


class MadeUnknown(NamedTuple):
    """The same for unknown machines."""

    boots: Mapping[Architecture, Boot] | None
    findings: tuple[tuple[str, DecisionFinding], ...]  # (which machines, what)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """The decisions of a commit, and the problems of its servers."""

    repository: FleetRepository
    decisions: Decisions
    flawed: Mapping[str, tuple[DecisionFinding, ...]]  # of the servers of which something was found
    unknown: MadeUnknown
    placed: Mapping[DecisionFinding, FindingPlace]


# Errors by which a commit is not accepted, although an instance that has accepted it goes on with it: an earlier
# version accepted such commits.
GOES_ON: Final = frozenset({Code.PLACEHOLDER_IDENTITY})
_BEGINNING: Final = datetime.min.replace(tzinfo=UTC)


def decide(repository: FleetRepository, now: datetime = _BEGINNING) -> Decisions:
    """The decision for every server; raise `InvalidRepository` with all that speaks against the commit.

    By default overlaps count whenever they are, because none is over at the beginning of time.
    """
    try:
        decisions = decide_all(repository).decisions
    except InvalidRepository as error:
        raise error.at(now) from None
    check_acceptable(decisions, repository.fleet.spec, now)
    return decisions


def decide_all(
    repository: FleetRepository, apply: Apply = one_by_one, placed: Mapping[DecisionFinding, FindingPlace] | None = None
) -> Decided:
    """Return the decisions of a commit that may have been accepted before.

    ``placed``: where findings are placed in another commit, so that gitboot does not read unchanged documents again.
    Raises `InvalidRepository` for errors that are not of `GOES_ON`, and that do not depend on the time.
    """
    view, composer = FleetView(repository), Composer()

    def decide_one(name: str) -> DecidedServer:
        return decide_server(view.inputs(repository.servers[name]), composer)

    now = apply(decide_one, list(repository.servers))
    unknown = decide_unknown(view.unknown_inputs(), composer)
    found = [(name, finding) for name, each in now.flawed.items() for finding in each]
    located_problems, places = located(repository, (*found, *unknown.findings), placed or {})
    lasting = [each.problem for each in located_problems if each.since is each.until is None]
    dated = longest(each for each in located_problems if each.since is not None or each.until is not None)
    documents = (*not_yet(repository), *left_out(repository), *rejected_labels(repository))
    problems = first([*view.problems, *documents, *placeholder_digests(repository), *lasting])
    if any(problem.severity is Severity.ERROR and problem.code not in GOES_ON for problem in problems):
        raise InvalidRepository(problems, dated=dated)
    fleet = repository.fleet.spec
    return Decided(
        repository=repository,
        decisions=Decisions(
            revision=repository.revision,
            base_url=fleet.base_url,
            outputs=frozenset(fleet.outputs),
            evidence=fleet.provisioning.evidence,
            servers=now.decisions,
            networks=now.hosts,
            sites={site.name: site.base_url for site in fleet.sites},
            unknown=unknown.boots,
            unknown_not_found=fleet.unknown_servers == UNKNOWN_NOT_FOUND,
            warnings=problems,
            dated=dated,
        ),
        flawed=now.flawed,
        unknown=unknown,
        placed=places,
    )


def decide_server(inputs: ServerInputs, composer: Composer) -> DecidedServer:
    """Return the decision for a server, its findings, and the server as the network knows it.

    Equal inputs give equal results: nothing else is read.
    """
    made = _Deciding(composer).server(inputs)
    return DecidedServer(made, host(inputs.server, inputs.shared.site, loader_of(inputs)))


def boot_source(
    inputs: ServerInputs, boot: BootInputs, *, pool: Pool | None = None, maintenance: Maintenance | None = None
) -> BootSource:
    """Return what one server's boot is composed of, under a policy or a maintenance."""
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
        files={**boot.files, **inputs.files} if inputs.files else boot.files,
        server=server,
        pool=pool,
        maintenance=maintenance,
        site=shared.site,
    )


def decide_unknown(inputs: UnknownInputs, composer: Composer) -> MadeUnknown:
    """Return what machines without a document boot, for each architecture that the profile's image has."""
    if inputs.boot is None:
        return MadeUnknown(None, ())
    profile, image = inputs.boot.profile, inputs.boot.image
    place = (Id("Fleet", inputs.fleet), ("spec", "unknownServers", "profile"))
    if image is None or profile.spec.method is not Method.PXE:
        wanted = "an unknown machine is found by its loader, so its profile needs method Pxe"
        message, hint = f"{wanted}, found {profile.spec.method}", "name a profile with method Pxe, or write LocalDisk"
        finding = DecisionFinding(Code.COMBINATION, message, hint, place, is_shared=False)
        return MadeUnknown(None, (("", finding),))
    if image.spec.writes_disk:
        message = f"unknown servers would boot BootImage/{image.metadata.name}, which writes disks"
        code = Code.UNKNOWN_WRITES_DISK
        finding = DecisionFinding(code, message, code.hint, place, is_shared=False)
        return MadeUnknown(None, (("", finding),))
    boots: dict[Architecture, Boot] = {}
    findings: list[tuple[str, DecisionFinding]] = []
    for architecture in sorted(image.spec.architectures):
        source = BootSource(
            image=image,
            profile=profile,
            architecture=architecture,
            firmware=Firmware.UEFI,
            base_url=inputs.base_url,
            endpoint=inputs.endpoint or inputs.base_url,
            phase=Phase.NETWORK,
            mirrors=inputs.mirrors,
            files=inputs.boot.files,
        )
        boot, found = _composed(composer, source, inputs.boot)
        if boot is not None:
            boots[architecture] = boot
        findings += ((f"unknown {architecture} machines", finding) for finding in found)
    return MadeUnknown(boots, tuple(findings))


def _composed(
    composer: Composer, source: BootSource, inputs: BootInputs
) -> tuple[Boot | None, tuple[DecisionFinding, ...]]:
    """Return a boot and its findings; no boot if it cannot work."""
    try:
        boot = composer.compose(source)
    except Unbootable as error:
        return None, (of_unbootable(error),)
    return boot, tuple(check_leaks(boot, inputs, source.server))


class _Deciding:
    """The decision for one server while it is made, and what is found on the way."""

    def __init__(self, composer: Composer) -> None:
        self._composer = composer
        self._found: list[DecisionFinding] = []

    def server(self, inputs: ServerInputs) -> Made:
        """Return the decision for a server."""
        decision = self._decision(inputs)
        return Made(decision, tuple(self._found))

    def _decision(self, inputs: ServerInputs) -> Decision:
        server, shared = inputs.server, inputs.shared
        self._check_choice(inputs)
        policy = self._policy(inputs, shared.pool, shared.boot) if shared.pool and shared.boot else None
        maintenances = tuple(self._maintenance(inputs, each) for each in shared.maintenances)
        self._found.extend(check_overlaps(maintenances))
        self._found.extend(check_identities(server))
        ca = server.spec.bmc.tls.ca if server.spec.bmc is not None else None
        ends = _authority_end(inputs.files[ca]) if ca is not None else None
        self._found.extend(check_authority(server, ends))
        local_disk = local_disk_of(inputs)
        self._found.extend(check_loader(inputs))
        self._found.extend(check_site(shared.fleet, server, shared.sites))
        decision = Decision(
            server=server.metadata.name,
            uuid=server.uuid,
            macs=server.lookup_macs,
            serial=server.boot_serial,
            architecture=server.spec.architecture,
            firmware=server.spec.firmware,
            lifecycle=server.spec.lifecycle,
            restrict=_restricts(shared.fleet, local_disk),
            base_url=shared.base_url,
            provision=server.spec.provision,
            policy=policy,
            maintenances=maintenances,
            declared=self._declared(inputs),
            replaces=server.spec.replaces,
            stopped=shared.fleet.is_stopped,
            endpoint=shared.endpoint,
            local_disk=local_disk if local_disk != NOT_FOUND else None,
            copies=_copies(shared.fleet, shared.endpoint),
        )
        if shared.fleet.is_written:
            self._found.extend(check_copies(shared.fleet, decision))
        return decision

    def _declared(self, inputs: ServerInputs) -> int | None:
        """The number that Git says is provisioned, where that is the evidence."""
        found = declared(inputs.shared.fleet, inputs.server)
        if isinstance(found, DecisionFinding):
            self._found.append(found)
            return None
        return found

    # R3

    def _check_choice(self, inputs: ServerInputs) -> None:
        """Note that several policies select the server with one priority, or that no policy does."""
        shared, name = inputs.shared, inputs.server.metadata.name
        if shared.tied:
            message = f"{' and '.join(f'BootPolicy/{each}' for each in shared.tied)} select a server with one priority"
            hint = "raise the priority of one, let one inherit from the other, or narrow a selector"
            place = (Id("BootPolicy", shared.tied[-1]), ("spec", "select"))
            self._found.append(DecisionFinding(Code.POLICY_TIE, message, hint, place))
        elif shared.is_unselected:
            finding = DecisionFinding(
                Code.NO_POLICY,
                f"no BootPolicy selects {name}",
                "select it, name a policy in it, or park it",
                (Id("Server", name), ("metadata", "name")),
                Severity.ERROR if shared.fleet.requires_policy else Severity.WARNING,
                is_shared=False,
            )
            self._found.append(finding)

    # R4 and R6 under a policy

    def _policy(self, inputs: ServerInputs, pool: Pool, boots: BootInputs) -> PolicyDecision:
        server = inputs.server
        boot = None
        if boots.image is not None:
            boot = self._boot(boots, boot_source(inputs, boots, pool=pool))
            self._found.extend(check_skew(server, boots))
        override = pool.override or _default_override(pool.network_boot, boot)
        policy = Id("BootPolicy", pool.name)
        self._found.extend(check_override(boot, override, policy))
        self._found.extend(check_power(pool.power, pool.network_boot, policy))
        self._found.extend(check_wait(pool.wait_for, server, policy))
        self._found.extend(check_every_boot(boot, pool.network_boot, pool.reinstall, policy))
        if pool.network_boot is not NetworkBoot.NEVER:
            self._found.extend(check_uuid(server, boot, policy))
        return PolicyDecision(
            policy=pool.name,
            network_boot=pool.network_boot,
            boot=boot,
            override=override,
            disk_boot=pool.disk_boot,
            power=pool.power,
            provision=server.spec.provision,
            attempts=inputs.shared.fleet.attempts,
            wait_for=pool.wait_for,
        )

    def _boot(self, boots: BootInputs, source: BootSource) -> Boot | None:
        """The composed boot; None where it cannot work, which has been noted."""
        boot, found = _composed(self._composer, source, boots)
        self._found.extend(found)
        return boot

    # R2

    def _maintenance(self, inputs: ServerInputs, of: MaintenanceInputs) -> MaintenanceDecision:
        server, maintenance = inputs.server, of.maintenance
        spec, key = maintenance.spec, Id("Maintenance", maintenance.metadata.name)
        boot = None
        if of.boot.image is not None:
            boot = self._boot(of.boot, boot_source(inputs, of.boot, maintenance=maintenance))
            self._found.extend(check_skew(server, of.boot))
        override = spec.override or _default_override(spec.network_boot, boot)
        self._found.extend(check_override(boot, override, key))
        self._found.extend(check_every_boot(boot, spec.network_boot, spec.reinstall, key))
        self._found.extend(check_uuid(server, boot, key))
        self._found.extend(check_end(boot, spec.window, key))
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
        )


def _copies(fleet: FleetTerms, endpoint: str | None) -> CopyTerms:
    """Return what the Fleet lets copies of the boot files serve of a server with this endpoint."""
    serving = fleet.serving
    return CopyTerms(
        one_time_boots=serving.one_time_boots is OneTimeBoots.COPIES,
        late_ends=serving.late_ends is not None and endpoint is not None,
        ipxe_https=serving.ipxe_https and (endpoint or "").startswith("https:"),
    )


def _restricts(fleet: FleetTerms, local_disk: str | None) -> bool:
    """Return whether a server that boots its disk gets 404 by each lookup.

    If unknown machines get anything else, a known machine that gets 404 would boot that.
    """
    return (fleet.serving.restrict or local_disk == NOT_FOUND) and fleet.unknown_not_found


def _default_override(network_boot: NetworkBoot, boot: Boot | None) -> OverrideMode:
    """Once; but Always goes on with Continuous where an entry can end it."""
    if network_boot is NetworkBoot.ALWAYS and boot is not None and not boot.direct:
        return OverrideMode.CONTINUOUS
    return OverrideMode.ONCE


@lru_cache(maxsize=1024)  # servers share a few authorities
def _authority_end(certificates: bytes) -> datetime | None:
    """Return when the last certificate of a file ends; None: the file has none."""
    return max(certificate_ends(certificates), default=None)


def not_yet(repository: FleetRepository) -> Iterator[Problem]:
    """A problem for each use of something that comes with a later version."""
    fleet = repository.fleet
    if isinstance(unknown := fleet.spec.unknown_servers, UnknownProfile):
        profile = repository.profiles.get(unknown.profile)  # None: of a commit that does not hold together
        if profile is not None and (profile.spec.templates.ipxe or profile.spec.templates.grub):
            what = "entries of one's own for unknown machines"
            key = Id("Fleet", fleet.metadata.name)
            yield _later(repository, what, key, "spec", "unknownServers", "profile")


def _later(repository: FleetRepository, what: str, resource: Id, *path: str | int) -> Problem:
    message = f"this version of gitboot does not carry out {what}"
    return repository.problem(Code.NOT_YET, message, resource, *path, hint="leave it out until a version has it")


NOT_FOUND: Final = "NotFound"  # on to the local disk by having no entry
_OUTPUTS: Final = {Loader.IPXE: Output.IPXE, Loader.GRUB: Output.GRUB}


def loader_of(inputs: ServerInputs) -> Loader | None:
    """Return the boot loader that DHCP names for a server; None: the default one."""
    return inputs.server.spec.loader or inputs.shared.loader


def local_disk_of(inputs: ServerInputs) -> str | None:
    """Return how boot loaders start the disk of a server; None: the default way."""
    return inputs.server.spec.local_disk or inputs.shared.local_disk


def check_loader(inputs: ServerInputs) -> Iterator[DecisionFinding]:
    """Yield that DHCP would name a boot loader for which gitboot publishes no entries."""
    loader, fleet = loader_of(inputs), inputs.shared.fleet
    if loader is None or _OUTPUTS[loader] in fleet.outputs:
        return
    place = (Id("Fleet", fleet.name), ("spec", "hardware"))
    if inputs.server.spec.loader is not None:
        place = (Id("Server", inputs.server.metadata.name), ("spec", "loader"))
    message = f"DHCP would name {loader} for it, and {_OUTPUTS[loader]} is not among the outputs"
    hint = f"add {_OUTPUTS[loader]} to the Fleet's outputs, or name another loader"
    yield DecisionFinding(Code.COMBINATION, message, hint, place)


def left_out(repository: FleetRepository) -> Iterator[Problem]:
    """A warning where a URL that machines ask is one of IPv6, and no client of IPv6 is named.

    What a name leads to is not part of a commit.
    """
    spec = repository.fleet.spec
    clients = spec.provisioning.clients
    if not clients or any(ip_network(network).version == 6 for network in clients):
        return
    urls = [spec.base_url, spec.endpoint, *(url for site in spec.sites for url in (site.base_url, site.endpoint))]
    if asked := next((url for url in urls if url is not None and ":" in (urlsplit(url).hostname or "")), None):
        yield repository.problem(
            Code.NO_IPV6_CLIENTS,
            f"machines ask {asked}, and no network of IPv6 is among the clients: they would boot their disks",
            Id("Fleet", repository.fleet.metadata.name),
            *("spec", "provisioning", "clients"),
            severity=Severity.WARNING,
        )


def decide_loaded(found: Loaded | Flawed, decide: Callable[[FleetRepository], Decided] = decide_all) -> Decided:
    """Return what a revision decides; raise `InvalidRepository` with everything that is wrong with it.

    If documents are broken, the others are decided anyway, and their problems are reported with them. Problems that may
    only follow from a broken document are left out.
    """
    if isinstance(found, Flawed):
        besides, dated = _besides(found, decide)
        problems = dict.fromkeys((*found.problems, *besides))
        is_there = any(key.kind == "Fleet" for key in found.well_formed.origins)
        raise InvalidRepository(problems, fleet=found.well_formed.fleet.spec if is_there else None, dated=dated)
    try:
        return decide(found.repository)
    except InvalidRepository as error:
        raise InvalidRepository(error.problems, fleet=found.repository.fleet.spec, dated=error.dated) from None


def _besides(
    flawed: Flawed, decide: Callable[[FleetRepository], Decided]
) -> tuple[list[Problem], tuple[DatedProblem, ...]]:
    """Return what is wrong with the documents that are well formed, and what of it depends on the time."""
    try:
        decisions = decide(flawed.whole).decisions
        found, dated = decisions.warnings, decisions.dated
    except InvalidRepository as error:
        found, dated = error.problems, error.dated
    doubtful = _BY_POLICIES if flawed.lacking & _DECIDING else frozenset()
    return [*(problem for problem in found if problem.code not in doubtful), *not_yet(flawed.well_formed)], dated


_DECIDING: Final = frozenset({"BootPolicy", "Fleet"})  # of which one that is missing may change who is in which pool
_BY_POLICIES: Final = frozenset({Code.NO_POLICY, Code.POLICY_TIE})


def site_of(repository: FleetRepository, server: Server) -> Site | None:
    """The first site that selects ``server``."""
    return next(iter(sites(repository).of(server)), None)


def sites_of(repository: FleetRepository) -> dict[str, Site]:
    """The site of each server that is at one."""
    selection = sites(repository)
    found = {name: selection.of(server) for name, server in repository.servers.items()}
    return {name: selected[0] for name, selected in found.items() if selected}


def sites(repository: FleetRepository) -> Selecting[Site]:
    """The sites that select servers, the first of which is a server's own."""
    return Selecting((site, site.select) for site in repository.fleet.spec.sites)
