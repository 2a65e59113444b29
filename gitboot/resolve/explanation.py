"""Explanation: explain why a server gets its boot, and show the source location of each reason (rule R9)."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import chain
from typing import Any, Final, NamedTuple

from msgspec import Struct, field, structs

from gitboot.fleet.documents import FleetRepository, Id
from gitboot.fleet.overlay import find_differing_keys
from gitboot.fleet.revision import BlobId
from gitboot.fleet.yaml import count_lines_above, get_document_text, list_value_lines, locate
from gitboot.jsonio import encode_canonical, format_instant
from gitboot.model.boot_image import Artifacts, DigestOrigin, Provenance, RequiredProvenance
from gitboot.model.boot_policy import BootProfile, Maintenance, Method
from gitboot.model.fields import selects_server
from gitboot.model.fleet import Fleet
from gitboot.model.scalars import Path
from gitboot.model.server import Lifecycle
from gitboot.resolve.decision_fields import SETTINGS, Reason, Step, list_field_reasons, make_reason
from gitboot.resolve.decision_inputs import BootInputs, FleetView, list_stream_images
from gitboot.resolve.fleet_decisions import build_boot_source
from gitboot.resolve.install_attempts import describe_evidence, describe_run_evidence, install_step
from gitboot.resolve.kernel_arguments import merge_vars
from gitboot.resolve.plan_at_time import drop_ended_windows, find_missing_precondition
from gitboot.resolve.policy_selection import (
    BootSource,
    Choice,
    OptOut,
    Pool,
    RejectedCandidate,
    choose_image,
    choose_maintenance_image,
    choose_policy,
    compute_rollout_percentage,
)
from gitboot.resolve.provisioning_record import Record
from gitboot.resolve.server_decision import Boot, Decision, FieldSources, MaintenanceDecision
from gitboot.resolve.server_plan import BootPlan, Cause


class Explanation(Struct, frozen=True, kw_only=True):
    """The reasons for a server's boot at a given time, in the order of the rules, and the rejected candidates."""

    server: str
    reasons: tuple[Reason, ...]
    lost: tuple[RejectedCandidate, ...]
    others: tuple[Reason, ...] = ()  # the reasons for all other fields of the decision


def explain(
    repository: FleetRepository,
    decision: Decision,
    plan: BootPlan | None,
    at: datetime,
    record: Record | None = None,
    *,
    latest_clock: datetime | None = None,
) -> Explanation:
    """Explain a plan that gitboot made from ``decision`` and ``record`` for the time ``at``.

    The decision must have been made for ``repository``. For ``latest_clock``, see `drop_ended_windows`.
    """
    view = FleetView(repository)
    explainer = _Explainer(view, decision, plan, record)
    maintenances = drop_ended_windows(decision, latest_clock).maintenances
    active = [maintenance for maintenance in maintenances if maintenance.is_active(at)]
    reasons = [_locate_reason(repository, reason) for reason in explainer.list_reasons(active)]
    explained_fields = {name for reason in reasons for name in (reason.field, _base_name(reason.field))}
    inputs = view.server_inputs(repository.servers[decision.server])
    settings: list[Reason] = []
    others: list[Reason] = []
    for field_reason in list_field_reasons(repository, inputs, decision, plan):
        base_name = _base_name(field_reason.field)
        if field_reason.field in explained_fields or (field_reason.value == "none" and base_name in explained_fields):
            continue
        is_setting = field_reason.resource is not None and base_name in SETTINGS
        (settings if is_setting else others).append(_locate_reason(repository, field_reason))
    return Explanation(
        server=decision.server,
        reasons=(*reasons, *settings),
        lost=tuple(explainer.lost),
        others=tuple(others),
    )


def _base_name(field: str) -> str:
    """Return a field's name without the key or index of an item, such as kernelArguments for kernelArguments[0]."""
    return re.split(r"[.\[]", field, maxsplit=1)[0]


def _locate_reason(repository: FleetRepository, reason: Reason) -> Reason:
    if reason.resource is None:
        return reason
    file, place = repository.find_place(Id(*reason.resource.split("/", 1)), *reason.steps)
    return structs.replace(reason, path=file, line=place.line, column=place.column)


_DRAIN_TEXTS: Final[Mapping[Cause | None, str]] = {
    Cause.WAITING_FOR_APPROVAL: "gitboot drains the server after the approval",
    Cause.WAITING_FOR_DRAIN: "the URL has not returned status 200 for the server yet",
}


class _Explainer:
    """An explainer for the boot of one server, which also collects the rejected candidates."""

    def __init__(
        self,
        view: FleetView,
        decision: Decision,
        plan: BootPlan | None = None,
        record: Record | None = None,
    ) -> None:
        self._repository, self._pools = view.repository, view.pools
        self._decision, self._plan, self._record = decision, plan, record
        self._server = self._repository.servers[decision.server]
        self._inputs = view.server_inputs(self._server)
        self._id = Id("Server", decision.server)
        self.lost: list[RejectedCandidate] = []

    def list_reasons(self, active: Sequence[MaintenanceDecision]) -> Iterator[Reason]:
        plan, decision = self._plan, self._decision
        yield from self._explain_site()
        if self._server.spec.lifecycle is not Lifecycle.ACTIVE:
            return
        chosen = self._select_policy()
        if plan is None:
            yield make_reason("phase", "no plan", "R3", "no policy selects the server, and no maintenance is active")
            return
        yield make_reason("phase", plan.phase, "R5", plan.cause)
        if (evidence := describe_evidence(decision, self._record)) is not None:
            yield make_reason("step", install_step(decision, self._record), "R5", evidence)
        if plan.waiting_maintenance is not None:
            yield from self._explain_preconditions(self._repository.maintenances[plan.waiting_maintenance])
        self._reject_other_maintenances(plan, active)
        if (run_evidence := describe_run_evidence(decision, plan.maintenance, self._record)) is not None:
            run, evidence = run_evidence
            yield make_reason("run", run, "R5", evidence)
        if plan.maintenance is not None:
            yield from self._explain_maintenance(self._repository.maintenances[plan.maintenance])
        elif chosen is not None:
            yield from self._explain_policy(chosen)

    def _reject_other_maintenances(self, plan: BootPlan, active: Sequence[MaintenanceDecision]) -> None:
        """Add the maintenances, and the policy, that the plan does not boot to the rejected candidates (rule R2)."""
        highest = max((maintenance.priority for maintenance in active), default=0)
        for maintenance in self._decision.maintenances:
            if maintenance.name == plan.maintenance:
                continue
            why = plan.cause.value  # the boot of the maintenance is not offered, for example while boots are stopped
            if maintenance not in active:
                why = "the maintenance is not currently active"
            elif maintenance.priority < highest:
                why = f"its priority ({maintenance.priority}) is below {highest}"
            self.lost.append(RejectedCandidate(f"Maintenance/{maintenance.name}", "R2", why))
        policy = self._decision.policy
        if plan.maintenance is not None and policy is not None:
            why = "an active maintenance replaces the policy"
            self.lost.append(RejectedCandidate(f"BootPolicy/{policy.policy}", "R2", why))

    def list_timeless_reasons(self) -> Iterator[Reason]:
        """Yield the reasons for the policy's boot and for the boot of each maintenance.

        These reasons depend only on the commit.
        """
        yield from self._explain_site()
        if self._decision.lifecycle is not Lifecycle.ACTIVE:
            return
        if (chosen := self._select_policy()) is not None:
            yield from self._explain_policy(chosen)
        for maintenance in self._decision.maintenances:
            for reason in self._explain_maintenance(self._repository.maintenances[maintenance.name]):
                yield structs.replace(reason, under=maintenance.name)

    def _explain_site(self) -> Iterator[Reason]:
        lifecycle, site = self._server.spec.lifecycle, self._inputs.shared.site
        if lifecycle is not Lifecycle.ACTIVE:
            why = "only Active servers have a plan"
            yield make_reason("lifecycle", lifecycle, "R1", why, self._id, "spec", "lifecycle")
            return
        fleet = Id("Fleet", self._repository.fleet.metadata.name)
        if site is not None:
            why = "this is the first site that selects the server"
            number = [str(each.name) for each in self._repository.fleet.spec.sites].index(site)
            yield make_reason("site", site, "-", why, fleet, "spec", "sites", number)
        else:
            why = "no site selects the server"
            yield make_reason("baseURL", self._decision.base_url, "-", why, fleet, "spec", "baseURL")

    # R2

    def _explain_preconditions(self, maintenance: Maintenance) -> Iterator[Reason]:
        """Yield reasons that describe the approval and the drain that a maintenance needs.

        Include their state if there is a plan.
        """
        key = Id("Maintenance", maintenance.metadata.name)
        decided = next(each for each in self._decision.maintenances if each.name == key.name)
        if (before := decided.before) is None:
            return
        missing = find_missing_precondition(decided, self._record)
        path, approver = ("spec", "before"), before.approval_file or before.approval_url
        if approver is not None:
            if self._plan is None:
                why = f"{approver} must approve this digest"
            elif missing is Cause.WAITING_FOR_APPROVAL:
                why = f"{approver} has not approved this digest yet"
            else:
                why = f"{approver} has approved this digest"
            step = "file" if before.approval_file is not None else "url"
            yield make_reason("before.approval", before.digest, "R2", why, key, *path, "approval", step)
        if before.drain_url is not None:
            why = "before gitboot resets the server, the URL must return status 200 for the server"
            if self._plan is not None:
                why = _DRAIN_TEXTS.get(missing, "the server is drained")
            yield make_reason("before.drain", before.drain_url, "R2", why, key, *path, "drain", "url")

    def _explain_maintenance(self, maintenance: Maintenance) -> Iterator[Reason]:
        key = Id("Maintenance", maintenance.metadata.name)
        yield make_reason(
            "maintenance", key.name, "R2", "the maintenance is active and selects the server", key, "spec", "select"
        )
        spec = maintenance.spec
        for edge, value in (("window.start", spec.window.start), ("window.end", spec.window.end)):
            if value is not None:
                why = "the window includes its start and excludes its end"
                yield make_reason(edge, value.isoformat(), "R2", why, key, "spec", *edge.split("."))
        yield from self._explain_preconditions(maintenance)
        yield _make_field_reason("networkBoot", spec.network_boot, "R5", "the maintenance", key)
        profile = self._repository.profiles[spec.profile]
        yield _make_field_reason("profile", spec.profile, "R2", "the maintenance", key)
        if profile.spec.method is Method.DISK:
            return
        image = choose_maintenance_image(profile, self._repository.streams)
        if profile.spec.stream is not None:
            why, stream_id = "a maintenance boots the stream's current image", Id("ImageStream", profile.spec.stream)
            yield make_reason("image", image, "R2", why, stream_id, "spec", "current")
        else:
            yield _make_field_reason("image", image, "R2", "the profile", Id("BootProfile", spec.profile))
        boot_inputs = next(each.boot for each in self._inputs.shared.maintenances if each.maintenance is maintenance)
        yield from self._explain_provenance(image, profile, boot_inputs)
        yield from self._explain_boot(build_boot_source(self._inputs, boot_inputs, maintenance=maintenance))

    # R3 and R4

    def _select_policy(self) -> Choice[Pool] | None:
        metadata, named = self._server.metadata, self._server.spec.policy
        selecting_pools = [
            pool
            for pool in self._pools.values()
            if selects_server(self._repository.policies[pool.name].spec.select, metadata.name, metadata.labels)
        ]
        chosen = choose_policy(selecting_pools, self._pools[named] if named is not None else None)
        if not isinstance(chosen, Choice):
            return None
        self.lost += chosen.rejected
        return chosen

    def _explain_policy(self, choice: Choice[Pool]) -> Iterator[Reason]:
        pool, server = choice.winner, self._server
        if server.spec.policy is not None:
            yield make_reason("policy", pool.name, "R3", choice.why, self._id, "spec", "policy")
        else:
            yield make_reason("policy", pool.name, "R3", choice.why, Id("BootPolicy", pool.name), "spec", "select")
        specs = [(name, self._repository.policies[name].spec) for name in reversed(pool.chain)]
        for alias, name in (("networkBoot", "network_boot"), ("profile", "profile")):
            # The last policy in the chain of policies that sets the field.
            owner = next(each for each, spec in specs if getattr(spec, name) is not None)
            why = "the policy sets this field" if owner == pool.name else "the policy inherits this field"
            yield make_reason(alias, getattr(pool, name), "R3", why, Id("BootPolicy", owner), "spec", alias)
        yield _make_field_reason("provision", server.spec.provision, "R5", "the Server document", self._id)
        profile = self._repository.profiles[pool.profile]
        if profile.spec.method is Method.DISK:
            yield _make_field_reason("method", Method.DISK, "R5", "the profile", Id("BootProfile", pool.profile))
            return
        image = choose_image(server, profile, self._repository.streams)
        self.lost += image.rejected
        named = image.winner
        yield make_reason("image", named.image, "R4", image.why, named.document, *named.path)
        assert self._inputs.shared.boot is not None  # noqa: S101 - a policy won
        yield from self._explain_provenance(named.image, profile, self._inputs.shared.boot)
        yield from self._explain_boot(build_boot_source(self._inputs, self._inputs.shared.boot, pool=pool))

    def _explain_provenance(self, image: str, profile: BootProfile, inputs: BootInputs) -> Iterator[Reason]:
        """Explain where an image's digests come from, if the image states this.

        Also name the stream that requires signed images, if there is one.
        """
        architecture = self._server.spec.architecture
        artifacts = self._repository.images[image].spec.architectures.get(architecture)
        if artifacts is not None and (origins := list_claimed_origins([artifacts])):
            why, image_id = "the image claims this provenance", Id("BootImage", image)
            yield make_reason(
                "provenance", ", ".join(origins), "-", why, image_id, "spec", "architectures", architecture
            )
        if inputs.requires_signature:
            name = find_requiring_stream(self._repository, profile, image)
            is_own = profile.spec.stream == name
            why = "the stream sets this field" if is_own else "this field is set by a stream that contains the image"
            stream_id = Id("ImageStream", name)
            yield make_reason(
                "requireProvenance", RequiredProvenance.SIGNED, "-", why, stream_id, "spec", "requireProvenance"
            )

    # R6 and R7

    def _explain_boot(self, source: BootSource) -> Iterator[Reason]:
        profile, decision = source.profile_id, self._decision
        yield _make_field_reason("method", source.profile.spec.method, "R6", "the profile", profile)
        if source.profile.spec.http_boot is not None:
            yield _make_field_reason("httpBoot", source.profile.spec.http_boot, "R6", "the profile", profile)
        boot = decision.policy.boot if decision.policy else None
        if source.maintenance is not None:
            name = source.maintenance.metadata.name
            boot = next(each.boot for each in decision.maintenances if each.name == name)
        if self._plan is not None and self._plan.boot is not None:  # the server does not boot its disk
            boot = self._plan.boot
        assert boot is not None  # noqa: S101 - the profile's method is not Disk
        yield from self._explain_arguments(boot, source)
        if boot.user_data is not None:
            template = source.profile.spec.user_data
            path = template.template if template is not None else ""
            why = f"the profile names this template, whose format is {boot.user_data.format}"
            yield make_reason("userData", path, "R6", why, profile, "spec", "userData", "template")
        yield from self._explain_variables(source)

    def _explain_arguments(self, boot: Boot, source: BootSource) -> Iterator[Reason]:
        # gitboot imports this module here, because the import is slow and an instance does not need it
        from gitboot.resolve.boot_composition import Composer

        composer = Composer()
        places = composer.locate_arguments(boot, source)
        for argument, resource, why in composer.list_dropped_arguments(boot, source):
            self.lost.append(RejectedCandidate(f"{argument} of {resource}", "R7", why))
        for number, argument in enumerate(boot.kernel_arguments):
            field = f"kernelArguments[{number}]"
            if argument in places:
                resource, index = places[argument]
                why = "the last document that sets this argument wins"
                yield make_reason(field, argument, "R7", why, resource, "spec", "kernelArguments", index)
            else:
                yield make_reason(field, argument, "R7", "gitboot adds this argument for the user data")

    def _explain_variables(self, source: BootSource) -> Iterator[Reason]:
        # The last document that sets each variable wins; policies come first, starting at the root.
        policies = source.pool.chain if source.pool is not None else ()
        documents: list[tuple[Id, Any]] = [
            *((Id("BootPolicy", name), self._repository.policies[name].spec.vars) for name in policies),
            (source.profile_id, source.profile.spec.vars),
            (self._id, self._server.spec.vars),
        ]
        setters: dict[str, Id] = {}
        for resource, variables in documents:
            setters |= dict.fromkeys(variables, resource)
        for variable, value in sorted(merge_vars(source).items()):
            why = "the last document that sets this variable wins"
            yield make_reason(f"vars.{variable}", value, "R7", why, setters[variable], "spec", "vars", variable)


def _make_field_reason(field: str, value: object, rule: str, document: str, resource: Id) -> Reason:
    """Return the reason for the value of a field that a document sets in its spec."""
    return make_reason(field, value, rule, f"{document} sets this field", resource, "spec", field)


def find_requiring_stream(repository: FleetRepository, profile: BootProfile, image: str) -> str:
    """Return the stream that requires signatures for a boot.

    This is the profile's stream, or a stream that contains the image.
    """
    signed = [
        name
        for name, stream in repository.streams.items()
        if stream.spec.require_provenance is RequiredProvenance.SIGNED
    ]
    if profile.spec.stream in signed:
        return str(profile.spec.stream)
    return next(name for name in signed if image in list_stream_images(repository.streams[name]))


_ORIGIN_TEXTS: Final[Mapping[DigestOrigin, str]] = {
    DigestOrigin.SIGNED: "signed by {key}",
    DigestOrigin.PUBLISHED: "published",
    DigestOrigin.FIRST_SEEN: "first seen",
}


def describe_origin(provenance: Provenance | None) -> str:
    """Describe the origin that an image claims for a digest."""
    return _ORIGIN_TEXTS[provenance.digest].format(key=provenance.key) if provenance is not None else "not stated"


def list_claimed_origins(architectures: Iterable[Artifacts]) -> list[str]:
    """Return the origins that an image claims for its digests, without duplicates.

    If the image does not claim any origin, return an empty list.
    """
    claims = [artifact.provenance for artifacts in architectures for _, artifact in artifacts.files()]
    return sorted(set(map(describe_origin, claims))) if any(each is not None for each in claims) else []


class ServerLocation(NamedTuple):
    """The source location of a Server document."""

    file: str
    count_lines_above: int  # the number of lines before the document in the file


class DocumentLocation(NamedTuple):
    """The source locations of a document that several servers may use, and of the values in the document."""

    file: str
    lines: dict[str, int]  # line numbers by JSON pointer (RFC 6901)


class SourceLocations(Struct, frozen=True, kw_only=True):
    """The source locations of all documents in a commit."""

    servers: Mapping[str, ServerLocation] = field(default_factory=dict)  # by server name
    shared: Mapping[str, DocumentLocation] = field(default_factory=dict)  # by kind and name, such as BootPolicy/web


def json_pointer(path: Path) -> str:
    """Convert the path of a value to a JSON pointer."""
    return "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in path)


class SourceTexts:
    """A reader for the text of documents in a commit, which caches the last file."""

    def __init__(self, repository: FleetRepository) -> None:
        self._repository = repository
        self._blob: BlobId | None = None
        self._data = b""

    def read_text(self, resource: Id) -> bytes:
        return get_document_text(*self._read_file(resource))

    def find_line(self, resource: Id, path: Path) -> int:
        """Return the number of the line where a value starts. The first line of the document has the number 1."""
        data, index = self._read_file(resource)
        return locate(data, index, path).line - count_lines_above(data, index)

    def locate_server(self, name: str) -> ServerLocation:
        resource = Id("Server", name)
        return ServerLocation(self._repository.origins[resource].path, count_lines_above(*self._read_file(resource)))

    def locate_document(self, resource: Id) -> DocumentLocation:
        return DocumentLocation(
            self._repository.origins[resource].path,
            {json_pointer(path): line for path, line in list_value_lines(*self._read_file(resource)).items()},
        )

    def _read_file(self, resource: Id) -> tuple[bytes, int]:
        origin = self._repository.origins[resource]
        if origin.blob != self._blob:
            self._data, self._blob = self._repository.read(origin.blob), origin.blob
        return self._data, origin.document


def find_source_locations(repository: FleetRepository) -> SourceLocations:
    """Return the source locations of all documents in a commit."""
    texts = SourceTexts(repository)
    shared = sorted(each for each in repository.origins if each.kind != "Server")
    return SourceLocations(
        servers={name: texts.locate_server(name) for name in repository.servers},
        shared={str(each): texts.locate_document(each) for each in shared},
    )


def find_moved_documents(old_repository: FleetRepository, new_repository: FleetRepository) -> list[Id]:
    """Return the documents whose file or position in the file differs between two commits, sorted."""
    old, new = old_repository.origins, new_repository.origins
    return sorted(each for each in find_differing_keys(old, new) if old.get(each) != new.get(each))


class Explanations:
    """An explainer for the boots of the servers in one commit."""

    def __init__(self, repository: FleetRepository, decisions: Mapping[str, Decision]) -> None:
        self._repository, self._decisions = repository, decisions
        self._texts = SourceTexts(repository)
        # by policies, maintenances and their images; many servers have the same ones
        self._documents: dict[tuple[tuple[Id, str | None], ...], frozenset[Id]] = {}

    @cached_property
    def _view(self) -> FleetView:
        return FleetView(self._repository)

    def explain_server(self, name: str) -> FieldSources:
        """Return the documents that set the fields of a server's boot configuration."""
        stream, joins, kept = self._explain_image(name)
        server_id, texts = Id("Server", name), self._texts
        lines = []
        for reason in _Explainer(self._view, self._decisions[name]).list_timeless_reasons():
            location: int | str | None = None
            if reason.resource == str(server_id):
                location = texts.find_line(server_id, reason.steps)
            elif reason.resource is not None:
                location = json_pointer(reason.steps)
            lines.append([reason.field, reason.value, reason.rule, reason.why, reason.under, reason.resource, location])
        return FieldSources(stream=stream, joins=joins, kept=kept, packed=zlib.compress(encode_canonical(lines), 6))

    def _explain_image(self, name: str) -> tuple[str | None, int | None, str | None]:
        """Return the values `stream`, `joins` and `kept` of `FieldSources` for a server."""
        repository, policy = self._repository, self._decisions[name].policy
        if policy is None or policy.boot is None:
            return None, None, None
        server, profile = repository.servers[name], repository.profiles[policy.boot.profile]
        stream = profile.spec.stream
        source = choose_image(server, profile, repository.streams).winner
        if source.path == ("spec", "current") and stream is not None:
            rollout, metadata = repository.streams[stream].spec.rollout, server.metadata
            if rollout is not None and selects_server(rollout.selector, metadata.name, metadata.labels):
                return stream, compute_rollout_percentage(stream, server.uuid), None
        elif source.path[1] in ("pin", "holds"):
            return stream, None, ".".join((str(source.document), *map(str, source.path[:-1])))
        return stream, None, None

    def find_changed_servers(self, before: Explanations, decided_servers: Collection[str]) -> Collection[str]:
        """Return the names of new servers, and of servers whose explanation may differ from that in an earlier commit.

        ``decided_servers`` are the servers whose decision may differ between the two commits.
        """
        servers, old = self._repository.servers, before._repository
        if _get_fleet_values(self._repository.fleet) != _get_fleet_values(old.fleet):
            return servers.keys()
        changed_servers = set()
        for name in decided_servers:
            if name not in servers:
                continue
            old_decision, new_decision = before._decisions.get(name), self._decisions[name]
            if old_decision is new_decision:
                continue
            if old_decision is None or old_decision.digest != new_decision.digest:
                changed_servers.add(name)
        for document in find_moved_documents(old, self._repository):
            if document.kind == "Server" and document.name in servers:
                is_new = document not in old.origins
                if is_new or before._texts.read_text(document) != self._texts.read_text(document):
                    changed_servers.add(document.name)
        if changed_documents := _find_changed_documents(old, self._repository):
            for name in servers:
                if not changed_documents.isdisjoint(self._find_documents(self._decisions[name])):
                    changed_servers.add(name)
        return changed_servers

    def _find_documents(self, decision: Decision) -> frozenset[Id]:
        """Return the documents, except the Server document, that determine the boots of a decision."""
        boots = [(Id("Maintenance", maintenance.name), maintenance.boot) for maintenance in decision.maintenances]
        if (policy := decision.policy) is not None:
            boots.append((Id("BootPolicy", policy.policy), policy.boot))
        key = tuple((source, boot.image if boot is not None else None) for source, boot in boots)
        if (documents := self._documents.get(key)) is None:
            lists = (self._list_documents(source, image) for source, image in key)
            documents = self._documents[key] = frozenset(chain.from_iterable(lists))
        return documents

    def _list_documents(self, source: Id, image: str | None) -> Iterator[Id]:
        repository = self._repository
        if source.kind == "BootPolicy":
            pool = self._view.pools[source.name]
            profile = pool.profile
            yield from (Id("BootPolicy", name) for name in pool.chain)
        else:
            profile = repository.maintenances[source.name].spec.profile
            yield source
        yield Id("BootProfile", profile)
        if (stream := repository.profiles[profile].spec.stream) is not None:
            yield Id("ImageStream", stream)
        if image is not None:
            yield Id("BootImage", image)


def _get_fleet_values(fleet: Fleet) -> tuple[object, ...]:
    """Return the Fleet fields that affect explanations: the name, and the URLs that kernel arguments can contain."""
    return fleet.metadata.name, fleet.spec.base_url, fleet.spec.endpoint, fleet.spec.sites


def _find_changed_documents(old_repository: FleetRepository, new_repository: FleetRepository) -> set[Id]:
    kinds: tuple[tuple[str, Mapping[str, object], Mapping[str, object]], ...] = (
        ("BootImage", old_repository.images, new_repository.images),
        ("BootPolicy", old_repository.policies, new_repository.policies),
        ("BootProfile", old_repository.profiles, new_repository.profiles),
        ("ImageStream", old_repository.streams, new_repository.streams),
        ("Maintenance", old_repository.maintenances, new_repository.maintenances),
    )
    return {
        Id(kind, name)
        for kind, old, new in kinds
        for name in find_differing_keys(old, new)
        if old.get(name) != new.get(name)
    }


def make_fleet_fields(repository: FleetRepository, opt_outs: Iterable[OptOut]) -> dict[str, Any]:
    """Return the streams, images, maintenances and opt-outs of a commit as JSON values with source locations."""
    return {
        "images": {name: image.spec.version for name, image in repository.images.items()},
        "provenance": {  # as the images claim; images without a claim are missing
            name: origins
            for name, image in repository.images.items()
            if (origins := list_claimed_origins(image.spec.architectures.values()))
        },
        "streams": [
            {
                "name": name,
                "current": stream.spec.current,
                "rollout": stream.spec.rollout.image if stream.spec.rollout else None,
                "percent": stream.spec.rollout.percent if stream.spec.rollout else None,
                "follows": stream.spec.follow.source if stream.spec.follow else None,
                "images": list(dict.fromkeys(list_stream_images(stream))),
                "requires": stream.spec.require_provenance.value,
                **_make_location(
                    repository, Id("ImageStream", name), "spec", "rollout" if stream.spec.rollout else "current"
                ),
            }
            for name, stream in repository.streams.items()
        ],
        "maintenances": [
            {
                "name": name,
                "start": format_instant(maintenance.spec.window.start) if maintenance.spec.window.start else None,
                "end": format_instant(maintenance.spec.window.end) if maintenance.spec.window.end else None,
                "priority": maintenance.spec.priority,
                "profile": maintenance.spec.profile,
                **_make_location(repository, Id("Maintenance", name), "spec", "window"),
            }
            for name, maintenance in repository.maintenances.items()
        ],
        "optOuts": [
            {
                "id": ".".join((str(opt_out.resource), *map(str, opt_out.path))),
                "what": opt_out.what,
                "image": opt_out.image,
                "reason": opt_out.reason,
                "until": format_instant(opt_out.until) if opt_out.until else None,
            }
            for opt_out in opt_outs
        ],
    }


def _make_location(repository: FleetRepository, resource: Id, *path: Step) -> dict[str, Any]:
    file, place = repository.find_place(resource, *path)
    return {"path": file, "line": place.line}
