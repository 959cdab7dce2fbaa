"""The caches that models declare: how large they are, where each layer lies in them, and what cannot be declared."""

from __future__ import annotations

import pytest
import torch

from pocketllm.checkpoint import open_checkpoint
from pocketllm.errors import UnsupportedFeatureError
from pocketllm_torch.engine.opening import load_model
from pocketllm_torch.layers.cache_spec import CacheSpec, KeyValueSpec, RecurrentSpec, block_bytes, index_among_its_kind
from pocketllm_torch.layers.caches import Caches
from pocketllm_torch.weights.precision import choose_precision
from pocketllm_torch.weights.shard import Shard
from tests.torch.tiny_llama import TinyLlama

CPU = torch.device("cpu")
FULL, WINDOWED = KeyValueSpec(2, 16), KeyValueSpec(2, 16, window=8)
STATE = RecurrentSpec((("state", (3, 4)), ("tail", (5,))))
MIXED: list[CacheSpec] = [STATE, FULL, STATE, WINDOWED, STATE]


def make(specs: list[CacheSpec]) -> Caches:
    return Caches(specs, num_blocks=6, block_size=4, num_slots=3, dtype=torch.float32, device=CPU)


def test_layers_are_counted_among_their_kind() -> None:
    assert [index_among_its_kind(MIXED, layer) for layer in range(5)] == [0, 0, 1, 1, 2]


def test_a_block_is_what_the_layers_with_keys_take() -> None:
    caches = make(MIXED)
    assert block_bytes(MIXED, 4, torch.float32) * 7 == caches.kv.data.nbytes
    assert caches.kv.data.shape[0] == 2
    assert caches.windows == {0, 8}


def test_a_slots_states_are_copied_and_cleared_in_every_layer() -> None:
    caches = make(MIXED)
    states = caches.states
    assert states is not None
    for layer in range(3):
        states.of_layer("state", layer)[1] = layer + 1.0
        states.of_layer("tail", layer)[1] = -1.0 - layer
    caches.copy_slot(1, 2)
    caches.clear_slot(1)
    for layer in range(3):
        assert states.of_layer("state", layer)[:, 0, 0].tolist() == [0.0, 0.0, layer + 1.0]
        assert states.of_layer("tail", layer)[:, 0].tolist() == [0.0, 0.0, -1.0 - layer]


def test_slots_of_models_without_states_hold_nothing() -> None:
    caches = make([FULL, WINDOWED])
    assert caches.states is None
    caches.clear_slot(0)
    caches.copy_slot(0, 1)


@pytest.mark.parametrize(
    "specs, words",
    [
        ([FULL, KeyValueSpec(4, 16)], r"share one size of key and value, not \[\(2, 16\), \(4, 16\)\]"),
        ([FULL, STATE, RecurrentSpec((("state", (3, 5)),))], "share one form of state"),
    ],
)
def test_layers_of_a_kind_that_differ_in_size_are_refused(specs: list[CacheSpec], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(specs)


def test_a_part_of_a_model_is_refused_before_it_is_read(tiny: TinyLlama) -> None:
    precision = choose_precision("float32", CPU)
    with pytest.raises(UnsupportedFeatureError, match="tensor_parallel_size = 2"):
        load_model(open_checkpoint(tiny.path), precision, 64, lambda stage, fraction: None, Shard(1, 2))
