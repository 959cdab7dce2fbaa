"""A scripted model for the server's tests: it keeps the contract of AsyncLLM without an engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from pocketllm.async_stream import Take
from pocketllm.errors import (
    BackendUnavailableError,
    DuplicateRequestError,
    EngineError,
    PocketLLMError,
    RequestCancelledError,
    UnsupportedFeatureError,
)
from pocketllm.fields.requests import check_request
from pocketllm.fields.token_ids import check_token_ids
from pocketllm.prompt.builder import PromptBuilder
from pocketllm.types import (
    CancelReason,
    Capabilities,
    ChoiceResult,
    EngineStats,
    GenerationRequest,
    GenerationResult,
    HealthStatus,
    LogprobEntry,
    TimingMetrics,
    TokenEvent,
    Usage,
)

EVERYTHING = Capabilities(
    name="fake",
    max_model_len=4096,
    vocab_size=1000,
    max_batch_size=8,
    supports_batch=True,
    supports_logprobs=True,
    supports_structured_outputs=True,
    supports_min_p=True,
    supports_penalties=True,
    supports_logit_bias=True,
    supports_min_tokens=True,
    supports_ignore_eos=True,
    supports_stop_token_ids=True,
    supports_tool_choice=True,
    supports_suffix=True,
    supports_priority=True,
    per_request_sampling=True,
    per_request_top_k=True,
    supports_streamed_usage=True,
    supports_streamed_logprobs=True,
)
ECHOING = msgspec.structs.replace(EVERYTHING, supports_prompt_logprobs=True)
GUIDE = Capabilities(
    name="fake",
    max_model_len=4096,
    vocab_size=1000,
    supports_logprobs=True,
    per_request_sampling=True,
    per_request_top_k=True,
)
FIXED = Capabilities(name="fake", max_model_len=4096, vocab_size=1000, temperature=0.7, top_p=0.9, top_k=20, seed=3)


class Script(msgspec.Struct, kw_only=True):
    """What every choice answers: ``texts`` one per token, then one stop token that no event shows."""

    texts: tuple[str, ...] = ("Hello", ",", " world", "!")
    reasoning: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()
    finish: str = "stop"
    fail_after: int | None = None
    """The engine fails after this many tokens."""
    raise_after: int | None = None
    """Reading the stream raises something unexpected after this many tokens."""
    pause_s: float = 0.0
    endless: bool = False


class FakeTokenizer:
    """Words for tokens: id i is the word ``wi`` with a space behind it, and 0 begins every text."""

    bos_token_id = 0

    def token_text(self, token_id: int) -> str:
        return f"w{token_id} " if token_id else "<s>"

    def token_bytes(self, token_id: int) -> bytes:
        return self.token_text(token_id).encode()

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return "".join(self.token_text(token_id) for token_id in ids)


class FakeHost:
    tokenizer = FakeTokenizer()

    @property
    def prompts(self) -> PromptBuilder:
        raise UnsupportedFeatureError("The scripted model brings no tokenizer: use a real one.")


class FakeLLM:
    """See :class:`pocketllm_server.models.client.ModelClient`."""

    def __init__(self, script: Script | None = None, capabilities: Capabilities = EVERYTHING) -> None:
        self.script = script or Script()
        self.declared = capabilities
        self.host = FakeHost()
        self.status = "loading"
        self.epoch = 1
        self.requests: list[GenerationRequest] = []
        self.active: dict[str, FakeStream] = {}
        self.left: list[str] = []
        """Requests whose last reader went before their end."""
        self.refusal: PocketLLMError | None = None
        self.load_error: PocketLLMError | None = None
        self.hold_loading = False
        self.closed = False

    async def start(self) -> None:
        if self.status == "loading" and not self.hold_loading:
            self.status = "ready" if self.load_error is None else "failed"

    async def ready(self) -> None:
        await self.start()
        while self.status == "loading":  # noqa: ASYNC110  # tests change the status as they like
            await asyncio.sleep(0.01)
        if self.load_error is not None:
            raise self.load_error

    @property
    def capabilities(self) -> Capabilities:
        if self.status != "ready":
            raise BackendUnavailableError(f"The engine is {self.status}.")
        return self.declared

    async def changed(self) -> None:
        await asyncio.sleep(0.01)  # tests change the status as they like

    def health(self) -> HealthStatus:
        return HealthStatus(
            status=self.status, backend="fake", ready=self.status == "ready", details={"epoch": self.epoch}
        )

    async def submit(self, request: GenerationRequest) -> FakeStream:
        capabilities = self.capabilities
        check_request(request, capabilities)
        check_token_ids("prompt", request.prompt_tokens, capabilities.vocab_size)
        await asyncio.sleep(0)
        if self.refusal is not None and "warm_up" not in request.metadata:
            raise self.refusal
        if request.request_id in self.active:
            raise DuplicateRequestError(f"{request.request_id} is active.", param="request_id")
        stream = FakeStream(self, request)
        if "warm_up" not in request.metadata:
            self.requests.append(request)
            self.active[request.request_id] = stream
        return stream

    def cancel(self, request_id: str, reason: CancelReason = CancelReason.CLIENT) -> bool:
        """As core's host: by a request's own id, or by that of a call of several prompts."""
        streams = [stream for stream in self.active.values() if request_id in stream.ids]
        for stream in streams:
            stream.cancelled = True
        return bool(streams)

    def stats(self) -> EngineStats:
        return EngineStats(num_running=len(self.active), num_free_slots=8 - len(self.active))

    async def close(self, deadline_s: float = 5.0) -> None:
        self.closed = True
        self.status = "closed"


class FakeRecord:
    """The request as an engine gets it, and the log probabilities of its prompt."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.prompt_logprobs: tuple[LogprobEntry | None, ...] | None = None
        self.failure: PocketLLMError | None = None
        if request.sampling_params.prompt_logprobs:
            num_top = request.sampling_params.num_top_logprobs
            texts = [FakeTokenizer().token_text(token) for token in request.prompt_tokens[1:]]
            self.prompt_logprobs = (None, *(_entry(text, num_top) for text in texts))


class FakeStream:
    def __init__(self, model: FakeLLM, request: GenerationRequest) -> None:
        self._model = model
        self._request = request
        self.cancelled = False
        self._finished = False
        tokens = request.prompt_tokens or tuple(range(len((request.prompt or "").split())))
        self.num_prompt_tokens = len(tokens)
        self.record = FakeRecord(msgspec.structs.replace(request, prompt_tokens=tokens))

    @property
    def request_id(self) -> str:
        return self._request.request_id

    @property
    def ids(self) -> tuple[str | None, ...]:
        return self._request.request_id, self._request.call_id

    async def forward(self, take: Take) -> None:
        async for event in self._events():
            busy = take([event])
            if busy is not None:
                await busy

    async def _events(self) -> AsyncIterator[TokenEvent]:
        script, params = self._model.script, self._request.sampling_params
        num_choices = params.n
        limit = params.max_tokens if params.max_tokens is not None else 1_000_000
        texts = list(script.texts[:limit])
        num_generated = 0
        finish, error = (script.finish if len(script.texts) < limit or script.endless else "length"), None
        position = 0
        while position < (limit if script.endless else len(texts)):
            await asyncio.sleep(script.pause_s)
            if self.cancelled:
                finish = "cancelled"
                break
            if script.fail_after == position:
                finish, error = "error", "the device is on fire"
                break
            if script.raise_after == position:
                raise KeyError("a bug")
            for index in range(num_choices):
                num_generated += 1
                text = texts[position % len(texts)]
                yield TokenEvent(
                    request_id=self.request_id,
                    choice_index=index,
                    text=text,
                    reasoning_content=script.reasoning if position == 0 else "",
                    token_ids=(position % 1000,),
                    logprobs=(_entry(text, params.num_top_logprobs),) if params.logprobs else (),
                )
            position += 1
        num_generated += num_choices if finish == "stop" else 0
        self._finished = True
        self._model.active.pop(self.request_id, None)
        for index in range(num_choices):
            last = index == num_choices - 1
            yield TokenEvent(
                request_id=self.request_id,
                choice_index=index,
                finish_reason=finish,
                error=error,
                metadata={"tool_calls": list(script.tool_calls)} if script.tool_calls else {},
                usage=Usage(prompt_tokens=self.num_prompt_tokens, completion_tokens=num_generated) if last else None,
                timings=TimingMetrics(ttft_seconds=0.001, total_seconds=0.002) if last else None,
            )

    async def result(self) -> GenerationResult:
        events = [event async for event in self._events()]
        by_choice: dict[int, list[TokenEvent]] = {}
        for event in events:
            by_choice.setdefault(event.choice_index, []).append(event)
        choices = tuple(
            ChoiceResult(
                index=index,
                text="".join(event.text for event in mine),
                reasoning_content="".join(event.reasoning_content for event in mine) or None,
                token_ids=tuple(token for event in mine for token in event.token_ids),
                finish_reason=mine[-1].finish_reason or "error",
                tool_calls=tuple(mine[-1].metadata.get("tool_calls", ())),
                logprobs=tuple(e for event in mine for e in event.logprobs)
                if self._request.sampling_params.logprobs
                else None,
                error=mine[-1].error,
            )
            for index, mine in sorted(by_choice.items())
        )
        if all(choice.finish_reason == "cancelled" for choice in choices):
            raise RequestCancelledError("cancelled")
        if all(choice.finish_reason == "error" for choice in choices):
            raise EngineError(f"The engine failed: {choices[0].error}")
        last = events[-1]
        return GenerationResult(
            request_id=self.request_id,
            choices=choices,
            usage=last.usage or Usage(),
            timings=last.timings or TimingMetrics(),
        )

    async def aclose(self) -> None:
        if not self._finished:
            self._finished = True
            self._model.active.pop(self.request_id, None)
            self._model.left.append(self.request_id)


def _entry(text: str, num_top: int) -> LogprobEntry:
    top = [
        LogprobEntry(token=text + "'" * i, logprob=-0.5 - i, bytes=list(text.encode()), token_id=i)
        for i in range(num_top)
    ]
    return LogprobEntry(token=text, logprob=-0.5, bytes=list(text.encode()), token_id=0, top_logprobs=top)
