"""A ComputerSystem's JSON, and that of its Settings resource -> what was observed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from msgspec import Struct, structs

from gitboot.bmc.identity import Shown
from gitboot.bmc.override_state import MediaSlot, Observed, Override
from gitboot.bmc.reboot_detection import Marks, in_utc, parse
from gitboot.bmc.redfish.quirks import ENABLED, HTTP_BOOT_URI, MODE, TARGET, Mode, quirks_of
from gitboot.errors import BmcRejected
from gitboot.model.scalars import Malformed, parse_uuid
from gitboot.resolve.server_decision import OverrideEnabled, OverrideTarget

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
_RESET = ("Actions", "#ComputerSystem.Reset")
_PAST_POST = frozenset({"OSBootStarted", "OSRunning", "FinishedPost"})


class Resource(Struct, frozen=True, kw_only=True):
    """A Redfish resource as it was read."""

    url: str  # where it was found, after a redirect
    body: Mapping[str, Any]
    etags: tuple[str, ...] = ()  # of the header and of the body, as `read_etags` returns them

    @property
    def path(self) -> str:
        return urlsplit(self.url).path

    @property
    def boot(self) -> Mapping[str, Any]:
        """Its ``Boot`` object, empty if it has none."""
        return _mapping(self.body.get("Boot"))

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The ``Attributes`` of a Bios, empty if it has none."""
        return _mapping(self.body.get("Attributes"))

    @property
    def settings_at_reset(self) -> bool:
        """Whether changes of its Settings can be deferred to the next reset."""
        return "OnReset" in _texts(_at(self.body, ("@Redfish.Settings", "SupportedApplyTimes")))

    def link(self, *keys: str) -> str | None:
        """Return the path of the resource that stands under ``keys``."""
        path = _at(self.body, (*keys, "@odata.id"))
        return path if isinstance(path, str) else None

    @property
    def members(self) -> tuple[str, ...]:
        members = self.body.get("Members")
        paths = [_mapping(member).get("@odata.id") for member in members] if isinstance(members, list) else []
        return tuple(path for path in paths if isinstance(path, str))


def observe(system: Resource, settings: Resource | None) -> Observed:
    """Return what a system shows; ``settings`` is its Settings resource, if that takes its overrides.

    Raises `BmcRejected` where there is no override to be seen.
    """
    quirks, order = quirks_of(system.path, system.body), system.boot.get("BootOrder")
    takes_overrides = settings or system
    boot = takes_overrides.boot
    power = _text(system.body.get("PowerState"))
    progress = _text(_at(system.body, ("BootProgress", "LastState")))
    state = progress or _text(_at(system.body, ("Oem", "Hpe", "PostState"))) if power != "Off" else None
    targets = _texts(boot.get(f"{TARGET}@Redfish.AllowableValues"))
    return Observed(
        system=system.path,
        override=_override(takes_overrides),
        shown=observe_identity(system.body),
        marks=Marks(
            last_reset_time=_instant(_at(system.body, quirks.reset_time)),
            boot_progress=progress,
            boot_progress_time=_instant(_at(system.body, ("BootProgress", "LastStateTime"))),
            settled=power == "On" and state in _PAST_POST,
        ),
        power=power,
        in_post=state in _IN_POST,
        runs_os=state == "OSRunning",
        allowable_targets=targets,
        allowable_enabled=_texts(boot.get(f"{ENABLED}@Redfish.AllowableValues")),
        supports_http_boot_uri=quirks.takes_http_boot_uri and HTTP_BOOT_URI in boot,
        mode_is_fixed=quirks.mode is Mode.NEVER,
        continuous_http=quirks.continuous_http,
        boots_cd_as=quirks.boots_cd_as if quirks.boots_cd_as in targets else OverrideTarget.CD,
        settings=takes_overrides.path,
        etags=takes_overrides.etags,
        bmc=quirks.name,
        manager=manager_path(system.body),
        reset_action=_text(_at(system.body, (*_RESET, "target"))),
        reset_types=_texts(_at(system.body, (*_RESET, "ResetType@Redfish.AllowableValues"))),
        reset_info=_text(_at(system.body, (*_RESET, "@Redfish.ActionInfo"))),
        virtual_media=system.link("VirtualMedia"),
        boot_order=tuple(filter(None, map(_text, order))) if isinstance(order, list) else (),
        secure_boot_path=system.link("SecureBoot"),
        bios=system.link("Bios"),
        keeps_uri=quirks.firmware_uri is not None and system.link("Bios") is not None,
    )


def starts_only_signed(secure_boot: Resource) -> bool | None:
    """Return whether firmware will start only what is signed, by a SecureBoot resource; None: it does not say.

    SecureBootEnable is what is set, and holds from the next boot on; SecureBootCurrentBoot is how it is (DSP0268).
    """
    is_set, current = (secure_boot.body.get(name) for name in ("SecureBootEnable", "SecureBootCurrentBoot"))
    if isinstance(is_set, bool):
        return is_set
    return {"Enabled": True, "Disabled": False}.get(_text(current) or "")


def reset_types(info: Resource) -> frozenset[str]:
    """Return what an ActionInfo allows as ResetType, DSP0266 7.8.4."""
    parameters = info.body.get("Parameters")
    found = map(_mapping, parameters if isinstance(parameters, list) else [])
    allowed = (_texts(each.get("AllowableValues")) for each in found if each.get("Name") == "ResetType")
    return next(allowed, frozenset())


def slot_of(resource: Resource) -> MediaSlot:
    """Return what a VirtualMedia resource shows."""
    body = resource.body
    insert, eject = (_mapping(_at(body, ("Actions", f"#VirtualMedia.{name}Media"))) for name in ("Insert", "Eject"))
    image = _text(body.get("Image"))
    return MediaSlot(
        path=resource.path,
        image=image,
        inserted=bool(body["Inserted"]) if body.get("Inserted") is not None else image is not None,
        types=_texts(body.get("MediaTypes")),
        insert=_text(insert.get("target")),
        eject=_text(eject.get("target")),
        protocols=_texts(insert.get("TransferProtocolType@Redfish.AllowableValues")),
        etags=resource.etags,
    )


def read_clock(marks: Marks, manager: Resource, at: datetime) -> Marks:
    """Add to marks what a Manager shows of its clock, read ``at`` by ours; nothing where its time is none."""
    shown = _text(manager.body.get("DateTime")) or ""
    is_zoned = shown.endswith("Z") or "+" in shown or "-" in shown[10:]
    bmc_time = shown if is_zoned else shown + (_text(manager.body.get("DateTimeLocalOffset")) or "")
    if (instant := parse(bmc_time)) is None:
        return marks
    ahead_s = round((in_utc(instant) - at).total_seconds())
    reset = _text(manager.body.get("LastResetTime"))
    return structs.replace(marks, bmc_time=bmc_time, bmc_ahead_s=ahead_s, manager_reset_time=reset)


def observe_identity(system: Mapping[str, Any]) -> Shown:
    """Return who a ComputerSystem says that it is."""
    serial, sku = (" ".join((_text(system.get(name)) or "").split()) or None for name in ("SerialNumber", "SKU"))
    digits = re.sub(r"[^0-9a-f]", "", (_text(system.get("UUID")) or "").lower())  # however it is written
    try:
        uuid = parse_uuid(re.sub(r"^(.{8})(.{4})(.{4})(.{4})(.{12})$", r"\1-\2-\3-\4-\5", digits))
    except Malformed:  # nobody has set one
        uuid = None
    return Shown(uuid=uuid, serial=serial, sku=sku)


def manager_path(system: Mapping[str, Any]) -> str | None:
    """Return the path of the Manager of a ComputerSystem; the first one, if it has several; None: it shows none."""
    managers = _at(system, ("Links", "ManagedBy"))
    first = managers[0] if isinstance(managers, list) and managers else None
    return _text(_mapping(first).get("@odata.id"))


def _override(resource: Resource) -> Override:
    boot = resource.boot
    if TARGET not in boot:
        raise BmcRejected(f"{resource.url} shows no Boot.{TARGET}")
    enabled = _text(boot.get(ENABLED)) or OverrideEnabled.DISABLED
    target = _text(boot[TARGET]) or OverrideTarget.NONE
    allowable = _texts(boot.get(f"{ENABLED}@Redfish.AllowableValues"))
    if target == OverrideTarget.NONE and allowable and OverrideEnabled.DISABLED not in allowable:
        enabled = OverrideEnabled.DISABLED  # where that word is missing, no target is what says it
    if enabled not in set(OverrideEnabled):
        raise BmcRejected(f"{resource.url} shows Boot.{ENABLED} {enabled!r}, not one of {', '.join(OverrideEnabled)}")
    return Override(
        enabled=OverrideEnabled(enabled),
        target=target,
        mode=_text(boot.get(MODE)),
        http_boot_uri=_text(boot.get(HTTP_BOOT_URI)),
    )


def _instant(value: object) -> str | None:
    """Return an instant as it was written, or None if it is a placeholder: OpenBMC's for "never" is 1970."""
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
