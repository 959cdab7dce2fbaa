"""Structured output: constraints as text, compiled for a vocabulary, followed beside a sampler.

Core compiles a request's constraint once to validate it; the engine compiles it again where it samples and asks a
:class:`TokenMatcher` for the tokens that may come next. The grammar engine is ``llguidance``, imported on first use.
"""

from __future__ import annotations

from pocketllm.structured.after_text import AfterText, TokenMatcher
from pocketllm.structured.compiled import CompiledConstraint, compile_constraint
from pocketllm.structured.kinds import KINDS
from pocketllm.structured.matcher import Matcher
from pocketllm.structured.refusal import SchemaRefusedError
from pocketllm.structured.tool_call_grammars import TOOL_CALL_SYNTAXES, ToolCallMode, tool_call_constraint

__all__ = [
    "KINDS",
    "TOOL_CALL_SYNTAXES",
    "AfterText",
    "CompiledConstraint",
    "Matcher",
    "SchemaRefusedError",
    "TokenMatcher",
    "ToolCallMode",
    "compile_constraint",
    "tool_call_constraint",
]
