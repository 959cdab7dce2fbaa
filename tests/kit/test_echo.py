"""Echo plays its script to whoever asks, in every form a script has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pocketllm.checkpoint import open_checkpoint
from pocketllm.engine_args import EngineArgs
from pocketllm.errors import ConfigurationError, EngineError, PocketLLMError, UnsupportedFeatureError
from pocketllm.llm import LLM
from pocketllm.plugins.registry import Registry
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Offer, Refusal


def open_echo(model: Path, **options: Any) -> LLM:
    return LLM(EngineArgs(model=str(model), backend="echo", max_batch_size=4, backend_options=options))


def answer(llm: LLM, prompt: str = "anything", **params: Any) -> str:
    return llm.generate(prompt, SamplingParams(**params))[0].text


def test_it_repeats_the_prompt_or_the_last_message(toy_checkpoint: Path) -> None:
    with open_echo(toy_checkpoint) as llm:
        assert answer(llm, "Ünïcode 🙂 too") == "Ünïcode 🙂 too"
        messages: list[dict[str, Any]] = [
            {"role": "user", "content": "first"},
            {"role": "assistant", "content": "no"},
            {"role": "user", "content": [{"type": "text", "text": "second"}]},
        ]
        assert llm.chat(messages)[0].text == "second"


def test_echo_plays_one_answer_for_every_request(toy_checkpoint: Path) -> None:
    with open_echo(toy_checkpoint, script="<tool_call>{}</tool_call>") as llm:
        result = llm.generate("x")[0]
        assert (result.text, result.finish_reason) == ("<tool_call>{}</tool_call>", "stop")
        assert result.usage.completion_tokens == len(result.token_ids) + 1


def test_it_plays_a_list_in_turn_and_choices_share_an_answer(toy_checkpoint: Path) -> None:
    with open_echo(toy_checkpoint, script=["one", "two"]) as llm:
        assert [answer(llm) for _ in range(3)] == ["one", "two", "one"]
        choices = llm.generate("x", SamplingParams(n=2))[0].choices
        assert [choice.text for choice in choices] == ["two", "two"]


def test_it_answers_by_what_the_prompt_holds(toy_checkpoint: Path) -> None:
    with open_echo(toy_checkpoint, script={"match": [["weather", "sunny"], ["time", "noon"]]}) as llm:
        assert answer(llm, "what time is it") == "noon"
        assert answer(llm, "the weather?") == "sunny"
        assert answer(llm, "neither") == "neither"


def test_it_brings_reasoning_and_tool_calls(toy_checkpoint: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    script = {"text": "done", "reasoning_content": "hm", "tool_calls": [call]}
    with open_echo(toy_checkpoint, script=script) as llm:
        choice = llm.generate("x")[0].choices[0]
    assert (choice.text, choice.reasoning_content, choice.tool_calls) == ("done", "hm", (call,))


def test_it_fails_where_the_script_says_so(toy_checkpoint: Path) -> None:
    with open_echo(toy_checkpoint, script={"text": "so far", "error": "out of paper"}) as llm:
        with pytest.raises(EngineError, match="out of paper"):
            llm.generate("x")


def test_max_tokens_and_seeds_act(toy_checkpoint: Path) -> None:
    with open_echo(toy_checkpoint) as llm:
        assert answer(llm, "abcdef", max_tokens=3) == "abc"
        drawn = [answer(llm, "abcdef", temperature=2.0, seed=seed) for seed in (1, 1, 2)]
        assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("capability_set", ["everything", "guide", "engine-wide"])
def test_each_set_refuses_what_it_does_not_declare(toy_checkpoint: Path, capability_set: str) -> None:
    accepted = {
        "everything": {"temperature", "logprobs", "frequency_penalty", "min_p", "ignore_eos"},
        "guide": {"temperature", "logprobs"},
        "engine-wide": set(),
    }[capability_set]
    values: dict[str, Any] = {
        "temperature": 0.5,
        "logprobs": True,
        "frequency_penalty": 1.0,
        "min_p": 0.1,
        "ignore_eos": True,
    }
    with open_echo(toy_checkpoint, capability_set=capability_set) as llm:
        for name, value in values.items():
            params = SamplingParams(max_tokens=3, **{name: value})
            if name in accepted:
                assert llm.generate("x", params)[0].usage.completion_tokens <= 3
            else:
                with pytest.raises(UnsupportedFeatureError) as refusal:
                    llm.generate("x", params)
                assert refusal.value.param == name


def test_engine_wide_sampling_is_declared_as_it_is(toy_checkpoint: Path) -> None:
    options = {"capability_set": "engine-wide", "temperature": 0.7, "top_p": 0.9, "top_k": 5, "seed": 3}
    with open_echo(toy_checkpoint, **options) as llm:
        has = llm.capabilities
        assert (has.temperature, has.top_p, has.top_k, has.seed) == (0.7, 0.9, 5, 3)
        assert not has.per_request_sampling
        params = SamplingParams(temperature=0.7, top_p=0.9, top_k=5, seed=3)
        assert answer(llm, "abcdefgh", **{name: getattr(params, name) for name in ("temperature", "top_p", "top_k")})


@pytest.mark.parametrize(
    ("options", "param"),
    [({"capability_set": "all"}, "capability_set"), ({"skript": "x"}, "backend_options.skript")],
)
def test_a_wrong_option_is_named(toy_checkpoint: Path, options: dict[str, Any], param: str) -> None:
    with pytest.raises(PocketLLMError) as raised:
        open_echo(toy_checkpoint, **options)
    assert isinstance(raised.value, ConfigurationError)
    assert raised.value.param == param


def test_auto_never_takes_the_echo_backend(toy_checkpoint: Path) -> None:
    echo, checkpoint = Registry().backend("echo"), open_checkpoint(toy_checkpoint)
    assert isinstance(echo.probe(checkpoint, EngineArgs(model=str(toy_checkpoint))), Refusal)
    offer = echo.probe(checkpoint, EngineArgs(model=str(toy_checkpoint), backend="echo"))
    assert isinstance(offer, Offer)
    assert offer.rank == 0
