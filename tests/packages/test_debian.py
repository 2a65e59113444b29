"""The files of a release. The Debian package and the image are used from nothing to a machine that boots."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import httpx
import pytest
from packaging.markers import Marker
from packaging.utils import canonicalize_name

from gitboot import __version__
from gitboot.cli.main import Exit, cli
from tests.helpers.endpoints import IPXE
from tests.helpers.git_repositories import WorkTree, free_port, program
from tests.helpers.running_instance import eventually
from tests.packages.debian import Debian, build_archive, unpack

ROOT: Final = Path(__file__).parent.parent.parent
ENTRY: Final = "v1/boot/52-54-00-12-34-56/boot.ipxe"
PLACES: Final = ("/var/lib/gitboot", "/srv/gitboot", "/var/spool/gitboot")
KERNEL: Final = "flatcar_production_pxe.vmlinuz"
LINKS: Final = "https://forge.test/gitboot/blob/main/"
HERE: Final = tuple(f"--accept-filesystem={name}" for name in ("overlay", "tmpfs"))  # of the machine that tests


@dataclass(frozen=True)
class Image:
    debian: Debian
    inspected: dict[str, Any]  # as `podman image inspect` prints it

    @property
    def settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = self.inspected["Config"]
        return settings

    @property
    def user(self) -> str:
        return str(self.settings["User"])


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("debian") / "root.tar"
    build_archive(path)
    return path


@pytest.fixture(scope="module")
def base(archive: Path) -> Iterator[str]:
    """The fresh Debian as an image, which the image of the Containerfile is built on instead of one from a registry."""
    name = f"localhost/gitboot-{os.getpid()}-base"
    podman("import", "--quiet", str(archive), name)
    yield name
    podman("image", "rm", "--force", name)


@pytest.fixture(scope="module")
def release(base: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What `scripts/release` writes in a clone of this repository."""
    program("dh", "debhelper")
    root = clone(tmp_path_factory.mktemp("clone") / "gitboot")
    try:
        run_script(root / "scripts" / "release", IMAGE_BASE=base, NOTES_LINKS=LINKS)
        yield root / "build" / "release"
    finally:
        podman("image", "rm", "--force", f"localhost/gitboot:{__version__}")


@pytest.fixture(scope="module")
def package(release: Path) -> Path:
    (built,) = release.glob("*.deb")
    return built


@pytest.fixture(scope="module")
def debian(archive: Path, package: Path, tmp_path_factory: pytest.TempPathFactory) -> Debian:
    """A Debian with gitboot and its dependencies."""
    made = unpack(archive, tmp_path_factory.mktemp("installed") / "root")
    (made.root / "root" / package.name).write_bytes(package.read_bytes())
    made.run("apt-get", "update", "--quiet=2")
    made.run("apt-get", "install", "--quiet=2", "--yes", "--no-install-recommends", f"/root/{package.name}")
    return made


@pytest.fixture(scope="module")
def image(release: Path) -> Image:
    """The image of the release, loaded from its archive."""
    name = f"localhost/gitboot:{__version__}"
    podman("image", "rm", "--force", name)
    podman("load", "--quiet", "--input", str(release / f"gitboot-image-{__version__}.tar"))
    (found,) = json.loads(podman("image", "inspect", name))
    environment = dict(each.split("=", 1) for each in found["Config"]["Env"])
    return Image(Debian(Path(podman("image", "mount", name).strip()), environment), found)


def clone(root: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", "--no-tags", ROOT, root], check=True)
    return root


def run_script(*command: str | Path, umask: int = -1, **environment: str) -> None:
    done = subprocess.run(
        command, env={**os.environ, **environment}, umask=umask, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def podman(*arguments: str) -> str:
    done = subprocess.run([program("podman", "podman"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def fetch_script(url: str) -> str | None:
    found = httpx.get(url, headers={"User-Agent": IPXE})
    return found.text if found.status_code == httpx.codes.OK else None


def read_unit(debian: Debian, unit: str) -> tuple[list[str], str]:
    """Return the command and the user of a unit that the package installed."""
    text = (debian.root / "lib" / "systemd" / "system" / unit).read_text()
    settings = dict(re.findall(r"^(\w+)=(.+)$", text, re.MULTILINE))
    more = f":{settings['SupplementaryGroups']}" if "SupplementaryGroups" in settings else ""
    return shlex.split(settings["ExecStart"]), f"{settings['User']}:{settings['Group']}{more}"


def test_a_release_has_each_file_and_its_digest(release: Path) -> None:
    names = {path.name for path in release.iterdir()}
    (package,) = (name for name in names if re.fullmatch(rf"gitboot_{__version__}_\w+\.deb", name))
    assert names == {
        package,
        f"gitboot-{__version__}-py3-none-any.whl",
        f"gitboot-{__version__}.cdx.json",
        f"gitboot-{__version__}.tar.gz",
        f"gitboot-docs-{__version__}.tar.gz",
        f"gitboot-image-{__version__}.tar",
        "RELEASE_NOTES.md",
        "SHA256SUMS",
    }
    lines = [line.split("  ") for line in (release / "SHA256SUMS").read_text().splitlines()]
    assert {name: digest for digest, name in lines} == {
        name: hashlib.sha256((release / name).read_bytes()).hexdigest() for name in names - {"SHA256SUMS"}
    }


def test_the_notes_of_a_release_are_its_section_of_the_changelog(release: Path) -> None:
    notes = (release / "RELEASE_NOTES.md").read_text()
    (section,) = re.findall(
        rf"^## {re.escape(__version__)}\n\n(.*?)(?=\n## |\Z)",
        (release.parents[1] / "CHANGELOG.md").read_text(),
        re.DOTALL | re.MULTILINE,
    )
    assert notes.replace(LINKS, "").strip() == section.strip()
    assert "](docs/" not in notes


def test_the_bill_of_materials_has_each_library_of_the_package(release: Path) -> None:
    bill = json.loads((release / f"gitboot-{__version__}.cdx.json").read_text())
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "gitboot")
    assert bill["metadata"]["component"]["version"] == __version__
    found = {canonicalize_name(each["name"]): each["version"] for each in bill["components"]}
    text = (ROOT / "gitboot/cli/commands/requirements.txt").read_text()
    locked = re.findall(r"^([\w.-]+)==([\w.]+)(?: ; (.+?))? \\$", text, re.MULTILINE)
    assert found == {
        canonicalize_name(name): version for name, version, marker in locked if not marker or Marker(marker).evaluate()
    }


def test_two_builds_of_a_commit_have_the_same_bytes(release: Path, tmp_path: Path) -> None:
    other = clone(tmp_path / "another folder")
    strange = {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7", "LC_ALL": "C", "SOURCE_DATE_EPOCH": "1"}
    run_script(other / "scripts" / "build-python", tmp_path / "out", umask=0o077, **strange)
    built = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert len(built) == 2
    assert [name for name, content in built.items() if content != (release / name).read_bytes()] == []


def test_lintian_finds_no_problem(package: Path) -> None:
    command = [program("lintian", "lintian"), "--allow-root", "--fail-on=error,warning", str(package)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (0, "")


def test_each_command_has_a_manual_page(package: Path) -> None:
    listed = subprocess.run(["dpkg-deb", "--contents", package], capture_output=True, text=True, check=True).stdout
    pages = set(re.findall(r"usr/share/man/man1/([\w-]+)\.1\.gz", listed))
    assert {"gitboot", "gitboot-run", "gitboot-bmc-get"} <= pages
    assert {f"gitboot-{name}" for name in cli.list_commands(click.Context(cli))} <= pages


def test_only_root_can_change_installed_files(debian: Debian) -> None:
    assert debian.run("gitboot", "--version").startswith(f"gitboot {__version__} (Python ")
    others = ("(", "!", "-user", "root", "-o", "-perm", "/022", ")", "!", "-type", "l")
    assert debian.run("find", "/usr/lib/gitboot", "/etc/gitboot", *others) == ""
    assert "debian/gitboot" not in (debian.root / "usr" / "lib" / "gitboot" / "bin" / "gitboot").read_text()
    assert "debian/gitboot" not in (debian.root / "usr" / "lib" / "gitboot" / "pyvenv.cfg").read_text()
    shared = debian.root / "usr" / "share"
    assert "gitboot" in (shared / "bash-completion" / "completions" / "gitboot").read_text()


def test_an_installed_package_serves_a_machine(debian: Debian) -> None:
    """A first hour with the units: init, commit, run, begin the records, serve."""
    debian.run("gitboot", "init", "/srv/fleet")
    WorkTree(debian.root / "srv" / "fleet").commit(message="Begin")
    debian.run("chown", "--recursive", "gitboot:", "/srv/fleet")
    debian.run("install", "--directory", "--owner=gitboot", "--mode=0700", "/var/lib/gitboot")  # StateDirectory=
    state, output, spool = ({place: debian.root / place[1:]} for place in PLACES)
    (debian.root / "etc" / "gitboot" / "run.toml").write_text('repository = "/srv/fleet"\n')
    run, user = read_unit(debian, "gitboot.service")
    once = (*run, "--once", *HERE)
    debian.run(*once, user=user, volumes=state | output | spool, ends=Exit.PARTIAL)
    debian.run("gitboot", "records", "begin", "fresh", "--yes", "--state=/var/lib/gitboot", user=user)
    debian.run(*once, user=user, volumes=state | output | spool)

    port = free_port()
    (debian.root / "etc" / "gitboot" / "serve.toml").write_text(f'listen = "127.0.0.1:{port}"\n')
    serve, user = read_unit(debian, "gitboot-serve.service")
    with debian.run_in_background(*serve, *HERE, user=user, volumes=spool):
        answer = eventually(lambda: fetch_script(f"http://127.0.0.1:{port}/{ENTRY}"))
    assert KERNEL in answer


def test_the_image_serves_machines_with_a_read_only_root(image: Image, tmp_path: Path) -> None:
    """The image runs as its user, without any capability; only the volumes of the container can be written."""
    inside = {place: tmp_path / place.replace("/", "-") for place in (*image.settings["Volumes"], "/mnt")}
    for path in inside.values():
        path.mkdir()
        os.chown(path, *map(int, image.user.split(":")))
    image.debian.run("gitboot", "init", "/mnt", user=image.user, volumes=inside)
    fleet = inside["/mnt"]
    for path in (fleet, *fleet.rglob("*")):
        os.chown(path, 0, 0)  # git rejects folders of other users
    WorkTree(fleet).commit(message="Begin")
    image.debian.run("chown", "--recursive", image.user, "/mnt", volumes=inside)
    run = (*image.settings["Entrypoint"], "run", "/mnt", *HERE)
    image.debian.run(*run, "--once", user=image.user, volumes=inside, ends=Exit.PARTIAL)
    image.debian.run("gitboot", "records", "begin", "fresh", "--yes", user=image.user, volumes=inside)
    port = free_port()
    with image.debian.run_in_background(*run, f"--listen=127.0.0.1:{port}", user=image.user, volumes=inside):
        eventually(lambda: KERNEL in (fetch_script(f"http://127.0.0.1:{port}/{ENTRY}") or ""))


def test_the_image_states_how_its_health_is_checked(image: Image) -> None:
    assert "/healthz" in " ".join(image.inspected["Healthcheck"]["Test"])


def test_the_image_has_the_programs_that_other_commands_need(image: Image, tmp_path: Path) -> None:
    volumes = {"/mnt": tmp_path}
    tmp_path.chmod(0o777)
    image.debian.run("gitboot", "init", "/mnt/fleet", user=image.user, volumes=volumes)
    place = ("gitboot", "artifacts", "loaders", "--out=/mnt/boot", "--tftp=/mnt/tftp", "--path=/mnt/fleet")
    image.debian.run(*place, user=image.user, volumes=volumes)
    placed = {path.name for path in (tmp_path / "boot" / "assets" / "loaders").iterdir()}
    assert {"ipxe-x86_64.efi", "grub-x86_64.efi", "shimx64.efi", "grubx64.efi", "lpxelinux.0"} <= placed
    for each in ("gpg", "ipmitool", "minisign", "ssh-keygen"):
        image.debian.run("which", each)
