"""When certificates end, compared with what openssl says of the same files."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gitboot.model.scalars import certificate_ends
from tests.helpers.http_peers import Authority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def openssl_says(certificate: Path) -> datetime:
    command = ("openssl", "x509", "-enddate", "-noout", "-dateopt", "iso_8601", "-in", certificate)
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return datetime.strptime(said.strip(), "notAfter=%Y-%m-%d %H:%M:%SZ").replace(tzinfo=UTC)


# From 2050 on a certificate writes its years in full.
@pytest.mark.parametrize("days", [1, 30, 365 * 60])
def test_an_end_is_the_one_that_openssl_says(authority: Authority, days: int) -> None:
    issued = authority.issue(days=days)
    (end,) = certificate_ends(issued.certificate.read_bytes())
    assert end == openssl_says(issued.certificate)
    assert (end >= datetime(2050, 1, 1, tzinfo=UTC)) is (days > 365)


def test_each_certificate_of_a_chain_has_its_end(authority: Authority) -> None:
    short, long = (authority.issue(days=days).certificate for days in (5, 20))
    one, other = short.read_bytes(), long.read_bytes()
    assert certificate_ends(b"bag attributes\n" + one + other) == (openssl_says(short), openssl_says(long))
    assert certificate_ends(other + one) == (openssl_says(long), openssl_says(short))
    assert openssl_says(long) - openssl_says(short) >= timedelta(days=14)


@pytest.mark.parametrize("content", [b"", b"no certificate", b"-----BEGIN CERTIFICATE-----\nMAAB\n-----END"])
def test_what_is_no_certificate_has_no_end(content: bytes) -> None:
    assert certificate_ends(content) == ()


def test_half_a_certificate_has_its_end_or_none(authority: Authority) -> None:
    certificate = authority.issue().certificate
    whole, end = certificate.read_bytes(), openssl_says(certificate)
    cut = (whole[:length] + b"\n-----END CERTIFICATE-----\n" for length in range(len(whole) - 26))
    assert {certificate_ends(each) for each in cut} == {(), (end,)}
