"""Load random native engines from several threads: submit, cancel, clear, drain and close, under two sanitizers.

    python tests/fuzz/native_engine.py --seconds 60
    python tests/fuzz/native_engine.py --seconds 600 --seed 7
    python tests/fuzz/native_engine.py --preset tsan

Builds the fuzzer with the CMake presets ``asan-ubsan`` and ``tsan``, or the one that is named, and runs each for its
share of the given time. Prints one JSON line for each; exits with 1 when one fails, and its last line on stderr then
names the seed of the round.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "pocketllm-cpp"
PRESETS = ("asan-ubsan", "tsan")
FUZZER = "fuzz_engine"

# A bug that a sanitizer only reports would let the run go on, and be lost in its output.
_ENVIRONMENT = {
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "ASAN_OPTIONS": "abort_on_error=0",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def build(preset: str, folder: Path) -> Path:
    """Configure and build the fuzzer in ``folder``; the program's path. CalledProcessError when that fails."""
    configure = ["cmake", "--preset", preset, "-B", str(folder)]
    # Progress goes to stderr, since stdout is for results.
    subprocess.run(configure, cwd=SOURCE, check=True, stdout=sys.stderr)
    subprocess.run(["cmake", "--build", str(folder), "--target", FUZZER], check=True, stdout=sys.stderr)
    return next(path for path in folder.rglob(FUZZER) if path.is_file())


def run(program: Path, preset: str, seconds: float, seed: int) -> bool:
    """Run the fuzzer and print its line; True when it found nothing."""
    command = [str(program), "--seconds", str(seconds), "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **_ENVIRONMENT})
    sys.stderr.write(done.stderr)
    if done.returncode != 0:
        print(json.dumps({"fuzzer": FUZZER, "preset": preset, "failed": done.returncode, "seed": seed}))
        return False
    print(json.dumps({"fuzzer": FUZZER, "preset": preset, **json.loads(done.stdout)}))
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="for all sanitizers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preset", choices=PRESETS, action="append", help="repeat it for more; both when left out")
    parser.add_argument("--build-folder", type=Path, default=SOURCE / "build", help="one folder per preset goes here")
    arguments = parser.parse_args()
    folder = arguments.build_folder.resolve()
    programs = {preset: build(preset, folder / preset) for preset in arguments.preset or PRESETS}
    seconds = arguments.seconds / len(programs)
    clean = [run(program, preset, seconds, arguments.seed) for preset, program in programs.items()]
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main())
