"""OpenVINO GenAI as a worker.

python openvino_worker.py MODEL THREADS
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from worker import serve


class OpenVino:
    def __init__(self, model: str, num_threads: int) -> None:
        start = time.perf_counter()
        import openvino
        import openvino_genai

        self._core: Any = openvino
        self._genai: Any = openvino_genai
        self.version = openvino_genai.__version__
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.enable_prefix_caching = False
        scheduler.max_num_batched_tokens = 1024
        scheduler.cache_size = 1
        self._arguments = (model, num_threads)
        self._pipeline: Any = openvino_genai.LLMPipeline(
            model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=num_threads
        )
        self.load_s = time.perf_counter() - start
        config = openvino_genai.GenerationConfig()
        config.ignore_eos = True
        config.do_sample = False
        config.apply_chat_template = False
        self._config: Any = config

    def prefill(self, prompt: list[int]) -> float:
        return self._generate([prompt], 1)

    def decode(self, prompts: list[list[int]], count: int) -> float:
        # The pipeline tells no moment between: what one token takes is taken off.
        return self._generate(prompts, count + 1) - self._generate(prompts, 1)

    def _generate(self, prompts: list[list[int]], count: int) -> float:
        self._config.max_new_tokens = count
        ids = np.array(prompts, dtype=np.int64)
        tensor = self._core.Tensor
        inputs = self._genai.TokenizedInputs(tensor(ids), tensor(np.ones_like(ids)))
        start = time.perf_counter()
        self._pipeline.generate(inputs, self._config)
        return time.perf_counter() - start

    def logits(self, prompt: list[int], path: str) -> None:
        model, num_threads = self._arguments
        folder = Path(path).parent / "openvino"
        file = folder / "openvino_model.xml"
        if not file.exists():
            # The importer saves beside the model it is given.
            folder.mkdir(exist_ok=True)
            linked = folder / Path(model).name
            linked.symlink_to(model)
            self._genai.LLMPipeline(str(linked), "CPU", enable_save_ov_model=True)
        settings = {"INFERENCE_NUM_THREADS": num_threads}
        core = self._core.Core()
        request = core.compile_model(core.read_model(file), "CPU", settings).create_infer_request()
        ids = np.array([prompt], dtype=np.int64)
        feed = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "position_ids": np.arange(len(prompt))[None],
            "beam_idx": np.zeros(1, np.int32),
        }
        output = request.infer(feed)
        np.save(path, np.array(next(iter(output.values()))[0], dtype=np.float32))


if __name__ == "__main__":
    engine = OpenVino(sys.argv[1], int(sys.argv[2]))
    serve(engine, {"name": f"OpenVINO GenAI {engine.version}", "load_s": engine.load_s})
