"""Server decision: everything that a commit determines about how a server boots."""

from __future__ import annotations

import json
import re
import zlib
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from hashlib import sha256
from typing import Any, Final, NamedTuple

from msgspec import Struct

from gitboot.errors import InvalidRepository
from gitboot.jsonio import (
    OMITTED,
    UNLESS_DEFAULT,
    Digest,
    compute_digest,
    format_instant,
    json_key,
    json_writer,
    to_json_value,
)
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
from gitboot.text import format_suggestion


class Decisions(Struct, frozen=True, kw_only=True):
    """The boot decisions that gitboot made from a commit, for all servers and for unknown machines."""

    revision: str
    base_url: str
    outputs: frozenset[Output]
    evidence: Evidence
    servers: Mapping[str, Decision]  # sorted by name
    networks: Mapping[str, Host]  # by server name, in the order of `servers`
    sites: Mapping[str, str]  # base URLs by site name, in the order of the Fleet document
    unknown: Mapping[Architecture, Boot] | None  # None: the Fleet names no profile for unknown machines
    unknown_not_found: bool  # whether unknown machines get a 404 response
    warnings: tuple[Problem, ...]
    dated: tuple[DatedProblem, ...]  # the problems that depend on the time

    def find_problems(self, now: datetime) -> tuple[Problem, ...]:
        """Return the problems that exist at the time ``now``, sorted."""
        return tuple(sorted((*self.warnings, *find_problems_at(self.dated, now))))

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(self.networks.values())


def require_no_errors(decisions: Decisions, fleet: FleetSpec, now: datetime) -> None:
    """Raise `InvalidRepository` if an instance that has not accepted a commit yet cannot accept it at the time ``now``.

    The reason is an error with one of the `TOLERATED_CODES`, or an error that depends on the time. An instance that has
    already accepted the commit keeps the commit.
    """
    problems = decisions.find_problems(now)
    if any(problem.severity is Severity.ERROR for problem in problems):
        raise InvalidRepository(problems, fleet=fleet)


INSTALL_MODES: Final = (NetworkBoot.ONCE, NetworkBoot.ON_IMAGE_CHANGE)


def report_token(uuid: SystemUuid, provision: int, image: str) -> str:
    """Return the token with which an installer reports on the installation of ``image`` with this provision number."""
    return offer_token(uuid, str(provision), image)


@lru_cache(maxsize=256)  # the same tokens are needed several times for a plan and its boot files
def offer_token(*parts: str) -> Digest:
    """Return the digest that identifies an offer in paths, computed from the machine's UUID and other parts."""
    return Digest(sha256("\0".join(parts).encode()).hexdigest())


TOKEN_LAYERS: Final = 2  # how many times a template may have encoded a token in base64
_BASE64: Final = re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{86,}")  # a token needs 86 characters


def replace_token(text: str, old: str, new: str, layers: int = TOKEN_LAYERS) -> str:
    """Replace a token in a text and in the base64 that the text contains."""
    if old == new:
        return text
    text = text.replace(old, new)
    return _BASE64.sub(lambda found: _replace_token_in_base64(found[0], old, new, layers - 1), text) if layers else text


def _replace_token_in_base64(text: str, old: str, new: str, layers: int) -> str:
    for start in range(4):  # characters before the base64 may look like base64, too
        data = text[start:]
        decoded = a2b_base64(data + "A" * (-len(data) % 4)).decode("latin-1")
        if (replaced := replace_token(decoded, old, new, layers)) != decoded:
            return text[:start] + b2a_base64(replaced.encode("latin-1"), newline=False).decode()[: len(data)]
    return text


@dataclass(frozen=True, kw_only=True, slots=True)
class FileProof:
    """The URLs from which an instance reads the signature of a file, if a stream requires a signature."""

    url: str  # as the image names the file
    signature: Signature | None  # of the file, or of the archive that contains the file
    checksums: Checksums | None  # the signed list; None: no list


@dataclass(frozen=True, kw_only=True, slots=True)
class BootFile:
    """A file that a machine fetches, with the URL from which the machine fetches it."""

    url: str
    sha256: Digest | None  # None: a signature for iPXE, whose digest no document states
    size: int | None
    # The URL from which the mirror downloads the file. None: the file is not mirrored.
    source: str | None = field(default=None, compare=False, metadata=OMITTED)
    # The required signature; None: no stream requires a signature. Digests of plans do not contain the proof, but two
    # files with different proofs differ, because a boot that requires a signature may be withheld.
    proof: FileProof | None = field(default=None, metadata=OMITTED)

    def without_proof(self) -> BootFile:
        return replace(self, proof=None) if self.proof is not None else self


@dataclass(frozen=True, kw_only=True, slots=True)
class BootFiles:
    """The files of an image for one architecture."""

    kernel: BootFile | None = field(default=None, metadata=UNLESS_DEFAULT)
    initrds: tuple[BootFile, ...] = field(default=(), metadata=UNLESS_DEFAULT)
    rootfs: BootFile | None = field(default=None, metadata=UNLESS_DEFAULT)
    uki: BootFile | None = field(default=None, metadata=UNLESS_DEFAULT)
    iso: BootFile | None = field(default=None, metadata=UNLESS_DEFAULT)
    loader: BootFile | None = field(default=None, metadata=UNLESS_DEFAULT)
    # The URLs of the signatures that iPXE verifies, by the URL of the signed file. Empty if the Fleet has no output
    # with boot scripts for iPXE.
    loader_signatures: Mapping[str, str] = field(default_factory=dict, metadata=UNLESS_DEFAULT)

    def all(self) -> tuple[BootFile, ...]:
        single = (self.kernel, *self.initrds, self.rootfs, self.uki, self.iso, self.loader)
        return tuple(file for file in single if file is not None)


def _digest_texts(texts: Mapping[str, str]) -> dict[str, Digest]:
    """Replace each text with the text's digest, so that the JSON contains no secrets."""
    return {name: Digest(sha256(text.encode()).hexdigest()) for name, text in texts.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class UserDataFiles:
    """Rendered user data: one file, or the files of a NoCloud folder."""

    format: str  # as in a profile, such as Ignition/3.4
    files: Mapping[str, str] = field(metadata=OMITTED)  # sorted by name
    digest: Digest = field(metadata=json_key("sha256"))  # of the file, or of the names and digests in the folder
    url: str  # of the file, or of the folder, which ends with a slash
    # The secrets that the system may fetch, by name. They are encrypted with age and encoded in base64.
    secrets: Mapping[str, str] = field(default_factory=dict, metadata=json_writer(_digest_texts, unless_default=True))

    @property
    def folder(self) -> str:
        return f"o/{self.digest}"

    def without_secrets(self) -> UserDataFiles:
        return replace(self, secrets={}) if self.secrets else self

    def make_content_fields(self) -> dict[str, Any]:
        return {name: value for name, value in to_json_value(self).items() if name != "url"}


# Parts of the URLs at which systems find user data by UUID or by query. See `gitboot.render.emulated_apis`.
_BY_IDENTITY: Final = ("/ignition/", "/ignition?", "/cloud?", "/generic?", "/nocloud/", "/user-data/")


@dataclass(frozen=True, kw_only=True, slots=True)
class Boot:
    """A network boot, including all of its files, arguments and texts."""

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
    node_taints: tuple[Taint, ...] = field(metadata=json_writer(lambda taints: list(map(str, taints))))
    # Boot scripts from templates, which replace the built-in ones, by boot loader.
    entries: Mapping[str, str] = field(
        metadata=json_writer(lambda entries: {loader: compute_digest(text) for loader, text in entries.items()})
    )
    templates: Mapping[str, Digest]  # the digests of this boot's template files, by path
    # How many times the installer boots from the network.
    boots: int = field(default=1, metadata=UNLESS_DEFAULT)
    # Whether the loader that boots the server verifies no signature. Then a missing signature withholds only the boot
    # scripts for iPXE.
    ignores_signatures: bool = field(default=False, metadata=UNLESS_DEFAULT)

    @property
    def is_direct(self) -> bool:
        """Return whether the machine boots a UKI or an ISO, to which gitboot cannot pass kernel arguments."""
        return self.files.kernel is None if self.method is Method.PXE else self.http_boot is not HttpBoot.LOADER

    @property
    def medium(self) -> str | None:
        """The URL of the ISO that the BMC inserts as a virtual medium, or None for other methods."""
        return self.files.iso.url if self.method is Method.VIRTUAL_MEDIA and self.files.iso is not None else None

    @property
    def reads_medium(self) -> bool:
        """Return whether the system reads its user data from a second virtual medium."""
        return self.medium is not None and self.config_from is ConfigFrom.MEDIUM and self.user_data is not None

    @property
    def fetches_by_uuid(self) -> bool:
        """Return whether the system finds its user data only by its UUID."""
        return self.is_direct and self.config_from is ConfigFrom.SYSTEM_UUID

    @property
    def direct_uki(self) -> BootFile | None:
        """The UKI of a direct boot, which UEFI boot loaders can also start, or None if there is no UKI."""
        is_pxe = self.method is Method.PXE
        return self.files.uki if self.is_direct and (is_pxe or self.http_boot is HttpBoot.UKI) else None

    @property
    def proves_start(self) -> bool:
        """Return whether the booted system proves its start by fetching a URL that no other client knows."""
        if self.user_data is None or self.is_direct:
            return self.fetches_by_uuid
        folder = self.user_data.url.rpartition("/")[0]
        return all(folder in text for text in (*self.entries.values(), " ".join(self.kernel_arguments)))

    @property
    def may_fetch_by_identity(self) -> bool:
        """Return whether the system may find its user data by identity, judging by the image and the texts."""
        if self.config_from is ConfigFrom.SYSTEM_UUID or not (self.proves_start or self.reads_medium):
            return True
        user_data = self.user_data.files.values() if self.user_data is not None else ()
        texts = (*self.kernel_arguments, *self.entries.values(), *user_data)
        return any(mark in text for mark in _BY_IDENTITY for text in texts)

    def move_user_data(self, folder: str, *, token_change: tuple[str, str]) -> Boot:
        """Return the boot with its user data moved to another folder below the base URL.

        ``token_change`` is the old and the new token. The new token replaces the old one in the scripts and the
        user data, so that the installer uses it in its reports.
        """
        user_data = self.user_data
        old_path = f"/{user_data.folder}/" if user_data is not None and not self.fetches_by_uuid else None

        def replace_parts(text: str) -> str:
            return replace_token(text.replace(old_path, f"/{folder}/") if old_path is not None else text, *token_change)

        return replace(
            self,
            kernel_arguments=tuple(map(replace_parts, self.kernel_arguments)),
            entries={loader: replace_parts(text) for loader, text in self.entries.items()},
            user_data=replace(user_data, url=replace_parts(user_data.url)) if user_data is not None else None,
        )

    @property
    def loaded_kernel(self) -> BootFile:
        """The kernel of a boot that is not direct. Rule R6 guarantees that such a boot has a kernel."""
        assert self.files.kernel is not None  # noqa: S101
        return self.files.kernel

    @property
    def http_boot_file(self) -> BootFile | None:
        """The file that firmware fetches by UEFI HTTP boot, or None for other methods."""
        return getattr(self.files, self.http_boot) if self.http_boot is not None else None

    @property
    def verified_programs(self) -> tuple[BootFile, ...]:
        """The EFI programs that start only with a trusted signature if Secure Boot is on, except ISO files."""
        loader = self.files.loader if self.http_boot is HttpBoot.LOADER else None
        programs = (self.direct_uki,) if self.is_direct else (loader, self.files.kernel)
        return tuple(program for program in programs if program is not None)

    @property
    def fetched_files(self) -> tuple[BootFile, ...]:
        """The files that a machine fetches, because its boot method needs them or because a text contains their URL."""
        files = self.files
        started: tuple[BootFile | None, ...] = (self.direct_uki or files.iso,)
        if not self.is_direct:
            loader = files.loader if self.http_boot is HttpBoot.LOADER else None
            started = (files.kernel, *files.initrds, loader)
        user_data = self.user_data.files.values() if self.user_data is not None else ()
        texts = (*self.kernel_arguments, *self.entries.values(), *user_data)
        fetched = tuple(file for file in files.all() if file in started or any(file.url in text for text in texts))
        return (*fetched, *self.signature_files) if files.loader_signatures else fetched

    @property
    def required_files(self) -> tuple[BootFile, ...]:
        """The fetched files that the boot requires.

        If one is absent, gitboot withholds the whole boot, and not only the iPXE scripts.
        """
        ignored = self.signature_files if self.ignores_signatures else ()
        return tuple(file for file in self.fetched_files if file not in ignored)

    @property
    def signature_files(self) -> tuple[BootFile, ...]:
        """The signatures of the files that iPXE starts. Firmware and GRUB do not fetch signatures."""
        if self.http_boot not in (None, HttpBoot.LOADER) or self.medium is not None:
            return ()
        template, signatures = self.entries.get("ipxe"), self.files.loader_signatures
        if template is not None:
            urls = [url for url in signatures.values() if url in template]
        else:
            started = (self.direct_uki,) if self.is_direct else (self.files.kernel, *self.files.initrds)
            urls = [signatures[file.url] for file in started if file is not None and file.url in signatures]
        return tuple(BootFile(url=url, sha256=None, size=None) for url in dict.fromkeys(urls))

    def lacks_files(self, absent_files: Collection[BootFile]) -> bool:
        """Return whether one of the files that the server's boot loader needs is absent."""
        return bool(absent_files) and any(file in absent_files for file in self.required_files)

    def lacks_ipxe_files(self, absent_files: Collection[BootFile]) -> bool:
        """Return whether a file is absent that only iPXE needs.

        Such a file is a signature that the server's loader ignores.
        """
        return self.ignores_signatures and any(file in absent_files for file in self.signature_files)


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyDecision:
    """The boot that a server gets from its policy."""

    policy: str
    network_boot: NetworkBoot
    boot: Boot | None  # None: the method of the profile is Disk
    override: OverrideMode
    disk_boot: DiskBoot
    power: PolicyPower
    provision: int  # the provision number that the document wants
    attempts: int = field(default=1, metadata=UNLESS_DEFAULT)  # how many attempts the Fleet permits
    # The event for which gitboot waits before the first attempt.
    wait_for: PolicyWait = field(default=PolicyWait.NONE, metadata=UNLESS_DEFAULT)


def is_in_window(at: datetime, start: datetime | None, end: datetime | None) -> bool:
    """Return whether a time is in the window [start, end).

    If ``start`` or ``end`` is None, the window has no such bound.
    """
    return (start is None or start <= at) and (end is None or at < end)


@dataclass(frozen=True, kw_only=True, slots=True)
class Preconditions:
    """The approval and the drain that a maintenance needs before gitboot resets a server or offers it the boot."""

    digest: Digest  # the digest that an approval names: of the Maintenance document and of the server's boot
    approval_file: str | None = field(default=None, metadata=UNLESS_DEFAULT)  # path of the file with approvals
    approval_url: str | None = field(default=None, metadata=json_key("approvalURL"))
    is_approved: bool = field(default=False, metadata=json_key("approved"))  # whether the file contains the digest
    drain_url: str | None = field(default=None, metadata=json_key("drainURL"))

    @property
    def approval_key(self) -> str:
        """The key of the approval from the URL. An approval of another digest, or from another URL, does not count."""
        return f"{self.digest} {self.approval_url}"

    @property
    def requirements(self) -> frozenset[str]:
        """The requirements as texts, for comparisons and messages."""
        requirements = set()
        if self.approval_file is not None:
            requirements.add(f"approval in the file {self.approval_file}")
        if self.approval_url is not None:
            requirements.add(f"approval from {self.approval_url}")
        if self.drain_url is not None:
            requirements.add(f"drain by {self.drain_url}")
        return frozenset(requirements)


NO_REQUIREMENTS: Final = frozenset[str]()


@dataclass(frozen=True, kw_only=True, slots=True)
class MaintenanceDecision:
    """The boot that a server gets from a maintenance in the window [start, end)."""

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
    # "Site" or a label key, if the limit applies to each group. None: it applies to all selected servers together.
    max_unavailable_per: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    before: Preconditions | None = field(default=None, metadata=UNLESS_DEFAULT)

    @property
    def requirements(self) -> frozenset[str]:
        return self.before.requirements if self.before is not None else NO_REQUIREMENTS

    @property
    def drain_key(self) -> str:
        """The key of the run for which a server is drained.

        If the run, the start or the URL changes, the server is drained again.
        """
        url = self.before.drain_url if self.before is not None else None
        return f"{self.run}/{format_instant(self.start) if self.start is not None else '-'}/{url}"

    def is_active(self, at: datetime) -> bool:
        return is_in_window(at, self.start, self.end)

    def find_overlap(self, other: MaintenanceDecision) -> tuple[datetime | None, datetime | None] | None:
        """Return the window [start, end) in which both maintenances are active, or None if there is no overlap."""
        start = max((bound for bound in (self.start, other.start) if bound is not None), default=None)
        end = min((bound for bound in (self.end, other.end) if bound is not None), default=None)
        return (start, end) if start is None or end is None or start < end else None


class WithheldBoot(NamedTuple):
    """An install boot that gitboot withholds in the window [start, end), because a newer commit does not offer it."""

    maintenance: str | None  # None: the policy's boot
    start: datetime | None  # None: the window has no start
    end: datetime | None  # None: the window has no end
    # Whether the newer commit offers another image or no boot in this window, or gives an identity to another server.
    takes_image_back: bool
    by: str  # the revision of the newer commit

    def is_active(self, at: datetime) -> bool:
        return is_in_window(at, self.start, self.end)


class CopySettings(NamedTuple):
    """The boots that copies of the boot files may serve, although copies cannot record a fetch."""

    one_time_boots: bool = False  # whether copies serve one-time boots
    late_ends: bool = False  # whether copies serve a maintenance to loaders that cannot request its end
    ipxe_https: bool = False  # whether iPXE can query an endpoint over HTTPS

    def facts(self) -> dict[str, Any]:
        """Return the settings that differ from the defaults, by their field names in `spec.serving`."""
        return {
            **({"oneTimeBoots": "Copies"} if self.one_time_boots else {}),
            **({"lateEnds": "Accept"} if self.late_ends else {}),
            **({"ipxeHttps": True} if self.ipxe_https else {}),
        }


DEFAULT_COPY_SETTINGS: Final = CopySettings()  # for a Fleet that sets none of them


def list_maintenance_fields(maintenances: Iterable[MaintenanceDecision]) -> list[dict[str, Any]]:
    """Convert maintenances to JSON values, with start and end in an object `window`."""
    converted = []
    for fields in map(to_json_value, maintenances):
        window = {bound: fields.pop(bound) for bound in ("start", "end")}
        converted.append({"name": fields.pop("name"), "window": window, **fields})
    return converted


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The decision that a commit makes for one server: the possible boots, and the windows in which they apply."""

    server: str
    uuid: SystemUuid
    macs: tuple[MacAddress, ...]  # of the interfaces from which the machine may boot
    architecture: Architecture
    firmware: Firmware
    lifecycle: Lifecycle
    restrict: bool  # whether lookups get a 404 response while the server boots its disk
    base_url: str = field(metadata=json_key("baseURL"))
    provision: int  # the provision number in the Server document
    policy: PolicyDecision | None
    # Sorted by name.
    maintenances: tuple[MaintenanceDecision, ...] = field(metadata=json_writer(list_maintenance_fields))
    # The provision number that an annotation declares as installed, if the Fleet accepts such evidence.
    declared: int | None = field(default=None, metadata=UNLESS_DEFAULT)
    serial: str | None = field(default=None, metadata=UNLESS_DEFAULT)  # for lookups by boot loaders
    # The machine's UUID before its board was replaced.
    replaces: SystemUuid | None = field(default=None, metadata=UNLESS_DEFAULT)
    # Whether the Fleet stops all install boots.
    stopped: bool = field(default=False, metadata=UNLESS_DEFAULT)
    # The URL of the endpoint that serves one-time boots, for use in copies. None: the Fleet names no endpoint.
    endpoint: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    # How boot loaders start the disk: Exit, Sanboot or a path. None: the boot loader's default.
    local_disk: str | None = field(default=None, metadata=UNLESS_DEFAULT)
    copies: CopySettings = field(
        default=DEFAULT_COPY_SETTINGS, metadata=json_writer(CopySettings.facts, unless_default=True)
    )
    # Install boots that newer commits do not offer. The digest omits them, because they depend on other commits.
    withheld: tuple[WithheldBoot, ...] = field(default=(), metadata=OMITTED)
    # Computed on first use.
    _digest: Digest | None = field(default=None, init=False, repr=False, compare=False, metadata=OMITTED)

    @property
    def digest(self) -> Digest:
        """The digest of the decision. The digest is computed once, and sent to other processes with the decision."""
        if (known := self._digest) is None:
            object.__setattr__(self, "_digest", known := compute_digest(to_json_value(self)))
        return known

    def with_digest(self) -> Decision:
        _ = self.digest
        return self

    @property
    def boots(self) -> tuple[Boot, ...]:
        policy_boot = self.policy.boot if self.policy is not None else None
        boots = (policy_boot, *(maintenance.boot for maintenance in self.maintenances))
        return tuple(boot for boot in boots if boot is not None)

    @property
    def proofs(self) -> tuple[FileProof | None, ...]:
        """The proofs for the files of all boots. They are not part of the decision's digest."""
        return tuple(file.proof for boot in self.boots for file in boot.files.all())

    def find_withheld_files(self, is_withheld: Callable[[BootFile], bool]) -> frozenset[BootFile]:
        """Return the files of all boots for which ``is_withheld`` is true."""
        return frozenset(file for boot in self.boots for file in boot.fetched_files if is_withheld(file))

    @property
    def token(self) -> Digest | None:
        """The token for the fetches and reports of the policy's one-time installation, or None if there is none."""
        boot = self.installation
        return Digest(report_token(self.uuid, self.provision, boot.image)) if boot is not None else None

    @property
    def installation(self) -> Boot | None:
        """The boot with which the policy installs the server once, or None if there is no such boot."""
        return self.policy.boot if self.policy is not None and self.policy.network_boot in INSTALL_MODES else None

    def data_folder(self, token: Digest) -> str | None:
        """Return the folder, relative to the base URL, that contains only the user data for this offer."""
        return f"v1/boot/{self.macs[0]}/data/{token}" if self.macs else None


class OverrideTarget(StrEnum):
    """The values that gitboot sets for ``BootSourceOverrideTarget`` in a Redfish ComputerSystem."""

    UEFI_HTTP = "UefiHttp"
    PXE = "Pxe"
    HDD = "Hdd"
    CD = "Cd"
    USB_CD = "UsbCd"  # some BMCs boot from a virtual CD only with this value
    NONE = "None"


class OverrideEnabled(StrEnum):
    """The values of ``BootSourceOverrideEnabled`` in a Redfish ComputerSystem."""

    DISABLED = "Disabled"
    ONCE = "Once"
    CONTINUOUS = "Continuous"


class Nic(Struct, frozen=True, kw_only=True):
    """A network interface with its MAC address and IP addresses."""

    mac: MacAddress
    addresses: tuple[str, ...]  # without prefix lengths
    boots: bool


class Host(Struct, frozen=True, kw_only=True):
    """The network interfaces, the site and the boot loader of a server."""

    server: str
    lifecycle: Lifecycle
    site: str | None
    nics: tuple[Nic, ...]  # in the order of the document
    loader: Loader | None = None  # the boot loader that DHCP offers; None: the default
    secure_boot: bool = False  # whether the firmware starts only signed programs

    @property
    def addresses(self) -> tuple[str, ...]:
        """The IP addresses of all interfaces, without duplicates. Interfaces of a bond share addresses."""
        return tuple(dict.fromkeys(address for nic in self.nics for address in nic.addresses))


def make_host(server: Server, site: str | None, loader: Loader | None, *, secure_boot: bool = False) -> Host:
    """Build the host of a server from the server's network interfaces, its site and its loader."""
    return Host(
        server=server.metadata.name,
        lifecycle=server.spec.lifecycle,
        site=site,
        loader=loader,
        secure_boot=secure_boot,
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
    """Return the MAC addresses of the interfaces from which the machine must not boot."""
    return tuple(nic.mac for nic in host.nics if not nic.boots)


class FieldSources(Struct, frozen=True, kw_only=True):
    """The documents that set the fields of a server's boot configuration, in the form shown to people."""

    stream: str | None  # the stream of the policy's profile
    # The percentage at which the rollout will reach the server. None: already reached, or no rollout.
    joins: int | None
    kept: str | None  # the pin or the hold that determines the image
    packed: bytes  # the compressed `lines`

    @property
    def lines(self) -> list[list[Any]]:
        """One line for each field, with the field, value, rule, reason, maintenance, document, and location in the
        document.

        The location is a line number in the server's own document, and a JSON pointer in other documents. The document
        and the location are None if a rule sets the value.
        """
        lines: list[list[Any]] = json.loads(zlib.decompress(self.packed))
        return lines


def suggest_server(text: str, servers: Mapping[str, Decision]) -> str:
    """Return a hint for the text that a user typed as the name of a server.

    The hint names the server whose UUID, MAC address or serial number is the text, or the server with a similar name.
    """
    typed = _normalize_identity(text)
    for name, decision in servers.items():
        if typed and typed in map(_normalize_identity, (decision.uuid, *decision.macs, decision.serial or "")):
            return f"this is the UUID, a MAC address or the serial number of {name}"
    return format_suggestion(text, servers, "`gitboot plan` lists the servers")


def _normalize_identity(text: str) -> str:
    return re.sub(r"[:.-]", "", text).lower()
