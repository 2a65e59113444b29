"""nginx and Caddy as mirrors of a tree; nginx, Varnish and Squid as caches in front of a mirror."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tests.helpers.git_servers import free_port, listening, program
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


Cache = Callable[[str, Path], AbstractContextManager[str]]  # of the URL behind it and an absent folder -> its own URL

_LOOPBACK: Final = "127.0.0.1"


@contextmanager
def nginx_cache(upstream: str, folder: Path, *settings: str) -> Iterator[str]:
    """Run nginx with `proxy_cache`, and further settings of its `location`.

    By default nginx sends a GET for a HEAD (`proxy_cache_convert_head`), also if it may not store the answer.
    """
    folder.mkdir()
    port = free_port()
    temporary = "".join(f"{each}_temp_path {folder}/{each};" for each in ("client_body", "fastcgi", "uwsgi", "scgi"))
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"daemon off; {user} pid {folder}/pid; error_log {folder}/error.log; events {{}} http {{ {temporary}"
        f"proxy_temp_path {folder}/proxy; proxy_cache_path {folder}/cache keys_zone=boots:1m; access_log off;"
        f"server {{ listen {_LOOPBACK}:{port}; location / {{ proxy_pass {upstream}; proxy_cache boots;"
        f"{''.join(f'{each};' for each in settings)} }} }} }}"
    )
    command = [program("nginx", "nginx"), "-e", f"{folder}/error.log", "-c", f"{folder}/nginx.conf"]
    with listening(command, port, os.environ):
        yield f"http://{_LOOPBACK}:{port}"


@contextmanager
def varnish(upstream: str, folder: Path, rules: str = "") -> Iterator[str]:
    """Run Varnish with its built-in rules, and with ``rules`` before them. By default it sends a GET for a HEAD."""
    folder.mkdir()
    port, behind = free_port(), urlsplit(upstream)
    (folder / "default.vcl").write_text(
        f'vcl 4.1;\nbackend default {{ .host = "{behind.hostname}"; .port = "{behind.port}"; }}\n{rules}'
    )
    command = [program("varnishd", "varnish"), "-F", "-j", "none", "-n", f"{folder}/work", "-s", "malloc,16m"]
    with listening([*command, "-f", f"{folder}/default.vcl", "-a", f"{_LOOPBACK}:{port}"], port, os.environ):
        yield f"http://{_LOOPBACK}:{port}"


@contextmanager
def squid(upstream: str, folder: Path) -> Iterator[str]:
    """Run Squid as an accelerator, which stores answers in memory. A HEAD stays a HEAD.

    Started by root it becomes the user `proxy`, who cannot write into the folders of a test.
    """
    folder.mkdir()
    port, behind = free_port(), urlsplit(upstream)
    (folder / "squid.conf").write_text(
        f"http_port {_LOOPBACK}:{port} accel defaultsite={_LOOPBACK}\n"
        f"cache_peer {behind.hostname} parent {behind.port} 0 no-query originserver\n"
        "http_access allow all\n"
        "visible_hostname cache\n"
        "pid_filename none\naccess_log none\ncache_log /dev/null\nnetdb_filename none\npinger_enable off\n"
        "coredump_dir /\nshutdown_lifetime 0 seconds\n"
    )
    command = [program("squid", "squid"), "-N", "-f", f"{folder}/squid.conf"]
    with listening(command, port, os.environ):
        yield f"http://{_LOOPBACK}:{port}"


CACHES: Final[dict[str, Cache]] = {"nginx": nginx_cache, "varnish": varnish, "squid": squid}
TURN_HEAD_INTO_GET: Final = ("nginx", "varnish")  # by default

# Each answer for ten minutes, whatever its Cache-Control, as many CDNs are set up. Squid cannot be set up like this: it
# always asks again for an answer with `no-cache`.
KEEP_ANSWERS: Final[dict[str, Cache]] = {
    "nginx": lambda upstream, folder: nginx_cache(
        upstream, folder, "proxy_ignore_headers Cache-Control Expires", "proxy_cache_valid 10m"
    ),
    "varnish": partial(varnish, rules="sub vcl_backend_response { set beresp.ttl = 10m; return (deliver); }\n"),
}
