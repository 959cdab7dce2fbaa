"""The engine: what it declares, and one iterator of tokens per sequence. The base class does everything else."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from typing import Any

from pocketllm.checkpoint import Checkpoint
from pocketllm.engine.iterator_engine import Emission, Item, IteratorEngine
from pocketllm.engine_args import EngineArgs
from pocketllm.errors import ConfigurationError
from pocketllm.sampling_params import SamplingParams
from pocketllm.testing.toy_model import ToySequence
from pocketllm.types import Capabilities, GenerationRequest

# What each set declares on top of batching, streaming and cancellation; see docs/writing-a-backend.md.
PER_REQUEST = {"per_request_sampling": True, "per_request_top_k": True}
CAPABILITY_SETS: dict[str, dict[str, Any]] = {
    "everything": {
        **PER_REQUEST,
        **{f"supports_{name}": True for name in ("logprobs", "prompt_logprobs", "min_p", "penalties", "logit_bias")},
        **{f"supports_{name}": True for name in ("min_tokens", "ignore_eos", "stop_token_ids")},
        **{f"supports_{name}": True for name in ("streamed_logprobs", "streamed_usage", "tool_choice", "suffix")},
    },
    "guide": {**PER_REQUEST, "supports_logprobs": True},
    "engine-wide": {},
}


class EchoEngine(IteratorEngine):
    """Answers with the script of its options or, without one, with the prompt's last message or its tokens."""

    def __init__(self, args: EngineArgs, checkpoint: Checkpoint) -> None:
        super().__init__()
        options = args.backend_options
        name = options.get("capability_set", "everything")
        if name not in CAPABILITY_SETS:
            known = ", ".join(CAPABILITY_SETS)
            raise ConfigurationError(
                f"capability_set = {name!r} is unknown: use one of {known}.", param="capability_set"
            )
        self._script = options.get("script")
        self._delay_s = float(options.get("delay_s", 0.0))
        self._tokenizer = checkpoint.tokenizer()
        eos_ids, eos_source = checkpoint.eos_token_ids(options.get("eos_token_id"))
        fixed = {key: options[key] for key in ("temperature", "top_p", "top_k", "seed") if key in options}
        in_force = fixed if name == "engine-wide" else {}
        self._fixed = SamplingParams(**{key: value for key, value in in_force.items() if value or key != "top_k"})
        batch_size = args.batch_size(default=64)
        self._capabilities = Capabilities(
            name="echo",
            models=(checkpoint.model_type,),
            model_formats=("safetensors", "gguf"),
            devices=("cpu",),
            max_model_len=args.max_model_len or int(str(checkpoint.config.get("max_position_embeddings", 2048))),
            vocab_size=self._tokenizer.vocab_size,
            max_batch_size=batch_size,
            eos_token_ids=eos_ids,
            supports_batch=batch_size > 1,
            batch_invariant=True,
            details={"eos_source": eos_source, "capability_set": name},
            **in_force,
            **CAPABILITY_SETS[name],
        )
        self._answers = itertools.cycle(self._script) if isinstance(self._script, list) and self._script else None
        self._current: tuple[str, Any] = ("", None)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def before_step(self, num_active: int) -> None:
        if self._delay_s:
            time.sleep(self._delay_s)

    def tokens(self, request: GenerationRequest) -> Iterator[Item]:
        answer = self._answer(request)
        parts = answer if isinstance(answer, dict) else {"text": answer}
        text = parts.get("text", "")
        script = list(text) if isinstance(text, tuple) else self._tokenizer.encode(text, add_bos=False)
        if parts.get("reasoning_content") or parts.get("tool_calls"):
            brought = {key: parts[key] for key in ("reasoning_content", "tool_calls") if key in parts}
            yield Emission(**brought)
        own = self.capabilities.per_request_sampling
        params = request.sampling_params if own else self._fixed
        sequence = ToySequence(request, params, self.capabilities.vocab_size, None if own else self._fixed.seed or 0)
        report = sequence.prompt_report()
        if report is not None:
            yield report
        if "error" in parts:
            yield from sequence.play(script, go_on=False)
            raise RuntimeError(parts["error"])
        yield from sequence.play([*script, *self.capabilities.eos_token_ids[:1]], go_on=params.ignore_eos)

    def _answer(self, request: GenerationRequest) -> Any:
        """The answer for this request: text, or a mapping of text, reasoning_content, tool_calls and error."""
        if self._answers is not None:
            if self._current[0] != request.request_id:  # the choices of a request share its answer
                self._current = (request.request_id, next(self._answers))
            return self._current[1]
        if isinstance(self._script, dict) and "match" in self._script:
            prompt = self._tokenizer.decode(request.prompt_tokens, skip_special=False)
            found = (answer for part, answer in self._script["match"] if part in prompt)
            return next(found, _echo(request))
        return _echo(request) if self._script in (None, []) else self._script


def _echo(request: GenerationRequest) -> str | tuple[int, ...]:
    for message in reversed(request.metadata.get("messages") or []):
        if message.get("role") == "user":
            content = message.get("content") or ""
            return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
    return request.prompt_tokens
