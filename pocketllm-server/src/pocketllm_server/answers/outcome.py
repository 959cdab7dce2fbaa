"""How one request went: what its counters, its histograms and its line in the access log say."""

from __future__ import annotations

from collections.abc import Sequence

from pocketllm.types import FinishReason, GenerationResult, Usage
from pocketllm_server.metrics.generation import ModelMetrics, RequestTimer
from pocketllm_server.transport.request_context import current_request
from pocketllm_server.wire.completions_answer import sum_usage


class Outcome:
    """Made when the work begins, and recorded once at its end, if the request was accepted."""

    def __init__(self, metrics: ModelMetrics, *, streamed: bool) -> None:
        self.timer = RequestTimer(metrics, streamed=streamed)
        self.accepted = False
        self.word = FinishReason.ERROR.value
        """A finish reason, an error's code, or "disconnected"."""
        self.usage: Usage | None = None
        self._ttft_s: float | None = None

    def finished(self, results: Sequence[GenerationResult]) -> None:
        """An answer that was not streamed is there."""
        self.word = str(results[0].finish_reason)
        self.usage = sum_usage([result.usage for result in results])
        self._ttft_s = results[0].timings.ttft_seconds

    def record(self) -> None:
        if not self.accepted:
            return
        ttft_s = self.timer.end(self.word, self.usage, self._ttft_s)
        request = current_request()
        if request is not None:
            request.finish_reason, request.usage, request.ttft_s = self.word, self.usage, ttft_s
