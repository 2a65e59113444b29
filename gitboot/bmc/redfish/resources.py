"""Redfish resources: convert the JSON of a BMC to gitboot's types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct, structs

from gitboot.bmc.identity import ReportedIdentity
from gitboot.bmc.override_state import (
    BOOT_PROGRESS,
    BmcObservation,
    MediaSlot,
    Override,
    ResetMarks,
    as_utc,
    parse_time,
)
from gitboot.bmc.redfish.quirks import (
    ENABLED,
    HTTP_BOOT_URI,
    MODE,
    STANDARD,
    TARGET,
    ModePolicy,
    Quirks,
    find_cd_target,
    find_quirks,
)
from gitboot.errors import BmcRejected
from gitboot.model.scalars import Malformed, parse_uuid
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget

_POST_STATES = frozenset(
    {
        # BootProgress.LastState, DSP0268
        *BOOT_PROGRESS[: BOOT_PROGRESS.index("OSBootStarted")],
        "SetupEntered",
        # Oem.Hpe.PostState, HpeComputerSystemExt
        "Reset",
        "InPost",
        "InPostDiscoveryComplete",
    }
)
_PROTOCOLS = frozenset({"HTTP", "HTTPS"})  # the protocols of the URLs in BootImages
_RESET_ACTION = ("Actions", "#ComputerSystem.Reset")
_STATES_AFTER_POST = frozenset({"OSBootStarted", "OSRunning", "FinishedPost"})


class Resource(Struct, frozen=True, kw_only=True):
    """A Redfish resource that gitboot read from a BMC."""

    url: str  # the URL after redirects
    body: Mapping[str, Any]
    etags: tuple[str, ...] = ()  # the ETags in the header and in the body, as `read_etags` returns them

    @property
    def path(self) -> str:
        return urlsplit(self.url).path

    @property
    def boot(self) -> Mapping[str, Any]:
        """The resource's ``Boot`` object, or an empty mapping."""
        return _as_mapping(self.body.get("Boot"))

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The ``Attributes`` of a Bios resource, or an empty mapping."""
        return _as_mapping(self.body.get("Attributes"))

    @property
    def can_apply_at_reset(self) -> bool:
        """Return whether changes to the Settings resource can be applied at the next reset."""
        return "OnReset" in _as_text_set(_get_nested(self.body, ("@Redfish.Settings", "SupportedApplyTimes")))

    def link(self, *keys: str) -> str | None:
        """Return the path of the resource that the property at ``keys`` links to."""
        path = _get_nested(self.body, (*keys, "@odata.id"))
        return path if isinstance(path, str) else None

    @property
    def members(self) -> tuple[str, ...]:
        members = self.body.get("Members")
        paths = [_as_mapping(member).get("@odata.id") for member in members] if isinstance(members, list) else []
        return tuple(path for path in paths if isinstance(path, str))


def build_observation(system: Resource, settings: Resource | None) -> BmcObservation:
    """Build an observation of a system.

    ``settings`` is the system's Settings resource if that resource contains the override.

    Raises `BmcRejected` if the resource contains no override.
    """
    quirks = find_quirks(system.path, system.body)
    boot_order = system.boot.get("BootOrder")
    override_resource = settings or system
    boot = override_resource.boot
    power = _as_text(system.body.get("PowerState"))
    progress = _as_text(_get_nested(system.body, ("BootProgress", "LastState")))
    state = progress or _as_text(_get_nested(system.body, ("Oem", "Hpe", "PostState"))) if power != "Off" else None
    progress_time = _parse_time_text(_get_nested(system.body, ("BootProgress", "LastStateTime")))
    is_final_progress = progress is not None and progress == quirks.last_progress and progress_time is None
    targets, enabled_values = (_list_allowable_values(name, system, settings) for name in (TARGET, ENABLED))
    return BmcObservation(
        system=system.path,
        override=_parse_override(override_resource, enabled_values),
        identity=parse_identity(system.body),
        marks=ResetMarks(
            last_reset_time=_parse_time_text(_get_nested(system.body, quirks.reset_time)),
            boot_progress=progress,
            boot_progress_time=progress_time,
            settled=power == "On" and state in _STATES_AFTER_POST,
        ),
        power=power,
        in_post=state in _POST_STATES and not is_final_progress,
        runs_os=state == "OSRunning",
        allowable_targets=targets,
        allowable_enabled=enabled_values,
        supports_http_boot_uri=quirks.takes_http_boot_uri and HTTP_BOOT_URI in boot,
        mode_is_fixed=quirks.mode is ModePolicy.NEVER,
        continuous_http=quirks.continuous_http,
        cd_target=find_cd_target(quirks, system.body, targets),
        settings_path=override_resource.path,
        etags=override_resource.etags,
        quirks_name=quirks.name,
        manager_path=find_manager_path(system.body),
        reset_action=_as_text(_get_nested(system.body, (*_RESET_ACTION, "target"))),
        reset_types=_as_text_set(_get_nested(system.body, (*_RESET_ACTION, "ResetType@Redfish.AllowableValues"))),
        action_info_path=_as_text(_get_nested(system.body, (*_RESET_ACTION, "@Redfish.ActionInfo"))),
        virtual_media_path=system.link("VirtualMedia"),
        boot_order=tuple(filter(None, map(_as_text, boot_order))) if isinstance(boot_order, list) else (),
        secure_boot_path=system.link("SecureBoot"),
        bios_path=system.link("Bios"),
        has_uri_setting=quirks.firmware_uri is not None and system.link("Bios") is not None,
    )


def parse_secure_boot(secure_boot: Resource) -> bool | None:
    """Return whether Secure Boot will be on at the next boot, or None if the resource does not report this.

    SecureBootEnable applies from the next boot on. SecureBootCurrentBoot applies to the current boot (DSP0268).
    """
    is_enabled = secure_boot.body.get("SecureBootEnable")
    if isinstance(is_enabled, bool):
        return is_enabled
    current_boot = _as_text(secure_boot.body.get("SecureBootCurrentBoot"))
    return {"Enabled": True, "Disabled": False}.get(current_boot or "")


def parse_reset_types(info: Resource) -> frozenset[str]:
    """Return the ResetType values that an ActionInfo allows (DSP0266, 7.8.4)."""
    parameters = info.body.get("Parameters")
    for parameter in map(_as_mapping, parameters if isinstance(parameters, list) else []):
        if parameter.get("Name") == "ResetType":
            return _as_text_set(parameter.get("AllowableValues"))
    return frozenset()


def parse_slot(resource: Resource, quirks: Quirks = STANDARD) -> MediaSlot:
    """Return the slot that a VirtualMedia resource describes."""
    body = resource.body
    insert = _as_mapping(_get_nested(body, ("Actions", "#VirtualMedia.InsertMedia")))
    eject = _as_mapping(_get_nested(body, ("Actions", "#VirtualMedia.EjectMedia")))
    image = _as_text(body.get("Image"))
    inserted = bool(body["Inserted"]) if body.get("Inserted") is not None else image is not None
    if quirks.shows_ejected_media and body.get("ConnectedVia") == "NotConnected":
        image, inserted = None, False
    protocols = _as_text_set(insert.get("TransferProtocolType@Redfish.AllowableValues"))
    return MediaSlot(
        path=resource.path,
        image=image,
        inserted=inserted,
        types=_as_text_set(body.get("MediaTypes")),
        insert_target=_as_text(insert.get("target")),
        eject_target=_as_text(eject.get("target")),
        protocols=protocols or (_PROTOCOLS if quirks.sends_media_protocol else frozenset()),
        etags=resource.etags,
        may_be_stale=quirks.shows_stale_media,
    )


def add_clock(marks: ResetMarks, manager: Resource, at: datetime) -> ResetMarks:
    """Return ``marks`` with the Manager's clock, if the Manager reports a clock.

    ``at`` is the current time according to gitboot's clock.
    """
    text = _as_text(manager.body.get("DateTime")) or ""
    has_offset = text.endswith("Z") or "+" in text or "-" in text[10:]
    bmc_time = text if has_offset else text + (_as_text(manager.body.get("DateTimeLocalOffset")) or "")
    if (instant := parse_time(bmc_time)) is None:
        return marks
    return structs.replace(
        marks,
        bmc_time=bmc_time,
        bmc_ahead_s=round((as_utc(instant) - at).total_seconds()),
        manager_reset_time=_as_text(manager.body.get("LastResetTime")),
    )


def parse_identity(system: Mapping[str, Any]) -> ReportedIdentity:
    """Return the identity that a ComputerSystem reports."""
    serial, sku = (_join_words(_as_text(system.get(name))) for name in ("SerialNumber", "SKU"))
    # BMCs use several notations for a UUID, so gitboot uses only the hexadecimal digits.
    digits = re.sub(r"[^0-9a-f]", "", (_as_text(system.get("UUID")) or "").lower())
    try:
        uuid = parse_uuid(re.sub(r"^(.{8})(.{4})(.{4})(.{4})(.{12})$", r"\1-\2-\3-\4-\5", digits))
    except Malformed:  # the value is a placeholder, because the vendor did not set a UUID
        uuid = None
    return ReportedIdentity(uuid=uuid, serial=serial, sku=sku)


def _join_words(text: str | None) -> str | None:
    """Replace each run of spaces by one space. Return None if there is no text."""
    return " ".join((text or "").split()) or None


def find_manager_path(system: Mapping[str, Any]) -> str | None:
    """Return the path of the first Manager of a ComputerSystem, or None."""
    managers = _get_nested(system, ("Links", "ManagedBy"))
    first = managers[0] if isinstance(managers, list) and managers else None
    return _as_text(_as_mapping(first).get("@odata.id"))


def _list_allowable_values(name: str, system: Resource, settings: Resource | None) -> frozenset[str]:
    """Return the values that the BMC lists for a ``Boot`` property.

    The system's list comes first, as in sushy (BootField). The Settings resource of NVIDIA's BlueField lists targets
    that the firmware cannot boot. The Settings resource of NVIDIA's GH200 lists no targets.
    """
    key = f"{name}@Redfish.AllowableValues"
    return _as_text_set(system.boot.get(key)) or _as_text_set(settings.boot.get(key) if settings is not None else None)


def _parse_override(resource: Resource, enabled_values: frozenset[str]) -> Override:
    boot = resource.boot
    if TARGET not in boot:
        raise BmcRejected(f"{resource.url} has no Boot.{TARGET}")
    enabled = _as_text(boot.get(ENABLED)) or OverrideEnabled.DISABLED
    target = _as_text(boot[TARGET]) or OverrideTarget.NONE
    if target == OverrideTarget.NONE and enabled_values and OverrideEnabled.DISABLED not in enabled_values:
        # on a BMC without the value Disabled, the target None means that there is no override
        enabled = OverrideEnabled.DISABLED
    if enabled not in set(OverrideEnabled):
        raise BmcRejected(
            f"{resource.url} shows {enabled!r} as Boot.{ENABLED}, but gitboot supports only these values: "
            f"{', '.join(OverrideEnabled)}"
        )
    return Override(
        enabled=OverrideEnabled(enabled),
        target=target,
        mode=_as_text(boot.get(MODE)),
        http_boot_uri=_as_text(boot.get(HTTP_BOOT_URI)),
    )


def _parse_time_text(value: object) -> str | None:
    """Return a time in the BMC's notation, or None for a placeholder such as 1970, which OpenBMC uses for "never"."""
    text = _as_text(value)
    return text if text and text >= "2000" else None


def _get_nested(body: Mapping[str, Any], keys: tuple[str, ...]) -> object:
    value: object = body if keys else None
    for key in keys:
        value = _as_mapping(value).get(key)
    return value


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _as_text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _as_text_set(value: object) -> frozenset[str]:
    return frozenset(filter(None, map(_as_text, value))) if isinstance(value, list) else frozenset()
