"""`gitboot artifacts resolve` and `verify`, and `gitboot validate` of what names a registry's image by its tag."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gitboot.cli.main import Exit
from tests.helpers.artifact_servers import (
    IRONCORE,
    ArtifactServer,
    Registry,
    artifact_server,
    compute_digest,
    digest,
    registry,
)
from tests.helpers.fleets import SEED, document, fleet, image, maintenance, policy, profile, server
from tests.helpers.git_repositories import WorkTree
from tests.helpers.instance_with_bmcs import run_command

KERNEL, INITRD, DISC = b"kernel", b"initrd", b"disc"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """A registry with one image for x86_64."""
    folder = tmp_path_factory.mktemp("registry")
    with registry(folder, storage=folder / "storage") as found:
        pxe = found.push_image("os/linux", "pxe", [(f"{IRONCORE}kernel", KERNEL), (f"{IRONCORE}initramfs", INITRD)])
        found.push_index("os/linux", "1.0", [{**pxe, "platform": {"architecture": "amd64", "os": "linux"}}])
        yield found


def written(folder: Path, *documents: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "fleet.yaml").write_text("---\n".join(documents))
    return folder


def test_resolve_prints_the_fields_of_a_boot_image(found: Registry, tmp_path: Path) -> None:
    name = f"oci://{found.host}/os/linux"
    result = run_command("artifacts", "resolve", f"{name}:1.0", "--registries", found.allowed)
    first, _, rest = result.out.partition("\n")
    assert first.startswith(f"# {name}@sha256:")
    spec = f"version: 1.0\n{rest}".replace("\n", "\n  ").rstrip()
    text = document("BootImage", "linux-1.0", "SPEC").replace("{SPEC}", f"\n  {spec}")
    assert run_command("validate", written(tmp_path / "fleet", *SEED, text)).code == 0
    kernel = yaml.safe_load(rest)["architectures"]["x86_64"]["kernel"]
    assert kernel == {"url": f"{name}@sha256:{digest(KERNEL)}", "sha256": digest(KERNEL), "size": len(KERNEL)}

    as_json = json.loads(
        run_command("artifacts", "resolve", first[2:], "--registries", found.allowed, "-o", "json").out
    )
    assert as_json["architectures"] == yaml.safe_load(rest)["architectures"]
    assert as_json["image"] == first[2:]


def test_a_registry_that_is_not_listed_gets_no_request(found: Registry) -> None:
    name = f"oci://{found.host}/os/linux:1.0"
    for named in ((), ("--registries", "registry.test"), ("--registries", f"{found.allowed}/other/*")):
        assert run_command("artifacts", "resolve", name, *named).code == Exit.SOURCE
    assert run_command("artifacts", "resolve", "os/linux:1.0").code == Exit.USAGE


def test_a_tag_is_rejected_with_the_digests_to_write(found: Registry, tmp_path: Path) -> None:
    name = f"oci://{found.host}/os/linux"
    text = image("linux-1.0", artifacts="kernel").replace("assets:linux-1.0/kernel", f"{name}:1.0")
    fleet = written(tmp_path / "fleet", *SEED, text)
    alone = run_command("validate", fleet)
    assert (alone.code, f"instead of a tag, found {name}:1.0" in alone.out) == (Exit.INVALID, True), alone
    assert f"copy the output of `gitboot artifacts resolve {name}:1.0`" in alone.out

    asked = run_command("validate", fleet, "--registries", found.allowed)
    assert (asked.code, f"x86_64.kernel is {name}@sha256:{digest(KERNEL)}" in asked.out) == (Exit.INVALID, True), asked
    assert f"x86_64.initrds is {name}@sha256:{digest(INITRD)}" in asked.out

    unknown = written(tmp_path / "unknown", *SEED, text.replace(':1.0"', ':2.0"'))
    asked = run_command("validate", unknown, "--registries", found.allowed)
    assert asked.code == Exit.INVALID
    assert "the lookup failed: " in asked.out and "does not exist in the registry" in asked.out


def test_the_digest_of_a_manifest_is_rejected_as_the_digest_of_a_file(tmp_path: Path) -> None:
    text = image("linux-1.0", artifacts="kernel")
    text = text.replace("assets:linux-1.0/kernel", f"oci://registry.test/os/linux@sha256:{'0' * 64}")
    result = run_command("validate", written(tmp_path / "fleet", *SEED, text))
    assert (result.code, "the digest in the URL is not" in result.out) == (Exit.INVALID, True), result


@pytest.fixture
def web() -> Iterator[ArtifactServer]:
    with artifact_server() as server:
        for site in ("", "/fra"):
            server.put(f"{site}/assets/vmlinuz", KERNEL)
            server.put(f"{site}/assets/initrd", INITRD)
        server.put("/disc.iso", DISC, "application/vnd.efi-iso")
        yield server


@pytest.fixture
def work(tmp_path: Path, web: ArtifactServer, monkeypatch: pytest.MonkeyPatch) -> WorkTree:
    """A fleet whose servers boot a kernel from their site, and in a window a disc by firmware."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = WorkTree(tmp_path / "work")
    kernel = f"{{url: 'assets:vmlinuz', sha256: {compute_digest(KERNEL)}, size: {len(KERNEL)}}}"
    initrd = f"{{url: 'assets:initrd', sha256: {compute_digest(INITRD)}}}"
    unused = f"{{url: 'assets:unused', sha256: {compute_digest(b'')}}}"
    disc = f"{{url: '{web.url}/disc.iso', sha256: {compute_digest(DISC)}}}"
    linux = f"version: '1', architectures: {{x86_64: {{kernel: {kernel}, initrds: [{initrd}], iso: {unused}}}}}"
    sites = f"sites: [{{name: fra, select: {{matchLabels: {{site: fra}}}}, baseURL: '{web.url}/fra'}}]"
    documents = (
        fleet(f"baseURL: '{web.url}', {sites}"),
        server("web01"),
        server("web02", "site: fra"),
        server("web03", "site: fra"),
        document("BootImage", "linux-1", linux),
        document("BootImage", "disc-1", f"version: '1', architectures: {{x86_64: {{iso: {disc}}}}}"),
        profile("web", "linux-1"),
        profile("repair", "disc-1", "httpBoot: iso", method="UefiHttp"),
        policy("web"),
        maintenance("repair", "20T22:00 21T04:00", select="{servers: [web01]}"),
    )
    made.commit({f"{number:02}.yaml": text for number, text in enumerate(documents)}, "Begin")
    return made


def parse_items(printed: str) -> dict[str, dict[str, Any]]:
    return {each["url"]: each for each in json.loads(printed)["items"]}


def test_every_artifact_in_a_decision_is_read_once(work: WorkTree, web: ArtifactServer) -> None:
    code, out, _ = run_command("artifacts", "verify", work.path, "-o", "json")
    found = parse_items(out)
    assert code == 0
    assert found.keys() == {
        f"{web.url}/assets/vmlinuz",
        f"{web.url}/assets/initrd",
        f"{web.url}/fra/assets/vmlinuz",
        f"{web.url}/fra/assets/initrd",
        f"{web.url}/disc.iso",
    }
    assert {each["presence"] for each in found.values()} == {"Verified"}
    kernel = found[f"{web.url}/fra/assets/vmlinuz"]
    assert (kernel["sites"], kernel["images"], kernel["servers"]) == (["fra"], ["linux-1"], 2)
    assert (kernel["sha256"], kernel["size"], kernel["byFirmware"]) == (compute_digest(KERNEL), len(KERNEL), False)
    assert found[f"{web.url}/disc.iso"]["byFirmware"]
    run_command("artifacts", "verify", work.path)
    assert web.asked["GET", "/assets/vmlinuz"] == 1
    assert web.asked["HEAD", "/assets/vmlinuz"] == 2


def test_a_missing_or_wrong_artifact_is_reported_with_its_image_and_the_number_of_servers(
    work: WorkTree, web: ArtifactServer
) -> None:
    del web.files["/fra/assets/initrd"]
    web.put("/assets/vmlinuz", b"KERNEL")
    code, out, _ = run_command("artifacts", "verify", work.path)
    assert code == 8
    rows = [line.split() for line in out.splitlines()]
    assert ["Missing", "linux-1", "2", f"{web.url}/fra/assets/initrd"] in rows
    assert ["Wrong", "linux-1", "1", f"{web.url}/assets/vmlinuz"] in rows
    assert "the fleet: 3 artifacts: 2 verified, 1 wrong" in out
    assert "fra: 2 artifacts: 1 missing, 1 verified" in out
    assert run_command("artifacts", "verify", work.path, "--head")[0] == 8
    code, out, _ = run_command("artifacts", "verify", work.path, "--site", "fra", "-o", "json")
    assert code == 8
    assert parse_items(out).keys() == {f"{web.url}/fra/assets/vmlinuz", f"{web.url}/fra/assets/initrd"}


def test_the_signatures_that_ipxe_fetches_must_exist(work: WorkTree, web: ArtifactServer) -> None:
    text = (work.path / "04.yaml").read_text()
    for name in ("vmlinuz", "initrd"):
        text = text.replace(f"'assets:{name}',", f"'assets:{name}', loaderSignature: 'assets:{name}.sig',")
        web.put(f"/assets/{name}.sig", b"signature")
        web.put(f"/fra/assets/{name}.sig", b"signature")
    work.commit({"04.yaml": text}, "Sign")
    code, out, _ = run_command("artifacts", "verify", work.path, "-o", "json")
    found = parse_items(out)[f"{web.url}/fra/assets/vmlinuz.sig"]
    assert (code, found["presence"], found["sha256"], found["servers"]) == (0, "Found", None, 2)
    assert web.asked["GET", "/fra/assets/vmlinuz.sig"] == 0
    del web.files["/fra/assets/vmlinuz.sig"]
    code, out, _ = run_command("artifacts", "verify", work.path)
    rows = [line.split() for line in out.splitlines()]
    assert (code, ["Missing", "linux-1", "2", f"{web.url}/fra/assets/vmlinuz.sig"] in rows) == (8, True)


def test_an_artifact_that_firmware_would_not_boot_is_reported(work: WorkTree, web: ArtifactServer) -> None:
    web.put("/disc.iso", DISC, "text/plain")
    assert run_command("artifacts", "verify", work.path)[0] == 0, "OVMF boots a disc.iso of this content type"
    web.put("/disc", DISC, "text/plain")
    documents = {path.name: path.read_text().replace("/disc.iso", "/disc") for path in work.path.glob("*.yaml")}
    work.commit(documents, "Rename")
    code, out, _ = run_command("artifacts", "verify", work.path)
    assert code == 8
    assert "but it is text/plain, and the URL does not end in .efi" in " ".join(out.split())


def test_a_server_that_does_not_respond_has_its_own_exit_code(work: WorkTree, web: ArtifactServer) -> None:
    web.statuses["/disc.iso"] = 503
    assert run_command("artifacts", "verify", work.path)[0] == 6
    del web.files["/assets/initrd"]
    assert run_command("artifacts", "verify", work.path)[0] == 8


def test_a_directory_is_read_instead_of_the_url_that_serves_it(
    work: WorkTree, web: ArtifactServer, tmp_path: Path
) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "vmlinuz").write_bytes(KERNEL)
    _, out, _ = run_command("artifacts", "verify", work.path, "--assets", tmp_path / "assets", "-o", "json")
    found = parse_items(out)
    assert found[f"{web.url}/assets/vmlinuz"]["presence"] == "Verified"
    assert found[f"{web.url}/assets/initrd"]["presence"] == "Missing"
    assert found[f"{web.url}/fra/assets/initrd"]["presence"] == "Verified"
    assert web.asked["HEAD", "/assets/vmlinuz"] == 0


def test_files_of_an_archive_are_verified_and_downloaded(web: ArtifactServer, tmp_path: Path) -> None:
    written_archive = io.BytesIO()
    with tarfile.open(fileobj=written_archive, mode="w:xz") as archive:
        for name, content in (("./amd64/linux", KERNEL), ("./amd64/initrd", INITRD)):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    web.put("/netboot.tar.xz", written_archive.getvalue())
    url = f"{web.url}/netboot.tar.xz"
    files = (
        f"kernel: {{url: '{url}#amd64/linux', sha256: {compute_digest(KERNEL)}, size: {len(KERNEL)}}}, "
        f"initrds: [{{url: '{url}#amd64/initrd', sha256: {compute_digest(INITRD)}}}]"
    )
    linux = document("BootImage", "linux-1", f"version: 1, architectures: {{x86_64: {{{files}}}}}")
    outputs = fleet("baseURL: 'http://boot.test', outputs: [ipxe, mirror]")
    made = (server("web01", "role: web"), linux, profile("web", "linux-1"), policy("web", "{matchLabels: {role: web}}"))
    path, out = written(tmp_path / "fleet", outputs, *made), tmp_path / "boot"

    verified = run_command("artifacts", "verify", path, "--sources", "-o", "json", "--no-cache")
    assert {each["presence"] for each in json.loads(verified.out)["items"]} == {"Verified"}
    for _ in range(2):
        assert run_command("artifacts", "download", path, "--out", out).code == 0
    assert (out / "o" / compute_digest(KERNEL) / "kernel").read_bytes() == KERNEL
    assert (out / "o" / compute_digest(INITRD) / "initrd").read_bytes() == INITRD

    other = written(tmp_path / "other", outputs, *(each.replace("amd64/linux", "arm64/linux") for each in made))
    failed = run_command("artifacts", "download", other, "--out", tmp_path / "none", "-o", "json")
    assert failed.code == Exit.PARTIAL
    assert "the archive does not contain the file arm64/linux" in failed.out


def test_an_interrupted_verification_continues_at_the_same_place(
    work: WorkTree, web: ArtifactServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from gitboot.artifacts import availability

    real = availability.check_artifact

    def interrupted(fetcher: Any, file: Any, before: Any = None, **how: Any) -> Any:
        if file.url.endswith("disc.iso"):
            raise KeyboardInterrupt
        return real(fetcher, file, before, **how)

    with monkeypatch.context() as patched:
        patched.setattr(availability, "check_artifact", interrupted)
        run_command("artifacts", "verify", work.path, "--parallel", "1")
    before = web.asked["GET", "/assets/vmlinuz"]
    code, out, _ = run_command("artifacts", "verify", work.path, "-o", "json")
    assert (code, before, web.asked["GET", "/assets/vmlinuz"]) == (0, 1, 1)
    assert {each["presence"] for each in parse_items(out).values()} == {"Verified"}
    assert run_command("artifacts", "verify", work.path, "--no-cache")[0] == 0
    assert web.asked["GET", "/assets/vmlinuz"] == 2
    (tmp_path / "cache/gitboot/cache.sqlite").unlink()
    assert run_command("artifacts", "verify", work.path)[0] == 0
    assert web.asked["GET", "/assets/vmlinuz"] == 3


def test_an_unknown_site_is_an_error_that_lists_the_sites(work: WorkTree) -> None:
    code, _, said = run_command("artifacts", "verify", work.path, "--site", "frq")
    assert code == 64
    assert "fra" in said
