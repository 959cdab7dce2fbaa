"""The rules a backend is judged by. A number never changes its meaning and is never used again."""

from __future__ import annotations

import msgspec

KIT_VERSION = "4.0"
"""Grows in the first number when a required rule is added or sharpened, in the second for anything else."""

RULES: dict[str, str] = {
    "S1": "A stream has exactly one final event, also when it is refused, fails, is cancelled or is shut down.",
    "S2": "Nothing about a sequence follows its final event.",
    "S3": "The finish reason is one of FinishReason.",
    "S4": 'A stream that ends in "stop", "length" or "tool_calls" has at least one row.',
    "S5": 'max_tokens is obeyed exactly: never a token more, and "length" means just that many.',
    "S6": 'A stop id is flagged STOP and ends its stream with "stop"; no other token is flagged.',
    "S7": "Batches are well formed: columns of one length, rows of accepted handles, token ids of the vocabulary.",
    "S8": "A sequence has at most one prompt report, before its first row.",
    "S9": "Log-probability rows come where they were asked for, one for each token that is not a stop id.",
    "S10": 'A healthy request does not end in "error"; an "error" says what went wrong.',
    "C1": 'A cancelled sequence ends as "cancelled" at the next step boundary, whatever it was doing.',
    "C2": "Cancelling twice, after the end, or an unknown handle is harmless and raises nothing, from any thread.",
    "C3": "Cancelling one sequence leaves the others as they were.",
    "R1": "After every case the engine's places are free again: nothing runs, nothing waits.",
    "R2": "After every case all blocks can be taken again (cached ones that may be evicted count as free).",
    "R3": "After every case, and after close, there are no more threads than before.",
    "R4": "After every case, and after close, there are no more open descriptors than before.",
    "K1": "Concurrent streams are not swapped or mixed: each request gets what it gets alone.",
    "K2": "Requests beyond max_batch_size wait and are all served.",
    "D1": "A greedy request gives the same tokens every time.",
    "D2": "A sampled request with the same seed gives the same tokens again, and choices have seeds of their own.",
    "D3": "Sampled requests with different seeds differ.",
    "F1": "per_request_sampling: temperature, top_p and seed act per request; undeclared, other values are refused.",
    "F2": "per_request_top_k: top_k acts per request; undeclared, other values are refused.",
    "F3": "supports_min_p: acts when declared, is refused when not.",
    "F4": "supports_penalties: all three act when declared, each is refused when not.",
    "F5": "supports_logit_bias: acts when declared, is refused when not.",
    "F6": "supports_min_tokens: acts when declared, is refused when not.",
    "F7": "supports_ignore_eos: acts when declared, is refused when not.",
    "F8": "supports_stop_token_ids: act when declared, are refused when not.",
    "F9": "supports_logprobs: natural logs of raw probabilities over the whole vocabulary; refused when undeclared.",
    "F10": "supports_prompt_logprobs: one for each prompt token from the second on; refused when undeclared.",
    "F11": "supports_structured_outputs: the answer matches the constraint; refused when undeclared.",
    "F12": "supports_prefix_caching: a repeated prompt is reused and changes nothing; undeclared, nothing is reused.",
    "F13": "supports_batch: sequences advance together; undeclared, max_batch_size is 1.",
    "F14": "batch_invariant: a stream is the same, token for token, whatever runs beside it.",
    "F15": "supports_streaming: tokens are posted as they are made, not all at the end.",
    "F16": "supports_priority: among waiting requests a higher priority goes first; refused when undeclared.",
    "F17": "supports_suffix: the text behind the gap is read like the text before it; refused when undeclared.",
    "F18": "supports_tool_choice: with structured outputs, a forced call is a call; refused when undeclared.",
    "N1": "A prompt with its budget may fill max_model_len to the last position.",
    "N2": "A request of several choices gives each its own stream.",
    "U1": "Counters agree with the events and never decrease.",
    "P1": "Behind core's host an engine gives what it gives bare: ids, finish reason and usage.",
    "P2": "A reader that leaves frees what its request held.",
    "P3": "A value that needs an undeclared capability is refused by name, before the engine sees it.",
    "H1": "The generate hook only enqueues: it returns at once, also while the engine is busy.",
    "H2": "The stats hook never waits for a step.",
    "H3": "Draining the events never waits, readable or not; the descriptor is quiet while nothing waits.",
    "H4": "The heartbeat hook, where an engine has it, answers at once, and None while the engine is well.",
    "H5": "The control hook answers None to a command that the backend's card does not name.",
    "L1": "Capabilities are complete, valid and constant from open to close.",
    "L2": "After close every accepted handle has had its final event.",
    "L3": "Closing twice, or without ever having worked, is fine.",
    "L4": "A closed engine can be opened again and answers as before.",
    "L5": "The process that holds the engine survives every case.",
}

UNWAIVABLE = ("S", "C", "R")
"""Rules of these groups (streams, cancellation, leaks) protect every other user of the process."""


class Violation(msgspec.Struct, frozen=True):
    """One broken rule. ``position`` is the index of the event in its sequence, or None when there is no such place."""

    rule: str
    message: str
    position: int | None = None

    def __str__(self) -> str:
        place = "" if self.position is None else f" (event {self.position})"
        return f"[{self.rule}] {self.message}{place}"


class RuleBroken(Exception):
    """Raised inside a case; carries the violations found so far."""

    def __init__(self, *violations: Violation) -> None:
        super().__init__("; ".join(map(str, violations)))
        self.violations = violations


def broken(rule: str, message: str, position: int | None = None) -> RuleBroken:
    return RuleBroken(Violation(rule, message, position))


def can_be_waived(rule: str) -> bool:
    return rule.rstrip("0123456789") not in UNWAIVABLE
