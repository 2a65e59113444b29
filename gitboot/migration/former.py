"""What an old system answers a machine: under which path it is asked, and what its iPXE script boots."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urljoin

# Paths below --old. Sources: matchbox, docs/api-http.md; OpenCHAMI BSS, api/swagger.yaml; Tinkerbell smee, README;
# Cobbler 3.3, services; Ironic, boot.ipxe; boot-operator, server/bootserver.go.
SHAPES: Final[Mapping[str, str]] = {
    "matchbox": "ipxe?uuid={uuid}&mac={hexhyp}&serial={serial}",
    "openchami": "boot/v1/bootscript?mac={mac}",
    "tinkerbell": "{mac}/auto.ipxe",
    "cobbler": "cblr/svc/op/ipxe/system/{name}",
    "ironic": "pxelinux.cfg/{hexhyp}",
    "boot-operator": "ipxe/{uuid}",
}
_TAKE_A_VALUE: Final = frozenset({"-n", "--name", "-t", "--timeout"})
_STEPS: Final = 10_000  # lines that are looked at
_URL: Final = re.compile(r"https?://[^\s;]+")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asker:
    """The machine that asks."""

    name: str
    uuid: str
    macs: tuple[str, ...]  # with colons, those that boot
    serial: str

    def urls(self, old: str, shape: str) -> tuple[str, ...]:
        """Where it may find its script: by each of its MAC addresses, if by any."""
        found = []
        for mac in self.macs or ("",):
            hexhyp = mac.replace(":", "-")
            values = {"name": self.name, "uuid": self.uuid, "serial": self.serial, "mac": mac, "hexhyp": hexhyp}
            path = SHAPES[shape].format_map({key: quote(value, safe=":-") for key, value in values.items()})
            found.append(f"{old.rstrip('/')}/{path}")
        return tuple(dict.fromkeys(found))

    def variables(self, mac: str) -> dict[str, str]:
        """What its iPXE knows of it."""
        hexhyp = mac.replace(":", "-")
        known = {"uuid": self.uuid, "serial": self.serial, "hostname": self.name}
        for nic in ("", "net0/"):
            known |= {f"{nic}mac": mac, f"{nic}mac:hexhyp": hexhyp}
        return known


@dataclass(frozen=True, kw_only=True, slots=True)
class OldBoot:
    """What a script boots; no kernel: the disk, or what it chains to."""

    kernel: str | None = None
    initrds: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    chain: str | None = None

    @property
    def user_data_url(self) -> str | None:
        """Where its system is led to."""
        found = (_URL.search(each.partition("=")[2]) for each in self.arguments if each.partition("=")[0] in LEADS)
        return next((match[0] for match in found if match), None)


# Arguments by which a first boot is led to its user data.
LEADS: Final = frozenset(
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


def boot_of(script: str, url: str, variables: Mapping[str, str]) -> OldBoot:
    """What the first ``kernel`` of an iPXE script boots, with the ``initrd`` that follow; URLs are made absolute."""
    kernel, initrds, arguments, chain = None, list[str](), list[str](), None
    for command, words in _commands(script, dict(variables)):
        if command in ("kernel", "imgselect", "imgload") and kernel is None and words:
            kernel, *arguments = words
        elif command == "imgargs" and kernel is not None:
            arguments = words[1:]
        elif command in ("initrd", "module"):
            initrds += [word for word in words if "/" in word]
        elif command == "boot" and kernel is not None:
            break
        elif command == "chain" and kernel is None and chain is None and words:
            chain = words[0]
    return OldBoot(
        kernel=_absolute(url, kernel) if kernel else None,
        initrds=tuple(_absolute(url, each) for each in initrds),
        arguments=tuple(each for each in arguments if not each.startswith("initrd=")),
        chain=_absolute(url, chain) if chain and not kernel else None,
    )


def _absolute(base: str, url: str) -> str:
    """A script's URL, also as GRUB spells it, which Cobbler gives iPXE as well for what lies at another server."""
    return urljoin(base, re.sub(r"^\((https?),([^)]*)\)", r"\1://\2", url))


def _commands(script: str, variables: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """A script's commands and their words, without options, and without what follows ``||``.

    A ``goto`` that nothing depends on is followed, to each label once.
    """
    lines = script.replace("\\\n", "").splitlines()[:_STEPS]
    labels = {line.strip()[1:]: number for number, line in enumerate(lines) if line.strip().startswith(":")}
    at = 0
    while at < len(lines):
        line, at = lines[at], at + 1
        line = re.sub(r"\$\{([^}]*)\}", lambda match: variables.get(match[1], match[0]), line)
        words = re.split(r"\s(?:\|\||&&)(?:\s|$)", line.strip(), maxsplit=1)[0].split()
        if not words or words[0].startswith(("#", ":")):
            continue
        command, rest = words[0], words[1:]
        if command == "goto" and rest:
            at = labels.pop(rest[0], at)
            continue
        if command == "set" and rest:
            variables[rest[0].partition(":")[0]] = " ".join(rest[1:])
            continue
        while rest and rest[0].startswith("-"):
            rest = rest[2:] if rest[0] in _TAKE_A_VALUE else rest[1:]
        yield command, rest
