"""Server decision: the values that a commit determines for a server."""

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
from gitboot.model.boot_image import Checksums, ConfigFrom, Signature
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
    """The decisions of a commit for all servers and for unknown machines."""

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
    dated: tuple[DatedProblem, ...]  # problems that depend on the time

    def problems_at(self, now: datetime) -> tuple[Problem, ...]:
        """Return the problems at a time, sorted."""
        return tuple(sorted((*self.warnings, *find_problems_at(self.dated, now))))

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(self.networks.values())


def check_acceptable(decisions: Decisions, fleet: FleetSpec, now: datetime) -> None:
    """Raise `InvalidRepository` if an instance cannot accept a commit at a time.

    The commit has an error of `TOLERATED_CODES`, or an error that depends on the time. An instance that has accepted
    the commit earlier keeps it.
    """
    problems = decisions.problems_at(now)
    if any(problem.severity is Severity.ERROR for problem in problems):
        raise InvalidRepository(problems, fleet=fleet)


INSTALL_MODES: Final = (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)


def report_token(uuid: SystemUuid, provision: int, image: str) -> str:
    """Return the token with which an installer reports a server's provision number and image."""
    return offer_token(uuid, str(provision), image)


@lru_cache(maxsize=256)  # each plan and its boot files need the same tokens several times
def offer_token(*parts: str) -> Digest:
    """Return the digest that names an offer in paths, from the UUID of the machine and the parts of the offer."""
    return Digest(sha256("\0".join(parts).encode()).hexdigest())


@dataclass(frozen=True, kw_only=True, slots=True)
class FileProof:
    """Where an instance finds the signature of a file that a stream requires to be signed."""

    url: str  # as the image names the file
    signature: Signature | None  # of the file, or of the archive that contains the file
    checksums: Checksums | None  # the signed list; None: no list


@dataclass(frozen=True, kw_only=True, slots=True)
class BootFile:
    """A file that a machine fetches, and its URL for the machine."""

    url: str
    sha256: Digest
    size: int | None
    # the URL from which a mirror fetches it; None: not mirrored
    source: str | None = field(default=None, compare=False, metadata=OMITTED)
    # The required signature; None: no stream requires a signature. Digests of plans do not contain the proof, but two
    # files with different proofs differ, because a boot that requires a signature may be withheld.
    proof: FileProof | None = field(default=None, metadata=OMITTED)

    def without_proof(self) -> BootFile:
        return replace(self, proof=None) if self.proof is not None else self


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
    """Replace texts by their digests, so that the JSON contains no secrets."""
    return {name: Digest(sha256(text.encode()).hexdigest()) for name, text in texts.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class UserDataFiles:
    """Rendered user data: one file, or the files of a NoCloud folder."""

    format: str  # a format of a profile, such as Ignition/3.4
    files: Mapping[str, str] = field(metadata=OMITTED)  # by name, sorted
    digest: Digest = field(metadata=json_key("sha256"))  # the digest of the file, or of the folder's names and digests
    url: str  # the URL of the file, or of the folder with a slash at the end
    # Secrets that the system may fetch, by name: encrypted with age, as base64.
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
    # Boot scripts from templates that replace the built-in ones, by boot loader.
    entries: Mapping[str, str] = field(metadata=json_writer(_digest_entries))
    templates: Mapping[str, Digest]  # digests of the template files of this boot
    # how many times the installer boots from the network
    boots: int = field(default=1, metadata=UNLESS_DEFAULT)

    @property
    def direct(self) -> bool:
        """Whether the machine starts a uki or an iso, to which gitboot cannot pass kernel arguments."""
        if self.method is Method.PXE:
            return self.files.kernel is None
        return self.http_boot is not HttpBoot.LOADER

    @property
    def medium(self) -> str | None:
        """The URL of the image that the BMC inserts, or None for other methods."""
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
        """The uki of a direct boot, which UEFI boot loaders can also start, or None."""
        by_pxe = self.method is Method.PXE
        return self.files.uki if self.direct and (by_pxe or self.http_boot is HttpBoot.UKI) else None

    @property
    def shows_its_start(self) -> bool:
        """Whether the booted system fetches a URL that no other client fetches, which proves its start."""
        if self.user_data is None or self.direct:
            return self.asks_by_uuid
        folder = self.user_data.url.rpartition("/")[0]
        return all(folder in text for text in (*self.entries.values(), " ".join(self.kernel_arguments)))

    @property
    def may_ask_by_identity(self) -> bool:
        """Whether the image and the texts suggest that the system may find its user data by the machine's identity."""
        if self.config_from is ConfigFrom.SYSTEM_UUID or not (self.shows_its_start or self.reads_medium):
            return True
        user_data = self.user_data.files.values() if self.user_data is not None else ()
        texts = (*self.kernel_arguments, *self.entries.values(), *user_data)
        return any(mark in text for mark in _BY_IDENTITY for text in texts)

    def move_user_data(self, folder: str, *, token_change: tuple[str, str]) -> Boot:
        """Return the boot with its user data in another folder below the base URL.

        In all texts, the second token of ``token_change`` replaces the first, so that the installer reports with the
        second.
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
        """The kernel of a boot that is not direct. Rule R6 guarantees that it exists."""
        assert self.files.kernel is not None  # noqa: S101
        return self.files.kernel

    @property
    def http_boot_file(self) -> BootFile | None:
        """The file that firmware fetches for UEFI HTTP boot, or None for other methods."""
        return getattr(self.files, self.http_boot) if self.http_boot is not None else None

    @property
    def fetched_files(self) -> tuple[BootFile, ...]:
        """The files that a machine fetches: those that its method starts, and those with a URL in the texts."""
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


# Parts of URLs of user data that a system finds by UUID or by a query: see `gitboot.render.emulated_apis`.
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
    provision: int  # the wanted number
    attempts: int = field(default=1, metadata=UNLESS_DEFAULT)  # the number of permitted attempts
    # The event that gitboot waits for before the first attempt.
    wait_for: PolicyWait = field(default=PolicyWait.NONE, metadata=UNLESS_DEFAULT)


def is_within(at: datetime, start: datetime | None, end: datetime | None) -> bool:
    """Return whether a time is in the window [start, end). A bound that is None does not limit the window."""
    return (start is None or start <= at) and (end is None or at < end)


@dataclass(frozen=True, kw_only=True, slots=True)
class MaintenanceDecision:
    """The boot of a server under a maintenance, in the window [start, end)."""

    name: str
    start: datetime | None
    end: datetime | None
    priority: int
    network_boot: NetworkBoot  # Always or Once
    boot: Boot | None  # None: the method of the profile is Disk
    override: OverrideMode
    run: int
    power: MaintenancePower
    max_unavailable: str
    # "Site", or the key of a label. None: the limit counts all selected servers.
    max_unavailable_per: str | None = field(default=None, metadata=UNLESS_DEFAULT)

    def is_active(self, at: datetime) -> bool:
        return is_within(at, self.start, self.end)

    def find_overlap(self, other: MaintenanceDecision) -> tuple[datetime | None, datetime | None] | None:
        """Return the window [start, end) in which both maintenances are active, or None if they do not overlap."""
        start = max((each for each in (self.start, other.start) if each is not None), default=None)
        end = min((each for each in (self.end, other.end) if each is not None), default=None)
        return (start, end) if start is None or end is None or start < end else None


class WithheldBoot(NamedTuple):
    """An install boot that a newer commit does not offer, in the window [start, end)."""

    maintenance: str | None  # None: the policy's boot
    start: datetime | None  # None: no start
    end: datetime | None  # None: no end
    takes_image_back: bool  # whether the newer commit offers another image, or no boot, in this window
    by: str  # the revision of the newer commit

    def is_active(self, at: datetime) -> bool:
        return is_within(at, self.start, self.end)


class CopySettings(NamedTuple):
    """The boots that copies of the boot files may serve without a record of the fetch."""

    one_time_boots: bool = False  # whether copies serve one-time boots
    late_ends: bool = False  # whether boot loaders get a maintenance even if they cannot ask the endpoint for its end
    ipxe_https: bool = False  # whether iPXE can use HTTPS to ask an endpoint

    def facts(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, with the field names of `spec.serving`."""
        return {
            **({"oneTimeBoots": "Copies"} if self.one_time_boots else {}),
            **({"lateEnds": "Accept"} if self.late_ends else {}),
            **({"ipxeHttps": True} if self.ipxe_https else {}),
        }


DEFAULT_COPY_SETTINGS: Final = CopySettings()  # the settings of a Fleet without settings


def maintenances_facts(maintenances: Iterable[MaintenanceDecision]) -> list[dict[str, Any]]:
    """Return maintenances as JSON values, with start and end in an object `window`."""
    found = []
    for each in map(to_json_value, maintenances):
        window = {bound: each.pop(bound) for bound in ("start", "end")}
        found.append({"name": each.pop("name"), "window": window, **each})
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The decision of a commit for a server: its possible boots, and the windows of the boots."""

    server: str
    uuid: SystemUuid
    macs: tuple[MacAddress, ...]  # the addresses of interfaces from which the machine may boot
    architecture: Architecture
    firmware: Firmware
    lifecycle: Lifecycle
    restrict: bool  # whether each lookup gets 404 while the server boots its disk
    base_url: str = field(metadata=json_key("baseURL"))
    provision: int  # the provision number of the document
    policy: PolicyDecision | None
    # sorted by name
    maintenances: tuple[MaintenanceDecision, ...] = field(metadata=json_writer(maintenances_facts))
    # The provision number that Git declares as installed, if the Fleet accepts this evidence.
    declared: int | None = field(default=None, metadata=UNLESS_DEFAULT)
    serial: str | None = field(default=None, metadata=UNLESS_DEFAULT)  # for lookups of boot loaders
    # The UUID that the machine had before its board was replaced.
    replaces: SystemUuid | None = field(default=None, metadata=UNLESS_DEFAULT)
    # whether all install boots are stopped
    stopped: bool = field(default=False, metadata=UNLESS_DEFAULT)
    # For copies: the URL of the endpoint that serves one-time boots. None: no endpoint is named.
    endpoint: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    # How boot loaders start the disk: Exit, Sanboot or a path. None: the default.
    local_disk: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    copies: CopySettings = field(
        default=DEFAULT_COPY_SETTINGS, metadata=json_writer(CopySettings.facts, unless_default=True)
    )
    # Install boots that newer commits do not offer. They depend on other commits, so the digest does not include them.
    withheld: tuple[WithheldBoot, ...] = field(default=(), metadata=OMITTED)
    # computed on first use
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False, metadata=OMITTED)

    @property
    def digest(self) -> Digest:
        """The digest of the decision. Other processes receive it together with the decision."""
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

    @property
    def proofs(self) -> tuple[FileProof | None, ...]:
        """The proofs of the files of all boots, which are not part of the digest."""
        return tuple(file.proof for boot in self.boots for file in boot.files.all())

    def find_withheld_files(self, is_withheld: Callable[[BootFile], bool]) -> frozenset[BootFile]:
        """Return the boot files that are withheld."""
        return frozenset(file for boot in self.boots for file in boot.fetched_files if is_withheld(file))

    @property
    def token(self) -> Digest | None:
        """The token of the wanted one-time installation, for fetches and reports, or None without such an
        installation.
        """
        boot = self.installation
        return Digest(report_token(self.uuid, self.provision, boot.image)) if boot is not None else None

    @property
    def installation(self) -> Boot | None:
        """The one-time install boot of the policy, or None."""
        return self.policy.boot if self.policy is not None and self.policy.network_boot in INSTALL_MODES else None

    def data_folder(self, token: Digest) -> str | None:
        """Return the folder below the base URL that contains only the user data of this offer."""
        return f"v1/boot/{self.macs[0]}/data/{token}" if self.macs else None


class OverrideTarget(StrEnum):
    """Values of ``BootSourceOverrideTarget`` of a Redfish ComputerSystem that gitboot sets."""

    UEFI_HTTP = "UefiHttp"
    PXE = "Pxe"
    HDD = "Hdd"
    CD = "Cd"
    USB_CD = "UsbCd"  # some BMCs boot a virtual CD only with this value
    NONE = "None"


class OverrideEnabled(StrEnum):
    """Values of ``BootSourceOverrideEnabled`` of a Redfish ComputerSystem."""

    DISABLED = "Disabled"
    ONCE = "Once"
    CONTINUOUS = "Continuous"


class Nic(Struct, frozen=True, kw_only=True):
    """A network interface with its MAC address and IP addresses."""

    mac: MacAddress
    addresses: tuple[str, ...]  # without the prefix length
    boots: bool


class Host(Struct, frozen=True, kw_only=True):
    """The network interfaces and the site of a server."""

    server: str
    lifecycle: Lifecycle
    site: str | None
    nics: tuple[Nic, ...]  # in the document's order
    loader: Loader | None = None  # the boot loader that DHCP names; None: the default

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
    """Return the MAC addresses of interfaces from which the machine may not boot, and which the decision lacks."""
    return tuple(nic.mac for nic in host.nics if not nic.boots)


class FieldSources(Struct, frozen=True, kw_only=True):
    """The documents that set a server's fields, for display. These documents depend only on the commit."""

    stream: str | None  # the stream of the policy
    # The percentage at which the stream's rollout includes the server; None: included already, or no rollout.
    joins: int | None
    kept: str | None  # the pin or hold that determines the image
    packed: bytes  # the compressed `lines`

    @property
    def lines(self) -> list[list[Any]]:
        """The lines: field, value, rule, reason, maintenance, document, place in the document.

        The place is a line number in the server's own document, and a JSON pointer in other documents. Document and
        place are None if a rule adds the field.
        """
        found: list[list[Any]] = json.loads(zlib.decompress(self.packed))
        return found
