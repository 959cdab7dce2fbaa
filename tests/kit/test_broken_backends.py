"""Every fault is caught by the rule that was written for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pocketllm.testing.case import all_cases
from pocketllm.testing.rules import RULES, Violation
from pocketllm.testing.settings import KitSettings
from pocketllm.testing.worker_link import WorkerLink

DEADLINE_S = 8.0  # of which a stream may take a quarter

# Backend of broken.py or broken_features.py, the case that meets its fault, the rule that must be named.
FAULTS = [
    ("NeverEnds", "S1/every_request_ends_once", "S1"),
    ("EndsTwice", "S1/every_request_ends_once", "S1"),
    ("EmitsAfterTheEnd", "S2/nothing_follows_the_end", "S2"),
    ("UnknownReason", "S1/every_request_ends_once", "S3"),
    ("EmptyStream", "S4/no_answer_is_empty", "S4"),
    ("OneTokenTooMany", "S5/max_tokens_is_exact", "S5"),
    ("UnflaggedStop", "S6/an_end_id_ends_the_stream", "S6"),
    ("RaggedColumns", "S7/a_prompt_of_one_token_is_served", "S7"),
    ("OutsideTheVocabulary", "S7/a_prompt_of_one_token_is_served", "S7"),
    ("LatePromptReport", "S1/every_request_ends_once", "S8"),
    ("MissingLogprobs", "F9/logprobs_are_true_or_refused", "S9"),
    ("DiesInTheMiddle", "S1/every_request_ends_once", "S10"),
    ("TakesTheProcessDown", "S5/max_tokens_is_exact", "L5"),
    ("DeafToCancel", "C1/at_every_token", "C1"),
    ("DeafToCancel", "C1/before_the_first_event", "C1"),
    ("SlowToCancel", "C1/at_every_token", "C1"),
    ("HangsInCancel", "C1/at_every_token", "C1"),
    ("RaisesOnUnknownHandles", "C2/an_unknown_handle", "C2"),
    ("RaisesOnUnknownHandles", "C2/after_the_end", "C2"),
    ("CancelsEverything", "C3/the_others_go_on", "C3"),
    ("LeaksASlot", "C1/at_every_token", "R1"),
    ("LeaksBlocks", "S1/every_request_ends_once", "R2"),
    ("LeaksThreads", "S1/every_request_ends_once", "R3"),
    ("LeaksDescriptors", "S1/every_request_ends_once", "R4"),
    ("LeavesItsThreadBehind", "L2/close_frees_threads_and_descriptors", "R3"),
    ("SwapsTwoStreams", "K1/each_gets_what_it_gets_alone", "K1"),
    ("LosesQueuedRequests", "K2/more_than_fit_are_served", "K2"),
    ("NeverTheSameAnswer", "D1/greedy_is_reproducible", "D1"),
    ("DrawsAfresh", "D2/a_seed_reproduces_its_tokens", "D2"),
    ("IgnoresSeeds", "D3/other_seeds_differ", "D3"),
    ("IgnoresTemperature", "F1/temperature_acts_or_is_refused", "F1"),
    ("IgnoresTopP", "F1/top_p_acts_or_is_refused", "F1"),
    ("IgnoresTopK", "F2/top_k_acts_or_is_refused", "F2"),
    ("IgnoresMinP", "F3/min_p_acts_or_is_refused", "F3"),
    ("IgnoresRepetitionPenalty", "F4/penalties_act_or_are_refused", "F4"),
    ("IgnoresFrequencyPenalty", "F4/penalties_act_or_are_refused", "F4"),
    ("IgnoresPresencePenalty", "F4/penalties_act_or_are_refused", "F4"),
    ("IgnoresLogitBias", "F5/logit_bias_acts_or_is_refused", "F5"),
    ("IgnoresMinTokens", "F6/min_tokens_acts_or_is_refused", "F6"),
    ("StopsAtEndIdsAlways", "F7/ignore_eos_acts_or_is_refused", "F7"),
    ("IgnoresStopIds", "F8/stop_token_ids_act_or_are_refused", "F8"),
    ("SampledLogprobs", "F9/logprobs_are_true_or_refused", "F9"),
    ("Log2Probabilities", "F9/logprobs_are_true_or_refused", "F9"),
    ("PromptLogprobsFromZero", "F10/prompt_logprobs_are_true_or_refused", "F10"),
    ("NoStructure", "F11/structured_outputs_match_or_are_refused", "F11"),
    ("NoPrefixCache", "F12/a_repeated_prompt_is_reused", "F12"),
    ("OneAfterTheOther", "F13/sequences_advance_together", "F13"),
    ("UndeclaredBatch", "F13/sequences_advance_together", "F13"),
    ("NeighboursMatter", "F14/a_stream_does_not_depend_on_its_neighbours", "F14"),
    ("AllAtOnce", "F15/tokens_are_posted_as_they_are_made", "F15"),
    ("FirstComeFirstServed", "F16/priority_goes_first_or_is_refused", "F16"),
    ("ForgetsTheSuffix", "F17/a_suffix_is_read_or_is_refused", "F17"),
    ("CallsNothing", "F18/a_forced_call_is_a_call_or_is_refused", "F18"),
    ("ShortContext", "N1/a_prompt_may_fill_the_context", "N1"),
    ("MixesUpChoices", "N2/each_choice_has_its_stream", "S5"),
    ("WrongCounters", "U1/counters_agree_with_events", "U1"),
    ("ChangingCapabilities", "L1/capabilities_are_complete_and_constant", "L1"),
    ("ClosesWithoutGoodbye", "L2/close_ends_what_is_active", "L2"),
    ("RaisesOnSecondClose", "L3/close_twice", "L3"),
    ("RemembersAcrossReopening", "L4/reopened_it_answers_as_before", "L4"),
    ("GreedyReadsTheSeed", "P1/the_same_answer_as_bare", "P1"),
    ("DeafAndSlow", "P2/a_reader_that_leaves_frees_its_place", "P2"),
    ("BlocksTheCaller", "H1/generate_only_enqueues", "H1"),
    ("StatsWait", "H2/stats_do_not_wait", "H2"),
    ("DrainWaits", "H3/draining_does_not_wait", "H3"),
    ("NeverQuiet", "H3/the_descriptor_is_quiet_while_nothing_waits", "H3"),
    ("CriesWolf", "H4/a_heartbeat_is_quiet_while_all_is_well", "H4"),
    ("HeartbeatWaits", "H4/a_heartbeat_is_quiet_while_all_is_well", "H4"),
    ("TakesAnyCommand", "H5/an_unknown_command_is_answered_with_none", "H5"),
    ("CannotOpen", "S1/every_request_ends_once", "L1"),
]


def _module_of(backend: str) -> str:
    text = (Path(__file__).parent / "broken.py").read_text()
    return "tests.kit.broken" if f"class {backend}(" in text else "tests.kit.broken_features"


Judge = Callable[..., list[Violation]]


@pytest.fixture
def judge(toy_checkpoint: Path) -> Iterator[Judge]:
    links: list[WorkerLink] = []

    def run(backend: str, case_id: str, placement: str = "thread") -> list[Violation]:
        settings = KitSettings(
            backend=backend.lower(),
            target=f"{_module_of(backend)}:{backend}",
            model=str(toy_checkpoint),
            placement=placement,
            deadline_s=DEADLINE_S,
        )
        links.append(WorkerLink(settings))
        return links[-1].run(case_id, all_cases()[case_id].rule)[0]

    yield run
    for link in links:
        link.stop()


@pytest.mark.parametrize(("backend", "case_id", "rule"), FAULTS, ids=[f"{f[0]}-{f[2]}" for f in FAULTS])
def test_the_fault_is_caught_by_its_rule(judge: Judge, backend: str, case_id: str, rule: str) -> None:
    violations = judge(backend, case_id)
    assert rule in {violation.rule for violation in violations}, violations


@pytest.mark.parametrize(
    ("backend", "case_id", "rule"),
    [
        ("NeverEnds", "S1/every_request_ends_once", "S1"),
        ("DeafToCancel", "C1/at_every_token", "C1"),
        ("LeaksDescriptors", "S1/every_request_ends_once", "R4"),
        ("TakesTheProcessDown", "S5/max_tokens_is_exact", "S1"),
        ("CannotOpen", "S1/every_request_ends_once", "L1"),
    ],
)
def test_faults_are_caught_in_a_child_process_too(judge: Judge, backend: str, case_id: str, rule: str) -> None:
    violations = judge(backend, case_id, "child")
    assert rule in {violation.rule for violation in violations}, violations


def test_every_rule_has_a_fault() -> None:
    # Mixed-up choices (N2) break S5 first, and P3 is kept by core's own gate, which no backend can open.
    assert {rule for _, _, rule in FAULTS} == set(RULES) - {"N2", "P3"}
