"""The Python of the manual runs. A page is one program: its blocks run in order and see each other's names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import REPOSITORY, Block, blocks, pages

PYTHON = [block for page in pages() for block in blocks(page) if block.language == "python"]
RUN = {page: [block for block in PYTHON if block.page == page and not block.compile_only] for page in pages()}

# Every block keeps its place in the page, so that a traceback names the page and its line.
DRIVER = """
import pathlib, sys
page, *lines = sys.argv[1:]
text = pathlib.Path(page).read_text(encoding="utf-8").splitlines()
names = {"__name__": "__main__"}
for span in lines:
    first, last = (int(number) for number in span.split("-"))
    exec(compile("\\n" * (first - 1) + "\\n".join(text[first - 1 : last]) + "\\n", page, "exec"), names)
"""


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: f"{block.page}:{block.line}")
def test_every_code_block_compiles_on_its_own(block: Block) -> None:
    compile(block.code, str(block.page), "exec")


@pytest.mark.parametrize("page", [page for page, found in RUN.items() if found], ids=str)
def test_every_page_runs_from_top_to_bottom(page: Path, smollm2_path: Path, tmp_path: Path) -> None:
    assert smollm2_path.exists(), "the manual's examples open the model called smollm2"
    spans = [f"{block.line}-{block.line + block.code.count(chr(10)) - 1}" for block in RUN[page]]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", DRIVER, str(REPOSITORY / page), *spans],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example that prints nothing shows nothing"


def test_the_front_door_has_a_program_that_runs() -> None:
    assert RUN[Path("README.md")]
