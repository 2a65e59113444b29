"""The configuration file: its option --config, its keys and settings, and errors that name the source of a value."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from gitboot.errors import UsageError
from gitboot.text import format_suggestion

Command = TypeVar("Command", bound=Callable[..., Any])

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
