"""What an engine counts, and the snapshot of it that callers read."""

from __future__ import annotations

from pocketllm.types import EngineStats
from pocketllm_torch.engine.scheduler import Scheduler


class Statistics:
    """Counted by the engine's thread; ``snapshot`` may be read from any thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._num_steps = 0
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self.snapshot = EngineStats()
        self.publish()

    def count_step(self, num_prompt_tokens: int, num_generated_tokens: int) -> None:
        self._num_steps += 1
        self._num_prompt_tokens += num_prompt_tokens
        self._num_generated_tokens += num_generated_tokens

    def publish(self) -> None:
        """Take a new snapshot: before the events that tell of the change are posted."""
        scheduler, pool = self._scheduler, self._scheduler.pool
        self.snapshot = EngineStats(
            num_running=len(scheduler.running),
            num_waiting=scheduler.num_waiting,
            num_steps=self._num_steps,
            num_slots=scheduler.max_num_sequences,
            num_free_slots=scheduler.max_num_sequences - len(scheduler.running),
            num_blocks=pool.num_blocks,
            num_free_blocks=pool.num_free,
            num_preemptions=scheduler.num_preemptions,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generated_tokens=self._num_generated_tokens,
        )
