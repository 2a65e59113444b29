"""Fleet: what holds for every server of the repository."""

from enum import StrEnum
from typing import Final, Literal

from gitboot.errors import Orders
from gitboot.model.fields import (
    BaseUrl,
    Boolean,
    Document,
    Field,
    Integer,
    Ledger,
    LocalDisk,
    NameField,
    Network,
    Percent,
    Positive,
    Text,
    check,
    structure,
)
from gitboot.model.scalars import Malformed
from gitboot.model.selectors import Select
from gitboot.model.server import Loader
from gitboot.problems import Code


class Output(StrEnum):
    """What is published besides what every tree has."""

    IPXE = "ipxe"
    GRUB = "grub"
    PXELINUX = "pxelinux"
    UUID = "uuid"
    SERIAL = "serial"
    DHCP_DNSMASQ = "dhcp-dnsmasq"
    DHCP_KEA = "dhcp-kea"
    MATCHBOX = "matchbox"
    BSS = "bss"
    SMEE = "smee"
    PIXIECORE = "pixiecore"
    NOCLOUD = "nocloud"
    EC2 = "ec2"
    NETBOOT_XYZ = "netboot.xyz"
    FOREMAN = "foreman"
    INVENTORY = "inventory"
    MIRROR = "mirror"
    PAGES = "pages"


class Evidence(StrEnum):
    """What proves that a server was provisioned."""

    FETCHED = "Fetched"
    REPORTED = "Reported"
    PROGRESS = "Progress"
    DECLARED = "Declared"


@structure
class Site:
    """A nearer mirror; a server belongs to the first site that selects it."""

    name: NameField = Field(description="The site's name.")
    select: Select = Field(description="Which servers are there.")
    base_url: BaseUrl = Field(alias="baseURL", description="What files and assets are reached under from there.")
    endpoint: BaseUrl | None = Field(
        default=None,
        description="The URL of the endpoint that serves one-time boots there. Default: the Fleet's endpoint.",
    )
    ledger: Ledger | None = Field(
        default=None,
        description="The instance with this ledger acts for the site, with `gitboot run --site`. Default: none does.",
    )


@structure
class Hardware:
    """What holds for machines of one make; a server's own document wins, then the first that selects it and says it."""

    select: Select = Field(description="Which servers are of this make: by a label for the vendor, say.")
    local_disk: LocalDisk | None = Field(
        default=None,
        description="How loaders hand over to the local disk: Exit, Sanboot, NotFound, or the path of an EFI program "
        "on it. Default: what suits most machines.",
    )
    loader: Loader | None = Field(
        default=None, description="What DHCP names for them: iPXE or GRUB. Default: iPXE where it is published."
    )


@structure
class UnknownProfile:
    """A profile for machines that no Server document describes."""

    profile: NameField = Field(description="The BootProfile; its image must not write disks.")


UNKNOWN_NOT_FOUND: Final = "NotFound"  # unknownServers: gitboot answers unknown machines with 404
UnknownServers = Literal["LocalDisk", "NotFound"] | UnknownProfile


@structure
class Provisioning:
    """What counts as proof that a server was provisioned."""

    evidence: Evidence = Field(
        default=Evidence.FETCHED, description="Fetched, Reported, Progress or Declared. Default: Fetched."
    )
    monitors: tuple[Network, ...] = Field(
        default=(),
        description="Networks of monitors: their fetches prove nothing, and mirrors let them read the signed list. "
        "Default: none.",
    )
    clients: tuple[Network, ...] = Field(
        default=(), description="Networks from which machines boot: only their fetches count. Default: any."
    )
    attempts: Positive = Field(
        default=1, description="How often an installation is attempted, with evidence Reported. Default: 1."
    )
    ledger: Ledger | None = Field(
        default=None,
        description="The one instance that publishes and sets BMCs, by its ledger. Default: any publishes, none sets.",
    )

    @check
    def _attempts_are_reported(self) -> None:
        if self.attempts > 1 and self.evidence is not Evidence.REPORTED:
            raise Malformed(
                Code.COMBINATION,
                "several attempts need evidence Reported: a fetch does not say whether an installation failed",
                "write evidence: Reported, or leave out attempts",
                ("attempts",),
            )


class OneTimeBoots(StrEnum):
    """Who serves one-time boots."""

    ENDPOINT_ONLY = "EndpointOnly"
    COPIES = "Copies"


class LateEnds(StrEnum):
    """Whether copies may end a maintenance late."""

    ACCEPT = "Accept"


@structure
class Serving:
    """How boot scripts are served."""

    restrict: Boolean = Field(
        default=False,
        description="true: a server that boots its disk gets 404 by each lookup, if unknownServers is NotFound, too. "
        "Otherwise it gets its local-disk script, so that it never boots what unknown machines boot. Default: false.",
    )
    one_time_boots: OneTimeBoots = Field(
        default=OneTimeBoots.ENDPOINT_ONLY,
        description="EndpointOnly: only an endpoint serves one-time boots, because it records each fetch first. "
        "Copies: OUTPUT and its copies serve them too. A copy serves such a boot to every client, again and again, "
        "until gitboot reads its access log and the copy is made anew. Default: EndpointOnly.",
    )
    late_ends: LateEnds | None = Field(
        default=None,
        description="Accept: OUTPUT and its copies have the boots of a maintenance for loaders that cannot ask the "
        "endpoint whether it has ended, too. They end with the next copy, and never if gitboot is dead. Default: such "
        "loaders get what the policies alone boot; without an endpoint, validate warns.",
    )
    ipxe_https: Boolean = Field(
        default=False,
        description="true: every iPXE that boots these servers was built with https, so its boot scripts can ask an "
        "https endpoint whether a maintenance has ended. Default: false.",
    )


@structure
class Guards:
    """Limits on what one commit may change; only ever tighter than the instance's own."""

    max_update_percent: Percent | None = Field(default=None, description="Servers changed. Default: the instance's.")
    max_delete_percent: Percent | None = Field(default=None, description="Servers removed. Default: the instance's.")
    max_deletes: Integer | None = Field(default=None, description="Servers removed. Default: the instance's.")
    max_small_group: Integer | None = Field(
        default=None, description="Servers changed in a group under 10. Default: the instance's."
    )
    max_reinstalls: Integer | None = Field(default=None, description="Reinstallations. Default: the instance's.")
    max_installs: Integer | None = Field(
        default=None, description="First boots of new servers. Default: the instance's."
    )
    max_resets: Integer | None = Field(
        default=None, description="Servers that maintenances may reset while they run. Default: the instance's."
    )


@structure
class FleetSpec:
    """What holds for every server."""

    base_url: BaseUrl = Field(alias="baseURL", description="What files and assets are reached under.")
    endpoint: BaseUrl | None = Field(
        default=None,
        description="The URL of gitboot's endpoint. OUTPUT and its copies (nginx, a mirror, TFTP, a bucket) cannot "
        "record a fetch, so their boot scripts ask the endpoint for one-time boots and maintenances. Default: no "
        "endpoint is named, and copies have no one-time boots (see serving.oneTimeBoots).",
    )
    sites: tuple[Site, ...] = Field(default=(), description="Nearer mirrors, first match wins. Default: none.")
    hardware: tuple[Hardware, ...] = Field(
        default=(), description="What is different for machines of some make, first match wins. Default: nothing is."
    )
    unknown_servers: UnknownServers = Field(
        default="LocalDisk",
        description="What unknown machines boot: LocalDisk, NotFound, or {profile: NAME}. Default: LocalDisk.",
    )
    outputs: tuple[Output, ...] = Field(
        default=(Output.IPXE, Output.GRUB), description="What is published. Default: ipxe and grub."
    )
    require_policy: Boolean = Field(
        default=True,
        description="Whether a server that no policy selects is an error; else a warning, and no plan. Default: true.",
    )
    provisioning: Provisioning = Field(
        default_factory=Provisioning, description="What proves that a server was provisioned."
    )
    stopped: Text | None = Field(
        default=None,
        description="Why no boot that writes disks is offered: machines boot what writes none, else their disk. "
        "Obeyed as soon as it is pushed. Default: nothing is stopped.",
    )
    serving: Serving = Field(default_factory=Serving, description="How boot scripts are served.")
    guards: Guards = Field(default_factory=Guards, description="Limits on what one commit may change.")

    @check
    def _a_ledger_acts_for_all_or_for_a_site(self) -> None:
        named = next((number for number, site in enumerate(self.sites) if site.ledger is not None), None)
        if self.provisioning.ledger is not None and named is not None:
            raise Malformed(
                Code.COMBINATION,
                "provisioning.ledger names the one instance that acts, and a site names another for itself",
                "leave out provisioning.ledger, or the ledgers of sites",
                ("sites", named, "ledger"),
            )

    @property
    def has_instances_by_site(self) -> bool:
        """Return whether a site names the ledger that acts for it."""
        return any(site.ledger is not None for site in self.sites)

    def ledger_for(self, site: str | None) -> str | None:
        """Return the ledger whose instance may act for ``site``, or with None for all sites.

        None: any may, but for BMCs, which each of several would set.
        For a site that names none nobody acts: two instances, neither of which knows what the other has installed,
        would install a machine twice. One for all sites acts where these name no ledger, or all that do the same.
        """
        if site is not None:
            return next((each.ledger for each in self.sites if each.name == site), None) or NO_LEDGER
        by_sites = sorted({each.ledger for each in self.sites if each.ledger is not None})
        return " and ".join(by_sites) or self.provisioning.ledger

    def orders_at(self, site: str | None) -> Orders:
        """Return what the instance for ``site`` obeys at once. With None, that is the instance for all sites."""
        return Orders(stopped=self.stopped, ledger=self.ledger_for(site))


NO_LEDGER: Final = "nobody"  # no ledger is called so


@structure
class Fleet(Document):
    """The one document that holds for all servers; usually fleet.yaml."""

    kind: Literal["Fleet"] = Field(description="The kind of this document.")
    spec: FleetSpec = Field(description="What holds for every server.")
