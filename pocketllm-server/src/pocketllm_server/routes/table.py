"""Every route, and what answers it."""

from __future__ import annotations

from starlette.routing import BaseRoute, Route

from pocketllm_server.answers.chat import ChatReply
from pocketllm_server.answers.completions import CompletionReply
from pocketllm_server.answers.messages import MessagesReply
from pocketllm_server.answers.responses import ResponsesReply
from pocketllm_server.routes.chat import ChatDialect
from pocketllm_server.routes.completions import CompletionsDialect
from pocketllm_server.routes.count_tokens import CountTokens
from pocketllm_server.routes.generate import Generate
from pocketllm_server.routes.messages import CountTokensDialect, MessagesDialect
from pocketllm_server.routes.metrics import MetricsPage
from pocketllm_server.routes.models import ModelList
from pocketllm_server.routes.openapi import OpenAPI
from pocketllm_server.routes.probes import Alive, Health, Ready
from pocketllm_server.routes.requests import CancelRequest
from pocketllm_server.routes.responses import ResponsesDialect
from pocketllm_server.routes.tokenize import ApplyTemplate, Detokenize, Tokenize
from pocketllm_server.service import Service


def routes(service: Service) -> list[BaseRoute]:
    """One route a path; each endpoint is an ASGI application of its own."""
    chat, completions = ChatDialect(service.settings), CompletionsDialect(service.settings)
    responses, messages = ResponsesDialect(service.settings), MessagesDialect(service.settings)
    input_tokens = CountTokens(service, responses, {"object": "response.input_tokens"})
    count_tokens = CountTokens(service, CountTokensDialect(service.settings))
    return [
        Route("/health", Health(service), methods=["GET"]),
        Route("/alive", Alive(service), methods=["GET"]),
        Route("/ready", Ready(service), methods=["GET"]),
        Route("/metrics", MetricsPage(service), methods=["GET"]),
        Route("/v1/models", ModelList(service), methods=["GET"]),
        Route("/v1/chat/completions", Generate(service, chat, ChatReply), methods=["POST"]),
        Route("/v1/completions", Generate(service, completions, CompletionReply), methods=["POST"]),
        Route("/v1/requests/{request_id:path}", CancelRequest(service), methods=["DELETE"]),
        Route("/v1/responses", Generate(service, responses, ResponsesReply), methods=["POST"]),
        Route("/v1/responses/input_tokens", input_tokens, methods=["POST"]),
        Route("/v1/messages", Generate(service, messages, MessagesReply), methods=["POST"]),
        Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
        Route("/tokenize", Tokenize(service), methods=["POST"]),
        Route("/detokenize", Detokenize(service), methods=["POST"]),
        Route("/apply-template", ApplyTemplate(service), methods=["POST"]),
        Route("/openapi.json", OpenAPI(service), methods=["GET"]),
    ]
