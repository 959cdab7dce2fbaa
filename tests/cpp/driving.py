"""The driver of tests/torch, around the native engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pocketllm.checkpoint import open_checkpoint
from pocketllm.engine.call import GenerateCall
from pocketllm.engine_args import EngineArgs
from pocketllm.plugins.registry import get_registry
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Choice, Constraint, GenerationRequest
from tests.torch.driving import Driver, Stream


class CppDriver(Driver):
    """An open native engine and the streams of what was submitted. Use from one thread."""

    @classmethod
    def open(cls, path: Path, *, options: dict[str, Any] | None = None, **args: Any) -> Self:
        backend = get_registry().backend("cpp")
        checked = backend.checked(EngineArgs(model=str(path), backend_options=options or {}, **args))
        return cls(backend.open(checked, open_checkpoint(path), lambda stage, fraction: None))

    def submit_constrained(
        self, prompt: list[int], constraint: Constraint, *, stop_ids: tuple[int, ...], seed: int = 0, **params: Any
    ) -> list[Stream]:
        """Queue one request under a constraint; a stream per choice."""
        sampling = SamplingParams(**params)
        choices = tuple(Choice(next(self._handles), seed + index) for index in range(sampling.n))
        request = GenerationRequest(
            prompt_tokens=tuple(prompt),
            sampling_params=sampling,
            choices=choices,
            stop_token_ids=stop_ids,
            constraint=constraint,
        )
        streams = [Stream(choice.handle) for choice in choices]
        self.streams.update({stream.handle: stream for stream in streams})
        assert self.engine.pocketllm_generate(GenerateCall(request)) is True
        return streams
