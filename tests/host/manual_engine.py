"""A backend under the test's control, and a host that is driven by hand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pocketllm.checkpoint import Checkpoint
from pocketllm.engine.call import GenerateCall
from pocketllm.engine.outbox import Outbox
from pocketllm.engine_args import EngineArgs
from pocketllm.hookspecs import LoadReport, hookimpl
from pocketllm.host.engine_host import EngineHost
from pocketllm.host.record import RequestRecord
from pocketllm.host.state import HostLimits
from pocketllm.plugins.registry import Registry
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import (
    BackendInfo,
    Capabilities,
    EngineStats,
    Finish,
    GenerationRequest,
    Offer,
    StepBatch,
    TokenEvent,
    TokenFlag,
    TokenLogprob,
)

FULL = Capabilities(
    name="manual",
    max_model_len=64,
    max_batch_size=8,
    per_request_sampling=True,
    per_request_top_k=True,
    supports_logprobs=True,
    supports_prompt_logprobs=True,
    supports_stop_token_ids=True,
    supports_ignore_eos=True,
    supports_min_tokens=True,
)


class ManualEngine:
    """Accepts everything and says nothing by itself."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities
        self.events = Outbox()
        self.requests: list[GenerationRequest] = []
        self.cancelled: list[tuple[int, str]] = []
        self.closed = False
        self.deaf = False
        self.on_generate: Callable[[GenerateCall], bool] | None = None

    @hookimpl
    def pocketllm_capabilities(self) -> Capabilities:
        return self._capabilities

    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> bool:
        if self.on_generate is not None:
            return self.on_generate(call)
        self.requests.append(call.request)
        return True

    @hookimpl
    def pocketllm_cancel(self, handle: int, reason: str) -> None:
        self.cancelled.append((handle, reason))
        if not self.deaf:
            self.finish(handle, "cancelled")

    @hookimpl
    def pocketllm_stats(self) -> EngineStats:
        return EngineStats(num_running=len(self.requests))

    @hookimpl
    def pocketllm_close(self, deadline_s: float) -> None:
        self.closed = True

    def post(self, handle: int, *tokens: int, logprob: float | None = None) -> None:
        """One batch with these tokens for one sequence."""
        self.events.post(
            StepBatch(
                handles=[handle] * len(tokens),
                tokens=list(tokens),
                flags=[0] * len(tokens),
                logprobs=[] if logprob is None else [TokenLogprob(row, logprob) for row in range(len(tokens))],
            )
        )

    def post_stop(self, handle: int, token: int) -> None:
        """The step that gave a stop id, and the end."""
        self.events.post(
            StepBatch(
                handles=[handle],
                tokens=[token],
                flags=[int(TokenFlag.STOP)],
                finished=[Finish(handle=handle, reason="stop")],
            )
        )

    def finish(self, handle: int, reason: str, error: str | None = None) -> None:
        self.events.post(StepBatch(finished=[Finish(handle=handle, reason=reason, error=error)]))

    def break_down(self, reason: str) -> None:
        self.events.post(StepBatch(fatal=reason))


class ManualBackend:
    """Opens :class:`ManualEngine`; ``opened`` keeps them all, ``failures`` are raised by the next opens."""

    def __init__(self, capabilities: Capabilities = FULL) -> None:
        self.capabilities = capabilities
        self.opened: list[ManualEngine] = []
        self.failures: list[BaseException] = []
        self.without_events = False
        self.may_open = threading.Event()
        self.may_open.set()

    @property
    def engine(self) -> ManualEngine:
        return self.opened[-1]

    @hookimpl
    def pocketllm_backend(self) -> BackendInfo:
        return BackendInfo(name="manual", model_formats=("safetensors", "gguf"), devices=("cpu",))

    @hookimpl
    def pocketllm_probe(self, checkpoint: Checkpoint, args: EngineArgs) -> Offer:
        return Offer(rank=50, reason="driven by a test")

    @hookimpl
    def pocketllm_open(self, args: EngineArgs, checkpoint: Checkpoint, report: LoadReport) -> ManualEngine:
        report("weights", 0.5)
        assert self.may_open.wait(30)
        if self.failures:
            raise self.failures.pop(0)
        engine = ManualEngine(self.capabilities)
        if self.without_events:
            del engine.events
        self.opened.append(engine)
        return engine


FAST_LIMITS = HostLimits(restart_delay_s=0.01, cancel_grace_s=0.2, heartbeat_s=0.1)


class DrivenHost:
    """A host without a driver: the test says when events are drained."""

    def __init__(
        self,
        path: Path,
        backend: ManualBackend,
        *,
        extensions: Mapping[str, object] | None = None,
        limits: HostLimits = FAST_LIMITS,
        wait: bool = True,
        **args: Any,
    ) -> None:
        self.backend = backend
        self.registry = Registry.of_objects(backends={"manual": backend}, extensions=extensions)
        self.host = EngineHost(EngineArgs(model=str(path), **args), registry=self.registry, limits=limits)
        self.host.start()
        if wait:
            self.host.wait_ready(30)

    @property
    def engine(self) -> ManualEngine:
        return self.backend.engine

    def submit(self, prompt: str = "hello", **sampling: Any) -> Reader:
        request = GenerationRequest(prompt=prompt, sampling_params=SamplingParams(**sampling))
        return self.submit_request(request)

    def submit_request(self, request: GenerationRequest) -> Reader:
        return Reader(self, self.host.submit(request))

    def ids(self, text: str) -> list[int]:
        return self.host.tokenizer.encode(text)

    def drain(self) -> None:
        self.host.drain_events()

    def drain_until(self, condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
        """Drain until something that another thread brings about is so."""
        give_up_at = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < give_up_at, "waited too long"
            self.drain()
            time.sleep(0.005)
        self.drain()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.backend.may_open.set()
        self.host.close(1.0)
        self.host.drain_events()
        self.host.release()


class Reader:
    """A subscriber that reads when the test says so."""

    def __init__(self, driven: DrivenHost, record: RequestRecord) -> None:
        self.driven = driven
        self.record = record
        self.num_wakes = 0
        self.subscription = record.subscribe(self._wake)

    def _wake(self) -> None:
        self.num_wakes += 1

    @property
    def handle(self) -> int:
        return self.record.request.choices[0].handle

    @property
    def handles(self) -> list[int]:
        return [choice.handle for choice in self.record.request.choices]

    def take(self) -> list[TokenEvent]:
        """Drain, then read what is new."""
        self.driven.drain()
        return self.subscription.take()
