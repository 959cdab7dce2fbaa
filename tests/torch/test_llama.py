"""The model against transformers on tiny random checkpoints, and on SmolLM2's published greedy texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from pocketllm.checkpoint import open_checkpoint
from pocketllm.errors import CheckpointError
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Choice, GenerationRequest
from pocketllm_torch.engine.block_pool import BlockPool
from pocketllm_torch.engine.opening import load_model
from pocketllm_torch.engine.plan import Chunk, StepPlan, work_of
from pocketllm_torch.engine.runner import Runner
from pocketllm_torch.engine.sequence import Sequence
from pocketllm_torch.engine.step import StepOutput
from pocketllm_torch.layers.caches import Caches
from pocketllm_torch.layers.row_layout import RowLayout, SpanRows
from pocketllm_torch.models.llama import FAMILY as LLAMA
from pocketllm_torch.models.registry import Model
from pocketllm_torch.weights.precision import Precision, choose_precision
from tests.torch.driving import Driver
from tests.torch.tiny_llama import VOCAB, TinyLlama, random_ids, write_tiny_llama

CPU = torch.device("cpu")
BLOCK = 16
TOLERANCE = 1e-4

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "wide heads": {"head_dim": 32},
    "no grouping": {"num_key_value_heads": 4},
    "untied": {"tie_word_embeddings": False},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    "llama3 rope": {"rope_parameters": LLAMA3_ROPE},
}


class Lane:
    """One sequence whose steps a test plans by hand."""

    def __init__(self, pool: BlockPool, ids: list[int], handle: int = 1) -> None:
        self.ids = ids
        sampling = SamplingParams(max_tokens=1, prompt_logprobs=True)
        request = GenerationRequest(prompt_tokens=tuple(ids), sampling_params=sampling, choices=(Choice(handle, 0),))
        (self.sequence,) = Sequence.from_request(request, handle)
        self.sequence.prompt_reported = True
        self.sequence.blocks = pool.allocate(pool.blocks_for(len(ids)))
        self.sequence.tokens = []

    def chunk(self, length: int) -> Chunk:
        """The next ``length`` positions, of which the last is read."""
        start = len(self.sequence.tokens)
        self.sequence.tokens = self.ids[: start + length]
        self.sequence.num_computed = start
        return Chunk(self.sequence, start, length)

    def decode(self) -> Sequence:
        self.chunk(1)
        return self.sequence


class Bench:
    """A model on a cache of its own."""

    def __init__(self, path: Path, dtype: str = "float32", one_by_one: bool = False) -> None:
        self.model = load_model(open_checkpoint(path), choose_precision(dtype, CPU), 512, lambda stage, fraction: None)
        self.pool = BlockPool(100, BLOCK)
        caches = make_caches(self.model, num_blocks=100)
        # What padding reads must not matter: only the null block is known to be zero.
        caches.kv.data[:, 1:].fill_(100.0)
        self.runner = Runner(self.model, caches, CPU, VOCAB, one_by_one=one_by_one)

    def execute(self, plan: StepPlan) -> tuple[list[Sequence], StepOutput]:
        """The sequences with logits, and the step's output."""
        work = work_of(plan, BLOCK)
        with torch.inference_mode():
            output = self.runner.execute(work.step)
        return [member for member, span in zip(work.members, work.step.spans, strict=True) if span.num_logits], output

    def step(self, decodes: list[Sequence], chunks: list[Chunk]) -> dict[int, torch.Tensor]:
        """Logits of the last position of each sequence, by handle."""
        sampled, output = self.execute(StepPlan(decodes, chunks))
        assert output.logits is not None
        return {sequence.handle: row for sequence, row in zip(sampled, output.logits, strict=True)}


def make_caches(model: Model, num_blocks: int) -> Caches:
    return Caches(
        model.config.caches, num_blocks=num_blocks, block_size=BLOCK, num_slots=4, dtype=model.dtype, device=CPU
    )


def largest(difference: torch.Tensor) -> float:
    return float(difference.abs().max())


@pytest.mark.parametrize("variant", VARIANTS)
def test_whole_and_chunked_runs_equal_transformers(variant: str, tmp_path: Path) -> None:
    tiny = write_tiny_llama(tmp_path, **VARIANTS[variant])
    bench = Bench(tiny.path)
    ids = random_ids(70, seed=1)
    expected = tiny.logits(ids)
    whole = Lane(bench.pool, ids)
    assert largest(bench.step([], [whole.chunk(70)])[1] - expected[69]) < TOLERANCE
    lane = Lane(bench.pool, ids)
    for length in (33, *[1] * 20, 10, *[1] * 7):
        chunk = lane.chunk(length)
        logits = bench.step([lane.sequence], []) if length == 1 else bench.step([], [chunk])
        assert largest(logits[1] - expected[chunk.start + length - 1]) < TOLERANCE


@pytest.mark.parametrize("legacy_rope", [False, True])
def test_rope_is_read_in_both_spellings(legacy_rope: bool, tmp_path: Path) -> None:
    tiny = write_tiny_llama(tmp_path, legacy_rope=legacy_rope, rope_parameters=LLAMA3_ROPE)
    ids = random_ids(200, seed=2)
    bench = Bench(tiny.path)
    assert largest(bench.step([], [Lane(bench.pool, ids).chunk(200)])[1] - tiny.logits(ids)[-1]) < TOLERANCE


def test_sequences_of_any_length_share_steps(tiny: TinyLlama) -> None:
    """Ragged decodes, first and later chunks in one forward pass, over fragmented blocks."""
    bench = Bench(tiny.path)
    scattered = bench.pool.allocate(30)
    bench.pool.release(scattered[::3])
    lengths = [5, 16, 17, 40, 130, 64]
    lanes = [Lane(bench.pool, random_ids(length + 30, seed=length), handle=length) for length in lengths]
    expected = {lane.sequence.handle: tiny.logits(lane.ids) for lane in lanes}
    waiting = list(lanes)
    decoding: list[Lane] = []
    partial: Lane | None = None
    for _ in range(12):
        decodes = [lane.decode() for lane in decoding]
        chunks = []
        if partial is not None:
            chunks.append(partial.chunk(11))
            decoding.append(partial)
            partial = None
        elif waiting:
            partial = waiting.pop()
            chunks.append(partial.chunk(partial.sequence.handle))
        logits = bench.step(decodes, chunks)
        assert len(logits) == len(decodes) + len(chunks)
        for lane in lanes:
            if lane.sequence.handle in logits:
                row = expected[lane.sequence.handle][len(lane.sequence.tokens) - 1]
                assert largest(logits[lane.sequence.handle] - row) < TOLERANCE


def test_prompt_logprobs_are_transformers_log_softmax(tiny: TinyLlama) -> None:
    bench = Bench(tiny.path)
    ids = random_ids(150, seed=3)
    lane = Lane(bench.pool, ids)
    lane.sequence.prompt_reported = False
    lane.sequence.tokens = list(ids)
    entries = []
    for chunk in (Chunk(lane.sequence, 0, 70), Chunk(lane.sequence, 70, 80)):
        entries += bench.execute(StepPlan([], [chunk]))[1].prompt_logprobs[0]
    expected = torch.log_softmax(tiny.logits(ids), -1)
    assert [entry.row for entry in entries] == list(range(1, 150))
    for entry in entries:
        assert entry.logprob == pytest.approx(float(expected[entry.row - 1, ids[entry.row]]), abs=TOLERANCE)


def test_sharded_safetensors_are_read_as_one_model(tmp_path: Path) -> None:
    tiny = write_tiny_llama(tmp_path, max_shard_size="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    bench = Bench(tiny.path)
    ids = random_ids(20, seed=4)
    assert largest(bench.step([], [Lane(bench.pool, ids).chunk(20)])[1] - tiny.logits(ids)[-1]) < TOLERANCE


@pytest.mark.parametrize("dtype, tolerance", [("float16", 0.02), ("bfloat16", 0.25)])
def test_half_precision_is_close(tiny: TinyLlama, dtype: str, tolerance: float) -> None:
    bench = Bench(tiny.path, dtype)
    ids = random_ids(40, seed=5)
    expected = tiny.logits(ids)
    assert float(expected.std()) > 0.5
    lane = Lane(bench.pool, ids)
    assert largest(bench.step([], [lane.chunk(30)])[1] - expected[29]) < tolerance
    for position in range(30, 40):
        assert largest(bench.step([lane.decode()], [])[1] - expected[position]) < tolerance


@pytest.mark.parametrize("quantization", ["F32", "F16", "BF16", "Q8_0"])
def test_a_gguf_twin_stays_close_to_its_original(quantization: str, tmp_path: Path) -> None:
    """q and k rows permuted as the format has them, the llama3 rule as a tensor of divisors."""
    tiny = write_tiny_llama(tmp_path / "hf", rope_parameters=LLAMA3_ROPE)
    file = write_gguf_twin(tiny, tmp_path / "twin.gguf", quantization)
    bench = Bench(file)
    ids = random_ids(100, seed=6)
    expected = tiny.logits(ids)[-1]
    error = largest(bench.step([], [Lane(bench.pool, ids).chunk(100)])[1] - expected)
    assert error < {"F32": TOLERANCE, "F16": 0.02, "BF16": 0.1, "Q8_0": 0.3}[quantization]


def write_gguf_twin(tiny: TinyLlama, file: Path, quantization: str) -> Path:
    config: Any = tiny.model.config
    kind = gguf.GGMLQuantizationType[quantization]
    writer = gguf.GGUFWriter(str(file), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    plain = config.rope_parameters["rope_theta"] ** (torch.arange(0, 16, 2).float() / -16)
    divisors = plain / tiny.model.model.rotary_emb.inv_freq
    assert not torch.allclose(divisors, torch.ones(8))
    writer.add_tensor("rope_freqs.weight", divisors.numpy().astype(np.float32))
    for name, tensor in tiny.model.state_dict().items():
        if name == "lm_head.weight":
            continue
        data = tensor.float()
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if part in name:
                data = data.view(heads, 2, -1, data.shape[-1]).transpose(1, 2).reshape(data.shape)
        array = data.numpy()
        if array.ndim == 1:
            writer.add_tensor(LLAMA.gguf_name(name), array)
        else:
            packed = gguf.quants.quantize(array, kind)
            writer.add_tensor(LLAMA.gguf_name(name), packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_a_checkpoint_with_leftover_tensors_is_refused(tmp_path: Path) -> None:
    tiny = write_tiny_llama(tmp_path)
    from safetensors.torch import load_file, save_file

    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(16)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"1 tensors that this model has no place for .*q_norm"):
        Bench(tiny.path)


def test_a_checkpoint_that_contradicts_its_configuration_is_refused(tmp_path: Path) -> None:
    tiny = write_tiny_llama(tmp_path)
    from safetensors.torch import load_file, save_file

    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(65)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"'model.norm.weight' has shape \[65\], .* \[64\]"):
        Bench(tiny.path)
    del tensors["model.norm.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no tensor 'model.norm.weight'"):
        Bench(tiny.path)


@pytest.mark.parametrize(
    "change, word",
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_attention_heads": 0}, "num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"head_dim": 15}, "odd"),
        ({"rms_norm_eps": "x"}, "rms_norm_eps"),
        ({"vocab_size": True}, "vocab_size"),
    ],
)
def test_impossible_sizes_are_named(change: dict[str, object], word: str) -> None:
    config: dict[str, object] = {
        "vocab_size": 8,
        "hidden_size": 64,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    LLAMA.sizes(config)
    with pytest.raises(CheckpointError, match=word):
        LLAMA.sizes({**config, **change})


# Greedy ids from transformers on the same weights, dequantised to float32.
SMOLLM2_GOLDENS = {
    "raw": (
        [504, 3575, 282, 4649, 314],
        [7042, 30, 198, 198, 504, 2988, 314, 42, 216, 34, 32, 33, 40, 29, 32, 33, 29, 34, 34, 216, 33, 34, 42, 33],
    ),
    "chat": (
        [
            *(1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712),
            *(8182, 2, 198, 1, 4093, 198, 1780, 314, 216, 34, 27, 34, 47, 2, 198, 1, 520, 9531, 198),
        ],
        [504, 2988, 288, 451, 8170, 4119, 1732, 314, 216, 36, 30, 2],
    ),
}


def test_storage_forms_keep_smollm2s_distribution(smollm2_path: Path, repository: Path) -> None:
    """KL divergence and top-1 agreement with float32 on 300 tokens of English."""
    checkpoint = open_checkpoint(smollm2_path)
    ids = checkpoint.tokenizer().encode((repository / "LICENSE").read_text()[2000:])[:300]

    def distribution(precision: Precision) -> torch.Tensor:
        model = load_model(checkpoint, precision, 512, lambda stage, fraction: None)
        layout = RowLayout(cache_rows=torch.arange(300) + BLOCK, spans=[SpanRows(0, 300, 0)])
        with torch.inference_mode():
            hidden = model.forward(torch.tensor(ids), torch.arange(300), layout, make_caches(model, num_blocks=20))
            return torch.log_softmax(model.logits(hidden), -1)

    reference = distribution(choose_precision("float32", CPU))
    for precision, most in (
        (choose_precision("float16", CPU), 1e-5),
        (choose_precision("float16", CPU, "bfloat16"), 5e-3),
        (choose_precision("bfloat16", CPU), 5e-3),
    ):
        other = distribution(precision)
        divergence = float((reference.exp() * (reference - other)).sum(-1).mean())
        agreement = float((reference.argmax(-1) == other.argmax(-1)).float().mean())
        assert divergence < most, (precision.linear_name, divergence)
        assert agreement > 0.95, (precision.linear_name, agreement)


def test_smollm2_gives_its_golden_texts(smollm2_path: Path) -> None:
    """Token for token in float32, and the default storage form gives the same texts here."""
    for dtype in ("float32", None):
        with Driver.open(smollm2_path, dtype=dtype, max_model_len=256) as driver:
            streams = {
                name: driver.submit(prompt, max_tokens=len(expected), stop_ids=(2,), logprobs=True, top_logprobs=5)[0]
                for name, (prompt, expected) in SMOLLM2_GOLDENS.items()
            }
            driver.wait()
        for name, (_, expected) in SMOLLM2_GOLDENS.items():
            assert streams[name].tokens == expected, (name, dtype)
        assert streams["raw"].reason == "length"
        assert streams["chat"].reason == "stop"
        # The gaps between the published logits of the last prompt position, which differ from ours by a constant.
        top = dict(streams["raw"].logprobs[0].top)
        published = {7042: 17.3713, 260: 14.8886, 4528: 13.245, 2250: 13.0095, 1315: 12.9515}
        assert list(top) == list(published)
        for token, logit in published.items():
            gap = top[token] - top[7042]
            assert gap == pytest.approx(logit - published[7042], abs=2e-4 if dtype else 0.02)
