"""Backend objects whose every answer a test decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pocketllm.engine_args import EngineArgs
from pocketllm.hookspecs import hookimpl
from pocketllm.types import CONTRACT_VERSION, BackendInfo, Offer, OptionSpec


class Toy:
    """A backend that offers ``rank``, or gives (or raises) ``answer`` in its place."""

    def __init__(
        self,
        name: str,
        *,
        rank: int = 50,
        answer: object = ...,
        formats: tuple[str, ...] = ("gguf",),
        devices: tuple[str, ...] = ("cpu",),
        options: tuple[str, ...] = ("num_threads",),
        contract_version: tuple[int, int] = CONTRACT_VERSION,
        opens: bool = True,
    ) -> None:
        self.name = name
        self.seen: EngineArgs | None = None
        self.num_probes = 0
        self._answer = Offer(rank=rank, reason=f"{name} can.") if answer is ... else answer
        self._opens = opens
        self._card = BackendInfo(
            name=name,
            contract_version=contract_version,
            model_formats=formats,
            devices=devices,
            options=(
                *(OptionSpec(name=option, type="int") for option in options),
                OptionSpec(name="label", type="str"),
            ),
        )

    @hookimpl
    def pocketllm_backend(self) -> BackendInfo:
        return self._card

    @hookimpl
    def pocketllm_probe(self, checkpoint: Any, args: EngineArgs) -> object:
        self.seen = args
        self.num_probes += 1
        if isinstance(self._answer, BaseException):
            raise self._answer
        return self._answer

    @hookimpl
    def pocketllm_open(self, args: EngineArgs, checkpoint: Any, report: Callable[[str, float], None]) -> object:
        self.seen = args
        return self if self._opens else None
