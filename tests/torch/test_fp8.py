"""FP8 safetensors: one scale for a tile of rows and columns, multiplied out while loading."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from pocketllm.checkpoint import open_checkpoint
from pocketllm.cli.doctor import examine
from pocketllm.engine_args import EngineArgs
from pocketllm.errors import CheckpointError, UnsupportedFeatureError
from pocketllm.plugins.registry import get_registry
from pocketllm.types import Offer, Refusal
from pocketllm_torch import plugin
from pocketllm_torch.weights.fp8_tiles import dequantize_tiles
from pocketllm_torch.weights.reader import WeightReader
from tests.cpp.tiny_checkpoints import TinyCheckpoint, write_fp8_twin, write_tiny
from tests.torch.driving import Driver
from tests.torch.test_families import GENERATED, check
from tests.torch.tiny_llama import random_ids

NAME = "model.layers.0.mlp.up_proj.weight"
SETTINGS: dict[str, Any] = {
    "quant_method": "fp8",
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "weight_block_size": [128, 128],
}


def by_formula(codes: torch.Tensor, scales: torch.Tensor, tile: tuple[int, int]) -> torch.Tensor:
    """w[i, j] = code[i, j] * scale[i // tile rows, j // tile columns] in float32, element by element."""
    rows = torch.arange(codes.shape[-2]) // tile[0]
    columns = torch.arange(codes.shape[-1]) // tile[1]
    return codes.float() * scales.float()[..., rows[:, None], columns[None, :]]


def random_codes(*shape: int, seed: int = 0) -> torch.Tensor:
    """Every code but the two NaNs."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 127, shape, generator=generator) + 128 * torch.randint(0, 2, shape, generator=generator)
    return codes.to(torch.uint8).view(torch.float8_e4m3fn)


def random_scales(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.rand(shape, generator=torch.Generator().manual_seed(3)) + 0.01).to(dtype)


def write(folder: Path, tensors: dict[str, torch.Tensor], quantization: object = SETTINGS) -> Path:
    """A folder with these tensors alone, for the reader."""
    save_file(tensors, folder / "model.safetensors")
    config: dict[str, object] = {"model_type": "llama", "num_hidden_layers": 1}
    if quantization is not None:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def reader(folder: Path) -> WeightReader:
    return WeightReader(open_checkpoint(folder), lambda name: name)


# ------------------------------------------------------------------------------------------------- whole models


@pytest.mark.parametrize(
    "family, tile, scale_dtype, fused_experts",
    [
        ("llama", (32, 32), torch.bfloat16, False),
        ("qwen35", (24, 40), torch.bfloat16, False),
        ("qwen35", (128, 128), torch.float32, False),
        ("qwen35moe", (24, 40), torch.float32, False),
        ("qwen35moe", (24, 40), torch.float32, True),
    ],
    ids=str,
)
def test_a_twin_answers_like_its_dequantised_weights(
    family: str, tile: tuple[int, int], scale_dtype: torch.dtype, fused_experts: bool, tmp_path: Path
) -> None:
    twin = write_fp8_twin(
        write_tiny(family, tmp_path / "hf", widen=4.0), tmp_path / "fp8", tile, scale_dtype, fused_experts
    )
    ids = random_ids(70, 1)
    with Driver.open(twin.path, dtype="float32", prefill_chunk_tokens=33) as driver:
        stream = driver.run(ids, max_tokens=GENERATED, logprobs=True, top_logprobs=3, prompt_logprobs=True)
    check(twin, ids, stream)


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    folder = tmp_path_factory.mktemp("twin")
    return write_fp8_twin(write_tiny("qwen35", folder / "hf"), folder / "fp8")


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_the_twin_opens_in_the_other_dtypes(twin: TinyCheckpoint, dtype: str | None) -> None:
    with Driver.open(twin.path, dtype=dtype) as driver:
        assert driver.run(random_ids(20, 1), max_tokens=4).reason == "length"


def test_doctor_finds_an_offer(twin: TinyCheckpoint) -> None:
    report = examine(get_registry(), EngineArgs(model=str(twin.path), backend="torch"))
    assert report["selected"] == "torch", report
    assert report["model"]["quantization"] == "fp8"


def test_a_wrapper_says_it_for_its_language_model(twin: TinyCheckpoint, tmp_path: Path) -> None:
    config = json.loads((twin.path / "config.json").read_text())
    quantization = config.pop("quantization_config")
    wrapped = {"model_type": "qwen3_5", "text_config": config, "quantization_config": quantization}
    (tmp_path / "config.json").write_text(json.dumps(wrapped))
    tensors = load_file(twin.path / "model.safetensors")
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    ids = random_ids(30, 4)
    with Driver.open(tmp_path, dtype="float32") as driver:
        stream = driver.run(ids, max_tokens=GENERATED, logprobs=True, top_logprobs=3, prompt_logprobs=True)
    check(twin, ids, stream)


# ---------------------------------------------------------------------------------------------------- the probe


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"quant_method": "gptq"}, "quant_method = 'gptq'"),
        ({"fmt": "e5m2"}, "fmt = 'e5m2'"),
        ({"weight_block_size": None}, "weight_block_size is missing"),
        ({"weight_block_size": [128]}, r"weight_block_size = [128]"),
        ({"weight_block_size": [0, 128]}, r"weight_block_size = [0, 128]"),
        ({"weight_block_size": [True, 128]}, r"weight_block_size = [True, 128]"),
    ],
)
def test_what_is_not_tiles_of_e4m3_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = write(tmp_path, {NAME: torch.zeros(2, 2)}, {**SETTINGS, **changes})
    answer = plugin.pocketllm_probe(open_checkpoint(path), EngineArgs(model=str(path)))
    assert isinstance(answer, Refusal)
    assert words in answer.reason


def test_quantization_that_is_no_object_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {NAME: torch.zeros(2, 2)}, "fp8")
    answer = plugin.pocketllm_probe(open_checkpoint(path), EngineArgs(model=str(path)))
    assert isinstance(answer, Refusal)
    assert "quantization_config = 'fp8'" in answer.reason


def test_tiles_of_e4m3_are_offered(tmp_path: Path) -> None:
    path = write(tmp_path, {NAME: random_codes(2, 2), f"{NAME}_scale_inv": torch.ones(1, 1)})
    assert isinstance(plugin.pocketllm_probe(open_checkpoint(path), EngineArgs(model=str(path))), Offer)


# --------------------------------------------------------------------------------------------------- the reader


@pytest.mark.parametrize("shape", [(128, 128), (256, 384), (200, 300), (1, 130), (130, 1)])
@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tiles_at_the_edge_may_be_partial(shape: tuple[int, int], scale_dtype: torch.dtype, tmp_path: Path) -> None:
    codes = random_codes(*shape)
    scales = random_scales(-(-shape[0] // 128), -(-shape[1] // 128), dtype=scale_dtype)
    with reader(write(tmp_path, {NAME: codes, f"{NAME}_scale_inv": scales})) as weights:
        read = weights.read(NAME, shape)
        weights.check_all_read()
    assert read.dtype == torch.float32
    assert torch.equal(read, by_formula(codes, scales, (128, 128)))


def test_stacked_experts_have_stacked_scales(tmp_path: Path) -> None:
    name = "model.layers.0.mlp.experts.down_proj"
    codes, scales = random_codes(3, 200, 130), random_scales(3, 2, 2)
    with reader(write(tmp_path, {name: codes, f"{name}_scale_inv": scales})) as weights:
        assert torch.equal(weights.read(name, (3, 200, 130)), by_formula(codes, scales, (128, 128)))
        weights.check_all_read()


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    tile=st.tuples(st.integers(1, 48), st.integers(1, 48)),
    stack=st.sampled_from([(), (2,)]),
    seed=st.integers(0, 1000),
)
def test_any_tile_follows_the_formula(
    rows: int, columns: int, tile: tuple[int, int], stack: tuple[int, ...], seed: int
) -> None:
    codes = random_codes(*stack, rows, columns, seed=seed)
    scales = random_scales(*stack, -(-rows // tile[0]), -(-columns // tile[1]))
    assert torch.equal(dequantize_tiles(codes, scales, tile), by_formula(codes, scales, tile))


def test_other_types_in_the_file_stay_as_they_are(tmp_path: Path) -> None:
    half, norm = torch.randn(4, 8).bfloat16(), torch.randn(8)
    codes, scales = random_codes(4, 8), random_scales(1, 1)
    tensors = {"half.weight": half, "norm.weight": norm, NAME: codes, f"{NAME}_scale_inv": scales}
    with reader(write(tmp_path, tensors)) as weights:
        assert torch.equal(weights.read("half.weight", (4, 8)), half)
        assert torch.equal(weights.read("norm.weight", (8,)), norm)
        assert torch.equal(weights.read(NAME, (4, 8)), by_formula(codes, scales, (128, 128)))
        weights.check_all_read()


def test_a_missing_scale_is_named(tmp_path: Path) -> None:
    with reader(write(tmp_path, {NAME: random_codes(4, 8)})) as weights:
        with pytest.raises(
            CheckpointError, match=rf"model.safetensors: tensor '{NAME}' is F8_E4M3.*'{NAME}_scale_inv'"
        ):
            weights.read(NAME, (4, 8))


@pytest.mark.parametrize("shape", [(1,), (2, 1), (1, 1, 1)])
def test_a_scale_of_the_wrong_shape_is_named(shape: tuple[int, ...], tmp_path: Path) -> None:
    tensors = {NAME: random_codes(200, 300), f"{NAME}_scale_inv": random_scales(*shape)}
    with reader(write(tmp_path, tensors)) as weights:
        with pytest.raises(
            CheckpointError, match=rf"model.safetensors: tensor '{NAME}_scale_inv' has shape .*\[2, 3\]"
        ):
            weights.read(NAME, (200, 300))


def test_a_scale_of_another_type_is_named(tmp_path: Path) -> None:
    tensors = {NAME: random_codes(4, 8), f"{NAME}_scale_inv": torch.ones(1, 1, dtype=torch.int32)}
    with reader(write(tmp_path, tensors)) as weights:
        with pytest.raises(
            UnsupportedFeatureError, match=rf"model.safetensors: tensor '{NAME}_scale_inv' is of type I32"
        ):
            weights.read(NAME, (4, 8))


def test_a_vector_has_no_tiles(tmp_path: Path) -> None:
    tensors = {"norm.weight": random_codes(8), "norm.weight_scale_inv": torch.ones(1, 1)}
    with reader(write(tmp_path, tensors)) as weights:
        with pytest.raises(
            UnsupportedFeatureError, match=r"model.safetensors: tensor 'norm.weight' is F8_E4M3 .*\[8\]"
        ):
            weights.read("norm.weight", (8,))


def test_codes_without_a_configuration_are_not_taken_for_numbers(tmp_path: Path) -> None:
    tensors = {NAME: random_codes(4, 8), f"{NAME}_scale_inv": torch.ones(1, 1)}
    with reader(write(tmp_path, tensors, None)) as weights:
        with pytest.raises(CheckpointError, match=rf"model.safetensors: tensor '{NAME}' .* no quantization_config"):
            weights.read(NAME, (4, 8))


def test_a_scale_beside_a_weight_that_needs_none_is_unread(tmp_path: Path) -> None:
    with reader(write(tmp_path, {NAME: torch.zeros(4, 8), f"{NAME}_scale_inv": torch.ones(1, 1)})) as weights:
        weights.read(NAME, (4, 8))
        with pytest.raises(CheckpointError, match=f"no place for .{NAME}_scale_inv"):
            weights.check_all_read()
