"""The recurrent states of running sequences: what layers without keys and values keep of a sequence."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pocketllm_torch.layers.cache_spec import RecurrentSpec


class StateCache:
    """float32 tensors [layers, slots, ...], one for each name in the specs. A sequence owns its slot while it runs."""

    def __init__(self, specs: Sequence[RecurrentSpec], num_slots: int, device: torch.device) -> None:
        if any(spec != specs[0] for spec in specs):
            raise ValueError("the recurrent layers of a model share one form of state")
        self._tensors = {
            name: torch.zeros((len(specs), num_slots, *shape), device=device) for name, shape in specs[0].shapes
        }

    def of_layer(self, name: str, layer: int) -> torch.Tensor:
        """The states [slots, ...] of one layer, counted among the recurrent ones; a view, to be changed in place."""
        return self._tensors[name][layer]

    def clear(self, slot: int) -> None:
        for tensor in self._tensors.values():
            tensor[:, slot] = 0

    def copy(self, source: int, target: int) -> None:
        for tensor in self._tensors.values():
            tensor[:, target] = tensor[:, source]
