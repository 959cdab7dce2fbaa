"""The last resort is one line per message."""

from __future__ import annotations

import pytest

from pocketllm.errors import ConfigurationError
from pocketllm.text.fallback_prompt import render_fallback_prompt

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": None, "tool_calls": []},
]


def test_the_fallback_prompt_is_a_line_for_each_message() -> None:
    assert render_fallback_prompt(MESSAGES) == "system: Be brief.\nuser: a\nb\nassistant: \nassistant:"
    assert render_fallback_prompt(MESSAGES[:1], add_generation_prompt=False) == "system: Be brief."
    assert render_fallback_prompt([]) == "assistant:"


def test_malformed_messages_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="role"):
        render_fallback_prompt([{"content": "x"}])
