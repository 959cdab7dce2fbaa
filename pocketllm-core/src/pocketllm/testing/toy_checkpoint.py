"""A tiny Llama checkpoint, the same bytes on every machine, written without Torch or NumPy.

Random but fixed weights in float32 safetensors, a byte-level BPE tokenizer that encodes any text, a chat template. It
says nothing sensible; it is small, loads at once, and its distributions are neither flat nor certain.
"""

from __future__ import annotations

import json
import math
import random
import struct
import sys
from array import array
from pathlib import Path
from typing import Any

SEED = 20260
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 64, 2, 4, 2, 16, 128
CONTEXT = 2048
LOGIT_SCALE = 3.0
"""Standard deviation of the logits: the best token stands out at temperature 0 and many are likely at 2."""

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
MERGES = (
    ("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("e", "r"), ("r", "e"), ("o", "n"), ("a", "t"), ("e", "n"),
    ("o", "r"), ("Ġ", "the"), ("Ġ", "a"), ("Ġ", "t"), ("Ġ", "w"), ("Ġ", "s"), ("o", "u"), ("i", "s"), ("an", "d"),
    ("Ġ", "and"), ("in", "g"), ("e", "d"), ("Ġ", "o"), ("Ġo", "f"), ("Ġt", "o"), ("l", "l"), ("Ġ", "in"), ("e", "s"),
)  # fmt: skip
CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_alphabet() -> list[str]:
    """The printable character that stands for each byte in a byte-level vocabulary (GPT-2's table)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {value: chr(value) for value in printable}
    for offset, value in enumerate(value for value in range(256) if value not in alphabet):
        alphabet[value] = chr(0x100 + offset)
    return [alphabet[value] for value in range(256)]


def vocabulary() -> dict[str, int]:
    """Token to id: special tokens, then the bytes, then the merges in order."""
    words = [*SPECIAL_TOKENS, *byte_alphabet(), *(left + right for left, right in MERGES)]
    return {word: index for index, word in enumerate(words)}


def write_toy_checkpoint(folder: Path) -> Path:
    """Write the checkpoint into ``folder`` (made when missing) and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    words = vocabulary()
    end_ids = [words[END_OF_TEXT], words[TURN_END]]
    _write_json(folder / "config.json", _config(len(words), end_ids))
    _write_json(folder / "generation_config.json", {"bos_token_id": end_ids[0], "eos_token_id": end_ids})
    _write_json(folder / "tokenizer.json", _tokenizer(words))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": TURN_END,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    _write_json(folder / "tokenizer_config.json", tokenizer_config)
    _write_weights(folder / "model.safetensors", len(words))
    return folder


def _config(vocab_size: int, end_ids: list[int]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": vocab_size,
        "bos_token_id": end_ids[0],
        "eos_token_id": end_ids,
    }


def _tokenizer(words: dict[str, int]) -> dict[str, Any]:
    added = [
        {
            "id": words[text],
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for text in SPECIAL_TOKENS
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": words,
        "merges": [list(pair) for pair in MERGES],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }


def _shapes(vocab_size: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab_size, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (HIDDEN,),
            prefix + "self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
            prefix + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            prefix + "post_attention_layernorm.weight": (HIDDEN,),
            prefix + "mlp.gate_proj.weight": (INTERMEDIATE, HIDDEN),
            prefix + "mlp.up_proj.weight": (INTERMEDIATE, HIDDEN),
            prefix + "mlp.down_proj.weight": (HIDDEN, INTERMEDIATE),
        }
    return shapes | {"model.norm.weight": (HIDDEN,), "lm_head.weight": (vocab_size, HIDDEN)}


def _write_weights(path: Path, vocab_size: int) -> None:
    source = random.Random(SEED)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    body = bytearray()
    for name, shape in _shapes(vocab_size).items():
        values = array("f", _values(source, name, shape))
        if sys.byteorder == "big":
            values.byteswap()  # the format is little-endian
        begin = len(body)
        body += values.tobytes()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(body)]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def _values(source: random.Random, name: str, shape: tuple[int, ...]) -> list[float]:
    if len(shape) == 1:
        return [1.0] * shape[0]
    fan_in = shape[1]
    if name == "model.embed_tokens.weight":
        scale = 1.0
    else:
        scale = (LOGIT_SCALE if name == "lm_head.weight" else 1.0) / math.sqrt(fan_in)
    values = [source.gauss(0.0, scale) for _ in range(shape[0] * fan_in)]
    if name == "lm_head.weight":
        # Control tokens keep a logit of zero, which is never the best: a greedy run continues until its limit.
        values[: len(SPECIAL_TOKENS) * fan_in] = [0.0] * (len(SPECIAL_TOKENS) * fan_in)
    return values


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
