"""The native engine of PocketLLM, as token-oriented Python classes. Names are imported when they are first used.

Applications use ``pocketllm.LLM``; this module is the level below, without text. Every call that may take longer than
an instant releases the interpreter's lock. No tensor and no handle of a device crosses it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pocketllm_cpp.tokens.architectures import detect_architecture, is_qwen3_5_checkpoint, registered_architectures
    from pocketllm_cpp.tokens.batch_scheduler import QwenBatchScheduler
    from pocketllm_cpp.tokens.batch_types import (
        EngineCaps,
        QwenBatchSamplingParams,
        QwenSchedulerStats,
        SchedulerGenerationResult,
    )
    from pocketllm_cpp.tokens.persistent_engine import ForwardSmokeOptions, PersistentEngine, SamplingParams
    from pocketllm_cpp.tokens.qwen_engine import QwenEngine, QwenForwardResult, QwenVerifyResult
    from pocketllm_cpp.tokens.qwen_options import QwenEngineOptions

    backend: str

__all__ = [
    "EngineCaps",
    "ForwardSmokeOptions",
    "PersistentEngine",
    "QwenBatchSamplingParams",
    "QwenBatchScheduler",
    "QwenEngine",
    "QwenEngineOptions",
    "QwenForwardResult",
    "QwenSchedulerStats",
    "QwenVerifyResult",
    "SamplingParams",
    "SchedulerGenerationResult",
    "backend",
    "detect_architecture",
    "is_qwen3_5_checkpoint",
    "registered_architectures",
]

_HOMES = {
    "backend": "_native",
    "detect_architecture": "tokens.architectures",
    "is_qwen3_5_checkpoint": "tokens.architectures",
    "registered_architectures": "tokens.architectures",
    "EngineCaps": "tokens.batch_types",
    "QwenBatchSamplingParams": "tokens.batch_types",
    "QwenBatchScheduler": "tokens.batch_scheduler",
    "QwenSchedulerStats": "tokens.batch_types",
    "SchedulerGenerationResult": "tokens.batch_types",
    "ForwardSmokeOptions": "tokens.persistent_engine",
    "PersistentEngine": "tokens.persistent_engine",
    "SamplingParams": "tokens.persistent_engine",
    "QwenEngine": "tokens.qwen_engine",
    "QwenForwardResult": "tokens.qwen_engine",
    "QwenVerifyResult": "tokens.qwen_engine",
    "QwenEngineOptions": "tokens.qwen_options",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
