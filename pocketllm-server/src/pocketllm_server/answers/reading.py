"""What the body of a generating request meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pocketllm.types import GenerationRequest
from pocketllm_server.models.model import Model


class Reading(msgspec.Struct, frozen=True):
    """A body that passed. ``requests`` has one request for each prompt."""

    fields: Mapping[str, Any]
    """Those that were set, by their names at this endpoint."""
    model: Model
    requests: Sequence[GenerationRequest]
    ignored: Sequence[str]
    """Names of what nobody documents or nobody acts on."""
