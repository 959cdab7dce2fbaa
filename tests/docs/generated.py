"""The parts of the manual that are made from the code.

Each stands between two markers of its page. ``nox -s docs -- --write`` writes them anew; a test compares them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # started as a script: make the test packages importable
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.docs import field_table, operating_tables, reference
from tests.docs.pages import REPOSITORY


@dataclass(frozen=True)
class Part:
    """``make`` gives the Markdown between the markers of ``name`` in ``docs/page``."""

    page: str
    name: str
    make: Callable[[], str]

    @property
    def path(self) -> Path:
        return REPOSITORY / "docs" / self.page

    def written(self) -> str:
        return self._split()[1].strip()

    def write(self) -> None:
        before, _, after = self._split()
        self.path.write_text(f"{before}\n\n{self.make()}\n\n{after}", encoding="utf-8")

    def _split(self) -> tuple[str, str, str]:
        """The page up to the first marker, what is between the two, and the rest from the second."""
        begin, end = f"<!-- {self.name}: made by `nox -s docs -- --write` -->", f"<!-- /{self.name} -->"
        before, rest = self.path.read_text(encoding="utf-8").split(begin, 1)
        between, after = rest.split(end, 1)
        return before + begin, between, end + after


PARTS: Sequence[Part] = (
    Part("api.md", "fields", field_table.table),
    Part("operating.md", "server options", operating_tables.server_options),
    Part("operating.md", "engine options", operating_tables.engine_options),
    Part("operating.md", "spellings", operating_tables.spellings),
    Part("operating.md", "metrics", operating_tables.metrics),
    Part("operating.md", "bounds", operating_tables.bounds),
    Part("operating.md", "weight sizes", operating_tables.weight_sizes),
    Part("operating.md", "cache sizes", operating_tables.cache_sizes),
    Part("reference.md", "reference", reference.page),
)

if __name__ == "__main__":
    for part in PARTS:
        part.write()
