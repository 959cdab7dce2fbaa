"""Where a chat template is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketllm.checkpoint.template_source import find_template
from pocketllm.errors import CheckpointError
from tests.checkpoint.sample_files import write_json

NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


def test_template_sources_are_asked_in_order(tmp_path: Path) -> None:
    metadata = {"tokenizer.chat_template": "from gguf"}
    assert find_template([], {}, tools=False) is None
    assert find_template([tmp_path], metadata, tools=True) == "from gguf"
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": "from config"})
    assert find_template([tmp_path], metadata, tools=True) == "from config"
    (tmp_path / "chat_template.jinja").write_text("from file", encoding="utf-8")
    assert find_template([tmp_path], metadata, tools=True) == "from file"


def test_the_first_folder_wins(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "chat_template.jinja").write_text(name, encoding="utf-8")
    assert find_template([tmp_path / "two", tmp_path / "one"], {}, tools=False) == "two"
    assert find_template([tmp_path, tmp_path / "one"], {}, tools=False) == "one"


def test_tools_take_the_template_made_for_them(tmp_path: Path) -> None:
    gguf = {"tokenizer.chat_template": "D", "tokenizer.chat_template.tool_use": "T"}
    assert [find_template([], gguf, tools=tools) for tools in (False, True)] == ["D", "T"]
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": NAMED})
    assert [find_template([tmp_path], {}, tools=tools) for tools in (False, True)] == ["D", "T"]
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": NAMED[:1]})
    assert [find_template([tmp_path], {}, tools=tools) for tools in (False, True)] == ["D", "D"]
    (tmp_path / "chat_template.jinja").write_text("file", encoding="utf-8")
    extra = tmp_path / "additional_chat_templates"
    extra.mkdir()
    (extra / "tool_use.jinja").write_text("file for tools", encoding="utf-8")
    assert [find_template([tmp_path], {}, tools=tools) for tools in (False, True)] == ["file", "file for tools"]


@pytest.mark.parametrize("value", [5, [1], [{"name": "default", "template": 5}], {"default": "x"}])
def test_a_template_that_is_none_is_one_clear_error(tmp_path: Path, value: object) -> None:
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": value})
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: chat_template"):
        find_template([tmp_path], {}, tools=False)
