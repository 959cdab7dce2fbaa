"""What ``backend_options`` may hold for this backend, and their checked values. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pocketllm.backend_parts import check_range
from pocketllm.errors import ConfigurationError
from pocketllm.types import OptionSpec

PREFILL_DTYPES = ("auto", "float16", "float32", "bfloat16")

OPTION_SPECS = (
    OptionSpec(name="num_threads", type="int", doc="CPU threads of one step; default: one per core."),
    OptionSpec(name="block_size", type="int", default=16, doc="Positions per block of the key/value cache."),
    OptionSpec(
        name="kv_cache_bytes",
        type="int",
        doc="Size of the key/value cache. Default: what every sequence at full length needs, at most a quarter of the "
        "memory (CPU) or four fifths of what the weights leave free (CUDA).",
    ),
    OptionSpec(
        name="max_step_tokens",
        type="int",
        doc="Prompt tokens that one step may compute, of all prompts together; default: prefill_chunk_tokens.",
    ),
    OptionSpec(
        name="deterministic",
        type="bool",
        default=False,
        doc="Compute every sequence in a forward pass of its own, so that its output does not depend on the batch, bit "
        "for bit. Slower.",
    ),
    OptionSpec(
        name="prefill_dtype",
        type="str",
        default="auto",
        doc="With float16 weights on a CPU, how chunks of many tokens are multiplied: float16 (no second copy of the "
        "weights), float32 or bfloat16 (faster), or auto: what is fastest here, if it fits well in memory.",
    ),
    OptionSpec(name="eos_token_id", type="ids", doc="End-of-sequence ids in place of the checkpoint's."),
)


@dataclass(frozen=True)
class TorchOptions:
    """Checked values; None is "not given"."""

    num_threads: int | None = None
    block_size: int = 16
    kv_cache_bytes: int | None = None
    max_step_tokens: int | None = None
    deterministic: bool = False
    prefill_dtype: str = "auto"
    eos_token_id: tuple[int, ...] = ()

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any]) -> TorchOptions:
        """From options whose names and types core has checked.

        Raises:
            ConfigurationError: a number is out of range.
        """
        check_range(options, "num_threads", 1, 1024)
        check_range(options, "block_size", 1, 1024)
        check_range(options, "kv_cache_bytes", 1)
        check_range(options, "max_step_tokens", 1)
        prefill_dtype = options.get("prefill_dtype") or "auto"
        if prefill_dtype not in PREFILL_DTYPES:
            raise ConfigurationError(
                f"backend_options['prefill_dtype'] = {prefill_dtype!r} is not known; give one of "
                f"{', '.join(PREFILL_DTYPES)}.",
                param="backend_options.prefill_dtype",
            )
        values = {name: value for name, value in options.items() if value is not None}
        values["eos_token_id"] = tuple(values.get("eos_token_id", ()))
        return cls(**values)
