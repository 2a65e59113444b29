"""The volume with a system's user data: read by others' programs, and the same bytes each time."""

from __future__ import annotations

import subprocess
from hashlib import sha256
from pathlib import Path

import pytest

from gitboot.render.user_data_files import build_iso
from tests.helpers.git_repositories import program

NOCLOUD = {
    "meta-data": b'instance-id: "1"\n',
    "network-config": b"version: 2\n",
    "user-data": b"#cloud-config\n" + b"# long\n" * 1000,
    "vendor-data": b"",
}
VOLUMES = {
    "cidata": NOCLOUD,
    "OEMDRV": {"ks.cfg": b"text\n"},
    "combustion": {"combustion/script": b"#!/bin/bash\n"},
}


@pytest.mark.parametrize("names", ["-read_fs norock", "-read_fs nojoliet"], ids=["Joliet", "Rock Ridge"])
@pytest.mark.parametrize("label", VOLUMES)
def test_other_programs_read_the_label_and_each_file_by_its_name(tmp_path: Path, label: str, names: str) -> None:
    made, out = tmp_path / "made.iso", tmp_path / "out"
    made.write_bytes(build_iso(label, VOLUMES[label]))
    xorriso = [program("xorriso", "xorriso"), "-osirrox", "on", *names.split(), "-indev", f"stdio:{made}"]
    done = subprocess.run([*xorriso, "-extract", "/", str(out)], capture_output=True, text=True, check=True)
    assert f"Volume id    : '{label}'" in done.stderr
    found = {str(each.relative_to(out)): each.read_bytes() for each in out.rglob("*") if each.is_file()}
    assert found == VOLUMES[label]
    shown = subprocess.run([program("blkid", "util-linux"), "-p", made], capture_output=True, text=True, check=True)
    assert f'LABEL="{label}"' in shown.stdout


def test_the_same_files_give_the_same_bytes_in_any_order() -> None:
    made = build_iso("cidata", NOCLOUD)
    assert build_iso("cidata", dict(reversed(NOCLOUD.items()))) == made
    assert sha256(made).hexdigest() == "2a34d962d8c44dbb5a6c4eee6ee3d48cfaff1f8c883cddce14b7053994e91ad2", (
        "every server's medium is inserted anew by an upgrade"
    )
