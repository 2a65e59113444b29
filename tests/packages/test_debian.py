"""The Debian package and the image that is built from it, each from nothing to a machine that boots."""

from __future__ import annotations

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

from gitboot import __version__
from gitboot.cli.main import Exit, cli
from tests.helpers.endpoints import IPXE
from tests.helpers.git_repositories import Work, free_port, program
from tests.helpers.running_instance import eventually
from tests.packages.debian import Debian, fresh, unpacked

ROOT: Final = Path(__file__).parent.parent.parent
ENTRY: Final = "v1/boot/52-54-00-12-34-56/boot.ipxe"
PLACES: Final = ("/var/lib/gitboot", "/srv/gitboot", "/var/spool/gitboot")
KERNEL: Final = "flatcar_production_pxe.vmlinuz"
HERE: Final = tuple(f"--accept-filesystem={name}" for name in ("overlay", "tmpfs"))  # of the machine that tests


@dataclass(frozen=True)
class Image:
    debian: Debian
    settings: dict[str, Any]  # as `podman image inspect` has them

    @property
    def user(self) -> str:
        return str(self.settings["User"])


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program("dh", "debhelper")
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run([ROOT / "scripts" / "build-deb", out], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (built,) = out.glob("*.deb")
    return built


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("debian") / "root.tar"
    fresh(path)
    return path


@pytest.fixture(scope="module")
def debian(archive: Path, package: Path, tmp_path_factory: pytest.TempPathFactory) -> Debian:
    """A Debian with gitboot and its dependencies."""
    made = unpacked(archive, tmp_path_factory.mktemp("installed") / "root")
    (made.root / "root" / package.name).write_bytes(package.read_bytes())
    made.run("apt-get", "update", "--quiet=2")
    made.run("apt-get", "install", "--quiet=2", "--yes", "--no-install-recommends", f"/root/{package.name}")
    return made


@pytest.fixture(scope="module")
def image(archive: Path, package: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image of the Containerfile, built on the fresh Debian instead of one from a registry."""
    context = tmp_path_factory.mktemp("context")
    (context / "dist").mkdir()
    (context / "dist" / package.name).write_bytes(package.read_bytes())
    for name in ("Containerfile", ".dockerignore"):
        (context / name).write_bytes((ROOT / name).read_bytes())
    base, made = (f"localhost/gitboot-{os.getpid()}-{name}" for name in ("base", "made"))
    build = ("--quiet", "--isolation=chroot", "--network=host", "--format=docker", f"--build-arg=BASE={base}")
    podman("import", "--quiet", str(archive), base)
    try:
        podman("build", *build, f"--tag={made}", str(context))
        (found,) = json.loads(podman("image", "inspect", made))
        environment = dict(each.split("=", 1) for each in found["Config"]["Env"])
        yield Image(Debian(Path(podman("image", "mount", made).strip()), environment), found["Config"])
    finally:
        podman("image", "rm", "--force", made, base)


def podman(*arguments: str) -> str:
    done = subprocess.run([program("podman", "podman"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def fetch_script(url: str) -> str | None:
    found = httpx.get(url, headers={"User-Agent": IPXE})
    return found.text if found.status_code == httpx.codes.OK else None


def started_by(debian: Debian, unit: str) -> tuple[list[str], str]:
    """Return the command and the user of a unit that the package installed."""
    text = (debian.root / "lib" / "systemd" / "system" / unit).read_text()
    settings = dict(re.findall(r"^(\w+)=(.+)$", text, re.MULTILINE))
    more = f":{settings['SupplementaryGroups']}" if "SupplementaryGroups" in settings else ""
    return shlex.split(settings["ExecStart"]), f"{settings['User']}:{settings['Group']}{more}"


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
    Work(debian.root / "srv" / "fleet").commit(message="Begin")
    debian.run("chown", "--recursive", "gitboot:", "/srv/fleet")
    debian.run("install", "--directory", "--owner=gitboot", "--mode=0700", "/var/lib/gitboot")  # StateDirectory=
    state, output, spool = ({place: debian.root / place[1:]} for place in PLACES)
    (debian.root / "etc" / "gitboot" / "run.toml").write_text('repository = "/srv/fleet"\n')
    run, user = started_by(debian, "gitboot.service")
    once = (*run, "--once", *HERE)
    debian.run(*once, user=user, volumes=state | output | spool, ends=Exit.PARTIAL)
    debian.run("gitboot", "records", "begin", "fresh", "--yes", "--state=/var/lib/gitboot", user=user)
    debian.run(*once, user=user, volumes=state | output | spool)

    port = free_port()
    (debian.root / "etc" / "gitboot" / "serve.toml").write_text(f'listen = "127.0.0.1:{port}"\n')
    serve, user = started_by(debian, "gitboot-serve.service")
    with debian.running(*serve, *HERE, user=user, volumes=spool):
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
    Work(fleet).commit(message="Begin")
    image.debian.run("chown", "--recursive", image.user, "/mnt", volumes=inside)
    run = (*image.settings["Entrypoint"], "run", "/mnt", *HERE)
    image.debian.run(*run, "--once", user=image.user, volumes=inside, ends=Exit.PARTIAL)
    image.debian.run("gitboot", "records", "begin", "fresh", "--yes", user=image.user, volumes=inside)
    port = free_port()
    with image.debian.running(*run, f"--listen=127.0.0.1:{port}", user=image.user, volumes=inside):
        eventually(lambda: KERNEL in (fetch_script(f"http://127.0.0.1:{port}/{ENTRY}") or ""))


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
