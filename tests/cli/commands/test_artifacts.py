"""`gitboot artifacts resolve`, and `gitboot validate` of what names a registry's image by its tag."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from gitboot.cli.main import Exit, cli, exit_of
from gitboot.errors import GitbootError
from tests.helpers.artifact_servers import IRONCORE, Registry, digest, registry
from tests.helpers.fleets import SEED, document, image

KERNEL, INITRD = b"kernel", b"initrd"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with one image for x86_64."""
    folder = tmp_path_factory.mktemp("registry")
    with registry(folder, storage=folder / "storage") as found:
        pxe = found.push_image("os/linux", "pxe", [(f"{IRONCORE}kernel", KERNEL), (f"{IRONCORE}initramfs", INITRD)])
        found.push_index("os/linux", "1.0", [{**pxe, "platform": {"architecture": "amd64", "os": "linux"}}])
        yield found


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)])


def code(result: Result) -> int:
    return exit_of(result.exception) if isinstance(result.exception, GitbootError) else result.exit_code


def written(folder: Path, *documents: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "fleet.yaml").write_text("---\n".join(documents))
    return folder


def test_what_is_printed_is_what_a_boot_image_takes(found: Registry, tmp_path: Path) -> None:
    name = f"oci://{found.host}/os/linux"
    result = run("artifacts", "resolve", f"{name}:1.0", "--registries", found.allowed)
    first, _, rest = result.stdout.partition("\n")
    assert first.startswith(f"# {name}@sha256:")
    spec = f"version: 1.0\n{rest}".replace("\n", "\n  ").rstrip()
    text = document("BootImage", "linux-1.0", "SPEC").replace("{SPEC}", f"\n  {spec}")
    fleet = written(tmp_path / "fleet", *SEED, text)
    assert run("validate", fleet).exit_code == 0
    kernel = yaml.safe_load(rest)["architectures"]["x86_64"]["kernel"]
    assert kernel == {"url": f"{name}@sha256:{digest(KERNEL)}", "sha256": digest(KERNEL), "size": len(KERNEL)}

    as_json = json.loads(run("artifacts", "resolve", first[2:], "--registries", found.allowed, "-o", "json").stdout)
    assert as_json["architectures"] == yaml.safe_load(rest)["architectures"]
    assert as_json["image"] == first[2:]


def test_a_registry_that_is_not_named_is_not_asked(found: Registry) -> None:
    name = f"oci://{found.host}/os/linux:1.0"
    for named in ((), ("--registries", "registry.test"), ("--registries", f"{found.allowed}/other/*")):
        assert code(run("artifacts", "resolve", name, *named)) == Exit.SOURCE
    assert code(run("artifacts", "resolve", "os/linux:1.0")) == Exit.USAGE


def test_a_tag_is_refused_with_the_digests_to_write(found: Registry, tmp_path: Path) -> None:
    name = f"oci://{found.host}/os/linux"
    text = image("linux-1.0", artifacts="kernel").replace("assets:linux-1.0/kernel", f"{name}:1.0")
    fleet = written(tmp_path / "fleet", *SEED, text)
    alone = run("validate", fleet)
    assert alone.exit_code == Exit.INVALID
    assert f"{name}:1.0 names an image of a registry by its tag" in alone.stdout
    assert f"`gitboot artifacts resolve {name}:1.0` prints what to write" in alone.stdout

    asked = run("validate", fleet, "--registries", found.allowed)
    assert asked.exit_code == Exit.INVALID
    assert f"x86_64.kernel is {name}@sha256:{digest(KERNEL)}" in asked.stdout
    assert f"x86_64.initrds is {name}@sha256:{digest(INITRD)}" in asked.stdout

    unknown = written(tmp_path / "unknown", *SEED, text.replace(':1.0"', ':2.0"'))
    asked = run("validate", unknown, "--registries", found.allowed)
    assert asked.exit_code == Exit.INVALID
    assert "asked now: " in asked.stdout and "is not in the registry" in asked.stdout


def test_a_manifests_digest_is_not_taken_for_a_files(tmp_path: Path) -> None:
    text = image("linux-1.0", artifacts="kernel")
    text = text.replace("assets:linux-1.0/kernel", f"oci://registry.test/os/linux@sha256:{'0' * 64}")
    result = run("validate", written(tmp_path / "fleet", *SEED, text))
    assert result.exit_code == Exit.INVALID
    assert "the URL's digest is not" in result.stdout
