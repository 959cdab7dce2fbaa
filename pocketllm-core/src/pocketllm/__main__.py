"""``python -m pocketllm`` is the program ``pocketllm``."""

from __future__ import annotations

import sys

from pocketllm.cli import main

if __name__ == "__main__":
    sys.exit(main())
