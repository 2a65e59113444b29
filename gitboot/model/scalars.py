"""Scalars: parsers for names, numbers, addresses, URLs and digests."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Final, NewType, TypeAlias
from urllib.parse import unquote, urlsplit

from gitboot.jsonio import Digest
from gitboot.problems import Code
from gitboot.text import parse_duration, printable, quote_words

Step: TypeAlias = str | int
Path: TypeAlias = tuple[Step, ...]  # ("spec", "interfaces", 0, "mac")
MacAddress = NewType("MacAddress", str)  # a MAC address in lower case with hyphens: 52-54-00-12-34-56
SystemUuid = NewType("SystemUuid", str)  # a UUID in lower case with hyphens


class Malformed(ValueError):
    """Raised if a field does not allow a value. ``at`` is the path from the checked value to the invalid value."""

    def __init__(self, code: Code, message: str, hint: str = "", at: Path = ()) -> None:
        super().__init__(message)
        self.code, self.message, self.hint, self.at = code, message, hint, at

    def describe(self, place: str) -> tuple[str, str]:
        """Return the message and the hint for the value at ``place``. ``place`` is a path such as spec.uuid."""
        return f"{place}: {self.message}", self.hint


def make_user_data_fault(message: str, hint: str, line: int = 0, code: Code = Code.USER_DATA_DOCUMENT) -> Malformed:
    """Return an error in rendered user data. ``line`` counts from 1, and is 0 if the whole document is wrong."""
    return Malformed(code, message, hint, (line,) if line else ())


def quote_value(value: object) -> str:
    """Format a value for a message: quoted, shortened, and on one line."""
    if isinstance(value, str):
        return f'"{printable(value if len(value) <= 60 else f"{value[:57]}…")}"'
    return {dict: "a mapping", list: "a list", type(None): "nothing"}.get(type(value), "another value")


def text(value: object) -> str:
    """Return the source text of a scalar of any YAML type. Raises `Malformed` for a list or a mapping."""
    if not isinstance(value, str):
        raise Malformed(Code.SHAPE, f"expected a single value, found {quote_value(value)}")
    return str(value)


def require_match(value: object, pattern: re.Pattern[str], code: Code, expected_form: str, hint: str) -> str:
    """Return the source text of a scalar. Raises `Malformed` unless the pattern matches the complete text."""
    scalar = text(value)
    return require(pattern.fullmatch(scalar), scalar, code, expected_form, hint)


def require(condition: object, value: str, code: Code, expected_form: str, hint: str) -> str:
    """Return ``value`` if the condition is true. Otherwise, raise `Malformed`."""
    if not condition:
        raise Malformed(code, f"expected {expected_form}, found {quote_value(value)}", hint)
    return value


def parse_nonempty(value: object) -> str:
    if not (scalar := text(value)):
        raise Malformed(Code.EMPTY, "expected text, found an empty value")
    return scalar


# Identities

_MAC: Final = re.compile(
    r"(?:[0-9a-f]{2}(?P<s>[:-]))(?:[0-9a-f]{2}(?P=s)){4}[0-9a-f]{2}|[0-9a-f]{12}|(?:[0-9a-f]{4}\.){2}[0-9a-f]{4}",
    re.IGNORECASE | re.ASCII,
)


def parse_mac(value: object) -> MacAddress:
    """Parse a MAC address in any case, with colons, hyphens, dots or no separators. Reject group addresses."""
    address = text(value)
    match = _MAC.fullmatch(address)
    if match is None:
        _reject_infiniband(address)
    require(match, address, Code.MAC, "a MAC address", "write the address in the form 52:54:00:12:34:56")
    digits = address.lower().replace(":", "").replace("-", "").replace(".", "")
    if int(digits[1], 16) & 1:
        raise Malformed(
            Code.MAC,
            f"{quote_value(address)} is a multicast address, which cannot belong to an interface",
            "copy the address from the interface",
        )
    if digits == "000000000000":
        raise Malformed(
            Code.MAC, "an all-zero MAC address cannot belong to an interface", "copy the address from the interface"
        )
    return MacAddress(f"{digits[:2]}-{digits[2:4]}-{digits[4:6]}-{digits[6:8]}-{digits[8:10]}-{digits[10:]}")


_INFINIBAND: Final = re.compile(
    # The hardware type 32, which dnsmasq writes first; flags and queue pair; the GID, whose last 8 bytes are the GUID.
    r"(?:20)?[0-9a-f]{8}(?P<address>[0-9a-f]{32})|(?P<gid>fe80[0-9a-f]{28})|(?P<guid>[0-9a-f]{16})",
    re.IGNORECASE | re.ASCII,
)
_INFINIBAND_KINDS: Final = {"address": "address (20 bytes)", "gid": "GID (16 bytes)", "guid": "GUID (8 bytes)"}


def _reject_infiniband(address: str) -> None:
    """Raise `Malformed` for an InfiniBand address. The message contains the MAC address that iPXE uses instead.

    iPXE omits the fourth and the fifth byte of the GUID (src/drivers/net/ipoib.c, ``ipoib_init_addr``). Ironic derives
    the MAC address in the same way.
    """
    if not (match := _INFINIBAND.fullmatch(re.sub("^0x|[:.-]", "", address))):
        return
    guid = bytes.fromhex((match["address"] or match["gid"] or match["guid"])[-16:])
    mac = guid[:3] + guid[5:]
    expected = f"expected a 6-byte MAC address, found an InfiniBand {_INFINIBAND_KINDS[str(match.lastgroup)]}"
    derived = f": {mac.hex(':')}" if any(mac) and not mac[0] & 1 else ""
    hint = f"write the MAC address that iPXE shows as ${{net0/mac}} for this interface{derived}"
    raise Malformed(Code.MAC, f"{expected}, {quote_value(address)}", hint)


_UUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}", re.IGNORECASE | re.ASCII)


def parse_uuid(value: object) -> SystemUuid:
    """Parse an SMBIOS system UUID in upper or lower case."""
    hint = "write the UUID as `dmidecode -s system-uuid` prints it: 4c4c4544-0034-4a10-8056-b9c04f4d3732"
    uuid = require_match(value, _UUID, Code.UUID, "a system UUID", hint)
    lower = uuid.lower()
    if len(set(lower)) == 2:  # only zeros or only f: "not present" and "not set" in SMBIOS 7.2.1
        raise Malformed(
            Code.UUID, f"{quote_value(uuid)} means that the firmware has no UUID", "set a UUID in the firmware"
        )
    return SystemUuid(lower)


def parse_ledger(value: object) -> str:
    """Parse the identity of a ledger, which is a UUID in upper or lower case."""
    hint = "copy the UUID from `gitboot status --state STATE`"
    return require_match(value, _UUID, Code.UUID, "a ledger UUID", hint).lower()


def swap_byte_order(uuid: SystemUuid) -> SystemUuid:
    """Return the UUID with the first three fields in the other byte order.

    SMBIOS 2.6 defined these fields as little-endian. Older firmware and some loaders print the bytes in memory order
    (SMBIOS reference specification, 7.2.1).
    """
    u = uuid
    return SystemUuid(f"{u[6:8]}{u[4:6]}{u[2:4]}{u[:2]}-{u[11:13]}{u[9:11]}-{u[16:18]}{u[14:16]}{u[18:]}")


def byte_orders(uuid: SystemUuid) -> tuple[SystemUuid, ...]:
    """Return a UUID in both byte orders, sorted."""
    return tuple(sorted({uuid, swap_byte_order(uuid)}))


@lru_cache(maxsize=256)  # cached, because gitboot reads the same values several times when it renders a server
def lookup_uuids(uuid: SystemUuid) -> tuple[SystemUuid, ...]:
    """Return the UUIDs by which the endpoint finds a machine: ``uuid`` in both byte orders, or () for a placeholder."""
    return () if is_placeholder_uuid(uuid) else tuple(dict.fromkeys((uuid, *byte_orders(uuid))))


def parse_lookup_uuid(value: object) -> SystemUuid:
    """Parse the system UUID in a request or a command. Raises `Malformed` for malformed and placeholder UUIDs."""
    uuid = parse_uuid(value)
    if is_placeholder_uuid(uuid):
        raise Malformed(
            Code.PLACEHOLDER_IDENTITY, f"the UUID {uuid} is a placeholder", "set the machine's own UUID in the firmware"
        )
    return uuid


def parse_lookup_mac(value: object) -> MacAddress:
    """Parse the MAC address in a request or a command. Raises `Malformed` for malformed and placeholder addresses."""
    mac = parse_mac(value)
    if is_placeholder_mac(mac):
        raise Malformed(
            Code.PLACEHOLDER_IDENTITY,
            f"the MAC address {mac.replace('-', ':')} is a placeholder and does not identify a machine",
            "copy the address from the interface",
        )
    return mac


# Version 8 is for custom use (RFC 9562, 5.8), so a board does not have such a UUID.
_DERIVED_UUID_PREFIX: Final = "00000000-0000-8000-8000-"


def derive_uuid(mac: MacAddress) -> SystemUuid:
    """Derive a UUID from a MAC address, for a machine whose own UUID is unknown."""
    return SystemUuid(_DERIVED_UUID_PREFIX + mac.replace("-", ""))


def is_derived_uuid(uuid: SystemUuid) -> bool:
    return uuid.startswith(_DERIVED_UUID_PREFIX)


_PLACEHOLDER_UUIDS: Final = frozenset(
    {
        "03000200-0400-0500-0006-000700080009",  # American Megatrends' default
        "07090201-0103-0301-0807-060504030201",  # FreeBSD
        "11111111-2222-3333-4444-555555555555",  # FreeBSD
        "12345678-1234-5678-90ab-cddeefaabbcc",  # reference boards
        "4c4c4544-0000-0010-8000-80c04f000000",  # Dell: the UUID contains the service tag, which is zero bytes here
        "4c4c4544-0000-2010-8020-80c04f202020",  # Dell: the service tag in the UUID is spaces (FreeBSD)
        "6ab5b300-538d-1014-9fb5-b0684d007b53",  # GLPI
        "890e2d14-cacd-45d1-ae66-bc80e8bfeb0f",  # FreeBSD
        "8e275844-178f-44a8-aceb-a7d7e5178c63",  # FreeBSD
        "dc698397-fa54-4cf2-82c8-b1b5307a6a7f",  # FreeBSD
        "deadbeef-dead-beef-dead-beefdeadbeef",
    }
)
_PLACEHOLDER_UUID_END: Final = "-ffff-ffff-ffff-ffffffffffff"  # FreeBSD


_RUNS: Final = ((0, 10), (1, 9), (1, 10))  # repeated digits: 0123456789, 12345678, 123456789


def _list_counting_digits(length: int) -> frozenset[str]:
    """Return the texts of ``length`` hexadecimal digits that count up or down, such as 0123…, 00010203… and 1234…."""
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


def _swap_digits(d: str) -> str:
    """Return the 32 hexadecimal digits of a UUID with the first three fields in the other byte order."""
    return f"{d[6:8]}{d[4:6]}{d[2:4]}{d[:2]}{d[10:12]}{d[8:10]}{d[14:16]}{d[12:14]}{d[16:]}"


_PLACEHOLDER_UUID_DIGITS: Final = frozenset(
    order
    for each in (*_list_counting_digits(32), *(uuid.replace("-", "") for uuid in _PLACEHOLDER_UUIDS))
    for order in (each, _swap_digits(each))
)


def is_placeholder_uuid(uuid: SystemUuid) -> bool:
    """Return whether this UUID is one that firmware reports, in either SMBIOS byte order, if no UUID is set.

    The function also returns True for patterns: one or two repeated digits, groups of repeated digits, and digits or
    bytes that count up or down.
    """
    digits = uuid.replace("-", "")
    if digits in _PLACEHOLDER_UUID_DIGITS or digits == digits[:2] * 16 or uuid.endswith(_PLACEHOLDER_UUID_END):
        return True
    return all(len(set(group)) == 1 for group in uuid.split("-"))


_PLACEHOLDER_MACS: Final = frozenset(
    # From GLPI: dial-up adapters, modems and host adapters of hypervisors have the same address on all machines.
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
        # IEEE has not assigned these prefixes.
        "aa-bb-cc-dd-ee-ff",
        "de-ad-be-ef-ca-fe",
    }
)


_COUNTING_MAC_DIGITS: Final = _list_counting_digits(12)
_PLACEHOLDER_PHRASE: Final = re.compile(
    r"to ?be ?filled|filled ?by|default|not ?(?:specified|applicable|available|set|present|provided|defined)"
    r"|serial ?(?:num|no\b)|system ?serial|board ?serial|chassis ?serial|oem ?serial|^unknow|undefined|unspecified"
    r"|invalid|tulip ?computers|iatpass|\bo\.?e\.?m\b|\bnull\b|change ?me|placeholder"
)
_PLACEHOLDER_SERIAL: Final = re.compile(
    r"asset|base|blank|board|chassis|dummy|empty|eval|example|filled|manufacturer|n/?a|none|null|oem|product|sample"
    r"|serial|standard|system|test|uuid"
)
_COUNTING_DIGITS: Final = re.compile(r"012345|123456|987654|876543|765432|654321|543210|abcdef")
_COUNTING_SERIAL: Final = re.compile(r"[a-z]{0,5}(?:0?12345|98765|54321|43210)0*")


@lru_cache(maxsize=256)  # cached, because gitboot reads the same values several times when it decides a server's boot
def is_placeholder_mac(mac: MacAddress) -> bool:
    """Return whether a MAC address is a known placeholder or a pattern, such as a repeated byte or counting digits.

    ``mac`` is never a group address, because `parse_mac` rejects group addresses.
    """
    digits = mac.replace("-", "")
    return digits == digits[:2] * 6 or mac in _PLACEHOLDER_MACS or digits in _COUNTING_MAC_DIGITS


@lru_cache(maxsize=256)  # the decision of one server uses the same few values several times
def is_placeholder_serial(serial: str) -> bool:
    """Return whether this serial number, in any case, is one that boards report if no serial number is set.

    Placeholders are known texts, several words without a digit, texts with fewer than three different characters, and
    digits that count up or down.
    """
    lower = serial.casefold().strip()
    words = plain = lower
    if not lower.isalnum():
        words, plain = re.sub(r"[\s_-]+", " ", lower), re.sub(r"[\s._-]", "", lower)
    return bool(
        len(set(plain)) < 3
        or _PLACEHOLDER_SERIAL.fullmatch(plain)
        or (" " in words and not any(character.isdigit() for character in plain))
        or any(map(_PLACEHOLDER_PHRASE.search, {words, plain}))
        or _COUNTING_DIGITS.search(plain)
        or _COUNTING_SERIAL.fullmatch(plain)
    )


# Addresses

_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
# this pattern matches the same addresses as ipaddress, and is ten times as fast
_IPV4: Final = re.compile(rf"{_BYTE}(?:\.{_BYTE}){{3}}")
_GROUPS: Final = "(?:[1-9a-f][0-9a-f]{0,3}(?::[1-9a-f][0-9a-f]{0,3})*)?"
# The common spelling of an IPv6 address: up to six groups, none of them zero. ipaddress parses IPv4-mapped addresses,
# because Python 3.13 formats them differently.
_SHORT_IPV6: Final = re.compile(f"(?!::ffff:){_GROUPS}::{_GROUPS}")


def parse_interface_address(value: object) -> str:
    """Parse an IP address, optionally with a prefix length: 10.12.0.13/24, fd00:12::13/64."""
    scalar = text(value)
    host, slash, prefix = scalar.partition("/")
    address: str | None
    if _IPV4.fullmatch(host):
        address, max_length = host, 32  # an IPv4 address has only one notation
    else:
        address, max_length = _parse_ipv6(host), 128
    is_prefix = INTEGER.fullmatch(prefix) and address is not None and int(prefix) <= max_length
    require(
        address is not None and "%" not in host and (is_prefix or not slash),
        scalar,
        Code.ADDRESS,
        "an IP address, with or without a prefix length",
        "write the address in the form 10.12.0.13/24 or fd00:12::13/64",
    )
    return f"{address}{slash}{prefix}"


def _parse_ipv6(host: str) -> str | None:
    if _SHORT_IPV6.fullmatch(host) and host.count(":") <= 6:
        return host
    try:
        return str(IPv6Address(host))  # ip_interface is slower: it also computes the network
    except ValueError:
        return None


def parse_network(value: object) -> str:
    network = text(value)
    try:
        return str(ip_network(network))
    except ValueError as error:
        raise Malformed(
            Code.ADDRESS,
            f"expected a network, found {quote_value(network)}",
            "write the network without host bits, for example 10.9.0.0/24",
        ) from error


# Numbers, times and digests

INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,17}")


def parse_integer(value: object) -> int:
    return int(require_match(value, INTEGER, Code.INTEGER, "a whole number", "use only digits, without a leading 0"))


def parse_positive(value: object) -> int:
    number = parse_integer(value)
    if number == 0:
        raise Malformed(Code.COUNT, "expected a whole number of at least 1, found 0", "write 1 or more")
    return number


def parse_signed(value: object) -> int:
    scalar = text(value)
    return -parse_integer(scalar[1:]) if scalar.startswith("-") and scalar != "-0" else parse_integer(scalar)


def parse_percent(value: object) -> int:
    number = parse_integer(value)
    if number > 100:
        raise Malformed(Code.COUNT, f"expected a percentage from 0 to 100, found {number}")
    return number


_COUNT_OR_PERCENT: Final = re.compile(r"[1-9][0-9]{0,8}|(?:[1-9][0-9]?|100)%")


def parse_count_or_percent(value: object) -> str:
    """Parse a number of servers or a percentage: 1, 25%."""
    return require_match(
        value, _COUNT_OR_PERCENT, Code.COUNT, "a positive number, or a percentage from 1% to 100%", "write 1, or 25%"
    )


_BOOLEAN: Final = re.compile("true|false")


def parse_boolean(value: object) -> bool:
    return require_match(value, _BOOLEAN, Code.BOOLEAN, "true or false", "write `true` or `false`") == "true"


INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d(?::\d\d)?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)")


def parse_instant(value: object) -> datetime:
    """Parse an RFC 3339 time with an offset and whole seconds, and return the time in UTC."""
    scalar = text(value)
    hint = "write the time with its offset: 2026-11-20T22:00:00Z or 2026-11-20T23:00:00+01:00"
    if re.fullmatch(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d[.,]\d+(?:[Zz]|[+-]\d\d:\d\d)", scalar):
        hint = "remove the fractional seconds"
        raise Malformed(Code.INSTANT, f"expected a time in whole seconds, found {quote_value(scalar)}", hint)
    if not INSTANT.fullmatch(scalar):
        raise Malformed(Code.INSTANT, f"expected a time with an offset, found {quote_value(scalar)}", hint)
    try:
        return datetime.fromisoformat(scalar.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Malformed(Code.INSTANT, f"{quote_value(scalar)} is not a valid time: {error}", hint) from error


def parse_duration_text(value: object) -> str:
    """Check that a text is a duration without a sign, such as 2h, 30m or 1d12h, and return the text."""
    scalar = text(value)
    hint = "write numbers with units, such as 3d, 12h or 1d12h"
    try:
        duration = parse_duration(scalar)
    except OverflowError:
        raise Malformed(Code.DURATION, f"the duration {quote_value(scalar)} is too long", hint) from None
    if duration is None or scalar.strip()[0] in "+-":
        raise Malformed(Code.DURATION, f"expected a duration, found {quote_value(scalar)}", hint)
    return scalar


SHA256: Final = re.compile(r"[0-9a-f]{64}")


def parse_digest(value: object) -> Digest:
    expected = "a SHA-256 digest of 64 lower-case hexadecimal digits"
    return Digest(
        require_match(value, SHA256, Code.DIGEST, expected, "copy the digest that `sha256sum` prints for the file")
    )


_FINGERPRINT: Final = re.compile(":*(?:[0-9A-Fa-f]:*){64}")


def parse_fingerprint(value: object) -> Digest:
    """Parse a certificate's SHA-256 fingerprint in any case, with or without colons, as openssl and BMCs print it."""
    hint = "copy the fingerprint that `openssl x509 -noout -fingerprint -sha256` prints for the certificate"
    fingerprint = require_match(value, _FINGERPRINT, Code.DIGEST, "a certificate's SHA-256 fingerprint", hint)
    return Digest(fingerprint.replace(":", "").lower())


# URLs

ArtifactUrl = NewType("ArtifactUrl", str)  # assets:path, http(s)://…, https://…tar.gz#PATH or oci://…@sha256:…
# Names, tags and digests as in the OCI distribution specification ("Pulling manifests").
_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
OCI: Final = re.compile(
    r"oci://(?P<host>(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?)"
    rf"/(?P<repository>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@sha256:(?P<digest>[0-9a-f]{64}))?"
)


def parse_artifact_url(value: object) -> ArtifactUrl:
    """Read ``assets:PATH``, an absolute http(s) URL, or ``oci://HOST/NAME@sha256:DIGEST``.

    A fragment of an http(s) URL names a file in an archive.
    """
    url = _parse_url_text(value)
    _require_shared_host(url)
    oci = OCI.fullmatch(url)
    if url.startswith("assets:"):
        is_below = "#" not in url and {"", ".", ".."}.isdisjoint(url.removeprefix("assets:").split("/"))
        return ArtifactUrl(
            require(is_below, url, Code.URL, "a path below the base URL", "write assets:DIR/FILE, without '..' and '#'")
        )
    if oci is None:
        hint = "write assets:PATH, http(s)://HOST/PATH or oci://HOST/NAME@sha256:DIGEST"
        require(_is_http_url(url), url, Code.URL, "an artifact URL", hint)
        hint = "use #PATH only after a .tar, .tar.gz, .tgz, .tar.xz, .txz or .zip file, without '..' in PATH"
        is_whole_file = "#" not in url
        require(is_whole_file or split_member_url(url), url, Code.URL, "the URL of a file in an archive", hint)
        return ArtifactUrl(url)
    if oci["tag"] is not None or oci["digest"] is None:
        # A tag may name a different image later, and an image consists of several files.
        image = f"oci://{oci['host']}/{oci['repository']}:{oci['tag'] or 'TAG'}"
        raise Malformed(
            Code.OCI_TAG,
            f"expected an artifact URL with a file digest instead of a tag, found {url}",
            f"copy the output of `gitboot artifacts resolve {quote_words(image)}`",
        )
    return ArtifactUrl(url)


ARCHIVE_SUFFIXES: Final = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".txz", ".zip")


def split_member_url(url: str) -> tuple[str, str] | None:
    """Return the URL of an archive and the path of a file in the archive, or None if the URL means a whole file."""
    archive, _, fragment = url.partition("#")
    path = unquote(fragment)
    is_archive = archive.startswith(("http://", "https://")) and urlsplit(archive).path.endswith(ARCHIVE_SUFFIXES)
    is_path = path.isprintable() and {"", ".", ".."}.isdisjoint(path.split("/"))
    return (archive, path) if is_archive and is_path else None


def parse_base_url(value: object, *, allow_zone: bool = False) -> str:
    """Parse an http(s) URL to which paths can be appended, and return the URL without a trailing slash.

    An IPv6 zone (RFC 6874) names an interface of one host. Only URLs that gitboot itself opens may contain a zone.
    """
    url = _parse_url_text(value)
    if not allow_zone:
        _require_shared_host(url)
    is_base = _is_http_url(url) and "?" not in url and "#" not in url
    hint = "write http://HOST[:PORT][/PATH], without ? or #"
    return require(is_base, url, Code.URL, "an http or https URL", hint).rstrip("/")


def parse_hook_url(value: object) -> str:
    """Parse an http(s) URL that gitboot requests before a maintenance."""
    url = _parse_url_text(value)
    _require_shared_host(url)
    is_url = _is_http_url(url) and "#" not in url
    return require(is_url, url, Code.URL, "an http or https URL", "write https://HOST[:PORT]/PATH, without '#'")


def parse_bmc_address(value: object) -> str:
    """Parse the address of a BMC: an http(s) URL for Redfish, or ipmi://HOST[:PORT]."""
    if not text(value).lower().startswith("ipmi:"):
        return parse_base_url(value, allow_zone=True)
    url = _parse_url_text(value)
    parsed = re.fullmatch(r"ipmi://([a-z0-9.-]+|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?/?", url, re.IGNORECASE)
    is_host = parsed is not None and int(parsed[2] or 623) <= 65535
    hint = "write ipmi://HOST or ipmi://HOST:PORT"
    return require(is_host, url, Code.URL, "a BMC's IPMI address", hint).rstrip("/")


# printable ASCII without spaces; every loader passes these characters on unchanged
_URL_TEXT: Final = re.compile(r"[!-~]+")


_SCHEME: Final = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*:")
# A host name has the labels that DNS allows. An empty port or a leading zero gives iPXE another port (core/uri.c,
# uri_port).
_HOST_AND_PORT: Final = re.compile(
    r"(\[[0-9A-Fa-f:.]+(?:%[^\[\]]+)?\]|(?:[\w-]{1,63}(?:\.[\w-]{1,63})*\.?)?)(?::([1-9][0-9]{0,4}))?", re.ASCII
)
# RFC 3986, 2.1. iPXE decodes %00 to the end of the URL (core/uri.c, uri_decode).
_BAD_PERCENT_ENCODING: Final = re.compile(r"%(?:00|(?![0-9A-Fa-f]{2}))")


def _parse_url_text(value: object) -> str:
    url = text(value)
    is_plain = _URL_TEXT.fullmatch(url) and set("\"'<>\\^`{|}").isdisjoint(url)
    require(is_plain, url, Code.URL, "a URL in plain ASCII", "percent-encode spaces, quotes and non-ASCII characters")
    url = _SCHEME.sub(lambda match: match[0].lower(), url)  # equivalent (RFC 3986, 6.2.2.1); iPXE needs lower case
    try:
        parts = urlsplit(url)
        _check_authority(parts.netloc.rpartition("@")[2])
        credentials = "@" in parts.netloc and not url.startswith("oci:")
    except ValueError:
        raise Malformed(
            Code.URL,
            f"expected a URL, found {quote_value(url)}",
            "check the host and the port; use brackets only around an IPv6 address",
        ) from None
    is_decodable = not _BAD_PERCENT_ENCODING.search(url.replace(parts.netloc, "", 1))
    hint = "after each %, write two hexadecimal digits other than 00; for a percent sign itself, write %25"
    require(is_decodable, url, Code.URL, "a URL that programs can decode (RFC 3986)", hint)
    if credentials:
        raise Malformed(
            Code.URL,
            "a URL must not contain a user name or a password, because gitboot publishes the URL",
            "remove the user name and password, and restrict the mirror by client network instead",
        )
    return url


def _check_authority(authority: str) -> None:
    """Raise `ValueError` if the text is not a host name or an IP address, with or without a port."""
    parsed = _HOST_AND_PORT.fullmatch(authority)
    if parsed is None or int(parsed[2] or 0) > 65535:
        raise ValueError
    if parsed[1].startswith("["):
        IPv6Address(parsed[1][1:-1])


def _require_shared_host(url: str) -> None:
    """Require a host that means the same machine everywhere."""
    # The host in a URL contains a percent sign only if it is an IPv6 address with a zone.
    hint = "remove the IPv6 zone (the % and the text after it), which is valid only on one host"
    require("%" not in urlsplit(url).netloc, url, Code.URL, "a host that every machine can reach", hint)
    host = urlsplit(url).hostname or ""
    # A host name does not end in a number (RFC 1123, 2.1). Programs do not agree about 1.2.3 and 010.1.1.1.
    is_address = host.rstrip(".").rpartition(".")[2].isdecimal() and ":" not in host
    hint = "write an IPv4 address as four decimal numbers from 0 to 255, without leading zeros"
    require(not is_address or _is_ipv4(host), url, Code.URL, "a host name or an IP address", hint)


def _is_ipv4(host: str) -> bool:
    try:
        return bool(IPv4Address(host))
    except ValueError:
        return False


def _is_http_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


# Names, labels, paths and arguments

Name = NewType("Name", str)  # DNS-1123 subdomain
NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def parse_name(value: object) -> Name:
    """Parse a DNS-1123 subdomain, the form of Kubernetes object names."""
    name = text(value)
    return Name(
        require(
            len(name) <= 253 and NAME.fullmatch(name),
            name,
            Code.NAME,
            "a name (DNS-1123 subdomain)",
            "use at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at both ends",
        )
    )


def build_document_name(text: str) -> str:
    """Return a document name of letters, digits, hyphens and dots. The same text always gives the same name."""
    name = re.sub(r"[^a-z0-9.-]+", "-", text.lower())
    return str(parse_name(re.sub(r"[-.]*\.[-.]*", ".", name).strip("-.")[:200].strip("-.") or "unnamed"))


LABEL_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
LABEL_VALUE: Final = re.compile(f"({LABEL_NAME.pattern})?")
_LABEL_HINT: Final = (
    "use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends; "
    "a key may begin with a DNS prefix and a slash"
)


def parse_label_key(value: object) -> str:
    """Parse a Kubernetes label key, which consists of an optional DNS prefix and a name."""
    key = text(value)
    prefix, slash, name = key.rpartition("/")
    has_prefix = not slash or (len(prefix) <= 253 and NAME.fullmatch(prefix))
    return require(LABEL_NAME.fullmatch(name) and has_prefix, key, Code.LABEL, "a label's key", _LABEL_HINT)


def parse_label_value(value: object) -> str:
    return require_match(value, LABEL_VALUE, Code.LABEL, "a label's value", _LABEL_HINT)


_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def parse_variable_name(value: object) -> str:
    return require_match(
        value,
        _IDENTIFIER,
        Code.VARIABLE,
        "a variable's name",
        "use only letters, digits and '_', and begin the name with a letter or '_'",
    )


def parse_variable(value: object) -> str | bool:
    """Return unquoted ``true`` and ``false`` as booleans, which templates can test, and other scalars as text."""
    scalar = text(value)
    is_plain = type(value) is str  # a quoted value has the type `Quoted`
    return scalar == "true" if is_plain and scalar in ("true", "false") else scalar


def parse_file_path(value: object) -> str:
    """Parse the path of a file in the repository, relative to the fleet's root."""
    path = parse_nonempty(value)
    return require(
        not path.startswith("/") and "\\" not in path and {"", ".", ".."}.isdisjoint(path.split("/")),
        path,
        Code.FILE_PATH,
        "a path below the fleet's root",
        "write the path relative to the fleet's root, with '/' and without '.' or '..'",
    )


AGE_SUFFIX: Final = ".age"  # the suffix of an encrypted file


def parse_secret_path(value: object) -> str:
    """Parse the path of an age-encrypted file, whose suffix must show people that the file is encrypted."""
    path = parse_file_path(value)
    return require(
        path.endswith(AGE_SUFFIX),
        path,
        Code.FILE_PATH,
        f"the path of an encrypted file (*{AGE_SUFFIX})",
        "encrypt the file with `gitboot secret encrypt`, and never commit the unencrypted file",
    )


_ARGUMENT: Final = re.compile(r"[^\x00-\x1f\x7f]+")


def is_reserved_argument(argument: str) -> bool:
    """Return whether only gitboot and boot loaders may set this kernel argument.

    The EFI stub of Linux and PXELINUX load the file in ``initrd=``. PXELINUX and GRUB set ``BOOT_IMAGE=``.
    """
    return argument.startswith(("initrd=", "BOOT_IMAGE="))


def parse_kernel_argument(value: object) -> str:
    """Parse one kernel argument or its template: ``name``, ``name=value``, or ``-name`` to remove an argument."""
    argument = parse_nonempty(value)
    if is_reserved_argument(argument):
        name = argument.partition("=")[0]
        raise Malformed(Code.RESERVED_ARGUMENT, f"only gitboot or the boot loader may set {name}=")
    return require(
        _ARGUMENT.fullmatch(argument) and argument.strip() == argument,
        argument,
        Code.ARGUMENT,
        "one kernel argument on one line",
        "write one argument in each item: name, name=value, or -name to remove an argument",
    )


LOCAL_DISK: Final = re.compile(r"Exit|Sanboot|NotFound|/EFI/[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*\.[Ee][Ff][Ii]")


def parse_local_disk(value: object) -> str:
    """Parse how a loader boots from the local disk: Exit, Sanboot, NotFound, or the path of an EFI program."""
    scalar = text(value)
    return require(
        LOCAL_DISK.fullmatch(scalar) and "/../" not in scalar,
        scalar,
        Code.CHOICE,
        "Exit, Sanboot, NotFound, or the path of an EFI program",
        "for an EFI program, write its path on the EFI system partition, such as /EFI/debian/shimx64.efi",
    )
