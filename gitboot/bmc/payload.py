"""A ComputerSystem's JSON, and that of its Settings resource -> what was observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gitboot.bmc.override import Enabled, Marks, Observed, Override, Target
from gitboot.bmc.quirks import ENABLED, HTTP_BOOT_URI, MODE, TARGET, Mode, Quirks, quirks_of
from gitboot.errors import BmcRejected

_IN_POST = frozenset(
    {
        # BootProgress.LastState, DSP0268
        "PrimaryProcessorInitializationStarted",
        "BusInitializationStarted",
        "MemoryInitializationStarted",
        "SecondaryProcessorInitializationStarted",
        "PCIResourceConfigStarted",
        "SystemHardwareInitializationComplete",
        "SetupEntered",
        # Oem.Hpe.PostState, HpeComputerSystemExt
        "Reset",
        "InPost",
        "InPostDiscoveryComplete",
    }
)
_PAST_POST = frozenset({"OSBootStarted", "OSRunning", "FinishedPost"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Resource:
    """A Redfish resource as it was read."""

    url: str  # where it was found, after a redirect
    body: Mapping[str, Any]
    etag: str | None

    @property
    def path(self) -> str:
        return urlsplit(self.url).path

    @property
    def boot(self) -> Mapping[str, Any]:
        """Its ``Boot`` object, empty if it has none."""
        return _mapping(self.body.get("Boot"))

    def link(self, *keys: str) -> str | None:
        """The path of the resource that stands under ``keys``."""
        path = _at(self.body, (*keys, "@odata.id"))
        return path if isinstance(path, str) else None

    @property
    def members(self) -> tuple[str, ...]:
        """The paths of a collection's members."""
        members = self.body.get("Members")
        paths = [_mapping(member).get("@odata.id") for member in members] if isinstance(members, list) else []
        return tuple(path for path in paths if isinstance(path, str))


def observe(system: Resource, settings: Resource | None) -> Observed:
    """Tell what a system shows; ``settings`` is its Settings resource, if that takes its overrides.

    Raises `BmcRejected` where there is no override to be seen.
    """
    quirks = quirks_of(system.path, system.body)
    takes_overrides = settings or system
    boot = takes_overrides.boot
    power = _text(system.body.get("PowerState"))
    state = None if power == "Off" else _boot_state(system.body)
    return Observed(
        system=system.path,
        override=_override(takes_overrides),
        marks=Marks(
            last_reset_time=_instant(_at(system.body, quirks.reset_time)),
            boot_progress_time=_instant(_at(system.body, ("BootProgress", "LastStateTime"))),
            settled=power == "On" and state in _PAST_POST,
        ),
        power=power,
        in_post=state in _IN_POST,
        runs_os=state == "OSRunning",
        allowable_targets=_texts(boot.get(f"{TARGET}@Redfish.AllowableValues")),
        supports_http_boot_uri=quirks.takes_http_boot_uri and HTTP_BOOT_URI in boot,
        mode_is_fixed=quirks.mode is Mode.NEVER,
        continuous_http=quirks.continuous_http,
        boots_cd_as=_boots_cd_as(quirks, boot),
        settings=takes_overrides.path,
        etag=takes_overrides.etag,
        bmc=quirks.name,
    )


def _override(resource: Resource) -> Override:
    boot = resource.boot
    if TARGET not in boot:
        raise BmcRejected(f"{resource.url} shows no Boot.{TARGET}")
    enabled = _text(boot.get(ENABLED)) or Enabled.DISABLED
    if enabled not in set(Enabled):
        raise BmcRejected(f"{resource.url} shows Boot.{ENABLED} {enabled!r}, not one of {', '.join(Enabled)}")
    return Override(
        enabled=Enabled(enabled),
        target=_text(boot[TARGET]) or Target.NONE,
        mode=_text(boot.get(MODE)),
        http_boot_uri=_text(boot.get(HTTP_BOOT_URI)),
    )


def _boot_state(system: Mapping[str, Any]) -> str | None:
    return _text(_at(system, ("BootProgress", "LastState"))) or _text(_at(system, ("Oem", "Hpe", "PostState")))


def _boots_cd_as(quirks: Quirks, boot: Mapping[str, Any]) -> Target:
    listed = quirks.boots_cd_as in _texts(boot.get(f"{TARGET}@Redfish.AllowableValues"))
    return quirks.boots_cd_as if listed else Target.CD


def _instant(value: object) -> str | None:
    """An instant as it was written, or None if it is a placeholder: OpenBMC's for "never" is 1970."""
    text = _text(value)
    return text if text and text >= "2000" else None


def _at(body: Mapping[str, Any], keys: tuple[str, ...]) -> object:
    value: object = body if keys else None
    for key in keys:
        value = _mapping(value).get(key)
    return value


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _texts(value: object) -> frozenset[str]:
    return frozenset(filter(None, map(_text, value))) if isinstance(value, list) else frozenset()
