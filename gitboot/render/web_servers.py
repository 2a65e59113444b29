"""Web-server configurations for nginx and Caddy."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from posixpath import normpath
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

from gitboot.render.emulated_apis import FOR_UNKNOWN, Alias
from gitboot.render.emulated_apis import TABLE as EMULATED_APIS_TABLE
from gitboot.render.paths import (
    ARTIFACT_TYPES,
    BOOT,
    BUNDLED,
    DATA,
    FIRST_SCRIPT,
    FOR_A_YEAR,
    REVALIDATED,
    TABLE,
    ContentType,
    Delivery,
    File,
    IdentityKind,
    PathKind,
    Role,
    Stage,
    publication_stage,
)

# The kinds of paths in a copy. Only endpoints serve secrets.
_COPIED_KINDS: Final = tuple(kind for kind in TABLE if kind.role is not Role.SEALED)


def render_web_server_files(
    outputs: Collection[str], shared_paths: Collection[str], base_urls: Collection[str], monitors: Collection[str]
) -> Iterator[tuple[str, File]]:
    """Yield the files in ``ops/serve/``: one configuration for each web server.

    ``shared_paths`` are the paths of the shared files. A publication writes the first scripts last, so a copy that
    contains a first script is complete. ``base_urls`` are the URLs at which machines find ``boot/``. ``monitors`` are
    the networks that may read the signed list, in addition to the host of the mirror.
    """
    prefixes = sorted({urlsplit(url).path.rstrip("/") for url in base_urls}, key=lambda path: (-len(path), path))
    script_path = _find_script_path(shared_paths)
    nginx_configuration = _render_nginx(outputs, prefixes, script_path, sorted(monitors))
    yield "ops/serve/nginx.conf", File(nginx_configuration.encode())
    caddy_configuration = _render_caddy(outputs, prefixes, script_path, sorted(monitors))
    yield "ops/serve/Caddyfile", File(caddy_configuration.encode())


def _find_script_path(shared_paths: Collection[str]) -> str | None:
    """Return the path below ``boot/`` of a first script.

    Return None if there is no first script. Then no file shows whether a copy is complete.
    """
    scripts = sorted(path for path in shared_paths if publication_stage(path) is Stage.FIRST_SCRIPTS)
    script = FIRST_SCRIPT if FIRST_SCRIPT in scripts else next(iter(scripts), None)
    return script.removeprefix(BOOT) if script is not None else None


def _fill_template(template: str, values: Mapping[str, str]) -> str:
    for mark, value in values.items():
        template = template.replace(f"@{mark}@", value)
    return template


K = TypeVar("K")
V = TypeVar("V")


def _group_by_key(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


# Groups of path kinds with the same headers. None: the content type depends on the file name.
_KINDS_BY_DELIVERY: Final = _group_by_key(
    ((kind.delivery, None if kind is DATA else str(kind.content_type)), kind) for kind in _COPIED_KINDS
)
_ENDINGS_BY_TYPE: Final = _group_by_key((type, ending) for ending, type in ARTIFACT_TYPES.items())


def _render_nginx(
    outputs: Collection[str], prefixes: Sequence[str], script_path: str | None, monitors: Sequence[str]
) -> str:
    cache_lines = ""
    by_cache_control = _group_by_key((kind.delivery.cache_control, kind) for kind in _COPIED_KINDS)
    for cache_control, kinds in by_cache_control.items():
        cache_lines += f'    "~^/(?:{_join_expressions(kinds)})$" "{cache_control}";\n'
    files = "".join(
        _render_nginx_files(delivery, type, kinds) for (delivery, type), kinds in _KINDS_BY_DELIVERY.items()
    )
    values = {
        "nginx_maps": _render_nginx_maps(outputs),
        "nginx_prefixes": _render_nginx_prefixes(prefixes),
        "nginx_deliveries": cache_lines,
        "nginx_aliases": _render_nginx_locations(outputs),
        "nginx_files": files,
        "nginx_complete": _NGINX_COMPLETE.replace("@last@", script_path) if script_path is not None else "",
        "nginx_monitors": "".join(f"        allow {network};\n" for network in monitors),
        "bundled": "|".join(BUNDLED),
        "types": "".join(f'        "{type}" {" ".join(endings)};\n' for type, endings in _ENDINGS_BY_TYPE.items()),
        "for_a_year": FOR_A_YEAR,
        "revalidated": REVALIDATED,
    }
    return _fill_template(_NGINX, values)


def _render_caddy(
    outputs: Collection[str], prefixes: Sequence[str], script_path: str | None, monitors: Sequence[str]
) -> str:
    files = ""
    for number, ((delivery, type), kinds) in enumerate(_KINDS_BY_DELIVERY.items()):
        files += _render_caddy_files(number, delivery, type, kinds)
    values = {
        "caddy_prefixes": _render_caddy_prefixes(prefixes),
        "caddy_aliases": _render_caddy_aliases(outputs),
        "caddy_files": files,
        "caddy_complete": f"\t\t\tfile /{script_path}\n" if script_path is not None else "",
        "caddy_monitors": "".join(f" {network}" for network in monitors),
        "bundled_paths": " ".join(f"/o/*/{name}" for name in BUNDLED),
        "type_headers": "".join(_render_caddy_type(type, endings) for type, endings in _ENDINGS_BY_TYPE.items()),
        "for_a_year": FOR_A_YEAR,
        "revalidated": REVALIDATED,
    }
    return _fill_template(_CADDY, values)


def _join_expressions(kinds: Iterable[PathKind]) -> str:
    return "|".join(kind.expression for kind in kinds)


def _escape_path(path: str) -> str:
    """Return a regular expression that matches exactly this path."""

    def is_literal(character: str) -> bool:
        return character.isalnum() or character in "/_-" or not character.isascii()

    return "".join(character if is_literal(character) else f"\\x{ord(character):02x}" for character in path)


def _decode_path(prefix: str) -> str:
    """Return the path of a base URL in the form that web servers compare.

    This form is decoded, and has no double slashes or dot segments.
    """
    return f"/{normpath(unquote(prefix)).lstrip('/')}"


def _render_nginx_prefixes(prefixes: Sequence[str]) -> str:
    """Return the lines that remove the path of the base URL from requests.

    The paths in the log are then relative to ``boot/``.

    With several base URLs, a path in ``boot/`` may start with the same folder as a base URL. nginx does not rewrite the
    path of an existing file.
    """
    expressions = [_escape_path(_decode_path(prefix)) for prefix in prefixes if prefix]
    if not expressions:
        return ""
    rewrite = f'rewrite "^(?:{"|".join(expressions)})(/.*)$" $1;'
    lines = ["", "# Machines request boot/ below a base URL's path."]
    if len(prefixes) == 1:
        lines.append(rewrite)
    else:
        lines += ["if (!-f $request_filename) {", f"    {rewrite}", "}"]
    return "".join(f"    {line}\n" for line in lines)


_BUNDLED_DATA: Final = f"{DATA.expression.rpartition('/')[0]}/(?:{'|'.join(BUNDLED)})"


def _render_nginx_files(delivery: Delivery, type: str | None, kinds: list[PathKind]) -> str:
    if type is not None:
        return _render_nginx_location(_join_expressions(kinds), delivery, type)
    bundle_location = _render_nginx_location(_BUNDLED_DATA, delivery, ContentType.CLOUD_CONFIG)
    return bundle_location + _render_nginx_location(DATA.expression, delivery, ContentType.OCTETS, by_extension=True)


def _render_nginx_location(expression: str, delivery: Delivery, type: str, *, by_extension: bool = False) -> str:
    """Return the nginx location for the files whose paths match ``expression``.

    With ``by_extension``, ``type`` applies only to files with an unknown extension.
    """
    types = "" if by_extension else "        types {}\n"
    parts = "" if delivery.has_ranges else "        max_ranges 0;\n"
    etag = "" if delivery.has_etag else _NGINX_WITHOUT_ETAG
    return f'    location ~ "^/(?:{expression})$" {{\n{types}        default_type "{type}";\n{parts}{etag}    }}\n\n'


def _render_caddy_prefixes(prefixes: Sequence[str]) -> str:
    """Return the directives that remove the base URLs' paths from requests. Caddy still logs the original path."""
    nonempty_prefixes = [prefix for prefix in prefixes if prefix]
    if not nonempty_prefixes:
        return ""
    lines = ["# Machines request boot/ below a base URL's path."]
    for number, prefix in enumerate(nonempty_prefixes):
        lines += [f"@prefix{number} {{", f"\tpath_regexp ^{_escape_path(_decode_path(prefix))}/"]
        if len(prefixes) > 1:
            lines.append("\tnot file {path}")
        lines += ["}", f"uri @prefix{number} strip_prefix {prefix}"]
    return "".join(f"\t\t{line}\n" for line in lines) + "\n"


def _render_caddy_files(number: int, delivery: Delivery, type: str | None, kinds: list[PathKind]) -> str:
    matcher = f"@files{number}"
    lines = [
        f"{matcher} path_regexp ^/(?:{_join_expressions(kinds)})$",
        f'header {matcher} Cache-Control "{delivery.cache_control}"',
    ]
    if not delivery.has_etag:
        lines += [f"request_header {matcher} -{name}" for name in ("If-None-Match", "If-Modified-Since")]
        lines.append(f"header {matcher} -Etag")
    if type is not None:
        lines.append(f'header {matcher} Content-Type "{type}"')
    else:
        lines.append(f"{matcher}_bundled path_regexp ^/{_BUNDLED_DATA}$")
        lines.append(f'header {matcher}_bundled Content-Type "{ContentType.CLOUD_CONFIG}"')
    return "".join(f"\t\t{line}\n" for line in lines)


def _render_caddy_type(type: str, endings: list[str]) -> str:
    """Return the lines that set the content type of the files with these endings."""
    patterns = " ".join(f"*.{ending}" for ending in endings)
    return f'\t\t@{endings[0]} path {patterns}\n\t\theader @{endings[0]} Content-Type "{type}"\n'


_NGINX_COMPLETE: Final = """\
        if (!-f $document_root/@last@) {
            return 503 "#";
        }
"""
_NGINX: Final = r"""# A mirror of boot/ for nginx 1.18 or newer. It answers as gitboot's endpoint does.
#
# Copy this file to /etc/nginx/conf.d/ and set the five lines that are marked. `root` is the copy of boot/. Preserve the
# modification times when you copy (rsync --times): `gitboot read-access-logs` recognizes the version of a boot script
# by its time. Behind a load balancer, add set_real_ip_from and real_ip_header, so that nginx logs the address of the
# machine.

# The time with the fraction of a second
map "$time_iso8601 $msec" $gitboot_at {
    "~^(?<gitboot_second>[-0-9T:]{19})(?<gitboot_offset>\S+) [0-9]+(?<gitboot_fraction>\.[0-9]+)$"
        "$gitboot_second$gitboot_fraction$gitboot_offset";
    default $time_iso8601;
}

# The format for `gitboot read-access-logs`. `modified` is the version that nginx sent. `complete` is OK if nginx sent
# the whole file.
log_format gitboot escape=json
    '{"at":"$gitboot_at","client":"$remote_addr","method":"$request_method","path":"$uri","status":$status,'
    '"modified":"$sent_http_last_modified","length":"$sent_http_content_length","bytes":$body_bytes_sent,'
    '"complete":"$request_completion","query":"$args","agent":"$http_user_agent"}';

# How long a cache may keep an answer: files of one server not at all, files below o/ for a year, other files with a
# revalidation at each use.
map $uri $gitboot_cache {
@nginx_deliveries@    ~^/o/ "@for_a_year@";
    default "@revalidated@";
}

# `return 405 ""` sends nginx's own body. With an empty variable, nginx sends no body.
map "" $gitboot_nothing {
    default "";
}

@nginx_maps@server {
    listen 80;                                          # set: the port, and the address if needed
    listen [::]:80;                                     # set: the port and the address for IPv6
    root /srv/gitboot/boot;                             # set: the copy of boot/
    access_log /var/log/nginx/gitboot.log gitboot;      # set: the log for `gitboot read-access-logs`
    log_not_found off;

    gzip off;    # firmware and loaders need Content-Length
    etag on;
    add_header Cache-Control $gitboot_cache;
@nginx_prefixes@
    if ($request_method !~ ^(GET|HEAD)$) {
        return 405;
    }

    # UEFI HTTP boot depends on the content type.
    types {
@types@    }

    location / {
        default_type "text/plain; charset=utf-8";
        max_ranges 0;    # send boot scripts only as a whole
        if (-d $request_filename) {    # do not list a folder, and do not redirect to a folder
            return 404;
        }
    }

    # The signed list names every machine. To monitor the mirror from another host, add its network to the Fleet's
    # spec.provisioning.monitors, or allow its address here.
    location ^~ /signed/ {
        allow 127.0.0.1;                                # set: the clients that may read the signed list
        allow ::1;
@nginx_monitors@        deny all;
        max_ranges 0;
        error_page 403 = @denied;
        error_page 404 = @nothing;
        error_page 500 = @failed;
        if (-d $request_filename) {
            return 404;
        }
    }
    location @denied {
        add_header Cache-Control "no-store" always;
        return 403 $gitboot_nothing;
    }

    # Paths with a query that identifies the machine, and other names of paths
@nginx_aliases@    # nginx uses the first of the following locations that matches.
    # It sends the files of one server again at each request, so that the log has each request.
@nginx_files@    # Hide files that are still being copied.
    location ~ /\. {
        return 404;
    }

    location ~ ^/o/[^/]+/(@bundled@)$ {
        default_type "text/cloud-config; charset=utf-8";
        if (-d $request_filename) {
            return 404;
        }
    }

    location ~ ^/(o|assets)/ {
        default_type application/octet-stream;
        if (-d $request_filename) {
            return 404;
        }
    }

    # The answer for an absent file is a 404. If a copy is not complete, or the mount is empty, the first script is
    # absent. Then the answer is 503, because an absent file does not prove that the machine is unknown. A file that
    # nginx cannot read gets a 503 too. The body of these answers is #. With an empty body, shim waits forever. GRUB
    # runs the body of a 404 as configuration, in which # is a comment.
    recursive_error_pages on;    # for the several files that a query may mean
    error_page 404 = @nothing;
    location @nothing {
        types {}
        default_type "text/plain; charset=utf-8";
        add_header Cache-Control "no-store" always;
@nginx_complete@        return 404 "#";
    }

    error_page 403 500 = @failed;
    location @failed {
        types {}
        default_type "text/plain; charset=utf-8";
        add_header Cache-Control "no-store" always;
        return 503 "#";
    }

    error_page 405 = @not_allowed;
    location @not_allowed {
        add_header Allow "GET, HEAD" always;
        add_header Cache-Control "no-store" always;
        return 405 $gitboot_nothing;
    }
}
"""
_CADDY: Final = r"""# A mirror of boot/ for Caddy 2.6 or newer. It answers as gitboot's endpoint does.
#
# Copy this file, or import it in a Caddyfile, and set these variables in Caddy's environment:
#   GITBOOT_ADDRESS  the address of the site. Default: port 80 for all host names, without TLS. If you set a host name,
#                    Caddy answers other host names and addresses with an empty 200
#   GITBOOT_ROOT     the copy of boot/. Preserve the modification times when you copy (rsync --times): `gitboot
#                    read-access-logs` recognizes the version of a boot script by its time
#   GITBOOT_LOG      the log for `gitboot read-access-logs`
#   GITBOOT_MONITORS addresses and networks that may read the signed list, which names every machine. Default: this host
#                    and the Fleet's spec.provisioning.monitors

{$GITBOOT_ADDRESS::80} {
	root * {$GITBOOT_ROOT:/srv/gitboot/boot}

	log {
		output file {$GITBOOT_LOG:/var/log/caddy/gitboot.log} {
			roll_uncompressed
		}
		format json {
			time_format rfc3339_nano
		}
	}

	route {
		@not_allowed not method GET HEAD
		handle @not_allowed {
			header Allow "GET, HEAD"
			header Cache-Control no-store
			respond 405
		}

@caddy_prefixes@		# Paths with a query that identifies the machine, and other names of paths
@caddy_aliases@
		# Do not list folders. Hide files that are still being copied.
		@hidden path */ */.*
		error @hidden 404

		# The signed list names every machine.
		@list {
			path /signed/*
			not remote_ip {$GITBOOT_MONITORS:127.0.0.1 ::1@caddy_monitors@}
		}
		handle @list {
			header Cache-Control no-store
			respond 403
		}

		# Send boot scripts only as a whole.
		@whole not path /o/* /assets/* /media/*
		request_header @whole -Range
		header @whole -Accept-Ranges

		# How long a cache may keep an answer, and the content type, which UEFI HTTP boot needs. Caddy uses the last
		# header that matches.
		header Cache-Control @revalidated@
		@immutable path /o/*
		header @immutable Cache-Control "@for_a_year@"
		header Content-Type "text/plain; charset=utf-8"
		@artifact path /o/* /assets/* */data/*
		header @artifact Content-Type application/octet-stream
@type_headers@		@cloud_config path @bundled_paths@
		header @cloud_config Content-Type "text/cloud-config; charset=utf-8"

		# Caddy sends the files of one server again at each request, so that the log has each request.
@caddy_files@
		file_server {
			disable_canonical_uris
		}
	}

	# The answer for an absent file is a 404. If a copy is not complete, or the mount is empty, the first script is
	# absent. Then the answer is 503, because an absent file does not prove that the machine is unknown. A file that
	# Caddy cannot read gets a 503 too. The body of these answers is #. With an empty body, shim waits forever. GRUB
	# runs the body of a 404 as configuration, in which # is a comment.
	handle_errors {
		header Cache-Control no-store
		header -Content-Type
		@absent {
			expression {http.error.status_code} == 404
@caddy_complete@		}
		respond @absent "#" 404
		respond "#" 503
	}
}
"""


# Aliases: paths with a query that identifies the machine, and other names of paths

_BYTE: Final = "([0-9a-f]{2})"
_FIRST: Final = f"/{FIRST_SCRIPT.removeprefix(BOOT)}"
_IPXE: Final = "ipxe"  # without a query, this path serves the first script


class _QueryKey(NamedTuple):
    kind: IdentityKind
    expression: str
    groups: tuple[int, ...]  # the regular expression groups; hyphens join them in the output tree's spelling


_KEYS: Final = (
    _QueryKey(IdentityKind.MAC, "(?::|-|%3[Aa])".join([_BYTE] * 6), (1, 2, 3, 4, 5, 6)),
    _QueryKey(IdentityKind.UUID, "([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", (1,)),
    _QueryKey(IdentityKind.SERIAL, "([A-Za-z0-9][A-Za-z0-9._-]*)", (1,)),
)
_KINDS: Final = tuple(key.kind for key in _KEYS)


def _select_aliases(outputs: Collection[str]) -> list[Alias]:
    return [
        alias
        for alias in (*EMULATED_APIS_TABLE, *FOR_UNKNOWN.values())
        if alias.output in outputs and _select_kinds(alias)
    ]


def _select_kinds(alias: Alias) -> list[PathKind]:
    return [kind for kind in alias.kinds if kind.identity_kind in set(alias.keys.values()).intersection(_KINDS)]


def _build_path(kind: PathKind, alias: Alias, variable: str) -> str:
    return f"/{kind.build_path('@', name=alias.name).removeprefix(BOOT).replace('@', variable % kind.identity_kind)}"


def _render_nginx_maps(outputs: Collection[str]) -> str:
    """Return the nginx ``map`` blocks that map queries to identities, or "" if the outputs have no aliases."""
    if not _select_aliases(outputs):
        return ""
    maps = "# Map each query to a machine's identity\n"
    for key in _KEYS:
        groups = [f"gitboot_{key.kind}_{number}" for number in key.groups]
        expression = key.expression
        for group in groups:
            expression = expression.replace("([", f"(?<{group}>[", 1)
        value = "-".join(f"${{{group}}}" for group in groups)
        match = f'    "~^{expression}$" "{value}";\n    default "-";\n'
        maps += f"map $arg_{key.kind} $gitboot_{key.kind} {{\n{match}}}\n\n"
    return maps


def _render_nginx_locations(outputs: Collection[str]) -> str:
    """Return the nginx locations for aliases.

    With these locations, nginx logs the path of the file that it sent. Each path that an alias refers to has its own
    location, because ``try_files`` would treat an unreadable file as absent.
    """
    aliases = _select_aliases(outputs)
    locations = "".join(_render_nginx_alias(alias) for alias in aliases)
    return locations if any(alias.path == _IPXE for alias in aliases) else f"{_NGINX_IPXE}{locations}"


class _AliasFile(NamedTuple):
    """A file that an alias refers to."""

    path: str
    content_type: str
    etag_directives: str


def _render_nginx_alias(alias: Alias) -> str:
    """Return one location for each file. If the file is absent, nginx continues with the next location."""
    files = [
        _AliasFile(_build_path(kind, alias, "$gitboot_%s"), kind.content_type, _NGINX_WITHOUT_ETAG)
        for kind in _select_kinds(alias)
    ]
    if alias.path in FOR_UNKNOWN:
        files.append(_AliasFile(f"/{alias.path}", ContentType.TEXT, ""))
    internal_name = re.sub("[^a-z0-9]", "_", alias.path)
    names = [f"= /{alias.path}", *(f"@{internal_name}_{number}" for number in range(1, len(files))), "@nothing"]
    first_script = _NGINX_FIRST_SCRIPT if alias.path == _IPXE else ""
    locations = ""
    for number, file in enumerate(files):
        locations += (
            f'    location {names[number]} {{\n        types {{}}\n        default_type "{file.content_type}";\n'
            f"        max_ranges 0;\n{first_script if number == 0 else ''}{file.etag_directives}"
            f"        rewrite ^ {file.path} break;\n"
            f"        error_page 404 = {names[number + 1]};\n        error_page 403 500 = @failed;\n    }}\n\n"
        )
    return locations


_NGINX_WITHOUT_ETAG: Final = """\
        etag off;
        if_modified_since off;
        if ($http_if_none_match = "*") {    # nginx would answer 304 even with `etag off`
            return 412 $gitboot_nothing;
        }
"""
# A request without a query gets the first script.
_NGINX_FIRST_SCRIPT: Final = f"""\
        set $gitboot_query "{"".join(f"$arg_{key.kind}" for key in _KEYS)}";
        if ($gitboot_query = "") {{
            rewrite ^ {_FIRST} last;
        }}
"""
_NGINX_IPXE: Final = f"""\
    location = /{_IPXE} {{
        rewrite ^ {_FIRST} last;
    }}

"""


def _render_caddy_aliases(outputs: Collection[str]) -> str:
    """Return the Caddy directives for all aliases.

    Caddy logs the path of the request, so the response names the file in Content-Location (RFC 9110, 8.7).
    """
    aliases = _select_aliases(outputs)
    text = ""
    for key in _KEYS if aliases else ():
        value = "-".join(f"${{{number}}}" for number in key.groups)
        text += (
            f"\t\tmap {{http.request.uri.query.{key.kind}}} {{gitboot_{key.kind}}} {{\n"
            f'\t\t\t"~^{key.expression}$" "{value}"\n\t\t\tdefault "-"\n\t\t}}\n'
        )
    has_query_alias = any(alias.path == _IPXE for alias in aliases)
    no_query = "".join(f"\t\t\tnot query {key.kind}=*\n" for key in _KEYS) if has_query_alias else ""
    text += f"\t\t@first {{\n\t\t\tpath_regexp ^/{_IPXE}$\n{no_query}\t\t}}\n"
    text += _render_caddy_route("@first", _FIRST)
    return text + "".join(_render_caddy_alias(number, alias) for number, alias in enumerate(aliases))


# Serve the file if it exists. Otherwise, continue with the next directive.
_CADDY_TRY_FILE: Final = """\
\t\t\tfile_server {
\t\t\t\tpass_thru
\t\t\t\tdisable_canonical_uris
\t\t\t}
"""


def _render_caddy_alias(number: int, alias: Alias) -> str:
    """Return the Caddy directives for one alias.

    The matcher does not distinguish an unreadable file from an absent file. Therefore, if the matcher does not find a
    file, the directives try each file again to produce the correct error.
    """
    matcher = f"@alias{number}"
    path = f"\t\t\tpath_regexp ^/{re.escape(alias.path)}$\n"
    server_files = [_build_path(kind, alias, "{gitboot_%s}") for kind in _select_kinds(alias)]
    condition = f"{path}\t\t\tfile {{\n\t\t\t\ttry_files {' '.join(server_files)}\n\t\t\t}}\n"
    *first_files, last_file = [*server_files, f"/{alias.path}"] if alias.path in FOR_UNKNOWN else server_files
    tries = "".join(f"\t\t\trewrite * {file}\n{_CADDY_TRY_FILE}" for file in first_files)
    absent = f"\t\t\theader Cache-Control no-store\n{tries}\t\t\trewrite * {last_file}\n"
    return (
        f"\t\t{matcher} {{\n{condition}\t\t}}\n{_render_caddy_route(matcher, '{http.matchers.file.relative}')}"
        f"\t\t{matcher}_absent {{\n{path}\t\t}}\n\t\troute {matcher}_absent {{\n{absent}\t\t}}\n"
    )


def _render_caddy_route(matcher: str, target: str) -> str:
    return f"\t\troute {matcher} {{\n\t\t\trewrite * {target}\n\t\t\theader Content-Location {{path}}\n\t\t}}\n"
