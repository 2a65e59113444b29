"""The command line: find commands by name, show their help pages, and turn errors into messages and exit codes."""

from __future__ import annotations

import errno
import gc
import re
import signal
import sys
from collections.abc import Mapping, Sequence
from enum import IntEnum
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NoReturn, Self

import click

from gitboot import __version__
from gitboot.child_processes import pause_garbage_collection
from gitboot.errors import (
    AssetError,
    ForgeRefused,
    GitbootError,
    HostUnreachable,
    InvalidRepository,
    LedgerLeft,
    LockedByAnother,
    NotYetDone,
    PublishError,
    RegistryRefused,
    SourceError,
    SourceRefused,
    SourceTooLarge,
    SourceUnavailable,
    StaleDigest,
    UnusableSource,
    UsageError,
)
from gitboot.files import find_path_fault
from gitboot.standard_streams import escape_output, find_output_error
from gitboot.text import format_suggestion

# The commands under each heading of `gitboot --help`. ADR 0064 lists who uses each command, and when. The module of a
# command has the command's name, with underscores for dashes, unless `_MODULES` names another module. The module is
# imported when the command runs.
_GROUPS: Final[dict[str, dict[str, str]]] = {
    "Author a fleet": {
        "new": "Write a document for a new server or image.",
        "validate": "Check a fleet and print each problem with a hint.",
        "plan": "Show what each server boots, now or later.",
        "explain": "Explain a server's boot, a kind or a problem code.",
        "images": "Show each image and the servers that boot it.",
        "update-images": "Propose new image releases for streams.",
        "render": "Write a fleet's boot files to a directory.",
        "secret": "Create age keys, encrypt secrets, and check the keys.",
    },
    "Review a change": {
        "diff": "Show what commits change, and the guards' verdict.",
        "comment": "Post a review as a comment on its pull request.",
        "history": "Show the commits that changed a boot or a document.",
        "rollout": "Raise a rollout's percentage after a step succeeds.",
    },
    "Run": {
        "run": "Follow a repository, serve boots and set overrides.",
        "serve": "Serve the published boot files from this host.",
        "artifacts": "Install boot loaders; download and verify images.",
        "verify-mirror": "Compare a mirror with its signed list or output tree.",
        "read-access-logs": "Read a mirror's access logs and record the fetches.",
    },
    "Operate": {
        "status": "Show conditions, commits and counts.",
        "events": "Print what the instance did.",
        "boot-script": "Print a server's boot script without consuming it.",
        "unknown-machines": "Show machines that no document describes.",
        "reconcile": "Fetch and reconcile now.",
        "approve": "Approve a commit that a guard holds.",
        "suspend": "Stop accepting commits and setting overrides.",
        "resume": "End a suspension.",
        "stop-installs": "Immediately withhold all boots that write to disk.",
        "allow-installs": "Serve install boots again after gitboot stop-installs.",
        "records": "Show and correct the records of what is installed.",
        "ledger": "Show, copy or reclaim the instance's ledger.",
    },
    "BMCs": {
        "bmc": "Find and read BMCs, set overrides, switch power.",
    },
    "Set up": {
        "init": "Write a small fleet to start from.",
        "import": "Generate a fleet from another system's data.",
        "compare-old-system": "Compare the fleet's boots with another system's.",
        "doctor": "Check this host: clock, disks, credentials, loaders.",
        "completion": "Print the shell's completion script.",
    },
}
_COMMANDS: Final = {name: help for group in _GROUPS.values() for name, help in group.items()}
_MODULES: Final = {  # the modules of commands that share a module, or whose module has another name
    "allow-installs": "instance:allow_installs_command",
    "approve": "instance:approve_command",
    "boot-script": "plan:boot_script_command",
    "comment": "diff:comment_command",
    "completion": ".main:command",
    "events": "instance:events_command",
    "explain": "plan:explain_command",
    "import": "import_fleet:command",
    "new": "new:new_command",
    "prepare": "prepare_tree:prepare_subcommand",
    "reconcile": "instance:reconcile_command",
    "records": "provisioning_records:records_command",
    "render": "plan:render_command",
    "resume": "instance:resume_command",
    "rollout": "images:rollout_command",
    "stop-installs": "instance:stop_installs_command",
    "suspend": "instance:suspend_command",
    "unknown-machines": "instance:unknown_machines_command",
    "update-images": "images:update_images_command",
}
_REPLACED: Final = {  # commands of earlier versions, and their replacements
    "assets": "`gitboot artifacts`",
    "entry": "`gitboot boot-script`",
    "hub": "`gitboot status` at each site, or watch all sites with Prometheus (see docs/how-to/monitoring.md)",
    "observe": "`gitboot read-access-logs`",
    "publish": "`gitboot verify-mirror`",
    "schema": "`gitboot explain KIND -o json`",
    "seen": "`gitboot unknown-machines`",
    "start": "`gitboot allow-installs`",
    "stop": "`gitboot stop-installs`",
    "timeline": "`gitboot plan --timeline SERVER`",
    "version": "`gitboot --version`",
}
_REPLACED_OPTIONS: Final = {  # options of earlier versions; the name of a similar option could have another meaning
    "--armed": ("--consumed",),
    "--forge-token": ("--forge KIND=URL TOKEN",),
    "--forward-to": ("--ledger",),
    "--known-hosts": ("--git-ssh",),
    "--not-armed": ("--not-set",),
    "--operators-tls-cert": ("--operators-tls",),
    "--operators-tls-key": ("--operators-tls",),
    "--output": ("--out", "--format"),
    "--records": ("gitboot records begin",),
    "--reference": ("--rev",),
    "--sole-for": ("--ledger",),
    "--spool-tokens": ("--ledger",),
    "--ssh-key": ("--git-ssh",),
}
_INTERNAL_COMMANDS: Final = frozenset({"prepare"})  # commands that only gitboot starts


class _Commands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS and name not in _INTERNAL_COMMANDS:
            return None
        module, _, attribute = _MODULES.get(name, f"{name.replace('-', '_')}:command").partition(":")
        # no garbage collection here, because the objects of imported modules stay in memory
        with pause_garbage_collection():
            command: click.Command = getattr(import_module(f".{module}", "gitboot.cli.commands"), attribute)
            gc.freeze()  # so that the collector does not examine these objects afterwards
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, _COMMANDS))
        for heading, commands in _GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), help) for name, help in commands.items()])

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and name not in _COMMANDS and name not in _INTERNAL_COMMANDS:
            if name in _REPLACED:
                context.fail(f"There is no command {name!r}; use {_REPLACED[name]}")
            hint = format_suggestion(name, _COMMANDS, "`gitboot --help` lists the commands")
            longer_names = [command for command in _COMMANDS if command.startswith(f"{name}-")]
            if longer_names:
                hint = f"did you mean {longer_names[0]}?"
            context.fail(f"There is no command {name!r}; {hint}")
        return super().resolve_command(context, args)


def _print_version(context: click.Context, _: click.Parameter, is_set: bool) -> None:
    if not is_set or context.resilient_parsing:
        return
    import platform

    from gitboot.git.repository import LIBGIT2_VERSION  # imported here, because the library loads slowly

    click.echo(f"gitboot {__version__} (Python {platform.python_version()}, libgit2 {LIBGIT2_VERSION})")
    context.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the versions of gitboot, Python and libgit2, and exit.",
)
def cli() -> None:
    """Decide in Git what bare-metal servers boot.

    A fleet is a Git repository of YAML documents: servers, images, profiles, policies and maintenances. Write a fleet
    with `gitboot init`, check it with `gitboot validate` and `gitboot plan`, and serve it with `gitboot run`.
    """


def program() -> NoReturn:
    """Run the command line as the main program of this process. A child process with resource limits reads commits."""
    from gitboot.cli.evaluator_child import OWN_PROCESS

    escape_output()
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # `gitboot.__main__` sets this
            signal.signal(signal.SIGINT, signal.default_int_handler)
        main(OWN_PROCESS)
    except KeyboardInterrupt:
        sys.exit(Exit.INTERRUPTED)
    except SystemExit as system_exit:
        output_error = find_output_error()
        if output_error:
            click.echo(f"gitboot: cannot write to standard output: {output_error}", err=True)
            sys.exit(system_exit.code or Exit.PARTIAL)
        raise
    finally:
        gc.freeze()  # no garbage collection, because the process ends now


def _suggest_replacement(error: click.UsageError) -> click.UsageError:
    """Return the error. If a user passed an option of an earlier version, suggest the replacement in the message."""
    if not isinstance(error, click.NoSuchOption) or error.option_name not in _REPLACED_OPTIONS or error.ctx is None:
        return error
    known_options = {option for parameter in error.ctx.command.params for option in parameter.opts}
    for replacement in _REPLACED_OPTIONS[error.option_name]:  # an option with its values, or a command
        if replacement.split()[0] in known_options or not replacement.startswith("-"):
            return click.UsageError(f"{error.message} Did you mean '{replacement}'?", error.ctx)
    return error


# The errors of the system that are never faults of gitboot, even without a path. The error of a write has no path.
_DISK_ERRORS: Final = frozenset({errno.EDQUOT, errno.EIO, errno.ENOSPC, errno.EROFS})
# The hints for errors of the system at a path. Other errors are faults of gitboot, whose traceback helps.
_PATH_HINTS: Final = {
    errno.EACCES: "check the permissions of this path and of the folders above it",
    errno.EDQUOT: "free some disk space",
    errno.EIO: "check the disk; the kernel's log may contain the cause",
    errno.EISDIR: "use the path of a file, not of a directory",
    errno.ELOOP: "remove one of the symlinks that form a loop, or use another path",
    errno.ENAMETOOLONG: "use a shorter name",
    errno.ENOSPC: "free some disk space",
    errno.ENOTDIR: "a part of this path is a file: use another path",
    errno.EROFS: "use a path on a disk that gitboot can write",
}


def main(context: object = None) -> NoReturn:
    """Run the command line and exit. If gitboot raises one of its errors, print one message and set the exit code."""
    try:
        code = cli.main(prog_name="gitboot", standalone_mode=False, obj=context)
        sys.exit(code if isinstance(code, int) else Exit.FINE)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.UsageError as error:
        from gitboot.cli.options import add_value_source  # imported here, because the import takes time

        add_value_source(error)
        _suggest_replacement(error).show()
        sys.exit(Exit.USAGE)
    except click.ClickException as error:
        error.show()
        sys.exit(Exit.USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(Exit.INTERRUPTED)
    except OSError as error:
        if str(error.strerror).startswith("No usable temporary directory"):  # from tempfile
            click.echo(f"gitboot: {error.strerror}; set TMPDIR to a directory that gitboot can write", err=True)
        elif isinstance(error.filename, str) and error.errno in _PATH_HINTS:
            click.echo(f"gitboot: {error.filename}: {error.strerror}; {_PATH_HINTS[error.errno]}", err=True)
        elif error.errno in _DISK_ERRORS:
            click.echo(f"gitboot: {error.strerror}; {_PATH_HINTS[error.errno]}", err=True)
        else:
            raise
        sys.exit(Exit.USAGE)
    except GitbootError as error:
        _print_error(error)
        sys.exit(find_exit_code(error))


def _print_error(error: GitbootError) -> None:
    from gitboot.cli.terminal import echo_wrapped  # imported here, because the import takes time

    lines = str(error).split("\n")
    echo_wrapped(f"gitboot: {lines[0]}", err=True, hanging_indent="    ")
    for line in lines[1:]:
        if isinstance(error, InvalidRepository):
            echo_wrapped(line, err=True, hanging_indent="    ")
        else:  # the line may be a command, which people copy, so do not wrap it
            click.echo(f"    {line}", err=True)


class Exit(IntEnum):
    """The exit codes of commands, with the meanings that the reference page shows."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        member = int.__new__(cls, code)
        member._value_, member.meaning = code, meaning
        return member

    FINE = 0, "success"
    FAULT = 1, "gitboot cannot read or write the ledger, or printed a traceback (report the traceback as a bug)"
    CHANGES = 2, "success, and gitboot found differences (`--detailed-exitcode`, `compare-old-system`)"
    INVALID = (
        3,
        "the fleet has errors, no trusted key signed the commit (`--verify`), or the evaluation exceeded a limit",
    )
    HELD = 4, "a guard holds a commit, or a rollout stopped because an installation failed"
    STALE = 5, "the digest does not match the held commit: review the commit again"
    SOURCE = 6, "a repository, a registry, a forge or another host did not respond, or rejected the request"
    SUSPENDED = 7, "the instance is suspended and accepts no commits"
    PARTIAL = (
        8,
        "partial success (the output lists each BMC, file, artifact or copy with a problem), or the instance has "
        "not processed the request yet",
    )
    WAITS = 9, "a rollout is waiting for machines before its next step"
    USAGE = (
        64,
        "an option, an argument, a setting or a path is wrong, gitboot cannot read or write a file, or another process "
        "is using the directory",
    )
    INTERRUPTED = 130, "you pressed Ctrl-C, or answered no"


_EXIT_BY_ERROR: Final[tuple[tuple[type[GitbootError], Exit], ...]] = (
    (InvalidRepository, Exit.INVALID),
    (SourceError, Exit.SOURCE),
    (SourceRefused, Exit.SOURCE),
    (SourceTooLarge, Exit.SOURCE),
    (HostUnreachable, Exit.SOURCE),
    (RegistryRefused, Exit.SOURCE),
    (ForgeRefused, Exit.SOURCE),
    (SourceUnavailable, Exit.SOURCE),
    (UnusableSource, Exit.SOURCE),
    (StaleDigest, Exit.STALE),
    (PublishError, Exit.PARTIAL),
    (NotYetDone, Exit.PARTIAL),
    (AssetError, Exit.PARTIAL),
    (UsageError, Exit.USAGE),
    (LockedByAnother, Exit.USAGE),
    (LedgerLeft, Exit.USAGE),
)


def find_exit_code(error: GitbootError) -> Exit:
    """Return the exit code for an error."""
    for error_type, code in _EXIT_BY_ERROR:
        if isinstance(error, error_type):
            return code
    return Exit.FAULT


Sections = Mapping[str, Sequence[str]]  # parameter names by heading

# The sections of options that many commands share. All other options of a command are in its first section.
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
    "Evaluation limits": ("no_cache", "commit_seconds", "commit_memory", "commit_workers"),
}
# A range in click's notation whose limit is too large to be useful in a help page.
_HUGE_RANGE: Final = re.compile(r"  \[\d+<=?x<=\d{7,}\]$")
_MIN_SHARED: Final = 3  # a section with fewer options does not need a heading


class _CommandWithExample(click.Command):
    """A command or a group whose help page contains an example."""

    def __init__(self, *arguments: Any, example: str = "", **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.example = example

    def format_help_text(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(context, formatter)
        if self.example:
            with formatter.section("Example"):
                for line in self.example.splitlines():
                    formatter.write(f"{'':>{formatter.current_indent}}{line}\n")


class Command(_CommandWithExample):
    """A command whose help page contains an example, option sections and exit codes.

    ``sections`` maps headings to parameter names. Options without a section are in the first section.
    """

    def __init__(
        self,
        *arguments: Any,
        exit_codes: Mapping[int, str] | None = None,
        sections: Sections = SHARED_SECTIONS,
        **attributes: Any,
    ) -> None:
        super().__init__(*arguments, **attributes)
        self.exit_codes = exit_codes or {}
        self.sections = sections

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. Raises `click.BadParameter` for a path that the system can never open."""
        remaining = super().parse_args(context, args)
        for parameter in () if context.resilient_parsing else self.params:
            value = context.params.get(str(parameter.name))
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, Path) and (fault := find_path_fault(each)) is not None:
                    raise click.BadParameter(f"{str(each)!r:.60}: {fault}", context, parameter)
        return remaining

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        # the name and the help text of each option, by the name of the parameter, which several options may set
        records: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
            if record is not None:
                name, text = record
                records.setdefault(str(parameter.name), []).append((name, _HUGE_RANGE.sub("", text)))
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        names_in_sections: set[str] = set()
        for heading, names in self.sections.items():
            known_names = [name for name in names if name in records]
            if len(known_names) >= _MIN_SHARED or heading not in SHARED_SECTIONS:
                sections[heading] = [record for name in known_names for record in records[name]]
                names_in_sections.update(known_names)
        others = (own for name, own in records.items() if name not in names_in_sections)
        sections["Options"] = [record for own in others for record in own]
        for heading, rows in sections.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_epilog(context, formatter)
        if self.exit_codes:
            codes = {Exit.USAGE: "an option or an argument is wrong", **self.exit_codes}
            with formatter.section("Exit codes"):
                formatter.write_dl([(str(int(code)), text) for code, text in sorted(codes.items())])


class Group(_CommandWithExample, click.Group):
    """A command group whose help page contains an example."""

    command_class = Command
    group_class = type

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in self.commands:
            hint = format_suggestion(name, self.commands, f"`{context.command_path} --help` lists the commands")
            context.fail(f"There is no command {name!r}; {hint}")
        return super().resolve_command(context, args)


@click.command(
    cls=Command, example='eval "$(gitboot completion bash)"', exit_codes={Exit.FINE: "gitboot printed the script"}
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the shell's completion script.

    For bash, add this line to ~/.bashrc: eval "$(gitboot completion bash)". For zsh, add the same line with zsh to
    ~/.zshrc, after compinit. For fish, write the output to ~/.config/fish/completions/gitboot.fish. The Debian package
    installs these files.
    """
    from click.shell_completion import get_completion_class

    completion_class = get_completion_class(shell)
    if completion_class is not None:  # this is true for each allowed choice
        click.echo(completion_class(cli, {}, "gitboot", "_GITBOOT_COMPLETE").source())
