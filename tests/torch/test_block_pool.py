"""Blocks are handed out once, shared by count, and come back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm_torch.engine.block_pool import BlockPool
from pocketllm_torch.layers.kv_cache import NULL_BLOCK


def test_allocates_rising_neighbours_and_never_the_null_block() -> None:
    pool = BlockPool(4, 16)
    assert pool.allocate(3) == [1, 2, 3]
    assert pool.num_free == 1
    assert NULL_BLOCK not in pool.allocate(1)


def test_released_blocks_are_reused_in_the_same_order() -> None:
    pool = BlockPool(8, 16)
    blocks = pool.allocate(4)
    pool.release(blocks)
    assert pool.allocate(4) == blocks


def test_a_shared_block_is_free_only_after_its_last_holder() -> None:
    pool = BlockPool(2, 16)
    (block,) = pool.allocate(1)
    pool.share([block])
    pool.release([block])
    assert pool.num_free == 1
    pool.release([block])
    assert pool.num_free == 2


def test_blocks_released_twice_or_shared_when_free_are_an_error() -> None:
    pool = BlockPool(1, 16)
    (block,) = pool.allocate(1)
    with pytest.raises(RuntimeError, match="1 blocks asked for, 0 free"):
        pool.allocate(1)
    pool.release([block])
    with pytest.raises(RuntimeError, match="released twice"):
        pool.release([block])
    with pytest.raises(RuntimeError, match="cannot be shared"):
        pool.share([block])


def test_a_partly_filled_block_counts_as_one() -> None:
    pool = BlockPool(1, 16)
    assert [pool.blocks_for(count) for count in (0, 1, 16, 17)] == [0, 1, 1, 2]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=60))
def test_every_block_is_either_free_or_held(steps: list[tuple[int, int]]) -> None:
    pool = BlockPool(6, 4)
    holders: list[list[int]] = []
    for action, number in steps:
        if action == 0 and number <= pool.num_free:
            holders.append(pool.allocate(number))
        elif action == 1 and holders:
            blocks = holders[number % len(holders)]
            pool.share(blocks)
            holders.append(list(blocks))
        elif action == 2 and holders:
            pool.release(holders.pop(number % len(holders)))
        held = {block for blocks in holders for block in blocks}
        assert pool.num_free == pool.num_blocks - len(held)
