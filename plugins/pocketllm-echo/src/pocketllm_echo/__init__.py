"""A whole PocketLLM backend to copy: it answers from a script instead of a model.

This module is what the entry point names. It is imported for every listing of backends, so it imports no runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketllm.hookspecs import LoadReport, hookimpl
from pocketllm.types import BackendInfo, Offer, OptionSpec, Refusal

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint
    from pocketllm.engine_args import EngineArgs
    from pocketllm_echo.engine import EchoEngine

NAME = "echo"
OPTIONS = (
    OptionSpec(name="script", type="json", doc="an answer, a list of them in turn, or match: [[part, answer], …]"),
    OptionSpec(name="delay_s", type="float", default=0.0, doc="seconds that each step takes"),
    OptionSpec(name="capability_set", type="str", default="everything", doc="everything, guide or engine-wide"),
    OptionSpec(name="temperature", type="float", default=0.0, doc="in force for all requests under engine-wide"),
    OptionSpec(name="top_p", type="float", default=1.0, doc="in force for all requests under engine-wide"),
    OptionSpec(name="top_k", type="int", default=0, doc="in force for all requests under engine-wide; 0 is off"),
    OptionSpec(name="seed", type="int", default=0, doc="in force for all requests under engine-wide"),
    OptionSpec(name="eos_token_id", type="ids", doc="end-of-sequence ids in place of the checkpoint's"),
)


@hookimpl
def pocketllm_backend() -> BackendInfo:
    return BackendInfo(
        name=NAME,
        version="0.1.0",
        summary="plays scripted answers without a model",
        model_formats=("safetensors", "gguf"),
        devices=("cpu",),
        options=OPTIONS,
    )


@hookimpl
def pocketllm_probe(checkpoint: Checkpoint, args: EngineArgs) -> Offer | Refusal:
    if args.backend == NAME:
        return Offer(rank=0, reason="answers from a script, with the tokenizer of this checkpoint", device="cpu")
    return Refusal(reason=f"It runs no model. Ask for it by name to test with it: --backend {NAME}.")


@hookimpl
def pocketllm_open(args: EngineArgs, checkpoint: Checkpoint, report: LoadReport) -> EchoEngine:
    from pocketllm_echo.engine import EchoEngine  # here, so that listing backends does not load an engine

    report("tokenizer", 0.0)
    return EchoEngine(args, checkpoint)
