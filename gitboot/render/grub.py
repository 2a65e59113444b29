"""GRUB: a configuration for each boot NIC, and the shared one that finds it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from gitboot.plan import Boot, BootFile, BootPlan, Decision
from gitboot.quote import grub_arguments, grub_text, grub_word
from gitboot.render import disk
from gitboot.render.header import heading
from gitboot.render.tree import ContentType, File
from gitboot.resolve import Decisions

_ATTEMPTS: Final = "1 2 3 4 5"
_PAUSE_S: Final = 5


def render(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """A server's GRUB entries by MAC; none without a plan."""
    if plan is None or (plan.boot is None and plan.restrict):
        return
    configuration = File(_configuration(plan).encode(), ContentType.TEXT)
    yield from ((f"boot/v1/boot/{mac}/grub.cfg", configuration) for mac in plan.macs)


def _configuration(plan: BootPlan) -> str:
    header = "".join(f"# {line}\n" for line in heading(plan))
    if plan.boot is None:
        return header + disk.GRUB
    if (own := plan.boot.entries.get("grub")) is not None:
        return header + own + ("" if own.endswith("\n") else "\n")
    announced = grub_text(f"gitboot: {plan.server} boots {plan.boot.image} ({plan.phase})")
    steps = boot_steps(plan.boot)
    if isinstance(steps, str):
        return f"{header}echo {announced}\necho {grub_text(f'gitboot: {steps}')}\n{disk.GRUB}"
    return f"{header}echo {announced}\n{_retried(steps)}{disk.GRUB}"


class _NotForGrub(Exception):
    """A file that GRUB cannot fetch."""


def _device_path(file: BootFile) -> str:
    """``(http,HOST:PORT)/PATH``, as GRUB names a file on an HTTP server; it has no HTTPS."""
    parts = urlsplit(file.url)
    if parts.scheme != "http":
        raise _NotForGrub(f"GRUB fetches by http only, not {parts.scheme}")
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return grub_word(f"(http,{parts.netloc}){path}")


def boot_steps(boot: Boot) -> tuple[str, ...] | str:
    """The commands that load what is to boot; or why GRUB cannot boot this."""
    try:
        if boot.direct:
            if boot.direct_uki is None:
                return f"{boot.image} is booted as an ISO by firmware or BMC, not by a loader"
            return (f"chainloader {_device_path(boot.direct_uki)}",)
        linux = f"linux {_device_path(boot.loaded_kernel)} {grub_arguments(boot.kernel_arguments)}".rstrip()
        if not boot.files.initrds:
            return (linux,)
        return linux, "initrd " + " ".join(_device_path(initrd) for initrd in boot.files.initrds)
    except _NotForGrub as reason:
        return str(reason)


def _retried(steps: tuple[str, ...]) -> str:
    opened = "".join(f"{'  ' * depth}if {step}; then\n" for depth, step in enumerate(steps, 1))
    closed = "".join(f"{'  ' * depth}fi\n" for depth in range(len(steps), 0, -1))
    return (
        f"for attempt in {_ATTEMPTS}; do\n{opened}{'  ' * (len(steps) + 1)}boot\n{closed}"
        f'  echo "gitboot: attempt $attempt failed, trying again in {_PAUSE_S} s"\n  sleep {_PAUSE_S}\ndone\n'
        'echo "gitboot: no attempt succeeded, on to the local disk"\n'
    )


def shared(decisions: Decisions) -> Iterator[tuple[str, File]]:
    """``grub.cfg``: the entry of the NIC that GRUB came by, else the local disk.

    ``$net_default_mac`` has colons and the tree's paths hyphens; GRUB's own lookup of
    ``grub.cfg-01-MAC`` runs only under TFTP.
    """
    prefix = urlsplit(decisions.base_url).path
    names = [f"m{number}" for number in range(1, 7)]
    groups = " ".join(f"--set={number}:{name}" for number, name in enumerate(names, 1))
    mac = "-".join(f"${name}" for name in names)
    text = f"""\
# gitboot: the boot entry of this machine, by MAC address
insmod regexp
if regexp {groups} '^(..):(..):(..):(..):(..):(..)$' "$net_default_mac"; then
  for lookup in 1 2 3; do
    configfile "{prefix}/v1/boot/{mac}/grub.cfg"
    sleep 2
  done
fi
echo "gitboot: no boot entry can be had, on to the local disk"
{disk.GRUB}"""
    yield "boot/grub.cfg", File(text.encode(), ContentType.TEXT)
