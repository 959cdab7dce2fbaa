"""The options that say which engine is wanted, shared by every command that opens one.

A flag wins over its environment variable, which wins over the default. Reading the environment is left to
``EngineArgs.from_env``, so that a program and a script understand a variable alike.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from pocketllm.engine_args import CHECKPOINT_DIR_OPTION, MODEL_FORMATS, PLACEMENTS, EngineArgs
from pocketllm.engine_env import ENGINE_ENVIRONMENT, read_engine_environment
from pocketllm.model_sources.resolve import DEFAULT_MODEL

F = TypeVar("F", bound=Callable[..., Any])


class EngineOption(click.Option):
    """An option of the engine: listed in a section of its own, with the variables that also set it."""

    field = ""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        names = ENGINE_ENVIRONMENT.get(self.field, ())
        if record is None or not names:
            return record
        return record[0], f"{record[1]}  [env: {', '.join(names)}]"


class EngineCommand(click.Command):
    """A command whose help keeps the engine's options apart from its own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Engine options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections["Engine options" if isinstance(parameter, EngineOption) else "Options"].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def parse_key_value(text: str) -> tuple[str, Any]:
    """``KEY=VALUE`` as a pair; the value is JSON when it can be read as such, else text.

    Raises:
        click.BadParameter: there is no key or no ``=``.
    """
    key, separator, value = text.partition("=")
    if not key.strip() or not separator:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE, as in num_threads=4.")
    try:
        return key.strip(), json.loads(value)
    except (ValueError, RecursionError):
        return key.strip(), value


def _parse_pairs(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, Any]]:
    return [parse_key_value(text) for text in values or ()]


def _option(flags: str, help_text: str, *, field: str = "", **attributes: Any) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        decorated = click.option(flags, cls=EngineOption, default=None, help=help_text, **attributes)(function)
        # click keeps the options of a function in this list until the command is made; the newest is last.
        option = decorated.__click_params__[-1]  # type: ignore[attr-defined]  # set by click.option
        option.field = field or option.name
        return decorated

    return decorate


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    _option("--model", f"Checkpoint folder, GGUF file or model name.  [default: {DEFAULT_MODEL}]"),
    _option("--backend", "Backend's name, or auto for the best offer.  [default: auto]"),
    _option("--backend-option", "An option of the backend; VALUE is JSON when it can be. Repeat it for more.",
            field="backend_options", metavar="KEY=VALUE", callback=_parse_pairs, multiple=True),
    _option("--model-format", "Format of the checkpoint.  [default: auto]", type=click.Choice(MODEL_FORMATS)),
    _option("--tokenizer-path", "Tokenizer file or folder, when not the checkpoint's."),
    _option("--config-path", "Model configuration, when not the checkpoint's."),
    _option("--device", "Kind of device, such as cpu or cuda.  [default: auto]"),
    _option("--device-ids", "Cards to use, as in 0 or 2,3."),
    _option("--dtype", "Data type of the computation, such as float32.", metavar="TYPE"),
    _option("--kv-cache-dtype", "Data type of the attention cache.  [default: auto]", metavar="TYPE"),
    _option("--max-model-len", "Positions of a sequence, prompt and answer together.", type=int),
    _option("--max-batch-size", "Sequences that advance together; 1 leaves it to the backend.  [default: 1]",
            type=int),
    _option("--enable-batching/--no-enable-batching", "Batch requests.  [default: the backend's]"),
    _option("--max-num-requests", "Active requests admitted, queued ones included.  [default: 1024]", type=int),
    _option("--prefill-chunk-tokens", "Prompt tokens per step; 0 leaves it to the backend.", type=int),
    _option("--enable-prefix-caching/--no-enable-prefix-caching", "Reuse common prompt beginnings.  [default: on]"),
    _option("--attention-window", "Tokens attended to; 0 is all.", type=int),
    _option("--attention-sink-tokens", "First tokens kept outside the window.", type=int),
    _option("--speculative-method", "Way of drafting tokens.", metavar="NAME"),
    _option("--speculative-tokens", "Tokens drafted per step.", type=int),
    _option("--tensor-parallel-size", "Devices that share the model.  [default: 1]", type=int),
    _option("--tensor-parallel-rank", "Rank of this process among them.", type=int),
    _option("--placement", "Engine in this process or in a child.  [default: auto]", type=click.Choice(PLACEMENTS)),
)  # fmt: skip


def engine_options(function: F) -> F:
    """Decorator: add every engine option to a command; give its keywords to :func:`engine_args_from_options`."""
    for decorate in reversed(_OPTIONS):
        function = decorate(function)
    return function


def engine_args_from_options(
    *,
    environ: Mapping[str, str] | None = None,
    announce: Callable[[str], None] | None = None,
    **options: Any,
) -> EngineArgs:
    """Build the arguments from the keywords that :func:`engine_options` gives a command.

    Args:
        environ: where variables are read; None: the process's.
        announce: told one sentence when no model is named and the embedded default is taken; None: say it on stderr.
        options: the command's keywords; None means that the flag was not given.

    Raises:
        ConfigurationError: a flag or a variable is wrong.
    """
    environ = os.environ if environ is None else environ
    pairs = options.pop("backend_option", None) or ()
    overrides = {name: value for name, value in options.items() if value is not None}
    if pairs:
        overrides["backend_options"] = dict(pairs)
    values = {**read_engine_environment(environ), **overrides}
    if not values.get("model") and CHECKPOINT_DIR_OPTION not in values.get("backend_options", {}):
        overrides["model"] = DEFAULT_MODEL
        sentence = f"No --model given: taking the embedded default, {DEFAULT_MODEL}."
        (announce or _say)(sentence)
    return EngineArgs.from_env(environ, **overrides)


def _say(sentence: str) -> None:
    click.echo(sentence, err=True)
