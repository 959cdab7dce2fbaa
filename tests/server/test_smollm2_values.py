"""Values of the request fields on a real model over a real socket: what each does to the answer of SmolLM2."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

pytest.importorskip("torch")

import torch

from tests.server.http_app import CHAT, COMPLETIONS, events_of
from tests.server.smollm2_server import ASK, PROMPT, SmolLM2, served

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_tokens": 6}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "sure": {"type": "boolean"}},
    "required": ["city", "sure"],
    "additionalProperties": False,
}
CITY: dict[str, Any] = {**SCHEMA, "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": CITY, "strict": True}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def model(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SmolLM2]:
    async with served(smollm2_path, tmp_path_factory.mktemp("smollm2")) as model:
        yield model


# --------------------------------------------------------------------------------------------------------- sampling


async def test_temperature_0_and_everything_that_leaves_one_token_are_greedy(model: SmolLM2) -> None:
    greedy = await model.text()
    assert "Paris" in greedy
    hot = {"temperature": 1.7, "seed": 3}
    for fields in (
        {"temperature": 0}, {"temperature": 0, "seed": 9}, {"temperature": 0, "top_p": 0.5, "top_k": 9, "min_p": 0.1},
        {**hot, "top_k": 1}, {**hot, "top_p": 1e-6}, {**hot, "min_p": 1.0},
    ):  # fmt: skip
        assert await model.text(**fields) == greedy, fields
    assert await model.text(**hot) != greedy


async def test_a_seed_repeats_and_choices_derive_theirs(model: SmolLM2) -> None:
    fields = {**SAMPLED, "n": 3}
    answer = await model.complete(**fields)
    texts = [choice["text"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert len(set(texts)) > 1
    assert [choice["text"] for choice in (await model.complete(**fields))["choices"]] == texts
    for index in range(1, 3):
        assert await model.text(**{**SAMPLED, "seed": 5 + index}) == texts[index]
    assert await model.text(**{**SAMPLED, "seed": -5}) == await model.text(**{**SAMPLED, "seed": -5})
    # Neutral values leave the same draw.
    for neutral in ({"top_k": 0}, {"top_k": -1, "top_p": 1, "min_p": 0}, {"top_k": 49152}):
        assert await model.text(**SAMPLED, **neutral) == texts[0], neutral


async def test_sampling_keeps_to_what_is_left(model: SmolLM2) -> None:
    ids = await model.tokenize(PROMPT)
    probabilities = model.forward.logprobs(ids)[-1].exp()
    best = probabilities.argsort(descending=True)
    nucleus = int((probabilities[best].cumsum(0) < 0.6).sum()) + 1
    likely = int((probabilities >= 0.2 * probabilities.max()).sum())
    for fields, count in (({"top_k": 3}, 3), ({"top_p": 0.6}, nucleus), ({"min_p": 0.2}, likely)):
        answer = await model.complete(
            temperature=1.0, seed=1, n=24, max_tokens=1, return_token_ids=True, ignore_eos=True, **fields
        )
        drawn = {choice["token_ids"][0] for choice in answer["choices"]}
        assert drawn <= set(best[:count].tolist()), fields
        assert len(drawn) > 1 or count == 1, fields


async def test_penalties_are_the_formulas(model: SmolLM2) -> None:
    ids = await model.tokenize("yes yes no yes yes no yes")
    limits = {"max_tokens": 4, "ignore_eos": True}
    plain = model.greedy(ids, 4, lambda row, generated: None)
    assert await model.ids(ids, **limits) == plain
    for name, value in (
        ("frequency_penalty", 2.0), ("frequency_penalty", -1.5), ("presence_penalty", 2.0), ("presence_penalty", -2.0),
        ("repetition_penalty", 1.5), ("repetition_penalty", 0.7),
    ):  # fmt: skip

        def adjust(row: torch.Tensor, generated: list[int], name: str = name, value: float = value) -> None:
            if name == "repetition_penalty":
                seen = torch.tensor(sorted({*ids, *generated}))
                row[seen] = torch.where(row[seen] > 0, row[seen] / value, row[seen] * value)
                return
            for token in generated if name == "frequency_penalty" else set(generated):
                row[token] -= value

        expected = model.greedy(ids, 4, adjust)
        assert await model.ids(ids, **limits, **{name: value}) == expected, (name, value)
        if value > 1:
            assert expected != plain, name


async def test_bounds_name_their_field(model: SmolLM2) -> None:
    for name, values in (
        ("frequency_penalty", (2.01, -2.01)), ("presence_penalty", (2.01, -2.01)), ("repetition_penalty", (0, -1)),
        ("temperature", (-0.1,)), ("top_p", (0, 1.01)), ("min_p", (-0.1, 1.1)), ("priority", (2**31,)),
        ("cache_salt", ("",)), ("n", (0, 129)), ("logit_bias", ({"5": 101}, {"49152": 1})),
        ("stop_token_ids", ([49152],)), ("min_tokens", (-1,)), ("timeout", (0,)), ("max_tokens", (0, 5000)),
    ):  # fmt: skip
        for value in values:
            assert await model.refusal(COMPLETIONS, prompt=PROMPT, **{name: value}) == (400, name), value
    # No tokens of this vocabulary frame a gap.
    assert await model.refusal(COMPLETIONS, prompt=PROMPT, suffix="end") == (400, "suffix")


async def test_logit_bias_forces_and_bans(model: SmolLM2) -> None:
    (banana,) = await model.tokenize(" banana")
    for temperature in (0, 1):
        forced = {"logit_bias": {str(banana): 100}, "max_tokens": 3, "temperature": temperature}
        assert await model.ids(**forced) == [banana] * 3
    answer = await model.complete(max_tokens=1, logprobs=2, return_token_ids=True)
    (first,) = answer["choices"][0]["token_ids"]
    second = list(answer["choices"][0]["logprobs"]["top_logprobs"][0])[1]
    banned = await model.complete(max_tokens=1, logit_bias={str(first): -100}, return_token_ids=True)
    assert banned["choices"][0]["text"] == second
    assert first not in await model.ids(max_tokens=12, logit_bias={str(first): -100})


# ------------------------------------------------------------------------------------------------------------ limits


async def test_max_tokens_bounds_smollm2s_answers(model: SmolLM2) -> None:
    plain = await model.chat()
    assert plain["choices"][0]["finish_reason"] == "stop"
    assert plain["usage"]["completion_tokens"] < 16
    one = await model.chat(max_tokens=1)
    assert one["choices"][0]["finish_reason"] == "length"
    assert one["usage"]["completion_tokens"] == 1
    assert plain["choices"][0]["message"]["content"].startswith(one["choices"][0]["message"]["content"])
    newer = await model.chat(max_tokens=1, max_completion_tokens=3)
    assert newer["usage"]["completion_tokens"] == 3
    least = await model.chat(min_tokens=14)
    assert 14 <= least["usage"]["completion_tokens"] <= 16
    assert least["choices"][0]["message"]["content"].startswith(plain["choices"][0]["message"]["content"])
    on = await model.chat(ignore_eos=True)
    assert on["choices"][0]["finish_reason"] == "length"
    assert on["usage"]["completion_tokens"] == 16


async def test_stop_strings_and_ids_end_smollm2s_answers(model: SmolLM2) -> None:
    answer = await model.complete(return_token_ids=True)
    text, ids = answer["choices"][0]["text"], answer["choices"][0]["token_ids"]
    # Strings that begin in the middle of a token and end in the next one.
    across = text[2:8]
    for stop, end in ((across, 2), ([across], 2), (["absent", text[9:11], across], 2), (["absent"], len(text))):
        stopped = await model.complete(stop=stop)
        assert stopped["choices"][0]["text"] == text[:end]
        assert stopped["choices"][0]["finish_reason"] == ("stop" if end < len(text) else "length")
        assert stopped["usage"]["completion_tokens"] <= len(ids)
    at = ids.index(ids[3])
    halted = await model.complete(stop_token_ids=[ids[3]], return_token_ids=True)
    assert halted["choices"][0]["token_ids"] == ids[:at]
    assert halted["choices"][0]["finish_reason"] == "stop"
    assert halted["usage"]["completion_tokens"] == at + 1


async def test_a_deadline_gives_what_is_complete_or_504(model: SmolLM2) -> None:
    endless = {"ignore_eos": True, "max_tokens": 1000, "timeout": 0.2}
    response = await model.client.post(COMPLETIONS, json={"prompt": PROMPT, **endless})
    assert response.status_code == 504
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}
    # The second prompt is at its stop string with its first token; the first would go on for a long while.
    body = {"prompt": ["Once upon a time", PROMPT], **endless, "max_tokens": 900, "stop": ["Paris"], "timeout": 3}
    partial = await model.post(COMPLETIONS, body)
    assert [(choice["index"], choice["text"]) for choice in partial["choices"]] == [(1, " ")]
    assert partial["choices"][0]["finish_reason"] == "stop"


async def test_priority_and_cache_salt_leave_the_answer_alone(model: SmolLM2) -> None:
    plain = await model.text()
    for fields in ({"priority": 7}, {"priority": -7}, {"cache_salt": "tenant"}, {"priority": 0, "cache_salt": "b"}):
        assert await model.text(**fields) == plain


# ----------------------------------------------------------------------------------------------- log probabilities


def _same(told: float, computed: torch.Tensor) -> bool:
    return abs(told - float(computed)) < 2e-3


async def test_log_probabilities_of_both_endpoints_are_the_models(model: SmolLM2) -> None:
    ids = await model.tokenize(await model.rendered())
    completion = await model.complete(ids, logprobs=4, max_tokens=6, return_token_ids=True)
    choice = completion["choices"][0]
    table = model.forward.logprobs([*ids, *choice["token_ids"]])[len(ids) - 1 : -1]
    legacy = choice["logprobs"]
    for row, token in enumerate(choice["token_ids"]):
        assert _same(legacy["token_logprobs"][row], table[row, token])
        ranked = list(legacy["top_logprobs"][row].values())
        assert ranked == sorted(ranked, reverse=True)
        assert all(map(_same, ranked, table[row].topk(4).values))
        assert ranked[0] == legacy["token_logprobs"][row], "greedy takes the best"
    assert "".join(legacy["tokens"]) == choice["text"]
    assert b"".join(bytes(entry["bytes"]) for entry in legacy["content"]).decode() == choice["text"]
    assert [choice["text"][offset:][:1] for offset in legacy["text_offset"]] == [token[0] for token in legacy["tokens"]]

    chat = await model.chat(logprobs=True, top_logprobs=4, max_tokens=6)
    content = chat["choices"][0]["logprobs"]["content"]
    assert content == legacy["content"]
    assert [len(entry["top_logprobs"]) for entry in content] == [4] * 6
    own = await model.chat(logprobs=True, max_tokens=6)
    assert [entry["top_logprobs"] for entry in own["choices"][0]["logprobs"]["content"]] == [[]] * 6
    # Raw logits: temperature, penalties and bias do not show.
    sampled = await model.complete(ids, logprobs=0, return_token_ids=True, **{**SAMPLED, "presence_penalty": 2})
    drawn = sampled["choices"][0]
    table = model.forward.logprobs([*ids, *drawn["token_ids"]])[len(ids) - 1 : -1]
    rows = enumerate(drawn["token_ids"])
    assert all(_same(drawn["logprobs"]["token_logprobs"][row], table[row, token]) for row, token in rows)


async def test_bytes_are_exact_in_pieces_of_characters(model: SmolLM2) -> None:
    text = "😊 é 日本 🇫🇷"
    answer = await model.complete(structured_outputs={"choice": [text]}, logprobs=1, max_tokens=40)
    choice = answer["choices"][0]
    assert choice["text"] == text
    pieces = [bytes(entry["bytes"]) for entry in choice["logprobs"]["content"]]
    assert b"".join(pieces).decode() == text
    assert any(len(piece) == 1 and piece[0] > 127 for piece in pieces), "some tokens are pieces of a character"


async def test_echo_scores_the_prompt_as_a_forward_pass_does(model: SmolLM2) -> None:
    prompt = "Zürich is a city in Switzerland 😊."
    ids = await model.tokenize(prompt)
    answer = await model.complete(prompt, echo=True, logprobs=3, max_tokens=0)
    choice = answer["choices"][0]
    assert choice["text"] == prompt
    assert answer["usage"]["completion_tokens"] == 0
    assert answer["usage"]["prompt_tokens"] == len(ids)
    told = choice["logprobs"]["token_logprobs"]
    table = model.forward.logprobs(ids)
    assert told[0] is None
    assert len(told) == len(ids)
    for position in range(1, len(ids)):
        assert _same(told[position], table[position - 1, ids[position]])
        entry = choice["logprobs"]["content"][position]
        assert all(map(_same, (top["logprob"] for top in entry["top_logprobs"]), table[position - 1].topk(3).values))
    assert b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"]).decode() == prompt
    both = await model.complete(prompt, echo=True, max_tokens=4)
    assert both["choices"][0]["text"] == prompt + await model.text(prompt, max_tokens=4)


# ---------------------------------------------------------------------------------------------- prompts and numbers


async def test_prompt_lists_and_n_number_their_choices(model: SmolLM2) -> None:
    prompts = [PROMPT, "Water boils at"]
    answer = await model.complete(prompts, n=2, **SAMPLED)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    for choice, (prompt, offset) in zip(answer["choices"], itertools.product(prompts, range(2)), strict=True):
        assert choice["text"] == await model.text(prompt, **{**SAMPLED, "seed": 5 + offset})
    num_prompt = sum([len(await model.tokenize(prompt)) for prompt in prompts])
    assert answer["usage"]["prompt_tokens"] == num_prompt
    assert answer["usage"]["completion_tokens"] == 4 * 6


async def test_token_ids_may_be_sent_and_asked_for(model: SmolLM2) -> None:
    ids = await model.tokenize(PROMPT)
    answer = await model.complete(return_token_ids=True)
    choice = answer["choices"][0]
    assert choice["prompt_token_ids"] == ids
    assert (await model.post("/detokenize", {"tokens": choice["token_ids"]}))["content"] == choice["text"]
    for prompt in (ids, [ids], [PROMPT]):
        assert await model.text(prompt) == choice["text"]
    chat = await model.chat(return_token_ids=True)
    assert chat["prompt_token_ids"] == await model.tokenize(await model.rendered())
    content = chat["choices"][0]["message"]["content"]
    assert (await model.post("/detokenize", {"tokens": chat["choices"][0]["token_ids"]}))["content"] == content


# ------------------------------------------------------------------------------------------------------------ streams


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_stream_adds_up_to_the_plain_answer(model: SmolLM2, path: str) -> None:
    body: dict[str, Any] = {
        **({"messages": ASK, "logprobs": True, "top_logprobs": 2} if path == CHAT else {}),
        **({"prompt": PROMPT, "logprobs": 2} if path == COMPLETIONS else {}),
        **SAMPLED, "n": 2, "return_token_ids": True, "stop": ["\n"],
    }  # fmt: skip
    plain = await model.post(path, body)
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = await model.client.post(path, json={**body, "stream": True, "stream_options": options})
    chunks = events_of(response.text)
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"] == plain["usage"]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {plain["usage"]["prompt_tokens"]}
    for choice in plain["choices"]:
        mine = [each for chunk in chunks for each in chunk["choices"] if each["index"] == choice["index"]]
        deltas = [each["delta"].get("content", "") if path == CHAT else each["text"] for each in mine]
        assert "".join(deltas) == (choice["message"]["content"] if path == CHAT else choice["text"])
        assert [token for each in mine for token in each.get("token_ids", [])] == choice["token_ids"]
        entries = [entry for each in mine for entry in (each["logprobs"] or {}).get("content", [])]
        assert entries == choice["logprobs"]["content"]
        assert [each["finish_reason"] for each in mine if each["finish_reason"]] == [choice["finish_reason"]]


# --------------------------------------------------------------------------------------------------- prompt template


async def test_template_fields_reach_the_prompt_and_the_answer(model: SmolLM2) -> None:
    plain = await model.rendered()
    assert plain.endswith("<|im_start|>assistant\n")
    assert await model.rendered(add_generation_prompt=False) == plain.removesuffix("<|im_start|>assistant\n")
    persona = {"chat_template_kwargs": {"persona": "a pirate. Always begin with Arrr, matey!"}}
    assert "You are a pirate. Always" in await model.rendered(**persona)
    started = [*ASK, {"role": "assistant", "content": "In French, one says: La capitale"}]
    going_on = await model.rendered(started, continue_final_message=True)
    assert going_on == plain + "In French, one says: La capitale"
    answers = []
    for messages, fields in (
        (ASK, {}), (ASK, {"add_generation_prompt": False}), (ASK, persona),
        (started, {"continue_final_message": True}),
    ):  # fmt: skip
        answer = await model.chat(messages, **fields)
        text = answer["choices"][0]["message"]["content"]
        ids = await model.tokenize(await model.rendered(messages, **fields))
        assert answer["usage"]["prompt_tokens"] == len(ids)
        assert text == await model.text(ids, max_tokens=16), fields
        answers.append(text)
    assert len(set(answers)) == 4


# ------------------------------------------------------------------------------------------------------- structure


async def test_response_formats_shape_smollm2s_answers(model: SmolLM2) -> None:
    question = [
        {"role": "user", "content": "Italy"}, {"role": "assistant", "content": '{"capital": "Rome"}'},
        {"role": "user", "content": "Spain"}, {"role": "assistant", "content": '{"capital": "Madrid"}'},
        {"role": "user", "content": "France"},
    ]  # fmt: skip
    plain = await model.chat(question, max_tokens=4)
    assert (await model.chat(question, response_format={"type": "text"}, max_tokens=4))["choices"] == plain["choices"]
    some = await model.chat(question, response_format={"type": "json_object"}, max_tokens=40)
    assert some["choices"][0]["finish_reason"] == "stop"
    assert isinstance(json.loads(some["choices"][0]["message"]["content"]), dict)
    wanted = {"type": "json_schema", "json_schema": {"name": "capital", "schema": SCHEMA, "strict": True}}
    for fields in ({}, SAMPLED):
        bound = await model.chat(question, response_format=wanted, **{**fields, "max_tokens": 60})
        jsonschema.validate(json.loads(bound["choices"][0]["message"]["content"]), SCHEMA)
    for outputs, check in (
        ({"regex": "[0-9]{3}-[a-f]{2}"}, lambda text: len(text) == 6 and text[3] == "-"),
        ({"choice": ["Rome", "Paris"]}, lambda text: text in ("Rome", "Paris")),
        ({"grammar": 'start: "a" ("b" | "c") "d"'}, lambda text: text in ("abd", "acd")),
    ):
        assert check(await model.text(structured_outputs=outputs, **SAMPLED)), outputs


async def test_tool_choices_hold_smollm2_to_a_call(model: SmolLM2) -> None:
    fields = {"tools": [TOOL], "max_tokens": 60}
    for choice in ("required", {"type": "function", "function": {"name": "look_up"}}):
        answer = await model.chat(tool_choice=choice, parallel_tool_calls=False, **fields)
        (call,) = answer["choices"][0]["message"]["tool_calls"]
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        assert call["function"]["name"] == "look_up"
        jsonschema.validate(json.loads(call["function"]["arguments"]), CITY)
    assert "<tools>" in await model.rendered(tools=[TOOL])
    none = await model.chat(tools=[TOOL], tool_choice="none")
    assert none["choices"] == (await model.chat())["choices"]
    assert none["usage"] == (await model.chat())["usage"]
