"""What the backend says of itself before anything is loaded."""

from __future__ import annotations

from importlib.metadata import version

from pocketllm.types import BackendInfo
from pocketllm_torch.options import OPTION_SPECS


def backend_card() -> BackendInfo:
    """Read for every listing of backends; imports no torch."""
    return BackendInfo(
        name="torch",
        version=version("pocketllm-torch"),
        summary="PyTorch and Triton; the reference on CPUs, the fast path on CUDA.",
        model_formats=("safetensors", "gguf"),
        devices=("cpu", "cuda"),
        options=OPTION_SPECS,
        holds_gil=True,
    )
