"""What ``backend_options`` may hold for this backend, and their checked values. Imports nothing native."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pocketllm.backend_parts import check_range
from pocketllm.errors import ConfigurationError
from pocketllm.types import OptionSpec

ACTIVATIONS = ("int8", "float32")

OPTION_SPECS = (
    OptionSpec(name="num_threads", type="int", doc="Threads of one step; default: one per core this process may use."),
    OptionSpec(
        name="kv_cache_bytes",
        type="int",
        doc="Size of the key/value cache. Default: what every sequence at full length needs, at most a quarter of the "
        "memory.",
    ),
    OptionSpec(
        name="prefill_token_budget",
        type="int",
        doc="Prompt tokens one step may compute, 0: whole prompts; default: prefill_chunk_tokens, or 512, and 128 "
        "in a step that others decode in.",
    ),
    OptionSpec(
        name="prefix_cache",
        type="bool",
        doc="Reuse what earlier requests computed of a prompt; default: enable_prefix_caching.",
    ),
    OptionSpec(
        name="num_snapshots",
        type="int",
        doc="For models with recurrent layers: states kept for reuse; default: 64.",
    ),
    OptionSpec(
        name="activation",
        type="str",
        doc="How activations enter products with quantised weights: int8 (fast) or float32 (exact); default: int8, or "
        "float32 with dtype = float32.",
    ),
    OptionSpec(name="eos_token_id", type="ids", doc="End-of-sequence ids in place of the checkpoint's."),
)


@dataclass(frozen=True)
class CppOptions:
    """Checked values; None is "not given"."""

    num_threads: int | None = None
    kv_cache_bytes: int | None = None
    prefill_token_budget: int | None = None
    prefix_cache: bool | None = None
    num_snapshots: int | None = None
    activation: str | None = None
    eos_token_id: tuple[int, ...] = ()

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> CppOptions:
        """From options whose names and types core has checked.

        Raises:
            ConfigurationError: a value is out of range.
        """
        check_range(options, "num_threads", 1, 1024)
        check_range(options, "kv_cache_bytes", 1)
        check_range(options, "prefill_token_budget", 0)
        check_range(options, "num_snapshots", 1, 1 << 20)
        if options.get("activation") is not None:
            check_activation(options["activation"], "backend_options['activation']", "backend_options.activation")
        values = {name: value for name, value in options.items() if value is not None}
        values["eos_token_id"] = tuple(values.get("eos_token_id", ()))
        return cls(**values)


def check_activation(value: str, shown: str, param: str) -> None:
    """Refuse a name that is not one of ``ACTIVATIONS``; ``shown`` and ``param`` say where it was given.

    Raises:
        ConfigurationError: names the known ones.
    """
    if value not in ACTIVATIONS:
        raise ConfigurationError(
            f"{shown} = {value!r} is not known; give one of {', '.join(ACTIVATIONS)}.", param=param
        )
