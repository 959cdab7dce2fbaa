"""How a stream begins, continues and ends. Most of it is judged by ``check_stream`` after every case."""

from __future__ import annotations

import itertools

from pocketllm.testing.case import case
from pocketllm.testing.rig import Rig
from pocketllm.testing.rules import broken
from pocketllm.types import TokenFlag


@case("S1")
def every_request_ends_once(rig: Rig) -> None:
    """One request after the other, of several lengths."""
    for index, max_tokens in enumerate((1, 2, 3, 7, 16)):
        rig.run(rig.request(rig.prompt(index), max_tokens=max_tokens))


@case("S2")
def nothing_follows_the_end(rig: Rig) -> None:
    """Streams that end at their limit while others continue: the engine has many steps to post too much."""
    short = [rig.send(rig.request(rig.prompt(index), max_tokens=2)) for index in range(3)]
    longer = rig.send(rig.request(rig.prompt(4), max_tokens=16))
    for sent in (*short, longer):
        sent.wait()


@case("S4")
def no_answer_is_empty(rig: Rig) -> None:
    """A request with a budget of one token gets it."""
    for index in range(3):
        rig.run(rig.request(rig.prompt(index, num_tokens=4), max_tokens=1))


@case("S5")
def max_tokens_is_exact(rig: Rig) -> None:
    """A larger budget continues the same greedy answer and never shortens it."""
    answers = [rig.run(rig.request(max_tokens=max_tokens)) for max_tokens in (1, 2, 5, 12)]
    if all(sent.reason != "length" for sent in answers[:2]):
        raise broken("S5", f"no budget was ever used up: the answer ends after {len(answers[-1].tokens())} tokens")
    if rig.deterministic:
        for shorter, longer in itertools.pairwise(answers):
            kept = longer.tokens()[: len(shorter.tokens())]
            if kept != shorter.tokens():
                raise broken("S5", f"max_tokens changes the answer: {shorter.tokens()} became {kept}")


@case("S6")
def an_end_id_ends_the_stream(rig: Rig) -> None:
    """Every id of a greedy answer, made a stop id, ends the answer where it first appears."""
    if not (rig.deterministic and rig.capabilities.supports_stop_token_ids):
        # Only the engine's own end ids can be stop ids then; a long answer meets them if it can.
        rig.run(rig.request(rig.prompt(0, 8), max_tokens=64))
        return
    answer = rig.ask(max_tokens=8)
    for stop_id in dict.fromkeys(answer):
        sent = rig.run(rig.request(max_tokens=8, stop_ids=(*rig.eos_ids, stop_id)))
        expected = answer[: answer.index(stop_id) + 1]
        last = sent.rows()[-1] if sent.rows() else None
        if sent.tokens() != expected or last is None or not last.flag & TokenFlag.STOP or sent.reason != "stop":
            raise broken("S6", f"stop id {stop_id}: expected {expected} and STOP, got {sent.tokens()}, {sent.reason}")


@case("S7")
def a_prompt_of_one_token_is_served(rig: Rig) -> None:
    """The shortest prompt there is."""
    rig.run(rig.request(rig.prompt(0, 1), max_tokens=4))
