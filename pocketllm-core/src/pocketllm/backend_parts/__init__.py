"""What most backends need beside their engine. Using it is a choice; each part works without the others.

``probing`` has the refusals of a probe, ``options`` the ranges of numbers among ``backend_options``, ``opening`` what
an opening asks of a checkpoint, and ``features`` the capabilities of an engine that obeys every field of a request.
Imports no runtime, so that a card and a probe may use it.
"""

from pocketllm.backend_parts.features import EVERY_REQUEST_FIELD
from pocketllm.backend_parts.opening import tokenizer_or_none, usable_vocab_size
from pocketllm.backend_parts.options import check_range
from pocketllm.backend_parts.probing import refused_arguments, refused_tensors

__all__ = [
    "EVERY_REQUEST_FIELD",
    "check_range",
    "refused_arguments",
    "refused_tensors",
    "tokenizer_or_none",
    "usable_vocab_size",
]
