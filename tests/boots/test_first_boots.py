"""First boots with their own programs: cloud-init on NoCloud and EC2, its schema, and Ignition's validator."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.boots.debian import unpacked
from tests.endpoint.test_boot_responses import FLEET, INIT
from tests.helpers import http_peers
from tests.helpers.endpoints import site

# With what its datasources import and gitboot's own environment has not.
PACKAGES = ("cloud-init", "python3-configobj", "python3-six", "python3-oauthlib", "python3-netifaces")
GOLDEN = Path(__file__).parents[1] / "golden"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


@pytest.fixture(scope="module")
def modules() -> str:
    """Return the path by which Python finds Debian's packages."""
    roots = (unpacked(package, ARCHITECTURE) for package in PACKAGES)
    return os.pathsep.join(str(root / "usr/lib/python3/dist-packages") for root in roots)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with site(FLEET) as here, here.serve() as found:
        yield found


def read_seed(modules: str, folder: Path, name: str, seed: str) -> dict[str, Any]:
    command = [sys.executable, "-P", str(Path(__file__).parent / "seed.py"), name, seed, str(folder)]
    environment = {**os.environ, "PYTHONPATH": modules}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_nocloud_finds_its_whole_seed(modules: str, url: str, tmp_path: Path) -> None:
    found = read_seed(modules, tmp_path, "NoCloud", f"{url}/nocloud/{INIT}/")
    assert found["found"] is True
    assert found["user_data"] == "#cloud-config\nhostname: init01\n"
    assert found["vendor_data"] == ""  # local, and so not requested ten times
    assert (found["metadata"]["instance-id"], found["metadata"]["local-hostname"]) == (INIT, "init01")


def test_ec2_finds_the_machine_by_its_address(modules: str, url: str, tmp_path: Path) -> None:
    found = read_seed(modules, tmp_path, "Ec2", url)
    assert found["found"] is True
    assert found["user_data"] == "#cloud-config\nhostname: init01\n"
    assert (found["metadata"]["instance-id"], found["metadata"]["local-hostname"]) == (INIT, "init01")


def _is_valid(schema: Path, text: str, folder: Path) -> bool:
    (folder / "user-data.yaml").write_text(text)
    check = [sys.executable, "-m", "check_jsonschema", "--schemafile", str(schema), str(folder / "user-data.yaml")]
    return subprocess.run(check, check=False).returncode == 0


def test_files_for_cloud_init_are_valid_by_its_own_schema(url: str, tmp_path: Path) -> None:
    found = next(unpacked("cloud-init", ARCHITECTURE).rglob("schema-cloud-config-v1.json"))
    schema = tmp_path / "schema.json"
    schema.write_bytes(found.read_bytes())
    [example] = GOLDEN.glob("example-batch-diskless/o/*/user-data")
    for text in (http_peers.get(f"{url}/nocloud/{INIT}/user-data").text, example.read_text()):
        assert _is_valid(schema, text, tmp_path)
    assert not _is_valid(schema, "#cloud-config\nusers: 7\n", tmp_path)


def test_files_for_ignition_are_valid_by_its_own_validator(tmp_path: Path) -> None:
    """Debian's is of specification 3.3, the last but one that these documents are written by."""
    validator = unpacked("ignition", ARCHITECTURE) / "usr/bin/ignition-validate"
    documents = sorted(GOLDEN.glob("example-*/ignition/*"))
    assert len(documents) > 3
    texts = [each.read_text().replace('"3.4.0"', '"3.3.0"') for each in documents]
    for text, valid in (*((text, True) for text in texts), (texts[0].replace("storage", "storrage"), False)):
        done = subprocess.run([validator, "-"], input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout == "") == (0, valid), done.stdout + done.stderr
