"""The virtual drives of a BMC, by the payloads that sushy's tests read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tests.helpers.redfish_double.samples import Json, sample


class Drives(Enum):
    """Where a BMC has its virtual drives, and how they take an image."""

    SYSTEM = "of the system, by actions"
    MANAGER = "of the Manager, by actions"
    PATCHED = "of the Manager, by PATCH"  # Lenovo SD530, by sushy's VirtualMedia.insert_media
    ABSENT = "none"


@dataclass
class Drive:
    """One of them."""

    path: str
    kind: Drives
    types: tuple[str, ...] = ("CD", "DVD")
    protocols: tuple[str, ...] = ()  # what its action says that it takes; it then has to be told
    image: str | None = None
    shows_late: bool = False  # it takes an image, and shows it when a test says so
    ejected: list[str] = field(default_factory=list)
    fetches: Callable[[str], str | None] = lambda _: None  # what it is to take; gives why it cannot be had

    @property
    def shown(self) -> str | None:
        return None if self.shows_late else self.image

    def resource(self) -> Json:
        body = sample("virtual_media") | {
            "@odata.id": self.path,
            "Id": self.path.rpartition("/")[2],
            "MediaTypes": list(self.types),
            "Image": self.shown,
            "ImageName": None,
            "Inserted": self.shown is not None,
            "ConnectedVia": "URI" if self.shown else "NotConnected",
        }
        if self.kind is Drives.PATCHED:
            del body["Actions"]
            return body
        insert: Json = {"target": self.action("Insert")}
        if self.protocols:
            insert["TransferProtocolType@Redfish.AllowableValues"] = list(self.protocols)
        body["Actions"] = {
            "#VirtualMedia.InsertMedia": insert,
            "#VirtualMedia.EjectMedia": {"target": self.action("Eject")},
        }
        return body

    def action(self, name: str) -> str:
        return f"{self.path}/Actions/VirtualMedia.{name}Media"

    def refuses(self, method: str, path: str, content: Any) -> str | None:
        """Do what is asked; say why not, if it is not done."""
        content = content or {}
        if self.kind is Drives.PATCHED:
            if method != "PATCH" or set(content) - {"Image", "Inserted", "WriteProtected"} or "Inserted" not in content:
                return "PATCH Image and Inserted"
            return self._insert(content["Image"]) if content["Inserted"] else self._eject()
        if method != "POST":
            return "POST to an action"
        if path == self.action("Eject"):
            return self._eject()
        if {"Inserted", "WriteProtected"} & content.keys():  # as Supermicro's X11
            return "Image alone"
        if self.protocols and content.get("TransferProtocolType") not in self.protocols:
            return "TransferProtocolType is missing"
        return self._insert(content.get("Image"))

    def _insert(self, image: str | None) -> str | None:
        if self.image is not None:
            return "a medium is inserted already"
        if image is not None and (why := self.fetches(image)) is not None:
            return why
        self.image = image
        return None

    def _eject(self) -> str | None:
        if self.image is None:
            return "nothing is inserted"
        self.ejected.append(self.image)
        self.image = None
        return None
