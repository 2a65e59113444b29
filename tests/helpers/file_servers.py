"""nginx and Caddy as mirrors of a tree, by the configuration that is published in it; permissions bind them."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.helpers.git_servers import free_port, program
from tests.helpers.served_tree import eventually

LOOPBACK = "127.0.0.1"

# What root is not bound by: capabilities(7). A command after this may read what its permissions say, as any user.
BOUND = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


class Mirror(NamedTuple):
    url: str
    log: Path


@contextmanager
def nginx(
    boot: Path,
    serve: Path,
    folder: Path,
    address: str = LOOPBACK,
    port: int | None = None,
    ipv6: str | None = None,
    user: str = "root",  # the tree of a test is for its user only
) -> Iterator[Mirror]:
    """Serve ``boot`` by the configuration in ``serve``, with whatever nginx writes in ``folder``; at ``ipv6``, too."""
    port, log = port or free_port(), folder / "gitboot.log"
    site = (serve / "nginx.conf").read_text()
    for published, ours in {
        "listen 80;": f"listen {address}:{port};",
        "listen [::]:80;": f"listen [{ipv6}]:{port};" if ipv6 else "",
        "/srv/gitboot/boot": str(boot),
        "/var/log/nginx/gitboot.log": str(log),
    }.items():
        assert site.count(published) == 1
        site = site.replace(published, ours)
    (folder / "site.conf").write_text(site)
    temporary = "".join(
        f"{each}_temp_path {folder}/{each};" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    as_user = f"user {user};" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"daemon off; {as_user} pid {folder}/pid; error_log {folder}/error.log; events {{}}"
        f"http {{ {temporary} include {folder}/site.conf; }}"
    )
    command = [program("nginx", "nginx"), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
    with _running(command, address, port, {}):
        yield Mirror(f"http://{address}:{port}", log)


@contextmanager
def caddy(
    boot: Path, serve: Path, folder: Path, address: str = LOOPBACK, port: int | None = None, ipv6: str | None = None
) -> Iterator[Mirror]:
    """The same by Caddy."""
    port, log = port or free_port(), folder / "gitboot.log"
    site = (serve / "Caddyfile").read_text()
    (folder / "Caddyfile").write_text(f"{{\n\tadmin off\n\tdefault_bind {address} {ipv6 or ''}\n}}\n{site}")
    environment = {
        "GITBOOT_ADDRESS": f"http://:{port}",
        "GITBOOT_ROOT": str(boot),
        "GITBOOT_LOG": str(log),
        "XDG_DATA_HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
    }
    command = [program("caddy", "caddy"), "run", "--config", str(folder / "Caddyfile")]
    with _running(command, address, port, environment):
        yield Mirror(f"http://{address}:{port}", log)


@contextmanager
def unconfigured_nginx(boot: Path, folder: Path, *settings: str) -> Iterator[str]:
    """Serve ``boot`` by nginx without the published configuration, with further settings of its `server`."""
    port = free_port()
    temporary = "".join(
        f"{each}_temp_path {folder}/{each};" for each in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    as_user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"daemon off; {as_user} pid {folder}/pid; error_log {folder}/error.log; events {{}} http {{ {temporary}"
        f"access_log off; default_type text/plain; server {{ listen {LOOPBACK}:{port}; root {boot};"
        f"{''.join(f'{each};' for each in settings)} }} }}"
    )
    command = [program("nginx", "nginx"), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
    with _running(command, LOOPBACK, port, {}):
        yield f"http://{LOOPBACK}:{port}"


@contextmanager
def _running(command: list[str], address: str, port: int, environment: Mapping[str, str]) -> Iterator[None]:
    process = subprocess.Popen([*BOUND, *command], env={**os.environ, **environment}, stderr=subprocess.PIPE)
    try:
        if not eventually(lambda: process.poll() is not None or _listens(address, port)):
            raise AssertionError(f"{command[0]} does not listen")
        assert process.poll() is None, process.stderr and process.stderr.read()
        yield
    finally:
        process.terminate()
        process.communicate(timeout=60)


def _listens(address: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((address, port)) == 0


@contextmanager
def broken(path: Path, how: str) -> Iterator[None]:
    """Let a file or a folder be there, and be unreadable."""
    if how == "forbidden":
        mode = path.stat().st_mode
        path.chmod(0)
        try:
            yield
        finally:
            path.chmod(mode)
        return
    aside = path.rename(path.with_name("aside"))
    try:
        path.symlink_to(path.name)
        yield
    finally:
        path.unlink()
        aside.rename(path)
