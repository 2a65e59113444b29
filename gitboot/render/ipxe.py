"""iPXE scripts for each boot NIC, UUID and serial number, for unknown machines, and the shared first script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from gitboot.model.scalars import lookup_uuids
from gitboot.model.server import Architecture
from gitboot.quoting import check_ipxe_url, quote_ipxe_arguments, sanitize_ipxe_text
from gitboot.render import boot_script_parts, paths
from gitboot.render.boot_script_parts import IDENTITY_QUERY, LOADER_ARCHITECTURES, TO_DISK, CannotBoot, render_heading
from gitboot.render.paths import ContentType, File, PathKind
from gitboot.resolve.server_decision import Boot, BootFile, BootFiles, Decision, Decisions
from gitboot.resolve.server_plan import BootPlan

_MAX_ATTEMPTS: Final = 5
_PAUSE_S: Final = 5
_FIRST_BYTE_MS: Final = 8000  # the maximum wait for the first byte of the endpoint's response
_VERIFIER: Final = "${gitboot-verify}"  # The command `imgverify`, or `echo` if this iPXE does not have `imgverify`.
# `imgtrust` makes `boot` reject a kernel that no signature covers. `imgtrust` does not apply to initrds, so `imgverify`
# verifies each file. An iPXE that was built without IMAGE_TRUST_CMD does not have these two commands, and boots the
# files without verification. iPXE splits a line into words before it expands settings, so the setting must be one word
# (iPXE: core/exec.c).
_TRUST_ONLY_SIGNED: Final = """\
imgtrust && set gitboot-verify imgverify || set gitboot-verify echo
iseq ${gitboot-verify} echo && echo gitboot: this iPXE has no imgverify. It boots the files unverified. ||
"""

# iPXE passes an EFI program the name of its image in front of its arguments (iPXE: image/efi_image.c). Without Secure
# Boot, a UKI boots with this text instead of the command line in the UKI (systemd: src/boot/stub.c). This setting does
# not exist, so iPXE removes the name.
_BOOT_UNNAMED: Final = "boot --name ${gitboot-none}"


def render(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """Yield the iPXE scripts of a server for each MAC address, and for both byte orders of the UUID.

    Without a plan, the scripts boot from the local disk, so that a known machine never boots as an unknown machine.
    """
    script = _render_server_script(decision, plan)
    yield from ((paths.IPXE_BY_MAC.build_path(mac), script) for mac in decision.macs)
    yield from ((paths.IPXE_BY_UUID.build_path(uuid), script) for uuid in lookup_uuids(decision.uuid))


def build_mac_renderer(*kinds: PathKind) -> Callable[[Decision, BootPlan | None], Iterator[tuple[str, File]]]:
    """Return a function that renders a boot script for each boot interface, at paths of these kinds."""

    def render_by_mac(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
        script = _render_server_script(decision, plan)
        yield from ((kind.build_path(mac), script) for kind in kinds for mac in decision.macs)

    return render_by_mac


def render_by_serial(decision: Decision, plan: BootPlan | None) -> Iterator[tuple[str, File]]:
    """Yield ``ipxe/serial/<serial>`` if the serial number of the server can identify it."""
    if decision.serial is None:
        return
    script = _render_server_script(decision, plan)
    if plan is not None and plan.boot is not None and plan.boot.fetches_by_uuid:
        # A machine fetches this script only if the UUID of the machine differs from the UUID in the document.
        messages = _render_messages(
            f"gitboot: iPXE found {plan.server} by serial number, but not by UUID",
            "gitboot: the image fetches its user data by UUID",
            f"gitboot: check the UUID of Server/{plan.server}. Booting the local disk.",
        )
        disk_boot = boot_script_parts.render_ipxe_disk_boot(decision.local_disk)
        script = _make_script(render_heading(plan) + messages + disk_boot)
    yield paths.IPXE_BY_SERIAL.build_path(decision.serial), script


def _render_server_script(decision: Decision, plan: BootPlan | None) -> File:
    disk_boot = boot_script_parts.render_ipxe_disk_boot(decision.local_disk)
    if plan is None:
        reason = boot_script_parts.describe_missing_plan(decision)
        return _make_script(boot_script_parts.render_disk_comment(decision.server, reason) + disk_boot)
    boot = plan.boot
    if boot is None:
        body = _render_messages(f"gitboot: {plan.server} boots its local disk") + disk_boot
    elif plan.is_withheld_from_ipxe:
        body = _render_messages(f"gitboot: a signature of {boot.image} is missing", TO_DISK) + disk_boot
    elif (template := boot.entries.get("ipxe")) is not None:
        first_line, _, rest = template.partition("\n")
        body = rest if first_line.strip() == "#!ipxe" else template
        if not body.endswith("\n"):
            body += "\n"
    else:
        announcement = _render_messages(f"gitboot: {plan.server} boots {boot.image} ({plan.phase})")
        body = announcement + _render_attempts(boot) + disk_boot
    return _make_script(render_heading(plan) + body)


def _make_script(body: str) -> File:
    return File(f"#!ipxe\n{body}".encode(), ContentType.TEXT)


def _render_messages(*messages: str) -> str:
    return "".join(f"echo {sanitize_ipxe_text(message)}\n" for message in messages)


def _render_attempts(boot: Boot, label: str = "") -> str:
    """Return lines that try the boot several times. If every attempt fails, iPXE continues after these lines.

    ``label`` makes the labels of these lines unique in their script. If iPXE cannot boot the image, the lines only show
    the reason.
    """
    try:
        steps = _build_boot_steps(boot)
    except CannotBoot as obstacle:
        return _render_messages(f"gitboot: {obstacle}", TO_DISK)
    attempt_lines = "".join(f"{step} || goto failed{label}\n" for step in steps)
    trust = distrust = ""
    if any(step.startswith(_VERIFIER) for step in steps):
        trust, distrust = _TRUST_ONLY_SIGNED, "imgtrust --allow ||\n"
    return f"""\
{trust}set attempt:int32 1
:try{label}
imgfree
{attempt_lines}:failed{label}
iseq ${{attempt}} {_MAX_ATTEMPTS} && goto disk{label} ||
echo gitboot: attempt ${{attempt}} of {_MAX_ATTEMPTS} failed. iPXE tries again in {_PAUSE_S} s.
sleep {_PAUSE_S}
inc attempt
goto try{label}
:disk{label}
imgfree
{distrust}echo gitboot: all {_MAX_ATTEMPTS} attempts failed. Booting the local disk.
"""


def _build_boot_steps(boot: Boot) -> list[str]:
    """Return the commands of a boot, each of which may fail. Raises `CannotBoot`."""
    files = boot.files
    if boot.is_direct:
        if (uki := boot.direct_uki) is None:
            raise CannotBoot(f"{boot.image} is an ISO. Only firmware or a BMC can boot it.")
        load = f"kernel --name uki {check_ipxe_url(uki.url)}"
        return [load, *_build_verify_steps("uki", uki, files), _BOOT_UNNAMED]
    kernel = boot.loaded_kernel
    initrds = {f"initrd{number}": initrd for number, initrd in enumerate(files.initrds)}
    arguments = quote_ipxe_arguments((*(f"initrd={name}" for name in initrds), *boot.kernel_arguments))
    steps = [f"kernel --name kernel {check_ipxe_url(kernel.url)} {arguments}".rstrip()]
    steps += _build_verify_steps("kernel", kernel, files)
    for name, initrd in initrds.items():
        steps.append(f"initrd --name {name} {check_ipxe_url(initrd.url)}")
        steps += _build_verify_steps(name, initrd, files)
    steps.append("boot")
    return steps


def _build_verify_steps(name: str, file: BootFile, files: BootFiles) -> list[str]:
    """Return the command that verifies a loaded file. The list is empty if the file has no signature for iPXE."""
    signature = files.loader_signatures.get(file.url)
    return [f"{_VERIFIER} {name} {check_ipxe_url(signature)}"] if signature is not None else []


def render_endpoint_request(url: str, fallback: str) -> str:
    """Return a boot script that queries the endpoint at ``url`` once, and boots ``fallback`` if there is no response.

    An iPXE setting prevents a second query, because a load balancer may return a copy of the same script. If a host
    drops packets, iPXE waits for about 16 s, so `--timeout` sets a shorter limit (iPXE of March 2014 and newer).
    """
    _, _, fallback_body = fallback.partition("\n")
    request = f"{check_ipxe_url(url)}{IDENTITY_QUERY}&{paths.HOP}=1"
    return f"""\
#!ipxe
{boot_script_parts.render_endpoint_comment(sanitize_ipxe_text(url))}
isset ${{gitboot-asked}} && goto gitboot-otherwise ||
set gitboot-asked 1
imgfetch --timeout {_FIRST_BYTE_MS} --name answer {request} && goto gitboot-answer ||
:gitboot-otherwise
echo {boot_script_parts.NO_ANSWER}
{fallback_body}exit 0
:gitboot-answer
imgexec --autofree answer && exit 0 || exit 1
"""


# The shared scripts.


def render_first_script(prefix: str = "") -> str:
    """Return the first script that iPXE runs. ``prefix`` is the relative path from the script to ``boot/``.

    The script requests a boot script by the MAC address of each NIC, and then by UUID. It repeats these requests
    several times. At the end, it requests a boot script once by serial number. A serial number is the least reliable
    identity, and a machine must not get another machine's boot script while its own boot script is unavailable. The
    script does not test ``${errno}``, because the value of this setting after a 404 differs between builds of iPXE.
    Fetching and running a boot script are separate steps, because a boot script may deliberately end with an error so
    that the firmware boots from the disk.
    """
    return f"""\
#!ipxe
# gitboot: this script looks up the boot script of the machine
# It uses the MAC addresses, then the system UUID, then the serial number.
set lookup:int32 1
:lookup
set nic:int32 0
:nic
isset ${{net${{nic}}/mac}} || goto uuid
imgfetch --name entry {prefix}v1/boot/${{net${{nic}}/mac:hexhyp}}/boot.ipxe{IDENTITY_QUERY} && goto entry ||
inc nic
iseq ${{nic}} 16 || goto nic
:uuid
imgfetch --name entry {prefix}ipxe/${{uuid}}{IDENTITY_QUERY} && goto entry ||
iseq ${{lookup}} 3 && goto serial ||
inc lookup
sleep 2
goto lookup
:serial
isset ${{serial}} || goto unknown
imgfetch --name entry {prefix}ipxe/serial/${{serial:uristring}}{IDENTITY_QUERY} && goto entry ||
:unknown
{boot_script_parts.UNKNOWN_REQUEST_COMMENT}
imgfetch --name entry {prefix}unknown.ipxe{IDENTITY_QUERY}&mac=${{netX/mac:hexhyp}} && goto entry ||
echo {boot_script_parts.NO_BOOT_SCRIPT}
{boot_script_parts.IPXE_DISK_BOOT}:entry
imgexec --autofree entry && exit 0 || exit 1
"""


def build_first_script_renderer(path: str) -> Callable[[Decisions], Iterator[tuple[str, File]]]:
    """Return a function that renders the first script at a path that another system uses."""

    def render_copy(_: Decisions) -> Iterator[tuple[str, File]]:
        yield f"{paths.BOOT}{path}", File(render_first_script("../" * path.count("/")).encode(), ContentType.TEXT)

    return render_copy


def render_shared(decisions: Decisions) -> Iterator[tuple[str, File]]:
    """Yield ``boot.ipxe`` and ``ipxe/boot.ipxe``. Also yield ``unknown.ipxe``, unless unknown machines get a 404."""
    yield paths.FIRST_SCRIPT, File(render_first_script().encode(), ContentType.TEXT)
    yield paths.CHAIN, File(render_first_script("../").encode(), ContentType.TEXT)
    if not decisions.unknown_not_found:
        yield "boot/unknown.ipxe", File(_render_unknown(decisions.unknown).encode(), ContentType.TEXT)


def _render_unknown(boots: Mapping[Architecture, Boot] | None) -> str:
    header = f"#!ipxe\n{boot_script_parts.UNKNOWN_COMMENT}"
    if boots is None:
        return header + boot_script_parts.IPXE_DISK_BOOT
    choices = bodies = ""
    for architecture, boot in sorted(boots.items()):
        for build_architecture in LOADER_ARCHITECTURES[architecture]:
            choices += f"iseq ${{buildarch}} {build_architecture} && goto {architecture} ||\n"
        announcement = _render_messages(f"gitboot: this machine is unknown. It boots {boot.image}.")
        attempts = _render_attempts(boot, f"_{architecture}")
        bodies += f":{architecture}\n{announcement}{attempts}goto local_disk\n"
    return f"{header}{choices}goto local_disk\n{bodies}:local_disk\n{boot_script_parts.IPXE_DISK_BOOT}"
