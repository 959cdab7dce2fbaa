"""Renders a conversation with the Jinja template that a checkpoint ships."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from pocketllm.errors import CheckpointError, ConfigurationError, PocketLLMError
from pocketllm.text.render_limits import MAX_OUTPUT_CHARS, MAX_SOURCE_CHARS, RenderMeter
from pocketllm.text.template_values import plain_copy, template_messages

if TYPE_CHECKING:
    from jinja2 import Template

_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now"})
_MAX_DATE_FORMAT_CHARS = 256


class ChatTemplate:
    """One template, compiled at its first use and kept.

    The environment is the one Hugging Face renders with: immutable sandbox, ``trim_blocks`` and ``lstrip_blocks``, loop
    controls, plain ``tojson``, ``raise_exception``, ``strftime_now``, ``{% generation %}`` without effect. Work and
    text are limited (:mod:`pocketllm.text.render_limits`), since a template is foreign code.

    The template writes the beginning-of-sequence token itself where it wants one: encode the result without adding
    special tokens, but parse the special tokens in it.

    May be used from any thread.

    Args:
        source: the template's text.
        bos_token, eos_token: their texts; None leaves the name undefined, which renders as nothing.
        now: clock behind ``strftime_now``.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None = None,
        eos_token: str | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.source = source
        self._tokens = {
            name: text for name, text in (("bos_token", bos_token), ("eos_token", eos_token)) if text is not None
        }
        self._now = now
        self._lock = threading.Lock()
        self._template: Template | None = None
        self._shows_tools = False

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt text.

        Args:
            messages: OpenAI messages; the template gets the copy :func:`template_messages` makes.
            tools: complete ``{"type": "function", "function": {...}}`` objects. None or empty means no tools.
            add_generation_prompt: end with the opening of an assistant turn.
            kwargs: further names the template may read, such as ``enable_thinking``. Plain data.

        Raises:
            ConfigurationError: the template refuses the conversation (its own message) or fails on it, with
                ``param="messages"``; or an argument is not plain data.
            UnsupportedFeatureError: a message has parts that are not text.
            CheckpointError: the template has an error of its own, or needs more work or text than is allowed.
        """
        from pocketllm.text.sandbox import metered

        for name in kwargs:
            if name in _RESERVED:
                raise ConfigurationError(f"{name} cannot be given to the chat template by this way.", param=name)
        template = self._compiled()
        variables: dict[str, Any] = {
            **self._tokens,
            **{name: plain_copy(value, name) for name, value in kwargs.items()},
            "messages": template_messages(messages, developer_as_system="developer" not in self.source),
            "tools": plain_copy(tools, "tools") or None,
            "add_generation_prompt": add_generation_prompt,
        }
        meter = RenderMeter()
        chunks: list[str] = []
        num_chars = 0
        try:
            with metered(meter):
                for chunk in template.generate(variables):
                    meter.step()
                    num_chars += len(chunk)
                    if num_chars > MAX_OUTPUT_CHARS:
                        raise ConfigurationError(
                            f"The rendered prompt passes {MAX_OUTPUT_CHARS} characters; shorten the conversation.",
                            param="messages",
                        )
                    chunks.append(chunk)
        except PocketLLMError:
            raise
        except Exception as error:  # a template is a program: on messages it does not expect it may raise anything
            raise ConfigurationError(
                "The checkpoint's chat template failed on these messages: "
                f"{type(error).__name__}: {_shortened(error)}. Check roles, their order and each message's fields.",
                param="messages",
            ) from error
        return "".join(chunks)

    @property
    def shows_tools(self) -> bool:
        """Whether the template reads ``tools`` anywhere; to one that does not, definitions are lost.

        Raises:
            CheckpointError: as :meth:`render`.
        """
        self._compiled()
        return self._shows_tools

    def check(self) -> None:
        """Compile now; raises :class:`CheckpointError` as :meth:`render` would."""
        self._compiled()

    def _compiled(self) -> Template:
        with self._lock:
            if self._template is None:
                self._template = self._compile()
            return self._template

    def _compile(self) -> Template:
        from jinja2 import nodes

        from pocketllm.text.sandbox import GuardedEnvironment

        if len(self.source) > MAX_SOURCE_CHARS:
            raise CheckpointError(
                f"The checkpoint's chat template has {len(self.source)} characters; the limit is {MAX_SOURCE_CHARS}."
            )
        environment = GuardedEnvironment()
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = self._strftime_now
        try:
            tree = environment.parse(self.source)
            self._shows_tools = any(name.name == "tools" for name in tree.find_all(nodes.Name))
            return environment.from_string(tree)
        except Exception as error:  # parser and compiler meet foreign text: syntax, nesting and encoding errors alike
            line = getattr(error, "lineno", None)
            where = f" at line {line}" if line is not None else ""
            raise CheckpointError(
                f"The checkpoint's chat template cannot be compiled{where}: "
                f"{type(error).__name__}: {_shortened(error)}. "
                "Fix the template, or use a checkpoint without one."
            ) from error

    def _strftime_now(self, date_format: str) -> str:
        if len(date_format) > _MAX_DATE_FORMAT_CHARS:
            raise ValueError(f"strftime_now takes a format of at most {_MAX_DATE_FORMAT_CHARS} characters")
        return self._now().strftime(date_format)


def _raise_exception(message: object) -> NoReturn:
    raise ConfigurationError(_shortened(message), param="messages")


def _shortened(message: object) -> str:
    text = str(message)
    return text if len(text) <= 2000 else text[:2000] + "…"
