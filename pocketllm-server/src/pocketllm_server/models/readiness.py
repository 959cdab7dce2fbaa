"""Ready means that the engine, as it is now, has run a forward pass: what ``/ready`` answers and why."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from pocketllm.errors import PocketLLMError, QueueFullError
from pocketllm.sampling_params import SamplingParams
from pocketllm.types import Capabilities, GenerationRequest, HealthStatus
from pocketllm_server.models.client import ModelClient

logger = logging.getLogger(__name__)

_RETRY_AFTER_S = 1.0
_WARM_UP_DEADLINE_S = 300.0


class Verdict(msgspec.Struct, frozen=True):
    """``reason`` is a word for machines: ready, warming_up, warm_up_failed, draining, or the host's state."""

    ready: bool
    reason: str
    message: str


class Readiness:
    """Runs a one-token request on every engine that becomes ready, a restarted one included."""

    def __init__(self, client: ModelClient) -> None:
        self._client = client
        self._verified_epoch: object = None
        self._failure: str | None = None

    def verdict(self) -> Verdict:
        """The answer of this moment; cheap."""
        health = self._client.health()
        if not health.ready:
            return Verdict(False, health.status, health.message or f"The engine is {health.status}.")
        if self._verified_epoch == _epoch(health):
            return Verdict(True, "ready", health.message or "The engine answers.")
        if self._failure is not None:
            return Verdict(False, "warm_up_failed", self._failure)
        return Verdict(False, "warming_up", "The engine is loaded and runs its first forward pass.")

    async def watch(self) -> None:
        """Runs for the server's life; verifies each new engine once."""
        while True:
            health = self._client.health()
            if health.ready and self._verified_epoch != _epoch(health):
                await self._verify(_epoch(health))
                continue
            if not health.ready:
                self._verified_epoch = self._failure = None
            await self._client.changed()

    async def _verify(self, epoch: object) -> None:
        try:
            await self._warm_up()
        except QueueFullError:
            pass  # the queue is full of requests that came first
        except Exception as error:  # noqa: BLE001  # this watcher must live: without it /ready never changes again
            reason = error.message if isinstance(error, PocketLLMError) else repr(error)
            self._failure = f"The first forward pass failed: {reason}"
            logger.warning("%s", self._failure)
        else:
            self._verified_epoch, self._failure = epoch, None
            return
        await asyncio.sleep(_RETRY_AFTER_S)

    async def _warm_up(self) -> None:
        stream = await self._client.submit(warm_up_request(self._client.capabilities))
        try:
            await stream.result()
        finally:
            await stream.aclose()


def warm_up_request(capabilities: Capabilities) -> GenerationRequest:
    """One token from one token, with the sampling that the engine has in force where it fixes it."""
    params = SamplingParams(max_tokens=1)
    if not capabilities.per_request_sampling:
        params = SamplingParams(max_tokens=1, temperature=capabilities.temperature)
    return GenerationRequest(
        prompt_tokens=(1 if capabilities.vocab_size > 1 else 0,),
        sampling_params=params,
        deadline_s=_WARM_UP_DEADLINE_S,
        metadata={"warm_up": True},
    )


def _epoch(health: HealthStatus) -> object:
    # Every opening of an engine has its own number; a model without one is opened once.
    return health.details.get("epoch", 0)
