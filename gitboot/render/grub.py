"""GRUB configurations for each boot NIC, for each UUID and for unknown machines, and the shared first configuration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final
from urllib.parse import urlsplit

from gitboot.model.fleet import Output
from gitboot.model.scalars import MacAddress, lookup_uuids
from gitboot.model.server import Architecture
from gitboot.quoting import quote_grub_arguments, quote_grub_word, sanitize_grub_text, uses_boot_nic_variable
from gitboot.render import boot_script_parts, paths
from gitboot.render.boot_script_parts import IDLE_REASON, LOADER_ARCHITECTURES, TO_DISK, CannotBoot, render_heading
from gitboot.render.paths import ContentType, File
from gitboot.resolve.server_decision import Boot, BootFile, Decision, Decisions
from gitboot.resolve.server_plan import BootPlan

_MAX_ATTEMPTS: Final = 5
_ATTEMPT_NUMBERS: Final = " ".join(str(number) for number in range(1, _MAX_ATTEMPTS + 1))  # GRUB cannot count
_PAUSE_S: Final = 5
NICS: Final = 4  # the number of NICs that the script tries, because GRUB cannot count the NICs of a machine
# the MAC address of the NIC from which firmware booted GRUB; empty after `net_bootp`
_FIRMWARE_NIC_MAC: Final = '"$net_default_mac"'
# After `net_bootp` in the configuration of the loader, the name of a NIC is `efinet0_dhcp` or `efinet0_dhcp6`.
_NIC_MACS: Final = " ".join(
    (_FIRMWARE_NIC_MAC, *(f'"$net_efinet{nic}_{suffix}_mac"' for nic in range(NICS) for suffix in ("dhcp", "dhcp6")))
)
_OCTET_VARIABLES: Final = ("m1", "m2", "m3", "m4", "m5", "m6")
# GRUB reserves two words for each `--set`, and exceeds its buffer if there are six single words (GRUB: lib/arg.c,
# grub_arg_list_alloc).
_SET_OCTETS: Final = " ".join(f"--set {number}:{name}" for number, name in enumerate(_OCTET_VARIABLES, 1))
_MATCH_MAC: Final = f"regexp {_SET_OCTETS} '^(..):(..):(..):(..):(..):(..)$'"
# the MAC address that `_MATCH_MAC` matched
_HYPHENATED_MAC: Final = "-".join(f"${name}" for name in _OCTET_VARIABLES)
# The prefix of Debian's signed network GRUB is /grub on the server from which it was loaded.
SIGNED_GRUB_CHAIN: Final = f"""\
insmod regexp
set gitboot_tree=""
regexp --set 1:gitboot_tree '^(.*)/grub$' "$config_directory"
for attempt in {_ATTEMPT_NUMBERS}; do
  configfile "$gitboot_tree/grub.cfg"
  sleep {_PAUSE_S}
done
exit
"""


def render(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """Yield a server's GRUB configurations for each MAC address, in the folder ``v1`` and at ``grub.cfg-01-<mac>``.

    GRUB requests ``grub.cfg-01-<mac>`` by default. Without a plan, the configurations boot from the local disk, so that
    a known machine never boots as an unknown machine.
    """
    shared = _render_server_file(decision, plan)
    needs_boot_nic = uses_boot_nic_variable(shared.content.decode())
    for mac in decision.macs:
        configuration = _render_server_file(decision, plan, mac) if needs_boot_nic else shared
        yield paths.GRUB_BY_MAC.build_path(mac), configuration
        yield paths.GRUB_LOOKUP.build_path(mac), configuration


def render_idle(decision: Decision, idle_macs: tuple[MacAddress, ...]) -> Iterator[tuple[str, File]]:
    """Yield configurations that boot from the local disk, for the interfaces from which the server may not boot."""
    configuration = _render_disk_boot(decision, IDLE_REASON)
    yield from ((paths.GRUB_LOOKUP.build_path(mac), configuration) for mac in idle_macs)


def render_by_uuid(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """Yield ``grub.cfg-<uuid>`` for both byte orders of the UUID."""
    configuration = _render_server_file(decision, plan)
    yield from ((paths.GRUB_BY_UUID.build_path(uuid), configuration) for uuid in lookup_uuids(decision.uuid))


def _render_disk_boot(decision: Decision, reason: str) -> File:
    comment = boot_script_parts.render_disk_comment(decision.server, reason)
    return File((comment + boot_script_parts.render_grub_disk_boot(decision.local_disk)).encode(), ContentType.TEXT)


def _render_server_file(decision: Decision, plan: BootPlan | None, mac: MacAddress | None = None) -> File:
    """Return the configuration for the MAC address ``mac``.

    If ``mac`` is None, GRUB finds the configuration by another identity.
    """
    if plan is None:
        return _render_disk_boot(decision, boot_script_parts.describe_missing_plan(decision))
    disk_boot = boot_script_parts.render_grub_disk_boot(plan.local_disk)
    if plan.boot is None:
        body = _render_messages(f"gitboot: {plan.server} boots its local disk") + disk_boot
    elif (template := plan.boot.entries.get("grub")) is not None:
        boot_nic = _render_boot_nic(mac) if uses_boot_nic_variable(template) else ""
        body = boot_nic + template + ("" if template.endswith("\n") else "\n")
    else:
        announcement = _render_messages(f"gitboot: {plan.server} boots {plan.boot.image} ({plan.phase})")
        body = announcement + _render_attempts(plan.boot, mac) + disk_boot
    return File((render_heading(plan) + body).encode(), ContentType.TEXT)


def _render_messages(*messages: str) -> str:
    return "".join(f"echo {sanitize_grub_text(message)}\n" for message in messages)


def _render_attempts(boot: Boot, mac: MacAddress | None = None) -> str:
    """Return lines that try the boot several times. If every attempt fails, GRUB continues after these lines.

    With UEFI and Secure Boot, the GRUB of older distributions boots only with the commands ``linuxefi`` and
    ``initrdefi``, which other builds do not have. So the lines first try ``linux``, and then ``linuxefi``. If GRUB does
    not have a command, the command fails before GRUB fetches a file.

    If GRUB cannot boot the image, the lines only show the reason.
    """
    try:
        steps = _build_boot_steps(boot)
    except CannotBoot as obstacle:
        return _render_messages(f"gitboot: {obstacle}", TO_DISK)
    needs_boot_nic = any(map(uses_boot_nic_variable, steps))
    attempt = _nest_steps(['[ -n "$gitboot_mac" ]', *steps] if needs_boot_nic else steps, "boot")
    if any("$efi" in step for step in steps):
        attempt = ["for efi in '' efi; do", *_indent(attempt), "done"]
    attempt += [
        f'echo "gitboot: attempt $attempt of {_MAX_ATTEMPTS} failed. GRUB waits {_PAUSE_S} s."',
        f"sleep {_PAUSE_S}",
    ]
    lines = [
        f"for attempt in {_ATTEMPT_NUMBERS}; do",
        *_indent(attempt),
        "done",
        f'echo "gitboot: all {_MAX_ATTEMPTS} attempts failed. Booting the local disk."',
    ]
    boot_nic = _render_boot_nic(mac) if needs_boot_nic else ""
    return boot_nic + "".join(f"{line}\n" for line in lines)


def _build_boot_steps(boot: Boot) -> list[str]:
    """Return the commands that load the kernel or the UKI. Raises `CannotBoot`."""
    if boot.is_direct:
        if boot.direct_uki is None:
            raise CannotBoot(f"{boot.image} is an ISO. Only firmware or a BMC can boot it.")
        return [f"chainloader {_format_device_path(boot.direct_uki)}"]
    kernel, arguments = _format_device_path(boot.loaded_kernel), quote_grub_arguments(boot.kernel_arguments)
    steps = [f"linux$efi {kernel} {arguments}".rstrip()]
    if boot.files.initrds:
        steps.append("initrd$efi " + " ".join(_format_device_path(initrd) for initrd in boot.files.initrds))
    return steps


def _format_device_path(file: BootFile) -> str:
    parts = urlsplit(file.url)
    if parts.scheme != "http":
        raise CannotBoot(f"the boot files have {parts.scheme} URLs, but GRUB can fetch only over http")
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return quote_grub_word(f"(http,{parts.netloc}){path}")


def _nest_steps(steps: list[str], last: str) -> list[str]:
    """Return lines that run each step only if the previous step succeeded."""
    if not steps:
        return [last]
    return [f"if {steps[0]}; then", *_indent(_nest_steps(steps[1:], last)), "fi"]


def _indent(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _render_boot_nic(mac: MacAddress | None) -> str:
    """Return lines that store the boot NIC's MAC address in two variables.

    One variable contains the address with colons, and the other in the form of `BOOTIF`.
    """
    addresses = _NIC_MACS if mac is None else f'{_FIRMWARE_NIC_MAC} "{mac.replace("-", ":")}"'
    return f"""\
insmod regexp
set gitboot_mac=""
for address in {addresses}; do
  if [ -z "$gitboot_mac" ]; then
    if {_MATCH_MAC} "$address"; then
      set gitboot_mac="$address"
      set gitboot_bootif="01-{_HYPHENATED_MAC}"
    fi
  fi
done
if [ -z "$gitboot_mac" ]; then
  echo "gitboot: GRUB did not find the MAC address of the boot NIC"
fi
"""


def render_endpoint_request(url: str, fallback: str) -> str | None:
    """Return a configuration that queries the endpoint at ``url`` once, and boots ``fallback`` if there is no response.

    Return None for https, which GRUB does not support. `configfile` reads the response in a new context with the
    exported variables. So GRUB does not query the endpoint again if the response is the same configuration (GRUB
    manual, "export" and "configfile").
    """
    parts = urlsplit(url)
    if parts.scheme != "http":
        return None
    device_path = quote_grub_word(f"(http,{parts.netloc}){parts.path}?{paths.HOP}=1")
    return f"""\
{boot_script_parts.render_endpoint_comment(url)}
if [ "$gitboot_asked" != 1 ]; then
  set gitboot_asked=1
  export gitboot_asked
  insmod http
  configfile {device_path}
fi
echo "{boot_script_parts.NO_ANSWER}"
{fallback}"""


# The shared configurations.


def render_shared(decisions: Decisions) -> Iterator[tuple[str, File]]:
    """Yield ``grub.cfg`` and ``grub/grub.cfg``. Also yield ``unknown.grub.cfg``, unless unknown machines get a 404."""
    text = render_first_configuration(by_uuid=Output.UUID in decisions.outputs)
    yield "boot/grub.cfg", File(text.encode(), ContentType.TEXT)
    comment = "# gitboot: the signed GRUB of Debian loads this script, which loads grub.cfg\n"
    yield paths.SIGNED_GRUB, File(f"{comment}{SIGNED_GRUB_CHAIN}".encode(), ContentType.TEXT)
    if not decisions.unknown_not_found:
        yield "boot/unknown.grub.cfg", File(_render_unknown(decisions.unknown).encode(), ContentType.TEXT)


def render_first_configuration(*, by_uuid: bool) -> str:
    """Return ``grub.cfg``, which tries several times to find a boot script by NIC and, if published, by UUID.

    Without this configuration, GRUB requests ``grub.cfg-01-<mac>`` only over TFTP. ``$net_default_mac`` contains
    colons, but paths in the output tree contain hyphens. The paths are relative to ``grub.cfg``, so that a mirror may
    use any folder.
    """
    identities = "the MAC addresses"
    load_smbios = find_by_uuid = ""
    if by_uuid:
        identities = "the MAC addresses and then the system UUID"
        load_smbios = "insmod smbios\n"
        find_by_uuid = """\
  if smbios --type 1 --get-uuid 8 --set=uuid; then
    configfile "$tree/grub.cfg-$uuid"
  fi
"""
    return f"""\
# gitboot: this script looks up the boot script of the machine
# It uses {identities}.
insmod regexp
{load_smbios}set tree="$config_directory"
for lookup in 1 2 3; do
  for address in {_NIC_MACS}; do
    if {_MATCH_MAC} "$address"; then
      configfile "$tree/v1/boot/{_HYPHENATED_MAC}/grub.cfg"
      configfile "$tree/grub.cfg-01-{_HYPHENATED_MAC}"
    fi
  done
{find_by_uuid}  sleep 2
done
{boot_script_parts.UNKNOWN_REQUEST_COMMENT}
set who=""
if regexp '^.http' "$tree"; then
  if {_MATCH_MAC} {_FIRMWARE_NIC_MAC}; then
    set who="?mac={_HYPHENATED_MAC}"
  fi
fi
configfile "$tree/unknown.grub.cfg$who"
echo "{boot_script_parts.NO_BOOT_SCRIPT}"
{boot_script_parts.GRUB_DISK_BOOT}"""


def _render_unknown(boots: Mapping[Architecture, Boot] | None) -> str:
    lines: list[str] = []
    for architecture, boot in sorted((boots or {}).items()):
        condition = " -o ".join(f'"$grub_cpu" = {cpu}' for cpu in LOADER_ARCHITECTURES[architecture])
        announcement = _render_messages(f"gitboot: this machine is unknown. It boots {boot.image}.")
        body = (announcement + _render_attempts(boot)).splitlines()
        lines += [f"if [ {condition} ]; then", *_indent(body), "fi"]
    text = "".join(f"{line}\n" for line in lines)
    return f"{boot_script_parts.UNKNOWN_COMMENT}{text}{boot_script_parts.GRUB_DISK_BOOT}"
