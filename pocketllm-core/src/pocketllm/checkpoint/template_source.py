"""Where a checkpoint keeps its chat template. Rendering is the text pipeline's work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pocketllm.checkpoint.bounded_file import read_text_file
from pocketllm.checkpoint.tokenizer_json import read_tokenizer_config
from pocketllm.errors import CheckpointError

_TOOL_TEMPLATE = "tool_use"
_MAX_TEMPLATE_BYTES = 4 << 20


def find_template(folders: Sequence[Path], metadata: Mapping[str, object], *, tools: bool) -> str | None:
    """The Jinja source, or None when the checkpoint has none.

    Each folder is asked in turn, ``chat_template.jinja`` before ``tokenizer_config.json``; then a GGUF's
    ``tokenizer.chat_template``. Where a source holds several, the one named ``tool_use`` is for requests with tools.

    Raises:
        CheckpointError: a source is present and malformed.
    """
    names = [_TOOL_TEMPLATE, "default"] if tools else ["default"]
    for folder in folders:
        extra = folder / "additional_chat_templates" / f"{_TOOL_TEMPLATE}.jinja"
        main = folder / "chat_template.jinja"
        for file in [extra, main] if tools else [main]:
            if file.is_file():
                return read_text_file(file, max_bytes=_MAX_TEMPLATE_BYTES)
        given = read_tokenizer_config(folder).get("chat_template")
        if given is not None:
            found = _choose(given, names, folder)
            if found is not None:
                return found
    for key in [f"tokenizer.chat_template.{_TOOL_TEMPLATE}", "tokenizer.chat_template"][0 if tools else 1 :]:
        value = metadata.get(key)
        if isinstance(value, str):
            return value
    return None


def _choose(given: object, names: Sequence[str], folder: Path) -> str | None:
    if isinstance(given, str):
        return given
    if isinstance(given, list) and all(isinstance(entry, dict) for entry in given):
        by_name = {entry.get("name"): entry.get("template") for entry in given}
        chosen = next((by_name[name] for name in names if name in by_name), None)
        if chosen is None or isinstance(chosen, str):
            return chosen
    raise CheckpointError(
        f"{folder / 'tokenizer_config.json'}: chat_template is neither text nor a list of named templates."
    )
