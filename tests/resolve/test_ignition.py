"""What Ignition would not apply is rejected, and what it takes is accepted, as by Debian's ignition-validate."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import subprocess
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gitboot.model.scalars import Malformed
from gitboot.resolve import ignition
from gitboot.resolve.ignition import check_ignition
from gitboot.resolve.user_data_formats import lacks_ignition_argument
from tests.helpers.cases import for_each
from tests.helpers.debian_packages import unpack


def config(minor: int = 3, /, **sections: Any) -> str:
    return json.dumps({"ignition": {"version": f"3.{minor}.0"}, **sections})


def file(**fields: Any) -> str:
    return config(storage={"files": [{"path": "/a", **fields}]})


def unit(**fields: Any) -> str:
    return config(systemd={"units": [{"name": "a.service", **fields}]})


def make_merge_config(source: Any) -> str:
    return json.dumps({"ignition": {"version": "3.3.0", "config": {"merge": [{"source": source}]}}})


def fetch(**fields: Any) -> str:
    return file(contents=fields)


def make_filesystem(**fields: Any) -> str:
    return config(storage={"filesystems": [{"device": "/dev/a", "format": "ext4", **fields}]})


def partition(*partitions: dict[str, Any]) -> str:
    return config(storage={"disks": [{"device": "/dev/a", "partitions": partitions}]})


def make_volume(**fields: Any) -> str:
    return config(storage={"luks": [{"name": "a", "device": "/dev/a", **fields}]})


def make_proxy_config(**fields: Any) -> str:
    return json.dumps({"ignition": {"version": "3.3.0", "proxy": fields}})


SHA256 = {"hash": f"sha256-{'0' * 64}"}
LINK = {"path": "/foo", "target": "/foo-t"}
ACCEPTED = (
    config(),
    config(0),
    config(unknown=1),
    config(storage=None),
    config(2, kernelArguments={"shouldExist": "a field that 3.2 does not have"}),
    config(0, storage={"luks": 3}),
    # fields that other elements have
    file(groups=[{"a": 1}]),
    file(device=5),
    config(passwd={"users": [{"name": "core", "path": 5, "devices": ["a", "a"]}]}),
    file(mode=420, contents={"source": "data:,x"}, user={"name": "root"}, overwrite=True),
    file(contents={"source": "https://a.test/b", "verification": SHA256}),
    file(contents={"source": "data:text/plain;charset=utf-8;base64,aGk="}),
    file(overwrite=None, append=[{"source": "data:,a%20b"}]),
    config(storage={"links": [{"path": "/a", "target": "b"}]}),
    config(passwd={"users": [{"name": "core", "sshAuthorizedKeys": ["a"]}]}),
    unit(enabled=True, contents="[Unit]\n", dropins=[{"name": "a.conf"}]),
    config(kernelArguments={"shouldExist": ["quiet"]}),
    config(storage={"filesystems": [{"device": "/dev/a", "format": "ext4", "path": "/x"}]}),
    config(storage={"raid": [{"name": "a", "level": "raid1", "devices": ["/dev/a"]}]}),
    make_merge_config("http://a.test/b"),
    # cases of Ignition's own tests: config/v3_3/types/*_test.go
    unit(contents="[Foo]\nQux=Bar"),
    unit(contents="# a\n; b\n[Foo]\nQux=Bar \\\n  more words\n\n[Bar]\nA=\n", dropins=[{"name": "a.conf"}]),
    unit(contents="words without a section"),
    unit(contents="[Foo]\r\nQux=a\u2028b\x85c\x0cd\x1ee\rf\r\n"),
    unit(contents="[Foo]\n; a \\ \nno option\n[Bar]\n"),
    unit(contents="[Foo]\nA=b \\\n  \nC=d"),
    unit(contents="[Foo]\nA=b \\\n# c\nD=e"),
    unit(contents="[Foo\nBar]\nA=b"),
    unit(contents="text ; [no section\n[Foo]\n"),
    unit(contents=f"[Foo]\nA={'b' * 2000}\n"),
    fetch(source="http://a.test/b%20c?d=%", httpHeaders=[{"name": "a", "value": "b"}, {"name": "c"}]),
    fetch(source="http://me@[::1]:80/b"),
    fetch(source=""),
    # cases of the tests of vincent-petithory/dataurl and of coreos-installer
    fetch(source="data:,"),
    fetch(source="data:;base64,"),
    fetch(source="data:,A%20brief%20note"),
    fetch(source="data:text/html;charset=US-ASCII;k=\"a; b\",hello@x.test?a=b&c='d'"),
    fetch(source="data:x-my/type+json;a=b;base64,aGV5YQ=="),
    config(storage={"links": [LINK, {"path": "/foob/bar", "target": "/foo"}], "files": [{"path": "/food"}]}),
    config(storage={"links": [{**LINK, "hard": True}], "directories": [{"path": "/foo-t/a"}]}),
    make_filesystem(label="thislabelis16lon"),
    make_filesystem(format="btrfs", label="thislabelisnottoolong", options=["a", "a"]),
    make_filesystem(format="none", label="l" * 300),
    config(2, storage={"files": [{"path": "/a", "contents": {"source": "gs://bucket/object"}}]}),
    make_proxy_config(httpProxy="HTTP://proxy.test"),
    make_proxy_config(httpProxy="http://proxy.test", httpsProxy="https://proxy.test", noProxy=["a", "b"]),
    partition({"number": 1, "startMiB": 1, "sizeMiB": 99}, {"number": 2, "startMiB": 100, "sizeMiB": 0}),
    partition({"label": "a" * 36, "guid": "01234567-89AB-CDEF-EDCB-A98765432101", "typeGuid": ""}, {"label": "b"}),
    partition({"startMiB": 0, "sizeMiB": 5, "label": "a"}, {"startMiB": 0, "sizeMiB": 5, "label": "b"}),
    partition({"number": 1, "shouldExist": False, "wipePartitionEntry": True}, {"number": 2}),
    config(storage={"raid": [{"name": "a/b", "level": "mirror", "devices": ["/dev/a", "/dev/b"], "spares": 1}]}),
    make_volume(label="l" * 47, keyFile={"source": "data:,a"}),
    make_volume(clevis={"custom": {"pin": "sss", "config": "{}", "needsNetwork": True}}),
    make_volume(clevis={"tpm2": True, "threshold": 2, "tang": [{"url": "http://a", "thumbprint": "b"}]}),
)
REJECTED = (
    "",
    "[]",
    "{",
    config() + " x",
    config()[:-1] + ', "a": NaN}',
    config(storage=[]),
    config(storage={"files": {}}),
    file(mode="0644"),
    file(mode=420.0),
    file(mode=99999),
    file(mode=-1),
    file(overwrite="true"),
    file(overwrite=True),
    file(contents="x"),
    file(contents={"source": "/etc/x"}),
    file(contents={"source": "file:///x"}),
    file(contents={"source": "data:x"}),
    file(contents={"source": "data:,%zz"}),
    file(contents={"source": "data:,x", "compression": "xz"}),
    file(contents={"source": "data:,x", "verification": {"hash": "sha512-12"}}),
    file(append=[{"source": "x"}]),
    file(path="a"),
    file(path=""),
    file(path="/a//b"),
    file(user={"id": 0, "name": "root"}),
    config(storage={"files": [{"path": "/a"}, {"path": "/a"}]}),
    config(storage={"files": [{"path": "/a"}], "directories": [{"path": "/a"}]}),
    config(storage={"links": [{"path": "/a"}]}),
    config(storage={"disks": [{"device": "sda"}]}),
    config(storage={"filesystems": [{"device": "/dev/a", "format": "ext9"}]}),
    config(storage={"filesystems": [{"device": "/dev/a", "path": "/x"}]}),
    config(storage={"raid": [{"name": "a"}]}),
    config(storage={"luks": [{"name": "a"}]}),
    config(passwd={"users": [{"name": "a"}, {"name": "a"}]}),
    config(passwd={"users": [{"name": "a", "uid": "1"}]}),
    config(passwd={"users": [{"name": "a", "sshAuthorizedKeys": "x"}]}),
    unit(name="a"),
    unit(name="a.conf"),
    unit(enabled="yes"),
    unit(dropins=[{"name": "x"}]),
    config(kernelArguments={"shouldExist": "quiet"}),
    make_merge_config("b"),
    make_merge_config(None),
    # cases of Ignition's own tests: config/v3_3/types/*_test.go
    unit(contents="[Foo"),
    unit(contents="[Foo] Qux=Bar"),
    unit(contents="[Foo]\nQux"),
    unit(contents="[Foo]\nA=b \\ \nno option\n"),
    unit(contents="[Foo]\nA=b \\\r\nno option\r\n"),
    unit(contents="[Foo]\n# a \\  \nno option\n"),
    unit(contents="[Foo]\nA=b \\\n\nno option\n"),
    unit(contents="text [Foo\n"),
    unit(contents="[Foo]\n\x1f\n"),
    unit(contents=f"[Foo]\nA={'b' * 3000}\n"),
    unit(contents=f"[Foo]\n{'#' * 3000}\n"),
    unit(contents=f"[Foo]\nA=b\\\n{'c' * 3000}\n"),
    unit(dropins=[{"name": "test.conf", "contents": "[Foo"}]),
    unit(dropins=[{"name": "a.conf"}, {"name": "a.conf"}]),
    fetch(source="data:,a", httpHeaders=[{"name": "a", "value": "b"}]),
    fetch(source="http://a.test", httpHeaders=[{"value": "emptyheadervalue"}]),
    fetch(source="http://a.test", httpHeaders=[{"name": "a", "value": ""}]),
    fetch(source="http://a.test", httpHeaders=[{"name": "a", "value": "b"}, {"name": "a", "value": "c"}]),
    fetch(verification=SHA256),
    fetch(source="data:,a b"),
    fetch(source="data:,a\nb"),
    fetch(source="data:,<a>"),
    fetch(source='data:,{"a":1}'),
    fetch(source="data:,größe"),
    fetch(source="data:,100%"),
    fetch(source="data:;base64,aGV5YQ"),
    fetch(source="data:;base64,aGV5YQ==="),
    fetch(source="data:;base64,a-_b"),
    fetch(source="data:;BASE64,aGk="),
    fetch(source="DATA:,a"),
    fetch(source="data:text;charset=utf-8,a"),
    fetch(source="data:font/woff,a"),
    fetch(source="data:text/plain;charset,a"),
    fetch(source="http://a b/"),
    fetch(source="http://a:x/"),
    fetch(source="http://a/%zz"),
    config(1, storage={"files": [{"path": "/a", "contents": {"source": "gs://bucket/object"}}]}),
    fetch(source="arn:aws:s3:::bucket/object"),
    config(storage={"links": [LINK], "files": [{"path": "/foo/bar"}]}),
    config(storage={"links": [LINK], "directories": [{"path": "/foo/bar/baz"}]}),
    config(storage={"links": [LINK, {"path": "/foo/bar", "target": "/foo-bar-t"}]}),
    config(storage={"links": [{**LINK, "hard": True}], "directories": [{"path": "/foo-t"}]}),
    make_filesystem(label="thislabelistoolong"),
    make_filesystem(format="xfs", label="thislabelistoolong"),
    make_filesystem(format="swap", label="thislabelistoolong"),
    make_filesystem(format="vfat", label="thislabelistoolong"),
    make_filesystem(format="virtiofs"),
    config(2, storage={"filesystems": [{"device": "/dev/a", "format": "none"}]}),
    make_proxy_config(httpProxy="ftp://proxy.test"),
    make_proxy_config(noProxy=["a", "a"]),
    config(passwd={"users": [{"name": "a", "sshAuthorizedKeys": ["a", "a"]}]}),
    config(kernelArguments={"shouldExist": ["a"], "shouldNotExist": ["a"]}),
    partition({"number": 1, "startMiB": 1, "sizeMiB": 100}, {"number": 2, "startMiB": 100, "sizeMiB": 5}),
    partition({"number": 1, "startMiB": 1, "sizeMiB": 100}, {"number": 2, "startMiB": 50, "sizeMiB": 0}),
    partition({"number": 1, "sizeMiB": 1}, {"number": 1, "label": "b"}),
    partition({"number": 1, "label": "a"}, {"number": 2, "label": "a"}),
    partition({"label": "a" * 37}),
    partition({"label": "a:b"}),
    partition({"number": 1, "guid": "not-a-guid"}),
    partition({"number": 1, "shouldExist": False, "label": "a"}),
    partition({"number": 1, "shouldExist": False, "sizeMiB": 0}),
    partition({"sizeMiB": 1}),
    config(storage={"raid": [{"name": "a", "level": "zzz", "devices": ["/dev/a"]}]}),
    config(storage={"raid": [{"name": "a", "level": "stripe", "devices": ["/dev/a"], "spares": 1}]}),
    config(storage={"raid": [{"name": "a", "level": "raid1", "devices": ["dev/a"]}]}),
    make_volume(name="a/b"),
    make_volume(label="l" * 48),
    make_volume(keyFile={"source": "file:///a"}),
    make_volume(clevis={"custom": {"pin": "z", "config": "a"}}),
    make_volume(clevis={"custom": {"pin": "sss"}}),
    make_volume(clevis={"custom": {"pin": "sss", "config": "a"}, "tpm2": True}),
    make_volume(clevis={"tang": [{"url": "http://a"}]}),
    make_volume(clevis={"tang": [{"url": "file:///a", "thumbprint": "b"}]}),
    make_volume(clevis={"tang": [{"url": "http://a:x/", "thumbprint": "b"}]}),
    make_volume(clevis={"tang": [{"url": "http://a", "thumbprint": "b"}, {"url": "http://a", "thumbprint": "c"}]}),
    make_volume(device="/dev//a"),
    config(storage={"disks": [{"device": "/dev/disk/../a"}]}),
    config(storage={"filesystems": [{"device": "/dev/a/", "format": "ext4"}]}),
    config(storage={"raid": [{"name": "a", "level": "raid1", "devices": ["/dev/./a"]}]}),
    config(0, storage={"files": [{"path": "/a", "contents": {"source": "http://a", "verification": SHA256}}]}),
    make_proxy_config(httpProxy="http://a:x/"),
    fetch(source="http://a.test/b\n"),
    fetch(source="http://{{ host }}/b"),
)
VOLUME = {"name": "a", "device": "/dev/a", "cex": {"enabled": True}}  # since 3.5
CLASH = config(
    storage={"files": [{"path": "/etc/systemd/system/a.service"}]},
    systemd={"units": [{"name": "a.service", "contents": "[Unit]\n"}]},
)


def is_accepted(text: str) -> bool:
    minor = next((minor for minor in range(7) if f'"3.{minor}.0"' in text), 3)
    try:
        check_ignition(f"Ignition/3.{minor}", text)
    except Malformed:
        return False
    return True


def test_finding_p10_an_ignition_document_is_accepted_if_ignition_takes_it() -> None:
    assert [text for text in ACCEPTED if not is_accepted(text)] == []
    assert [text for text in REJECTED if is_accepted(text)] == []
    assert not is_accepted(config(5, storage={"luks": [{**VOLUME, "clevis": {"tpm2": True}}]}))
    assert is_accepted(config(5, storage={"luks": [VOLUME]}))
    assert not is_accepted(CLASH)  # Ignition rejects a file that is also a unit since 2.15


UNIT_LINES = (
    *("[A]", "[A] ", "[A] b", "[A\\]", "[", "[A", "]", "[é]", "[A]\r", " [A]"),
    *("", "  ", "\t", "\x1f", "\\", "# a", "#a\\", "; a \\ ", "#"),
    *("A=b", "A=", "=", "A", " A=b", "A = b \\", "A=b\\", "A=b\\ ", " b\\", "A=b\r", "é=", "A=b]"),
    *(
        f"A={'b' * 1500}",
        f"A={'b' * 2045}",
        f"A={'b' * 2046}",
        f"#{'a' * 2000}",
        f"#{'a' * 2047}",
        f"[{'a' * 2046}]",
        " " * 2048,
        f"[A]{' ' * 2045}",
    ),
)


@given(st.lists(st.sampled_from(UNIT_LINES), max_size=6))
@settings(max_examples=500)
def test_the_quick_check_of_a_unit_accepts_nothing_that_ignition_rejects(lines: list[str]) -> None:
    text = "\n".join(["[A]", *lines, ""])
    if ignition._PLAIN_UNIT.fullmatch(text):
        assert ignition._search_unit_fault(text) is None


def test_the_quick_check_covers_an_ordinary_unit() -> None:
    assert ignition._PLAIN_UNIT.fullmatch("# a\n[Unit]\nAfter=a.target\n\n[Service]\nExecStart=/bin/a \\\n  -b\n")


def make_data_url(content: bytes) -> str:
    return f"data:text/plain;base64,{base64.b64encode(content).decode()}"


ZIPPED = make_data_url(gzip.compress(b"a b\n"))
HASH = {"hash": f"sha256-{hashlib.sha256(b'a b').hexdigest()}"}
OTHER_HASH = {"hash": f"sha512-{'0' * 128}"}
ZIPPED_HASH = {"hash": f"sha512-{hashlib.sha512(b'a b' + bytes([10])).hexdigest().upper()}"}
PERCENT_URL = f"data:,{quote(config(2))}"


@for_each(
    ("text", "accepted"),
    [
        (fetch(source="data:;k=v,a%20b", verification=HASH), True),
        (fetch(source="data:,a+b", verification=HASH), False),
        (fetch(source=make_data_url(b"a b"), verification=HASH), True),
        (fetch(source=make_data_url(b"a b"), verification=OTHER_HASH), False),
        (fetch(source="https://a.test/b", verification=OTHER_HASH), True),
        (file(append=[{"source": "data:,a", "verification": HASH}]), False),
        (make_volume(keyFile={"source": "data:,a", "verification": HASH}), False),
        # the hash is of the decompressed content
        (fetch(source=ZIPPED, compression="gzip", verification=ZIPPED_HASH), True),
        (fetch(source=ZIPPED, compression="gzip", verification=OTHER_HASH), False),
        (fetch(source=ZIPPED, compression="gzip"), True),
        (fetch(source=ZIPPED[:-8], compression="gzip"), False),
        (fetch(source="data:,a", compression="gzip"), False),
        (fetch(source="data:,", compression="gzip"), False),
        (make_merge_config(PERCENT_URL), True),
        (make_merge_config(make_data_url(config(3).encode())), True),
        (make_merge_config(make_data_url(config(9).encode())), True),  # a version that gitboot does not have
        (make_merge_config(make_data_url(b'{"ignition": {"version": "2.2.0"}}')), False),
        (make_merge_config(make_data_url(b"{")), False),
        (make_merge_config(make_data_url(b"\xff")), False),
        (make_merge_config("data:,"), False),
        (make_merge_config(make_data_url(file(mode=-1).encode())), False),
        (make_merge_config(make_data_url(make_merge_config("data:,a").encode())), False),
    ],
)
def test_finding_p10_the_content_of_a_data_url_is_checked(text: str, accepted: bool) -> None:
    assert is_accepted(text) == accepted


def test_finding_p10_large_compressed_content_is_accepted_without_a_check() -> None:
    zipped = make_data_url(gzip.compress(bytes(40_000_000)))
    assert is_accepted(fetch(source=zipped, compression="gzip", verification=OTHER_HASH))


def test_finding_p10_ignition_validate_agrees() -> None:
    """Debian's knows the specifications up to 3.3."""
    validator = unpack("ignition") / "usr/bin/ignition-validate"
    wrong = {}
    for text in (*ACCEPTED, *REJECTED):
        done = subprocess.run([validator, "-"], input=text, capture_output=True, text=True, check=False)
        if (done.returncode == 0) != (text in ACCEPTED):
            wrong[text] = done.stdout + done.stderr
    assert wrong == {}


@for_each(
    ("minor", "fields", "accepted"),
    [
        (3, {"openOptions": ["a", "a"]}, True),  # 3.3 does not have this field
        (4, {"openOptions": ["a", "a"]}, False),
        (3, {"clevis": {"tang": [{"url": "http://a", "thumbprint": "b", "advertisement": "{"}]}}, True),
        (4, {"clevis": {"tang": [{"url": "http://a", "thumbprint": "b", "advertisement": "{"}]}}, False),
        (4, {"clevis": {"tang": [{"url": "http://a", "thumbprint": "b", "advertisement": "{}"}]}}, True),
        (5, {"clevis": {"custom": {"pin": "pkcs11", "config": "{}"}}}, False),
        (6, {"clevis": {"custom": {"pin": "pkcs11", "config": "{}"}}}, True),
        (6, {"clevis": {"custom": {"config": "{}"}}}, False),
    ],
)
def test_a_volume_follows_the_rules_of_its_version(minor: int, fields: dict[str, Any], accepted: bool) -> None:
    text = config(minor, storage={"luks": [{"name": "a", "device": "/dev/a", **fields}]})
    assert is_accepted(text) == accepted


@for_each(
    ("arguments", "lacking"),
    [
        ((), True),
        (("quiet", "ignition.config.url=http://a.test/b", "ignition.platform.id=metal"), True),
        (("ignition.firstboot",), False),
        (("ignition.firstboot=1",), False),
        (("ignition.firstboot=0",), True),
        (("ignition.firstboot=",), True),
        (("ignition.firstboot=1", "ignition.firstboot=off"), True),
        (("ignition.first-boot=1",), True),
        (("flatcar.first_boot=1",), False),
        (("flatcar.first_boot=detected",), False),
        (("flatcar.first_boot=no", "coreos.first_boot=1"), False),
    ],
)
def test_finding_p10_ignition_runs_by_an_argument(arguments: tuple[str, ...], lacking: bool) -> None:
    assert lacks_ignition_argument("Ignition/3.4", arguments) == lacking
    assert not lacks_ignition_argument("CloudInit", arguments)


def test_finding_p10_json_has_its_line() -> None:
    with pytest.raises(Malformed, match="is not JSON") as error:
        check_ignition("Ignition/3.4", '{"ignition":\n {"version": "3.4.0"\n')
    assert error.value.at == (3,)
