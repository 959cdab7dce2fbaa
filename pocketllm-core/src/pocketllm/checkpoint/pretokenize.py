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
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

# The letters that DeepSeek's first vocabularies take as Latin words, by code point: the cased letters of an older
# Unicode without some scripts (Armenian and Georgian small letters, mathematical alphabets).
_CASED_LETTERS = """
    41-5A 61-7A B5 C0-D6 D8-F6 F8-1BA 1BC-1BF 1C4-293 295-2AF 370-373 376-377 37B-37D 37F 386 388-38A 38C 38E-3A1
    3A3-3F5 3F7-481 48A-52F 531-556 10A0-10C5 13A0-13F5 13F8-13FD 1C90-1CBA 1CBD-1CBF 1D00-1D2B 1D6B-1D77 1D79-1D9A
    1E00-1F15 1F18-1F1D 1F20-1F45 1F48-1F4D 1F50-1F57 1F59 1F5B 1F5D 1F5F-1F7D 1F80-1FB4 1FB6-1FBC 1FBE 1FC2-1FC4
    1FC6-1FCC 1FD0-1FD3 1FD6-1FDB 1FE0-1FEC 1FF2-1FF4 1FF6-1FFC 2102 2107 210A-2113 2115 2119-211D 2124 2126 2128
    212A-212D 212F-2134 2139 213C-213F 2145-2149 214E 2183-2184 2C00-2C7B 2C7E-2CE4 2CEB-2CEE 2CF2-2CF3 A640-A66D
    A680-A69B A722-A76F A771-A787 A78B-A78E AB70-ABBF FB00-FB06 FB13-FB17 FF21-FF3A FF41-FF5A 10400-1044F 104B0-104D3
    104D8-104FB 10C80-10CB2 10CC0-10CF2 118A0-118DF 1E900-1E943
"""


def _of_ranges(ranges: str) -> str:
    """The inside of a character class from code points and ranges of them in hexadecimal."""
    return "".join("-".join(f"\\x{{{end}}}" for end in part.split("-")) for part in ranges.split())


class PreTokenization(msgspec.Struct, frozen=True):
    """What one ``pre`` name stands for.

    Attributes:
        cuts: patterns, each of which cuts what the ones before it left into matches and what lies between them; empty:
            GPT-2's own pattern.
        single_digits: cut off every digit on its own, before GPT-2's pattern or after the others.
        nfc: compose characters first (Unicode NFC).
        whole_words: a piece that is a token as it stands is taken without merging.
        add_bos: the default where the file does not say.
    """

    cuts: tuple[str, ...] = ()
    single_digits: bool = False
    nfc: bool = False
    whole_words: bool = False
    add_bos: bool = False


_GPT2_OWN = PreTokenization()
_SMOLLM = PreTokenization(single_digits=True)
_LLAMA3 = PreTokenization(
    cuts=(_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES,),
    whole_words=True,
    add_bos=True,
)
_QWEN2 = PreTokenization(
    cuts=(_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _SPACES,),
    nfc=True,
)
_QWEN35 = PreTokenization(
    cuts=(_CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + _SPACES,),
    nfc=True,
)
# CJK as these vocabularies cut it: ideographs and Hangul (and, up to U+4E00, whatever else lies between), or
# ideographs and kana.
_HAN_AND_HANGUL = "[" + _of_ranges("800-9FA5 AC00-D7FF") + "]+"
_HAN_AND_KANA = "[" + _of_ranges("3040-30FF 4E00-9FA5") + "]+"
_DEEPSEEK_LLM = PreTokenization(
    cuts=(
        r"[\r\n]",
        r"\s?[" + _of_ranges(_CASED_LETTERS) + "]+",
        # Between "!" and "~" only the digits are missing: a run of letters and signs without a space is one piece.
        r"\s?[" + _of_ranges("21-2F 3A-7E FF01-FF0F FF1A-FF5E 2018-201F 3000-3002") + "]+",
        r"\s+$",
        _HAN_AND_HANGUL,
    ),
    single_digits=True,
)
_DEEPSEEK_CODER = PreTokenization(
    cuts=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN_AND_HANGUL),
    single_digits=True,
)
_DEEPSEEK_V3 = PreTokenization(
    cuts=(
        r"\p{N}{1,3}",
        _HAN_AND_KANA,
        # A sign of ASCII goes with the Latin letters behind it, any other sign with its like.
        "[" + _of_ranges("21-2F 3A-40 5B-60 7B-7E") + "][A-Za-z]+|"
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + _SPACES,
    ),
)
# What llama.cpp does with a vocabulary whose rules its converter did not know.
_DEFAULT = PreTokenization(cuts=(r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9]{3}"))

# Names with the same rules as a vocabulary we know by its published ids stand beside it.
PRE_TYPES: Final[dict[str, PreTokenization]] = {
    "gpt-2": _GPT2_OWN,
    "phi-2": _GPT2_OWN,
    "mpt": _GPT2_OWN,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "command-r": _SMOLLM,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "falcon3": _LLAMA3,
    "lfm2": _LLAMA3,
    "pixtral": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "megrez": _QWEN2,
    "qwen35": _QWEN35,
    "deepseek-llm": _DEEPSEEK_LLM,
    "deepseek-coder": _DEEPSEEK_CODER,
    "deepseek-v3": _DEEPSEEK_V3,
    "default": _DEFAULT,
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

    digits = [pre_tokenizers.Digits(individual_digits=True)] if rules.single_digits else []
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not rules.cuts)
    cuts = [pre_tokenizers.Split(Regex(cut), behavior="isolated") for cut in rules.cuts]
    return pre_tokenizers.Sequence([*cuts, *digits, byte_level])


def build_normalizer(rules: PreTokenization) -> normalizers.Normalizer | None:
    """Unicode composition where the vocabulary was trained on it."""
    from tokenizers import normalizers

    return normalizers.NFC() if rules.nfc else None
