"""Ranges of numbers among ``backend_options``, whose names and types core has checked against the card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketllm.errors import ConfigurationError


def check_range(options: Mapping[str, Any], name: str, low: int, high: int | None = None) -> None:
    """Refuse a number that is given and below ``low`` or above ``high`` (None: no limit).

    Raises:
        ConfigurationError: names the option, its value and the range.
    """
    value = options.get(name)
    if value is None or (value >= low and (high is None or value <= high)):
        return
    span = f"of at least {low}" if high is None else f"from {low} to {high}"
    raise ConfigurationError(
        f"backend_options[{name!r}] = {value} is out of range: give a whole number {span}.",
        param=f"backend_options.{name}",
    )
