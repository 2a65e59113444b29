def nginx_maps(outputs: Collection[str]) -> str:
    """Return what a query names, for nginx's ``http``; nothing where nobody asks so."""
    if not _chosen(outputs):
        return ""
    maps = "# By what a query names a machine.\n"
    for key in _KEYS:
        groups, expression = [f"gitboot_{key.kind}_{number}" for number in key.spelt], key.expression
        for group in groups:
            expression = expression.replace("([", f"(?<{group}>[", 1)
        value = "-".join(f"${{{group}}}" for group in groups)
        maps += (
            f'map $arg_{key.kind} $gitboot_{key.kind} {{\n    "~^{expression}$" "{value}";\n    default "-";\n}}\n\n'
        )
    return maps


def caddy(outputs: Collection[str]) -> str:
    """Return Caddy's directives. Its log has what was asked for: so an answer says what it is of (RFC 9110, 8.7)."""
    chosen = _chosen(outputs)
    found = ""
    for key in _KEYS if chosen else ():
        value = "-".join(f"${{{number}}}" for number in key.spelt)
        found += (
            f"\t\tmap {{http.request.uri.query.{key.kind}}} {{gitboot_{key.kind}}} {{\n"
            f'\t\t\t"~^{key.expression}$" "{value}"\n\t\t\tdefault "-"\n\t\t}}\n'
        )
    is_query = any(alias.path == _IPXE for alias in chosen)
    queries = "".join(f"\t\t\tnot query {key.kind}=*\n" for key in _KEYS) if is_query else ""
    found += f"\t\t@first {{\n\t\t\tpath_regexp ^/{_IPXE}$\n{queries}\t\t}}\n{_caddy_route('@first', _FIRST)}"
    return found + "".join(_caddy_alias(number, alias) for number, alias in enumerate(chosen))


def _caddy_alias(number: int, alias: Alias) -> str:
    """Return directives for an alias; they look for what the matcher does not find, which cannot tell an error."""
    matcher, files = f"@alias{number}", [_file(kind, alias, "{gitboot_%s}") for kind in _asked(alias)]
    path = f"\t\t\tpath_regexp ^/{re.escape(alias.path)}$\n"
    found = f"{path}\t\t\tfile {{\n\t\t\t\ttry_files {' '.join(files)}\n\t\t\t}}\n"
    files += [f"/{alias.path}"] if alias.path in FOR_UNKNOWN else []
    tried = "".join(f"\t\t\trewrite * {file}\n{_CADDY_LOOK}" for file in files[:-1])
    absent = f"\t\t\theader Cache-Control no-store\n{tried}\t\t\trewrite * {files[-1]}\n"
    return (
        f"\t\t{matcher} {{\n{found}\t\t}}\n{_caddy_route(matcher, '{http.matchers.file.relative}')}"
        f"\t\t{matcher}_absent {{\n{path}\t\t}}\n\t\troute {matcher}_absent {{\n{absent}\t\t}}\n"
    )
