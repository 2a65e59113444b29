"""HTTP caches in front of a mirror or an endpoint: nginx, Varnish and Squid, as installed, or made to keep answers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from tests.helpers.git_servers import free_port, listening, program

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
