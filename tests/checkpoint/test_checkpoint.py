"""Opening checkpoints of every layout, and what the opened one answers."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pocketllm.checkpoint import Checkpoint, open_checkpoint
from pocketllm.errors import CheckpointError, ConfigurationError
from tests.checkpoint.sample_files import (
    BYTE_LEVEL_KEYS,
    LLAMA_KEYS,
    LLAMA_TENSORS,
    SENTENCEPIECE_KEYS,
    Tensor,
    entry,
    gguf_bytes,
    safetensors_bytes,
    write_json,
)

GGUF = gguf_bytes({**LLAMA_KEYS, **BYTE_LEVEL_KEYS}, LLAMA_TENSORS)
SHARD = safetensors_bytes({"w": entry("BF16", (2, 3), 0, 12)}, bytes(12))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def hugging_face(folder: Path, **config: object) -> Path:
    write_json(folder / "config.json", {"model_type": "llama", "hidden_size": 64, **config})
    (folder / "model.safetensors").write_bytes(SHARD)
    return folder


class TestLayouts:
    def test_a_gguf_file_is_opened_with_its_settings(self, folder: Path) -> None:
        file = folder / "any name.gguf"
        file.write_bytes(GGUF)
        checkpoint = open_checkpoint(str(file))
        assert (checkpoint.path, checkpoint.format, checkpoint.files) == (file, "gguf", (file,))
        assert checkpoint.model_type == "llama"
        assert checkpoint.config["hidden_size"] == 64
        assert checkpoint.metadata["tokenizer.ggml.eos_token_id"] == 6
        assert checkpoint.num_parameters == 8 * 64 + 64 * 64 + 64
        assert checkpoint.weights_bytes == 544 + 2560 + 256
        assert checkpoint.generation_config == {}

    def test_a_gguf_file_by_its_magic_alone(self, folder: Path) -> None:
        (folder / "blob").write_bytes(GGUF)
        assert open_checkpoint(folder / "blob").format == "gguf"

    def test_a_folder_with_one_gguf_is_that_file(self, folder: Path) -> None:
        (folder / "m.gguf").write_bytes(GGUF)
        write_json(folder / "generation_config.json", {"eos_token_id": [3]})
        checkpoint = open_checkpoint(folder)
        assert checkpoint.files == (folder / "m.gguf",)
        assert checkpoint.eos_token_ids() == ((3,), "generation_config")

    def test_several_ggufs_are_listed(self, folder: Path) -> None:
        for name in ("a.gguf", "b.gguf"):
            (folder / name).write_bytes(GGUF)
        with pytest.raises(CheckpointError, match=r"several GGUF models \(a\.gguf, b\.gguf\)"):
            open_checkpoint(folder)

    def test_a_hugging_face_folder_is_opened_with_its_settings(self, folder: Path) -> None:
        checkpoint = open_checkpoint(hugging_face(folder))
        assert (checkpoint.format, checkpoint.files) == ("safetensors", (folder / "model.safetensors",))
        assert checkpoint.tensors["w"].shape == (2, 3)
        assert checkpoint.metadata == {}
        assert (checkpoint.num_parameters, checkpoint.weights_bytes, checkpoint.quantization) == (6, 12, None)

    def test_a_safetensors_file_takes_the_config_beside_it(self, folder: Path) -> None:
        hugging_face(folder)
        (folder / "model.safetensors").rename(folder / "other.safetensors")
        assert open_checkpoint(folder / "other.safetensors").model_type == "llama"
        assert open_checkpoint(folder).files == (folder / "other.safetensors",)

    def test_a_sharded_folder_needs_an_index_that_names_every_shard(self, folder: Path) -> None:
        hugging_face(folder)
        (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
        second = safetensors_bytes({"v": entry("F32", (1,), 0, 4)}, bytes(4))
        (folder / "model-00002-of-00002.safetensors").write_bytes(second)
        with pytest.raises(CheckpointError, match=r"several safetensors files .* no model\.safetensors\.index\.json"):
            open_checkpoint(folder)
        names = {"v": "model-00002-of-00002.safetensors", "w": "model-00001-of-00002.safetensors"}
        write_json(folder / "model.safetensors.index.json", {"weight_map": names})
        checkpoint = open_checkpoint(folder)
        assert [file.name for file in checkpoint.files] == sorted(names.values())
        assert set(checkpoint.tensors) == {"v", "w"}
        (folder / names["v"]).unlink()
        with pytest.raises(CheckpointError, match="model-00002-of-00002"):
            open_checkpoint(folder)

    def test_a_configuration_alone_opens_and_has_no_tensors(self, folder: Path) -> None:
        write_json(folder / "config.json", {"model_type": "qwen2", "eos_token_id": 9})
        checkpoint = open_checkpoint(folder)
        assert (checkpoint.files, checkpoint.model_type, checkpoint.metadata) == ((), "qwen2", {})
        assert checkpoint.eos_token_ids() == ((9,), "config")
        assert checkpoint.chat_template() is None
        with pytest.raises(CheckpointError, match="a configuration and no weights"):
            _ = checkpoint.tensors
        with pytest.raises(CheckpointError, match=r"tokenizer\.json: missing"):
            checkpoint.tokenizer()

    def test_a_folder_with_both_formats_is_settled_by_model_format(self, folder: Path) -> None:
        hugging_face(folder)
        (folder / "m.gguf").write_bytes(GGUF)
        assert open_checkpoint(folder).format == "safetensors"
        assert open_checkpoint(folder, model_format="gguf").format == "gguf"

    @pytest.mark.parametrize("model_format", ["pickle", "GGUF", ""])
    def test_an_unknown_format_names_the_known_ones(self, folder: Path, model_format: str) -> None:
        with pytest.raises(ConfigurationError, match="auto, safetensors, gguf") as caught:
            open_checkpoint(hugging_face(folder), model_format=model_format)
        assert caught.value.param == "model_format"

    def test_what_is_no_checkpoint_is_said(self, folder: Path) -> None:
        with pytest.raises(CheckpointError, match="cannot be opened"):
            open_checkpoint(folder / "absent")
        with pytest.raises(CheckpointError, match="not a checkpoint"):
            open_checkpoint(folder)
        (folder / "pytorch_model.bin").write_bytes(b"x")
        with pytest.raises(CheckpointError, match="convert them to safetensors"):
            open_checkpoint(folder)
        with pytest.raises(CheckpointError, match="neither a GGUF file nor"):
            open_checkpoint(folder / "pytorch_model.bin")
        (folder / "m.gguf").write_bytes(GGUF)
        with pytest.raises(CheckpointError, match="is gguf, and model_format asks for safetensors"):
            open_checkpoint(folder / "m.gguf", model_format="safetensors")
        with pytest.raises(CheckpointError, match="not a checkpoint"):
            open_checkpoint(folder, model_format="safetensors")

    @pytest.mark.parametrize("config", [{}, {"model_type": 5}, {"model_type": ""}])
    def test_a_config_that_names_no_family(self, folder: Path, config: dict[str, object]) -> None:
        hugging_face(folder)
        write_json(folder / "config.json", config)
        with pytest.raises(CheckpointError, match="model_type is"):
            open_checkpoint(folder)


class TestSplitGguf:
    def parts(self, folder: Path, **changes: object) -> list[Path]:
        files = [folder / f"m-0000{number}-of-00002.gguf" for number in (1, 2)]
        tensors = ([Tensor("a", (4,), 0, 16)], [Tensor("b", (8,), 0, 32)])
        for index, file in enumerate(files):
            keys = {"split.no": index, "split.count": 2, "split.tensors.count": 2, **changes}
            file.write_bytes(gguf_bytes({**(LLAMA_KEYS if index == 0 else {}), **keys}, tensors[index]))
        return files

    def test_parts_are_one_checkpoint_by_any_of_their_names(self, folder: Path) -> None:
        files = self.parts(folder)
        for path in (*files, folder):
            checkpoint = open_checkpoint(path)
            assert checkpoint.files == tuple(files)
            assert {name: info.file for name, info in checkpoint.tensors.items()} == {"a": files[0], "b": files[1]}
            assert checkpoint.model_type == "llama"

    def test_a_missing_part_is_named(self, folder: Path) -> None:
        files = self.parts(folder)
        files[1].unlink()
        with pytest.raises(CheckpointError, match=r"missing: m-00002-of-00002\.gguf"):
            open_checkpoint(files[0])

    def test_parts_that_contradict_their_names_are_refused(self, folder: Path) -> None:
        files = self.parts(folder)
        files[1].write_bytes(files[0].read_bytes())
        with pytest.raises(CheckpointError, match="says it is part 0 of 2"):
            open_checkpoint(folder)

    def test_a_part_under_another_name_is_not_taken_for_the_whole(self, folder: Path) -> None:
        files = self.parts(folder)
        files[0].rename(folder / "model.gguf")
        with pytest.raises(CheckpointError, match="part 0 of a model split in 2"):
            open_checkpoint(folder / "model.gguf")

    def test_the_announced_number_of_tensors_is_checked(self, folder: Path) -> None:
        self.parts(folder, **{"split.tensors.count": 3})
        with pytest.raises(CheckpointError, match="announces 3 tensors"):
            _ = open_checkpoint(folder).tensors


class TestOverrides:
    def test_config_path_replaces_the_configuration_of_either_format(self, folder: Path) -> None:
        (folder / "m.gguf").write_bytes(GGUF)
        other = folder / "other"
        other.mkdir()
        write_json(other / "config.json", {"model_type": "mistral", "eos_token_id": 4})
        write_json(other / "generation_config.json", {"temperature": 1})
        for given in (other, other / "config.json"):
            checkpoint = open_checkpoint(folder / "m.gguf", config_path=given)
            assert checkpoint.model_type == "mistral"
            assert checkpoint.generation_config == {"temperature": 1}
            assert checkpoint.eos_token_ids() == ((4,), "config")
        with pytest.raises(CheckpointError, match="no such file") as caught:
            open_checkpoint(folder / "m.gguf", config_path=folder / "absent")
        assert caught.value.param == "config_path"

    def test_tokenizer_path_may_be_another_gguf(self, folder: Path) -> None:
        model, words = folder / "m.gguf", folder / "words.gguf"
        model.write_bytes(gguf_bytes(LLAMA_KEYS, LLAMA_TENSORS))
        words.write_bytes(gguf_bytes({**SENTENCEPIECE_KEYS, "tokenizer.chat_template": "T"}))
        with pytest.raises(CheckpointError, match="known tokenizer models are gpt2, llama"):
            open_checkpoint(model).tokenizer()
        checkpoint = open_checkpoint(model, tokenizer_path=words)
        assert checkpoint.tokenizer().encode("a") == [1, 262]
        assert checkpoint.chat_template() == "T"
        assert checkpoint.eos_token_ids() == ((2,), "tokenizer")

    def test_a_tokenizer_path_to_nothing_says_so(self, folder: Path) -> None:
        checkpoint = open_checkpoint(hugging_face(folder), tokenizer_path=folder / "absent")
        with pytest.raises(CheckpointError, match="no such file") as caught:
            checkpoint.tokenizer()
        assert caught.value.param == "tokenizer_path"


class TestQuantization:
    def test_the_most_common_block_type_of_a_gguf(self, folder: Path) -> None:
        tensors = [Tensor("a", (1, 32), 2, 18), Tensor("b", (1, 32), 2, 18), Tensor("c", (9, 32), 8, 306)]
        (folder / "m.gguf").write_bytes(
            gguf_bytes(LLAMA_KEYS, [*tensors, *(Tensor(str(n), (4,), 0, 16) for n in range(5))])
        )
        assert open_checkpoint(folder).quantization == "Q4_0"
        (folder / "m.gguf").write_bytes(gguf_bytes(LLAMA_KEYS, [Tensor("a", (4,), 0, 16)]))
        assert open_checkpoint(folder).quantization is None

    def test_the_method_of_a_hugging_face_folder(self, folder: Path) -> None:
        assert open_checkpoint(hugging_face(folder, quantization_config={"quant_method": "fp8"})).quantization == "fp8"


def test_smollm2_opens_by_its_header(smollm2: Checkpoint) -> None:
    assert (smollm2.format, smollm2.model_type, smollm2.quantization) == ("gguf", "llama", "Q4_1")
    expected = {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "rope_theta": 1e5,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    }
    assert {name: smollm2.config[name] for name in expected} == expected
    assert len(smollm2.tensors) == 272
    assert sum(info.dtype == "Q4_1" for info in smollm2.tensors.values()) == 210
    assert smollm2.num_parameters == 134_515_008
    assert smollm2.eos_token_ids() == ((2,), "tokenizer")
    template = smollm2.chat_template(tools=True)
    assert template is not None
    assert template.startswith("{% for message in messages %}")


def test_what_the_format_s_own_package_writes_is_read_alike(folder: Path) -> None:
    import gguf
    import numpy as np

    file = folder / "m.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(2)
    writer.add_token_list(["a", "ö", ""])
    writer.add_rope_freq_base(1e4)
    writer.add_tensor("a", np.zeros((3, 5), dtype=np.float32))
    writer.add_tensor("b", np.zeros((2, 68), dtype=np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    checkpoint = open_checkpoint(file)
    reader = gguf.GGUFReader(file)
    assert checkpoint.metadata["tokenizer.ggml.tokens"] == ("a", "ö", "")
    assert [tensor.name for tensor in reader.tensors] == list(checkpoint.tensors)
    for tensor in reader.tensors:
        info = checkpoint.tensors[tensor.name]
        assert info.shape == tuple(int(size) for size in reversed(tensor.shape))
        expected = (tensor.tensor_type.name, tensor.data_offset, tensor.n_bytes)
        assert (info.dtype, info.offset, info.num_bytes) == expected


def test_gemma3_opens_by_its_header(gemma3: Checkpoint) -> None:
    assert (gemma3.model_type, gemma3.quantization, len(gemma3.tensors)) == ("gemma3_text", "Q5_0", 236)
    expected = {"hidden_size": 640, "head_dim": 256, "sliding_window": 512, "vocab_size": 262144, "rope_theta": 1e6}
    assert {name: gemma3.config[name] for name in expected} == expected
    assert gemma3.eos_token_ids() == ((1, 106), "tokenizer")
    assert gemma3.chat_template() is None


def test_many_threads_get_one_tokenizer(folder: Path) -> None:
    (folder / "m.gguf").write_bytes(GGUF)
    checkpoint = open_checkpoint(folder)
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(checkpoint.tokenizer())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_what_is_answered_cannot_be_changed(folder: Path) -> None:
    checkpoint = open_checkpoint(hugging_face(folder))
    for mapping in (checkpoint.config, checkpoint.tensors, checkpoint.generation_config):
        with pytest.raises(TypeError):
            mapping["new"] = 1  # type: ignore[index]  # that it is impossible is the point


def test_opening_imports_no_runtime_and_no_tokenizer_library(smollm2_path: Path) -> None:
    import os
    import subprocess
    import sys

    import pocketllm

    script = (
        "import sys; from pocketllm.checkpoint import open_checkpoint; c = open_checkpoint(sys.argv[1]); c.config;"
        "c.tensors; c.eos_token_ids();"
        "print(sorted({'torch', 'numpy', 'triton', 'tokenizers', 'jinja2'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(pocketllm.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", script, str(smollm2_path)], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.strip() == "[]"
