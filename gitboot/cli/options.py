"""Shared options and the configuration file: fleet, revision, state, reasons, time, formats, guards and signatures."""

from __future__ import annotations

import getpass
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from pwd import getpwuid
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource
from msgspec import Struct

from gitboot.errors import UsageError
from gitboot.files import is_directory, write_output_file
from gitboot.fleet.revision import ReinstallsNeed, Verify
from gitboot.model.scalars import Malformed, parse_instant
from gitboot.standard_streams import escape_lines, strip_style, write_verbatim
from gitboot.text import format_names, format_suggestion, parse_duration, printable

if TYPE_CHECKING:
    from gitboot.artifacts.oci import Registries
    from gitboot.controller.instance.settings import TrustSettings
    from gitboot.review.guards import Limits


REFERENCE: Final = "docs/reference/configuration.md"
_CONFIG: Final = "gitboot.config"  # key in the context for the path of the configuration file


class Setting(click.Option):
    """A key in the configuration file that has a GITBOOT_ environment variable but no command line option.

    `--help` and completion omit settings. The parser accepts the name of a setting as an option, so that the error for
    `--bmc-parallel 5` can show the correct line for the configuration file.
    """

    def __init__(self, param_decls: Sequence[str] | None = None, **attributes: Any) -> None:
        super().__init__(param_decls, hidden=True, **attributes)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the value and its source. Raises `click.UsageError` if the setting is on the command line."""
        value, source = super().consume_value(ctx, opts)
        if source is ParameterSource.COMMANDLINE and not ctx.resilient_parsing:
            key = format_key(self)
            is_number = isinstance(self.type, click.types.IntParamType | click.types.FloatParamType)
            as_toml = str(value) if is_number and not self.multiple else json.dumps(value, ensure_ascii=False)
            file: Path | None = ctx.meta.get(_CONFIG)
            place = f"to {file}" if file is not None else "to a file, and pass this file with --config"
            raise click.UsageError(
                f"--{key} is a setting in the configuration file: write {key} = {as_toml} {place}", ctx
            )
        return value, source


def format_key(parameter: click.Parameter) -> str:
    """Return a parameter's key in the configuration file."""
    return max(parameter.opts, key=len).removeprefix("--")


def list_variables(parameter: click.Parameter) -> list[str]:
    """Return a parameter's environment variables. The command must use variables that begin with GITBOOT_."""
    variables = parameter.envvar or f"GITBOOT_{str(parameter.name).upper()}"
    return [variables] if isinstance(variables, str) else list(variables)


def list_keys(command: click.Command) -> dict[str, click.Parameter]:
    """Return the keys that a command accepts in its configuration file, with their parameters."""
    keys: dict[str, click.Parameter] = {}
    for parameter in command.params:
        is_internal = isinstance(parameter, click.Option) and parameter.hidden and not isinstance(parameter, Setting)
        if not is_internal and parameter.name != "config":
            keys.update((option.removeprefix("--"), parameter) for option in parameter.opts)
    return keys


def build_config_option(command_name: str | None) -> Callable[[Command], Command]:
    """Return a --config option.

    With ``command_name``, the configuration file may also contain the keys of that command.
    """

    def read_config(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
        if path is None:
            return None
        own_keys = list_keys(context.command)
        known_keys = dict(own_keys)
        if command_name is not None:
            other_command = import_module(f"gitboot.cli.commands.{command_name}").command
            known_keys = {**list_keys(other_command), **own_keys}
        values = _read_config_file(path, known_keys)
        context.default_map = {own_keys[key].name or key: value for key, value in values.items() if key in own_keys}
        context.meta[_CONFIG] = path
        return path

    return click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        callback=read_config,
        is_eager=True,
        expose_value=False,
        help=f"A TOML file whose keys are options and settings ({REFERENCE}). Default: none.",
    )


# Add --config: a TOML file with the options and settings of the command. The command line and environment variables
# have precedence.
config_option = build_config_option(None)


def _read_config_file(path: Path, known_keys: Mapping[str, click.Parameter]) -> dict[str, Any]:
    """Return the values in a configuration file. Raises `UsageError` for an unknown key or a value of a wrong type."""
    import tomllib  # imported here, because few users have a configuration file

    try:
        values = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path} cannot be read: {reason}") from None
    for key in sorted(values.keys() - known_keys.keys()):
        hint = format_suggestion(key, known_keys, f"it may have {', '.join(sorted(known_keys))}")
        raise UsageError(f"{path}: there is no setting {key!r}; {hint}")
    for key, value in values.items():
        texts = value if isinstance(value, list) else [value]
        if any("\0" in text for text in texts if isinstance(text, str)):
            raise UsageError(f"{path}: {key} contains a NUL character; remove it")
        expected = _describe_expected_type(key, known_keys[key], value)
        if expected is not None:
            raise UsageError(f"{path}: {key} is {json.dumps(value, default=str)}; write {expected}")
    return values


def _describe_expected_type(key: str, parameter: click.Parameter, value: Any) -> str | None:
    """Return the expected type of a parameter if a TOML value has the wrong type, otherwise None.

    click checks the content of the value.
    """
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return None if isinstance(value, bool) else f"{key} = true or {key} = false"
    if parameter.multiple or parameter.nargs != 1:
        is_string_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return None if is_string_list else f'a list of strings: {key} = ["…"]'
    if isinstance(parameter.type, click.types.IntParamType) and isinstance(value, float):
        return "an integer"
    return None if isinstance(value, str | int | float) and not isinstance(value, bool) else "a string or a number"


def _load_inherited_settings(context: click.Context, _: click.Parameter, text: str | None) -> None:
    if text is not None:
        context.default_map = json.loads(text)


# A hidden option with which a process passes its settings to its child processes.
inherited_settings_option = click.option(
    "--settings",
    hidden=True,
    allow_from_autoenv=False,
    callback=_load_inherited_settings,
    is_eager=True,
    expose_value=False,
    help="The settings of the parent process, as JSON by parameter name.",
)


def add_value_source(error: click.UsageError) -> None:
    """Add to the error the configuration key or the environment variable from which the wrong value comes."""
    if not isinstance(error, click.BadParameter) or error.ctx is None or error.param is None or not error.param.name:
        return
    match error.ctx.get_parameter_source(error.param.name):
        case ParameterSource.DEFAULT_MAP:
            error.param_hint = f"{format_key(error.param)} in {error.ctx.meta[_CONFIG]}"
        case ParameterSource.ENVIRONMENT:
            error.param_hint = " or ".join(list_variables(error.param))


Command = TypeVar("Command", bound=Callable[..., Any])

# context settings with which each option also has an environment variable
VARIABLES: Final = {"auto_envvar_prefix": "GITBOOT"}

rev_option = click.option(
    "--rev",
    metavar="REVISION",
    help="The Git revision to read, or WORKTREE for the files in the work tree, committed or not. Default: "
    "WORKTREE in a work tree, HEAD in a bare repository.",
)
_PATH: Final = "gitboot.path"  # key in the context for the fleet in the command's argument
_SUBPATH: Final = "gitboot.subpath"  # key in the context for the folder below the fleet


def _remember_path(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    context.meta[_PATH] = path


def _remember_subpath(context: click.Context, _: click.Parameter, text: str | None) -> None:
    if text is not None:
        from gitboot.git.repository import parse_subpath

        context.meta[_SUBPATH] = parse_subpath(text)


def _resolve_fleet_path(context: click.Context, parameter: click.Parameter, path: Path) -> Path:
    argument: Path | None = context.meta.get(_PATH)
    if argument is not None and context.get_parameter_source(str(parameter.name)) is not ParameterSource.DEFAULT:
        raise UsageError(f"the fleet is specified twice, as {argument} and as --path {path}: remove one of them")
    subpath: str = context.meta.get(_SUBPATH, "")
    if subpath:
        from gitboot.git.repository import check_subpath

        check_subpath(argument or path, subpath)
    return (argument or path) / subpath


def combine_options(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds these options and arguments to a command, in this order."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


# --path and --subpath, for commands whose argument is a part of the fleet and not the fleet.
path_option = combine_options(
    click.option(
        "--path",
        default=".",
        type=click.Path(path_type=Path),
        callback=_resolve_fleet_path,
        help="The fleet: a directory, a Git work tree or a bare repository. Default: the current directory.",
    ),
    click.option(
        "--subpath",
        envvar="GITBOOT_SUBPATH",
        metavar="FOLDER",
        is_eager=True,  # click processes this option before the path, which depends on it
        expose_value=False,
        callback=_remember_subpath,
        help="The folder of the fleet in the repository, for example infra/boot. Default: the root of the repository.",
    ),
)
fleet_options = combine_options(path_option, rev_option)  # the fleet that a command reads
# --subpath with the path as the command's last argument, for commands that choose commits in another way than --rev.
path_argument = combine_options(
    click.argument(
        "fleet",
        metavar="[PATH]",
        required=False,
        type=click.Path(path_type=Path),
        callback=_remember_path,
        is_eager=True,
        expose_value=False,
    ),
    path_option,
)
fleet_argument = combine_options(path_argument, rev_option)


class StateDirectory(click.Path):
    """The state directory of an instance. Users can also set it with an environment variable."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        del param, ctx
        return "Set --state or the variable GITBOOT_STATE to the instance's state directory."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path. If this user may not read the directory, fail with a command for the user who may."""
        if os.path.isdir(value) and not os.access(value, os.R_OK | os.X_OK):
            owner = os.stat(value).st_uid
            with suppress(KeyError):  # the owner has no name on this host
                self.fail(
                    f"You may not read {value}. Use `runuser -u {getpwuid(owner).pw_name} -- gitboot …`", param, ctx
                )
        return super().convert(value, param, ctx)


state_option = click.option(
    "--state",
    required=True,
    type=StateDirectory(),
    help="The state directory of the instance. Default: the variable GITBOOT_STATE.",
)

# For commands that show a fleet, and that can also show the fleet of an instance.
shown_state_option = click.option(
    "--state",
    envvar="GITBOOT_STATE",
    type=click.Path(path_type=Path, file_okay=False),
    help="The state directory of an instance. gitboot shows the commit that the instance has accepted, with the "
    "records of its ledger. With --rev, gitboot shows that commit of the instance's repository. With PATH, --path "
    "or --rev WORKTREE, it shows that fleet with these records. Default: the variable GITBOOT_STATE. If neither is "
    "set, gitboot shows the fleet without records.",
)


def describe_state_variable(context: click.Context) -> str:
    """Return how to read another fleet if the instance comes from the variable GITBOOT_STATE, otherwise ""."""
    if context.get_parameter_source("state") is not ParameterSource.ENVIRONMENT:
        return ""
    return "; the variable GITBOOT_STATE selects this instance: add --path . to read the current directory"


def is_path_named(context: click.Context) -> bool:
    """Return whether the command line names the fleet to read.

    ``--rev WORKTREE`` also names the fleet at the path, because the repository of an instance has no work tree.
    """
    if context.params.get("rev") == "WORKTREE":
        return True
    return context.meta.get(_PATH) is not None or context.get_parameter_source("path") is ParameterSource.COMMANDLINE


def _check_credentials_directory(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and not is_directory(path):
        raise UsageError(
            f"--credentials: the directory {path} does not exist; create it with NAME/username and NAME/password for "
            "each name in bmc.credentials, or remove the option"
        )
    return path


# Texts that serve as placeholders for a reason in examples, without surrounding quotes and brackets.
_PLACEHOLDER_REASONS: Final = frozenset(
    {
        *("comment", "explanation", "fixme", "lorem ipsum", "message", "placeholder", "reason", "reason here"),
        *("some reason", "string", "tbd", "text", "the reason", "todo", "why", "why you do this", "xxx"),
        *("write the reason here", "your reason", "your reason here"),
    }
)
_QUOTES: Final = " \t\r\n'\"`\u00b4\u2018\u2019\u201a\u201c\u201d\u201e\u00ab\u00bb\u2039\u203a"
_BRACKETS: Final = re.compile(r"<[^<>]*>|\{[^{}]*\}")


def check_reason(_: click.Context, parameter: click.Parameter, text: str | None) -> str | None:
    """Return the reason, with bytes that are not UTF-8 as escapes.

    Raises `click.BadParameter` if the reason is empty or a placeholder from an example.
    """
    if text is None:
        return None
    if not text.strip():
        raise click.BadParameter("the reason is empty: write why you are making this change", param=parameter)
    if is_placeholder_reason(text):
        raise click.BadParameter(
            f"{printable(text)} is a placeholder from an example: write why you are making this change, for example "
            "'INC-4711: disk replaced'",
            param=parameter,
        )
    return _escape_surrogates(text)


def _escape_surrogates(text: str) -> str:
    """Return text with surrogates as escapes. Python decodes bytes that are not UTF-8 to surrogates (PEP 383)."""
    return text.encode(errors="backslashreplace").decode()


def is_placeholder_reason(text: str) -> bool:
    """Return whether a reason is a placeholder from an example, such as ``…``, ``TODO`` or ``<reason>``."""
    text = text.strip(_QUOTES)
    if _BRACKETS.fullmatch(text):
        return True
    words = text.strip(f"{_QUOTES}()[]$…?!.:_*-").casefold()
    return not any(map(str.isalnum, words)) or " ".join(re.split(r"[\s_-]+", words)) in _PLACEHOLDER_REASONS


reason_option = click.option(
    "--reason", required=True, callback=check_reason, help="Why you do this. gitboot records the reason with your name."
)
credentials_option = click.option(
    "--credentials",
    type=click.Path(path_type=Path),
    callback=_check_credentials_directory,
    help="The directory with NAME/username and NAME/password for BMCs. Default: none.",
)
secret_keys_option = click.option(
    "--secret-keys",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The file with the age keys that decrypt the secrets of the fleet. `gitboot secret keygen` writes the file. "
    "Without this option, gitboot does not serve secrets.",
)
accept_filesystem_option = click.option(
    "--accept-filesystem",
    "accepted_filesystems",
    envvar="GITBOOT_ACCEPT_FILESYSTEM",
    multiple=True,
    metavar="NAME",
    help="Allow STATE on this type of file system, for example tmpfs, overlay or nfs4, although it may lose data. "
    "Repeat the option for several types.",
)
MAX_SECONDS: Final = 10_000_000  # about 115 days
MAX_MEMORY_MIB: Final = 1_000_000_000
_REPLACED_VARIABLES: Final = {
    "GITBOOT_FORGE_TOKEN": "GITBOOT_FORGE",
    "GITBOOT_FORWARD_TO": "GITBOOT_LEDGER",
    "GITBOOT_KNOWN_HOSTS": "GITBOOT_GIT_SSH",
    "GITBOOT_OPERATORS_TLS_CERT": "GITBOOT_OPERATORS_TLS",
    "GITBOOT_OPERATORS_TLS_KEY": "GITBOOT_OPERATORS_TLS",
    "GITBOOT_OUTPUT": "GITBOOT_OUT",
    "GITBOOT_RECORDS": "gitboot records begin",
    "GITBOOT_REFERENCE": "GITBOOT_REV",
    "GITBOOT_SOLE_FOR": "GITBOOT_LEDGER",
    "GITBOOT_SPOOL_TOKENS": "GITBOOT_LEDGER",
    "GITBOOT_SSH_KEY": "GITBOOT_GIT_SSH",
}


def reject_old_variables() -> None:
    """Raise `UsageError` if an environment variable of an earlier version is set, because gitboot would ignore it."""
    for name, successor in _REPLACED_VARIABLES.items():
        if name in os.environ:
            raise UsageError(f"the environment variable {name} is no longer supported; use {successor}")


class FiniteRange(click.FloatRange):
    """A range of finite numbers. Unlike `click.FloatRange`, this range rejects NaN."""

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> float:
        number: float = super().convert(value, param, context)
        if not math.isfinite(number):
            self.fail(f"expected a finite number, found {value!r}", param, context)
        return number


class InstantType(click.ParamType[datetime]):
    """An RFC 3339 time with a UTC offset, or a duration relative to now.

    A duration without a sign means a time in the future, or in the past if ``is_past`` is set.
    """

    name = "instant"

    def __init__(self, *, is_past: bool = False) -> None:
        self.is_past = is_past

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            duration = parse_duration(value)
            if duration is None:
                return parse_instant(value)
            if self.is_past and value.strip()[0] not in "+-":
                duration = -duration
            return current_second() + duration
        except OverflowError:
            self.fail(f"{value!r} is too long: use a shorter duration, or an absolute time", param, context)
        except Malformed as error:
            relative = f"as a duration {'before' if self.is_past else 'from'} now: 2h, 30m, 1d12h"
            self.fail(f"{error.message}; {error.hint}, or {relative}", param, context)


at_option = click.option(
    "--at",
    type=InstantType(),
    metavar="TIME",
    help="The time to use instead of now: a time with a UTC offset, for example 2026-01-31T08:00:00+01:00, or a "
    "duration from now, for example 2h or -30m.",
)


def current_time() -> datetime:
    """Return the current time with fractions of a second.

    Without the fractions, the time could be before the last event of an instance.
    """
    return datetime.now(UTC)


def current_second() -> datetime:
    """Return the current time in whole seconds, for output that contains a time."""
    return current_time().replace(microsecond=0)


def _build_allowance_options(cls: type[click.Option]) -> Callable[[Command], Command]:
    def build_limit_option(name: str, unit: str, maximum: int, text: str) -> Callable[[Any], Any]:
        envvar = "GITBOOT_" + name.removeprefix("--").replace("-", "_").upper()
        # An integer, even for seconds, because the kernel does not count fractions of a second.
        return click.option(
            name, cls=cls, type=click.IntRange(min=1, max=maximum), metavar=unit, envvar=envvar, help=text
        )

    return combine_options(
        build_limit_option(
            "--commit-seconds",
            "SECONDS",
            MAX_SECONDS,
            "Time limit for evaluating one commit, in whole CPU seconds. Default: 60, plus 6 for every 1,000 files.",
        ),
        build_limit_option(
            "--commit-memory",
            "MIB",
            MAX_MEMORY_MIB,
            "Memory limit for evaluating one commit, in MiB. Default: 1,024, plus 64 for every 1,000 files.",
        ),
        build_limit_option(
            "--commit-workers",
            "NUMBER",
            64,
            "The number of parallel processes that evaluate a commit with 500 or more files. Default: one per CPU, at "
            "most 8.",
        ),
    )


allowance_options = _build_allowance_options(click.Option)
allowance_settings = _build_allowance_options(Setting)
evaluation_options = combine_options(
    click.option("--no-cache", is_flag=True, help="Do not read or write the cache. Compute everything again."),
    allowance_options,
)


def find_user_cache() -> Path | None:
    """Return the cache file in the user's XDG cache directory, or None if the user has no home directory."""
    variable = os.environ.get("XDG_CACHE_HOME", "")
    folder = variable if os.path.isabs(variable) else os.path.expanduser("~/.cache")
    return Path(folder, "gitboot", "cache.sqlite") if os.path.isabs(folder) else None


class OutputOption(Struct, frozen=True):
    """One ``-o FORMAT[=FILE]`` option."""

    format: str
    file: Path | None

    def write(self, text: str) -> None:
        """Write a document, which may be empty, to the file or to standard output."""
        self.write_lines([text.removesuffix("\n")] if text else [])

    def write_lines(self, lines: Iterable[str]) -> None:
        """Write each line as soon as it arrives.

        Escape the lines, except commands for a CI system. In a file, omit colours. An existing file is replaced after
        the last line. Raises `UsageError` if the file cannot be written.
        """
        is_for_ci = self.format in _COMMAND_FORMATS
        if not is_for_ci:
            lines = map(escape_lines, lines)
        if self.file is not None:
            plain_lines = map(strip_style, lines)
            write_output_file(self.file, (f"{line}\n".encode(errors="backslashreplace") for line in plain_lines))
        elif is_for_ci:
            write_verbatim("".join(f"{line}\n" for line in lines))
        else:
            for line in lines:
                click.echo(line)


def write_outputs(outputs: Iterable[OutputOption], **formats: Callable[[], str]) -> None:
    """Write each output in its format, with the function for that format in ``formats``."""
    for output in outputs:
        output.write(formats[output.format]())


def output_option(*formats: str) -> Callable[[Command], Command]:
    """Return a repeatable option -o FORMAT[=FILE]. The first of ``formats`` is the default."""

    def parse_outputs(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[OutputOption, ...]:
        outputs = []
        for value in values or (formats[0],):
            format, _equals, file = value.partition("=")
            if format not in formats:
                raise click.BadParameter(f"{format!r} is none of {', '.join(formats)}")
            outputs.append(OutputOption(format, Path(file) if file else None))
        # A program cannot read two documents in one stream. In contrast, lines for a CI system may be mixed with other
        # output.
        printed = [output.format for output in outputs if output.file is None]
        documents = [format for format in printed if format in _DOCUMENT_FORMATS]
        if len(printed) > 1 and documents:
            printed.remove(documents[0])
            raise click.BadParameter(
                f"{documents[0]} and {format_names(printed)} cannot share standard output: write {documents[0]} to a "
                f"file with {documents[0]}=FILE"
            )
        files = [output.file for output in outputs if output.file is not None]
        for output_file in files:
            if files.count(output_file) > 1:
                raise click.BadParameter(f"two formats write to {output_file}: use a different file for each format")
        return tuple(outputs)

    return click.option(
        "-o",
        "--format",
        "outputs",
        multiple=True,
        callback=parse_outputs,
        metavar="FORMAT[=FILE]",
        help=f"The output format: {', '.join(formats)}. Repeat the option for several formats. Default: {formats[0]}.",
    )


# Formats that a CI system interprets, and whose functions escape the content.
_COMMAND_FORMATS: Final = frozenset({"github"})
_DOCUMENT_FORMATS: Final = frozenset({"json", "yaml", "sarif", "junit"})  # formats that programs read as one document
# A shared option name for commands that send a token.
token_over_http_option = click.option(
    "--allow-token-over-http",
    is_flag=True,
    envvar="GITBOOT_ALLOW_TOKEN_OVER_HTTP",
    help="Also send tokens and passwords to http:// URLs of other machines, although anyone on the network path can "
    "read them. Default: only to https:// URLs and to this machine.",
)
registry_options = combine_options(
    click.option(
        "--registries",
        multiple=True,
        metavar="HOST[/NAME]",
        envvar="GITBOOT_REGISTRIES",
        help="An OCI registry, or a part of one, that gitboot may read. * and ? are wildcards. Write http:// in front "
        "of a registry without TLS. Repeat the option for several registries. Default: none.",
    ),
    click.option(
        "--registry-credentials",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="GITBOOT_REGISTRY_CREDENTIALS",
        help="A file with credentials for registries, as written by `podman login --authfile`. Default: none.",
    ),
    click.option(
        "--ca-bundle",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar="GITBOOT_CA_BUNDLE",
        help="A PEM file with certificate authorities to trust in addition to those of this machine. Default: none.",
    ),
    token_over_http_option,
)


def open_registries(
    registries: tuple[str, ...],
    registry_credentials: Path | None,
    ca_bundle: Path | None,
    *,
    allow_token_over_http: bool,
) -> Registries:
    """Return the registries that a command may contact according to its registry options.

    Raises `UsageError` if an option is not valid.
    """
    from gitboot.artifacts.oci import AllowedRegistry, Registries, RegistryCredentials
    from gitboot.http_client import HttpClient

    allowed = [AllowedRegistry.parse(each) for each in registries]
    credentials = RegistryCredentials(registry_credentials) if registry_credentials is not None else None
    if credentials is not None:
        credentials.check()
    client = HttpClient(ca_bundle=ca_bundle, allow_token_over_http=allow_token_over_http)
    return Registries(allowed, client, credentials)


def format_path_prefix(path: Path) -> str:
    """Return the prefix that turns a path within the fleet into a path relative to the current directory."""
    return "" if path == Path() or (path.is_absolute() and not path.is_dir()) else f"{path}/"


selector_option = click.option(
    "-l", "--selector", metavar="SELECTOR", help="Only servers with these labels, for example role=web,site!=fra1."
)
LIMIT_HELP: Final = {
    "max_update_percent": "The percentage of servers that a commit may change, in the fleet, in each site and in each "
    "role. Default: 30.",
    "max_delete_percent": "The percentage of servers that a commit may remove, in the fleet, in each site and in each "
    "role. Default: 10.",
    "max_deletes": "The number of servers that a commit may remove. Default: 25.",
    "max_small_group": "The number of servers that a commit may change or remove in a fleet, site or role with fewer "
    "than 10 servers. This number replaces the percentages there. Default: 3.",
    "max_reinstalls": "The number of servers that a commit may reinstall. With 0, someone must acknowledge each "
    "reinstallation. Default: 0.",
    "max_installs": "The number of new servers that a commit may install. Default: 50.",
    "max_resets": "The number of running servers that a commit's maintenances may reset. Default: 50.",
}


def _build_limit_options(cls: type[click.Option]) -> Callable[[Command], Command]:
    return combine_options(
        *(
            click.option(
                f"--{name.replace('_', '-')}", name, cls=cls, type=click.IntRange(min=0), metavar="N", help=text
            )
            for name, text in LIMIT_HELP.items()
        )
    )


limit_options = _build_limit_options(click.Option)
limit_settings = _build_limit_options(Setting)


def build_limits(values: Mapping[str, int | None], **allowed: bool) -> Limits:
    """Return the limits of the guards. If a value is None, use the default.

    ``allowed`` contains the values of --allow-empty, --allow-rewind and --allow-takeover.
    """
    from gitboot.review.guards import Limits

    numbers: dict[str, Any] = {name: limit for name, limit in values.items() if limit is not None}
    return Limits(**numbers, **allowed)


trust_options = combine_options(  # the options for trusted commits and acknowledgements
    click.option(
        "--verify",
        metavar="head|range|tag",
        type=click.Choice([str(each) for each in Verify]),
        help="Require the signature of a trusted key on the newest commit (head), on each commit of the branch since "
        "the accepted commit (range), or on the tag that --rev names (tag). Default: no signature is required.",
    ),
    click.option(
        "--allowed-signers",
        type=click.Path(path_type=Path),
        help="A file with the SSH keys of people, in the allowed_signers format of OpenSSH. gitboot reads the file "
        "again when it changes.",
    ),
    click.option(
        "--openpgp-keys",
        type=click.Path(path_type=Path),
        help="The OpenPGP public keys of people: a file, or a directory of files. gitboot reads the files again "
        "when they change.",
    ),
    click.option(
        "--forge-key",
        "forge_keys",
        envvar="GITBOOT_FORGE_KEY",
        metavar="NAME=FILE",
        multiple=True,
        help="The public key (OpenPGP or SSH) with which a forge signs merge commits. gitboot accepts the key for "
        "merge commits only. Repeat the option for several keys.",
    ),
    click.option(
        "--reinstalls-need",
        metavar="approve|signed",
        type=click.Choice([str(each) for each in ReinstallsNeed]),
        help="How a person can acknowledge a reinstallation: only with `gitboot approve` (approve), or also with a "
        "Gitboot-Ack line in a commit that the person signed with a trusted key (signed). Default: also with a "
        "Gitboot-Ack line in an unsigned commit.",
    ),
)
TRUST_PARAMETERS: Final = ("verify", "allowed_signers", "openpgp_keys", "forge_keys", "reinstalls_need")


def parse_trust_settings(
    *,
    verify: str | None,
    allowed_signers: Path | None,
    openpgp_keys: Path | None,
    forge_keys: tuple[str, ...],
    reinstalls_need: str | None,
) -> TrustSettings:
    """Return the signature options as trust settings. Raises `UsageError` if the options contradict each other."""
    from gitboot.controller.instance.settings import TrustSettings
    from gitboot.git.signatures import TrustedKeys

    named_keys = []
    for text in forge_keys:
        name, _, path = text.partition("=")
        if not (name and path):
            raise UsageError(f"--forge-key {text}: expected NAME=FILE, as in GitHub=/etc/gitboot/web-flow.gpg")
        named_keys.append((name, Path(path)))
    keys = TrustedKeys(allowed_signers=allowed_signers, openpgp_keys=openpgp_keys, forge_keys=tuple(named_keys))
    need = ReinstallsNeed(reinstalls_need) if reinstalls_need is not None else None
    if verify is not None and not keys.has_keys:
        raise UsageError(f"--verify {verify} needs keys: --allowed-signers, --openpgp-keys or --forge-key")
    if need is ReinstallsNeed.SIGNED and not keys.has_personal_keys:
        raise UsageError("--reinstalls-need signed needs keys of people: --allowed-signers or --openpgp-keys")
    return TrustSettings(verify=Verify(verify) if verify is not None else None, keys=keys, reinstalls_need=need)


def read_operator_name() -> str:
    """Return the name of the current user.

    If the user has no name, for example in a container, return a text such as ``uid 65532``.
    """
    try:
        return _escape_surrogates(getpass.getuser())
    except (KeyError, OSError):  # KeyError, or OSError since Python 3.13
        return f"uid {os.getuid()}"
