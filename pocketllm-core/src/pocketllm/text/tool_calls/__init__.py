"""Tool calls: finding them in what a model writes, one module per syntax.

The checkpoint's own chat template says which syntax it is (:func:`recognise`), so nobody has to choose one.
"""

from __future__ import annotations

from collections.abc import Iterable

from pocketllm.text.tool_calls.base import (
    CallDelta,
    EnforcedSyntax,
    ParsedCall,
    ParsedCalls,
    ToolCallStream,
    ToolCallSyntax,
    ToolDelta,
    Tools,
    new_call_id,
)
from pocketllm.text.tool_calls.deepseek_dsml import DeepSeekDsml
from pocketllm.text.tool_calls.hermes_json import HermesJson
from pocketllm.text.tool_calls.llama3_json import Llama3Json
from pocketllm.text.tool_calls.qwen_xml import QwenXml

BUILT_IN: tuple[ToolCallSyntax, ...] = (DeepSeekDsml(), QwenXml(), HermesJson(), Llama3Json())


def recognise(
    template_source: str | None, model_type: str, extra: Iterable[ToolCallSyntax] = ()
) -> ToolCallSyntax | None:
    """The syntax of a checkpoint: the first of ``extra``, then of the built-in ones, that knows its template.

    Args:
        template_source: the chat template used with tools, or None if the checkpoint has none.
        model_type: Hugging Face's name of the family.
        extra: syntaxes that plugins bring.

    Returns:
        None when nobody knows it: calls then stay in the content.
    """
    for syntax in (*extra, *BUILT_IN):
        if syntax.recognises(template_source, model_type):
            return syntax
    return None


__all__ = [
    "BUILT_IN",
    "CallDelta",
    "DeepSeekDsml",
    "EnforcedSyntax",
    "HermesJson",
    "Llama3Json",
    "ParsedCall",
    "ParsedCalls",
    "QwenXml",
    "ToolCallStream",
    "ToolCallSyntax",
    "ToolDelta",
    "Tools",
    "new_call_id",
    "recognise",
]
