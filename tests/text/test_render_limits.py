"""No template costs more than its allowance, and the allowance is far above what real ones need."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pocketllm.errors import CheckpointError
from pocketllm.text import render_limits
from pocketllm.text.chat_template import ChatTemplate
from pocketllm.text.render_limits import RenderMeter
from tests.text import templates
from tests.text.hostile_templates import REFUSED


@pytest.fixture(scope="module")
def outcomes(repository: Path) -> dict[str, str]:
    command = [sys.executable, "-m", "tests.text.hostile_templates"]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=300, check=True)
    report = json.loads(done.stdout)
    assert report["peak_bytes"] < 700 << 20
    found: dict[str, str] = report["outcomes"]
    return found


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_template_is_refused(outcomes: dict[str, str], name: str) -> None:
    assert outcomes[name].startswith("refused: ")


def test_a_long_conversation_needs_a_small_part_of_the_allowance() -> None:
    turns = [{"role": role, "content": "word " * 200} for _ in range(500) for role in ("user", "assistant")]
    for source in (templates.CHATML_JSON, templates.CHATML_XML, templates.HEADERS, templates.TURNS):
        assert len(ChatTemplate(source).render(turns)) > 1_000_000


def test_the_output_limit_is_checked_while_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pocketllm.text.chat_template.MAX_OUTPUT_CHARS", 1000)
    template = ChatTemplate("{% for i in range(9000) %}0123456789{% endfor %}{{ raise_exception('too late') }}")
    with pytest.raises(Exception, match="passes 1000 characters"):
        template.render([])


def test_the_clock_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_limits, "MAX_SECONDS", -1.0)
    with pytest.raises(CheckpointError, match="more than -1 s"):
        RenderMeter().step(1000)


def test_weight_counts_shared_parts_once_per_use() -> None:
    shared = ["abc"]
    assert RenderMeter().weigh([shared, shared, {"k": shared}]) == (9, 10, 4)
    assert RenderMeter().weigh("abc") == (1, 3, 1)
