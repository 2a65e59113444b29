"""Firmware's own settings as a BMC shows them: what holds, and what is to hold from the next reset on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.helpers.redfish_double.samples import Json, sample


class Bios:
    """The attributes of one machine's firmware. What is written to its Settings changes them at a reset, by a job."""

    def __init__(
        self,
        system: str,
        attributes: Mapping[str, str],
        *,
        uri: str,
        switch: str,
        by_job: bool,  # which says when it is to be done, and shows nothing else; or Settings show all attributes
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

    def refuses(self, content: Any) -> str | None:
        """Take what is written to the Settings, or say why not: all of it, or nothing."""
        given = content.get("Attributes") if isinstance(content, dict) else None
        if not isinstance(given, dict):
            return "expected an object with Attributes"
        if ("@Redfish.SettingsApplyTime" in content) is not self._by_job:
            return "@Redfish.SettingsApplyTime is missing, or not known"
        if self.pending and self._by_job:
            return "a job for this resource is there already"
        wrong = sorted(name for name in given if name not in self.attributes or name in self.read_only)
        if wrong:
            return f"{', '.join(wrong)} cannot be written"
        is_on = self._switch == "" or "Enabled" in (self.attributes[self._switch], given.get(self._switch))
        if self._uri in given and not is_on:
            return f"{self._uri} depends on {self._switch}"
        self.pending = given
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
        """What its firmware boots by HTTP, before it asks DHCP."""
        is_on = self._switch == "" or self.attributes.get(self._switch) == "Enabled"
        return self.attributes.get(self._uri) or None if is_on else None
