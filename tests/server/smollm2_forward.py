"""SmolLM2 written down once more, in thirty lines of Torch on dequantised weights: what the engine is compared with."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch

from pocketllm.checkpoint import open_checkpoint


class Forward:
    """The whole model in float32, without a cache: every call computes all positions."""

    def __init__(self, path: Path) -> None:
        config = open_checkpoint(path).config
        self._num_layers, self._num_heads = (
            int(str(config["num_hidden_layers"])),
            int(str(config["num_attention_heads"])),
        )
        self._num_kv_heads = int(str(config["num_key_value_heads"]))
        self._eps = float(str(config["rms_norm_eps"]))
        self._theta = float(str(config["rope_theta"]))
        self._weights = {
            tensor.name: torch.from_numpy(gguf.dequantize(tensor.data, tensor.tensor_type).copy()).float()
            for tensor in gguf.GGUFReader(path).tensors
        }

    @torch.inference_mode()
    def logprobs(self, ids: list[int]) -> torch.Tensor:
        """[position, vocab]: natural logarithms of the probability of what follows each position."""
        return torch.log_softmax(self.logits(ids), dim=-1)

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> torch.Tensor:
        """[position, vocab]"""
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the engine computes beside it, and threads that wait for each other cost more
        try:
            return self._logits(ids)
        finally:
            torch.set_num_threads(num_threads)

    def _logits(self, ids: list[int]) -> torch.Tensor:
        weights = self._weights
        x = weights["token_embd.weight"][torch.tensor(ids)]
        for layer in range(self._num_layers):
            name = f"blk.{layer}."
            y = self._norm(x, weights[name + "attn_norm.weight"])
            x = x + self._attention(y, name) @ weights[name + "attn_output.weight"].T
            y = self._norm(x, weights[name + "ffn_norm.weight"])
            gate = torch.nn.functional.silu(y @ weights[name + "ffn_gate.weight"].T)
            x = x + (gate * (y @ weights[name + "ffn_up.weight"].T)) @ weights[name + "ffn_down.weight"].T
        return self._norm(x, weights["output_norm.weight"]) @ weights["token_embd.weight"].T

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self._eps) * weight

    def _attention(self, x: torch.Tensor, name: str) -> torch.Tensor:
        queries, keys, values = (
            (x @ self._weights[f"{name}attn_{part}.weight"].T).view(len(x), heads, -1).transpose(0, 1)
            for part, heads in (("q", self._num_heads), ("k", self._num_kv_heads), ("v", self._num_kv_heads))
        )
        repeat = self._num_heads // self._num_kv_heads
        keys, values = self._turn(keys).repeat_interleave(repeat, 0), values.repeat_interleave(repeat, 0)
        mixed = torch.nn.functional.scaled_dot_product_attention(self._turn(queries), keys, values, is_causal=True)
        return mixed.transpose(0, 1).reshape(len(x), -1)

    def _turn(self, x: torch.Tensor) -> torch.Tensor:
        """Rotary positions over neighbouring pairs, the order in which a GGUF of this family stores its rows."""
        length, size = x.shape[-2:]
        frequencies = self._theta ** (-torch.arange(0, size, 2) / size)
        angles = torch.arange(length)[:, None] * frequencies
        even, odd = x[..., ::2], x[..., 1::2]
        turned = (even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos())
        return torch.stack(turned, dim=-1).flatten(-2)
