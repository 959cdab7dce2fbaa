"""A loaded model as the token-oriented classes share it, and one token drawn from its logits."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace

from pocketllm.checkpoint import Checkpoint, open_checkpoint
from pocketllm.errors import ConfigurationError
from pocketllm.sampling_params import GREEDY_TEMPERATURE
from pocketllm_cpp import _native
from pocketllm_cpp.loading import RuntimeSettings, load_runtime, max_positions


@dataclass(frozen=True)
class TokenModel:
    """A runtime, the checkpoint it was made from, and the ids that end a sequence."""

    checkpoint: Checkpoint
    runtime: _native.Runtime
    eos_ids: tuple[int, ...]

    @classmethod
    def load(cls, path: str | os.PathLike[str], settings: RuntimeSettings) -> TokenModel:
        """Raises CheckpointError, ConfigurationError or UnsupportedFeatureError, as their messages say."""
        checkpoint = open_checkpoint(path)
        limit = max_positions(checkpoint)
        if limit is not None and settings.max_model_len > limit:
            settings = replace(settings, max_model_len=limit)
        return cls(checkpoint, load_runtime(checkpoint, settings), checkpoint.eos_token_ids()[0])

    @property
    def eos_id(self) -> int | None:
        """The first id that ends a sequence; None when the checkpoint names none."""
        return self.eos_ids[0] if self.eos_ids else None


def checked_settings(settings: RuntimeSettings, *, layer_count: int, max_context: int) -> RuntimeSettings:
    """``settings`` with the two numbers that every engine takes: 0 layers are all, and a context is never longer than
    the checkpoint's.

    Raises:
        ConfigurationError: out of range.
    """
    for name, value, low in (("layer_count", layer_count, 0), ("max_context", max_context, 1)):
        if value < low:
            raise ConfigurationError(f"{name} = {value} is too small: give at least {low}.", param=name)
    return replace(settings, num_layers=layer_count, max_model_len=max_context)


def draw_token(
    session: _native.Session, *, temperature: float, top_k: int, top_p: float, generator: random.Random
) -> int:
    """One id from the session's newest logits; top_k 0 is no limit. At temperature 0 it is the most likely one, and no
    random number is read."""
    if temperature <= GREEDY_TEMPERATURE:
        return session.argmax()
    sampling = _native.SamplingParams()
    sampling.temperature = temperature
    sampling.top_k = top_k
    sampling.top_p = top_p
    return session.pick(sampling, generator.random())
