"""UUIDs, serial numbers and MAC addresses that identify no machine, because many machines show the same value.

One rule for documents, BMCs, imports, records and the endpoint. Sources:

- FreeBSD, libexec/rc/rc.d/hostid, `valid_hostid`: UUIDs that firmware of several machines shows.
- GLPI and FusionInventory, table glpi_blacklists: "invalid UUID", "invalid serial", "invalid MAC".
- SMBIOS reference specification (DSP0134), 7.2.1: a UUID of zeros is not present, one of all F is not set.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gitboot.model.scalars.machines import MacAddress, SystemUuid

_UUIDS: Final = frozenset(
    {
        "03000200-0400-0500-0006-000700080009",  # American Megatrends' default
        "07090201-0103-0301-0807-060504030201",  # FreeBSD
        "11111111-2222-3333-4444-555555555555",  # FreeBSD
        "12345678-1234-5678-90ab-cddeefaabbcc",  # of reference boards
        "4c4c4544-0000-0010-8000-80c04f000000",  # Dell's, which holds the service tag: here zero bytes
        "4c4c4544-0000-2010-8020-80c04f202020",  # and here spaces, as FreeBSD lists it
        "6ab5b300-538d-1014-9fb5-b0684d007b53",  # GLPI
        "890e2d14-cacd-45d1-ae66-bc80e8bfeb0f",  # FreeBSD
        "8e275844-178f-44a8-aceb-a7d7e5178c63",  # FreeBSD
        "dc698397-fa54-4cf2-82c8-b1b5307a6a7f",  # FreeBSD
        "deadbeef-dead-beef-dead-beefdeadbeef",
    }
)
_ALL_F_BUT_THE_FIRST: Final = "-ffff-ffff-ffff-ffffffffffff"  # FreeBSD


def _counting(length: int) -> frozenset[str]:
    """Return the texts of so many hexadecimal digits that count up or down, as 0123…, 00010203…, 00112233…, 1234…."""
    digits = "0123456789abcdef"
    up = (
        4 * digits,
        bytes(range(256)).hex(),
        bytes(reversed(range(256))).hex(),
        2 * "".join(2 * each for each in digits),
        *(16 * digits[i:j] for i, j in _RUNS),
    )
    rows = (*up, *(row[::-1] for row in up))
    return frozenset(row[at : at + length] for row in rows for at in range(len(row) - length + 1))


_RUNS: Final = ((0, 10), (1, 9), (1, 10))  # digits that are repeated: 0123456789, 12345678, 123456789


def _swapped(digits: str) -> str:
    """Return 32 digits with the first three fields of their UUID in the other byte order."""
    d = digits
    return f"{d[6:8]}{d[4:6]}{d[2:4]}{d[:2]}{d[10:12]}{d[8:10]}{d[14:16]}{d[12:14]}{d[16:]}"


_OF_32_DIGITS: Final = frozenset(
    order for each in (*_counting(32), *(uuid.replace("-", "") for uuid in _UUIDS)) for order in (each, _swapped(each))
)


def is_placeholder_uuid(uuid: SystemUuid) -> bool:
    """Return whether a UUID is one that firmware shows if nobody has set one, in either byte order of SMBIOS.

    A pattern counts too: one or two repeated digits, groups of repeated digits, and digits or bytes that count.
    """
    digits = uuid.replace("-", "")
    if digits in _OF_32_DIGITS or digits == digits[:2] * 16 or uuid.endswith(_ALL_F_BUT_THE_FIRST):
        return True
    return all(len(set(group)) == 1 for group in uuid.split("-"))


_MACS: Final = frozenset(
    # GLPI: adapters of dial-up, of modems and of hypervisors' hosts, which have one address on each machine.
    {
        "00-0b-ca-fe-00-00",
        "00-50-56-c0-00-01",
        "00-50-56-c0-00-02",
        "00-50-56-c0-00-03",
        "00-50-56-c0-00-04",
        "00-50-56-c0-00-08",
        "00-a0-c6-00-00-00",
        "02-00-4e-43-50-49",
        "02-80-37-ec-02-00",
        "0a-00-27-00-00-00",
        "20-41-53-59-4e-ff",
        "24-b6-20-52-41-53",
        "50-50-54-50-30-30",
        "d2-0a-2d-a0-04-be",
        "d2-6b-25-2f-2c-e7",
        "e2-e6-16-20-0a-35",
        "fe-ff-ff-ff-ff-ff",
        # Bytes that nobody assigned.
        "aa-bb-cc-dd-ee-ff",
        "de-ad-be-ef-ca-fe",
    }
)


def is_placeholder_mac(mac: MacAddress) -> bool:
    """Return whether a MAC address belongs to no single interface: a known one, or a pattern.

    A pattern is one byte six times, or digits or bytes that count. Group addresses are no MAC addresses here at all.
    """
    digits = mac.replace("-", "")
    return digits == digits[:2] * 6 or mac in _MACS or digits in _OF_12_DIGITS


_OF_12_DIGITS: Final = _counting(12)


_NO_SERIAL: Final = re.compile(
    r"to ?be ?filled|filled ?by|default|not ?(?:specified|applicable|available|set|present|provided|defined)"
    r"|serial ?(?:num|no\b)|system ?serial|board ?serial|chassis ?serial|oem ?serial|^unknow|undefined|unspecified"
    r"|invalid|tulip ?computers|iatpass|\bo\.?e\.?m\b|\bnull\b|change ?me|placeholder"
)
_NO_SERIAL_AT_ALL: Final = re.compile(
    r"asset|base|blank|board|chassis|dummy|empty|eval|example|filled|manufacturer|n/?a|none|null|oem|product|sample"
    r"|serial|standard|system|test|uuid"
)
_COUNTS: Final = re.compile(r"012345|123456|987654|876543|765432|654321|543210|abcdef")
_ALL_THAT_COUNTS: Final = re.compile(r"[a-z]{0,5}(?:0?12345|98765|54321|43210)0*")


@lru_cache(maxsize=256)  # to render one server asks for the same few several times
def is_placeholder_serial(serial: str) -> bool:
    """Return whether a serial number is one that boards show if nobody has set one, in any case.

    That is a known text, a text of several words without a digit, fewer than three different characters, or digits that
    count.
    """
    lower = serial.casefold().strip()
    words = re.sub(r"[\s_-]+", " ", lower)
    plain = re.sub(r"[\s._-]", "", lower)
    if len(set(plain)) < 3 or _NO_SERIAL_AT_ALL.fullmatch(plain):
        return True
    if not any(character.isdigit() for character in plain) and " " in words:
        return True
    return any(
        (_NO_SERIAL.search(words), _NO_SERIAL.search(plain), _COUNTS.search(plain), _ALL_THAT_COUNTS.fullmatch(plain))
    )
