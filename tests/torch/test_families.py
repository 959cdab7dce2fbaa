"""Every decoder family against transformers on a tiny random checkpoint, through the engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pocketllm_torch.models.registry import FAMILIES as REGISTERED
from tests.cpp.tiny_checkpoints import FAMILIES, TinyCheckpoint, write_gguf_twin, write_tiny
from tests.torch.driving import Driver, Stream
from tests.torch.tiny_llama import random_ids

TOLERANCE = 1e-4
GENERATED = 12


@pytest.fixture(scope="module", params=[f"{family} {kind}" for family in sorted(FAMILIES) for kind in ("hf", "gguf")])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    """Every family as a Hugging Face folder, and as its twin in one GGUF file."""
    family, kind = request.param.split()
    folder = tmp_path_factory.mktemp(family)
    made = write_tiny(family, folder / "hf", widen=4.0)
    return made if kind == "hf" else write_gguf_twin(made, folder / "twin.gguf")


def check(tiny: TinyCheckpoint, ids: list[int], stream: Stream) -> None:
    """The greedy continuation, and the log probability of every prompt token."""
    assert stream.tokens == tiny.greedy(ids, GENERATED)
    assert stream.prompt is not None
    expected = torch.log_softmax(tiny.logits(ids), dim=-1)
    found = {entry.row: entry for entry in stream.prompt.logprobs}
    assert sorted(found) == list(range(1, len(ids)))
    for position, entry in found.items():
        assert abs(entry.logprob - float(expected[position - 1, ids[position]])) < TOLERANCE
        for token, logprob in entry.top:
            assert abs(logprob - float(expected[position - 1, token])) < TOLERANCE


def test_every_registered_family_is_tested(tmp_path: Path) -> None:
    written = {write_tiny(family, tmp_path / family).model.config.model_type for family in FAMILIES}
    assert set(REGISTERED) == written


# Chunks cross the window of 16 and the linear layers' chunks of 64 in several places.
@pytest.mark.parametrize("chunk_tokens", [512, 33, 7])
def test_every_family_equals_transformers(tiny: TinyCheckpoint, chunk_tokens: int) -> None:
    ids = random_ids(70, 1)
    with Driver.open(tiny.path, dtype="float32", prefill_chunk_tokens=chunk_tokens) as driver:
        stream = driver.run(ids, max_tokens=GENERATED, logprobs=True, top_logprobs=3, prompt_logprobs=True)
        check(tiny, ids, stream)


def test_sequences_of_a_batch_keep_apart(tiny: TinyCheckpoint) -> None:
    prompts = [random_ids(length, 10 + length) for length in (5, 40, 21, 66)]
    with Driver.open(tiny.path, dtype="float32", max_batch_size=3, prefill_chunk_tokens=24) as driver:
        streams = [
            driver.submit(ids, max_tokens=GENERATED, logprobs=True, top_logprobs=1, prompt_logprobs=True)[0]
            for ids in prompts
        ]
        driver.wait()
        for ids, stream in zip(prompts, streams, strict=True):
            check(tiny, ids, stream)


def test_choices_take_over_a_prompt_with_its_state(tiny: TinyCheckpoint) -> None:
    ids = random_ids(21, 3)
    with Driver.open(tiny.path, dtype="float32") as driver:
        streams = driver.submit(ids, n=3, max_tokens=GENERATED)
        driver.wait()
        assert [stream.tokens for stream in streams] == [tiny.greedy(ids, GENERATED)] * 3


def test_a_preempted_sequence_ends_as_if_nothing_had_happened(tiny: TinyCheckpoint) -> None:
    prompts = [random_ids(30, 5), random_ids(30, 6)]
    blocks = 5  # of 16 positions: each sequence grows to three
    with Driver.open(tiny.path, dtype="float32", max_model_len=64) as probe:
        block_bytes = (
            probe.engine.pocketllm_capabilities().details["kv_cache_bytes"] // probe.engine.pocketllm_stats().num_blocks
        )
    options = {"kv_cache_bytes": blocks * block_bytes}
    with Driver.open(tiny.path, dtype="float32", max_model_len=64, options=options) as driver:
        streams = [driver.submit(ids, max_tokens=GENERATED)[0] for ids in prompts]
        driver.wait()
        assert driver.engine.pocketllm_stats().num_preemptions > 0
        assert [stream.tokens for stream in streams] == [tiny.greedy(ids, GENERATED) for ids in prompts]


def test_deterministic_mode_gives_the_same_bits_alone_and_in_a_batch(tiny: TinyCheckpoint) -> None:
    ids, others = random_ids(50, 8), [random_ids(20 + index, 20 + index) for index in range(3)]
    options = {"deterministic": True}
    with Driver.open(tiny.path, dtype="float32", options=options, prefill_chunk_tokens=32) as driver:
        alone = driver.run(ids, max_tokens=GENERATED, logprobs=True)
        streams = [driver.submit(each, max_tokens=GENERATED)[0] for each in others]
        (together,) = driver.submit(ids, max_tokens=GENERATED, logprobs=True)
        driver.wait(together, *streams)
    assert together.tokens == alone.tokens
    assert [entry.logprob for entry in together.logprobs] == [entry.logprob for entry in alone.logprobs]


@pytest.mark.parametrize("family, root", [("qwen35", "qwen3_5"), ("gemma3", "gemma3")])
def test_the_language_model_of_a_wrapper_is_found(family: str, root: str, tmp_path: Path) -> None:
    """Releases put the text model beside a vision part, in the configuration and in the tensors' names."""
    tiny = write_tiny(family, tmp_path, widen=4.0)
    config = json.loads((tmp_path / "config.json").read_text())
    wrapped = {"model_type": root, "text_config": config, "vision_config": {"model_type": "vision"}}
    wrapped["tie_word_embeddings"] = config.get("tie_word_embeddings", False)
    (tmp_path / "config.json").write_text(json.dumps(wrapped))
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    save_file(renamed | {"model.visual.patch_embed.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    ids = random_ids(30, 4)
    with Driver.open(tmp_path, dtype="float32") as driver:
        stream = driver.run(ids, max_tokens=GENERATED, logprobs=True, top_logprobs=3, prompt_logprobs=True)
        check(tiny, ids, stream)
