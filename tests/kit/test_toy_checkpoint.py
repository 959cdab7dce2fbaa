"""The checkpoint the kit writes: the same bytes always, readable by everybody, able to say anything."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pocketllm.checkpoint import Checkpoint, open_checkpoint
from pocketllm.testing.toy_checkpoint import CONTEXT, END_OF_TEXT, TURN_END, vocabulary, write_toy_checkpoint


@pytest.fixture(scope="module")
def checkpoint(toy_checkpoint: Path) -> Checkpoint:
    return open_checkpoint(toy_checkpoint)


def test_it_is_the_same_every_time(toy_checkpoint: Path, tmp_path: Path) -> None:
    again = write_toy_checkpoint(tmp_path / "again")
    for file in sorted(toy_checkpoint.iterdir()):
        assert hashlib.sha256(file.read_bytes()).digest() == hashlib.sha256((again / file.name).read_bytes()).digest()


def test_core_reads_the_toy_checkpoint(checkpoint: Checkpoint) -> None:
    words = vocabulary()
    assert checkpoint.model_type == "llama"
    assert checkpoint.config["max_position_embeddings"] == CONTEXT
    assert checkpoint.tensors["lm_head.weight"].shape == (len(words), 64)
    assert checkpoint.eos_token_ids(None) == ((words[END_OF_TEXT], words[TURN_END]), "generation_config")
    assert checkpoint.tokenizer().vocab_size == len(words)
    assert checkpoint.chat_template() is not None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.text(max_size=40).filter(lambda text: "<|" not in text))
def test_the_toy_tokenizer_gives_any_text_back(checkpoint: Checkpoint, text: str) -> None:
    tokenizer = checkpoint.tokenizer()
    assert tokenizer.decode(tokenizer.encode(text, add_bos=False)) == text


def test_common_words_are_merged(checkpoint: Checkpoint) -> None:
    assert len(checkpoint.tokenizer().encode(" the and of", add_bos=False)) == 3


def test_transformers_reads_the_toy_checkpoint(toy_checkpoint: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model = transformers.AutoModelForCausalLM.from_pretrained(toy_checkpoint, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[70, 80, 90, 100]])).logits[0]
    assert 1.0 < float(logits.std()) < 6.0
    assert all(int(token) >= 3 for token in logits.argmax(-1))
