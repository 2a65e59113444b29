"""One machine and what its BMC shows of it, BIOS settings included, on a clock that only the test moves."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.helpers.redfish_double.profiles import (
    ENABLED,
    GENERIC,
    HTTP_BOOT_URI,
    MODE,
    RESET_TYPES,
    TARGET,
    Drive,
    Drives,
    InPost,
    Json,
    Overrides,
    Profile,
    Property,
    sample,
)

# Firmware's own settings as a BMC shows them: what holds, and what is to hold from the next reset on.


class Bios:
    """The attributes of one machine's firmware. A write to its Settings changes them at a reset, by a job."""

    def __init__(
        self,
        system: str,
        attributes: Mapping[str, str],
        *,
        uri: str,
        switch: str,
        by_job: bool,  # with the time of the change, and nothing else; or Settings show all attributes
    ) -> None:
        self.path = f"{system.rstrip('/')}/Bios"
        self.settings_path = f"{self.path}/Settings"
        self.attributes = dict(attributes)
        self.pending: dict[str, str] = {}
        self.read_only: set[str] = set()
        self.job_fails = False
        self._uri, self._switch, self._by_job = uri, switch, by_job

    def resource(self) -> Json:
        settings: Json = {"SettingsObject": {"@odata.id": self.settings_path}}
        settings |= {"SupportedApplyTimes": ["OnReset"]} if self._by_job else {}
        own = {"@odata.id": self.path, "Attributes": dict(self.attributes), "@Redfish.Settings": settings}
        return sample("bios") | own

    def settings(self) -> Json:
        return sample("bios_settings") | {
            "@odata.id": self.settings_path,
            "Attributes": self.pending if self._by_job else self.attributes | self.pending,
        }

    def apply_request(self, content: Any) -> str | None:
        """Apply a write to the Settings, or return why not: all or nothing."""
        written = content.get("Attributes") if isinstance(content, dict) else None
        if not isinstance(written, dict):
            return "expected an object with Attributes"
        if ("@Redfish.SettingsApplyTime" in content) is not self._by_job:
            return "@Redfish.SettingsApplyTime is missing, or not known"
        if self.pending and self._by_job:
            return "a job for this resource is there already"
        wrong = sorted(name for name in written if name not in self.attributes or name in self.read_only)
        if wrong:
            return f"{', '.join(wrong)} cannot be written"
        is_on = self._switch == "" or "Enabled" in (self.attributes[self._switch], written.get(self._switch))
        if self._uri in written and not is_on:
            return f"{self._uri} depends on {self._switch}"
        self.pending = written
        return None

    def reset(self) -> bool:
        """Take over what is pending, or drop it where the job fails; return whether there was a job."""
        had_job = bool(self.pending)
        if not self.job_fails:
            self.attributes |= self.pending
        self.pending = {}
        return had_job

    @property
    def uri(self) -> str | None:
        """Return the URI that its firmware boots by HTTP before it asks DHCP."""
        is_on = self._switch == "" or self.attributes.get(self._switch) == "Enabled"
        return self.attributes.get(self._uri) or None if is_on else None


# One machine and what its BMC shows of it, on a clock that only the test moves.

STARTED = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
POST_S = 60  # from a reset to the boot
SHUTDOWN_S = 20  # of an operating system that obeys

# ComputerSystem BootProgress.LastState, and which part of POST has passed when it begins.
_POST = (
    (0.0, "PrimaryProcessorInitializationStarted"),
    (0.1, "BusInitializationStarted"),
    (0.2, "MemoryInitializationStarted"),
    (0.7, "PCIResourceConfigStarted"),
    (0.9, "SystemHardwareInitializationComplete"),
    (1.0, "OSBootStarted"),
    (1.5, "OSRunning"),
)
_PAST_POST = ("OSBootStarted", "OSRunning", "None")
_OFF = ("ForceOff", "GracefulShutdown")


@dataclass(frozen=True, kw_only=True, slots=True)
class Boot:
    machine: str
    target: str  # "None": by its boot order
    uri: str | None = None
    medium: str | None = None  # the image in the virtual drive that it boots from
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    status: int
    body: Json | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    at: datetime
    in_post: bool

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def refusal(status: int, message_id: str, message: str, **headers: str) -> Answer:
    """An error as Redfish shapes it, DSP0266 8.6."""
    info = {"MessageId": message_id, "Message": message, "Severity": "Critical"}
    error = {"code": message_id, "message": message, "@Message.ExtendedInfo": [info]}
    return Answer(status=status, body={"error": error}, headers=headers)


class Machine:
    """A machine that runs its operating system since long ago, until a test resets it."""

    def __init__(
        self,
        name: str = "m1",
        *,
        uuid: str = "4c4c4544-0034-4a10-8056-b9c04f4d3732",
        serial: str | None = None,  # SerialNumber; None: one of its own
        sku: str = "8675309",  # of the product, as most vendors have it
        profile: Profile = GENERIC,
        system: str | None = None,  # Id of its ComputerSystem, if a service has several
        post_s: float = POST_S,
        on_boot: Callable[[Boot], None] | None = None,
    ) -> None:
        self.name = name
        self.uuid = uuid
        self.serial = f"SN{uuid.replace('-', '')[-8:].upper()}" if serial is None else serial
        self.sku = sku
        self.profile = profile
        self.path = f"/redfish/v1/Systems/{system or profile.system}" + ("/" if profile.slash else "")
        self.post_s = post_s
        self.on_boot = on_boot
        self.nics: dict[str, str] = {}  # permanent addresses by the name of their interface

        self.now = STARTED
        self.power = "On"
        self.state = "OSRunning"
        self.clock_ahead = timedelta()  # of the time
        self.state_time = self.last_reset = self.discovered = self.manager_reset = STARTED - timedelta(days=3)
        self.obeys = True  # its operating system, when it must shut down
        self.resets = 0
        self.boots: list[Boot] = []
        self.requests: list[Request] = []
        self.boot_order_changed = False
        self.secure_boot: bool | None = False  # from the next boot on; None: this role may not see it

        self.override: dict[str, str | None] = {
            ENABLED: "Disabled",
            TARGET: "None",
            MODE: "UEFI",
            HTTP_BOOT_URI: None,
        }
        kind, above = profile.drives, self.path if profile.drives is Drives.SYSTEM else self.manager_path
        self.media_path = f"{above.rstrip('/')}/VirtualMedia"
        names = ("EXT1", "EXT2") if kind is Drives.PATCHED else ("1", "2")
        usb, disc = (Drive(f"{self.media_path}/{slot}", kind) for slot in names)
        # The drives for images that the BMC itself stores: lenovo/python-redfish-lenovo issue 21.
        stored = Drive(f"{self.media_path}/RDOC1", kind, lacks_actions=True)
        self.stored_drives = [stored] if kind is Drives.PATCHED else []
        usb.types = ("Floppy", "USBStick")
        self.drives = [] if kind is Drives.ABSENT else [usb, disc]
        for drive in self.drives:
            drive.keeps_image, drive.needs_protocol = profile.drives_keep_images, profile.drives_need_protocol
        self._as_booted = dict(self.override)
        self.bios = Bios(
            self.path,
            dict(profile.bios),
            uri=profile.bios_uri,
            switch=profile.bios_switch,
            by_job=profile.bios_change_is_a_job,
        )
        self._bios_job = False
        self._ahead: list[tuple[datetime, str]] = []
        self._writes: list[tuple[datetime, Mapping[str, str | None]]] = []
        self._lock = threading.RLock()

    @property
    def settings_path(self) -> str | None:
        return f"{self.path.rstrip('/')}/{self.profile.settings}" if self.profile.settings else None

    @property
    def in_post(self) -> bool:
        return self.power == "On" and self.state not in _PAST_POST

    @property
    def writes(self) -> list[Any]:
        """The bodies of all PATCHes, in their order."""
        return [request.json for request in self.requests if request.method == "PATCH"]

    def advance(self, seconds: float) -> None:
        ends = self.now + timedelta(seconds=seconds)
        while True:
            with self._lock:
                nothing_happens = not self._ahead or self._ahead[0][0] > ends
                self._write_due(ends if nothing_happens else self._ahead[0][0])
                if nothing_happens:
                    self.now = ends
                    return
                self.now, event = self._ahead.pop(0)
                boot = self._enter(event)
            if boot and self.on_boot:
                self.on_boot(boot)  # without the lock: what it boots may lead back to this BMC

    def reset(self, kind: str = "ForceRestart") -> None:
        """Reset it, as its front panel, its operating system or ComputerSystem.Reset would."""
        with self._lock:
            graceful = kind.startswith("Graceful") and self.power == "On"
            if graceful and not self.obeys:
                return
            after = timedelta(seconds=SHUTDOWN_S if graceful else 0)
            self._ahead = [(self.now + after, kind)]
        self.advance(0)

    def execute_reset(self, kind: str) -> None:
        """Execute a ComputerSystem.Reset."""
        self.reset(kind)

    def run_through(self) -> None:
        """Reset it and let it boot until its operating system runs."""
        self.reset()
        self.advance(self.post_s * 2)

    def write(self, **boot: str | None) -> None:
        """Change the override as someone else: another tool, the BMC's web page, the machine itself."""
        with self._lock:
            self.override.update(boot)

    def write_later(self, seconds: float, boot: Mapping[str, str | None]) -> None:
        """Run `write` after so much time, whatever happens to the machine until then."""
        with self._lock:
            self._writes.append((self.now + timedelta(seconds=seconds), boot))
            self._write_due(self.now)

    def _write_due(self, at: datetime) -> None:
        for due, boot in self._writes:
            if due <= at:
                self.override.update(boot)
        self._writes = [(due, boot) for due, boot in self._writes if due > at]

    @property
    def bmc_now(self) -> datetime:
        """The time by the BMC's own clock."""
        return self.now + self.clock_ahead

    def set_clock(self, to: datetime) -> None:
        with self._lock:
            self.clock_ahead = to - self.now

    def restart_bmc(self, *, clock: datetime | None = None, forgets: bool = False) -> None:
        """Restart the BMC, not the machine; ``forgets`` resets it to the state of the factory.

        The last reset of the machine then has the time of this restart.
        """
        with self._lock:
            if clock is not None:
                self.set_clock(clock)
            self.manager_reset = self.bmc_now
            if forgets:
                self.override |= {ENABLED: "Disabled", TARGET: "None", HTTP_BOOT_URI: None}
                self.last_reset = self.state_time = self.discovered = self.bmc_now

    @property
    def manager_path(self) -> str:
        return f"/redfish/v1/Managers/{self.path.rstrip('/').rpartition('/')[2]}"

    def manager(self) -> Json:
        with self._lock:
            body = sample("manager") | {
                "@odata.id": self.manager_path,
                "DateTime": self.bmc_now.isoformat(timespec="seconds"),
                "DateTimeLocalOffset": "+00:00",
            }
            body.pop("LastResetTime", None)
            body["VirtualMedia"] = {"@odata.id": self.media_path}
            if not self.drives or self.profile.drives is Drives.SYSTEM:
                del body["VirtualMedia"]
            if self.profile.manager_shows_restarts:
                body["LastResetTime"] = self.manager_reset.isoformat(timespec="seconds")
            return body

    def below(self, path: str) -> Json | None:
        """Return the read-only resources below the system: network interfaces, processors, Secure Boot."""
        interfaces, processors = (f"{self.path.rstrip('/')}/{name}" for name in ("EthernetInterfaces", "Processors"))
        if path == f"{self.path.rstrip('/')}/SecureBoot" and self.secure_boot is not None:
            return sample("secure_boot", self.path) | {"@odata.id": path, "SecureBootEnable": self.secure_boot}
        if path == interfaces:
            members = [{"@odata.id": f"{interfaces}/{name}"} for name in self.nics]
            return sample("ethernet_interfaces_collection") | {"@odata.id": path, "Members": members}
        if path == processors:
            return sample("processor_collection") | {"Members": [{"@odata.id": f"{processors}/CPU1"}]}
        if path == f"{processors}/CPU1":
            return sample("processor")
        if path == self.reset_info_path and self.profile.reset_info:
            allowed = {"Name": "ResetType", "Required": True, "AllowableValues": list(self.profile.reset_types)}
            return {"@odata.id": path, "Id": "ResetActionInfo", "Name": "Reset", "Parameters": [allowed]}
        name = path.removeprefix(f"{interfaces}/")
        if name not in self.nics:
            return None
        mac = self.nics[name]
        own = {"@odata.id": path, "Id": name, "MACAddress": mac, "PermanentMACAddress": mac}
        return sample("ethernet_interfaces") | own

    def system(self) -> Json:
        with self._lock:
            return self.add_etag(self._system())

    def settings(self) -> Json:
        with self._lock:
            body = sample(self.profile.settings_sample) | {"@odata.id": self.settings_path}
            if self.profile.overrides is not Overrides.SYSTEM:
                body["Boot"] = {**_without_override(body["Boot"]), **self._boot(self.override)}
            return self.add_etag(body)

    def patch(self, path: str, body: Any, if_match: str | None) -> Answer:
        """Apply a PATCH whole, or refuse it whole."""
        with self._lock:
            to_settings = path == self.settings_path
            resource = self.settings() if to_settings else self.system()
            boot = body.get("Boot") if isinstance(body, dict) else None
            if not isinstance(boot, dict):
                return refusal(400, "Base.1.18.MalformedJSON", "expected an object with Boot")
            refused = (
                self.precondition(resource, if_match)
                or self._refuse_in_post(boot)
                or self._refuse_resource(boot, to_settings)
                or self._refuse_values(boot)
            )
            if refused:
                return refused
            if not (self.in_post and self.profile.in_post is InPost.LOST):
                self._apply(boot)
            success = {"MessageId": "Base.1.18.Success", "Message": "done", "Severity": "OK"}
            return Answer(status=200, body={"@Message.ExtendedInfo": [success]})

    def _enter(self, event: str) -> Boot | None:
        if event in _OFF:
            self._ahead = []
            if self.power == "On":
                self._record_reset()
            self.power = "Off"
            self._progress("None")
            return None
        if event in RESET_TYPES:
            if self.power == "Off" or event == "PowerCycle" or self.profile.reboot_is_a_reset:
                self._record_reset()
            self.power = "On"
            self.resets += 1
            self._ahead = [(self.now + timedelta(seconds=part * self.post_s), state) for part, state in _POST]
            return None
        if event == "OSBootStarted":
            self._bios_job |= self.bios.reset() and self.profile.bios_change_is_a_job
        if event == "OSBootStarted" and self._bios_job:
            self._bios_job = False
            self._ahead = [(self.now, "ForceRestart")]
            return None
        self._progress(event)
        return self._boot_now() if event == "OSBootStarted" else None

    def _disc(self) -> str | None:
        return next((drive.image for drive in self.drives if drive.image and "CD" in drive.types), None)

    def _record_reset(self) -> None:
        if self.profile.marks_move:
            self.last_reset = self.bmc_now

    def _progress(self, state: str) -> None:
        self.state = state
        if self.profile.marks_move:
            self.state_time = self.bmc_now

    def _boot_now(self) -> Boot:
        target = str(self.override[TARGET]) if self.override[ENABLED] != "Disabled" else "None"
        if target in ("Cd", "UsbCd") and target != self.profile.boots_cd_as:
            target = "None"
        uri = self.override[HTTP_BOOT_URI] or self.bios.uri if target == "UefiHttp" else None
        medium = self._disc() if target in ("Cd", "UsbCd") else None
        boot = Boot(machine=self.name, target=target, uri=uri, medium=medium, at=self.now)
        self.boots.append(boot)
        if self.profile.marks_move:
            self.discovered = self.bmc_now
        if self.override[ENABLED] == "Once":
            self.override |= {ENABLED: "Disabled", TARGET: "None"}
        self._as_booted = dict(self.override)
        return boot

    def _system(self) -> Json:
        profile = self.profile
        body = sample(profile.sample, self.path)
        for mark in ("BootProgress", "LastResetTime"):
            body.pop(mark, None)
        body |= {
            "@odata.id": self.path,
            "Id": self.path.rstrip("/").rpartition("/")[2],
            "Manufacturer": profile.manufacturer,
            "Model": profile.model,
            "UUID": self.uuid,
            "SerialNumber": self.serial,
            "SKU": self.sku,
            "HostName": self.name,
            "PowerState": self.power,
            "Boot": {**_without_override(body["Boot"]), **self._shown_boot()},
            "Actions": {"#ComputerSystem.Reset": self._reset_action()},
        }
        body["Links"] = body.get("Links", {}) | {"ManagedBy": [{"@odata.id": self.manager_path}]}
        body["Bios"] = {"@odata.id": self.bios.path}
        body["VirtualMedia"] = {"@odata.id": self.media_path}
        if self.profile.drives is not Drives.SYSTEM:
            del body["VirtualMedia"]
        if self.settings_path:
            body["@Redfish.Settings"] = sample("settings-lenovo-se450")["@Redfish.Settings"] | {
                "SettingsObject": {"@odata.id": self.settings_path}
            }
        if profile.last_reset_time:
            body["LastResetTime"] = self.last_reset.isoformat()
        if profile.boot_progress:
            body["BootProgress"] = {"LastState": self._shown_progress(), "OemLastState": None}
            if profile.last_state_time:
                body["BootProgress"]["LastStateTime"] = self.state_time.isoformat()
        if profile.hpe_post_state:
            body["Oem"] = {"Hpe": self._hpe()}
        return body

    def _shown_progress(self) -> str:
        states = [state for _, state in _POST]
        if self.state not in states:
            return self.state
        return states[min(states.index(self.state), states.index(self.profile.last_progress))]

    def _reset_action(self) -> Json:
        if self.profile.reset_info:
            return {"target": self.reset_path, "@Redfish.ActionInfo": self.reset_info_path}
        return {"target": self.reset_path, "ResetType@Redfish.AllowableValues": list(self.profile.reset_types)}

    @property
    def reset_info_path(self) -> str:
        return f"{self.path.rstrip('/')}/ResetActionInfo"

    @property
    def reset_path(self) -> str:
        return f"{self.path.rstrip('/')}/Actions/ComputerSystem.Reset"

    def _hpe(self) -> Json:
        post_state = "InPost" if self.in_post else "FinishedPost" if self.power == "On" else "PowerOff"
        return {"PostState": post_state, "PostDiscoveryCompleteTimeStamp": f"{self.discovered:%Y-%m-%dT%H:%M:%SZ}"}

    def _shown_boot(self) -> Json:
        order: Json = {"BootOrder": ["Boot0001", "Boot0002"]}
        match self.profile.overrides:
            case Overrides.SETTINGS:
                return order
            case Overrides.FUTURE:
                return order | self._boot(self._as_booted)
            case Overrides.SYSTEM:
                return order | self._boot(self.override)

    def _boot(self, override: Mapping[str, str | None]) -> Json:
        boot: Json = {
            ENABLED: override[ENABLED],
            f"{ENABLED}@Redfish.AllowableValues": list(self.profile.enabled),
            TARGET: override[TARGET],
            f"{TARGET}@Redfish.AllowableValues": list(self.profile.targets),
        }
        if override[ENABLED] not in self.profile.enabled:
            boot |= {ENABLED: self.profile.enabled[0], TARGET: "None"}
        if self.profile.mode is not Property.ABSENT:
            boot[MODE] = override[MODE]
        if self.profile.http_boot_uri is not Property.ABSENT:
            boot[HTTP_BOOT_URI] = override[HTTP_BOOT_URI]
        return boot

    def etag(self, body: Json, form: str) -> str:
        """The ETag of a resource, written in one form."""
        shown = {name: value for name, value in body.items() if name != "@odata.etag"}
        return form.replace("{}", hashlib.sha256(json.dumps(shown).encode()).hexdigest()[:8])

    def add_etag(self, body: Json) -> Json:
        """A resource with its ``@odata.etag``, if this BMC shows one."""
        form = self.profile.etag_body
        return body | {"@odata.etag": self.etag(body, form)} if form else body

    def precondition(self, body: Json, if_match: str | None) -> Answer | None:
        """The refusal of a write to a resource by its If-Match; None: it may be written."""
        has_etag = self.profile.etag_header or self.profile.etag_body
        if if_match is None:
            if self.profile.if_match_required:
                return refusal(428, "Base.1.18.PreconditionRequired", "the request needs If-Match")
            return None
        if has_etag and if_match not in self.etag(body, self.profile.if_match).split():
            return refusal(412, "Base.1.18.PreconditionFailed", "the ETag did not match")
        return None

    def _refuse_in_post(self, boot: Json) -> Answer | None:
        if not self.in_post:
            return None
        if self.profile.in_post is InPost.REFUSED:
            message_id = "iLO.2.26.UnableToModifyDuringSystemPOST"
            return refusal(400, message_id, f"{', '.join(boot)} cannot be changed during POST")
        if self.profile.in_post is InPost.BUSY:
            message_id = "Base.1.18.ServiceTemporarilyUnavailable"
            return refusal(503, message_id, "not while the host is booting", **{"Retry-After": "30"})
        return None

    def _refuse_resource(self, boot: Json, to_settings: bool) -> Answer | None:
        if "BootOrder" in boot and len(boot) > 1:
            return refusal(400, "Base.1.18.PropertyValueConflict", "BootOrder and an override at once")
        if to_settings is (self.profile.overrides is not Overrides.SYSTEM):
            return None
        if self.profile.overrides is Overrides.FUTURE:
            message_id = "Ami.1.0.OperationSupportedInFutureStateURI"
            return refusal(400, message_id, f"moved to FutureState URI({self.settings_path})")
        return refusal(400, "Base.1.18.PropertyNotWritable", f"{', '.join(boot)} cannot be written here")

    def _refuse_values(self, boot: Json) -> Answer | None:
        fixed = {MODE: self.profile.mode, HTTP_BOOT_URI: self.profile.http_boot_uri}
        for name, value in boot.items():
            if fixed.get(name, Property.WRITABLE) is not Property.WRITABLE:
                return refusal(400, "Base.1.18.PropertyNotWritableOrUnknown", f"{name} cannot be written")
            if value not in self._allowable(name, value):
                return refusal(400, "Base.1.18.PropertyValueNotInList", f"{name} cannot be {value}")
        missing = sorted(self.profile.required - set(boot))
        if missing:
            return refusal(400, "Base.1.18.PropertyMissing", f"{', '.join(missing)} is required")
        if self.profile.off_without_none and (self.override | boot)[TARGET] == "None":
            return refusal(400, "iLO.2.30.UnsupportedOperation", f"{ENABLED} without a target")
        return None

    def _allowable(self, name: str, value: Any) -> tuple[Any, ...]:
        allowable: dict[str, tuple[Any, ...]] = {
            ENABLED: self.profile.enabled,
            TARGET: self.profile.targets,
            MODE: ("UEFI", "Legacy"),
            HTTP_BOOT_URI: (value,),
        }
        return allowable.get(name, ())

    def _apply(self, boot: Json) -> None:
        self.override |= boot
        if self.override[TARGET] == "None" and "Disabled" not in self.profile.enabled:
            self.override[ENABLED] = "Disabled"
        if MODE in boot and self.profile.redundant_mode_is_a_job:
            self._bios_job = True
        continuous_http = (self.override[ENABLED], self.override[TARGET]) == ("Continuous", "UefiHttp")
        if continuous_http and self.profile.continuous_http_changes_boot_order:
            self.boot_order_changed = True


def _without_override(boot: Json) -> Json:
    names = (ENABLED, TARGET, MODE, HTTP_BOOT_URI)
    return {key: value for key, value in boot.items() if not key.startswith(names)}
