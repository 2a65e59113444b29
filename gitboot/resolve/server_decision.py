"""Server decision: what a commit decides for a server; values only."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple

from msgspec import Struct

from gitboot.errors import InvalidRepository
from gitboot.jsonio import OMITTED, UNLESS_DEFAULT, Digest, compute_digest, json_key, json_writer, to_json_value
from gitboot.model.boot_image import ConfigFrom
from gitboot.model.boot_policy import (
    DiskBoot,
    HttpBoot,
    MaintenancePower,
    Method,
    NetworkBoot,
    OverrideMode,
    PolicyPower,
    PolicyWait,
    Taint,
)
from gitboot.model.fleet import Evidence, FleetSpec, Output
from gitboot.model.scalars import MacAddress, SystemUuid
from gitboot.model.server import Architecture, Firmware, Lifecycle, Loader, Server
from gitboot.problems import DatedProblem, Problem, Severity, find_problems_at


class Decisions(Struct, frozen=True, kw_only=True):
    """What a commit says about every server, and about machines that it does not know."""

    revision: str
    base_url: str
    outputs: frozenset[Output]
    evidence: Evidence
    servers: Mapping[str, Decision]  # by name, sorted
    networks: Mapping[str, Host]  # by server, in their order
    sites: Mapping[str, str]  # by name, in the document's order: what is reached under which base URL
    unknown: Mapping[Architecture, Boot] | None  # None: no profile for machines without a document
    unknown_not_found: bool  # such machines are answered 404
    warnings: tuple[Problem, ...]
    dated: tuple[DatedProblem, ...]  # that depend on the time

    def problems_at(self, now: datetime) -> tuple[Problem, ...]:
        """Return every problem that holds at an instant, sorted."""
        return tuple(sorted((*self.warnings, *find_problems_at(self.dated, now))))

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(self.networks.values())


def check_acceptable(decisions: Decisions, fleet: FleetSpec, now: datetime) -> None:
    """Raise `InvalidRepository` if a commit cannot be accepted at an instant.

    It has an error of `GOES_ON`, or one that depends on the time. An instance that has accepted it goes on with it.
    """
    problems = decisions.problems_at(now)
    if any(problem.severity is Severity.ERROR for problem in problems):
        raise InvalidRepository(problems, fleet=fleet)


INSTALL_MODES: Final = (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)


def report_token(uuid: SystemUuid, provision: int, image: str) -> str:
    """Return the token by which an installer reports a server's provision number and image."""
    return offer_token(uuid, str(provision), image)


@lru_cache(maxsize=256)  # to plan and render one server asks for the same few several times
def offer_token(*parts: str) -> Digest:
    """Return the digest that names an offer in paths, from the machine and the parts of its offer."""
    return Digest(sha256("\0".join(parts).encode()).hexdigest())


@dataclass(frozen=True, kw_only=True, slots=True)
class BootFile:
    """A file that a machine fetches, under the URL that it is given."""

    url: str
    sha256: Digest
    size: int | None
    # whence a mirror takes it; None: it is not mirrored
    source: str | None = field(default=None, compare=False, metadata=OMITTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class BootFiles:
    """An image's files for a server's architecture."""

    kernel: BootFile | None = field(default=None, metadata=UNLESS_DEFAULT)
    initrds: tuple[BootFile, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    rootfs: BootFile | None = field(default=None, metadata=UNLESS_DEFAULT)
    uki: BootFile | None = field(default=None, metadata=UNLESS_DEFAULT)
    iso: BootFile | None = field(default=None, metadata=UNLESS_DEFAULT)
    loader: BootFile | None = field(default=None, metadata=UNLESS_DEFAULT)

    def all(self) -> tuple[BootFile, ...]:
        single = (self.kernel, *self.initrds, self.rootfs, self.uki, self.iso, self.loader)
        return tuple(file for file in single if file is not None)


def _digest_texts(texts: Mapping[str, str]) -> dict[str, Digest]:
    """Return the digest of each text instead of it, so that JSON does not have secrets."""
    return {name: Digest(sha256(text.encode()).hexdigest()) for name, text in texts.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class UserDataFiles:
    """Rendered user data: one file, or the bundle that NoCloud wants side by side."""

    format: str  # as the profile says it: Ignition/3.4
    files: Mapping[str, str] = field(metadata=OMITTED)  # by name, sorted
    digest: Digest = field(metadata=json_key("sha256"))  # of the file, or of the bundle's names and digests
    url: str  # what the system is given: the file, or the bundle's folder with a slash at its end
    # what it may fetch besides: age's, as base64, by name
    secrets: Mapping[str, str] = field(default_factory=dict, metadata=json_writer(_digest_texts, unless_default=True))

    @property
    def folder(self) -> str:
        return f"o/{self.digest}"

    def without_secrets(self) -> UserDataFiles:
        return replace(self, secrets={}) if self.secrets else self

    def content_facts(self) -> dict[str, Any]:
        return {name: value for name, value in to_json_value(self).items() if name != "url"}


def _write_texts(values: Iterable[object]) -> list[str]:
    return [str(each) for each in values]


def _digest_entries(entries: Mapping[str, str]) -> dict[str, Digest]:
    return {loader: compute_digest(text) for loader, text in entries.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Boot:
    """One boot from the network, with nothing left to choose."""

    profile: str
    image: str
    version: str
    method: Method
    http_boot: HttpBoot | None
    writes_disk: bool
    config_from: ConfigFrom
    files: BootFiles
    kernel_arguments: tuple[str, ...]
    user_data: UserDataFiles | None
    node_labels: Mapping[str, str]
    node_taints: tuple[Taint, ...] = field(metadata=json_writer(_write_texts))
    # by loader: the author's own entry instead of the built-in one
    entries: Mapping[str, str] = field(metadata=json_writer(_digest_entries))
    templates: Mapping[str, Digest]  # the template files that went into this boot
    # how many times its installer boots from the network before it is done
    boots: int = field(default=1, metadata=UNLESS_DEFAULT)

    @property
    def direct(self) -> bool:
        """Whether what starts is a uki or iso, which is passed no arguments."""
        if self.method is Method.PXE:
            return self.files.kernel is None
        return self.http_boot is not HttpBoot.LOADER

    @property
    def medium(self) -> str | None:
        """The URL of the image that its BMC inserts; None: it boots otherwise."""
        return self.files.iso.url if self.method is Method.VIRTUAL_MEDIA and self.files.iso is not None else None

    @property
    def reads_medium(self) -> bool:
        """Whether the system finds its user data on a second medium, beside the one that it boots from."""
        return self.medium is not None and self.config_from is ConfigFrom.MEDIUM and self.user_data is not None

    @property
    def asks_by_uuid(self) -> bool:
        """Whether the system finds its user data by its UUID alone."""
        return self.direct and self.config_from is ConfigFrom.SYSTEM_UUID

    @property
    def direct_uki(self) -> BootFile | None:
        """The uki of a direct boot, which a loader under UEFI can start too; None: it is an iso."""
        by_pxe = self.method is Method.PXE
        return self.files.uki if self.direct and (by_pxe or self.http_boot is HttpBoot.UKI) else None

    @property
    def shows_its_start(self) -> bool:
        """Whether the system that it boots fetches something that only it would."""
        if self.user_data is None or self.direct:
            return self.asks_by_uuid
        folder = self.user_data.url.rpartition("/")[0]
        return all(folder in text for text in (*self.entries.values(), " ".join(self.kernel_arguments)))

    @property
    def may_ask_by_identity(self) -> bool:
        """Whether the system finds its user data by who the machine is, as far as its image or its texts say so."""
        if self.config_from is ConfigFrom.SYSTEM_UUID or not (self.shows_its_start or self.reads_medium):
            return True
        user_data = self.user_data.files.values() if self.user_data is not None else ()
        texts = (*self.kernel_arguments, *self.entries.values(), *user_data)
        return any(mark in text for mark in _BY_IDENTITY for text in texts)

    def move_user_data(self, folder: str, *, token_change: tuple[str, str]) -> Boot:
        """Return the boot of a system that finds its user data in another folder below the base URL.

        Its installer reports by the second of two tokens in place of the first.
        """
        user_data = self.user_data
        within = f"/{user_data.folder}/" if user_data is not None and not self.asks_by_uuid else None

        def moved(text: str) -> str:
            return (text.replace(within, f"/{folder}/") if within is not None else text).replace(*token_change)

        return replace(
            self,
            kernel_arguments=tuple(map(moved, self.kernel_arguments)),
            entries={loader: moved(text) for loader, text in self.entries.items()},
            user_data=replace(user_data, url=moved(user_data.url)) if user_data is not None else None,
        )

    @property
    def loaded_kernel(self) -> BootFile:
        """The kernel of a boot that is not direct; rule R6 sees to it that there is one."""
        assert self.files.kernel is not None  # noqa: S101
        return self.files.kernel

    @property
    def http_boot_file(self) -> BootFile | None:
        """What firmware fetches by UEFI HTTP boot, if this boot has it."""
        return getattr(self.files, self.http_boot) if self.http_boot is not None else None

    @property
    def fetched_files(self) -> tuple[BootFile, ...]:
        """The files that a machine fetches by it: what its method starts, and what any text that it is given names."""
        files, started = self.files, set[BootFile | None]()
        if self.direct:
            started = {self.direct_uki or files.iso}
        else:
            started = {files.kernel, *files.initrds, files.loader if self.http_boot is HttpBoot.LOADER else None}
        data = self.user_data.files.values() if self.user_data is not None else ()
        texts = (*self.kernel_arguments, *self.entries.values(), *data)
        return tuple(each for each in files.all() if each in started or any(each.url in text for text in texts))

    def lacks(self, absent: Collection[BootFile]) -> bool:
        return bool(absent) and any(each in absent for each in self.fetched_files)


# What a URL has of user data that is found by UUID, or by a query: see `render.aliases`.
_BY_IDENTITY: Final = ("/ignition/", "/ignition?", "/cloud?", "/generic?", "/nocloud/", "/user-data/")


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyDecision:
    """What a server's policy lets it boot."""

    policy: str
    network_boot: NetworkBoot
    boot: Boot | None  # None: the profile's method is Disk
    override: OverrideMode
    disk_boot: DiskBoot
    power: PolicyPower
    provision: int  # the number wanted
    attempts: int = field(default=1, metadata=UNLESS_DEFAULT)  # how often that may be attempted
    # what has to be seen before the first attempt
    wait_for: PolicyWait = field(default=PolicyWait.NONE, metadata=UNLESS_DEFAULT)


def is_within(at: datetime, start: datetime | None, end: datetime | None) -> bool:
    """Return whether an instant lies in the window [start, end); None: the window has no such bound."""
    return (start is None or start <= at) and (end is None or at < end)


@dataclass(frozen=True, kw_only=True, slots=True)
class MaintenanceDecision:
    """What a maintenance lets a server boot, and in which window: [start, end)."""

    name: str
    start: datetime | None
    end: datetime | None
    priority: int
    network_boot: NetworkBoot  # Always or Once
    boot: Boot | None  # None: the profile's method is Disk
    override: OverrideMode
    run: int
    power: MaintenancePower
    max_unavailable: str
    # Site, or a label's key; None: of all that it selects
    max_unavailable_per: str | None = field(default=None, metadata=UNLESS_DEFAULT)

    def is_active(self, at: datetime) -> bool:
        return is_within(at, self.start, self.end)

    def find_overlap(self, other: MaintenanceDecision) -> tuple[datetime | None, datetime | None] | None:
        """Return the window [start, end) in which both are active; None: there is no such window."""
        start = max((each for each in (self.start, other.start) if each is not None), default=None)
        end = min((each for each in (self.end, other.end) if each is not None), default=None)
        return (start, end) if start is None or end is None or start < end else None


class WithheldBoot(NamedTuple):
    """An install boot that a newer commit does not offer, in the window [start, end)."""

    maintenance: str | None  # None: the policy's boot
    start: datetime | None  # None: from the beginning
    end: datetime | None  # None: without an end
    takes_image_back: bool  # whether the newer commit offers another image there, or none
    by: str  # the newer commit

    def is_active(self, at: datetime) -> bool:
        return is_within(at, self.start, self.end)


class CopySettings(NamedTuple):
    """What the boot files in OUTPUT and in its copies may serve without a record of the fetch."""

    one_time_boots: bool = False  # whether they serve one-time boots
    late_ends: bool = False  # whether loaders that cannot ask the endpoint for the end of a maintenance get it
    ipxe_https: bool = False  # whether iPXE can ask an endpoint by https

    def facts(self) -> dict[str, Any]:
        """Return what differs from the defaults, as `spec.serving` of the Fleet has it."""
        return {
            **({"oneTimeBoots": "Copies"} if self.one_time_boots else {}),
            **({"lateEnds": "Accept"} if self.late_ends else {}),
            **({"ipxeHttps": True} if self.ipxe_https else {}),
        }


DEFAULT_COPY_SETTINGS: Final = CopySettings()  # what a Fleet that sets nothing means


def maintenances_facts(maintenances: Iterable[MaintenanceDecision]) -> list[dict[str, Any]]:
    """Return maintenances as JSON values, each with its window as one of them."""
    found = []
    for each in map(to_json_value, maintenances):
        window = {bound: each.pop(bound) for bound in ("start", "end")}
        found.append({"name": each.pop("name"), "window": window, **each})
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """Everything that a commit says about one server: what could boot, and when."""

    server: str
    uuid: SystemUuid
    macs: tuple[MacAddress, ...]  # of the interfaces that may boot
    architecture: Architecture
    firmware: Firmware
    lifecycle: Lifecycle
    restrict: bool  # whether a server that boots its disk gets 404 by each lookup
    base_url: str = field(metadata=json_key("baseURL"))
    provision: int  # the number wanted, whether a policy asks for it now or not
    policy: PolicyDecision | None
    # in the order of their names
    maintenances: tuple[MaintenanceDecision, ...] = field(metadata=json_writer(maintenances_facts))
    # the number that Git says is provisioned; only where that is the evidence
    declared: int | None = field(default=None, metadata=UNLESS_DEFAULT)
    serial: str | None = field(default=None, metadata=UNLESS_DEFAULT)  # that a loader may look it up by
    # what its UUID was before its board was replaced
    replaces: SystemUuid | None = field(default=None, metadata=UNLESS_DEFAULT)
    # whether no boot that writes disks is offered, whatever asks for it
    stopped: bool = field(default=False, metadata=UNLESS_DEFAULT)
    # the URL of who gives what is made once, for trees that cannot; None: nobody is named
    endpoint: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    # how loaders hand over to its disk: Exit, Sanboot, a path; None: as for most
    local_disk: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    copies: CopySettings = field(
        default=DEFAULT_COPY_SETTINGS, metadata=json_writer(CopySettings.facts, unless_default=True)
    )
    # Install boots that newer commits do not offer. Not in the digest: the commit of this decision does not contain it.
    withheld: tuple[WithheldBoot, ...] = field(default=(), metadata=OMITTED)
    # once it was asked for
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False, metadata=OMITTED)

    @property
    def digest(self) -> Digest:
        """Of all that it says; another process that is given it has it with it."""
        if (known := self._digest) is None:
            object.__setattr__(self, "_digest", known := compute_digest(to_json_value(self)))
        return known

    def with_digest(self) -> Decision:
        _ = self.digest
        return self

    @property
    def boots(self) -> tuple[Boot, ...]:
        found = (each.boot for each in (self.policy, *self.maintenances) if each is not None)
        return tuple(boot for boot in found if boot is not None)

    def find_withheld_files(self, is_withheld: Callable[[BootFile], bool]) -> frozenset[BootFile]:
        """Return the files that machines fetch in its boots and that are withheld."""
        return frozenset(file for boot in self.boots for file in boot.fetched_files if is_withheld(file))

    @property
    def token(self) -> Digest | None:
        """What is fetched, and reported, of the installation that is wanted names; None: nothing is installed once."""
        boot = self.installation
        return Digest(report_token(self.uuid, self.provision, boot.image)) if boot is not None else None

    @property
    def installation(self) -> Boot | None:
        """The boot by which its policy wants something installed; None: nothing is installed once."""
        return self.policy.boot if self.policy is not None and self.policy.network_boot in INSTALL_MODES else None

    def data_folder(self, token: Digest) -> str | None:
        """Return the folder, below the base URL, in which only the system of this offer looks for its user data."""
        return f"v1/boot/{self.macs[0]}/data/{token}" if self.macs else None


class OverrideTarget(StrEnum):
    """Redfish ComputerSystem ``BootSourceOverrideTarget``: those that gitboot sets."""

    UEFI_HTTP = "UefiHttp"
    PXE = "Pxe"
    HDD = "Hdd"
    CD = "Cd"
    USB_CD = "UsbCd"  # how some BMCs boot the disc that a plan wants as Cd
    NONE = "None"


class OverrideEnabled(StrEnum):
    """Redfish ComputerSystem ``BootSourceOverrideEnabled``."""

    DISABLED = "Disabled"
    ONCE = "Once"
    CONTINUOUS = "Continuous"


class Nic(Struct, frozen=True, kw_only=True):
    """One interface: its MAC address and what IP addresses it is given."""

    mac: MacAddress
    addresses: tuple[str, ...]  # without prefix lengths
    boots: bool


class Host(Struct, frozen=True, kw_only=True):
    """One server's interfaces, and whose mirror is near."""

    server: str
    lifecycle: Lifecycle
    site: str | None
    nics: tuple[Nic, ...]  # in the document's order
    loader: Loader | None = None  # that DHCP names; None: as for most machines


def make_host(server: Server, site: str | None, loader: Loader | None) -> Host:
    """Return a server as the network knows it."""
    return Host(
        server=server.metadata.name,
        lifecycle=server.spec.lifecycle,
        site=site,
        loader=loader,
        nics=tuple(
            Nic(
                mac=interface.mac,
                addresses=tuple(address.partition("/")[0] for address in interface.addresses),
                boots=interface.boot,
            )
            for interface in server.spec.interfaces
        ),
    )


def list_idle_macs(host: Host) -> tuple[MacAddress, ...]:
    """Return the interfaces that the machine may not boot from, which its decision does not list."""
    return tuple(nic.mac for nic in host.nics if not nic.boots)


class FieldSources(Struct, frozen=True, kw_only=True):
    """The documents that set the fields of a server. They follow from the commit alone, and decide nothing."""

    stream: str | None  # whose images its policy follows
    joins: int | None  # at which percentage the stream's rollout reaches it; None: it is there, or there is none
    kept: str | None  # the pin or hold that keeps it where it is
    packed: bytes  # its lines, compressed: a fleet has many that are alike

    @property
    def lines(self) -> list[list[Any]]:
        """Each: field, value, rule, reason, the maintenance under which it holds, document, place in the document.

        The place is the line within the server's own document, and a JSON pointer in other documents. Document and
        place are None if a rule adds the field.
        """
        found: list[list[Any]] = json.loads(zlib.decompress(self.packed))
        return found
