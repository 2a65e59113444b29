"""One parser for each kind of scalar: source text in, a normalised value out, or `Malformed`."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from typing import Annotated, Any, Final, NewType
from urllib.parse import urlsplit

from pydantic import BeforeValidator, WithJsonSchema

from gitboot.codes import Code
from gitboot.document import Path, Quoted

Name = NewType("Name", str)  # DNS-1123 subdomain
MacAddress = NewType("MacAddress", str)  # lower-case hexadecimal, hyphens: 52-54-00-12-34-56
SystemUuid = NewType("SystemUuid", str)  # lower case, with hyphens
Digest = NewType("Digest", str)  # 64 lower-case hexadecimal digits of a sha256
ArtifactUrl = NewType("ArtifactUrl", str)  # assets:path, http(s)://… or oci://…@sha256:…


class Malformed(ValueError):
    """A value that is not what its field takes; ``at`` leads from the value checked to the culprit."""

    def __init__(self, code: Code, message: str, mend: str = "", at: Path = ()) -> None:
        super().__init__(message)
        self.code, self.message, self.mend, self.at = code, message, mend, at


def shown(value: object) -> str:
    """A value as messages show it: quoted, short, on one line."""
    if isinstance(value, str):
        return f'"{one_line(value if len(value) <= 60 else f"{value[:57]}…")}"'
    return {dict: "a mapping", list: "a list", type(None): "nothing"}.get(type(value), "another value")


def one_line(text: str) -> str:
    """The text with an escape for whatever would end the line, or command the terminal that shows it."""
    return text if text.isprintable() else "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def text(value: object) -> str:
    """The source text of a scalar, whatever it looks like to YAML."""
    if not isinstance(value, str):
        raise Malformed(Code.SHAPE, f"expected a single value, found {shown(value)}")
    return str(value)


def nonempty(value: object) -> str:
    if not (found := text(value)):
        raise Malformed(Code.EMPTY, "expected some text, found none")
    return found


_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def parse_name(value: object) -> Name:
    """A DNS-1123 subdomain, as Kubernetes names objects."""
    found = text(value)
    if len(found) > 253 or not _NAME.fullmatch(found):
        raise Malformed(
            Code.NAME,
            f"expected a name (DNS-1123 subdomain), found {shown(found)}",
            "use at most 253 lower-case letters, digits, '-' and '.', with a letter or digit at both ends",
        )
    return Name(found)


_INTEGER: Final = re.compile(r"0|[1-9][0-9]{0,17}")


def parse_integer(value: object) -> int:
    found = text(value)
    if not _INTEGER.fullmatch(found):
        raise Malformed(
            Code.INTEGER,
            f"expected a whole number, found {shown(found)}",
            "write digits alone, without a 0 in front: 10",
        )
    return int(found)


def parse_signed(value: object) -> int:
    found = text(value)
    return -parse_integer(found[1:]) if found.startswith("-") and found != "-0" else parse_integer(found)


def parse_boolean(value: object) -> bool:
    found = text(value)
    if found not in ("true", "false"):
        raise Malformed(Code.BOOLEAN, f"expected true or false, found {shown(found)}", "write true or false")
    return found == "true"


_MAC: Final = re.compile(
    r"(?:[0-9a-f]{2}(?P<s>[:-]))(?:[0-9a-f]{2}(?P=s)){4}[0-9a-f]{2}|[0-9a-f]{12}|(?:[0-9a-f]{4}\.){2}[0-9a-f]{4}"
)


def parse_mac(value: object) -> MacAddress:
    """A MAC address in colons, hyphens, dots or none, any case; group addresses are no one's."""
    found = text(value)
    if not _MAC.fullmatch(lower := found.lower()):
        raise Malformed(Code.MAC, f"expected a MAC address, found {shown(found)}", "write it as 52:54:00:12:34:56")
    digits = lower.replace(":", "").replace("-", "").replace(".", "")
    if int(digits[1], 16) & 1:
        raise Malformed(
            Code.MAC,
            f"{shown(found)} is a multicast address, which no interface has",
            "copy the address from the interface itself",
        )
    if digits == "000000000000":
        raise Malformed(Code.MAC, "a MAC address of zeros is no interface's", "copy it from the interface")
    return MacAddress("-".join(digits[i : i + 2] for i in range(0, 12, 2)))


_UUID: Final = re.compile(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


def parse_uuid(value: object) -> SystemUuid:
    """An SMBIOS system UUID in any case."""
    found = text(value)
    if not _UUID.fullmatch(lower := found.lower()):
        raise Malformed(
            Code.UUID,
            f"expected a system UUID, found {shown(found)}",
            "write it as `dmidecode -s system-uuid` prints it: 4c4c4544-0034-4a10-8056-b9c04f4d3732",
        )
    if len(set(lower)) == 2:  # all zeros or all f: SMBIOS 7.2.1 "not present" and "not set"
        raise Malformed(
            Code.UUID, f"{shown(found)} is what firmware reports where no UUID was set", "set one in firmware"
        )
    return SystemUuid(lower)


def swapped(uuid: SystemUuid) -> SystemUuid:
    """The same UUID with its first three fields in the other byte order.

    SMBIOS 2.6 made them little-endian; firmware older than that, and some loaders, print the
    bytes as they lie (SMBIOS reference specification, 7.2.1).
    """
    a, b, c, rest = uuid[:8], uuid[9:13], uuid[14:18], uuid[18:]
    return SystemUuid("-".join("".join(re.findall("..", part)[::-1]) for part in (a, b, c)) + rest)


def byte_orders(uuid: SystemUuid) -> tuple[SystemUuid, ...]:
    """The UUIDs that one machine may be looked up by, sorted."""
    return tuple(sorted({uuid, swapped(uuid)}))


def parse_interface_address(value: object) -> str:
    """An IP address with or without its prefix length: 10.12.0.13/24, fd00:12::13/64."""
    found = text(value)
    host, slash, prefix = found.partition("/")
    try:
        address = ip_address(host)  # ip_interface would make its network as well: over twice the work
    except ValueError:
        address = None
    is_prefix = _INTEGER.fullmatch(prefix) and address is not None and int(prefix) <= address.max_prefixlen
    if address is None or "%" in host or (slash and not is_prefix):
        raise Malformed(
            Code.ADDRESS,
            f"expected an IP address, with or without a prefix length, found {shown(found)}",
            "write it as 10.12.0.13/24 or fd00:12::13/64",
        )
    return f"{address}{slash}{prefix}"


def parse_network(value: object) -> str:
    found = text(value)
    try:
        return str(ip_network(found))
    except ValueError as error:
        raise Malformed(
            Code.ADDRESS,
            f"expected a network, found {shown(found)}",
            "write it as 10.9.0.0/24, with no host bits set",
        ) from error


_SHA256: Final = re.compile(r"[0-9a-f]{64}")


def parse_digest(value: object) -> Digest:
    found = text(value)
    if not _SHA256.fullmatch(found):
        raise Malformed(
            Code.DIGEST,
            f"expected a sha256 of 64 lower-case hexadecimal digits, found {shown(found)}",
            "copy what `sha256sum` prints for the file",
        )
    return Digest(found)


_URL_TEXT: Final = re.compile(r"[!-~]+")  # printable ASCII without spaces: what every loader carries unharmed
_OCI: Final = re.compile(r"oci://[^\s@?#]+/[^\s@?#]+@sha256:[0-9a-f]{64}")


def _malformed_url(found: str, expected: str, mend: str) -> Malformed:
    return Malformed(Code.URL, f"expected {expected}, found {shown(found)}", mend)


def _http(found: str) -> bool:
    try:
        parts = urlsplit(found)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _check_url_text(found: str) -> None:
    if not _URL_TEXT.fullmatch(found) or set(found) & set("\"'<>\\^`{|}"):
        raise _malformed_url(found, "a URL of plain ASCII", "percent-encode spaces, quotes and all non-ASCII")
    try:
        credentials = "@" in urlsplit(found).netloc and not found.startswith("oci:")
    except ValueError:
        raise _malformed_url(found, "a URL", "check the host: brackets only around an IPv6 address") from None
    if credentials:
        raise Malformed(
            Code.URL,
            "a URL here must not hold a user or a password",
            "it would be published: let the mirror allow the fetch by network instead",
        )


def parse_artifact_url(value: object) -> ArtifactUrl:
    """``assets:PATH``, an absolute http(s) URL, or ``oci://HOST/NAME@sha256:DIGEST``."""
    found = text(value)
    mend = "write assets:PATH, http(s)://HOST/PATH or oci://HOST/NAME@sha256:DIGEST"
    _check_url_text(found)
    if found.startswith("assets:"):
        path = found.removeprefix("assets:")
        if not path or path.startswith("/") or {"", ".", ".."} & set(path.split("/")):
            raise _malformed_url(found, "a path below the asset base", "write assets:DIR/FILE, without ..")
    elif not (_OCI.fullmatch(found) if found.startswith("oci:") else _http(found)):
        raise _malformed_url(found, "a URL of an artifact", mend)
    return ArtifactUrl(found)


def parse_base_url(value: object) -> str:
    """An http(s) URL that paths are appended to; a slash at its end is dropped."""
    found = text(value)
    _check_url_text(found)
    if not _http(found) or "?" in found or "#" in found:
        raise _malformed_url(found, "an http or https URL", "write http://HOST[:PORT][/PATH], no ? and no #")
    return found.rstrip("/")


_INSTANT: Final = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d(?::\d\d)?(?:[Zz]|[+-]\d\d:\d\d)")


def parse_instant(value: object) -> datetime:
    """An RFC 3339 instant with its offset, to the second; in UTC."""
    found = text(value)
    mend = "write it with its offset: 2026-11-20T22:00:00Z or 2026-11-20T23:00:00+01:00"
    if not _INSTANT.fullmatch(found):
        raise Malformed(Code.INSTANT, f"expected an instant with an offset, found {shown(found)}", mend)
    try:
        return datetime.fromisoformat(found.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Malformed(Code.INSTANT, f"there is no instant {shown(found)} ({error})", mend) from error


def format_instant(at: datetime) -> str:
    """RFC 3339 in UTC; fractions of a second only where there are any."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


_VERSION_PART: Final = re.compile(r"[0-9]+|[^0-9.]+")


def version_key(version: str) -> tuple[tuple[int, int, str], ...]:
    """Orders versions by their dotted numbers: 3602.2.3 < 3815.0; other text sorts before numbers."""
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in _VERSION_PART.findall(version))


_COUNT_OR_PERCENT: Final = re.compile(r"(0|[1-9][0-9]{0,8})(%?)")


def parse_count_or_percent(value: object) -> str:
    """A number of servers, or a percentage of them: 1, 25%."""
    found = text(value)
    match = _COUNT_OR_PERCENT.fullmatch(found)
    if not match or found in ("0", "0%") or (match[2] and int(match[1]) > 100):
        raise Malformed(
            Code.COUNT,
            f"expected a number from 1 or a percentage from 1% to 100%, found {shown(found)}",
            "write 1, or 25%",
        )
    return found


def parse_percent(value: object) -> int:
    found = parse_integer(value)
    if found > 100:
        raise Malformed(Code.COUNT, f"expected a percentage from 0 to 100, found {found}")
    return found


def parse_file_path(value: object) -> str:
    """A file in the repository, relative to the fleet's root."""
    found = nonempty(value)
    if found.startswith("/") or "\\" in found or {"", ".", ".."} & set(found.split("/")):
        raise Malformed(
            Code.FILE_PATH,
            f"expected a path below the fleet's root, found {shown(found)}",
            "write it relative to the folder of the fleet, with / and without . or ..",
        )
    return found


_IDENTIFIER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


def parse_variable_name(value: object) -> str:
    found = text(value)
    if not _IDENTIFIER.fullmatch(found):
        raise Malformed(
            Code.VARIABLE,
            f"expected a variable's name, found {shown(found)}",
            "use letters, digits and _, and no digit first: templates read it as vars.NAME",
        )
    return found


def parse_variable(value: object) -> str | bool:
    """The source text; plain ``true`` and ``false`` are booleans, so that templates can branch."""
    found = text(value)
    if not isinstance(value, Quoted) and found in ("true", "false"):
        return found == "true"
    return found


_LABEL_PREFIX: Final = re.compile(_NAME.pattern)
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_MEND: Final = (
    "use at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends; "
    "a key may have a DNS prefix and a slash before"
)


def parse_label_key(value: object) -> str:
    """Kubernetes' label key: an optional DNS prefix and a name."""
    found = text(value)
    prefix, slash, name = found.rpartition("/")
    if not _LABEL_NAME.fullmatch(name) or (slash and (len(prefix) > 253 or not _LABEL_PREFIX.fullmatch(prefix))):
        raise Malformed(Code.LABEL, f"expected a label's key, found {shown(found)}", _LABEL_MEND)
    return found


def parse_label_value(value: object) -> str:
    found = text(value)
    if found and not _LABEL_NAME.fullmatch(found):
        raise Malformed(Code.LABEL, f"expected a label's value, found {shown(found)}", _LABEL_MEND)
    return found


_ARGUMENT: Final = re.compile(r"[^\x00-\x1f\x7f]+")


def parse_kernel_argument(value: object) -> str:
    """One argument, possibly a template: ``name``, ``name=value``, or ``-name`` to remove one."""
    found = nonempty(value)
    if not _ARGUMENT.fullmatch(found) or found.strip() != found:
        raise Malformed(
            Code.ARGUMENT,
            f"expected one kernel argument on one line, found {shown(found)}",
            "write one item an argument: name, name=value, or -name to remove one",
        )
    return found


# What editors read: they type plain scalars by YAML 1.2, where 3815.2 is a number and gitboot reads text.
_ANY_SCALAR = WithJsonSchema({"type": ["string", "number", "boolean"]})
_TEXT = WithJsonSchema({"type": ["string", "number"], "minLength": 1})


def _matching(pattern: re.Pattern[str], *types: str) -> dict[str, Any]:
    return {"type": [*types] if len(types) > 1 else types[0], "pattern": f"^(?:{pattern.pattern})$"}


Text = Annotated[str, BeforeValidator(nonempty), _TEXT]
NameField = Annotated[
    Name,
    BeforeValidator(parse_name),
    WithJsonSchema({**_matching(_NAME, "string", "number"), "maxLength": 253}),
]
Integer = Annotated[int, BeforeValidator(parse_integer), WithJsonSchema({"type": "integer", "minimum": 0})]
SignedInteger = Annotated[int, BeforeValidator(parse_signed), WithJsonSchema({"type": "integer"})]
Percent = Annotated[
    int, BeforeValidator(parse_percent), WithJsonSchema({"type": "integer", "minimum": 0, "maximum": 100})
]
Boolean = Annotated[bool, BeforeValidator(parse_boolean), WithJsonSchema({"type": "boolean"})]
Mac = Annotated[
    MacAddress,
    BeforeValidator(parse_mac),
    WithJsonSchema(
        {
            "type": ["string", "number"],
            "pattern": r"^([0-9A-Fa-f]{2}([:-]?)(?:[0-9A-Fa-f]{2}\2){4}[0-9A-Fa-f]{2}|"
            r"([0-9A-Fa-f]{4}\.){2}[0-9A-Fa-f]{4})$",
        }
    ),
]
Uuid = Annotated[
    SystemUuid,
    BeforeValidator(parse_uuid),
    WithJsonSchema({"type": "string", "pattern": "^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"}),
]
InterfaceAddress = Annotated[str, BeforeValidator(parse_interface_address), WithJsonSchema({"type": "string"})]
Network = Annotated[str, BeforeValidator(parse_network), WithJsonSchema({"type": "string"})]
Sha256 = Annotated[
    Digest,
    BeforeValidator(parse_digest),
    WithJsonSchema(_matching(_SHA256, "string")),
]
Url = Annotated[
    ArtifactUrl,
    BeforeValidator(parse_artifact_url),
    WithJsonSchema({"type": "string", "pattern": "^(assets:|https?://|oci://)[!-~]+$"}),
]
BaseUrl = Annotated[
    str, BeforeValidator(parse_base_url), WithJsonSchema({"type": "string", "pattern": r"^https?://[^?#\s]+$"})
]
Instant = Annotated[datetime, BeforeValidator(parse_instant), WithJsonSchema(_matching(_INSTANT, "string"))]
CountOrPercent = Annotated[
    str,
    BeforeValidator(parse_count_or_percent),
    WithJsonSchema({"type": ["string", "integer"], "pattern": "^[1-9][0-9]*%?$", "minimum": 1}),
]
FilePath = Annotated[
    str,
    BeforeValidator(parse_file_path),
    WithJsonSchema({"type": ["string", "number"], "pattern": r"^[^/\\][^\\]*$"}),
]
KernelArgument = Annotated[str, BeforeValidator(parse_kernel_argument), _TEXT]
VariableName = Annotated[str, BeforeValidator(parse_variable_name)]
Variable = Annotated[str | bool, BeforeValidator(parse_variable), _ANY_SCALAR]
LabelKey = Annotated[str, BeforeValidator(parse_label_key)]
LabelValue = Annotated[
    str,
    BeforeValidator(parse_label_value),
    WithJsonSchema(_matching(re.compile(f"({_LABEL_NAME.pattern})?"), "string", "number", "boolean")),
]
AnyText = Annotated[str, BeforeValidator(text), _ANY_SCALAR]
