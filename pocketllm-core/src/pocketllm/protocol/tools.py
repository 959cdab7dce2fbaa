"""Tool definitions and the choice among them, in the one form that chat templates get. Nothing given is mutated."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from pocketllm.errors import ConfigurationError, shown
from pocketllm.prompt_spec import PromptSpec
from pocketllm.protocol.conversation import list_of


def normalize_tools(tools: object) -> list[dict[str, Any]]:
    """Tool definitions as templates want them, copied.

    Raises:
        ConfigurationError: a definition is not ``{"type": "function", "function": {"name": ...}}``.
    """
    normal: list[dict[str, Any]] = []
    for index, tool in enumerate(list_of(tools, "tools", "tools")):
        where = f"tools[{index}]"
        function = tool.get("function") if isinstance(tool, Mapping) else None
        if (
            not isinstance(tool, Mapping)
            or tool.get("type", "function") != "function"
            or not isinstance(function, Mapping)
        ):
            raise ConfigurationError(
                f'{where} is not a function tool: send {{"type": "function", "function": {{...}}}}.', param="tools"
            )
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise ConfigurationError(f"{where}.function.name is missing.", param="tools")
        parameters = function.get("parameters")
        if parameters is not None and not isinstance(parameters, Mapping):
            raise ConfigurationError(f"{where}.function.parameters is not a JSON schema object.", param="tools")
        strict = function.get("strict")
        if strict is not None and not isinstance(strict, bool):
            raise ConfigurationError(f"{where}.function.strict is not true or false.", param="tools")
        copied: dict[str, Any] = copy.deepcopy(dict(tool))
        copied["type"] = "function"
        normal.append(copied)
    return normal


def tool_spec(body: Mapping[str, Any]) -> PromptSpec:
    """What a request says about tools; definitions that the choice "none" keeps out of the prompt are dropped.

    Raises:
        ConfigurationError: a definition or the choice is malformed, or the choice is of a tool that is not there.
    """
    tools = normalize_tools(body["tools"]) if body.get("tools") else []
    choice, tools = _tool_choice(body.get("tool_choice", "auto"), tools)
    parallel = body.get("parallel_tool_calls", True)
    if not isinstance(parallel, bool):
        raise ConfigurationError(
            f"parallel_tool_calls = {shown(parallel)} is not true or false.", param="parallel_tool_calls"
        )
    reach_the_prompt = tools if choice != "none" else []
    return PromptSpec(
        tools=reach_the_prompt or None, tool_choice=choice, parallel_tool_calls=parallel or not reach_the_prompt
    )


def _tool_choice(choice: object, tools: list[dict[str, Any]]) -> tuple[str | dict[str, str], list[dict[str, Any]]]:
    if isinstance(choice, Mapping) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools")
        allowed = allowed if isinstance(allowed, Mapping) else choice
        names = {_chosen_name(item) for item in list_of(allowed.get("tools"), "tool_choice.tools", "tool_choice")}
        _check_known(names, tools)
        mode = allowed.get("mode", "auto")
        if mode not in ("auto", "required"):
            raise ConfigurationError(
                f"tool_choice.mode = {shown(mode)} is unknown: use auto or required.", param="tool_choice"
            )
        return mode, [tool for tool in tools if tool["function"]["name"] in names]
    if isinstance(choice, Mapping):
        name = _chosen_name(choice)
        _check_known({name}, tools)
        return {"name": name}, tools
    if choice not in ("auto", "none", "required"):
        raise ConfigurationError(
            f"tool_choice = {shown(choice)} is unknown: use auto, none, required, or "
            '{"type": "function", "function": {"name": …}}.',
            param="tool_choice",
        )
    if choice == "required" and not tools:
        raise ConfigurationError("tool_choice = 'required' needs tools: send at least one.", param="tool_choice")
    return str(choice), tools


def _chosen_name(choice: object) -> str:
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if isinstance(choice, Mapping) and function is None:
        name = choice.get("name")  # the flat form of OpenAI's newer API
    if not isinstance(choice, Mapping) or choice.get("type", "function") != "function" or not isinstance(name, str):
        raise ConfigurationError(
            f'tool_choice = {shown(choice)} names no function: send {{"type": "function", "function": {{"name": …}}}}.',
            param="tool_choice",
        )
    return name


def _check_known(names: set[str], tools: list[dict[str, Any]]) -> None:
    known = [tool["function"]["name"] for tool in tools]
    for name in sorted(names):
        if name not in known:
            listed = ", ".join(known) or "none"
            raise ConfigurationError(
                f"tool_choice names {shown(name)}, which is not among the tools ({shown(listed, 200)}).",
                param="tool_choice",
            )
