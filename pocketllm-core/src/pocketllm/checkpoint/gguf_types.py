"""The numbers of the GGUF format: value types of the metadata and storage types of tensors.

Facts of the format as ggml defines it; sizes are those of one block.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

STRING: Final = 8
ARRAY: Final = 9
BOOL: Final = 7
FLOAT32: Final = 6

# Value type id -> (struct letter, name). BOOL is read as a byte and checked by the reader.
SCALARS: Final[dict[int, tuple[str, str]]] = {
    0: ("B", "u8"),
    1: ("b", "i8"),
    2: ("H", "u16"),
    3: ("h", "i16"),
    4: ("I", "u32"),
    5: ("i", "i32"),
    6: ("f", "f32"),
    7: ("B", "bool"),
    10: ("Q", "u64"),
    11: ("q", "i64"),
    12: ("d", "f64"),
}
LAYOUTS: Final = {kind: struct.Struct("<" + letter) for kind, (letter, _) in SCALARS.items()}


class TensorType(msgspec.Struct, frozen=True):
    """A tensor storage type: ``block_elements`` consecutive elements of a row take ``block_bytes`` bytes."""

    name: str
    block_elements: int
    block_bytes: int

    @property
    def is_quantized(self) -> bool:
        return self.block_elements > 1


TENSOR_TYPES: Final[dict[int, TensorType]] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 40),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
    40: TensorType("NVFP4", 64, 36),
}
TENSOR_TYPES_BY_NAME: Final = {kind.name: kind for kind in TENSOR_TYPES.values()}
