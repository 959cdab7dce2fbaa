"""Our native engine, driven through its hooks and events, with all that a request costs."""

from __future__ import annotations

import itertools
import select
import time
from collections.abc import Iterator

from pocketllm.checkpoint import open_checkpoint
from pocketllm.engine.call import GenerateCall
from pocketllm.engine_args import EngineArgs
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Choice, GenerationRequest
from pocketllm_cpp.opening import open_engine

MAX_MODEL_LEN = 2048


class Ours:
    def __init__(self, model: str, num_threads: int) -> None:
        self.model = model
        self.num_threads = num_threads
        args = EngineArgs(
            model=model,
            max_model_len=MAX_MODEL_LEN,
            max_batch_size=16,
            backend_options={"num_threads": num_threads, "prefix_cache": False},
        )
        self._engine = open_engine(args, open_checkpoint(model), lambda stage, fraction: None)
        self._handles: Iterator[int] = itertools.count(1)

    def prefill(self, prompt: list[int]) -> float:
        return self._generate([prompt], 1)[0]

    def decode(self, prompts: list[list[int]], count: int) -> float:
        return self._generate(prompts, count + 1)[1]

    def _generate(self, prompts: list[list[int]], count: int) -> tuple[float, float]:
        events = self._engine.events
        start = time.perf_counter()
        for prompt in prompts:
            self._submit(prompt, count)
        seen: set[int] = set()
        first = start
        num_ended = 0
        while num_ended < len(prompts):
            select.select([events.fileno()], [], [])
            for batch in events.drain():
                if len(seen) < len(prompts):
                    seen.update(batch.handles)
                    first = time.perf_counter()
                num_ended += len(batch.finished)
        return first - start, time.perf_counter() - first

    def keep_busy(self, prompts: list[list[int]], num_streams: int, count: int) -> float:
        """Seconds to answer all prompts with ``count`` tokens each, ``num_streams`` of them under way at any time."""
        events = self._engine.events
        waiting = list(prompts)
        num_running = num_ended = 0
        start = time.perf_counter()
        while num_ended < len(prompts):
            while waiting and num_running < num_streams:
                self._submit(waiting.pop(), count)
                num_running += 1
            select.select([events.fileno()], [], [])
            for batch in events.drain():
                num_running -= len(batch.finished)
                num_ended += len(batch.finished)
        return time.perf_counter() - start

    def _submit(self, prompt: list[int], count: int) -> None:
        request = GenerationRequest(
            prompt_tokens=tuple(prompt),
            sampling_params=SamplingParams(max_tokens=count),
            choices=(Choice(next(self._handles), 0),),
        )
        self._engine.pocketllm_generate(GenerateCall(request))

    def logits(self, prompt: list[int], path: str) -> None:
        import numpy as np

        from pocketllm_cpp import ForwardSmokeOptions, PersistentEngine

        options = ForwardSmokeOptions(num_threads=self.num_threads)
        session = PersistentEngine(self.model, options, max_context=MAX_MODEL_LEN)
        session.prefill(prompt[:1])
        rows = [np.array(session.last_logits())]
        session.verify_step(prompt[1:])
        rows += [np.array(session.last_logits(row)) for row in range(len(prompt) - 1)]
        np.save(path, np.stack(rows))
