"""The host's own call object: where a request becomes final and its choices become ready for events."""

from __future__ import annotations

from collections.abc import Callable

from pocketllm.engine.call import GenerateCall
from pocketllm.host.pump import ChoiceStream
from pocketllm.host.record import RequestRecord
from pocketllm.prompt.builder import Prepared, PromptBuilder
from pocketllm.types import StepBatch


class StagedCall(GenerateCall):
    """The host's call. Sealing makes the request final and registers its choices, with their stages, for events.

    Args:
        emit: takes events that an extension posts in the engine's place.
        register: takes the choices' streams when the call is sealed; from then on their events are routed.
    """

    def __init__(
        self,
        prepared: Prepared,
        record: RequestRecord,
        prompts: PromptBuilder,
        *,
        emit: Callable[[StepBatch], None],
        register: Callable[[list[ChoiceStream]], None],
    ) -> None:
        super().__init__(prepared.request, emit)
        self._prepared = prepared
        self._record = record
        self._prompts = prompts
        self._register = register

    def seal(self) -> None:
        if not self._sealed:
            super().seal()
            self._register(self._streams())

    def _streams(self) -> list[ChoiceStream]:
        from pocketllm.text.choice import ChoiceText

        record, tokenizer = self._record, self._prompts.tokenizer
        record.take_request(self.request)
        new_call_stream = self._prepared.new_call_stream
        streams = []
        for index in range(len(self.request.choices)):
            # Wrappers are entered outermost first, and text travels outwards.
            text = ChoiceText(
                tokenizer,
                stop=self._prepared.stops,
                reasoning_mode=self._prepared.reasoning_mode,
                kept_ids=self._prompts.kept_ids,
                tool_calls=None if new_call_stream is None else new_call_stream(),
                stages=[factory(index) for factory in reversed(self.text_stages)],
            )
            token_stages = [factory(index) for factory in reversed(self.token_stages)]
            streams.append(ChoiceStream(record, index, text, tokenizer, token_stages))
        return streams
