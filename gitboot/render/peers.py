"""What clients of other systems fetch by paths that name a server: its entry once more, its user data, a look at it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gitboot.jsonio import canonical
from gitboot.model.boot_image import UserDataFormat
from gitboot.model.scalars.machines import lookup_uuids
from gitboot.quoting import ipxe_url
from gitboot.render import paths
from gitboot.render.ipxe import WHO
from gitboot.render.paths import BUNDLED, ContentType
from gitboot.render.tree import File
from gitboot.render.userdata import told_by
from gitboot.resolve.server_decision_from_plan import Decision
from gitboot.resolve.server_plan import BootPlan
from gitboot.resolve.user_data_formats import family

# By which of matchbox's paths a format is asked for; /generic for all others (matchbox: docs/api-http.md).
_MATCHBOX: Final = {
    UserDataFormat.IGNITION: "ignition",
    UserDataFormat.CLOUD_INIT: "cloud",
    UserDataFormat.AUTOINSTALL: "cloud",
}
_GENERIC: Final = "generic"


def pixiecore(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """What pixiecore is told for a server that boots from the network: a script that asks for its entry.

    Pixiecore asks at each DISCOVER, on its own behalf; so it is given no boot, but where the machine gets its own
    (pixiecore: README.api.md; ``ipxe-script`` in booters.go).
    """
    if plan is None or plan.boot is None:
        return
    for mac in plan.macs:
        url = f"{plan.base_url}/{paths.IPXE_BY_MAC.of(mac).removeprefix(paths.BOOT)}"
        script = f"#!ipxe\nchain --autofree {ipxe_url(url)}{WHO}\n"
        yield paths.PIXIECORE.of(mac), File(canonical({"ipxe-script": script}) + b"\n")


def boot_parameters(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """The boot parameters of BSS, for people and tools that look: none of a boot that writes a disk.

    One list of one, as BSS answers who asks for one machine (bss: api/swagger.yaml, BootParams).
    """
    shown: dict[str, object] = {"hosts": [decision.server], "macs": [mac.replace("-", ":") for mac in decision.macs]}
    boot = plan.boot if plan is not None and not plan.writes_disk else None
    if boot is not None and not boot.direct:
        initrds = [each.url for each in boot.files.initrds]
        shown |= {"kernel": boot.loaded_kernel.url, "params": " ".join(boot.kernel_arguments)}
        shown |= {"initrd": initrds[0]} if initrds else {}
    file = File(canonical([shown]) + b"\n", ContentType.JSON)
    yield from ((paths.BOOT_PARAMETERS.of(mac), file) for mac in decision.macs)


def nocloud(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """``nocloud/<uuid>/``, where a NoCloud seed with ``__dmi.system-uuid__`` looks: all of its files, maybe empty.

    cloud-init asks for each, and waits for what is not there (cloud-init: DataSourceNoCloud, util.read_seeded).
    """
    user_data = plan.user_data if plan is not None else None
    if plan is None or user_data is None or "meta-data" not in user_data.files:
        return
    for name in BUNDLED:
        text = told_by(user_data.files.get(name, ""), decision, plan)
        file = File(text.encode(), ContentType.CLOUD_CONFIG)
        yield from ((paths.NOCLOUD.of(uuid, name=name), file) for uuid in lookup_uuids(plan.uuid))


def matchbox(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """User data by MAC address, under the name by which matchbox's clients ask for its format."""
    user_data = plan.user_data if plan is not None else None
    if plan is None or user_data is None:
        return
    name = _MATCHBOX.get(family(user_data.format), _GENERIC)
    text = next(text for each, text in user_data.files.items() if each not in BUNDLED or each == "user-data")
    file = File(told_by(text, decision, plan).encode())
    yield from ((paths.USER_DATA.of(mac, name=name), file) for mac in decision.macs)
