"""The one error tree. Every exception this project raises on purpose is a :class:`PocketLLMError`.

Each class fixes how the error travels: ``status`` is the HTTP status the server answers with and ``code`` the
machine-readable word in the error body. ``param`` names the request field or argument at fault when there is one.
"""

from __future__ import annotations

from typing import ClassVar


class PocketLLMError(Exception):
    """Base of all errors raised by PocketLLM.

    Args:
        message: what went wrong and the next step, for a person.
        param: the field, argument or option at fault, or None.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class ConfigurationError(PocketLLMError, ValueError):
    """An argument, option, environment variable or request value is wrong."""

    status = 400
    code = "invalid_value"


class ContextLengthError(ConfigurationError):
    """A prompt, or a prompt plus an explicit budget, does not fit the engine's context."""

    code = "context_length_exceeded"


class CheckpointError(ConfigurationError):
    """A checkpoint is missing, malformed or contradicts itself."""

    code = "invalid_checkpoint"


class ModelNotFoundError(ConfigurationError):
    """A model name resolves to nothing on this machine."""

    status = 404
    code = "model_not_found"


class UnsupportedFeatureError(PocketLLMError):
    """The value is well formed, but the selected backend does not act on it."""

    status = 400
    code = "unsupported_feature"


class DuplicateRequestError(ConfigurationError):
    """A ``request_id`` is already active."""

    status = 409
    code = "request_id_active"


class PluginError(PocketLLMError):
    """A plugin that was asked for is broken or incompatible, or a plugin raised while serving a request."""

    code = "plugin_error"


class BackendUnavailableError(PocketLLMError):
    """No engine can take the request now: none installed, still loading, draining, failed or closed."""

    status = 503
    code = "backend_unavailable"


class QueueFullError(BackendUnavailableError):
    """The bound on active requests is reached; try again later."""

    status = 429
    code = "queue_full"


class EngineError(PocketLLMError):
    """The engine failed while it worked on an accepted request."""

    code = "engine_error"


class RequestCancelledError(PocketLLMError):
    """The request was cancelled before it produced its answer."""

    status = 499
    code = "request_cancelled"


class SlowReaderError(RequestCancelledError):
    """A reader of a stream fell too far behind and was cut."""

    code = "slow_reader"


class DeadlineExceededError(PocketLLMError):
    """The request's deadline passed before any choice was complete."""

    status = 504
    code = "deadline_exceeded"


MAX_SHOWN_CHARS = 80


def shown(value: object, max_chars: int = MAX_SHOWN_CHARS) -> str:
    """``value`` as JSON for an error message, cut to a readable length."""
    import json

    # Cut before encoding, too: a caller's string may be megabytes long, and a list may hold as many values.
    value = value[:max_chars] if isinstance(value, str) else value
    text = ""
    for part in json.JSONEncoder(ensure_ascii=False, default=repr).iterencode(value):
        text += part
        if len(text) > max_chars:
            break
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def error_named(kind: str, message: str, param: str | None = None) -> PocketLLMError:
    """An error of the class called ``kind``, as it arrives from another process; an unknown name is an EngineError."""
    found = globals().get(kind)
    if isinstance(found, type) and issubclass(found, PocketLLMError):
        return found(message, param=param)
    return EngineError(message, param=param)
