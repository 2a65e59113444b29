"""What was seen of an artifact: it is there, it is not, or nobody can say; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from gitboot.resolve.server_decision_from_plan import BootFile


class Presence(StrEnum):
    VERIFIED = "Verified"  # its content was read, and has the digest
    FOUND = "Found"  # something is there of the right size, as far as that is said; it was not read
    MISSING = "Missing"  # whoever has to have it says that there is none
    WRONG = "Wrong"  # what is there has another size or another digest
    UNKNOWN = "Unknown"  # nobody has answered, or not so that anything follows


@dataclass(frozen=True, kw_only=True, slots=True)
class ArtifactHead:
    """What whoever has an artifact says of it."""

    size: int | None = None  # of the whole, in bytes
    content_type: str | None = None
    version: str | None = None  # changes with the content: made of ETag and Last-Modified; None: nothing does
    led_to: str | None = None  # the URL to which a redirect led


@dataclass(frozen=True, kw_only=True, slots=True)
class Sighting:
    """What was seen of one artifact, and by what that is known."""

    presence: Presence
    message: str = ""  # what is wrong, or why nothing is known
    head: ArtifactHead = ArtifactHead()

    @property
    def is_there(self) -> bool:
        return self.presence in (Presence.VERIFIED, Presence.FOUND)

    @property
    def is_absent(self) -> bool:
        """Whether it is known that no machine can boot by it; a server that does not answer is not known to lack it."""
        return self.presence in (Presence.MISSING, Presence.WRONG)


def since_before(now: Sighting, before: Sighting | None) -> Sighting:
    """What is known after another look: who does not answer any more has not got what was missing."""
    is_silent = now.presence is Presence.UNKNOWN
    return before if is_silent and before is not None and before.is_absent else now


def is_withheld(file: BootFile, sightings: Mapping[BootFile, Sighting] | None) -> bool:
    """Whether no boot is offered that is made by a file. None: nobody looks.

    One of which nothing is known holds nothing back; but one that is mirrored is waited for until it was seen.
    """
    if sightings is None:
        return False
    seen = sightings.get(file)
    if file.source is not None:
        return seen is None or not seen.is_there
    return seen is not None and seen.is_absent


def judge(file: BootFile, head: ArtifactHead, before: Sighting | None = None) -> Sighting:
    """What follows from what is said of an artifact, and from its having been read before, while it is the same."""
    if file.size is not None and head.size not in (None, file.size):
        message = f"it has {head.size} bytes, and the image says {file.size}"
        return Sighting(presence=Presence.WRONG, message=message, head=head)
    was_read = before is not None and before.presence in (Presence.VERIFIED, Presence.WRONG)
    if before is not None and was_read and head.version is not None and head.version == before.head.version:
        return Sighting(presence=before.presence, message=before.message, head=head)
    return Sighting(presence=Presence.FOUND, head=head)


def judge_content(file: BootFile, head: ArtifactHead, digest: str, size: int) -> Sighting:
    """What follows from an artifact's having been read."""
    if digest != file.sha256:
        message = f"its {size} bytes have the sha256 {digest}, and the image says {file.sha256}"
        return Sighting(presence=Presence.WRONG, message=message, head=head)
    return Sighting(presence=Presence.VERIFIED, head=head)


_FIRMWARE_TYPES = frozenset({"application/efi", "application/vnd.efi-iso", "application/vnd.efi-img"})


def unbootable_by_firmware(head: ArtifactHead) -> str | None:
    """Why UEFI HTTP boot is likely to refuse what other loaders take; None: nothing is known against it.

    UEFI Specification 2.10, 24.7.3: the type names what is booted, and the size has to be known before the file is
    fetched. No redirect is followed by most firmware.
    """
    if head.led_to is not None:
        return f"firmware follows no redirect, and this one leads to {head.led_to}"
    if head.size is None:
        return "firmware has to be told the size, and there is no Content-Length"
    given = (head.content_type or "").partition(";")[0].strip().lower()
    if given not in _FIRMWARE_TYPES:
        return f"firmware boots {' or '.join(sorted(_FIRMWARE_TYPES))}, and it is served as {given or 'nothing'}"
    return None
