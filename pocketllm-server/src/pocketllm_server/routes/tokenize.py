"""``/tokenize``, ``/detokenize``, ``/apply-template``: what the text pipeline would make of a request."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.types import Receive, Scope, Send

from pocketllm.errors import ConfigurationError
from pocketllm.protocol import chat_request
from pocketllm.types import Capabilities, GenerationRequest
from pocketllm_server.models.prompt_tokens import prompt_tokens
from pocketllm_server.routes.prompt_limits import check_prompt_limits
from pocketllm_server.routes.reader import decode_fields, read_with
from pocketllm_server.service import Service
from pocketllm_server.transport.http_io import send_json
from pocketllm_server.wire.ignored_fields import ignored_fields_header
from pocketllm_server.wire.text_bodies import (
    DetokenizeAnswer,
    DetokenizeBody,
    TemplateAnswer,
    TemplateBody,
    TokenizeAnswer,
    TokenizeBody,
    TokenPiece,
)

if TYPE_CHECKING:
    from pocketllm.checkpoint.tokenizer import Tokenizer
    from pocketllm.prompt.builder import PromptBuilder

_CONTENT_ONLY = ("add_special", "parse_special")


class _TextRoute(ABC):
    """Base: reads a body, answers on a thread, since rendering and tokenizing may take long."""

    shape: type[msgspec.Struct]

    def __init__(self, service: Service) -> None:
        self._service = service

    @abstractmethod
    def answer(self, fields: dict[str, Any], prompts: PromptBuilder, capabilities: Capabilities) -> Any:
        """What the endpoint answers, ready to encode. Runs on a thread."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fields, ignored = await read_with(self._service, self._read, scope, receive)
        client = self._service.models.of(fields.get("model")).client
        answer = await asyncio.to_thread(self.answer, fields, client.host.prompts, client.capabilities)
        await send_json(send, 200, answer, ignored_fields_header(ignored))

    def _read(self, data: bytes) -> tuple[dict[str, Any], list[str]]:
        return decode_fields(data, self.shape, self._service.settings)

    def rendering(self, fields: dict[str, Any], capabilities: Capabilities) -> GenerationRequest:
        """The chat request whose prompt is meant."""
        request = chat_request(fields, capabilities=capabilities)
        check_prompt_limits(self._service.settings, [request])
        return request


class Tokenize(_TextRoute):
    """Token ids; with ``with_pieces`` each with its text. ``add_special`` puts a BOS token first where there is one."""

    shape = TokenizeBody

    def answer(self, fields: dict[str, Any], prompts: PromptBuilder, capabilities: Capabilities) -> TokenizeAnswer:
        tokenizer = prompts.tokenizer
        if ("content" in fields) == ("messages" in fields):
            raise ConfigurationError(
                'Send either "content", which is text, or "messages", to which the chat template is applied.',
                param="content",
            )
        if "messages" in fields:
            for name in _CONTENT_ONLY:
                if name in fields:
                    raise ConfigurationError(
                        f'"{name}" goes with "content": a chat template decides by itself. Remove it.', param=name
                    )
            ids = list(prompt_tokens(prompts, self.rendering(fields, capabilities), capabilities))
        else:
            add_bos = fields.get("add_special", False) and tokenizer.bos_token_id is not None and tokenizer.add_bos
            parse_special = fields.get("parse_special", True)
            ids = tokenizer.encode(fields["content"], add_bos=add_bos, parse_special=parse_special)
        shown: list[int | TokenPiece] = []
        shown += [_piece(tokenizer, token) for token in ids] if fields.get("with_pieces") else ids
        return TokenizeAnswer(shown, len(ids), capabilities.max_model_len)


class Detokenize(_TextRoute):
    """The text of token ids, control tokens included unless ``skip_special``; bytes that are not text become U+FFFD."""

    shape = DetokenizeBody

    def answer(self, fields: dict[str, Any], prompts: PromptBuilder, capabilities: Capabilities) -> DetokenizeAnswer:
        tokenizer = prompts.tokenizer
        for token in fields["tokens"]:
            if token >= tokenizer.vocab_size:
                raise ConfigurationError(
                    f'"tokens" holds {token}, which is outside this model\'s vocabulary of {tokenizer.vocab_size} '
                    "tokens.",
                    param="tokens",
                )
        return DetokenizeAnswer(tokenizer.decode(fields["tokens"], skip_special=fields.get("skip_special", False)))


class ApplyTemplate(_TextRoute):
    """The prompt text that the chat template makes of a conversation."""

    shape = TemplateBody

    def answer(self, fields: dict[str, Any], prompts: PromptBuilder, capabilities: Capabilities) -> TemplateAnswer:
        return TemplateAnswer(prompts.render(self.rendering(fields, capabilities))[0])


def _piece(tokenizer: Tokenizer, token: int) -> TokenPiece:
    raw = tokenizer.token_bytes(token)
    try:
        return TokenPiece(token, raw.decode())
    except UnicodeDecodeError:
        return TokenPiece(token, list(raw))
