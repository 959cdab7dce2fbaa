"""Who holds which block of the key/value cache. Bookkeeping only: no tensors."""

from __future__ import annotations

from collections.abc import Iterable


class BlockPool:
    """Counts the holders of ``num_blocks`` blocks with ids 1 to ``num_blocks``; 0 is the cache's null block.

    Threads: only the engine's thread calls it.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        # Ids leave in rising order, so that a lone sequence tends to get neighbours; freed ones are reused first.
        self._free = list(range(num_blocks, 0, -1))
        self._num_holders = [0] * (num_blocks + 1)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks ``num_tokens`` positions take."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int) -> list[int]:
        """Take ``count`` blocks with one holder each.

        Raises:
            RuntimeError: fewer are free; callers ask :attr:`num_free` first.
        """
        if count > len(self._free):
            raise RuntimeError(f"{count} blocks asked for, {len(self._free)} free")
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._num_holders[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """Add a holder to each block; shared blocks are read only."""
        for block in blocks:
            if self._num_holders[block] < 1:
                raise RuntimeError(f"block {block} is free and cannot be shared")
            self._num_holders[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """Drop one holder of each block; a block without holders is free again."""
        for block in reversed(list(blocks)):
            if self._num_holders[block] < 1:
                raise RuntimeError(f"block {block} is released twice")
            self._num_holders[block] -= 1
            if self._num_holders[block] == 0:
                self._free.append(block)
