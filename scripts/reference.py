"""Write what is derived from the code: docs/reference/, the remedies and alerts of conditions, and the example's CI.

`scripts/reference.py --check` prints the files that differ from the code.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, Final

import click

from gitboot.bmc.redfish.quirks import QUIRKS
from gitboot.cli.commands.init import CI, build_seed_file
from gitboot.cli.main import Exit, cli
from gitboot.cli.options import Setting, format_key, list_keys, list_variables
from gitboot.endpoint.metrics import FAMILIES
from gitboot.model.json_schema import KINDS, list_schema_fields
from gitboot.problems import Code
from gitboot.status.conditions import ANY, BMC, CONDITIONS, Alert, ConditionType

ROOT = Path(__file__).resolve().parent.parent
PAGE_FILES = ROOT / "gitboot" / "render" / "page_files"


_GLOSSARY = "The [glossary](../glossary.md) defines the terms."


def fields_page() -> str:
    lines = [
        "# Every field of every kind",
        "",
        "`scripts/reference.py` generates this page from the models. You may omit a field that is not *required*. Its",
        "description has the default. `[]` is a list, and `{}` is a mapping with arbitrary keys.",
        _GLOSSARY,
        "",
    ]
    for kind in KINDS:
        lines += [f"## {kind.__name__}", "", str(kind.__doc__), ""]
        lines += ["| field | type | |", "|---|---|---|"]
        for field in list_schema_fields(kind):
            need = "*required.* " if field.is_required else ""
            description = field.description.replace("|", "\\|")
            lines.append(f"| `{field.path}` | {field.type} | {need}{description} |")
        lines.append("")
    return "\n".join(lines)


def codes_page() -> str:
    lines = [
        "# Every problem code",
        "",
        "`gitboot explain CODE` prints the same text. Codes are stable.",
        _GLOSSARY,
        "",
    ]
    for code in sorted(Code, key=lambda each: each.value):
        lines += [f"## {code.value}: {code.headline}", "", f"{code.why} **Fix:** {code.fix}", ""]
    return "\n".join(lines)


def commands_page() -> str:
    context = click.Context(cli, info_name="gitboot", max_content_width=100, terminal_width=100)
    return "\n".join(["# Every command", "", _GLOSSARY, "", *_commands(cli, context)])


def _commands(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        shown = click.Context(command, info_name=name, parent=context, max_content_width=100, terminal_width=100)
        yield from (f"## {shown.command_path}", "", "```", command.get_help(shown), "```", "")
        if isinstance(command, click.Group):
            yield from _commands(command, shown)


def configuration_page() -> str:
    lines = [
        "# The configuration file",
        "",
        "`scripts/reference.py` generates this page from the code.",
        "",
        "`gitboot run` and `gitboot serve` read the TOML file that `--config` names:",
        "",
        "```toml",
        'repository = "https://git.example.net/fleet.git"',
        'operators = ["10.20.0.0/16"]',
        "bmc-parallel = 64",
        "```",
        "",
        "Each option of the command is also a key of its file. *Settings* are keys without an option, because",
        "operators rarely change them. An option wins over its variable, and a variable wins over the file. gitboot",
        "rejects a key that it does not know. Restart gitboot after a change. `gitboot doctor --config` reads the file",
        "of `gitboot run`.",
        _GLOSSARY,
        "",
        "In a variable, write `true` or `false` for a flag, and separate the items of a list by spaces. Separate two",
        "paths by a colon.",
        "",
    ]
    for name in ("run", "serve"):
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        rows = sorted((key, each) for key, each in list_keys(command).items() if key == format_key(each))
        for title, wanted in (("settings", True), ("options", False)):
            lines += [f"## gitboot {name}: {title}", ""]
            lines += ["| key | value | default | variable | |", "|---|---|---|---|---|"]
            lines += [_key_row(key, each, command) for key, each in rows if isinstance(each, Setting) is wanted]
            lines.append("")
    return "\n".join(lines)


_ARGUMENTS = {"repository": "The path or URL of the Git repository; also the argument of the command."}


def _key_row(key: str, parameter: click.Parameter, command: click.Command) -> str:
    text, _, default = (getattr(parameter, "help", None) or _ARGUMENTS[key]).partition(" Default: ")
    shown = parameter.get_help_extra(click.Context(command)) if isinstance(parameter, click.Option) else {}
    default = str(shown.get("default", "")) or default.removesuffix(".") or "none"
    if parameter.required:
        default = "*required*"
    elif isinstance(parameter, click.Option) and parameter.is_flag:
        default = json.dumps(parameter.default is True)
    variables = ", ".join(f"`{each}`{_form_of(parameter)}" for each in list_variables(parameter))
    cells = (f"`{key}`", _value(parameter), default, variables, text)
    return f"| {' | '.join(each.replace('|', chr(92) + '|') for each in cells)} |"


def _form_of(parameter: click.Parameter) -> str:
    """Return how a variable has the values of a parameter; "" for a parameter with one value."""
    if parameter.nargs < 2 or not isinstance(parameter, click.Option):
        return ""
    separator = parameter.type.envvar_list_splitter or " "
    return f" = `{separator.join((parameter.metavar or 'A B').split())}`"


def _value(parameter: click.Parameter) -> str:
    kind = "text"
    if isinstance(parameter, click.Option) and parameter.is_flag:
        kind = "true or false"
    elif isinstance(parameter.type, click.Choice):
        kind = " · ".join(f"`{each}`" for each in parameter.type.choices)
    elif isinstance(parameter.type, click.types.IntParamType):
        kind = f"integer{_bounds(parameter.type)}"
    elif isinstance(parameter.type, click.types.FloatParamType):
        kind = f"number{_bounds(parameter.type)}"
    elif isinstance(parameter.type, click.Path):
        kind = "path"
    if parameter.nargs > 1:
        return f"`{json.dumps(parameter.make_metavar(click.Context(click.Command('run'))).split())}`"
    return f"list of {kind}" if parameter.multiple else kind


def _bounds(type: click.ParamType[Any]) -> str:
    found = []
    if isinstance(type, click.IntRange | click.FloatRange):
        if type.min is not None:
            found.append(f" {'>' if type.min_open else '≥'} {type.min:,}")
        if type.max is not None:
            found.append(f" {'<' if type.max_open else '≤'} {type.max:,}")
    return ",".join(found)


def metrics_page() -> str:
    lines = [
        "# Every metric",
        "",
        "`/metrics` returns these metrics. `scripts/reference.py` generates this page from the code. For alerts and a",
        "dashboard, see [Monitoring](../monitoring.md).",
        _GLOSSARY,
        "",
        "| metric | type | labels | |",
        "|---|---|---|---|",
    ]
    for each in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        says = f"{each.help_text} ({each.values})" if each.values else each.help_text
        lines.append(f"| `{each.sample_name.removesuffix('_bucket')}` | {each.kind} | {labels} | {says} |")
    return "\n".join([*lines, ""])


def bmcs_page() -> str:
    lines = [
        "# Every BMC that differs",
        "",
        "`scripts/reference.py` generates this page from the table in `gitboot/bmc/redfish/quirks.py`. gitboot prefers",
        "what a BMC itself reports: see [BMCs](../bmcs.md).",
        _GLOSSARY,
        "",
        "| BMC | recognized by | difference | source |",
        "|---|---|---|---|",
    ]
    for row in QUIRKS:
        known = [f"Manufacturer {name}…" for name in row.manufacturers] + [f"`{path}`" for path in row.systems]
        lines.append(f"| {row.name} | {', '.join(known)} | {'; '.join(row.differences)} | {row.source} |")
    return "\n".join([*lines, ""])


def exits_page() -> str:
    lines = [
        "# Every exit code",
        "",
        "`scripts/reference.py` generates this page from the table in `gitboot/cli/main.py`. Scripts may rely on these",
        "codes. The help of [each command](commands.md) lists its own meanings.",
        _GLOSSARY,
        "",
        "| code | meaning |",
        "|---|---|",
        *(f"| {each.value} | {each.meaning} |" for each in Exit),
    ]
    return "\n".join([*lines, ""])


def remedies_page() -> str:
    """Return docs/operations.md with the remedies of `CONDITIONS`. The page has the meaning of each reason."""
    found = set[tuple[str, str]]()

    def row(match: re.Match[str]) -> str:
        key = match["type"], match["reason"] or ANY
        found.add(key)
        if key not in declared:
            raise SystemExit(f"docs/operations.md: gitboot/status/conditions.py declares no {' '.join(key)}")
        line = declared[key].replace("|", "\\|")
        return f"{match[1]}`{line}` |"

    declared = {(each.name, reason): line for each in CONDITIONS.values() for reason, line in each.remedies.items()}
    text = (ROOT / "docs" / "operations.md").read_text()
    pattern = r"^(\| `(?P<type>[\w/]+)` \| (?:`(?P<reason>\w+)`|any(?: other)?) \| [^|]+ \| )`.+` \|$"
    text = re.sub(pattern, row, text, flags=re.MULTILINE)
    if lacking := sorted(declared.keys() - found):
        raise SystemExit(f"docs/operations.md: the table needs rows for {lacking}")
    return text


def alerts_file() -> str:
    """Return docs/monitoring/alerts.yml with expressions, durations and labels of `CONDITIONS`. It has the texts."""
    text = (ROOT / "docs" / "monitoring" / "alerts.yml").read_text()
    for declared in CONDITIONS.values():
        for alert in declared.alerts:
            expressions = [_expression(declared, alert), *filter(None, [alert.also])]
            shown = (
                "\n          ".join([">-", *expressions])
                if len(expressions) > 1 or "\n" in expressions[0]
                else expressions[0]
            )
            rule = (
                f"      - alert: {alert.name}\n        expr: {shown}\n        for: {alert.after}\n"
                f"        labels: {{severity: {alert.severity}, condition: {declared.name}}}\n"
            )
            pattern = rf"      - alert: {alert.name}\n.*?\n        labels: .*?\n"
            text, number = re.subn(pattern, lambda _, rule=rule: rule, text, flags=re.DOTALL)
            if number != 1:
                raise SystemExit(f"docs/monitoring/alerts.yml: write summary, description and runbook of {alert.name}")
    return text


def _expression(declared: ConditionType, alert: Alert) -> str:
    if declared.name == BMC:  # the metrics count the BMCs by reason
        return f"sum without (reason) (gitboot_bmc_conditions{{reason{alert.reasons}}}) > 0"
    if alert.reasons:
        return f'gitboot_condition_reason{{type="{declared.name}",reason{alert.reasons}}} == 1'
    others = [_expression(declared, each) for each in declared.alerts if each.reasons]
    unless = "".join(f"\n          unless on (job, instance) {each}" for each in others)
    return f'gitboot_condition{{type="{declared.name}",status="false"}} == 1{unless}'


# The help of the page, from docs/operations.md

_ROW: Final = re.compile(
    r"^\| `(?P<type>[\w/]+)` \| (?:`(?P<reason>\w+)`|any(?: other)?) \| (?P<meaning>[^|]+) \| `(?P<line>.+)` \|$",
    re.MULTILINE,
)
_HEAD: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="POLICY">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Help – gitboot</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="page.css">
</head>
<body>
<header>
<h1><a href="index.html">gitboot</a></h1>
<nav aria-label="Pages"><a href="index.html">Back to the page</a></nav>
</header>
<main class="help">
""".replace("POLICY", "default-src 'none'; style-src 'self'; img-src data:; base-uri 'none'; form-action 'none'")
_TAIL: Final = "</main>\n</body>\n</html>\n"


def help_html(text: str) -> str:
    """Return docs/operations.md as HTML for the page. Each reason of a condition has its own anchor."""
    return _HEAD + "\n".join(_blocks(text)) + "\n" + _TAIL


def help_script(text: str) -> str:
    """Return the meaning of each reason as a script of the page."""
    meanings: dict[str, dict[str, str]] = {}
    for row in _rows(text):
        meanings.setdefault(_kind(row), {})[row["reason"] or "any"] = _plain(row["meaning"])
    lines = [
        f"  {json.dumps(kind)}: {json.dumps(reasons, ensure_ascii=False)},"
        for kind, reasons in sorted(meanings.items())
    ]
    made = "// The meaning of each reason of a false condition, from docs/operations.md: scripts/reference.py\n"
    return "\n".join([f'{made}"use strict";\n', "const MEANINGS = {", *lines, "};", ""])


def _rows(text: str) -> Iterator[re.Match[str]]:
    return _ROW.finditer(text)


def _kind(row: re.Match[str]) -> str:
    return row["type"].partition("/")[0]


def _plain(text: str) -> str:
    """Return Markdown as a plain sentence with a capital letter and a full stop."""
    plain = re.sub(r"[*`]", "", re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)).strip()
    return f"{plain[:1].upper()}{plain[1:]}{'' if plain.endswith('.') else '.'}"


def _blocks(text: str) -> Iterator[str]:
    for block in re.split(r"\n{2,}", text.strip()):
        lines = block.split("\n")
        if found := re.match(r"(#+) (.+)", block):
            level = min(len(found[1]) + 1, 4)
            yield f'<h{level} id="{_slug(found[2])}">{_inline(found[2])}</h{level}>'
        elif all(line.startswith("    ") for line in lines):
            yield f'<pre tabindex="0">{escape(chr(10).join(line[4:] for line in lines))}</pre>'
        elif rows := list(_rows(block)):
            yield from map(_section, rows)
        elif lines[0].startswith("|"):
            cells = [[each.strip() for each in line.strip("|").split("|")] for line in lines]
            head, body = cells[0], cells[2:]
            parts = ["".join(f"<td>{_inline(each)}</td>" for each in row) for row in body]
            heads = "".join(f'<th scope="col">{_inline(each)}</th>' for each in head)
            rest = "".join(f"<tr>{part}</tr>" for part in parts)
            table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rest}</tbody></table>"
            yield f'<div class="wide" tabindex="0">{table}</div>'
        elif re.match(r"(?:- |\d+\. )", block):
            kind = "ul" if block.startswith("- ") else "ol"
            items = re.split(r"(?m)^(?:- |\d+\. )", block)[1:]
            yield f"<{kind}>{''.join(f'<li>{_inline(item)}</li>' for item in items)}</{kind}>"
        else:
            yield f"<p>{_inline(block)}</p>"


def _section(row: re.Match[str]) -> str:
    reason = row["reason"] or "any"
    title = f"{row['type']}: {reason}"
    meaning = row["meaning"].strip()
    line = escape(row["line"].replace("\\|", "|"))
    return (
        f'<section id="{_kind(row)}-{reason}"><h4>{escape(title)}</h4>'
        f'<p>{_inline(meaning[:1].upper() + meaning[1:])}</p><pre tabindex="0">{line}</pre></section>'
    )


def _slug(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _inline(text: str) -> str:
    """Convert code, emphasis and links. A link to another page of the documentation becomes text."""

    def convert(part: str) -> str:
        part = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", part, flags=re.DOTALL)
        part = re.sub(r"(?<!\*)\*([^*]+)\*", r"<em>\1</em>", part)
        part = re.sub(r"\[([^]]+)\]\((#[^)]+)\)", r'<a href="\2">\1</a>', part)
        return re.sub(r"\[([^]]+)\]\(([^)#]+)[^)]*\)", _name_page, part)

    parts = re.split(r"(`[^`]+`)", escape(text, quote=False))
    codes = {f"\0{number}\0": f"<code>{part[1:-1]}</code>" for number, part in enumerate(parts) if part[:1] == "`"}
    marked = "".join(f"\0{number}\0" if part[:1] == "`" else part for number, part in enumerate(parts))
    found = convert(marked)
    for mark, code in codes.items():
        found = found.replace(mark, code)
    return found


def _name_page(link: re.Match[str]) -> str:
    return link[1] if link[1] == link[2] else f"{link[1]} (docs/{link[2]})"


def files() -> Iterator[tuple[Path, str]]:
    """Every file that is made from the code, and its text."""
    for name, page in (
        ("fields", fields_page),
        ("problems", codes_page),
        ("commands", commands_page),
        ("configuration", configuration_page),
        ("metrics", metrics_page),
        ("bmcs", bmcs_page),
        ("exits", exits_page),
    ):
        yield ROOT / "docs" / "reference" / f"{name}.md", page()
    operations = remedies_page()
    yield ROOT / "docs" / "operations.md", operations
    yield PAGE_FILES / "help.html", help_html(operations)
    yield PAGE_FILES / "help.js", help_script(operations)
    yield ROOT / "docs" / "monitoring" / "alerts.yml", alerts_file()
    for name in CI:
        yield ROOT / "example-repo" / name, build_seed_file(name)


def main() -> int:
    if "--check" in sys.argv[1:]:
        differ = [path.relative_to(ROOT) for path, text in files() if not _is(path, text)]
        for path in differ:
            print(f"{path} is not what the code says: scripts/reference.py")
        return 1 if differ else 0
    for path, text in files():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


def _is(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
