"""The engine behind core's host, as callers meet it."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from pocketllm.errors import UnsupportedFeatureError
from pocketllm.fields.policy import IN_FORCE, NEEDS
from pocketllm.llm import LLM
from pocketllm.sampling_params import SamplingParams
from pocketllm.testing.case import case
from pocketllm.testing.rig import SETTLE_S, Rig, engine_args
from pocketllm.testing.rules import broken
from pocketllm.types import TokenFlag

# Capability, the sampling value that needs it, and what to ask for.
UNDECLARED: tuple[tuple[str, str, Any], ...] = (
    *((row.capability, row.field, row.example) for row in IN_FORCE),
    *((need.capability, need.field, need.example) for need in NEEDS if need.field in SamplingParams.__struct_fields__),
)


@case("P1")
def the_same_answer_as_bare(rig: Rig) -> None:
    """Ids, finish reason and usage of three requests through ``LLM`` and through the hooks."""
    prompts = [rig.prompt(index) for index in range(3)]
    with _open(rig) as llm:
        results = llm.generate([list(prompt) for prompt in prompts], _params(rig))
    for prompt, result in zip(prompts, results, strict=True):
        if result.usage.prompt_tokens != len(prompt):
            raise broken("P1", f"usage says {result.usage.prompt_tokens} prompt tokens instead of {len(prompt)}")
        if not rig.deterministic:
            continue
        bare = rig.run(rig.request(prompt, max_tokens=8))
        ids = [row.token for row in bare.rows() if row.has_token and not row.flag & TokenFlag.STOP]
        expected = (ids, bare.reason, len(bare.tokens()))
        got = (list(result.token_ids), result.finish_reason, result.usage.completion_tokens)
        if got != expected:
            raise broken("P1", f"through core: {got}, bare: {expected} (ids, finish reason, completion tokens)")


@case("P2")
def a_reader_that_leaves_frees_its_place(rig: Rig) -> None:
    """A stream that is closed early is cancelled in the engine, and the counters come back to rest."""
    with _open(rig) as llm:
        request = rig.long_request()
        ignore_eos, budget = request.sampling_params.ignore_eos, request.sampling_params.max_tokens
        params = _params(rig, max_tokens=budget, ignore_eos=ignore_eos)
        stream = llm.generate_stream(list(request.prompt_tokens), params)
        next(stream)
        getattr(stream, "close")()  # noqa: B009  # typed as a plain iterator; leaving a generator closes it like this
        give_up_at = time.monotonic() + SETTLE_S
        while llm.host.num_active or llm.metrics().num_running or llm.metrics().num_waiting:
            if time.monotonic() > give_up_at:
                raise broken("P2", f"the request is still there {SETTLE_S:g} s after its reader left")
            time.sleep(0.02)


@case("P3")
def what_is_not_declared_is_refused(rig: Rig) -> None:
    """Each undeclared value raises UnsupportedFeatureError with its name, and the engine sees no request."""
    with _open(rig) as llm:
        for capability, param, value in UNDECLARED:
            if getattr(rig.capabilities, capability) or getattr(rig.capabilities, param, None) == value:
                continue
            try:
                llm.generate([list(rig.prompt())], _params(rig, **{param: value}))
            except UnsupportedFeatureError as refusal:
                if refusal.param != param:
                    raise broken("P3", f"{param} = {value!r} is refused as {refusal.param!r}") from refusal
            else:
                raise broken("P3", f"{param} = {value!r} is served without {capability}")
        if llm.host.num_active:
            raise broken("P3", f"{llm.host.num_active} refused requests are still active")


def _open(rig: Rig) -> LLM:
    args = msgspec.structs.replace(engine_args(rig.settings), placement=rig.settings.placement)
    return LLM(args, registry=rig.registry)


def _params(rig: Rig, **values: Any) -> SamplingParams:
    fixed = rig.capabilities
    own: dict[str, Any] = {"max_tokens": 8}
    if not fixed.per_request_sampling:
        own |= {"temperature": fixed.temperature, "top_p": fixed.top_p, "seed": fixed.seed}
    return SamplingParams(**{**own, **values})
