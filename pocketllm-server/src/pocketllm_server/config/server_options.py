"""The server's own options: each sets one field of :class:`~pocketllm_server.config.settings.ServerSettings`.

Every option has an environment variable, ``POCKETLLM_`` and its name, and a key of the same name in a config file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
import msgspec

from pocketllm_server.config.key_file import read_key_file
from pocketllm_server.config.settings import (
    LOG_FORMATS,
    LOG_LEVELS,
    REASONING_FIELDS,
    TOOL_CALL_STREAMING,
    ServerSettings,
)

F = TypeVar("F", bound=Callable[..., Any])

_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(ServerSettings)}


class ServerOption(click.Option):
    """An option whose value goes into the field of the same name as its parameter."""


def _origins(ctx: click.Context, param: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Origins, each as itself or in a JSON list, which is how other servers take them."""
    origins: list[str] = []
    for value in values:
        if not value.startswith("["):
            origins.append(value)
            continue
        try:
            listed = json.loads(value)
        except ValueError:
            listed = None
        if not isinstance(listed, list) or not all(isinstance(origin, str) for origin in listed):
            raise click.BadParameter(f"{value!r} is not a JSON list of origins: repeat the option instead.")
        origins += listed
    return tuple(origins)


def _option(flags: str, field: str, help_text: str, **attributes: Any) -> Callable[[F], F]:
    name = flags.split("/", 1)[0].removeprefix("--")
    variable = "POCKETLLM_" + name.replace("-", "_").upper()
    default = _DEFAULTS.get(field)
    if not attributes.get("multiple"):
        attributes.setdefault("default", default)
    if attributes.get("default") in (None, ""):
        attributes["show_default"] = False
    shown: dict[str, Any] = {"show_default": True, "show_envvar": True, **attributes}
    return click.option(flags, field, cls=ServerOption, envvar=variable, help=help_text, **shown)


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    _option("--host", "host", "Address to listen on; 0.0.0.0 is every interface."),
    _option("--port", "port", "Port to listen on; 0 takes a free one.", type=int),
    _option("--uds", "uds", "Listen on a unix socket in place of a port.", metavar="PATH"),
    _option("--root-path", "root_path", "Prefix under which a proxy shows the server, as in /llm.", metavar="PATH"),
    _option("--ssl-certfile", "ssl_certfile", "PEM certificate; with it the server speaks TLS.", metavar="FILE"),
    _option("--ssl-keyfile", "ssl_keyfile", "PEM key, when not in the certificate's file.", metavar="FILE"),
    _option("--ssl-keyfile-password", "ssl_keyfile_password", "Password of the key.", metavar="TEXT"),
    _option("--served-model-name", "served_model_name",
            "Name in responses and in /v1/models.  [default: the model's]", metavar="NAME", default=None),
    _option("--api-key", "api_key", "Ask for this key; repeat it for more (variable: separated by spaces).",
            multiple=True, metavar="KEY"),
    _option("--api-key-file", "api_key_file", "Ask for one of the keys in this file, one a line.", metavar="FILE"),
    _option("--cors-origin", "cors_origins", "Let pages of this origin call the server; repeat it for more, * is all.",
            multiple=True, metavar="ORIGIN", callback=_origins),
    _option("--cors-credentials/--no-cors-credentials", "cors_credentials", "Let those pages send cookies."),
    _option("--max-header-bytes", "max_header_bytes", "Largest headers of a request.", type=int),
    _option("--max-body-bytes", "max_body_bytes", "Largest request body.", type=int),
    _option("--max-json-values", "max_json_values", "Most JSON values and keys of a body, token ids included; "
            "lists and objects may be an eighth of them.", type=int),
    _option("--max-messages", "max_messages", "Most messages of a conversation.", type=int),
    _option("--max-prompt-chars", "max_prompt_chars", "Most characters or token ids of a prompt; 0: no limit.",
            type=int),
    _option("--max-queue", "max_queue", "Requests that may wait; one more is answered 429.  [default: all that "
            "--max-num-requests admits]", type=int),
    _option("--body-timeout", "body_timeout_s", "How long a client may take to send a body.", type=float,
            metavar="SECONDS"),
    _option("--send-timeout", "send_timeout_s", "How long a client may leave a stream unread.", type=float,
            metavar="SECONDS"),
    _option("--keep-alive-interval", "keep_alive_interval_s", "Silence after which a stream gets a comment; 0: never.",
            type=float, metavar="SECONDS"),
    _option("--drain-timeout", "drain_timeout_s", "How long requests may run on after SIGTERM.", type=float,
            metavar="SECONDS"),
    _option("--log-level", "log_level", "Least level that is logged.", type=click.Choice(LOG_LEVELS)),
    _option("--log-format", "log_format", "Lines for a person or JSON for a collector.",
            type=click.Choice(LOG_FORMATS)),
    _option("--access-log/--no-access-log", "access_log", "Log every request: route, status, duration, tokens."),
    _option("--log-prompts/--no-log-prompts", "log_prompts", "Log the bodies of requests, prompts included."),
    _option("--strict-fields/--no-strict-fields", "strict_fields", "Refuse request fields that nobody documents."),
    _option("--tool-call-streaming", "tool_call_streaming", "Stream a tool call once it is certain, or as it comes.",
            type=click.Choice(TOOL_CALL_STREAMING)),
    _option("--reasoning-field", "reasoning_field", "Send reasoning as reasoning_content, or as reasoning too.",
            type=click.Choice(REASONING_FIELDS)),
)  # fmt: skip


def server_options(function: F) -> F:
    """Decorator: add every server option to a command; give its keywords to :func:`settings_from_options`."""
    for decorate in reversed(_OPTIONS):
        function = decorate(function)
    return function


SERVER_FIELDS = frozenset({*_DEFAULTS, "api_key", "api_key_file"}) - {"api_keys"}
"""Names of the keywords that :func:`server_options` gives."""


def settings_from_options(options: Mapping[str, Any], served_model_name: str) -> ServerSettings:
    """The settings, with the model's name where none was given.

    Raises:
        ConfigurationError: a value is out of bounds, or the key file cannot be read.
    """
    values = dict(options)
    keys = tuple(values.pop("api_key"))
    key_file = values.pop("api_key_file")
    if key_file:
        keys += read_key_file(key_file)
    values["served_model_name"] = values["served_model_name"] or served_model_name
    return ServerSettings(api_keys=keys, **values)
