"""The relay knows both scopes, and its tracing prints calls without prompts."""

from __future__ import annotations

import pytest

from pocketllm.engine.call import GenerateCall
from pocketllm.hookspecs import hookimpl
from pocketllm.plugins.hook_calls import ENGINE_HOOKS, HOST_HOOKS, new_relay
from pocketllm.types import GenerationRequest


class _Accepts:
    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> bool:
        return True


class _Raises:
    @hookimpl
    def pocketllm_stats(self) -> None:
        raise RuntimeError("no figures")


def test_no_hook_belongs_to_both_scopes() -> None:
    assert "pocketllm_probe" in HOST_HOOKS
    assert "pocketllm_generate" in ENGINE_HOOKS
    assert not set(HOST_HOOKS) & set(ENGINE_HOOKS)


def test_calls_are_traced_without_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    relay = new_relay("mine", {"POCKETLLM_TRACE_HOOKS": "1"})
    relay.register(_Accepts())
    assert relay.hook.pocketllm_generate(call=GenerateCall(GenerationRequest(prompt="a secret"))) is True
    traced = capsys.readouterr().err
    assert "hook mine: pocketllm_generate(call=GenerateCall(" in traced
    assert "hook mine: pocketllm_generate -> True" in traced
    assert "secret" not in traced


def test_an_exception_is_traced(capsys: pytest.CaptureFixture[str]) -> None:
    relay = new_relay("mine", {"POCKETLLM_TRACE_HOOKS": "yes"})
    relay.register(_Raises())
    with pytest.raises(RuntimeError, match="no figures"):
        relay.hook.pocketllm_stats()
    assert "pocketllm_stats raised RuntimeError" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["", "0", "off"])
def test_no_trace_unless_asked(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    relay = new_relay("mine", {"POCKETLLM_TRACE_HOOKS": value})
    relay.register(_Accepts())
    relay.hook.pocketllm_generate(call=GenerateCall(GenerationRequest(prompt="x")))
    assert capsys.readouterr().err == ""
