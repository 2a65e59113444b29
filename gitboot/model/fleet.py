"""Fleet: the settings for all servers in the repository."""

from enum import StrEnum
from typing import Final, Literal

from gitboot.errors import FleetOrders
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
    Select,
    Text,
    check,
    structure,
)
from gitboot.model.scalars import Malformed
from gitboot.model.server import Loader
from gitboot.problems import Code


class Output(StrEnum):
    """Files that gitboot publishes in addition to those that every output tree has."""

    IPXE = "ipxe"
    GRUB = "grub"
    PXELINUX = "pxelinux"
    UUID = "uuid"
    SERIAL = "serial"
    DHCP_DNSMASQ = "dhcp-dnsmasq"
    DHCP_KEA = "dhcp-kea"
    DHCP_PROXY = "dhcp-proxy"
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
    """The evidence that proves that a server was provisioned."""

    FETCHED = "Fetched"
    REPORTED = "Reported"
    PROGRESS = "Progress"
    DECLARED = "Declared"


@structure
class Site:
    """A site with its own mirror. A server belongs to the first site that selects it."""

    name: NameField = Field(description="The name of the site.")
    select: Select = Field(description="The servers of the site.")
    base_url: BaseUrl = Field(alias="baseURL", description="The base URL of files and assets for the site.")
    endpoint: BaseUrl | None = Field(
        default=None,
        description="The URL of the endpoint that serves one-time boots at the site. Default: the Fleet's endpoint.",
    )
    ledger: Ledger | None = Field(
        default=None,
        description="The identity of the ledger whose instance is responsible for the site (`gitboot run --site`). "
        "Default: the site has no instance of its own.",
    )


@structure
class Hardware:
    """Settings for machines of one model.

    The setting in a server's own document wins. Otherwise the first matching entry with the setting wins.
    """

    select: Select = Field(description="The servers of this model, for example by a label for the vendor.")
    local_disk: LocalDisk | None = Field(
        default=None,
        description="How loaders boot the local disk: Exit, Sanboot, NotFound, or the path of an EFI program on this "
        "disk. Default: the method that works on most machines.",
    )
    loader: Loader | None = Field(
        default=None,
        description="The loader that DHCP offers: iPXE, GRUB, or Shim, which starts the signed GRUB of a "
        "distribution. Default: Shim if secureBoot is true and grub is published, else iPXE if it is published.",
    )
    secure_boot: Boolean | None = Field(
        default=None,
        description="true: Secure Boot is on. DHCP offers Shim, and gitboot warns about boots that the firmware "
        "rejects. Default: false.",
    )


@structure
class UnknownProfile:
    """A profile for unknown machines, which are machines without a Server document."""

    profile: NameField = Field(
        description="The name of the BootProfile. The image of the profile must not write to disks."
    )


UNKNOWN_NOT_FOUND: Final = "NotFound"  # with this value of unknownServers, unknown machines get a 404


@structure
class Provisioning:
    """The evidence of an installation, the clients whose fetches count as evidence, and the responsible instance."""

    evidence: Evidence = Field(
        default=Evidence.FETCHED,
        description="The evidence that proves that a server was provisioned: Fetched, Reported, Progress or Declared. "
        "Default: Fetched.",
    )
    monitors: tuple[Network, ...] = Field(
        default=(),
        description="Networks of monitoring systems. gitboot ignores their fetches, and mirrors let them read the "
        "signed list. Default: none.",
    )
    clients: tuple[Network, ...] = Field(
        default=(),
        description="Networks from which machines boot. Only fetches from these networks count as "
        "evidence. Default: any network.",
    )
    attempts: Positive = Field(
        default=1,
        description="How often gitboot offers an installation that does not succeed. Values above 1 "
        "need the evidence Reported. Default: 1.",
    )
    ledger: Ledger | None = Field(
        default=None,
        description="The identity of the ledger whose instance publishes boot files and sets overrides on BMCs. "
        "Default: any instance may publish, and no instance sets overrides.",
    )

    @check
    def _check_attempts(self) -> None:
        if self.attempts > 1 and self.evidence is not Evidence.REPORTED:
            raise Malformed(
                Code.COMBINATION,
                "`attempts` greater than 1 requires `evidence: Reported`, because a fetch does not show whether an "
                "installation failed",
                "set `evidence: Reported`, or remove `attempts`",
                ("attempts",),
            )


class OneTimeBoots(StrEnum):
    """Whether copies of the output tree serve one-time boots."""

    ENDPOINT_ONLY = "EndpointOnly"
    COPIES = "Copies"


class LateEnds(StrEnum):
    """Whether copies of the output tree may end a maintenance late."""

    ACCEPT = "Accept"


@structure
class Serving:
    """The way in which gitboot and its copies serve boot scripts."""

    restrict: Boolean = Field(
        default=False,
        description="true: a server that boots from its disk gets a 404, but only if unknownServers is NotFound. "
        "Otherwise the server gets its local-disk script, so that it never boots the boot script for unknown machines. "
        "Default: false.",
    )
    one_time_boots: OneTimeBoots = Field(
        default=OneTimeBoots.ENDPOINT_ONLY,
        description="EndpointOnly: only an endpoint serves one-time boots, because an endpoint records each fetch "
        "first. Copies: OUTPUT and its copies also serve one-time boots. A copy serves such a boot to every client, as "
        "often as it is fetched, until gitboot reads the access log and updates the copy. Default: EndpointOnly.",
    )
    late_ends: LateEnds | None = Field(
        default=None,
        description="Accept: OUTPUT and its copies also contain the boots of a maintenance for loaders that cannot "
        "check with the endpoint whether the maintenance has ended. These boots end when the copy is updated, and "
        "never if gitboot does not run. Default: such loaders ignore maintenances; without an endpoint, validate "
        "warns.",
    )
    ipxe_https: Boolean = Field(
        default=False,
        description="true: every iPXE that boots these servers supports https. Boot scripts can then check with an "
        "https endpoint whether a maintenance has ended. Default: false.",
    )


@structure
class Guards:
    """Limits on the changes of one commit. They can only be stricter than those of the instance."""

    max_update_percent: Percent | None = Field(
        default=None, description="The percentage of servers that may change. Default: the instance's limit."
    )
    max_delete_percent: Percent | None = Field(
        default=None, description="The percentage of servers that may be removed. Default: the instance's limit."
    )
    max_deletes: Integer | None = Field(
        default=None, description="How many servers may be removed. Default: the instance's limit."
    )
    max_small_group: Integer | None = Field(
        default=None,
        description="How many servers may change in a group with fewer than 10 servers. Default: the instance's limit.",
    )
    max_reinstalls: Integer | None = Field(
        default=None, description="How many servers may be installed again. Default: the instance's limit."
    )
    max_installs: Integer | None = Field(
        default=None, description="How many new servers may get their first boot. Default: the instance's limit."
    )
    max_resets: Integer | None = Field(
        default=None,
        description="How many running servers maintenances may reset. Default: the instance's limit.",
    )


NO_LEDGER: Final = "nobody"  # this is not the identity of a ledger


@structure
class FleetSpec:
    """The settings for all servers."""

    base_url: BaseUrl = Field(alias="baseURL", description="The base URL of files and assets.")
    endpoint: BaseUrl | None = Field(
        default=None,
        description="The URL of gitboot's endpoint. OUTPUT and its copies (nginx, a mirror, TFTP, a bucket) cannot "
        "record a fetch, so their boot scripts fetch one-time boots and maintenances from the endpoint. Default: no "
        "endpoint, and copies have no one-time boots (see serving.oneTimeBoots).",
    )
    sites: tuple[Site, ...] = Field(
        default=(),
        description="Sites with their own mirrors. The first site that selects a server wins. Default: none.",
    )
    hardware: tuple[Hardware, ...] = Field(
        default=(), description="Settings for machines of some models. The first matching entry wins. Default: none."
    )
    unknown_servers: Literal["LocalDisk", "NotFound"] | UnknownProfile = Field(
        default="LocalDisk",
        description="What unknown machines boot: LocalDisk, NotFound, or {profile: NAME}. Default: LocalDisk.",
    )
    outputs: tuple[Output, ...] = Field(
        default=(Output.IPXE, Output.GRUB), description="The kinds of files to publish. Default: ipxe and grub."
    )
    require_policy: Boolean = Field(
        default=True,
        description="true: a server that no policy selects is an error. false: it is a warning, and the server has no "
        "plan. Default: true.",
    )
    provisioning: Provisioning = Field(
        default_factory=Provisioning,
        description="The evidence of an installation, the clients whose fetches count as evidence, and the "
        "responsible instance.",
    )
    stopped: Text | None = Field(
        default=None,
        description="The reason for a stop of all install boots. Machines then boot from their disk, or boot an image "
        "that does not write to disks. gitboot stops install boots as soon as the commit is pushed. Default: no stop.",
    )
    serving: Serving = Field(default_factory=Serving, description="How boot scripts are served.")
    guards: Guards = Field(default_factory=Guards, description="Limits on the changes of one commit.")

    @check
    def _check_ledgers(self) -> None:
        site_number = next((number for number, site in enumerate(self.sites) if site.ledger is not None), None)
        if self.provisioning.ledger is not None and site_number is not None:
            raise Malformed(
                Code.COMBINATION,
                "`provisioning.ledger` sets one ledger for all servers, but a site sets its own ledger",
                "remove `provisioning.ledger`, or remove `ledger` from each site",
                ("sites", site_number, "ledger"),
            )

    @check
    def _check_site_names(self) -> None:
        names = set[str]()
        for number, site in enumerate(self.sites):
            if site.name in names:
                raise Malformed(
                    Code.DUPLICATE_NAME,
                    f"two sites are named {site.name}",
                    "rename or remove one of the two sites",
                    ("sites", number, "name"),
                )
            names.add(site.name)

    @property
    def has_instances_by_site(self) -> bool:
        """Return whether any site names its own ledger."""
        return any(site.ledger is not None for site in self.sites)

    def find_ledger(self, site: str | None) -> str | None:
        """Return the ledger of the instance that may be active for a site, or for all sites if ``site`` is None.

        If any instance may publish, return None. In that case, no instance may change BMCs, because several instances
        could change the same BMC. If the given site names no ledger, return `NO_LEDGER`, because two instances that do
        not share their records would install a machine twice. An instance for all sites may be active if no site names
        a ledger, or if all sites name the same ledger.
        """
        if site is not None:
            return next((each.ledger for each in self.sites if each.name == site), None) or NO_LEDGER
        ledgers = sorted({each.ledger for each in self.sites if each.ledger is not None})
        return " and ".join(ledgers) or self.provisioning.ledger

    def find_orders(self, site: str | None) -> FleetOrders:
        """Return the orders that the instance for ``site`` obeys before it accepts the commit.

        If ``site`` is None, return the orders for the instance that serves all sites.
        """
        return FleetOrders(stopped=self.stopped, ledger=self.find_ledger(site))


@structure
class Fleet(Document):
    """The document with the settings for all servers, usually fleet.yaml."""

    kind: Literal["Fleet"] = Field(description="The kind of this document.")
    spec: FleetSpec = Field(description="The settings for all servers.")
