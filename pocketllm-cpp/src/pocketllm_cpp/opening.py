"""From arguments and a checkpoint to a running engine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pocketllm.backend_parts import EVERY_REQUEST_FIELD, tokenizer_or_none, usable_vocab_size
from pocketllm.errors import ConfigurationError
from pocketllm.types import Capabilities
from pocketllm_cpp import _native
from pocketllm_cpp.card import backend_card
from pocketllm_cpp.constraints import ConstraintMatchers
from pocketllm_cpp.engine import CppEngine
from pocketllm_cpp.kv_cache_types import kv_type
from pocketllm_cpp.loading import RuntimeSettings, load_runtime
from pocketllm_cpp.options import CppOptions

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint
    from pocketllm.engine_args import EngineArgs
    from pocketllm.hookspecs import LoadReport

_DEFAULT_BATCH_SIZE = 16
_DEFAULT_CHUNK_TOKENS = 512
# A step that others decode in: larger ones make no prompt sooner and hold up every answer under way.
_DEFAULT_TOKENS_BESIDE_DECODES = 128


def open_engine(args: EngineArgs, checkpoint: Checkpoint, report: LoadReport) -> CppEngine:
    """Load the weights, make the cache, start the engine's thread. Seconds, on the calling thread.

    ``args`` carry options that core has checked against the card.

    Raises:
        ConfigurationError, CheckpointError, UnsupportedFeatureError: as their messages say.
    """
    card = backend_card()
    options = CppOptions.from_mapping(args.backend_options)
    activation = _activation(args, options)
    eos_ids, eos_source = checkpoint.eos_token_ids(list(options.eos_token_id) or None)
    settings = RuntimeSettings(
        device="cpu" if args.device == "auto" else args.device,
        activation=activation,
        kv_cache_dtype=args.kv_cache_dtype,
        num_threads=options.num_threads or 0,
        max_model_len=args.max_model_len or 0,
        num_slots=args.batch_size(_DEFAULT_BATCH_SIZE),
        kv_cache_bytes=options.kv_cache_bytes or 0,
        num_snapshots=options.num_snapshots,
    )
    with ThreadPoolExecutor(1, "pocketllm-cpp-tokenizer") as beside:
        # Native code reads the weights without the interpreter's lock, which the tokenizer needs.
        pending = beside.submit(tokenizer_or_none, checkpoint)
        runtime = load_runtime(checkpoint, settings, lambda fraction: report("weights", fraction))
    report("cache", 1.0)
    tokenizer = pending.result()
    matchers = None if tokenizer is None else ConstraintMatchers(tokenizer)
    vocab_size = usable_vocab_size(runtime.vocab_size, tokenizer)
    budget, beside_decodes = _prompt_budgets(args, options)
    prefix_cache = args.enable_prefix_caching if options.prefix_cache is None else options.prefix_cache
    native = _native.Engine(
        runtime,
        max_batch_size=runtime.num_slots,
        prefill_token_budget=budget,
        prefill_tokens_beside_decodes=beside_decodes,
        prefix_cache=prefix_cache,
        vocab_size=vocab_size,
    )
    capabilities = Capabilities(
        **EVERY_REQUEST_FIELD,
        name=card.name,
        models=(checkpoint.model_type,),
        model_formats=card.model_formats,
        devices=card.devices,
        max_model_len=runtime.max_model_len,
        vocab_size=vocab_size,
        max_batch_size=native.max_batch_size,
        eos_token_ids=eos_ids if eos_source == "override" else (),
        supports_batch=native.max_batch_size > 1,
        supports_structured_outputs=tokenizer is not None,
        supports_prefix_caching=prefix_cache,
        batch_invariant=True,
        details={
            "device": runtime.device,
            "instruction_set": _native.instruction_set(),
            "dtype": checkpoint.quantization or "as stored",
            "activation_dtype": activation,
            "num_threads": runtime.num_threads,
            "weights_bytes": runtime.weights_bytes,
            "kv_cache_bytes": runtime.kv_bytes,
            "kv_cache_dtype": kv_type(args.kv_cache_dtype),
            "block_size": runtime.kv_block_size,
            "prefill_chunk_tokens": native.prefill_token_budget,
            "prefill_tokens_beside_decodes": native.prefill_tokens_beside_decodes,
            "eos_source": eos_source,
        },
    )
    return CppEngine(native, capabilities, matchers)


def _prompt_budgets(args: EngineArgs, options: CppOptions) -> tuple[int, int]:
    """Prompt tokens of a step, and of one in which other sequences decode (0: as many).

    A budget that was asked for holds for both.
    """
    if options.prefill_token_budget is not None:
        return options.prefill_token_budget, 0
    if args.prefill_chunk_tokens:
        return args.prefill_chunk_tokens, 0
    return _DEFAULT_CHUNK_TOKENS, _DEFAULT_TOKENS_BESIDE_DECODES


def _activation(args: EngineArgs, options: CppOptions) -> str:
    """float32 when either spelling asks for it; one that contradicts the other is refused."""
    asked = "float32" if args.dtype == "float32" else None
    if asked is not None and options.activation not in (None, asked):
        raise ConfigurationError(
            f"dtype = {args.dtype!r} asks for exact activations and backend_options['activation'] = "
            f"{options.activation!r} for others: leave out one of the two.",
            param="backend_options.activation",
        )
    return options.activation or asked or "int8"
