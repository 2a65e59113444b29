"""The configuration file of `--config`: its keys, the settings that only the file and variables set, and its errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from gitboot.errors import UsageError
from gitboot.text import did_you_mean

Command = TypeVar("Command", bound=Callable[..., Any])

REFERENCE: Final = "docs/reference/configuration.md"
_CONFIG: Final = "gitboot.config"  # in a context: the path of the configuration file


class Setting(click.Option):
    """A key of the configuration file, with a GITBOOT_ variable and without a command line option.

    `--help` and completion leave a setting out. The parser accepts the setting's name, so that the error for
    `--bmc-parallel 5` can show the line to write.
    """

    def __init__(self, param_decls: Sequence[str] | None = None, **attributes: Any) -> None:
        super().__init__(param_decls, hidden=True, **attributes)

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        """Return the value and its source; raise `click.UsageError` if the command line has the setting."""
        value, source = super().consume_value(ctx, opts)
        if source is ParameterSource.COMMANDLINE and not ctx.resilient_parsing:
            key = key_of(self)
            file: Path | None = ctx.meta.get(_CONFIG)
            where = f"{file}" if file is not None else "a file and name it with --config"
            is_number = isinstance(self.type, click.types.IntParamType | click.types.FloatParamType)
            as_toml = str(value) if is_number and not self.multiple else json.dumps(value, ensure_ascii=False)
            raise click.UsageError(
                f"--{key} is a setting of the configuration file: write {key} = {as_toml} to {where}", ctx
            )
        return value, source


def key_of(parameter: click.Parameter) -> str:
    """Return the key of a parameter in the configuration file."""
    return max(parameter.opts, key=len).removeprefix("--")


def variables_of(parameter: click.Parameter) -> list[str]:
    """Return the environment variables of a parameter of a command whose variables begin with GITBOOT_."""
    variables = parameter.envvar or f"GITBOOT_{str(parameter.name).upper()}"
    return [variables] if isinstance(variables, str) else list(variables)


def keys_of(command: click.Command) -> dict[str, click.Parameter]:
    """Return the keys that a command's configuration file may have, with their parameters."""
    found: dict[str, click.Parameter] = {}
    for parameter in command.params:
        is_internal = isinstance(parameter, click.Option) and parameter.hidden and not isinstance(parameter, Setting)
        if not is_internal and parameter.name != "config":
            found.update((option.removeprefix("--"), parameter) for option in parameter.opts)
    return found


def config_of(other: str | None) -> Callable[[Command], Command]:
    """Add --config to a command that needs some keys of the configuration file of the command ``other``."""

    def read(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
        if path is None:
            return None
        keys = keys_of(context.command)
        known = {**(keys_of(import_module(f"gitboot.cli.commands.{other}").command) if other else {}), **keys}
        import tomllib  # few give one

        try:
            given = tomllib.loads(path.read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise UsageError(f"{path} cannot be read: {why}") from None
        for key in sorted(given.keys() - known.keys()):
            hint = did_you_mean(key, known, f"it may have {', '.join(sorted(known))}")
            raise UsageError(f"{path}: there is no setting {key!r}; {hint}")
        for key, value in given.items():
            if (expected := _expected(key, known[key], value)) is not None:
                raise UsageError(f"{path}: {key} is {json.dumps(value, default=str)}; write {expected}")
        context.default_map = {keys[key].name or key: value for key, value in given.items() if key in keys}
        context.meta[_CONFIG] = path
        return path

    return click.option(
        "--config",
        type=click.Path(path_type=Path, dir_okay=False),
        callback=read,
        is_eager=True,
        expose_value=False,
        help=f"A TOML file with options and settings as keys ({REFERENCE}). Default: none.",
    )


# Add --config: a TOML file with the options and settings of the command. The command line and variables win over it.
config_option = config_of(None)


def _expected(key: str, parameter: click.Parameter, value: Any) -> str | None:
    """Return what to write if the TOML type of a value cannot be that of the parameter; click checks the value."""
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return None if isinstance(value, bool) else f"{key} = true or {key} = false"
    if parameter.multiple or parameter.nargs != 1:
        fits = isinstance(value, list) and all(isinstance(each, str) for each in value)
        return None if fits else f'a list of strings: {key} = ["…"]'
    if isinstance(parameter.type, click.types.IntParamType) and isinstance(value, float):
        return "an integer"
    return None if isinstance(value, str | int | float) and not isinstance(value, bool) else "one string or one number"


def _read_handed(context: click.Context, _: click.Parameter, text: str | None) -> None:
    if text is not None:
        context.default_map = json.loads(text)


# The hidden option by which a process hands its settings to the processes that it starts.
handed_settings = click.option(
    "--settings",
    hidden=True,
    allow_from_autoenv=False,
    callback=_read_handed,
    is_eager=True,
    expose_value=False,
    help="The settings of the process that started this one, as JSON by parameter name.",
)


def name_source(error: click.UsageError) -> None:
    """Make the error for a wrong value name the key of the configuration file, or the variable, that has the value."""
    if not isinstance(error, click.BadParameter) or error.ctx is None or error.param is None or not error.param.name:
        return
    match error.ctx.get_parameter_source(error.param.name):
        case ParameterSource.DEFAULT_MAP:
            error.param_hint = f"{key_of(error.param)} in {error.ctx.meta[_CONFIG]}"
        case ParameterSource.ENVIRONMENT:
            error.param_hint = " or ".join(variables_of(error.param))
