"""Write the generated files: docs/reference/, the help of the page, the alerts, and the CI of the example.

`scripts/reference.py --check` prints the files that differ from the code.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from html import escape
from inspect import cleandoc
from itertools import takewhile
from pathlib import Path
from posixpath import normpath
from textwrap import dedent
from typing import Any, Final

import click

from gitboot.bmc.redfish.quirks import QUIRKS
from gitboot.cli.commands.init import CI, build_seed_file
from gitboot.cli.main import SHARED_SECTIONS, Exit, cli
from gitboot.cli.options import Setting, format_key, list_keys, list_variables
from gitboot.endpoint.metrics import FAMILIES
from gitboot.model.json_schema import KINDS, list_schema_fields
from gitboot.problems import Code
from gitboot.status.conditions import ANY, BMC, CONDITIONS, Alert, ConditionType

ROOT = Path(__file__).resolve().parent.parent
PAGE_FILES = ROOT / "gitboot" / "render" / "page_files"

GLOSSARY: Final = "glossary.md"  # from a page of docs/reference
_GLOSSARY: Final = f"The [glossary]({GLOSSARY}) defines the terms."


def fields_page() -> str:
    lines = [
        "# Every field of every kind",
        "",
        "This page lists the type, the default and the meaning of each field.",
        "`scripts/reference.py` generates this page from the models. You may omit a field that is not *required*. The",
        "description of such a field states the default. `[]` is a list, and `{}` is a mapping with arbitrary keys.",
        _GLOSSARY,
        "",
    ]
    for kind in KINDS:
        lines += [f"## {kind.__name__}", "", cleandoc(str(kind.__doc__)), ""]
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
        "This page explains what each problem code means and how to fix the problem.",
        "`gitboot explain CODE` prints the same text. Codes are stable.",
        _GLOSSARY,
        "",
    ]
    for code in sorted(Code, key=lambda each: each.value):
        lines += [f"## {code.value}: {code.headline}", "", f"{code.why} **Fix:** {code.fix}", ""]
    return "\n".join(lines)


# Commands whose options the page about the configuration file describes
_CONFIGURED: Final = ("run", "serve")
_MIN_COMMANDS: Final = 2  # an option that so many commands share is described once
_BUNDLES: Final = {"Registries": "Registries and TLS", "Limits": "Evaluation limits"}  # sections by short title


def commands_page() -> str:
    commands = list(_list_commands(cli, click.Context(cli, info_name="gitboot")))
    shared = _shared_texts(commands)
    bundles = {title: SHARED_SECTIONS[section] for title, section in _BUNDLES.items()}
    bundled = {name for names in bundles.values() for name in names}
    lines = [
        "# Commands",
        "",
        "This page lists the arguments, options and exit codes of each command. `gitboot COMMAND --help` has details,",
        "defaults and an example. `scripts/reference.py` generates this page. The help explains the",
        "[exit codes](exits.md). Each command also exits with 0 or 64.",
        _GLOSSARY,
        "",
        "## Shared options",
        "",
        "An option means the same in each command that lists it under *Shared*. Every command has `-h`, `--help`.",
        "",
        *(_option_line(each, text) for each, text in shared.items() if each.name not in bundled),
        "",
    ]
    for heading, names in bundles.items():
        found = {each.name: _option_line(each, text) for each, text in shared.items()}
        lines += [f"### {heading}", "", *(found[name] for name in names), ""]
    for command, context in commands:
        level = "#" * min(len(context.command_path.split()), 3)
        lines += [f"{level} {context.command_path}", "", *_command_lines(command, context, shared, bundles), ""]
    return "\n".join(lines)


def _list_commands(group: click.Group, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        shown = click.Context(command, info_name=name, parent=context)
        yield command, shown
        if isinstance(command, click.Group):
            yield from _list_commands(command, shown)


def _list_options(command: click.Command) -> Iterator[click.Option]:
    """Yield the options that the help of a command shows."""
    yield from (each for each in command.params if isinstance(each, click.Option) and not each.hidden)


@cache
def _list_run_options() -> frozenset[tuple[str, str | None]]:
    """Return the names and the texts of the options of `gitboot run`, which have a page of their own."""
    run = cli.get_command(click.Context(cli), "run")
    assert run is not None
    return frozenset((_names(each), each.help) for each in _list_options(run))


def _shared_texts(commands: list[tuple[click.Command, click.Context]]) -> dict[click.Option, str]:
    """Return one option of each name that many commands share, with the text that most of them have."""
    found: dict[str, list[click.Option]] = {}
    for command, context in commands:
        if context.info_name not in _CONFIGURED:
            for each in _list_options(command):
                found.setdefault(_names(each), []).append(each)
    shared = {}
    for options in found.values():
        texts = Counter(map(_common_text, options))
        text, number = texts.most_common(1)[0]
        if number >= _MIN_COMMANDS:
            shared[next(each for each in options if _common_text(each) == text)] = text
    return shared


def _common_text(option: click.Option) -> str:
    """Return the help of an option without the formats, which differ between commands."""
    text = option.help or ""
    return _FORMAT.sub(_FORMAT_TEXT, text)


_FORMAT: Final = re.compile(r"The output format: ([a-z, ]+)\. Repeat the option for several formats\. Default: \w+\.$")
_FORMAT_TEXT: Final = (
    "The output format. The command lists its formats, the default first. With FILE, gitboot writes to that file. "
    "Repeat the option for several formats."
)


def _names(option: click.Option) -> str:
    return ", ".join(sorted((*option.opts, *option.secondary_opts), key=len))


def _option_line(option: click.Option, text: str) -> str:
    value = "" if option.is_flag or option.count else option.make_metavar(click.Context(cli))
    names = f"{_names(option)} {value}".strip()
    return f"- `{names}` {text.removesuffix(' Default: none.')}"


def _command_lines(
    command: click.Command,
    context: click.Context,
    shared: dict[click.Option, str],
    bundles: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    text = (command.help or "").split("\n\n")[0].replace("\n", " ")
    if isinstance(command, click.Group):
        yield text
        return
    pieces = [each for each in command.collect_usage_pieces(context) if each != "[OPTIONS]"]
    codes = sorted({int(each) for each in getattr(command, "exit_codes", ())} - {int(Exit.FINE), int(Exit.USAGE)})
    if pieces:
        yield f"`{' '.join((context.command_path, *pieces))}`"
        yield ""
    yield text + (f" Exits {', '.join(map(str, codes))}." if codes else "")
    options = list(_list_options(command))
    if context.info_name in _CONFIGURED:
        names = " ".join(_names(each) for each in options)
        yield ""
        yield f"[The configuration file](configuration.md#gitboot-{context.info_name}-options) describes its options:"
        yield f"`{names}`."
        return
    texts = {_names(each): text for each, text in shared.items()}
    common = [each for each in options if texts.get(_names(each)) == _common_text(each)]
    of_run = [each for each in options if each not in common and (_names(each), each.help) in _list_run_options()]
    own = [each for each in options if each not in (*common, *of_run)]
    if own:
        yield ""
    for each in own:
        yield _option_line(each, _summarize(each.help or ""))
    if of_run:
        names = " ".join(map(_short_name, of_run))
        yield ""
        yield f"As in [`gitboot run`](configuration.md#gitboot-run-options): `{names}`"
    links = []
    for heading, members in bundles.items():
        if {each.name for each in common} >= {*members}:
            common = [each for each in common if each.name not in members]
            links.append(f"[{heading.lower()}](#{_slug(heading)})")
    if common or links:
        names = " ".join(map(_short_name, common))
        yield ""
        yield "Shared: " + ", ".join([*([f"`{names}`"] if names else []), *links])


def _short_name(option: click.Option) -> str:
    """Return the name of an option in the list of shared options of a command, with its formats."""
    found = _FORMAT.match(option.help or "")
    name = min(option.opts, key=len)
    return f"{name} {found[1].replace(', ', '|')}" if found else name


def _summarize(text: str) -> str:
    """Return the first sentence of a help text, without the details after a colon if the sentence is long."""
    sentence = re.split(r"(?<=\.)\s+(?=[A-Z`]|gitboot )", text, maxsplit=1)[0]
    if len(sentence) <= _MAX_SUMMARY:
        return sentence
    return re.sub(r"^([^:]{25,}):.*|^(.{25,}), (?:for example|such as) [^,]+$", _end_match, sentence)


def _end_match(found: re.Match[str]) -> str:
    return f"{found[1] or found[2]}."


_MAX_SUMMARY: Final = 80  # characters


def configuration_page() -> str:
    lines = [
        "# The configuration file",
        "",
        "This page lists the keys, defaults and variables of `gitboot run` and `gitboot serve`. `scripts/reference.py`",
        "generates this page from the code.",
        "",
        "`gitboot run` and `gitboot serve` read the TOML file that `--config` names:",
        "",
        "```toml",
        'repository = "https://git.example.net/fleet.git"',
        'operators = ["10.20.0.0/16"]',
        "bmc-parallel = 64",
        "```",
        "",
        "Each option of a command is also a key of the file. *Settings* are keys without an option, because",
        "operators rarely change them. An option takes precedence over its variable, and a variable over the file.",
        "gitboot rejects unknown keys. Restart gitboot after a change. `gitboot doctor --config` reads the file of",
        "`gitboot run`.",
        _GLOSSARY,
        "",
        "In a variable, write `true` or `false` for a flag, and separate the items of a list with spaces. Separate two",
        "paths with a colon.",
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
    variables = ", ".join(f"`{each}`{_format_variable(parameter)}" for each in list_variables(parameter))
    cells = (f"`{key}`", _value(parameter), default, variables, text)
    return f"| {' | '.join(each.replace('|', chr(92) + '|') for each in cells)} |"


def _format_variable(parameter: click.Parameter) -> str:
    """Return the format of a variable for a parameter with several values, or "" for a parameter with one value."""
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
        "This page lists the metrics of `/metrics`, with their types and labels.",
        "`scripts/reference.py` generates this page from the code. For alerts and a",
        "dashboard, see [Monitoring](../how-to/monitoring.md).",
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
        "This page describes how gitboot treats the BMCs of each manufacturer.",
        "`scripts/reference.py` generates this page from the table in `gitboot/bmc/redfish/quirks.py`. gitboot prefers",
        "the values that a BMC itself reports (see [BMCs](../how-to/bmcs.md)).",
        _GLOSSARY,
        "",
        "| BMC | recognized by | difference | source |",
        "|---|---|---|---|",
    ]
    for row in QUIRKS:
        known = [f"Manufacturer {name}…" for name in row.manufacturers] + [f"`{path}`" for path in row.systems]
        known += [f"`Oem/{row.oem}`"] if row.oem is not None else []
        lines.append(f"| {row.name} | {', '.join(known)} | {'; '.join(row.differences)} | {row.source} |")
    return "\n".join([*lines, ""])


def exits_page() -> str:
    lines = [
        "# Every exit code",
        "",
        "This page explains what each exit code means.",
        "`scripts/reference.py` generates this page from the table in `gitboot/cli/main.py`. Scripts may rely on these",
        "codes. The help of [each command](commands.md) lists the meanings for that command.",
        _GLOSSARY,
        "",
        "| code | meaning |",
        "|---|---|",
        *(f"| {each.value} | {each.meaning} |" for each in Exit),
    ]
    return "\n".join([*lines, ""])


def conditions_page() -> str:
    """Return every condition with the meaning and the remedy of each reason."""
    lines = [
        "# Every condition",
        "",
        "This page explains what a false condition means and how to resolve it. `scripts/reference.py` generates this",
        "page from `scripts/conditions.toml` and from the remedies in the code.",
        "",
        "A *condition* is false if gitboot waits for something, or if something failed. `gitboot status` prints the",
        "remedy with the actual names, and the API returns the text as `remedy`. Read the whole remedy before you run",
        "a command. If you see a symptom, begin at [Something is wrong](../how-to/something-is-wrong.md).",
        _GLOSSARY,
        "",
    ]
    for kind, about, meanings in _conditions():
        lines += [f"## `{kind}`", "", *([about, ""] if about else [])]
        if meanings:
            lines += ["| reason | meaning | remedy |", "|---|---|---|"]
        for reason, (meaning, remedy) in meanings.items():
            command, comment = _split_remedy(remedy)
            shown = "`" + command.replace("|", "\\|") + "`" + (f"<br>{comment}" if comment else "")
            lines.append(f"| {f'`{reason}`' if reason != 'any' else 'any other'} | {meaning} | {shown} |")
        if meanings:
            lines.append("")
    return "\n".join(lines)


def _conditions() -> Iterator[tuple[str, str, dict[str, tuple[str, str]]]]:
    """Yield each condition type with the text for all reasons, and with the meaning and the remedy by reason."""
    texts = tomllib.loads((ROOT / "scripts" / "conditions.toml").read_text())
    declared = {
        each.name: {"any" if reason == ANY else reason: line for reason, line in each.remedies.items()}
        for each in CONDITIONS.values()
    }
    for kind, reasons in texts.items():
        about = reasons.pop("about", "")
        if reasons.keys() != (remedies := declared.pop(kind, {})).keys():
            raise SystemExit(f"scripts/conditions.toml: {kind} needs the reasons {sorted(remedies)}")
        yield kind, about, {reason: (_end(meaning), remedies[reason]) for reason, meaning in reasons.items()}
    if declared:
        raise SystemExit(f"scripts/conditions.toml: the conditions {sorted(declared)} are missing")


def events_page() -> str:
    """Return every event type with its meaning, its facts, and the condition or the page to read."""
    lines = [
        "# Every event",
        "",
        "This page explains what each event means and which fields it has. `scripts/reference.py` generates this page",
        "from `scripts/events.toml`.",
        "",
        "[`gitboot events`](commands.md#gitboot-events) prints the events of an instance, and each process writes its",
        "events to standard error. An event has the fields `at`, `type` and `message`, and the fields in the table, if",
        "they apply. `level` is `warning` if you should look into the event. In the log, one event with `servers`",
        "replaces the same event of several servers. *Log* marks an event that is only in the log of its process.",
        _GLOSSARY,
        "",
    ]
    conditions = {
        type: name
        for name, each in CONDITIONS.items()
        for type in (each.event, *each.events.values())
        if type is not None
    }
    for title, group in tomllib.loads((ROOT / "scripts" / "events.toml").read_text()).items():
        shared = [f"Fields of each event: {_codes(facts)}."] if (facts := group.pop("facts", [])) else []
        about = " ".join(filter(None, [*shared, group.pop("about", "")]))
        lines += [f"## {title}", "", *([about, ""] if about else [])]
        rows = [["event", "meaning", "fields", "see"], ["---"] * 4]
        for type, event in group.items():
            link = f"[{conditions[type]}](conditions.md#{_slug(conditions[type])})" if type in conditions else ""
            see = ", ".join(filter(None, [link, event.get("see", "")]))
            log = " *Log*" if event.get("log") else ""
            rows.append([f"`{type}`", f"{_end(event['meaning'])}{log}", _codes(event.get("facts", [])), see])
        used = [place for place in range(4) if any(row[place] for row in rows[2:])]
        lines += [f"| {' | '.join(row[place] for place in used)} |" for row in rows]
        lines.append("")
    return "\n".join(lines)


def _codes(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _split_remedy(remedy: str) -> tuple[str, str]:
    """Return the command or setting of a remedy, and its comment as sentences."""
    command, _, comment = remedy.partition("  # ")
    return command, _end(comment[:1].upper() + comment[1:]) if comment else ""


def _end(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


def alerts_file() -> str:
    """Return docs/monitoring/alerts.yml with the expressions, durations and labels of `CONDITIONS`. Keep its texts."""
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


# The help of the page, from pages of the documentation

_HELP_PAGES: Final = (
    "something-is-wrong",
    "stop-everything-now",
    "reinstall-a-server",
    "approve-a-held-commit",
    "roll-back",
    "replace-a-motherboard",
    "switch-power",
    "backup-and-restore",
)
_ITEM: Final = re.compile(r"(?:- |\d+\. )")
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


def help_html() -> str:
    """Return the help of the page: how-to guides and conditions. Each reason of a condition has its own anchor."""
    blocks = [
        block
        for stem in _HELP_PAGES
        for block in _blocks((ROOT / "docs" / "how-to" / f"{stem}.md").read_text().splitlines(), stem)
    ]
    blocks.append('<h2 id="conditions">Conditions</h2>')
    for kind, about, meanings in _conditions():
        blocks.append(f'<h3 id="conditions-{_slug(kind)}">{escape(kind)}</h3>')
        blocks += [f"<p>{_inline(about, 'conditions')}</p>"] if about else []
        blocks += [_section(kind, reason, *texts) for reason, texts in meanings.items()]
    blocks.append('<h2 id="terms">Terms</h2>')
    blocks += (f'<p id="terms-{_slug(term)}">{_inline(meaning, "glossary")}</p>' for term, meaning in _terms())
    return _HEAD + "\n".join(blocks) + "\n" + _TAIL


# Terms of the glossary that headings of the page show, beside those of docs/explanation/concepts.md
_TERMS_OF_THE_PAGE: Final = (
    *("document", "BootImage", "BootPolicy", "BootProfile", "ImageStream", "Maintenance", "pool", "site", "digest"),
    *("provenance", "phase", "transition", "install boot", "one-time boot", "pin", "hold", "rollout", "window"),
    *("provision", "run", "installation steps", "drift", "held, rejected, accepted", "harmless change"),
)


def _terms() -> Iterator[tuple[str, str]]:
    """Yield the core terms and the terms that the page shows, each with its meaning as a sentence."""
    concepts = (ROOT / "docs" / "explanation" / "concepts.md").read_text()
    for sentence, term in re.findall(r"^- ((?:An? |The )?\*\*(.+?)\*\* .+)$", concepts, re.MULTILINE):
        yield term.lower(), sentence
    glossary = (ROOT / "docs" / "reference" / "glossary.md").read_text()
    meanings = dict(re.findall(r"^- \*\*(.+?)\*\*: (.+(?:\n  .+)*)$", glossary, re.MULTILINE))
    for term in _TERMS_OF_THE_PAGE:
        yield term, _end(f"**{term}**: {' '.join(meanings[term].split())}")


def help_script() -> str:
    """Return the meaning of each reason as a script of the page."""
    meanings = {
        kind.partition("/")[0]: {reason: _plain(meaning) for reason, (meaning, _) in reasons.items()}
        for kind, _, reasons in _conditions()
        if reasons
    }
    lines = [
        f"  {json.dumps(kind)}: {json.dumps(reasons, ensure_ascii=False)},"
        for kind, reasons in sorted(meanings.items())
    ]
    made = "// The meaning of each reason of a false condition, from scripts/conditions.toml: scripts/reference.py\n"
    return "\n".join([f'{made}"use strict";\n', "const MEANINGS = {", *lines, "};", ""])


def _plain(text: str) -> str:
    """Return Markdown as a plain sentence with a capital letter."""
    plain = re.sub(r"[*`]", "", re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", text)).strip()
    return _capitalize(plain)


def _capitalize(sentence: str) -> str:
    """Return a sentence with a capital letter, unless it begins with the name gitboot."""
    return sentence if sentence.startswith("gitboot") else sentence[:1].upper() + sentence[1:]


def _blocks(lines: list[str], page: str) -> Iterator[str]:
    """Convert the Markdown of how-to guides: headings, lists, tables, paragraphs and fenced code."""
    rest = list(lines)
    while rest:
        line = rest.pop(0)
        if not line.strip() or line.startswith("<!--"):
            continue
        if line.startswith("```"):
            end = rest.index("```")
            yield f'<pre tabindex="0">{escape(chr(10).join(rest[:end]))}</pre>'
            del rest[: end + 1]
        elif found := re.match(r"(#+) (.+)", line):
            level = min(len(found[1]) + 1, 4)
            anchor = page if level == 2 else f"{page}-{_slug(found[2])}"
            yield f'<h{level} id="{anchor}">{_inline(found[2], page)}</h{level}>'
        elif line.startswith("|"):
            yield _table([line, *_take(rest, lambda each: each.startswith("|"))], page)
        elif _ITEM.match(line):
            more = _take(rest, lambda each: not each or each.startswith(" ") or _ITEM.match(each) is not None)
            yield _list([line, *more], page)
        else:
            more = _take(
                rest, lambda each: bool(each) and not each.startswith(("```", "|", "#")) and not _ITEM.match(each)
            )
            yield f"<p>{_inline(' '.join([line, *more]), page)}</p>"


def _take(lines: list[str], belongs: Callable[[str], bool]) -> list[str]:
    """Remove the first lines that belong together, and return them."""
    taken = list(takewhile(belongs, lines))
    del lines[: len(taken)]
    return taken


def _table(lines: list[str], page: str) -> str:
    cells = [[each.strip() for each in re.split(r"(?<!\\)\|", line.strip("|"))] for line in lines]
    head, body = cells[0], cells[2:]
    parts = ["".join(f"<td>{_inline(each, page)}</td>" for each in row) for row in body]
    heads = "".join(f'<th scope="col">{_inline(each, page)}</th>' for each in head)
    rest = "".join(f"<tr>{part}</tr>" for part in parts)
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rest}</tbody></table>"
    return f'<div class="wide" tabindex="0">{table}</div>'


def _list(lines: list[str], page: str) -> str:
    kind = "ul" if lines[0].startswith("- ") else "ol"
    items: list[list[str]] = []
    for line in lines:
        if _ITEM.match(line):
            items.append([_ITEM.sub("", line, count=1)])
        else:
            items[-1].append(line)
    made = []
    for first, *more in items:
        paragraph = [each.strip() for each in _take(more, lambda each: bool(each.strip()))]
        blocks = list(_blocks([first, *paragraph, *dedent("\n".join(more)).splitlines()], page))
        only = blocks[0].removeprefix("<p>").removesuffix("</p>") if len(blocks) == 1 else "".join(blocks)
        made.append(f"<li>{only}</li>")
    return f"<{kind}>{''.join(made)}</{kind}>"


def _section(kind: str, reason: str, meaning: str, remedy: str) -> str:
    return (
        f'<section id="{kind.partition("/")[0]}-{reason}"><h4>{escape(f"{kind}: {reason}")}</h4>'
        f"<p>{_inline(_capitalize(meaning), 'conditions')}</p>"
        f'<pre tabindex="0">{escape(remedy)}</pre></section>'
    )


def _slug(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _inline(text: str, page: str) -> str:
    """Convert code, emphasis and links. A link to a page that is not in the help becomes text."""

    def link(found: re.Match[str]) -> str:
        path, _, anchor = found[2].partition("#")
        stem = Path(path).stem or page
        if stem not in {*_HELP_PAGES, "conditions"}:
            folder = "docs/reference" if page in ("conditions", "glossary") else "docs/how-to"
            return found[1] if "://" in path else f"{found[1]} ({normpath(f'{folder}/{path}')})"
        return f'<a href="#{stem}{f"-{anchor}" if anchor else ""}">{found[1]}</a>'

    def convert(part: str) -> str:
        part = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", part)
        part = re.sub(r"(?<!\*)\*([^*]+)\*", r"<em>\1</em>", part)
        return re.sub(r"\[([^]]+)\]\(([^)]+)\)", link, part)

    parts = re.split(r"(`[^`]+`)", escape(text.replace("\\|", "|"), quote=False))
    codes = {f"\0{number}\0": f"<code>{part[1:-1]}</code>" for number, part in enumerate(parts) if part[:1] == "`"}
    marked = "".join(f"\0{number}\0" if part[:1] == "`" else part for number, part in enumerate(parts))
    found = convert(marked)
    for mark, code in codes.items():
        found = found.replace(mark, code)
    return found


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
        ("conditions", conditions_page),
        ("events", events_page),
    ):
        yield ROOT / "docs" / "reference" / f"{name}.md", page()
    yield PAGE_FILES / "help.html", help_html()
    yield PAGE_FILES / "help.js", help_script()
    yield ROOT / "docs" / "monitoring" / "alerts.yml", alerts_file()
    for name in CI:
        yield ROOT / "example-repo" / name, build_seed_file(name)


def main() -> int:
    if "--check" in sys.argv[1:]:
        differ = [path.relative_to(ROOT) for path, text in files() if not _has_text(path, text)]
        for path in differ:
            print(f"{path} is out of date: run scripts/reference.py")
        return 1 if differ else 0
    for path, text in files():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


def _has_text(path: Path, text: str) -> bool:
    return path.exists() and path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())
