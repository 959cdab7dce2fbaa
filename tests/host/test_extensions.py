"""An extension observes a stream, alters its text, refuses a request, answers from a cache; and one raises everywhere.

The callers are the Python ones here; `tests/server` has the same over HTTP.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Generator
from pathlib import Path

import msgspec
import pytest

from pocketllm.async_llm import AsyncLLM
from pocketllm.engine.call import GenerateCall
from pocketllm.engine_args import EngineArgs
from pocketllm.errors import ConfigurationError, PluginError, UnsupportedFeatureError
from pocketllm.hookspecs import hookimpl
from pocketllm.llm import LLM
from pocketllm.plugins.registry import Registry
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Capabilities, EngineStats, GenerationResult, TokenEvent
from tests.host.manual_engine import DrivenHost, ManualBackend
from tests.host.sample_extensions import Bracket, Cache, Clumsy, Observer, Refuser, Shorter, Shout, Stopper, echo_with

Generate = Callable[..., list[GenerationResult]]


@pytest.fixture(params=["sync", "stream", "async", "async stream"])
def generate(request: pytest.FixtureRequest, toy_path: Path) -> Callable[..., GenerationResult | list[TokenEvent]]:
    """One answer of echo through one kind of caller: (text, finish_reason)."""
    args = EngineArgs(model=str(toy_path), backend="echo", placement="thread")

    def run(registry: Registry, prompt: str, params: SamplingParams | None = None) -> tuple[str, str | None]:
        if request.param == "sync":
            with LLM(args, registry=registry) as llm:
                result = llm.generate(prompt, params)[0]
                return result.text, result.finish_reason
        if request.param == "stream":
            with LLM(args, registry=registry) as llm:
                events = list(llm.generate_stream(prompt, params))
                return "".join(event.text for event in events), events[-1].finish_reason
        import asyncio

        async def call() -> tuple[str, str | None]:
            async with AsyncLLM(args, registry=registry) as llm:
                if request.param == "async":
                    result = (await llm.generate(prompt, params))[0]
                    return result.text, result.finish_reason
                stream: AsyncIterator[TokenEvent] = llm.generate_stream(prompt, params)
                events = [event async for event in stream]
                return "".join(event.text for event in events), events[-1].finish_reason

        return asyncio.run(call())

    return run  # type: ignore[return-value]  # one callable for four callers


class TestEachCaller:
    def test_an_observer_sees_every_token(self, generate: Callable[..., tuple[str, str]]) -> None:
        observer = Observer()
        text, _ = generate(echo_with(observer=observer), "abc")
        assert text == "abc"
        assert len(observer.seen[0]) >= 1

    def test_text_is_altered_in_onion_order(self, generate: Callable[..., tuple[str, str]]) -> None:
        # Registered by name: "a" is innermost, so its stage comes first and the outer one sees its text.
        assert generate(echo_with(a=Bracket(), b=Shout()), "abc")[0] == "A[B]C!"
        assert generate(echo_with(a=Shout(), b=Bracket()), "abc")[0] == "ABC?"

    def test_a_refusal_reaches_the_caller_as_it_is(self, generate: Callable[..., tuple[str, str]]) -> None:
        registry = echo_with(refuser=Refuser())
        assert generate(registry, "abc")[0] == "abc"
        with pytest.raises(UnsupportedFeatureError, match="at this hour") as caught:
            generate(registry, "a long prompt " * 5)
        assert caught.value.param == "prompt"

    def test_a_cache_answers_in_the_engines_place(
        self, generate: Callable[..., tuple[str, str]], toy_path: Path
    ) -> None:
        from pocketllm.checkpoint import open_checkpoint

        tokenizer = open_checkpoint(toy_path).tokenizer()
        three = "\x01\x02\x03"
        assert len(tokenizer.encode(three)) == 3
        registry = echo_with(cache=Cache(tokenizer.encode("from the cache")))
        assert generate(registry, three) == ("from the cache", "stop")
        assert generate(registry, "abc d")[0] == "abc d"

    def test_a_replaced_request_is_the_one_that_runs(self, generate: Callable[..., tuple[str, str]]) -> None:
        assert generate(echo_with(shorter=Shorter()), "\x01\x02\x03\x04") == ("\x01\x02", "length")

    @pytest.mark.parametrize("place", ["before", "after", "token stage", "text stage", "text finish", "factory"])
    def test_one_that_raises_is_named_and_ends_that_stream_alone(
        self, generate: Callable[..., tuple[str, str]], place: str
    ) -> None:
        message, reason = self._outcome(generate, echo_with(clumsy=Clumsy(place)))
        if reason is None:
            assert "'clumsy'" in message
            assert "oops" in message
        else:
            # A stream that has begun cannot raise any more: its last event says so.
            assert place in ("token stage", "text stage", "text finish")
            assert reason == "error"
        assert generate(echo_with(), "abc")[0] == "abc"

    def _outcome(self, generate: Callable[..., tuple[str, str]], registry: Registry) -> tuple[str, str | None]:
        try:
            return generate(registry, "abc")
        except PluginError as error:
            return error.message, None


def test_a_stage_that_raises_leaves_the_other_streams_alone(toy_path: Path, backend: ManualBackend) -> None:
    class OnlyFirst:
        done = False

        @hookimpl
        def pocketllm_generate(self, call: GenerateCall) -> None:
            if not self.done:
                self.done = True
                call.add_text_stage(lambda index: Clumsy.Text("text stage"))

    with DrivenHost(toy_path, backend, extensions={"first": OnlyFirst()}) as driven:
        bad, good = driven.submit(), driven.submit()
        driven.engine.post(bad.handle, *driven.ids("x"))
        driven.engine.post(good.handle, *driven.ids("y"))
        events = bad.take()
        assert events[-1].finish_reason == "error"
        assert "oops" in (events[-1].error or "")
        assert (bad.handle, "plugin") in driven.engine.cancelled
        assert [event.text for event in good.take()] == ["y"]
        with pytest.raises(PluginError, match="'first'"):
            bad.record.result()
        assert driven.host.num_active == 1


def test_a_wrapper_that_raises_after_acceptance_leaves_nothing_running(toy_path: Path, backend: ManualBackend) -> None:
    with DrivenHost(toy_path, backend, extensions={"clumsy": Clumsy("after")}) as driven:
        with pytest.raises(PluginError, match="'clumsy' raised in pocketllm_generate"):
            driven.submit()
        assert driven.host.num_active == 0
        (request,) = driven.engine.requests
        assert driven.engine.cancelled == [(request.choices[0].handle, "plugin")]
        driven.engine.post(request.choices[0].handle, 5)
        driven.drain()


def test_a_token_stage_may_stop_the_choice(toy_path: Path, backend: ManualBackend) -> None:
    with DrivenHost(toy_path, backend, extensions={"stopper": Stopper()}) as driven:
        reader = driven.submit()
        driven.engine.post(reader.handle, *driven.ids("ab"))
        (event,) = reader.take()
        # At the token it asked at, however many arrived together.
        assert (event.text, event.finish_reason) == ("a", "stop")
        assert reader.record.usage.completion_tokens == 1
        assert driven.engine.cancelled


def test_changes_after_the_gate_are_refused(toy_path: Path, backend: ManualBackend) -> None:
    class Late:
        @hookimpl(wrapper=True)
        def pocketllm_generate(self, call: GenerateCall) -> Generator[None, bool, bool]:
            accepted = yield
            call.add_text_stage(lambda index: Shout.Stage())
            return accepted

    with DrivenHost(toy_path, backend, extensions={"late": Late()}) as driven:
        with pytest.raises(PluginError, match="before the wrapper yields"):
            driven.submit()


def test_a_replaced_request_keeps_its_identity() -> None:
    from pocketllm.types import Choice, GenerationRequest

    request = GenerationRequest(prompt_tokens=(1,), choices=(Choice(1, 0),))
    call = GenerateCall(request)
    with pytest.raises(ConfigurationError, match="must keep"):
        call.replace_request(msgspec.structs.replace(request, choices=(Choice(2, 0),)))
    with pytest.raises(PluginError, match="takes no events"):
        call.answer([1])


class TestOtherHooks:
    def test_capabilities_may_be_narrowed(self, toy_path: Path, backend: ManualBackend) -> None:
        class Narrow:
            @hookimpl(wrapper=True)
            def pocketllm_capabilities(self) -> Generator[None, Capabilities, Capabilities]:
                return msgspec.structs.replace((yield), supports_logprobs=False)

        with DrivenHost(toy_path, backend, extensions={"narrow": Narrow()}) as driven:
            with pytest.raises(UnsupportedFeatureError):
                driven.submit(logprobs=True)

    def test_capabilities_may_not_be_widened(self, toy_path: Path, backend: ManualBackend) -> None:
        class Wide:
            @hookimpl(wrapper=True)
            def pocketllm_capabilities(self) -> Generator[None, Capabilities, Capabilities]:
                return msgspec.structs.replace((yield), supports_penalties=True)

        with DrivenHost(toy_path, backend, extensions={"wide": Wide()}, wait=False) as driven:
            with pytest.raises(PluginError, match="supports_penalties"):
                driven.host.wait_ready(20)
            assert driven.engine.closed

    def test_raising_in_capabilities_fails_the_load_by_name(self, toy_path: Path, backend: ManualBackend) -> None:
        class Raising:
            @hookimpl(wrapper=True)
            def pocketllm_capabilities(self) -> Generator[None, Capabilities, Capabilities]:
                yield
                raise ValueError("oops")

        with DrivenHost(toy_path, backend, extensions={"raising": Raising()}, wait=False) as driven:
            with pytest.raises(PluginError, match="'raising' raised in pocketllm_capabilities"):
                driven.host.wait_ready(20)

    def test_raising_in_cancel_stats_and_close_does_not_keep_the_call_from_the_engine(
        self, toy_path: Path, backend: ManualBackend, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Raising:
            @hookimpl
            def pocketllm_cancel(self, handle: int, reason: str) -> None:
                raise ValueError("oops")

            @hookimpl
            def pocketllm_stats(self) -> EngineStats:
                raise ValueError("oops")

            @hookimpl
            def pocketllm_close(self, deadline_s: float) -> None:
                raise ValueError("oops")

        with DrivenHost(toy_path, backend, extensions={"raising": Raising()}) as driven:
            reader = driven.submit()
            assert driven.host.cancel(reader.record.request_id)
            assert reader.take()[-1].finish_reason == "cancelled"
            with pytest.raises(PluginError, match="'raising' raised in pocketllm_stats"):
                driven.host.stats()
        assert driven.engine.closed
        assert caplog.text.count("'raising' raised in") == 2


def test_blame_goes_to_the_plugin_and_not_to_core() -> None:
    from pocketllm.host.extensions import _owners

    owners = _owners([("clumsy", Clumsy("before")), ("module", sys.modules["json"])])
    assert owners["json"] == "module"
    assert "pocketllm" not in owners
