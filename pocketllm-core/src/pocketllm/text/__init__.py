"""Text, once, for every backend: decoding, stop strings, reasoning, chat templates. Pure and sans-IO.

Importing this package imports no jinja2 and no tokenizers.
"""

from __future__ import annotations

from pocketllm.stages import TextStage
from pocketllm.text.chat_template import ChatTemplate
from pocketllm.text.choice import ChoiceText, TextDelta
from pocketllm.text.detokenizer import Detokenizer, TextTokenizer
from pocketllm.text.fallback_prompt import render_fallback_prompt
from pocketllm.text.reasoning import ReasoningMode, ReasoningSplitter, detect_mode
from pocketllm.text.stop_strings import StopStrings, find_first_stop
from pocketllm.text.template_values import template_messages

__all__ = [
    "ChatTemplate",
    "ChoiceText",
    "Detokenizer",
    "ReasoningMode",
    "ReasoningSplitter",
    "StopStrings",
    "TextDelta",
    "TextStage",
    "TextTokenizer",
    "detect_mode",
    "find_first_stop",
    "render_fallback_prompt",
    "template_messages",
]
