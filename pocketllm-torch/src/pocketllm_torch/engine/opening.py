"""From arguments and a checkpoint to a running engine."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from pocketllm.backend_parts import EVERY_REQUEST_FIELD, tokenizer_or_none, usable_vocab_size
from pocketllm.errors import ConfigurationError, UnsupportedFeatureError
from pocketllm.structured.token_table import token_table
from pocketllm.types import Capabilities
from pocketllm_torch.card import backend_card
from pocketllm_torch.device import cache_budget_bytes, resolve_device
from pocketllm_torch.engine.block_pool import BlockPool
from pocketllm_torch.engine.engine import TorchEngine
from pocketllm_torch.engine.runner import Runner
from pocketllm_torch.engine.sampler import Sampler
from pocketllm_torch.engine.scheduler import Scheduler
from pocketllm_torch.kernels.selection import reasons
from pocketllm_torch.layers import cache_spec
from pocketllm_torch.layers.caches import Caches
from pocketllm_torch.models.registry import Model, ModelConfig, find_family
from pocketllm_torch.options import TorchOptions
from pocketllm_torch.weights.long_chunks import choose_long_chunks
from pocketllm_torch.weights.precision import Precision, choose_precision
from pocketllm_torch.weights.reader import WeightReader
from pocketllm_torch.weights.shard import WHOLE, Shard

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint
    from pocketllm.engine_args import EngineArgs
    from pocketllm.hookspecs import LoadReport

_logger = logging.getLogger(__name__)

_DEFAULT_CHUNK_TOKENS = {"cpu": 512, "cuda": 2048}
# What prompts get of a step in which others decode, where no budget was asked for: those wait for it. A GPU computes a
# whole chunk in the time in which it reads the weights.
_DEFAULT_TOKENS_BESIDE_DECODES = {"cpu": 128, "cuda": 0}
_DEFAULT_BATCH_SIZE = {"cpu": 16, "cuda": 64}


def open_engine(args: EngineArgs, checkpoint: Checkpoint, report: LoadReport) -> TorchEngine:
    """Load the weights, make the cache, start the engine's thread. Seconds, on the calling thread.

    ``args`` carry options that core has checked against the card.

    Raises:
        ConfigurationError, CheckpointError, UnsupportedFeatureError, BackendUnavailableError: as their messages say.
    """
    options = TorchOptions.from_mapping(args.backend_options)
    device = resolve_device(args)
    num_threads = options.num_threads or torch.get_num_threads()
    torch.set_num_threads(num_threads)
    batch_size = args.batch_size(_DEFAULT_BATCH_SIZE[device.type])
    sizes = find_family(text_model_type(checkpoint)).sizes(checkpoint.text_config)
    max_model_len = _max_model_len(args, sizes)
    precision, model = _load(args, options, checkpoint, device, max_model_len, report)
    report("cache", 1.0)
    block_bytes = cache_spec.block_bytes(sizes.caches, options.block_size, precision.compute_dtype)
    num_blocks = _num_blocks(args, options, device, block_bytes, max_model_len, batch_size)
    caches = Caches(
        sizes.caches,
        num_blocks=num_blocks,
        block_size=options.block_size,
        num_slots=batch_size,
        dtype=precision.compute_dtype,
        device=device,
    )
    scheduler = _scheduler(args, options, device, num_blocks, batch_size)
    tokenizer = tokenizer_or_none(checkpoint)
    if tokenizer is not None:
        # Takes a fraction of a second, which the first request with a constraint should not have to wait for.
        token_table(tokenizer)
    vocab_size = usable_vocab_size(sizes.vocab_size, tokenizer)
    card = backend_card()
    capabilities = Capabilities(
        **EVERY_REQUEST_FIELD,
        name=card.name,
        models=(checkpoint.model_type,),
        model_formats=card.model_formats,
        devices=card.devices,
        max_model_len=min(max_model_len, num_blocks * options.block_size),
        vocab_size=vocab_size,
        max_batch_size=batch_size,
        eos_token_ids=options.eos_token_id,
        supports_batch=batch_size > 1,
        supports_structured_outputs=tokenizer is not None,
        batch_invariant=options.deterministic,
        details={
            "device": str(device),
            "dtype": precision.name,
            "prefill_dtype": precision.long_name or precision.name,
            "activation_dtype": str(precision.compute_dtype).removeprefix("torch."),
            "kernels": {"linear": precision.linear_name, **reasons(device, precision.compute_dtype)},
            "num_threads": num_threads,
            "kv_cache_bytes": num_blocks * block_bytes,
            "block_size": options.block_size,
            "prefill_chunk_tokens": scheduler.chunk_tokens,
            "prefill_tokens_beside_decodes": scheduler.prefill_tokens_beside_decodes,
        },
    )
    return TorchEngine(
        executor=Runner(model, caches, device, vocab_size, one_by_one=options.deterministic),
        scheduler=scheduler,
        sampler=Sampler(vocab_size, device),
        capabilities=capabilities,
        num_threads=num_threads,
        tokenizer=tokenizer,
    )


def _num_blocks(
    args: EngineArgs,
    options: TorchOptions,
    device: torch.device,
    block_bytes: int,
    max_model_len: int,
    batch_size: int,
) -> int:
    """What the cache may take, at most what every sequence at full length needs."""
    blocks_per_sequence = -(-max_model_len // options.block_size)
    cache_bytes = cache_budget_bytes(device) if options.kv_cache_bytes is None else options.kv_cache_bytes
    num_blocks = min(cache_bytes // block_bytes, batch_size * blocks_per_sequence)
    if num_blocks < 1:
        raise ConfigurationError(
            f"kv_cache_bytes leaves room for no block: one of {options.block_size} positions takes {block_bytes} "
            "bytes. Raise kv_cache_bytes or lower block_size.",
            param="backend_options.kv_cache_bytes",
        )
    if num_blocks < blocks_per_sequence and args.max_model_len is not None:
        raise ConfigurationError(
            f"max_model_len = {args.max_model_len} takes {blocks_per_sequence * block_bytes} bytes of cache, and there "
            f"are {num_blocks * block_bytes}: lower max_model_len to {num_blocks * options.block_size}, or raise "
            "kv_cache_bytes.",
            param="max_model_len",
        )
    return num_blocks


def _scheduler(
    args: EngineArgs, options: TorchOptions, device: torch.device, num_blocks: int, batch_size: int
) -> Scheduler:
    chunk_tokens = args.prefill_chunk_tokens or _DEFAULT_CHUNK_TOKENS[device.type]
    budget_asked_for = options.max_step_tokens is not None or bool(args.prefill_chunk_tokens)
    return Scheduler(
        BlockPool(num_blocks, options.block_size),
        max_num_sequences=batch_size,
        prefill_token_budget=options.max_step_tokens or chunk_tokens,
        prefill_tokens_beside_decodes=0 if budget_asked_for else _DEFAULT_TOKENS_BESIDE_DECODES[device.type],
        chunk_tokens=chunk_tokens,
        fixed_chunks=options.deterministic,
    )


def _load(
    args: EngineArgs,
    options: TorchOptions,
    checkpoint: Checkpoint,
    device: torch.device,
    max_model_len: int,
    report: LoadReport,
) -> tuple[Precision, Model]:
    long_chunks = "float16"
    # A second copy comes with the default alone: a dtype that was asked for is what is computed in.
    if args.dtype in (None, "auto") or options.prefill_dtype != "auto":
        long_chunks = choose_long_chunks(
            options.prefill_dtype, checkpoint.num_parameters, deterministic=options.deterministic
        )
    precision = choose_precision(args.dtype, device, long_chunks)
    shard = Shard(args.tensor_parallel_rank, args.tensor_parallel_size)
    _say_what_is_missing(args, options, precision)
    try:
        return precision, load_model(checkpoint, precision, max_model_len, report, shard)
    except UnsupportedFeatureError:
        # The default gives way to a form that holds every weight; a dtype that was asked for does not.
        if args.dtype not in (None, "auto"):
            raise
        precision = choose_precision("float32", device)
        return precision, load_model(checkpoint, precision, max_model_len, report, shard)


def _say_what_is_missing(args: EngineArgs, options: TorchOptions, precision: Precision) -> None:
    """Log each option whose dtype is computed in without the packed form that makes it fast."""
    for option, value, form in (
        ("dtype", args.dtype, precision.linear_form),
        ("prefill_dtype", options.prefill_dtype, precision.long_form),
    ):
        if value not in (None, "auto") and form is not None and form.missing is not None:
            _logger.warning(
                "%s = %r is slow on this machine, which has no packed form of it (%s); 'auto' takes what is fast here",
                option,
                value,
                form.missing,
            )


def load_model(
    checkpoint: Checkpoint, precision: Precision, max_model_len: int, report: LoadReport, shard: Shard = WHOLE
) -> Model:
    """The part of the checkpoint's model that ``shard`` is, with its weights, ready for ``max_model_len`` positions."""
    shard.check_whole()
    family = find_family(text_model_type(checkpoint))
    with torch.inference_mode(), WeightReader(checkpoint, family.gguf_name) as weights:
        return family.load(
            checkpoint.text_config, weights, precision, max_model_len, lambda fraction: report("weights", fraction)
        )


def text_model_type(checkpoint: Checkpoint) -> str:
    """The family of the language model, also where the checkpoint wraps one with a vision part."""
    return str(checkpoint.text_config.get("model_type", checkpoint.model_type))


def _max_model_len(args: EngineArgs, sizes: ModelConfig) -> int:
    if args.max_model_len is None:
        return sizes.max_positions
    if args.max_model_len > sizes.max_positions:
        raise ConfigurationError(
            f"max_model_len = {args.max_model_len} is above the checkpoint's max_position_embeddings = "
            f"{sizes.max_positions}: lower it.",
            param="max_model_len",
        )
    return args.max_model_len
