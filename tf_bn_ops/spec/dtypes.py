"""The element types: names, precision, and how NumPy stores them.

bfloat16 is ml_dtypes' type where that is installed (TensorFlow brings it); elsewhere its bits in
uint16, which `DType.store` writes and `DType.widen` reads.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np


@functools.cache
def _bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(np.uint16)
    return np.dtype(ml_dtypes.bfloat16)


@dataclasses.dataclass(frozen=True)
class DType:
    """An element type.

    Attributes:
      name: the name in TensorFlow's attr values ("half", not "float16").
      unit_roundoff: u, half the distance from 1 to the next number.
      smallest_normal: below it numbers are subnormal.
      smallest_subnormal: the distance between subnormal numbers.
      largest: the largest finite number.
      accumulator: the narrowest type that sums of this type may be kept in.
      c_abi_code: its TFBN_ value in cc/c_api/tf_bn_ops_c.h.
    """

    name: str
    unit_roundoff: float
    smallest_normal: float
    smallest_subnormal: float
    largest: float
    accumulator: str
    c_abi_code: int

    @property
    def numpy(self) -> np.dtype[Any]:
        """How NumPy stores it; see the module's text for bfloat16."""
        if self.name == "bfloat16":
            return _bfloat16()
        return np.dtype({"half": "float16"}.get(self.name, self.name))

    @property
    def smallest_kept(self) -> float:
        """The smallest positive number that is not flushed to zero: what is subnormal here, but not
        in float32, which narrow types are computed in, is kept."""
        is_kept = self.smallest_subnormal >= DTYPES["float32"].smallest_normal
        return self.smallest_subnormal if is_kept else self.smallest_normal

    def store(self, values: np.ndarray) -> np.ndarray:
        """`values` rounded to this type, to nearest even."""
        if self.numpy != np.uint16:
            return values.astype(self.numpy)
        bits = values.astype(np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)

    def widen(self, stored: np.ndarray, wide: Any = np.float64) -> np.ndarray:
        """Stored numbers in a wider type; every value is preserved."""
        if stored.dtype == np.uint16:
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        return stored.astype(wide)


def _binary(
    name: str, precision: int, max_exponent: int, accumulator: str, c_abi_code: int
) -> DType:
    """A binary type of `precision` significant bits whose largest numbers are below 2^(e+1)."""
    min_exponent = 1 - max_exponent
    return DType(
        name=name,
        unit_roundoff=2.0**-precision,
        smallest_normal=2.0**min_exponent,
        smallest_subnormal=2.0 ** (min_exponent - precision + 1),
        largest=(2.0 - 2.0 ** (1 - precision)) * 2.0**max_exponent,
        accumulator=accumulator,
        c_abi_code=c_abi_code,
    )


DTYPES: Mapping[str, DType] = {
    d.name: d
    for d in (
        _binary("half", 11, 15, "float32", 1),
        _binary("bfloat16", 8, 127, "float32", 2),
        _binary("float32", 24, 127, "float32", 0),
        _binary("float64", 53, 1023, "float64", 3),
    )
}


def dtype_of(array: np.ndarray) -> DType:
    """The entry of DTYPES for the element type of a NumPy array.

    Raises:
      KeyError: there is none.
    """
    name = array.dtype.name
    return DTYPES[{"float16": "half", "uint16": "bfloat16"}.get(name, name)]
