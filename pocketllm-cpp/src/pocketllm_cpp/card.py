"""What the backend says of itself before anything is loaded."""

from __future__ import annotations

from importlib.metadata import version

from pocketllm.types import BackendInfo
from pocketllm_cpp.options import OPTION_SPECS


def backend_card() -> BackendInfo:
    """Read for every listing of backends; imports nothing native."""
    return BackendInfo(
        name="cpp",
        version=version("pocketllm-cpp"),
        summary="Native code that computes on quantised blocks; the fast path on CPUs.",
        model_formats=("safetensors", "gguf"),
        # "reference" computes every operation by its definition, in memory of its own: slow, and for checking.
        devices=("cpu", "reference"),
        options=OPTION_SPECS,
        holds_gil=False,
    )
