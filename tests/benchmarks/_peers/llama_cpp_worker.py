"""llama.cpp inside a Python process as a worker: load time, memory and logits. Its speed is what llama-bench says.

python llama_cpp_worker.py MODEL THREADS BINDING_FOLDER LIBRARY_FOLDER
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from worker import serve


class LlamaCpp:
    def __init__(self, model: str, num_threads: int) -> None:
        start = time.perf_counter()
        import llama_cpp

        self._model: Any = llama_cpp.Llama(
            model, n_ctx=2048, n_threads=num_threads, n_threads_batch=num_threads, logits_all=False, verbose=False
        )
        self.load_s = time.perf_counter() - start
        self._arguments = (model, num_threads)

    def prefill(self, prompt: list[int]) -> float:
        self._model.reset()
        start = time.perf_counter()
        self._model.eval(prompt)
        return time.perf_counter() - start

    def decode(self, prompts: list[list[int]], count: int) -> float:
        (prompt,) = prompts
        self._model.reset()
        self._model.eval(prompt)
        start = time.perf_counter()
        for _ in range(count):
            self._model.eval([self._model.sample(temp=0.0)])
        return time.perf_counter() - start

    def logits(self, prompt: list[int], path: str) -> None:
        import llama_cpp
        import numpy as np

        model, num_threads = self._arguments
        full = llama_cpp.Llama(model, n_ctx=2048, n_threads=num_threads, logits_all=True, verbose=False)
        full.eval(prompt)
        np.save(path, np.array(full.scores[: len(prompt)], dtype=np.float32))


if __name__ == "__main__":
    file, threads, binding, library = sys.argv[1:]
    sys.path.insert(0, binding)
    os.environ["LLAMA_CPP_LIB_PATH"] = library
    engine = LlamaCpp(file, int(threads))
    serve(engine, {"name": f"llama.cpp of {Path(binding).name}", "load_s": engine.load_s})
