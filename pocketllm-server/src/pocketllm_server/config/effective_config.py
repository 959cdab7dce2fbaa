"""``--print-config``: each effective value and where it came from, as TOML that ``--config`` takes back."""

from __future__ import annotations

import os
from typing import Any

import click
from click.core import ParameterSource

from pocketllm.cli.engine_options import EngineOption
from pocketllm.engine_args import EngineArgs
from pocketllm.engine_env import ENGINE_ENVIRONMENT, read_engine_environment
from pocketllm_server.config.config_file import BACKEND_OPTIONS, ConfiguredCommand, origins_of, toml_text

# Shown to nobody: what is printed ends up in tickets and logs.
_SECRETS = frozenset({"api_key", "ssl_keyfile_password"})


def effective_config(ctx: click.Context, args: EngineArgs) -> str:
    """The text for the command that ``ctx`` has parsed; ``args`` are its engine arguments."""
    assert isinstance(ctx.command, ConfiguredCommand)
    lines = ["# Effective configuration. Comments say where a value came from; `--config FILE` takes this text back."]
    for key, option in ctx.command.keys(ctx).items():
        if key == BACKEND_OPTIONS:
            continue
        assert option.name is not None
        value = getattr(args, option.field) if isinstance(option, EngineOption) else ctx.params[option.name]
        lines.append(_line(key, value, _origin(ctx, option)))
    return "\n".join([*lines, *_backend_options(ctx, args)])


def _line(key: str, value: Any, origin: str) -> str:
    if value in (None, ()):
        return f"# {key} is not set  # {origin}"
    if key in _SECRETS:
        return f"# {key} is set, and not shown here: put it back before this text is used  # {origin}"
    return f"{key} = {toml_text(value)}  # {origin}"


def _origin(ctx: click.Context, option: click.Option) -> str:
    name = option.name or ""
    found = origins_of(ctx).of(name)
    if found is not None:
        return found
    if isinstance(option, EngineOption):
        return _engine_origin(option.field)
    if ctx.get_parameter_source(name) is ParameterSource.ENVIRONMENT:
        return f"environment {option.envvar}"
    return "default"


def _engine_origin(field: str) -> str:
    set_in_environment = read_engine_environment(os.environ)
    if field not in set_in_environment:
        return "default"
    return f"environment {next(name for name in ENGINE_ENVIRONMENT[field] if name in os.environ)}"


def _backend_options(ctx: click.Context, args: EngineArgs) -> list[str]:
    if not args.backend_options:
        return []
    origins = origins_of(ctx).backend_options()
    rest = _engine_origin(BACKEND_OPTIONS)
    lines = ["", f"[{BACKEND_OPTIONS}]"]
    for key, value in args.backend_options.items():
        origin = origins.get(key, rest)
        if value is None:
            lines.append(f"# {toml_text(key)} is not set  # {origin}")
        else:
            lines.append(f"{toml_text(key)} = {toml_text(value)}  # {origin}")
    return lines
