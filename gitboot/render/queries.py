"""How nginx and Caddy answer paths that name their machine by a query: rewritten to what they mean, and logged so.

nginx has a query as it was sent, and neither spells an address anew: loaders write theirs in lower case. What has to be
looked up, a node's name or a token, only an endpoint knows.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final, NamedTuple

from gitboot.render.emulated_apis import FOR_UNKNOWN, TABLE, Alias
from gitboot.render.paths import BOOT, FIRST_SCRIPT, ContentType, Kind, PathKind

_BYTE: Final = "([0-9a-f]{2})"
_FIRST: Final = f"/{FIRST_SCRIPT.removeprefix(BOOT)}"
_IPXE: Final = "ipxe"  # without a query it is the first script


class _Key(NamedTuple):
    """A key of a query: what it may be, and how the tree spells that."""

    kind: Kind
    expression: str
    spelt: tuple[int, ...]  # the groups, joined by hyphens


_KEYS: Final = (
    _Key(Kind.MAC, "(?::|-|%3[Aa])".join([_BYTE] * 6), (1, 2, 3, 4, 5, 6)),
    _Key(Kind.UUID, "([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})", (1,)),
    _Key(Kind.SERIAL, "([A-Za-z0-9][A-Za-z0-9._-]*)", (1,)),
)
_KINDS: Final = tuple(key.kind for key in _KEYS)


def _chosen(outputs: Collection[str]) -> list[Alias]:
    return [alias for alias in (*TABLE, *FOR_UNKNOWN.values()) if alias.output in outputs and _asked(alias)]


def _asked(alias: Alias) -> list[PathKind]:
    """Of what an alias may mean, what its query says by itself."""
    return [kind for kind in alias.kinds if kind.kind in set(alias.keys.values()).intersection(_KINDS)]


def _file(kind: PathKind, alias: Alias, variable: str) -> str:
    """What an alias may mean, where a server has what a query says in a variable for each key."""
    return f"/{kind.of('@', name=alias.name).removeprefix(BOOT).replace('@', variable % kind.kind)}"


def nginx_maps(outputs: Collection[str]) -> str:
    """What a query names, for nginx's ``http``; nothing where nobody asks so."""
    if not _chosen(outputs):
        return ""
    maps = "".join(_nginx_map(key) for key in _KEYS)
    return f"# By what a query names a machine.\n{maps}"


def _nginx_map(key: _Key) -> str:
    groups, expression = [f"gitboot_{key.kind}_{number}" for number in key.spelt], key.expression
    for group in groups:
        expression = expression.replace("([", f"(?<{group}>[", 1)
    value = "-".join(f"${{{group}}}" for group in groups)
    return f'map $arg_{key.kind} $gitboot_{key.kind} {{\n    "~^{expression}$" "{value}";\n    default "-";\n}}\n\n'


def nginx_locations(outputs: Collection[str]) -> str:
    """Return its locations; what is logged is the file that was sent.

    Each path that an alias may mean has a location of its own: ``try_files`` would take a file that cannot be read for
    one that is absent.
    """
    chosen = _chosen(outputs)
    known = "".join(_nginx_location(alias) for alias in chosen)
    return known if any(alias.path == _IPXE for alias in chosen) else f"{_NGINX_IPXE}{known}"


def _nginx_location(alias: Alias) -> str:
    first = ""
    if alias.path == _IPXE:
        said = "".join(f"$arg_{key.kind}" for key in _KEYS)
        first = f'        set $gitboot_said "{said}";\n        if ($gitboot_said = "") {{\n'
        first += f"            rewrite ^ {_FIRST} last;\n        }}\n"
    files = [(_file(kind, alias, "$gitboot_%s"), kind.content_type, NGINX_WITHOUT_ETAG) for kind in _asked(alias)]
    if alias.path in FOR_UNKNOWN:
        files.append((f"/{alias.path}", ContentType.TEXT, ""))
    names = [f"@{re.sub('[^a-z0-9]', '_', alias.path)}_{number}" for number in range(1, len(files))]
    found = ""
    for name, other, (file, type, etag) in zip((f"= /{alias.path}", *names), (*names, "@nothing"), files, strict=True):
        found += (
            f'    location {name} {{\n        types {{}}\n        default_type "{type}";\n        max_ranges 0;\n'
            f"{first}{etag}        rewrite ^ {file} break;\n"
            f"        error_page 404 = {other};\n        error_page 403 500 = @failed;\n    }}\n\n"
        )
        first = ""
    return found


NGINX_WITHOUT_ETAG: Final = """\
        etag off;
        if_modified_since off;
        if ($http_if_none_match = "*") {    # nginx would answer 304 to it, whatever is off
            return 412 $gitboot_nothing;
        }
"""
_NGINX_IPXE: Final = f"""\
    location = /{_IPXE} {{
        rewrite ^ {_FIRST} last;
    }}

"""


def caddy(outputs: Collection[str]) -> str:
    """Caddy's directives. Its log has what was asked for: so an answer says what it is of (RFC 9110, 8.7)."""
    chosen = _chosen(outputs)
    maps = "".join(_caddy_map(key) for key in _KEYS) if chosen else ""
    is_query = any(alias.path == _IPXE for alias in chosen)
    queries = "".join(f"\t\t\tnot query {key.kind}=*\n" for key in _KEYS) if is_query else ""
    bare = f"\t\t@first {{\n\t\t\tpath_regexp ^/{_IPXE}$\n{queries}\t\t}}\n{_caddy_route('@first', _FIRST)}"
    return maps + bare + "".join(_caddy_alias(number, alias) for number, alias in enumerate(chosen))


def _caddy_map(key: _Key) -> str:
    value = "-".join(f"${{{number}}}" for number in key.spelt)
    return (
        f"\t\tmap {{http.request.uri.query.{key.kind}}} {{gitboot_{key.kind}}} {{\n"
        f'\t\t\t"~^{key.expression}$" "{value}"\n\t\t\tdefault "-"\n\t\t}}\n'
    )


def _caddy_alias(number: int, alias: Alias) -> str:
    matcher, files = f"@alias{number}", [_file(kind, alias, "{gitboot_%s}") for kind in _asked(alias)]
    path = f"\t\t\tpath_regexp ^/{re.escape(alias.path)}$\n"
    found = f"{path}\t\t\tfile {{\n\t\t\t\ttry_files {' '.join(files)}\n\t\t\t}}\n"
    files += [f"/{alias.path}"] if alias.path in FOR_UNKNOWN else []
    return (
        f"\t\t{matcher} {{\n{found}\t\t}}\n{_caddy_route(matcher, '{http.matchers.file.relative}')}"
        f"\t\t{matcher}_absent {{\n{path}\t\t}}\n\t\troute {matcher}_absent {{\n{_caddy_looked_for(files)}\t\t}}\n"
    )


def _caddy_looked_for(files: list[str]) -> str:
    """Directives that look for files which the matcher has not found: it takes what cannot be read for absent."""
    tried = "".join(f"\t\t\trewrite * {file}\n{_CADDY_LOOK}" for file in files[:-1])
    return f"\t\t\theader Cache-Control no-store\n{tried}\t\t\trewrite * {files[-1]}\n"


_CADDY_LOOK: Final = """\
\t\t\tfile_server {
\t\t\t\tpass_thru
\t\t\t\tdisable_canonical_uris
\t\t\t}
"""


def _caddy_route(matcher: str, to: str) -> str:
    return f"\t\troute {matcher} {{\n\t\t\trewrite * {to}\n\t\t\theader Content-Location {{path}}\n\t\t}}\n"
