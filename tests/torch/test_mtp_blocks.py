"""Blocks that draft tokens (MTP) in a GGUF file are left out where the file declares them, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from pocketllm.errors import CheckpointError
from tests.cpp.tiny_checkpoints import TinyCheckpoint, write_gguf_twin, write_tiny
from tests.torch.driving import Driver
from tests.torch.test_families import GENERATED, check
from tests.torch.tiny_llama import random_ids

NEXTN = ("eh_proj", "enorm", "hnorm", "shared_head_norm")


@pytest.fixture(scope="module", params=["qwen35", "qwen35moe"])
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    """Four layers, the last with full attention, as an MTP block has."""
    return twin(request.param, tmp_path_factory.mktemp(request.param))


def twin(family: str, folder: Path) -> TinyCheckpoint:
    return write_gguf_twin(write_tiny(family, folder / "hf", widen=4.0), folder / "twin.gguf")


def rewritten(file: Path, target: Path, added: dict[str, str], keys: dict[str, int]) -> Path:
    """Copy a GGUF file.

    Args:
        added: new tensors, as copies of others of the file.
        keys: integers of the architecture, new or instead of the file's.
    """
    reader = gguf.GGUFReader(file)
    architecture = str(reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(str(target), architecture)
    replaced = {f"{architecture}.{key}": value for key, value in keys.items()}
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")) and field.name not in replaced:
            writer.add_key_value(field.name, field.contents(), field.types[0], field.types[-1])
    for key, value in replaced.items():
        writer.add_uint32(key, value)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, tensor in [*tensors.items(), *((name, tensors[source]) for name, source in added.items())]:
        writer.add_tensor(name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def block(file: Path, index: int) -> dict[str, str]:
    """The tensors of an MTP block: those of block 3 and the ones of its own kind."""
    names = [tensor.name for tensor in gguf.GGUFReader(file).tensors]
    same = {f"blk.{index}.{name.removeprefix('blk.3.')}": name for name in names if name.startswith("blk.3.")}
    return same | {f"blk.{index}.nextn.{name}.weight": "output_norm.weight" for name in NEXTN}


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_declared_blocks_are_left_out(hybrid: TinyCheckpoint, num_blocks: int, tmp_path: Path) -> None:
    added = {name: source for index in range(num_blocks) for name, source in block(hybrid.path, 4 + index).items()}
    keys = {"block_count": 4 + num_blocks, "nextn_predict_layers": num_blocks}
    file = rewritten(hybrid.path, tmp_path / "mtp.gguf", added, keys)
    ids = random_ids(40, 1)
    with Driver.open(file, dtype="float32") as driver:
        stream = driver.run(ids, max_tokens=GENERATED, logprobs=True, top_logprobs=3, prompt_logprobs=True)
    check(hybrid, ids, stream)


def opening_fails(file: Path, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        Driver.open(file, dtype="float32")


def test_undeclared_blocks_are_refused_by_name(hybrid: TinyCheckpoint, tmp_path: Path) -> None:
    file = rewritten(hybrid.path, tmp_path / "mtp.gguf", block(hybrid.path, 4), {})
    opening_fails(file, r"tensors that this model has no place for \(blk\.4\.")


def test_a_block_behind_the_declared_ones_is_refused(hybrid: TinyCheckpoint, tmp_path: Path) -> None:
    added = block(hybrid.path, 4) | {"blk.5.attn_norm.weight": "blk.3.attn_norm.weight"}
    file = rewritten(hybrid.path, tmp_path / "mtp.gguf", added, {"block_count": 5, "nextn_predict_layers": 1})
    opening_fails(file, r"1 tensors that this model has no place for \(blk\.5\.attn_norm\.weight\)")


@pytest.mark.parametrize("name", ["blk.0.nextn.enorm.weight", "blk.40.nextn.enorm.weight", "nextn.enorm.weight"])
def test_a_tensor_of_their_kind_elsewhere_is_not(hybrid: TinyCheckpoint, name: str, tmp_path: Path) -> None:
    added = block(hybrid.path, 4) | {name: "output_norm.weight"}
    file = rewritten(hybrid.path, tmp_path / "mtp.gguf", added, {"block_count": 5, "nextn_predict_layers": 1})
    opening_fails(file, rf"1 tensors that this model has no place for \({name}\)")


@pytest.mark.parametrize("index", [2, 3])
def test_a_family_whose_blocks_are_all_layers_has_none(index: int, tmp_path: Path) -> None:
    llama = twin("llama", tmp_path)
    added = {f"blk.{index}.nextn.enorm.weight": "output_norm.weight"}
    file = rewritten(llama.path, tmp_path / "mtp.gguf", added, {"nextn_predict_layers": 1})
    opening_fails(file, rf"no place for \(blk\.{index}\.nextn")
