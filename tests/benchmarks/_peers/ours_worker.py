"""Our native engine as a worker.

python ours_worker.py MODEL THREADS
"""

from __future__ import annotations

import sys
import time
from importlib.metadata import version

from worker import serve

if __name__ == "__main__":
    start = time.perf_counter()
    from ours import Ours  # importing is part of loading, as with the peers

    engine = Ours(sys.argv[1], int(sys.argv[2]))
    load_s = time.perf_counter() - start
    serve(engine, {"name": f"pocketllm-cpp {version('pocketllm-cpp')}", "load_s": load_s})
