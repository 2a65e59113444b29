"""The ways out of a published tree: OUTPUT by nginx and Caddy, a folder, a bucket of an S3 server, a branch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pygit2

from gitboot.git.remote import Remote
from gitboot.publish.targets.sync_steps import FollowedTree
from tests.helpers.documentation import checkout_script, clone_for_checkouts
from tests.helpers.file_servers import caddy, nginx
from tests.helpers.repositories import ENVIRONMENT
from tests.helpers.s3_server import Store, s3_server
from tests.helpers.served_tree import Site
from tests.publish.targets import test_folder, test_git_branch, test_s3

LEDGER: Final = "test"  # of `tests.helpers.served_tree.Site`


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
def endpoint_at(root: Path, opens: datetime, ends: datetime) -> Iterator[Way]:
    """An endpoint, which is no copy: its clock shows one time, and after the first publication the other."""
    site = Site(root)
    site.now = opens

    def bring_up() -> None:
        site.now = ends

    with site.serve() as url:
        yield Way(url, bring_up, None)


@contextmanager
def _folder(root: Path, folder: Path) -> Iterator[Way]:
    """A folder that is a target, and served by nginx."""
    copy = folder / "copy"
    copy.mkdir()
    followed = test_folder.Site(root, copy, ledger=LEDGER)

    def bring_up() -> None:
        followed.follow()

    bring_up()
    try:
        with nginx(copy / "boot", root / "ops/serve", folder) as (url, _):
            yield Way(url, bring_up, lambda: copy / "boot")
    finally:
        followed.close()


@contextmanager
def _bucket(root: Path, _: Path) -> Iterator[Way]:
    with s3_server() as store:
        store.make("boots")
        store.let_anyone_read("boots")
        store.hides_absence = True  # by the policy on the page
        followed = test_s3.Site(root, store.url, "boots", ledger=LEDGER)

        def bring_up() -> None:
            followed.follow()

        bring_up()
        yield Way(f"{store.url}/boots/site/boot", bring_up, None, store)


@contextmanager
def _branch(root: Path, folder: Path) -> Iterator[Way]:
    """A branch that is checked out as the page shows, and served by nginx."""
    bare, boots = folder / "remote.git", folder / "boots"
    pygit2.init_repository(str(bare), bare=True, initial_head="main").free()
    followed = test_git_branch.Site(folder, Remote(url=str(bare)), ledger=LEDGER)
    followed.root, followed.tree = root, FollowedTree(root)
    boots.mkdir()
    followed.follow()
    clone = clone_for_checkouts(bare, folder)

    def bring_up() -> None:
        followed.follow()
        subprocess.run(["sh", "-c", checkout_script(boots)], cwd=clone, env=ENVIRONMENT, check=True)

    bring_up()
    with nginx(boots / "current/boot", root / "ops/serve", folder) as (url, _):
        yield Way(url, bring_up, lambda: (boots / "current/boot").resolve())


WAYS: Final[dict[str, Open]] = {
    "nginx": partial(_output, nginx),
    "caddy": partial(_output, caddy),
    "folder": _folder,
    "bucket": _bucket,
    "branch": _branch,
}
