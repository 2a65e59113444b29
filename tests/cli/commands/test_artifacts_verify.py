"""`gitboot artifacts verify`, as its users type it, against a web server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.artifact_servers import ArtifactServer, artifact_server, digest_of
from tests.helpers.fleets import document, fleet, maintenance, policy, profile, server
from tests.helpers.git_repositories import Work
from tests.helpers.instance_with_bmcs import typed

Typed = Callable[..., tuple[int, str, str]]

KERNEL, INITRD, DISC = b"kernel", b"initrd", b"disc"


@pytest.fixture
def gitboot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Typed:
    """Type a command: its exit code, what it prints, and what it says beside."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return typed


@pytest.fixture
def web() -> Iterator[ArtifactServer]:
    with artifact_server() as server:
        for site in ("", "/fra"):
            server.put(f"{site}/assets/vmlinuz", KERNEL)
            server.put(f"{site}/assets/initrd", INITRD)
        server.put("/disc.iso", DISC, "application/vnd.efi-iso")
        yield server


@pytest.fixture
def work(tmp_path: Path, web: ArtifactServer) -> Work:
    """A fleet whose servers boot a kernel from their site, and in a window a disc by firmware."""
    made = Work(tmp_path / "work")
    kernel = f"{{url: 'assets:vmlinuz', sha256: {digest_of(KERNEL)}, size: {len(KERNEL)}}}"
    initrd = f"{{url: 'assets:initrd', sha256: {digest_of(INITRD)}}}"
    unused = f"{{url: 'assets:unused', sha256: {digest_of(b'')}}}"
    disc = f"{{url: '{web.url}/disc.iso', sha256: {digest_of(DISC)}}}"
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


def items(printed: str) -> dict[str, dict[str, Any]]:
    return {each["url"]: each for each in json.loads(printed)["items"]}


def test_every_artifact_that_decisions_name_is_read_once(gitboot: Typed, work: Work, web: ArtifactServer) -> None:
    code, out, _ = gitboot("artifacts", "verify", work.path, "-o", "json")
    found = items(out)
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
    assert (kernel["sha256"], kernel["size"], kernel["byFirmware"]) == (digest_of(KERNEL), len(KERNEL), False)
    assert found[f"{web.url}/disc.iso"]["byFirmware"]
    gitboot("artifacts", "verify", work.path)
    assert web.asked["GET", "/assets/vmlinuz"] == 1
    assert web.asked["HEAD", "/assets/vmlinuz"] == 2


def test_what_is_missing_or_wrong_is_told_with_whom_it_concerns(
    gitboot: Typed, work: Work, web: ArtifactServer
) -> None:
    del web.files["/fra/assets/initrd"]
    web.put("/assets/vmlinuz", b"KERNEL")
    code, out, _ = gitboot("artifacts", "verify", work.path)
    assert code == 8
    rows = [line.split() for line in out.splitlines()]
    assert ["Missing", "linux-1", "2", f"{web.url}/fra/assets/initrd"] in rows
    assert ["Wrong", "linux-1", "1", f"{web.url}/assets/vmlinuz"] in rows
    assert "the fleet: 3 artifacts: 2 verified, 1 wrong" in out
    assert "fra: 2 artifacts: 1 missing, 1 verified" in out
    assert gitboot("artifacts", "verify", work.path, "--head")[0] == 8
    code, out, _ = gitboot("artifacts", "verify", work.path, "--site", "fra", "-o", "json")
    assert code == 8
    assert items(out).keys() == {f"{web.url}/fra/assets/vmlinuz", f"{web.url}/fra/assets/initrd"}


def test_what_firmware_would_not_boot_is_told(gitboot: Typed, work: Work, web: ArtifactServer) -> None:
    web.put("/disc.iso", DISC, "text/plain")
    code, out, _ = gitboot("artifacts", "verify", work.path)
    assert code == 8
    assert "it is served as text/plain" in " ".join(out.split())


def test_what_does_not_answer_is_another_exit_code(gitboot: Typed, work: Work, web: ArtifactServer) -> None:
    web.statuses["/disc.iso"] = 503
    assert gitboot("artifacts", "verify", work.path)[0] == 6
    del web.files["/assets/initrd"]
    assert gitboot("artifacts", "verify", work.path)[0] == 8


def test_a_directory_stands_for_what_is_served_of_it(
    gitboot: Typed, work: Work, web: ArtifactServer, tmp_path: Path
) -> None:
    (tmp_path / "assets").mkdir()
    (tmp_path / "assets" / "vmlinuz").write_bytes(KERNEL)
    _, out, _ = gitboot("artifacts", "verify", work.path, "--assets", tmp_path / "assets", "-o", "json")
    found = items(out)
    assert found[f"{web.url}/assets/vmlinuz"]["presence"] == "Verified"
    assert found[f"{web.url}/assets/initrd"]["presence"] == "Missing"
    assert found[f"{web.url}/fra/assets/initrd"]["presence"] == "Verified"
    assert web.asked["HEAD", "/assets/vmlinuz"] == 0


def test_what_was_interrupted_goes_on_from_there(
    gitboot: Typed, work: Work, web: ArtifactServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from gitboot.artifacts import availability

    real = availability.look_at

    def interrupted(fetcher: Any, file: Any, before: Any = None, **how: Any) -> Any:
        if file.url.endswith("disc.iso"):
            raise KeyboardInterrupt
        return real(fetcher, file, before, **how)

    with monkeypatch.context() as patched:
        patched.setattr(availability, "look_at", interrupted)
        gitboot("artifacts", "verify", work.path, "--parallel", "1")
    before = web.asked["GET", "/assets/vmlinuz"]
    code, out, _ = gitboot("artifacts", "verify", work.path, "-o", "json")
    assert (code, before, web.asked["GET", "/assets/vmlinuz"]) == (0, 1, 1)
    assert {each["presence"] for each in items(out).values()} == {"Verified"}
    assert gitboot("artifacts", "verify", work.path, "--no-cache")[0] == 0
    assert web.asked["GET", "/assets/vmlinuz"] == 2
    (tmp_path / "cache/gitboot/cache.sqlite").unlink()
    assert gitboot("artifacts", "verify", work.path)[0] == 0
    assert web.asked["GET", "/assets/vmlinuz"] == 3


def test_a_site_that_there_is_not_is_named(gitboot: Typed, work: Work) -> None:
    code, _, said = gitboot("artifacts", "verify", work.path, "--site", "frq")
    assert code == 64
    assert "fra" in said
