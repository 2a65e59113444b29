"""PXELINUX: a configuration for each boot NIC, and the one of machines that no Server document describes.

Its HTTP is lpxelinux.0's, and SYSLINUX's own under UEFI; pxelinux.0 has TFTP alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from gitboot.model.scalars import MacAddress
from gitboot.model.server import Architecture
from gitboot.quoting import command_line, ipxe_text
from gitboot.render import boot_script_parts, paths
from gitboot.render.boot_script_parts import IDLE, heading
from gitboot.render.paths import ContentType, File
from gitboot.resolve.server_decision import Boot, BootFile, Decision, Decisions
from gitboot.resolve.server_plan import BootPlan


def render(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """``pxelinux.cfg/01-<mac>`` for every Server document: without a plan it goes on to the disk."""
    if plan is None:
        text = _tombstone(decision, f"no plan ({decision.lifecycle})")
    else:
        who = f"{plan.server} boots {f'{plan.boot.image} ({plan.phase})' if plan.boot else 'its local disk'}"
        text = heading(plan) + _configuration(plan.boot, who, plan.local_disk)
    yield from ((paths.PXELINUX.of(mac), File(text.encode(), ContentType.TEXT)) for mac in decision.macs)


def tombstones(decision: Decision, idle: tuple[MacAddress, ...]) -> Iterator[tuple[str, File]]:
    """Yield the configurations by interfaces that the server may not boot from. They boot its disk."""
    file = File(_tombstone(decision, IDLE).encode(), ContentType.TEXT)
    yield from ((paths.PXELINUX.of(mac), file) for mac in idle)


def shared(decisions: Decisions) -> Iterator[tuple[str, File]]:
    """``default``, but where unknown servers are answered 404.

    PXELINUX takes it for every machine that has no file of its own; it runs on x86 alone.
    """
    if not decisions.unknown_not_found:
        boot = (decisions.unknown or {}).get(Architecture.X86_64)
        text = "# gitboot: a machine that no Server document describes\n"
        text += _configuration(boot, f"unknown machine, boots {boot.image}" if boot else "")
        yield "boot/pxelinux.cfg/default", File(text.encode(), ContentType.TEXT)


def ask_endpoint(url: str, instead: str) -> str | None:
    """Return a configuration that includes the answer of the endpoint at ``url``; None: PXELINUX has no https.

    A file that is unavailable, as any is that pxelinux.0 would have to fetch by HTTP, is passed over, and what boots
    ``instead`` stands. Of two labels of one name the first counts, of two defaults the last
    (syslinux, com32/elflink/ldlinux/readconfig.c).
    """
    if urlsplit(url).scheme != "http":
        return None
    for word in ("default", "label"):
        instead = instead.replace(f"{word} gitboot\n", f"{word} instead\n")
    return f"# gitboot: {url} answers what this machine boots now\n{instead}include {url}?{paths.HOP}=1\n"


def _tombstone(decision: Decision, why: str) -> str:
    return f"# {decision.server}: {why}, on to the local disk\n{boot_script_parts.pxelinux_alone(decision.local_disk)}"


def _configuration(boot: Boot | None, who: str, how: str | None = None) -> str:
    announced = f"say {ipxe_text(f'gitboot: {who}')}\n" if who else ""
    if boot is None:
        return announced + boot_script_parts.pxelinux_alone(how)
    try:
        steps = list(_steps(boot))
    except _NotForPxelinux as reason:
        return f"{announced}say {ipxe_text(f'gitboot: {reason}')}\n{boot_script_parts.pxelinux_alone(how)}"
    label = "".join(f"  {step}\n" for step in steps)
    to_disk = boot_script_parts.pxelinux_to_disk(how)
    return f"{announced}default gitboot\nprompt 0\nonerror disk\nlabel gitboot\n{label}{to_disk}"


class _NotForPxelinux(Exception):
    """What PXELINUX cannot fetch or start."""


def _steps(boot: Boot) -> Iterator[str]:
    if boot.direct:
        raise _NotForPxelinux(f"{boot.image} is booted directly by firmware, not by PXELINUX")
    yield f"linux {_url(boot.loaded_kernel)}"
    if initrds := [_url(initrd) for initrd in boot.files.initrds]:
        if any("," in url for url in initrds):
            raise _NotForPxelinux("a comma in an initrd's URL would begin the next one")
        yield f"initrd {','.join(initrds)}"
    if boot.kernel_arguments:
        yield f"append {command_line(boot.kernel_arguments)}"


def _url(file: BootFile) -> str:
    scheme = urlsplit(file.url).scheme
    if scheme != "http":
        raise _NotForPxelinux(f"PXELINUX fetches by http only, not {scheme}")
    return file.url
