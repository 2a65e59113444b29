"""What machines fetch: URLs, and digests of what lies there."""

from __future__ import annotations

import re
from typing import Final, NewType
from urllib.parse import urlsplit

from gitboot.jsonio import Digest
from gitboot.model.scalars.texts import Malformed, shown, text
from gitboot.problems.codes import Code
from gitboot.text import shell_words

ArtifactUrl = NewType("ArtifactUrl", str)  # assets:path, http(s)://… or oci://…@sha256:…

SHA256: Final = re.compile(r"[0-9a-f]{64}")


def parse_digest(value: object) -> Digest:
    found = text(value)
    if not SHA256.fullmatch(found):
        raise Malformed(
            Code.DIGEST,
            f"expected a sha256 of 64 lower-case hexadecimal digits, found {shown(found)}",
            "copy what `sha256sum` prints for the file",
        )
    return Digest(found)


def parse_fingerprint(value: object) -> Digest:
    """A certificate's sha256 in any case, with or without colons, as openssl and BMCs' pages show it."""
    found = text(value).replace(":", "").lower()
    if not SHA256.fullmatch(found):
        raise Malformed(
            Code.DIGEST,
            f"expected the sha256 of a certificate, found {shown(text(value))}",
            "copy what `openssl x509 -noout -fingerprint -sha256` prints for it",
        )
    return Digest(found)


# As the OCI distribution specification writes names, tags and digests ("Pulling manifests").
_COMPONENT: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
OCI: Final = re.compile(
    r"oci://(?P<host>(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?)"
    rf"/(?P<repository>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@sha256:(?P<digest>[0-9a-f]{64}))?"
)


def parse_artifact_url(value: object) -> ArtifactUrl:
    """``assets:PATH``, an absolute http(s) URL, or ``oci://HOST/NAME@sha256:DIGEST``."""
    found = text(value)
    hint = "write assets:PATH, http(s)://HOST/PATH or oci://HOST/NAME@sha256:DIGEST"
    _check_url_text(found)
    if found.startswith("assets:"):
        path = found.removeprefix("assets:")
        if not path or path.startswith("/") or {"", ".", ".."} & set(path.split("/")):
            raise _malformed_url(found, "a path below the asset base", "write assets:DIR/FILE, without ..")
    elif found.startswith("oci:"):
        _check_oci(found, hint)
    elif not _http(found):
        raise _malformed_url(found, "a URL of an artifact", hint)
    return ArtifactUrl(found)


def _check_oci(found: str, hint: str) -> None:
    """The blob of a registry: a tag is another image tomorrow, and has more than one file."""
    parts = OCI.fullmatch(found)
    if parts is None:
        raise _malformed_url(found, "a URL of an artifact", hint)
    if parts["tag"] is not None or parts["digest"] is None:
        image = f"oci://{parts['host']}/{parts['repository']}:{parts['tag'] or 'TAG'}"
        raise Malformed(
            Code.OCI_TAG,
            f"{found} names an image of a registry by its tag, where the digest of one file is needed",
            f"`gitboot artifacts resolve {shell_words(image)}` prints what to write",
        )


def parse_base_url(value: object) -> str:
    """An http(s) URL that paths are appended to; a slash at its end is dropped."""
    found = text(value)
    _check_url_text(found)
    if not _http(found) or "?" in found or "#" in found:
        raise _malformed_url(found, "an http or https URL", "write http://HOST[:PORT][/PATH], no ? and no #")
    return found.rstrip("/")


def parse_bmc_address(value: object) -> str:
    """Where a BMC answers: an http(s) URL for Redfish, or ipmi://HOST[:PORT]."""
    found = text(value)
    if not found.lower().startswith("ipmi:"):
        return parse_base_url(found)
    _check_url_text(found)
    parsed = re.fullmatch(r"ipmi://([a-z0-9.-]+|\[[0-9a-f:.]+\])(?::([1-9][0-9]{0,4}))?/?", found, re.IGNORECASE)
    if parsed is None or int(parsed[2] or 623) > 65535:
        raise _malformed_url(found, "a host that speaks IPMI", "write ipmi://HOST or ipmi://HOST:PORT")
    return found.rstrip("/")


_URL_TEXT: Final = re.compile(r"[!-~]+")  # printable ASCII without spaces: what every loader carries unharmed


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


def _http(found: str) -> bool:
    try:
        parts = urlsplit(found)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _malformed_url(found: str, expected: str, hint: str) -> Malformed:
    return Malformed(Code.URL, f"expected {expected}, found {shown(found)}", hint)
