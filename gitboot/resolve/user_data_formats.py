"""User-data formats: check rendered user data, and describe how systems find it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Final
from xml.parsers.expat import ExpatError, ParserCreate

from gitboot.jsonio import Digest, compute_digest
from gitboot.model.boot_image import UserDataFormat
from gitboot.model.scalars import Malformed, quote_value
from gitboot.problems import Code
from gitboot.resolve.server_decision import UserDataFiles

# The file name that systems expect, by format. For NoCloud formats, the main file of the folder.
_FILE_NAME: Final = {
    UserDataFormat.IGNITION: "config.ign",
    UserDataFormat.KICKSTART: "ks.cfg",
    UserDataFormat.PRESEED: "preseed.cfg",
    UserDataFormat.CLOUD_INIT: "user-data",
    UserDataFormat.AUTOINSTALL: "user-data",
    UserDataFormat.TALOS: "talos.yaml",
    UserDataFormat.AUTOYAST: "autoinst.xml",
    UserDataFormat.COMBUSTION: "script",
    UserDataFormat.GENERIC: "generic",
}

# The kernel arguments with which the first boot finds its user data, by format. Sources: Ignition, "Kernel
# parameters"; cloud-init, "NoCloud"; Ubuntu, "Autoinstall: providing configuration"; Anaconda, "inst.ks";
# Debian installation guide, B.2.3; Talos, "Kernel arguments"; AutoYaST guide, "Invoking the installation"; Combustion's
# README. docs/templates.md has this table, too.
_ARGUMENTS: Final = {
    UserDataFormat.IGNITION: ("ignition.config.url={url}",),
    UserDataFormat.CLOUD_INIT: ("ds=nocloud;s={url}",),
    UserDataFormat.AUTOINSTALL: ("autoinstall", "ds=nocloud;s={url}"),
    UserDataFormat.KICKSTART: ("inst.ks={url}",),
    UserDataFormat.PRESEED: ("auto=true", "url={url}"),
    UserDataFormat.TALOS: ("talos.platform=metal", "talos.config={url}"),
    UserDataFormat.AUTOYAST: ("autoyast={url}",),
    UserDataFormat.COMBUSTION: ("combustion.url={url}",),
    UserDataFormat.GENERIC: (),
}


# The label of the volume that systems look for, and the folder on the volume, by format. Sources: cloud-init,
# "NoCloud"; Talos, "NoCloud"; Anaconda, "inst.ks"; AutoYaST guide, "Invoking the installation"; the READMEs of
# Combustion and of ignition-dracut in openSUSE. There is no volume for Preseed and Generic.
_VOLUMES: Final = {
    UserDataFormat.CLOUD_INIT: ("cidata", ""),
    UserDataFormat.AUTOINSTALL: ("cidata", ""),
    UserDataFormat.TALOS: ("cidata", ""),
    UserDataFormat.KICKSTART: ("OEMDRV", ""),
    UserDataFormat.AUTOYAST: ("OEMDRV", ""),
    UserDataFormat.COMBUSTION: ("combustion", "combustion/"),
    UserDataFormat.IGNITION: ("ignition", "ignition/"),
}


def parse_family(format: str) -> UserDataFormat:
    return UserDataFormat(format.partition("/")[0])


def user_data_arguments(user_data: UserDataFiles) -> tuple[str, ...]:
    """Return the kernel arguments with which the first boot finds its user data."""
    return tuple(argument.format(url=user_data.url) for argument in _ARGUMENTS[parse_family(user_data.format)])


def find_volume(format: str) -> tuple[str, str] | None:
    """Return the label of the volume on which systems look for a format, and the folder, or None if there is no
    volume.
    """
    return _VOLUMES.get(parse_family(format))


def format_meta_data(instance: Mapping[str, str]) -> str:
    """Return the meta-data file of NoCloud, which identifies the system."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in sorted(instance.items()))


def bundle_files(
    format: str, text: str, beside: Mapping[str, str], *, instance: Mapping[str, str], base_url: str
) -> UserDataFiles:
    """Return rendered text as files for publication.

    NoCloud also needs a meta-data file, and accepts the additional files in ``beside``.
    """
    name = _FILE_NAME[parse_family(format)]
    if name != "user-data":
        content = Digest(sha256(text.encode()).hexdigest())
        return UserDataFiles(format=format, files={name: text}, digest=content, url=f"{base_url}/o/{content}/{name}")
    files = dict(sorted({"meta-data": format_meta_data(instance), "user-data": text, **beside}.items()))
    bundle = compute_digest({name: sha256(content.encode()).hexdigest() for name, content in files.items()})
    return UserDataFiles(format=format, files=files, digest=bundle, url=f"{base_url}/o/{bundle}/")


def is_understood(format: str, supported: str) -> bool:
    """Return whether an image that supports the format ``supported`` can read user data of ``format``."""
    if supported == "None" or parse_family(format) is not parse_family(supported):
        return False
    return _parse_minor(format) <= _parse_minor(supported)


def _parse_minor(format: str) -> int:
    return int(format.partition("/3.")[2] or 0)


def check(format: str, text: str) -> None:
    """Raise `Malformed` if rendered user data does not have this format."""
    _CHECKS[parse_family(format)](format, text)


def check_beside(format: str, name: str, text: str) -> None:
    """Raise `Malformed` if NoCloud does not accept an additional file with this name and content."""
    if _FILE_NAME[parse_family(format)] != "user-data":
        raise Malformed(
            Code.BESIDE_USER_DATA, f"{name} is a file of NoCloud, which {format} does not use", f"remove {name}"
        )
    if name == "network-config":
        if not _NETWORK_CONFIG.search(text):
            raise Malformed(
                Code.BESIDE_USER_DATA,
                "the rendered network-config has no version, so cloud-init cannot read it",
                "begin it with `version: 2` (netplan) or `version: 1`",
            )
    elif text.strip() and not text.startswith(_CLOUD_INIT_STARTS):
        raise Malformed(
            Code.BESIDE_USER_DATA,
            f"the rendered vendor-data begins with {quote_value(text.partition(chr(10))[0])}, which cloud-init ignores",
            "begin its first line with #cloud-config, #! or ## template: jinja",
        )


# cloud-init, "Networking config": versions 1 and 2, with or without a top-level key `network`.
_NETWORK_CONFIG: Final = re.compile(r"^(?:network:\s*\n\s+)?version:\s*[12]\s*(?:#.*)?$", re.MULTILINE)


def _make_error(message: str, hint: str, code: Code = Code.USER_DATA_DOCUMENT) -> Malformed:
    return Malformed(code, message, hint)


def _check_ignition(format: str, text: str) -> None:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _make_error(
            f"the rendered Ignition document is not JSON: {error}",
            "correct the JSON; convert a Butane file with `butane` before you commit it",
        ) from None
    section = config.get("ignition") if isinstance(config, dict) else None
    version = section.get("version") if isinstance(section, dict) else None
    if not isinstance(version, str):
        raise _make_error(
            "the rendered Ignition document has no ignition.version",
            f'begin it with {{"ignition": {{"version": "3.{_parse_minor(format)}.0"}}',
        )
    if version.startswith(("1", "2")):
        raise _make_error(
            f"the rendered Ignition document has version {quote_value(version)}, which Ignition 3 rejects",
            "convert the document with ign-converter and commit the result",
        )
    if not re.fullmatch(rf"3\.{_parse_minor(format)}\.0", version):
        raise _make_error(
            f"the rendered Ignition document has version {quote_value(version)}, but the profile has {format}",
            f"write ignition.version 3.{_parse_minor(format)}.0, or correct the profile's userData.format",
        )


_CLOUD_INIT_STARTS: Final = (
    "#cloud-config",
    "#!",
    "## template: jinja",
    "Content-Type: multipart",
    "#include",
)


def _check_cloud_init(format: str, text: str) -> None:
    if not text.startswith(_CLOUD_INIT_STARTS):
        raise _make_error(
            f"the rendered user data begins with {quote_value(text.partition(chr(10))[0])}, which cloud-init ignores",
            "begin its first line with #cloud-config, #! or ## template: jinja",
        )


def _check_autoinstall(format: str, text: str) -> None:
    if not text.startswith("#cloud-config") or not re.search(r"^autoinstall:", text, re.MULTILINE):
        raise _make_error(
            "the rendered user data is not an autoinstall configuration",
            "begin it with #cloud-config, and put everything below the key autoinstall:",
        )


_KICKSTART_COMMAND: Final = re.compile(r"[a-z][a-z0-9]*\b|%|#|$")


def _check_kickstart(format: str, text: str) -> None:
    section = False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("%"):
            section = stripped != "%end" and not stripped.startswith(("%include", "%ksappend"))
        elif not section and not _KICKSTART_COMMAND.match(stripped):
            raise _make_error(
                f"line {number} of the rendered kickstart is not a command: {quote_value(stripped)}",
                "correct the template",
            )
    if section:
        raise _make_error("the rendered kickstart leaves a section open", "close the section with %end")


def _check_preseed(format: str, text: str) -> None:
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#") and len(line.split()) < 3:
            raise _make_error(
                f"line {number} of the rendered preseed is not an answer: {quote_value(line.strip())}",
                "write OWNER QUESTION TYPE VALUE, for example d-i clock-setup/utc boolean true",
            )


# Talos: the machine document has `version: v1alpha1`. Other documents have `apiVersion: v1alpha1`.
_TALOS_DOCUMENT: Final = re.compile(r"^(?:version:\s*[\"']?v1alpha1|apiVersion:\s*[\"']?v1alpha1)\b", re.MULTILINE)
_TALOS_MACHINE: Final = re.compile(r"^machine:", re.MULTILINE)
_TALOS_TYPE: Final = re.compile(r"^\s+type:\s*[\"']?(?:controlplane|worker|init)\b", re.MULTILINE)


def _check_talos(format: str, text: str) -> None:
    if text.startswith(_CLOUD_INIT_STARTS) or not _TALOS_DOCUMENT.search(text):
        raise _make_error(
            "the rendered text is not a Talos configuration, because it has no `version: v1alpha1`",
            "commit the output of `talosctl gen config` or `talosctl machineconfig patch`",
            Code.TALOS_DOCUMENT,
        )
    if _TALOS_MACHINE.search(text) and not _TALOS_TYPE.search(text):
        raise _make_error(
            "the rendered Talos configuration has no machine.type",
            "write type: controlplane or type: worker below machine:",
            Code.TALOS_DOCUMENT,
        )


_YAST: Final = "http://www.suse.com/1.0/yast2ns"


def _check_autoyast(format: str, text: str) -> None:
    """Check that the text is well-formed XML and an AutoYaST profile. Entities are rejected, not expanded."""
    roots: list[str] = []
    parser = ParserCreate(namespace_separator=" ")
    parser.StartElementHandler = lambda name, _: roots.append(name) if not roots else None
    parser.EntityDeclHandler = _reject_entity
    try:
        parser.Parse(text.encode(), True)
    except ExpatError as error:
        raise _make_error(
            f"the rendered AutoYaST profile is not well-formed XML: {error}",
            "correct the template",
            Code.AUTOYAST_DOCUMENT,
        ) from None
    if roots[:1] != [f"{_YAST} profile"]:
        raise _make_error(
            f"the rendered XML begins with <{quote_value(roots[0].rpartition(' ')[2])}>, not with an AutoYaST profile",
            f'begin it with <profile xmlns="{_YAST}">',
            Code.AUTOYAST_DOCUMENT,
        )


def _reject_entity(name: str, *_: object) -> None:
    raise _make_error(
        f"the rendered AutoYaST profile declares an entity, {quote_value(name)}",
        "replace the entity with its text",
        Code.AUTOYAST_DOCUMENT,
    )


def _check_combustion(format: str, text: str) -> None:
    if not text.startswith("#!"):
        raise _make_error(
            f"Combustion does not run the rendered script, which begins with {quote_value(text.partition(chr(10))[0])}",
            "begin it with #!/bin/bash, and with `# combustion: network` if it needs the network",
            Code.COMBUSTION_SCRIPT,
        )


def _check_generic(format: str, text: str) -> None:
    """Accept any text."""


_CHECKS: Final[Mapping[UserDataFormat, Callable[[str, str], None]]] = {
    UserDataFormat.IGNITION: _check_ignition,
    UserDataFormat.CLOUD_INIT: _check_cloud_init,
    UserDataFormat.AUTOINSTALL: _check_autoinstall,
    UserDataFormat.KICKSTART: _check_kickstart,
    UserDataFormat.PRESEED: _check_preseed,
    UserDataFormat.TALOS: _check_talos,
    UserDataFormat.AUTOYAST: _check_autoyast,
    UserDataFormat.COMBUSTION: _check_combustion,
    UserDataFormat.GENERIC: _check_generic,
}
