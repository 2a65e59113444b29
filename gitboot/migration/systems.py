"""The systems that can be imported, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gitboot.importers.inventory import Texts
from gitboot.importers.sources import cobbler, dhcp_servers, ironic, kubernetes, matchbox, netbox, openchami, xcat
from gitboot.importers.sources import warewulf as warewulf_module
from gitboot.migration.estate import Estate


@dataclass(frozen=True, slots=True)
class OldSystem:
    """A system, and what of it is read."""

    read: Callable[[Texts], Estate]
    what: str


SYSTEMS: Final[Mapping[str, OldSystem]] = {
    "matchbox": OldSystem(matchbox.read, "its data directory: groups/, profiles/, ignition/"),
    "cobbler": OldSystem(cobbler.read, "/var/lib/cobbler/collections of Cobbler 3.3"),
    "openchami": OldSystem(
        openchami.read, "what BSS answers at /boot/v1/bootparameters, and SMD's Components and EthernetInterfaces"
    ),
    "tinkerbell": OldSystem(kubernetes.read, "Hardware and Machine objects as YAML"),
    "metal3": OldSystem(kubernetes.read, "BareMetalHost and HardwareData objects as YAML"),
    "boot-operator": OldSystem(
        kubernetes.read, "Server, BMC, Endpoint, IPXEBootConfig and HTTPBootConfig objects as YAML"
    ),
    "ironic": OldSystem(ironic.read, "`openstack baremetal node list --long -f json`, and the same of port"),
    "netbox": OldSystem(netbox.read, "devices, interfaces and ip-addresses of NetBox or Nautobot as JSON"),
    "xcat": OldSystem(xcat.xcat, "`lsdef -t node -z`"),
    "warewulf": OldSystem(warewulf_module.warewulf, "nodes.conf of Warewulf 4"),
    "dnsmasq": OldSystem(dhcp_servers.dnsmasq, "dhcp-host lines: MAC, name, address only"),
    "isc": OldSystem(dhcp_servers.isc, "host blocks of dhcpd.conf: MAC, name, address only"),
    "kea": OldSystem(dhcp_servers.kea, "reservations: MAC, name, address only"),
}
