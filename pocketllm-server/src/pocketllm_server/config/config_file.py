"""``--config FILE``: options in TOML, and the command line's spellings that other servers taught people.

The file becomes arguments in front of those that were given, so a value means the same in both places and is checked by
the same code. What was given on the command line wins, then the file, then the environment, then the default.
"""

from __future__ import annotations

import difflib
import json
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pocketllm.cli.engine_options import EngineCommand

CONFIG_VARIABLE = "POCKETLLM_CONFIG"
BACKEND_OPTIONS = "backend_options"
_META = "pocketllm_server.config"
_NOT_IN_FILES = frozenset({"config", "print_config"})

ALIASES: Mapping[str, str] = {
    "--max-num-seqs": "--max-batch-size",
    "--max-num-queued-reqs": "--max-queue",
    "--tokenizer": "--tokenizer-path",
    "-tp": "--tensor-parallel-size",
    "--allowed-origins": "--cors-origin",
    "--allow-credentials": "--cors-credentials",
    "--uvicorn-log-level": "--log-level",
    "--disable-uvicorn-access-log": "--no-access-log",
    "--enable-log-requests": "--log-prompts",
    "--no-enable-log-requests": "--no-log-prompts",
    "--disable-log-requests": "--no-log-prompts",
    "--shutdown-timeout": "--drain-timeout",
    "--sse-keep-alive-interval": "--keep-alive-interval",
}
"""vLLM's spelling -> ours, where the two mean the same."""


class Origins:
    """Where the values of one command come from."""

    def __init__(self, given: Mapping[str, Any], path: str | None, from_file: Mapping[str, Any]) -> None:
        self.path = path
        self._given = given
        self._from_file = from_file

    def of(self, parameter: str) -> str | None:
        """``command line``, ``config file PATH``, or None: neither of the two."""
        if is_given(self._given, parameter):
            return "command line"
        return f"config file {self.path}" if parameter in self._from_file else None

    def backend_options(self) -> dict[str, str]:
        """Origin of each backend option that the command line or the file sets."""
        table = self._from_file.get("backend_option", {})
        origins = dict.fromkeys(table, f"config file {self.path}")
        for text in self._given.get("backend_option") or ():
            origins[text.partition("=")[0].strip()] = "command line"
        return origins


def origins_of(ctx: click.Context) -> Origins:
    origins: Origins = ctx.meta[_META]
    return origins


def is_given(given: Mapping[str, Any], name: str) -> bool:
    """Whether the command line itself set a parameter; click marks the others with a value of its own or None."""
    return isinstance(given.get(name), str | bool | list | tuple)


class ConfiguredCommand(EngineCommand):
    """A command that also takes its options from a TOML file and understands :data:`ALIASES`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        args = [_canonical(arg) for arg in args]
        given, _, order = self.make_parser(ctx).parse_args(args=list(args))
        set_on_line = {param.name: given[param.name] for param in order if param.name in given and param.name}
        path = given.get("config")
        if not isinstance(path, str):
            path = os.environ.get(CONFIG_VARIABLE) or None
        from_file: dict[str, Any] = {}
        if path is not None and not set(ctx.help_option_names) & set(args):
            if is_given(set_on_line, "model_argument"):
                set_on_line.setdefault("model", set_on_line["model_argument"])
            from_file = self._read(ctx, path)
            args = [*self._arguments(ctx, path, from_file, set_on_line), *args]
        ctx.meta[_META] = Origins(set_on_line, path, from_file)
        return super().parse_args(ctx, args)

    def keys(self, ctx: click.Context) -> dict[str, click.Option]:
        """The keys a file may have, with the option that each sets."""
        return {
            key_of(option): option
            for option in self.get_params(ctx)
            if isinstance(option, click.Option)
            and option.name not in _NOT_IN_FILES
            and option.expose_value
            and not option.hidden
        }

    def _read(self, ctx: click.Context, path: str) -> dict[str, Any]:
        """Values by parameter name."""
        known = self.keys(ctx)
        values: dict[str, Any] = {}
        for key, value in read_toml(path).items():
            flag = "--" + key.replace("_", "-")
            option = known.get(key.replace("-", "_"))
            if flag in ALIASES:
                own = ALIASES[flag]
                option = next(each for each in known.values() if own in (*each.opts, *each.secondary_opts))
                if own in option.secondary_opts and isinstance(value, bool):
                    value = not value
            if option is None:
                raise click.UsageError(f"{path}: {_unknown(key, known)}", ctx)
            assert option.name is not None
            if option.name in values:
                raise click.UsageError(f"{path}: {key_of(option)!r} is there twice, under two names.", ctx)
            values[option.name] = value
        return values

    def _arguments(
        self, ctx: click.Context, path: str, values: Mapping[str, Any], given: Mapping[str, Any]
    ) -> list[str]:
        arguments: list[str] = []
        for option in self.keys(ctx).values():
            if option.name in values and (option.name == "backend_option" or not is_given(given, option.name)):
                try:
                    arguments += as_arguments(option, values[option.name])
                except ValueError as error:
                    raise click.UsageError(f"{path}: {key_of(option)!r} {error}.", ctx) from None
        return arguments


def read_toml(path: str) -> dict[str, Any]:
    """The file as plain values.

    Raises:
        click.UsageError: it cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"The config file {path!r} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f"The config file {path!r} is not TOML: {error}.") from None


def key_of(option: click.Option) -> str:
    """The option's key in a file, which is its first spelling."""
    name = option.opts[0].removeprefix("--").replace("-", "_")
    return BACKEND_OPTIONS if name == "backend_option" else name


def as_arguments(option: click.Option, value: Any) -> list[str]:
    """A file's value as command-line arguments.

    Raises:
        ValueError: the value is of a kind that the option does not take; the message completes "KEY ...".
    """
    flag = option.opts[0]
    if option.name == "backend_option":
        if not isinstance(value, dict):
            raise ValueError("is not a table: write it like [backend_options] with one option a line")
        return [f"{flag}={key}={_json(item)}" for key, item in value.items()]
    if option.is_flag:
        if not isinstance(value, bool):
            raise ValueError(f"= {value!r} is neither true nor false")
        if value:
            return [flag]
        return [option.secondary_opts[0]] if option.secondary_opts else []
    items = value if isinstance(value, list) else [value]
    texts = []
    for item in items:
        if isinstance(item, bool) or not isinstance(item, str | int | float):
            raise ValueError(f"= {value!r} is neither text nor a number")
        texts.append(item if isinstance(item, str) else repr(item))
    if option.multiple:
        return [f"{flag}={text}" for text in texts]
    return [f"{flag}={','.join(texts)}"]


def _canonical(argument: str) -> str:
    flag, separator, value = argument.partition("=")
    return ALIASES[flag] + separator + value if flag in ALIASES else argument


def _unknown(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key.replace("-", "_"), list(known), n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else " `pocketllm serve --print-config` lists the keys."
    return f"the key {key!r} is unknown.{hint}"


def _json(value: Any) -> str:
    try:
        return json.dumps(value)
    except TypeError:
        raise ValueError(f"holds {value!r}, which is not text, a number, a list or a table") from None


def toml_text(value: Any) -> str:
    """A value as TOML: text, numbers, booleans, lists and inline tables of them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_text(str(key))} = {toml_text(item)}" for key, item in value.items()) + "}"
    assert isinstance(value, Sequence)
    return "[" + ", ".join(map(toml_text, value)) + "]"
