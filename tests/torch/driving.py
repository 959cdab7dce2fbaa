"""Drives an engine by its hooks alone: submits requests, reads its events, checks the stream rules on the way."""

from __future__ import annotations

import itertools
import select
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pocketllm.checkpoint import open_checkpoint
from pocketllm.engine.call import GenerateCall
from pocketllm.engine_args import EngineArgs
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import (
    CancelReason,
    Choice,
    Finish,
    GenerationRequest,
    PromptReport,
    StepBatch,
    TokenFlag,
    TokenLogprob,
)
from pocketllm_torch.engine.engine import TorchEngine
from pocketllm_torch.engine.opening import open_engine

LIMIT_S = 60.0


@dataclass
class Stream:
    """Everything one handle received."""

    handle: int
    tokens: list[int] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt: PromptReport | None = None
    finish: Finish | None = None

    @property
    def reason(self) -> str | None:
        return None if self.finish is None else self.finish.reason


class Driver:
    """An open engine and the streams of what was submitted. Use from one thread."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine = engine
        self.streams: dict[int, Stream] = {}
        self.batches: list[StepBatch] = []
        self._handles = itertools.count(1)

    @classmethod
    def open(cls, path: Path, *, options: dict[str, Any] | None = None, **args: Any) -> Driver:
        engine_args = EngineArgs(model=str(path), backend_options=options or {}, **args)
        return cls(open_engine(engine_args, open_checkpoint(path), lambda stage, fraction: None))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.engine.pocketllm_close(LIMIT_S)
        self.engine.events.close()

    def submit(
        self,
        prompt: list[int],
        *,
        stop_ids: tuple[int, ...] = (),
        seed: int = 0,
        priority: int = 0,
        **params: Any,
    ) -> list[Stream]:
        """Queue one request; a stream per choice."""
        sampling = SamplingParams(**{"max_tokens": 8, **params})
        choices = tuple(Choice(next(self._handles), seed + index) for index in range(sampling.n))
        request = GenerationRequest(
            prompt_tokens=tuple(prompt),
            sampling_params=sampling,
            choices=choices,
            stop_token_ids=stop_ids,
            priority=priority,
        )
        streams = [Stream(choice.handle) for choice in choices]
        self.streams.update({stream.handle: stream for stream in streams})
        assert self.engine.pocketllm_generate(GenerateCall(request)) is True
        return streams

    def cancel(self, stream: Stream) -> None:
        self.engine.pocketllm_cancel(stream.handle, CancelReason.CLIENT)

    def poll(self, timeout_s: float = LIMIT_S) -> None:
        """Wait for events and hand them to their streams."""
        select.select([self.engine.events.fileno()], [], [], timeout_s)
        self.read()

    def read(self) -> None:
        for batch in self.engine.events.drain():
            self._deliver(batch)

    def wait(self, *streams: Stream) -> None:
        """Until the given streams, or all, have ended."""
        deadline = time.monotonic() + LIMIT_S
        while any(stream.finish is None for stream in streams or self.streams.values()):
            assert time.monotonic() < deadline, "the streams did not end in time"
            self.poll(1.0)

    def wait_for_tokens(self, stream: Stream, count: int) -> None:
        deadline = time.monotonic() + LIMIT_S
        while len(stream.tokens) < count and stream.finish is None:
            assert time.monotonic() < deadline, "no tokens in time"
            self.poll(1.0)

    def run(self, prompt: list[int], **params: Any) -> Stream:
        """Submit one request with one choice and wait for its end."""
        (stream,) = self.submit(prompt, **params)
        self.wait(stream)
        return stream

    def _deliver(self, batch: StepBatch) -> None:
        self.batches.append(batch)
        assert len(batch.handles) == len(batch.tokens) == len(batch.flags)
        for report in batch.prompts:
            stream = self.streams[report.handle]
            assert stream.prompt is None, "two prompt reports"
            assert not stream.tokens, "a prompt report after a token"
            stream.prompt = report
        logprobs = {entry.row: entry for entry in batch.logprobs}
        for row, (handle, token, flag) in enumerate(zip(batch.handles, batch.tokens, batch.flags, strict=True)):
            stream = self.streams[handle]
            assert stream.finish is None, "a token after the end"
            stream.tokens.append(token)
            stream.flags.append(flag)
            if row in logprobs:
                stream.logprobs.append(logprobs[row])
            assert flag in (TokenFlag.NONE, TokenFlag.STOP)
        for finish in batch.finished:
            stream = self.streams[finish.handle]
            assert stream.finish is None, "two ends"
            stream.finish = finish
