"""A request as a log tells it; and how S3's server access logs, and CloudFront's standard logs, tell one.

They do not say which version of an object was sent, and come late or never: AWS, "Amazon S3 server access log format"
and "Standard logging reference" (CloudFront).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote


class LoggedRequest(NamedTuple):
    at: str
    client: str
    method: str
    path: str
    status: int
    modified: str | None  # the Last-Modified that was sent, "" if none was; None: such a log does not say it
    whole: bool
    query: str = ""
    agent: str | None = None  # the User-Agent, "" if none was sent; None: the log does not have it
    is_signed: bool = False  # whether the client has shown credentials, which no machine has


_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_S3: Final = re.compile(
    r"\S+ \S+ \[(?P<day>\d\d)/(?P<month>[A-Z][a-z]{2})/(?P<year>\d{4}):(?P<time>\d\d:\d\d:\d\d) (?P<offset>[+-]\d{4})\]"
    r" (?P<client>\S+) (?P<requester>\S+) \S+ (?:REST|WEBSITE)\.(?P<method>[A-Z]+)\.OBJECT (?P<key>\S+)"
    r' "(?P<request>(?:[^"\\]|\\.)*)" (?P<status>\d{3}) \S+ (?P<sent>\d{1,18}|-) (?P<size>\d{1,18}|-) (?P<rest>.*)',
)
_S3_AGENT: Final = re.compile(r'\S+ \S+ "(?:[^"\\]|\\.)*" "(?P<agent>(?:[^"\\]|\\.)*)"')  # of the rest
_CLOUDFRONT: Final = "Amazon CloudFront"  # its User-Agent at a bucket, whose files it may read with credentials


def of_s3(line: str) -> LoggedRequest | None:
    """A request for an object; its key is URL-encoded twice."""
    found = _S3.fullmatch(line)
    if found is None or found["month"] not in _MONTHS:
        return None
    month = _MONTHS.index(found["month"]) + 1
    offset = f"{found['offset'][:3]}:{found['offset'][3:]}"
    named = _S3_AGENT.match(found["rest"])
    agent = _sent(named["agent"]) if named is not None else None
    return LoggedRequest(
        at=f"{found['year']}-{month:02}-{found['day']}T{found['time']}{offset}",
        client=found["client"],
        method=found["method"],
        path=f"/{unquote(unquote(found['key']))}",
        status=int(found["status"]),
        modified=None,
        whole=_size(found["sent"]) == _size(found["size"]),
        query=found["request"].partition("?")[2].partition(" ")[0],
        agent=agent,
        is_signed=found["requester"] != "-" and not (agent or "").startswith(_CLOUDFRONT),
    )


def _sent(text: str) -> str:
    """Return what these logs have of a header or a query; a hyphen stands for nothing."""
    return "" if text == "-" else unquote(text)


def _size(text: str) -> int:
    return 0 if text == "-" else int(text)


# Of a log without its head; v2 of these logs can be JSON, which has the same names.
_FIELDS: Final = (
    *("date", "time", "x-edge-location", "sc-bytes", "c-ip", "cs-method", "cs(Host)", "cs-uri-stem", "sc-status"),
    *("cs(Referer)", "cs(User-Agent)", "cs-uri-query", "cs(Cookie)", "x-edge-result-type", "x-edge-request-id"),
    *("x-host-header", "cs-protocol", "cs-bytes", "time-taken", "x-forwarded-for", "ssl-protocol", "ssl-cipher"),
    *("x-edge-response-result-type", "cs-protocol-version", "fle-status", "fle-encrypted-fields", "c-port"),
    *("time-to-first-byte", "x-edge-detailed-result-type", "sc-content-type", "sc-content-len", "sc-range-start"),
    "sc-range-end",
)
_SENT: Final = frozenset({"Hit", "RefreshHit", "Miss", "OriginShieldHit"})  # and not: Error, ClientCommError …


def of_cloudfront(line: str) -> LoggedRequest | None:
    """A request that CloudFront answered, of a line of 33 fields."""
    values = line.split("\t")
    return of_cloudfront_json(dict(zip(_FIELDS, values, strict=True))) if len(values) == len(_FIELDS) else None


def of_cloudfront_json(fields: Mapping[str, Any]) -> LoggedRequest | None:
    """The same of an object; None where a field is missing that says anything of it."""
    match fields:
        case {
            "date": str(date),
            "time": str(time),
            "c-ip": str(client),
            "cs-method": str(method),
            "cs-uri-stem": str(path),
            "sc-status": str(status),
            "sc-bytes": str(sent),
            "sc-content-len": str(length),
            "sc-range-start": str(start),
            "x-edge-result-type": str(result),
            "x-edge-detailed-result-type": str(detail),
            **more,
        } if all(re.fullmatch(r"\d{1,18}", number, re.ASCII) for number in (status, sent)):
            is_whole = {result, detail} <= _SENT and start == "-" and _is_within(length, int(sent))
            at = f"{date}T{time}+00:00"
            agent, query = (more.get(name) for name in ("cs(User-Agent)", "cs-uri-query"))
            return LoggedRequest(
                at,
                client,
                method,
                unquote(path),
                int(status),
                None,
                is_whole,
                query=query if isinstance(query, str) else "",
                agent=_sent(agent) if isinstance(agent, str) else None,
            )
    return None


def _is_within(length: str, sent: int) -> bool:
    """Whether all of a body is among the bytes that were sent, which have the head as well."""
    return re.fullmatch(r"\d{1,18}", length, re.ASCII) is not None and sent > int(length)
