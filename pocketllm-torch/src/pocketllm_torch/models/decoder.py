"""A decoder-only model of any family: embedding, layers, final norm, head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F

from pocketllm_torch.layers.caches import Caches
from pocketllm_torch.layers.linear import Linear
from pocketllm_torch.layers.norm import RMSNorm
from pocketllm_torch.layers.rope import RotaryTable
from pocketllm_torch.layers.row_layout import RowLayout
from pocketllm_torch.models.layer import Layer, StepContext
from pocketllm_torch.models.registry import ModelConfig, Progress
from pocketllm_torch.weights.part_reader import PartReader


class Decoder:
    """The parts and the forward pass. ``rotaries`` are the tables that the layers refer to. Threads: one at a time."""

    def __init__(
        self,
        config: ModelConfig,
        *,
        embedding: torch.Tensor,
        embedding_scale: float | None,
        rotaries: Sequence[RotaryTable],
        layers: Sequence[Layer],
        norm: RMSNorm,
        head: Linear,
        dtype: torch.dtype,
    ) -> None:
        self.config = config
        self.dtype = dtype
        self._embedding = embedding
        self._embedding_scale = embedding_scale
        self._rotaries = rotaries
        self._layers = layers
        self._norm = norm
        self._head = head

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, layout: RowLayout, caches: Caches
    ) -> torch.Tensor:
        """token_ids [T], positions [T] -> the residual stream after the last layer [T, hidden_size]."""
        step = StepContext(layout, caches, {table: table.at(positions) for table in self._rotaries})
        x = F.embedding(token_ids, self._embedding).to(self.dtype)
        if self._embedding_scale is not None:
            x.mul_(self._embedding_scale)
        for layer in self._layers:
            layer(x, step)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden [R, hidden_size] from :meth:`forward` -> float32 logits [R, vocab_size]."""
        return self._head(self._norm(hidden)).float()


def load_decoder(
    config: Mapping[str, object],
    sizes: ModelConfig,
    reader: PartReader,
    rotaries: Sequence[RotaryTable],
    make_layer: Callable[[int], Layer],
    progress: Progress,
    *,
    scaled_embedding: bool = False,
) -> Decoder:
    """Read the embedding, every layer by ``make_layer``, the final norm and the head; refuse leftover tensors.

    Args:
        config: of the checkpoint; it says whether the head is the embedding.
        scaled_embedding: multiply token embeddings by the square root of the hidden size.
        progress: called with the fraction done.
    """
    weights, precision = reader.weights, reader.precision
    num_layers = len(sizes.caches)
    table = weights.read("model.embed_tokens.weight", (sizes.vocab_size, sizes.hidden_size))
    layers = []
    for index in range(num_layers):
        layers.append(make_layer(index))
        progress((index + 1) / (num_layers + 1))
    tied = bool(config.get("tie_word_embeddings")) or not weights.has("lm_head.weight")
    head = table if tied else weights.read("lm_head.weight", (sizes.vocab_size, sizes.hidden_size))
    embedding = precision.table(table)
    model = Decoder(
        sizes,
        embedding=embedding,
        # Rounded as the embedding's own type rounds it: so the models that have it were trained.
        embedding_scale=float(torch.tensor(sizes.hidden_size**0.5, dtype=embedding.dtype))
        if scaled_embedding
        else None,
        rotaries=rotaries,
        layers=layers,
        norm=reader.norm("model.norm.weight", sizes.hidden_size),
        head=precision.linear(head, None, long_chunks=False),
        dtype=precision.compute_dtype,
    )
    weights.check_all_read(ignore=("lm_head.weight",) if tied else ())
    progress(1.0)
    return model


def _embedding_scale(sizes: ModelConfig, embedding: torch.Tensor) -> float:
    """Rounded as the embedding's own type rounds it: so the models that have it were trained."""
    return float(torch.tensor(sizes.hidden_size**0.5, dtype=embedding.dtype))
