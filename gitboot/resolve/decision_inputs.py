"""Decision inputs: the parts of a commit on which each decision depends, and the problems found while deciding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from gitboot.fleet.documents import FleetRepository, Id, Origin
from gitboot.fleet.yaml import Place
from gitboot.model.boot_image import BootImage, ImageStream, RequiredProvenance, Skew
from gitboot.model.boot_policy import BootProfile, Maintenance, Method
from gitboot.model.fleet import UNKNOWN_NOT_FOUND, Evidence, Hardware, Output, Serving, Site, UnknownProfile
from gitboot.model.scalars import SHA256, Path
from gitboot.model.server import Lifecycle, Loader, Server
from gitboot.problems import Code, DatedProblem, Problem, Severity
from gitboot.resolve.policy_selection import (
    Choice,
    Pool,
    SelectorIndex,
    Tie,
    build_pools,
    choose_image,
    choose_maintenance_image,
    choose_policy,
    is_in_rollout,
)
from gitboot.resolve.secret_scan import parse_allowance
from gitboot.text import format_names

FILE: Final = "file"  # the kind of a location in a file; the field of such a location is the line, from 1
IPXE_OUTPUTS: Final = frozenset({Output.IPXE, Output.SERIAL, Output.SMEE, Output.NETBOOT_XYZ})
OUTPUTS_WITHOUT_HTTPS: Final = (
    ("GRUB", frozenset({Output.GRUB, Output.UUID})),
    ("PXELINUX", frozenset({Output.PXELINUX})),
)
# the outputs that are boot scripts
LOADER_OUTPUTS: Final = IPXE_OUTPUTS.union(*(outputs for _, outputs in OUTPUTS_WITHOUT_HTTPS))


class FleetSettings(Struct, frozen=True, kw_only=True):
    """The Fleet settings on which every decision depends."""

    name: str
    is_written: bool  # False: the commit has no Fleet document
    outputs: tuple[Output, ...]  # the outputs that boot loaders use and the output mirror, sorted
    serving: Serving
    is_stopped: bool
    is_declared: bool  # an annotation is evidence that a server is provisioned
    accepts_fetches: bool  # a fetch of all files is evidence that a server is provisioned
    attempts: int
    requires_policy: bool
    unknown_not_found: bool  # whether unknown machines get a 404 response
    has_instances_by_site: bool

    @property
    def mirrors(self) -> bool:
        return Output.MIRROR in self.outputs


class BootInputs(Struct, frozen=True, kw_only=True):
    """A profile with its image and files, from which gitboot composes a boot."""

    profile: BootProfile
    image: BootImage | None  # None for the method Disk, which does not boot an image
    chosen_by: Id | None  # the document that determined the image; None: the server's pin determined it
    chosen_at: Path  # the field of the document that determined the image
    skew: Skew | None  # the field skew of the stream
    requires_signature: bool  # whether a trusted key must have verified the files of the image
    files: Mapping[str, bytes]  # templates and secrets, by path
    allowances: Mapping[str, str]  # the author's reasons to permit secrets, by field of the profile


class MaintenanceInputs(Struct, frozen=True, kw_only=True):
    """A maintenance, and the inputs from which gitboot composes the boot of the maintenance."""

    maintenance: Maintenance
    boot: BootInputs
    approved: tuple[str, ...] = ()  # the digests that the approval file contains for this maintenance
    malformed_lines: tuple[int, ...] = ()  # numbers of the lines in the approval file that are not approvals, from 1


class SharedInputs(Struct, frozen=True, kw_only=True):
    """The inputs of a decision that are the same for many servers."""

    fleet: FleetSettings
    sites: tuple[str, ...]  # all sites that select the server; the server belongs to the first one
    base_url: str
    endpoint: str | None
    local_disk: str | None  # as set for the hardware in the Fleet
    loader: Loader | None  # as set for the hardware
    secure_boot: bool | None  # as set for the hardware
    pool: Pool | None  # the chosen policy
    boot: BootInputs | None  # the inputs of the boot of the chosen policy
    tie_names: tuple[str, ...]  # the names of the policies if several policies have the same highest priority
    is_unselected: bool  # whether no policy selects the server although all policies are valid
    maintenances: tuple[MaintenanceInputs, ...]

    @property
    def site(self) -> str | None:
        return self.sites[0] if self.sites else None


class ServerInputs(Struct, frozen=True, kw_only=True):
    """All inputs on which the decision for one server depends."""

    server: Server
    files: Mapping[str, bytes]  # files that the Server document refers to, by path
    shared: SharedInputs

    @property
    def loader(self) -> Loader | None:
        """The boot loader that DHCP offers to the server, or None for the default."""
        boots_by_shim = self.secure_boot and Output.GRUB in self.shared.fleet.outputs
        return self.server.spec.loader or self.shared.loader or (Loader.SHIM if boots_by_shim else None)

    @property
    def secure_boot(self) -> bool:
        """Return whether the firmware of the server starts only signed programs."""
        server_value = self.server.spec.secure_boot
        return bool(server_value if server_value is not None else self.shared.secure_boot)

    @property
    def local_disk(self) -> str | None:
        """How boot loaders boot the server from its local disk, or None for the default."""
        return self.server.spec.local_disk or self.shared.local_disk


class DecisionFinding(NamedTuple):
    """A problem that gitboot found when it computed a decision.

    If several servers have the same finding, gitboot reports the finding only once.
    """

    code: Code
    message: str
    hint: str
    place: tuple[Id, Path]  # the location: a document and a field, or (`FILE`, path) and a line
    severity: Severity = Severity.ERROR
    is_shared: bool = True
    max_named: int = 2  # the message contains the names of this many servers, and the number of the others
    other_id: Id | None = None  # another document in the message; gitboot adds the file of this document to the message
    since: datetime | None = None  # None: from the beginning
    until: datetime | None = None  # None: until the commit changes


class FindingPlace(NamedTuple):
    """The location of a finding: the file that contains the document, and a position in the file."""

    origin: Origin
    place: Place


def locate_findings(
    repository: FleetRepository,
    server_findings: Iterable[tuple[str, DecisionFinding]],
    known_places: Mapping[DecisionFinding, FindingPlace],
) -> tuple[list[DatedProblem], dict[DecisionFinding, FindingPlace]]:
    """Convert findings to problems and remove duplicates. Return the problems, and the locations of the findings.

    ``known_places`` are the locations in another commit. If a document is the same in both commits, gitboot uses the
    known location and does not read the document again.
    """
    servers: dict[DecisionFinding, list[str]] = {}
    for server, finding in server_findings:
        servers.setdefault(finding, []).append(server)
    finding_places: dict[DecisionFinding, FindingPlace] = {}
    problems = []
    for finding, names in servers.items():
        resource, field = finding.place
        if resource.kind == FILE:
            path, place = resource.name, Place(int(field[0]), 1)
        else:
            origin, location = repository.origins[resource], known_places.get(finding)
            if location is None or location.origin != origin:
                location = FindingPlace(origin, repository.find_place(resource, *field)[1])
            finding_places[finding] = location
            path, place = origin.path, location.place
        message = finding.message
        if finding.other_id is not None:
            other_id = str(finding.other_id)
            message = message.replace(other_id, f"{other_id} ({repository.origins[finding.other_id].path})", 1)
        if finding.is_shared:
            servers_text = format_names(sorted(names), finding.max_named)
            if finding.other_id is not None:
                message = f"{message}. Both apply to {servers_text}"
            else:
                message = f"{message} ({servers_text})"
        problem = Problem(
            path=path,
            line=place.line,
            column=place.column,
            code=finding.code,
            message=message,
            hint=finding.hint,
            severity=finding.severity,
        )
        problems.append(DatedProblem(problem=problem, since=finding.since, until=finding.until))
    return problems, finding_places


def list_templates(profile: BootProfile) -> tuple[str, ...]:
    """Return the paths of the templates that a profile uses."""
    spec = profile.spec
    files = (*(spec.user_data.templates if spec.user_data else ()), spec.templates.ipxe, spec.templates.grub)
    return tuple(path for path in files if path is not None)


def parse_approvals(content: bytes, maintenance: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Parse a file of approvals.

    Return the digests that the file lists for a maintenance, and the malformed lines. A line contains the name of a
    maintenance and a digest. The text after a # is a comment. Only a line feed ends a line, as in the diffs of Git.
    """
    approved, malformed = set[str](), []
    for number, line in enumerate(content.decode(errors="replace").split("\n"), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or SHA256.fullmatch(words[1]) is None:
            malformed.append(number)
        elif words[0] == maintenance:
            approved.add(words[1])
    return tuple(sorted(approved)), tuple(malformed)


class _PolicyChoice(Struct, frozen=True, kw_only=True):
    """The policy that applies to all servers that are matched by the same selectors.

    The inputs of these servers are stored by pin and by membership in the rollout.
    """

    # the policies, maintenances, sites, hardware entries, holds and rollouts that select these servers
    selected: list[object]
    policy: Pool | Tie | None
    rollout: tuple[str, int] | None  # the stream of the policy, and the percentage of its rollout
    shared_inputs: dict[tuple[str | None, bool], SharedInputs] = field(default_factory=dict)


class FleetView:
    """A view of a commit that returns the inputs of each decision. A decision depends only on these inputs."""

    def __init__(self, repository: FleetRepository) -> None:
        self.repository = repository
        self.pools, self.problems = build_pools(repository)
        spec = repository.fleet.spec
        self._signed_streams = frozenset(
            name
            for name, stream in repository.streams.items()
            if stream.spec.require_provenance is RequiredProvenance.SIGNED
        )
        # The images of streams with requireProvenance: signed. A profile may boot such an image without the stream.
        self.signed_images = frozenset(
            image for name in self._signed_streams for image in list_stream_images(repository.streams[name])
        )
        self._settings = FleetSettings(
            name=repository.fleet.metadata.name,
            is_written=Id("Fleet", repository.fleet.metadata.name) in repository.origins,
            outputs=tuple(sorted((LOADER_OUTPUTS | {Output.MIRROR}).intersection(spec.outputs))),
            serving=spec.serving,
            is_stopped=spec.stopped is not None,
            is_declared=spec.provisioning.evidence is Evidence.DECLARED,
            accepts_fetches=spec.provisioning.evidence is Evidence.FETCHED,
            attempts=spec.provisioning.attempts,
            requires_policy=spec.require_policy,
            unknown_not_found=spec.unknown_servers == UNKNOWN_NOT_FOUND,
            has_instances_by_site=spec.has_instances_by_site,
        )
        # All selectors of the commit. Servers share a choice if the same selectors match them.
        entries: list[tuple[object, Any]] = [
            *((pool, repository.policies[name].spec.select) for name, pool in self.pools.items()),
            *((maintenance, maintenance.spec.select) for maintenance in repository.maintenances.values()),
            *((site, site.select) for site in spec.sites),
            *((hardware, hardware.select) for hardware in spec.hardware),
        ]
        for stream in repository.streams.values():
            entries += [(hold, hold.select) for hold in stream.spec.holds]
            if stream.spec.rollout is not None:
                entries.append((stream.spec.rollout, stream.spec.rollout.selector))
        self._entries = [entry for entry, _ in entries]
        self._selector_index = SelectorIndex((number, select) for number, (_, select) in enumerate(entries))
        self._choices: dict[tuple[tuple[int, ...], bool, str | None], _PolicyChoice] = {}
        self._boots: dict[tuple[str, str | None, Id | None, Path], BootInputs] = {}
        self._maintenances: dict[str, MaintenanceInputs] = {}
        self._files: dict[str, tuple[Mapping[str, bytes], Mapping[str, str]]] = {}  # values by profile

    def server_inputs(self, server: Server) -> ServerInputs:
        """Return all inputs of a server's decision."""
        return ServerInputs(
            server=server,
            files={path: self.repository.files[path] for path in list_own_files(server)},
            shared=self.shared_inputs(server),
        )

    def shared_inputs(self, server: Server) -> SharedInputs:
        """Return the inputs of a server's decision, except the Server document and the server's own files."""
        spec = server.spec
        key = self._selector_index.find(server), spec.lifecycle is Lifecycle.ACTIVE, spec.policy
        if (choice := self._choices.get(key)) is None:
            choice = self._choices[key] = self._make_choice(*key)
        pin = spec.pin.image if spec.pin is not None else None
        is_reached = (
            pin is None
            and choice.rollout is not None
            and is_in_rollout(choice.rollout[0], server.uuid, choice.rollout[1])
        )
        if (shared_inputs := choice.shared_inputs.get((pin, is_reached))) is None:
            shared_inputs = choice.shared_inputs[pin, is_reached] = self._make_shared_inputs(server, choice)
        return shared_inputs

    def unknown_boot_inputs(self) -> BootInputs | None:
        """Return the inputs for the boot of unknown machines.

        Return None if the Fleet does not set a profile for unknown machines, or if the repository does not contain the
        profile.
        """
        unknown = self.repository.fleet.spec.unknown_servers
        profile = self.repository.profiles.get(unknown.profile) if isinstance(unknown, UnknownProfile) else None
        return self._make_default_boot_inputs(profile, None, ()) if profile is not None else None

    def _make_choice(self, numbers: tuple[int, ...], is_active: bool, policy_name: str | None) -> _PolicyChoice:
        entries = [self._entries[number] for number in numbers]
        policy: Pool | Tie | None = None
        if is_active and policy_name is not None:
            policy = self.pools.get(policy_name)  # None if the policy is invalid; another finding reports this
        elif is_active:
            chosen = choose_policy([entry for entry in entries if isinstance(entry, Pool)], None)
            policy = chosen.winner if isinstance(chosen, Choice) else chosen
        rollout = None
        if isinstance(policy, Pool):
            stream = self.repository.profiles[policy.profile].spec.stream
            spec = self.repository.streams[stream].spec.rollout if stream is not None else None
            rollout = (stream, spec.percent) if stream is not None and spec is not None else None
        return _PolicyChoice(selected=entries, policy=policy, rollout=rollout)

    def _make_shared_inputs(self, server: Server, choice: _PolicyChoice) -> SharedInputs:
        repository, policy = self.repository, choice.policy
        sites = [each for each in choice.selected if isinstance(each, Site)]
        hardware = [each for each in choice.selected if isinstance(each, Hardware)]
        is_active = server.spec.lifecycle is Lifecycle.ACTIVE
        maintenances = [each for each in choice.selected if isinstance(each, Maintenance)] if is_active else []
        all_valid = len(self.pools) == len(repository.policies)
        boot = None
        if isinstance(policy, Pool):
            profile = repository.profiles[policy.profile]
            if profile.spec.method is Method.DISK:
                boot = self._make_boot_inputs(profile, None, None, ())
            else:
                named = choose_image(server, profile, repository.streams).winner
                chosen_by = named.document if named.document.kind != "Server" else None
                boot = self._make_boot_inputs(profile, named.image, chosen_by, named.path)
        return SharedInputs(
            fleet=self._settings,
            sites=tuple(each.name for each in sites),
            base_url=sites[0].base_url if sites else repository.fleet.spec.base_url,
            endpoint=(sites[0].endpoint if sites else None) or repository.fleet.spec.endpoint,
            local_disk=next((each.local_disk for each in hardware if each.local_disk), None),
            loader=next((each.loader for each in hardware if each.loader), None),
            secure_boot=next((each.secure_boot for each in hardware if each.secure_boot is not None), None),
            pool=policy if isinstance(policy, Pool) else None,
            boot=boot,
            tie_names=policy.names if isinstance(policy, Tie) else (),
            is_unselected=is_active and policy is None and server.spec.policy is None and all_valid,
            maintenances=tuple(map(self._make_maintenance_inputs, maintenances)),
        )

    def _make_maintenance_inputs(self, maintenance: Maintenance) -> MaintenanceInputs:
        name = maintenance.metadata.name
        if (found := self._maintenances.get(name)) is None:
            boot = self._make_default_boot_inputs(
                self.repository.profiles[maintenance.spec.profile], Id("Maintenance", name), ("spec", "profile")
            )
            before = maintenance.spec.before
            file = before.approval.file if before is not None and before.approval is not None else None
            approved, malformed = parse_approvals(self.repository.files[file], name) if file is not None else ((), ())
            found = self._maintenances[name] = MaintenanceInputs(
                maintenance=maintenance, boot=boot, approved=approved, malformed_lines=malformed
            )
        return found

    def _make_default_boot_inputs(self, profile: BootProfile, chosen_by: Id | None, chosen_at: Path) -> BootInputs:
        is_disk = profile.spec.method is Method.DISK
        image = None if is_disk else choose_maintenance_image(profile, self.repository.streams)
        return self._make_boot_inputs(profile, image, chosen_by, chosen_at)

    def _make_boot_inputs(
        self, profile: BootProfile, image: str | None, chosen_by: Id | None, chosen_at: Path
    ) -> BootInputs:
        repository, name = self.repository, profile.metadata.name
        key = name, image, chosen_by, chosen_at
        if (found := self._boots.get(key)) is None:
            stream = profile.spec.stream
            if name not in self._files:
                secrets = profile.spec.user_data.secrets.values() if profile.spec.user_data is not None else ()
                contents = {path: repository.files[path] for path in (*list_templates(profile), *secrets)}
                self._files[name] = contents, self._find_allowances(Id("BootProfile", name))
            files, allowances = self._files[name]
            found = self._boots[key] = BootInputs(
                profile=profile,
                image=repository.images[image] if image is not None else None,
                chosen_by=chosen_by,
                chosen_at=chosen_at,
                skew=repository.streams[stream].spec.skew if stream is not None else None,
                requires_signature=stream in self._signed_streams or image in self.signed_images,
                files=files,
                allowances=allowances,
            )
        return found

    def _find_allowances(self, profile: Id) -> dict[str, str]:
        """Return the author's reasons to permit secrets, which the profile states in comments, by field."""
        text = self.repository.read(self.repository.origins[profile].blob)
        if b"gitboot:allow-secret" not in text:
            return {}
        lines, allowances = text.split(b"\n"), {}
        for name in ("kernelArguments", "userData"):
            _, place = self.repository.find_place(profile, "spec", name)
            line = lines[place.line - 1].decode(errors="replace") if place.line <= len(lines) else ""
            if (reason := parse_allowance(line)) is not None:
                allowances[name] = reason
        return allowances


def list_stream_images(stream: ImageStream) -> tuple[str, ...]:
    """Return the names of all images that a stream contains."""
    spec = stream.spec
    rollout = (spec.rollout.image,) if spec.rollout is not None else ()
    return (spec.current, *rollout, *(hold.image for hold in spec.holds))


def find_signed_images(repository: FleetRepository) -> frozenset[str]:
    """Return the names of the images whose files must be verified with a trusted key before machines boot them."""
    view = FleetView(repository)
    pinned = [server for server in repository.servers.values() if server.spec.pin is not None]
    boots = [view.shared_inputs(server).boot for server in pinned]
    pinned_images = {boot.image.metadata.name for boot in boots if boot and boot.image and boot.requires_signature}
    return view.signed_images | pinned_images


def list_own_files(server: Server) -> tuple[str, ...]:
    """Return the paths of the files that a Server document refers to."""
    spec = server.spec
    secrets = tuple(spec.secrets.values()) if spec.secrets else ()
    return (*secrets, spec.bmc.tls.ca) if spec.bmc is not None and spec.bmc.tls.ca is not None else secrets
