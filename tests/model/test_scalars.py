"""Parsers of scalars: accepted values with their normal form, and rejected values with their code."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.fleet.yaml import Quoted
from gitboot.jsonio import format_instant
from gitboot.model.boot_image import parse_user_data_format
from gitboot.model.certificates import is_rsa_key, read_certificate_expiries, read_public_key
from gitboot.model.scalars import (
    Malformed,
    SystemUuid,
    parse_artifact_url,
    parse_base_url,
    parse_bmc_address,
    parse_boolean,
    parse_count_or_percent,
    parse_digest,
    parse_file_path,
    parse_instant,
    parse_integer,
    parse_interface_address,
    parse_kernel_argument,
    parse_label_key,
    parse_label_value,
    parse_mac,
    parse_name,
    parse_network,
    parse_nonempty,
    parse_percent,
    parse_positive,
    parse_signed,
    parse_uuid,
    parse_variable,
    parse_variable_name,
    quote_value,
    swap_byte_order,
    text,
)
from gitboot.problems import Code
from tests.helpers.cases import MAX_GROWTH, for_each, measure_growth
from tests.helpers.http_peers import Authority
from tests.helpers.hypothesis_strategies import AWKWARD

SHA = "0123456789abcdef" * 4
MAC = "52-54-00-12-34-56"
UUID = "4c4c4544-0034-4a10-8056-b9c04f4d3732"

# Values in normal form, which are read unchanged.
UNCHANGED: list[tuple[Callable[[object], Any], list[str]]] = [
    (text, ["", " ", "null", "a\nb", "ä"]),
    (parse_nonempty, [" ", "0", "~"]),
    (parse_name, ["a", "0", "web01", "fra1-r12-web03", "flatcar-3975.2.0", "a.b.c", "a--b", "a" * 253]),
    (parse_base_url, ["http://boot.test", "https://10.0.0.1:8443/a/b", "http://[fd00::1]:8080"]),
    (parse_bmc_address, ["https://bmc7.test.", f"ipmi://{'a' * 63}.test", "https://[fe80::1%25eth0]"]),
    (parse_artifact_url, ["assets:a", "assets:flatcar/3975.2.0/vmlinuz", "assets:a%20b", "http://mirror.test/a?b=c"]),
    (parse_artifact_url, [f"https://mirror.test/a.{end}#b/c%20d" for end in ("tar", "tar.gz", "tgz", "tar.xz", "txz")]),
    (parse_artifact_url, ["https://mirror.test/a.zip?b=c#d", "http://mirror.test/a.zip#b"]),
    (parse_artifact_url, ["http://a_b.test:65535/%25?c=%C3%A9", "http://[::ffff:10.0.0.1]:80/a", "http://1a.test./a"]),
    (parse_artifact_url, [f"oci://registry.test/a/b@sha256:{SHA}", f"oci://registry.test:5000/a@sha256:{SHA}"]),
    (parse_digest, [SHA]),
    (parse_file_path, ["a", "templates/a b.j2", "a/.b", "ä/...", "a:b"]),
    (parse_kernel_argument, ["quiet", "-quiet", "a=b c", "--", "=", "{{ vars.a }}", "note=größer", 'a="b c"']),
    (parse_label_key, ["a", "A.b_c-9", "example.net/role", "node-role.kubernetes.io/web", "a" * 63]),
    (parse_label_value, ["", "a", "1.34.1", "A_b-c.9", "true", "a" * 63]),
    (parse_variable_name, ["a", "_", "Console2", "a" * 63]),
    (parse_count_or_percent, ["1", "10", "999999999", "1%", "100%"]),
    (parse_user_data_format, ["Ignition/3.0", "Ignition/3.6", "CloudInit", "Kickstart", "Preseed", "Autoinstall"]),
]


@for_each(
    ("parse", "found"),
    [pytest.param(parse, each, id=f"{parse.__name__} {each!r:.30}") for parse, values in UNCHANGED for each in values],
)
def test_a_value_in_its_normal_form_stays_unchanged(parse: Callable[[object], Any], found: str) -> None:
    assert parse(found) == found
    assert type(parse(Quoted(found))) is str


@for_each(
    ("parse", "found", "expected"),
    [
        (parse_integer, "0", 0),
        (parse_integer, "10", 10),
        (parse_integer, "999999999999999999", 10**18 - 1),
        (parse_signed, "-5", -5),
        (parse_signed, "0", 0),
        (parse_percent, "0", 0),
        (parse_percent, "100", 100),
        (parse_positive, "1", 1),
        (parse_boolean, "true", True),
        (parse_boolean, "false", False),
        (parse_boolean, Quoted("true"), True),
        (parse_variable, "true", True),
        (parse_variable, "false", False),
        (parse_variable, Quoted("true"), "true"),
        (parse_variable, "True", "True"),
        (parse_variable, "no", "no"),
        (parse_variable, "012", "012"),
        (parse_variable, "", ""),
        (parse_mac, "52:54:00:12:34:56", MAC),
        (parse_mac, "52-54-00-12-34-56", MAC),
        (parse_mac, "5254.0012.3456", MAC),
        (parse_mac, "525400123456", MAC),
        (parse_mac, "AA:BB:CC:DD:EE:0F", "aa-bb-cc-dd-ee-0f"),
        (parse_uuid, UUID, UUID),
        (parse_uuid, UUID.upper(), UUID),
        (parse_interface_address, "10.12.0.13", "10.12.0.13"),
        (parse_interface_address, "10.12.0.13/24", "10.12.0.13/24"),
        (parse_interface_address, "10.12.0.0/0", "10.12.0.0/0"),
        (parse_interface_address, "FD00:12:0::13/64", "fd00:12::13/64"),
        (parse_interface_address, "fd00:0:0:0:0:0:0:1/128", "fd00::1/128"),
        (parse_interface_address, "::ffff:10.0.0.1", "::ffff:a00:1"),
        (parse_network, "10.9.0.0/24", "10.9.0.0/24"),
        (parse_network, "10.9.0.1", "10.9.0.1/32"),
        (parse_network, "FD00::/8", "fd00::/8"),
        (parse_base_url, "http://boot.test/", "http://boot.test"),
        (parse_base_url, "https://boot.test/a//", "https://boot.test/a"),
        (parse_base_url, "HTTPS://Boot.test/A", "https://Boot.test/A"),
        (parse_artifact_url, "Http://Mirror.test/A", "http://Mirror.test/A"),
        (parse_instant, "2026-11-20T22:00:00Z", datetime(2026, 11, 20, 22, tzinfo=UTC)),
        (parse_instant, "2026-11-20t22:00z", datetime(2026, 11, 20, 22, tzinfo=UTC)),
        (parse_instant, "2026-11-20T23:00:01+01:00", datetime(2026, 11, 20, 22, 0, 1, tzinfo=UTC)),
        (parse_instant, "2026-11-20T12:00:00-10:30", datetime(2026, 11, 20, 22, 30, tzinfo=UTC)),
        (parse_instant, "2028-02-29T00:00:00-00:00", datetime(2028, 2, 29, tzinfo=UTC)),
    ],
)
def test_a_value_is_normalized(parse: Callable[[object], Any], found: str, expected: object) -> None:
    assert parse(found) == expected
    assert type(parse(found)) is type(expected)


GUID = "7c:fe:90:03:00:29:26:52"
FOR_INFINIBAND = "write the MAC address that iPXE shows as ${net0/mac} for this interface"


@for_each(
    ("found", "kind", "mac"),
    [
        (f"80:00:02:08:fe:80:00:00:00:00:00:00:{GUID}", "address (20 bytes)", "7c:fe:90:29:26:52"),
        (
            f"A0-00-00-27-FE-80-00-00-00-00-00-00-{GUID.upper().replace(':', '-')}",
            "address (20 bytes)",
            "7c:fe:90:29:26:52",
        ),
        ("a0000027fe800000000000007cfe900300292652", "address (20 bytes)", "7c:fe:90:29:26:52"),
        (f"20-a0:00:00:27:fe:80:00:00:00:00:00:00:{GUID}", "address (20 bytes)", "7c:fe:90:29:26:52"),
        (f"ff:00:00:00:00:00:02:00:00:02:c9:00:{GUID}", "address (20 bytes)", "7c:fe:90:29:26:52"),
        ("fe80:0000:0000:0000:7cfe:9003:0029:2652", "GID (16 bytes)", "7c:fe:90:29:26:52"),
        (GUID, "GUID (8 bytes)", "7c:fe:90:29:26:52"),
        ("7cfe:9003:0029:2652", "GUID (8 bytes)", "7c:fe:90:29:26:52"),
        ("7cfe.9003.0029.2652", "GUID (8 bytes)", "7c:fe:90:29:26:52"),
        ("0x7cfe900300292652", "GUID (8 bytes)", "7c:fe:90:29:26:52"),
        ("00:00:00:00:00:00:00:00", "GUID (8 bytes)", None),
        ("01:00:00:00:00:00:00:01", "GUID (8 bytes)", None),
    ],
)
def test_finding_p12_an_infiniband_address_is_refused_by_name_with_the_mac_address_that_ipxe_derives(
    found: str, kind: str, mac: str | None
) -> None:
    with pytest.raises(Malformed) as caught:
        parse_mac(found)
    assert (caught.value.code, caught.value.message) == (
        Code.MAC,
        f"expected a 6-byte MAC address, found an InfiniBand {kind}, {quote_value(found)}",
    )
    assert caught.value.hint == FOR_INFINIBAND + (f": {mac}" if mac is not None else "")
    assert mac is None or parse_mac(mac) == mac.replace(":", "-")


@for_each(
    "found",
    ["52:54:00:12:34:56:78", "4c4c4544-0034-4a10-8056-b9c04f4d3732", "7c:fe:90:03:00:29:26:5g", "0x525400123456"],
)
def test_finding_p12_no_other_text_counts_as_an_infiniband_address(found: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse_mac(found)
    assert "InfiniBand" not in caught.value.message


REFUSED: list[tuple[Callable[[object], Any], Code, list[str]]] = [
    (parse_nonempty, Code.EMPTY, [""]),
    (parse_name, Code.NAME, ["", "A", "a_b", "-a", "a-", "a.", ".a", "a..b", "a.-b", "a b", "ä", "a" * 254, "a\n"]),
    (parse_integer, Code.INTEGER, ["", "-1", "+1", "01", "00", "0x1", "1_000", "1.0", "1e3", " 1", "1\n", "¹", "٣"]),
    (parse_integer, Code.INTEGER, ["1" * 19]),
    (parse_signed, Code.INTEGER, ["-", "--1", "-0", "-01", "+1", "\u22121"]),
    (parse_percent, Code.INTEGER, ["-1", "50%", "1.5"]),
    (parse_percent, Code.COUNT, ["101"]),
    (parse_positive, Code.INTEGER, ["-1", "one"]),
    (parse_positive, Code.COUNT, ["0"]),
    (parse_count_or_percent, Code.COUNT, ["", "0", "0%", "101%", "1.5", "-1", "%", "01", "5 %", "1" * 10]),
    (parse_boolean, Code.BOOLEAN, ["", "True", "TRUE", "yes", "no", "on", "1", "0", "true "]),
    (parse_mac, Code.MAC, ["", "52:54:00:12:34", "52:54:00:12:34:56:78", "52:54-00:12-34:56", "5254:0012:3456"]),
    (parse_mac, Code.MAC, ["5g:54:00:12:34:56", "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00"]),
    (parse_mac, Code.MAC, ["41135085296", "52:54:00:12:34:56\n", "5\uff12:54:00:12:34:56"]),
    (parse_uuid, Code.UUID, ["", UUID[:-1], UUID.replace("-", ""), f"{{{UUID}}}", f"urn:uuid:{UUID}", UUID + "\n"]),
    (parse_uuid, Code.UUID, ["00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"]),
    (parse_interface_address, Code.ADDRESS, ["", "10.1", "10.1.1.256", "010.1.1.1", "10.1.1.1/33", "10.1.1.1/"]),
    (parse_interface_address, Code.ADDRESS, ["10.1.1.1/024", "10.1.1.1/255.0.0.0", "fd00::1/129", "fe80::1%eno1"]),
    (
        parse_interface_address,
        Code.ADDRESS,
        ["fd00::1%eno1/64", "/24", "10.1.1.1/8/8", "web01", "168427777", "10.1.1.1/٨"],
    ),
    (parse_network, Code.ADDRESS, ["", "10.9.0.1/24", "10.9.0.0/33", "monitoring"]),
    (parse_digest, Code.DIGEST, ["", SHA.upper(), SHA[1:], f"{SHA}0", f"sha256:{SHA}", SHA + "\n"]),
    (parse_base_url, Code.URL, ["", "boot.test", "ftp://boot.test", "http://", "http:///a", "http://boot.test?a"]),
    (parse_base_url, Code.URL, ["http://[fe80::1%25eth0]", "http://[fe80::1%eth0]:8080/a"]),
    (parse_artifact_url, Code.URL, ["http://[fe80::1%25eth0]/vmlinuz"]),
    (parse_artifact_url, Code.URL, ["http://mirror.test/a#b", "http://mirror.test/a.gz#b", "http://a.zip#b"]),
    (parse_artifact_url, Code.URL, [f"http://mirror.test/a.zip#{each}" for each in ("", "/b", "b/", "..", "a/../b")]),
    (
        parse_artifact_url,
        Code.URL,
        [f"http://mirror.test/a.zip#{each}" for each in ("%2e%2e/b", "a%0Ab", "./b", "a%2F")],
    ),
    (parse_base_url, Code.URL, ["http://boot.test#a", "http://user@boot.test", "http://user:password@boot.test"]),
    (parse_base_url, Code.URL, ["http://boot test", "http://boot.test/ä", "http://boot.test:99999", "http://[fd00::1"]),
    (parse_bmc_address, Code.URL, ["https://bmc7..test", "ipmi://bmc7..test", f"https://{'a' * 64}.test"]),
    (
        parse_base_url,
        Code.URL,
        ["http://boot.test/'", "http://boot.test/${net0/mac}", "assets:a"],
    ),
    (parse_artifact_url, Code.URL, ["", "assets:", "assets:/a", "assets:a//b", "assets:a/../b", "assets:./a", "a/b"]),
    (
        parse_artifact_url,
        Code.URL,
        ["http://", "tftp://boot.test/a", "file:///a", "http://u:p@boot.test/a", "assets:a b"],
    ),
    (
        parse_artifact_url,
        Code.URL,
        ["assets:a\nb", "assets:ä", 'assets:"', "assets:a\\b", f"oci://registry.test/../a@sha256:{SHA}"],
    ),
    (
        parse_artifact_url,
        Code.URL,
        [f"oci://@sha256:{SHA}", f"oci:///a/b@sha256:{SHA}", f"oci://registry.test/a@sha256:{SHA[1:]}"],
    ),
    (parse_artifact_url, Code.URL, [f"http://mirror.test/{each}" for each in ("%zz", "a%", "a%4", "a%00", "a?b=%z")]),
    (parse_artifact_url, Code.URL, ["assets:%zz", "assets:a#b", "assets:a.zip#b", "http://mirror.test/a.zip#%zz"]),
    (parse_artifact_url, Code.URL, [f"http://{each}/k" for each in ("256.1.1.1", "1.2.3", "010.1.1.1", "1.2.3.4.5")]),
    (parse_artifact_url, Code.URL, [f"http://{each}/k" for each in ("[v1.x]", "[::1]x", "[fe80::1]%a", "[10.0.0.1]")]),
    (parse_artifact_url, Code.URL, [f"http://{each}/k" for each in ("a:", "a:080", "a)b", "a,b", "*", "[::1]:")]),
    (parse_artifact_url, Code.URL, [f"oci://{each}/a@sha256:{SHA}" for each in ("10.0.0.256", "a:0", "a:65536")]),
    (parse_base_url, Code.URL, ["http://boot.test/%zz", "http://10.0.0.256", "http://boot.test:"]),
    (parse_bmc_address, Code.URL, ["https://10.0.0.25:", "https://[v1.x]", "https://[fe80::1%25eth0]/%zz"]),
    (
        parse_artifact_url,
        Code.OCI_TAG,
        ["oci://registry.test/a:latest", "oci://registry.test:5000/a", f"oci://registry.test/a:1@sha256:{SHA}"],
    ),
    (parse_instant, Code.INSTANT, ["", "2026-11-20", "2026-11-20T22:00:00", "2026-11-20 22:00:00Z", "22:00Z", "now"]),
    (parse_instant, Code.INSTANT, ["2026-02-29T00:00:00Z", "2026-11-20T24:00:01Z", "2026-13-01T00:00:00Z"]),
    (parse_instant, Code.INSTANT, ["2026-11-20T22:00:00.5Z", "2026-11-20T22:00:00+0100", "2026-11-20T22:00:00+25:00"]),
    (parse_instant, Code.INSTANT, ["0001-01-01T00:00:00+01:00", "9999-12-31T23:59:59-01:00", "٢٠٢٦-11-20T22:00:00Z"]),
    (parse_instant, Code.INSTANT, ["2026-11-20T22:00:00+01:60", "2026-11-20T22:00-01:99", "2026-11-20T22:00:00+24:00"]),
    (parse_file_path, Code.EMPTY, [""]),
    (parse_file_path, Code.FILE_PATH, ["/", "/etc/passwd", "a/", "./a", "a/../b", "..", ".", "a//b", "a\\b"]),
    (parse_kernel_argument, Code.EMPTY, [""]),
    (parse_kernel_argument, Code.ARGUMENT, [" a", "a ", "a\nb", "a\tb", "a\x00", "\x7f", " "]),
    (
        parse_label_key,
        Code.LABEL,
        ["", "/", "a/", "/a", "a/b/c", "-a", "a-", "a b", "A/b", "a" * 64, "a." * 127 + "a/b"],
    ),
    (parse_label_value, Code.LABEL, [" ", "-a", "a.", "a/b", "a b", "ä", "a" * 64, "a\n"]),
    (parse_variable_name, Code.VARIABLE, ["", "1a", "a-b", "a.b", "a b", "ä", "a" * 64]),
    (parse_user_data_format, Code.CHOICE, ["", "None", "Ignition", "Ignition/2.3", "Ignition/3.7", "ignition/3.4"]),
]


@for_each(
    ("parse", "code", "found"),
    [
        pytest.param(parse, code, each, id=f"{parse.__name__} {each!r:.30}")
        for parse, code, all in REFUSED
        for each in all
    ],
)
def test_any_other_value_is_rejected_with_a_code(parse: Callable[[object], Any], code: Code, found: str) -> None:
    with pytest.raises(Malformed) as refused:
        parse(found)
    assert refused.value.code is code
    assert (refused.value.message + refused.value.hint).isprintable()


@pytest.mark.parametrize("found", ["2026-11-20T22:00:00.5Z", "2026-11-20t22:00:00,123456+01:00"])
def test_a_time_with_a_fraction_of_a_second_is_rejected_with_that_reason(found: str) -> None:
    with pytest.raises(Malformed) as refused:
        parse_instant(found)
    assert refused.value.message == f'expected a time in whole seconds, found "{found}"'
    assert refused.value.hint == "remove the fractional seconds"


PARSERS = sorted({row[0] for row in UNCHANGED} | {row[0] for row in REFUSED}, key=lambda parse: parse.__name__)


@for_each("parse", PARSERS)
def test_the_time_for_a_value_grows_linearly_with_its_length(parse: Callable[[object], Any]) -> None:
    for beginning in ("", "oci://", "http://", "assets:"):
        for piece in ("a", "1", "-", "a-", ".", "a.", "/", "a/", ":", "0:", " ", "=", "@", "[", "\\", "é"):

            def work(size: int, text: str = beginning, piece: str = piece) -> None:
                with suppress(Malformed):
                    parse(text + piece * size)

            assert measure_growth(work, 2000) < MAX_GROWTH, beginning + piece


@for_each("parse", PARSERS)
@for_each("value", [None, [], ["a"], {}, {"a": "b"}], ids=repr)
def test_a_value_that_is_not_a_scalar_is_rejected_as_one(parse: Callable[[object], Any], value: object) -> None:
    with pytest.raises(Malformed) as refused:
        parse(value)
    assert refused.value.code is Code.SHAPE


@given(
    st.sampled_from(PARSERS),
    st.sampled_from(AWKWARD) | st.text(max_size=30) | st.text("0123456789abcf:./-%", max_size=40),
)
def test_any_text_has_one_normal_form_or_is_rejected(parse: Callable[[object], Any], found: str) -> None:
    with suppress(Malformed):
        parsed = parse(found)
        assert not isinstance(parsed, str) or parse(parsed) == parsed


@pytest.mark.parametrize(
    ("uuid", "expected"),
    [
        ("4c4c4544-0034-4a10-8056-b9c04f4d3732", "44454c4c-3400-104a-8056-b9c04f4d3732"),
        ("00112233-4455-6677-8899-aabbccddeeff", "33221100-5544-7766-8899-aabbccddeeff"),
    ],
)
def test_the_first_three_fields_of_a_uuid_are_swapped(uuid: str, expected: str) -> None:
    assert (swap_byte_order(SystemUuid(uuid)), swap_byte_order(swap_byte_order(SystemUuid(uuid)))) == (expected, uuid)


@pytest.mark.parametrize(
    ("instant", "expected"),
    [
        ("2026-11-20T23:00:00+01:00", "2026-11-20T22:00:00Z"),
        ("2026-11-20T22:00:00.000001+00:00", "2026-11-20T22:00:00.000001Z"),
    ],
)
def test_an_instant_is_written_in_utc(instant: str, expected: str) -> None:
    assert format_instant(datetime.fromisoformat(instant)) == expected


@for_each(
    ("value", "expected"),
    [
        ("a", '"a"'),
        ("", '""'),
        ("a\nb\x1b[1m", r'"a\nb\u001b[1m"'),
        ("größer\u2028\u202e", r'"größer\u2028\u202e"'),
        ("a" * 60, f'"{"a" * 60}"'),
        ("a" * 61, f'"{"a" * 57}…"'),
        (None, "nothing"),
        ([], "a list"),
        ({}, "a mapping"),
        (1, "another value"),
    ],
)
def test_a_value_is_quoted_on_one_line_and_shortened(value: object, expected: str) -> None:
    assert quote_value(value) == expected


BYTES = ("0", "9", "10", "99", "100", "199", "200", "249", "250", "255", "256", "00", "01", "")


@for_each("byte", BYTES)
@for_each("form", ["{}.1.2.3", "10.{}.2.3", "10.1.2.{}", "10.1.{}", "10.1.2.3.{}", "10.1.2.{}\n"])
def test_an_ipv4_address_is_valid_if_the_standard_library_accepts_it(form: str, byte: str) -> None:
    address = form.format(byte)
    expected = found = None
    with suppress(ValueError):
        expected = str(ip_address(address))
    with suppress(Malformed):
        found = parse_interface_address(address)
    assert found == expected


_GROUPS: Final = st.lists(st.sampled_from(("0", "1", "a", "db8", "ffff", "00", "0db8", "fe80")), max_size=8)


@given(_GROUPS, st.sampled_from(("::", ":", "")), _GROUPS)
def test_ipv6_addresses_are_parsed_as_ipaddress_parses_them(before: list[str], between: str, after: list[str]) -> None:
    text = ":".join(before) + between + ":".join(after)
    try:
        expected = str(IPv6Address(text))
    except ValueError:
        expected = ""
    try:
        assert parse_interface_address(text) == expected
    except Malformed:
        assert not expected


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def read_expiry_with_openssl(certificate: Path) -> datetime:
    command = ("openssl", "x509", "-enddate", "-noout", "-dateopt", "iso_8601", "-in", certificate)
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return datetime.strptime(said.strip(), "notAfter=%Y-%m-%d %H:%M:%SZ").replace(tzinfo=UTC)


# From 2050 on a certificate writes its years in full.
@pytest.mark.parametrize("days", [1, 30, 365 * 60])
def test_the_end_of_a_certificate_is_the_one_that_openssl_prints(authority: Authority, days: int) -> None:
    issued = authority.issue(days=days)
    ends = read_certificate_expiries(issued.certificate.read_bytes())
    assert ends is not None
    (end,) = ends
    assert end == read_expiry_with_openssl(issued.certificate)
    assert (end >= datetime(2050, 1, 1, tzinfo=UTC)) is (days > 365)


def test_each_certificate_of_a_chain_has_its_end(authority: Authority) -> None:
    short, long = (authority.issue(days=days).certificate for days in (5, 20))
    one, other = short.read_bytes(), long.read_bytes()
    assert read_certificate_expiries(b"bag attributes\n" + one + other) == (
        read_expiry_with_openssl(short),
        read_expiry_with_openssl(long),
    )
    assert read_certificate_expiries(other + one) == (read_expiry_with_openssl(long), read_expiry_with_openssl(short))
    assert read_expiry_with_openssl(long) - read_expiry_with_openssl(short) >= timedelta(days=14)


_MALFORMED: Final = b"-----BEGIN CERTIFICATE-----\nMAAB\n-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(("content", "expected"), [(b"", ()), (b"no certificate", ()), (_MALFORMED, None)])
def test_content_that_is_not_a_certificate_has_no_end_and_no_key(
    content: bytes, expected: tuple[datetime, ...] | None
) -> None:
    assert read_certificate_expiries(content) == expected
    assert read_public_key(content) is None


def test_a_file_with_a_malformed_certificate_differs_from_a_file_without_certificates(authority: Authority) -> None:
    assert read_certificate_expiries(authority.issue().certificate.read_bytes() + _MALFORMED) is None


@pytest.mark.parametrize("key", [b"", b"\x30", b"\x30\x82", b"\x30\x05\x30\x03\x06\x09\x2a"])
def test_a_malformed_public_key_is_not_an_rsa_key(key: bytes) -> None:
    assert not is_rsa_key(key)


@pytest.mark.parametrize("rsa_bits", [None, 2048])
def test_the_public_key_of_a_certificate_is_the_one_that_openssl_prints(
    authority: Authority, rsa_bits: int | None
) -> None:
    issued = authority.issue(rsa_bits=rsa_bits)
    key = read_public_key(issued.certificate.read_bytes() + authority.issue().certificate.read_bytes())
    command = ["openssl", "pkey", "-in", str(issued.key), "-pubout", "-outform", "DER"]
    assert key == subprocess.run(command, check=True, capture_output=True).stdout
    assert key is not None
    assert is_rsa_key(key) is (rsa_bits is not None)


def test_a_truncated_certificate_has_its_end_and_its_whole_key_or_none(authority: Authority) -> None:
    certificate = authority.issue().certificate
    whole, end = certificate.read_bytes(), read_expiry_with_openssl(certificate)
    cut = [whole[:length] + b"\n-----END CERTIFICATE-----\n" for length in range(len(whole) - 26)]
    assert {read_certificate_expiries(each) for each in cut} == {(), None, (end,)}
    assert {read_public_key(each) for each in cut} == {None, read_public_key(whole)}


@pytest.mark.parametrize("argument", ["initrd=main", "initrd=", "BOOT_IMAGE=/vmlinuz"])
def test_finding_p7_an_argument_that_boot_loaders_write_is_an_error(argument: str) -> None:
    with pytest.raises(Malformed) as caught:
        parse_kernel_argument(argument)
    assert caught.value.code is Code.RESERVED_ARGUMENT
    assert parse_kernel_argument(f"rd.{argument}") == f"rd.{argument}", "another name"
