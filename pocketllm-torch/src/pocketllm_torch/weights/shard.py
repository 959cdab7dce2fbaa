"""Which part of a model's weights a process loads."""

from __future__ import annotations

from dataclasses import dataclass

from pocketllm.errors import UnsupportedFeatureError


@dataclass(frozen=True)
class Shard:
    """Part ``rank`` of ``num_ranks``: every layer of the model, split over the ranks of a tensor-parallel engine."""

    rank: int = 0
    num_ranks: int = 1

    def check_whole(self) -> None:
        """Raises UnsupportedFeatureError for anything but the whole: no layer can be split yet."""
        if self.num_ranks != 1:
            raise UnsupportedFeatureError(
                f"tensor_parallel_size = {self.num_ranks}: this engine loads a model as a whole. Set it to 1.",
                param="tensor_parallel_size",
            )


WHOLE = Shard()
