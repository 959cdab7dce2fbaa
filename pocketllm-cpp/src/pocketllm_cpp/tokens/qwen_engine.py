"""One sequence driven token by token, with the prefix of the last prompt kept. Any family, not Qwen alone."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm_cpp import _native
from pocketllm_cpp.tokens.qwen_options import QwenEngineOptions
from pocketllm_cpp.tokens.sequence_engine import SequenceEngine

_NUM_TOP_LOGITS = 8


@dataclass(frozen=True)
class QwenForwardResult:
    """What a forward pass gave.

    Attributes:
        next_token: drawn as the engine's options say; it is not part of the sequence until decode_step() appends it.
        position: tokens the sequence holds now.
        top_tokens, top_logits: the largest raw logits after the last token, largest first.
        computed_tokens, reused_tokens: of the tokens given, how many were computed and how many taken from before.
        elapsed_seconds: wall time of the pass.
    """

    next_token: int
    position: int
    top_tokens: tuple[int, ...]
    top_logits: tuple[float, ...]
    computed_tokens: int
    reused_tokens: int
    elapsed_seconds: float


@dataclass(frozen=True)
class QwenVerifyResult:
    """What of a draft the model would have written itself.

    Attributes:
        accepted_tokens: the leading draft tokens that greedy decoding agrees with; they stay in the sequence.
        next_token: the model's own token after them.
        position: tokens the sequence holds now.
    """

    accepted_tokens: tuple[int, ...]
    next_token: int
    position: int


class QwenEngine(SequenceEngine):
    """A model and one sequence. Calls from several threads wait for each other, without the interpreter's lock.

    A :class:`QwenBatchScheduler` over the engine has it for itself until it is stopped.

    Args:
        checkpoint: a folder or file, as ``pocketllm.checkpoint.open_checkpoint`` takes it.
        options: see :class:`QwenEngineOptions`.
        layer_count: 0 for all layers; fewer for measurements.
        max_context: positions of a sequence; never more than the checkpoint's.

    Raises:
        CheckpointError, ConfigurationError, UnsupportedFeatureError: as their messages say.
    """

    def __init__(
        self,
        checkpoint: str | os.PathLike[str],
        options: QwenEngineOptions | None = None,
        layer_count: int = 0,
        max_context: int = 8192,
    ) -> None:
        self.options = options or QwenEngineOptions()
        super().__init__(
            checkpoint,
            self.options.settings(),
            layer_count=layer_count,
            max_context=max_context,
            seed=self.options.sampling_seed,
        )
        self._new_statistics()

    def _new_statistics(self) -> None:
        self._hits = self._misses = 0
        self._last: dict[str, Any] = {
            "prompt_tokens": 0,
            "matched_tokens": 0,
            "reused_tokens": 0,
            "computed_tokens": 0,
            "resume_source": "empty",
        }

    # -- forward passes -------------------------------------------------------------------------------------------

    def prefill(self, token_ids: Sequence[int], slot_id: int = 0) -> QwenForwardResult:
        """Make ``token_ids`` the sequence. What it shares with the sequence before is not computed again.

        Raises:
            ConfigurationError: no tokens, an id outside the vocabulary, or more than fit the context.
            UnsupportedFeatureError: another slot than 0; a scheduler has more.
        """
        if slot_id != 0:
            raise UnsupportedFeatureError(
                f"slot_id = {slot_id}: outside a scheduler there is one sequence. Leave it 0.", param="slot_id"
            )
        with self._lock:
            started = time.perf_counter()
            if not self.options.prefix_cache:
                self._session.reset()
            self._session.prefill(list(token_ids))
            reused = self._session.num_reused_tokens
            self._note_reuse(len(token_ids), reused)
            return self._result(started, len(token_ids) - reused, reused)

    def decode_step(self, token: int) -> QwenForwardResult:
        """Append one token.

        Raises:
            ConfigurationError: an id outside the vocabulary, a full context, or no prefill before.
        """
        with self._lock:
            self._need_prefill()
            started = time.perf_counter()
            self._session.decode_step(token)
            return self._result(started, 1, 0)

    def generate(self, token_ids: Sequence[int], max_new_tokens: int) -> list[int]:
        """Prefill and decode exactly ``max_new_tokens``; no token ends it early. The last one is not appended.

        Raises:
            ConfigurationError: as :meth:`prefill`, or less than one new token.
        """
        if max_new_tokens < 1:
            raise ConfigurationError(
                f"max_new_tokens = {max_new_tokens} is too small: give at least 1.", param="max_new_tokens"
            )
        if len(token_ids) + max_new_tokens - 1 > self.max_context:
            raise ConfigurationError(
                f"{len(token_ids)} prompt tokens and max_new_tokens = {max_new_tokens} do not fit the context of "
                f"{self.max_context}.",
                param="max_new_tokens",
            )
        with self._lock:
            tokens = [self.prefill(token_ids).next_token]
            while len(tokens) < max_new_tokens:
                self._session.decode_step(tokens[-1])
                tokens.append(self._draw())
            return tokens

    def verify(self, token_ids: Sequence[int]) -> QwenVerifyResult:
        """Check a draft in one pass: ``token_ids`` is the token to append and the draft after it.

        Raises:
            UnsupportedFeatureError: the model has recurrent layers, whose states cannot be taken back.
            ConfigurationError: as :meth:`decode_step`.
        """
        with self._lock:
            self._need_prefill()
            if self._runtime.is_recurrent:
                raise UnsupportedFeatureError(
                    f"verify: {self._checkpoint.model_type} has recurrent layers, and their states cannot take "
                    "back a rejected draft. Use decode_step.",
                    param="verify",
                )
            if not token_ids:
                raise ConfigurationError("verify needs at least one token.", param="token_ids")
            draft = list(token_ids)
            self._session.verify_step(draft)
            accepted = 0
            while accepted < len(draft) - 1 and self._session.argmax(accepted) == draft[accepted + 1]:
                accepted += 1
            next_token = self._session.argmax(accepted)
            rejected = len(draft) - 1 - accepted
            if rejected:
                self._session.truncate(rejected)
            return QwenVerifyResult(tuple(draft[1 : accepted + 1]), next_token, self._session.position)

    def warmup_tp(self) -> None:
        """With one rank there is nothing to rendezvous; an engine without a sequence computes one token, so that the
        first request finds the weights in memory."""
        with self._lock:
            if self._session.position == 0:
                self._session.prefill([0])
                self._session.reset()

    def reset(self) -> None:
        """Forget the sequence, and with it everything that could be reused."""
        with self._lock:
            self._session.reset()
            self._new_statistics()

    def clear_prefix_cache(self) -> None:
        """As :meth:`reset`: outside a scheduler the sequence is the prefix cache."""
        self.reset()

    # -- what it is -----------------------------------------------------------------------------------------------

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """Every id that ends a sequence."""
        return self._eos_ids

    @property
    def config(self) -> dict[str, Any]:
        """The checkpoint's configuration, in the names of config.json."""
        return dict(self._checkpoint.config)

    @property
    def weight_bytes(self) -> int:
        """Memory of the weights, as packed."""
        return self._runtime.weights_bytes

    @property
    def kv_cache_bytes(self) -> int:
        """Memory of the key/value cache."""
        return self._runtime.kv_bytes

    @property
    def state_bytes(self) -> int:
        """Memory of the recurrent states; 0 for models without."""
        return self._runtime.state_bytes

    @property
    def kv_paged(self) -> bool:
        """Whether the cache is in blocks: always."""
        return True

    @property
    def kv_block_size(self) -> int:
        """Positions of one block of the cache."""
        return self._runtime.kv_block_size

    @property
    def kv_total_blocks(self) -> int:
        """Blocks of the cache."""
        return self._runtime.num_kv_blocks

    @property
    def kv_pinned_blocks(self) -> int:
        """Blocks that the sequence holds."""
        return -(-self.position // self.kv_block_size)

    @property
    def kv_free_blocks(self) -> int:
        """Blocks that the sequence does not hold."""
        return self.kv_total_blocks - self.kv_pinned_blocks

    @property
    def prefix_cache_stats(self) -> dict[str, Any]:
        """Of the last prefill: prompt_tokens, matched_tokens, reused_tokens, computed_tokens and resume_source ("empty"
        or "live"); since the last reset: hits and misses."""
        with self._lock:
            return {**self._last, "hits": self._hits, "misses": self._misses, "snapshots": 0, "snapshot_bytes": 0}

    def _take_back(self) -> None:
        """A scheduler has given the runtime back: its sequences are gone, and so is this one."""
        with self._lock:
            self._session = _native.Session(self._runtime)
            self._new_statistics()

    def _need_prefill(self) -> None:
        if self._session.position == 0:
            raise ConfigurationError("The engine has no sequence yet: call prefill first.")

    def _draw(self) -> int:
        options = self.options
        return self._draw_token(
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            generator=self._random,
        )

    def _result(self, started: float, computed: int, reused: int) -> QwenForwardResult:
        top = self._session.top(_NUM_TOP_LOGITS)
        return QwenForwardResult(
            next_token=self._draw(),
            position=self._session.position,
            top_tokens=tuple(token for token, _ in top),
            top_logits=tuple(logit for _, logit in top),
            computed_tokens=computed,
            reused_tokens=reused,
            elapsed_seconds=time.perf_counter() - started,
        )

    def _note_reuse(self, num_prompt: int, reused: int) -> None:
        self._hits += reused > 0
        self._misses += reused == 0
        self._last = {
            "prompt_tokens": num_prompt,
            "matched_tokens": reused,
            "reused_tokens": reused,
            "computed_tokens": num_prompt - reused,
            "resume_source": "live" if reused else "empty",
        }
