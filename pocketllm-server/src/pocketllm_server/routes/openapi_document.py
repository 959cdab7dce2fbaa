"""The OpenAPI document: schemas from the wire Structs, meaning from the field tables, routes from one list here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from pocketllm.fields import CHAT, COMPLETIONS, NEVER, FieldRow, rows
from pocketllm_server.layers.auth import OPEN_PATHS
from pocketllm_server.wire import messages_request, responses_request
from pocketllm_server.wire.completions_answer import ChatCompletion, Completion
from pocketllm_server.wire.completions_request import ChatBody, CompletionBody
from pocketllm_server.wire.messages_answer import AnthropicAnswer, AnthropicError
from pocketllm_server.wire.messages_request import CountTokensBody, MessagesBody
from pocketllm_server.wire.responses_answer import ResponseObject
from pocketllm_server.wire.responses_request import ResponsesBody
from pocketllm_server.wire.text_bodies import (
    DetokenizeAnswer,
    DetokenizeBody,
    TemplateAnswer,
    TemplateBody,
    TokenizeAnswer,
    TokenizeBody,
)


class ErrorObject(msgspec.Struct):
    """What was wrong, and which field if one was."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """Every error but those of Anthropic's endpoints."""

    error: ErrorObject


class ModelCard(msgspec.Struct, omit_defaults=True):
    """A model; what it can do is told once it is loaded."""

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int | None = None
    capabilities: dict[str, Any] | None = None
    supported_fields: dict[str, list[str]] | None = None


class ModelList(msgspec.Struct):
    """All models of the server."""

    object: str
    data: list[ModelCard]


class InputTokens(msgspec.Struct):
    """How many tokens the prompt of a Responses body has."""

    object: str
    input_tokens: int


class AnthropicTokens(msgspec.Struct):
    """How many tokens the prompt of a Messages body has."""

    input_tokens: int


class CancelledRequest(msgspec.Struct):
    """The request that was cancelled."""

    id: str
    object: str
    cancelled: bool


class ProbeAnswer(msgspec.Struct):
    """A probe's word; there are more keys (docs/operating.md)."""

    status: str


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One method of one path. ``answer`` is a Struct, or a media type for what is not JSON."""

    path: str
    summary: str
    answer: type[msgspec.Struct] | str
    method: str = "post"
    body: type[msgspec.Struct] | None = None
    streams: bool = False
    statuses: tuple[int, ...] = ()
    error: type[msgspec.Struct] = ErrorBody
    failing: type[msgspec.Struct] | None = None
    """What a probe answers with 503, where it is not the error body."""
    tag: str = "generation"


_BODY = (400, 401, 408, 413, 415, 429, 431, 500, 503)
_GENERATE = (*_BODY, 409, 499, 504)
_PLAIN = (401, 431, 500)

OPERATIONS = (
    Operation(
        path="/v1/chat/completions", summary="Answer a conversation.", body=ChatBody, answer=ChatCompletion,
        streams=True, statuses=_GENERATE,
    ),
    Operation(
        path="/v1/completions", summary="Continue prompts.", body=CompletionBody, answer=Completion, streams=True,
        statuses=_GENERATE,
    ),
    Operation(
        path="/v1/responses", summary="OpenAI's Responses API; nothing is stored.", body=ResponsesBody,
        answer=ResponseObject, streams=True, statuses=_GENERATE,
    ),
    Operation(
        path="/v1/responses/input_tokens", summary="Count the tokens of a response's input.", body=ResponsesBody,
        answer=InputTokens, statuses=_BODY,
    ),
    Operation(
        path="/v1/messages", summary="Anthropic's Messages API.", body=MessagesBody, answer=AnthropicAnswer,
        streams=True, statuses=_GENERATE, error=AnthropicError,
    ),
    Operation(
        path="/v1/messages/count_tokens", summary="Count the tokens of a message's input.", body=CountTokensBody,
        answer=AnthropicTokens, statuses=_BODY, error=AnthropicError,
    ),
    Operation(path="/tokenize", summary="Token ids of text or of a conversation.", body=TokenizeBody,
              answer=TokenizeAnswer, statuses=_BODY, tag="text"),
    Operation(path="/detokenize", summary="Text of token ids.", body=DetokenizeBody, answer=DetokenizeAnswer,
              statuses=_BODY, tag="text"),
    Operation(path="/apply-template", summary="The prompt that the chat template makes.", body=TemplateBody,
              answer=TemplateAnswer, statuses=_BODY, tag="text"),
    Operation(path="/v1/requests/{request_id}", method="delete", summary="Cancel an active request, once.",
              answer=CancelledRequest, statuses=(404, *_PLAIN)),
    Operation(path="/v1/models", method="get", summary="The served model, what its engine does, and which fields.",
              answer=ModelList, statuses=_PLAIN, tag="server"),
    Operation(path="/health", method="get", summary="State of the engine's slot.", answer=ProbeAnswer,
              statuses=(431, 500), failing=ProbeAnswer, tag="server"),
    Operation(path="/alive", method="get", summary="The process answers.", answer=ProbeAnswer, statuses=(431, 500),
              tag="server"),
    Operation(path="/ready", method="get", summary="A forward pass has run.", answer=ProbeAnswer, statuses=(431, 500),
              failing=ProbeAnswer, tag="server"),
    Operation(path="/metrics", method="get", summary="Prometheus metrics.", answer="text/plain", statuses=_PLAIN,
              tag="server"),
    Operation(path="/openapi.json", method="get", summary="This document.", answer="application/json",
              statuses=_PLAIN, tag="server"),
)  # fmt: skip

TABLES: Mapping[type[msgspec.Struct], Iterable[FieldRow]] = {
    ChatBody: rows(CHAT).values(),
    CompletionBody: rows(COMPLETIONS).values(),
    ResponsesBody: responses_request.ROWS,
    MessagesBody: messages_request.ROWS,
    CountTokensBody: messages_request.SHARED_ROWS,
}
"""Policy of each request body's fields."""

_DESCRIPTIONS = {
    400: "A value is malformed, out of bounds, or asks for what this server does not do; the error names the field.",
    401: "An API key is asked for and the request carries none that is known.",
    404: "Unknown, ended or cancelled already.",
    408: "The body did not arrive in time.",
    409: "The request id is active.",
    413: "The body is larger than this server takes.",
    415: "The body is not declared as JSON.",
    429: "All places are taken; Retry-After says when to try again.",
    431: "The headers are larger than this server takes.",
    499: "The request was cancelled.",
    500: "The engine or the server failed.",
    503: "No engine is ready, or the server is shutting down.",
    504: "The deadline passed before a choice was complete.",
}
_EVENT = {
    "description": "One server-sent event. data is JSON, or [DONE] at the end of chat and completions.",
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}


def build_document(root_path: str = "") -> dict[str, Any]:
    """The whole document, as plain data. ``root_path`` is the prefix under which a proxy shows the server."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "PocketLLM",
            "version": _version(),
            "description": "One model behind the endpoints that OpenAI's and Anthropic's clients speak. Fields that no "
            "schema names are accepted and named in the response header X-PocketLLM-Ignored-Fields.",
        },
        "servers": [{"url": root_path or "/"}],
        "security": [{}, {"bearer": []}, {"key": []}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.method + operation.path.replace("/", "_").replace("{", "").replace("}", ""),
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses(operation),
    }
    if operation.path in OPEN_PATHS:
        described["security"] = []
    if "{request_id}" in operation.path:
        described["parameters"] = [
            {
                "name": "request_id",
                "in": "path",
                "required": True,
                "description": "The response's id or the request's own.",
                "schema": {"type": "string", "minLength": 1},
            }
        ]
    if operation.body is not None:
        described["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _reference(operation.body)}},
        }
    return described


def _responses(operation: Operation) -> dict[str, Any]:
    answer = operation.answer
    if isinstance(answer, str):
        content: dict[str, Any] = {answer: {"schema": {"type": "object" if answer.endswith("json") else "string"}}}
    else:
        content = {"application/json": {"schema": _reference(answer)}}
    if operation.streams:
        content["text/event-stream"] = {"schema": _EVENT}
    ok: dict[str, Any] = {"description": operation.summary, "content": content, "headers": _headers("X-Request-Id")}
    if operation.body is not None:
        ok["headers"] |= _headers("X-PocketLLM-Ignored-Fields")
    responses = {"200": ok}
    for status in sorted(operation.statuses):
        headers = _headers("X-Request-Id")
        if status in (429, 503):
            headers |= _headers("Retry-After")
        responses[str(status)] = {
            "description": _DESCRIPTIONS[status],
            "content": {"application/json": {"schema": _reference(operation.error)}},
            "headers": headers,
        }
    if operation.failing is not None:
        responses["503"] = {
            "description": "Not now; the body says why.",
            "content": {"application/json": {"schema": _reference(operation.failing)}},
        }
    return responses


def _headers(name: str) -> dict[str, Any]:
    return {name: {"schema": {"type": "string"}}}


def _reference(shape: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{shape.__name__}"}


def _schemas() -> dict[str, Any]:
    shapes: list[type[msgspec.Struct]] = []
    for operation in OPERATIONS:
        for shape in (operation.body, operation.answer, operation.error, operation.failing):
            if isinstance(shape, type) and shape not in shapes:
                shapes.append(shape)
    _, schemas = msgspec.json.schema_components(shapes, ref_template="#/components/schemas/{name}")
    for shape, table in TABLES.items():
        _explain(schemas[shape.__name__]["properties"], tuple(table))
    return {name: _in_json_schema(schema) for name, schema in schemas.items()}


def _in_json_schema(value: Any) -> Any:
    """The same with patterns in ECMAScript's dialect, which has no ``\\Z``."""
    if isinstance(value, dict):
        return {
            key: each.replace("\\Z", "$") if key == "pattern" and isinstance(each, str) else _in_json_schema(each)
            for key, each in value.items()
        }
    return [_in_json_schema(each) for each in value] if isinstance(value, list) else value


def _explain(properties: dict[str, Any], table: Sequence[FieldRow]) -> None:
    for row in table:
        if row.name not in properties:
            continue  # a part of a field, as in "text.verbosity": its own schema has no room for this endpoint's policy
        schema = properties[row.name]
        schema["description"] = row.doc
        if row.needs == NEVER:
            schema["x-pocketllm-accepted"] = list(row.neutral)
        elif row.needs:
            schema["x-pocketllm-needs"] = row.needs
        if row.inert:
            schema["x-pocketllm-inert"] = True


def _version() -> str:
    try:
        return version("pocketllm-server")
    except PackageNotFoundError:  # run from a source tree that nobody installed
        return "0"
