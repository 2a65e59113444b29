"""Server decision: the values that describe what a commit decides for a server."""

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
    """The decisions of a commit for every server, and for unknown machines."""

    revision: str
    base_url: str
    outputs: frozenset[Output]
    evidence: Evidence
    servers: Mapping[str, Decision]  # by name, sorted
    networks: Mapping[str, Host]  # by server, in the order of `servers`
    sites: Mapping[str, str]  # name -> base URL, in the document's order
    unknown: Mapping[Architecture, Boot] | None  # None: no profile for unknown machines
    unknown_not_found: bool  # whether unknown machines get 404
    warnings: tuple[Problem, ...]
    dated: tuple[DatedProblem, ...]  # they depend on the time

    def problems_at(self, now: datetime) -> tuple[Problem, ...]:
        """Return the problems at a time, sorted."""
        return tuple(sorted((*self.warnings, *find_problems_at(self.dated, now))))

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(self.networks.values())


def check_acceptable(decisions: Decisions, fleet: FleetSpec, now: datetime) -> None:
    """Raise `InvalidRepository` if a commit cannot be accepted at a time.

    The commit then has an error of `TOLERATED_CODES`, or an error that depends on the time. An instance that accepted
    the commit before keeps it.
    """
    problems = decisions.problems_at(now)
    if any(problem.severity is Severity.ERROR for problem in problems):
        raise InvalidRepository(problems, fleet=fleet)


INSTALL_MODES: Final = (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)


def report_token(uuid: SystemUuid, provision: int, image: str) -> str:
    """Return the token with which an installer reports a server's provision number and image."""
    return offer_token(uuid, str(provision), image)


@lru_cache(maxsize=256)  # planning and rendering a server needs the same tokens several times
def offer_token(*parts: str) -> Digest:
    """Return the digest that names an offer in paths, from the UUID of the machine and the parts of the offer."""
    return Digest(sha256("\0".join(parts).encode()).hexdigest())


@dataclass(frozen=True, kw_only=True, slots=True)
class BootFile:
    """A file that a machine fetches, and its URL for the machine."""

    url: str
    sha256: Digest
    size: int | None
    # the URL from which a mirror fetches it; None: not mirrored
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
    """Return digests in place of texts, so JSON contains no secrets."""
    return {name: Digest(sha256(text.encode()).hexdigest()) for name, text in texts.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class UserDataFiles:
    """Rendered user data: one file, or the files of a NoCloud folder."""

    format: str  # as in the profile, such as Ignition/3.4
    files: Mapping[str, str] = field(metadata=OMITTED)  # by name, sorted
    digest: Digest = field(metadata=json_key("sha256"))  # of the file, or of the folder's names and digests
    url: str  # of the file, or of the folder with a slash at the end
    # by name: secrets that the system may fetch, encrypted with age, as base64
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
    """A completely resolved boot from the network."""

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
    # by loader: boot scripts from templates, in place of the built-in ones
    entries: Mapping[str, str] = field(metadata=json_writer(_digest_entries))
    templates: Mapping[str, Digest]  # digests of the template files of this boot
    # how many times the installer boots from the network
    boots: int = field(default=1, metadata=UNLESS_DEFAULT)

    @property
    def direct(self) -> bool:
        """Whether it starts a uki or an iso, which get no kernel arguments."""
        if self.method is Method.PXE:
            return self.files.kernel is None
        return self.http_boot is not HttpBoot.LOADER

    @property
    def medium(self) -> str | None:
        """The URL of the image that the BMC inserts. None: another method."""
        return self.files.iso.url if self.method is Method.VIRTUAL_MEDIA and self.files.iso is not None else None

    @property
    def reads_medium(self) -> bool:
        """Whether the system reads its user data from a second medium."""
        return self.medium is not None and self.config_from is ConfigFrom.MEDIUM and self.user_data is not None

    @property
    def asks_by_uuid(self) -> bool:
        """Whether the system finds its user data by its UUID alone."""
        return self.direct and self.config_from is ConfigFrom.SYSTEM_UUID

    @property
    def direct_uki(self) -> BootFile | None:
        """The uki of a direct boot, which UEFI boot loaders can start, too. None: an iso, or not a direct boot."""
        by_pxe = self.method is Method.PXE
        return self.files.uki if self.direct and (by_pxe or self.http_boot is HttpBoot.UKI) else None

    @property
    def shows_its_start(self) -> bool:
        """Whether the booted system fetches a URL that no other client fetches."""
        if self.user_data is None or self.direct:
            return self.asks_by_uuid
        folder = self.user_data.url.rpartition("/")[0]
        return all(folder in text for text in (*self.entries.values(), " ".join(self.kernel_arguments)))

    @property
    def may_ask_by_identity(self) -> bool:
        """Whether the system may find its user data by the machine's identity, by its image and texts."""
        if self.config_from is ConfigFrom.SYSTEM_UUID or not (self.shows_its_start or self.reads_medium):
            return True
        user_data = self.user_data.files.values() if self.user_data is not None else ()
        texts = (*self.kernel_arguments, *self.entries.values(), *user_data)
        return any(mark in text for mark in _BY_IDENTITY for text in texts)

    def move_user_data(self, folder: str, *, token_change: tuple[str, str]) -> Boot:
        """Return the boot with its user data in another folder below the base URL.

        In all texts, the second token replaces the first one, so the installer reports with the second.
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
        """The kernel of a boot that is not direct. Rule R6 guarantees it."""
        assert self.files.kernel is not None  # noqa: S101
        return self.files.kernel

    @property
    def http_boot_file(self) -> BootFile | None:
        """The file that firmware fetches for UEFI HTTP boot. None: another method."""
        return getattr(self.files, self.http_boot) if self.http_boot is not None else None

    @property
    def fetched_files(self) -> tuple[BootFile, ...]:
        """The files that a machine fetches: those that its method starts, and those with a URL in the boot's texts."""
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


# Parts of URLs of user data that a system finds by UUID or by a query: see `render.aliases`.
_BY_IDENTITY: Final = ("/ignition/", "/ignition?", "/cloud?", "/generic?", "/nocloud/", "/user-data/")


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyDecision:
    """The boot of a server under its policy."""

    policy: str
    network_boot: NetworkBoot
    boot: Boot | None  # None: the profile's method is Disk
    override: OverrideMode
    disk_boot: DiskBoot
    power: PolicyPower
    provision: int  # the number wanted
    attempts: int = field(default=1, metadata=UNLESS_DEFAULT)  # the number of attempts that are allowed
    # what gitboot waits for before the first attempt
    wait_for: PolicyWait = field(default=PolicyWait.NONE, metadata=UNLESS_DEFAULT)


def is_within(at: datetime, start: datetime | None, end: datetime | None) -> bool:
    """Return whether a time is in the window [start, end). None: no bound."""
    return (start is None or start <= at) and (end is None or at < end)


@dataclass(frozen=True, kw_only=True, slots=True)
class MaintenanceDecision:
    """The boot of a server under a maintenance, in the window [start, end)."""

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
    # "Site", or the key of a label; None: of all selected servers
    max_unavailable_per: str | None = field(default=None, metadata=UNLESS_DEFAULT)

    def is_active(self, at: datetime) -> bool:
        return is_within(at, self.start, self.end)

    def find_overlap(self, other: MaintenanceDecision) -> tuple[datetime | None, datetime | None] | None:
        """Return the window [start, end) in which both are active. None: they do not overlap."""
        start = max((each for each in (self.start, other.start) if each is not None), default=None)
        end = min((each for each in (self.end, other.end) if each is not None), default=None)
        return (start, end) if start is None or end is None or start < end else None


class WithheldBoot(NamedTuple):
    """An install boot that a newer commit does not offer, in the window [start, end)."""

    maintenance: str | None  # None: the policy's boot
    start: datetime | None  # None: no start
    end: datetime | None  # None: no end
    takes_image_back: bool  # whether the newer commit offers another image or no boot in this window
    by: str  # the newer commit

    def is_active(self, at: datetime) -> bool:
        return is_within(at, self.start, self.end)


class CopySettings(NamedTuple):
    """What copies of the boot files may serve without a record of the fetch."""

    one_time_boots: bool = False  # whether copies serve one-time boots
    late_ends: bool = False  # whether loaders get a maintenance if they cannot query the endpoint for its end
    ipxe_https: bool = False  # whether iPXE can query an endpoint with HTTPS

    def facts(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, with the names of `spec.serving`."""
        return {
            **({"oneTimeBoots": "Copies"} if self.one_time_boots else {}),
            **({"lateEnds": "Accept"} if self.late_ends else {}),
            **({"ipxeHttps": True} if self.ipxe_https else {}),
        }


DEFAULT_COPY_SETTINGS: Final = CopySettings()  # of a Fleet without settings


def maintenances_facts(maintenances: Iterable[MaintenanceDecision]) -> list[dict[str, Any]]:
    """Return maintenances as JSON values. Start and end become an object `window`."""
    found = []
    for each in map(to_json_value, maintenances):
        window = {bound: each.pop(bound) for bound in ("start", "end")}
        found.append({"name": each.pop("name"), "window": window, **each})
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The decision of a commit for a server: its possible boots, and their windows."""

    server: str
    uuid: SystemUuid
    macs: tuple[MacAddress, ...]  # of interfaces that may boot
    architecture: Architecture
    firmware: Firmware
    lifecycle: Lifecycle
    restrict: bool  # whether each lookup of a server that boots its disk gets 404
    base_url: str = field(metadata=json_key("baseURL"))
    provision: int  # the provision number of the document
    policy: PolicyDecision | None
    # sorted by name
    maintenances: tuple[MaintenanceDecision, ...] = field(metadata=json_writer(maintenances_facts))
    # the provision number that Git declares as installed, if the Fleet uses this evidence
    declared: int | None = field(default=None, metadata=UNLESS_DEFAULT)
    serial: str | None = field(default=None, metadata=UNLESS_DEFAULT)  # for lookups of boot loaders
    # its UUID before its board was replaced
    replaces: SystemUuid | None = field(default=None, metadata=UNLESS_DEFAULT)
    # whether all install boots are stopped
    stopped: bool = field(default=False, metadata=UNLESS_DEFAULT)
    # the URL of the endpoint that serves one-time boots, for copies; None: no endpoint is named
    endpoint: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    # how boot loaders start its disk: Exit, Sanboot, a path; None: the default way
    local_disk: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    copies: CopySettings = field(
        default=DEFAULT_COPY_SETTINGS, metadata=json_writer(CopySettings.facts, unless_default=True)
    )
    # Install boots that newer commits do not offer. They are not in the digest, because they depend on other commits.
    withheld: tuple[WithheldBoot, ...] = field(default=(), metadata=OMITTED)
    # computed on first use
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False, metadata=OMITTED)

    @property
    def digest(self) -> Digest:
        """A digest of the decision, which other processes receive together with the decision."""
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
        """Return the files of its boots that are withheld."""
        return frozenset(file for boot in self.boots for file in boot.fetched_files if is_withheld(file))

    @property
    def token(self) -> Digest | None:
        """The token of the wanted one-time installation, for fetches and reports.

        None: there is no such installation.
        """
        boot = self.installation
        return Digest(report_token(self.uuid, self.provision, boot.image)) if boot is not None else None

    @property
    def installation(self) -> Boot | None:
        """The one-time install boot of its policy. None: the policy has none."""
        return self.policy.boot if self.policy is not None and self.policy.network_boot in INSTALL_MODES else None

    def data_folder(self, token: Digest) -> str | None:
        """Return the folder below the base URL that has the user data of this offer alone."""
        return f"v1/boot/{self.macs[0]}/data/{token}" if self.macs else None


class OverrideTarget(StrEnum):
    """Values of ``BootSourceOverrideTarget`` of a Redfish ComputerSystem that gitboot sets."""

    UEFI_HTTP = "UefiHttp"
    PXE = "Pxe"
    HDD = "Hdd"
    CD = "Cd"
    USB_CD = "UsbCd"  # some BMCs boot a virtual CD with this value
    NONE = "None"


class OverrideEnabled(StrEnum):
    """Values of ``BootSourceOverrideEnabled`` of a Redfish ComputerSystem."""

    DISABLED = "Disabled"
    ONCE = "Once"
    CONTINUOUS = "Continuous"


class Nic(Struct, frozen=True, kw_only=True):
    """A network interface with its MAC address and IP addresses."""

    mac: MacAddress
    addresses: tuple[str, ...]  # without prefix lengths
    boots: bool


class Host(Struct, frozen=True, kw_only=True):
    """The network interfaces and the site of a server."""

    server: str
    lifecycle: Lifecycle
    site: str | None
    nics: tuple[Nic, ...]  # in the document's order
    loader: Loader | None = None  # that DHCP names; None: the default one

    @property
    def addresses(self) -> tuple[str, ...]:
        """The IP addresses of all interfaces, each once. The interfaces of a bond share their addresses."""
        return tuple(dict.fromkeys(address for nic in self.nics for address in nic.addresses))


def make_host(server: Server, site: str | None, loader: Loader | None) -> Host:
    """Return the network interfaces and the site of a server."""
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
    """Return the MAC addresses of interfaces that the machine may not boot from. Its decision does not have them."""
    return tuple(nic.mac for nic in host.nics if not nic.boots)


class FieldSources(Struct, frozen=True, kw_only=True):
    """The documents that set the fields of a server. They depend on the commit alone, and are for display."""

    stream: str | None  # of its policy
    joins: int | None  # the percentage at which the stream's rollout reaches it; None: already reached, or no rollout
    kept: str | None  # the pin or hold that sets its image
    packed: bytes  # the compressed lines

    @property
    def lines(self) -> list[list[Any]]:
        """The lines: field, value, rule, reason, maintenance, document, place in the document.

        The place is a line number in the server's own document, and a JSON pointer in other documents. Document and
        place are None if a rule adds the field.
        """
        found: list[list[Any]] = json.loads(zlib.decompress(self.packed))
        return found
