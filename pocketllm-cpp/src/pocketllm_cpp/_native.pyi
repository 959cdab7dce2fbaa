"""
The engine as it is in C++. Private to pocketllm_cpp, whose Python modules say what is public.
"""

from collections.abc import Callable, Sequence
from typing import Any


def families() -> list[str]:
    """The model_type of every family this build has."""

def check_config(config: str) -> None:
    """
    Reads the text of a config.json. Raises ConfigurationError, CheckpointError or UnsupportedFeatureError, with the field's name, for one that this build cannot run. Milliseconds; any thread.
    """

def reads_dtype(name: str) -> bool:
    """
    Whether stored tensors of that type are read; names as GGUF ("Q4_K") and safetensors ("BF16") have them.
    """

backend: str = 'cpu'

def devices() -> list[str]:
    """The devices that this build can run on."""

def instruction_set() -> str:
    """What the products run on here: "scalar", "avx2", "avx512" or "neon"."""

class Runtime:
    """
    A loaded model with its threads and caches. A session or an engine runs on it; the one made last has it. Its properties are constant and may be read from any thread.
    """

    def __init__(self, path: str, config: str, *, device: str = "cpu", activation: str = "int8", kv_type: str = "F16", num_threads: int = 0, max_model_len: int = 0, num_slots: int = 1, kv_cache_bytes: int = 0, num_snapshots: int | None = None, num_layers: int = 0, progress: Callable[[float], None] | None = None) -> None:
        """
        Loads the weights, in seconds, without the interpreter's lock. path is a file or a folder of shards, config the text of its config.json. 0 leaves a number to the engine: num_threads one per core, max_model_len the checkpoint's, kv_cache_bytes what num_slots sequences take but at most a quarter of the device's memory, num_layers all. num_snapshots: recurrent states kept for reuse. progress is called with the fraction done, on the calling thread, a few times a second. Raises CheckpointError, ConfigurationError or UnsupportedFeatureError.
        """

    @property
    def device(self) -> str:
        """The device that the model runs on, as devices() names it."""

    @property
    def max_model_len(self) -> int:
        """Positions a sequence may hold; never more than the cache can."""

    @property
    def num_slots(self) -> int:
        """Sequences that an engine may run together."""

    @property
    def num_threads(self) -> int:
        """Threads of one step."""

    @property
    def vocab_size(self) -> int:
        """Rows of the head; ids past the tokenizer's vocabulary are padding."""

    @property
    def is_recurrent(self) -> bool:
        """Some layers keep a state instead of keys and values."""

    @property
    def weights_bytes(self) -> int:
        """Memory of the weights, as packed."""

    @property
    def kv_bytes(self) -> int:
        """Memory of the key/value cache."""

    @property
    def num_kv_blocks(self) -> int:
        """Blocks of the key/value cache."""

    @property
    def kv_block_size(self) -> int:
        """Positions of one block."""

    @property
    def state_bytes(self) -> int:
        """
        Memory of the recurrent states of num_slots sequences; 0 for models without.
        """

class SamplingParams:
    """
    How a request is sampled. A value: submit() copies it. Core has checked the ranges, which are not checked again.
    """

    def __init__(self) -> None: ...

    @property
    def temperature(self) -> float:
        """At most 1e-5: greedy."""

    @temperature.setter
    def temperature(self, arg: float, /) -> None: ...

    @property
    def top_p(self) -> float:
        """Above 0 and at most 1, which is off."""

    @top_p.setter
    def top_p(self, arg: float, /) -> None: ...

    @property
    def top_k(self) -> int:
        """0: no limit."""

    @top_k.setter
    def top_k(self, arg: int, /) -> None: ...

    @property
    def min_p(self) -> float:
        """
        From 0, which is off, to 1: tokens less likely than this share of the likeliest are left out.
        """

    @min_p.setter
    def min_p(self, arg: float, /) -> None: ...

    @property
    def repetition_penalty(self) -> float:
        """Above 0; 1 is off. Acts on tokens of the prompt and the answer."""

    @repetition_penalty.setter
    def repetition_penalty(self, arg: float, /) -> None: ...

    @property
    def frequency_penalty(self) -> float:
        """Taken from a logit for every time the answer has the token; 0 is off."""

    @frequency_penalty.setter
    def frequency_penalty(self, arg: float, /) -> None: ...

    @property
    def presence_penalty(self) -> float:
        """Taken from the logit of a token that the answer has; 0 is off."""

    @presence_penalty.setter
    def presence_penalty(self, arg: float, /) -> None: ...

    @property
    def logit_bias(self) -> list[tuple[int, float]]:
        """(token id, what is added to its logit) pairs."""

    @logit_bias.setter
    def logit_bias(self, arg: Sequence[tuple[int, float]], /) -> None: ...

    @property
    def max_tokens(self) -> int:
        """
        Tokens of the answer, 1 or more, the prompt and they together at most the context.
        """

    @max_tokens.setter
    def max_tokens(self, arg: int, /) -> None: ...

    @property
    def min_tokens(self) -> int:
        """No stop id is drawn before this many tokens."""

    @min_tokens.setter
    def min_tokens(self, arg: int, /) -> None: ...

    @property
    def logprobs(self) -> bool:
        """Report natural-log probabilities of drawn tokens."""

    @logprobs.setter
    def logprobs(self, arg: bool, /) -> None: ...

    @property
    def num_top_logprobs(self) -> int:
        """The likeliest tokens to report beside each drawn one."""

    @num_top_logprobs.setter
    def num_top_logprobs(self, arg: int, /) -> None: ...

    @property
    def prompt_logprobs(self) -> bool:
        """Report the prompt's natural-log probabilities too."""

    @prompt_logprobs.setter
    def prompt_logprobs(self, arg: bool, /) -> None: ...

class Session:
    """
    One sequence driven token by token. It may be used until something else takes its runtime; afterwards all methods raise ConfigurationError. Calls from several threads wait for each other, without the interpreter's lock. Methods that append raise ConfigurationError, and change nothing, for an id outside the vocabulary or a full context.
    """

    def __init__(self, runtime: Runtime) -> None:
        """
        Takes the runtime from the session before. Raises ConfigurationError while an engine has it.
        """

    def reset(self) -> None:
        """Forgets the sequence."""

    def prefill(self, tokens: Sequence[int]) -> None:
        """
        Makes tokens the whole sequence; what it shares with the sequence before is not computed again. Leaves one row of logits.
        """

    def decode_step(self, token: int) -> None:
        """Appends one token. Leaves one row of logits."""

    def verify_step(self, tokens: Sequence[int]) -> None:
        """Appends all tokens in one pass. Leaves a row of logits for each."""

    def truncate(self, num_tokens: int) -> None:
        """
        Takes back the newest tokens. Raises UnsupportedFeatureError for models with recurrent layers, ConfigurationError when there are fewer.
        """

    @property
    def position(self) -> int:
        """Tokens of the sequence."""

    @property
    def num_reused_tokens(self) -> int:
        """Tokens that the last prefill did not compute again."""

    @property
    def num_rows(self) -> int:
        """Rows of logits that the last call left."""

    def argmax(self, row: int = -1) -> int:
        """
        The id with the largest logit of a row; -1 is the last row. Of equal ones, the lowest id.
        """

    def top(self, count: int, row: int = -1) -> list[tuple[int, float]]:
        """count (id, logit) pairs of a row, largest first."""

    def pick(self, sampling: SamplingParams, number: float, row: int = -1) -> int:
        """
        One id of a row, by temperature, top_k, top_p and min_p and a uniform number in [0, 1).
        """

    def logits(self, row: int = -1) -> bytes:
        """One row of raw logits: vocab_size floats in the machine's byte order."""

class EngineStats:
    """The counters of an engine at one moment. Totals never decrease."""

    @property
    def num_running(self) -> int:
        """Sequences that have a slot."""

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue."""

    @property
    def num_steps(self) -> int:
        """Steps in all."""

    @property
    def num_slots(self) -> int:
        """Sequences that may run together."""

    @property
    def num_free_slots(self) -> int:
        """Slots that no sequence has."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""

    @property
    def num_free_blocks(self) -> int:
        """
        Blocks that no sequence holds; those kept for their prefix are among them.
        """

    @property
    def num_cached_blocks(self) -> int:
        """Blocks whose prefix can be reused."""

    @property
    def num_preemptions(self) -> int:
        """Times a sequence lost its blocks and had to wait, in all."""

    @property
    def num_prompt_tokens(self) -> int:
        """Prompt tokens computed in all."""

    @property
    def num_generated_tokens(self) -> int:
        """Tokens drawn in all."""

    @property
    def num_completed(self) -> int:
        """Sequences that ended by a stop id or a limit, in all."""

    @property
    def num_cancelled(self) -> int:
        """Sequences that ended as cancelled, in all."""

    @property
    def prefix_cache_hits(self) -> int:
        """Admissions that reused something, in all."""

    @property
    def prefix_cache_misses(self) -> int:
        """Admissions that found nothing to reuse, in all."""

    @property
    def prefix_cache_reused_tokens(self) -> int:
        """Prompt tokens that were not computed again, in all."""

class Engine:
    """
    Continuous batching on a thread of its own, which has the runtime until give_back. Methods may be called from any thread, drain from one at a time. After give_back all but close and give_back raise EngineError.
    """

    def __init__(self, runtime: Runtime, *, max_batch_size: int, prefill_token_budget: int, prefill_tokens_beside_decodes: int = 0, prefix_cache: bool, vocab_size: int) -> None:
        """
        max_batch_size is cut to the runtime's slots. prefill_token_budget: prompt tokens one step may compute, 0 for whole prompts; prefill_tokens_beside_decodes: the same for steps in which other sequences decode, 0 for the budget. vocab_size: ids that may be generated, 0 for the model's. Raises ConfigurationError while another engine has the runtime.
        """

    def submit(self, prompt: Sequence[int], choices: Sequence[tuple[int, int, int, int]], sampling: SamplingParams, stop_ids: Sequence[int], priority: int, cache_salt: str) -> None:
        """
        Queues a request: one sequence for each choice, which is (handle, seed, and the addresses of a matcher's functions and object, or 0 and 0). Takes over the matchers, also when it raises: ConfigurationError for an id outside the vocabulary or a prompt that leaves no room for a token, EngineError when the engine is closed or broken.
        """

    def cancel(self, handle: int) -> None:
        """
        Ends a sequence at the next step boundary. A handle that is unknown or has ended is passed over.
        """

    def close(self, deadline_s: float) -> None:
        """
        Ends all sequences as cancelled, waits for the step under way but no longer than deadline_s seconds, and takes no request afterwards. Closing again, or after give_back, does nothing.
        """

    def give_back(self) -> None:
        """
        Closes the engine, waits for its thread, drops what was not drained, and lets others have the runtime. Idempotent.
        """

    def stats(self) -> EngineStats:
        """The counters now."""

    def set_prefill_token_budget(self, num_tokens: int) -> None:
        """
        Prompt tokens that steps may compute from now on, also beside decodes; 0 for whole prompts.
        """

    def fileno(self) -> int:
        """
        A descriptor that is readable while batches wait; the engine's, so nobody else closes it.
        """

    def drain(self) -> list[tuple[Any, ...]]:
        """
        All waiting batches, without blocking: (handles, tokens, flags, logprobs, prompts, finished, fatal) each, the columns of core's StepBatch.
        """

    @property
    def max_batch_size(self) -> int:
        """Sequences that run together, after clamping."""

    @property
    def prefill_token_budget(self) -> int:
        """Prompt tokens one step may compute; 0: whole prompts."""

    @property
    def prefill_tokens_beside_decodes(self) -> int:
        """Prompt tokens of a step in which others decode; 0: the budget."""

class GrammarVocabulary:
    """
    A vocabulary as the grammar library indexes it. Making one takes a fraction of a second, without the interpreter's lock; immutable, so any thread. Raises ConfigurationError when the library refuses it.
    """

    def __init__(self, functions: dict[str, int], tokens: list[bytes], end_token: int) -> None: ...

class TagTokens:
    """
    What a vocabulary has to do with the tag that ends the reasoning: which tokens are white space, and which would go past the tag. Immutable, so any thread.
    """

    def __init__(self, tokens: list[bytes], tag: str) -> None: ...

class Grammar:
    """
    One compiled constraint, from text in the grammar library's own format. Any thread. Raises ConfigurationError when the library refuses it.
    """

    def __init__(self, vocabulary: GrammarVocabulary, text: str, limits: dict[str, int]) -> None: ...

    def matcher_pointers(self, stop_ids: Sequence[int], after: TagTokens | None = None, is_begun: bool = True, opening_token: int = -1) -> tuple[int, int]:
        """
        A matcher at the start of the text, as the addresses of its table of functions and of its object. The caller calls the table's release once; Engine.submit takes that over. Needs no interpreter's lock afterwards.
        """
