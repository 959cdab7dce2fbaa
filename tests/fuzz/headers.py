"""Open mutated GGUF and safetensors headers: each opens or ends in one CheckpointError, quickly, in little memory.

    python tests/fuzz/headers.py --seconds 60
    python tests/fuzz/headers.py --count 2000 --seed 7

Prints one JSON line; exits with 1 on the first input that does anything else, leaving it where the line says.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import resource
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# A script's own folder is on the path, the repository is not.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pocketllm.checkpoint import open_checkpoint
from pocketllm.errors import CheckpointError
from tests.checkpoint.sample_files import (
    ARRAY,
    BYTE_LEVEL_KEYS,
    I32,
    LLAMA_KEYS,
    SENTENCEPIECE_KEYS,
    Tensor,
    Typed,
    entry,
    gguf_bytes,
    safetensors_bytes,
)

LIMIT_SECONDS = 1.0
LIMIT_BYTES = 200 << 20
SHARD = "model-00001-of-00001.safetensors"

_NUMBERS = [0, 1, 2, 7, 255, 256, 65535, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40, 1 << 60, 1 << 63, (1 << 64) - 1]
_JSON_PIECES = [
    *[
        b"-1",
        b"1e999",
        b"NaN",
        b"null",
        b"true",
        b"[]",
        b"{}",
        b'""',
        b'"../../x"',
        b"9" * 5000,
        b"1152921504606846976",
    ],
    *[b"[" * 100_000, b'{"a":' * 50_000, b'"\\ud800"', b'"w":{"dtype":"F32","shape":[],"data_offsets":[0,4]},'],
]


def seeds() -> list[tuple[str, bytes]]:
    """File names and honest contents: every value type, nested arrays, quantised tensors and both tokenizers."""
    deep = Typed(ARRAY, (ARRAY, [(ARRAY, [(I32, [1, 2, 3])])]))
    numbers = {f"n.{kind}": Typed(kind, 1) for kind in (0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12)}
    long_text = {"tokenizer.chat_template": "x" * 3000}
    # Little data, so that most changes hit the header.
    tensors = [Tensor("token_embd.weight", (2, 32), 8, 68), Tensor("norm", (4,), 0, 16), Tensor("w", (1, 32), 3, 20)]
    header = {
        "__metadata__": {"format": "pt"},
        "a.weight": entry("F32", (4, 2), 0, 32),
        "b.weight": entry("BF16", (3,), 32, 38),
        "c.scale": entry("F8_E8M0", (), 38, 39),
    }
    index = {"metadata": {"total_size": 39}, "weight_map": dict.fromkeys(["a.weight", "b.weight"], SHARD)}
    config = {"model_type": "llama", "eos_token_id": [1, 2], "text_config": {"hidden_size": 64, "rope_theta": 1e4}}
    return [
        ("model.gguf", gguf_bytes({**LLAMA_KEYS, **BYTE_LEVEL_KEYS, **numbers, "deep": deep}, tensors)),
        ("model.gguf", gguf_bytes({**LLAMA_KEYS, **SENTENCEPIECE_KEYS, **long_text}, tensors, version=2)),
        ("model.gguf", gguf_bytes({"general.alignment": 64, **LLAMA_KEYS}, tensors, alignment=64)),
        (SHARD, safetensors_bytes(header, bytes(39))),
        (SHARD, safetensors_bytes({}, b"")),
        ("model.safetensors.index.json", json.dumps(index).encode()),
        ("config.json", json.dumps(config).encode()),
    ]


def mutate(name: str, data: bytes, rng: random.Random) -> bytes:
    """One to four changes: bits, numbers, cuts, doubled or foreign pieces, truncation."""
    out = bytearray(data)
    is_json = name != "model.gguf"
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        length = rng.randint(1, 64)
        change = rng.randrange(8 if is_json else 7)
        if change == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            out[at : at + 8] = struct.pack("<Q", rng.choice(_NUMBERS))
        elif change == 2:
            out[at : at + 4] = struct.pack("<I", rng.choice(_NUMBERS) & 0xFFFFFFFF)
        elif change == 3:
            del out[at : at + length]
        elif change == 4:
            out[at:at] = out[at : at + length]
        elif change == 5:
            out[at : at + length] = rng.randbytes(length)
        elif change == 6:
            del out[at:]
        elif change == 7:
            _replace_number(out, rng, framed=name == SHARD)
    return bytes(out)


def _replace_number(out: bytearray, rng: random.Random, *, framed: bool) -> None:
    """Put a hostile JSON value where a digit stands; ``framed``: correct the length before it, so that it is read."""
    start = 8 if framed else 0
    digits = [index for index, byte in enumerate(out) if index >= start and 0x30 <= byte <= 0x39]
    at = rng.choice(digits) if digits else len(out)
    out[at : at + 1] = rng.choice(_JSON_PIECES)
    if framed and len(out) >= 8:
        out[:8] = struct.pack("<Q", max(0, out.rfind(b"}") + 1 - 8))


def exercise(folder: Path, name: str, data: bytes, *, with_tokenizer: bool) -> bool:
    """Open a folder in which one file has these contents and ask for everything; True when nothing was wrong."""
    for old in folder.iterdir():
        old.unlink()
    if name != "model.gguf":
        for other, contents in seeds()[:2:-1]:
            if other != "model.safetensors.index.json":
                (folder / other).write_bytes(contents)
    (folder / name).write_bytes(data)
    try:
        checkpoint = open_checkpoint(folder)
    except CheckpointError:
        return False
    questions: list[Callable[[], object]] = [
        lambda: checkpoint.config,
        lambda: checkpoint.tensors,
        lambda: dict(checkpoint.metadata),
        lambda: (checkpoint.weights_bytes, checkpoint.num_parameters, checkpoint.quantization),
        checkpoint.chat_template,
        checkpoint.eos_token_ids,
    ]
    if with_tokenizer and name == "model.gguf":
        questions.append(lambda: checkpoint.tokenizer().decode(checkpoint.tokenizer().encode("ab a<eos>")))
    clean = True
    for question in questions:
        try:
            question()
        except CheckpointError:
            clean = False
    return clean


def peak_bytes() -> int:
    """The most memory this process has held."""
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage: on Linux its figure begins with what the parent held when it forked.
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--count", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    started = time.monotonic()
    tried = opened = 0
    slowest = 0.0
    originals = seeds()
    with tempfile.TemporaryDirectory() as folder:
        while not (tried == arguments.count or (arguments.seconds and time.monotonic() - started > arguments.seconds)):
            name, honest = rng.choice(originals)
            data = mutate(name, honest, rng)
            begun = time.monotonic()
            faulthandler.dump_traceback_later(30, exit=True)
            try:
                opened += exercise(Path(folder), name, data, with_tokenizer=tried % 4 == 0)
            except BaseException as error:
                kept = Path(tempfile.mkdtemp()) / name
                kept.write_bytes(data)
                print(json.dumps({"failed": repr(error), "input": str(kept), "tried": tried, "seed": arguments.seed}))
                raise
            faulthandler.cancel_dump_traceback_later()
            took = time.monotonic() - begun
            slowest = max(slowest, took)
            tried += 1
            if arguments.count is None and arguments.seconds is None and tried == 1000:
                break
    peak = peak_bytes()
    print(json.dumps({"tried": tried, "opened": opened, "slowest_s": round(slowest, 4), "peak_bytes": peak}))
    return int(slowest > LIMIT_SECONDS or peak > LIMIT_BYTES)


if __name__ == "__main__":
    sys.exit(main())
