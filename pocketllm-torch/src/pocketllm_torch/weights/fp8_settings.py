"""What a configuration says about FP8 weights. Importing this module imports no torch: a probe reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pocketllm.errors import CheckpointError, UnsupportedFeatureError

FP8_TYPE: Final = "F8_E4M3"
SCALE_TYPES: Final = ("F32", "F16", "BF16")
_SUPPORTED: Final = "FP8 in e4m3 with a scale per tile is supported; otherwise use the original weights or a GGUF file."


def scale_tile(config: Mapping[str, object]) -> tuple[int, int] | None:
    """Rows and columns of the tile that shares one scale, or None for weights that are not quantised.

    Which tensors are quantised, each tensor's own type says: ``modules_to_not_convert`` adds nothing to it.

    Raises:
        UnsupportedFeatureError: another kind of quantisation.
        CheckpointError: settings that cannot be what was meant.
    """
    settings = config.get("quantization_config")
    if not settings:
        return None
    if not isinstance(settings, Mapping):
        raise CheckpointError(
            f"quantization_config = {str(settings)[:100]!r} is not an object. Fetch config.json again.",
            param="quantization_config",
        )
    for key, value in (("quant_method", settings.get("quant_method")), ("fmt", settings.get("fmt", "e4m3"))):
        if value != ("fp8" if key == "quant_method" else "e4m3"):
            raise UnsupportedFeatureError(
                f"quantization_config.{key} = {str(value)[:100]!r}: {_SUPPORTED}", param=f"quantization_config.{key}"
            )
    size = settings.get("weight_block_size")
    if size is None:
        raise UnsupportedFeatureError(
            f"quantization_config.weight_block_size is missing: {_SUPPORTED}",
            param="quantization_config.weight_block_size",
        )
    if isinstance(size, list) and len(size) == 2 and all(type(side) is int and side > 0 for side in size):
        return size[0], size[1]
    raise CheckpointError(
        f"quantization_config.weight_block_size = {str(size)[:100]} is not two positive integers, as in [128, 128].",
        param="quantization_config.weight_block_size",
    )
