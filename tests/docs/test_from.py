"""docs/from/, walked: the commands of each page, on a source of its system, and a web server in its place."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from gitboot.importers.boot_comparison import SCRIPT_PATHS
from tests.helpers.artifact_servers import artifact_server
from tests.helpers.instance_with_bmcs import typed
from tests.importers.test_fleet_files import (
    INITRD,
    INITRDS,
    KERNEL,
    KERNELS,
    MAC,
    NAMES,
    SOURCES,
    UUID,
    lay,
    make_known_options,
)

PAGES = {path.stem: path for path in sorted((Path(__file__).parents[2] / "docs" / "from").glob("[!R]*.md"))}
HEXHYP = MAC.replace(":", "-")

# The request to the old system, and its response: the arguments are those of its source.
ASKED = {
    "matchbox": (
        f"/ipxe?uuid={UUID}&mac={HEXHYP}&serial=",
        "me=${hostname} kept={{braces}} ignition.config.url=URL/data",
    ),
    "cobbler": ("/cblr/svc/op/ipxe/system/web01", "quiet console=tty0 console=ttyS0"),
    "openchami": (f"/boot/v1/bootscript?mac={MAC}", "quiet"),
    "tinkerbell": (f"/{MAC}/auto.ipxe", ""),
    "metal3": (f"/pxelinux.cfg/{HEXHYP}", ""),
    "boot-operator": (f"/ipxe/{UUID}", ""),
    "foreman": (f"/unattended/iPXE?mac={MAC}", "quiet"),
    "maas": (f"/ipxe.cfg-{MAC}", ""),
}


def commands(page: Path) -> list[list[str]]:
    (block,) = re.findall(r"^```sh$(.*?)^```$", page.read_text(), re.M | re.S)
    return [shlex.split(line)[1:] for line in block.strip().splitlines()]


def test_every_system_that_can_be_compared_has_a_page() -> None:
    assert set(PAGES) == set(ASKED)
    assert {command[command.index("--as") + 1] for page in PAGES.values() for command in [commands(page)[-1]]} == set(
        SCRIPT_PATHS
    )


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_lead_to_a_server_that_boots_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = name not in ("metal3", "maas")  # their source has no kernel: they write an image
    make_known_options(tmp_path)
    lay(tmp_path / "source", SOURCES[name])
    monkeypatch.chdir(tmp_path)
    imported, validated, asks = commands(PAGES[name])
    assert (imported[0], validated[0], asks[0]) == ("import", "validate", "compare-old-system")
    imported[2] = str(tmp_path / "source")
    done = typed(*imported)
    assert done.code == 0 and "pending" not in done.err, done
    assert typed(*validated).code == 0
    with artifact_server() as old:
        path, arguments = ASKED[name]
        kernel, initrd = KERNELS.get(name, KERNEL), INITRDS.get(name, INITRD)
        script = f"#!ipxe\nkernel {kernel} {arguments}\ninitrd {initrd}\nboot\n" if compared else "#!ipxe\nexit\n"
        old.put(path, script.replace("URL", old.url).encode())
        old.put("/data", b'{"ignition": {"version": "3.3.0"}}')
        asks[asks.index("--old") + 1] = old.url
        done = typed(*asks)
        assert (done.code, done.out) == (0, "1 server: 1 equal\n"), done
        old.put(path, script.replace(" quiet", "").replace("vmlinuz", "vmlinux").replace("exit", "kernel /k").encode())
        assert typed(*asks).code == 2
        assert set(old.asked) <= {("GET", path), ("GET", "/data")}
    shutil.rmtree(tmp_path / "fleet")


def test_the_pages_name_a_server_as_its_source_does() -> None:
    assert set(NAMES) <= set(PAGES)
