"""A Llama of about a billion parameters in Q4_K_M with random weights: what a step costs at a real size, without a hub.

The tokenizer is SmolLM2's; the sizes are those of Llama 3.2 1B with that vocabulary. As in a real Q4_K_M file the
embedding (which is the head too), the values' projection and the feed-forward's last matrix of half of the layers are
Q6_K.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

NUM_LAYERS = 16
HIDDEN = 2048
FEED_FORWARD = 8192
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 64
WEIGHT_DEVIATION = 0.02

Bytes = npt.NDArray[np.uint8]


def random_model(folder: Path, tokenizer_of: Path) -> Path:
    """The path of the file in ``folder``, written when it is not there yet. The same bytes on every machine."""
    target = folder / "random-1B.Q4_K_M.gguf"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            unfinished = Path(scratch) / target.name
            _write(unfinished, tokenizer_of)
            os.replace(unfinished, target)
    return target


def _write(path: Path, tokenizer_of: Path) -> None:
    fields = gguf.GGUFReader(tokenizer_of).fields
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, field in fields.items():
        if name.startswith("tokenizer."):
            kind = field.types[0]
            element = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, element)
    vocab_size = len(fields["tokenizer.ggml.tokens"].data)
    writer.add_name("random 1B")
    writer.add_block_count(NUM_LAYERS)
    writer.add_context_length(8192)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(500_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab_size)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)

    dice = np.random.default_rng(0)
    q4, q6 = gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K

    def matrix(name: str, num_rows: int, num_columns: int, kind: gguf.GGMLQuantizationType) -> None:
        rows = _q4_k(dice, num_rows, num_columns) if kind is q4 else _q6_k(dice, num_rows, num_columns)
        writer.add_tensor(name, rows, raw_dtype=kind)

    def norm(name: str) -> None:
        writer.add_tensor(name, np.ones(HIDDEN, np.float32))

    matrix("token_embd.weight", vocab_size, HIDDEN, q6)
    for layer in range(NUM_LAYERS):
        prefix = f"blk.{layer}."
        norm(f"{prefix}attn_norm.weight")
        matrix(f"{prefix}attn_q.weight", NUM_HEADS * HEAD_DIM, HIDDEN, q4)
        matrix(f"{prefix}attn_k.weight", NUM_KV_HEADS * HEAD_DIM, HIDDEN, q4)
        matrix(f"{prefix}attn_v.weight", NUM_KV_HEADS * HEAD_DIM, HIDDEN, q6)
        matrix(f"{prefix}attn_output.weight", HIDDEN, NUM_HEADS * HEAD_DIM, q4)
        norm(f"{prefix}ffn_norm.weight")
        matrix(f"{prefix}ffn_gate.weight", FEED_FORWARD, HIDDEN, q4)
        matrix(f"{prefix}ffn_up.weight", FEED_FORWARD, HIDDEN, q4)
        matrix(f"{prefix}ffn_down.weight", HIDDEN, FEED_FORWARD, q6 if layer % 2 else q4)
    norm("output_norm.weight")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _q4_k(dice: np.random.Generator, num_rows: int, num_columns: int) -> Bytes:
    """Blocks of 256: d, dmin (halves), 12 bytes of 6-bit scales and mins, 128 bytes of 4-bit codes."""
    blocks = dice.integers(0, 256, (num_rows, num_columns // 256, 144), np.uint8)
    # A weight is d * scale * code - dmin * min. With dmin = 7.5 d, the mean is 0 and the deviation about 240 d.
    d = WEIGHT_DEVIATION / 240
    blocks[..., 0:4] = np.array([d, 7.5 * d], np.float16).view(np.uint8)
    return blocks.reshape(num_rows, -1)


def _q6_k(dice: np.random.Generator, num_rows: int, num_columns: int) -> Bytes:
    """Blocks of 256: 128 and 64 bytes of codes' low and high bits, 16 signed scales, d (a half)."""
    blocks = dice.integers(0, 256, (num_rows, num_columns // 256, 210), np.uint8)
    scales = dice.integers(-32, 32, (num_rows, num_columns // 256, 16), np.int8)
    blocks[..., 192:208] = scales.view(np.uint8)
    # A weight is d * scale * (code - 32): the deviation is about 18.5 * 18.5 d.
    blocks[..., 208:210] = np.array([WEIGHT_DEVIATION / 342], np.float16).view(np.uint8)
    return blocks.reshape(num_rows, -1)
