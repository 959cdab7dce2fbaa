"""
The engine as it is in C++. Private to pocketllm_cpp, whose Python modules say what is public.
"""

from collections.abc import Callable, Sequence
from typing import Any


def families() -> list[str]:
    """The model_type of every family this build has."""

def check_config(config: str) -> None:
    """Raises for the text of a config.json that this build cannot run."""

def reads_dtype(name: str) -> bool:
    """
    Whether stored tensors of that type are read; GGUF's and safetensors' names.
    """

backend: str = 'cpu'

def instruction_set() -> str:
    """What the products run on here: "scalar", "avx2", "avx512" or "neon"."""

class Runtime:
    """A loaded model with its threads and caches; see csrc/engine/runtime.h."""

    def __init__(self, path: str, config: str, *, activation: str = "int8", kv_type: str = "F16", num_threads: int = 0, max_model_len: int = 0, num_slots: int = 1, kv_cache_bytes: int = 0, num_snapshots: int | None = None, num_layers: int = 0, progress: Callable[[float], None] | None = None) -> None: ...

    @property
    def max_model_len(self) -> int: ...

    @property
    def num_slots(self) -> int: ...

    @property
    def num_threads(self) -> int: ...

    @property
    def model_type(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def num_layers(self) -> int: ...

    @property
    def is_recurrent(self) -> bool:
        """Some layers keep a state instead of keys and values."""

    @property
    def weights_bytes(self) -> int: ...

    @property
    def bytes_per_token(self) -> int:
        """Bytes of weights that computing one token reads."""

    @property
    def kv_bytes(self) -> int: ...

    @property
    def num_kv_blocks(self) -> int: ...

    @property
    def kv_block_size(self) -> int: ...

    @property
    def state_bytes(self) -> int: ...

class SamplingParams:
    """As in csrc/engine/request.h; checked by core before."""

    def __init__(self) -> None: ...

    @property
    def temperature(self) -> float: ...

    @temperature.setter
    def temperature(self, arg: float, /) -> None: ...

    @property
    def top_p(self) -> float: ...

    @top_p.setter
    def top_p(self, arg: float, /) -> None: ...

    @property
    def top_k(self) -> int: ...

    @top_k.setter
    def top_k(self, arg: int, /) -> None: ...

    @property
    def min_p(self) -> float: ...

    @min_p.setter
    def min_p(self, arg: float, /) -> None: ...

    @property
    def repetition_penalty(self) -> float: ...

    @repetition_penalty.setter
    def repetition_penalty(self, arg: float, /) -> None: ...

    @property
    def frequency_penalty(self) -> float: ...

    @frequency_penalty.setter
    def frequency_penalty(self, arg: float, /) -> None: ...

    @property
    def presence_penalty(self) -> float: ...

    @presence_penalty.setter
    def presence_penalty(self, arg: float, /) -> None: ...

    @property
    def logit_bias(self) -> list[tuple[int, float]]: ...

    @logit_bias.setter
    def logit_bias(self, arg: Sequence[tuple[int, float]], /) -> None: ...

    @property
    def max_tokens(self) -> int: ...

    @max_tokens.setter
    def max_tokens(self, arg: int, /) -> None: ...

    @property
    def min_tokens(self) -> int: ...

    @min_tokens.setter
    def min_tokens(self, arg: int, /) -> None: ...

    @property
    def logprobs(self) -> bool: ...

    @logprobs.setter
    def logprobs(self, arg: bool, /) -> None: ...

    @property
    def num_top_logprobs(self) -> int: ...

    @num_top_logprobs.setter
    def num_top_logprobs(self, arg: int, /) -> None: ...

    @property
    def prompt_logprobs(self) -> bool: ...

    @prompt_logprobs.setter
    def prompt_logprobs(self, arg: bool, /) -> None: ...

class Session:
    """One sequence driven token by token; see csrc/engine/session.h."""

    def __init__(self, runtime: Runtime) -> None: ...

    def reset(self) -> None: ...

    def prefill(self, tokens: Sequence[int]) -> None: ...

    def decode_step(self, token: int) -> None: ...

    def verify_step(self, tokens: Sequence[int]) -> None: ...

    def truncate(self, num_tokens: int) -> None: ...

    @property
    def position(self) -> int: ...

    @property
    def num_reused_tokens(self) -> int: ...

    @property
    def num_rows(self) -> int:
        """Rows of logits that the last call gave."""

    def argmax(self, row: int = -1) -> int: ...

    def top(self, count: int, row: int = -1) -> list[tuple[int, float]]:
        """(id, logit) pairs, largest first."""

    def pick(self, sampling: SamplingParams, number: float, row: int = -1) -> int:
        """
        One id, by temperature, top_k, top_p and min_p and a uniform number in [0, 1).
        """

    def logits(self, row: int = -1) -> bytes:
        """One row of raw logits: vocab_size floats in the machine's byte order."""

class EngineStats:
    """A snapshot of the counters; see csrc/engine/engine.h."""

    @property
    def num_running(self) -> int: ...

    @property
    def num_waiting(self) -> int: ...

    @property
    def num_steps(self) -> int: ...

    @property
    def num_slots(self) -> int: ...

    @property
    def num_free_slots(self) -> int: ...

    @property
    def num_blocks(self) -> int: ...

    @property
    def num_free_blocks(self) -> int: ...

    @property
    def num_cached_blocks(self) -> int: ...

    @property
    def num_preemptions(self) -> int: ...

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def num_generated_tokens(self) -> int: ...

    @property
    def num_completed(self) -> int: ...

    @property
    def num_cancelled(self) -> int: ...

    @property
    def prefix_cache_hits(self) -> int: ...

    @property
    def prefix_cache_misses(self) -> int: ...

    @property
    def prefix_cache_reused_tokens(self) -> int: ...

class Engine:
    """Continuous batching on a thread of its own; see csrc/engine/engine.h."""

    def __init__(self, runtime: Runtime, *, max_batch_size: int, prefill_token_budget: int, prefill_tokens_beside_decodes: int = 0, prefix_cache: bool, vocab_size: int) -> None: ...

    def submit(self, prompt: Sequence[int], choices: Sequence[tuple[int, int, int, int]], sampling: SamplingParams, stop_ids: Sequence[int], priority: int, cache_salt: str) -> None: ...

    def cancel(self, handle: int) -> None: ...

    def close(self, deadline_s: float) -> None:
        """
        Ends all sequences as cancelled, waits for the step under way but no longer than deadline_s seconds, and takes no request afterwards. Closing again, or after give_back, does nothing.
        """

    def give_back(self) -> None:
        """Ends the engine and lets others have the runtime."""

    def stats(self) -> EngineStats: ...

    def set_prefill_token_budget(self, num_tokens: int) -> None: ...

    def clear_prefix_cache(self) -> None: ...

    def fileno(self) -> int: ...

    def drain(self) -> list[tuple[Any, ...]]:
        """
        Waiting batches: (handles, tokens, flags, logprobs, prompts, finished, fatal) each.
        """

    @property
    def max_batch_size(self) -> int: ...

    @property
    def prefill_token_budget(self) -> int: ...

    @property
    def prefill_tokens_beside_decodes(self) -> int: ...

class GrammarVocabulary:
    """A vocabulary as the grammar library indexes it."""

    def __init__(self, functions: dict[str, int], tokens: list[bytes], end_token: int) -> None: ...

class TagTokens:
    """What a vocabulary has to do with the tag that ends the reasoning."""

    def __init__(self, tokens: list[bytes], tag: str) -> None: ...

class Grammar:
    """One compiled constraint; see csrc/structured/grammar.h."""

    def __init__(self, vocabulary: GrammarVocabulary, text: str, limits: dict[str, int]) -> None: ...

    def matcher_pointers(self, stop_ids: Sequence[int], after: TagTokens | None = None, is_begun: bool = True, opening_token: int = -1) -> tuple[int, int]:
        """
        A matcher at the start of the text, as the addresses of its table of functions and of its object. The caller calls the table's release once; Engine.submit takes that over. Needs no interpreter's lock afterwards.
        """
