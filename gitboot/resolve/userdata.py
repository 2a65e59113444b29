"""Rendered user data: whether it is what its format says, and how a system finds it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Final

from gitboot.canonical import digest
from gitboot.model.image import UserDataFormat
from gitboot.model.scalars import Digest, Malformed, shown
from gitboot.plan import UserDataFiles
from gitboot.problems.codes import Code

# The file that a format's systems expect; a bundle's main file for the NoCloud formats.
_FILE_NAME: Final = {
    UserDataFormat.IGNITION: "config.ign",
    UserDataFormat.KICKSTART: "ks.cfg",
    UserDataFormat.PRESEED: "preseed.cfg",
    UserDataFormat.CLOUD_INIT: "user-data",
    UserDataFormat.AUTOINSTALL: "user-data",
}

# The kernel arguments by which each format's first boot finds its user data. Sources: Ignition, "Kernel
# parameters"; cloud-init, "NoCloud"; Ubuntu, "Autoinstall: providing configuration"; Anaconda, "inst.ks";
# Debian installation guide, B.2.3.
_ARGUMENTS: Final = {
    UserDataFormat.IGNITION: ("ignition.config.url={url}",),
    UserDataFormat.CLOUD_INIT: ("ds=nocloud;s={url}",),
    UserDataFormat.AUTOINSTALL: ("autoinstall", "ds=nocloud;s={url}"),
    UserDataFormat.KICKSTART: ("inst.ks={url}",),
    UserDataFormat.PRESEED: ("auto=true", "url={url}"),
}


def family(format: str) -> UserDataFormat:
    return UserDataFormat(format.partition("/")[0])


def arguments(user_data: UserDataFiles) -> tuple[str, ...]:
    """The kernel arguments that lead a first boot to its user data."""
    return tuple(argument.format(url=user_data.url) for argument in _ARGUMENTS[family(user_data.format)])


def bundled(format: str, text: str, *, instance: Mapping[str, str], base_url: str) -> UserDataFiles:
    """Rendered text as the files to publish; NoCloud wants meta-data beside user-data."""
    name = _FILE_NAME[family(format)]
    if name != "user-data":
        content = Digest(sha256(text.encode()).hexdigest())
        return UserDataFiles(format=format, files={name: text}, digest=content, url=f"{base_url}/o/{content}/{name}")
    meta_data = "".join(f"{key}: {json.dumps(value)}\n" for key, value in sorted(instance.items()))
    files = {"meta-data": meta_data, "user-data": text}
    bundle = digest({name: sha256(content.encode()).hexdigest() for name, content in files.items()})
    return UserDataFiles(format=format, files=files, digest=bundle, url=f"{base_url}/o/{bundle}/")


def understood(format: str, at_most: str) -> bool:
    """Whether an image that takes ``at_most`` takes user data of ``format``."""
    if at_most == "None" or family(format) is not family(at_most):
        return False
    return _minor(format) <= _minor(at_most)


def _minor(format: str) -> int:
    return int(format.partition("/3.")[2] or 0)


def check(format: str, text: str) -> None:
    """Raise `Malformed` where rendered user data is not what ``format`` says."""
    _CHECKS[family(format)](format, text)


def _malformed(message: str, hint: str) -> Malformed:
    return Malformed(Code.USER_DATA_DOCUMENT, message, hint)


def _check_ignition(format: str, text: str) -> None:
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "Ignition is JSON; convert a Butane file with `butane` before it is committed"
        raise _malformed(f"the rendered Ignition document is not JSON: {error}", hint) from None
    section = config.get("ignition") if isinstance(config, dict) else None
    version = section.get("version") if isinstance(section, dict) else None
    if not isinstance(version, str):
        raise _malformed(
            "the rendered Ignition document names no ignition.version",
            f'begin it with {{"ignition": {{"version": "3.{_minor(format)}.0"}}',
        )
    if version.startswith(("1", "2")):
        raise _malformed(
            f"the rendered Ignition document is of specification {shown(version)}, which images of Ignition 3 refuse",
            "convert it once with ign-converter and commit the result",
        )
    if not re.fullmatch(rf"3\.{_minor(format)}\.0", version):
        raise _malformed(
            f"the rendered Ignition document is of version {shown(version)}, the profile says {format}",
            f"write ignition.version 3.{_minor(format)}.0, or correct the profile's userData.format",
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
        raise _malformed(
            f"the rendered user data begins with {shown(text.partition(chr(10))[0])}, which cloud-init ignores",
            "begin its first line with #cloud-config, #! or ## template: jinja",
        )


def _check_autoinstall(format: str, text: str) -> None:
    if not text.startswith("#cloud-config") or not re.search(r"^autoinstall:", text, re.MULTILINE):
        raise _malformed(
            "the rendered user data is no autoinstall configuration",
            "begin it with #cloud-config and hold everything below one key, autoinstall:",
        )


_KICKSTART_COMMAND: Final = re.compile(r"[a-z][a-z0-9]*\b|%|#|$")


def _check_kickstart(format: str, text: str) -> None:
    section = False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("%"):
            section = stripped != "%end" and not stripped.startswith(("%include", "%ksappend"))
        elif not section and not _KICKSTART_COMMAND.match(stripped):
            raise _malformed(
                f"line {number} of the rendered kickstart is no command: {shown(stripped)}",
                "correct the template",
            )
    if section:
        raise _malformed("the rendered kickstart leaves a section open", "close it with %end")


def _check_preseed(format: str, text: str) -> None:
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#") and len(line.split()) < 3:
            raise _malformed(
                f"line {number} of the rendered preseed is no answer: {shown(line.strip())}",
                "write OWNER QUESTION TYPE VALUE: d-i clock-setup/utc boolean true",
            )


_CHECKS: Final[Mapping[UserDataFormat, Callable[[str, str], None]]] = {
    UserDataFormat.IGNITION: _check_ignition,
    UserDataFormat.CLOUD_INIT: _check_cloud_init,
    UserDataFormat.AUTOINSTALL: _check_autoinstall,
    UserDataFormat.KICKSTART: _check_kickstart,
    UserDataFormat.PRESEED: _check_preseed,
}
