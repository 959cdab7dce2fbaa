"""Which backend serves a checkpoint: every backend's answer is kept as data, and the choice follows from it."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

import msgspec

from pocketllm.errors import (
    BackendUnavailableError,
    ConfigurationError,
    PluginError,
    PocketLLMError,
    UnsupportedFeatureError,
)
from pocketllm.plugins.backend_options import given_options, known_names
from pocketllm.plugins.discovery import BACKENDS_GROUP, PluginState
from pocketllm.types import BackendInfo, Offer, Refusal

if TYPE_CHECKING:
    from pocketllm.checkpoint import Checkpoint
    from pocketllm.engine_args import EngineArgs
    from pocketllm.plugins.registry import BackendPlugin, Registry

INSTALL_ONE = "pip install 'pocketllm-core[cpp]', which needs no GPU, or 'pocketllm-core[torch]'"
"""What to do where there is no backend."""

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Considered:
    """What one backend had to say: an answer, or the error that kept it from answering.

    ``args`` are the arguments with its options checked or, where it did not come to that, as they were given.
    """

    name: str
    args: EngineArgs
    answer: Offer | Refusal | None = None
    error: str | None = None
    state: str = PluginState.OK

    @property
    def reason(self) -> str:
        """The offer's or refusal's sentence, or the error's first line."""
        return self.answer.reason if self.answer is not None else (self.error or "").partition("\n")[0]


@dataclasses.dataclass(frozen=True)
class Selection:
    """The backend that will serve a checkpoint, and everything that was considered on the way.

    ``args`` are what to open the backend with.
    """

    backend: BackendPlugin
    args: EngineArgs
    offer: Offer
    considered: list[Considered]


def consider(registry: Registry, args: EngineArgs, checkpoint: Checkpoint, names: list[str]) -> list[Considered]:
    """Ask each named backend. Raises nothing for a backend's faults."""
    considered = []
    for name in names:
        try:
            considered.append(_ask(registry.backend(name), args, checkpoint))
        except PluginError as error:
            state = next((p.state for p in registry.plugins if p.group == BACKENDS_GROUP and p.name == name), "")
            considered.append(Considered(name, args, error=error.message, state=state))
        except PocketLLMError as error:
            # A plain word about the checkpoint or the arguments: to this backend, a reason to refuse.
            considered.append(Considered(name, args, answer=Refusal(reason=error.message)))
    return considered


def select(registry: Registry, args: EngineArgs, checkpoint: Checkpoint) -> Selection:
    """The backend that ``args.backend`` names, or for "auto" the one with the best offer (ties: the first name).

    No device is touched and no runtime imported.

    Raises:
        UnsupportedFeatureError: tensor parallelism, or the named backend refuses.
        BackendUnavailableError: the named backend is not installed, or none offers; the message lists each reason.
        PluginError: the named backend is broken or incompatible.
        ConfigurationError: an unknown device or backend option.
    """
    if args.tensor_parallel_size > 1:
        raise UnsupportedFeatureError(
            f"tensor_parallel_size = {args.tensor_parallel_size} is not supported yet: every engine runs on one "
            "device. Set it to 1.",
            param="tensor_parallel_size",
        )
    if args.backend != "auto":
        return _select_named(registry, args, checkpoint)
    names = registry.backend_names()
    _check_spelling(registry, args, names)
    considered = consider(registry, args, checkpoint, names)
    offers = [
        (-entry.answer.rank, entry.name, entry.answer, entry.args)
        for entry in considered
        if isinstance(entry.answer, Offer) and entry.answer.rank > 0
    ]
    if not offers:
        raise BackendUnavailableError(_none_offers(considered, checkpoint), param="backend")
    _, name, offer, args = min(offers, key=lambda item: item[:2])
    for entry in considered:
        if entry.error is not None:
            _logger.warning("backend='auto' takes %r and passed over %r: %s", name, entry.name, entry.reason)
    return _selection(registry.backend(name), args, offer, considered)


def _select_named(registry: Registry, args: EngineArgs, checkpoint: Checkpoint) -> Selection:
    backend = registry.backend(args.backend)
    _check_spelling(registry, args, [args.backend])
    asked = _ask(backend, args, checkpoint)
    if not isinstance(asked.answer, Offer):
        raise UnsupportedFeatureError(
            f"Backend {backend.name!r} cannot serve {checkpoint.path}: {asked.reason}", param="backend"
        )
    return _selection(backend, asked.args, asked.answer, [asked])


def _selection(backend: BackendPlugin, args: EngineArgs, offer: Offer, considered: list[Considered]) -> Selection:
    return Selection(backend, msgspec.structs.replace(args, backend=backend.name), offer, considered)


def _ask(backend: BackendPlugin, args: EngineArgs, checkpoint: Checkpoint) -> Considered:
    """The card's answer where the card decides, else the probe's."""
    refused = _refused_by_card(backend.info, args, checkpoint)
    if refused is not None:
        return Considered(backend.name, args, answer=Refusal(reason=refused))
    args = backend.checked(args)
    return Considered(backend.name, args, answer=backend.probe(checkpoint, args))


def _refused_by_card(info: BackendInfo, args: EngineArgs, checkpoint: Checkpoint) -> str | None:
    if info.model_formats and checkpoint.format not in info.model_formats:
        return f"It reads {' and '.join(info.model_formats)} checkpoints, and this one is {checkpoint.format}."
    if args.device != "auto" and info.devices and args.device not in info.devices:
        return f"It runs on {' and '.join(info.devices)}, not on {args.device!r}: change device."
    return None


def _check_spelling(registry: Registry, args: EngineArgs, names: list[str]) -> None:
    """A device that no installed backend has, or an option that no candidate has, is a spelling mistake rather than a
    reason to choose another backend."""
    options = given_options(args)
    candidates = _cards(registry, names) if options or args.device != "auto" else []
    if options and candidates:
        known = {spec.name for card in candidates for spec in card.options}
        for name in options:
            if name not in known:
                raise ConfigurationError(
                    f"The backend option {name!r} is unknown to {_owners(candidates)}. "
                    + known_names("option", name, known),
                    param=f"backend_options.{name}",
                )
    if args.device == "auto" or any(args.device in card.devices for card in candidates):
        return
    cards = _cards(registry, registry.backend_names())
    if cards and all(card.devices and args.device not in card.devices for card in cards):
        kinds = {kind for card in cards for kind in card.devices}
        raise ConfigurationError(
            f"device = {args.device!r} is unknown to {_owners(cards)}. {known_names('device', args.device, kinds)}",
            param="device",
        )


def _cards(registry: Registry, names: list[str]) -> list[BackendInfo]:
    """The cards of ``names``; none at all when one cannot be asked, since it might know what the others do not."""
    try:
        return [registry.backend(name).info for name in names]
    except PluginError:
        return []


def _owners(cards: list[BackendInfo]) -> str:
    names = ", ".join(repr(card.name) for card in cards)
    return f"backend {names}" if len(cards) == 1 else f"every backend ({names})"


def _none_offers(considered: list[Considered], checkpoint: Checkpoint) -> str:
    if not considered:
        return f"No backend is installed: {INSTALL_ONE}."
    lines = [f"No installed backend takes {checkpoint.path} unasked:"]
    for entry in considered:
        if isinstance(entry.answer, Offer):
            lines.append(f"  {entry.name}: only when asked for by name (backend={entry.name!r})")
        else:
            lines.append(f"  {entry.name}: {entry.reason}")
    return "\n".join(lines)
