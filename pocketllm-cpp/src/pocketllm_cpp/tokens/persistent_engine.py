"""The lowest level that Python sees: one sequence, and every token the caller's."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass

from pocketllm.errors import ConfigurationError
from pocketllm_cpp.loading import RuntimeSettings
from pocketllm_cpp.options import check_activation
from pocketllm_cpp.tokens.qwen_options import refuse_changed
from pocketllm_cpp.tokens.sequence_engine import SequenceEngine

_NUM_TOP = 20


@dataclass
class ForwardSmokeOptions:
    """Where the model runs. Ranks and devices have their defaults alone, and nothing is prepared on a host for them.

    Attributes:
        num_threads: 0: one per core that the process may use.
        activation: how activations enter products with quantised weights, "int8" or "float32" (exact).
        kv_cache_dtype: "auto", "f16" or "q8_0".
    """

    tp_world: int = 1
    tp_rank: int = 0
    device: int = 0
    skip_fp4_host_prepare: bool = False
    nccl_id_path: str = ""
    num_threads: int = 0
    activation: str = "int8"
    kv_cache_dtype: str = "auto"


@dataclass
class SamplingParams:
    """How one call draws its token. ``greedy`` goes before the rest; ``seed`` makes that one draw repeatable."""

    temperature: float = 0.0
    top_p: float = 1.0
    greedy: bool = False
    seed: int | None = None


class PersistentEngine(SequenceEngine):
    """A session that lives until it is reset. Any family. Calls from several threads wait for each other.

    Args:
        checkpoint: a folder or file, as ``pocketllm.checkpoint.open_checkpoint`` takes it.
        options: see :class:`ForwardSmokeOptions`.
        layer_count: 0 for all layers; fewer for measurements.
        max_context: positions of the sequence; never more than the checkpoint's.

    Raises:
        CheckpointError, ConfigurationError, UnsupportedFeatureError: as their messages say.
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str],
        options: ForwardSmokeOptions | None = None,
        layer_count: int = 0,
        max_context: int = 8192,
    ) -> None:
        self.options = options or ForwardSmokeOptions()
        refuse_changed(self.options, ("tp_world", "tp_rank", "device", "skip_fp4_host_prepare", "nccl_id_path"))
        check_activation(self.options.activation, "activation", "activation")
        settings = RuntimeSettings(
            activation=self.options.activation,
            kv_cache_dtype=self.options.kv_cache_dtype,
            num_threads=self.options.num_threads,
        )
        super().__init__(checkpoint, settings, layer_count=layer_count, max_context=max_context, seed=0)

    def reset_session(self) -> None:
        """Forget the sequence."""
        self._session.reset()

    def prefill(self, tokens: Sequence[int], params: SamplingParams | None = None) -> int:
        """Make ``tokens`` the sequence and return the next token, which is not appended. What it shares with the
        sequence before is not computed again.

        Raises:
            ConfigurationError: no tokens, an id outside the vocabulary, or more than fit the context.
        """
        with self._lock:
            self._session.prefill(list(tokens))
            return self._draw(params)

    def decode_step(self, token: int, position: int | None = None, params: SamplingParams | None = None) -> int:
        """Append ``token`` and return the next one.

        Args:
            position: where the caller believes ``token`` goes; None to leave that to the engine.

        Raises:
            ConfigurationError: ``position`` is not :attr:`position`, the context is full, or an unknown id.
        """
        with self._lock:
            self._check_position(position)
            self._session.decode_step(token)
            return self._draw(params)

    def verify_step(self, tokens: Sequence[int], position: int | None = None) -> list[int]:
        """Append all ``tokens`` in one pass and return the greedy choice after each. :meth:`truncate` takes back what
        the caller does not want.

        Raises:
            ConfigurationError: as :meth:`decode_step`.
        """
        with self._lock:
            self._check_position(position)
            self._session.verify_step(list(tokens))
            return [self._session.argmax(row) for row in range(len(tokens))]

    def truncate(self, num_tokens: int) -> None:
        """Take back the newest tokens.

        Raises:
            UnsupportedFeatureError: the model has recurrent layers.
            ConfigurationError: the sequence has fewer.
        """
        self._session.truncate(num_tokens)

    def last_logits(self, row: int = -1) -> memoryview[float]:
        """Raw logits of the last call as floats, one per id: after its last token, or after its ``row``-th."""
        return memoryview(self._session.logits(row)).cast("f")

    @property
    def last_topk_tokens(self) -> list[int]:
        """The 20 most likely ids after the last token, best first."""
        return [token for token, _ in self._session.top(_NUM_TOP)]

    @property
    def last_topk_logits(self) -> list[float]:
        """The raw logits of :attr:`last_topk_tokens`."""
        return [logit for _, logit in self._session.top(_NUM_TOP)]

    @property
    def vocab_size(self) -> int:
        """Rows of the head; ids past the tokenizer's vocabulary are padding."""
        return self._runtime.vocab_size

    def _check_position(self, position: int | None) -> None:
        if position is not None and position != self.position:
            raise ConfigurationError(
                f"position = {position}, but the sequence holds {self.position} tokens: give that, or None.",
                param="position",
            )

    def _draw(self, params: SamplingParams | None) -> int:
        if params is None or params.greedy:
            return self._session.argmax()
        generator = self._random if params.seed is None else random.Random(params.seed)
        return self._draw_token(temperature=params.temperature, top_k=0, top_p=params.top_p, generator=generator)
