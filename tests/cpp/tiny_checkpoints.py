"""Random checkpoints of every family, small enough to compute in no time, written with transformers, the reference.

:func:`write_tiny` makes one in Hugging Face's form, :func:`write_gguf_twin` its twin as a GGUF file, with every change
that format makes to the tensors, and :func:`write_fp8_twin` a copy with FP8 weights in scaled tiles. Each comes back as
a :class:`TinyCheckpoint`, whose model has the weights that the file holds, dequantised.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

VOCAB = 320
WIDEN = 2.0

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
_HYBRID: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e7,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
_EXPERTS: dict[str, Any] = {
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
}


@dataclass(frozen=True)
class Recipe:
    """How a family's tiny model is made."""

    model_class: str  # in transformers
    config_class: str
    architecture: str  # in GGUF
    settings: dict[str, Any]
    zero_centred_norms: bool = False


FAMILIES: dict[str, Recipe] = {
    "llama": Recipe(
        "LlamaForCausalLM",
        "LlamaConfig",
        "llama",
        {
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e5},
        },
    ),
    "qwen2": Recipe("Qwen2ForCausalLM", "Qwen2Config", "qwen2", {"tie_word_embeddings": True}),
    "qwen3": Recipe("Qwen3ForCausalLM", "Qwen3Config", "qwen3", {"head_dim": 32, "tie_word_embeddings": True}),
    "gemma3": Recipe(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        "gemma3",
        {
            "num_hidden_layers": 7,
            "num_key_value_heads": 1,
            "head_dim": 32,
            "query_pre_attn_scalar": 32,
            "sliding_window": 16,
        },
        zero_centred_norms=True,
    ),
    "qwen35": Recipe("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", "qwen35", _HYBRID, zero_centred_norms=True),
    "qwen35moe": Recipe(
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeTextConfig",
        "qwen35moe",
        {**_HYBRID, **_EXPERTS},
        zero_centred_norms=True,
    ),
}


_HALF_CACHE = "half_cache"


def _attend_to_halves(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, **rest: Any
) -> Any:
    return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key.half().float(), value.half().float(), mask, **rest)


ALL_ATTENTION_FUNCTIONS.register(_HALF_CACHE, _attend_to_halves)
ALL_MASK_ATTENTION_FUNCTIONS.register(_HALF_CACHE, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


@dataclass(frozen=True)
class TinyCheckpoint:
    """A checkpoint and a transformers model with the same weights in float32."""

    family: str
    path: Path  # a folder, or a GGUF file
    model: Any

    def logits(self, ids: list[int], *, half_cache: bool = False) -> torch.Tensor:
        """float32 [len(ids), VOCAB], by transformers, in one pass.

        Args:
            half_cache: keys and values are rounded to float16, as a cache of halves holds them.
        """
        self.model.config._attn_implementation = _HALF_CACHE if half_cache else "sdpa"
        with torch.no_grad():
            logits: torch.Tensor = self.model(torch.tensor([ids]), use_cache=False).logits[0]
        return logits.float()

    def greedy(self, ids: list[int], count: int, *, half_cache: bool = False) -> list[int]:
        """The next ``count`` tokens, without any cache."""
        tokens = list(ids)
        for _ in range(count):
            tokens.append(int(self.logits(tokens, half_cache=half_cache)[-1].argmax()))
        return tokens[len(ids) :]


def random_ids(count: int, seed: int) -> list[int]:
    ids: list[int] = torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return ids


def write_tiny(family: str, folder: Path, *, widen: float = WIDEN, **changes: Any) -> TinyCheckpoint:
    """Write a checkpoint in Hugging Face's form.

    Args:
        folder: where; made when it is not there.
        widen: factor on every matrix: as initialised, attention would be all but uniform and hide mistakes.
        changes: configuration values other than the recipe's.
    """
    recipe = FAMILIES[family]
    torch.manual_seed(0)
    config = getattr(transformers, recipe.config_class)(**{**_BASE, **copy.deepcopy(recipe.settings), **changes})
    model = getattr(transformers, recipe.model_class)(config).train(mode=False).float()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                # Zero- and one-initialised parameters are made to matter.
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
            else:
                parameter.mul_(widen)
    model.save_pretrained(folder)
    return TinyCheckpoint(family, folder, model)


def write_gguf_twin(tiny: TinyCheckpoint, file: Path, quantization: str = "F32") -> TinyCheckpoint:
    """Write ``tiny`` as a GGUF file.

    Args:
        quantization: type of the weight matrices, of those that gguf-py can write ("F16", "Q8_0", "Q4_1", ...).

    Returns:
        The file with a model of what it holds: ``tiny``'s weights after a way through ``quantization``.
    """
    twin = _GgufTwin(tiny, quantization)
    writer = gguf.GGUFWriter(str(file), FAMILIES[tiny.family].architecture)
    twin.write_settings(writer)
    twin.write_tensors(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return TinyCheckpoint(tiny.family, file, twin.model)


class _GgufTwin:
    """One conversion: what it writes, and the model of that."""

    def __init__(self, tiny: TinyCheckpoint, quantization: str) -> None:
        self.recipe = FAMILIES[tiny.family]
        self.config = tiny.model.config
        self.model = copy.deepcopy(tiny.model)
        self.kind = gguf.GGMLQuantizationType[quantization]
        self.names = gguf.get_tensor_name_map(
            next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == self.recipe.architecture),
            self.config.num_hidden_layers,
        )

    def write_settings(self, writer: gguf.GGUFWriter) -> None:
        config, architecture = self.config, self.recipe.architecture
        writer.add_block_count(config.num_hidden_layers)
        writer.add_context_length(config.max_position_embeddings)
        writer.add_embedding_length(config.hidden_size)
        writer.add_head_count(config.num_attention_heads)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_vocab_size(config.vocab_size)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
        rope = config.rope_parameters
        writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
        if architecture != "qwen35moe":
            writer.add_feed_forward_length(config.intermediate_size)
        if architecture == "gemma3":
            writer.add_sliding_window(config.sliding_window)
        if architecture.startswith("qwen35"):
            writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
            writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
            writer.add_full_attention_interval(4)
            writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
            writer.add_ssm_state_size(config.linear_key_head_dim)
            writer.add_ssm_group_count(config.linear_num_key_heads)
            writer.add_ssm_time_step_rank(config.linear_num_value_heads)
            writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
        if architecture == "qwen35moe":
            writer.add_expert_count(config.num_experts)
            writer.add_expert_used_count(config.num_experts_per_tok)
            writer.add_expert_feed_forward_length(config.moe_intermediate_size)
            writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)

    def write_tensors(self, writer: gguf.GGUFWriter) -> None:
        if self.recipe.architecture == "llama" and self.config.rope_parameters["rope_type"] == "llama3":
            self._write_rope_divisors(writer)
        tied = self.config.tie_word_embeddings
        with torch.no_grad():
            for name, parameter in self.model.state_dict().items():
                if name == "lm_head.weight" and tied:
                    continue
                self._write(writer, name, parameter)

    def _write_rope_divisors(self, writer: gguf.GGUFWriter) -> None:
        frequencies = self.model.model.rotary_emb.inv_freq
        count = frequencies.numel()
        plain = self.config.rope_parameters["rope_theta"] ** (torch.arange(count).float() / -count)
        writer.add_tensor("rope_freqs.weight", (plain / frequencies).numpy().astype(np.float32))

    def _write(self, writer: gguf.GGUFWriter, name: str, parameter: torch.Tensor) -> None:
        """Write one tensor and put what was written back into the model."""
        if name.endswith("mlp.experts.gate_up_proj"):
            for kind, half in zip(("gate_proj", "up_proj"), parameter.chunk(2, dim=1), strict=True):
                stored = self._stored(writer, name.replace("gate_up_proj", f"{kind}.weight"), half.contiguous())
                half.copy_(stored)
            return
        full_name = f"{name}.weight" if name.endswith("mlp.experts.down_proj") else name
        order, axis = self._order(name, parameter)
        tensor = parameter.squeeze(1) if name.endswith("conv1d.weight") else parameter
        permuted = tensor.index_select(axis, order)
        inverse = torch.empty_like(order)
        inverse[order] = torch.arange(len(order))
        stored = self._stored(writer, full_name, permuted).index_select(axis, inverse)
        parameter.copy_(stored.reshape(parameter.shape))

    def _stored(self, writer: gguf.GGUFWriter, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Write ``tensor``, rows and columns in the file's order; returns what a reader of the file gets."""
        change, back = self._change_of_values(name)
        array = change(tensor).contiguous().numpy()
        if name.endswith("shared_expert_gate.weight"):
            array = array.reshape(-1)
        file_name = self.names.get_name(name.replace("dt_bias", "dt_proj.bias"), try_suffixes=(".weight", ".bias"))
        assert file_name is not None, name
        matrix = array.ndim >= 2 and "conv1d" not in name and not name.endswith("mlp.gate.weight")
        if not matrix:
            writer.add_tensor(file_name, array.astype(np.float32))
            return tensor
        packed = gguf.quants.quantize(array, self.kind)
        writer.add_tensor(file_name, packed, raw_dtype=self.kind)
        read = gguf.quants.dequantize(packed, self.kind).astype(np.float32).reshape(tensor.shape)
        return back(torch.from_numpy(read))

    def _change_of_values(
        self, name: str
    ) -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]:
        if name.endswith("A_log"):
            return (lambda tensor: -tensor.exp()), (lambda tensor: (-tensor).log())
        if self.recipe.zero_centred_norms and name.endswith("norm.weight") and "linear_attn" not in name:
            return (lambda tensor: tensor + 1), (lambda tensor: tensor - 1)
        return (lambda tensor: tensor), (lambda tensor: tensor)

    def _order(self, name: str, tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
        """The file's rows (axis 0) or columns (axis 1), as indices into the model's."""
        config = self.config
        unchanged = torch.arange(tensor.shape[0])
        if self.recipe.architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            return unchanged.view(heads, 2, -1).transpose(1, 2).reshape(-1), 0
        if "linear_attn" not in name or name.endswith("norm.weight"):
            return unchanged, 0
        key_heads, value_heads = config.linear_num_key_heads, config.linear_num_value_heads
        values = value_heads * config.linear_value_head_dim

        def tiled(count: int) -> torch.Tensor:
            return torch.arange(count).view(key_heads, value_heads // key_heads, -1).transpose(0, 1).reshape(-1)

        if "in_proj_qkv" in name or "conv1d" in name:
            keys = 2 * key_heads * config.linear_key_head_dim
            return torch.cat([torch.arange(keys), keys + tiled(values)]), 0
        if "out_proj" in name:
            return tiled(values), 1
        return tiled(tensor.shape[0]), 0


_KEPT_BY_FP8 = (
    "embed_tokens",
    "lm_head",
    "norm",
    "conv1d",
    "in_proj_a",
    "in_proj_b",
    "mlp.gate.",
    "shared_expert_gate",
)


def write_fp8_twin(
    tiny: TinyCheckpoint,
    folder: Path,
    tile: tuple[int, int] = (32, 32),
    scale_dtype: torch.dtype = torch.float32,
    fused_experts: bool = False,
) -> TinyCheckpoint:
    """Write ``tiny`` with F8_E4M3 weights, one scale per tile of ``tile`` rows and columns; ragged last tiles are fine.

    Args:
        fused_experts: all experts of a layer in one tensor per product, instead of tensors of their own.
    """
    folder.mkdir()
    tensors = load_file(tiny.path / "model.safetensors")
    state = copy.deepcopy(tiny.model).state_dict()
    if fused_experts:
        tensors = {name: tensor for name, tensor in tensors.items() if ".mlp.experts." not in name}
        tensors |= {name: tensor.clone() for name, tensor in state.items() if ".mlp.experts." in name}
    written: dict[str, torch.Tensor] = {}
    exact: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim < 2 or any(part in name for part in _KEPT_BY_FP8):
            written[name] = exact[name] = tensor
            continue
        codes, scales, exact[name] = _to_fp8(tensor, tile, scale_dtype)
        written[name] = codes
        written[f"{name}_scale_inv"] = scales
    save_file(written, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tiny.path / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "fmt": "e4m3",
        "weight_block_size": list(tile),
    }
    (folder / "config.json").write_text(json.dumps(config))
    # The dequantised weights go through a checkpoint of their own, so that transformers joins experts as it does.
    plain = folder / "dequantised"
    plain.mkdir()
    save_file(exact, plain / "model.safetensors", metadata={"format": "pt"})
    (plain / "config.json").write_text((tiny.path / "config.json").read_text())
    model = type(tiny.model).from_pretrained(plain, dtype=torch.float32).train(mode=False)
    return TinyCheckpoint(tiny.family, folder, model)


def _to_fp8(
    tensor: torch.Tensor, tile: tuple[int, int], scale_dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes, scales and the values they stand for."""
    rows, columns = tensor.shape[-2:]
    grid = (-(-rows // tile[0]), -(-columns // tile[1]))
    scales = torch.empty((*tensor.shape[:-2], *grid))
    for row in range(grid[0]):
        for column in range(grid[1]):
            block = tensor[..., row * tile[0] : (row + 1) * tile[0], column * tile[1] : (column + 1) * tile[1]]
            scales[..., row, column] = block.abs().amax((-2, -1)).clamp(min=1e-12) / 400
    scales = scales.to(scale_dtype)
    spread = scales.float().repeat_interleave(tile[0], -2)[..., :rows, :]
    spread = spread.repeat_interleave(tile[1], -1)[..., :columns]
    codes = (tensor / spread).to(torch.float8_e4m3fn)
    return codes, scales, codes.float() * spread
