"""What a commit says about every server: decisions, or everything that speaks against the commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

from gitboot.errors import InvalidRepository
from gitboot.load import FleetRepository, Id
from gitboot.model.fleet import Evidence, Output, Site, UnknownProfile
from gitboot.model.image import SkewMode
from gitboot.model.policy import BootProfile, Maintenance, Method, NetworkBoot, OverrideMode
from gitboot.model.scalars import shown, version_key
from gitboot.model.selectors import selects
from gitboot.model.server import PROVISIONED, Architecture, Firmware, Lifecycle, Server
from gitboot.plan import Boot, Decision, MaintenanceDecision, Phase, PolicyDecision
from gitboot.problems.codes import Code
from gitboot.problems.first import first
from gitboot.problems.problem import Problem, Severity
from gitboot.resolve.boot import Composer
from gitboot.resolve.choice import Pool, Tie, Won, choose_image, choose_policy, maintenance_image, pools
from gitboot.resolve.hosts import Host, host
from gitboot.resolve.later import not_yet
from gitboot.resolve.leaks import leaks
from gitboot.resolve.source import Source, Unbootable


@dataclass(frozen=True, kw_only=True, slots=True)
class Decisions:
    """What a commit says about every server, and about machines that it does not know."""

    revision: str
    base_url: str
    outputs: frozenset[Output]
    evidence: Evidence
    servers: Mapping[str, Decision]  # by name, sorted
    hosts: tuple[Host, ...]  # in the order of the servers' names
    sites: Mapping[str, str]  # by name, in the document's order: what is reached under which base URL
    unknown: Mapping[Architecture, Boot] | None  # None: no profile for machines without a document
    unknown_not_found: bool  # such machines are answered 404
    warnings: tuple[Problem, ...]


def decide(repository: FleetRepository) -> Decisions:
    """The decision for every server; raise `InvalidRepository` with all that speaks against the commit."""
    deciding = _Deciding(repository)
    servers = {name: deciding.server(server) for name, server in repository.servers.items()}
    unknown = deciding.unknown()
    problems = first(deciding.problems())
    if any(problem.severity is Severity.ERROR for problem in problems):
        raise InvalidRepository(problems)
    fleet = repository.fleet.spec
    return Decisions(
        revision=repository.revision,
        base_url=fleet.base_url,
        outputs=frozenset(fleet.outputs),
        evidence=fleet.provisioning.evidence,
        servers=servers,
        hosts=tuple(host(server, site_of(repository, server)) for server in repository.servers.values()),
        sites={site.name: site.base_url for site in fleet.sites},
        unknown=unknown,
        unknown_not_found=fleet.unknown_servers == "NotFound",
        warnings=problems,
    )


def candidates(repository: FleetRepository, known: Mapping[str, Pool], server: Server) -> list[Pool]:
    """The policies that select ``server``, by name."""
    name, labels = server.metadata.name, server.metadata.labels
    return [pool for pool in known.values() if selects(repository.policies[pool.name].spec.select, name, labels)]


def site_of(repository: FleetRepository, server: Server) -> Site | None:
    """The first site that selects ``server``."""
    name, labels = server.metadata.name, server.metadata.labels
    return next((site for site in repository.fleet.spec.sites if selects(site.select, name, labels)), None)


def boot_source(
    repository: FleetRepository,
    server: Server,
    profile: BootProfile,
    image: str,
    *,
    pool: Pool | None = None,
    maintenance: Maintenance | None = None,
) -> Source:
    """What one server's boot is composed of, under a policy or a maintenance."""
    site = site_of(repository, server)
    return Source(
        image=repository.images[image],
        profile=profile,
        architecture=server.spec.architecture,
        firmware=server.spec.firmware,
        base_url=site.base_url if site else repository.fleet.spec.base_url,
        phase=Phase.NETWORK if maintenance is None else Phase.MAINTENANCE,
        server=server,
        pool=pool,
        maintenance=maintenance,
        site=site.name if site else None,
    )


class _Finding(NamedTuple):
    """A problem that servers have in common; it is reported once and names them."""

    code: Code
    message: str
    hint: str
    severity: Severity
    place: tuple[Id, tuple[str | int, ...]] | tuple[str, int]  # a resource's field; or a template's path and line


class _Deciding:
    """The decisions of one repository while they are made, and what is found on the way."""

    def __init__(self, repository: FleetRepository) -> None:
        self._repository = repository
        self._composer = Composer(repository)
        self._pools, self._problems = pools(repository)
        self._findings: dict[_Finding, list[str]] = {}
        self._problems += not_yet(repository)

    def problems(self) -> Iterator[Problem]:
        yield from self._problems
        for finding, servers in self._findings.items():
            more = f" and {len(servers) - 2} more" if len(servers) > 2 else ""
            message = f"{finding.message} ({', '.join(sorted(servers)[:2])}{more})"
            yield self._placed(finding, message)

    def _placed(self, finding: _Finding, message: str) -> Problem:
        match finding.place:
            case (str() as path, int() as line):
                return Problem(
                    path=path,
                    line=line,
                    column=1,
                    code=finding.code,
                    message=message,
                    hint=finding.hint,
                    severity=finding.severity,
                )
            case (Id() as resource, tuple() as field):  # pragma: no branch - there are two kinds of place
                return self._repository.problem(
                    finding.code, message, resource, *field, hint=finding.hint, severity=finding.severity
                )

    def _find(
        self,
        server: str,
        code: Code,
        message: str,
        hint: str,
        resource: Id,
        *path: str | int,
        severity: Severity = Severity.ERROR,
        template: tuple[str, int] | None = None,
    ) -> None:
        finding = _Finding(code, message, hint, severity, template or (resource, path))
        self._findings.setdefault(finding, []).append(server)

    def _find_unbootable(self, server: str, error: Unbootable) -> None:
        self._find(server, error.code, error.message, error.hint, error.resource, *error.path, template=error.template)

    def server(self, server: Server) -> Decision:
        """The decision for ``server``; what it lacks has been noted as a problem."""
        policy: PolicyDecision | None = None
        maintenances: tuple[MaintenanceDecision, ...] = ()
        if server.spec.lifecycle is Lifecycle.ACTIVE:
            pool = self._pool_of(server)
            policy = self._policy(server, pool) if pool is not None else None
            maintenances = tuple(self._maintenances(server))
            self._check_overlaps(server, maintenances)
        site = site_of(self._repository, server)
        return Decision(
            server=server.metadata.name,
            uuid=server.spec.uuid,
            macs=server.boot_macs,
            serial=server.boot_serial,
            architecture=server.spec.architecture,
            firmware=server.spec.firmware,
            lifecycle=server.spec.lifecycle,
            restrict=self._repository.fleet.spec.serving.restrict,
            base_url=site.base_url if site else self._repository.fleet.spec.base_url,
            provision=server.spec.provision,
            policy=policy,
            maintenances=maintenances,
            declared=self._declared(server),
        )

    def _declared(self, server: Server) -> int | None:
        """The number that Git says is provisioned, where that is the evidence."""
        if self._repository.fleet.spec.provisioning.evidence is not Evidence.DECLARED:
            return None
        text = server.metadata.annotations.get(PROVISIONED)
        if text is None:
            return None
        if not (text.isascii() and text.isdecimal() and len(text) < 19):  # as in any whole number
            problem = self._repository.problem(
                Code.INTEGER,
                f"expected a whole number, found {shown(text)}",
                Id("Server", server.metadata.name),
                *("metadata", "annotations", PROVISIONED),
                hint=f'write the provision number that is installed: {PROVISIONED}: "1"',
            )
            self._problems.append(problem)
            return None
        return int(text)

    # R3

    def _pool_of(self, server: Server) -> Pool | None:
        name, named = server.metadata.name, server.spec.policy
        if named is not None:
            return self._pools.get(named)  # broken policies have their own problem
        match choose_policy(candidates(self._repository, self._pools, server), None):
            case Won(winner=pool):
                return pool
            case Tie(names=names):
                message = f"{' and '.join(f'BootPolicy/{each}' for each in names)} select a server with one priority"
                self._find(
                    name,
                    Code.POLICY_TIE,
                    message,
                    "raise the priority of one, let one inherit from the other, or narrow a selector",
                    Id("BootPolicy", names[-1]),
                    *("spec", "select"),
                )
            case None if len(self._pools) == len(self._repository.policies):
                required = self._repository.fleet.spec.require_policy
                problem = self._repository.problem(
                    Code.NO_POLICY,
                    f"no BootPolicy selects {name}",
                    Id("Server", name),
                    *("metadata", "name"),
                    hint="select it, name a policy in it, or park it",
                    severity=Severity.ERROR if required else Severity.WARNING,
                )
                self._problems.append(problem)
        return None

    # R4 and R6 under a policy

    def _policy(self, server: Server, pool: Pool) -> PolicyDecision:
        profile = self._repository.profiles[pool.profile]
        boot = None
        if profile.spec.method is not Method.DISK:
            chosen = choose_image(server, profile, self._repository.streams)
            boot = self._boot(server, profile, chosen.winner.image, pool=pool)
            self._check_skew(server, profile, chosen.winner.image, chosen.winner.said_by, chosen.winner.path)
        override = pool.override or _default_override(pool.network_boot, boot)
        self._check_override(server, boot, override, Id("BootPolicy", pool.name))
        return PolicyDecision(
            policy=pool.name,
            network_boot=pool.network_boot,
            boot=boot,
            override=override,
            disk_boot=pool.disk_boot,
            power=pool.power,
            provision=server.spec.provision,
        )

    def _boot(
        self,
        server: Server,
        profile: BootProfile,
        image: str,
        *,
        pool: Pool | None = None,
        maintenance: Maintenance | None = None,
    ) -> Boot | None:
        """The composed boot; None where it cannot work, which has been noted."""
        source = boot_source(self._repository, server, profile, image, pool=pool, maintenance=maintenance)
        try:
            boot = self._composer.compose(source)
        except Unbootable as error:
            self._find_unbootable(server.metadata.name, error)
            return None
        self._check_leaks(server.metadata.name, boot, source.profile_id)
        return boot

    def _check_leaks(self, server: str, boot: Boot, profile: Id) -> None:
        for leak in leaks(boot):
            self._find(
                server,
                Code.SECRET,
                f"what looks like {leak.what} would be published: {leak.where}",
                Code.SECRET.hint,
                profile,
                *("spec", "userData" if "argument" not in leak.where else "kernelArguments"),
                severity=leak.severity,
            )

    def _check_skew(
        self, server: Server, profile: BootProfile, image: str, said_by: Id, path: tuple[str | int, ...]
    ) -> None:
        skew = self._repository.streams[profile.spec.stream].spec.skew if profile.spec.stream else None
        if skew is None or skew.mode is SkewMode.NONE:
            return
        version = self._repository.images[image].spec.version
        if version_key(version) < version_key(skew.minimum_version):
            self._find(
                server.metadata.name,
                Code.SKEW,
                f"BootImage/{image} is version {version}, and ImageStream/{profile.spec.stream} wants at least "
                f"{skew.minimum_version}",
                Code.SKEW.hint,
                said_by,
                *path,
                severity=Severity.ERROR if skew.mode is SkewMode.ENFORCE else Severity.WARNING,
            )

    def _check_override(self, server: Server, boot: Boot | None, override: OverrideMode, resource: Id) -> None:
        if boot is not None and boot.direct and override is OverrideMode.CONTINUOUS:
            self._find(
                server.metadata.name,
                Code.OVERRIDE_MODE,
                f"override Continuous with BootImage/{boot.image}, which is booted directly",
                Code.OVERRIDE_MODE.hint,
                resource,
                *("spec", "override"),
            )

    # R2

    def _maintenances(self, server: Server) -> Iterator[MaintenanceDecision]:
        name, labels = server.metadata.name, server.metadata.labels
        for maintenance in self._repository.maintenances.values():
            if selects(maintenance.spec.select, name, labels):
                yield self._maintenance(server, maintenance)

    def _maintenance(self, server: Server, maintenance: Maintenance) -> MaintenanceDecision:
        spec = maintenance.spec
        profile = self._repository.profiles[spec.profile]
        boot = None
        if profile.spec.method is not Method.DISK:
            image = maintenance_image(profile, self._repository.streams)
            boot = self._boot(server, profile, image, maintenance=maintenance)
            self._check_skew(server, profile, image, Id("Maintenance", maintenance.metadata.name), ("spec", "profile"))
        override = spec.override or _default_override(spec.network_boot, boot)
        self._check_override(server, boot, override, Id("Maintenance", maintenance.metadata.name))
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
        )

    def _check_overlaps(self, server: Server, maintenances: tuple[MaintenanceDecision, ...]) -> None:
        """A tie at any instant is an error now, whenever that instant is."""
        for one, other in combinations(maintenances, 2):
            if one.priority == other.priority and one.overlaps(other):
                self._find(
                    server.metadata.name,
                    Code.MAINTENANCE_TIE,
                    f"Maintenance/{one.name} and Maintenance/{other.name} overlap with one priority",
                    "raise the priority of one, move its window, or remove the one that is over",
                    Id("Maintenance", other.name),
                    *("spec", "window"),
                )

    # Machines without a document

    def unknown(self) -> dict[Architecture, Boot] | None:
        """What they boot, for each architecture that the profile's image has."""
        fleet = self._repository.fleet
        if not isinstance(fleet.spec.unknown_servers, UnknownProfile):
            return None
        profile = self._repository.profiles[fleet.spec.unknown_servers.profile]
        at = (Id("Fleet", fleet.metadata.name), "spec", "unknownServers", "profile")
        if profile.spec.method is not Method.PXE:
            self._problems.append(
                self._repository.problem(
                    Code.COMBINATION,
                    f"an unknown machine is found by its loader, so its profile needs method Pxe, "
                    f"found {profile.spec.method}",
                    *at,
                    hint="name a profile with method Pxe, or write LocalDisk",
                )
            )
            return None
        image = self._repository.images[maintenance_image(profile, self._repository.streams)]
        if image.spec.writes_disk:
            self._problems.append(
                self._repository.problem(
                    Code.UNKNOWN_WRITES_DISK,
                    f"unknown servers would boot BootImage/{image.metadata.name}, which writes disks",
                    *at,
                    hint=Code.UNKNOWN_WRITES_DISK.hint,
                )
            )
            return None
        boots: dict[Architecture, Boot] = {}
        for architecture in sorted(image.spec.architectures):
            source = Source(
                image=image,
                profile=profile,
                architecture=architecture,
                firmware=Firmware.UEFI,
                base_url=fleet.spec.base_url,
                phase=Phase.NETWORK,
            )
            machines = f"unknown {architecture} machines"
            try:
                boots[architecture] = self._composer.compose(source)
            except Unbootable as error:
                self._find_unbootable(machines, error)
            else:
                self._check_leaks(machines, boots[architecture], source.profile_id)
        return boots


def _default_override(network_boot: NetworkBoot, boot: Boot | None) -> OverrideMode:
    """Once; but Always goes on with Continuous where an entry can end it."""
    if network_boot is NetworkBoot.ALWAYS and boot is not None and not boot.direct:
        return OverrideMode.CONTINUOUS
    return OverrideMode.ONCE
