"""What Ignition would not apply is rejected, and what it takes is accepted, as by Debian's ignition-validate."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from gitboot.model.scalars import Malformed
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


ACCEPTED = (
    config(),
    config(0),
    config(unknown=1),
    config(storage=None),
    config(2, kernelArguments={"shouldExist": "a field that 3.2 does not have"}),
    config(0, storage={"luks": 3}),
    file(mode=420, contents={"source": "data:,x"}, user={"name": "root"}, overwrite=True),
    file(contents={"source": "https://a.test/b", "verification": {"hash": f"sha256-{'0' * 64}"}}),
    file(contents={"source": "data:text/plain;charset=utf-8;base64,aGk="}),
    file(overwrite=None, append=[{"source": "data:,a%20b"}]),
    config(storage={"links": [{"path": "/a", "target": "b"}]}),
    config(passwd={"users": [{"name": "core", "sshAuthorizedKeys": ["a"]}]}),
    unit(enabled=True, contents="[Unit]\n", dropins=[{"name": "a.conf"}]),
    config(kernelArguments={"shouldExist": ["quiet"]}),
    config(storage={"filesystems": [{"device": "/dev/a", "format": "ext4", "path": "/x"}]}),
    config(storage={"raid": [{"name": "a", "level": "raid1", "devices": ["/dev/a"]}]}),
    make_merge_config("http://a.test/b"),
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
