"""What the answers of chat and completions share: a list of choices, whole or in frames around one choice each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pocketllm.types import Usage
from pocketllm_server.answers.generation import Generation
from pocketllm_server.answers.reply import Reply
from pocketllm_server.answers.sse import DONE, encode, error_frame
from pocketllm_server.config.settings import ServerSettings


class ChoicesReply(Reply):
    """Base of the two. Everything in a frame that its choice does not change is encoded once."""

    object_name: str

    def __init__(self, generation: Generation, fields: Mapping[str, Any], settings: ServerSettings) -> None:
        super().__init__(generation, fields, settings)
        options = fields.get("stream_options") or {}
        self._with_usage = bool(options.get("include_usage"))
        self._with_usage_so_far = bool(options.get("continuous_usage_stats"))
        self._with_token_ids = bool(fields.get("return_token_ids"))
        self._num_prompt_tokens = sum(stream.num_prompt_tokens for stream in generation.streams)
        self._num_tokens = 0
        shared = {
            "id": generation.response_id,
            "object": self.object_name,
            "created": generation.created,
            "model": generation.model.name,
        }
        self._head = b"data: " + encode(shared)[:-1] + b',"choices":['
        # OpenAI puts a null usage in every frame of a stream whose last one carries the counts.
        self._tail = b'],"usage":null}\n\n' if self._with_usage else b"]}\n\n"
        self._prefixes: dict[int, bytes] = {}
        self._told: set[str] = set()

    def fail(self, error: Mapping[str, object]) -> bytes:
        """Empty when this answer has said the same already, for another of its choices."""
        message = str(error["message"])
        if message in self._told:
            return b""
        self._told.add(message)
        return error_frame(error)

    def end(self, usage: Usage) -> bytes:
        if not self._with_usage:
            return DONE
        return self._head + b'],"usage":' + encode(self._usage_told(usage).as_dict()) + b"}\n\n" + DONE

    def _usage_told(self, usage: Usage) -> Usage:
        """What the client is told was used."""
        return usage

    def _prompt_ids(self, position: int) -> Sequence[int] | None:
        """Token ids of a prompt, where the request asked for them."""
        return self._generation.streams[position].record.request.prompt_tokens if self._with_token_ids else None

    def _frame(
        self,
        index: int,
        key: bytes,
        value: bytes,
        logprobs: bytes,
        finish: str | None,
        extra: bytes = b"",
        shared: bytes = b"",
    ) -> bytes:
        """``extra`` are further members of the choice, ``shared`` of the frame's object, each with its comma."""
        reason = b"null" if finish is None else encode(str(finish))
        tail = self._tail
        if self._with_usage_so_far:
            so_far = Usage(prompt_tokens=self._num_prompt_tokens, completion_tokens=self._num_tokens)
            tail = b'],"usage":' + encode(so_far.as_dict()) + b"}\n\n"
        if shared:
            tail = b"]" + shared + tail[1:]
        prefix = self._prefixes.get(index)
        if prefix is None:
            prefix = self._prefixes[index] = self._head + b'{"index":%d,' % index
        parts = (
            prefix, key, value, b',"logprobs":', logprobs, b',"finish_reason":', reason, extra, b"}", tail,
        )  # fmt: skip
        return b"".join(parts)
