"""The command line: argv, environment and clock in, exit codes out; one module a command."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Final, NoReturn

import click

from gitboot import __version__
from gitboot.cli.exit import Exit, exit_of
from gitboot.cli.output import outlive_readers, why_lost
from gitboot.errors import GitbootError
from gitboot.phrases import did_you_mean

# In the order in which a newcomer meets them; modules are imported when their command runs.
_COMMANDS: Final = {
    "init": "Write a small fleet repository to begin with.",
    "new": "Write the document of a machine that nobody has described yet.",
    "import": "Write what another system knows as a fleet in which nothing installs.",
    "compare-old-system": "Show what differs between another system's answers and gitboot's.",
    "validate": "Check a fleet repository: every problem, with its place and its hint.",
    "plan": "Show what each server boots, now or at another time, and when that changes.",
    "explain": "Explain why a server boots what it boots, the fields of a kind, or a problem's code.",
    "history": "Show the commits that changed what is decided for a server.",
    "images": "Show each image and stream: who boots it, who stays behind and why, who is next.",
    "rollout": "Take a rollout on, once its machines have proven the present step.",
    "diff": "Show what a range of commits changes, for whom, and whether a guard holds it.",
    "artifacts": "Place and verify what machines fetch besides the boot files.",
    "render": "Write the whole tree of boot files into a directory.",
    "run": "Watch a repository and publish, serve and set what its servers boot.",
    "verify-mirror": "Compare a mirror with the published tree.",
    "serve": "Serve a published tree, in as many processes as wanted.",
    "boot-script": "Print what a server's loaders are given, without spending it.",
    "read-access-logs": "Read what machines fetched from a mirror in its access log.",
    "unknown-machines": "Show the machines that asked for a boot and that no document describes.",
    "status": "Show a running instance at a glance.",
    "events": "Print what an instance did, as JSON lines.",
    "reconcile": "Let a running instance fetch and pass now.",
    "approve": "Let a held commit pass, for a reason.",
    "suspend": "Accept and set nothing for a while, for a reason.",
    "resume": "End a suspension.",
    "stop-installs": "Offer no boot that writes disks, at once, for a reason.",
    "allow-installs": "Offer again what was stopped.",
    "records": "Show or say what is known of provisioning.",
    "comment": "Show a review as one comment of its pull request.",
    "bmc": "Find BMCs; look at boot overrides, or see to them by hand.",
    "secret": "Make keys, encrypt secrets to them, and look whether they open a fleet's.",
    "ledger": "Show where an instance's ledger is, and copy it to a file or a PostgreSQL.",
    "doctor": "Look at what an instance needs around it: clock, disks, credentials, loaders.",
    "completion": "Print what lets a shell complete commands and options.",
}
_REPLACED: Final = {  # what 0.1.0 had, and what to type now
    "assets": "gitboot artifacts",
    "observe": "gitboot read-access-logs",
    "schema": "gitboot explain KIND -o json",
    "timeline": "gitboot plan --timeline SERVER",
    "version": "gitboot --version",
}
_OWN: Final = frozenset({"prepare"})  # that gitboot starts, and nobody types


class _Commands(click.Group):
    """The commands by name, each imported when it is needed."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS and name not in _OWN:
            return None
        command: click.Command = import_module(f"gitboot.cli.{name.replace('-', '_')}").command
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else ""
        if name and name not in _COMMANDS and name not in _OWN:
            if name in _REPLACED:
                context.fail(f"There is no command {name!r}; type `{_REPLACED[name]}`")
            context.fail(f"There is no command {name!r}; {did_you_mean(name, _COMMANDS, 'gitboot --help lists them')}")
        return super().resolve_command(context, args)


def _print_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Print the versions of gitboot, Python and libgit2, and exit."""
    if not is_asked or context.resilient_parsing:
        return
    import platform

    from gitboot.source import LIBGIT2_VERSION  # a library that few commands need before they run

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
    """What bare-metal servers boot, decided in Git.

    A fleet repository says in YAML which server boots which image, how, and when something else.
    Begin with `gitboot init`, and with `gitboot validate` and `gitboot plan` in what it wrote; `gitboot run` does
    what it says.
    """


def program() -> NoReturn:
    """The process that a user starts: what it reads of a commit is read by a child, within limits."""
    from gitboot.cli.bounded import PROGRAM

    # No other package has a say in what is valid; to look for one that wants it would take 30 ms of each process.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    outlive_readers()
    try:
        main(PROGRAM)
    except SystemExit as ended:
        if why := why_lost():
            click.echo(f"gitboot: standard output cannot be written: {why}", err=True)
            sys.exit(ended.code or Exit.PARTIAL)
        raise


def main(context: object = None) -> NoReturn:
    """Run the command line and exit; errors raised on purpose become one message and a code."""
    try:
        code = cli.main(prog_name="gitboot", standalone_mode=False, obj=context)
        sys.exit(code if isinstance(code, int) else Exit.FINE)
    except click.exceptions.Exit as error:
        sys.exit(error.exit_code)
    except click.UsageError as error:
        from gitboot.cli.configuration import name_source  # only here: it takes its time

        name_source(error)
        error.show()
        sys.exit(Exit.USAGE)
    except click.ClickException as error:
        error.show()
        sys.exit(Exit.USAGE)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(Exit.INTERRUPTED)
    except GitbootError as error:
        click.echo(f"gitboot: {error}", err=True)
        sys.exit(exit_of(error))
