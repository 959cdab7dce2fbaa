"""Options of :class:`pocketllm_cpp.QwenEngine`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm_cpp.kv_cache_types import kv_type
from pocketllm_cpp.loading import RuntimeSettings
from pocketllm_cpp.options import check_activation


@dataclass
class QwenEngineOptions:
    """One set of names for every build; what this build cannot honour is refused when an engine is made with it.

    Attributes:
        tp_world, tp_rank, nccl_id_path, device: one process on one CPU: their defaults alone.
        max_batch_size: sequences that a scheduler over the engine may run together, its ``max_slots``.
        prefill_chunk_tokens: a scheduler's first prefill token budget.
        kv_cache_dtype: "Fp16" or "Int8PerTokenHead" (also "f16", "q8_0"), or "f32" for an exact one.
        attention_window, attention_sink_tokens: 0: the checkpoint's own windows alone.
        prefix_cache: reuse what was computed of a prompt, in the session and in schedulers.
        state_snapshot_interval_tokens: where snapshots of recurrent states are taken is the engine's to choose.
        max_state_snapshots: recurrent states kept for reuse.
        mtp, mtp_speculative_tokens, mtp_adaptive, dspark_checkpoint, dflash2_checkpoint: no speculative decoding yet.
        temperature, top_p, top_k, sampling_seed: how the engine's own calls draw; 0 is greedy, top_k 0 no limit.
        kv_paged, kv_block_size: the cache is always paged, in blocks of 16.
        kv_cache_bytes: 0: what max_batch_size sequences of full length take, at most a quarter of the memory.
        prefix_cache_bytes: reused prefixes live in the cache itself; 0.
        kernel: nothing to tune: None.
        num_threads: 0: one per core that the process may use.
        activation: how activations enter products with quantised weights, "int8" or "float32".
    """

    tp_world: int = 1
    tp_rank: int = 0
    device: int = 0
    max_batch_size: int = 1
    prefill_chunk_tokens: int = 512
    kv_cache_dtype: str = "Fp16"
    attention_window: int = 0
    attention_sink_tokens: int = 0
    prefix_cache: bool = True
    state_snapshot_interval_tokens: int = 4096
    max_state_snapshots: int = 82
    mtp: bool = False
    mtp_speculative_tokens: int = 1
    mtp_adaptive: bool = False
    dspark_checkpoint: str = ""
    dflash2_checkpoint: str = ""
    nccl_id_path: str = ""
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 20
    sampling_seed: int = 0
    kv_paged: bool = True
    kv_block_size: int = 16
    kv_cache_bytes: int = 0
    prefix_cache_bytes: int = 0
    kernel: None = None
    num_threads: int = 0
    activation: str = "int8"

    def settings(self) -> RuntimeSettings:
        """Check all options and return those that the runtime is made with.

        Raises:
            UnsupportedFeatureError: this build cannot honour one; names it.
            ConfigurationError: a value is out of range.
        """
        refuse_changed(self, _FIXED)
        kv_type(self.kv_cache_dtype)
        for name, low in (
            ("max_batch_size", 1),
            ("prefill_chunk_tokens", 0),
            ("max_state_snapshots", 1),
            ("temperature", 0),
            ("top_k", 0),
            ("kv_cache_bytes", 0),
            ("num_threads", 0),
        ):
            if getattr(self, name) < low:
                raise ConfigurationError(
                    f"{name} = {getattr(self, name)} is too small: give at least {low}.", param=name
                )
        if not 0 < self.top_p <= 1:
            raise ConfigurationError(f"top_p = {self.top_p} is not above 0 and at most 1.", param="top_p")
        check_activation(self.activation, "activation", "activation")
        return RuntimeSettings(
            activation=self.activation,
            kv_cache_dtype=self.kv_cache_dtype,
            num_threads=self.num_threads,
            num_slots=self.max_batch_size,
            kv_cache_bytes=self.kv_cache_bytes,
            num_snapshots=self.max_state_snapshots,
        )


_FIXED = (
    "tp_world",
    "tp_rank",
    "device",
    "attention_window",
    "attention_sink_tokens",
    "state_snapshot_interval_tokens",
    "mtp",
    "mtp_speculative_tokens",
    "mtp_adaptive",
    "dspark_checkpoint",
    "dflash2_checkpoint",
    "nccl_id_path",
    "kv_paged",
    "kv_block_size",
    "prefix_cache_bytes",
    "kernel",
)


def refuse_changed(options: object, names: tuple[str, ...]) -> None:
    """Refuse every one of ``names`` that is not its dataclass's default.

    Raises:
        UnsupportedFeatureError: names the first of them.
    """
    defaults = {field.name: field.default for field in fields(options)}  # type: ignore[arg-type]  # always a dataclass
    for name in names:
        value = getattr(options, name)
        if value != defaults[name]:
            raise UnsupportedFeatureError(
                f"{name} = {value!r}: this build has no such feature. Leave it {defaults[name]!r}.", param=name
            )
