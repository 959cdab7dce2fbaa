"""One sequence over one model, which the engines of this level share."""

from __future__ import annotations

import os
import random
import threading
from dataclasses import replace

from pocketllm.checkpoint import open_checkpoint
from pocketllm.errors import ConfigurationError
from pocketllm.sampling_params import GREEDY_TEMPERATURE
from pocketllm_cpp import _native
from pocketllm_cpp.loading import RuntimeSettings, load_runtime, max_positions


class SequenceEngine:
    """A model, one sequence, and how its tokens are drawn. Calls from several threads wait for each other.

    Args:
        checkpoint: a folder or file, as ``pocketllm.checkpoint.open_checkpoint`` takes it.
        settings: how the model is held; ``layer_count`` and ``max_context`` go before what it says of them.
        layer_count: 0 for all layers; fewer for measurements.
        max_context: positions of the sequence; never more than the checkpoint's.
        seed: of the numbers that draws use.

    Raises:
        CheckpointError, ConfigurationError, UnsupportedFeatureError: as their messages say.
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str],
        settings: RuntimeSettings,
        *,
        layer_count: int,
        max_context: int,
        seed: int,
    ) -> None:
        for name, value, low in (("layer_count", layer_count, 0), ("max_context", max_context, 1)):
            if value < low:
                raise ConfigurationError(f"{name} = {value} is too small: give at least {low}.", param=name)
        self._checkpoint = open_checkpoint(checkpoint)
        limit = max_positions(self._checkpoint) or max_context
        settings = replace(settings, num_layers=layer_count, max_model_len=min(max_context, limit))
        self._runtime = load_runtime(self._checkpoint, settings)
        self._eos_ids = self._checkpoint.eos_token_ids()[0]
        self._session = _native.Session(self._runtime)
        self._random = random.Random(seed)
        self._lock = threading.RLock()

    @property
    def position(self) -> int:
        """Tokens the sequence holds."""
        return self._session.position

    @property
    def max_context(self) -> int:
        """Positions a sequence may hold."""
        return self._runtime.max_model_len

    @property
    def eos_id(self) -> int | None:
        """The first id that ends a sequence; None when the checkpoint names none."""
        return self._eos_ids[0] if self._eos_ids else None

    def _draw_token(self, *, temperature: float, top_k: int, top_p: float, generator: random.Random) -> int:
        """One id from the newest logits; top_k 0 means all. At temperature 0 it is the most likely one, and no random
        number is read."""
        if temperature <= GREEDY_TEMPERATURE:
            return self._session.argmax()
        sampling = _native.SamplingParams()
        sampling.temperature = temperature
        sampling.top_k = top_k
        sampling.top_p = top_p
        return self._session.pick(sampling, generator.random())
