"""The ways out of a published tree: OUTPUT by nginx and Caddy, a bucket of a real S3 server, a checkout of a branch."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pygit2

from gitboot.source import Remote
from gitboot.targets.published import FollowedTree
from tests import test_targets_git, test_targets_s3
from tests.buckets import Store, s3_server
from tests.mirrors import caddy, nginx
from tests.repositories import ENVIRONMENT

LEDGER: Final = "test"  # of `tests.serving.Site`
_PAGE: Final = Path(__file__).parents[1] / "docs" / "mirrors.md"


class Way(NamedTuple):
    """A copy of a tree, and its web server."""

    url: str  # of boot/
    bring_up: Callable[[], None]  # copy what was published
    folder: Callable[[], Path] | None  # that is served; None: it is a bucket
    store: Store | None = None


Open = Callable[[Path, Path], AbstractContextManager[Way]]  # of a published tree, and a folder that is there


@contextmanager
def _output(server: Callable[..., AbstractContextManager[tuple[str, Path]]], root: Path, folder: Path) -> Iterator[Way]:
    with server(root / "boot", root / "ops/serve", folder) as (url, _):
        yield Way(url, lambda: None, lambda: root / "boot")


@contextmanager
def _bucket(root: Path, _: Path) -> Iterator[Way]:
    with s3_server() as store:
        store.make("boots")
        store.let_anyone_read("boots")
        followed = test_targets_s3.Site(root, store.url, "boots", ledger=LEDGER)

        def bring_up() -> None:
            followed.follow()

        bring_up()
        yield Way(f"{store.url}/boots/site/boot", bring_up, None, store)


@contextmanager
def _branch(root: Path, folder: Path) -> Iterator[Way]:
    """A branch that is checked out as the page shows, and served by nginx."""
    bare, srv = folder / "remote.git", folder / "srv"
    pygit2.init_repository(str(bare), bare=True, initial_head="main").free()
    followed = test_targets_git.Site(folder, Remote(url=str(bare)), ledger=LEDGER)
    followed.root, followed.tree = root, FollowedTree(root)
    srv.mkdir()
    page = re.findall(r"^    ((?:git --git-dir boots\.git|ln -sfn .*/srv/next) .*)$", _PAGE.read_text(), re.MULTILINE)
    assert len(page) == 3
    commands = "\n".join(line.replace("/srv/", f"{srv}/") for line in page)

    def bring_up() -> None:
        followed.follow()
        subprocess.run(["bash", "-ec", commands], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True)

    followed.follow()
    subprocess.run(["git", "clone", "--bare", "--quiet", bare, "boots.git"], cwd=folder, env=ENVIRONMENT, check=True)
    bring_up()
    with nginx(srv / "gitboot/boot", root / "ops/serve", folder) as (url, _):
        yield Way(url, bring_up, lambda: (srv / "gitboot/boot").resolve())


WAYS: Final[dict[str, Open]] = {
    "nginx": partial(_output, nginx),
    "caddy": partial(_output, caddy),
    "bucket": _bucket,
    "branch": _branch,
}
