"""`gitboot init`: write a small fleet as a starting point."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from textwrap import indent
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import click

from gitboot import __version__
from gitboot.cli.main import Command, Exit
from gitboot.cli.terminal import echo_wrapped
from gitboot.errors import UsageError
from gitboot.files import convert_os_errors, create_output_file
from gitboot.git.branch_writer import find_pushed_url
from gitboot.git.repository import parse_subpath
from gitboot.text import quote_words

SEED: Final = Path(__file__).with_name("seed")  # the files to write, except the schemas
_GITLAB: Final = ".gitlab-ci.yml"
CI: Final = (  # hidden files, which are not part of the fleet
    ".github/workflows/gitboot.yml",
    _GITLAB,
    ".pre-commit-config.yaml",
    ".github/workflows/gitboot-rollout.yml",
    ".github/workflows/gitboot-update-images.yml",
    ".gitea/workflows/gitboot.yml",
    ".gitea/workflows/gitboot-update-images.yml",
    ".gitea/workflows/gitboot-rollout.yml",
)
THIS_VERSION: Final = f"gitboot=={__version__}"
SCHEMAS: Final = ".gitboot/schemas"  # in a hidden folder, which is not part of the fleet
PACKAGES: Final = ".gitboot/requirements.txt"  # with hashes, for the CI jobs that use a token
_NEXT: Final = """\
Wrote a fleet with one server to {directory}. Next steps:

  cd {quoted}
  gitboot validate                 # print each problem with a hint
  gitboot plan --records fresh     # what web01 boots
  $EDITOR fleet.yaml servers/*     # your URL, your machines

Then commit, and see README.md. The variable GITBOOT in the CI files names the gitboot for CI.{hashes}\
"""
_HASH_MISSING: Final = f"""
The CI jobs that write comments fail until you run the command in {PACKAGES}, which adds a hash.\
"""
_EXISTS: Final = "{name} already exists and was not changed{hint}"
_HINTS: Final = {
    _GITLAB: ": add `include: [{{local: .gitlab/gitboot{slug}.yml}}]` to this file",
    ".pre-commit-config.yaml": ": add a hook that runs `gitboot validate {subpath}` to this file",
}
_UNKNOWN_SOURCE: Final = f"""
Warning: CI may have no source for this version of gitboot. The CI files install {THIS_VERSION}. If your package index \
does not have that version, change GITBOOT in these files, or use `gitboot init --gitboot`.\
"""


@click.command(
    cls=Command,
    example="gitboot init fleet",
    exit_codes={
        Exit.FINE: "gitboot wrote the fleet",
        Exit.USAGE: "the directory is not empty, or an option is wrong",
    },
)
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--gitboot",
    "wanted",
    metavar="REQUIREMENT",
    help="The requirement that pip installs in CI, for example gitboot==1.2.3 or 'gitboot @ URL'. Default: the source "
    "from which this gitboot was installed.",
)
@click.option(
    "--subpath",
    metavar="FOLDER",
    help="Write the fleet into this folder of DIR, for a repository with other files or several fleets. gitboot "
    "writes the CI files to DIR itself. Default: DIR.",
)
def command(directory: Path, wanted: str | None, subpath: str | None) -> None:
    """Write a small fleet to start from.

    gitboot writes a fleet with one server, its images, a policy and a maintenance into DIR. The fleet has CI jobs for
    GitHub, GitLab and Gitea that check each change, advance rollouts, and propose new images. The jobs for GitHub and
    GitLab also comment on each change. The fleet has a hook for pre-commit, and JSON Schemas for editors.

    DIR must be empty or new. It may be an empty Git repository. With --subpath, only that folder must be empty or new.
    gitboot does not overwrite files.
    """
    requirement = wanted or find_installed_requirement()
    folder = parse_subpath(subpath) if subpath is not None else ""
    fleet = directory / folder
    with convert_os_errors(fleet):
        if fleet.exists() and any(path.name != ".git" for path in fleet.iterdir()):
            raise UsageError(f"{fleet} is not empty: choose an empty directory, or one that does not exist yet")
    existing = [
        name
        for name, text in _build_files(requirement or THIS_VERSION, folder)
        if not create_output_file(directory / name, text.encode(), make_folders=True)
    ]
    hashes = "" if "#sha256=" in (requirement or "") else _HASH_MISSING
    echo_wrapped(_NEXT.format(directory=fleet, quoted=quote_words(fleet), hashes=hashes))
    for name in existing:
        hint = _HINTS.get(name, "").format(slug=_build_slug(folder), subpath=folder)
        echo_wrapped(_EXISTS.format(name=name, hint=hint), err=True)
    if requirement is None:
        echo_wrapped(_UNKNOWN_SOURCE, err=True)


def _build_files(gitboot: str, subpath: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the content of each file of the new fleet. The paths are relative to the repository."""
    from gitboot.review.formats.json import build_schemas

    prefix = f"{subpath}/" if subpath else ""
    for file in sorted(SEED.rglob("*")):
        if file.is_file() and file.suffix != ".pyc":
            name = file.relative_to(SEED).as_posix()
            path = build_ci_file_path(name, subpath) if name in CI else f"{prefix}{name}"
            yield path, build_seed_file(name, gitboot, subpath)
    for name, text in build_schemas().items():
        yield f"{prefix}{SCHEMAS}/{name}", text
    yield f"{prefix}{PACKAGES}", build_requirements_file(gitboot, subpath)
    if subpath:
        yield _GITLAB, f"include: [{{local: {build_ci_file_path(_GITLAB, subpath)}}}]\n"


def build_ci_file_path(name: str, subpath: str) -> str:
    """Return the path of a CI file. With a subpath, the file name is unique in the repository."""
    slug = _build_slug(subpath)
    if name == _GITLAB and subpath:
        return f".gitlab/gitboot{slug}.yml"
    return name.replace(".yml", f"{slug}.yml") if name.startswith((".github/", ".gitea/")) else name


# The script of the jobs that check the proposals of `gitboot update-images`, and open pull requests for them.
_PROPOSE_IMAGES: Final = Path(__file__).with_name("propose_images.sh")
_PROPOSE: Final = re.compile(r"(?m)^( *)@PROPOSE_IMAGES@\n")
_VARIABLES: Final = re.compile(
    r"\bGITBOOT_(?:ACCEPTED|IMAGE_KEYS|ROLLOUT_STEPS|ROLLOUT_AFTER|ROLLOUT|SIGNATURES|UPDATE_IMAGES)\b"
)


def build_seed_file(name: str, gitboot: str = THIS_VERSION, subpath: str = "") -> str:
    """Return the content of a file in the new fleet. The CI jobs of the fleet install the requirement ``gitboot``."""
    slug = _build_slug(subpath)
    text = (SEED / name).read_text()
    text = _PROPOSE.sub(lambda match: indent(_PROPOSE_IMAGES.read_text(), match[1]), text)
    if name in CI and subpath:  # the fleet in the subpath has its own instance
        text = _VARIABLES.sub(rf"\g<0>_{slug.strip('-').replace('-', '_').upper()}", text)
    for token, value in (
        ("@GITBOOT@", json.dumps(gitboot)[1:-1]),
        ("@SUBPATH@", json.dumps(subpath)[1:-1]),
        ("@PACKAGES@", json.dumps(f"{subpath}/{PACKAGES}" if subpath else PACKAGES)[1:-1]),
        ("@SLUG@", slug),
        ("@BELOW@", f" {quote_words(subpath)}" if subpath else ""),
    ):
        text = text.replace(token, value)
    return text


# The requirements of gitboot with hashes, written by `scripts/lock`.
_REQUIREMENTS: Final = Path(__file__).with_name("requirements.txt")
_PACKAGES: Final = """\
# The packages for the CI jobs that have a token: gitboot and its dependencies, each package with its hash.
# These jobs read this file from the default branch. Replace the file when you upgrade gitboot.
"""
_NO_HASH: Final = """\
# The hash of gitboot is missing, so these jobs fail. Run this at the top of the repository, and commit the file:
#   d=$(mktemp -d) && pip download --no-deps --only-binary :all: --dest "$d" {requirement} && sed -i "/^gitboot/s,MISSING,$(sha256sum "$d"/*.whl | cut -c -64)," {path}
"""  # noqa: E501 - one line to paste
_NO_HASH_OF_GIT: Final = """\
# The hash of gitboot is missing, so these jobs fail. pip cannot check the hash of a Git repository. Build a wheel
# with `pip wheel --no-deps`, put it on a web server, and write here: gitboot @ URL --hash=sha256:DIGEST
"""


def build_requirements_file(gitboot: str = THIS_VERSION, subpath: str = "") -> str:
    """Return the requirements file, with hashes, for the CI jobs that use a token.

    A requirement that ends in ``#sha256=DIGEST`` gets this hash. Any other requirement gets the hash MISSING, so the
    jobs fail until a person runs the command in the comment above the requirement.
    """
    path = f"{subpath}/{PACKAGES}" if subpath else PACKAGES
    requirement, _, digest = gitboot.partition("#sha256=")
    if "git+" in requirement:
        hint = _NO_HASH_OF_GIT
    else:
        hint = _NO_HASH.format(requirement=quote_words(requirement), path=quote_words(path))
    header = _PACKAGES if digest else f"{_PACKAGES}{hint}"
    own_line = f"{requirement} --hash=sha256:{digest or 'MISSING'}"
    dependencies = [line for line in _REQUIREMENTS.read_text().splitlines() if not line.lstrip().startswith("#")]
    return "\n".join((f"{header}{own_line}", *dependencies, ""))


def _build_slug(subpath: str) -> str:
    """Return a suffix for file names that is unique for a folder, or "" for the root of the repository."""
    slug = re.sub("[^A-Za-z0-9]+", "-", subpath).strip("-")
    return f"-{slug}" if subpath else ""


def find_installed_requirement() -> str | None:
    """Return the requirement from which gitboot was installed (PEP 610).

    Return None if the source exists only on this host.
    """
    try:
        package = distribution("gitboot")
    except PackageNotFoundError:
        return None
    return find_requirement(package)


# these installers use a package index, unless the package metadata contains another origin
_FROM_INDEX: Final = ("pip", "uv")


def find_requirement(package: Distribution) -> str | None:
    """Return the requirement from which a package was installed, or None if the source exists only on this host."""
    text = package.read_text("direct_url.json")
    if text is None:
        installer = (package.read_text("INSTALLER") or "").strip()
        return f"gitboot=={__version__}" if installer in _FROM_INDEX else None
    direct_url: dict[str, Any] = json.loads(text)
    url = direct_url["url"]
    if "vcs_info" in direct_url:
        return f"gitboot @ git+{url}@{direct_url['vcs_info']['commit_id']}"
    if urlsplit(url).scheme == "file":
        if "dir_info" not in direct_url:
            return None
        pushed_url = find_pushed_url(Path(unquote(urlsplit(url).path)))
        return f"gitboot @ git+{pushed_url}" if pushed_url else None
    digest = direct_url.get("archive_info", {}).get("hashes", {}).get("sha256")
    return f"gitboot @ {url}#sha256={digest}" if digest else f"gitboot @ {url}"
