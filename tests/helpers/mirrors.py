"""Mirrors of a published tree: nginx, Caddy, caches, an S3 server, a folder and a branch, and a tree for them."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlsplit

import pygit2

from gitboot.fetchlog.access_logs import LineContent, parse_line
from gitboot.git.remote import Remote
from gitboot.model.fleet import Output
from gitboot.publish.targets.followed_tree import FollowedTree
from gitboot.render.paths import SIGNED, Role, find_path_kind
from gitboot.render.token_keys import TokenKeys
from tests.helpers.documentation import build_checkout_script, clone_for_checkouts, find_mirror_file
from tests.helpers.endpoints import Site, eventually, plan_fleet
from tests.helpers.fleets import fleet, image, policy, profile, server
from tests.helpers.git_repositories import ENVIRONMENT, free_port, program, run_daemon

# A fleet whose tree has a path of each kind that machines, loaders and other systems request.

BASE_PATH: Final = "/some%20base"  # the path of the base URL
SITE: Final = "/v1"  # that of a site's, which is the name of a folder of the tree, too

_SPEC: Final = f"""
  baseURL: 'http://boot.test{BASE_PATH}'
  sites: [{{name: fra1, select: {{matchLabels: {{site: fra1}}}}, baseURL: 'http://fra1.test{SITE}'}}]
  unknownServers: {{profile: look}}
  outputs: [{", ".join(sorted(Output))}]
  provisioning: {{evidence: Reported}}
"""
FLEET_OF_EVERY_PATH: Final = plan_fleet(
    fleet(_SPEC.replace("\n  ", ", ").strip(", \n")),
    server("web01", "role: web", "provision: 1, serial: ABC123.json"),  # which names no type
    server("init01", "role: init, site: fra1"),
    server("edge01", "role: edge"),
    server("disc01", "role: disc", "provision: 1"),
    image("flatcar-1", "userData: CloudInit", "kernel, initrd"),
    image("live-1", "userData: CloudInit, writesDisk: false", "kernel, initrd"),
    image("edge-1", "userData: Ignition/3.4, configFrom: SystemUUID, writesDisk: false", "uki"),
    image("disc-1", "configFrom: Medium, userData: CloudInit", "iso"),
    image("look-1", "writesDisk: false", "uki"),
    profile("web", "flatcar-1", "userData: {format: CloudInit, template: c}"),
    profile("init", "live-1", "userData: {format: CloudInit, template: c}"),
    profile("edge", "edge-1", "httpBoot: uki, userData: {format: Ignition/3.4, template: t}", method="UefiHttp"),
    profile("disc", "disc-1", "userData: {format: CloudInit, template: c}", method="VirtualMedia"),
    profile("look", "look-1"),
    policy("web", "{matchLabels: {role: web}}", often="Once"),
    policy("init", "{matchLabels: {role: init}}", boots="init"),
    policy("edge", "{matchLabels: {role: edge}}", boots="edge"),
    policy("disc", "{matchLabels: {role: disc}}", boots="disc", often="Once"),
    templates={
        "c": "#cloud-config\nphone_home: {url: '{{ urls.provisioned }}'}\n",
        "t": '{"ignition": {"version": "3.4.0"}}',
    },
    keys=TokenKeys(b"a key of this test"),
)

_ORDER: Final = (Role.DATA, Role.MEDIUM, Role.REPORT)  # each ends those before it


def _rank(path: str) -> int:
    kind = find_path_kind(f"boot{path}")
    return _ORDER.index(kind.role) + 1 if kind is not None and kind.role in _ORDER else 0


# In an order in which an endpoint serves them all. It has no signed list, which is for copies.
EVERY_PATH: Final = tuple(
    path for path in sorted(FLEET_OF_EVERY_PATH.boot_files, key=_rank) if not f"boot{path}".startswith(SIGNED)
)


# nginx and Caddy as mirrors of a tree; nginx, Varnish and Squid as caches in front of a mirror.

LOOPBACK = "127.0.0.1"

# Capabilities by which root ignores permissions: capabilities(7). A later command has the rights of a normal user.
BOUND = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search") if os.geteuid() == 0 else ()


class Mirror(NamedTuple):
    url: str
    log: Path

    def follow_log(self) -> Callable[[int], list[LineContent]]:
        """Return a function that waits for a number of new lines in the log, and returns the new lines."""
        begins = self.log.stat().st_size if self.log.exists() else 0

        def read_new_lines() -> list[bytes]:
            return self.log.read_bytes()[begins:].splitlines() if self.log.exists() else []

        def wait_for_lines(count: int) -> list[LineContent]:
            assert eventually(lambda: len(read_new_lines()) >= count), read_new_lines()
            return [parse_line(line) for line in read_new_lines()]

        return wait_for_lines


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
    """Serve ``boot`` with the configuration in ``serve``; nginx writes its files to ``folder``; also at ``ipv6``."""
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
def make_unreadable(path: Path, how: str) -> Iterator[None]:
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
    with run_daemon(command, port, os.environ):
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
    with run_daemon([*command, "-f", f"{folder}/default.vcl", "-a", f"{_LOOPBACK}:{port}"], port, os.environ):
        yield f"http://{_LOOPBACK}:{port}"


@contextmanager
def squid(upstream: str, folder: Path) -> Iterator[str]:
    """Run Squid as an accelerator that stores responses in memory. A HEAD stays a HEAD.

    If root starts it, it becomes the user `proxy`, who cannot write to the folders of a test.
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
    with run_daemon(command, port, os.environ, ended_by=signal.SIGKILL):  # after SIGTERM it waits for two seconds
        yield f"http://{_LOOPBACK}:{port}"


CACHES: Final[dict[str, Cache]] = {"nginx": nginx_cache, "varnish": varnish, "squid": squid}
TURN_HEAD_INTO_GET: Final = ("nginx", "varnish")  # by default

# Each response for ten minutes with any Cache-Control, as many CDNs are set up. Squid cannot be set up like this: it
# always revalidates a response with `no-cache`.
KEEP_ANSWERS: Final[dict[str, Cache]] = {
    "nginx": lambda upstream, folder: nginx_cache(
        upstream, folder, "proxy_ignore_headers Cache-Control Expires", "proxy_cache_valid 10m"
    ),
    "varnish": partial(varnish, rules="sub vcl_backend_response { set beresp.ttl = 10m; return (deliver); }\n"),
}


# A real S3 server, whose requests can be counted, refused, dropped, or cut off for good.

KEY: Final = {"aws_access_key_id": "AKIDTESTS", "aws_secret_access_key": "not-to-be-seen"}
_WRITING: Final = ("PUT", "DELETE", "POST")


@cache
def _s3_application() -> Any:
    """Return moto's S3 application. moto's dispatcher lists all of its services at each request."""
    from moto.moto_server.werkzeug_app import create_backend_app

    return create_backend_app("s3")


class StoredObject(NamedTuple):
    content: bytes
    content_type: str
    cache_control: str


class Store:
    """moto's server over HTTP, which honours conditional requests, with a filter for tests in front.

    ``fails(number, method, path)`` decides the fate of each write: ``None`` passes it, ``before`` drops it, ``after``
    passes it and drops its response, and a number is returned as the status instead. After ``cut`` no request arrives
    any more. ``seen`` is called after a write has passed and before the next one.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        import boto3
        from werkzeug.serving import make_server

        self._app = _s3_application()
        self._lock = threading.RLock()  # one write at a time; what is read past it is of no write in work
        self.reset()
        self._server = make_server(address, 0, self._answer, threaded=True)
        self.url = f"http://{address}:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **KEY)

    def reset(self) -> None:
        self.writes: list[str] = []
        self.log: list[str] = []  # of what was read, as S3 logs it
        self.fails: Callable[[int, str, str], str | int | None] = lambda *_: None
        self.seen: Callable[[], None] = lambda: None
        self.wrong: list[Exception] = []  # that ``seen`` has raised
        self.is_cut = False
        self.hides_absence = False  # whether a reader without credentials gets 403 for an absent object, as by AWS

    def __enter__(self) -> Store:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        _backend().reset()  # which all servers in this process have in common

    # As others see it, past the filter

    def make(self, bucket: str) -> None:
        self._client.create_bucket(Bucket=bucket)

    def let_anyone_read(self, bucket: str) -> None:
        actions = ["s3:GetObject", "s3:HeadObject"]  # only moto knows it
        statement = {"Effect": "Allow", "Principal": "*", "Action": actions, "Resource": f"arn:aws:s3:::{bucket}/*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        self._client.put_bucket_policy(Bucket=bucket, Policy=policy)

    def let_all_read(self, bucket: str, folder: str) -> None:
        """By the policy on the page about mirrors."""
        text = find_mirror_file('{"Version"').replace("BUCKET/PREFIX", f"{bucket}/{folder}".rstrip("/"))
        self._client.put_bucket_policy(Bucket=bucket, Policy=text)

    def put(self, bucket: str, path: str, content: bytes) -> None:
        _backend().put_object(bucket, path, content)

    def get(self, bucket: str, path: str) -> StoredObject:
        with self._lock:
            found = _backend().get_object(bucket, path)
            assert found is not None, path
            headers = {name.lower(): value for name, value in found.metadata.items()}
            return StoredObject(found.value, headers.get("content-type", ""), headers.get("cache-control", ""))

    def paths(self, bucket: str, prefix: str = "") -> list[str]:
        with self._lock:
            keys = _backend().buckets[bucket].keys
            return sorted(path for path in keys if path.startswith(prefix))

    def contents(self, bucket: str, prefix: str = "") -> dict[str, bytes]:
        """All of them, as they are between two writes."""
        with self._lock:
            return {path: self.get(bucket, path).content for path in self.paths(bucket, prefix)}

    # The filter

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        if method not in _WRITING:
            return self._drop(environ) if self.is_cut else self._read(environ, start)
        with self._lock:
            decided = self._decide(method, path)
            if decided == "before":
                return self._drop(environ)
            if isinstance(decided, int):
                start(f"{decided} Refused", [("Content-Type", "application/xml")])
                return [b"<Error><Code>SlowDown</Code></Error>"]
            answered = list(self._app(environ, start))
            try:
                self.seen()
            except Exception as error:  # noqa: BLE001 - the server would only log it
                self.wrong.append(error)
        return self._drop(environ) if decided == "after" else answered

    def _read(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        statuses: list[str] = []

        def start_response(status: str, headers: Any, *more: Any) -> Any:
            if self.hides_absence and status.startswith("404") and "HTTP_AUTHORIZATION" not in environ:
                status = "403 Forbidden"
            statuses.append(status[:3])
            return start(status, headers, *more)

        content = list(self._app(environ, start_response))
        method, path, client = (environ[name] for name in ("REQUEST_METHOD", "PATH_INFO", "REMOTE_ADDR"))
        bucket, _, key = path.lstrip("/").partition("/")
        size = sum(map(len, content)) or "-"
        request = f"{method} {'?'.join(filter(None, (path, environ['QUERY_STRING'])))} HTTP/1.1"
        agent = environ.get("HTTP_USER_AGENT") or "-"
        self.log.append(
            f"0a {bucket} [{datetime.now(UTC):%d/%b/%Y:%H:%M:%S +0000}] {client} - 3E57 REST.{method}.OBJECT "
            f'{quote(quote(key)) or "-"} "{request}" {statuses[0]} - {size} {size} 7 6 "-" "{agent}" - '
            "h= - - - boots.test - - -\n"
        )
        return content

    def _decide(self, method: str, path: str) -> str | int | None:
        self.writes.append(f"{method} {path}")
        decided = self.fails(len(self.writes), method, path) if not self.is_cut else None
        self.is_cut |= decided == "cut"
        return "before" if self.is_cut else decided

    def _drop(self, environ: dict[str, Any]) -> Iterable[bytes]:
        with suppress(OSError):
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return []


@contextmanager
def s3_server(address: str = "127.0.0.1") -> Iterator[Store]:
    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    with Store(address) as store:
        yield store


def _backend() -> Any:
    """Return what all of moto's servers in this process have in common."""
    from moto.core.models import DEFAULT_ACCOUNT_ID
    from moto.s3.models import s3_backends

    return s3_backends[DEFAULT_ACCOUNT_ID]["aws"]


# The ways out of a published tree: OUTPUT by nginx and Caddy, a folder, a bucket of an S3 server, a branch.

LEDGER: Final = "test"  # of `tests.helpers.endpoints.Site`


class TreeCopy(NamedTuple):
    """A copy of a tree, and its web server."""

    url: str  # of boot/
    bring_up: Callable[[], None]  # copy what was published
    folder: Callable[[], Path] | None  # that is served; None: it is a bucket
    store: Store | None = None


Open = Callable[[Path, Path], AbstractContextManager[TreeCopy]]  # of a published tree, and a folder that is there


@contextmanager
def _output(
    server: Callable[..., AbstractContextManager[tuple[str, Path]]], root: Path, folder: Path
) -> Iterator[TreeCopy]:
    with server(root / "boot", root / "ops/serve", folder) as (url, _):
        yield TreeCopy(url, lambda: None, lambda: root / "boot")


@contextmanager
def run_endpoint(root: Path, opens: datetime, ends: datetime) -> Iterator[TreeCopy]:
    """An endpoint, which is no copy: its clock shows one time, and after the first publication the other."""
    site = Site(root)
    site.now = opens

    def bring_up() -> None:
        site.now = ends

    with site.serve() as url:
        yield TreeCopy(url, bring_up, None)


@contextmanager
def _folder(root: Path, folder: Path) -> Iterator[TreeCopy]:
    """A folder that is a target, and served by nginx."""
    from tests.publish.targets import test_folder

    copy = folder / "copy"
    copy.mkdir()
    followed = test_folder.Site(root, copy, ledger=LEDGER)

    def bring_up() -> None:
        followed.follow()

    bring_up()
    try:
        with nginx(copy / "boot", root / "ops/serve", folder) as (url, _):
            yield TreeCopy(url, bring_up, lambda: copy / "boot")
    finally:
        followed.close()


@contextmanager
def _bucket(root: Path, _: Path) -> Iterator[TreeCopy]:
    from tests.publish.targets import test_s3

    with s3_server() as store:
        store.make("boots")
        store.let_anyone_read("boots")
        store.hides_absence = True  # by the policy on the page
        followed = test_s3.Site(root, store.url, "boots", ledger=LEDGER)

        def bring_up() -> None:
            followed.follow()

        bring_up()
        yield TreeCopy(f"{store.url}/boots/site/boot", bring_up, None, store)


@contextmanager
def _branch(root: Path, folder: Path) -> Iterator[TreeCopy]:
    """A branch that is checked out as the page shows, and served by nginx."""
    from tests.publish.targets import test_git_branch

    bare, boots = folder / "remote.git", folder / "boots"
    pygit2.init_repository(str(bare), bare=True, initial_head="main").free()
    followed = test_git_branch.Site(folder, Remote(url=str(bare)), ledger=LEDGER)
    followed.root, followed.tree = root, FollowedTree(root)
    boots.mkdir()
    followed.follow()
    clone = clone_for_checkouts(bare, folder)

    def bring_up() -> None:
        followed.follow()
        subprocess.run(["sh", "-c", build_checkout_script(boots)], cwd=clone, env=ENVIRONMENT, check=True)

    bring_up()
    with nginx(boots / "current/boot", root / "ops/serve", folder) as (url, _):
        yield TreeCopy(url, bring_up, lambda: (boots / "current/boot").resolve())


TREE_COPIES: Final[dict[str, Open]] = {
    "nginx": partial(_output, nginx),
    "caddy": partial(_output, caddy),
    "folder": _folder,
    "bucket": _bucket,
    "branch": _branch,
}
