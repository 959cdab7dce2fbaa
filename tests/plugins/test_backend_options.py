"""``backend_options`` against a card."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketllm.engine_args import EngineArgs
from pocketllm.errors import ConfigurationError
from pocketllm.plugins.backend_options import OPTION_TYPES, checked_options
from pocketllm.types import BackendInfo, OptionSpec

CARD = BackendInfo(
    name="toy",
    options=(
        OptionSpec(name="num_threads", type="int", default=2),
        OptionSpec(name="ratio", type="float"),
        OptionSpec(name="deterministic", type="bool", default=False),
        OptionSpec(name="label", type="str"),
        OptionSpec(name="eos_token_id", type="ids"),
        OptionSpec(name="script", type="json"),
    ),
)


def check(options: dict[str, Any], resolved: dict[str, Any] | None = None) -> dict[str, Any]:
    return checked_options(CARD, EngineArgs(model="m", backend_options=options, resolved_options=resolved))


@pytest.mark.parametrize(
    ("name", "value", "checked"),
    [
        ("num_threads", 3, 3),
        ("ratio", 0.5, 0.5),
        ("ratio", 1, 1.0),
        ("deterministic", True, True),
        ("label", "x", "x"),
        ("label", 12, "12"),
        ("eos_token_id", 2, [2]),
        ("eos_token_id", (2, 3), [2, 3]),
        ("script", {"a": [1, None]}, {"a": [1, None]}),
    ],
)
def test_a_value_of_its_declared_type_is_taken(name: str, value: object, checked: object) -> None:
    assert check({name: value}) == {name: checked}


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("num_threads", "3", "a whole number"),
        ("num_threads", 3.0, "a whole number"),
        ("num_threads", True, "a whole number"),
        ("ratio", math.inf, "a finite number"),
        ("ratio", "1", "a finite number"),
        ("deterministic", 1, "true or false"),
        ("label", 1.5, "quote it twice"),
        ("label", ["x"], "text"),
        ("eos_token_id", -1, "token id"),
        ("eos_token_id", [1, "2"], "token id"),
        ("eos_token_id", True, "token id"),
    ],
)
def test_a_value_of_another_type_is_refused(name: str, value: object, part: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check({name: value})
    assert part in caught.value.message
    assert caught.value.param == f"backend_options.{name}"


def test_an_unknown_name_leads_to_the_nearest_and_to_all() -> None:
    with pytest.raises(ConfigurationError) as caught:
        check({"num_thread": 3})
    assert "Did you mean 'num_threads'?" in caught.value.message
    assert "deterministic, eos_token_id, label, num_threads, ratio, script" in caught.value.message
    assert caught.value.param == "backend_options.num_thread"


def test_a_card_without_options_takes_none() -> None:
    with pytest.raises(ConfigurationError, match="no options at all"):
        checked_options(BackendInfo(name="plain"), EngineArgs(model="m", backend_options={"x": 1}))


def test_the_explicit_option_wins_and_checkpoint_dir_is_cores() -> None:
    assert check({"num_threads": 3, "checkpoint_dir": "x"}, {"num_threads": 1, "label": "y"}) == {
        "num_threads": 3,
        "label": "y",
    }


def test_an_option_of_none_counts_as_not_given_and_no_default_takes_its_place() -> None:
    assert check({"label": None, "num_threads": None}) == {}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@given(name=st.sampled_from([spec.name for spec in CARD.options]), value=json_values)
def test_any_json_value_is_taken_or_refused_by_name(name: str, value: Any) -> None:
    kind = {spec.name: spec.type for spec in CARD.options}[name]
    types = {"int": int, "float": float, "bool": bool, "str": str, "ids": list}
    error = None
    checked: dict[str, Any] = {}
    try:
        checked = check({name: value})
    except ConfigurationError as refusal:
        error = refusal
    if error is not None:
        assert name in error.message
        assert OPTION_TYPES[kind] in error.message
    elif kind in types and value is not None:
        assert type(checked[name]) is types[kind]
