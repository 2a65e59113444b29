"""Select what each decision of a commit may read: servers with the same labels share it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gitboot.fleet.resources import FleetRepository, Id
from gitboot.model.boot_policy import BootProfile, Maintenance, Method
from gitboot.model.fleet import UNKNOWN_NOT_FOUND, Evidence, Hardware, Output, Site, UnknownProfile
from gitboot.model.server import Lifecycle, Server
from gitboot.resolve.decision_inputs import (
    LOADER_OUTPUTS,
    BootInputs,
    Field,
    FleetTerms,
    MaintenanceInputs,
    ServerInputs,
    SharedInputs,
    UnknownInputs,
    templates_of,
)
from gitboot.resolve.leaks import allowance
from gitboot.resolve.policy_selection import (
    Pool,
    Tie,
    Won,
    choose_image,
    choose_policy,
    in_rollout,
    maintenance_image,
    pools,
)
from gitboot.resolve.selection import Selecting

_ALLOWS: Final = b"gitboot:allow-secret"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """The policy of servers that the same selectors select, and what they share by pin and rollout."""

    policy: Pool | Tie | None
    rollout: tuple[str, int] | None  # of the policy: the stream, and the percentage
    shared: dict[tuple[str | None, bool], SharedInputs] = field(default_factory=dict)


class FleetView:
    """Selects the inputs of decisions in one commit. Nothing else of the commit reaches a decision."""

    def __init__(self, repository: FleetRepository) -> None:
        self._repository = repository
        self.pools, self.problems = pools(repository)
        self._terms = _terms(repository)
        # Every selector that may tell two servers apart: the result of all of them is a server's class.
        entries = list(self._entries())
        self._selected = [entry for entry, _ in entries]
        self._selecting = Selecting((number, select) for number, (_, select) in enumerate(entries))
        self._choices: dict[tuple[tuple[int, ...], bool, str | None], _Choice] = {}
        self._boots: dict[tuple[str, str | None, Id | None, Field], BootInputs] = {}
        self._maintenances: dict[str, MaintenanceInputs] = {}
        self._files: dict[str, tuple[Mapping[str, bytes], Mapping[str, str]]] = {}  # by profile

    def _entries(self) -> Iterator[tuple[object, Any]]:
        repository = self._repository
        yield from ((pool, repository.policies[name].spec.select) for name, pool in self.pools.items())
        yield from ((each, each.spec.select) for each in repository.maintenances.values())
        yield from ((each, each.select) for each in repository.fleet.spec.sites)
        yield from ((each, each.select) for each in repository.fleet.spec.hardware)
        for stream in repository.streams.values():
            yield from ((each, each.select) for each in stream.spec.holds)
            if stream.spec.rollout is not None:
                yield stream.spec.rollout, stream.spec.rollout.selector

    def inputs(self, server: Server) -> ServerInputs:
        """Return everything that the decision of a server is made of."""
        files = {path: self._repository.files[path] for path in own_files(server)}
        return ServerInputs(server=server, files=files, shared=self.shared(server))

    def shared(self, server: Server) -> SharedInputs:
        """Return what the decision of a server is made of besides its own document and files."""
        spec = server.spec
        numbers = self._selecting.of(server)
        of = numbers, spec.lifecycle is Lifecycle.ACTIVE, spec.policy
        if (choice := self._choices.get(of)) is None:
            choice = self._choices[of] = self._choice(*of)
        pin = spec.pin.image if spec.pin is not None else None
        is_reached = (
            pin is None and choice.rollout is not None and in_rollout(choice.rollout[0], server.uuid, choice.rollout[1])
        )
        if (found := choice.shared.get((pin, is_reached))) is None:
            found = choice.shared[pin, is_reached] = self._shared(server, numbers, choice.policy)
        return found

    def unknown_inputs(self) -> UnknownInputs:
        """Return everything that the boots of unknown machines are made of."""
        repository, fleet = self._repository, self._repository.fleet
        unknown = fleet.spec.unknown_servers
        profile = repository.profiles.get(unknown.profile) if isinstance(unknown, UnknownProfile) else None
        return UnknownInputs(
            fleet=fleet.metadata.name,
            base_url=fleet.spec.base_url,
            endpoint=fleet.spec.endpoint,
            mirrors=self._terms.mirrors,
            # No profile: a Fleet that names none, or a part of a commit that does not have it.
            boot=self._default_boot(profile, None, ()) if profile is not None else None,
        )

    def _choice(self, numbers: tuple[int, ...], is_active: bool, named: str | None) -> _Choice:
        policy: Pool | Tie | None = None
        if is_active and named is not None:
            policy = self.pools.get(named)  # broken policies have their own problem
        elif is_active:
            found = choose_policy([each for each in self._chosen(numbers) if isinstance(each, Pool)], None)
            policy = found.winner if isinstance(found, Won) else found
        rollout = None
        if isinstance(policy, Pool):
            stream = self._repository.profiles[policy.profile].spec.stream
            spec = self._repository.streams[stream].spec.rollout if stream is not None else None
            rollout = (stream, spec.percent) if stream is not None and spec is not None else None
        return _Choice(policy=policy, rollout=rollout)

    def _chosen(self, numbers: tuple[int, ...]) -> list[object]:
        return [self._selected[number] for number in numbers]

    def _shared(self, server: Server, numbers: tuple[int, ...], policy: Pool | Tie | None) -> SharedInputs:
        """Return what is equal for all servers of the class of ``server``."""
        fleet, chosen = self._repository.fleet.spec, self._chosen(numbers)
        sites = [each for each in chosen if isinstance(each, Site)]
        hardware = [each for each in chosen if isinstance(each, Hardware)]
        is_active = server.spec.lifecycle is Lifecycle.ACTIVE
        maintenances = [each for each in chosen if isinstance(each, Maintenance)] if is_active else []
        is_whole = len(self.pools) == len(self._repository.policies)
        return SharedInputs(
            fleet=self._terms,
            sites=tuple(each.name for each in sites),
            base_url=sites[0].base_url if sites else fleet.base_url,
            endpoint=(sites[0].endpoint if sites else None) or fleet.endpoint,
            local_disk=next((each.local_disk for each in hardware if each.local_disk), None),
            loader=next((each.loader for each in hardware if each.loader), None),
            pool=policy if isinstance(policy, Pool) else None,
            boot=self._policy_boot(server, policy) if isinstance(policy, Pool) else None,
            tied=policy.names if isinstance(policy, Tie) else (),
            is_unselected=is_active and policy is None and server.spec.policy is None and is_whole,
            maintenances=tuple(map(self._maintenance, maintenances)),
        )

    def _policy_boot(self, server: Server, pool: Pool) -> BootInputs:
        profile = self._repository.profiles[pool.profile]
        if profile.spec.method is Method.DISK:
            return self._boot(profile, None, None, ())
        named = choose_image(server, profile, self._repository.streams).winner
        return self._boot(profile, named.image, named.said_by if named.said_by.kind != "Server" else None, named.path)

    def _maintenance(self, maintenance: Maintenance) -> MaintenanceInputs:
        name = maintenance.metadata.name
        if (found := self._maintenances.get(name)) is None:
            profile = self._repository.profiles[maintenance.spec.profile]
            boot = self._default_boot(profile, Id("Maintenance", name), ("spec", "profile"))
            found = self._maintenances[name] = MaintenanceInputs(maintenance=maintenance, boot=boot)
        return found

    def _default_boot(self, profile: BootProfile, chosen_by: Id | None, chosen_at: Field) -> BootInputs:
        """Return what a profile boots by itself: its image, or the current one of its stream."""
        is_disk = profile.spec.method is Method.DISK
        image = None if is_disk else maintenance_image(profile, self._repository.streams)
        return self._boot(profile, image, chosen_by, chosen_at)

    def _boot(self, profile: BootProfile, image: str | None, chosen_by: Id | None, chosen_at: Field) -> BootInputs:
        name = profile.metadata.name
        of = name, image, chosen_by, chosen_at
        if (found := self._boots.get(of)) is None:
            stream = profile.spec.stream
            if name not in self._files:
                self._files[name] = self._files_of(profile), self._allowances(profile)
            files, allowances = self._files[name]
            found = self._boots[of] = BootInputs(
                profile=profile,
                image=self._repository.images[image] if image is not None else None,
                chosen_by=chosen_by,
                chosen_at=chosen_at,
                skew=self._repository.streams[stream].spec.skew if stream is not None else None,
                files=files,
                allowances=allowances,
            )
        return found

    def _files_of(self, profile: BootProfile) -> dict[str, bytes]:
        secrets = profile.spec.user_data.secrets.values() if profile.spec.user_data is not None else ()
        return {path: self._repository.files[path] for path in (*templates_of(profile), *secrets)}

    def _allowances(self, profile: BootProfile) -> dict[str, str]:
        """Return why the text of a profile allows secrets, by field."""
        resource = Id("BootProfile", profile.metadata.name)
        text = self._repository.read(self._repository.origins[resource].blob)
        if _ALLOWS not in text:
            return {}
        lines, found = text.splitlines(), {}
        for each in ("kernelArguments", "userData"):
            _, place = self._repository.place(resource, "spec", each)
            line = lines[place.line - 1].decode(errors="replace") if place.line <= len(lines) else ""
            if (why := allowance(line)) is not None:
                found[each] = why
        return found


def own_files(server: Server) -> tuple[str, ...]:
    """Return the paths of the files that a Server document names."""
    spec = server.spec
    secrets = tuple(spec.secrets.values()) if spec.secrets else ()
    return (*secrets, spec.bmc.tls.ca) if spec.bmc is not None and spec.bmc.tls.ca is not None else secrets


def _terms(repository: FleetRepository) -> FleetTerms:
    name, spec = repository.fleet.metadata.name, repository.fleet.spec
    return FleetTerms(
        name=name,
        is_written=Id("Fleet", name) in repository.origins,
        outputs=tuple(sorted((LOADER_OUTPUTS | {Output.MIRROR}).intersection(spec.outputs))),
        serving=spec.serving,
        is_stopped=spec.stopped is not None,
        is_declared=spec.provisioning.evidence is Evidence.DECLARED,
        attempts=spec.provisioning.attempts,
        requires_policy=spec.require_policy,
        unknown_not_found=spec.unknown_servers == UNKNOWN_NOT_FOUND,
        has_instances_by_site=spec.has_instances_by_site,
    )
