"""Constraints on a random model, which would never keep them unforced."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pocketllm.checkpoint import Tokenizer, open_checkpoint
from pocketllm.engine.call import GenerateCall
from pocketllm.errors import UnsupportedFeatureError
from pocketllm.sampling_params import SamplingParams
from pocketllm.structured import SchemaRefusedError, compile_constraint
from pocketllm.testing.toy_checkpoint import vocabulary, write_toy_checkpoint
from pocketllm.types import Choice, Constraint, GenerationRequest, TokenFlag
from tests.torch.driving import Driver, Stream
from tests.torch.tiny_llama import write_tiny_llama

PATTERN = Constraint("regex", "[0-9]{3}-[a-z]{2}")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a tokenizer."""
    folder = tmp_path_factory.mktemp("structured")
    write_toy_checkpoint(folder / "toy")
    tiny = write_tiny_llama(folder / "tiny", vocab_size=len(vocabulary()), tie_word_embeddings=False)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tiny.path / name).write_bytes((folder / "toy" / name).read_bytes())
    return tiny.path


@pytest.fixture(scope="module")
def tokenizer(path: Path) -> Tokenizer:
    return open_checkpoint(path).tokenizer()


@pytest.fixture
def constrained(path: Path) -> Iterator[Driver]:
    with Driver.open(path, dtype="float32") as driver:
        yield driver


def submit(
    driver: Driver, constraint: Constraint | None, *, stop_ids: tuple[int, ...], seed: int = 0, **params: Any
) -> list[Stream]:
    sampling = SamplingParams(**{"max_tokens": 60, "temperature": 1.0, **params})
    choices = tuple(Choice(next(driver._handles), seed + index) for index in range(sampling.n))
    request = GenerationRequest(
        prompt_tokens=(5, 6, 7),
        sampling_params=sampling,
        choices=choices,
        stop_token_ids=stop_ids,
        constraint=constraint,
    )
    streams = [Stream(choice.handle) for choice in choices]
    driver.streams.update({stream.handle: stream for stream in streams})
    driver.engine.pocketllm_generate(GenerateCall(request))
    return streams


def text_of(stream: Stream, tokenizer: Tokenizer) -> str:
    ids = [token for token, flag in zip(stream.tokens, stream.flags, strict=True) if not flag & TokenFlag.STOP]
    return tokenizer.decode(ids)


def end(tokenizer: Tokenizer) -> int:
    assert tokenizer.eos_token_id is not None
    return tokenizer.eos_token_id


def test_declared_where_there_is_a_tokenizer(constrained: Driver) -> None:
    assert constrained.engine.pocketllm_capabilities().supports_structured_outputs


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_match_beside_free_ones(constrained: Driver, tokenizer: Tokenizer, temperature: float) -> None:
    stop = (end(tokenizer),)
    free = submit(constrained, None, stop_ids=stop, temperature=temperature)
    held = [submit(constrained, PATTERN, stop_ids=stop, seed=seed, temperature=temperature)[0] for seed in range(4)]
    object_schema = Constraint("json_schema", json.dumps({"type": "array", "items": {"enum": [1, "a"]}, "maxItems": 3}))
    held_json = submit(constrained, object_schema, stop_ids=stop, temperature=temperature)
    constrained.wait()
    for stream in held:
        assert stream.reason == "stop"
        assert stream.flags[-1] == TokenFlag.STOP
        assert re.fullmatch(PATTERN.text, text_of(stream, tokenizer))
    assert held_json[0].reason == "length" or set(json.loads(text_of(held_json[0], tokenizer))) <= {1, "a"}
    assert free[0].reason in ("stop", "length")


def test_every_choice_has_its_own_matcher(constrained: Driver, tokenizer: Tokenizer) -> None:
    streams = submit(constrained, PATTERN, stop_ids=(end(tokenizer),), n=3, logprobs=True)
    constrained.wait()
    texts = {text_of(stream, tokenizer) for stream in streams}
    assert all(re.fullmatch(PATTERN.text, text) for text in texts)
    assert len(texts) > 1


def test_without_stop_ids_a_complete_answer_ends(constrained: Driver, tokenizer: Tokenizer) -> None:
    (stream,) = submit(constrained, Constraint("choice", '["ab", "cd"]'), stop_ids=())
    constrained.wait()
    assert stream.reason == "stop"
    assert text_of(stream, tokenizer) in ("ab", "cd")
    assert not any(flag & TokenFlag.STOP for flag in stream.flags)


def test_min_tokens_cannot_stretch_a_complete_answer(constrained: Driver, tokenizer: Tokenizer) -> None:
    (stream,) = submit(constrained, Constraint("choice", '["ab"]'), stop_ids=(end(tokenizer),), min_tokens=20)
    constrained.wait()
    assert stream.reason == "stop"
    assert text_of(stream, tokenizer) == "ab"


def test_an_answer_cut_by_its_budget_says_so(constrained: Driver, tokenizer: Tokenizer) -> None:
    (stream,) = submit(constrained, Constraint("regex", "[a-z]{30}"), stop_ids=(end(tokenizer),), max_tokens=4)
    constrained.wait()
    assert stream.reason == "length"
    assert len(stream.tokens) == 4


def test_a_dead_end_concerns_one_sequence(constrained: Driver, tokenizer: Tokenizer) -> None:
    # "a" ends the sequence, and is all that may come.
    letter = tokenizer.encode("a", add_bos=False)
    assert len(letter) == 1
    (stuck,) = submit(constrained, Constraint("regex", "(ab)+"), stop_ids=tuple(letter), seed=1)
    (other,) = submit(constrained, PATTERN, stop_ids=(end(tokenizer),))
    constrained.wait()
    assert stuck.reason == "error"
    assert stuck.finish is not None
    assert "No token of this vocabulary" in (stuck.finish.error or "")
    assert stuck.tokens == []
    assert other.reason == "stop"
    assert constrained.engine.pocketllm_stats().num_running == 0


def test_a_constraint_that_core_did_not_see_is_refused(constrained: Driver, tokenizer: Tokenizer) -> None:
    bad = Constraint("json_schema", '{"items": {"uniqueItems": true}}')
    with pytest.raises(UnsupportedFeatureError, match="/items/uniqueItems") as refusal:
        submit(constrained, bad, stop_ids=(end(tokenizer),))
    assert refusal.value.param == "response_format"
    with pytest.raises(SchemaRefusedError):
        compile_constraint(bad, tokenizer)


def test_preempted_sequences_keep_their_place(path: Path, tokenizer: Tokenizer) -> None:
    # Eight blocks of 16 positions, where the four would take twelve.
    options = {"kv_cache_bytes": 8 * 3 * 16 * 2 * 2 * 16 * 4}
    with Driver.open(path, dtype="float32", options=options, max_batch_size=4) as driver:
        pattern = Constraint("regex", "([0-9]{4}-){8}x")
        streams = [submit(driver, pattern, stop_ids=(end(tokenizer),), seed=seed)[0] for seed in range(4)]
        driver.wait()
        assert driver.engine.pocketllm_stats().num_preemptions > 0
    for stream in streams:
        assert stream.reason == "stop"
        assert re.fullmatch(pattern.text, text_of(stream, tokenizer))


def test_smollm2_answers_in_json(smollm2_path: Path) -> None:
    tokenizer = open_checkpoint(smollm2_path).tokenizer()
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"enum": ["France", "Spain"]}},
        "required": ["city", "country"],
        "additionalProperties": False,
    }
    prompt = "<|im_start|>user\nWhere is Paris? Answer in JSON.<|im_end|>\n<|im_start|>assistant\n"
    with Driver.open(smollm2_path, max_model_len=128) as driver:
        request = GenerationRequest(
            prompt_tokens=tuple(tokenizer.encode(prompt, add_bos=False)),
            sampling_params=SamplingParams(max_tokens=48),
            choices=(Choice(1, 0),),
            stop_token_ids=(2,),
            constraint=Constraint("json_schema", json.dumps(schema)),
        )
        driver.streams[1] = Stream(1)
        driver.engine.pocketllm_generate(GenerateCall(request))
        driver.wait()
    assert driver.streams[1].reason == "stop"
    answer = json.loads(text_of(driver.streams[1], tokenizer))
    assert answer == {"city": "Paris", "country": "France"}
