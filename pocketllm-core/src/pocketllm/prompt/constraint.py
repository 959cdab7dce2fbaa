"""What restricts an answer: a response format, a given structure, a tool choice. Checked before the engine sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pocketllm.errors import UnsupportedFeatureError
from pocketllm.prompt_spec import PromptSpec
from pocketllm.text.reasoning import END_TAG, START_TAG, ReasoningMode
from pocketllm.text.tool_calls.base import EnforcedSyntax, ToolCallSyntax
from pocketllm.types import Constraint, GenerationRequest

if TYPE_CHECKING:
    from pocketllm.checkpoint import Tokenizer


def wants_constraint(request: GenerationRequest) -> bool:
    """Whether preparing the request compiles a grammar, which takes up to tens of milliseconds."""
    kind = (request.sampling_params.response_format or {}).get("type", "text")
    return request.constraint is not None or kind != "text"


def final_constraint(
    request: GenerationRequest,
    spec: PromptSpec,
    mode: ReasoningMode,
    syntax: ToolCallSyntax | None,
    tokenizer: Tokenizer,
) -> Constraint | None:
    """The one constraint of a request, compiled once to find its faults; reasoning in front of the answer stays free.

    Raises:
        ConfigurationError: it cannot be enforced; names the field and, for a schema, the JSON pointer.
        UnsupportedFeatureError: a tool choice, and nobody knows how this checkpoint writes calls.
    """
    from pocketllm.structured import compile_constraint

    param = None
    constraint = request.constraint or _response_format(request.sampling_params.response_format)
    if constraint is None:
        constraint = _tool_choice(spec, syntax)
        param = "tools"
    if constraint is None:
        return None
    if mode is not ReasoningMode.NONE:
        opening = START_TAG if mode is ReasoningMode.AUTO else ""
        constraint = msgspec.structs.replace(constraint, after=END_TAG, opening=opening)
    compile_constraint(constraint, tokenizer, param=param)
    return constraint


def _response_format(response_format: dict[str, Any] | None) -> Constraint | None:
    """OpenAI's ``response_format``, whose shape the protocol layer has checked."""
    kind = (response_format or {}).get("type", "text")
    if kind == "json_object":
        return Constraint(kind="json_object", text="")
    if response_format is not None and kind == "json_schema":
        schema = response_format.get("json_schema", {}).get("schema", {})
        return Constraint(kind="json_schema", text=msgspec.json.encode(schema).decode())
    return None


def _tool_choice(spec: PromptSpec, syntax: ToolCallSyntax | None) -> Constraint | None:
    tools, choice, parallel = spec.tools or [], spec.tool_choice, spec.parallel_tool_calls
    is_strict = any(tool["function"].get("strict") for tool in tools)
    if choice == "none" or not tools or (choice == "auto" and parallel and not is_strict):
        return None
    if syntax is None:
        raise UnsupportedFeatureError(
            "Tool calls of this checkpoint cannot be enforced: its chat template writes them in no syntax known here. "
            'Send "tool_choice" as "auto" and leave out strict and parallel_tool_calls.',
            param="tool_choice",
        )
    mode, name = ("named", choice["name"]) if isinstance(choice, dict) else (choice, None)
    if isinstance(syntax, EnforcedSyntax):
        return syntax.call_constraint(tools, mode=mode, name=name, parallel=parallel)
    from pocketllm.structured import tool_call_constraint

    return tool_call_constraint(syntax.name, tools, mode=mode, name=name, parallel=parallel)
