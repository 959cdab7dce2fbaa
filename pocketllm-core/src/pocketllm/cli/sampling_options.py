"""The options that say how an answer is sampled, shared by ``run`` and ``chat``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from pocketllm.sampling_params import SamplingParams

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--max-tokens", type=int, help="Longest answer, in tokens.  [default: no limit]"),
    click.option("--temperature", type=float, help="0 takes the likeliest token each time.  [default: 0]"),
    click.option("--top-k", type=int, help="Draw from the K likeliest tokens."),
    click.option("--top-p", type=float, help="Draw from the likeliest tokens that make up this probability."),
    click.option("--min-p", type=float, help="Leave out tokens below this part of the best one's probability."),
    click.option("--seed", type=int, help="The same seed draws the same answer."),
)


def sampling_options(function: F) -> F:
    """Decorator: add the sampling options; give their keywords to :func:`sampling_from_options`."""
    for decorate in reversed(_OPTIONS):
        function = decorate(function)
    return function


def sampling_from_options(options: dict[str, Any]) -> SamplingParams:
    """Take the sampling keywords out of ``options`` and build the parameters. A bound missed raises
    ConfigurationError."""
    names = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed")
    given = {name: options.pop(name, None) for name in names}
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})
