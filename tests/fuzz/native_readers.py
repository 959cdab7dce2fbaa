"""Parse mutated GGUF, safetensors, index and JSON files with the native engine's readers, built with sanitizers.

    python tests/fuzz/native_readers.py --seconds 60
    python tests/fuzz/native_readers.py --seconds 600 --seed 7

Builds the fuzzers with the CMake preset ``asan-ubsan`` and runs each for the given time. Prints one JSON line for each;
exits with 1 when one ends on an input that it does not parse or refuse, which it leaves where its last line says.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "pocketllm-cpp"
PRESET = "asan-ubsan"
FUZZERS = ("fuzz_gguf", "fuzz_safetensors")

# A bug that a sanitizer only reports would let the run go on, and be lost in its output.
_ENVIRONMENT = {"UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1", "ASAN_OPTIONS": "abort_on_error=0"}


def build(folder: Path) -> list[Path]:
    """Configure and build the fuzzers in ``folder``; the programs' paths. CalledProcessError when that fails."""
    configure = ["cmake", "--preset", PRESET, "-B", str(folder)]
    # Progress goes to stderr, since stdout is for results.
    subprocess.run(configure, cwd=SOURCE, check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", str(folder), "--target", *FUZZERS], check=True, stdout=sys.stderr)
    return [next(path for path in folder.rglob(name) if path.is_file()) for name in FUZZERS]


def run(program: Path, seconds: float, seed: int) -> bool:
    """Run one fuzzer and print its line; True when it found nothing."""
    command = [str(program), "--seconds", str(seconds), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **_ENVIRONMENT})
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        print(json.dumps({"fuzzer": program.name, "failed": done.returncode, "seed": seed}))
        return False
    print(json.dumps({"fuzzer": program.name, **json.loads(done.stdout)}))
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="for each fuzzer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--build-folder", type=Path, default=SOURCE / "build" / PRESET)
    arguments = parser.parse_args()
    clean = [run(program, arguments.seconds, arguments.seed) for program in build(arguments.build_folder.resolve())]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
