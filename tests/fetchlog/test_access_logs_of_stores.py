"""What S3's and CloudFront's logs say of a request, in lines as AWS shows them."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.fetchlog.access_logs import Ignored, Told, read
from gitboot.fetchlog.log_entries import Observation
from gitboot.jsonio import Digest
from tests.helpers.cases import for_each
from tests.helpers.endpoints import ENTRY, MAC, UUID

TOKEN = "a" * 64
REPORT = f"v1/boot/{MAC}/provisioned/{TOKEN}"
DATA = f"v1/boot/{MAC}/data/{TOKEN}/user-data"
OWNER = "79a59df900b949e55d96a1e698fbacedfd6e09d98eacf8f8d5218e7cd47ef2be"


def s3(
    key: str = f"fra1/boot/{REPORT}",
    *,
    operation: str = "REST.GET.OBJECT",
    status: int = 200,
    sent: str = "-",
    size: str = "-",
    client: str = "10.12.0.13",
    time: str = "20/Nov/2026:22:00:30 +0000",
    agent: str = r"curl/8 \"quoted\" 200 - 1 1",
    query: str = "",
    requester: str = "-",
) -> bytes:
    return (
        f"{OWNER} boots [{time}] {client} {requester} 3E57427F3EXAMPLE {operation} {key} "
        f'"GET /boots/{key}{query} HTTP/1.1" {status} - {sent} {size} 7 6 "-" "{agent}" - s9lzHYrFp76ZVxRcpX9= - - - '
        "boots.s3.eu-central-1.amazonaws.com TLSv1.3 - -\n"
    ).encode()


FIELDS = {
    "date": "2026-11-20",
    "time": "22:00:30",
    "x-edge-location": "FRA56-P1",
    "sc-bytes": "471",
    "c-ip": "10.12.0.13",
    "cs-method": "GET",
    "cs(Host)": "d111111abcdef8.cloudfront.net",
    "cs-uri-stem": f"/{REPORT}",
    "sc-status": "200",
    "cs(Referer)": "-",
    "cs(User-Agent)": "curl/8",
    "cs-uri-query": "-",
    "cs(Cookie)": "-",
    "x-edge-result-type": "Miss",
    "x-edge-request-id": "SOX4xwn4XV6Q4rgb7XiVGOHms_BGlTAC4KyHmureZmBNrjGdRLiNIQ==",
    "x-host-header": "boot.example.net",
    "cs-protocol": "https",
    "cs-bytes": "23",
    "time-taken": "0.001",
    "x-forwarded-for": "-",
    "ssl-protocol": "TLSv1.3",
    "ssl-cipher": "TLS_AES_128_GCM_SHA256",
    "x-edge-response-result-type": "Miss",
    "cs-protocol-version": "HTTP/1.1",
    "fle-status": "-",
    "fle-encrypted-fields": "-",
    "c-port": "11040",
    "time-to-first-byte": "0.001",
    "x-edge-detailed-result-type": "Miss",
    "sc-content-type": "text/plain",
    "sc-content-len": "0",
    "sc-range-start": "-",
    "sc-range-end": "-",
}


def cloudfront(**changes: str) -> tuple[Told, Told]:
    """Of a line of 33 fields, and of an object."""
    fields = {**FIELDS, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return read(("\t".join(fields.values()) + "\n").encode()), read(json.dumps(fields).encode())


def observed(path: str) -> Observation:
    return Observation(
        server="",
        path=f"boot/{path}",
        client="10.12.0.13",
        at=datetime(2026, 11, 20, 22, 0, 30, tzinfo=UTC),
        digest=Digest(TOKEN),
    )


@pytest.mark.parametrize("path", [REPORT, REPORT.replace("provisioned", "failed"), DATA])
def test_a_path_that_names_an_installation_is_evidence(path: str) -> None:
    assert read(s3(f"fra1/boot/{path}")) == observed(path)
    assert cloudfront(cs_uri_stem=f"/{path}") == (observed(path), observed(path))


@pytest.mark.parametrize("path", [ENTRY[1:], f"ipxe/{UUID}", f"ignition/{UUID}"])
def test_e38_of_an_entry_nobody_can_tell_which_version_was_sent(path: str) -> None:
    assert read(s3(f"fra1/boot/{path}")) == Ignored.VERSION
    assert cloudfront(cs_uri_stem=f"/{path}") == (Ignored.VERSION, Ignored.VERSION)


@for_each(
    ("line", "why"),
    [
        (s3(operation="REST.HEAD.OBJECT"), Ignored.METHOD),
        (s3(operation="REST.PUT.OBJECT", size="0"), Ignored.METHOD),
        (s3(operation="REST.GET.VERSIONING"), Ignored.FORMAT),
        (s3(operation="WEBSITE.GET.OBJECT"), observed(REPORT)),
        (s3(status=304), Ignored.STATUS),
        (s3(f"fra1/boot/{DATA}", sent="511", size="512"), Ignored.PART),
        (s3(f"fra1/boot/{DATA}", sent="-", size="512"), Ignored.PART),
        (s3(f"fra1/boot/{DATA}", sent="512", size="512"), observed(DATA)),
        (s3(f"fra1/boot/{REPORT.replace('/', '%252F')}"), observed(REPORT)),
        (s3(client="-"), Ignored.CLIENT),
        (s3(time="20/Nop/2026:22:00:30 +0000"), Ignored.FORMAT),
        (s3(time="31/Feb/2026:22:00:30 +0000"), Ignored.FORMAT),
        (s3(time="21/Nov/2026:00:00:30 +0200"), observed(REPORT)),
        (s3("fra1/boot/boot.ipxe"), Ignored.PATH),
        (s3().removesuffix(b"TLSv1.3 - -\n"), observed(REPORT)),  # lines get longer with the years
    ],
)
def test_of_s3_only_what_was_sent_whole_counts(line: bytes, why: Observation | Ignored) -> None:
    assert read(line) == why


@for_each(
    ("changes", "why"),
    [
        ({"cs_method": "HEAD"}, Ignored.METHOD),
        ({"sc_status": "206", "sc_range_start": "0"}, Ignored.STATUS),
        ({"sc_status": "000"}, Ignored.STATUS),
        ({"sc_content_len": "471"}, Ignored.PART),
        ({"sc_content_len": "-"}, Ignored.PART),
        ({"sc_content_len": "470"}, observed(REPORT)),
        ({"sc_range_start": "0"}, Ignored.PART),
        ({"x_edge_result_type": "Error"}, Ignored.PART),
        ({"x_edge_detailed_result_type": "ClientCommError"}, Ignored.PART),
        ({"x_edge_result_type": "RefreshHit", "x_edge_detailed_result_type": "OriginShieldHit"}, observed(REPORT)),
        ({"c_ip": "2001:db8::x"}, Ignored.CLIENT),
        ({"date": "2026-13-20"}, Ignored.FORMAT),
        ({"sc_bytes": "-"}, Ignored.FORMAT),
        ({"cs_uri_stem": "/boot.ipxe"}, Ignored.PATH),
    ],
)
def test_of_cloudfront_only_what_was_sent_whole_counts(changes: dict[str, str], why: Observation | Ignored) -> None:
    assert cloudfront(**changes) == (why, why)


COPIER = "arn:aws:iam::123456789012:user/backup"


@for_each(
    ("requester", "agent", "why"),
    [
        (COPIER, "aws-cli/2.15.0", Ignored.SIGNED),
        (COPIER, "curl/8", Ignored.SIGNED),
        ("-", "curl/8", observed(REPORT)),
        ("svc:cloudfront.amazonaws.com", "Amazon CloudFront", observed(REPORT)),
    ],
)
def test_finding_m3_who_reads_a_bucket_with_credentials_is_no_machine(
    requester: str, agent: str, why: Observation | Ignored
) -> None:
    """A backup copies each file, the reports of installers too."""
    assert read(s3(requester=requester, agent=agent)) == why


@for_each("line", [s3(agent="gitboot-verify-mirror/0.2.0"), s3(query="?check=1", agent="Amazon CloudFront")])
def test_finding_m3_a_check_of_a_store_is_none(line: bytes) -> None:
    assert read(line) is Ignored.CHECK


@for_each("changes", [{"cs(User-Agent)": "gitboot-verify-mirror/0.2.0"}, {"cs-uri-query": "check=1"}])
def test_finding_m3_a_check_by_cloudfront_is_none(changes: dict[str, str]) -> None:
    assert cloudfront(**changes) == (Ignored.CHECK, Ignored.CHECK)


@pytest.mark.parametrize("line", [b"#Version: 1.0\n", b"#Fields: date time x-edge-location\n", b"\t" * 32])
def test_heads_and_empty_fields_are_no_requests(line: bytes) -> None:
    assert read(line) == Ignored.FORMAT


@given(st.randoms(use_true_random=False))
def test_t11_a_line_that_was_damaged_is_read_or_counted(chance: random.Random) -> None:
    line = bytearray(chance.choice([s3(), "\t".join(FIELDS.values()).encode(), json.dumps(FIELDS).encode()]))
    for _ in range(chance.randrange(1, 6)):
        line[chance.randrange(len(line))] = chance.randrange(256)
    assert isinstance(read(bytes(line)), Observation | Ignored)
