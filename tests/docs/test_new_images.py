"""The page about new images: its source works as written, its commands work, and its table lists the signed sources."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
import yaml

from gitboot.cli.main import cli
from gitboot.image_sources.find_releases import list_vendor_sources
from tests.helpers.artifact_servers import ArtifactServer, artifact_server, compute_digest
from tests.helpers.documentation import ROOT, read_page
from tests.helpers.git_repositories import find_fingerprint, gpg_people, sign_with_gpg

TEXT: Final = (ROOT / "docs" / "how-to" / "new-image.md").read_text()
HOST: Final = "https://images.example.net"


def run_gitboot(*arguments: str) -> None:
    cli.main(list(arguments), prog_name="gitboot", standalone_mode=False)


@contextmanager
def serve_files(server: ArtifactServer, folder: str, *names: str) -> Iterator[bytes]:
    """Serve files, and yield the list of their digests."""
    listed = ""
    for name in names:
        content = f"{folder}/{name}".encode() * 1000
        server.put(f"{folder}/{name}", content)
        listed += f"{compute_digest(content)}  {name}\n"
    yield listed.encode()


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    run_gitboot("init", str(tmp_path / "fleet"))
    monkeypatch.chdir(tmp_path / "fleet")
    return tmp_path / "fleet"


@pytest.mark.parametrize("variant", ["signed", "published", "firstSeen"])
def test_the_source_on_the_page_works_with_the_commands_on_the_page(
    variant: str, fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the host and the fingerprint differ. The page states what to remove if the vendor signs nothing."""
    (block,) = (each for each in read_page("docs/how-to/new-image.md").fenced if "kind: ImageSource" in each.text)
    layout = next(each.text for each in read_page("docs/how-to/new-image.md").fenced if "SHA256SUMS.asc" in each.text)
    files = re.findall(r"1\.5\.0/(\S+-amd64\S*)", layout)
    assert len(files) == 2
    with artifact_server() as server, gpg_people("vendor") as people:
        fingerprint = find_fingerprint(people["vendor"])
        for version in ("1.4.0", "1.5.0"):
            with serve_files(server, f"/metalos/{version}", *files) as listed:
                (fleet.parent / "list").write_bytes(listed)
                signature = sign_with_gpg(people["vendor"], fleet.parent / "list", "--armor", "--detach-sign")
                server.put(f"/metalos/{version}/SHA256SUMS", listed)
                server.put(f"/metalos/{version}/SHA256SUMS.asc", signature)
        server.put("/metalos/", b'<a href="1.4.0/">1.4.0/</a> <a href="1.5.0/">1.5.0/</a>', "text/html")
        source = yaml.safe_load(block.text.replace(HOST, server.url))
        source["spec"]["keys"] = [fingerprint]
        if variant != "signed":
            del source["spec"]["keys"], source["spec"]["checksums"]["signature"]
        if variant == "firstSeen":
            del source["spec"]["checksums"]
        (fleet / "sources").mkdir()
        (fleet / "sources" / "metalos.yaml").write_text(yaml.safe_dump(source))
        keys = fleet.parent / "keys"
        keys.mkdir()
        (keys / "metalos.asc").write_bytes(people["vendor"].public.read_bytes())
        run_gitboot("validate")
        (command,) = re.findall(r"`gitboot (new image metalos .+?)`", TEXT)
        words = [str(keys) if word == "keys" else word for word in shlex.split(command)]
        capsys.readouterr()
        run_gitboot(*words)
        printed = yaml.safe_load(capsys.readouterr().out)
        run_gitboot(*(word for word in words if word != "--dry-run"))
    assert printed == yaml.safe_load((fleet / "images" / "metalos-1.5.0.yaml").read_text())
    kernel = printed["spec"]["architectures"]["x86_64"]["kernel"]
    assert (kernel["provenance"]["digest"], kernel["provenance"].get("key")) == (
        (variant, fingerprint) if variant == "signed" else (variant, None)
    )
    assert printed["spec"]["kernelArguments"] == source["spec"]["image"]["kernelArguments"]
    run_gitboot("validate")


def serve_iso(server: ArtifactServer, assets: Path) -> None:
    with serve_files(server, "", "rescue-7.iso") as listed:
        server.put("/rescue-7.iso.sha256", listed)


def serve_kernel(server: ArtifactServer, assets: Path) -> None:
    with serve_files(server, "/7", "vmlinuz", "initrd.img"):
        pass


def write_assets(server: ArtifactServer, assets: Path) -> None:
    (assets / "7").mkdir(parents=True)
    (assets / "7" / "vmlinuz").write_bytes(b"kernel")


@pytest.mark.parametrize(
    ("words", "prepare", "origin"),
    [
        pytest.param("rescue-7.iso", serve_iso, "published", id="an ISO"),
        pytest.param("7/vmlinuz --initrd", serve_kernel, "firstSeen", id="a kernel"),
        pytest.param("--assets", write_assets, None, id="files"),
    ],
)
def test_each_command_for_an_image_without_a_source_writes_an_image(
    words: str, prepare: Callable[[ArtifactServer, Path], None], origin: str | None, fleet: Path
) -> None:
    (command,) = (each for each in re.findall(r"`gitboot (new image .+?)`", TEXT) if words in each)
    with artifact_server() as server:
        prepare(server, fleet.parent / "assets")
        run_gitboot(
            *shlex.split(command.replace(HOST, server.url).replace("/srv/assets", str(fleet.parent / "assets")))
        )
    image = yaml.safe_load((fleet / "images" / "rescue-7.yaml").read_text())
    files = image["spec"]["architectures"]["x86_64"]
    file = files.get("kernel") or files["iso"]
    assert origin is None or file["provenance"]["digest"] == origin
    run_gitboot("validate")


def test_the_table_lists_exactly_the_built_in_sources_with_signatures_and_their_keys() -> None:
    section = TEXT.partition("## The sources\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")
    ]
    table = {name.strip("`"): (signed, key) for name, signed, key in rows}
    sources = {str(each.metadata.name): each.spec.keys for each in list_vendor_sources()}
    assert table.keys() == {name for name, keys in sources.items() if keys}
    for name, (signed, key) in table.items():
        keys = sources[name]
        assert signed, name
        assert key == (f"`{keys[0]}`" if len(keys) == 1 else key), name
        assert key, name


def test_the_command_on_the_page_lists_all_built_in_sources(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "    $ gitboot new image\n" in TEXT
    capsys.readouterr()
    run_gitboot("new", "image")
    heading, *rows = (re.split(r"  +", line) for line in capsys.readouterr().out.splitlines())
    signed = {row[0]: row[heading.index("SIGNED")] for row in rows}
    assert signed == {str(each.metadata.name): "yes" if each.spec.keys else "no" for each in list_vendor_sources()}
