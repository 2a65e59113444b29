"""Boot comparison: find the differences between the boots that another system and gitboot serve to a machine."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from itertools import takewhile, zip_longest
from typing import Final
from urllib.parse import quote, urljoin

from msgspec import Struct

from gitboot.importers.inventory import as_text, get_nested, is_secret, split_kernel_arguments, split_url_or_none
from gitboot.model.server import Architecture, Firmware
from gitboot.quoting import (
    BOOT_NIC_BOOTIF,
    BOOT_NIC_MAC,
    QuotingError,
    has_boot_nic_placeholder,
    quote_kernel_argument,
)
from gitboot.resolve.server_decision import Boot, BootFile

# Kernel arguments that contain the URL of the user data.
USER_DATA_ARGUMENTS: Final = frozenset(
    {
        "autoyast",
        "ignition.config.url",
        "coreos.config.url",
        "coreos.inst.ignition_url",
        "ds",
        "flatcar.config.url",
        "inst.auto",
        "inst.ks",
        "ks",
        "url",
        "talos.config",
    }
)
_URL: Final = re.compile(r"https?://[^\s;]+")


class OldBoot(Struct, frozen=True, kw_only=True):
    """The boot that a boot script of the old system describes.

    A script without a kernel boots from the local disk or loads the ``chain`` URL.
    """

    kernel: str | None = None
    initrds: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    chain: str | None = None
    data_url: str | None = None  # the URL of the user data, if the arguments do not contain it
    fails: bool = False  # whether the script stops the machine, because the old system defines no boot for it

    @property
    def user_data_url(self) -> str | None:
        if self.data_url is not None:
            return self.data_url
        for argument in self.arguments:
            name, _, value = argument.partition("=")
            if name in USER_DATA_ARGUMENTS and (url := _URL.search(value)):
                return url[0]
        return None


# Comparison


class Verdict(StrEnum):
    """The result of comparing two boots."""

    EQUAL = "equal"
    DIFFERS = "differs"
    MISSING = "missing"  # the old system defines no boot for the server
    NOTHING = "no boot"  # gitboot boots the server from its disk
    UNKNOWN = "unknown"  # the old system did not respond


class BootComparison(Struct, frozen=True, kw_only=True):
    """A comparison of the boots that the old system and gitboot serve to one server.

    Values that look like secrets are hidden.
    """

    server: str
    verdict: Verdict
    differences: tuple[tuple[str, str, str], ...] = ()  # (part, value of the old system, value of gitboot)
    message: str = ""


def compare_boots(
    server: str,
    old: OldBoot,
    old_data: str | None,
    new: Boot,
    digests: Mapping[str, str] = {},
    *,
    old_url: str,
    base_url: str,
    macs: Collection[str] = (),
) -> BootComparison:
    """Compare the boot that the old system serves to a server with gitboot's boot.

    ``old_data`` is the user data of the old boot, or None. ``digests`` maps the URLs of the old system's files to
    SHA-256 digests. ``macs`` are the MAC addresses of the boot interfaces, written with colons.
    """

    def is_same_file(url: str | None, file: BootFile | None) -> bool:
        by_content = file is not None and url is not None and digests.get(url) == file.sha256
        return by_content or _normalize_path(url, old_url) == _normalize_path(file.url if file else None, base_url)

    differences = []
    (kernel_url, kernel), *initrds = _pair_files(old, new)
    if not is_same_file(kernel_url, kernel):
        differences.append(("kernel", _redact_secrets(kernel_url), _redact_secrets(kernel.url if kernel else None)))
    if not all(is_same_file(url, file) for url, file in initrds):
        new_initrds = (file.url if file else None for _, file in initrds)
        differences.append(("initrd", _redact_secrets(*old.initrds), _redact_secrets(*new_initrds)))
    differences += _compare_arguments(old.arguments, new.kernel_arguments, macs)
    files = new.user_data.files if new.user_data is not None else {}
    new_data = files.get("user-data") or next(iter(files.values()), None)
    if not _is_same_text(old_data, new_data):
        differences.append(("user data", _format_size(old_data), _format_size(new_data)))
    return BootComparison(
        server=server,
        verdict=Verdict.DIFFERS if differences else Verdict.EQUAL,
        differences=tuple(differences),
    )


def _compare_arguments(
    old: tuple[str, ...], new: tuple[str, ...], macs: Collection[str]
) -> Iterator[tuple[str, str, str]]:
    old_arguments = _list_comparable_arguments(old)
    new_arguments = _list_comparable_arguments(tuple(map(_quote_argument, new)))
    # The old system's arguments name the NIC that fetched the script, so values for different boot NICs are equivalent.
    if any(map(has_boot_nic_placeholder, new_arguments)):
        old_arguments = [_generalize_macs(argument, macs) for argument in old_arguments]
        new_arguments = [_generalize_macs(argument, macs) for argument in new_arguments]
    only_old = Counter(old_arguments) - Counter(new_arguments)
    only_new = Counter(new_arguments) - Counter(old_arguments)
    if only_old or only_new:
        yield "arguments", _redact_secrets(*only_old.elements()), _redact_secrets(*only_new.elements())
    elif old_arguments != new_arguments:
        yield "order of arguments", _redact_secrets(*old_arguments), _redact_secrets(*new_arguments)


def _quote_argument(argument: str) -> str:
    """Return an argument as the kernel receives it, or unchanged if the kernel cannot receive it."""
    try:
        return quote_kernel_argument(argument)
    except QuotingError:
        return argument


def list_moved_files(old: OldBoot, new: Boot, *, old_url: str, base_url: str) -> Iterator[str]:
    """Yield the URLs of the old system's files whose paths differ from those of gitboot's files.

    The content of the files may be the same.
    """
    for url, file in _pair_files(old, new):
        if (
            url is not None
            and file is not None
            and _normalize_path(url, old_url) != _normalize_path(file.url, base_url)
        ):
            yield url


def _pair_files(old: OldBoot, new: Boot) -> Iterator[tuple[str | None, BootFile | None]]:
    yield old.kernel, new.files.kernel or new.direct_uki
    yield from zip_longest(old.initrds, new.files.initrds if new.files.kernel else ())


def _list_comparable_arguments(arguments: tuple[str, ...]) -> list[str]:
    """Return the arguments without request IDs and user data URLs.

    A request ID differs in each request, and gitboot compares the user data itself.
    """
    comparable = []
    for argument in arguments:
        name = argument.partition("=")[0]
        has_data_url = name in USER_DATA_ARGUMENTS and "://" in argument
        if name != "ipa-global-request-id" and not has_data_url:  # Ironic's request ID
            comparable.append(argument)
    return comparable


def _generalize_macs(argument: str, macs: Collection[str]) -> str:
    for mac in macs:
        argument = argument.replace(f"01-{mac.replace(':', '-')}", BOOT_NIC_BOOTIF).replace(mac, BOOT_NIC_MAC)
    return argument


def _normalize_path(url: str | None, base: str) -> str | None:
    if url is None:
        return None
    parts, root = split_url_or_none(url), split_url_or_none(base)
    if parts is None or root is None or parts.netloc != root.netloc:
        return url
    return parts.path.removeprefix(root.path.rstrip("/")).lstrip("/").removeprefix("assets/").removeprefix("cobbler/")


def _is_same_text(old: str | None, new: str | None) -> bool:
    if old is None or new is None:
        return old is new
    try:
        return bool(json.loads(old) == json.loads(new))
    except (ValueError, RecursionError):
        return old.strip() == new.strip()


def _redact_secrets(*values: str | None) -> str:
    return " ".join(f"{each.partition('=')[0][:20]}=…" if is_secret(each) else each for each in values if each) or "-"


def _format_size(text: str | None) -> str:
    return f"{len(text.encode()):,} bytes" if text is not None else "-"


# Requests to the old system


# Paths below the URL in --old. Sources: matchbox, docs/api-http.md; OpenCHAMI BSS, api/swagger.yaml; Tinkerbell smee,
# README; Cobbler 3.3 and 4, services; Ironic, boot.ipxe; boot-operator, server/bootserver.go; MAAS 3,
# provisioningserver/boot/ipxe.py (port 5248 of a rack); Foreman 3, unattended_controller.rb.
SCRIPT_PATHS: Final[Mapping[str, str]] = {
    "matchbox": "ipxe?uuid={uuid}&mac={hexhyp}&serial={serial}&arch={buildarch}",
    "openchami": "boot/v1/bootscript?mac={mac}",
    "tinkerbell": "{mac}/auto.ipxe",
    "cobbler": "cblr/svc/op/ipxe/system/{name}",
    "ironic": "pxelinux.cfg/{hexhyp}",
    "boot-operator": "ipxe/{uuid}",
    "maas": "ipxe.cfg-{mac}",
    "foreman": "unattended/iPXE?mac={mac}",
}
# Paths that gitboot tries if the old system does not serve the first path. boot-service serves boot/v1 only with
# enable_legacy_api.
OTHER_SCRIPT_PATHS: Final[Mapping[str, str]] = {"openchami": "bootscript?mac={mac}"}
# Systems that return the URL of a UKI for UEFI HTTP boot. boot-operator finds the machine by the addresses in
# X-Forwarded-For.
HTTP_BOOT_PATHS: Final[Mapping[str, str]] = {"boot-operator": "httpboot"}


def list_platform_variables(architecture: str | None, firmware: Firmware | None) -> dict[str, str]:
    """Return the iPXE variables for the platform of a machine, which is x86_64 with UEFI if the platform is unknown."""
    if firmware is Firmware.BIOS:
        return {"platform": "pcbios", "buildarch": "i386"}
    return {"platform": "efi", "buildarch": "arm64" if architecture == Architecture.AARCH64 else "x86_64"}


class ComparedMachine(Struct, frozen=True, kw_only=True):
    """A machine whose boot script gitboot requests from the old system."""

    name: str
    uuid: str
    macs: tuple[str, ...]  # the MAC addresses of the boot interfaces, written with colons
    serial: str
    addresses: tuple[str, ...] = ()
    architecture: Architecture = Architecture.X86_64
    firmware: Firmware = Firmware.UEFI

    def list_script_urls(self, old: str, system: str, paths: Mapping[str, str] = SCRIPT_PATHS) -> tuple[str, ...]:
        """Return the URLs at which the old system serves the machine's boot script.

        If the system's URLs contain a MAC address, return one URL for each MAC address of the machine.
        """
        if system not in paths:
            return ()
        urls = []
        for mac in self.macs or ("",):
            values = {"name": self.name, "uuid": self.uuid, "serial": self.serial, "mac": mac}
            values |= list_platform_variables(self.architecture, self.firmware)
            quoted = {key: quote(value, safe=":-") for key, value in values.items()}
            path = paths[system].format(**quoted, hexhyp=quoted["mac"].replace(":", "-"))
            urls.append(f"{old.rstrip('/')}/{path}")
        return tuple(dict.fromkeys(urls))

    def list_variables(self, mac: str) -> dict[str, str]:
        known = {"uuid": self.uuid, "serial": self.serial, "hostname": self.name}
        known |= list_platform_variables(self.architecture, self.firmware)
        for nic in ("", "net0/", "netX/"):
            known |= {f"{nic}mac": mac, f"{nic}mac:hexhyp": mac.replace(":", "-")}
        return known


# Responses of the old system


_OPTIONS_WITH_VALUE: Final = frozenset({"-n", "--name", "-t", "--timeout"})
_QUESTIONS: Final = frozenset({"login", "prompt"})  # no operator answers them
_MAX_LINES: Final = 10_000  # the maximum number of lines in a script


def parse_boot_script(script: str, url: str, variables: Mapping[str, str]) -> OldBoot:
    """Return the boot that the first ``kernel`` line and its ``initrd`` lines describe, with absolute URLs."""
    kernel: str | None = None
    initrds, arguments = list[str](), list[str]()
    chain: str | None = None
    fails = False
    for command, words in _list_commands(script, dict(variables)):
        if command in ("kernel", "imgselect", "imgload") and kernel is None and words:
            kernel, arguments = words[0], split_kernel_arguments(*words[1:])
        elif command == "imgargs" and kernel is not None:
            arguments = split_kernel_arguments(*words[1:])
        elif command in ("initrd", "module", "imgfetch"):
            initrds += [word for word in words if "/" in word]
        elif command == "boot" and kernel is not None:
            break
        elif command in ("boot", "halt") and not words:
            fails = True  # boot-service's script for an unknown node contains this command
        elif command == "chain" and kernel is None and chain is None and words:
            chain = words[0]
    return OldBoot(
        kernel=_make_absolute(url, kernel) if kernel else None,
        initrds=tuple(_make_absolute(url, each) for each in initrds),
        arguments=tuple(each for each in arguments if not each.startswith("initrd=")),
        chain=_make_absolute(url, chain) if chain and not kernel else None,
        fails=fails and kernel is None and chain is None,
    )


def parse_http_boot(answer: str, uuid: str, data_url: str) -> OldBoot | None:
    """Return the boot in boot-operator's response to a UEFI HTTP boot request.

    Return None if the response is malformed or is for a different UUID.
    """
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    uki, answer_uuid = (as_text(get_nested(document, key)) for key in ("UKIURL", "SystemUUID"))
    if uki is None or answer_uuid is None or answer_uuid.lower() != uuid.lower():
        return None
    return OldBoot(kernel=uki, data_url=data_url)


def _make_absolute(base: str, url: str) -> str:
    # Cobbler writes URLs of other servers in GRUB's notation even in iPXE scripts.
    url = re.sub(r"^\((https?),([^)]*)\)", r"\1://\2", url)
    return urljoin(base, url) if split_url_or_none(url) is not None else url


def _list_commands(script: str, variables: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the arguments of each command that iPXE runs if all downloads succeed, without options.

    A variable that is not in ``variables`` is empty in a condition. The function jumps to each label only once.
    """
    lines = script.replace("\\\n", "").splitlines()[:_MAX_LINES]
    labels = {line.strip()[1:]: number for number, line in enumerate(lines) if line.strip().startswith(":")}
    at = 0
    while at < len(lines):
        succeeded = True
        parts = _split_line(lines[at])
        at += 1
        for separator, part in zip([";", *parts[1::2]], parts[::2], strict=True):
            if separator == ("||" if succeeded else "&&"):
                continue  # iPXE does not run this command
            succeeded = True
            words = re.sub(r"\$\{([^}]*)\}", lambda match: variables.get(match[1], match[0]), part).split()
            if not words or words[0].startswith(":"):
                continue
            command, rest = words[0], words[1:]
            if command == "exit":
                return
            if command == "goto":
                if rest and rest[0] in labels:
                    at = labels.pop(rest[0])
                    break
                succeeded = False
            elif command == "set" and rest:
                variables[rest[0].partition(":")[0]] = " ".join(rest[1:])
            elif command in ("iseq", "isset"):
                values = [word for word in rest if "${" not in word]
                succeeded = bool(values) and (command == "isset" or values[1:] == values[:1])
            elif command in _QUESTIONS:
                succeeded = False
            else:
                while rest and rest[0].startswith("-"):
                    rest = rest[2:] if rest[0] in _OPTIONS_WITH_VALUE else rest[1:]
                yield command, rest


def _split_line(line: str) -> list[str]:
    """Return the commands in a line without comments, and between them their separators: ``;``, ``&&`` or ``||``."""
    words = takewhile(lambda word: not word.startswith("#"), line.split())
    return re.split(r"(?:^| )(;|&&|\|\|)(?= |$)", " ".join(words))
