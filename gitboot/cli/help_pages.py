"""Help pages: option sections, an example and the exit codes for each command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

Sections = Mapping[str, Sequence[str]]  # parameter names by heading

# The sections of options that many commands share. All other options of a command go into its first section.
SHARED_SECTIONS: Final[Sections] = {
    "Registries and TLS": ("registries", "registry_credentials", "ca_bundle", "allow_token_over_http"),
    "Signatures": ("verify", "allowed_signers", "openpgp_keys", "forge_keys", "reinstalls_need"),
    "Guards": (
        "max_update_percent",
        "max_delete_percent",
        "max_deletes",
        "max_small_group",
        "max_reinstalls",
        "max_installs",
        "max_resets",
    ),
    "Limits of the evaluation": ("no_cache", "commit_seconds", "commit_memory", "commit_workers"),
}
# A range in click's notation whose limit is too large to be useful in a help page.
_HUGE_RANGE: Final = re.compile(r"  \[\d+<=?x<=\d{7,}\]$")
_MIN_SHARED: Final = 3  # a section with fewer options does not need a heading


class _Page:
    """The parts of a help page that commands and groups share."""

    example: str
    exit_codes: Mapping[int, str]
    sections: Sections

    def write_sections(self, records: Mapping[str, tuple[str, str]], formatter: click.HelpFormatter) -> None:
        """Write the options in sections. ``records`` maps each parameter name to the option's name and help text."""
        left = dict(records)
        sections: list[tuple[str, list[tuple[str, str]]]] = []
        for heading, names in self.sections.items():
            found = [left.pop(name) for name in names if name in left]
            if len(found) >= _MIN_SHARED or heading not in SHARED_SECTIONS:
                sections.append((heading, found))
            else:
                left.update((name, records[name]) for name in names if name in records)
        first = [record for name, record in records.items() if name in left]
        for heading, rows in (("Options", first), *sections):
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def write_example(self, formatter: click.HelpFormatter) -> None:
        if self.example:
            with formatter.section("Example"):
                for line in self.example.splitlines():
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")

    def write_exit_codes(self, formatter: click.HelpFormatter) -> None:
        if self.exit_codes:
            from gitboot.cli.main import Exit

            codes = {Exit.USAGE: "an option or an argument is wrong", **self.exit_codes}
            with formatter.section("Exit codes"):
                formatter.write_dl([(str(int(code)), text) for code, text in sorted(codes.items())])


class Command(_Page, click.Command):
    """A command whose help page contains an example, option sections and exit codes.

    ``sections`` maps headings to parameter names. Options without a section are in the first section.
    """

    def __init__(
        self,
        *arguments: Any,
        example: str = "",
        exit_codes: Mapping[int, str] | None = None,
        sections: Sections | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.example, self.exit_codes = example, exit_codes or {}
        self.sections = sections if sections is not None else SHARED_SECTIONS

    def format_help_text(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(context, formatter)
        self.write_example(formatter)

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        records = {}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
            if record is not None:
                records[str(parameter.name)] = record[0], _HUGE_RANGE.sub("", record[1])
        self.write_sections(records, formatter)

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(context, formatter)
        self.write_exit_codes(formatter)


class Group(_Page, click.Group):
    """A command group whose help page contains an example."""

    command_class = Command
    group_class = type

    def __init__(self, *arguments: Any, example: str = "", **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.example, self.exit_codes, self.sections = example, {}, {}

    def format_help_text(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(context, formatter)
        self.write_example(formatter)
