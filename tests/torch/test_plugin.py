"""The hooks that core calls before and while it opens an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pocketllm.checkpoint import open_checkpoint
from pocketllm.engine_args import EngineArgs
from pocketllm.errors import BackendUnavailableError, CheckpointError, ConfigurationError
from pocketllm.types import Offer, Refusal
from pocketllm_torch import plugin
from pocketllm_torch.engine.opening import open_engine
from pocketllm_torch.options import OPTION_SPECS, TorchOptions
from pocketllm_torch.weights.gguf_blocks import SUPPORTED_TYPES
from pocketllm_torch.weights.precision import choose_precision
from tests.torch.driving import Driver
from tests.torch.tiny_llama import TinyLlama, write_tiny_llama


def probe(path: Path, **args: Any) -> Offer | Refusal:
    return plugin.pocketllm_probe(open_checkpoint(path), EngineArgs(model=str(path), **args))


def with_config(path: Path, tmp_path: Path, **changes: object) -> Path:
    """The tiny checkpoint under another configuration."""
    for file in path.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    return tmp_path


def test_the_card_and_the_probe_import_no_runtime(smollm2_path: Path) -> None:
    script = f"""
import sys
from pocketllm.checkpoint import open_checkpoint
from pocketllm.engine_args import EngineArgs
from pocketllm_torch import plugin
assert plugin.pocketllm_backend().name == "torch"
print(plugin.pocketllm_probe(open_checkpoint({str(smollm2_path)!r}), EngineArgs(model="x")).rank)
assert not {{"torch", "numpy", "triton", "safetensors"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "50\n"


def test_the_probe_offers_what_the_engine_opens(tiny_path: Path) -> None:
    offer = probe(tiny_path, device="cpu")
    assert isinstance(offer, Offer)
    assert offer.device == "cpu"
    assert "llama from safetensors" in offer.reason


def test_types_of_the_probe_are_the_types_of_the_reader() -> None:
    assert plugin.GGUF_TYPES == SUPPORTED_TYPES


@pytest.mark.parametrize(
    "args, words",
    [
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype = 'fp8'"),
        ({"attention_window": 128}, "attention_window = 128"),
        ({"speculative_method": "mtp"}, "speculative_method = 'mtp'"),
    ],
)
def test_arguments_it_does_not_act_on_are_refused(tiny_path: Path, args: dict[str, Any], words: str) -> None:
    answer = probe(tiny_path, **args)
    assert isinstance(answer, Refusal)
    assert words in answer.reason


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"model_type": "mamba"}, "no model family 'mamba' yet; it has gemma3_text, llama"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"num_experts": 8}, "no mixture of experts"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config.quant_method = 'awq'"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_parameters asks for 'yarn'"),
        ({"rope_parameters": None, "rope_scaling": {"type": "longrope"}}, "rope_scaling asks for 'longrope'"),
    ],
)
def test_models_it_does_not_have_are_refused(
    tiny_path: Path, tmp_path: Path, changes: dict[str, object], words: str
) -> None:
    answer = probe(with_config(tiny_path, tmp_path, **changes))
    assert isinstance(answer, Refusal)
    assert words in answer.reason


def test_tensor_types_it_does_not_read_are_refused(tiny_path: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    path = with_config(tiny_path, tmp_path)
    tensors = load_file(path / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"].to(torch.float8_e4m3fn)
    save_file(tensors, path / "model.safetensors")
    answer = probe(path)
    assert isinstance(answer, Refusal)
    assert "tensors of type F8_E4M3" in answer.reason


def test_a_configuration_without_weights_is_refused(tiny_path: Path, tmp_path: Path) -> None:
    path = with_config(tiny_path, tmp_path)
    (path / "model.safetensors").unlink()
    answer = probe(path)
    assert isinstance(answer, Refusal)
    assert "no weights" in answer.reason


# -------------------------------------------------------------------------------------------------------- opening


def opened(path: Path, options: dict[str, Any] | None = None, **args: Any) -> Driver:
    return Driver.open(path, options=options, **args)


def test_loading_is_reported_to_its_end(tiny_path: Path) -> None:
    seen: list[tuple[str, float]] = []
    engine = plugin.pocketllm_open(
        EngineArgs(model=str(tiny_path)),
        open_checkpoint(tiny_path),
        lambda stage, fraction: seen.append((stage, fraction)),
    )
    engine.pocketllm_close(10.0)  # type: ignore[attr-defined]  # the protocol names the event source alone
    weights = [fraction for stage, fraction in seen if stage == "weights"]
    assert weights == sorted(weights)
    assert weights[-1] == 1.0


def test_capabilities_say_what_was_opened(tiny_path: Path) -> None:
    with opened(tiny_path, {"eos_token_id": [4, 5]}, max_batch_size=3, max_model_len=100, dtype="bf16") as driver:
        capabilities = driver.engine.pocketllm_capabilities()
    assert capabilities.name == "torch"
    assert capabilities.max_model_len == 100
    assert capabilities.max_batch_size == 3
    assert capabilities.vocab_size == 320
    assert capabilities.eos_token_ids == (4, 5)
    assert capabilities.details["dtype"] == "bfloat16"
    assert not capabilities.batch_invariant
    assert not capabilities.supports_structured_outputs


@pytest.mark.parametrize(
    "options, args, expected",
    [
        ({}, {}, (512, 128)),
        ({}, {"prefill_chunk_tokens": 64}, (64, 0)),
        ({"max_step_tokens": 300}, {}, (512, 0)),
    ],
)
def test_a_budget_that_was_asked_for_holds_beside_decodes_too(
    tiny_path: Path, options: dict[str, Any], args: dict[str, Any], expected: tuple[int, int]
) -> None:
    with opened(tiny_path, options, **args) as driver:
        details = driver.engine.pocketllm_capabilities().details
    assert (details["prefill_chunk_tokens"], details["prefill_tokens_beside_decodes"]) == expected


def test_rows_past_the_tokenizer_are_not_generated(tmp_path: Path) -> None:
    from pocketllm.testing.toy_checkpoint import vocabulary, write_toy_checkpoint

    tokenizer = write_toy_checkpoint(tmp_path / "toy")
    size = len(vocabulary())
    tiny = write_tiny_llama(tmp_path / "tiny", vocab_size=size + 13)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tiny.path / name).write_bytes((tokenizer / name).read_bytes())
    with opened(tiny.path, dtype="float32") as driver:
        assert driver.engine.pocketllm_capabilities().vocab_size == size
        stream = driver.run([1, 2, 3], temperature=100.0, max_tokens=300)
    assert max(stream.tokens) < size


def test_the_cache_is_as_large_as_said(tiny_path: Path) -> None:
    block = 3 * 8 * 2 * 2 * 16 * 4
    with opened(tiny_path, {"kv_cache_bytes": 10 * block + 1, "block_size": 8}, dtype="float32") as driver:
        assert driver.engine.pocketllm_stats().num_blocks == 10
        assert driver.engine.pocketllm_capabilities().max_model_len == 80
        assert driver.run([1] * 79, max_tokens=1).reason == "length"


def test_the_defaults_of_the_card_are_those_in_force() -> None:
    in_force = TorchOptions.from_mapping({})
    declared = {spec.name: spec.default for spec in OPTION_SPECS if spec.default is not None}
    assert declared == {name: getattr(in_force, name) for name in declared}


@pytest.mark.parametrize(
    "options, args, words",
    [
        ({"num_threads": 0}, {}, r"num_threads'\] = 0 is out of range"),
        ({"block_size": 5000}, {}, "from 1 to 1024"),
        ({"kv_cache_bytes": 10}, {}, "room for no block"),
        ({"kv_cache_bytes": 100_000}, {"max_model_len": 500}, "lower max_model_len to"),
        ({}, {"max_model_len": 1000}, "above the checkpoint's max_position_embeddings = 512"),
        ({}, {"dtype": "int3"}, "dtype = 'int3'"),
    ],
)
def test_wrong_arguments_are_named(tiny_path: Path, options: dict[str, Any], args: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        opened(tiny_path, options, **args)


def test_no_cuda_is_said_plainly(tiny_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    with pytest.raises(BackendUnavailableError, match="sees no CUDA device"):
        opened(tiny_path, device="cuda")


def test_float16_range_is_checked(tmp_path: Path) -> None:
    import torch

    tiny = write_tiny_llama(tmp_path)
    with torch.no_grad():
        tiny.model.model.layers[0].mlp.up_proj.weight[0, 0] = 1e6
    tiny.model.save_pretrained(tmp_path)
    with pytest.raises(Exception, match="outside float16's range"):
        opened(tiny.path, dtype="float16")
    # "auto" does not give up: it falls back to a form that holds the weights.
    with opened(tiny.path) as driver:
        assert driver.engine.pocketllm_capabilities().details["dtype"] == "float32"


def test_a_broken_checkpoint_raises_before_the_engine_starts(tiny: TinyLlama, tmp_path: Path) -> None:
    path = with_config(tiny.path, tmp_path, num_hidden_layers=4)
    with pytest.raises(CheckpointError, match=r"model.layers.3"):
        open_engine(EngineArgs(model=str(path)), open_checkpoint(path), lambda stage, fraction: None)


def test_a_dtype_may_be_named_in_every_spelling() -> None:
    import torch

    cpu = torch.device("cpu")
    assert choose_precision("fp32", cpu).name == "float32"
    assert choose_precision("half", cpu).compute_dtype is torch.float32
    assert choose_precision("bf16", cpu).compute_dtype is torch.bfloat16
    assert choose_precision(None, cpu).name == choose_precision("auto", cpu).name
