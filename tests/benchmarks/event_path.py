"""What an event costs on its way from the engine to a reader: echo, many streams, in-thread and in a child.

    python tests/benchmarks/event_path.py [--streams 64] [--steps 400] [--steps-per-s 200] [--repeats 5]

For each placement, alternating: CPU of this process per token, drains (wakes of the event loop) per engine step, and
events that readers got per token. In-thread the process's CPU holds the echo engine too; its own share, measured by
running the same engine with nobody routing its events, is printed beside it.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from pocketllm import AsyncLLM, EngineArgs, SamplingParams
from pocketllm.checkpoint import open_checkpoint
from pocketllm.engine.call import GenerateCall
from pocketllm.plugins.registry import get_registry
from pocketllm.testing.toy_checkpoint import write_toy_checkpoint
from pocketllm.types import Choice, GenerationRequest


def _args(model: Path, streams: int, steps: int, steps_per_s: float, placement: str) -> EngineArgs:
    options = {"script": "a b c d " * steps, "delay_s": 1.0 / steps_per_s}
    return EngineArgs(
        model=str(model), backend="echo", placement=placement, max_batch_size=streams, max_num_requests=streams,
        backend_options=options,
    )  # fmt: skip


async def _pipeline(args: EngineArgs, streams: int, steps: int) -> dict[str, float]:
    params = SamplingParams(max_tokens=steps)
    async with AsyncLLM(args) as llm:
        num_drains = 0
        drain = llm.host.drain_events

        def counted() -> None:
            nonlocal num_drains
            num_drains += 1
            drain()

        llm.host.drain_events = counted  # type: ignore[method-assign]  # counted on the way
        num_events = 0

        async def read() -> None:
            nonlocal num_events
            async for _ in llm.generate_stream([5], params):
                num_events += 1

        await asyncio.gather(*(read() for _ in range(2)))  # warm: tokenizer, first decode
        num_steps = llm.stats().num_steps
        num_drains = num_events = 0
        cpu, wall = time.process_time(), time.perf_counter()
        await asyncio.gather(*(read() for _ in range(streams)))
        cpu, wall, drains = time.process_time() - cpu, time.perf_counter() - wall, num_drains
        await asyncio.sleep(0.3)  # the child's counters arrive with its next report
        num_steps = llm.stats().num_steps - num_steps
    tokens = streams * steps
    return {
        "cpu_us_per_token": cpu / tokens * 1e6,
        "drains_per_step": drains / num_steps,
        "events_per_token": num_events / tokens,
        "steps_per_s": num_steps / wall,
    }


def _engine_alone(args: EngineArgs, model: Path, streams: int, steps: int) -> float:
    """CPU per token of echo itself: its events are drained and dropped."""
    echo = get_registry().backend("echo")
    engine = echo.open(echo.checked(args), open_checkpoint(model), lambda stage, fraction: None)
    left = streams
    cpu = time.process_time()
    for handle in range(1, streams + 1):
        request = GenerationRequest(
            prompt_tokens=(5,), choices=(Choice(handle, 0),), sampling_params=SamplingParams(max_tokens=steps)
        )
        engine.pocketllm_generate(GenerateCall(request))  # type: ignore[attr-defined]  # hook methods
    while left:
        time.sleep(0.05)
        left -= sum(len(batch.finished) for batch in engine.events.drain())
    cpu = time.process_time() - cpu
    engine.pocketllm_close(1.0)  # type: ignore[attr-defined]  # hook methods
    return cpu / (streams * steps) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--steps-per-s", type=float, default=200.0)
    parser.add_argument("--repeats", type=int, default=5)
    options, _ = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        model = write_toy_checkpoint(Path(folder))
        runs: dict[str, list[dict[str, float]]] = {"thread": [], "child": []}
        alone = []
        for _ in range(options.repeats):
            for placement, results in runs.items():
                args = _args(model, options.streams, options.steps, options.steps_per_s, placement)
                results.append(asyncio.run(_pipeline(args, options.streams, options.steps)))
            args = _args(model, options.streams, options.steps, options.steps_per_s, "thread")
            alone.append(_engine_alone(args, model, options.streams, options.steps))
    print(
        f"{options.streams} streams, {options.steps} steps each, paced at {options.steps_per_s:g} steps/s, "
        "median [min, max]"
    )
    for placement, results in runs.items():
        for name in results[0]:
            values = [result[name] for result in results]
            print(
                f"  {placement:6}  {name:18} {statistics.median(values):8.2f}  [{min(values):.2f}, {max(values):.2f}]"
            )
    print(f"  echo    its own us per token {statistics.median(alone):6.2f}  [{min(alone):.2f}, {max(alone):.2f}]")


if __name__ == "__main__":
    main()
