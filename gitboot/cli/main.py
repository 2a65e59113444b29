"""The command line: commands by name, errors as messages and exit codes."""

from __future__ import annotations

import gc
import sys
from enum import IntEnum
from importlib import import_module
from typing import Final, NoReturn, Self

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
    StaleDigest,
    UsageError,
)
from gitboot.standard_streams import find_output_error, guard_output
from gitboot.text import did_you_mean

# By heading of `gitboot --help`. ADR 0065 has the user and the occasion of each. The module of a command has the
# command's name, with underscores for dashes, if `_HOMES` has no other; it is imported when the command runs.
_GROUPS: Final[dict[str, dict[str, str]]] = {
    "Write a fleet": {
        "init": "Write a small fleet to start from.",
        "new": "Write the document of a new server.",
        "import": "Write a fleet from the data of another system.",
        "compare-old-system": "Compare what another system boots with the fleet.",
        "secret": "Create keys, encrypt secrets, and check the keys.",
        "validate": "Check a fleet and print each problem with a hint.",
    },
    "Plan and review": {
        "plan": "Show what each server boots, now or later.",
        "explain": "Explain a server's boot, a kind or a problem code.",
        "history": "Show the commits that changed a server's boot.",
        "images": "Show each image, and the servers that boot it.",
        "render": "Write all boot files into a directory.",
        "diff": "Show what commits change, and the guards' verdict.",
        "comment": "Post a review as a comment on its pull request.",
        "rollout": "Raise a rollout's percentage after its step succeeded.",
    },
    "Run": {
        "run": "Follow a repository; publish, serve and set BMCs.",
        "serve": "Serve the published boot files from this host.",
        "artifacts": "Place boot loaders; download and verify images.",
        "verify-mirror": "Compare a mirror with its signed list or the tree.",
        "read-access-logs": "Read what machines fetched from a mirror.",
        "doctor": "Check this host: clock, disks, credentials, loaders.",
    },
    "Operate a running instance": {
        "status": "Show conditions, commits and counts.",
        "events": "Print what the instance did.",
        "boot-script": "Print a server's boot script; no boot is used up.",
        "unknown-machines": "Show machines that no document describes.",
        "reconcile": "Fetch and reconcile now.",
        "approve": "Let a commit through that a guard holds.",
        "suspend": "Accept no commits and set no BMCs for a while.",
        "resume": "End a suspension.",
        "stop-installs": "Withhold all boots that write a disk, at once.",
        "allow-installs": "End stop-installs.",
        "records": "Show and correct what is recorded as installed.",
        "bmc": "Find, read and set BMCs; switch machines on or off.",
        "ledger": "Show, copy or reclaim the instance's ledger.",
    },
    "Shell": {
        "completion": "Print the shell's completion script.",
    },
}
_COMMANDS: Final = {name: help for group in _GROUPS.values() for name, help in group.items()}
_HOMES: Final = {  # commands that share a module, or whose module has another name
    "allow-installs": "instance_control:allow_installs_command",
    "approve": "instance_control:approve_command",
    "boot-script": "plan:boot_script_command",
    "comment": "diff_and_comment:comment_command",
    "completion": ".main:command",
    "diff": "diff_and_comment:command",
    "events": "status:events_command",
    "import": "import_:command",
    "new": "new_server:new_command",
    "prepare": "prepare_tree:prepare_subcommand",
    "reconcile": "instance_control:reconcile_command",
    "records": "provisioning_records:records_command",
    "render": "plan:render_command",
    "resume": "instance_control:resume_command",
    "stop-installs": "instance_control:stop_installs_command",
    "suspend": "instance_control:suspend_command",
    "unknown-machines": "status:unknown_machines_command",
}
_REPLACED: Final = {  # what earlier versions had, and what to type now
    "assets": "gitboot artifacts",
    "entry": "gitboot boot-script",
    "hub": "gitboot status` at each site, or watch all sites with Prometheus; see `docs/monitoring.md",
    "observe": "gitboot read-access-logs",
    "publish": "gitboot verify-mirror",
    "schema": "gitboot explain KIND -o json",
    "seen": "gitboot unknown-machines",
    "start": "gitboot allow-installs",
    "stop": "gitboot stop-installs",
    "timeline": "gitboot plan --timeline SERVER",
    "version": "gitboot --version",
}
_REPLACED_OPTIONS: Final = {  # what earlier versions had; to replace one by a near name could mean another thing
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
_OWN: Final = frozenset({"prepare"})  # that gitboot starts, and nobody types


class _Commands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS and name not in _OWN:
            return None
        module, _, attribute = _HOMES.get(name, f"{name.replace('-', '_')}:command").partition(":")
        with pause_garbage_collection():  # what modules make stays
            command: click.Command = getattr(import_module(f".{module}", "gitboot.cli.commands"), attribute)
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
        if name and name not in _COMMANDS and name not in _OWN:
            if name in _REPLACED:
                context.fail(f"There is no command {name!r}; type `{_REPLACED[name]}`")
            longer = next((each for each in _COMMANDS if each.startswith(f"{name}-")), None)
            hint = f"did you mean {longer}?" if longer else did_you_mean(name, _COMMANDS, "gitboot --help lists them")
            context.fail(f"There is no command {name!r}; {hint}")
        return super().resolve_command(context, args)


def _print_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    if not is_asked or context.resilient_parsing:
        return
    import platform

    from gitboot.git.repository import LIBGIT2_VERSION  # its library takes time to load

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

    A fleet is a Git repository of YAML documents: servers, images, profiles, policies and maintenances. Start with
    `gitboot init`, check the fleet with `gitboot validate` and `gitboot plan`, and serve it with `gitboot run`.
    """


def program() -> NoReturn:
    """The process that a user starts: what it reads of a commit is read by a child, within limits."""
    from gitboot.cli.evaluator_child import OWN_PROCESS

    guard_output()
    try:
        main(OWN_PROCESS)
    except SystemExit as ended:
        if why := find_output_error():
            click.echo(f"gitboot: standard output cannot be written: {why}", err=True)
            sys.exit(ended.code or Exit.PARTIAL)
        raise
    finally:
        gc.freeze()  # the memory goes with the process: to look through it for garbage first would take time


def _suggest_replacement(error: click.UsageError) -> click.UsageError:
    """Return the error, which for an option of an earlier version names what replaces the option."""
    if not isinstance(error, click.NoSuchOption) or error.option_name not in _REPLACED_OPTIONS or error.ctx is None:
        return error
    known = {option for parameter in error.ctx.command.params for option in parameter.opts}
    for each in _REPLACED_OPTIONS[error.option_name]:
        if each.split()[0] in known or not each.startswith("-"):
            return click.UsageError(f"{error.message} Did you mean '{each}'?", error.ctx)
    return error


def main(context: object = None) -> NoReturn:
    """Run the command line and exit; errors raised on purpose become one message and a code."""
    try:
        code = cli.main(prog_name="gitboot", standalone_mode=False, obj=context)
        sys.exit(code if isinstance(code, int) else Exit.FINE)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.UsageError as error:
        from gitboot.cli.options import name_value_source  # only here: it takes its time

        name_value_source(error)
        _suggest_replacement(error).show()
        sys.exit(Exit.USAGE)
    except click.ClickException as error:
        error.show()
        sys.exit(Exit.USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(Exit.INTERRUPTED)
    except GitbootError as error:
        first, *others = str(error).split("\n")
        lines = others if isinstance(error, InvalidRepository) else [f"    {line}" for line in others]
        click.echo("\n".join([f"gitboot: {first}", *lines]), err=True)
        sys.exit(find_exit_code(error))


class Exit(IntEnum):
    """What a command ends with; ``meaning`` says it in words, and who is to act."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Self:
        made = int.__new__(cls, code)
        made._value_, made.meaning = code, meaning
        return made

    FINE = 0, "all that was asked for is done, or shown"
    FAULT = 1, "a ledger that cannot be read; or a fault of gitboot's own: please report it, with the traceback"
    CHANGES = 2, "something differs, where that was asked for (`--detailed-exitcode`, `compare-old-system`)"
    INVALID = (
        3,
        "the repository has errors: correct them at the places that are named; or no trusted key signed the commit "
        "(`--verify`); or the evaluation of the commit did not end",
    )
    HELD = (
        4,
        "a guard holds a commit until it is acknowledged; a rollout is stopped by a machine on which installing failed",
    )
    STALE = 5, "the digest that was given is not that of the commit that is held: look at it again"
    SOURCE = 6, "a repository, a registry, a forge or another host did not answer, or refused; or a signature is wrong"
    SUSPENDED = 7, "the instance is suspended: no commit is accepted"
    PARTIAL = (
        8,
        "only in part: some BMC, file, artifact or copy is not as it is to be, and the output says which; or the "
        "instance has not taken up yet what it was asked for",
    )
    WAITS = 9, "a rollout's next step waits for machines"
    USAGE = (
        64,
        "what was typed: an option, a name or labels that nothing has, a path, settings, a directory in use",
    )
    INTERRUPTED = 130, "somebody has ended it with Ctrl-C, or said no"


_EXIT_BY_ERROR: Final[tuple[tuple[type[GitbootError], Exit], ...]] = (
    (InvalidRepository, Exit.INVALID),
    (SourceError, Exit.SOURCE),
    (SourceRefused, Exit.SOURCE),
    (SourceTooLarge, Exit.SOURCE),
    (HostUnreachable, Exit.SOURCE),
    (RegistryRefused, Exit.SOURCE),
    (ForgeRefused, Exit.SOURCE),
    (StaleDigest, Exit.STALE),
    (PublishError, Exit.PARTIAL),
    (NotYetDone, Exit.PARTIAL),
    (AssetError, Exit.PARTIAL),
    (UsageError, Exit.USAGE),
    (LockedByAnother, Exit.USAGE),
    (LedgerLeft, Exit.USAGE),
)


def find_exit_code(error: GitbootError) -> Exit:
    """The code that an error ends the command with."""
    return next((code for kind, code in _EXIT_BY_ERROR if isinstance(error, kind)), Exit.FAULT)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print what lets SHELL complete commands and options; the Debian package has it already.

    For bash, in ~/.bashrc: eval "$(gitboot completion bash)"; for zsh the same in ~/.zshrc, after compinit; for fish:
    gitboot completion fish > ~/.config/fish/completions/gitboot.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is not None:  # as each of the choices is
        click.echo(kind(cli, {}, "gitboot", "_GITBOOT_COMPLETE").source())
