"""What a commit says about every server: decisions, or everything that speaks against the commit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Final, NamedTuple, TypeVar

from gitboot.certificates import certificate_ends
from gitboot.errors import InvalidRepository
from gitboot.load import FleetRepository, Id
from gitboot.load.merged import merged
from gitboot.model.fleet import UNKNOWN_NOT_FOUND, OneTimeBoots, Site, UnknownProfile
from gitboot.model.policy import BootProfile, Maintenance, Method, NetworkBoot, OverrideMode
from gitboot.model.selectors import selects
from gitboot.model.server import Architecture, Firmware, Lifecycle, Server
from gitboot.plan import Boot, CopyTerms, Decision, MaintenanceDecision, Phase, PolicyDecision
from gitboot.problems.codes import Code
from gitboot.problems.dated import longest
from gitboot.problems.first import first
from gitboot.problems.problem import Problem, Severity
from gitboot.resolve.boot import Composer
from gitboot.resolve.checked import (
    check_authority,
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
    templates_of,
)
from gitboot.resolve.choice import Pool, Tie, Won, choose_image, choose_policy, maintenance_image, pools
from gitboot.resolve.copies import check_copies
from gitboot.resolve.decisions import Decisions, check_acceptable
from gitboot.resolve.document_warnings import placeholder_digests, rejected_labels
from gitboot.resolve.families import left_out
from gitboot.resolve.found import DecisionFinding, FindingPlace, located, of_unbootable
from gitboot.resolve.hardware import NOT_FOUND, Makes
from gitboot.resolve.hosts import Host, host
from gitboot.resolve.later import not_yet
from gitboot.resolve.selection import Selecting
from gitboot.resolve.sites import endpoint_of, sites
from gitboot.resolve.source import BootSource, Unbootable

V = TypeVar("V")


class Made(NamedTuple):
    """A decision, what was found on the way to it, and what it was made of besides the server's own document."""

    decision: Decision
    findings: tuple[DecisionFinding, ...]
    of: tuple[Id, ...]  # resources, and files of kind "file"; selectors and the Fleet stand for themselves


class DecidedServer(NamedTuple):
    """What is decided for a server, and the server as the network knows it."""

    made: Made
    host: Host


class DecidedServers(NamedTuple):
    """What is decided for some servers, by their names; it may be made of bytes where it is looked at."""

    decisions: Mapping[str, Decision]
    hosts: Mapping[str, Host]
    of: Mapping[str, tuple[Id, ...]]  # what each was made of
    flawed: Mapping[str, tuple[DecisionFinding, ...]]  # of those of which something was found


# Gives what a function finds for each of some servers; how many processes find it is for who gives it to say.
Apply = Callable[[Callable[[str], DecidedServer], Sequence[str]], DecidedServers]


def one_by_one(one: Callable[[str], DecidedServer], names: Sequence[str]) -> DecidedServers:
    """All of it found here and now."""
    found = {name: one(name) for name in names}
    return DecidedServers(
        decisions={name: each.made.decision for name, each in found.items()},
        hosts={name: each.host for name, each in found.items()},
        of={name: each.made.of for name, each in found.items()},
        flawed={name: each.made.findings for name, each in found.items() if each.made.findings},
    )


class MadeUnknown(NamedTuple):
    """The same for unknown machines."""

    boots: Mapping[Architecture, Boot] | None
    findings: tuple[tuple[str, DecisionFinding], ...]  # (which machines, what)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decided:
    """The decisions of a commit, and what each was made of: the next commit's are made by it."""

    repository: FleetRepository
    decisions: Decisions
    of: Mapping[str, tuple[Id, ...]]  # by server
    flawed: Mapping[str, tuple[DecisionFinding, ...]]  # of the servers of which something was found
    unknown: MadeUnknown
    pools: Mapping[str, Pool]
    composer: Composer
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


def decide_all(repository: FleetRepository, apply: Apply = one_by_one) -> Decided:
    """Return the decisions of a commit that may have been accepted before, with what each was made of.

    Raises `InvalidRepository` for errors that are not of `GOES_ON`, and that do not depend on the time.
    """
    return _decided(_Deciding(repository, Composer(repository), None), None, repository.servers, apply)


def decide_again(
    before: Decided, repository: FleetRepository, affected: Collection[str], *, only_servers: bool
) -> Decided:
    """The decisions of another commit, of which only the ``affected`` servers' can be others.

    They are servers of either commit. ``only_servers``: nothing but Server documents differs.
    """
    pools = before.pools if repository.policies is before.repository.policies else None
    composer = before.composer.of(repository)
    return _decided(_Deciding(repository, composer, pools, only_servers=only_servers), before, affected)


def _decided(
    deciding: _Deciding, before: Decided | None, affected: Collection[str], apply: Apply = one_by_one
) -> Decided:
    repository = deciding.repository
    names = sorted(name for name in affected if name in repository.servers)
    now = apply(partial(_named, deciding), names)
    keep_unknown = before is not None and deciding.only_servers
    unknown = before.unknown if before is not None and keep_unknown else deciding.unknown()
    gone = [name for name in affected if name not in repository.servers]
    flawed = _with(
        before.flawed if before else None, now.flawed, [*gone, *(name for name in names if name not in now.flawed)]
    )
    found = [(name, finding) for name, each in flawed.items() for finding in each]
    located_problems, placed = located(repository, (*found, *unknown.findings), before.placed if before else {})
    lasting = [each.problem for each in located_problems if each.since is each.until is None]
    dated = longest(each for each in located_problems if each.since is not None or each.until is not None)
    problems = first([*deciding.problems, *lasting])
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
            servers=_with(before.decisions.servers if before else None, now.decisions, gone),
            networks=_with(before.decisions.networks if before else None, now.hosts, gone),
            sites={site.name: site.base_url for site in fleet.sites},
            unknown=unknown.boots,
            unknown_not_found=fleet.unknown_servers == UNKNOWN_NOT_FOUND,
            warnings=problems,
            dated=dated,
        ),
        of=_with(before.of if before else None, now.of, gone),
        flawed=flawed,
        unknown=unknown,
        pools=deciding.pools,
        composer=deciding.composer,
        placed=placed,
    )


def _with(before: Mapping[str, V] | None, now: Mapping[str, V], gone: Collection[str]) -> Mapping[str, V]:
    """What there was ``before``, as it is ``now``, without what is gone; of a first commit nothing is looked at."""
    return merged(before, now, gone) if before is not None else now


def _named(deciding: _Deciding, name: str) -> DecidedServer:
    """All that is decided for the server of this name."""
    server = deciding.repository.servers[name]
    known = host(server, deciding.site(server), deciding.makes.loader(server))
    return DecidedServer(deciding.server(server), known)


def candidates(repository: FleetRepository, known: Mapping[str, Pool], server: Server) -> list[Pool]:
    """The policies that select ``server``, by name."""
    name, labels = server.metadata.name, server.metadata.labels
    return [pool for pool in known.values() if selects(repository.policies[pool.name].spec.select, name, labels)]


def boot_source(
    repository: FleetRepository,
    server: Server,
    profile: BootProfile,
    image: str,
    site: Site | None,
    *,
    pool: Pool | None = None,
    maintenance: Maintenance | None = None,
) -> BootSource:
    """What one server's boot is composed of, under a policy or a maintenance, at its site."""
    base_url = site.base_url if site else repository.fleet.spec.base_url
    return BootSource(
        image=repository.images[image],
        profile=profile,
        architecture=server.spec.architecture,
        firmware=server.spec.firmware,
        base_url=base_url,
        endpoint=endpoint_of(repository, site) or base_url,
        phase=Phase.NETWORK if maintenance is None else Phase.MAINTENANCE,
        server=server,
        pool=pool,
        maintenance=maintenance,
        site=site.name if site else None,
    )


class _Deciding:
    """The decisions of one repository while they are made, and what is found on the way."""

    def __init__(
        self,
        repository: FleetRepository,
        composer: Composer,
        known: Mapping[str, Pool] | None,  # None: they are to be made of the policies
        *,
        only_servers: bool = False,  # nothing else differs from a commit in which nothing was wrong
    ) -> None:
        self.repository, self.composer = repository, composer
        self.only_servers = only_servers
        self.problems: list[Problem] = []
        self.pools: Mapping[str, Pool]
        if known is not None:
            self.pools = known
        else:
            self.pools, self.problems = pools(repository)
        self.problems += [*not_yet(repository), *left_out(repository)]
        self.problems += [*rejected_labels(repository), *placeholder_digests(repository)]
        policies = ((pool, repository.policies[pool.name].spec.select) for pool in self.pools.values())
        self._policies, self._sites = Selecting(policies), sites(repository)
        # Whether a document says what the Fleet is: it may be missing.
        self._has_fleet = Id("Fleet", repository.fleet.metadata.name) in repository.origins
        self.makes = Makes(repository)
        self._maintenances = Selecting((each, each.spec.select) for each in repository.maintenances.values())
        self._ends: dict[str, datetime | None] = {}  # of authorities for BMCs, by path
        self._found: list[DecisionFinding] = []  # of the server at hand
        self._of: dict[Id, None] = {}  # what its decision is made of, each once
        self._named: dict[str, tuple[Id, ...]] = {}  # by profile, with what it names
        self._interned: dict[tuple[Id, ...], tuple[Id, ...]] = {}  # most servers are made of the same

    def _uses(self, *resources: Id) -> None:
        """Note that the decision at hand is made of these."""
        self._of.update(dict.fromkeys(resources))

    def site(self, server: Server) -> Site | None:
        return next(iter(self._sites.of(server)), None)

    def server(self, server: Server) -> Made:
        """The decision for ``server``, with what it lacks."""
        self._found, self._of = [], {}
        self._uses(*(Id("file", path) for path in server.spec.secrets.values()))
        decision = self._decision(server)
        of = tuple(sorted(self._of))
        return Made(decision, tuple(self._found), self._interned.setdefault(of, of))

    def _decision(self, server: Server) -> Decision:
        policy: PolicyDecision | None = None
        maintenances: tuple[MaintenanceDecision, ...] = ()
        if server.spec.lifecycle is Lifecycle.ACTIVE:
            pool = self._pool_of(server)
            policy = self._policy(server, pool) if pool is not None else None
            maintenances = tuple(self._maintenance(server, each) for each in self._maintenances.of(server))
            self._found.extend(check_overlaps(maintenances))
        self._found.extend(check_identities(server))
        self._found.extend(check_authority(server, self._end_of_authority(server)))
        site, local_disk = self.site(server), self.makes.local_disk(server)
        self._found.extend(self.makes.unpublished(server))
        self._found.extend(check_site(self.repository, server, self._sites.of(server)))
        endpoint = endpoint_of(self.repository, site)
        decision = Decision(
            server=server.metadata.name,
            uuid=server.uuid,
            macs=server.lookup_macs,
            serial=server.boot_serial,
            architecture=server.spec.architecture,
            firmware=server.spec.firmware,
            lifecycle=server.spec.lifecycle,
            restrict=self._restricts(local_disk),
            base_url=site.base_url if site else self.repository.fleet.spec.base_url,
            provision=server.spec.provision,
            policy=policy,
            maintenances=maintenances,
            declared=self._declared(server),
            replaces=server.spec.replaces,
            stopped=self.repository.fleet.spec.stopped is not None,
            endpoint=endpoint,
            local_disk=local_disk if local_disk != NOT_FOUND else None,
            copies=self._copies(endpoint),
        )
        if self._has_fleet:
            self._found.extend(check_copies(self.repository.fleet, decision))
        return decision

    def _end_of_authority(self, server: Server) -> datetime | None:
        """Return when the last certificate ends by which the BMC of a server is verified; None: no file has one."""
        ca = server.spec.bmc.tls.ca if server.spec.bmc is not None else None
        if ca is None:
            return None
        self._uses(Id("file", ca))
        if ca not in self._ends:
            self._ends[ca] = max(certificate_ends(self.repository.files[ca]), default=None)
        return self._ends[ca]

    def _copies(self, endpoint: str | None) -> CopyTerms:
        """Return what the Fleet lets copies of the boot files serve of a server with this endpoint."""
        serving = self.repository.fleet.spec.serving
        return CopyTerms(
            one_time_boots=serving.one_time_boots is OneTimeBoots.COPIES,
            late_ends=serving.late_ends is not None and endpoint is not None,
            ipxe_https=serving.ipxe_https and (endpoint or "").startswith("https:"),
        )

    def _restricts(self, local_disk: str | None) -> bool:
        """Return whether a server that boots its disk gets 404 by each lookup.

        If unknown machines get anything else, a known machine that gets 404 would boot that.
        """
        spec = self.repository.fleet.spec
        return (spec.serving.restrict or local_disk == NOT_FOUND) and spec.unknown_servers == UNKNOWN_NOT_FOUND

    def _declared(self, server: Server) -> int | None:
        """The number that Git says is provisioned, where that is the evidence."""
        found = declared(self.repository.fleet, server)
        if isinstance(found, DecisionFinding):
            self._found.append(found)
            return None
        return found

    # R3

    def _pool_of(self, server: Server) -> Pool | None:
        name, named = server.metadata.name, server.spec.policy
        if named is not None:
            self._uses(Id("BootPolicy", named))
            return self.pools.get(named)  # broken policies have their own problem
        match choose_policy(self._policies.of(server), None):
            case Won(winner=pool):
                return pool
            case Tie(names=names):
                message = f"{' and '.join(f'BootPolicy/{each}' for each in names)} select a server with one priority"
                hint = "raise the priority of one, let one inherit from the other, or narrow a selector"
                place = (Id("BootPolicy", names[-1]), ("spec", "select"))
                self._found.append(DecisionFinding(Code.POLICY_TIE, message, hint, place))
            case None if len(self.pools) == len(self.repository.policies):
                required = self.repository.fleet.spec.require_policy
                finding = DecisionFinding(
                    Code.NO_POLICY,
                    f"no BootPolicy selects {name}",
                    "select it, name a policy in it, or park it",
                    (Id("Server", name), ("metadata", "name")),
                    Severity.ERROR if required else Severity.WARNING,
                    is_shared=False,
                )
                self._found.append(finding)
        return None

    # R4 and R6 under a policy

    def _policy(self, server: Server, pool: Pool) -> PolicyDecision:
        profile = self._profile(pool.profile)
        boot = None
        if profile.spec.method is not Method.DISK:
            chosen = choose_image(server, profile, self.repository.streams)
            boot = self._boot(server, profile, chosen.winner.image, pool=pool)
            winner = chosen.winner
            self._found.extend(check_skew(self.repository, profile, winner.image, winner.said_by, winner.path))
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
            attempts=self.repository.fleet.spec.provisioning.attempts,
            wait_for=pool.wait_for,
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
        self._uses(Id("BootImage", image))
        site = self.site(server)
        source = boot_source(self.repository, server, profile, image, site, pool=pool, maintenance=maintenance)
        return self._composed(source)

    def _composed(self, source: BootSource) -> Boot | None:
        try:
            boot = self.composer.compose(source)
        except Unbootable as error:
            self._found.append(of_unbootable(error))
            return None
        self._found.extend(check_leaks(self.repository, boot, source.profile))
        return boot

    def _profile(self, name: str) -> BootProfile:
        """A profile; with it what it names is what the decision is made of."""
        profile = self.repository.profiles[name]
        if name not in self._named:
            self._named[name] = tuple(_with_what_it_names(profile))
        self._uses(*self._named[name])
        return profile

    # R2

    def _maintenance(self, server: Server, maintenance: Maintenance) -> MaintenanceDecision:
        spec, key = maintenance.spec, Id("Maintenance", maintenance.metadata.name)
        profile = self._profile(spec.profile)
        boot = None
        if profile.spec.method is not Method.DISK:
            image = maintenance_image(profile, self.repository.streams)
            boot = self._boot(server, profile, image, maintenance=maintenance)
            self._found.extend(check_skew(self.repository, profile, image, key, ("spec", "profile")))
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

    # Machines without a document

    def unknown(self) -> MadeUnknown:
        """What they boot, for each architecture that the profile's image has."""
        self._found = []
        fleet = self.repository.fleet
        if not isinstance(fleet.spec.unknown_servers, UnknownProfile):
            return MadeUnknown(None, ())
        profile = self.repository.profiles.get(fleet.spec.unknown_servers.profile)
        if profile is None:  # of a commit of which only a part is looked at
            return MadeUnknown(None, ())
        place = (Id("Fleet", fleet.metadata.name), ("spec", "unknownServers", "profile"))
        if profile.spec.method is not Method.PXE:
            wanted = "an unknown machine is found by its loader, so its profile needs method Pxe"
            message, hint = (
                f"{wanted}, found {profile.spec.method}",
                "name a profile with method Pxe, or write LocalDisk",
            )
            finding = DecisionFinding(Code.COMBINATION, message, hint, place, is_shared=False)
            return MadeUnknown(None, (("", finding),))
        image = self.repository.images[maintenance_image(profile, self.repository.streams)]
        if image.spec.writes_disk:
            message = f"unknown servers would boot BootImage/{image.metadata.name}, which writes disks"
            code = Code.UNKNOWN_WRITES_DISK
            finding = DecisionFinding(code, message, code.hint, place, is_shared=False)
            return MadeUnknown(None, (("", finding),))
        boots: dict[Architecture, Boot] = {}
        findings: tuple[tuple[str, DecisionFinding], ...] = ()
        for architecture in sorted(image.spec.architectures):
            source = BootSource(
                image=image,
                profile=profile,
                architecture=architecture,
                firmware=Firmware.UEFI,
                base_url=fleet.spec.base_url,
                endpoint=fleet.spec.endpoint or fleet.spec.base_url,
                phase=Phase.NETWORK,
            )
            if (boot := self._composed(source)) is not None:
                boots[architecture] = boot
            findings += tuple((f"unknown {architecture} machines", finding) for finding in self._found)
            self._found = []
        return MadeUnknown(boots, findings)


def _with_what_it_names(profile: BootProfile) -> Iterator[Id]:
    spec = profile.spec
    yield Id("BootProfile", profile.metadata.name)
    if spec.stream is not None:
        yield Id("ImageStream", spec.stream)
    secrets = spec.user_data.secrets.values() if spec.user_data else ()
    yield from (Id("file", path) for path in (*templates_of(profile), *secrets))


def _default_override(network_boot: NetworkBoot, boot: Boot | None) -> OverrideMode:
    """Once; but Always goes on with Continuous where an entry can end it."""
    if network_boot is NetworkBoot.ALWAYS and boot is not None and not boot.direct:
        return OverrideMode.CONTINUOUS
    return OverrideMode.ONCE
