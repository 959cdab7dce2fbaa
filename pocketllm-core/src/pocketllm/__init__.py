"""PocketLLM: one API for running language models, over separately installed backends.

Names are imported on first use, so that ``import pocketllm`` costs next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

_EXPORTS = {
    "AsyncLLM": "async_llm",
    "AsyncStream": "async_stream",
    "BackendInfo": "types",
    "BackendUnavailableError": "errors",
    "Capabilities": "types",
    "CheckpointError": "errors",
    "ConfigurationError": "errors",
    "ContextLengthError": "errors",
    "DeadlineExceededError": "errors",
    "DuplicateRequestError": "errors",
    "EngineArgs": "engine_args",
    "EngineError": "errors",
    "FinishReason": "types",
    "GenerationRequest": "types",
    "GenerationResult": "types",
    "HealthStatus": "types",
    "IteratorEngine": "engine.iterator_engine",
    "LLM": "llm",
    "ModelNotFoundError": "errors",
    "PluginError": "errors",
    "PocketLLMError": "errors",
    "QueueFullError": "errors",
    "RequestCancelledError": "errors",
    "SamplingParams": "sampling_params",
    "TokenEvent": "types",
    "UnsupportedFeatureError": "errors",
    "Usage": "types",
    "hookimpl": "hookspecs",
}

__all__ = ["__version__", *sorted(_EXPORTS)]  # computed from the table that __getattr__ serves


def __getattr__(name: str) -> object:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f"{__name__}.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})


if TYPE_CHECKING:
    from pocketllm.async_llm import AsyncLLM as AsyncLLM
    from pocketllm.async_stream import AsyncStream as AsyncStream
    from pocketllm.engine.iterator_engine import IteratorEngine as IteratorEngine
    from pocketllm.engine_args import EngineArgs as EngineArgs
    from pocketllm.errors import BackendUnavailableError as BackendUnavailableError
    from pocketllm.errors import CheckpointError as CheckpointError
    from pocketllm.errors import ConfigurationError as ConfigurationError
    from pocketllm.errors import ContextLengthError as ContextLengthError
    from pocketllm.errors import DeadlineExceededError as DeadlineExceededError
    from pocketllm.errors import DuplicateRequestError as DuplicateRequestError
    from pocketllm.errors import EngineError as EngineError
    from pocketllm.errors import ModelNotFoundError as ModelNotFoundError
    from pocketllm.errors import PluginError as PluginError
    from pocketllm.errors import PocketLLMError as PocketLLMError
    from pocketllm.errors import QueueFullError as QueueFullError
    from pocketllm.errors import RequestCancelledError as RequestCancelledError
    from pocketllm.errors import UnsupportedFeatureError as UnsupportedFeatureError
    from pocketllm.hookspecs import hookimpl as hookimpl
    from pocketllm.llm import LLM as LLM
    from pocketllm.sampling_params import SamplingParams as SamplingParams
    from pocketllm.types import BackendInfo as BackendInfo
    from pocketllm.types import Capabilities as Capabilities
    from pocketllm.types import FinishReason as FinishReason
    from pocketllm.types import GenerationRequest as GenerationRequest
    from pocketllm.types import GenerationResult as GenerationResult
    from pocketllm.types import HealthStatus as HealthStatus
    from pocketllm.types import TokenEvent as TokenEvent
    from pocketllm.types import Usage as Usage
