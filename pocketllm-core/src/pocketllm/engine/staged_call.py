"""The host's own call object: where a request becomes final and its choices become ready for events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketllm.engine.call import GenerateCall
from pocketllm.engine.prompt import Prepared
from pocketllm.engine.pump import ChoiceStream
from pocketllm.engine.record import RequestRecord

if TYPE_CHECKING:
    from pocketllm.engine.host import EngineHost
    from pocketllm.engine.opening import OpenEngine


class StagedCall(GenerateCall):
    """The host's call. Sealing makes the request final and registers its choices, with their stages, for events."""

    def __init__(self, host: EngineHost, opened: OpenEngine, record: RequestRecord, prepared: Prepared) -> None:
        super().__init__(prepared.request, host.post_answer)
        self._host = host
        self._opened = opened
        self._record = record
        self._prepared = prepared

    def seal(self) -> None:
        if not self._sealed:
            super().seal()
            self._host.register(self._opened, self._record, self._streams())

    def _streams(self) -> list[ChoiceStream]:
        from pocketllm.text.choice import ChoiceText

        record, tokenizer = self._record, self._opened.prompts.tokenizer
        record.take_request(self.request)
        new_call_stream = self._prepared.new_call_stream
        streams = []
        for index in range(len(self.request.choices)):
            # Wrappers are entered outermost first, and text travels outwards.
            text = ChoiceText(
                tokenizer,
                stop=self._prepared.stops,
                reasoning_mode=self._prepared.reasoning_mode,
                kept_ids=self._opened.prompts.kept_ids,
                tool_calls=None if new_call_stream is None else new_call_stream(),
                stages=[factory(index) for factory in reversed(self.text_stages)],
            )
            token_stages = [factory(index) for factory in reversed(self.token_stages)]
            streams.append(ChoiceStream(record, index, text, tokenizer, token_stages))
        return streams
