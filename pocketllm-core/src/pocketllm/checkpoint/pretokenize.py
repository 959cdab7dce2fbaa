"""How each byte-level vocabulary cuts text before merging: the ``tokenizer.ggml.pre`` names of GGUF files.

The patterns are facts of the vocabularies: a merge never crosses a cut, so another pattern gives other token ids.
Letters, marks and numbers are Unicode classes; a run of spaces leaves its last space to the word that follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from pocketllm.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import normalizers, pre_tokenizers

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"


class PreTokenization(msgspec.Struct, frozen=True):
    """What one ``pre`` name stands for.

    Attributes:
        pattern: the pieces text is cut into; None: GPT-2's own pattern.
        single_digits: cut off every digit on its own before anything else.
        nfc: compose characters first (Unicode NFC).
        whole_words: a piece that is a token as it stands is taken without merging.
        add_bos: the default where the file does not say.
    """

    pattern: str | None = None
    single_digits: bool = False
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False


_LLAMA3 = PreTokenization(
    pattern=_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES,
    whole_words=True,
    add_bos=True,
)
_QWEN2 = PreTokenization(
    pattern=_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES,
    nfc=True,
)
_QWEN35 = PreTokenization(
    pattern=_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES,
    nfc=True,
)

PRE_TYPES: Final[dict[str, PreTokenization]] = {
    "gpt-2": PreTokenization(),
    "smollm": PreTokenization(single_digits=True),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "qwen35": _QWEN35,
}


def find_pre_type(name: object, where: str) -> PreTokenization:
    """The rules behind a ``tokenizer.ggml.pre`` value; CheckpointError naming the known ones."""
    found = PRE_TYPES.get(name) if isinstance(name, str) else None
    if found is None:
        raise CheckpointError(
            f"{where}: tokenizer.ggml.pre is {name!r}; the known pre-tokenizers are {', '.join(PRE_TYPES)}. "
            "Give the model's tokenizer.json with tokenizer_path instead."
        )
    return found


def build_pre_tokenizer(rules: PreTokenization) -> pre_tokenizers.PreTokenizer:
    """The ``tokenizers`` component that makes the cuts and maps bytes to the byte alphabet."""
    from tokenizers import Regex, pre_tokenizers

    if rules.pattern is not None:
        cut = pre_tokenizers.Split(Regex(rules.pattern), behavior="isolated")
        return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if rules.single_digits:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    return byte_level


def build_normalizer(rules: PreTokenization) -> normalizers.Normalizer | None:
    """Unicode composition where the vocabulary was trained on it."""
    from tokenizers import normalizers

    return normalizers.NFC() if rules.nfc else None
