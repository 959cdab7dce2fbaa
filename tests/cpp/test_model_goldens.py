"""Every family against transformers: tiny random checkpoints in both formats, and published texts of real models."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import MistralConfig, MistralForCausalLM

from pocketllm.checkpoint import open_checkpoint
from pocketllm.errors import CheckpointError
from pocketllm_cpp import _native
from pocketllm_cpp.loading import RuntimeSettings, load_runtime
from tests.cpp.tiny_checkpoints import (
    FAMILIES,
    TinyCheckpoint,
    random_ids,
    write_fp8_twin,
    write_gguf_twin,
    write_tiny,
)

# Of any logit, where nothing is rounded below float32: both sides then err by a few 1e-6. The reference has the same
# weights, dequantised where they are quantised.
TOLERANCE = 1e-5
# With a cache of halves, against a reference whose keys and values are rounded to halves too. What lies in the middle
# between two halves may go either way, which the norms behind Gemma's branches make the most of: a change of every
# weight by 2e-7 of itself moves the reference's own logits by 3e-4.
HALVES_TOLERANCE = 1e-4
HALVES_LARGEST = {"gemma3": 1e-3, "qwen3": 3e-4}
# Longer than a chunk of the recurrence and than any window.
PROMPT = random_ids(110, seed=1)

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama wide heads": ("llama", {"head_dim": 32}),
    "llama no grouping": ("llama", {"num_key_value_heads": 4}),
    "llama untied": ("llama", {"tie_word_embeddings": False}),
    "llama linear rope": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama llama3 rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "qwen3 yarn rope": ("qwen3", {"rope_parameters": YARN_ROPE}),
    "qwen2 windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
    "gemma3 scaled rope": ("gemma3", {"rope_parameters": GEMMA_ROPE}),
    "gemma3 query scale": ("gemma3", {"query_pre_attn_scalar": 64}),
    "qwen35 one value head per key head": ("qwen35", {"linear_num_value_heads": 2}),
    "qwen35 untied": ("qwen35", {"tie_word_embeddings": False}),
    "qwen35moe more choices": ("qwen35moe", {"num_experts_per_tok": 5}),
}


class Bench:
    """A native session whose logits are read row by row."""

    def __init__(
        self,
        path: Path,
        *,
        device: str = "cpu",
        activation: str = "float32",
        kv_cache_dtype: str = "f32",
        num_threads: int = 2,
    ) -> None:
        settings = RuntimeSettings(
            device=device,
            activation=activation,
            kv_cache_dtype=kv_cache_dtype,
            num_threads=num_threads,
            max_model_len=512,
        )
        self.runtime = load_runtime(open_checkpoint(path), settings)
        self.session = _native.Session(self.runtime)

    def last(self) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(self.session.logits(), dtype=np.float32).copy())

    def whole(self, ids: list[int]) -> torch.Tensor:
        """Logits after every token, computed in one pass and row by row where there is a recurrence."""
        self.session.reset()
        self.session.verify_step(ids)
        rows = [self.session.logits(row) for row in range(self.session.num_rows)]
        return torch.from_numpy(np.stack([np.frombuffer(row, dtype=np.float32) for row in rows]))

    def greedy(self, ids: list[int], count: int) -> list[int]:
        self.session.reset()
        self.session.prefill(ids)
        tokens = [self.session.argmax()]
        while len(tokens) < count:
            self.session.decode_step(tokens[-1])
            tokens.append(self.session.argmax())
        return tokens


def largest(difference: torch.Tensor) -> float:
    return float(difference.abs().max())


def assert_equals_reference(tiny: TinyCheckpoint, device: str = "cpu") -> None:
    bench = Bench(tiny.path, device=device)
    expected = tiny.logits(PROMPT)
    # Otherwise any small number would be close enough.
    assert float(expected.std()) > 0.2
    assert largest(bench.whole(PROMPT) - expected) <= TOLERANCE
    prompt = PROMPT[:20]
    greedy = bench.greedy(prompt, 12)
    # The reference would have chosen each of these after those before it.
    choices = tiny.logits([*prompt, *greedy]).argmax(-1).tolist()
    assert greedy == choices[len(prompt) - 1 : -1]


def write_mistral(tiny: TinyCheckpoint, folder: Path, **changes: Any) -> TinyCheckpoint:
    """A Llama's weights as a Mistral, whose only difference is its window."""
    settings = tiny.model.config.to_diff_dict()
    settings = {name: settings[name] for name in settings if name not in ("model_type", "architectures")}
    model = MistralForCausalLM(MistralConfig(**{**settings, **changes})).train(mode=False)
    model.load_state_dict(tiny.model.state_dict())
    model.save_pretrained(folder)
    return TinyCheckpoint(tiny.family, folder, model)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyCheckpoint]:
    written: dict[str, TinyCheckpoint] = {}

    def get(family: str) -> TinyCheckpoint:
        if family not in written:
            written[family] = write_tiny(family, tmp_path_factory.mktemp(family) / "hf")
        return written[family]

    return get


@pytest.mark.parametrize("device", _native.devices())
@pytest.mark.parametrize("family", FAMILIES)
def test_safetensors_models_equal_transformers(family: str, device: str, tiny: Callable[[str], TinyCheckpoint]) -> None:
    assert_equals_reference(tiny(family), device)


@pytest.mark.parametrize("window", [None, 24])
def test_a_mistral_equals_transformers_with_and_without_its_window(
    window: int | None, tiny: Callable[[str], TinyCheckpoint], tmp_path: Path
) -> None:
    mistral = write_mistral(tiny("llama"), tmp_path / "hf", sliding_window=window)
    difference = mistral.logits(PROMPT) - tiny("llama").logits(PROMPT)
    assert (largest(difference) > 0.1) is (window is not None)
    assert_equals_reference(mistral)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cache_of_halves_stays_close_to_an_exact_one(family: str, tiny: Callable[[str], TinyCheckpoint]) -> None:
    checkpoint = tiny(family)
    difference = Bench(checkpoint.path, kv_cache_dtype="f16").whole(PROMPT) - checkpoint.logits(PROMPT, half_cache=True)
    assert float(difference.square().mean().sqrt()) < HALVES_TOLERANCE
    assert largest(difference) < HALVES_LARGEST.get(family, HALVES_TOLERANCE)


@pytest.mark.parametrize("variant", VARIANTS)
def test_settings_off_the_beaten_path_equal_transformers(variant: str, tmp_path: Path) -> None:
    family, changes = VARIANTS[variant]
    assert_equals_reference(write_tiny(family, tmp_path / "hf", **changes))


@pytest.mark.parametrize(
    "family, quantization",
    [*itertools.product(FAMILIES, ["F32", "Q8_0"]), ("llama", "F16"), ("gemma3", "Q5_0"), ("qwen35moe", "Q4_1")],
)
def test_gguf_models_equal_transformers(
    family: str, quantization: str, tiny: Callable[[str], TinyCheckpoint], tmp_path: Path
) -> None:
    assert_equals_reference(write_gguf_twin(tiny(family), tmp_path / "twin.gguf", quantization))


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_models_equal_transformers_on_the_reference_device(
    family: str, tiny: Callable[[str], TinyCheckpoint], tmp_path: Path
) -> None:
    assert_equals_reference(write_gguf_twin(tiny(family), tmp_path / "twin.gguf", "Q8_0"), "reference")


def test_a_gguf_with_rope_divisors_equals_transformers(tmp_path: Path) -> None:
    written = write_tiny("llama", tmp_path / "hf", rope_parameters=LLAMA3_ROPE)
    assert_equals_reference(write_gguf_twin(written, tmp_path / "twin.gguf"))


@pytest.mark.parametrize(
    "family, tile, scale_dtype",
    [
        ("qwen35", (32, 32), torch.float32),
        ("qwen35", (24, 40), torch.bfloat16),
        ("qwen35moe", (24, 40), torch.float32),
        ("llama", (32, 32), torch.bfloat16),
    ],
    ids=str,
)
def test_fp8_models_equal_transformers(
    family: str,
    tile: tuple[int, int],
    scale_dtype: torch.dtype,
    tiny: Callable[[str], TinyCheckpoint],
    tmp_path: Path,
) -> None:
    assert_equals_reference(write_fp8_twin(tiny(family), tmp_path / "fp8", tile, scale_dtype))


def test_fp8_models_with_fused_experts_equal_transformers(
    tiny: Callable[[str], TinyCheckpoint], tmp_path: Path
) -> None:
    assert_equals_reference(write_fp8_twin(tiny("qwen35moe"), tmp_path / "fp8", (24, 40), fused_experts=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_in_chunks_and_token_by_token(family: str, tiny: Callable[[str], TinyCheckpoint]) -> None:
    checkpoint = tiny(family)
    bench = Bench(checkpoint.path)
    expected = checkpoint.logits(PROMPT)
    position = 0
    for length in (33, *[1] * 5, 60, 7, *[1] * 3):
        position += length
        if length == 1:
            bench.session.decode_step(PROMPT[position - 1])
        else:
            bench.session.prefill(PROMPT[:position])
        assert largest(bench.last() - expected[position - 1]) <= TOLERANCE


@pytest.mark.parametrize("activation, kv_cache_dtype", [("float32", "f32"), ("int8", "f16"), ("int8", "q8_0")])
@pytest.mark.parametrize("family", FAMILIES)
def test_bits_do_not_depend_on_how_rows_come(
    family: str, activation: str, kv_cache_dtype: str, tiny: Callable[[str], TinyCheckpoint], tmp_path: Path
) -> None:
    """One pass over all tokens, one by one, and on one thread."""
    twin = write_gguf_twin(tiny(family), tmp_path / "twin.gguf", "Q8_0")
    together = Bench(twin.path, activation=activation, kv_cache_dtype=kv_cache_dtype)
    apart = Bench(twin.path, activation=activation, kv_cache_dtype=kv_cache_dtype, num_threads=1)
    whole = together.whole(PROMPT[:40])
    for row, token in enumerate(PROMPT[:40]):
        apart.session.decode_step(token)
        assert torch.equal(apart.last(), whole[row]), row


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_activations_are_close(family: str, tiny: Callable[[str], TinyCheckpoint], tmp_path: Path) -> None:
    twin = write_gguf_twin(tiny(family), tmp_path / "twin.gguf", "Q8_0")
    expected = twin.logits(PROMPT)
    difference = Bench(twin.path, activation="int8", kv_cache_dtype="auto").whole(PROMPT) - expected
    # A choice of experts may change where two are all but equally good: the typical row is what counts.
    assert float(difference.square().mean(-1).sqrt().median() / expected.std()) < 0.06


def test_leftover_and_missing_tensors_are_refused(tiny: Callable[[str], TinyCheckpoint], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = tiny("llama").path
    tensors = load_file(source / "model.safetensors")
    (tmp_path / "config.json").write_text((source / "config.json").read_text())
    file = tmp_path / "model.safetensors"

    save_file({**tensors, "model.layers.0.self_attn.q_norm.weight": torch.ones(16)}, file)
    with pytest.raises(CheckpointError, match=r"1 tensors that this model has no place for .*q_norm"):
        Bench(tmp_path)
    save_file({**tensors, "model.norm.weight": torch.ones(65)}, file)
    with pytest.raises(CheckpointError, match=r"model.norm.weight\" has shape \[65\], .* \[64\]"):
        Bench(tmp_path)
    del tensors["model.norm.weight"]
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"no tensor \"model.norm.weight\""):
        Bench(tmp_path)


# Greedy ids from transformers on the same weights, dequantised to float32.
SMOLLM2_RAW = [504, 3575, 282, 4649, 314]
SMOLLM2_RAW_TEXT = [
    *(7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33, 29, 34, 34, 216, 33, 34, 42, 33),
]
SMOLLM2_CHAT = [
    *(1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182, 2),
    *(198, 1, 4093, 198, 1780, 314, 216, 34, 27, 34, 47, 2, 198, 1, 520, 9531, 198),
]
SMOLLM2_CHAT_TEXT = [504, 2988, 288, 451, 8170, 4119, 1732, 314, 216, 36, 30, 2]
GEMMA3 = [2, 818, 5279, 529, 7001, 563]
GEMMA3_TEXT = [
    *(506, 5279, 529, 506, 2891, 529, 7001, 236761, 1030, 563, 506, 7488, 3207, 528, 7001, 532, 506, 1855, 7488, 3207),
    *(528, 3879, 236761, 1030),
]


def assert_top(bench: Bench, ids: list[int], published: dict[int, float], tolerance: float) -> None:
    bench.session.reset()
    bench.session.prefill(ids)
    top = bench.session.top(len(published))
    assert [token for token, _ in top] == list(published)
    for token, logit in top:
        assert logit == pytest.approx(published[token], abs=tolerance)


# Published to four or five digits.
@pytest.mark.parametrize("kv_cache_dtype, tolerance", [("f16", 0.02), ("f32", 2e-4)])
def test_smollm2_texts_with_exact_activations(kv_cache_dtype: str, tolerance: float, smollm2_path: Path) -> None:
    bench = Bench(smollm2_path, kv_cache_dtype=kv_cache_dtype)
    assert bench.greedy(SMOLLM2_RAW, 24) == SMOLLM2_RAW_TEXT
    assert bench.greedy(SMOLLM2_CHAT, 12) == SMOLLM2_CHAT_TEXT
    assert_top(bench, SMOLLM2_RAW, {7042: 17.3713, 260: 14.8886, 4528: 13.245, 2250: 13.0095, 1315: 12.9515}, tolerance)


def test_smollm2_writes_its_texts_on_the_reference_device(smollm2_path: Path) -> None:
    bench = Bench(smollm2_path, device="reference")
    assert bench.greedy(SMOLLM2_RAW, 8) == SMOLLM2_RAW_TEXT[:8]
    assert_top(bench, SMOLLM2_RAW, {7042: 17.3713, 260: 14.8886, 4528: 13.245}, 2e-4)


@pytest.mark.parametrize("kv_cache_dtype, tolerance", [("f16", 0.02), ("f32", 2e-4)])
def test_gemma3_texts_with_exact_activations(kv_cache_dtype: str, tolerance: float, gemma3_path: Path) -> None:
    bench = Bench(gemma3_path, kv_cache_dtype=kv_cache_dtype)
    assert bench.greedy(GEMMA3, 24) == GEMMA3_TEXT
    assert_top(bench, GEMMA3, {506: 19.0915, 496: 18.5476, 9079: 18.2686, 886: 18.113, 3224: 17.7839}, tolerance)
