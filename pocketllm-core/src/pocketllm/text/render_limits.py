"""What one rendering of a chat template may cost. Checkpoints ship templates, so a template is foreign code.

A :class:`RenderMeter` is made per rendering. Everything in the guarded environment that can multiply work or text pays
it first, so a hostile template gets a :class:`CheckpointError` before memory or time is gone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import NamedTuple

from pocketllm.errors import CheckpointError

MAX_SOURCE_CHARS = 256 * 1024
"""Longest template; real ones stay below a fifth of it."""
MAX_OUTPUT_CHARS = 32 * 1024 * 1024
"""Longest prompt, and longest string or container (text inside counted) on the way to it."""
MAX_TOTAL_CHARS = 4 * MAX_OUTPUT_CHARS
"""All strings built by one rendering together."""
MAX_STEPS = 10_000_000
"""Loop iterations (weighed by the size of the body), calls, operators and visited container items together."""
MAX_SECONDS = 10.0
MAX_WIDTH = 10_000
"""Widest padding or indent, and the most items of a batch."""
MAX_INTEGER_BITS = 4096

_MAX_FORMAT_CHARS = 10_000
_MAX_CONTAINER_ITEMS = 250_000
_STEPS_PER_CLOCK_READ = 512

_PERCENT_WIDTH = re.compile(r"%(?:\([^)]*\))?[-#0 +]*(\*|\d+)?(?:\.(\*|\d+))?")
_NUMBER = re.compile(r"\d+")


class Weight(NamedTuple):
    """Expanded size of a value: shared parts count once per use."""

    num_items: int
    num_chars: int
    depth: int


class RenderMeter:
    """Running costs of one rendering. Every method raises :class:`CheckpointError` when a limit is passed."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._num_chars = 0
        self._next_clock_read = _STEPS_PER_CLOCK_READ
        self._deadline_s = time.monotonic() + MAX_SECONDS

    def step(self, count: int = 1) -> None:
        """Pay for work."""
        self._num_steps += count
        if self._num_steps > MAX_STEPS:
            raise _over(f"{MAX_STEPS} steps of work")
        if self._num_steps >= self._next_clock_read:
            self._next_clock_read = self._num_steps + _STEPS_PER_CLOCK_READ
            if time.monotonic() > self._deadline_s:
                raise _over(f"{MAX_SECONDS:g} s")

    def chars(self, count: int) -> None:
        """Pay for a string of ``count`` characters, before it is built where that is possible."""
        self.step()
        if count > MAX_OUTPUT_CHARS:
            raise _over(f"{MAX_OUTPUT_CHARS} characters in one string")
        self._num_chars += count
        if self._num_chars > MAX_TOTAL_CHARS:
            raise _over(f"{MAX_TOTAL_CHARS} characters in all")

    def weigh(self, value: object) -> Weight:
        """Measure a value, and refuse one too large to be shown, compared or copied."""
        if isinstance(value, str):
            self.step()
            if len(value) > MAX_OUTPUT_CHARS:
                raise _over(f"{MAX_OUTPUT_CHARS} characters in one string")
            return Weight(1, len(value), 1)
        num_items = num_chars = max_depth = 0
        pending: list[tuple[object, int]] = [(value, 1)]
        while pending:
            item, depth = pending.pop()
            num_items += 1
            max_depth = max(max_depth, depth)
            if isinstance(item, str):
                num_chars += len(item)
            elif isinstance(item, int):
                num_chars += item.bit_length() // 3 + 1
            elif isinstance(item, (list, tuple, set, frozenset)):
                self._container(len(item))
                pending.extend([(child, depth + 1) for child in item])
            elif isinstance(item, dict):
                self._container(2 * len(item))
                pending.extend([(key, depth + 1) for key in item])
                pending.extend([(child, depth + 1) for child in item.values()])
            if num_items + len(pending) > _MAX_CONTAINER_ITEMS or num_chars > MAX_OUTPUT_CHARS:
                raise _over(f"{_MAX_CONTAINER_ITEMS} items or {MAX_OUTPUT_CHARS} characters in one value")
        return Weight(num_items, num_chars, max_depth)

    def _container(self, num_items: int) -> None:
        self.step(num_items + 1)
        if num_items > 2 * _MAX_CONTAINER_ITEMS:
            raise _over(f"{_MAX_CONTAINER_ITEMS} items in one value")

    def joined(self, parts: Iterable[object], separator: str = "") -> None:
        """Pay for joining ``parts`` into one string."""
        total = -len(separator)
        for part in parts:
            total += len(separator) + (len(part) if isinstance(part, str) else self.weigh(part).num_chars)
            self.step()
            if total > MAX_OUTPUT_CHARS:
                raise _over(f"{MAX_OUTPUT_CHARS} characters in one string")
        self.chars(max(total, 0))

    def replaced(self, text: str, old: str, new: str) -> None:
        """Pay for ``text.replace(old, new)``."""
        self.chars(max(len(text), len(text) + text.count(old) * (len(new) - len(old))))

    def width(self, value: object) -> None:
        """Check a padding, an indent or a batch size."""
        if isinstance(value, int) and abs(value) > MAX_WIDTH:
            raise _over(f"a width of {MAX_WIDTH}")
        if isinstance(value, str) and len(value) > MAX_WIDTH:
            raise _over(f"a width of {MAX_WIDTH}")

    def percent_format(self, text: str, values: object) -> None:
        """Check and pay for ``text % values``."""
        if len(text) > _MAX_FORMAT_CHARS:
            raise _over(f"{_MAX_FORMAT_CHARS} characters in a format")
        widest = 0
        for match in _PERCENT_WIDTH.finditer(text):
            for width in match.groups():
                if width is None:
                    continue
                if width == "*" or len(width) > 6 or int(width) > MAX_WIDTH:
                    raise _over(f"a width of {MAX_WIDTH}")
                widest = max(widest, int(width))
        # A named value may be used by every conversion.
        self.chars(len(text) + text.count("%") * (widest + self.weigh(values).num_chars))

    def format_spec(self, spec: str) -> None:
        """Check the part after the colon of a ``str.format`` field."""
        if any(len(number) > 6 or int(number) > MAX_WIDTH for number in _NUMBER.findall(spec)):
            raise _over(f"a width of {MAX_WIDTH}")

    def product(self, left: object, right: object) -> None:
        """Check and pay for ``left * right``."""
        if isinstance(left, int) and not isinstance(right, int):
            left, right = right, left
        if not isinstance(right, int):
            return
        if isinstance(left, int):
            if left.bit_length() + right.bit_length() > MAX_INTEGER_BITS:
                raise _over(f"{MAX_INTEGER_BITS} bits in one integer")
        elif isinstance(left, str):
            self.chars(len(left) * max(right, 0))
        elif isinstance(left, (list, tuple)):
            weight = self.weigh(left)
            count = max(right, 0)
            if weight.num_items * count > _MAX_CONTAINER_ITEMS or weight.num_chars * count > MAX_OUTPUT_CHARS:
                raise _over(f"{_MAX_CONTAINER_ITEMS} items or {MAX_OUTPUT_CHARS} characters in one value")
            self.step(weight.num_items * count + 1)

    def power(self, base: object, exponent: object) -> None:
        """Check ``base ** exponent``."""
        if isinstance(base, int) and isinstance(exponent, int) and base.bit_length() * exponent > MAX_INTEGER_BITS:
            raise _over(f"{MAX_INTEGER_BITS} bits in one integer")


def _over(limit: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint's chat template was stopped: it needs more than {limit}. "
        "Shorten the conversation, or check the template.",
        param="messages",
    )
