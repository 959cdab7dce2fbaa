"""One opened checkpoint, whatever its format: configuration, tensor list, tokenizer, template, stop ids. No tensors."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

from pocketllm.checkpoint import gguf, gguf_config, gguf_split, safetensors, tokenizer_gguf, tokenizer_json
from pocketllm.checkpoint.bounded_file import read_json_file
from pocketllm.checkpoint.eos import EosSource, resolve_eos
from pocketllm.checkpoint.gguf_metadata import GgufMetadata
from pocketllm.checkpoint.gguf_types import TENSOR_TYPES_BY_NAME
from pocketllm.checkpoint.layout import Format, Layout, find_files
from pocketllm.checkpoint.template_source import find_template
from pocketllm.checkpoint.tensor_info import TensorInfo
from pocketllm.checkpoint.text_config import text_part
from pocketllm.checkpoint.tokenizer import Tokenizer
from pocketllm.errors import CheckpointError

PathLike = str | os.PathLike[str]
_T = TypeVar("_T")


def open_checkpoint(
    path: PathLike,
    *,
    model_format: str = "auto",
    config_path: PathLike | None = None,
    tokenizer_path: PathLike | None = None,
) -> Checkpoint:
    """Open a checkpoint by its headers; a few tens of milliseconds, no tensor is read and no runtime imported.

    Args:
        path: a ``.gguf`` file (one part of a split model will do), a ``.safetensors`` file, or a folder with one
            GGUF model, with ``model.safetensors`` or its sharded form, or with ``config.json`` alone.
        model_format: ``"auto"``, ``"safetensors"`` or ``"gguf"``; settles a folder that has both.
        config_path: a ``config.json``, or a folder with one, instead of the checkpoint's own configuration.
        tokenizer_path: a ``tokenizer.json``, a folder with one, or a GGUF file, instead of the checkpoint's own.

    Raises:
        CheckpointError: missing, malformed or ambiguous; the message names the file and what is wrong where.
        ConfigurationError: an unknown ``model_format``.
    """
    location = Path(path)
    layout = find_files(location, model_format)
    config_file = None if config_path is None else _file_or_in_folder(Path(config_path), "config.json", "config_path")
    return Checkpoint(location, layout, config_file, None if tokenizer_path is None else Path(tokenizer_path))


class Checkpoint:
    """Headers of a checkpoint. Made by :func:`open_checkpoint`; read-only; every member may be used from any thread.

    Attributes:
        path: as given.
        format: ``"safetensors"`` or ``"gguf"``.
        files: all weight files, shards in order; empty for a configuration alone.
        model_type: Hugging Face's name of the family (``"llama"``, ``"gemma3_text"``), for both formats.
    """

    path: Path
    format: Format
    files: tuple[Path, ...]
    model_type: str

    def __init__(self, path: Path, layout: Layout, config_file: Path | None, tokenizer_path: Path | None) -> None:
        self.path = path
        self.format = layout.format
        self.files = layout.files
        self._layout = layout
        self._config_file = config_file
        self._tokenizer_path = tokenizer_path
        # A lock for each part: what needs the configuration does not wait for the tokenizer.
        self._lock = threading.Lock()
        self._part_locks: dict[str, threading.RLock] = {}
        self._made: dict[str, object] = {}
        self._headers = gguf_split.read_parts(layout.files) if layout.format == "gguf" else ()
        if self._config_file is None and self.format == "safetensors":
            assert layout.folder is not None
            self._config_file = _file_or_in_folder(layout.folder, "config.json", "config_path")
        self.model_type = self._find_model_type()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.path.name}: {self.format}, {self.model_type}>"

    @property
    def config(self) -> Mapping[str, object]:
        """The names of ``config.json`` in both formats: a GGUF's keys are translated (see ``gguf_config``)."""
        return self._once("config", self._load_config)

    @property
    def text_config(self) -> Mapping[str, object]:
        """The language model's configuration: :attr:`config`, or the ``text_config`` of a wrapper put at the root."""
        return self._once("text_config", self._load_text_config)

    @property
    def generation_config(self) -> Mapping[str, object]:
        """``generation_config.json``; empty when absent."""
        return self._once("generation_config", self._load_generation_config)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every stored tensor by the file's own name; CheckpointError for a folder without weights."""
        return self._once("tensors", lambda: self._load_tensors()[0])

    @property
    def metadata(self) -> Mapping[str, object]:
        """A GGUF's key/values (arrays and long strings decoded at each access), or safetensors' ``__metadata__``."""
        if self._headers:
            return self._headers[0].metadata
        return self._load_tensors()[1] if self.files else {}

    @property
    def weights_bytes(self) -> int:
        """The stored size of all tensors."""
        return sum(info.num_bytes for info in self.tensors.values())

    @property
    def num_parameters(self) -> int:
        """The number of stored elements, scales of quantised safetensors included."""
        return sum(info.num_elements for info in self.tensors.values())

    @property
    def quantization(self) -> str | None:
        """A GGUF's most common block type (``"Q4_1"``), a safetensors checkpoint's ``quant_method``, or None."""
        if self._headers:
            counts = Counter(
                info.dtype for info in self.tensors.values() if TENSOR_TYPES_BY_NAME[info.dtype].is_quantized
            )
            return counts.most_common(1)[0][0] if counts else None
        settings = self.config.get("quantization_config")
        method = settings.get("quant_method") if isinstance(settings, Mapping) else None
        return method if isinstance(method, str) else None

    def chat_template(self, *, tools: bool = False) -> str | None:
        """The Jinja template (with ``tools``, the one for tools if there is one); None when the checkpoint has none."""
        return self._once(f"chat_template {tools}", lambda: self._find_template(tools))

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, built on the first call (0.2 s to 2 s) and shared after that.

        Raises:
            CheckpointError: the checkpoint has none, or one that cannot be built; says which and what to do.
        """
        return self._once("tokenizer", self._build_tokenizer)

    def eos_token_ids(self, override: object = None) -> tuple[tuple[int, ...], EosSource]:
        """The ids that end a generation, and their source; see :func:`pocketllm.checkpoint.eos.resolve_eos`.

        Args:
            override: ``backend_options["eos_token_id"]``.
        """
        return resolve_eos(override, self.generation_config, self.config, self._tokenizer_end_ids)

    # What follows runs at most once per checkpoint, under a lock of its own. A part may need others, never in a circle.

    def _once(self, key: str, make: Callable[[], _T]) -> _T:
        made = self._made
        if key not in made:
            with self._lock:
                part_lock = self._part_locks.setdefault(key, threading.RLock())
            with part_lock:
                if key not in made:
                    made[key] = make()
        return made[key]  # type: ignore[return-value]  # each key is only ever stored by one caller's make

    def _find_model_type(self) -> str:
        if self._config_file is None:
            return gguf_config.model_type(self._headers[0].metadata, self.files[0])
        value = self.config.get("model_type")
        if not isinstance(value, str) or not value:
            raise CheckpointError(f"{self._config_file}: model_type is {value!r}; it must name the model family.")
        return value

    def _load_config(self) -> Mapping[str, object]:
        if self._config_file is not None:
            return MappingProxyType(read_json_file(self._config_file))
        translated = gguf_config.translate_config(self._headers[0].metadata, self.tensors, self.files[0])
        return MappingProxyType(translated)

    def _load_text_config(self) -> Mapping[str, object]:
        return MappingProxyType(text_part(self.config, str(self._config_file or self.path)))

    def _load_generation_config(self) -> Mapping[str, object]:
        folder = self._config_file.parent if self._config_file is not None else self._layout.folder
        file = None if folder is None else folder / "generation_config.json"
        return MappingProxyType(read_json_file(file) if file is not None and file.is_file() else {})

    def _load_tensors(self) -> tuple[Mapping[str, TensorInfo], Mapping[str, object]]:
        return self._once("tensor files", self._read_tensors)

    def _read_tensors(self) -> tuple[Mapping[str, TensorInfo], Mapping[str, object]]:
        if self._headers:
            return MappingProxyType(gguf_split.merge_tensors(self._headers)), {}
        if not self.files:
            raise CheckpointError(f"{self.path}: has a configuration and no weights. Fetch its safetensors files too.")
        tensors, metadata = safetensors.read_shards(self.files, self._layout.weight_map)
        return MappingProxyType(tensors), MappingProxyType(metadata)

    def _tokenizer_metadata(self) -> GgufMetadata | None:
        """The GGUF metadata that the tokenizer and template come from, when they come from a GGUF."""
        given = self._tokenizer_path
        if given is None:
            return self._headers[0].metadata if self._headers else None
        if given.is_file() and given.suffix == ".gguf":
            return self._once("tokenizer metadata", lambda: gguf.read_header(given).metadata)
        return None

    def _template_folders(self) -> list[Path]:
        given = self._tokenizer_path
        folders = [] if given is None or given.suffix == ".gguf" else [given if given.is_dir() else given.parent]
        if self._layout.folder is not None:
            folders.append(self._layout.folder)
        return folders

    def _find_template(self, tools: bool) -> str | None:
        # A template given with the tokenizer goes before the model's own GGUF metadata.
        own = self._headers[0].metadata if self._headers else {}
        return find_template(self._template_folders(), self._tokenizer_metadata() or own, tools=tools)

    def _tokenizer_end_ids(self) -> tuple[int, ...]:
        metadata = self._tokenizer_metadata()
        if metadata is not None:
            return tokenizer_gguf.end_token_ids(metadata)
        if self._tokenizer_path is None and not self._own_tokenizer_file().is_file():
            return ()
        eos = self.tokenizer().eos_token_id
        return () if eos is None else (eos,)

    def _build_tokenizer(self) -> Tokenizer:
        metadata = self._tokenizer_metadata()
        if metadata is not None:
            return tokenizer_gguf.build_tokenizer(metadata)
        if self._tokenizer_path is not None:
            file = _file_or_in_folder(self._tokenizer_path, tokenizer_json.FILE_NAME, "tokenizer_path")
        else:
            file = self._own_tokenizer_file()
            if not file.is_file():
                raise CheckpointError(f"{file}: missing. Fetch it, or say where the tokenizer is with tokenizer_path.")
        return tokenizer_json.build_tokenizer(file, self.config)

    def _own_tokenizer_file(self) -> Path:
        assert self._layout.folder is not None  # only a GGUF given as a file has no folder, and it has metadata
        return self._layout.folder / tokenizer_json.FILE_NAME


def _file_or_in_folder(path: Path, name: str, argument: str) -> Path:
    """``path`` itself, or the file called ``name`` in it when it is a folder; it must exist."""
    file = path / name if path.is_dir() else path
    if not file.is_file():
        raise CheckpointError(f"{file}: no such file. Give the path of a {name} with {argument}.", param=argument)
    return file
