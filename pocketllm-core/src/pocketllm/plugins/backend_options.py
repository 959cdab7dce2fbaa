"""Check ``backend_options`` against the card of the backend that will read them."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from typing import Any

from pocketllm.engine_args import CHECKPOINT_DIR_OPTION, EngineArgs
from pocketllm.errors import ConfigurationError
from pocketllm.types import BackendInfo, OptionSpec

OPTION_TYPES = {
    "int": "a whole number",
    "float": "a finite number",
    "bool": "true or false",
    "str": "text",
    "ids": "a token id or a list of token ids",
    "json": "a JSON value",
}
"""``OptionSpec.type`` -> how a person would say it."""


def given_options(args: EngineArgs) -> dict[str, Any]:
    """The options somebody set: flags' first, explicit ones over them; without core's own ``checkpoint_dir``."""
    merged = {**args.resolved_options, **args.backend_options}
    merged.pop(CHECKPOINT_DIR_OPTION, None)
    return {name: value for name, value in merged.items() if value is not None}


def checked_options(info: BackendInfo, args: EngineArgs) -> dict[str, Any]:
    """The given options, each of its declared type; ids become a list. The backend fills in its own defaults.

    Args:
        info: the backend's card, whose ``options`` declare names and types.
        args: the arguments; None as a value means "not given".

    Raises:
        ConfigurationError: an unknown name (the message gives the nearest known one) or a value of another type.
    """
    specs = {spec.name: spec for spec in info.options}
    checked: dict[str, Any] = {}
    for name, value in given_options(args).items():
        if name not in specs:
            raise ConfigurationError(
                f"Backend {info.name!r} has no option {name!r}. {known_names('option', name, specs)}",
                param=f"backend_options.{name}",
            )
        checked[name] = _converted(specs[name], value)
    return checked


def known_names(noun: str, name: str, known: Iterable[str]) -> str:
    """A sentence or two that lead from an unknown ``name`` to the known ones."""
    names = sorted(known)
    if not names:
        return f"It has no {noun}s at all."
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    meant = f"Did you mean {near[0]!r}? " if near else ""
    return f"{meant}Known {noun}s: {', '.join(names)}."


def _converted(spec: OptionSpec, value: Any) -> Any:
    # JSON on a command line turns an all-digits text into a number; turning it back loses nothing.
    if spec.type == "str" and _is_whole(value):
        return str(value)
    if spec.type == "float" and _is_whole(value):
        return float(value)
    if spec.type == "float" and isinstance(value, float) and math.isfinite(value):
        return value
    if spec.type == "ids":
        ids = list(value) if isinstance(value, list | tuple) else [value]
        if all(_is_whole(item) and item >= 0 for item in ids):
            return ids
    fits = {
        "int": _is_whole(value),
        "bool": isinstance(value, bool),
        "str": isinstance(value, str),
        "json": True,
    }
    if fits.get(spec.type, False):
        return value
    hint = " (on a command line, quote it twice: '\"text\"')" if spec.type == "str" else ""
    raise ConfigurationError(
        f"backend_options[{spec.name!r}] = {value!r} is not {OPTION_TYPES.get(spec.type, spec.type)}{hint}.",
        param=f"backend_options.{spec.name}",
    )


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
