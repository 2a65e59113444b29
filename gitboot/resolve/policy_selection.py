"""Policy selection: choose the policy and the image for a server (rules R3 and R4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime
from hashlib import sha256
from itertools import chain
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar

from msgspec import Struct

from gitboot.fleet.documents import FleetRepository, Id
from gitboot.jsonio import format_instant
from gitboot.model.boot_image import BootImage, ImageStream, SkewMode
from gitboot.model.boot_policy import (
    BootPolicySpec,
    BootProfile,
    DiskBoot,
    Maintenance,
    NetworkBoot,
    OverrideMode,
    PolicyPower,
    PolicyWait,
    ReinstallMode,
    Taint,
)
from gitboot.model.fields import Operator, Select, Selector, selects_server
from gitboot.model.scalars import Path, SystemUuid
from gitboot.model.server import Architecture, Firmware, Server
from gitboot.problems import Code, Problem, Severity
from gitboot.resolve.server_plan import Phase
from gitboot.text import find_similar, format_suggestion

T = TypeVar("T")


class RejectedCandidate(NamedTuple):
    """A candidate that a rule did not choose, and the reason."""

    candidate: str
    rule: str
    why: str


class Choice(Struct, Generic[T], frozen=True):
    """The candidate that a rule chose, the reason, and the other candidates."""

    winner: T
    why: str
    rejected: tuple[RejectedCandidate, ...]


class Pool(Struct, frozen=True, kw_only=True):
    """A policy, including the fields that it inherits."""

    name: str
    chain: tuple[str, ...]  # the names of the policies from the root down to this one
    priority: int
    profile: str
    network_boot: NetworkBoot
    reinstall: ReinstallMode
    override: OverrideMode | None
    disk_boot: DiskBoot
    power: PolicyPower
    wait_for: PolicyWait
    kernel_arguments: tuple[tuple[str, ...], ...]  # one list for each policy in the chain
    node_labels: Mapping[str, str]
    node_taints: tuple[Taint, ...]
    vars: Mapping[str, str | bool]


def build_pools(repository: FleetRepository) -> tuple[dict[str, Pool], list[Problem]]:
    """Return all policies with their inherited fields, and the problems found in the inheritance."""
    found: dict[str, Pool] = {}
    problems: list[Problem] = []
    for name in repository.policies:
        policy, chain = Id("BootPolicy", name), [name]
        while (parent := repository.policies[chain[-1]].spec.inherits) is not None and parent not in chain:
            chain.append(parent)
        if parent is not None:
            if parent == name:  # otherwise, the policy inherits from a circle that does not contain it
                problems.append(
                    repository.build_problem(
                        Code.CYCLE,
                        f"BootPolicy/{name} inherits from itself",
                        policy,
                        *("spec", "inherits"),
                        hint="remove `inherits` from one of the policies",
                    )
                )
            continue
        chain.reverse()
        specs = [repository.policies[each].spec for each in chain]
        missing = [field for field in ("profile", "network_boot") if _find_inherited_value(specs, field) is None]
        if not missing:
            found[name] = Pool(
                name=name,
                chain=tuple(chain),
                priority=_find_inherited_value(specs, "priority") or 0,
                profile=_find_inherited_value(specs, "profile"),
                network_boot=_find_inherited_value(specs, "network_boot"),
                reinstall=_find_inherited_value(specs, "reinstall") or ReinstallMode.NEVER,
                override=_find_inherited_value(specs, "override"),
                disk_boot=_find_inherited_value(specs, "disk_boot") or DiskBoot.FIRMWARE_ORDER,
                power=_find_inherited_value(specs, "power") or PolicyPower.NONE,
                wait_for=_find_inherited_value(specs, "wait_for") or PolicyWait.NONE,
                kernel_arguments=tuple(spec.kernel_arguments for spec in specs),
                node_labels={key: value for spec in specs for key, value in spec.node_labels.items()},
                node_taints=tuple(taint for spec in specs for taint in spec.node_taints),
                vars={key: value for spec in specs for key, value in spec.vars.items()},
            )
        elif not any(_find_inherited_value(specs[:-1], field) is None for field in missing) or len(specs) == 1:
            what = " and ".join({"network_boot": "networkBoot"}.get(field, field) for field in missing)
            problems.append(
                repository.build_problem(
                    Code.NOT_INHERITED,
                    f"BootPolicy/{name} neither sets nor inherits {what}",
                    policy,
                    "spec",
                    hint=f"set {what}, or inherit {what} from another policy",
                )
            )
    return found, problems


def _find_inherited_value(specs: Iterable[BootPolicySpec], field: str) -> Any:
    return next((value for spec in reversed(list(specs)) if (value := getattr(spec, field)) is not None), None)


class Tie(NamedTuple):
    """The names of several candidates that share the highest priority."""

    names: tuple[str, ...]


def choose_policy(candidates: Sequence[Pool], named_policy: Pool | None) -> Choice[Pool] | Tie | None:
    """Choose the policy for a server (rule R3).

    The result is the policy that the server names, or a policy that selects the server.
    """
    if named_policy is not None:
        rejected = tuple(
            RejectedCandidate(f"BootPolicy/{pool.name}", "R3", "the Server document names another policy")
            for pool in candidates
            if pool.name != named_policy.name
        )
        return Choice(named_policy, "the Server document names the policy", rejected)
    ancestors = {name for pool in candidates for name in pool.chain[:-1]}
    leaves = [pool for pool in candidates if pool.name not in ancestors]
    if not leaves:
        return None
    highest = max(pool.priority for pool in leaves)
    winners = [pool for pool in leaves if pool.priority == highest]
    if len(winners) > 1:
        return Tie(tuple(pool.name for pool in winners))
    (winner,) = winners
    inherited_why = "a policy that inherits from this policy also selects the server"
    reasons = {
        pool.name: inherited_why if pool.name in ancestors else f"priority {pool.priority} is below {winner.priority}"
        for pool in candidates
        if pool is not winner
    }
    rejected = tuple(RejectedCandidate(f"BootPolicy/{name}", "R3", why) for name, why in reasons.items())
    return Choice(winner, "the policy selects the server", rejected)


def is_in_rollout(stream: str, uuid: SystemUuid, percent: int) -> bool:
    """Return whether a rollout at ``percent`` includes a server. Raising the percentage never removes servers."""
    return compute_rollout_percentage(stream, uuid) <= percent


def compute_rollout_percentage(stream: str, uuid: SystemUuid) -> int:
    """Return the lowest percentage, from 1 to 100, at which a stream's rollout includes a server."""
    position = int.from_bytes(sha256(f"{stream}\0{uuid}".encode()).digest()[:8])
    return (position * 100 >> 64) + 1


class NamedImage(NamedTuple):
    """An image, and the document and the field that name the image."""

    image: str
    document: Id
    path: Path


def choose_image(server: Server, profile: BootProfile, streams: Mapping[str, ImageStream]) -> Choice[NamedImage]:
    """Choose the image for a server whose profile boots from the network (rule R4)."""
    candidates: list[tuple[NamedImage, str]] = []
    missed_images: list[RejectedCandidate] = []
    name, spec = server.metadata.name, server.spec

    def add(image: str, document: Id, path: Path, why: str) -> None:
        candidates.append((NamedImage(image, document, ("spec", *path)), why))

    if spec.pin is not None:
        add(spec.pin.image, Id("Server", name), ("pin", "image"), "the server's pin wins")
    if profile.spec.stream is not None:
        stream, key = streams[profile.spec.stream], Id("ImageStream", profile.spec.stream)
        for number, hold in enumerate(stream.spec.holds):
            if selects_server(hold.select, name, server.metadata.labels):
                add(hold.image, key, ("holds", number, "image"), "one of the stream's holds selects the server")
        if (rollout := stream.spec.rollout) is not None:
            missed = f"BootImage/{rollout.image}"
            if not selects_server(rollout.selector, name, server.metadata.labels):
                why = "the rollout's selector does not match the server"
                missed_images.append(RejectedCandidate(missed, "R4", why))
            elif not is_in_rollout(key.name, server.uuid, rollout.percent):
                why = f"the rollout is at {rollout.percent} % and has not reached the server"
                missed_images.append(RejectedCandidate(missed, "R4", why))
            else:
                add(rollout.image, key, ("rollout", "image"), "the stream's rollout has reached the server")
        add(stream.spec.current, key, ("current",), "this is the stream's current image")
    if profile.spec.image is not None:
        add(profile.spec.image, Id("BootProfile", profile.metadata.name), ("image",), "the profile sets this field")
    (winner, why), *others = candidates
    rejected = tuple(
        RejectedCandidate(f"BootImage/{other.image}", "R4", f"{reason}, but {why}") for other, reason in others
    )
    return Choice(winner, why, (*missed_images, *rejected))


def choose_maintenance_image(profile: BootProfile, streams: Mapping[str, ImageStream]) -> str:
    """Return the image for a maintenance: the profile's image, or the current image of the profile's stream."""
    if profile.spec.image is not None:
        return profile.spec.image
    assert profile.spec.stream is not None  # noqa: S101 - a profile that boots from the network has an image or a stream
    return streams[profile.spec.stream].spec.current


class OptOut(Struct, frozen=True, kw_only=True):
    """A pin or a hold, and the field that contains it."""

    what: str  # such as "the pin of web01" or "a hold of flatcar-stable"
    image: str
    reason: str
    until: datetime | None  # a reminder for people; gitboot changes nothing at that time
    resource: Id
    path: Path


def list_opt_outs(repository: FleetRepository) -> Iterator[OptOut]:
    """Yield every pin and every hold in a fleet."""
    for name, server in repository.servers.items():
        if (pin := server.spec.pin) is not None:
            yield OptOut(
                what=f"the pin of {name}",
                image=pin.image,
                reason=pin.reason,
                until=pin.until,
                resource=Id("Server", name),
                path=("spec", "pin"),
            )
    for name, stream in repository.streams.items():
        for number, hold in enumerate(stream.spec.holds):
            yield OptOut(
                what=f"a hold of {name}",
                image=hold.image,
                reason=hold.reason,
                until=hold.until,
                resource=Id("ImageStream", name),
                path=("spec", "holds", number),
            )


def find_overdue_opt_outs(repository: FleetRepository, at: datetime) -> Iterator[Problem]:
    """Yield a warning for each pin and hold whose deadline has passed."""
    for opt_out in list_opt_outs(repository):
        if opt_out.until is not None and opt_out.until <= at:
            yield repository.build_problem(
                Code.OVERDUE,
                f"the deadline for {opt_out.what} to BootImage/{opt_out.image} passed at "
                f"{format_instant(opt_out.until)} ({opt_out.reason})",
                opt_out.resource,
                *(*opt_out.path, "until"),
                hint=Code.OVERDUE.hint,
                severity=Severity.WARNING,
            )


def _list_selectors(repository: FleetRepository) -> Iterator[tuple[Selector, Id, Path]]:
    """Yield every selector in a fleet except All and None, with the document and the field that contain it."""
    fleet, spec = Id("Fleet", repository.fleet.metadata.name), repository.fleet.spec
    fields: list[tuple[Select, Id, Path]] = [
        *((each.select, fleet, ("spec", "sites", number, "select")) for number, each in enumerate(spec.sites)),
        *((each.select, fleet, ("spec", "hardware", number, "select")) for number, each in enumerate(spec.hardware)),
    ]
    for name, policy in repository.policies.items():
        fields.append((policy.spec.select, Id("BootPolicy", name), ("spec", "select")))
    for name, maintenance in repository.maintenances.items():
        fields.append((maintenance.spec.select, Id("Maintenance", name), ("spec", "select")))
    for name, stream in repository.streams.items():
        resource = Id("ImageStream", name)
        for number, hold in enumerate(stream.spec.holds):
            fields.append((hold.select, resource, ("spec", "holds", number, "select")))
        if (rollout := stream.spec.rollout) is not None:
            fields.append((rollout.selector, resource, ("spec", "rollout", "selector")))
    return ((select, resource, path) for select, resource, path in fields if isinstance(select, Selector))


_DISTANCE: Final = 101  # servers; unlikely to be a multiple of the size of a rack


def find_unmatched_selectors(repository: FleetRepository) -> Iterator[Problem]:
    """Yield a warning for each label selector that matches no server.

    Selectors by name are skipped, because the name of a missing server is an error. A fleet without servers gets no
    warnings.
    """
    if not (servers := list(repository.servers.values())):
        return
    unmatched = [each for each in _list_selectors(repository) if not each[0].servers]
    # Neighbours mostly have the same labels, so check servers with a distance first.
    for server in chain.from_iterable(servers[first::_DISTANCE] for first in range(_DISTANCE)):
        if not unmatched:
            return
        name, labels = server.metadata.name, server.metadata.labels
        unmatched = [each for each in unmatched if not each[0].matches(name, labels)]
    known_values: defaultdict[str, set[str]] = defaultdict(set)  # all values by label key
    for server in servers:
        for key, value in server.metadata.labels.items():
            known_values[key].add(value)
    for select, resource, path in unmatched:
        message, hint, at = _explain_unmatched_selector(select, known_values)
        yield repository.build_problem(
            Code.SELECTS_NO_SERVER,
            f"the selector matches no server: {message}",
            resource,
            *path,
            *at,
            hint=hint,
            severity=Severity.WARNING,
        )


def _explain_unmatched_selector(select: Selector, known_values: Mapping[str, Set[str]]) -> tuple[str, str, Path]:
    """Return why a selector matches no server, a hint, and the path of the first condition that no server meets."""
    conditions: list[tuple[str, tuple[str, ...], Path]] = [
        *((key, (value,), ("matchLabels", key)) for key, value in select.match_labels.items()),
        *(
            (each.key, each.values, ("matchExpressions", number))
            for number, each in enumerate(select.match_expressions)
            if each.operator in (Operator.IN, Operator.EXISTS)
        ),
    ]
    default_hint = Code.SELECTS_NO_SERVER.hint
    for key, values, at in conditions:
        if key not in known_values:
            return f"no server has the label {key}", format_suggestion(key, known_values, fallback=default_hint), at
        if values and known_values[key].isdisjoint(values):
            found = " or ".join(f"{key}: {value}" for value in values)
            similar = (find_similar(value, known_values[key]) for value in values)
            word = next((each for each in similar if each is not None), None)
            hint = (
                f"did you mean {word}?"
                if word is not None
                else f"{default_hint}; servers have {_format_values(known_values[key])}"
            )
            return f"no server has the label {found}", hint, at
    return "no server meets all conditions", default_hint, ()


_SHOWN_VALUES: Final = 5


def _format_values(values: Collection[str]) -> str:
    ordered = sorted(values)
    more = f" and {len(ordered) - _SHOWN_VALUES} more" if len(ordered) > _SHOWN_VALUES else ""
    return f"{', '.join(ordered[:_SHOWN_VALUES])}{more}"


class MinimumVersion(NamedTuple):
    """The lowest version that the servers of a stream should boot."""

    stream: str
    version: str


def find_minimum_versions(repository: FleetRepository) -> dict[str, MinimumVersion]:
    """Return the minimum version for each profile whose stream has a minimum version, by profile."""
    return {
        name: MinimumVersion(stream, skew.minimum_version)
        for name, profile in repository.profiles.items()
        if (stream := profile.spec.stream) is not None
        and (skew := repository.streams[stream].spec.skew) is not None
        and skew.mode is not SkewMode.NONE
    }


class BootSource(Struct, frozen=True, kw_only=True):
    """The documents and values from which a boot is composed."""

    image: BootImage
    profile: BootProfile
    architecture: Architecture
    firmware: Firmware
    base_url: str
    endpoint: str  # the URL of the endpoint that serves one-time boots
    phase: Phase
    mirrors: bool  # whether the mirror serves the files of images
    requires_signature: bool  # whether a trusted key must have verified the files of the image
    has_ipxe_scripts: bool  # whether the Fleet has an output with boot scripts for iPXE
    boots_by_ipxe: bool  # whether iPXE may boot the machine
    files: Mapping[str, bytes]  # files that the profile and the server name, by path
    server: Server | None = None  # None: an unknown machine
    pool: Pool | None = None  # None for a maintenance, because policies do not apply to it
    maintenance: Maintenance | None = None
    site: str | None = None

    @property
    def profile_id(self) -> Id:
        return Id("BootProfile", self.profile.metadata.name)

    @property
    def chosen_by(self) -> tuple[Id, tuple[str, ...]]:
        """The document and the field that determine the profile for this machine."""
        if self.maintenance is not None:
            return Id("Maintenance", self.maintenance.metadata.name), ("spec", "select")
        if self.server is not None and self.server.spec.policy is not None:
            return Id("Server", self.server.metadata.name), ("spec", "policy")
        if self.pool is not None:
            return Id("BootPolicy", self.pool.name), ("spec", "select")
        return self.profile_id, ("spec", "method")  # an unknown machine


class Unbootable(Exception):
    """Raised if a boot cannot work. The field `place` has the same format as in `DecisionFinding`."""

    def __init__(
        self,
        code: Code,
        message: str,
        hint: str,
        resource: Id,
        *path: str | int,
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.resource, self.path = code, message, hint, resource, path


class SelectorIndex(Generic[T]):
    """An index of items by selector, which finds the items whose selectors match a server, in a fixed order."""

    def __init__(self, items: Iterable[tuple[T, Literal["All", "None"] | Selector]]) -> None:
        self._items: list[T] = []
        self._by_labels: list[tuple[int, Literal["All", "None"] | Selector]] = []  # also "All" and "None"
        self._by_name: dict[str, list[int]] = {}  # by server name
        keys: set[str] = set()
        for number, (each, select) in enumerate(items):
            self._items.append(each)
            if isinstance(select, Selector) and select.servers:
                for name in dict.fromkeys(select.servers):
                    self._by_name.setdefault(name, []).append(number)
                continue
            self._by_labels.append((number, select))
            if isinstance(select, Selector):
                keys |= select.keys
        self._keys = tuple(sorted(keys))
        self._found: dict[tuple[str | None, ...], tuple[list[int], tuple[T, ...]]] = {}  # by label values

    def find(self, server: Server) -> tuple[T, ...]:
        """Return the items whose selectors match a server, in the order in which they were added."""
        name, labels = server.metadata.name, server.metadata.labels
        label_values = tuple([labels.get(key) for key in self._keys])
        if (found := self._found.get(label_values)) is None:
            numbers = [number for number, select in self._by_labels if selects_server(select, name, labels)]
            found = self._found[label_values] = numbers, self._select_items(numbers)
        if (named := self._by_name.get(name)) is not None:
            return self._select_items(sorted((*found[0], *named)))
        return found[1]

    def _select_items(self, numbers: Iterable[int]) -> tuple[T, ...]:
        return tuple(self._items[number] for number in numbers)
