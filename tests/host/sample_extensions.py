"""Extensions of every kind: one that observes, that alters, that refuses, that answers, that replaces, that raises."""

from __future__ import annotations

from collections.abc import Generator

import msgspec

from pocketllm.engine.call import GenerateCall
from pocketllm.errors import UnsupportedFeatureError
from pocketllm.hookspecs import hookimpl
from pocketllm.plugins.registry import Registry


class Observer:
    """Sees every token, changes nothing."""

    def __init__(self) -> None:
        self.seen: dict[int, list[int]] = {}

    @hookimpl(wrapper=True)
    def pocketllm_generate(self, call: GenerateCall) -> Generator[None, bool, bool]:
        call.add_token_stage(lambda index: self.Stage(self.seen.setdefault(index, [])))
        return (yield)

    class Stage:
        def __init__(self, seen: list[int]) -> None:
            self._seen = seen

        def feed(self, token_id: int) -> bool:
            self._seen.append(token_id)
            return False


class Shout:
    """Alters the text of the answer, holding the last character back to show that a stage may."""

    @hookimpl(wrapper=True)
    def pocketllm_generate(self, call: GenerateCall) -> Generator[None, bool, bool]:
        call.add_text_stage(lambda index: self.Stage())
        return (yield)

    class Stage:
        def __init__(self) -> None:
            self._held = ""

        def feed(self, text: str) -> str:
            text = self._held + text.upper()
            self._held = text[-1:]
            return text[:-1]

        def finish(self) -> str:
            return self._held + "!"


class Bracket:
    """A second altering stage, to show the order."""

    @hookimpl(wrapper=True)
    def pocketllm_generate(self, call: GenerateCall) -> Generator[None, bool, bool]:
        call.add_text_stage(lambda index: self.Stage())
        return (yield)

    class Stage:
        def feed(self, text: str) -> str:
            return text.replace("!", "?").replace("b", "[b]")

        def finish(self) -> str:
            return ""


class Refuser:
    @hookimpl(wrapper=True)
    def pocketllm_generate(self, call: GenerateCall) -> Generator[None, bool, bool]:
        if call.request.metadata.get("thinking_mode") == "thinking" or len(call.request.prompt_tokens) > 20:
            raise UnsupportedFeatureError("No long prompts at this hour.", param="prompt")
        return (yield)


class Cache:
    """A plain implementation that answers what it knows."""

    def __init__(self, answer: list[int]) -> None:
        self.answer = answer

    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> bool | None:
        return call.answer(self.answer) if len(call.request.prompt_tokens) == 3 else None


class Shorter:
    """Replaces the request by one with a smaller budget."""

    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> None:
        params = msgspec.structs.replace(call.request.sampling_params, max_tokens=2)
        call.replace_request(msgspec.structs.replace(call.request, sampling_params=params))


class Clumsy:
    """Raises in one place of the generate hook or of a stage."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.only_handles: set[int] | None = None

    @hookimpl(wrapper=True)
    def pocketllm_generate(self, call: GenerateCall) -> Generator[None, bool, bool]:
        if self.place == "before":
            raise ValueError("oops")
        if self.place == "factory":
            call.add_text_stage(self._raise)
        if self.place in ("text stage", "text finish"):
            call.add_text_stage(lambda index: self.Text(self.place))
        if self.place == "token stage":
            call.add_token_stage(lambda index: self.Token())
        accepted = yield
        if self.place == "after":
            raise ValueError("oops")
        return accepted

    def _raise(self, index: int) -> Text:
        raise ValueError("oops")

    class Text:
        def __init__(self, place: str) -> None:
            self._place = place

        def feed(self, text: str) -> str:
            if self._place == "text stage":
                raise ValueError("oops")
            return text

        def finish(self) -> str:
            if self._place == "text finish":
                raise ValueError("oops")
            return ""

    class Token:
        def feed(self, token_id: int) -> bool:
            raise ValueError("oops")


class Stopper:
    @hookimpl
    def pocketllm_generate(self, call: GenerateCall) -> None:
        call.add_token_stage(lambda index: self)

    def feed(self, token_id: int) -> bool:
        return True


def echo_with(**extensions: object) -> Registry:
    """The echo backend and these extensions, by name."""
    import pocketllm_echo

    return Registry.of_objects(backends={"echo": pocketllm_echo}, extensions=extensions)
