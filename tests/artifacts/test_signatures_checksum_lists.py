"""Checksum lists: the formats that vendors publish."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gitboot.artifacts.signatures import ListedFile, read_checksum_list

A, B, LONG = "a" * 64, "b" * 64, "c" * 128

LISTS: dict[str, list[tuple[Any, ...]]] = {
    f"{A}  kernel\n{B} *initrd\n": [("sha256", A, "kernel"), ("sha256", B, "initrd")],
    f"{LONG}  kernel\r\n": [("sha512", LONG, "kernel")],
    f"{A.upper()}  kernel": [("sha256", A, "kernel")],
    f"{A}\n": [("sha256", A, "")],
    f"\\{A}  a\\nb\n": [("sha256", A, "a\\nb")],
    f"# kernel: 6000 bytes\nSHA256 (kernel) = {A}\nSHA512 (kernel) = {LONG}\nMD5 (kernel) = {'d' * 32}\n": [
        ("sha256", A, "kernel"),
        ("sha512", LONG, "kernel"),
    ],
    f"# MD5 HASH\n{'d' * 32}  k\n# SHA1 HASH\n{'e' * 40}  k\n# SHA512 HASH\n{LONG}  k\n": [("sha512", LONG, "k")],
    f"# BLAKE2B HASH\n{LONG}  k\n# SHA3-256 HASH\n{A}  k\n": [],
    f"Date: Sat\nMD5Sum:\n {'d' * 32} 7 a\nSHA256:\n {A} 7 a/b\n {B}     123456 c\nSHA512:\n {LONG} 0 d\n": [
        ("sha256", A, "a/b", 7),
        ("sha256", B, "c", 123456),
        ("sha512", LONG, "d", 0),
    ],
    f"SHA1:\n {A} 7 a\n {A} x b\nOther:\n {A} 7 a\n": [],
    # Ironic (test_get_checksum_from_url_multiline), go-getter, and `sha256sum --check`: one space or a tab
    f"fee f00\n{A} file\nbar fee\nf00": [("sha256", A, "file")],
    f"{B}\tfile": [("sha256", B, "file")],
    # OpenSSL
    f"SHA256(kernel)= {A}\nSHA2-512(kernel)= {LONG}\n": [("sha256", A, "kernel"), ("sha512", LONG, "kernel")],
    f"SHA512/256 (kernel) = {A}\nSHA3-256(kernel)= {A}\nSHA2-256(kernel)= {LONG}\n": [],
    f"# {A}  kernel\n {A}  kernel\n{A[1:]}  kernel\n{A}a  kernel\nx{A}  kernel\n": [],
    # JSON, such as simplestreams
    '{"format": "products:1.0", "products": {"p": {"versions": {"1": {"items": {'
    f'"boot-kernel": {{"path": "a/kernel", "sha256": "{A}", "size": 7, "sha512" : "{LONG}"}}, '
    f'"other": {{"sha256": "{A.upper()}", "md5": "{A}", "uncompressed-sha256": "{B}"}}}}}}}}}}}}}}': [
        ("sha256", A, ""),
        ("sha512", LONG, ""),
    ],
    f'{{"sha256": "{LONG}", "sha512": "{A}"}}\n{A}  kernel\n': [],
    "": [],
}


@pytest.mark.parametrize("text", LISTS)
def test_each_form_of_a_list_is_read(text: str) -> None:
    assert list(read_checksum_list(text.encode())) == [ListedFile(*each) for each in LISTS[text]]


@given(st.binary(max_size=400) | st.sampled_from(sorted(LISTS)).map(str.encode))
def test_a_list_has_only_digests_of_the_right_length(content: bytes) -> None:
    for each in read_checksum_list(content):
        assert len(each.digest) == {"sha256": 64, "sha512": 128}[each.algorithm]
        assert each.digest == each.digest.lower()
