"""docs/how-to/move-from-*.md: the commands and outputs of each page, with a web server in place of the old system."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from textwrap import dedent

import pytest

from gitboot.importers.boot_comparison import SCRIPT_PATHS
from tests.helpers.artifact_servers import artifact_server
from tests.helpers.instance_with_bmcs import run_command
from tests.importers.test_fleet_files import (
    INITRD,
    INITRDS,
    KERNEL,
    KERNELS,
    MAC,
    NAMES,
    SOURCES,
    UUID,
    make_known_options,
    write_files,
)

PAGES = {
    path.stem.removeprefix("move-from-"): path
    for path in sorted((Path(__file__).parents[2] / "docs" / "how-to").glob("move-from-*.md"))
}
MOVE = Path(__file__).parents[2] / "docs" / "how-to" / "move.md"  # the steps of all systems
HEXHYP = MAC.replace(":", "-")

# The request to the old system, and its response: the arguments are those of its source.
OLD_RESPONSES = {
    "matchbox": (
        f"/ipxe?uuid={UUID}&mac={HEXHYP}&serial=&arch=x86_64",
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


def read_steps(page: Path) -> list[tuple[list[str], str]]:
    """Return the gitboot commands in the blocks of a page, each with the output that the page shows."""
    blocks = re.findall(r"^ *```console$(.*?)^ *```$", page.read_text(), re.M | re.S)
    shown = [re.split(r"^\$ ", dedent(block).strip("\n"), flags=re.M)[1:] for block in blocks]
    return [
        (shlex.split(command.partition("\n")[0])[1:], command.partition("\n")[2].strip())
        for block in shown
        for command in block
        if command.startswith("gitboot ")
    ]


def list_commands(page: Path) -> list[list[str]]:
    return [words for words, _ in read_steps(page)]


def test_every_system_that_can_be_compared_has_a_page() -> None:
    assert set(PAGES) == set(OLD_RESPONSES)
    assert {
        command[command.index("--as") + 1] for page in PAGES.values() for command in [list_commands(page)[-1]]
    } == set(SCRIPT_PATHS)


@pytest.mark.parametrize("name", PAGES)
def test_the_commands_of_a_page_lead_to_a_server_that_boots_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared = name not in ("metal3", "maas")  # their source has no kernel: they write an image
    make_known_options(tmp_path)
    write_files(tmp_path / "source", SOURCES[name])
    monkeypatch.chdir(tmp_path)
    (imported, _), (asks, compare_output) = read_steps(PAGES[name])
    assert (imported[0], asks[0]) == ("import", "compare-old-system")
    imported[2] = str(tmp_path / "source")
    done = run_command(*imported)
    assert done.code == 0 and "pending" not in done.err, done
    assert re.search(r"^fleet: 1 server, \d boots?; see fleet/import-report.md$", done.out + done.err, re.M), done
    assert "Run `gitboot validate fleet`" in MOVE.read_text()
    done = run_command("validate", "fleet")
    assert done.code == 0 and re.search(r"^fleet: 1 server, \d images?, no errors$", done.out + done.err, re.M), done
    with artifact_server() as old:
        path, arguments = OLD_RESPONSES[name]
        kernel, initrd = KERNELS.get(name, KERNEL), INITRDS.get(name, INITRD)
        script = f"#!ipxe\nkernel {kernel} {arguments}\ninitrd {initrd}\nboot\n" if compared else "#!ipxe\nexit\n"
        old.put(path, script.replace("URL", old.url).encode())
        old.put("/data", b'{"ignition": {"version": "3.3.0"}}')
        asks[asks.index("--old") + 1] = old.url
        done = run_command(*asks)
        assert (done.code, done.out) == (0, f"{compare_output}\n"), done
        old.put(path, script.replace(" quiet", "").replace("vmlinuz", "vmlinux").replace("exit", "kernel /k").encode())
        assert run_command(*asks).code == 2
        assert set(old.asked) <= {("GET", path), ("GET", "/data")}
    shutil.rmtree(tmp_path / "fleet")


def test_the_pages_name_a_server_as_its_source_does() -> None:
    assert set(NAMES) <= set(PAGES)
