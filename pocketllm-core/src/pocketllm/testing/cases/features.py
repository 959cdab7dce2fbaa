"""Capabilities one by one: a declared one acts, an undeclared one is refused."""

from __future__ import annotations

import math
import re
from typing import Any

from pocketllm.testing.case import case
from pocketllm.testing.refusals import refuses
from pocketllm.testing.rig import Rig, Sent
from pocketllm.testing.rules import broken
from pocketllm.types import Constraint, PromptReport, TokenFlag

NUM_TOKENS = 32
PENALTIES = {"repetition_penalty": 4.0, "frequency_penalty": 2.0, "presence_penalty": 2.0}
LOGPROB_SLACK = 1e-3
"""Log probabilities of float32 and of lower precision agree with themselves at least this well."""


@case("F4")
def penalties_act_or_are_refused(rig: Rig) -> None:
    """Declared: each of the three changes an answer that repeats itself, and none makes it repeat more."""
    # One token over and over in the prompt: a model repeats it, and so does an engine that plays prompts back.
    prompt = rig.prompt(0, 4) + rig.prompt(0, 1) * 12
    seeds = range(4) if rig.capabilities.per_request_sampling else range(1)
    without: list[list[int]] = []
    for name, value in PENALTIES.items():
        if not rig.capabilities.supports_penalties:
            refuses(rig, "F4", name, value)
            continue
        penalised: list[list[int]] = []
        for seed in seeds:
            if seed == len(without):
                without.append(_answer(rig, prompt, seed))
            penalised.append(_answer(rig, prompt, seed, **{name: value}))
            if penalised[-1] != without[seed]:
                break  # it acts; further seeds are for a change that is too small for this one
        if penalised == without[: len(penalised)]:
            raise broken("F4", f"{name} = {value:g} changes nothing in {len(penalised)} answers")
        plain_share, share = _share_repeated(without[: len(penalised)]), _share_repeated(penalised)
        if share > plain_share:
            raise broken(
                "F4", f"{name} = {value:g}: {share:.0%} of the tokens repeat others, {plain_share:.0%} without"
            )


@case("F5")
def logit_bias_acts_or_is_refused(rig: Rig) -> None:
    """Declared: +100 forces a token, -100 keeps the greedy one away."""
    token = rig.prompt(3, 1)[0]
    if not rig.capabilities.supports_logit_bias:
        refuses(rig, "F5", "logit_bias", {token: 100.0})
        return
    forced = rig.ask(max_tokens=4, logit_bias={token: 100.0})
    if forced != [token] * 4:
        raise broken("F5", f"a bias of +100 on {token} gave {forced}")
    greedy = rig.ask(max_tokens=1)
    banned = rig.ask(max_tokens=4, logit_bias={greedy[0]: -100.0})
    if greedy[0] in banned:
        raise broken("F5", f"a bias of -100 on {greedy[0]} gave {banned}")


@case("F6")
def min_tokens_acts_or_is_refused(rig: Rig) -> None:
    """Declared: a stop id that would come first is held off until the minimum is reached."""
    if not rig.capabilities.supports_min_tokens:
        refuses(rig, "F6", "min_tokens", 4)
        return
    first = rig.ask(max_tokens=1)[0] if rig.deterministic else rig.eos_ids[0]
    stop_ids = (*rig.eos_ids, first)
    for minimum in (1, 5):
        sent = rig.run(rig.request(max_tokens=12, stop_ids=stop_ids, min_tokens=minimum))
        early = [row for row in sent.rows()[:minimum] if row.flag & TokenFlag.STOP]
        if early or len(sent.tokens()) < minimum:
            raise broken("F6", f"min_tokens = {minimum} ended after {len(sent.tokens())} tokens")


@case("F7")
def ignore_eos_acts_or_is_refused(rig: Rig) -> None:
    """Declared: the answer continues to its budget, and no end id is flagged."""
    if not rig.capabilities.supports_ignore_eos:
        refuses(rig, "F7", "ignore_eos", True)
        return
    biased: dict[str, Any] = {}
    if rig.capabilities.supports_logit_bias and rig.eos_ids:
        biased["logit_bias"] = {rig.eos_ids[0]: 100.0}  # an end id at every step, which a real model gives seldom
    for values in ({}, biased):
        sent = rig.run(rig.request(rig.prompt(0, 8), max_tokens=24, stop_ids=(), ignore_eos=True, **values))
        if len(sent.tokens()) != 24 or sent.reason != "length":
            raise broken("F7", f'ignore_eos ended in "{sent.reason}" after {len(sent.tokens())} of 24 tokens')


@case("F8")
def stop_token_ids_act_or_are_refused(rig: Rig) -> None:
    """Undeclared: refused. Declared: the id of a greedy answer's third token ends it there."""
    if not rig.capabilities.supports_stop_token_ids:
        refuses(rig, "F8", "stop_token_ids", (rig.prompt(0, 1)[0],))
        return
    if not rig.deterministic:
        return
    answer = rig.ask(max_tokens=6)
    stop_id = answer[min(2, len(answer) - 1)]
    sent = rig.run(rig.request(max_tokens=6, stop_ids=(*rig.eos_ids, stop_id), stop_token_ids=(stop_id,)))
    if sent.tokens() != answer[: answer.index(stop_id) + 1] or sent.reason != "stop":
        raise broken("F8", f'stop id {stop_id} of {answer} gave {sent.tokens()} and "{sent.reason}"')


@case("F9")
def logprobs_are_true_or_refused(rig: Rig) -> None:
    """Declared: complete, ranked, consistent, and independent of what the sampler does."""
    if not rig.capabilities.supports_logprobs:
        refuses(rig, "F9", "logprobs", True)
        return
    for num_top in (0, 5, 20):
        sent = rig.run(rig.request(max_tokens=6, logprobs=True, top_logprobs=num_top))
        _check_logprobs(rig, sent, num_top, greedy=rig.deterministic)
    if not rig.capabilities.per_request_sampling:
        return
    greedy = rig.run(rig.request(max_tokens=1, logprobs=True, top_logprobs=5))
    hot = rig.run(rig.request(max_tokens=1, logprobs=True, top_logprobs=5, temperature=2.0, top_p=0.5))
    _check_logprobs(rig, hot, 5, greedy=False)
    before, after = greedy.rows()[0].logprob, hot.rows()[0].logprob
    if before is None or after is None or not _same_ranking(before.top, after.top):
        raise broken("F9", f"the sampler's values change the raw ranking: {before} became {after}")


@case("F10")
def prompt_logprobs_are_true_or_refused(rig: Rig) -> None:
    """Declared: one for each position from 1 on, and those of a prefix do not depend on what follows it."""
    if not rig.capabilities.supports_prompt_logprobs:
        refuses(rig, "F10", "prompt_logprobs", True)
        return
    prompt = rig.prompt(2, 12)
    full, prefix = _prompt_logprobs(rig, prompt), _prompt_logprobs(rig, prompt[:7])
    for position, logprob in prefix.items():
        if abs(full[position] - logprob) > 0.05 + LOGPROB_SLACK:
            raise broken("F10", f"position {position} has {logprob} in the prefix and {full[position]} in the whole")


@case("F11")
def structured_outputs_match_or_are_refused(rig: Rig) -> None:
    """Declared: an answer under a regular expression matches it from end to end."""
    if not rig.capabilities.supports_structured_outputs:
        refuses(rig, "F11", "response_format", {"type": "json_object"})
        return
    pattern = "[0-9]{3}-[a-z]{2}"
    sent = rig.run(rig.request(max_tokens=24, constraint=Constraint("regex", pattern)))
    ids = [row.token for row in sent.rows() if row.has_token and not row.flag & TokenFlag.STOP]
    text = rig.tokenizer.decode(ids)
    if not re.fullmatch(pattern, text) or sent.reason != "stop":
        raise broken("F11", f'the answer {text!r} under {pattern!r} ended in "{sent.reason}"')


@case("F12")
def a_repeated_prompt_is_reused(rig: Rig) -> None:
    """Declared: the second time some of a long prompt is reused and the answer is the same. Undeclared: nothing is."""
    prompt = rig.prompt(5, min(256, rig.capabilities.max_model_len // 2))
    first, second = (rig.run(rig.request(prompt, max_tokens=6)) for _ in range(2))
    reused = max((e.num_cached_tokens for e in second.events() if isinstance(e, PromptReport)), default=0)
    if rig.capabilities.supports_prefix_caching and not 0 < reused < len(prompt):
        raise broken("F12", f"a repeated prompt of {len(prompt)} tokens reused {reused}")
    if not rig.capabilities.supports_prefix_caching and reused:
        raise broken("F12", f"{reused} tokens were reused, but supports_prefix_caching is not declared")
    if rig.deterministic and first.tokens() != second.tokens():
        raise broken("F12", f"the repeated prompt gave {second.tokens()} instead of {first.tokens()}")


@case("F15")
def tokens_are_posted_as_they_are_made(rig: Rig) -> None:
    """An answer of many tokens comes in several batches."""
    sent = rig.run(rig.request(max_tokens=NUM_TOKENS))
    num_batches = sum(sent.handle in batch.handles for batch in rig.recorder.batches(sent.first_batch))
    if rig.capabilities.supports_streaming and len(sent.tokens()) > 8 and num_batches < 2:
        raise broken("F15", f"{len(sent.tokens())} tokens came in one batch")


def _answer(rig: Rig, prompt: tuple[int, ...], seed: int, **values: Any) -> list[int]:
    """Greedy for seed 0; drawn at temperature 1 for the others, where a small change of the logits tells too."""
    sampling = {"temperature": 1.0} if seed else {}
    return rig.ask(prompt, max_tokens=NUM_TOKENS, seeds=(seed,), **sampling, **values)


def _share_repeated(answers: list[list[int]]) -> float:
    return 1 - sum(len(set(answer)) for answer in answers) / max(1, sum(len(answer) for answer in answers))


def _check_logprobs(rig: Rig, sent: Sent, num_top: int, *, greedy: bool) -> None:
    for position, row in enumerate(sent.rows()):
        entry = row.logprob
        if entry is None:
            continue  # a stop id; S9 judges the others
        values = [logprob for _, logprob in entry.top]
        if not math.isfinite(entry.logprob) or entry.logprob > LOGPROB_SLACK:
            raise broken("F9", f"log probability {entry.logprob}", position)
        if len(entry.top) != min(num_top, rig.capabilities.vocab_size or num_top):
            raise broken("F9", f"{len(entry.top)} alternatives instead of {num_top}", position)
        if len({token for token, _ in entry.top}) != len(entry.top) or values != sorted(values, reverse=True):
            raise broken("F9", f"alternatives are not ranked: {entry.top}", position)
        if math.fsum(map(math.exp, values)) > 1 + LOGPROB_SLACK:
            raise broken("F9", f"the alternatives' probabilities add up to more than 1: {entry.top}", position)
        own = dict(entry.top).get(row.token)
        if own is not None and abs(own - entry.logprob) > LOGPROB_SLACK:
            raise broken("F9", f"token {row.token} has {entry.logprob} and {own} among the alternatives", position)
        if own is None and values and entry.logprob > values[-1] + LOGPROB_SLACK:
            raise broken("F9", f"token {row.token} ({entry.logprob}) is missing in {entry.top}", position)
        if greedy and values and abs(entry.logprob - values[0]) > LOGPROB_SLACK:
            raise broken("F9", f"the greedy token {row.token} is not the best of {entry.top}", position)


def _same_ranking(left: list[tuple[int, float]], right: list[tuple[int, float]]) -> bool:
    pairs = zip(left, right, strict=False)
    return len(left) == len(right) and all(abs(a - b) < 0.05 for (_, a), (_, b) in pairs)


def _prompt_logprobs(rig: Rig, prompt: tuple[int, ...]) -> dict[int, float]:
    sent = rig.run(rig.request(prompt, max_tokens=1, prompt_logprobs=True))
    reports = [event for event in sent.events() if isinstance(event, PromptReport)]
    entries = [entry for report in reports for entry in report.logprobs]
    if [entry.row for entry in entries] != list(range(1, len(prompt))):
        raise broken("F10", f"a prompt of {len(prompt)} tokens has log probabilities at {[e.row for e in entries]}")
    if any(entry.logprob > LOGPROB_SLACK or not math.isfinite(entry.logprob) for entry in entries):
        raise broken("F10", f"log probabilities {[entry.logprob for entry in entries]}")
    return {entry.row: entry.logprob for entry in entries}
