"""Which device to run on, and what it has to offer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from pocketllm.errors import BackendUnavailableError

if TYPE_CHECKING:
    from pocketllm.engine_args import EngineArgs

_CPU_CACHE_SHARE = 0.25
_CUDA_CACHE_SHARE = 0.8


def resolve_device(args: EngineArgs) -> torch.device:
    """The device of this process: CUDA when asked for, or for "auto" when there is one; else the CPU.

    Raises:
        BackendUnavailableError: CUDA, or a card, was asked for and is not there.
    """
    if args.device == "cpu" or (args.device == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise BackendUnavailableError(
            "device = 'cuda', but this torch build sees no CUDA device: install a CUDA build of torch and a driver, or "
            "use device = 'cpu'.",
            param="device",
        )
    index = args.device_ids[args.tensor_parallel_rank] if args.device_ids else 0
    if index >= torch.cuda.device_count():
        raise BackendUnavailableError(
            f"device_ids names card {index}, but there are {torch.cuda.device_count()}.", param="device_ids"
        )
    return torch.device("cuda", index)


def cache_budget_bytes(device: torch.device) -> int:
    """The most a key/value cache may take by default, asked after the weights are loaded."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * _CUDA_CACHE_SHARE)
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * _CPU_CACHE_SHARE)
