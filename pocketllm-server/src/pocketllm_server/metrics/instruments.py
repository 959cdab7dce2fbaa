"""Histograms and counters, and their text in Prometheus' exposition format (version 0.0.4)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence


class Histogram:
    """Counts per bucket; a value belongs to the first bound that is not below it."""

    kind = "histogram"

    def __init__(self, name: str, help_text: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help_text = help_text
        self.bounds = tuple(bounds)
        self.buckets = [0] * (len(bounds) + 1)
        self.sum = 0.0

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def observe(self, value: float, times: int = 1) -> None:
        self.buckets[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def lines(self) -> Iterable[str]:
        yield from head(self.name, self.help_text, self.kind)
        yield from self.samples()

    def samples(self, label: str = "") -> Iterable[str]:
        """The samples alone; ``label`` is one more label pair, as in ``route="/v1/models"``."""
        first = f"{label}," if label else ""
        whole = f"{{{label}}}" if label else ""
        total = 0
        for bound, count in zip(self.bounds, self.buckets, strict=False):
            total += count
            yield f'{self.name}_bucket{{{first}le="{bound:g}"}} {total}'
        total += self.buckets[-1]
        yield f'{self.name}_bucket{{{first}le="+Inf"}} {total}'
        yield f"{self.name}_sum{whole} {self.sum!r}"
        yield f"{self.name}_count{whole} {total}"


class LabelledHistogram:
    """A histogram for each value of one label; the values come from a small closed set."""

    kind = "histogram"

    def __init__(self, name: str, help_text: str, label: str, bounds: Sequence[float]) -> None:
        self.name = name
        self.help_text = help_text
        self.label = label
        self.bounds = bounds
        self.by_value: dict[str, Histogram] = {}

    def observe(self, value: str, measured: float) -> None:
        histogram = self.by_value.get(value)
        if histogram is None:
            histogram = self.by_value[value] = Histogram(self.name, self.help_text, self.bounds)
        histogram.observe(measured)

    def lines(self) -> Iterable[str]:
        yield from head(self.name, self.help_text, self.kind)
        for value, histogram in sorted(self.by_value.items()):
            yield from histogram.samples(f'{self.label}="{escaped(value)}"')


class LabelledCounter:
    """A counter with a fixed set of label names; label values come from small closed sets."""

    kind = "counter"

    def __init__(self, name: str, help_text: str, labels: tuple[str, ...]) -> None:
        self.name = name
        self.help_text = help_text
        self.labels = labels
        self.values: dict[tuple[str, ...], int] = {}

    def add(self, *values: str) -> None:
        self.values[values] = self.values.get(values, 0) + 1

    def lines(self) -> Iterable[str]:
        yield from head(self.name, self.help_text, self.kind)
        yield from self.samples()

    def samples(self, label: str = "") -> Iterable[str]:
        """The samples alone; ``label`` is one more label pair, in front."""
        for values, count in sorted(self.values.items()):
            pairs = [f'{name}="{escaped(value)}"' for name, value in zip(self.labels, values, strict=True)]
            yield f"{self.name}{{{','.join([label, *pairs] if label else pairs)}}} {count}"


def head(name: str, help_text: str, kind: str) -> tuple[str, str]:
    return f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"


def escaped(value: str) -> str:
    """A label's value between its quotes."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
