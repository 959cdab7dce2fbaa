"""The guide's order of sources for stop ids."""

from __future__ import annotations

import pytest

from pocketllm.checkpoint.eos import resolve_eos
from pocketllm.errors import CheckpointError, ConfigurationError


def tokenizer() -> tuple[int, ...]:
    return (9, 8)


@pytest.mark.parametrize(
    ("override", "generation", "config", "expected"),
    [
        (5, {"eos_token_id": 1}, {"eos_token_id": 2}, ((5,), "override")),
        ([5, 6, 5], {}, {}, ((5, 6), "override")),
        ((0,), {}, {}, ((0,), "override")),
        (None, {"eos_token_id": [1, 106]}, {"eos_token_id": 2}, ((1, 106), "generation_config")),
        (None, {"eos_token_id": None}, {"eos_token_id": 2}, ((2,), "config")),
        (None, {"eos_token_id": []}, {"eos_token_id": [2]}, ((2,), "config")),
        (None, {}, {"text_config": {"eos_token_id": 4}}, ((4,), "config")),
        (None, {}, {"eos_token_id": 3, "text_config": {"eos_token_id": 4}}, ((3,), "config")),
        (None, {}, {"text_config": None}, ((9, 8), "tokenizer")),
        (None, {}, {}, ((9, 8), "tokenizer")),
    ],
)
def test_the_first_source_that_names_any_wins(
    override: object, generation: dict[str, object], config: dict[str, object], expected: object
) -> None:
    assert resolve_eos(override, generation, config, tokenizer) == expected


def test_without_any_source_nothing_ends_a_sequence() -> None:
    assert resolve_eos(None, {}, {}, lambda: ()) == ((), "none")


def test_the_tokenizer_is_not_asked_when_a_file_answers() -> None:
    def refuse() -> tuple[int, ...]:
        raise AssertionError("asked")

    assert resolve_eos(None, {}, {"eos_token_id": 2}, refuse)[0] == (2,)


@pytest.mark.parametrize("override", [True, False, "2", 2.0, -1, [], [1, True], [1, "2"], [[1]], {"id": 1}])
def test_an_override_that_is_no_id_is_rejected_rather_than_guessed(override: object) -> None:
    with pytest.raises(ConfigurationError, match="eos_token_id") as caught:
        resolve_eos(override, {"eos_token_id": 1}, {}, tokenizer)
    assert caught.value.param == "backend_options"


@pytest.mark.parametrize("value", [True, "2", 2.5, -1, ["a"]])
def test_a_file_that_names_no_id_is_damaged(value: object) -> None:
    with pytest.raises(CheckpointError, match=r"eos_token_id of generation_config\.json"):
        resolve_eos(None, {"eos_token_id": value}, {}, tokenizer)
    with pytest.raises(CheckpointError, match=r"eos_token_id of text_config of config\.json"):
        resolve_eos(None, {}, {"text_config": {"eos_token_id": value}}, tokenizer)
